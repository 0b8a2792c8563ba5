"""The baselines of the paper's Table 1 on SMI2Mol: SISOKR, ILE-FGW and NNBary-FGW.

Each chooses its settings on the validation molecules, by the edit distance without edge labels, and is then tested
once. The two with kernels on the inputs use 3-grams of SMILES, as in the paper. FGW predicts no edge labels: its edges
are all labelled 1, and the distance with edge labels counts them as such.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

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

Grid = Mapping[str, Sequence[Any]]  # settings to choose from: every combination is tried


class Baseline(ABC):
    """A method of the table."""

    @abstractmethod
    def key(self, split: SMI2Mol, seed: int) -> Row:
        """The fields that identify its row of results."""

    @abstractmethod
    def measure(self, split: SMI2Mol, seed: int) -> tuple[Row, Any]:
        """Fit, choose and test; return what was measured, and the graphs predicted for the test molecules."""


def mark_ends(smiles: Sequence[str]) -> list[str]:
    """Mark both ends of strings, so that 3-grams know where a string starts and stops, and "CC" has some."""
    return [f"^^{text}$$" for text in smiles]


def mean_ged(predicted: Any, true: Any) -> float:
    """The mean edit distance without edge labels."""
    return edit_distance(predicted, true, edge_labels=False).mean().item()


@dataclass(frozen=True)
class SketchedRidgeBaseline(Baseline):
    """SISOKR over all training molecules as candidates; λ and the decoding rule are chosen."""

    input_size: int = 3_200
    size: int = 3_200
    regularizations: tuple[float, ...] = (1e-6, 1e-5, 1e-4)

    def key(self, split: SMI2Mol, seed: int) -> Row:
        return {
            "method": "sisokr",
            "kernel": str(SUBTREES),
            "input_kernel": str(THREE_GRAMS),
            "sketch": "SubSample",
            "m": self.size,
            "input_m": self.input_size,
            "seed": seed,
            "n_train": len(split.train.smiles),
            "n_test": len(split.test.smiles),
        }

    def measure(self, split: SMI2Mol, seed: int) -> tuple[Row, Any]:
        clock = Stopwatch()
        ridge = KernelRidge(
            THREE_GRAMS,
            SubSample(self.input_size),
            self.regularizations,
            monitor=lambda predicted, true: -mean_ged(predicted, true),
        )
        model = DSOKR(SUBTREES, SubSample(self.size), ridge, random_state=seed)
        split = split.map_smiles(mark_ends)
        with clock("fit"):
            model.fit(*split.train, validation=split.val)
        with clock("predict"):
            predicted = model.predict(split.test.smiles)
        chosen = {"regularization": model.regressor_.regularization, "rule": model.decoder_.scoring_rule()}
        return _test(predicted, split.test, chosen, -max(model.history_["val_score"]), clock), predicted


@dataclass(frozen=True)
class KernelBarycenterBaseline(Baseline):
    """Sketched ILE-FGW with weights over all training molecules.

    λ, the number of neighbours and the trade-off are chosen on ``n_choose`` of the validation molecules. A prediction
    takes some 50 ms on one core; ``n_test`` limits their number.
    """

    input_size: int = 3_200
    grid: Grid = field(
        default_factory=lambda: {
            "regularization": (1e-2, 1e-1, 1.0),
            "neighbors": (5, 10, 15),
            "trade_off": (0.8, 0.95),
        },
        hash=False,
    )
    n_choose: int = 200
    n_test: int | None = None

    def key(self, split: SMI2Mol, seed: int) -> Row:
        return {
            "method": "ile_fgw",
            "input_kernel": str(THREE_GRAMS),
            "sketch": "SubSample",
            "input_m": self.input_size,
            "seed": seed,
            "n_train": len(split.train.smiles),
            "n_test": len(draw_some(split.test, self.n_test, seed).smiles),
        }

    def measure(self, split: SMI2Mol, seed: int) -> tuple[Row, Any]:
        clock = Stopwatch()
        split = split.map_smiles(mark_ends)
        test, some = draw_some(split.test, self.n_test, seed), draw_some(split.val, self.n_choose, seed)
        with clock("fit"):
            model = ILEFGW(THREE_GRAMS, SubSample(self.input_size), seed=seed).fit(*split.train)

        def predict(settings: Row, smiles: list[str]) -> list[Any]:
            vars(model).update(settings)  # all of them are used by predict alone
            return model.predict(smiles)

        with clock("choose"):
            scored = [(mean_ged(predict(s, some.smiles), some.graphs), s) for s in _combine(self.grid)]
            error, chosen = min(scored, key=lambda pair: pair[0])
        with clock("predict"):
            predicted = predict(chosen, test.smiles)
        return _test(predicted, test, chosen, error, clock), predicted


@dataclass(frozen=True)
class NetworkBarycenterBaseline(Baseline):
    """NNBary-FGW, trained on ``n_train`` molecules drawn from the training set: transport plans are slow.

    The settings in the ``grid`` are chosen on ``n_choose`` of the validation molecules. Training takes some 15 ms per
    molecule and epoch on one core with ten templates, a prediction as long.
    """

    network: CharTransformer = ENCODER
    grid: Grid = field(default_factory=lambda: {"trade_off": (0.5, 0.8)}, hash=False)
    n_train: int = 1_500
    epochs: int = 6
    n_choose: int = 200
    n_test: int | None = None

    def fixed(self) -> Row:
        options = {"templates": 10, "iterations": 2, "batch_size": 16, "epochs": self.epochs}
        return {name: value for name, value in options.items() if name not in self.grid}

    def key(self, split: SMI2Mol, seed: int) -> Row:
        train, test = draw_some(split.train, self.n_train, seed), draw_some(split.test, self.n_test, seed)
        sizes = {"n_train": len(train.smiles), "n_test": len(test.smiles)}
        return {"method": "nnbary_fgw", "encoder": str(self.network), **self.fixed(), "seed": seed, **sizes}

    def measure(self, split: SMI2Mol, seed: int) -> tuple[Row, Any]:
        clock = Stopwatch()
        train, test = draw_some(split.train, self.n_train, seed), draw_some(split.test, self.n_test, seed)
        some = draw_some(split.val, self.n_choose, seed)
        model = NNBaryFGW(self.network, seed=seed, **self.fixed())
        with clock("fit"):
            models = [(replace(model, **settings).fit(*train), settings) for settings in _combine(self.grid)]
        with clock("choose"):
            scored = [(mean_ged(model.predict(some.smiles), some.graphs), model, s) for model, s in models]
            error, model, chosen = min(scored, key=lambda triple: triple[0])
        with clock("predict"):
            predicted = model.predict(test.smiles)
        return _test(predicted, test, chosen, error, clock), predicted


def draw_some(pairs: MoleculePairs, n: int | None, seed: int) -> MoleculePairs:
    """Draw n pairs without replacement, or return all if there are no more."""
    if n is None or n >= len(pairs.smiles):
        return pairs
    return pairs.rows(np.sort(np.random.default_rng(seed).choice(len(pairs.smiles), n, replace=False)))


def _combine(grid: Grid) -> Iterator[Row]:
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _test(predicted: Any, test: MoleculePairs, chosen: Row, val_ged: float, clock: Stopwatch) -> Row:
    """What the predictions for the test molecules are worth, as a row."""
    labelled = edit_distance(predicted, test.graphs, edge_labels=True).mean().item()
    metrics = {"ged": mean_ged(predicted, test.graphs), "ged_edge_labels": labelled, "val_ged": val_ged}
    return {"chosen": chosen, "metrics": metrics, "seconds": clock.seconds}
