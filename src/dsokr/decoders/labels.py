"""Decoding over all sets of labels, not only those seen in training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.basis import BLOCK, SketchedBasis
from dsokr.compute import compiled, run_in_threads
from dsokr.decoders.base import Decoder, Found, choose_best, combine_anchors
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.decoders.vectors import is_defined_at_zero
from dsokr.errors import InputError, check_fields
from dsokr.kernels import Cosine, Dice, Gaussian, Kernel, Laplacian, Linear, Polynomial, Tanimoto
from dsokr.outputs import Form, Outputs, take

EXACT = 14  # labels up to which all sets are scored for the best one: that takes about as long as the local search
LISTED = 20  # labels up to which all sets are scored for the k best, or to count them
SHARE = 16  # rows of coordinates that a thread decodes at a time
EQUAL = 1e-9  # relative rounding error of a score: the scores of one set may differ by it

Bits = np.ndarray  # of uint8, 0 or 1
Integers = np.ndarray  # of int64
Floats = np.ndarray  # of float64


@dataclass(frozen=True)
class LabelSet(Decoder):
    """The best of all 2^d sets of d labels, given as 0/1 vectors: max_y 2 h(y) − k(y, y).

    Here h(y) = Σ_j c_j k(a_j, y) over the anchors a_j. Up to 14 labels all sets are scored, 2^d r kernel values for r
    distinct anchors, which is exact. For more labels a local search flips the best single label, again and again; when
    no flip helps, it removes one label and makes the best flip after that. It starts from the ``starts`` best known
    sets, from the empty set and from {l : Σ_j c_j a_jl > ½}, which is the solution for ``Linear``. The best set found
    is returned, or the best known set if that scores as well: exact for ``Linear``, for the others a local maximum.

    Kernels must see two sets only through |a|, |y| and |a ∩ y|: ``Tanimoto``, ``Dice``, ``Linear``, ``Gaussian``,
    ``Laplacian``, ``Cosine``, ``Polynomial``, and their sums, products, multiples and normalised forms. Their values
    are tabulated (d² values for each size of anchor), and scoring all d flips costs one pass over the labels of the
    distinct anchors, O(Σ_j |a_j|). Needs numba (``pip install "dsokr[graphs]"``).

    :meth:`best` and :meth:`count` score all sets of up to 20 labels. For more, the k best are those of all sets that
    the local search scores, and there is no count.

    Only the paper's rule is offered: the other rules compare within the span, and do not see how far a set is from
    everything in the basis. That is harmless among known sets and misleading among all sets.

    >>> from dsokr import kernels, sketch_basis, sketches
    >>> seen = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    >>> basis = sketch_basis(kernels.Linear(), seen, sketches.Full(), generator=torch.Generator())
    >>> z = basis.embed([[0.1, 0.9, 0.8, 0.9]])
    >>> LabelSet().decode(basis, z, EmbeddedOutputs(basis, seen)).outputs
    array([[0, 1, 1, 1]])
    """

    starts: int = 3
    kernels = (Tanimoto, Dice, Linear, Gaussian, Laplacian, Cosine, Polynomial)  # functions of |a|, |y| and |a ∩ y|

    def __post_init__(self) -> None:
        check_fields(self)

    def check_outputs(self, outputs: Outputs, form: Form) -> None:
        check_binary(outputs, "outputs")

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        return self.search(basis, z, known, 1)[:2]

    def search(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int) -> Found:
        d, nearest = basis.anchors.shape[1], known.top(z, max(k, self.starts), "kernel")
        if d <= (EXACT if k == 1 else LISTED):
            numbers, rows = self._list_best(basis, z, known, k)
            numbers += _smallest(basis.kernel)
            found = (numbers ^ numbers >> 1)[:, None] >> np.arange(d) & 1
        else:
            starts = _dense(take(known.outputs, nearest.indices[:, : self.starts].flatten()))
            found, rows = self._climb(basis, z, starts.reshape(len(z), -1, d), k)
        answers = sp.csr_array(found, dtype=float) if sp.issparse(known.outputs) else torch.from_numpy(found).double()
        return choose_best(z, known, nearest, answers, rows, "kernel", k)

    def list_scores(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Iterator[Tensor] | None:
        """In the order of the Gray code: set i has the bits of i ^ i >> 1, and differs from set i − 1 in one label."""
        d = basis.anchors.shape[1]
        return _score_sets(basis, z, range(_smallest(basis.kernel), 2**d, BLOCK)) if d <= LISTED else None

    def _climb(self, basis: SketchedBasis, z: Tensor, known: Bits, k: int) -> tuple[Bits, Integers]:  # (m, d), (m,)
        """The k best sets that the local search scores for every row, and their rows; it starts from the known ones."""
        problem = Problem.of(basis)
        sets, scores = np.zeros((len(z), k, known.shape[2]), np.uint8), np.full((len(z), k), -np.inf)

        def work(start: int, stop: int) -> None:
            rows = slice(start, stop)
            c = _weigh(basis, z[rows], problem)
            starts = np.concatenate([known[rows], _simple_starts(problem, c)], axis=1)
            _search(problem, c.numpy(), starts, sets[rows], scores[rows])

        run_in_threads(work, len(z), SHARE)
        found = scores > -np.inf
        return sets[found], np.nonzero(found)[0]


def check_binary(rows: Outputs, name: str) -> None:
    """Raise an ``InputError`` if outputs are not rows of zeros and ones."""
    if not isinstance(rows, Tensor) and not sp.issparse(rows):
        raise InputError(f"LabelSet decodes sets of labels, as rows of zeros and ones. Got {type(rows[0]).__name__}.")
    values = rows.data if sp.issparse(rows) else rows.cpu().numpy()
    wrong = np.argwhere((values != 0) & (values != 1))
    if len(wrong):
        at = int(np.searchsorted(rows.indptr, wrong[0], "right")[0]) - 1 if sp.issparse(rows) else wrong[0, 0]
        value = values[tuple(wrong[0])]
        raise InputError(f"LabelSet decodes sets of labels: {name} must be 0 or 1. Got {value:g} at index {at}.")


def _dense(rows: Outputs) -> Bits:  # (n, d)
    return (rows.toarray() if sp.issparse(rows) else rows.cpu().numpy()).astype(np.uint8)


def _smallest(kernel: Kernel) -> int:
    """The least size of a set for which the kernel is defined, 0 or 1."""
    return 0 if is_defined_at_zero(kernel) else 1


def _weigh(basis: SketchedBasis, z: Tensor, problem: Problem) -> Tensor:  # (n, r)
    """c for the distinct anchors: the sum over equal ones."""
    c = torch.zeros(len(z), len(problem.size_class), dtype=torch.float64)
    return c.index_add_(1, torch.from_numpy(problem.number), combine_anchors(basis, z).cpu())


def _score_sets(basis: SketchedBasis, z: Tensor, starts: range) -> Iterator[Tensor]:  # (n, block) each
    """Score all sets in the order of the Gray code; blocks begin at ``starts``."""
    problem = Problem.of(basis)
    c = _weigh(basis, z, problem)
    for start in starts:
        values = np.empty((min(starts.step, starts.stop - start), c.shape[1]))
        diag = np.empty(len(values))
        _evaluate(problem, start, values, diag)
        yield (c @ torch.from_numpy(values).T).mul_(2).sub_(torch.from_numpy(diag))


class Problem(NamedTuple):
    """What the search needs to know about the kernel and the r distinct anchors."""

    number: Integers  # (anchors,): which of the distinct anchors each anchor of the basis is
    values: Floats  # (d + 1, sizes, largest size + 1): k by |y|, the size class of an anchor and |a ∩ y|
    diag: Floats  # (d + 1,): k(y, y) by |y|
    smallest: int  # the least |y| for which k is defined, 0 or 1
    size_class: Integers  # (r,)
    having: Integers  # the anchors that have label 0, then those that have label 1, …
    first: Integers  # (d + 1,): where those of a label begin

    @staticmethod
    def of(basis: SketchedBasis) -> Problem:
        """Tabulate k from its values for the first s labels against windows of consecutive labels.

        A window of a labels that starts at the label s − i shares i labels with the first s.
        """
        check_binary(basis.anchors, "anchors")
        anchors, number = np.unique(_dense(basis.anchors), axis=0, return_inverse=True)
        kernel, d = basis.kernel, anchors.shape[1]
        prefixes = torch.ones(d + 1, d, dtype=torch.float64).tril(-1)  # row s has the first s labels
        smallest = _smallest(kernel)
        sizes, size_class = np.unique(anchors.sum(axis=1, dtype=np.int64), return_inverse=True)
        values, diag = np.zeros((d + 1, len(sizes), int(sizes[-1]) + 1)), np.zeros(d + 1)
        for place, a in enumerate(sizes):
            windows = prefixes[a:] - prefixes[: d + 1 - a]
            s, i = np.indices((d + 1, a + 1))
            exists = (s >= smallest) & (s - i >= 0) & (s - i <= d - a)
            s, i = s[exists], i[exists]
            values[s, place, i] = kernel(prefixes[smallest:], windows).numpy()[s - smallest, s - i]
        diag[smallest:] = kernel.diag(prefixes[smallest:]).numpy()
        by_label = sp.csc_array(anchors)
        having, first = by_label.indices.astype(np.int64), by_label.indptr.astype(np.int64)
        return Problem(number.ravel(), values, diag, smallest, size_class, having, first)


def _simple_starts(problem: Problem, c: Tensor) -> Bits:  # (n, 2, d)
    """The empty set and {l : Σ_j c_j a_jl > ½}. Where k is undefined for the empty set, the largest sum is in both."""
    shape = len(problem.size_class), len(problem.first) - 1
    anchors = sp.csc_array((np.ones(len(problem.having)), problem.having, problem.first), shape=shape)
    sums = np.ascontiguousarray(c.numpy() @ anchors)
    starts = np.stack([np.zeros_like(sums), sums > 0.5], axis=1).astype(np.uint8)
    if problem.smallest:
        np.put_along_axis(starts, sums.argmax(axis=1)[:, None, None], 1, axis=2)
    return starts


@compiled
def _evaluate(problem: Problem, start: int, values: Floats, diag: Floats) -> None:
    """Fill in k(y, a_j) and k(y, y) of consecutive sets in the order of the Gray code."""
    y = np.zeros(len(problem.first) - 1, np.uint8)
    # position of k(y, a_j) in the table for |y|: one further for each shared label
    at = problem.size_class * problem.values.shape[2]
    for i in range(len(values)):
        code = (start + i) ^ (start + i) >> 1
        for label in range(len(y)):
            if y[label] != (code >> label & 1):
                _flip(problem, y, at, label)
        table = problem.values[y.sum()].ravel()
        for j in range(len(at)):
            values[i, j] = table[at[j]]
        diag[i] = problem.diag[y.sum()]


class Kept(NamedTuple):
    """The best sets so far, best first; of tied ones the first met. Free places score −∞."""

    sets: Bits  # (k, d)
    scores: Floats  # (k,)


@compiled
def _search(problem: Problem, weights: Floats, starts: Bits, sets: Bits, scores: Floats) -> None:
    """Fill in the best sets of every row, and their scores."""
    for row in range(len(sets)):
        for start in starts[row]:
            _climb(problem, weights[row], start, Kept(sets[row], scores[row]))


@compiled
def _offer(kept: Kept, y: Bits, score: float) -> None:
    """Insert a set behind those that score the same, unless it is kept already."""
    at = len(kept.scores) - 1
    if not np.float32(score) > np.float32(kept.scores[at]):
        return
    for j in range(len(kept.scores)):
        if abs(kept.scores[j] - score) <= EQUAL * (1 + abs(score)) and (kept.sets[j] == y).all():
            return
    while at > 0 and np.float32(score) > np.float32(kept.scores[at - 1]):
        kept.sets[at], kept.scores[at] = kept.sets[at - 1], kept.scores[at - 1]
        at -= 1
    kept.sets[at], kept.scores[at] = y, score


@compiled
def _climb(problem: Problem, c: Floats, start: Bits, kept: Kept) -> None:
    """Improve a set until neither one flip helps nor one after a removal; offer all sets that are scored.

    Scores are compared in single precision: rounding cannot send the search in circles.
    """
    y, shared, scores = np.zeros_like(start), np.zeros(len(c), np.int64), np.empty(len(start))
    for label in range(len(start)):
        if start[label]:
            _flip(problem, y, shared, label)
    score = 2 * _combine(problem, c, shared, y.sum()) - problem.diag[y.sum()]
    _offer(kept, y, score)
    while True:
        _score_flips(problem, c, y, shared, scores, kept)
        label = int(scores.argmax())
        if np.float32(scores[label]) > np.float32(score):
            score = scores[label]
            _flip(problem, y, shared, label)
            continue
        removed, label, after = _best_after_removal(problem, c, y, shared, scores, kept)
        if not np.float32(after) > np.float32(score):
            return
        score = after
        _flip(problem, y, shared, removed)
        _flip(problem, y, shared, label)


@compiled
def _best_after_removal(
    problem: Problem, c: Floats, y: Bits, shared: Integers, scores: Floats, kept: Kept
) -> tuple[int, int, float]:
    """The label to remove from y, the one to flip then, and the score after both."""
    removed, then, best = 0, 0, -np.inf
    for label in range(len(y)):
        if not y[label]:
            continue
        _flip(problem, y, shared, label)
        _score_flips(problem, c, y, shared, scores, kept)
        other = int(scores.argmax())
        if scores[other] > best:
            removed, then, best = label, other, scores[other]
        _flip(problem, y, shared, label)
    return removed, then, best


@compiled
def _flip(problem: Problem, y: Bits, shared: Integers, label: int) -> None:
    step = -1 if y[label] else 1
    y[label] += step
    for slot in range(problem.first[label], problem.first[label + 1]):
        shared[problem.having[slot]] += step


@compiled
def _combine(problem: Problem, c: Floats, shared: Integers, size: int) -> float:
    """Σ_j c_j k(a_j, y) for a y of that size that shares so many labels with each anchor."""
    values, total = problem.values[size], 0.0
    for j in range(len(c)):
        total += c[j] * values[problem.size_class[j], shared[j]]
    return total


@compiled
def _score_flips(problem: Problem, c: Floats, y: Bits, shared: Integers, scores: Floats, kept: Kept) -> None:
    """Score all sets that differ from y in one label by the paper's rule, 2 h(y) − k(y, y), and offer them.

    A flip changes |a_j ∩ y| only for the anchors that have the label: the sum over all anchors is formed once for each
    of the two sizes, and corrected for those.
    """
    size = y.sum()
    larger = _combine(problem, c, shared, size + 1) if size < len(y) else 0.0
    smaller = _combine(problem, c, shared, size - 1) if size > problem.smallest else 0.0
    for label in range(len(y)):
        step = -1 if y[label] else 1
        if size + step < problem.smallest:
            scores[label] = -np.inf
            continue
        values, total = problem.values[size + step], smaller if y[label] else larger
        for slot in range(problem.first[label], problem.first[label + 1]):
            j = problem.having[slot]
            row = values[problem.size_class[j]]
            total += c[j] * (row[shared[j] + step] - row[shared[j]])
        scores[label] = 2 * total - problem.diag[size + step]
        if np.float32(scores[label]) > np.float32(kept.scores[-1]):
            y[label] ^= 1
            _offer(kept, y, scores[label])
            y[label] ^= 1
