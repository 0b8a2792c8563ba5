"""Answers as a table: predictions, or the best candidates of a file or an index; and how indexes are made."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsokr.commands.cells import count_of, parse_numbers
from dsokr.commands.formats import without_compression
from dsokr.commands.guarantee import Guard
from dsokr.commands.kinds import parse_good
from dsokr.commands.options import EmbedOptions, PredictOptions, Result, Say
from dsokr.commands.predictor import Predictor, read_column
from dsokr.commands.reasons import check_page, write_reasons
from dsokr.commands.tables import Problems, Table, check_writable, write_skipped, write_table
from dsokr.conformal import LISTED, Conformal
from dsokr.decoders import EmbeddedOutputs, Ranking
from dsokr.decoders.scan import Scan
from dsokr.errors import InputError, Interrupted
from dsokr.files import checksum
from dsokr.index import Block, BuildOptions, CandidateIndex, build, fingerprint
from dsokr.outputs import take
from dsokr.rules import Rule, check_rule

BLOCK = 8192  # candidates read at once
TOP = 10  # candidates for each input

Hits = list[list[tuple[Any, ...]]]  # the answers to every input: cell, name or "", score, probabilities; best first


class Library:
    """The candidates of a file, read in blocks. Those that mean the same count once."""

    def __init__(self, predictor: Predictor, path: Path, column: str | None, problems: Problems):
        self.predictor, self.table, self.problems = predictor, Table(path), problems
        self.columns = self._find_columns(column)
        named = [name for name in self.table.columns if name.lower() in ("name", "id") and name not in self.columns]
        self.name = named[:1]
        self.rows = self.candidates = 0  # read so far, bad rows included

    def _find_columns(self, column: str | None) -> list[str]:
        """Return the column named, or those of the outputs in training, or the only one."""
        table, output = self.table, self.predictor.output
        if column is not None:
            return table.check_columns([column])
        if all(name in table.columns for name in output.columns):
            return list(output.columns)
        if not table.is_list and len(table.columns) > 1:
            columns = f"Its columns: {', '.join(table.columns)}."
            raise InputError(f"Name the column of the candidates in {table.path} with --candidates-column. {columns}")
        if table.header_row and output.read(table.columns).good:
            advice = "Add a header, rename the file to .txt, or name the column with --candidates-column."
            raise InputError(f"The header of {table.path} looks like a candidate: {table.columns[0]}. {advice}")
        return table.columns[:1]

    def blocks(self, start: int = 0) -> Iterator[tuple[list[str], list[str], Any, int]]:
        """Read the candidates after row ``start``: cells, names and values of new good ones, and the last row read.

        Bad ones are problems, in every row where they occur. A file without any good one is an error.
        """
        seen: set[int] = set()  # hashes of good cells after it, and of the keys of all
        key = self.predictor.output.key
        for rows in self.table.blocks(self.problems, [*self.columns, *self.name], BLOCK):
            self.rows += len(rows.attempted)
            cells = list(map(str.strip, rows.join(self.columns)))
            names = rows.cells[self.name[0]] if self.name else [""] * len(cells)
            name_of = dict(zip(reversed(cells), reversed(names), strict=True))  # that of the first of equal cells
            after = [at for at, number in enumerate(rows.numbers) if number > start]
            seen |= {hash((text,)) for text in parse_good(key, cells[: len(cells) - len(after)])}
            new = list(dict.fromkeys(cells[at] for at in after if hash(cells[at]) not in seen))
            read = self.predictor.output.read(new, self.predictor.basis.kernel)
            bad = {new[at]: reason for at, reason in read.bad.items()}
            for at in after:
                if cells[at] in bad:
                    self.problems.add(self.table, rows.numbers[at], ", ".join(self.columns), bad[cells[at]])
            self.problems.check(self.table, self.rows)
            places = {hash((key(new[at]),)): place for place, at in reversed(list(enumerate(read.good)))}
            fresh = sorted(place for code, place in places.items() if code not in seen)
            seen |= {hash(new[at]) for at in read.good} | places.keys()
            found = [new[read.good[place]] for place in fresh]
            self.candidates += len(found)
            yield found, [name_of[cell] for cell in found], take(read.values, fresh), rows.attempted[-1]
        if not self.candidates and not start:
            raise self.table.unusable(self.problems)


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
    rows = table.read(problems, [*names, *keep, *(table.check_columns([group]) if group else [])])
    cells, read = read_column(rows, predictor.input, problems, names=names)
    if not read.good:
        raise table.unusable(problems)
    problems.check(table, len(rows.attempted))
    groups = take(rows.cells[group], read.good) if group else None
    z = predictor.model.coefficients(read.values)
    hits, candidates, duplicates = _answer(predictor, z, groups, options, problems, say)
    taken = {"row", "input", "rank", "prediction", "name", "score", "probability", "confidence"}
    shown: dict[str, list[Any]] = {"row": rows.numbers}
    shown |= {f"kept_{name}" if name in taken else name: rows.cells[name] for name in keep}
    shown |= {"input": cells} if len(columns) == 1 else {}
    shown = {name: take(cells, read.good) for name, cells in shown.items()}
    _write_answers(options.out, shown, hits, predictor.output.columns)
    write_skipped(problems, without_compression(options.out).with_suffix(".skipped.csv"))
    what = f"{_describe(candidates, duplicates)} ranked" if candidates else "Predictions"
    counts = {"inputs": len(hits), "candidates": candidates, "duplicates": duplicates, "skipped": len(problems.found)}
    texts: list[Any] = [f"{what} for {count_of(len(hits), 'input')}.", f"The table: {options.out}"]
    facts: dict[str, Any] = {"out": str(options.out), **counts}
    if options.max_error is not None:
        facts["left_out"] = sum(not some for some in hits)
        texts.insert(1, f"Left out, as an answer would not be safe: {facts['left_out']} of them.")
    if options.explain is not None:
        rule: Any = options.rule or predictor.rule
        write_reasons(predictor, options.explain, take(cells, read.good), read.values, hits, rule)
        facts["explain"] = str(options.explain)
        texts.append(f"The reasons: {options.explain}")
    return Result(facts, texts)


def _check_options(options: PredictOptions) -> None:
    is_index = options.candidates is not None and options.candidates.is_dir()
    check_writable(options.out, options.inputs, None if is_index else options.candidates)
    if options.candidates_column is not None and is_index:
        raise InputError(f"--candidates-column names a column of a file: {options.candidates} is an index.")
    for name in ("candidates_column", "top", "rule"):
        if getattr(options, name) is not None and options.candidates is None:
            raise InputError(f"--{name.replace('_', '-')} is about candidates. Name them with --candidates.")
    if options.rule is not None:
        check_rule(options.rule)
        if options.coverage is not None or options.max_error is not None:
            raise InputError(
                "--rule cannot be chosen with --coverage or --max-error: scores are calibrated by one rule."
            )
    if options.explain is not None:
        check_page(options.explain, "explanation")


def _answer(
    predictor: Predictor, z: Tensor, groups: Any, options: PredictOptions, problems: Problems, say: Say
) -> tuple[Hits, int, int]:
    """Return the decoder's answers, or the best candidates and the numbers of distinct and of repeated ones."""
    is_guarded, sure = options.coverage is not None or options.max_error is not None, predictor.sure
    if is_guarded and sure is None:
        raise InputError(
            f"{options.model} is not calibrated. Run `dsokr calibrate {options.model} pairs.csv`, with pairs that were "
            "not trained on."
        )
    if options.candidates is None:
        if sure is None:
            return [[(cell, "", score.item())] for cell, score in zip(*predictor.decode(z), strict=True)], 0, 0
        return _answer_surely(predictor, sure, z, groups, options), 0, 0
    top, asked = options.top or TOP, z
    rule: Any = options.rule or predictor.rule
    if is_guarded and sure is not None:  # ranked for the calibration's inputs, too: this list is another
        top, asked = LISTED, torch.cat([sure.pairs_["z"].to(z), z])
    if options.candidates.is_dir():
        index = open_index(predictor, options.candidates)
        hits = _list_hits(index.search(asked, top, rule), lambda at: (index.texts[at], index.names[at]))
        counts = len(index), 0
    else:
        library = Library(predictor, options.candidates, options.candidates_column, problems)
        hits = rank_library(library, asked, top, rule, say)
        skipped = len(problems.by_row(library.table.path))
        counts = library.candidates, library.rows - library.candidates - skipped
    if is_guarded and sure is not None:
        scores = torch.tensor([[hit[2] for hit in some] for some in hits], dtype=torch.float64)
        n = len(hits) - len(z)
        hits = _guard(Guard(sure.calibrate_for(scores[:n]), options, groups), z, scores[n:], hits[n:])
    return hits, *counts


