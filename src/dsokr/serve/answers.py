"""From questions to ranked candidates; no web in here."""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dsokr.basis import Rule
from dsokr.errors import DSOKRError, InputError
from dsokr.index import CandidateIndex
from dsokr.index.exact import LARGEST


class Model(Protocol):
    """What is needed of a :class:`dsokr.commands.Predictor`."""

    @property
    def input(self) -> Any: ...  # a kind, as in dsokr.commands.kinds

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
    notes: tuple[str, ...] = ()  # why it may be a guess


class Computed(NamedTuple):
    """Coefficients, and what the network warned of meanwhile."""

    z: Tensor  # (n, p)
    notes: tuple[str, ...]


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
    computed = _coefficients(model, index.head.dim, questions)
    answers: list[Hits | Exception] = [found if isinstance(found, Exception) else _NOTHING for found in computed]
    by_rule: dict[Rule, dict[int, Computed]] = defaultdict(dict)
    for at, found in enumerate(computed):
        if not isinstance(found, Exception):
            by_rule[questions[at].rule][at] = found
    for rule, members in by_rule.items():
        rows = torch.cat([found.z for found in members.values()])
        ranking = index.search(rows, max(questions[at].k for at in members), rule)
        cosines = index.cosines(rows, ranking.indices)
        start = 0
        for at, found in members.items():
            where, k = slice(start, start + questions[at].size), questions[at].k
            best = ranking.indices[where, :k], ranking.scores[where, :k], cosines[where, :k]
            answers[at] = Hits(*best, rows[where], found.notes)
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


def _coefficients(model: Model, dim: int, questions: Sequence[Question]) -> list[Computed | Exception]:
    """Coefficients for every question, or what is wrong with it. The network sees all inputs together if it can."""
    computed: list[Computed | Exception] = [
        Computed(torch.tensor(question.coefficients or [], dtype=torch.float64).reshape(-1, dim), ())
        for question in questions
    ]
    asking = {at: question.inputs for at, question in enumerate(questions) if question.inputs is not None}
    found = _together(model, list(asking.values())) or [_alone(model, inputs) for inputs in asking.values()]
    for at, one in zip(asking, found, strict=True):
        computed[at] = one
    return computed


def _together(model: Model, asked: Sequence[list[Any]]) -> list[Computed | Exception]:
    """All in one; or nothing, if an input is refused or noted: that is for its own asker, and for no other."""
    if len(asked) < 2:
        return []
    try:
        with _noting() as notes:
            z = model.coefficients([cell for inputs in asked for cell in inputs]).cpu().double()
    except InputError:
        return []
    return [] if notes else [_or_too_large(part, ()) for part in z.split([len(inputs) for inputs in asked])]


def _alone(model: Model, inputs: list[Any]) -> Computed | Exception:
    try:
        with _noting() as notes:
            z = model.coefficients(inputs).cpu().double()
    except DSOKRError as error:
        return _located(model, inputs, error)
    return _or_too_large(z, tuple(notes))


@contextmanager
def _noting() -> Iterator[list[str]]:
    """The warnings of this thread, as notes: printed, they would tell the server's owner what others asked."""
    notes: list[str] = []
    thread = threading.get_ident()
    with _CATCHING, warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **rest: Any) -> None:
            if category is UserWarning and threading.get_ident() == thread:
                notes.append(str(message))
            else:
                shown(message, category, *where, **rest)

        warnings.simplefilter("always", UserWarning)  # and Python remembers none of them
        warnings.showwarning = show
        yield notes


_CATCHING = threading.Lock()  # how warnings are shown is a setting of the whole process


def _or_too_large(z: Tensor, notes: tuple[str, ...]) -> Computed | BadInput:
    bad = ~(z.abs() <= LARGEST).all(dim=1)
    if not bad.any():
        return Computed(z, notes)
    reason = f"It is so far from the inputs of training that its coefficients are above {LARGEST:g}."
    return BadInput(int(bad.nonzero()[0]), reason)


def _located(model: Model, inputs: Sequence[Any], error: DSOKRError) -> DSOKRError:
    """The error, with the place of the first input that cannot be read."""
    for at, reason in model.input.read(inputs).bad.items():
        return BadInput(at, reason)
    return error
