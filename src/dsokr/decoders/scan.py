"""Candidates with their coordinates, and the exact scan for the best of them.

All are scored, block by block, and only the few that may be best are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dsokr.basis import BLOCK, SketchedBasis
from dsokr.decoders.pools import Coordinates, Pool, positions_of, ranks_in_pools, size_of, top_of_pools
from dsokr.errors import InputError, check_k
from dsokr.metrics.scores import check_truth
from dsokr.outputs import Form, Outputs, blocks, canonical, concatenate, count, distinct, take
from dsokr.rules import SAMPLE, TINY, Rule, Ties, affine, check_rule, constant, largest, score, score_pairs

QUERIES = 1024  # rows of coordinates scored at once against a block of candidates
PAIRS = 512  # pairs scored at once in double precision: few enough for a cache
MERGED = 2**22  # pairs merged at once
FAST = torch.float32  # precision of the first pass on a CPU; what may be among the best is computed once more


class Ranking(NamedTuple):
    """The k best candidates for every input, best first."""

    indices: Tensor  # (n, k)
    scores: Tensor  # (n, k)


class Scan:
    """For every row of z (float64) the k best of the candidates added so far; of tied ones the first.

    All candidates are scored fast, and those within the rounding error of the best k once more in double precision:
    fast is single precision on a CPU, and double precision on a GPU. Memory O(n · k) and a block. The first block shows
    which scores are ties, unless ``ties`` are given: scans of several parts that are merged must agree on them.
    """

    def __init__(self, z: Tensor, k: int, rule: Rule, ties: Ties | None = None):
        check_rule(rule)
        self.z, self.k, self.rule, self.seen, self.has_pools = z, check_k(k), rule, 0, False
        self.scores = z.new_empty(len(z), 0)
        self.indices, self.ties = self.scores.long(), ties or Ties(*z.new_zeros(2, len(z), 1))
        self.finds_ties = ties is None

    def add(
        self,
        psi: Tensor,
        diag: Tensor,
        squared: Tensor | None = None,
        bonus: Any = 0.0,
        pairs: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Add candidates: ψ̃(y) (c, p) of any precision, k(y, y) (c,) and, if already computed, ‖ψ̃(y)‖².

        A ``bonus`` is added to the scores of all, or of each (c,). Given ``pairs`` of a row and a candidate, only these
        count.
        """
        squared = torch.linalg.vecdot(psi.double(), psi.double()) if squared is None else squared
        more = min(self.k, self.seen + len(psi)) - self.scores.shape[1]
        self.indices = F.pad(self.indices, (0, more), value=-1)
        self.scores = F.pad(self.scores, (0, more), value=-torch.inf)
        factor, offset = affine(self.rule, diag, squared)
        block = _Block(psi, squared, factor, offset + bonus)
        step = QUERIES if self.z.device.type == "cpu" else 16 * QUERIES
        parts = [slice(start, start + step) for start in range(0, len(self.z), step)]
        if self.finds_ties and self.seen == 0:
            for rows in parts:
                self.ties.offset[rows], self.ties.unit[rows] = Ties.of(block.score_some(self.z[rows]))
        if pairs is None:
            for rows in parts:
                self._add(block, rows)
        else:
            self.has_pools = True  # so that rows may have fewer than k
            for query, candidate in zip(*(part.split(MERGED) for part in pairs), strict=True):
                self._merge(query, candidate, block)
        self.seen += len(psi)

    def _add(self, block: _Block, rows: slice) -> None:
        """Add candidates for some rows of z."""
        scores, scale, error = block.score_fast(self.z[rows])
        if self.seen < self.k:  # the best k so far are not full, but a block can contribute no more than its best k
            floor = scores.topk(min(self.k, scores.shape[1]), dim=1).values[:, -1:] - 2 * error
        else:
            floor = self.scores[rows, -1:] / scale - error
        floor = floor.to(scores)
        above = (scores.amax(dim=1, keepdim=True) >= floor).nonzero()[:, 0]
        if len(above):
            query, candidate = (scores[above] >= floor[above]).nonzero(as_tuple=True)
            self._merge(rows.start + above[query], candidate, block)

    def _merge(self, query: Tensor, candidate: Tensor, block: _Block) -> None:
        """Score pairs of a row and a candidate in double precision, and update the best k of these rows."""
        scores = multiply_pairs(self.z, block.psi, query, candidate)
        scores.mul_(block.factor[candidate]).add_(block.offset[candidate])
        rows, owner = query.unique(return_inverse=True)
        k = self.scores.shape[1]
        owner = torch.cat([torch.arange(len(rows), device=owner.device).repeat_interleave(k), owner])
        indices = torch.cat([self.indices[rows].flatten(), candidate + self.seen])
        scores = torch.cat([self.scores[rows].flatten(), scores])
        ties = Ties(*(part[rows[owner]] for part in self.ties))
        order = ties.keys(scores[:, None])[:, 0].sort(descending=True, stable=True).indices
        order = order[owner[order].sort(stable=True).indices]  # by row, then by key, then by index
        sizes = owner.bincount()
        best = order[(sizes.cumsum(0) - sizes)[:, None] + torch.arange(k, device=order.device)]
        self.indices[rows], self.scores[rows] = indices[best], scores[best]

    def merge(self, indices: Tensor, scores: Tensor) -> None:  # (n, any), (n, any)
        """Add the best of candidates that follow, from the fields of another scan; −1 and −∞ where it has fewer."""
        indices, scores = torch.cat([self.indices, indices], dim=1), torch.cat([self.scores, scores], dim=1)
        self.scores, columns = largest(scores, min(self.k, scores.shape[1]), self.ties)
        self.indices, self.has_pools = indices.gather(1, columns), True

    def ranking(self) -> Ranking:
        """The best so far: k of them, or all if fewer were added."""
        scores = self.scores + constant(self.rule, self.z)[:, None]
        check_scores(scores.where(self.indices >= 0, 0.0) if self.has_pools else scores)
        return Ranking(self.indices, scores)


