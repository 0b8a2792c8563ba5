"""Libraries of candidates: read from a file, and indexes made of them."""

import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import scipy.sparse as sp
import torch

from dsokr import index as index_
from dsokr.commands.cells import count_of
from dsokr.commands.columns import Molecule
from dsokr.commands.kinds import OutputKind, Read
from dsokr.commands.options import EmbedOptions, Result, Say, UpdateOptions
from dsokr.commands.possible import OF_MOLECULES, complete
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems, Rows, Table
from dsokr.decoders import EmbeddedOutputs
from dsokr.errors import InputError, Interrupted
from dsokr.files import checksum
from dsokr.index import Block, BuildOptions, CandidateIndex, Index, build, fingerprint
from dsokr.kernels import Kernel
from dsokr.outputs import take

BLOCK = 8192  # candidates read at once
LARGE = 1_000_000  # bytes of a file of molecules from which on starting further processes is worth it


class Listed(NamedTuple):
    """Candidates of a file: their cells, names, values and further columns, the last row read for them, and codes."""

    cells: list[str]
    names: list[str]
    values: Any
    columns: dict[str, list[str]]
    row: int
    codes: np.ndarray  # (n,) int64


@dataclass(frozen=True)
class Inspect:
    """What takes most of the time, for all cores: values and computed columns of candidates, and codes for these.

    Candidates with different codes do not mean the same.
    """

    output: OutputKind
    kernel: Kernel
    computes: bool  # whether columns are wanted that are computed

    def __call__(self, cells: list[str]) -> tuple[Read, list[bytes], dict[str, list[str]]]:
        read = self.output.read(cells, self.kernel)
        good = take(cells, read.good)
        columns = complete(self.output, good, {}) if self.computes else {}
        return read, list(map(_shorten, self._identify(read.values, good))), columns

    def _identify(self, values: Any, cells: list[str]) -> Iterator[bytes]:
        """By their fingerprints, as canonical SMILES take longer; other kinds by their keys."""
        if not cells or not isinstance(self.output, Molecule) or self.output.as_graph or not self.output.counts:
            return (self.output.key(cell).encode(errors="surrogatepass") for cell in cells)
        rows = sp.csr_array(values).sorted_indices()
        ends = pairwise(rows.indptr.tolist())
        indices, numbers = rows.indices.astype(np.int64), rows.data.astype(np.float64)  # of any version of SciPy
        return (indices[a:b].tobytes() + numbers[a:b].tobytes() for a, b in ends)


def _shorten(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).digest()


