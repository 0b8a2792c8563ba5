"""Large and growing libraries: build rates, milliseconds a query and recall of every kind of index.

    export PYTHONPATH=. LIBRARY=molecules.csv.gz
    python bench/living.py kinds --count 1000000 --library $LIBRARY       # exact, HNSW, IVF-PQ, Milvus Lite
    python bench/living.py growth --count 50000 --library $LIBRARY        # the library doubles four times
    python bench/living.py large --millions 100 --folder large.idx --library $LIBRARY     # run again to resume

Candidates are molecules of a file, embedded by a Weisfeiler-Lehman kernel, and repeated with noise in their
coordinates; a repetition has up to 20 CH2 more, so that masses spread. Without a file coordinates and masses are drawn.
Queries are 0.7 ψ̃(y) + 0.3 ψ̃(y'); windows are 10 ppm around the mass of a candidate. Goals for 100 million × 64 numbers
in half precision: top-10 within a window under 50 ms at recall 1; IVF-PQ under 50 ms at recall@10 ≥ 0.9; memory under
16 GiB. Needs 22 GB of disk for them. Rows are appended to results/scale.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from joblib import Parallel, delayed

from dsokr import chem, kernels, sketch_basis, sketches
from dsokr.basis import SketchedBasis
from dsokr.commands.tables import Problems, Table
from dsokr.index import Block, BuildOptions, Condition, Head, Progress, build, open_index, update
from dsokr.index.build import sample_queries
from studies.results import Results, Row

BLOCK, K, RULE, QUERIES, CH2 = 2**15, 10, "cosine", 100, 14.01565
GOAL = 50.0


class Molecules:
    """Coordinates and masses of some molecules, and as many candidates made of them as are wanted."""

    def __init__(self, library: Path | None, base: int, dim: int):
        psi, self.diag, self.masses = _draw(base, dim) if library is None else _embed(library, base, dim)
        self.psi, self.spread = psi.astype(np.float32), psi.std(axis=0).astype(np.float32)

    def list_masses(self, count: int) -> np.ndarray:  # (count,)
        homologues = np.random.default_rng(0).integers(21, size=count)
        return self.masses[np.arange(count) % len(self.masses)] + CH2 * homologues

    def blocks(self, order: np.ndarray, masses: np.ndarray, start: int = 0) -> Iterator[Block]:
        """The candidates with the numbers in ``order``."""
        for at in range(start, len(order), BLOCK):
            numbers = order[at : at + BLOCK]
            rows = numbers % len(self.psi)
            noise = np.random.default_rng(at).standard_normal((len(rows), self.psi.shape[1]), np.float32)
            psi = torch.from_numpy(self.psi[rows] + 0.1 * self.spread * noise)
            cells = {"exact_mass": [f"{mass:.6f}" for mass in masses[numbers].tolist()]}
            yield Block([f"m{i}" for i in numbers.tolist()], psi, torch.from_numpy(self.diag[rows]), cells=cells)


def _draw(base: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    psi = rng.normal(size=(base, dim)) * np.arange(1, dim + 1) ** -0.75
    atoms = rng.integers([10, 10, 0, 0], [25, 40, 6, 8], size=(base, 4))
    return psi, (psi**2).sum(axis=1) + 0.1, atoms @ [12.0, 1.007825, 14.003074, 15.994915]


def _embed(library: Path, base: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embed the first molecules of a file, and keep their coordinates beside it for the next run."""
    kept = library.with_name(f"{library.name}.{base}x{dim}.npz")
    if not kept.exists():
        table = Table(library)
        column = next(name for name in table.columns if name.lower() == "smiles")
        smiles = next(table.blocks(Problems(), [column], base)).cells[column]
        kernel, some = kernels.WeisfeilerLehman(3, edge_labels=True).normalized(), chem.graphs(smiles[:2000])
        basis = sketch_basis(kernel, some[: 4 * dim], sketches.Full()).rotated(some, dim=dim)
        parts = (smiles[start : start + 5000] for start in range(0, len(smiles), 5000))
        found = Parallel(n_jobs=-1)(delayed(_embed_part)(basis, part) for part in parts)
        psi, diag, masses = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        np.savez(kept, psi=psi, diag=diag, masses=masses)
    with np.load(kept) as arrays:
        return arrays["psi"], arrays["diag"], arrays["masses"]


