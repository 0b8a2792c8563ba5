"""A million candidates on disk: how fast they are written and searched, against the goals.

    python bench/index.py                              # generated vectors
    python bench/index.py --library molecules.smi.gz   # your own molecules, embedded by a WL kernel
    python bench/index.py --count 100000 --kinds exact hnsw ivfpq

Without a library there are two kinds of candidates. "noise" is Gaussian in all dimensions: all candidates are about as
far from a query, so no graph leads to the nearest, and HNSW is at its worst. "clustered" has 2,000 groups within a
decaying spectrum, as coordinates of real outputs have. Queries are 0.7 ψ̃(y) + 0.3 ψ̃(y'), between two candidates.
Goals, on two cores: exact top-10 under 15 ms per query in batches of 64; HNSW under 2 ms at recall@10 ≥ 0.95.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dsokr import kernels, sketch_basis, sketches
from dsokr.index import Block, BuildOptions, CandidateIndex, build, fingerprint
from dsokr.index.build import sample_queries

BLOCK, BATCH, K = 8192, 64, 10
EXACT_GOAL, HNSW_GOAL, RECALL_GOAL = 15.0, 2.0, 0.95
RULE = "cosine"


class Source(NamedTuple):
    name: str
    dim: int
    blocks: object  # a function from the first row to blocks
    model: str = "bench"


def noise(count: int, dim: int) -> Source:
    def blocks(start: int) -> Iterator[Block]:
        for at in range(start, count, BLOCK):
            rng = np.random.default_rng(at)
            yield _vectors(at, rng.normal(size=(min(BLOCK, count - at), dim)))

    return Source("noise", dim, blocks)


def clustered(count: int, dim: int) -> Source:
    spectrum = np.arange(1, dim + 1) ** -0.75
    centres = np.random.default_rng(1).normal(size=(2000, dim)) * spectrum

    def blocks(start: int) -> Iterator[Block]:
        for at in range(start, count, BLOCK):
            rng = np.random.default_rng(at)
            n = min(BLOCK, count - at)
            yield _vectors(at, centres[rng.integers(2000, size=n)] + 0.4 * rng.normal(size=(n, dim)) * spectrum)

    return Source("clustered", dim, blocks)


def _vectors(at: int, rows: np.ndarray) -> Block:
    psi = torch.from_numpy(rows / np.linalg.norm(rows, axis=1).mean())
    return Block([f"y{at + i}" for i in range(len(rows))], psi, torch.ones(len(rows)) * 1.2)


def molecules(library: Path, count: int, dim: int) -> Source:
    """Molecules of a file, in a basis of ``dim`` anchors under the normalised Weisfeiler-Lehman kernel."""
    from dsokr import chem
    from dsokr.commands.tables import Problems, Table

    def texts() -> Iterator[list[str]]:
        table, left = Table(library), count
        column = "smiles" if "smiles" in table.columns else table.columns[0]
        for rows in table.blocks(Problems(), [column], BLOCK):
            yield rows.cells[column][:left]
            left -= len(rows.cells[column])
            if left <= 0:
                return

    anchors = chem.graphs(next(texts())[:dim])
    kernel = kernels.WeisfeilerLehman(3, edge_labels=True).normalized()
    basis = sketch_basis(kernel, anchors, sketches.Full())

    def blocks(start: int) -> Iterator[Block]:
        for smiles in texts():
            graphs = chem.graphs(smiles)
            yield Block(smiles, basis.embed(graphs), basis.diag(graphs))

    return Source(library.name, basis.dim, blocks, fingerprint(basis))


def memory() -> str:
    """Memory of this process, without mapped files."""
    with open("/proc/self/status") as status:
        sizes = dict(line.split(":", 1) for line in status)
    anonymous = int(sizes["RssAnon"].split()[0]) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"{anonymous:.2f} GiB without mapped files, peak {peak:.2f} GiB with them"


def verdict(value: float, goal: float) -> str:
    return f"goal < {goal:g}: {'reached' if value < goal else 'MISSED'}"


def measure(index: CandidateIndex, z: torch.Tensor, repeats: int) -> tuple[float, float, float]:
    """Milliseconds per query in batches of 64, the fastest of some runs; and median and p99 of single queries."""
    index.search(z[:BATCH], K, RULE)
    batches, singles = [], []
    for run in range(repeats):
        part = z[run * BATCH % len(z) :][:BATCH]
        start = time.perf_counter()
        index.search(part, K, RULE)
        batches.append(1000 * (time.perf_counter() - start) / len(part))
    for row in z[: 100 * repeats].split(1):
        start = time.perf_counter()
        index.search(row, K, RULE)
        singles.append(1000 * (time.perf_counter() - start))
        if sum(singles) > 20_000:
            break
    return min(batches), float(np.percentile(singles, 50)), float(np.percentile(singles, 99))


def report(source: Source, kinds: list[str], dtype: str, folder: Path, repeats: int) -> None:
    goals = {"exact": EXACT_GOAL, "hnsw": HNSW_GOAL}
    for kind in kinds:
        options = BuildOptions(kind, RULE, dtype, RECALL_GOAL)
        start = time.perf_counter()
        index = build(folder, source.blocks, model=source.model, dim=source.dim, source=source.name, options=options)
        rate = len(index) / (time.perf_counter() - start)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
        made = f"{len(index):,} × {source.dim}, {dtype}: built at {rate:,.0f}/s, {size:,.0f} MiB on disk"
        print(f"{source.name}, {kind}, {made}")
        batch, median, slow = measure(index, sample_queries(index, 512, seed=1), repeats)
        goal = f" ({verdict(batch, goals[kind])})" if kind in goals else ""
        head = index.head
        recall = "" if head.recall is None else f", recall@10 {head.recall:.3f} at effort {head.effort}"
        alone = f"alone p50 {median:.2f}, p99 {slow:.2f} ms"
        print(f"  {batch:.2f} ms per query in batches of {BATCH}{goal}; {alone}{recall}")
        print(f"  memory {memory()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["exact", "hnsw"])
    parser.add_argument("--sources", nargs="+", default=["clustered", "noise"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="for exact search")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, threads of exact search: {options.threads}")
    generated = {"noise": noise, "clustered": clustered}
    sources = [generated[name](options.count, options.dim) for name in options.sources]
    if options.library:
        sources = [molecules(options.library, options.count, options.dim)]
    for source in sources:
        with tempfile.TemporaryDirectory() as folder:
            report(source, options.kinds, options.dtype, Path(folder) / "bench.idx", options.repeats)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
