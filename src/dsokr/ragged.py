"""Rows of different lengths, one after the other in a flat array: row i is at ``starts[i]`` to ``starts[i + 1]``."""

import numpy as np


def starts_of(lengths: np.ndarray) -> np.ndarray:  # (rows + 1,)
    """Where rows of these lengths start.

    >>> starts_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def gather(starts: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the chosen rows' entries, one row after the other, and where each row then starts.

    >>> [a.tolist() for a in gather(np.array([0, 2, 2, 5]), np.array([2, 0]))]
    [[2, 3, 4, 0, 1], [0, 3, 5]]
    """
    lengths = starts[chosen + 1] - starts[chosen]
    new = starts_of(lengths)
    return np.repeat(starts[chosen] - new[:-1], lengths) + np.arange(new[-1]), new
