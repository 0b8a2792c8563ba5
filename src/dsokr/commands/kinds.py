"""Kinds of inputs and outputs: how cells of a table become what networks and kernels take, and answers cells again.

A cell is text; inputs made of several columns come as one tuple of cells a row. ``kind.adapted(cells)`` looks at the
training cells once (labels, scales, sizes) and gives back the kind that knows them; ``kind.read(cells)`` then reads
any cells, and says of every bad one why it is bad. A kind is plain data: it is saved with the model as JSON.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp

from dsokr.errors import InputError, MissingExtraError, ModelFolderError
from dsokr.outputs import Outputs
from dsokr.graphs import Graph

Cell = str | Sequence[Any]  # the text of a cell, or the cells of several columns

BLOCK = 1024  # molecules parsed at once; a bad one costs a second look at its block
LARGEST = 1e100  # of numbers; squares of larger ones cannot be computed with
FARTHEST = 1e12  # times the spread of the training numbers; networks compute with seven digits
MAJORITY = 0.75  # share of the rankings that must have no other items to settle which ones there are
NO_LABEL = "{}"  # the empty set, as an empty cell more often means that nobody looked
GROUPED = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?|[-+]?\d{1,3}(\.\d{3})+(,\d+)?")  # 1,234,567.8 or 1.234.567,8
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


class Read(NamedTuple):
    """The values of the good cells, the positions of these cells, and why the others are bad."""

    values: Any
    good: list[int]
    bad: dict[int, str]


class Kind(ABC):
    """How cells of one kind are read."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, cell: Cell) -> Any:
        """What the cell says. A bad one raises ``InputError`` with the reason, a sentence."""

    @abstractmethod
    def stacked(self, values: list[Any]) -> Any:
        """Many values as the estimator takes them."""

    def adapted(self, cells: Sequence[Cell]) -> Self:
        """This kind, knowing what the training cells show; bad ones are passed over."""
        return self

    @property
    def is_adapted(self) -> bool:
        """Whether it knows what it has to know of the training cells."""
        return True

    def located(self, cells: Sequence[Cell], folder: Path) -> Sequence[Cell]:
        """Cells of a table in this folder, such that they can be read from elsewhere."""
        return cells

    def read(self, cells: Sequence[Cell]) -> Read:
        values, good, bad = [], [], {}
        for position, cell in enumerate(cells):
            try:
                values.append(self.value(cell))
                good.append(position)
            except InputError as error:
                bad[position] = str(error)
        return Read(self.stacked(values) if values else [], good, bad)

    def all_of(self, cells: Sequence[Cell], what: str) -> Any:
        """The values of cells that must all be good."""
        if isinstance(cells, str) or not len(cells):
            raise InputError(f"{what}s must be a list with at least one of them. Got {cells!r}.")
        read = self.read(cells)
        if read.bad:
            position, reason = next(iter(read.bad.items()))
            raise InputError(f"{what} {position}: {reason}")
        return read.values

    def described(self) -> dict[str, Any]:
        """As JSON; see :func:`input_kind` and :func:`output_kind` for the way back."""
        return {"kind": self.name, **dataclasses.asdict(self)}  # type: ignore[call-overload] # every kind is a dataclass


class OutputKind(Kind):
    """A kind that can also be written."""

    def formatted(self, value: Any) -> str:
        """One output as a cell."""
        raise InputError(f"Outputs of the kind {self.name} cannot be written down.")

    def key(self, cell: Cell) -> str:
        """A text that is equal for cells that mean the same."""
        return self.formatted(self.stacked([self.value(cell)])[0])


def texts(cell: Cell) -> str:
    """A cell as a message shows it."""
    text = cell if isinstance(cell, str) else ", ".join(map(str, cell))
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_text(cell: Cell) -> str:
    """The text of a cell that must not be empty."""
    if not isinstance(cell, str):
        raise InputError(f"This must be one text. Got {len(cell)} cells: {texts(cell)}.")
    text = cell.strip()
    if not text:
        raise InputError("The cell is empty.")
    return text


def closest(name: str, known: Sequence[str]) -> str:
    """ " Did you mean 'this'?", or nothing if nothing is near."""
    lowered = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    return f" Did you mean {lowered[near[0]]!r}?" if near else ""


