"""Predictions and ranked candidates as a table, one line for every answer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dsokr.basis import Rule, check_rule
from dsokr.decoders import EmbeddedOutputs
from dsokr.decoders.scan import Scan
from dsokr.errors import InputError
from dsokr.index import CandidateIndex, fingerprint
from dsokr.outputs import take
from dsokr.commands import tables
from dsokr.commands.kinds import Molecule, OutputKind, String, Vector, counted, numbers
from dsokr.commands.predictor import Predictor, cell_text
from dsokr.commands.problems import Problems
from dsokr.commands.reading import Cells, columns_named, common_columns, good_inputs, joined, undefined

MADE = ("row", "input", "rank", "prediction", "name", "score")  # columns of an answer
NAMES = ("name", "id")  # columns of a library whose cells are carried along
BLOCK = 8192  # candidates read at once
TOP = 10  # candidates for each input


class Hit(NamedTuple):
    """An answer: the candidate as it is written, its name if it has one, and its score."""

    cell: str
    name: str
    score: float


@dataclass(frozen=True)
class Job:
    """Which inputs are asked about, among which candidates, and where the answers go."""

    inputs: Path
    out: Path
    candidates: Path | None = None  # a file, or the folder of an index; None: the decoder's own answer
    candidates_column: str | None = None
    top: int | None = None  # candidates for each input; None: TOP
    rule: str | None = None  # None: the one settled in fit
    keep: str = ""  # columns to carry along, with commas between

    def __post_init__(self) -> None:
        is_index = self.candidates is not None and self.candidates.is_dir()
        tables.check_writable(self.out, self.inputs, None if is_index else self.candidates)
        if self.candidates_column is not None and (self.candidates is None or is_index):
            but = f"{self.candidates} is an index" if is_index else "name the file with --candidates"
            raise InputError(f"--candidates-column names a column of a file of candidates: {but}.")
        if self.top is not None and self.top < 1:
            raise InputError(f"--top must be at least 1. Got {self.top}.")
        if self.top is not None and self.candidates is None:
            raise InputError("--top says how many candidates each input gets. Name them with --candidates.")
        if self.rule is not None:
            check_rule(self.rule)
            if self.candidates is None:
                raise InputError("--rule says how candidates are compared. Name them with --candidates.")


@dataclass(frozen=True)
class Answers:
    """Rows of the inputs, the answers for each, best first, and what was seen on the way."""

    cells: Cells
    hits: list[list[Hit]]
    kept: dict[str, list[str]]  # columns carried along
    candidates: int = 0  # how many different ones there were
    duplicates: int = 0

    def facts(self) -> dict[str, int]:
        return {"inputs": len(self.cells), "candidates": self.candidates, "duplicates": self.duplicates}

    def sentence(self) -> str:
        if not self.candidates:
            return f"{counted(len(self.cells), 'input')} {'has' if len(self.cells) == 1 else 'have'} a prediction."
        were = "was" if self.candidates == 1 else "were"
        among = counted(self.candidates, "candidate") + again(self.duplicates)
        return f"{among} {were} ranked for {counted(len(self.cells), 'input')}."


def again(duplicates: int) -> str:
    """What is said of candidates that are in a list more than once."""
    return f" ({duplicates:,} listed again, counted once)" if duplicates else ""


class Library(NamedTuple):
    """The k best candidates of a file or an index for every row of coefficients, and how many there were."""

    hits: list[list[Hit]]
    candidates: int
    duplicates: int


def write(predictor: Predictor, job: Job, problems: Problems) -> Answers:
    """Answer, and write the table and the list of the rows that were skipped."""
    found = answers(predictor, job, problems)
    tables.write(job.out, *table_of(predictor, found))
    tables.write_skipped(problems, tables.skipped_beside(job.out))
    return found


def answers(predictor: Predictor, job: Job, problems: Problems) -> Answers:
    """What the model says of every input of a table: the decoder's answer, or the best of the candidates."""
    columns = predictor.facts["columns"]["input"]
    cells, carried = input_cells(job, columns, problems)
    cells = replace(cells, inputs=list(predictor.input.located(cells.inputs, job.inputs.parent)))
    good, values = good_inputs(cells, predictor.input, ", ".join(columns), problems)
    z = predictor.model.coefficients(values)
    place = {row: position for position, row in enumerate(cells.rows)}
    kept = {name: [column[place[row]] for row in good.rows] for name, column in carried.items()}
    if job.candidates is None:
        found, scores = predictor.decoded(z)
        hits = [[Hit(cell, "", score)] for cell, score in zip(found, scores.tolist(), strict=True)]
        return Answers(good, hits, kept)
    rule: Rule = job.rule or predictor.rule  # type: ignore[assignment] # checked
    top = TOP if job.top is None else job.top
    if job.candidates.is_dir():
        best = in_index(predictor, z, job.candidates, top, rule)
    else:
        best = in_library(predictor, z, job.candidates, job.candidates_column, top, rule, problems)
    return Answers(good, best.hits, kept, best.candidates, best.duplicates)


