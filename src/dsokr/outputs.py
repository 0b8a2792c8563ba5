"""Collections of outputs: from what users give to one canonical form, and back.

Canonical outputs are a float64 tensor (n, d), a float64 CSR matrix (n, d), a :class:`GraphBatch`, a :class:`ViewBatch`,
or a list of objects (graphs, strings, tuples of views). Users' outputs pass through :func:`canonical` first, so all
other code handles these forms only. A :class:`Form` records what was given, so that answers have the same form.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from types import NoneType
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError, check_fields
from dsokr.graphs import GraphBatch

Outputs = Any  # one of the canonical forms; a union would only add casts

NUMBERS = int | float | np.number | np.bool_
KEY_BLOCK = 4096  # rows whose keys are computed at once
ROWS: dict[str, Callable[[Any], Any]] = {  # array -> row, by the type of the rows given; other rows are lists
    "number": lambda row: row.item(),
    "ndarray": lambda row: row.copy(),
    "Tensor": lambda row: torch.from_numpy(row.copy()),
    "tuple": lambda row: tuple(row.tolist()),
}


@dataclass(frozen=True, eq=False)
class ViewBatch:
    """Outputs with several views, such as a fingerprint and a graph of each, as one collection for every view.

    It replaces a list of tuples, one tuple for every output, and keeps the fast forms of the views. Its kernels are
    :class:`dsokr.kernels.Views`.

    >>> batch = ViewBatch(np.eye(3), ["a", "b", "c"])
    >>> batch[1]
    (tensor([0., 1., 0.], dtype=torch.float64), 'b')
    >>> len(batch[:2])
    2
    """

    views: tuple[Outputs, ...]

    def __init__(self, *views: Any):
        canonical_views = tuple(as_outputs(view, f"View {number}") for number, view in enumerate(views))
        if len({count(view) for view in canonical_views}) != 1:
            sizes = ", ".join(str(count(view)) for view in canonical_views) or "no views"
            raise InputError(f"All views must have the same number of outputs. Got {sizes}.")
        object.__setattr__(self, "views", canonical_views)

    def __len__(self) -> int:
        return count(self.views[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            return tuple(view[index] for view in self.views)
        some = object.__new__(ViewBatch)  # without the checks of __init__, as there may be no outputs left
        object.__setattr__(some, "views", tuple(take(view, index) for view in self.views))
        return some

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True)
class Frame:
    """A data frame of pandas or polars, or a series: its library, and the names and types of its columns."""

    library: Literal["pandas", "polars"]
    names: tuple[str | int | None, ...]
    dtypes: tuple[str, ...]
    is_series: bool = False

    def __post_init__(self) -> None:
        check_fields(self)  # it may come from a file, and its library is imported

    @staticmethod
    def of(columns: list[Any], is_series: bool) -> Frame | None:
        """Describe columns; None if their names cannot be saved, such as those of several levels."""
        labels, dtypes = [column.name for column in columns], tuple(str(column.dtype) for column in columns)
        names = tuple(int(name) if isinstance(name, np.integer) else name for name in labels)
        library: Any = "polars" if type(columns[0]).__module__.startswith("polars") else "pandas"
        are_plain = all(isinstance(name, str | int | None) for name in names)
        return Frame(library, names, dtypes, is_series) if are_plain else None

    @staticmethod
    def from_json(fields: dict[str, Any] | None) -> Frame | None:
        return Frame(**fields | {name: tuple(fields[name]) for name in ("names", "dtypes")}) if fields else None

    def wrap(self, rows: np.ndarray) -> Any:  # (n,) or (n, d)
        """Return rows as such a frame or series."""
        library: Any = import_module(self.library)
        columns = []
        for name, dtype, cells in zip(self.names, self.dtypes, rows.reshape(len(rows), len(self.names)).T, strict=True):
            if "int" in dtype.lower() and cells.dtype.kind == "f":
                cells = cells.round()  # a decoder of real vectors does not find whole numbers
            if self.library == "pandas":
                columns.append(library.Series(cells, name=name).astype(dtype))
            else:
                kind = getattr(library, dtype, None)  # None: a type with parameters, such as an enumeration
                columns.append(library.Series(name, cells.tolist(), dtype=kind, strict=False))
        if self.is_series:
            return columns[0]
        return library.concat(columns, axis=1) if self.library == "pandas" else library.DataFrame(columns)


@dataclass(frozen=True)
class Form:
    """The form in which a collection of outputs was given. Plain data, saved with a model."""

    kind: Literal["tensor", "array", "sparse", "rows", "list", "object array", "batch"]
    dtype: str = ""  # of numbers, or of an array of objects
    shape: tuple[int, ...] = ()  # of one output
    item: str = ""  # type of a row in a list of rows; "matrix" for a scipy.sparse matrix rather than array
    frame: Frame | None = None  # around an array

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Form:
        frame = Frame.from_json(fields.get("frame"))
        return Form(**fields | {"shape": tuple(fields["shape"]), "frame": frame})

    def matching(self, other: Form, name: str) -> Form:
        """Return the form of further outputs; raise an ``InputError`` if they are a frame with other columns."""
        if self.frame and other.frame and not self.frame.is_series and self.frame.names != other.frame.names:
            expected, got = (", ".join(map(str, frame.names)) for frame in (self.frame, other.frame))
            raise InputError(f"{name} must have the columns that fit got, in their order: {expected}. Got {got}.")
        return other

    def restore(self, outputs: Outputs) -> Any:
        """Return canonical outputs in this form."""
        if self.frame is not None:
            return self.frame.wrap(replace(self, frame=None).restore(outputs))
        if self.kind == "tensor":
            return outputs.to(getattr(torch, self.dtype)).reshape(-1, *self.shape)
        if self.kind in ("array", "rows"):
            rows = outputs.cpu().numpy().astype(self.dtype).reshape(-1, *self.shape)
            return rows if self.kind == "array" else list(map(ROWS.get(self.item, np.ndarray.tolist), rows))
        if self.kind == "sparse":
            made = sp.csr_matrix if self.item == "matrix" else sp.csr_array
            return made(outputs if sp.issparse(outputs) else outputs.cpu().numpy()).astype(self.dtype)
        if self.kind == "object array":
            made = np.empty(len(outputs), object)
            made[:] = outputs
            return made.astype(self.dtype)
        return outputs


def canonical(ys: Any, name: str = "Y") -> tuple[Outputs, Form]:
    """Check a collection of outputs; return its canonical form, and what was given."""
    outputs: Outputs
    is_many = isinstance(ys, Iterable) or hasattr(ys, "__array__")
    is_one = isinstance(ys, str | bytes | Mapping) or not is_many or getattr(ys, "ndim", 1) == 0
    if is_one and not sp.issparse(ys):
        raise InputError(f"{name} must be a collection of outputs. Got {ys!r:.60}.")
    if str(getattr(ys, "dtype", "")).startswith("torch.complex") or (sp.issparse(ys) and ys.dtype.kind == "c"):
        raise InputError(f"Complex data not supported: {name} must be real.")
    if isinstance(ys, ViewBatch | GraphBatch):
        outputs, form = ys, Form("batch")
    elif isinstance(ys, Tensor):
        dtype = str(ys.dtype).removeprefix("torch.")
        outputs, form = _flatten(ys.detach().to(torch.float64)), Form("tensor", dtype, tuple(ys.shape[1:]))
    elif sp.issparse(ys):
        outputs = sp.csr_array(ys, dtype=np.float64)
        if not outputs.has_canonical_format:
            outputs = outputs.copy()
            outputs.sum_duplicates()
        form = Form("sparse", str(ys.dtype), (ys.shape[1],), "matrix" if isinstance(ys, sp.spmatrix) else "")
    elif (columns := list_columns(ys)) is not None:
        is_series = len(ys.shape) == 1
        outputs, form = _from_sequence(_join_columns(columns, is_series, name), name)
        form = replace(form, frame=Frame.of(columns, is_series))
    else:
        outputs, form = _from_sequence(ys, name)
    if not count(outputs):
        raise InputError(f"{name} is empty: at least one output is needed.")
    _check_finite(outputs, name)
    return outputs, form


def as_outputs(ys: Any, name: str = "Y") -> Outputs:
    """Return the canonical form of a collection of outputs."""
    return canonical(ys, name)[0]


def list_columns(frame: Any) -> list[Any] | None:
    """Return the columns of a data frame of pandas or polars, or a series alone; None for anything else."""
    for name in ("pandas", "polars"):
        library: Any = sys.modules.get(name)  # if it is not imported, nothing is a frame of it
        if library is not None and isinstance(frame, library.Series):
            return [frame]
        if library is not None and isinstance(frame, library.DataFrame):
            return frame.get_columns() if name == "polars" else [column for _, column in frame.items()]
    return None


def is_missing(cell: Any) -> bool:
    return cell is None or (not isinstance(cell, str) and str(cell) in ("nan", "<NA>", "NaT"))


def read_numbers(column: Any) -> np.ndarray | None:  # (n,)
    """Return a column as numbers, with NaN where one is missing; None if it holds anything else."""
    cells = np.asarray(column)
    if cells.dtype == object:
        if not all(issubclass(kind, NUMBERS | NoneType) or kind.__name__ == "NAType" for kind in set(map(type, cells))):
            return None
        cells = np.array([np.nan if is_missing(cell) else cell for cell in cells])
    return cells if cells.dtype.kind in "fiub" else None


def _join_columns(columns: list[Any], is_series: bool, name: str) -> np.ndarray:  # (n,) or (n, d)
    """Return columns of numbers as a table, or the cells of a single column of anything else."""
    if not columns:
        raise InputError(f"{name} has no columns.")
    numbers = [read_numbers(column) for column in columns]
    others = [column for column, read in zip(columns, numbers, strict=True) if read is None]
    if not others:
        return numbers[0] if is_series else np.stack(numbers, axis=1)  # type: ignore[arg-type,return-value] # no None
    if len(columns) > 1:
        got = f"{others[0].dtype} in {others[0].name!r}"
        raise InputError(f"{name} must have columns of numbers, or a single column. Got {got}.")
    missing = [row for row, cell in enumerate(columns[0]) if is_missing(cell)]
    if missing:
        raise InputError(f"{name} must not have missing values. Got one in row {missing[0]}.")
    return np.asarray(columns[0], dtype=object)


def _from_sequence(ys: Any, name: str) -> tuple[Outputs, Form]:
    is_array = hasattr(ys, "__array__")
    items: Any = np.asarray(ys) if is_array else list(ys)
    numbers = _as_numbers(items, name)
    if numbers is None:
        dtype = "object" if is_array and items.dtype == object else "str"
        return list(items), Form("object array", dtype) if is_array else Form("list")
    shape = numbers.shape[1:]
    rows = _flatten(torch.from_numpy(np.require(numbers, np.float64, ["C", "W", "O"])))
    if is_array:
        return rows, Form("array", str(numbers.dtype.newbyteorder("=")), shape)
    item = "number" if isinstance(items[0], NUMBERS) else type(items[0]).__name__
    return rows, Form("rows", str(numbers.dtype), shape, item)


def _as_numbers(items: Any, name: str) -> np.ndarray | None:
    """Return the items as an array of numbers, or None if they are objects: strings, graphs, views, ragged rows."""
    array = items
    if not isinstance(items, np.ndarray):
        if not items or not _is_row(items[0]):
            if items and isinstance(items[0], complex):
                raise InputError(f"Complex data not supported: {name} must be real.")
            return None
        try:
            array = np.stack([np.asarray(item) for item in items])
        except (ValueError, TypeError) as error:
            if isinstance(items[0], Tensor) and isinstance(error, TypeError):
                raise InputError(f"{name} has rows of type {items[0].dtype}: stack them to one tensor.") from error
            return None
    if array.dtype == object and all(isinstance(value, NUMBERS | None) for value in array.flat):
        array = array.astype(np.float64)  # None is NaN
    if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > 2**53:
        raise InputError(f"{name} must be exact in double precision. Got an integer above 2⁵³.")
    if array.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} must be real.")
    return array if array.dtype.kind in "fiub" else None


def _is_row(item: Any) -> bool:
    if isinstance(item, tuple):
        return all(isinstance(value, NUMBERS | None) for value in item)  # else a tuple of views
    return isinstance(item, NUMBERS | np.ndarray | list | Tensor | None)


def _flatten(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).contiguous()


@np.errstate(invalid="ignore")
def _check_finite(outputs: Outputs, name: str) -> None:
    if isinstance(outputs, Tensor | sp.csr_array) and not math.isfinite(outputs.sum()):  # quick, and enough for most
        bad = torch.as_tensor((0 * outputs).sum(1)).isnan().nonzero()  # 0 · inf is NaN
        if len(bad):
            raise InputError(f"{name} must be finite. Got NaN or inf in row {int(bad[0])}.")


def with_index_of(X: Any, outputs: Any) -> Any:
    """Return outputs with the index of the inputs, if both are of pandas."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None and all(isinstance(part, pandas.DataFrame | pandas.Series) for part in (X, outputs)):
        return outputs.set_axis(X.index)
    return outputs


