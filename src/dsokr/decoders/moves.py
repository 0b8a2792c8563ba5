"""Domains of graphs to search: what a graph can become in one edit."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dsokr.compute import compiled, inlined
from dsokr.decoders.edits import WIDTH, Domain, Molecule, list_edits
from dsokr.decoders.pieces import has_star
from dsokr.decoders.planarity import is_planar
from dsokr.errors import InputError, check_fields
from dsokr.graphs import GraphBatch
from dsokr.kernels.hashing import mix

HIGHEST = 3  # bond order


class Neighbors(NamedTuple):
    """Graphs that are one edit away from others, and the position of the graph that each came from."""

    graphs: GraphBatch
    origins: np.ndarray  # (graphs,)

    def take(self, at: np.ndarray) -> "Neighbors":
        return Neighbors(self.graphs[at], self.origins[at])


@runtime_checkable
class Moves(Protocol):
    """A domain of graphs to search: it lists the graphs one edit away. Your own domain needs only this method.

    With ``GraphSearch(pieces=...)``, ``contains(graphs)`` can say which of the graphs made of two pieces are in it.
    """

    def neighbors(self, graphs: GraphBatch) -> Neighbors: ...


@dataclass(frozen=True)
class Molecules:
    """Connected molecules in which the bonds of an atom add up to at most its valence; hydrogens fill the rest.

    An edit replaces, adds, removes or inserts an atom, exchanges two atoms, makes, breaks, changes or moves a bond
    (which closes and opens rings), shifts a bond's order to another bond, exchanges ends of two bonds, or turns the
    alternating bonds of a six-membered ring. Only the atoms it touches must keep their valence: charged atoms of the
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
        check_fields(self, valences=0)
        if not self.valences or any(valence < 1 for _, valence in self.valences):
            raise InputError(f"Molecules.valences must give elements positive valences. Got {self.valences}.")

    def neighbors(self, graphs: GraphBatch, rearranged: bool = False) -> Neighbors:
        """The molecules one edit away; also those ``rearranged``: one order of a bond, or an atom, is elsewhere."""
        return self.list_edits(graphs, rearranged).find_neighbors()

    def list_edits(self, graphs: GraphBatch, rearranged: bool = False) -> "Edits":
        """The edits that lead to them."""
        elements, valences = np.array(self.valences, np.int64).T.copy()
        domain = Domain(elements, valences, np.arange(HIGHEST + 1), self.max_atoms, rearranged=rearranged)
        return Edits.of(graphs, domain)

    def contains(self, graphs: GraphBatch) -> np.ndarray:  # (graphs,)
        """Which graphs, made of pieces of two molecules, are small enough."""
        return np.diff(graphs.offsets) <= self.max_atoms


@dataclass(frozen=True, eq=False)
class Edits:
    """Edits that turn graphs into graphs of a domain: row i edits graph ``origins[i]``."""

    graphs: GraphBatch  # with elements and orders of the domain as labels
    domain: Domain
    rows: np.ndarray  # (edits, WIDTH)
    origins: np.ndarray  # (edits,)

    @staticmethod
    def of(graphs: GraphBatch, domain: Domain) -> "Edits":
        """All edits of the graphs that the domain allows."""
        rows, counts = _list_valid(graphs.as_arrays(), domain)
        return Edits(graphs, domain, rows, np.repeat(np.arange(len(graphs)), counts))

    def __getitem__(self, at: np.ndarray) -> "Edits":
        return replace(self, rows=self.rows[at], origins=self.origins[at])

    def find_neighbors(self) -> Neighbors:
        return Neighbors(self.results, self.origins)

    @cached_property
    def results(self) -> GraphBatch:
        """The graphs that the edits lead to."""
        return self.decode(GraphBatch(*_apply(self.graphs.as_arrays(), self.rows, self.origins)))

    def decode(self, graphs: GraphBatch) -> GraphBatch:
        """The graphs with the labels that elements and orders stand for."""
        labels, edge_labels = self.domain.labels, self.domain.edge_labels
        if not len(labels):
            return graphs
        return replace(graphs, labels=labels[graphs.labels - 1], edge_labels=edge_labels[graphs.edge_labels - 1])