def input_cells(job: Job, columns: Sequence[str], problems: Problems) -> tuple[Cells, dict[str, list[str]]]:
    """The inputs of a table, and the cells of the columns to carry along. A list has its one column under any name."""
    source = tables.table(job.inputs)
    if isinstance(source, tables.SmilesList | tables.Lines):
        names = source.columns()[:1]
        if len(columns) > 1:
            raise InputError(f"{job.inputs} is a list. The inputs have {len(columns)} columns: {', '.join(columns)}.")
    else:
        names = common_columns(source, columns, "inputs")
    keep = columns_named(source, job.keep, "--keep") if job.keep else []
    rows = source.read(problems, [*names, *keep])
    return Cells(source, rows.numbers, joined(rows, names), []), {name: rows.cells[name] for name in keep}


def in_index(predictor: Predictor, z: Tensor, folder: Path, top: int, rule: Rule) -> Library:
    """The best of an index made by `dsokr embed` with the same model."""
    index = CandidateIndex.open(folder, fingerprint(predictor.basis))
    found = index.search(z, top, rule)
    hits = [
        [Hit(index.texts[i], index.names[i], score) for i, score in zip(row, line, strict=True)]
        for row, line in zip(found.indices.tolist(), found.scores.tolist(), strict=True)
    ]
    return Library(hits, len(index), 0)


def in_library(
    predictor: Predictor, z: Tensor, path: Path, column: str | None, top: int, rule: Rule, problems: Problems
) -> Library:
    """The best of a file of candidates, read block by block; cells written alike count once."""
    scan = Scan(predictor.basis.checked(z), top, rule)
    held: dict[int, tuple[str, str]] = {}  # those among the best so far
    seen: set[str] = set()  # good ones
    duplicates = 0
    for block in library_blocks(predictor.output, predictor.facts["columns"]["output"], path, column, problems):
        new: dict[str, int] = {}
        for place, cell in enumerate(block.cells):
            if cell not in seen:
                new.setdefault(cell, place)
        values, places = usable(predictor, block, list(new.values()), problems)
        seen |= {block.cells[place] for place in places}
        duplicates += sum(cell in seen for cell in block.cells) - len(places)
        if not places:
            continue
        held |= {scan.seen + i: (block.cells[place], block.names[place]) for i, place in enumerate(places)}
        EmbeddedOutputs(predictor.basis, values, keep=False).add_to(scan)
        held = {number: held[number] for number in set(scan.ranking().indices.flatten().tolist())}
    check_candidates(path, scan.seen, problems)
    best = scan.ranking()
    hits = [
        [Hit(*held[number], score) for number, score in zip(row, line, strict=True)]
        for row, line in zip(best.indices.tolist(), best.scores.tolist(), strict=True)
    ]
    return Library(hits, scan.seen, duplicates)


def check_candidates(path: Path, count: int, problems: Problems) -> None:
    if not count:
        bad = problems.of_file(path)
        first = f" The first: {bad[0].sentence()}" if bad else ""
        raise InputError(f"{path} has no candidate that can be used.{first}")


class CandidateBlock(NamedTuple):
    """Candidates of a file: where each stands, its cell and its name."""

    table: tables.Table
    column: str
    rows: list[int]
    cells: list[str]
    names: list[str]


def library_blocks(
    output: OutputKind, columns: Sequence[str], path: Path, column: str | None, problems: Problems
) -> Iterator[CandidateBlock]:
    """The candidates of a file, a block at a time. ``columns`` are those of the outputs in training."""
    source = tables.table(path)
    wanted = candidate_columns(source, output, columns, column)
    there = source.columns()
    name = next((n for n in there if n.lower() in NAMES and n not in wanted), None)
    for rows in source.blocks(problems, [*wanted, *([name] if name else [])], BLOCK):
        cells = [cell_text(cell).strip() for cell in joined(rows, wanted)]
        names = rows.cells[name] if name else [""] * len(rows)
        yield CandidateBlock(source, ", ".join(wanted), rows.numbers, cells, names)
    problems.settle()  # rows after the last block


