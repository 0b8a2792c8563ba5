"""The baselines of the paper's Table 1 on SMI2Mol: SISOKR, ILE-FGW and NNBary-FGW.

Each chooses what is open on the validation molecules, by the edit distance without edge labels, and is then tested
once. The two with kernels on the inputs use 3-grams of SMILES, as in the paper. FGW predicts no edge labels: its edges
are all labelled 1, which the distance with edge labels counts as it is.

Nothing is computed, and None is the answer, when the row of results for what is asked is ``known`` already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from studies.baselines import ILEFGW, SISOKR, NNBaryFGW
from studies.data.smi2mol import Pairs, SMI2Mol
from studies.results import Row
from dsokr.kernels import Kernel, NGram, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.regressors.networks import CharTransformer, NetworkFactory
from dsokr.sketches import SubSample

THREE_GRAMS = NGram(3).normalized()
SUBTREES = WeisfeilerLehman(3).normalized()
ENCODER = CharTransformer(layers=2, width=128, heads=4, dropout=0.1)
TEMPLATES: Row = {"templates": 10, "iterations": 2, "batch_size": 16}

Grid = Mapping[str, Sequence[Any]]  # what is open: every combination is tried
Known = Callable[[Row], bool]  # of the part of a row that says what is asked


class Run(NamedTuple):
    """What was measured, in the form of a line of results, and the graphs predicted for the test molecules."""

    row: Row
    predicted: Sequence[Any]


@dataclass
class Stopwatch:
    """Seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.seconds[what] = perf_counter() - start


def marked(smiles: Sequence[str]) -> list[str]:
    """Strings with their ends marked: 3-grams then tell where a string starts and stops, and "CC" has some, too."""
    return [f"^^{text}$$" for text in smiles]


def mean_ged(predicted: Any, true: Any) -> float:
    """The mean edit distance without edge labels."""
    return edit_distance(predicted, true, edge_labels=False).mean().item()


def sisokr(
    split: SMI2Mol,
    seed: int,
    *,
    input_kernel: Kernel = THREE_GRAMS,
    kernel: Kernel = SUBTREES,
    input_size: int = 3_200,
    size: int = 3_200,
    regularizations: Sequence[float] = (1e-6, 1e-5, 1e-4),
    device: str = "auto",
    known: Known = lambda asked: False,
) -> Run | None:
    """SISOKR over all training molecules as candidates. λ and the decoding rule are chosen."""
    asked = {
        "method": "sisokr",
        "kernel": str(kernel),
        "input_kernel": str(input_kernel),
        "sketch": "SubSample",
        "m": size,
        "input_m": input_size,
        "seed": seed,
        "n_train": len(split.train.smiles),
        "n_test": len(split.test.smiles),
    }
    if known(asked):
        return None
    clock = Stopwatch()
    model = SISOKR(
        input_kernel,
        kernel,
        SubSample(input_size),
        SubSample(size),
        regularization=regularizations,
        monitor=lambda predicted, true: -mean_ged(predicted, true),
        random_state=seed,
        device=device,
    )
    train, val, test = _with_marks(split)
    with clock("fit"):
        model.fit(train.smiles, train.graphs, val)
    with clock("predict"):
        predicted = model.predict(test.smiles)
    row = asked | {
        "chosen": {"regularization": model.regularization_, "rule": model.decoder_.scoring_rule()},
        "metrics": {"val_ged": -max(trial.score for trial in model.trials_)},
        "seconds": clock.seconds,
    }
    return _tested(row, predicted, test)


