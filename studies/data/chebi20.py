"""ChEBI-20: descriptions of molecules in English, and the 33,010 molecules among which each is to be found.

Needs RDKit once, when the molecules are turned into arrays; these are kept in the user's cache.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import scipy.sparse as sp

from studies.data.files import Source, cache_folder, data_folder, save_arrays
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.graphs import starts_of

_MOLT5 = "the ChEBI-20 files of MolT5 (https://github.com/blender-nlp/MolT5)"
_REBUILT = "the definitions and relations of ChEBI (https://www.ebi.ac.uk/chebi), or use the original train.txt"
SOURCES = {
    "train": Source(
        "chebi20/train.tsv.gz", "8f580640c5aa76dfb0f651a13e1d3e78f52d24c19db7d0e347f18f8db3492885", _REBUILT
    ),
    "val": Source("chebi20/val.tsv.gz", "4fc5ec76de587baf7f6038da93637ae56aaf8ccc790b5a4a452e6d17bbef955b", _MOLT5),
    "test": Source("chebi20/test.tsv.gz", "613e62b53dc977451a356b99c20701af8b033d6a75c909efcda1286402b4e810", _MOLT5),
    "candidates": Source(
        "chebi20/candidates_all.tsv.gz",
        "bc84856527a96b33e238860e3ac106defb3ac6bb6344075045501f167800492e",
        f"{_MOLT5}, with a column split",
    ),
    "mol2vec": Source(
        "chebi20/mol2vec_tokens.npz",
        "d1b53656fd7fc549b5810bfe1441b9ac6f81d5d2d1f7fd2a42a78a11723e313b",
        "Text2Mol (https://github.com/cnedwards/text2mol)",
    ),
}
ORIGINALS = ("train.txt", "training.txt")  # of MolT5 and of Text2Mol; used if there
PREPARED = "chebi20-3.npz"  # the number changes when the arrays do
UNKNOWN = "UNK"


class Described(NamedTuple):
    """Texts, and the positions of what they describe among the candidates."""

    texts: list[str]
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Molecules:
    """All candidates as arrays.

    ``neighborhoods`` are the Mol2vec tokens of every atom, for its neighbourhoods of no and one bond (the last token is
    the unknown one, −1 is none); atoms of molecule i are ``atoms[i]`` to ``atoms[i + 1]``, and its ``bonds``, pairs of
    atoms numbered through all molecules, are ``bond_starts[i]`` to ``bond_starts[i + 1]``. Atoms and bonds have the
    labels of :func:`dsokr.chem.stereo_graphs`.
    """

    smiles: list[str]
    ids: np.ndarray  # of PubChem
    morgan: sp.csr_array  # counts, radius 3, with chirality
    morgan_flat: sp.csr_array  # the same without chirality
    atoms: np.ndarray
    neighborhoods: np.ndarray  # (all atoms, 2)
    bond_starts: np.ndarray
    bonds: np.ndarray  # (all bonds, 2)
    atom_labels: np.ndarray  # (all atoms,)
    bond_labels: np.ndarray  # (all bonds,)
    vectors: np.ndarray  # (tokens, 300)

    def __len__(self) -> int:
        return len(self.smiles)

    @cached_property
    def graphs(self) -> GraphBatch:
        """With charges and stereochemistry in the labels."""
        atoms, bonds = np.diff(self.atoms), np.diff(self.bond_starts)
        own = self.bonds - np.repeat(self.atoms[:-1], bonds)[:, None]  # numbered within each molecule
        return GraphBatch.from_edges(atoms, self.atom_labels, bonds, np.column_stack([own, self.bond_labels]))

    @cached_property
    def atom_vectors(self) -> np.ndarray:  # (all atoms, 300)
        """The sum of an atom's Mol2vec vectors."""
        none = np.zeros((1, self.vectors.shape[1]), self.vectors.dtype)
        return np.concatenate([self.vectors, none])[self.neighborhoods].sum(axis=1)

    @cached_property
    def mol2vec(self) -> np.ndarray:  # (n, 300)
        """The sum over a molecule's atoms: equal for molecules with the same neighbourhoods."""
        tokens, owner = self.neighborhoods.ravel(), np.repeat(np.arange(len(self)), 2 * np.diff(self.atoms))
        ones, there = np.ones(len(tokens)), tokens >= 0
        counts = sp.coo_array((ones[there], (owner[there], tokens[there])), shape=(len(self), len(self.vectors)))
        return counts.tocsr() @ self.vectors.astype(np.float64)


@dataclass(frozen=True, eq=False)
class ChEBI20:
    """Described molecules to train on, to choose on and to test on, among all the candidates."""

    train: Described
    val: Described
    test: Described
    molecules: Molecules
    training_texts: str  # "original" or "rebuilt from ChEBI"


def chebi20(folder: str | Path | None = None) -> ChEBI20:
    """ChEBI-20 from ``folder``/chebi20: the original ``train.txt`` if it is there, else the texts rebuilt from ChEBI.

    The rebuilt texts agree with the original ones in 99 % of their tokens where both are known; some lack the sentence
    that defines the molecule. Say which were used beside every result: ``training_texts``.
    """
    molecules = prepared(folder)
    position = {int(number): row for row, number in enumerate(molecules.ids)}
    original = next((p for name in ORIGINALS if (p := data_folder(folder) / "chebi20" / name).is_file()), None)
    train = SOURCES["train"].find(folder) if original is None else original
    return ChEBI20(
        _described(train, position),
        _described(SOURCES["val"].find(folder), position),
        _described(SOURCES["test"].find(folder), position),
        molecules,
        "rebuilt from ChEBI" if original is None else "original",
    )


