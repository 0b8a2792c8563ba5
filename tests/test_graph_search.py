"""The search of all molecules: its moves, its scores, and what it finds."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Generator

from dsokr import DSOKR, Graph, kernels, sketch_basis, sketches
from dsokr.decoders import Candidates, EmbeddedOutputs, GraphSearch, LabelledGraphs, Molecules, Moves, Neighbors
from dsokr.decoders.graphs import Pool
from dsokr.decoders.objective import Objective
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import NSPD, ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.regressors import KernelRidge
from dsokr.rules import RULES
from implementations import graphs as some_graphs
from studies.data import molecules
from studies.data.coloring import draw_maps

VALENCES = dict(Molecules().valences)
WL = WeisfeilerLehman(2, edge_labels=True)
SUM = WeisfeilerLehman(3).normalized() + 2.0 * WL.normalized() + 0.5 * ShortestPath() + WeisfeilerLehman(1)
KERNELS = [WL, WL.normalized(), SUM, NSPD(1, 2).normalized(), (WL + ShortestPath()).normalized()]


def valence_sums(graph: Graph) -> list[int]:
    return [sum(order for i, j, order in graph.edges if v in (i, j)) for v in range(len(graph.labels))]


def is_connected(graph: Graph) -> bool:
    seen, todo = {0}, [0]
    while todo:
        v = todo.pop()
        for i, j, _ in graph.edges:
            if v in (i, j) and (other := i + j - v) not in seen:
                seen.add(other)
                todo.append(other)
    return len(seen) == len(graph.labels)


@pytest.fixture(scope="module")
def parents() -> GraphBatch:
    return GraphBatch.of(molecules.generate(40, seed=3, max_atoms=7))


@pytest.fixture(scope="module")
def near(parents) -> Neighbors:
    return Molecules(max_atoms=7).neighbors(parents)


def test_neighbours_are_molecules(parents, near):
    for graph in near.graphs:
        assert is_connected(graph) and 1 <= len(graph.labels) <= 7
        assert all(total <= VALENCES[label] for label, total in zip(graph.labels, valence_sums(graph), strict=True))
    assert set(near.origins) == set(range(len(parents)))


def test_all_small_edits_are_among_the_neighbours():
    """Every valid molecule at edit distance one, from all molecules of up to three atoms, is found."""
    everything = all_molecules(3)
    domain = Molecules(valences=((6, 4), (8, 2)), max_atoms=3)
    for graph in everything:
        found = domain.neighbors(GraphBatch.of([graph])).graphs
        expected = [other for other in everything if edit_distance(graph, [other]).item() == 1]
        for other in expected:
            assert (edit_distance(other, found) == 0).any(), (graph, other)


def all_molecules(most: int) -> list[Graph]:
    """All connected molecules of carbon and oxygen of up to ``most`` atoms, once each, by brute force."""
    found: list[Graph] = []
    for n in range(1, most + 1):
        pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
        for labels in np.ndindex(*(2,) * n):
            for orders in np.ndindex(*(4,) * len(pairs)):
                edges = tuple((i, j, o) for (i, j), o in zip(pairs, orders, strict=True) if o)
                graph = Graph(tuple((6, 8)[x] for x in labels), edges)
                valid = all(t <= VALENCES[x] for x, t in zip(graph.labels, valence_sums(graph), strict=True))
                if valid and is_connected(graph) and not (found and (edit_distance(graph, found) == 0).any()):
                    found.append(graph)
    return found


def test_every_molecule_can_be_reached():
    domain = Molecules(valences=((6, 4), (8, 2)), max_atoms=3)
    everything = all_molecules(3)
    reached = [everything[0]]
    for graph in reached:
        for other in domain.neighbors(GraphBatch.of([graph])).graphs:
            if not (edit_distance(other, reached) == 0).any():
                reached.append(other)
    assert len(reached) == len(everything)


def test_rings_turn_as_a_whole():
    bonds = ((0, 1, 2), (1, 2, 1), (2, 3, 2), (3, 4, 1), (4, 5, 2), (0, 5, 1), (0, 6, 1), (1, 7, 1))
    xylene = Graph((6,) * 6 + (7, 8), bonds)
    turned = Graph(xylene.labels, tuple((i, j, 3 - o if max(i, j) < 6 else o) for i, j, o in bonds))
    assert edit_distance(xylene, [turned]).item() > 1
    assert (edit_distance(turned, Molecules(max_atoms=8).neighbors(GraphBatch.of([xylene])).graphs) == 0).any()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_scores_are_those_of_the_basis(kernel, parents, near):
    anchors = GraphBatch.of(molecules.generate(30, seed=5, max_atoms=7))
    basis = sketch_basis(kernel, anchors, sketches.SubSample(20), generator=Generator().manual_seed(0))
    z = basis.embed(parents) + 0.1
    objective = Objective.of(basis, "kernel", z).select(0, len(z))
    scores, names = objective.score(near.origins, near.graphs)
    truth = basis.score(z, near.graphs)[near.origins, np.arange(len(near.origins))].numpy()
    np.testing.assert_allclose(scores, truth, rtol=1e-5, atol=1e-5)  # weights are in single precision
    features = [*zip(*(term.kernel.features(near.graphs).rows() for term in objective.terms), strict=True)]
    by_names = dict(zip(map(bytes, names), features, strict=True))
    assert len(by_names) == len(set(features)) < len(names)  # names are equal where features are
    assert [by_names[bytes(name)] for name in names] == features


SOME = GraphBatch.of(molecules.generate(60, seed=7, max_atoms=8))
MAPS = draw_maps(60, (4, 6), seed=0).graphs
DOMAINS = {
    "molecules": (Molecules(max_atoms=8), SOME),
    "stars": (LabelledGraphs.like(SOME), SOME),
    "any": (LabelledGraphs((6, 7, 8, 9), (3, 0, 1, 2), max_nodes=8, connected=False), SOME),
    "maps": (LabelledGraphs((0, 1, 2, 3), max_nodes=6, planar=True, proper=True), MAPS),
}
COLOURS = WeisfeilerLehman(3).normalized() + 0.5 * WL + WeisfeilerLehman(1, edge_labels=True).normalized()


def list_graphs(objective: Objective, moves: Moves, graphs: GraphBatch, owners: np.ndarray) -> Pool:
    """What is one edit away, as graphs scored in full."""
    near = moves.neighbors(graphs)
    return Pool.of(objective, near.graphs, owners[near.origins])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("edge_labels", [False, True])
def test_edits_score_as_the_graphs_that_they_lead_to(domain, edge_labels, rule):
    moves, graphs = DOMAINS[domain]
    kernel = sum((WeisfeilerLehman(t, edge_labels).normalized() for t in range(1, 4)), WeisfeilerLehman(0, edge_labels))
    basis = sketch_basis(kernel, graphs[:50], sketches.SubSample(40), generator=Generator().manual_seed(0))
    parents = graphs[40:]
    objective = Objective.of(basis, rule, basis.embed(parents) + 0.1).select(0, len(parents))
    owners = np.random.default_rng(0).permutation(len(parents))
    edits = moves.list_edits(parents)
    scores, names = objective.score_edits(owners, edits)
    expected = objective.score(owners[edits.origins], moves.neighbors(parents).graphs)
    np.testing.assert_allclose(scores, expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(names, expected[1])
    assert len(np.unique(names, axis=0)) > 500


@pytest.mark.parametrize(("rule", "pieces"), [("kernel", 0), ("projected", 0), ("kernel", 8), ("cosine", 8)])
@pytest.mark.parametrize("domain", DOMAINS)
def test_edits_lead_the_search_where_their_graphs_do(domain, rule, pieces, monkeypatch):
    (moves, graphs), search = DOMAINS[domain], partial(GraphSearch, rule=rule, beam=5, budget=400, pieces=pieces)
    for kernel in (COLOURS, SUM):
        basis = sketch_basis(kernel, graphs[:50], sketches.SubSample(40), generator=Generator().manual_seed(0))
        z, known = basis.embed(graphs[50:]), EmbeddedOutputs(basis, graphs[:50])
        found = search(moves).best(basis, z, known, 3)
        with monkeypatch.context() as patch:
            patch.setattr("dsokr.decoders.graphs._edit", list_graphs)
            expected = search(moves).best(basis, z, known, 3)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.scores, b.scores)
            assert list(a.outputs) == list(b.outputs)


@pytest.fixture(scope="module")
def task():
    """Known molecules and others: true coordinates of the others in a basis of the known."""
    everything = molecules.generate(400, seed=0, max_atoms=6)
    known, others = everything[:300], everything[300:]
    basis = sketch_basis(SUM, known, sketches.SubSample(200), generator=Generator().manual_seed(0))
    return basis, known, others


@pytest.mark.parametrize("rule", RULES)
def test_finds_molecules_that_are_not_in_the_list(task, rule):
    basis, known, others = task
    z, candidates = basis.embed(others), EmbeddedOutputs(basis, known)
    listed = Candidates(rule).decode(basis, z, candidates)
    found = GraphSearch(Molecules(max_atoms=6), rule=rule).decode(basis, z, candidates)
    assert isinstance(found.outputs, list)
    assert (found.scores >= listed.scores - 1e-12).all()
    torch.testing.assert_close(found.scores, basis.score(z, found.outputs, rule).diagonal())
    assert (edit_distance(listed.outputs, others) == 0).double().mean() < 0.05
    truth = basis.score(z, others, rule).diagonal()
    assert (found.scores >= truth - 1e-6).double().mean() > 0.95  # by the paper's rule, others may score better
    assert (edit_distance(found.outputs, others) == 0).double().mean() > (0.6 if rule == "kernel" else 0.9)


def test_never_below_the_best_candidate_whatever_the_coefficients(task):
    basis, known, others = task
    z = basis.embed(others)
    z = z + 0.5 * z.std() * torch.randn(z.shape, generator=Generator().manual_seed(1), dtype=z.dtype)
    candidates = EmbeddedOutputs(basis, known)
    for rule in RULES:
        for budget in (1, 50):
            search = GraphSearch(Molecules(max_atoms=6), rule=rule, starts=1, beam=1, budget=budget)
            listed = Candidates(rule).decode(basis, z, candidates)
            assert (search.decode(basis, z, candidates).scores >= listed.scores - 1e-12).all()


def test_more_budget_scores_no_less_and_the_same_twice(task):
    basis, known, others = task
    z = basis.embed(others) * 0.9
    candidates = EmbeddedOutputs(basis, GraphBatch.of(known))
    small, large, again = (
        GraphSearch(Molecules(max_atoms=6), rule="kernel", beam=4, budget=budget).decode(basis, z, candidates)
        for budget in (200, 2000, 2000)
    )
    assert (large.scores >= small.scores - 1e-12).all() and large.scores.sum() > small.scores.sum()
    assert isinstance(large.outputs, GraphBatch) and list(large.outputs) == list(again.outputs)


@dataclass(frozen=True)
class Relabelling:
    """A domain of one's own: rings of five nodes, labelled 0 to 2; an edit changes one label."""

    def neighbors(self, graphs: GraphBatch) -> Neighbors:
        made, origins = [], []
        for origin, graph in enumerate(graphs):
            for v in range(len(graph.labels)):
                for label in range(3):
                    if label != graph.labels[v]:
                        labels = (*graph.labels[:v], label, *graph.labels[v + 1 :])
                        made.append(replace(graph, labels=labels))
                        origins.append(origin)
        return Neighbors(GraphBatch.of(made), np.array(origins))


