"""Kinds of columns: how to turn cells into what networks and kernels take, and answers into cells again.

A kind is plain data and is saved with the model as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp

from dsokr import spectra
from dsokr.commands.cells import NO_LABEL, SAMPLE, count_of, load_picture, parse_numbers, parse_text, shorten, split
from dsokr.commands.kinds import Kind, OutputKind, parse_good
from dsokr.errors import InputError, check_fields, suggest
from dsokr.graphs import Graph
from dsokr.kernels import FeatureKernel, Kernel

MAJORITY = 0.75  # share of the rankings that must agree on the items there are
GREY = {"1", "L", "LA", "I", "I;16", "F"}  # modes of pictures

_chem = partial(import_module, "dsokr.chem")  # needs RDKit


@dataclass(frozen=True)
class Vector(OutputKind):
    """Numbers, in one column or several: centred and scaled as in training, or ``sparse`` and unscaled.

    >>> kind = Vector().adapt(["1 10", "3 30"])
    >>> kind.read(["2 20", "two"])
    Read(values=array([[0., 0.]]), good=[0], bad={1: "'two' is not a number."})
    """

    name: ClassVar[str] = "vector"
    kernel: ClassVar[str] = "Linear()"
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    sparse: bool = False

    def adapt(self, cells: Sequence[str]) -> Vector:
        some = cells[:SAMPLE] if self.sparse else cells
        rows = list(parse_good(lambda cell: parse_numbers(cell, self.columns), some))
        if not rows:
            return self
        width = Counter(map(len, rows)).most_common(1)[0][0]
        if self.sparse:
            return replace(self, mean=(0.0,) * width, scale=(1.0,) * width)
        table = np.stack([row for row in rows if len(row) == width])
        spread = table.std(axis=0)
        spread[spread <= 1e-12 * np.abs(table).max(axis=0, initial=1.0)] = 1.0  # a column that never changes
        return replace(self, mean=tuple(table.mean(axis=0).tolist()), scale=tuple(spread.tolist()))

    def parse(self, cells: Sequence[str]) -> Any:  # (n, d), an array or CSR
        rows = [parse_numbers(cell, self.columns) for cell in cells]
        for row in rows:
            if len(row) != len(self.mean) > 0:
                raise InputError(f"There must be {count_of(len(self.mean), 'number')}. Got {len(row)}.")
        if self.sparse:
            return sp.csr_array(np.stack(rows))
        return (np.stack(rows) - self.mean) / self.scale if self.mean else np.stack(rows)

    def unscale(self, values: Any) -> np.ndarray:  # (n, d) -> (n, d)
        """Return values in the units of the table."""
        return np.asarray(values, dtype=np.float64) * self.scale + self.mean

    def format(self, value: Any) -> str:
        return " ".join(f"{number:.7g}" for number in self.unscale(value))


@dataclass(frozen=True)
class Text(Kind):
    """Text in words: a description, a sentence, a document."""

    name: ClassVar[str] = "text"

    def parse(self, cells: Sequence[str]) -> list[str]:
        return [" ".join(parse_text(cell).split()) for cell in cells]


@dataclass(frozen=True)
class Letters(Kind):
    """Strings that a network reads character by character: words, sequences, codes. ASCII."""

    name: ClassVar[str] = "string"
    longest: int = 0  # 0: not known yet

    def adapt(self, cells: Sequence[str]) -> Self:
        lengths = map(len, replace(self, longest=0).read(cells).values)
        return replace(self, longest=max(32, math.ceil(1.25 * max(lengths, default=0))))

    def parse(self, cells: Sequence[str]) -> list[str]:
        texts = [parse_text(cell) for cell in cells]
        for text in texts:
            if odd := [letter for letter in text if not letter.isascii() or letter == "\0"]:
                raise InputError(f"The network reads ASCII characters only. Got {odd[0]!r} in {shorten(text)!r}.")
            if len(text) > self.longest > 0:
                raise InputError(f"The network reads at most {self.longest} characters. Got {len(text)}.")
        return texts


@dataclass(frozen=True)
class SmilesLetters(Letters):
    """Molecules as SMILES, made canonical and read character by character."""

    name: ClassVar[str] = "smiles"

    def parse(self, cells: Sequence[str]) -> list[str]:
        return super().parse(_chem().canonical([parse_text(cell) for cell in cells], stereo=True))


@dataclass(frozen=True)
class Image(Kind):
    """Pictures named by their paths, relative to the table; resized, and grey or in colour as in training."""

    name: ClassVar[str] = "image"
    side: int = 64  # pixels
    mode: str = ""  # L: grey; RGB: colours

    def __post_init__(self) -> None:
        check_fields(self)

    def adapt(self, cells: Sequence[str]) -> Image:
        modes = {picture.mode for picture in parse_good(load_picture, cells[:200])}
        return replace(self, mode="L" if modes and modes <= GREY else "RGB")

    def locate(self, cells: Sequence[str], folder: Path) -> Sequence[str]:
        return [str(folder / cell.strip()) if cell.strip() else cell for cell in cells]

    def parse(self, cells: Sequence[str]) -> np.ndarray:
        return np.stack([self._scale(load_picture(cell)) for cell in cells])

    def _scale(self, picture: Any) -> np.ndarray:
        small = picture.convert(self.mode or "RGB").resize((self.side, self.side))
        pixels = np.asarray(small, dtype=np.float32) / 255
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@dataclass(frozen=True)
class Peaks(Kind):
    """Spectra as binned peaks, mz:intensity; with the m/z of the precursor in a second column, also neutral losses.

    >>> Peaks(heaviest=200.0, width=1.0).read(["50.2:100 80.1:400", "50.2"]).bad
    {1: "A peak must be an m/z and an intensity. Got '50.2'."}
    """

    name: ClassVar[str] = "spectrum"
    sparse: ClassVar[bool] = True
    width: float = 0.1
    heaviest: float = 1000.0
    intensity: spectra.Intensity = "sqrt"

    def __post_init__(self) -> None:
        check_fields(self, width="(0, inf)", heaviest="(0, inf)")
        if len(self.columns) > 2:
            got = ", ".join(self.columns)
            raise InputError(f"A spectrum has a column of peaks and one of precursors at most. Got {got}.")

    def parse(self, cells: Sequence[str]) -> sp.csr_array:
        found = [self._parse_one(parse_text(cell)) for cell in cells]
        has_precursor = len(self.columns) == 2
        return spectra.bins(found, self.width, losses=has_precursor, heaviest=self.heaviest, intensity=self.intensity)

    def _parse_one(self, text: str) -> spectra.Spectrum:
        if len(self.columns) < 2:
            return spectra.parse(text)
        if ";" not in text:
            raise InputError("The m/z of the precursor follows the peaks, after a semicolon: 50.2:100 80.1:400; 130.1.")
        peaks, _, precursor = text.rpartition(";")
        return spectra.parse(parse_text(peaks), parse_numbers(precursor)[0])


@dataclass(frozen=True)
class Labels(OutputKind):
    """Sets of labels with ; or | between them. The empty set is written {}.

    >>> Labels().adapt(["red;round", "green;long"]).read(["round; green", "gren"])
    Read(values=array([[1, 0, 0, 1]], dtype=int8), good=[0],
         bad={1: "There is no label 'gren' in training. Did you mean 'green'?"})
    """

    name: ClassVar[str] = "labels"
    kernel: ClassVar[str] = "Tanimoto()"
    names: tuple[str, ...] = ()
    separator: str = ";"

    def adapt(self, cells: Sequence[str]) -> Labels:
        bars = sum("|" in cell for cell in cells) > sum(";" in cell for cell in cells)
        kind = replace(self, separator="|" if bars else ";")
        return replace(kind, names=tuple(sorted(set(chain.from_iterable(map(kind._split, cells))))))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.names)}

    def _split(self, cell: str) -> list[str]:
        return [] if cell.strip() == NO_LABEL else split(cell, self.separator)

    def parse(self, cells: Sequence[str]) -> np.ndarray:
        rows = np.zeros((len(cells), len(self.names)), np.int8)
        for row, cell in zip(rows, cells, strict=True):
            labels = self._split(cell)
            if not labels and cell.strip() != NO_LABEL:
                raise InputError(f"The cell is empty. Write {NO_LABEL} if it has none of the labels.")
            for label in labels:
                if label not in self._places:
                    raise InputError(f"There is no label {shorten(label)!r} in training.{suggest(label, self.names)}")
                row[self._places[label]] = 1
        return rows

    def format(self, value: Any) -> str:
        there = [label for label, bit in zip(self.names, value, strict=True) if bit]
        return self.separator.join(there) or NO_LABEL


@dataclass(frozen=True)
class Ranking(OutputKind):
    """Orders of items, best first: b>a>c or b;a;c, with ties b>a=c; items may be missing.

    >>> Ranking().adapt(["b>a>c"]).read(["b > a = c", "b>b"])
    Read(values=array([[1, 0, 1]]), good=[0], bad={1: "'b' is ranked twice."})
    """

    name: ClassVar[str] = "ranking"
    kernel: ClassVar[str] = "Kemeny()"
    items: tuple[str, ...] = ()
    full: bool = False  # every item, without ties

    def adapt(self, cells: Sequence[str]) -> Ranking:
        ranked = Counter(frozenset(chain(*groups)) for groups in parse_good(self._split, cells))
        items = frozenset().union(*ranked)
        if self.full and ranked:  # one misspelt item is not an item that all other rankings miss
            usual = ranked.most_common(1)[0][0]
            fitting = sum(times for some, times in ranked.items() if some <= usual)
            items = usual if fitting >= MAJORITY * ranked.total() else items
        return replace(self, items=tuple(sorted(items)))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {item: place for place, item in enumerate(self.items)}

    def _split(self, cell: str) -> list[list[str]]:
        """Return the items, best first; tied items together."""
        groups = [split(part, "=") for part in cell.split(">" if ">" in cell else ";")]
        items = Counter(chain(*groups))
        if not items:
            raise InputError("The cell is empty.")
        if items.total() == 1:
            raise InputError(f"A ranking has two items or more. Got {shorten(next(iter(items)))!r} alone.")
        if items.total() > len(items):
            raise InputError(f"{items.most_common(1)[0][0]!r} is ranked twice.")
        return [group for group in groups if group]

    def parse(self, cells: Sequence[str]) -> np.ndarray:
        return np.stack([self._parse_one(self._split(cell)) for cell in cells])

    def _parse_one(self, groups: list[list[str]]) -> np.ndarray:
        ranks = np.full(len(self.items), -1)
        for rank, item in ((rank, item) for rank, group in enumerate(groups) for item in group):
            if item not in self._places:
                hint = suggest(item, self.items) or " Kemeny() takes rankings of any items." * self.full
                raise InputError(f"{shorten(item)!r} is not one of the {len(self.items)} items of training.{hint}")
            ranks[self._places[item]] = rank
        if self.full and len(groups) < len(self.items):
            missing = [item for item, rank in zip(self.items, ranks, strict=True) if rank < 0]
            what = f"{missing[0]!r} is not ranked" if missing else "Items are tied"
            raise InputError(f"{what}, and this kernel takes full rankings only. Kemeny() takes all.")
        return ranks

    def format(self, value: Any) -> str:
        ranks = sorted({int(rank) for rank in value if rank >= 0})
        groups = ([item for item, other in zip(self.items, value, strict=True) if other == rank] for rank in ranks)
        return ">".join(map("=".join, groups))

    def suit(self, kernel: Kernel) -> Ranking:
        return replace(self, full="Kemeny" not in repr(kernel))


@dataclass(frozen=True)
class String(OutputKind):
    """Short strings: words, names, codes, sequences."""

    name: ClassVar[str] = "string"
    kernel: ClassVar[str] = "NGram((1, 2, 3))"

    def parse(self, cells: Sequence[str]) -> list[str]:
        return [parse_text(cell) for cell in cells]

    def format(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True)
class Molecule(OutputKind):
    """Molecules as SMILES, compared by circular neighbourhoods (how often each occurs, or whether) or as graphs."""

    name: ClassVar[str] = "smiles"
    kernel: ClassVar[str] = "Tanimoto()"
    radius: int = 3  # of neighbourhoods
    chirality: bool = True
    counts: bool = True
    as_graph: bool = False  # which the kernel decides

    def __post_init__(self) -> None:
        check_fields(self, radius=0)

    def parse(self, cells: Sequence[str]) -> Any:
        smiles = [parse_text(cell) for cell in cells]
        if self.as_graph:
            return _chem().graphs(smiles)
        counts = _chem().fingerprints(smiles, radius=self.radius, chirality=self.chirality)
        return counts if self.counts else (counts > 0).astype(counts.dtype)

    def format(self, value: Any) -> str:
        if not isinstance(value, Graph):
            raise InputError("A molecule cannot be made from its fingerprint.")
        return _chem().smiles(value)

    def key(self, cell: str) -> str:
        return _chem().canonical([parse_text(cell)], stereo=self.chirality)[0]

    def suit(self, kernel: Kernel) -> Molecule:
        return replace(self, as_graph=isinstance(kernel, FeatureKernel))


INPUTS: Mapping[str, type[Kind]] = {kind.name: kind for kind in (Vector, Text, Letters, SmilesLetters, Image, Peaks)}
OUTPUTS: Mapping[str, type[OutputKind]] = {kind.name: kind for kind in (Vector, Labels, Ranking, String, Molecule)}
