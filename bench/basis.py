"""The basis against scikit-learn's Nystroem, and the memory of a dense sketch of many outputs.

    python bench/basis.py

Both are measured in one run. Peak memory is that of a process of its own.
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.kernel_approximation import Nystroem

from dsokr import kernels, sketch_basis, sketches

GIB = 2**20  # in the KiB that getrusage counts


def best_of(runs: int, work: Callable[[], object]) -> float:
    """The shortest of several wall-clock times."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def against_nystroem(n: int, m: int, dim: int, runs: int) -> None:
    """Basis and embedding of n outputs from m anchors, and the kernel that comes out."""
    ys = np.random.default_rng(0).normal(size=(n, dim))
    cases = [
        ("Gaussian(0.05)", kernels.Gaussian(0.05), {"kernel": "rbf", "gamma": 0.05}),
        ("Laplacian(0.02)", kernels.Laplacian(0.02), {"kernel": "laplacian", "gamma": 0.02}),
        ("Polynomial(3)", kernels.Polynomial(3), {"kernel": "poly", "degree": 3, "gamma": 1.0, "coef0": 1.0}),
        ("Cosine()", kernels.Cosine(), {"kernel": "cosine"}),
    ]
    print(
        f"basis and embedding, n = {n:,}, m = {m}, {dim} dimensions, {torch.get_num_threads()} threads, best of {runs}"
    )
    for name, kernel, arguments in cases:
        peer = Nystroem(n_components=m, random_state=0, **arguments).fit(ys)
        sketch = sketches.Sketch(torch.from_numpy(peer.component_indices_.astype(np.int64)))
        basis = sketch_basis(kernel, ys, sketch)
        z, w = basis.embed(ys[:2000]), torch.from_numpy(peer.transform(ys[:2000]))
        difference = (z @ z.T - w @ w.T).abs().max().item() / (w @ w.T).abs().max().item()
        theirs = best_of(runs, lambda peer=peer: peer.fit_transform(ys))
        ours = best_of(runs, lambda kernel=kernel, sketch=sketch: sketch_basis(kernel, ys, sketch).embed(ys))
        print(
            f"  {name:16} p = {basis.dim:3}: Nystroem {theirs:6.2f} s, ours {ours:6.2f} s, {theirs / ours:5.2f}x; "
            f"kernels differ by {difference:.1e}"
        )


def _dense_sketch(kernel: kernels.Kernel, n: int, m: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    ys = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB
    start = time.perf_counter()
    basis = sketch_basis(kernel, ys, sketches.Gaussian(m), generator=generator)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB
    print(
        f"  {kernel!s:16} p = {basis.dim}: {seconds:6.1f} s, peak {peak:.2f} GiB (with the outputs alone {before:.2f})"
    )


def memory(n: int, m: int, dim: int, slow: bool) -> None:
    """A Gaussian sketch of everything: n × n would be far larger than what is used."""
    print(
        f"Gaussian sketch, n = {n:,}, m = {m}, {dim} dimensions; the Gram matrix would be {8 * n * n / 2**30:.0f} GiB"
    )
    for kernel in [kernels.Cosine()] + ([kernels.Gaussian(0.001)] if slow else []):
        process = multiprocessing.get_context("spawn").Process(target=_dense_sketch, args=(kernel, n, m, dim))
        process.start()
        process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="also a kernel without explicit features: ten minutes")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    against_nystroem(50_000 // scale, 500 // scale, 100, runs=3)
    memory(131_382 // scale, 400 // scale, 300, options.slow)
