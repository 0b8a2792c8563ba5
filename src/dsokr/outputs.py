"""Collections of outputs, whatever they are: count them, take some, go through them in blocks.

Outputs come as the rows of a tensor, of an array or of a scipy-sparse matrix, as the graphs of a batch, or as the items
of a list. Everything after this module treats them alike and gives them back in the form in which they came. Outputs
with several views are tuples in a list, or a :class:`ViewBatch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.graphs import GraphBatch

Outputs = Any  # Tensor | np.ndarray | sparse matrix | Sequence[object]; a union would only add casts

NUMBERS = int | float | np.number | np.bool_
UNCHANGING = {bool, int, float, str, bytes, type(None)}  # items of rows that need no copy
KEY_BLOCK = 2**18  # numbers that are made keys at once
SPARSE_BLOCK = 2048  # sparse rows that are made keys at once
EXACT = 2.0**53  # below it every whole number is a float64


@dataclass(frozen=True, eq=False)
class ViewBatch:
    """Outputs with several views, each view held whole: the same outputs as fingerprints and as graphs, say.

    Stands for a list of tuples, whose kernels are :class:`dsokr.kernels.Views`, but views keep their fast forms.

    >>> batch = ViewBatch(np.eye(3), ["a", "b", "c"])
    >>> batch[1]
    (array([0., 1., 0.]), 'b')
    >>> len(batch[:2])
    2
    """

    views: tuple[Outputs, ...]

    def __init__(self, *views: Outputs):
        views = tuple(as_outputs(view, f"View {number}") for number, view in enumerate(views))
        if not views:
            raise InputError("ViewBatch takes the views of its outputs. Got none.")
        if len({count(view) for view in views}) > 1:
            raise InputError(f"Views must have as many outputs each. Got {', '.join(str(count(v)) for v in views)}.")
        object.__setattr__(self, "views", views)

    def __len__(self) -> int:
        return count(self.views[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            return tuple(take(view, [index])[0] for view in self.views)
        return ViewBatch(*(take(view, index) for view in self.views))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(len(self)))


def as_outputs(ys: Outputs, name: str = "Y") -> Outputs:
    """Check a collection of outputs and make it indexable. Numbers must be finite."""
    if isinstance(ys, ViewBatch):
        return ys  # its views were checked when it was made
    ys = _readable(ys)
    if ndim(ys) == 0:
        raise InputError(f"{name} must be a collection of outputs. Got a single number.")
    if count(ys) == 0:
        raise InputError(f"{name} is empty: at least one output is needed.")
    numbers = ys.data if sp.issparse(ys) else ys if isinstance(ys, Tensor) else _numbers(ys)
    if isinstance(numbers, np.ndarray) and numbers.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} must be real.")
    if numbers is not None and not _all_finite(numbers):
        row = _first_not_finite(ys, numbers)
        missing = isinstance(ys, list | tuple | np.ndarray) and None in np.ravel(np.asarray(ys[row], object)).tolist()
        raise InputError(f"{name} must be finite. Got {'None' if missing else 'NaN or inf'} in row {row}.")
    return ys


def _readable(ys: Outputs) -> Outputs:
    """Outputs in one of the forms that the package knows, with numbers in a type and an order that torch knows."""
    if isinstance(ys, Tensor):
        return _detached(ys)
    if sp.issparse(ys):
        ys = ys.tocsr()
        return ys if ys.dtype.isnative else ys.astype(ys.dtype.newbyteorder("="))
    if isinstance(ys, list | tuple):
        tensors = bool(ys) and isinstance(ys[0], Tensor)
        return [_detached(y) if isinstance(y, Tensor) else y for y in ys] if tensors else ys
    if isinstance(ys, GraphBatch):
        return ys
    # __array__ marks what numpy can read (a pandas Series, say); anything else is iterated
    return forward(np.asarray(ys)) if hasattr(ys, "__array__") else list(ys)


def _detached(y: Tensor) -> Tensor:
    return y.detach().float() if y.dtype == torch.bfloat16 else y.detach()  # numpy has no bfloat16


def forward(array: np.ndarray) -> np.ndarray:
    """The array, or a copy if its numbers lie in memory in an order that torch cannot read."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="), order="C")
    return array.copy() if any(stride < 0 for stride in array.strides) else array


def _all_finite(numbers: Tensor | np.ndarray) -> bool:
    if isinstance(numbers, Tensor):
        return bool(torch.isfinite(numbers).all())
    return numbers.dtype.kind != "f" or bool(np.isfinite(numbers).all())


def _numbers(items: Sequence[Any] | np.ndarray) -> np.ndarray | None:
    """The items as an array of numbers, or None if they are something else: strings, graphs, views, ragged rows."""
    if isinstance(items, np.ndarray) and items.dtype != object:
        return items
    if not isinstance(items[0], NUMBERS | np.ndarray | list | tuple | Tensor | None):
        return None
    try:
        array = np.asarray([item if isinstance(item, NUMBERS | None) else np.asarray(item) for item in items])
    except (ValueError, TypeError):
        return None  # rows of different lengths or kinds: for the kernel to take or to refuse
    if array.dtype == object and all(isinstance(value, NUMBERS | None) for value in array.flat):
        array = array.astype(np.float64)  # None becomes NaN
    return array if array.dtype.kind in "fiubc" else None


