"""Cut labelled graphs at single edges, and join two of the pieces into a new graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dsokr.compute import compiled
from dsokr.graphs import GraphBatch, gather
from dsokr.kernels.hashing import mix, pair

NOTHING = -1  # in place of the label of an edge: there is none


class Pieces(NamedTuple):
    """Connected parts of the graphs of a batch, each with a root and the label of an edge that the root lacks.

    The nodes of piece i, by their numbers in the batch, are ``nodes[starts[i] : starts[i + 1]]``, the root first.
    """

    graphs: GraphBatch
    owners: np.ndarray  # (pieces,): the graph that a piece is part of
    labels: np.ndarray  # (pieces,): of the missing edge
    starts: np.ndarray  # (pieces + 1,)
    nodes: np.ndarray

    def take(self, at: np.ndarray) -> Pieces:
        places, starts = gather(self.starts, at)
        return Pieces(self.graphs, self.owners[at], self.labels[at], starts, self.nodes[places])

    def open(self, edge_labels: np.ndarray, stars: np.ndarray) -> Pieces:
        """The same pieces, once for each label of an edge that makes the star of the root one of ``stars``."""
        count = len(edge_labels)
        many = self.take(np.repeat(np.arange(len(self.labels)), count))
        many = many._replace(labels=np.tile(edge_labels, len(self.labels)))
        return many.take(np.flatnonzero(_have_stars(many.as_arrays(), stars)))

    def distinct(self, groups: np.ndarray) -> Pieces:
        """The first of equal pieces in the graphs of a group; ``groups`` are those of the graphs."""
        names = _name(self.as_arrays(), 4)
        keys = np.stack([groups[self.owners].astype(np.uint64), names])
        return self.take(np.sort(np.unique(keys, axis=1, return_index=True)[1]))

    def sum(self, rows: np.ndarray) -> np.ndarray:  # (nodes of the batch, d) -> (pieces, d)
        """The sum of the rows of a piece's nodes."""
        ones = np.ones(len(self.nodes), rows.dtype)
        return sp.csr_array((ones, self.nodes, self.starts), shape=(len(self.labels), len(rows))) @ rows

    def join(self, others: Pieces, a: np.ndarray, b: np.ndarray) -> GraphBatch:
        """Join pieces a[i] and others[b[i]] by an edge between their roots; it has the label of the first piece."""
        return GraphBatch.from_edges(*_join(self.as_arrays(), others.as_arrays(), a, b))

    def as_arrays(self) -> tuple[np.ndarray, ...]:
        """What compiled code needs."""
        graphs = self.graphs
        own = graphs.labels, graphs.indptr, graphs.neighbors, graphs.edge_labels
        return self.labels, self.starts, self.nodes, *own


def cut(graphs: GraphBatch) -> Pieces:
    """Cut every edge whose removal disconnects its graph: each gives two pieces.

    >>> from dsokr.graphs import Graph
    >>> ring = Graph((6, 6, 6, 8), ((0, 1, 1), (1, 2, 1), (0, 2, 1), (2, 3, 1)))
    >>> pieces = cut(GraphBatch.of([ring]))
    >>> [pieces.nodes[a:b].tolist() for a, b in zip(pieces.starts, pieces.starts[1:])]
    [[3], [2, 0, 1]]
    """
    slots, starts, nodes = _cut(graphs.offsets, graphs.indptr, graphs.neighbors)
    owners = np.searchsorted(graphs.offsets, nodes[starts[:-1]], side="right") - 1
    return Pieces(graphs, owners, graphs.edge_labels[slots], starts, nodes)


def root_at_all_nodes(graphs: GraphBatch) -> Pieces:
    """Whole graphs as pieces, one for each node as the root; no label of an edge is set."""
    sizes = np.diff(graphs.offsets)
    owners = np.repeat(np.arange(len(graphs)), sizes)
    nodes, starts = gather(graphs.offsets, owners)
    first, roots = nodes[starts[:-1]], np.arange(len(owners))
    nodes[np.flatnonzero(nodes == np.repeat(roots, sizes[owners]))] = first  # exchange the root and the first node
    nodes[starts[:-1]] = roots
    return Pieces(graphs, owners, np.full(len(owners), NOTHING), starts, nodes)


def concatenate_pieces(a: Pieces, b: Pieces) -> Pieces:
    """All pieces of a, then those of b; both are of the same graphs."""
    starts = np.append(a.starts, a.starts[-1] + b.starts[1:])
    owners, labels = np.append(a.owners, b.owners), np.append(a.labels, b.labels)
    return Pieces(a.graphs, owners, labels, starts, np.append(a.nodes, b.nodes))


def name_stars(graphs: GraphBatch) -> np.ndarray:  # (nodes,) uint64
    """Hash the label of every node together with the labels of its edges."""
    return _name_stars(graphs.labels, graphs.indptr, graphs.edge_labels)


@compiled
def _name_stars(labels: np.ndarray, indptr: np.ndarray, edge_labels: np.ndarray) -> np.ndarray:
    names = np.empty(len(labels), np.uint64)
    for v in range(len(labels)):
        around = np.uint64(0)
        for k in range(indptr[v], indptr[v + 1]):
            around += mix(edge_labels[k])
        names[v] = pair(labels[v], around)
    return names


@compiled
def has_star(stars, label, around):  # type: ignore[no-untyped-def] # compiled
    """Whether a node with this label and this sum of hashed labels of edges is among the sorted stars."""
    star = pair(label, around)
    at = np.searchsorted(stars, star)
    return at < len(stars) and stars[at] == star


