"""Evaluation of a predictor: metrics that suit its outputs, a summary in words, and an HTML report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import rich.table
import torch
from torch import Tensor

from dsokr.commands.cells import count_of, parse_numbers, shorten
from dsokr.commands.columns import Image, Labels, Molecule, Ranking, String, Vector
from dsokr.commands.guarantee import check_promises
from dsokr.commands.kinds import Kind
from dsokr.commands.library import Library
from dsokr.commands.options import EvaluateOptions, ReportOptions, Result, Say
from dsokr.commands.possible import complete, pool_rows, read_test
from dsokr.commands.predictor import Pairs, Predictor
from dsokr.commands.reasons import check_page
from dsokr.commands.tables import Problems, Table
from dsokr.decoders.pools import size_of
from dsokr.errors import InputError, MissingExtraError
from dsokr.files import replace_file
from dsokr.index import Columns, Condition
from dsokr.metrics import edit_distance, exact_match, f1, kendall_tau, levenshtein, retrieval_of
from dsokr.outputs import take

POOLS = {
    "0": (0, 0),
    "1": (1, 1),
    "2-9": (2, 9),
    "10-99": (10, 99),
    "100+": (100, math.inf),
}  # numbers of possible candidates
EDITED_ATOMS = 10  # molecules up to this size are compared by their exact edit distance
EXAMPLES = 8  # pairs shown in a report
SHOWN = 4  # answers for every example
TILE = (220, 160)  # pixels of a drawing
MEANING = {
    "r2": "share of the variance explained (1 is perfect, 0 is as good as the mean)",
    "mae": "mean absolute error",
    "rmse": "root of the mean squared error",
    "f1": "agreement of predicted and true label sets (1 is perfect)",
    "exact": "share of predictions that are exactly right",
    "kendall_tau": "agreement of predicted and true rankings (1 is the same order, -1 the opposite)",
    "edits": "characters to insert, delete or replace to get from a prediction to the truth, on average",
    "hits@1": "share of inputs for which the right answer comes first",
    **{f"hits@{k}": f"share of inputs for which the right answer is among the first {k}" for k in (5, 10, 20)},
    "mrr": "mean of 1 / rank of the right answer (0 where it is not among the candidates)",
    "mean_rank": "mean rank of the right answer, where it is among the candidates",
    "inputs": "number of inputs",
    "possible": "candidates that are possible for an input, on average; inputs with one alone do not count",
    "candidates": "number of different candidates that the right answer was ranked among",
    "known": "share of right answers that were trained on; all others are among the candidates, too",
    "listed": "share of right answers that are among the candidates; the others count as not found",
    "similarity": "mean similarity of the first answer to the right one, by the kernel (1 is the same)",
    "ged": "atoms and bonds to change to get from a prediction to the truth, on average",
}


def evaluate_table(options: EvaluateOptions, problems: Problems, say: Say) -> Result:
    """Compare predictions with the right answers of a table."""
    if options.candidates is None and options.candidates_column is not None:
        raise InputError("--candidates-column is about candidates. Name them with --candidates.")
    predictor, listed = Predictor.load(options.model, options.device), None
    pairs, conditions, keys = read_test(predictor, Table(options.test), options, problems, options.pool)
    if options.candidates is not None:
        wanted = [condition.column for condition in conditions]
        library = Library(predictor, options.candidates, options.candidates_column, problems, wanted)
        blocks = list(library.blocks())
        cells = [cell for block in blocks for cell in block.cells]
        listed = Listing(cells, {name: [cell for block in blocks for cell in block.columns[name]] for name in wanted})
    metrics = evaluate(predictor, pairs, listed, conditions, keys)
    shown = rich.table.Table("metric", "value", "what it means")
    for row in list_metrics(metrics):
        shown.add_row(*row)
    n = len(set(keys)) if keys else len(pairs)
    facts = {"n": n, "skipped": len(problems.found), "metrics": metrics}
    texts = [shown, summarize(metrics, n)]
    if predictor.sure is not None and listed is None and not conditions and not keys:
        facts["promises"] = promises = check_promises(predictor, pairs)
        texts += [test["text"] for test in promises["coverage"]]
        texts.append(f"Confidence is off by {promises['calibration_error']:.3f} on average.")
    return Result(facts, texts)


class Listing(NamedTuple):
    """Candidates, no two of which mean the same, and cells of further columns."""

    cells: Sequence[str]
    columns: Mapping[str, list[str]]


def evaluate(
    predictor: Predictor,
    pairs: Pairs,
    listed: Listing | None = None,
    conditions: Sequence[Condition] = (),
    pooled: Sequence[str] | None = None,
) -> dict[str, float]:
    """Compute the metrics of the first answers. Undefined ones are left out.

    With candidates the answers are the best of them, and the right ones are ranked among them; one that is not in the
    list is not found. Without, answers are those of the decoder; molecules are also ranked, and, where the decoder
    picks from a list, picked, among the known outputs and all the right answers. With conditions, only candidates that
    meet them count. Pairs that are ``pooled``, by equal cells, are one input, with the answer and conditions of the
    first. Ties count as in :func:`dsokr.metrics.retrieval`.
    """
    z, true, metrics = predictor.model.coefficients(pairs.X), pairs.outputs, {}
    if pooled:
        z, first = pool_rows(z, pooled)
        true, conditions = take(true, first), [condition.take(first) for condition in conditions]
    is_ranked = listed is not None or isinstance(predictor.output, Molecule)
    if conditions and not is_ranked:
        raise InputError("--match and --within are about candidates. Name them with --candidates.")
    if is_ranked:
        if listed is None:
            name, there = "known", by_meaning(predictor, predictor.trained)
            pool = by_meaning(predictor, [*predictor.known, *true])
        else:
            name, pool = "listed", by_meaning(predictor, listed.cells)
            there = pool
        metrics = {name: sum(predictor.output.key(cell) in there for cell in true) / len(true)}
    if conditions:
        columns = {} if listed is None else listed.columns
        found, best = rank_possible(predictor, z, true, pool, columns, conditions)
        answered = [at for at, place in enumerate(best) if place >= 0]
        cells = list(pool.values())
        answers = [cells[best[at]] for at in answered]
        return (_compare(predictor, answers, take(true, answered)) if answered else {}) | found | metrics
    if is_ranked:
        metrics = rank_truth(predictor, z, true, pool) | metrics
    if is_ranked and (listed is not None or not predictor.searches):
        best = predictor.among(list(pool.values())).top(z, 1, predictor.rule).indices[:, 0].tolist()
        return _compare(predictor, take(list(pool.values()), best), true) | metrics
    return _compare(predictor, predictor.decode(z)[0], true) | metrics


def by_meaning(predictor: Predictor, cells: Iterable[str]) -> dict[str, str]:
    """Return the first cell of every meaning, by its key."""
    found: dict[str, str] = {}
    for cell in cells:
        found.setdefault(predictor.output.key(cell), cell)
    return found


def find_truth(predictor: Predictor, true: Sequence[str], pool: Mapping[str, str]) -> Tensor:  # (n,)
    """The places of the right answers in a pool of distinct candidates, −1 for those that are not there."""
    place = {key: at for at, key in enumerate(pool)}
    return torch.tensor([place.get(predictor.output.key(cell), -1) for cell in true])


def rank_possible(
    predictor: Predictor,
    z: Tensor,
    true: Sequence[str],
    pool: Mapping[str, str],
    columns: Mapping[str, list[str]],
    conditions: Sequence[Condition],
) -> tuple[dict[str, float], list[int]]:
    """Rank every right answer among the candidates that are possible for its input.

    Return the metrics, overall and by the number of candidates, and the places of the best candidates, −1 where none is
    possible. The overall metrics are those of inputs with two candidates or more.
    """
    cells = list(pool.values())
    pools = Columns.of(complete(predictor.output, cells, columns)).find(conditions)
    candidates, truth = predictor.among(cells), find_truth(predictor, true, pool)
    ranks = candidates.ranks(z, truth, predictor.rule, pools).cpu()
    best = candidates.top_of(z, pools, 1, predictor.rule).indices[:, 0].tolist()
    sizes = torch.tensor(list(map(size_of, pools)))
    several = sizes > 1
    metrics = describe_ranks(ranks[several], len(pool)) | {"possible": sizes[several].double().mean().item()}
    for name, (least, most) in POOLS.items():
        own = ranks[(sizes >= least) & (sizes <= most)]
        if len(own):
            metrics |= {f"inputs {name}": len(own)}
            metrics |= {f"hits@{k} {name}": (own <= k).double().mean().item() for k in (1, 5, 20)}
    return {name: value for name, value in metrics.items() if not math.isnan(value)}, best


def rank_truth(predictor: Predictor, z: Tensor, true: Sequence[str], pool: Mapping[str, str]) -> dict[str, float]:
    """Rank the right answers in a pool of distinct candidates; one that is not there has an infinite rank."""
    truth = find_truth(predictor, true, pool)
    there = truth >= 0
    ranks = torch.full((len(true),), torch.inf, dtype=torch.float64)
    if there.any():
        candidates = predictor.among(list(pool.values()))
        ranks[there] = candidates.ranks(z[there.to(z.device)], truth[there], predictor.rule).cpu()
    return describe_ranks(ranks, len(pool))


def describe_ranks(ranks: Tensor, candidates: int) -> dict[str, float]:  # (n,)
    """Return hits@k, the mean reciprocal rank, and the mean of the finite ranks. Undefined ones are left out."""
    metrics = retrieval_of(ranks) if len(ranks) else {}
    metrics["mean_rank"] = ranks[ranks.isfinite()].mean().item()
    return {name: value for name, value in metrics.items() if math.isfinite(value)} | {"candidates": candidates}


def _compare(predictor: Predictor, predicted: list[str], true: list[str]) -> dict[str, float]:
    """Compute the metrics of answers against the truth."""
    kind = predictor.output
    if isinstance(kind, String):
        pairs = list(zip(predicted, kind.parse_all(true, "Output"), strict=True))
        edits = sum(levenshtein(x, y) for x, y in pairs) / len(pairs)
        return {"exact": sum(x == y for x, y in pairs) / len(pairs), "edits": edits}
    a, b = kind.parse_all(predicted, "Prediction"), kind.parse_all(true, "Output")
    if isinstance(kind, Molecule):
        return _compare_molecules(predictor, predicted, true, a, b)
    if isinstance(kind, Vector):
        return _compare_vectors(kind, kind.unscale(a), kind.unscale(b))
    if isinstance(kind, Labels):
        return {"f1": f1(a, b), "exact": exact_match(a, b)}
    assert isinstance(kind, Ranking)
    both = [(x, y, (x >= 0) & (y >= 0)) for x, y in zip(a, b, strict=True)]
    taus = [kendall_tau([x[ranked]], [y[ranked]]).item() for x, y, ranked in both if ranked.sum() > 1]
    taus = [tau for tau in taus if not math.isnan(tau)]  # of items that are not all tied
    return ({"kendall_tau": float(np.mean(taus))} if taus else {}) | {"exact": float((a == b).all(axis=1).mean())}


def _compare_vectors(kind: Vector, predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """R² weighs columns by their variance in units of the training spread; errors are in the units of the table."""
    error = predicted - true
    total = (((true - true.mean(axis=0)) / kind.scale) ** 2).sum()
    metrics = {"r2": 1 - float(((error / kind.scale) ** 2).sum() / total)} if total > 0 else {}
    metrics |= {"mae": float(np.abs(error).mean()), "rmse": float(np.sqrt((error**2).mean()))}
    columns = zip(kind.columns, error.T, strict=True) if len(kind.columns) > 1 else ()
    return metrics | {f"mae {name}": float(np.abs(column).mean()) for name, column in columns}


def _compare_molecules(predictor: Predictor, predicted: list[str], true: list[str], a: Any, b: Any) -> dict[str, float]:
    """Answers from a list have only a similarity here: their rank says whether they are right."""
    metrics, key = {"similarity": predictor.model.kernel.paired(a, b).mean().item()}, predictor.output.key
    if predictor.searches:
        metrics["exact"] = sum(key(x) == key(y) for x, y in zip(predicted, true, strict=True)) / len(true)
        if max(len(graph.labels) for graph in [*a, *b]) <= EDITED_ATOMS:
            metrics["ged"] = edit_distance(a, b).mean().item()
    return metrics


def summarize(metrics: dict[str, float], n: int) -> str:
    """Return the metrics in words."""
    said = _summarize_ranks(metrics, n) if "hits@1" in metrics else []
    if "exact" in metrics:
        said.append(f"{metrics['exact']:.0%} of {count_of(n, 'prediction')} {'is' if n == 1 else 'are'} exactly right")
    words = {"f1": "F1", "kendall_tau": "Kendall's tau", "r2": "R²", "mae": "mean absolute error", "edits": "edits"}
    said += [f"{word} {metrics[name]:.3g}" for name, word in words.items() if name in metrics]
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def _summarize_ranks(metrics: dict[str, float], n: int) -> list[str]:
    if "listed" in metrics:
        pool = f"the list, which holds {metrics['listed']:.0%} of the right answers"
    elif metrics["known"] == 1:
        pool = "the known outputs; all right answers were trained on"
    else:
        share = f"{metrics['known']:.0%} of which were trained on"
        pool = f"the known outputs and the {count_of(n, 'right answer')}, {share}"
    if "possible" in metrics:
        few = f"{metrics['possible']:.3g} on average where there are several"
        first = f"first for {metrics['hits@1']:.0%} of these inputs"
        return [f"among the candidates that are possible for each input ({few}) the right answer comes {first}"]
    among = f"among {count_of(int(metrics['candidates']), 'candidate')} ({pool})"
    first = f"first for {metrics['hits@1']:.0%} of {count_of(n, 'input')}"
    said = [f"{among} the right answer comes {first} and is one of the first ten for {metrics['hits@10']:.0%}"]
    return said + ([f"its mean rank among them is {metrics['mean_rank']:.1f}"] if "mean_rank" in metrics else [])


def list_metrics(metrics: dict[str, float]) -> list[list[str]]:
    """Return name, value and meaning of every metric, for a table."""
    rows = []
    for name, value in metrics.items():
        metric, _, column = name.partition(" ")
        what = f", with {column} possible" if column in POOLS else f" of {column}" if column else ""
        meaning = MEANING[metric] + what
        rows.append([name, f"{value:,.0f}" if value >= 1000 else f"{value:.4g}", meaning])
    return rows


def report(options: ReportOptions, problems: Problems, say: Say) -> Result:
    """Write the page again, with the results of a test if there is one."""
    check_page(options.out, "report")
    if options.test is None and (options.match or options.within):
        raise InputError("--match and --within are about a test. Name it with --test.")
    predictor = Predictor.load(options.model, options.device)
    if options.test is None:
        write_report(predictor, options.out, str(options.model))
    else:
        test, conditions, _ = read_test(predictor, Table(options.test), options, problems)
        write_report(predictor, options.out, str(options.model), test, options.test.name, conditions)
    return Result({"report": str(options.out)}, [f"The report: {options.out}"])


def find_examples(predictor: Predictor, pairs: Pairs) -> list[dict[str, Any]]:
    """Return the first inputs, right answers, and what the model answers, as JSON.

    Molecules come with the best of the known ones and of all right answers, as they are ranked in an evaluation.
    """
    first = pairs.take(range(min(EXAMPLES, len(pairs))))
    truth, answers = first.outputs, [[cell] for cell in predictor.predict(first.inputs)]
    if isinstance(predictor.output, Molecule):
        cells = list(by_meaning(predictor, [*predictor.known, *pairs.outputs]).values())
        ranked = [[cells[at] for at in row] for row in predictor.rank(first.inputs, cells, SHOWN).indices.tolist()]
        both = [[*a, *b] for a, b in zip(answers, ranked, strict=True)] if predictor.searches else ranked
        answers = [list(by_meaning(predictor, some).values())[:SHOWN] for some in both]
    else:
        truth = [predictor.output.key(cell) for cell in truth]  # written as predictions are
    inputs = [_show_input(predictor.input, cell) for cell in first.inputs]
    names = "row", "input", "truth", "answers"
    return [dict(zip(names, row, strict=True)) for row in zip(first.rows, inputs, truth, answers, strict=True)]


def _show_input(kind: Kind, cell: str) -> str:
    if isinstance(kind, Vector) and len(kind.columns) > 1:
        return shorten(", ".join(f"{number:.4g}" for number in parse_numbers(cell, kind.columns)))
    return Path(cell).name if isinstance(kind, Image) else shorten(cell, 300)


def write_report(
    predictor: Predictor,
    path: Path,
    model: str,
    test: Pairs | None = None,
    file: str = "",
    conditions: Sequence[Condition] = (),
) -> None:
    """Write the page, with the results of a test if there is one. ``model`` is how commands name the folder."""
    facts, results = predictor.facts, []
    if test is not None:
        title = f"On {count_of(len(test), 'test pair')} ({file})"
        promises = check_promises(predictor, test) if predictor.sure is not None and not conditions else None
        metrics = evaluate(predictor, test, conditions=conditions)
        results.append((title, len(test), metrics, find_examples(predictor, test), promises))
    if "validation" in facts:
        n = facts["rows"]["validation"]
        title = f"On {count_of(n, 'pair')} held out for validation"
        results.append((title, n, facts["validation"], facts["examples"], None))
    environment = jinja2.Environment(loader=jinja2.PackageLoader("dsokr.commands", "."), autoescape=True)
    functions: dict[str, Any] = {"count_of": count_of, "draw": _draw, "weigh": _weigh, "shorten": shorten}
    functions |= {"list_metrics": list_metrics, "summarize": summarize}
    template = environment.get_template("report.html.j2", globals=functions)
    is_molecule = isinstance(predictor.output, Molecule)
    page = template.render(predictor=predictor, is_molecule=is_molecule, results=results, model=shlex.quote(model))
    with replace_file(path) as draft:
        draft.write_text(page, encoding="utf-8")


def _weigh(smiles: str) -> str:
    """Return formula and monoisotopic mass of a molecule; nothing where that is impossible."""
    with suppress(MissingExtraError, InputError):
        chem = import_module("dsokr.chem")
        return f"{chem.formula(smiles)}, {chem.mass(smiles):.4f} Da"
    return ""


def _draw(smiles: str) -> str:
    """Draw a molecule as SVG; where that is impossible, the page shows the text."""
    with suppress(MissingExtraError, InputError):
        svg: str = import_module("dsokr.chem").draw([smiles], size=TILE)
        return svg[svg.find("<svg") :]
    return ""
