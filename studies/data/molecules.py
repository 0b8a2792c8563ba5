"""Molecules made by the project itself, so that tests, demonstrations and examples need no download."""

from collections.abc import Iterator

import numpy as np

from studies.data._growth import grow
from dsokr.errors import InputError
from dsokr.graphs import Graph

BATCH = 4096
ROUND = 64 * BATCH  # molecules grown between checks of how many were new,
ROUNDS = 100  # and how many such rounds, about a second each, may lie ahead
LARGEST = 32  # atoms; the search for canonical keys is made for small molecules


def generate(n: int, seed: int, max_atoms: int = 9) -> list[Graph]:
    """Draw n different molecules of 2 to ``max_atoms`` atoms of carbon, nitrogen, oxygen and fluorine.

    Node labels are atomic numbers, edge labels 1, 2 and 3 for single, double and triple bonds; hydrogens are left out.
    Each molecule is connected and keeps the valences 4, 3, 2 and 1. No two are isomorphic, nor two Kekulé forms of one
    molecule. Sizes, elements, bonds and rings are about as frequent as in QM9: most molecules have ``max_atoms`` atoms,
    and most atoms are carbon. The same seed gives the same molecules, and fewer of them are the first of more.
    100,000 molecules take some 5 s.

    >>> molecules = generate(1000, seed=0)
    >>> len(set(molecules)), max(len(molecule.labels) for molecule in molecules)
    (1000, 9)
    """
    if n < 0:
        raise InputError(f"n must be 0 or more. Got {n}.")
    if not 2 <= max_atoms <= LARGEST:
        raise InputError(f"max_atoms must be from 2 to {LARGEST}. Got {max_atoms}.")
    generator = np.random.default_rng(seed)
    seen: set[bytes] = set()
    molecules: list[Graph] = []
    attempts = found_before = 0
    while len(molecules) < n:
        elements, bonds, keys = _grown(generator, max_atoms)
        new = _first_seen(keys, seen)
        molecules += _graphs(elements[new], bonds[new])
        attempts += BATCH
        if attempts % ROUND == 0:
            if (len(molecules) - found_before) * ROUNDS < n - len(molecules):
                raise InputError(
                    f"There are too few molecules of at most max_atoms={max_atoms} atoms: new ones have become rare "
                    f"after {len(molecules):,} of n={n:,}. Ask for fewer or for larger ones."
                )
            found_before = len(molecules)
    return molecules[:n]


def _grown(generator: np.random.Generator, max_atoms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    elements = np.zeros((BATCH, max_atoms), np.int64)
    bonds = np.zeros((BATCH, max_atoms, max_atoms), np.int64)
    keys = np.zeros((BATCH, max_atoms * (max_atoms + 1) // 2), np.uint8)
    grow(generator, max_atoms, elements, bonds, keys)
    return elements, bonds, keys


def _first_seen(keys: np.ndarray, seen: set[bytes]) -> list[int]:
    """The positions of keys that are not in ``seen``; they are added."""
    new = []
    for position, key in enumerate(keys):
        code = key.tobytes()
        if code not in seen:
            seen.add(code)
            new.append(position)
    return new


def _graphs(elements: np.ndarray, bonds: np.ndarray) -> Iterator[Graph]:
    owner, i, j = np.triu(bonds).nonzero()
    edges = np.stack([i, j, bonds[owner, i, j]], axis=1).tolist()
    ends = np.cumsum(np.bincount(owner, minlength=len(elements))).tolist()
    start = 0
    for labels, end in zip(elements.tolist(), ends, strict=True):
        yield Graph(tuple(label for label in labels if label), tuple(map(tuple, edges[start:end])))
        start = end
