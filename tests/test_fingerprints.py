"""Fingerprints are RDKit's, and sparse rows of 2³² columns are compared like narrow ones."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr.errors import InputError
from dsokr.kernels import Tanimoto

chem = pytest.importorskip("dsokr.chem")

SMILES = ["CCO", "OCC", "C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O"]


def test_fingerprints_are_rdkits():
    from rdkit import Chem, DataStructs
    from rdkit.Chem import rdFingerprintGenerator

    ours = chem.fingerprints(SMILES, radius=2)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, includeChirality=True)
    theirs = [generator.GetSparseCountFingerprint(Chem.MolFromSmiles(text)) for text in SMILES]
    expected = [DataStructs.BulkTanimotoSimilarity(one, theirs) for one in theirs]
    assert np.allclose(Tanimoto()(ours, ours), expected, atol=1e-12)
    flat = chem.fingerprints(SMILES, radius=2, chirality=False)
    assert (flat[[2]] != flat[[3]]).nnz == 0, "mirror images are alike without chirality"
    assert (ours[[2]] != ours[[3]]).nnz > 0
    with pytest.raises(InputError, match="'C1CC' at index 1"):
        chem.fingerprints(["CC", "C1CC"])
    with pytest.raises(InputError, match="SMARTS"):
        chem.matches(["CC"], "[[")


def test_environments_add_up_to_the_fingerprint():
    counts = chem.fingerprints(SMILES, radius=1, chirality=False)
    for row, around in enumerate(chem.environments(SMILES, radius=1)):
        ids, times = np.unique(around[around >= 0], return_counts=True)
        own = counts[[row]]
        assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == dict(
            zip(own.indices.tolist(), own.data.astype(int).tolist(), strict=True)
        )


def test_wide_sparse_rows_equal_narrow_ones():
    rng = np.random.default_rng(0)
    narrow = rng.poisson(0.7, size=(12, 9))
    wide = sp.csr_array(narrow.astype(float))
    columns = np.sort(rng.choice(2**32, size=9, replace=False))
    wide = sp.csr_array((wide.data, columns[wide.indices], wide.indptr), shape=(12, 2**32))
    assert torch.allclose(Tanimoto()(wide, wide), Tanimoto()(narrow, narrow))
    bits = sp.csr_array((np.ones(wide.nnz), wide.indices, wide.indptr), shape=wide.shape)
    assert torch.allclose(Tanimoto()(bits, bits), Tanimoto()(narrow > 0, narrow > 0))
    assert torch.allclose(Tanimoto()(bits[:4], wide), Tanimoto()((narrow > 0)[:4], narrow))
