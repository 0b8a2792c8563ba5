"""How well a predicted ranking agrees with the true one."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import InputError


def kendall_tau(predicted: Any, true: Any) -> Tensor:  # (n, k), (n, k) -> (n,)
    """Kendall's τ_b row by row: (C − D) / √(P_a P_b) for C pairs of items in the same order and D in opposite order.

    P_a and P_b are the numbers of pairs that each ranking orders: all k (k − 1) / 2 without ties, and then it is the τ
    of label ranking, 1 − 4 D / (k (k − 1)). Pairs tied in either ranking count neither for nor against. A ranking that
    ties all items has no τ: it is NaN.

    >>> kendall_tau([(0, 1, 2), (2, 1, 0)], [(0, 2, 1), (2, 1, 0)])
    tensor([0.3333, 1.0000], dtype=torch.float64)
    """
    a, b = _positions(predicted), _positions(true)
    if a.shape != b.shape or a.ndim != 2 or a.shape[1] < 2:
        raise InputError(
            "Kendall's tau compares rankings as two (n, k) matrices of positions, k at least 2. "
            f"Got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    signs_a, signs_b = _orders(a), _orders(b)
    ordered = signs_a.abs().sum(dim=1) * signs_b.abs().sum(dim=1)
    return (signs_a * signs_b).sum(dim=1) / ordered.sqrt()


def _positions(rankings: Any) -> Tensor:
    rows = rankings if isinstance(rankings, Tensor) else torch.from_numpy(np.array(rankings, np.float64))
    return rows.to(dtype=torch.float64, device="cpu")


def _orders(positions: Tensor) -> Tensor:  # (n, k (k − 1) / 2)
    first, second = torch.triu_indices(positions.shape[1], positions.shape[1], 1)
    return (positions[:, second] - positions[:, first]).sign_()