def numbers(cell: Cell, names: Sequence[str] = ()) -> np.ndarray:  # (d,)
    """The numbers in several cells, or in one: with spaces, ; or | between, or as a list in brackets."""
    if isinstance(cell, str):
        text = one_text(cell)
        if text[0] in "[(":
            text = text.strip("[]()").replace(",", " ")
        cell = text.replace(";", " ").replace("|", " ").split()
    found = np.empty(len(cell))
    for position, item in enumerate(cell):
        which = f" in {names[position]!r}" if len(names) == len(cell) > 1 else ""
        try:
            found[position] = float(item)
        except (TypeError, ValueError):
            text = str(item).strip()
            if not text:
                raise InputError(f"The cell{which} is empty.") from None
            raise InputError(f"{texts(text)!r}{which} is not a number.{_remedy(text)}") from None
        if not math.isfinite(found[position]):
            raise InputError(f"{str(item).strip()!r}{which} is not a finite number.")
    if not len(found):
        raise InputError("The cell is empty.")
    return found


def has_comma(text: str) -> bool:
    """Whether it is a number with a decimal comma, or with commas or points between the thousands.

    >>> has_comma("0,15"), has_comma("1,234,567"), has_comma("1,3,5"), has_comma("1.5")
    (True, True, False, False)
    """
    return bool(DECIMAL_COMMA.fullmatch(text) or (GROUPED.fullmatch(text) and not is_number(text)))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _remedy(text: str) -> str:
    if not has_comma(text):
        return ""
    thousands = ", and thousands without anything between" if GROUPED.fullmatch(text) else ""
    return f" Write decimals with a point{thousands}."


@dataclass(frozen=True)
class Vector(OutputKind):
    """Numbers, in one column or several. In training they are centred and scaled, column by column.

    >>> kind = Vector().adapted(["1 10", "3 30"])
    >>> kind.read(["2 20", "two"])
    Read(values=array([[0., 0.]]), good=[0], bad={1: "'two' is not a number."})
    >>> kind.formatted(np.array([1.0, 0.0]))
    '3 20'
    """

    name: ClassVar[str] = "vector"
    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def is_adapted(self) -> bool:
        return bool(self.mean)

    def adapted(self, cells: Sequence[Cell]) -> Vector:
        rows = []
        for cell in cells:
            try:
                rows.append(self._numbers(cell))
            except InputError:
                continue
        widths = [len(row) for row in rows]
        if not rows:
            return self
        width = max(set(widths), key=widths.count)
        table = np.stack([row for row in rows if len(row) == width])
        spread = table.std(axis=0)
        spread[spread <= 1e-12 * np.abs(table).max(axis=0, initial=1.0)] = 1.0  # a column that never changes
        return replace(self, mean=tuple(table.mean(axis=0).tolist()), scale=tuple(spread.tolist()))

    def _numbers(self, cell: Cell) -> np.ndarray:
        found = numbers(cell, self.columns)
        largest = np.abs(found).argmax()
        if abs(found[largest]) > LARGEST:
            which = f" in {self.columns[largest]!r}" if len(self.columns) == len(found) > 1 else ""
            raise InputError(f"{found[largest]:g}{which} is too large a number: at most {LARGEST:g}.")
        return found

    def value(self, cell: Cell) -> np.ndarray:
        found = self._numbers(cell)
        if self.mean and len(found) != len(self.mean):
            raise InputError(f"There must be {counted(len(self.mean), 'number')}. Got {len(found)}.")
        if not self.mean:
            return found
        scaled = (found - self.mean) / self.scale
        if np.abs(scaled).max() > FARTHEST:
            far = found[np.abs(scaled).argmax()]
            raise InputError(f"{far:g} is too far from the numbers of training to say anything about it.")
        return scaled

    def stacked(self, values: list[Any]) -> np.ndarray:
        return np.stack(values)

    def restored(self, values: np.ndarray) -> np.ndarray:  # (n, d) -> (n, d)
        """In the units of the table."""
        return np.asarray(values, dtype=np.float64) * self.scale + self.mean

    def formatted(self, value: Any) -> str:
        return " ".join(f"{number:.7g}" for number in self.restored(np.asarray(value)[None])[0])


@dataclass(frozen=True)
class Text(Kind):
    """Text in words: a description, a sentence, a document."""

    name: ClassVar[str] = "text"

    def value(self, cell: Cell) -> str:
        return " ".join(one_text(cell).split())

    def stacked(self, values: list[Any]) -> list[str]:
        return values