def _embed_part(basis: SketchedBasis, smiles: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    torch.set_num_threads(1)
    graphs = chem.graphs(smiles)
    return basis.embed(graphs).numpy(), basis.diag(graphs).numpy(), np.array([chem.mass(one) for one in smiles])


def memory() -> dict[str, float]:
    """GiB now without mapped files, which the system can drop at any time, and at most with them."""
    sizes = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    anonymous, peak = int(sizes["RssAnon"].split()[0]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"GiB": round(anonymous / 2**20, 2), "peak GiB with mapped files": round(peak / 2**20, 2)}


def windows(masses: np.ndarray, n: int) -> Condition:
    centres = np.random.default_rng(2).choice(masses, n)
    return Condition.within("exact_mass", centres * (1 - 1e-5), centres * (1 + 1e-5))


def time_queries(index, z: torch.Tensor, condition: Condition | None = None) -> tuple[dict[str, float], torch.Tensor]:
    """The median and the 99th percentile of single queries in ms, and the scores of what they found."""
    taken, scores = [], []
    for row in range(len(z)):
        asked = () if condition is None else [condition.take(slice(row, row + 1))]
        start = time.perf_counter()
        found = index.search(z[row : row + 1], K, RULE, asked).scores[0]
        taken.append(1000 * (time.perf_counter() - start))
        scores.append(torch.nn.functional.pad(found, (0, K - len(found)), value=-torch.inf))
    median, slow = np.percentile(taken[1:], [50, 99])
    return {"p50": round(median, 3), "p99": round(slow, 3)}, torch.stack(scores)


def recall(found: torch.Tensor, truth: torch.Tensor) -> float:
    """The share of the K best that were found; of equally good ones any."""
    return (found.float() >= truth[:, -1:].float() * (1 - 1e-6)).double().mean().item()


def record(results: Results, key: Row, metrics: Row) -> None:
    """Append a row to the results, unless there is one with this key, and print it."""
    metrics |= {"load": round(os.getloadavg()[0], 1)}  # of the machine, beside this process
    row = results.record(key, lambda: {"metrics": metrics})
    parts = {name: f"{value:,.4g}" if isinstance(value, float) else value for name, value in metrics.items()}
    print(*key.values(), parts, "" if row["metrics"] == metrics else "(known already)", flush=True)


def compare_kinds(molecules: Molecules, count: int, kinds: list[str], results: Results) -> None:
    masses = molecules.list_masses(count)
    order, dim = np.argsort(masses, kind="stable"), molecules.psi.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            place = Path(folder) / ("index.db" if kind == "milvus" else "index")
            options = BuildOptions(None, RULE) if kind == "milvus" else BuildOptions(kind, RULE)
            start, used = time.perf_counter(), time.process_time()
            parts = {"model": "bench", "dim": dim, "columns": ["exact_mass"], "options": options}
            index = build(place, lambda at: molecules.blocks(order, masses, at), **parts)
            found = {"built/s": count / (time.perf_counter() - start)}
            found["CPU µs"] = 1e6 * (time.process_time() - used) / count
            if kind == "exact":
                z, condition = sample_queries(index, QUERIES, seed=1), windows(masses, QUERIES)
                truths = index.search_exactly(z, K, RULE).scores, time_queries(index, z, condition)[1]
            for name, asked, truth in zip(("all", "10 ppm"), (None, condition), truths, strict=True):
                times, scores = time_queries(index, z, asked)
                found |= {f"{name} {what}": value for what, value in times.items()}
                found[f"{name} recall@10"] = recall(scores, truth)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            record(
                results, {"experiment": "kinds", "kind": kind, "candidates": count, "p": dim}, found | {"bytes": size}
            )


def grow(molecules: Molecules, count: int, kind: str, results: Results) -> None:
    """Build, then let updates double the library four times."""
    masses = molecules.list_masses(16 * count)
    dim = molecules.psi.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        place, start, used = Path(folder) / "index", time.perf_counter(), time.process_time()
        numbers = np.arange(count)
        parts = {"dim": dim, "columns": ["exact_mass"], "options": BuildOptions(kind, RULE, sort_by="exact_mass")}
        build(place, lambda at: molecules.blocks(numbers, masses, at), model="bench", **parts)
        while True:
            found = {"added µs": 1e6 * (time.perf_counter() - start) / len(numbers)}
            found["CPU µs"] = 1e6 * (time.process_time() - used) / len(numbers)
            index = open_index(place)
            z, condition = sample_queries(index, QUERIES, seed=1), windows(masses[: len(index)], QUERIES)
            for name, asked in (("all", None), ("10 ppm", condition)):
                found |= {f"{name} {what}": value for what, value in time_queries(index, z, asked)[0].items()}
            record(results, {"experiment": "growth", "kind": kind, "candidates": len(index), "p": dim}, found)
            if len(index) == 16 * count:
                return
            numbers = np.arange(len(index), 2 * len(index))
            start, used = time.perf_counter(), time.process_time()
            update(place, molecules.blocks(numbers, masses), model="bench")


def build_large(molecules: Molecules, count: int, folder: Path, kinds: list[str], results: Results) -> None:
    """Half precision, written in the order of the masses; then an IVF-PQ index. Each step resumes."""
    said, rate, largest = [time.monotonic()], [0.0], [0.0]

    def blocks(start: int) -> Iterator[Block]:
        masses = molecules.list_masses(count)
        return molecules.blocks(np.argsort(masses, kind="stable"), masses, start)

    def report(now: Progress) -> None:
        rate[0] = now.rate
        say(f"{now.rows:,} candidates, {now.rate:,.0f}/s, so far added")

    def say(line: str) -> None:
        largest[0] = max(largest[0], memory()["GiB"])
        if not line.endswith("added") or time.monotonic() - said[0] > 30:
            said[0] = time.monotonic()
            print(f"  {line}; {memory()}", flush=True)

    for kind in [kind for kind in ("exact", "ivfpq") if kind in kinds]:
        options, largest[0] = BuildOptions(kind, RULE, "float16", recall=0.9), 0.0
        start, used = time.perf_counter(), time.process_time()
        parts = {"model": "bench", "dim": molecules.psi.shape[1], "columns": ["exact_mass"], "options": options}
        key = {"experiment": "large", "kind": kind, "candidates": count, "p": molecules.psi.shape[1]}
        if not is_built(folder, kind):
            index = build(folder, blocks, **parts, say=say, progress=report)
            seconds, cpu = time.perf_counter() - start, time.process_time() - used
            found = {"built/s": rate[0] if kind == "exact" else count / seconds, "largest GiB": largest[0]}
            found["CPU µs"] = 1e6 * cpu / count
            record(results, key | {"experiment": "large, build"}, found | memory())
        index = open_index(folder)
        z, masses = sample_queries(index, QUERIES, seed=1), index.arrays.columns.numbers("exact_mass")
        condition = windows(masses, QUERIES) if kind == "exact" else None
        time_queries(index, z, condition)  # once before: the files may not be in memory
        times, _ = time_queries(index, z, condition)
        if condition is not None:
            times["possible"] = float(np.mean([p.stop - p.start for p in index.arrays.columns.find([condition])]))
        times["recall@10"] = 1.0 if condition is not None else float(index.head.recall or 0)
        times["GB on disk"] = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
        record(results, key, times | {"effort": index.head.effort} | memory())
        print(f"  goal < {GOAL:g} ms: {'reached' if times['p50'] < GOAL else 'MISSED'}", flush=True)


def is_built(folder: Path, kind: str) -> bool:
    """Whether a finished index needs no work: one with FAISS answers windows exactly as well."""
    head = Head.read_from(folder) if (folder / "index.json").exists() else None
    return head is not None and head.finished and (kind == "exact" or head.kind == kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kinds", "growth", "large"])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--millions", type=float, default=100)
    parser.add_argument("--folder", type=Path, default=Path("large.idx"))
    parser.add_argument("--library", type=Path)
    parser.add_argument("--base", type=int, default=20_000, help="molecules of the library")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--kinds", nargs="+", default=["exact", "hnsw", "ivfpq", "milvus"])
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, {options.threads} threads", flush=True)
    molecules = Molecules(options.library, options.base, options.dim)
    results = Results(options.out / f"{options.what}.jsonl")
    if options.what == "kinds":
        compare_kinds(molecules, options.count, options.kinds, results)
    elif options.what == "growth":
        for kind in options.kinds[:3]:
            grow(molecules, options.count, kind, results)
    else:
        build_large(molecules, int(1e6 * options.millions), options.folder, options.kinds, results)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
