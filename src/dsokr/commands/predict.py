"""Predictions and ranked candidates as a table."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from dsokr.commands.cells import count_of, parse_numbers
from dsokr.commands.library import Library, describe_candidates
from dsokr.commands.options import PredictOptions, Result, Say
from dsokr.commands.predictor import Predictor, read_column
from dsokr.commands.tables import Problems, Table, check_writable, without_compression, write_skipped, write_table
from dsokr.decoders import EmbeddedOutputs, Ranking
from dsokr.decoders.scan import Scan
from dsokr.errors import InputError
from dsokr.index import CandidateIndex, fingerprint
from dsokr.outputs import take
from dsokr.rules import Rule, check_rule

TOP = 10  # candidates for each input


class Hit(NamedTuple):
    """An answer: the candidate as it is written, its name if it has one, and its score."""

    cell: str
    name: str
    score: float


def predict(options: PredictOptions, problems: Problems, say: Say) -> Result:
    """Answer every input of a table; write the table of answers, and the list of the rows that were skipped."""
    _check_options(options)
    predictor, table = Predictor.load(options.model, options.device), Table(options.inputs)
    columns = predictor.input.columns
    if table.is_list and len(columns) > 1:
        raise InputError(f"{table.path} is a list. The inputs have {len(columns)} columns: {', '.join(columns)}.")
    names = table.columns[:1] if table.is_list else columns
    keep = table.find_columns([options.keep]) if options.keep else []
    rows = table.read(problems, [*names, *keep])
    cells, read = read_column(rows, predictor.input, problems, names)
    if not read.good:
        raise table.unusable(rows.numbers, problems)
    problems.check()
    hits, candidates, duplicates = _answer(predictor, predictor.model.coefficients(read.values), options, problems, say)
    taken = {"row", "input", "rank", "prediction", "name", "score"}
    shown: dict[str, list[Any]] = {"row": rows.numbers}
    shown |= {f"kept_{name}" if name in taken else name: rows.cells[name] for name in keep}
    shown |= {"input": cells} if len(columns) == 1 else {}
    write_table(options.out, *_make_table(predictor, {name: take(shown[name], read.good) for name in shown}, hits))
    write_skipped(problems, without_compression(options.out).with_suffix(".skipped.csv"))
    what = f"{describe_candidates(candidates, duplicates)} ranked" if candidates else "Predictions"
    counts = {"inputs": len(hits), "candidates": candidates, "duplicates": duplicates, "skipped": len(problems.found)}
    texts = [f"{what} for {count_of(len(hits), 'input')}.", f"The table: {options.out}"]
    return Result({"out": str(options.out), **counts}, texts)


def _check_options(options: PredictOptions) -> None:
    is_index = options.candidates is not None and options.candidates.is_dir()
    check_writable(options.out, options.inputs, None if is_index else options.candidates)
    if options.candidates_column is not None and is_index:
        raise InputError(f"--candidates-column names a column of a file: {options.candidates} is an index.")
    for name in ("candidates_column", "top", "rule"):
        if getattr(options, name) is not None and options.candidates is None:
            raise InputError(f"--{name.replace('_', '-')} is about candidates. Name them with --candidates.")
    if options.rule is not None:
        check_rule(options.rule)


def _answer(
    predictor: Predictor, z: Tensor, options: PredictOptions, problems: Problems, say: Say
) -> tuple[list[list[Hit]], int, int]:
    """Return the decoder's answers, or the best of the candidates and how many there are, once and again."""
    if options.candidates is None:
        cells, scores = predictor.decode(z)
        return [[Hit(cell, "", score)] for cell, score in zip(cells, scores.tolist(), strict=True)], 0, 0
    top = options.top or TOP
    rule: Any = options.rule or predictor.rule
    if options.candidates.is_dir():
        index = CandidateIndex.open(options.candidates, fingerprint(predictor.basis))
        return _list_hits(index.search(z, top, rule), lambda at: (index.texts[at], index.names[at])), len(index), 0
    library = Library(predictor, options.candidates, options.candidates_column, problems)
    hits = rank_library(library, z, top, rule, say)
    skipped = len(problems.by_row(library.table.path))
    return hits, library.candidates, library.rows - library.candidates - skipped


def rank_library(library: Library, z: Tensor, top: int, rule: Rule, say: Say) -> list[list[Hit]]:
    """Return the best candidates of a file for every row of coordinates."""
    basis = library.predictor.basis
    scan = Scan(basis.check_coordinates(z), top, rule)
    held: dict[int, tuple[str, str]] = {}  # the best so far
    for block in library.blocks():
        if block.cells:
            held |= dict(enumerate(zip(block.cells, block.names, strict=True), scan.seen))
            EmbeddedOutputs(basis, block.values, keep=False).add_to(scan)
            held = {at: held[at] for at in set(scan.ranking().indices.flatten().tolist())}
            say(count_of(scan.seen, "candidate"), passing=True)
    library.check_some()
    return _list_hits(scan.ranking(), held.__getitem__)


def _list_hits(found: Ranking, look_up: Callable[[int], tuple[str, str]]) -> list[list[Hit]]:
    pairs = zip(found.indices.tolist(), found.scores.tolist(), strict=True)
    return [[Hit(*look_up(at), score) for at, score in zip(*row, strict=True)] for row in pairs]


def _make_table(
    predictor: Predictor, shown: Mapping[str, list[Any]], hits: list[list[Hit]]
) -> tuple[list[str], Iterator[list[Any]]]:
    """Return the header and a line for every answer: what is shown of the input, rank, prediction, name and score."""
    columns = predictor.output.columns
    predictions = [f"prediction_{name}" for name in columns] if len(columns) > 1 else ["prediction"]
    names = ["name"] if any(hit.name for some in hits for hit in some) else []

    def lines() -> Iterator[list[Any]]:
        for *before, some in zip(*shown.values(), hits, strict=True):
            for rank, hit in enumerate(some, start=1):
                cells = parse_numbers(hit.cell, columns).tolist() if len(columns) > 1 else [hit.cell]
                yield [*before, rank, *cells, *([hit.name] if names else []), float(f"{hit.score:.7g}")]

    return [*shown, "rank", *predictions, *names, "score"], lines()
