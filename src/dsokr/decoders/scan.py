"""Candidates with their coordinates, and the exact scan for the best of them.

All are scored, block by block, and only the few that may be best are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsokr.basis import BLOCK, SketchedBasis
from dsokr.errors import InputError
from dsokr.metrics import ranks
from dsokr.outputs import Form, blocks, canonical, count, take
from dsokr.rules import Rule, Ties, affine, check_rule, constant, largest, score, score_pairs

QUERIES = 1024  # rows of coordinates scored at once against a block of candidates
PAIRS = 512  # pairs scored at once in double precision: few enough for a cache
SAMPLE = 255  # candidates of the first block that show the offset of a row's scores


class Ranking(NamedTuple):
    """The k best candidates for every input, best first."""

    indices: Tensor  # (n, k)
    scores: Tensor  # (n, k)


class Scan:
    """For every row of z (float64) the k best of the candidates added so far; of tied ones the first.

    On a CPU candidates are scored in single precision, and those within its rounding error of the best k once more in
    double precision. On a GPU all are scored in double precision and sorted. Memory O(n · k) and a block.
    """

    def __init__(self, z: Tensor, k: int, rule: Rule):
        check_rule(rule)
        self.z, self.k, self.rule, self.seen = z, k, rule, 0
        part = _Rows if z.device.type == "cpu" else _SortedRows
        self.parts = [part(rows, k) for rows in z.split(QUERIES) if len(rows)]

    def add(self, psi: Tensor, diag: Tensor, squared: Tensor | None = None) -> None:
        """Add candidates: ψ̃(y) (c, p) of any precision, k(y, y) (c,) and, if already computed, ‖ψ̃(y)‖²."""
        squared = torch.linalg.vecdot(psi.double(), psi.double()) if squared is None else squared
        factor, offset = affine(self.rule, diag, squared)
        scaled = float((factor * squared.sqrt()).max())
        block = _Block(self.seen, psi, psi.float(), factor, offset, scaled, float(offset.abs().max()))
        for part in self.parts:
            part.add(block)
        self.seen += len(psi)

    def ranking(self) -> Ranking:
        """The best so far: k of them, or all if fewer were added."""
        if not self.parts:
            empty = self.z.new_empty(0, min(self.k, self.seen))
            return Ranking(empty.long(), empty)
        indices = torch.cat([part.indices for part in self.parts])
        scores = torch.cat([part.scores for part in self.parts]) + constant(self.rule, self.z)[:, None]
        finite = torch.isfinite(scores).all(dim=1)
        if not finite.all():
            at = int((~finite).nonzero()[0])
            raise InputError(f"The scores of candidates are not finite in row {at}. Rescale the outputs.")
        return Ranking(indices, scores)


class _Block(NamedTuple):
    """Candidates from ``start`` on."""

    start: int
    psi: Tensor
    single: Tensor
    factor: Tensor
    offset: Tensor
    largest_scaled: float  # largest factor · ‖ψ̃(y)‖
    largest_offset: float

    def scores(self, z: Tensor, at: slice = slice(None)) -> Tensor:  # (n, c)
        return (z @ self.psi[at].double().T).mul_(self.factor[at]).add_(self.offset[at])


class _SortedRows:
    """A scan in double precision, with a small sort for every block."""

    def __init__(self, z: Tensor, k: int):
        self.z, self.k = z, k
        self.scores = z.new_empty(len(z), 0)
        self.indices, self.ties = self.scores.long(), Ties(z.new_zeros(len(z), 1), z.new_zeros(len(z), 1))

    def add(self, block: _Block) -> None:
        scores = block.scores(self.z).nan_to_num_(-torch.inf, torch.inf, -torch.inf)
        if block.start == 0:
            self.ties = Ties.of(scores)
        found, columns = largest(scores, min(self.k, scores.shape[1]), self.ties)
        merged, places = torch.cat([self.scores, found], 1), torch.cat([self.indices, columns + block.start], 1)
        order = self.ties.compare(merged).sort(dim=1, descending=True, stable=True).indices[:, : self.k]
        self.scores, self.indices = merged.gather(1, order), places.gather(1, order)


class _Rows:
    """A scan in single precision, which finds the few candidates to score in double precision."""

    def __init__(self, z: Tensor, k: int):
        self.z, self.single, self.k = z, z.float(), k
        self.lengths = torch.linalg.vector_norm(z, dim=1)
        self.indices = torch.empty(len(z), 0, dtype=torch.long)
        self.scores = torch.empty(len(z), 0, dtype=torch.float64)
        self.ties = Ties(*torch.zeros(2, len(z), 1, dtype=torch.float64))

    def add(self, block: _Block) -> None:
        count = len(block.psi)
        if block.start == 0:
            self.ties = Ties.of(block.scores(self.z, slice(None, None, max(1, count // SAMPLE))))
        self._widen(min(self.k, block.start + count))
        scores = (self.single @ block.single.T).mul_(block.factor.float()).add_(block.offset.float())
        # rounding errors of single precision: p products and their sum, then the factor and the offset
        unit, p = torch.finfo(torch.float32).eps, self.z.shape[1]
        error = unit * ((p + 8) * self.lengths * block.largest_scaled + 4 * block.largest_offset)
        if block.start < self.k:  # not yet full: who is not among the best k of its block is not among the best k
            floor = scores.topk(min(self.k, count), dim=1).values[:, -1].double() - 2 * error
        else:
            floor = self.scores[:, -1] - error
        floor = floor.float().nextafter(torch.tensor(-torch.inf))
        above = (scores.amax(dim=1) >= floor).nonzero()[:, 0]
        if len(above):
            query, candidate = (scores[above] >= floor[above, None]).nonzero(as_tuple=True)
            query = above[query]
            exact = _score_in_double(self.z, block, query, candidate)
            self._merge(query, candidate + block.start, exact)

    def _widen(self, k: int) -> None:
        """Make room for k; only when that many candidates have come."""
        more = k - self.scores.shape[1]
        self.indices = F.pad(self.indices, (0, more), value=-1)
        self.scores = F.pad(self.scores, (0, more), value=-torch.inf)

    def _merge(self, query: Tensor, index: Tensor, score: Tensor) -> None:
        touched, place = query.unique(return_inverse=True)
        k = self.scores.shape[1]
        owner = torch.cat([torch.arange(len(touched)).repeat_interleave(k), place])
        index = torch.cat([self.indices[touched].reshape(-1), index])
        score = torch.cat([self.scores[touched].reshape(-1), score])
        rows = touched[owner]
        keys = Ties(self.ties.offset[rows], self.ties.unit[rows]).compare(score[:, None])[:, 0]
        order = np.lexsort((index.numpy(), -keys.numpy(), owner.numpy()))
        starts = np.searchsorted(owner.numpy()[order], np.arange(len(touched)))
        best = torch.from_numpy(order[starts[:, None] + np.arange(k)])
        self.indices[touched], self.scores[touched] = index[best], score[best]


def _score_in_double(z: Tensor, block: _Block, query: Tensor, candidate: Tensor) -> Tensor:  # (h,)
    parts = zip(query.split(PAIRS), candidate.split(PAIRS), strict=True)
    products = [torch.einsum("hp,hp->h", z[q], block.psi[c].double()) for q, c in parts]
    return torch.cat(products).mul_(block.factor[candidate]).add_(block.offset[candidate])


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
        """The outputs at some positions, with their coordinates."""
        psi, diag = self.coordinates()
        return EmbeddedOutputs(self.basis, take(self.outputs, at), coordinates=(psi[at], diag[at]), form=self.form)

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

    def top(self, z: Any, k: int, rule: Rule) -> Ranking:
        """The k best outputs for every row of z, exactly; of tied ones the first. Memory O(n · k) and a block."""
        scan = Scan(self.basis.check_coordinates(z), k, rule)
        self.add_to(scan)
        return scan.ranking()

    def add_to(self, scan: Scan) -> None:
        """Add the outputs to a scan, after those that it has seen."""
        for _, psi, diag in self.blocks():
            scan.add(psi, diag)

    def ranks(self, z: Any, truth: Tensor, rule: Rule) -> Tensor:  # (n,)
        """The rank of output ``truth[i]`` for row i of z among all outputs; see :func:`dsokr.metrics.ranks`."""
        z = self.basis.check_coordinates(z)
        truth = torch.as_tensor(truth, dtype=torch.long, device=z.device)
        if truth.shape != (len(z),):
            raise InputError(f"Ranks take the true output of each of the {len(z)} rows. Got {tuple(truth.shape)}.")
        wrong = ((truth < 0) | (truth >= len(self))).nonzero()
        if len(wrong):
            got = f"Got {int(truth[wrong[0]])} in row {int(wrong[0])}."
            raise InputError(f"The true candidate must be one of the {len(self)}, counted from 0. {got}")
        parts = [slice(start, start + QUERIES) for start in range(0, len(z), QUERIES)]
        if not self.keep:
            return self._stream_ranks(z, truth, parts, rule)
        found = [ranks(score(z[at], *self.coordinates(), rule), truth[at]) for at in parts]
        return torch.cat(found) if found else z.new_empty(0)

    def _stream_ranks(self, z: Tensor, truth: Tensor, parts: list[slice], rule: Rule) -> Tensor:  # (n,)
        """Ranks of the true outputs; all outputs are embedded once, block by block."""
        own, found = z.new_empty(len(z), 1), z.new_ones(len(z))
        ties: dict[int, Ties] = {}
        for at in parts:
            right = take(self.outputs, truth[at])
            own[at] = score_pairs(z[at], self.basis.embed(right), self.basis.diag(right), rule)[:, None]
        for where, psi, diag in self.blocks():
            for at in parts:
                scores = score(z[at], psi, diag, rule)
                if where.start == 0:
                    ties[at.start] = Ties.of(scores)
                mine, others = ties[at.start].compare(own[at]), ties[at.start].compare(scores)
                rows = ((truth[at] >= where.start) & (truth[at] < where.stop)).nonzero()[:, 0]
                others[rows, truth[at][rows] - where.start] = torch.nan  # neither better than itself nor equal
                found[at] += (others > mine).sum(dim=1) + (others == mine).sum(dim=1) / 2
        return found
