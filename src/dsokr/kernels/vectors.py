"""Kernels on vectors: rows of tensors, arrays, lists of numbers and, where noted, scipy-sparse matrices."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.metrics.pairwise import manhattan_distances
from torch import Tensor

from dsokr.errors import InputError
from dsokr.kernels.base import Evaluate, Kernel
from dsokr.outputs import Outputs, as_outputs, count

Rows = Any  # Tensor (n, d) or a sparse CSR matrix of the same shape

EPSILON = torch.finfo(torch.float64).eps
SOME = 128  # rows that the middle of many is taken from
FAR = 1e5  # γ ‖y‖² from which on products lose too much: the error of kernel values is about 1e-9 there
NOTHING = 750.0  # exp(-750) is 0
CHUNK = 2**22  # numbers of differences held at once


def as_rows(ys: Outputs) -> Rows:  # (n, d)
    """Return outputs as a float64 matrix, dense or sparse: canonical ones as they are, others through the door."""
    if isinstance(ys, Tensor) and ys.dtype == torch.float64 and ys.ndim == 2:
        return ys
    if isinstance(ys, sp.csr_array) and ys.dtype == np.float64 and ys.has_canonical_format:
        return ys
    rows = as_outputs(ys)
    if not isinstance(rows, Tensor) and not sp.issparse(rows):
        raise InputError(f"A kernel on vectors was given outputs of type {type(rows[0]).__name__}.")
    return rows


def as_pair(a: Outputs, b: Outputs) -> tuple[Rows, Rows]:
    """Both arguments as matrices, on the second one's device, sparse if either is. No rows at all fit any others."""
    a, b = as_rows(a), as_rows(b)
    a, b = _fitting(a, b), _fitting(b, a)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"A kernel needs vectors of one length. Got {a.shape[1]} and {b.shape[1]}.")
    if sp.issparse(a) or sp.issparse(b):
        return _sparse(a), _sparse(b)
    return a.to(b.device), b


def _fitting(rows: Rows, others: Rows) -> Rows:
    if rows.shape[0] or rows.shape[1] == others.shape[1]:
        return rows
    empty = 0, others.shape[1]
    return sp.csr_array(empty, dtype=np.float64) if sp.issparse(rows) else rows.new_empty(empty)


def _sparse(rows: Rows) -> Any:
    return rows if sp.issparse(rows) else sp.csr_array(rows.cpu().numpy())


def inner(a: Rows, b: Rows) -> Tensor:  # (n, m)
    """⟨a_i, b_j⟩ for two dense or two sparse matrices."""
    return torch.from_numpy((a @ b.T).toarray()) if sp.issparse(a) else a @ b.T


def _times(rows: Rows, vectors: Tensor) -> Tensor:  # (n, m)
    """⟨rows_i, vectors_j⟩ with dense vectors."""
    if sp.issparse(rows):
        return torch.from_numpy(np.asarray(rows @ vectors.cpu().numpy().T)).to(vectors.device)
    return inner(*as_pair(rows, vectors))


def squared_norms(a: Rows) -> Tensor:  # (n,)
    if sp.issparse(a):
        return torch.from_numpy(np.asarray(a.multiply(a).sum(axis=1)).ravel())
    return torch.linalg.vecdot(a, a)


def _picked(rows: Rows, at: Tensor) -> Rows:
    return rows[at.numpy()] if sp.issparse(rows) else rows[at]


def combine(weights: Tensor, rows: Rows) -> Tensor:  # (m, d)
    """weights @ rows, dense."""
    if sp.issparse(rows):
        return torch.from_numpy(np.asarray(weights.cpu().numpy() @ rows))
    return weights.to(rows.device) @ rows


@dataclass(frozen=True)
class Linear(Kernel):
    """⟨y, y'⟩. Dense and sparse.

    >>> Linear()([[1.0, 2.0]], [[3.0, 4.0]])
    tensor([[11.]], dtype=torch.float64)
    """

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return inner(*as_pair(a, b))

    def diag(self, a: Outputs) -> Tensor:
        return squared_norms(as_rows(a))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """A combination of anchors is a vector again: it is formed once, by one product with the weights."""
        rows = as_rows(anchors)
        if weights is None:
            return lambda ys: self(ys, rows)
        vectors = combine(weights, rows)  # dense, also when the anchors are sparse
        return lambda ys: _times(as_rows(ys), vectors)


@dataclass(frozen=True)
class Cosine(Kernel):
    """⟨y, y'⟩ / (‖y‖ ‖y'‖). Dense and sparse; undefined for the zero vector.

    >>> Cosine()([[2.0, 0.0]], [[3.0, 4.0]])
    tensor([[0.6000]], dtype=torch.float64)
    """

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return Linear().normalized()(a, b)

    def diag(self, a: Outputs) -> Tensor:
        return Linear().normalized().diag(a)

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        return Linear().normalized().against(anchors, weights)

    def normalized(self) -> Kernel:
        return self


