"""How good a predictor is, in numbers that fit the kind of its outputs, and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.decoders import Candidates
from dsokr.errors import InputError
from dsokr.metrics import edit_distance, exact_match, f1, kendall_tau, levenshtein, retrieval_of
from dsokr.commands import tables
from dsokr.commands.kinds import Cell, Labels, Molecule, Ranking, String, Vector, counted
from dsokr.commands.prediction import check_candidates, library_blocks, usable
from dsokr.commands.predictor import Predictor, cell_text
from dsokr.commands.problems import Problems
from dsokr.commands.reading import Cells, common_columns, defined_pairs, good_pairs, read_cells

EDITED_ATOMS = 10  # molecules up to this size are compared by their exact edit distance

MEANING = {
    "r2": "share of the variance explained (1 is perfect, 0 is as good as the mean)",
    "mae": "mean absolute error",
    "rmse": "root of the mean squared error",
    "f1": "agreement of predicted and true label sets (1 is perfect)",
    "exact": "share of predictions that are exactly right",
    "kendall_tau": "agreement of predicted and true rankings (1 is the same order, -1 the opposite)",
    "edits": "letters to insert, delete or replace until a prediction is the truth, on average",
    "hits@1": "share of inputs for which the right answer comes first",
    "hits@10": "share of inputs for which the right answer is among the first ten",
    "mrr": "mean of 1 / rank of the right answer (0 where it is not among the candidates)",
    "mean_rank": "mean rank of the right answer, where it is among the candidates",
    "candidates": "number of different candidates that the right answer was ranked among",
    "known": "share of right answers that are known outputs; the others were added to the candidates",
    "listed": "share of right answers that are among the candidates; the others count as not found",
    "similarity": "mean similarity of the first answer to the right one, by the kernel (1 is the same)",
    "ged": "atoms and bonds to change until a prediction is the truth, on average",
}


class Test(NamedTuple):
    """A file of pairs, those that were used, and the metrics."""

    file: str
    cells: Cells
    metrics: dict[str, float]


def evaluate(
    predictor: Predictor, inputs: Sequence[Cell], outputs: Sequence[Cell], candidates: Sequence[str] | None = None
) -> dict[str, float]:
    """Metrics of the first answers for pairs of cells, all of which must be good. What is undefined is left out.

    With candidates the answers are the best of them, and the right ones are ranked among them; one that is not in the
    list is not found. Without, answers are those of the decoder; molecules are also ranked, and, where the decoder
    picks from a list, picked, among the known outputs and all the right answers. Ties count as in
    :func:`dsokr.metrics.retrieval`.
    """
    z = predictor.coefficients(inputs)
    true = [cell_text(cell) for cell in outputs]
    if candidates is None and not isinstance(predictor.output, Molecule):
        return _of_answers(predictor, predictor.decoded(z)[0], true)
    there = different(predictor, predictor.known if candidates is None else candidates)
    pool = there | different(predictor, true) if candidates is None else there
    share = sum(predictor.output.key(cell) in there for cell in true) / len(true)
    found = retrieval(predictor, z, true, pool) | {"known" if candidates is None else "listed": share}
    if candidates is None and not isinstance(predictor.model.decoder_, Candidates):
        return _of_answers(predictor, predictor.decoded(z)[0], true) | found
    cells = list(pool.values())
    best = predictor.among(cells).top(z, 1, predictor.rule).indices[:, 0].tolist()
    return _of_answers(predictor, [cells[i] for i in best], true) | found


def different(predictor: Predictor, cells: Sequence[str]) -> dict[str, str]:
    """The first of cells that mean the same, by what they mean."""
    found: dict[str, str] = {}
    for cell in cells:
        found.setdefault(predictor.output.key(cell), cell)
    return found


def of_table(
    predictor: Predictor, path: Path, problems: Problems, candidates: Path | None = None, column: str | None = None
) -> Test:
    """The metrics for the pairs of a table that can be used, and these pairs."""
    columns = predictor.facts["columns"]
    source = tables.table(path)
    names = common_columns(source, columns["input"], "inputs"), common_columns(source, columns["output"], "outputs")
    cells = read_cells(path, *names, problems)
    cells = replace(cells, inputs=list(predictor.input.located(cells.inputs, path.parent)))
    told = ", ".join(columns["input"]), ", ".join(columns["output"])
    good = good_pairs(cells, predictor.input, predictor.output, told, problems)
    good = defined_pairs(good, predictor.basis.kernel, told[1], problems)
    listed = None if candidates is None else _listed(predictor, candidates, column, problems)
    return Test(path.name, good.cells, evaluate(predictor, good.cells.inputs, good.cells.outputs, listed))


def _listed(predictor: Predictor, path: Path, column: str | None, problems: Problems) -> list[str]:
    """The candidates of a file that can be used."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. An evaluation takes a file of candidates, not an index.")
    cells: list[str] = []
    for block in library_blocks(predictor.output, predictor.facts["columns"]["output"], path, column, problems):
        _, places = usable(predictor, block, range(len(block.cells)), problems)
        cells += [block.cells[place] for place in places]
    check_candidates(path, len(cells), problems)
    return cells


