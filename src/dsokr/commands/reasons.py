"""Why answers have their scores: words, letters, labels and atoms to colour, and a page of them."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dsokr.commands.cells import parse_numbers, shorten
from dsokr.commands.columns import Labels, Letters, Molecule, Ranking, SmilesLetters, String, Text, Vector
from dsokr.commands.kinds import OutputKind
from dsokr.commands.predictor import Predictor
from dsokr.errors import InputError
from dsokr.explain import (
    Answer,
    Case,
    Colored,
    Explanation,
    Reasons,
    explain,
    explain_input,
    paint_molecule,
    write_page,
)
from dsokr.files import check_place
from dsokr.outputs import take
from dsokr.rules import Rule

INPUTS, ANSWERS = 20, 3  # on the page
SHOWN = 30  # columns of a row

Hits = list[list[tuple[Any, ...]]]  # the answers to every input, best first: cell, (name or "", *shown), score, …


def check_page(path: Path, what: str) -> None:
    """Check, before anything is computed, that a page can be written there."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise InputError(f"{path}: the {what} is a page. Name it .html.")
    check_place(path)


def explain_answer(predictor: Predictor, input: str, output: str, rule: Rule) -> Reasons:
    """Explain the score of an output for an input, both given as cells."""
    X, Y = predictor.input.parse_all([input], "Input"), predictor.output.parse_all([output], "Output")
    [why] = explain(predictor.model, X, Y, rule=rule)
    return Reasons(why, _color_output(predictor.output, output, why), _color_input(predictor, input, X, Y, rule))


def write_reasons(predictor: Predictor, path: Path, inputs: Sequence[str], X: Any, hits: Hits, rule: Rule) -> None:
    """Write the page for the first inputs, given as cells and as values, and the first of their answers."""
    hits = [some[:ANSWERS] for some in hits[:INPUTS]]
    rows = np.repeat(np.arange(len(hits)), [len(some) for some in hits])
    flat = [hit for some in hits for hit in some]
    Y = predictor.output.parse_all([cell for cell, *_ in flat], "Answer")
    found = explain(predictor.model, take(X, rows), Y, rule=rule)
    answers = [
        Answer(_color_output(predictor.output, cell, one).html(), named[0] or shorten(cell), one)
        for (cell, named, *_), one in zip(flat, found, strict=True)
    ]
    cases = []
    for row, cell in enumerate(inputs[: len(hits)]):
        own = np.flatnonzero(rows == row)
        colored = _color_input(predictor, cell, take(X, slice(row, row + 1)), take(Y, own[:1]), rule)
        cases.append(Case(colored.html() if colored else shorten(cell, 300), take(answers, own)))
    names = ", ".join(predictor.output.columns)
    write_page(path, cases, title=f"Why these answers: {names}" if names else "Why these answers")


def _color_input(predictor: Predictor, cell: str, X: Any, Y: Any, rule: Rule) -> Colored | None:
    """Words, letters or columns with what they contribute to the first answer; None for other inputs."""
    kind, model, y = predictor.input, predictor.model, Y if hasattr(Y, "indptr") else Y[0]
    if isinstance(kind, Text | Letters) and not isinstance(kind, SmilesLetters):
        one = explain_input(model, X[0], y, rule=rule)
        return Colored(one.parts, one.contributions, " " if " " in X[0] else "")
    if isinstance(kind, Vector):  # the mean of the training inputs is zero after scaling
        mean = None if kind.sparse else np.zeros(X.shape[1])
        one = explain_input(model, X if kind.sparse else X[0], y, reference=mean, rule=rule)
        return _color_columns(kind, cell, one)
    return None


def _color_columns(kind: Vector, cell: str, one: Explanation) -> Colored:
    """The columns that contribute most, each with its number."""
    numbers = parse_numbers(cell, kind.columns)
    names = kind.columns if len(kind.columns) == len(numbers) else range(1, len(numbers) + 1)
    most = np.sort(np.abs(one.contributions).argsort(kind="stable")[::-1][:SHOWN])
    places = one.places[most].tolist()
    return Colored([f"{names[at]} {numbers[at]:.4g}" for at in places], one.contributions[most], ", ")


def _color_output(kind: OutputKind, cell: str, one: Explanation) -> Colored:
    """The atoms, letters, labels, items or numbers of an answer, with what they contribute."""
    if isinstance(kind, Molecule):
        return _color_atoms(kind, cell, one)
    if isinstance(kind, Vector):
        return _color_columns(kind, cell, one)
    if isinstance(kind, String) and len(one.places) == len(cell):
        return Colored(cell, one.contributions, "")
    if isinstance(kind, Labels | Ranking):
        names, value = (kind.names if isinstance(kind, Labels) else kind.items), kind.parse([cell])[0][one.places]
        order = np.argsort(value, kind="stable")  # of items: best first
        order = order[value[order] > (0 if isinstance(kind, Labels) else -1)]  # those that are there, or ranked
        if len(order):
            return Colored([names[one.places[at]] for at in order], one.contributions[order])
    return Colored([cell], one.contributions.sum(keepdims=True))


def _color_atoms(kind: Molecule, cell: str, one: Explanation) -> Colored:
    """Colour atoms; a column of a fingerprint is divided among the atoms around which it was found."""
    chem, shares, smiles = import_module("dsokr.chem"), one.contributions, cell.strip()
    if not kind.as_graph:
        shares = chem.share_among_atoms(smiles, one.places, shares, kind.radius, kind.chirality)
    try:
        drawing = paint_molecule(smiles, shares)
    except InputError:  # hydrogens are atoms of the text, not of the graph
        drawing = paint_molecule(chem.graph(smiles), shares)
    return Colored([str(atom) for atom in range(len(shares))], shares, drawing=drawing)
