"""A key that two small molecules share exactly when they are the same molecule, compiled."""

import numpy as np
from numpy.typing import NDArray

from dsokr.compute import compiled

Integers = NDArray[np.int64]

RESONANT = 4  # the label of a bond that is single in one Kekulé form and double in another


@compiled
def canonical_key(elements: Integers, bonds: Integers, key: NDArray[np.uint8]) -> None:
    """Write into ``key`` the elements and then the rows of bonds, in the canonical order of the atoms.

    Bonds that differ between the Kekulé forms of one molecule are written as resonant. The order is the one with the
    least key among all that individualisation and refinement lead to, so it does not depend on the numbering given.
    """
    n = elements.size
    blurred = _without_kekule_form(bonds)
    best = np.full(key.size, 255, np.uint8)
    waiting = np.empty((n * n + 1, n), np.int64)
    waiting[0] = elements
    count = 1
    while count:
        count -= 1
        colours = _refined(waiting[count], blurred)
        cell = _first_cell(colours)
        if cell < 0:
            _keep_least(elements, blurred, colours, best)
            continue
        for i in range(n):
            if colours[i] == cell and not _has_earlier_twin(blurred, colours, i):
                waiting[count] = 2 * colours
                waiting[count, i] -= 1
                count += 1
    key[:] = best


@compiled
def _without_kekule_form(bonds: Integers) -> Integers:
    """The bonds with those of alternating cycles made resonant: exactly these differ between Kekulé forms."""
    n = len(bonds)
    partner = np.full(n, -1, np.int64)
    for i in range(n):
        for j in range(n):
            if bonds[i, j] == 2:
                partner[i] = j  # no atom has two double bonds
    blurred = bonds.copy()
    path = np.empty(n, np.int64)
    tried = np.empty(n, np.int64)
    for first in range(n):
        if partner[first] > first:
            _blur_cycles_through(first, partner, bonds, blurred, path, tried)
    return blurred


@compiled
def _blur_cycles_through(
    first: int, partner: Integers, bonds: Integers, blurred: Integers, path: Integers, tried: Integers
) -> None:
    """Go along alternating paths from a double bond, depth first; where one comes back it is a cycle.

    ``path`` holds the far end of every double bond gone through, ``tried`` the next neighbour to go to from there.
    """
    path[0], tried[0], length = partner[first], 0, 1
    while length:
        here, there = path[length - 1], tried[length - 1]
        if there == len(bonds):
            length -= 1
            continue
        tried[length - 1] += 1
        if bonds[here, there] != 1:
            continue
        if there == first:
            _blur(path[:length], partner, blurred)
        elif partner[there] >= 0 and not _on_path(path[:length], partner, there):
            path[length], tried[length] = partner[there], 0
            length += 1


@compiled
def _on_path(path: Integers, partner: Integers, atom: int) -> bool:
    for far in path:  # noqa: SIM110 - compiled code has no any() over generators
        if atom == far or atom == partner[far]:
            return True
    return False


@compiled
def _blur(path: Integers, partner: Integers, blurred: Integers) -> None:
    for k in range(path.size):
        near, far, onward = partner[path[k]], path[k], partner[path[(k + 1) % path.size]]
        for a, b in ((near, far), (far, onward)):
            blurred[a, b] = blurred[b, a] = RESONANT


@compiled
def _refined(start: Integers, bonds: Integers) -> Integers:
    """The coarsest colouring finer than ``start`` in which atoms of a colour have the same coloured neighbours."""
    n = start.size
    colours, cells = _ranked(start)
    signature = np.empty(n, np.int64)
    while cells < n:
        for i in range(n):
            total = np.int64(0)
            for j in range(n):
                if bonds[i, j]:
                    total += _mixed(8 * colours[j] + bonds[i, j])
            signature[i] = (total << 8) + colours[i]
        finer, count = _ranked(signature)
        if count == cells:
            break
        colours, cells = finer, count
    return colours


@compiled
def _mixed(value: int) -> np.int64:
    """Spread a small number over 64 bits, so that sums stand for multisets. A clash only delays the refinement."""
    mixed = np.int64(value + 1) * np.int64(0x1E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> 29)) * np.int64(0x3F58476D1CE4E5B9)
    return mixed ^ (mixed >> 32)


@compiled
def _ranked(values: Integers) -> tuple[Integers, int]:
    """Each value replaced by the number of smaller values; and how many values differ."""
    ranks = np.zeros(values.size, np.int64)
    cells = 0
    for i in range(values.size):
        first = True
        for j in range(values.size):
            ranks[i] += values[j] < values[i]
            first &= not (j < i and values[j] == values[i])
        cells += first
    return ranks, cells


@compiled
def _first_cell(colours: Integers) -> int:
    """The least colour that more than one atom has, or -1."""
    found = -1
    for i in range(colours.size):
        for j in range(i):
            if colours[i] == colours[j] and (found < 0 or colours[i] < found):
                found = colours[i]
    return found


@compiled
def _has_earlier_twin(bonds: Integers, colours: Integers, i: int) -> bool:
    """Whether an earlier atom of the colour has the same neighbours, so that to individualise it is enough."""
    for k in range(i):
        if colours[k] != colours[i]:
            continue
        same = True
        for other in range(len(bonds)):
            same &= other in (i, k) or bonds[i, other] == bonds[k, other]
        if same:
            return True
    return False


@compiled
def _keep_least(elements: Integers, bonds: Integers, order: Integers, best: NDArray[np.uint8]) -> None:
    n = elements.size
    atom = np.empty(n, np.int64)
    for i in range(n):
        atom[order[i]] = i
    code = np.zeros(best.size, np.uint8)
    at = n
    for i in range(n):
        code[i] = elements[atom[i]]
        for j in range(i):
            code[at] = bonds[atom[i], atom[j]]
            at += 1
    for k in range(best.size):
        if code[k] != best[k]:
            if code[k] < best[k]:
                best[:] = code
            return
