"""Forests on the features of the outputs: output-kernel trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor

from dsokr.errors import check_fields
from dsokr.outputs import blocks
from dsokr.regressors.base import Device, Fitted, Regressor, Score, State, Targets, Validation, leading_directions

ROWS = 1024  # inputs that go down the trees at once
SIZES = (2, 4, 8, 16, 32, 64)  # choices of min_split
LARGE = 16  # from here on, bootstrapped trees are the better ones
DENSE = 4e8  # numbers in a sparse table up to which trees grow on a dense copy, which is faster


@dataclass(frozen=True)
class Forest(Regressor):
    """Extremely randomised trees whose leaves are means in the feature space of the outputs (Geurts et al., 2006).

    A split is the best of random ones in some of the columns, by the variance of ψ̃(y) on its two sides. Trees grow on
    the ``directions`` in which ψ̃(y) varies most and answer with *all* of ψ̃(y), so that p costs nothing while they grow:
    g(x) = Σ_i w_i(x) ψ̃(y_i), where w_i(x) is the mean over the trees of 1 / |leaf of x| if x_i is in that leaf.

    Nodes with fewer than ``min_split`` inputs are leaves. By default the number is chosen out of bag, from bootstrapped
    trees that are pruned to each choice. If that asks for large leaves, the outputs are noisy, and the bootstrapped
    trees are kept: they vary less. Otherwise trees are grown anew on all inputs: they are less biased.

    Reads tables of numbers, dense or sparse. Missing values (NaN) go to the side of a split that suits them.

    >>> from dsokr import DSOKR, kernels, sketches
    >>> X = np.arange(20.0).reshape(-1, 1)
    >>> model = DSOKR(kernels.NGram(1), sketches.Full(), Forest(10), random_state=0)
    >>> model.fit(X, ["low"] * 10 + ["high"] * 10).predict([[3.2], [17.9]])
    ['low', 'high']
    """

    trees: int = 100
    directions: int = 30
    min_split: int | Literal["auto"] = "auto"
    max_features: float | Literal["sqrt"] = "sqrt"  # columns to try for a split

    reads = "numbers"

    def __post_init__(self) -> None:
        check_fields(self, min_split=2, max_features="(0, 1]")

    def fit(
        self, X: Any, targets: Targets, validation: Validation = None, *, seed: int, device: Device, score: Score = None
    ) -> FittedForest:
        if self.min_split == "auto":
            return self.fit_out_of_fold(X, targets, (), seed=seed, device=device)[0]
        return self._fit_all(X, targets, self.min_split, seed, device)

    def fit_out_of_fold(
        self, X: Any, targets: Targets, folds: Sequence[Tensor], *, seed: int, device: Device
    ) -> tuple[FittedForest, Tensor]:
        """Out of bag: every input is predicted by those bootstrapped trees that were grown without it."""
        goals, weights = self._goals(targets), targets.weighted().cpu().numpy()
        forest = self._grow(X, goals, targets.weights, seed, bootstrap=True)
        drawn = np.stack([np.bincount(rows, minlength=len(goals)) for rows in forest.estimators_samples_], axis=1)
        trees, counts = Trees.of(forest), weights[:, None] * drawn
        grown_leaves, is_out = trees.root + forest.apply(_dense(X)), drawn == 0

        def predict(min_split: int, coordinates: np.ndarray) -> tuple[sp.csr_array, np.ndarray]:
            leaves = trees.prune_leaves(min_split)[grown_leaves]
            answers = trees.average_leaves(leaves, counts)
            parts = [_weigh(answers, leaves[at], is_out[at]) @ coordinates for at, _ in blocks(leaves, ROWS)]
            return answers, np.concatenate(parts)

        errors = {
            size: weights @ np.square(predict(size, goals)[1] - goals).sum(axis=1)
            for size in (SIZES if self.min_split == "auto" else (self.min_split,))
        }
        best = min(errors, key=lambda size: errors[size])
        answers, z = predict(best, targets.coordinates.cpu().numpy())
        if best >= LARGE and self.min_split == "auto":
            fitted = FittedForest(trees.pruned(best), answers, targets.coordinates.to(device))
        else:
            fitted = self._fit_all(X, targets, best, seed, device)
        return fitted, torch.from_numpy(z).to(targets.coordinates)

    def _fit_all(self, X: Any, targets: Targets, min_split: int, seed: int, device: Device) -> FittedForest:
        trees = Trees.of(self._grow(X, self._goals(targets), targets.weights, seed)).pruned(min_split)
        answers = trees.average_leaves(trees.find_leaves(X), targets.weighted().cpu().numpy()[:, None])
        return FittedForest(trees, answers, targets.coordinates.to(device))

    def _goals(self, targets: Targets) -> np.ndarray:  # (n, directions)
        """What trees grow on, rounded so that sums are exact and equal splits tie whatever the order of the rows."""
        centred = targets.coordinates - targets.mean()
        goals = (centred @ leading_directions(targets, self.directions)).cpu().numpy()
        unit = 2.0 ** (np.frexp(np.abs(goals).max())[1] - 24)
        return np.round(goals / unit) * unit

    def _grow(
        self, X: Any, goals: np.ndarray, weights: Tensor | None, seed: int, bootstrap: bool = False
    ) -> ExtraTreesRegressor:
        forest = ExtraTreesRegressor(
            self.trees, max_features=self.max_features, bootstrap=bootstrap, random_state=seed, n_jobs=-1
        )
        goals = goals if goals.shape[1] > 1 else goals[:, 0]
        return forest.fit(_dense(X), goals, None if weights is None else weights.cpu().numpy())

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedForest:
        trees = Trees(**state["trees"]).checked()
        if state["answers"].shape != (len(trees.left), len(state["coordinates"])):
            raise ValueError("the answers do not fit the trees")
        return FittedForest(trees, state["answers"], state["coordinates"].to(device))


class Trees(NamedTuple):
    """The nodes of all trees, one tree after another. A leaf is its own child."""

    root: np.ndarray  # (trees,)
    left: np.ndarray  # (nodes,)
    right: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray  # where missing values go
    size: np.ndarray  # the weight of the training inputs in a node

    @staticmethod
    def of(forest: ExtraTreesRegressor) -> Trees:
        grown = [tree.tree_ for tree in forest.estimators_]
        counts = [tree.node_count for tree in grown]
        root = np.cumsum([0, *counts])[:-1]
        start, node = np.repeat(root, counts), np.arange(sum(counts))

        def join(name: str) -> np.ndarray:
            return np.concatenate([getattr(tree, name) for tree in grown])

        sides = join("children_left"), join("children_right")
        left, right = (np.where(side < 0, node, start + side) for side in sides)
        threshold, missing, size = map(join, ("threshold", "missing_go_to_left", "weighted_n_node_samples"))
        return Trees(root, left, right, join("feature").clip(min=0), threshold, missing, size)

    def checked(self) -> Trees:
        """Check trees that come from a file: every child must come after its parent, so that all paths end."""
        node = np.arange(len(self.left))
        sides = all(len(part) == len(node) and ((part >= node) & (part < len(node))).all() for part in self[1:3])
        if not sides or any(len(part) != len(node) for part in self[3:]) or (self.feature < 0).any():
            raise ValueError("the nodes of the trees do not fit together")
        if ((self.root < 0) | (self.root >= len(node))).any():
            raise ValueError("the trees have no roots")
        return self

    def pruned(self, min_split: int) -> Trees:
        """The same trees, with nodes below this weight made leaves."""
        node, is_leaf = np.arange(len(self.size)), self.size < min_split
        return self._replace(left=np.where(is_leaf, node, self.left), right=np.where(is_leaf, node, self.right))

    def prune_leaves(self, min_split: int) -> np.ndarray:  # (nodes,)
        """The node that each node becomes part of if nodes below this weight are made leaves."""
        node = np.arange(len(self.size))
        parent = node.copy()
        for side in (self.left, self.right):
            inner = side != node
            parent[side[inner]] = node[inner]
        above = np.where(self.size[parent] < min_split, parent, node)
        while (above[above] != above).any():
            above = above[above]
        return above

    def find_leaves(self, X: Any) -> np.ndarray:  # (n, trees)
        """The leaf of every input in every tree. As in scikit-learn, inputs are compared in single precision."""
        dense = (block.toarray() if sp.issparse(block) else block for _, block in blocks(X, ROWS))
        return np.concatenate([self._descend(np.asarray(block, dtype=np.float32)) for block in dense])

    def _descend(self, X: np.ndarray) -> np.ndarray:
        rows, node = np.arange(len(X))[:, None], np.tile(self.root, (len(X), 1))
        while True:
            value = X[rows, self.feature[node]]
            goes_left = np.where(np.isnan(value), self.missing_left[node].astype(bool), value <= self.threshold[node])
            below = np.where(goes_left, self.left[node], self.right[node])
            if (below == node).all():
                return node
            node = below

    def average_leaves(self, leaves: np.ndarray, weights: np.ndarray) -> sp.csr_array:  # (nodes, n)
        """The weights of the training inputs in the mean of each leaf, given their leaves and weights (n, trees)."""
        rows = np.broadcast_to(np.arange(len(leaves))[:, None], leaves.shape)
        values = np.broadcast_to(weights, leaves.shape).ravel()
        total = np.bincount(leaves.ravel(), values, minlength=len(self.feature))
        values = values / np.where(total > 0, total, 1)[leaves.ravel()]
        shape = len(self.feature), len(leaves)
        answers = sp.csr_array((values, (leaves.ravel(), rows.ravel())), shape=shape)
        answers.eliminate_zeros()
        return answers


@dataclass(frozen=True, eq=False)
class FittedForest(Fitted):
    """g(x) = Σ_i w_i(x) ψ̃(y_i)."""

    trees: Trees
    answers: sp.csr_array  # (nodes, n): the weights of training outputs in a leaf
    coordinates: Tensor  # (n, p), of the training outputs

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        coordinates = self.coordinates.cpu().numpy()
        z = np.concatenate([self.weights(block) @ coordinates for _, block in blocks(X, ROWS)])
        return torch.from_numpy(z).to(self.coordinates)

    def weights(self, X: Any) -> sp.csr_array:  # (inputs, n)
        """w_i(x), the weight of every training output for every input: not negative, with sum 1."""
        leaves = self.trees.find_leaves(X)
        return _weigh(self.answers, leaves, np.ones(leaves.shape, dtype=bool))

    def state(self) -> State:
        return {"trees": self.trees._asdict(), "answers": self.answers, "coordinates": self.coordinates}


def _weigh(answers: sp.csr_array, leaves: np.ndarray, counts: np.ndarray) -> sp.csr_array:
    """The mean of the answers of those leaves (n, trees) that count."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    starts = np.arange(0, leaves.size + 1, leaves.shape[1])
    return sp.csr_array((share.ravel(), leaves.ravel(), starts), shape=(len(leaves), answers.shape[0])) @ answers


def _dense(X: Any) -> Any:
    """A table on which trees grow fast: dense, unless that is too large."""
    if not sp.issparse(X):
        return X
    return X.toarray() if np.prod(X.shape) <= DENSE else X.tocsc()
