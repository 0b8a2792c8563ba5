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
from dsokr.decoders.base import Decoded, Decoder, best_of
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.errors import InputError, UndefinedAt, require_integer
from dsokr.kernels import (
    Cosine,
    Gaussian,
    Kernel,
    Laplacian,
    Linear,
    Normalized,
    Polynomial,
    Product,
    Scaled,
    Sum,
    Tanimoto,
)
from dsokr.kernels.vectors import as_rows
from dsokr.outputs import Outputs, in_form_of, take

BY_SIZES = (Tanimoto, Linear, Gaussian, Laplacian, Cosine, Polynomial)  # on sets, functions of |a|, |y| and |a ∩ y|
ROWS = 512  # rows of coefficients decoded at once
SHARE = 16  # rows that a thread takes at a time

Bits = np.ndarray  # of uint8, 0 or 1
Integers = np.ndarray  # of int64
Floats = np.ndarray  # of float64


@dataclass(frozen=True)
class LabelSet(Decoder):
    """The best of all 2^d sets of d labels, given as 0/1 vectors: max_y 2 h(y) − k(y, y), by local search.

    Here h(y) = Σ_j c_j k(a_j, y) over the anchors a_j. A search flips one label at a time, always the best one; when
    no flip helps, it takes one label out and makes the flip that is best then. It begins at each of the ``starts`` best
    known sets, at the empty set and at {l : Σ_j c_j a_jl > ½}, which is the solution for ``Linear``. The best end is
    returned, or the best known set if that scores as well: exact for ``Linear``, for the others a local maximum that
    ``tests/test_label_decoders.py`` compares with the global one.

    It takes the kernels that see two sets only through |a|, |y| and |a ∩ y|: ``Tanimoto``, ``Linear``, ``Gaussian``,
    ``Laplacian``, ``Cosine``, ``Polynomial``, and these added, multiplied, scaled or normalised. Their values are read
    from a table (made with d² values per size of anchor), and scoring all d flips costs one pass over the labels of
    the distinct anchors, O(Σ_j |a_j|). Needs numba (``pip install "dsokr[graphs]"``).

    The paper's rule is the only one: those that compare within the span alone do not see how far a set is from
    everything in the basis, which is harmless among known sets and misleading among all of them.

    >>> from dsokr import kernels, sketch_basis, sketches
    >>> seen = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    >>> basis = sketch_basis(kernels.Linear(), seen, sketches.Full(), generator=torch.Generator())
    >>> z = basis.embed([[0.1, 0.9, 0.8, 0.9]])
    >>> LabelSet().decode(basis, z, EmbeddedOutputs(basis, seen)).outputs
    array([[0, 1, 1, 1]])
    """

    starts: int = 3

    def __post_init__(self) -> None:
        require_integer(self, "starts", self.starts, least=1)

    def check(self, kernel: Kernel) -> None:
        if not _is_by_sizes(kernel):
            names = ", ".join(kind.__name__ for kind in BY_SIZES)
            raise InputError(
                f"LabelSet decodes bases of the kernels {names}, and of their sums, products, multiples and "
                f"normalised forms. Got {kernel}. Use Candidates()."
            )

    def known(self, training_outputs: Outputs) -> Outputs:
        as_labels(training_outputs, "Y")  # refused here, before anything is trained
        return super().known(training_outputs)

    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        z = self.checked(basis, z, known)
        if not len(z):  # kernels take at least one vector
            return Decoded(take(known.outputs, slice(0)), z.new_empty(0))
        nearest = known.top(z, self.starts, self.scoring_rule())
        problem, functions = _problem(basis)
        found = np.empty((len(z), len(problem.diag) - 1), np.uint8)
        for rows in torch.arange(len(z), device=z.device).split(ROWS):
            starts = as_labels(take(known.outputs, nearest.indices[rows].flatten()), "candidates")
            coefficients = (z[rows] @ functions.T).cpu().numpy()
            found[rows.cpu()] = _searched(problem, coefficients, starts.reshape(len(rows), -1, found.shape[1]))
        return best_of(basis, z, known, nearest, self.scoring_rule(), in_form_of(known.outputs, found))


