"""Building an index: blocks of candidates in, a folder out. It may be interrupted at any time, and goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dsokr.basis import Rule, check_rule
from dsokr.errors import InputError
from dsokr.index.candidates import CandidateIndex
from dsokr.index.files import ARRAYS, DTYPES, Block, Head, Writer, array_file, make_sure, mapped_arrays, write_head
from dsokr.index.neighbors import (
    EFFORTS,
    KINDS,
    Neighbors,
    Say,
    build_faiss,
    check_enough,
    faiss_file,
    import_faiss,
    part_file,
)
from dsokr.files import LOCK, sole_writer

RECALL_AT, RECALL_QUERIES = 10, 256
ALL_KINDS = ("exact", *KINDS)
HEADS = ("index.json", "draft.json")
DRAFTS = (*(f"{name}.part" for name in HEADS), "neighbors.*.part", "neighbors.*.part.new")  # what a crash may leave


@dataclass(frozen=True)
class BuildOptions:
    """``kind`` is exact, flat, hnsw or ivfpq; the last three answer one decoding ``rule`` fast, and the others exactly.

    Where they are None, those of the index in the folder stay; a new index is exact, and a FAISS index for cosine.
    The effort of a FAISS search is set to the least that reaches ``recall`` of the 10 best.
    """

    kind: str | None = None
    rule: Rule | None = None
    dtype: str = "float32"
    recall: float = 0.95

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in ALL_KINDS:
            raise InputError(f"The kind of an index must be one of {', '.join(ALL_KINDS)}. Got {self.kind!r}.")
        if self.dtype not in DTYPES:
            raise InputError(f"The dtype of an index must be one of {', '.join(DTYPES)}. Got {self.dtype!r}.")
        if not 0 < self.recall <= 1:
            raise InputError(f"The recall to reach must be above 0 and at most 1. Got {self.recall}.")
        if self.rule is not None:
            check_rule(self.rule)


@dataclass(frozen=True)
class Progress:
    """Where a build stands: candidates in the index, rows of the library read, rows left out."""

    rows: int
    read: int
    skipped: int
    rate: float  # candidates a second, of this run


def build(
    folder: str | Path,
    blocks: Callable[[int], Iterator[Block]],
    *,
    model: str,
    dim: int,
    source: str = "",
    options: BuildOptions = BuildOptions(),  # noqa: B008 # frozen, so sharing it is harmless
    say: Say = lambda line: None,
    progress: Callable[[Progress], None] = lambda now: None,
    restart: bool = False,
) -> CandidateIndex:
    """Write an index of the candidates that ``blocks(start)`` gives, from row ``start`` of the library on.

    ``model`` is the fingerprint of the basis and ``source`` says which library it is: a build that was interrupted
    goes on only with the same two. A finished index is kept, and gets another FAISS index if another is asked for.
    With ``restart`` an index in the folder, finished or not, is given up.
    """
    folder = Path(folder)
    if options.kind in KINDS:
        import_faiss()  # better missed now than after an hour
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file. Choose another place for the index.")
    wanted = Head(model, dim, options.dtype, source)
    with sole_writer(folder, "dsokr embed"):
        if restart:
            remove(folder)
        _check_folder(folder, wanted)
        if not (folder / "index.json").exists():
            _write_candidates(folder, wanted, blocks, say, progress)
        for name in ("draft.json", "blocks.jsonl"):
            (folder / name).unlink(missing_ok=True)
        _write_neighbors(folder, Head.read(folder / "index.json"), options, say)
        return CandidateIndex.open(folder, model)


def _check_folder(folder: Path, wanted: Head) -> None:
    for name in HEADS:
        if (folder / name).exists():
            there = Head.read(folder / name)
            for part, what in (("model", "another model"), ("source", "another library"), ("dtype", "another dtype")):
                if getattr(there, part) != getattr(wanted, part):
                    state = "an index" if name == "index.json" else "an unfinished index"
                    raise InputError(
                        f"{folder} holds {state} of {what}. Choose another place, or give it up with --restart."
                    )
            return
    if {file.name for file in folder.glob("*")} - {LOCK} - {file.name for file in _drafts(folder)}:
        raise InputError(f"{folder} exists and is not an index. Choose another place.")


def _write_candidates(
    folder: Path,
    wanted: Head,
    blocks: Callable[[int], Iterator[Block]],
    say: Say,
    progress: Callable[[Progress], None],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "draft.json").exists():
        for file in _drafts(folder):
            file.unlink()  # of another build, which did not get far
    write_head(folder / "draft.json", wanted)
    start = time.monotonic()
    with Writer(folder, wanted).opened() as writer:
        before = writer.rows
        if before:
            say(f"Going on after {writer.rows:,} candidates that are in {folder} already.")
        for block in blocks(writer.read):
            writer.add(block)
            rate = (writer.rows - before) / max(time.monotonic() - start, 1e-9)
            progress(Progress(writer.rows, writer.read, len(writer.skipped), rate))
    if not writer.rows:
        remove(folder)
        raise InputError("There are no candidates to index: the library is empty, or no row of it can be used.")
    seconds = time.monotonic() - start
    (folder / "skipped.txt").write_text("".join(f"{line}\n" for line in writer.skipped), encoding="utf-8")
    write_head(folder / "index.json", replace(wanted, count=writer.rows, skipped=len(writer.skipped), seconds=seconds))


def _drafts(folder: Path) -> list[Path]:
    return [file for name in DRAFTS for file in folder.glob(name)]


def remove(folder: Path) -> None:
    """Remove an index, finished or not, and nothing else.

    The journal goes first, since without it nothing goes on with arrays that are gone, and the head that says what the
    folder is goes last: a removal that is interrupted can be done again.
    """
    heads = [folder / name for name in HEADS]
    if not any(head.is_file() for head in heads):
        return
    arrays = [array_file(folder, name) for name in ARRAYS]
    own = [folder / "blocks.jsonl", *folder.glob("neighbors.*"), *_drafts(folder), *arrays, folder / "skipped.txt"]
    for file in [*own, *heads]:
        file.unlink(missing_ok=True)


def _write_neighbors(folder: Path, head: Head, options: BuildOptions, say: Say) -> None:
    """Give a finished index the FAISS index that is asked for. The one it has is good until the head names another."""
    kind = options.kind or head.kind
    rule: Rule = options.rule or head.rule or "cosine"  # type: ignore[assignment] # checked when built
    before, made = f"The {head.kind} index for the rule {head.rule}", faiss_file(folder, kind, rule)
    if kind == "exact" and head.kind != "exact":
        write_head(folder / "index.json", replace(head, kind="exact", rule="", effort=0, recall=None))
        say(f"{before} is dropped: every search is exact now.")
    elif kind != "exact" and ((kind, rule) != (head.kind, head.rule) or not made.exists()):
        check_enough(kind, head.count)
        effort, recall = _made_faiss(folder, head, kind, rule, options.recall, say)
        make_sure(part_file(folder, kind, rule))
        os.replace(part_file(folder, kind, rule), made)
        write_head(folder / "index.json", replace(head, kind=kind, rule=rule, effort=effort, recall=recall))
        if head.kind != "exact":
            say(f"{before} is replaced by a {kind} index for the rule {rule}.")
    for file in folder.glob("neighbors.*faiss"):
        if file != made:
            file.unlink()


def _made_faiss(folder: Path, head: Head, kind: str, rule: Rule, recall: float, say: Say) -> tuple[int, float]:
    """Build a FAISS index, in its part file; the effort it needs for the recall, and the recall it has."""
    if faiss_file(folder, kind, rule).exists():  # made before an interruption, and not named by the head yet
        os.replace(faiss_file(folder, kind, rule), part_file(folder, kind, rule))
    arrays = mapped_arrays(folder, head)
    made = build_faiss(folder, arrays, kind, rule, head.dtype, say)
    effort, reached = _least_effort(CandidateIndex(head, arrays), made, kind, rule, recall)
    less = "" if reached >= recall else f", less than the {recall:g} that was asked for"
    say(f"{kind}: recall@{RECALL_AT} of {reached:.3f} against exact search{less}")
    return effort, reached


def _least_effort(index: CandidateIndex, made: object, kind: str, rule: Rule, wanted: float) -> tuple[int, float]:
    """The smallest effort that reaches the recall, or the largest there is; and the recall it has."""
    z = sample_queries(index, RECALL_QUERIES)
    k = min(RECALL_AT, len(index))
    truth = index.search_exactly(z, k, rule).scores[:, -1:].float()
    for effort in EFFORTS[kind]:
        neighbors = Neighbors(made, kind, rule, effort)
        found = neighbors.search(index.arrays, z, k)[0].scores.float()
        recall = (found >= truth).double().mean().item()
        if recall >= wanted:
            break
    return effort, recall


def sample_queries(index: CandidateIndex, n: int, seed: int = 0) -> torch.Tensor:  # (n, p)
    """Coefficients like those a model predicts, between two candidates: 0.7 ψ̃(y) + 0.3 ψ̃(y')."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(len(index), (n,), generator=generator).numpy() for _ in range(2))
    first, second = (torch.from_numpy(index.arrays.psi[at]).double() for at in (a, b))
    return 0.7 * first + 0.3 * second
