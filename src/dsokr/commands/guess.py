"""What kind of cells a column holds, guessed from the cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsokr.errors import InputError, MissingExtraError
from dsokr.commands.kinds import (
    INPUTS,
    NO_LABEL,
    OUTPUTS,
    PICTURES,
    Cell,
    Kind,
    OutputKind,
    Vector,
    chem,
    closest,
    counted,
    has_comma,
    numbers,
    texts,
)

LOOKED_AT = 300  # cells
MOST = 0.9  # share of the cells that must fit

Where = Callable[[int], str]  # where the cell of a position stands, in words


def at_position(position: int) -> str:
    return f"position {position}"


def input_named(name: str, columns: Sequence[str], cells: Sequence[Cell], where: Where = at_position) -> Kind:
    """The kind of this name; ``auto`` is guessed from the cells."""
    name = _known(guessed_input(columns, cells, where) if name == "auto" else name, list(INPUTS), "input")
    return Vector(tuple(columns)) if name == "vector" else INPUTS[name]()


def output_named(name: str, columns: Sequence[str], cells: Sequence[Cell], where: Where = at_position) -> OutputKind:
    """The kind of this name; ``auto`` is guessed from the cells."""
    name = _known(guessed_output(columns, cells, where) if name == "auto" else name, list(OUTPUTS), "output")
    return Vector(tuple(columns)) if name == "vector" else OUTPUTS[name]()


def guessed_input(columns: Sequence[str], cells: Sequence[Cell], where: Where = at_position) -> str:
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
    guess = "string" if all(cell.isascii() for cell in some) and _share(some, _is_word) else "text"
    _check_no_numbers(columns[0], cells, where, "--input-kind", guess)
    return guess


def guessed_output(columns: Sequence[str], cells: Sequence[Cell], where: Where = at_position) -> str:
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
    separated = any(map(_has_separator, some))
    guess = "labels" if separated or len(distinct) <= max(2, len(some) // 5) else "string"
    sets = any(cell == NO_LABEL or (_has_separator(cell) and not _look_like_numbers(cell)) for cell in some)
    if not sets:  # which may well be sets of numbers
        _check_no_numbers(columns[0], cells, where, "--output-kind", guess)
    return guess


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


def _check_no_numbers(column: str, cells: Sequence[Cell], where: Where, option: str, guess: str) -> None:
    """That cells which are no vectors are not numbers after all, with decimal commas or with some other cells between.

    What would be trained on such cells is a model of the digits as letters.
    """
    some = _some(cells)
    if _share(some, _look_like_numbers):
        at = _first(cells, lambda cell: _look_like_numbers(cell) and not _are_numbers(cell))
        raise InputError(
            f"{where(at)}, column {column!r}: {_reason(cells[at])} If the cells are no numbers, say {option} {guess}."
        )
    if sum(map(_are_numbers, some)) > len(some) / 2:
        written = [cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()]
        at = _first(cells, lambda cell: not _are_numbers(cell))
        raise InputError(
            f"{where(at)}, column {column!r}: {texts(str(cells[at]).strip())!r} is not a number, but "
            f"{sum(map(_are_numbers, written)):,} of {counted(len(written), 'cell')} of the column are. Say {option} "
            f"vector to leave such rows out, or {option} {guess} to take all cells as they are."
        )


def _first(cells: Sequence[Cell], fits: Callable[[str], bool]) -> int:
    return next(at for at, cell in enumerate(cells) if isinstance(cell, str) and cell.strip() and fits(cell.strip()))


def _reason(cell: Cell) -> str:
    """Why it is not a number."""
    try:
        numbers(cell)
    except InputError as error:
        return str(error)
    return ""


def _look_like_numbers(cell: str) -> bool:
    parts = cell.replace(";", " ").replace("|", " ").split()
    return bool(parts) and all(_are_numbers(part) or has_comma(part) for part in parts)


def _has_separator(cell: str) -> bool:
    return ";" in cell or "|" in cell


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
