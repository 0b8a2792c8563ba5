"""Kernels on strings, which compare the short strings that occur in them."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from dsokr.compute import compiled
from dsokr.errors import InputError, check_fields
from dsokr.graphs import starts_of
from dsokr.kernels.features import FeatureKernel, Features
from dsokr.kernels.hashing import pair
from dsokr.kernels.sparse import Split
from dsokr.outputs import Outputs

CODE_POINTS = 0x110000


class Substrings(NamedTuple):
    """Substrings of n letters that occur in strings; those of string s start at ``indptr[s]``."""

    indptr: np.ndarray
    names: np.ndarray
    firsts: np.ndarray  # their first letters, by position among the letters of all strings
    patterns: np.ndarray
    offsets: np.ndarray  # (patterns, n): from the first letter to each
    values: np.ndarray

    def letters(self) -> np.ndarray:  # (substrings, n)
        return self.firsts[:, None] + self.offsets[self.patterns]


class StringKernel(FeatureKernel):
    """Σ_u φ_u(s) φ_u(s'), where φ_u(s) adds up the values of the occurrences of u in s."""

    @abstractmethod
    def find(self, ys: Outputs) -> Iterable[Substrings]:
        """Find the occurrences, in groups; each group has coordinates of its own."""

    def features(self, ys: Outputs) -> Features:
        parts = [Features.of(found.indptr, found.names, found.values) for found in self.find(ys)]
        return parts[0] if len(parts) == 1 else Features.joined(parts)

    def split(self, ys: Outputs) -> Split:
        """An occurrence is divided equally among its letters."""
        starts = encode(ys)[1]
        return Split.joined([Split.at(starts, found.letters(), found.names, found.values) for found in self.find(ys)])


@dataclass(frozen=True)
class NGram(StringKernel):
    """Σ_n w_n Σ_u #_u(s) #_u(s'), where #_u(s) counts the occurrences in s of the string u of n letters.

    ``n`` is one length or several; ``weights`` holds one w_n > 0 for each (None: all 1). A string shorter than n has no
    features.

    >>> NGram(2)(["banana"], ["banana", "bandana"])  # ba, an, na in the first; an twice and na once in the second
    tensor([[9., 7.]], dtype=torch.float64)
    """

    n: int | tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if len(set(self._lengths())) < max(1, len(self._lengths())):
            raise InputError(f"NGram.n must be different lengths, at least one. Got {self.n}.")
        if self.weights is not None and (len(self.weights) != len(self._lengths()) or not min(self.weights) > 0):
            raise InputError(f"NGram.weights must be one positive number per length {self.n}. Got {self.weights}.")

    def _lengths(self) -> tuple[int, ...]:
        return (self.n,) if isinstance(self.n, int) else tuple(self.n)

    def find(self, ys: Outputs) -> Iterable[Substrings]:
        letters, starts = encode(ys)
        weights = self.weights or (1.0,) * len(self._lengths())
        for n, weight in zip(self._lengths(), weights, strict=True):
            offsets = np.arange(n)[None]
            found = _read_substrings(letters, starts, offsets, np.zeros_like(offsets), CODE_POINTS)
            yield Substrings(*found, offsets, np.full(len(found[1]), np.sqrt(weight)))


@dataclass(frozen=True)
class GappyNGram(StringKernel):
    """Σ_u φ_u(s) φ_u(s'), where φ_u(s) = Σ decay^(skipped letters) over all occurrences in s of the n letters of u, in
    order, with at most ``gaps`` skipped letters between the first and the last.

    >>> GappyNGram(2, gaps=1, decay=0.5)(["cat"], ["cart"])  # ca; at with weight 1 · ½; ct is too far apart in cart
    tensor([[1.5000]], dtype=torch.float64)
    """

    n: int
    gaps: int
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, gaps=0, decay="(0, 1]")

    def find(self, ys: Outputs) -> Iterable[Substrings]:
        offsets = np.array([(0, *rest) for rest in combinations(range(1, self.n + self.gaps), self.n - 1)])
        found = _read_substrings(*encode(ys), offsets, np.zeros_like(offsets), CODE_POINTS)
        values = self.decay ** (offsets[:, -1] + 1.0 - self.n)
        yield Substrings(*found, offsets, values[found[3]])