def _is_by_sizes(kernel: Kernel) -> bool:
    if isinstance(kernel, Sum | Product):
        return all(map(_is_by_sizes, kernel.kernels))
    return _is_by_sizes(kernel.kernel) if isinstance(kernel, Scaled | Normalized) else isinstance(kernel, BY_SIZES)


def as_labels(ys: Outputs, name: str) -> Bits:  # (n, d)
    """Sets of labels as rows of bits, checked to be that."""
    rows = as_rows(ys)
    rows = rows.toarray() if sp.issparse(rows) else rows.cpu().numpy()
    wrong = (rows != 0) & (rows != 1)
    if wrong.any():
        at = int(wrong.any(axis=1).argmax())
        got = rows[at][wrong[at]][0]
        raise InputError(f"LabelSet decodes sets of labels: {name} must be 0 or 1. Got {got:g} at index {at}.")
    return rows.astype(np.uint8)


class Problem(NamedTuple):
    """What the search needs to know of the kernel and of the r distinct anchors."""

    values: Floats  # (d + 1, sizes, largest size + 1): k by |y|, the size class of an anchor and |a ∩ y|
    diag: Floats  # (d + 1,): k(y, y) by |y|
    smallest: int  # the least |y| for which k is defined, 0 or 1
    size_class: Integers  # (r,)
    having: Integers  # the anchors that have label 0, then those that have label 1, …
    first: Integers  # (d + 1,): where those of a label begin


def _problem(basis: SketchedBasis) -> tuple[Problem, Tensor]:
    """The problem, and the basis functions ẽ_i = Σ_j functions[j, i] k(·, a_j) over its distinct anchors, (r, p)."""
    anchors, inverse = np.unique(as_labels(basis.anchors, "anchors"), axis=0, return_inverse=True)
    weights = basis.projection if basis.weights is None else basis.projection @ basis.weights
    functions = torch.zeros(len(anchors), basis.dim, dtype=weights.dtype)  # added up where the order is always the same
    functions.index_add_(0, torch.from_numpy(inverse.ravel()), weights.T.cpu())
    sizes, size_class = np.unique(anchors.sum(axis=1, dtype=np.int64), return_inverse=True)
    by_label = sp.csc_array(anchors)
    having, first = by_label.indices.astype(np.int64), by_label.indptr.astype(np.int64)
    problem = Problem(*_by_sizes(basis.kernel, sizes, anchors.shape[1]), size_class, having, first)
    return problem, functions.to(weights.device)


def _by_sizes(kernel: Kernel, sizes: Integers, d: int) -> tuple[Floats, Floats, int]:
    """k as a table, from its values for the first s labels against windows of consecutive labels.

    A window of a labels that starts at the label s − i shares i labels with the first s. Costs d² values per size.
    """
    prefixes = np.tri(d + 1, d, -1)  # row s has the first s labels
    smallest = 0 if _is_defined(kernel, prefixes[:1]) else 1
    values = np.zeros((d + 1, len(sizes), int(sizes[-1]) + 1))
    for place, a in enumerate(sizes):
        windows = prefixes[a:] - prefixes[: d + 1 - a]
        s, i = np.indices((d + 1, a + 1))
        exists = (s >= smallest) & (s - i >= 0) & (s - i <= d - a)
        s, i = s[exists], i[exists]
        values[s, place, i] = kernel(prefixes[smallest:], windows).numpy()[s - smallest, s - i]
    diag = np.zeros(d + 1)
    diag[smallest:] = kernel.diag(prefixes[smallest:]).numpy()
    return values, diag, smallest


def _is_defined(kernel: Kernel, ys: Outputs) -> bool:
    try:
        kernel(ys, ys)
    except UndefinedAt:
        return False
    return True


def _searched(problem: Problem, coefficients: Floats, starts: Bits) -> Bits:  # (n, r), (n, starts, d) -> (n, d)
    starts = np.concatenate([starts, _plain_starts(problem, coefficients)], axis=1)
    found = np.empty_like(starts[:, 0])

    def work(start: int, stop: int) -> None:
        _search(problem, coefficients[start:stop], starts[start:stop], found[start:stop])

    run_in_threads(work, len(found), SHARE)
    return found


