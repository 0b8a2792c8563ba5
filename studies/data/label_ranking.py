"""Label ranking: inputs are vectors, outputs are orders of preference of the same few labels."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsokr.errors import InputError
from studies.data.files import Source

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


def load_label_ranking(name: str, folder: str | Path | None = None) -> LabelRanking:
    """Load authorship, glass, iris, vehicle, vowel, wine or sushi from ``label_ranking/<name>.txt`` in the folder.

    In all but sushi the ranking is the order of the classes by the probabilities of a naive Bayes classifier, classes
    of equal probability in alphabetical order. Sushi holds the preferences of 5,000 people among ten kinds.
    """
    if name not in SOURCES:
        raise InputError(f"There is no label ranking data set {name!r}. Choose one of {', '.join(SOURCES)}.")
    return read_label_ranking(SOURCES[name].find(folder))


def read_label_ranking(path: Path) -> LabelRanking:
    """Read a CSV file with a header, whose last column is a ranking, the most preferred label first: ``b>a>c``.

    Other columns are numbers, or categories ``13:Tokyo``, which become a column of zeros and ones for every code.
    """
    with path.open(newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    *inputs, orders = zip(*rows, strict=True)
    names = tuple(sorted(orders[0].split(">")))
    rankings = [[order.split(">").index(name) for name in names] for order in orders]
    return LabelRanking(np.concatenate([_as_numbers(column) for column in inputs], axis=1), np.array(rankings), names)


def _as_numbers(column: tuple[str, ...]) -> np.ndarray:  # (n, 1), or (n, codes) for a category
    is_category = ":" in column[0]
    values = np.array([float(cell.partition(":")[0]) for cell in column])
    return (values[:, None] == np.unique(values)).astype(np.float64) if is_category else values[:, None]


def generate(n: int = 120) -> LabelRanking:
    """Draw points, each with a ranking of five labels on a circle by how near they are.

    >>> generate(3).rankings.shape
    (3, 5)
    """
    angles = np.arange(5) * 2 * np.pi / 5
    X = np.random.default_rng(0).normal(size=(n, 2))
    distance = np.linalg.norm(X[:, None] - np.stack([np.cos(angles), np.sin(angles)], axis=1), axis=2)
    return LabelRanking(X, distance.argsort(axis=1).argsort(axis=1), tuple("abcde"))
