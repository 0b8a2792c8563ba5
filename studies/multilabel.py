"""Multi-label classification: DSOKR, kernel ridge regression in closed form, and a network with logistic outputs.

    run(FULL, Path("results/multilabel"), data="the folder with multilabel/*.npz")

Everything open is chosen once, on a fifth of the training pairs, by the example-based F1: the network, its training and
the number of epochs, the output kernel, the decoder and its rule, λ and the width of the input kernel, the threshold.
What was chosen is trained again on all training pairs, with several seeds, and tested. Test pairs take no other part:
inputs are scaled by what the training inputs say.

Each method's row with the best validation F1 is marked ``selected``. The others are there to see what matters.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from studies.baselines.bce import THRESHOLDS, LabelNetwork
from dsokr.regressors.ridge import SISOKR
from dsokr.basis import RULES
from studies.data.multilabel import CHECKSUMS, MultiLabel, generate, multilabel
from dsokr.decoders import Candidates, Decoder, LabelSet
from dsokr.estimator import DSOKR
from studies.results import Results, Row, read_rows
from dsokr.kernels import Gaussian, Kernel, Linear, Tanimoto
from dsokr.metrics import exact_match, f1
from dsokr.regressors.networks import MLP
from dsokr.sketches import Gram, Sketch, SketchSpec, SubSample
from dsokr.regressors.training import Training

Say = Callable[[str], None]
Load = Callable[[str | Path | None], MultiLabel]
Pairs = tuple[np.ndarray, np.ndarray]  # inputs (n, d), label sets (n, labels)

DECODERS: dict[str, tuple[Decoder, ...]] = {
    "Candidates": tuple(Candidates(rule) for rule in RULES),
    "LabelSet": (LabelSet(),),
}
LITERATURE = {  # example-based F1 on the test part, as published; none of it was measured here
    "bibtex": {"IOKR": 0.449, "DVN": 0.447, "SISOKR": 0.441, "SPEN": 0.422},
}


@dataclass(frozen=True)
class Encoder:
    """An MLP that is trained with a share of its inputs set to zero: a text without some of its words keeps its labels.

    >>> Encoder((16,))(3)(torch.zeros(2, 5)).shape
    torch.Size([2, 3])
    """

    hidden: tuple[int, ...]
    dropped_inputs: float = 0.0
    dropout: float = 0.0

    def __call__(self, p: int) -> nn.Module:
        return nn.Sequential(nn.Dropout(self.dropped_inputs), MLP(self.hidden, dropout=self.dropout)(p))


@dataclass(frozen=True)
class SameDraw(SketchSpec):
    """At most ``size`` outputs drawn with a seed of its own: members of an ensemble get one basis to average in."""

    size: int
    seed: int

    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        return SubSample(min(self.size, n)).draw(n, Generator().manual_seed(self.seed))


@dataclass(frozen=True, eq=False)
class Task:
    """One data set with scaled inputs: all training pairs, the two parts into which they are split, the test pairs."""

    name: str
    train: Pairs
    fitting: Pairs
    validation: Pairs
    test: Pairs

    @staticmethod
    def of(name: str, data: MultiLabel, held_out: float = 0.2) -> Task:
        (X, Y), (X_test, Y_test) = data
        scale = _unit_rows(X) if hasattr(X, "toarray") else _standardized(X)
        X, X_test = scale(X), scale(X_test)
        order = np.random.default_rng(0).permutation(len(X))
        val, fit = np.split(order, [round(held_out * len(X))])
        return Task(name, (X, Y), (X[fit], Y[fit]), (X[val], Y[val]), (X_test, Y_test))

    @cached_property
    def squared_norm(self) -> float:
        """The mean of ‖x‖², the unit in which the widths of input kernels are given."""
        return float(np.square(self.train[0]).sum(axis=1).mean())


def _unit_rows(X: Any) -> Callable[[Any], np.ndarray]:
    """Bags of words brought to one length, the average training row's: long texts shall not weigh more."""
    length = np.sqrt(X.multiply(X).sum() / X.shape[0])

    def scale(rows: Any) -> np.ndarray:
        rows = rows.toarray().astype(np.float64)
        return length * rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)

    return scale