def _plain_starts(problem: Problem, coefficients: Floats) -> Bits:  # (n, 2, d)
    """The empty set and {l : Σ_j c_j a_jl > ½}. Where k is undefined for the empty set, the largest sum is in both."""
    shape = len(problem.size_class), len(problem.first) - 1
    anchors = sp.csc_array((np.ones(len(problem.having)), problem.having, problem.first), shape=shape)
    sums = coefficients @ anchors
    starts = np.stack([np.zeros_like(sums), sums > 0.5], axis=1).astype(np.uint8)
    if problem.smallest:
        np.put_along_axis(starts, sums.argmax(axis=1)[:, None, None], 1, axis=2)
    return starts


@compiled
def _search(problem: Problem, coefficients: Floats, starts: Bits, found: Bits) -> None:
    """Fill in the best set of every row; of equal ones that of the earlier start."""
    for row in range(len(found)):
        best = -np.inf
        for start in starts[row]:
            y = start.copy()
            score = _climb(problem, coefficients[row], y)
            if score > best:
                best, found[row] = score, y


@compiled
def _climb(problem: Problem, c: Floats, y: Bits) -> float:
    """Improve y until neither one flip helps nor one after a label was taken out; its score.

    Better means better in single precision, as for candidates: rounding cannot send the search in circles.
    """
    shared, scores = _shared(problem, y), np.empty(len(y))
    score = 2 * _sum(problem, c, shared, y.sum()) - problem.diag[y.sum()]
    while True:
        _score_flips(problem, c, y, shared, scores)
        label = int(scores.argmax())
        if np.float32(scores[label]) > np.float32(score):
            score = scores[label]
            _flip(problem, y, shared, label)
            continue
        out, label, after = _best_after_removal(problem, c, y, shared, scores)
        if not np.float32(after) > np.float32(score):
            return score
        score = after
        _flip(problem, y, shared, out)
        _flip(problem, y, shared, label)


@compiled
def _best_after_removal(
    problem: Problem, c: Floats, y: Bits, shared: Integers, scores: Floats
) -> tuple[int, int, float]:
    """The label to take out of y, the one to flip then, and the score after both."""
    out, then, best = 0, 0, -np.inf
    if y.sum() == problem.smallest:
        return out, then, best
    for label in range(len(y)):
        if not y[label]:
            continue
        _flip(problem, y, shared, label)
        _score_flips(problem, c, y, shared, scores)
        other = int(scores.argmax())
        if scores[other] > best:
            out, then, best = label, other, scores[other]
        _flip(problem, y, shared, label)
    return out, then, best


@compiled
def _shared(problem: Problem, y: Bits) -> Integers:  # (r,)
    """|a_j ∩ y| for every anchor."""
    shared = np.zeros(len(problem.size_class), np.int64)
    for label in np.flatnonzero(y):
        for slot in range(problem.first[label], problem.first[label + 1]):
            shared[problem.having[slot]] += 1
    return shared


@compiled
def _flip(problem: Problem, y: Bits, shared: Integers, label: int) -> None:
    step = -1 if y[label] else 1
    y[label] += step
    for slot in range(problem.first[label], problem.first[label + 1]):
        shared[problem.having[slot]] += step


@compiled
def _sum(problem: Problem, c: Floats, shared: Integers, size: int) -> float:
    """Σ_j c_j k(a_j, y) for a y of that size that shares so many labels with each anchor."""
    values, total = problem.values[size], 0.0
    for j in range(len(c)):
        total += c[j] * values[problem.size_class[j], shared[j]]
    return total


@compiled
def _score_flips(problem: Problem, c: Floats, y: Bits, shared: Integers, scores: Floats) -> None:
    """The scores of all sets that differ from y in one label.

    A flip changes |a_j ∩ y| only for the anchors that have the label: a sum over all anchors is formed once for each
    of the two sizes, and corrected for those.
    """
    size = y.sum()
    larger = _sum(problem, c, shared, size + 1) if size < len(y) else 0.0
    smaller = _sum(problem, c, shared, size - 1) if size > problem.smallest else 0.0
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