def count(ys: Any) -> int:
    """Return the number of rows or items."""
    return int(ys.shape[0]) if hasattr(ys, "shape") else len(ys)


def take(ys: Any, index: Any) -> Any:
    """Return the rows or items at ``index``, a slice, integers or a mask."""
    if isinstance(ys, Tensor):
        return ys[torch.as_tensor(index, device=ys.device) if not isinstance(index, slice) else index]
    if isinstance(index, Tensor):
        index = index.cpu().numpy()
    if not isinstance(ys, list | tuple) or isinstance(index, slice):
        return ys[index]
    index = np.asarray(index, dtype=None if len(index) else np.int64)
    if index.dtype == bool:
        if len(index) != len(ys):
            raise InputError(f"A mask must have one value for each of the {len(ys)} outputs. Got {len(index)}.")
        index = np.flatnonzero(index)
    return [ys[int(i)] for i in index]


def concatenate(a: Outputs, b: Outputs) -> Outputs:
    """Return the outputs of two collections of one form, one after the other."""
    if isinstance(a, Tensor):
        return torch.cat([a, b.to(a)])
    if sp.issparse(a):
        return sp.vstack([a, b], format="csr")
    if isinstance(a, ViewBatch):
        return ViewBatch(*map(concatenate, a.views, b.views))
    return GraphBatch.joined([a, b]) if isinstance(a, GraphBatch) else [*a, *b]


