"""Several models as one: their rankings or scores are combined, since their bases may differ."""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dsokr.decoders import EmbeddedOutputs, Ranking
from dsokr.errors import InputError, check_k
from dsokr.estimator import DSOKR
from dsokr.outputs import canonical, keys, take, with_index_of
from dsokr.rules import largest, score, sort_keys

Combine = Literal["mean rank", "mean score", "max score"]
COMBINATIONS: tuple[Combine, ...] = get_args(Combine)

QUERY_BLOCK = 256  # inputs whose scores for all candidates are held at once


class Ensemble:
    """Fitted models with different draws, seeds, kernels or regressors, combined.

    Parameters
    ----------
    members : fitted :class:`DSOKR` models. Their bases may differ in every way: only scores of outputs are combined.
    combine : "mean rank" averages the members' ranks, "mean score" their scores; "max score" takes the largest score.
    weights : of the members in a mean; equal by default.
    standardize : scale every member's scores of an input to mean 0 and standard deviation 1 over the candidates first,
        which makes scores of different kernels comparable.

    >>> import numpy as np
    >>> from dsokr import DSOKR, Ensemble, Training, kernels, networks, sketches
    >>> from dsokr.regressors import Neural
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> Y = (X > 0).astype(int)
    >>> regressor = Neural(networks.MLP((8,)), training=Training(epochs=2))
    >>> models = [DSOKR(kernels.Linear(), sketches.SubSample(4), regressor, random_state=seed).fit(X, Y)
    ...           for seed in range(3)]
    >>> Ensemble(models, "mean score").predict(X[:5]).shape
    (5, 2)
    """

    def __init__(
        self,
        members: Sequence[DSOKR],
        combine: Combine = "mean score",
        *,
        weights: Sequence[float] | None = None,
        standardize: bool = False,
    ):
        self.members = tuple(members)
        self.combine, self.weights, self.standardize = combine, weights, standardize
        if not self.members:
            raise InputError("An ensemble needs at least one member.")
        for number, member in enumerate(self.members):
            if not isinstance(member, DSOKR) or not hasattr(member, "known_"):
                raise InputError(f"Members of an ensemble must be fitted DSOKR models. Got {member!r} at {number}.")
        self._aligned: tuple[list[EmbeddedOutputs], list[EmbeddedOutputs]] = [], []  # as known, and in one order
        check_combination(combine)
        if weights is not None and combine == "max score":
            raise InputError("weights are for means. Got weights with combine='max score'.")
        shares = [1.0] * len(self.members) if weights is None else list(weights)
        if len(shares) != len(self.members) or not (min(shares) >= 0 and 0 < sum(shares) < math.inf):
            raise InputError(
                f"weights must be one number for each of the {len(self.members)} members, none negative and not all 0. "
                f"Got {shares}."
            )

    def scores(self, X: Any, candidates: Any = None) -> Tensor:  # (n, c)
        """The combined score of every candidate for every input; larger is better."""
        return torch.cat(list(self._blocks(X, candidates)))

    def rank(self, X: Any, candidates: Any = None, k: int = 10) -> Ranking:
        """The k best candidates for every input, best first, of equal ones the first."""
        k = check_k(k)
        found = [largest(scores, min(k, scores.shape[1])) for scores in self._blocks(X, candidates)]
        values, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Ranking(indices, values)

    def predict(self, X: Any) -> Any:
        """The best of the known outputs, which must be the same for all members."""
        known = self.members[0].known_
        return with_index_of(X, known.form.restore(take(known.outputs, self.rank(X, k=1).indices[:, 0])))

    def _blocks(self, X: Any, candidates: Any) -> Iterator[Tensor]:
        """Combined scores, a few inputs at a time."""
        known = self._align() if candidates is None else self._embed(candidates)
        z = [member.coefficients(X) for member in self.members]
        rules = [member.decoder_.scoring_rule() for member in self.members]
        for part in zip(*(one.split(QUERY_BLOCK) for one in z), strict=True):
            each = zip(part, known, rules, strict=True)
            scores = [score(one, *its.coordinates(), rule).to(z[0].device) for one, its, rule in each]
            yield combine_scores(scores, self.combine, self.weights, self.standardize)

    def _align(self) -> list[EmbeddedOutputs]:
        """Return the known outputs of every member in the order of the first's; anew if one was fitted again."""
        known = [member.known_ for member in self.members]
        if known != self._aligned[0]:  # compared by identity
            self._aligned = known, self._order(known)
        return self._aligned[1]

    def _order(self, known: list[EmbeddedOutputs]) -> list[EmbeddedOutputs]:
        first, *others = ([*keys(one.outputs)] for one in known)
        for number, other in enumerate(others, start=1):
            if set(other) != set(first):
                raise InputError(f"Members 0 and {number} were trained on different outputs: pass candidates.")
        if all(other == first for other in others):
            return known
        return self._embed(known[0].form.restore(known[0].outputs))

    def _embed(self, candidates: Any) -> list[EmbeddedOutputs]:
        outputs, form = canonical(candidates, "candidates")
        return [EmbeddedOutputs(member.basis_, outputs, form=form) for member in self.members]


def check_combination(combine: str) -> None:
    if combine not in COMBINATIONS:
        raise InputError(f"combine must be one of {', '.join(map(repr, COMBINATIONS))}. Got {combine!r}.")


def combine_scores(
    scores: Sequence[Tensor], combine: Combine, weights: Sequence[float] | None = None, standardize: bool = False
) -> Tensor:  # each (n, c)
    """Combine members' scores of the same candidates into one score; larger is better.

    >>> a, b = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 10.0, 1.0]])
    >>> combine_scores([a, b], "mean rank"), combine_scores([a, b], "max score")
    (tensor([[-2.0000, -1.5000, -2.5000]]), tensor([[ 3., 10.,  1.]]))
    """
    check_combination(combine)
    if standardize:
        scores = [_standardize(s) for s in scores]
    if combine == "max score":
        return reduce(torch.maximum, scores)
    if combine == "mean rank":
        scores = [-all_ranks(s).to(s.dtype) for s in scores]
    shares = torch.tensor([1.0] * len(scores) if weights is None else weights, dtype=torch.float64)
    return reduce(torch.add, (share * s for share, s in zip((shares / shares.sum()).tolist(), scores, strict=True)))


def _standardize(scores: Tensor) -> Tensor:  # (n, c)
    """Scale every row to mean 0 and standard deviation 1; to zeros if its scores are equal but for rounding."""
    spread = scores.std(dim=1, correction=0, keepdim=True)
    is_noise = spread <= 4 * torch.finfo(scores.dtype).eps * scores.abs().amax(dim=1, keepdim=True)
    return ((scores - scores.mean(dim=1, keepdim=True)) / spread).masked_fill(is_noise, 0.0)


def all_ranks(scores: Tensor) -> Tensor:  # (n, c)
    """The rank of every candidate in its row, 1 for the best; tied candidates share their mean rank."""
    losses = -sort_keys(scores)
    ordered = losses.sort(dim=1).values
    better, up_to = (torch.searchsorted(ordered, losses, side=side) for side in ("left", "right"))
    return (better + 1 + up_to).double() / 2
