"""Regressors of scikit-learn, as they are, and boosted trees."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import clone, is_regressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.utils import get_tags
from torch import Tensor

from dsokr.errors import InputError, ModelFolderError, check_fields, import_extra
from dsokr.outputs import count
from dsokr.regressors.base import Device, Fitted, Regressor, Score, State, Targets, Validation, leading_directions

FILE = "regressor.skops"
TRUSTED = {  # types of scikit-learn that are plain data, beside those that skops itself trusts
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.gaussian_process.kernels.ConstantKernel",
    "sklearn.gaussian_process.kernels.Product",
    "sklearn.gaussian_process.kernels.RBF",
    "sklearn.gaussian_process.kernels.Sum",
    "sklearn.gaussian_process.kernels.WhiteKernel",
    "sklearn.metrics._dist_metrics.EuclideanDistance32",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._ball_tree.BallTree",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.tree._tree.Tree",
}


@dataclass(frozen=True)
class Scikit(Regressor):
    """Any regressor of scikit-learn, or with its interface: ``Scikit(RandomForestRegressor())``.

    ``DSOKR(kernel, regressor=RandomForestRegressor())`` means the same. A regressor of single numbers is fitted to each
    of the ``directions`` in which the coordinates vary most; others predict all coordinates. Saved by skops
    (``pip install "dsokr[scikit]"``), without pickle.
    """

    estimator: Any = None  # None only in a loaded model whose estimator is in a file
    directions: int = 20

    reads = "numbers"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.estimator is not None and not is_regressor(self.estimator):
            raise InputError(f"Scikit.estimator must be a regressor of scikit-learn. Got {self.estimator!r:.80}.")

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedScikit:
        return _fit(clone(self.estimator), self.directions, X, targets, seed, device)

    def update(self, fitted: FittedScikit, X: Any, targets: Targets, *, seed: int, device: Device) -> FittedScikit:
        """Call ``partial_fit`` of a copy, if there is one; the mean and the directions stay."""
        estimator, goals = copy.deepcopy(fitted.estimator), targets.coordinates - fitted.mean
        if not hasattr(estimator, "partial_fit"):
            name = type(getattr(estimator, "estimator", estimator)).__name__
            raise InputError(f"{name} has no partial_fit, so that it cannot learn from further pairs: fit it anew.")
        if fitted.directions is not None:
            goals = goals @ fitted.directions
        _teach(estimator, estimator.partial_fit, X, goals, targets.weights)
        return replace(fitted, estimator=estimator)

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedScikit:
        return _restore(state, folder, device)


@dataclass(frozen=True)
class Boosted(Regressor):
    """Gradient boosting with histograms, one ensemble of trees for each of the leading ``directions``.

    Strong where outputs vary in few directions; the cost grows with each. Reads missing values as they are.
    """

    trees: int = 200
    learning_rate: float = 0.05
    directions: int = 20

    reads = "numbers"

    def __post_init__(self) -> None:
        check_fields(self, learning_rate="(0, 1]")

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedScikit:
        boosting = HistGradientBoostingRegressor(
            max_iter=self.trees, learning_rate=self.learning_rate, early_stopping=False
        )
        return _fit(boosting, self.directions, X, targets, seed, device)

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedScikit:
        return _restore(state, folder, device)


def _fit(estimator: Any, directions: int, X: Any, targets: Targets, seed: int, device: Device) -> FittedScikit:
    if "random_state" in estimator.get_params() and estimator.get_params()["random_state"] is None:
        estimator.set_params(random_state=seed)
    mean, turn = targets.mean(), None
    goals = targets.coordinates - mean
    if not get_tags(estimator).target_tags.multi_output:
        turn = leading_directions(targets, directions)
        estimator, goals = MultiOutputRegressor(estimator), goals @ turn
    _teach(estimator, estimator.fit, X, goals, targets.weights)
    return FittedScikit(estimator, mean.to(device), None if turn is None else turn.to(device))


def _teach(estimator: Any, method: Callable[..., Any], X: Any, goals: Tensor, weights: Tensor | None) -> None:
    """Call ``fit`` or ``partial_fit`` of an estimator."""
    arguments: dict[str, Any] = {}
    if weights is not None:
        if "sample_weight" not in signature(method).parameters:
            raise InputError(f"{type(estimator).__name__} takes no sample weights.")
        arguments["sample_weight"] = weights.cpu().numpy()
    is_single = goals.shape[1] == 1 and not isinstance(estimator, MultiOutputRegressor)
    method(_suit(X, estimator), (goals[:, 0] if is_single else goals).cpu().numpy(), **arguments)


def _restore(state: State, folder: Path, device: Device) -> FittedScikit:
    load = import_extra("skops.io", "scikit")
    unknown = set(load.get_untrusted_types(file=folder / FILE)) - TRUSTED
    if unknown:
        raise ModelFolderError(f"{folder / FILE} holds objects of the type {min(unknown)}, which are not loaded.")
    turn = state.get("directions")
    return FittedScikit(
        load.load(folder / FILE, trusted=sorted(TRUSTED)),
        state["mean"].to(device),
        None if turn is None else turn.to(device),
    )


def _suit(X: Any, estimator: Any) -> Any:
    return X.toarray() if sp.issparse(X) and not get_tags(estimator).input_tags.sparse else X


@dataclass(frozen=True, eq=False)
class FittedScikit(Fitted):
    """g(x) = mean + V f(x), where f is what scikit-learn has fitted and V are directions, or the identity."""

    estimator: Any
    mean: Tensor  # (p,)
    directions: Tensor | None  # (p, q)

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        predicted = np.asarray(self.estimator.predict(_suit(X, self.estimator)), dtype=np.float64)
        predicted = predicted.reshape(count(X), -1)
        z = torch.from_numpy(predicted).to(self.mean)
        return self.mean + (z if self.directions is None else z @ self.directions.T)

    def state(self) -> State:
        return {"mean": self.mean} | ({} if self.directions is None else {"directions": self.directions})

    def write_files(self, folder: Path) -> None:
        import_extra("skops.io", "scikit").dump(self.estimator, folder / FILE)
