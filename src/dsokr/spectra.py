"""Mass spectra: peaks from texts and from MGF and MSP files, and sparse tables of binned peaks for any regressor."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TextIO

import numpy as np
import scipy.sparse as sp

from dsokr.errors import InputError

Intensity = Literal["sqrt", "log", "linear"]

SCALES: dict[Intensity, Callable[[np.ndarray], np.ndarray]] = {
    "sqrt": np.sqrt,
    "log": lambda share: np.log1p(1000 * share) / np.log(1001),
    "linear": lambda share: share,
}
PRECURSORS = ("pepmass", "precursormz", "precursor_mz", "precursor m/z")  # names of the field in files, in lower case
ADDUCTS = ("adduct", "precursor_type", "precursortype", "ion")  # likewise
ELECTRON = 0.000548580  # dalton
ELEMENTS = ("H", "Li", "C", "N", "O", "F", "Na", "P", "S", "Cl", "K", "Br")  # of adducts, and their masses:
WEIGHTS = (
    *(1.00782503, 7.01600344, 12.0, 14.003074, 15.99491462, 18.99840316),
    *(22.98976928, 30.973762, 31.97207117, 34.96885268, 38.96370649, 78.9183376),
)
MASSES = dict(zip(ELEMENTS, WEIGHTS, strict=True))
ADDUCT = re.compile(r"\[(\d*)M((?:[+-]\d*(?:[A-Z][a-z]?\d*)+)*)\](\d*)([+-])")


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The peaks of a spectrum by increasing m/z, the m/z of its precursor if known, and the other fields of its file.

    >>> Spectrum([50.2, 80.1], [100, 400], precursor=130.0).mz
    array([50.2, 80.1])
    """

    mz: np.ndarray  # (peaks,)
    intensity: np.ndarray  # (peaks,), in any unit
    precursor: float | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("mz", "intensity"):
            object.__setattr__(self, name, _as_numbers(name, getattr(self, name)))
        if self.mz.shape != self.intensity.shape:
            raise InputError(f"A spectrum has {self.mz.size} m/z and {self.intensity.size} intensities.")
        if not self.intensity.any():
            raise InputError("A spectrum must have a peak with an intensity above 0.")
        if (fall := np.flatnonzero(np.diff(self.mz) < 0)).size:
            after, before = self.mz[fall[0] + 1], self.mz[fall[0]]
            raise InputError(f"The peaks of a spectrum must be sorted by m/z. Got {after:g} after {before:g}.")
        if self.precursor is not None and not 0 < self.precursor < np.inf:
            raise InputError(f"The m/z of a precursor must be positive and finite. Got {self.precursor}.")

    def __len__(self) -> int:
        return len(self.mz)


def _as_numbers(name: str, values: object) -> np.ndarray:
    try:
        numbers = np.asarray(values, float)
    except (TypeError, ValueError):
        raise InputError(f"The {name} of peaks must be numbers. Got {values!r:.80}.") from None
    if numbers.ndim != 1:
        raise InputError(f"The {name} of peaks must be one list of numbers. Got {numbers.ndim} dimensions.")
    if (bad := np.flatnonzero(~((numbers >= 0) & (numbers < np.inf)))).size:
        raise InputError(
            f"The {name} of peaks must be at least 0 and finite. Got {numbers[bad[0]]} at peak {bad[0] + 1}."
        )
    return numbers


def parse(text: str, precursor: float | None = None) -> Spectrum:
    """Read peaks ``mz:intensity mz:intensity``, or ``mz intensity`` separated by semicolons or line ends.

    >>> parse("50.2:100 80.1:400").intensity, parse("50.2 100; 80.1 400").intensity
    (array([100., 400.]), array([100., 400.]))
    """
    if ":" in text:
        cells = [item.split(":") for item in text.replace(";", " ").split()]
    else:
        cells = [item.split() for item in re.split("[;\n]", text) if item.strip()]
    return _make_spectrum(cells, precursor)


def _make_spectrum(cells: list[list[str]], precursor: float | None, metadata: dict[str, str] | None = None) -> Spectrum:
    """Make a spectrum from the cells of its peaks, two for each peak."""
    if (wrong := next((peak for peak in cells if len(peak) != 2), None)) is not None:
        raise InputError(f"A peak must be an m/z and an intensity. Got {' '.join(wrong)!r:.80}.")
    return Spectrum([mz for mz, _ in cells], [size for _, size in cells], precursor, metadata or {})  # type: ignore[arg-type] # arrays are made there


