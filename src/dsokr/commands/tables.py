"""Tables on disk in any supported format, and the rows that cannot be used.

Tables are read in blocks, so that a library of millions of molecules is never in memory at once. Rows are numbered as
a spreadsheet shows them. All cells are text.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from dsokr.commands.cells import count_of
from dsokr.commands.formats import LISTS, OPENERS, READERS, file_format, find_fault
from dsokr.errors import InputError, import_extra, suggest
from dsokr.files import check_place, replace_file

BLOCK = 4096  # rows read at once


class Problem(NamedTuple):
    """A row that cannot be used, and why."""

    file: str
    row: int
    column: str
    reason: str
    place: str  # the row in words

    def sentence(self) -> str:
        column = f", column {self.column!r}" if self.column else ""
        return f"{self.file}, {self.place}{column}: {self.reason}"


@dataclass
class Problems:
    """The rows that cannot be used: skipped and listed at the end or, beyond a ``share`` of all rows, an error."""

    share: float = 1.0
    found: dict[tuple[str, int], Problem] = field(default_factory=dict)  # the first problem of every file and row

    def add(self, table: Table, row: int, column: str, reason: str) -> None:
        problem = Problem(str(table.path), row, column, reason, table.place(row))
        self.found.setdefault((problem.file, row), problem)

    def check(self, table: Table, rows: int) -> None:
        """Raise if too many of the rows read so far are lost. Call it when all problems of a block are known."""
        lost = len(self.found) and sum(file == str(table.path) for file, _ in self.found)
        if lost <= self.share * rows or (self.share and lost == rows):  # if all are bad, the reader says so
            return
        bad = self.by_row(table.path)
        reason, times = Counter(problem.reason for problem in bad).most_common(1)[0]
        why = f", {times:,} of them for this reason: {reason}" if times < lost else "."
        counts = f"{lost:,} of the {count_of(rows, 'row')} of {table.path} cannot be used{why} The first: "
        first = f"{counts * (self.share > 0)}{bad[0].sentence()}"
        raise InputError(f"{first} Correct {'it' if lost == 1 else 'them'}, or skip such rows with --on-error skip.")

    def by_row(self, file: Path | None = None) -> list[Problem]:
        """Return all problems, or those of one file, in the order of files and rows."""
        files = list(dict.fromkeys(name for name, _ in self.found))
        wanted = [problem for problem in self.found.values() if file is None or problem.file == str(file)]
        return sorted(wanted, key=lambda problem: (files.index(problem.file), problem.row))

    def lines(self, most: int = 10) -> list[str]:
        """Return the number of problems and the first ones, to be printed."""
        n = len(self.found)
        head = [f"{count_of(n, 'row')} {'was' if n == 1 else 'were'} skipped:"] if n else []
        rest = [f"  ... and {n - most:,} more"] if n > most else []
        return [*head, *(f"  {problem.sentence()}" for problem in self.by_row()[:most]), *rest]


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of a table: their numbers, and their cells by column."""

    table: Table
    numbers: list[int]
    cells: dict[str, list[str]]
    attempted: list[int]  # numbers, with those of rows that could not be read

    def join(self, columns: Sequence[str]) -> list[str]:
        """Return one cell for each row; those of several columns are joined by ;"""
        return list(map(";".join, zip(*(self.cells[name] for name in columns), strict=True)))

    def take(self, at: Sequence[int]) -> Rows:
        """Return the rows at some positions."""
        cells = {name: [column[i] for i in at] for name, column in self.cells.items()}
        return Rows(self.table, [self.numbers[i] for i in at], cells, self.attempted)


