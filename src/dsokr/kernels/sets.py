"""Kernels on sets and bags, given as binary or count vectors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.kernels.base import Kernel
from dsokr.kernels.vectors import Rows, absolute_distances, as_pair, as_rows, inner
from dsokr.outputs import Outputs


@dataclass(frozen=True)
class Tanimoto(Kernel):
    """Σ_t min(y_t, y'_t) / Σ_t max(y_t, y'_t): intersection over union of sets (binary) or bags (counts).

    Dense and sparse. Two empty sets have similarity 1, an empty and a non-empty one 0. For count vectors this is the
    min-max (Ruzicka) form, which is also what RDKit calls the Tanimoto similarity of count fingerprints.

    >>> Tanimoto()([[1, 1, 0]], [[0, 1, 1], [1, 1, 0]])
    tensor([[0.3333, 1.0000]], dtype=torch.float64)
    """

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        a, b = as_pair(a, b)
        sizes = _sizes(a)[:, None] + _sizes(b)
        shared = _shared(a, b)
        union = sizes - shared
        return shared.div_(union).masked_fill_(union == 0, 1.0)

    def diag(self, a: Outputs) -> Tensor:
        return torch.ones_like(_sizes(as_rows(a)))

    def normalized(self) -> Kernel:
        return self


def _sizes(rows: Rows) -> Tensor:  # (n,)
    smallest = rows.data.min(initial=0.0) if sp.issparse(rows) else rows.min()
    if smallest < 0:
        raise InputError(f"Tanimoto compares sets or bags: entries must not be negative. Got {float(smallest):g}.")
    return torch.from_numpy(np.asarray(rows.sum(axis=1)).ravel()) if sp.issparse(rows) else rows.sum(dim=1)


def _shared(a: Rows, b: Rows) -> Tensor:  # (n, m)
    """Σ_t min(a_it, b_jt). Bits are a matrix product; counts are too, once written as one bit per unit."""
    if sp.issparse(a):
        if not (_is_binary(a.data) and _is_binary(b.data)):
            a, b = _unary(a), _unary(b)
            width = max(a.shape[1], b.shape[1])
            a, b = _widened(a, width), _widened(b, width)
        return inner(a, b)
    if _is_binary(a) and _is_binary(b):
        return inner(a, b)
    return (a.sum(dim=1)[:, None] + b.sum(dim=1) - absolute_distances(a, b)) / 2


def _is_binary(values: Any) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _unary(rows: Any) -> Any:
    """Counts as bits: an entry c of column t becomes ones in columns (t, 1), …, (t, c), so that products are minima."""
    counts = rows.data.astype(np.int64)
    if (counts != rows.data).any():
        raise InputError("Tanimoto on sparse rows needs integer counts. Pass other numbers as a dense array.")
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    unit = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = np.repeat(rows.indices.astype(np.int64), counts) + unit * rows.shape[1]
    shape = (rows.shape[0], rows.shape[1] * int(max(1, counts.max(initial=1))))
    return sp.csr_array((np.ones(len(columns)), (np.repeat(owner, counts), columns)), shape=shape)


def _widened(rows: Any, width: int) -> Any:
    return sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], width))
