"""What the label ranking study compares: methods that predict coordinates of rankings, and how they are run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.ensemble import RandomForestRegressor
from sklearn.preprocessing import StandardScaler
from torch import Generator, Tensor, nn
from torch.func import functional_call, stack_module_state

from dsokr import decoders, kernels, sketches
from dsokr.basis import SketchedBasis, sketch_basis
from dsokr.decoders import Decoder, EmbeddedOutputs
from dsokr.kernels import Gaussian, Kernel, Polynomial
from dsokr.metrics import kendall_tau
from dsokr.outputs import as_outputs, canonical
from dsokr.regressors import Neural, Training
from dsokr.regressors.networks import MLP
from dsokr.regressors.networks.base import build_network
from dsokr.regressors.ridge import SketchedRidge
from studies.baselines.regression import as_targets
from studies.data.label_ranking import SOURCES, LabelRanking
from studies.study import CPU

SKETCH = 300  # rankings that span the basis, or all if there are fewer; k labels give at most k² dimensions
ANCHORS = 1000  # inputs that span the functions of ridge regression, or all if there are fewer


class RankedInputs(NamedTuple):
    """Inputs and their rankings."""

    X: np.ndarray  # (n, d)
    Y: np.ndarray  # (n, k)

    def rows(self, index: np.ndarray) -> RankedInputs:
        return RankedInputs(self.X[index], self.Y[index])


@dataclass(frozen=True, eq=False)
class Fold:
    """Pairs to train on and pairs to test on, inputs standardised by the former."""

    train: RankedInputs
    test: RankedInputs

    @staticmethod
    def of(train: RankedInputs, test: RankedInputs) -> Fold:
        scaler = StandardScaler().fit(train.X)
        return Fold(*(RankedInputs(scaler.transform(part.X), part.Y) for part in (train, test)))

    def normal_scores(self) -> Fold:
        """The same with every input replaced by its rank among the training inputs, as a normal quantile."""
        ordered = np.sort(self.train.X, axis=0)
        return Fold.of(*(RankedInputs(_normal_scores(part.X, ordered), part.Y) for part in (self.train, self.test)))

    def split_training_pairs(self, share: float, parts: int, seed: int) -> list[Fold]:
        """The training pairs alone, ``parts`` times, each time with another share of them to test on."""
        order = np.random.default_rng(seed).permutation(len(self.train.Y))
        size = max(1, round(share * len(order)))
        cuts = [np.split(order, [i * size, (i + 1) * size]) for i in range(parts)]
        return [
            Fold.of(self.train.rows(np.concatenate([before, after])), self.train.rows(tested))
            for before, tested, after in cuts
        ]


def _normal_scores(X: np.ndarray, ordered: np.ndarray) -> np.ndarray:  # (n, d), (r, d) -> (n, d)
    """Φ⁻¹ of the share of a column of ``ordered`` that is below a value, half of the equal ones included."""
    columns = list(zip(X.T, ordered.T, strict=True))
    below = np.stack([np.searchsorted(known, column, "left") for column, known in columns], axis=1)
    up_to = np.stack([np.searchsorted(known, column, "right") for column, known in columns], axis=1)
    shares = (below + up_to) / (2 * len(ordered))
    return ndtri(shares.clip(0.5 / len(ordered), 1 - 0.5 / len(ordered)))


def make_folds(data: LabelRanking, count: int, seed: int) -> list[Fold]:
    """Shuffle the pairs and cut them into parts of the same size up to one; each is tested on once."""
    pairs = RankedInputs(data.X, data.rankings)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(data.X)), count)
    rest = [np.concatenate(parts[:i] + parts[i + 1 :]) for i in range(count)]
    return [Fold.of(pairs.rows(train), pairs.rows(test)) for train, test in zip(rest, parts, strict=True)]


@dataclass(frozen=True, eq=False)
class FoldPrediction:
    """Predicted coordinates for a fold's test inputs, not yet decoded."""

    basis: SketchedBasis
    z: Tensor  # (n, p)
    fold: Fold

    def measure(self, decoder: Decoder) -> float:
        """The mean of Kendall's τ over the test pairs."""
        outputs, form = decoder.candidates(*canonical(self.fold.train.Y))
        known = EmbeddedOutputs(self.basis, outputs, form=form)
        predicted = decoder.decode(self.basis, self.z, known).outputs
        return kendall_tau(predicted, self.fold.test.Y).mean().item()


# (settings, kernel, folds, seed) -> for every setting the predictions on every fold
Fit = Callable[[Sequence[Any], Kernel, list[Fold], int], list[list[FoldPrediction]]]


def draw_basis(kernel: Kernel, fold: Fold, seed: int) -> SketchedBasis:
    sketch = sketches.SubSample(min(SKETCH, len(fold.train.Y)))
    return sketch_basis(kernel, fold.train.Y, sketch, generator=Generator().manual_seed(seed))


