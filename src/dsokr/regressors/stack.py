"""A weighted sum of regressors: as all predict the same coordinates, the best weights are a least-squares problem."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from dsokr.errors import InputError, check_fields
from dsokr.regressors.base import (
    Device,
    Fitted,
    History,
    Reads,
    Regressor,
    Score,
    State,
    Targets,
    Validation,
    make_folds,
)
from dsokr.regressors.inputs import Inputs
from dsokr.saving import shorten

LARGEST = 1e6  # weight of a member: a saved one beyond this is no weight


@dataclass(frozen=True)
class Stack(Regressor):
    """g(x) = Σ_k w_k g_k(x) with w ≥ 0 that minimises Σ_i ‖Σ_k w_k g_k^{−i}(x_i) − ψ̃(y_i)‖².

    g_k^{−i} was learned without the pair i: out of fold, out of bag or leaving it out, whichever costs a member least.
    So on pairs that were not seen, a stack is never worse than its best member, as far as these predictions can tell.
    Members of weight zero are not kept. ``folds`` is the number of folds. For members that take long, it may be a share
    of the pairs to hold out once. With ``weights="equal"`` the stack is the plain mean, of networks over seeds, say.

    Regression shrinks predictions towards their mean, which favours frequent outputs; the ``contrast`` c in
    mean + c (g(x) − mean) undoes that. If several contrasts are given, contrast and weights move step by step, to the
    next contrast or towards single members, as long as decoded outputs get better.

    >>> from dsokr.regressors import Forest, KernelRidge
    >>> Stack((Forest(), KernelRidge())).folds
    5
    """

    members: tuple[Regressor, ...]
    folds: float = 5
    weights: Literal["learned", "equal"] = "learned"
    contrast: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        check_fields(self, folds="(0, inf)", contrast="(0, inf)")
        if 1 <= self.folds < 2:
            raise InputError(f"Stack.folds must be at least 2, or a share below 1. Got {self.folds}.")
        if not self.members:
            raise InputError("Stack.members must be regressors, such as Forest(). Got none.")

    @property
    def reads(self) -> Reads:  # type: ignore[override] # a constant elsewhere
        kinds = {member.reads for member in self.members}
        return kinds.pop() if len(kinds) == 1 else "both"

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedStack:
        """Fit every member; weigh them on the validation pairs, if there are any, or out of fold."""
        n = len(targets.coordinates)
        folds = [] if validation is not None else make_folds(n, self.folds, seed, targets.groups)
        rows = torch.cat(folds).sort().values if folds else None
        truth = targets.take(rows) if validation is None else validation[1]
        fits: list[Fitted] = []
        predictions, tried = [], []
        for number, member in enumerate(self.members):
            started, own = time.perf_counter(), _read(X, member.reads)
            if validation is not None:
                held_out = _read(validation[0], member.reads)
                fitted = member.fit(own, targets, (held_out, validation[1]), seed=seed + number, device=device)
                z = fitted.predict(held_out)
            else:
                learn = member.fit_out_of_fold if targets.groups is None else member.fit_folds
                fitted, z = learn(own, targets, folds, seed=seed + number, device=device)
                z = z[rows]
            fits.append(fitted)
            predictions.append(z.cpu())
            tried.append({"regressor": shorten(member), "seconds": time.perf_counter() - started})
        weights = self._weigh(predictions, truth)
        members, total = [], torch.zeros_like(truth.coordinates, device="cpu")
        for number, (fitted, z, weight) in enumerate(zip(fits, predictions, weights, strict=True)):
            members.append(Member(number, self.members[number].reads, fitted, weight))
            tried[number] |= {"weight": weight, "explained": explained(z, truth)}
            total += weight * z
        tried.append({"regressor": "the stack", "explained": explained(total, truth)})
        contrasts = self.contrast if isinstance(self.contrast, tuple) else (self.contrast,)
        unseen = Unseen(rows, [z.to(device) for z in predictions])
        return FittedStack(tuple(members), targets.mean(), contrasts[0], contrasts, tried, unseen)

    def _weigh(self, predictions: list[Tensor], truth: Targets) -> list[float]:
        if self.weights == "equal":
            return [1 / len(predictions)] * len(predictions)
        return solve_weights(predictions, truth).tolist()

    def update(self, fitted: FittedStack, X: Any, targets: Targets, *, seed: int, device: Device) -> FittedStack:
        """Update every member that was kept, if all can learn from further pairs; the weights stay."""
        kept = tuple(
            member._replace(
                fitted=self.members[member.number].update(
                    member.fitted, _read(X, member.reads), targets, seed=seed + member.number, device=device
                )
            )
            for member in fitted.members
        )
        return replace(fitted, members=kept, unseen=None)

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedStack:
        kept = []
        for number, saved in state["members"].items():
            member = self.members[int(number)]
            fitted = member.restore(saved["state"], folder / number, p, device)
            kept.append(Member(int(number), member.reads, fitted, saved["weight"]))
        if not all(abs(number) <= LARGEST for number in (state["contrast"], *(member.weight for member in kept))):
            raise ValueError("the weights of the members are too large")
        return FittedStack(tuple(kept), state["mean"].to(device), state["contrast"], (), state["tried"])


def _read(X: Any, reads: Reads) -> Any:
    return X.read_by(reads) if isinstance(X, Inputs) else X


def solve_weights(predictions: list[Tensor], truth: Targets) -> Tensor:  # (members,)
    """The weights w ≥ 0 that minimise Σ_i s_i ‖Σ_k w_k z_ki − ψ̃(y_i)‖², by the normal equations."""
    s, goal = truth.weighted().cpu()[:, None], truth.coordinates.cpu()
    gram = np.array([[(s * a * b).sum().item() for b in predictions] for a in predictions])
    right = np.array([(s * a * goal).sum().item() for a in predictions])
    values, vectors = np.linalg.eigh(gram)  # G = AᵀA with A = D^{1/2} Vᵀ, and Aᵀb = right
    keep = values > values[-1] * 1e-14
    root = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
    solution = nnls(root, vectors[:, keep].T @ right / np.sqrt(values[keep]))[0]
    return torch.from_numpy(solution if solution.any() else np.full(len(solution), 1 / len(solution)))


def explained(z: Tensor, truth: Targets) -> float:
    """R², the share of the variance of the coordinates that predictions explain."""
    s, goal = truth.weighted().cpu(), truth.coordinates.cpu()
    total = s @ (goal - truth.mean().cpu()).square().sum(dim=1)
    return 1 - (s @ (z - goal).square().sum(dim=1) / total).item() if total > 0 else 0.0


def format_report(tried: list[dict[str, Any]]) -> list[str]:
    """The lines of a table of members: their weights, the variance they explain, and seconds of fitting."""
    lines = ["weight  explained  seconds  regressor"] if tried else []
    for row in tried:
        weight = f"{row['weight']:6.2f}" if "weight" in row else " " * 6
        seconds = f"{row['seconds']:7.1f}" if "seconds" in row else " " * 7
        lines.append(f"{weight}  {row['explained']:9.3f}  {seconds}  {row['regressor']}")
    return lines


class Member(NamedTuple):
    """A fitted member of a stack."""

    number: int
    reads: Reads
    fitted: Fitted
    weight: float


class Unseen(NamedTuple):
    """Predictions for inputs that no member was fitted to."""

    rows: Tensor | None  # (k,), of the training inputs; None: they are the validation inputs
    predictions: list[Tensor]  # (k, p) by every member


@dataclass(frozen=True, eq=False)
class FittedStack(Fitted):
    """mean + c (Σ_k w_k g_k(x) − mean)."""

    members: tuple[Member, ...]
    mean: Tensor  # (p,), of the targets
    contrast: float = 1.0
    ladder: tuple[float, ...] = ()  # contrasts to choose from
    tried: list[dict[str, Any]] = field(default_factory=list)
    unseen: Unseen | None = None  # until everything is chosen

    @property
    def history(self) -> History:  # type: ignore[override] # an attribute elsewhere
        """The history of its first network, if it has one."""
        return next((m.fitted.history for m in self.members if m.fitted.history["train_loss"]), History())

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        return self._add_up(member.weight and member.fitted.predict(_read(X, member.reads)) for member in self.members)

    def _add_up(self, predictions: Iterable[Any]) -> Tensor:  # (n, p)
        z = sum(member.weight * part for member, part in zip(self.members, predictions, strict=True))
        return z if self.contrast == 1 else self.mean + self.contrast * (z - self.mean)

    def alternatives(self) -> tuple[FittedStack, ...]:
        if len(self.ladder) < 2:
            return (self,)
        at, weights = self.ladder.index(self.contrast), [member.weight for member in self.members]
        near = [replace(self, contrast=c) for c in self.ladder[max(at - 1, 0) : at + 2] if c != self.contrast]
        leaning = (self._lean(number, sum(weights)) for number in range(len(weights)))
        return (self, *near, *(leaning if len(weights) > 1 else ()))

    def _lean(self, towards: int, total: float) -> FittedStack:
        """Move the weights halfway to one member alone."""
        members = (
            member._replace(weight=(member.weight + total * (place == towards)) / 2)
            for place, member in enumerate(self.members)
        )
        return replace(self, members=tuple(members))

    def out_of_fold(self) -> tuple[Tensor, Tensor] | None:
        if self.unseen is None or self.unseen.rows is None:
            return None
        return self.unseen.rows, self._add_up(self.unseen.predictions)

    def on_validation(self) -> Tensor | None:
        return self._add_up(self.unseen.predictions) if self.unseen is not None and self.unseen.rows is None else None

    def settled(self) -> FittedStack:
        kept = tuple(member for member in self.members if member.weight > 0)
        weights = {member.number: member.weight for member in kept}
        tried = [
            row | ({"weight": weights.get(at, 0.0)} if "weight" in row else {}) for at, row in enumerate(self.tried)
        ]
        return replace(self, members=kept, ladder=(), unseen=None, tried=tried)

    def state(self) -> State:
        members = {str(m.number): {"weight": m.weight, "state": m.fitted.state()} for m in self.members}
        return {"members": members, "mean": self.mean, "contrast": self.contrast, "tried": self.tried}

    def write_files(self, folder: Path) -> None:
        for member in self.members:
            member.fitted.write_folder(folder / str(member.number))

    def report(self) -> list[dict[str, Any]]:
        return self.tried
