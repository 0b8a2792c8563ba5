"""SMI2Mol, the paper's first real task: from the SMILES of a QM9 molecule to its graph."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies.data.files import Source, cache_folder, data_folder, save_arrays
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.graphs import starts_of

QM9 = Source(
    "qm9/qm9_smiles_133882.txt.gz",
    "b378bba7e91edb352d7087a9500089e1fe89300ed67bd8fe1738cdd528e5382a",
    "the QM9 data set (https://doi.org/10.6084/m9.figshare.978904): SMILES in the original order, one a line, without "
    "molecules of a single heavy atom",
)
PREPARED = "smi2mol.npz"
VERSION = 1  # of what is prepared from the source

N_VAL, N_TEST = 500, 2_000
SPLITS = 5


class Pairs(NamedTuple):
    """Canonical SMILES without stereochemistry, and the Kekulé graphs of the same molecules."""

    smiles: list[str]
    graphs: GraphBatch

    def rows(self, index: np.ndarray) -> Pairs:
        return Pairs([self.smiles[i] for i in index], self.graphs[index])


@dataclass(frozen=True, eq=False)
class SMI2Mol:
    """One split: 131,382 pairs to train on, 500 to validate, 2,000 to test."""

    train: Pairs
    val: Pairs
    test: Pairs


def smi2mol(folder: str | Path | None = None, split_seed: int = 0) -> SMI2Mol:
    """The data of one split; the paper's study has the five with seeds 0 to 4.

    ``folder`` holds ``qm9/qm9_smiles_133882.txt.gz``. The first call takes half a minute and RDKit; what it prepares is
    kept as ``smi2mol.npz`` in the user's cache, and from then on a call takes a second and no RDKit. A prepared file
    may be put into ``folder`` in the source's place.
    """
    pairs = prepared(folder)
    order = np.random.default_rng(split_seed).permutation(len(pairs.smiles))
    test, val, train = np.split(order, [N_TEST, N_TEST + N_VAL])
    return SMI2Mol(*(pairs.rows(np.sort(part)) for part in (train, val, test)))


def prepared(folder: str | Path | None = None) -> Pairs:
    """All 133,882 pairs, in the original order."""
    given, kept = data_folder(folder) / PREPARED, cache_folder() / PREPARED
    for path in (given, kept):
        if path.is_file() and (pairs := _read(path)) is not None:
            return pairs
    source = QM9.find(folder)
    from dsokr import chem  # RDKit is needed here only

    with gzip.open(source, "rt", encoding="ascii") as file:
        smiles = chem.canonical(file.read().split())
    pairs = Pairs(smiles, GraphBatch.of(chem.graphs(smiles)))
    _write(kept, pairs)
    return pairs


def _write(path: Path, pairs: Pairs) -> None:
    graphs = pairs.graphs
    owner = np.repeat(np.arange(len(graphs)), np.diff(graphs.indptr[graphs.offsets]))
    save_arrays(
        path,
        version=np.array([VERSION]),
        source=np.array(QM9.sha256),
        smiles=np.frombuffer("\n".join(pairs.smiles).encode("ascii"), np.uint8),
        nodes=np.diff(graphs.offsets).astype(np.uint8),
        labels=graphs.labels.astype(np.uint8),
        degrees=graphs.degrees().astype(np.uint8),
        neighbors=(graphs.neighbors - graphs.offsets[owner]).astype(np.uint8),  # numbered within each molecule
        edge_labels=graphs.edge_labels.astype(np.uint8),
    )


def _read(path: Path) -> Pairs | None:
    """What was prepared, or None if it is of another version."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is damaged ({error}). Delete it: it is made again from {QM9.path}.") from error
    if arrays["version"][0] != VERSION or arrays["source"] != QM9.sha256:
        return None
    offsets, indptr = starts_of(arrays["nodes"]), starts_of(arrays["degrees"])
    shift = np.repeat(offsets[:-1], np.diff(indptr[offsets]))
    graphs = GraphBatch(
        offsets,
        arrays["labels"].astype(np.int64),
        indptr,
        arrays["neighbors"] + shift,
        arrays["edge_labels"].astype(np.int64),
    )
    return Pairs(arrays["smiles"].tobytes().decode("ascii").split("\n"), graphs)