class _Block(NamedTuple):
    """Candidates, with factor(y) and offset(y) of the rule."""

    psi: Tensor
    squared: Tensor
    factor: Tensor
    offset: Tensor

    def score_some(self, z: Tensor) -> Tensor:  # (n, some)
        """The scores of a sample, in double precision."""
        some = slice(None, None, max(1, len(self.psi) // SAMPLE))
        return (z @ self.psi[some].double().T).mul_(self.factor[some]).add_(self.offset[some])

    def score_fast(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (n, c), (n, 1), (n, 1)
        """Scores divided by a scale for every row, so that they are at most 1; the scale; and the rounding error."""
        lengths = self.squared.sqrt()
        is_single = z.device.type == "cpu" and 1e-15 < float(lengths.max()) < 1e15  # no overflow, no underflow
        psi = self.psi.to(FAST if is_single else torch.float64)
        products = torch.linalg.vector_norm(z, dim=1, keepdim=True) * (self.factor * lengths).max()
        offset = self.offset.abs().max().clamp(min=TINY)
        scale = products + offset
        scores = ((z / scale).to(psi) @ psi.T).mul_(self.factor.to(psi))
        scores.addr_((offset / scale)[:, 0].to(psi), (self.offset / offset).to(psi))
        # p products and their sum, then the factor and the offset
        return scores, scale, torch.finfo(psi.dtype).eps * (8 + z.shape[1] * products / scale)


def multiply_pairs(z: Tensor, psi: Tensor, query: Tensor, candidate: Tensor) -> Tensor:  # (h,)
    """⟨z_q, ψ̃(y_c)⟩ in double precision for pairs (q, c)."""
    size = PAIRS if z.device.type == "cpu" else 128 * PAIRS
    parts = zip(query.split(size), candidate.split(size), strict=True)
    return torch.cat([torch.einsum("hp,hp->h", z[q], psi[c].double()) for q, c in parts])


def check_scores(scores: Tensor) -> None:  # (n, k)
    """Raise an ``InputError`` if scores are not finite."""
    finite = torch.isfinite(scores).all(dim=1)
    if not finite.all():
        at = int((~finite).nonzero()[0])
        raise InputError(f"The scores of candidates are not finite in row {at}. Rescale the outputs.")


def top_of_blocks(blocks: Iterable[Tensor], k: int) -> Tensor:  # (n, b) each -> (n, k), or all if they are fewer
    """The positions of the k largest scores of every row, over all blocks; best first, of tied ones the first."""
    first, best, places = 0, torch.empty(0), torch.empty(0)
    for scores in blocks:
        at = torch.arange(first, first + scores.shape[1], device=scores.device)
        if first == 0:
            best, places = scores[:, :0], at[:0].expand(len(scores), 0)
        first += len(at)
        more = min(k, first) - best.shape[1]
        best, places = F.pad(best, (0, more), value=-torch.inf), F.pad(places, (0, more))
        rows = (scores.amax(dim=1) > best[:, -1]).nonzero()[:, 0]
        if len(rows):
            best[rows], chosen = largest(torch.cat([best[rows], scores[rows]], dim=1), best.shape[1])
            places[rows] = torch.cat([places[rows], at.expand(len(rows), -1)], dim=1).gather(1, chosen)
    return places


def count_in_blocks(blocks: Iterable[Tensor], threshold: Tensor) -> Tensor:  # (n, b) each, (n,) -> (n,)
    """How many scores of every row, over all blocks, reach its threshold; those tied with it do."""
    least, counts = threshold, torch.zeros_like(threshold, dtype=torch.long)
    for number, scores in enumerate(blocks):
        if number == 0:
            least = threshold - Ties.of(scores).unit[:, 0].to(threshold)
        counts += (scores >= least.to(scores)[:, None]).sum(dim=1).to(counts)
    return counts


class EmbeddedOutputs:
    """Candidates for decoding: the outputs, their coordinates ψ̃(y) and k(y, y).

    With ``keep`` the coordinates are computed at the first use and held, n × p numbers; without it they are computed
    block by block each time, so that memory does not grow with the number of outputs. Pass ``coordinates`` if already
    computed, and ``form`` if the outputs are canonical already.
    """

    def __init__(
        self,
        basis: SketchedBasis,
        outputs: Any,
        keep: bool = True,
        coordinates: tuple[Tensor, Tensor] | None = None,  # (c, p), (c,)
        form: Form | None = None,
    ):
        self.basis, self.keep = basis, keep
        self.outputs, self.form = canonical(outputs, "candidates") if form is None else (outputs, form)
        self._coordinates = coordinates

    def __len__(self) -> int:
        return count(self.outputs)

    def select(self, at: Tensor) -> EmbeddedOutputs:
        """The outputs at some positions, with their coordinates if these are kept."""
        kept = tuple(part[at] for part in self.coordinates()) if self.keep else None
        return EmbeddedOutputs(self.basis, take(self.outputs, at), self.keep, cast(Any, kept), self.form)

    def extended(self, outputs: Outputs, form: Form) -> EmbeddedOutputs:
        """These outputs and, of further canonical ones, those that are not here yet, each once."""
        is_other = type(outputs) is not type(self.outputs)
        if is_other or ("float" in form.dtype and "float" not in self.form.dtype):
            expected, got = (" of ".join(filter(None, (f.kind, f.dtype))) for f in (self.form, form))
            raise InputError(f"Further outputs must come as the first ones did, as {expected}. Got {got}.")
        both, n = concatenate(self.outputs, outputs), len(self)
        first = distinct(both)
        new = take(both, first[first >= n])
        if not count(new):
            return self
        coordinates = self._coordinates
        if coordinates is not None:
            psi, diag = coordinates
            coordinates = torch.cat([psi, self.basis.embed(new)]), torch.cat([diag, self.basis.diag(new)])
        return EmbeddedOutputs(self.basis, concatenate(self.outputs, new), self.keep, coordinates, self.form)

    @cached_property
    def without_copies(self) -> EmbeddedOutputs:
        """The distinct outputs, in the order of their first copies."""
        first = distinct(self.outputs)
        return self if len(first) == len(self) else self.select(first)

    def coordinates(self) -> tuple[Tensor, Tensor]:  # (c, p), (c,)
        """ψ̃(y) and k(y, y) of all outputs."""
        if self._coordinates is None:
            self._coordinates = self.basis.embed(self.outputs), self.basis.diag(self.outputs)
        return self._coordinates

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Positions, coordinates and k(y, y) of consecutive outputs."""
        if self.keep:
            psi, diag = self.coordinates()
            for start in range(0, len(self), BLOCK):
                where = slice(start, start + BLOCK)
                yield where, psi[where], diag[where]
        else:
            for where, block in blocks(self.outputs, BLOCK):
                yield where, self.basis.embed(block), self.basis.diag(block)

    def top(self, z: Any, k: int, rule: Rule, bonus: Tensor | None = None) -> Ranking:
        """The k best outputs for every row of z, exactly; of tied ones the first. Memory O(n · k) and a block.

        A ``bonus`` for every output (c,) is added to its scores.
        """
        scan = Scan(self.basis.check_coordinates(z), k, rule)
        self.add_to(scan, bonus)
        return scan.ranking()

    def top_of(self, z: Any, pools: Sequence[Pool], k: int, rule: Rule) -> Ranking:
        """The k best outputs of every row's own pool; position −1 and score −∞ where it has fewer."""
        if self.keep:
            z = self.basis.check_coordinates(z)
            found = Ranking(*top_of_pools(z, Coordinates.of(*self.coordinates()), pools, check_k(k), rule))
            check_scores(found.scores.where(found.indices >= 0, 0.0))
            return found
        used, places = torch.cat([*map(positions_of, pools), torch.empty(0).long()]).unique(return_inverse=True)
        part = EmbeddedOutputs(self.basis, take(self.outputs, used), form=self.form)
        found = part.top_of(z, places.split(list(map(size_of, pools))), k, rule)
        return Ranking(F.pad(used, (0, 1), value=-1).to(found.indices)[found.indices], found.scores)

    def add_to(self, scan: Scan, bonus: Tensor | None = None) -> None:  # (c,)
        """Add the outputs to a scan, after those that it has seen."""
        for where, psi, diag in self.blocks():
            scan.add(psi, diag, bonus=0.0 if bonus is None else bonus[where])

    def ranks(self, z: Any, truth: Tensor, rule: Rule, pools: Sequence[Pool] | None = None) -> Tensor:  # (n,)
        """The rank of output ``truth[i]`` for row i of z among all outputs, or in its pool, ∞ if that lacks it.

        See :func:`dsokr.metrics.ranks`.
        """
        z = self.basis.check_coordinates(z)
        if pools is not None:
            return ranks_in_pools(z, Coordinates.of(*self.coordinates()), pools, truth, rule)
        truth = check_truth(truth, len(z), len(self)).to(z.device)
        own, found, ties = z.new_empty(len(z), 1), z.new_ones(len(z)), {}
        for where, psi, diag in self.select(truth).blocks():
            own[where, 0] = score_pairs(z[where], psi, diag, rule)
        check_scores(own)
        for where, psi, diag in self.blocks():
            for at in (slice(start, start + QUERIES) for start in range(0, len(z), QUERIES)):
                scores = score(z[at], psi, diag, rule)
                if where.start == 0:
                    ties[at.start] = Ties.of(scores)
                mine, others = ties[at.start].keys(own[at]), ties[at.start].keys(scores)
                rows = ((truth[at] >= where.start) & (truth[at] < where.stop)).nonzero()[:, 0]
                others[rows, truth[at][rows] - where.start] = torch.nan  # the true output itself does not count
                found[at] += (others > mine).sum(dim=1) + (others == mine).sum(dim=1) / 2
        return found
