"""The folder of an index: a JSON head, and plain arrays beside it that are mapped into memory.

    index.json            what the index is of, see :class:`Head`; written last, so that a folder with it is whole
    psi.bin               ψ̃(y), one row a candidate, float32 or float16
    diag.bin norm.bin     k(y, y) and ‖ψ̃(y)‖ of the stored row, float64
    texts.bin texts.ends  the candidates' own texts in UTF-8, and where each ends; names.bin and names.ends likewise
    neighbors.hnsw.cosine.faiss        the FAISS index of this kind and rule, if the head names them
    draft.json, blocks.jsonl, *.part   of an unfinished build

Numbers are little-endian. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from dsokr import __version__
from dsokr.basis import SketchedBasis
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import Kernel

FORMAT = 1  # of the folder; raised when older versions of the package could not read it
DTYPES = ("float32", "float16")
ARRAYS = ("psi", "diag", "norm", "texts", "texts.ends", "names", "names.ends")
COMMIT_SECONDS = 5.0  # what is written is made sure of at least this often


class Block(NamedTuple):
    """Consecutive candidates of a library on their way into an index."""

    texts: Sequence[str]
    psi: Tensor  # (n, p)
    diag: Tensor  # (n,)
    names: Sequence[str] | None = None
    read: int | None = None  # rows of the library this block took, with those left out; by default as many as texts
    skipped: Sequence[str] = ()  # a sentence for every row left out


@dataclass(frozen=True)
class Head:
    """What an index is of, and how it is searched."""

    model: str  # fingerprint of the basis
    dim: int
    dtype: str = "float32"
    source: str = ""  # which library, so that an interrupted build goes on with the same one
    count: int = 0
    kind: str = "exact"
    rule: str = ""  # the decoding rule that the FAISS index answers
    effort: int = 0  # its ef_search or nprobe
    recall: float | None = None  # recall@10 of the FAISS index against exact search
    skipped: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "dsokr": __version__, **asdict(self)}

    @classmethod
    def read(cls, file: Path) -> Head:
        try:
            written = json.loads(file.read_text(encoding="utf-8"))
            if int(written["format"]) > FORMAT:
                raise InputError(
                    f"{file.parent} was built by dsokr {written.get('dsokr')}, which is newer than this one "
                    f"({__version__}). Upgrade with: pip install --upgrade dsokr"
                )
            return cls(**{field.name: written[field.name] for field in fields(cls)})
        except (OSError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{file} is damaged ({type(error).__name__}: {error}). Build the index again.") from error


def write_head(file: Path, head: Head) -> None:
    draft = file.with_name(f"{file.name}.part")
    draft.write_text(json.dumps(head.to_json(), indent=2) + "\n", encoding="utf-8")
    make_sure(draft)
    os.replace(draft, file)


def make_sure(file: Path) -> None:
    """Wait until what was written to a file is on disk."""
    with file.open("r+b") as written:
        os.fsync(written.fileno())


def fingerprint(basis: SketchedBasis) -> str:
    """What tells one basis from another: coordinates in one mean nothing in another. The network does not count.

    The kernel, the anchors, the weights and the projection count, whatever device they are on. Saving a model and
    loading it elsewhere changes nothing.
    """
    parts = [basis.kernel, basis.anchors, basis.weights, basis.projection]
    return hashlib.sha256(json.dumps(parts, default=_plain).encode()).hexdigest()


def _plain(part: Any) -> Any:
    """What JSON cannot hold in terms of what it can; equal for equal parts, whatever types their numbers have."""
    if isinstance(part, np.generic):
        return part.item()
    if isinstance(part, Tensor):
        part = part.detach().cpu().numpy()
    if isinstance(part, np.ndarray):
        return [part.shape, _checksum(part, "<f8")] if part.dtype.kind in "fiub" else part.tolist()
    if sp.issparse(part):
        rows = part.tocsr().sorted_indices()
        places = [_checksum(array, "<i8") for array in (rows.indptr, rows.indices)]
        return {"sparse": [rows.shape, *places, _checksum(rows.data, "<f8")]}
    if isinstance(part, GraphBatch):
        return list(part)
    if is_dataclass(part) and not isinstance(part, type):
        held = {field.name: getattr(part, field.name) for field in fields(part) if field.init and field.compare}
        return {type(part).__qualname__: held}
    if isinstance(part, Kernel):
        return {type(part).__qualname__: vars(part)}
    raise InputError(
        f"A basis with a {type(part).__name__} in its kernel or among its outputs has no fingerprint. "
        "Name the model of the index by a text of your own instead."
    )


def _checksum(array: np.ndarray, dtype: str) -> str:
    return hashlib.sha256(np.asarray(array, dtype).tobytes()).hexdigest()


class Texts(Sequence[str]):
    """Many strings as one run of bytes and the ends of each; only those asked for are decoded."""

    def __init__(self, data: np.ndarray, ends: np.ndarray):
        self.data, self.ends = data, ends

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        parts = [text.encode() for text in texts]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return cls(np.frombuffer(b"".join(parts), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[int(at)]
        start = int(self.ends[at - 1]) if at else 0
        return self.data[start : int(self.ends[at])].tobytes().decode()


class Writer:
    """Appends blocks to the arrays of an unfinished index, and goes on after the last one that was made sure of."""

    def __init__(self, folder: Path, head: Head):
        self.folder, self.head = folder, head
        self.rows = self.read = 0
        self.skipped: list[str] = []
        self._extents: dict[str, int] = {}
        self._waiting: list[str] = []
        self._committed = time.monotonic()
        self._files: dict[str, IO[bytes]] = {}

    @contextmanager
    def opened(self) -> Iterator[Writer]:
        self._extents = self._last_commit()
        try:
            for name in ARRAYS:
                path = array_file(self.folder, name)
                path.touch()
                self._files[name] = path.open("r+b")
                self._files[name].truncate(self._extents.get(name, 0))
                self._files[name].seek(0, os.SEEK_END)
            try:
                yield self
            finally:
                self._commit()  # also when interrupted: the blocks that are whole are kept
        finally:
            for file in self._files.values():
                file.close()

    def _last_commit(self) -> dict[str, int]:
        journal = self.folder / "blocks.jsonl"
        whole = journal.read_bytes().rpartition(b"\n")[0] if journal.exists() else b""
        extents: dict[str, int] = {}
        for line in whole.splitlines():
            entry = json.loads(line)
            extents, self.rows, self.read = entry["bytes"], entry["rows"], entry["read"]
            self.skipped += entry["skipped"]
        journal.write_bytes(whole + b"\n" * bool(whole))
        return extents

    def add(self, block: Block) -> None:
        psi, diag = self._checked(block)
        if np.abs(psi).max(initial=0) > np.finfo(self.head.dtype).max:
            raise InputError(f"Some coordinates are too large for {self.head.dtype}: build with dtype float32.")
        rows = psi.astype("<f2" if self.head.dtype == "float16" else "<f4")
        names = [""] * len(block.texts) if block.names is None else block.names
        self._files["psi"].write(rows.tobytes())
        self._files["diag"].write(diag.astype("<f8").tobytes())
        self._files["norm"].write(np.linalg.norm(rows.astype("<f8"), axis=1).tobytes())
        for name, texts in (("texts", block.texts), ("names", names)):
            packed, before = Texts.of(texts), self._files[name].tell()
            self._files[name].write(packed.data.tobytes())
            self._files[f"{name}.ends"].write((packed.ends + before).astype("<i8").tobytes())
        self._extents = {name: file.tell() for name, file in self._files.items()}
        self.rows += len(rows)
        self.read += len(rows) if block.read is None else block.read
        self.skipped += block.skipped
        self._waiting += block.skipped
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self._commit()

    def _checked(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        psi, diag = (part.detach().cpu().double().numpy() for part in (block.psi, block.diag))
        n = len(block.texts)
        if psi.shape != (n, self.head.dim) or diag.shape != (n,):
            raise InputError(
                f"A block of {n} candidates must have coordinates ({n}, {self.head.dim}) and diagonal ({n},). "
                f"Got {psi.shape} and {diag.shape}."
            )
        if block.names is not None and len(block.names) != n:
            raise InputError(f"A block of {n} candidates must have as many names, or none. Got {len(block.names)}.")
        if not (np.isfinite(psi).all() and np.isfinite(diag).all()):
            at = int(np.flatnonzero(~(np.isfinite(psi).all(axis=1) & np.isfinite(diag)))[0])
            raise InputError(f"Candidate {block.texts[at]!r} has coordinates that are NaN or inf.")
        return psi, diag

    def _commit(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        entry = {"rows": self.rows, "read": self.read, "skipped": self._waiting, "bytes": self._extents}
        with (self.folder / "blocks.jsonl").open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(entry) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        self._waiting, self._committed = [], time.monotonic()


class Arrays(NamedTuple):
    """The candidates of an index, mapped or in memory."""

    psi: np.ndarray  # (n, p)
    diag: np.ndarray  # (n,)
    norm: np.ndarray  # (n,)
    texts: Texts
    names: Texts


def array_file(folder: Path, name: str) -> Path:
    return folder / (name if name.endswith(".ends") else f"{name}.bin")


def mapped_arrays(folder: Path, head: Head) -> Arrays:
    """The arrays of a folder; their sizes must be those that the head says."""
    psi = _mapped(folder, "psi", "<f2" if head.dtype == "float16" else "<f4", head.count * head.dim)
    diag, norm = (_mapped(folder, name, "<f8", head.count) for name in ("diag", "norm"))
    texts, names = (_texts(folder, name, head.count) for name in ("texts", "names"))
    return Arrays(psi.reshape(head.count, head.dim), diag, norm, texts, names)


def _texts(folder: Path, name: str, count: int) -> Texts:
    ends = _mapped(folder, f"{name}.ends", "<i8", count)
    return Texts(_mapped(folder, name, "u1", int(ends[-1]) if count else 0), ends)


def _mapped(folder: Path, name: str, dtype: str, count: int) -> np.ndarray:
    file = array_file(folder, name)
    size = file.stat().st_size if file.is_file() else -1
    if size != count * np.dtype(dtype).itemsize:
        found = "is missing" if size < 0 else f"has {size:,} bytes instead of {count * np.dtype(dtype).itemsize:,}"
        raise InputError(f"The index is damaged: {file} {found}. Build it again, with --restart.")
    if not count:
        return np.zeros(0, dtype)
    return np.memmap(file, dtype, mode="c", shape=(count,))  # never written; torch wants to be allowed to
