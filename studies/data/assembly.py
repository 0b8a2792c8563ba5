"""Molecules that a definition may mean where no name says which: groups at any place of what it names, or condensed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dsokr.errors import import_extra
from studies.data import chebi20
from studies.data.chebi20 import Molecules, make_molecules
from studies.data.definitions import Part, load_definitions, read
from studies.data.files import cache_result, read_arrays
from studies.data.forms import condense, read_and_write, write
from studies.data.mentions import DEFINITION, Mentions

CLOSE = (DEFINITION, "derives from")  # relations of molecules from which a text's own may be assembled
BASES = 6  # from which molecules are assembled
TIMES = 4  # a group is attached at most
CENTRES = 3  # of undefined stereochemistry, for which all hands are listed
WAYS = ALL_GROUPS, ONE_GROUP, TOGETHER = "with all groups anywhere", "with one group anywhere", "condensed anyhow"
HYDROGEN = "[H]"


@dataclass(frozen=True, eq=False)
class Pools:
    """The molecules that every text names or may describe: rows of ``molecules``, with the number of one of ``ways``.

    Ways are the relations of what is named, and ``WAYS``.
    """

    molecules: Molecules
    ways: list[str]
    by_text: dict[str, list[tuple[int, int]]]


def load_pools(texts: Sequence[str], mentions: Mentions, folder: Path | None) -> Pools:
    """What texts name, and what can be assembled from it. The first call takes ten minutes; it is cached."""
    table, named = read_arrays(chebi20.SOURCES["mol2vec_tokens"].find(folder)), mentions.molecules
    told = {
        text: [(named.smiles[row], mentions.relations[r]) for row, r in mentions.by_text[text] if row < len(named)]
        for text in texts
    }
    return cache_result(make_pools)(told, load_definitions(texts), table["token"], table["vector"])


def make_pools(
    named: dict[str, list[tuple[str, str]]], definitions: dict[str, list[Part]], tokens: np.ndarray, vectors: np.ndarray
) -> Pools:
    """``named`` has the molecules of every text with their relations."""
    with import_extra("rdkit.rdBase", "chem").BlockLogs():  # lone hydrogen atoms
        found = {text: add_assembled(own, definitions[text]) for text, own in named.items()}
    smiles = sorted({one for own in found.values() for one in own})
    ways = sorted({way for own in found.values() for way in own.values()})
    row, number = ({name: i for i, name in enumerate(names)} for names in (smiles, ways))
    molecules = make_molecules(smiles, np.arange(len(smiles)), tokens, vectors)
    by_text = {text: [(row[one], number[way]) for one, way in own.items()] for text, own in found.items()}
    return Pools(molecules, ways, by_text)


def add_assembled(named: Sequence[tuple[str, str]], parts: Sequence[Part]) -> dict[str, str]:
    """All candidates of a text with how it leads to them, first those that it names."""
    whole = [_canonical(part.smiles) for part in parts if not part.is_group]
    bases = list(dict.fromkeys([*whole, *(smiles for smiles, relation in named if relation in CLOSE)]))[:BASES]
    first = {smiles: relation for smiles, relation in reversed(named)}
    own = {smiles: first[smiles] for smiles, _ in named}
    return own | {smiles: way for smiles, way in assemble(bases, parts).items() if smiles not in own}


_canonical = cache(read_and_write)


def assemble(bases: Sequence[str], parts: Sequence[Part], most: int = 32) -> dict[str, str]:
    """Molecules with how they were made: bases with all groups among the parts or with one of them, or condensed.

    A way that leads to more than ``most`` molecules says too little, and leads to none.

    >>> assemble(["CC"], [Part("[OH]", 2)])
    {'OCCO': 'with all groups anywhere', 'CC(O)O': 'with all groups anywhere', 'CCOO': 'with all groups anywhere'}
    """
    groups = [part for part in parts if part.is_group and part.smiles != HYDROGEN]
    ways = {
        ALL_GROUPS: [list_grown(base, groups, most) for base in bases if groups],
        ONE_GROUP: [list_grown(base, [group], most) for base in bases for group in groups if len(groups) > 1],
        TOGETHER: [condense(*pair) for pair in combinations(bases, 2)],
    }
    made = dict[str, str]()
    for way, found in ways.items():
        molecules = dict.fromkeys(one for some in found for one in some)
        if len(molecules) <= most:
            made = dict.fromkeys((hand for one in molecules for hand in list_hands(one)), way) | made
    return made


def list_grown(base: str, groups: Sequence[Part], most: int) -> list[str]:
    """The base with every group as often as it is named, at all places; none if there are more than ``most``."""
    grown = {base: None}
    for group in groups:
        for _ in range(min(group.times, TIMES)):
            found, grown = grown, {}
            for one in (one for smiles in found for one in attach(smiles, group.smiles)):
                grown[one] = None
                if len(grown) > most:  # at once: there may be thousands
                    return []
    return list(grown)


def attach(smiles: str, group: str) -> Iterator[str]:
    """A group in place of hydrogens, once for every kind of atoms that have as many as its open valences.

    >>> list(attach("CCO", "[Cl]")), list(attach("CCC", "[O]"))
    (['OCCCl', 'CC(O)Cl', 'CCOCl'], ['CCC=O', 'CC(C)=O'])
    """
    chem, molecule, part = import_extra("rdkit.Chem", "chem"), read(smiles), read(group)
    ends = [atom for atom in part.GetAtoms() if atom.GetNumRadicalElectrons()]
    if len(ends) != 1:
        return
    place, valence = molecule.GetNumAtoms() + ends[0].GetIdx(), ends[0].GetNumRadicalElectrons()
    kinds = dict(zip(chem.CanonicalRankAtoms(molecule, breakTies=False), molecule.GetAtoms(), strict=True))
    for atom in kinds.values():
        if atom.GetTotalNumHs() >= valence:
            try:
                yield write(_join(molecule, part, atom.GetIdx(), place, valence))
            except ValueError:  # a valence that RDKit does not allow
                continue


def _join(molecule: Any, part: Any, atom: int, place: int, valence: int) -> Any:
    chem = import_extra("rdkit.Chem", "chem")
    joined = chem.RWMol(chem.CombineMols(molecule, part))
    end, own = joined.GetAtomWithIdx(place), joined.GetAtomWithIdx(atom)
    end.SetNumRadicalElectrons(0)
    end.SetNoImplicit(False)
    own.SetNumExplicitHs(max(0, own.GetNumExplicitHs() - valence))
    joined.AddBond(atom, place, chem.BondType.values[valence])
    chem.SanitizeMol(joined)
    return joined


def list_hands(smiles: str) -> list[str]:
    """A molecule as it is, and with all hands of its undefined centres if these are few.

    >>> list_hands("CC(O)Cl")
    ['CC(O)Cl', 'C[C@@H](O)Cl', 'C[C@H](O)Cl']
    """
    chem, stereo = import_extra("rdkit.Chem", "chem"), import_extra("rdkit.Chem.EnumerateStereoisomers", "chem")
    molecule = read(smiles)
    centres = chem.FindMolChiralCenters(molecule, includeUnassigned=True, useLegacyImplementation=True)
    if not 0 < sum(hand == "?" for _, hand in centres) <= CENTRES:
        return [smiles]
    options = stereo.StereoEnumerationOptions(onlyUnassigned=True, unique=True)
    return [smiles, *sorted(write(one) for one in stereo.EnumerateStereoisomers(molecule, options))]
