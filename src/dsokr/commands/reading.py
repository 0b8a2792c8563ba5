"""Rows of a table as pairs of cells, and the good ones of them as what a model takes."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsokr.errors import InputError, UndefinedAt
from dsokr.kernels import Kernel
from dsokr.outputs import Outputs, count, take
from dsokr.commands.kinds import Cell, Kind, OutputKind, Read, closest
from dsokr.commands.predictor import Pairs, cell_text
from dsokr.commands.problems import Problems
from dsokr.commands.tables import Rows, Table, check_some, table


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows of a table: their numbers, and the cells of the inputs and of the outputs, where there are any."""

    table: Table
    rows: list[int]
    inputs: list[Cell]
    outputs: list[Cell]

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, positions: Iterable[int]) -> Cells:
        chosen = list(positions)
        outputs = [self.outputs[i] for i in chosen] if self.outputs else []
        return Cells(self.table, [self.rows[i] for i in chosen], [self.inputs[i] for i in chosen], outputs)


@dataclass(frozen=True, eq=False)
class GoodPairs:
    """The rows that can be used, and what they say."""

    cells: Cells
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.cells)

    def at(self, positions: Sequence[int]) -> GoodPairs:
        X, Y, cells = self.pairs
        picked = Pairs(take(X, positions), take(Y, positions), [cells[i] for i in positions])
        return GoodPairs(self.cells.at(positions), picked)


def columns_named(table: Table, text: str | Sequence[str], option: str) -> list[str]:
    """Columns by name: one, several with commas between, or all that a pattern with * fits."""
    there = table.columns()
    if isinstance(text, str):
        asked = [text] if text in there else [part.strip() for part in text.split(",") if part.strip()]
    else:
        asked = list(text)
    if not asked:
        raise InputError(f"{option} must name a column of {table.path}. Its columns: {', '.join(there)}.")
    names: list[str] = []
    for name in asked:
        found = [name] if name in there else fnmatch.filter(there, name) if "*" in name else [name]
        if not found:
            raise InputError(f"{table.path} has no column like {name!r}. Its columns: {', '.join(there)}.")
        names += found
    return table.checked(names)


def read_cells(path: Path, inputs: Sequence[str], outputs: Sequence[str], problems: Problems) -> Cells:
    """All rows, with the cells of these columns."""
    source = table(path)
    rows = source.read(problems, [*inputs, *outputs])
    return Cells(source, rows.numbers, joined(rows, inputs), joined(rows, outputs) if outputs else [])


def joined(rows: Rows, columns: Sequence[str]) -> list[Cell]:
    """One cell a row, or the tuple of the cells of several columns."""
    if len(columns) == 1:
        return list(rows.cells[columns[0]])
    return list(zip(*(rows.cells[name] for name in columns), strict=True))


def good_pairs(
    cells: Cells, input: Kind, output: OutputKind, columns: tuple[str, str], problems: Problems
) -> GoodPairs:
    """The rows whose inputs and outputs can both be read; the others become problems. ``columns`` names the two."""
    inputs, outputs = input.read(cells.inputs), output.read(cells.outputs)
    _report(cells, inputs, columns[0], problems)
    _report(cells, outputs, columns[1], problems, but=inputs.bad)
    good = sorted(set(inputs.good) & set(outputs.good))
    check_some(cells.table, cells.rows, problems, good)
    at_input = {position: place for place, position in enumerate(inputs.good)}
    at_output = {position: place for place, position in enumerate(outputs.good)}
    X = take(inputs.values, [at_input[i] for i in good])
    Y = take(outputs.values, [at_output[i] for i in good])
    kept = cells.at(good)
    return GoodPairs(kept, Pairs(X, Y, [cell_text(cell) for cell in kept.outputs]))


def defined_pairs(good: GoodPairs, kernel: Kernel, column: str, problems: Problems) -> GoodPairs:
    """Those whose outputs the kernel is defined for; the others become problems."""
    bad = undefined(kernel, good.pairs.Y)
    for position, reason in bad.items():
        _add(good.cells, position, column, reason, problems)
    positions = [position for position in range(len(good)) if position not in bad]
    check_some(good.cells.table, good.cells.rows, problems, positions)
    problems.settle()
    return good if not bad else good.at(positions)


def good_inputs(cells: Cells, input: Kind, column: str, problems: Problems) -> tuple[Cells, object]:
    """The rows whose inputs can be read, and these inputs; the others become problems."""
    read = input.read(cells.inputs)
    _report(cells, read, column, problems)
    check_some(cells.table, cells.rows, problems, read.good)
    problems.settle()
    return cells.at(read.good), read.values


def undefined(kernel: Kernel, ys: Outputs) -> dict[int, str]:
    """Positions of the outputs that the kernel is undefined for, and why."""
    bad: dict[int, str] = {}
    start = 0
    while start < count(ys):
        try:
            kernel.diag(take(ys, slice(start, None)))
            return bad
        except UndefinedAt as error:
            bad[start + error.index] = f"The kernel is undefined here: {error.why}."
            start += error.index + 1
    return bad


def common_columns(table: Table, wanted: Sequence[str], what: str) -> list[str]:
    """The columns of these names in another table, or a sentence that says what is missing."""
    there = table.columns()
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InputError(
            f"{table.path} has no column {missing[0]!r}, which holds the {what}.{closest(missing[0], there)} "
            f"Its columns: {', '.join(there)}."
        )
    return list(wanted)


def _report(cells: Cells, read: Read, column: str, problems: Problems, but: Iterable[int] = ()) -> None:
    told = set(but)
    for position, reason in read.bad.items():
        if position not in told:
            _add(cells, position, column, reason, problems)


def _add(cells: Cells, position: int, column: str, reason: str, problems: Problems) -> None:
    row = cells.rows[position]
    problems.add(cells.table.path, row, cells.table.where(row), column, reason)
