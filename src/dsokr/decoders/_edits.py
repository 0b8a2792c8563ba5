"""The edits of molecules, compiled.

A molecule of n atoms is a matrix of bond orders with a place for one more atom, and labels, 0 where there is no atom.
An edit is a row of integers: how many bonds it sets, each as (i, j, order), and how many labels, each as (i, label).
Every kind of edit has a function that appends its rows; all edits are then applied, checked, written down and undone
by the same code.
"""

from __future__ import annotations

import numpy as np

from dsokr.compute import compiled

BONDS = 6  # that one edit sets at most
WIDTH = 1 + 3 * BONDS + 1 + 2 * 2
LABELS = 1 + 3 * BONDS  # where the number of labels stands in a row
HIGHEST = 3  # bond order


@compiled
def edited(  # type: ignore[no-untyped-def] # compiled
    offsets, labels, indptr, neighbors, edge_labels, elements, valences, max_atoms
):
    """All molecules one edit away.

    Returns the number of atoms of each, their labels, which atom of the origin each was (−1 for a new one) and whether
    the edit touched it; the number of bonds, their (i, j, order), and the origins. Atoms are numbered within a
    molecule.
    """
    most = 1 if len(offsets) < 2 else (offsets[1:] - offsets[:-1]).max()
    graphs, atoms, ends = 0, 0, 0
    sizes, counts, origins = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.int64)
    all_labels, sources, touched = np.empty(1024, np.int64), np.empty(1024, np.int64), np.empty(1024, np.bool_)
    all_ends = np.empty((1024, 3), np.int64)
    edits = np.empty((_bound(most, most * (most - 1) // 2, len(elements)), WIDTH), np.int64)
    for g in range(len(offsets) - 1):
        first, n = offsets[g], offsets[g + 1] - offsets[g]
        bonds, mine = np.zeros((n + 1, n + 1), np.int64), np.zeros(n + 1, np.int64)
        mine[:n] = labels[first : first + n]
        for i in range(n):
            for k in range(indptr[first + i], indptr[first + i + 1]):
                bonds[i, neighbors[k] - first] = edge_labels[k]
        for e in range(_all_edits(bonds, mine, n, elements, max_atoms, edits)):
            wanted = edits[e].copy()
            _exchange(edits[e], bonds, mine)
            if _is_valid(wanted, bonds, mine, elements, valences):
                if graphs == len(sizes):
                    sizes, counts, origins = _doubled(sizes), _doubled(counts), _doubled(origins)
                while atoms + n + 1 > len(all_labels):
                    all_labels, sources, touched = _doubled(all_labels), _doubled(sources), _doubled(touched)
                while ends + (n + 1) * (n + 1) > len(all_ends):
                    all_ends = np.concatenate((all_ends, np.empty_like(all_ends)))
                sizes[graphs], counts[graphs] = _write(bonds, mine, all_labels[atoms:], all_ends[ends:])
                _trace(wanted, mine, n, sources[atoms:], touched[atoms:])
                origins[graphs] = g
                atoms, ends, graphs = atoms + sizes[graphs], ends + counts[graphs], graphs + 1
            _exchange(edits[e], bonds, mine)
    nodes = (all_labels[:atoms], sources[:atoms], touched[:atoms])
    return sizes[:graphs], nodes, counts[:graphs], all_ends[:ends], origins[:graphs]


@compiled
def _doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate((array, np.empty_like(array)))


@compiled
def _bound(n: int, pairs: int, elements: int) -> int:
    """No molecule of n atoms has more edits: it has at most ``pairs`` bonds."""
    own = n * elements + pairs + HIGHEST * pairs + n * elements * HIGHEST + n + pairs * elements
    return own + 2 * pairs * n + 4 * pairs * pairs + n


@compiled
def _exchange(edit: np.ndarray, bonds: np.ndarray, labels: np.ndarray) -> None:
    """Apply an edit and leave in its row what was there before: done twice, nothing has happened."""
    for k in range(1, 1 + 3 * edit[0], 3):
        i, j = edit[k], edit[k + 1]
        bonds[i, j], edit[k + 2] = edit[k + 2], bonds[i, j]
        bonds[j, i] = bonds[i, j]
    for k in range(LABELS + 1, LABELS + 1 + 2 * edit[LABELS], 2):
        labels[edit[k]], edit[k + 1] = edit[k + 1], labels[edit[k]]


@compiled
def _is_valid(
    edit: np.ndarray,
    bonds: np.ndarray,
    labels: np.ndarray,
    elements: np.ndarray,
    valences: np.ndarray,
) -> bool:
    """After the edit, are the atoms it touched within their valences, and, if it broke a bond, is all in one piece?"""
    broken = False
    for k in range(1, 1 + 3 * edit[0], 3):
        if not _within(edit[k], bonds, labels, elements, valences):
            return False
        if not _within(edit[k + 1], bonds, labels, elements, valences):
            return False
        broken |= edit[k + 2] == 0
    for k in range(LABELS + 1, LABELS + 1 + 2 * edit[LABELS], 2):
        if not _within(edit[k], bonds, labels, elements, valences):
            return False
    return not broken or _is_connected(bonds, labels)


@compiled
def _within(i: int, bonds: np.ndarray, labels: np.ndarray, elements: np.ndarray, valences: np.ndarray) -> bool:
    total = bonds[i].sum()
    for k in range(len(elements)):
        if elements[k] == labels[i]:
            return total <= valences[k]
    return total == 0  # no atom, hence no bonds


@compiled
def _is_connected(bonds: np.ndarray, labels: np.ndarray) -> bool:
    n, wanted, first = len(labels), 0, -1
    for i in range(n):
        if labels[i]:
            wanted += 1
            first = i if first < 0 else first
    if wanted == 0:
        return False
    seen, queue = np.zeros(n, np.bool_), np.empty(n, np.int64)
    queue[0], seen[first] = first, True
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        for v in range(n):
            if bonds[u, v] and not seen[v]:
                seen[v] = True
                queue[tail] = v
                tail += 1
    return tail == wanted


@compiled
def _write(bonds: np.ndarray, labels: np.ndarray, to_labels: np.ndarray, to_ends: np.ndarray) -> tuple[int, int]:
    """The molecule without the places that have no atom; returns its numbers of atoms and bonds."""
    number = np.empty(len(labels), np.int64)
    atoms, ends = 0, 0
    for i in range(len(labels)):
        if labels[i]:
            number[i], to_labels[atoms] = atoms, labels[i]
            atoms += 1
    for i in range(len(labels)):
        for j in range(i + 1, len(labels)):
            if bonds[i, j]:
                to_ends[ends, 0], to_ends[ends, 1], to_ends[ends, 2] = number[i], number[j], bonds[i, j]
                ends += 1
    return atoms, ends


@compiled
def _trace(edit: np.ndarray, labels: np.ndarray, n: int, sources: np.ndarray, touched: np.ndarray) -> None:
    """Where the atoms of an edited molecule, as ``_write`` numbers them, come from, and which the edit names."""
    atoms = 0
    for i in range(len(labels)):
        if labels[i]:
            sources[atoms], touched[atoms] = i if i < n else -1, False
            for k in range(1, 1 + 3 * edit[0], 3):
                touched[atoms] |= edit[k] == i or edit[k + 1] == i
            for k in range(LABELS + 1, LABELS + 1 + 2 * edit[LABELS], 2):
                touched[atoms] |= edit[k] == i
            atoms += 1


@compiled
def _all_edits(
    bonds: np.ndarray, labels: np.ndarray, n: int, elements: np.ndarray, max_atoms: int, edits: np.ndarray
) -> int:
    """Fill ``edits`` with those of a molecule of n atoms, and return how many there are."""
    pairs = _bonded(bonds, n)
    count = _replace(labels, n, elements, edits, 0)
    count = _swap(labels, n, edits, count)
    count = _set_bond(bonds, n, edits, count)
    count = _move_bond(bonds, n, pairs, edits, count)
    count = _shift_order(bonds, pairs, edits, count)
    count = _cross(bonds, pairs, edits, count)
    count = _remove(bonds, n, edits, count)
    count = _turn(bonds, n, edits, count)
    if n < max_atoms:
        count = _add(n, elements, edits, count)
        count = _insert(n, pairs, elements, edits, count)
    return count


@compiled
def _bonded(bonds: np.ndarray, n: int) -> np.ndarray:  # (bonds, 2)
    pairs, count = np.empty((n * n, 2), np.int64), 0
    for i in range(n):
        for j in range(i + 1, n):
            if bonds[i, j]:
                pairs[count, 0], pairs[count, 1] = i, j
                count += 1
    return pairs[:count]


@compiled
def _new(edits: np.ndarray, count: int) -> np.ndarray:
    edits[count, 0] = edits[count, LABELS] = 0
    return edits[count]


@compiled
def _bond(edit: np.ndarray, i: int, j: int, order: int) -> None:
    at = 1 + 3 * edit[0]
    edit[at], edit[at + 1], edit[at + 2] = i, j, order
    edit[0] += 1


@compiled
def _label(edit: np.ndarray, i: int, label: int) -> None:
    at = LABELS + 1 + 2 * edit[LABELS]
    edit[at], edit[at + 1] = i, label
    edit[LABELS] += 1


@compiled
def _replace(labels: np.ndarray, n: int, elements: np.ndarray, edits: np.ndarray, count: int) -> int:
    """Another element."""
    for i in range(n):
        for element in elements:
            if element != labels[i]:
                _label(_new(edits, count), i, element)
                count += 1
    return count


@compiled
def _swap(labels: np.ndarray, n: int, edits: np.ndarray, count: int) -> int:
    """Two atoms of different elements exchange their places."""
    for i in range(n):
        for j in range(i + 1, n):
            if labels[i] != labels[j]:
                edit = _new(edits, count)
                _label(edit, i, labels[j])
                _label(edit, j, labels[i])
                count += 1
    return count


@compiled
def _set_bond(bonds: np.ndarray, n: int, edits: np.ndarray, count: int) -> int:
    """Another order of a bond, a new bond, or none."""
    for i in range(n):
        for j in range(i + 1, n):
            for order in range(HIGHEST + 1):
                if order != bonds[i, j]:
                    _bond(_new(edits, count), i, j, order)
                    count += 1
    return count


@compiled
def _move_bond(bonds: np.ndarray, n: int, pairs: np.ndarray, edits: np.ndarray, count: int) -> int:
    """A bond i–j becomes i–k."""
    for b in range(len(pairs)):
        for side in range(2):
            i, j = pairs[b, side], pairs[b, 1 - side]
            for k in range(n):
                if k != i and k != j and not bonds[i, k]:
                    edit = _new(edits, count)
                    _bond(edit, i, k, bonds[i, j])
                    _bond(edit, i, j, 0)
                    count += 1
    return count


@compiled
def _shift_order(bonds: np.ndarray, pairs: np.ndarray, edits: np.ndarray, count: int) -> int:
    """One bond gives an order to another."""
    for a in range(len(pairs)):
        i, j = pairs[a]
        for b in range(len(pairs)):
            k, m = pairs[b]
            if a != b and bonds[i, j] > 1 and bonds[k, m] < HIGHEST:
                edit = _new(edits, count)
                _bond(edit, i, j, bonds[i, j] - 1)
                _bond(edit, k, m, bonds[k, m] + 1)
                count += 1
    return count


@compiled
def _cross(bonds: np.ndarray, pairs: np.ndarray, edits: np.ndarray, count: int) -> int:
    """Bonds i–j and k–m become i–m and k–j, or i–k and j–m."""
    for a in range(len(pairs)):
        for b in range(a + 1, len(pairs)):
            for side in range(2):
                i, j = pairs[a]
                k, m = pairs[b, side], pairs[b, 1 - side]
                if i != k and i != m and j != k and j != m and not bonds[i, m] and not bonds[k, j]:
                    edit = _new(edits, count)
                    _bond(edit, i, m, bonds[i, j])
                    _bond(edit, k, j, bonds[k, m])
                    _bond(edit, i, j, 0)
                    _bond(edit, k, m, 0)
                    count += 1
    return count


@compiled
def _remove(bonds: np.ndarray, n: int, edits: np.ndarray, count: int) -> int:
    """An atom at an end goes; one between two others goes, and those are bonded in its place."""
    for i in range(n):
        around = np.flatnonzero(bonds[i])
        if n == 1 or len(around) > 2 or (len(around) == 2 and bonds[around[0], around[1]]):
            continue
        edit = _new(edits, count)
        for k in range(len(around)):
            _bond(edit, i, around[k], 0)
        if len(around) == 2:
            _bond(edit, around[0], around[1], 1)
        _label(edit, i, 0)
        count += 1
    return count


@compiled
def _turn(bonds: np.ndarray, n: int, edits: np.ndarray, count: int) -> int:
    """Single and double bonds that alternate around a six-membered ring change places."""
    ring = np.zeros(6, np.int64)
    for a in range(n):
        ring[0] = a
        depth = 1
        ring[1] = -1
        while depth > 0:  # extend the path by the next atom over a bond of the order wanted there, or step back
            order = 2 if depth % 2 else 1
            v = ring[depth] + 1
            while v < n and (v <= a or bonds[ring[depth - 1], v] != order or (ring[:depth] == v).any()):
                v += 1
            ring[depth] = v
            if v == n:
                depth -= 1
            elif depth < 5:
                depth += 1
                ring[depth] = -1
            elif bonds[v, a] == 1:
                edit = _new(edits, count)
                for k in range(6):
                    i, j = ring[k], ring[(k + 1) % 6]
                    _bond(edit, i, j, 3 - bonds[i, j])
                count += 1
    return count


@compiled
def _add(n: int, elements: np.ndarray, edits: np.ndarray, count: int) -> int:
    """A new atom bonded to one."""
    for i in range(n):
        for element in elements:
            for order in range(1, HIGHEST + 1):
                edit = _new(edits, count)
                _bond(edit, i, n, order)
                _label(edit, n, element)
                count += 1
    return count


@compiled
def _insert(n: int, pairs: np.ndarray, elements: np.ndarray, edits: np.ndarray, count: int) -> int:
    """A new atom in the middle of a bond."""
    for b in range(len(pairs)):
        i, j = pairs[b]
        for element in elements:
            edit = _new(edits, count)
            _bond(edit, i, n, 1)
            _bond(edit, n, j, 1)
            _bond(edit, i, j, 0)
            _label(edit, n, element)
            count += 1
    return count
