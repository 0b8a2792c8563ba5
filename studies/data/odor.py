"""Molecules and what they smell of: SMILES in, sets of 138 words out."""

import csv
import gzip

import numpy as np

from studies.data.files import Source

ORIGIN = "OpenPOM's merge of GoodScents and Leffingwell (https://github.com/BioMachineLearning/openpom), MIT"
SOURCE = Source("odor/odor_4983.csv.gz", "ee31a73d0930fb76cf3ca66d7af05b87c64fb7333379e5e4b354b89f71249f54", ORIGIN)

PUBLISHED = 0.8872  # macro AUROC by OpenPOM's README: ten graph networks together, five folds of its own


def load_odor(folder: str | None = None) -> tuple[np.ndarray, np.ndarray]:  # (n,) of SMILES, (n, 138)
    """Load 4,983 molecules and their labels, zeros and ones, from ``odor/odor_4983.csv.gz`` in the folder."""
    with gzip.open(SOURCE.find(folder), "rt", newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    smiles, _, *labels = zip(*rows, strict=True)
    return np.array(smiles, dtype=object), np.array(labels, dtype=float).astype(int).T
