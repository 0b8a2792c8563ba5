"""A library of candidates as an index: embedded once, searched many times."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dsokr.errors import InputError, Interrupted
from dsokr.index import Block, BuildOptions, CandidateIndex, build, fingerprint
from dsokr.index.build import Progress
from dsokr.outputs import take
from dsokr.commands import tables
from dsokr.commands.kinds import counted
from dsokr.commands.prediction import CandidateBlock, again, candidate_columns, library_blocks, usable
from dsokr.commands.predictor import Predictor
from dsokr.commands.problems import Problems

TOLD_SECONDS = 10.0  # how often progress is told

Say = Callable[[str], None]


@dataclass(frozen=True)
class Embedded:
    """An index, and what was seen on the way to it."""

    index: CandidateIndex
    duplicates: int
    seconds: float

    def sentence(self) -> str:
        are = "is" if len(self.index) == 1 else "are"
        return f"{counted(len(self.index), 'candidate')}{again(self.duplicates)} {are} in the index."


def embed(
    predictor: Predictor,
    library: Path,
    out: Path,
    options: BuildOptions,
    problems: Problems,
    *,
    column: str | None = None,
    say: Say = lambda line: None,
    restart: bool = False,
) -> Embedded:
    """Embed the candidates of a file. Cells written alike count once. Interrupted, the same call goes on."""
    source = _Source(predictor, library, column, problems)
    start = time.monotonic()
    try:
        index = build(
            out,
            source.blocks,
            model=fingerprint(predictor.basis),
            dim=predictor.basis.dim,
            source=source.digest(),
            options=options,
            say=say,
            progress=_told(say),
            restart=restart,
        )
    except KeyboardInterrupt as stop:
        raise Interrupted(f"Stopped. The same command goes on where it was; {out} holds what is done.") from stop
    except OSError as error:
        raise InputError(f"{error.filename or out} cannot be read or written: {error.strerror or error}.") from error
    return Embedded(index, source.duplicates, time.monotonic() - start)


class _Source:
    """The candidates of a file from any row on."""

    def __init__(self, predictor: Predictor, library: Path, column: str | None, problems: Problems):
        self.predictor, self.library, self.column, self.problems = predictor, library, column, problems
        self.duplicates = 0

    def digest(self) -> str:
        source, columns = tables.table(self.library), self.predictor.facts["columns"]["output"]
        candidate_columns(source, self.predictor.output, columns, self.column)  # are there, and can be read
        with self.library.open("rb") as file:
            return f"{hashlib.file_digest(file, 'sha256').hexdigest()} {self.column or ''}".strip()

    def blocks(self, start: int) -> Iterator[Block]:
        """Blocks of the candidates after row ``start``; how many rows a block took is counted in their numbers."""
        predictor = self.predictor
        seen: set[int] = set()  # hashes of the good ones
        before: set[int] = set()  # and of those up to ``start``, which are read only where they stand again
        row, told = start, 0
        columns = predictor.facts["columns"]["output"]
        for block in library_blocks(predictor.output, columns, self.library, self.column, self.problems):
            values, places = self._new(block, start, seen, before)
            if block.rows[-1] <= start:
                told = len(self.problems.found)
                continue
            psi, diag = _coordinates(predictor, values, len(places))
            bad = sorted(self.problems.found[told:], key=lambda problem: problem.row)
            sentences = [problem.sentence() for problem in bad if problem.row > start]
            texts, names = [block.cells[place] for place in places], [block.names[place] for place in places]
            yield Block(texts, psi, diag, names, read=block.rows[-1] - row, skipped=sentences)
            row, told = block.rows[-1], len(self.problems.found)
        rest = self.problems.found[told:]
        if rest:
            psi, diag = _coordinates(predictor, [], 0)
            yield Block([], psi, diag, read=max(rest[-1].row - row, 0), skipped=[p.sentence() for p in rest])

    def _new(self, block: CandidateBlock, start: int, seen: set[int], before: set[int]) -> tuple[Any, list[int]]:
        """What the good candidates of a block say that are not in the index, and where they stand."""
        keys = list(map(hash, block.cells))
        done: set[int] = set()
        asked: dict[int, int] = {}
        for place, (row, key) in enumerate(zip(block.rows, keys, strict=True)):
            if row <= start and key not in before:
                before.add(key)
                done.add(place)
            elif key not in seen:
                asked.setdefault(key, place)
        values: Any = []
        places: list[int] = []
        if asked or block.rows[-1] > start:
            values, places = usable(self.predictor, block, list(asked.values()), self.problems)
        seen |= {keys[place] for place in places}
        new = [position for position, place in enumerate(places) if keys[place] not in before]
        if len(new) < len(places):
            values, places = take(values, new), [places[position] for position in new]
        self.duplicates += sum(key in seen for place, key in enumerate(keys) if place not in done) - len(places)
        return values, places


def _coordinates(predictor: Predictor, values: object, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    if not count:
        return torch.empty(0, predictor.basis.dim), torch.empty(0)
    return predictor.basis.embed(values), predictor.basis.diag(values)


def _told(say: Say) -> Callable[[Progress], None]:
    last = time.monotonic()

    def tell(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > TOLD_SECONDS:
            last = time.monotonic()
            left_out = f", {now.skipped:,} rows skipped" if now.skipped else ""
            say(f"{now.rows:,} candidates, {now.rate:,.0f}/s{left_out}")

    return tell


def opened(predictor: Predictor, folder: Path | None) -> CandidateIndex:
    """The index in a folder, which must be of this model; without one, the outputs known from training."""
    if folder is not None:
        return CandidateIndex.open(folder, fingerprint(predictor.basis))
    if not predictor.known:
        raise InputError("The model knows no candidates. Name an index with --index.")
    known = predictor.among(None)
    return CandidateIndex.in_memory(predictor.known, *known.coordinates())


def example_inputs(predictor: Predictor, most: int = 4) -> tuple[str, ...]:
    """A few inputs that were held out in training, to try."""
    found = (example.get("input") for example in predictor.facts.get("examples", []) if isinstance(example, dict))
    return tuple(dict.fromkeys(text for text in found if isinstance(text, str)))[:most]
