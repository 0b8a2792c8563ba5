"""What kind of cells a column holds, guessed from the cells."""

from __future__ import annotations

from collections.abc import Sequence

from dsokr.errors import InputError, MissingExtraError
from dsokr.tool.kinds import INPUTS, OUTPUTS, PICTURES, Cell, Kind, OutputKind, Vector, chem, closest, numbers

LOOKED_AT = 300  # cells
MOST = 0.9  # share of the cells that must fit


def input_named(name: str, columns: Sequence[str], cells: Sequence[Cell]) -> Kind:
    """The kind of this name; ``auto`` is guessed from the cells."""
    name = _known(guessed_input(columns, cells) if name == "auto" else name, list(INPUTS), "input")
    return Vector(tuple(columns)) if name == "vector" else INPUTS[name]()


def output_named(name: str, columns: Sequence[str], cells: Sequence[Cell]) -> OutputKind:
    """The kind of this name; ``auto`` is guessed from the cells."""
    name = _known(guessed_output(columns, cells) if name == "auto" else name, list(OUTPUTS), "output")
    return Vector(tuple(columns)) if name == "vector" else OUTPUTS[name]()


def guessed_input(columns: Sequence[str], cells: Sequence[Cell]) -> str:
    """The name of the most special kind that nearly all of the first cells fit.

    >>> guessed_input(["picture"], ["a/1.png", "a/2.png"]), guessed_input(["t"], ["a red ball", "two cats"])
    ('image', 'text')
    """
    if len(columns) > 1:
        return "vector"
    some = _some(cells)
    if _share(some, lambda cell: cell.lower().endswith(PICTURES)):
        return "image"
    if _share(some, _are_numbers):
        return "vector"
    if _are_smiles(columns[0], some):
        return "smiles"
    return "string" if all(cell.isascii() for cell in some) and _share(some, _is_word) else "text"


def guessed_output(columns: Sequence[str], cells: Sequence[Cell]) -> str:
    """The same for outputs.

    >>> guessed_output(["y"], ["b>a>c", "a>b>c"]), guessed_output(["tags"], ["red;round", "green"])
    ('ranking', 'labels')
    """
    if len(columns) > 1:
        return "vector"
    some = _some(cells)
    if _share(some, _are_numbers):
        return "vector"
    if _are_smiles(columns[0], some):
        return "smiles"
    if _share(some, lambda cell: ">" in cell):
        return "ranking"
    distinct = {part for cell in some for part in cell.replace("|", ";").split(";")}
    separated = any(";" in cell or "|" in cell for cell in some)
    return "labels" if separated or len(distinct) <= max(2, len(some) // 5) else "string"


def _known(name: str, known: list[str], what: str) -> str:
    if name not in known:
        raise InputError(f"There is no kind of {what} {name!r}.{closest(name, known)} Choose from {', '.join(known)}.")
    return name


def _some(cells: Sequence[Cell]) -> list[str]:
    some = [cell.strip() for cell in cells[:LOOKED_AT] if isinstance(cell, str) and cell.strip()]
    if not some:
        raise InputError("All cells are empty: there is nothing to guess a kind from.")
    return some


def _share(cells: list[str], fits: object) -> bool:
    return sum(map(fits, cells)) >= MOST * len(cells)  # type: ignore[call-overload] # a function of a cell


def _is_word(cell: str) -> bool:
    return len(cell.split()) == 1


def _are_numbers(cell: str) -> bool:
    try:
        numbers(cell)
    except InputError:
        return False
    return True


def _are_smiles(column: str, cells: list[str]) -> bool:
    """SMILES, by the name of the column or because RDKit can read them and they do not look like words."""
    if "smiles" in column.lower():
        return True
    if not _share(cells, _is_word) or all(cell.islower() or cell.istitle() for cell in cells):
        return False
    try:
        molecules = chem()
    except MissingExtraError:
        return False
    return _share(cells, lambda cell: _is_smiles(molecules, cell))


def _is_smiles(molecules: object, cell: str) -> bool:
    try:
        molecules.canonical([cell])  # type: ignore[attr-defined] # the module dsokr.chem
    except InputError:
        return False
    return True
