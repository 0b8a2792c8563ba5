"""The candidates that each input may have, and the best of them: by a mass, a formula, or a list of its own.

The pool of an input is a slice or an array of positions. Windows of a sorted column are slices, which are read at the
speed of memory: the cost of a query is that of its pool, whatever the number of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dsokr.errors import InputError
from dsokr.rules import SAMPLE, Rule, Ties, affine, constant, largest

Pool = slice | Tensor  # with a start and a stop, or (size,) positions, each once
TABLE = 2**21  # scores held at once
NUMBERS = 2**19  # coordinates in double precision at once: copies of more leave the cache, and take ten times as long


class Column:
    """A number for every candidate, or NaN; binary search finds the candidates within a window.

    >>> Column(np.array([3.0, 1.0, 2.0])).find([0.5, 2.5], [2.5, 9.0])
    [tensor([1, 2]), tensor([0])]

    The first ``main`` candidates and the others are searched separately, so that each part may be sorted by itself.
    """

    def __init__(self, values: np.ndarray, main: int | None = None):  # (c,)
        is_whole = main is None or main >= len(values)
        self.values, self.parts = values, () if is_whole else (Column(values[:main]), Column(values[main:]))

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, Tensor | None]:  # (c,), (c,)
        """The values in ascending order, NaN last, and their positions; None if they are stored in this order."""
        values = np.ascontiguousarray(self.values)  # else every search would copy them
        if np.all((values[:-1] <= values[1:]) | np.isnan(values[1:])):
            return values, None
        order = np.argsort(values, kind="stable")
        return values[order], torch.from_numpy(order)

    @cached_property
    def is_empty(self) -> bool:
        """Whether there are no numbers."""
        return bool(np.isnan(self.values).all())

    def find(self, low: Any, high: Any) -> list[Pool]:
        """The candidates from ``low`` to ``high``, both included, for every pair of these."""
        if self.parts:
            pairs = zip(*(part.find(low, high) for part in self.parts), strict=True)
            return [_join(first, others, len(self.parts[0].values)) for first, others in pairs]
        values, order = self._sorted
        ends = zip(np.searchsorted(values, low), np.searchsorted(values, high, side="right"), strict=True)
        pools = (slice(int(start), max(int(start), int(stop))) for start, stop in ends)
        return list(pools) if order is None else [order[pool].sort().values for pool in pools]

    def keep(self, pool: Pool, low: float, high: float) -> Tensor:  # (kept,)
        """The candidates of a pool that lie from ``low`` to ``high``."""
        at = positions_of(pool)
        values = self.values[pool if isinstance(pool, slice) else at.numpy()]
        return at[torch.from_numpy((values >= low) & (values <= high))]


def _join(first: Pool, others: Pool, start: int) -> Pool:
    return torch.cat([positions_of(first), positions_of(others) + start]) if size_of(others) else first


def positions_of(pool: Pool) -> Tensor:  # (size,)
    return torch.arange(pool.start, pool.stop) if isinstance(pool, slice) else pool


def size_of(pool: Pool) -> int:
    return pool.stop - pool.start if isinstance(pool, slice) else len(pool)


def as_pools(allowed: Any, n: int, candidates: int) -> list[Pool]:
    """Read what users allow: positions for every input, a mask (n, candidates), sparse or not, or a function of i."""
    if callable(allowed):
        allowed = [allowed(i) for i in range(n)]
    shape = getattr(allowed, "shape", None)
    if shape is not None and len(shape) == 2:
        if tuple(shape) != (n, candidates):
            raise InputError(f"A mask of allowed candidates must be ({n}, {candidates}). Got {tuple(shape)}.")
        mask = sp.csr_array(allowed if sp.issparse(allowed) else np.asarray(allowed, bool))
        mask.eliminate_zeros()
        allowed = np.split(mask.indices, mask.indptr[1:-1])
    if len(allowed) != n:
        raise InputError(f"allowed must name the candidates of every input. Got {len(allowed)} lists for {n} inputs.")
    return [_check_positions(some, i, candidates) for i, some in enumerate(allowed)]


def _check_positions(some: Any, i: int, candidates: int) -> Tensor:
    at = torch.as_tensor(some if len(some) else [], dtype=None if len(some) else torch.long)
    if at.is_floating_point() or at.dtype == torch.bool or at.ndim != 1:
        raise InputError(f"allowed must name candidates by their positions. Got {at.dtype} for input {i}.")
    if len(at) and not (int(at.min()) >= 0 and int(at.max()) < candidates):
        wrong = int(at[(at < 0) | (at >= candidates)][0])
        raise InputError(f"There are {candidates} candidates. allowed names number {wrong} for input {i}.")
    return at.long().unique()


class Coordinates(NamedTuple):
    """ψ̃(y), k(y, y) and ‖ψ̃(y)‖² of candidates."""

    psi: Tensor  # (c, p), of any precision
    diag: Tensor  # (c,)
    squared: Tensor  # (c,)

    @staticmethod
    def of(psi: Tensor, diag: Tensor) -> Coordinates:
        return Coordinates(psi, diag, torch.linalg.vecdot(psi, psi))


class _Table(NamedTuple):
    """The scores of some rows' pools, padded with −∞, and the positions of these candidates, padded with −1."""

    rows: Tensor  # (m,)
    scores: Tensor  # (m, w)
    positions: Tensor  # (m, w)
    ties: Ties


