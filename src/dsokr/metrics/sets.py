"""How well a predicted label set matches the true one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import InputError


def _bits(sets: Any) -> Tensor:
    sets = sets.toarray() if hasattr(sets, "toarray") else sets
    return sets.to(torch.float64) if isinstance(sets, Tensor) else torch.from_numpy(np.array(sets, np.float64))


def _pair(predicted: Any, truth: Any) -> tuple[Tensor, Tensor]:
    a, b = _bits(predicted), _bits(truth)
    if a.shape != b.shape or a.ndim != 2 or not all(((x == 0) | (x == 1)).all() for x in (a, b)):
        raise InputError(f"Label sets come as two (n, d) matrices of zeros and ones. Got {a.shape} and {b.shape}.")
    return a, b


def f1(predicted: Any, truth: Any) -> float:
    """Example-based F1: the mean over examples of 2 |A ∩ B| / (|A| + |B|), with 1 where both sets are empty.

    >>> f1([[1, 1, 1, 0], [0, 0, 0, 0]], [[0, 1, 0, 0], [0, 0, 0, 0]])
    0.75
    """
    a, b = _pair(predicted, truth)
    sizes = (a + b).sum(dim=1)
    return torch.where(sizes > 0, 2 * (a * b).sum(dim=1) / sizes.clamp(min=1), 1.0).mean().item()


def exact_match(predicted: Any, truth: Any) -> float:
    """The share of examples whose set is predicted exactly.

    >>> exact_match([[1, 0], [0, 1]], [[1, 0], [1, 1]])
    0.5
    """
    a, b = _pair(predicted, truth)
    return (a == b).all(dim=1).double().mean().item()
