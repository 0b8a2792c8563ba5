"""ChEBI-20: descriptions of molecules in English, and the 33,010 candidate molecules; or generated ones."""

import csv
import gzip
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dsokr.errors import InputError
from dsokr.graphs import GraphBatch, starts_of
from studies.data.files import Source, cache_result, data_folder, read_arrays
from studies.data.molecules import generate

_MOLT5 = "the ChEBI-20 files of MolT5 (https://github.com/blender-nlp/MolT5)"
_REBUILT = "the definitions and relations of ChEBI (https://www.ebi.ac.uk/chebi), or use the original train.txt"
_TEXT2MOL = "Text2Mol (https://github.com/cnedwards/text2mol)"
SOURCES = {
    file.partition(".")[0]: Source(f"chebi20/{file}", checksum, origin)
    for file, checksum, origin in (
        ("train.tsv.gz", "8f580640c5aa76dfb0f651a13e1d3e78f52d24c19db7d0e347f18f8db3492885", _REBUILT),
        ("val.tsv.gz", "4fc5ec76de587baf7f6038da93637ae56aaf8ccc790b5a4a452e6d17bbef955b", _MOLT5),
        ("test.tsv.gz", "613e62b53dc977451a356b99c20701af8b033d6a75c909efcda1286402b4e810", _MOLT5),
        ("candidates_all.tsv.gz", "bc84856527a96b33e238860e3ac106defb3ac6bb6344075045501f167800492e", _MOLT5),
        ("mol2vec_tokens.npz", "d1b53656fd7fc549b5810bfe1441b9ac6f81d5d2d1f7fd2a42a78a11723e313b", _TEXT2MOL),
    )
}
ORIGINALS = ("train.txt", "training.txt")  # of MolT5 and of Text2Mol; preferred to the rebuilt texts
UNKNOWN = "UNK"

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ELEMENTS = {"carbon": "[#6]", "nitrogen": "[#7]", "oxygen": "[#8]", "fluorine": "[#9]"}
GROUPS = {
    "carboxylic acid": "[CX3](=O)[OX2H1]",
    "ester": "[CX3](=O)[OX2H0][#6]",
    "amide": "[CX3](=O)[NX3]",
    "aldehyde": "[CX3H1]=O",
    "ketone": "[#6][CX3](=O)[#6]",
    "hydroxy group": "[OX2H1]",
    "ether": "[OX2H0]([#6])[#6]",
    "primary amine": "[NX3H2]",
    "secondary amine": "[NX3H1]([#6])[#6]",
    "tertiary amine": "[NX3H0]([#6])([#6])[#6]",
    "imine": "[#6]=[NX2]",
    "nitrile": "C#N",
    "alkene": "[#6]=[#6]",
    "alkyne": "C#C",
    "methyl group": "[CH3]",
    "fluoro substituent": "F",
    "three-membered ring": "[r3]1[r3][r3]1",
    "four-membered ring": "[r4]1[r4][r4][r4]1",
    "five-membered ring": "[r5]1[r5][r5][r5][r5]1",
    "six-membered ring": "[r6]1[r6][r6][r6][r6][r6]1",
}
WIDTH = 30  # of the vectors that stand for Mol2vec's


