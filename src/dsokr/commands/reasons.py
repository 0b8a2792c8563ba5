"""Why the first answers have their scores, as an HTML page with coloured words, letters, labels and atoms."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from dsokr.commands.cells import parse_numbers, shorten
from dsokr.commands.columns import Labels, Letters, Molecule, Ranking, SmilesLetters, String, Text, Vector
from dsokr.commands.kinds import OutputKind
from dsokr.commands.predictor import Predictor
from dsokr.errors import InputError
from dsokr.explain import Answer, Case, Explanation, explain, explain_input, paint_molecule, paint_text, write_page
from dsokr.files import check_place
from dsokr.outputs import take
from dsokr.rules import Rule

INPUTS, ANSWERS = 20, 3  # on the page
SHOWN = 30  # columns of a row

Cells = Sequence[Sequence[tuple[Any, ...]]]  # the answers to every input: cell, name or "", score, …; best first


def check_page(path: Path, what: str) -> None:
    """Refuse a path that is not that of a page that can be written, before anything is computed."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise InputError(f"{path}: the {what} is a page. Name it .html.")
    check_place(path)


def write_reasons(predictor: Predictor, path: Path, inputs: Sequence[str], X: Any, hits: Cells, rule: Rule) -> None:
    """Write the page for the first inputs, given as cells and as values, and the first of their answers."""
    hits = [some[:ANSWERS] for some in hits[:INPUTS]]
    rows = np.repeat(np.arange(len(hits)), [len(some) for some in hits])
    cells = [cell for some in hits for cell, *_ in some]
    Y = predictor.output.parse_all(cells, "Answer")
    found = explain(predictor.model, take(X, rows), Y, rule=rule)
    answers = [
        Answer(_paint_output(predictor.output, cell, one), name or shorten(cell), one)
        for (cell, name, *_), one in zip((hit for some in hits for hit in some), found, strict=True)
    ]
    cases = []
    for row, cell in enumerate(inputs[: len(hits)]):
        own = np.flatnonzero(rows == row)
        first = take(Y, own[:1])
        shown = _paint_input(predictor, cell, take(X, slice(row, row + 1)), first, rule)
        cases.append(Case(shown, take(answers, own)))
    names = ", ".join(predictor.output.columns)
    write_page(path, cases, title=f"Why these answers: {names}" if names else "Why these answers")


def _paint_input(predictor: Predictor, cell: str, X: Any, Y: Any, rule: Rule) -> str:
    """Colour words, letters or columns by what they contribute to the first answer; other inputs are only named."""
    kind, model, y = predictor.input, predictor.model, Y if hasattr(Y, "indptr") else Y[0]
    if isinstance(kind, Text | Letters) and not isinstance(kind, SmilesLetters):
        one = explain_input(model, X[0], y, rule=rule)
        return paint_text(one.parts, one.contributions, " " if " " in X[0] else "")
    if isinstance(kind, Vector):  # the mean of the training inputs is zero after scaling
        mean = None if kind.sparse else np.zeros(X.shape[1])
        one = explain_input(model, X if kind.sparse else X[0], y, reference=mean, rule=rule)
        return _paint_columns(kind, cell, one)
    return shorten(cell, 300)


def _paint_columns(kind: Vector, cell: str, one: Explanation) -> Markup:
    """Colour the columns that contribute most, each with its number."""
    numbers = parse_numbers(cell, kind.columns)
    names = kind.columns if len(kind.columns) == len(numbers) else range(1, len(numbers) + 1)
    most = np.sort(np.abs(one.contributions).argsort(kind="stable")[::-1][:SHOWN])
    places = one.places[most].tolist()
    return paint_text([f"{names[at]} {numbers[at]:.4g}" for at in places], one.contributions[most], ", ")


def _paint_output(kind: OutputKind, cell: str, one: Explanation) -> Markup:
    """Colour the atoms, letters, labels, items or numbers of an answer."""
    if isinstance(kind, Molecule):
        return _paint_atoms(kind, cell, one)
    if isinstance(kind, Vector):
        return _paint_columns(kind, cell, one)
    if isinstance(kind, String) and len(one.places) == len(cell):
        return paint_text(cell, one.contributions, "")
    if isinstance(kind, Labels | Ranking):
        names, value = (kind.names if isinstance(kind, Labels) else kind.items), kind.parse([cell])[0][one.places]
        order = np.argsort(value, kind="stable")  # of items: best first
        order = order[value[order] > (0 if isinstance(kind, Labels) else -1)]  # those that are there, or ranked
        shown = paint_text([names[one.places[at]] for at in order], one.contributions[order])
        return shown or Markup.escape(cell)
    return paint_text([cell], one.contributions.sum(keepdims=True))


def _paint_atoms(kind: Molecule, cell: str, one: Explanation) -> Markup:
    """Colour atoms; a column of a fingerprint is divided among the atoms around which it was found."""
    chem, contributions = import_module("dsokr.chem"), one.contributions
    if not kind.as_graph:
        contributions = chem.share_among_atoms(cell.strip(), one.places, contributions, kind.radius, kind.chirality)
        return paint_molecule(cell.strip(), contributions)
    try:
        return paint_molecule(cell.strip(), contributions)
    except InputError:  # hydrogens are atoms of the text, not of the graph
        return paint_molecule(chem.graph(cell.strip()), contributions)
