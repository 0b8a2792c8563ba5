"""Candidates within 10 ppm of a mass, of a million: milliseconds a query, alone and 64 at once, against the goals.

    python bench/possible.py                       # generated coordinates, masses of random C, H, N, O formulas
    python bench/possible.py --index library.idx   # your own, with a column exact_mass

Goals, on two cores: one query under 1 ms, 64 at once under 10 ms, exactly. The same queries over all candidates for
comparison, and with an index that is not sorted by mass, whose candidates are read from all over the disk.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from dsokr.decoders.pools import size_of
from dsokr.index import Block, BuildOptions, CandidateIndex, Condition, build
from dsokr.index.build import sample_queries

K, BATCH, BLOCK, RULE = 10, 64, 65536, "cosine"
GOALS = {1: 1.0, BATCH: 10.0}


def make_blocks(count: int, dim: int, start: int):
    spectrum = np.arange(1, dim + 1) ** -0.75
    for at in range(start, count, BLOCK):
        rng = np.random.default_rng(at)
        n = min(BLOCK, count - at)
        atoms = rng.integers([10, 0, 0], [25, 6, 8], size=(n, 3))
        hydrogens = rng.integers(atoms[:, 0], 2 * atoms[:, 0] + 2)
        masses = atoms @ [12.0, 14.003074, 15.994915] + 1.007825 * hydrogens
        psi = torch.from_numpy(rng.normal(size=(n, dim)) * spectrum)
        cells = {"exact_mass": [f"{mass:.6f}" for mass in masses]}
        yield Block([f"y{at + i}" for i in range(n)], psi, psi.square().sum(dim=1) + 0.1, cells=cells)


def time_queries(index: CandidateIndex, batch: int, repeats: int, is_free: bool) -> tuple[np.ndarray, float]:
    """Milliseconds of searches for so many inputs each, and the mean number of possible candidates."""
    z, rng = sample_queries(index, batch * repeats, seed=1), np.random.default_rng(2)
    masses = index.arrays.columns.numbers("exact_mass")
    centres = masses[rng.integers(len(masses), size=len(z))]
    condition = Condition.within("exact_mass", centres * (1 - 1e-5), centres * (1 + 1e-5))
    index.search(z[:batch], K, RULE, () if is_free else [condition.take(slice(batch))])  # maps files, sorts columns
    taken = []
    for run in range(repeats):
        part = slice(run * batch, (run + 1) * batch)
        start = time.perf_counter()
        index.search(z[part], K, RULE, () if is_free else [condition.take(part)])
        taken.append(1000 * (time.perf_counter() - start))
    sizes = [size_of(pool) for pool in index.arrays.columns.find([condition])]
    return np.array(taken), float(np.mean(sizes))


def report(index: CandidateIndex, name: str) -> None:
    for batch, goal in GOALS.items():
        taken, size = time_queries(index, batch, 200 if batch == 1 else 20, is_free=False)
        median, slow = np.percentile(taken, [50, 99])
        verdict = f"goal < {goal:g}: {'reached' if median < goal else 'MISSED'}"
        print(
            f"{name}, {batch} at once: p50 {median:.2f}, p99 {slow:.2f} ms ({verdict}); {size:,.0f} possible on average"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--index", type=Path)
    options = parser.parse_args()
    if options.index:
        index = CandidateIndex.open(options.index)
        report(index, f"{len(index):,} of {options.index}, sorted by {index.head.sorted_by or 'nothing'}")
        return
    with tempfile.TemporaryDirectory() as folder:
        parts = {"model": "bench", "dim": options.dim, "columns": ["exact_mass"]}
        for sort in (None, "exact_mass"):
            start = time.perf_counter()
            made = BuildOptions(sort_by=sort)
            index = build(folder, lambda at: make_blocks(options.count, options.dim, at), options=made, **parts)
            print(f"{'sorted' if sort else 'built'} in {time.perf_counter() - start:.0f} s")
            report(index, "sorted" if sort else "unsorted")
        taken, _ = time_queries(index, BATCH, 3, is_free=True)
        print(f"all candidates, {BATCH} at once: {np.median(taken):.0f} ms")


if __name__ == "__main__":
    main()