@dataclass(frozen=True)
class Letters(Kind):
    """Strings that a network reads letter by letter: words, sequences, codes. ASCII."""

    name: ClassVar[str] = "string"
    longest: int = 0  # 0: not known yet

    @property
    def is_adapted(self) -> bool:
        return bool(self.longest)

    def adapted(self, cells: Sequence[Cell]) -> Self:
        lengths = [len(value) for value in replace(self, longest=0).read(cells).values]
        return replace(self, longest=max(32, math.ceil(1.25 * max(lengths, default=0))))

    def value(self, cell: Cell) -> str:
        return self._checked(one_text(cell))

    def _checked(self, text: str) -> str:
        if not text.isascii() or "\0" in text:
            odd = next(letter for letter in text if not letter.isascii() or letter == "\0")
            raise InputError(f"The network reads ASCII letters only. Got {odd!r} in {texts(text)!r}.")
        if self.longest and len(text) > self.longest:
            raise InputError(f"The network reads at most {self.longest} letters. Got {len(text)}.")
        return text

    def stacked(self, values: list[Any]) -> list[str]:
        return values


@dataclass(frozen=True)
class SmilesLetters(Letters):
    """Molecules as SMILES, made canonical and read letter by letter."""

    name: ClassVar[str] = "smiles"

    def value(self, cell: Cell) -> str:
        return self._checked(chem().canonical([one_text(cell)], stereo=True)[0])

    def read(self, cells: Sequence[Cell]) -> Read:
        with_reasons = super().read
        try:  # all at once is quicker than one by one
            found = chem().canonical([one_text(cell) for cell in cells], stereo=True) if len(cells) else []
            return Read([self._checked(text) for text in found], list(range(len(found))), {})
        except InputError:
            return _without_index(with_reasons(cells))


@dataclass(frozen=True)
class Image(Kind):
    """Pictures by their paths, relative to the table; resized, grey or in colour as those of training are."""

    name: ClassVar[str] = "image"
    side: int = 64  # pixels
    mode: str = ""  # L: grey; RGB: colours

    @property
    def is_adapted(self) -> bool:
        return bool(self.mode)

    def adapted(self, cells: Sequence[Cell]) -> Image:
        modes = set()
        for cell in cells[:200]:
            try:
                with _opened(one_text(cell)) as picture:
                    modes.add(picture.mode)
            except InputError:
                continue
        return replace(self, mode="L" if modes and modes <= {"1", "L", "LA", "I", "I;16", "F"} else "RGB")

    def located(self, cells: Sequence[Cell], folder: Path) -> Sequence[Cell]:
        return [str(folder / cell.strip()) if isinstance(cell, str) and cell.strip() else cell for cell in cells]

    def value(self, cell: Cell) -> np.ndarray:
        with _opened(one_text(cell)) as picture:
            try:
                small = picture.convert(self.mode or "RGB").resize((self.side, self.side))
            except (OSError, ValueError, SyntaxError) as error:
                raise InputError(f"The picture {cell} is damaged: {error}.") from error
        pixels = np.asarray(small, dtype=np.float32) / 255
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def stacked(self, values: list[Any]) -> np.ndarray:
        return np.stack(values)


