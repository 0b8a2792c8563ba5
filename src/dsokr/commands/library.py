"""Libraries of candidates: read from a file in blocks, and embedded once into an index."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dsokr.commands.cells import count_of
from dsokr.commands.options import EmbedOptions, Result, Say
from dsokr.commands.predictor import Predictor, find_undefined
from dsokr.commands.tables import Problems, Table
from dsokr.errors import InputError, Interrupted
from dsokr.files import checksum
from dsokr.index import Block, BuildOptions, CandidateIndex, build, fingerprint
from dsokr.outputs import as_outputs, take

BLOCK = 8192  # candidates read at once


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
            new: dict[str, int] = {}  # the first place of every candidate that is not known to be good
            for at in after:
                if hash(cells[at]) not in seen:
                    new.setdefault(cells[at], at)
            good, values, bad = self._parse(list(new))
            for at in after:
                if cells[at] in bad:
                    self.problems.add(self.table, rows.numbers[at], ", ".join(self.columns), bad[cells[at]])
            self.problems.check()
            seen |= set(map(hash, good))
            fresh = [at for at, cell in enumerate(good) if hash(cell) not in before]
            found, places = take(good, fresh), [new[good[at]] for at in fresh]
            self.candidates += len(found)
            yield LibraryBlock(found, take(names, places), take(values, fresh), rows.attempted[-1])

    def _parse(self, cells: list[str]) -> tuple[list[str], Any, dict[str, str]]:
        """Return the good cells with their values, and why the others are bad."""
        read = self.predictor.output.read(cells)
        undefined = find_undefined(self.predictor.basis.kernel, read.values)
        bad = {cells[at]: reason for at, reason in read.bad.items()}
        bad |= {cells[read.good[at]]: reason for at, reason in undefined.items()}
        defined = [at for at in range(len(read.good)) if at not in undefined]
        values = take(as_outputs(read.values), defined) if defined else []
        return [cells[read.good[at]] for at in defined], values, bad

    def check_some(self) -> None:
        """Raise an error if there was no good candidate."""
        if not self.candidates:
            raise self.table.unusable([], self.problems)


def describe_candidates(candidates: int, duplicates: int) -> str:
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
    return Result(facts, [f"{describe_candidates(head.count, duplicates)} in the index {options.out}."])


def _embed_blocks(library: Library, start: int) -> Iterator[Block]:
    basis, last = library.predictor.basis, start
    for block in library.blocks(start):
        if block.last_row > start:
            file, found = str(library.table.path), library.problems.found
            rows = [row for row in range(last + 1, block.last_row + 1) if (file, row) in found]
            skipped = [found[file, row].sentence() for row in rows]
            psi, diag = torch.empty(0, basis.dim), torch.empty(0)
            if block.cells:
                psi, diag = basis.embed(block.values), basis.diag(block.values)
            yield Block(block.cells, psi, diag, block.names, read=block.last_row - last, skipped=skipped)
            last = block.last_row


def open_index(predictor: Predictor, folder: Path | None) -> CandidateIndex:
    """Open an index of this model; without one, the outputs known from training."""
    if folder is not None:
        return CandidateIndex.open(folder, fingerprint(predictor.basis))
    return CandidateIndex.in_memory(predictor.known, *predictor.among(None).coordinates())
