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
import threading
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from dsokr.errors import InputError, MissingExtraError
from dsokr.commands.kinds import closest, counted
from dsokr.commands.problems import HEADER, Problems
from dsokr.files import check_place, drafted

BLOCK = 4096  # rows read at once
PARQUET_BLOCK = 2**16  # rows of Parquet written at once
LONGEST_CELL = 10_000_000  # letters; more are a quote that is never closed
NAMED = 1000  # rows of JSON lines whose names are collected as the names of the columns
SAMPLE = 20  # lines after the first that show what separates the cells

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
    """CSV and TSV with a header. A CSV file may also have semicolons, as spreadsheets write them in many countries, or
    tabs."""

    header_row = 1  # as a spreadsheet shows it; blank lines may stand above

    def where(self, row: int) -> str:
        return f"row {row} (the header is row {self.header_row})"

    def columns(self) -> list[str]:
        with closing(self.rows(Problems())) as rows:
            return _names(next(rows)[1])

    def records(self, columns: list[str], problems: Problems) -> Iterator[tuple[int, list[str]]]:
        rows = self.rows(problems)
        header = _names(next(rows)[1])
        places = [header.index(name) for name in columns]
        for number, cells in rows:
            yield number, [cells[place] for place in places]

    def rows(self, problems: Problems, first: str = "the header") -> Generator[tuple[int, list[str]]]:
        """The numbers of all rows and all their cells, the header first; ``first`` is what that is called."""
        with opened(self.path) as file:
            lines = RecordLines(file)
            self.header_row = number = lines.pass_blank() + 1
            sample = lines.ahead(1 + SAMPLE)
            if not sample:
                raise InputError(f"{self.path} is empty. Its first row must name the columns.")
            if bytes_of(sample[0]):
                raise InputError(f"{self.path}, row {number}: {NOT_TEXT}")
            separator = _separator(sample) if form(self.path) == ".csv" else "\t"
            rows = LongCells(csv.reader(lines, delimiter=separator))
            width = 0
            while (cells := self._next(rows, lines, number)) is not None:
                reason = cells if isinstance(cells, str) else _fault(cells, width, lines.record, separator, first)
                if reason and not width:
                    raise InputError(f"{self.path}, row {number}: {reason}")
                if reason:
                    problems.add(self.path, number, self.where(number), "", reason)
                elif not width or any(cell.strip() for cell in cells) or len(cells) == width == 1:  # "" is not blank
                    width = width or len(cells)
                    yield number, list(cells)
                number += 1

    def _next(self, rows: LongCells, lines: RecordLines, number: int) -> list[str] | str | None:
        """The cells of the next row, or why it cannot be read, or None after the last."""
        lines.record.clear()
        found: list[str] | str
        try:
            found = next(rows)
        except StopIteration:
            return None
        except csv.Error as error:
            found = LONG_CELL if "field limit" in str(error) else f"It cannot be read: {error}."
        if lines.ended or (found == LONG_CELL and len(lines.record) > 1):
            raise InputError(self._open_quote(number, lines))
        return found

    def _open_quote(self, number: int, lines: RecordLines) -> str:
        inside = counted(len(lines.record) - 1, "line")
        if lines.ended:
            rest = f": the rest of the file, {inside}, is inside of it" if len(lines.record) > 1 else ""
            return f"A double quote in row {number} of {self.path} is never closed{rest}."
        return (
            f"A double quote in row {number} of {self.path} is not closed within {LONGEST_CELL:,} letters: {inside} "
            "after it are inside of it."
        )


class RecordLines:
    """Lines for a reader of CSV: those of the row that is being read, and whether it asked for more than there are.

    A row may go on over several lines inside of double quotes; when it is complete no further line is asked for.
    """

    def __init__(self, lines: Iterable[str]):
        self._lines = iter(lines)
        self.record: list[str] = []  # cleared by who reads the rows
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.ended = True
            raise
        self.record.append(line)
        return line

    def pass_blank(self) -> int:
        """Pass over lines that hold nothing but separators; how many there were."""
        for count, line in enumerate(self._lines):
            if line.strip(" \t\r\n,;"):
                self._lines = chain([line], self._lines)
                return count
        return 0

    def ahead(self, most: int) -> list[str]:
        """The next lines, which stay to be read."""
        lines = list(islice(self._lines, most))
        self._lines = chain(lines, self._lines)
        return lines


def _names(header: Iterable[str]) -> list[str]:
    return [name.strip() for name in header]


def _separator(lines: Sequence[str]) -> str:
    """What separates the cells of a CSV file: what makes most of its first rows as long as the header.

    >>> _separator(["Temp, °C;press", "20.5;1013"])
    ';'
    """
    widths = {}
    for separator in ("\t", ";", ","):  # texts have tabs least often, and commas most
        try:
            widths[separator] = [len(cells) for cells in LongCells(csv.reader(lines, delimiter=separator)) if cells]
        except csv.Error:  # said when the row is read
            continue
    able = {separator: found for separator, found in widths.items() if found and found[0] > 1}
    fitting = {separator: found[1:].count(found[0]) for separator, found in able.items()}
    if not any(fitting.values()):
        fitting = {separator: found[0] for separator, found in able.items()}
    return max(fitting, key=fitting.__getitem__, default=",")


class LongCells:
    """Rows of a CSV file whose cells have up to ``LONGEST_CELL`` letters.

    The limit of :mod:`csv` is that of the whole process: it is another only while a row is read, by one thread.
    """

    _reading = threading.Lock()

    def __init__(self, rows: Iterator[list[str]]):
        self._rows = rows

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        with self._reading:
            before = csv.field_size_limit(LONGEST_CELL)
            try:
                return next(self._rows)
            finally:
                csv.field_size_limit(before)


def _fault(cells: list[str], width: int, lines: Sequence[str], separator: str, first: str) -> str:
    """Why a row cannot be used, if so; a header, of no width yet, may have any."""
    if width and cells and len(cells) != width and any(cell.strip() for cell in cells):
        advice = "Put cells that hold the separator or a line break in double quotes."
        if len(lines) > 1:
            advice = f"A cell goes on over {len(lines)} lines: is a double quote missing?"
        return f"It has {counted(len(cells), 'cell')}, {first} has {width}. {advice}"
    if len(lines) > 1 and not _is_strict(lines, separator):
        return f"A cell goes on over {len(lines)} lines, and after its closing quote: is a double quote missing?"
    return NOT_TEXT if any(map(bytes_of, cells)) else ""


def _is_strict(lines: Sequence[str], separator: str) -> bool:
    """Whether every closing quote is the end of a cell."""
    try:
        next(LongCells(csv.reader(lines, delimiter=separator, strict=True)))
    except csv.Error:
        return False
    return True


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
    blocks = iter(lambda: list(islice(rows, PARQUET_BLOCK)), [])
    made = (arrow.table(dict(zip(header, map(list, zip(*block, strict=True)), strict=True))) for block in blocks)
    first = next(made, arrow.table({name: arrow.array([], arrow.string()) for name in header}))
    with parquet.ParquetWriter(path, first.schema) as writer:
        for block in chain([first], made):
            writer.write_table(block)


def _listed(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
