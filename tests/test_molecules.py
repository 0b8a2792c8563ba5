"""Generated molecules: valid, different, and the same for the same seed."""

import networkx as nx
import numpy as np
import pytest

from dsokr.errors import InputError
from dsokr.graphs import Graph, permuted, to_adjacency, to_networkx
from studies.data.molecules import generate, identify

VALENCE = {6: 4, 7: 3, 8: 2, 9: 1}


@pytest.fixture(scope="module")
def molecules() -> list[Graph]:
    return generate(3_000, seed=0)


def key(graph: Graph) -> int:
    elements, bonds = to_adjacency(graph)
    return identify(elements[None], bonds[None])[0]


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
    for molecule in molecules[:100]:
        assert key(permuted(molecule, rng.permutation(len(molecule.labels)).tolist())) == key(molecule)


def test_keys_agree_exactly_for_isomorphic_molecules():
    small = [(graph, to_networkx(graph), key(graph)) for graph in generate(60, seed=3, max_atoms=4)]
    for one, one_nx, one_key in small:
        for other, other_nx, other_key in small:
            same = nx.is_isomorphic(one_nx, other_nx, lambda a, b: a == b, lambda a, b: a == b)
            assert (one_key == other_key) == same == (one is other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1, 2, 1, 2, 1, 2], [2, 1, 2, 1, 2, 1], True),  # two Kekulé forms of difluorobenzene
        ([1, 2, 1, 2, 1, 1], [2, 1, 2, 1, 1, 1], False),  # two dienes
        ([1, 2, 1, 2, 1, 2], [1, 1, 1, 1, 1, 1], False),
    ],
)
def test_kekule_forms_of_one_molecule_share_a_key(one, other, same):
    assert (key(ring(one, substituents=2)) == key(ring(other, substituents=2))) == same


@pytest.mark.parametrize(("max_atoms", "n"), [(2, 50), (3, 10_000)])
def test_says_when_there_are_not_enough(max_atoms, n):
    with pytest.raises(InputError, match=f"of n={n:,} molecules with at most max_atoms={max_atoms} atoms"):
        generate(n, seed=0, max_atoms=max_atoms)


def test_all_there_are_can_be_had():
    """With two atoms: every bond that the valences allow, but for O-O and fluorine on anything except carbon."""
    found = {(*sorted(molecule.labels), molecule.edges[0][2]) for molecule in generate(14, seed=0, max_atoms=2)}
    orders = {(6, 6): 3, (6, 7): 3, (6, 8): 2, (6, 9): 1, (7, 7): 3, (7, 8): 2}
    assert found == {(*pair, bond) for pair, most in orders.items() for bond in range(1, most + 1)}
    assert generate(0, seed=0) == []
    with pytest.raises(InputError, match="at least 2"):
        generate(5, seed=0, max_atoms=1)
