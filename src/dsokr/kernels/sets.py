"""Kernels on sets and bags, given as binary or count vectors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.kernels.base import Evaluate, Kernel
from dsokr.kernels.features import Features
from dsokr.kernels.postings import Postings
from dsokr.kernels.vectors import Rows, absolute_distances, as_pair, as_rows, inner
from dsokr.outputs import Outputs
from dsokr.graphs import starts_of

WIDE = 1 << 20  # columns from which on a sparse matrix is not turned: that would take a list of all of them


@dataclass(frozen=True)
class Tanimoto(Kernel):
    """Σ_t min(y_t, y'_t) / Σ_t max(y_t, y'_t): intersection over union of sets (binary) or bags (counts).

    Dense and sparse; sparse matrices may have billions of columns (unfolded fingerprints). Two empty sets have
    similarity 1, an empty and a non-empty one 0. For count vectors this is the min-max (Ruzicka) form, which is also
    what RDKit calls the Tanimoto similarity of count fingerprints.

    >>> Tanimoto()([[1, 1, 0]], [[0, 1, 1], [1, 1, 0]])
    tensor([[0.3333, 1.0000]], dtype=torch.float64)
    """

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.against(b)(a)

    def diag(self, a: Outputs) -> Tensor:
        return torch.ones_like(_sizes(_bags(a)))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """Bags that are sparse are turned into lists of who has an item, once."""
        if weights is not None:
            return super().against(anchors, weights)
        b = _bags(anchors)
        b_sizes, shared = _sizes(b), _shared_with(b)

        def evaluate(ys: Outputs) -> Tensor:
            a = as_pair(_bags(ys), b)[0]
            both = shared(a)
            union = _sizes(a)[:, None] + b_sizes - both
            return both.div_(union).masked_fill_(union == 0, 1.0)

        return evaluate

    def normalized(self) -> Kernel:
        return self


def _bags(ys: Outputs) -> Rows:
    rows = as_rows(ys)
    if rows.shape[0] and not rows.shape[1]:
        raise InputError(f"Tanimoto compares sets or bags. Got {rows.shape[0]} outputs without any number.")
    return rows


def _sizes(rows: Rows) -> Tensor:  # (n,)
    entries = rows.data if sp.issparse(rows) else rows
    smallest = entries.min() if math.prod(entries.shape) else 0.0
    if smallest < 0:
        raise InputError(f"Tanimoto compares sets or bags: entries must not be negative. Got {float(smallest):g}.")
    return torch.from_numpy(np.asarray(rows.sum(axis=1)).ravel()) if sp.issparse(rows) else rows.sum(dim=1)


def _shared_with(b: Rows) -> Callable[[Rows], Tensor]:  # a -> (n, m)
    """Σ_t min(a_it, b_jt). Bits are a matrix product; counts are too, once written as one bit per unit."""
    if sp.issparse(b) and (b.shape[1] >= WIDE or not _is_binary(b.data)):
        products = Postings.of(_units(b)).products()
        return lambda a: products(_units(a))
    return lambda a: _shared(*as_pair(a, b))


def _shared(a: Rows, b: Rows) -> Tensor:  # (n, m)
    if sp.issparse(a):
        return inner(a, b) if _is_binary(a.data) and _is_binary(b.data) else _shared_with(a)(b).T.contiguous()
    if _is_binary(a) and _is_binary(b):
        return inner(a, b)
    return (a.sum(dim=1)[:, None] + b.sum(dim=1) - absolute_distances(a, b)) / 2


def _is_binary(values: Any) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _units(rows: Any) -> Features:
    """Counts as bits: an entry c of column t becomes the items (t, 1), …, (t, c), so that products are minima."""
    counts = rows.data.astype(np.int64)
    if (counts != rows.data).any():
        raise InputError("Tanimoto on sparse rows needs integer counts. Pass other numbers as a dense array.")
    items = starts_of(counts)
    unit = np.arange(items[-1]) - np.repeat(items[:-1], counts)
    columns = np.repeat(rows.indices.astype(np.uint64), counts)
    return Features.of(items[rows.indptr], columns + unit.astype(np.uint64) * np.uint64(rows.shape[1]))
