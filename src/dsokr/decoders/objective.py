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
from dsokr.decoders.base import combine_anchors
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
from dsokr.kernels.graphs import refine, refinements
from dsokr.kernels.hashing import find, mix, pair
from dsokr.kernels.postings import Postings

LOCAL_FROM = 24  # nodes of a graph from which it pays to look only near an edit; see bench/graph_search.py


class Measures(NamedTuple):
    """What the scores of graphs y are made of, for every term of a kernel; a row per graph, a column per term."""

    products: np.ndarray  # ⟨w, φ(y)⟩
    squares: np.ndarray  # ‖φ(y)‖²
    names: np.ndarray  # uint64, equal for graphs of equal features


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

    @property
    def is_local(self) -> bool:
        """Whether features describe the surroundings of single nodes."""
        return isinstance(self.kernel, WeisfeilerLehman) and isinstance(self.kernel.base, VertexHistogram)

    def measure(self, weights: np.ndarray, owners: np.ndarray, graphs: GraphBatch) -> Measures:
        """Measure graph i for input ``owners[i]``."""
        features = self.kernel.features(graphs)
        columns = self.postings.columns(features)
        return Measures(*_measure(features.indptr, features.ids, features.values, columns, owners, weights))

    def measure_near(
        self, weights: np.ndarray, owners: np.ndarray, parents: GraphBatch, measures: Measures, near: Neighbors
    ) -> Measures:
        """Measure edited graphs, from their parents' measures and what the edits touched.

        In small graphs an edit touches nearly everything, and all is computed anew.
        """
        small = len(parents.labels) < LOCAL_FROM * len(parents)
        if small or not self.is_local or near.sources is None or near.touched is None:
            return self.measure(weights, owners, near.graphs)
        assert isinstance(self.kernel, WeisfeilerLehman)
        colours = np.stack(list(refinements(parents, self.kernel.iterations, self.kernel.edge_labels)))
        new, edges = near.graphs, self.kernel.edge_labels
        graphs = Edited(new.offsets, new.labels, new.indptr, new.neighbors, new.edge_labels, near.sources, near.touched)
        table = Table(self.postings.ids, self.postings.slots, weights)
        measures = Measures(*(column[near.origins] for column in measures))
        _update(parents.offsets, colours, graphs, near.origins, owners, table, edges, *measures)
        return measures


def split_terms(kernel: FeatureKernel, anchors: GraphBatch, factor: float = 1.0) -> Iterator[Term]:
    """The terms of a sum, one by one: they are normalised and change independently."""
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
        c = combine_anchors(basis, z).cpu().to(torch.float64).numpy()
        return Objective(terms, tuple(term.postings.summed(c * term.scales) for term in terms))

    def measure(self, owners: np.ndarray, graphs: GraphBatch) -> Measures:
        pairs = zip(self.terms, self.weights, strict=True)
        return _join([term.measure(weights, owners, graphs) for term, weights in pairs])

    def measure_near(self, owners: np.ndarray, parents: GraphBatch, measures: Measures, near: Neighbors) -> Measures:
        parts = []
        for t, (term, weights) in enumerate(zip(self.terms, self.weights, strict=True)):
            own = Measures(*(column[:, t] for column in measures))
            parts.append(term.measure_near(weights, owners, parents, own, near))
        return _join(parts)

    def score(self, measures: Measures) -> np.ndarray:  # (graphs,)
        """The paper's rule; −∞ where a graph without features cannot be normalised."""
        products, squares, _ = measures
        factors = np.array([term.factor for term in self.terms])
        lengths = np.sqrt(np.where(squares > 0, squares, 1.0))
        normalised = np.where(squares > 0, 2 * products / lengths - factors, -np.inf)
        plain = 2 * products - factors * squares
        return np.where([term.normalised for term in self.terms], normalised, plain).sum(axis=1)


def _join(terms: list[Measures]) -> Measures:
    return Measures(*(np.stack(columns, axis=1) for columns in zip(*terms, strict=True)))


@compiled
def _name(identity, value):  # type: ignore[no-untyped-def]  # compiled for uint64 and float64
    """What a coordinate adds to the name of a vector: names add up as vectors do."""
    return mix(identity) * np.uint64(np.int64(np.round(value * 1048576.0)))


