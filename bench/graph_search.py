"""The search of all molecules: time per molecule on one core, and how often it finds the right one.

    python bench/graph_search.py --data-dir FOLDER     # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA
    python bench/graph_search.py --chebi20             # by size: 9, 15, 20, 30 and 40 atoms; FOLDER/chebi20

Without QM9 it takes generated molecules, and says so. Coordinates of QM9 are the true ones of molecules that are not
candidates, with noise: its size is the error of the networks of the SMI2Mol study. On ChEBI-20 they are the true ones
of test molecules, with charges and stereochemistry; the candidates are the training molecules.
"""

import argparse
import os
import time

import numpy as np
import torch
from torch import Generator

from dsokr import sketch_basis, sketches
from dsokr.decoders import EmbeddedOutputs, GraphSearch, LabelledGraphs
from dsokr.decoders.familiar import Familiar
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from studies.data.chebi20 import load_chebi20
from studies.data.molecules import generate
from studies.data.smi2mol import load_smi2mol

KERNEL = (
    WeisfeilerLehman(3).normalized()
    + WeisfeilerLehman(2, edge_labels=True).normalized()
    + ShortestPath().normalized()
    + 10.0 * ShortestPath(labels=False).normalized()
)
LARGE = WeisfeilerLehman(3, edge_labels=True).normalized()
NOISE = 0.045  # mean squared distance of predicted coordinates from the true ones
SIZES = (9, 15, 20, 30, 40)  # atoms


def data(folder: str | None, candidates: int, count: int) -> tuple[GraphBatch, GraphBatch, str]:
    try:
        split = load_smi2mol(folder)
    except InputError:
        made = GraphBatch.of(generate(candidates + count, seed=0))
        return made[:candidates], made[candidates:], "generated molecules"
    return split.train.graphs[:candidates], split.test.graphs[:count], "QM9"


def search(folder: str | None, candidates: int, count: int, m: int) -> None:
    known, others, source = data(folder, candidates, count)
    basis = sketch_basis(KERNEL, known, sketches.SubSample(m), generator=Generator().manual_seed(0))
    z = basis.embed(others)
    noise = torch.randn(z.shape, generator=Generator().manual_seed(1), dtype=z.dtype)
    z = z + noise * (NOISE / z.shape[1]) ** 0.5
    embedded = EmbeddedOutputs(basis, known)
    GraphSearch(rule="kernel").decode(basis, z[:2], embedded)  # compile, and embed the candidates
    print(f"{source}, {count} molecules, {candidates:,} candidates, m = {m}, one thread")
    for rule, beam, budget in (
        ("kernel", 4, 2_000),
        ("kernel", 8, 4_000),
        ("projected", 8, 4_000),
        ("kernel", 32, 8_000),
        ("projected", 32, 8_000),
    ):
        decoder = GraphSearch(rule=rule, beam=beam, budget=budget)
        start = time.process_time()
        found = decoder.decode(basis, z, embedded)
        each = (time.process_time() - start) / count
        right = (edit_distance(found.outputs, others) == 0).double().mean().item()
        missed = (found.scores < basis.score(z, others, rule).diagonal() - 1e-6).double().mean().item()
        print(
            f"  {rule}, beam {beam:2d}, budget {budget:5d}: {1000 * each:6.1f} ms a molecule, {right:.1%} exact, "
            f"{missed:.1%} below the truth's score",
            flush=True,
        )


def search_by_size(folder: str | None, count: int, m: int, pieces: int, beam: int, budget: int) -> None:
    """Perfect h on ChEBI-20, for molecules of each size."""
    task = load_chebi20(folder)
    graphs, train = task.molecules.graphs, np.unique(task.train.rows)
    known, tested = graphs[train], np.setdiff1d(task.test.rows, train)
    sizes = np.diff(graphs.offsets)
    basis = sketch_basis(LARGE, known, sketches.SubSample(m), generator=Generator().manual_seed(0))
    embedded, domain = EmbeddedOutputs(basis, known), LabelledGraphs.like(known)
    decoder = GraphSearch(domain, "projected", beam=beam, budget=budget, pieces=pieces)
    decoder.decode(basis, basis.embed(known[:2]), embedded)  # compile, and embed the candidates
    print(f"ChEBI-20, {len(known):,} candidates, p = {basis.dim}, one thread; {beam=}, {budget=:,}, {pieces=}")
    shares = (Familiar.of(known, domain, radius).contains(graphs[tested]).mean() for radius in (1, 2, 3))
    print(f"  familiar test molecules, radius 1 to 3: {', '.join(f'{share:.1%}' for share in shares)}")
    for size in SIZES:
        rows = np.random.default_rng(0).permutation(tested[sizes[tested] == size])[:count]
        truth = graphs[rows]
        z = basis.embed(truth)
        start = time.process_time()
        found = decoder.decode(basis, z, embedded)
        each = (time.process_time() - start) / len(rows)
        proved = (
            decoder.prove(basis, z, found.scores).double().mean().item()
        )  # the truth has the score 0, none has more
        listed = embedded.top(z, 1, "projected").scores[:, 0]
        right = [
            list(LARGE.features([a]).rows()) == list(LARGE.features([b]).rows())
            for a, b in zip(found.outputs, truth, strict=True)
        ]
        print(
            f"  {size} atoms, {len(rows)}: {each:5.2f} s a molecule, {np.mean(right):.1%} exact, {proved:.1%} proved, "
            f"distance {-found.scores.mean().item():.4f}, of the best candidate {-listed.mean().item():.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--chebi20", action="store_true")
    parser.add_argument("--candidates", type=int, default=20_000)
    parser.add_argument("--count", type=int, default=None, help="of molecules; 200, or 30 of each size")
    parser.add_argument("--size", type=int, default=None, help="of the sketch; 1,500, or 1,000")
    parser.add_argument("--pieces", type=int, default=32)
    parser.add_argument("--beam", type=int, default=32)
    parser.add_argument("--budget", type=int, default=40_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.chebi20:
        own = (options.count or 30, options.size or 1_000, options.pieces, options.beam, options.budget)
        search_by_size(options.data_dir, *own)
    else:
        search(options.data_dir, options.candidates, options.count or 200, options.size or 1_500)


if __name__ == "__main__":
    main()
