"""Training pairs that do not fit into memory: read block by block, again in every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError, check_fields, import_extra
from dsokr.outputs import count, take

BLOCK = 2**13  # rows of a Parquet file read at once


class Sample(NamedTuple):
    """Pairs drawn from a stream, in its order, and the number of all pairs."""

    X: Any
    Y: Any
    total: int


@dataclass(frozen=True)
class Stream:
    """Pairs (x, y) that are read block by block. Pass it to ``DSOKR.fit`` in place of X, without Y.

    ``read(epoch)`` returns blocks (xs, ys): arrays, tensors, CSR matrices or lists. It is called with 0 before
    training, and then for every epoch, counted from 1. The blocks may come in another order each time. Pairs are
    shuffled in windows; at most one ``window`` of pairs and one block are held at once. In the first pass, ``sample``
    pairs are drawn uniformly: they determine the anchors, the candidates, the decoder and the scales of the network.

    >>> stream = Stream(lambda epoch: ((np.eye(10), list("abcdefghij")) for _ in range(10)), sample=5)
    >>> stream.draw(seed=0).total
    100
    """

    read: Callable[[int], Iterable[tuple[Any, Any]]]
    window: int = 2**16
    sample: int = 20_000

    def __post_init__(self) -> None:
        check_fields(self, window=1, sample=2)

    @staticmethod
    def parquet(
        files: Sequence[str | Path], x: str | Sequence[str], y: str | Sequence[str], *, seed: int = 0, **options: int
    ) -> Stream:
        """Stream the rows of Parquet files; the order of the files changes from epoch to epoch.

        ``x`` and ``y`` name one column (texts, numbers, or lists of numbers of the same length) or several of numbers.
        """
        names, parquet = sorted(map(str, files)), import_extra("pyarrow.parquet", "tables")
        wanted = [name for part in (x, y) for name in ([part] if isinstance(part, str) else part)]
        if not names:
            raise InputError("A stream needs at least one Parquet file. Got none.")
        for name in names:
            try:
                missing = set(wanted) - set(parquet.read_schema(name).names)
            except (OSError, ValueError) as error:
                raise InputError(f"{name} cannot be read as Parquet: {str(error).rstrip('.')}.") from error
            if missing:
                raise InputError(f"{name} has no column {min(missing)!r}.")

        def read(epoch: int) -> Iterator[tuple[Any, Any]]:
            order = np.random.default_rng([seed, epoch]).permutation(len(names)) if epoch else range(len(names))
            for at in order:
                with parquet.ParquetFile(names[at]) as file:
                    for batch in file.iter_batches(BLOCK, columns=wanted):
                        yield _read_cells(batch, x), _read_cells(batch, y)

        return Stream(read, **options)

    def draw(self, seed: int) -> Sample:
        """Draw ``sample`` pairs uniformly without replacement in one pass, or all pairs if there are fewer.

        Every pair gets a random key, and the smallest keys are kept: the result does not depend on the blocks.
        """
        rng, n = np.random.default_rng(seed), 0
        kept: list[np.ndarray] = []
        parts: list[list[Any]] = [[], []]
        for block in self._blocks(0):
            keys, bound = rng.random(count(block[0])), max(map(np.max, kept)) if n >= self.sample else 1.0
            n += len(keys)
            chosen = np.flatnonzero(keys < bound)
            if len(chosen):
                kept = [*kept, keys[chosen]]
                parts = [[*part, take(own, chosen)] for part, own in zip(parts, block, strict=True)]
                if sum(map(len, kept)) > self.sample:
                    keys = np.concatenate(kept)
                    best = np.sort(np.argpartition(keys, self.sample - 1)[: self.sample])
                    kept, parts = [keys[best]], [[take(join(part), best)] for part in parts]
        if n < 2:
            raise InputError(f"A stream needs at least two pairs. Got {n}.")
        return Sample(join(parts[0]), join(parts[1]), n)

    def windows(self, epoch: int, rows: int) -> Iterator[tuple[Any, Any]]:
        """Yield the pairs of an epoch, ``rows`` at a time."""
        held: list[tuple[Any, Any]] = []
        for block in self._blocks(epoch):
            held.append(block)
            while sum(count(xs) for xs, _ in held) >= rows:
                pairs = tuple(map(join, zip(*held, strict=True)))
                yield take(pairs[0], slice(rows)), take(pairs[1], slice(rows))
                held = [(take(pairs[0], slice(rows, None)), take(pairs[1], slice(rows, None)))]
        held = [block for block in held if count(block[0])]
        if held:
            xs, ys = map(join, zip(*held, strict=True))
            yield xs, ys

    def _blocks(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        for xs, ys in self.read(epoch):
            if count(xs) != count(ys):
                raise InputError(f"A block of a stream needs as many inputs as outputs. Got {count(xs)}, {count(ys)}.")
            yield xs, ys


def join(parts: Sequence[Any]) -> Any:
    """Return the rows or items of several collections of one kind, one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if sp.issparse(first):
        return sp.vstack(parts, format="csr")
    return np.concatenate(parts) if isinstance(first, np.ndarray) else [item for part in parts for item in part]


def _read_cells(batch: Any, names: str | Sequence[str]) -> Any:
    """Return a column of texts as a list, numbers as an array (n, d)."""
    if not isinstance(names, str):
        return np.stack([batch.column(name).to_numpy(zero_copy_only=False) for name in names], axis=1)
    column = batch.column(names)
    if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
        cells = column.to_pylist()
        return cells if cells and isinstance(cells[0], str) else np.array(cells)[:, None]
    return np.array(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
