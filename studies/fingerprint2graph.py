"""From a fingerprint to the graph: the set bits of hashed Morgan fingerprints of QM9's molecules, and their graphs.

    python -m studies fingerprint2graph --data-dir FOLDER

The protocol of Any2Graph (Krzakala et al., 2024): a random split, 90 / 5 / 5 %; the edit distance and the share of
graphs that are exactly right, with labelled atoms and bonds without orders. Two models: one is trained on molecules
with bond orders, and measured with and without them; the other is trained on graphs whose edges are all alike. Both
search all graphs of their domain. The rule is chosen on some of the validation molecules. Besides, a learning curve,
and networks, ridge regression and forests side by side and stacked.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsokr.decoders import GraphSearch, LabelledGraphs, Molecules, Moves
from dsokr.estimator import DSOKR
from dsokr.graphs import GraphBatch
from dsokr.kernels import Kernel, ShortestPath, Tanimoto, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.regressors import Forest, KernelRidge, Neural, Regressor, Stack, Training
from dsokr.regressors.networks import MLP
from dsokr.rules import RULES
from dsokr.sketches import SubSample
from studies.data.fingerprints import (
    FingerprintPairs,
    Split,
    generate_fingerprints,
    load_fingerprints,
    measure_ceiling,
    split_pairs,
)
from studies.plots import pyplot, save_figure
from studies.results import Row, format_spread, group_rows, mean_and_sd, read_rows
from studies.smi2mol_models import KERNELS, OURS
from studies.study import ADAMW, Session, Stopwatch, Study, decode

PATHS = ShortestPath().normalized() + 10.0 * ShortestPath(labels=False).normalized()
ELEMENTS, VALENCES = zip(*Molecules().valences, strict=True)
N_CHOOSE = 1_000  # validation molecules on which the rule is chosen


@dataclass(frozen=True)
class Task:
    """The graphs to predict: a kernel on them, and the domain in which they are searched."""

    kernel: Kernel
    domain: Moves
    orders: bool = True  # of bonds; without them, all edges have the label 1

    def simplify(self, pairs: FingerprintPairs) -> FingerprintPairs:
        if self.orders:
            return pairs
        ones = np.ones_like(pairs.graphs.edge_labels)
        return pairs._replace(graphs=replace(pairs.graphs, edge_labels=ones))


TASKS = {
    "bond orders": Task(KERNELS[OURS.kernel], Molecules()),
    "no bond orders": Task(
        WeisfeilerLehman(3).normalized() + PATHS, LabelledGraphs(ELEMENTS, max_nodes=9, max_degree=VALENCES), False
    ),
}


@dataclass(frozen=True)
class Model:
    """A method of the table, with a regressor made for a number of training molecules."""

    name: str
    regressor: Callable[[int], Regressor]
    task: str = "bond orders"
    size: int = 4_000
    dim: int = 2_048


@dataclass(frozen=True)
class Run:
    model: Model
    seed: int = 0
    n_train: int | None = None  # None: all


TRAINING = replace(
    ADAMW, epochs=150, batch_size=512, warmup_steps=500, precision="bf16-mixed", compile="reduce-overhead", check_every=5
)


def make_network(hidden: tuple[int, ...], training: Training, n: int) -> Neural:
    """A network; for fewer molecules, smaller batches in place of more epochs."""
    batch = int(np.clip(2 ** np.floor(np.log2(n / 64)), 16, training.batch_size))
    return Neural(MLP(hidden), training=replace(training, batch_size=batch))


def make_ridge(size: int, n: int) -> KernelRidge:
    return KernelRidge(Tanimoto(), SubSample(min(size, n)), reads="numbers")


def make_stack(*members: Callable[[int], Regressor]) -> Callable[[int], Regressor]:
    return lambda n: Stack(tuple(member(n) for member in members))


NETWORK: Callable[[int], Regressor] = partial(make_network, (4096, 4096), TRAINING)
RIDGE: Callable[[int], Regressor] = partial(make_ridge, 4_000)
FOREST: Callable[[int], Regressor] = lambda n: Forest(max_features=0.05)  # noqa: E731 # beside the other two
