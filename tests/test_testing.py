"""check_kernel must catch what is wrong with a kernel."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dsokr.errors import KernelError
from dsokr.graphs import GraphBatch
from dsokr.kernels import FeatureKernel, Features, Kernel, Linear
from dsokr.testing import check_kernel
from implementations import graphs

YS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@dataclass(frozen=True)
class Indefinite(Kernel):
    def __call__(self, a, b):
        return -torch.cdist(a, b)

    def diag(self, a):
        return torch.zeros(len(a), dtype=torch.float64)


@dataclass(frozen=True)
class Asymmetric(Linear):
    def __call__(self, a, b):
        return super().__call__(a, b) + torch.as_tensor(a)[:, :1]


@dataclass(frozen=True)
class WrongDiagonal(Linear):
    def diag(self, a):
        return super().diag(a) + 1


@dataclass(frozen=True)
class BatchDependent(Linear):
    def __call__(self, a, b):
        return super().__call__(a, b) * len(a) * len(b)

    def diag(self, a):
        return super().diag(a) * len(a) ** 2


@dataclass(frozen=True)
class WrongCombination(Linear):
    def against(self, anchors, weights=None):
        return super().against(anchors, None if weights is None else 2 * weights)


@dataclass(frozen=True)
class SinglePrecision(Linear):
    def __call__(self, a, b):
        return super().__call__(a, b).float()


@dataclass
class Mutable(Kernel):
    def __call__(self, a, b):
        return Linear()(a, b)

    def diag(self, a):
        return Linear().diag(a)


class FirstAtom(FeatureKernel):
    """Looks at node 0 only, which is no property of a graph."""

    def features(self, ys):
        batch = GraphBatch.of(ys)
        return Features.of(np.arange(len(batch) + 1), batch.labels[batch.offsets[:-1]])


def test_catches_dependence_on_the_numbering_of_nodes():
    with pytest.raises(KernelError, match="depends on how the nodes of a graph are numbered"):
        check_kernel(FirstAtom(), graphs(20))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Indefinite(), r"not positive semi-definite: the smallest eigenvalue of a Gram matrix is -\d"),
        (Asymmetric(), "not symmetric"),
        (WrongDiagonal(), "diag that is not"),
        (BatchDependent(), "evaluated together"),
        (WrongCombination(), r"against\(anchors, weights\)"),
        (SinglePrecision(), "float64"),
        (Mutable(), "hashable"),
    ],
    ids=lambda p: type(p).__name__,
)
def test_catches(kernel, message):
    with pytest.raises(KernelError, match=message):
        check_kernel(kernel, YS)
