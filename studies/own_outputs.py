"""Outputs from a user's file, and kernels and sketches by name: what `dsokr select-size` needs."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from torch import Generator

from dsokr import kernels, sketches
from dsokr.errors import InputError
from dsokr.outputs import Outputs, as_outputs, count, take
from dsokr.plotting import pyplot
from dsokr.commands import tables
from dsokr.commands.kinds import is_number, numbers
from dsokr.commands.problems import Problems


def read(path: Path) -> Outputs:
    """A matrix of outputs, one a row."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        match tables.form(path):
            case ".npy":
                ys = np.load(path, allow_pickle=False)
            case ".npz":
                ys = sp.load_npz(path)
            case ".csv" | ".tsv" | ".tab":
                ys = _read_table(path)
            case other:
                raise InputError(
                    f"{path}: cannot read {other or 'a file without a suffix'}. Use .npy, .npz, .csv or .tsv."
                )
    except InputError:
        raise
    except (ValueError, OSError, KeyError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return as_outputs(ys, str(path))


def _read_table(path: Path) -> np.ndarray:
    """Numbers; a first row without any number is a header."""
    problems = Problems()
    rows = tables.Separated(path).rows(problems, first="the first row")
    at, first = next(rows)
    names = [] if any(map(is_number, first)) else [name.strip() for name in first]
    found = []
    for number, cells in rows if names else chain([(at, first)], rows):
        try:
            found.append(numbers(cells, names))
        except InputError as error:
            problems.add(path, number, f"row {number}", "", str(error))
            break
    for problem in problems.by_row():
        raise InputError(f"{path}, row {problem.row}: {problem.reason}")
    return np.array(found)


def check_picture(path: Path) -> None:
    """Whether a picture can be written there, asked before any work is done."""
    plots = pyplot()
    figure = plots.figure()
    known = figure.canvas.get_supported_filetypes()
    plots.close(figure)
    if path.suffix.removeprefix(".") not in known:
        raise InputError(f"{path}: a picture must be one of {', '.join(sorted(known))}.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent} for the picture.")


def split(ys: Outputs, seed: int) -> tuple[Outputs, Outputs]:
    """Nine tenths, and the tenth that is held out."""
    n = count(ys)
    if n < 10:
        raise InputError(f"At least ten outputs are needed to hold some out. Got {n}.")
    order = np.random.default_rng(seed).permutation(n)
    return take(ys, order[n // 10 :]), take(ys, order[: n // 10])


def kernel(name: str, gamma: float | None) -> kernels.Kernel:
    if name in ("gaussian", "laplacian"):
        if gamma is None:
            raise InputError(f"The {name} kernel needs --gamma.")
        return kernels.Gaussian(gamma) if name == "gaussian" else kernels.Laplacian(gamma)
    if gamma is not None:
        raise InputError(f"The {name} kernel has no --gamma.")
    return {"linear": kernels.Linear(), "cosine": kernels.Cosine(), "tanimoto": kernels.Tanimoto()}[name]


def sketch(name: str) -> sketches.SketchSpec:
    """A specification whose size will be replaced by every size that is tried."""
    by_name = {
        "subsample": sketches.SubSample,
        "gaussian": sketches.Gaussian,
        "sparsified": sketches.Sparsified,
        "hadamard": sketches.Hadamard,
        "leverage": sketches.LeverageSample,
    }
    return by_name[name](1)


def sizes(text: str, ys: Outputs) -> list[int]:
    """The sizes in a list with commas; without one, doubling from 2 up to half the outputs, at most 1,024."""
    if text:
        try:
            found = [int(size) for size in text.split(",")]
        except ValueError as error:
            raise InputError(f"--sizes takes whole numbers with commas between, 10,20,50. Got {text!r}.") from error
        for size in found:
            if not 1 <= size <= count(ys):
                raise InputError(f"--sizes must be from 1 to {count(ys):,}, the outputs not held out. Got {size:,}.")
        return found
    return [2**i for i in range(1, 11) if 2**i <= max(2, count(ys) // 2)]


def generator(seed: int) -> Generator:
    return Generator().manual_seed(seed)
