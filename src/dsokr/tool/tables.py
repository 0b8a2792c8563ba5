"""Tables on disk: CSV, TSV, JSON lines, Parquet, and lists of SMILES or lines; plain or compressed.

Tables are read in blocks, so that a library of millions of molecules never is in memory at once. Rows are numbered as
a spreadsheet shows them. All cells are text: numbers of JSON and Parquet are written out, lists joined.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dsokr.errors import InputError, MissingExtraError
from dsokr.tool.kinds import closest, counted
from dsokr.tool.problems import HEADER, Problems
from dsokr.writing import check_place, drafted

BLOCK = 4096  # rows read at once
LONGEST_CELL = 10_000_000  # letters; more are a quote that is never closed
NAMED = 1000  # rows of JSON lines whose names are collected as the names of the columns

csv.field_size_limit(LONGEST_CELL)

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)


class Rows(NamedTuple):
    """Consecutive rows: their numbers, and their cells by column."""

    numbers: list[int]
    cells: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.numbers)


class Table(ABC):
    """A file of rows and named columns."""

    counted: ClassVar[str]  # how a row is told, with its number

    def __init__(self, path: Path):
        self.path = path

    def where(self, row: int) -> str:
        return self.counted.format(row)

    @abstractmethod
    def columns(self) -> list[str]:
        """The names of the columns."""

    @abstractmethod
    def records(self, columns: list[str], problems: Problems) -> Iterator[tuple[int, list[str]]]:
        """The numbers of the rows and their cells in these columns. Rows that cannot be read become problems."""

    def checked(self, wanted: Sequence[str] | None) -> list[str]:
        """The columns wanted, each of which must be there, once."""
        there = self.columns()
        for name in wanted or []:
            if name not in there:
                raise InputError(
                    f"{self.path} has no column {name!r}.{closest(name, there)} Its columns: {_listed(there)}."
                )
            if there.count(name) > 1:
                raise InputError(f"{self.path} has {there.count(name)} columns named {name!r}. Rename all but one.")
        return list(there if wanted is None else dict.fromkeys(wanted))

    def blocks(self, problems: Problems, columns: Sequence[str] | None = None, rows: int = BLOCK) -> Iterator[Rows]:
        """All rows, a block at a time; by default with all columns."""
        names = self.checked(columns)
        records = self.records(names, problems)
        while block := list(islice(records, rows)):
            cells = zip(*(cells for _, cells in block), strict=True)
            yield Rows([number for number, _ in block], dict(zip(names, map(list, cells), strict=True)))

    def read(self, problems: Problems, columns: Sequence[str] | None = None) -> Rows:
        """All rows at once. A table without any is refused."""
        names = self.checked(columns)
        whole = Rows([], {name: [] for name in names})
        for block in self.blocks(problems, names):
            whole.numbers.extend(block.numbers)
            for name in names:
                whole.cells[name].extend(block.cells[name])
        if not len(whole):
            check_some(self, [], problems)
        return whole


def seen(table: Table, rows: Iterable[int], problems: Problems) -> int:
    """How many rows a table was found to have: these, and the bad ones."""
    return len({*rows, *(problem.row for problem in problems.of_file(table.path))})


def check_some(table: Table, rows: Sequence[int], problems: Problems, good: Sequence[int] = ()) -> None:
    """That there are good rows among these."""
    if not good:
        count, bad = seen(table, rows, problems), problems.of_file(table.path)
        if not count:
            raise InputError(f"{table.path} has no rows.")
        first = f" The first: {bad[0].sentence()}" if bad else ""
        raise InputError(f"None of the {count:,} rows of {table.path} can be used.{first}")


class Separated(Table):
    """CSV and TSV with a header. A CSV file may also have semicolons, as spreadsheets write them in many countries."""

    counted = "row {} (the header is row 1)"

    def _separator(self, first: str) -> str:
        if form(self.path) != ".csv":
            return "\t"
        return ";" if "," not in first and ";" in first else ","

    @contextmanager
    def _reader(self) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
        with opened(self.path) as file:
            lines = iter(file)
            first = next(lines, "")
            if not first.strip():
                raise InputError(f"{self.path} is empty. Its first row must name the columns.")
            if bytes_of(first):
                raise InputError(f"{self.path}, row 1: {NOT_TEXT}")
            rows = csv.reader(chain([first], lines), delimiter=self._separator(first))
            yield [name.strip() for name in next(rows)], rows

    def columns(self) -> list[str]:
        with self._reader() as (header, _):
            return header

    def records(self, columns: list[str], problems: Problems) -> Iterator[tuple[int, list[str]]]:
        with self._reader() as (header, rows):
            places = [header.index(name) for name in columns]
            number = 1
            while True:
                number += 1
                try:
                    cells = next(rows)
                except StopIteration:
                    return
                except csv.Error as error:
                    reason = LONG_CELL if "field limit" in str(error) else f"It cannot be read: {error}."
                    problems.add(self.path, number, self.where(number), "", reason)
                    continue
                reason = _fault(cells, header)
                if reason:
                    problems.add(self.path, number, self.where(number), "", reason)
                elif any(cell.strip() for cell in cells) or len(cells) == len(header) == 1:  # "" is no blank line
                    yield number, [cells[place] for place in places]


def _fault(cells: list[str], header: list[str]) -> str:
    if cells and len(cells) != len(header) and any(cell.strip() for cell in cells):
        return (
            f"It has {counted(len(cells), 'cell')}, the header has {len(header)}. Put cells that hold the separator or "
            "a line break in double quotes."
        )
    return NOT_TEXT if any(map(bytes_of, cells)) else ""


class JsonLines(Table):
    """One JSON object a line."""

    counted = "line {}"

    def columns(self) -> list[str]:
        names: dict[str, None] = {}
        for _, record in islice(self._objects(Problems()), NAMED):
            names |= dict.fromkeys(record)
        if not names:
            with opened(self.path) as file:
                first = next((line for line in file if line.strip()), "")
            if not first:
                raise InputError(f"{self.path} is empty. It must hold one JSON object a line.")
            raise InputError(f'{self.path} has no line with a JSON object, such as {{"text": "...", "smiles": "CCO"}}.')
        return list(names)

    def _objects(self, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
        with opened(self.path) as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                reason = NOT_TEXT if bytes_of(line) else ""
                try:
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        reason = reason or f"It must be a JSON object in braces. Got {type(record).__name__}."
                except ValueError as error:
                    reason = reason or f"It is not JSON: {error}."
                if reason:
                    problems.add(self.path, number, self.where(number), "", reason)
                else:
                    yield number, record

    def records(self, columns: list[str], problems: Problems) -> Iterator[tuple[int, list[str]]]:
        for number, record in self._objects(problems):
            missing = [name for name in columns if name not in record]
            if missing:
                problems.add(self.path, number, self.where(number), missing[0], "The line does not have it.")
            else:
                yield number, [as_cell(record[name]) for name in columns]


class SmilesList(Table):
    """A SMILES a line and, after a space or a tab, a name if there is one. Lines that begin with # are comments."""

    counted = "line {}"

    def columns(self) -> list[str]:
        return ["smiles", "name"]

    def records(self, columns: list[str], problems: Problems) -> Iterator[tuple[int, list[str]]]:
        empty = True
        with opened(self.path) as file:
            for number, line in enumerate(file, start=1):
                smiles, name = (*line.split(maxsplit=1), "", "")[:2]
                if not smiles or line.startswith("#") or (empty and smiles.lower() == "smiles"):
                    continue
                empty = False
                if bytes_of(line):
                    problems.add(self.path, number, self.where(number), "", NOT_TEXT)
                else:
                    cells = {"smiles": smiles, "name": name.strip()}
                    yield number, [cells[column] for column in columns]
        if empty:
            raise InputError(f"{self.path} is empty. It must hold a SMILES a line.")


