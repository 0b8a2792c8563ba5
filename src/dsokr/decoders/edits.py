"""The kinds of edits of a graph: each has a function that lists its edits.

Compiled code sees a molecule of n atoms as a symmetric matrix with room for one more atom: bond orders, and on the
diagonal the elements, 0 where there is no atom. An edit is a row of integers: the number of entries that it sets, then
each entry as (i, j, value). Other graphs are treated as molecules: their labels as elements, those of edges as
bond orders.
"""

from typing import Any, NamedTuple

import numpy as np

from dsokr.compute import compiled

WIDTH = 1 + 3 * 6  # of an edit: it sets up to six entries


class Domain(NamedTuple):
    """What compiled code needs to know about a domain."""

    elements: np.ndarray
    valences: np.ndarray
    costs: np.ndarray  # (highest order + 1,): what a bond of each order takes of a valence
    max_atoms: int
    connected: bool = True
    planar: bool = False
    proper: bool = False  # bonds join different elements only
    dense: bool = False  # atoms with several bonds may come and go at once
    rearranged: bool = False
    stars: np.ndarray = np.empty(0, np.uint64)  # sorted names of the stars that an atom can have; none: valences decide
    labels: np.ndarray = np.empty(0, np.int64)  # what elements 1, 2, … stand for; none: themselves
    edge_labels: np.ndarray = np.empty(0, np.int64)  # what orders 1, 2, … stand for


class Molecule(NamedTuple):
    """A molecule to edit, in a domain."""

    matrix: np.ndarray  # (n + 1, n + 1)
    n: int
    pairs: np.ndarray  # (bonds, 2)
    domain: Domain
    takes: np.ndarray  # (n, highest order + 1): whether an atom can have one more bond of each order
    edits: np.ndarray  # (room for all, WIDTH)
    listed: np.ndarray  # (1,): the number of edits


@compiled
def list_edits(molecule: Molecule) -> None:
    """List the edits of a molecule: all that are valid, and some that are not."""
    _replace(molecule)
    _change_pair(molecule)
    _move_bond(molecule)
    _remove(molecule)
    if not len(molecule.domain.stars):  # too many, or about the orders of bonds
        _shift_order(molecule)
        _cross(molecule)
        _turn(molecule)
    has_room = molecule.n < molecule.domain.max_atoms
    if has_room:
        _add(molecule)
        _insert(molecule)
    if molecule.domain.dense:
        _cut_out(molecule)
        if has_room:
            _join(molecule)
    if molecule.domain.rearranged:
        _move_order(molecule)
        _move_atom(molecule)


@compiled
def _append(molecule: Molecule, entries: tuple[Any, ...]) -> None:
    """Append the edit that sets the entries (i, j, value, i, j, value, …)."""
    at = molecule.listed[0]
    molecule.edits[at, 0] = len(entries) // 3
    for k in range(len(entries)):
        molecule.edits[at, 1 + k] = entries[k]
    molecule.listed[0] = at + 1


@compiled
def _list_bonded(matrix: np.ndarray, i: int) -> np.ndarray:
    """The atoms bonded to atom i."""
    row = matrix[i].copy()
    row[i] = 0
    return np.flatnonzero(row)


@compiled
def _replace(molecule: Molecule) -> None:
    """Change the element of an atom."""
    for i in range(molecule.n):
        for element in molecule.domain.elements:
            if element != molecule.matrix[i, i]:
                _append(molecule, (i, i, element))


@compiled
def _change_pair(molecule: Molecule) -> None:
    """Exchange two atoms of different elements; make, break or change a bond."""
    for i in range(molecule.n):
        for j in range(i + 1, molecule.n):
            a, b = molecule.matrix[i, i], molecule.matrix[j, j]
            if a != b:
                _append(molecule, (i, i, b, j, j, a))
            for order in range(len(molecule.domain.costs)):
                takes = molecule.matrix[i, j] or (molecule.takes[i, order] and molecule.takes[j, order])
                if order != molecule.matrix[i, j] and takes:
                    _append(molecule, (i, j, order))


@compiled
def _move_bond(molecule: Molecule) -> None:
    """Turn a bond i–j into i–k."""
    for pair in molecule.pairs:
        for side in range(2):
            i, j = pair[side], pair[1 - side]
            for k in range(molecule.n):
                takes = molecule.takes[k, molecule.matrix[i, j]]
                if takes and k != i and k != j and not molecule.matrix[i, k]:
                    _append(molecule, (i, k, molecule.matrix[i, j], i, j, 0))


@compiled
def _shift_order(molecule: Molecule) -> None:
    """Move one order from a bond to another."""
    for i, j in molecule.pairs:
        for k, m in molecule.pairs:
            a, b = molecule.matrix[i, j], molecule.matrix[k, m]
            if (i != k or j != m) and a > 1 and b < len(molecule.domain.costs) - 1:
                _append(molecule, (i, j, a - 1, k, m, b + 1))


