"""Kernels on graphs, given as a list of :class:`Graph` or a :class:`GraphBatch`. An empty graph has no features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsokr.compute import compiled
from dsokr.errors import check_integers
from dsokr.graphs import GraphBatch, starts_of
from dsokr.kernels.features import FeatureKernel, Features, require_features
from dsokr.kernels.hashing import mix, pair
from dsokr.kernels.paths import close_pairs
from dsokr.outputs import Outputs


@dataclass(frozen=True)
class VertexHistogram(FeatureKernel):
    """Σ_l #{v ∈ G : l(v) = l} · #{v' ∈ G' : l(v') = l}, over node labels l.

    >>> from dsokr.graphs import Graph
    >>> water, methanol = Graph((8,)), Graph((6, 8), ((0, 1, 1),))
    >>> VertexHistogram()([water], [water, methanol])
    tensor([[1., 1.]], dtype=torch.float64)
    """

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        return Features.of(batch.offsets, batch.labels)


@dataclass(frozen=True)
class EdgeHistogram(FeatureKernel):
    """Σ_l #{e ∈ G : l(e) = l} · #{e' ∈ G' : l(e') = l}, over edge labels l; the labels of the ends play no part.

    >>> from dsokr.graphs import Graph
    >>> EdgeHistogram()([Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1)))], [Graph((6, 8), ((0, 1, 1),))])
    tensor([[2.]], dtype=torch.float64)
    """

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        once = np.repeat(np.arange(len(batch.labels)), batch.degrees()) < batch.neighbors
        return Features.of(starts_of(once)[batch.indptr[batch.offsets]], batch.edge_labels[once])


@dataclass(frozen=True)
class ShortestPath(FeatureKernel):
    """Σ_{u ≠ v} Σ_{u' ≠ v'} [D(u, v) = D(u', v') < ∞] [l(u) = l(u')] [l(v) = l(v')], over ordered pairs of nodes.

    D counts edges. Without labels only the distances are compared.

    >>> from dsokr.graphs import Graph
    >>> path = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1)))
    >>> ShortestPath()([path], [path]), ShortestPath(labels=False)([path], [path])
    (tensor([[8.]], dtype=torch.float64), tensor([[20.]], dtype=torch.float64))
    """

    labels: bool = True

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        labels = batch.labels if self.labels else np.zeros_like(batch.labels)
        pairs = close_pairs(batch)
        pairs = pairs.select(pairs.apart > 0)
        return Features.of(2 * pairs.starts, _path_names(labels, pairs.u, pairs.v, pairs.apart))


@dataclass(frozen=True)
class WeisfeilerLehman(FeatureKernel):
    """Σ_{t = 0}^{iterations} base(G_t, G'_t), where G_0 = G and the label of a node of G_{t+1} is its label in G_t
    together with the multiset of its neighbours' labels in G_t, each with the label of the edge if ``edge_labels``.

    The base is any kernel on graphs with features; the default gives the subtree kernel (WL-VH).

    >>> from dsokr.graphs import Graph
    >>> ethanol, ether = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1))), Graph((6, 8, 6), ((0, 1, 1), (1, 2, 1)))
    >>> WeisfeilerLehman(iterations=1)([ethanol], [ethanol, ether])
    tensor([[8., 5.]], dtype=torch.float64)
    """

    iterations: int
    edge_labels: bool = False
    base: FeatureKernel = VertexHistogram()

    def __post_init__(self) -> None:
        check_integers(self, iterations=0)
        require_features(self, "base", self.base)

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        colours = refinements(batch, self.iterations, self.edge_labels)
        return Features.joined([self.base.features(batch.relabelled(c)).tagged(t) for t, c in enumerate(colours)])


@dataclass(frozen=True)
class Core(FeatureKernel):
    """Σ_{i = 0}^{δ} base(C_i, C'_i), where C_i is the i-core of G and δ the smaller degeneracy of the two graphs.

    The i-core is the largest subgraph in which every node has at least i neighbours.

    >>> from dsokr.graphs import Graph
    >>> ring = Graph((6, 6, 6, 8), ((0, 1, 1), (1, 2, 1), (0, 2, 1), (2, 3, 1)))
    >>> Core(VertexHistogram())([ring], [ring])  # 3² + 1², twice, and 3² in the 2-core
    tensor([[29.]], dtype=torch.float64)
    """

    base: FeatureKernel

    def __post_init__(self) -> None:
        require_features(self, "base", self.base)

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        cores = core_numbers(batch)
        parts = [self.base.features(batch).tagged(0)]
        for level in range(1, cores.max(initial=0) + 1):
            core = batch.induced(cores >= level)
            there = np.flatnonzero(np.diff(core.offsets))  # beyond its degeneracy a graph has no core to compare
            parts.append(self.base.features(core[there]).spread(there, len(batch)).tagged(level))
        return Features.joined(parts)


def refinements(batch: GraphBatch, iterations: int, edge_labels: bool) -> Iterator[np.ndarray]:  # each (nodes,)
    """The node labels of G_0, …, G_iterations, from G_1 on as 64-bit names."""
    labels = batch.labels
    yield labels
    for _ in range(iterations):
        labels = _refine_all(labels, batch.indptr, batch.neighbors, batch.edge_labels, edge_labels)
        yield labels


def core_numbers(batch: GraphBatch) -> np.ndarray:  # (nodes,)
    """The largest i such that the node is in the i-core of its graph, in linear time (Batagelj and Zaveršnik)."""
    return _core_numbers(batch.degrees(), batch.indptr, batch.neighbors)


@compiled
def refine(node, first, labels, indptr, neighbors, edge_labels, use_edges):  # type: ignore[no-untyped-def]  # compiled
    """Return the next WL label of a node, a 64-bit name: its label with the multiset of its neighbours' labels.

    The label of node i is ``labels[i - first]``, so that the labels may be those of one graph of a batch.
    """
    around = np.uint64(0)
    for k in range(indptr[node], indptr[node + 1]):
        label = labels[neighbors[k] - first]
        around += pair(edge_labels[k], label) if use_edges else mix(label)
    return np.int64(pair(labels[node - first], around))


@compiled
def _refine_all(
    labels: np.ndarray, indptr: np.ndarray, neighbors: np.ndarray, edge_labels: np.ndarray, use_edges: bool
) -> np.ndarray:
    out = np.empty(len(labels), np.int64)
    for i in range(len(labels)):
        out[i] = refine(i, 0, labels, indptr, neighbors, edge_labels, use_edges)
    return out


@compiled
def _path_names(labels: np.ndarray, us: np.ndarray, vs: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """The names of the paths from u to v and from v to u, one after the other."""
    names = np.empty(2 * len(us), np.uint64)
    for k in range(len(us)):
        names[2 * k] = pair(pair(apart[k], labels[us[k]]), labels[vs[k]])
        names[2 * k + 1] = pair(pair(apart[k], labels[vs[k]]), labels[us[k]])
    return names


@compiled
def _core_numbers(degrees: np.ndarray, indptr: np.ndarray, neighbors: np.ndarray) -> np.ndarray:
    core = degrees.copy()
    order = np.argsort(core, kind="mergesort")
    place = np.empty(len(core), np.int64)
    bins = np.zeros(core.max() + 2 if len(core) else 1, np.int64)  # where nodes of each remaining degree start in order
    for i in range(len(order)):
        place[order[i]] = i
        bins[core[i] + 1] += 1
    bins = np.cumsum(bins)
    for i in range(len(order)):
        v = order[i]
        for k in range(indptr[v], indptr[v + 1]):
            u = neighbors[k]
            if (
                core[u] > core[v]
            ):  # u loses a neighbour: swap it to the front of its bin and move the bin's start past it
                w = order[bins[core[u]]]
                order[place[u]], order[place[w]] = w, u
                place[u], place[w] = place[w], place[u]
                bins[core[u]] += 1
                core[u] -= 1
    return core