def test_another_domain_brings_its_own_moves():
    ring = tuple((i, (i + 1) % 5, 1) if i < 4 else (0, 4, 1) for i in range(5))
    rings = [Graph(tuple(int(x) for x in labels), ring) for labels in np.ndindex(*(3,) * 5)]
    rng = np.random.default_rng(0)
    order = rng.permutation(len(rings))
    known, others = [rings[i] for i in order[:60]], [rings[i] for i in order[60:]]
    basis = sketch_basis(WL, known, sketches.Full(), generator=Generator())
    z = basis.embed(others)
    search = GraphSearch(Relabelling(), rule="kernel", beam=20, starts=5)
    found = search.decode(basis, z, EmbeddedOutputs(basis, known))
    best = basis.score(z, rings).max(dim=1).values  # brute force over the whole domain
    assert (found.scores >= best - 1e-4).double().mean() > 0.95


def test_where_there_is_nowhere_to_go():
    """A domain of a single molecule, and molecules that a normalised kernel is undefined for."""
    carbon, bond = Graph((6,)), Graph((6, 6), ((0, 1, 1),))
    kernel = WL.normalized() + ShortestPath()
    basis = sketch_basis(kernel, [carbon], sketches.Full(), generator=Generator())
    alone = GraphSearch(Molecules(valences=((6, 4),), max_atoms=1), rule="kernel")
    assert alone.decode(basis, basis.embed([carbon]), EmbeddedOutputs(basis, [carbon])).outputs == [carbon]
    basis = sketch_basis(ShortestPath().normalized(), [bond], sketches.Full(), generator=Generator())
    search = GraphSearch(Molecules(valences=((6, 4),), max_atoms=2), rule="kernel")  # one edit away is a single atom
    found = search.decode(basis, basis.embed([bond]), EmbeddedOutputs(basis, [bond]))
    assert len(found.outputs[0].labels) == 2