@compiled
def _cut(offsets, indptr, neighbors):  # type: ignore[no-untyped-def] # compiled
    """Find the edges i–j that alone connect j's side: their positions, and the nodes of that side, j first."""
    most = 0
    for g in range(len(offsets) - 1):
        most += (indptr[offsets[g + 1]] - indptr[offsets[g]]) * (offsets[g + 1] - offsets[g])
    slots, starts = np.empty(len(neighbors), np.int64), np.zeros(len(neighbors) + 1, np.int64)
    nodes, seen, found, free = np.empty(most, np.int64), np.full(offsets[-1], -1), 0, 0
    for i in range(offsets[-1]):
        for k in range(indptr[i], indptr[i + 1]):
            nodes[free], seen[neighbors[k]], end, head, holds = neighbors[k], k, free + 1, free, True
            while head < end and holds:
                u = nodes[head]
                for m in range(indptr[u], indptr[u + 1]):
                    v = neighbors[m]
                    holds &= v != i or head == free
                    if v != i and seen[v] != k:
                        seen[v], nodes[end] = k, v
                        end += 1
                head += 1
            if holds:
                slots[found], starts[found + 1] = k, end
                free, found = end, found + 1
    return slots[:found].copy(), starts[: found + 1].copy(), nodes[:free].copy()


@compiled
def _name(pieces, rounds):  # type: ignore[no-untyped-def] # compiled
    """Names of pieces with their root and missing edge, by Weisfeiler-Lehman labels within the piece."""
    ends, starts, nodes, labels, indptr, neighbors, edge_labels = pieces
    names, inside = np.empty(len(ends), np.uint64), np.full(len(labels), -1)
    old, new = np.empty(len(labels), np.uint64), np.empty(len(labels), np.uint64)
    for p in range(len(ends)):
        own, total = nodes[starts[p] : starts[p + 1]], np.uint64(0)
        for v in own:
            inside[v], old[v] = p, mix(labels[v])
        for _ in range(rounds):
            for v in own:
                around = np.uint64(0)
                for k in range(indptr[v], indptr[v + 1]):
                    if inside[neighbors[k]] == p:
                        around += pair(edge_labels[k], old[neighbors[k]])
                new[v] = pair(old[v], around)
            for v in own:
                old[v] = new[v]
        for v in own:
            total += mix(old[v])
        names[p] = pair(pair(old[own[0]], ends[p]), total)
    return names


@compiled
def _have_stars(pieces, stars):  # type: ignore[no-untyped-def] # compiled
    """Whether each root has one of the stars, with its missing edge; without one the label of that is NOTHING."""
    ends, starts, nodes, labels, indptr, neighbors, edge_labels = pieces
    found, inside = np.zeros(len(ends), np.bool_), np.full(len(labels), -1)
    for p in range(len(ends)):
        for v in nodes[starts[p] : starts[p + 1]]:
            inside[v] = p
        root, around = nodes[starts[p]], np.uint64(0)
        if ends[p] != NOTHING:
            around += mix(ends[p])
        for k in range(indptr[root], indptr[root + 1]):
            if inside[neighbors[k]] == p:
                around += mix(edge_labels[k])
        found[p] = has_star(stars, labels[root], around)
    return found


@compiled
def _join(one, two, a, b):  # type: ignore[no-untyped-def] # compiled
    """The numbers of nodes, the nodes' labels, the numbers of edges and the edges of joined pieces."""
    sizes, edges, nodes, free = np.empty(len(a), np.int64), np.empty(len(a), np.int64), 0, 0
    for t in range(len(a)):
        sizes[t] = one[1][a[t] + 1] - one[1][a[t]] + two[1][b[t] + 1] - two[1][b[t]]
    most = 1
    for indptr in (one[4], two[4]):
        most = max(most, np.diff(indptr).max() if len(indptr) > 1 else 0)
    labels, ends = np.empty(sizes.sum(), np.int64), np.empty((sizes.sum() * most + len(a), 3), np.int64)
    places, others = np.full(len(one[3]), -1), np.full(len(two[3]), -1)
    for t in range(len(a)):
        start, n = free, one[1][a[t] + 1] - one[1][a[t]]
        free = _write(one, a[t], places, 0, labels[nodes:], ends, free)
        free = _write(two, b[t], others, n, labels[nodes + n :], ends, free)
        if one[0][a[t]] != NOTHING and sizes[t] > n:
            ends[free, 0], ends[free, 1], ends[free, 2] = 0, n, one[0][a[t]]
            free += 1
        edges[t], nodes = free - start, nodes + sizes[t]
    return sizes, labels, edges, ends[:free].copy()


@compiled
def _write(pieces, p, places, first, into, ends, free):  # type: ignore[no-untyped-def] # compiled
    """Write a piece's labels and edges, with nodes numbered from ``first`` on; return the number of edges so far."""
    _, starts, nodes, labels, indptr, neighbors, edge_labels = pieces
    own = nodes[starts[p] : starts[p + 1]]
    for i in range(len(own)):
        places[own[i]], into[i] = i, labels[own[i]]
    for i in range(len(own)):
        for k in range(indptr[own[i]], indptr[own[i] + 1]):
            j = places[neighbors[k]]
            if j > i:
                ends[free, 0], ends[free, 1], ends[free, 2] = first + i, first + j, edge_labels[k]
                free += 1
    for v in own:
        places[v] = -1
    return free
