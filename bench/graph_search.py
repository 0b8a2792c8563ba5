"""The search of all molecules: time per molecule on one core, and how often it finds the right one.

    python bench/graph_search.py --data-dir FOLDER     # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA

Without QM9 it takes generated molecules, and says so. Coordinates are the true ones of molecules that are not
candidates, with noise: its size is the error of the networks of the SMI2Mol study.
"""

import argparse
import os
import time

import torch
from torch import Generator

from dsokr import sketch_basis, sketches
from dsokr.decoders import EmbeddedOutputs, GraphSearch
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from studies.data.molecules import generate
from studies.data.smi2mol import load_smi2mol

KERNEL = (
    WeisfeilerLehman(3).normalized()
    + WeisfeilerLehman(2, edge_labels=True).normalized()
    + ShortestPath().normalized()
    + 10.0 * ShortestPath(labels=False).normalized()
)
NOISE = 0.045  # mean squared distance of predicted coordinates from the true ones


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
    for beam, budget in ((4, 2_000), (8, 4_000), (16, 8_000)):
        decoder = GraphSearch(rule="kernel", starts=beam, beam=beam, budget=budget)
        start = time.process_time()
        found = decoder.decode(basis, z, embedded)
        each = (time.process_time() - start) / count
        right = (edit_distance(found.outputs, others) == 0).double().mean().item()
        missed = (found.scores < basis.score(z, others).diagonal() - 1e-6).double().mean().item()
        print(
            f"  beam {beam:2d}, budget {budget:5d}: {1000 * each:6.1f} ms a molecule, {right:.1%} exact, "
            f"{missed:.1%} below the truth's score"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--candidates", type=int, default=20_000)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--size", type=int, default=1_500, help="of the sketch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    search(options.data_dir, options.candidates, options.count, options.size)


if __name__ == "__main__":
    main()
