"""Molecules: graphs from and to SMILES and RDKit, fingerprints, and drawings. The only module that imports RDKit.

A molecule is a :class:`Graph` of its heavy atoms in Kekulé form, as the paper prepares QM9: nodes are labelled with
atomic numbers, edges with bond orders 1, 2, 3. Hydrogens, charges and stereochemistry are left out. When a graph is
converted to a molecule, hydrogens fill the valences; an atom with more bonds than its valence is charged, against a
neighbour that can give up its only hydrogen (nitro groups, azides, isonitriles and N-oxides come out neutral).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsokr.errors import InputError, import_extra
from dsokr.graphs import Graph

Chem = import_extra("rdkit.Chem", "chem")
rdDepictor = import_extra("rdkit.Chem.rdDepictor", "chem")
rdFingerprintGenerator = import_extra("rdkit.Chem.rdFingerprintGenerator", "chem")
rdMolDescriptors = import_extra("rdkit.Chem.rdMolDescriptors", "chem")
rdMolDraw2D = import_extra("rdkit.Chem.Draw.rdMolDraw2D", "chem")
BlockLogs = import_extra("rdkit.rdBase", "chem").BlockLogs  # RDKit would print its own messages beside ours

Items = Sequence[Graph | str]  # graphs or SMILES
Legends = Sequence[str] | None
Colors = Sequence[Sequence[Sequence[float]]] | None  # (molecules, atoms, 3)
Size = tuple[int, int]

BONDS = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}
ORDERS = {bond: order for order, bond in BONDS.items()}
CHARGES = (0, 1, -1)  # tried in this order
FILLED = {5, 6, 7, 8, 9, 14, 15, 16, 17, 33, 34, 35, 53}  # elements whose valences hydrogens fill
SIDES = {2: Chem.BondStereo.STEREOCIS, 3: Chem.BondStereo.STEREOTRANS}  # Z and E by RDKit's numbers
HANDS = ("", "R", "S", "r", "s")  # RDKit's names of the handedness of a stereocentre


def graph(smiles: str) -> Graph:
    """Return the graph of a molecule.

    >>> graph("OC=O")
    Graph(labels=(8, 6, 8), edges=((0, 1, 1), (1, 2, 2)))
    """
    return from_mol(_parse(smiles))


def graphs(smiles: Sequence[str]) -> list[Graph]:
    """Return the graphs of many molecules."""
    mols = enumerate(_parse_all(smiles))
    return [_convert(mol, from_mol, f"Molecule {smiles[index]!r} at index {index}") for index, mol in mols]


def canonical(smiles: Sequence[str], stereo: bool = False) -> list[str]:
    """Return the canonical SMILES of many molecules, with or without stereochemistry.

    >>> canonical(["OCC", "F/C=C/F"])
    ['CCO', 'FC=CF']
    """
    return [Chem.MolToSmiles(mol, isomericSmiles=stereo) for mol in _parse_all(smiles)]


def smiles(graph: Graph) -> str:
    """Return the canonical SMILES of a graph.

    >>> smiles(Graph((8, 6, 8), ((0, 1, 1), (1, 2, 2))))
    'O=CO'
    """
    with BlockLogs():
        return Chem.MolToSmiles(to_mol(graph))


def many_smiles(graphs: Sequence[Graph]) -> list[str]:
    """Return the canonical SMILES of many graphs."""
    return [_convert(graph, smiles, f"Graph at index {index}") for index, graph in enumerate(graphs)]


def formula(smiles: str) -> str:
    """Return the molecular formula, in Hill order.

    >>> formula("CCO")
    'C2H6O'
    """
    return rdMolDescriptors.CalcMolFormula(_parse(smiles))


def mass(smiles: str) -> float:
    """Return the monoisotopic mass, in daltons.

    >>> round(mass("CCO"), 4)
    46.0419
    """
    return rdMolDescriptors.CalcExactMolWt(_parse(smiles))


def fingerprints(smiles: Sequence[str], radius: int = 3, chirality: bool = True) -> sp.csr_array:  # (n, 2³²)
    """Return Morgan fingerprints: how often each atom environment of up to ``radius`` bonds occurs in each molecule.

    They are not folded: a column is the 32-bit identifier of an environment, so molecules share columns only for
    environments in common. :class:`dsokr.kernels.Tanimoto` compares them.

    >>> fingerprints(["CCO", "OCC", "CCN"], radius=1).sum(axis=1)
    array([6., 6., 6.])
    """
    if radius < 0:
        raise InputError(f"The radius of a fingerprint must not be negative. Got {radius}.")
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, includeChirality=chirality)
    indptr, columns, counts = [0], [], []
    for mol in _parse_all(smiles):
        found = generator.GetSparseCountFingerprint(mol).GetNonzeroElements()
        columns.extend(found.keys())
        counts.extend(found.values())
        indptr.append(len(columns))
    parts = np.array(counts, np.float64), np.array(columns, np.int64), np.array(indptr, np.int64)
    return sp.csr_array(parts, shape=(len(indptr) - 1, 2**32))


def environments(smiles: Sequence[str], radius: int = 1) -> list[np.ndarray]:  # each (atoms, radius + 1)
    """Return the Morgan identifiers of every atom's environments of 0, 1, … bonds, without chirality.

    Environments that cover the same bonds count once, so that an atom may lack one: −1 marks it.

    >>> environments(["CO"], radius=0)[0].shape
    (2, 1)
    """
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius)
    found = []
    for mol in _parse_all(smiles):
        identifiers = np.full((mol.GetNumAtoms(), radius + 1), -1, np.int64)
        for identifier, places in _find_environments(mol, generator).items():
            for atom, bonds in places:
                identifiers[atom, bonds] = identifier
        found.append(identifiers)
    return found


def share_among_atoms(
    smiles: str, columns: np.ndarray, values: np.ndarray, radius: int = 3, chirality: bool = True
) -> np.ndarray:  # (atoms,)
    """Divide the value of each column of a molecule's fingerprint among the atoms around which it was found.

    >>> share_among_atoms("CC", np.array([2246728737]), np.array([1.0]), radius=0)
    array([0.5, 0.5])
    """
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, includeChirality=chirality)
    mol = _parse(smiles)
    found, shares = _find_environments(mol, generator), np.zeros(mol.GetNumAtoms())
    for column, value in zip(columns.tolist(), values.tolist(), strict=True):
        for atom, _ in found.get(column, ()):
            shares[atom] += value / len(found[column])
    return shares


def _find_environments(mol: Any, generator: Any) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return the environments of a molecule by their identifiers: the atoms around which each lies, and its radius."""
    output = rdFingerprintGenerator.AdditionalOutput()
    output.AllocateBitInfoMap()
    generator.GetSparseCountFingerprint(mol, additionalOutput=output)
    return output.GetBitInfoMap()


