"""Exact search: every candidate is scored, block by block, and only the few that may be among the best are sorted.

All decoding rules have one form, score(z, y) = factor(y) · ⟨z, ψ̃(y)⟩ + offset(y), up to a constant in y:

    "kernel"     2⟨z, ψ̃⟩ − k(y, y)                 factor 2,        offset −k(y, y)
    "projected"  2⟨z, ψ̃⟩ − ‖ψ̃‖² (and − ‖z‖²)       factor 2,        offset −‖ψ̃‖²
    "cosine"     ⟨z, ψ̃⟩ / ‖ψ̃‖                      factor 1 / ‖ψ̃‖, offset 0
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import Rule
from dsokr.decoders import Ranking
from dsokr.errors import InputError

SCORES = 2**20  # computed at once,
NUMBERS = 2**24  # from at most so many coordinates of candidates
QUERY_BLOCK = 64  # against so many rows of coefficients
PAIRS = 16384  # pairs scored at once in double precision
LARGEST = 1e12  # coefficients above could not be told apart in single precision


def affine(rule: Rule, diag: np.ndarray, norm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # (n,), (n,)
    """factor(y) and offset(y) of the rule."""
    if rule == "cosine":
        return 1 / np.where(norm == 0, 1.0, norm), np.zeros_like(norm)
    return np.full_like(norm, 2.0), -diag if rule == "kernel" else -np.square(norm)


def constant(rule: Rule, z: Tensor) -> Tensor:  # (q,)
    """What all scores of a row have in common: only the projected rule has it, and it is added last."""
    return -torch.linalg.vecdot(z, z) * (rule == "projected")


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
    """The k best of the candidates for every row of z; of equal ones the first.

    As in :class:`dsokr.decoders.EmbeddedOutputs`, scores that agree in single precision are equal. Candidates are
    scanned in single precision; whichever comes within its rounding error of the best k is scored in double.
    Memory O(q · k) and a block.
    """
    k = min(k, len(psi))
    found = [_search_rows(psi, diag, norm, rows, k, rule) for rows in z.split(QUERY_BLOCK) if len(rows)]
    if not found:
        return Ranking(torch.empty(0, k, dtype=torch.long), torch.empty(0, k, dtype=torch.float64))
    return Ranking(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _search_rows(psi: np.ndarray, diag: np.ndarray, norm: np.ndarray, z: Tensor, k: int, rule: Rule) -> Ranking:
    z32 = z.float()
    best = _Best(len(z), k)
    lengths = torch.linalg.vector_norm(z, dim=1)
    block = max(1, min(SCORES // len(z), NUMBERS // psi.shape[1]))
    for start in range(0, len(psi), block):
        where = slice(start, start + block)
        factor, offset = (torch.from_numpy(part) for part in affine(rule, diag[where], norm[where]))
        rows = torch.from_numpy(psi[where])
        scores = (z32 @ rows.float().T).mul_(factor.float()).add_(offset.float())
        error = _rounding(lengths, factor, offset, norm[where], z.shape[1])
        if start < k:  # not yet full: what is not among the best k of its block is not among the best k
            floor = scores.topk(min(k, len(rows)), dim=1).values[:, -1].double() - 2 * error
        else:
            floor = best.scores[:, -1] - error
        floor = floor.float().nextafter(torch.tensor(-torch.inf))
        above = (scores.amax(dim=1) >= floor).nonzero()[:, 0]
        if not len(above):
            continue
        query, candidate = (scores[above] >= floor[above, None]).nonzero(as_tuple=True)
        query = above[query]
        exact = _paired(z, rows, query, candidate).mul_(factor[candidate]).add_(offset[candidate])
        best.merge(query, candidate + start, exact)
    return Ranking(best.indices, best.scores + constant(rule, z)[:, None])


def _rounding(lengths: Tensor, factor: Tensor, offset: Tensor, norm: np.ndarray, p: int) -> Tensor:  # (q,)
    """A bound on the error of single-precision scores: p products, their sum, the factor and the offset."""
    unit = torch.finfo(torch.float32).eps
    products = (factor * torch.from_numpy(norm)).max()
    return unit * ((p + 8) * lengths * products + 4 * offset.abs().max()) + torch.finfo(torch.float32).tiny


def _paired(z: Tensor, rows: Tensor, query: Tensor, candidate: Tensor) -> Tensor:  # (h,)
    """⟨z_q, ψ̃_c⟩ in double precision, pair by pair."""
    parts = zip(query.split(PAIRS), candidate.split(PAIRS), strict=True)
    return torch.cat([torch.linalg.vecdot(z[q], rows[c].double()) for q, c in parts])


def products(psi: np.ndarray, z: Tensor, indices: np.ndarray) -> Tensor:  # (q, p), (q, h) -> (q, h)
    """⟨z_q, ψ̃⟩ in double precision with the candidates at ``indices[q]``; a part at a time."""
    rows = max(1, PAIRS // max(1, indices.shape[1]))
    parts = zip(z.split(rows), np.split(indices, range(rows, len(indices), rows)), strict=True)
    found = [torch.einsum("qp,qhp->qh", some, torch.from_numpy(psi[at]).double()) for some, at in parts]
    return torch.cat(found) if found else torch.empty(indices.shape, dtype=torch.float64)


class _Best:
    """The best k so far of every query, best first; of those equal in single precision the first."""

    def __init__(self, queries: int, k: int):
        self.indices = torch.full((queries, k), -1, dtype=torch.long)
        self.scores = torch.full((queries, k), -torch.inf, dtype=torch.float64)

    def merge(self, query: Tensor, index: Tensor, score: Tensor) -> None:
        touched, place = query.unique(return_inverse=True)
        k = self.scores.shape[1]
        owner = torch.cat([torch.arange(len(touched)).repeat_interleave(k), place]).numpy()
        index = torch.cat([self.indices[touched].reshape(-1), index])
        score = torch.cat([self.scores[touched].reshape(-1), score])
        order = np.lexsort((index.numpy(), -score.numpy().astype(np.float32), owner))
        starts = np.searchsorted(owner[order], np.arange(len(touched)))
        keep = torch.from_numpy(order[starts[:, None] + np.arange(k)])
        self.indices[touched], self.scores[touched] = index[keep], score[keep]
