"""The door: collections of outputs as users give them, in one canonical form, and back again.

Canonical outputs are a float64 tensor (n, d), a float64 CSR matrix (n, d), a :class:`GraphBatch`, a :class:`ViewBatch`,
or a list of objects (graphs, strings, tuples of views). Everything behind :func:`canonical` relies on that; a
:class:`Form` remembers what was given, so that answers come back the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.graphs import GraphBatch

Outputs = Any  # one of the canonical forms; a union would only add casts

NUMBERS = int | float | np.number | np.bool_
KEY_BLOCK = 4096  # rows whose keys are computed at once
ROWS: dict[str, Callable[[Any], Any]] = {  # from an array to a row of the type that was given; others are lists
    "number": lambda row: row.item(),
    "ndarray": lambda row: row.copy(),
    "Tensor": lambda row: torch.from_numpy(row.copy()),
    "tuple": lambda row: tuple(row.tolist()),
}


@dataclass(frozen=True, eq=False)
class ViewBatch:
    """Outputs with several views, each view held whole: the same outputs as fingerprints and as graphs, say.

    Stands for a list of tuples, whose kernels are :class:`dsokr.kernels.Views`, but views keep their fast forms.

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
        return ViewBatch(*(take(view, index) for view in self.views))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True)
class Form:
    """How a collection of outputs was given. Plain data, saved with a model."""

    kind: Literal["tensor", "array", "sparse", "rows", "list", "object array", "batch"]
    dtype: str = ""  # of the numbers, or of the array of objects
    shape: tuple[int, ...] = ()  # of one output
    item: str = ""  # type of a row in a list of rows; "matrix" for a scipy.sparse matrix rather than array

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Form:
        return Form(**fields | {"shape": tuple(fields["shape"])})

    def restore(self, outputs: Outputs) -> Any:
        """Return canonical outputs in this form."""
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
    else:
        outputs, form = _from_sequence(ys, name)
    if not count(outputs):
        raise InputError(f"{name} is empty: at least one output is needed.")
    _check_finite(outputs, name)
    return outputs, form


def as_outputs(ys: Any, name: str = "Y") -> Outputs:
    """Return the canonical form of a collection of outputs."""
    return canonical(ys, name)[0]


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
            return None
        try:
            array = np.stack([np.asarray(item) for item in items])
        except (ValueError, TypeError):
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
    if isinstance(outputs, Tensor | sp.csr_array) and not math.isfinite(outputs.sum()):  # the quickest test
        bad = torch.as_tensor((0 * outputs).sum(1)).isnan().nonzero()  # 0 · inf is NaN
        if len(bad):
            raise InputError(f"{name} must be finite. Got NaN or inf in row {int(bad[0])}.")


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


def to_device(ys: Outputs, device: torch.device) -> Outputs:
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
    """Yield something hashable for every canonical output, equal for equal outputs; sparse and dense rows agree."""
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
