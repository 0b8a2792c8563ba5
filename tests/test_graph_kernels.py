import subprocess
import sys
from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest
import torch

from dsokr.errors import InputError, KernelError
from dsokr.graphs import Graph, GraphBatch, from_adjacency, from_networkx, permuted, to_adjacency, to_networkx
from dsokr.kernels import hashing
from dsokr.kernels.features import FeatureKernel, Features
from dsokr.kernels.graphs import (
    NSPD,
    Core,
    EdgeHistogram,
    ShortestPath,
    VertexHistogram,
    WeisfeilerLehman,
    core_numbers,
    refinements,
    surround,
)
from dsokr.kernels.rooted import name_balls
from dsokr.kernels.vectors import Linear
from dsokr.outputs import blocks, take
from dsokr.testing import check_kernel

KERNELS = [
    VertexHistogram(),
    EdgeHistogram(),
    ShortestPath(),
    ShortestPath(labels=False),
    WeisfeilerLehman(3),
    WeisfeilerLehman(2, edge_labels=True),
    WeisfeilerLehman(2, base=ShortestPath()),
    WeisfeilerLehman(1, base=EdgeHistogram()),
    NSPD(2, 3),
    Core(WeisfeilerLehman(2)),
    Core(NSPD(1, 1)),
    Core(VertexHistogram()).normalized(),
]


def random_graph(rng: np.random.Generator, nodes: int, labels: int = 2, edge_labels: int = 2, density=0.4) -> Graph:
    pairs = [pair for pair in combinations(range(nodes), 2) if rng.random() < density]
    edges = tuple((i, j, int(rng.integers(1, 1 + edge_labels))) for i, j in pairs)
    return Graph(tuple(rng.integers(labels, size=nodes).tolist()), edges)


def random_graphs(count: int, most_nodes: int = 9, seed: int = 0, least_nodes: int = 1) -> list[Graph]:
    rng = np.random.default_rng(seed)
    return [random_graph(rng, int(rng.integers(least_nodes, most_nodes + 1))) for _ in range(count)]


def shuffled(graph: Graph, seed: int) -> Graph:
    return permuted(graph, np.random.default_rng(seed).permutation(len(graph.labels)).tolist())


def unlabelled(graph: nx.Graph) -> Graph:
    graph = nx.convert_node_labels_to_integers(graph)
    return Graph((1,) * len(graph), tuple((i, j, 1) for i, j in graph.edges))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
class TestEveryGraphKernel:
    def test_conforms(self, kernel):
        check_kernel(kernel, random_graphs(30))

    def test_takes_batches_like_lists(self, kernel):
        graphs = random_graphs(20)
        expected = kernel(graphs, graphs)
        assert torch.equal(kernel(GraphBatch.of(graphs), GraphBatch.of(graphs)), expected)

    def test_combinations_of_anchors(self, kernel, device, generator):
        graphs, others = random_graphs(40), random_graphs(11, seed=1)
        weights = torch.randn(5, 40, generator=generator, dtype=torch.float64)
        combined = kernel.against(graphs, weights.to(device))(others)
        torch.testing.assert_close(combined.cpu(), kernel(others, graphs) @ weights.T, rtol=1e-12, atol=1e-12)

    def test_an_empty_graph_has_no_features(self, kernel):
        base = getattr(kernel, "kernel", kernel)
        assert base([Graph(())], [Graph(()), Graph((1, 1), ((0, 1, 1),))]).tolist() == [[0.0, 0.0]]
        with pytest.raises(KernelError, match="cannot be normalised at index 1"):
            base.normalized().diag([Graph((1, 1), ((0, 1, 1),)), Graph(())])

    def test_no_graphs_at_all(self, kernel):
        graphs = random_graphs(3)
        assert kernel([], graphs).shape == (0, 3)
        assert kernel(graphs, []).shape == (3, 0)


def peer(graphs):
    grakel = pytest.importorskip("grakel")
    made = []
    for graph in graphs:
        edges = {(i, j): label for i, j, label in graph.edges} | {(j, i): label for i, j, label in graph.edges}
        neighbours = {i: {} for i in range(len(graph.labels))}
        for i, j in edges:
            neighbours[i][j] = 1.0
        made.append(grakel.Graph(neighbours, dict(enumerate(graph.labels)), edges))
    return made


