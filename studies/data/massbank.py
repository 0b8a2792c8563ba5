"""MassBank: tandem mass spectra in, molecules out."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from dsokr import spectra
from studies.data.chebi20 import SOURCES as CHEBI20
from studies.data.files import Source, cache_result
from studies.data.molecules import generate

SOURCE = Source(
    "massbank/spectra.tsv.gz",
    "3b02c559d0f9c27ba7a72fc98cf6a9e1d2ab04d31041d02499734ea3455a4ea8",
    "MassBank 2025.05.1 (https://github.com/MassBank/MassBank-data): high-resolution [M+H]+ spectra as a table with "
    "split, inchikey14, smiles, precursor_mz and peaks mz:intensity, the largest 1000",
)
CANDIDATES = CHEBI20["candidates_all"]
PROTON = 1.00728  # in dalton
WIDTH, HEAVIEST = 0.5, 1000  # of a bin and of a peak, in dalton


@dataclass(frozen=True, eq=False)
class Spectra:
    """n spectra and their molecules. No molecule has spectra in more than one part."""

    X: sp.csr_array  # (n, 2 · bins), square roots of intensities: by mass, then by mass lost from the whole
    smiles: np.ndarray  # (n,) of str, without stereochemistry
    molecules: np.ndarray  # (n,) of str, the same for spectra of one molecule
    parts: np.ndarray  # (n,) "train", "valid" or "test"


def load_massbank(folder: str | Path | None = None) -> Spectra:
    """Load 18,694 spectra of 3,570 molecules from ``massbank/spectra.tsv.gz`` in the folder."""
    rows = read_table(SOURCE.find(folder))
    columns = {name: np.array([row[name] for row in rows]) for name in ("smiles", "inchikey14", "split")}
    return Spectra(
        bin_peaks([row["peaks"] for row in rows], [float(row["precursor_mz"]) for row in rows]), *columns.values()
    )


def bin_peaks(peaks: list[str], whole: list[float]) -> sp.csr_array:
    """Sum up the peaks ``mz:intensity`` of every spectrum in bins of their mass, and of what is missing to the whole.

    >>> X = bin_peaks(["50.2:100 80.1:400"], [130.0])
    >>> dict(zip(X.indices.tolist(), X.data.tolist()))
    {100: 10.0, 160: 20.0, 2099: 20.0, 2159: 10.0}
    """
    parts = [np.array([peak.split(":") for peak in text.split()], float).reshape(-1, 2) for text in peaks]
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    mass, intensity = np.concatenate(parts).T
    bins = round(HEAVIEST / WIDTH)
    lost = np.asarray(whole)[owner] - mass
    at = [(np.maximum(values, 0) / WIDTH).astype(int).clip(max=bins - 1) for values in (mass, lost)]
    columns = np.concatenate([at[0], at[1] + bins])
    counts = sp.coo_array((np.tile(intensity, 2), (np.tile(owner, 2), columns)), shape=(len(parts), 2 * bins))
    return counts.tocsr().sqrt()


@dataclass(frozen=True, eq=False)
class Molecules:
    """n molecules with spectra, all spectra of a molecule averaged, and further candidates behind them."""

    X: sp.csr_array  # (n, bins) of unit length: peaks and losses
    detailed: sp.csr_array  # (n, bins) of unit length: peaks and losses as logarithms, and differences of peaks
    parts: np.ndarray  # (n,) "train", "valid" or "test"
    scaffolds: np.ndarray  # (n,) of str, after Bemis and Murcko; "" for molecules without rings
    measured: np.ndarray  # (n,) mass by the precursors of the spectra
    masses: np.ndarray  # (n + others,)
    formulas: np.ndarray  # (n + others,) of str
    morgan: sp.csr_array  # (n + others, 2³²) counts, radius 3, without chirality

    def __len__(self) -> int:
        return len(self.parts)


def load_molecules(folder: str | Path | None = None) -> Molecules:
    """Load the molecules of MassBank, with those of ChEBI-20 as further candidates. The first call needs RDKit."""
    return cache_result(prepare_molecules)(SOURCE.find(folder), CANDIDATES.find(folder))


def prepare_molecules(massbank: Path, chebi: Path, width: float = 0.01) -> Molecules:
    """Read both files, with RDKit. Molecules are the same if the first blocks of their InChIKeys are."""
    rows, others = read_table(massbank), read_table(chebi)
    keys = [row["inchikey14"] for row in rows]
    first = dict(zip(reversed(keys), reversed(rows), strict=True))
    molecules = [first[key] for key in dict.fromkeys(keys)]
    known = {*keys, ""}
    more = {key: line["SMILES"] for line in others if (key := find_key(line["SMILES"])) not in known}
    peaks = [spectra.parse(row["peaks"], float(row["precursor_mz"])) for row in rows]
    precursors: dict[str, list[float]] = {}
    for key, row in zip(keys, rows, strict=True):
        precursors.setdefault(key, []).append(float(row["precursor_mz"]))
    pooled = spectra.pool(peaks, keys)
    gaps = average_rows(spectra.differences(peaks, width), keys).sqrt()
    return describe_molecules(
        spectra.bins(pooled, width),
        join_parts(spectra.bins(pooled, width, intensity="log"), gaps),
        np.array([row["split"] for row in molecules]),
        np.array([np.median(own) - PROTON for own in precursors.values()]),
        [row["smiles"] for row in molecules],
        list(more.values()),
    )


def average_rows(rows: sp.csr_array, keys: list[str]) -> sp.csr_array:
    """The means of rows that share a key, in the order in which keys occur first."""
    number: dict[str, int] = {}
    owner = np.array([number.setdefault(key, len(number)) for key in keys])
    weights = 1 / np.bincount(owner)[owner]
    return sp.csr_array((weights, (owner, np.arange(len(keys)))), shape=(len(number), len(keys))) @ rows


def join_parts(*parts: sp.csr_array) -> sp.csr_array:
    """Representations side by side, each of unit length: the cosine of rows is the mean of those of the parts."""
    return sp.hstack([normalize(part) for part in parts], format="csr")


def describe_molecules(
    X: sp.csr_array,
    detailed: sp.csr_array,
    parts: np.ndarray,
    measured: np.ndarray | None,
    smiles: list[str],
    others: list[str],
) -> Molecules:
    """Molecules by their SMILES; without masses by spectra, these are exact."""
    from rdkit import Chem, rdBase
    from rdkit.Chem import rdMolDescriptors
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    from dsokr import chem

    with rdBase.BlockLogs():
        mols = [Chem.MolFromSmiles(text) for text in smiles + others]
    masses = np.array([rdMolDescriptors.CalcExactMolWt(mol) for mol in mols])
    return Molecules(
        normalize(X),
        normalize(detailed),
        parts,
        np.array([MurckoScaffoldSmiles(text) for text in smiles]),
        masses[: len(smiles)] if measured is None else measured,
        masses,
        np.array([rdMolDescriptors.CalcMolFormula(mol) for mol in mols]),
        chem.fingerprints(smiles + others, radius=3, chirality=False),
    )


def find_key(smiles: str) -> str:
    """The block of the InChIKey that names the skeleton; "" if there is none."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        return str(Chem.MolToInchiKey(Chem.MolFromSmiles(smiles)))[:14]


def read_table(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def generate_molecules(n: int, others: int, seed: int = 0) -> Molecules:
    """Generated molecules whose spectra have a peak for every neighbourhood of an atom."""
    from dsokr import chem

    smiles = chem.many_smiles(generate(n + others, seed))
    found = chem.fingerprints(smiles[:n], radius=1, chirality=False)
    peaks = sp.csr_array((found.data, found.indices % 997, found.indptr), shape=(n, 997))
    parts = np.random.default_rng(seed).permutation(np.repeat(["train", "test"], [n - n // 4, n // 4]))
    return describe_molecules(peaks.sqrt(), join_parts(peaks, peaks @ peaks.T), parts, None, smiles[:n], smiles[n:])
