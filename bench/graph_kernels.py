"""Graph kernels beside GraKeL's, in one process: agreement, speed and memory on QM9.

    python bench/graph_kernels.py --data-dir FOLDER     # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA
    python bench/graph_kernels.py --quick               # a tenth of the size

Without the data, molecules made by the package stand in. GraKeL is timed once, ours is the median of several runs
after one on other molecules (compilation is not counted). Both start from their own graph objects; features included.
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import grakel
import numpy as np
import torch
from grakel.kernels import CoreFramework, NeighborhoodSubgraphPairwiseDistance, WeisfeilerLehman

from dsokr import chem
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import graphs
from dsokr.outputs import blocks

FILE = Path("qm9") / "qm9_smiles_133882.txt.gz"
WL = graphs.WeisfeilerLehman(5)
CORE = graphs.Core(WL)
NSPD = graphs.NSPD(3, 4)  # GraKeL's default radius and distance


def molecules(folder: str | None, count: int) -> tuple[list[Graph], str]:
    """Molecules in random order, and what they are."""
    if folder and (path := Path(folder) / FILE).exists():
        smiles = np.array(gzip.decompress(path.read_bytes()).decode().split())
        chosen = np.random.default_rng(0).permutation(len(smiles))[:count]
        return chem.graphs(smiles[chosen].tolist()), "QM9"
    from studies.data.molecules import generate

    return list(generate(count, seed=0)), "generated molecules"


def for_grakel(graph: Graph) -> grakel.Graph:
    edges = {(i, j): label for i, j, label in graph.edges} | {(j, i): label for i, j, label in graph.edges}
    neighbours: dict[int, dict[int, float]] = {i: {} for i in range(len(graph.labels))}
    for i, j in edges:
        neighbours[i][j] = 1.0
    return grakel.Graph(neighbours, dict(enumerate(graph.labels)), edges)


def seconds(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def grakel_gram(peer: Any, a: list[Graph], b: list[Graph]) -> tuple[np.ndarray, float]:
    theirs_a, theirs_b = [for_grakel(graph) for graph in a], [for_grakel(graph) for graph in b]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GraKeL announces every change of a graph's format
        return seconds(lambda: peer.fit(theirs_b).transform(theirs_a))


def our_gram(kernel: graphs.FeatureKernel, a: list[Graph], b: list[Graph], repeats: int) -> tuple[np.ndarray, float]:
    kernel(b[:50], a[:50])
    times = [seconds(lambda: kernel.normalized()(a, b))[1] for _ in range(repeats)]
    return kernel.normalized()(a, b).numpy(), median(times)


def compare(name: str, a: list[Graph], b: list[Graph]) -> None:
    """One line: both times, their ratio, and the largest difference where GraKeL's kernel is sound."""
    ours, our_time = our_gram(OURS[name], a, b, repeats=5)
    theirs, their_time = grakel_gram(PEERS[name](), a, b)
    line = f"{name:<10} {len(a):>6} x {len(b):<5} ours {our_time:8.3f} s   GraKeL {their_time:8.2f} s"
    line += f"   {their_time / our_time:6.0f} x faster"
    sound = name != "NSPD"  # GraKeL's depends on the numbering of the nodes
    print(line + (f"   largest difference {np.abs(ours - theirs).max():.1e}" if sound else ""), flush=True)


PEERS: dict[str, Callable[[], Any]] = {  # made anew for each use, as GraKeL's kernels are fitted
    "WL": lambda: WeisfeilerLehman(n_iter=5, normalize=True),
    "CORE-WL": lambda: CoreFramework(base_graph_kernel=(WeisfeilerLehman, {"n_iter": 5}), normalize=True),
    "NSPD": lambda: NeighborhoodSubgraphPairwiseDistance(r=NSPD.radius, d=NSPD.distance, normalize=True),
}
OURS = {"WL": WL, "CORE-WL": CORE, "NSPD": NSPD}


def features_of_all(everything: list[Graph]) -> None:
    batch, conversion = seconds(lambda: GraphBatch.of(everything))
    print(f"{len(everything)} molecules into a batch: {conversion:.2f} s; features from the batch:")
    for name, kernel in {**OURS, "shortest path": graphs.ShortestPath()}.items():
        made, taken = seconds(lambda kernel=kernel: kernel.features(batch))
        print(f"  {name:<14} {taken:6.2f} s   {len(made.ids) / len(batch):6.1f} a molecule", flush=True)


def memory_of_blocks(anchors: int) -> None:
    """Fill a float32 matrix of all molecules against some, in blocks; run in a process of its own to see the peak."""
    rows, _ = molecules(*json.loads(os.environ["BENCH_MOLECULES"]))
    before = peak()
    out = torch.empty(len(rows), anchors, dtype=torch.float32)
    evaluate = WL.normalized().against(rows[:anchors])
    start = time.perf_counter()
    for where, block in blocks(rows, 4096):
        out[where] = evaluate(block)
    taken = time.perf_counter() - start
    print(f"WL {len(rows)} x {anchors} in float32 blocks: {taken:.1f} s, peak {peak():.2f} GiB ({before:.2f} before)")


def peak() -> float:
    """GiB of memory at most so far. Linux only: getrusage would count what the parent process had when it forked."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**20  # type: ignore[index]  # the line is always there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--threads", type=int, help="threads that ours may use; GraKeL uses one")
    parser.add_argument("--memory-only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_only:
        memory_of_blocks(options.memory_only)
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    share = 10 if options.quick else 1
    count = 133_882 // share
    everything, what = molecules(options.data_dir, count)
    print(f"{what}; {torch.get_num_threads()} threads for ours, one for GraKeL")

    n, m = 20_000 // share, 3_200 // share
    few = everything[: 2_000 // share]
    for name in ("WL", "CORE-WL"):
        compare(name, few, few)
    for name in ("WL", "CORE-WL"):
        compare(name, everything[:n], everything[n : n + m])
    compare("NSPD", few, everything[-1_000 // share :])
    features_of_all(everything)
    command = [sys.executable, __file__, "--memory-only", str(m)]
    settings = json.dumps([options.data_dir, 131_382 // share])
    subprocess.run(command, check=True, env={**os.environ, "BENCH_MOLECULES": settings})


if __name__ == "__main__":
    main()