def top_of_pools(
    z: Tensor, candidates: Coordinates, pools: Sequence[Pool], k: int, rule: Rule
) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
    """The k best of every pool, best first, and their scores; of tied ones the first. −1 and −∞ where it has fewer."""
    k = max(1, min(k, max(map(size_of, pools), default=1)))
    indices = torch.full((len(z), k), -1, device=z.device)
    scores = torch.full((len(z), k), -torch.inf, dtype=torch.float64, device=z.device)
    for table in _score_pools(z, candidates, pools, rule):
        width = min(k, table.scores.shape[1])
        best, columns = largest(table.scores, width, table.ties)
        indices[table.rows, :width], scores[table.rows, :width] = table.positions.gather(1, columns), best
    return indices, scores


def ranks_in_pools(
    z: Tensor, candidates: Coordinates, pools: Sequence[Pool], truth: Tensor, rule: Rule
) -> Tensor:  # (n,)
    """The rank of candidate ``truth[i]`` in the pool of row i: 1 + #better + ½ #equal others; ∞ if it is not in it.

    A ``truth[i]`` of −1 is in no pool.
    """
    ranks = torch.full((len(z),), torch.inf, dtype=torch.float64, device=z.device)
    for table in _score_pools(z, candidates, pools, rule):
        is_own = (table.positions == truth.to(z.device)[table.rows, None]) & (table.positions >= 0)
        keys = table.ties.keys(table.scores)
        own = keys.masked_fill(~is_own, -torch.inf).amax(dim=1, keepdim=True)
        found = 1 + (keys > own).sum(dim=1) + ((keys == own) & ~is_own).sum(dim=1) / 2
        ranks[table.rows] = found.double().where(is_own.any(dim=1), torch.inf)
    return ranks


def _score_pools(z: Tensor, candidates: Coordinates, pools: Sequence[Pool], rule: Rule) -> Iterator[_Table]:
    """Score all pools in double precision, those of several rows at a time."""
    sizes, step = list(map(size_of, pools)), max(1, NUMBERS // z.shape[1])
    for rows in _group([row for row, size in enumerate(sizes) if size], sizes.__getitem__):
        some, at = [pools[row] for row in rows], torch.tensor(rows, device=z.device)
        lengths = [sizes[row] for row in rows]
        diag, squared = (torch.cat([part[pool] for pool in some]).double() for part in candidates[1:])
        pairs = [(part, row) for pool, row in zip(some, rows, strict=True) for part in candidates.psi[pool].split(step)]
        products = torch.cat([part.double() @ z[row] for part, row in pairs])
        factor, offset = affine(rule, diag, squared)
        shift = constant(rule, z[at]).repeat_interleave(torch.tensor(lengths, device=z.device))
        scores = (products * factor + offset + shift).split(lengths)
        table = pad_sequence(scores, batch_first=True, padding_value=-torch.inf)
        places = pad_sequence([positions_of(pool) for pool in some], batch_first=True, padding_value=-1).to(z.device)
        sample = torch.arange(SAMPLE, device=z.device) * torch.tensor(lengths, device=z.device)[:, None] // SAMPLE
        yield _Table(at, table, places, Ties.of(table.gather(1, sample)))


def _group(rows: list[int], size: Callable[[int], int]) -> Iterator[list[int]]:
    """Divide rows so that a table of each part has at most TABLE scores, or one row."""
    part: list[int] = []
    widest = 0
    for row in rows:
        if part and (len(part) + 1) * max(widest, size(row)) > TABLE:
            yield part
            part, widest = [], 0
        part.append(row)
        widest = max(widest, size(row))
    if part:
        yield part