@compiled
def _list_valid(graphs, domain):  # type: ignore[no-untyped-def] # compiled
    """The edits of all graphs that lead to valid ones, and how many there are of each graph."""
    parts, counts, costs = [], np.zeros(len(graphs[0]) - 1, np.int64), domain.costs
    for g in range(len(counts)):
        matrix = read_matrix(graphs, g)
        n, pairs = len(matrix) - 1, np.argwhere(np.triu(matrix, 1))
        trial, taken, around = np.diag(np.diag(matrix)), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.uint64)
        for i, j in pairs:
            _set(trial, taken, around, costs, i, j, matrix[i, j])
        takes = np.empty((n, len(costs)), np.bool_)
        for i, order in np.ndindex(takes.shape):
            takes[i, order] = _keeps_valence(domain, matrix[i, i], taken[i] + costs[order], around[i] + mix(order))
        edits = np.empty((_bound_edits(matrix, pairs, n, domain), WIDTH), np.int64)
        molecule = Molecule(matrix, n, pairs, domain, takes, edits, np.zeros(1, np.int64))
        list_edits(molecule)
        bonded = np.concatenate((pairs, np.empty((WIDTH // 3, 2), np.int64)))  # with room for those that an edit sets
        for edit in edits[: molecule.listed[0]]:
            for k in range(1, 1 + 3 * edit[0], 3):
                _set(trial, taken, around, costs, edit[k], edit[k + 1], edit[k + 2])
            if _is_valid(domain, edit, trial, taken, around, bonded):
                edits[counts[g]] = edit
                counts[g] += 1
            for k in range(1, 1 + 3 * edit[0], 3):
                _set(trial, taken, around, costs, edit[k], edit[k + 1], matrix[edit[k], edit[k + 1]])
        parts.append(edits[: counts[g]].copy())
    rows, free = np.empty((counts.sum(), WIDTH), np.int64), 0
    for part in parts:
        rows[free : free + len(part)] = part
        free += len(part)
    return rows, counts


@inlined
def _set(trial, taken, around, costs, i, j, value):  # type: ignore[no-untyped-def] # compiled
    """Set an entry; update what bonds take of each atom's valence, and the sum of the names of its bonds."""
    was = trial[i, j]
    trial[i, j] = trial[j, i] = value
    if i != j and value != was:
        cost = costs[value] - costs[was]
        name = (mix(value) if value else np.uint64(0)) - (mix(was) if was else np.uint64(0))
        taken[i], taken[j] = taken[i] + cost, taken[j] + cost
        around[i], around[j] = around[i] + name, around[j] + name


@compiled
def read_matrix(graphs, g):  # type: ignore[no-untyped-def] # compiled
    """The matrix of graph g of a batch, with room for one more atom."""
    offsets, labels, indptr, neighbors, edge_labels = graphs
    first, n = offsets[g], offsets[g + 1] - offsets[g]
    matrix = np.zeros((n + 1, n + 1), np.int64)
    for i in range(n):
        matrix[i, i] = labels[first + i]
        for k in range(indptr[first + i], indptr[first + i + 1]):
            matrix[i, neighbors[k] - first] = edge_labels[k]
    return matrix


@compiled
def _apply(graphs, rows, origins):  # type: ignore[no-untyped-def] # compiled
    """The arrays of a batch of the edited graphs."""
    offsets, starts = graphs[0], graphs[2][graphs[0]]
    nodes = (offsets[origins + 1] - offsets[origins] + 1).sum()
    slots = (starts[origins + 1] - starts[origins] + 2 * (WIDTH // 3)).sum()
    ends, indptr = np.zeros(len(rows) + 1, np.int64), np.zeros(nodes + 1, np.int64)
    labels, neighbors, edge_labels = np.empty(nodes, np.int64), np.empty(slots, np.int64), np.empty(slots, np.int64)
    node, slot, matrix = 0, 0, np.empty((0, 0), np.int64)
    for e in range(len(rows)):
        if e == 0 or origins[e] != origins[e - 1]:
            matrix = read_matrix(graphs, origins[e])
        trial = matrix.copy()
        for k in range(1, 1 + 3 * rows[e, 0], 3):
            i, j, value = rows[e, k : k + 3]
            trial[i, j] = trial[j, i] = value
        there = np.diag(trial) != 0
        number = node - 1 + np.cumsum(there)
        for i in np.flatnonzero(there):
            for j in range(len(trial)):
                if j != i and trial[i, j]:
                    neighbors[slot], edge_labels[slot] = number[j], trial[i, j]
                    slot += 1
            labels[node], indptr[node + 1] = trial[i, i], slot
            node += 1
        ends[e + 1] = node
    return ends, labels[:node], indptr[: node + 1], neighbors[:slot], edge_labels[:slot]


@compiled
def _bound_edits(matrix: np.ndarray, pairs: np.ndarray, n: int, domain: Domain) -> int:
    """A bound on the number of edits of a molecule: of one atom, two atoms, a bond, two bonds, and rings."""
    bonds, double, elements, orders = len(pairs), (matrix == 2).sum(), len(domain.elements), len(domain.costs)
    moved = bonds * n * n + n * (n + bonds)
    joined = (1 + bonds * (1 + n)) * elements
    one = n * (2 + orders * elements) + orders * n * n + bonds * (2 * n + elements)
    return one + 2 * bonds * bonds + double**3 + moved + joined


@inlined
def _is_valid(domain, edit, trial, taken, around, pairs):  # type: ignore[no-untyped-def] # compiled
    """Whether the atoms that an edit touched keep their valences, and the domain's other conditions hold.

    ``pairs`` lists the atoms bonded before the edit, and has room for those that it bonds.
    """
    breaks, makes, bonds = False, False, len(pairs) - WIDTH // 3
    for k in range(1, 1 + 3 * edit[0], 3):
        for i in (edit[k], edit[k + 1]):
            keeps = _keeps_valence(domain, trial[i, i], taken[i], around[i])
            if not keeps or (domain.proper and not _differs(trial, i)):
                return False
        breaks |= edit[k + 2] == 0 and edit[k] != edit[k + 1]
        makes |= edit[k + 2] != 0 and edit[k] != edit[k + 1]
        pairs[bonds, 0], pairs[bonds, 1] = edit[k], edit[k + 1]
        bonds += 1
    if breaks and domain.connected and not is_connected(trial, pairs[:bonds]):
        return False
    return not makes or not domain.planar or is_planar(trial)


@inlined
def _differs(trial: np.ndarray, i: int) -> bool:
    """Whether all atoms bonded to an atom are of other elements."""
    same = 0
    for j in range(len(trial)):
        same += j != i and trial[i, j] != 0 and trial[j, j] == trial[i, i]
    return same == 0


@inlined
def _keeps_valence(domain, element, taken, around):  # type: ignore[no-untyped-def] # compiled
    if len(domain.stars) and element:
        return has_star(domain.stars, element, around)
    for k in range(len(domain.elements)):
        if domain.elements[k] == element:
            return taken <= domain.valences[k]
    return taken == 0  # no atom, hence no bonds


@compiled
def is_connected(matrix, pairs):  # type: ignore[no-untyped-def] # compiled
    """Whether a molecule is connected; ``pairs`` contain all that are bonded. Each bond merges two parts, or none."""
    above, parts = np.arange(len(matrix)), 0
    for i in range(len(matrix)):
        parts += matrix[i, i] != 0
    for i, j in pairs:
        if i != j and matrix[i, j]:
            while above[i] != i:
                above[i] = above[above[i]]
                i = above[i]
            while above[j] != j:
                above[j] = above[above[j]]
                j = above[j]
            parts -= i != j
            above[i] = j
    return parts == 1
