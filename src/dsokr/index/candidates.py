"""An index of candidates, opened for searching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dsokr.decoders.scan import QUERIES, Ranking, Scan
from dsokr.errors import InputError, ModelFolderError, check_k
from dsokr.index.neighbors import find_neighbors, read_faiss
from dsokr.index.storage import Arrays, Head, map_arrays
from dsokr.rules import Rule, check_rule, largest, score_pairs

LARGEST = 1e12  # coefficients above this cannot be told apart in single precision
SCORES = 2**20  # computed at once in an exact search,
NUMBERS = 2**24  # from at most this many coordinates of candidates
PAIRS = 512  # of a query and a candidate, scored at once: few enough for the cache


class CandidateIndex:
    """Candidates by their coordinates ψ̃(y), with k(y, y), texts and names, mapped from a folder or in memory.

    >>> basis_dim, generator = 3, torch.Generator().manual_seed(0)
    >>> psi = torch.randn(5, basis_dim, generator=generator)
    >>> index = CandidateIndex.in_memory(["C", "CC", "CCC", "CCO", "CO"], psi, psi.square().sum(1))
    >>> best = index.search(psi[3:4], k=2, rule="projected")
    >>> index.texts[best.indices[0, 0]]
    'CCO'
    """

    def __init__(self, head: Head, arrays: Arrays, faiss_index: Any = None):
        self.head, self.arrays, self.faiss_index = head, arrays, faiss_index
        self.texts, self.names = arrays.texts, arrays.names  # as in the library; names may be empty strings

    @classmethod
    def open(cls, folder: str | Path, model: str | None = None) -> CandidateIndex:
        """Map a folder written by :func:`build`. ``model`` is the fingerprint of the basis that will search it."""
        folder = Path(folder)
        head = Head.read_from(folder)
        if not head.finished:
            raise ModelFolderError(f"The index {folder} is unfinished. Run the command that builds it again to resume.")
        if model is not None and head.model != model:
            raise InputError(f"{folder} was built for another model. Embed the candidates again with this one.")
        return cls(head, map_arrays(folder, head), read_faiss(folder, head))

    @classmethod
    def in_memory(
        cls, texts: Sequence[str], psi: Tensor, diag: Tensor, names: Sequence[str] | None = None, model: str = ""
    ) -> CandidateIndex:
        """Return an index of candidates with the given ψ̃(y) (n, p) and k(y, y) (n,). Nothing is written."""
        rows, diag = psi.detach().cpu().float(), diag.detach().cpu().double()
        parts = rows.split(max(1, NUMBERS // 8 // rows.shape[1]))  # a double-precision copy of all would be large
        squared = torch.cat([part.double().square_().sum(dim=1) for part in parts])
        arrays = Arrays(rows, diag, squared, list(texts), [""] * len(texts) if names is None else list(names))
        return cls(Head(model, rows.shape[1], count=len(rows), finished=True), arrays)

    def __len__(self) -> int:
        return self.head.count

    def search(self, z: Tensor, k: int, rule: Rule) -> Ranking:
        """Find the k best candidates for every row of z (n, p), of tied ones the first.

        The search is exact unless a FAISS index was built for this rule. It is also exact where FAISS finds fewer
        than k candidates or k is a large part of all.
        """
        z, k = self._check(z), min(check_k(k), len(self))
        if self.faiss_index is None or rule != self.head.rule or 4 * k >= len(self):
            return self.search_exactly(z, k, rule)
        found = find_neighbors(self.faiss_index, self.head, z, k).sort(dim=1).values  # of tied ones, the first is first
        scores = self._score(z, found.clamp(min=0), rule).masked_fill_(found < 0, -torch.inf)
        scores, columns = largest(scores, k)
        indices, few = found.gather(1, columns), scores[:, -1].isneginf()
        if few.any():
            indices[few], scores[few] = self.search_exactly(z[few], k, rule)
        return Ranking(indices, scores)

    def search_exactly(self, z: Tensor, k: int, rule: Rule) -> Ranking:
        """Score every candidate and return the k best for every row of z."""
        check_rule(rule)
        z = self._check(z)
        scan = Scan(z, min(k, len(self)), rule)
        block = max(1, min(SCORES // max(1, min(len(z), QUERIES)), NUMBERS // self.head.dim))
        psi, diag, squared = self.arrays[:3]
        for start in range(0, len(self), block):
            where = slice(start, start + block)
            scan.add(psi[where], diag[where], squared[where])
        return scan.ranking()

    def cosines(self, z: Tensor, indices: Tensor) -> Tensor:  # (n, k)
        """Cosines of z and the given candidates' coordinates: from −1 to 1, and 0 where either is zero."""
        return self._score(F.normalize(self._check(z), dim=1), indices, "cosine")

    def _score(self, z: Tensor, indices: Tensor, rule: Rule) -> Tensor:  # (n, p), (n, h) -> (n, h)
        """Score the candidates at ``indices`` in double precision."""
        psi, diag, rows = self.arrays.psi, self.arrays.diag, max(1, PAIRS // max(1, indices.shape[1]))
        parts = zip(z.split(rows), indices.split(rows), strict=True)
        scores = [score_pairs(some[:, None], psi[at].double(), diag[at], rule) for some, at in parts]
        return torch.cat(scores)

    def _check(self, z: Tensor) -> Tensor:
        """Return coefficients in double precision, if they have the right shape and size."""
        if z.ndim != 2 or z.shape[1] != self.head.dim:
            raise InputError(f"Coefficients must have shape (n, {self.head.dim}), as the index. Got {tuple(z.shape)}.")
        z = z.detach().cpu().double()
        usable = (z.abs() <= LARGEST).all(dim=1)
        if not usable.all():
            row = int((~usable).nonzero()[0])
            raise InputError(f"Coefficients must be finite and at most {LARGEST:g} in size. Row {row} is not.")
        return z
