"""Files that appear whole or not at all, one writer at a time, checksums of files and fingerprints of values."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import scipy.sparse as sp
from filelock import FileLock, Timeout
from torch import Tensor

from dsokr.errors import InputError

LOCK = ".lock"  # a file in a folder that is being written
BLOCK = 2**22  # numbers hashed at once


def check_place(path: Path) -> None:
    """Check, before any work is done, that a file or folder can be created at ``path``."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: {folder} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: the folder {folder} is read-only.")


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a draft beside ``path`` that takes its place at the end of the block; on an error the old file stays."""
    draft = path.with_name(f".part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        sync(draft)
        os.replace(draft, path)
        sync(path.parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # in its place already, or never written
            draft.unlink()


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that takes the place of ``folder`` at the end of the block; on an error the old one stays.

    A crash between the two renames leaves the old folder beside it, under a name that ends in -old.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        draft.chmod(0o755)  # mkdtemp makes private folders
        yield draft
        for file in draft.rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)  # safetensors writes private files
            sync(file)
        old = draft.with_name(f"{draft.name}-old")
        if folder.exists():
            os.replace(folder, old)
        os.replace(draft, folder)
        shutil.rmtree(old, ignore_errors=True)
        sync(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with replace_file(path) as draft:
        draft.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock_folder(folder: Path, command: str) -> Iterator[None]:
    """Let one process at a time into a block; another gets an error that says ``command`` is already running.

    The folder is created if missing and removed if empty at the end. The lock ends with the process, however it ends.
    """
    lock = FileLock(folder / LOCK)
    while not (lock.is_locked and (folder / LOCK).exists()):  # a writer may just have removed the file or the folder
        lock.release()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except (FileNotFoundError, FileExistsError):
            if folder.is_file():
                raise
        except Timeout:
            raise InputError(
                f"{folder} is being written by another `{command}`. Wait until it ends, or choose another folder."
            ) from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # not empty
            folder.rmdir()


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(*parts: Any) -> str:
    """Return a SHA-256 that is equal for equal values, in any process and on any device.

    Numbers count by value whatever their type, dataclasses by their compared fields, functions and classes by name.

    >>> fingerprint(np.array([1, 2])) == fingerprint(np.array([1.0, 2.0])), fingerprint("a") == fingerprint("b")
    (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        _feed(digest, part)
    return digest.hexdigest()


def _feed(digest: Any, part: Any) -> None:
    if isinstance(part, Tensor):
        part = part.detach().cpu().numpy()
    if isinstance(part, np.ndarray) and part.dtype.kind in "fiub":
        digest.update(f"array {part.shape}".encode())
        flat = part.reshape(-1)
        for start in range(0, len(flat), BLOCK):
            digest.update((flat[start : start + BLOCK].astype("<f8") + 0.0).tobytes())  # -0.0 is 0.0
    elif sp.issparse(part):
        rows = part.tocsr().sorted_indices()
        _feed(digest, ["sparse", list(rows.shape), rows.indptr, rows.indices, rows.data])
    elif is_dataclass(part) and not isinstance(part, type):
        held = {field.name: getattr(part, field.name) for field in fields(part) if field.init and field.compare}
        _feed(digest, [type(part).__qualname__, held])
    elif isinstance(part, Mapping):
        _feed(digest, ["mapping", *sorted(map(str, part)), *(part[key] for key in sorted(part, key=str))])
    elif isinstance(part, FunctionType | BuiltinFunctionType | type):
        digest.update(f"{part.__module__}.{part.__qualname__}".encode())
    elif isinstance(part, str | bytes | int | float | np.generic | None):
        value = part.item() if isinstance(part, np.generic) else part
        text = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        digest.update(b"%d " % len(text) + text)
    elif isinstance(part, list | tuple | np.ndarray):
        digest.update(f"list {len(part)}".encode())
        for item in part:
            _feed(digest, item)
    else:
        digest.update(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(part)).encode())
