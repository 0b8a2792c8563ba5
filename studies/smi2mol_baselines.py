"""The baselines of the paper's Table 1 on SMI2Mol: SISOKR, ILE-FGW and NNBary-FGW.

Each chooses its settings on the validation molecules, by the edit distance without edge labels, and is then tested
once. The two with kernels on the inputs use 3-grams of SMILES, as in the paper. FGW predicts no edge labels: its edges
are all labelled 1, and the distance with edge labels counts them as such.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dsokr.estimator import DSOKR
from dsokr.kernels import NGram, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.regressors import KernelRidge
from dsokr.regressors.networks import CharTransformer
from dsokr.sketches import SubSample
from studies.baselines.fgw import ILEFGW, NNBaryFGW
from studies.data.smi2mol import MoleculePairs, SMI2Mol
from studies.results import Row
from studies.study import Stopwatch

THREE_GRAMS = NGram(3).normalized()
SUBTREES = WeisfeilerLehman(3).normalized()
ENCODER = CharTransformer(layers=2, width=128, heads=4, dropout=0.1)

KERNEL_GRID = {"regularization": (1e-2, 1e-1, 1.0), "neighbors": (5, 10, 15), "trade_off": (0.8, 0.95)}

Grid = Mapping[str, Sequence[Any]]  # settings to choose from: every combination is tried


def mark_ends(smiles: Sequence[str]) -> list[str]:
    """Mark both ends of strings, so that 3-grams know where a string starts and stops, and "CC" has some."""
    return [f"^^{text}$$" for text in smiles]


def mean_ged(predicted: Any, true: Any) -> float:
    """The mean edit distance without edge labels."""
    return edit_distance(predicted, true, edge_labels=False).mean().item()


class Chosen(NamedTuple):
    """The function from SMILES to graphs that does best on validation, its settings and its edit distance there."""

    predict: Callable[[list[str]], Any]
    settings: Row
    val_ged: float


@dataclass(frozen=True)
class Baseline(ABC):
    """A method of the table. Limits on the number of molecules are for slow ones; None is all."""

    grid: Grid = field(default_factory=dict, hash=False)
    n_train: int | None = None
    n_choose: int | None = None
    n_test: int | None = None

    @abstractmethod
    def describe(self) -> Row:
        """The fields that identify its rows."""

    @abstractmethod
    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> Any:
        """Fit one model, or one for every combination of the grid."""

    @abstractmethod
    def choose(self, fitted: Any, val: MoleculePairs) -> Chosen:
        """Choose settings on the validation molecules."""

    def key(self, split: SMI2Mol, seed: int) -> Row:
        train, test = draw_some(split.train, self.n_train, seed), draw_some(split.test, self.n_test, seed)
        return self.describe() | {"seed": seed, "n_train": len(train.smiles), "n_test": len(test.smiles)}

    def measure(self, split: SMI2Mol, seed: int) -> tuple[Row, Any]:
        """Fit, choose and test; return what was measured, and the graphs predicted for the test molecules."""
        clock = Stopwatch()
        parts = ((split.train, self.n_train), (split.val, self.n_choose), (split.test, self.n_test))
        train, val, test = (draw_some(part, n, seed) for part, n in parts)
        with clock("fit"):
            fitted = self.fit(train, val, seed)
        with clock("choose"):
            predict, settings, val_ged = self.choose(fitted, val)
        with clock("predict"):
            predicted = predict(test.smiles)
        labelled = edit_distance(predicted, test.graphs, edge_labels=True).mean().item()
        metrics = {"ged": mean_ged(predicted, test.graphs), "ged_edge_labels": labelled, "val_ged": val_ged}
        return {"chosen": settings, "metrics": metrics, "seconds": clock.seconds}, predicted

    def combine(self) -> list[Row]:
        """Every combination of the settings in the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]


def draw_some(pairs: MoleculePairs, n: int | None, seed: int) -> MoleculePairs:
    """Draw n pairs without replacement, or return all if there are no more."""
    if n is None or n >= len(pairs.smiles):
        return pairs
    return pairs.rows(np.sort(np.random.default_rng(seed).choice(len(pairs.smiles), n, replace=False)))


