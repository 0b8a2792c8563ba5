"""The command line: parse, call, print."""

from __future__ import annotations

import json
import math
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from dsokr import __version__
from dsokr.errors import DSOKRError, InputError


class OneSentence(TyperGroup):
    """An expected error is one sentence and exit code 1; Ctrl-C says how to go on, and is 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DSOKRError as error:
            print(f"dsokr: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
        except BrokenPipeError:
            raise  # who reads the output has gone, and wants to hear nothing
        except OSError as error:
            file = error.filename2 or error.filename
            what = f"{file} cannot be read or written" if file else "The system does not allow it"
            print(f"dsokr: {what}: {error.strerror or error}.", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            print(f"dsokr: {str(stop) or 'interrupted'}", file=sys.stderr)
            raise typer.Exit(130) from stop


app = typer.Typer(cls=OneSentence, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
console = Console()

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]

INDEX = re.compile(r"(, the first)? at index \d+,?(?=[ :])")  # in a note; it is not the row of a table

EXTRAS = {
    "chem": ["rdkit"],
    "graphs": ["numba", "networkx"],
    "text": ["transformers"],
    "gnn": ["torch-geometric"],
    "ot": ["POT"],
    "search": ["faiss-cpu"],
    "serve": ["fastapi", "uvicorn"],
    "plots": ["matplotlib"],
    "tables": ["pyarrow"],
    "images": ["pillow"],
}


class Experiment(StrEnum):
    synthetic = "synthetic"
    smi2mol = "smi2mol"
    chebi20 = "chebi20"
    multilabel = "multilabel"
    label_ranking = "label_ranking"
    strings = "strings"
    vectors = "vectors"


class KernelName(StrEnum):
    linear = "linear"
    cosine = "cosine"
    gaussian = "gaussian"
    laplacian = "laplacian"
    tanimoto = "tanimoto"


class IndexKind(StrEnum):
    exact = "exact"
    flat = "flat"
    hnsw = "hnsw"
    ivfpq = "ivfpq"


class IndexDtype(StrEnum):
    float32 = "float32"
    float16 = "float16"


class SketchName(StrEnum):
    subsample = "subsample"
    gaussian = "gaussian"
    sparsified = "sparsified"
    hadamard = "hadamard"
    leverage = "leverage"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dsokr {__version__}")
        raise typer.Exit


@app.callback()
def dsokr(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Deep Sketched Output Kernel Regression."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report and the model.")] = Path("dsokr-demo"),
    seed: Seed = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds, for trying it out; the numbers mean nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Learn to read SMILES on molecules that are generated here, compare with baselines, and write a report."""
    from studies import demo as experiment

    size = experiment.QUICK if quick else experiment.Size()
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file. Choose a folder with --out.")
    outcome = experiment.run(out, size, seed, say=_teller(as_json))
    if as_json:
        rows = [row._asdict() for row in outcome.rows]
        _print_json({"rows": rows, "size": outcome.size, "report": str(outcome.report)})
        return
    table = Table(*experiment.COLUMNS)
    for row in outcome.rows:
        table.add_row(*experiment.cells(row))
    console.print(table)
    console.print(f"The report: {outcome.report}", soft_wrap=True)


