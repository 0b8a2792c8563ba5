"""Graph edit distance against NetworkX, against brute force, and as a metric."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import networkx as nx
import numpy as np
import pytest
import torch

from dsokr.errors import DSOKRError, InputError
from dsokr.graphs import Graph, GraphBatch, permuted, to_networkx
from dsokr.metrics.edit_distance import EditDistanceTimeout, edit_distance, edit_distance_bounds
from studies.data.molecules import generate

EMPTY, SINGLE = Graph(()), Graph((6,))


def random_graph(rng: np.random.Generator, nodes: int, density: float, kinds: int = 3) -> Graph:
    edges = [(i, j) for j in range(nodes) for i in range(j) if rng.random() < density]
    labels = rng.integers(1, 4, nodes)
    return Graph(tuple(labels), tuple((i, j, int(rng.integers(kinds))) for i, j in edges))


def random_graphs(count: int, largest: int, seed: int) -> list[Graph]:
    """Of 0 to ``largest`` nodes, from no edges to nearly all."""
    rng = np.random.default_rng(seed)
    return [random_graph(rng, int(rng.integers(largest + 1)), rng.uniform(0, 0.8)) for _ in range(count)]


def renumbered(graph: Graph, rng: np.random.Generator) -> Graph:
    return permuted(graph, rng.permutation(len(graph.labels)).tolist())


def same_label(one: dict, other: dict) -> bool:
    return one["label"] == other["label"]


def networkx_distance(a: Graph, b: Graph, edge_labels: bool, at_most: float | None = None) -> float:
    edge_match = same_label if edge_labels else None
    return nx.graph_edit_distance(
        to_networkx(a), to_networkx(b), node_match=same_label, edge_match=edge_match, upper_bound=at_most
    )


def mappings(rows: int, columns: frozenset[int]) -> Iterator[tuple[int | None, ...]]:
    """Every way to delete some rows and to give each other one a column of its own."""
    if rows == 0:
        yield ()
        return
    for rest in mappings(rows - 1, columns):
        yield (*rest, None)
        for column in columns.difference(rest):
            yield (*rest, column)


def brute_force_distance(a: Graph, b: Graph, edge_labels: bool) -> int:
    ea, eb = ({(i, j): e * edge_labels for i, j, e in g.edges} for g in (a, b))

    def cost(to: tuple[int | None, ...]) -> int:
        kept = [i for i in range(len(to)) if to[i] is not None]
        nodes = len(a.labels) + len(b.labels) - 2 * len(kept) + sum(a.labels[i] != b.labels[to[i]] for i in kept)
        moved = {tuple(sorted((to[i], to[j]))): e for (i, j), e in ea.items() if i in kept and j in kept}
        both = moved.keys() & eb.keys()
        return nodes + len(ea) + len(eb) - 2 * len(both) + sum(moved[edge] != eb[edge] for edge in both)

    return min(map(cost, mappings(len(a.labels), frozenset(range(len(b.labels))))))


@pytest.mark.parametrize("edge_labels", [True, False])
def test_equals_brute_force_over_all_edit_paths(edge_labels):
    a, b = random_graphs(120, 5, seed=0), random_graphs(120, 5, seed=1)
    expected = [brute_force_distance(g, h, edge_labels) for g, h in zip(a, b, strict=True)]
    assert edit_distance(a, b, edge_labels).tolist() == expected


@pytest.mark.parametrize("edge_labels", [True, False])
def test_equals_networkx_on_small_molecules(edge_labels):
    molecules = generate(120, seed=0, max_atoms=6)
    a, b = molecules[::2], molecules[1::2]
    expected = [networkx_distance(g, h, edge_labels) for g, h in zip(a, b, strict=True)]
    assert edit_distance(a, b, edge_labels).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("edge_labels", [True, False])
def test_equals_networkx_on_500_pairs_of_molecules(edge_labels):
    molecules = [m for atoms in range(4, 10) for m in generate(168, seed=1, max_atoms=atoms)]
    a, b = molecules[::2], molecules[1::2]
    assert len(a) >= 500
    for g, h, distance in zip(a, b, edit_distance(a, b, edge_labels).tolist(), strict=True):
        # NetworkX gives back anything smaller, and None if nothing is as small, so this is still a full comparison
        assert networkx_distance(g, h, edge_labels, at_most=distance) == distance


@pytest.mark.parametrize("edge_labels", [True, False])
def test_equals_networkx_on_random_graphs(edge_labels):
    a, b = random_graphs(300, 7, seed=2), random_graphs(300, 7, seed=3)
    assert sum(len(g.labels) == 0 for g in a) > 10
    assert sum(len(g.labels) > 0 and not nx.is_connected(to_networkx(g)) for g in a) > 50
    expected = [networkx_distance(g, h, edge_labels) for g, h in zip(a, b, strict=True)]
    assert edit_distance(a, b, edge_labels).tolist() == expected


def test_is_symmetric_and_ignores_the_numbering():
    rng = np.random.default_rng(0)
    a, b = generate(200, seed=2), generate(200, seed=3)
    distance = edit_distance(a, b)
    assert torch.equal(edit_distance(b, a), distance)
    assert torch.equal(edit_distance([renumbered(g, rng) for g in a], [renumbered(g, rng) for g in b]), distance)


def test_is_zero_exactly_for_isomorphic_graphs():
    graphs = [random_graph(np.random.default_rng(seed), 4, 0.5, kinds=1) for seed in range(40)]
    pairs = [(g, h) for g in graphs for h in graphs]
    zero = edit_distance(*map(list, zip(*pairs, strict=True))) == 0
    isomorphic = [nx.is_isomorphic(to_networkx(g), to_networkx(h), same_label, same_label) for g, h in pairs]
    assert 40 < sum(isomorphic) < 800
    assert zero.tolist() == isomorphic


def test_triangle_inequality():
    graphs = generate(25, seed=4) + random_graphs(15, 7, seed=5)
    d = torch.stack([edit_distance(g, graphs) for g in graphs])
    assert (d[:, None, :] <= d[:, :, None] + d[None, :, :]).all()


def test_single_edits_cost_one():
    propane = Graph((6, 6, 6), ((0, 1, 1), (1, 2, 1)))
    relabelled_node = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1)))
    relabelled_edge = Graph((6, 6, 6), ((0, 1, 1), (1, 2, 2)))
    closed = Graph((6, 6, 6), ((0, 1, 1), (1, 2, 1), (0, 2, 1)))
    with_a_node_apart = Graph((6, 6, 6, 6), ((0, 1, 1), (1, 2, 1)))
    edited = [propane, relabelled_node, relabelled_edge, closed, with_a_node_apart]
    assert edit_distance(propane, edited).tolist() == [0, 1, 1, 1, 1]
    assert edit_distance(propane, edited, edge_labels=False).tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("graph", [EMPTY, SINGLE, Graph((6, 7, 8)), Graph((6, 6, 7), ((0, 1, 1), (1, 2, 3)))])
def test_from_the_empty_graph_everything_is_inserted(graph):
    size = len(graph.labels) + len(graph.edges)
    assert edit_distance([EMPTY, graph], [graph, EMPTY]).tolist() == [size, size]


def test_labels_may_be_any_integers():
    a = Graph((-5, 2**62), ((0, 1, -(2**62)),))
    b = Graph((2**62, -5), ((0, 1, 0),))
    assert edit_distance(a, [a, b]).tolist() == [0, 1]


def test_takes_batches_and_no_pairs_at_all():
    molecules = generate(10, seed=6)
    expected = edit_distance(molecules, molecules[::-1])
    assert torch.equal(edit_distance(GraphBatch.of(molecules), GraphBatch.of(molecules[::-1])), expected)
    assert expected.dtype == torch.float64
    assert edit_distance([], []).shape == edit_distance(SINGLE, []).shape == (0,)
    assert edit_distance(SINGLE, SINGLE).tolist() == [0]


def test_does_not_depend_on_the_number_of_threads():
    a, b = generate(300, seed=7), generate(300, seed=8)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(edit_distance(a, b))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def hard_pair(seed: int = 0, nodes: int = 40) -> tuple[Graph, Graph]:
    rng = np.random.default_rng(seed)
    return random_graph(rng, nodes, 0.3), random_graph(rng, nodes, 0.3)


def test_bounds_enclose_the_distance_found_later():
    (g, h), easy = hard_pair(nodes=16), generate(2, seed=9)
    exact = edit_distance([g, easy[0]], [h, easy[1]])
    lower, upper = edit_distance_bounds([g, easy[0]], [h, easy[1]], timeout=0)
    assert lower[0] <= exact[0] <= upper[0]
    assert lower[0] < upper[0]
    assert lower[1] == exact[1] == upper[1]


def test_bounds_enclose_a_distance_known_by_construction():
    g, _ = hard_pair(1)
    edited = Graph((9, *g.labels[1:]), g.edges[3:])
    bounds = edit_distance_bounds(g, edited, timeout=0)
    assert bounds.lower <= 4 <= bounds.upper
    assert bounds.lower >= 3  # three edges fewer
    assert edit_distance_bounds(g, renumbered(g, np.random.default_rng(0)), timeout=0).lower == 0


def test_timeout_is_kept_and_never_called_exact():
    a, b = zip(*(hard_pair(seed) for seed in range(2)), strict=True)
    edit_distance(SINGLE, SINGLE)  # compiles
    started = time.perf_counter()
    with pytest.raises(
        EditDistanceTimeout, match=r"2 of 3 pairs .* timeout=0.2 .* index 1: .* between \d+ and \d+"
    ) as e:
        edit_distance([SINGLE, *a], [SINGLE, *b], timeout=0.2)
    assert 0.2 <= time.perf_counter() - started < 4  # two pairs, perhaps on one thread
    assert isinstance(e.value, DSOKRError) and isinstance(e.value, TimeoutError)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_can_be_interrupted():
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's job may ignore it
        "from dsokr.graphs import Graph; from dsokr.metrics.edit_distance import edit_distance\n"
        "g, h = (Graph((1,) * 40, [(i, j, 1) for j in range(40) for i in range(j) if i * j % p < 2]) for p in (7, 9))\n"
        "edit_distance(g, g); print('ready', flush=True); edit_distance([g] * 20, [h] * 20)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert b"KeyboardInterrupt" in errors


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([SINGLE, "CC"], [SINGLE, SINGLE], r"a\[1\] must be a Graph. Got str"),
        ([SINGLE], [None], r"b\[0\] must be a Graph. Got NoneType"),
        ([SINGLE], [SINGLE, SINGLE], r"equally long.*Got 1 graphs in a and 2 in b"),
        ([], SINGLE.labels, r"b\[0\] must be a Graph"),
    ],
)
def test_refuses_what_is_not_pairs_of_graphs(a, b, message):
    with pytest.raises(InputError, match=message):
        edit_distance(a, b)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_refuses_a_timeout_that_is_no_time(timeout):
    with pytest.raises(InputError, match="timeout must be"):
        edit_distance(SINGLE, SINGLE, timeout=timeout)
