"""Do guarantees hold? Prediction sets, answers that abstain and calibrated confidence, on real tasks.

    python -m studies guarantees --data-dir FOLDER

A task has one model, and pairs that it was not trained on. These are divided at random twenty times: one half
calibrates, the other tests. The rank of a calibrated threshold among all pairs is random, so coverage follows a
beta-binomial law, whatever the model: its mean and standard deviation stand beside those found.

Two other ways to make sets calibrate on the same pairs: the k best outputs for every input ("top k"), and adaptive
prediction sets ("APS"), which take outputs, the best first, until their probabilities add up to a limit. On some tasks
other pairs that differ are tested, to see whether :class:`dsokr.conformal.Coverage` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from scipy.stats import betabinom
from torch import Generator, Tensor

from dsokr.conformal import Calibration
from studies.guarantees_tasks import GENERATED, TASKS, Held, Scored, Task
from studies.plots import draw_panels
from studies.results import Row, format_spread, group_rows, mean_and_sd, read_rows
from studies.study import Session, Study

OURS, TOP, APS = METHODS = "Conformal", "top k", "APS"
BINS, DRAWS = 10, 20  # of confidence, and of chance


@dataclass(frozen=True)
class GuaranteesConfig:
    tasks: tuple[Task, ...] = TASKS
    divisions: int = 20
    coverages: tuple[float, ...] = (0.8, 0.9, 0.95)
    errors: tuple[float, ...] = (0.05, 0.1, 0.2)


FULL = GuaranteesConfig()
REDUCED = GuaranteesConfig(tasks=TASKS[:1])
QUICK = GuaranteesConfig(tasks=GENERATED, divisions=4, coverages=(0.8, 0.9), errors=(0.2, 0.5))


def run(config: GuaranteesConfig, session: Session) -> None:
    """Compute what ``coverage.jsonl``, ``answers.jsonl`` and ``shifts.jsonl`` do not hold yet."""
    for task in config.tasks:
        hold = cache(partial(keep_pairs, task, session))
        key = {"experiment": "guarantees", "task": task.name, "data": task.data, "divisions": config.divisions}
        keys = [key | {"coverage": c, "method": method} for c in config.coverages for method in METHODS]
        session.results("coverage").record_all(keys, partial(measure_coverage, config, hold))
        keys = [key | {"max_error": error} for error in config.errors]
        session.results("answers").record_all(keys, partial(measure_answers, config, hold))
        if task.shift:
            keys = [key | {"shift": task.shift, "coverage": c} for c in config.coverages]
            session.results("shifts").record_all(keys, partial(measure_shift, config, hold))


def keep_pairs(task: Task, session: Session) -> Held:
    """The pairs held out, by a model that is trained once."""
    path = session.folder / "kept" / f"{task.name}, {task.data}.safetensors"
    if not path.exists():
        session.say(f"training: {task.name}, {task.data}")
        task.make(session.data).save(path)
    return Held.load(path)


class Division(NamedTuple):
    """Pairs that calibrate, pairs to test on, and how many of the best outputs make probabilities."""

    calibration: Calibration
    own: Scored
    test: Scored
    best: int

    @staticmethod
    def of(own: Scored, test: Scored, best: int) -> Division:
        return Division(Calibration.of(own.z, own.listed[:, :best], own.own, own.right), own, test, best)

    def contains(self, coverage: float, allow_empty: bool = False) -> tuple[Tensor, Tensor]:  # (n,) bool, (n,)
        """Whether test sets have the right output, and their sizes."""
        z, scores = self.test.z, self.test.listed[:, : self.best]
        least = self.calibration.find_threshold(z, scores, coverage, allow_empty=allow_empty)
        return self.test.own >= least, (self.test.listed >= least[:, None]).sum(dim=1)

    def contains_top(self, coverage: float) -> tuple[Tensor, Tensor]:
        """The same of the k best, with the least k that suffices."""
        k = find_quantile(self.own.places(), coverage)
        return self.test.places() <= k, k.clamp(max=self.test.listed.shape[1]).expand(len(self.test.z))

    def contains_adaptive(self, coverage: float) -> tuple[Tensor, Tensor]:
        """The same of adaptive prediction sets, without randomisation; the best output is always in."""
        (of_own, _), (of_test, masses) = (self._add_up(pairs) for pairs in (self.own, self.test))
        limit = find_quantile(of_own, coverage)
        return (of_test <= limit) | (self.test.places() == 1), (masses <= limit).sum(dim=1).clamp(min=1)

    def _add_up(self, pairs: Scored) -> tuple[Tensor, Tensor]:  # (n,), (n, k)
        """The probabilities of outputs and of all better ones: of the right output, and of all listed."""
        p = self.calibration.log_p(pairs.z, pairs.listed[:, : self.best], pairs.listed).exp()
        masses, places = p.cumsum(dim=1), pairs.places()
        at = (places - 1).clamp(max=p.shape[1] - 1).long()[:, None]
        return masses.gather(1, at)[:, 0].where(places.isfinite(), torch.inf), masses


def divide(config: GuaranteesConfig, held: Held) -> Iterator[Division]:
    """Draw halves of the pairs, again and again."""
    for number in range(config.divisions):
        own, test = halve(len(held.pairs.z), number)
        yield Division.of(held.pairs.rows(own), held.pairs.rows(test), held.best)


def halve(n: int, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(n, generator=Generator().manual_seed(seed))
    return order[: n // 2], order[n // 2 :]


def find_quantile(values: Tensor, coverage: float) -> Tensor:
    """The ⌈(n + 1) c⌉-th smallest value."""
    return values.sort().values[math.ceil((len(values) + 1) * coverage - 1e-9) - 1]


def measure_coverage(config: GuaranteesConfig, hold: Callable[[], Held]) -> Iterator[Row]:
    """How often sets hold the right output, and how large they are, for every coverage and method."""
    held = hold()
    measured: dict[tuple[float, str], list[Row]] = {(c, method): [] for c in config.coverages for method in METHODS}
    for division in divide(config, held):
        for c in config.coverages:
            sets = division.contains(c), division.contains_top(c), division.contains_adaptive(c)
            for method, (contained, sizes) in zip(METHODS, sets, strict=True):
                row = measure_sets(contained, sizes, held)
                if method == OURS:
                    row |= {"found_or_empty": division.contains(c, allow_empty=True)[0].double().mean().item()}
                    row |= {"holds": float(division.calibration.test(contained, c).holds)}
                measured[c, method].append(row)
    n, m = len(division.test.z), len(division.calibration.right)
    facts = {"n_train": held.n_train, "n_calibrate": len(division.own.z), "n_test": n}
    for (c, method), rows in measured.items():
        spread = {name: mean_and_sd(row[name] for row in rows) for name in rows[0]}
        metrics = {name: value for name, (value, _) in spread.items()}
        metrics |= {f"{name}_sd": sd for name, (_, sd) in spread.items() if name.startswith("found")}
        if method == OURS:
            metrics |= dict(zip(("theory", "theory_sd"), expect(c, m, n), strict=True))
        yield {"metrics": metrics | facts | {"by_division": [row["found"] for row in rows]}}


def measure_sets(contained: Tensor, sizes: Tensor, held: Held) -> Row:
    cut = torch.zeros_like(sizes) if held.complete else sizes >= held.pairs.listed.shape[1]
    measured = {"found": contained, "size": sizes, "cut": cut}
    return {name: value.double().mean().item() for name, value in measured.items()} | {
        "median_size": sizes.double().quantile(0.5).item()
    }


def expect(coverage: float, m: int, n: int) -> tuple[float, float]:
    """Mean and standard deviation of the share of n sets that m calibration pairs make.

    >>> [round(value, 3) for value in expect(0.9, 99, 100)]
    [0.9, 0.042]
    """
    rank = math.ceil((m + 1) * coverage - 1e-9)
    law = betabinom(n, rank, m + 1 - rank)
    return float(law.mean()) / n, float(law.std()) / n


def measure_answers(config: GuaranteesConfig, hold: Callable[[], Held]) -> Iterator[Row]:
    """How many answers are given, how many of them are wrong, and the calibration error of the confidence."""
    measured: dict[float, list[Row]] = {error: [] for error in config.errors}
    generator = Generator().manual_seed(0)
    for division in divide(config, hold()):
        test, calibration = division.test, division.calibration
        p = calibration.find_confidence(test.z, test.listed[:, : division.best])
        drawn = [calibration_error(p, torch.rand(p.shape, generator=generator) < p) for _ in range(DRAWS)]
        both = {"ece": calibration_error(p, test.right), "ece_by_chance": mean(drawn)}
        for error, rows in measured.items():
            given = calibration.find_odds(test.z, test.listed[:, : division.best]) >= calibration.find_safe(error)
            wrong = (given & ~test.right).double()
            share = (wrong.sum() / given.sum().clamp(min=1)).item()
            row = {"answered": given.double().mean().item(), "wrong": wrong.mean().item(), "exceeds": share > error}
            rows.append(row | both | {"right": test.right.double().mean().item()})
    for rows in measured.values():
        metrics = {name: mean(float(row[name]) for row in rows) for name in rows[0]}
        metrics["error"] = metrics["wrong"] / max(metrics["answered"], 1e-9)
        yield {"metrics": metrics | {"answered_sd": mean_and_sd(row["answered"] for row in rows)[1]}}


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """The expected calibration error: the mean gap of confidence and share of right answers in equal bins.

    >>> calibration_error(torch.tensor([0.75, 0.75, 0.25]), torch.tensor([True, True, False]))
    0.25
    """
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, confidence.double() - right.double())
    return (gaps.abs().sum() / len(right)).item()


def measure_shift(config: GuaranteesConfig, hold: Callable[[], Held]) -> Iterator[Row]:
    """Coverage of pairs that differ from those that calibrate, and whether the test of coverage accepts it."""
    held = hold()
    assert held.shift is not None
    at, shifted = held.shift
    halves = [at[halve(len(at), number)[0]] for number in range(config.divisions)]
    divisions = [Division.of(held.pairs.rows(own), shifted, held.best) for own in halves]
    for c in config.coverages:
        tests = [division.calibration.test(division.contains(c)[0], c) for division in divisions]
        found, sd = mean_and_sd(test.found for test in tests)
        holds = mean(float(test.holds) for test in tests)
        yield {"metrics": {"found": found, "found_sd": sd, "holds": holds, "n_test": len(shifted.z)}}


def tabulate(folder: Path) -> list[Row]:
    """One row per task and coverage: coverage found and expected, and the sizes of sets by method."""
    groups = group_rows(read_rows(folder / "coverage.jsonl"), lambda row: (row["task"], row["data"], row["coverage"]))
    table = []
    for (task, data, coverage), rows in groups.items():
        by = {row["method"]: row["metrics"] for row in rows}
        own = by[OURS]
        row = {"task": f"{task} ({data})", "coverage": coverage, "metrics": own}
        row |= {name: (own[name], own[f"{name}_sd"]) for name in ("found", "found_or_empty", "theory")}
        row |= {method: metrics["size"] for method, metrics in by.items()}
        table.append(row | {f"{method}, median": metrics["median_size"] for method, metrics in by.items()})
    return table


COLUMNS = {
    "task": "{task}",
    "asked": "{coverage:.0%}",
    "found": format_spread("found", ".1%"),
    "found, sets may be empty": format_spread("found_or_empty", ".1%"),
    "expected": format_spread("theory", ".1%"),
    **{f"mean size, {method}": f"{{{method}:.1f}}" for method in METHODS},
}


def draw(folder: Path, image: Path) -> Path:
    """Coverage found, for each task and coverage."""
    panels = {
        task: [(f"{row['coverage']:.0%}", *row["found_or_empty"]) for row in rows]
        for task, rows in group_rows(tabulate(folder), lambda row: row["task"]).items()
    }
    return draw_panels(panels, "coverage found, sets may be empty", image)


SIZES = {"full": (FULL,), "reduced": (REDUCED,), "quick": (QUICK,)}
STUDY = Study("guarantees", SIZES, run, tabulate, COLUMNS, draw)
