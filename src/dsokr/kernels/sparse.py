"""Sparse vectors of features, and outputs as sums of such vectors over their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from dsokr.compute import compiled
from dsokr.graphs import starts_of
from dsokr.kernels.hashing import pair_all


@dataclass(frozen=True, eq=False)
class Features:
    """Sparse vectors: row i has the ``values`` from ``indptr[i]`` to ``indptr[i + 1]``, at the coordinates ``ids``.

    A coordinate occurs once in a row. Its id is a 64-bit hash of what it stands for, so that rows computed at different
    times share coordinates without a vocabulary (see :mod:`dsokr.kernels.hashing`).
    """

    indptr: np.ndarray  # (n + 1,) int64
    ids: np.ndarray  # uint64
    values: np.ndarray  # float64

    @staticmethod
    def of(indptr: np.ndarray, items: np.ndarray, values: np.ndarray | None = None) -> Features:
        """Sum items: row i has those from ``indptr[i]`` to ``indptr[i + 1]``, and each counts its value, or one.

        >>> Features.of(np.array([0, 3, 4]), np.array([7, 5, 7, 5]))
        Features(indptr=array([0, 2, 3]), ids=array([5, 7, 5], dtype=uint64), values=array([1., 2., 1.]))
        """
        values = np.ones(len(items)) if values is None else values.astype(np.float64)
        return Features(*_merge(indptr, items.astype(np.uint64), values))  # astype copies: these are overwritten

    @staticmethod
    def joined(parts: Sequence[Features]) -> Features:
        """Concatenate vectors, after giving each part coordinates of its own, so that inner products add up."""
        indptr = reduce(np.add, (part.indptr for part in parts))
        ids, values = np.empty(indptr[-1], np.uint64), np.empty(indptr[-1])
        free = indptr[:-1].copy()
        for number, part in enumerate(parts):
            _append(part.indptr, pair_all(np.uint64(number), part.ids), part.values, free, ids, values)
        return Features(indptr, ids, values)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield a hashable key of every row, equal for equal rows."""
        for start, stop in pairwise(self.indptr):
            order = start + self.ids[start:stop].argsort()
            yield self.ids[order].tobytes(), self.values[order].tobytes()

    def scaled(self, factors: np.ndarray | float) -> Features:
        """Return the rows times ``factors``, one for each row or one for all."""
        of_rows = np.broadcast_to(factors, len(self))
        return Features(self.indptr, self.ids, self.values * np.repeat(of_rows, np.diff(self.indptr)))

    def spread(self, rows: np.ndarray, count: int) -> Features:
        """Return ``count`` rows: these at ``rows`` (ascending), and zero elsewhere."""
        sizes = np.zeros(count, np.int64)
        sizes[rows] = np.diff(self.indptr)
        return Features(starts_of(sizes), self.ids, self.values)

    def squared_norms(self) -> np.ndarray:  # (n,)
        rows = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        return np.bincount(rows, self.values**2, minlength=len(self)).astype(np.float64)  # bincount of nothing is int


@dataclass(frozen=True, eq=False)
class Split:
    """Outputs as sums over their places, the atoms of a graph, the letters of a string, the columns of a row.

    φ(y_i) is the sum of the rows ``parts`` from ``starts[i]`` to ``starts[i + 1]``, and ``places`` says where in y_i
    each of them is.
    """

    starts: np.ndarray  # (n + 1,)
    places: np.ndarray  # (rows,) int64
    parts: Features

    @staticmethod
    def of(starts: np.ndarray, parts: Features) -> Split:
        """Number the places of every output from 0 on."""
        return Split(starts, np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts)), parts)

    @staticmethod
    def at(starts: np.ndarray, rows: np.ndarray, items: np.ndarray, values: np.ndarray) -> Split:
        """Divide items equally among their rows: item i has the rows ``rows[i]`` (several columns)."""
        times = rows.shape[1]
        order = rows.ravel().argsort(kind="stable")
        indptr = starts_of(np.bincount(rows.ravel(), minlength=starts[-1]))
        return Split.of(
            starts, Features.of(indptr, np.repeat(items, times)[order], np.repeat(values / times, times)[order])
        )

    @staticmethod
    def joined(splits: Sequence[Split]) -> Split:
        """Concatenate features as :meth:`Features.joined` does; if the places differ, those of whole outputs."""
        first, *others = splits
        if not all(np.array_equal(first.starts, s.starts) and np.array_equal(first.places, s.places) for s in others):
            splits = [s.whole() for s in splits]
        return Split(splits[0].starts, splits[0].places, Features.joined([s.parts for s in splits]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def whole(self) -> Split:
        """Return every output as one place."""
        sums = Features.of(self.parts.indptr[self.starts], self.parts.ids, self.parts.values)
        return Split.of(np.arange(len(self.starts)), sums)

    def scaled(self, factors: np.ndarray | float) -> Split:
        """Return the outputs times ``factors``, one for each output or one for all."""
        of_outputs = np.broadcast_to(factors, len(self))
        return Split(self.starts, self.places, self.parts.scaled(np.repeat(of_outputs, np.diff(self.starts))))


@compiled
def _merge(indptr: np.ndarray, ids: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort every row by id and sum the values of equal ids, in place."""
    starts = np.zeros(len(indptr), np.int64)
    free = 0
    for i in range(len(indptr) - 1):
        row, values = ids[indptr[i] : indptr[i + 1]], sums[indptr[i] : indptr[i + 1]]
        _sort(row, values)
        for k in range(len(row)):
            if free > starts[i] and row[k] == ids[free - 1]:
                sums[free - 1] += values[k]
            else:
                ids[free], sums[free] = row[k], values[k]
                free += 1
        starts[i + 1] = free
    return starts, ids[:free].copy(), sums[:free].copy()


@compiled
def _sort(keys: np.ndarray, values: np.ndarray) -> None:
    if len(keys) > 40:
        order = np.argsort(keys)
        keys[:], values[:] = keys[order], values[order]
        return
    for k in range(1, len(keys)):  # insertion sort: most rows are short
        key, value = keys[k], values[k]
        j = k - 1
        while j >= 0 and keys[j] > key:
            keys[j + 1], values[j + 1] = keys[j], values[j]
            j -= 1
        keys[j + 1], values[j + 1] = key, value


@compiled
def _append(
    indptr: np.ndarray, ids: np.ndarray, values: np.ndarray, free: np.ndarray, to: np.ndarray, to_values: np.ndarray
) -> None:
    for i in range(len(free)):
        for k in range(indptr[i], indptr[i + 1]):
            to[free[i]], to_values[free[i]] = ids[k], values[k]
            free[i] += 1
