"""Molecules: graphs from and to SMILES and RDKit, and pictures of them. The only module that imports RDKit.

A molecule is a :class:`Graph` of its heavy atoms in Kekulé form, as the paper prepares QM9: nodes are labelled with
atomic numbers, edges with bond orders 1, 2, 3. Hydrogens, charges and stereochemistry are left out; where a molecule
is made from a graph, hydrogens fill the valences and an atom with more bonds than its valence is charged, against a
neighbour that can give up its only hydrogen (nitro groups, azides, isonitriles and N-oxides come out neutral).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsokr.errors import InputError, MissingExtraError
from dsokr.graphs import Graph

try:
    from rdkit import Chem
    from rdkit.Chem import rdDepictor, rdFingerprintGenerator
    from rdkit.Chem.Draw import rdMolDraw2D
    from rdkit.rdBase import BlockLogs
except ImportError as error:
    raise MissingExtraError("RDKit", "chem") from error

BONDS = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}
ORDERS = {bond: order for order, bond in BONDS.items()}
CHARGES = (0, 1, -1)  # tried in this order
HANDS = ("", "R", "S", "r", "s")  # of stereocentres, as RDKit may name them


def graph(smiles: str) -> Graph:
    """The graph of a molecule written as SMILES.

    >>> graph("OC=O")
    Graph(labels=(8, 6, 8), edges=((0, 1, 1), (1, 2, 2)))
    """
    with BlockLogs():  # RDKit would write its own message to stderr beside ours
        return from_mol(_parsed(smiles))


def graphs(smiles: Sequence[str]) -> list[Graph]:
    """The graphs of many molecules."""
    made = []
    with BlockLogs():
        for index, text in enumerate(smiles):
            mol = _parsed(text, f" at index {index}")
            with _naming(f"Molecule {text!r} at index {index}"):
                made.append(from_mol(mol))
    return made


def canonical(smiles: Sequence[str], stereo: bool = False) -> list[str]:
    """The canonical SMILES of many molecules, without stereochemistry unless it is wanted.

    >>> canonical(["OCC", "F/C=C/F"])
    ['CCO', 'FC=CF']
    """
    with BlockLogs():
        mols = (_parsed(text, f" at index {index}") for index, text in enumerate(smiles))
        return [Chem.MolToSmiles(mol, isomericSmiles=stereo) for mol in mols]


def smiles(graph: Graph) -> str:
    """The canonical SMILES of a molecule.

    >>> smiles(Graph((8, 6, 8), ((0, 1, 1), (1, 2, 2))))
    'O=CO'
    """
    with BlockLogs():
        return Chem.MolToSmiles(to_mol(graph))


def many_smiles(graphs: Sequence[Graph]) -> list[str]:
    """The canonical SMILES of many molecules."""
    made = []
    for index, item in enumerate(graphs):
        with _naming(f"Graph at index {index}"):
            made.append(smiles(item))
    return made


def fingerprints(smiles: Sequence[str], radius: int = 3, chirality: bool = True) -> sp.csr_array:  # (n, 2³²)
    """Morgan fingerprints: how often every neighbourhood of an atom up to ``radius`` bonds occurs in a molecule.

    Nothing is folded: a column is a neighbourhood's own 32-bit identifier, so molecules have columns in common only for
    neighbourhoods in common. :class:`dsokr.kernels.Tanimoto` compares them.

    >>> fingerprints(["CCO", "OCC", "CCN"], radius=1).sum(axis=1)
    array([6., 6., 6.])
    """
    if radius < 0:
        raise InputError(f"The radius of a fingerprint must not be negative. Got {radius}.")
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, includeChirality=chirality)
    indptr, columns, counts = [0], [], []
    with BlockLogs():
        for index, text in enumerate(smiles):
            found = generator.GetSparseCountFingerprint(_parsed(text, f" at index {index}")).GetNonzeroElements()
            columns.extend(found.keys())
            counts.extend(found.values())
            indptr.append(len(columns))
    parts = np.array(counts, np.float64), np.array(columns, np.int64), np.array(indptr, np.int64)
    return sp.csr_array(parts, shape=(len(indptr) - 1, 2**32))


def environments(smiles: Sequence[str], radius: int = 1) -> list[np.ndarray]:  # each (atoms, radius + 1)
    """The Morgan identifiers of every atom's neighbourhoods of 0, 1, … bonds, without chirality.

    Neighbourhoods that cover the same bonds count once, so an atom may lack one: −1 stands there.

    >>> environments(["CO"], radius=0)[0].shape
    (2, 1)
    """
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius)
    made = []
    with BlockLogs():
        for index, text in enumerate(smiles):
            mol, seen = _parsed(text, f" at index {index}"), rdFingerprintGenerator.AdditionalOutput()
            seen.AllocateBitInfoMap()
            generator.GetSparseCountFingerprint(mol, additionalOutput=seen)
            found = np.full((mol.GetNumAtoms(), radius + 1), -1, np.int64)
            for identifier, places in seen.GetBitInfoMap().items():
                for atom, bonds in places:
                    found[atom, bonds] = identifier
            made.append(found)
    return made


def matches(smiles: Sequence[str], pattern: str) -> np.ndarray:  # (n,)
    """How often a SMARTS pattern occurs in each molecule.

    >>> matches(["CCO", "OCCO"], "[OX2H1]")
    array([1, 2])
    """
    with BlockLogs():
        query = Chem.MolFromSmarts(pattern)
        if query is None:
            raise InputError(f"Could not parse {pattern!r} as SMARTS.")
        mols = (_parsed(text, f" at index {index}") for index, text in enumerate(smiles))
        return np.array([len(mol.GetSubstructMatches(query)) for mol in mols], np.int64)


def stereo_graphs(smiles: Sequence[str]) -> list[Graph]:
    """Molecules as they are written: charges, aromatic bonds, explicit hydrogens, handedness (R, S) and sides (E, Z)
    are part of the labels, which mean nothing but that different ones differ. Isotopes and radicals are not told apart.

    >>> left, right = stereo_graphs(["C[C@H](N)O", "C[C@@H](N)O"])
    >>> left.edges == right.edges, left.labels == right.labels
    (True, False)
    """
    made = []
    with BlockLogs():
        for index, text in enumerate(smiles):
            mol = _parsed(text, f" at index {index}")
            atoms = tuple(
                (atom.GetAtomicNum() * 256 + atom.GetFormalCharge() + 128) * 8 + HANDS.index(_handedness(atom))
                for atom in mol.GetAtoms()
            )
            bonds = tuple(
                (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), int(bond.GetBondType()) * 8 + int(bond.GetStereo()))
                for bond in mol.GetBonds()
            )
            made.append(Graph(atoms, bonds))
    return made


def _handedness(atom: Any) -> str:
    return atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else ""


def from_mol(mol: Any) -> Graph:
    """The graph of an RDKit molecule, which is left as it is."""
    mol = Chem.Mol(mol)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    if any(atom.GetAtomicNum() == 1 for atom in mol.GetAtoms()):
        mol = Chem.RemoveAllHs(mol, sanitize=False)
    if not mol.GetNumAtoms():
        raise InputError("A molecule needs an atom other than hydrogen.")
    edges = []
    for bond in mol.GetBonds():
        if bond.GetBondType() not in ORDERS:
            raise InputError(f"A molecule has single, double and triple bonds. Got one of type {bond.GetBondType()}.")
        edges.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), ORDERS[bond.GetBondType()]))
    return Graph(tuple(atom.GetAtomicNum() for atom in mol.GetAtoms()), tuple(edges))


def to_mol(graph: Graph) -> Any:
    """The RDKit molecule of a graph, sanitised. Refused if an atom has more bonds than its ions could have."""
    mol = _unchecked(graph)
    for atom in mol.GetAtoms():
        _charge(atom)
    for atom in mol.GetAtoms():
        if atom.GetFormalCharge() > 0:
            _balance(atom)
    Chem.SanitizeMol(mol)
    return mol


def _charge(atom: Any) -> None:
    """The charge with which the atom can have its bonds."""
    for charge in CHARGES:
        atom.SetFormalCharge(charge)
        if not atom.HasValenceViolation():
            return
    order = int(sum(bond.GetBondTypeAsDouble() for bond in atom.GetBonds()))
    raise InputError(f"Atom {atom.GetIdx()} ({atom.GetSymbol()}) cannot have bonds of total order {order}.")


def _balance(cation: Any) -> None:
    ends = [n for n in cation.GetNeighbors() if n.GetDegree() == 1 and n.GetTotalNumHs() == 1]
    neutral = [n for n in ends if n.GetFormalCharge() == 0]
    if neutral:
        max(neutral, key=lambda atom: atom.GetAtomicNum()).SetFormalCharge(-1)


def draw(
    molecules: Sequence[Graph | str],
    legends: Sequence[str] | None = None,
    *,
    columns: int = 5,
    size: tuple[int, int] = (220, 180),
) -> str:
    """Graphs or SMILES drawn in a grid, as SVG text. Graphs that are no valid molecules are drawn as they are.

    >>> draw(["CCO", Graph((6, 8), ((0, 1, 2),))], legends=["predicted", "true"]).startswith("<?xml")
    True
    """
    return _drawn(rdMolDraw2D.MolDraw2DSVG, molecules, legends, columns, size).GetDrawingText()


def draw_png(
    molecules: Sequence[Graph | str],
    legends: Sequence[str] | None = None,
    *,
    columns: int = 5,
    size: tuple[int, int] = (220, 180),
) -> bytes:
    """The same picture as PNG."""
    return _drawn(rdMolDraw2D.MolDraw2DCairo, molecules, legends, columns, size).GetDrawingText()


def _drawn(
    canvas: Any,
    molecules: Sequence[Graph | str],
    legends: Sequence[str] | None,
    columns: int,
    size: tuple[int, int],
) -> Any:
    if not len(molecules):
        raise InputError("There is nothing to draw: molecules is empty.")
    if legends is not None and len(legends) != len(molecules):
        raise InputError(f"Every molecule needs a legend. Got {len(legends)} legends for {len(molecules)} molecules.")
    mols = [_drawable(item, index) for index, item in enumerate(molecules)]
    width, height = size
    across = min(columns, len(mols))
    down = -(-len(mols) // across)
    drawing = canvas(across * width, down * height, width, height)
    drawing.drawOptions().prepareMolsBeforeDrawing = False  # it would refuse what is not a valid molecule
    drawing.DrawMolecules(mols, legends=None if legends is None else list(legends))
    drawing.FinishDrawing()
    return drawing


def _drawable(item: Graph | str, index: int) -> Any:
    with BlockLogs(), _naming(f"Molecule at index {index}"):
        mol = _parsed(item) if isinstance(item, str) else _unchecked(item)
        Chem.FastFindRings(mol)  # which side of a double bond to draw on depends on the rings
        rdDepictor.Compute2DCoords(mol)
        return mol


def _parsed(text: str, where: str = "") -> Any:
    mol = Chem.MolFromSmiles(text) if isinstance(text, str) and text.strip() else None
    if mol is None:
        raise InputError(f"Could not parse {text!r}{where} as a molecule.")
    return mol


def _unchecked(graph: Graph) -> Any:
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


@contextmanager
def _naming(item: str) -> Iterator[None]:
    """Errors inside say which item they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{item}: {error}") from error
