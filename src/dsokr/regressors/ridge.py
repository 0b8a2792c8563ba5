"""Kernel ridge regression of the coordinates: SISOKR, and IOKR without sketches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import scipy.sparse as sp
import torch
from torch import Generator, Tensor

from dsokr import kernels
from dsokr.basis import BLOCK, SketchedBasis, sketch_basis
from dsokr.errors import InputError, check_fields
from dsokr.kernels import Cosine, Gaussian, Kernel
from dsokr.outputs import Outputs, as_outputs, blocks, count
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
)
from dsokr.regressors.inputs import Scaler
from dsokr.saving import parse_expression, write_expression
from dsokr.sketches import Full, SketchSpec, SubSample

PENALTIES = tuple(10.0 ** (exponent / 2) for exponent in range(-14, 1))  # λ to choose from
ANCHORS = 1500  # inputs that span the space of functions, at most, unless a sketch is given
WIDTHS = (0.25, 1.0, 4.0)  # of Gaussian kernels, times one over the median squared distance
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
    the basis, or 1,500 of them if there are more.

    ``regularization`` is λ > 0, or several. The best of them, and of the kernels, is that with the smallest error on
    the validation pairs, by ``monitor``, where "loss" is the mean squared distance of the coordinates. Without
    validation pairs it is the best one leaving out each pair in turn, which has a closed form. One eigendecomposition
    serves every λ. With ``intercept``, the mean of the targets is regressed for nothing, and not penalised.

    >>> from dsokr import DSOKR, kernels, sketches
    >>> words = ["CCO", "CCN", "CCCO", "CCCN", "OCCO", "NCCN"] * 5
    >>> ngrams = kernels.NGram((1, 2))
    >>> model = DSOKR(ngrams.normalized(), sketches.Full(), KernelRidge(ngrams), random_state=0)
    >>> model.fit(words, words).predict(["NCCN", "CCCO"])
    ['NCCN', 'CCCO']
    """

    kernel: Kernel | None = None
    sketch: SketchSpec | None = None
    regularization: float | tuple[float, ...] = PENALTIES
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
        given = self.regularization
        return tuple(map(float, given)) if isinstance(given, tuple | list) else (float(given),)

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedRidge:
        """Solve for every kernel and λ: O(n m p) time for the coordinates of n inputs, O(m² + m · block) memory."""
        scaler = Scaler.of(X, targets.weighted()) if self.kernel is None else None
        X, mean = _as_rows(X, scaler), targets.mean() * self.intercept
        fits, rows = [], []
        for kernel in _list_kernels(X, seed) if self.kernel is None else (self.kernel,):
            basis = sketch_basis(kernel, X, self._choose_sketch(X), generator=_generator(seed), device=device)
            ridge = SketchedRidge.of(basis, X, targets.coordinates - mean, targets.weights)
            if validation is not None:
                errors = self._validate(ridge, _as_rows(validation[0], scaler), validation[1], mean, score)
            else:
                errors = self._leave_one_out(ridge, X, targets, mean)
            for penalty, error in zip(self.penalties, errors, strict=True):
                fits.append((ridge, penalty))
                rows.append({"epoch": len(fits), "regularization": penalty, **error})
        best = max(rows, key=lambda row: row.get("val_score", -row["val_loss"]))
        ridge, penalty = fits[int(best["epoch"]) - 1]
        history = History(rows if len(rows) > 1 or validation else [], int(best["epoch"]))
        return FittedRidge(scaler, ridge.basis, ridge.solve(ridge.cross, penalty), mean, penalty, history, ridge)

    def fit_out_of_fold(
        self, X: Any, targets: Targets, folds: Sequence[Tensor], *, seed: int, device: Device
    ) -> tuple[FittedRidge, Tensor]:
        """Leave one out, in closed form; the kernel, λ and the mean of the targets come from all pairs."""
        fitted = self.fit(X, targets, seed=seed, device=device)
        rows, z = _as_rows(X, fitted.scaler), torch.empty_like(targets.coordinates)
        centred, penalties = targets.coordinates - fitted.mean, (fitted.regularization,)
        assert fitted.ridge is not None  # it was just fitted
        for where, (left_out,) in fitted.ridge.leave_one_out(rows, centred, targets.weights, penalties):
            z[where] = (left_out + fitted.mean).to(z)
        return fitted, z

    def _choose_sketch(self, X: Outputs) -> SketchSpec:
        return self.sketch or (Full() if count(X) <= ANCHORS else SubSample(ANCHORS))

    def _validate(
        self, ridge: SketchedRidge, X: Outputs, targets: Targets, mean: Tensor, score: Score
    ) -> Iterator[dict[str, float]]:
        """The error of every λ on validation inputs."""
        inputs, weights = ridge.basis.embed(X), targets.weighted()
        for penalty in self.penalties:
            z = inputs @ ridge.solve(ridge.cross, penalty) + mean
            errors = (z - targets.coordinates).square().sum(dim=1).add(targets.residuals)
            error = {"val_loss": (weights @ errors / weights.sum()).item()}
            yield error if score is None else error | {"val_score": score(z)}

    def _leave_one_out(
        self, ridge: SketchedRidge, X: Outputs, targets: Targets, mean: Tensor
    ) -> Iterator[dict[str, float]]:
        """The error of every λ, leaving out each pair in turn, in the directions in which the outputs vary most."""
        if len(self.penalties) == 1 and self.kernel is not None:  # nothing to choose
            yield {"val_loss": math.nan}
            return
        directions, weights = leading_directions(targets, DIRECTIONS), targets.weighted()
        goals = (targets.coordinates - mean) @ directions
        short, totals = replace(ridge, cross=ridge.cross @ directions), [0.0] * len(self.penalties)
        for where, left_out in short.leave_one_out(X, goals, targets.weights, self.penalties):
            for number, z in enumerate(left_out):
                totals[number] += (weights[where] @ (z - goals[where]).square().sum(dim=1)).item()
        yield from ({"val_loss": total / weights.sum().item()} for total in totals)

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedRidge:
        kernel = self.kernel or parse_expression(state["kernel"], kernels)
        basis = SketchedBasis(kernel, state["anchors"], state["sketch"], state["projection"]).to(device)
        scaler = None if state["scaler"] is None else Scaler(**state["scaler"])
        weights, mean = state["weights"].to(device), state["mean"].to(device)
        return FittedRidge(scaler, basis, weights, mean, state["regularization"])


