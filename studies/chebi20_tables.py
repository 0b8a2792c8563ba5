"""Tables and figures of the ChEBI-20 study, from its rows."""

from pathlib import Path
from statistics import mean

from studies import chebi20_models as models
from studies.plots import pyplot, save_figure
from studies.results import Row, group_rows, read_rows

PLAIN = (*models.BASELINES, *models.PAPERS, *models.OURS)
SINGLES = (  # in the table's order
    *("SISOKR", *(method.name for method in PLAIN)),
    *(models.WITH_COUNTS, *(method.name for method in models.COPYING + models.INFERRING + models.FURTHER)),
    *(models.BACKWARD.name, models.BACKWARD_OFTEN.name),
)
ENSEMBLES = models.ENSEMBLES | models.ENSEMBLES_OF_NAMES
JOINT = [
    *(models.JOINT_ENSEMBLES | models.NAMED_ENSEMBLES),
    *(f"{name}{check}" for name in models.BOTH_DIRECTIONS for check in ("", models.CHECKED)),
]
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
COLUMNS = {
    "method": "{name}",
    "encoder": "{encoder}",
    "epochs": "{epochs}",
    "models": "{models}",
    "Hits@1": "{hits@1:.1%}",
    "Hits@10": "{hits@10:.1%}",
    "MRR": "{mrr:.3f}",
    "mean rank": "{mean_rank:.1f}",
    "seeds": "{seeds}",
    "their mean Hits@1 / MRR": "{mean_hits@1:.1%} / {mean_mrr:.3f}",
}


def tabulate(folder: Path) -> list[Row]:
    """The paper's rows, then ours: of several seeds the one that does best on validation, and the mean beside it.

    Models that were trained for different times are not compared with each other: each time has its own row.
    """
    singles, ensembles = (select_whole(read_rows(folder / f"{name}.jsonl")) for name in ("models", "ensembles"))
    groups = group_rows(singles, lambda row: (row["encoder"], row["method"], row.get("epochs") or 0))
    table = list(PAPER)
    for encoder in dict.fromkeys(row["encoder"] for row in singles):
        for name in SINGLES:
            table += [_summarize(rows) for which, rows in sorted(groups.items()) if which[:2] == (encoder, name)]
        own = [row for row in ensembles if row["encoder"] == encoder]
        table += [_summarize_ensemble(row) for name in ENSEMBLES for row in own if row["method"] == name]
    return table + [_summarize_ensemble(row) for name in JOINT for row in ensembles if row["method"] == name]


def _summarize(rows: list[Row]) -> Row:
    best = max(rows, key=lambda row: row["metrics"]["val_mrr"])
    means = {f"mean_{name}": mean(row["metrics"][name] for row in rows) for name in ("hits@1", "mrr")}
    seconds = {"seconds": mean(row["seconds"]["training"] for row in rows)}
    epochs = {"epochs": best["epochs"]} if "epochs" in best else {}
    own = {"name": best["method"], "encoder": best["encoder"], "models": best.get("times", 1), "seeds": len(rows)}
    return own | epochs | seconds | means | best["metrics"]


def _summarize_ensemble(row: Row) -> Row:
    often = models.BACKWARD_OFTEN
    count = sum(often.key["times"] if member.endswith(often.name) else 1 for member in row["members"])
    own = {
        "name": row["method"],
        "encoder": row["encoder"],
        "epochs": row["epochs"],
        "models": count * len(row["seeds"]),
    }
    return own | row["metrics"]


def select_whole(rows: list[Row]) -> list[Row]:
    """The models that were trained on all texts."""
    most = max((row["n_train"] for row in rows), default=0)
    return [row for row in rows if row["n_train"] == most]


def tabulate_perfect_h(folder: Path) -> dict[tuple[str, str], dict[int, Row]]:
    """For every kernel and sketch, by size: the metrics by the rule with the best reciprocal rank there."""
    groups = group_rows(read_rows(folder / "perfect_h.jsonl"), lambda row: (row["kernel"], row["sketch"]))
    return {
        which: {
            m: max((row["metrics"] for row in own), key=lambda metrics: metrics["mrr"])
            for m, own in group_rows(rows, lambda row: row["m"]).items()
        }
        for which, rows in groups.items()
    }


def draw(folder: Path, image: Path) -> Path:
    """Perfect h on validation against the sketch size: the paper's kernels and sketches, and ours."""
    figure, axes = pyplot().subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    panels = dict(zip([*models.PAPERS_KERNELS, "ours"], axes.flat, strict=True))
    for (kernel, sketch), curve in tabulate_perfect_h(folder).items():
        axis, label = (panels[kernel], sketch) if kernel in panels else (panels["ours"], kernel)
        axis.plot([*curve], [metrics["mrr"] for metrics in curve.values()], marker="o", markersize=3, label=label)
    for name, axis in panels.items():
        axis.set(title=name, xscale="log", xlabel="m", ylim=(0, 1.02), ylabel="MRR of Perfect h")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    panels["ours"].set(title="ours, SubSample", ylim=(0.9, 1))
    return save_figure(figure, image, dpi=110)
