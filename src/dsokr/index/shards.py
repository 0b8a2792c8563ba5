"""Shards: candidates with their coordinates in Parquet files, written and searched by many machines.

    shards.json           what the shards hold, see :class:`Shards`
    shard-00000.parquet   consecutive candidates: row (in the library), text, name, code, diag, psi, and column.NAME for
                          every further column; its metadata list the rows that were left out

The folder is local or at an address that fsspec knows, such as s3://bucket/folder. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import fsspec
import numpy as np
import torch
from torch import Tensor

from dsokr import files
from dsokr.decoders.pools import Coordinates
from dsokr.errors import DSOKRError, InputError, ModelFolderError, check_types, import_extra
from dsokr.index.build import Block, check_block
from dsokr.index.candidates import check_same, check_usable
from dsokr.index.columns import check_column
from dsokr.index.milvus import is_milvus

HEAD = "shards.json"
FORMAT = 1


@dataclass(frozen=True)
class Folder:
    """A folder on this machine or, as s3://bucket/folder, at any address that fsspec knows."""

    place: str

    @staticmethod
    def at(path: Path | str) -> Folder:
        """Return the folder at a path or an address. Restores the slashes that an address loses as a path."""
        scheme = re.match(r"(\w{2,}):/+", text := str(path))
        return Folder(f"{scheme[1]}://{'/' * (scheme[1] == 'file')}{text[scheme.end() :]}" if scheme else text)

    @property
    def is_local(self) -> bool:
        return "://" not in self.place

    @contextmanager
    def _reach(self, name: str = "") -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path of a file in it, and turn errors into one sentence."""
        try:
            system, root = fsspec.url_to_fs(self.place)
            yield system, f"{root}/{name}" if name else root
        except DSOKRError:
            raise
        except (AttributeError, ImportError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
            place, reason = f"{self.place}/{name}" if name else self.place, str(error).partition("\n")[0].rstrip(".")
            raise ModelFolderError(f"{place} cannot be used: {reason}.") from error

    def names(self) -> set[str]:
        with self._reach() as (system, path):
            return {Path(name).name for name in system.ls(path, detail=False)} if system.exists(path) else set()

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        with self._reach(name) as (system, path), system.open(path, "rb") as file:
            yield file

    def write(self, name: str, data: Any) -> None:
        """Write a file completely or not at all; object stores show files only once they are complete."""
        if self.is_local:
            with files.replace_file(Path(self.place) / name) as draft:
                draft.write_bytes(data)
        else:
            with self._reach(name) as (system, path):
                system.makedirs(system._parent(path), exist_ok=True)
                system.pipe_file(path, bytes(data))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with self._reach(name) as (system, path):
                system.rm(path)

    def lock(self) -> AbstractContextManager[None]:
        return files.lock_folder(Path(self.place), "dsokr embed") if self.is_local else nullcontext()


class Shard(NamedTuple):
    """Consecutive candidates of a library, without coordinates, and the rows that were skipped among them."""

    rows: Sequence[int]
    texts: Sequence[str]
    names: Sequence[str]
    codes: Sequence[bytes]
    cells: Mapping[str, Sequence[str]]
    bad: Mapping[str, str] = {}  # the reason for every text that cannot be used
    skipped: Sequence[str] = ()  # a sentence for every skipped row


@dataclass(frozen=True)
class Shards:
    """The shards of a folder: for which model and library they are, and how many candidates each of them has."""

    folder: Folder
    model: str  # fingerprint of the basis
    dim: int
    dtype: Literal["float32", "float16"]
    source: str  # identifies the library
    columns: list[str]
    counts: list[int] = field(default_factory=list)
    rows: int = 0  # of the library
    finished: bool = False

    @staticmethod
    def are_at(path: Path | str) -> bool:
        return not is_milvus(path) and (not Folder.at(path).is_local or (Path(path) / HEAD).is_file())

    @staticmethod
    def open(path: Path | str, model: str | None = None) -> Shards:
        """Open finished shards. ``model`` is the fingerprint of the basis that will search them."""
        shards = Shards._read_from(Folder.at(path))
        check_usable(f"The folder of shards {path}", shards.finished, shards.model, model)
        return shards

    @staticmethod
    def _read_from(folder: Folder) -> Shards:
        with folder.open(HEAD) as file:
            facts = json.loads(data := file.read())
            if not files.is_sealed(data) or facts.pop("format") != FORMAT:
                raise ValueError("its checksum or its format is wrong")
            del facts["sealed"]
            found = Shards(folder, **facts)
            check_types(found)
            if found.dim < 1 or min(found.counts, default=0) < 0 or (found.finished and not found.counts):
                raise ValueError("its parts do not fit together")
            return found

    def start(self, restart: bool) -> set[int]:
        """Prepare the folder for shards of this model and library, and return the numbers of finished ones."""
        names = self.folder.names()
        if HEAD not in names and any(not name.startswith(".") for name in names):
            raise InputError(f"{self.folder.place} exists and has no shards. Choose another folder.")
        found = self if restart or HEAD not in names else Shards._read_from(self.folder)
        remedy = "Choose another folder, or discard them with --restart."
        check_same(found, self, ("model", "source", "dtype"), f"{self.folder.place} holds shards", remedy)
        old = {name for name in names if restart or name.startswith(files.DRAFT)} - {files.LOCK}
        self.folder.remove(sorted(old, key=HEAD.__eq__))  # the head last: it describes the shards
        self.write()
        return set() if restart else {int(name[6:-8]) for name in names if name.endswith(".parquet")}

    def write(self) -> None:
        head = {"sealed": files.ZEROS.decode(), "format": FORMAT, **asdict(self)}
        del head["folder"]
        self.folder.write(HEAD, files.sealed(json.dumps(head, indent=2).encode()))

    def finish(self, counts: Sequence[int], rows: int) -> Shards:
        done = replace(self, counts=list(counts), rows=rows, finished=True)
        done.write()
        return done

    def write_shard(self, number: int, shard: Shard, psi: Tensor, diag: Tensor) -> None:
        arrow, parquet = import_extra("pyarrow", "cluster"), import_extra("pyarrow.parquet", "cluster")
        stored, diag = check_block(Block(shard.texts, psi, diag), self.dim, self.dtype)
        further = {f"column.{name}": shard.cells[name] for name in self.columns}
        texts = {"text": shard.texts, "name": shard.names, **further}
        columns = {
            "row": arrow.array(shard.rows, arrow.int64()),
            "code": arrow.array(shard.codes, arrow.binary(8)),
            "diag": diag.numpy(),
            "psi": arrow.FixedSizeListArray.from_arrays(arrow.array(stored.flatten().numpy()), self.dim),
            **{name: arrow.array(cells, arrow.string()) for name, cells in texts.items()},
        }
        facts = {"dsokr": json.dumps({"bad": dict(shard.bad), "skipped": list(shard.skipped)})}
        table, sink = arrow.table(columns, metadata=facts), arrow.BufferOutputStream()
        parquet.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
        self.folder.write(name_of(number), sink.getvalue())

    def read_shard(self, number: int) -> Shard:
        """Read a shard, without its coordinates."""
        table = self._read(number, ["row", "text", "name", "code", *(f"column.{name}" for name in self.columns)])
        rows, texts, named, codes, *cells = (column.to_pylist() for column in table.columns)
        facts = json.loads(table.schema.metadata[b"dsokr"])
        return Shard(rows, texts, named, codes, dict(zip(self.columns, cells, strict=True)), **facts)

    def read_columns(self, number: int, names: Iterable[str]) -> dict[str, list[str]]:
        """The cells of further columns, by name."""
        table = self._read(number, [f"column.{name}" for name in names])
        return {name.removeprefix("column."): table[name].to_pylist() for name in table.column_names}

    def read_coordinates(self, number: int) -> Coordinates:
        diag, psi = self._read(number, ["diag", "psi"]).columns
        rows = torch.from_numpy(psi.combine_chunks().flatten().to_numpy().copy()).reshape(-1, self.dim)
        return Coordinates(rows, torch.from_numpy(diag.to_numpy().copy()), rows.double().square().sum(dim=1))

    def _read(self, number: int, columns: list[str]) -> Any:
        arrow, parquet = import_extra("pyarrow", "cluster"), import_extra("pyarrow.parquet", "cluster")
        coordinates = arrow.list_(arrow.float16() if self.dtype == "float16" else arrow.float32(), self.dim)
        types = {"row": arrow.int64(), "code": arrow.binary(8), "diag": arrow.float64(), "psi": coordinates}
        with self.folder.open(name_of(number)) as file:
            table = parquet.read_table(file, columns=columns, page_checksum_verification=True).select(columns)
            fits = all(column.type == types.get(column.name, arrow.string()) for column in table.schema)
            if not fits or (self.counts and table.num_rows != self.counts[number]) or not table.schema.metadata:
                raise ValueError("it is not a shard of this library")
            return table

    def blocks(self, start: int) -> Iterator[Block]:
        """Yield the candidates of all shards from number ``start`` on, for :func:`dsokr.index.build`."""
        for number in range(start, len(self.counts)):
            shard, (psi, diag, _) = self.read_shard(number), self.read_coordinates(number)
            codes = as_codes(shard.codes)
            yield Block(shard.texts, psi, diag, shard.names, 1, shard.skipped, shard.cells, codes)

    def check_columns(self, names: Iterable[str]) -> None:
        for name in names:
            check_column(name, self.columns)


def name_of(number: int) -> str:
    return f"shard-{number:05d}.parquet"


def as_codes(codes: Sequence[bytes]) -> np.ndarray:  # (n,) int64
    return np.frombuffer(b"".join(codes), np.int64)
