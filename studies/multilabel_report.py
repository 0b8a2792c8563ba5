"""What came out of the multi-label study: its table for people, and a figure."""

from __future__ import annotations

from pathlib import Path

from studies.multilabel import table
from studies.results import Row, markdown_table
from dsokr.plotting import pyplot, saved

HEADER = ["data", "model", "F1 on test", "exact", "F1 on validation", "runs"]
ACROSS = 3  # panels of the figure


def cells(row: Row) -> list[str]:
    """A row of the table in words; what validation chose of its method is marked."""
    if row["source"] == "literature":
        return [row["data"], f"{row['model']} (published)", f"{row['f1']:.3f}", "", "", ""]
    mark = " *" if row["selected"] else ""
    measured = [f"{row['f1']:.3f} ± {row['sd']:.3f}", f"{row['exact']:.1%}", f"{row['val_f1']:.3f}", str(row["runs"])]
    return [row["data"], f"{row['model']}{mark}", *measured]


def markdown(rows: list[Row]) -> str:
    """The table for a page, of one data set."""
    return markdown_table(HEADER[1:], (cells(row)[1:] for row in rows))


def figure(folder: Path, image: Path) -> Path:
    """The F1 on test of what validation chose of every method, a panel for every data set."""
    plt = pyplot()
    rows = [row for row in table(folder) if row["source"] == "measured"]
    names = list(dict.fromkeys(row["data"] for row in rows))
    lines = -(-len(names) // ACROSS)
    fig, grid = plt.subplots(lines, ACROSS, figsize=(9, 2.4 * lines), layout="constrained", squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes, data in zip(grid.flat, names, strict=False):
        mine = [row for row in rows if row["data"] == data and row["selected"]]
        mine.sort(key=lambda row: row["f1"])
        labels = [row["model"].replace(", ", "\n", 1) for row in mine]
        axes.errorbar([row["f1"] for row in mine], labels, xerr=[row["sd"] for row in mine], fmt="o", capsize=3)
        axes.set(title=data, xlabel="example-based F1")
        axes.grid(axis="x", alpha=0.3)
        axes.margins(y=0.3)
        axes.tick_params(axis="y", labelsize=7)
    return saved(fig, image)
