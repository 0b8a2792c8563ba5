"""What was trained and how good it is, as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import io
import shlex
from pathlib import Path
from typing import Any

import jinja2

from dsokr.commands.cells import Cell, as_text, count_of, shorten
from dsokr.commands.columns import Image, Molecule, Vector
from dsokr.commands.evaluate import by_meaning, evaluate, list_metrics, read_test, summarize
from dsokr.commands.options import ReportOptions, Result, Say
from dsokr.commands.predictor import Pairs, Predictor
from dsokr.commands.tables import Problems
from dsokr.errors import InputError, MissingExtraError, import_extra
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
    truth, answers = [as_text(cell) for cell in first.outputs], [[cell] for cell in predictor.predict(first.inputs)]
    if isinstance(predictor.output, Molecule):
        cells = list(by_meaning(predictor, [*predictor.known, *map(as_text, pairs.outputs)]).values())
        ranked = [[cells[at] for at in row] for row in predictor.rank(first.inputs, cells, SHOWN).indices.tolist()]
        both = [[*a, *b] for a, b in zip(answers, ranked, strict=True)] if predictor.searches else ranked
        answers = [list(by_meaning(predictor, some).values())[:SHOWN] for some in both]
    else:
        truth = [predictor.output.key(cell) for cell in truth]  # written as predictions are
    inputs = [_show_input(predictor, cell) for cell in first.inputs]
    names = "row", "input", "truth", "answers"
    return [dict(zip(names, row, strict=True)) for row in zip(first.rows, inputs, truth, answers, strict=True)]


def _show_input(predictor: Predictor, cell: Cell) -> str:
    if isinstance(predictor.input, Image):
        return Path(as_text(cell)).name
    if isinstance(predictor.input, Vector) and not isinstance(cell, str):
        return shorten([f"{float(number):.4g}" for number in cell])
    return shorten(cell, 300)


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
    environment.globals.update(
        count_of=count_of, draw=_draw, list_metrics=list_metrics, shorten=shorten, summarize=summarize
    )
    page = environment.get_template("report.html.j2").render(
        predictor=predictor,
        is_molecule=isinstance(predictor.output, Molecule),
        results=results,
        curves=_draw_curves(predictor),
        model=shlex.quote(model),
    )
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


def _draw_curves(predictor: Predictor) -> str:
    """Draw the losses over the epochs and, if sizes were compared, what a basis of each size misses, as base64 PNG."""
    history, size = predictor.model.history_, predictor.facts["size"]
    try:
        plots = import_extra("matplotlib.pyplot", "plots")
    except MissingExtraError:
        return ""
    count = 2 if "sizes" in size else 1
    figure, axes = plots.subplots(1, count, figsize=(5.1 * count, 3.4), layout="constrained", squeeze=False)
    for name, words in (("train_loss", "training"), ("val_loss", "validation")):
        if values := history[name]:
            axes[0, 0].plot([row["epoch"] for row in history.rows if name in row], values, label=words)
    axes[0, 0].axvline(history.best_epoch, color="grey", linestyle="--", linewidth=1)
    axes[0, 0].set(xlabel="epoch", ylabel="loss")
    axes[0, 0].legend(frameon=False)
    if "sizes" in size:
        axes[0, 1].plot(size["sizes"], size["missed"], marker="o", markersize=3)
        axes[0, 1].axvline(size["chosen"], color="grey", linestyle="--", linewidth=1)
        axes[0, 1].set(xlabel="size of the basis (outputs)", ylabel="missed of new outputs", xscale="log")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    plots.close(figure)
    return base64.b64encode(picture.getvalue()).decode()