def _first_not_finite(ys: Outputs, numbers: Tensor | np.ndarray) -> int:
    wrong = ~torch.isfinite(numbers).cpu().numpy() if isinstance(numbers, Tensor) else ~np.isfinite(numbers)
    first = np.argwhere(wrong)[0, 0]
    return int(np.searchsorted(ys.indptr, first, side="right") - 1 if sp.issparse(ys) else first)


def ndim(ys: Outputs) -> int:
    return int(getattr(ys, "ndim", 1))


def count(ys: Outputs) -> int:
    return int(ys.shape[0]) if hasattr(ys, "shape") else len(ys)


def take(ys: Outputs, index: Any) -> Outputs:
    """The outputs at the positions ``index`` (a slice, integers, or a mask), in the same form.

    Integers and masks give copies, as in numpy: who changes what was taken does not change ``ys``.
    """
    if isinstance(ys, Tensor):
        return ys[index.to(ys.device) if isinstance(index, Tensor) else index]
    if isinstance(index, Tensor):
        index = index.cpu().numpy()
    if isinstance(ys, np.ndarray | GraphBatch | ViewBatch) or sp.issparse(ys):
        return ys[index]
    if isinstance(index, slice):
        return ys[index]
    index = np.asarray(index)
    if index.dtype == bool:
        if len(index) != len(ys):
            raise InputError(f"A mask must have one value for each of the {len(ys)} outputs. Got {len(index)}.")
        index = np.flatnonzero(index)
    return [_copied(ys[int(i)]) for i in index]


def owned(ys: Outputs) -> Outputs:
    """Outputs that nobody else can change: a copy, except of what cannot be changed."""
    if isinstance(ys, Tensor):
        return ys.detach().clone()
    if isinstance(ys, np.ndarray) or sp.issparse(ys):
        return ys.copy()
    if isinstance(ys, ViewBatch):
        return ViewBatch(*map(owned, ys.views))
    return [_copied(y) for y in ys] if isinstance(ys, list | tuple) else ys


def _copied(y: Any) -> Any:
    """A copy of rows of numbers; anything else is what it is."""
    if isinstance(y, np.ndarray):
        return y.copy()
    if isinstance(y, Tensor):
        return y.detach().clone()
    if not isinstance(y, list | tuple):
        return y
    if UNCHANGING.issuperset(map(type, y)):
        return y.copy() if isinstance(y, list) else y
    items = map(_copied, y)
    if isinstance(y, list):
        return list(items)
    return type(y)(*items) if hasattr(y, "_fields") else tuple(items)


def blocks(ys: Outputs, rows: int) -> Iterator[tuple[slice, Outputs]]:
    """Consecutive pieces of at most ``rows`` outputs, with their positions."""
    for start in range(0, count(ys), rows):
        where = slice(start, min(start + rows, count(ys)))
        yield where, take(ys, where)


def to_device(ys: Outputs, device: torch.device) -> Outputs:
    """A copy of numbers on the device, as float64; sparse matrices and objects stay as they are."""
    if isinstance(ys, np.ndarray) and np.issubdtype(ys.dtype, np.number):
        return torch.from_numpy(np.array(ys, dtype=np.float64)).to(device)
    if isinstance(ys, Tensor):
        return ys.to(device=device, dtype=torch.float64, copy=True)
    return ViewBatch(*(to_device(view, device) for view in ys.views)) if isinstance(ys, ViewBatch) else ys


def in_form_of(ys: Outputs, rows: np.ndarray) -> Outputs:  # rows: (n, d)
    """Rows of numbers as outputs of the same form and type as ``ys``."""
    if isinstance(ys, Tensor):
        return torch.from_numpy(rows).to(ys).reshape(len(rows), *ys.shape[1:])
    if sp.issparse(ys):
        return type(ys)(rows.astype(ys.dtype))
    if isinstance(ys, np.ndarray):
        return rows.astype(ys.dtype).reshape(len(rows), *ys.shape[1:])
    return [_item_like(ys[0], row) for row in rows]


def _item_like(item: Any, row: np.ndarray) -> Any:
    if isinstance(item, list | tuple):
        return type(item)(row.astype(np.asarray(item).dtype).tolist())
    return in_form_of(item[None], row[None])[0] if hasattr(item, "ndim") else type(item)(row[0])


def chosen(first: Tensor, a: Outputs, b: Outputs) -> Outputs:
    """a_i where ``first`` says so, else b_i."""
    n = count(a)
    order = torch.arange(n) + n * ~first.cpu()
    if isinstance(a, Tensor):
        return take(torch.cat([a, b]), order)
    if sp.issparse(a):
        return take(sp.vstack([a, b], format="csr"), order)
    if isinstance(a, ViewBatch):
        return ViewBatch(*(chosen(first, *pair) for pair in zip(a.views, b.views, strict=True)))
    return take(np.concatenate([a, b]) if isinstance(a, np.ndarray) else [*a, *b], order)