def ile_fgw(
    split: SMI2Mol,
    seed: int,
    *,
    input_kernel: Kernel = THREE_GRAMS,
    input_size: int = 3_200,
    grid: Grid | None = None,
    n_choose: int = 200,
    n_test: int | None = None,
    device: str = "auto",
    known: Known = lambda asked: False,
) -> Run | None:
    """Sketched ILE-FGW with weights over all training molecules.

    λ, the number of neighbours and the trade-off are chosen on ``n_choose`` of the validation molecules. A prediction
    takes some 50 ms on one core; ``n_test`` limits their number.
    """
    train, val, test = _with_marks(split)
    test = _some(test, n_test, seed)
    asked = {
        "method": "ile_fgw",
        "input_kernel": str(input_kernel),
        "sketch": "SubSample",
        "input_m": input_size,
        "seed": seed,
        "n_train": len(train.smiles),
        "n_test": len(test.smiles),
    }
    if known(asked):
        return None
    grid = grid or {"regularization": (1e-2, 1e-1, 1.0), "neighbors": (5, 10, 15), "trade_off": (0.8, 0.95)}
    clock = Stopwatch()
    model = ILEFGW(input_kernel, SubSample(input_size), random_state=seed, device=device)
    with clock("fit"):
        model.fit(train.smiles, train.graphs)
    with clock("choose"):
        some = _some(val, n_choose, seed)
        scores = {choice: mean_ged(model.set_params(**dict(choice)).predict(some.smiles), some.graphs)
                  for choice in _combinations(grid)}  # fmt: skip
    best = min(scores, key=lambda choice: scores[choice])
    with clock("predict"):
        predicted = model.set_params(**dict(best)).predict(test.smiles)
    row = asked | {
        "chosen": dict(best),
        "metrics": {"val_ged": scores[best]},
        "seconds": clock.seconds,
    }
    return _tested(row, predicted, test)


def nnbary_fgw(
    split: SMI2Mol,
    seed: int,
    *,
    network: NetworkFactory = ENCODER,
    grid: Grid | None = None,
    n_train: int = 1_500,
    epochs: int = 6,
    n_choose: int = 200,
    n_test: int | None = None,
    known: Known = lambda asked: False,
) -> Run | None:
    """NNBary-FGW, trained on ``n_train`` molecules drawn from the training set: transport plans are slow.

    What is in the ``grid``, by default the trade-off, is chosen on ``n_choose`` of the validation molecules. Training
    takes some 15 ms a molecule and epoch on one core with ten templates, a prediction as long.
    """
    grid = grid or {"trade_off": (0.5, 0.8)}
    fixed = {name: value for name, value in (TEMPLATES | {"epochs": epochs}).items() if name not in grid}
    train, test = _some(split.train, n_train, seed), _some(split.test, n_test, seed)
    asked = {
        "method": "nnbary_fgw",
        "encoder": str(network),
        **fixed,
        "seed": seed,
        "n_train": len(train.smiles),
        "n_test": len(test.smiles),
    }
    if known(asked):
        return None
    clock = Stopwatch()
    some = _some(split.val, n_choose, seed)
    with clock("fit"):
        models = {
            choice: NNBaryFGW(network, random_state=seed, **fixed, **dict(choice)).fit(*train)
            for choice in _combinations(grid)
        }
    with clock("choose"):
        scores = {choice: mean_ged(model.predict(some.smiles), some.graphs) for choice, model in models.items()}
    best = min(scores, key=lambda choice: scores[choice])
    with clock("predict"):
        predicted = models[best].predict(test.smiles)
    row = asked | {
        "chosen": dict(best),
        "metrics": {"val_ged": scores[best]},
        "seconds": clock.seconds,
    }
    return _tested(row, predicted, test)


def _with_marks(split: SMI2Mol) -> tuple[Pairs, Pairs, Pairs]:
    return tuple(Pairs(marked(pairs.smiles), pairs.graphs) for pairs in (split.train, split.val, split.test))  # type: ignore[return-value] # three parts


def _some(pairs: Pairs, n: int | None, seed: int) -> Pairs:
    """As many pairs, drawn without replacement; all of them if there are no more."""
    if n is None or n >= len(pairs.smiles):
        return pairs
    return pairs.rows(np.sort(np.random.default_rng(seed).choice(len(pairs.smiles), n, replace=False)))


def _combinations(grid: Grid) -> Iterator[tuple[tuple[str, Any], ...]]:
    for values in product(*grid.values()):
        yield tuple(zip(grid, values, strict=True))


def _tested(row: Row, predicted: Sequence[Any], test: Pairs) -> Run:
    """The row with what the predictions say on the test molecules."""
    labelled = edit_distance(predicted, test.graphs, edge_labels=True).mean().item()
    metrics = {"ged": mean_ged(predicted, test.graphs), "ged_edge_labels": labelled}
    return Run(row | {"metrics": metrics | row["metrics"]}, predicted)
