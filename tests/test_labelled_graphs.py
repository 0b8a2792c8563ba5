"""The search of labelled graphs: its domain against all small graphs, planarity against NetworkX, and what it finds."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch
from torch import Generator

from dsokr import sketch_basis, sketches
from dsokr.decoders import EmbeddedOutputs, GraphSearch, LabelledGraphs
from dsokr.decoders.planarity import is_planar
from dsokr.errors import InputError
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.rules import RULES
from studies.data.coloring import draw_maps

nx = pytest.importorskip("networkx")

DOMAINS = [
    LabelledGraphs((0, 1), max_nodes=4),
    LabelledGraphs((0, 1), max_nodes=4, connected=False),
    LabelledGraphs((3,), (-1, 5), max_nodes=4),
    LabelledGraphs((2, 1), max_nodes=4, max_degree=(3, 1)),
    LabelledGraphs((0, 1, 2), max_nodes=4, proper=True),
]


def canonical(graph: Graph) -> tuple:
    """The same for isomorphic graphs, by brute force."""
    forms = []
    for order in permutations(range(len(graph.labels))):
        labels = tuple(label for _, label in sorted(zip(order, graph.labels, strict=True)))
        forms.append((labels, tuple(sorted((*sorted((order[i], order[j])), label) for i, j, label in graph.edges))))
    return min(forms)


def as_network(graph: Graph) -> "nx.Graph":
    made = nx.Graph([(i, j) for i, j, _ in graph.edges])
    made.add_nodes_from(range(len(graph.labels)))
    return made


def is_inside(domain: LabelledGraphs, graph: Graph) -> bool:
    network, labels = as_network(graph), graph.labels
    most = domain.max_degree or (len(labels),) * len(domain.labels)
    return (
        (nx.is_connected(network) or not domain.connected)
        and (not domain.planar or nx.check_planarity(network)[0])
        and (not domain.proper or all(labels[i] != labels[j] for i, j, _ in graph.edges))
        and all(network.degree[i] <= most[domain.labels.index(label)] for i, label in enumerate(labels))
    )


def all_graphs(domain: LabelledGraphs) -> dict[tuple, Graph]:
    """All graphs of a domain, once each, by brute force."""
    found = {}
    for n in range(1, domain.max_nodes + 1):
        pairs = list(combinations(range(n), 2))
        for labels in product(domain.labels, repeat=n):
            for edges in product((None, *domain.edge_labels), repeat=len(pairs)):
                kept = ((i, j, e) for (i, j), e in zip(pairs, edges, strict=True) if e is not None)
                graph = Graph(labels, tuple(kept))
                if is_inside(domain, graph):
                    found[canonical(graph)] = graph
    return found


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_edits_lead_to_all_graphs_of_the_domain_and_to_no_others(domain):
    everything = all_graphs(domain)
    first = Graph(domain.labels[:1])
    reached, waiting = {canonical(first)}, [first]
    while waiting:
        near = {canonical(graph) for graph in domain.neighbors(GraphBatch.of([waiting.pop()])).graphs}
        waiting += [everything[name] for name in near - reached]  # a graph outside the domain is no key
        reached |= near
    assert reached == set(everything)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_all_small_edits_are_among_the_neighbours(domain):
    everything = list(all_graphs(domain).values())
    for graph in everything[:: max(1, len(everything) // 25)]:
        near = {canonical(other) for other in domain.neighbors(GraphBatch.of([graph])).graphs}
        at_one = np.flatnonzero(edit_distance(graph, everything).numpy() == 1)
        assert all(canonical(everything[at]) in near for at in at_one)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_the_search_finds_the_five_best_of_all_small_graphs(domain):
    everything = list(all_graphs(domain).values())
    kernel = WeisfeilerLehman(2, edge_labels=True).normalized() + ShortestPath()
    order = np.random.default_rng(0).permutation(len(everything))
    known = [everything[i] for i in order[: len(order) // 3]]
    basis = sketch_basis(kernel, known, sketches.Full(), generator=Generator())
    z = torch.randn(20, basis.dim, generator=Generator().manual_seed(0), dtype=torch.float64)
    found = GraphSearch(domain, "kernel").best(basis, z, EmbeddedOutputs(basis, known), 5)
    best = basis.score(z, everything).sort(dim=1, descending=True).values[:, :5]
    torch.testing.assert_close(torch.stack([one.scores for one in found]), best, rtol=0, atol=1e-5)


def list_atlas(domain: LabelledGraphs) -> list[Graph]:
    """All graphs of a domain of up to seven nodes, once each, from the atlas of NetworkX with labels on the nodes."""
    found = []
    for network in nx.graph_atlas_g()[1:]:
        n = len(network)
        if n > domain.max_nodes:
            break
        edges = tuple((i, j, 1) for i, j in network.edges)
        symmetries = [
            [turn[i] for i in range(n)] for turn in nx.isomorphism.GraphMatcher(network, network).isomorphisms_iter()
        ]
        for labels in product(domain.labels, repeat=n):
            first = all(labels <= tuple(labels[i] for i in turn) for turn in symmetries)
            if first and is_inside(domain, graph := Graph(labels, edges)):
                found.append(graph)
    return found


def test_the_atlas_lists_the_graphs_that_brute_force_finds():
    for domain in DOMAINS[:2]:
        assert {canonical(graph) for graph in list_atlas(domain)} == all_graphs(domain).keys()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("domain", "pieces"),
    [
        (LabelledGraphs((0, 1), max_nodes=6), 0),
        (LabelledGraphs((0, 1), max_nodes=6), 16),
        (LabelledGraphs((0, 1), max_nodes=6, planar=True), 0),
        (LabelledGraphs((0, 1), max_nodes=6, max_degree=(3, 2)), 16),
        (LabelledGraphs((0, 1, 2), max_nodes=6, proper=True), 16),
    ],
    ids=str,
)
def test_the_search_agrees_with_all_graphs_of_up_to_six_nodes(domain, rule, pieces):
    everything = list_atlas(domain)
    kernel = WeisfeilerLehman(2).normalized() + 0.01 * ShortestPath()
    order = np.random.default_rng(0).permutation(len(everything))
    known = [everything[i] for i in order[:200]]
    basis = sketch_basis(kernel, known, sketches.Full(), generator=Generator())
    z = basis.embed([everything[i] for i in order[200:300]])
    noise = torch.randn(z.shape, generator=Generator().manual_seed(0), dtype=z.dtype)
    z[50:] += 0.3 * noise[50:] / z.shape[1] ** 0.5
    search = GraphSearch(domain, rule, beam=16, budget=20_000, pieces=pieces)
    found = search.decode(basis, z, EmbeddedOutputs(basis, known))
    best = basis.score(z, everything, rule).amax(dim=1)
    assert (found.scores <= best + 1e-9).all()
    assert (found.scores >= best - 1e-6).double().mean() >= 0.99, (found.scores < best - 1e-6).sum()
    proved = search.prove(basis, z, found.scores)
    assert (found.scores[proved] >= best[proved] - 1e-6).all() and (rule == "kernel" or proved[:50].all())


def test_planar_is_what_networkx_says():
    rng, counts = np.random.default_rng(0), [0, 0]
    for _ in range(600):
        n = rng.integers(4, 13)
        matrix = np.triu(rng.random((n, n)) < rng.uniform(0.2, 0.6), 1).astype(np.int64)
        matrix += matrix.T + np.eye(n, dtype=np.int64)  # labels are on the diagonal
        expected = nx.check_planarity(nx.from_numpy_array(matrix - np.eye(n)))[0]
        assert is_planar(matrix) == expected
        counts[expected] += 1
    assert min(counts) > 100


@pytest.mark.parametrize(
    ("network", "planar"),
    [
        (nx.complete_graph(4), True),
        (nx.complete_graph(5), False),
        (nx.complete_bipartite_graph(3, 3), False),
        (nx.petersen_graph(), False),
        (nx.grid_2d_graph(4, 4), True),
        (nx.icosahedral_graph(), True),  # as many edges as there can be
        (nx.disjoint_union(nx.path_graph(3), nx.complete_graph(5)), False),
    ],
    ids=str,
)
def test_planar_by_name(network, planar):
    assert is_planar(nx.to_numpy_array(network).astype(np.int64)) == planar


def test_no_edit_leaves_the_plane():
    edges = tuple((i, j, 1) for i, j in combinations(range(5), 2) if (i, j) != (0, 1))
    nearly = GraphBatch.of([Graph((0,) * 5, edges)])
    planar, any_ = (
        LabelledGraphs((0,), max_nodes=6, planar=planar).neighbors(nearly).graphs for planar in (True, False)
    )
    assert all(nx.check_planarity(as_network(graph))[0] for graph in planar)
    assert [len(graph.edges) for graph in any_].count(10) > [len(graph.edges) for graph in planar].count(10)


def test_maps_are_found_that_are_not_in_the_list():
    graphs = draw_maps(300, (4, 6), seed=0).graphs
    known, others = graphs[:270], graphs[270:]
    basis = sketch_basis(WeisfeilerLehman(1).normalized() + ShortestPath().normalized(), known, sketches.Full())
    domain = LabelledGraphs((0, 1, 2, 3), max_nodes=6, planar=True, proper=True)
    found = GraphSearch(domain, "projected").decode(basis, basis.embed(others), EmbeddedOutputs(basis, known)).outputs
    assert all(is_inside(domain, graph) for graph in found)
    seen = torch.stack([(edit_distance(graph, known) == 0).any() for graph in others])
    right = edit_distance(found, others) == 0
    assert (~seen).sum() > 5 and right[~seen].double().mean() > 0.8


def test_a_domain_contains_graphs_of_its_labels_colours_and_size():
    graphs = [
        Graph((1, 2, 1), ((0, 1, 1), (1, 2, 1))),
        Graph((1, 3), ((0, 1, 1),)),  # a label
        Graph((1, 2), ((0, 1, 2),)),  # a label of an edge
        Graph((1, 1), ((0, 1, 1),)),  # neighbours of one colour
        Graph((1, 2, 1, 2)),  # too large
        Graph((2,)),
    ]
    inside = LabelledGraphs((1, 2), max_nodes=3, proper=True).contains(GraphBatch.of(graphs))
    assert inside.tolist() == [True, False, False, False, False, True]
    assert LabelledGraphs((1, 2), max_nodes=3).contains(GraphBatch.of(graphs))[3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LabelledGraphs(()), "LabelledGraphs.labels must be different labels, at least one. Got ()"),
        (lambda: LabelledGraphs((1,), (2, 2)), r"LabelledGraphs.edge_labels must be different .* Got \(2, 2\)"),
        (lambda: LabelledGraphs((1,), max_nodes=0), "LabelledGraphs.max_nodes must be an integer of at least 1"),
        (lambda: LabelledGraphs((1, 2), max_degree=(1,)), "max_degree must be one number, or one for each of 2 labels"),
        (
            lambda: LabelledGraphs((1, 2)).neighbors(GraphBatch.of([Graph((1, 3))])),
            "The labels of nodes are 1, 2, as LabelledGraphs says. Got 3.",
        ),
        (
            lambda: LabelledGraphs((1,)).neighbors(GraphBatch.of([Graph((1, 1), ((0, 1, 4),))])),
            "The labels of edges are 1, as LabelledGraphs says. Got 4.",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(InputError, match=message):
        call()
