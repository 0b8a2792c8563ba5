"""From arrays to a trained and tested split of SMI2Mol: wall time and its parts, on the available device.

    python -m bench.smi2mol --data-dir FOLDER     # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA

On a GPU this is our model of Table 1 in full, for which the goal is six minutes. On a CPU the model and the data are
those of `python -m studies smi2mol --quick`, and the time only shows that all parts run.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from dsokr.compute import resolve_device
from dsokr.errors import InputError
from studies import smi2mol
from studies.results import name_hardware, read_rows
from studies.study import Session

GOAL = 360.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--split", type=int, default=0)
    options = parser.parse_args()
    device = resolve_device("auto")
    config = smi2mol.FULL if device.type == "cuda" else smi2mol.QUICK
    try:
        split = smi2mol.load_smi2mol(options.data_dir, options.split).cut(config.n_train)
    except InputError as error:
        print(f"left out: {error}")
        return
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        session = Session(Path(folder), device=device)
        smi2mol.run_model(config, config.models[1], split, options.split, session)
        total = time.perf_counter() - start
        (row,) = (row for row in read_rows(Path(folder) / "models.jsonl") if row["decoder"] == "GraphSearch")
    print(f"{len(split.train.smiles):,} training molecules, {name_hardware()}")
    for part, seconds in row["seconds"].items():
        print(f"  {part:10} {seconds:7.1f} s")
    goal = f", goal {GOAL:.0f} s" if device.type == "cuda" else ""
    print(f"  all        {total:7.1f} s (including the choice of rules and edit distances){goal}")


if __name__ == "__main__":
    main()
