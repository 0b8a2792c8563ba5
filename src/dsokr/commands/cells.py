"""Cells as text: how to parse them, how messages show them, and how to guess the kind of a column."""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dsokr.errors import InputError, import_extra
from dsokr.regressors.inputs import are_smiles

NO_LABEL = "{}"  # the empty set of labels; an empty cell is more often a missing value
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
COMMAS = re.compile(r"[-+]?(\d+,\d+([eE][-+]?\d+)?|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+(,\d+)?)")  # 0,5  1,234.5
SAMPLE, MOST = 300, 0.9  # cells that a guess looks at, and the share of them that must fit
MANY = 100  # numbers in a row from which on it may be sparse


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shorten(text: str, most: int = 60) -> str:
    """Return a text as a message shows it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def split(text: str, separator: str) -> list[str]:
    """Return the parts of a text, stripped, without empty ones."""
    return [part.strip() for part in text.split(separator) if part.strip()]


def parse_text(cell: str) -> str:
    """Return the text of a cell, which must not be empty."""
    if not cell.strip():
        raise InputError("The cell is empty.")
    return cell.strip()


def parse_numbers(cell: str, columns: Sequence[str] = ()) -> np.ndarray:  # (d,)
    """Return the numbers in a cell: separated by spaces, ; or |, or a list in brackets.

    Cells of several columns are joined by ; and errors name the column.

    >>> parse_numbers("[1, 2.5]")
    array([1. , 2.5])
    """
    text = parse_text(cell)
    text = text.strip("[]()").replace(",", " ") if text[0] in "[(" else text
    parts = text.split(";") if text.count(";") == len(columns) - 1 > 0 else re.split(r"[;|\s]+", text.strip(";| "))
    with suppress(ValueError):
        numbers = np.fromiter(map(float, parts), np.float64, len(parts))
        if np.isfinite(numbers).all():
            return numbers
    places = [f" in {name!r}" for name in columns] if len(columns) == len(parts) > 1 else [""] * len(parts)
    return np.array([_parse_number(part.strip(), place) for part, place in zip(parts, places, strict=True)])


def _parse_number(text: str, place: str) -> float:
    if not text:
        raise InputError(f"The cell{place} is empty.")
    try:
        number = float(text)
    except ValueError:
        remedy = " Write decimals with a point, and nothing between thousands." * bool(COMMAS.fullmatch(text))
        raise InputError(f"{shorten(text)!r}{place} is not a number.{remedy}") from None
    if not math.isfinite(number):
        raise InputError(f"{text!r}{place} is not a finite number.")
    return number


def load_picture(cell: str) -> Any:
    """Load the picture whose path is in a cell."""
    path, pictures = parse_text(cell), import_extra("PIL.Image", "images")
    try:
        with pictures.open(path) as picture:
            picture.load()
            return picture
    except FileNotFoundError:
        raise InputError(f"There is no picture {path}.") from None
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"The picture {path} cannot be read: {error}.") from error


def guess_input(columns: Sequence[str], cells: Sequence[str], locate: Callable[[int], str]) -> str:
    """Return the name of the most specific kind that fits nearly all of the first cells; ``locate`` names a position.

    >>> guess_input(["picture"], ["a/1.png", "a/2.png"], str), guess_input(["t"], ["a red ball", "two cats"], str)
    ('image', 'text')
    """
    texts = _sample(cells)
    if len(columns) <= 2 and _fits(texts, _are_peaks):
        return "spectrum"
    if len(columns) > 1 or _fits(texts, _is_numbers):
        return "Vector(sparse=True)" if _are_sparse(columns, texts) else "vector"
    if _fits(texts, lambda text: text.lower().endswith(PICTURES)):
        return "image"
    if _are_smiles(columns[0], texts):
        return "smiles"
    are_words = _fits(texts, lambda text: len(text.split()) == 1)
    guess = "string" if all(map(str.isascii, texts)) and are_words else "text"
    _check_no_numbers(columns[0], cells, locate, "--input-kind", guess)
    return guess


def guess_output(columns: Sequence[str], cells: Sequence[str], locate: Callable[[int], str]) -> str:
    """Return the name of the most specific kind that fits nearly all of the first cells of outputs.

    >>> guess_output(["y"], ["b>a>c", "a>b>c"], str), guess_output(["tags"], ["red;round", "green"], str)
    ('ranking', 'labels')
    """
    texts = _sample(cells)
    if len(columns) > 1 or _fits(texts, _is_numbers):
        return "vector"
    if _are_smiles(columns[0], texts):
        return "smiles"
    if _fits(texts, lambda text: ">" in text):
        return "ranking"
    labels = {label for text in texts for label in re.split("[;|]", text)}
    sets = [text for text in texts if re.search("[;|]", text)]
    guess = "labels" if sets or len(labels) <= max(2, len(texts) // 5) else "string"
    if NO_LABEL not in texts and all(map(_resembles_numbers, sets)):
        _check_no_numbers(columns[0], cells, locate, "--output-kind", guess)
    return guess


def _sample(cells: Sequence[str]) -> list[str]:
    texts = [cell.strip() for cell in cells[:SAMPLE] if cell.strip()]
    if not texts:
        raise InputError("All cells are empty: their kind cannot be guessed.")
    return texts


def _fits(texts: list[str], test: Callable[[str], bool]) -> bool:
    return sum(map(test, texts)) >= MOST * len(texts)


def _check_no_numbers(column: str, cells: Sequence[str], locate: Callable[[int], str], option: str, guess: str) -> None:
    """Refuse to read numbers as text: numbers with decimal commas, or mixed with other cells."""
    texts = _sample(cells)
    if _fits(texts, _resembles_numbers) or 2 * sum(map(_is_numbers, texts)) > len(texts):
        wrong = {at: cell.strip() for at, cell in enumerate(cells) if cell.strip() and not _is_numbers(cell)}
        at = min(wrong, key=lambda at: not _resembles_numbers(wrong[at]))
        place = f"{locate(at)}, column {column!r}, {shorten(wrong[at])!r}"
        advice = f"Use {option} vector to skip such rows, or {option} {guess} to read numbers as text."
        raise InputError(f"{place}: {_find_fault(wrong[at])} {advice}")


def _find_fault(text: str) -> str:
    """Return why a text is not numbers, or an empty string."""
    try:
        parse_numbers(text)
    except InputError as error:
        return str(error)
    return ""


def _is_numbers(text: str) -> bool:
    return not _find_fault(text)


def _are_sparse(columns: Sequence[str], texts: list[str]) -> bool:
    """Whether rows have many numbers, nearly all of them zero."""
    rows = [parse_numbers(text, columns) for text in texts if _is_numbers(text)]
    numbers = sum(map(len, rows))
    return numbers >= MANY * max(len(rows), 1) and sum(map(np.count_nonzero, rows)) <= (1 - MOST) * numbers


def _are_peaks(text: str) -> bool:
    """Whether a cell holds two or more peaks, mz:intensity; a precursor may follow, of another column."""
    peaks = [part.split(":") for part in (text.rpartition(";")[0] or text).split()]
    return len(peaks) > 1 and all(len(peak) == 2 and all(map(_is_numbers, peak)) for peak in peaks)


def _resembles_numbers(text: str) -> bool:
    return all(_is_numbers(part) or COMMAS.fullmatch(part) for part in re.split(r"[;|\s]+", text) if part)


def _are_smiles(column: str, texts: list[str]) -> bool:
    """Whether these are SMILES: by the name of the column, or because RDKit can read them and they are not words."""
    return "smiles" in column.lower() or are_smiles(texts)
