"""Decoding over all rankings of d items, not only those seen in training.

A ranking is a row of d numbers: ``ranking[i]`` is the position of item i, counted from 0 or 1 as in the known ones. The
kernels on rankings are ⟨e(σ), e(σ')⟩ for an embedding e, so the function Σ_i z_i ẽ_i is linear in it, ⟨w, e(σ)⟩, and
the paper's rule is max_σ 2⟨w, e(σ)⟩ − ‖e(σ)‖². All decoders here use that rule.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest
from math import factorial
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from dsokr import kernels
from dsokr.basis import BLOCK, SketchedBasis
from dsokr.compute import compiled, run_in_threads
from dsokr.decoders.base import Decoder, Found, choose_best, combine_anchors
from dsokr.decoders.choices import choose_columns
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.errors import InputError, check_fields
from dsokr.kernels import Kernel, Normalized, Scaled
from dsokr.kernels.rankings import RankingKernel
from dsokr.outputs import Outputs

LARGEST = 24  # items ordered exactly at most: the table of their subsets takes 8 · 2^24 bytes
LISTED = 8  # items up to which all rankings are scored for the k best, or to count them
SHARE = 16  # rows that a thread takes at a time

Integers = np.ndarray  # of int64
Floats = np.ndarray  # of float64


class RankingDecoder(Decoder):
    """max_σ 2⟨w, e(σ)⟩ − ‖e(σ)‖² over all full rankings σ; where a known ranking scores as well, it is returned.

    :meth:`best` and :meth:`count` score all rankings of up to 8 items. For more there is no count.
    """

    kernel: ClassVar[type[RankingKernel]]
    forms: ClassVar[tuple[type[Kernel], ...]] = (Scaled, Normalized)

    @abstractmethod
    def maximize(self, w: Floats, start: Floats) -> Integers:  # (n, dimension), (n, d) -> (n, d)
        """Find the best ranking for every w, positions counted from 0. ``start`` is the best known one."""

    @abstractmethod
    def maximize_several(self, w: Floats, best: Integers, k: int) -> Integers:  # (dimension,), (d,) -> (≤ k, d)
        """Find the k best rankings for one w, of which ``best`` is the first."""

    def check(self, kernel: Kernel) -> None:
        plain = kernel
        while isinstance(plain, self.forms):
            plain = plain.kernel  # type: ignore[attr-defined] # both forms have one
        if not isinstance(plain, self.kernel):
            also = ", ".join(form.__name__.lower() for form in self.forms)
            raise InputError(
                f"decoders.{type(self).__name__} decodes bases of kernels.{self.kernel.__name__}(), plain or {also}. "
                f"Got {kernel}. Use Candidates()."
            )

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        return self.search(basis, z, known, 1)[:2]

    def search(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int) -> Found:
        d, nearest = known.outputs.shape[1], known.top(z, k, "kernel")
        if k > 1 and d <= LISTED:
            numbers, rows = self._list_best(basis, z, known, k)
            found = _number_rankings(numbers, d)
        else:
            w, start = self.functional(basis, z).cpu().numpy(), known.outputs[nearest.indices[:, 0]].cpu().numpy()
            found, rows = self.maximize(w, start), np.arange(len(z))
            if k > 1:
                several = [self.maximize_several(*row, k) for row in zip(w, found, strict=True)]
                found, rows = np.concatenate(several), rows.repeat(list(map(len, several)))
        answers = torch.from_numpy(found + _first_position(known.outputs)).double()
        return choose_best(z, known, nearest, answers, rows, "kernel", k)

    def list_scores(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Iterator[Tensor] | None:
        """In the order of :func:`_number_rankings`."""
        d = basis.anchors.shape[1]
        if d > LISTED:
            return None
        every = torch.from_numpy(_number_rankings(np.arange(factorial(d)), d)).to(basis.anchors)
        c, evaluate = combine_anchors(basis, z), basis.kernel.against(basis.anchors)
        return ((c @ evaluate(ys).T).mul_(2).sub_(basis.kernel.diag(ys)) for ys in every.split(BLOCK))

    def functional(self, basis: SketchedBasis, z: Tensor) -> Tensor:  # (n, dimension)
        """w = Σ_j c_j t(a_j) / t e(a_j), for a kernel t(σ) t(σ') ⟨e(σ), e(σ')⟩ whose t is the same for full rankings.

        The score of a full ranking is then t² (2⟨w, e(σ)⟩ − ‖e(σ)‖²).
        """
        scales = self._scale(basis, basis.anchors) / self._scale(basis, _any_ranking(basis))
        return combine_anchors(basis, z) * scales @ self.kernel().embedding(basis.anchors)

    def _scale(self, basis: SketchedBasis, rankings: Tensor) -> Tensor:  # (n,)
        """t(σ) = √k(σ, σ) / ‖e(σ)‖: constant if the kernel is scaled, ‖e(σ)‖⁻¹ if it is normalised."""
        squared = self.kernel().diag(rankings)
        return torch.where(squared > 0, basis.kernel.diag(rankings) / squared, 1.0).sqrt()


def _number_rankings(numbers: Integers, d: int) -> Integers:  # (n,) -> (n, d)
    """The rankings numbered from 0 to d! − 1 by their Lehmer codes, as digits of the factorial number system."""
    return rank_by_code(numbers[:, None] // np.cumprod([1, *range(1, d)]) % np.arange(1, d + 1))


def _any_ranking(basis: SketchedBasis) -> Tensor:  # (1, d)
    """A full ranking, and one that does not embed as zero."""
    return torch.arange(basis.anchors.shape[1]).flip(0)[None].to(basis.anchors)


def _first_position(rankings: Tensor) -> int:
    """Whether positions are counted from 0 or from 1. Items that are not ranked have negative ones."""
    return int(bool(((rankings < 0) | (rankings >= 1)).all() and (rankings >= 1).any()))


@dataclass(frozen=True)
class HammingRanking(RankingDecoder):
    """max_σ Σ_i w[i, σ(i)], an assignment of items to positions. Exact, O(d³) a row, and O(k d⁴) for the k best.

    >>> from dsokr import sketch_basis, sketches
    >>> seen = [(0, 1, 2), (0, 2, 1), (1, 0, 2)]
    >>> basis = sketch_basis(kernels.Hamming(), seen, sketches.Full(), generator=torch.Generator())
    >>> z = basis.embed(seen)
    >>> HammingRanking().decode(basis, z, EmbeddedOutputs(basis, seen[:2])).outputs
    [(0, 1, 2), (0, 2, 1), (1, 0, 2)]
    """

    kernel = kernels.Hamming

    def maximize(self, w: Floats, start: Floats) -> Integers:
        profits = w.reshape(len(w), start.shape[1], -1)
        return np.stack([_assign(profit) for profit in profits])

    def maximize_several(self, w: Floats, best: Integers, k: int) -> Integers:
        return choose_columns(w.reshape(len(best), -1), k, _assign)


def _assign(profit: Floats) -> Integers:  # (d, d) -> (d,)
    return linear_sum_assignment(profit, maximize=True)[1]


@dataclass(frozen=True)
class Lehmer(RankingDecoder):
    """max_σ Σ_i 2 w_i c_i(σ) − c_i(σ)²: every digit of the Lehmer code is w_i, rounded into {0, …, i}. Exact, O(d²).

    So are the k best, which differ in few digits: O(k d³).

    >>> from dsokr import sketch_basis, sketches
    >>> seen = [(0, 1, 2), (0, 2, 1), (2, 0, 1)]
    >>> basis = sketch_basis(kernels.Lehmer(), seen, sketches.Full(), generator=torch.Generator())
    >>> z = basis.embed([(2, 1, 0)])
    >>> Lehmer().decode(basis, z, EmbeddedOutputs(basis, seen)).outputs
    [(2, 1, 0)]
    """

    kernel = kernels.Lehmer
    forms = (Scaled,)  # ‖e(σ)‖ is not the same for all rankings

    def maximize(self, w: Floats, start: Floats) -> Integers:
        return rank_by_code(np.clip(np.rint(w), 0, np.arange(w.shape[1])).astype(np.int64))

    def maximize_several(self, w: Floats, best: Integers, k: int) -> Integers:
        digits = np.arange(len(w))
        profit = np.where(digits <= digits[:, None], 2 * w[:, None] * digits - digits**2, -np.inf)
        return rank_by_code(choose_columns(profit, k, lambda part: part.argmax(axis=1)))


def rank_by_code(code: Integers) -> Integers:  # (n, d) -> (n, d)
    """The rankings with c_i = #{j < i : σ(j) > σ(i)}. Items are inserted one after the other, and push others down.

    >>> rank_by_code(np.array([[0, 1, 2]]))
    array([[2, 1, 0]])
    """
    positions = np.arange(code.shape[1]) - code  # of every item among those up to it
    for i in range(1, code.shape[1]):
        positions[:, :i] += positions[:, :i] >= positions[:, i : i + 1]
    return positions


@dataclass(frozen=True)
class Kemeny(RankingDecoder):
    """max_σ Σ_{i < j} w_ij sign(σ(j) − σ(i)), Kemeny's rank aggregation: NP-hard, but small enough to be solved.

    Item i beats j when w_ij prefers i before j. If every item of one group beats every item of another, some best
    ranking has the first group in front, so the groups are ordered one by one. Groups of up to ``exact_up_to`` items
    are ordered exactly, in O(2^g g) time for g items, by dynamic programming over their subsets S:

        best(S) = max_{t ∈ S} best(S ∖ t) + Σ_{i ∈ S ∖ t} w_it.

    Larger groups are improved by moving single items, from two starts: the items by how many others they beat, and the
    best known ranking. :meth:`bound` says how much better a ranking could be.
    Of more than 8 items, :meth:`best` gives the best rankings that moves of single items lead to from there: no proof.
    A known ranking with ties may score better than all full ones, and is then returned.
    Needs numba (``pip install "dsokr[graphs]"``).

    >>> from dsokr import sketch_basis, sketches
    >>> seen = [(0, 1, 2), (0, 2, 1), (1, 0, 2)]
    >>> basis = sketch_basis(kernels.Kemeny(), seen, sketches.Full(), generator=torch.Generator())
    >>> z = basis.embed([(2, 1, 0)])
    >>> Kemeny().decode(basis, z, EmbeddedOutputs(basis, seen)).outputs
    [(2, 1, 0)]
    """

    kernel = kernels.Kemeny

    exact_up_to: int = 16

    def __post_init__(self) -> None:
        check_fields(self, exact_up_to=f"[1, {LARGEST}]")

    def bound(self, basis: SketchedBasis, z: Tensor) -> Tensor:  # (n,)
        """Scores that no full ranking exceeds: those of a ranking with all pairs of items in the order w prefers.

        A ranking that reaches it is the best one.
        """
        self.check(basis.kernel)
        largest = self.functional(basis, basis.check_coordinates(z)).abs().sum(dim=1)
        full = _any_ranking(basis)
        return self._scale(basis, full).square() * (2 * largest - self.kernel().diag(full))

    def maximize(self, w: Floats, start: Floats) -> Integers:
        positions = np.empty(start.shape, np.int64)

        def work(begin: int, end: int) -> None:
            before = _compare_items(w[begin:end], start.shape[1])
            by_wins, group = _find_groups(before)
            by_start = np.lexsort((start[begin:end], group), axis=1)
            for row in range(end - begin):
                sizes, found = np.bincount(group[row]), positions[begin + row]
                _rank(before[row], by_wins[row], by_start[row], sizes, self.exact_up_to, found)

        run_in_threads(work, len(w), SHARE)
        return positions

    def maximize_several(self, w: Floats, best: Integers, k: int) -> Integers:
        """Move single items, from the best ranking on; always the best ranking that is not yet changed. No proof."""
        d = len(best)
        before = _compare_items(w[None], d)[0]
        order = tuple(np.argsort(best).tolist())
        seen, heap = {order: 0.0}, [(0.0, order)]
        for _ in range(k):
            loss, order = heappop(heap)
            gains = _gain_by_moves(before[np.ix_(order, order)])
            for move in np.argsort(-gains, axis=None)[: k + 2 * d].tolist():  # about 2 d change nothing new
                rest = list(order)
                rest.insert(move % d, rest.pop(move // d))
                if (moved := tuple(rest)) not in seen:
                    seen[moved] = gains.flat[move] - loss
                    heappush(heap, (-seen[moved], moved))
            if not heap:
                break
        return np.argsort(nlargest(k, seen, key=seen.__getitem__), axis=1)


def _compare_items(w: Floats, d: int) -> Floats:  # (n, d (d − 1) / 2) -> (n, d, d)
    """What item i before item j adds to the score, for every pair (i, j)."""
    before, (first, second) = np.zeros((len(w), d, d)), np.triu_indices(d, 1)
    before[:, first, second], before[:, second, first] = w, -w
    return before


def _gain_by_moves(before: Floats) -> Floats:  # (d, d) -> (d, d)
    """What moving the item at place i to place j adds; ``before`` is in the order of the places."""
    sums = before.cumsum(axis=1)
    here = sums.diagonal()[:, None]
    return 2 * np.where(np.tri(len(before), k=-1, dtype=bool), here - sums + before, here - sums)


def _find_groups(before: Floats) -> tuple[Integers, Integers]:  # (n, d, d) -> (n, d), (n, d)
    """Return the items by their number of wins, and the group of each item, 0 for the one in front.

    The first k items by wins are groups of their own when they have all the wins that k items can have:
    k (k − 1) / 2 among themselves and k (d − k) over the others.
    """
    d = before.shape[1]
    wins = ((before > 0) | ((before == 0) & np.triu(np.ones((d, d), bool)))).sum(axis=2) - 1  # not over itself
    by_wins = np.argsort(-wins, axis=1, kind="stable")
    k = np.arange(1, d + 1)
    ends = 2 * np.take_along_axis(wins, by_wins, axis=1).cumsum(axis=1) == k * (k - 1) + 2 * k * (d - k)
    group = np.empty_like(by_wins)
    np.put_along_axis(group, by_wins, ends.cumsum(axis=1) - ends, axis=1)
    return by_wins, group


@compiled
def _rank(
    before: Floats, by_wins: Integers, by_start: Integers, sizes: Integers, exact_up_to: int, positions: Integers
) -> None:
    """Order the groups one after the other, and write the positions of their items."""
    first = 0
    for size in sizes:
        order, other = by_wins[first : first + size].copy(), by_start[first : first + size].copy()
        if size <= exact_up_to:
            order = _order_exactly(before, order)
        elif _improve(before, order) < _improve(before, other):
            order = other
        for place in range(size):
            positions[order[place]] = first + place
        first += size


@compiled
def _order_exactly(before: Floats, group: Integers) -> Integers:  # (g,)
    """Items, first to last. Subsets are bits; what they add in front of an item is the sum of two halves' tables."""
    g, half = len(group), len(group) // 2
    low, high = _tabulate_subsets(before, group[:half], group), _tabulate_subsets(before, group[half:], group)
    best = np.zeros(1 << g)
    for subset in range(1, 1 << g):
        best[subset] = _last(best, low, high, subset)[1]
    order, subset = np.empty(g, np.int64), (1 << g) - 1
    for place in range(g - 1, -1, -1):
        last = _last(best, low, high, subset)[0]
        order[place], subset = group[last], subset ^ (1 << last)
    return order


