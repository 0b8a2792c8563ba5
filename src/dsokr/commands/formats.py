"""File formats: how the rows of each are read, plain or compressed.

A reader yields the number and the names of all columns first, then the number and the cells of every row, or why it is
bad. All cells are text: numbers of JSON, Parquet and spreadsheets are written out, lists joined.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from dsokr import spectra
from dsokr.commands.cells import count_of
from dsokr.errors import InputError, import_extra

Record = tuple[int, Sequence[str] | str]  # the number of a row with its cells, or with the reason why it is bad

BLOCK = 4096  # rows of Parquet read at once
LONGEST_CELL, LONGEST_LINE = 10_000_000, 100_000_000  # characters
LARGEST_BOOK = 2**31  # bytes of an unpacked workbook
HEADER_SAMPLE, LONG_LINE = 20, 100_000  # rows, and characters of each, that show what separates the cells
NAMES_SAMPLE = 1000  # lines of JSON whose names are the columns
NOT_TEXT = "It has bytes that are not UTF-8 text. Save the file as UTF-8 (in a spreadsheet: CSV UTF-8)."

SEPARATOR = re.compile(r'"?sep=(.)"?', re.IGNORECASE)

csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))


def _read_separated(path: Path, columns: list[str]) -> Iterator[Record]:
    rows = _read_csv_rows(path)
    number, header = next(rows, (1, "Its cells are all blank."))
    if fault := find_fault(header):
        raise InputError(f"{path}, row {number}: {fault}")
    yield number, header
    places = [[name.strip() for name in header].index(name) for name in columns]
    for number, cells in rows:
        yield number, cells if isinstance(cells, str) else [cells[place] for place in places]


def _read_csv_rows(path: Path) -> Iterator[Record]:
    """Read all rows that are not blank. CSV files may have semicolons or tabs, and blank lines above the header.

    A first line ``sep=;`` names the separator, as Excel writes it.
    """
    with open_text(path) as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip(" \t\r\n,;"))
        first, line = next(lines, (0, ""))
        named = SEPARATOR.fullmatch(line.strip("\r\n"))
        if named:
            first, line = next(lines, (0, ""))
        if not first:
            raise InputError(f"{path} is empty. Its first row must name the columns.")
        sample = [line, *islice(file, HEADER_SAMPLE)]
        separator = _find_separator(sample) if file_format(path) == ".csv" else "\t"
        separator = named[1] if named else separator
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
        try:
            cells = record if isinstance(record, str) else [_as_cell(record.get(name)) for name in columns]
        except RecursionError:
            cells = "Its lists are nested too deeply."
        yield number, cells


def _read_json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for number, line in _read_lines(path):
        try:
            record = json.loads(line)
            yield number, record if isinstance(record, dict) else "It is not a JSON object in braces."
        except (ValueError, RecursionError) as error:
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


def _read_sheet(path: Path, columns: list[str]) -> Iterator[Record]:
    """Read the first sheet of a workbook; formulas have the values that were saved with them."""
    openpyxl = import_extra("openpyxl", "tables")
    try:
        with path.open("rb") as file:
            if (size := sum(part.file_size for part in zipfile.ZipFile(file).infolist())) > LARGEST_BOOK:
                raise InputError(f"{path} unpacks to {size:,} bytes, which is too much: save it as CSV.")
            with closing(openpyxl.load_workbook(file, read_only=True, data_only=True)) as book:
                yield from _read_book(path, book, columns)
    except InputError:
        raise
    except Exception as error:  # of many kinds: a workbook is a zip file of XML files
        raise InputError(f"{path} cannot be read as a workbook: {error}.") from error


def _read_book(path: Path, book: Any, columns: list[str]) -> Iterator[Record]:
    if len(book.sheetnames) > 1:
        sheets = f"{book.sheetnames[0]!r}, the first of {len(book.sheetnames)} sheets, is read"
        warnings.warn(f"{path}: {sheets}. Save another one to a file of its own.", stacklevel=3)
    rows = enumerate(book.worksheets[0].iter_rows(values_only=True), start=1)
    cells = ((number, list(map(_as_cell, row))) for number, row in rows if any(cell is not None for cell in row))
    number, header = next(cells, (0, []))
    if not header:
        raise InputError(f"{path} is empty. Its first row must name the columns.")
    while not header[-1].strip():
        header.pop()
    yield number, header
    places = [[name.strip() for name in header].index(name) for name in columns]
    for number, row in cells:  # which may end early
        yield number, [row[place] if place < len(row) else "" for place in places]


def _read_spectra(path: Path, columns: list[str]) -> Iterator[Record]:
    """Read spectra of an MGF or MSP file: a row each, numbered by its last line, with its peaks and all its fields."""
    names = dict.fromkeys(chain.from_iterable(fields for _, fields, _ in islice(_read_records(path), NAMES_SAMPLE)))
    if not names:
        raise InputError(f"{path} has no spectra.")
    yield 0, [*dict.fromkeys([*names, "precursor_mz", "adduct", "peaks"])]
    for number, fields, peaks in _read_records(path):
        precursor, adduct = (
            next((fields[name] for name in known if fields.get(name)), "")
            for known in (spectra.PRECURSORS, spectra.ADDUCTS)
        )
        computed = {"precursor_mz": precursor.partition(" ")[0], "adduct": adduct}
        cells = {**computed, **fields, "peaks": " ".join(map(":".join, peaks))}
        yield number, [cells.get(name, "") for name in columns]


def _read_records(path: Path) -> Iterator[spectra.Record]:
    with open_text(path) as file:
        yield from spectra.READERS[file_format(path)[1:]](file)


def _open_zstd(path: Path, mode: str) -> Any:
    arrow = import_extra("pyarrow", "tables")
    return (arrow.input_stream if "r" in mode else arrow.output_stream)(str(path), compression="zstd")


READERS: Mapping[str, Callable[[Path, list[str]], Iterator[Record]]] = {  # each yields the names of all columns first
    **dict.fromkeys((".csv", ".tsv", ".tab"), _read_separated),
    **dict.fromkeys((".jsonl", ".ndjson"), _read_json),
    ".parquet": _read_parquet,
    ".xlsx": _read_sheet,
    **dict.fromkeys((".mgf", ".msp"), _read_spectra),
    **dict.fromkeys((".smi", ".smiles"), _read_smiles),
    ".txt": _read_list,
}
LISTS = (".smi", ".smiles", ".txt")
OPENERS: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}


class _Text(io.TextIOWrapper):
    """A text without endless lines: a small compressed file may hold one of many gigabytes."""

    def __next__(self) -> str:  # type: ignore[override] # as that of its base class does
        line = self.readline(LONGEST_LINE)
        if not line:
            raise StopIteration
        if len(line) == LONGEST_LINE:
            raise InputError(f"{self.name} has a line of more than {LONGEST_LINE:,} characters.")
        return line


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as text, decompressed. Bytes that are not text become surrogates."""
    try:
        with io.BufferedReader(OPENERS.get(path.suffix.lower(), open)(path, "rb")) as raw:
            encoding = "utf-16" if raw.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            with _Text(raw, encoding=encoding, errors="surrogateescape", newline="") as text:
                yield text
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def find_fault(record: Sequence[str] | str) -> str:
    """Return why a row is bad, or an empty string."""
    if isinstance(record, str):
        return record
    text = "".join(record)
    return "" if text.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in text) else NOT_TEXT


def without_compression(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() in OPENERS else path


def file_format(path: Path) -> str:
    """Return the ending that says what a file is, without that of its compression.

    >>> file_format(Path("Library.SMI.gz"))
    '.smi'
    """
    return without_compression(path).suffix.lower()
