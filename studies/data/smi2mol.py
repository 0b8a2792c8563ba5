"""SMI2Mol, the paper's first real task: from the SMILES of a QM9 molecule to its graph."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dsokr.graphs import GraphBatch
from studies.data.files import Source, cache_result

QM9 = Source(
    "qm9/qm9_smiles_133882.txt.gz",
    "b378bba7e91edb352d7087a9500089e1fe89300ed67bd8fe1738cdd528e5382a",
    "the QM9 data set (https://doi.org/10.6084/m9.figshare.978904): SMILES in the original order, one a line, without "
    "molecules of a single heavy atom",
)
N_VAL, N_TEST = 500, 2_000


class MoleculePairs(NamedTuple):
    """Canonical SMILES without stereochemistry, and the Kekulé graphs of the same molecules."""

    smiles: list[str]
    graphs: GraphBatch

    def rows(self, index: np.ndarray) -> MoleculePairs:
        return MoleculePairs([self.smiles[i] for i in index], self.graphs[index])


@dataclass(frozen=True, eq=False)
class SMI2Mol:
    """One split: 131,382 pairs to train on, 500 to validate, 2,000 to test."""

    train: MoleculePairs
    val: MoleculePairs
    test: MoleculePairs

    def cut(self, n_train: int | None) -> SMI2Mol:
        """The same with the first training molecules only; None keeps all."""
        return self if n_train is None else replace(self, train=self.train.rows(np.arange(n_train)))

    def map_smiles(self, change: Callable[[list[str]], list[str]]) -> SMI2Mol:
        """The same with other strings for the molecules."""
        parts = (self.train, self.val, self.test)
        return SMI2Mol(*(MoleculePairs(change(part.smiles), part.graphs) for part in parts))


def load_smi2mol(folder: str | Path | None = None, split_seed: int = 0) -> SMI2Mol:
    """Load one split; the paper's study has the five with seeds 0 to 4.

    ``folder`` holds ``qm9/qm9_smiles_133882.txt.gz``. The first call takes half a minute and RDKit; the prepared pairs
    are cached, and from then on a call takes a second and no RDKit.
    """
    pairs = load_pairs(folder)
    order = np.random.default_rng(split_seed).permutation(len(pairs.smiles))
    test, val, train = np.split(order, [N_TEST, N_TEST + N_VAL])
    return SMI2Mol(*(pairs.rows(np.sort(part)) for part in (train, val, test)))


def load_pairs(folder: str | Path | None = None) -> MoleculePairs:
    """Load all 133,882 pairs, in the original order."""
    return cache_result(prepare_pairs)(QM9.find(folder))


def prepare_pairs(path: Path) -> MoleculePairs:
    """Make pairs from a file of SMILES, with RDKit."""
    from dsokr import chem  # RDKit is needed here only

    with gzip.open(path, "rt", encoding="ascii") as file:
        smiles = chem.canonical(file.read().split())
    return MoleculePairs(smiles, GraphBatch.of(chem.graphs(smiles)))
