"""Losses c(‖h(x) − ψ(y)‖²) on the distance in feature space.

In the basis the distance splits into what the network can change and what it cannot,
‖h(x) − ψ(y)‖² = ‖g(x) − ψ̃(y)‖² + residual(y). Every loss here is given the sum. For the square loss the residual only
adds a constant; for all others leaving it out would change the minimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from dsokr.errors import InputError


@runtime_checkable
class Objective(Protocol):
    """What a network is trained for: a mean over a batch, whether of a distance or not. ``among`` is inherited."""

    @abstractmethod
    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        """What is made small, for the outputs z of the network."""

    def among(self, targets: Tensor) -> Self:
        """The objective of a training with these targets, for those that look at all of them."""
        return self


class Loss(Objective, ABC):
    """A non-decreasing function c of the squared distance."""

    @abstractmethod
    def __call__(self, d2: Tensor) -> Tensor:
        """c(d²), element by element."""

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        """The mean of c(‖z_i − target_i‖² + residual_i) over a batch."""
        return self((z - target).square().sum(dim=1) + residual).mean()


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
        if not self.delta > 0:
            raise InputError(f"Huber.delta must be positive. Got {self.delta}.")

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
        if not self.epsilon > 0:
            raise InputError(f"EpsilonInsensitive.epsilon must be positive. Got {self.epsilon}.")

    def __call__(self, d2: Tensor) -> Tensor:
        return d2.clamp(min=self.epsilon**2).sqrt() - self.epsilon


@dataclass(frozen=True)
class Ranked(Loss):
    """A loss on the distance, and a loss on how the true output ranks among all the training outputs.

    Adds ``weight`` times −log(e^{s(x, y)/τ} / Σ e^{s(x, y')/τ}), the sum over y and all training outputs other than y,
    with τ the ``temperature`` and s(x, y) = ⟨g(x), ψ̃(y)⟩ / (‖g(x)‖ ‖ψ̃(y)‖), the score by the rule "cosine". The basis
    and the decoders stay as they are. All the outputs are there at every step because their coordinates are fixed:
    n · p multiplications an input, little beside a deep network. Best with kernels that tell outputs apart well. The
    lower the temperature, the more the closest rivals alone count: with many pairs and a strong network 0.02 is better.
    """

    base: Loss = field(default_factory=Squared)
    weight: float = 1.0
    temperature: float = 0.05
    others: Directions | None = field(default=None, repr=False, compare=False)  # None: those of the batch

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_loss(self.base))
        for name in ("weight", "temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"Ranked.{name} must be positive. Got {getattr(self, name)}.")

    def __call__(self, d2: Tensor) -> Tensor:
        return self.base(d2)

    def among(self, targets: Tensor) -> Self:
        return replace(self, base=self.base.among(targets), others=Directions.of(targets))

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):  # similar outputs would all look the same in 16 bits
            return self.base.mean(z, target, residual) + self.weight * self.ranking(z.to(target.dtype), target)

    def ranking(self, z: Tensor, target: Tensor) -> Tensor:
        true = Directions.of(target)
        others = true if self.others is None else self.others
        directions = F.normalize(z, dim=1) / self.temperature
        own = torch.linalg.vecdot(directions, true.units)
        scores = directions @ others.units.T
        same = (true.traces[:, None] - others.traces).abs() < SAME
        scores = torch.cat([own[:, None], scores.masked_fill(same, -torch.inf)], dim=1)
        return (scores.logsumexp(dim=1) - own).mean()


SAME = 1e-7  # difference of traces up to which two outputs are one


class Directions(NamedTuple):
    """Outputs as unit vectors, and a number for each by which equal ones are found."""

    units: Tensor  # (n, p)
    traces: Tensor  # (n,) float64: coordinates of the unit vectors along one random direction

    @staticmethod
    def of(targets: Tensor) -> Directions:
        direction = torch.randn(targets.shape[1], generator=Generator().manual_seed(0), dtype=torch.float64)
        exact = F.normalize(targets.double(), dim=1, eps=torch.finfo(torch.float64).tiny)
        return Directions(exact.to(targets.dtype), exact @ direction.to(targets.device))


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
    """A loss or another objective as it is, or a plain function c of the squared distance as a loss."""
    if isinstance(loss, Objective):
        return loss
    if not callable(loss):
        raise InputError(f"loss must be a losses.Loss or a function of the squared distance. Got {loss!r}.")
    grid = torch.linspace(0, 10, 101)
    values = loss(grid)
    if values.shape != grid.shape or (values.diff() < 0).any():
        raise InputError("A loss must map squared distances element by element and must not decrease with them.")
    return Custom(loss)
