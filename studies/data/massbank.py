"""MassBank: tandem mass spectra in, molecules out."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from studies.data.files import Source

SOURCE = Source(
    "massbank/spectra.tsv.gz",
    "3b02c559d0f9c27ba7a72fc98cf6a9e1d2ab04d31041d02499734ea3455a4ea8",
    "MassBank 2025.05.1 (https://github.com/MassBank/MassBank-data): high-resolution [M+H]+ spectra as a table with "
    "split, inchikey14, smiles, precursor_mz and peaks mz:intensity, the largest 1000",
)
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
    with gzip.open(SOURCE.find(folder), "rt", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
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
