"""Libraries of candidates: read from a file, and indexes made of them."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import scipy.sparse as sp

from dsokr import index as indexes
from dsokr.commands.cells import count_of
from dsokr.commands.columns import Molecule
from dsokr.commands.kinds import OutputKind, Read
from dsokr.commands.possible import OF_MOLECULES, complete
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems, Rows, Table
from dsokr.errors import InputError
from dsokr.index import CandidateIndex, Index, fingerprint
from dsokr.kernels import Kernel
from dsokr.outputs import take

BLOCK = 8192  # candidates read at once
Spread = Callable[["Inspect", Iterator[list[str]]], Any]  # a generator of what is found out, in order
LARGE = 1_000_000  # bytes of a file of molecules from which on starting further processes is worth it


class Listed(NamedTuple):
    """Candidates of a file, and the last row read for them."""

    cells: list[str]
    names: list[str]
    values: Any  # of all good cells of the block, or a reference to them on a cluster
    places: list[int]  # positions of the candidates among these values
    columns: dict[str, list[str]]
    row: int
    rows: list[int]  # of the candidates
    codes: list[bytes]
    bad: dict[str, str]  # why cells cannot be used


@dataclass(frozen=True)
class Inspect:
    """Parse candidates, compute their columns and hash them: the slow part, which runs on all cores.

    Candidates with different hashes mean different things.
    """

    output: OutputKind
    kernel: Kernel
    computes: bool  # whether columns are wanted that are computed

    def __call__(self, cells: list[str]) -> tuple[Read, list[bytes], dict[str, list[str]]]:
        read = self.output.read(cells, self.kernel)
        good = take(cells, read.good)
        columns = complete(self.output, good, {}) if self.computes else {}
        return read, list(map(_digest, self._identify(read.values, good))), columns

    def _identify(self, values: Any, cells: list[str]) -> Iterator[bytes]:
        """Identify molecules by their fingerprints, since canonical SMILES take longer; other kinds by their keys."""
        if not cells or not isinstance(self.output, Molecule) or self.output.as_graph or not self.output.counts:
            return (self.output.key(cell).encode(errors="surrogatepass") for cell in cells)
        rows = sp.csr_array(values).sorted_indices()
        ends = pairwise(rows.indptr.tolist())
        indices, numbers = rows.indices.astype(np.int64), rows.data.astype(np.float64)  # of any version of SciPy
        return (indices[a:b].tobytes() + numbers[a:b].tobytes() for a, b in ends)


def _digest(text: bytes) -> bytes:
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

    def blocks(self, start: int = 0, spread: Spread | None = None) -> Iterator[Listed]:
        """Read the candidates after row ``start``: the new good ones. ``spread`` inspects them elsewhere.

        Bad ones are problems, in every row where they occur. A file without any good one is an error.
        """
        seen: dict[bytes, tuple[str, ...]] = {}  # candidates by their codes
        bad: dict[str, str] = {}
        for rows, cells, new, (read, codes, columns) in self._inspect(spread):
            self.rows += len(rows.attempted)
            bad |= (why := {new[at]: reason for at, reason in read.bad.items()})
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
            columns, numbers = computed | further, [rows.numbers[first[cell]] for cell in found]
            row = rows.attempted[-1]
            yield Listed(found, names, read.values, fresh, columns, row, numbers, take(codes, fresh), why)
        if not self.candidates and not start:
            raise self.table.unusable(self.problems)

    def _is_new(self, cell: str, code: bytes, seen: dict[bytes, tuple[str, ...]]) -> bool:
        """Whether no earlier candidate means the same; if so, remember it."""
        others, key = seen.get(code, ()), self.predictor.output.key
        if others and key(cell) in map(key, others):
            return False
        seen[code] = *others, cell
        return True

    def _inspect(self, spread: Spread | None) -> Iterator[tuple[Rows, list[str], list[str], Any]]:
        """Yield rows, their cells, the new ones of these, and their values; large files are parsed on all cores."""
        seen: set[int] = set()
        waiting: deque[tuple[dict[Any, Any], Rows, list[str], list[str]]] = deque()
        is_over = False

        def list_new() -> Iterator[list[str]]:  # ahead, and in a thread of joblib's
            ahead = Problems()
            for rows in self.table.blocks(ahead, [*self.columns, *self.name, *self.further], BLOCK):
                if is_over:
                    return
                cells = list(map(str.strip, rows.join(self.columns)))
                new = [cell for cell in dict.fromkeys(cells) if hash(cell) not in seen]
                seen.update(map(hash, new))
                waiting.append((ahead.found, rows, cells, new))
                ahead.found = {}
                yield new

        inspect = Inspect(self.predictor.output, self.predictor.basis.kernel, len(self.wanted) > len(self.further))
        is_large = isinstance(inspect.output, Molecule) and self.table.path.stat().st_size > LARGE
        parallel = joblib.Parallel(-1 if is_large else 1, return_as="generator", pre_dispatch="2*n_jobs")
        if spread is not None:
            results = spread(inspect, list_new())
        else:
            results = parallel(joblib.delayed(inspect)(new) for new in list_new())
        try:
            for found in results:
                problems, *block = waiting.popleft()
                self.problems.found.update(problems)
                yield *block, found
        finally:
            is_over = True
            if spread is None:  # wait for what was begun: joblib's own thread may fail when work is dropped
                with suppress(Exception, KeyboardInterrupt):  # of workers, which get Ctrl-C too
                    deque(results, maxlen=0)
            results.close()


def describe(candidates: int, duplicates: int) -> str:
    again = f" ({duplicates:,} listed again, counted once)" if duplicates else ""
    return count_of(candidates, "candidate") + again


def open_index(predictor: Predictor, place: Path | str | None) -> Index:
    """Open an index of this model; without one, the outputs known from training, with columns that are computed."""
    if place is not None:
        return indexes.open_index(place, fingerprint(predictor.basis))
    columns = complete(predictor.output, predictor.known, {})
    return CandidateIndex.in_memory(predictor.known, *predictor.model.known_.coordinates(), cells=columns)
