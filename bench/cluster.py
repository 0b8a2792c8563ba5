"""Embedding a library on one process, on two, and on a Ray cluster of two workers: the rates, and their ratios.

    PYTHONPATH=. python bench/cluster.py --library molecules.csv.gz       # a file with a column of SMILES
    PYTHONPATH=. python bench/cluster.py --count 20000 --size 200         # generated molecules, a smaller basis

Every way runs in a process of its own, one after the other. The start of the cluster and the import of the package by
its workers are timed apart. The three results must agree. A row is appended to results/scale/cluster.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dsokr import DSOKR, chem, kernels, sketches
from dsokr.commands.columns import Molecule, Vector
from dsokr.commands.embed import embed
from dsokr.commands.options import EmbedOptions
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems, Table
from dsokr.index.stored import FILES
from dsokr.regressors import KernelRidge
from studies.data.molecules import generate
from studies.results import Results

ONE = "one process"
WAYS = {ONE: 1, "two processes": 2, "Ray, two workers": 2}


def molecules(library: Path | None, count: int) -> list[str]:
    if library is not None:
        table = Table(library)
        column = next(name for name in table.columns if name.lower() == "smiles")
        return next(table.blocks(Problems(), [column], count)).cells[column]
    return chem.many_smiles(generate(count, seed=0))


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
    parser.add_argument("--library", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=500, help="of the basis")
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(run(options.way, options.out)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder, smiles = Path(name), molecules(options.library, options.count)
        (folder / "library.smi").write_text("\n".join(smiles))
        fit(smiles, options.size, folder / "model")
        print(f"{len(smiles):,} molecules, p = {options.size}, {os.cpu_count()} cores")
        found: dict[str, float] = {}
        for way, processes in WAYS.items():
            threads = "1" if way.startswith("Ray") else str(processes)
            limits = {"LOKY_MAX_CPU_COUNT": str(processes), "OMP_NUM_THREADS": threads}
            command = [sys.executable, __file__, "--way", way, "--out", name]
            done = subprocess.run(command, check=True, env={**os.environ, **limits}, stdout=subprocess.PIPE, text=True)
            facts = json.loads(done.stdout.splitlines()[-1])
            found[way] = facts["candidates"] / facts["seconds"]
            found["Ray, start, s"] = facts["start"]
            print(
                f"{way:<17} {facts['seconds']:7.1f} s {found[way]:8,.0f}/s, {found[way] / found[ONE]:.2f} x", flush=True
            )
        first, *others = ([(folder / way / file).read_bytes() for file in FILES] for way in WAYS)
        found["same bytes"] = all(other == first for other in others)
        key = {"experiment": "cluster", "candidates": len(smiles), "p": options.size}
        Results(options.out / "cluster.jsonl").record(key, lambda: {"metrics": found})
        print("the same bytes" if found["same bytes"] else "OTHER RESULTS")


if __name__ == "__main__":
    main()
