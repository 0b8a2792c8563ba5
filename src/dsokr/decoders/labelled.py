"""Labelled graphs of any kind as a domain to search."""

from dataclasses import dataclass, replace

import numpy as np

from dsokr.decoders.edits import Domain
from dsokr.decoders.moves import Neighbors, edit_graphs
from dsokr.errors import InputError, check_fields
from dsokr.graphs import GraphBatch


@dataclass(frozen=True)
class LabelledGraphs:
    """Graphs of up to ``max_nodes`` nodes with the given labels on nodes and edges; connected or not, planar or not.

    ``max_degree`` bounds the edges of a node, one number for all nodes or one for each of the labels. In ``proper``
    graphs edges join nodes of different labels only.

    An edit is one of :class:`Molecules`, with any label on an edge instead of its order; also, a node with up to five
    edges comes out at once, and a new one goes to an edge's two ends or a triangle's three corners.

    >>> from dsokr.graphs import Graph
    >>> path = GraphBatch.of([Graph((0, 1, 1), ((0, 1, 1), (1, 2, 1)))])
    >>> found = LabelledGraphs(labels=(0, 1), max_nodes=3).neighbors(path).graphs
    >>> Graph((0, 1, 1), ((0, 1, 1), (0, 2, 1), (1, 2, 1))) in list(found)
    True
    """

    labels: tuple[int, ...]
    edge_labels: tuple[int, ...] = (1,)
    max_nodes: int = 10
    connected: bool = True
    planar: bool = False
    proper: bool = False
    max_degree: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, labels="(-inf, inf)", edge_labels="(-inf, inf)")
        for name in ("labels", "edge_labels"):
            if not (own := getattr(self, name)) or len(set(own)) < len(own):
                raise InputError(f"LabelledGraphs.{name} must be different labels, at least one. Got {own}.")
        if isinstance(self.max_degree, tuple) and len(self.max_degree) != len(self.labels):
            raise InputError(
                f"LabelledGraphs.max_degree must be one number, or one for each of {len(self.labels)} labels. "
                f"Got {self.max_degree}."
            )

    def neighbors(self, graphs: GraphBatch) -> Neighbors:
        """The graphs one edit away."""
        codes = _encode(graphs.labels, self.labels, "nodes"), _encode(graphs.edge_labels, self.edge_labels, "edges")
        near = edit_graphs(replace(graphs, labels=codes[0], edge_labels=codes[1]), self._describe())
        labels, edge_labels = np.array(self.labels), np.array(self.edge_labels)
        found = replace(
            near.graphs, labels=labels[near.graphs.labels - 1], edge_labels=edge_labels[near.graphs.edge_labels - 1]
        )
        return Neighbors(found, near.origins)

    def _describe(self) -> Domain:
        most = self.max_nodes if self.max_degree is None else self.max_degree
        costs = (np.arange(len(self.edge_labels) + 1) > 0).astype(np.int64)
        limits = np.broadcast_to(most, len(self.labels)).astype(np.int64)
        nodes = np.arange(1, len(self.labels) + 1)
        return Domain(nodes, limits, costs, self.max_nodes, self.connected, self.planar, self.proper, dense=True)


def _encode(labels: np.ndarray, known: tuple[int, ...], of: str) -> np.ndarray:
    """Positions among the known labels, from 1."""
    order = np.argsort(known)
    at = np.searchsorted(np.array(known)[order], labels).clip(max=len(known) - 1)
    if len(wrong := labels[np.array(known)[order][at] != labels]):
        raise InputError(
            f"The labels of {of} are {', '.join(map(str, known))}, as LabelledGraphs says. Got {wrong[0]}."
        )
    return order[at] + 1
