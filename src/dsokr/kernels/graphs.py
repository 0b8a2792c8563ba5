"""Kernels on graphs. An empty graph has no features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsokr.compute import compiled, inlined
from dsokr.errors import check_fields
from dsokr.graphs import GraphBatch, starts_of
from dsokr.kernels.features import FeatureKernel, Features
from dsokr.kernels.hashing import mix, pair
from dsokr.kernels.rooted import breadth_first, name_balls
from dsokr.kernels.sparse import Split
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

    def split(self, ys: Outputs) -> Split:
        batch = GraphBatch.of(ys)
        return Split.of(batch.offsets, Features.of(np.arange(len(batch.labels) + 1), batch.labels))


@dataclass(frozen=True)
class EdgeHistogram(FeatureKernel):
    """Σ_l #{e ∈ G : l(e) = l} · #{e' ∈ G' : l(e') = l}, over edge labels l, whatever the node labels.

    >>> from dsokr.graphs import Graph
    >>> EdgeHistogram()([Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1)))], [Graph((6, 8), ((0, 1, 1),))])
    tensor([[2.]], dtype=torch.float64)
    """

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        once = np.repeat(np.arange(len(batch.labels)), batch.degrees()) < batch.neighbors
        return Features.of(starts_of(once)[batch.indptr[batch.offsets]], batch.edge_labels[once])

    def split(self, ys: Outputs) -> Split:
        batch = GraphBatch.of(ys)
        halves = np.full(len(batch.edge_labels), 0.5)  # an edge is divided between its ends
        return Split.of(batch.offsets, Features.of(batch.indptr, batch.edge_labels, halves))


@dataclass(frozen=True)
class ShortestPath(FeatureKernel):
    """Σ_{u ≠ v} Σ_{u' ≠ v'} [D(u, v) = D(u', v') < ∞] [l(u) = l(u')] [l(v) = l(v')], over ordered pairs of nodes.

    D(u, v) is the number of edges on a shortest path. Without ``labels`` only distances are compared.

    >>> from dsokr.graphs import Graph
    >>> path = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1)))
    >>> ShortestPath()([path], [path]), ShortestPath(labels=False)([path], [path])
    (tensor([[8.]], dtype=torch.float64), tensor([[20.]], dtype=torch.float64))
    """

    labels: bool = True

    def features(self, ys: Outputs) -> Features:
        pairs, names = self._name_paths(GraphBatch.of(ys))
        return Features.of(2 * pairs.starts, names)

    def split(self, ys: Outputs) -> Split:
        batch = GraphBatch.of(ys)
        pairs, names = self._name_paths(batch)
        ends = np.stack([pairs.u, pairs.v], axis=1).repeat(2, axis=0)
        return Split.at(batch.offsets, ends, names, np.ones(len(names)))

    def _name_paths(self, batch: GraphBatch) -> tuple[Pairs, np.ndarray]:
        labels = batch.labels if self.labels else np.zeros_like(batch.labels)
        pairs = find_pairs(batch)
        pairs = pairs.select(pairs.distance > 0)
        return pairs, _name_paths(labels, pairs.u, pairs.v, pairs.distance)


@dataclass(frozen=True)
class WeisfeilerLehman(FeatureKernel):
    """Σ_{t = 0}^{iterations} base(G_t, G'_t), where G_0 = G and the label of a node of G_{t+1} is its label in G_t
    together with the multiset of its neighbours' labels in G_t, each with the label of the edge if ``edge_labels``.

    The base is any FeatureKernel on graphs; the default gives the subtree kernel (WL-VH).

    >>> from dsokr.graphs import Graph
    >>> ethanol, ether = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1))), Graph((6, 8, 6), ((0, 1, 1), (1, 2, 1)))
    >>> WeisfeilerLehman(iterations=1)([ethanol], [ethanol, ether])
    tensor([[8., 5.]], dtype=torch.float64)
    """

    iterations: int
    edge_labels: bool = False
    base: FeatureKernel = VertexHistogram()

    def __post_init__(self) -> None:
        check_fields(self, iterations=0)

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        colours = refinements(batch, self.iterations, self.edge_labels)
        return Features.joined([self.base.features(batch.relabelled(own)) for own in colours])

    def split(self, ys: Outputs) -> Split:
        """A label of G_t is placed at its node, not at the neighbours that it includes."""
        batch = GraphBatch.of(ys)
        colours = refinements(batch, self.iterations, self.edge_labels)
        return Split.joined([self.base.split(batch.relabelled(own)) for own in colours])


@dataclass(frozen=True)
class NSPD(FeatureKernel):
    """The neighbourhood subgraph pairwise distance kernel,

    Σ_{r = 0}^{radius} Σ_{d = 0}^{distance} k_{r,d}(G, G') / √(k_{r,d}(G, G) k_{r,d}(G', G')), where

    k_{r,d}(G, G') = Σ_{D(u, v) = d} Σ_{D(u', v') = d} [N_r^u ≅ N_r^{u'}] [N_r^v ≅ N_r^{v'}].

    N_r^v is the subgraph induced by the nodes up to r edges away from v, rooted at v; isomorphisms keep the root and
    all labels of nodes and edges. Pairs of nodes are ordered. A term is zero if one of the graphs has no pair at
    distance d, so k(G, G) is the number of terms for which G has some. Neighbourhoods are compared exactly, up to
    collisions of 64-bit names.

    >>> from dsokr.graphs import Graph
    >>> carbonyl, alcohol = Graph((6, 8), ((0, 1, 2),)), Graph((6, 8), ((0, 1, 1),))
    >>> NSPD(radius=1, distance=1)([carbonyl], [carbonyl, alcohol])
    tensor([[4.0000, 2.0000]], dtype=torch.float64)
    """

    radius: int
    distance: int

    def __post_init__(self) -> None:
        check_fields(self, radius=0, distance=0)

    def features(self, ys: Outputs) -> Features:
        terms = self._list_terms(GraphBatch.of(ys))
        return Features.joined([part.scaled(factors) for _, _, _, part, factors in terms])

    def split(self, ys: Outputs) -> Split:
        """A pair of neighbourhoods is placed at its two roots."""
        batch, parts = GraphBatch.of(ys), list[Split]()
        for pairs, names, values, _, factors in self._list_terms(batch):
            roots = np.stack([pairs.u, pairs.v], axis=1)
            parts.append(Split.at(batch.offsets, roots, names, values).scaled(factors))
        return Split.joined(parts)

    def _list_terms(self, batch: GraphBatch) -> Iterator[tuple[Pairs, np.ndarray, np.ndarray, Features, np.ndarray]]:
        """Yield the pairs of k_{r,d}, their names and values, the sums of these, and 1 / √k_{r,d}(G, G)."""
        balls = name_balls(batch, self.radius)
        all_pairs = find_pairs(batch, self.distance)
        for d in range(self.distance + 1):
            pairs = all_pairs.select(all_pairs.distance == d)
            for ball in balls:
                names, values = _name_pairs(ball, pairs.u, pairs.v)
                part = Features.of(pairs.starts, names, values)
                squared = part.squared_norms()
                yield pairs, names, values, part, 1 / np.sqrt(np.where(squared > 0, squared, 1))


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
        check_fields(self)

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        parts = [self.base.features(batch)]
        for cores, graphs, _ in _list_cores(batch):
            parts.append(self.base.features(cores).spread(graphs, len(batch)))
        return Features.joined(parts)

    def split(self, ys: Outputs) -> Split:
        batch = GraphBatch.of(ys)
        parts = [self.base.split(batch)]
        if not np.array_equal(parts[0].starts, batch.offsets):  # the base does not say at which nodes its features are
            return super().split(batch)
        for cores, _, nodes in _list_cores(batch):
            parts.append(Split.of(batch.offsets, self.base.split(cores).parts.spread(nodes, len(batch.labels))))
        return Split.joined(parts)


def _list_cores(batch: GraphBatch) -> Iterator[tuple[GraphBatch, np.ndarray, np.ndarray]]:
    """Yield the i-cores for i = 1, 2, … with their positions among the graphs and those of their nodes."""
    numbers = core_numbers(batch)
    for level in range(1, numbers.max(initial=0) + 1):
        cores = batch.induced(numbers >= level)
        exist = np.flatnonzero(np.diff(cores.offsets))  # a graph has no cores beyond its degeneracy
        yield cores[exist], exist, np.flatnonzero(numbers >= level)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of nodes u ≤ v of the same graph and their distances; those of graph g start at ``starts[g]``."""

    starts: np.ndarray  # (graphs + 1,)
    u: np.ndarray
    v: np.ndarray
    distance: np.ndarray  # edges on a shortest path

    def select(self, keep: np.ndarray) -> Pairs:
        return Pairs(starts_of(keep)[self.starts], self.u[keep], self.v[keep], self.distance[keep])


def find_pairs(batch: GraphBatch, farthest: int | None = None) -> Pairs:
    """Find all pairs at a distance of at most ``farthest`` edges (None: any); a node has distance 0 from itself."""
    limit = len(batch.labels) if farthest is None else farthest
    return Pairs(*_find_pairs(batch.offsets, batch.indptr, batch.neighbors, limit))


def refinements(batch: GraphBatch, iterations: int, edge_labels: bool) -> Iterator[np.ndarray]:  # each (nodes,)
    """Yield the node labels of G_0, …, G_iterations; from G_1 on they are 64-bit names."""
    labels = batch.labels
    yield labels
    for _ in range(iterations):
        labels = _refine_all(labels, batch.indptr, batch.neighbors, batch.edge_labels, edge_labels)
        yield labels


def core_numbers(batch: GraphBatch) -> np.ndarray:  # (nodes,)
    """Compute for every node the largest i whose i-core contains it, by removing nodes of low degree."""
    return _core_numbers(batch.degrees(), batch.indptr, batch.neighbors)


@inlined
def link(edge_label, label, use_edges):  # type: ignore[no-untyped-def]  # compiled
    """Return what one neighbour adds to the sum of :func:`surround`."""
    return pair(edge_label, label) if use_edges else mix(label)


@inlined
def surround(node, first, labels, indptr, neighbors, edge_labels, use_edges):  # type: ignore[no-untyped-def]  # compiled
    """The sum that names the multiset of a node's neighbours; its next WL label is ``pair(its label, sum)``.

    The label of node i is ``labels[i - first]``, so that the labels may be those of one graph of a batch.
    """
    around = np.uint64(0)
    for k in range(indptr[node], indptr[node + 1]):
        around += link(edge_labels[k], labels[neighbors[k] - first], use_edges)
    return around


@compiled
def _refine_all(
    labels: np.ndarray, indptr: np.ndarray, neighbors: np.ndarray, edge_labels: np.ndarray, use_edges: bool
) -> np.ndarray:
    out = np.empty(len(labels), np.int64)
    for i in range(len(labels)):
        out[i] = np.int64(pair(labels[i], surround(i, 0, labels, indptr, neighbors, edge_labels, use_edges)))
    return out


@compiled
def _find_pairs(
    offsets: np.ndarray, indptr: np.ndarray, neighbors: np.ndarray, farthest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    sizes = offsets[1:] - offsets[:-1]
    starts, free = np.zeros(len(offsets), np.int64), 0
    most = (sizes * (sizes + 1) // 2).sum()
    us, vs, distance = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    depth = np.full(offsets[-1], -1)
    queue = np.empty(sizes.max() if len(sizes) else 0, np.int64)
    for g in range(len(sizes)):
        for u in range(offsets[g], offsets[g + 1]):
            reached = breadth_first(u, farthest, indptr, neighbors, queue, depth)
            for v in queue[:reached]:
                if v >= u:
                    us[free], vs[free], distance[free] = u, v, depth[v]
                    free += 1
                depth[v] = -1
        starts[g + 1] = free
    return starts, us[:free].copy(), vs[:free].copy(), distance[:free].copy()


@compiled
def _name_paths(labels: np.ndarray, us: np.ndarray, vs: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Name the paths from u to v and from v to u, alternating."""
    names = np.empty(2 * len(us), np.uint64)
    for k in range(len(us)):
        names[2 * k] = pair(pair(distances[k], labels[us[k]]), labels[vs[k]])
        names[2 * k + 1] = pair(pair(distances[k], labels[vs[k]]), labels[us[k]])
    return names


@compiled
def _name_pairs(names: np.ndarray, us: np.ndarray, vs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Name unordered pairs, with values such that inner products are those of the counts of ordered pairs.

    For x ≠ y the pairs (x, y) and (y, x) are one coordinate of weight √2. A pair (x, x) of two nodes counts twice.
    """
    out, values = np.empty(len(us), np.uint64), np.empty(len(us))
    for k in range(len(us)):
        x, y = names[us[k]], names[vs[k]]
        out[k] = pair(min(x, y), max(x, y))
        values[k] = 1.0 if us[k] == vs[k] else 2.0 if x == y else np.sqrt(2.0)
    return out, values


@compiled
def _core_numbers(degrees: np.ndarray, indptr: np.ndarray, neighbors: np.ndarray) -> np.ndarray:
    left, core = degrees.copy(), np.full(len(degrees), -1)
    stack, level, removed = np.empty(len(degrees), np.int64), 0, 0
    while removed < len(core):
        count = 0
        for v in range(len(core)):
            if core[v] < 0 and left[v] <= level:
                stack[count], core[v] = v, level
                count += 1
        while count:
            count, removed = count - 1, removed + 1
            v = stack[count]
            for u in neighbors[indptr[v] : indptr[v + 1]]:
                left[u] -= 1
                if core[u] < 0 and left[u] <= level:
                    stack[count], core[u] = u, level
                    count += 1
        level += 1
    return core