def peer_kernel(name: str, **options):
    return getattr(pytest.importorskip("grakel.kernels"), name)(normalize=True, **options)


def wl_of(**options):
    return (pytest.importorskip("grakel.kernels").WeisfeilerLehman, options)


def path_base():
    return pytest.importorskip("grakel.kernels").ShortestPath


PEERS = {
    "vertex histogram": (VertexHistogram(), lambda: peer_kernel("VertexHistogram")),
    "edge histogram": (EdgeHistogram(), lambda: peer_kernel("EdgeHistogram")),
    "shortest path": (ShortestPath(), lambda: peer_kernel("ShortestPath")),
    "shortest path, no labels": (ShortestPath(labels=False), lambda: peer_kernel("ShortestPath", with_labels=False)),
    "WL": (WeisfeilerLehman(5), lambda: peer_kernel("WeisfeilerLehman", n_iter=5)),
    "WL of shortest paths": (
        WeisfeilerLehman(2, base=ShortestPath()),
        lambda: peer_kernel("WeisfeilerLehman", n_iter=2, base_graph_kernel=path_base()),
    ),
    "core of WL": (
        Core(WeisfeilerLehman(5)),
        lambda: peer_kernel("CoreFramework", base_graph_kernel=wl_of(n_iter=5)),
    ),
}


@pytest.mark.filterwarnings("ignore:changing format")
@pytest.mark.parametrize("name", PEERS)
def test_agrees_with_grakel(name):
    kernel, make_peer = PEERS[name]
    graphs = [graph for graph in random_graphs(80, least_nodes=3) if graph.edges]
    a, b = graphs[:40], graphs[40:]
    there = make_peer()
    np.testing.assert_allclose(kernel.normalized()(b, b).numpy(), there.fit_transform(peer(b)), atol=1e-12)
    np.testing.assert_allclose(kernel.normalized()(a, b).numpy(), there.transform(peer(a)), atol=1e-12)


def test_refinement_tells_apart_what_multisets_of_neighbours_tell_apart():
    graphs = random_graphs(60)
    batch = GraphBatch.of(graphs)
    for edge_labels in (False, True):
        known: dict = {}
        expected = [list(graph.labels) for graph in graphs]
        for names in refinements(batch, 3, edge_labels):
            flat = [label for labels in expected for label in labels]
            assert len(set(zip(names.tolist(), flat, strict=True))) == len(set(names.tolist())) == len(set(flat))
            expected = [refined(g, labels, edge_labels, known) for g, labels in zip(graphs, expected, strict=True)]


def refined(graph: Graph, labels: list[int], edge_labels: bool, known: dict) -> list[int]:
    around: list[list] = [[] for _ in labels]
    for i, j, label in graph.edges:
        around[i].append((label * edge_labels, labels[j]))
        around[j].append((label * edge_labels, labels[i]))
    keys = [(own, tuple(sorted(others))) for own, others in zip(labels, around, strict=True)]
    return [known.setdefault(key, 1000 + len(known)) for key in keys]


@pytest.mark.parametrize("edge_labels", [False, True])
def test_one_graph_of_a_batch_is_refined_like_the_whole(edge_labels):
    batch = GraphBatch.of(random_graphs(5, least_nodes=4))
    first, last = batch.offsets[2:4]
    labels, refined_labels = refinements(batch, 1, edge_labels)
    arrays = labels[first:last], batch.indptr, batch.neighbors, batch.edge_labels, edge_labels
    own = [hashing.pair(labels[node], np.uint64(surround(node, first, *arrays))) for node in range(first, last)]
    assert np.array(own, np.uint64).astype(np.int64).tolist() == refined_labels[first:last].tolist()


def test_hash_tables_find_every_id_and_nothing_else():
    rng = np.random.default_rng(0)
    names = rng.integers(0, 300, size=1000).astype(np.uint64)
    ids, slots, numbers = hashing.number(names)
    assert (ids[numbers] == names).all() and len(set(ids.tolist())) == len(ids)
    for wanted in range(300):
        at = hashing.find(slots, ids, np.uint64(wanted))
        assert ids[at] == wanted if wanted in ids else at == -1
    signed = np.array([-5, 7, -(2**62), 2**62])
    table = hashing.build_table(signed)
    assert [hashing.find(table, signed, x) for x in [*signed, 5, -7]] == [0, 1, 2, 3, -1, -1]
    assert hashing.find(hashing.build_table(ids[:0]), ids[:0], ids[0]) == -1