def _described(path: Path, position: dict[int, int]) -> Described:
    """Lines of an identifier, something, and a description; more columns and a header do no harm."""
    texts, rows = [], []
    encoding = "utf-8-sig"  # with a byte order mark or without
    with gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding) as file:
        for number, line in enumerate(_lines(file, path), start=1):
            cells = line.rstrip("\n").split("\t")
            if number == 1 and cells[0] == "CID":
                continue
            if len(cells) < 3 or not (cells[0].isascii() and cells[0].isdigit()):
                raise InputError(f"{path}, line {number}: expected a CID, a molecule and a description, with tabs.")
            if int(cells[0]) not in position:
                raise InputError(f"{path}, line {number}: CID {cells[0]} is not among the candidates.")
            if not cells[2].strip():
                raise InputError(f"{path}, line {number}: the description is empty.")
            texts.append(cells[2])
            rows.append(position[int(cells[0])])
    if not texts:
        raise InputError(f"{path} has no descriptions.")
    return Described(texts, np.array(rows))


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be a text in UTF-8. Got {error.reason} at byte {error.start}.") from error


def prepared(folder: str | Path | None = None) -> Molecules:
    """All candidates as arrays: from the cache, or made with RDKit in about a minute."""
    at_hand = data_folder(folder) / PREPARED
    cached = at_hand if at_hand.is_file() else cache_folder() / PREPARED
    if cached.is_file():
        with np.load(cached) as arrays:
            return molecules_of(dict(arrays))
    with gzip.open(SOURCES["candidates"].find(folder), "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    with np.load(SOURCES["mol2vec"].find(folder)) as table:
        tokens, vectors = table["token"], table["vector"]
    arrays = arrays_of(
        [line["SMILES"] for line in lines], np.array([int(line["CID"]) for line in lines]), tokens, vectors
    )
    save_arrays(cached, **arrays)
    return molecules_of(arrays)


def arrays_of(smiles: Sequence[str], ids: np.ndarray, tokens: np.ndarray, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Molecules as arrays. ``tokens`` are the identifiers of the neighbourhoods with ``vectors``, and one unknown."""
    from dsokr import chem  # RDKit is needed here only

    arrays: dict[str, np.ndarray] = {"ids": ids, "smiles": np.frombuffer("\n".join(smiles).encode(), np.uint8)}
    for name, chirality in (("morgan", True), ("morgan_flat", False)):
        counts = chem.fingerprints(smiles, radius=3, chirality=chirality)
        arrays |= {f"{name}_indptr": counts.indptr, f"{name}_indices": counts.indices.astype(np.uint32)}
        arrays[f"{name}_data"] = counts.data.astype(np.uint16)
    graphs = chem.stereo_graphs(smiles)
    arrays["atoms"] = starts_of(np.array([len(graph.labels) for graph in graphs]))
    arrays["bond_starts"] = starts_of(np.array([len(graph.edges) for graph in graphs]))
    bonds = np.array([bond for graph in graphs for bond in graph.edges], np.int64).reshape(-1, 3)
    arrays["bonds"] = bonds[:, :2] + np.repeat(arrays["atoms"][:-1], np.diff(arrays["bond_starts"]))[:, None]
    arrays["atom_labels"] = np.concatenate([graph.labels for graph in graphs]).astype(np.int32)
    arrays["bond_labels"] = bonds[:, 2].astype(np.int16)
    arrays["neighborhoods"] = _numbered(np.concatenate(chem.environments(smiles, radius=1)), tokens)
    known = tokens != UNKNOWN
    arrays["vectors"] = np.concatenate([vectors[known], vectors[~known]]).astype(np.float32)
    return arrays


def _numbered(identifiers: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Identifiers as positions among the tokens; the unknown one comes last."""
    known = tokens[tokens != UNKNOWN].astype(np.int64)
    order = known.argsort()
    at = order[np.searchsorted(known, identifiers, sorter=order).clip(max=len(known) - 1)]
    return np.where(identifiers < 0, -1, np.where(known[at] == identifiers, at, len(known))).astype(np.int16)


def molecules_of(arrays: dict[str, np.ndarray]) -> Molecules:
    """The molecules that :func:`arrays_of` made arrays of."""
    smiles = arrays["smiles"].tobytes().decode().split("\n")
    morgan, flat = (
        sp.csr_array(
            tuple(
                arrays[f"{name}_{part}"].astype(kind)
                for part, kind in (("data", np.float64), ("indices", np.int64), ("indptr", np.int64))
            ),
            shape=(len(smiles), 2**32),
        )
        for name in ("morgan", "morgan_flat")
    )
    rest = ("atoms", "neighborhoods", "bond_starts", "bonds", "atom_labels", "bond_labels", "vectors")
    return Molecules(smiles, arrays["ids"], morgan, flat, *(arrays[name] for name in rest))
