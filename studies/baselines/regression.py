"""A network that predicts the numbers of the outputs themselves, under the mean squared error."""

from __future__ import annotations

from typing import Any

import torch

from dsokr.regressors import Neural, Targets, Training
from dsokr.regressors.base import Score
from dsokr.regressors.networks import NetworkFactory
from dsokr.regressors.neural import FittedNetwork

CPU = torch.device("cpu")


def as_targets(Y: Any) -> Targets:  # (n, p)
    """Numbers as regression targets, without residuals."""
    Y = torch.as_tensor(Y)
    return Targets(Y, torch.zeros(len(Y)))


def fit_regression(
    network: NetworkFactory,
    training: Training,
    X: Any,
    Y: Any,
    validation: tuple[Any, Any],
    *,
    seed: int,
    device: torch.device = CPU,
    score: Score | None = None,
) -> FittedNetwork:
    """min over W of the mean of ‖g_W(x) − y‖²; the epoch is chosen on validation, by ``score`` if there is one.

    >>> from dsokr import networks
    >>> X = torch.linspace(-1, 1, 64)[:, None]
    >>> options = Training(epochs=2, progress=False)
    >>> fit_regression(networks.MLP(()), options, X, X.expand(-1, 3), (X, X.expand(-1, 3)), seed=0).predict(X).shape
    torch.Size([64, 3])
    """
    held_out = validation[0], as_targets(validation[1])
    return Neural(network, training=training).fit(X, as_targets(Y), held_out, seed=seed, device=device, score=score)
