"""Multi-label classification: DSOKR, kernel ridge regression in closed form, and a network with logistic outputs.

    python -m studies multilabel --data-dir FOLDER

All settings are chosen once, on a fifth of the training pairs, by the example-based F1: the network, its training and
the number of epochs, the output kernel, the decoder and its rule, λ and the width of the input kernel, the threshold.
The chosen model is then trained on all training pairs, with several seeds, and tested. Test pairs take no other part:
inputs are scaled by statistics of the training inputs.

Each method's row with the best validation F1 is marked ``selected``. The others show what matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from dsokr.kernels import Gaussian, Kernel, Linear, Tanimoto
from dsokr.metrics import exact_match, f1
from dsokr.regressors import Training
from studies.data.multilabel import CHECKSUMS, MultiLabel, generate, load_multilabel
from studies.multilabel_methods import Choice, Deep, Encoder, LabelMethod, LabelTask, Logistic, NetworkSetting, Ridge
from studies.plots import draw_panels
from studies.results import Columns, Results, Row, group_rows, mean_and_sd, read_rows
from studies.study import Session, Stopwatch, Study

LITERATURE = {  # example-based F1 on the test part, as published; none of it was measured here
    "bibtex": {"IOKR": 0.449, "DVN": 0.447, "SISOKR": 0.441, "SPEN": 0.422}
}


@dataclass(frozen=True)
class MultilabelConfig:
    data: dict[str, Callable[[Path | None], MultiLabel]]
    kernels: tuple[Kernel, ...]  # networks are chosen with the first
    settings: tuple[NetworkSetting, ...]
    training: Training
    size: int = 1000
    input_size: int = 2000
    widths: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    regularizations: tuple[float, ...] = (1e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    members: int = 3  # of the ensemble
    seeds: tuple[int, ...] = (0, 1, 2)


FULL = MultilabelConfig(
    data={name: partial(load_multilabel, name) for name in CHECKSUMS},
    kernels=(Tanimoto(), Linear(), Gaussian(0.5)),
    settings=(
        NetworkSetting(Encoder((512,))),
        NetworkSetting(Encoder((512,), dropped_inputs=0.5)),
        NetworkSetting(Encoder((1024,), dropped_inputs=0.5)),
        NetworkSetting(Encoder((512,), dropped_inputs=0.2, dropout=0.5)),
        NetworkSetting(Encoder((512,), dropped_inputs=0.2), weight_decay=0.1),
        NetworkSetting(Encoder((256, 256), dropped_inputs=0.2, dropout=0.2), learning_rate=3e-3),
    ),
    training=Training(epochs=60, batch_size=128, optimizer="adamw", patience=4, check_every=3, progress=False),
)
REDUCED = replace(FULL, data={name: FULL.data[name] for name in ("emotions", "scene", "yeast")})
QUICK = MultilabelConfig(
    data={"generated": lambda _: generate(300, 150)},
    kernels=(Tanimoto(), Linear()),
    settings=(NetworkSetting(Encoder((64,)), 1e-2), NetworkSetting(Encoder((64,), dropped_inputs=0.3), 1e-2)),
    training=replace(FULL.training, epochs=12, batch_size=32, patience=2),
    size=60,
    input_size=200,
    widths=(0.3, 1.0),
    regularizations=(1e-4, 1e-2),
    members=2,
    seeds=(0, 1),
)


def run(config: MultilabelConfig, session: Session) -> None:
    """Compute what ``validation.jsonl`` (all that was tried) and ``models.jsonl`` (tested) do not hold yet."""
    for name, load in config.data.items():
        tuning = Tuning(LabelTask.of(name, load(session.data)), session.results("validation"))
        for group in list_finalists(config, tuning):
            tried = [(choice.f1, method, name) for method in group for name, choice in tuning.of(method).items()]
            _, *selected = max(tried, key=lambda found: found[0])
            for method in group:
                for seed in config.seeds:
                    measure_method(method, tuning, seed, session.results("models"), selected)


def list_finalists(config: MultilabelConfig, tuning: Tuning) -> list[list[LabelMethod]]:
    """The models to test, by kind of method: the best network with every kernel, and ensembles of the best."""
    deep = tuning.best([Deep(config.kernels[0], setting, config.training, config.size) for setting in config.settings])
    with_kernels = [replace(deep, kernel=kernel) for kernel in config.kernels]
    logistic = tuning.best([Logistic(setting, config.training) for setting in config.settings])
    grid = config.size, config.input_size, config.widths, config.regularizations
    return [
        [*with_kernels, replace(tuning.best(with_kernels), members=config.members)],
        [Ridge(kernel, *grid) for kernel in config.kernels],
        [logistic, replace(logistic, members=config.members)],
    ]


M = TypeVar("M", bound=LabelMethod)


@dataclass(frozen=True, eq=False)
class Tuning:
    """The settings that methods choose on the validation pairs of one data set."""

    task: LabelTask
    results: Results

    def key(self, method: LabelMethod, decoder: str) -> Row:
        task = {"experiment": "multilabel", "data": self.task.name, "n_train": len(self.task.train[0])}
        return task | method.key() | {"decoder": decoder}

    def of(self, method: LabelMethod) -> dict[str, Choice]:
        """What the method chooses, by decoder."""
        keys = [self.key(method, name) | {"split": "validation", "seed": 0} for name in method.decoders]
        rows = self.results.record_all(keys, partial(self._measure, method))
        return {row["decoder"]: Choice(row["metrics"]["f1"], row["chosen"]) for row in rows}

    def _measure(self, method: LabelMethod) -> list[Row]:
        clock = Stopwatch()
        with clock("choose"):
            choices = method.choose(self.task)
        return [
            {"metrics": {"f1": choices[name].f1}, "chosen": choices[name].values, "seconds": clock.seconds}
            for name in method.decoders
        ]

    def best(self, methods: Sequence[M]) -> M:
        return max(methods, key=lambda method: max(choice.f1 for choice in self.of(method).values()))


def measure_method(method: LabelMethod, tuning: Tuning, seed: int, results: Results, selected: list[object]) -> None:
    """Train on all training pairs with the chosen settings, and test."""
    choices, truth = tuning.of(method), tuning.task.test[1]
    keys = [
        tuning.key(method, name) | {"split": "test", "seed": seed, "selected": [method, name] == selected}
        for name in method.decoders
    ]

    def measure() -> list[Row]:
        clock = Stopwatch()
        with clock("train_and_predict"):
            predicted = method.predict(tuning.task, {name: choice.values for name, choice in choices.items()}, seed)
        rows = []
        for name in method.decoders:
            sets, choice = predicted[name], choices[name]
            metrics = {"f1": f1(sets, truth), "exact": exact_match(sets, truth), "val_f1": choice.f1}
            rows.append({"metrics": metrics, "chosen": choice.values, "seconds": clock.seconds})
        return rows

    results.record_all(keys, measure)


def name_model(row: Row) -> str:
    """Name the model of a row: ``DSOKR × 3, Tanimoto, LabelSet``."""
    members = f" × {row['members']}" if row.get("members", 1) > 1 else ""
    if row["method"] == "bce":
        return f"BCE network{members}, threshold"
    method = "SISOKR" if row["method"] == "sisokr" else "DSOKR"
    return f"{method}{members}, {row['kernel'].removesuffix('()')}, {row['decoder']}"


def tabulate(folder: Path) -> list[Row]:
    """One row per data set and model: mean and standard deviation of the test F1, then published numbers.

    ``source`` is "measured" or "literature"; the latter rows have nothing but the F1. A data set is left out until the
    selected model of every method is tested.
    """
    rows = read_rows(folder / "models.jsonl")
    tested = {(row["data"], row["method"]) for row in rows if row["selected"]}
    rows = [row for row in rows if all((row["data"], method) in tested for method in ("dsokr", "sisokr", "bce"))]
    table = []
    for data, own in group_rows(rows, lambda row: row["data"]).items():
        models = [_summarize(data, name, group) for name, group in group_rows(own, name_model).items()]
        table += sorted(models, key=lambda row: -row["val_f1"])
        published, source = LITERATURE.get(data, {}).items(), {"data": data, "source": "literature"}
        table += [source | {"model": name, "published": value} for name, value in published]
    return table


def _summarize(data: str, name: str, rows: list[Row]) -> Row:
    score, sd = mean_and_sd(row["metrics"]["f1"] for row in rows)
    metrics = {"exact": fmean(row["metrics"]["exact"] for row in rows), "val_f1": rows[0]["metrics"]["val_f1"]}
    model = {"data": data, "model": name, "selected": rows[0]["selected"], "source": "measured"}
    return model | metrics | {"f1": score, "sd": sd, "runs": len(rows)}


def _format_name(row: Row) -> str:
    """The selected model of every method has a star."""
    return f"{row['model']} (published)" if row["source"] == "literature" else row["model"] + " *" * row["selected"]


COLUMNS: Columns = {
    "data": "{data}",
    "model": _format_name,
    "F1 on test": lambda row: f"{row['published']:.3f}" if "published" in row else f"{row['f1']:.3f} ± {row['sd']:.3f}",
    "exact": "{exact:.1%}",
    "F1 on validation": "{val_f1:.3f}",
    "runs": "{runs}",
}


def draw(folder: Path, image: Path) -> Path:
    """The F1 on test of the selected model of every method, a panel for every data set."""
    panels = group_rows([row for row in tabulate(folder) if row.get("selected")], lambda row: row["data"])
    points = {
        title: [(row["model"].replace(", ", "\n", 1), row["f1"], row["sd"]) for row in rows]
        for title, rows in panels.items()
    }
    return draw_panels(points, "example-based F1", image)


STUDY = Study("multilabel", {"full": (FULL,), "reduced": (REDUCED,), "quick": (QUICK,)}, run, tabulate, COLUMNS, draw)
