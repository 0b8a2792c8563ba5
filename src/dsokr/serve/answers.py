"""Answers of a model and an index to the questions of the JSON interface. Nothing here knows of HTTP."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsokr.conformal import Calibration
from dsokr.decoders import Ranking
from dsokr.errors import DSOKRError, InputError, KernelError, MissingExtraError
from dsokr.explain import Colored, Reasons, name_colors
from dsokr.index import Condition, Index
from dsokr.index.candidates import LARGEST
from dsokr.rules import Rule
from dsokr.serve.bodies import Hit, Limits, Part

LOG = logging.getLogger(__name__)
PICTURE_SIZE = (260, 190)  # pixels
MOST_ATOMS = 100  # RDKit blocks all other threads while it draws: 45 ms for this many atoms
MOST_PICTURES = 1000  # in the cache
MOST_PARTS = 500  # words or letters of an input that is explained: each is left out once
POOL = 100  # candidates, at least, that probabilities are computed from
COVERAGE = 0.9  # of sets, if nothing else is asked for
ATOM = re.compile(r"\[[^]]*]|Br|Cl|[A-Za-z*]")


class BadInput(InputError):
    """An input that cannot be answered, and its place in the request."""

    def __init__(self, where: str, reason: str):
        self.where = where
        super().__init__(f"{where}: {reason}")


def list_conditions(question: Any) -> list[Condition]:
    """The conditions of a question, repeated for each of its inputs."""
    n = len(question.inputs or question.coefficients)
    windows = [Condition.within(name, [low] * n, [high] * n) for name, (low, high) in question.within.items()]
    return windows + [Condition.equal(name, [text] * n) for name, text in question.match.items()]


class Trust(NamedTuple):
    """How far to trust the best candidates of an index, by the rule of the model."""

    calibration: Calibration
    k: int  # candidates that probabilities are computed from
    rule: Rule

    @staticmethod
    def of(model: Any, index: Index, limits: Limits) -> Trust | None:
        """Calibrate for the index; None if the model is not calibrated, or is calibrated by groups."""
        sure = getattr(model, "sure", None)
        if sure is None or sure.pairs_["groups"] is not None:
            return None
        k = max(POOL, limits.k)
        scores = index.search(sure.pairs_["z"].cpu().double(), k, model.rule).scores
        return Trust(sure.calibrate_for(scores), k, model.rule)

    def coverage(self) -> float | None:
        """The default coverage of sets: COVERAGE, or None if there are too few calibration pairs for it."""
        with suppress(InputError):
            self.calibration.find_threshold(torch.ones(1, 1), torch.zeros(1, 1), COVERAGE)
            return COVERAGE
        return None


class Current:
    """The newest version of an index, and how far to trust its best candidates."""

    def __init__(self, model: Any, index: Index, limits: Limits):
        self.model, self.limits, self.problem = model, limits, ""
        self.found = index, Trust.of(model, index, limits)

    def refresh(self) -> bool:
        """Open a newer version and return True, if there is one. On an error the current version stays in use."""
        try:
            index = self.found[0].refreshed()
            if index is not self.found[0]:
                self.found = index, Trust.of(self.model, index, self.limits)
                return True
            self.problem = ""
        except (DSOKRError, OSError) as error:
            if str(error) != self.problem:
                LOG.warning("The index is not renewed: %s", error)
            self.problem = str(error)
        return False

    def describe(self) -> dict[str, Any]:
        index, trust = self.found
        return {"candidates": len(index), "index_version": index.head.version, "coverage": trust and trust.coverage()}


def answer(model: Any, questions: Sequence[Any], index: Index, trust: Trust | None = None) -> list[Any]:
    """Answer several questions at once: with one pass of the network and one search for each rule.

    An answer is an exception or, for every input, the best candidates, best first, and the confidence in the first; the
    coefficients (n, p); and notes that say why it may be a guess. If a question fails or needs a note of its own, each
    is answered alone.
    """
    try:
        with _collect_warnings() as notes:
            z = _predict(model, questions)
        if not notes or len(questions) == 1:
            return _rank(index, questions, z, notes, trust)
    except InputError as error:
        if len(questions) == 1:
            return [error]
    return [found for question in questions for found in answer(model, [question], index, trust)]


def _predict(model: Any, questions: Sequence[Any]) -> list[Tensor]:
    """Return the coefficients for every question, computed by the network or as given."""
    asked = [question.inputs for question in questions if question.inputs]
    predicted = iter(_run_network(model, list(chain(*asked))).split(list(map(len, asked))) if asked else ())
    return [
        next(predicted) if question.inputs else torch.tensor(question.coefficients, dtype=torch.float64)
        for question in questions
    ]


def _run_network(model: Any, inputs: list[str]) -> Tensor:  # (n, p)
    try:
        z = model.coefficients(inputs).cpu().double()
    except InputError:
        for position, reason in model.input.read(inputs).bad.items():
            raise BadInput(f"inputs.{position}", reason) from None
        raise
    for position in (~(z.abs() <= LARGEST).all(dim=1)).nonzero()[:, 0].tolist():
        raise BadInput(
            f"inputs.{position}", f"It is too far from the training inputs: its coefficients exceed {LARGEST:g}."
        )
    return z


def _rank(index: Index, questions: Sequence[Any], z: list[Tensor], notes: list[str], trust: Trust | None) -> list[Any]:
    """Search for all questions by one rule at once; those with conditions are searched alone, and not calibrated."""
    answers, groups, conditions = {}, dict[Any, list[int]](), list(map(list_conditions, questions))
    for at, question in enumerate(questions):
        groups.setdefault((question.rule, at if conditions[at] else -1), []).append(at)
    for (rule, _), chosen in groups.items():
        wanted, k = conditions[chosen[0]], max(questions[at].k for at in chosen)
        judge = trust if trust is not None and rule == trust.rule and not wanted else None
        ranking = index.search(torch.cat([z[at] for at in chosen]), max(k, judge.k if judge else 0), rule, wanted)
        sizes = [len(z[at]) for at in chosen]
        for at, *part in zip(chosen, *(columns.split(sizes) for columns in ranking), strict=True):
            answers[at] = list(_describe(index, questions[at], z[at], Ranking(*part), judge)), z[at], notes
    return [answers[at] for at in range(len(questions))]


def _describe(
    index: Index, question: Any, z: Tensor, ranking: Ranking, trust: Trust | None
) -> Iterator[dict[str, Any]]:
    """Yield the hits of every input, with their probabilities where the index is calibrated."""
    k, scores = question.k, ranking.scores
    indices = ranking.indices[:, :k]
    numbers = [indices, scores[:, :k], index.cosines(z, indices.clamp(min=0))]
    probability: Any = [[None] * indices.shape[1]] * len(z)
    in_set = probability
    confidence: Any = [None] * len(z)
    if trust is not None:
        probability = trust.calibration.find_probabilities(z, scores)[:, :k].tolist()
        confidence = trust.calibration.find_confidence(z, scores).tolist()
        if question.coverage is not None:
            least = trust.calibration.find_threshold(z, scores, question.coverage)
            in_set = (scores[:, :k] >= least[:, None]).tolist()
    for sure, *columns in zip(confidence, *(part.tolist() for part in numbers), probability, in_set, strict=True):
        hits = []
        for rank, (at, *others) in enumerate(zip(*columns, strict=True), start=1):
            if at >= 0:  # fewer candidates may be possible
                cells = {name: column[at] for name, column in index.cells.items()}
                values = rank, at, index.texts[at], index.names[at], *others, cells
                hits.append(dict(zip(Hit.model_fields, values, strict=True)))
        yield {"hits": hits, "confidence": sure}


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of this thread: they are shown to the client and not logged."""
    notes, thread = list[str](), threading.get_ident()
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