@dataclass(frozen=True)
class SketchedRidgeBaseline(Baseline):
    """SISOKR over all training molecules as candidates; λ and the decoding rule are chosen."""

    input_size: int = 3_200
    size: int = 3_200
    regularizations: tuple[float, ...] = (1e-6, 1e-5, 1e-4)

    def describe(self) -> Row:
        kernels = {"kernel": str(SUBTREES), "input_kernel": str(THREE_GRAMS)}
        return {"method": "sisokr", "sketch": "SubSample", "m": self.size, "input_m": self.input_size} | kernels

    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> DSOKR:
        inputs, monitor = SubSample(self.input_size), lambda predicted, true: -mean_ged(predicted, true)
        ridge = KernelRidge(THREE_GRAMS, inputs, self.regularizations, monitor=monitor)
        model = DSOKR(SUBTREES, SubSample(self.size), ridge, random_state=seed)
        held_out = mark_ends(val.smiles), val.graphs
        return model.fit(mark_ends(train.smiles), train.graphs, validation=held_out)

    def choose(self, fitted: DSOKR, val: MoleculePairs) -> Chosen:
        settings = {"regularization": fitted.regressor_.regularization, "rule": fitted.decoder_.scoring_rule()}
        return Chosen(lambda smiles: fitted.predict(mark_ends(smiles)), settings, -max(fitted.history_["val_score"]))


@dataclass(frozen=True)
class KernelBarycenterBaseline(Baseline):
    """Sketched ILE-FGW with weights over all training molecules. A prediction takes some 50 ms on one core."""

    grid: Grid = field(default_factory=lambda: dict(KERNEL_GRID), hash=False)
    n_choose: int | None = 200
    input_size: int = 3_200

    def describe(self) -> Row:
        inputs = {"input_kernel": str(THREE_GRAMS), "sketch": "SubSample", "input_m": self.input_size}
        return {"method": "ile_fgw"} | inputs

    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> ILEFGW:
        return ILEFGW(THREE_GRAMS, SubSample(self.input_size), seed=seed).fit(mark_ends(train.smiles), train.graphs)

    def choose(self, fitted: ILEFGW, val: MoleculePairs) -> Chosen:
        def predict(settings: Row, smiles: list[str]) -> list[Any]:
            vars(fitted).update(settings)  # all of them are used by predict alone
            return fitted.predict(mark_ends(smiles))

        choices = [Chosen(partial(predict, s), s, mean_ged(predict(s, val.smiles), val.graphs)) for s in self.combine()]
        return min(choices, key=lambda choice: choice.val_ged)


@dataclass(frozen=True)
class NetworkBarycenterBaseline(Baseline):
    """NNBary-FGW, trained on molecules drawn from the training set: transport plans are slow.

    Training takes some 15 ms per molecule and epoch on one core with ten templates, a prediction as long.
    """

    grid: Grid = field(default_factory=lambda: {"trade_off": (0.5, 0.8)}, hash=False)
    n_train: int | None = 1_500
    n_choose: int | None = 200
    epochs: int = 6
    network: CharTransformer = ENCODER

    def fixed(self) -> Row:
        options = {"templates": 10, "iterations": 2, "batch_size": 16, "epochs": self.epochs}
        return {name: value for name, value in options.items() if name not in self.grid}

    def describe(self) -> Row:
        return {"method": "nnbary_fgw", "encoder": str(self.network)} | self.fixed()

    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> list[tuple[NNBaryFGW, Row]]:
        model = NNBaryFGW(self.network, seed=seed, **self.fixed())
        return [(replace(model, **settings).fit(*train), settings) for settings in self.combine()]

    def choose(self, fitted: list[tuple[NNBaryFGW, Row]], val: MoleculePairs) -> Chosen:
        choices = [Chosen(model.predict, s, mean_ged(model.predict(val.smiles), val.graphs)) for model, s in fitted]
        return min(choices, key=lambda choice: choice.val_ged)
