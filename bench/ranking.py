"""Ranking texts against a list of molecules of the size of ChEBI-20: 3,300 × 33,010, the ten best of each, on the CPU.

    python bench/ranking.py

Coordinates are random. The goal, with p = 100 as in the paper, is two seconds on two cores; with the p = 2,000 of our
own models the multiplication alone takes three. The peer sorts all scores of a text, as public code of the field does.
"""

import time

import torch

from dsokr import kernels, sketches
from dsokr.basis import sketch_basis
from dsokr.decoders import EmbeddedOutputs
from dsokr.rules import RULES, score

TEXTS, MOLECULES, GOAL = 3_300, 33_010, 2.0


def main() -> None:
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
