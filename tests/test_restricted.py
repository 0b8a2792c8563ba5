"""The search of molecules with a given formula, mass or substructure, against all such molecules."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, permutations

import numpy as np
import pytest
import torch
from torch import Generator

from dsokr import DSOKR, Graph, sketch_basis, sketches
from dsokr.decoders import EmbeddedOutputs, GraphSearch, Molecules, Neighbors
from dsokr.decoders.restricted import ELEMENTS, HYDROGEN, Restricted, list_forms, read_formula
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import WeisfeilerLehman
from dsokr.regressors import KernelRidge
from studies.data import molecules

VALENCES = dict(Molecules().valences)
SYMBOLS = {element.number: symbol for symbol, element in ELEMENTS.items()}
DOMAIN = Molecules(max_atoms=5)
KERNEL = WeisfeilerLehman(3, edge_labels=True).normalized() + WeisfeilerLehman(1, edge_labels=True)


def write_formula(graph: Graph) -> str:
    counts = Counter(SYMBOLS[label] for label in graph.labels)
    counts["H"] = sum(VALENCES[label] for label in graph.labels) - 2 * sum(order for *_, order in graph.edges)
    return "".join(f"{symbol}{counts[symbol]}" for symbol in sorted(counts) if counts[symbol])


def all_molecules(labels: tuple[int, ...], bonds: int) -> list[Graph]:
    """All connected molecules of these atoms whose bond orders add up to ``bonds``, once each, by brute force."""
    n, found = len(labels), {}
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    same = [order for order in permutations(range(n)) if [labels[i] for i in order] == list(labels)]

    def extend(orders: list[int], free: list[int], left: int) -> None:
        if len(orders) == len(pairs):
            if left == 0 and is_connected(n, pairs, orders):
                table = dict(zip(pairs, orders, strict=True))
                forms = (tuple(table[min(a, b), max(a, b)] for i, j in pairs for a, b in [(o[i], o[j])]) for o in same)
                key = max(forms)
                found[key] = Graph(labels, tuple((*pair, o) for pair, o in zip(pairs, key, strict=True) if o))
            return
        i, j = pairs[len(orders)]
        for order in range(min(3, left, free[i], free[j]) + 1):
            rest = list(free)
            rest[i] -= order
            rest[j] -= order
            extend([*orders, order], rest, left - order)

    extend([], [VALENCES[label] for label in labels], bonds)
    return list(found.values())


def is_connected(n: int, pairs: list[tuple[int, int]], orders: list[int]) -> bool:
    parts = list(range(n))
    for (i, j), order in zip(pairs, orders, strict=True):
        if order:
            parts = [parts[i] if part == parts[j] else part for part in parts]
    return len(set(parts)) == 1


FORMULAS = ["C4H6O", "C3H5NO", "C2H4N2O", "C3H3FO", "C3H4O2", "C3H8O", "CHNO", "C2H2N2O", "C4H5N"]


@cache
def brute_force(formula: str) -> list[Graph]:
    counts = read_formula(formula)
    hydrogens = counts.pop(1, 0)
    labels = tuple(sorted(counts.elements()))
    return all_molecules(labels, (sum(VALENCES[label] for label in labels) - hydrogens) // 2)


@pytest.fixture(scope="module")
def task():
    known = molecules.generate(300, seed=0, max_atoms=5)
    basis = sketch_basis(KERNEL, known, sketches.SubSample(150), generator=Generator().manual_seed(0))
    return basis, EmbeddedOutputs(basis, known)


@pytest.mark.parametrize("formula", FORMULAS)
def test_every_molecule_of_a_formula_can_be_reached(formula):
    everything, limits = brute_force(formula), Restricted(DOMAIN, formula)
    assert (limits.measure(GraphBatch.of(everything)) == 0).all()
    reached = dict(zip(names(everything[:1]), everything[:1], strict=True))
    new = dict(reached)
    while new:
        near = list(limits.neighbors(GraphBatch.of(list(new.values()))).graphs)
        new = {name: graph for name, graph in zip(names(near), near, strict=True) if name not in reached}
        reached |= new
    assert reached.keys() == set(names(everything))


def names(graphs: list[Graph]) -> list[tuple]:
    """Texts that differ for all molecules of five atoms."""
    return [tuple(row) for row in WeisfeilerLehman(5, edge_labels=True).features(GraphBatch.of(graphs)).rows()]


@pytest.mark.parametrize(("formula", "rule"), list(zip(FORMULAS, cycle(["kernel", "cosine"]), strict=False)))
def test_the_best_of_all_molecules_of_a_formula(task, formula, rule):
    basis, known = task
    everything = brute_force(formula)
    z = basis.embed(everything)
    z = z + 0.3 * z.std() * torch.randn(z.shape, generator=Generator().manual_seed(1), dtype=z.dtype)
    found = GraphSearch(DOMAIN, rule, formula=formula).decode(basis, z, known)
    assert {write_formula(graph) for graph in found.outputs} == {write_formula(everything[0])}
    best = basis.score(z, everything, rule).max(dim=1).values
    assert (found.scores <= best + 1e-4).all() and (found.scores >= best - 1e-4).double().mean() > 0.9
    torch.testing.assert_close(found.scores, basis.score(z, found.outputs, rule).diagonal())


def test_all_of_the_k_best_have_the_formula(task):
    basis, known = task
    everything = brute_force("C3H8O")  # three molecules
    for found in GraphSearch(DOMAIN, "kernel", formula="C3H8O").best(basis, basis.embed(everything), known, k=10):
        assert sorted(names(found.outputs)) == sorted(names(everything))
        assert (found.scores.diff() <= 0).all()


def test_nothing_known_has_the_formula(task):
    basis, _ = task
    known = EmbeddedOutputs(basis, [Graph((6, 6), ((0, 1, 1),)), Graph((8,))])
    everything = brute_force("C2H4N2O")
    found = GraphSearch(DOMAIN, "kernel", formula="C2H4N2O").decode(basis, basis.embed(everything), known)
    assert {write_formula(graph) for graph in found.outputs} == {write_formula(everything[0])}


def weigh(formula: str) -> float:
    masses = {element.number: element.mass for element in ELEMENTS.values()} | {1: HYDROGEN}
    return sum(number * masses[atom] for atom, number in read_formula(formula).items())


def test_masses(task):
    """C2H6O, CH2O2, CH6N2 and N2H2O weigh about the same; a wide window has them all, a narrow one has two."""
    basis, known = task
    formulas = ["C2H6O", "CH2O2", "CH6N2", "H2N2O"]
    everything = [graph for formula in formulas for graph in brute_force(formula)]
    z = basis.embed(everything)
    for low, high in ((45.9, 46.1), (46.02, 46.043)):
        found = GraphSearch(DOMAIN, "cosine", mass=(low, high)).decode(basis, z, known)
        allowed = [graph for graph in everything if low <= weigh(write_formula(graph)) <= high]
        assert all(low <= weigh(write_formula(graph)) <= high for graph in found.outputs)
        best = basis.score(z, allowed, "cosine").max(dim=1).values
        assert (found.scores >= best - 1e-4).double().mean() > 0.9
    assert len(Restricted(DOMAIN, mass=(45.9, 46.1)).compositions) >= 4
    both = GraphSearch(DOMAIN, "cosine", formula="C2H6O", mass=(46, 46.1)).decode(basis, z, known)
    assert {write_formula(graph) for graph in both.outputs} == {"C2H6O1"}


RING = Graph((6, 6, 8), ((0, 1, 1), (0, 2, 1), (1, 2, 1)))


def test_substructures(task):
    basis, known = task
    carbonyl = Graph((6, 8), ((0, 1, 2),))
    networkx = pytest.importorskip("networkx", reason="needs networkx, to compare with")
    from dsokr.graphs import to_networkx

    def has(graph, pattern):
        same = networkx.isomorphism.GraphMatcher(
            to_networkx(graph),
            to_networkx(pattern),
            node_match=lambda a, b: a["label"] == b["label"],
            edge_match=lambda a, b: a["label"] == b["label"],
        )
        return same.subgraph_is_monomorphic()

    some = molecules.generate(100, seed=4, max_atoms=7)
    for pattern in (RING, carbonyl, Graph((6, 6, 6, 7), ((0, 1, 1), (1, 2, 1), (1, 3, 1)))):
        far = Restricted(DOMAIN, contains=(pattern,)).measure(GraphBatch.of(some))
        assert [not one for one in far] == [has(graph, pattern) for graph in some] and 0 < (far == 0).sum() < 100
    z = basis.embed(molecules.generate(40, seed=5, max_atoms=5))
    for given in (RING, [RING], (carbonyl, Graph((7,)))):
        found = GraphSearch(DOMAIN, "kernel", contains=given).decode(basis, z, known).outputs
        patterns = (given,) if isinstance(given, Graph) else given
        assert all(has(graph, pattern) for graph in found for pattern in patterns)
    found = GraphSearch(DOMAIN, "kernel", contains=RING, formula="C3H6O2").decode(basis, z, known).outputs
    assert all(has(graph, RING) and write_formula(graph) == "C3H6O2" for graph in found)


def test_smiles_and_kekule_forms(task):
    chem = pytest.importorskip("dsokr.chem", reason="needs the extra chem")
    xylene = chem.graph("Cc1ccccc1C")
    turned = Graph(
        xylene.labels, tuple((i, j, 3 - o if min(i, j) > 0 and max(i, j) < 7 else o) for i, j, o in xylene.edges)
    )
    assert turned != xylene and {xylene, turned} == set(list_forms(xylene))
    limits = Restricted(Molecules(max_atoms=9), contains=("Cc1ccccc1C",))
    others = chem.graphs(["Cc1cccc(C)c1", "CC1=CCCCC1C"])
    assert (limits.measure(GraphBatch.of([xylene, turned, *others])) > 0).tolist() == [False, False, True, True]
    some = chem.graphs(["c1ccccc1", "C=CC=C", "c1ccc2ccccc2c1", "O=C=O", "C#CC=O"])
    assert [len(list_forms(graph)) for graph in some] == [2, 1, 3, 1, 1]
    basis, known = task
    z = basis.embed(chem.graphs(["CCO", "CC#N"]))
    search = GraphSearch(Molecules(max_atoms=8), "kernel", contains="c1ccccc1", formula="C7H8O")
    for found in search.best(basis, z, known, k=4):
        texts = chem.many_smiles(found.outputs)
        assert len(texts) > 1 and (chem.matches(texts, "c1ccccc1") > 0).all()


def test_formulas_and_masses_are_those_of_rdkit():
    chem = pytest.importorskip("dsokr.chem", reason="needs the extra chem")
    from rdkit import Chem
    from rdkit.Chem import Descriptors, rdMolDescriptors

    texts = ["c1ccccc1O", "C[N+](=O)[O-]", "[C-]#[N+]C", "CS(=O)(=O)N", "CS", "OP(=O)(O)O", "NCC(=O)O", "CP", "CI"]
    texts += ["[NH3+]CC(=O)[O-]", "BrCCl", "C[Si](C)(C)C", "OB(O)C", "C[S@](=O)CC", "FC(F)(F)F", "CN=[N+]=[N-]"]
    domain = Molecules(tuple((e.number, e.valences[-1]) for e in ELEMENTS.values()), max_atoms=12)
    for text, graph in zip(texts, chem.graphs(texts), strict=True):
        mol = Chem.MolFromSmiles(text)
        formula, mass = rdMolDescriptors.CalcMolFormula(mol), Descriptors.ExactMolWt(mol)
        limits = Restricted(domain, formula)
        assert limits.measure(GraphBatch.of([graph])) == 0, text
        assert Restricted(domain, formula, (mass - 1e-5, mass + 1e-5)).measure(GraphBatch.of([graph])) == 0, text
        assert limits.measure(GraphBatch.of([Graph((6,) * 11)])) >= 1


def test_one_formula_for_each_input_of_a_model(task):
    everything = molecules.generate(150, seed=0, max_atoms=5)
    X = np.stack([np.bincount(graph.labels, minlength=10) for graph in everything]).astype(float)
    model = DSOKR(KERNEL, regressor=KernelRidge(), decoder=GraphSearch(DOMAIN, "kernel"), random_state=0)
    model.fit(X[:100], everything[:100])
    for x, truth in zip(X[100:110], everything[100:110], strict=True):
        decoder = replace(model.decoder_, formula=write_formula(truth))
        (found,) = decoder.decode(model.basis_, model.coefficients(x[None]), model.known_).outputs
        assert write_formula(found) == write_formula(truth)
    model.set_params(decoder__formula="C4H10").fit(X[:100], everything[:100])
    assert {write_formula(graph) for graph in model.predict(X[:5])} == {"C4H10"}


def test_a_restricted_search_is_saved(tmp_path, task):
    everything = molecules.generate(60, seed=0, max_atoms=5)
    X = np.stack([np.bincount(graph.labels, minlength=10) for graph in everything]).astype(float)
    decoder = GraphSearch(DOMAIN, "kernel", formula="C3H8O", mass=(60, 61), contains=("CO",))
    model = DSOKR(KERNEL, regressor=KernelRidge(), decoder=decoder, random_state=0).fit(X, everything)
    model.save(tmp_path / "model")
    assert DSOKR.load(tmp_path / "model").decoder_ == decoder


@dataclass(frozen=True)
class Nowhere:
    """A domain of one's own."""

    def neighbors(self, graphs: GraphBatch) -> Neighbors:
        return Neighbors(graphs[:0], np.zeros(0, np.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formula": "6C"}, "A formula is written like C6H6O, without charges or brackets. Got '6C'."),
        ({"formula": "C2H5Xx"}, "The elements of formulas are H, B, C, .*Got 'Xx' in 'C2H5Xx'."),
        ({"formula": "CH3Cl"}, "CH3Cl has elements that the domain has not: Molecules"),
        (
            {"formula": "C6H6"},
            "C6H6 has 6 atoms other than hydrogen. There must be 1 to 5, as Molecules.max_atoms says.",
        ),
        ({"formula": "H2"}, "H2 has 0 atoms other than hydrogen"),
        ({"formula": "C3H9"}, "No molecule has the formula C3H9: its hydrogens do not fit its valences."),
        ({"formula": "C3H10"}, "No molecule has the formula C3H10"),
        ({"contains": (5,)}, "GraphSearch.contains must be SMILES or graphs with an atom. Got 5."),
        ({"contains": Graph(())}, "GraphSearch.contains must be SMILES or graphs with an atom. Got Graph"),
        ({"mass": (58,)}, "GraphSearch.mass must be a lowest and a highest mass. Got"),
        ({"mass": (2, 1)}, "GraphSearch.mass must be a lowest and a highest mass. Got"),
        ({"mass": (21.0, 21.5)}, "No molecule of the domain has a mass from 21 to 21.5."),
        ({"formula": "CH4", "mass": (17, 18)}, "No molecule of the domain has the formula CH4, a mass from 17 to 18."),
        (
            {"mass": (1, 2000), "moves": Molecules(tuple((e.number, 4) for e in ELEMENTS.values()), 30)},
            "More than 1,000,000",
        ),
        (
            {"mass": (1, 20), "moves": Molecules(((6, 4), (34, 2)), 5)},
            "The masses of B, C, .* are known. Got the domain",
        ),
    ],
)
def test_refuses(task, options, message):
    basis, known = task
    with pytest.raises(InputError, match=message):
        GraphSearch(**{"moves": DOMAIN, "rule": "kernel", **options}).decode(basis, basis.embed([RING]), known)


def test_refuses_what_cannot_be_found(task):
    basis, known = task
    search = GraphSearch(DOMAIN, "kernel", contains=Graph((6,) * 6, tuple((i, i + 1, 1) for i in range(5))))
    with pytest.raises(
        InputError, match="found no molecule with the substructure .* for row 0. Raise GraphSearch.budget"
    ):
        search.decode(basis, basis.embed([RING]), known)
    with pytest.raises(InputError, match="Formulas, masses and substructures need the domain Molecules. Got Nowhere"):
        GraphSearch(Nowhere(), formula="CH4")
    with pytest.raises(InputError, match="GraphSearch.formula must be a text, or None. Got 5"):
        GraphSearch(formula=5)