@dataclass(frozen=True)
class Gaussian(Kernel):
    """exp(−γ ‖y − y'‖²). Dense and sparse.

    >>> Gaussian(gamma=0.5)([[0.0]], [[0.0], [2.0]])
    tensor([[1.0000, 0.1353]], dtype=torch.float64)
    """

    gamma: float

    def __post_init__(self) -> None:
        _require_positive(self, "gamma", self.gamma)

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.against(b)(a)

    def diag(self, a: Outputs) -> Tensor:
        return _ones(a)

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        if weights is not None:
            return super().against(anchors, weights)
        b = as_rows(anchors)
        centre = None if sp.issparse(b) or not len(b) else _middle(b)  # far from 0 distances would drown in rounding
        b = b if centre is None else b - centre
        scale = self.gamma * (1 - _slack(b))  # so that equal outputs come out above 0, and then are 0 exactly
        b_part = scale * squared_norms(b)

        def evaluate(ys: Outputs) -> Tensor:  # −γ ‖a − b‖² = 2γ ⟨a, b⟩ − γ ‖a‖² − γ ‖b‖²
            rows = as_rows(ys)
            if centre is not None and rows.shape[1] == b.shape[1]:
                rows = (torch.from_numpy(rows.toarray()) if sp.issparse(rows) else rows).to(centre.device) - centre
            rows, columns = as_pair(rows, b)
            a_part = scale * squared_norms(rows)
            exponent = inner(rows, columns).mul_(2 * self.gamma).sub_(a_part[:, None]).sub_(b_part)
            for i, j in _lost(exponent, a_part, b_part, _terms(rows) + _terms(columns)):
                exponent[i, j] = -self.gamma * squared_norms(_picked(rows, i) - _picked(columns, j))
            return exponent.clamp_(max=0).exp_()

        return evaluate

    def normalized(self) -> Kernel:
        return self


def _middle(rows: Tensor) -> Tensor:  # (d,)
    """Where most of the rows are: the medians of some of them, which a few outliers do not move."""
    some = rows[:: max(1, len(rows) // SOME)]
    return some.sort(dim=0).values[len(some) // 2]


def _slack(rows: Rows) -> float:
    """The relative rounding error of a sum of squares over a row, generously."""
    return EPSILON * (4 + math.sqrt(_terms(rows)))


def _terms(rows: Rows) -> int:
    """The numbers held of a row, at most."""
    return int(np.diff(rows.indptr).max(initial=0)) if sp.issparse(rows) else rows.shape[1]


def _lost(exponent: Tensor, a_part: Tensor, b_part: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs, a part of them at a time, that are close but so far out that their distance is lost in rounding."""
    far_a, far_b = ~(a_part <= FAR), ~(b_part <= FAR)
    if far_a.any() or far_b.any():
        sure = exponent < -NOTHING - 1e-12 * (a_part[:, None] + b_part)
        for pairs in ((far_a[:, None] | far_b) & ~sure).nonzero().split(max(1, CHUNK // width)):
            yield pairs[:, 0], pairs[:, 1]


@dataclass(frozen=True)
class Laplacian(Kernel):
    """exp(−γ ‖y − y'‖₁). Dense and sparse.

    >>> Laplacian(gamma=1.0)([[0.0, 0.0]], [[1.0, -1.0]])
    tensor([[0.1353]], dtype=torch.float64)
    """

    gamma: float

    def __post_init__(self) -> None:
        _require_positive(self, "gamma", self.gamma)

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        a, b = as_pair(a, b)
        return absolute_distances(a, b).mul_(-self.gamma).exp_()

    def diag(self, a: Outputs) -> Tensor:
        return _ones(a)

    def normalized(self) -> Kernel:
        return self


@dataclass(frozen=True)
class Polynomial(Kernel):
    """(⟨y, y'⟩ + offset)^degree. Dense and sparse.

    >>> Polynomial(degree=2, offset=1.0)([[1.0, 1.0]], [[2.0, 0.0]])
    tensor([[9.]], dtype=torch.float64)
    """

    degree: int
    offset: float = 1.0

    def __post_init__(self) -> None:
        if int(self.degree) != self.degree or self.degree < 1:
            raise InputError(f"Polynomial.degree must be a positive integer. Got {self.degree}.")
        if not self.offset >= 0:
            raise InputError(f"Polynomial.offset must not be negative. Got {self.offset}.")

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return inner(*as_pair(a, b)).add_(self.offset).pow_(self.degree)

    def diag(self, a: Outputs) -> Tensor:
        return squared_norms(as_rows(a)).add_(self.offset).pow_(self.degree)


def absolute_distances(a: Rows, b: Rows) -> Tensor:  # (n, m)
    """Σ_t |a_it − b_jt| for two dense or two sparse matrices."""
    if not sp.issparse(a):
        return torch.cdist(a, b, p=1)
    if not (a.shape[0] and b.shape[0]):  # which scikit-learn refuses
        return torch.empty(a.shape[0], b.shape[0], dtype=torch.float64)
    return torch.from_numpy(manhattan_distances(a, b))


def _ones(ys: Outputs) -> Tensor:
    device = ys.device if isinstance(ys, Tensor) else None
    return torch.ones(count(ys), dtype=torch.float64, device=device)


def _require_positive(owner: Kernel, name: str, value: float) -> None:
    if not value > 0:
        raise InputError(f"{type(owner).__name__}.{name} must be positive. Got {value}.")
