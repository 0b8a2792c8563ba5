"""Outputs together with their coordinates in a basis."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dsokr.basis import BLOCK, Rule, SketchedBasis, embedded_scores
from dsokr.decoders.scan import Ranking, Scan
from dsokr.errors import InputError
from dsokr.metrics import ranks
from dsokr.outputs import Outputs, as_outputs, blocks, count, take
from dsokr.rounding import LARGE, SMALL, Common, beyond, single

QUERY_BLOCK = 1024  # rows of coefficients scored at once against a block of outputs


class EmbeddedOutputs:
    """Candidates for decoding: the outputs, their coordinates ψ̃(y) and k(y, y).

    With ``keep`` the coordinates are computed at the first use and held, n × p numbers; without, block by block each
    time, so that memory does not grow with the number of outputs. Who has them already passes ``coordinates``.
    """

    def __init__(
        self,
        basis: SketchedBasis,
        outputs: Outputs,
        keep: bool = True,
        coordinates: tuple[Tensor, Tensor] | None = None,  # (c, p), (c,)
    ):
        self.basis, self.outputs, self.keep = basis, as_outputs(outputs, "candidates"), keep
        self._held = coordinates

    def __len__(self) -> int:
        return count(self.outputs)

    def part(self, at: Tensor) -> EmbeddedOutputs:
        """The outputs at some places, with the coordinates that they have."""
        embedding, diag = self.coordinates()
        return EmbeddedOutputs(self.basis, take(self.outputs, at), coordinates=(embedding[at], diag[at]))

    def coordinates(self) -> tuple[Tensor, Tensor]:  # (c, p), (c,)
        """ψ̃(y) and k(y, y) of all the outputs."""
        if self._held is None:
            self._held = self.basis.embed(self.outputs), self.basis.diag(self.outputs)
        return self._held

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Positions, coordinates and k(y, y) of consecutive outputs."""
        if self.keep:
            embedding, diag = self.coordinates()
            for start in range(0, len(self), BLOCK):
                where = slice(start, start + BLOCK)
                yield where, embedding[where], diag[where]
        else:
            for where, block in blocks(self.outputs, BLOCK):
                yield where, self.basis.embed(block), self.basis.diag(block)

    def top(self, z: Tensor, k: int, rule: Rule) -> Ranking:
        """The k best outputs for every row of z, exactly; of equal ones the first. Memory O(n · k) and a block."""
        scan = Scan(self.basis.checked(z), k, rule)
        self.add_to(scan)
        return scan.ranking()

    def add_to(self, scan: Scan) -> None:
        """Let a scan see the outputs, after those that it has seen already."""
        for _, embedding, diag in self.blocks():
            norm = torch.linalg.vector_norm(embedding, dim=1)
            scan.add(embedding, diag.cpu().numpy(), norm.cpu().numpy())

    def ranks(self, z: Tensor, truth: Tensor, rule: Rule) -> Tensor:  # (n,)
        """The rank of output ``truth[i]`` for row i of z among all the outputs; see :func:`dsokr.metrics.ranks`."""
        z, truth = self.basis.checked(z), self._places(truth, len(z))
        if not self.keep:
            return self._streamed_ranks(z, truth, rule)
        parts = torch.arange(len(z), device=z.device).split(QUERY_BLOCK)
        return torch.cat([ranks(embedded_scores(z[at], *self.coordinates(), rule), truth[at]) for at in parts])

    def _places(self, truth: Tensor, n: int) -> Tensor:  # (n,)
        truth = torch.as_tensor(truth, dtype=torch.long, device=self.basis.device)
        if truth.shape != (n,):
            raise InputError(f"Ranks take the true output of each of the {n} rows. Got shape {tuple(truth.shape)}.")
        wrong = (truth < 0) | (truth >= len(self))
        if wrong.any():
            at = int(wrong.nonzero()[0])
            got = f"Got {int(truth[at])} in row {at}."
            raise InputError(f"The true candidate must be one of the {len(self)}, counted from 0. {got}")
        return truth

    def _streamed_ranks(self, z: Tensor, truth: Tensor, rule: Rule) -> Tensor:  # (n,)
        """Block by block, and once more if the scores turn out to need another unit; see :mod:`dsokr.rounding`."""
        own = z.new_empty(len(z), 1)
        for at in _parts(len(z)):
            right = take(self.outputs, truth[at])
            scores = embedded_scores(z[at], self.basis.embed(right), self.basis.diag(right), rule)
            own[at] = scores.diagonal()[:, None]
        found, size = self._counted(z, truth, own, None, rule)
        if ((size < LARGE) & ((size > SMALL) | (size == 0))).all():
            return found
        return self._counted(z, truth, own, size, rule)[0]

    def _counted(
        self, z: Tensor, truth: Tensor, own: Tensor, size: Tensor | None, rule: Rule
    ) -> tuple[Tensor, Tensor]:  # (n,), (n, 1)
        """The ranks, if rows have scores up to ``size`` (None: none needs another unit), and the size they have."""
        found, most, common = z.new_ones(len(z)), torch.zeros_like(own), {}
        for where, embedding, diag in self.blocks():
            for at in _parts(len(z)):
                scores = embedded_scores(z[at], embedding, diag, rule)
                if where.start == 0:
                    common[at.start] = Common.of(scores)
                both = beyond(torch.cat([own[at], scores], dim=1), common[at.start])
                most[at] = most[at].maximum(_size(both, at.start))
                if size is None:
                    mine, others = both.float().tensor_split((1,), dim=1)
                else:
                    _, mine, others = single(torch.cat([size[at], both], dim=1)).tensor_split((1, 2), dim=1)
                right = ((truth[at] >= where.start) & (truth[at] < where.stop)).nonzero()[:, 0]
                others[right, truth[at][right] - where.start] = torch.nan  # neither better than itself nor equal
                found[at] += (others > mine).sum(dim=1) + (others == mine).sum(dim=1) / 2
        return found, most


def _size(scores: Tensor, first: int) -> Tensor:  # (n, c) -> (n, 1)
    """The size of the largest finite score of every row."""
    least, most = torch.aminmax(scores, dim=1, keepdim=True)
    size = torch.maximum(-least, most)
    if size.isnan().any():
        raise InputError(f"Scores must not be NaN. Got NaN in row {first + int(size.isnan().nonzero()[0, 0])}.")
    return scores.masked_fill(scores.isinf(), 0.0).abs().amax(dim=1, keepdim=True) if size.isinf().any() else size


def _parts(n: int) -> Iterator[slice]:
    """Rows of coefficients that are scored at once."""
    return (slice(start, start + QUERY_BLOCK) for start in range(0, n, QUERY_BLOCK))
