"""The decoding rules: how well an output y fits predicted coordinates z, larger is better; and which scores are ties.

All rules have one form, score(z, y) = factor(y) · ⟨z, ψ̃(y)⟩ + offset(y) + constant(z):

    "kernel"     2⟨z, ψ̃⟩ − k(y, y), the paper's: minus ‖h(x) − ψ(y)‖² up to a constant in y
    "projected"  2⟨z, ψ̃⟩ − ‖ψ̃‖² − ‖z‖² = −‖z − ψ̃‖²: the distance within the span
    "cosine"     ⟨z, ψ̃⟩ / ‖ψ̃‖: the angle within the span, 0 for an output orthogonal to it

All are also nearest-neighbour problems in p + 1 dimensions, see :func:`as_points`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from dsokr.errors import InputError

Rule = Literal["kernel", "projected", "cosine"]
RULES: tuple[Rule, ...] = get_args(Rule)

TINY = torch.finfo(torch.float64).tiny
SAMPLE = 255  # scores of a row that are enough to estimate its offset


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise InputError(f"The decoding rule must be one of {', '.join(map(repr, RULES))}. Got {rule!r}.")


def affine(rule: Rule, diag: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:  # (c,), (c,)
    """factor(y) and offset(y), from k(y, y) and ‖ψ̃(y)‖²."""
    if rule == "cosine":
        return torch.where(squared <= TINY, 1.0, squared).rsqrt(), torch.zeros_like(squared)
    return torch.full_like(squared, 2.0), -diag if rule == "kernel" else -squared


def constant(rule: Rule, z: Tensor) -> Tensor:  # (n,)
    """What all scores of a row have in common."""
    return -torch.linalg.vecdot(z, z) if rule == "projected" else torch.zeros_like(z[..., 0])


def score(z: Tensor, psi: Tensor, diag: Tensor, rule: Rule) -> Tensor:  # (n, p), (c, p), (c,) -> (n, c)
    """The scores of all outputs, given by ψ̃(y) and k(y, y), for every row z of coordinates."""
    check_rule(rule)
    z = z.to(psi)
    factor, offset = affine(rule, diag, torch.linalg.vecdot(psi, psi))
    scores = (z @ psi.T).mul_(factor).add_(offset)
    return scores.add_(constant(rule, z)[:, None]) if rule == "projected" else scores


def score_pairs(z: Tensor, psi: Tensor, diag: Tensor, rule: Rule) -> Tensor:  # (n, p), (n, p), (n,) -> (n,)
    """The score of output i for row i of z. Differentiable."""
    factor, offset = affine(rule, diag, torch.linalg.vecdot(psi, psi))
    return factor * torch.linalg.vecdot(z.to(psi), psi) + offset + constant(rule, z.to(psi))


def as_points(psi: Tensor, diag: Tensor, rule: Rule) -> Tensor:  # (c, p), (c,) -> (c, p + 1)
    """Outputs as points v whose nearest neighbours, of :func:`as_queries`, score best.

    ‖(z, 0) − (v, w)‖² = ‖z‖² − 2⟨z, v⟩ + ‖v‖² + w² with v = ψ̃ and w² = k(y, y) − ‖ψ̃‖² for "kernel", w = 0 for
    "projected", and for "cosine" v = ψ̃ / ‖ψ̃‖ on the unit sphere (w = 1 where ψ̃ = 0).
    """
    squared = torch.linalg.vecdot(psi, psi)
    if rule == "cosine":
        return torch.cat([F.normalize(psi, dim=1), (squared == 0).to(psi)[:, None]], dim=1)
    rest = (diag - squared).clamp(min=0).sqrt() if rule == "kernel" else torch.zeros_like(squared)
    return torch.cat([psi, rest[:, None]], dim=1)


def as_queries(z: Tensor, rule: Rule) -> Tensor:  # (n, p) -> (n, p + 1)
    return F.pad(F.normalize(z, dim=1) if rule == "cosine" else z, (0, 1))


class Ties(NamedTuple):
    """Scores of a row are tied if they agree to 24 bits, as in single precision, after subtracting the row's offset.

    Scores are computed in double precision, but the last bits of a sum depend on the order of its terms: without this,
    two copies of one output would differ. The offset matters for outputs far from zero, whose scores have a large part
    in common.

    >>> scores = torch.tensor([[1e9, 1e9 + 1, 1e9 + 1 + 1e-9]], dtype=torch.float64)
    >>> Ties.of(scores).keys(scores).tolist()
    [[-1.0, 0.0, 0.0]]
    """

    offset: Tensor  # (n, 1)
    unit: Tensor  # (n, 1): smaller differences are rounding errors

    @staticmethod
    def of(scores: Tensor) -> Ties:  # (n, c)
        """Offset and unit from the medians of some scores of every row, which outliers do not move."""
        some = scores[:, :: max(1, scores.shape[1] // SAMPLE)].double()
        offset = some.median(dim=1, keepdim=True).values.nan_to_num(0.0, 0.0, 0.0)
        spread = (some - offset).abs().median(dim=1, keepdim=True).values.nan_to_num(0.0, 0.0, 0.0)
        unit = torch.maximum(2.0**-24 * spread, 2.0**-40 * offset.abs())
        if (zeros := unit[:, 0] == 0).any():  # most scores are zero: estimate rounding errors from the largest
            unit[zeros] = 2.0**-48 * scores[zeros].double().nan_to_num(0.0, 0.0, 0.0).abs().amax(dim=1, keepdim=True)
        return Ties(offset, unit)

    def keys(self, scores: Tensor) -> Tensor:  # (n, c) float64
        """Numbers to sort by: in the order of the scores, and equal for ties.

        They are rounded in double precision, because scores may lie outside the range of single precision.
        """
        shift = 1.5 * 2**52 * self.unit  # adding it rounds to multiples of the unit
        keys = (scores + (shift - self.offset)).sub_(shift)
        keys.view(torch.int64).add_(2**28).bitwise_and_(-(2**29))  # round the significand from 53 to 24 bits
        return keys


def sort_keys(scores: Tensor) -> Tensor:  # (n, c) float64
    """Numbers in the order of each row's scores, equal for ties; see :class:`Ties`."""
    return Ties.of(scores).keys(scores)


def largest(scores: Tensor, k: int, ties: Ties | None = None) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
    """The k largest scores of every row with their columns, best first; of tied ones the first."""
    keys = (ties or Ties.of(scores)).keys(scores)
    least = keys.topk(k, dim=1).values[:, -1:]
    above, equal = keys > least, keys == least
    chosen = above | (equal & (equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))
    columns = chosen.nonzero()[:, 1]
    if len(columns) != len(scores) * k:  # NaN is neither above nor equal
        raise InputError("Scores are not numbers: coordinates of candidates are damaged or too large.")
    columns = columns.reshape(len(scores), k)
    columns = columns.gather(1, keys.gather(1, columns).sort(dim=1, descending=True, stable=True).indices)
    return scores.gather(1, columns), columns
