"""Which rows are held out for validation: what was learned by heart from a row with the same input must not be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dsokr.outputs import count, keys
from dsokr.commands.kinds import counted


class HeldOut(NamedTuple):
    """Positions of the rows, and what became of those with the input of another row, in words."""

    rows: set[int]
    repeats: str


def hold_out(X: Any, share: float, seed: int, left: int) -> HeldOut:
    """A share of the rows, drawn by the seed; those with the same input together. So many are left to train on."""
    n = count(X)
    order = np.random.default_rng(seed).permutation(n).tolist()
    wanted = min(max(1, round(share * n)), n - left)
    together = _same_inputs(X, order)
    repeated = sum(len(rows) for rows in together if len(rows) > 1)
    repeats = f"{repeated:,} rows have the input of another row" if repeated else ""
    rows = nearest_groups(together, wanted, n - left)
    if len(rows) > max(2 * wanted, n // 4):
        inputs = counted(len(together), "different input")
        return HeldOut(set(order[:wanted]), f"{repeats}; with {inputs} none can be spared, so those held out are known")
    return HeldOut(rows, repeats and f"{repeats}: they are trained on together, or held out together")


def _same_inputs(X: Any, order: list[int]) -> list[list[int]]:
    """Positions with the same input, in the order in which they come first."""
    found: dict[Any, list[int]] = {}
    key_of = list(keys(X))
    for position in order:
        found.setdefault(key_of[position], []).append(position)
    return list(found.values())


def nearest_groups(groups: list[list[int]], count: int, most: int) -> set[int]:
    """Groups of rows, the first ones that fit, with as near to ``count`` rows in all as they come: at least one group.

    More than ``most`` rows are not taken for the sake of being nearer.

    >>> sorted(nearest_groups([[7], [3, 4, 5], [2], [0], [1, 6]], 3, 4))
    [0, 2, 7]
    >>> nearest_groups([[0, 1, 2, 3, 4], [5, 6, 7]], 1, 3)
    {5, 6, 7}
    """
    taken: set[int] = set()
    rest = []
    for rows in groups:
        if len(taken) + len(rows) <= count:
            taken.update(rows)
        else:
            rest.append(rows)
    if rest:
        smallest = min(rest, key=len)
        more = len(taken) + len(smallest)
        if not taken or (more <= most and more - count < count - len(taken)):
            taken.update(smallest)
    return taken
