"""Kernels with a sparse feature map, k(y, y') = ⟨φ(y), φ(y')⟩, computed on whole batches."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dsokr.compute import compiled
from dsokr.errors import InputError, UndefinedAt
from dsokr.kernels.base import Evaluate, Kernel, Scaled, Sum, terms
from dsokr.kernels.hashing import pair_all
from dsokr.kernels.postings import Postings
from dsokr.outputs import Outputs


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
        """Concatenate vectors that share no coordinates, see :meth:`tagged`: inner products add up."""
        indptr = reduce(np.add, (part.indptr for part in parts))
        ids, values = np.empty(indptr[-1], np.uint64), np.empty(indptr[-1])
        free = indptr[:-1].copy()
        for part in parts:
            _append(part.indptr, part.ids, part.values, free, ids, values)
        return Features(indptr, ids, values)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield a hashable key of every row, equal for equal rows."""
        for start, stop in pairwise(self.indptr):
            order = start + self.ids[start:stop].argsort()
            yield self.ids[order].tobytes(), self.values[order].tobytes()

    def tagged(self, tag: int) -> Features:
        """Return the same vectors in coordinates that no other tag shares."""
        return Features(self.indptr, pair_all(np.uint64(tag), self.ids), self.values)

    def scaled(self, factors: np.ndarray) -> Features:
        """Return the rows times ``factors``, one for each."""
        return Features(self.indptr, self.ids, self.values * np.repeat(factors, np.diff(self.indptr)))

    def spread(self, rows: np.ndarray, count: int) -> Features:
        """Return ``count`` rows, which are these at ``rows`` (ascending) and zero elsewhere."""
        sizes = np.zeros(count + 1, np.int64)
        sizes[1 + rows] = np.diff(self.indptr)
        return Features(np.cumsum(sizes), self.ids, self.values)

    def squared_norms(self) -> np.ndarray:  # (n,)
        rows = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        return np.bincount(rows, self.values**2, minlength=len(self)).astype(np.float64)  # bincount of nothing is int


class FeatureKernel(Kernel):
    """k(y, y') = ⟨φ(y), φ(y')⟩ with a sparse φ. A new kernel defines ``features``; everything else follows.

    Evaluating n outputs against m anchors costs n + m feature maps and one addition for every coordinate that an output
    shares with an anchor.
    """

    @abstractmethod
    def features(self, ys: Outputs) -> Features:
        """Compute φ(y) for every output."""

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
        return Features.joined([k.features(ys).tagged(i) for i, k in enumerate(self.kernels)])


@dataclass(frozen=True)
class ScaledFeatures(FeatureKernel, Scaled):
    """factor · k(y, y'), with the feature map √factor φ(y)."""

    kernel: FeatureKernel
    factor: float

    def features(self, ys: Outputs) -> Features:
        features = self.kernel.features(ys)
        return replace(features, values=math.sqrt(self.factor) * features.values)


@dataclass(frozen=True)
class NormalizedFeatures(FeatureKernel):
    """k(y, y') / √(k(y, y) k(y', y')), with the feature map φ(y) / ‖φ(y)‖."""

    kernel: FeatureKernel

    def features(self, ys: Outputs) -> Features:
        features = self.kernel.features(ys)
        squared = features.squared_norms()
        if not (squared > 0).all():
            at = int(np.flatnonzero(squared <= 0)[0])
            raise UndefinedAt(at, f"{self.kernel} cannot be normalised", "that output has no features")
        return features.scaled(1 / np.sqrt(squared))

    def normalized(self) -> FeatureKernel:
        return self


def check_features(owner: Kernel, name: str, kernel: object) -> None:
    if not isinstance(kernel, FeatureKernel):
        raise InputError(f"{type(owner).__name__}.{name} must be a FeatureKernel. Got {kernel!r}.")


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