@dataclass(frozen=True)
class Labels(OutputKind):
    """Sets of labels with ; or | between them. The empty set is written {}.

    >>> kind = Labels().adapted(["red;round", "green;long"])
    >>> kind.names
    ('green', 'long', 'red', 'round')
    >>> kind.read(["round; green", "gren"])
    Read(values=array([[1, 0, 0, 1]], dtype=int8), good=[0],
         bad={1: "There is no label 'gren' in training. Did you mean 'green'?"})
    """

    name: ClassVar[str] = "labels"
    names: tuple[str, ...] = ()
    separator: str = ";"

    @property
    def is_adapted(self) -> bool:
        return bool(self.names)

    def adapted(self, cells: Sequence[Cell]) -> Labels:
        written = [cell for cell in cells if isinstance(cell, str)]
        bars = sum("|" in cell for cell in written) > sum(";" in cell for cell in written)
        kind = replace(self, names=(), separator="|" if bars else ";")
        return replace(kind, names=tuple(sorted(set(chain.from_iterable(map(kind.parts, written))))))

    @cached_property
    def _place(self) -> dict[str, int]:
        return {label: position for position, label in enumerate(self.names)}

    def parts(self, cell: Cell) -> list[str]:
        text = cell.strip() if isinstance(cell, str) else self.separator.join(map(str, cell))
        return [] if text == NO_LABEL else [part.strip() for part in text.split(self.separator) if part.strip()]

    def value(self, cell: Cell) -> np.ndarray:
        if not self.parts(cell) and (not isinstance(cell, str) or cell.strip() != NO_LABEL):
            raise InputError(f"The cell is empty. Write {NO_LABEL} if it has none of the labels.")
        row = np.zeros(len(self.names), np.int8)
        for label in self.parts(cell):
            if label not in self._place:
                raise InputError(f"There is no label {texts(label)!r} in training.{closest(label, self.names)}")
            row[self._place[label]] = 1
        return row

    def stacked(self, values: list[Any]) -> np.ndarray:
        return np.stack(values)

    def formatted(self, value: Any) -> str:
        there = [label for label, bit in zip(self.names, value, strict=True) if bit]
        return self.separator.join(there) or NO_LABEL


@dataclass(frozen=True)
class Ranking(OutputKind):
    """Orders of items, best first: b>a>c or b;a;c, with ties b>a=c; items may be missing.

    >>> kind = Ranking().adapted(["b>a>c"])
    >>> kind.read(["b > a = c", "b>b"])
    Read(values=array([[1, 0, 1]]), good=[0], bad={1: "'b' is ranked twice."})
    """

    name: ClassVar[str] = "ranking"
    items: tuple[str, ...] = ()
    full: bool = False  # every item, without ties

    @property
    def is_adapted(self) -> bool:
        return bool(self.items)

    def adapted(self, cells: Sequence[Cell]) -> Ranking:
        ranked = Counter(frozenset(chain.from_iterable(groups)) for groups in self._good_groups(cells))
        found = frozenset().union(*ranked)
        if self.full and ranked:  # one item that is misspelt is not one that all other rankings miss
            most = ranked.most_common(1)[0][0]
            fitting = sum(times for items, times in ranked.items() if items <= most)
            found = most if fitting >= MAJORITY * ranked.total() else found
        return replace(self, items=tuple(sorted(found)))

    @cached_property
    def _place(self) -> dict[str, int]:
        return {item: position for position, item in enumerate(self.items)}

    def groups(self, cell: Cell) -> list[list[str]]:
        """The items, best first; those that are tied together."""
        if not isinstance(cell, str):
            return [[str(item)] for item in cell]
        parts = cell.split(">") if ">" in cell else cell.split(";")
        ties = [[item.strip() for item in part.split("=") if item.strip()] for part in parts]
        return [group for group in ties if group]

    def _checked_groups(self, cell: Cell) -> list[list[str]]:
        groups = self.groups(cell)
        if not groups:
            raise InputError("The cell is empty.")
        items = list(chain.from_iterable(groups))
        if len(items) == 1:
            raise InputError(f"A ranking has two items or more. Got {texts(items[0])!r} alone.")
        if len(set(items)) < len(items):
            twice = next(item for item in items if items.count(item) > 1)
            raise InputError(f"{twice!r} is ranked twice.")
        return groups

    def _good_groups(self, cells: Sequence[Cell]) -> Iterator[list[list[str]]]:
        for cell in cells:
            try:
                yield self._checked_groups(cell)
            except InputError:
                continue

    def value(self, cell: Cell) -> np.ndarray:
        groups = self._checked_groups(cell)
        positions = np.full(len(self.items), -1)
        for position, group in enumerate(groups):
            for item in group:
                if item not in self._place:
                    raise InputError(self._unknown(item))
                positions[self._place[item]] = position
        if self.full and len(groups) < len(self.items):
            missing = [item for item, position in zip(self.items, positions, strict=True) if position < 0]
            what = f"{missing[0]!r} is not ranked" if missing else "Items are tied"
            raise InputError(f"{what}, and this kernel takes full rankings only. The kernel kemeny takes all.")
        return positions

    def _unknown(self, item: str) -> str:
        near = closest(item, self.items)
        if not self.full:
            return f"There is no item {texts(item)!r} in training.{near}"
        remedy = near or " The kernel kemeny takes all."
        return f"{texts(item)!r} is not among the {len(self.items)} items that the rankings of training have.{remedy}"

    def stacked(self, values: list[Any]) -> np.ndarray:
        return np.stack(values)

    def formatted(self, value: Any) -> str:
        places = sorted({int(position) for position in value if position >= 0})
        groups = ([i for i, p in zip(self.items, value, strict=True) if p == place] for place in places)
        return ">".join("=".join(group) for group in groups)


