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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import fsspec
import torch
from torch import Tensor

from dsokr import files
from dsokr.decoders.pools import Coordinates
from dsokr.errors import InputError, ModelFolderError, check_types, import_extra
from dsokr.index.build import Block
from dsokr.index.columns import Columns

HEAD = "shards.json"
FORMAT = 1


@dataclass(frozen=True)
class Folder:
    """A folder on this machine or, as s3://bucket/folder, at any address that fsspec knows."""

    place: str

    @staticmethod
    def at(path: Path) -> Folder:
        """The folder that a path or an address names; as a path, an address has lost slashes."""
        scheme = re.match(r"(\w{2,}):/+", text := str(path))
        return Folder(f"{scheme[1]}://{'/' * (scheme[1] == 'file')}{text[scheme.end() :]}" if scheme else text)

    @property
    def is_local(self) -> bool:
        return "://" not in self.place

    @cached_property
    def _system(self) -> tuple[Any, str]:
        try:
            return fsspec.url_to_fs(self.place)
        except (ImportError, ValueError, OSError) as error:
            raise InputError(f"{self.place} cannot be reached: {error}.") from error

    def names(self) -> set[str]:
        system, root = self._system
        try:
            return {Path(name).name for name in system.ls(root, detail=False)} if system.exists(root) else set()
        except OSError as error:
            raise InputError(f"{self.place} cannot be read: {error}.") from error

    def open(self, name: str) -> Any:
        system, root = self._system
        return system.open(f"{root}/{name}", "rb")

    def fetch(self, name: str, copy: Path) -> None:
        system, root = self._system
        try:
            system.get_file(f"{root}/{name}", str(copy))
        except OSError as error:
            raise InputError(f"{self.place}/{name} cannot be read: {error}.") from error

    def write(self, name: str, data: Any) -> None:
        """Write a file, whole or not at all: an object store shows it once all of it is there."""
        system, root = self._system
        if self.is_local:
            with files.replace_file(Path(root) / name) as draft:
                draft.write_bytes(data)
            return
        try:
            system.makedirs(root, exist_ok=True)
            system.pipe_file(f"{root}/{name}", bytes(data))
        except OSError as error:
            raise InputError(f"{self.place}/{name} cannot be written: {error}.") from error

    def remove(self, names: Iterable[str]) -> None:
        system, root = self._system
        for name in names:
            system.rm(f"{root}/{name}")

    def lock(self) -> AbstractContextManager[None]:
        return files.lock_folder(Path(self.place), "dsokr embed") if self.is_local else nullcontext()


