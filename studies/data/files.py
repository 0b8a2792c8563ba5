"""Where data sets lie on disk. The project ships none: a folder is named, and a missing file says where to get it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsokr.errors import InputError


@dataclass(frozen=True)
class Source:
    """A file of a data set: its path under the data folder, its checksum, and where it comes from."""

    path: str
    sha256: str
    origin: str

    def find(self, folder: str | Path | None) -> Path:
        """The file, checked. ``folder`` is the data folder; see :func:`data_folder` for its default."""
        path = data_folder(folder) / self.path
        if not path.is_file():
            raise InputError(
                f"{path} is missing. Get it from {self.origin}, or name the folder it is under (--data-dir, or "
                "the environment variable DSOKR_DATA)."
            )
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise InputError(f"{path} is not the file meant: its SHA-256 is {found}, expected {self.sha256}.")
        return path


def data_folder(folder: str | Path | None) -> Path:
    """The folder given, else ``DSOKR_DATA``, else the user's cache."""
    return Path(folder or os.environ.get("DSOKR_DATA") or cache_folder())


def cache_folder() -> Path:
    """Where prepared arrays are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsokr"


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays as one compressed file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            np.savez_compressed(file, **arrays)
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)
