"""How good a predictor is, in numbers that fit the kind of its outputs, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import BLOCK, embedded_scores
from dsokr.decoders import Candidates
from dsokr.errors import InputError
from dsokr.metrics import edit_distance, exact_match, f1, kendall_tau, retrieval_of
from dsokr.outputs import take
from dsokr.tool import tables
from dsokr.tool.kinds import Cell, Labels, Molecule, Ranking, String, Vector
from dsokr.tool.prediction import library_blocks, usable
from dsokr.tool.predictor import Predictor, cell_text
from dsokr.tool.problems import Problems
from dsokr.tool.reading import Cells, common_columns, defined_pairs, good_pairs, read_cells

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
    "mrr": "mean of 1 / rank of the right answer",
    "mean_rank": "mean rank of the right answer",
    "candidates": "number of different candidates that the right answer was ranked among",
    "similarity": "mean similarity of the prediction to the right answer, by the kernel (1 is the same)",
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
    """Metrics of predictions for pairs of cells, all of which must be good.

    Molecules are also ranked: the right answer among the candidates (by default the known outputs) and all the right
    answers. So is every kind when candidates are given. Ties count as in :func:`dsokr.metrics.retrieval`.
    """
    z = predictor.coefficients(inputs)
    true = [cell_text(cell) for cell in outputs]
    metrics = _of_predictions(predictor, z, true)
    if candidates is not None or isinstance(predictor.output, Molecule):
        metrics |= retrieval(predictor, z, true, predictor.known if candidates is None else candidates)
    return metrics


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
    cells: list[str] = []
    for block in library_blocks(predictor.output, predictor.facts["columns"]["output"], path, column, problems):
        _, places = usable(predictor, block, range(len(block.cells)), problems)
        cells += [block.cells[place] for place in places]
    if not cells:
        raise InputError(f"{path} has no candidate that can be used.")
    return cells


def sentence(metrics: dict[str, float], n: int) -> str:
    """The metrics in words that a person understands."""
    said = []
    if "hits@1" in metrics:
        said.append(
            f"the right answer came first for {metrics['hits@1']:.0%} of {n:,} inputs, and was among the first ten of "
            f"{metrics['candidates']:,.0f} candidates for {metrics['hits@10']:.0%}; its mean rank is "
            f"{metrics['mean_rank']:.1f}"
        )
    if "exact" in metrics:
        said.append(f"{metrics['exact']:.0%} of {n:,} predictions are exactly right")
    for name, words in (("f1", "F1"), ("kendall_tau", "Kendall's tau"), ("r2", "R²"), ("edits", "edits to the truth")):
        if name in metrics:
            said.append(f"{words} {metrics[name]:.3g}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def _of_predictions(predictor: Predictor, z: Tensor, true: list[str]) -> dict[str, float]:
    predicted = predictor.decoded(z)[0]
    kind = predictor.output
    if isinstance(kind, Molecule):
        return _of_molecules(predictor, predicted, true)
    if isinstance(kind, String):
        pairs = list(zip(predicted, kind.all_of(true, "Output"), strict=True))
        exact = sum(a == b for a, b in pairs) / len(pairs)
        return {"exact": exact, "edits": sum(edits(a, b) for a, b in pairs) / len(pairs)}
    a, b = kind.all_of(predicted, "Prediction"), kind.all_of(true, "Output")
    if isinstance(kind, Vector):
        return _of_vectors(kind, kind.restored(a), kind.restored(b))
    if isinstance(kind, Labels):
        return {"f1": f1(a, b), "exact": exact_match(a, b)}
    assert isinstance(kind, Ranking)
    return {"kendall_tau": _mean_tau(a, b), "exact": float((a == b).all(axis=1).mean())}


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


def _mean_tau(predicted: np.ndarray, true: np.ndarray) -> float:
    """Over the items that the truth ranks; a truth that ties all of them has no tau."""
    taus = []
    for a, b in zip(predicted, true, strict=True):
        ranked = (b >= 0) & (a >= 0)
        if ranked.sum() > 1 and len(set(b[ranked])) > 1 and len(set(a[ranked])) > 1:
            taus.append(kendall_tau([a[ranked]], [b[ranked]]).item())
    return float(np.mean(taus)) if taus else float("nan")


def _of_molecules(predictor: Predictor, predicted: list[str], true: list[str]) -> dict[str, float]:
    """With a decoder over candidates the known ones limit what can be right, so only the similarity is told."""
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


def retrieval(predictor: Predictor, z: Tensor, true: Sequence[str], candidates: Sequence[str]) -> dict[str, float]:
    """Hits@k and the like of the right answers among the candidates and all right answers, each counted once."""
    place: dict[str, int] = {}
    cells: list[str] = []
    for cell in [*candidates, *true]:
        if place.setdefault(predictor.output.key(cell), len(cells)) == len(cells):
            cells.append(cell)
    truth = torch.tensor([place[predictor.output.key(cell)] for cell in true])
    return retrieval_of(streamed_ranks(predictor, z, cells, truth)) | {"candidates": len(cells)}


def streamed_ranks(predictor: Predictor, z: Tensor, cells: Sequence[str], truth: Tensor) -> Tensor:  # (n,)
    """:func:`dsokr.metrics.ranks` of candidates that are embedded block by block."""
    values = predictor.output.all_of(cells, "Candidate")
    basis, rule = predictor.basis, predictor.rule
    z, truth = basis.checked(z), truth.to(basis.device)
    own = torch.empty(len(z), 1, device=basis.device)
    for rows in torch.arange(len(z), device=basis.device).split(BLOCK):
        right = take(values, truth[rows])
        own[rows, 0] = embedded_scores(z[rows], basis.embed(right), basis.diag(right), rule).diagonal().float()
    better, equal = (torch.zeros(len(z), dtype=torch.float64, device=basis.device) for _ in range(2))
    for start in range(0, len(cells), BLOCK):
        block = take(values, slice(start, start + BLOCK))
        psi, diag = basis.embed(block), basis.diag(block)
        for rows in torch.arange(len(z), device=basis.device).split(BLOCK):
            scores = embedded_scores(z[rows], psi, diag, rule).float()
            here = (truth[rows] >= start) & (truth[rows] < start + len(diag))
            scores[here.nonzero()[:, 0], truth[rows][here] - start] = -torch.inf
            better[rows] += (scores > own[rows]).sum(dim=1)
            equal[rows] += (scores == own[rows]).sum(dim=1)
    return (1 + better + equal / 2).cpu()


def edits(a: str, b: str) -> int:
    """The Levenshtein distance.

    >>> edits("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1]


def rows(metrics: dict[str, float]) -> list[list[str]]:
    """Name, value and meaning, for a table."""
    return [
        [name, f"{value:,.0f}" if value >= 1000 else f"{value:.4g}", _meaning(name)] for name, value in metrics.items()
    ]


def _meaning(name: str) -> str:
    metric, _, column = name.partition(" ")
    return f"{MEANING[metric]} of {column}" if column else MEANING[metric]