@dataclass(frozen=True)
class String(OutputKind):
    """Short strings: words, names, codes, sequences."""

    name: ClassVar[str] = "string"

    def value(self, cell: Cell) -> str:
        return one_text(cell)

    def stacked(self, values: list[Any]) -> list[str]:
        return values

    def formatted(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True)
class Molecule(OutputKind):
    """Molecules as SMILES, compared as fingerprints (how often every circular neighbourhood occurs, or whether) or as
    graphs."""

    name: ClassVar[str] = "smiles"
    form: str = "counts"  # counts, bits or graph
    radius: int = 3  # of fingerprints
    chirality: bool = True

    def value(self, cell: Cell) -> Any:
        values = self._values([one_text(cell)])
        return values[0] if isinstance(values, list) else values[[0]]

    def _values(self, smiles: list[str]) -> Any:
        if self.form == "graph":
            return chem().graphs(smiles)
        found = chem().fingerprints(smiles, radius=self.radius, chirality=self.chirality)
        return found if self.form == "counts" else (found > 0).astype(found.dtype)

    def stacked(self, values: list[Any]) -> Outputs:
        if isinstance(values[0], Graph):
            return values
        return sp.vstack(values, format="csr")

    def read(self, cells: Sequence[Cell]) -> Read:
        blocks, good = [], []
        bad: dict[int, str] = {}
        for start in range(0, len(cells), BLOCK):
            block = cells[start : start + BLOCK]
            try:
                read = Read(self._values([one_text(cell) for cell in block]), list(range(len(block))), {})
            except InputError:
                read = _without_index(super().read(block))
            if read.good:
                blocks.append(read.values)
            good += [start + position for position in read.good]
            bad |= {start + position: reason for position, reason in read.bad.items()}
        if self.form == "graph" or not blocks:
            return Read(list(chain.from_iterable(blocks)), good, bad)
        return Read(self.stacked(blocks), good, bad)

    def formatted(self, value: Any) -> str:
        if not isinstance(value, Graph):
            raise InputError("A molecule cannot be made from its fingerprint.")
        return chem().smiles(value)

    def key(self, cell: Cell) -> str:
        return chem().canonical([one_text(cell)], stereo=self.chirality)[0]


INPUTS: Mapping[str, type[Kind]] = {kind.name: kind for kind in (Vector, Text, Letters, SmilesLetters, Image)}
OUTPUTS: Mapping[str, type[OutputKind]] = {kind.name: kind for kind in (Vector, Labels, Ranking, String, Molecule)}


def input_kind(described: dict[str, Any]) -> Kind:
    """The kind that :meth:`Kind.described` wrote down."""
    return _restored(described, INPUTS)


def output_kind(described: dict[str, Any]) -> OutputKind:
    """The kind that :meth:`Kind.described` wrote down."""
    return _restored(described, OUTPUTS)


def _restored(described: dict[str, Any], table: Mapping[str, Any]) -> Any:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in described.items()}
    name = str(fields.pop("kind", None))
    if name not in table:
        raise ModelFolderError(f"task.json names the kind {name!r}, which this version of dsokr does not have.")
    try:
        return table[name](**fields)
    except TypeError as error:
        raise ModelFolderError(f"task.json is damaged: {error}.") from error


def chem() -> ModuleType:
    """``dsokr.chem``, which needs RDKit."""
    from dsokr import chem

    return chem


def _opened(path: str) -> Any:
    try:
        from PIL import Image as Pictures
        from PIL import UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError("Pillow", "images") from error
    try:
        return Pictures.open(path)
    except FileNotFoundError:
        raise InputError(f"There is no picture {path}.") from None
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"The picture {path} cannot be read: {error}.") from error


def _without_index(read: Read) -> Read:
    """Molecules read one by one are all at index 0, which says nothing."""
    return read._replace(bad={at: reason.replace(" at index 0", "") for at, reason in read.bad.items()})


def counted(count: int, what: str) -> str:
    """ "1 row", "2,000 rows"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
