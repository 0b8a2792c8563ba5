"""Results of studies: JSON lines, each appended as soon as it is known and never computed twice; tables of them."""

import json
import platform
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

import torch

from dsokr.errors import InputError

Row = dict[str, Any]
Column = str | Callable[[Row], str]  # a format string for the fields of a row, or a function of it
Columns = Mapping[str, Column]  # by header
Key = TypeVar("Key", bound=Hashable)

MEASURED = ("metrics", "chosen", "seconds", "hardware", "commit", "date")  # all other fields identify a row
SHOWN = [  # in progress lines
    *("data", "dataset", "protocol", "split", "representation", "method", "model", "kernel", "sketch", "m", "p"),
    *("rule", "decoder", "rate", "seed"),
]
TRAINING_FIELDS = ("epochs", "batch_size", "learning_rate", "schedule")  # in the keys of rows
MISSING = "–"


class Results:
    """The rows of one file. A row is identified by its key: all fields but those that were measured.

    >>> import tempfile, pathlib
    >>> results = Results(pathlib.Path(tempfile.mkdtemp()) / "try.jsonl")
    >>> results.record({"method": "dsokr", "seed": 0}, lambda: {"metrics": {"mse": 0.5}})["metrics"]
    {'mse': 0.5}
    >>> results.record({"method": "dsokr", "seed": 0}, lambda: 1 / 0)["metrics"]  # known already
    {'mse': 0.5}
    """

    def __init__(self, path: Path, say: Callable[[str], None] = lambda line: None):
        self.path, self.say = path, say
        self.commit = read_commit()  # before anything is measured: the source may change in the meantime
        self.rows = read_rows(path)

    def find(self, key: Row) -> Row | None:
        """Return the row with this key, if it is known."""
        for row in self.rows:
            if {name: value for name, value in row.items() if name not in MEASURED} == key:
                return row
        return None

    def has(self, *keys: Row) -> bool:
        """Whether all these rows are known."""
        return all(self.find(key) is not None for key in keys)

    def knows(self, fields: Row) -> bool:
        """Whether there is a row with these fields, whatever the others."""
        return any(all(row.get(name) == value for name, value in fields.items()) for row in self.rows)

    def record(self, key: Row, measure: Callable[[], Row]) -> Row:
        """Return the row with this key: known already, or measured now and appended."""
        return self.record_all([key], lambda: [measure()])[0]

    def record_all(self, keys: Sequence[Row], measure: Callable[[], Iterable[Row]]) -> list[Row]:
        """Return the rows with these keys; if any is unknown, measure all and append the new ones as they come."""
        if not self.has(*keys):
            for key, measured in zip(keys, measure(), strict=True):
                if self.find(key) is None:
                    self._append(key | {"hardware": name_hardware(), "commit": self.commit, "date": today()} | measured)
        return [row for key in keys if (row := self.find(key)) is not None]

    def _append(self, row: Row) -> None:
        """Add a line at the end of the file, in place of one that an interruption cut short."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            lines = file.read()
            complete = lines.rfind(b"\n") + 1
            if complete < len(lines):
                file.truncate(complete)
            file.write(json.dumps(row).encode() + b"\n")
        self.rows.append(row)
        self.say(f"{self.path.stem}: {describe_row(row)}")


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a file, none if there is no file. A last line without its end is still being written."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}.") from error


def describe_row(row: Row) -> str:
    """A line on what was measured.

    >>> describe_row({"method": "nn", "seed": 0, "metrics": {"mse": 0.25}})
    'nn, seed 0: mse 0.25'
    """
    which = [row[name] if isinstance(row[name], str) else f"{name} {row[name]}" for name in SHOWN if name in row]
    numbers = [f"{name} {value:.4g}" for name, value in row["metrics"].items() if isinstance(value, float)]
    return f"{', '.join(which)}: {', '.join(numbers[:4])}"


def pick_fields(owner: object, *names: str) -> Row:
    """Some fields of an object, as part of a row."""
    return {name: getattr(owner, name) for name in names}


def group_rows(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Group rows by a key, in the order of first occurrence."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean_and_sd(values: Iterable[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, 0 for a single value."""
    values = list(values)
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def format_spread(name: str, spec: str) -> Column:
    """A column of means and standard deviations; of a single split, the value alone.

    >>> format_spread("f1", ".2f")({"f1": (0.5, 0.25)})
    '0.50 ± 0.25'
    """

    def format_row(row: Row) -> str:
        value, sd = row[name]
        return f"{value:{spec}}" if row.get("splits") == 1 else f"{value:{spec}} ± {sd:{spec}}"

    return format_row


def format_cell(row: Row, column: Column) -> str:
    """Format a cell of a table; a dash where the row lacks a field.

    >>> format_cell({"mse": 0.25}, "{mse:.1%}"), format_cell({}, "{mse:.1%}")
    ('25.0%', '–')
    """
    try:
        return column(row) if callable(column) else column.format_map(row)
    except KeyError:
        return MISSING


def write_table(columns: Columns, rows: Iterable[Row]) -> str:
    """Write a Markdown table, without columns that are empty throughout.

    >>> print(write_table({"a": "{a}", "b": "{b:.1f}", "c": "{c}"}, [{"a": 1, "b": 2}]))
    | a | b |
    |---|---|
    | 1 | 2.0 |
    """
    rows = list(rows)
    cells = {header: [format_cell(row, column) for row in rows] for header, column in columns.items()}
    cells = {header: column for header, column in cells.items() if set(column) != {MISSING}}
    lines = [list(cells), *zip(*cells.values(), strict=True)]
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([table[0], "|" + "---|" * len(cells), *table[1:]])


def name_hardware() -> str:
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {threads} thread{'s' * (threads > 1)}"


@cache
def read_commit() -> str:
    """Return the commit of the source tree, or "unknown" outside one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def today() -> str:
    return datetime.now(UTC).date().isoformat()
