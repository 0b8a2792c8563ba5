"""The command line: read the options, call, print."""

import inspect
import json
import platform
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import Distribution, requires, version
from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from typer.core import TyperGroup

from dsokr import __version__
from dsokr.commands import options
from dsokr.errors import DSOKRError

INDEX = re.compile(r"(, the first)? at index \d+,?(?=[ :])")  # in a warning; it is not the row of a table
UsageError: Any = typer.BadParameter.__bases__[0]  # which newer versions of typer do not export


class Commands(TyperGroup):
    """Prints an expected error as one sentence, with exit code 1; after Ctrl-C with 130, after SIGTERM with 143."""

    def invoke(self, ctx: Any) -> Any:
        stopped: list[int] = []

        def stop(number: int, _: Any) -> None:
            stopped.append(number)
            raise KeyboardInterrupt

        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, stop)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader closed the pipe; exit quietly
        except (DSOKRError, KeyboardInterrupt) as error:
            text = str(error).replace("Training.learning_rate", "--learning-rate") or "interrupted"
            print(f"dsokr: {text}", file=sys.stderr)
            code = 128 + (stopped or [signal.SIGINT])[0]
            raise typer.Exit(code if isinstance(error, KeyboardInterrupt) else 1) from error
        except UsageError as error:
            print(f"dsokr: {error.format_message()}", file=sys.stderr)
            raise typer.Exit(2) from error
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


def _add_command(name: str, function: str, kind: type[options.Options]) -> None:
    """Add a command whose parameters are the fields of a dataclass; ``function`` is its module and name.

    It prints the result of the function and, on standard error, the rows that were skipped.
    """
    types, signature = get_type_hints(kind, include_extras=True), inspect.signature(kind)
    parameters = [parameter.replace(annotation=types[field]) for field, parameter in signature.parameters.items()]

    def command(**given: Any) -> None:
        chosen, (module, called) = kind(**given), function.split(".")
        problems = import_module("dsokr.commands.tables").Problems(options.SHARES[chosen.on_error])
        with _notes(), _show_progress(chosen.as_json) as say:
            result = getattr(import_module(f"dsokr.commands.{module}"), called)(chosen, problems, say)
        _print(chosen.as_json, result, problems.lines())

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] # typer reads it
    app.command(name, help=kind.__doc__)(command)


_add_command("fit", "fit.fit", options.FitOptions)
_add_command("predict", "predict.predict", options.PredictOptions)
_add_command("rank", "predict.predict", options.RankOptions)
_add_command("calibrate", "guarantee.calibrate", options.CalibrateOptions)
_add_command("evaluate", "evaluate.evaluate_table", options.EvaluateOptions)
_add_command("report", "evaluate.report", options.ReportOptions)
_add_command("embed", "embed.embed", options.EmbedOptions)
_add_command("update", "embed.update", options.UpdateOptions)


@app.command()
def serve(
    model: options.Folder,
    index: Annotated[str | None, typer.Option(help="Index of `dsokr embed`; without it, the known outputs.")] = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 is for everyone on the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free port.")] = 8000,
    timeout: Annotated[float, typer.Option(help="Seconds for an answer.")] = 10.0,
    most: Annotated[int, typer.Option("--max-k", min=1, help="Candidates that may be asked for.")] = 100,
    allowed: Annotated[
        list[str] | None, typer.Option("--allow-host", help="Another name to answer to, such as that of a proxy.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    keys: Annotated[
        Path | None, typer.Option(help="File of `dsokr key`: only clients with a key are answered.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests per second of one client; 0 is any number.")] = 0.0,
    certificate: Annotated[Path | None, typer.Option(help="PEM file of a certificate and its chain: HTTPS.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's key.")] = None,
    log: Annotated[Path | None, typer.Option(help="File for a JSON line per request or error; - is stderr.")] = None,
) -> None:
    """Show the model as a web page: type an input, see the best candidates. It contacts no other host."""
    from dsokr.commands.library import open_index
    from dsokr.commands.predictor import Predictor
    from dsokr.commands.reasons import explain_answer
    from dsokr.serve import Limits, create_app, read_keys, run

    limits, known = Limits(seconds=timeout, k=most, rate=rate), read_keys(keys) if keys else []
    with _notes(), _show_progress(False) as say:
        predictor = Predictor.load(model, device)
        predictor.decode(predictor.among(None).coordinates()[0][:1])  # compiles the search before the first request
        examples = tuple(dict.fromkeys(example["input"] for example in predictor.facts.get("examples", [])))[:4]
        hosts = [host, *(allowed or [])]
        reason = partial(explain_answer, predictor)
        opened = open_index(predictor, index)
        served = create_app(predictor, opened, limits, examples, hosts, reason, known)
        run(served, host, port, say=say, certificate=certificate, private_key=private_key, log=log)


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="File of keys; it is created if it does not exist.")],
    name: Annotated[str, typer.Argument(help="Who gets the key; it is in the log of the server.")],
    rate: Annotated[float, typer.Option(help="Requests per second; 0 is the limit of the server.")] = 0.0,
) -> None:
    """Add a key for `dsokr serve --keys` and print it. The file has only its hash: the key cannot be printed again."""
    from dsokr.serve import add_key

    print(add_key(file, name, rate))


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="Folder of a model, or of an index of `dsokr embed`.")],
    as_json: options.AsJson = False,
) -> None:
    """Check every file of a model or an index against its checksum; exit with 1 and the name of a damaged one."""
    from dsokr.index.stored import HEAD, Head
    from dsokr.saving import check_model

    if (folder / HEAD).is_file():
        count = Head.read_from(folder).verify(folder)
    else:
        count = len(check_model(folder)["sha256"]) + 1
    facts = {"folder": str(folder), "files": count}
    _print(as_json, options.Result(facts, [f"All {count} files of {folder} are as they were written."]))


@app.command()
def info(as_json: options.AsJson = False) -> None:
    """Print versions, devices, and which optional parts are installed: what a bug report needs."""
    import torch

    facts = {"dsokr": __version__, "python": platform.python_version(), "system": platform.platform()}
    facts |= {name: version(name) for name in ("torch", "lightning", "scikit-learn")}
    devices = ["cpu", *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))]
    extras: dict[str, bool] = {}
    for package, extra in re.findall(r"^([\w.-]+).*extra == .(\w+)", "\n".join(requires("dsokr") or []), re.MULTILINE):
        extras[extra] = extras.get(extra, True) and (package == "dsokr" or any(Distribution.discover(name=package)))
    lines = [f"{name:<20}{value}" for name, value in {**facts, "devices": ", ".join(devices)}.items()]
    for extra, is_there in extras.items():
        state = "installed" if is_there else f'missing: pip install "dsokr[{extra}]"'
        lines.append(f"{f'extra: {extra}':<20}{state}")
    _print(as_json, options.Result({**facts, "devices": devices, "extras": extras}, lines))


def _show_progress(quiet: bool) -> Any:
    return import_module("dsokr.compute").show_progress(quiet)  # torch is imported by what needs it, not by --help


@contextmanager
def _notes() -> Iterator[None]:
    """Print every warning once, as a sentence, without its line of code or its index in a list."""
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