def blocks(ys: Any, rows: int) -> Iterator[tuple[slice, Any]]:
    """Yield consecutive pieces of at most ``rows`` outputs, with their positions."""
    for start in range(0, count(ys), rows):
        where = slice(start, min(start + rows, count(ys)))
        yield where, take(ys, where)


def to_device(ys: Outputs, device: torch.device | str) -> Outputs:
    """Move tensors to the device; sparse matrices and objects stay where they are."""
    if isinstance(ys, Tensor):
        return ys.to(device)
    return ViewBatch(*(to_device(view, device) for view in ys.views)) if isinstance(ys, ViewBatch) else ys


def distinct(ys: Outputs) -> Tensor:
    """Return the positions of the first occurrence of every distinct output, in order.

    >>> distinct(["b", "a", "b"]).tolist()
    [0, 1]
    """
    return torch.tensor(list(_first_positions(ys).values()), dtype=torch.long)


def positions(ys: Outputs, among: Outputs) -> Tensor:
    """Return the index of each output's first match in ``among``.

    >>> positions(["b", "a"], ["a", "b", "b"]).tolist()
    [1, 0]
    """
    first = _first_positions(among)
    found = [first.get(key, -1) for key in keys(ys)]
    if -1 in found:
        raise InputError(f"The output at index {found.index(-1)} is not among the candidates.")
    return torch.tensor(found, dtype=torch.long)


