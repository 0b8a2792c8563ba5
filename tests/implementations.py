"""Every kernel, sketch, loss, regressor and decoder once, with data. A new one is tested by adding a line."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.svm import SVR

from dsokr import Graph, Training, chem, decoders, kernels, losses, networks, sketches
from dsokr.regressors import Boosted, Forest, KernelRidge, Neighbors, Neural, Scikit, Stack
from dsokr.rules import RULES
from studies.data import molecules


@dataclass(frozen=True)
class Case:
    """An implementation, a name for the test, and a function that makes n outputs for it."""

    name: str
    made: Any
    outputs: Callable[[int], Any]


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def vectors_as_array(n: int) -> np.ndarray:
    return vectors(n).numpy()


def tables(n: int) -> np.ndarray:
    """Numbers, some of which are missing."""
    rows, rng = vectors(n).numpy().copy(), np.random.default_rng(n)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[:, -1] = np.nan  # an empty column
    return rows


def images(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 8, 8)).astype(np.float32)


def bits(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 2, size=(n, 9))


def counts(n: int) -> np.ndarray:
    return np.random.default_rng(n).poisson(1.0, size=(n, 9))


def sparse_counts(n: int) -> sp.csr_array:
    return sp.csr_array(counts(n))


def sparse_vectors(n: int) -> sp.csr_array:
    return sp.random_array((n, 12), density=0.5, rng=np.random.default_rng(n), format="csr")


def rankings(n: int) -> np.ndarray:
    return np.random.default_rng(n).permuted(np.tile(np.arange(5), (n, 1)), axis=1)


def strings(n: int) -> list[str]:
    rng = np.random.default_rng(n)
    return ["".join(rng.choice(list("abc"), size=rng.integers(3, 9))) for _ in range(n)]


@cache
def generate(n: int) -> tuple[Graph, ...]:
    return tuple(molecules.generate(n, seed=n, max_atoms=6))


def graphs(n: int) -> list[Graph]:
    return list(generate(n))


def smiles(n: int) -> list[str]:
    return chem.many_smiles(graphs(n))


def views(n: int) -> list[tuple[Graph, np.ndarray]]:
    return list(zip(graphs(n), bits(n), strict=True))


KERNELS = [
    Case("linear", kernels.Linear(), vectors),
    Case("linear on sparse", kernels.Linear(), sparse_vectors),
    Case("cosine", kernels.Cosine(), vectors),
    Case("gaussian", kernels.Gaussian(0.3), vectors),
    Case("gaussian on sparse", kernels.Gaussian(0.3), sparse_vectors),
    Case("laplacian", kernels.Laplacian(0.3), vectors),
    Case("laplacian on sparse", kernels.Laplacian(0.3), sparse_vectors),
    Case("polynomial", kernels.Polynomial(3, 0.5), vectors),
    Case("tanimoto on bits", kernels.Tanimoto(), bits),
    Case("tanimoto on counts", kernels.Tanimoto(), counts),
    Case("tanimoto on sparse counts", kernels.Tanimoto(), sparse_counts),
    Case("dice on bits", kernels.Dice(), bits),
    Case("dice on counts", kernels.Dice(), counts),
    Case("dice on sparse counts", kernels.Dice(), sparse_counts),
    Case("normalised polynomial", kernels.Polynomial(2, 1.0).normalized(), vectors),
    Case("sum", kernels.Linear() + kernels.Gaussian(1.0), vectors),
    Case("product", kernels.Linear() * kernels.Gaussian(1.0), vectors),
    Case("scaled", 0.3 * kernels.Gaussian(1.0), vectors),
    Case("kemeny", kernels.Kemeny(), rankings),
    Case("hamming", kernels.Hamming(), rankings),
    Case("lehmer", kernels.Lehmer(), rankings),
    Case("n-gram", kernels.NGram(2), strings),
    Case("gappy n-gram", kernels.GappyNGram(2, gaps=1), strings),
    Case("mismatch", kernels.Mismatch(3, 1, "abc"), strings),
    Case("on molecules", kernels.OnMolecules(kernels.WeisfeilerLehman(2).normalized(), "graphs"), smiles),
    Case("vertex histogram", kernels.VertexHistogram(), graphs),
    Case("edge histogram", kernels.EdgeHistogram(), graphs),
    Case("shortest path", kernels.ShortestPath(), graphs),
    Case("weisfeiler-lehman", kernels.WeisfeilerLehman(3).normalized(), graphs),
    Case("weisfeiler-lehman with edges", kernels.WeisfeilerLehman(2, edge_labels=True), graphs),
    Case("core", kernels.Core(kernels.WeisfeilerLehman(2)).normalized(), graphs),
    Case("nspd", kernels.NSPD(1, 2).normalized(), graphs),
    Case(
        "sum of graph kernels",
        2.0 * kernels.WeisfeilerLehman(2).normalized() + kernels.ShortestPath() + kernels.EdgeHistogram(),
        graphs,
    ),
    Case("views", kernels.Views(0.5 * kernels.WeisfeilerLehman(2).normalized(), 0.5 * kernels.Tanimoto()), views),
    Case("normalised sum", (kernels.Linear() + 2.0 * kernels.Gaussian(0.1)).normalized(), vectors),
]

SKETCHES = [
    Case("full", sketches.Full(), vectors),
    Case("subsample", sketches.SubSample(12), vectors),
    Case("weighted subsample", sketches.SubSample(12, probabilities=tuple(range(1, 41))), vectors),
    Case("gaussian", sketches.Gaussian(12), vectors),
    Case("sparsified", sketches.Sparsified(12, density=0.2), vectors),
    Case("sparsified gaussian", sketches.Sparsified(12, density=0.2, entries="gaussian"), vectors),
    Case("hadamard", sketches.Hadamard(12), vectors),
    Case("leverage", sketches.LeverageSample(12), vectors),
]
SKETCHED = 40  # outputs that the sketches above are drawn for

LOSSES = [
    Case("squared", losses.Squared(), vectors),
    Case("huber", losses.Huber(0.7), vectors),
    Case("insensitive", losses.EpsilonInsensitive(0.4), vectors),
    Case("custom", losses.Custom(torch.log1p), vectors),
]

REGRESSORS = [
    Case("network", Neural(networks.MLP((16,)), training=Training(epochs=3)), vectors),
    Case("huber loss", Neural(networks.MLP((16,)), losses.Huber(0.5), Training(epochs=3)), vectors),
    Case("ranked loss", Neural(networks.MLP((16,)), losses.Ranked(), Training(epochs=3)), vectors),
    Case("convolutions", Neural(networks.CNN((4,), hidden=8), training=Training(epochs=2)), images),
    Case("characters", Neural(networks.CharTransformer(1, 8, 2), training=Training(epochs=2)), strings),
    Case("words", Neural(networks.WordBag(width=8, hidden=()), training=Training(epochs=2)), strings),
    Case("tokens", Neural(networks.SparseTransformer(1, 8, 2), training=Training(epochs=2)), sparse_vectors),
    Case("kernel ridge", KernelRidge(kernels.Gaussian(0.3), regularization=1e-3), vectors),
    Case("sketched kernel ridge", KernelRidge(kernels.NGram((1, 2)), sketches.SubSample(12)), strings),
    Case("kernel ridge on graphs", KernelRidge(kernels.WeisfeilerLehman(2), sketches.Gaussian(9)), graphs),
    Case("kernel ridge of a table", KernelRidge(intercept=True), tables),
    Case("kernel ridge of a sparse table", KernelRidge(regularization=1e-3), sparse_vectors),
    Case("network on a table", Neural(networks.MLP((16,)), training=Training(epochs=3), reads="numbers"), tables),
    Case("forest", Forest(10), tables),
    Case("forest on a sparse table", Forest(10, min_split=4), sparse_counts),
    Case("neighbours", Neighbors(), tables),
    Case("neighbours in a sparse table", Neighbors(3), sparse_vectors),
    Case("boosted trees", Boosted(trees=5), tables),
    Case("random forest of scikit-learn", Scikit(RandomForestRegressor(5, random_state=0)), tables),
    Case("support vectors", Scikit(SVR(), directions=2), vectors_as_array),
    Case("stack", Stack((Forest(5), KernelRidge(intercept=True), Neighbors(3)), contrast=1.5), tables),
]


@dataclass(frozen=True)
class DecoderCase(Case):
    """A decoder, and a kernel that it works with."""

    kernel: kernels.Kernel


MOLECULES, GAUSSIAN, NGRAMS = decoders.Molecules(max_atoms=6), kernels.Gaussian(0.1), kernels.NGram((1, 2))
LABELLED = decoders.LabelledGraphs((6, 7, 8, 9), (1, 2, 3), max_nodes=6, planar=True, max_degree=4)
DECODERS = [
    *(DecoderCase(f"candidates, {rule}", decoders.Candidates(rule), vectors, kernels.Polynomial(2)) for rule in RULES),
    *(
        DecoderCase(f"gradient, {rule}", decoders.Gradient(30, rule=rule), vectors, kernels.Gaussian(0.1))
        for rule in RULES
    ),
    DecoderCase(
        "gradient in a box", decoders.Gradient(30, constraint=decoders.Box(-9.0, 9.0)), vectors, kernels.Linear()
    ),
    DecoderCase("label sets", decoders.LabelSet(), bits, kernels.Tanimoto()),
    DecoderCase("label sets, linear", decoders.LabelSet(), bits, kernels.Linear()),
    DecoderCase("kemeny", decoders.Kemeny(), rankings, kernels.Kemeny()),
    DecoderCase("hamming", decoders.HammingRanking(), rankings, kernels.Hamming()),
    DecoderCase("lehmer", decoders.Lehmer(), rankings, kernels.Lehmer()),
    *(
        DecoderCase(f"n-grams, {rule}", decoders.NGram(beam=16, rule=rule), strings, kernels.NGram((1, 2)))
        for rule in RULES
    ),
    *(
        DecoderCase(f"graphs, {rule}", decoders.GraphSearch(MOLECULES, rule, budget=300), graphs, kernel)
        for rule, kernel in (("kernel", kernels.WeisfeilerLehman(2).normalized()), ("cosine", kernels.ShortestPath()))
    ),
    DecoderCase(
        "labelled graphs", decoders.GraphSearch(LABELLED, "kernel", budget=300), graphs, kernels.WeisfeilerLehman(2)
    ),
    DecoderCase(
        "graphs and pieces",
        decoders.GraphSearch(LABELLED, "projected", budget=300, pieces=4),
        graphs,
        kernels.WeisfeilerLehman(2),
    ),
]


def names(case: Case) -> str:
    return case.name
