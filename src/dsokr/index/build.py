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
from dsokr.index.files import ARRAYS, DTYPES, Block, Head, Writer, array_file, mapped_arrays, write_head
from dsokr.index.neighbors import EFFORTS, KINDS, Neighbors, Say, build_faiss, import_faiss, part_file
from dsokr.locks import LOCK, sole_writer

RECALL_AT, RECALL_QUERIES = 10, 256
ALL_KINDS = ("exact", *KINDS)
OWN = ("index.json", "draft.json", "blocks.jsonl", "skipped.txt")  # files beside the arrays


@dataclass(frozen=True)
class BuildOptions:
    """``kind`` is exact, flat, hnsw or ivfpq; the last three answer one decoding ``rule`` fast, and the others exactly.

    The effort of a FAISS search is set to the least that reaches ``recall`` of the 10 best.
    """

    kind: str = "exact"
    rule: Rule = "cosine"
    dtype: str = "float32"
    recall: float = 0.95

    def __post_init__(self) -> None:
        if self.kind not in ALL_KINDS:
            raise InputError(f"The kind of an index must be one of {', '.join(ALL_KINDS)}. Got {self.kind!r}.")
        if self.dtype not in DTYPES:
            raise InputError(f"The dtype of an index must be one of {', '.join(DTYPES)}. Got {self.dtype!r}.")
        if not 0 < self.recall <= 1:
            raise InputError(f"The recall to reach must be above 0 and at most 1. Got {self.recall}.")
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
    if options.kind != "exact":
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
        head = Head.read(folder / "index.json")
        if head.kind != options.kind or (options.kind != "exact" and head.rule != options.rule):
            _write_neighbors(folder, head, options, say)
        return CandidateIndex.open(folder, model)


def _check_folder(folder: Path, wanted: Head) -> None:
    for name in ("index.json", "draft.json"):
        if (folder / name).exists():
            there = Head.read(folder / name)
            for part, what in (("model", "another model"), ("source", "another library"), ("dtype", "another dtype")):
                if getattr(there, part) != getattr(wanted, part):
                    state = "an index" if name == "index.json" else "an unfinished index"
                    raise InputError(
                        f"{folder} holds {state} of {what}. Choose another place, or give it up with --restart."
                    )
            return
    if any(file.name != LOCK for file in folder.glob("*")):
        raise InputError(f"{folder} exists and is not an index. Choose another place.")


def _write_candidates(
    folder: Path,
    wanted: Head,
    blocks: Callable[[int], Iterator[Block]],
    say: Say,
    progress: Callable[[Progress], None],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
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
    for name in ("draft.json", "blocks.jsonl"):
        (folder / name).unlink()


def remove(folder: Path) -> None:
    """Remove an index, finished or not, and nothing else."""
    if not any((folder / name).is_file() for name in ("index.json", "draft.json")):
        return
    own = [
        *(array_file(folder, name) for name in ARRAYS),
        *(folder / name for name in OWN),
        *folder.glob("neighbors.*"),
    ]
    for file in own:
        file.unlink(missing_ok=True)


def _write_neighbors(folder: Path, head: Head, options: BuildOptions, say: Say) -> None:
    plain = replace(head, kind="exact", rule="", effort=0, recall=None)
    write_head(folder / "index.json", plain)  # what was there before is no longer good from here on
    (folder / "neighbors.faiss").unlink(missing_ok=True)
    if options.kind == "exact":
        return
    arrays = mapped_arrays(folder, head)
    made = build_faiss(folder, arrays, options.kind, options.rule, head.dtype, say)
    exactly = CandidateIndex(plain, arrays)
    effort, recall = _least_effort(exactly, made, options)
    reached = "" if recall >= options.recall else f", less than the {options.recall:g} that was asked for"
    say(f"{options.kind}: recall@{RECALL_AT} of {recall:.3f} against exact search{reached}")
    done = replace(plain, kind=options.kind, rule=options.rule, effort=effort, recall=recall)
    os.replace(part_file(folder, options.kind, options.rule), folder / "neighbors.faiss")
    write_head(folder / "index.json", done)


def _least_effort(index: CandidateIndex, made: object, options: BuildOptions) -> tuple[int, float]:
    """The smallest effort that reaches the recall, or the largest there is; and the recall it has."""
    z = sample_queries(index, RECALL_QUERIES)
    k = min(RECALL_AT, len(index))
    truth = index.search_exactly(z, k, options.rule).scores[:, -1:].float()
    for effort in EFFORTS[options.kind]:
        neighbors = Neighbors(made, options.kind, options.rule, effort)
        found = neighbors.search(index.arrays, z, k)[0].scores.float()
        recall = (found >= truth).double().mean().item()
        if recall >= options.recall:
            break
    return effort, recall


def sample_queries(index: CandidateIndex, n: int, seed: int = 0) -> torch.Tensor:  # (n, p)
    """Coefficients like those a model predicts, between two candidates: 0.7 ψ̃(y) + 0.3 ψ̃(y')."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(len(index), (n,), generator=generator).numpy() for _ in range(2))
    first, second = (torch.from_numpy(index.arrays.psi[at]).double() for at in (a, b))
    return 0.7 * first + 0.3 * second
