import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from dsokr.errors import InputError
from dsokr.graphs import Graph, permuted, to_networkx

pytest.importorskip("rdkit")

from rdkit import Chem

from dsokr import chem

MOLECULES = [
    "CCO",
    "C#N",
    "N#CC1CC1C=O",
    "c1ccccc1O",
    "Cc1c[nH]cn1",
    "OC1C2CC1N2",
    "FC(F)(F)C=O",
    "C[N+](C)(C)C",
    "[O-][N+](=O)c1ccccc1",
    "CS(=O)(=O)N",
    "C[C@H](O)F",
    "C12C3C4C1C5C2C3C45",
]


@pytest.mark.parametrize("text", MOLECULES)
def test_graphs_have_the_atoms_and_kekule_bonds_of_the_molecule(text):
    mol = Chem.MolFromSmiles(text)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    graph = chem.graph(text)
    assert graph.labels == tuple(atom.GetAtomicNum() for atom in mol.GetAtoms())
    bonds = {(b.GetBeginAtomIdx(), b.GetEndAtomIdx()): int(b.GetBondTypeAsDouble()) for b in mol.GetBonds()}
    assert {(i, j): order for i, j, order in graph.edges} == {tuple(sorted(ends)): o for ends, o in bonds.items()}
    assert {order for _, _, order in graph.edges} <= {1, 2, 3}


@pytest.mark.parametrize("text", MOLECULES)
def test_smiles_of_a_graph_are_canonical_without_stereochemistry(text):
    assert chem.smiles(chem.graph(text)) == Chem.CanonSmiles(text, useChiral=False)


@pytest.mark.parametrize("text", MOLECULES)
def test_there_and_back_again_is_the_same_graph(text):
    graph = chem.graph(text)
    again = to_networkx(chem.graph(chem.smiles(graph)))
    if "c" in text:  # a resonance structure is chosen anew, and may be another one
        assert nx.is_isomorphic(again, to_networkx(graph), lambda a, b: a == b)
        return
    assert nx.is_isomorphic(again, to_networkx(graph), lambda a, b: a == b, lambda a, b: a == b)


def test_charges_and_hydrogens_are_left_out():
    assert chem.graph("[NH3+]CC([O-])=O") == chem.graph("NCC(O)=O")
    assert chem.graph("[H]C([H])([H])[2H]") == Graph((6,))
    assert chem.smiles(chem.graph("[NH3+]CC([O-])=O")) == "NCC(=O)O"


def test_batches_are_the_same_as_one_by_one():
    graphs = chem.graphs(MOLECULES)
    assert graphs == [chem.graph(text) for text in MOLECULES]
    assert chem.many_smiles(graphs) == [chem.smiles(graph) for graph in graphs]


def test_mols_are_left_as_they_were():
    mol = Chem.AddHs(Chem.MolFromSmiles("c1ccccc1"))
    assert chem.from_mol(mol) == chem.graph("c1ccccc1")
    assert mol.GetNumAtoms() == 12
    assert mol.GetAtomWithIdx(0).GetIsAromatic()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("C1CC", "Could not parse 'C1CC' at index 2 as a molecule"),
        ("", "Could not parse '' at index 2 as a molecule"),
        (None, "Could not parse None at index 2 as a molecule"),
        ("[H][H]", r"'\[H\]\[H\]' at index 2: A molecule needs an atom other than hydrogen"),
        ("N->[Fe]", "at index 2: A molecule has single, double and triple bonds. Got one of type DATIVE"),
    ],
)
def test_what_is_no_molecule_is_refused_with_its_index(text, message, capfd):
    with pytest.raises(InputError, match=message):
        chem.graphs(["C", "CC", text])
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph((6,) * 6, tuple((0, i, 1) for i in range(1, 6))), r"index 1: Atom 0 \(C\) .* total order 5"),
        (Graph((6, 6), ((0, 1, 4),)), "index 1: Labels of bonds are their orders 1, 2, 3. Got 4 between atoms 0 and 1"),
        (Graph((6, 200)), "index 1: Labels of atoms are atomic numbers. Got 200"),
    ],
)
def test_graphs_that_are_no_molecules_are_refused_with_their_index(graph, message):
    with pytest.raises(InputError, match=message):
        chem.many_smiles([Graph((6,)), graph])


