"""Decoding: from coordinates in a basis back to outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.decoders.scan import EmbeddedOutputs, Ranking
from dsokr.errors import InputError
from dsokr.kernels import Kernel, Normalized, NormalizedFeatures, Product, Scaled, Sum
from dsokr.outputs import Form, Outputs, concatenate, distinct, take
from dsokr.rules import Rule, compare, score_pairs


class Decoded(NamedTuple):
    """One output per row of coordinates, in the form in which the user gave outputs, and its score."""

    outputs: Any
    scores: Tensor  # (n,), larger is better


class Decoder(ABC):
    """Solves the pre-image problem: the output whose features are nearest to Σ_j z_j ẽ_j. Frozen; nothing is fitted.

    A new decoder defines ``solve``, and ``check`` if it does not work with every kernel.
    """

    @abstractmethod
    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        """Find outputs, in canonical form, for the coordinates z (n, p), n ≥ 1, and their scores (n,)."""

    def check(self, kernel: Kernel) -> None:  # noqa: B027 # most decoders take every kernel
        """Raise an ``InputError`` if the decoder cannot work with a basis of this kernel."""

    def check_outputs(self, outputs: Outputs, form: Form) -> None:  # noqa: B027 # likewise
        """Raise an ``InputError`` if the decoder cannot work with such outputs; called before anything is trained."""

    def scoring_rule(self) -> Rule:
        """The rule by which this decoder compares outputs, see :mod:`dsokr.rules`."""
        return "kernel"

    def alternatives(self) -> tuple[Decoder, ...]:
        """The decoders between which validation decides, if this one leaves something open."""
        return (self,)

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


def keep_better(
    basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, nearest: Ranking, found: Outputs, rule: Rule
) -> tuple[Outputs, Tensor]:
    """Return, for every row of z, what a search found, or the nearest known output if that scores as well."""
    before, after = nearest.scores[:, 0], score_pairs(z, basis.embed(found), basis.diag(found), rule)
    keys = compare(torch.stack([after, before], dim=1))
    better = keys[:, 0] > keys[:, 1]
    n = len(z)
    both = concatenate(found, take(known.outputs, nearest.indices[:, 0]))
    return take(both, torch.arange(n) + n * ~better.cpu()), torch.where(better, after, before)


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
    basis: SketchedBasis, z: Tensor, outputs: Outputs, owners: Any, rule: Rule, bonus: Any = 0.0
) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """For every row of z, the position of the output it owns with the best score plus bonus, and its score."""
    owners = torch.as_tensor(owners, device=z.device)
    scores = score_pairs(z[owners], basis.embed(outputs), basis.diag(outputs), rule)
    total = scores + torch.as_tensor(bonus, dtype=z.dtype, device=z.device)
    best = torch.full_like(z[:, 0], -torch.inf).scatter_reduce_(0, owners, total, "amax")
    at = torch.where(total == best[owners], torch.arange(len(total), device=z.device), len(total))
    chosen = torch.full_like(owners[: len(z)], len(total)).scatter_reduce_(0, owners, at, "amin")
    return chosen, scores[chosen]
