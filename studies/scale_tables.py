"""The tables of results/scale: rates, memory and times of large libraries, and what follows for larger ones."""

from pathlib import Path
from typing import Any

from studies.results import Columns, Row, read_rows, write_table

MISSING = "Not measured yet."
KINDS = {"exact": "exact", "hnsw": "HNSW", "ivfpq": "IVF-PQ", "milvus": "Milvus Lite, exact"}
WAYS = ("one process", "two processes", "Ray, two workers")


def read_all(folder: Path) -> dict[str, list[Row]]:
    names = ("cluster", "kinds", "large", "growth", "streams")
    return {name: read_rows(folder / f"{name}.jsonl") for name in names}


def describe_scale(folder: Path) -> dict[str, Any]:
    rows = read_all(folder)
    cluster = rows["cluster"][-1]
    same = "All three gave the same bytes." if cluster["metrics"]["same bytes"] else "Their results differ."
    return {
        "hardware": next(row["hardware"] for row in rows["kinds"]),
        "embedded": cluster["candidates"],
        "embedded_p": cluster["p"],
        "same": f"{same} Ray took {cluster['metrics']['Ray, start, s']:.0f} s more to start.",
        "embedding": _tabulate_embedding(cluster["metrics"]),
        "kinds": _tabulate_kinds(rows["kinds"]),
        "large": _tabulate_large(rows["large"]),
        "growth": _tabulate_growth(rows["growth"]),
        "streams": _tabulate_streams(rows["streams"]),
        "expected": _extrapolate(rows),
    }


def _tabulate_embedding(metrics: Row) -> str:
    first = metrics[WAYS[0]]
    found = [{"way": way, "rate": metrics[way], "ratio": metrics[way] / first} for way in WAYS]
    columns: Columns = {
        "": "{way}",
        "molecules/s": "{rate:,.0f}",
        "ratio": "{ratio:.2f}",
        "minutes per million": _minutes,
    }
    return write_table(columns, found)


def _minutes(row: Row) -> str:
    return f"{1e6 / row['rate'] / 60:.1f}"


def _tabulate_kinds(rows: list[Row]) -> str:
    columns: Columns = {
        "index": lambda row: KINDS[row["kind"]],
        "candidates": "{candidates:,}",
        "built per second": "{metrics[built/s]:,.0f}",
        "CPU µs each": lambda row: "–" if row["kind"] == "milvus" else f"{row['metrics']['CPU µs']:,.0f}",
        "all: p50": "{metrics[all p50]:.2f}",
        "p99": "{metrics[all p99]:.2f}",
        "recall@10": "{metrics[all recall@10]:.3f}",
        "10 ppm: p50": "{metrics[10 ppm p50]:.2f}",
        "p99 ": "{metrics[10 ppm p99]:.2f}",
        "recall@10 ": "{metrics[10 ppm recall@10]:.3f}",
    }
    return write_table(columns, sorted(rows, key=lambda row: (-row["candidates"], [*KINDS].index(row["kind"]))))


def _tabulate_large(rows: list[Row]) -> str:
    rates = {(row["kind"], row["candidates"]): row["metrics"] for row in rows if row["experiment"] == "large, build"}

    def find(row: Row, name: str, spec: str) -> str:
        built = rates.get((row["kind"], row["candidates"]), {})
        return format(built[name], spec) if name in built else "–"

    columns: Columns = {
        "search": lambda row: "10 ppm window, exact" if row["kind"] == "exact" else "all, IVF-PQ",
        "candidates": "{candidates:,}",
        "built per second": lambda row: find(row, "built/s", ",.0f"),
        "CPU µs each": lambda row: find(row, "CPU µs", ",.1f"),
        "GiB to build": lambda row: find(row, "largest GiB", ".1f"),
        "p50": "{metrics[p50]:.1f}",
        "p99": "{metrics[p99]:.1f}",
        "recall@10": "{metrics[recall@10]:.3f}",
        "GiB to search": "{metrics[GiB]:.1f}",
        "GB on disk": "{metrics[GB on disk]:.1f}",
    }
    return write_table(columns, [row for row in rows if row["experiment"] == "large"]) if rows else MISSING


def _tabulate_growth(rows: list[Row]) -> str:
    columns: Columns = {
        "index": lambda row: KINDS[row["kind"]],
        "candidates": "{candidates:,}",
        "µs per added candidate": "{metrics[added µs]:,.0f}",
        "of CPU": "{metrics[CPU µs]:,.0f}",
        "all: p50": "{metrics[all p50]:.2f}",
        "10 ppm: p50": "{metrics[10 ppm p50]:.2f}",
    }
    return write_table(columns, rows) if rows else MISSING


def _tabulate_streams(rows: list[Row]) -> str:
    columns: Columns = {
        "pairs from": lambda row: "Parquet files" if row["way"] == "stream" else "memory",
        "pairs": "{pairs:,}",
        "pairs/s": "{metrics[pairs/s]:,.0f}",
        "peak memory, GiB": "{metrics[peak GiB]:.2f}",
    }
    return write_table(columns, rows) if rows else MISSING


def _extrapolate(rows: dict[str, list[Row]]) -> str:
    """Multiply what was measured to 10⁵, 10⁶, 10⁸ and 10⁹ candidates."""
    rate = rows["cluster"][-1]["metrics"][WAYS[0]]
    exact = max((row for row in rows["kinds"] if row["kind"] == "exact"), key=lambda row: row["candidates"])
    large = {row["kind"]: row for row in rows["large"] if row["experiment"] == "large"}
    found = []
    for name, n in {"10⁵": 10**5, "10⁶": 10**6, "10⁸": 10**8, "10⁹": 10**9}.items():
        row: Row = {
            "n": name,
            "hours": n / rate / 3600,
            "of": "–",
            "disk": "–",
            "memory": "–",
            "all": "–",
            "window": "–",
        }
        own = exact if n <= 10**6 else large.get("ivfpq")
        if own is not None:
            factor, metrics, is_exact = n / own["candidates"], own["metrics"], own is exact
            size = metrics["bytes"] / 1e9 if is_exact else metrics["GB on disk"]
            row |= {"disk": f"{size * factor:,.2f}", "of": f"{own['candidates']:,}"}
            row["all"] = f"{metrics['all p50' if is_exact else 'p50'] * factor:,.0f}"
            row["memory"] = "mapped from disk" if is_exact else f"{metrics['GiB'] * factor:,.1f}"
        if n > 10**6 and "exact" in large:
            row["window"] = f"{large['exact']['metrics']['p50'] * n / large['exact']['candidates']:,.1f}"
        elif n <= 10**6:
            row["window"] = f"{exact['metrics']['10 ppm p50']:,.1f}"  # hardly depends on the number of candidates
        found.append(row | {"what": "exact" if n <= 10**6 else "IVF-PQ, half precision"})
    columns: Columns = {
        "candidates": "{n}",
        "core hours to embed": "{hours:,.2f}",
        "index": "{what}",
        "measured with": "{of}",
        "GB on disk": "{disk}",
        "GiB of memory": "{memory}",
        "ms, all": "{all}",
        "ms, 10 ppm": "{window}",
    }
    return write_table(columns, found)
