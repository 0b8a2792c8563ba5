"""Pieces of graphs against NetworkX, their estimates against exact scores, and the search of larger molecules."""

import time

import numpy as np
import pytest
import torch
from torch import Generator

from dsokr import decoders, sketch_basis, sketches
from dsokr.decoders import Candidates, EmbeddedOutputs, GraphSearch, LabelledGraphs, Molecules
from dsokr.decoders.base import bound_scores
from dsokr.decoders.crossover import Crossover
from dsokr.decoders.objective import DIRECTIONS, Objective
from dsokr.decoders.pieces import NOTHING, cut, name_stars, root_at_all_nodes
from dsokr.errors import InputError
from dsokr.graphs import Graph, GraphBatch, to_networkx
from dsokr.kernels import ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.rules import RULES
from dsokr.saving import parse_expression, write_expression
from studies.data import molecules

nx = pytest.importorskip("networkx")

WL = WeisfeilerLehman(2, edge_labels=True).normalized()


@pytest.fixture(scope="module")
def graphs() -> GraphBatch:
    return GraphBatch.of(molecules.generate(60, seed=1, max_atoms=9))


def test_pieces_are_the_two_sides_of_every_bridge(graphs):
    pieces = cut(graphs)
    for at, graph in enumerate(graphs):
        network, expected = to_networkx(graph), set()
        for i, j in list(nx.bridges(network)):
            network.remove_edge(i, j)
            label = next(e for a, b, e in graph.edges if {a, b} == {i, j})
            expected |= {(root, label, frozenset(nx.node_connected_component(network, root))) for root in (i, j)}
            network.add_edge(i, j)
        first, found = graphs.offsets[at], set()
        for k in np.flatnonzero(pieces.owners == at):
            own = pieces.nodes[pieces.starts[k] : pieces.starts[k + 1]] - first
            found.add((own[0], pieces.labels[k], frozenset(own.tolist())))
        assert found == expected


def test_two_sides_joined_are_the_graph(graphs):
    pieces = cut(graphs)
    sizes = np.diff(graphs.offsets)[pieces.owners]
    a, b = _sides(pieces, graphs)
    made = pieces.join(pieces, a, b)
    assert (np.diff(made.offsets) == sizes[a]).all()
    assert (edit_distance(made, graphs[pieces.owners[a]]) == 0).all()


def _sides(pieces, graphs) -> tuple[np.ndarray, np.ndarray]:
    """The positions of pieces and of their other sides."""
    sets = [frozenset(pieces.nodes[a:b].tolist()) for a, b in zip(pieces.starts, pieces.starts[1:], strict=False)]
    position = {own: k for k, own in enumerate(sets)}
    whole = [frozenset(range(graphs.offsets[g], graphs.offsets[g + 1])) for g in pieces.owners]
    return np.arange(len(sets)), np.array([position[all_ - own] for all_, own in zip(whole, sets, strict=True)])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kernel", [WL, WL + 0.01 * ShortestPath(), WL + WeisfeilerLehman(1).normalized()], ids=str)
def test_the_estimate_of_two_sides_is_the_score_of_the_graph(kernel, rule, graphs):
    basis = sketch_basis(kernel, graphs, sketches.SubSample(40), generator=Generator().manual_seed(0))
    z = basis.embed(graphs[:3]) + 0.01
    objective = Objective.of(basis, rule, z).select(0, 3)
    some, owners = graphs[:3], np.arange(3)
    crossover = Crossover(objective, some, owners, Molecules())
    pieces = cut(some)
    a, b = _sides(pieces, some)
    vectors, (scores, _) = crossover._describe(pieces, owners), objective.score(owners, some)
    for i, j in zip(a, b, strict=True):
        fit = np.ones((1, 1), bool)
        estimate = crossover._estimate(pieces.owners[i], vectors[i : i + 1], vectors[j : j + 1], fit)[0, 0]
        assert estimate == pytest.approx(scores[pieces.owners[i]], abs=2e-3 if kernel is not WL else 1e-4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [10, 60])
def test_scores_are_those_of_the_rule(rule, size, graphs):
    basis = sketch_basis(WL, graphs, sketches.SubSample(size), generator=Generator().manual_seed(0))
    z, owners = basis.embed(graphs[:5]) + 0.02, np.arange(len(graphs)) % 5
    objective = Objective.of(basis, rule, z).select(0, 5)
    expected = basis.score(z, graphs, rule)[owners, np.arange(len(graphs))].numpy()
    found, _ = objective.score(owners, graphs)
    if rule == "kernel" or basis.dim <= DIRECTIONS:
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:  # random directions: distances are right to a quarter, and on average
        ratio = found / expected if rule == "projected" else 1 + found - expected
        assert abs(ratio.mean() - 1) < 0.15 and ratio.std() < 0.5
    if rule != "kernel":
        np.testing.assert_allclose(objective.score_exactly(owners, graphs), expected, atol=1e-9)


