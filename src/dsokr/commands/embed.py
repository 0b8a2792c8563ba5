"""Embed a library of candidates into an index or, on a Ray cluster, into shards."""

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsokr import index as indexes
from dsokr.basis import SketchedBasis
from dsokr.commands.cells import count_of
from dsokr.commands.cluster import Cluster, connect
from dsokr.commands.formats import file_format, open_text
from dsokr.commands.kinds import Read
from dsokr.commands.library import Inspect, Library, Listed, describe, open_index
from dsokr.commands.options import EmbedOptions, Result, Say, UpdateOptions
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems
from dsokr.decoders import EmbeddedOutputs
from dsokr.errors import InputError, Interrupted, import_extra
from dsokr.files import checksum
from dsokr.index import Block, BuildOptions, build, fingerprint
from dsokr.index.shards import Folder, Shard, Shards, as_codes
from dsokr.outputs import take


def embed(options: EmbedOptions, problems: Problems, say: Say) -> Result:
    """Write an index of a file or of shards; with --ray, write shards. Call it again to resume."""
    work = _build_index if options.ray is None else _write_shards
    with _explain_stop(options.out, f"Run the same command to resume; {options.out} keeps what is done."):
        return work(options, problems, say)


@contextmanager
def _explain_stop(place: str, stopped: str) -> Iterator[None]:
    """Turn Ctrl-C and errors of files into sentences."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Interrupted(f"Stopped. {stopped}") from stop
    except OSError as error:
        raise InputError(f"{error.filename or place} cannot be read or written: {error.strerror or error}.") from error


def _build_index(options: EmbedOptions, problems: Problems, say: Say) -> Result:
    started, predictor = time.monotonic(), Predictor.load(options.model, options.device)
    rule: Any = options.rule or (predictor.rule if options.kind else None)
    if Shards.are_at(options.library):
        source: Any = Shards.open(options.library, fingerprint(predictor.basis))
        blocks, identity, columns = source.blocks, f"shards {source.source}", source.columns
    else:
        source = Library(predictor, options.library, options.candidates_column, problems, None)
        blocks, identity, columns = partial(_embed_blocks, source), _identify(source), source.wanted
    index = build(
        options.out,
        blocks,
        model=fingerprint(predictor.basis),
        dim=predictor.basis.dim,
        source=identity,
        columns=columns,
        options=BuildOptions(options.kind, rule, options.dtype, options.recall, options.sort_by),  # type: ignore[arg-type] # it checks them
        say=say,
        progress=lambda now: say(f"{now.rows:,} candidates, {now.rate:,.0f}/s", passing=True),
        restart=options.restart,
    )
    head = index.head
    duplicates = max(source.rows - head.count - head.skipped, 0)
    facts = {"index": options.out, "candidates": head.count, "skipped": head.skipped, "duplicates": duplicates}
    facts |= {"kind": head.kind, "recall@10": head.recall, "seconds": time.monotonic() - started}
    return Result(facts, [f"{describe(head.count, duplicates)} in the index {options.out}."])


def _identify(library: Library) -> str:
    return f"{checksum(library.table.path)} {', '.join(library.columns)}"


def _embed_blocks(library: Library, start: int) -> Iterator[Block]:
    basis = library.predictor.basis
    for block, read, skipped in _list_blocks(library, start):
        psi, diag = _embed(basis, block.values, block.places)
        codes = as_codes(block.codes)
        yield Block(block.cells, psi, diag, block.names, read, skipped, block.columns, codes)


def _list_blocks(library: Library, start: int = 0, spread: Any = None) -> Iterator[tuple[Listed, int, list[str]]]:
    """Yield the blocks after a row, each with its number of rows and a sentence for every skipped row."""
    file, found, last = str(library.table.path), library.problems.found, start
    for block in library.blocks(start, spread):
        if block.row > start:
            skipped = [found[file, at].sentence() for at in range(last + 1, block.row + 1) if (file, at) in found]
            yield block, block.row - last, skipped
            last = block.row


def _embed(basis: SketchedBasis, values: Any, places: list[int]) -> tuple[Tensor, Tensor]:  # (n, p), (n,)
    """Embed the values at these places."""
    if not places:
        return torch.empty(0, basis.dim), torch.empty(0)
    return EmbeddedOutputs(basis, take(values, places)).coordinates()


def update(options: UpdateOptions, problems: Problems, say: Say) -> Result:
    """Add, replace and delete candidates of an index in one atomic update."""
    if options.add is None and options.delete is None:
        raise InputError("Name a file of candidates with --add, with --delete, or with both.")
    predictor, place = Predictor.load(options.model, options.device), options.index
    index, column = open_index(predictor, place), options.candidates_column
    added: Iterable[Block] = ()
    deleted: Iterable[indexes.Listed] = ()
    if options.add is not None:
        added = _embed_blocks(Library(predictor, options.add, column, problems, index.head.columns), 0)
    if options.delete is not None:
        listed = Library(predictor, options.delete, column, problems).blocks()
        deleted = (indexes.Listed(some.cells, as_codes(some.codes)) for some in listed)
    model, key = index.head.model, predictor.output.key
    with _explain_stop(place, f"{place} is as it was."):
        changes = indexes.update(place, added, deleted, model=model, key=key, say=say)
    count = len(index) + changes.added - changes.deleted
    parts = ", ".join(f"{number:,} {name}" for name, number in changes._asdict().items() if name != "missing")
    lines = [f"{parts}: {count_of(count, 'candidate')} in the index {place}."]
    if changes.missing:
        lines.append(f"{count_of(changes.missing, 'candidate')} to be deleted were not in it.")
    return Result({"index": place, "candidates": count, **changes._asdict()}, lines)


@dataclass(frozen=True)
class Worker:
    """What a worker of a cluster holds. It skips the shards that an interrupted run has finished."""

    shards: Shards
    done: set[int]
    device: str
    basis: SketchedBasis

    @cached_property
    def _basis(self) -> SketchedBasis:
        return self.basis.to(self.device)

    def write(self, number: int, shard: Shard, places: list[int], values: Any) -> int:
        """Embed some of the values and write them as a shard; harmless to repeat after a lost worker."""
        if number not in self.done:
            self.shards.write_shard(number, shard, *_embed(self._basis, values, places))
        return number


def inspect_cells(shards: Shards, done: set[int], inspect: Inspect, number: int, cells: list[str]) -> tuple[Any, Any]:
    """Inspect cells and return their values; for a finished shard, read the findings from it."""
    if number not in done:
        read, codes, columns = inspect(cells)
        return (read._replace(values=None), codes, columns), read.values
    shard, place = shards.read_shard(number), {cell: at for at, cell in enumerate(cells)}
    bad = {place[cell]: reason for cell, reason in shard.bad.items()}
    return (Read(None, [place[text] for text in shard.texts], bad), shard.codes, shard.cells), None


def _write_shards(options: EmbedOptions, problems: Problems, say: Say) -> Result:
    """Read rows and find duplicates here, in the order of the library; inspect, embed and write on the cluster."""
    if options.kind or options.rule or options.sort_by:
        raise InputError("--kind, --rule and --sort-by are for an index: make one of the shards, with `dsokr embed`.")
    started, predictor = time.monotonic(), Predictor.load(options.model, "cpu")
    device = "cuda" if options.device.startswith("cuda") else "cpu"
    with _fetch(options.library) as path, connect(str(options.ray), device) as cluster:
        library, basis = Library(predictor, path, options.candidates_column, problems, None), predictor.basis
        dtype, source = BuildOptions(dtype=options.dtype).dtype, _identify(library)  # type: ignore[arg-type] # it checks it
        shards = Shards(Folder.at(options.out), fingerprint(basis), basis.dim, dtype, source, library.wanted)
        with shards.folder.lock():
            worker = Worker(shards, shards.start(options.restart), device, basis)
            if worker.done:
                say(f"Resuming: {count_of(len(worker.done), 'shard')} of {options.out} done already.")
            shards = shards.finish(_run(cluster, library, worker, say), library.rows)
    skipped = len(problems.by_row(path))
    facts = {"shards": str(options.out), "candidates": library.candidates, "skipped": skipped}
    facts["duplicates"] = duplicates = library.rows - library.candidates - skipped
    facts |= {"files": len(shards.counts), "seconds": time.monotonic() - started}
    where = f"{count_of(len(shards.counts), 'shard')} in {options.out}"
    return Result(facts, [f"{describe(library.candidates, duplicates)} in {where}."])


def _run(cluster: Cluster, library: Library, worker: Worker, say: Say) -> list[int]:
    """Write all shards, and return how many candidates each has."""
    counts, rows, total, started = list[int](), list[int](), _estimate_rows(library.table.path), time.monotonic()

    def spread(inspect: Inspect, new: Iterator[list[str]]) -> Iterator[Any]:
        work = partial(inspect_cells, worker.shards, worker.done, inspect)
        for (read, codes, columns), values in cluster.starmap(work, enumerate(new), returns=2):
            yield read._replace(values=values), codes, columns

    def list_shards() -> Iterator[tuple[int, Shard, list[int], Any]]:
        for number, (block, read, skipped) in enumerate(_list_blocks(library, spread=spread)):
            counts.append(len(block.cells))
            rows.append(read)
            shard = Shard(block.rows, block.cells, block.names, block.codes, block.columns, block.bad, skipped)
            yield number, shard, block.places, block.values

    done = new = 0
    for number in cluster.starmap(worker.write, list_shards()):
        done, new = done + rows[number], new + rows[number] * (number not in worker.done)
        say(_describe_progress(done, max(done, total), new / (time.monotonic() - started)), passing=True)
    return counts


def _describe_progress(done: int, total: int, rate: float) -> str:
    """A progress bar with the rate and the remaining time.

    >>> _describe_progress(500, 2000, 10.0)
    '█████░░░░░░░░░░░░░░░ 500 of about 2,000 rows, 10/s, 0:02:30 left'
    """
    share = done / total
    bar = "█" * int(20 * share) + "░" * (20 - int(20 * share))
    left = timedelta(seconds=round((total - done) / rate)) if rate else "?"
    return f"{bar} {done:,} of about {total:,} rows, {rate:,.0f}/s, {left} left"


def _estimate_rows(path: Path) -> int:
    if file_format(path) == ".parquet":
        return int(import_extra("pyarrow.parquet", "tables").read_metadata(path).num_rows)
    with open_text(path) as file:
        return sum(1 for _ in file)


@contextmanager
def _fetch(path: Path) -> Iterator[Path]:
    """Yield a local library as it is; copy one at an address such as s3://bucket/library.smi to a temporary file."""
    if Folder.at(path).is_local:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        with Folder.at(path.parent).open(path.name) as source, copy.open("wb") as file:
            shutil.copyfileobj(source, file)
        yield copy
