"""Which candidates are possible for each input: --match, --within and --candidates-for."""

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr import spectra
from dsokr.commands.cells import shorten
from dsokr.commands.columns import Labels, Molecule, OutputKind
from dsokr.commands.options import PossibleOptions
from dsokr.commands.predictor import Pairs, Predictor, read_pairs
from dsokr.commands.tables import Problems, Rows, Table
from dsokr.errors import InputError
from dsokr.index import Condition
from dsokr.index.columns import as_number, as_numbers
from dsokr.outputs import take

WITHIN = re.compile(r"(?P<column>[^=]+)(=(?P<formula>.+))?:(?P<size>[^:]+?)\s*(?P<unit>ppm|%|)")
UNITS = {"ppm": 1e6, "%": 1e2}
SIGNS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
MASS, MASS_FROM = "neutral_mass", ["precursor_mz", "adduct"]  # a column of inputs that is computed from others
OF_MOLECULES = ("formula", "exact_mass")  # columns that are computed where a file has none of this name


@dataclass(frozen=True)
class Wish:
    """A condition: a column of the candidates must equal, or be near, an expression of the input's columns."""

    column: str
    formula: str  # a column of the inputs, or an expression of several
    tolerance: float | None = None  # None: equal texts
    share: float | None = None  # of the number itself

    def names(self, table: Table) -> list[str]:
        """Return the columns of the inputs that it needs."""
        if self.tolerance is None or self.formula in table.columns:
            return table.check_columns([self.formula])
        names = [node.id for node in ast.walk(self._parse()) if isinstance(node, ast.Name)]
        needed = (MASS_FROM if name == MASS and name not in table.columns else [name] for name in names)
        return table.check_columns([*chain.from_iterable(needed)])

    def compute(self, rows: Rows, problems: Problems) -> Condition:
        """Return what the candidates of every row must have; rows for which that is unknown are problems."""
        if self.tolerance is None:
            return Condition.equal(self.column, rows.cells[self.formula])
        names = self.names(rows.table)
        numbers = {name: as_numbers(rows.cells[name]) for name in names}
        if MASS not in names and {*MASS_FROM} <= {*names}:
            pairs = zip(*(rows.cells[name] for name in MASS_FROM), strict=True)
            numbers[MASS] = np.array([_find_mass(*pair) for pair in pairs])
        with np.errstate(divide="ignore", invalid="ignore"):
            middle = numbers[self.formula] if self.formula in names else _compute(self._parse().body, numbers)
        middle = np.broadcast_to(middle, len(rows.numbers))
        for at in np.flatnonzero(~np.isfinite(middle)):
            cells = (f"{name} is {shorten(rows.cells[name][at])!r}" for name in names)
            reason = f"{self.formula} is not a number here: {', '.join(cells)}."
            reason += " Adducts are written like [M+H]+." * (MASS in numbers)
            problems.add(rows.table, rows.numbers[at], ", ".join(names), reason)
        width = self.tolerance if self.share is None else np.abs(middle) * self.share
        return Condition.within(self.column, middle - width, middle + width)

    def _parse(self) -> ast.Expression:
        try:
            tree = ast.parse(self.formula.strip(), mode="eval")
        except SyntaxError:
            raise self._refuse() from None
        kinds = ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, *SIGNS
        for node in ast.walk(tree):
            if not isinstance(node, kinds) or type(getattr(node, "value", 0)) not in (int, float):
                raise self._refuse()
        return tree

    def _refuse(self) -> InputError:
        return InputError(f"--within: {self.formula!r} is neither a column nor made of columns and numbers by + - * /.")


def _find_mass(precursor: str, adduct: str) -> float:
    """The mass of the molecule; NaN if the adduct cannot be read."""
    try:
        return spectra.find_mass(as_number(precursor), adduct)
    except InputError:
        return math.nan


def _compute(node: Any, numbers: Mapping[str, np.ndarray]) -> Any:
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
    return SIGNS[type(node.op)](*(_compute(part, numbers) for part in parts))


