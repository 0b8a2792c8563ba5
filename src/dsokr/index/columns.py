"""The columns of candidates, and conditions on them: a number within a window, or a cell equal to a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from dsokr.decoders.pools import Column, Pool, size_of
from dsokr.errors import InputError


class Condition(NamedTuple):
    """For every input the values that its candidates must have in a column: from ``low`` to ``high``, inclusive."""

    column: str
    low: np.ndarray  # (n,): float64 for numbers, int64 for texts by their hash
    high: np.ndarray  # (n,)

    @staticmethod
    def within(column: str, low: Any, high: Any) -> Condition:
        return Condition(column, np.asarray(low, np.float64), np.asarray(high, np.float64))

    @staticmethod
    def equal(column: str, texts: Iterable[str]) -> Condition:
        hashes = as_hashes(texts)
        return Condition(column, hashes, hashes)

    def take(self, at: Any) -> Condition:
        return Condition(self.column, self.low[at], self.high[at])


def as_hashes(texts: Iterable[str]) -> np.ndarray:  # (n,) int64
    """64-bit hashes of texts; surrounding spaces are ignored."""
    digests = (blake2b(text.strip().encode(errors="surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), np.int64)


def as_numbers(texts: Iterable[str]) -> np.ndarray:  # (n,) float64
    """Texts as numbers, NaN where a text is not a finite number."""
    return np.fromiter(map(as_number, texts), np.float64)


def as_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


class Columns:
    """Columns of candidates by name, each as numbers and as hashes of its texts, (c,) both.

    The first ``main`` candidates may be sorted by one of them, and the others were added later.
    """

    def __init__(self, arrays: Mapping[str, tuple[np.ndarray, np.ndarray]], main: int | None = None):
        self.names = list(arrays)
        self._columns = {name: tuple(Column(part, main) for part in pair) for name, pair in arrays.items()}

    @staticmethod
    def of(cells: Mapping[str, Sequence[str]]) -> Columns:
        """Read the cells of columns.

        >>> columns = Columns.of({"mass": ["46.04", "78.05", "?"], "formula": ["C2H6O", "C6H6", ""]})
        >>> columns.find([Condition.within("mass", [40], [90]), Condition.equal("formula", ["C6H6"])])
        [tensor([1])]
        """
        return Columns({name: (as_numbers(texts), as_hashes(texts)) for name, texts in cells.items()})

    def find(self, conditions: Sequence[Condition]) -> list[Pool]:
        """The candidates of every input that meet all conditions. There is at least one condition."""
        first, *others = conditions
        pools = self._column(first).find(first.low, first.high)
        for other in others:
            column, ends = self._column(other), zip(other.low, other.high, strict=True)
            pools = [column.keep(pool, *two) if size_of(pool) else pool for pool, two in zip(pools, ends, strict=True)]
        return pools

    def kinds(self) -> dict[str, str]:
        """Whether most cells of a column are numbers or other texts, by name."""
        return {name: "text" if np.isnan(self.numbers(name)).mean() > 0.5 else "number" for name in self.names}

    def numbers(self, name: str) -> np.ndarray:  # (c,)
        return self._columns[name][0].values

    def _column(self, condition: Condition) -> Column:
        check_column(condition.column, self.names)
        numbers, hashes = self._columns[condition.column]
        if condition.low.dtype == np.int64:
            return hashes
        if numbers.is_empty:
            raise no_numbers(condition.column)
        return numbers


def check_column(name: str, names: Sequence[str]) -> None:
    if name not in names:
        there = f"Their columns: {', '.join(names)}." if names else "They have no columns."
        raise InputError(f"The candidates have no column {name!r}. {there}")


def no_numbers(column: str) -> InputError:
    return InputError(f"The column {column!r} of the candidates holds no numbers.")
