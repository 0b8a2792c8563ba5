"""What a kernel is, and how kernels combine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

import torch
from torch import Tensor

from dsokr.errors import InputError, UndefinedAt
from dsokr.outputs import Outputs, blocks, count, take

Evaluate = Callable[[Outputs], Tensor]

ANCHOR_BLOCK = 4096  # anchors evaluated at once when a combination of many is asked for
PAIR_BLOCK = 64  # side of the square blocks whose diagonal is used when values are needed pair by pair


class Kernel(ABC):
    """A positive semi-definite function of two outputs, k(y, y') = ⟨ψ(y), ψ(y')⟩.

    Kernels are frozen dataclasses: nothing is fitted and nothing is remembered. A new kernel defines ``__call__`` and
    ``diag``; everything else follows. Values are float64, on the device of the second argument when that is a tensor.
    Kernels combine: ``k1 + k2``, ``k1 * k2``, ``0.3 * k``, ``k.normalized()``.
    """

    @abstractmethod
    def __call__(self, a: Outputs, b: Outputs) -> Tensor:  # (n, m)
        """All values k(a_i, b_j)."""

    @abstractmethod
    def diag(self, a: Outputs) -> Tensor:  # (n,)
        """The values k(a_i, a_i)."""

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """The functions f_i = Σ_j weights[i, j] k(·, anchors_j), ready to be evaluated: ys -> (n, m).

        Without weights, f_j = k(·, anchors_j). What depends on the anchors alone is computed here, once. Kernels with
        an explicit feature map override this to add the anchors up before any output is seen. Otherwise the anchors
        are gone through in blocks: the cost is one kernel value per output and anchor, the memory a block of them.
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
        """The values k(a_i, b_i), from small square blocks."""
        if count(a) != count(b):
            raise InputError(f"Pairs need as many outputs on both sides. Got {count(a)} and {count(b)}.")
        pieces = [self(block, take(b, where)).diagonal() for where, block in blocks(a, PAIR_BLOCK)]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.float64)

    def normalized(self) -> Kernel:
        """k(y, y') / √(k(y, y) k(y', y')), so that every output has length one."""
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
    """The kernels that a sum or product is made of; of any other kernel, itself."""
    return kernel.kernels if isinstance(kernel, kind) else (kernel,)


@dataclass(frozen=True)
class Sum(Kernel):
    """k1(y, y') + k2(y, y') + …"""

    kernels: tuple[Kernel, ...]

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return reduce(torch.add, (k(a, b) for k in self.kernels))

    def diag(self, a: Outputs) -> Tensor:
        return reduce(torch.add, (k.diag(a) for k in self.kernels))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        parts = [k.against(anchors, weights) for k in self.kernels]
        # kernels on numbers and kernels on objects may answer on different devices
        return lambda ys: reduce(lambda total, part: total + part.to(total.device), (part(ys) for part in parts))


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
        if not self.factor > 0:
            raise InputError(f"A kernel stays a kernel only when scaled by a positive number. Got {self.factor}.")

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.factor * self.kernel(a, b)

    def diag(self, a: Outputs) -> Tensor:
        return self.factor * self.kernel.diag(a)

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        evaluate = self.kernel.against(anchors, weights)
        return lambda ys: self.factor * evaluate(ys)


@dataclass(frozen=True)
class Normalized(Kernel):
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
        if weights is None:
            evaluate = self.kernel.against(anchors)
            return lambda ys: (evaluate(ys) / lengths).div_(self._lengths(ys).to(lengths.device)[:, None])
        evaluate = self.kernel.against(anchors, weights / lengths.to(weights.device))
        return lambda ys: (values := evaluate(ys)) / self._lengths(ys).to(values.device)[:, None]

    def normalized(self) -> Kernel:
        return self

    def _lengths(self, ys: Outputs) -> Tensor:  # ‖ψ(y)‖
        squared = self.kernel.diag(ys)
        wrong = (squared <= 0) | ~torch.isfinite(squared)
        if wrong.any():
            at = int(wrong.nonzero()[0])
            why = f"k(y, y) must be positive. Got {squared[at].item():g} for that output"
            raise UndefinedAt(at, f"{self.kernel} cannot be normalised", why)
        return squared.sqrt()
