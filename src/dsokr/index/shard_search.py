"""Exact search over shards, on one or many machines: the same answers, in the same order, as from an index.

A first pass finds the tolerance for ties from the same sample of scores as an index does. A second pass scans every
shard with this tolerance, and the best candidates are merged in the order of the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.decoders.pools import Pool, positions_of, size_of
from dsokr.decoders.scan import Ranking, Scan, multiply_pairs
from dsokr.errors import check_k
from dsokr.index.candidates import check_coordinates, scan_size
from dsokr.index.columns import Columns, Condition, no_numbers
from dsokr.index.shards import Shards
from dsokr.rules import SAMPLE, Rule, Ties, affine, constant

Spread = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterator[Any]]  # results come in order
Cells = tuple[str, tuple[str, ...]]


def search_shards(
    shards: Shards, z: Tensor, k: int, rule: Rule, conditions: Sequence[Condition] = (), spread: Spread = starmap
) -> Ranking:
    """Find the k best candidates for every row of z (n, p), of tied ones the first; ``spread`` calls the workers.

    Where fewer than k candidates meet the conditions, positions are −1 and scores −∞.
    """
    query = Query(shards, check_coordinates(z, shards.dim), rule, conditions)
    shards.check_columns(condition.column for condition in conditions)
    ties, starts = _find_ties(query, spread), np.cumsum([0, *shards.counts])
    scan = Scan(query.z, min(check_k(k), sum(shards.counts)), rule, ties)
    filled = np.flatnonzero(shards.counts).tolist()
    found = spread(partial(query.scan, scan.k, ties), ((number,) for number in filled))
    for number, (indices, scores) in zip(filled, found, strict=True):
        scan.merge(indices.where(indices < 0, indices + int(starts[number])), scores)
    return scan.ranking()


def look_up(shards: Shards, indices: Tensor, columns: Sequence[str], spread: Spread = starmap) -> dict[int, Cells]:
    """The texts of candidates, with their names and cells of some columns, by position."""
    at = indices[indices >= 0].unique().numpy()
    ends = np.cumsum(shards.counts)
    numbers = np.searchsorted(ends, at, side="right")
    parts = [(int(some), at[numbers == some] - (ends[some] - shards.counts[some])) for some in np.unique(numbers)]
    found = spread(partial(_read_cells, shards, columns), parts)
    return dict(zip(at.tolist(), (cells for some in found for cells in some), strict=True))


def _read_cells(shards: Shards, columns: Sequence[str], number: int, at: np.ndarray) -> list[Cells]:
    shard = shards.read_shard(number)
    rows = list(zip(shard.names, *(shard.cells[name] for name in columns), strict=True))
    return [(shard.texts[i], rows[i]) for i in at]


class Query(NamedTuple):
    """A query of all shards; each method does the work for one shard."""

    shards: Shards
    z: Tensor  # (n, p)
    rule: Rule
    conditions: Sequence[Condition]

    def scan(self, k: int, ties: Ties, number: int) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
        """The positions and the scores of the best candidates."""
        scan, pairs = Scan(self.z, k, self.rule, ties), None
        if self.conditions:
            _, pools = self._find_pools(number)
            sizes = torch.tensor(list(map(size_of, pools)))
            pairs = torch.arange(len(pools)).repeat_interleave(sizes), torch.cat(list(map(positions_of, pools)))
        scan.add(*self.shards.read_coordinates(number), pairs=pairs)
        return scan.indices, scan.scores

    def count_pools(self, number: int) -> tuple[set[str], list[int]]:
        """The columns whose numbers are wanted but that hold none, and the sizes of all pools."""
        empty, pools = self._find_pools(number)
        return empty, list(map(size_of, pools))

    def score(self, number: int, rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Score candidates, each given by a row and a place in the row's pool. Rows are in ascending order."""
        psi, diag, squared = self.shards.read_coordinates(number)
        first = np.flatnonzero(np.diff(rows, prepend=-1))  # of every row
        places = torch.from_numpy(at).split(np.diff(first, append=len(rows)).tolist())
        if not self.conditions:  # the same candidates for all rows
            psi, diag, squared = psi[places[0]], diag[places[0]], squared[places[0]]
            products = self.z @ psi.double().T
        else:
            pools = self._find_pools(number)[1]
            some = torch.cat([positions_of(pools[row])[own] for row, own in zip(rows[first], places, strict=True)])
            products = multiply_pairs(self.z, psi, torch.from_numpy(rows), some)
            diag, squared = diag[some], squared[some]
        factor, offset = affine(self.rule, diag, squared)
        return (products * factor + offset).numpy().ravel()

    def _find_pools(self, number: int) -> tuple[set[str], Sequence[Pool]]:
        if not self.conditions:
            return set(), [slice(0, self.shards.counts[number])] * len(self.z)
        columns = Columns.of(self.shards.read_columns(number, {condition.column for condition in self.conditions}))
        numeric = {condition.column for condition in self.conditions if condition.low.dtype == np.float64}
        empty = {name for name in numeric if np.isnan(columns.numbers(name)).all()}
        return empty, [slice(0, 0)] * len(self.z) if empty else columns.find(self.conditions)


def _find_ties(query: Query, spread: Spread) -> Ties:
    """Find ties from the scores that an index would use: of its first block or, with conditions, of every pool."""
    counts, n = query.shards.counts, len(query.z)
    found = list(spread(query.count_pools, ((number,) for number in range(len(counts))))) if query.conditions else []
    if missing := set.intersection(*(empty for empty, _ in found)) if found else set():
        raise no_numbers(min(missing))
    sizes = np.array([some for _, some in found] or [[count] * n for count in counts])  # (shards, n)
    ends = sizes.cumsum(axis=0)
    first = min(scan_size(*query.z.shape), sum(counts))
    wanted = np.tile(np.arange(0, first, max(1, first // SAMPLE)), (n, 1))  # (n, sample)
    if query.conditions:
        wanted = np.arange(SAMPLE) * ends[-1][:, None] // SAMPLE
    numbers = np.stack([np.searchsorted(*pair, side="right") for pair in zip(ends.T, wanted, strict=True)])
    order = np.argsort(numbers, axis=None, kind="stable")
    places = np.split(order, np.searchsorted(numbers.flat[order], np.arange(1, len(ends) + 1)))[:-1]  # by shard
    used = [(number, some, some // wanted.shape[1]) for number, some in enumerate(places) if len(some)]
    parts = ((at, rows, wanted.flat[some] - (ends - sizes)[at, rows]) for at, some, rows in used)
    scores = np.zeros(wanted.shape)
    for (_, some, _), own in zip(used, spread(query.score, parts), strict=True):
        scores.flat[some] = own
    shift = constant(query.rule, query.z)[:, None] if query.conditions else torch.zeros(n, 1)
    offset, unit = Ties.of(torch.from_numpy(scores) + shift)
    return Ties(offset - shift, unit)
