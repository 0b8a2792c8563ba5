"""Kernels with a sparse feature map, k(y, y') = ⟨φ(y), φ(y')⟩, computed on whole batches through an inverted index."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from dsokr.compute import compiled, run_in_threads
from dsokr.errors import UndefinedAt
from dsokr.graphs import starts_of
from dsokr.kernels.base import Evaluate, Kernel, Scaled, Sum, terms
from dsokr.kernels.hashing import find, number
from dsokr.kernels.sparse import Features, Split
from dsokr.outputs import Outputs

COMMON = 1 / 8  # share of the anchors above which a coordinate is faster as a dense vector
RARE = 4  # anchors with a coordinate up to which their weights are looked up one by one, not summed in advance
SHARE = 256  # rows of products that a thread computes at once


class Sparse(NamedTuple):
    """A sparse matrix: row i has ``values`` at ``columns``, from ``starts[i]`` to ``starts[i + 1]``."""

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Postings:
    """An inverted index of the anchors: row c of ``lists`` holds the anchors with the coordinate ``ids[c]``."""

    ids: np.ndarray  # (coordinates,) uint64
    slots: np.ndarray  # hash table of the ids, see dsokr.kernels.hashing.find
    lists: Sparse  # (coordinates, anchors)
    count: int  # anchors

    @staticmethod
    def of(anchors: Features) -> Postings:
        ids, slots, columns = number(anchors.ids)
        shape = (len(anchors), len(ids))
        lists = sp.csr_array((anchors.values, columns, anchors.indptr), shape=shape).tocsc()
        unsigned = lists.indices.astype(np.uint32)  # faster as indices in compiled code
        return Postings(ids, slots, Sparse(lists.indptr.astype(np.int64), unsigned, lists.data), len(anchors))

    def columns(self, features: Features) -> np.ndarray:
        """Return the position in ``ids`` of each of the features' coordinates, −1 for those that no anchor has."""
        return _find_all(self.slots, self.ids, features.ids)

    def products(self) -> Callable[[Features], Tensor]:  # features -> (n, anchors)
        """Return the function that computes ⟨φ_i, anchor_j⟩.

        Coordinates that many anchors have (carbon atoms, say) are dense vectors, as they would take most of the time.
        """
        lists = self.lists
        common = np.diff(lists.starts) > COMMON * self.count
        dense_row = np.where(common, np.cumsum(common) - 1, -1)
        row = np.repeat(dense_row, np.diff(lists.starts))
        dense = np.zeros((common.sum(), self.count))
        dense[row[row >= 0], lists.columns[row >= 0]] = lists.values[row >= 0]

        def evaluate(features: Features) -> Tensor:
            out = np.empty((len(features), self.count))  # numpy requests huge pages, torch does not: twice as fast
            rows = Sparse(features.indptr, self.columns(features), features.values)
            work = lambda start, stop: _multiply(start, stop, rows, lists, dense_row, dense, out)  # noqa: E731
            run_in_threads(work, len(features), SHARE)
            return torch.from_numpy(out)

        return evaluate

    def combined(self, weights: Tensor) -> Callable[[Features], Tensor]:  # weights (m, anchors); features -> (n, m)
        """Return the function that computes ⟨φ_i, Σ_j weights[l, j] anchor_j⟩, on the device of the weights.

        Σ_j weights[:, j] anchor_j is a table with a line of m numbers for every coordinate. Most coordinates belong to
        few anchors; their lines are not stored, but summed from those anchors' columns of the weights. So the table
        takes little more memory than the weights, and an output costs a few times m additions per coordinate.
        """
        starts, anchors, values = self.lists
        sizes = np.diff(starts)
        is_stored = sizes > RARE
        stored = np.repeat(is_stored, sizes)  # postings whose coordinate has a line of its own
        columns = weights.T.to(torch.float64)
        lines = _sum_rows(starts_of(sizes[is_stored]), anchors[stored], values[stored], columns)
        table = torch.cat([columns, lines])

        # what coordinate c sums: as many lines as lengths[c], from firsts[c] on; the last c is unknown to the anchors
        rows, factors = np.append(anchors, self.count + np.arange(len(lines))), np.append(values, np.ones(len(lines)))
        firsts = np.append(np.where(is_stored, len(anchors) + np.cumsum(is_stored) - 1, starts[:-1]), 0)
        lengths = np.append(np.where(is_stored, 1, sizes), 0)

        def evaluate(features: Features) -> Tensor:
            columns = self.columns(features)
            many = lengths[columns]
            ends = starts_of(many)
            at = np.repeat(firsts[columns] - ends[:-1], many) + np.arange(ends[-1])
            return _sum_rows(ends[features.indptr], rows[at], np.repeat(features.values, many) * factors[at], table)

        return evaluate

    def summed(self, weights: np.ndarray) -> np.ndarray:  # (n, anchors) -> (n, coordinates)
        """Return Σ_j weights[i, j] anchor_j, in single precision."""
        out = np.zeros((len(weights), len(self.ids)), np.float32)
        share = max(1, 1_000_000 // max(1, len(self.lists.columns)))
        run_in_threads(lambda start, stop: _sum(start, stop, weights, self.lists, out), len(weights), share)
        return out


class FeatureKernel(Kernel):
    """k(y, y') = ⟨φ(y), φ(y')⟩ with a sparse φ. A new kernel defines ``features``; everything else follows.

    Evaluating n outputs against m anchors costs n + m feature maps and one addition for every coordinate that an output
    shares with an anchor.
    """

    @abstractmethod
    def features(self, ys: Outputs) -> Features:
        """Compute φ(y) for every output."""

    def split(self, ys: Outputs) -> Split:
        """Say where in an output its features are; here there is one place, the whole output."""
        features = self.features(ys)
        return Split.of(np.arange(len(features) + 1), features)

    def __call__(self, a: Outputs, b: Outputs) -> Tensor:
        return self.against(b)(a)

    def diag(self, a: Outputs) -> Tensor:
        return torch.from_numpy(self.features(a).squared_norms())

    def against(self, anchors: Outputs, weights: Tensor | None = None) -> Evaluate:
        """Build an inverted index of the anchors; with weights, sum them by coordinate."""
        postings = Postings.of(self.features(anchors))
        evaluate = postings.products() if weights is None else postings.combined(weights)
        return lambda ys: evaluate(self.features(ys))

    def normalized(self) -> FeatureKernel:
        return NormalizedFeatures(self)

    def __add__(self, other: Kernel) -> Kernel:
        if isinstance(other, FeatureKernel):
            return FeatureSum((*terms(self, Sum), *terms(other, Sum)))
        return super().__add__(other)

    def __mul__(self, other: Kernel | float) -> Kernel:
        return ScaledFeatures(self, float(other)) if isinstance(other, int | float) else super().__mul__(other)


@dataclass(frozen=True)
class FeatureSum(FeatureKernel, Sum):
    """k1(y, y') + k2(y, y') + …, whose feature map concatenates theirs."""

    kernels: tuple[FeatureKernel, ...]

    def features(self, ys: Outputs) -> Features:
        return Features.joined([k.features(ys) for k in self.kernels])

    def split(self, ys: Outputs) -> Split:
        return Split.joined([k.split(ys) for k in self.kernels])


@dataclass(frozen=True)
class ScaledFeatures(FeatureKernel, Scaled):
    """factor · k(y, y'), with the feature map √factor φ(y)."""

    kernel: FeatureKernel
    factor: float

    def features(self, ys: Outputs) -> Features:
        return self.kernel.features(ys).scaled(math.sqrt(self.factor))

    def split(self, ys: Outputs) -> Split:
        return self.kernel.split(ys).scaled(math.sqrt(self.factor))


@dataclass(frozen=True)
class NormalizedFeatures(FeatureKernel):
    """k(y, y') / √(k(y, y) k(y', y')), with the feature map φ(y) / ‖φ(y)‖."""

    kernel: FeatureKernel

    def features(self, ys: Outputs) -> Features:
        features = self.kernel.features(ys)
        return features.scaled(self._factors(features))

    def split(self, ys: Outputs) -> Split:
        return self.kernel.split(ys).scaled(self._factors(self.kernel.features(ys)))

    def _factors(self, features: Features) -> np.ndarray:  # (n,)
        squared = features.squared_norms()
        if not (squared > 0).all():
            at = int(np.flatnonzero(squared <= 0)[0])
            raise UndefinedAt(at, f"{self.kernel} cannot be normalised", "that output has no features")
        return 1 / np.sqrt(squared)

    def normalized(self) -> FeatureKernel:
        return self


def _sum_rows(starts: np.ndarray, columns: np.ndarray, values: np.ndarray, table: Tensor) -> Tensor:  # (n, m)
    """A sparse matrix (n, r), given as in :class:`Sparse`, times a table (r, m), on any device."""
    if not len(columns):  # embedding_bag has no empty case
        return table.new_zeros(len(starts) - 1, table.shape[1])
    arrays = columns.astype(np.int64), starts, values
    index, offsets, scale = (torch.from_numpy(array).to(table.device) for array in arrays)
    return embedding_bag(index, table, offsets, mode="sum", per_sample_weights=scale, include_last_offset=True)


@compiled
def _find_all(slots: np.ndarray, ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    found = np.empty(len(wanted), np.int64)
    for k in range(len(wanted)):
        found[k] = find(slots, ids, wanted[k])
    return found


@compiled
def _multiply(
    start: int, stop: int, a: Sparse, lists: Sparse, dense_row: np.ndarray, dense: np.ndarray, out: np.ndarray
) -> None:
    """Compute rows start to stop of a @ lists. Row c of lists is also ``dense[dense_row[c]]``, unless that is −1."""
    lines, factors = np.zeros(len(dense) + 4, np.int64), np.zeros(len(dense) + 4)
    for i in range(start, stop):
        sums = out[i]
        sums[:] = 0
        count = 0
        for k in range(a.starts[i], a.starts[i + 1]):
            c, value = a.columns[k], a.values[k]
            if c >= 0 and dense_row[c] >= 0:
                lines[count], factors[count] = dense_row[c], value
                count += 1
            elif c >= 0:
                for t in range(lists.starts[c], lists.starts[c + 1]):
                    sums[lists.columns[t]] += value * lists.values[t]
        factors[count : count + 4] = 0
        for q in range(0, count, 4):  # four lines at a time: the sums are read and written less often
            v, w, x, y = dense[lines[q]], dense[lines[q + 1]], dense[lines[q + 2]], dense[lines[q + 3]]
            fv, fw, fx, fy = factors[q], factors[q + 1], factors[q + 2], factors[q + 3]
            for j in range(len(sums)):
                sums[j] += fv * v[j] + fw * w[j] + fx * x[j] + fy * y[j]


@compiled
def _sum(start: int, stop: int, weights: np.ndarray, lists: Sparse, out: np.ndarray) -> None:
    for i in range(start, stop):
        own = weights[i]
        for c in range(len(lists.starts) - 1):
            total = 0.0
            for k in range(lists.starts[c], lists.starts[c + 1]):
                total += lists.values[k] * own[lists.columns[k]]
            out[i, c] = total