def matches(smiles: Sequence[str], pattern: str) -> np.ndarray:  # (n,)
    """Count the occurrences of a SMARTS pattern in each molecule.

    >>> matches(["CCO", "OCCO"], "[OX2H1]")
    array([1, 2])
    """
    with BlockLogs():
        query = Chem.MolFromSmarts(pattern)
    if query is None:
        raise InputError(f"Could not parse {pattern!r} as SMARTS.")
    return np.array([len(mol.GetSubstructMatches(query)) for mol in _parse_all(smiles)], np.int64)


def stereo_graphs(smiles: Sequence[str]) -> list[Graph]:
    """Return graphs whose labels also encode charge, aromaticity, explicit hydrogens and stereochemistry (R/S, E/Z).

    The labels have no other meaning than to differ where molecules do. Isotopes and radicals are not encoded.

    >>> left, right = stereo_graphs(["C[C@H](N)O", "C[C@@H](N)O"])
    >>> left.edges == right.edges, left.labels == right.labels
    (True, False)
    """
    return [
        Graph(
            tuple(_encode_atom(atom) for atom in mol.GetAtoms()),
            tuple((*_ends(bond), int(bond.GetBondType()) * 8 + int(bond.GetStereo())) for bond in mol.GetBonds()),
        )
        for mol in _parse_all(smiles)
    ]


def _encode_atom(atom: Any) -> int:
    hand = atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else ""
    return (atom.GetAtomicNum() * 256 + atom.GetFormalCharge() + 128) * 8 + HANDS.index(hand)


def stereo_smiles(graph: Graph) -> str | None:
    """Return the canonical SMILES of a graph of :func:`stereo_graphs`, or None if it is no molecule.

    Stereochemistry that the molecule cannot have is left out. Hydrogens fill valences, also of aromatic nitrogens.

    >>> stereo_smiles(stereo_graphs(["C[C@H](N)/C=C/c1ccc[nH]1"])[0])
    'C[C@H](N)/C=C/c1ccc[nH]1'
    """
    with BlockLogs():
        if (mol := _build_stereo_mol(graph)) is None:
            return None
        for setter in (_set_sides, _set_hands, _set_hands):  # the name of one centre can depend on others
            setter(mol, graph)
        again = Chem.MolFromSmiles(Chem.MolToSmiles(mol))  # without impossible stereochemistry
        return again and Chem.MolToSmiles(again)