def _answer_surely(predictor: Predictor, sure: Conformal, z: Tensor, groups: Any, options: PredictOptions) -> Hits:
    """The answers of a calibrated model; one for each input, unless sets are wanted."""
    best = sure.find_best(z)
    if best.indices is not None:
        cells = [[predictor.known[at] for at in row] for row in best.indices.tolist()]
    else:
        values = (predictor.model.known_.form.restore(outputs) for outputs in best.outputs)
        cells = [[predictor.output.format(value) for value in some] for some in values]
    hits = [[(c, "", s) for c, s in zip(*row, strict=False)] for row in zip(cells, best.scores.tolist(), strict=True)]
    if options.coverage is None:
        options = replace(options, top=1)
    return _guard(Guard(sure.calibration, options, groups), z, best.scores, hits)


def _guard(guard: Guard, z: Tensor, scores: Tensor, hits: Hits) -> Hits:
    """Keep the hits that are answers, with their probabilities, and the confidence in the first."""
    sizes, probabilities, confidence = guard.judge(z, scores)
    rows = zip(hits, sizes, probabilities.tolist(), confidence.tolist(), strict=True)
    return [[(*hit, p, sure) for hit, p in zip(some[:n], ps, strict=False)] for some, n, ps, sure in rows]


def rank_library(library: Library, z: Tensor, top: int, rule: Rule, say: Say) -> Hits:
    """Return the best candidates of a file for every row of coordinates."""
    basis = library.predictor.basis
    scan = Scan(basis.check_coordinates(z), top, rule)
    held: dict[int, tuple[str, str]] = {}  # the best so far
    for cells, names, values, _ in library.blocks():
        if cells:
            held |= dict(enumerate(zip(cells, names, strict=True), scan.seen))
            EmbeddedOutputs(basis, values, keep=False).add_to(scan)
            held = {at: held[at] for at in set(scan.ranking().indices.flatten().tolist())}
            say(count_of(scan.seen, "candidate"), passing=True)
    return _list_hits(scan.ranking(), held.__getitem__)


