"""The tables of results/scale: rates, memory and times of large libraries, and what follows for larger ones."""

from pathlib import Path
from typing import Any

from studies.results import Columns, Row, read_rows, write_table

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
        "loads": _describe_loads(rows["kinds"] + rows["large"] + rows["growth"]),
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


def _describe_loads(rows: list[Row]) -> str:
    loads = [row["metrics"]["load"] for row in rows]
    return f"{min(loads):.0f} to {max(loads):.0f}"


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
    return write_table(columns, [row for row in rows if row["experiment"] == "large"])


def _tabulate_growth(rows: list[Row]) -> str:
    columns: Columns = {
        "index": lambda row: KINDS[row["kind"]],
        "candidates": "{candidates:,}",
        "µs per added candidate": "{metrics[added µs]:,.0f}",
        "of CPU": "{metrics[CPU µs]:,.0f}",
        "all: p50": "{metrics[all p50]:.2f}",
        "10 ppm: p50": "{metrics[10 ppm p50]:.2f}",
    }
    return write_table(columns, rows)


def _tabulate_streams(rows: list[Row]) -> str:
    columns: Columns = {
        "pairs from": lambda row: "Parquet files" if row["way"] == "stream" else "memory",
        "pairs": "{pairs:,}",
        "pairs/s": "{metrics[pairs/s]:,.0f}",
        "peak memory, GiB": "{metrics[peak GiB]:.2f}",
    }
    return write_table(columns, rows)


def _extrapolate(rows: dict[str, list[Row]]) -> str:
    """Multiply what was measured to 10⁵, 10⁶, 10⁸ and 10⁹ candidates."""
    rate = rows["cluster"][-1]["metrics"][WAYS[0]]
    million = max((row for row in rows["kinds"] if row["kind"] == "exact"), key=lambda row: row["candidates"])
    large = {row["kind"]: row for row in rows["large"] if row["experiment"] == "large"}
    found = []
    for name, n in {"10⁵": 10**5, "10⁶": 10**6, "10⁸": 10**8, "10⁹": 10**9}.items():
        if n <= 10**6:
            factor, metrics = n / million["candidates"], million["metrics"]
            row = {"what": "exact", "disk": metrics["bytes"] / 1e9, "all": metrics["all p50"], "memory": None}
            window = metrics["10 ppm p50"] / factor  # hardly depends on the number of candidates
        else:
            factor, metrics = n / large["ivfpq"]["candidates"], large["ivfpq"]["metrics"]
            row = {"what": "IVF-PQ, half precision", "disk": metrics["GB on disk"], "all": metrics["p50"]}
            row["memory"], window = metrics["GiB"], large["exact"]["metrics"]["p50"]
        row = {key: value * factor if isinstance(value, float) else value for key, value in row.items()}
        is_measured = factor == 1
        found.append(row | {"n": name, "hours": n / rate / 3600, "window": window * factor, "is": is_measured})
    columns: Columns = {
        "candidates": "{n}",
        "": lambda row: "search measured" if row["is"] else "*extrapolated*",
        "core hours to embed": "{hours:,.2f}",
        "index": "{what}",
        "GB on disk": "{disk:,.2f}",
        "GiB of memory": lambda row: "mapped from disk" if row["memory"] is None else f"{row['memory']:,.1f}",
        "ms, all": "{all:,.0f}",
        "ms, 10 ppm": "{window:,.1f}",
    }
    return write_table(columns, found)
