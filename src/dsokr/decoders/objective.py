"""The paper's score of graphs under a basis, for kernels with features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.compute import compiled
from dsokr.decoders.base import combine_anchors
from dsokr.graphs import GraphBatch
from dsokr.kernels import (
    FeatureKernel,
    FeatureSum,
    NormalizedFeatures,
    ScaledFeatures,
    VertexHistogram,
    WeisfeilerLehman,
)
from dsokr.kernels.features import Postings
from dsokr.kernels.graphs import refinements
from dsokr.kernels.hashing import find, mix, pair


@dataclass(frozen=True, eq=False)
class Term:
    """factor · ⟨φ(y), φ(y')⟩, or with φ / ‖φ‖ in place of φ: one of the kernels that a kernel is the sum of."""

    kernel: FeatureKernel
    factor: float
    normalised: bool
    postings: Postings  # of the anchors
    scales: np.ndarray  # (anchors,): multiples of the anchors' φ

    @staticmethod
    def of(kernel: FeatureKernel, anchors: GraphBatch, factor: float, normalised: bool) -> Term:
        features = kernel.features(anchors)
        lengths = np.sqrt(features.squared_norms()) if normalised else np.ones(len(features))
        return Term(kernel, factor, normalised, Postings.of(features), factor / lengths)

    def score(
        self, weights: np.ndarray, owners: np.ndarray, graphs: GraphBatch
    ) -> tuple[np.ndarray, np.ndarray]:  # (graphs,), (graphs,) uint64
        """2 h(y) − k(y, y), as far as this term goes, and a name for y's features; −∞ where φ has no direction."""
        products, squares, names = self._measure(weights, owners, graphs)
        if not self.normalised:
            return 2 * products - self.factor * squares, names
        lengths = np.sqrt(np.where(squares > 0, squares, 1.0))
        return np.where(squares > 0, 2 * products / lengths - self.factor, -np.inf), names

    def _measure(
        self, weights: np.ndarray, owners: np.ndarray, graphs: GraphBatch
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """⟨w, φ(y)⟩, ‖φ(y)‖² and names."""
        kernel, table = self.kernel, (self.postings.ids, self.postings.slots)
        if isinstance(kernel, WeisfeilerLehman) and isinstance(kernel.base, VertexHistogram):
            colours = np.stack(list(refinements(graphs, kernel.iterations, kernel.edge_labels)))
            return _count_colours(graphs.offsets, colours, *table, owners, weights)
        features = kernel.features(graphs)
        columns = self.postings.columns(features)
        return _add_features(features.indptr, features.ids, features.values, columns, owners, weights)


def split_terms(kernel: FeatureKernel, anchors: GraphBatch, factor: float = 1.0) -> Iterator[Term]:
    """The terms of a sum, one by one: each is normalised by itself."""
    if isinstance(kernel, FeatureSum):
        for part in kernel.kernels:
            yield from split_terms(part, anchors, factor)
    elif isinstance(kernel, ScaledFeatures):
        yield from split_terms(kernel.kernel, anchors, factor * kernel.factor)
    elif isinstance(kernel, NormalizedFeatures):
        yield Term.of(kernel.kernel, anchors, factor, normalised=True)
    else:
        yield Term.of(kernel, anchors, factor, normalised=False)


@dataclass(frozen=True, eq=False)
class Objective:
    """2 h(y) − k(y, y) with h = Σ_j z_j ẽ_j, for one row z of coordinates per input."""

    terms: tuple[Term, ...]
    weights: tuple[np.ndarray, ...]  # of every term, (inputs, coordinates): w = Σ_j c_j φ(a_j), times the factor

    @staticmethod
    def of(terms: tuple[Term, ...], basis: SketchedBasis, z: Tensor) -> Objective:
        c = combine_anchors(basis, z).cpu().numpy()
        return Objective(terms, tuple(term.postings.summed(c * term.scales) for term in terms))

    def score(self, owners: np.ndarray, graphs: GraphBatch) -> tuple[np.ndarray, np.ndarray]:  # (graphs,), (graphs, t)
        """Score graph i for input ``owners[i]``; also return names, equal term by term for graphs of equal features."""
        pairs = zip(self.terms, self.weights, strict=True)
        scores, names = zip(*(term.score(weights, owners, graphs) for term, weights in pairs), strict=True)
        return np.sum(scores, axis=0), np.stack(names, axis=1)


@compiled
def _name(identity, value):  # type: ignore[no-untyped-def]  # compiled for uint64 and float64
    """What a coordinate adds to the name of a vector."""
    return mix(identity) * np.uint64(np.int64(np.floor(value * 1048576.0 + 0.5)))


@compiled
def _add_features(  # type: ignore[no-untyped-def] # compiled
    indptr, ids, values, columns, owners, weights
):
    """Σ_c w_c φ_c, Σ_c φ_c² and the name of every row of features."""
    products, squares, names = np.zeros(len(owners)), np.zeros(len(owners)), np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for k in range(indptr[i], indptr[i + 1]):
            if columns[k] >= 0:
                products[i] += values[k] * weights[owners[i], columns[k]]
            squares[i] += values[k] * values[k]
            names[i] += _name(ids[k], values[k])
    return products, squares, names


@compiled
def _count_colours(  # type: ignore[no-untyped-def] # compiled
    offsets, colours, ids, slots, owners, weights
):
    """The same where φ counts the colours of nodes, (iterations + 1, nodes): node by node, without forming φ.

    Σ_c φ_c² is the number of pairs of nodes of one colour.
    """
    products, squares, names = np.zeros(len(owners)), np.zeros(len(owners)), np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for t in range(len(colours)):
            own, pairs = colours[t, offsets[i] : offsets[i + 1]], 0
            for v in range(len(own)):
                identity = pair(t, own[v])
                at = find(slots, ids, identity)
                if at >= 0:
                    products[i] += weights[owners[i], at]
                names[i] += _name(identity, 1.0)
                for u in range(v):
                    pairs += own[u] == own[v]
            squares[i] += len(own) + 2 * pairs
    return products, squares, names