def test_weisfeiler_lehman_of_a_base_without_node_labels_counts_it_once_an_iteration():
    graphs = random_graphs(10)
    expected = 4 * EdgeHistogram()(graphs, graphs)
    assert torch.equal(WeisfeilerLehman(3, base=EdgeHistogram())(graphs, graphs), expected)


def test_core_numbers_are_those_of_networkx():
    graphs = [random_graph(np.random.default_rng(s), 12, density=0.3) for s in range(40)]
    expected = [number for graph in graphs for _, number in sorted(nx.core_number(to_networkx(graph)).items())]
    assert core_numbers(GraphBatch.of(graphs)).tolist() == expected


def test_core_adds_the_base_over_the_cores_both_graphs_have():
    graphs = random_graphs(15)
    kernel, base = Core(ConstantKernel()), ShortestPath()

    def cores(graph: Graph) -> list[Graph]:
        there = to_networkx(graph)
        most = max(nx.core_number(there).values(), default=0)
        return [from_networkx(nx.convert_node_labels_to_integers(nx.k_core(there, k))) for k in range(most + 1)]

    for g, h in product(graphs, graphs):
        pairs = list(zip(cores(g), cores(h), strict=False))
        assert kernel([g], [h]).item() == len(pairs)
        assert Core(base)([g], [h]).item() == sum(base([a], [b]).item() for a, b in pairs)


class ConstantKernel(FeatureKernel):
    def features(self, ys):
        n = len(GraphBatch.of(ys))
        return Features(np.arange(n + 1), np.ones(n, np.uint64), np.ones(n))


class RootedClasses:
    """Numbers rooted, labelled graphs so that two have the same number exactly if they are isomorphic."""

    def __init__(self) -> None:
        self.known: dict[tuple, list[tuple[nx.Graph, int]]] = {}
        self.count = 0

    def number(self, graph: nx.Graph, root: int) -> int:
        ball = graph.copy()
        for node in ball:
            ball.nodes[node]["kind"] = (ball.nodes[node]["label"], node == root)
        key = (
            tuple(sorted(kind for _, kind in ball.nodes(data="kind"))),
            tuple(sorted(label for _, _, label in ball.edges(data="label"))),
            tuple(sorted(dict(ball.degree).values())),
        )
        for other, number in self.known.setdefault(key, []):
            if nx.is_isomorphic(
                ball, other, lambda a, b: a["kind"] == b["kind"], lambda a, b: a["label"] == b["label"]
            ):
                return number
        self.known[key].append((ball, self.count))
        self.count += 1
        return self.count - 1


def brute_force_nspd(graphs: list[Graph], radius: int, distance: int) -> np.ndarray:
    classes = RootedClasses()
    total = np.zeros((len(graphs), len(graphs)))
    there = [to_networkx(graph) for graph in graphs]
    apart = [dict(nx.all_pairs_shortest_path_length(graph)) for graph in there]
    for r in range(radius + 1):
        balls = [{v: classes.number(nx.ego_graph(graph, v, r), v) for v in graph} for graph in there]
        for d in range(distance + 1):
            counts: list[dict] = []
            for ball, lengths in zip(balls, apart, strict=True):
                counts.append({})
                for u, v in product(ball, ball):
                    if lengths[u].get(v) == d:
                        counts[-1][ball[u], ball[v]] = counts[-1].get((ball[u], ball[v]), 0) + 1
            K = np.array([[sum(c * b.get(key, 0) for key, c in a.items()) for b in counts] for a in counts], float)
            scale = np.sqrt(np.outer(K.diagonal(), K.diagonal()))
            total += np.divide(K, scale, out=np.zeros_like(K), where=scale > 0)
    return total


