"""What was trained and how good it is, as one HTML page that needs no other file."""

import shlex
from pathlib import Path
from typing import Any

import jinja2

from dsokr.commands.cells import count_of, parse_numbers, shorten
from dsokr.commands.columns import Image, Kind, Molecule, Vector
from dsokr.commands.evaluate import by_meaning, evaluate, list_metrics, read_test, summarize
from dsokr.commands.options import ReportOptions, Result, Say
from dsokr.commands.predictor import Pairs, Predictor
from dsokr.commands.tables import Problems
from dsokr.errors import InputError, MissingExtraError
from dsokr.files import check_place, replace_file

EXAMPLES = 8  # pairs shown
SHOWN = 4  # answers for every example
TILE = (220, 160)  # pixels of a drawing


def report(options: ReportOptions, problems: Problems, say: Say) -> Result:
    """Write the page again, with the results of a test if there is one."""
    if options.out.suffix.lower() not in (".html", ".htm") or options.out.is_dir():
        raise InputError(f"{options.out}: the report is a page. Name it .html.")
    check_place(options.out)
    predictor = Predictor.load(options.model, options.device)
    test = None if options.test is None else read_test(predictor, options.test, problems)
    write_report(predictor, options.out, str(options.model), test, "" if options.test is None else options.test.name)
    return Result({"report": str(options.out)}, [f"The report: {options.out}"])


def find_examples(predictor: Predictor, pairs: Pairs) -> list[dict[str, Any]]:
    """Return the first inputs, right answers, and what the model answers, as JSON.

    Molecules come with the best of the known ones and of all right answers, as they are ranked in an evaluation.
    """
    first = pairs.take(range(min(EXAMPLES, len(pairs))))
    truth, answers = first.outputs, [[cell] for cell in predictor.predict(first.inputs)]
    if isinstance(predictor.output, Molecule):
        cells = list(by_meaning(predictor, [*predictor.known, *pairs.outputs]).values())
        ranked = [[cells[at] for at in row] for row in predictor.rank(first.inputs, cells, SHOWN).indices.tolist()]
        both = [[*a, *b] for a, b in zip(answers, ranked, strict=True)] if predictor.searches else ranked
        answers = [list(by_meaning(predictor, some).values())[:SHOWN] for some in both]
    else:
        truth = [predictor.output.key(cell) for cell in truth]  # written as predictions are
    inputs = [_show_input(predictor.input, cell) for cell in first.inputs]
    names = "row", "input", "truth", "answers"
    return [dict(zip(names, row, strict=True)) for row in zip(first.rows, inputs, truth, answers, strict=True)]


def _show_input(kind: Kind, cell: str) -> str:
    if isinstance(kind, Vector) and len(kind.columns) > 1:
        return shorten(", ".join(f"{number:.4g}" for number in parse_numbers(cell, kind.columns)))
    return Path(cell).name if isinstance(kind, Image) else shorten(cell, 300)


def write_report(predictor: Predictor, path: Path, model: str, test: Pairs | None = None, file: str = "") -> None:
    """Write the page, with the results of a test if there is one. ``model`` is how commands name the folder."""
    facts, results = predictor.facts, []
    if test is not None:
        title = f"On {count_of(len(test), 'test pair')} ({file})"
        results.append((title, len(test), evaluate(predictor, test), find_examples(predictor, test)))
    if "validation" in facts:
        n = facts["rows"]["validation"]
        title = f"On {count_of(n, 'pair')} held out for validation"
        results.append((title, n, facts["validation"], facts["examples"]))
    environment = jinja2.Environment(loader=jinja2.PackageLoader("dsokr.commands", "."), autoescape=True)
    functions = {"count_of": count_of, "draw": _draw, "list_metrics": list_metrics, "summarize": summarize}
    template = environment.get_template("report.html.j2", globals={"shorten": shorten, **functions})
    is_molecule = isinstance(predictor.output, Molecule)
    page = template.render(predictor=predictor, is_molecule=is_molecule, results=results, model=shlex.quote(model))
    with replace_file(path) as draft:
        draft.write_text(page, encoding="utf-8")


def _draw(smiles: str) -> str:
    """Draw a molecule as SVG; where that is impossible, the page shows the text."""
    try:
        from dsokr import chem

        svg = chem.draw([smiles], size=TILE)
    except (MissingExtraError, InputError):
        return ""
    return svg[svg.find("<svg") :]
