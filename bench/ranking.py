"""Ranking texts against a list of molecules of the size of ChEBI-20: 3,300 × 33,010, the ten best of each, on the CPU.

    python bench/ranking.py
    python bench/ranking.py --large    # 20,000 × 100,000, p = 500: the share of the matrix product, and memory

Coordinates are random. The goal, with p = 100 as in the paper, is two seconds on two cores; with the p = 2,000 of our
own models the multiplication alone takes three. The peer sorts all scores of a text, as public code of the field does.
The large one shares its processor time between the matrix product in single precision and everything else.
"""

import argparse
import resource
import time

import torch

from dsokr import kernels, sketches
from dsokr.basis import sketch_basis
from dsokr.decoders import EmbeddedOutputs
from dsokr.index import CandidateIndex
from dsokr.rules import RULES, score

TEXTS, MOLECULES, GOAL = 3_300, 33_010, 2.0
INPUTS, CANDIDATES, DIM, AT_ONCE, BLOCK = 20_000, 100_000, 500, 4096, 16_384  # of the large one


def rank_many(inputs: int, candidates: int) -> None:
    """Rank as `dsokr rank --index` does, and compare with the matrix product alone."""
    generator = torch.Generator().manual_seed(0)
    psi = torch.randn(candidates, DIM, generator=generator) / DIM**0.5
    z = torch.randn(inputs, DIM, generator=generator, dtype=torch.float64)
    index = CandidateIndex.in_memory([str(i) for i in range(candidates)], psi, torch.ones(candidates))
    start = time.process_time()
    for part in z.split(AT_ONCE):
        index.search(part, 10, "cosine")
    ours, memory = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.process_time()
    for part in z.float().split(1024):
        for block in psi.split(BLOCK):
            part @ block.T
    product = time.process_time() - start
    what = f"{inputs:,} × {candidates:,}, p = {DIM}: {ours:.1f} s of processor time"
    print(f"{what}, the matrix product alone {product:.1f} s ({product / ours:.0%}); memory {memory:.2f} GiB, goal 2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    options = parser.parse_args()
    if options.large:
        rank_many(options.inputs, options.candidates)
        return
    for p in (100, 400, 2000):
        generator = torch.Generator().manual_seed(0)
        vectors = torch.randn(MOLECULES, p, generator=generator, dtype=torch.float64) / p**0.5
        basis = sketch_basis(kernels.Linear(), vectors, sketches.SubSample(p), generator=generator)
        known = EmbeddedOutputs(basis, vectors, coordinates=(vectors, torch.linalg.vecdot(vectors, vectors)))
        z = torch.randn(TEXTS, p, generator=generator)
        for rule in RULES if p == 100 else RULES[:1]:
            start = time.perf_counter()
            ranking = known.top(z, 10, rule)
            ours = time.perf_counter() - start
            start = time.perf_counter()
            some = slice(TEXTS // 10)
            order = score(z[some], *known.coordinates(), rule).argsort(dim=1, descending=True)
            peer = 10 * (time.perf_counter() - start)
            assert (order[:, :10] == ranking.indices[some]).double().mean() > 0.999
            goal = f", goal {GOAL:g} s" if p == 100 else ""
            ratio = f"sorting all takes {peer:.0f} s, {peer / ours:.1f} times as long"
            print(f"p = {p}, {rule}: {ours:.2f} s{goal}; {ratio}")
    threads = torch.get_num_threads()
    print(f"{threads} thread{'s' * (threads > 1)}")


if __name__ == "__main__":
    main()
