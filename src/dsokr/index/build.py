"""Building an index: blocks of candidates in, a folder out. Interrupted at any time, the same call resumes."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dsokr.errors import InputError, check_choice, check_number
from dsokr.files import check_place, lock_folder, replace_file
from dsokr.index.candidates import CandidateIndex
from dsokr.index.neighbors import EFFORTS, Say, build_faiss, faiss_file, import_faiss
from dsokr.index.storage import DTYPES, FILES, HEAD, Block, Head, map_arrays, open_writer
from dsokr.rules import Rule, check_rule

RECALL_AT, RECALL_QUERIES = 10, 256


@dataclass(frozen=True)
class BuildOptions:
    """``kind`` is exact, hnsw or ivfpq; the last two answer one decoding ``rule`` by FAISS, other rules exactly.

    None keeps what the index in the folder has; a new index is exact, and a FAISS index for cosine. The effort of
    a FAISS search is the least that reaches ``recall`` of the 10 best.
    """

    kind: str | None = None
    rule: Rule | None = None
    dtype: str = "float32"
    recall: float = 0.95

    def __post_init__(self) -> None:
        check_choice(self, "kind", (None, "exact", *EFFORTS))
        check_choice(self, "dtype", DTYPES)
        check_number(self, "recall", "in (0, 1]", 0 < self.recall <= 1)
        if self.rule is not None:
            check_rule(self.rule)


class Progress(NamedTuple):
    """How far a build has come: candidates in the index, rows of the library read, rows skipped."""

    rows: int
    read: int
    skipped: int
    rate: float  # candidates per second, in this run


Blocks = Callable[[int], Iterator[Block]]
Report = Callable[[Progress], None]


def build(
    folder: str | Path,
    blocks: Blocks,
    *,
    model: str,
    dim: int,
    source: str = "",
    options: BuildOptions = BuildOptions(),  # noqa: B008 # frozen, so sharing it is harmless
    say: Say = lambda line: None,
    progress: Report = lambda now: None,
    restart: bool = False,
) -> CandidateIndex:
    """Write an index of the candidates that ``blocks(start)`` yields, beginning at row ``start`` of the library.

    ``model`` is the fingerprint of the basis and ``source`` identifies the library: an interrupted build resumes only
    with the same two. A finished index keeps its candidates and gets another FAISS index if the options ask for one.
    ``restart`` discards an index in the folder, finished or not.
    """
    folder = Path(folder)
    if options.kind in EFFORTS:
        import_faiss()  # better missed now than after an hour
    check_place(folder / HEAD)
    with lock_folder(folder, "dsokr embed"):
        head = _find_head(folder, Head(model, dim, options.dtype, source), restart)
        if not head.finished:
            head = _write_candidates(folder, head, blocks, say, progress)
        _write_faiss(folder, head, options, say)
        return CandidateIndex.open(folder, model)


def _find_head(folder: Path, wanted: Head, restart: bool) -> Head:
    """Return the head of the index in the folder, which must be for the same model and library, or a new one."""
    has_head = (folder / HEAD).exists()
    if not has_head and any(not file.name.startswith(".") for file in folder.iterdir()):
        raise InputError(f"{folder} exists and is not an index. Choose another folder.")
    if restart or not has_head:
        return wanted
    head = Head.read_from(folder)
    for part, other in (("model", "another model"), ("source", "another library"), ("dtype", "another dtype")):
        if getattr(head, part) != getattr(wanted, part):
            raise InputError(
                f"{folder} holds an index of {other}. Choose another folder, or discard it with --restart."
            )
    return head


def _write_candidates(folder: Path, head: Head, blocks: Blocks, say: Say, progress: Report) -> Head:
    if head.count:
        say(f"Resuming after {head.count:,} candidates that are already in {folder}.")
    start, before = time.monotonic(), head.count
    with open_writer(folder, head) as writer:
        for block in blocks(head.read):
            writer.add(block)
            now, rate = writer.head, (writer.head.count - before) / max(time.monotonic() - start, 1e-9)
            progress(Progress(now.count, now.read, now.skipped, rate))
    if not writer.head.count:
        for name in (*FILES, HEAD):
            (folder / name).unlink()
        raise InputError("There are no candidates to index: the library is empty, or none of its rows can be used.")
    head = replace(writer.head, finished=True)
    head.write(folder)
    return head


def _write_faiss(folder: Path, head: Head, options: BuildOptions, say: Say) -> None:
    """Give a finished index the FAISS index in the options. The old one answers until the head names the new one."""
    kind, rule = options.kind or head.kind, options.rule or head.rule or "cosine"
    file, new = faiss_file(folder, kind, rule), head
    if kind == "exact":
        new = replace(head, kind="exact", rule=None, effort=0, recall=None)
    elif (kind, rule) != (head.kind, head.rule) or not file.exists():
        arrays = map_arrays(folder, head)
        made = build_faiss(arrays, kind, rule, say)
        new = _choose_effort(CandidateIndex(replace(head, kind=kind, rule=rule), arrays, made), options.recall, say)
        with replace_file(file) as draft:
            import_faiss().write_index(made, str(draft))
    if new != head:
        new.write(folder)
        if head.rule:
            search = f"{kind} search for the rule {rule}" if new.rule else "exact search"
            say(f"The {head.kind} index for the rule {head.rule} is replaced by {search}.")
    for other in folder.glob("*.faiss"):
        if other != file:
            other.unlink()


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
    """Coefficients like those a model predicts, between two candidates: 0.7 ψ̃(y) + 0.3 ψ̃(y')."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (index.arrays.psi[torch.randint(len(index), (n,), generator=generator)] for _ in range(2))
    return 0.7 * first.double() + 0.3 * second.double()
