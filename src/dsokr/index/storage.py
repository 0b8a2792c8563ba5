"""The folder of an index: a JSON head, and beside it raw arrays that are mapped into memory.

    index.json             what the index holds, see :class:`Head`
    psi.bin                ψ̃(y), one row per candidate, float32 or float16
    diag.bin squared.bin   k(y, y) and ‖ψ̃(y)‖² of the stored row, float64
    texts.jsonl            a line [text, name] for every candidate
    ends.bin               where each of these lines ends, int64
    skipped.txt            a sentence for every row of the library that was left out
    hnsw.cosine.faiss      the FAISS index of this kind and rule, if the head names them

Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr import files
from dsokr.basis import SketchedBasis
from dsokr.errors import InputError, ModelFolderError
from dsokr.rules import Rule

FORMAT = 2  # of the folder
HEAD = "index.json"
FILES = ("psi.bin", "diag.bin", "squared.bin", "texts.jsonl", "ends.bin", "skipped.txt")
DTYPES = ("float32", "float16")
COMMIT_SECONDS = 5.0  # the most work that a crash can lose


def fingerprint(basis: SketchedBasis) -> str:
    """Return a hash of everything that coordinates depend on: an index belongs to one basis."""
    return files.fingerprint(basis)


class Block(NamedTuple):
    """Consecutive candidates of a library on their way into an index."""

    texts: Sequence[str]
    psi: Tensor  # (n, p)
    diag: Tensor  # (n,)
    names: Sequence[str] | None = None
    read: int | None = None  # rows of the library behind this block, skipped ones included; by default one per text
    skipped: Sequence[str] = ()  # a sentence for every row left out


@dataclass(frozen=True)
class Head:
    """What an index holds and how it is searched. During a build, what the last commit has put on disk."""

    model: str  # fingerprint of the basis
    dim: int
    dtype: str = "float32"
    source: str = ""  # identifies the library, so that an interrupted build resumes with the same one
    count: int = 0  # candidates
    read: int = 0  # rows of the library
    skipped: int = 0  # rows left out
    sizes: dict[str, int] = field(default_factory=dict)  # bytes in every file
    finished: bool = False
    kind: str = "exact"
    rule: Rule | None = None  # the decoding rule that the FAISS index answers
    effort: int = 0  # its efSearch or nprobe
    recall: float | None = None  # its recall@10 against exact search

    def write(self, folder: Path) -> None:
        files.write_json(folder / HEAD, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read_from(cls, folder: Path) -> Head:
        try:
            facts = json.loads((folder / HEAD).read_text(encoding="utf-8"))
            if facts.pop("format") == FORMAT:
                return cls(**facts)
        except FileNotFoundError:
            raise ModelFolderError(
                f"{folder} is not an index: {HEAD} is missing. Build one with dsokr embed."
            ) from None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ModelFolderError(f"{folder / HEAD} is damaged ({error!r}). Embed the candidates again.") from error
        raise ModelFolderError(f"{folder} was built by another version of dsokr. Embed the candidates again.")


class Writer:
    """Appends blocks to an index. A commit flushes them to disk; the next writer resumes after the last commit."""

    def __init__(self, folder: Path, head: Head, files: dict[str, BinaryIO]):
        self.folder, self.head, self.files, self.last_commit = folder, head, files, time.monotonic()

    def add(self, block: Block) -> None:
        rows, diag = self._check(block)
        pairs = zip(block.texts, block.names or [""] * len(rows), strict=True)
        lines = [json.dumps(pair, ensure_ascii=False).encode() + b"\n" for pair in pairs]
        ends = self.files["texts.jsonl"].tell() + np.cumsum([len(line) for line in lines], dtype=np.int64)
        skipped = "".join(f"{sentence}\n" for sentence in block.skipped).encode()
        arrays = (part.numpy().tobytes() for part in (rows, diag, rows.double().square().sum(dim=1)))
        for file, part in zip(self.files.values(), (*arrays, b"".join(lines), ends.tobytes(), skipped), strict=True):
            file.write(part)
        self.head = replace(
            self.head,
            count=self.head.count + len(rows),
            read=self.head.read + (len(rows) if block.read is None else block.read),
            skipped=self.head.skipped + len(block.skipped),
            sizes={name: file.tell() for name, file in self.files.items()},
        )
        if time.monotonic() - self.last_commit > COMMIT_SECONDS:
            self.commit()

    def _check(self, block: Block) -> tuple[Tensor, Tensor]:  # (n, p) as stored, (n,)
        psi, diag, n = block.psi.detach().cpu(), block.diag.detach().cpu().double(), len(block.texts)
        shapes = [tuple(psi.shape), tuple(diag.shape), n if block.names is None else len(block.names)]
        if shapes != [(n, self.head.dim), (n,), n]:
            raise InputError(
                f"A block of {n} texts needs coordinates ({n}, {self.head.dim}), a diagonal ({n},) and {n} names or "
                f"none. Got {shapes[0]}, {shapes[1]} and {shapes[2]}."
            )
        rows = psi.to(getattr(torch, self.head.dtype))
        finite = rows.isfinite().all(dim=1) & diag.isfinite()
        if not finite.all():
            text = block.texts[int((~finite).nonzero()[0])]
            raise InputError(f"Candidate {text!r} has coordinates that are not finite in {self.head.dtype}.")
        return rows, diag

    def commit(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        self.head.write(self.folder)
        self.last_commit = time.monotonic()


@contextmanager
def open_writer(folder: Path, head: Head) -> Iterator[Writer]:
    """Open the files of an index after the last commit. At the end complete blocks are kept, also on an error."""
    head.write(folder)
    with ExitStack() as stack:
        writer = Writer(folder, head, {name: stack.enter_context(_open_at(folder, name, head)) for name in FILES})
        try:
            yield writer
        finally:
            writer.commit()


def _open_at(folder: Path, name: str, head: Head) -> BinaryIO:
    size = head.sizes.get(name, 0)
    if not size:
        (folder / name).unlink(missing_ok=True)  # another process may have mapped it
    file = (folder / name).open("ab")
    file.truncate(size)
    file.seek(size)
    return file


class Arrays(NamedTuple):
    """The candidates of an index, mapped from disk or in memory."""

    psi: Tensor  # (n, p)
    diag: Tensor  # (n,)
    squared: Tensor  # (n,)
    texts: Sequence[str]
    names: Sequence[str]


class Texts(Sequence[str]):
    """The texts (part 0) or names (part 1) of stored lines, each parsed when it is asked for."""

    def __init__(self, lines: np.ndarray, ends: np.ndarray, part: int):
        self.lines, self.ends, self.part = lines, ends, part

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        at = range(len(self))[at]
        start = self.ends[at - 1] if at else 0
        return json.loads(self.lines[start : self.ends[at]].tobytes())[self.part]


def map_arrays(folder: Path, head: Head) -> Arrays:
    """Map the files of a finished index into memory."""
    dtypes = (head.dtype, "float64", "float64", "uint8", "int64")
    psi, diag, squared, lines, ends = (_map(folder / name, t, head) for name, t in zip(FILES, dtypes, strict=False))
    texts, names = (Texts(lines.numpy(), ends.numpy(), part) for part in (0, 1))
    return Arrays(psi.reshape(head.count, head.dim), diag, squared, texts, names)


def _map(file: Path, dtype: str, head: Head) -> Tensor:
    size, expected = file.stat().st_size if file.is_file() else 0, head.sizes[file.name]
    if size != expected:
        found = f"{file} has {size:,} of {expected:,} bytes"
        raise ModelFolderError(f"The index is damaged: {found}. Build it again, with --restart.")
    return torch.from_numpy(np.memmap(file, dtype, mode="c"))  # "c": torch warns of memory that is read-only