@compiled
def _tabulate_subsets(before: Floats, some: Integers, group: Integers) -> Floats:  # (2^h, g)
    """Σ_{i ∈ S} before[i, t] for every set S of some items and every item t of the group."""
    sums = np.zeros((1 << len(some), len(group)))
    for subset in range(1, len(sums)):
        i = 0
        while not subset >> i & 1:
            i += 1
        for t in range(len(group)):
            sums[subset, t] = sums[subset ^ (1 << i), t] + before[some[i], group[t]]
    return sums


@compiled
def _last(best: Floats, low: Floats, high: Floats, subset: int) -> tuple[int, float]:
    """The item that comes last in the best order of a subset, and what that order adds up to."""
    front, back = low[subset & (len(low) - 1)], high[subset // len(low)]
    item, value = -1, -np.inf
    for t in range(len(front)):
        if subset >> t & 1:
            candidate = best[subset ^ (1 << t)] + front[t] + back[t]
            if candidate > value:
                item, value = t, candidate
    return item, value


@compiled
def _improve(before: Floats, order: Integers) -> float:
    """Make the best move of one item until none helps in single precision; return what the order adds up to."""
    value = 0.0
    for place in range(len(order)):
        for later in range(place + 1, len(order)):
            value += before[order[place], order[later]]
    while True:
        gain, place, to = _best_move(before, order)
        if not np.float32(value + gain) > np.float32(value):
            return value
        value += gain
        item, step = order[place], 1 if to > place else -1
        for at in range(place, to, step):
            order[at] = order[at + step]
        order[to] = item


@compiled
def _best_move(before: Floats, order: Integers) -> tuple[float, int, int]:
    """The largest gain, and from which place to which."""
    best, place, to = 0.0, 0, 0
    for at in range(len(order)):
        for step in (-1, 1):
            gain, other = 0.0, at + step
            while 0 <= other < len(order):
                gain -= 2 * step * before[order[at], order[other]]
                if gain > best:
                    best, place, to = gain, at, other
                other += step
    return best, place, to