def test_nspd_equals_brute_force_on_random_graphs():
    few_kinds = [
        random_graph(np.random.default_rng(s), 1 + s % 7, labels=1, edge_labels=1, density=0.6) for s in range(70)
    ]
    graphs = [*random_graphs(123, most_nodes=7), *few_kinds, *SYMMETRIC]
    assert len(graphs) >= 200
    expected = brute_force_nspd(graphs, radius=3, distance=4)
    np.testing.assert_allclose(NSPD(3, 4)(graphs, graphs).numpy(), expected, atol=1e-10)


SYMMETRIC = [
    Graph(()),
    unlabelled(nx.wheel_graph(7)),  # a hub with a ring of six and one with two triangles: refinement sees no difference
    unlabelled(nx.compose(nx.star_graph(6), nx.Graph([(1, 2), (2, 3), (3, 1), (4, 5), (5, 6), (6, 4)]))),
    unlabelled(nx.complete_graph(6)),
    unlabelled(nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(4))),
    unlabelled(nx.complete_bipartite_graph(3, 3)),
    unlabelled(nx.circular_ladder_graph(3)),
]


def shrikhande() -> nx.Graph:
    steps = ((0, 1), (1, 0), (1, 1))
    cells = product(range(4), range(4))
    return nx.Graph(((i, j), ((i + a) % 4, (j + b) % 4)) for i, j in cells for a, b in steps)


def test_names_of_neighbourhoods_are_exact_where_refinement_fails():
    hard = {
        "shrikhande": shrikhande(),
        "rook": nx.line_graph(nx.complete_bipartite_graph(4, 4)),
        "complete": nx.complete_graph(12),
        "petersen": nx.petersen_graph(),
        "dodecahedron": nx.dodecahedral_graph(),
        "hypercube": nx.hypercube_graph(4),
        "large torus": nx.grid_2d_graph(8, 8, periodic=True),
    }
    graphs = [unlabelled(graph) for graph in hard.values()]
    names = [set(name_balls(GraphBatch.of([graph]), 8)[8].tolist()) for graph in graphs]
    assert [len(each) for each in names] == [1] * len(names)  # all of them look the same from every node
    assert len(set.union(*names)) == len(names)
    again = [set(name_balls(GraphBatch.of([shuffled(graph, 1)]), 8)[8].tolist()) for graph in graphs]
    assert again == names


def test_names_do_not_depend_on_which_node_of_a_class_comes_first():
    """The rings below a hub look alike to refinement, but no symmetry takes the ring of six to the triangles."""
    rings = nx.disjoint_union_all([nx.cycle_graph(6), nx.cycle_graph(3), nx.cycle_graph(3)])
    hub = unlabelled(nx.compose(rings, nx.Graph([("hub", i) for i in range(12)])))
    names = [sorted(name_balls(GraphBatch.of([shuffled(hub, seed)]), 2)[2].tolist()) for seed in range(10)]
    assert names == names[:1] * 10
    assert len(set(names[0])) == 3  # the hub, the ring of six, the triangles


def test_nspd_uses_edge_labels_and_counts_terms_with_pairs():
    single, double = Graph((6, 6), ((0, 1, 1),)), Graph((6, 6), ((0, 1, 2),))
    assert NSPD(1, 1)([single], [double]).item() == pytest.approx(2.0)
    assert NSPD(1, 3).diag([single]).tolist() == pytest.approx([4.0])  # nothing at distances 2 and 3
    assert NSPD(2, 3).diag([Graph((6,))]).tolist() == pytest.approx([3.0])


def test_batches_give_back_their_graphs():
    graphs = [*random_graphs(20), Graph(()), Graph((5,))]
    batch = GraphBatch.of(graphs)
    assert list(batch) == graphs
    assert batch[3] == graphs[3]
    assert batch[-1] == graphs[-1]
    assert list(batch[4:9]) == graphs[4:9]
    assert list(batch[np.array([7, 2, 2, 20])]) == [graphs[i] for i in (7, 2, 2, 20)]
    assert [graph for _, block in blocks(batch, 6) for graph in block] == graphs
    assert list(take(batch, torch.tensor([3, 1]))) == [graphs[3], graphs[1]]
    with pytest.raises(IndexError):
        batch[len(graphs)]


def test_permuting_wants_every_node_once():
    with pytest.raises(InputError, match="each of the 2 nodes once"):
        permuted(Graph((1, 2)), [0, 0])


