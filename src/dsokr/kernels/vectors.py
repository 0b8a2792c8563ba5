"""Kernels on vectors, dense or sparse, and on sets and bags, given as binary or count vectors."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.metrics.pairwise import manhattan_distances
from torch import Tensor

from dsokr.errors import InputError, check_fields
from dsokr.graphs import starts_of
from dsokr.kernels.base import Evaluate, Kernel, Normalized, UnitKernel
from dsokr.kernels.features import Features, Postings
from dsokr.kernels.sparse import Split
from dsokr.outputs import Outputs, as_outputs

Rows = Any  # a float64 tensor or CSR matrix (n, d)

EPSILON = torch.finfo(torch.float64).eps
FAR = 1e5  # squared norms from which on ‖a‖² + ‖b‖² − 2⟨a, b⟩ loses the distances of near vectors
WIDE = 1 << 20  # columns of sparse matrices from which on they are too many for an array with one entry a column


def as_rows(ys: Outputs) -> Rows:  # (n, d)
    """Return outputs as a float64 matrix, dense or sparse. Canonical outputs are returned unchanged."""
    if isinstance(ys, Tensor) and ys.dtype == torch.float64 and ys.ndim == 2:
        return ys
    if isinstance(ys, sp.csr_array) and ys.dtype == np.float64 and ys.has_canonical_format:
        return ys
    rows = as_outputs(ys)
    if not isinstance(rows, Tensor) and not sp.issparse(rows):
        raise InputError(f"A kernel on vectors was given outputs of type {type(rows[0]).__name__}.")
    return rows


def as_pair(a: Outputs, b: Outputs) -> tuple[Rows, Rows]:
    """Return both arguments as matrices of the same width; tensors move to the second one's device."""
    a, b = as_rows(a), as_rows(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"A kernel needs vectors of one length. Got {a.shape[1]} and {b.shape[1]}.")
    return (a.to(b.device) if isinstance(a, Tensor) and isinstance(b, Tensor) else a), b


def inner(a: Rows, b: Rows) -> Tensor:  # (n, m)
    """⟨a_i, b_j⟩ for dense and sparse matrices, on the device of b."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.to(b.device) @ b.T
    products = _on_host(a) @ _on_host(b).T
    values = torch.from_numpy(products.toarray() if sp.issparse(products) else products)
    return values.to(b.device) if isinstance(b, Tensor) else values


def _on_host(rows: Rows) -> Any:
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


def squared_norms(a: Rows) -> Tensor:  # (n,)
    return torch.from_numpy(a.multiply(a).sum(axis=1)) if sp.issparse(a) else torch.linalg.vecdot(a, a)


def absolute_distances(a: Rows, b: Rows) -> Tensor:  # (n, m)
    """Σ_t |a_it − b_jt| for dense and sparse matrices."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.cdist(a, b, p=1)
    if not a.shape[0] or not b.shape[0]:  # scikit-learn refuses empty matrices
        return torch.empty(a.shape[0], b.shape[0], dtype=torch.float64)
    return torch.from_numpy(manhattan_distances(sp.csr_array(_on_host(a)), sp.csr_array(_on_host(b))))


@dataclass(frozen=True)
class Linear(Kernel):
    """⟨y, y'⟩.

    >>> Linear()([[1.0, 2.0]], [[3.0, 4.0]])
    tensor([[11.]], dtype=torch.float64)
    """

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return inner(*as_pair(a, b))

    def diag(self, a: Outputs) -> Tensor:
        return squared_norms(as_rows(a))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """With weights, the combinations of anchors are formed once: they are vectors, too."""
        rows = as_rows(anchors)
        vectors = rows if weights is None else inner(weights, rows.T)
        return lambda ys: self(ys, vectors)

    def split(self, ys: Outputs) -> Split:
        """The places are the columns; of sparse rows, those that are stored."""
        rows = _on_host(as_rows(ys))
        if sp.issparse(rows):
            starts, columns, values = rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data
        else:
            n, d = rows.shape
            starts, columns, values = d * np.arange(n + 1), np.tile(np.arange(d), n), rows.ravel()
        return Split(starts, columns, Features(np.arange(len(values) + 1), columns.astype(np.uint64), values))


@dataclass(frozen=True)
class Cosine(Normalized):
    """⟨y, y'⟩ / (‖y‖ ‖y'‖); undefined for the zero vector.

    >>> Cosine()([[2.0, 0.0]], [[3.0, 4.0]])
    tensor([[0.6000]], dtype=torch.float64)
    """

    kernel: Kernel = field(default=Linear(), init=False, repr=False)


