"""Domains of graphs to search: what a graph can become in one edit."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dsokr.compute import compiled
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
        check_fields(self)
        if not self.valences or any(valence < 1 for _, valence in self.valences):
            raise InputError(f"Molecules.valences must give elements positive valences. Got {self.valences}.")

    def neighbors(self, graphs: GraphBatch, rearranged: bool = False) -> Neighbors:
        """The molecules one edit away; also those ``rearranged``: one order of a bond, or an atom, is elsewhere."""
        elements, valences = np.array(self.valences, np.int64).T.copy()
        domain = Domain(elements, valences, np.arange(HIGHEST + 1), self.max_atoms, rearranged=rearranged)
        return edit_graphs(graphs, domain)

    def contains(self, graphs: GraphBatch) -> np.ndarray:  # (graphs,)
        """Which of the graphs that two molecules' pieces make are small enough."""
        return np.diff(graphs.offsets) <= self.max_atoms


def edit_graphs(graphs: GraphBatch, domain: Domain) -> Neighbors:
    """The graphs of the domain that are one edit away."""
    arrays = (graphs.offsets, graphs.labels, graphs.indptr, graphs.neighbors, graphs.edge_labels)
    parts = [_edit_molecule(g, *arrays, domain) for g in range(len(graphs))]
    origins = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    sizes, labels, bonds, ends = map(np.concatenate, zip(*parts, strict=True))
    return Neighbors(GraphBatch.from_edges(sizes, labels, bonds, ends), origins)


@compiled
def _edit_molecule(g, offsets, labels, indptr, neighbors, edge_labels, domain):  # type: ignore[no-untyped-def] # compiled
    """All valid molecules one edit away from graph g of a batch: their numbers of atoms and the atoms' elements, their
    numbers of bonds and the bonds as (i, j, order), with atoms numbered within each molecule.
    """
    first, n = offsets[g], offsets[g + 1] - offsets[g]
    matrix = np.zeros((n + 1, n + 1), np.int64)
    for i in range(n):
        matrix[i, i] = labels[first + i]
        for k in range(indptr[first + i], indptr[first + i + 1]):
            matrix[i, neighbors[k] - first] = edge_labels[k]
    pairs = np.argwhere(np.triu(matrix, 1))
    edits = np.empty((_bound_edits(matrix, pairs, n, domain), WIDTH), np.int64)
    molecule = Molecule(matrix, n, pairs, domain, edits, np.zeros(1, np.int64))
    list_edits(molecule)
    count = molecule.listed[0]
    sizes, bonds = np.empty((2, count), np.int64)
    atoms, ends = np.empty(count * (n + 1), np.int64), np.empty((count * (len(pairs) + 3), 3), np.int64)
    trial, found, atom, bond = matrix.copy(), 0, 0, 0
    for edit in edits[:count]:
        for k in range(1, 1 + 3 * edit[0], 3):
            trial[edit[k], edit[k + 1]] = trial[edit[k + 1], edit[k]] = edit[k + 2]
        if _is_valid(molecule, edit, trial):
            sizes[found], bonds[found] = _write(trial, atoms[atom:], ends[bond:])
            atom, bond, found = atom + sizes[found], bond + bonds[found], found + 1
        for k in range(1, 1 + 3 * edit[0], 3):
            trial[edit[k], edit[k + 1]] = trial[edit[k + 1], edit[k]] = matrix[edit[k], edit[k + 1]]
    return sizes[:found], atoms[:atom], bonds[:found], ends[:bond]


@compiled
def _bound_edits(matrix: np.ndarray, pairs: np.ndarray, n: int, domain: Domain) -> int:
    """No molecule has more edits: by kind, those of one atom, two atoms, a bond, two bonds, and rings."""
    bonds, double, elements, orders = len(pairs), (matrix == 2).sum(), len(domain.elements), len(domain.costs)
    moved = bonds * n * n + n * (n + bonds)
    joined = (1 + bonds * (1 + n)) * elements
    one = n * (2 + orders * elements) + orders * n * n + bonds * (2 * n + elements)
    return one + 2 * bonds * bonds + double**3 + moved + joined


@compiled
def _is_valid(molecule: Molecule, edit: np.ndarray, trial: np.ndarray) -> bool:
    """Whether the atoms that an edit touched keep their valences, and the domain's other conditions hold."""
    domain, breaks, makes = molecule.domain, False, False
    for k in range(1, 1 + 3 * edit[0], 3):
        for i in edit[k : k + 2]:
            if not _keeps_valence(domain, trial, i) or (domain.proper and not _differs(trial, i)):
                return False
        breaks |= edit[k + 2] == 0 and edit[k] != edit[k + 1]
        makes |= edit[k + 2] != 0 and edit[k] != edit[k + 1]
    if breaks and domain.connected and not is_connected(trial):
        return False
    return not makes or not domain.planar or is_planar(trial)


@compiled
def _differs(trial: np.ndarray, i: int) -> bool:
    """Whether all atoms bonded to an atom are of other elements."""
    same = 0
    for j in range(len(trial)):
        same += j != i and trial[i, j] != 0 and trial[j, j] == trial[i, i]
    return same == 0


@compiled
def _keeps_valence(domain: Domain, trial: np.ndarray, i: int) -> bool:
    total, around = 0, np.uint64(0)
    for j in range(len(trial)):
        if j != i and trial[i, j]:
            total += domain.costs[trial[i, j]]
            around += mix(trial[i, j])
    if len(domain.stars) and trial[i, i]:
        return has_star(domain.stars, trial[i, i], around)
    for k in range(len(domain.elements)):
        if domain.elements[k] == trial[i, i]:
            return total <= domain.valences[k]
    return total == 0  # no atom, hence no bonds


@compiled
def is_connected(trial: np.ndarray) -> bool:
    seen, queue, atoms, head, tail = np.zeros(len(trial), np.bool_), np.empty(len(trial), np.int64), 0, 0, 0
    for v in range(len(trial)):
        if trial[v, v] and not atoms:
            seen[v], queue[0], tail = True, v, 1
        atoms += trial[v, v] != 0
    while head < tail:
        for v in range(len(trial)):
            if trial[queue[head], v] and not seen[v]:
                seen[v], queue[tail] = True, v
                tail += 1
        head += 1
    return 0 < tail == atoms


@compiled
def _write(trial: np.ndarray, atoms: np.ndarray, ends: np.ndarray) -> tuple[int, int]:
    """Write the atoms and bonds of a molecule; return how many there are."""
    number, size, bonds = np.empty(len(trial), np.int64), 0, 0
    for i in range(len(trial)):
        if trial[i, i]:
            number[i], atoms[size] = size, trial[i, i]
            size += 1
    for i in range(len(trial)):
        for j in range(i + 1, len(trial)):
            if trial[i, j]:
                ends[bonds, 0], ends[bonds, 1], ends[bonds, 2] = number[i], number[j], trial[i, j]
                bonds += 1
    return size, bonds
