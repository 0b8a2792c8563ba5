"""Regressors of scikit-learn, as they are, and boosted trees."""

from __future__ import annotations

import copy
import sys
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
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import BallTree, KDTree
from sklearn.tree._tree import Tree
from sklearn.utils import get_tags
from torch import Tensor

from dsokr.errors import DSOKRError, InputError, ModelFolderError, check_fields, import_extra
from dsokr.outputs import count
from dsokr.regressors.base import Device, Fitted, Regressor, Score, State, Targets, Validation, leading_directions

FILE = "regressor.skops"
BinaryTree = BallTree | KDTree
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
        """Call ``partial_fit`` of a copy of the estimator; the mean and the directions stay."""
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
        if not sp.issparse(X):  # scikit-learn 1.9 refuses columns without a number
            X = np.where(np.isnan(X).all(axis=0), 0.0, X)
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
    try:
        unknown = set(load.get_untrusted_types(file=folder / FILE)) - TRUSTED
        if unknown:
            raise ModelFolderError(f"{folder / FILE} holds objects of the type {min(unknown)}, which are not loaded.")
        estimator, turn = load.load(folder / FILE, trusted=sorted(TRUSTED)), state.get("directions")
        _check_indices(estimator, sys.maxsize)
    except DSOKRError:
        raise
    except Exception as error:  # skops raises errors of many types
        raise ModelFolderError(f"{folder / FILE} is damaged: {error!r:.200}.") from error
    return FittedScikit(estimator, state["mean"].to(device), None if turn is None else turn.to(device))


def _check_indices(part: Any, columns: int) -> None:
    """Check the indices in all trees that skops has read, for inputs of so many columns: compiled code trusts them."""
    if isinstance(part, Tree):
        if not part.node_count <= part.capacity:
            raise ValueError("a tree has more nodes than there are")
        nodes = part.__getstate__()["nodes"]
        _check_nodes(nodes, "left_child", "right_child", nodes["left_child"] == -1, nodes["feature"], columns)
    elif isinstance(part, TreePredictor):
        nodes = part.nodes
        _check_nodes(nodes, "left", "right", nodes["is_leaf"] > 0, nodes["feature_idx"], columns)
        if (nodes["bitset_idx"][nodes["is_categorical"] > 0] >= len(part.raw_left_cat_bitsets)).any():
            raise ValueError("a tree has no such categories")
    elif isinstance(part, BinaryTree):
        _check_ranges(*part.__getstate__()[:7])
    elif isinstance(part, list | tuple | dict) or (isinstance(part, np.ndarray) and part.dtype == object):
        for item in part.values() if isinstance(part, dict) else part:
            _check_indices(item, columns)
    elif hasattr(part, "__dict__"):
        _check_indices(vars(part), min(columns, getattr(part, "n_features_in_", columns)))


def _check_nodes(nodes: Any, left: str, right: str, is_leaf: Any, feature: Any, columns: int) -> None:
    place = np.arange(len(nodes))
    inside = is_leaf | ((feature >= 0) & (feature < columns))
    for side in (left, right):
        inside &= is_leaf | ((nodes[side] > place) & (nodes[side] < len(nodes)))
    if not inside.all():
        raise ValueError("the nodes of a tree do not fit together")


def _check_ranges(data: Any, order: Any, nodes: Any, bounds: Any, leaf_size: int, levels: int, n_nodes: int) -> None:
    """Check a tree of nearest neighbours, where the children of node i are 2i + 1 and 2i + 2."""
    n, starts, ends = len(data), nodes["idx_start"], nodes["idx_end"]
    shapes = len(nodes) == n_nodes == 2**levels - 1 == bounds.shape[1] and len(order) == n
    inside = ((order >= 0) & (order < n)).all() and ((starts >= 0) & (starts <= ends) & (ends <= n)).all()
    if not (shapes and inside and (nodes["is_leaf"][n_nodes // 2 :] != 0).all() and bounds.shape[2] == data.shape[1]):
        raise ValueError("the nodes of a tree do not fit together")


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
