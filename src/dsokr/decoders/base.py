"""Decoding: from coordinates in a basis back to outputs, and the decoder over a list of candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dsokr.basis import SketchedBasis
from dsokr.decoders.scan import EmbeddedOutputs, Ranking
from dsokr.errors import InputError, check_fields
from dsokr.kernels import Kernel, Normalized, NormalizedFeatures, Product, Scaled, Sum
from dsokr.outputs import Form, Outputs, as_outputs, canonical, concatenate, count, distinct, positions, take
from dsokr.regressors.base import Monitor
from dsokr.rules import RULES, Rule, largest, score_pairs


class Decoded(NamedTuple):
    """One output per row of coordinates, in the form in which the user gave outputs, and its score."""

    outputs: Any
    scores: Tensor  # (n,), larger is better


class Decoder(ABC):
    """Solves the pre-image problem: the output whose features are nearest to Σ_j z_j ẽ_j. Frozen; nothing is fitted.

    A new decoder defines ``solve``, and ``check`` or ``kernels`` if it does not work with every kernel.
    """

    kernels: ClassVar[tuple[type[Kernel], ...]] = ()  # of which kernels must be built; () for any

    @abstractmethod
    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        """Find outputs, in canonical form, for the coordinates z (n, p), n ≥ 1, and their scores (n,)."""

    def check(self, kernel: Kernel) -> None:
        """Raise an ``InputError`` if the decoder cannot work with a basis of this kernel."""
        if self.kernels and not is_built_from(kernel, *self.kernels):
            raise InputError(
                f"{type(self).__name__} decodes bases of the {', '.join(kind.__name__ for kind in self.kernels)} "
                f"kernels, their sums, products, multiples and normalised forms. Got {kernel}. Use Candidates()."
            )

    def check_outputs(self, outputs: Outputs, form: Form) -> None:  # noqa: B027 # most decoders take all
        """Raise an ``InputError`` if the decoder cannot work with such outputs; called before anything is trained."""

    def scoring_rule(self) -> Rule:
        """The rule by which this decoder compares outputs, see :mod:`dsokr.rules`."""
        rule: Rule | Literal["auto"] = getattr(self, "rule", "kernel")
        if rule == "auto":
            raise InputError(f"{type(self).__name__}(rule='auto') is chosen by fit. Name a rule to decode without it.")
        return rule

    def alternatives(self) -> tuple[Decoder, ...]:
        """The decoders between which validation decides, if this one leaves the rule open."""
        return (
            tuple(replace(cast(Any, self), rule=rule) for rule in RULES)
            if getattr(self, "rule", None) == "auto"
            else (self,)
        )

    def candidates(self, outputs: Outputs, form: Form) -> tuple[Outputs, Form]:
        """The outputs to embed and keep: the distinct training outputs, unless the decoder brings its own."""
        return take(outputs, distinct(outputs)), form

    def decode(self, basis: SketchedBasis, z: Any, known: EmbeddedOutputs) -> Decoded:
        """Outputs for the coordinates z (n, p). ``known`` holds the candidates, or where a search starts."""
        self.check(basis.kernel)
        if not isinstance(known, EmbeddedOutputs):
            raise InputError(f"known must be EmbeddedOutputs(basis, outputs). Got {type(known).__name__}.")
        self.check_outputs(known.outputs, known.form)
        z = basis.check_coordinates(z)
        if not len(z):
            return Decoded(known.form.restore(take(known.outputs, slice(0))), z.new_empty(0))
        outputs, scores = self.solve(basis, z, known)
        return Decoded(known.form.restore(outputs), scores)


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
        check_fields(self)

    def candidates(self, outputs: Outputs, form: Form) -> tuple[Outputs, Form]:
        if self.outputs is None:
            return super().candidates(outputs, form)
        own, form = canonical(self.outputs, "candidates")
        return take(own, torch.arange(count(own))), form  # a copy, which its owner cannot change

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        best = known.top(z, 1, self.scoring_rule())
        return take(known.outputs, best.indices[:, 0]), best.scores[:, 0]


def evaluate_decoder(
    basis: SketchedBasis, known: EmbeddedOutputs, form: Form, monitor: Monitor, Y: Outputs, z: Tensor, decoder: Decoder
) -> Tensor:  # (n,), or (1,)
    """How good coordinates of inputs are with a decoder, by a regressor's monitor; Y are the true outputs."""
    if monitor == "mrr":
        return known.ranks(z, positions(Y, known.outputs), decoder.scoring_rule()).reciprocal()
    predicted = decoder.decode(basis, z, known).outputs
    if callable(monitor):
        return torch.tensor([float(monitor(predicted, form.restore(Y)))], dtype=torch.float64)
    return -basis.kernel.squared_distances(as_outputs(predicted), Y)


def combine_anchors(basis: SketchedBasis, z: Tensor) -> Tensor:  # (n, p) -> (n, r)
    """c = (Ω R)ᵀ z, so that the predicted function is h = Σ_j c_j k(·, a_j) over the anchors a_j."""
    return z @ basis.projection if basis.weights is None else z @ basis.projection @ basis.weights


def is_built_from(kernel: Kernel, *kinds: type[Kernel]) -> bool:
    """Whether a kernel is one of these kinds, or made of them by sums, products, scaling and normalisation."""
    if isinstance(kernel, Sum | Product):
        return all(is_built_from(part, *kinds) for part in kernel.kernels)
    if isinstance(kernel, Scaled | Normalized | NormalizedFeatures):
        return is_built_from(kernel.kernel, *kinds)
    return isinstance(kernel, kinds)


def choose_best(
    z: Tensor, known: EmbeddedOutputs, nearest: Ranking, found: Outputs, owners: Any, rule: Rule, bonus: Any = 0.0
) -> tuple[Outputs, Tensor]:  # (n,)
    """For every row of z the best of the nearest known output and those found for it, and its score.

    ``owners`` are the rows that outputs were found for. A ``bonus`` is added to the scores that are compared, first of
    the known outputs and then of those found. Of tied outputs the first is returned.
    """
    first = nearest.indices[:, :1]  # no column if nothing is known
    outputs = concatenate(take(known.outputs, first.flatten()), found)
    owners = torch.cat([first.new_tensor(range(first.numel())), torch.as_tensor(owners).to(first)])
    new = score_pairs(z[owners[first.numel() :]], known.basis.embed(found), known.basis.diag(found), rule)
    scores = torch.cat([nearest.scores[:, :1].flatten(), new])
    total, order, sizes = scores + torch.as_tensor(bonus).to(z), owners.argsort(stable=True), owners.bincount()
    table = pad_sequence(total[order].split(sizes.tolist()), batch_first=True, padding_value=-torch.inf)
    chosen = order[sizes.cumsum(0) - sizes + largest(table, 1)[1][:, 0]]
    return take(outputs, chosen), scores[chosen]
