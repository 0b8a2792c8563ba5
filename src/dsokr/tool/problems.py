"""Rows that cannot be used: kept count of, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from dsokr.errors import InputError

OnError = Literal["skip", "fail"]
HEADER = ["file", "row", "column", "reason"]


class Problem(NamedTuple):
    """A row that cannot be used, and why. ``row`` is counted as ``where`` says it."""

    file: str
    row: int
    where: str
    column: str
    reason: str

    def sentence(self) -> str:
        column = f", column {self.column!r}" if self.column else ""
        return f"{self.file}, {self.where}{column}: {self.reason}"


@dataclass
class Problems:
    """What to do with a row that cannot be used: go on without it and say so at the end, or stop.

    >>> problems = Problems()
    >>> problems.add(Path("pairs.csv"), 17, "row 17", "smiles", "Could not parse 'C1CC' as a molecule.")
    >>> problems.lines()
    ['1 row was skipped:', "  pairs.csv, row 17, column 'smiles': Could not parse 'C1CC' as a molecule."]
    """

    on_error: OnError = "skip"
    found: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, on_error: str) -> Problems:
        if on_error not in ("skip", "fail"):
            raise InputError(f"--on-error must be skip or fail. Got {on_error!r}.")
        return cls(on_error)  # type: ignore[arg-type] # one of the two

    def add(self, file: Path, row: int, where: str, column: str, reason: str) -> None:
        problem = Problem(str(file), row, where, column, reason)
        if self.on_error == "fail":
            raise InputError(f"{problem.sentence()} Mend it, or leave such rows out with --on-error skip.")
        self.found.append(problem)

    def lines(self, most: int = 10) -> list[str]:
        """The count and the first of them, for people."""
        if not self.found:
            return []
        count = len(self.found)
        head = "1 row was skipped:" if count == 1 else f"{count:,} rows were skipped:"
        rest = [f"  ... and {count - most:,} more"] if count > most else []
        return [head, *(f"  {problem.sentence()}" for problem in self.found[:most]), *rest]

    def rows(self) -> list[Sequence[str | int]]:
        """All of them, for a table under :data:`HEADER`."""
        return [[problem.file, problem.row, problem.column, problem.reason] for problem in self.found]
