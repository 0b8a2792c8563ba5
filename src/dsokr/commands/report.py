"""What was trained and how good it is, as one HTML page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from dsokr.decoders import Candidates
from dsokr.errors import InputError, MissingExtraError
from dsokr.commands.html import Report, Tile
from dsokr.plotting import pyplot
from dsokr.commands import evaluation
from dsokr.commands.kinds import Image, Molecule, Vector, chem, counted, texts
from dsokr.commands.predictor import Predictor, cell_text
from dsokr.commands.reading import Cells
from dsokr.files import check_place

EXAMPLES = 8  # pairs shown
SHOWN = 4  # answers for every example
TILE = (220, 160)

Example = dict[str, Any]  # row, input, truth, answers


def examples(predictor: Predictor, cells: Cells) -> list[Example]:
    """The first inputs, right answers, and what the model says of them, as JSON.

    Molecules that are not made by a search come with the best of the known ones and of all right answers, as
    :func:`dsokr.commands.evaluation.evaluate` ranks them.
    """
    everything, cells = cells, cells.at(range(min(EXAMPLES, len(cells))))
    true = [cell_text(cell) for cell in cells.outputs]
    predicted = predictor.predict(cells.inputs)
    answers: list[list[str]] = [[cell] for cell in predicted]
    if isinstance(predictor.output, Molecule):
        outputs = map(cell_text, everything.outputs)
        candidates = list(evaluation.different(predictor, [*predictor.known, *outputs]).values())
        ranking = predictor.rank(cells.inputs, candidates, SHOWN)
        ranked = [[candidates[i] for i in row] for row in ranking.indices.tolist()]
        made = predictor.output.form == "graph" and not _is_listed(predictor)
        both = [[*a, *b] for a, b in zip(answers, ranked, strict=True)]
        answers = (
            [list(evaluation.different(predictor, several).values())[:SHOWN] for several in both] if made else ranked
        )
    else:
        true = [predictor.output.key(cell) for cell in true]  # written as predictions are
    shown = [_input_text(predictor, cell) for cell in cells.inputs]
    return [
        {"row": row, "input": text, "truth": truth, "answers": said}
        for row, text, truth, said in zip(cells.rows, shown, true, answers, strict=True)
    ]


def check_page(path: Path) -> None:
    """Whether a page can be written there, asked before any work is done."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise InputError(f"{path}: the report is a page. Name it .html.")
    check_place(path)


def write(predictor: Predictor, path: Path, test: evaluation.Test | None = None, model: str = "model") -> Path:
    """Write the page, with the results of a test if there is one. ``model`` is how commands name the folder."""
    facts = predictor.facts
    page = Report(_title(facts), _lead(facts))
    if test is not None:
        n = len(test.cells)
        page.heading(f"On {counted(n, 'test pair')} ({test.file})")
        _results(page, predictor, n, test.metrics, examples(predictor, test.cells))
    if "validation" in facts:
        n = facts["rows"]["validation"]
        page.heading(f"On {counted(n, 'pair')} held out for validation")
        _results(page, predictor, n, facts["validation"], facts["examples"])
    page.heading("What was trained")
    page.facts(_trained(predictor))
    page.heading("How the training went")
    _curves(page, predictor)
    page.heading("Go on from here")
    page.code(_commands(predictor, model))
    return page.write(path)


def _title(facts: dict[str, Any]) -> str:
    columns = facts["columns"]
    return f"From {_together(columns['input'])} to {_together(columns['output'])}"