@dataclass(frozen=True)
class Recipe:
    """A network, how it is trained, and the number of members on either scale of the inputs that are averaged."""

    network: MLP
    training: Training  # but for its epochs
    steps: int = 500  # of the optimiser, rounded up to whole epochs
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
    comes out as if trained alone, in a fraction of the time that small networks take one by one.
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


def fit_networks(recipes: Sequence[Recipe], kernel: Kernel, folds: list[Fold], seed: int) -> list[list[FoldPrediction]]:
    """DSOKR with the mean coefficients of networks that differ in initial weights and in the scale of inputs."""
    bases = [draw_basis(kernel, fold, seed) for fold in folds]
    return [_fit_recipe(recipe, folds, bases, seed) for recipe in recipes]


def fit_single_networks(
    recipes: Sequence[Recipe], kernel: Kernel, folds: list[Fold], seed: int
) -> list[list[FoldPrediction]]:
    """The same with one network for either scale."""
    return fit_networks([replace(recipe, members=1) for recipe in recipes], kernel, folds, seed)


def _fit_recipe(recipe: Recipe, folds: list[Fold], bases: list[SketchedBasis], seed: int) -> list[FoldPrediction]:
    """Train the networks of all folds and scales side by side."""
    members = recipe.members
    scaled = folds + [fold.normal_scores() for fold in folds]
    p = max(basis.dim for basis in bases)
    coordinates = [basis.embed(fold.train.Y) for basis, fold in zip(bases, folds, strict=True)]
    padded = [nn.functional.pad(z, (0, p - z.shape[1])).numpy() for z in coordinates]
    inputs, targets = (_stack(parts, members) for parts in ([fold.train.X for fold in scaled], 2 * padded))
    networks = [build_network(recipe.network, p, folds[0].train.X, seed * 1000 + i) for i in range(inputs.shape[1])]
    regressor = Neural(lambda _: SideBySide(networks), training=recipe.training_on(len(inputs)))
    fitted = regressor.fit(inputs, as_targets(targets.flatten(start_dim=1)), seed=seed, device=CPU)
    z = fitted.predict(_stack([fold.test.X for fold in scaled], members))
    z = z.reshape(len(z), 2, len(folds), members, p).mean(dim=(1, 3))
    return [
        FoldPrediction(basis, z[: len(fold.test.Y), i, : basis.dim], fold)
        for i, (basis, fold) in enumerate(zip(bases, folds, strict=True))
    ]


def _stack(parts: list[np.ndarray], members: int) -> Tensor:  # folds × (n, d) -> (n, folds · members, d)
    """The rows of all folds side by side. Folds differ by one row: the shorter ones have their first row twice."""
    longest = max(map(len, parts))
    rows = [part[np.arange(longest) % len(part)] for part in parts]
    return torch.from_numpy(np.stack(rows, axis=1)).float().repeat_interleave(members, dim=1)


def each_fold(fit_fold: Callable[[Sequence[Any], SketchedBasis, Fold, int], Iterable[Tensor]]) -> Fit:
    """Fit one fold after the other: ``fit_fold(settings, basis, fold, seed)`` yields coordinates for every setting."""

    def fit(settings: Sequence[Any], kernel: Kernel, folds: list[Fold], seed: int) -> list[list[FoldPrediction]]:
        predictions: list[list[FoldPrediction]] = [[] for _ in settings]
        for fold in folds:
            basis = draw_basis(kernel, fold, seed)
            for own, z in zip(predictions, fit_fold(settings, basis, fold, seed), strict=True):
                own.append(FoldPrediction(basis, z, fold))
        return predictions

    return fit


class Ridge(NamedTuple):
    """λ, and s in the Gaussian input kernel exp(−s ‖x − x'‖² / d); without s the input kernel is 1 + ⟨x, x'⟩ / d."""

    scale: float | None
    regularization: float


@each_fold
def fit_ridge(settings: Sequence[Ridge], basis: SketchedBasis, fold: Fold, seed: int) -> Iterator[Tensor]:
    """Kernel ridge regression of the coordinates (IOKR); with up to 1,000 pairs nothing is sketched.

    One eigendecomposition serves all λ of an input kernel.
    """
    X, Y = fold.train
    d = X.shape[1]
    for scale, group in groupby(settings, lambda setting: setting.scale):
        kernel = (1 / d) * Polynomial(1, float(d)) if scale is None else Gaussian(scale / d)
        sketch = sketches.SubSample(min(ANCHORS, len(X)))
        inputs = sketch_basis(kernel, X, sketch, generator=Generator().manual_seed(0))
        ridge = SketchedRidge.of(inputs, as_outputs(X), basis.embed(Y))
        z = inputs.embed(fold.test.X)
        yield from (z @ ridge.solve(ridge.cross, setting.regularization) for setting in group)


