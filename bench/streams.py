"""Training on a stream of Parquet files: pairs a second, and memory, as the number of pairs grows.

    PYTHONPATH=. python bench/streams.py --counts 100000 1000000

Inputs are 32 numbers, outputs sets of 16 labels, the basis has 500 anchors, the network one hidden layer. One epoch for
every number of pairs, each in a process of its own, beside the same training in memory. Rows are appended to
results/scale/streams.jsonl.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dsokr import DSOKR, Training, kernels, networks
from dsokr.regressors import Neural
from dsokr.regressors.streams import Stream
from dsokr.sketches import SubSample
from studies.results import Results

ROWS, WIDTH, LABELS = 50_000, 32, 16


def make_pairs(number: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(number).normal(size=(rows, WIDTH)).astype(np.float32)
    return X, (X[:, :LABELS] > 0.5).astype(np.float32)


def write_files(folder: Path, count: int) -> None:
    for number, start in enumerate(range(0, count, ROWS)):
        parts = zip("xy", make_pairs(number, min(ROWS, count - start)), strict=True)
        columns = {name: pa.FixedSizeListArray.from_arrays(pa.array(p.ravel()), p.shape[1]) for name, p in parts}
        pq.write_table(pa.table(columns), folder / f"{number:05d}.parquet")


def fit(folder: Path, way: str) -> dict[str, float]:
    training = Training(epochs=1, batch_size=1024, validation_fraction=0, progress=False)
    model = DSOKR(kernels.Tanimoto(), SubSample(500), Neural(networks.MLP((256,)), training=training), random_state=0)
    stream, start = Stream.parquet(list(folder.glob("*.parquet")), "x", "y"), time.perf_counter()
    if way == "stream":
        model.fit(stream)
    else:
        model.fit(*(np.concatenate(part) for part in zip(*stream.read(0), strict=True)))
    seconds = time.perf_counter() - start
    return {"pairs/s": model.n_pairs_ / seconds, "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(fit(options.out, options.way)))
        return
    results = Results(options.out / "streams.jsonl")
    for count in options.counts:
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder), count)
            for way in ("stream", "memory"):
                command = [sys.executable, __file__, "--way", way, "--out", folder]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found = json.loads(done.stdout.splitlines()[-1])
                results.record(
                    {"experiment": "streams", "way": way, "pairs": count}, lambda found=found: {"metrics": found}
                )
                print(
                    f"{way:<6} {count:>11,} pairs: {found['pairs/s']:,.0f}/s, {found['peak GiB']:.2f} GiB", flush=True
                )


if __name__ == "__main__":
    main()
