"""Plain data types shared by the whole package."""

from dataclasses import dataclass
from operator import index

from dsokr.errors import InputError


@dataclass(frozen=True)
class Graph:
    """An undirected graph with integer labels on nodes and edges: plain, hashable data.

    ``labels[i]`` is the label of node i; an edge ``(i, j, label)`` has ``i < j``. Edges given the other way round are
    turned and all are sorted, so that two graphs with the same numbering are equal however their edges were listed.

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
