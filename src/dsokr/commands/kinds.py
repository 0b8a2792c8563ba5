"""What a kind of columns is: how cells become values, and outputs cells again.

A cell is text; the cells of several columns are joined. ``kind.adapt(cells)`` learns labels, scales or lengths from the
training cells; ``kind.read(cells)`` then reads any cells, and says why bad ones are bad.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp

from dsokr.errors import InputError, KernelError, UndefinedAt
from dsokr.kernels import Kernel
from dsokr.outputs import as_outputs

BLOCK = 1024  # cells parsed at once; blocks with a bad one are halved until it is alone


class Read(NamedTuple):
    """The values of the good cells, the positions of these cells, and why the others are bad."""

    values: Any
    good: list[int]
    bad: dict[int, str]


@dataclass(frozen=True)
class Kind(ABC):
    """How cells of one kind are read."""

    name: ClassVar[str]
    columns: tuple[str, ...] = ()

    @abstractmethod
    def parse(self, cells: Sequence[str]) -> Any:
        """Return the values of cells as the estimator takes them. A bad cell is an ``InputError`` with the reason."""

    def adapt(self, cells: Sequence[str]) -> Self:
        """Return this kind with what the training cells show; bad cells are ignored."""
        return self

    def locate(self, cells: Sequence[str], folder: Path) -> Sequence[str]:
        """Return cells of a table in this folder, with paths that do not depend on the working directory."""
        return cells

    def read(self, cells: Sequence[str], kernel: Kernel | None = None) -> Read:
        """Parse the good cells, and say why the others are bad: unreadable, or outside the domain of the kernel."""
        cells = [cell if isinstance(cell, str) else ";".join(map(str, cell)) for cell in cells]  # several columns
        parts: list[Any] = []
        good: list[int] = []
        bad: dict[int, str] = {}
        blocks = [range(len(cells))[start : start + BLOCK] for start in range(0, len(cells), BLOCK)][::-1]
        while blocks:
            block = blocks.pop()
            try:
                parts.append(self._parse_for(kernel, cells[block.start : block.stop]))
                good += block
            except InputError as error:
                if half := len(block) // 2:
                    blocks += [block[half:], block[:half]]
                else:
                    bad[block.start] = str(error).replace(" at index 0", "")
        return Read(_join(parts), good, bad)

    def _parse_for(self, kernel: Kernel | None, cells: Sequence[str]) -> Any:
        values = self.parse(cells)
        try:
            if kernel is not None:
                kernel.diag(as_outputs(values))
        except UndefinedAt as error:
            raise InputError(f"The kernel is undefined here: {error.why}.") from error
        except InputError as error:
            raise KernelError(f"The kernel {kernel} does not take such outputs: {error}") from error
        return values

    def parse_all(self, cells: Sequence[str], noun: str) -> Any:
        """Return the values of cells that must all be good; a bad one is named by its position."""
        if isinstance(cells, str) or not len(cells):
            raise InputError(f"{noun}s must be a list with at least one of them. Got {cells!r}.")
        values, _, bad = self.read(cells)
        for position, reason in bad.items():
            raise InputError(f"{noun} {position}: {reason}")
        return values


class OutputKind(Kind):
    """A kind that can also be written, with its default kernel."""

    kernel: ClassVar[str]

    @abstractmethod
    def format(self, value: Any) -> str:
        """Write one output as a cell."""

    def key(self, cell: str) -> str:
        """Return a text that is equal for cells that mean the same."""
        return self.format(self.parse([cell])[0])

    def suit(self, kernel: Kernel) -> Self:
        """Return this kind with outputs in the form that the kernel takes."""
        return self


def _join(parts: list[Any]) -> Any:
    if parts and sp.issparse(parts[0]):
        return sp.vstack(parts, format="csr")
    return np.concatenate(parts) if parts and isinstance(parts[0], np.ndarray) else [*chain(*parts)]


def parse_good(parse: Callable[[str], Any], cells: Iterable[str]) -> Iterator[Any]:
    for cell in cells:
        with suppress(InputError):
            yield parse(cell)
