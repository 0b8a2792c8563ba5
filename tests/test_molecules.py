"""Generated molecules: valid, different, and the same for the same seed."""

import networkx as nx
import numpy as np
import pytest

from studies.data._canonical import canonical_key
from studies.data.molecules import generate
from dsokr.errors import InputError
from dsokr.graphs import Graph

VALENCE = {6: 4, 7: 3, 8: 2, 9: 1}


@pytest.fixture(scope="module")
def molecules() -> list[Graph]:
    return generate(3_000, seed=0)


def to_networkx(graph: Graph) -> nx.Graph:
    result = nx.Graph()
    result.add_nodes_from((i, {"label": label}) for i, label in enumerate(graph.labels))
    result.add_edges_from((i, j, {"label": label}) for i, j, label in graph.edges)
    return result


def key(graph: Graph, order: np.ndarray | None = None) -> bytes:
    n = len(graph.labels)
    order = np.arange(n) if order is None else order
    elements = np.zeros(n, np.int64)
    bonds = np.zeros((n + 1, n + 1), np.int64)[:n, :n]  # part of a matrix, as in a batch, or it is compiled anew
    elements[order] = graph.labels
    for i, j, bond in graph.edges:
        bonds[order[i], order[j]] = bonds[order[j], order[i]] = bond
    code = np.zeros(n * (n + 1) // 2, np.uint8)
    canonical_key(elements, bonds, code)
    return code.tobytes()


def ring(bonds: list[int], *, substituents: int) -> Graph:
    """A ring of carbons with fluorine on its first atoms."""
    n = len(bonds)
    edges = [(i, (i + 1) % n, bond) for i, bond in enumerate(bonds)]
    return Graph((6,) * n + (9,) * substituents, (*edges, *((i, n + i, 1) for i in range(substituents))))


@pytest.mark.parametrize("max_atoms", [2, 5, 9, 15])
def test_sizes_valences_and_connection(max_atoms):
    molecules = generate(14 if max_atoms == 2 else 500, seed=1, max_atoms=max_atoms)
    for molecule in molecules:
        assert 2 <= len(molecule.labels) <= max_atoms
        assert nx.is_connected(to_networkx(molecule))
        used = [sum(bond for *ends, bond in molecule.edges if atom in ends) for atom in range(len(molecule.labels))]
        assert all(total <= VALENCE[label] for total, label in zip(used, molecule.labels, strict=True))
        assert {bond for *_, bond in molecule.edges} <= {1, 2, 3}


def test_rdkit_accepts_them_all_and_finds_them_different(molecules):
    chem = pytest.importorskip("rdkit.Chem")

    def smiles(graph: Graph) -> str:
        mol = chem.RWMol()
        for label in graph.labels:
            mol.AddAtom(chem.Atom(label))
        for i, j, bond in graph.edges:
            mol.AddBond(i, j, chem.BondType.values[bond])
        chem.SanitizeMol(mol)
        assert all(atom.GetNumRadicalElectrons() == atom.GetFormalCharge() == 0 for atom in mol.GetAtoms())
        return chem.MolToSmiles(mol)

    written = [smiles(molecule) for molecule in molecules]
    assert len(set(written)) == len(molecules)
    assert any("c1" in text for text in written), "no aromatic ring among them would make the test above weak"


def test_they_are_a_mixture(molecules):
    atoms = np.concatenate([molecule.labels for molecule in molecules])
    bonds = np.array([bond for molecule in molecules for *_, bond in molecule.edges])
    rings = np.array([len(molecule.edges) - len(molecule.labels) + 1 for molecule in molecules])
    assert 0.6 < np.mean(atoms == 6) < 0.85
    assert all(np.mean(atoms == element) > 0.05 for element in (7, 8))
    assert 9 in atoms
    assert 0.05 < np.mean(bonds == 2) < 0.25
    assert 0.005 < np.mean(bonds == 3) < 0.1
    assert all(np.mean(rings == count) > 0.05 for count in range(4))
    assert np.mean([len(molecule.labels) == 9 for molecule in molecules]) > 0.6


def test_the_same_seed_gives_the_same_molecules(molecules):
    assert generate(3_000, seed=0) == molecules
    assert generate(10, seed=0) == molecules[:10]
    assert generate(10, seed=1) != molecules[:10]


def test_the_global_random_state_is_not_touched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - it is the legacy state that must not move
    generate(10, seed=0)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_keys_do_not_depend_on_the_numbering(molecules):
    rng = np.random.default_rng(0)
    for molecule in molecules[:300]:
        assert key(molecule, rng.permutation(len(molecule.labels))) == key(molecule)


def test_keys_of_regular_graphs_that_refinement_cannot_tell_apart():
    prism = Graph((6,) * 6, tuple((i, j, 1) for i, j in nx.circular_ladder_graph(3).edges))
    bipartite = Graph((6,) * 6, tuple((i, j, 1) for i, j in nx.complete_bipartite_graph(3, 3).edges))
    rng = np.random.default_rng(0)
    for graph in (prism, bipartite):
        assert {key(graph, rng.permutation(6)) for _ in range(20)} == {key(graph)}
    assert key(prism) != key(bipartite)


def test_keys_agree_exactly_for_isomorphic_molecules():
    small = generate(60, seed=3, max_atoms=4)
    for one in small:
        for other in small:
            same = nx.is_isomorphic(to_networkx(one), to_networkx(other), lambda a, b: a == b, lambda a, b: a == b)
            assert (key(one) == key(other)) == same == (one is other)


def test_kekule_forms_of_one_molecule_share_a_key():
    forms = [ring([1, 2, 1, 2, 1, 2], substituents=2), ring([2, 1, 2, 1, 2, 1], substituents=2)]
    assert key(forms[0]) == key(forms[1])
    dienes = [ring([1, 2, 1, 2, 1, 1], substituents=2), ring([2, 1, 2, 1, 1, 1], substituents=2)]
    assert key(dienes[0]) != key(dienes[1])


@pytest.mark.parametrize(("max_atoms", "n"), [(2, 50), (3, 10_000)])
def test_says_when_there_are_not_enough(max_atoms, n):
    with pytest.raises(InputError, match=f"too few molecules of at most max_atoms={max_atoms} atoms.*n={n:,}"):
        generate(n, seed=0, max_atoms=max_atoms)


def test_all_there_are_can_be_had():
    """With two atoms: every bond that the valences allow, but for O-O and fluorine on anything except carbon."""
    found = {(*sorted(molecule.labels), molecule.edges[0][2]) for molecule in generate(14, seed=0, max_atoms=2)}
    orders = {(6, 6): 3, (6, 7): 3, (6, 8): 2, (6, 9): 1, (7, 7): 3, (7, 8): 2}
    assert found == {(*pair, bond) for pair, most in orders.items() for bond in range(1, most + 1)}


@pytest.mark.parametrize(
    ("n", "max_atoms", "message"), [(-1, 9, "n must be"), (5, 1, "from 2 to"), (5, 99, "from 2 to")]
)
def test_refuses_impossible_requests(n, max_atoms, message):
    with pytest.raises(InputError, match=message):
        generate(n, seed=0, max_atoms=max_atoms)


def test_none_is_possible():
    assert generate(0, seed=0) == []
