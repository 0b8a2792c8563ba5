"""Networks that predict the outputs themselves: numbers by least squares, sets of labels by logistic regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from dsokr.losses import Objective
from dsokr.metrics import f1
from dsokr.regressors import Neural, Targets, Training
from dsokr.regressors.networks import NetworkFactory
from dsokr.regressors.neural import FittedNetwork
from studies.study import CPU

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))


def as_targets(Y: Any) -> Targets:  # (n, p)
    """Numbers as regression targets, without residuals."""
    Y = torch.as_tensor(Y)
    return Targets(Y, torch.zeros(len(Y)))


def fit_regression(
    network: NetworkFactory, training: Training, train: Any, validation: Any, *, seed: int, **options: Any
) -> FittedNetwork:
    """min over W of the mean of ‖g_W(x) − y‖² over pairs (X, Y); the epoch is chosen on validation pairs.

    Options are those of ``Regressor.fit``: the device, and a score instead of the loss.

    >>> from dsokr import networks
    >>> X = torch.linspace(-1, 1, 64)[:, None]
    >>> pairs = X, X.expand(-1, 3)
    >>> fit_regression(networks.MLP(()), Training(epochs=2, progress=False), pairs, pairs, seed=0).predict(X).shape
    torch.Size([64, 3])
    """
    pairs, held_out = ((X, as_targets(Y)) for X, Y in (train, validation))
    return Neural(network, training=training).fit(*pairs, held_out, seed=seed, **{"device": CPU} | options)


@dataclass(frozen=True)
class BinaryCrossEntropy(Objective):
    """Σ_l log(1 + exp(−s_l z_l)) with s_l = 1 for the labels of a set and −1 for others, as a mean over pairs.

    >>> BinaryCrossEntropy().mean(torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3))
    tensor(0.6931)
    """

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(z, target, reduction="sum") / len(z)


class Shifted(nn.Module):
    """g(x) + shift: a network that starts from known log-odds."""

    shift: Tensor

    def __init__(self, network: nn.Module, shift: Tensor):
        super().__init__()
        self.network = network
        self.register_buffer("shift", shift)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs) + self.shift


@dataclass
class LabelNetwork:
    """min over W of the mean of −log p_W(y | x), with p_W(y | x) = Π_l σ(g_W(x)_l)^{y_l} (1 − σ(g_W(x)_l))^{1 − y_l}.

    With validation pairs, the epoch is the one with the best example-based F1 over all thresholds.

    >>> from dsokr import networks
    >>> X = np.linspace(-1, 1, 64)[:, None]
    >>> model = LabelNetwork(networks.MLP(()), Training(20, learning_rate=0.1, progress=False), seed=0)
    >>> model.fit(X, np.hstack([X > 0, X < 0])).decide(model.probabilities(np.array([[-0.8], [0.8]])), 0.5)
    array([[False,  True],
           [ True, False]])
    """

    network: NetworkFactory
    training: Training
    seed: int

    def fit(self, X: np.ndarray, Y: np.ndarray, validation: tuple[Any, Any] | None = None) -> LabelNetwork:
        self.never_empty = bool(Y.any(axis=1).all())  # whether every training set has a label
        counts = torch.from_numpy(Y.sum(axis=0, dtype=np.float64))
        log_odds = torch.log((counts + 0.5) / (len(Y) - counts + 0.5)).float()
        training = replace(self.training, standardize=False)
        regressor = Neural(lambda p: Shifted(self.network(p), log_odds), BinaryCrossEntropy(), training)
        held_out, score = None, None
        if validation is not None:
            held_out = validation[0], as_targets(validation[1])

            def score(z: Tensor) -> float:
                return self.best_threshold(z.sigmoid().numpy(), validation[1])[0]

        self.fitted = regressor.fit(X, as_targets(Y), held_out, seed=self.seed, device=CPU, score=score)
        return self

    def probabilities(self, X: np.ndarray) -> np.ndarray:  # (n, labels)
        """σ(g(x)), of every label by itself."""
        return self.fitted.predict(X).sigmoid().numpy()

    def decide(self, probabilities: np.ndarray, threshold: float) -> np.ndarray:  # (n, labels) of bool
        """The labels above the threshold; also the likeliest one, if no training set is empty."""
        sets = probabilities > threshold
        if self.never_empty:
            np.put_along_axis(sets, probabilities.argmax(axis=1)[:, None], True, axis=1)
        return sets

    def best_threshold(self, probabilities: np.ndarray, Y: np.ndarray) -> tuple[float, float]:
        """The best F1 on these pairs, and the threshold that gives it."""
        return max((f1(self.decide(probabilities, t), Y), t) for t in THRESHOLDS)