def _standardized(X: np.ndarray) -> Callable[[Any], np.ndarray]:
    mean, spread = X.mean(axis=0, dtype=np.float64), X.std(axis=0, dtype=np.float64)
    return lambda rows: (rows - mean) / np.where(spread > 0, spread, 1.0)


class Choice(NamedTuple):
    """What was chosen on the validation pairs, and the F1 it has there."""

    f1: float
    values: Row


class Method(ABC):
    """What is compared. It may have several decoders, each with its own choices and its own line of results."""

    decoders: tuple[str, ...]

    @abstractmethod
    def asked(self) -> Row:
        """What tells its lines from those of other methods."""

    @abstractmethod
    def choose(self, task: Task) -> dict[str, Choice]:
        """By decoder: what is open, from a training on ``task.fitting`` and a look at ``task.validation``."""

    @abstractmethod
    def predict(self, task: Task, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        """By decoder: label sets for the test inputs, after a training on ``task.train`` with what was chosen."""


@dataclass(frozen=True)
class Setting:
    """What is tried for a network; the same for DSOKR and for logistic outputs."""

    encoder: Encoder
    learning_rate: float = 1e-3
    weight_decay: float = 0.0

    def training(self, common: Training) -> Training:
        return replace(common, learning_rate=self.learning_rate, weight_decay=self.weight_decay)

    def asked(self, common: Training) -> Row:
        names = ("epochs", "batch_size", "optimizer", "learning_rate", "weight_decay", "patience", "check_every")
        training = self.training(common)
        return {"encoder": str(self.encoder), "training": {name: getattr(training, name) for name in names}}


def _for_epochs(training: Training, epochs: int) -> Training:
    """So many epochs on all pairs given."""
    return replace(training, epochs=epochs, monitor="loss", patience=None, validation_fraction=0.0)


@dataclass(frozen=True)
class Deep(Method):
    """DSOKR; with several ``members``, the mean of the coefficients of networks that differ in their seeds alone.

    Early stopping watches the best training set by the best rule; all decoders are then tried on that one training.
    """

    kernel: Kernel
    setting: Setting
    training: Training
    size: int
    members: int = 1
    decoders = tuple(DECODERS)

    def asked(self) -> Row:
        sketch = {"kernel": str(self.kernel), "sketch": "SubSample", "m": self.size, "members": self.members}
        return {"method": "dsokr"} | sketch | self.setting.asked(self.training)

    def choose(self, task: Task) -> dict[str, Choice]:
        training = replace(self.setting.training(self.training), monitor=f1)
        models = self._fitted(task.fitting, training, 0, task.validation)
        epochs = round(fmean(model.history_.best_epoch for model in models))
        X, Y = task.validation
        z = _mean_coefficients(models, X)

        def tried(decoder: Decoder) -> Choice:
            return Choice(f1(_decoded(models[0], decoder, z), Y), {"epochs": epochs, "rule": decoder.scoring_rule()})

        return {name: max(map(tried, of_name), key=lambda c: c.f1) for name, of_name in DECODERS.items()}

    def predict(self, task: Task, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        epochs = chosen[self.decoders[0]]["epochs"]  # one training serves all decoders
        models = self._fitted(task.train, _for_epochs(self.setting.training(self.training), epochs), seed)
        z = _mean_coefficients(models, task.test[0])
        return {name: _decoded(models[0], _decoder(name, of_name["rule"]), z) for name, of_name in chosen.items()}

    def _fitted(self, pairs: Pairs, training: Training, seed: int, validation: Pairs | None = None) -> list[DSOKR]:
        model = partial(DSOKR, self.kernel, SameDraw(self.size, seed), self.setting.encoder, training=training)
        seeds = [1000 * seed + member for member in range(self.members)]
        return [model(random_state=own, device="cpu").fit(*pairs, validation=validation) for own in seeds]


def _mean_coefficients(models: list[DSOKR], X: np.ndarray) -> Tensor:  # (n, p)
    return torch.stack([model.coefficients(X) for model in models]).mean(dim=0)


def _decoded(model: DSOKR, decoder: Decoder, z: Tensor) -> np.ndarray:
    return decoder.decode(model.basis_, z, model.known_).outputs


def _decoder(name: str, rule: str) -> Decoder:
    return next(decoder for decoder in DECODERS[name] if decoder.scoring_rule() == rule)


@dataclass(frozen=True)
class Every(Candidates):
    """All decoders compared: a model that leaves the choice open tries each."""

    def alternatives(self) -> tuple[Decoder, ...]:
        return tuple(decoder for of_name in DECODERS.values() for decoder in of_name)


@dataclass(frozen=True)
class Closed(Method):
    """SISOKR with a Gaussian kernel exp(−width ‖x − x'‖² / mean ‖x‖²) on the inputs.

    Where there are no more training pairs than ``input_size`` and ``size``, it is IOKR.
    """

    kernel: Kernel
    size: int
    input_size: int
    widths: tuple[float, ...]
    regularizations: tuple[float, ...]
    decoders = tuple(DECODERS)

    def asked(self) -> Row:
        sketch = {"kernel": str(self.kernel), "sketch": "SubSample", "m": self.size, "input_m": self.input_size}
        grid = {"widths": list(self.widths), "regularizations": list(self.regularizations)}
        return {"method": "sisokr"} | sketch | grid

    def choose(self, task: Task) -> dict[str, Choice]:
        best: dict[str, Choice] = {}
        for width in self.widths:
            model = self._model(task.fitting, width / task.squared_norm, self.regularizations, 0, Every())
            for trial in model.fit(*task.fitting, task.validation).trials_:
                name = type(trial.decoder).__name__
                values = {"width": width, "regularization": trial.regularization, "rule": trial.decoder.scoring_rule()}
                if name not in best or trial.score > best[name].f1:
                    best[name] = Choice(trial.score, values)
        return best

    def predict(self, task: Task, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        predicted = {}
        for name, values in chosen.items():
            decoder, gamma = _decoder(name, values["rule"]), values["width"] / task.squared_norm
            model = self._model(task.train, gamma, (values["regularization"],), seed, decoder)
            predicted[name] = model.fit(*task.train).predict(task.test[0])
        return predicted

    def _model(
        self, pairs: Pairs, gamma: float, regularizations: tuple[float, ...], seed: int, decoder: Decoder
    ) -> SISOKR:
        return SISOKR(
            Gaussian(gamma),
            self.kernel,
            SubSample(min(self.input_size, len(pairs[0]))),
            SubSample(min(self.size, len(pairs[0]))),
            regularization=regularizations,
            decoder=decoder,
            monitor=f1,
            random_state=seed,
            device="cpu",
        )


@dataclass(frozen=True)
class Logistic(Method):
    """The same networks with binary cross-entropy and a threshold; of several ``members`` the mean probabilities."""

    setting: Setting
    training: Training
    members: int = 1
    decoders = ("threshold",)

    def asked(self) -> Row:
        together = {"members": self.members} if self.members > 1 else {}
        return {"method": "bce"} | together | self.setting.asked(self.training)

    def choose(self, task: Task) -> dict[str, Choice]:
        training = replace(self.setting.training(self.training), monitor=f1)
        models = [model.fit(*task.fitting, validation=task.validation) for model in self._models(training, 0)]
        X, Y = task.validation
        likely, epochs = _mean_probabilities(models, X), round(fmean(model.history_.best_epoch for model in models))
        score, threshold = max((f1(models[0].sets(likely, t), Y), t) for t in THRESHOLDS)
        return {"threshold": Choice(score, {"epochs": epochs, "threshold": threshold})}

    def predict(self, task: Task, chosen: dict[str, Row], seed: int) -> dict[str, np.ndarray]:
        epochs, threshold = (chosen["threshold"][name] for name in ("epochs", "threshold"))
        training = _for_epochs(self.setting.training(self.training), epochs)
        models = [model.fit(*task.train) for model in self._models(training, seed, threshold)]
        return {"threshold": models[0].sets(_mean_probabilities(models, task.test[0]), threshold)}

    def _models(self, training: Training, seed: int, threshold: float | None = None) -> list[LabelNetwork]:
        model = partial(LabelNetwork, self.setting.encoder, training, threshold=threshold, device="cpu")
        return [model(random_state=seed + 1000 * member) for member in range(self.members)]


def _mean_probabilities(models: list[LabelNetwork], X: np.ndarray) -> np.ndarray:  # (n, labels)
    return np.mean([model.probabilities(X) for model in models], axis=0)


@dataclass(frozen=True)
class Study:
    """What is run."""

    data: dict[str, Load]
    kernels: tuple[Kernel, ...]  # networks are chosen with the first
    settings: tuple[Setting, ...]
    training: Training
    size: int = 1000
    input_size: int = 2000
    widths: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    regularizations: tuple[float, ...] = (1e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    members: int = 3  # of the ensemble
    seeds: tuple[int, ...] = (0, 1, 2)


FULL = Study(
    data={name: partial(multilabel, name) for name in CHECKSUMS},
    kernels=(Tanimoto(), Linear(), Gaussian(0.5)),
    settings=(
        Setting(Encoder((512,))),
        Setting(Encoder((512,), dropped_inputs=0.5)),
        Setting(Encoder((1024,), dropped_inputs=0.5)),
        Setting(Encoder((512,), dropped_inputs=0.2, dropout=0.5)),
        Setting(Encoder((512,), dropped_inputs=0.2), weight_decay=0.1),
        Setting(Encoder((256, 256), dropped_inputs=0.2, dropout=0.2), learning_rate=3e-3),
    ),
    training=Training(epochs=60, batch_size=128, optimizer="adamw", patience=4, check_every=3, progress=False),
)
REDUCED = replace(FULL, data={name: FULL.data[name] for name in ("emotions", "scene", "yeast")})
QUICK = Study(
    data={"generated": lambda _: generate(300, 150)},
    kernels=(Tanimoto(), Linear()),
    settings=(Setting(Encoder((64,)), 1e-2), Setting(Encoder((64,), dropped_inputs=0.3), 1e-2)),
    training=replace(FULL.training, epochs=12, batch_size=32, patience=2),
    size=60,
    input_size=200,
    widths=(0.3, 1.0),
    regularizations=(1e-4, 1e-2),
    members=2,
    seeds=(0, 1),
)


def run(study: Study, folder: Path, data: str | Path | None = None, say: Say = print) -> None:
    """Compute what ``folder`` does not hold yet: ``validation.jsonl``, what was tried, and ``models.jsonl``, tested."""
    for name, load in study.data.items():
        compare(study, Task.of(name, load(data)), folder, say)


def compare(study: Study, task: Task, folder: Path, say: Say) -> None:
    """All methods on one data set."""
    choices = Choices(task, Results(folder / "validation.jsonl"), say)
    for group in finalists(study, choices):
        selected = max(((choices.of(m)[d].f1, m, d) for m in group for d in m.decoders), key=lambda found: found[0])
        for method in group:
            for seed in study.seeds:
                train_and_test(method, choices, seed, Results(folder / "models.jsonl"), selected[1:])


def finalists(study: Study, choices: Choices) -> list[list[Method]]:
    """What is tested, by kind of method: networks chosen, every kernel, and ensembles of the best of them."""
    tried = [Deep(study.kernels[0], setting, study.training, study.size) for setting in study.settings]
    network = choices.best(tried)
    deep = [replace(network, kernel=kernel) for kernel in study.kernels]
    ensemble = replace(choices.best(deep), members=study.members)
    logistic = choices.best([Logistic(setting, study.training) for setting in study.settings])
    grid = study.size, study.input_size, study.widths, study.regularizations
    together = replace(logistic, members=study.members)
    return [[*deep, ensemble], [Closed(kernel, *grid) for kernel in study.kernels], [logistic, together]]


M = TypeVar("M", bound=Method)


@dataclass(frozen=True, eq=False)
class Choices:
    """What methods choose on one data set, computed once and kept."""

    task: Task
    results: Results
    say: Say

    def asked(self, method: Method, decoder: str) -> Row:
        task = {"experiment": "multilabel", "data": self.task.name, "n_train": len(self.task.train[0])}
        return task | method.asked() | {"decoder": decoder}

    def of(self, method: Method) -> dict[str, Choice]:
        asked = {name: self.asked(method, name) | {"split": "validation", "seed": 0} for name in method.decoders}
        if not all(self.results.find(row) for row in asked.values()):
            start = time.perf_counter()
            found, seconds = method.choose(self.task), time.perf_counter() - start
            for name, (score, values) in found.items():
                row = {"metrics": {"f1": score}, "chosen": values, "seconds": {"choose": seconds}}
                self.results.add(asked[name], row)
                self.say(f"{self.task.name}, {model_name(asked[name])}: validation F1 {score:.3f} with {values}")
        rows = {name: self.results.find(row) or {} for name, row in asked.items()}
        return {name: Choice(row["metrics"]["f1"], row["chosen"]) for name, row in rows.items()}

    def best(self, methods: Sequence[M]) -> M:
        return max(methods, key=lambda method: max(choice.f1 for choice in self.of(method).values()))


def train_and_test(method: Method, choices: Choices, seed: int, results: Results, selected: tuple[Method, str]) -> None:
    """Train on all training pairs with what was chosen, and test."""
    found = choices.of(method)
    rows = {
        name: choices.asked(method, name) | {"split": "test", "seed": seed, "selected": (method, name) == selected}
        for name in method.decoders
    }
    if all(results.find(row) for row in rows.values()):
        return
    start = time.perf_counter()
    predicted = method.predict(choices.task, {name: choice.values for name, choice in found.items()}, seed)
    seconds = {"train_and_predict": time.perf_counter() - start}
    truth = choices.task.test[1]
    for name, sets in predicted.items():
        metrics = {"f1": f1(sets, truth), "exact": exact_match(sets, truth), "val_f1": found[name].f1}
        measured = {"metrics": metrics, "chosen": found[name].values, "seconds": seconds}
        results.add(rows[name], measured)
        choices.say(f"{choices.task.name}, {model_name(rows[name])}, seed {seed}: test F1 {metrics['f1']:.4f}")


def table(folder: Path) -> list[Row]:
    """One row per data set and model: mean and standard deviation of the test F1, then published numbers.

    ``source`` is "measured" or "literature"; the latter rows have nothing but the F1. Data sets are left out as long
    as what validation chose of some method is not tested.
    """
    rows = read_rows(folder / "models.jsonl")
    chosen = {(row["data"], row["method"]) for row in rows if row["selected"]}
    rows = [row for row in rows if all((row["data"], method) in chosen for method in ("dsokr", "sisokr", "bce"))]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["data"], model_name(row)), []).append(row)
    measured = [_summary(data, name, group) for (data, name), group in groups.items()]
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        lines += sorted((row for row in measured if row["data"] == data), key=lambda row: -row["val_f1"])
        published = LITERATURE.get(data, {}).items()
        lines += [{"data": data, "model": name, "f1": value, "source": "literature"} for name, value in published]
    return lines


def model_name(row: Row) -> str:
    """What a row is about, in a few words: ``DSOKR × 3, Tanimoto, LabelSet``."""
    members = f" × {row['members']}" if row.get("members", 1) > 1 else ""
    if row["method"] == "bce":
        return f"BCE network{members}, threshold"
    method = "SISOKR" if row["method"] == "sisokr" else "DSOKR"
    return f"{method}{members}, {row['kernel'].removesuffix('()')}, {row['decoder']}"


def _summary(data: str, name: str, rows: list[Row]) -> Row:
    scores = [row["metrics"]["f1"] for row in rows]
    return {
        "data": data,
        "model": name,
        "f1": fmean(scores),
        "sd": stdev(scores) if len(scores) > 1 else 0.0,
        "exact": fmean(row["metrics"]["exact"] for row in rows),
        "val_f1": rows[0]["metrics"]["val_f1"],
        "runs": len(rows),
        "selected": rows[0]["selected"],
        "chosen": rows[0]["chosen"],
        "seconds": fmean(row["seconds"]["train_and_predict"] for row in rows),
        "source": "measured",
    }
