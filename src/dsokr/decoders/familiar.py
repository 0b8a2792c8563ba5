"""Domains of graphs that look like known ones: every node has a neighbourhood that a node of a known graph has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsokr.decoders.moves import Moves, Neighbors
from dsokr.graphs import GraphBatch, starts_of
from dsokr.kernels.graphs import refinements


@dataclass(frozen=True, eq=False)
class Familiar:
    """The graphs of a domain in which all neighbourhoods of a radius are known.

    >>> from dsokr.decoders import Molecules
    >>> from dsokr.graphs import Graph
    >>> ethanol, ether = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1))), Graph((6, 8, 6), ((0, 1, 1), (1, 2, 1)))
    >>> domain = Familiar.of(GraphBatch.of([ethanol]), Molecules(), radius=1)
    >>> domain.contains(GraphBatch.of([ethanol, ether])).tolist()
    [True, False]
    """

    moves: Any  # a domain
    names: np.ndarray  # of the known neighbourhoods, sorted
    radius: int

    @staticmethod
    def of(known: GraphBatch, moves: Moves, radius: int) -> Familiar:
        return Familiar(moves, np.unique(_name_neighborhoods(known, radius)), radius)

    def neighbors(self, graphs: GraphBatch) -> Neighbors:
        near: Neighbors = self.moves.neighbors(graphs)
        return near.take(np.flatnonzero(self._is_familiar(near.graphs)))

    def contains(self, graphs: GraphBatch) -> np.ndarray:  # (graphs,)
        inside = self.moves.contains(graphs) if hasattr(self.moves, "contains") else True
        return self._is_familiar(graphs) & inside

    def _is_familiar(self, graphs: GraphBatch) -> np.ndarray:
        own = _name_neighborhoods(graphs, self.radius)
        unknown = self.names[np.searchsorted(self.names, own).clip(max=len(self.names) - 1)] != own
        return np.diff(starts_of(unknown)[graphs.offsets]) == 0

    @property
    def edge_labels(self) -> tuple[int, ...]:
        return self.moves.edge_labels

    @property
    def star_names(self) -> np.ndarray:
        return self.moves.star_names


def _name_neighborhoods(graphs: GraphBatch, radius: int) -> np.ndarray:  # (nodes,)
    *_, names = refinements(graphs, radius, edge_labels=True)
    return names
