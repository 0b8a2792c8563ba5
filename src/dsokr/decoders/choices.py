"""The k best choices of one column in every row of a table."""

from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush

import numpy as np

Choose = Callable[[np.ndarray], np.ndarray]  # (d, m) -> (d,): the best choice that is allowed


def choose_columns(profit: np.ndarray, k: int, choose: Choose) -> np.ndarray:  # (d, m) -> (≤ k, d)
    """The k choices with the largest sums, best first, by Lawler's method, which for assignments is Murty's.

    ``choose`` finds the best choice; columns with a profit of −∞ are forbidden. Every other choice agrees with it in
    the rows before some row i and differs in row i. These are d problems of the same kind; the best of their solutions
    is the next best choice.

    >>> choose_columns(np.array([[0.0, 3.0], [0.0, 1.0]]), 3, lambda profit: profit.argmax(axis=1))
    array([[1, 1],
           [1, 0],
           [0, 1]])
    """
    found: list[np.ndarray] = []
    heap: list[tuple[float, int, int, np.ndarray, np.ndarray]] = []
    parts, solved = [(0, profit.copy())], 0
    while len(found) < k:
        for first, part in parts:
            with suppress(ValueError):  # no assignment is left
                choice, solved = choose(part), solved + 1
                loss = -part[np.arange(len(part)), choice].sum()
                if loss < np.inf:
                    heappush(heap, (loss, solved, first, part, choice))
        if not heap:
            break
        _, _, first, part, choice = heappop(heap)
        found.append(choice)
        parts = []
        for row in range(first, len(part)):
            parts.append((row, part.copy()))
            parts[-1][1][row, choice[row]] = -np.inf
            part[row, np.arange(part.shape[1]) != choice[row]] = -np.inf
    return np.stack(found)
