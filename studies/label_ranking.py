"""Label ranking: from a vector to an order of preference, with five times ten-fold cross-validation.

Kendall's τ of deep networks, of ridge regression and of random forests that predict the same coordinates, in bases of
the Kemeny, Hamming and Lehmer kernels, and are decoded by the same exact decoders. What the networks say is also
decoded over the training rankings alone, to see what a search of all rankings is worth.

What is open in a method is chosen fold by fold, on parts of the training pairs that are held out; then the method is
fitted to all of them. The networks of all data sets have the same recipes to choose from; those of all folds are
trained side by side, as one network (see :class:`SideBySide`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.ensemble import RandomForestRegressor
from torch import Generator, Tensor, nn
from torch.func import functional_call, stack_module_state

from dsokr import decoders, kernels, sketches
from dsokr.regressors.ridge import sketched_ridge
from dsokr.basis import SketchedBasis, sketch_basis
from studies.data.label_ranking import SOURCES, LabelRanking, label_ranking
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs
from studies.results import Results, Row, read_rows
from dsokr.kernels import Gaussian, Kernel, Polynomial
from dsokr.losses import Squared
from dsokr.metrics import kendall_tau
from dsokr.regressors.networks import MLP, built, outputs_of
from dsokr.regressors.training import Pairs, Training, standardized, train

Say = Callable[[str], None]

KERNELS: dict[str, tuple[Kernel, Decoder]] = {  # each with the decoder that searches all rankings
    "Kemeny": (kernels.Kemeny(), decoders.Kemeny()),
    "Hamming": (kernels.Hamming(), decoders.HammingRanking()),
    "Lehmer": (kernels.Lehmer(), decoders.Lehmer()),
}
COLUMNS = ("dataset", "method", "kernel", "decoder")
SKETCH = 300  # rankings that span the basis, or all if there are fewer; k labels give at most k² dimensions
ANCHORS = 1000  # inputs that span the functions of ridge regression, or all if there are fewer


class Part(NamedTuple):
    """Inputs and the rankings that belong to them."""

    X: np.ndarray  # (n, d)
    Y: np.ndarray  # (n, k)

    def rows(self, index: np.ndarray) -> Part:
        return Part(self.X[index], self.Y[index])


@dataclass(frozen=True, eq=False)
class Fold:
    """Pairs to learn from and pairs to test on, inputs in units of the former's mean and spread."""

    train: Part
    test: Part

    @staticmethod
    def of(train: Part, test: Part) -> Fold:
        mean, spread = train.X.mean(axis=0), train.X.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        return Fold(*(Part((part.X - mean) / spread, part.Y) for part in (train, test)))

    def normal_scores(self) -> Fold:
        """The same with every input by its rank among the training inputs, as a quantile of the normal distribution."""
        ordered = np.sort(self.train.X, axis=0)
        return Fold.of(*(Part(_normal_scores(part.X, ordered), part.Y) for part in (self.train, self.test)))

    def inner(self, share: float, parts: int, seed: int) -> list[Fold]:
        """The training pairs alone, with a share of them to test on, and as often as asked the next share."""
        order = np.random.default_rng(seed).permutation(len(self.train.Y))
        size = max(1, round(share * len(order)))
        cuts = [np.split(order, [i * size, (i + 1) * size]) for i in range(parts)]
        return [
            Fold.of(self.train.rows(np.concatenate([before, after])), self.train.rows(tested))
            for before, tested, after in cuts
        ]


def _normal_scores(X: np.ndarray, ordered: np.ndarray) -> np.ndarray:  # (n, d), (r, d) -> (n, d)
    """Φ⁻¹ of the share of a column of ``ordered`` that is below a value, half of those that are equal included."""
    columns = list(zip(X.T, ordered.T, strict=True))
    below = np.stack([np.searchsorted(known, column, "left") for column, known in columns], axis=1)
    up_to = np.stack([np.searchsorted(known, column, "right") for column, known in columns], axis=1)
    shares = (below + up_to) / (2 * len(ordered))
    return ndtri(shares.clip(0.5 / len(ordered), 1 - 0.5 / len(ordered)))


