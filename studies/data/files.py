"""Where data sets are on disk. The project ships none: a missing file says where to get it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dsokr.errors import InputError
from dsokr.files import checksum, replace_file

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """A file of a data set: its path under the data folder, its checksum, and where it comes from."""

    path: str
    sha256: str
    origin: str

    def find(self, folder: str | Path | None) -> Path:
        """Return the file under the data folder after checking its checksum."""
        path = data_folder(folder) / self.path
        if not path.is_file():
            raise InputError(
                f"{path} is missing. Get it from {self.origin}, or name the folder it is under with --data-dir or "
                "the environment variable DSOKR_DATA."
            )
        if (found := checksum(path)) != self.sha256:
            raise InputError(f"{path} is not the expected file: its SHA-256 is {found} instead of {self.sha256}.")
        return path


def data_folder(folder: str | Path | None) -> Path:
    """The folder given, else ``DSOKR_DATA``, else the user's cache."""
    return Path(folder or os.environ.get("DSOKR_DATA") or cache_folder())


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsokr"


def read_arrays(path: Path, *names: str) -> Arrays:
    """Read the named arrays of an .npz file, or all of them."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names or file.files}
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is damaged or is another file: {error}. Delete it and get it again.") from error


def load_prepared(name: str, folder: str | Path | None, prepare: Callable[[], Arrays]) -> Arrays:
    """Read arrays from the data folder or the cache; if neither has them, prepare them and put them into the cache.

    The name carries a number that changes when the arrays do.
    """
    for path in (data_folder(folder) / name, cache_folder() / name):
        if path.is_file():
            return read_arrays(path)
    arrays = prepare()
    with replace_file(cache_folder() / name) as draft:
        np.savez_compressed(draft, **arrays)  # type: ignore[arg-type] # numpy's own options are named otherwise
    return arrays
