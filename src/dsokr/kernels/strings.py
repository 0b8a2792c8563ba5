"""Kernels on strings, through the short strings that occur in them. A string too short for any has no features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from dsokr.compute import compiled
from dsokr.errors import InputError, check_integers
from dsokr.graphs import starts_of
from dsokr.kernels.features import FeatureKernel, Features
from dsokr.kernels.hashing import pair
from dsokr.outputs import Outputs


@dataclass(frozen=True)
class NGram(FeatureKernel):
    """Σ_n w_n Σ_u #_u(s) #_u(s'), where #_u counts the places at which the n letters of u stand in s.

    ``n`` is one length or several; ``weights`` has one w_n > 0 for each, or is None for ones.

    >>> NGram(2)(["banana"], ["banana", "bandana"])  # ba, an, na in the first; an twice and na once in the second
    tensor([[9., 7.]], dtype=torch.float64)
    """

    n: int | tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_integers(self, n=1)
        if len(set(self._lengths())) < max(1, len(self._lengths())):
            raise InputError(f"NGram.n must be different lengths, at least one. Got {self.n}.")
        if self.weights is not None and (len(self.weights) != len(self._lengths()) or not min(self.weights) > 0):
            raise InputError(f"NGram.weights must be one positive number per length {self.n}. Got {self.weights}.")

    def _lengths(self) -> tuple[int, ...]:
        return (self.n,) if isinstance(self.n, int) else tuple(self.n)

    def features(self, ys: Outputs) -> Features:
        letters, starts = encoded(ys)
        weights = self.weights or (1.0,) * len(self._lengths())
        parts = []
        for n, weight in zip(self._lengths(), weights, strict=True):
            places, names, _ = _spread(letters, starts, np.arange(n)[None], np.ones(1))
            parts.append(Features.of(places, names, np.full(len(names), np.sqrt(weight))).tagged(n))
        return Features.joined(parts)


@dataclass(frozen=True)
class GappyNGram(FeatureKernel):
    """Σ_u φ_u(s) φ_u(s'), where φ_u(s) = Σ decay^(letters left out) over the ways to find the n letters of u in s, in
    order, with at most ``gaps`` letters left out between the first and the last.

    >>> GappyNGram(2, gaps=1, decay=0.5)(["cat"], ["cart"])  # ca; at with weight 1 · ½; ct is too far apart in cart
    tensor([[1.5000]], dtype=torch.float64)
    """

    n: int
    gaps: int
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_integers(self, n=1, gaps=0)
        if not 0 < self.decay <= 1:
            raise InputError(f"GappyNGram.decay must be above 0 and at most 1. Got {self.decay}.")

    def features(self, ys: Outputs) -> Features:
        offsets = np.array([(0, *rest) for rest in combinations(range(1, self.n + self.gaps), self.n - 1)])
        left_out = offsets[:, -1] + 1 - self.n
        return Features.of(*_spread(*encoded(ys), offsets, self.decay ** left_out.astype(np.float64)))


@dataclass(frozen=True)
class Mismatch(FeatureKernel):
    """Σ_u φ_u(s) φ_u(s'), where φ_u(s) counts the places in s whose n letters differ from u in at most ``mismatches``.

    u runs over all strings of n letters of the alphabet; other letters are refused. Every place has
    Σ_{i ≤ mismatches} (n choose i) (|alphabet| − 1)^i features.

    >>> Mismatch(2, 1, "AB")(["AA"], ["AA", "BB"])  # AA is close to AA, AB, BA and BB to AB, BA, BB
    tensor([[3., 2.]], dtype=torch.float64)
    """

    n: int
    mismatches: int
    alphabet: str

    def __post_init__(self) -> None:
        check_integers(self, n=1, mismatches=0)
        if self.mismatches > self.n:
            raise InputError(f"Mismatch.mismatches must be at most n={self.n}. Got {self.mismatches}.")
        if not self.alphabet or len(set(self.alphabet)) < len(self.alphabet):
            raise InputError(f"Mismatch.alphabet must hold different letters, at least one. Got {self.alphabet!r}.")

    def features(self, ys: Outputs) -> Features:
        letters, starts = encoded(ys)
        known = np.sort(np.array(list(map(ord, self.alphabet))))
        numbers = np.minimum(np.searchsorted(known, letters), len(known) - 1)
        if (unknown := known[numbers] != letters).any():
            where = int(np.flatnonzero(unknown)[0])
            index = int(np.searchsorted(starts, where, side="right")) - 1
            raise InputError(f"{chr(letters[where])!r} in {ys[index]!r} at index {index} is not in {self}'s alphabet.")
        return Features.of(*_changed(numbers, starts, np.array(list(self._shifts())), len(known)))

    def _shifts(self) -> Iterable[tuple[int, ...]]:
        """Everything that can happen to n letters: how far each moves along the alphabet, wrapping round."""
        for changes in range(self.mismatches + 1):
            for places in combinations(range(self.n), changes):
                for steps in product(range(1, len(self.alphabet)), repeat=changes):
                    moved = dict(zip(places, steps, strict=True))
                    yield tuple(moved.get(i, 0) for i in range(self.n))


def encoded(strings: Outputs) -> tuple[np.ndarray, np.ndarray]:
    """All letters one after the other as code points, and where each string starts."""
    for index, text in enumerate(strings):
        if not isinstance(text, str):
            raise InputError(f"String kernels take strings. Got {type(text).__name__} at index {index}.")
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    letters = np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)
    return letters.astype(np.int64), starts_of(lengths)


@compiled
def _spread(
    letters: np.ndarray, starts: np.ndarray, offsets: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The strings read off at offsets from every place: where those of each text start, their names and weights."""
    patterns, n = offsets.shape
    most = len(letters) * patterns
    places, names, values = np.zeros(len(starts), np.int64), np.empty(most, np.uint64), np.empty(most)
    free = 0
    for s in range(len(starts) - 1):
        for first in range(starts[s], starts[s + 1]):
            for p in range(patterns):
                if first + offsets[p, n - 1] < starts[s + 1]:
                    name = np.uint64(0)
                    for i in range(n):
                        name = pair(name, letters[first + offsets[p, i]])
                    names[free], values[free] = name, weights[p]
                    free += 1
        places[s + 1] = free
    return places, names[:free].copy(), values[:free].copy()


@compiled
def _changed(letters: np.ndarray, starts: np.ndarray, shifts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """All strings that n letters in a row become under the shifts: where those of each text start, and their names."""
    patterns, n = shifts.shape
    places, names = np.zeros(len(starts), np.int64), np.empty(len(letters) * patterns, np.uint64)
    free = 0
    for s in range(len(starts) - 1):
        for first in range(starts[s], starts[s + 1] - n + 1):
            for p in range(patterns):
                name = np.uint64(0)
                for i in range(n):
                    name = pair(name, (letters[first + i] + shifts[p, i]) % size)
                names[free] = name
                free += 1
        places[s + 1] = free
    return places, names[:free].copy()
