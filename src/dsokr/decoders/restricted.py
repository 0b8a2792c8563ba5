"""Domains of molecules with a given formula, mass or substructure, and how far a molecule is from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.spatial import KDTree

from dsokr.compute import compiled
from dsokr.decoders.moves import Molecules, Neighbors, is_connected, read_matrix
from dsokr.errors import InputError
from dsokr.graphs import Graph, GraphBatch, from_adjacency, to_adjacency

HYDROGEN = 1.00782503223  # its mass
ATOM, PATTERN = 100.0, 1e5  # the distance of an atom too many and of a missing substructure; of a hydrogen: ½
MOST = 1_000_000  # formulas in a window of masses


class Element(NamedTuple):
    """The number, mass and usual valences of an element; hydrogens fill the least valence that its bonds allow."""

    number: int
    mass: float  # of the most common isotope
    valences: tuple[int, ...]


ELEMENTS = {
    "B": Element(5, 11.00930536, (3,)),
    "C": Element(6, 12.0, (4,)),
    "N": Element(7, 14.00307400443, (3,)),
    "O": Element(8, 15.99491461957, (2,)),
    "F": Element(9, 18.99840316273, (1,)),
    "Si": Element(14, 27.97692653465, (4,)),
    "P": Element(15, 30.97376199842, (3, 5)),
    "S": Element(16, 31.9720711744, (2, 4, 6)),
    "Cl": Element(17, 34.968852682, (1,)),
    "Br": Element(35, 78.9183376, (1,)),
    "I": Element(53, 126.9044719, (1,)),
}
BY_NUMBER = {element.number: element for element in ELEMENTS.values()}


def read_formula(text: str) -> Counter[int]:
    """Return how many atoms of each element, by its atomic number, a neutral molecule has.

    >>> dict(read_formula("C6H5OH"))
    {6: 6, 1: 6, 8: 1}
    """
    if not re.fullmatch(r"([A-Z][a-z]?\d*)+", text):
        raise InputError(f"A formula is written like C6H6O, without charges or brackets. Got {text!r}.")
    counts: Counter[int] = Counter()
    for symbol, number in re.findall(r"([A-Z][a-z]?)(\d*)", text):
        if symbol not in ELEMENTS and symbol != "H":
            raise InputError(f"The elements of formulas are H, {', '.join(ELEMENTS)}. Got {symbol!r} in {text!r}.")
        counts[1 if symbol == "H" else ELEMENTS[symbol].number] += int(number or 1)
    return counts


@dataclass(frozen=True, eq=False)
class Restricted:
    """The molecules of a domain that have a formula, a mass in a window (of the neutral molecule with the most common
    isotopes) and certain substructures.

    Hydrogens fill valences, as when a graph becomes SMILES. An edit never leads further away from the restriction.
    """

    domain: Molecules
    formula: str | None = None
    mass: tuple[float, ...] | None = None
    contains: tuple[str | Graph, ...] = ()
    patterns: list[list[np.ndarray]] = field(init=False)  # the Kekulé forms of every substructure, as matrices

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", [list(map(_as_matrix, list_forms(graph))) for graph in self.substructures])
        if self.mass is not None and (len(self.mass) != 2 or not self.mass[0] <= self.mass[1]):
            raise InputError(f"GraphSearch.mass must be a lowest and a highest mass. Got {self.mass}.")
        if self.compositions is not None and not len(self.compositions):
            raise InputError(f"No molecule of the domain has {self.describe()}.")

    @cached_property
    def substructures(self) -> list[Graph]:
        for item in self.contains:
            if not isinstance(item, str | Graph) or item == Graph(()):
                raise InputError(f"GraphSearch.contains must be SMILES or graphs with an atom. Got {item!r}.")
        texts = [item for item in self.contains if isinstance(item, str)]
        if texts:
            from dsokr import chem  # RDKit is needed for SMILES only

            read = iter(chem.graphs(texts))
        return [next(read) if isinstance(item, str) else item for item in self.contains]

    def describe(self) -> str:
        parts = [f"the formula {self.formula}"] if self.formula else []
        parts += [f"a mass from {self.mass[0]:g} to {self.mass[1]:g}"] if self.mass else []
        return ", ".join([*parts, *(f"the substructure {item}" for item in self.contains)])

    @cached_property
    def elements(self) -> list[Element]:
        """The elements of the domain; one that is not in the table has its valence there, and no mass."""
        return [BY_NUMBER.get(number, Element(number, np.nan, (most,))) for number, most in self.domain.valences]

    @cached_property
    def compositions(self) -> np.ndarray | None:  # (formulas, elements + 2)
        """The allowed numbers of atoms of each element, of other elements, and of hydrogens; None allows all."""
        if self.mass is None:
            return None if self.formula is None else self._read_formula(self.formula)
        masses = np.array([*(element.mass for element in self.elements), 0, HYDROGEN])
        if np.isnan(masses).any():
            raise InputError(f"The masses of {', '.join(ELEMENTS)} are known. Got the domain {self.domain}.")
        low, high = self.mass
        rows = self._list_formulas(masses, low, high) if self.formula is None else self._read_formula(self.formula)
        return rows[(low <= rows @ masses) & (rows @ masses <= high)]

    def _read_formula(self, formula: str) -> np.ndarray:  # (1, elements + 2)
        counts = read_formula(formula)
        hydrogens, size = counts.pop(1, 0), counts.total()
        numbers = [element.number for element in self.elements]
        if counts.keys() - set(numbers):
            raise InputError(f"{formula} has elements that the domain has not: {self.domain}.")
        if not 1 <= size <= self.domain.max_atoms:
            most = f"1 to {self.domain.max_atoms}, as Molecules.max_atoms says"
            raise InputError(f"{formula} has {size} atoms other than hydrogen. There must be {most}.")
        free = sum(counts[element.number] * (element.valences[-1] - 2) for element in self.elements) + 2
        if hydrogens > free or (hydrogens - free) % 2:
            raise InputError(f"No molecule has the formula {formula}: its hydrogens do not fit its valences.")
        return np.array([[*(counts[number] for number in numbers), 0, hydrogens]])

    def _list_formulas(self, masses: np.ndarray, low: float, high: float) -> np.ndarray:  # (formulas, elements + 2)
        """All formulas of molecules with a mass in the window."""
        most, count = self.domain.max_atoms, len(self.elements)
        rows = np.zeros((1, count + 2), np.int64)
        for unit in np.eye(count, count + 2, dtype=np.int64):
            more = (rows + number * unit for number in range(most + 1))
            rows = _join(part[(part.sum(axis=1) <= most) & (part @ masses <= high)] for part in more)
        least, largest = (np.array([element.valences[end] - 2 for element in self.elements]) for end in (0, -1))
        rows = rows[rows.sum(axis=1) > 0]
        atoms = rows[:, :count]
        rows[:, -1] = np.maximum(atoms @ least, np.minimum(atoms @ largest, -2)) + 2  # if there are no rings
        pair = 2 * np.eye(1, count + 2, count + 1, dtype=np.int64)
        fewer = (rows - number * pair for number in range(rows[:, -1].max(initial=0) // 2 + 1))
        return _join(part[(part[:, -1] >= 0) & (low <= part @ masses) & (part @ masses <= high)] for part in fewer)

    @cached_property
    def _tree(self) -> KDTree:
        return KDTree(self.compositions * self._scale)

    @cached_property
    def _scale(self) -> np.ndarray:
        return np.append(np.full(len(self.elements) + 1, ATOM), 0.5)

    def compose(self, graphs: GraphBatch) -> np.ndarray:  # (graphs, elements + 2)
        """Count the atoms of each element, of others, and hydrogens. A charged pair counts as if it were neutral."""
        n, owner = len(graphs), np.repeat(np.arange(len(graphs)), np.diff(graphs.offsets))
        slots = np.repeat(np.arange(len(graphs.labels)), graphs.degrees())
        bonds = np.bincount(slots, graphs.edge_labels, minlength=len(graphs.labels)).astype(np.int64)
        found, other = np.zeros((n, len(self.elements) + 2), np.int64), np.ones(len(bonds), bool)
        for at, element in enumerate(self.elements):
            mine, valences = graphs.labels == element.number, np.array(element.valences)
            own = bonds[mine]
            free = valences[np.searchsorted(valences, own).clip(max=len(valences) - 1)] - own
            found[:, at] = np.bincount(owner[mine], minlength=n)
            found[:, -1] += np.bincount(owner[mine], free, minlength=n).astype(np.int64)
            other &= ~mine
        found[:, -2] = np.bincount(owner[other], minlength=n)
        return found

    def measure(self, graphs: GraphBatch) -> np.ndarray:  # (graphs,)
        """How far graphs are from the restriction: 0 if they meet it, else at least 1."""
        far = np.zeros(len(graphs))
        if self.compositions is not None:
            far += self._tree.query(self.compose(graphs) * self._scale, p=1)[0]
        for forms in self.patterns:
            there = np.zeros(len(graphs), bool)
            for pattern in forms:
                there |= _find(graphs.as_arrays(), pattern)
            far += PATTERN * ~there
        return far

    def neighbors(self, graphs: GraphBatch) -> Neighbors:
        near = self.domain.neighbors(graphs, rearranged=True)
        return near.take(np.flatnonzero(self.measure(near.graphs) <= self.measure(graphs)[near.origins]))

    def suggest(self) -> list[Graph]:
        """Molecules of the domain to start from: the substructures, each alone and all in a chain."""
        matrices, valences = list(map(_as_matrix, self.substructures)), dict(self.domain.valences)
        matrices += [self._chain(matrices)] if len(matrices) > 1 else []
        small = (matrix for matrix in matrices if len(matrix) <= self.domain.max_atoms)
        whole = (matrix for matrix in small if is_connected(matrix, np.argwhere(matrix)))
        good = (matrix for matrix in whole if {*np.diag(matrix).tolist()} <= {*valences})
        return [from_adjacency(np.diag(matrix), matrix - np.diag(np.diag(matrix))) for matrix in good]

    def _chain(self, matrices: Sequence[np.ndarray]) -> np.ndarray:
        """Bond every molecule to those before, where most valences are free; disconnected if none is."""
        joined, valences = block_diag(*matrices), dict(self.domain.valences)
        most = np.array([valences.get(element, 0) for element in np.diag(joined)])
        for start, stop in pairwise(np.cumsum([len(matrix) for matrix in matrices])):
            free = most - joined.sum(axis=1) + np.diag(joined)
            i, j = free[:start].argmax(), start + free[start:stop].argmax()
            joined[i, j] = joined[j, i] = min(free[i], free[j]) > 0
        return joined


def _join(parts: Iterator[np.ndarray]) -> np.ndarray:
    """All rows of several tables, if they are not too many."""
    kept, total = list[np.ndarray](), 0
    for part in parts:
        kept, total = [*kept, part], total + len(part)
        if total > MOST:
            raise InputError(f"More than {MOST:,} formulas have at most this mass. Give one of them.")
    return np.concatenate(kept)


def list_forms(graph: Graph) -> list[Graph]:
    """The Kekulé forms of a molecule: all ways to place its double bonds so that the same atoms have one each.

    >>> ring = Graph((6,) * 6, ((0, 1, 2), (1, 2, 1), (2, 3, 2), (3, 4, 1), (4, 5, 2), (0, 5, 1)))
    >>> len(list_forms(ring))
    2
    """
    double = [(i, j) for i, j, order in graph.edges if order == 2]
    ends = Counter(chain(*double))
    movable = {atom for i, j in double if ends[i] == ends[j] == 1 for atom in (i, j)}
    pairs = [(i, j) for i, j, order in graph.edges if order < 3 and {i, j} <= movable]

    def change(chosen: tuple[tuple[int, int], ...]) -> Graph:
        edges = ((i, j, 1 + ((i, j) in chosen) if (i, j) in pairs else order) for i, j, order in graph.edges)
        return replace(graph, edges=tuple(edges))

    return [change(chosen) for chosen in _match(frozenset(movable), pairs)]


def _match(atoms: frozenset[int], pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """All perfect matchings of atoms by pairs."""
    if not atoms:
        yield ()
    for pair in pairs:
        if min(atoms, default=-1) in pair and atoms.issuperset(pair):
            yield from ((pair, *others) for others in _match(atoms.difference(pair), pairs))


def _as_matrix(graph: Graph) -> np.ndarray:
    """Bond orders, and on the diagonal elements; every atom that can be is bonded to an earlier one."""
    labels, matrix = to_adjacency(graph)
    matrix = matrix + np.diag(labels)
    order: list[int] = []
    while len(order) < len(labels):
        left = [atom for atom in range(len(labels)) if atom not in order]
        order.append(max(left, key=lambda atom: (matrix[atom, order] > 0).sum()))
    return np.ascontiguousarray(matrix[np.ix_(order, order)])


@compiled
def _find(graphs, pattern):  # type: ignore[no-untyped-def] # compiled
    """Whether each graph of a batch contains a pattern: its atoms, and at least its bonds between them."""
    found = np.zeros(len(graphs[0]) - 1, np.bool_)
    for g in range(len(found)):
        found[g] = _embeds(read_matrix(graphs, g)[:-1, :-1], pattern)
    return found


@compiled
def _embeds(matrix: np.ndarray, pattern: np.ndarray) -> bool:
    """Place the atoms of the pattern one by one, and go back where none fits."""
    place, depth = np.full(len(pattern), -1), 0
    while depth >= 0:
        place[depth] += 1
        while place[depth] < len(matrix) and not _fits(matrix, pattern, place, depth):
            place[depth] += 1
        if place[depth] == len(matrix):
            place[depth] = -1
            depth -= 1
        elif depth == len(pattern) - 1:
            return True
        else:
            depth += 1
    return False


@compiled
def _fits(matrix: np.ndarray, pattern: np.ndarray, place: np.ndarray, depth: int) -> bool:
    i = place[depth]
    if matrix[i, i] != pattern[depth, depth]:
        return False
    for e in range(depth):
        if place[e] == i or (pattern[depth, e] and matrix[i, place[e]] != pattern[depth, e]):
            return False
    return True