def read_rows(
    table: Table, columns: Sequence[str], options: PossibleOptions, problems: Problems
) -> tuple[Rows, list[Condition]]:
    """Read the rows of a table, and what candidates of each must have; rows for which that is unknown are problems."""
    equal = [text.partition("=") for text in options.match or ()]
    wishes = [Wish(column.strip(), (formula or column).strip()) for column, _, formula in equal]
    wishes += map(read_within, options.within or ())
    rows = table.read(problems, [*columns, *(name for wish in wishes for name in wish.names(table))])
    conditions = [wish.compute(rows, problems) for wish in wishes]
    known = [at for at, row in enumerate(rows.numbers) if (str(table.path), row) not in problems.found]
    return rows.take(known), [condition.take(known) for condition in conditions]


def read_test(
    predictor: Predictor, table: Table, options: PossibleOptions, problems: Problems, further: str | None = None
) -> tuple[Pairs, list[Condition], list[str] | None]:
    """Read the pairs of a table that has the columns of training, what candidates of each must have, and one column."""
    input, output, others = predictor.input, predictor.output, [further] if further else []
    rows, conditions = read_rows(table, [*input.columns, *output.columns, *others], options, problems)
    pairs = read_pairs(rows, input, output, predictor.basis.kernel, problems)
    place = {number: at for at, number in enumerate(rows.numbers)}
    at = [place[number] for number in pairs.rows]
    cells = take(rows.cells[further], at) if further else None
    return pairs, [condition.take(at) for condition in conditions], cells


def append_conditions(kept: Sequence[Any] | None, conditions: Sequence[Condition]) -> list[Condition]:
    """Append conditions to those of the calibration, which must be on the same columns."""
    columns = [] if kept is None else [column for column, *_ in kept]
    if columns != [condition.column for condition in conditions]:
        with_what = f"on {', '.join(columns)}" if columns else "without conditions"
        raise InputError(f"The model was calibrated {with_what}. Use the same --match and --within for both.")
    pairs = zip(kept or (), conditions, strict=True)
    return [
        Condition(new.column, *(np.concatenate(both) for both in zip(old[1:], new[1:], strict=True)))
        for old, new in pairs
    ]


def pool_rows(z: Tensor, keys: Sequence[str]) -> tuple[Tensor, list[int]]:  # (n, p) -> (groups, p)
    """The mean coordinates of rows with equal keys, and the first row of each."""
    first: dict[str, int] = {}
    number = [first.setdefault(key, len(first)) for key in keys]
    sums = z.new_zeros(len(first), z.shape[1]).index_add_(0, torch.tensor(number, device=z.device), z)
    counts = torch.tensor(number).bincount().to(z)
    return sums / counts[:, None], [number.index(group) for group in range(len(first))]


def read_within(text: str) -> Wish:
    """Read a wish of --within.

    >>> read_within("mass=mz-1.00728:10ppm")
    Wish(column='mass', formula='mz-1.00728', tolerance=10.0, share=1e-05)
    """
    found = WITHIN.fullmatch(text.strip())
    size = as_number(found["size"]) if found else -1.0
    if not found or not size >= 0:
        example = "exact_mass=precursor_mz-1.00728:10ppm, or exact_mass:0.01"
        raise InputError(f"--within takes COLUMN=EXPRESSION:TOLERANCE, such as {example}. Got {text!r}.")
    column, unit = found["column"].strip(), UNITS.get(found["unit"])
    return Wish(column, (found["formula"] or column).strip(), size, None if unit is None else size / unit)


def complete(output: OutputKind, cells: Sequence[str], given: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Columns of candidates: those given, and the formula and exact mass of molecules if they are not."""
    if not isinstance(output, Molecule):
        return dict(given)
    chem = import_module("dsokr.chem")
    ways = {"formula": chem.formula, "exact_mass": lambda cell: f"{chem.mass(cell):.6f}"}
    return {name: list(map(way, cells)) for name, way in ways.items() if name not in given} | dict(given)


def split_list(cell: str, output: OutputKind) -> list[str]:
    """The candidates in a cell: separated by ; and, for molecules, by spaces, or a list of JSON.

    >>> split_list("CCO; CO", Molecule()), split_list('["CCO"]', Molecule())
    (['CCO', 'CO'], ['CCO'])
    """
    if isinstance(output, Labels):
        raise InputError("--candidates-for cannot list label sets, whose labels are separated like candidates.")
    with suppress(ValueError, RecursionError):
        if isinstance(items := json.loads(cell), list):
            return list(map(str, items))
    parts = re.split(r"[;\s]+" if isinstance(output, Molecule) else ";", cell)
    return [part.strip() for part in parts if part.strip()]
