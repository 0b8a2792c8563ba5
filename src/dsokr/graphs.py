"""Labelled graphs: a graph as plain data, a batch of graphs as flat arrays, and conversions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import index
from typing import Any

import numpy as np

from dsokr.compute import compiled
from dsokr.errors import InputError, import_extra


@dataclass(frozen=True)
class Graph:
    """An undirected graph with integer labels on nodes and edges: plain, hashable data.

    ``labels[i]`` is the label of node i. An edge is ``(i, j, label)`` with ``i < j``; edges given as (j, i) are
    reversed and all are sorted, so that the order in which edges are listed does not matter for equality.

    >>> Graph(labels=(6, 8), edges=((1, 0, 2),))
    Graph(labels=(6, 8), edges=((0, 1, 2),))
    """

    labels: tuple[int, ...]
    edges: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        try:
            labels = tuple(map(index, self.labels))
            ends = ((index(i), index(j), index(e)) for i, j, e in self.edges)
            edges = tuple(sorted((i, j, e) if i < j else (j, i, e) for i, j, e in ends))
        except (TypeError, ValueError) as error:
            raise InputError(
                "A Graph has integer labels and edges (node, node, label), all integers. "
                f"Got labels {self.labels!r} and edges {self.edges!r}."
            ) from error
        for position, (i, j, _) in enumerate(edges):
            if i == j:
                raise InputError(f"A Graph has no self-loops. Got an edge from node {i} to itself.")
            if i < 0 or j >= len(labels):
                raise InputError(f"Edge ({i}, {j}) points outside the graph, which has {len(labels)} nodes.")
            if position and edges[position - 1][:2] == (i, j):
                raise InputError(f"A Graph has no parallel edges. Got two edges between nodes {i} and {j}.")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "edges", edges)


def starts_of(lengths: np.ndarray) -> np.ndarray:  # (rows + 1,)
    """Return where rows of the given lengths start, and the total.

    >>> starts_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def gather(starts: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of all entries of the chosen rows, concatenated, and the new starts of the rows.

    >>> [a.tolist() for a in gather(np.array([0, 2, 2, 5]), np.array([2, 0]))]
    [[2, 3, 4, 0, 1], [0, 3, 5]]
    """
    lengths = starts[chosen + 1] - starts[chosen]
    new = starts_of(lengths)
    return np.repeat(starts[chosen] - new[:-1], lengths) + np.arange(new[-1]), new


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Many graphs as one disconnected graph.

    The nodes of graph g are ``offsets[g]`` to ``offsets[g + 1]``. Node i has label ``labels[i]``; its neighbours, by
    their numbers in the batch, are ``neighbors[indptr[i]:indptr[i + 1]]``, and ``edge_labels`` at the same positions
    are the labels of the edges. Kernels on graphs take a batch or a list of graphs; a batch saves repeated conversion.
    Indexing with a slice or an array gives a batch, with an integer a :class:`Graph`.

    >>> batch = GraphBatch.of([Graph((6, 8), ((0, 1, 2),)), Graph((7,))])
    >>> batch.labels, batch.degrees()
    (array([6, 8, 7]), array([1, 1, 0]))
    """

    offsets: np.ndarray  # (graphs + 1,)
    labels: np.ndarray  # (nodes,)
    indptr: np.ndarray  # (nodes + 1,)
    neighbors: np.ndarray  # (2 · edges,)
    edge_labels: np.ndarray  # (2 · edges,)

    @staticmethod
    def of(graphs: GraphBatch | Sequence[Graph]) -> GraphBatch:
        """Return the graphs as a batch, or the batch itself. Takes about 2 µs per molecule of 9 atoms."""
        if isinstance(graphs, GraphBatch):
            return graphs
        try:
            nodes = np.fromiter((len(g.labels) for g in graphs), np.int64, len(graphs))
            edges = np.fromiter((len(g.edges) for g in graphs), np.int64, len(graphs))
            labels = np.fromiter(chain.from_iterable(g.labels for g in graphs), np.int64, nodes.sum())
            triples = chain.from_iterable(chain.from_iterable(g.edges for g in graphs))
            ends = np.fromiter(triples, np.int64, 3 * edges.sum()).reshape(-1, 3)
        except (AttributeError, TypeError, OverflowError) as error:
            wrong = [f"{type(g).__name__} at index {at}" for at, g in enumerate(graphs) if not isinstance(g, Graph)]
            what = f"All items must be of type Graph. Got {wrong[0]}." if wrong else "Labels must fit into 64 bits."
            raise InputError(what) from error
        return GraphBatch.from_edges(nodes, labels, edges, ends)

    def checked(self) -> GraphBatch:
        """Return the batch, which may come from a file, if its parts fit together; compiled code trusts them."""
        for starts, end in ((self.offsets, len(self.labels)), (self.indptr, len(self.neighbors))):
            if not (len(starts) and starts[0] == 0 and starts[-1] == end and (np.diff(starts) >= 0).all()):
                raise ValueError("the parts of a batch of graphs do not fit together")
        graph = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))  # of every node
        node = np.repeat(np.arange(len(self.labels)), np.diff(self.indptr))
        inside = ((self.neighbors >= 0) & (self.neighbors < len(graph))).all() and len(self.indptr) == len(graph) + 1
        if not inside or len(self.edge_labels) != len(node) or (graph[self.neighbors] != graph[node]).any():
            raise ValueError("the parts of a batch of graphs do not fit together")
        return self

    @staticmethod
    def from_edges(nodes: np.ndarray, labels: np.ndarray, edges: np.ndarray, ends: np.ndarray) -> GraphBatch:
        """Build a batch from the numbers of nodes and edges of each graph, node labels, and edges (i, j, label).

        The rows of ``ends`` are the edges; i and j count the nodes of their graph.
        """
        offsets = starts_of(nodes)
        ends = ends.copy()
        ends[:, :2] += np.repeat(offsets[:-1], edges)[:, None]
        indptr = starts_of(np.bincount(ends[:, :2].ravel(), minlength=len(labels)))
        return GraphBatch(offsets, labels, indptr, *_list_neighbors(indptr, ends))

    @staticmethod
    def joined(batches: Sequence[GraphBatch]) -> GraphBatch:
        """Return all graphs of several batches, in order.

        >>> batch = GraphBatch.of([Graph((6, 8), ((0, 1, 2),)), Graph((7,))])
        >>> list(GraphBatch.joined([batch[1:], batch])) == [batch[1], batch[0], batch[1]]
        True
        """
        first = starts_of(np.array([len(batch.labels) for batch in batches]))
        return GraphBatch(
            starts_of(np.concatenate([np.diff(batch.offsets) for batch in batches])),
            np.concatenate([batch.labels for batch in batches]),
            starts_of(np.concatenate([batch.degrees() for batch in batches])),
            np.concatenate([batch.neighbors + start for batch, start in zip(batches, first, strict=False)]),
            np.concatenate([batch.edge_labels for batch in batches]),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:  # Graph for an integer, GraphBatch otherwise
        if isinstance(index, int | np.integer):
            return self._graph(range(len(self))[index])
        chosen = np.arange(len(self))[index]
        nodes, inner = gather(self.offsets, chosen)
        slots, indptr = gather(self.indptr, nodes)
        moved = np.repeat(inner[:-1] - self.offsets[chosen], np.diff(inner))
        neighbors = self.neighbors[slots] + np.repeat(moved, np.diff(indptr))
        return GraphBatch(inner, self.labels[nodes], indptr, neighbors, self.edge_labels[slots])

    def __iter__(self) -> Iterator[Graph]:
        return map(self._graph, range(len(self)))

    def _graph(self, index: int) -> Graph:
        start, stop = self.offsets[index : index + 2]
        slots = slice(self.indptr[start], self.indptr[stop])
        owner = np.repeat(np.arange(start, stop), np.diff(self.indptr[start : stop + 1]))
        edges = np.stack([owner - start, self.neighbors[slots] - start, self.edge_labels[slots]], axis=1)
        once = edges[edges[:, 0] < edges[:, 1]]
        return Graph(tuple(self.labels[start:stop].tolist()), tuple(map(tuple, once.tolist())))

    def as_arrays(self) -> tuple[np.ndarray, ...]:
        """Return the arrays as a tuple, for compiled code."""
        return self.offsets, self.labels, self.indptr, self.neighbors, self.edge_labels

    def degrees(self) -> np.ndarray:  # (nodes,)
        return np.diff(self.indptr)

    def relabelled(self, labels: np.ndarray) -> GraphBatch:
        """Return the same graphs with other node labels."""
        return replace(self, labels=labels)

    def induced(self, keep: np.ndarray) -> GraphBatch:
        """Return the subgraphs induced by the nodes in the mask ``keep``. Graphs may become empty."""
        number = starts_of(keep)  # new numbers of the nodes
        keep_edge = np.repeat(keep, self.degrees()) & keep[self.neighbors]
        indptr = starts_of(keep_edge)[self.indptr]
        return GraphBatch(
            number[self.offsets],
            self.labels[keep],
            np.append(indptr[:-1][keep], indptr[-1]),
            number[self.neighbors[keep_edge]],
            self.edge_labels[keep_edge],
        )


@compiled
def _list_neighbors(indptr: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours of all nodes, and the labels of the edges to them."""
    free = indptr[:-1].copy()
    neighbors, edge_labels = np.empty(2 * len(ends), np.int64), np.empty(2 * len(ends), np.int64)
    for e in range(len(ends)):
        i, j = ends[e, 0], ends[e, 1]
        neighbors[free[i]], neighbors[free[j]] = j, i
        edge_labels[free[i]] = edge_labels[free[j]] = ends[e, 2]
        free[i] += 1
        free[j] += 1
    return neighbors, edge_labels


def permuted(graph: Graph, order: Sequence[int]) -> Graph:
    """Return the same graph with renumbered nodes: the new node i is the old node ``order[i]``.

    >>> permuted(Graph((6, 8), ((0, 1, 2),)), [1, 0])
    Graph(labels=(8, 6), edges=((0, 1, 2),))
    """
    if sorted(order) != list(range(len(graph.labels))):
        raise InputError(f"order must contain each of the {len(graph.labels)} nodes once. Got {list(order)}.")
    new = {old: i for i, old in enumerate(order)}
    return Graph(tuple(graph.labels[old] for old in order), tuple((new[i], new[j], e) for i, j, e in graph.edges))


def from_networkx(graph: Any, label: str = "label", edge_label: str | None = "label") -> Graph:
    """Convert a networkx graph with integer labels in the given attributes. Nodes keep their order.

    Without ``edge_label`` all edges are labelled 1. Directed graphs, parallel edges and self-loops are refused.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise InputError(f"A Graph is undirected and has no parallel edges. Got a networkx {type(graph).__name__}.")
    number = {node: i for i, node in enumerate(graph)}
    labels = tuple(_label(values, label, f"Node {node!r}") for node, values in graph.nodes(data=True))
    edges = tuple(
        (number[u], number[v], 1 if edge_label is None else _label(values, edge_label, f"Edge ({u!r}, {v!r})"))
        for u, v, values in graph.edges(data=True)
    )
    return Graph(labels, edges)


def _label(values: dict[str, Any], name: str, owner: str) -> int:
    if not isinstance(value := values.get(name), int | np.integer):
        raise InputError(f"{owner} must have an integer as its attribute {name!r}. Got {value!r}.")
    return int(value)


def to_networkx(graph: Graph) -> Any:
    """Convert to a ``networkx.Graph`` with nodes 0, 1, … and the attribute ``label`` on nodes and edges.

    >>> to_networkx(Graph((6, 8), ((0, 1, 2),))).edges(data=True)
    EdgeDataView([(0, 1, {'label': 2})])
    """
    made = import_extra("networkx", "graphs").Graph()
    made.add_nodes_from((i, {"label": label}) for i, label in enumerate(graph.labels))
    made.add_edges_from((i, j, {"label": label}) for i, j, label in graph.edges)
    return made


def from_adjacency(labels: Any, adjacency: Any) -> Graph:
    """Build a graph from node labels (n,) and the symmetric matrix (n, n) of edge labels, 0 where there is no edge.

    >>> from_adjacency([6, 8], [[0, 2], [2, 0]])
    Graph(labels=(6, 8), edges=((0, 1, 2),))
    """
    nodes, matrix = np.asarray(labels), np.asarray(adjacency)
    if nodes.ndim != 1 or matrix.shape != (len(nodes), len(nodes)):
        raise InputError(f"n labels need an n × n adjacency matrix. Got shapes {nodes.shape} and {matrix.shape}.")
    if len(nodes) and not (np.issubdtype(nodes.dtype, np.integer) and np.issubdtype(matrix.dtype, np.integer)):
        raise InputError(f"Labels must be integers. Got {nodes.dtype} for nodes and {matrix.dtype} for edges.")
    if (matrix != matrix.T).any():
        i, j = np.argwhere(matrix != matrix.T)[0]
        raise InputError(f"The adjacency matrix must be symmetric. Got {matrix[i, j]} and {matrix[j, i]} for {i}, {j}.")
    i, j = np.nonzero(np.triu(matrix))
    return Graph(tuple(nodes.tolist()), tuple(zip(i.tolist(), j.tolist(), matrix[i, j].tolist(), strict=True)))


def to_adjacency(graph: Graph) -> tuple[np.ndarray, np.ndarray]:  # (n,), (n, n)
    """Return the node labels and the symmetric matrix of edge labels, 0 where there is no edge.

    >>> to_adjacency(Graph((6, 8), ((0, 1, 2),)))[1].tolist()
    [[0, 2], [2, 0]]
    """
    matrix = np.zeros((len(graph.labels), len(graph.labels)), np.int64)
    for i, j, label in graph.edges:
        if label == 0:
            raise InputError(f"An edge labelled 0 would be lost in the matrix. Got one between nodes {i} and {j}.")
        matrix[i, j] = matrix[j, i] = label
    return np.array(graph.labels, np.int64), matrix