@compiled
def _cross(molecule: Molecule) -> None:
    """Turn bonds i–j and k–m into i–m and k–j, or into i–k and j–m."""
    matrix, pairs = molecule.matrix, molecule.pairs
    for a in range(len(pairs)):
        for b in range(a + 1, len(pairs)):
            for side in range(2):
                i, j = pairs[a]
                k, m = pairs[b, side], pairs[b, 1 - side]
                if i != k and i != m and j != k and j != m and not matrix[i, m] and not matrix[k, j]:
                    _append(molecule, (i, m, matrix[i, j], k, j, matrix[k, m], i, j, 0, k, m, 0))


@compiled
def _remove(molecule: Molecule) -> None:
    """Remove an atom with at most one bond, or one between two others, which are then bonded."""
    for i in range(molecule.n):
        around = _list_bonded(molecule.matrix, i)
        if len(around) == 2 and not molecule.matrix[around[0], around[1]]:
            j, k = around
            _append(molecule, (i, j, 0, i, k, 0, j, k, 1, i, i, 0))
        elif len(around) == 1:
            _append(molecule, (i, around[0], 0, i, i, 0))
        elif len(around) == 0 and molecule.n > 1:
            _append(molecule, (i, i, 0))


@compiled
def _turn(molecule: Molecule) -> None:
    """Exchange single and double bonds that alternate around a six-membered ring a=b–c=d–e=f–a, a its first atom."""
    matrix = molecule.matrix
    double = np.argwhere(matrix == 2)
    for a, b in double:
        for c, d in double:
            if matrix[b, c] != 1 or not _are_distinct((a, b, c, d)):
                continue
            for e, f in double:
                closes = matrix[d, e] == 1 and matrix[f, a] == 1 and _are_distinct((a, b, c, d, e, f))
                if closes and a < min(b, c, d, e, f):
                    _append(molecule, (a, b, 1, b, c, 2, c, d, 1, d, e, 2, e, f, 1, f, a, 2))


@compiled
def _are_distinct(atoms: tuple[int, ...]) -> bool:
    for i in range(len(atoms)):
        for j in range(i):
            if atoms[i] == atoms[j]:
                return False
    return True


@compiled
def _add(molecule: Molecule) -> None:
    """Add an atom bonded to one."""
    for i in range(molecule.n):
        for element in molecule.domain.elements:
            for order in range(1, len(molecule.domain.costs)):
                if molecule.takes[i, order]:
                    _append(molecule, (i, molecule.n, order, molecule.n, molecule.n, element))


@compiled
def _insert(molecule: Molecule) -> None:
    """Insert an atom into a bond."""
    n = molecule.n
    for i, j in molecule.pairs:
        for element in molecule.domain.elements:
            _append(molecule, (i, n, 1, n, j, 1, i, j, 0, n, n, element))


@compiled
def _cut_out(molecule: Molecule) -> None:
    """Remove an atom and all its bonds, up to five: more edits than one remove the others."""
    for i in range(molecule.n):
        around = _list_bonded(molecule.matrix, i)
        if 1 < len(around) < WIDTH // 3:
            at = molecule.listed[0]
            _append(molecule, (i, i, 0))
            molecule.edits[at, 0] += len(around)
            for k, j in enumerate(around):
                molecule.edits[at, 4 + 3 * k], molecule.edits[at, 5 + 3 * k], molecule.edits[at, 6 + 3 * k] = i, j, 0


@compiled
def _join(molecule: Molecule) -> None:
    """Add an atom alone, bonded to both ends of a bond, or to three atoms that are bonded to each other."""
    n, matrix = molecule.n, molecule.matrix
    for element in molecule.domain.elements:
        if not molecule.domain.connected or n == 0:
            _append(molecule, (n, n, element))
        for i, j in molecule.pairs:
            _append(molecule, (i, n, 1, j, n, 1, n, n, element))
            for k in range(j + 1, n):
                if matrix[i, k] and matrix[j, k]:
                    _append(molecule, (i, n, 1, j, n, 1, k, n, 1, n, n, element))


@compiled
def _move_order(molecule: Molecule) -> None:
    """Move one order of a bond to any other pair of atoms: rings open and close, and the formula stays."""
    matrix = molecule.matrix
    for i, j in molecule.pairs:
        for k in range(molecule.n):
            for m in range(k + 1, molecule.n):
                if (i != k or j != m) and matrix[k, m] < len(molecule.domain.costs) - 1:
                    _append(molecule, (i, j, matrix[i, j] - 1, k, m, matrix[k, m] + 1))


@compiled
def _move_atom(molecule: Molecule) -> None:
    """Insert an end of the molecule into a single bond, or move an atom between two others, which are then bonded."""
    matrix = molecule.matrix
    for i in range(molecule.n):
        around = _list_bonded(matrix, i)
        if len(around) != 1 and len(around) != 2:
            continue
        j, k = around[0], around[-1]
        if matrix[i, j] != 1 or matrix[i, k] != 1 or (j != k and matrix[j, k]):
            continue
        for m, p in molecule.pairs:
            if m != i and p != i and matrix[m, p] == 1:
                if j == k:
                    _append(molecule, (i, j, 0, m, p, 0, m, i, 1, i, p, 1))
                else:
                    _append(molecule, (i, j, 0, i, k, 0, j, k, 1, m, p, 0, m, i, 1, i, p, 1))
        for m in range(molecule.n):
            if j != k and m != i:
                _append(molecule, (i, j, 0, i, k, 0, j, k, 1, i, m, 1))
