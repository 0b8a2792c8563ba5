"""Edits of graphs, for a search: what a graph can become in one step. Each domain of graphs has its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dsokr.decoders._edits import edited
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch


class Neighbors(NamedTuple):
    """Graphs that are one edit away from others, and the position of the graph that each came from.

    A domain may also say what became of the nodes. Then features of the surroundings of nodes, such as those of
    Weisfeiler-Lehman, are computed anew only near what an edit touched: a node is touched if its label or its edges
    changed, or if it is new.
    """

    graphs: GraphBatch
    origins: np.ndarray  # (graphs,)
    sources: np.ndarray | None = None  # (nodes,): which node of the origin it was, −1 if new
    touched: np.ndarray | None = None  # (nodes,) bool


@runtime_checkable
class Moves(Protocol):
    """A domain of graphs to search: it says what lies one edit away. A domain of one's own needs this method alone."""

    def neighbors(self, graphs: GraphBatch) -> Neighbors: ...


@dataclass(frozen=True)
class Molecules:
    """Connected molecules in which the bonds of an atom add up to at most its valence; hydrogens fill the rest.

    An edit replaces, adds, removes or inserts an atom, exchanges two atoms, makes, breaks, changes or moves a bond
    (which closes and opens rings), shifts a bond's order to another bond, exchanges ends of two bonds, or turns the
    alternating bonds of a six-membered ring. Only the atoms it touches are held to their valence: charged atoms of the
    graph that a search starts from may stay as they are.

    >>> from dsokr.graphs import Graph
    >>> ethene = GraphBatch.of([Graph((6, 6), ((0, 1, 2),))])
    >>> found = Molecules(valences=((6, 4), (8, 2)), max_atoms=2).neighbors(ethene)
    >>> [(graph.labels, graph.edges[0][2]) for graph in found.graphs if graph.edges]
    [((8, 6), 2), ((6, 8), 2), ((6, 6), 1), ((6, 6), 3)]
    """

    valences: tuple[tuple[int, int], ...] = ((6, 4), (7, 3), (8, 2), (9, 1))  # atomic numbers and valences
    max_atoms: int = 9

    def __post_init__(self) -> None:
        if not self.valences or any(valence < 1 for _, valence in self.valences):
            raise InputError(f"Molecules.valences must give elements positive valences. Got {self.valences}.")
        if self.max_atoms < 1:
            raise InputError(f"Molecules.max_atoms must be at least 1. Got {self.max_atoms}.")

    def neighbors(self, graphs: GraphBatch) -> Neighbors:
        elements, valences = np.array(self.valences, np.int64).T.copy()
        parents = (graphs.offsets, graphs.labels, graphs.indptr, graphs.neighbors, graphs.edge_labels)
        sizes, nodes, bonds, ends, origins = edited(*parents, elements, valences, self.max_atoms)
        labels, sources, touched = nodes
        return Neighbors(GraphBatch.from_edges(sizes, labels, bonds, ends), origins, sources, touched)
