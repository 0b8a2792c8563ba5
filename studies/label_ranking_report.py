"""What came out of the label ranking study: a table with a column for every data set, and a figure."""

from __future__ import annotations

from pathlib import Path

from studies.label_ranking import RECIPES, table
from studies.results import Row, markdown_table, read_rows
from dsokr.plotting import pyplot, saved

GOALS = {  # of Kendall's τ, set before the study
    "authorship": 0.94,
    "glass": 0.90,
    "iris": 0.97,
    "vehicle": 0.88,
    "vowel": 0.91,
    "wine": 0.95,
}
METHODS = {
    "consensus": "consensus ranking",
    "linear ridge": "linear ridge",
    "kernel ridge": "kernel ridge (IOKR)",
    "random forest": "random forest",
    "dsokr": "DSOKR",
}


def wide(folder: Path) -> list[Row]:
    """One row per method, kernel and decoder: ``{"model", "taus": {data set: (mean, deviation, repetitions)}}``."""
    rows: dict[tuple[str, str, str], Row] = {}
    for row in table(folder):
        key = (row["method"], row["kernel"], row["decoder"])
        made = rows.setdefault(key, {"model": name(*key), "method": row["method"], "taus": {}})
        made["taus"][row["dataset"]] = (row["kendall_tau"], row["sd"], row["repetitions"])
    return [row for method in METHODS for row in rows.values() if row["method"] == method]


def name(method: str, kernel: str, decoder: str) -> str:
    """In a few words; the decoder is said where it is not the kernel's own."""
    listed = ", training rankings only" if decoder == "Candidates" else ""
    return f"{METHODS[method]}, {kernel}{listed}"


def datasets(rows: list[Row]) -> list[str]:
    """All there are: those with a goal first."""
    there = {dataset for row in rows for dataset in row["taus"]}
    return [dataset for dataset in GOALS if dataset in there] + sorted(there - set(GOALS))


def header(rows: list[Row]) -> list[str]:
    return ["method, kernel", *datasets(rows)]


def cells(row: Row, names: list[str]) -> list[str]:
    """A row of the table in words."""
    taus = (row["taus"].get(dataset) for dataset in names)
    return [row["model"], *("–" if found is None else f"{found[0]:.3f} ± {found[1]:.3f}" for found in taus)]


def markdown(rows: list[Row]) -> str:
    """The table for a page, with the goals on top and the best value of every data set in bold."""
    names = datasets(rows)
    best = {dataset: max(row["taus"][dataset][0] for row in rows if dataset in row["taus"]) for dataset in names}
    lines = [["goal", *(f"{GOALS[dataset]:.2f}" if dataset in GOALS else "–" for dataset in names)]]
    for row in rows:
        model, *values = cells(row, names)
        for i, dataset in enumerate(names):
            if row["taus"].get(dataset, (None,))[0] == best[dataset]:
                values[i] = f"**{values[i]}**"
        lines.append([model, *values])
    return markdown_table(header(rows), lines)


def chosen(folder: Path, names: list[str]) -> str:
    """A table of the share of folds in which a recipe was among those taken, with the Kemeny kernel."""
    rows = [r for r in read_rows(folder / "models.jsonl") if (r["method"], r["decoder"]) == ("dsokr", "Kemeny")]
    lines = []
    for recipe in RECIPES:
        network, t = recipe.network, recipe.training
        shape = f"{network.hidden}, {network.activation}" if network.hidden else "linear"
        label = f"{shape}; rate {t.learning_rate:g}, decay {t.weight_decay:g}"
        lines.append([label, *(_share(rows, name, str(recipe)) for name in names)])
    return markdown_table(["network", *names], lines)


def _share(rows: list[Row], dataset: str, recipe: str) -> str:
    there = [row for row in rows if row["dataset"] == dataset]
    folds = sum(len(row["metrics"]["by_fold"]) for row in there)
    return f"{sum(row['chosen'].get(recipe, 0) for row in there) / folds:.0%}" if there else "–"


def figure(folder: Path, image: Path) -> Path:
    """Kendall's τ of the methods with the Kemeny kernel, beside the goals."""
    plt = pyplot()
    rows = [row for row in wide(folder) if row["model"].endswith(", Kemeny")]
    names = datasets(rows)
    fig, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
    width = 0.8 / len(rows)
    for i, row in enumerate(rows):
        there = [(j, *row["taus"][dataset][:2]) for j, dataset in enumerate(names) if dataset in row["taus"]]
        places, means, deviations = zip(*there, strict=True)
        left = [place + (i - (len(rows) - 1) / 2) * width for place in places]
        axes.bar(left, means, width, yerr=deviations, label=METHODS[row["method"]], error_kw={"linewidth": 0.8})
    for j, dataset in enumerate(names):
        if dataset in GOALS:
            axes.hlines(GOALS[dataset], j - 0.45, j + 0.45, color="black", linestyle=":")
    axes.set(xticks=range(len(names)), xticklabels=names, ylabel="Kendall's τ", ylim=(0, 1.02))
    axes.legend(frameon=False, ncols=len(rows), loc="upper center", bbox_to_anchor=(0.5, 1.16))
    return saved(fig, image)
