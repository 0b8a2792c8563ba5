"""An index of candidates, opened for searching."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import Rule, check_rule
from dsokr.decoders import Ranking
from dsokr.errors import InputError
from dsokr.index import exact
from dsokr.index.files import Arrays, Head, Texts, mapped_arrays
from dsokr.index.neighbors import Neighbors, faiss_file


class CandidateIndex:
    """Candidates by their coordinates ψ̃(y), with k(y, y), texts and names, mapped from a folder or in memory.

    >>> basis_dim, generator = 3, torch.Generator().manual_seed(0)
    >>> psi = torch.randn(5, basis_dim, generator=generator)
    >>> index = CandidateIndex.in_memory(["C", "CC", "CCC", "CCO", "CO"], psi, psi.square().sum(1))
    >>> best = index.search(psi[3:4], k=2, rule="projected")
    >>> index.texts[best.indices[0, 0]]
    'CCO'
    """

    def __init__(self, head: Head, arrays: Arrays, neighbors: Neighbors | None = None):
        self.head, self.arrays, self.neighbors = head, arrays, neighbors

    @classmethod
    def open(cls, folder: str | Path, model: str | None = None) -> CandidateIndex:
        """Map a folder that :func:`build` wrote. ``model`` is the fingerprint of the basis that asks."""
        folder = Path(folder)
        head = read_head(folder)
        if model is not None and head.model != model:
            raise InputError(
                f"{folder} was built for another model: its coordinates mean nothing to this one. "
                "Embed the candidates again with this model."
            )
        arrays = mapped_arrays(folder, head)
        if head.kind == "exact":
            return cls(head, arrays)
        rule: Rule = head.rule  # type: ignore[assignment] # checked when built
        file = faiss_file(folder, head.kind, rule)
        return cls(head, arrays, Neighbors.read(file, head.kind, rule, head.effort, head.count))

    @classmethod
    def in_memory(
        cls,
        texts: Sequence[str],
        psi: Tensor,  # (n, p)
        diag: Tensor,  # (n,)
        names: Sequence[str] | None = None,
        model: str = "",
    ) -> CandidateIndex:
        """An index of candidates that fit into memory; nothing is written."""
        rows = psi.detach().cpu().double().numpy()
        arrays = Arrays(
            rows.astype(np.float32),
            diag.detach().cpu().double().numpy(),
            np.linalg.norm(rows.astype(np.float32).astype(np.float64), axis=1),
            Texts.of(texts),
            Texts.of([""] * len(texts) if names is None else names),
        )
        return cls(Head(model, rows.shape[1], count=len(rows)), arrays)

    def __len__(self) -> int:
        return self.head.count

    @property
    def texts(self) -> Texts:
        """The candidates as they were written in the library."""
        return self.arrays.texts

    @property
    def names(self) -> Texts:
        """Their names; empty where the library has none."""
        return self.arrays.names

    def search(self, z: Tensor, k: int, rule: Rule) -> Ranking:
        """The k best candidates for every row of z (n, p): exactly, unless a FAISS index was built for this rule.

        Of equal ones the first. Where FAISS finds too few, or nearly all are asked for, the answer is exact as well.
        """
        check_rule(rule)
        if not isinstance(k, Integral) or k < 1:
            raise InputError(f"k must be at least 1, a whole number. Got {k!r}.")
        z, k = exact.checked_coefficients(z, self.head.dim), min(int(k), len(self))
        if self.neighbors is None or rule != self.neighbors.rule or 4 * k >= len(self):
            return self.search_exactly(z, k, rule)
        ranking, few = self.neighbors.search(self.arrays, z, k)
        if few.any():
            rest = self.search_exactly(z[few], k, rule)
            ranking.indices[few], ranking.scores[few] = rest.indices, rest.scores
        return ranking

    def search_exactly(self, z: Tensor, k: int, rule: Rule) -> Ranking:
        z = exact.checked_coefficients(z, self.head.dim)
        return exact.search(self.arrays.psi, self.arrays.diag, self.arrays.norm, z, k, rule)

    def cosines(self, z: Tensor, indices: Tensor) -> Tensor:  # (n, k)
        """cos(z, ψ̃(y)) of the given candidates: from −1 to 1 whatever the rule, and 0 where either is zero."""
        z = exact.checked_coefficients(z, self.head.dim)
        at = indices.numpy()
        lengths = torch.linalg.vector_norm(z, dim=1)[:, None] * torch.from_numpy(self.arrays.norm[at])
        return exact.products(self.arrays.psi, z, at) / lengths.masked_fill(lengths == 0, 1.0)


def read_head(folder: Path) -> Head:
    """The head of a finished index, or a sentence on what the folder is instead."""
    if (folder / "index.json").is_file():
        return Head.read(folder / "index.json")
    if (folder / "draft.json").is_file():
        raise InputError(f"The index {folder} is unfinished. Run the command that builds it again: it goes on.")
    raise InputError(f"{folder} is not an index of candidates: index.json is missing. Build one with dsokr embed.")