@app.command()
def reproduce(
    name: Annotated[Experiment, typer.Argument(help="Which experiment of the paper.")],
    quick: Annotated[bool, typer.Option("--quick", help="The same code on a small task, in about a minute.")] = False,
    reduced: Annotated[bool, typer.Option("--reduced", help="Smaller, for two cores.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; by default DSOKR_DATA, or the user's cache.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Folder of the JSON lines; finished rows are not computed again.")
    ] = Path("results"),
    figure: Annotated[
        Path | None, typer.Option(help="Where to draw the figure; by default beside the results.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Re-make a table or figure of the paper."""
    from dsokr.compute import resolve_device
    from studies.__main__ import EXPERIMENTS, Asked

    if quick and reduced:
        raise InputError("Choose one of --quick and --reduced.")
    size: Any = "quick" if quick else "reduced" if reduced else "full"
    asked = Asked(size, results, figure, data_dir, resolve_device(device), _teller(as_json))
    done = EXPERIMENTS[name.value](asked)
    if as_json:
        _print_json({"rows": done.rows, "figure": str(done.figure)})
        return
    table = Table(*done.header)
    for cells in done.cells:
        table.add_row(*cells)
    console.print(table)
    console.print(f"The figure: {done.figure}", soft_wrap=True)


@app.command()
def select_size(
    outputs: Annotated[Path, typer.Argument(help="Outputs as rows: .npy, .npz (scipy sparse), .csv or .tsv.")],
    kernel: KernelName = KernelName.linear,
    gamma: Annotated[float | None, typer.Option(help="For the gaussian and laplacian kernels.")] = None,
    sketch: SketchName = SketchName.subsample,
    sizes: Annotated[str, typer.Option(help="Sizes to try, with commas; by default up to half the outputs.")] = "",
    tolerance: Annotated[float, typer.Option(help="Share of the best-to-worst range that is good enough.")] = 0.01,
    replicates: Annotated[int, typer.Option(min=1)] = 3,
    plot: Annotated[Path | None, typer.Option(help="Draw the curve here (.png, .svg or .pdf).")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Choose the sketch size for one's own outputs by Perfect h, on a tenth of them held out."""
    from dsokr import selection
    from dsokr.compute import resolve_device
    from studies import own_outputs

    if plot is not None:
        own_outputs.check_picture(plot)
    train, held_out = own_outputs.split(own_outputs.read(outputs), seed)
    curve = selection.perfect_h(
        own_outputs.kernel(kernel.value, gamma),
        train,
        held_out,
        own_outputs.sketch(sketch.value),
        own_outputs.sizes(sizes, train),
        generator=own_outputs.generator(seed),
        replicates=replicates,
        device=resolve_device(device),
    )
    chosen = selection.choose_size(curve, tolerance)
    if plot is not None:
        selection.plot_sizes(curve, chosen, label="distance²").figure.savefig(plot)
    if as_json:
        _print_json({"size": chosen, "sizes": curve.sizes, "loss": curve.mean().tolist()})
        return
    table = Table("m", "distance² missed")
    for m, value in zip(curve.sizes, curve.mean().tolist(), strict=True):
        table.add_row(str(m), f"{value:.6g}", style="bold" if m == chosen else "")
    console.print(table)
    console.print(f"m = {chosen} is the smallest size within {tolerance:.1%} of the best-to-worst range.")


@app.command()
def fit(
    train: Annotated[Path | None, typer.Option(help="Table of pairs: CSV, TSV, JSON lines, Parquet.")] = None,
    inputs: Annotated[
        str | None, typer.Option("--input", "--input-columns", help="Column of the inputs; several as a,b,c or x*.")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option("--output", "--output-columns", help="Column of the outputs; several as a,b,c or y*.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model and its report.")] = None,
    input_kind: Annotated[str | None, typer.Option(help="vector, text, string, smiles or image; else guessed.")] = None,
    output_kind: Annotated[
        str | None, typer.Option(help="vector, labels, ranking, string or smiles; else guessed.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="What makes outputs alike, such as morgan or wl:bonds=no.")] = None,
    network: Annotated[str | None, typer.Option(help="What reads the inputs, such as mlp:hidden=512.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Folder or name of a pre-trained text encoder.")] = None,
    decoder: Annotated[str | None, typer.Option(help="candidates (of a list), search (of all) or auto.")] = None,
    size: Annotated[str | None, typer.Option(help="Outputs that make the basis; auto chooses by Perfect h.")] = None,
    valid: Annotated[Path | None, typer.Option(help="Table of pairs to validate on.")] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Share of the pairs held out without --valid; 0.1 by default.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Most epochs to train.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    learning_rate: Annotated[float | None, typer.Option()] = None,
    patience: Annotated[int | None, typer.Option(help="Epochs without gain before it stops; 10 by default.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="0 by default.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1.")] = None,
    on_error: Annotated[str | None, typer.Option(help="skip rows that cannot be used (default), or fail.")] = None,
    config: Annotated[Path | None, typer.Option(help="The same options in a TOML file.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Give up an interrupted training, or a model of another task in --out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train on one's own table of inputs and outputs. Ctrl-C, and the same command again goes on."""
    given = {name: value for name, value in locals().items() if name not in ("config", "as_json", "inputs", "outputs")}
    from dsokr.commands import fitting, options

    asked = options.asked(config, given | {"input": inputs, "output": outputs})
    with _notes():
        done = fitting.fit(asked, say=_teller(as_json))
    _print_skipped(done.problems, as_json)
    if as_json:
        _print_json({"model": str(done.folder), "report": str(done.report), **done.predictor.facts})
        return
    console.print(f"The model: {done.folder}\nThe report: {done.report}", soft_wrap=True, highlight=False)


Model = Annotated[Path, typer.Argument(help="Folder of a model made by `dsokr fit`.")]
OnError = Annotated[str, typer.Option(help="skip rows that cannot be used, or fail.")]
CandidatesColumn = Annotated[str | None, typer.Option(help="Column of the candidates, if it is not clear.")]
Top = Annotated[int | None, typer.Option(help="Candidates for each input; 10 by default.")]
Keep = Annotated[str, typer.Option(help="Columns of the inputs to carry along, with commas between.")]
RuleName = Annotated[str | None, typer.Option(help="How candidates are scored: kernel, projected or cosine.")]


@app.command()
def predict(
    model: Model,
    inputs: Annotated[Path, typer.Argument(help="Table with the columns of the inputs in training.")],
    out: Annotated[Path, typer.Option(help="Table to write: .csv, .tsv, .jsonl or .parquet.")],
    candidates: Annotated[
        Path | None, typer.Option(help="Rank these instead: a table, a .smi list, or an index of `dsokr embed`.")
    ] = None,
    candidates_column: CandidatesColumn = None,
    top: Top = None,
    rule: RuleName = None,
    keep: Keep = "",
    on_error: OnError = "skip",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict the outputs of a table of inputs; with candidates, the best of them for each input."""
    from dsokr.commands import Predictor, prediction
    from dsokr.commands.problems import Problems

    job = prediction.Job(inputs, out, candidates, candidates_column, top, rule, keep)
    problems = Problems.of(on_error)
    with _notes():
        done = prediction.write(Predictor.load(model, device), job, problems)
    _print_skipped(problems, as_json)
    if as_json:
        _print_json({"out": str(out), "skipped": len(problems.found), **done.facts()})
        return
    console.print(f"{done.sentence()}\nThe table: {out}", soft_wrap=True, highlight=False)


@app.command()
def rank(
    model: Model,
    inputs: Annotated[Path, typer.Argument(help="Table with the columns of the inputs in training.")],
    candidates: Annotated[
        Path, typer.Option("--candidates", "--index", help="A table, a .smi list, or an index of `dsokr embed`.")
    ],
    out: Annotated[Path, typer.Option(help="Table to write: .csv, .tsv, .jsonl or .parquet.")],
    candidates_column: CandidatesColumn = None,
    top: Top = None,
    rule: RuleName = None,
    keep: Keep = "",
    on_error: OnError = "skip",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Rank one's own candidates for every input of a table."""
    predict(model, inputs, out, candidates, candidates_column, top, rule, keep, on_error, device, as_json)


@app.command()
def evaluate(
    model: Model,
    test: Annotated[Path, typer.Argument(help="Table of pairs, with the columns of training.")],
    candidates: Annotated[
        Path | None, typer.Option(help="Rank the right answers among these: a table or a .smi list.")
    ] = None,
    candidates_column: CandidatesColumn = None,
    on_error: OnError = "skip",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare predictions with the right answers of a table."""
    from dsokr.commands import Predictor, evaluation
    from dsokr.commands.problems import Problems

    if candidates is None and candidates_column is not None:
        raise InputError("--candidates-column names a column of a file of candidates: name the file with --candidates.")
    problems = Problems.of(on_error)
    with _notes():
        done = evaluation.of_table(Predictor.load(model, device), test, problems, candidates, candidates_column)
    _print_skipped(problems, as_json)
    if as_json:
        _print_json({"n": len(done.cells), "skipped": len(problems.found), "metrics": done.metrics})
        return
    table = Table("metric", "value", "what it means")
    for cells in evaluation.rows(done.metrics):
        table.add_row(*cells)
    console.print(table)
    console.print(evaluation.sentence(done.metrics, len(done.cells)), soft_wrap=True, highlight=False)


@app.command()
def report(
    model: Model,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    test: Annotated[Path | None, typer.Option(help="Table of pairs to test on, with the columns of training.")] = None,
    on_error: OnError = "skip",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write what was trained, how good it is and what it says as one HTML page."""
    from dsokr.commands import Predictor, evaluation
    from dsokr.commands import report as pages
    from dsokr.commands.problems import Problems

    pages.check_page(out)
    problems = Problems.of(on_error)
    with _notes():
        predictor = Predictor.load(model, device)
        tested = None if test is None else evaluation.of_table(predictor, test, problems)
        pages.write(predictor, out, tested, str(model))
    _print_skipped(problems, as_json)
    if as_json:
        _print_json({"report": str(out)})
        return
    console.print(f"The report: {out}", soft_wrap=True, highlight=False)


@app.command()
def embed(
    model: Model,
    library: Annotated[Path, typer.Argument(help="Candidates: a table, a .smi list, or lines; compressed or not.")],
    out: Annotated[Path, typer.Option(help="Folder for the index.")],
    kind: Annotated[
        IndexKind | None,
        typer.Option(help="exact, or by FAISS: flat, hnsw or ivfpq. By default as it is; a new index is exact."),
    ] = None,
    rule: RuleName = None,
    dtype: Annotated[IndexDtype, typer.Option(help="float16 is half the size.")] = IndexDtype.float32,
    recall: Annotated[float, typer.Option(help="Share of the 10 best that hnsw and ivfpq must find.")] = 0.95,
    candidates_column: CandidatesColumn = None,
    on_error: OnError = "skip",
    device: Device = "auto",
    restart: Annotated[
        bool, typer.Option("--restart", help="Give up what is in the folder, if it is an index.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Embed a library of candidates once, to search it many times. Ctrl-C, and the same command again goes on."""
    from dsokr.index import BuildOptions
    from dsokr.commands import Predictor, embedding
    from dsokr.commands.problems import Problems

    problems = Problems.of(on_error)
    with _notes():
        predictor = Predictor.load(model, device)
        wanted = rule or (predictor.rule if kind else None)
        options = BuildOptions(kind and kind.value, wanted, dtype.value, recall)  # type: ignore[arg-type] # checked there
        done = embedding.embed(
            predictor, library, out, options, problems, column=candidates_column, say=_teller(as_json), restart=restart
        )
    _print_skipped(problems, as_json)
    head = done.index.head
    if as_json:
        facts = {"candidates": head.count, "skipped": head.skipped, "duplicates": done.duplicates}
        _print_json({"index": str(out), **facts, "kind": head.kind, "recall@10": head.recall, "seconds": done.seconds})
        return
    console.print(f"{done.sentence()}\nThe index: {out}", soft_wrap=True, highlight=False)


@app.command()
def serve(
    model: Model,
    index: Annotated[Path | None, typer.Option(help="Index of `dsokr embed`; without it, the known outputs.")] = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 is for everyone on the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = 10.0,
    most: Annotated[int, typer.Option("--max-k", min=1, help="Candidates that may be asked for.")] = 100,
    allowed: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another name to answer to, such as that of a proxy. May be repeated."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Show the model as a web page: type an input, see the best candidates. Once it runs, it asks nothing outside."""
    from dsokr.serve import Limits, create_app, server
    from dsokr.commands import Predictor, embedding

    if not 0 < timeout < math.inf:
        raise InputError(f"--timeout must be positive and finite. Got {timeout}.")
    with _notes():
        predictor = Predictor.load(model, device)
        candidates = embedding.opened(predictor, index)
    examples = embedding.example_inputs(predictor)
    app = create_app(predictor, candidates, Limits(seconds=timeout, k=most), examples, [host, *(allowed or [])])
    server.run(app, host, port, say=_teller(False))


@app.command()
def info(as_json: AsJson = False) -> None:
    """Versions, devices, and which optional parts are installed."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts = {
        "dsokr": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightning", "scikit-learn")},
        "devices": ["cpu", *gpus],
        "extras": {extra: all(_is_installed(package) for package in needs) for extra, needs in EXTRAS.items()},
    }
    if as_json:
        _print_json(facts)
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        if name != "extras":
            table.add_row(name, ", ".join(value) if isinstance(value, list) else str(value))
    for extra, there in facts["extras"].items():  # type: ignore[attr-defined] # a dict
        table.add_row(f"extra: {extra}", "installed" if there else escape(f'missing: pip install "dsokr[{extra}]"'))
    console.print(table)


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings as sentences, each once, without the place in the code, or in a list there, that they come from."""
    said: set[str] = set()

    def say(message: Warning | str, *_: Any) -> None:
        note = INDEX.sub("", str(message))
        about = note.partition(": ")[0]  # what follows may count the rows at hand
        if about not in said:
            said.add(about)
            print(f"dsokr: note: {note}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = say  # type: ignore[assignment] # takes more than it needs
        yield


def _print_skipped(problems: Any, as_json: bool) -> None:
    for line in [] if as_json else problems.lines():
        print(line, file=sys.stderr)


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _teller(as_json: bool) -> Any:
    """Progress goes to standard error, so that standard output stays clean for the answer."""
    progress = Console(stderr=True, quiet=as_json)
    return lambda line: progress.print(line, highlight=False, soft_wrap=True)


def _print_json(facts: dict[str, Any]) -> None:
    print(json.dumps(facts, indent=2, allow_nan=False))


if __name__ == "__main__":
    app()
