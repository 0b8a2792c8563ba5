"""The command line: read the options, call, print."""

from __future__ import annotations

import json
import platform
import re
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from typer.core import TyperGroup

from dsokr import __version__
from dsokr.commands import options
from dsokr.commands.options import Say, takes
from dsokr.errors import DSOKRError, InputError

LINE_EVERY = 10.0  # seconds between passing lines in a log
INDEX = re.compile(r"(, the first)? at index \d+,?(?=[ :])")  # in a warning; it is not the row of a table
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


class Commands(TyperGroup):
    """Prints an expected error as one sentence, with exit code 1, and what to do after Ctrl-C, with 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader closed the pipe; exit quietly
        except (DSOKRError, KeyboardInterrupt) as error:
            text = str(error).replace("Training.learning_rate", "--learning-rate") or "interrupted"
            print(f"dsokr: {text}", file=sys.stderr)
            raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 1) from error
        except OSError as error:
            file = error.filename2 or error.filename
            what = f"{file} cannot be read or written" if file else "The system refused"
            print(f"dsokr: {what}: {error.strerror or error}.", file=sys.stderr)
            raise typer.Exit(1) from error


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dsokr {__version__}")
        raise typer.Exit


@app.callback()
def dsokr(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Deep Sketched Output Kernel Regression."""


@app.command()
@takes(options.FitOptions)
def fit(**given: Any) -> None:
    """Train on your own table of inputs and outputs. Interrupt with Ctrl-C; run the same command to resume."""
    _run("fit", "fit", options.FitOptions(**given))


@app.command()
@takes(options.PredictOptions)
def predict(**given: Any) -> None:
    """Predict the outputs of a table of inputs; with candidates, rank them for each input."""
    _run("predict", "predict", options.PredictOptions(**given))


@app.command()
@takes(options.PredictOptions)
def rank(**given: Any) -> None:
    """Rank your own candidates for every input of a table."""
    if given["candidates"] is None:
        raise InputError("Name the candidates to rank with --candidates.")
    _run("predict", "predict", options.PredictOptions(**given))


@app.command()
@takes(options.EvaluateOptions)
def evaluate(**given: Any) -> None:
    """Compare predictions with the right answers of a table."""
    _run("evaluate", "evaluate_table", options.EvaluateOptions(**given))


@app.command()
@takes(options.ReportOptions)
def report(**given: Any) -> None:
    """Write what was trained, how good it is and what it answers as one HTML page."""
    _run("report", "report", options.ReportOptions(**given))


@app.command()
@takes(options.EmbedOptions)
def embed(**given: Any) -> None:
    """Embed a library of candidates once, to search it many times. Interrupt with Ctrl-C; run again to resume."""
    _run("library", "embed", options.EmbedOptions(**given))


def _run(module: str, function: str, given: options.Options) -> None:
    """Call the function of a command and print its result; on standard error, the rows that were skipped."""
    command = getattr(import_module(f"dsokr.commands.{module}"), function)
    problems = import_module("dsokr.commands.tables").Problems(given.on_error == "fail")
    with _notes(), _progress(given.as_json) as say:
        result = command(given, problems, say)
    _print(given.as_json, result, problems.lines())


@app.command()
def serve(
    model: options.Folder,
    index: Annotated[Path | None, typer.Option(help="Index of `dsokr embed`; without it, the known outputs.")] = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 is for everyone on the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")] = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = 10.0,
    most: Annotated[int, typer.Option("--max-k", min=1, help="Candidates that may be asked for.")] = 100,
    allowed: Annotated[
        list[str] | None, typer.Option("--allow-host", help="Another name to answer to, such as that of a proxy.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Show the model as a web page: type an input, see the best candidates. It contacts no other host."""
    from dsokr.commands.library import open_index
    from dsokr.commands.predictor import Predictor
    from dsokr.serve import Limits, create_app, server

    limits = Limits(seconds=timeout, k=most)
    with _notes(), _progress(False) as say:
        predictor = Predictor.load(model, device)
        examples = tuple(dict.fromkeys(example["input"] for example in predictor.facts.get("examples", [])))[:4]
        hosts = [host, *(allowed or [])]
        page = create_app(predictor, open_index(predictor, index), limits, examples, hosts)
        server.run(page, host, port, say=say)


@app.command()
def info(as_json: options.AsJson = False) -> None:
    """Print versions, devices, and which optional parts are installed: what a bug report needs."""
    import torch

    facts = {"dsokr": __version__, "python": platform.python_version(), "system": platform.platform()}
    facts |= {name: version(name) for name in ("torch", "lightning", "scikit-learn")}
    devices = ["cpu", *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))]
    extras = {extra: all(map(_is_installed, needs)) for extra, needs in EXTRAS.items()}
    table = Table(show_header=False)
    for name, value in {**facts, "devices": ", ".join(devices)}.items():
        table.add_row(name, value)
    for extra, is_there in extras.items():
        table.add_row(f"extra: {extra}", "installed" if is_there else escape(f'missing: pip install "dsokr[{extra}]"'))
    _print(as_json, options.Result({**facts, "devices": devices, "extras": extras}, [table]))


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


@contextmanager
def _notes() -> Iterator[None]:
    """Print warnings as sentences, each once, without the place in the code, or in a list, that they come from."""
    said: set[str] = set()

    def show(message: Warning | str, *_: Any) -> None:
        note = INDEX.sub("", str(message))
        about = note.partition(": ")[0]  # what follows may count the rows at hand
        if about not in said:
            said.add(about)
            print(f"dsokr: note: {note}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment] # takes more than it needs
        yield


@contextmanager
def _progress(quiet: bool) -> Iterator[Say]:
    """Yield a function that prints lines on standard error: passing ones in place in a terminal, rarely in a log."""
    console, printed = Console(stderr=True, quiet=quiet), time.monotonic()
    status = Status("", console=console)

    def say(line: str, passing: bool = False) -> None:
        nonlocal printed
        if passing and console.is_terminal:
            status.start()
            status.update(escape(line))
        elif not passing or time.monotonic() - printed > LINE_EVERY:
            printed = time.monotonic()
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    try:
        yield say
    finally:
        status.stop()


def _print(as_json: bool, result: options.Result, skipped: list[str] | None = None) -> None:
    if as_json:
        print(json.dumps(result.facts, indent=2, allow_nan=False))
        return
    for line in skipped or []:
        print(line, file=sys.stderr)
    for text in result.texts:
        Console().print(text, highlight=False, markup=False, soft_wrap=isinstance(text, str))


if __name__ == "__main__":
    app()