class Shard(NamedTuple):
    """Consecutive candidates of a library without their coordinates, and the rows that were left out among them."""

    rows: Sequence[int]
    texts: Sequence[str]
    names: Sequence[str]
    codes: Sequence[bytes]
    cells: Mapping[str, Sequence[str]]
    bad: Mapping[str, str] = {}  # why texts cannot be used
    skipped: Sequence[str] = ()  # a sentence for every row left out


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
    def are_at(path: Path) -> bool:
        folder = Folder.at(path)
        return not folder.is_local or (path / HEAD).is_file()

    @staticmethod
    def open(path: Path, model: str | None = None) -> Shards:
        """Open finished shards. ``model`` is the fingerprint of the basis that will search them."""
        shards = Shards._read_from(Folder.at(path))
        if not shards.finished:
            raise ModelFolderError(f"The shards in {path} are unfinished. Run the command that writes them again.")
        if model not in (None, shards.model):
            raise InputError(f"{path} was built for another model. Embed the candidates again with this one.")
        return shards

    @staticmethod
    def _read_from(folder: Folder) -> Shards:
        try:
            with folder.open(HEAD) as file:
                data = file.read()
            facts = json.loads(data)
            if not files.is_sealed(data) or facts.pop("format") != FORMAT:
                raise ValueError("its checksum or its format is wrong")
            del facts["sealed"]
            shards = Shards(folder, **facts)
            check_types(shards)
            return shards
        except FileNotFoundError:
            raise ModelFolderError(f"{folder.place} has no shards: {HEAD} is missing.") from None
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise ModelFolderError(f"{folder.place}/{HEAD} cannot be used ({error!r}). Embed again.") from error

    def start(self, restart: bool) -> set[int]:
        """Prepare the folder for shards of this model and library, and return the numbers of those that are there."""
        names = self.folder.names()
        if HEAD not in names and any(not name.startswith(".") for name in names):
            raise InputError(f"{self.folder.place} exists and has no shards. Choose another folder.")
        if HEAD in names and not restart:
            found = Shards._read_from(self.folder)
            for part, other in (("model", "another model"), ("source", "another library"), ("dtype", "another dtype")):
                if getattr(found, part) != getattr(self, part):
                    what = f"{self.folder.place} holds shards of {other}."
                    raise InputError(f"{what} Choose another folder, or discard them with --restart.")
        self.folder.remove({name for name in names if restart or name.startswith(files.DRAFT)} - {files.LOCK})
        self.write()
        return set() if restart else {int(name[6:-8]) for name in names if name.endswith(".parquet")}

    def write(self) -> None:
        facts = {name: value for name, value in asdict(self).items() if name != "folder"}
        head = {"sealed": files.ZEROS.decode(), "format": FORMAT, **facts}
        self.folder.write(HEAD, files.sealed(json.dumps(head, indent=2).encode()))

    def finish(self, counts: Sequence[int], rows: int) -> Shards:
        done = replace(self, counts=list(counts), rows=rows, finished=True)
        done.write()
        return done

    def write_shard(self, number: int, shard: Shard, psi: Tensor, diag: Tensor) -> None:
        arrow, parquet = import_extra("pyarrow", "cluster"), import_extra("pyarrow.parquet", "cluster")
        rows = psi.detach().cpu().to(getattr(torch, self.dtype))
        if not (rows.isfinite().all() and diag.isfinite().all()):
            at = int((~(rows.isfinite().all(dim=1) & diag.cpu().isfinite())).nonzero()[0])
            raise InputError(f"Candidate {shard.texts[at]!r} has coordinates that are not finite in {self.dtype}.")
        columns = {
            "row": arrow.array(shard.rows, arrow.int64()),
            "text": arrow.array(shard.texts, arrow.string()),
            "name": arrow.array(shard.names, arrow.string()),
            "code": arrow.array(shard.codes, arrow.binary(8)),
            "diag": arrow.array(diag.detach().cpu().double().numpy()),
            "psi": arrow.FixedSizeListArray.from_arrays(arrow.array(rows.flatten().numpy()), self.dim),
            **{f"column.{name}": arrow.array(shard.cells[name], arrow.string()) for name in self.columns},
        }
        facts = {"dsokr": json.dumps({"bad": dict(shard.bad), "skipped": list(shard.skipped)})}
        sink = arrow.BufferOutputStream()
        parquet.write_table(
            arrow.table(columns, metadata=facts),
            sink,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )
        self.folder.write(name_of(number), sink.getvalue())

    def read_shard(self, number: int) -> Shard:
        """Read a shard, without its coordinates."""
        names = ["row", "text", "name", "code", *(f"column.{name}" for name in self.columns)]
        table = self._read(number, names)
        rows, texts, named, codes, *cells = (table[name].to_pylist() for name in names)
        facts = json.loads(table.schema.metadata[b"dsokr"])
        return Shard(rows, texts, named, codes, dict(zip(self.columns, cells, strict=True)), **facts)

    def _read(self, number: int, columns: list[str]) -> Any:
        arrow, parquet = import_extra("pyarrow", "cluster"), import_extra("pyarrow.parquet", "cluster")
        try:
            with self.folder.open(name_of(number)) as file:
                return parquet.read_table(file, columns=columns, page_checksum_verification=True)
        except (arrow.ArrowException, OSError) as error:
            place = f"{self.folder.place}/{name_of(number)}"
            raise ModelFolderError(f"{place} is damaged or missing. Delete it, and embed again: {error}") from error

    def read_columns(self, number: int, names: Iterable[str]) -> dict[str, list[str]]:
        """The cells of further columns, by name."""
        table = self._read(number, [f"column.{name}" for name in names])
        return {name.removeprefix("column."): table[name].to_pylist() for name in table.column_names}

    def read_coordinates(self, number: int) -> Coordinates:
        table = self._read(number, ["diag", "psi"])
        flat, diag = table["psi"].combine_chunks().flatten().to_numpy(), table["diag"].to_numpy()
        psi = torch.from_numpy(flat.copy()).reshape(-1, self.dim)
        return Coordinates(psi, torch.from_numpy(diag.copy()), psi.double().square().sum(dim=1))

    def blocks(self, start: int) -> Iterator[Block]:
        """The candidates from a shard on, for :func:`dsokr.index.build`."""
        for number in range(start, len(self.counts)):
            shard, (psi, diag, _) = self.read_shard(number), self.read_coordinates(number)
            yield Block(shard.texts, psi, diag, shard.names, read=1, skipped=shard.skipped, cells=shard.cells)

    def check_columns(self, names: Iterable[str]) -> None:
        columns = Columns.of({name: () for name in self.columns})
        for name in names:
            columns.check(name)


def name_of(number: int) -> str:
    return f"shard-{number:05d}.parquet"
