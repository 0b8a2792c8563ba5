"""What a regressor is: it learns from inputs x to coordinates in a basis of the output space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch import device as Device

from dsokr.errors import InputError
from dsokr.outputs import take

Metric = Callable[[Any, Any], Any]  # (predicted outputs, true outputs) -> a number, larger is better
Score = Callable[[Tensor], float] | None  # coordinates of the validation inputs (n, p) -> a number, larger is better
Monitor = Literal["loss", "mrr"] | Metric
Reads = Literal["raw", "numbers", "both"]
State = dict[str, Any]  # tensors, arrays, canonical outputs, what JSON can hold, and dictionaries of them


class Targets(NamedTuple):
    """What is regressed: the coordinates ψ̃(y) of the outputs, and what the basis misses of them.

    ``weights`` say how much each pair counts. Pairs of one group stay on the same side of every split.
    """

    coordinates: Tensor  # (n, p)
    residuals: Tensor  # (n,)
    weights: Tensor | None = None  # (n,), None: all count the same
    groups: Tensor | None = None  # (n,), numbers from 0; None: each is on its own

    def take(self, index: Any) -> Targets:
        return Targets(*(None if part is None else take(part, index) for part in self))  # type: ignore[arg-type] # in order

    def weighted(self) -> Tensor:  # (n,)
        """The weights, ones if none were given."""
        return torch.ones_like(self.residuals) if self.weights is None else self.weights.to(self.residuals)

    def mean(self) -> Tensor:  # (p,)
        return self.weighted() @ self.coordinates / self.weighted().sum()


Validation = tuple[Any, Targets] | None  # inputs and their targets


@dataclass(frozen=True)
class History:
    """Metrics by epoch, and the epoch whose weights were kept (counted from 1)."""

    rows: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0

    def __getitem__(self, name: str) -> list[float]:
        """One metric over the epochs: ``history["train_loss"]``."""
        return [row[name] for row in self.rows if name in row]

    @property
    def best(self) -> dict[str, float]:
        """The metrics of the best epoch."""
        return self.rows[self.best_epoch - 1] if self.rows else {}

    def summarize(self) -> dict[str, str]:
        """The best epoch and its metrics, for the card of a model."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.best.items() if name != "epoch")
        return {"best epoch": f"{self.best_epoch} of {len(self.rows)}: {metrics}"} if self.rows else {}


class Regressor(ABC):
    """Specifies how to learn x -> coordinates. Frozen; :meth:`fit` returns the learned function.

    ``reads`` says how inputs come: as the user gave them ("raw"), as a table of numbers ("numbers"), which is sparse,
    or dense with NaN for missing values, or both ways ("both", as ``Inputs``). ``validation_fraction`` is the share of
    the pairs to hold out when there are no validation pairs. ``monitor`` says what is measured on them: the loss, the
    mean reciprocal rank of the truth ("mrr"), or a metric of decoded outputs.
    """

    reads: Reads = "raw"
    streams = False  # whether ``fit`` takes a stream
    validation_fraction: float = 0.0
    monitor: Monitor = "loss"

    @abstractmethod
    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> Fitted:
        """Learn from n inputs and their targets. ``score`` computes the monitor, unless it is the loss."""

    @abstractmethod
    def restore(self, state: State, folder: Path, p: int, device: Device) -> Fitted:
        """Return the function that ``Fitted.state`` and ``write_files`` saved; without files there is no folder."""

    def update(self, fitted: Any, X: Any, targets: Targets, *, seed: int, device: Device) -> Fitted:
        """Return a function that has also learned from further pairs; ``fitted`` does not change."""
        raise InputError(f"{type(self).__name__} cannot learn from further pairs: fit it anew, or use a network.")

    def fit_out_of_fold(
        self, X: Any, targets: Targets, folds: Sequence[Tensor], *, seed: int, device: Device
    ) -> tuple[Fitted, Tensor]:  # (n, p)
        """Learn from all n inputs; also predict each input by a function that was learned without it.

        Regressors override this if they can do so at less cost than by folds: out of bag, or leaving one out.
        """
        return self.fit_folds(X, targets, folds, seed=seed, device=device)

    def fit_folds(
        self, X: Any, targets: Targets, folds: Sequence[Tensor], *, seed: int, device: Device
    ) -> tuple[Fitted, Tensor]:  # (n, p)
        """Do the same by folds: a function that is learned from the others, and validated by it, predicts each fold."""
        z, histories = torch.zeros_like(targets.coordinates), []
        for number, fold in enumerate(folds):
            rest, held_out = complement(fold, len(z)), (take(X, fold), targets.take(fold))
            part = self.inside(f"fold{number}")
            fitted = part.fit(take(X, rest), targets.take(rest), held_out, seed=seed, device=device)
            z[fold] = fitted.predict(held_out[0]).to(z)
            histories.append(fitted.history)
        return self.decided_by(histories).inside("all").fit(X, targets, seed=seed, device=device), z

    def inside(self, name: str) -> Regressor:
        """The same regressor, with a folder of its own for one of several fits, if it writes files."""
        return self

    def decided_by(self, histories: Sequence[History]) -> Regressor:
        """The same regressor, with what the fits to parts of the data chose."""
        return self


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

    def write_folder(self, folder: Path) -> None:
        """Write what is not a tensor to a new folder, if there is anything."""
        folder.mkdir()
        self.write_files(folder)
        if not any(folder.iterdir()):
            folder.rmdir()

    def alternatives(self) -> tuple[Fitted, ...]:
        """This function first, then functions near it, if decoded outputs are to choose between them."""
        return (self,)

    def on_validation(self) -> Tensor | None:  # (n, p)
        """The coordinates of the validation inputs of the fit, if they were kept."""
        return None

    def settled(self) -> Fitted:
        """The function without what only :meth:`alternatives` needs."""
        return self

    def out_of_fold(self) -> tuple[Tensor, Tensor] | None:  # (k,), (k, p)
        """Rows of training inputs, and their coordinates by functions learned without them, if they were kept."""
        return None

    def report(self) -> list[dict[str, Any]]:
        """What was tried, a row each, for :meth:`dsokr.DSOKR.report`."""
        return []


