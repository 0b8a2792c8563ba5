"""What a definition says its molecule is made of: "octane substituted by two hydroxy groups" is octane and twice OH."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from dsokr.errors import import_extra
from studies.data.files import cache_result
from studies.data.mentions import list_spans, read_names, split_words
from studies.data.spelling import TIMES

ELEMENTS = (6, 7, 8, 15, 16, 9, 17, 35, 53, 14, 11, 19, 34, 5)  # of which atoms are counted; then all others
SIZE = len(ELEMENTS) + 2  # of a composition: the last is the hydrogens less the charge, which protons do not change
WATER, HYDROGEN = np.zeros(SIZE), np.zeros(SIZE)
WATER[[ELEMENTS.index(8), -1]] = 1, 2
HYDROGEN[-1] = 1
LOCANT = re.compile(
    r"(?:[A-Z]{0,2}-?)?\d+[a-z]?'*(?:alpha|beta|[RSEZ])?|[NOS](?:\(\d+\))?|alpha|beta|gamma|delta|omega"
)
BETWEEN = ("positions", "position", "the", "and", "both")  # the locants of a group
MANY = re.compile("groups|substituents|residues|moieties|functions")
MATCHES = 12  # of a group in a molecule, at most


class Part(NamedTuple):
    """A molecule or a group (with an open valence, "[OH]") that a definition names, and how often."""

    smiles: str
    times: int

    @property
    def is_group(self) -> bool:
        return has_open_valence(self.smiles)


def load_definitions(texts: Iterable[str]) -> dict[str, list[Part]]:
    """What is named in the first sentence of every text, in its order. The first call needs Java; it is cached."""
    return cache_result(read_definitions)(list(dict.fromkeys(texts)))


def read_definitions(texts: Sequence[str]) -> dict[str, list[Part]]:
    sentences = {text: split_words(text)[0] for text in texts}
    smiles = read_names(dict.fromkeys(span for words in sentences.values() for _, _, span in list_spans(words)))
    return {text: list_parts(words, smiles) for text, words in sentences.items()}


def list_parts(words: Sequence[str], smiles: Mapping[str, str]) -> list[Part]:
    """What a sentence names; of names within names the longest counts.

    >>> words = "octane substituted by hydroxy groups at positions 2 and 3".split()
    >>> list_parts(words, {"octane": "CCCCCCCC", "hydroxy": "[OH]"})
    [Part(smiles='CCCCCCCC', times=1), Part(smiles='[OH]', times=2)]
    """
    parts, reached = list[Part](), 0
    for start, end, span in list_spans(words):
        if start >= reached and smiles.get(span):
            reached, told = end, TIMES.get(words[start - 1].lower(), 1) if start else 1
            parts.append(Part(smiles[span], max(told, count_places(words[end:]))))
    return parts


def count_places(words: Sequence[str]) -> int:
    """How many places are listed in "groups at positions 2 and 3": 1 if others follow with places of their own.

    >>> count_places("groups at positions 2, 3 and 5".split()), count_places("groups at 2 and 3, respectively".split())
    (3, 1)
    """
    if len(words) < 3 or not MANY.match(words[0]) or words[1] not in ("at", "on"):
        return 1
    places = [word.rstrip(",;.") for word in words[2:]]
    listed = list(takewhile(lambda place: place in BETWEEN or LOCANT.fullmatch(place), places))
    after = places[len(listed) : len(listed) + 2]
    return 1 if "respectively" in after else max(1, sum(LOCANT.fullmatch(place) is not None for place in listed))


@cache
def read(smiles: str) -> Any:
    """The molecule of RDKit, or None."""
    with import_extra("rdkit.rdBase", "chem").BlockLogs():
        return import_extra("rdkit.Chem", "chem").MolFromSmiles(smiles)


@cache
def has_open_valence(smiles: str) -> bool:
    return any(atom.GetNumRadicalElectrons() for atom in read(smiles).GetAtoms())


@cache
def count_atoms(smiles: str) -> np.ndarray:  # (SIZE,)
    """The composition of a molecule, the same for an acid and its anion.

    >>> bool((count_atoms("CC(=O)O") == count_atoms("CC(=O)[O-]")).all())
    True
    """
    counts = np.zeros(SIZE)
    for atom in read(smiles).GetAtoms():
        number = atom.GetAtomicNum()
        if number != 1:
            counts[ELEMENTS.index(number) if number in ELEMENTS else -2] += 1
        counts[-1] += atom.GetTotalNumHs() + (number == 1) - atom.GetFormalCharge()
    return counts


@cache
def _as_pattern(smiles: str) -> Any:
    pattern = import_extra("rdkit.Chem", "chem").RWMol(read(smiles))
    for atom in pattern.GetAtoms():
        atom.SetNumRadicalElectrons(0)
        atom.SetNoImplicit(False)
        atom.SetNumExplicitHs(0)
    return pattern


@cache
def count_matches(smiles: str, part: str) -> int:
    """How often a molecule has a part, whatever its hydrogens and hands.

    >>> count_matches("OCC(O)C", "[OH]"), count_matches("OCC(O)C", "C1CC1")
    (2, 0)
    """
    return len(read(smiles).GetSubstructMatches(_as_pattern(part), maxMatches=MATCHES))


def sum_up(parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """Compositions that a molecule may have if it is made of the parts: a molecule with groups, or several together.

    >>> sums = sum_up([Part("CCCCCCCC", 1), Part("[OH]", 2)])
    >>> bool((sums["with all groups"] == count_atoms("CC(O)CC(O)CCCC")).all())
    True
    """
    whole = [(count_atoms(part.smiles), part.times) for part in parts if not part.is_group]
    if not whole:
        return {}
    groups = [(count_atoms(part.smiles) - HYDROGEN, part.times) for part in parts if part.is_group]
    first, last = whole[0][0], whole[-1][0]
    sums = {
        "the first": first,
        "the last": last,
        "with all groups": first + sum((times * group for group, times in groups), np.zeros(SIZE)),
        "with every group once": first + sum((group for group, _ in groups), np.zeros(SIZE)),
        "together": sum((times * one for one, times in whole), np.zeros(SIZE)),
    }
    sums["condensed"] = sums["together"] - (sum(times for _, times in whole) - 1) * WATER
    if groups:
        sums["with the last group"] = first + groups[-1][0]
        sums["with the last group, each"] = first + groups[-1][1] * groups[-1][0]
        sums["the last group for the first"] = first - groups[0][0] + groups[-1][0]
    if len(whole) > 1:
        sums["the last two condensed"] = whole[-2][0] + last - WATER
        sums["the first two condensed"] = first + whole[1][0] - WATER
    return sums