def _together(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _lead(facts: dict[str, Any]) -> str:
    return (
        f"A model trained on {counted(facts['rows']['train'], 'pair')} of {facts['train']}, on {facts['date']}, by "
        f"dsokr {facts['dsokr']} (deep sketched output kernel regression)."
    )


def _results(page: Report, predictor: Predictor, n: int, metrics: dict[str, float], shown: list[Example]) -> None:
    page.text(evaluation.sentence(metrics, n))
    page.texts(["metric", "value", "what it means"], evaluation.rows(metrics))
    page.text("The first of these pairs, not chosen. In green: what is right.")
    if isinstance(predictor.output, Molecule):
        for example in shown:
            page.card(f"{example['input']}", _molecules(predictor, example))
        return
    rows = [[example["input"], example["truth"], example["answers"][0]] for example in shown]
    right = [position for position, row in enumerate(rows) if row[1] == row[2]]
    page.texts(["input", "truth", "prediction"], [[texts(cell) for cell in row] for row in rows], right)


def _molecules(predictor: Predictor, example: Example) -> list[Tile]:
    key = predictor.output.key
    right = key(example["truth"])
    tiles = [Tile("truth", _drawn(example["truth"]), example["truth"], "truth")]
    for rank, cell in enumerate(example["answers"], start=1):
        tiles.append(Tile(f"{rank}. {texts(cell)}", _drawn(cell), cell, "right" if key(cell) == right else ""))
    return tiles


def _drawn(smiles: str) -> str:
    try:
        return chem().draw([smiles], size=TILE)
    except (MissingExtraError, InputError):
        return ""  # the tile shows the text


def _trained(predictor: Predictor) -> dict[str, str]:
    facts, model = predictor.facts, predictor.model
    size = facts["size"]
    chosen = "chosen by Perfect h" if "sizes" in size else "as asked for"
    return facts["chosen"] | {
        "basis": f"{size['chosen']} outputs, {chosen}; {model.basis_.dim} dimensions",
        "rule": f"{predictor.rule} (how answers are scored)",
        "known outputs": f"{len(predictor.known):,} different ones",
        "rows skipped": f"{facts['rows']['skipped']:,}" + (" (skipped.csv)" if facts["rows"]["skipped"] else ""),
        "best epoch": f"{model.history_.best_epoch:.0f} of {len(model.history_.rows)}",
        "seconds": f"{facts['seconds']:.0f} in all",
    }


def _curves(page: Report, predictor: Predictor) -> None:
    history, size = predictor.model.history_, predictor.facts["size"]
    try:
        plots = pyplot()
    except MissingExtraError as error:
        page.text(f"The curves are not drawn. {error}")
        return
    many = "sizes" in size and len(size["sizes"]) > 1
    fig, axes = plots.subplots(
        1, 2 if many else 1, figsize=(10 if many else 5.2, 3.4), layout="constrained", squeeze=False
    )
    left = axes[0, 0]
    for name, words in (("train_loss", "training"), ("val_loss", "validation")):
        if values := history[name]:
            left.plot([row["epoch"] for row in history.rows if name in row], values, label=words)
    left.axvline(history.best_epoch, color="grey", linestyle="--", linewidth=1)
    left.set(xlabel="epoch", ylabel="loss")
    left.legend(frameon=False)
    words = "The loss over the epochs; the dashed line is the epoch that was kept. "
    if many:
        right = axes[0, 1]
        right.plot(size["sizes"], size["missed"], marker="o", markersize=3)
        right.axvline(size["chosen"], color="grey", linestyle="--", linewidth=1)
        right.set(xlabel="size of the basis (outputs)", ylabel="missed of new outputs", xscale="log")
        words += (
            f"How much of the held-out outputs a basis of each size misses; {size['chosen']} is the smallest that is "
            "nearly as good as the best. What a basis misses stays in the loss, which does not go to zero."
        )
    page.text(words)
    page.figure(fig, "The losses over the epochs, and what a basis of each size misses")


def _commands(predictor: Predictor, model: str) -> str:
    columns = predictor.facts["columns"]["input"]
    table = f"inputs.csv, with the column{'s' if len(columns) > 1 else ''} {', '.join(columns[:5])}"
    more = ", ..." if len(columns) > 5 else ""
    library = "library.smi" if isinstance(predictor.output, Molecule) else "library.csv"
    model = shlex.quote(model)
    return (
        f"# {table}{more}\n"
        f"dsokr predict {model} inputs.csv --out predicted.csv\n"
        f"dsokr rank {model} inputs.csv --candidates {library} --top 10 --out ranked.csv\n"
        f"dsokr evaluate {model} test.csv"
    )


def _input_text(predictor: Predictor, cell: Any) -> str:
    if isinstance(predictor.input, Image):
        return Path(cell).name
    if isinstance(predictor.input, Vector) and not isinstance(cell, str):
        return texts([f"{float(number):.4g}" for number in cell])
    return cell if len(cell) <= 300 else f"{cell[:297]}..."


def _is_listed(predictor: Predictor) -> bool:
    return isinstance(predictor.model.decoder_, Candidates)