def _generator(seed: int) -> Generator:
    return Generator().manual_seed(seed + 1)  # the outputs' sketch uses the seed itself


def _as_rows(X: Any, scaler: Scaler | None) -> Outputs:
    return as_outputs(X, "X") if scaler is None else scaler.scale(X)


def _list_kernels(X: Outputs, seed: int) -> tuple[Kernel, ...]:
    """The kernels to compare on a scaled table: Gaussians whose widths are around the median distance."""
    if sp.issparse(X):
        return (Cosine(),)
    some = X[torch.randperm(len(X), generator=_generator(seed))[:1000]]
    typical = (some[1:] - some[:-1]).square().sum(dim=1).median().item() or 1.0
    return tuple(Gaussian(factor / typical) for factor in WIDTHS)


@dataclass
class FittedRidge(Fitted):
    """g(x) = mean + Wᵀ ψ̃_x(x)."""

    scaler: Scaler | None
    basis: SketchedBasis  # of the inputs
    weights: Tensor  # W, (p_x, p)
    mean: Tensor  # (p,)
    regularization: float
    history: History = field(default_factory=History)  # a row for every kernel and λ that was compared
    ridge: SketchedRidge | None = None  # None for a saved model

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        return self.basis.embed(_as_rows(X, self.scaler)) @ self.weights + self.mean

    def state(self) -> State:
        return {
            "anchors": self.basis.anchors,
            "sketch": self.basis.weights,
            "projection": self.basis.projection,
            "weights": self.weights,
            "mean": self.mean,
            "regularization": self.regularization,
            "scaler": self.scaler and self.scaler.state(),
            "kernel": self.scaler and write_expression(self.basis.kernel, kernels),  # which was chosen
        }


@dataclass(frozen=True, eq=False)
class SketchedRidge:
    """Ridge regression on the coordinates of n inputs in a basis: one eigendecomposition serves every λ.

    With Z (n, p) the coordinates, Zᵀ Z = U D Uᵀ and (Zᵀ Z + n λ I)^{-1} = U (D + n λ)^{-1} Uᵀ. With weights s on the
    rows, Zᵀ S Z takes the place of Zᵀ Z, Zᵀ S T that of Zᵀ T, and Σ_i s_i that of n.
    """

    basis: SketchedBasis
    n: float
    eigenvalues: Tensor  # D, (p,)
    eigenvectors: Tensor  # U, (p, p)
    cross: Tensor  # Zᵀ T, (p, c)

    @classmethod
    def of(
        cls, basis: SketchedBasis, X: Outputs, targets: Tensor | None = None, weights: Tensor | None = None
    ) -> SketchedRidge:
        """Accumulate Zᵀ Z and Zᵀ T over blocks of the n inputs and c columns of targets; Z is never held.

        Time is O(n p (m + p + c) + p³), memory O(p (p + c)) and a block.
        """
        columns = 0 if targets is None else targets.shape[1]
        covariance, cross = (
            torch.zeros(basis.dim, width, dtype=torch.float64, device=basis.device) for width in (basis.dim, columns)
        )
        for where, block in blocks(X, BLOCK):
            z = basis.embed(block)
            weighted = z if weights is None else weights[where].to(z)[:, None] * z
            covariance.addmm_(weighted.T, z)
            if targets is not None:
                cross.addmm_(weighted.T, targets[where].to(z))
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
        n = count(X) if weights is None else weights.sum().item()
        return cls(basis, n, eigenvalues.clamp(min=0), eigenvectors, cross)

    def solve(self, right: Tensor, regularization: float) -> Tensor:  # (p, q) -> (p, q)
        """(Zᵀ Z + n λ I)^{-1} times the right side."""
        scaled = (self.eigenvectors.T @ right) / (self.eigenvalues + self.n * regularization)[:, None]
        return self.eigenvectors @ scaled

    def leave_one_out(
        self, X: Outputs, targets: Tensor, weights: Tensor | None, penalties: Sequence[float]
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Predict each training input by the solution without it, for every λ, block by block.

        With h_i = s_i z_iᵀ (Zᵀ S Z + n λ I)^{-1} z_i that is (ŷ_i − h_i y_i) / (1 − h_i).
        """
        turned = self.eigenvectors.T @ self.cross
        for where, block in blocks(X, BLOCK):
            z, t = self.basis.embed(block) @ self.eigenvectors, targets[where].to(self.cross)
            s = torch.ones_like(t[:, :1]) if weights is None else weights[where].to(t)[:, None]
            left_out = []
            for penalty in penalties:
                shrunk = z / (self.eigenvalues + self.n * penalty)
                h = s * (shrunk * z).sum(dim=1, keepdim=True)
                left_out.append((shrunk @ turned - h * t) / (1 - h).clamp(min=EPSILON))
            yield where, left_out
