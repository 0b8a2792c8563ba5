"""Multi-label data: inputs that are vectors, outputs that are sets of labels. From MULAN, or generated."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dsokr.errors import InputError
from studies.data.files import Source, read_arrays

Inputs = Any  # (n, d): an array, or a sparse matrix in CSR form
LabelSets = np.ndarray  # (n, labels) of uint8, 0 or 1


class MultiLabel(NamedTuple):
    """Inputs and label sets to train on, and those to test on."""

    train: tuple[Inputs, LabelSets]
    test: tuple[Inputs, LabelSets]


CHECKSUMS = {
    "bibtex": "a177e8f408dbd15c8ff968a6c11c77931a8496281aa9388c94c8ba0160d121f7",
    "corel5k": "ce52de460e28b16ebfa19860cb67f6a5427ffb95e6fc482972d7ac344171bb50",
    "emotions": "5df4304c0910e714bd4e694a7860fe1c6e96daf8a404308272138a75f3f7025a",
    "scene": "8c8054f0f3ce5bcfdd0920e847d6a626140953b871dfda3dd532212b0e07e83b",
    "yeast": "ef91ba56be5fbc942261e3b251380cc7a53484aec07eab59e5df8f3cefef58de",
}
ORIGIN = (
    "MULAN (https://mulan.sourceforge.net/datasets-mlc.html): the ARFF files of the train/test split given there, as "
    "arrays X (or X_data, X_indices, X_indptr and X_shape), Y (its bits packed), n_labels and split (0 train, 1 test)"
)
SOURCES = {name: Source(f"multilabel/{name}.npz", checksum, ORIGIN) for name, checksum in CHECKSUMS.items()}


def load_multilabel(name: str, folder: str | Path | None = None) -> MultiLabel:
    """Load one of MULAN's data sets with the split that comes with it: bibtex, corel5k, emotions, scene or yeast.

    ``folder`` holds ``multilabel/<name>.npz``. Bags of words come as sparse matrices, other inputs as arrays.
    """
    if name not in SOURCES:
        raise InputError(f"There is no multi-label data set {name!r}. Choose one of {', '.join(SOURCES)}.")
    arrays = read_arrays(SOURCES[name].find(folder))
    X = arrays["X"] if "X" in arrays else _as_sparse(arrays)
    Y = np.unpackbits(arrays["Y"], axis=1)[:, : int(arrays["n_labels"])]
    train, test = (arrays["split"] == part for part in (0, 1))
    return MultiLabel((X[train], Y[train]), (X[test], Y[test]))


def _as_sparse(arrays: dict[str, np.ndarray]) -> sp.csr_array:
    parts = tuple(arrays[f"X_{name}"] for name in ("data", "indices", "indptr"))
    return sp.csr_array(parts, shape=tuple(arrays["X_shape"]))


def generate(n_train: int, n_test: int, *, labels: int = 12, words: int = 120, seed: int = 0) -> MultiLabel:
    """Draw documents on one to three subjects: every label makes some words likely, and some label sets are frequent.

    >>> data = generate(30, 10, labels=5, words=40)
    >>> data.train[0].shape, data.test[1].shape
    ((30, 40), (10, 5))
    """
    rng = np.random.default_rng(seed)
    kinds = np.zeros((3 * labels, labels), np.uint8)
    for kind in kinds:
        kind[rng.choice(labels, size=rng.integers(1, 4), replace=False)] = 1
    Y = kinds[rng.integers(len(kinds), size=n_train + n_test)]
    own_words = rng.random((labels, words)) < 0.1
    rates = np.where(Y @ own_words.astype(np.uint8) > 0, 0.35, 0.05)
    X = sp.csr_array((rng.random(rates.shape) < rates).astype(np.float32))
    return MultiLabel((X[:n_train], Y[:n_train]), (X[n_train:], Y[n_train:]))
