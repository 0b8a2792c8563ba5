"""What the multi-label study compares: DSOKR, kernel ridge regression, and a network with logistic outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.preprocessing import StandardScaler, normalize
from torch import Generator, Tensor, nn

from dsokr.basis import SketchedBasis, sketch_basis
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, LabelSet
from dsokr.kernels import Gaussian, Kernel
from dsokr.metrics import f1
from dsokr.outputs import as_outputs, distinct
from dsokr.regressors import Neural, Targets, Training
from dsokr.regressors.networks import MLP
from dsokr.regressors.neural import FittedNetwork
from dsokr.regressors.ridge import SketchedRidge
from dsokr.rules import RULES
from dsokr.sketches import SubSample
from studies.baselines.regression import LabelNetwork
from studies.data.multilabel import MultiLabel
from studies.results import Row, pick_fields
from studies.study import CPU

LabelPairs = tuple[np.ndarray, np.ndarray]  # inputs (n, d), label sets (n, labels)

DECODERS: dict[str, tuple[Decoder, ...]] = {
    "Candidates": tuple(Candidates(rule) for rule in RULES),
    "LabelSet": (LabelSet(),),
}


@dataclass(frozen=True, eq=False)
class LabelTask:
    """One data set with scaled inputs: all training pairs, the two parts into which they are split, the test pairs."""

    name: str
    train: LabelPairs
    fitting: LabelPairs
    validation: LabelPairs
    test: LabelPairs

    @staticmethod
    def of(name: str, data: MultiLabel, held_out: float = 0.2) -> LabelTask:
        (X, Y), (X_test, Y_test) = data
        if sp.issparse(X):  # bags of words get one length, the average training row's: long texts should not weigh more
            length = np.sqrt(X.multiply(X).sum() / X.shape[0])
            X, X_test = (length * normalize(rows.toarray().astype(np.float64)) for rows in (X, X_test))
        else:
            scaler = StandardScaler().fit(X.astype(np.float64))
            X, X_test = scaler.transform(X), scaler.transform(X_test)
        order = np.random.default_rng(0).permutation(len(X))
        val, fit = np.split(order, [round(held_out * len(X))])
        return LabelTask(name, (X, Y), (X[fit], Y[fit]), (X[val], Y[val]), (X_test, Y_test))

    @cached_property
    def squared_norm(self) -> float:
        """The mean of ‖x‖², the unit in which the widths of input kernels are given."""
        return float(np.square(self.train[0]).sum(axis=1).mean())


class Choice(NamedTuple):
    """The settings chosen on the validation pairs, and the F1 there."""

    f1: float
    values: Row


class LabelMethod(ABC):
    """A method to compare. It may have several decoders, each with its own choices and its own row of results."""

    decoders: tuple[str, ...]

    @abstractmethod
    def key(self) -> Row:
        """The fields that tell its rows from those of other methods."""

    @abstractmethod
    def choose(self, task: LabelTask) -> dict[str, Choice]:
        """Choose settings by decoder: train on ``task.fitting``, evaluate on ``task.validation``."""

    @abstractmethod
    def predict(self, task: LabelTask, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        """Train on ``task.train`` with the chosen settings, and predict the test label sets by decoder."""


@dataclass(frozen=True)
class Encoder:
    """An MLP trained with a share of its inputs set to zero: a text without some of its words keeps its labels.

    >>> Encoder((16,))(3)(torch.zeros(2, 5)).shape
    torch.Size([2, 3])
    """

    hidden: tuple[int, ...]
    dropped_inputs: float = 0.0
    dropout: float = 0.0

    def __call__(self, p: int) -> nn.Module:
        return nn.Sequential(nn.Dropout(self.dropped_inputs), MLP(self.hidden, dropout=self.dropout)(p))


@dataclass(frozen=True)
class NetworkSetting:
    """A network and its training; the same are tried for DSOKR and for logistic outputs."""

    encoder: Encoder
    learning_rate: float = 1e-3
    weight_decay: float = 0.0

    def training(self, common: Training, epochs: int | None = None) -> Training:
        """The training with validation pairs, or for so many epochs without."""
        training = replace(common, learning_rate=self.learning_rate, weight_decay=self.weight_decay)
        return training if epochs is None else replace(training, epochs=epochs, patience=None)

    def key(self, common: Training) -> Row:
        names = ("epochs", "batch_size", "optimizer", "learning_rate", "weight_decay", "patience", "check_every")
        return {"encoder": str(self.encoder), "training": pick_fields(self.training(common), *names)}


@dataclass(frozen=True, eq=False)
class LabelSpace:
    """A basis drawn from label sets, and the distinct sets as candidates."""

    basis: SketchedBasis
    known: EmbeddedOutputs

    @staticmethod
    def of(kernel: Kernel, Y: np.ndarray, size: int, seed: int) -> LabelSpace:
        sketch = SubSample(min(size, len(Y)))
        basis = sketch_basis(kernel, Y, sketch, generator=Generator().manual_seed(seed))
        return LabelSpace(basis, EmbeddedOutputs(basis, Y[distinct(as_outputs(Y)).numpy()]))

    def decode(self, decoder: Decoder, z: Tensor) -> np.ndarray:
        return decoder.decode(self.basis, z, self.known).outputs

    def choose_rule(self, name: str, z: Tensor, Y: np.ndarray) -> Choice:
        """The rule of a decoder with the best F1."""
        tried = ((f1(self.decode(decoder, z), Y), decoder.scoring_rule()) for decoder in DECODERS[name])
        score, rule = max(tried, key=lambda pair: pair[0])
        return Choice(score, {"rule": rule})


def find_decoder(name: str, rule: str) -> Decoder:
    return next(decoder for decoder in DECODERS[name] if decoder.scoring_rule() == rule)


@dataclass(frozen=True)
class Deep(LabelMethod):
    """DSOKR; with several ``members``, the mean of the coefficients of networks that differ in their seeds alone.

    Early stopping monitors the F1 of the best training set by the best rule; then all decoders are tried.
    """

    kernel: Kernel
    setting: NetworkSetting
    training: Training
    size: int
    members: int = 1
    decoders = tuple(DECODERS)

    def key(self) -> Row:
        sketch = {"kernel": str(self.kernel), "sketch": "SubSample", "m": self.size, "members": self.members}
        return {"method": "dsokr"} | sketch | self.setting.key(self.training)

    def choose(self, task: LabelTask) -> dict[str, Choice]:
        X, Y = task.validation
        space = LabelSpace.of(self.kernel, task.fitting[1], self.size, seed=0)
        networks = self._fit(space, task.fitting, 0, self.setting.training(self.training), task.validation)
        epochs = round(fmean(network.history.best_epoch for network in networks))
        z = average_predictions(networks, X)
        choices = {name: space.choose_rule(name, z, Y) for name in self.decoders}
        return {name: Choice(score, {"epochs": epochs} | values) for name, (score, values) in choices.items()}

    def predict(self, task: LabelTask, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        epochs = chosen[self.decoders[0]]["epochs"]  # one training serves all decoders
        space = LabelSpace.of(self.kernel, task.train[1], self.size, seed)
        networks = self._fit(space, task.train, seed, self.setting.training(self.training, epochs))
        z = average_predictions(networks, task.test[0])
        return {name: space.decode(find_decoder(name, values["rule"]), z) for name, values in chosen.items()}

    def _fit(
        self, space: LabelSpace, pairs: LabelPairs, seed: int, training: Training, validation: LabelPairs | None = None
    ) -> list[FittedNetwork]:
        regressor = Neural(self.setting.encoder, training=training)
        targets, held_out, score = Targets(*space.basis.embed_with_residual(pairs[1])), None, None
        if validation is not None:
            X, Y = validation
            held_out = X, Targets(*space.basis.embed_with_residual(Y))

            def score(z: Tensor) -> float:
                return space.choose_rule("Candidates", z, Y).f1

        seeds = [1000 * seed + member for member in range(self.members)]
        return [regressor.fit(pairs[0], targets, held_out, seed=own, device=CPU, score=score) for own in seeds]


def average_predictions(networks: list[FittedNetwork], X: np.ndarray) -> Tensor:  # (n, p)
    return torch.stack([network.predict(X) for network in networks]).mean(dim=0)


@dataclass(frozen=True)
class Ridge(LabelMethod):
    """SISOKR with a Gaussian kernel exp(−width ‖x − x'‖² / mean ‖x‖²) on the inputs.

    Where there are no more training pairs than ``input_size`` and ``size``, it is IOKR.
    """

    kernel: Kernel
    size: int
    input_size: int
    widths: tuple[float, ...]
    regularizations: tuple[float, ...]
    decoders = tuple(DECODERS)

    def key(self) -> Row:
        sketch = {"kernel": str(self.kernel), "sketch": "SubSample", "m": self.size, "input_m": self.input_size}
        grid = {"widths": list(self.widths), "regularizations": list(self.regularizations)}
        return {"method": "sisokr"} | sketch | grid

    def choose(self, task: LabelTask) -> dict[str, Choice]:
        X, Y = task.validation
        space = LabelSpace.of(self.kernel, task.fitting[1], self.size, seed=0)
        tried: dict[str, list[Choice]] = {name: [] for name in self.decoders}
        for width in self.widths:
            predict = self._fit(space, task.fitting, width / task.squared_norm, seed=0)
            for value in self.regularizations:
                z = predict(X, value)
                for name in self.decoders:
                    score, rule = space.choose_rule(name, z, Y)
                    tried[name].append(Choice(score, {"width": width, "regularization": value} | rule))
        return {name: max(choices, key=lambda choice: choice.f1) for name, choices in tried.items()}

    def predict(self, task: LabelTask, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        space = LabelSpace.of(self.kernel, task.train[1], self.size, seed)
        sets = {}
        for name, values in chosen.items():
            predict = self._fit(space, task.train, values["width"] / task.squared_norm, seed)
            z = predict(task.test[0], values["regularization"])
            sets[name] = space.decode(find_decoder(name, values["rule"]), z)
        return sets

    def _fit(self, space: LabelSpace, pairs: LabelPairs, gamma: float, seed: int) -> Callable[[Any, float], Tensor]:
        """Fit all λ at once; return the function from inputs and λ to coordinates."""
        X, sketch = as_outputs(pairs[0]), SubSample(min(self.input_size, len(pairs[0])))
        inputs = sketch_basis(Gaussian(gamma), X, sketch, generator=Generator().manual_seed(seed))
        ridge = SketchedRidge.of(inputs, X, space.basis.embed(pairs[1]))
        return lambda X, value: inputs.embed(X) @ ridge.solve(ridge.cross, value)


@dataclass(frozen=True)
class Logistic(LabelMethod):
    """The same networks with binary cross-entropy and a threshold; of several ``members`` the mean probabilities."""

    setting: NetworkSetting
    training: Training
    members: int = 1
    decoders = ("threshold",)

    def key(self) -> Row:
        together = {"members": self.members} if self.members > 1 else {}
        return {"method": "bce"} | together | self.setting.key(self.training)

    def choose(self, task: LabelTask) -> dict[str, Choice]:
        models = self._fit(task.fitting, 0, self.setting.training(self.training), task.validation)
        X, Y = task.validation
        score, threshold = models[0].best_threshold(average_probabilities(models, X), Y)
        epochs = round(fmean(model.fitted.history.best_epoch for model in models))
        return {"threshold": Choice(score, {"epochs": epochs, "threshold": threshold})}

    def predict(self, task: LabelTask, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        epochs, threshold = chosen["threshold"]["epochs"], chosen["threshold"]["threshold"]
        models = self._fit(task.train, seed, self.setting.training(self.training, epochs))
        return {"threshold": models[0].decide(average_probabilities(models, task.test[0]), threshold)}

    def _fit(
        self, pairs: LabelPairs, seed: int, training: Training, validation: LabelPairs | None = None
    ) -> list[LabelNetwork]:
        seeds = [seed + 1000 * member for member in range(self.members)]
        return [LabelNetwork(self.setting.encoder, training, own).fit(*pairs, validation) for own in seeds]


def average_probabilities(models: list[LabelNetwork], X: np.ndarray) -> np.ndarray:  # (n, labels)
    return np.mean([model.probabilities(X) for model in models], axis=0)
