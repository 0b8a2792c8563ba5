"""Answers as a table: predictions, or the best candidates of a file or an index; and how indexes are made."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsokr.commands.cells import count_of, parse_numbers
from dsokr.commands.options import EmbedOptions, PredictOptions, Result, Say
from dsokr.commands.predictor import Predictor, read_column, read_outputs
from dsokr.commands.tables import Problems, Table, check_writable, without_compression, write_skipped, write_table
from dsokr.decoders import EmbeddedOutputs, Ranking
from dsokr.decoders.scan import Scan
from dsokr.errors import InputError, Interrupted
from dsokr.files import checksum
from dsokr.index import Block, BuildOptions, CandidateIndex, build, fingerprint
from dsokr.outputs import take
from dsokr.rules import Rule, check_rule

BLOCK = 8192  # candidates read at once
TOP = 10  # candidates for each input


class LibraryBlock(NamedTuple):
    """New good candidates of a library: their cells, names and values, and the last row that was read."""

    cells: list[str]
    names: list[str]
    values: Any
    last_row: int


class Library:
    """The candidates of a file, read in blocks. Those written alike count once."""

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

    def blocks(self, start: int = 0) -> Iterator[LibraryBlock]:
        """Read the candidates after row ``start``. Bad ones are problems, in every row where they stand."""
        before: set[int] = set()  # hashes of the candidates up to ``start``
        seen: set[int] = set()  # and of good ones after it
        for rows in self.table.blocks(self.problems, [*self.columns, *self.name], BLOCK):
            self.rows += len(rows.attempted)
            cells = list(map(str.strip, rows.join(self.columns)))
            names = rows.cells[self.name[0]] if self.name else [""] * len(cells)
            after = [at for at, number in enumerate(rows.numbers) if number > start]
            before |= {hash(cell) for cell in cells[: len(cells) - len(after)]}
            first = {cells[at]: at for at in reversed(after) if hash(cells[at]) not in seen}
            new = sorted(first, key=first.__getitem__)
            read = read_outputs(self.predictor.output, self.predictor.basis.kernel, new)
            bad = {new[at]: reason for at, reason in read.bad.items()}
            for at in after:
                if cells[at] in bad:
                    self.problems.add(self.table, rows.numbers[at], ", ".join(self.columns), bad[cells[at]])
            self.problems.check()
            seen |= {hash(new[at]) for at in read.good}
            fresh = [place for place, at in enumerate(read.good) if hash(new[at]) not in before]
            found = [new[read.good[place]] for place in fresh]
            self.candidates += len(found)
            found_names = [names[first[cell]] for cell in found]
            yield LibraryBlock(found, found_names, take(read.values, fresh), rows.attempted[-1])

    def check_some(self) -> None:
        """Raise an error if there was no good candidate."""
        if not self.candidates:
            raise self.table.unusable([], self.problems)


class Hit(NamedTuple):
    """An answer: the candidate as it is written, its name if it has one, and its score."""

    cell: str
    name: str
    score: float


def predict(options: PredictOptions, problems: Problems, say: Say) -> Result:
    """Answer every input of a table; write the table of answers, and the list of the rows that were skipped."""
    _check_options(options)
    predictor, table = Predictor.load(options.model, options.device), Table(options.inputs)
    columns = predictor.input.columns
    if table.is_list and len(columns) > 1:
        raise InputError(f"{table.path} is a list. The inputs have {len(columns)} columns: {', '.join(columns)}.")
    names = table.columns[:1] if table.is_list else columns
    keep = table.find_columns([options.keep]) if options.keep else []
    rows = table.read(problems, [*names, *keep])
    cells, read = read_column(rows, predictor.input, problems, names=names)
    if not read.good:
        raise table.unusable(rows.numbers, problems)
    problems.check()
    hits, candidates, duplicates = _answer(predictor, predictor.model.coefficients(read.values), options, problems, say)
    taken = {"row", "input", "rank", "prediction", "name", "score"}
    shown: dict[str, list[Any]] = {"row": rows.numbers}
    shown |= {f"kept_{name}" if name in taken else name: rows.cells[name] for name in keep}
    shown |= {"input": cells} if len(columns) == 1 else {}
    write_table(options.out, *_make_table(predictor, {name: take(shown[name], read.good) for name in shown}, hits))
    write_skipped(problems, without_compression(options.out).with_suffix(".skipped.csv"))
    what = f"{_describe(candidates, duplicates)} ranked" if candidates else "Predictions"
    counts = {"inputs": len(hits), "candidates": candidates, "duplicates": duplicates, "skipped": len(problems.found)}
    texts = [f"{what} for {count_of(len(hits), 'input')}.", f"The table: {options.out}"]
    return Result({"out": str(options.out), **counts}, texts)


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


def _answer(
    predictor: Predictor, z: Tensor, options: PredictOptions, problems: Problems, say: Say
) -> tuple[list[list[Hit]], int, int]:
    """Return the decoder's answers, or the best of the candidates and how many there are, once and again."""
    if options.candidates is None:
        return [[Hit(cell, "", score.item())] for cell, score in zip(*predictor.decode(z), strict=True)], 0, 0
    top = options.top or TOP
    rule: Any = options.rule or predictor.rule
    if options.candidates.is_dir():
        index = open_index(predictor, options.candidates)
        return _list_hits(index.search(z, top, rule), lambda at: (index.texts[at], index.names[at])), len(index), 0
    library = Library(predictor, options.candidates, options.candidates_column, problems)
    hits = rank_library(library, z, top, rule, say)
    skipped = len(problems.by_row(library.table.path))
    return hits, library.candidates, library.rows - library.candidates - skipped


