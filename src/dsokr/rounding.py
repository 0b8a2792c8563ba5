"""Scores that agree in single precision are equal: the last bits of a sum depend on the order of its terms."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LARGE, SMALL = 1e37, 1e-25  # between these single precision has all its bits


def single(scores: Tensor) -> Tensor:  # (n, c)
    """Scores in single precision, to be compared within their row.

    A row that is too large or too small for it is given in another unit, a power of two: its largest score is about 1.

    >>> single(torch.tensor([[1e60, 2e60], [1.0, 2.0]], dtype=torch.float64))
    tensor([[0.3112, 0.6223],
            [1.0000, 2.0000]])
    """
    if scores.dtype == torch.float32 or not scores.numel():
        return scores.float()
    least, most = torch.aminmax(scores, dim=1, keepdim=True)
    size = torch.maximum(-least, most)
    if ((size < LARGE) & ((size > SMALL) | (size == 0))).all():
        return scores.float()
    size = scores.masked_fill(scores.isinf(), 0.0).abs().amax(dim=1, keepdim=True)
    exponent = torch.frexp(size).exponent.to(scores).clamp(min=-1000)  # so that the unit is finite
    unit = torch.where((size < LARGE) & (size > SMALL), 1.0, torch.exp2(-exponent))
    return (scores * unit).float()


def rounded(scores: np.ndarray) -> np.ndarray:
    """Scores as doubles with the 24 bits of single precision, of any size: for few of them, which need no rows.

    >>> rounded(np.array([1e60, 1e60 * (1 + 1e-9)])).tolist() == rounded(np.array([1e60, 1e60])).tolist()
    True
    """
    mantissa, exponent = np.frexp(scores)
    return np.ldexp(mantissa.astype(np.float32).astype(np.float64), exponent)
