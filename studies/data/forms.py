"""Molecules that are made from others as texts say: with other protons, mirrored, or condensed. Uses RDKit."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

from dsokr.errors import import_extra

ACIDS = "[$([OX2H1]C=O),$([OX2H1]P=O),$([OX2H1]S=O)]"
BASES = (
    "[$([NX3;+0;!$(N-[#6]=[!#6]);!$(N-C#N);!$(N-[a]);!$(N-[!#6;!#1]);!$(N-C=C)]),$([NX2;H1;+0]=C([#7])[#7])]"  # amines
)
CONDENSATIONS = tuple(  # an acid with what loses a hydrogen
    f"[C;$(C(=O)[OH]):1]-[OH].{partner}>>[C:1]-{bound}"
    for partner, bound in (
        ("[N;H1,H2;+0;!$(NC=O);!$(N[!#6;!#8]):2]", "[N:2]"),
        ("[O;H1;$(O[#6]);!$(OC=O):2]", "[O:2]"),
        ("[S;H1:2]", "[S:2]"),
    )
)
PEPTIDE = (
    "[N:1][C:2][C:3](=[O:4])[OH].[N;H1,H2;+0:5][C:6][C:7](=[O:8])[OH:9]"
    ">>[N:1][C:2][C:3](=[O:4])[N:5][C:6][C:7](=[O:8])[OH:9]"
)
TAUTOMERS = (  # as OPSIN and as PubChem write them: guanidines and histidines
    "[NH1:1]=[C:2]([NH2:3])[NH1:4][CX4:5]>>[NH2:1][C:2]([NH2:3])=[NH0:4][C:5]",
    "[CX4:6][c:1]1[cH:2][nH:3][cH:4][n:5]1>>[C:6][c:1]1[c:2][nH0:3][c:4][nH:5]1",
)
MOST = 4  # products of a condensation


@cache
def _chem() -> Any:
    return import_extra("rdkit.Chem", "chem")


@cache
def _pattern(smarts: str) -> Any:
    return _chem().MolFromSmarts(smarts)


@cache
def _reaction(smarts: str) -> Any:
    return import_extra("rdkit.Chem.AllChem", "chem").ReactionFromSmarts(smarts)


@cache
def _uncharger() -> Any:
    return import_extra("rdkit.Chem.MolStandardize.rdMolStandardize", "chem").Uncharger()


def change_protons(molecule: Any, acids: bool, bases: bool) -> Any:
    """Take a proton from every acid, and give one to every amine."""
    changed = _chem().RWMol(molecule)
    for smarts, charge in ((ACIDS, -1),) * acids + ((BASES, 1),) * bases:
        for (place,) in molecule.GetSubstructMatches(_pattern(smarts)):
            atom = changed.GetAtomWithIdx(place)
            protons = atom.GetTotalNumHs() + charge
            atom.SetFormalCharge(charge)
            atom.SetNoImplicit(True)
            atom.SetNumExplicitHs(protons)
    _chem().SanitizeMol(changed)
    return changed


def mirror(molecule: Any) -> Any:
    """The enantiomer."""
    mirrored = _chem().Mol(molecule)
    for atom in mirrored.GetAtoms():
        atom.InvertChirality()
    return mirrored


MIRRORED = "mirrored"
FORMS: dict[str, Callable[[Any], Any]] = {
    "neutral": lambda molecule: molecule,
    "anion": partial(change_protons, acids=True, bases=False),
    "cation": partial(change_protons, acids=False, bases=True),
    "zwitterion": partial(change_protons, acids=True, bases=True),
}


def list_forms(smiles: str) -> dict[str, str]:
    """Other forms of a molecule with more or fewer protons, and its mirror image, if they differ from it.

    >>> list_forms("N[C@@H](C)C(=O)O")["zwitterion"], list_forms("CC(=O)[O-]")
    ('C[C@H]([NH3+])C(=O)[O-]', {'neutral': 'CC(=O)O'})
    """
    molecule, forms = _chem().MolFromSmiles(smiles), dict[str, str]()
    neutral, known = _uncharger().uncharge(molecule), {write(molecule)}
    for name, change in {**FORMS, MIRRORED: lambda _: mirror(molecule)}.items():
        try:
            form = write(change(neutral))
        except (ValueError, OverflowError):  # a valence that RDKit does not allow, or a proton that is an isotope
            continue
        if form not in known:
            known.add(form)
            forms[name] = form
    return forms


def condense(a: str, b: str) -> list[str]:
    """Esters, amides and thioesters of two molecules, at most a few.

    >>> condense("CC(=O)O", "OCC"), condense("CC", "CO")
    (['CCOC(C)=O'], [])
    """
    first, second = _read(a), _read(b)
    pairs = product(CONDENSATIONS, ((first, second), (second, first)))
    return list(dict.fromkeys(made for smarts, pair in pairs for made in _react(smarts, *pair)))[:MOST]


def join_peptide(residues: Sequence[str]) -> str | None:
    """The peptide of amino acids, of which the first has the free amino group; None if one of them is none.

    >>> join_peptide(["N[C@@H](C)C(=O)O", "NCC(=O)O"])
    'C[C@H](N)C(=O)NCC(=O)O'
    """
    chain = residues[0]
    for residue in residues[1:]:
        longer = next(_react(PEPTIDE, _read(chain), _read(residue)), None)
        if longer is None:
            return None
        chain = longer
    return chain


def _read(smiles: str) -> Any:
    return _uncharger().uncharge(_chem().MolFromSmiles(smiles))


def _react(smarts: str, *molecules: Any) -> Iterator[str]:
    """The products of a reaction that RDKit finds sound."""
    for (made,) in _reaction(smarts).RunReactants(molecules, 20):
        try:
            _chem().SanitizeMol(made)
            smiles = write(made)
        except ValueError:
            continue
        yield smiles


def standardize(molecule: Any) -> str:
    """SMILES with the tautomers of PubChem.

    >>> standardize(_chem().MolFromSmiles("CNC(=N)N"))
    'CN=C(N)N'
    >>> standardize(_chem().MolFromSmiles("Cc1c[nH]cn1"))
    'Cc1cnc[nH]1'
    """
    for smarts in TAUTOMERS:
        while changed := list(_react(smarts, molecule)):
            molecule = _chem().MolFromSmiles(changed[0])
    return write(molecule)


def read_and_write(smiles: str) -> str:
    """SMILES of any form in the canonical one."""
    with import_extra("rdkit.rdBase", "chem").BlockLogs():  # a lone hydrogen atom
        return write(_chem().MolFromSmiles(smiles))


def write(molecule: Any) -> str:
    """Canonical SMILES, which are the same however the molecule was made; a ValueError if RDKit cannot read them."""
    read = _chem().MolFromSmiles(_chem().MolToSmiles(molecule))
    if read is None:
        raise ValueError("RDKit cannot read what it wrote.")
    return str(_chem().MolToSmiles(read))
