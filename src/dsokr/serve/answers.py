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
from dsokr.index.exact import LARGEST


class Model(Protocol):
    """What is needed of a :class:`dsokr.tool.Predictor`."""

    @property
    def input(self) -> Any: ...  # a kind, as in dsokr.tool.kinds

    @property
    def output(self) -> Any: ...

    @property
    def rule(self) -> Rule: ...

    @property
    def searches(self) -> bool: ...

    def coefficients(self, inputs: Sequence[Any]) -> Tensor: ...  # (n, p)

    def decoded(self, z: Tensor) -> tuple[list[str], Tensor]: ...  # (n, p) -> n outputs, (n,)


class BadInput(InputError):
    """An input that cannot be answered, by its place in the request."""

    def __init__(self, at: int, reason: str):
        self.where = f"inputs.{at}"
        super().__init__(f"{self.where}: {reason}")


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
    coefficients: Tensor  # (n, p), of the prediction


class ToDecode(NamedTuple):
    """The coefficients of one input, and the best candidates for it."""

    z: Tensor  # (p,)
    best: list[str]


class Found(NamedTuple):
    """What the decoder makes of coefficients, and its rank if it is one of the best candidates."""

    output: str
    score: float
    rank: int | None


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
        cosines = index.cosines(rows, ranking.indices)
        start = 0
        for at in members:
            where, k = slice(start, start + questions[at].size), questions[at].k
            best = ranking.indices[where, :k], ranking.scores[where, :k], cosines[where, :k]
            answers[at] = Hits(*best, rows[where])
            start = where.stop
    return answers


_NOTHING = Hits(torch.empty(0, 0), torch.empty(0, 0), torch.empty(0, 0), torch.empty(0, 0))


def decode(model: Model, asked: Sequence[ToDecode]) -> list[Found]:
    """The model's own answers, which need not be among the candidates."""
    outputs, scores = model.decoded(torch.stack([one.z for one in asked]))
    return [
        Found(output, score, _rank(model, output, one.best))
        for output, score, one in zip(outputs, scores.tolist(), asked, strict=True)
    ]


def _rank(model: Model, output: str, best: Sequence[str]) -> int | None:
    if output in best:
        return best.index(output) + 1
    if not output:  # the empty string, which no candidate is
        return None
    key = model.output.key
    mine = key(output)
    return next((rank for rank, other in enumerate(best, start=1) if key(other) == mine), None)


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
        for at, part in zip(asking, parts, strict=True):
            z[at] = _or_too_large(part)
    except InputError:  # of one of them, and only that one is refused
        for at in asking:
            inputs = questions[at].inputs or []
            try:
                z[at] = _or_too_large(model.coefficients(inputs).cpu().double())
            except DSOKRError as error:
                z[at] = _located(model, inputs, error)
    return z


def _or_too_large(z: Tensor) -> Tensor | BadInput:
    bad = ~(z.abs() <= LARGEST).all(dim=1)
    if not bad.any():
        return z
    reason = f"It is so far from the inputs of training that its coefficients are above {LARGEST:g}."
    return BadInput(int(bad.nonzero()[0]), reason)


def _located(model: Model, inputs: Sequence[Any], error: DSOKRError) -> DSOKRError:
    """The error, with the place of the first input that cannot be read."""
    for at, reason in model.input.read(inputs).bad.items():
        return BadInput(at, reason)
    return error
