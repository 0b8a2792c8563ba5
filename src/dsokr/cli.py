"""The command line: parse, call, print."""

from __future__ import annotations

import json
import platform
import sys
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
        except KeyboardInterrupt as stop:
            print(f"dsokr: {str(stop) or 'interrupted'}", file=sys.stderr)
            raise typer.Exit(130) from stop


app = typer.Typer(cls=OneSentence, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
console = Console()

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]

EXTRAS = {
    "chem": ["rdkit"],
    "graphs": ["numba", "networkx"],
    "text": ["transformers"],
    "ot": ["POT"],
    "search": ["faiss-cpu"],
    "serve": ["fastapi", "uvicorn"],
    "plots": ["matplotlib"],
}


class Experiment(StrEnum):
    synthetic = "synthetic"
    smi2mol = "smi2mol"


class KernelName(StrEnum):
    linear = "linear"
    cosine = "cosine"
    gaussian = "gaussian"
    laplacian = "laplacian"
    tanimoto = "tanimoto"


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
    from dsokr.experiments import demo as experiment

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
    from dsokr.devices import resolve_device
    from dsokr.experiments.reproduce import EXPERIMENTS, Asked

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
    from dsokr.devices import resolve_device
    from dsokr.experiments import own_outputs

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
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    app()
