"""How the time of each decoder grows with the size of what it decodes.

    python bench/decoders.py            # or: python bench/decoders.py --only kemeny

Every step doubles the number d of labels, items, letters or coordinates; exact Kemeny aggregation adds one item, which
doubles the number of subsets, and scoring all label sets one label. The ratio of times is printed beside the ratio of
the costs documented in docs/decoders.md; times that grow more slowly are still dominated by constant parts. Coordinates
are noise, the hardest case: rankings have long cycles. Compilation is not counted.
"""

import argparse
import time
from collections.abc import Callable
from math import factorial
from typing import Any, NamedTuple

import numpy as np
import torch

from dsokr import decoders, kernels, sketch_basis, sketches
from dsokr.decoders import Decoder, EmbeddedOutputs
from dsokr.kernels import Kernel

SEEN, ANCHORS = 1000, 200
MANY = 500  # anchors where all sets are scored
LETTERS = 8  # of the alphabet
ROWS = 200


class Case(NamedTuple):
    """A decoder, the kernel of its basis, and outputs of several sizes."""

    name: str
    decoder: Decoder
    kernel: Kernel
    outputs: Callable[[int], Any]  # from a size to SEEN outputs
    sizes: tuple[int, ...]
    growth: Callable[[int], float]  # the documented cost of a size, up to a factor
    rows: int = ROWS
    anchors: int = ANCHORS
    call: Callable[..., Any] = Decoder.decode  # of the decoder, a basis, coordinates and known outputs


def find_ten(decoder: Decoder, *given: Any) -> Any:
    return decoder.best(*given, k=10)


def count_above_zero(decoder: Decoder, *given: Any) -> Any:
    return decoder.count(*given, threshold=0.0)


def label_sets(d: int) -> np.ndarray:  # (SEEN, d)
    """About four labels each, whatever d is."""
    return (np.random.default_rng(d).random((SEEN, d)) < 4 / d).astype(np.int64)


def many_sets(d: int) -> np.ndarray:  # (SEEN, d)
    """Distinct sets, as far as there are as many."""
    return np.random.default_rng(d).permutation(2**d)[:SEEN, None] >> np.arange(d) & 1


def two_to(d: int) -> float:
    return 2.0**d


def rankings(d: int) -> np.ndarray:  # (SEEN, d)
    return np.random.default_rng(d).permuted(np.tile(np.arange(d), (SEEN, 1)), axis=1)


def strings(length: int) -> list[str]:
    letters = np.random.default_rng(length).integers(LETTERS, size=(SEEN, length))
    return ["".join(chr(ord("a") + i) for i in row) for row in letters]


def vectors(d: int) -> np.ndarray:  # (SEEN, d)
    """Of length 1 on average, whatever d is, so that one width of the kernel suits all."""
    return np.random.default_rng(d).normal(size=(SEEN, d)) / d**0.5


def sets_cost(d: int) -> float:
    """For every flip a pass over the labels of all anchors; once for all rows d² values per size of anchor."""
    return 4 * ANCHORS + d + 10 * d**2 / ROWS


D = (20, 40, 80, 160, 320)
E = (10, 11, 12, 13, 14)
L = (16, 17, 18, 19, 20)
K = (5, 10, 20, 40, 80)
V = (128, 256, 512, 1024, 2048)
CASES = [
    Case("label sets, Tanimoto", decoders.LabelSet(), kernels.Tanimoto(), label_sets, D, sets_cost),
    Case("label sets, Gaussian", decoders.LabelSet(), kernels.Gaussian(0.2), label_sets, D, sets_cost),
    Case("label sets, linear", decoders.LabelSet(), kernels.Linear(), label_sets, D, sets_cost),
    *(
        Case("label sets, all scored", decoders.LabelSet(), kernels.Tanimoto(), many_sets, E, two_to, rows, MANY)
        for rows in (1, ROWS)
    ),
    *(
        Case(f"label sets, {name}", decoders.LabelSet(), kernels.Tanimoto(), many_sets, L, two_to, rows, MANY, call)
        for name, call in (("ten best", find_ten), ("count", count_above_zero))
        for rows in (1, 50)
    ),
    *(
        Case(f"rankings, {type(k).__name__}, ten best", decoder, k, rankings, (10, 20, 40), cost, 20, call=find_ten)
        for decoder, k, cost in (
            (decoders.HammingRanking(), kernels.Hamming(), lambda d: d**4),
            (decoders.Lehmer(), kernels.Lehmer(), lambda d: d**3),
        )
    ),
    *(
        Case(f"rankings, Kemeny, {name}", decoders.Kemeny(), kernels.Kemeny(), rankings, (7, 8), factorial, call=call)
        for name, call in (("ten best of all", find_ten), ("count", count_above_zero))
    ),
    Case(
        "rankings, Kemeny, ten best by moves",
        decoders.Kemeny(1),
        kernels.Kemeny(),
        rankings,
        (10, 20, 40),
        lambda d: d**3,
        20,
        call=find_ten,
    ),
    Case("rankings, Hamming", decoders.HammingRanking(), kernels.Hamming(), rankings, K, lambda d: d**3),
    Case("rankings, Lehmer", decoders.Lehmer(), kernels.Lehmer(), rankings, K, lambda d: d**2),
    Case("rankings, Kemeny by moves", decoders.Kemeny(1), kernels.Kemeny(), rankings, K, lambda d: d**3),
    Case(
        "rankings, Kemeny exactly",
        decoders.Kemeny(16),
        kernels.Kemeny(),
        rankings,
        (12, 13, 14, 15, 16),
        lambda d: 2**d * d,
    ),
    Case(
        "strings, 2-grams, beam of 128",
        decoders.NGram(beam=128),
        kernels.NGram(2),
        strings,
        (5, 10, 20, 40, 80),
        lambda length: 128 * length * (length + LETTERS),
        rows=20,
    ),
    Case("vectors, Gaussian", decoders.Gradient(), kernels.Gaussian(0.5), vectors, V, lambda d: d),
    Case("vectors, linear", decoders.Gradient(), kernels.Linear(), vectors, V, lambda d: d),
]


def seconds_per_row(case: Case, size: int, runs: int) -> float:
    """The shortest of several wall-clock times; the candidates are embedded before."""
    generator = torch.Generator().manual_seed(size)
    ys = case.outputs(size)
    basis = sketch_basis(case.kernel, ys, sketches.SubSample(case.anchors), generator=generator)
    known = EmbeddedOutputs(basis, ys)
    z = torch.randn(case.rows, basis.dim, generator=generator, dtype=torch.float64)
    z *= (basis.diag(ys).mean() / basis.dim).sqrt()
    case.call(case.decoder, basis, z[:1], known)
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        case.call(case.decoder, basis, z, known)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / case.rows


def report(case: Case, runs: int) -> None:
    print(f"{case.name}, {case.rows} rows, {case.anchors} anchors")
    before, smaller = None, 0
    for size in case.sizes:
        taken = seconds_per_row(case, size, runs)
        ratio = ""
        if before is not None:
            ratio = f", {taken / before:5.2f}x (documented {case.growth(size) / case.growth(smaller):.2f}x)"
        print(f"  d = {size:3}: {1000 * taken:8.3f} ms a row{ratio}")
        before, smaller = taken, size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the cases with this in their name")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"candidates: {SEEN}, threads: {torch.get_num_threads()}, runs: {options.runs}")
    for case in CASES:
        if options.only.lower() in case.name.lower():
            report(case, options.runs)