def folds_of(data: LabelRanking, count: int, seed: int) -> list[Fold]:
    """The pairs in random order, cut into parts of the same size up to one; each is tested on once."""
    pairs = Part(data.X, data.rankings)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(data.X)), count)
    rest = [np.concatenate(parts[:i] + parts[i + 1 :]) for i in range(count)]
    return [Fold.of(pairs.rows(learnt), pairs.rows(tested)) for learnt, tested in zip(rest, parts, strict=True)]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a fitted method says of a fold's test inputs: coefficients, not yet decoded."""

    basis: SketchedBasis
    z: Tensor  # (n, p)
    fold: Fold

    def tau(self, decoder: Decoder) -> float:
        """The mean of Kendall's τ over the test pairs."""
        known = EmbeddedOutputs(self.basis, decoder.known(self.fold.train.Y))
        predicted = decoder.decode(self.basis, self.z, known).outputs
        return kendall_tau(predicted, self.fold.test.Y).mean().item()


Fit = Callable[[Sequence[Any], Kernel, list[Fold], int], list[list[Outcome]]]
"""(settings, kernel, folds, seed) -> for every setting the outcome on every fold."""


def _basis(kernel: Kernel, fold: Fold, seed: int) -> SketchedBasis:
    sketch = sketches.SubSample(min(SKETCH, len(fold.train.Y)))
    return sketch_basis(kernel, fold.train.Y, sketch, generator=Generator().manual_seed(seed))


@dataclass(frozen=True)
class Recipe:
    """A network, how it is trained, and the number of those on either scale of the inputs whose mean is taken."""

    network: MLP
    training: Training  # but for its epochs
    steps: int = 500  # of the optimiser, in whole epochs
    members: int = 2

    def training_on(self, n: int) -> Training:
        """As many epochs of n pairs as make up the steps, in batches of one size: a small last one is mere noise."""
        batches = math.ceil(n / self.training.batch_size)
        return replace(self.training, epochs=math.ceil(self.steps / batches), batch_size=math.ceil(n / batches))

    def __str__(self) -> str:
        t = self.training
        how = f"{self.steps} steps, batches of up to {t.batch_size}, rate {t.learning_rate:g}, decay {t.weight_decay:g}"
        return f"{self.members} × {self.network}, {how}, {t.schedule} schedule, on inputs and on their normal scores"


class SideBySide(nn.Module):
    """M networks of one architecture as one: (n, M, d) -> (n, M · p), with inputs and weights of their own.

    With the square loss the gradient of one does not depend on the others, and Adam treats every weight by itself: each
    comes out as if trained alone, for a fraction of the time that small networks take one by one.
    """

    def __init__(self, networks: list[nn.Module]):
        super().__init__()
        weights, _ = stack_module_state(networks)
        self.names = list(weights)
        self.weights = nn.ParameterList(nn.Parameter(weight.detach()) for weight in weights.values())
        self._one = [networks[0]]  # in a list, so that its own weights are not trained

    def forward(self, inputs: Tensor) -> Tensor:
        network = self._one[0].train(self.training)
        weights = dict(zip(self.names, self.weights, strict=True))
        z = torch.vmap(partial(functional_call, network), in_dims=(0, 1), out_dims=1, randomness="different")
        return z(weights, inputs).flatten(start_dim=1)


def networks(recipes: Sequence[Recipe], kernel: Kernel, folds: list[Fold], seed: int) -> list[list[Outcome]]:
    """DSOKR with the mean of the coefficients of networks that differ in first weights and in the scale of inputs."""
    bases = [_basis(kernel, fold, seed) for fold in folds]
    return [_trained(recipe, folds, bases, seed) for recipe in recipes]


def single_networks(recipes: Sequence[Recipe], kernel: Kernel, folds: list[Fold], seed: int) -> list[list[Outcome]]:
    """The same with one network for either scale."""
    return networks([replace(recipe, members=1) for recipe in recipes], kernel, folds, seed)


def _trained(recipe: Recipe, folds: list[Fold], bases: list[SketchedBasis], seed: int) -> list[Outcome]:
    members = recipe.members
    scaled = folds + [fold.normal_scores() for fold in folds]
    p = max(basis.dim for basis in bases)
    coordinates = [basis.embed(fold.train.Y) for basis, fold in zip(bases, folds, strict=True)]
    padded = [nn.functional.pad(z, (0, p - z.shape[1])).numpy() for z in coordinates]
    inputs, targets = (_stacked(parts, members) for parts in ([fold.train.X for fold in scaled], 2 * padded))
    pairs = Pairs(inputs, targets.flatten(start_dim=1), torch.zeros(len(inputs)))
    first = [built(recipe.network, p, folds[0].train.X, seed * 1000 + i) for i in range(len(scaled) * members)]
    training = recipe.training_on(len(pairs))
    network = standardized(SideBySide(first), pairs, training)
    train(network, pairs, None, Squared(), training, seed=seed, device=torch.device("cpu"))
    z = outputs_of(network, _stacked([fold.test.X for fold in scaled], members))
    z = z.reshape(len(z), 2, len(folds), members, p).mean(dim=(1, 3))
    return [
        Outcome(basis, z[: len(fold.test.Y), i, : basis.dim], fold)
        for i, (basis, fold) in enumerate(zip(bases, folds, strict=True))
    ]