class Lines(Table):
    """One cell a line."""

    counted = "line {}"

    def columns(self) -> list[str]:
        return ["line"]

    def records(self, columns: list[str], problems: Problems) -> Iterator[tuple[int, list[str]]]:
        empty = True
        with opened(self.path) as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                empty = False
                if bytes_of(line):
                    problems.add(self.path, number, self.where(number), "", NOT_TEXT)
                else:
                    yield number, [line.strip()] * len(columns)
        if empty:
            raise InputError(f"{self.path} is empty. It must hold one cell a line.")


class Parquet(Table):
    """Parquet, by pyarrow."""

    counted = "row {} (the first is row 1)"

    @contextmanager
    def _file(self) -> Iterator[Any]:
        arrow, parquet = pyarrow()
        try:
            with parquet.ParquetFile(self.path) as file:
                yield file
        except (arrow.ArrowException, OSError) as error:
            raise InputError(f"{self.path} cannot be read as Parquet: {error}") from error

    def columns(self) -> list[str]:
        with self._file() as file:
            return list(file.schema_arrow.names)

    def records(self, columns: list[str], problems: Problems) -> Iterator[tuple[int, list[str]]]:
        number = 0
        with self._file() as file:
            for batch in file.iter_batches(batch_size=BLOCK, columns=columns):
                values = batch.to_pydict()
                for cells in zip(*(values[name] for name in columns), strict=True):
                    number += 1
                    yield number, [as_cell(cell) for cell in cells]


FORMATS: dict[str, type[Table]] = {
    ".csv": Separated,
    ".tsv": Separated,
    ".tab": Separated,
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".parquet": Parquet,
    ".smi": SmilesList,
    ".smiles": SmilesList,
    ".txt": Lines,
}
WRITTEN = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".parquet")
LONG_CELL = f"A cell has more than {LONGEST_CELL:,} letters. Is a double quote missing somewhere?"
NOT_TEXT = "It has bytes that are not UTF-8 text. Save the file as UTF-8 (in a spreadsheet: CSV UTF-8)."


