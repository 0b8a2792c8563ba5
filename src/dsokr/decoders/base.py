"""Decoding: from coordinates in a basis back to outputs, and the decoder over a list of candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dsokr.basis import SketchedBasis
from dsokr.decoders.scan import QUERIES, EmbeddedOutputs, Ranking, count_in_blocks, top_of_blocks
from dsokr.errors import InputError, check_fields, check_k
from dsokr.kernels import Kernel, Normalized, NormalizedFeatures, Product, Scaled, Sum
from dsokr.outputs import Form, Outputs, canonical, concatenate, count, distinct, keys, take
from dsokr.rules import RULES, Rule, largest, score, score_pairs


class Decoded(NamedTuple):
    """One output per row of coordinates, or several for one row, in the form in which the user gave outputs."""

    outputs: Any
    scores: Tensor  # (n,), larger is better


class Found(NamedTuple):
    """The best outputs for several rows of coordinates: row after row, best first, in canonical form."""

    outputs: Outputs
    scores: Tensor  # (m,)
    rows: Tensor  # (m,): the row that an output is for


class Decoder(ABC):
    """Solves the pre-image problem: the output whose features are nearest to Σ_j z_j ẽ_j. Frozen; nothing is fitted.

    A new decoder defines ``solve``, and ``check`` or ``kernels`` if it does not work with every kernel. It defines
    ``search`` if it finds more outputs than the best one, and ``list_scores`` if all outputs can be listed.
    """

    kernels: ClassVar[tuple[type[Kernel], ...]] = ()  # kernels must be built from these; () allows any
    rated: ClassVar[int] = 1000  # at most so many inputs are decoded to compare two regressors, fewer if slow

    @abstractmethod
    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        """Find outputs, in canonical form, for the coordinates z (n, p), n ≥ 1, and their scores (n,)."""

    def search(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int) -> Found:
        """Find the k best distinct outputs for every row of z (n, p), n ≥ 1; by default of the known and solve's."""
        rule = self.scoring_rule()
        found, _ = self.solve(basis, z, known)
        return choose_best(z, known, known.top(z, k, rule), found, torch.arange(len(z)), rule, k)

    def list_scores(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Iterator[Tensor] | None:
        """The scores of all outputs that can be answers, (n, block) at a time; None if they are too many to list."""
        return None

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
        """The decoders that validation compares: one for each rule if the rule is "auto", else this one alone."""
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
        z = self._check_call(basis, z, known)
        if not len(z):
            return Decoded(known.form.restore(take(known.outputs, slice(0))), z.new_empty(0))
        outputs, scores = self.solve(basis, z, known)
        return Decoded(known.form.restore(outputs), _check_scores(scores))

    def best(self, basis: SketchedBasis, z: Any, known: EmbeddedOutputs, k: int) -> list[Decoded]:
        """The k best distinct outputs for every row of z (n, p), best first; fewer if the decoder finds no more.

        They are exactly the k best where the decoder says so, else the best that its search meets. The first
        scores at least as much as that of :meth:`decode`, and of tied outputs the known ones come first.
        """
        z, k = self._check_call(basis, z, known), check_k(k)
        if not len(z):
            return []
        outputs, scores, rows = self.search(basis, z, known.without_copies, k)
        ends, scores = rows.bincount(minlength=len(z)).cumsum(0).tolist(), _check_scores(scores)
        parts = (slice(start, end) for start, end in pairwise([0, *ends]))
        return [Decoded(known.form.restore(take(outputs, part)), scores[part]) for part in parts]

    def count(self, basis: SketchedBasis, z: Any, known: EmbeddedOutputs, threshold: Any) -> Tensor | None:  # (n,)
        """Count the outputs, of all there can be, that score at least ``threshold``: one number, or one per row (n,).

        Scores tied with the threshold, see :class:`dsokr.rules.Ties`, count. None if the outputs cannot be listed.
        """
        z = self._check_call(basis, z, known)
        least = torch.as_tensor(threshold).to(z)
        if least.shape not in ((), (len(z),)):
            raise InputError(f"threshold must be a number, or one for each of {len(z)} rows. Got {tuple(least.shape)}.")
        counts = []
        for rows, limits in zip(z.split(QUERIES), least.expand(len(z)).split(QUERIES), strict=True):
            blocks = self.list_scores(basis, rows, known.without_copies)
            if blocks is None:
                return None
            counts.append(count_in_blocks(blocks, limits))
        return torch.cat(counts)

    def prove(self, basis: SketchedBasis, z: Any, scores: Tensor) -> Tensor:  # (n,)
        """Whether no output at all can score better than ``scores`` (n,), those of answers to the rows of z (n, p).

        True where a score reaches its upper bound: ‖z‖² by the rule "kernel", 0 by "projected", ‖z‖ by "cosine". An
        answer without this proof may still be the best.
        """
        z = basis.check_coordinates(z)
        return scores.to(z) >= bound_scores(z, self.scoring_rule()) - bound_rounding(z)

    def _list_best(
        self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int
    ) -> tuple[np.ndarray, np.ndarray]:  # (m,), (m,)
        """The k best of all outputs for every row: their positions in the order of ``list_scores``, and their rows."""
        parts = [cast(Iterator[Tensor], self.list_scores(basis, rows, known)) for rows in z.split(QUERIES)]
        best = torch.cat([top_of_blocks(blocks, k) for blocks in parts]).cpu()
        return best.flatten().numpy(), rows_of(best).numpy()

    def _check_call(self, basis: SketchedBasis, z: Any, known: EmbeddedOutputs) -> Tensor:  # (n, p)
        self.check(basis.kernel)
        if not isinstance(known, EmbeddedOutputs):
            raise InputError(f"known must be EmbeddedOutputs(basis, outputs). Got {type(known).__name__}.")
        self.check_outputs(known.outputs, known.form)
        return basis.check_coordinates(z)


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
        return self.search(basis, z, known, 1)[:2]

    def search(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int) -> Found:
        best = known.top(z, k, self.scoring_rule())
        return Found(take(known.outputs, best.indices.flatten()), best.scores.flatten(), rows_of(best.indices))

    def list_scores(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Iterator[Tensor]:
        return (score(z, psi, diag, self.scoring_rule()) for _, psi, diag in known.blocks())


def _check_scores(scores: Tensor) -> Tensor:
    if scores.isnan().any():
        raise InputError("Scores overflow double precision: the predicted coordinates are too large.")
    return scores


def bound_scores(z: Tensor, rule: Rule) -> Tensor:  # (n,)
    """The largest score that any output can have: by Cauchy-Schwarz, and because k(y, y) ≥ ‖ψ̃(y)‖²."""
    squared = torch.linalg.vecdot(z, z)
    return {"kernel": squared, "projected": torch.zeros_like(squared), "cosine": squared.sqrt()}[rule]


def bound_rounding(z: Tensor) -> Tensor:  # (n,)
    """A bound on the rounding error of scores."""
    return 1e-9 * (1 + torch.linalg.vecdot(z, z))


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
    z: Tensor,
    known: EmbeddedOutputs,
    nearest: Ranking,
    found: Outputs,
    rows: Any,
    rule: Rule,
    k: int = 1,
    bonus: Any = 0.0,
) -> Found:
    """Choose the k best distinct outputs for every row of z, among its k nearest known ones and those found for it.

    ``rows`` says which row each found output is for. A ``bonus`` is added to the scores that are compared; it lists
    those of the known outputs, then those of the found. Of tied outputs the first comes first.
    """
    first = nearest.indices[:, :k]  # no column if nothing is known
    outputs = concatenate(take(known.outputs, first.flatten()), found)
    rows = torch.cat([rows_of(first), torch.as_tensor(rows).to(first)])
    new = score_pairs(z[rows[first.numel() :]], known.basis.embed(found), known.basis.diag(found), rule)
    scores = torch.cat([nearest.scores[:, :k].flatten(), new])
    order = rows.argsort(stable=True)
    if k > 1:
        pairs = list(zip(rows.tolist(), keys(outputs), strict=True))
        order = order[distinct([pairs[i] for i in order.tolist()]).to(order)]
    total, sizes = (scores + torch.as_tensor(bonus).to(z))[order], rows[order].bincount(minlength=len(z))
    table = pad_sequence(total.split(sizes.tolist()), batch_first=True, padding_value=-torch.inf)
    best, columns = largest(table, min(k, table.shape[1]))
    chosen = order[((sizes.cumsum(0) - sizes)[:, None] + columns)[best > -torch.inf]]
    return Found(take(outputs, chosen), scores[chosen], rows[chosen])


def rows_of(table: Tensor) -> Tensor:  # (n, k) -> (n · k,)
    """The row of every entry of a table."""
    return torch.arange(len(table), device=table.device).repeat_interleave(table.shape[1])
