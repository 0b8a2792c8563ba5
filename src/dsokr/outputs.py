"""Collections of outputs, whatever they are: count them, take some, go through them in blocks.

Outputs come as the rows of a tensor, of an array or of a scipy-sparse matrix, as the graphs of a batch, or as the items
of a list. Everything after this module treats them alike and gives them back in the form in which they came. Outputs
with several views are tuples in a list, or a :class:`ViewBatch`.
"""

from __future__ import annotations

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
    if sp.issparse(ys):
        ys = ys.tocsr()
    elif not isinstance(ys, Tensor | np.ndarray | GraphBatch | list | tuple):
        # __array__ marks what numpy can read (a pandas Series, say); anything else is iterated
        ys = np.asarray(ys) if hasattr(ys, "__array__") else list(ys)
    if ndim(ys) == 0:
        raise InputError(f"{name} must be a collection of outputs. Got a single number.")
    if count(ys) == 0:
        raise InputError(f"{name} is empty: at least one output is needed.")
    numbers = ys.data if sp.issparse(ys) else ys if isinstance(ys, Tensor | np.ndarray) else _numbers(ys)
    if isinstance(numbers, np.ndarray) and numbers.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} must be real.")
    if not _all_finite(numbers):
        raise InputError(f"{name} must be finite. Got NaN or inf in row {_first_not_finite(ys)}.")
    return ys


def _all_finite(numbers: Tensor | np.ndarray | None) -> bool:
    if isinstance(numbers, Tensor):
        return bool(torch.isfinite(numbers).all())
    return numbers is None or numbers.dtype.kind != "f" or bool(np.isfinite(numbers).all())


def _numbers(items: Sequence[Any]) -> np.ndarray | None:
    """The items as an array of numbers, or None if they are something else: strings, graphs, views, ragged rows."""
    if not isinstance(items[0], int | float | np.number | np.ndarray | list | tuple | Tensor):
        return None
    try:
        array = np.asarray([np.asarray(item) for item in items])
    except (ValueError, TypeError):
        return None  # rows of different lengths or kinds: for the kernel to take or to refuse
    return array if array.dtype.kind in "fiubc" else None


def _first_not_finite(ys: Outputs) -> int:
    rows = ys.toarray() if sp.issparse(ys) else ys.cpu().numpy() if isinstance(ys, Tensor) else np.asarray(ys)
    return int(np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1))[0])


def ndim(ys: Outputs) -> int:
    return int(getattr(ys, "ndim", 1))


def count(ys: Outputs) -> int:
    return int(ys.shape[0]) if hasattr(ys, "shape") else len(ys)


def take(ys: Outputs, index: Any) -> Outputs:
    """The outputs at the positions ``index`` (a slice, integers, or a mask), in the same form."""
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
    return [ys[int(i)] for i in index]


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
    """Where the first equal of every output stands in another collection, of the same form.

    >>> positions(["b", "a"], ["a", "b", "b"]).tolist()
    [1, 0]
    """
    first: dict[Any, int] = {}
    for position, key in enumerate(keys(among)):
        first.setdefault(key, position)
    found = [first.get(key, -1) for key in keys(ys)]
    if -1 in found:
        raise InputError(f"The output at index {found.index(-1)} is not among the candidates.")
    return torch.tensor(found)


def keys(ys: Outputs) -> Iterator[Any]:
    """Something hashable for every output, equal for equal outputs."""
    if sp.issparse(ys):
        ys = ys.sorted_indices()
        for start, stop in zip(ys.indptr[:-1], ys.indptr[1:], strict=True):
            yield ys.indices[start:stop].tobytes(), ys.data[start:stop].tobytes()
    elif isinstance(ys, ViewBatch):
        yield from zip(*map(keys, ys.views), strict=True)
    else:
        for y in ys.detach().cpu().numpy() if isinstance(ys, Tensor) else ys:
            yield _key(y)


def _key(y: Any) -> Any:
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if isinstance(y, np.ndarray) and y.dtype != object:
        return y.shape, (y + 0 if y.dtype.kind == "f" else y).tobytes()  # adding 0 turns -0.0 into 0.0
    return tuple(map(_key, y)) if isinstance(y, list | tuple | np.ndarray) else y
