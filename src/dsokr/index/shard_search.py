"""Exact search over shards, which may run on many machines: the same answers, in the same order, as that of an index.

Which scores are ties is found out first, from the scores that an index looks at; then every shard is scanned with these
ties, and the best of all are merged in the order of the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr.decoders.pools import Pool, positions_of, size_of
from dsokr.decoders.scan import Ranking, Scan, multiply_pairs
from dsokr.errors import InputError, check_k
from dsokr.index.candidates import check_coordinates, scan_size
from dsokr.index.columns import Columns, Condition
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
    z = check_coordinates(z, shards.dim)
    shards.check_columns(condition.column for condition in conditions)
    find = partial(_find_pool_ties, conditions=conditions) if conditions else _find_ties
    ties = find(shards, z, rule, spread)
    scan, starts = Scan(z, min(check_k(k), sum(shards.counts)), rule, ties), _starts(shards)
    filled = np.flatnonzero(shards.counts).tolist()
    found = spread(partial(_scan, shards, z, scan.k, rule, ties, conditions), ((number,) for number in filled))
    for number, (indices, scores) in zip(filled, found, strict=True):
        scan.merge(indices.where(indices < 0, indices + int(starts[number])), scores)
    return scan.ranking()


def look_up(shards: Shards, indices: Tensor, columns: Sequence[str], spread: Spread = starmap) -> dict[int, Cells]:
    """The texts of candidates, with their names and cells of some columns, by position."""
    shards.check_columns(columns)
    at = indices[indices >= 0].unique().numpy()
    numbers, starts = np.searchsorted(np.cumsum(shards.counts), at, side="right"), _starts(shards)
    parts = [(int(number), at[numbers == number] - starts[number]) for number in np.unique(numbers)]
    found = spread(partial(_read_cells, shards, columns), parts)
    return dict(zip(at.tolist(), (cells for some in found for cells in some), strict=True))


def _starts(shards: Shards) -> np.ndarray:
    return np.cumsum([0, *shards.counts])


def _read_cells(shards: Shards, columns: Sequence[str], number: int, at: np.ndarray) -> list[Cells]:
    shard = shards.read_shard(number)
    rows = list(zip(shard.names, *(shard.cells[name] for name in columns), strict=True))
    return [(shard.texts[i], rows[i]) for i in at]


def _scan(
    shards: Shards, z: Tensor, k: int, rule: Rule, ties: Ties, conditions: Sequence[Condition], number: int
) -> tuple[Tensor, Tensor]:
    scan, pairs = Scan(z, k, rule, ties), None
    if conditions:
        _, pools = _find_pools(shards, conditions, number)
        sizes = torch.tensor(list(map(size_of, pools)))
        pairs = torch.arange(len(z)).repeat_interleave(sizes), torch.cat(list(map(positions_of, pools)))
    scan.add(*shards.read_coordinates(number), pairs=pairs)
    return scan.indices, scan.scores


def _find_pools(shards: Shards, conditions: Sequence[Condition], number: int) -> tuple[set[str], Sequence[Pool]]:
    """The candidates of a shard that meet all conditions; and columns without the numbers that conditions are about."""
    columns = Columns.of(shards.read_columns(number, {condition.column for condition in conditions}))
    numeric = {condition.column for condition in conditions if condition.low.dtype == np.float64}
    empty = {name for name in numeric if np.isnan(columns.numbers(name)).all()}
    return empty, [slice(0, 0)] * len(conditions[0].low) if empty else columns.find(conditions)


def _find_ties(shards: Shards, z: Tensor, rule: Rule, spread: Spread) -> Ties:
    first = min(scan_size(*z.shape), sum(shards.counts))
    at = np.arange(0, first, max(1, first // SAMPLE))
    parts = zip(
        range(len(shards.counts)), np.split(at, np.searchsorted(at, np.cumsum(shards.counts[:-1]))), strict=True
    )
    work = partial(_score_rows, shards, z, rule)
    return Ties.of(torch.cat(list(spread(work, ((number, some) for number, some in parts if len(some)))), dim=1))


def _score_rows(shards: Shards, z: Tensor, rule: Rule, number: int, at: np.ndarray) -> Tensor:  # (n, some)
    at = at - _starts(shards)[number]
    psi, diag, squared = (part[torch.from_numpy(at)] for part in shards.read_coordinates(number))
    factor, offset = affine(rule, diag, squared)
    return (z @ psi.double().T).mul_(factor).add_(offset)


def _find_pool_ties(shards: Shards, z: Tensor, rule: Rule, spread: Spread, conditions: Sequence[Condition]) -> Ties:
    """By a sample of every row's pool, whose candidates are counted first."""
    found = list(spread(partial(_count, shards, conditions), ((number,) for number in range(len(shards.counts)))))
    if missing := set.intersection(*(empty for empty, _ in found)):
        raise InputError(f"The column {min(missing)!r} of the candidates holds no numbers.")
    ends = np.cumsum([sizes for _, sizes in found], axis=0)  # (shards, n)
    wanted = np.arange(SAMPLE) * ends[-1][:, None] // SAMPLE  # (n, sample)
    numbers = np.stack([np.searchsorted(*pair, side="right") for pair in zip(ends.T, wanted, strict=True)])
    order = np.argsort(numbers, axis=None, kind="stable")
    places = np.split(order, np.searchsorted(numbers.flat[order], np.arange(1, len(ends) + 1)))[:-1]  # by shard
    starts, scores = np.concatenate([0 * ends[:1], ends]), np.zeros(wanted.shape)
    used = [number for number, some in enumerate(places) if len(some)]
    rows = {number: places[number] // SAMPLE for number in used}
    parts = ((at, rows[at], wanted.flat[places[at]] - starts[at, rows[at]]) for at in used)
    for number, some in zip(used, spread(partial(_score_pools, shards, z, rule, conditions), parts), strict=True):
        scores.flat[places[number]] = some
    shift = constant(rule, z)[:, None]
    offset, unit = Ties.of(torch.from_numpy(scores) + shift)
    return Ties(offset - shift, unit)


def _count(shards: Shards, conditions: Sequence[Condition], number: int) -> tuple[set[str], list[int]]:
    empty, pools = _find_pools(shards, conditions, number)
    return empty, list(map(size_of, pools))


def _score_pools(
    shards: Shards, z: Tensor, rule: Rule, conditions: Sequence[Condition], number: int, rows: Any, at: Any
) -> np.ndarray:
    """The scores of the candidates at some places of some rows' pools."""
    _, pools = _find_pools(shards, conditions, number)
    candidates = torch.stack([positions_of(pools[row])[place] for row, place in zip(rows, at, strict=True)])
    psi, diag, squared = shards.read_coordinates(number)
    factor, offset = affine(rule, diag[candidates], squared[candidates])
    return (multiply_pairs(z, psi, torch.from_numpy(rows), candidates) * factor + offset).numpy()
