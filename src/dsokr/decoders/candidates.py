"""Decoding over a list of candidates."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.decoders.base import Decoder
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.errors import InputError, check_choice
from dsokr.outputs import Form, Outputs, canonical, count, take
from dsokr.rules import RULES, Rule


@dataclass(frozen=True)
class Candidates(Decoder):
    """The best-scoring output of a list: the distinct training outputs, or those given.

    Exact: all are scored in double precision, and of tied ones the first wins. ``rule`` says how outputs are scored,
    see :mod:`dsokr.rules`. ``"kernel"`` is the paper's; ``"auto"`` takes the one that does best on the validation
    pairs, and the paper's if there are none.

    >>> Candidates(rule="kernel")
    Candidates(rule='kernel')
    """

    rule: Rule | Literal["auto"] = "auto"
    outputs: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice(self, "rule", ("auto", *RULES))

    def alternatives(self) -> tuple[Decoder, ...]:
        return tuple(replace(self, rule=rule) for rule in RULES) if self.rule == "auto" else (self,)

    def candidates(self, outputs: Outputs, form: Form) -> tuple[Outputs, Form]:
        if self.outputs is None:
            return super().candidates(outputs, form)
        own, form = canonical(self.outputs, "candidates")
        return take(own, torch.arange(count(own))), form  # a copy, which its owner cannot change

    def scoring_rule(self) -> Rule:
        if self.rule == "auto":
            raise InputError("Candidates(rule='auto') is chosen by fit. Name a rule to decode without fitting.")
        return self.rule

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        best = known.top(z, 1, self.scoring_rule())
        return take(known.outputs, best.indices[:, 0]), best.scores[:, 0]
