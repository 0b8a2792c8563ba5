"""Kernels, their sums, products and normalisation, and kernels on one of several views of an output."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

import torch
from torch import Tensor

from dsokr.errors import InputError, UndefinedAt, check_fields
from dsokr.kernels.sparse import Split
from dsokr.outputs import Outputs, ViewBatch, blocks, count, take

Evaluate = Callable[[Outputs], Tensor]

ANCHOR_BLOCK = 4096  # anchors evaluated at once for a weighted combination of many
PAIR_BLOCK = 64  # side of the square blocks whose diagonals are the values of pairs


class Kernel(ABC):
    """A positive semi-definite function of two outputs, k(y, y') = ⟨ψ(y), ψ(y')⟩.

    Kernels are frozen dataclasses without state. A new kernel defines ``__call__`` and ``diag``; everything else
    follows. Values are float64, on the device of the second argument when that is a tensor. Kernels combine:
    ``k1 + k2``, ``k1 * k2``, ``0.3 * k``, ``k.normalized()``.
    """

    @abstractmethod
    def __call__(self, a: Outputs, b: Outputs) -> Tensor:  # (n, m)
        """Return all values k(a_i, b_j)."""

    @abstractmethod
    def diag(self, a: Outputs) -> Tensor:  # (n,)
        """Return the values k(a_i, a_i)."""

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """Return the functions f_i = Σ_j weights[i, j] k(·, anchors_j) as one function: ys -> (n, m).

        Without weights, f_j = k(·, anchors_j). Kernels override this to compute once what depends on the anchors
        alone; those with an explicit feature map also sum the anchors first. The default processes the anchors in
        blocks: one kernel value per output and anchor, and memory for one block.
        """
        if weights is None:
            return lambda ys: self(ys, anchors)

        def evaluate(ys: Outputs) -> Tensor:
            pieces = (
                torch.mm(k := self(ys, block), weights[:, where].to(k).T)
                for where, block in blocks(anchors, ANCHOR_BLOCK)
            )
            return reduce(torch.Tensor.add_, pieces)

        return evaluate

    def paired(self, a: Outputs, b: Outputs) -> Tensor:  # (n,)
        """Return the values k(a_i, b_i), from small square blocks."""
        if count(a) != count(b):
            raise InputError(f"Both sides must have the same number of outputs. Got {count(a)} and {count(b)}.")
        pieces = [self(block, take(b, where)).diagonal() for where, block in blocks(a, PAIR_BLOCK)]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.float64)

    def squared_distances(self, a: Outputs, b: Outputs) -> Tensor:  # (n,)
        """‖ψ(a_i) − ψ(b_i)‖², pair by pair."""
        return self.diag(a) - 2 * self.paired(a, b) + self.diag(b)

    def variance(self, ys: Outputs) -> float:
        """Σ_i ‖ψ(y_i) − mean ψ‖² = Σ_i k(y_i, y_i) − (1/n) Σ_ij k(y_i, y_j)."""
        total = self.against(ys, torch.ones(1, count(ys), dtype=torch.float64))
        parts = (self.diag(block).sum() - total(block).sum() / count(ys) for _, block in blocks(ys, ANCHOR_BLOCK))
        return sum(part.item() for part in parts)

    def split(self, ys: Outputs) -> Split | None:
        """φ(y) of every output as a sum over its places, with ⟨φ(y), φ(y')⟩ = k(y, y'); None if φ is not explicit."""
        return None

    def normalized(self) -> Kernel:
        """Return k(y, y') / √(k(y, y) k(y', y')), under which every output has length one."""
        return Normalized(self)

    def __add__(self, other: Kernel) -> Kernel:
        return Sum((*terms(self, Sum), *terms(other, Sum))) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return Product((*terms(self, Product), *terms(other, Product)))
        return Scaled(self, float(other)) if isinstance(other, int | float) else NotImplemented

    def __rmul__(self, other: float) -> Kernel:
        return self * other


def terms(kernel: Kernel, kind: type[Sum] | type[Product]) -> tuple[Any, ...]:
    """Return the terms of a sum or the factors of a product; for any other kernel, the kernel itself."""
    return kernel.kernels if isinstance(kernel, kind) else (kernel,)


@dataclass(frozen=True)
class Sum(Kernel):
    """k1(y, y') + k2(y, y') + …"""

    kernels: tuple[Kernel, ...]

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.against(b)(a)

    def diag(self, a: Outputs) -> Tensor:
        return reduce(torch.add, (k.diag(a) for k in self.kernels))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        parts = [k.against(anchors, weights) for k in self.kernels]
        # kernels on vectors and kernels on objects may return values on different devices
        return lambda ys: reduce(lambda total, part: total + part.to(total.device), (part(ys) for part in parts))

    def split(self, ys: Outputs) -> Split | None:
        found = [k.split(ys) for k in self.kernels]
        parts = [part for part in found if part is not None]
        return Split.joined(parts) if len(parts) == len(found) else None


@dataclass(frozen=True)
class Product(Kernel):
    """k1(y, y') · k2(y, y') · …"""

    kernels: tuple[Kernel, ...]

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return reduce(mul, (k(a, b) for k in self.kernels))

    def diag(self, a: Outputs) -> Tensor:
        return reduce(mul, (k.diag(a) for k in self.kernels))


@dataclass(frozen=True)
class Scaled(Kernel):
    """factor · k(y, y') with factor > 0."""

    kernel: Kernel
    factor: float

    def __post_init__(self) -> None:
        check_fields(self, factor="(0, inf)")

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.factor * self.kernel(a, b)

    def diag(self, a: Outputs) -> Tensor:
        return self.factor * self.kernel.diag(a)

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        evaluate = self.kernel.against(anchors, weights)
        return lambda ys: self.factor * evaluate(ys)

    def split(self, ys: Outputs) -> Split | None:
        split = self.kernel.split(ys)
        return split and split.scaled(math.sqrt(self.factor))


class UnitKernel(Kernel):
    """A kernel under which every output has length one: k(y, y) = 1."""

    def diag(self, a: Outputs) -> Tensor:
        return torch.ones(count(a), dtype=torch.float64, device=a.device if isinstance(a, Tensor) else None)

    def normalized(self) -> Kernel:
        return self


@dataclass(frozen=True)
class Normalized(UnitKernel):
    """k(y, y') / √(k(y, y) k(y', y')).

    >>> from dsokr.kernels import Polynomial
    >>> Polynomial(degree=2, offset=1.0).normalized()([[1.0, 0.0]], [[3.0, 0.0]])
    tensor([[0.8000]], dtype=torch.float64)
    """

    kernel: Kernel

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.against(b)(a)

    def diag(self, a: Outputs) -> Tensor:
        return torch.ones_like(self._lengths(a))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        lengths = self._lengths(anchors)
        if weights is not None:
            weights, lengths = weights / lengths.to(weights.device), torch.tensor(1.0)
        evaluate = self.kernel.against(anchors, weights)
        return lambda ys: (values := evaluate(ys) / lengths).div_(self._lengths(ys).to(values.device)[:, None])

    def split(self, ys: Outputs) -> Split | None:
        split = self.kernel.split(ys)
        return split and split.scaled(1 / self._lengths(ys).cpu().numpy())

    def _lengths(self, ys: Outputs) -> Tensor:  # ‖ψ(y)‖
        squared = self.kernel.diag(ys)
        wrong = (squared <= 0) | ~torch.isfinite(squared)
        if wrong.any():
            at = int(wrong.nonzero()[0])
            why = f"k(y, y) must be positive and finite. Got {squared[at].item():g}"
            raise UndefinedAt(at, f"{self.kernel} cannot be normalised", why)
        return squared.sqrt()


class Composed(Kernel):
    """k(φ(y), φ(y')) for a kernel k and a map φ of outputs, which subclasses define."""

    kernel: Kernel

    @abstractmethod
    def convert(self, ys: Outputs) -> Outputs:
        """Return φ(y) for every output."""

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.kernel(self.convert(a), self.convert(b))

    def diag(self, a: Outputs) -> Tensor:
        return self.kernel.diag(self.convert(a))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        evaluate = self.kernel.against(self.convert(anchors), weights)
        return lambda ys: evaluate(self.convert(ys))

    def split(self, ys: Outputs) -> Split | None:
        return self.kernel.split(self.convert(ys))


@dataclass(frozen=True)
class View(Composed):
    """k(y_i, y'_i), a kernel on the i-th view of outputs y = (y_0, y_1, …).

    Views are, say, the graph and the fingerprint of a molecule. In a matrix, view i is column i.

    >>> from dsokr.kernels import Gaussian, Linear
    >>> kernel = View(0, Linear()) * View(1, Gaussian(1.0))
    >>> kernel([([2.0], [0.0])], [([3.0], [0.0])])
    tensor([[6.]], dtype=torch.float64)
    """

    position: int
    kernel: Kernel

    def convert(self, ys: Outputs) -> Outputs:
        """Return the view at ``position`` of every output."""
        if isinstance(ys, ViewBatch) and self.position < len(ys.views):
            return ys.views[self.position]
        if isinstance(ys, Tensor) and self.position < ys.shape[1]:
            return ys[:, self.position, None]
        for index, y in enumerate(ys):
            if not isinstance(y, tuple) or len(y) <= self.position:
                got = f"{len(y)} views" if isinstance(y, tuple) else type(y).__name__
                raise InputError(
                    f"Outputs must be tuples of at least {self.position + 1} views. Got {got} at index {index}."
                )
        return [y[self.position] for y in ys]


def Views(*kernels: Kernel) -> Sum:
    """k_0(y_0, y'_0) + k_1(y_1, y'_1) + …, one kernel for each view of outputs y = (y_0, y_1, …).

    >>> from dsokr.kernels import Linear, Tanimoto
    >>> Views(0.5 * Linear(), 0.5 * Tanimoto())([([2.0], [1, 1])], [([3.0], [1, 0])])
    tensor([[3.2500]], dtype=torch.float64)
    """
    if not kernels:
        raise InputError("Views takes one kernel for each view. Got none.")
    return Sum(tuple(View(position, kernel) for position, kernel in enumerate(kernels)))
