"""Every kernel, sketch, loss and decoder once, with outputs to try them on. A new one is tested by adding a line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from dsokr import Graph, decoders, kernels, losses, sketches
from studies.data import molecules


@dataclass(frozen=True)
class Case:
    """An implementation, a name for the test, and a function that makes n outputs for it."""

    name: str
    made: Any
    outputs: Callable[[int], Any]


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


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


def graphs(n: int) -> list[Graph]:
    return molecules.generate(n, seed=n, max_atoms=6)


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

DECODERS = [
    Case(f"candidates, {rule}", decoders.Candidates(rule), vectors) for rule in ("kernel", "projected", "cosine")
]


def names(case: Case) -> str:
    return case.name
