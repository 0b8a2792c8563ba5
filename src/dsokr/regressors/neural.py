"""Neural networks as regressors: any torch module, trained on a loss of the distance in feature space."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dsokr.compute import seeded
from dsokr.errors import InputError, check_fields
from dsokr.losses import Loss, Objective, Squared, as_loss
from dsokr.regressors.base import (
    Device,
    Fitted,
    History,
    Monitor,
    Reads,
    Regressor,
    Score,
    State,
    Targets,
    Validation,
)
from dsokr.regressors.inputs import Scaler
from dsokr.regressors.networks.base import (
    NetworkFactory,
    Standardized,
    apply_network,
    build_network,
    call_optional,
    check_weights,
    prepare_inputs,
)
from dsokr.regressors.streaming import TargetStream
from dsokr.regressors.training import Training

LARGE = 512  # coordinates; in small bases a narrow layer costs little


@dataclass(frozen=True)
class Neural(Regressor):
    """min over W of the mean of c(‖g_W(x) − ψ̃(y)‖² + residual(y)), by stochastic gradient descent.

    ``network`` is a factory from p to a torch module, ``loss`` a ``losses.Loss`` or any non-decreasing function of the
    squared distance in feature space.

    >>> from dsokr import networks
    >>> Neural(networks.MLP(hidden=(32,)), training=Training(epochs=5)).validation_fraction
    0.1
    """

    network: NetworkFactory
    loss: Objective | Callable[[Tensor], Tensor] = field(default_factory=Squared)
    training: Training = field(default_factory=Training)
    streams = True
    reads: Reads = "raw"  # "numbers": a table, which is standardised, and missing values are put at the mean

    def __post_init__(self) -> None:
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise InputError(
                "network must be a function from p to a torch module, such as networks.MLP() or `lambda p: ...`: "
                f"p is known only once the basis is. Got {type(self.network).__name__}."
            )
        check_fields(self)

    @property
    def validation_fraction(self) -> float:  # type: ignore[override] # a constant elsewhere
        return self.training.validation_fraction

    @property
    def monitor(self) -> Monitor:  # type: ignore[override]
        return self.training.monitor

    def fit(
        self,
        X: Any,
        targets: Targets,
        validation: Validation = None,
        *,
        seed: int,
        device: Device,
        score: Score = None,
        stream: TargetStream | None = None,
    ) -> FittedNetwork:
        """Train on X and targets or, if there is one, on a stream of which they are a sample."""
        loss, p = self._choose_loss(targets), targets.coordinates.shape[1]
        scaler = Scaler.of(X, targets.weighted()) if self.reads == "numbers" else None
        network = build_network(self.network, p, _scale(X, scaler), seed)
        _warn_if_narrow(network, p)
        pairs = self._make_pairs(network, _scale(X, scaler), targets, device)
        held_out = None
        if validation is not None:
            held_out = self._make_pairs(network, _scale(validation[0], scaler), validation[1], device)
        scaled = Standardized(network, p)
        if self.training.standardize:
            scaled.scale_to(pairs.tensors[1])
        if stream is not None:
            stream = stream.prepared(lambda X: prepare_inputs(network, _scale(X, scaler)))
        history = _train(
            scaled, pairs, held_out, loss, self.training, seed=seed, device=device, score=score, stream=stream
        )
        return FittedNetwork(scaled, history, scaler)

    def update(self, fitted: FittedNetwork, X: Any, targets: Targets, *, seed: int, device: Device) -> FittedNetwork:
        """One epoch over further pairs, from the current weights, at the full learning rate.

        The scales of inputs and targets stay, and the optimizer starts anew.
        """
        network, loss = copy.deepcopy(fitted.network).train(), self._choose_loss(targets)
        training = replace(self.training, epochs=1, schedule="constant", warmup_steps=0, folder=None)
        pairs = self._make_pairs(network, _scale(X, fitted.scaler), targets, device)
        _train(network, pairs, None, loss, training, seed=seed, device=device)
        return FittedNetwork(network, fitted.history, fitted.scaler)

    def inside(self, name: str) -> Neural:
        return replace(self, training=self.training.inside(name))

    def decided_by(self, histories: Sequence[History]) -> Neural:
        """With as many epochs as the fits took to their best, on average."""
        epochs = fmean(history.best_epoch for history in histories)
        return replace(self, training=replace(self.training, epochs=max(1, round(epochs))))

    def restore(self, state: State, folder: Path, p: int, device: Device) -> FittedNetwork:
        factory = self.network
        if hasattr(factory, "from_files"):
            factory = factory.from_files(folder)
        if type(self.network).__module__.startswith("dsokr."):  # its sizes come from a file
            check_weights(factory, p, state["weights"])
        with seeded(0):  # the weights drawn here are replaced at once
            network = Standardized(factory(p), p)
        network.load_state_dict(state["weights"])
        scaler = None if state["scaler"] is None else Scaler(**state["scaler"])
        return FittedNetwork(network.to(device).eval(), History(), scaler)

    def _choose_loss(self, targets: Targets) -> Objective:
        loss = as_loss(self.loss)
        if targets.weights is not None and not isinstance(loss, Loss):
            raise InputError(f"{type(loss).__name__} takes no sample weights.")
        return loss

    def _make_pairs(self, network: nn.Module, X: Any, targets: Targets, device: Device) -> TensorDataset:
        where = device if self.training.keep_data_on_device else torch.device("cpu")
        parts = (part.float().to(where) for part in targets[:3] if part is not None)  # groups are for splits
        return TensorDataset(prepare_inputs(network, X), *parts)


def _train(*arguments: Any, **options: Any) -> History:
    """Call :func:`dsokr.regressors.loop.train`: what trains no network need not wait for Lightning."""
    return import_module("dsokr.regressors.loop").train(*arguments, **options)


def _scale(X: Any, scaler: Scaler | None) -> Any:
    if scaler is None:
        return X
    rows = scaler.scale(X)
    return torch.from_numpy(rows.toarray()) if sp.issparse(rows) else rows


@dataclass
class FittedNetwork(Fitted):
    """A trained network, in evaluation mode."""

    network: nn.Module
    history: History
    scaler: Scaler | None = None

    def predict(self, X: Any) -> Tensor:  # (n, p) float64
        return apply_network(self.network, prepare_inputs(self.network, _scale(X, self.scaler))).double()

    def state(self) -> State:
        return {"weights": self.network.state_dict(), "scaler": self.scaler and self.scaler.state()}

    def write_files(self, folder: Path) -> None:
        call_optional(self.network, "write_files", folder)


def _warn_if_narrow(network: nn.Module, p: int) -> None:
    """Warn if the last hidden layer is much narrower than p: its outputs then span a subspace only."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    if len(layers) > 1 and layers[-1].out_features == p > max(LARGE, 2 * layers[-1].in_features):
        warnings.warn(
            f"The last hidden layer has {layers[-1].in_features} units for p = {p} coordinates, so that predictions "
            "stay in a subspace: a width of about p is often better.",
            stacklevel=4,
        )
