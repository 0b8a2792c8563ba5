"""The files of an index of candidates: a JSON head, and beside it raw arrays that are mapped into memory.

    index.json             what the index holds, see :class:`Head`
    psi.bin                ψ̃(y), one row per candidate, float32 or float16
    diag.bin squared.bin   k(y, y) and ‖ψ̃(y)‖² of the stored row, float64
    texts.jsonl            a line [text, name, cells of further columns] for every candidate
    ends.bin               where each of these lines ends, int64
    numbers.bin            the further cells as numbers, one row per candidate, float64; NaN if a cell is not a number
    hashes.bin             64-bit hashes of the further cells, one row per candidate
    codes.bin              a 64-bit key of every candidate's meaning, by which it is found, int64
    skipped.txt            a sentence for every row of the library that was left out
    hnsw.cosine.faiss      the FAISS index of this kind and rule, if the head names them
    deleted.3.bin          positions of candidates that were deleted, as of version 3, ascending, int64

Nothing is pickled. The files of a sorted index have a prefix, which the head names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr import files
from dsokr.decoders.pools import Pool
from dsokr.errors import ModelFolderError, check_types
from dsokr.index.columns import Columns
from dsokr.rules import Rule

FORMAT = 5  # of the folder
HEAD = "index.json"
ARRAYS = ("psi.bin", "diag.bin", "squared.bin", "texts.jsonl", "ends.bin", "numbers.bin", "hashes.bin", "codes.bin")
COLUMNS, CODES = slice(5, 7), slice(7, 8)  # of these
FILES = (*ARRAYS, "skipped.txt")
PREFIX = re.compile(r"(by\d*\.\d+\.)?")  # the number of a column, and a version
OURS = re.compile(rf"{PREFIX.pattern}({'|'.join(map(re.escape, FILES))}|deleted\.\d+\.bin)|.+\.faiss")


@dataclass(frozen=True)
class Head:
    """What an index holds and how it is searched. During a build, the state of the last commit."""

    model: str  # fingerprint of the basis
    dim: int
    dtype: Literal["float32", "float16"] = "float32"
    source: str = ""  # identifies the library, so that an interrupted build resumes with the same one
    count: int = 0  # candidates, with deleted ones
    deleted: int = 0
    main: int = 0  # candidates when the index was built or last sorted; later ones follow them
    version: int = 0  # of a finished index
    read: int = 0  # rows of the library
    skipped: int = 0  # rows left out
    sizes: dict[str, int] = field(default_factory=dict)  # bytes in every file
    sums: dict[str, str] = field(default_factory=dict)  # their checksums, block by block
    columns: list[str] = field(default_factory=list)
    sorted_by: str = ""  # a column
    prefix: str = ""  # of the names of all files
    finished: bool = False
    kind: Literal["exact", "hnsw", "ivfpq"] = "exact"
    rule: Rule | None = None  # the decoding rule that the FAISS index answers
    effort: int = 0  # its efSearch or nprobe
    recall: float | None = None  # its recall@10 against exact search

    @property
    def deleted_file(self) -> str:
        return f"deleted.{self.version}.bin"

    @property
    def faiss_file(self) -> str:
        return f"{self.kind}.{self.rule}{f'.{self.version}' if self.version else ''}.faiss"

    def path(self, folder: Path, name: str) -> Path:
        return folder / (name if name.endswith(".faiss") else f"{self.prefix}{name}")

    def write(self, folder: Path) -> None:
        files.write_json(folder / HEAD, {"format": FORMAT, **asdict(self)}, sealed=True)

    @classmethod
    def read_from(cls, folder: Path) -> Head:
        try:
            data = (folder / HEAD).read_bytes()
            facts = json.loads(data)
            if facts.pop("format") == FORMAT:
                if not files.is_sealed(data):
                    raise ValueError("its checksum is wrong")
                del facts["sealed"]
                return cls(**facts).checked()
        except FileNotFoundError:
            raise ModelFolderError(
                f"{folder} is not an index: {HEAD} is missing. Build one with dsokr embed."
            ) from None
        except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ModelFolderError(f"{folder / HEAD} is damaged ({error!r}). Embed the candidates again.") from error
        raise ModelFolderError(f"{folder} was built by another version of dsokr. Embed the candidates again.")

    def checked(self) -> Head:
        """Return the head, which was read from a file, if its parts fit together."""
        check_types(self)
        cells, width = 8 * len(self.columns), self.dim * (2 if self.dtype == "float16" else 4)
        widths = {"psi.bin": width, "numbers.bin": cells, "hashes.bin": cells}
        widths |= dict.fromkeys(("diag.bin", "squared.bin", "ends.bin", "codes.bin"), 8)
        sizes = {name: self.count * width for name, width in widths.items()} | {self.deleted_file: 8 * self.deleted}
        wrong = [name for name in sizes if self.sizes.get(name, 0) != sizes[name]]
        unknown = set(self.sizes) - {*FILES, *sizes} or min(self.sizes.values(), default=0) < 0
        list(map(files.BlockSums, self.sums.values()))  # ValueError unless they are numbers
        if wrong or unknown or self.dim < 1 or not 0 <= self.version < 2**63 or not PREFIX.fullmatch(self.prefix):
            raise ValueError("its parts do not fit together")
        return self

    def list_files(self, folder: Path) -> dict[Path, int | None]:
        """The files with checksums in the head, and how many of their bytes are in use; None means all."""
        return {self.path(folder, Path(name).name): self.sizes.get(name) for name in self.sums}

    def verify(self, folder: Path) -> int:
        """Check the checksums of all files, and return how many there are."""
        for (path, size), expected in zip(self.list_files(folder).items(), self.sums.values(), strict=True):
            if not path.is_file() or files.sum_file(path, size) != expected:
                raise files.damaged(path)
        return len(self.sums) + 1


class Arrays(NamedTuple):
    """The candidates of an index, mapped from disk or in memory."""

    psi: Tensor  # (n, p)
    diag: Tensor  # (n,)
    squared: Tensor  # (n,)
    texts: Sequence[str]
    names: Sequence[str]
    cells: Mapping[str, Sequence[str]]  # by column
    columns: Columns
    codes: np.ndarray  # (n,)
    checks: Sequence[files.CheckedFile] = ()  # one for each of ARRAYS; none in memory

    def check(self, rows: Pool | Tensor = slice(None), parts: slice = slice(3)) -> None:
        """Verify the checksums of the blocks that hold these rows: by default in psi, diag and squared."""
        for file in self.checks[parts]:
            file.check(rows)


class Texts(Sequence[str]):
    """The texts (part 0), names (part 1) or further cells of stored lines, parsed on access."""

    def __init__(self, lines: np.ndarray, ends: np.ndarray, part: int, checks: Sequence[files.CheckedFile]):
        self.lines, self.ends, self.part, self.checks = lines, ends, part, checks

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        at = range(len(self))[at]
        in_lines, in_ends = self.checks
        in_ends.check(slice(max(at - 1, 0), at + 1))
        start = self.ends[at - 1] if at else 0
        in_lines.check(slice(start, self.ends[at]))
        try:
            text = json.loads(self.lines[start : self.ends[at]].tobytes())[self.part]
        except (ValueError, LookupError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise ModelFolderError(f"The text of candidate {at} of the index is damaged. Embed the candidates again.")
        return text


def map_arrays(folder: Path, head: Head) -> Arrays:
    """Map the files of a finished index into memory."""
    dtypes = (head.dtype, "float64", "float64", "uint8", "int64", "float64", "int64", "int64")
    parts = [_map(folder, name, dtype, head) for name, dtype in zip(ARRAYS, dtypes, strict=True)]
    parts[0] = parts[0].reshape(head.count, head.dim)
    paths, sums = (head.path(folder, name) for name in ARRAYS), (head.sums.get(name, "") for name in ARRAYS)
    checks = tuple(map(files.CheckedFile, paths, parts, sums))
    psi, diag, squared = map(torch.from_numpy, parts[:3])
    texts, names, *cells = (Texts(parts[3], parts[4], part, checks[3:5]) for part in range(2 + len(head.columns)))
    tables = (part.reshape(head.count, -1).T for part in parts[5:7])
    columns = Columns(dict(zip(head.columns, zip(*tables, strict=True), strict=True)), head.main)
    by_name = dict(zip(head.columns, cells, strict=True))
    return Arrays(psi, diag, squared, texts, names, by_name, columns, parts[7], checks)


def _map(folder: Path, name: str, dtype: str, head: Head) -> np.ndarray:
    file = head.path(folder, name)
    if file.is_symlink():  # `dsokr update` would write to a file elsewhere
        raise ModelFolderError(f"{file} is a symbolic link: an index must hold its files itself.")
    size, expected = file.stat().st_size if file.is_file() else 0, head.sizes.get(name, 0)
    if size < expected:  # a longer file is being appended to, or an update was interrupted
        found = f"{size:,} of {expected:,} bytes"
        raise ModelFolderError(f"The index is damaged: {file} has {found}. Build it again, with --restart.")
    if not expected:  # no columns
        return np.empty(0, dtype)
    shape = (expected // np.dtype(dtype).itemsize,)
    return np.memmap(file, dtype, mode="c", shape=shape)  # "c": torch warns of memory that is read-only


def map_deleted(folder: Path, head: Head) -> Tensor:  # (head.deleted,)
    """The positions of deleted candidates, ascending."""
    positions, name = _map(folder, head.deleted_file, "int64", head), head.deleted_file
    files.CheckedFile(head.path(folder, name), positions, head.sums.get(name, "")).check()
    return torch.from_numpy(positions)