def _stacked(parts: list[np.ndarray], members: int) -> Tensor:  # folds × (n, d) -> (n, folds · members, d)
    """The rows of all folds side by side. Folds differ by one row: the shorter ones have their first row twice."""
    longest = max(map(len, parts))
    rows = [part[np.arange(longest) % len(part)] for part in parts]
    return torch.from_numpy(np.stack(rows, axis=1)).float().repeat_interleave(members, dim=1)


class Ridge(NamedTuple):
    """λ, and s in the Gaussian input kernel exp(−s ‖x − x'‖² / d); without s the input kernel is 1 + ⟨x, x'⟩ / d."""

    scale: float | None
    regularization: float

    def kernel(self, d: int) -> Kernel:
        return (1 / d) * Polynomial(1, float(d)) if self.scale is None else Gaussian(self.scale / d)


def ridge(settings: Sequence[Ridge], kernel: Kernel, folds: list[Fold], seed: int) -> list[list[Outcome]]:
    """Kernel ridge regression of the coordinates (IOKR), as SISOKR does it; with up to 1,000 pairs nothing is sketched.

    One eigendecomposition serves all λ of an input kernel.
    """
    by_fold = [list(_ridges(settings, _basis(kernel, fold, seed), fold)) for fold in folds]
    return [list(outcomes) for outcomes in zip(*by_fold, strict=True)]


def _ridges(settings: Sequence[Ridge], basis: SketchedBasis, fold: Fold) -> Iterator[Outcome]:
    X, Y = fold.train
    for scale, group in groupby(settings, lambda setting: setting.scale):
        input_kernel = Ridge(scale, 1.0).kernel(X.shape[1])
        sketch = sketches.SubSample(min(ANCHORS, len(X)))
        inputs = sketch_basis(input_kernel, X, sketch, generator=Generator().manual_seed(0))
        solved = sketched_ridge(inputs, X, basis.embed, Y, basis.dim)
        z = inputs.embed(fold.test.X)
        for setting in group:
            yield Outcome(basis, z @ solved.solve(solved.cross, setting.regularization), fold)


class Forest(NamedTuple):
    """The share of the inputs tried at a split, the number of trees, and of pairs in a leaf at least."""

    max_features: float
    trees: int = 100
    leaf: int = 1


def forest(settings: Sequence[Forest], kernel: Kernel, folds: list[Fold], seed: int) -> list[list[Outcome]]:
    """A random forest of regression trees for all coordinates at once."""
    return [[_forest(setting, _basis(kernel, fold, seed), fold, seed) for fold in folds] for setting in settings]


def _forest(setting: Forest, basis: SketchedBasis, fold: Fold, seed: int) -> Outcome:
    share, trees, leaf = setting
    model = RandomForestRegressor(trees, max_features=share, min_samples_leaf=leaf, random_state=seed)
    model.fit(fold.train.X, basis.embed(fold.train.Y).numpy())
    z = model.predict(fold.test.X).reshape(len(fold.test.X), basis.dim)
    return Outcome(basis, torch.from_numpy(z), fold)


def consensus(settings: Sequence[Any], kernel: Kernel, folds: list[Fold], seed: int) -> list[list[Outcome]]:
    """The mean of the coordinates, whatever the input: with the Kemeny kernel, Kemeny's consensus ranking."""
    outcomes = []
    for fold in folds:
        basis = _basis(kernel, fold, seed)
        z = basis.embed(fold.train.Y).mean(dim=0)
        outcomes.append(Outcome(basis, z.expand(len(fold.test.Y), -1), fold))
    return [outcomes for _ in settings]