def test_validation_chooses_the_rule():
    graphs = some_graphs(80)
    X = np.stack([np.bincount(g.labels, minlength=10) for g in graphs]).astype(float)
    decoder = GraphSearch(Molecules(max_atoms=6), budget=300, beam=3)
    regressor = KernelRidge(kernels.Linear(), regularization=(1e-3, 1e-1))
    model = DSOKR(WL.normalized(), sketches.SubSample(40), regressor, decoder=decoder, random_state=0, device="cpu")
    model.fit(X[:60], graphs[:60], validation=(X[60:], graphs[60:]))
    assert model.decoder_ in decoder.alternatives() and len(decoder.alternatives()) == 3
    assert all(isinstance(graph, Graph) for graph in model.predict(X[:5]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: GraphSearch().check(kernels.Gaussian(1.0)),
            r"GraphSearch decodes bases of kernels on graphs.*Got Gaussian.*Candidates\(\)",
        ),
        (lambda: GraphSearch().scoring_rule(), "chosen by fit"),
        (lambda: GraphSearch(beam=0), "GraphSearch.beam must be an integer of at least 1. Got 0"),
        (lambda: GraphSearch(starts=0), "at least 1"),
        (lambda: GraphSearch(budget=0), "at least 1"),
        (lambda: GraphSearch(rule="best"), "GraphSearch.rule must be one of 'kernel'"),
        (lambda: GraphSearch(moves="molecules"), "GraphSearch.moves must be a Moves. Got"),
        (lambda: Molecules(valences=((6, 0),)), "positive valences"),
        (lambda: Molecules(max_atoms=0), "Molecules.max_atoms must be an integer of at least 1"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(InputError, match=message):
        call()
