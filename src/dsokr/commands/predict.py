"""Answers as a table: predictions, or the best candidates of a file, an index or a column."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, starmap
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dsokr.commands.cells import count_of, parse_numbers, shorten, split
from dsokr.commands.cluster import connect
from dsokr.commands.formats import without_compression
from dsokr.commands.guarantee import judge
from dsokr.commands.library import Library, describe, open_index
from dsokr.commands.options import PredictOptions, Result, Say
from dsokr.commands.possible import append_conditions, pool_rows, read_rows, split_list
from dsokr.commands.predictor import Predictor, read_column
from dsokr.commands.reasons import Hits, check_page, write_reasons
from dsokr.commands.tables import Problems, Table, check_writable, write_skipped, write_table
from dsokr.conformal import LISTED, Calibration, Conformal
from dsokr.decoders import EmbeddedOutputs, Ranking
from dsokr.decoders.pools import positions_of, size_of
from dsokr.decoders.scan import Scan
from dsokr.errors import InputError
from dsokr.index import Columns, Condition, fingerprint, is_index
from dsokr.index.shard_search import Spread, look_up, search_shards
from dsokr.index.shards import Shards
from dsokr.outputs import take
from dsokr.rules import Rule, check_rule

TOP = 10  # candidates for each input
INPUTS = 4096  # searched for at once in an index

NAMELESS = ("",)


def predict(options: PredictOptions, problems: Problems, say: Say) -> Result:
    """Answer every input of a table; write the table of answers, and the list of the rows that were skipped."""
    _check_options(options)
    predictor, table = Predictor.load(options.model, options.device), Table(options.inputs)
    columns = predictor.input.columns
    if table.is_list and len(columns) > 1:
        raise InputError(f"{table.path} is a list. The inputs have {len(columns)} columns: {', '.join(columns)}.")
    names = table.columns[:1] if table.is_list else columns
    keep = table.find_columns([options.keep]) if options.keep else []
    group = predictor.sure.pairs_.get("column") if predictor.sure is not None and options.coverage is not None else None
    further = filter(None, [group, options.candidates_for, options.pool])
    rows, conditions = read_rows(table, [*names, *keep, *further], options, problems)
    cells, read = read_column(rows, predictor.input, problems, names=names)
    if not read.good:
        raise table.unusable(problems)
    problems.check(table, len(rows.attempted))
    z = predictor.model.coefficients(read.values)
    if options.pool:
        z, first = pool_rows(z, take(rows.cells[options.pool], read.good))
        read = read._replace(values=take(read.values, first), good=take(read.good, first))
    groups = take(rows.cells[group], read.good) if group else None
    lists = take(rows.cells[options.candidates_for], read.good) if options.candidates_for else None
    asked = Asked(z, groups, [condition.take(read.good) for condition in conditions], lists)
    hits, candidates, duplicates = _answer(predictor, asked, options, problems, say)
    taken = {"row", "input", "rank", "prediction", "name", "score", "probability", "confidence"}
    shown: dict[str, list[Any]] = {"row": rows.numbers}
    shown |= {f"kept_{name}" if name in taken else name: rows.cells[name] for name in keep}
    shown |= {"input": cells} if len(columns) == 1 else {}
    shown = {name: take(cells, read.good) for name, cells in shown.items()}
    _write_answers(options.out, shown, hits, predictor.output.columns, split(options.show, ","))
    write_skipped(problems, without_compression(options.out).with_suffix(".skipped.csv"))
    what = f"{describe(candidates, duplicates)} ranked" if candidates else "Predictions"
    counts = {"inputs": len(hits), "candidates": candidates, "duplicates": duplicates, "skipped": len(problems.found)}
    texts: list[Any] = [f"{what} for {count_of(len(hits), 'input')}.", f"The table: {options.out}"]
    facts: dict[str, Any] = {"out": str(options.out), **counts}
    unanswered = sum(not some for some in hits)
    if (conditions or lists) and unanswered:
        facts["without_candidates"] = unanswered
        texts.insert(1, f"No candidate is possible for {count_of(unanswered, 'input')}.")
    if options.max_error is not None:
        facts["left_out"] = unanswered
        texts.insert(1, f"Left out, as an answer would not be safe: {unanswered} of them.")
    if options.explain is not None:
        rule: Any = options.rule or predictor.rule
        write_reasons(predictor, options.explain, take(cells, read.good), read.values, hits, rule)
        facts["explain"] = str(options.explain)
        texts.append(f"The reasons: {options.explain}")
    return Result(facts, texts)


def _check_options(options: PredictOptions) -> None:
    if options.candidates is not None and options.candidates_for is not None:
        raise InputError("--candidates and --candidates-for are two lists of candidates. Choose one.")
    if options.candidates_for is not None and (options.match or options.within or options.show):
        raise InputError("--match, --within and --show are about columns of candidates: lists in a column have none.")
    has_shards = options.candidates is not None and Shards.are_at(options.candidates)
    has_index = options.candidates is not None and (has_shards or is_index(options.candidates))
    if options.ray is not None and not has_shards:
        raise InputError("--ray searches shards. Make them with `dsokr embed --ray`, and name them with --candidates.")
    check_writable(options.out, options.inputs, None if has_index else options.candidates)
    if options.candidates_column is not None and has_index:
        raise InputError(f"--candidates-column names a column of a file: {options.candidates} is an index.")
    is_listed = options.candidates is not None or options.candidates_for is not None or options.match or options.within
    for name in ("candidates_column", "top", "rule", "show"):
        if getattr(options, name) and not is_listed:
            raise InputError(f"--{name.replace('_', '-')} is about candidates. Name them with --candidates.")
    if options.rule is not None:
        check_rule(options.rule)
        if options.coverage is not None or options.max_error is not None:
            raise InputError(
                "--rule cannot be chosen with --coverage or --max-error: scores are calibrated by one rule."
            )
    if options.explain is not None:
        check_page(options.explain, "explanation")


class Asked(NamedTuple):
    """Inputs: their coordinates, groups, what their candidates must have, and lists of their own."""

    z: Tensor  # (n, p)
    groups: list[str] | None
    conditions: list[Condition]
    lists: list[str] | None


def _answer(
    predictor: Predictor, asked: Asked, options: PredictOptions, problems: Problems, say: Say
) -> tuple[Hits, int, int]:
    """Return the decoder's answers, or the best candidates and the numbers of distinct and of repeated ones."""
    is_guarded, sure, z = options.coverage is not None or options.max_error is not None, predictor.sure, asked.z
    if is_guarded and sure is None:
        raise InputError(
            f"{options.model} is not calibrated. Run `dsokr calibrate {options.model} pairs.csv`, with pairs that were "
            "not trained on."
        )
    top, rule, conditions = options.top or TOP, cast(Rule, options.rule or predictor.rule), asked.conditions
    shown = split(options.show, ",")
    if asked.lists is not None:
        return _rank_lists(predictor, z, asked.lists, top, rule)
    if options.candidates is None and not conditions:
        if sure is None:
            return [[(cell, NAMELESS, score.item())] for cell, score in zip(*predictor.decode(z), strict=True)], 0, 0
        return _answer_surely(predictor, sure, z, asked.groups, options), 0, 0
    if is_guarded and sure is not None:  # ranked for the calibration's inputs, too: this list is another
        top, z = LISTED, torch.cat([sure.pairs_["z"].to(z), z])
        conditions = append_conditions(sure.pairs_.get("conditions"), conditions) if conditions else []
    if options.candidates is not None and Shards.are_at(options.candidates):
        shards = Shards.open(options.candidates, fingerprint(predictor.basis))
        hits = _rank_shards(shards, z, top, rule, conditions, options)
        counts = sum(shards.counts), 0
    elif options.candidates is None or is_index(options.candidates):
        index = open_index(predictor, options.candidates)
        columns = [index.names, *(index.find_cells(name) for name in shown)]
        hits = []
        for start in range(0, len(z), INPUTS):
            rows = slice(start, start + INPUTS)
            found = index.search(z[rows], top, rule, [condition.take(rows) for condition in conditions])
            hits += list_hits(found, lambda at: (index.texts[at], tuple(column[at] for column in columns)))
            say(f"{len(hits):,} of {len(z):,} inputs", passing=True)
        counts = len(index), 0
    else:
        wanted = [*shown, *(condition.column for condition in conditions)]
        library = Library(predictor, options.candidates, options.candidates_column, problems, wanted)
        hits = rank_library(library, z, top, rule, say, conditions, shown)
        skipped = len(problems.by_row(library.table.path))
        counts = library.candidates, library.rows - library.candidates - skipped
    if is_guarded and sure is not None:
        parts = [torch.tensor([hit[2] for hit in some], dtype=torch.float64) for some in hits]
        scores = pad_sequence(parts, batch_first=True, padding_value=-torch.inf)
        n = len(hits) - len(asked.z)
        hits = _guard(sure.calibrate_for(scores[:n]), options, asked.groups, asked.z, scores[n:], hits[n:])
    return hits, *counts


