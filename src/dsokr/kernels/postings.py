"""Inner products of sparse vectors with a fixed set of them, the anchors, through lists of who has a coordinate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from dsokr.compute import compiled, run_in_threads
from dsokr.graphs import starts_of
from dsokr.kernels.hashing import find, number

if TYPE_CHECKING:
    from dsokr.kernels.features import Features

COMMON = 1 / 8  # share of the anchors above which a coordinate is faster as a dense vector
SHARE = 256  # rows of products that a thread does at once
RARE = 4  # anchors with a coordinate up to which their weights are looked up one by one, not added up in advance


@dataclass(frozen=True, eq=False)
class Postings:
    """Anchors by coordinate: those with ``ids[c]`` are ``rows[starts[c]:starts[c + 1]]``, with ``values`` there."""

    ids: np.ndarray  # (coordinates,) uint64
    slots: np.ndarray  # a hash table of positions in ids
    starts: np.ndarray  # (coordinates + 1,)
    rows: np.ndarray  # uint32, which compiled code need not check for negative indices
    values: np.ndarray  # float64
    count: int  # anchors

    @staticmethod
    def of(anchors: Features) -> Postings:
        ids, slots, columns = number(anchors.ids)
        starts = starts_of(np.bincount(columns, minlength=len(ids)))
        return Postings(ids, slots, starts, *_turned(anchors.indptr, columns, anchors.values, starts), len(anchors))

    def products(self) -> Callable[[Features], Tensor]:  # features -> (n, anchors)
        """⟨φ_i, anchor_j⟩: coordinates that many anchors have as dense vectors, the others by their lists.

        The few common coordinates (atoms of carbon, say) would otherwise take most of the time.
        """
        common = np.diff(self.starts) > COMMON * self.count
        place = np.where(common, np.cumsum(common) - 1, -1)
        dense = self._dense(place)

        def evaluate(features: Features) -> Tensor:
            out = np.empty((len(features), self.count))  # numpy asks for huge pages, torch does not: twice as fast
            arrays = (features.indptr, self.columns(features), features.values, place, dense)
            lists = (self.starts, self.rows, self.values)
            run_in_threads(lambda start, stop: _add_up(start, stop, *arrays, *lists, out), len(features), SHARE)
            return torch.from_numpy(out)

        return evaluate

    def combined(self, weights: Tensor) -> Callable[[Features], Tensor]:  # weights (m, anchors); features -> (n, m)
        """⟨φ_i, Σ_j weights[l, j] anchor_j⟩, on the device of the weights.

        Σ_j weights[:, j] anchor_j is a dense table with a line of m numbers for every coordinate. Most coordinates,
        though, belong to few anchors: their line is spelled out as those anchors' columns of the weights. So the table
        takes little more memory than the weights; time is a few times m additions per coordinate of an output.
        """
        sizes = np.diff(self.starts)
        frequent = sizes > RARE
        columns = weights.T.to(torch.float64)
        own = np.repeat(frequent, sizes)  # postings whose coordinate has a line of its own
        lines = _weighted_sums(starts_of(sizes[frequent]), self.rows[own], self.values[own], columns)
        table = torch.cat([columns, lines])

        first = np.zeros(len(self.rows), bool)
        first[self.starts[:-1]] = True
        rows, keep = self.rows.astype(np.int64), ~own | first
        rows[own & first] = self.count + np.arange(len(lines))
        spelled_out = (starts_of(keep)[self.starts], rows[keep], np.where(own, 1.0, self.values)[keep])

        def evaluate(features: Features) -> Tensor:
            expanded = _spell_out(features.indptr, self.columns(features), features.values, *spelled_out)
            return _weighted_sums(*expanded, table)

        return evaluate

    def summed(self, weights: np.ndarray) -> np.ndarray:  # (n, anchors) -> (n, coordinates)
        """Σ_j weights[i, j] anchor_j: what every combination of anchors has at each coordinate, in single precision."""
        out = np.zeros((len(weights), len(self.ids)), np.float32)
        share = max(1, 1_000_000 // max(1, len(self.rows)))
        by_row = (self.starts, self.rows, self.values)
        run_in_threads(lambda start, stop: _summed(start, stop, weights, *by_row, out), len(weights), share)
        return out

    def columns(self, features: Features) -> np.ndarray:
        """Where each of the features' coordinates stands in ``ids``, −1 for those no anchor has."""
        return _look_up(self.slots, self.ids, features.ids)

    def _dense(self, place: np.ndarray) -> np.ndarray:  # (lines, anchors)
        """Coordinate c as line ``place[c]`` of a matrix, for those with a place."""
        line = np.repeat(place, np.diff(self.starts))
        dense = np.zeros((place.max(initial=-1) + 1, self.count))
        dense[line[line >= 0], self.rows[line >= 0]] = self.values[line >= 0]
        return dense


