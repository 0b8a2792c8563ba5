"""From questions to ranked candidates; no web in here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dsokr.basis import Rule
from dsokr.errors import DSOKRError, InputError
from dsokr.index import CandidateIndex


class Model(Protocol):
    """What is needed of a :class:`dsokr.tool.Predictor`."""

    @property
    def rule(self) -> Rule: ...

    def coefficients(self, inputs: Sequence[Any]) -> Tensor: ...  # (n, p)


class Question(NamedTuple):
    """Inputs, or coefficients in their place."""

    inputs: list[Any] | None
    coefficients: list[list[float]] | None
    k: int
    rule: Rule

    @property
    def size(self) -> int:
        return len(self.inputs if self.inputs is not None else self.coefficients or [])


class Hits(NamedTuple):
    """The best candidates for every input of a question."""

    indices: Tensor  # (n, k)
    scores: Tensor  # (n, k)
    cosines: Tensor  # (n, k)


def answer(model: Model, index: CandidateIndex, questions: Sequence[Question]) -> list[Hits | Exception]:
    """All questions at once: those that follow one rule are one search."""
    z = _coefficients(model, index.head.dim, questions)
    answers: list[Hits | Exception] = [found if isinstance(found, Exception) else _NOTHING for found in z]
    by_rule: dict[Rule, list[int]] = defaultdict(list)
    for at, found in enumerate(z):
        if not isinstance(found, Exception):
            by_rule[questions[at].rule].append(at)
    for rule, members in by_rule.items():
        rows = torch.cat([z[at] for at in members])  # type: ignore[misc] # the exceptions were left out
        ranking = index.search(rows, max(questions[at].k for at in members), rule)
        hits = Hits(*ranking, index.cosines(rows, ranking.indices))
        start = 0
        for at in members:
            where = slice(start, start + questions[at].size)
            answers[at] = Hits(*(part[where, : questions[at].k] for part in hits))
            start = where.stop
    return answers


_NOTHING = Hits(torch.empty(0, 0), torch.empty(0, 0), torch.empty(0, 0))


def _coefficients(model: Model, dim: int, questions: Sequence[Question]) -> list[Tensor | Exception]:
    """Coefficients for every question, or what is wrong with it. The network sees all inputs together if it can."""
    z: list[Tensor | Exception] = [
        torch.tensor(question.coefficients or [], dtype=torch.float64).reshape(-1, dim) for question in questions
    ]
    asking = [at for at, question in enumerate(questions) if question.inputs is not None]
    everything = [cell for at in asking for cell in questions[at].inputs or []]
    try:
        found = model.coefficients(everything).cpu().double() if asking else torch.empty(0, dim)
        parts = found.split([questions[at].size for at in asking])
        return [dict(zip(asking, parts, strict=True)).get(at, own) for at, own in enumerate(z)]
    except InputError:  # of one of them, and only that one is refused
        for at in asking:
            try:
                z[at] = model.coefficients(questions[at].inputs or []).cpu().double()
            except DSOKRError as error:
                z[at] = error
        return z
