"""Outputs together with their coordinates in a basis."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dsokr.basis import BLOCK, Rule, SketchedBasis, embedded_scores
from dsokr.decoders.scan import Ranking, Scan
from dsokr.metrics import ranks
from dsokr.outputs import Outputs, as_outputs, blocks, count, take
from dsokr.rounding import single

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
        k = min(k, len(self))
        z = self.basis.checked(z)
        if z.device.type == "cpu":
            scan = Scan(z, k, rule)
            for _, embedding, diag in self.blocks():
                scan.add(embedding, diag.numpy(), torch.linalg.vector_norm(embedding, dim=1).numpy())
            return scan.ranking()
        return self._top_by_sorting(z, k, rule)

    def _top_by_sorting(self, z: Tensor, k: int, rule: Rule) -> Ranking:
        """All in double precision, which a GPU is good at, with a small sort for every block."""
        # ‖z‖² is in all projected scores of a row; near a score of zero it would hide which ones are equal
        constant = torch.linalg.vecdot(z, z)[:, None] * (rule == "projected")
        best = torch.full((len(z), k), -torch.inf, dtype=z.dtype, device=z.device)
        at = torch.zeros((len(z), k), dtype=torch.long, device=z.device)
        for where, embedding, diag in self.blocks():
            for rows in torch.arange(len(z), device=z.device).split(QUERY_BLOCK):
                scores = embedded_scores(z[rows], embedding, diag, rule).add_(constant[rows])
                found, columns = largest(scores, min(k, scores.shape[1]))
                merged = torch.cat([best[rows], found], dim=1)
                places = torch.cat([at[rows], columns + where.start], dim=1)
                order = single(merged).sort(dim=1, descending=True, stable=True).indices[:, :k]
                best[rows], at[rows] = merged.gather(1, order), places.gather(1, order)
        return Ranking(at, best.sub_(constant))

    def ranks(self, z: Tensor, truth: Tensor, rule: Rule) -> Tensor:  # (n,)
        """The rank of output ``truth[i]`` for row i of z among all the outputs; see :func:`dsokr.metrics.ranks`."""
        z, truth = self.basis.checked(z), truth.to(self.basis.device)
        parts = torch.arange(len(z), device=z.device).split(QUERY_BLOCK)
        return torch.cat([ranks(embedded_scores(z[at], *self.coordinates(), rule), truth[at]) for at in parts])


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:  # (n, k), (n, k)
    """The k largest of every row, with their columns; of equal ones the first.

    Scores that agree in single precision are equal: the last bits of a sum depend on where in a block it stands, so
    that without this even two copies of one output would differ. ``topk`` itself would take any of several equal ones.
    """
    keys = single(scores)
    least = keys.topk(k, dim=1).values[:, -1:]
    above, equal = keys > least, keys == least
    chosen = above | (equal & (equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))
    columns = chosen.nonzero()[:, 1].reshape(len(scores), k)
    order = keys.gather(1, columns).sort(dim=1, descending=True, stable=True).indices
    columns = columns.gather(1, order)
    return scores.gather(1, columns), columns
