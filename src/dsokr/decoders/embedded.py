"""Outputs together with their coordinates in a basis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dsokr.basis import BLOCK, SketchedBasis
from dsokr.decoders.scan import Ranking, Scan
from dsokr.errors import InputError
from dsokr.metrics import ranks
from dsokr.outputs import Form, blocks, canonical, count, take
from dsokr.rules import Rule, Ties, score, score_pairs

QUERY_BLOCK = 1024  # rows of coordinates scored at once


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
        parts = [slice(start, start + QUERY_BLOCK) for start in range(0, len(z), QUERY_BLOCK)]
        found = [self._rank(z[at], truth[at], rule) for at in parts]
        return torch.cat(found) if found else z.new_empty(0)

    def _rank(self, z: Tensor, truth: Tensor, rule: Rule) -> Tensor:  # (n,)
        if self.keep:
            return ranks(score(z, *self.coordinates(), rule), truth)
        return self._count_better(z, truth, rule)

    def _count_better(self, z: Tensor, truth: Tensor, rule: Rule) -> Tensor:  # (n,)
        """Ranks of the true outputs, block by block."""
        right = take(self.outputs, truth)
        own = score_pairs(z, self.basis.embed(right), self.basis.diag(right), rule)[:, None]
        found, ties = z.new_ones(len(z)), None
        for where, psi, diag in self.blocks():
            scores = score(z, psi, diag, rule)
            ties = Ties.of(scores) if ties is None else ties
            mine, others = ties.compare(own), ties.compare(scores)
            rows = ((truth >= where.start) & (truth < where.stop)).nonzero()[:, 0]
            others[rows, truth[rows] - where.start] = torch.nan  # neither better than itself nor equal
            found += (others > mine).sum(dim=1) + (others == mine).sum(dim=1) / 2
        return found