def sentence(metrics: dict[str, float], n: int) -> str:
    """The metrics in words that a person understands."""
    said = _ranked(metrics, n) if "hits@1" in metrics else []
    if "exact" in metrics:
        said.append(f"{metrics['exact']:.0%} of {counted(n, 'prediction')} {'is' if n == 1 else 'are'} exactly right")
    for name, words in (("f1", "F1"), ("kendall_tau", "Kendall's tau"), ("r2", "R²"), ("edits", "edits to the truth")):
        if name in metrics:
            said.append(f"{words} {metrics[name]:.3g}")
    if "mae" in metrics and "r2" not in metrics:
        said.append(f"mean absolute error {metrics['mae']:.3g}; R² is undefined, as all right answers are the same")
    if "exact" in metrics and not metrics.keys() & {"f1", "kendall_tau", "edits", "similarity"}:
        said.append("Kendall's tau is undefined, as no two items are in order in a right answer and its prediction")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def _ranked(metrics: dict[str, float], n: int) -> list[str]:
    """How high the right answers stood, and among what."""
    among = f"among {counted(int(metrics['candidates']), 'candidate')}"
    if metrics.get("known") == 1:
        among += " (the known outputs, which hold all right answers)"
    elif "known" in metrics:
        share = f"{metrics['known']:.0%} of which are known outputs"
        among += f" (the known outputs and the {counted(n, 'right answer')}, {share})"
    elif "listed" in metrics:
        share = "all" if metrics["listed"] == 1 else f"{metrics['listed']:.0%} of the"
        among += f" (those of the list, which holds {share} right answers)"
    said = [
        f"{among} the right answer came first for {metrics['hits@1']:.0%} of {counted(n, 'input')} and was one of the "
        f"first ten for {metrics['hits@10']:.0%}"
    ]
    if "mean_rank" in metrics:
        where = " where it is in the list" if metrics.get("listed", 1) < 1 else ""
        said.append(f"its mean rank{where} is {metrics['mean_rank']:.1f}")
    return said


def _of_answers(predictor: Predictor, predicted: list[str], true: list[str]) -> dict[str, float]:
    kind = predictor.output
    if isinstance(kind, Molecule):
        return _of_molecules(predictor, predicted, true)
    if isinstance(kind, String):
        pairs = list(zip(predicted, kind.all_of(true, "Output"), strict=True))
        exact = sum(a == b for a, b in pairs) / len(pairs)
        return {"exact": exact, "edits": sum(levenshtein(a, b) for a, b in pairs) / len(pairs)}
    a, b = kind.all_of(predicted, "Prediction"), kind.all_of(true, "Output")
    if isinstance(kind, Vector):
        return _of_vectors(kind, kind.restored(a), kind.restored(b))
    if isinstance(kind, Labels):
        return {"f1": f1(a, b), "exact": exact_match(a, b)}
    assert isinstance(kind, Ranking)
    return _mean_tau(a, b) | {"exact": float((a == b).all(axis=1).mean())}


def _of_vectors(kind: Vector, predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """R² weighs columns by their variance in units of the training spread; errors are in the units of the table."""
    error = predicted - true
    scale = np.asarray(kind.scale)
    total = (((true - true.mean(axis=0)) / scale) ** 2).sum()
    metrics = {"r2": 1 - float(((error / scale) ** 2).sum() / total)} if total > 0 else {}
    metrics |= {"mae": float(np.abs(error).mean()), "rmse": float(np.sqrt((error**2).mean()))}
    if len(kind.columns) > 1:
        for name, column in zip(kind.columns, error.T, strict=True):
            metrics[f"mae {name}"] = float(np.abs(column).mean())
    return metrics


def _mean_tau(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Over the items that the truth ranks; a truth that ties all of them has no tau."""
    taus = []
    for a, b in zip(predicted, true, strict=True):
        ranked = (b >= 0) & (a >= 0)
        if ranked.sum() > 1 and len(set(b[ranked])) > 1 and len(set(a[ranked])) > 1:
            taus.append(kendall_tau([a[ranked]], [b[ranked]]).item())
    return {"kendall_tau": float(np.mean(taus))} if taus else {}


def _of_molecules(predictor: Predictor, predicted: list[str], true: list[str]) -> dict[str, float]:
    """Of answers from a list only the similarity is told: whether they are right is told by their rank."""
    kind = predictor.output
    assert isinstance(kind, Molecule)
    a, b = kind.all_of(predicted, "Prediction"), kind.all_of(true, "Output")
    metrics = {"similarity": predictor.model.kernel.paired(a, b).mean().item()}
    if isinstance(predictor.model.decoder_, Candidates):
        return metrics
    metrics["exact"] = sum(kind.key(x) == kind.key(y) for x, y in zip(predicted, true, strict=True)) / len(true)
    if max(len(graph.labels) for graph in [*a, *b]) <= EDITED_ATOMS:
        metrics["ged"] = edit_distance(a, b).mean().item()
    return metrics


def retrieval(predictor: Predictor, z: Tensor, true: Sequence[str], pool: Mapping[str, str]) -> dict[str, float]:
    """Hits@k and the like of the right answers in a pool of :func:`different` candidates.

    One that is not in the pool is a miss for Hits@k and 0 for the reciprocal rank; the mean rank is of the others.
    """
    place = {key: position for position, key in enumerate(pool)}
    truth = torch.tensor([place.get(predictor.output.key(cell), -1) for cell in true])
    there = truth >= 0
    ranks = torch.full((len(true),), torch.inf, dtype=torch.float64)
    if there.any():
        candidates = predictor.among(list(pool.values()))
        ranks[there] = candidates.ranks(z[there.to(z.device)], truth[there], predictor.rule).cpu()
    metrics = retrieval_of(ranks) | {"mean_rank": ranks[there].mean().item(), "candidates": len(pool)}
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def rows(metrics: dict[str, float]) -> list[list[str]]:
    """Name, value and meaning, for a table."""
    return [
        [name, f"{value:,.0f}" if value >= 1000 else f"{value:.4g}", _meaning(name)] for name, value in metrics.items()
    ]


def _meaning(name: str) -> str:
    metric, _, column = name.partition(" ")
    return f"{MEANING[metric]} of {column}" if column else MEANING[metric]