def find_mass(precursor: float, adduct: str) -> float:
    """Return the monoisotopic mass of a molecule from the m/z of its precursor and the adduct, such as [M+H]+.

    >>> round(find_mass(47.0491, "[M+H]+"), 3), round(find_mass(45.0346, "[M-H]-"), 3)
    (46.042, 46.042)
    """
    found = ADDUCT.fullmatch(adduct.replace(" ", ""))
    if not found:
        raise InputError(f"An adduct is written like [M+H]+, [M-H2O+H]+ or [2M+Na]+. Got {adduct!r:.40}.")
    molecules, parts, charges, sign = found.groups()
    charge = int(charges or 1) * (1 if sign == "+" else -1)
    added = -charge * ELECTRON
    for way, times, formula in re.findall(r"([+-])(\d*)((?:[A-Z][a-z]?\d*)+)", parts):
        atoms = re.findall(r"([A-Z][a-z]?)(\d*)", formula)
        if unknown := [element for element, _ in atoms if element not in MASSES]:
            raise InputError(f"The adduct {adduct} has {unknown[0]}. The elements known are {', '.join(MASSES)}.")
        mass = sum(MASSES[element] * int(number or 1) for element, number in atoms)
        added += mass * int(times or 1) * (1 if way == "+" else -1)
    return (precursor * abs(charge) - added) / int(molecules or 1)


def read(path: str | Path) -> list[Spectrum]:
    """Read all spectra of a file whose name ends in .mgf or .msp, or in these and .gz.

    The metadata are the fields of the file, by their names in lower case.
    """
    path = Path(path)
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind not in READERS:
        raise InputError(f"{path}: the name of a file of spectra must end in .mgf or .msp, or in these and .gz.")
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:
            return [_make_record(path, *record) for record in READERS[kind](file)]
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


Record = tuple[int, dict[str, str], list[list[str]]]  # the number of its last line, fields, cells of peaks


def _make_record(path: Path, line: int, metadata: dict[str, str], cells: list[list[str]]) -> Spectrum:
    given = next((metadata[name] for name in PRECURSORS if metadata.get(name)), None)
    try:
        if metadata.get("num peaks", str(len(cells))) != str(len(cells)):
            raise InputError(f"{metadata['num peaks']} peaks are announced and {len(cells)} are there.")
        return _make_spectrum(cells, None if given is None else _read_precursor(given), metadata)
    except InputError as error:
        raise InputError(f"{path}, the spectrum that ends at line {line}: {error}") from error


def _read_precursor(text: str) -> float:
    """Read the first number; MGF files may give an intensity after it."""
    try:
        return float(text.split()[0])
    except ValueError:
        raise InputError(f"The m/z of a precursor must be a number. Got {text!r:.80}.") from None


def _read_mgf(file: TextIO) -> Iterator[Record]:
    fields: dict[str, str] | None = None  # None: between spectra
    cells: list[list[str]] = []
    number = 0
    for number, line in enumerate(map(str.strip, file), start=1):
        if line == "BEGIN IONS":
            fields, cells = {}, []
        elif fields is None or not line or line[0] in "#;!/":
            continue
        elif line == "END IONS":
            yield number, fields, cells
            fields = None
        elif "=" in line:
            name, _, value = line.partition("=")
            fields[name.strip().lower()] = value.strip()
        else:
            cells.append(line.split()[:2])  # a charge may follow
    if fields is not None:
        raise InputError(f"{file.name}, line {number}: the last spectrum has no END IONS.")


def _read_msp(file: TextIO) -> Iterator[Record]:
    fields: dict[str, str] = {}
    cells: list[list[str]] = []
    for number, line in enumerate((*map(str.strip, file), ""), start=1):
        if not line and fields:
            yield number - 1, fields, cells
            fields, cells = {}, []
        elif "num peaks" in fields:
            peaks = re.sub('"[^"]*"', "", line).split(";")  # without notes
            cells += [peak.split()[:2] for peak in peaks if peak.strip()]
        elif line:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()


READERS: dict[str, Callable[[TextIO], Iterator[Record]]] = {"mgf": _read_mgf, "msp": _read_msp}


