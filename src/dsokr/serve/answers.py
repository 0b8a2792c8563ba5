"""From questions to ranked candidates, predictions and pictures; no web in here."""

import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dsokr.errors import InputError, MissingExtraError
from dsokr.index import CandidateIndex
from dsokr.index.candidates import LARGEST
from dsokr.rules import Rule

PICTURE_SIZE = (260, 190)  # pixels
MOST_ATOMS = 100  # RDKit blocks all other threads while it draws: 45 ms for this many atoms
MOST_PICTURES = 1000  # in the cache
ATOM = re.compile(r"\[[^]]*]|Br|Cl|[A-Za-z*]")


class Model(Protocol):
    """What the server needs of a :class:`dsokr.commands.Predictor`."""

    @property
    def input(self) -> Any: ...  # a kind of column, see dsokr.commands.columns

    @property
    def output(self) -> Any: ...

    @property
    def rule(self) -> Rule: ...

    @property
    def searches(self) -> bool: ...

    def coefficients(self, inputs: Sequence[str]) -> Tensor: ...  # (n, p)

    def decode(self, z: Tensor) -> tuple[list[str], Tensor]: ...  # (n, p) -> n outputs, (n,)


class BadInput(InputError):
    """An input that cannot be answered, and its place in the request."""

    def __init__(self, position: int, reason: str):
        self.where = f"inputs.{position}"
        super().__init__(f"{self.where}: {reason}")


class Question(NamedTuple):
    """Inputs, or coefficients in their place."""

    inputs: list[str] | None
    coefficients: list[list[float]] | None
    k: int
    rule: Rule


class Answered(NamedTuple):
    """The best candidates for every input of a question, best first."""

    hits: list[list[dict[str, Any]]]
    z: Tensor  # (n, p)
    notes: list[str]  # why the answer may be a guess


def answer(model: Model, index: CandidateIndex, questions: Sequence[Question]) -> list[Answered | Exception]:
    """Answer several questions at once: with one pass of the network and one search for each rule.

    If one of them fails or needs a note of its own, each is answered alone.
    """
    is_alone = len(questions) == 1
    try:
        with _collect_warnings() as notes:
            z = _predict(model, questions)
    except InputError as error:
        if is_alone:
            return [error]
        notes = [str(error)]
    if notes and not is_alone:
        return [found for question in questions for found in answer(model, index, [question])]
    answers: dict[int, Answered | Exception] = {}
    for rule in {question.rule for question in questions}:
        chosen = [at for at, question in enumerate(questions) if question.rule == rule]
        rows = _search(index, torch.cat([z[at] for at in chosen]), max(questions[at].k for at in chosen), rule)
        for at in chosen:
            answers[at] = Answered([next(rows)[: questions[at].k] for _ in z[at]], z[at], notes)
    return [answers[at] for at in range(len(questions))]


def _search(index: CandidateIndex, z: Tensor, k: int, rule: Rule) -> Iterator[list[dict[str, Any]]]:
    ranking = index.search(z, k, rule)
    names = ("rank", "index", "output", "name", "score", "cosine")
    for columns in zip(*(part.tolist() for part in (*ranking, index.cosines(z, ranking.indices))), strict=True):
        hits = enumerate(zip(*columns, strict=True), start=1)
        values = ((rank, at, index.texts[at], index.names[at], score, cosine) for rank, (at, score, cosine) in hits)
        yield [dict(zip(names, hit, strict=True)) for hit in values]


def _predict(model: Model, questions: Sequence[Question]) -> list[Tensor]:
    """Return the coefficients for every question, computed by the network or as given."""
    asked = [question.inputs for question in questions if question.inputs]
    inputs = [cell for cells in asked for cell in cells]
    predicted = iter(_run_network(model, inputs).split(list(map(len, asked))) if inputs else ())
    return [
        next(predicted) if question.inputs else torch.tensor(question.coefficients, dtype=torch.float64)
        for question in questions
    ]


def _run_network(model: Model, inputs: list[str]) -> Tensor:  # (n, p)
    try:
        z = model.coefficients(inputs).cpu().double()
    except InputError:
        for position, reason in model.input.read(inputs).bad.items():
            raise BadInput(position, reason) from None
        raise
    for position in (~(z.abs() <= LARGEST).all(dim=1)).nonzero()[:, 0].tolist():
        raise BadInput(position, f"It is too far from the training inputs: its coefficients exceed {LARGEST:g}.")
    return z


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of this thread. They are for whoever asked, not for the server's log."""
    notes: list[str] = []
    thread = threading.get_ident()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *args: Any, **options: Any) -> None:
            if category is UserWarning and threading.get_ident() == thread:
                notes.append(str(message))
            else:
                show(message, category, *args, **options)

        warnings.simplefilter("always", UserWarning)  # so that Python remembers none of them
        warnings.showwarning = note
        yield notes


def decode(model: Model, z: Tensor, best: Sequence[str]) -> dict[str, Any]:
    """Find the model's own answer to coefficients (p,), and its rank if it is one of the best candidates."""
    [output], scores = model.decode(z[None])
    key = model.output.key(output) if output else None  # no candidate is the empty string
    rank = next((rank for rank, text in enumerate(best, 1) if text == output or model.output.key(text) == key), None)
    return {"output": output, "score": scores.item(), "rank": rank}


def load_drawing() -> Callable[[str], bytes] | None:
    """Return a function that draws a molecule as SVG, or None without RDKit."""
    try:
        from dsokr import chem
    except MissingExtraError:
        return None

    @lru_cache(MOST_PICTURES)
    def draw(smiles: str) -> bytes:
        atoms = len(ATOM.findall(smiles))  # counted in the text, because parsing a huge molecule takes long, too
        if atoms > MOST_ATOMS:
            raise InputError(f"Molecules of more than {MOST_ATOMS} atoms are not drawn. Got {atoms}.")
        try:
            return chem.draw([smiles], size=PICTURE_SIZE).encode()
        except InputError:
            raise InputError(f"Could not parse {smiles!r} as a molecule.") from None

    return draw
