"""Decoding over all sets of labels, not only those seen in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.compute import compiled, run_in_threads
from dsokr.decoders.base import Decoder, choose_best, combine_anchors
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.decoders.vectors import is_defined_at_zero
from dsokr.errors import InputError, check_fields
from dsokr.kernels import Cosine, Dice, Gaussian, Kernel, Laplacian, Linear, Polynomial, Tanimoto
from dsokr.outputs import Form, Outputs, take

SHARE = 16  # rows of coordinates that a thread decodes at a time

Bits = np.ndarray  # of uint8, 0 or 1
Integers = np.ndarray  # of int64
Floats = np.ndarray  # of float64


@dataclass(frozen=True)
class LabelSet(Decoder):
    """The best of all 2^d sets of d labels, given as 0/1 vectors: max_y 2 h(y) − k(y, y), by local search.

    Here h(y) = Σ_j c_j k(a_j, y) over the anchors a_j. The search flips the best single label, again and again; when
    no flip helps, it removes one label and makes the best flip after that. It starts from the ``starts`` best known
    sets, from the empty set and from {l : Σ_j c_j a_jl > ½}, which is the solution for ``Linear``. The best end is
    returned, or the best known set if that scores as well: exact for ``Linear``, for the others a local maximum.

    Kernels must see two sets only through |a|, |y| and |a ∩ y|: ``Tanimoto``, ``Dice``, ``Linear``, ``Gaussian``,
    ``Laplacian``, ``Cosine``, ``Polynomial``, and their sums, products, multiples and normalised forms. Their values
    are tabulated (d² values for each size of anchor), and scoring all d flips costs one pass over the labels of the
    distinct anchors, O(Σ_j |a_j|). Needs numba (``pip install "dsokr[graphs]"``).

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
        nearest = known.top(z, self.starts, "kernel")
        check_binary(basis.anchors, "anchors")
        anchors, inverse = np.unique(_dense(basis.anchors), axis=0, return_inverse=True)
        problem = Problem.of(basis.kernel, anchors)
        found = np.empty((len(z), anchors.shape[1]))

        def work(start: int, stop: int) -> None:
            rows, d = slice(start, stop), anchors.shape[1]
            known_starts = _dense(take(known.outputs, nearest.indices[rows].flatten())).reshape(stop - start, -1, d)
            c = torch.zeros(stop - start, len(anchors), dtype=torch.float64)
            c.index_add_(1, torch.from_numpy(inverse.ravel()), combine_anchors(basis, z[rows]).cpu())
            starts = np.concatenate([known_starts, _simple_starts(problem, c)], axis=1)
            _search(problem, c.numpy(), starts, found[rows])

        run_in_threads(work, len(z), SHARE)
        answers = sp.csr_array(found) if sp.issparse(known.outputs) else torch.from_numpy(found)
        return choose_best(z, known, nearest, answers, torch.arange(len(z)), "kernel")


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


class Problem(NamedTuple):
    """What the search needs to know of the kernel and of the r distinct anchors."""

    values: Floats  # (d + 1, sizes, largest size + 1): k by |y|, the size class of an anchor and |a ∩ y|
    diag: Floats  # (d + 1,): k(y, y) by |y|
    smallest: int  # the least |y| for which k is defined, 0 or 1
    size_class: Integers  # (r,)
    having: Integers  # the anchors that have label 0, then those that have label 1, …
    first: Integers  # (d + 1,): where those of a label begin

    @staticmethod
    def of(kernel: Kernel, anchors: Bits) -> Problem:
        """Tabulate k from its values for the first s labels against windows of consecutive labels.

        A window of a labels that starts at the label s − i shares i labels with the first s.
        """
        d = anchors.shape[1]
        prefixes = torch.ones(d + 1, d, dtype=torch.float64).tril(-1)  # row s has the first s labels
        smallest = 0 if is_defined_at_zero(kernel) else 1
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
        return Problem(values, diag, smallest, size_class, having, first)


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
def _search(problem: Problem, weights: Floats, starts: Bits, found: Floats) -> None:
    """Fill in the best set of every row; of tied ones that of the earlier start."""
    for row in range(len(found)):
        best = -np.inf
        for start in starts[row]:
            y, score = _climb(problem, weights[row], start)
            if score > best:
                best, found[row] = score, y


@compiled
def _climb(problem: Problem, c: Floats, start: Bits) -> tuple[Bits, float]:
    """Improve a set until neither one flip helps nor one after a removal; return it and its score.

    Scores are compared in single precision: rounding cannot send the search in circles.
    """
    y, shared, scores = np.zeros_like(start), np.zeros(len(c), np.int64), np.empty(len(start))
    for label in range(len(start)):
        if start[label]:
            _flip(problem, y, shared, label)
    score = 2 * _combine(problem, c, shared, y.sum()) - problem.diag[y.sum()]
    while True:
        _score_flips(problem, c, y, shared, scores)
        label = int(scores.argmax())
        if np.float32(scores[label]) > np.float32(score):
            score = scores[label]
            _flip(problem, y, shared, label)
            continue
        removed, label, after = _best_after_removal(problem, c, y, shared, scores)
        if not np.float32(after) > np.float32(score):
            return y, score
        score = after
        _flip(problem, y, shared, removed)
        _flip(problem, y, shared, label)


@compiled
def _best_after_removal(
    problem: Problem, c: Floats, y: Bits, shared: Integers, scores: Floats
) -> tuple[int, int, float]:
    """The label to remove from y, the one to flip then, and the score after both."""
    removed, then, best = 0, 0, -np.inf
    for label in range(len(y)):
        if not y[label]:
            continue
        _flip(problem, y, shared, label)
        _score_flips(problem, c, y, shared, scores)
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
def _score_flips(problem: Problem, c: Floats, y: Bits, shared: Integers, scores: Floats) -> None:
    """Score all sets that differ from y in one label by the paper's rule, 2 h(y) − k(y, y).

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