def _list_hits(found: Ranking, look_up: Callable[[int], tuple[str, str]]) -> Hits:
    pairs = zip(found.indices.tolist(), found.scores.tolist(), strict=True)
    return [[(*look_up(at), score) for at, score in zip(*row, strict=True)] for row in pairs]


def _write_answers(path: Path, shown: Mapping[str, list[Any]], hits: Hits, columns: Sequence[str]) -> None:
    """Write a row for every answer: what is shown of the input, rank, prediction (by column), name and score."""
    predictions = [f"prediction_{name}" for name in columns] if len(columns) > 1 else ["prediction"]
    names = ["name"] if any(hit[1] for some in hits for hit in some) else []
    lines = []
    for *before, some in zip(*shown.values(), hits, strict=True):
        for rank, (cell, name, *numbers) in enumerate(some, start=1):
            cells = parse_numbers(cell, columns).tolist() if len(columns) > 1 else [cell]
            lines.append([*before, rank, *cells, *([name] if names else []), *(float(f"{x:.7g}") for x in numbers)])
    width = max((len(hit) for some in hits for hit in some), default=3) - 2
    write_table(path, [*shown, "rank", *predictions, *names, *("score", "probability", "confidence")[:width]], lines)


def _describe(candidates: int, duplicates: int) -> str:
    again = f" ({duplicates:,} listed again, counted once)" if duplicates else ""
    return count_of(candidates, "candidate") + again


def embed(options: EmbedOptions, problems: Problems, say: Say) -> Result:
    """Write an index of the candidates of a file. Call it again to resume after Ctrl-C."""
    started, predictor = time.monotonic(), Predictor.load(options.model, options.device)
    rule: Any = options.rule or (predictor.rule if options.kind else None)
    library, basis = Library(predictor, options.library, options.candidates_column, problems), predictor.basis
    try:
        index = build(
            options.out,
            lambda start: _embed_blocks(library, start),
            model=fingerprint(basis),
            dim=basis.dim,
            source=f"{checksum(options.library)} {', '.join(library.columns)}",
            options=BuildOptions(options.kind, rule, options.dtype, options.recall),  # type: ignore[arg-type] # it checks them
            say=say,
            progress=lambda now: say(f"{now.rows:,} candidates, {now.rate:,.0f}/s", passing=True),
            restart=options.restart,
        )
    except KeyboardInterrupt as stop:
        raise Interrupted(f"Stopped. Run the same command to resume; {options.out} keeps what is done.") from stop
    except OSError as error:
        place = error.filename or options.out
        raise InputError(f"{place} cannot be read or written: {error.strerror or error}.") from error
    head = index.head
    duplicates = max(library.rows - head.count - head.skipped, 0)
    facts = {"index": str(options.out), "candidates": head.count, "skipped": head.skipped, "duplicates": duplicates}
    facts |= {"kind": head.kind, "recall@10": head.recall, "seconds": time.monotonic() - started}
    return Result(facts, [f"{_describe(head.count, duplicates)} in the index {options.out}."])


def _embed_blocks(library: Library, start: int) -> Iterator[Block]:
    basis, last = library.predictor.basis, start
    file, found = str(library.table.path), library.problems.found
    for cells, names, values, row in library.blocks(start):
        if row > start:
            skipped = [found[file, at].sentence() for at in range(last + 1, row + 1) if (file, at) in found]
            psi, diag = torch.empty(0, basis.dim), torch.empty(0)
            if cells:
                psi, diag = EmbeddedOutputs(basis, values).coordinates()
            yield Block(cells, psi, diag, names, read=row - last, skipped=skipped)
            last = row


def open_index(predictor: Predictor, folder: Path | None) -> CandidateIndex:
    """Open an index of this model; without one, the outputs known from training."""
    if folder is not None:
        return CandidateIndex.open(folder, fingerprint(predictor.basis))
    return CandidateIndex.in_memory(predictor.known, *predictor.model.known_.coordinates())
