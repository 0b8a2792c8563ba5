"""Tables on disk: CSV, TSV, JSON lines, Parquet, and lists of SMILES or lines; plain or compressed.

Tables are read in blocks, so that a library of millions of molecules is never in memory at once. Rows are numbered as
a spreadsheet shows them. All cells are text: numbers of JSON and Parquet are written out, lists joined.
"""

from __future__ import annotations

import bz2
import csv
import fnmatch
import gzip
import io
import json
import lzma
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from dsokr.commands.cells import count_of, suggest
from dsokr.errors import InputError, import_extra
from dsokr.files import check_place, replace_file

Record = tuple[int, Sequence[str] | str]  # the number of a row with its cells, or with the reason why it is bad

BLOCK = 4096  # rows read at once
LONGEST_CELL = 10_000_000  # characters
HEADER_SAMPLE, LONG_LINE = 20, 100_000  # rows, and characters of each, that show what separates the cells
NAMES_SAMPLE = 1000  # lines of JSON whose names are the columns
NOT_TEXT = "It has bytes that are not UTF-8 text. Save the file as UTF-8 (in a spreadsheet: CSV UTF-8)."

csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))


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
    """The rows that cannot be used: skipped and listed at the end or, with ``fails``, an error."""

    fails: bool = False
    found: dict[tuple[str, int], Problem] = field(default_factory=dict)  # the first problem of every file and row

    def add(self, table: Table, row: int, column: str, reason: str) -> None:
        problem = Problem(str(table.path), row, column, reason, table.place(row))
        self.found.setdefault((problem.file, row), problem)

    def check(self) -> None:
        """Raise the first problem, if that is wanted. Call it once all problems of a block are known."""
        if self.fails and self.found:
            raise InputError(f"{self.by_row()[0].sentence()} Correct it, or skip such rows with --on-error skip.")

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
        self.is_list = self._read in (_read_list, _read_smiles)
        self.header_row, header = next(self._read(path, []))  # 0: no header
        self.columns = [name.strip() for name in header]

    def place(self, row: int) -> str:
        """Say where a row is."""
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
                if fault := _find_fault(record):
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


def _read_separated(path: Path, columns: list[str]) -> Iterator[Record]:
    rows = _read_csv_rows(path)
    number, header = next(rows)
    if fault := _find_fault(header):
        raise InputError(f"{path}, row {number}: {fault}")
    yield number, header
    places = [[name.strip() for name in header].index(name) for name in columns]
    for number, cells in rows:
        yield number, cells if isinstance(cells, str) else [cells[place] for place in places]


def _read_csv_rows(path: Path) -> Iterator[Record]:
    """Read all rows that are not blank. CSV files may have semicolons or tabs, and blank lines above the header."""
    with open_text(path) as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip(" \t\r\n,;"))
        first, line = next(lines, (0, ""))
        if not first:
            raise InputError(f"{path} is empty. Its first row must name the columns.")
        sample = [line, *islice(file, HEADER_SAMPLE)]
        separator = _find_separator(sample) if file_format(path) == ".csv" else "\t"
        reader = csv.reader(chain(sample, file), delimiter=separator, strict=True)
        width = start = 0
        for number in count(first):
            try:
                cells = next(reader, None)
            except csv.Error as error:
                yield number, _explain_quotes(error, reader.line_num - start, f"row {number} of {path}")
                cells = []
            if cells is None:
                return
            width, start, there = width or len(cells), reader.line_num, count_of(len(cells), "cell")
            if any(cell.strip() for cell in cells) or len(cells) == width == 1:  # "" is not a blank line
                wrong = f"It has {there}, the header has {width}. Are double quotes missing around a cell?"
                yield number, cells if len(cells) == width else wrong


def _find_separator(lines: Sequence[str]) -> str:
    """Find the separator that makes most rows as long as the header; without rows, the one with the longest header.

    >>> _find_separator(["Temp, °C;press", "20.5;1013"])
    ';'
    """
    fits = {}
    for separator in "\t;,":  # texts contain tabs least often, and commas most
        rows = csv.reader((line[:LONG_LINE] for line in lines), delimiter=separator)
        widths = [len(cells) for cells in rows if cells]
        same = widths[1:].count(widths[0])
        fits[separator] = widths[0] > 1, same, 0 if same else widths[0]
    best = max(fits, key=fits.__getitem__)
    return best if fits[best][0] else ","


def _explain_quotes(error: csv.Error, lines: int, place: str) -> str:
    """Say what is wrong with a row; where the rest of the file is lost too, raise it."""
    if "unexpected end" in str(error):
        rest = f": it swallows the rest of the file, {count_of(lines - 1, 'line')}" if lines > 1 else ""
        raise InputError(f"A double quote in {place} is never closed{rest}.")
    if "field limit" in str(error):
        raise InputError(f"A cell in {place} is longer than {LONGEST_CELL:,} characters. Is a double quote missing?")
    spans = f" spans {lines} lines and" if lines > 1 else ""
    return f"A cell{spans} goes on after its closing double quote. Is a double quote missing?"


