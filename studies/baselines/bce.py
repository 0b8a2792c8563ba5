"""One logistic output a label: the network that multi-label classification usually begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from dsokr.regressors.ridge import paired
from dsokr.compute import resolve_device
from dsokr.errors import InputError
from dsokr.losses import Objective
from dsokr.metrics import f1
from dsokr.regressors.networks import NetworkFactory, Standardized, built, outputs_of, prepared
from dsokr.regressors.training import Metric, Pairs, Training, train

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))  # tried when none is given


@dataclass(frozen=True)
class BinaryCrossEntropy(Objective):
    """Σ_l log(1 + exp(−s_l z_l)) with s_l = 1 for the labels of a set and −1 for others, as a mean over pairs.

    >>> BinaryCrossEntropy().mean(torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3))
    tensor(0.6931)
    """

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(z, target, reduction="sum") / len(z)


class LabelNetwork(BaseEstimator):
    """min over W of the mean of −log p_W(y | x), with p_W(y | x) = Π_l σ(g_W(x)_l)^{y_l} (1 − σ(g_W(x)_l))^{1 − y_l}.

    Predicts {l : σ(g_W(x)_l) > threshold}; where no training set is empty, the likeliest label is always in it.

    Parameters
    ----------
    network : a factory from the number of labels to a torch module, e.g. ``networks.MLP(hidden=(512,))``.
    training : as for :class:`dsokr.DSOKR`. Without ``validation`` none of the pairs is held out. A ``monitor`` is
        given the sets predicted with the threshold that suits it best.
    threshold : in (0, 1), or None: that of ``THRESHOLDS`` which does best on the validation pairs, by the monitor or,
        if that is the loss, by the example-based F1.
    random_state : seed of the weights and the batches.
    device : "auto", "cpu", "cuda" or "cuda:1".

    After ``fit``: ``network_``, ``threshold_``, ``never_empty_`` and ``history_``.

    >>> from dsokr import Training, networks
    >>> X = np.linspace(-1, 1, 64)[:, None]
    >>> model = LabelNetwork(networks.MLP(()), Training(20, learning_rate=0.1), threshold=0.5, random_state=0)
    >>> model.fit(X, np.hstack([X > 0, X < 0])).predict([[-0.8], [0.8]])
    array([[False,  True],
           [ True, False]])
    """

    def __init__(
        self,
        network: NetworkFactory,
        training: Training = Training(),  # noqa: B008 # frozen, so sharing it is harmless
        *,
        threshold: float | None = None,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.network = network
        self.training = training
        self.threshold = threshold
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, Y: Any, validation: tuple[Any, Any] | None = None) -> LabelNetwork:
        """Train on pairs; the epoch to keep, and a threshold left open, are chosen on ``validation``, a pair (X, Y)."""
        self._check(validation)
        X, Y = _checked("LabelNetwork", X, Y)
        held_out = None if validation is None else _checked("LabelNetwork, validation", *validation)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        network = built(self.network, Y.shape[1], X, seed)
        pairs = _pairs(network, X, Y)
        val = None if held_out is None else _pairs(network, *held_out)
        self.dtype_, self.never_empty_ = Y.dtype, bool(Y.any(axis=1).all())
        self.network_ = Standardized(network, _log_odds(pairs.targets), torch.ones(Y.shape[1]))
        self.history_ = train(
            self.network_,
            pairs,
            val,
            BinaryCrossEntropy(),
            self.training,
            seed=seed,
            device=resolve_device(self.device),
            evaluate=None if self.training.monitor == "loss" else lambda z: self._best(z, held_out[1])[0],  # type: ignore[index] # checked
        )
        self.threshold_ = self._thresholds()[0]
        if held_out is not None:
            inputs = prepared(self.network_, held_out[0])
            self.threshold_ = self._best(outputs_of(self.network_, inputs), held_out[1])[1]
        return self

    def probabilities(self, X: Any) -> np.ndarray:  # (n, labels)
        """σ(g(x)), of every label by itself."""
        check_is_fitted(self, "network_")
        return _sigmoid(outputs_of(self.network_, prepared(self.network_, _dense(X))))

    def predict(self, X: Any) -> np.ndarray:  # (n, labels)
        """One set per input, as a row of zeros and ones of the type that ``fit`` got."""
        return self.sets(self.probabilities(X), self.threshold_)

    def sets(self, probabilities: np.ndarray, threshold: float) -> np.ndarray:  # (n, labels)
        """The labels that are likelier than the threshold."""
        sets = probabilities > threshold
        if self.never_empty_:
            np.put_along_axis(sets, probabilities.argmax(axis=1)[:, None], True, axis=1)
        return sets.astype(self.dtype_)

    def _best(self, z: Tensor, Y: np.ndarray) -> tuple[float, float]:
        """The best score on these pairs, and the threshold that gives it."""
        metric: Metric = self.training.monitor if callable(self.training.monitor) else f1
        probabilities = _sigmoid(z)
        return max((float(metric(self.sets(probabilities, t), Y)), t) for t in self._thresholds())

    def _thresholds(self) -> tuple[float, ...]:
        return THRESHOLDS if self.threshold is None else (self.threshold,)

    def _check(self, validation: Any) -> None:
        if self.threshold is None and validation is None:
            raise InputError("LabelNetwork.threshold is open: pass validation=(X, Y) to choose it on, or give one.")
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise InputError(f"LabelNetwork.threshold must be in (0, 1), or None. Got {self.threshold!r}.")
        if self.training.monitor == "mrr":
            raise InputError("LabelNetwork ranks no candidates: Training.monitor must be 'loss' or a function.")
        if self.training.monitor != "loss" and validation is None:
            raise InputError("Training.monitor needs validation pairs: pass validation=(X, Y).")


def _checked(owner: str, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
    X, Y = (_dense(part) for part in paired(owner, X, Y))
    wrong = (Y != 0) & (Y != 1)
    if Y.ndim != 2 or wrong.any():
        got = f"shape {Y.shape}" if Y.ndim != 2 else f"{Y[wrong][0]} in row {int(wrong.any(axis=1).argmax())}"
        raise InputError(f"{owner}: Y must be a matrix of zeros and ones, a column for every label. Got {got}.")
    return X, Y


def _dense(rows: Any) -> np.ndarray:
    return rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)


def _pairs(network: nn.Module, X: np.ndarray, Y: np.ndarray) -> Pairs:
    return Pairs(prepared(network, X), torch.from_numpy(Y.astype(np.float32)), torch.zeros(len(Y)))


def _log_odds(targets: Tensor) -> Tensor:  # (n, labels) -> (labels,)
    """Where the network begins: what is known of a label before any input is seen."""
    having = targets.sum(dim=0)
    return torch.log((having + 0.5) / (len(targets) - having + 0.5))


def _sigmoid(z: Tensor) -> np.ndarray:
    return torch.sigmoid(z).cpu().numpy()
