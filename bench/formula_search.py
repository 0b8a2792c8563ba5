"""The search of all molecules with and without the true formula, or mass: how often it finds the right one.

    python bench/formula_search.py --data-dir FOLDER     # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA

Coordinates are the true ones (*Perfect h*) of molecules of QM9 that are not candidates. A mass is known to 5 parts in
a million. Needs RDKit.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from rdkit import Chem
from rdkit.Chem import Descriptors, rdMolDescriptors
from torch import Generator, Tensor

from bench.graph_search import KERNEL
from dsokr import sketch_basis, sketches
from dsokr.basis import SketchedBasis
from dsokr.decoders import EmbeddedOutputs, GraphSearch
from dsokr.graphs import Graph
from dsokr.metrics import edit_distance
from studies.data.smi2mol import load_smi2mol

PPM = 5e-6


def give_formula(decoder: GraphSearch, smiles: str) -> GraphSearch:
    return replace(decoder, formula=rdMolDescriptors.CalcMolFormula(Chem.MolFromSmiles(smiles)))


def give_mass(decoder: GraphSearch, smiles: str) -> GraphSearch:
    mass = Descriptors.ExactMolWt(Chem.MolFromSmiles(smiles))
    return replace(decoder, mass=(mass * (1 - PPM), mass * (1 + PPM)))


CHOICES: dict[str, Callable[[GraphSearch, str], GraphSearch]] = {
    "free": lambda decoder, _: decoder,
    "formula": give_formula,
    "mass": give_mass,
}


def decode(basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, decoders: list[GraphSearch]) -> list[Graph]:
    """Decode every row by its own decoder; rows of equal decoders together."""
    found: dict[int, Graph] = {}
    for decoder in set(decoders):
        rows = [row for row, other in enumerate(decoders) if other == decoder]
        found |= zip(rows, decoder.decode(basis, z[rows], known).outputs, strict=True)
    return [found[row] for row in range(len(z))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--candidates", type=int, default=20_000)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 150, 500, 1_500], help="of the sketch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    split = load_smi2mol(options.data_dir)
    known, test = split.train.graphs[: options.candidates], split.test.rows(range(options.count))
    print(f"QM9, {options.count} molecules, {options.candidates:,} candidates, one thread")
    for m in options.sizes:
        basis = sketch_basis(KERNEL, known, sketches.SubSample(m), generator=Generator().manual_seed(0))
        embedded, z = EmbeddedOutputs(basis, known), basis.embed(test.graphs)
        for decoder in (GraphSearch(rule=rule, beam=8, budget=4_000) for rule in ("kernel", "projected")):
            shares = []
            for name, restrict in CHOICES.items():
                start = time.process_time()
                outputs = decode(basis, z, embedded, [restrict(decoder, smiles) for smiles in test.smiles])
                each = (time.process_time() - start) / options.count
                right = (edit_distance(outputs, test.graphs) == 0).double().mean().item()
                shares.append(f"{name} {right:.1%} ({1000 * each:.0f} ms)")
            print(f"  m = {m:5d}, {decoder.rule:10}", ", ".join(shares), flush=True)


if __name__ == "__main__":
    main()