class Library:
    """The candidates of a file, read in blocks. Those that mean the same count once.

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
        seen: dict[bytes, tuple[str, ...]] = {}  # candidates by their codes
        bad: dict[str, str] = {}
        for rows, cells, new, (read, codes, columns) in self._inspect():
            self.rows += len(rows.attempted)
            bad |= {new[at]: reason for at, reason in read.bad.items()}
            for number, cell in zip(rows.numbers, cells, strict=True):
                if cell in bad and number > start:
                    self.problems.add(self.table, number, ", ".join(self.columns), bad[cell])
            self.problems.check(self.table, self.rows)
            first = dict(zip(reversed(cells), reversed(range(len(cells))), strict=True))
            good = take(new, read.good)
            places = [place for place, code in enumerate(codes) if self._is_new(good[place], code, seen)]
            fresh = [place for place in places if rows.numbers[first[good[place]]] > start]
            found = take(good, fresh)
            self.candidates += len(found)
            further = {name: [rows.cells[name][first[cell]] for cell in found] for name in (*self.name, *self.further)}
            names = further.pop(self.name[0]) if self.name else [""] * len(found)
            computed = {name: take(column, fresh) for name, column in columns.items()}
            kept = np.frombuffer(b"".join(codes[place] for place in fresh), np.int64)
            yield Listed(found, names, take(read.values, fresh), computed | further, rows.attempted[-1], kept)
        if not self.candidates and not start:
            raise self.table.unusable(self.problems)

    def _is_new(self, cell: str, code: bytes, seen: dict[bytes, tuple[str, ...]]) -> bool:
        """Whether a candidate means something else than all before, which it then joins."""
        others, key = seen.get(code, ()), self.predictor.output.key
        if others and key(cell) in map(key, others):
            return False
        seen[code] = *others, cell
        return True

    def _inspect(self) -> Iterator[tuple[Rows, list[str], list[str], Any]]:
        """Rows, their cells, those that are new, and what is found out about them; on all cores if they are many."""
        seen: set[int] = set()
        waiting: deque[tuple[dict[Any, Any], Rows, list[str], list[str]]] = deque()

        def list_new() -> Iterator[list[str]]:  # ahead, and in a thread of joblib's
            ahead = Problems()
            for rows in self.table.blocks(ahead, [*self.columns, *self.name, *self.further], BLOCK):
                cells = list(map(str.strip, rows.join(self.columns)))
                new = [cell for cell in dict.fromkeys(cells) if hash(cell) not in seen]
                seen.update(map(hash, new))
                waiting.append((ahead.found, rows, cells, new))
                ahead.found = {}
                yield new

        inspect = Inspect(self.predictor.output, self.predictor.basis.kernel, len(self.wanted) > len(self.further))
        is_large = isinstance(inspect.output, Molecule) and self.table.path.stat().st_size > LARGE
        parallel = joblib.Parallel(-1 if is_large else 1, return_as="generator", pre_dispatch="2*n_jobs")
        results = parallel(joblib.delayed(inspect)(new) for new in list_new())
        try:
            for found in results:
                problems, *block = waiting.popleft()
                self.problems.found.update(problems)
                yield *block, found
        finally:
            with warnings.catch_warnings(action="ignore"):  # joblib's, of work that nobody waits for
                results.close()


def describe(candidates: int, duplicates: int) -> str:
    again = f" ({duplicates:,} listed again, counted once)" if duplicates else ""
    return count_of(candidates, "candidate") + again


def embed(options: EmbedOptions, problems: Problems, say: Say) -> Result:
    """Write an index of the candidates of a file. Call it again to resume after Ctrl-C."""
    started, predictor = time.monotonic(), Predictor.load(options.model, options.device)
    rule: Any = options.rule or (predictor.rule if options.kind else None)
    library, basis = Library(predictor, options.library, options.candidates_column, problems, None), predictor.basis
    with _explained(options.out, f"Run the same command to resume; {options.out} keeps what is done."):
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
    head = index.head
    duplicates = max(library.rows - head.count - head.skipped, 0)
    facts = {"index": options.out, "candidates": head.count, "skipped": head.skipped, "duplicates": duplicates}
    facts |= {"kind": head.kind, "recall@10": head.recall, "seconds": time.monotonic() - started}
    return Result(facts, [f"{describe(head.count, duplicates)} in the index {options.out}."])


@contextmanager
def _explained(place: str, stopped: str) -> Iterator[None]:
    """Say what to do after Ctrl-C, and where a file could not be written."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(f"Stopped. {stopped}") from stop
    except OSError as error:
        raise InputError(f"{error.filename or place} cannot be read or written: {error.strerror or error}.") from error


def update(options: UpdateOptions, problems: Problems, say: Say) -> Result:
    """Change the candidates of an index, all at once."""
    if options.add is None and options.delete is None:
        raise InputError("Name a file of candidates with --add, with --delete, or with both.")
    predictor, place = Predictor.load(options.model, options.device), options.index
    index, column = open_index(predictor, place), options.candidates_column
    added: Iterable[Block] = ()
    deleted: Iterable[index_.Listed] = ()
    if options.add is not None:
        added = _embed_blocks(Library(predictor, options.add, column, problems, index.head.columns), 0)
    if options.delete is not None:
        listed = Library(predictor, options.delete, column, problems).blocks()
        deleted = (index_.Listed(some.cells, some.codes) for some in listed)
    model, key = index.head.model, predictor.output.key
    with _explained(place, f"{place} is as it was."):
        changes = index_.update(place, added, deleted, model=model, key=key, say=say)
    count = len(index) + changes.added - changes.deleted
    parts = ", ".join(f"{number:,} {name}" for name, number in changes._asdict().items() if name != "missing")
    lines = [f"{parts}: {count_of(count, 'candidate')} in the index {place}."]
    if changes.missing:
        lines.append(f"{count_of(changes.missing, 'candidate')} to be deleted were not in it.")
    return Result({"index": place, "candidates": count, **changes._asdict()}, lines)


def _embed_blocks(library: Library, start: int) -> Iterator[Block]:
    basis, last = library.predictor.basis, start
    file, found = str(library.table.path), library.problems.found
    for cells, names, values, columns, row, codes in library.blocks(start):
        if row > start:
            skipped = [found[file, at].sentence() for at in range(last + 1, row + 1) if (file, at) in found]
            psi, diag = torch.empty(0, basis.dim), torch.empty(0)
            if cells:
                psi, diag = EmbeddedOutputs(basis, values).coordinates()
            yield Block(cells, psi, diag, names, read=row - last, skipped=skipped, cells=columns, codes=codes)
            last = row


def open_index(predictor: Predictor, place: Path | str | None, describe: bool = False) -> Index:
    """Open an index of this model; without one, the outputs known from training, with columns if wanted."""
    if place is not None:
        return index_.open_index(place, fingerprint(predictor.basis))
    columns = complete(predictor.output, predictor.known, {}) if describe else {}
    return CandidateIndex.in_memory(predictor.known, *predictor.model.known_.coordinates(), cells=columns)
