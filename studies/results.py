"""Results of experiments: one JSON object a line, appended when it is known, never computed twice."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dsokr.errors import InputError

Row = dict[str, Any]

MEASURED = (
    "metrics",
    "chosen",
    "seconds",
    "hardware",
    "commit",
    "date",
)  # everything else in a row says what was asked


class Results:
    """The lines of one file. A row is identified by everything but what was measured.

    >>> import tempfile, pathlib
    >>> results = Results(pathlib.Path(tempfile.mkdtemp()) / "try.jsonl")
    >>> results.record({"method": "dsokr", "seed": 0}, lambda: {"metrics": {"mse": 0.5}})["metrics"]
    {'mse': 0.5}
    >>> results.record({"method": "dsokr", "seed": 0}, lambda: 1 / 0)["metrics"]  # known already
    {'mse': 0.5}
    """

    def __init__(self, path: Path):
        self.path = path
        self.commit = commit()  # asked before anything is measured: the source may move on in the meantime
        self.rows: list[Row] = read_rows(path) if path.exists() else []

    def find(self, asked: Row) -> Row | None:
        for row in self.rows:
            if {key: value for key, value in row.items() if key not in MEASURED} == asked:
                return row
        return None

    def record(self, asked: Row, measure: Callable[[], Row]) -> Row:
        """The row for what is asked: as found in the file, or measured now and appended."""
        row = self.find(asked)
        if row is None:
            row = asked | measure() | {"hardware": hardware(), "commit": self.commit, "date": today()}
            self._append(row)
            self.rows.append(row)
        return row

    def add(self, asked: Row, measured: Row) -> Row:
        """The same for what is measured already."""
        return self.record(asked, lambda: measured)

    def _append(self, row: Row) -> None:
        """A line at the end, in place of one that an interruption cut short."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            lines = file.read()
            whole = lines.rfind(b"\n") + 1
            if whole < len(lines):
                file.truncate(whole)
            file.write(json.dumps(row).encode() + b"\n")


def read_rows(path: Path) -> list[Row]:
    """All rows of a file of results. A last line without its end, cut short or still being written, is passed over."""
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith("\n"):
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise InputError(f"{path}, line {number}, is not JSON: {error}.") from error
    return rows


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table for a page.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    head = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join(head + [f"| {' | '.join(cells)} |" for cells in lines])


def hardware() -> str:
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{platform.machine()}, {torch.get_num_threads()} threads"


@cache
def commit() -> str:
    """The commit of the source tree when it was first asked for, or "unknown" outside one."""
    answer = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or "unknown"


def today() -> str:
    return datetime.now(UTC).date().isoformat()
