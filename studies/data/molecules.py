"""Random molecules, so that tests, demonstrations and examples need no download.

A tree of atoms is grown, some rings are closed, some atoms become nitrogen, oxygen or fluorine, and some bonds become
double or triple; valence holds at every step. The probabilities were set by hand so that composition, rings and bonds
come close to QM9's.
"""

import numpy as np
from numpy.typing import NDArray

from dsokr.compute import compiled
from dsokr.errors import InputError
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import WeisfeilerLehman

Integers = NDArray[np.int64]
Names = NDArray[np.uint64]

BATCH = 4096
PATIENCE = 20  # batches in a row without a new molecule before giving up

CARBON, NITROGEN, OXYGEN, FLUORINE = 6, 7, 8, 9
SMALLER = 0.17  # how much rarer each size is than the next larger one
BRANCHING = (1.0, 1.0, 0.45, 0.12, 0.0)  # by degree: how readily an atom takes another neighbour
RINGS = np.array([0.09, 0.38, 0.30, 0.16, 0.07])  # by number of rings
RING_SIZES = np.array([0.0, 0.0, 0.0, 0.25, 0.33, 0.30, 0.12])
HETERO = (0.0, 0.52, 0.40, 0.13, 0.0)  # by degree: how often an atom is not carbon
HETERO_BESIDE_HETERO = 0.2  # how often that is allowed next to another one
FLUORINE_AT_END, OXYGEN_SHARE = 0.02, 0.62
DOUBLE, TRIPLE = (0.08, 0.28, 0.80, 0.0), (0.40, 0.60, 0.0, 0.0)  # bonds to C, N, O and F, the heavier atom counts
CONJUGATED = 0.7  # double, in a ring and next to another
RESONANT = 4  # label of a bond that may be single in one Kekulé form and double in another


def generate(n: int, seed: int, max_atoms: int = 9) -> list[Graph]:
    """Draw n different molecules of 2 to ``max_atoms`` atoms of carbon, nitrogen, oxygen and fluorine.

    Node labels are atomic numbers, edge labels 1, 2 and 3 for single, double and triple bonds; hydrogens are left out.
    Each molecule is connected and keeps the valences 4, 3, 2 and 1. No two are isomorphic, nor two Kekulé forms of one
    molecule. Sizes, elements, bonds and rings are about as frequent as in QM9: most molecules have ``max_atoms`` atoms,
    and most atoms are carbon. The same seed gives the same molecules, and fewer of them are the first of more.
    100,000 molecules take about 5 s.

    >>> molecules = generate(1000, seed=0)
    >>> len(set(molecules)), max(len(molecule.labels) for molecule in molecules)
    (1000, 9)
    """
    if max_atoms < 2:
        raise InputError(f"max_atoms must be at least 2. Got {max_atoms}.")
    generator = np.random.default_rng(seed)
    seen: set[int] = set()
    molecules: list[Graph] = []
    failures = 0
    while len(molecules) < n:
        elements = np.zeros((BATCH, max_atoms), np.int64)
        bonds = np.zeros((BATCH, max_atoms, max_atoms), np.int64)
        _grow_molecules(generator, max_atoms, elements, bonds)
        new = []
        for position, key in enumerate(identify(elements, bonds)):
            if key not in seen:
                seen.add(key)
                new.append(position)
        wanted = new[: n - len(molecules)]
        molecules += _as_batch(elements[wanted], bonds[wanted])
        failures = 0 if new else failures + 1
        if failures == PATIENCE:
            raise InputError(
                f"Found only {len(molecules)} of n={n:,} molecules with at most max_atoms={max_atoms} atoms."
            )
    return molecules


def identify(elements: Integers, bonds: Integers) -> list[int]:  # (n, atoms), (n, atoms, atoms)
    """Return one number per molecule, equal for isomorphic ones and for Kekulé forms of one molecule.

    Two Kekulé forms differ only in which bonds are double among the atoms that have a double bond, so these bonds all
    get one label. Weisfeiler-Lehman refinement of that graph hardly ever mistakes different molecules for one; where
    it does, ``generate`` leaves one of them out.
    """
    unsaturated = (bonds == 2).any(axis=2)
    resonant = (bonds > 0) & unsaturated[:, :, None] & unsaturated[:, None, :]
    return name_graphs(_as_batch(elements, np.where(resonant, RESONANT, bonds)), elements.shape[1] - 1).tolist()


def name_graphs(graphs: GraphBatch, iterations: int, edge_labels: bool = True) -> Names:  # (graphs,)
    """One number per graph, equal for graphs that Weisfeiler-Lehman refinement cannot tell apart."""
    features = WeisfeilerLehman(iterations, edge_labels=edge_labels).features(graphs)
    return np.add.reduceat(features.ids * features.values.astype(np.uint64), features.indptr[:-1])


def _as_batch(elements: Integers, bonds: Integers) -> GraphBatch:
    owner, i, j = np.triu(bonds).nonzero()
    nodes, edges = (elements > 0).sum(axis=1), np.bincount(owner, minlength=len(elements))
    return GraphBatch.from_edges(nodes, elements[elements > 0], edges, np.stack([i, j, bonds[owner, i, j]], axis=1))


