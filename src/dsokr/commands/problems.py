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
        self.found.append(Problem(str(file), row, where, column, reason))

    def settle(self) -> None:
        """Stop at the first of them, if that is asked for. Called when all that is bad in some rows is found."""
        if self.on_error == "fail" and self.found:
            raise InputError(f"{self.by_row()[0].sentence()} Mend it, or leave such rows out with --on-error skip.")

    def by_row(self) -> list[Problem]:
        """All of them, file by file in the order of the rows: some faults are seen only after those of later rows."""
        files = {file: at for at, file in enumerate(dict.fromkeys(problem.file for problem in self.found))}
        return sorted(self.found, key=lambda problem: (files[problem.file], problem.row))

    def of_file(self, file: Path) -> list[Problem]:
        """Those of one file, in the order of the rows."""
        return [problem for problem in self.by_row() if problem.file == str(file)]

    def lines(self, most: int = 10) -> list[str]:
        """The count and the first of them, for people."""
        if not self.found:
            return []
        count = len(self.found)
        head = "1 row was skipped:" if count == 1 else f"{count:,} rows were skipped:"
        rest = [f"  ... and {count - most:,} more"] if count > most else []
        return [head, *(f"  {problem.sentence()}" for problem in self.by_row()[:most]), *rest]

    def rows(self) -> list[Sequence[str | int]]:
        """All of them, for a table under :data:`HEADER`."""
        return [[problem.file, problem.row, problem.column, problem.reason] for problem in self.by_row()]