@compiled
def _measure(  # type: ignore[no-untyped-def] # compiled
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


class Edited(NamedTuple):
    """A batch of edited graphs for compiled code; see :class:`Neighbors` for sources and touched."""

    offsets: np.ndarray
    labels: np.ndarray
    indptr: np.ndarray
    neighbors: np.ndarray
    edge_labels: np.ndarray
    sources: np.ndarray
    touched: np.ndarray


class Table(NamedTuple):
    """The weights of coordinates, by input, and the hash table of their ids."""

    ids: np.ndarray
    slots: np.ndarray
    weights: np.ndarray  # (inputs, coordinates)


class Parent(NamedTuple):
    """A graph before its edits: for every WL iteration t and node v, (iterations + 1, nodes)."""

    colours: np.ndarray
    names: np.ndarray  # under which the kernel counts colours
    worth: np.ndarray  # weights of the names
    times: np.ndarray  # how often the graph has each name
    held: np.ndarray  # all names, sorted


class Changes(NamedTuple):
    """Colours that an edited graph has more (sign 1) or less (sign −1) of than its parent."""

    names: np.ndarray
    signs: np.ndarray
    times: np.ndarray  # how often the parent has the name


@compiled
def _update(  # type: ignore[no-untyped-def] # compiled
    old_offsets, colours, graphs, origins, owners, table, use_edges, products, squares, names
):
    """Turn the measures of every graph's parent, in place, into those of the graph.

    A colour of iteration t can differ only up to t steps from a touched node. One more of a colour changes its φ_c² by
    1 + 2 φ_c, one less by 1 − 2 φ_c.
    """
    parent_at, parent = -1, _prepare_parent(colours[:, :0], table, 0)
    for g in range(len(origins)):
        if origins[g] != parent_at:
            parent_at = origins[g]
            own = colours[:, old_offsets[parent_at] : old_offsets[parent_at + 1]]
            parent = _prepare_parent(own, table, owners[g])
        now = _recolour(g, graphs, parent, use_edges)
        changes, gained = _compare(g, graphs, parent, now, table, owners[g])
        products[g] += gained
        for k in range(len(changes.names)):
            times = changes.times[k]
            for earlier in range(k):
                if changes.names[earlier] == changes.names[k]:
                    times += changes.signs[earlier]
            squares[g] += 1 + 2 * changes.signs[k] * times
            names[g] += _name(changes.names[k], float(changes.signs[k]))


@compiled
def _prepare_parent(colours, table, owner):  # type: ignore[no-untyped-def] # compiled
    names, worth = np.empty(colours.shape, np.uint64), np.empty(colours.shape)
    times = np.empty(colours.shape, np.int64)
    for t in range(len(colours)):
        for v in range(colours.shape[1]):
            names[t, v] = pair(t, colours[t, v])
    held = np.sort(names.ravel())
    for t in range(len(colours)):
        for v in range(colours.shape[1]):
            worth[t, v], times[t, v] = _weigh(table, owner, names[t, v]), _count(held, names[t, v])
    return Parent(colours, names, worth, times, held)


@compiled
def _recolour(g, graphs, parent, use_edges):  # type: ignore[no-untyped-def] # compiled
    """The WL colours of an edited graph: computed near the touched nodes, the parent's elsewhere."""
    first, n, depth = graphs.offsets[g], graphs.offsets[g + 1] - graphs.offsets[g], len(parent.colours) - 1
    away = _measure_distances(g, graphs, depth)
    now = np.empty((depth + 1, n), np.int64)
    for t in range(depth + 1):
        for v in range(n):
            if away[v] > t:
                now[t, v] = parent.colours[t, graphs.sources[first + v]]
            elif t == 0:
                now[t, v] = graphs.labels[first + v]
            else:
                arrays = (graphs.indptr, graphs.neighbors, graphs.edge_labels)
                now[t, v] = refine(first + v, first, now[t - 1], *arrays, use_edges)
    return now


@compiled
def _compare(g, graphs, parent, now, table, owner):  # type: ignore[no-untyped-def] # compiled
    """List the colours that changed; also returns what that adds to ⟨w, φ⟩."""
    first, (depth, n) = graphs.offsets[g], now.shape
    old = parent.names.shape[1]
    names, signs = np.empty(depth * (n + old), np.uint64), np.empty(depth * (n + old), np.int64)
    times, gone = np.empty(depth * (n + old), np.int64), np.ones((depth, old), np.bool_)
    count, gained = 0, 0.0
    for t in range(depth):
        for v in range(n):
            source = graphs.sources[first + v]
            if source >= 0 and now[t, v] == parent.colours[t, source]:
                gone[t, source] = False
                continue
            name = pair(t, now[t, v])
            names[count], signs[count], times[count] = name, 1, _count(parent.held, name)
            gained += _weigh(table, owner, name)
            count += 1
        for u in range(old):
            if gone[t, u]:
                names[count], signs[count], times[count] = parent.names[t, u], -1, parent.times[t, u]
                gained -= parent.worth[t, u]
                count += 1
    return Changes(names[:count], signs[:count], times[:count]), gained


@compiled
def _measure_distances(g, graphs, farthest):  # type: ignore[no-untyped-def] # compiled
    """The number of steps of every node from a touched one, ``farthest`` + 1 if more."""
    first, n = graphs.offsets[g], graphs.offsets[g + 1] - graphs.offsets[g]
    away, queue, head, tail = np.full(n, farthest + 1), np.empty(n, np.int64), 0, 0
    for v in range(n):
        if graphs.touched[first + v]:
            away[v], queue[tail] = 0, v
            tail += 1
    while head < tail:
        u = queue[head]
        head += 1
        for k in range(graphs.indptr[first + u], graphs.indptr[first + u + 1]):
            v = graphs.neighbors[k] - first
            if away[u] < farthest and away[v] > farthest:
                away[v], queue[tail] = away[u] + 1, v
                tail += 1
    return away


@compiled
def _weigh(table, owner, name):  # type: ignore[no-untyped-def] # compiled
    """The weight of a coordinate, zero if no anchor has it."""
    at = find(table.slots, table.ids, name)
    return table.weights[owner, at] if at >= 0 else np.float32(0)


@compiled
def _count(held, name):  # type: ignore[no-untyped-def] # compiled
    """How often a name is in a sorted array."""
    return np.searchsorted(held, name, side="right") - np.searchsorted(held, name)
