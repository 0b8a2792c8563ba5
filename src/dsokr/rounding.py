"""How scores are compared: those that agree in single precision, beyond what all of a row have in common, are equal.

They are computed in double, but the last bits of a sum depend on the order of its terms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LARGE, SMALL = 1e37, 1e-25  # between these single precision has all its bits
SAMPLE = 255  # scores of a row that show what all have in common
BITS, NOISE = 2.0**-24, 2.0**-40  # of the spread of scores, and of their size, that count as nothing


def sampled(n: int) -> slice:
    """The places of some of n scores."""
    return slice(None, None, max(1, n // SAMPLE))


class Common(NamedTuple):
    """What the scores of every row have in common, which says nothing about which is best."""

    level: Tensor  # (n, 1)
    grid: Tensor  # (n, 1), differences that count

    @staticmethod
    def of(scores: Tensor) -> Common:  # (n, c)
        """From the medians of some, which are not moved by a few that are far off.

        They are rounded, so that scores which differ by rounding alone have the same in common.
        """
        some = scores[:, sampled(scores.shape[1])].double()
        level = _in_bits(some.median(dim=1, keepdim=True).values.nan_to_num(0.0, 0.0, 0.0), 30)
        spread = (some - level).abs().median(dim=1, keepdim=True).values.nan_to_num(0.0, 0.0, 0.0)
        return Common(level, _in_bits(torch.maximum(BITS * spread, NOISE * level.abs()), 1))

    def of_rows(self, rows: Tensor) -> Common:
        return Common(self.level[rows], self.grid[rows])


def _in_bits(x: Tensor, bits: int) -> Tensor:
    mantissa, exponent = torch.frexp(x)
    return (mantissa * 2**bits).round_() * torch.exp2((exponent - bits).to(x))


def beyond(scores: Tensor, common: Common) -> Tensor:  # (n, c)
    """By how much scores differ from what they have in common: that, and not the scores, is compared in few bits.

    A large part in all scores of a row, such as outputs far from zero make, would hide which of them is best.

    >>> scores = torch.tensor([[2.0**30 - 1, 2.0**30, 2.0**30 + 1]], dtype=torch.float64)
    >>> beyond(scores, Common.of(scores)).round()
    tensor([[-1.,  0.,  1.]], dtype=torch.float64)
    """
    large = 1.5 * 2**52 * common.grid  # whose last bit is worth the grid: what is added to it is rounded to that
    large = large.masked_fill(large.isinf(), 0.0)  # near the end of all numbers nothing is rounded
    return (scores + (large - common.level)).sub_(large)


def comparable(scores: Tensor, common: Common | None = None) -> Tensor:  # (n, c)
    """Scores as they are compared within their row: equal where they agree in single precision, beyond what is common.

    >>> scores = torch.tensor([[1e9, 1e9 + 1, 1e9 + 1 + 1e-9]], dtype=torch.float64)
    >>> comparable(scores).sort(descending=True, stable=True).indices
    tensor([[1, 2, 0]])
    """
    if scores.dtype == torch.float32:
        return scores
    return single(beyond(scores, Common.of(scores) if common is None else common))


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
