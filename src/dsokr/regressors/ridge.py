"""Kernel ridge regression of the coordinates: SISOKR, and IOKR without sketches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import scipy.sparse as sp
import torch
from torch import Generator, Tensor

from dsokr import kernels
from dsokr.basis import BLOCK, SketchedBasis, sketch_basis
from dsokr.errors import InputError, check_fields
from dsokr.kernels import Gaussian, Kernel, Linear
from dsokr.kernels.base import Evaluate
from dsokr.outputs import Outputs, as_outputs, blocks, count, to_device
from dsokr.regressors.base import (
    Device,
    Fitted,
    History,
    Monitor,
    Reads,
    Regressor,
    Score,
    State,
    Targets,
    Validation,
    leading_directions,
    make_folds,
)
from dsokr.regressors.inputs import Scaler
from dsokr.saving import parse_expression, write_expression
from dsokr.sketches import Full, SketchSpec, SubSample

PENALTIES = tuple(10.0 ** (exponent / 2) for exponent in range(-14, 1))  # λ to choose from
MOST, ANCHORS = 3000, 1500  # inputs that are all used, and how many span the space of functions if there are more
WIDTHS = (0.25, 1.0, 4.0)  # of Gaussian kernels, times one over the median squared distance
FOLDS = 5  # by which λ is chosen where pairs have groups
EPSILON = 1e-9  # an input that alone decides its own prediction leaves this much to the others
DIRECTIONS = 30  # of the outputs, in which choices are compared


@dataclass(frozen=True)
class KernelRidge(Regressor):
    """min over W of (1/n) Σ_i ‖Wᵀ ψ̃_x(x_i) − ψ̃(y_i)‖² + λ ‖W‖².

    ψ̃_x are coordinates in a sketched basis of the input kernel. With Z their rows and T the targets,
    W = (Zᵀ Z + n λ I)^{-1} Zᵀ T. ``DSOKR(kernel, sketch, KernelRidge(input_kernel, input_sketch))`` is SISOKR; with
    ``sketches.Full()`` on both sides it is input output kernel regression (IOKR). Inputs may be anything that the
    kernel takes: rows, strings, graphs. Without a kernel they are tables of numbers: dense ones are standardised and
    compared by a Gaussian kernel whose width is chosen, sparse ones by their cosine. Without a sketch all inputs span
    the basis, or 1,500 of them if there are more than 3,000; with the linear kernel, all columns if these are fewer.

    ``regularization`` is λ > 0, or several; None: 1e-7 to 1. The best of them, and of the kernels, has the smallest
    error on the validation pairs, by ``monitor``, where "loss" is the mean squared distance of the coordinates. Without
    validation pairs it is the best one leaving out each pair in turn, which has a closed form. One eigendecomposition
    serves every λ. With ``intercept``, the mean of the targets is added and not penalised.

    >>> from dsokr import DSOKR, kernels, sketches
    >>> words = ["CCO", "CCN", "CCCO", "CCCN", "OCCO", "NCCN"] * 5
    >>> ngrams = kernels.NGram((1, 2))
    >>> model = DSOKR(ngrams.normalized(), sketches.Full(), KernelRidge(ngrams), random_state=0)
    >>> model.fit(words, words).predict(["NCCN", "CCCO"])
    ['NCCN', 'CCCO']
    """

    kernel: Kernel | None = None
    sketch: SketchSpec | None = None
    regularization: float | tuple[float, ...] | None = None
    intercept: bool = False
    reads: Reads = "raw"  # always numbers without a kernel
    validation_fraction: float = 0.0
    monitor: Monitor = "loss"

    def __post_init__(self) -> None:
        check_fields(self, regularization="(0, inf)", validation_fraction="[0, 1)")
        if not self.penalties:
            raise InputError("KernelRidge.regularization must be positive. Got no number.")
        if self.kernel is None:
            object.__setattr__(self, "reads", "numbers")

    @property
    def penalties(self) -> tuple[float, ...]:
        """Every λ to try."""
        given = PENALTIES if self.regularization is None else self.regularization
        return tuple(map(float, given)) if isinstance(given, tuple | list) else (float(given),)

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedRidge:
        """Solve for every kernel and λ: O(n m p) time for m anchors among n inputs, O(m² + m · block) memory."""
        if validation is None and targets.groups is not None and len(self.penalties) > 1:
            folds = make_folds(count(X), FOLDS, seed, targets.groups)
            by_groups: Any = self.fit_folds(X, targets, folds, seed=seed, device=device)[0]
            return cast(FittedRidge, by_groups)
        scaler = Scaler.of(X, targets.weighted()) if self.kernel is None else None
        X, mean = _as_rows(X, scaler, device), targets.mean() * self.intercept
        goals, fits, rows = targets.coordinates - mean, [], []
        for kernel in _list_kernels(X, seed) if self.kernel is None else (self.kernel,):
            ridge = self._decompose(kernel, X, goals, targets.weighted(), seed, device)
            if validation is not None:
                errors = self._validate(ridge, _as_rows(validation[0], scaler, device), validation[1], mean, score)
            else:
                errors = self._leave_one_out(ridge, goals, targets)
            for penalty, error in zip(self.penalties, errors, strict=True):
                fits.append((ridge, penalty))
                rows.append({"epoch": len(fits), "regularization": penalty, **error})
        best = max(rows, key=lambda row: row.get("val_score", -row["val_loss"]))
        ridge, penalty = fits[int(best["epoch"]) - 1]
        history = History(rows if len(rows) > 1 or validation else [], int(best["epoch"]))
        return FittedRidge(
            scaler, ridge.kernel, ridge.anchors, ridge.solve_dual(penalty), mean, penalty, history, ridge
        )

    def fit_out_of_fold(
        self, X: Any, targets: Targets, folds: Sequence[Tensor], *, seed: int, device: Device
    ) -> tuple[FittedRidge, Tensor]:
        """Leave one out in closed form. The kernel, λ and the mean of the targets come from all pairs."""
        fitted = self.fit(X, targets, seed=seed, device=device)
        assert fitted.ridge is not None  # it was just fitted
        goals, z = targets.coordinates - fitted.mean, torch.empty_like(targets.coordinates)
        for where, (left_out,) in fitted.ridge.leave_one_out(goals, None, (fitted.regularization,)):
            z[where] = (left_out + fitted.mean).to(z)
        return replace(fitted, ridge=None), z

    def decided_by(self, histories: Sequence[History]) -> KernelRidge:
        """With one λ, the geometric mean of those that the fits chose."""
        logarithms = [math.log(history.best["regularization"]) for history in histories]
        return replace(self, regularization=math.exp(sum(logarithms) / len(logarithms)))

    def _decompose(
        self, kernel: Kernel, X: Outputs, goals: Tensor, weights: Tensor, seed: int, device: Device
    ) -> Ridge:
        if self.sketch is None and isinstance(kernel, Linear) and X.shape[1] <= MOST < count(X):  # columns span all
            units = sp.eye_array(X.shape[1], format="csr") if sp.issparse(X) else torch.eye(X.shape[1]).to(X)
            basis = sketch_basis(kernel, units, Full(), generator=_generator(seed), device=device)
            return SketchedRidge.of(basis, X, goals, weights)
        sketch = self.sketch or (Full() if count(X) <= MOST else SubSample(ANCHORS))
        if isinstance(sketch, Full) and count(X) <= MOST:
            return ExactRidge.of(kernel, X, goals, weights)
        basis = sketch_basis(kernel, X, sketch, generator=_generator(seed), device=device)
        return SketchedRidge.of(basis, X, goals, weights)

    def _validate(
        self, ridge: Ridge, X: Outputs, targets: Targets, mean: Tensor, score: Score
    ) -> Iterator[dict[str, float]]:
        """The error of every λ on validation inputs."""
        weights = targets.weighted()
        for penalty in self.penalties:
            z = FittedRidge(None, ridge.kernel, ridge.anchors, ridge.solve_dual(penalty), mean, penalty).evaluate(X)
            errors = (z - targets.coordinates).square().sum(dim=1).add(targets.residuals)
            error = {"val_loss": (weights @ errors / weights.sum()).item()}
            yield error if score is None else error | {"val_score": score(z)}

    def _leave_one_out(self, ridge: Ridge, goals: Tensor, targets: Targets) -> Iterator[dict[str, float]]:
        """The error of every λ when each pair is left out, in the directions in which the outputs vary most."""
        if len(self.penalties) == 1 and self.kernel is not None:  # nothing to choose
            yield {"val_loss": math.nan}
            return
        directions, weights = leading_directions(targets, DIRECTIONS), targets.weighted()
        short, totals = goals @ directions, [0.0] * len(self.penalties)
        for where, left_out in ridge.leave_one_out(short, directions, self.penalties):
            for number, z in enumerate(left_out):
                totals[number] += (weights[where] @ (z - short[where]).square().sum(dim=1)).item()
        yield from ({"val_loss": total / weights.sum().item()} for total in totals)

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedRidge:
        kernel = self.kernel or parse_expression(state["kernel"], kernels)
        scaler = None if state["scaler"] is None else Scaler(**state["scaler"])
        anchors = to_device(as_outputs(state["anchors"], "anchors"), device)
        dual, mean = state["dual"].to(device), state["mean"].to(device)
        return FittedRidge(scaler, kernel, anchors, dual, mean, state["regularization"])


def _generator(seed: int) -> Generator:
    return Generator().manual_seed(seed + 1)  # the outputs' sketch uses the seed itself


def _as_rows(X: Any, scaler: Scaler | None, device: Device) -> Outputs:
    return to_device(as_outputs(X, "X") if scaler is None else scaler.scale(X), device)


def _list_kernels(X: Outputs, seed: int) -> tuple[Kernel, ...]:
    """The kernels to compare on a scaled table: Gaussians whose widths are around the median distance."""
    if sp.issparse(X):
        return (Linear(),)
    some = X[torch.randperm(len(X), generator=_generator(seed))[:1000]]
    typical = (some[1:] - some[:-1]).square().sum(dim=1).median().item() or 1.0
    return tuple(Gaussian(factor / typical) for factor in WIDTHS)


@dataclass(frozen=True, eq=False)
class FittedRidge(Fitted):
    """g(x) = mean + Σ_j k(x, a_j) c_j over the anchors a_j."""

    scaler: Scaler | None
    kernel: Kernel
    anchors: Outputs  # m inputs
    dual: Tensor  # c, (m, p)
    mean: Tensor  # (p,)
    regularization: float
    history: History = field(default_factory=History)  # a row for every kernel and λ that was compared
    ridge: Ridge | None = None

    @cached_property
    def _evaluate(self) -> Evaluate:
        return self.kernel.against(self.anchors, self.dual.T.contiguous())

    def evaluate(self, rows: Outputs) -> Tensor:  # (n, p) float64
        return torch.cat([self._evaluate(block).to(self.mean) for _, block in blocks(rows, BLOCK)]) + self.mean

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        return self.evaluate(_as_rows(X, self.scaler, self.mean.device))

    def state(self) -> State:
        return {
            "anchors": self.anchors,
            "dual": self.dual,
            "mean": self.mean,
            "regularization": self.regularization,
            "scaler": self.scaler and self.scaler.state(),
            "kernel": self.scaler and write_expression(self.kernel, kernels),  # which was chosen
        }


@dataclass(frozen=True, eq=False)
class Ridge(ABC):
    """Ridge regression on n inputs. One eigendecomposition U D Uᵀ of their r × r matrix serves every λ."""

    kernel: Kernel
    anchors: Outputs
    weights: Tensor  # s, (n,)
    eigenvalues: Tensor  # D, (r,)
    eigenvectors: Tensor  # U, (r, r)

    @cached_property
    def total(self) -> float:
        """Σ_i s_i, which takes the place of n."""
        return self.weights.sum().item()

    def solve(self, right: Tensor, regularization: float) -> Tensor:  # (r, q) -> (r, q)
        """(U D Uᵀ + n λ I)^{-1} times the right side."""
        shrunk = (self.eigenvectors.T @ right) / (self.eigenvalues + self.total * regularization)[:, None]
        return self.eigenvectors @ shrunk

    @abstractmethod
    def solve_dual(self, regularization: float) -> Tensor:  # (m, p)
        """The coefficients of the kernel functions at the anchors."""

    @abstractmethod
    def leave_one_out(
        self, targets: Tensor, directions: Tensor | None, penalties: Sequence[float]
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Predict each training input by the solution without it, for every λ, block by block.

        ``targets`` are those of the fit, or their products with ``directions``. With ŷ the fitted values and h_i how
        much ŷ_i moves with y_i, that is (ŷ_i − h_i y_i) / (1 − h_i).
        """