def _rank_lists(predictor: Predictor, z: Tensor, lists: Sequence[str], top: int, rule: Rule) -> tuple[Hits, int, int]:
    """Rank the candidates that every input lists itself; those that cannot be read are left out, with a warning."""
    listed = [split_list(cell, predictor.output) for cell in lists]
    cells = list(dict.fromkeys(chain.from_iterable(listed)))
    read = predictor.output.read(cells, predictor.basis.kernel)
    if not read.good:
        raise InputError("None of the listed candidates can be used.")
    if read.bad:
        at, reason = next(iter(read.bad.items()))
        what = count_of(len(read.bad), "listed candidate")
        warnings.warn(f"{what} cannot be used, {shorten(cells[at])!r} for one: {reason}", stacklevel=2)
    place = {cells[at]: number for number, at in enumerate(read.good)}
    pools = [torch.tensor(sorted({place[cell] for cell in some if cell in place}), dtype=torch.long) for some in listed]
    found = EmbeddedOutputs(predictor.basis, read.values, keep=False).top_of(z, pools, top, rule)
    return list_hits(found, lambda at: (cells[read.good[at]], NAMELESS)), len(place), 0


def _answer_surely(predictor: Predictor, sure: Conformal, z: Tensor, groups: Any, options: PredictOptions) -> Hits:
    """The answers of a calibrated model; one for each input, unless sets are wanted."""
    best = sure.find_best(z)
    if best.indices is not None:
        cells = [[predictor.known[at] for at in row] for row in best.indices.tolist()]
    else:
        values = (predictor.model.known_.form.restore(outputs) for outputs in best.outputs)
        cells = [[predictor.output.format(value) for value in some] for some in values]
    hits = [
        [(c, NAMELESS, s) for c, s in zip(*row, strict=False)] for row in zip(cells, best.scores.tolist(), strict=True)
    ]
    if options.coverage is None:
        options = replace(options, top=1)
    return _guard(sure.calibration, options, groups, z, best.scores, hits)