@dataclass(frozen=True)
class Gaussian(UnitKernel):
    """exp(−γ ‖y − y'‖²).

    >>> Gaussian(gamma=0.5)([[0.0]], [[0.0], [2.0]])
    tensor([[1.0000, 0.1353]], dtype=torch.float64)
    """

    gamma: float

    def __post_init__(self) -> None:
        check_fields(self, gamma="(0, inf)")

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:  # −‖a − b‖² / 2 = ⟨a, b⟩ − (‖a‖² + ‖b‖²) / 2
        a, b = as_pair(a, b)
        are_dense = isinstance(a, Tensor) and isinstance(b, Tensor)
        if are_dense and len(b):  # far from zero, distances would lose precision
            a, b = a - (centre := b.mean(dim=0)), b - centre
        a, b = math.sqrt(2 * self.gamma) * a, math.sqrt(2 * self.gamma) * b
        of_a, of_b = squared_norms(a), squared_norms(b)
        if are_dense and ((of_a > FAR).any() or (of_b > FAR).any()):
            apart = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
            return apart.square_().mul_(-0.5).exp_()
        half = 0.5 - EPSILON * (2 + math.sqrt(a.shape[1]))  # below ½, so that rounding does not separate equal outputs
        return inner(a, b).sub_(half * of_a[:, None]).sub_(half * of_b).clamp_(max=0).exp_()


@dataclass(frozen=True)
class Laplacian(UnitKernel):
    """exp(−γ ‖y − y'‖₁).

    >>> Laplacian(gamma=1.0)([[0.0, 0.0]], [[1.0, -1.0]])
    tensor([[0.1353]], dtype=torch.float64)
    """

    gamma: float

    def __post_init__(self) -> None:
        check_fields(self, gamma="(0, inf)")

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return absolute_distances(*as_pair(a, b)).mul_(-self.gamma).exp_()


@dataclass(frozen=True)
class Polynomial(Kernel):
    """(⟨y, y'⟩ + offset)^degree.

    >>> Polynomial(degree=2, offset=1.0)([[1.0, 1.0]], [[2.0, 0.0]])
    tensor([[9.]], dtype=torch.float64)
    """

    degree: int
    offset: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return inner(*as_pair(a, b)).add_(self.offset).pow_(self.degree)

    def diag(self, a: Outputs) -> Tensor:
        return squared_norms(as_rows(a)).add_(self.offset).pow_(self.degree)


class SetKernel(UnitKernel):
    """A similarity of sets or bags that depends on their sizes and that of their intersection, Σ_t min(y_t, y'_t)."""

    @abstractmethod
    def _compare(self, common: Tensor, total: Tensor) -> Tensor:
        """From |a ∩ b| and |a| + |b| > 0."""

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.against(b)(a)

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """Sparse anchors become an inverted index, built once."""
        if weights is not None:
            return super().against(anchors, weights)
        b = as_rows(anchors)
        b_sizes, intersect = _sizes(b), _intersect_with(b)

        def evaluate(ys: Outputs) -> Tensor:
            a = _in_form_of(b, as_pair(ys, b)[0])
            total, common = _sizes(a)[:, None] + b_sizes, intersect(a)
            return self._compare(common, total).masked_fill_(total == 0, 1.0)

        return evaluate


@dataclass(frozen=True)
class Dice(SetKernel):
    """2 |a ∩ b| / (|a| + |b|): the F1 of one set as a prediction of the other; also of bags.

    Positive definite, as |a ∩ b| and 1 / (|a| + |b|) are. With it, ⟨h(x), ψ(y)⟩ estimates the expected F1 of the answer
    y. Two empty sets have similarity 1.

    >>> Dice()([[1, 1, 0]], [[0, 1, 1], [1, 1, 1]])
    tensor([[0.5000, 0.8000]], dtype=torch.float64)
    """

    def _compare(self, common: Tensor, total: Tensor) -> Tensor:
        return common.mul_(2).div_(total)


@dataclass(frozen=True)
class Tanimoto(SetKernel):
    """Σ_t min(y_t, y'_t) / Σ_t max(y_t, y'_t): intersection over union of sets (binary) or bags (counts).

    Dense or sparse; sparse matrices hold integers and may have billions of columns (unfolded fingerprints). Two empty
    sets have similarity 1, an empty and a non-empty one 0. For count vectors this is the min-max (Ruzicka) form, which
    RDKit, too, calls the Tanimoto similarity of count fingerprints.

    >>> Tanimoto()([[1, 1, 0]], [[0, 1, 1], [1, 1, 0]])
    tensor([[0.3333, 1.0000]], dtype=torch.float64)
    """

    def _compare(self, common: Tensor, total: Tensor) -> Tensor:
        return common / (total - common)


def _in_form_of(b: Rows, a: Rows) -> Rows:
    if sp.issparse(a) == sp.issparse(b):
        return a
    return torch.from_numpy(a.toarray()).to(b.device) if sp.issparse(a) else sp.csr_array(a.cpu().numpy())


def _sizes(rows: Rows) -> Tensor:  # (n,)
    if ((rows.data if sp.issparse(rows) else rows) < 0).any():
        raise InputError("Sets and bags are compared: entries must not be negative.")
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
