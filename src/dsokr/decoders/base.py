"""Decoding: from coefficients in a basis back to outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsokr.basis import Rule, SketchedBasis, embedded_scores
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.decoders.scan import Ranking
from dsokr.errors import InputError
from dsokr.kernels import Kernel
from dsokr.outputs import Outputs, chosen, distinct, take
from dsokr.rounding import single

PAIR_BLOCK = 64  # side of the square blocks of scores whose diagonal is used


class Decoded(NamedTuple):
    """One output per row of coefficients, and the score it achieved (better when larger)."""

    outputs: Outputs
    scores: Tensor  # (n,)


class Decoder(ABC):
    """Solves the pre-image problem: the output whose features are nearest to Σ_j z_j ẽ_j. Frozen; nothing is fitted."""

    @abstractmethod
    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        """Outputs for the coefficients z (n, p). ``known`` holds the candidates, or where a search may start."""

    def checked(self, basis: SketchedBasis, z: Any, known: EmbeddedOutputs) -> Tensor:  # (n, p)
        """The coefficients, if basis, coefficients and candidates can be decoded; else a sentence on why not."""
        self.check(basis.kernel)
        if not isinstance(known, EmbeddedOutputs):
            raise InputError(f"known must be EmbeddedOutputs(basis, outputs). Got {type(known).__name__}.")
        return basis.checked(z)

    def check(self, kernel: Kernel) -> None:  # noqa: B027 # most decoders of a list have nothing to refuse
        """Say in an ``InputError`` if coordinates in a basis of this kernel are not for this decoder."""

    def scoring_rule(self) -> Rule:
        """How this decoder scores outputs, see :func:`dsokr.basis.embedded_scores`."""
        return "kernel"

    def alternatives(self) -> tuple[Decoder, ...]:
        """The decoders between which validation decides when this one leaves something open; else itself."""
        return (self,)

    def known(self, training_outputs: Outputs) -> Outputs:
        """The outputs to embed once and keep: the distinct ones seen in training, unless the decoder brings its own."""
        return take(training_outputs, distinct(training_outputs))


def best_of(
    basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, nearest: Ranking, rule: Rule, found: Outputs
) -> Decoded:
    """For every row of z what was found for it, or the nearest of the known outputs if that scores as well."""
    before, scores = nearest.scores[:, 0], _paired_scores(basis, z, found, rule)
    after, at_first = single(torch.stack([scores, before], dim=1)).unbind(dim=1)
    better = after > at_first  # equal in single precision is equal, as in known.top
    outputs = chosen(better, found, take(known.outputs, nearest.indices[:, 0]))
    return Decoded(outputs, torch.where(better, scores, before))


def _paired_scores(basis: SketchedBasis, z: Tensor, ys: Outputs, rule: Rule) -> Tensor:  # (n,)
    embedding, diag = basis.embed(ys), basis.diag(ys)
    parts = torch.arange(len(z), device=z.device).split(PAIR_BLOCK)
    return torch.cat([embedded_scores(z[at], embedding[at], diag[at], rule).diagonal() for at in parts])
