"""A plain regression network: the outputs' numbers themselves, under the mean squared error."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dsokr.compute import resolve_device
from dsokr.errors import InputError
from dsokr.losses import Squared
from dsokr.regressors.networks import NetworkFactory, built, outputs_of, prepared
from dsokr.outputs import as_outputs, count
from dsokr.regressors.training import Pairs, Training, standardized, train


class Regression(RegressorMixin, BaseEstimator):
    """min over W of the mean of ‖g_W(x) − y‖², for outputs that are vectors.

    The network is trained as :class:`dsokr.DSOKR` trains its own, but without ``validation`` none of the pairs is held
    out. ``predict`` gives real vectors.

    >>> from dsokr import Training, networks
    >>> X = np.linspace(-1, 1, 64)[:, None]
    >>> model = Regression(networks.MLP(()), Training(epochs=2), random_state=0).fit(X, np.hstack([X, -X]))
    >>> model.predict(X).shape
    (64, 2)
    """

    def __init__(
        self,
        network: NetworkFactory,
        training: Training = Training(),  # noqa: B008 # frozen, so sharing it is harmless
        *,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.network = network
        self.training = training
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> Regression:
        """Train on pairs; ``validation`` is a pair (X, Y) on which the epoch to keep is chosen."""
        X, Y = (as_outputs(part, name) for part, name in ((X, "X"), (Y, "Y")))
        X, Y = (np.asarray(part) if isinstance(part, list | tuple) else part for part in (X, Y))
        monitor = self.training.monitor
        if monitor == "mrr":
            raise InputError("Regression knows of no candidates: Training.monitor must be 'loss' or a function.")
        if callable(monitor) and validation is None:
            raise InputError("Training.monitor needs validation pairs: pass validation=(X, Y).")
        if count(X) != count(Y):
            raise InputError(f"X and Y must have as many rows. Got {count(X)} inputs and {count(Y)} outputs.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        device = resolve_device(self.device)
        self.output_shape_ = tuple(Y.shape[1:])
        width = int(np.prod(self.output_shape_))
        network = built(self.network, width, X, seed)
        pairs, val = _pairs(network, X, Y), None if validation is None else _pairs(network, *validation)
        self.network_ = standardized(network, pairs, self.training)
        self.history_ = train(
            self.network_,
            pairs,
            val,
            Squared(),
            self.training,
            seed=seed,
            device=device,
            evaluate=(lambda z: float(monitor(self._shaped(z), validation[1]))) if callable(monitor) else None,  # type: ignore[index] # checked
        )
        return self

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "network_")
        return self._shaped(outputs_of(self.network_, prepared(self.network_, np.asarray(X))))

    def _shaped(self, z: Tensor) -> np.ndarray:
        return z.cpu().numpy().reshape(len(z), *self.output_shape_)


def _pairs(network: nn.Module, X: Any, Y: Any) -> Pairs:
    targets = torch.as_tensor(Y.toarray() if hasattr(Y, "toarray") else Y).to(torch.float32)
    return Pairs(prepared(network, X), targets.reshape(len(targets), -1), torch.zeros(len(targets)))
