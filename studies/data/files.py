"""Where data sets are on disk. The project ships none: a missing file says where to get it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from joblib import Memory

from dsokr.errors import InputError
from dsokr.files import checksum

Function = TypeVar("Function", bound=Callable[..., Any])


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


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def cache_result(function: Function) -> Function:
    """Keep what a function returns in the user's cache, by its arguments."""
    return Memory(cache_folder(), verbose=0, compress=1).cache(function)