def distinct(ys: Outputs) -> Tensor:
    """Positions of the first occurrence of every distinct output, in order.

    >>> distinct(["b", "a", "b"]).tolist()
    [0, 1]
    """
    first: dict[Any, int] = {}
    for position, key in enumerate(keys(ys)):
        first.setdefault(key, position)
    return torch.tensor(list(first.values()), dtype=torch.long)


def positions(ys: Outputs, among: Outputs) -> Tensor:
    """Where the first equal of every output stands in another collection.

    >>> positions(["b", "a"], ["a", "b", "b"]).tolist()
    [1, 0]
    """
    if sp.issparse(ys) != sp.issparse(among):
        ys, among = _sparse(ys), _sparse(among)
    first: dict[Any, int] = {}
    for position, key in enumerate(keys(among)):
        first.setdefault(key, position)
    found = [first.get(key, -1) for key in keys(ys)]
    if -1 in found:
        raise InputError(f"The output at index {found.index(-1)} is not among the candidates.")
    return torch.tensor(found)


def _sparse(ys: Outputs) -> Outputs:
    """Rows of numbers as a sparse matrix."""
    numbers = _detached(ys).cpu().numpy() if isinstance(ys, Tensor) else None if sp.issparse(ys) else _numbers(ys)
    return ys if numbers is None or numbers.ndim != 2 else sp.csr_array(forward(numbers))


def keys(ys: Outputs) -> Iterator[Any]:
    """Something hashable for every output, equal for equal outputs: numbers are equal whatever their type.

    >>> list(keys([[1, 0]])) == list(keys(np.array([[1.0, -0.0]])))
    True
    """
    if sp.issparse(ys):
        yield from _sparse_keys(ys)
    elif isinstance(ys, ViewBatch):
        yield from zip(*map(keys, ys.views), strict=True)
    elif isinstance(ys, Tensor):
        yield from keys(_detached(ys).cpu().numpy())
    elif isinstance(ys, np.ndarray) and ys.ndim > 1 and ys.dtype.kind in "biuf":
        for _, block in blocks(ys, max(1, KEY_BLOCK // max(1, math.prod(ys.shape[1:])))):
            rows = _number_keys(block.reshape(-1), np.arange(math.prod(block.shape[:-1]) + 1) * block.shape[-1])
            yield from (_nested(rows, ys.shape[1:-1]) for _ in range(len(block)))
    elif (numbers := _exact(ys)) is not None:
        yield from keys(numbers)
    else:
        yield from map(_key, ys)


def _exact(ys: Outputs) -> np.ndarray | None:
    """Items that are rows of numbers as an array, unless one of them may not be the same number there."""
    numbers = _numbers(ys) if isinstance(ys, list | tuple) and ys else None
    if numbers is None or numbers.ndim == 1 or numbers.dtype.kind == "c":
        return None
    return numbers if (np.abs(numbers.astype(np.float64)) < EXACT).all() else None


def _sparse_keys(ys: Any) -> Iterator[Any]:
    for _, block in blocks(ys.tocsr(), SPARSE_BLOCK):
        block = block.copy()  # a slice may share its memory
        block.sum_duplicates()
        block.eliminate_zeros()
        places = block.indices.astype(np.int64)
        bounds = zip(block.indptr[:-1], block.indptr[1:], strict=True)
        for (start, stop), numbers in zip(bounds, _number_keys(block.data, block.indptr), strict=True):
            yield places[start:stop].tobytes(), numbers


def _number_keys(numbers: np.ndarray, bounds: np.ndarray) -> Iterator[Any]:
    """A key for every run of numbers: a byte each if all are small whole numbers, eight if all are exact as float64."""
    with np.errstate(invalid="ignore", over="ignore"):
        small, wide = numbers.astype(np.int8), numbers.astype(np.float64) + 0  # adding 0 turns -0.0 into 0.0
    not_small, not_exact = (
        np.concatenate([[0], np.cumsum(wrong)])[bounds].tolist()
        for wrong in (small != numbers, ~((np.abs(wide) < EXACT) & (wide == numbers)))
    )
    for i, (start, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if not_small[i] == not_small[i + 1]:
            yield 1, small[start:stop].tobytes()
        elif not_exact[i] == not_exact[i + 1]:
            yield 8, wide[start:stop].tobytes()
        else:
            yield tuple(numbers[start:stop].tolist())


def _nested(rows: Iterator[Any], shape: tuple[int, ...]) -> Any:
    """The key of an array of this many rows, from theirs."""
    return tuple(_nested(rows, shape[1:]) for _ in range(shape[0])) if shape else next(rows)


def _key(y: Any) -> Any:
    if isinstance(y, Tensor):
        y = _detached(y).cpu().numpy()
    if isinstance(y, np.ndarray) and y.ndim == 0:
        return y.item()
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuf":
        return next(keys(y[None]))
    if not isinstance(y, list | tuple | np.ndarray):
        return y
    items = tuple(map(_key, y))
    if all(isinstance(item, NUMBERS) for item in items) and all(abs(item) < EXACT for item in items):
        return next(keys(np.array(items, dtype=np.float64)[None]))
    return items
