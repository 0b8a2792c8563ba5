"""Files that are written whole or not at all, and places where they can be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsokr.errors import InputError


def check_place(path: Path) -> None:
    """Whether a file or folder can be made there, asked before any work is done; missing folders will be made."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: {folder} is not a folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: nothing may be written to the folder {folder}.")


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place at the end; if that fails, what was there stays."""
    draft = path.with_name(f".part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield draft
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
