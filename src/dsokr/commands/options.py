"""The options of the commands, on the command line or, for `dsokr fit`, in a TOML file."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from dsokr.errors import InputError, suggest

Say = Callable[..., None]  # prints a line; with ``passing=True`` one that the next replaces


class Result(NamedTuple):
    """What a command returns: facts for programs, and texts or tables for people."""

    facts: dict[str, Any]
    texts: list[Any]


OnError = StrEnum("OnError", ["auto", "skip", "fail"])
SHARES = {"auto": 0.1, "skip": 1.0, "fail": 0.0}  # of the rows that may be skipped

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Folder = Annotated[Path, typer.Argument(help="Folder of a model made by `dsokr fit`.")]
Column = Annotated[str | None, typer.Option(help="Column of the candidates, if it is not clear.")]
CANDIDATES = typer.Option(
    "--candidates", "--index", help="A table, a .smi list, or an index of `dsokr embed`, also in Milvus."
)
Pool = Annotated[str | None, typer.Option(help="Rows with the same cell here are one input, such as several spectra.")]
Rule = Annotated[str | None, typer.Option(help="How candidates are scored: kernel, projected or cosine.")]
Ray = Annotated[
    str | None, typer.Option(help="Work on a Ray cluster: HOST:PORT, auto, or local for one on this machine.")
]
NOT_IN_CONFIG = {"config", "restart", "as_json"}


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the options in a TOML file the defaults of the command. Paths in it are relative to the file."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as TOML: {getattr(error, 'strerror', None) or error}.") from error
    types = {name: kind for name, kind in get_type_hints(FitOptions).items() if name not in NOT_IN_CONFIG}
    context.default_map = {}
    for key, value in values.items():
        name, items = key.replace("-", "_"), value if isinstance(value, list) else [value]
        if name not in types:
            choices = f"{suggest(name, types)} Choose from {', '.join(types)}."
            raise InputError(f"{path}: there is no option {key!r}.{choices}")
        if "Path" in str(types[name]) or (name == "encoder" and (path.parent / str(value)).is_dir()):
            items = [path.parent / str(item) for item in items]
        context.default_map[name] = list(map(str, items)) if types[name] == list[str] else ",".join(map(str, items))
    return path


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all commands that read tables have in common."""

    on_error: Annotated[
        OnError, typer.Option(help="Rows that cannot be used: skip any, fail at any, or skip up to a tenth (auto).")
    ] = OnError.auto
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto"
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """Train on your own table of inputs and outputs. Interrupt with Ctrl-C; run the same command to resume.

    What is not given is chosen from the data and printed.
    """

    train: Annotated[Path, typer.Option(help="Table of pairs: CSV, TSV, JSON lines, Parquet.")]
    input: Annotated[list[str], typer.Option("--input", "--input-columns", help="Inputs: x, or a,b,c, or x*.")]
    output: Annotated[list[str], typer.Option("--output", "--output-columns", help="Outputs: y, or a,b,c, or y*.")]
    out: Annotated[Path, typer.Option(help="Folder for the model and its report.")]
    input_kind: Annotated[str, typer.Option(help="vector, text, string, smiles, image or spectrum.")] = "auto"
    output_kind: Annotated[str, typer.Option(help="vector, labels, ranking, string or smiles.")] = "auto"
    kernel: Annotated[str, typer.Option(help='Kernel on the outputs, such as "Gaussian(0.5)".')] = "auto"
    regressor: Annotated[str, typer.Option(help='What learns from the inputs, such as "Forest()".')] = "auto"
    network: Annotated[str, typer.Option(help='A network alone, such as "MLP(hidden=(512,))".')] = "auto"
    encoder: Annotated[str, typer.Option(help="Folder or name of a pre-trained text encoder.")] = ""
    decoder: Annotated[str, typer.Option(help='candidates of a list, a search of all, or "GraphSearch()".')] = "auto"
    loss: Annotated[str, typer.Option(help='Loss of networks, such as "Huber(1.0)" or "Ranked()".')] = "auto"
    temperature: Annotated[float | None, typer.Option(help="Of the loss Ranked; lower: closer rivals.")] = None
    seeds: Annotated[int, typer.Option(min=1, help="Networks to train and combine.")] = 1
    dim: Annotated[int | None, typer.Option(min=1, help="Best directions of the basis to keep.")] = None
    size: Annotated[str, typer.Option(help="Outputs that make the basis; auto chooses by Perfect h.")] = "auto"
    valid: Annotated[Path | None, typer.Option(help="Table of pairs to validate on.")] = None
    validation_fraction: Annotated[float, typer.Option(min=0, max=0.99, help="Held out without --valid.")] = 0.1
    group: Annotated[str | None, typer.Option(help="A column: rows of one value stay together in splits.")] = None
    budget: Annotated[str | None, typer.Option(help='Time for all: "10 min". Too little means fewer rows.')] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Most epochs to train.")] = None
    batch_size: Annotated[int | None, typer.Option(min=1)] = None
    learning_rate: float | None = None
    patience: Annotated[int | None, typer.Option(min=1, help="Epochs without gain before training stops.")] = None
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1)] = 0
    config: Annotated[
        Path | None, typer.Option(is_eager=True, callback=read_config, help="The same options in a TOML file.")
    ] = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard an interrupted training, or a model of another task in --out.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class PossibleOptions(Options):
    """A model, and which candidates each input may have."""

    model: Folder
    match: Annotated[
        list[str] | None,
        typer.Option(help="Only candidates with the same cell as the input: formula, or formula=COLUMN of the inputs."),
    ] = None
    within: Annotated[
        list[str] | None,
        typer.Option(help="Only those near the input: exact_mass=precursor_mz-1.00728:10ppm, or exact_mass:0.01."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PredictOptions(PossibleOptions):
    """Predict the outputs of a table of inputs; with candidates, rank them for each input."""

    inputs: Annotated[Path, typer.Argument(help="Table with the columns of the inputs in training.")]
    out: Annotated[Path, typer.Option(help="Table to write: .csv, .tsv, .jsonl or .parquet.")]
    candidates: Annotated[Path | None, CANDIDATES] = None
    candidates_column: Column = None
    candidates_for: Annotated[
        str | None, typer.Option(help="A column of the inputs that lists the candidates of each, separated by ;.")
    ] = None
    show: Annotated[str, typer.Option(help="Columns of the candidates to copy to the table, with commas.")] = ""
    top: Annotated[int | None, typer.Option(min=1, help="Candidates for each input; 10 by default.")] = None
    rule: Rule = None
    coverage: Annotated[
        float | None, typer.Option(help="All candidates of a set that holds the right one so often: 0.9.")
    ] = None
    max_error: Annotated[float | None, typer.Option(help="Answer only where at most this share is wrong: 0.05.")] = None
    pool: Pool = None
    keep: Annotated[str, typer.Option(help="Columns of the inputs to copy to the table, separated by commas.")] = ""
    explain: Annotated[Path | None, typer.Option(help="Page to write: why the first answers have their scores.")] = None
    ray: Ray = None


@dataclass(frozen=True, kw_only=True)
class RankOptions(PredictOptions):
    """Rank your own candidates for every input of a table: those of --candidates, or of --candidates-for."""

    def __post_init__(self) -> None:
        if self.candidates is None and self.candidates_for is None:
            raise typer.BadParameter("Name what to rank with --candidates, or with --candidates-for.")


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(PossibleOptions):
    """Learn from pairs that were not trained on how far to trust the model: for --coverage and --max-error."""

    pairs: Annotated[Path, typer.Argument(help="Table of pairs, with the columns of training.")]
    group: Annotated[str | None, typer.Option(help="A column: coverage holds within each of its values.")] = None


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(PossibleOptions):
    """Compare predictions with the right answers of a table."""

    test: Annotated[Path, typer.Argument(help="Table of pairs, with the columns of training.")]
    candidates: Annotated[Path | None, typer.Option(help="Rank the right answers among these.")] = None
    candidates_column: Column = None
    pool: Pool = None


@dataclass(frozen=True, kw_only=True)
class ReportOptions(PossibleOptions):
    """Write what was trained, how good it is and what it answers as one HTML page."""

    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html")
    test: Annotated[Path | None, typer.Option(help="Table of pairs to test on, with the columns of training.")] = None


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(Options):
    """Embed a library of candidates once, to search it many times. Interrupt with Ctrl-C; run it again to resume."""

    model: Folder
    library: Annotated[
        Path, typer.Argument(help="Candidates: a table, a .smi list or lines, compressed or not; or shards.")
    ]
    out: Annotated[
        str,
        typer.Option(help="Folder for the index or, with --ray, shards; milvus://HOST:PORT/COLLECTION; x.db."),
    ]
    kind: Annotated[str | None, typer.Option(help="exact, hnsw or ivfpq; by default as it is, or exact.")] = None
    rule: Rule = None
    dtype: Annotated[str, typer.Option(help="float32, or float16 at half the size.")] = "float32"
    recall: Annotated[float, typer.Option(help="Share of the 10 best that hnsw and ivfpq must find.")] = 0.95
    candidates_column: Column = None
    sort_by: Annotated[
        str | None,
        typer.Option(help="A column, such as exact_mass: candidates within a window of it are found faster."),
    ] = None
    ray: Ray = None
    restart: Annotated[bool, typer.Option("--restart", help="Discard what is there.")] = False


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(Options):
    """Add, replace and delete candidates of an index, all at once. Whoever searches it meanwhile is not disturbed.

    A candidate that is added although it is there is replaced: its name and its columns are the new ones.
    """

    index: Annotated[str, typer.Argument(help="Index of `dsokr embed`: a folder, or an address of Milvus.")]
    model: Annotated[Path, typer.Option(help="Folder of the model that it was embedded with.")]
    add: Annotated[Path | None, typer.Option(help="Candidates to add or replace, as for `dsokr embed`.")] = None
    delete: Annotated[Path | None, typer.Option(help="Candidates to delete.")] = None
    candidates_column: Column = None
