"""The checks must catch what is wrong with a kernel or a regressor."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from dsokr.errors import InputError, KernelError
from dsokr.graphs import GraphBatch
from dsokr.kernels import FeatureKernel, Features, Kernel, Linear
from dsokr.regressors import Fitted, Regressor
from dsokr.testing import check_kernel, check_regressor
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


@dataclass(frozen=True)
class Smoother(Regressor):
    """g(x) = Σ_i k(x, x_i) ψ̃(y_i) / Σ_i k(x, x_i): nothing is wrong with it."""

    def fit(self, X, targets, validation=None, *, seed, device, score=None):
        return self.restore({"X": X, "z": targets.coordinates, "s": targets.weighted()}, None, 0, device)

    def restore(self, state, folder, p, device):
        return Smooth(state)


@dataclass
class Smooth(Fitted):
    learned: dict[str, Any]

    def predict(self, X):
        K = torch.exp(-5 * torch.cdist(X, self.learned["X"]).square()) * self.learned["s"]
        return K / K.sum(dim=1, keepdim=True) @ self.learned["z"]

    def state(self):
        return self.learned


class Rounded(Smoother):
    def restore(self, *args):
        fitted = super().restore(*args)
        fitted.predict = lambda X: Smooth.predict(fitted, X).float()
        return fitted


class Unseeded(Smoother):
    def fit(self, X, targets, *args, **options):
        noisy = targets.coordinates + 1e-3 * np.random.default_rng().random()
        return super().fit(X, targets._replace(coordinates=noisy), *args, **options)


class Centred(Smoother):
    def restore(self, *args):
        fitted = super().restore(*args)
        fitted.predict = lambda X: Smooth.predict(fitted, X - X.mean(dim=0))
        return fitted


class Forgetful(Smoother):
    """Its state lacks what it learned."""

    def fit(self, *args, **options):
        fitted = super().fit(*args, **options)
        fitted.state = lambda: fitted.learned | {"z": torch.zeros_like(fitted.learned["z"])}
        return fitted


@dataclass(frozen=True)
class Keeping(Forgetful):
    """Keeps what it learned for itself, where no saved model has it."""

    kept: dict[str, Any] = field(default_factory=dict)

    def fit(self, *args, **options):
        fitted = super().fit(*args, **options)
        self.kept.update(fitted.learned)
        return fitted

    def restore(self, state, folder, p, device):
        return Smooth(state | self.kept)


class Unsaveable(Smoother):
    def fit(self, *args, **options):
        fitted = super().fit(*args, **options)
        fitted.learned["function"] = torch.exp
        return fitted


class Peeking(Smoother):
    def fit_out_of_fold(self, X, targets, folds, **options):
        fitted = self.fit(X, targets, **options)
        return fitted, fitted.predict(X)


class Unweighted(Smoother):
    def fit(self, X, targets, *args, **options):
        return super().fit(X, targets._replace(weights=None), *args, **options)


def inputs():
    return torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("regressor", "message"),
    [
        (Rounded(), "predict must return a float64 tensor"),
        (Unseeded(), "learns something else from the same pairs and seed"),
        (Centred(), "depends on which inputs are predicted together"),
        (Forgetful(), "predicts otherwise once restored"),
        (Keeping(), "predicts otherwise once restored"),
        (Unsaveable(), "must consist of tensors, arrays and JSON values"),
        (Peeking(), r"has seen the pairs that it predicts out of fold: it explains \d+% of pure noise"),
        (Unweighted(), "learns from weights otherwise than from repeated rows"),
    ],
    ids=lambda p: type(p).__name__,
)
def test_catches_in_regressors(regressor, message):
    with pytest.raises(InputError, match=message):
        check_regressor(regressor, inputs())


def test_passes_what_is_right():
    check_regressor(Smoother(), inputs())
    check_regressor(Unweighted(), inputs(), weights=False)
    with pytest.raises(InputError, match="give at least 20 inputs. Got 19"):
        check_regressor(Smoother(), inputs()[:19])