def _weighted_sums(indptr: np.ndarray, rows: np.ndarray, values: np.ndarray, table: Tensor) -> Tensor:  # (n, m)
    """Σ_k values[k] table[rows[k]] over each range of indptr: a sparse times a dense matrix, on any device."""
    if not len(rows):  # embedding_bag has no empty case
        return table.new_zeros(len(indptr) - 1, table.shape[1])
    index, offsets, scale = (
        torch.from_numpy(array).to(table.device) for array in (rows.astype(np.int64), indptr, values)
    )
    return embedding_bag(index, table, offsets, mode="sum", per_sample_weights=scale, include_last_offset=True)


@compiled
def _turned(
    indptr: np.ndarray, columns: np.ndarray, values: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and values sorted by column: the transpose of a sparse matrix."""
    free = starts[:-1].copy()
    rows, turned = np.empty(len(columns), np.uint32), np.empty(len(columns))
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            rows[free[columns[k]]], turned[free[columns[k]]] = i, values[k]
            free[columns[k]] += 1
    return rows, turned


@compiled
def _look_up(slots: np.ndarray, ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    found = np.empty(len(wanted), np.int64)
    for k in range(len(wanted)):
        found[k] = find(slots, ids, wanted[k])
    return found


@compiled
def _add_up(
    start: int,
    stop: int,
    indptr: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    place: np.ndarray,
    dense: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
) -> None:
    lines, factors = np.zeros(len(dense) + 4, np.int64), np.zeros(len(dense) + 4)
    for i in range(start, stop):
        sums = out[i]
        sums[:] = 0
        count = 0
        for k in range(indptr[i], indptr[i + 1]):
            c, value = columns[k], values[k]
            if c >= 0 and place[c] >= 0:
                lines[count], factors[count] = place[c], value
                count += 1
            elif c >= 0:
                for t in range(starts[c], starts[c + 1]):
                    sums[rows[t]] += value * weights[t]
        factors[count : count + 4] = 0
        for q in range(0, count, 4):  # four lines at a time, so that the sums are read and written less often
            v, w, x, y = dense[lines[q]], dense[lines[q + 1]], dense[lines[q + 2]], dense[lines[q + 3]]
            fv, fw, fx, fy = factors[q], factors[q + 1], factors[q + 2], factors[q + 3]
            for j in range(len(sums)):
                sums[j] += fv * v[j] + fw * w[j] + fx * x[j] + fy * y[j]


@compiled
def _spell_out(
    indptr: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every coordinate replaced by its postings: indptr, rows, values."""
    total = 0
    for c in columns:
        if c >= 0:
            total += starts[c + 1] - starts[c]
    all_starts, all_rows, all_values = np.zeros(len(indptr), np.int64), np.empty(total, np.int64), np.empty(total)
    free = 0
    for i in range(len(indptr) - 1):
        for k in range(indptr[i], indptr[i + 1]):
            if columns[k] >= 0:
                for t in range(starts[columns[k]], starts[columns[k] + 1]):
                    all_rows[free], all_values[free] = rows[t], values[k] * weights[t]
                    free += 1
        all_starts[i + 1] = free
    return all_starts, all_rows, all_values


@compiled
def _summed(
    start: int,
    stop: int,
    weights: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    out: np.ndarray,
) -> None:
    for i in range(start, stop):
        own = weights[i]
        for c in range(len(starts) - 1):
            total = 0.0
            for k in range(starts[c], starts[c + 1]):
                total += values[k] * own[rows[k]]
            out[i, c] = total