@dataclass(frozen=True)
class Method:
    """What is fitted, the settings to choose from, and the kernels whose coordinates it predicts."""

    name: str
    fit: Fit
    settings: tuple[Any, ...]
    kernels: tuple[str, ...] = ("Kemeny",)
    quick: Fit | None = None  # what the settings are compared with; None: fit
    parts: int = 1  # of the training pairs, held out one after the other to compare the settings
    best: int = 1  # settings that are fitted; the mean of their coefficients is taken
    candidates: bool = False  # whether the training rankings are also tried as the only answers


TRAINING = Training(
    batch_size=64,
    learning_rate=1e-2,
    optimizer="adamw",
    schedule="linear",
    validation_fraction=0.0,
    progress=False,
)
GENTLE = replace(TRAINING, learning_rate=3e-3, weight_decay=3.0)  # for smoother functions
RECIPES = tuple(
    Recipe(network, training)
    for network, training in product((MLP(()), MLP((64, 64), "tanh"), MLP((64, 64, 64))), (TRAINING, GENTLE))
)
LAMBDAS = (1e-5, 1e-4, 1e-3, 1e-2)
DSOKR = Method("dsokr", networks, RECIPES, tuple(KERNELS), single_networks, parts=5, best=2, candidates=True)
CONSENSUS = Method("consensus", consensus, (None,))
LINEAR = Method("linear ridge", ridge, tuple(Ridge(None, value) for value in LAMBDAS), tuple(KERNELS))
GAUSSIAN = Method(
    "kernel ridge", ridge, tuple(Ridge(*pair) for pair in product((0.3, 1.0, 3.0), LAMBDAS)), tuple(KERNELS)
)
FOREST = Method("random forest", forest, (Forest(1.0), Forest(1 / 3)))


@dataclass(frozen=True)
class Study:
    """What is run."""

    methods: tuple[Method, ...] = (CONSENSUS, LINEAR, GAUSSIAN, FOREST, DSOKR)
    datasets: tuple[str, ...] = tuple(name for name in SOURCES if name != "sushi")
    repetitions: int = 5
    folds: int = 10
    held_out: float = 0.2  # of the training pairs, to choose settings on


FULL = Study()
REDUCED = replace(FULL, repetitions=1)
SUSHI = Study(  # many pairs, and little to be learnt from them: tastes differ more than the people who have them
    methods=(
        CONSENSUS,
        LINEAR,
        replace(GAUSSIAN, settings=tuple(Ridge(scale, value) for scale in (0.01, 0.1) for value in (1e-2, 1e-1))),
        replace(FOREST, settings=(Forest(1 / 3, trees=50, leaf=50),)),
        DSOKR,
    ),
    datasets=("sushi",),
    repetitions=1,
)
QUICK = Study(
    methods=(
        CONSENSUS,
        replace(LINEAR, kernels=("Kemeny",)),
        replace(GAUSSIAN, kernels=("Kemeny",)),
        replace(FOREST, settings=(Forest(1.0, trees=10),)),
        replace(
            DSOKR,
            settings=tuple(Recipe(MLP((32, 32), name), TRAINING, 100, members=1) for name in ("relu", "tanh")),
            parts=2,
            best=2,
        ),
    ),
    datasets=("generated",),
    repetitions=2,
    folds=2,
)


def generate(n: int = 120) -> LabelRanking:
    """Five labels on a circle, ranked by how near they are to the input.

    >>> generate(3).rankings.shape
    (3, 5)
    """
    angles = np.arange(5) * 2 * np.pi / 5
    X = np.random.default_rng(0).normal(size=(n, 2))
    distance = np.linalg.norm(X[:, None] - np.stack([np.cos(angles), np.sin(angles)], axis=1), axis=2)
    return LabelRanking(X, distance.argsort(axis=1).argsort(axis=1), tuple("abcde"))


def run(study: Study, folder: Path, data: str | Path | None = None, say: Say = print) -> None:
    """Compute what ``models.jsonl`` in ``folder`` does not hold yet. ``data`` is the data folder."""
    for name in study.datasets:
        compare(study, name, generate() if name == "generated" else label_ranking(name, data), folder, say)


def compare(study: Study, name: str, data: LabelRanking, folder: Path, say: Say = print) -> None:
    """All methods on one data set: a row for every repetition, method, kernel and decoder."""
    results = Results(folder / "models.jsonl")
    for seed in range(study.repetitions):
        folds = folds_of(data, study.folds, seed)
        for method in study.methods:
            for kernel in method.kernels:
                asked = _asked(study, name, data, method, kernel, seed)
                for row in _measured(study, method, kernel, folds, asked, results):
                    tau, decoder = row["metrics"]["kendall_tau"], row["decoder"]
                    say(f"{name}, repetition {seed}: {method.name}, {kernel}, {decoder}: {tau:.4f}")


