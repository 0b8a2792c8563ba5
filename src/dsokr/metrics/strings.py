"""How well predicted strings match the true ones."""

from collections.abc import Sequence

from dsokr.errors import InputError


def levenshtein(a: str, b: str) -> int:
    """The least number of letters to insert, delete or substitute that turns one string into the other.

    >>> levenshtein("kernel", "learn")
    4
    """
    row = list(range(len(b) + 1))  # the distances between what was read of a and all beginnings of b
    for i, letter in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(diagonal + (letter != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def char_error(predicted: Sequence[str], true: Sequence[str]) -> float:
    """The character error rate: letters to change by Levenshtein's distance, over the letters there are.

    >>> char_error(["cat", "horse"], ["cart", "horse"])
    0.1111111111111111
    """
    _check(predicted, true)
    letters = sum(map(len, true))
    if not letters:
        raise InputError("The character error rate is a share of the true strings' letters. Got none.")
    return sum(levenshtein(a, b) for a, b in zip(predicted, true, strict=True) if a != b) / letters


def word_accuracy(predicted: Sequence[str], true: Sequence[str]) -> float:
    """The share of strings that are predicted without any error.

    >>> word_accuracy(["cat", "horse"], ["cart", "horse"])
    0.5
    """
    _check(predicted, true)
    return sum(a == b for a, b in zip(predicted, true, strict=True)) / len(true)


def _check(predicted: Sequence[str], true: Sequence[str]) -> None:
    if len(predicted) != len(true) or not len(true):
        raise InputError(
            f"As many predicted strings as true ones are needed, at least one. Got {len(predicted)} and {len(true)}."
        )
