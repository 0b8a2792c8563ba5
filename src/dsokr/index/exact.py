"""Exact search of candidates on disk, by the scan that decoding over a list uses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import Rule
from dsokr.decoders import Ranking
from dsokr.decoders.scan import PAIRS, QUERIES, Scan
from dsokr.errors import InputError

SCORES = 2**20  # computed at once,
NUMBERS = 2**24  # from at most so many coordinates of candidates
LARGEST = 1e12  # coefficients above could not be told apart in single precision


def checked_coefficients(z: Tensor, dim: int) -> Tensor:  # (q, p)
    if z.ndim != 2 or z.shape[1] != dim:
        raise InputError(f"Coefficients must have shape (n, {dim}), as the index. Got {tuple(z.shape)}.")
    z = z.detach().cpu().double()
    bad = ~(z.abs() <= LARGEST).all(dim=1)
    if bad.any():
        at = int(bad.nonzero()[0])
        raise InputError(f"Coefficients must be finite and at most {LARGEST:g} in size. Those of row {at} are not.")
    return z


def search(psi: np.ndarray, diag: np.ndarray, norm: np.ndarray, z: Tensor, k: int, rule: Rule) -> Ranking:
    """The k best of the candidates for every row of z; of equal ones the first."""
    scan = Scan(z, min(k, len(psi)), rule)
    block = max(1, min(SCORES // max(1, min(len(z), QUERIES)), NUMBERS // psi.shape[1]))
    for start in range(0, len(psi), block):
        where = slice(start, start + block)
        scan.add(torch.from_numpy(psi[where]), diag[where], norm[where])
    return scan.ranking()


def products(psi: np.ndarray, z: Tensor, indices: np.ndarray) -> Tensor:  # (q, p), (q, h) -> (q, h)
    """⟨z_q, ψ̃⟩ in double precision with the candidates at ``indices[q]``; a part at a time."""
    rows = max(1, PAIRS // max(1, indices.shape[1]))
    parts = zip(z.split(rows), np.split(indices, range(rows, len(indices), rows)), strict=True)
    found = [torch.einsum("qp,qhp->qh", some, torch.from_numpy(psi[at]).double()) for some, at in parts]
    return torch.cat(found) if found else torch.empty(indices.shape, dtype=torch.float64)