def _guard(
    calibration: Calibration, options: PredictOptions, groups: Any, z: Tensor, scores: Tensor, hits: Hits
) -> Hits:
    """Keep the hits that are answers, with their probabilities, and the confidence in the first."""
    sizes, probabilities, confidence = judge(calibration, options, groups, z, scores)
    rows = zip(hits, sizes, probabilities.tolist(), confidence.tolist(), strict=True)
    return [[(*hit, p, sure) for hit, p in zip(some[:n], ps, strict=False)] for some, n, ps, sure in rows]


def _rank_shards(
    shards: Shards, z: Tensor, top: int, rule: Rule, conditions: Sequence[Condition], options: PredictOptions
) -> Hits:
    """Return the best candidates of shards, found on a cluster if one is named."""
    shards.check_columns(shown := split(options.show, ","))
    with nullcontext() if options.ray is None else connect(options.ray) as cluster:
        spread: Spread = starmap if cluster is None else cluster.starmap
        found = search_shards(shards, z, top, rule, conditions, spread)
        return list_hits(found, look_up(shards, found.indices, shown, spread).__getitem__)


def rank_library(
    library: Library,
    z: Tensor,
    top: int,
    rule: Rule,
    say: Say,
    conditions: Sequence[Condition] = (),
    shown: Sequence[str] = (),
) -> Hits:
    """Return the best candidates of a file for every row of coordinates, with the cells of columns to be shown."""
    basis = library.predictor.basis
    scan, read = Scan(basis.check_coordinates(z), top, rule), 0
    held: dict[int, tuple[str, tuple[str, ...]]] = {}  # the best so far
    for block in library.blocks():
        read += len(block.cells)
        pairs, used = None, torch.arange(len(block.cells))
        if conditions and block.cells:
            pools = Columns.of(block.columns).find(conditions)
            used, places = torch.cat(list(map(positions_of, pools))).unique(return_inverse=True)
            pairs = torch.arange(len(z)).repeat_interleave(torch.tensor(list(map(size_of, pools)))), places
        if len(used):
            rows = list(zip(block.names, *(block.columns[name] for name in shown), strict=True))
            held |= {scan.seen + i: (block.cells[at], rows[at]) for i, at in enumerate(used.tolist())}
            scan.add(*EmbeddedOutputs(basis, take(block.values, take(block.places, used))).coordinates(), pairs=pairs)
            held = {at: held[at] for at in set(scan.ranking().indices.flatten().tolist()) - {-1}}
        say(count_of(read, "candidate"), passing=True)
    return list_hits(scan.ranking(), held.__getitem__)


def list_hits(found: Ranking, look_up: Callable[[int], tuple[str, tuple[str, ...]]]) -> Hits:
    pairs = zip(found.indices.tolist(), found.scores.tolist(), strict=True)
    return [[(*look_up(at), score) for at, score in zip(*row, strict=True) if at >= 0] for row in pairs]


def _write_answers(
    path: Path, shown: Mapping[str, list[Any]], hits: Hits, columns: Sequence[str], of_candidates: Sequence[str]
) -> None:
    """Write a row for every answer: what is shown of the input, rank, prediction (by column), name, score, …"""
    predictions = [f"prediction_{name}" for name in columns] if len(columns) > 1 else ["prediction"]
    unnamed = not any(hit[1][0] for some in hits for hit in some)
    names = ["name", *(f"candidate_{name}" for name in of_candidates)][unnamed:]
    lines = []
    for *before, some in zip(*shown.values(), hits, strict=True):
        for rank, (cell, named, *numbers) in enumerate(some, start=1):
            cells = parse_numbers(cell, columns).tolist() if len(columns) > 1 else [cell]
            lines.append([*before, rank, *cells, *named[unnamed:], *(float(f"{x:.7g}") for x in numbers)])
    width = max((len(hit) for some in hits for hit in some), default=3) - 2
    write_table(path, [*shown, "rank", *predictions, *names, *("score", "probability", "confidence")[:width]], lines)
