"""Exact graph edit distance beside NetworkX's, in one process: agreement and speed on pairs of QM9 molecules.

    python bench/edit_distance.py --data-dir FOLDER     # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA

Without the data, molecules made by the package stand in. NetworkX is timed once on each pair, ours is the median of
several runs on the same pairs; compilation is not counted. Both start from their own graph objects, on one core.
"""

import argparse
import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import networkx as nx
import numpy as np
import torch

from dsokr import chem
from dsokr.graphs import Graph, GraphBatch
from dsokr.metrics.edit_distance import edit_distance
from studies.data.molecules import generate

FILE = Path("qm9") / "qm9_smiles_133882.txt.gz"


def molecules(folder: str | None, count: int) -> tuple[list[Graph], str]:
    """Molecules in random order, and what they are."""
    if folder and (path := Path(folder) / FILE).exists():
        with gzip.open(path, "rt") as file:
            smiles = np.array(file.read().split())
        chosen = np.random.default_rng(0).permutation(len(smiles))[:count]
        return chem.graphs(smiles[chosen].tolist()), "QM9"
    return generate(count, seed=0), f"no {FILE} in --data-dir or DSOKR_DATA: generated molecules"


def for_networkx(graph: Graph) -> nx.Graph:
    result = nx.Graph()
    result.add_nodes_from((i, {"label": label}) for i, label in enumerate(graph.labels))
    result.add_edges_from((i, j, {"label": label}) for i, j, label in graph.edges)
    return result


def same_label(one: dict[str, int], other: dict[str, int]) -> bool:
    return one["label"] == other["label"]


def seconds(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def repeated(work: Callable[[], Any], times: int = 7) -> tuple[Any, float]:
    runs = [seconds(work) for _ in range(times)]
    return runs[-1][0], median(taken for _, taken in runs)


def compare(a: list[Graph], b: list[Graph], edge_labels: bool) -> None:
    """One line: time per pair of both, their ratio, and whether all distances agree."""
    pairs = [(for_networkx(g), for_networkx(h)) for g, h in zip(a, b, strict=True)]
    edge_match = same_label if edge_labels else None
    theirs, their_time = seconds(lambda: [nx.graph_edit_distance(*pair, same_label, edge_match) for pair in pairs])
    ours, our_time = repeated(lambda: edit_distance(a, b, edge_labels))
    agree = "all equal" if ours.tolist() == theirs else "NOT EQUAL"
    print(
        f"{len(a)} pairs {named(edge_labels)}: ours {our_time / len(a) * 1e6:6.1f} µs a pair   NetworkX "
        f"{their_time / len(a):6.3f} s a pair   {their_time / our_time:,.0f} x faster   {agree}",
        flush=True,
    )


def named(edge_labels: bool) -> str:
    return f"{'with' if edge_labels else 'without':>7} edge labels"


def many(a: list[Graph], b: list[Graph], edge_labels: bool) -> None:
    distance, taken = repeated(lambda: edit_distance(a, b, edge_labels))
    print(
        f"{len(a)} pairs {named(edge_labels)}: {taken:.3f} s on {torch.get_num_threads()} thread(s), "
        f"mean distance {distance.mean():.3f}",
        flush=True,
    )


def one_against_all(everything: list[Graph]) -> None:
    batch = GraphBatch.of(everything)
    _, taken = seconds(lambda: edit_distance(everything[0], batch))
    print(f"one molecule against {len(everything)} candidates: {taken:.2f} s on {torch.get_num_threads()} thread(s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--pairs", type=int, default=2_000, help="pairs for ours alone")
    parser.add_argument("--peer-pairs", type=int, default=30, help="pairs for the comparison with NetworkX")
    parser.add_argument("--candidates", type=int, default=20_000, help="molecules that one is compared with")
    options = parser.parse_args()
    everything, what = molecules(options.data_dir, max(2 * options.pairs, options.candidates))
    a, b = everything[: options.pairs], everything[options.pairs : 2 * options.pairs]
    edit_distance(a[:1], b[:1])
    threads = torch.get_num_threads()
    print(what)
    torch.set_num_threads(1)
    for edge_labels in (True, False):
        compare(a[: options.peer_pairs], b[: options.peer_pairs], edge_labels)
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        for edge_labels in (True, False):
            many(a, b, edge_labels)
    one_against_all(everything[: options.candidates])


if __name__ == "__main__":
    main()