@dataclass(frozen=True, eq=False)
class ExactRidge(Ridge):
    """All inputs are anchors: S^½ K S^½ = U D Uᵀ, and c = S^½ U (D + n λ I)^{-1} Uᵀ S^½ T."""

    roots: Tensor  # s^½, (n, 1)
    targets: Tensor  # S^½ T, (n, p)

    @staticmethod
    def of(kernel: Kernel, X: Outputs, targets: Tensor, weights: Tensor) -> ExactRidge:
        roots = weights.to(targets).sqrt()[:, None]
        gram = kernel(X, X).to(targets) * roots * roots.T
        eigenvalues, eigenvectors = torch.linalg.eigh(gram)
        return ExactRidge(kernel, X, weights, eigenvalues.clamp(min=0), eigenvectors, roots, roots * targets)

    def solve_dual(self, regularization: float) -> Tensor:  # (n, p)
        return self.roots * self.solve(self.targets, regularization)

    def leave_one_out(
        self, targets: Tensor, directions: Tensor | None, penalties: Sequence[float]
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        t, turned = self.roots * targets, self.eigenvectors.T @ (self.roots * targets)
        squares, left_out = self.eigenvectors.square(), []
        for penalty in penalties:
            shrunk = (self.eigenvalues / (self.eigenvalues + self.total * penalty))[:, None]
            h = (squares @ shrunk).clamp(max=1 - EPSILON)
            left_out.append((self.eigenvectors @ (shrunk * turned) - h * t) / (1 - h) / self.roots.clamp(min=EPSILON))
        yield slice(0, len(t)), left_out


@dataclass(frozen=True, eq=False)
class SketchedRidge(Ridge):
    """Inputs are regressed by their coordinates Z (n, p) in a basis: Zᵀ S Z = U D Uᵀ."""

    basis: SketchedBasis
    X: Outputs
    cross: Tensor  # Zᵀ S T, (p, c)

    @classmethod
    def of(
        cls, basis: SketchedBasis, X: Outputs, targets: Tensor | None = None, weights: Tensor | None = None
    ) -> SketchedRidge:
        """Accumulate Zᵀ S Z and Zᵀ S T over blocks of the n inputs and c columns of targets; Z is never held.

        Time is O(n p (m + p + c) + p³), memory O(p (p + c)) and a block.
        """
        columns = 0 if targets is None else targets.shape[1]
        covariance, cross = (
            torch.zeros(basis.dim, width, dtype=torch.float64, device=basis.device) for width in (basis.dim, columns)
        )
        weights = (torch.ones(count(X)) if weights is None else weights).to(cross)
        for where, block in blocks(X, BLOCK):
            z = basis.embed(block)
            weighted = weights[where, None] * z
            covariance.addmm_(weighted.T, z)
            if targets is not None:
                cross.addmm_(weighted.T, targets[where].to(z))
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
        eigenvalues = eigenvalues.clamp(min=0)
        return cls(basis.kernel, basis.anchors, weights, eigenvalues, eigenvectors, basis, X, cross)

    def solve_dual(self, regularization: float) -> Tensor:  # (m, p)
        dual = self.basis.projection.T @ self.solve(self.cross, regularization)
        return dual if self.basis.weights is None else self.basis.weights.T @ dual

    def leave_one_out(
        self, targets: Tensor, directions: Tensor | None, penalties: Sequence[float]
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Here h_i = s_i z_iᵀ (Zᵀ S Z + n λ I)^{-1} z_i."""
        turned = self.eigenvectors.T @ (self.cross if directions is None else self.cross @ directions)
        for where, block in blocks(self.X, BLOCK):
            z, t = self.basis.embed(block) @ self.eigenvectors, targets[where].to(self.cross)
            left_out = []
            for penalty in penalties:
                shrunk = z / (self.eigenvalues + self.total * penalty)
                h = (self.weights[where, None] * (shrunk * z).sum(dim=1, keepdim=True)).clamp(max=1 - EPSILON)
                left_out.append((shrunk @ turned - h * t) / (1 - h))
            yield where, left_out