def _first_positions(ys: Outputs) -> dict[Any, int]:
    first: dict[Any, int] = {}
    for position, key in enumerate(keys(ys)):
        first.setdefault(key, position)
    return first


def keys(ys: Outputs) -> Iterator[Any]:
    """Yield a hashable key for every canonical output. Equal outputs have equal keys, whether sparse or dense."""
    if isinstance(ys, ViewBatch):
        yield from zip(*map(keys, ys.views), strict=True)
    elif sp.issparse(ys) or isinstance(ys, Tensor):
        for _, block in blocks(ys, KEY_BLOCK):
            rows = sp.csr_array(block if sp.issparse(block) else block.cpu().numpy(), copy=True)
            rows.eliminate_zeros()
            rows.sort_indices()
            places, numbers, ends = rows.indices.astype(np.int64), rows.data, rows.indptr.tolist()
            for start, stop in pairwise(ends):
                yield places[start:stop].tobytes(), numbers[start:stop].tobytes()
    else:
        yield from (_object_key(y) for y in ys)


def _object_key(y: Any) -> Any:
    """Return the object itself, or the values of the arrays and lists in it."""
    if isinstance(y, np.ndarray | Tensor):
        return tuple(y.reshape(-1).tolist())
    return tuple(map(_object_key, y)) if isinstance(y, list | tuple) else y
