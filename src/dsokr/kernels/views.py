"""Kernels on outputs that come as several views of the same thing: a molecule as its graph and its fingerprint."""

from dataclasses import dataclass

from torch import Tensor

from dsokr.errors import InputError
from dsokr.kernels.base import Evaluate, Kernel, Sum
from dsokr.outputs import Outputs, ViewBatch


@dataclass(frozen=True)
class View(Kernel):
    """k(y_i, y'_i), a kernel on the i-th view of outputs y = (y_0, y_1, …). Views combine like any kernels.

    >>> from dsokr.kernels import Gaussian, Linear
    >>> kernel = View(0, Linear()) * View(1, Gaussian(1.0))
    >>> kernel([([2.0], [0.0])], [([3.0], [0.0])])
    tensor([[6.]], dtype=torch.float64)
    """

    position: int
    kernel: Kernel

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.kernel(self._of(a), self._of(b))

    def diag(self, a: Outputs) -> Tensor:
        return self.kernel.diag(self._of(a))

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        evaluate = self.kernel.against(self._of(anchors), weights)
        return lambda ys: evaluate(self._of(ys))

    def _of(self, ys: Outputs) -> Outputs:
        if isinstance(ys, ViewBatch) and len(ys.views) > self.position:
            return ys.views[self.position]
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
        raise InputError("Views takes a kernel for every view. Got none.")
    return Sum(tuple(View(position, kernel) for position, kernel in enumerate(kernels)))