def test_conversions_go_there_and_back():
    for graph in [*random_graphs(20), Graph(())]:
        assert from_networkx(to_networkx(graph)) == graph
        assert from_adjacency(*to_adjacency(graph)) == graph


def test_networkx_graphs_that_are_no_graphs_of_ours_are_refused():
    labelled = to_networkx(Graph((1, 1), ((0, 1, 1),)))
    with pytest.raises(InputError, match="undirected"):
        from_networkx(nx.DiGraph(labelled))
    with pytest.raises(InputError, match="parallel"):
        from_networkx(nx.MultiGraph(labelled))
    with pytest.raises(InputError, match="Node 0 must have an integer as its attribute 'symbol'. Got None"):
        from_networkx(labelled, label="symbol")
    labelled.edges[0, 1]["label"] = "single"
    with pytest.raises(InputError, match=r"Edge \(0, 1\) .* Got 'single'"):
        from_networkx(labelled)
    assert from_networkx(labelled, edge_label=None).edges == ((0, 1, 1),)
    labelled.add_edge(1, 1, label=1)
    with pytest.raises(InputError, match="self-loops"):
        from_networkx(labelled, edge_label=None)


def test_adjacency_matrices_that_are_no_graphs_are_refused():
    with pytest.raises(InputError, match="symmetric"):
        from_adjacency([1, 1], [[0, 1], [2, 0]])
    with pytest.raises(InputError, match="n × n"):
        from_adjacency([1, 1, 1], [[0, 1], [1, 0]])
    with pytest.raises(InputError, match="integers"):
        from_adjacency([1, 1], [[0, 0.5], [0.5, 0]])
    with pytest.raises(InputError, match="self-loops"):
        from_adjacency([1, 1], [[1, 0], [0, 0]])
    with pytest.raises(InputError, match="labelled 0"):
        to_adjacency(Graph((1, 1), ((0, 1, 0),)))


def test_what_is_no_graph_is_refused_with_its_index():
    with pytest.raises(InputError, match="Got str at index 1"):
        VertexHistogram()([Graph((1,)), "CCO"], [Graph((1,))])
    with pytest.raises(InputError, match="64 bits"):
        VertexHistogram().diag([Graph((2**70,))])
    with pytest.raises(InputError, match="integer labels"):
        Graph(("C", "O"))
    with pytest.raises(InputError, match="integer labels"):
        Graph((1, 1), ((0, 1),))
    with pytest.raises(InputError, match="parallel"):
        Graph((1, 1), ((0, 1, 1), (1, 0, 2)))


def test_a_label_no_anchor_has_counts_for_the_diagonal_only():
    seen, unseen = Graph((1, 1), ((0, 1, 1),)), Graph((-7, -7), ((0, 1, 9),))
    for kernel in (VertexHistogram(), EdgeHistogram(), WeisfeilerLehman(2)):
        assert kernel([unseen], [seen]).item() == 0
        assert kernel.diag([unseen]).item() == kernel.diag([seen]).item()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeisfeilerLehman(-1), "iterations must be an integer of at least 0"),
        (lambda: WeisfeilerLehman(1.5), "iterations must be an integer"),
        (lambda: WeisfeilerLehman(1, base=Linear()), "base must be a FeatureKernel"),
        (lambda: Core(Linear()), "base must be a FeatureKernel"),
        (lambda: NSPD(-1, 1), "radius must be an integer"),
        (lambda: NSPD(1, "2"), "distance must be an integer"),
    ],
)
def test_parameters_are_checked(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_anchors_without_features_give_zeros():
    empty, weights = [Graph(()), Graph(())], torch.ones(3, 2, dtype=torch.float64)
    graphs = random_graphs(4)
    assert torch.equal(VertexHistogram().against(empty, weights)(graphs), torch.zeros(4, 3, dtype=torch.float64))
    assert torch.equal(VertexHistogram()(graphs, empty), torch.zeros(4, 2, dtype=torch.float64))


def test_without_numba_kernels_import_and_say_what_is_missing():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import dsokr.kernels\n"
        "from dsokr.kernels.graphs import VertexHistogram\n"
        "from dsokr.graphs import Graph\n"
        "try: VertexHistogram().diag([Graph((1,))])\n"
        "except ImportError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'pip install "dsokr[graphs]"' in said