@compiled
def _grow_molecules(generator: np.random.Generator, max_atoms: int, elements: Integers, bonds: Integers) -> None:
    """Fill arrays of zeros, (n, atoms) and (n, atoms, atoms), with random molecules."""
    for at in range(len(elements)):
        n = max_atoms
        while n > 2 and generator.random() < SMALLER:
            n -= 1
        atoms, order, in_ring = elements[at, :n], bonds[at, :n, :n], np.zeros((n, n), np.bool_)
        _grow_tree(generator, order)
        _close_rings(generator, order, in_ring)
        _choose_elements(generator, order, atoms)
        _raise_bonds(generator, atoms, order, in_ring)


@compiled
def _draw(generator: np.random.Generator, weights: NDArray[np.float64]) -> int:
    """An index with probability in proportion to its weight, or -1 if all weights are 0."""
    mark = generator.random() * weights.sum()
    chosen = -1
    for k in range(weights.size):
        if weights[k] > 0:
            chosen = k
            mark -= weights[k]
            if mark < 0:
                break
    return chosen


@compiled
def _degree(bonds: Integers, i: int) -> int:
    count = 0
    for j in range(len(bonds)):
        count += bonds[i, j] > 0
    return count


@compiled
def _grow_tree(generator: np.random.Generator, bonds: Integers) -> None:
    for new in range(1, len(bonds)):
        weights = np.empty(new)
        for i in range(new):
            weights[i] = BRANCHING[_degree(bonds, i)]
        parent = _draw(generator, weights)
        bonds[new, parent] = bonds[parent, new] = 1


@compiled
def _close_rings(generator: np.random.Generator, bonds: Integers, in_ring: NDArray[np.bool_]) -> None:
    """Join atoms at the distance that makes a ring of the size drawn, where there are any."""
    n = len(bonds)
    weights = np.empty(n * n)
    for _ in range(_draw(generator, RINGS)):
        size = _draw(generator, RING_SIZES)
        distance = _distances(bonds)
        for i in range(n):
            for j in range(n):
                fits = i < j and distance[i, j] == size - 1
                weights[i * n + j] = BRANCHING[_degree(bonds, i)] * BRANCHING[_degree(bonds, j)] if fits else 0.0
        chosen = _draw(generator, weights)
        if chosen >= 0:
            _close(chosen // n, chosen % n, bonds, distance, in_ring)


@compiled
def _close(i: int, j: int, bonds: Integers, distance: Integers, in_ring: NDArray[np.bool_]) -> None:
    bonds[i, j] = bonds[j, i] = 1
    in_ring[i, j] = in_ring[j, i] = True
    for a in range(len(bonds)):
        for b in range(len(bonds)):
            if bonds[a, b] and distance[i, a] + 1 + distance[b, j] == distance[i, j]:  # on a shortest path
                in_ring[a, b] = in_ring[b, a] = True


@compiled
def _distances(bonds: Integers) -> Integers:
    """Lengths of shortest paths, by Floyd and Warshall."""
    n = len(bonds)
    distance = np.empty((n, n), np.int64)
    for i in range(n):
        for j in range(n):
            distance[i, j] = 0 if i == j else 1 if bonds[i, j] else n
    for k in range(n):
        for i in range(n):
            for j in range(n):
                distance[i, j] = min(distance[i, j], distance[i, k] + distance[k, j])
    return distance


@compiled
def _choose_elements(generator: np.random.Generator, bonds: Integers, elements: Integers) -> None:
    elements[:] = CARBON
    for i in range(elements.size):
        degree = _degree(bonds, i)
        if generator.random() >= HETERO[degree]:
            continue
        element = _draw_hetero(generator, degree)
        together = 0
        for j in range(elements.size):
            if bonds[i, j] and elements[j] != CARBON:
                together = max(together, element + elements[j])
        if together == 0 or (together <= NITROGEN + OXYGEN and generator.random() < HETERO_BESIDE_HETERO):
            elements[i] = element  # so no O-O, and fluorine on carbon only


@compiled
def _draw_hetero(generator: np.random.Generator, degree: int) -> int:
    mark = generator.random()
    if degree == 1 and mark < FLUORINE_AT_END:
        return FLUORINE
    return OXYGEN if degree < 3 and mark < OXYGEN_SHARE else NITROGEN


@compiled
def _raise_bonds(
    generator: np.random.Generator, elements: Integers, bonds: Integers, in_ring: NDArray[np.bool_]
) -> None:
    """Make some single bonds double or triple. No atom gets two such bonds, and no ring a triple one."""
    n = elements.size
    free = np.empty(n, np.int64)
    for i in range(n):
        free[i] = 10 - elements[i] - _degree(bonds, i)  # 10 - Z is the valence of C, N, O and F
    for i in range(n):
        for j in range(i):
            room = min(free[i], free[j])
            if bonds[i, j] == 0 or room == 0:
                continue
            kind = max(elements[i], elements[j]) - CARBON
            triple = TRIPLE[kind] if room > 1 and not in_ring[i, j] else 0.0
            double = CONJUGATED if in_ring[i, j] and _has_conjugation(bonds, i, j) else DOUBLE[kind]
            mark = generator.random()
            if mark >= triple + double:
                continue
            order = 3 if mark < triple else 2
            bonds[i, j] = bonds[j, i] = order
            free[i] = free[j] = 0


@compiled
def _has_conjugation(bonds: Integers, i: int, j: int) -> bool:
    """Whether a neighbour of either atom has a double bond."""
    return (bonds[(bonds[i] > 0) | (bonds[j] > 0)] == 2).any()
