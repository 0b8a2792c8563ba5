"""Label ranking: from a vector to an order of preference, with five times ten-fold cross-validation.

    python -m studies label_ranking --data-dir FOLDER

Kendall's τ of deep networks, of ridge regression and of random forests that predict the same coordinates, in bases of
the Kemeny, Hamming and Lehmer kernels, decoded by the same exact decoders. The networks' coordinates are also decoded
over the training rankings alone, to see what a search over all rankings is worth.

The settings of a method are chosen fold by fold, on held-out parts of the training pairs; then the method is fitted to
all of them. The networks of all data sets have the same recipes to choose from; those of all folds are trained side by
side, as one network.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsokr.decoders import Candidates, Decoder
from studies import label_ranking_methods as methods
from studies.data.label_ranking import generate, load_label_ranking
from studies.label_ranking_methods import FULL, QUICK, REDUCED, SUSHI
from studies.plots import draw_panels
from studies.results import Columns, Row, format_spread, group_rows, mean_and_sd, read_rows
from studies.study import Session, Stopwatch, Study


def run(config: methods.RankingConfig, session: Session) -> None:
    """Compute what ``models.jsonl`` does not hold yet."""
    results = session.results("models")
    for name in config.datasets:
        data = generate() if name == "generated" else load_label_ranking(name, session.data)
        for seed in range(config.repetitions):
            folds = methods.make_folds(data, config.folds, seed)
            for method in config.methods:
                for kernel in method.kernels:
                    key = make_key(config, method, name, len(data.X), kernel, seed)
                    keys = [key | {"decoder": type(decoder).__name__} for decoder in list_decoders(method, kernel)]
                    results.record_all(keys, partial(measure_method, config, method, kernel, folds, seed))


def make_key(
    config: methods.RankingConfig, method: methods.RankingMethod, name: str, n: int, kernel: str, seed: int
) -> Row:
    task = {"experiment": "label_ranking", "dataset": name, "n": n, "folds": config.folds, "seed": seed}
    model = {"method": method.name, "kernel": kernel, "sketch": "SubSample", "m": methods.SKETCH}
    settings = {"settings": [str(setting) for setting in method.settings], "selected": len(method.settings) > 1}
    averaged = {"parts": method.parts, "averaged": method.best} if method.parts > 1 else {}
    return task | model | settings | averaged | {"held_out": config.held_out}


def list_decoders(method: methods.RankingMethod, kernel: str) -> list[Decoder]:
    exact = methods.KERNELS[kernel][1]
    return [exact, Candidates("kernel")] if method.candidates else [exact]


def measure_method(
    config: methods.RankingConfig, method: methods.RankingMethod, kernel: str, folds: list[methods.Fold], seed: int
) -> Iterator[Row]:
    """Fit a method to all folds, and yield a row for every decoder."""
    clock = Stopwatch()
    with clock("fitting"):
        predictions, chosen = choose_and_fit(config, method, kernel, folds, seed)
    for decoder in list_decoders(method, kernel):
        with clock("decoding"):
            taus = [prediction.measure(decoder) for prediction in predictions]
        yield {
            "metrics": {"kendall_tau": float(np.mean(taus)), "by_fold": taus},
            "chosen": dict(Counter(map(str, chosen))),
            "seconds": dict(clock.seconds),
        }


def choose_and_fit(
    config: methods.RankingConfig, method: methods.RankingMethod, kernel_name: str, folds: list[methods.Fold], seed: int
) -> tuple[list[methods.FoldPrediction], list[Any]]:
    """Choose the best settings of every fold on held-out training pairs, fit them to all pairs, and average."""
    kernel, decoder = methods.KERNELS[kernel_name]
    best = np.zeros((1, len(folds)), dtype=int)
    if len(method.settings) > 1:
        inner = [part for fold in folds for part in fold.split_training_pairs(config.held_out, method.parts, seed)]
        tried = (method.quick or method.fit)(method.settings, kernel, inner, seed)
        taus = np.array([[prediction.measure(decoder) for prediction in predictions] for predictions in tried])
        means = taus.reshape(len(taus), len(folds), method.parts).mean(axis=2)
        best = np.argsort(-means, axis=0, kind="stable")[: method.best]
    fitted: list[list[methods.FoldPrediction]] = [[] for _ in folds]
    for index in np.unique(best):
        where = np.flatnonzero((best == index).any(axis=0))
        (predictions,) = method.fit([method.settings[index]], kernel, [folds[i] for i in where], seed)
        for i, prediction in zip(where, predictions, strict=True):
            fitted[i].append(prediction)
    averaged = [replace(own[0], z=torch.stack([prediction.z for prediction in own]).mean(dim=0)) for own in fitted]
    return averaged, [method.settings[index] for index in best.T.flat]


# Goals were set before the study.
GOALS = {"authorship": 0.94, "glass": 0.90, "iris": 0.97, "vehicle": 0.88, "vowel": 0.91, "wine": 0.95}
METHODS = {
    "consensus": "consensus ranking",
    "linear ridge": "linear ridge",
    "kernel ridge": "kernel ridge (IOKR)",
    "random forest": "random forest",
    "dsokr": "DSOKR",
}
DATASETS = [*GOALS, "sushi", "generated"]
COLUMNS: Columns = {"method, kernel": "{model}"} | {name: format_spread(name, ".3f") for name in DATASETS}


def tabulate(folder: Path) -> list[Row]:
    """One row per method, kernel and decoder: the mean τ and its standard deviation over all folds, by data set."""
    groups = group_rows(read_rows(folder / "models.jsonl"), lambda row: (row["method"], row["kernel"], row["decoder"]))
    table = []
    for (method, kernel, decoder), rows in groups.items():
        listed = ", training rankings only" if decoder == "Candidates" else ""
        taus = {
            name: mean_and_sd(tau for row in own for tau in row["metrics"]["by_fold"])
            for name, own in group_rows(rows, lambda row: row["dataset"]).items()
        }
        table.append({"model": f"{METHODS[method]}, {kernel}{listed}", "method": method} | taus)
    return sorted(table, key=lambda row: list(METHODS).index(row["method"]))


def list_datasets(rows: list[Row]) -> list[str]:
    return [name for name in DATASETS if any(name in row for row in rows)]


def draw(folder: Path, image: Path) -> Path:
    """Kendall's τ of the methods with the Kemeny kernel, a panel for every data set."""
    rows = [row for row in tabulate(folder) if row["model"].endswith(", Kemeny")]
    names = list_datasets(rows)
    points = {name: [(METHODS[row["method"]], *row[name]) for row in rows if name in row] for name in names}
    return draw_panels(points, "Kendall's τ", image, across=4)


SIZES = {"full": (FULL, SUSHI), "reduced": (REDUCED,), "quick": (QUICK,)}
STUDY = Study("label_ranking", SIZES, run, tabulate, COLUMNS, draw)