def hold_out(n: int, fraction: float, generator: Generator, groups: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Split n positions at random into those to train on and a share to validate on, which may be none.

    Groups are held out whole: as many as fit into the share, and at least one.
    """
    held_out = round(fraction * n)
    if held_out == n:
        raise InputError(f"A validation fraction of {fraction} leaves none of the {held_out} pairs to train on.")
    if groups is None or not held_out:
        order = torch.randperm(n, generator=generator)
        return order[held_out:], order[:held_out]
    sizes, order = _shuffle_groups(groups, generator)
    is_kept = torch.isin(groups, order[max(1, int((sizes[order].cumsum(0) <= held_out).sum())) :])
    return is_kept.nonzero()[:, 0], (~is_kept).nonzero()[:, 0]


def make_folds(n: int, folds: float, seed: int, groups: Tensor | None = None) -> list[Tensor]:
    """Split n positions into random folds of about the same size. ``folds`` below 1 is the share of a single fold.

    Groups are not split: each goes to the smallest fold so far, the largest group first.
    """
    generator = Generator().manual_seed(seed)
    if folds < 1:
        return [hold_out(n, max(folds, 1 / n), generator, groups)[1]]
    if groups is None:
        return list(torch.randperm(n, generator=generator).tensor_split(min(int(folds), n)))
    sizes, order = _shuffle_groups(groups, generator)
    loads, fold_of = [0] * min(int(folds), len(order)), torch.empty(len(sizes), dtype=torch.long)
    for group in order[sizes[order].argsort(descending=True, stable=True)].tolist():
        fold_of[group] = least = loads.index(min(loads))
        loads[least] += int(sizes[group])
    return [(fold_of[groups] == fold).nonzero()[:, 0] for fold in range(len(loads))]


def _shuffle_groups(groups: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return the size of every group, and the groups that occur, at least two, in random order."""
    sizes = groups.bincount()
    present = sizes.nonzero()[:, 0]
    if len(present) < 2:
        raise InputError("groups must have at least two different values, so that one can be held out.")
    return sizes, present[torch.randperm(len(present), generator=generator)]


def complement(fold: Tensor, n: int) -> Tensor:
    """The positions among n that are not in a fold, in order."""
    rest = torch.ones(n, dtype=torch.bool)
    rest[fold] = False
    return rest.nonzero()[:, 0]


def leading_directions(targets: Targets, q: int) -> Tensor:  # (p, min(q, p))
    """The q orthonormal directions in which the coordinates vary most."""
    p, centred = targets.coordinates.shape[1], targets.coordinates - targets.mean()
    if p <= q:
        return torch.eye(p).to(centred)
    covariance = centred.T @ (targets.weighted()[:, None] * centred)
    return torch.linalg.eigh(covariance).eigenvectors[:, -q:].flip(1)
