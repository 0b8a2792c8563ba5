"""The best of many candidates, exactly: all are scored, block by block, and only the few that may be best are sorted.

All decoding rules have one form, score(z, y) = factor(y) · ⟨z, ψ̃(y)⟩ + offset(y), up to a constant in y:

    "kernel"     2⟨z, ψ̃⟩ − k(y, y)                 factor 2,        offset −k(y, y)
    "projected"  2⟨z, ψ̃⟩ − ‖ψ̃‖² (and − ‖z‖²)       factor 2,        offset −‖ψ̃‖²
    "cosine"     ⟨z, ψ̃⟩ / ‖ψ̃‖                      factor 1 / ‖ψ̃‖, offset 0
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import Rule, check_rule
from dsokr.errors import InputError
from dsokr.rounding import LARGE, Common, beyond, comparable, rounded, sampled

QUERIES = 1024  # rows of coefficients scored at once against a block of candidates
PAIRS = 512  # pairs scored at once in double precision: few enough for a cache


class Ranking(NamedTuple):
    """The k best candidates for every input, best first."""

    indices: Tensor  # (n, k)
    scores: Tensor  # (n, k)


def affine(rule: Rule, diag: np.ndarray, norm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # (n,), (n,)
    """factor(y) and offset(y) of the rule."""
    if rule == "cosine":
        return 1 / np.where(np.square(norm) <= np.finfo(norm.dtype).tiny, 1.0, norm), np.zeros_like(norm)
    return np.full_like(norm, 2.0), -diag if rule == "kernel" else -np.square(norm)


def constant(rule: Rule, z: Tensor) -> Tensor:  # (q,)
    """What all scores of a row have in common: only the projected rule has it, and it is added last."""
    return -torch.linalg.vecdot(z, z) * (rule == "projected")


class Scan:
    """For every row of z (float64) the k best of the candidates that were added; of equal ones the first.

    Scores that agree in single precision are equal: the last bits of a sum depend on the order of its terms, and two
    copies of one output would differ. On the CPU candidates are scanned in single precision; whichever comes within its
    rounding error of the best k is scored in double. A GPU is good at double precision: there all are scored in it, and
    sorted. Memory O(q · k) and a block.
    """

    def __init__(self, z: Tensor, k: int, rule: Rule):
        check_rule(rule)
        self.z, self.rule = z, rule
        part = _Rows if z.device.type == "cpu" else _SortedRows
        self.parts = [part(rows, k, rule) for rows in z.split(QUERIES) if len(rows)]
        self.seen, self.k = 0, k

    def add(self, rows: Tensor, diag: np.ndarray, norm: np.ndarray) -> None:
        """The next candidates: ψ̃(y) of any precision, k(y, y) and ‖ψ̃(y)‖."""
        factor, offset = affine(self.rule, diag, norm)
        sizes = _Sizes(*(float(part.max()) for part in (norm, factor, factor * norm, np.abs(offset))))
        scale, shift = (torch.from_numpy(part).to(rows.device) for part in (factor, offset))
        block = _Block(self.seen, rows, rows.float(), scale, shift, sizes)
        for part in self.parts:
            part.add(block)
        self.seen += len(rows)

    def ranking(self) -> Ranking:
        """The best so far: k of them, or all if fewer were added."""
        if not self.parts:
            empty = self.z.new_empty(0, min(self.k, self.seen))
            return Ranking(empty.long(), empty)
        found = Ranking(*(torch.cat(found) for found in zip(*(part.ranking() for part in self.parts), strict=True)))
        finite = torch.isfinite(found.scores).all(dim=1)
        if not finite.all():
            at = int((~finite).nonzero()[0])
            raise InputError(f"The scores of candidates are not finite in row {at}. Bring outputs to a smaller scale.")
        return found


class _Sizes(NamedTuple):
    """The largest of a block, to know how wrong single precision may be."""

    norm: float  # ‖ψ̃(y)‖
    factor: float
    scaled: float  # factor · ‖ψ̃(y)‖
    offset: float


class _Block(NamedTuple):
    """Candidates from ``start`` on."""

    start: int
    rows: Tensor
    single: Tensor
    factor: Tensor
    offset: Tensor
    sizes: _Sizes


class _Rows:
    """A scan for a few rows of coefficients."""

    def __init__(self, z: Tensor, k: int, rule: Rule):
        self.z, self.single, self.k, self.rule = z, z.float(), k, rule
        self.lengths = torch.linalg.vector_norm(z, dim=1)
        self.best = _Best(len(z))

    def add(self, block: _Block) -> None:
        start, rows, single, factor, offset, sizes = block
        self.best.widen(min(self.k, start + len(rows)))
        length = float(self.lengths.max())
        if max(length, length * sizes.norm, length * sizes.scaled, *sizes) < LARGE:
            scores = (self.single @ single.T).mul_(factor.float()).add_(offset.float())
        else:  # too large for single precision
            scores = (self.z @ rows.double().T).mul_(factor).add_(offset)
        if start == 0:
            some = sampled(len(rows))
            self.best.common = Common.of((self.z @ rows[some].double().T).mul_(factor[some]).add_(offset[some]))
        error = self._rounding(sizes)
        if start < self.k:  # not yet full: what is not among the best k of its block is not among the best k
            floor = scores.topk(min(self.k, len(rows)), dim=1).values[:, -1].double() - 2 * error
        else:
            floor = self.best.scores[:, -1] - error
        floor = floor.to(scores).nextafter(torch.tensor(-torch.inf, dtype=scores.dtype))
        above = (scores.amax(dim=1) >= floor).nonzero()[:, 0]
        if not len(above):
            return
        query, candidate = (scores[above] >= floor[above, None]).nonzero(as_tuple=True)
        query = above[query]
        exact = paired(self.z, rows, query, candidate).mul_(factor[candidate]).add_(offset[candidate])
        self.best.merge(query, candidate + start, exact)

    def _rounding(self, sizes: _Sizes) -> Tensor:  # (q,)
        """A bound on the error of single-precision scores: p products, their sum, the factor and the offset.

        Numbers below ``tiny`` may come out as zero.
        """
        unit, tiny, p = torch.finfo(torch.float32).eps, torch.finfo(torch.float32).tiny, self.z.shape[1]
        error = unit * ((p + 8) * self.lengths * sizes.scaled + 4 * sizes.offset)
        return error + tiny * (1 + p * (sizes.scaled + self.lengths * sizes.factor))

    def ranking(self) -> Ranking:
        return Ranking(self.best.indices, self.best.scores + constant(self.rule, self.z)[:, None])


class _SortedRows:
    """All in double precision, with a small sort for every block."""

    def __init__(self, z: Tensor, k: int, rule: Rule):
        self.z, self.k, self.rule = z, k, rule
        self.scores = z.new_empty(len(z), 0)
        self.indices, self.common = self.scores.long(), Common(z.new_zeros(len(z), 1), z.new_zeros(len(z), 1))

    def add(self, block: _Block) -> None:
        scores = (self.z @ block.rows.double().T).mul_(block.factor).add_(block.offset)
        scores.masked_fill_(scores.isnan(), -torch.inf)
        if block.start == 0:
            self.common = Common.of(scores)
        found, columns = largest(scores, min(self.k, scores.shape[1]), self.common)
        merged = torch.cat([self.scores, found], dim=1)
        places = torch.cat([self.indices, columns + block.start], dim=1)
        order = comparable(merged, self.common).sort(dim=1, descending=True, stable=True).indices[:, : self.k]
        self.scores, self.indices = merged.gather(1, order), places.gather(1, order)

    def ranking(self) -> Ranking:
        return Ranking(self.indices, self.scores + constant(self.rule, self.z)[:, None])


def largest(scores: Tensor, k: int, common: Common | None = None) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
    """The k largest of every row, with their columns; of equal ones the first.

    Scores that agree in single precision are equal: the last bits of a sum depend on where in a block it stands, so
    that without this even two copies of one output would differ. ``topk`` itself would take any of several equal ones.
    What all scores of a row have in ``common`` does not count (see :func:`dsokr.rounding.beyond`).
    """
    keys = comparable(scores, common)
    least = keys.topk(k, dim=1).values[:, -1:]
    above, equal = keys > least, keys == least
    chosen = above | (equal & (equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))
    columns = chosen.nonzero()[:, 1].reshape(len(scores), k)
    order = keys.gather(1, columns).sort(dim=1, descending=True, stable=True).indices
    columns = columns.gather(1, order)
    return scores.gather(1, columns), columns


def paired(z: Tensor, rows: Tensor, query: Tensor, candidate: Tensor) -> Tensor:  # (h,)
    """⟨z_q, ψ̃_c⟩ in double precision, pair by pair."""
    parts = zip(query.split(PAIRS), candidate.split(PAIRS), strict=True)
    return torch.cat([torch.einsum("hp,hp->h", z[q], rows[c].double()) for q, c in parts])


class _Best:
    """The best k so far of every query, best first; of those equal in single precision the first."""

    def __init__(self, queries: int):
        self.indices = torch.empty(queries, 0, dtype=torch.long)
        self.scores = torch.empty(queries, 0, dtype=torch.float64)
        self.common = Common(*torch.zeros(2, queries, 1, dtype=torch.float64))

    def widen(self, k: int) -> None:
        """Make room for k, which may be more than there will ever be candidates: only when they have come."""
        more = k - self.scores.shape[1]
        if more > 0:
            self.indices = torch.nn.functional.pad(self.indices, (0, more), value=-1)
            self.scores = torch.nn.functional.pad(self.scores, (0, more), value=-torch.inf)

    def merge(self, query: Tensor, index: Tensor, score: Tensor) -> None:
        touched, place = query.unique(return_inverse=True)
        k = self.scores.shape[1]
        owner = torch.cat([torch.arange(len(touched)).repeat_interleave(k), place]).numpy()
        index = torch.cat([self.indices[touched].reshape(-1), index])
        score = torch.cat([self.scores[touched].reshape(-1), score])
        above = beyond(score[:, None], self.common.of_rows(touched[owner]))[:, 0]
        order = np.lexsort((index.numpy(), -rounded(above.numpy()), owner))
        starts = np.searchsorted(owner[order], np.arange(len(touched)))
        keep = torch.from_numpy(order[starts[:, None] + np.arange(k)])
        self.indices[touched], self.scores[touched] = index[keep], score[keep]
