"""Inputs as tables of numbers, for trees, nearest neighbours and kernels on vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, time, timedelta
from hashlib import blake2b
from importlib import import_module
from typing import Any, Literal, cast

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import normalize
from sklearn.utils.validation import _check_sample_weight, check_array, validate_data
from torch import Tensor

from dsokr.errors import DSOKRError, InputError, MissingExtraError
from dsokr.outputs import count, is_missing, keys, list_columns, read_numbers, take
from dsokr.regressors.base import Reads

Numbers = Any  # a float64 array (n, d), with NaN where a value is missing, or a CSR matrix
Kind = Literal["number", "category", "smiles", "string", "text"]

OF_INPUTS = ("n_features_in_", "feature_names_in_")  # what scikit-learn records of the columns of X
TIMES = date | time | timedelta | np.datetime64 | np.timedelta64
SAMPLE, MOST = 200, 0.95  # cells that a guess looks at, and the share of them that must fit
CATEGORIES = 50  # different texts in a column, at most, that are categories
BITS, WORDS = 2048, 4096  # columns that fingerprints and words are hashed to


@dataclass(frozen=True, eq=False)
class Inputs:
    """The same inputs twice: as the user gave them, and as a table of numbers."""

    raw: Any
    numbers: Numbers

    def __len__(self) -> int:
        return count(self.raw)

    def __getitem__(self, index: Any) -> Inputs:
        return Inputs(take(self.raw, index), take(self.numbers, index))

    def read_by(self, reads: str) -> Any:
        return self if reads == "both" else self.numbers if reads == "numbers" else self.raw


@dataclass(frozen=True)
class Column:
    """How a column of cells becomes numbers.

    Categories get a column each, with a one where it is the cell's. Molecules, given as SMILES, get the counts of
    their Morgan fingerprint, texts those of their words and word pairs, strings without spaces those of up to three
    letters in a row, each hashed.
    """

    kind: Kind
    categories: tuple[str, ...] = ()

    @staticmethod
    def of(cells: Sequence[Any]) -> Column:
        given = [cell for cell in cells if not is_missing(cell)]
        if all(isinstance(cell, int | float | np.number | np.bool_) for cell in given):
            return Column("number")
        texts = list(map(str, given))
        if are_smiles(texts):
            return Column("smiles")
        different = sorted(set(texts))
        has_spaces = sum(" " in text.strip() for text in different) > len(different) / 2
        if len(different) <= min(CATEGORIES, max(2, len(texts) // 2)) and not (has_spaces and len(different) > 10):
            return Column("category", tuple(different))
        return Column("string" if are_strings(texts) else "text")

    def encode(self, cells: Sequence[Any]) -> Numbers:
        if self.kind == "number":
            return np.array([np.nan if is_missing(cell) else float(cell) for cell in cells])[:, None]
        texts = ["" if is_missing(cell) else str(cell) for cell in cells]
        if self.kind == "category":
            return np.array([[text == name for name in self.categories] for text in texts], dtype=np.float64)
        if self.kind in ("text", "string"):
            unit: dict[str, Any] = {"ngram_range": (1, 2)}
            if self.kind == "string":
                unit = {"analyzer": "char", "ngram_range": (1, 3), "lowercase": False}
            parts = HashingVectorizer(n_features=WORDS, norm="l2", alternate_sign=False, **unit)
            return sp.csr_array(parts.transform(texts))
        counts = import_module("dsokr.chem").fingerprints(texts, radius=2).tocoo()
        folded = counts.row.astype(np.int32), (counts.col % BITS).astype(np.int32)  # scikit-learn's trees read no int64
        return sp.coo_array((counts.data, folded), shape=(len(texts), BITS)).tocsr()


def are_strings(texts: list[str]) -> bool:
    """Whether texts are single words, sequences or codes, to be read letter by letter."""
    some = texts[:SAMPLE]
    return all(map(str.isascii, texts)) and sum(len(text.split()) == 1 for text in some) >= MOST * len(some)


def are_smiles(texts: list[str]) -> bool:
    """Whether texts are molecules: RDKit can read them, and they are not words."""
    some = [text for text in texts[:SAMPLE] if text]
    if not some or any(" " in text for text in some) or all(text.islower() or text.istitle() for text in some):
        return False
    try:
        parse = import_module("dsokr.chem").canonical
    except MissingExtraError:
        return False
    return sum(_is_readable(parse, text) for text in some) >= MOST * len(some)


def _is_readable(parse: Any, text: str) -> bool:
    try:
        return bool(parse([text]))
    except DSOKRError:
        return False


@dataclass(frozen=True)
class Encoder:
    """Turns an array of objects, by its columns, or a list of texts into a table of numbers.

    Arrays of numbers and sparse matrices are tables already; pictures are flattened.
    """

    columns: tuple[Column, ...] = ()  # none for arrays of numbers

    @staticmethod
    def of(X: Any, texts: str = "auto") -> Encoder:
        """Choose by the inputs; ``texts`` says what a list of texts holds, if that is known."""
        if isinstance(X, Tensor) or sp.issparse(X) or (isinstance(X, np.ndarray) and X.dtype != object):
            return Encoder()
        if isinstance(X, np.ndarray):
            return Encoder(tuple(map(Column.of, X.T)))
        if not isinstance(X[0], str):
            raise InputError(f"Inputs of type {type(X[0]).__name__} are not a table of numbers, nor texts.")
        return Encoder((Column.of(X) if texts == "auto" else Column(cast(Kind, texts)),))

    def encode(self, X: Any) -> Numbers:
        if not self.columns:
            rows = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
            return rows if sp.issparse(rows) else np.asarray(rows, dtype=np.float64).reshape(count(X), -1)
        cells = X.T if isinstance(X, np.ndarray) else [X]
        parts = [column.encode(part) for column, part in zip(self.columns, cells, strict=True)]
        return sp.hstack(parts, format="csr") if any(map(sp.issparse, parts)) else np.hstack(parts)

    def state(self) -> dict[str, Any]:
        return {"columns": [asdict(column) for column in self.columns]}

    @staticmethod
    def restore(state: dict[str, Any]) -> Encoder:
        columns = (Column(column["kind"], tuple(column["categories"])) for column in state["columns"])
        return Encoder(tuple(columns))


@dataclass(frozen=True)
class Reader:
    """Inputs as a regressor reads them."""

    reads: Reads = "raw"
    encoder: Encoder | None = None

    def read(self, X: Any) -> Any:
        return X if self.encoder is None else Inputs(X, self.encoder.encode(X)).read_by(self.reads)

    def state(self) -> dict[str, Any]:
        return {"reads": self.reads, "encoder": self.encoder and self.encoder.state()}

    @staticmethod
    def restore(state: dict[str, Any]) -> Reader:
        return Reader(state["reads"], None if state["encoder"] is None else Encoder.restore(state["encoder"]))


@dataclass(frozen=True, eq=False)
class Scaler:
    """Standardises the columns of a table, with missing values at the mean; rows of a sparse table get length one."""

    mean: Tensor  # (d,), empty for a sparse table
    spread: Tensor

    @staticmethod
    def of(X: Numbers, weights: Tensor) -> Scaler:
        if sp.issparse(X):
            return Scaler(torch.empty(0), torch.empty(0))
        rows, s = torch.as_tensor(X, dtype=torch.float64), weights.cpu()[:, None]
        present = s * ~rows.isnan()
        rows, total = rows.nan_to_num(), present.sum(dim=0).clamp(min=1e-300)
        mean = (present * rows).sum(dim=0) / total
        spread = ((present * (rows - mean).square()).sum(dim=0) / total).sqrt()
        return Scaler(mean, torch.where(spread > 1e-12 * mean.abs(), spread, 1.0))

    def scale(self, X: Numbers) -> Any:
        """Return the scaled table as canonical rows: a float64 tensor, or a CSR matrix."""
        if sp.issparse(X):
            return sp.csr_array(normalize(sp.csr_matrix(X, dtype=np.float64)))
        return ((torch.as_tensor(X, dtype=torch.float64) - self.mean) / self.spread).nan_to_num()

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "spread": self.spread}


def is_raw(X: Any) -> bool:
    """Whether inputs are not a dense table of numbers: sparse rows, strings, objects, rows of different lengths."""
    if sp.issparse(X):
        return True
    if hasattr(X, "dtype") and getattr(X, "ndim", None) == 1:  # an array, or a column of a table
        return getattr(X.dtype, "kind", "O") in "OUST"  # objects, and texts in three forms
    if not isinstance(X, list | tuple):
        return not hasattr(X, "__array__") and hasattr(X, "__len__") and not isinstance(X, str | bytes | dict)
    if not len(X) or not isinstance(X[0], int | float | np.ndarray | list | tuple):
        return True
    return len({len(x) for x in X if isinstance(x, list | tuple) or (isinstance(x, np.ndarray) and x.ndim)}) > 1


def read_cells(columns: list[Any]) -> np.ndarray:  # (n, d)
    """Return the cells of a data frame: numbers, with NaN where one is missing, or objects if there are others."""
    parts = [_read_column(column) for column in columns]
    if not parts:
        raise InputError("X has no columns.")
    return np.stack(parts, axis=1)


def _read_column(column: Any) -> np.ndarray:  # (n,)
    """Return a column as numbers or as objects; numbers that are marked as categories are texts."""
    if str(column.dtype) == "category":
        return np.array([None if is_missing(cell) else str(cell) for cell in column], dtype=object)
    numbers = read_numbers(column)
    if numbers is not None:
        return numbers
    cells = np.asarray(column, dtype=object)
    if any(issubclass(kind, TIMES) for kind in set(map(type, cells))):
        raise InputError(f"Column {column.name!r} of X holds dates or times: turn them into numbers, such as days.")
    return cells


def identify_inputs(X: Any, most: int | None = None) -> Tensor:  # (n,) int64
    """Return a hash of every input, or of the first ``most``."""
    rows = take(X, slice(most)) if most is not None and count(X) > most else X
    if isinstance(rows, Tensor):
        rows = rows.detach().reshape(len(rows), -1)
    elif isinstance(rows, np.ndarray) and rows.dtype != object:
        rows = torch.from_numpy(rows.reshape(len(rows), -1).copy())
    texts = (repr(key).encode() for key in keys(rows))
    return torch.tensor([int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True) for text in texts])


def check_inputs(estimator: Any, X: Any, *, reset: bool, allow_missing: bool) -> Any:
    """Check arrays and data frames as scikit-learn does, and tensors for NaN; pass on other inputs as they are."""
    if reset:
        for name in OF_INPUTS:
            vars(estimator).pop(name, None)
    if isinstance(X, Tensor):
        if X.is_floating_point() and not torch.isfinite(X).all():
            raise InputError("X must be finite. Got NaN or inf.")
        return validate_data(estimator, X, reset=reset, skip_check_array=True) if X.ndim > 1 else X
    finite: Any = "allow-nan" if allow_missing else True
    columns = list_columns(X)
    if columns is not None and len(X.shape) == 2:
        validate_data(estimator, X, reset=reset, skip_check_array=True)  # the names of the columns
        cells = read_cells(columns)
        if cells.dtype == object:
            return cells
        return check_array(cells, dtype="numeric", ensure_all_finite=finite, estimator=estimator, input_name="X")
    X = X if columns is None else np.asarray(X)  # a series is a list of texts, say
    if is_raw(X):
        if not count(X):
            raise InputError("X is empty: at least one input is needed.")
        return X.tocsr() if sp.issparse(X) else list(X)
    cells = np.asarray(X)
    if cells.dtype.kind == "O" and cells.ndim == 2:  # columns of any cells
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return cells
    return validate_data(estimator, X, reset=reset, allow_nd=True, dtype="numeric", ensure_all_finite=finite)


def check_weights(sample_weight: Any, Y: Any) -> Tensor | None:  # (n,)
    """Return how much each pair counts, which is never negative, or None if all count the same."""
    if sample_weight is None:
        return None
    weights = torch.as_tensor(_check_sample_weight(sample_weight, Y))
    if weights.min() < 0:
        raise InputError("sample_weight must not be negative.")
    return weights


def check_groups(groups: Any, n: int) -> Tensor | None:  # (n,)
    """Return the group of each of n pairs as a number, or None if there are no groups."""
    if groups is None:
        return None
    values = np.asarray(groups)
    if values.shape != (n,):
        raise InputError(f"groups must have one value for each of the {n} pairs. Got shape {values.shape}.")
    return torch.from_numpy(np.unique(values, return_inverse=True)[1])
