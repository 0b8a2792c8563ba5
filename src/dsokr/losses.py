"""Losses c(‖h(x) − ψ(y)‖²) on the distance in feature space.

In the basis the distance splits into a part that depends on the network and one that does not,
‖h(x) − ψ(y)‖² = ‖g(x) − ψ̃(y)‖² + residual(y). Every loss is applied to the sum. For the square loss the residual is an
additive constant; for all others, omitting it would change the minimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from dsokr.errors import InputError, check_fields


@runtime_checkable
class Objective(Protocol):
    """What training minimises: a mean over a batch. A new objective defines ``mean`` and inherits ``among``."""

    @abstractmethod
    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        """Return the objective for the outputs z of the network."""

    def among(self, targets: Tensor) -> Self:
        """Return the objective for training with these targets, if it depends on all of them."""
        return self


def _average(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else weights @ values / weights.sum()


class Loss(Objective, ABC):
    """A non-decreasing function c of the squared distance."""

    @abstractmethod
    def __call__(self, d2: Tensor) -> Tensor:
        """Compute c(d²), element by element."""

    def mean(self, z: Tensor, target: Tensor, residual: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean of c(‖z_i − target_i‖² + residual_i), with weights if there are any."""
        return _average(self((z - target).square().sum(dim=1) + residual), weights)


@dataclass(frozen=True)
class Squared(Loss):
    """c(d²) = d².

    >>> Squared()(torch.tensor([4.0]))
    tensor([4.])
    """

    def __call__(self, d2: Tensor) -> Tensor:
        return d2


@dataclass(frozen=True)
class Huber(Loss):
    """c(d²) = d²/2 up to d = delta, then delta · (d − delta/2): linear in the distance, so robust to outliers.

    >>> Huber(delta=1.0)(torch.tensor([0.25, 4.0]))
    tensor([0.1250, 1.5000])
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, delta="(0, inf)")

    def __call__(self, d2: Tensor) -> Tensor:
        far = d2.clamp(min=self.delta**2).sqrt()  # the clamp keeps the unused branch's gradient finite at d = 0
        return torch.where(d2 <= self.delta**2, d2 / 2, self.delta * (far - self.delta / 2))


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """c(d²) = max(d − epsilon, 0): errors up to epsilon are free.

    >>> EpsilonInsensitive(epsilon=1.0)(torch.tensor([0.25, 4.0]))
    tensor([0., 1.])
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, epsilon="(0, inf)")

    def __call__(self, d2: Tensor) -> Tensor:
        return d2.clamp(min=self.epsilon**2).sqrt() - self.epsilon


@dataclass(frozen=True)
class Ranked(Loss):
    """A loss on the distance plus a contrastive loss: how the true output ranks among all training outputs.

    Adds ``weight`` times −log(e^{s(x, y)/τ} / Σ e^{s(x, y')/τ}), with the sum over y and all other training outputs,
    τ the ``temperature`` and s(x, y) = ⟨g(x), ψ̃(y)⟩ / (‖g(x)‖ ‖ψ̃(y)‖), the score of the rule "cosine". The basis and
    the decoders do not change. Every step uses all outputs, as their coordinates are fixed: n · p multiplications per
    input, little compared with a deep network. It works best with kernels that distinguish outputs well. A lower
    temperature puts more weight on the closest rivals: with many pairs and a strong network use 0.02.

    With ``numbers``, one for every output of the fit in their order (masses, say), only outputs whose numbers differ by
    at most ``within`` are rivals: if answers are chosen among candidates of the same mass, so should training.
    """

    base: Loss = field(default_factory=Squared)
    weight: float = 1.0
    temperature: float = 0.05
    within: float | None = None
    numbers: Sequence[float] | Tensor | None = field(default=None, repr=False, compare=False)  # (n,)
    others: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)  # None: those of the batch

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_loss(self.base))
        check_fields(self, weight="(0, inf)", temperature="(0, inf)")
        if self.numbers is not None:
            object.__setattr__(self, "numbers", torch.as_tensor(self.numbers, dtype=torch.float64))

    def __call__(self, d2: Tensor) -> Tensor:
        return self.base(d2)

    def among(self, targets: Tensor) -> Self:
        count = 0 if self.numbers is None else len(self.numbers)
        if self.within is not None and count != len(targets):
            raise InputError(
                f"Ranked.within needs a number for each of the {len(targets)} outputs trained on. Got {count}."
            )
        return replace(self, base=self.base.among(targets), others=_find_directions(targets))

    def mean(self, z: Tensor, target: Tensor, residual: Tensor, weights: Tensor | None = None) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):  # 16 bits would make similar outputs equal
            ranking = self.ranking(z.to(target.dtype), target, weights)
            return self.base.mean(z, target, residual, weights) + self.weight * ranking

    def ranking(self, z: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the contrastive loss alone."""
        true, traces = _find_directions(target)
        others, other_traces = (true, traces) if self.others is None else self.others
        directions = F.normalize(z, dim=1) / self.temperature
        own = torch.linalg.vecdot(directions, true)
        scores = directions @ others.T
        apart = (traces[:, None] - other_traces).abs()
        no_rivals = apart < SAME
        if self.within is not None and self.others is not None:
            numbers = torch.as_tensor(self.numbers).to(apart.device)
            no_rivals |= (numbers[apart.argmin(dim=1)][:, None] - numbers).abs() > self.within
        scores = torch.cat([own[:, None], scores.masked_fill(no_rivals, -torch.inf)], dim=1)
        return _average(scores.logsumexp(dim=1) - own, weights)


SAME = 1e-7  # difference of traces up to which two outputs are equal


def _find_directions(targets: Tensor) -> tuple[Tensor, Tensor]:  # (n, p), (n,) float64
    """Outputs as unit vectors, and their inner products with one random vector, which identify equal outputs."""
    random = torch.randn(targets.shape[1], generator=Generator().manual_seed(0), dtype=torch.float64)
    exact = F.normalize(targets.double(), dim=1, eps=torch.finfo(torch.float64).tiny)
    return exact.to(targets.dtype), exact @ random.to(targets.device)


@dataclass(frozen=True)
class Custom(Loss):
    """Any non-decreasing, almost everywhere differentiable function of d² that maps tensors element by element.

    >>> Custom(torch.log1p)(torch.tensor([0.0]))
    tensor([0.])
    """

    c: Callable[[Tensor], Tensor]

    def __call__(self, d2: Tensor) -> Tensor:
        return self.c(d2)


def as_loss(loss: Objective | Callable[[Tensor], Tensor]) -> Objective:
    """Return an objective as it is, and a plain function c of the squared distance as a loss."""
    if isinstance(loss, Objective):
        return loss
    if not callable(loss):
        raise InputError(f"loss must be a losses.Loss or a function of the squared distance. Got {loss!r}.")
    grid = torch.linspace(0, 10, 101)
    values = loss(grid)
    if values.shape != grid.shape or (values.diff() < 0).any():
        raise InputError("A loss must map squared distances element by element and must not decrease with them.")
    return Custom(loss)