def bins(
    spectra: Sequence[Spectrum],
    width: float = 0.1,
    *,
    losses: bool = True,
    heaviest: float = 1000.0,
    intensity: Intensity = "sqrt",
) -> sp.csr_array:  # (n, bins), or (n, 2 · bins) with losses
    """Add up the peaks of every spectrum in bins of m/z and, with ``losses``, in further bins of precursor − m/z.

    Intensities are relative to the largest of their spectrum; then the sum of every bin is rescaled. Bins are centred
    at the multiples of ``width``, from 0 to ``heaviest``; other peaks and losses are left out.

    >>> X = bins([Spectrum([50.2, 80.1], [100, 400], precursor=130.1)], width=0.5)
    >>> dict(zip(X.indices.tolist(), X.data.tolist()))
    {100: 0.5, 160: 1.0, 2101: 1.0, 2161: 0.5}
    """
    if not 0 < width <= heaviest < np.inf:
        raise InputError(f"Bins need 0 < width <= heaviest. Got width={width} and heaviest={heaviest}.")
    if intensity not in SCALES:
        raise InputError(f"intensity must be one of {', '.join(map(repr, SCALES))}. Got {intensity!r}.")
    shares = [_shares(one) for one in spectra]
    values = [[one.mz for one in spectra]]
    if losses:
        values.append([_find_precursor(one, index) - one.mz for index, one in enumerate(spectra)])
    table = sp.hstack([_fill_bins(own, shares, width, int(heaviest / width) + 1) for own in values], format="csr")
    table.data = SCALES[intensity](table.data)
    return table


def differences(
    spectra: Sequence[Spectrum], width: float = 0.01, *, most: int = 20, least: float = 10.0, largest: float = 300.0
) -> sp.csr_array:  # (n, bins)
    """Add up the differences in m/z between peaks of every spectrum, in bins centred at the multiples of ``width``.

    The ``most`` largest peaks are compared with each other. A pair counts by the square root of the product of their
    relative intensities. Differences below ``least`` or above ``largest`` are left out.

    >>> X = differences([Spectrum([50.0, 65.0, 93.0], [1, 4, 4])], width=1.0)
    >>> dict(zip(X.indices.tolist(), X.data.tolist()))
    {15: 0.5, 28: 1.0, 43: 0.5}
    """
    if not 0 < width <= largest < np.inf:
        raise InputError(f"Bins need 0 < width <= largest. Got width={width} and largest={largest}.")
    values, weights = [], []
    for one in spectra:
        strongest = np.sort((-one.intensity).argsort(kind="stable")[:most])
        first, second = np.triu_indices(len(strongest), 1)
        mz, share = one.mz[strongest], _shares(one)[strongest]
        gap = mz[second] - mz[first]
        kept = (gap >= least) & (gap <= largest)
        values.append(gap[kept])
        weights.append(np.sqrt(share[first] * share[second])[kept])
    return _fill_bins(values, weights, width, int(largest / width) + 1)


def _find_precursor(spectrum: Spectrum, index: int) -> float:
    if spectrum.precursor is None:
        raise InputError(f"The spectrum at index {index} has no precursor: give its m/z, or use losses=False.")
    return spectrum.precursor


def _fill_bins(values: list[np.ndarray], shares: list[np.ndarray], width: float, count: int) -> sp.csr_array:
    rows = np.repeat(np.arange(len(values), dtype=np.int32), [len(own) for own in values])
    columns = np.rint(np.concatenate([np.empty(0), *values]) / width)
    kept = (columns >= 0) & (columns < count)
    at = rows[kept], columns[kept].astype(np.int32)  # scikit-learn refuses sparse rows with other indices
    return sp.coo_array((np.concatenate([np.empty(0), *shares])[kept], at), shape=(len(values), count)).tocsr()


def _shares(spectrum: Spectrum) -> np.ndarray:
    return spectrum.intensity / spectrum.intensity.max()


def pool(spectra: Sequence[Spectrum], keys: Sequence[Hashable]) -> list[Spectrum]:
    """Average the spectra that share a key, such as a molecule, each relative to its largest peak.

    The averages are in the order in which their keys first occur. Each has the precursor of its first spectrum and the
    metadata that all its spectra share.

    >>> [one] = pool([parse("50:10 60:5"), parse("60:8")], ["A", "A"])
    >>> one.mz, one.intensity
    (array([50., 60., 60.]), array([0.5 , 0.25, 0.5 ]))
    """
    if len(spectra) != len(keys):
        raise InputError(f"pool needs a key for every spectrum. Got {len(keys)} keys of {len(spectra)} spectra.")
    groups: dict[Hashable, list[Spectrum]] = {}
    for spectrum, key in zip(spectra, keys, strict=True):
        groups.setdefault(key, []).append(spectrum)
    return [_average(group) for group in groups.values()]


def _average(group: list[Spectrum]) -> Spectrum:
    mz, share = np.concatenate([one.mz for one in group]), np.concatenate([_shares(one) for one in group])
    order = mz.argsort(kind="stable")
    shared = set.intersection(*(set(one.metadata.items()) for one in group))
    return Spectrum(mz[order], share[order] / len(group), group[0].precursor, dict(sorted(shared)))