@dataclass(frozen=True)
class Mismatch(StringKernel):
    """Σ_u φ_u(s) φ_u(s'), where φ_u(s) counts the places in s whose n letters differ from u in at most ``mismatches``.

    u runs over all strings of n letters of the alphabet; other letters are refused. Every place adds
    Σ_{i ≤ mismatches} (n choose i) (|alphabet| − 1)^i features.

    >>> Mismatch(2, 1, "AB")(["AA"], ["AA", "BB"])  # AA matches AA, AB and BA; BB matches AB, BA and BB
    tensor([[3., 2.]], dtype=torch.float64)
    """

    n: int
    mismatches: int
    alphabet: str

    def __post_init__(self) -> None:
        check_fields(self, mismatches=0)
        if self.mismatches > self.n:
            raise InputError(f"Mismatch.mismatches must be at most n={self.n}. Got {self.mismatches}.")
        if not self.alphabet or len(set(self.alphabet)) < len(self.alphabet):
            raise InputError(f"Mismatch.alphabet must hold different letters, at least one. Got {self.alphabet!r}.")

    def find(self, ys: Outputs) -> Iterable[Substrings]:
        letters, starts = encode(ys)
        known = np.sort(np.array(list(map(ord, self.alphabet))))
        numbers = np.minimum(np.searchsorted(known, letters), len(known) - 1)
        if (unknown := known[numbers] != letters).any():
            where = int(np.flatnonzero(unknown)[0])
            index = int(np.searchsorted(starts, where, side="right")) - 1
            raise InputError(f"{chr(letters[where])!r} in {ys[index]!r} at index {index} is not in {self}'s alphabet.")
        shifts = np.array(list(self._shifts()))
        offsets = np.broadcast_to(np.arange(self.n), shifts.shape).copy()
        found = _read_substrings(numbers, starts, offsets, shifts, len(known))
        yield Substrings(*found, offsets, np.ones(len(found[1])))

    def _shifts(self) -> Iterable[tuple[int, ...]]:
        """Yield every change of n letters: how far each letter moves along the alphabet, modulo its size."""
        for changes in range(self.mismatches + 1):
            for places in combinations(range(self.n), changes):
                for steps in product(range(1, len(self.alphabet)), repeat=changes):
                    moved = dict(zip(places, steps, strict=True))
                    yield tuple(moved.get(i, 0) for i in range(self.n))


def encode(strings: Outputs) -> tuple[np.ndarray, np.ndarray]:
    """Return the code points of all strings, concatenated, and where each string starts."""
    for index, text in enumerate(strings):
        if not isinstance(text, str):
            raise InputError(f"String kernels take strings. Got {type(text).__name__} at index {index}.")
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    letters = np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)
    return letters.astype(np.int64), starts_of(lengths)


@compiled
def _read_substrings(
    letters: np.ndarray, starts: np.ndarray, offsets: np.ndarray, shifts: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read n letters from every place of every string, by every pattern: at offsets[p], each shifted by shifts[p].

    Letters are numbers below ``size`` and shifts wrap around. Returns where the substrings of each string start, their
    names, their first letters, and their patterns.
    """
    count, n = offsets.shape
    indptr, free = np.zeros(len(starts), np.int64), 0
    names, most = np.empty(len(letters) * count, np.uint64), len(letters) * count
    firsts, patterns = np.empty(most, np.int64), np.empty(most, np.int64)
    for s in range(len(starts) - 1):
        for first in range(starts[s], starts[s + 1]):
            for p in range(count):
                if first + offsets[p, n - 1] < starts[s + 1]:
                    name = np.uint64(0)
                    for i in range(n):
                        letter = letters[first + offsets[p, i]] + shifts[p, i]
                        name = pair(name, letter if letter < size else letter - size)
                    names[free], firsts[free], patterns[free] = name, first, p
                    free += 1
        indptr[s + 1] = free
    return indptr, names[:free].copy(), firsts[:free].copy(), patterns[:free].copy()
