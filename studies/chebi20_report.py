"""What came out of the ChEBI-20 study: Tables 2 and 3, Figures 3 and 5, from its JSON lines."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from studies.chebi20 import ENSEMBLES, JOINT_ENSEMBLES
from studies.chebi20_methods import PAPERS_KERNELS
from studies.results import Row, markdown_table, read_rows
from dsokr.plotting import pyplot, saved

SINGLES = (  # in the table's order
    "SISOKR",
    "regression",
    "CMAM, MLP",
    "CMAM, GCN",
    "DSOKR, SubSample",
    "DSOKR, Gaussian",
    "ours, cosine + tanimoto",
    "ours, two tanimotos",
    "ours, tanimoto + WL",
)
PAPER: tuple[Row, ...] = tuple(  # Table 3 as printed there; AMAN as its authors report it
    {"name": name, "encoder": "SciBERT", "hits@1": h1, "hits@10": h10, "mrr": mrr, "mean_rank": rank}
    for name, rank, mrr, h1, h10 in (
        ("SISOKR (paper)", 2230.48, 0.015, 0.004, 0.028),
        ("regression (paper)", 344.53, 0.298, 0.168, 0.569),
        ("CMAM, MLP (paper)", 23.74, 0.513, 0.349, 0.842),
        ("CMAM, GCN (paper)", 24.11, 0.495, 0.332, 0.825),
        ("CMAM ensemble, MLP + GCN (paper)", 16.28, 0.597, 0.442, 0.887),
        ("AMAN (its paper)", 16.0, 0.647, 0.494, 0.921),
        ("DSOKR, SubSample (paper)", 82.92, 0.624, 0.482, 0.874),
        ("DSOKR, Gaussian (paper)", 91.19, 0.630, 0.490, 0.875),
        ("DSOKR ensemble, SubSample (paper)", 76.43, 0.642, 0.510, 0.882),
    )
)
SHOWN = ("hits@1", "hits@10", "mrr", "mean_rank")
HEADER = [
    "method",
    "encoder",
    "epochs",
    "models",
    "Hits@1",
    "Hits@10",
    "MRR",
    "mean rank",
    "seeds",
    "their mean Hits@1 / MRR",
]


def table(folder: Path) -> list[Row]:
    """The paper's rows, then ours: of several seeds the one that does best on validation, and the mean beside it.

    Models that were trained for different times are not compared with each other: each time has its own row.
    """
    models, ensembles = (_whole(_rows(folder / f"{name}.jsonl")) for name in ("models", "ensembles"))
    made = []
    for encoder in dict.fromkeys(row["encoder"] for row in models):
        for name in SINGLES:
            own = [row for row in models if row["method"] == name and row["encoder"] == encoder]
            for epochs in sorted({row.get("epochs") for row in own}, key=lambda epochs: epochs or 0):
                rows = [row for row in own if row.get("epochs") == epochs]
                best = max(rows, key=lambda row: row["metrics"]["val_mrr"])
                means = {f"mean_{key}": mean(row["metrics"][key] for row in rows) for key in SHOWN}
                told = {"name": name, "encoder": encoder, "epochs": epochs, "models": 1, "seeds": len(rows)}
                made.append(told | {"seconds": mean(row["seconds"]["training"] for row in rows)} | means | _shown(best))
        own = [row for row in ensembles if row["encoder"] == encoder]
        made += [_together(row) for name in ENSEMBLES for row in own if row["method"] == name]
    made += [_together(row) for name in JOINT_ENSEMBLES for row in ensembles if row["method"] == name]
    return [*PAPER, *made]


def _together(row: Row) -> Row:
    size = len(row["members"]) * len(row["seeds"])
    return {"name": row["method"], "encoder": row["encoder"], "epochs": row["epochs"], "models": size} | _shown(row)


def _whole(rows: list[Row]) -> list[Row]:
    """Those that were trained on all texts."""
    most = max((row["n_train"] for row in rows), default=0)
    return [row for row in rows if row["n_train"] == most]


def learning_curve(folder: Path) -> dict[str, dict[int, Row]]:
    """For every encoder with several sizes of training set: the metrics by size, of the first seed."""
    rows = _rows(folder / "models.jsonl")
    cut = {(row["encoder"], row["method"], row["epochs"]) for row in rows if row not in _whole(rows)}
    found: dict[str, dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: row["n_train"]):
        if row["seed"] == 0 and (row["encoder"], row["method"], row.get("epochs")) in cut:
            found.setdefault(row["encoder"], {})[row["n_train"]] = row["metrics"]
    return found


def _rows(path: Path) -> list[Row]:
    return read_rows(path) if path.exists() else []


def _shown(row: Row) -> Row:
    metrics = row["metrics"]
    further = ("optimistic_hits@1", "pessimistic_hits@1", "median_rank", "share_of_worst_ten", "val_mrr")
    return {key: metrics[key] for key in SHOWN + further if key in metrics} | {"chosen": row["chosen"]}


def cells(row: Row) -> list[str]:
    """A row of the table in words."""
    means = f"{row['mean_hits@1']:.1%} / {row['mean_mrr']:.3f}" if "mean_mrr" in row else ""
    shown = [f"{row['hits@1']:.1%}", f"{row['hits@10']:.1%}", f"{row['mrr']:.3f}", f"{row['mean_rank']:.1f}"]
    told = [row["name"], row["encoder"], *(str(row.get(key) or "") for key in ("epochs", "models"))]
    return [*told, *shown, str(row.get("seeds", "")), means]


def markdown(rows: list[Row]) -> str:
    """The table for a page."""
    return markdown_table(HEADER, map(cells, rows))


def perfect_h(folder: Path) -> dict[tuple[str, str], dict[int, Row]]:
    """For every kernel and sketch, by size: the metrics by the rule with the best reciprocal rank there."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in _rows(folder / "perfect_h.jsonl"):
        sizes = found.setdefault((row["kernel"], row["sketch"]), {})
        metrics = row["metrics"] | {"rule": row["rule"]}
        if row["m"] not in sizes or metrics["mrr"] > sizes[row["m"]]["mrr"]:
            sizes[row["m"]] = metrics
    return found


def figure(folder: Path, image: Path) -> Path:
    """Perfect h on validation against the sketch size: the paper's kernels and sketches, and ours."""
    plt = pyplot()
    curves = perfect_h(folder)
    panels: list[Any] = [*PAPERS_KERNELS, "ours"]
    fig, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    for axis, name in zip(axes.flat, panels, strict=True):
        own = {
            key: sizes
            for key, sizes in curves.items()
            if (key[0] == name or (name == "ours" and key[0] not in PAPERS_KERNELS))
        }
        for (kernel, sketch), sizes in own.items():
            label = kernel if name == "ours" else sketch
            axis.plot(
                list(sizes), [metrics["mrr"] for metrics in sizes.values()], marker="o", markersize=3, label=label
            )
        axis.set(title="ours, SubSample" if name == "ours" else name, xscale="log", xlabel="m")
        axis.set(ylim=(0.9, 1) if name == "ours" else (0, 1.02), ylabel="MRR of Perfect h")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    return saved(fig, image, dpi=110)
