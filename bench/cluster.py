"""Embedding a library on one process, on two, and on a Ray cluster of two workers: the rates, and their ratios.

    python bench/cluster.py --data-dir FOLDER               # FOLDER/qm9/qm9_smiles_133882.txt.gz; or set DSOKR_DATA
    python bench/cluster.py --count 20000 --size 200        # fewer molecules, a smaller basis

Without the data, molecules made by the package stand in. Every way runs in a process of its own, one after the other.
The start of the cluster and the import of the package by its workers are timed apart. The three results must agree.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dsokr import DSOKR, kernels, sketches
from dsokr.commands.columns import Molecule, Vector
from dsokr.commands.embed import embed
from dsokr.commands.options import EmbedOptions
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems
from dsokr.index.candidates import FILES
from dsokr.regressors import KernelRidge

FILE = Path("qm9") / "qm9_smiles_133882.txt.gz"
WAYS = {"one process": 1, "two processes": 2, "Ray, two workers": 2}


def molecules(folder: str | None, count: int) -> tuple[list[str], str]:
    if folder and (path := Path(folder) / FILE).exists():
        return gzip.decompress(path.read_bytes()).decode().split()[:count], "QM9"
    from dsokr import chem
    from studies.data.molecules import generate

    return chem.many_smiles(generate(count, seed=0)), "generated molecules"


def fit(smiles: list[str], size: int, out: Path) -> None:
    some = smiles[:: max(1, len(smiles) // 2000)]
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(size), KernelRidge(), random_state=0, device="cpu")
    lengths = [str(len(text)) for text in some]
    Predictor.fit(model, Vector(columns=("x",)), Molecule(columns=("smiles",)), lengths, some).save(out)


def run(way: str, folder: Path) -> dict[str, float]:
    """Embed once, and for Ray make an index of the shards, to be compared."""
    options, started = EmbedOptions(model=folder / "model", library=folder / "library.smi", out=folder / way), 0.0
    if way.startswith("Ray"):
        import ray

        from dsokr.commands.cluster import connect

        begin = time.monotonic()
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        with connect("local") as cluster:
            list(cluster.starmap(Predictor.load, [(folder / "model", "cpu")] * 4))  # workers import the package
        started = time.monotonic() - begin
        shards = folder / "shards"
        options = EmbedOptions(model=options.model, library=options.library, out=shards, ray="local")
    facts = embed(options, Problems(), say=lambda *_, **__: None).facts
    if way.startswith("Ray"):
        embed(
            EmbedOptions(model=options.model, library=shards, out=folder / way), Problems(), say=lambda *_, **__: None
        )
    return {"seconds": facts["seconds"], "candidates": facts["candidates"], "start": started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("DSOKR_DATA"))
    parser.add_argument("--count", type=int, default=133_882)
    parser.add_argument("--size", type=int, default=500, help="of the basis")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(run(options.way, Path(options.data_dir))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder, (smiles, what) = Path(name), molecules(options.data_dir, options.count)
        (folder / "library.smi").write_text("\n".join(smiles))
        fit(smiles, options.size, folder / "model")
        print(f"{len(smiles):,} {what}, p = {options.size}, {os.cpu_count()} cores")
        rates: dict[str, float] = {}
        for way, processes in WAYS.items():
            threads = "1" if way.startswith("Ray") else str(processes)
            limits = {"LOKY_MAX_CPU_COUNT": str(processes), "OMP_NUM_THREADS": threads}
            command = [sys.executable, __file__, "--way", way, "--data-dir", name]
            done = subprocess.run(command, check=True, env={**os.environ, **limits}, stdout=subprocess.PIPE, text=True)
            facts = json.loads(done.stdout.splitlines()[-1])
            rates[way] = facts["candidates"] / facts["seconds"]
            ratio = rates[way] / rates["one process"]
            start = f", after {facts['start']:.0f} s to start" if facts["start"] else ""
            print(f"{way:<17} {facts['seconds']:7.1f} s {rates[way]:8,.0f}/s  {ratio:.2f} x{start}", flush=True)
        first, *others = ([(folder / way / file).read_bytes() for file in FILES] for way in WAYS)
        print("the same bytes" if all(other == first for other in others) else "OTHER RESULTS")


if __name__ == "__main__":
    main()