class Descriptions(NamedTuple):
    """Texts, and the positions among the candidates of the molecules that they describe."""

    texts: list[str]
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Molecules:
    """All candidates as arrays.

    ``neighborhoods`` are the Mol2vec tokens of every atom, for its neighbourhoods of radius 0 and 1 (the last token is
    the unknown one, −1 is none). Atoms of molecule i are ``atoms[i]`` to ``atoms[i + 1]``; its ``bonds``, pairs of
    atoms numbered over all molecules, are ``bond_starts[i]`` to ``bond_starts[i + 1]``. Atoms and bonds have the labels
    of :func:`dsokr.chem.stereo_graphs`.
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
    def composition(self) -> np.ndarray:  # (n, 14)
        """Counts: seven kinds of elements, charges, centres R and S, and bonds by kind (double, E, Z, aromatic)."""
        elements, charges, hands = self.atom_labels >> 11, (self.atom_labels >> 3 & 255) - 128, self.atom_labels & 7
        kinds, sides = self.bond_labels >> 3, self.bond_labels & 7
        halogens, named = (9, 17, 35, 53), (6, 7, 8, 15, 16, 9, 17, 35, 53)
        of_atoms = [elements == element for element in (6, 7, 8, 15, 16)]
        of_atoms += [np.isin(elements, halogens), ~np.isin(elements, named), charges, hands == 1, hands == 2]
        of_bonds = [kinds == 2, (kinds == 2) & (sides == 3), (kinds == 2) & (sides == 2), kinds == 12]
        counts = [
            np.diff(np.concatenate([[0], np.cumsum(column)])[starts])
            for columns, starts in ((of_atoms, self.atoms), (of_bonds, self.bond_starts))
            for column in columns
        ]
        return np.stack(counts, axis=1).astype(np.float64)

    @cached_property
    def atom_vectors(self) -> np.ndarray:  # (all atoms, 300)
        """The sum of an atom's Mol2vec vectors."""
        none = np.zeros((1, self.vectors.shape[1]), self.vectors.dtype)
        return np.concatenate([self.vectors, none])[self.neighborhoods].sum(axis=1)

    @cached_property
    def mol2vec(self) -> np.ndarray:  # (n, 300)
        """The sum over a molecule's atoms: equal for molecules with the same neighbourhoods."""
        tokens, owner = self.neighborhoods.ravel(), np.repeat(np.arange(len(self)), 2 * np.diff(self.atoms))
        known = tokens >= 0
        ones = np.ones(known.sum())
        counts = sp.coo_array((ones, (owner[known], tokens[known])), shape=(len(self), len(self.vectors)))
        return counts.tocsr() @ self.vectors.astype(np.float64)


@dataclass(frozen=True, eq=False)
class ChEBI20:
    """Descriptions to train, validate and test on, and all the candidates."""

    train: Descriptions
    val: Descriptions
    test: Descriptions
    molecules: Molecules
    training_texts: str  # "original" or "rebuilt from ChEBI"


def load_chebi20(folder: str | Path | None = None) -> ChEBI20:
    """Load ChEBI-20 from ``folder``/chebi20: the original ``train.txt`` if it is there, else texts rebuilt from ChEBI.

    The rebuilt texts agree with the original ones in 99 % of their tokens where both are known; some lack the sentence
    that defines the molecule. Every result must say which were used: ``training_texts``. The first call needs RDKit and
    about a minute to prepare the molecules, which are cached.
    """
    prepared_from = (SOURCES[name].find(folder) for name in ("candidates_all", "mol2vec_tokens"))
    molecules = cache_result(prepare_candidates)(*prepared_from)
    position = {int(number): row for row, number in enumerate(molecules.ids)}
    original = next((p for name in ORIGINALS if (p := data_folder(folder) / "chebi20" / name).is_file()), None)
    texts = SOURCES["train"].find(folder) if original is None else original
    files = (texts, SOURCES["val"].find(folder), SOURCES["test"].find(folder))
    train, val, test = (read_descriptions(file, position) for file in files)
    return ChEBI20(train, val, test, molecules, "rebuilt from ChEBI" if original is None else "original")


def read_descriptions(path: Path, position: dict[int, int]) -> Descriptions:
    """Read lines of a CID, a molecule and a description, separated by tabs; a header is skipped."""
    texts, rows = [], []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            cells = line.rstrip("\n").split("\t")
            if number == 1 and cells[0] == "CID":
                continue
            if len(cells) < 3 or not cells[0].isdecimal():
                raise InputError(f"{path}, line {number}: expected a CID, a molecule and a description, with tabs.")
            if int(cells[0]) not in position:
                raise InputError(f"{path}, line {number}: CID {cells[0]} is not among the candidates.")
            texts.append(cells[2])
            rows.append(position[int(cells[0])])
    return Descriptions(texts, np.array(rows))


