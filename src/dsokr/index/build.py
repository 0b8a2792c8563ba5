"""Build an index in a folder from blocks of candidates. After an interruption, the same call resumes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import InputError, check_fields
from dsokr.files import DRAFT, BlockSums, check_place, lock_folder, replace_file, sum_file
from dsokr.index.candidates import CandidateIndex, check_same, import_faiss
from dsokr.index.columns import as_hashes, as_numbers
from dsokr.index.stored import FILES, HEAD, OURS, Arrays, Head, map_arrays, map_deleted
from dsokr.rules import Rule, as_points

COMMIT_SECONDS = 5.0  # the most work that a crash can lose
RECALL_AT, RECALL_QUERIES = 10, 256
STEPS = [step for power in range(2, 11) for step in (2**power, 3 * 2 ** (power - 1))]  # 4, 6, 8, 12, 16, ...
EFFORTS = {"hnsw": STEPS[6:-1], "ivfpq": STEPS[:13]}  # 32 to 1024 and 4 to 256, tried in this order
LINKS, EF_CONSTRUCTION = 32, 100  # of HNSW
PER_CELL, FEWEST_PER_CELL = 64, 39  # points that FAISS learns a cell of ivfpq from
MOST_CELLS = 2**10  # adding a candidate compares it with all of them
FEWEST = FEWEST_PER_CELL * 256  # points to learn the 256 codes of two coordinates from
NOTHING = "There are no candidates to index: the library is empty, or none of its rows can be used."
CHUNK = 2**16  # points added at once

Say = Callable[[str], None]


class Block(NamedTuple):
    """Consecutive candidates of a library, to be added to an index."""

    texts: Sequence[str]
    psi: Tensor  # (n, p)
    diag: Tensor  # (n,)
    names: Sequence[str] | None = None
    read: int | None = None  # rows of the library in this block, including skipped ones; by default one per text
    skipped: Sequence[str] = ()  # a sentence for every skipped row
    cells: Mapping[str, Sequence[str]] = {}  # of further columns
    codes: np.ndarray | None = None  # (n,) int64, equal for the same meaning; by default hashes of the texts


@dataclass(frozen=True)
class BuildOptions:
    """``kind`` is exact, hnsw or ivfpq; the last two answer one decoding ``rule`` by FAISS, other rules exactly.

    None keeps what the index in the folder has; a new index is exact, and a FAISS index for cosine. The effort of
    a FAISS search is the least that reaches ``recall`` of the 10 best. Sorted by a column, candidates within a window
    of it are found fastest.
    """

    kind: Literal["exact", "hnsw", "ivfpq"] | None = None
    rule: Rule | None = None
    dtype: Literal["float32", "float16"] = "float32"
    recall: float = 0.95
    sort_by: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, recall="(0, 1]")


class Progress(NamedTuple):
    """How far a build has come: candidates in the index, rows of the library read, rows skipped."""

    rows: int
    read: int
    skipped: int
    rate: float  # candidates per second, in this run


Blocks = Callable[[int], Iterator[Block]]
Report = Callable[[Progress], None]


def build_folder(
    address: str | Path, new: Head, blocks: Blocks, options: BuildOptions, say: Say, progress: Report, restart: bool
) -> CandidateIndex:
    """Write an index into a folder, see :func:`dsokr.index.build`. ``new`` is its head, without candidates."""
    folder = Path(address)
    if options.kind in EFFORTS:
        import_faiss()  # fail now rather than after an hour
    check_place(folder / HEAD)
    with lock_folder(folder, "dsokr embed"):
        head = _find_head(folder, new, restart)
        if options.sort_by is not None and options.sort_by not in head.columns:
            there = ", ".join(head.columns) or "none"
            raise InputError(f"The candidates have no column {options.sort_by!r} to sort by. Their columns: {there}.")
        if not head.finished:
            head = _write_candidates(folder, head, blocks, say, progress)
        if options.sort_by not in (None, head.sorted_by):
            say(f"Sorting the candidates by {options.sort_by}.")
            head = rewrite(folder, head, str(options.sort_by))
        write_faiss(folder, head, options, say)
        return CandidateIndex.open(folder, new.model)


def _find_head(folder: Path, new: Head, restart: bool) -> Head:
    """Return the head of the index in the folder, which must be for the same model and library, or the new one."""
    has_head = (folder / HEAD).exists()
    if not has_head and any(not file.name.startswith(".") for file in folder.iterdir()):
        raise InputError(f"{folder} exists and is not an index. Choose another folder.")
    if restart or not has_head:
        return new
    head, remedy = Head.read_from(folder), "Choose another folder, or discard it with --restart."
    check_same(head, new, ("model", "source", "dtype"), f"{folder} holds an index", remedy)
    return head


def _write_candidates(folder: Path, head: Head, blocks: Blocks, say: Say, progress: Report) -> Head:
    with ExitStack() as stack:
        writer = Writer(folder, head, stack)
        write_blocks(writer, folder, blocks, say, progress)
    if not writer.head.count:
        for name in (*FILES, HEAD):
            (folder / name).unlink()
        raise InputError(NOTHING)
    head = replace(writer.head, finished=True, main=writer.head.count)
    head.write(folder)
    return head


def write_blocks(writer: Any, place: object, blocks: Blocks, say: Say, progress: Report) -> None:
    """Add all blocks after those that the head of a writer counts."""
    start, before = time.monotonic(), writer.head.count
    if before:
        say(f"Resuming after {before:,} candidates that are already in {place}.")
    for block in blocks(writer.head.read):
        writer.add(block)
        now, rate = writer.head, (writer.head.count - before) / max(time.monotonic() - start, 1e-9)
        progress(Progress(now.count, now.read, now.skipped, rate))


class Writer:
    """Appends blocks to an index, after its last commit.

    A commit flushes them to disk. In a build it also writes the head; an update writes the head at its end. When
    ``stack`` closes, also after an error, complete blocks are committed and the files are closed.
    """

    def __init__(self, folder: Path, head: Head, stack: ExitStack):
        self.folder, self.head, self.last_commit = folder, head, time.monotonic()
        if not head.finished:
            head.write(folder)
        tidy(folder, head)
        self.files = {name: stack.enter_context(_open_at(folder, name, head)) for name in FILES}
        self.sums = {name: BlockSums(head.sums.get(name, ""), head.sizes.get(name, 0)) for name in FILES}
        stack.callback(self.commit)

    def add(self, block: Block) -> None:
        rows, diag = check_block(block, self.head.dim, self.head.dtype)
        cells = [block.cells[name] for name in self.head.columns]
        parts = zip(block.texts, block.names or [""] * len(rows), *cells, strict=True)
        lines = [json.dumps(part, ensure_ascii=False).encode() + b"\n" for part in parts]
        ends = self.files["texts.jsonl"].tell() + np.cumsum([len(line) for line in lines], dtype=np.int64)
        skipped = "".join(f"{sentence}\n" for sentence in block.skipped).encode()
        arrays = (part.numpy().tobytes() for part in (rows, diag, rows.double().square().sum(dim=1)))
        tables = (np.array([read(column) for column in cells]).T.tobytes() for read in (as_numbers, as_hashes))
        written = *arrays, b"".join(lines), ends.tobytes(), *tables, codes_of(block).tobytes(), skipped
        for (name, file), part in zip(self.files.items(), written, strict=True):
            file.write(part)
            self.sums[name].add(part)
        self.head = replace(advance(self.head, block), sizes={name: file.tell() for name, file in self.files.items()})
        if time.monotonic() - self.last_commit > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = self.head.sizes  # less than was written, if a write failed
        sums = {name: str(made) for name, made in self.sums.items() if made.size == sizes.get(name, 0)}
        paths = {name: self.head.path(self.folder, name) for name in FILES if name not in sums}
        self.head = replace(self.head, sums=sums | {name: sum_file(paths[name], sizes.get(name, 0)) for name in paths})
        if not self.head.finished:
            self.head.write(self.folder)
        self.last_commit = time.monotonic()


def check_block(block: Block, dim: int, dtype: str) -> tuple[Tensor, Tensor]:  # (n, p), (n,)
    """Check a block, and return its coordinates and diagonal in the precision in which they are stored."""
    rows, n = block.psi.detach().cpu().to(getattr(torch, dtype)), len(block.texts)
    diag = block.diag.detach().cpu().double()
    shapes = [tuple(rows.shape), tuple(diag.shape), n if block.names is None else len(block.names)]
    if shapes != [(n, dim), (n,), n]:
        raise InputError(
            f"A block of {n} texts needs coordinates ({n}, {dim}), a diagonal ({n},) and {n} names or "
            f"none. Got {shapes[0]}, {shapes[1]} and {shapes[2]}."
        )
    finite = rows.isfinite().all(dim=1) & diag.isfinite()
    if not finite.all():
        text = block.texts[int((~finite).nonzero()[0])]
        raise InputError(f"Candidate {text!r} has coordinates that are not finite in {dtype}.")
    return rows, diag


def advance(head: Head, block: Block) -> Head:
    """Return the head after a block was added."""
    count, read = len(block.texts), len(block.texts) if block.read is None else block.read
    skipped = head.skipped + len(block.skipped)
    return replace(head, count=head.count + count, read=head.read + read, skipped=skipped)


def codes_of(block: Block) -> np.ndarray:  # (n,)
    return as_hashes(block.texts) if block.codes is None else block.codes


def _open_at(folder: Path, name: str, head: Head) -> BinaryIO:
    size, path = head.sizes.get(name, 0), head.path(folder, name)
    if (not size and not head.finished) or path.is_symlink():
        path.unlink(missing_ok=True)  # rather than truncate it: another process may have mapped it
    file = path.open("ab")
    file.truncate(size)
    file.seek(size)
    return file


def tidy(folder: Path, head: Head) -> None:
    """Remove index files that the head does not name: of other versions, of discarded builds, of killed writers."""
    named = {path.name for path in head.list_files(folder)}
    for path in folder.iterdir():
        if path.name.startswith(DRAFT) or (OURS.fullmatch(path.name) and path.name not in named):
            path.unlink()


def rewrite(folder: Path, head: Head, column: str) -> Head:
    """Rewrite all files without deleted candidates, sorted by a column unless it is "".

    The new files have another prefix, which the new head names.
    """
    head.verify(folder)  # so that no damage gets new checksums
    tidy(folder, head)
    place, version = head.columns.index(column) if column else "", head.version + 1
    order = np.setdiff1d(np.arange(head.count), map_deleted(folder, head).numpy(), assume_unique=True)
    if column:
        order = order[np.argsort(map_arrays(folder, head).columns.numbers(column)[order], kind="stable")]
    new = replace(head, sorted_by=column, prefix=f"by{place}.{version}.", version=version, deleted=0)
    sums = {name: BlockSums() for name in FILES}
    with ExitStack() as stack:
        for name in FILES:
            file = stack.enter_context(new.path(folder, name).open("xb"))
            for part in _reorder(folder, head, name, order):
                file.write(part)
                sums[name].add(part)
            file.flush()
            os.fsync(file.fileno())
    sizes = {name: made.size for name, made in sums.items()}
    checksums = {name: str(made) for name, made in sums.items()}
    new = replace(new, count=len(order), main=len(order), sizes=sizes, sums=checksums)
    new.write(folder)
    tidy(folder, new)  # a FAISS index knows candidates by their old positions
    return new


def _reorder(folder: Path, head: Head, name: str, order: np.ndarray) -> Iterator[bytes]:
    """Yield the contents of a file, with its candidates in another order."""
    path, width = head.path(folder, name), head.sizes[name] // head.count
    if name in ("texts.jsonl", "ends.bin"):
        ends = np.fromfile(head.path(folder, "ends.bin"), np.int64, head.count)
        starts = np.concatenate([[0], ends[:-1]])
        if name == "ends.bin":
            yield np.cumsum((ends - starts)[order]).tobytes()
        else:
            lines = np.memmap(path, np.uint8, "r")
            yield from (lines[starts[at] : ends[at]].tobytes() for at in order)
    elif name == "skipped.txt" or not width:
        yield path.read_bytes()
    else:
        rows = np.memmap(path, f"V{width}", "r", shape=(head.count,))
        yield from (rows[some].tobytes() for some in np.array_split(order, -(-len(order) // CHUNK)))


def write_faiss(folder: Path, head: Head, options: BuildOptions, say: Say) -> None:
    """Build the FAISS index of the options. The old one serves searches until the head names the new one."""
    kind, rule = options.kind or head.kind, options.rule or head.rule or "cosine"
    file, new = folder / replace(head, kind=kind, rule=rule).faiss_file, head
    if kind == "exact":
        new = replace(head, kind="exact", rule=None, effort=0, recall=None)
    elif (kind, rule) != (head.kind, head.rule) or file.name not in head.sums or not file.exists():
        data = {name: own for name, own in head.sums.items() if not name.endswith(".faiss")}
        replace(head, sums=data).verify(folder)  # the FAISS index is replaced, and may be missing
        arrays = map_arrays(folder, head)
        made = build_faiss(arrays, kind, rule, say)
        new = _choose_effort(CandidateIndex(replace(head, kind=kind, rule=rule), arrays, made), options.recall, say)
        with replace_file(file) as draft:
            import_faiss().write_index(made, str(draft))
        new = replace(new, sums=head.sums | {file.name: sum_file(file)})
    named = (*FILES, file.name, head.deleted_file)
    new = replace(new, sums={name: sums for name, sums in new.sums.items() if name in named})
    if new != head:
        new.write(folder)
        if head.rule:
            search = f"{kind} search for the rule {rule}" if new.rule else "exact search"
            say(f"The {head.kind} index for the rule {head.rule} is replaced by {search}.")
    tidy(folder, new)


def _choose_effort(index: CandidateIndex, wanted: float, say: Say) -> Head:
    """Return the head with the smallest effort that reaches the recall, or the largest there is."""
    head, rule, k = index.head, index.head.rule or "cosine", min(RECALL_AT, len(index))
    z = sample_queries(index, RECALL_QUERIES)
    truth = index.search_exactly(z, k, rule).scores[:, -1:].float()
    for effort in EFFORTS[head.kind]:
        index.head = replace(head, effort=effort)
        recall = (index.search(z, k, rule).scores.float() >= truth).double().mean().item()
        if recall >= wanted:
            break
    missed = "" if recall >= wanted else f", below the {wanted:g} asked for"
    say(f"{head.kind}: recall@{RECALL_AT} of {recall:.3f} against exact search{missed}")
    return replace(index.head, recall=recall)


def sample_queries(index: CandidateIndex, n: int, seed: int = 0) -> Tensor:  # (n, p)
    """Coordinates like those a model predicts, between two candidates: 0.7 ψ̃(y) + 0.3 ψ̃(y')."""
    generator = torch.Generator().manual_seed(seed)
    places = (torch.randint(index.head.count, (n,), generator=generator) for _ in range(2))
    first, second = (index.arrays.psi[at] for at in places)
    return 0.7 * first.double() + 0.3 * second.double()


def build_faiss(arrays: Arrays, kind: str, rule: Rule, say: Say) -> Any:
    """Train a FAISS index on a sample of the candidates, and add all of them."""
    faiss, (n, p) = import_faiss(), arrays.psi.shape
    sample = torch.arange(1)
    if kind == "hnsw":
        made = faiss.index_factory(p + 1, f"HNSW{LINKS},{'SQfp16' if arrays.psi.dtype == torch.float16 else 'Flat'}")
        faiss.ParameterSpace().set_index_parameter(made, "efConstruction", EF_CONSTRUCTION)
    else:
        if n < FEWEST:
            raise InputError(f"An ivfpq index needs at least {FEWEST:,} candidates. Got {n:,}. Choose exact or hnsw.")
        cells = min(int(4 * n**0.5), n // FEWEST_PER_CELL, MOST_CELLS)
        chosen = np.random.default_rng(0).permutation(n)[: max(PER_CELL * cells, FEWEST)]
        sample = torch.from_numpy(np.sort(chosen))
        say(f"ivfpq: learning {cells:,} cells from {len(sample):,} candidates")
        width = p + 1 + (p + 1) % 2  # even, for codes of two coordinates each
        made = faiss.index_factory(p + 1, f"Pad{width},IVF{cells},PQ{width // 2}np")
    made.train(_points(arrays, sample, rule))
    add_points(made, arrays, rule, lambda line: say(f"{kind}: {line}"))
    return made


def add_points(made: Any, arrays: Arrays, rule: Rule, say: Say) -> None:
    """Add the candidates that a FAISS index does not have yet."""
    while made.ntotal < len(arrays.psi):
        made.add(_points(arrays, slice(made.ntotal, made.ntotal + CHUNK), rule))
        say(f"{made.ntotal:,} of {len(arrays.psi):,} candidates added")


def _points(arrays: Arrays, where: slice | Tensor, rule: Rule) -> np.ndarray:  # (n, p + 1)
    return as_points(arrays.psi[where].double(), arrays.diag[where], rule).float().numpy()
