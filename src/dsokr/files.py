"""Files written whole or not at all, by one writer at a time; checksums of files, fingerprints of values."""

import ctypes
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from secrets import token_hex
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from dsokr.errors import DSOKRError, InputError, ModelFolderError

try:
    import fcntl
except ImportError:  # Windows, where drafts are recognised by their age alone
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

LOCK = ".lock"  # a file in a folder that is being written
DRAFT, OLD = ".part-", ".old-"  # prefixes of names: of drafts, and of folders that are being replaced
STALE = 3600.0  # seconds after which a draft that is neither changed nor locked is left over from a crash
BLOCK = 2**22  # numbers hashed at once
SUMMED = 2**22  # bytes for every checksum of a large file
ZEROS = b"0" * 64  # stands where a sealed file holds its own checksum, while that is computed
SEAL = re.compile(rb'"sealed": ?"([0-9a-f]{64})"')
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # constants of Linux


def check_place(path: Path) -> None:
    """Check, before any work is done, that a file or folder can be created at ``path``."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: {folder} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: the folder {folder} is read-only.")


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a draft beside ``path`` that takes its place at the end of the block; on an error the old file stays.

    If ``path`` is a symbolic link, the file that it names is replaced.
    """
    place = path.resolve()
    draft = _name_beside(place, DRAFT)
    with _explain_failure(path):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            draft.touch()
            with _hold(draft):
                yield draft
                sync(draft)
                os.replace(draft, place)
            sync(place.parent)
        finally:
            with suppress(OSError):  # in its place already, or never written
                draft.unlink()


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that takes the place of ``folder`` at the end of the block; on an error the old one stays.

    On Linux there is a whole folder at this place at every moment. Elsewhere a crash between two renames leaves the old
    one beside it, and the next call puts it back. If ``folder`` is a symbolic link, what it names is replaced.
    """
    place = folder.resolve()
    with _explain_failure(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
        for old in place.parent.glob(f"{OLD}*-{glob.escape(place.name)}"):
            if not place.exists():
                os.replace(old, place)
        draft = _name_beside(place, DRAFT)
        try:
            draft.mkdir(mode=0o755)
            with _hold(draft):
                yield draft
                for file in draft.rglob("*"):
                    file.chmod(0o755 if file.is_dir() else 0o644)  # safetensors writes private files
                    sync(file)
                sync(draft)
                _exchange(draft, place)
            sync(place.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _explain_failure(path: Path) -> Iterator[None]:
    """Say in one sentence why a file cannot be written. FAISS and torch raise RuntimeError on a full disk."""
    try:
        yield
    except DSOKRError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be written: {reason.rstrip('.')}.") from error


def _name_beside(path: Path, begin: str) -> Path:
    """Return a name beside ``path`` that no other writer has, and remove drafts that are left over from crashes."""
    for draft in path.parent.glob(f"{DRAFT}*-{glob.escape(path.name)}"):
        with suppress(OSError):
            if time.time() - draft.lstat().st_mtime > STALE:
                with _hold(draft):
                    shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
    return path.with_name(f"{begin}{token_hex(4)}-{path.name}")


@contextmanager
def _hold(draft: Path) -> Iterator[None]:
    """Lock a draft while its writer lives, whatever the clock says. Raise OSError if another process holds it."""
    if fcntl is None:
        yield
        return
    handle = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _exchange(draft: Path, folder: Path) -> None:
    """Swap a draft with the folder, if it exists, in one step; in two renames where the system cannot."""
    if folder.exists() and sys.platform == "linux":
        libc, names = ctypes.CDLL(None, use_errno=True), (os.fsencode(draft), os.fsencode(folder))
        if hasattr(libc, "renameat2") and not libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
            return
    old = _name_beside(folder, OLD)
    if folder.exists():
        os.replace(folder, old)
    try:
        os.replace(draft, folder)
    except BaseException:
        if old.exists():
            os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_whole(folder: Path, read: Callable[[], T]) -> T:
    """Call a function that reads the files of a folder. Repeat if a writer replaced the folder meanwhile."""
    while True:
        before = _identify(folder)
        try:
            found = read()
        except (DSOKRError, OSError):
            if _identify(folder) == before:
                raise
        else:
            if _identify(folder) == before:
                return found


def _identify(folder: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        facts = folder.stat()
        return facts.st_dev, facts.st_ino, facts.st_ctime_ns  # a folder that is replaced twice may have its old inode
    return None


def write_json(path: Path, value: Any, *, sealed: bool = False) -> None:
    """Write a JSON file, whole or not at all. A sealed one holds its own checksum."""
    with replace_file(path) as draft:
        value = {"sealed": ZEROS.decode(), **value} if sealed else value
        draft.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if sealed:
            seal(draft)


def seal(path: Path) -> None:
    """Put the SHA-256 of a file into the file, in place of the zeros in its field "sealed"."""
    path.write_bytes(sealed(path.read_bytes()))


def sealed(data: bytes) -> bytes:
    return data.replace(ZEROS, hashlib.sha256(data).hexdigest().encode(), 1)


def read_sealed(path: Path) -> bytes:
    """Read a file that was sealed, and check it."""
    data = path.read_bytes()
    if not is_sealed(data):
        raise ModelFolderError(f"{path} is damaged or incomplete: its checksum is wrong.")
    return data


def is_sealed(data: bytes) -> bool:
    """Whether the contents of a file match the checksum that they hold."""
    found = SEAL.search(data)
    return found is not None and found[1].decode() == hashlib.sha256(data.replace(found[1], ZEROS, 1)).hexdigest()


class BlockSums:
    """CRC-32 of every 4 MiB of a growing file; written as text, so that a build can resume."""

    def __init__(self, text: str = "", size: int = 0):
        self.sums, self.size = [int(word, 16) for word in text.split()], size

    def __str__(self) -> str:
        return " ".join(f"{crc:08x}" for crc in self.sums)

    def add(self, data: bytes) -> None:
        rest = memoryview(data)
        while len(rest):
            room = SUMMED - self.size % SUMMED
            if room == SUMMED:
                self.sums.append(0)
            self.sums[-1] = zlib.crc32(rest[:room], self.sums[-1])
            self.size += len(rest[:room])
            rest = rest[room:]


def sum_file(path: Path, size: int | None = None) -> str:
    """The checksums of a file, or of its first bytes."""
    sums, left = BlockSums(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left and (data := file.read(min(left, SUMMED))):
            sums.add(data)
            left -= len(data)
    return str(sums)


class CheckedFile:
    """A mapped file with the checksums of its blocks. Each block is checked once, before it is first read."""

    def __init__(self, path: Path, rows: np.ndarray, sums: str):
        self.path, self.count, self.width = path, len(rows), rows.nbytes // max(len(rows), 1)
        self.data = rows.reshape(-1).view(np.uint8)
        self.sums = BlockSums(sums).sums
        self.unread = np.ones(-(-len(self.data) // SUMMED), bool)
        self.left = len(self.unread)

    def check(self, rows: Any = slice(None)) -> None:
        """Check the blocks that hold these rows: a slice, or positions."""
        if not self.left:  # quick, as a search calls this for every block that it reads
            return
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.count)
            blocks = np.arange(start * self.width // SUMMED, -(-stop * self.width // SUMMED))
        else:
            starts, inside = np.ravel(rows) * self.width, (*range(0, self.width, SUMMED), self.width - 1)
            blocks = np.unique([(starts + offset) // SUMMED for offset in inside])
        for block in blocks[self.unread[blocks]].tolist():
            data = self.data[block * SUMMED : (block + 1) * SUMMED]
            if self.sums[block : block + 1] != [zlib.crc32(data.data)]:
                raise damaged(self.path)
            self.unread[block] = False
        self.left = int(self.unread.sum())


def damaged(path: Path) -> ModelFolderError:
    what = f"The index is damaged: the checksum of {path} is wrong."
    return ModelFolderError(f"{what} Build it again, with --restart.")


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
        try:
            with suppress(OSError):  # gone with the folder
                (folder / LOCK).unlink()
        finally:
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