def test_pictures_show_every_molecule_and_its_legend():
    impossible = Graph((6,) * 6, tuple((0, i, 3) for i in range(1, 6)))
    items = ["c1ccccc1O", chem.graph("CC=O"), impossible]
    one, many = chem.draw(items[:1], columns=2, size=(100, 80)), chem.draw(items, columns=2, size=(100, 80))
    assert "width='100px' height='80px'" in one
    assert "width='200px' height='160px'" in many
    assert chem.draw(items, ["a", "b", "c"]).count("legend") == 3
    assert chem.draw_png(items, ["a", "b", "c"]).startswith(b"\x89PNG")


def test_aromatic_rings_are_drawn_with_double_bonds():
    assert "stroke-dasharray" not in chem.draw(["c1ccccc1O"])
    assert chem.draw(["c1ccccc1"]).count("class='bond-") == 9  # lines, of which three bonds have two


def test_formula_and_mass():
    assert (chem.formula("[Na+].[Cl-]"), chem.formula("c1ccccc1O")) == ("ClNa", "C6H6O")
    assert chem.mass("c1ccccc1O") == pytest.approx(94.041865, abs=1e-6)
    for function in (chem.formula, chem.mass):
        with pytest.raises(InputError, match="Could not parse 'C1CC' as a molecule"):
            function("C1CC")


def test_pictures_of_nothing_or_with_missing_legends_are_refused():
    with pytest.raises(InputError, match="nothing to draw"):
        chem.draw([])
    with pytest.raises(InputError, match="Got 1 legends for 2 molecules"):
        chem.draw(["C", "CC"], ["only one"])
    with pytest.raises(InputError, match="Molecule at index 1: Could not parse 'C1CC'"):
        chem.draw(["C", "C1CC"])


def test_without_rdkit_importing_says_what_is_missing():
    code = "import sys; sys.modules['rdkit'] = None\ntry: import dsokr.chem\nexcept ImportError as error: print(error)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'pip install "dsokr[chem]"' in said


STEREO = [
    "C[C@H](N)C(=O)O",
    "C[C@@H](N)C(=O)[O-]",
    "CC/C=C\\C/C=C\\CCO",
    "O=C([O-])/C=C/C(=O)[O-]",
    "c1ccc2[nH]ccc2c1",
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
    "C[N+](C)(C)CCO",
    "CS(C)(=O)=O",
    "OC[C@H]1O[C@@H](O)[C@H](O)[C@@H](O)[C@@H]1O",
    "[Na+].[Cl-]",
    "O=[N+]([O-])c1ccccc1",
    "[Fe+2]",
    "C1[C@H]2CC[C@@H]1C=C2",
]


@pytest.mark.parametrize("text", STEREO)
def test_graphs_with_charges_and_stereochemistry_become_smiles_again(text):
    (graph,) = chem.stereo_graphs([text])
    order = np.random.default_rng(0).permutation(len(graph.labels))
    assert chem.stereo_smiles(permuted(graph, order)) == chem.canonical([text], stereo=True)[0]


@pytest.mark.parametrize(
    "text, bond", [("C1=CCCCC1", (0, 1)), ("CCCC", (1, 2)), ("CC#CC", (1, 2)), ("c1ccccc1", (0, 1))]
)
def test_a_geometry_that_a_bond_cannot_have_is_left_out(text, bond):
    (graph,) = chem.stereo_graphs([text])
    edges = tuple((i, j, label + 3 if (i, j) == bond else label) for i, j, label in graph.edges)
    assert edges != graph.edges
    assert chem.stereo_smiles(Graph(graph.labels, edges)) == chem.canonical([text])[0]


def test_a_graph_that_is_no_molecule_has_no_stereo_smiles():
    (methane,), (ring,) = chem.stereo_graphs(["C"]), chem.stereo_graphs(["c1ccccc1"])
    crowded = Graph(methane.labels * 6, tuple((0, i, 8) for i in range(1, 6)))
    broken = Graph(ring.labels[:5], tuple(edge for edge in ring.edges if 5 not in edge))
    assert chem.stereo_smiles(crowded) is None and chem.stereo_smiles(broken) is None
