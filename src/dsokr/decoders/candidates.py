"""Decoding over a list of candidates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from dsokr.basis import RULES, Rule, SketchedBasis, check_rule
from dsokr.decoders.base import Decoded, Decoder
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.errors import InputError
from dsokr.outputs import Outputs, as_outputs, owned, take


@dataclass(frozen=True)
class Candidates(Decoder):
    """The best-scoring output of a list: the distinct training outputs, or those given.

    Exact: all are scored, in double precision. Of those that differ by rounding alone the first wins.
    ``rule`` says how outputs are scored, see :func:`dsokr.basis.embedded_scores`. ``"kernel"`` is the paper's;
    ``"auto"`` takes the one that does best on the validation pairs, and the paper's if there are none.

    >>> Candidates(rule="kernel")
    Candidates(rule='kernel')
    """

    rule: Rule | Literal["auto"] = "auto"
    outputs: Outputs = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rule != "auto":
            check_rule(self.rule)

    def alternatives(self) -> tuple[Decoder, ...]:
        return tuple(replace(self, rule=rule) for rule in RULES) if self.rule == "auto" else (self,)

    def known(self, training_outputs: Outputs) -> Outputs:
        return (
            super().known(training_outputs) if self.outputs is None else owned(as_outputs(self.outputs, "candidates"))
        )

    def scoring_rule(self) -> Rule:
        if self.rule == "auto":
            raise InputError("Candidates(rule='auto') is settled by fit. Name a rule to decode without fitting.")
        return self.rule

    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        ranking = known.top(self.checked(basis, z, known), 1, self.scoring_rule())
        return Decoded(take(known.outputs, ranking.indices[:, 0]), ranking.scores[:, 0])
