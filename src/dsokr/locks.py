"""One writer at a time for a folder, across processes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from dsokr.errors import InputError

if sys.platform != "win32":
    import fcntl

LOCK = "writing.lock"  # a file in the folder, with the number of the process that writes there


@contextmanager
def sole_writer(folder: Path, command: str, place: Path | None = None) -> Iterator[None]:
    """A block that one process at a time can be in for a folder; another is told that ``command`` is running already.

    The lock is a file in ``place``, by default the folder itself, which is made if it is missing and removed if it is
    empty at the end. It is let go when the process ends, however it ends. On Windows there is no lock.
    """
    if sys.platform == "win32":
        yield
        return
    place = folder if place is None else place
    with _locked(place / LOCK, folder, command) as lock:
        try:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield
        finally:
            (place / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                place.rmdir()


def _locked(file: Path, folder: Path, command: str) -> IO[str]:
    """The file, open and locked. A writer that ends may remove it and its folder at any moment."""
    while True:
        with suppress(FileExistsError):
            file.parent.mkdir(parents=True)
        with suppress(FileNotFoundError), ExitStack() as opened:
            lock = opened.enter_context(file.open("a+", encoding="utf-8"))
            if not _try_lock(lock):
                lock.seek(0)
                raise InputError(
                    f"{folder} is being written by another `{command}` (process {lock.read() or 'unknown'}). "
                    "Wait for its end, or choose another folder."
                )
            if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                opened.pop_all()
                return lock


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # not every file system can
        warnings.warn(f"{lock.name} cannot be locked ({error.strerror}): start no other writer.", stacklevel=2)
    return True