def rank_library(library: Library, z: Tensor, top: int, rule: Rule, say: Say) -> list[list[Hit]]:
    """Return the best candidates of a file for every row of coordinates."""
    basis = library.predictor.basis
    scan = Scan(basis.check_coordinates(z), top, rule)
    held: dict[int, tuple[str, str]] = {}  # the best so far
    for block in library.blocks():
        if block.cells:
            held |= dict(enumerate(zip(block.cells, block.names, strict=True), scan.seen))
            EmbeddedOutputs(basis, block.values, keep=False).add_to(scan)
            held = {at: held[at] for at in set(scan.ranking().indices.flatten().tolist())}
            say(count_of(scan.seen, "candidate"), passing=True)
    library.check_some()
    return _list_hits(scan.ranking(), held.__getitem__)


def _list_hits(found: Ranking, look_up: Callable[[int], tuple[str, str]]) -> list[list[Hit]]:
    pairs = zip(found.indices.tolist(), found.scores.tolist(), strict=True)
    return [[Hit(*look_up(at), score) for at, score in zip(*row, strict=True)] for row in pairs]


def _make_table(
    predictor: Predictor, shown: Mapping[str, list[Any]], hits: list[list[Hit]]
) -> tuple[list[str], list[list[Any]]]:
    """Return the header and a line for every answer: what is shown of the input, rank, prediction, name and score."""
    columns = predictor.output.columns
    predictions = [f"prediction_{name}" for name in columns] if len(columns) > 1 else ["prediction"]
    names = ["name"] if any(hit.name for some in hits for hit in some) else []
    lines = []
    for *before, some in zip(*shown.values(), hits, strict=True):
        for rank, hit in enumerate(some, start=1):
            cells = parse_numbers(hit.cell, columns).tolist() if len(columns) > 1 else [hit.cell]
            lines.append([*before, rank, *cells, *([hit.name] if names else []), float(f"{hit.score:.7g}")])
    return [*shown, "rank", *predictions, *names, "score"], lines


def _describe(candidates: int, duplicates: int) -> str:
    again = f" ({duplicates:,} listed again, counted once)" if duplicates else ""
    return count_of(candidates, "candidate") + again


def embed(options: EmbedOptions, problems: Problems, say: Say) -> Result:
    """Write an index of the candidates of a file. Call it again to resume after Ctrl-C."""
    started, predictor = time.monotonic(), Predictor.load(options.model, options.device)
    rule: Any = options.rule or (predictor.rule if options.kind else None)
    wanted = BuildOptions(options.kind, rule, options.dtype, options.recall)
    library, basis = Library(predictor, options.library, options.candidates_column, problems), predictor.basis
    try:
        index = build(
            options.out,
            lambda start: _embed_blocks(library, start),
            model=fingerprint(basis),
            dim=basis.dim,
            source=f"{checksum(options.library)} {', '.join(library.columns)}",
            options=wanted,
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
    for block in library.blocks(start):
        if block.last_row > start:
            read = range(last + 1, block.last_row + 1)
            skipped = [found[file, row].sentence() for row in read if (file, row) in found]
            psi, diag = torch.empty(0, basis.dim), torch.empty(0)
            if block.cells:
                psi, diag = EmbeddedOutputs(basis, block.values).coordinates()
            yield Block(block.cells, psi, diag, block.names, read=len(read), skipped=skipped)
            last = block.last_row


def open_index(predictor: Predictor, folder: Path | None) -> CandidateIndex:
    """Open an index of this model; without one, the outputs known from training."""
    if folder is not None:
        return CandidateIndex.open(folder, fingerprint(predictor.basis))
    return CandidateIndex.in_memory(predictor.known, *predictor.model.known_.coordinates())
