"""Decoding: from coefficients in a basis back to outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from dsokr.basis import Rule, SketchedBasis
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.kernels import Kernel
from dsokr.outputs import Outputs, distinct, take


class Decoded(NamedTuple):
    """One output per row of coefficients, and the score it achieved (better when larger)."""

    outputs: Outputs
    scores: Tensor  # (n,)


class Decoder(ABC):
    """Solves the pre-image problem: the output whose features are nearest to Σ_j z_j ẽ_j. Frozen; nothing is fitted."""

    @abstractmethod
    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        """Outputs for the coefficients z (n, p). ``known`` holds the candidates, or where a search may start."""

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