def _read_json(path: Path, columns: list[str]) -> Iterator[Record]:
    objects = islice(_read_json_objects(path), NAMES_SAMPLE)
    names = dict.fromkeys(chain.from_iterable(record for _, record in objects if isinstance(record, dict)))
    if not names:
        raise InputError(f'{path} has no line with a JSON object, such as {{"text": "...", "smiles": "CCO"}}.')
    yield 0, list(names)
    for number, record in _read_json_objects(path):
        yield number, record if isinstance(record, str) else [_as_cell(record.get(name)) for name in columns]


def _read_json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for number, line in _read_lines(path):
        try:
            record = json.loads(line)
            yield number, record if isinstance(record, dict) else "It is not a JSON object in braces."
        except ValueError as error:
            yield number, f"It is not JSON: {error}."


def _as_cell(value: Any) -> str:
    """Write a value of JSON or Parquet as text: numbers of a list are joined by spaces, other items by ;"""
    if isinstance(value, list | tuple):
        are_numbers = all(isinstance(item, int | float) for item in value)
        return (" " if are_numbers else ";").join(map(_as_cell, value))
    return "" if value is None else str(value)


def _read_list(path: Path, columns: list[str]) -> Iterator[Record]:
    yield 0, ["line"]
    yield from ((number, [line.strip()]) for number, line in _read_lines(path))


def _read_smiles(path: Path, columns: list[str]) -> Iterator[Record]:
    """Read one SMILES per line and, after a space or a tab, its name, if any. Lines that start with # are comments."""
    yield 0, ["smiles", "name"]
    lines = ((number, line) for number, line in _read_lines(path) if not line.startswith("#"))
    for at, (number, line) in enumerate(lines):
        smiles, name = (*line.split(maxsplit=1), "")[:2]
        if at or smiles.lower() != "smiles":  # which is a header
            yield number, [smiles if column == "smiles" else name.strip() for column in columns]


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    with open_text(path) as file:
        yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())


def _read_parquet(path: Path, columns: list[str]) -> Iterator[Record]:
    arrow, parquet = import_extra("pyarrow", "tables"), import_extra("pyarrow.parquet", "tables")
    try:
        with parquet.ParquetFile(path) as file:
            yield 0, list(file.schema_arrow.names)
            batches = (batch.to_pydict() for batch in file.iter_batches(batch_size=BLOCK, columns=columns))
            rows = (zip(*(batch[name] for name in columns), strict=True) for batch in batches)
            for number, cells in enumerate(chain.from_iterable(rows), start=1):
                yield number, list(map(_as_cell, cells))
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def _open_zstd(path: Path, mode: str) -> Any:
    arrow = import_extra("pyarrow", "tables")
    return (arrow.input_stream if "r" in mode else arrow.output_stream)(str(path), compression="zstd")


READERS: Mapping[str, Callable[[Path, list[str]], Iterator[Record]]] = {  # each yields the names of all columns first
    **dict.fromkeys((".csv", ".tsv", ".tab"), _read_separated),
    **dict.fromkeys((".jsonl", ".ndjson"), _read_json),
    ".parquet": _read_parquet,
    **dict.fromkeys((".smi", ".smiles"), _read_smiles),
    ".txt": _read_list,
}
WRITTEN = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".parquet")
OPENERS: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as text, decompressed. Bytes that are not text become surrogates."""
    try:
        with io.BufferedReader(OPENERS.get(path.suffix.lower(), open)(path, "rb")) as raw:
            encoding = "utf-16" if raw.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            with io.TextIOWrapper(raw, encoding=encoding, errors="surrogateescape", newline="") as text:
                yield text
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def _find_fault(record: Sequence[str] | str) -> str:
    """Return why a row is bad, or an empty string."""
    if isinstance(record, str):
        return record
    letters = chain.from_iterable(cell for cell in record if not cell.isascii())
    return NOT_TEXT if any("\udc80" <= letter <= "\udcff" for letter in letters) else ""


def without_compression(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in OPENERS else path


def file_format(path: Path) -> str:
    """Return the ending that says what a file is, without that of its compression.

    >>> file_format(Path("Library.SMI.gz"))
    '.smi'
    """
    return without_compression(path).suffix.lower()


def _check_format(path: Path, action: str, formats: Iterable[str]) -> None:
    ending = file_format(path)
    if ending not in formats or (ending == ".parquet" and path.suffix.lower() != ending):  # compressed inside
        what = "".join(path.suffixes) or "a file without an ending"
        endings = f"{_list(formats)}; all but Parquet may have {_list(OPENERS)} after it"
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
