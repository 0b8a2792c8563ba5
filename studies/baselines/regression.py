"""A network that predicts the numbers of the outputs themselves, under the mean squared error."""

from typing import Any

import torch

from dsokr.regressors import Neural, Targets, Training
from dsokr.regressors.networks import NetworkFactory
from dsokr.regressors.neural import FittedNetwork

CPU = torch.device("cpu")


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
