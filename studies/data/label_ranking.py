"""Label ranking: inputs are vectors, outputs are orders of preference of the same few labels."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.data.files import Source
from dsokr.errors import InputError

SEMI_SYNTHETIC = (
    "the semi-synthetic label ranking data of Cheng & Hüllermeier "
    "(https://www.uni-marburg.de/fb12/kebi/research/software), as CSV with the ranking b>a>c last"
)
SUSHI = (
    "Kamishima's SUSHI preference data, item set A (https://www.kamishima.net/sushi/), as CSV of the users' features "
    "with the ranking b>a>c last"
)
CHECKSUMS = {
    "authorship": "b410bfee195dbd81643a3193dd747d22466d6e06f23bc06a7f84ce7421c3f93a",
    "glass": "d1e1b0c9fc7bd37945be6ea6ae4565601229ed9aa7ada90d68aa776f0f855668",
    "iris": "3d9271c29963a2f6ef3845d35d09906df946ed35881622c40005f5ec0c53195a",
    "vehicle": "59c14a16fe66df9f5a694a9b8ddb417656978d6e6afe7b51f34dced25226e50c",
    "vowel": "1baf59c6141d16693bebf29549d942158b8ad3566f29fea892f0d327c569aacb",
    "wine": "6eab2f5fd73fb0c1ef5366904a1e1481b74669aa3da1ecae52f76d896dd7b909",
    "sushi": "20275de23d36a3d7e3996914fe1c7ce22992d271e29b7c72c0c6c8e2b135b31a",
}
SOURCES = {
    name: Source(f"label_ranking/{name}.txt", sha256, SUSHI if name == "sushi" else SEMI_SYNTHETIC)
    for name, sha256 in CHECKSUMS.items()
}


@dataclass(frozen=True, eq=False)
class LabelRanking:
    """n inputs, and for each the positions of k labels: ``rankings[:, i]`` is that of label i, 0 for the best."""

    X: np.ndarray  # (n, d) float64
    rankings: np.ndarray  # (n, k) int64
    names: tuple[str, ...]  # of the k labels


def label_ranking(name: str, folder: str | Path | None = None) -> LabelRanking:
    """One of authorship, glass, iris, vehicle, vowel, wine and sushi, from ``label_ranking/<name>.txt`` in the folder.

    In all but sushi the ranking is the order of the classes by the probabilities of a naive Bayes classifier, classes
    of equal probability in alphabetical order. Sushi holds what 5,000 people said of ten kinds.
    """
    if name not in SOURCES:
        raise InputError(f"There is no label ranking data set {name!r}. Choose one of {', '.join(SOURCES)}.")
    return read(SOURCES[name].find(folder))


def read(path: Path) -> LabelRanking:
    """A CSV file with a header, whose last column is a ranking, the most preferred label first: ``b>a>c``.

    Other columns are numbers, or categories ``13:Tokyo``, which become a column of zeros and ones for every code.
    """
    with path.open(newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    if not rows:
        raise InputError(f"{path} holds no rankings: a header and at least one line are needed.")
    names = tuple(sorted(rows[0][-1].split(">")))
    rankings = [_positions(row[-1], names, path, line) for line, row in enumerate(rows, start=2)]
    for line, row in enumerate(rows, start=2):
        if len(row) != len(rows[0]):
            raise InputError(f"{path}, line {line}: expected {len(rows[0])} columns. Got {len(row)}.")
    columns = [_numbers(column, path) for column in list(zip(*rows, strict=True))[:-1]]
    return LabelRanking(np.concatenate(columns, axis=1), np.array(rankings), names)


def _positions(ranking: str, names: tuple[str, ...], path: Path, line: int) -> list[int]:
    order = ranking.split(">")
    if tuple(sorted(order)) != names:
        raise InputError(f"{path}, line {line}: expected an order of {', '.join(names)}. Got {ranking!r}.")
    return [order.index(name) for name in names]


def _numbers(column: tuple[str, ...], path: Path) -> np.ndarray:  # (n, 1), or (n, codes) for a category
    is_category = ":" in column[0]
    try:
        values = np.array([float(cell.partition(":")[0] if is_category else cell) for cell in column])
    except ValueError as error:
        raise InputError(f"{path}: {error}. Columns are numbers, or categories like 13:Tokyo.") from error
    return (values[:, None] == np.unique(values)).astype(np.float64) if is_category else values[:, None]