class Forest(NamedTuple):
    """The share of the inputs tried at a split, the number of trees, and the fewest pairs in a leaf."""

    max_features: float
    trees: int = 100
    leaf: int = 1


@each_fold
def fit_forest(settings: Sequence[Forest], basis: SketchedBasis, fold: Fold, seed: int) -> Iterator[Tensor]:
    """A random forest of regression trees for all coordinates at once."""
    for share, trees, leaf in settings:
        model = RandomForestRegressor(trees, max_features=share, min_samples_leaf=leaf, random_state=seed)
        model.fit(fold.train.X, basis.embed(fold.train.Y).numpy())
        yield torch.from_numpy(model.predict(fold.test.X).reshape(len(fold.test.X), basis.dim))


@each_fold
def fit_consensus(settings: Sequence[Any], basis: SketchedBasis, fold: Fold, seed: int) -> list[Tensor]:
    """The mean of the coordinates, whatever the input: with the Kemeny kernel, Kemeny's consensus ranking."""
    z = basis.embed(fold.train.Y).mean(dim=0)
    return [z.expand(len(fold.test.Y), -1) for _ in settings]


KERNELS: dict[str, tuple[Kernel, Decoder]] = {  # each with the decoder that searches all rankings
    "Kemeny": (kernels.Kemeny(), decoders.Kemeny()),
    "Hamming": (kernels.Hamming(), decoders.HammingRanking()),
    "Lehmer": (kernels.Lehmer(), decoders.Lehmer()),
}


@dataclass(frozen=True)
class RankingMethod:
    """How a method is fitted, the settings to choose from, and the kernels whose coordinates it predicts."""

    name: str
    fit: Fit
    settings: tuple[Any, ...]
    kernels: tuple[str, ...] = ("Kemeny",)
    quick: Fit | None = None  # fitted instead when settings are compared; None: fit
    parts: int = 1  # of the training pairs, held out in turn to compare the settings
    best: int = 1  # settings that are fitted and whose coefficients are averaged
    candidates: bool = False  # whether the training rankings are also tried as the only answers


TRAINING = Training(
    batch_size=64, learning_rate=1e-2, optimizer="adamw", schedule="linear", validation_fraction=0.0, progress=False
)
GENTLE = replace(TRAINING, learning_rate=3e-3, weight_decay=3.0)  # for smoother functions
RECIPES = tuple(
    Recipe(network, training)
    for network, training in product((MLP(()), MLP((64, 64), "tanh"), MLP((64, 64, 64))), (TRAINING, GENTLE))
)
LAMBDAS = (1e-5, 1e-4, 1e-3, 1e-2)
NETWORKS = RankingMethod(
    "dsokr", fit_networks, RECIPES, tuple(KERNELS), fit_single_networks, parts=5, best=2, candidates=True
)
CONSENSUS = RankingMethod("consensus", fit_consensus, (None,))
LINEAR = RankingMethod("linear ridge", fit_ridge, tuple(Ridge(None, value) for value in LAMBDAS), tuple(KERNELS))
GAUSSIAN = RankingMethod(
    "kernel ridge", fit_ridge, tuple(Ridge(*pair) for pair in product((0.3, 1.0, 3.0), LAMBDAS)), tuple(KERNELS)
)
FOREST = RankingMethod("random forest", fit_forest, (Forest(1.0), Forest(1 / 3)))


@dataclass(frozen=True)
class RankingConfig:
    methods: tuple[RankingMethod, ...] = (CONSENSUS, LINEAR, GAUSSIAN, FOREST, NETWORKS)
    datasets: tuple[str, ...] = tuple(name for name in SOURCES if name != "sushi")
    repetitions: int = 5
    folds: int = 10
    held_out: float = 0.2  # of the training pairs, to choose settings on


FULL = RankingConfig()
REDUCED = replace(FULL, repetitions=1)
SUSHI = RankingConfig(  # many pairs, and little to learn from them: the inputs say little about preferences
    methods=(
        CONSENSUS,
        LINEAR,
        replace(GAUSSIAN, settings=tuple(Ridge(scale, value) for scale in (0.01, 0.1) for value in (1e-2, 1e-1))),
        replace(FOREST, settings=(Forest(1 / 3, trees=50, leaf=50),)),
        NETWORKS,
    ),
    datasets=("sushi",),
    repetitions=1,
)
QUICK = RankingConfig(
    methods=(
        CONSENSUS,
        replace(LINEAR, kernels=("Kemeny",)),
        replace(GAUSSIAN, kernels=("Kemeny",)),
        replace(FOREST, settings=(Forest(1.0, trees=10),)),
        replace(
            NETWORKS,
            settings=tuple(Recipe(MLP((32, 32), name), TRAINING, 100, members=1) for name in ("relu", "tanh")),
            parts=2,
        ),
    ),
    datasets=("generated",),
    repetitions=2,
    folds=2,
)