class Table:
    """A file of rows and named columns. CSV and TSV have a header row; in lists only the first column counts."""

    def __init__(self, path: Path):
        self.path = path
        if path.is_dir():
            raise InputError(f"{path} is a folder. Name a file.")
        if not path.exists():
            similar = suggest(path.name, os.listdir(path.parent)) if path.parent.is_dir() else ""
            raise InputError(f"There is no file {path}.{similar}")
        _check_format(path, "read", READERS)
        self._read = READERS[file_format(path)]
        self.is_list = file_format(path) in LISTS
        self.header_row, header = next(self._read(path, []))  # 0: no header
        self.columns = [name.strip() for name in header]

    def place(self, row: int) -> str:
        """Describe where a row is."""
        return f"row {row}" + (f" (the header is row {self.header_row})" if self.header_row else "")

    def check_columns(self, names: Iterable[str]) -> list[str]:
        """Check that each of the columns is there, once."""
        for name in names:
            if (times := self.columns.count(name)) > 1:
                raise InputError(f"{self.path} has {times} columns named {name!r}. Rename all but one.")
            if not times:
                there = f"{suggest(name, self.columns)} Its columns: {_list(self.columns)}."
                raise InputError(f"{self.path} has no column {name!r}.{there}")
        return list(dict.fromkeys(names))

    def find_columns(self, wanted: Iterable[str]) -> list[str]:
        """Find columns by name, by several names separated by commas, or by a pattern with ``*``."""
        names: list[str] = []
        for text in wanted:
            for part in [text] if text in self.columns else map(str.strip, text.split(",")):
                names += [part] if part in self.columns else fnmatch.filter(self.columns, part) or [part]
        return self.check_columns(names)

    def blocks(self, problems: Problems, columns: Sequence[str] | None = None, rows: int = BLOCK) -> Iterator[Rows]:
        """Read all rows, a block at a time; by default with all columns. All rows of a block may be bad."""
        names = self.columns if columns is None else self.check_columns(columns)
        records = islice(self._read(self.path, names), 1, None)
        while block := list(islice(records, rows)):
            good: dict[int, Sequence[str]] = {}
            for number, record in block:
                if fault := find_fault(record):
                    problems.add(self, number, "", fault)
                else:
                    good[number] = record
            cells = zip(*good.values(), strict=True) if good else ([] for _ in names)
            yield Rows(self, list(good), dict(zip(names, map(list, cells), strict=True)), [n for n, _ in block])

    def read(self, problems: Problems, columns: Sequence[str] | None = None) -> Rows:
        """Read all rows at once; there must be some."""
        for rows in self.blocks(problems, columns, rows=sys.maxsize):
            if rows.numbers:
                return rows
        raise self.unusable(problems)

    def unusable(self, problems: Problems) -> InputError:
        """Return the error for a table whose rows are all bad."""
        bad = problems.by_row(self.path)
        if not bad:
            return InputError(f"{self.path} has no rows.")
        total, first = count_of(len(bad), "row"), bad[0].sentence()
        return InputError(f"{self.path} has {total}, none of which can be used. The first: {first}")


COMPRESSED = (".parquet", ".xlsx")  # inside
WRITTEN = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".parquet")


def _check_format(path: Path, action: str, formats: Iterable[str]) -> None:
    ending = file_format(path)
    if ending not in formats or (ending in COMPRESSED and path.suffix.lower() != ending):
        what = "".join(path.suffixes) or "a file without an ending"
        endings = f"{_list(formats)}; all but {' and '.join(COMPRESSED)} may have {_list(OPENERS)} after it"
        raise InputError(f"{path}: cannot {action} {what}. Choose one of {endings}.")


def check_writable(path: Path, *inputs: Path | None) -> None:
    """Check, before any work is done, that a table can be written there and overwrites none of the inputs."""
    _check_format(path, "write", WRITTEN)
    if file_format(path) == ".parquet" or path.suffix == ".zst":
        import_extra("pyarrow", "tables")
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a file.")
    check_place(path)
    if any(other is not None and path.exists() and other.exists() and path.samefile(other) for other in inputs):
        raise InputError(f"--out {path} would overwrite an input. Choose another name.")


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table in the format that its name says, whole or not at all."""
    ending = file_format(path)
    with replace_file(path) as draft:
        if ending == ".parquet":
            cells = list(zip(*rows, strict=True)) or [()] * len(header)
            table = import_extra("pyarrow", "tables").table(dict(zip(header, map(list, cells), strict=True)))
            import_extra("pyarrow.parquet", "tables").write_table(table, draft)
            return
        with io.TextIOWrapper(OPENERS.get(path.suffix.lower(), open)(draft, "wb"), "utf-8", newline="") as file:
            if "json" in ending:
                records = (json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) for row in rows)
                file.writelines(f"{record}\n" for record in records)
            else:
                separator = "," if ending == ".csv" else "\t"
                csv.writer(file, delimiter=separator, lineterminator="\n").writerows(chain([header], rows))


def write_skipped(problems: Problems, path: Path) -> None:
    """List the rows that were skipped. An older list is removed if there are none; any other file stays."""
    header = list(Problem._fields[:4])
    if path.exists() and path.read_bytes().partition(b"\n")[0].decode(errors="replace") != ",".join(header):
        if problems.found:
            warnings.warn(f"{path} exists and is not a list of skipped rows: the list is not written.", stacklevel=2)
    elif problems.found:
        write_table(path, header, (problem[:4] for problem in problems.by_row()))
    else:
        path.unlink(missing_ok=True)


def _list(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