def prepare_candidates(candidates: Path, mol2vec: Path) -> Molecules:
    """Read all candidates, with RDKit."""
    with gzip.open(candidates, "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    table, ids = read_arrays(mol2vec), np.array([int(line["CID"]) for line in lines])
    return make_molecules([line["SMILES"] for line in lines], ids, table["token"], table["vector"])


def make_molecules(smiles: list[str], ids: np.ndarray, tokens: np.ndarray, vectors: np.ndarray) -> Molecules:
    """Turn SMILES into arrays. ``tokens`` are the identifiers of the neighbourhoods with ``vectors``, and UNK."""
    from dsokr import chem  # RDKit is needed here only

    graphs, known = chem.stereo_graphs(smiles), tokens != UNKNOWN
    atoms = starts_of(np.array([len(graph.labels) for graph in graphs]))
    bond_starts = starts_of(np.array([len(graph.edges) for graph in graphs]))
    ends = np.array([bond for graph in graphs for bond in graph.edges], np.int64).reshape(-1, 3)
    return Molecules(
        smiles,
        ids,
        morgan=chem.fingerprints(smiles, radius=3),
        morgan_flat=chem.fingerprints(smiles, radius=3, chirality=False),
        atoms=atoms,
        neighborhoods=_number_tokens(np.concatenate(chem.environments(smiles, radius=1)), tokens),
        bond_starts=bond_starts,
        bonds=ends[:, :2] + np.repeat(atoms[:-1], np.diff(bond_starts))[:, None],
        atom_labels=np.concatenate([graph.labels for graph in graphs]),
        bond_labels=ends[:, 2],
        vectors=np.concatenate([vectors[known], vectors[~known]]).astype(np.float32),
    )


def _number_tokens(identifiers: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Identifiers as positions among the tokens; the unknown one comes last."""
    known = tokens[tokens != UNKNOWN].astype(np.int64)
    order = known.argsort()
    at = order[np.searchsorted(known, identifiers, sorter=order).clip(max=len(known) - 1)]
    return np.where(identifiers < 0, -1, np.where(known[at] == identifiers, at, len(known))).astype(np.int16)


def describe_molecules(n_train: int, n_val: int, n_test: int, seed: int = 0, max_atoms: int = 9) -> ChEBI20:
    """Generate different molecules and describe the atoms, groups and rings of each, in varying words.

    Several molecules may fit one description. The vectors of neighbourhoods are random here, not learned.
    """
    from dsokr import chem  # RDKit is needed here only

    rng = np.random.default_rng(seed)
    smiles = chem.many_smiles(generate(n_train + n_val + n_test, seed, max_atoms))
    smiles = [smiles[i] for i in rng.permutation(len(smiles))]
    counts = {name: chem.matches(smiles, pattern) for name, pattern in (ELEMENTS | GROUPS).items()}
    texts = [_write_text({name: int(found[i]) for name, found in counts.items()}, rng) for i in range(len(smiles))]
    identifiers = np.unique(np.concatenate(chem.environments(smiles)))
    tokens = np.array([UNKNOWN, *map(str, identifiers[identifiers >= 0])])
    vectors = rng.normal(size=(len(tokens), WIDTH)).astype(np.float32)
    molecules = make_molecules(smiles, np.arange(len(smiles)), tokens, vectors)
    bounds = np.cumsum([0, n_train, n_val, n_test])
    train, val, test = (Descriptions(texts[a:b], np.arange(a, b)) for a, b in pairwise(bounds))
    return ChEBI20(train, val, test, molecules, "generated")


def _write_text(counts: dict[str, int], rng: np.random.Generator) -> str:
    atoms = _write_list({f"{name} atom": counts[name] for name in ELEMENTS})
    groups = {name: counts[name] for name in rng.permutation(list(GROUPS)) if counts[name]}
    opening = rng.choice(["The molecule is made of", "The molecule consists of", "A molecule of"])
    linking = rng.choice(["It has", "It contains", "Among its groups are"])
    return f"{opening} {atoms}." + (f" {linking} {_write_list(groups)}." if groups else "")


def _write_list(counts: dict[str, int]) -> str:
    items = [f"{NUMBERS[min(n, 9)]} {name}{'s' * (n > 1)}" for name, n in counts.items() if n]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