def _build_stereo_mol(graph: Graph) -> Any:
    """Return a sanitised molecule, with hydrogens on up to two aromatic nitrogens if rings need them, or None."""
    mol = Chem.RWMol()
    for label in graph.labels:
        atom = Chem.Atom(label >> 11)
        atom.SetFormalCharge((label >> 3 & 255) - 128)
        atom.SetNoImplicit(label >> 11 not in FILLED)
        mol.AddAtom(atom)
    for i, j, label in graph.edges:
        mol.AddBond(i, j, Chem.BondType.values[label >> 3])
        if label >> 3 == Chem.BondType.AROMATIC:
            for part in (mol.GetBondBetweenAtoms(i, j), mol.GetAtomWithIdx(i), mol.GetAtomWithIdx(j)):
                part.SetIsAromatic(True)
    may = [a.GetIdx() for a in mol.GetAtoms() if a.GetIsAromatic() and a.GetAtomicNum() == 7 and a.GetDegree() == 2]
    for chosen in chain([()], combinations(may[:8], 1), combinations(may[:8], 2)):
        trial = Chem.Mol(mol)
        for at in chosen:
            trial.GetAtomWithIdx(at).SetNumExplicitHs(1)
        if Chem.SanitizeMol(trial, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE:
            return trial
    return None


def _set_hands(mol: Any, graph: Graph) -> None:
    """Give stereocentres the handedness R or S, by trying both orientations."""
    for atom, label in zip(mol.GetAtoms(), graph.labels, strict=True):
        if not label & 7:
            continue
        for tag in (Chem.ChiralType.CHI_TETRAHEDRAL_CW, Chem.ChiralType.CHI_TETRAHEDRAL_CCW):
            atom.SetChiralTag(tag)
            Chem.AssignStereochemistry(mol, cleanIt=False, force=True)
            if atom.HasProp("_CIPCode") and atom.GetProp("_CIPCode") == HANDS[label & 7]:
                break


def _set_sides(mol: Any, graph: Graph) -> None:
    """Give double bonds the geometry E or Z: where the neighbours of highest rank are."""
    Chem.AssignStereochemistry(mol, cleanIt=False, force=True, flagPossibleStereoCenters=True)
    for i, j, label in graph.edges:
        around = [[n for n in mol.GetAtomWithIdx(a).GetNeighbors() if n.GetIdx() != b] for a, b in ((i, j), (j, i))]
        if label - 8 * Chem.BondType.DOUBLE in SIDES and all(around) and around[0][0].HasProp("_CIPRank"):
            bond = mol.GetBondBetweenAtoms(i, j)  # from i to j, as it was added
            bond.SetStereoAtoms(*(max(own, key=lambda n: int(n.GetProp("_CIPRank"))).GetIdx() for own in around))
            bond.SetStereo(SIDES[label & 7])


def _ends(bond: Any) -> tuple[int, int]:
    return bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()


def from_mol(mol: Any) -> Graph:
    """Return the graph of an RDKit molecule, which stays unchanged."""
    mol = Chem.Mol(mol)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    if any(atom.GetAtomicNum() == 1 for atom in mol.GetAtoms()):
        with BlockLogs():
            mol = Chem.RemoveAllHs(mol, sanitize=False)
    if not mol.GetNumAtoms():
        raise InputError("A molecule needs an atom other than hydrogen.")
    for bond in mol.GetBonds():
        if bond.GetBondType() not in ORDERS:
            raise InputError(f"A molecule has single, double and triple bonds. Got one of type {bond.GetBondType()}.")
    edges = tuple((*_ends(bond), ORDERS[bond.GetBondType()]) for bond in mol.GetBonds())
    return Graph(tuple(atom.GetAtomicNum() for atom in mol.GetAtoms()), edges)


def to_mol(graph: Graph) -> Any:
    """Return the sanitised RDKit molecule of a graph, or refuse an atom with more bonds than its ions could have."""
    mol = _build_mol(graph)
    for atom in mol.GetAtoms():
        _set_charge(atom)
    for atom in mol.GetAtoms():
        if atom.GetFormalCharge() > 0:
            _balance_charge(atom)
    Chem.SanitizeMol(mol)
    return mol


def _set_charge(atom: Any) -> None:
    """Give the atom the first charge that allows its bonds."""
    for charge in CHARGES:
        atom.SetFormalCharge(charge)
        if not atom.HasValenceViolation():
            return
    order = int(sum(bond.GetBondTypeAsDouble() for bond in atom.GetBonds()))
    raise InputError(f"Atom {atom.GetIdx()} ({atom.GetSymbol()}) cannot have bonds of total order {order}.")


def _balance_charge(cation: Any) -> None:
    """Charge a terminal neighbour with one hydrogen negatively, if there is one."""
    ends = [n for n in cation.GetNeighbors() if (n.GetDegree(), n.GetTotalNumHs(), n.GetFormalCharge()) == (1, 1, 0)]
    if ends:
        max(ends, key=lambda atom: atom.GetAtomicNum()).SetFormalCharge(-1)


def draw(
    molecules: Items, legends: Legends = None, *, columns: int = 5, size: Size = (220, 180), colors: Colors = None
) -> str:
    """Draw graphs or SMILES in a grid, as SVG text. Graphs that are not valid molecules are drawn unchanged.

    ``colors`` has red, green and blue, from 0 to 1, for every atom of every molecule, to be drawn behind it.

    >>> draw(["CCO", Graph((6, 8), ((0, 1, 2),))], legends=["predicted", "true"]).startswith("<?xml")
    True
    """
    return _draw_grid(rdMolDraw2D.MolDraw2DSVG, molecules, legends, columns, size, colors)


def draw_png(molecules: Items, legends: Legends = None, *, columns: int = 5, size: Size = (220, 180)) -> bytes:
    """Draw the same grid as PNG."""
    return _draw_grid(rdMolDraw2D.MolDraw2DCairo, molecules, legends, columns, size)


def _draw_grid(canvas: Any, molecules: Items, legends: Legends, columns: int, size: Size, colors: Colors = None) -> Any:
    if not len(molecules):
        raise InputError("There is nothing to draw: molecules is empty.")
    if legends is not None and len(legends) != len(molecules):
        raise InputError(f"Every molecule needs a legend. Got {len(legends)} legends for {len(molecules)} molecules.")
    mols = [_convert(item, _place_atoms, f"Molecule at index {index}") for index, item in enumerate(molecules)]
    atoms = [mol.GetNumAtoms() for mol in mols]
    if colors is not None and [len(own) for own in colors] != atoms:
        raise InputError(f"Every atom needs a color. Got {[len(own) for own in colors]} colors for {atoms} atoms.")
    across = min(columns, len(mols))
    drawing = canvas(across * size[0], math.ceil(len(mols) / across) * size[1], *size)
    drawing.drawOptions().prepareMolsBeforeDrawing = False  # it would refuse invalid molecules
    marked: dict[str, Any] = {}
    if colors is not None:
        drawing.drawOptions().highlightRadius = 0.4
        marked["highlightAtoms"] = [list(range(n)) for n in atoms]
        marked["highlightAtomColors"] = [dict(enumerate(map(tuple, own))) for own in colors]
        marked["highlightBonds"] = [[] for _ in mols]
    drawing.DrawMolecules(mols, legends=None if legends is None else list(legends), **marked)
    drawing.FinishDrawing()
    return drawing.GetDrawingText()


def _place_atoms(item: Graph | str) -> Any:
    with BlockLogs():
        mol = Chem.Mol(_parse(item)) if isinstance(item, str) else _build_mol(item)
        Chem.Kekulize(mol, clearAromaticFlags=True)  # aromatic bonds would be dashed
        Chem.FastFindRings(mol)  # rings decide on which side of a double bond its second line is drawn
        rdDepictor.Compute2DCoords(mol)
        return mol


@lru_cache(2**13)  # callers ask for several properties of one molecule, and parsing takes longest
def _read(text: str) -> Any:
    with BlockLogs():
        return Chem.MolFromSmiles(text)


def _parse(text: str, where: str = "") -> Any:
    """Return the RDKit molecule of a SMILES string. It is cached: do not change it."""
    mol = _read(text) if isinstance(text, str) and text.strip() else None
    if mol is None:
        raise InputError(f"Could not parse {text!r}{where} as a molecule.")
    return mol


def _parse_all(smiles: Sequence[str]) -> Iterator[Any]:
    return (_parse(text, f" at index {index}") for index, text in enumerate(smiles))


def _build_mol(graph: Graph) -> Any:
    """Return the RDKit molecule of a graph without checking valences."""
    mol = Chem.RWMol()
    for label in graph.labels:
        if not 0 <= label <= 118:
            raise InputError(f"Labels of atoms are atomic numbers. Got {label}.")
        mol.AddAtom(Chem.Atom(label))
    for i, j, order in graph.edges:
        if order not in BONDS:
            raise InputError(f"Labels of bonds are their orders 1, 2, 3. Got {order} between atoms {i} and {j}.")
        mol.AddBond(i, j, BONDS[order])
    mol.UpdatePropertyCache(strict=False)
    return mol


def _convert(item: Any, function: Callable[[Any], Any], name: str) -> Any:
    """Return ``function(item)``; the messages of errors start with the item's name."""
    try:
        return function(item)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
