"""Nearest neighbours: the mean of the features of the outputs whose inputs are closest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from dsokr.errors import check_fields
from dsokr.outputs import blocks, count, take
from dsokr.regressors.base import Device, Fitted, Regressor, Score, State, Targets, Validation, leading_directions
from dsokr.regressors.inputs import Scaler

SIZES = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100)  # numbers of neighbours to choose from
DIRECTIONS = 30  # of the outputs, in which they are compared
ROWS = 1024


@dataclass(frozen=True)
class Neighbors(Regressor):
    """g(x) = the mean of ψ̃(y) over the k nearest training inputs, in a standardised table of numbers.

    ``size`` is k; None chooses it by leaving out each pair in turn, which costs one search.
    """

    size: int | None = None

    reads = "numbers"

    def __post_init__(self) -> None:
        check_fields(self)

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedNeighbors:
        return self.fit_out_of_fold(X, targets, (), seed=seed, device=device)[0]

    def fit_out_of_fold(
        self, X: Any, targets: Targets, folds: Sequence[Tensor], *, seed: int, device: Device
    ) -> tuple[FittedNeighbors, Tensor]:
        """Leave one out. Pairs of weight 0 are no neighbours."""
        counting = targets.weighted().cpu().nonzero()[:, 0]
        if len(counting) < count(X):
            some = take(X, counting), targets.take(counting)
            fitted, own = self.fit_out_of_fold(*some, folds, seed=seed, device=device)
            z = fitted.predict(X).to(targets.coordinates)
            z[counting] = own
            return fitted, z
        scaler, n, weights = Scaler.of(X, targets.weighted()), count(X), targets.weighted().to(device)
        sizes = [min(self.size, n - 1)] if self.size else [k for k in SIZES if k < n] or [1]
        found = FittedNeighbors(scaler, scaler.scale(X), targets.coordinates.to(device), weights, sizes[-1])
        near = found.find(None, sizes[-1])  # of every training input, without itself
        goals = ((targets.coordinates - targets.mean()) @ leading_directions(targets, DIRECTIONS)).to(device)
        errors = [(weights @ (average(near[:, :k], goals, weights) - goals).square().sum(dim=1)).item() for k in sizes]
        best = sizes[int(np.argmin(errors))]
        z = average(near[:, :best], found.coordinates, weights).to(targets.coordinates)
        return replace(found, size=best), z

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedNeighbors:
        coordinates, weights = state["coordinates"].to(device), state["weights"].to(device)
        if not 1 <= state["size"] <= len(coordinates):
            raise ValueError(f"there are no {state['size']:.3g} neighbours")
        return FittedNeighbors(Scaler(**state["scaler"]), state["rows"], coordinates, weights, state["size"])


@dataclass(eq=False)
class FittedNeighbors(Fitted):
    """The training inputs, searched by scikit-learn."""

    scaler: Scaler
    rows: Any  # (n, d), scaled
    coordinates: Tensor  # (n, p)
    weights: Tensor  # (n,)
    size: int

    def __post_init__(self) -> None:
        self.search = NearestNeighbors().fit(self.rows)

    def find(self, rows: Any, k: int) -> Tensor:  # (n, k)
        """The nearest training inputs of scaled rows. ``rows=None`` means the training inputs, each without itself."""
        return torch.from_numpy(self.search.kneighbors(rows, k, return_distance=False)).to(self.coordinates.device)

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        near = self.find(self.scaler.scale(X), self.size)
        return average(near, self.coordinates, self.weights)

    def state(self) -> State:
        parts = {"coordinates": self.coordinates, "weights": self.weights, "scaler": self.scaler.state()}
        return {"rows": self.rows, "size": self.size, **parts}


def average(near: Tensor, coordinates: Tensor, weights: Tensor) -> Tensor:  # (n, k) -> (n, p)
    """The weighted mean of coordinates at positions, block by block: all at once may not fit into memory."""
    parts = []
    for _, block in blocks(near, ROWS):
        share = weights[block] / weights[block].sum(dim=1, keepdim=True)
        parts.append(torch.einsum("nk,nkp->np", share, coordinates[block]))
    return torch.cat(parts)
