"""Libraries of candidates: read from a file, and indexes made of them."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dsokr.commands.cells import count_of
from dsokr.commands.columns import Molecule
from dsokr.commands.options import EmbedOptions, Result, Say
from dsokr.commands.possible import OF_MOLECULES, complete
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems, Table
from dsokr.decoders import EmbeddedOutputs
from dsokr.errors import InputError, Interrupted
from dsokr.files import checksum
from dsokr.index import Block, BuildOptions, CandidateIndex, build, fingerprint
from dsokr.outputs import take

BLOCK = 8192  # candidates read at once


class Listed(NamedTuple):
    """Candidates of a file: their cells, names, values and further columns, and the last row read for them."""

    cells: list[str]
    names: list[str]
    values: Any
    columns: dict[str, list[str]]
    row: int


class Library:
    """The candidates of a file, read in blocks. Those written alike count once.

    ``wanted`` are further columns that blocks have, all if it is None.
    """

    def __init__(
        self,
        predictor: Predictor,
        path: Path,
        column: str | None,
        problems: Problems,
        wanted: Sequence[str] | None = (),
    ):
        self.predictor, self.table, self.problems = predictor, Table(path), problems
        self.columns = self._find_columns(column)
        named = [name for name in self.table.columns if name.lower() in ("name", "id") and name not in self.columns]
        self.name = named[:1]
        computed = OF_MOLECULES if isinstance(predictor.output, Molecule) else ()
        others = [name for name in self.table.columns if name not in (*self.columns, *self.name)]
        self.wanted = list(dict.fromkeys([*others, *computed] if wanted is None else wanted))
        self.further = self.table.check_columns([name for name in self.wanted if name not in {*computed} - {*others}])
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

    def blocks(self, start: int = 0) -> Iterator[Listed]:
        """Read the candidates after row ``start``: the new good ones.

        Bad ones are problems, in every row where they occur. A file without any good one is an error.
        """
        before: set[int] = set()  # hashes of the candidates up to ``start``
        seen: set[int] = set()  # and of good ones after it
        for rows in self.table.blocks(self.problems, [*self.columns, *self.name, *self.further], BLOCK):
            self.rows += len(rows.attempted)
            cells = list(map(str.strip, rows.join(self.columns)))
            first = dict(zip(reversed(cells), reversed(range(len(cells))), strict=True))
            after = [at for at, number in enumerate(rows.numbers) if number > start]
            before |= {hash(cell) for cell in cells[: len(cells) - len(after)]}
            new = list(dict.fromkeys(cells[at] for at in after if hash(cells[at]) not in seen))
            read = self.predictor.output.read(new, self.predictor.basis.kernel)
            bad = {new[at]: reason for at, reason in read.bad.items()}
            for at in after:
                if cells[at] in bad:
                    self.problems.add(self.table, rows.numbers[at], ", ".join(self.columns), bad[cells[at]])
            self.problems.check()
            seen |= {hash(new[at]) for at in read.good}
            fresh = [place for place, at in enumerate(read.good) if hash(new[at]) not in before]
            found = [new[read.good[place]] for place in fresh]
            self.candidates += len(found)
            further = {name: [rows.cells[name][first[cell]] for cell in found] for name in (*self.name, *self.further)}
            names = further.pop(self.name[0]) if self.name else [""] * len(found)
            columns = complete(self.predictor.output, found, further) if len(self.wanted) > len(further) else further
            yield Listed(found, names, take(read.values, fresh), columns, rows.attempted[-1])
        if not self.candidates and not start:
            raise self.table.unusable(self.problems)


def describe(candidates: int, duplicates: int) -> str:
    again = f" ({duplicates:,} listed again, counted once)" if duplicates else ""
    return count_of(candidates, "candidate") + again


def embed(options: EmbedOptions, problems: Problems, say: Say) -> Result:
    """Write an index of the candidates of a file. Call it again to resume after Ctrl-C."""
    started, predictor = time.monotonic(), Predictor.load(options.model, options.device)
    rule: Any = options.rule or (predictor.rule if options.kind else None)
    library, basis = Library(predictor, options.library, options.candidates_column, problems, None), predictor.basis
    try:
        index = build(
            options.out,
            lambda start: _embed_blocks(library, start),
            model=fingerprint(basis),
            dim=basis.dim,
            source=f"{checksum(options.library)} {', '.join(library.columns)}",
            columns=library.wanted,
            options=BuildOptions(options.kind, rule, options.dtype, options.recall, options.sort_by),  # type: ignore[arg-type] # it checks them
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
    return Result(facts, [f"{describe(head.count, duplicates)} in the index {options.out}."])


def _embed_blocks(library: Library, start: int) -> Iterator[Block]:
    basis, last = library.predictor.basis, start
    file, found = str(library.table.path), library.problems.found
    for cells, names, values, columns, row in library.blocks(start):
        if row > start:
            skipped = [found[file, at].sentence() for at in range(last + 1, row + 1) if (file, at) in found]
            psi, diag = torch.empty(0, basis.dim), torch.empty(0)
            if cells:
                psi, diag = EmbeddedOutputs(basis, values).coordinates()
            yield Block(cells, psi, diag, names, read=row - last, skipped=skipped, cells=columns)
            last = row


def open_index(predictor: Predictor, folder: Path | None, describe: bool = False) -> CandidateIndex:
    """Open an index of this model; without one, the outputs known from training, with columns if wanted."""
    if folder is not None:
        return CandidateIndex.open(folder, fingerprint(predictor.basis))
    columns = complete(predictor.output, predictor.known, {}) if describe else {}
    return CandidateIndex.in_memory(predictor.known, *predictor.model.known_.coordinates(), cells=columns)
