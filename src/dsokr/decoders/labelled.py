"""Labelled graphs of any kind as a domain to search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsokr.decoders.edits import Domain
from dsokr.decoders.moves import Edits, Neighbors
from dsokr.decoders.pieces import name_stars
from dsokr.errors import InputError, check_fields
from dsokr.graphs import Graph, GraphBatch, starts_of


@dataclass(frozen=True)
class LabelledGraphs:
    """Graphs of up to ``max_nodes`` nodes with the given labels on nodes and edges; connected or not, planar or not.

    If ``stars`` are given, every node must have one of them: a label and the sorted labels of its edges, see ``like``.
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
    stars: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @classmethod
    def like(cls, graphs: GraphBatch | Sequence[Graph], max_nodes: int | None = None) -> "LabelledGraphs":
        """The graphs whose nodes all look like nodes of the given ones: same label, same labels of edges.

        This is a domain of molecules, with charges, aromatic bonds and stereochemistry in the labels, that needs no
        rules of chemistry: ``max_nodes`` is that of the given graphs, unless it is given.

        >>> water, ethanol = Graph((8,)), Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1)))
        >>> LabelledGraphs.like([water, ethanol]).stars
        ((6, (1,)), (6, (1, 1)), (8, ()), (8, (1,)))
        """
        batch = GraphBatch.of(graphs)
        labels, edges = (_order(values) for values in (batch.labels, batch.edge_labels))
        _, first = np.unique(name_stars(batch), return_index=True)
        ends = ((v, batch.edge_labels[batch.indptr[v] : batch.indptr[v + 1]]) for v in first)
        stars = sorted((int(batch.labels[v]), tuple(sorted(around.tolist()))) for v, around in ends)
        most = int(np.diff(batch.offsets).max(initial=1)) if max_nodes is None else max_nodes
        return cls(labels, edges or (1,), most, stars=tuple(stars))

    def __post_init__(self) -> None:
        check_fields(self, labels="(-inf, inf)", edge_labels="(-inf, inf)", stars="(-inf, inf)")
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
        return self.list_edits(graphs).find_neighbors()

    def list_edits(self, graphs: GraphBatch) -> Edits:
        """The edits that lead to them."""
        codes = _encode(graphs.labels, self.labels, "nodes"), _encode(graphs.edge_labels, self.edge_labels, "edges")
        return Edits.of(replace(graphs, labels=codes[0], edge_labels=codes[1]), self._description)

    def contains(self, graphs: GraphBatch) -> np.ndarray:  # (graphs,)
        """Which graphs have only labels of the domain, not too many nodes and, if ``proper``, proper colours."""
        nodes, edges = np.isin(graphs.labels, self.labels), np.isin(graphs.edge_labels, self.edge_labels)
        if self.proper:
            edges &= np.repeat(graphs.labels, graphs.degrees()) != graphs.labels[graphs.neighbors]
        small = np.diff(graphs.offsets) <= self.max_nodes
        return small & _hold_for_all(nodes, graphs.offsets) & _hold_for_all(edges, graphs.indptr[graphs.offsets])

    @cached_property
    def star_names(self) -> np.ndarray:  # (stars,) uint64, sorted
        return self._name_stars(self.labels, self.edge_labels)

    def _name_stars(self, labels: Sequence[int], edge_labels: Sequence[int]) -> np.ndarray:
        """The stars' names if nodes and edges have these labels instead."""
        node, edge = (
            dict(zip(own, new, strict=True)) for own, new in ((self.labels, labels), (self.edge_labels, edge_labels))
        )
        graphs = [
            Graph((node[label], *(0 for _ in ends)), tuple((0, i, edge[e]) for i, e in enumerate(ends, start=1)))
            for label, ends in self.stars
        ]
        batch = GraphBatch.of(graphs)
        return np.unique(name_stars(batch)[batch.offsets[:-1]]) if graphs else np.empty(0, np.uint64)

    @cached_property
    def _description(self) -> Domain:
        most = self.max_nodes if self.max_degree is None else self.max_degree
        costs = (np.arange(len(self.edge_labels) + 1) > 0).astype(np.int64)
        limits = np.broadcast_to(most, len(self.labels)).astype(np.int64)
        nodes = np.arange(1, len(self.labels) + 1)
        stars = self._name_stars(range(1, len(nodes) + 1), range(1, len(costs)))
        dense = not self.stars
        options = self.max_nodes, self.connected, self.planar, self.proper, dense, False
        return Domain(nodes, limits, costs, *options, stars, np.array(self.labels), np.array(self.edge_labels))


def _hold_for_all(flags: np.ndarray, starts: np.ndarray) -> np.ndarray:  # (items,), (graphs + 1,) -> (graphs,)
    return np.diff(starts_of(~flags)[starts]) == 0


def _order(labels: np.ndarray) -> tuple[int, ...]:
    """The distinct labels, the most frequent first."""
    own, counts = np.unique(labels, return_counts=True)
    return tuple(own[np.argsort(-counts, kind="stable")].tolist())


def _encode(labels: np.ndarray, known: tuple[int, ...], of: str) -> np.ndarray:
    """Positions among the known labels, from 1."""
    order = np.argsort(known)
    at = np.searchsorted(np.array(known)[order], labels).clip(max=len(known) - 1)
    if len(wrong := labels[np.array(known)[order][at] != labels]):
        raise InputError(
            f"The labels of {of} are {', '.join(map(str, known))}, as LabelledGraphs says. Got {wrong[0]}."
        )
    return order[at] + 1
