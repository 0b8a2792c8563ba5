"""Kernels on sets and bags, given as binary or count vectors."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.graphs import starts_of
from dsokr.kernels.base import Evaluate, Kernel
from dsokr.kernels.features import Features
from dsokr.kernels.postings import Postings
from dsokr.kernels.vectors import Rows, absolute_distances, as_pair, as_rows, inner, ones
from dsokr.outputs import Outputs

WIDE = 1 << 20  # columns of sparse matrices from which on they are too many for an array with one entry a column


@dataclass(frozen=True)
class Tanimoto(Kernel):
    """Σ_t min(y_t, y'_t) / Σ_t max(y_t, y'_t): intersection over union of sets (binary) or bags (counts).

    Dense or sparse; sparse matrices hold integers and may have billions of columns (unfolded fingerprints). Two empty
    sets have similarity 1, an empty and a non-empty one 0. For count vectors this is the min-max (Ruzicka) form, which
    RDKit, too, calls the Tanimoto similarity of count fingerprints.

    >>> Tanimoto()([[1, 1, 0]], [[0, 1, 1], [1, 1, 0]])
    tensor([[0.3333, 1.0000]], dtype=torch.float64)
    """

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.against(b)(a)

    def diag(self, a: Outputs) -> Tensor:
        return ones(a)

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """Sparse anchors become an inverted index, built once."""
        if weights is not None:
            return super().against(anchors, weights)
        b = as_rows(anchors)
        b_sizes, intersect = _sizes(b), _intersect_with(b)

        def evaluate(ys: Outputs) -> Tensor:
            a = _in_form_of(b, as_pair(ys, b)[0])
            a_sizes, intersection = _sizes(a), intersect(a)
            union = a_sizes[:, None] + b_sizes - intersection
            return intersection.div_(union).masked_fill_(union == 0, 1.0)

        return evaluate

    def normalized(self) -> Kernel:
        return self


def _in_form_of(b: Rows, a: Rows) -> Rows:
    if sp.issparse(a) == sp.issparse(b):
        return a
    return torch.from_numpy(a.toarray()).to(b.device) if sp.issparse(a) else sp.csr_array(a.cpu().numpy())


def _sizes(rows: Rows) -> Tensor:  # (n,)
    if ((rows.data if sp.issparse(rows) else rows) < 0).any():
        raise InputError("Tanimoto compares sets or bags: entries must not be negative.")
    return torch.from_numpy(rows.sum(axis=1)) if sp.issparse(rows) else rows.sum(dim=1)


def _intersect_with(b: Rows) -> Callable[[Rows], Tensor]:  # a -> (n, m)
    """Σ_t min(a_it, b_jt) = Σ_t min(a_it, 1) b_jt for a binary b, and (Σ_t a_it + Σ_t b_jt − ‖a_i − b_j‖₁) / 2."""
    values = b.data if sp.issparse(b) else b
    is_binary = bool(((values == 0) | (values == 1)).all())
    if sp.issparse(b) and (b.shape[1] >= WIDE or not is_binary):
        products = Postings.of(_units(b)).products()
        return lambda a: products(_units(a))
    if is_binary:
        return lambda a: inner(_clip(a), b)
    return lambda a: (a.sum(dim=1)[:, None] + b.sum(dim=1) - absolute_distances(a, b)) / 2


def _clip(rows: Rows) -> Rows:
    """min(row, 1)."""
    if isinstance(rows, Tensor):
        return rows.clamp(max=1)
    return sp.csr_array((np.minimum(rows.data, 1), rows.indices, rows.indptr), shape=rows.shape)


def _units(rows: sp.csr_array) -> Features:
    """Counts as bits: a count c in column t becomes the items (t, 1), …, (t, c), so that products are minima."""
    counts = rows.data.astype(np.int64)
    if (counts != rows.data).any():
        raise InputError("Tanimoto on sparse rows needs integer counts. Pass other numbers as a dense array.")
    items = starts_of(counts)
    unit = np.arange(items[-1]) - np.repeat(items[:-1], counts)
    columns = np.repeat(rows.indices.astype(np.uint64), counts)
    return Features.of(items[rows.indptr], columns + unit.astype(np.uint64) * np.uint64(rows.shape[1]))
