"""Guarantees on the command line: calibration, prediction sets, safe answers, and tests of the promised coverage."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr.commands.cells import count_of
from dsokr.commands.options import CalibrateOptions, PredictOptions, Result, Say
from dsokr.commands.possible import read_test
from dsokr.commands.predictor import Pairs, Predictor
from dsokr.commands.tables import Problems, Table
from dsokr.conformal import FILE, Calibration, Conformal
from dsokr.files import replace_file
from dsokr.outputs import canonical

COVERAGES = (0.8, 0.9, 0.95)
BINS = 10  # of a reliability diagram


def calibrate(options: CalibrateOptions, problems: Problems, say: Say) -> Result:
    """Calibrate a model on pairs that it was not trained on, and keep the calibration in its folder."""
    predictor = Predictor.load(options.model, options.device)
    pairs, conditions, groups = read_test(predictor, Table(options.pairs), options, problems, options.group)
    sure = Conformal(predictor.model)
    if sure.is_list:  # candidates of other lists may be right
        sure.known = sure.known.extended(*canonical(pairs.Y))
    sure.calibrate(pairs.X, pairs.Y, groups)
    sure.pairs_["column"] = options.group  # where later tables have the groups
    sure.pairs_["conditions"] = list(map(tuple, conditions))
    with replace_file(options.model / FILE) as draft:
        sure.write(draft)
    sizes = describe_sizes(sure, pairs, groups)
    facts = {"pairs": len(pairs), "skipped": len(problems.found), "median_set_size": sizes}
    said = ", ".join(f"{size:g} at {coverage}" for coverage, size in sizes.items())
    return Result(facts, [f"Calibrated on {count_of(len(pairs), 'pair')}. Members of a set in the median: {said}."])


def describe_sizes(sure: Conformal, pairs: Pairs, groups: Any) -> dict[str, float]:
    """The median number of listed members of sets, by the coverages for which there are enough pairs."""
    found = {}
    for coverage in _list_coverages(sure):
        sets = sure.predict_set(pairs.X, coverage, groups)
        found[f"{coverage:.0%}"] = float(np.median([each.size or len(each.outputs) for each in sets]))
    return found


def _list_coverages(sure: Conformal) -> list[float]:
    """List the coverages for which there are enough calibration pairs, in every group."""
    n = min(map(len, sure.calibration.strangeness.values()))
    return [coverage for coverage in COVERAGES if (n + 1) * (1 - coverage) >= 1]


def judge(
    calibration: Calibration, options: PredictOptions, groups: Any, z: Tensor, scores: Tensor
) -> tuple[list[int], Tensor, Tensor]:
    """Say which of the best outputs are answers, by --coverage and --max-error, and how probable they are.

    Scores (n, k) are −∞ where an input has fewer outputs. Returned are the number of answers to every input, the
    probabilities of all outputs (n, k), and the confidence in the first (n,).
    """
    if options.coverage is None:
        sizes = scores.isfinite().sum(dim=1)
    else:
        least = calibration.find_threshold(z, scores, options.coverage, groups)
        sizes = (scores >= least[:, None]).sum(dim=1)
    if options.max_error is not None:
        is_safe = calibration.find_odds(z, scores) >= calibration.find_safe(options.max_error)
        sizes = torch.where(is_safe, sizes, 0)
    sizes = sizes.clamp(max=options.top or scores.shape[1])
    return sizes.tolist(), calibration.find_probabilities(z, scores), calibration.find_confidence(z, scores)


def check_promises(predictor: Predictor, pairs: Pairs) -> dict[str, Any]:
    """How often sets hold the right answer, how well confidence and truth agree, and the errors of safe answers."""
    sure: Any = predictor.sure
    coverage = [] if sure.pairs_["groups"] else [sure.check(pairs.X, pairs.Y, c) for c in _list_coverages(sure)]
    z = predictor.model.coefficients(pairs.X)
    best = sure.find_best(z)
    confidence, right = sure.calibration.find_confidence(z, best.scores).cpu(), sure.is_right(best, pairs.Y).cpu()
    order = confidence.argsort(descending=True, stable=True)
    wrong = (~right[order]).double().cumsum(0) / torch.arange(1, len(order) + 1)
    shares = [max(1, round(len(order) * share / BINS)) for share in range(1, BINS + 1)]
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    rows = [
        {"confidence": confidence[bins == b].mean().item(), "right": right[bins == b].double().mean().item(), "n": n}
        for b in range(BINS)
        if (n := int((bins == b).sum()))
    ]
    error = sum(row["n"] * abs(row["confidence"] - row["right"]) for row in rows) / len(right)
    return {
        "coverage": [{**test._asdict(), "text": str(test)} for test in coverage],
        "calibration_error": error,
        "reliability": rows,
        "risk": [{"answered": n / len(order), "wrong": wrong[n - 1].item()} for n in shares],
    }