def candidate_columns(
    source: tables.Table, output: OutputKind, columns: Sequence[str], column: str | None
) -> list[str]:
    """Where the candidates stand: the column named, the one of the outputs in training, or the only one."""
    if column is not None:
        return source.checked([column])
    there = source.columns()
    if isinstance(source, tables.SmilesList | tables.Lines):
        return there[:1]
    if all(name in there for name in columns):
        return list(columns)
    if len(there) == 1:
        if isinstance(source, tables.Separated):
            check_header(source.path, output, columns, there[0])
        return there
    raise InputError(
        f"{source.path} has no column {columns[0]!r}, as the outputs in training. Say which column holds the "
        f"candidates with --candidates-column. Its columns: {', '.join(there)}."
    )


def check_header(path: Path, output: OutputKind, columns: Sequence[str], name: str) -> None:
    """That the only column of a table has a name, and not a candidate where it should be."""
    if isinstance(output, String):  # anything is a good one
        warnings.warn(
            f"{path} has no column {columns[0]!r}: its first row, {name!r}, is taken for the name of its only column, "
            "which holds the candidates. A list without a header must be called .txt.",
            stacklevel=2,
        )
    elif output.read([name]).good:
        lists = ".smi or .txt" if isinstance(output, Molecule) else ".txt"
        raise InputError(
            f"The first row of {path} looks like a candidate: {name}. A table needs a header row: add one, or call the "
            f"file {lists}. If this is the name of the column, say so with --candidates-column."
        )


def usable(
    predictor: Predictor, block: CandidateBlock, new: Sequence[int], problems: Problems
) -> tuple[Any, list[int]]:
    """What the new candidates of a block say, and where they stand.

    The bad ones become problems, and so do those written alike that stand after them.
    """
    read = predictor.output.read([block.cells[i] for i in new])
    bad = {new[position]: reason for position, reason in read.bad.items()}
    places, values = [new[position] for position in read.good], read.values
    unfit = undefined(predictor.basis.kernel, values) if places else {}
    if unfit:
        bad |= {places[position]: reason for position, reason in unfit.items()}
        fit = [position for position in range(len(places)) if position not in unfit]
        places, values = [places[position] for position in fit], take(values, fit)
    first = {block.cells[place]: place for place in sorted(bad, reverse=True)}
    for place, cell in enumerate(block.cells if bad else []):
        if cell in first and place >= first[cell]:
            row = block.rows[place]
            problems.add(block.table.path, row, block.table.where(row), block.column, bad[first[cell]])
    problems.settle()
    return values, places


def table_of(predictor: Predictor, found: Answers) -> tuple[list[str], Iterator[list[Any]]]:
    """The header and the lines: row, what is carried along, the input, rank, prediction, name and score."""
    output = predictor.output
    several = isinstance(output, Vector) and len(output.columns) > 1
    predictions = [f"prediction_{name}" for name in output.columns] if several else ["prediction"]  # type: ignore[attr-defined]
    one_input = not found.cells.inputs or isinstance(found.cells.inputs[0], str)
    named = any(hit.name for hits in found.hits for hit in hits)
    kept = kept_names(list(found.kept), [*MADE, *predictions])
    header = ["row", *kept, *(["input"] if one_input else []), "rank", *predictions]
    header += [*(["name"] if named else []), "score"]

    def lines() -> Iterator[list[Any]]:
        for at, (row, cell, hits) in enumerate(zip(found.cells.rows, found.cells.inputs, found.hits, strict=True)):
            carried = [column[at] for column in found.kept.values()]
            for rank, hit in enumerate(hits, start=1):
                told = numbers(hit.cell).tolist() if several else [hit.cell]
                name = [hit.name] if named else []
                score = float(f"{hit.score:.7g}")
                yield [row, *carried, *([cell] if one_input else []), rank, *told, *name, score]

    return header, lines()


def kept_names(names: Sequence[str], made: Sequence[str]) -> list[str]:
    """What columns that are carried along are called: one that is made here under the same name goes first.

    >>> kept_names(["id", "score"], MADE)
    ['id', 'kept_score']
    """
    taken = {*names, *made}
    found = []
    for name in names:
        called = name
        if name in made:
            while called in taken:
                called = f"kept_{called}"
            taken.add(called)
        found.append(called)
    return found
