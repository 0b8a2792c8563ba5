"""What a regressor is: it learns from inputs x to coordinates in a basis of the output space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch import device as Device

Metric = Callable[[Any, Any], Any]  # (predicted outputs, true outputs) -> a number, larger is better
Score = Callable[[Tensor], float] | None  # coordinates of the validation inputs (n, p) -> a number, larger is better
Monitor = Literal["loss", "mrr"] | Metric
State = dict[str, Any]  # tensors, canonical outputs, what JSON can hold, and dictionaries of them


class Targets(NamedTuple):
    """What is regressed: coordinates ψ̃(y) of the outputs, and what the basis misses of them."""

    coordinates: Tensor  # (n, p)
    residuals: Tensor  # (n,)


Validation = tuple[Any, Targets] | None  # inputs and their targets


@dataclass(frozen=True)
class History:
    """Metrics by epoch, and the epoch whose weights were kept (counted from 1)."""

    rows: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0

    def __getitem__(self, name: str) -> list[float]:
        """One metric over the epochs: ``history["train_loss"]``."""
        return [row[name] for row in self.rows if name in row]


class Regressor(ABC):
    """Specifies how to learn x -> coordinates. Frozen; :meth:`fit` returns the learned function.

    ``validation_fraction`` is the share of the pairs to hold out when there are no validation pairs. ``monitor`` says
    what is best on them: the loss, the mean reciprocal rank of the truth ("mrr"), or a metric of decoded outputs.
    """

    validation_fraction: float = 0.0
    monitor: Monitor = "loss"

    @abstractmethod
    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> Fitted:
        """Learn from n inputs and their targets. ``score`` computes the monitor, unless that is the loss."""

    @abstractmethod
    def restore(self, state: State, folder: Path, p: int, device: Device) -> Fitted:
        """Return what ``Fitted.state`` and ``write_files`` saved; the folder may not exist."""


class Fitted(ABC):
    """A learned function from inputs to coordinates."""

    history: History = History()

    @abstractmethod
    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        """g(x) for every input."""

    @abstractmethod
    def state(self) -> State:
        """Everything that was learned."""

    def write_files(self, folder: Path) -> None:  # noqa: B027 # most need no files
        """Write what is not a tensor to an empty folder."""
