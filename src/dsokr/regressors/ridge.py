"""Kernel ridge regression of the coordinates: SISOKR, and IOKR without sketches."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from dsokr.basis import BLOCK, SketchedBasis, sketch_basis
from dsokr.errors import InputError, check_fields
from dsokr.kernels import Kernel
from dsokr.outputs import Outputs, as_outputs, blocks, count
from dsokr.regressors.base import Device, Fitted, History, Monitor, Regressor, Score, State, Targets, Validation
from dsokr.sketches import Full, SketchSpec


@dataclass(frozen=True)
class KernelRidge(Regressor):
    """min over W of (1/n) Σ_i ‖Wᵀ ψ̃_x(x_i) − ψ̃(y_i)‖² + λ ‖W‖².

    ψ̃_x are coordinates in a sketched basis of the input kernel. With Z their rows and T the targets,
    W = (Zᵀ Z + n λ I)^{-1} Zᵀ T. ``DSOKR(kernel, sketch, KernelRidge(input_kernel, input_sketch))`` is SISOKR; with
    ``sketches.Full()`` on both sides it is input output kernel regression (IOKR). Inputs may be anything that the
    kernel takes: rows, strings, graphs.

    ``regularization`` is λ > 0, or several, of which the best on the validation pairs is kept: by ``monitor``, where
    "loss" is the mean squared distance of the coordinates. One eigendecomposition serves all of them.

    >>> from dsokr import DSOKR, kernels, sketches
    >>> words = ["CCO", "CCN", "CCCO", "CCCN", "OCCO", "NCCN"] * 5
    >>> ngrams = kernels.NGram((1, 2))
    >>> model = DSOKR(ngrams.normalized(), sketches.Full(), KernelRidge(ngrams), random_state=0)
    >>> model.fit(words, words).predict(["NCCN", "CCCO"])
    ['NCCN', 'CCCO']
    """

    kernel: Kernel
    sketch: SketchSpec = field(default_factory=Full)
    regularization: float | tuple[float, ...] = 1e-6
    validation_fraction: float = 0.0
    monitor: Monitor = "loss"

    def __post_init__(self) -> None:
        check_fields(self, regularization="(0, inf)", validation_fraction="[0, 1)")
        if not self.penalties:
            raise InputError("KernelRidge.regularization must be positive. Got no number.")

    @property
    def penalties(self) -> tuple[float, ...]:
        """Every λ to try."""
        given = self.regularization
        return tuple(map(float, given)) if isinstance(given, tuple | list) else (float(given),)

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedRidge:
        """Solve for every λ: O(n m p) time for the coordinates of n inputs, O(m² + m · block) memory."""
        if len(self.penalties) > 1 and validation is None:
            raise InputError(
                "KernelRidge.regularization is several values: pass validation=(X, Y) to choose on, set "
                "KernelRidge.validation_fraction, or give one value."
            )
        X, generator = as_outputs(X, "X"), Generator().manual_seed(seed + 1)  # the outputs' sketch uses the seed itself
        basis = sketch_basis(self.kernel, X, self.sketch, generator=generator, device=device)
        ridge = SketchedRidge.of(basis, X, targets.coordinates)
        history = History()
        if validation is not None:
            history = self._compare(ridge, basis.embed(as_outputs(validation[0], "X")), validation[1], score)
        penalty = self.penalties[max(history.best_epoch - 1, 0)]
        return FittedRidge(basis, ridge.solve(ridge.cross, penalty), penalty, history)

    def _compare(self, ridge: SketchedRidge, inputs: Tensor, targets: Targets, score: Score) -> History:
        """Evaluate every λ on validation inputs, given by their coordinates in the input basis."""
        rows = []
        for number, penalty in enumerate(self.penalties, start=1):
            z = inputs @ ridge.solve(ridge.cross, penalty)
            loss = (z - targets.coordinates).square().sum(dim=1).add(targets.residuals).mean().item()
            rows.append({"epoch": number, "regularization": penalty, "val_loss": loss})
            if score is not None:
                rows[-1]["val_score"] = score(z)
        best = max(rows, key=lambda row: row.get("val_score", -row["val_loss"]))
        return History(rows, int(best["epoch"]))

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedRidge:
        basis = SketchedBasis(self.kernel, state["anchors"], state["sketch"], state["projection"])
        return FittedRidge(basis.to(device), state["weights"].to(device), state["regularization"])


@dataclass
class FittedRidge(Fitted):
    """g(x) = Wᵀ ψ̃_x(x)."""

    basis: SketchedBasis  # of the inputs
    weights: Tensor  # W, (p_x, p)
    regularization: float
    history: History = field(default_factory=History)  # a row for every λ that was compared

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        return self.basis.embed(as_outputs(X, "X")) @ self.weights

    def state(self) -> State:
        parts = {"sketch": self.basis.weights, "projection": self.basis.projection, "anchors": self.basis.anchors}
        return {"weights": self.weights, "regularization": self.regularization, **parts}


@dataclass(frozen=True, eq=False)
class SketchedRidge:
    """Ridge regression on the coordinates of n inputs in a basis: one eigendecomposition serves every λ.

    With Z (n, p) the coordinates, Zᵀ Z = U D Uᵀ and (Zᵀ Z + n λ I)^{-1} = U (D + n λ)^{-1} Uᵀ.
    """

    n: int
    eigenvalues: Tensor  # D, (p,)
    eigenvectors: Tensor  # U, (p, p)
    cross: Tensor  # Zᵀ T, (p, c)

    @classmethod
    def of(cls, basis: SketchedBasis, X: Outputs, targets: Tensor | None = None) -> SketchedRidge:
        """Accumulate Zᵀ Z and Zᵀ T over blocks of the n inputs and c columns of targets; Z is never held.

        Time is O(n p (m + p + c) + p³), memory O(p (p + c)) and a block.
        """
        columns = 0 if targets is None else targets.shape[1]
        covariance, cross = (
            torch.zeros(basis.dim, width, dtype=torch.float64, device=basis.device) for width in (basis.dim, columns)
        )
        for where, block in blocks(X, BLOCK):
            z = basis.embed(block)
            covariance.addmm_(z.T, z)
            if targets is not None:
                cross.addmm_(z.T, targets[where].to(z))
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
        return cls(count(X), eigenvalues.clamp(min=0), eigenvectors, cross)

    def solve(self, right: Tensor, regularization: float) -> Tensor:  # (p, q) -> (p, q)
        """(Zᵀ Z + n λ I)^{-1} times the right side."""
        scaled = (self.eigenvectors.T @ right) / (self.eigenvalues + self.n * regularization)[:, None]
        return self.eigenvectors @ scaled
