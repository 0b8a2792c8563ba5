"""Kernels on rankings of d items, whose distances in feature space are distances between rankings.

A ranking is a row of d numbers: ``ranking[i]`` is the position of item i, smaller is better. The order
b ≻ a ≻ c of the items a, b, c is ``(1, 0, 2)``. Positions start at 0 or at 1.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.kernels.base import Composed
from dsokr.kernels.sparse import Split
from dsokr.kernels.vectors import Linear, as_rows
from dsokr.outputs import Outputs


class RankingKernel(Composed):
    """⟨e(σ), e(σ')⟩ for an embedding e of rankings."""

    kernel = Linear()

    @abstractmethod
    def embedding(self, rankings: Outputs) -> Tensor:  # (n, dimension)
        """e(σ) for every ranking."""

    @abstractmethod
    def items(self, d: int) -> np.ndarray:  # (dimension, 1 or 2)
        """The items, of d, that each coordinate of an embedding is about."""

    def convert(self, ys: Outputs) -> Tensor:
        return self.embedding(ys)

    def split(self, ys: Outputs) -> Split:
        """The places are the items; a pair of items is divided between them."""
        (n, d), values = as_positions(ys).shape, self.embedding(ys).cpu().numpy()
        rows = self.items(d) + d * np.arange(n)[:, None, None]
        coordinates = np.tile(np.arange(values.shape[1]), n)
        return Split.at(d * np.arange(n + 1), rows.reshape(values.size, -1), coordinates, values.ravel())


@dataclass(frozen=True)
class Kemeny(RankingKernel):
    """Σ_{i < j} sign(σ(j) − σ(i)) sign(σ'(j) − σ'(i)): pairs of items in the same order minus pairs in opposite order.

    ‖e(σ) − e(σ')‖² is four times Kendall's τ distance, the number of pairs in opposite order. Tied pairs have sign 0,
    and so a pair tied in one ranking only counts ¼. Pairs with an unranked item, whose position is negative, are tied.

    >>> Kemeny()([(0, 1, 2)], [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
    tensor([[ 3.,  1., -3.]], dtype=torch.float64)
    """

    def embedding(self, rankings: Outputs) -> Tensor:
        positions = as_positions(rankings)
        first, second = torch.triu_indices(positions.shape[1], positions.shape[1], 1, device=positions.device)
        ranked = (positions >= 0).to(torch.float64)
        return (positions[:, second] - positions[:, first]).sign_() * ranked[:, first] * ranked[:, second]

    def items(self, d: int) -> np.ndarray:
        return np.stack(np.triu_indices(d, 1), axis=1)


@dataclass(frozen=True)
class Hamming(RankingKernel):
    """|{i : σ(i) = σ'(i)}|. ‖e(σ) − e(σ')‖² is twice the number of items whose positions differ. Full rankings only.

    >>> Hamming()([(0, 1, 2)], [(0, 1, 2), (0, 2, 1), (1, 2, 0)])
    tensor([[3., 1., 0.]], dtype=torch.float64)
    """

    def embedding(self, rankings: Outputs) -> Tensor:
        positions = as_full_rankings(rankings, "Hamming")
        places = torch.arange(positions.shape[1], device=positions.device)
        return (positions[:, :, None] == places).flatten(start_dim=1).to(torch.float64)

    def items(self, d: int) -> np.ndarray:
        return np.repeat(np.arange(d), d)[:, None]


@dataclass(frozen=True)
class Lehmer(RankingKernel):
    """Σ_i c_i(σ) c_i(σ') with the Lehmer code c_i(σ) = #{j < i : σ(j) > σ(i)}. Full rankings only.

    The items in order have the code zero, so the kernel cannot be normalised there.

    >>> Lehmer()([(2, 1, 0)], [(0, 1, 2), (2, 0, 1), (2, 1, 0)])
    tensor([[0., 3., 5.]], dtype=torch.float64)
    """

    def embedding(self, rankings: Outputs) -> Tensor:
        positions = as_full_rankings(rankings, "Lehmer")
        return (positions[:, None] > positions[:, :, None]).tril_(-1).sum(dim=2).to(torch.float64)

    def items(self, d: int) -> np.ndarray:
        return np.arange(d)[:, None]


def as_positions(rankings: Outputs) -> Tensor:  # (n, d)
    try:
        positions = as_rows(rankings)
    except InputError as error:
        raise InputError("Rankings must be rows of positions, all of the same number of items.") from error
    if not isinstance(positions, Tensor):
        raise InputError("Rankings must be dense rows of positions. Got a sparse matrix.")
    return positions


def as_full_rankings(rankings: Outputs, name: str) -> Tensor:  # (n, d)
    """Return positions counted from 0; raise an ``InputError`` for the kernel ``name`` if one is not taken once."""
    given = as_positions(rankings)
    least = given.amin(dim=1, keepdim=True) if given.numel() else given[:, :1]
    positions = given - least.clamp(0, 1)
    places = torch.arange(positions.shape[1], dtype=positions.dtype, device=positions.device)
    wrong = (positions.sort(dim=1).values != places).any(dim=1)
    if wrong.any():
        index = int(wrong.nonzero()[0])
        row = [int(p) if p == int(p) else p for p in given[index].tolist()]
        raise InputError(
            f"{name} takes full rankings without ties, every position 0 to {len(places) - 1} (or 1 to {len(places)}) "
            f"once. Got {row} at index {index}. Kemeny takes ties."
        )
    return positions