def _asked(study: Study, name: str, data: LabelRanking, method: Method, kernel: str, seed: int) -> Row:
    averaged = {"parts": method.parts, "averaged": method.best} if method.parts > 1 else {}
    return {
        "experiment": "label_ranking",
        "dataset": name,
        "method": method.name,
        "kernel": kernel,
        "sketch": "SubSample",
        "m": SKETCH,
        "seed": seed,
        "folds": study.folds,
        "n": len(data.X),
        "settings": [str(setting) for setting in method.settings],
        "held_out": study.held_out,
        "selected": len(method.settings) > 1,
        **averaged,
    }


def _measured(
    study: Study, method: Method, kernel: str, folds: list[Fold], asked: Row, results: Results
) -> Iterator[Row]:
    exact = KERNELS[kernel][1]
    tried = [exact, Candidates("kernel")] if method.candidates else [exact]
    rows = [asked | {"decoder": type(decoder).__name__} for decoder in tried]
    if any(results.find(row) is None for row in rows):
        start = time.perf_counter()
        outcomes, chosen = chosen_and_fitted(study, method, kernel, folds, asked["seed"])
        fitted = time.perf_counter() - start
        for row, decoder in zip(rows, tried, strict=True):
            results.record(row, partial(_decoded, outcomes, decoder, chosen, fitted))
    for row in rows:
        yield results.find(row) or {}


def chosen_and_fitted(
    study: Study, method: Method, kernel_name: str, folds: list[Fold], seed: int
) -> tuple[list[Outcome], list[Any]]:
    """The settings that do best on held-out parts of a fold's training pairs, fitted to all of them and averaged."""
    kernel, decoder = KERNELS[kernel_name]
    best = np.zeros((1, len(folds)), dtype=int)
    if len(method.settings) > 1:
        inner = [part for fold in folds for part in fold.inner(study.held_out, method.parts, seed)]
        tried = (method.quick or method.fit)(method.settings, kernel, inner, seed)
        taus = np.array([[outcome.tau(decoder) for outcome in outcomes] for outcomes in tried])
        means = taus.reshape(len(taus), len(folds), method.parts).mean(axis=2)
        best = np.argsort(-means, axis=0, kind="stable")[: method.best]
    fitted: list[list[Outcome]] = [[] for _ in folds]
    for index in np.unique(best):
        where = np.flatnonzero((best == index).any(axis=0))
        (outcomes,) = method.fit([method.settings[index]], kernel, [folds[i] for i in where], seed)
        for i, outcome in zip(where, outcomes, strict=True):
            fitted[i].append(outcome)
    return [_mean(outcomes) for outcomes in fitted], [method.settings[index] for index in best.T.flat]


def _mean(outcomes: list[Outcome]) -> Outcome:
    """The mean of what several say of a fold in the same basis."""
    return replace(outcomes[0], z=torch.stack([outcome.z for outcome in outcomes]).mean(dim=0))


def _decoded(outcomes: list[Outcome], decoder: Decoder, chosen: list[Any], fitted: float) -> Row:
    start = time.perf_counter()
    taus = [outcome.tau(decoder) for outcome in outcomes]
    return {
        "metrics": {"kendall_tau": float(np.mean(taus)), "by_fold": taus},
        "chosen": dict(Counter(map(str, chosen))),
        "seconds": {"fitting": fitted, "decoding": time.perf_counter() - start},
    }


def table(folder: Path) -> list[Row]:
    """One row per data set, method, kernel and decoder: mean and standard deviation of τ over all folds."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in read_rows(folder / "models.jsonl"):
        groups.setdefault(tuple(row[name] for name in COLUMNS), []).append(row)
    return [dict(zip(COLUMNS, which, strict=True)) | _summary(rows) for which, rows in groups.items()]


def _summary(rows: list[Row]) -> Row:
    taus = [tau for row in rows for tau in row["metrics"]["by_fold"]]
    return {
        "kendall_tau": float(np.mean(taus)),
        "sd": float(np.std(taus, ddof=1)),
        "repetitions": len(rows),
        "seconds": sum(sum(row["seconds"].values()) for row in rows),
    }
