"""QM9 as pairs of a fingerprint, the set bits of a molecule, and the molecule's graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dsokr.graphs import GraphBatch
from studies.data.files import cache_result
from studies.data.molecules import generate, name_graphs
from studies.data.smi2mol import QM9, load_pairs

BITS, RADIUS = 2048, 2
SHARE = 0.05  # of the molecules, to validate and to test


class FingerprintPairs(NamedTuple):
    """Hashed Morgan fingerprints of radius 2, and the Kekulé graphs of the same molecules."""

    bits: sp.csr_array  # (n, BITS) of 0 and 1
    graphs: GraphBatch

    def rows(self, index: np.ndarray) -> FingerprintPairs:
        return FingerprintPairs(self.bits[index], self.graphs[index])


class Split(NamedTuple):
    train: FingerprintPairs
    val: FingerprintPairs
    test: FingerprintPairs


def split_pairs(pairs: FingerprintPairs, seed: int, n_train: int | None = None) -> Split:
    """Split at random, 90 / 5 / 5 %; if fewer training molecules are asked for, the first of those drawn."""
    n = len(pairs.graphs)
    held = round(SHARE * n)
    test, val, train = np.split(np.random.default_rng(seed).permutation(n), [held, 2 * held])
    return Split(*(pairs.rows(np.sort(part)) for part in (train[:n_train], val, test)))


def load_fingerprints(folder: str | Path | None = None) -> FingerprintPairs:
    """Load all 133,882 pairs of QM9. The first call takes a minute and RDKit; the prepared pairs are cached."""
    pairs = load_pairs(folder)
    return FingerprintPairs(cache_result(_hash_molecules)(QM9.find(folder)), pairs.graphs)


def _hash_molecules(path: Path) -> sp.csr_array:
    return hash_molecules(load_pairs(path.parents[1]).smiles)


def hash_molecules(smiles: Sequence[str]) -> sp.csr_array:  # (n, BITS)
    """The set bits of hashed Morgan fingerprints, without chirality."""
    from dsokr import chem  # RDKit is needed here only

    found = chem.fingerprints(smiles, radius=RADIUS, chirality=False)
    owner = np.repeat(np.arange(len(smiles)), np.diff(found.indptr))
    return bits_from(owner, found.indices % BITS, len(smiles))


def bits_from(owner: np.ndarray, columns: np.ndarray, n: int) -> sp.csr_array:  # (n, BITS)
    bits = sp.coo_array((np.ones(len(owner), np.float32), (owner, columns)), shape=(n, BITS)).tocsr()
    bits.data[:] = 1  # several environments may share a bit
    return bits


def generate_fingerprints(n: int, seed: int = 0, max_atoms: int = 6) -> FingerprintPairs:
    """Generated molecules in place of QM9's."""
    from dsokr import chem

    graphs = generate(n, seed, max_atoms)
    return FingerprintPairs(hash_molecules(chem.many_smiles(graphs)), GraphBatch.of(graphs))


def measure_ceiling(pairs: FingerprintPairs, edge_labels: bool) -> tuple[float, float]:
    """The share of molecules whose fingerprint no other graph has, and of those right if the most frequent is chosen.

    No function of the fingerprint is right more often than that on these molecules.
    """
    names = name_graphs(pairs.graphs, 9, edge_labels)
    owner = np.repeat(np.arange(len(names)), np.diff(pairs.bits.indptr))
    salt = np.random.default_rng(0).integers(2**63, size=BITS, dtype=np.uint64)
    prints = np.zeros(len(names), np.uint64)
    np.add.at(prints, owner, salt[pairs.bits.indices])
    both, counts = np.unique(np.stack([prints, names], axis=1), axis=0, return_counts=True)
    _, place, graphs = np.unique(both[:, 0], return_inverse=True, return_counts=True)
    most = np.zeros(len(graphs), np.int64)
    np.maximum.at(most, place, counts)
    return float(counts[graphs[place] == 1].sum() / len(names)), float(most.sum() / len(names))
