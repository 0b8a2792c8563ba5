"""From arrays to a trained and tested split of SMI2Mol: wall time and its parts, on the device there is.

    python bench/smi2mol.py --data-dir FOLDER     # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA

On a GPU this is our model of Table 1 in full, for which the goal is six minutes. On a CPU the model and the data are
those of `dsokr reproduce smi2mol --quick`, and the time only shows that the parts are all there.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from studies.data.smi2mol import smi2mol
from dsokr.compute import resolve_device
from dsokr.errors import InputError
from studies import smi2mol as experiment
from studies.results import hardware, read_rows

GOAL = 360.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--split", type=int, default=0)
    options = parser.parse_args()
    device = resolve_device("auto")
    study = experiment.FULL if device.type == "cuda" else experiment.QUICK
    try:
        split = smi2mol(options.data_dir, options.split)
    except InputError as error:
        print(f"left out: {error}")
        return
    torch.set_float32_matmul_precision("high")
    split = experiment.cut(split, study.n_train)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        experiment.train_and_test(study, study.models[1], split, options.split, Path(folder), device, print)
        total = time.perf_counter() - start
        (row,) = (row for row in read_rows(Path(folder) / "models.jsonl") if row["decoder"] == "GraphSearch")
    print(f"{len(split.train.smiles):,} training molecules, {hardware()}")
    for part, seconds in row["seconds"].items():
        print(f"  {part:10} {seconds:7.1f} s")
    aim = f", goal {GOAL:.0f} s" if device.type == "cuda" else ""
    print(f"  all        {total:7.1f} s (choosing the rules and computing edit distances included){aim}")


if __name__ == "__main__":
    main()
