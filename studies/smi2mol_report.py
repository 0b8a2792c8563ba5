"""What came out of the SMI2Mol study: Table 1, Figure 2 and a page of drawn predictions, from its JSON lines."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from studies.results import Row, markdown_table, read_rows
from studies.smi2mol import PAPERS_KERNELS
from dsokr.metrics import edit_distance
from dsokr.plotting import pyplot, saved
from dsokr.graphs import Graph

METHODS = {  # how rows of results are named in the table, in its order
    ("floor", None, None): "best training molecule",
    ("nnbary_fgw", None, None): "NNBary-FGW",
    ("sisokr", None, None): "SISOKR",
    ("ile_fgw", None, None): "Sketched ILE-FGW",
    ("dsokr", "paper's protocol", "paper's rule"): "DSOKR, paper's kernel and rule",
    ("dsokr", "paper's protocol", "Candidates"): "DSOKR, paper's kernel, best rule",
    ("dsokr", "ours", "Candidates"): "DSOKR, sum of kernels, best rule",
    ("dsokr", "ours", "GraphSearch"): "DSOKR, sum of kernels, GraphSearch",
    ("dsokr", "ours, few molecules", "Candidates"): "DSOKR, sum of kernels, best rule, few molecules",
    ("dsokr", "ours, few molecules", "GraphSearch"): "DSOKR, sum of kernels, GraphSearch, few molecules",
}
PAPER: tuple[Row, ...] = (  # Table 1 as printed there
    {"name": "NNBary-FGW (paper)", "ged": (5.115, 0.129)},
    {"name": "SISOKR (paper)", "ged": (3.330, 0.080), "ged_edge_labels": (4.192, 0.109)},
    {"name": "Sketched ILE-FGW (paper)", "ged": (2.998, 0.253)},
    {"name": "DSOKR (paper)", "ged": (1.951, 0.074), "ged_edge_labels": (2.960, 0.079)},
)
HEADER = ["method", "training molecules", "splits", "GED without edge labels", "GED with edge labels", "exact"]
NO_EDGE_LABELS = ("nnbary_fgw", "ile_fgw")  # predict none, so that only the other distance says something


def table(folder: Path) -> list[Row]:
    """The paper's rows, then ours: mean and standard deviation over the splits there are."""
    rows = [row for name in ("floor", "baselines", "models") for row in _rows(folder / f"{name}.jsonl")]
    made = []
    for key, name in METHODS.items():
        own = [row for row in rows if _key(row) == key]
        if own:
            made.append({"name": name, "splits": len(own), "n_train": own[0]["n_train"]} | _spread(key[0], own))
    return [*PAPER, *made]


def _rows(path: Path) -> list[Row]:
    return read_rows(path) if path.exists() else []


def _key(row: Row) -> tuple[Any, ...]:
    return row["method"], row.get("model"), row.get("decoder")


def _spread(method: str, rows: list[Row]) -> Row:
    names = ["ged"] if method in NO_EDGE_LABELS else ["ged", "ged_edge_labels", "exact"]
    values = {name: [row["metrics"][name] for row in rows if name in row["metrics"]] for name in names}
    spread = {name: (mean(v), stdev(v) if len(v) > 1 else None) for name, v in values.items() if v}
    return spread | {"seconds": mean(sum(row.get("seconds", {}).values()) for row in rows)}


def markdown(rows: list[Row]) -> str:
    """The table for a page."""
    return markdown_table(HEADER, map(cells, rows))


def cells(row: Row) -> list[str]:
    """A row of the table in words."""
    distances = [_cell(row.get(name)) for name in ("ged", "ged_edge_labels")]
    exact = f"{row['exact'][0]:.1%}" if "exact" in row else ""
    trained = f"{row['n_train']:,}" if "n_train" in row else ""
    return [row["name"], trained, str(row.get("splits", "")), *distances, exact]


def _cell(value: tuple[float, float | None] | None) -> str:
    if value is None:
        return "–"
    average, deviation = value
    return f"{average:.3f}" if deviation is None else f"{average:.3f} ± {deviation:.3f}"


def figure(folder: Path, image: Path) -> Path:
    """Figure 2: the edit distance of Perfect h against the sketch size, by the three decoding rules."""
    plt = pyplot()
    rows = read_rows(folder / "perfect_h.jsonl")
    fig, grid = plt.subplots(1, len(PAPERS_KERNELS), figsize=(11, 3.3), layout="constrained", sharey=True)
    for axes, kernel in zip(grid, PAPERS_KERNELS, strict=True):
        for rule, label in (("kernel", "the paper's rule"), ("projected", "projected"), ("cosine", "cosine")):
            own = sorted((r["m"], r["metrics"]["ged_edge_labels"]) for r in rows if _is(r, kernel=kernel, rule=rule))
            axes.plot(*zip(*own, strict=True), marker="o", markersize=3, label=label)
        axes.set(title=kernel, xlabel="sketch size m", xscale="log")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("GED with edge labels")
    grid[0].legend(frameon=False)
    return saved(fig, image)


def _is(row: Row, **wanted: Any) -> bool:
    return all(row[name] == value for name, value in wanted.items())


def gallery(folder: Path, image: Path, count: int = 8) -> Path:
    """Test molecules of the last split, small to large: what every method predicts, how far off, and the truth."""
    from dsokr import chem  # RDKit is needed here only

    rows = {_key(row): row["metrics"] for row in read_rows(folder / "predictions.jsonl")}
    truth = rows["truth", None, None]
    names = {key: name for key, name in METHODS.items() if key in rows and "few" not in name}
    molecules: list[Graph | str] = []
    legends = []
    kept = len(truth["graphs"])
    for i in sorted({round(k * (kept - 1) / max(1, count - 1)) for k in range(count)}):
        true = _graph(truth["graphs"][i])
        for key, name in names.items():
            predicted = _graph(rows[key]["graphs"][i])
            molecules.append(predicted)
            legends.append(f"{_short(name)}: {edit_distance(predicted, [true]).item():g}")
        molecules.append(true)
        legends.append(f"true: {truth['smiles'][i]}")
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(chem.draw_png(molecules, legends, columns=len(names) + 1, size=(200, 190)))
    return image


def _graph(plain: list[Any]) -> Graph:
    labels, edges = plain
    return Graph(tuple(labels), tuple(map(tuple, edges)))


def _short(name: str) -> str:
    return name.replace("DSOKR, ", "").replace("Sketched ", "").replace("sum of kernels", "sum")