def table(path: str | Path) -> Table:
    """The table in a file, by the ending of its name."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a file.")
    if not path.exists():
        near = closest(path.name, os.listdir(path.parent)) if path.parent.is_dir() else ""
        raise InputError(f"There is no file {path}.{near}")
    ending = form(path)
    if ending not in FORMATS:
        raise InputError(
            f"{path}: cannot read {ending or 'a file without an ending'}. Save it as one of {_listed(FORMATS)}, plain "
            f"or with {_listed(COMPRESSED)} after it."
        )
    if ending == ".parquet" and path.suffix != ending:
        raise InputError(f"{path}: a Parquet file is compressed inside. Decompress it once and name the .parquet file.")
    return FORMATS[ending](path)


def form(path: Path) -> str:
    """The ending that says what the file is, without that of its compression.

    >>> form(Path("Library.SMI.gz"))
    '.smi'
    """
    return _decompressed(path).suffix.lower()


def _decompressed(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path


@contextmanager
def opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """The text of a file, decompressed. Bytes that are not text stay visible to :func:`bytes_of`."""
    try:
        with _binary(path, "rb") as raw:
            marks = raw.peek(4)[:4]
            encoding = "utf-16" if marks[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            with io.TextIOWrapper(raw, encoding=encoding, errors="surrogateescape", newline="") as text:
                yield text
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def bytes_of(text: str) -> bool:
    """Whether there were bytes that are not text."""
    return not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text)


def _binary(path: Path, mode: str) -> Any:
    match path.suffix.lower():
        case ".gz":
            return _buffered(gzip.open(path, mode))
        case ".bz2":
            return _buffered(bz2.open(path, mode))
        case ".xz":
            return _buffered(lzma.open(path, mode))
        case ".zst":
            arrow, _ = pyarrow()
            stream = arrow.input_stream if mode == "rb" else arrow.output_stream
            return _buffered(stream(str(path), compression="zstd"))
        case _:
            return path.open(mode)


def _buffered(stream: Any) -> Any:
    return io.BufferedReader(stream) if stream.readable() else io.BufferedWriter(stream)


def pyarrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``, or a sentence that says how to install them."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables") from error
    return arrow, parquet


def as_cell(value: Any) -> str:
    """A value of JSON or Parquet as text: nothing is empty, numbers in a list have spaces between, other items ;"""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        numeric = all(isinstance(item, int | float) for item in value)
        return (" " if numeric else ";").join(map(as_cell, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def check_writable(path: Path, *read: Path | None) -> None:
    """Whether a table can be written there and replaces nothing that is read, asked before any work is done."""
    if form(path) not in WRITTEN:
        raise InputError(
            f"{path}: cannot write {form(path) or 'a file without an ending'}. Name it {_listed(WRITTEN)}, or with "
            f"{_listed(COMPRESSED)} after that."
        )
    if form(path) == ".parquet" and path.suffix != ".parquet":
        raise InputError(f"{path}: a Parquet file is compressed inside. Name it .parquet.")
    if form(path) == ".parquet" or path.suffix == ".zst":
        pyarrow()
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name a file.")
    check_place(path)
    if any(other is not None and path.exists() and other.exists() and path.samefile(other) for other in read):
        raise InputError(f"--out {path} would replace a file that is read. Choose another name.")


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table in the form that its name asks for, whole or not at all."""
    check_writable(path)
    with drafted(path) as draft:
        if form(path) == ".parquet":
            _write_parquet(draft, header, rows)
        else:
            _write_text(draft, header, rows)


def skipped_beside(path: Path) -> Path:
    """Where the rows are listed that were skipped on the way to a table.

    >>> skipped_beside(Path("out/ranked.csv.gz")).as_posix()
    'out/ranked.skipped.csv'
    """
    return _decompressed(path).with_suffix(".skipped.csv")


def write_skipped(problems: Problems, path: Path) -> None:
    """List the rows that were skipped; an older list goes when there are none. A file of somebody else's stays."""
    if path.exists() and not _is_ours(path):
        if problems.found:
            warnings.warn(f"{path} is not a list of skipped rows and stays: they are not written down.", stacklevel=2)
    elif problems.found:
        write(path, HEADER, problems.rows())
    else:
        path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with opened(path) as file:
        return file.readline().strip() == ",".join(HEADER)


def _write_text(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with io.TextIOWrapper(_binary(path, "wb"), encoding="utf-8", newline="") as file:
        if form(path) in (".jsonl", ".ndjson"):
            for row in rows:
                file.write(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n")
        else:
            writer = csv.writer(file, delimiter="," if form(path) == ".csv" else "\t", lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)


def _write_parquet(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    arrow, parquet = pyarrow()
    rows = iter(rows)
    writer = None
    while block := list(islice(rows, 2**16)):
        made = arrow.table(dict(zip(header, map(list, zip(*block, strict=True)), strict=True)))
        writer = writer or parquet.ParquetWriter(path, made.schema)
        writer.write_table(made)
    if writer is None:
        parquet.write_table(arrow.table({name: arrow.array([], arrow.string()) for name in header}), path)
    else:
        writer.close()


def _listed(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