def decode(model: Any, z: Tensor, best: Sequence[str]) -> dict[str, Any]:
    """Find the model's own answer to coefficients (p,), and its rank if it is one of the best candidates."""
    [output], scores = model.decode(z[None])
    key = model.output.key(output) if output else None  # no candidate is the empty string
    rank = next((rank for rank, text in enumerate(best, 1) if text == output or model.output.key(text) == key), None)
    return {"output": output, "score": scores.item(), "rank": rank}


def explain(model: Any, reason: Callable[[str, str, Rule], Reasons], asked: Any) -> dict[str, Any]:
    """Answer a body of /explain. Inputs that cannot be read, or would take long, are refused first."""
    words = asked.input.split()
    parts = len(words) if len(words) > 1 else len(asked.input)
    if model.input.name != "vector" and parts > MOST_PARTS:
        raise BadInput("input", f"Inputs of more than {MOST_PARTS} words or letters are not explained. Got {parts}.")
    if model.output.name == "smiles":
        _check_atoms(asked.output)
    for where, kind in (("input", model.input), ("output", model.output)):
        for problem in kind.read([getattr(asked, where)]).bad.values():
            raise BadInput(where, problem)
    try:
        why, output, given = reason(asked.input, asked.output, asked.rule)
    except KernelError as error:  # undefined without one of the parts
        raise InputError(f"This output cannot be explained: {error}") from error
    shown = {"output": _paint(output), "input": None if given is None else _paint(given)}
    return {"score": why.score, "exact": why.exact, "constant": why.constant, **shown}


def _paint(shown: Colored) -> dict[str, Any]:
    numbers, colors = shown.contributions.tolist(), name_colors(shown.contributions)
    parts = [dict(zip(Part.model_fields, part, strict=True)) for part in zip(shown.parts, numbers, colors, strict=True)]
    return {"parts": parts, "between": shown.between, "drawing": shown.drawing}


def _check_atoms(smiles: str) -> None:
    atoms = len(ATOM.findall(smiles))  # counted in the text, because parsing a huge molecule takes long, too
    if atoms > MOST_ATOMS:
        raise InputError(f"Molecules of more than {MOST_ATOMS} atoms are not drawn. Got {atoms}.")


def load_drawing() -> Callable[[str], bytes] | None:
    """Return a function that draws a molecule as SVG, or None without RDKit."""
    try:
        from dsokr import chem
    except MissingExtraError:
        return None

    @lru_cache(MOST_PICTURES)
    def draw(smiles: str) -> bytes:
        _check_atoms(smiles)
        try:
            return chem.draw([smiles], size=PICTURE_SIZE).encode()
        except InputError:
            raise InputError(f"Could not parse {smiles!r} as a molecule.") from None

    return draw