def test_no_score_is_above_its_bound_and_reaching_it_is_a_proof(graphs):
    basis = sketch_basis(WL, graphs, sketches.SubSample(30), generator=Generator().manual_seed(0))
    known, generator = EmbeddedOutputs(basis, graphs), Generator().manual_seed(0)
    z = torch.randn(50, basis.dim, generator=generator, dtype=torch.float64) * 0.3
    for rule in RULES:
        assert (basis.score(z, graphs, rule).amax(dim=1) <= bound_scores(z, rule)).all()
        found = Candidates(rule).decode(basis, z, known)
        assert not Candidates(rule).prove(basis, z, found.scores).any()
        own = basis.embed(graphs)
        proved = Candidates(rule).prove(basis, own, Candidates(rule).decode(basis, own, known).scores)
        assert proved.all() if rule != "kernel" else (proved == (basis.residual(graphs) < 1e-9)).all()


def test_graphs_like_others_have_their_stars(graphs):
    domain = LabelledGraphs.like(graphs, max_nodes=12)
    names = set(name_stars(graphs).tolist())
    assert set(domain.star_names.tolist()) == names
    near = domain.neighbors(graphs[:10]).graphs
    assert len(near) > 100 and set(name_stars(near).tolist()) <= names
    pieces = root_at_all_nodes(graphs[:10]).open(np.array(domain.edge_labels), domain.star_names)
    methane = GraphBatch.of([Graph((6,))])
    for at, label in zip(range(len(pieces.labels)), pieces.labels, strict=True):
        other = root_at_all_nodes(methane)._replace(labels=np.array([label]))
        made = pieces.join(other, np.array([at]), np.array([0]))
        assert name_stars(made)[0] in names and len(made.labels) == pieces.starts[at + 1] - pieces.starts[at] + 1
    alone = cut(graphs[:10])
    alone = alone._replace(labels=np.full(len(alone.labels), NOTHING)).open(np.array([NOTHING]), domain.star_names)
    assert 0 < len(alone.labels) < len(cut(graphs[:10]).labels)


def test_a_domain_learned_from_graphs_is_saved(graphs):
    search = GraphSearch(LabelledGraphs.like(graphs), "cosine", pieces=3, seconds=1.5)
    assert parse_expression(write_expression(search, decoders), decoders) == search


@pytest.fixture(scope="module")
def task():
    everything = GraphBatch.of(molecules.generate(700, seed=0, max_atoms=14))
    sizes = np.diff(everything.offsets)
    known, others = everything[:600], everything[600 + np.flatnonzero(sizes[600:] >= 11)]
    basis = sketch_basis(WL, known, sketches.SubSample(300), generator=Generator().manual_seed(0))
    return basis, known, others


@pytest.mark.parametrize("like", [False, True])
def test_pieces_help_to_find_larger_molecules(task, like):
    basis, known, others = task
    domain = LabelledGraphs.like(known) if like else Molecules(max_atoms=14)
    z, embedded = basis.embed(others), EmbeddedOutputs(basis, known)
    search = GraphSearch(domain, "projected", beam=8, budget=8_000, pieces=24)
    found = search.decode(basis, z, embedded)
    proved = search.prove(basis, z, found.scores)
    alone = GraphSearch(domain, "projected", beam=8, budget=8_000).decode(basis, z, embedded)
    assert found.scores.mean() > alone.scores.mean() and proved.double().mean() > 0.25
    assert (found.scores >= Candidates("projected").decode(basis, z, embedded).scores - 1e-12).all()
    assert (np.diff(GraphBatch.of(found.outputs).offsets) <= 14).all()
    best = search.best(basis, z[:5], embedded, 10)
    assert all(len(one.scores) == 10 and (one.scores.diff() <= 1e-12).all() for one in best)


def test_time_is_limited_and_inputs_are_spread_over_threads(task):
    basis, known, others = task
    z, embedded = basis.embed(others), EmbeddedOutputs(basis, known)
    search = GraphSearch(Molecules(max_atoms=14), "projected", budget=10**9, beam=200, seconds=0.02)
    search.decode(basis, z[:1], embedded)
    start = time.monotonic()
    found = search.decode(basis, z[:10], embedded)
    assert time.monotonic() - start < 10
    assert (found.scores >= Candidates("projected").decode(basis, z[:10], embedded).scores - 1e-12).all()
    free = GraphSearch(Molecules(max_atoms=14), "projected", pieces=8)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        several = free.decode(basis, z[:7], embedded)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(several.scores, free.decode(basis, z[:7], embedded).scores)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GraphSearch(pieces=-1), "GraphSearch.pieces must be an integer of at least 0"),
        (lambda: GraphSearch(seconds=0.0), "GraphSearch.seconds must be"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(InputError, match=message):
        call()
