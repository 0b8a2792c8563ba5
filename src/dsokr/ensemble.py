"""Several models as one: their rankings or their scores are combined, never their coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dsokr.basis import embedded_scores
from dsokr.decoders import EmbeddedOutputs, Ranking, largest
from dsokr.errors import InputError
from dsokr.estimator import DSOKR
from dsokr.outputs import Outputs, as_outputs, take
from dsokr.rounding import single

Combine = Literal["mean rank", "mean score", "max score"]
COMBINATIONS: tuple[Combine, ...] = get_args(Combine)

QUERY_BLOCK = 256  # inputs whose scores for all candidates are held at once


class Ensemble:
    """Fitted models with different draws, seeds, kernels or networks, asked together.

    Parameters
    ----------
    members : fitted :class:`DSOKR` models. Their bases may differ in every way: only what they say of whole outputs is
        combined.
    combine : "mean rank" adds up the members' ranks (the best is smallest), "mean score" their scores, and "max score"
        takes each candidate's largest.
    weights : of the members in a mean; by default all count the same.
    standardize : bring every member's scores of an input to mean 0 and spread 1 over the candidates first, which scores
        of different kernels need to be comparable.

    >>> import numpy as np
    >>> from dsokr import DSOKR, Ensemble, Training, kernels, networks, sketches
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> Y = (X > 0).astype(int)
    >>> models = [DSOKR(kernels.Linear(), sketches.SubSample(4), networks.MLP((8,)), random_state=seed,
    ...                 training=Training(epochs=2)).fit(X, Y) for seed in range(3)]
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
        self.members, self.combine = tuple(members), combine
        self.weights, self.standardize = weights, standardize
        if not self.members:
            raise InputError("An ensemble needs at least one member.")
        check_combination(combine)
        if weights is not None and (len(weights) != len(self.members) or min(weights) < 0 or not sum(weights)):
            raise InputError(
                f"weights must be one number for each of the {len(self.members)} members, none negative and not all 0. "
                f"Got {list(weights)}."
            )

    def scores(self, X: Any, candidates: Outputs | None = None) -> Tensor:  # (n, c)
        """The combined score of every candidate for every input; larger is better."""
        return torch.cat(list(self._blocks(X, candidates)[0]))

    def rank(self, X: Any, candidates: Outputs | None = None, k: int = 10) -> Ranking:
        """The k best candidates for every input, best first, of equal ones the first."""
        blocks, c = self._blocks(X, candidates)
        found = [largest(scores, min(k, c)) for scores in blocks]
        values, indices = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Ranking(indices, values)

    def predict(self, X: Any) -> Outputs:
        """The best of the candidates that the members know from training, which must be the same for all."""
        ranking = self.rank(X, k=1)
        return take(self.members[0].known_.outputs, ranking.indices[:, 0])

    def _blocks(self, X: Any, candidates: Outputs | None) -> tuple[Iterator[Tensor], int]:
        """Combined scores, a few inputs at a time, and the number of candidates."""
        known = [self._known(member, candidates) for member in self.members]
        sizes = {len(each) for each in known}
        if len(sizes) > 1:
            raise InputError(f"The members know different numbers of candidates, {sorted(sizes)}: pass candidates.")
        z = [member.coefficients(X) for member in self.members]
        rules = [member.decoder_.scoring_rule() for member in self.members]

        def blocks() -> Iterator[Tensor]:
            for rows in torch.arange(len(z[0])).split(QUERY_BLOCK):
                scores = [
                    embedded_scores(one[rows.to(one.device)], *its.coordinates(), rule)
                    for one, its, rule in zip(z, known, rules, strict=True)
                ]
                yield combined([s.to(scores[0].device) for s in scores], self.combine, self.weights, self.standardize)

        return blocks(), sizes.pop()

    @staticmethod
    def _known(member: DSOKR, candidates: Outputs | None) -> EmbeddedOutputs:
        if candidates is None:
            return member.known_
        return EmbeddedOutputs(member.basis_, as_outputs(candidates, "candidates"))


def check_combination(combine: str) -> None:
    if combine not in COMBINATIONS:
        raise InputError(f"combine must be one of {', '.join(map(repr, COMBINATIONS))}. Got {combine!r}.")


def combined(
    scores: Sequence[Tensor],
    combine: Combine,
    weights: Sequence[float] | None = None,
    standardize: bool = False,
) -> Tensor:  # each (n, c)
    """Members' scores of the same candidates as one score, better when larger.

    >>> a, b = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[0.0, 10.0, 1.0]])
    >>> combined([a, b], "mean rank"), combined([a, b], "max score")
    (tensor([[-2.0000, -1.5000, -2.5000]]), tensor([[ 3., 10.,  1.]]))
    """
    if standardize:
        scores = [(s - s.mean(dim=1, keepdim=True)) / s.std(dim=1, keepdim=True).clamp(min=1e-12) for s in scores]
    if combine == "max score":
        return reduce(torch.maximum, scores)
    if combine == "mean rank":
        scores = [-all_ranks(s).to(s.dtype) for s in scores]
    shares = torch.ones(len(scores)) if weights is None else torch.tensor(weights, dtype=torch.float32)
    return reduce(torch.add, (share * s for share, s in zip((shares / shares.sum()).tolist(), scores, strict=True)))


def all_ranks(scores: Tensor) -> Tensor:  # (n, c)
    """The rank of every candidate in its row, 1 for the best; those equal in single precision share their mean rank."""
    ordered, order = single(scores).sort(dim=1, descending=True)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    group = new.cumsum(dim=1) - 1  # equal scores stand side by side
    places = torch.arange(1, scores.shape[1] + 1, device=scores.device).expand_as(scores).float()
    sums, sizes = torch.zeros_like(places), torch.zeros_like(places)
    sums.scatter_add_(1, group, places)
    sizes.scatter_add_(1, group, torch.ones_like(places))
    mean = (sums / sizes.clamp(min=1)).gather(1, group)
    return torch.empty_like(mean).scatter_(1, order, mean)
