"""The paper's score of graphs under a basis, for kernels with features, and how an edit changes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.compute import compiled
from dsokr.decoders.moves import Neighbors
from dsokr.graphs import GraphBatch
from dsokr.kernels import (
    FeatureKernel,
    FeatureSum,
    NormalizedFeatures,
    ScaledFeatures,
    VertexHistogram,
    WeisfeilerLehman,
)
from dsokr.kernels.graphs import refinements
from dsokr.kernels.hashing import mix, pair
from dsokr.kernels.postings import Postings

LOCAL_FROM = 24  # nodes of a graph from which it pays to look only near an edit; see bench/graph_search.py


class Parts(NamedTuple):
    """For graphs y, each of one input: ⟨w, φ(y)⟩, ‖φ(y)‖² and a name that y shares with graphs of equal features."""

    products: np.ndarray
    squares: np.ndarray
    names: np.ndarray  # uint64

    def rows(self, index: np.ndarray) -> Parts:
        return Parts(*(part[index] for part in self))


@dataclass(frozen=True, eq=False)
class Term:
    """factor · ⟨φ(y), φ(y')⟩, or with φ / ‖φ‖ in place of φ: one of the kernels that a kernel is the sum of."""

    kernel: FeatureKernel
    factor: float
    normalised: bool
    postings: Postings  # of the anchors
    scales: np.ndarray  # (anchors,): what the anchors' φ are multiplied with

    @staticmethod
    def of(kernel: FeatureKernel, factor: float, normalised: bool, anchors: GraphBatch) -> Term:
        features = kernel.features(anchors)
        scales = np.full(len(features), factor)
        if normalised:
            scales /= np.sqrt(features.squared_norms())
        return Term(kernel, factor, normalised, Postings.of(features), scales)

    @property
    def is_local(self) -> bool:
        """Do features stand for the surroundings of single nodes?"""
        return isinstance(self.kernel, WeisfeilerLehman) and isinstance(self.kernel.base, VertexHistogram)

    def weights(self, coefficients: np.ndarray) -> np.ndarray:  # (n, anchors) -> (n, coordinates)
        """w = Σ_j c_j φ(a_j), times the factor."""
        return self.postings.summed(coefficients * self.scales)

    def scores(self, parts: Parts) -> np.ndarray:
        """2 h(y) − k(y, y), as far as this term goes; −∞ where a graph without features cannot be normalised."""
        if self.normalised:
            there = parts.squares > 0
            lengths = np.sqrt(np.where(there, parts.squares, 1.0))
            return np.where(there, 2 * parts.products / lengths - self.factor, -np.inf)
        return 2 * parts.products - self.factor * parts.squares

    def parts(self, weights: np.ndarray, owners: np.ndarray, graphs: GraphBatch) -> Parts:
        features = self.kernel.features(graphs)
        columns = self.postings.columns(features)
        return Parts(*_summed_up(features.indptr, features.ids, features.values, columns, owners, weights))

    def parts_near(
        self, weights: np.ndarray, owners: np.ndarray, parents: GraphBatch, parents_parts: Parts, near: Neighbors
    ) -> Parts:
        """The parts of edited graphs, from those of the graphs they were made of and from what the edits touched.

        In small graphs an edit touches nearly everything, and all is computed anew.
        """
        small = len(parents.labels) < LOCAL_FROM * len(parents)
        if small or not self.is_local or near.sources is None or near.touched is None:
            return self.parts(weights, owners, near.graphs)
        assert isinstance(self.kernel, WeisfeilerLehman)
        depth, edge_labels = self.kernel.iterations, self.kernel.edge_labels
        colours = np.stack(list(refinements(parents, depth, edge_labels)))
        parts = parents_parts.rows(near.origins)
        new = near.graphs
        graphs = (new.offsets, new.labels, new.indptr, new.neighbors, new.edge_labels)
        edits = (near.origins, near.sources, near.touched)
        table = (self.postings.ids, self.postings.slots, owners, weights)
        _change(parents.offsets, colours, edge_labels, *graphs, *edits, *table, *parts)
        return parts


def terms_of(kernel: FeatureKernel, anchors: GraphBatch, factor: float = 1.0) -> Iterator[Term]:
    """The terms of a sum, each by itself: their features are normalised apart, and change apart."""
    if isinstance(kernel, FeatureSum):
        for part in kernel.kernels:
            yield from terms_of(part, anchors, factor)
    elif isinstance(kernel, ScaledFeatures):
        yield from terms_of(kernel.kernel, anchors, factor * kernel.factor)
    elif isinstance(kernel, NormalizedFeatures):
        yield Term.of(kernel.kernel, factor, True, anchors)
    else:
        yield Term.of(kernel, factor, False, anchors)


@dataclass(frozen=True, eq=False)
class Objective:
    """2 h(y) − k(y, y) with h(y) = Σ_j (zᵀ Ω R)_j k(a_j, y), for one row z of coefficients per input."""

    terms: tuple[Term, ...]
    weights: tuple[np.ndarray, ...]  # of every term, (inputs, coordinates)

    @staticmethod
    def of(terms: tuple[Term, ...], basis: SketchedBasis, z: Tensor) -> Objective:
        combined = z @ basis.projection
        combined = combined if basis.weights is None else combined @ basis.weights
        c = combined.cpu().to(torch.float64).numpy()
        return Objective(terms, tuple(term.weights(c) for term in terms))

    def parts(self, owners: np.ndarray, graphs: GraphBatch) -> tuple[Parts, ...]:
        """Of graph i, for input ``owners[i]``."""
        return tuple(t.parts(w, owners, graphs) for t, w in zip(self.terms, self.weights, strict=True))

    def parts_near(
        self, owners: np.ndarray, parents: GraphBatch, parts: tuple[Parts, ...], near: Neighbors
    ) -> tuple[Parts, ...]:
        rows = zip(self.terms, self.weights, parts, strict=True)
        return tuple(t.parts_near(w, owners, parents, own, near) for t, w, own in rows)

    def scores(self, parts: tuple[Parts, ...]) -> np.ndarray:
        return sum(term.scores(own) for term, own in zip(self.terms, parts, strict=True))  # type: ignore[return-value] # there is a term


@compiled
def named(identity, value):  # type: ignore[no-untyped-def]  # compiled for uint64 and float64
    """What a coordinate adds to the name of a vector: names add up as vectors do."""
    return mix(identity) * np.uint64(np.int64(np.round(value * 1048576.0)))


@compiled
def _summed_up(  # type: ignore[no-untyped-def] # compiled
    indptr, ids, values, columns, owners, weights
):
    """Σ_c w_c φ_c, Σ_c φ_c² and the name of every row of features."""
    products, squares, names = np.zeros(len(owners)), np.zeros(len(owners)), np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for k in range(indptr[i], indptr[i + 1]):
            if columns[k] >= 0:
                products[i] += values[k] * weights[owners[i], columns[k]]
            squares[i] += values[k] * values[k]
            names[i] += named(ids[k], values[k])
    return products, squares, names


@compiled
def _change(  # type: ignore[no-untyped-def] # compiled
    old_offsets,
    colours,  # (iterations + 1, nodes of the parents)
    use_edges,
    offsets,
    labels,
    indptr,
    neighbors,
    edge_labels,
    origins,
    sources,
    touched,
    ids,
    slots,
    owners,
    weights,
    products,
    squares,
    names,
):
    """Add to the parts of every parent, in place, what its edited graph has more or less of each colour.

    A colour of iteration t can differ only up to t steps from a touched node. Those are computed anew; the colours that
    the same nodes had, and all colours of nodes that are gone, are taken off. One more of a colour changes its φ_c² by
    1 + 2 φ_c, one less by 1 − 2 φ_c.
    """
    depth, parent = len(colours) - 1, -1
    most = (offsets[1:] - offsets[:-1]).max() if len(origins) else 0
    most += (old_offsets[1:] - old_offsets[:-1]).max()
    away, queue, now, before = np.empty((4, most), np.int64)
    events = 2 * (depth + 1) * most
    changed, signs, counts = np.empty(events, np.uint64), np.empty(events, np.int64), np.empty(events, np.int64)
    gone = np.empty(most, np.bool_)
    for g in range(len(origins)):
        if origins[g] != parent:
            parent = origins[g]
            base, old_n = old_offsets[parent], old_offsets[parent + 1] - old_offsets[parent]
            tagged = _tagged(colours[:, base : base + old_n])
            held = np.sort(tagged.ravel())
            worth, often = _looked_up(tagged, held, ids, slots, weights[owners[g]])
        first, n = offsets[g], offsets[g + 1] - offsets[g]
        _steps_from(touched, first, n, indptr, neighbors, depth, away, queue)
        gone[:old_n] = True
        for v in range(n):
            now[v] = labels[first + v]
            if sources[first + v] >= 0:
                gone[sources[first + v]] = False
        count = 0
        for t in range(depth + 1):
            if t:
                before, now = now, before
            for v in range(n):
                source = sources[first + v]
                if away[v] > t:
                    now[v] = colours[t, base + source]
                    continue
                if t:
                    now[v] = _colour(first + v, first, before, indptr, neighbors, edge_labels, use_edges)
                if source < 0 or now[v] != colours[t, base + source]:
                    name = pair(t, now[v])
                    changed[count], signs[count], counts[count] = name, 1, _times(held, name)
                    products[g] += _weight(name, ids, slots, weights[owners[g]])
                    count += 1
                    if source >= 0:
                        gone[source] = True
            for u in range(old_n):
                if gone[u]:
                    changed[count], signs[count], counts[count] = tagged[t, u], -1, often[t, u]
                    products[g] -= worth[t, u]
                    count += 1
        for k in range(count):
            for earlier in range(k):
                if changed[earlier] == changed[k]:
                    counts[k] += signs[earlier]
            squares[g] += 1 + 2 * signs[k] * counts[k]
            names[g] += named(changed[k], float(signs[k]))


@compiled
def _tagged(colours):  # type: ignore[no-untyped-def] # compiled
    """The names under which the kernel counts colours, of all iterations."""
    out = np.empty(colours.shape, np.uint64)
    for t in range(len(colours)):
        for v in range(colours.shape[1]):
            out[t, v] = pair(t, colours[t, v])
    return out


@compiled
def _looked_up(tagged, held, ids, slots, weights):  # type: ignore[no-untyped-def] # compiled
    """The weight of every name, and how often it is among those held."""
    worth, often = np.empty(tagged.shape), np.empty(tagged.shape, np.int64)
    for t in range(len(tagged)):
        for v in range(tagged.shape[1]):
            worth[t, v] = _weight(tagged[t, v], ids, slots, weights)
            often[t, v] = _times(held, tagged[t, v])
    return worth, often


@compiled
def _steps_from(touched, first, n, indptr, neighbors, farthest, away, queue):  # type: ignore[no-untyped-def] # compiled
    """How many steps every node of a graph is from a touched one, ``farthest`` + 1 if more."""
    head, tail = 0, 0
    for v in range(n):
        away[v] = farthest + 1
        if touched[first + v]:
            away[v], queue[tail] = 0, v
            tail += 1
    while head < tail:
        u = queue[head]
        head += 1
        if away[u] == farthest:
            break
        for k in range(indptr[first + u], indptr[first + u + 1]):
            v = neighbors[k] - first
            if away[v] > farthest:
                away[v], queue[tail] = away[u] + 1, v
                tail += 1


@compiled
def _colour(v, first, before, indptr, neighbors, edge_labels, use_edges):  # type: ignore[no-untyped-def] # compiled
    """The next colour of a node, as in ``dsokr.kernels.graphs``."""
    around = np.uint64(0)
    for k in range(indptr[v], indptr[v + 1]):
        colour = before[neighbors[k] - first]
        around += pair(edge_labels[k], colour) if use_edges else mix(colour)
    return np.int64(pair(before[v - first], around))


@compiled
def _weight(name, ids, slots, weights):  # type: ignore[no-untyped-def] # compiled
    """What a coordinate is worth: nothing if no anchor has it."""
    last = np.uint64(len(slots) - 1)
    at = mix(name) & last
    while slots[at] >= 0 and ids[slots[at]] != name:
        at = (at + np.uint64(1)) & last
    return weights[slots[at]] if slots[at] >= 0 else np.float32(0)


@compiled
def _times(held, name):  # type: ignore[no-untyped-def] # compiled
    """How often a name is in a sorted array."""
    low, high = 0, len(held)
    while low < high:
        middle = (low + high) // 2
        if held[middle] < name:
            low = middle + 1
        else:
            high = middle
    count = 0
    while low + count < len(held) and held[low + count] == name:
        count += 1
    return count
