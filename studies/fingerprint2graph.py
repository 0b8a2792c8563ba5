"""From a fingerprint to the graph: the set bits of hashed Morgan fingerprints of QM9's molecules, and their graphs.

    python -m studies fingerprint2graph --data-dir FOLDER

The protocol of Any2Graph (Krzakala et al., 2024): a random split, 90 / 5 / 5 %; the edit distance and the share of
graphs that are exactly right, with labelled atoms and bonds without orders. Two models: one is trained on molecules
with bond orders, and measured with and without them; the other is trained on graphs whose edges are all alike. Both
search all graphs of their domain. The rule is chosen on some of the validation molecules. Besides, a learning curve,
and networks, ridge regression and forests side by side and stacked.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dsokr.decoders import Candidates, GraphSearch, LabelledGraphs, Molecules, Moves
from dsokr.estimator import DSOKR
from dsokr.graphs import GraphBatch
from dsokr.kernels import Tanimoto
from dsokr.metrics import edit_distance
from dsokr.regressors import Forest, KernelRidge, Neural, Regressor, Stack, Training
from dsokr.regressors.networks import MLP
from dsokr.rules import RULES
from dsokr.saving import shorten
from dsokr.sketches import SubSample
from studies import smi2mol_models as models
from studies.data.fingerprints import (
    FingerprintPairs,
    Split,
    generate_fingerprints,
    load_fingerprints,
    measure_ceiling,
    split_pairs,
)
from studies.plots import pyplot, save_figure
from studies.results import Row, format_spread, group_rows, mean_and_sd, read_rows
from studies.study import ADAMW, Session, Stopwatch, Study, decode

NO_ORDERS = "WL + paths + 10 lengths"
KERNELS = models.KERNELS | {NO_ORDERS: models.WL + models.PATHS + 10.0 * models.LENGTHS}
ELEMENTS, VALENCES = zip(*Molecules().valences, strict=True)
N_CHOOSE = 1_000  # validation molecules on which the rule is chosen


@dataclass(frozen=True)
class Task:
    """The graphs to predict: a kernel on them, and the domain in which they are searched."""

    kernel: str
    domain: Moves
    orders: bool = True  # of bonds; without them, all edges have the label 1

    def simplify(self, pairs: FingerprintPairs) -> FingerprintPairs:
        if self.orders:
            return pairs
        ones = np.ones_like(pairs.graphs.edge_labels)
        return pairs._replace(graphs=replace(pairs.graphs, edge_labels=ones))


TASKS = {
    "bond orders": Task(models.OURS.kernel, Molecules()),
    "no bond orders": Task(NO_ORDERS, LabelledGraphs(ELEMENTS, max_nodes=9, max_degree=VALENCES), orders=False),
}


@dataclass(frozen=True)
class Run:
    task: str
    regressor: str
    seed: int
    n_train: int | None = None  # None: all


TRAINING = replace(
    ADAMW,
    optimizer="muon",
    learning_rate=2e-3,
    epochs=80,
    batch_size=1024,
    warmup_steps=500,
    precision="bf16-mixed",
    compile="reduce-overhead",
    check_every=5,
)


def make_network(hidden: tuple[int, ...], training: Training, n: int) -> Neural:
    """A network; for fewer molecules, smaller batches in place of more epochs."""
    batch = int(np.clip(2 ** np.floor(np.log2(n / 64)), 16, training.batch_size))
    return Neural(MLP(hidden), training=replace(training, batch_size=batch))


def make_ridge(size: int, n: int) -> KernelRidge:
    return KernelRidge(Tanimoto(), SubSample(min(size, n)))


def make_forest(n: int) -> Forest:
    return Forest(max_features=0.05)


@dataclass(frozen=True)
class Config:
    network: Callable[[int], Regressor]
    ridge: Callable[[int], Regressor]
    load: Callable[[Path | None], FingerprintPairs] = load_fingerprints
    size: int = 4_000  # of the sketch of outputs
    dim: int = 2_048
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    sizes: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000)  # of the learning curve
    stacked: int | None = 10_000  # molecules to train ridge regression, forests and stacks on; None: none

    def list_runs(self) -> list[Run]:
        """All that is computed: both tasks, the learning curve, other regressors and the stack."""
        runs = [Run("bond orders", "network", seed) for seed in self.seeds]
        runs += [Run("no bond orders", "network", seed) for seed in self.seeds[:2]]
        runs += [Run("bond orders", "network", self.seeds[0], n) for n in self.sizes]
        if self.stacked is not None:
            others = ("ridge", "forest", "stack")
            runs += [Run("bond orders", name, self.seeds[0], self.stacked) for name in others]
        return runs

    def make(self, name: str, n: int) -> Regressor:
        members = {"network": self.network, "ridge": self.ridge, "forest": make_forest}
        return Stack(tuple(member(n) for member in members.values())) if name == "stack" else members[name](n)


ON_CPU = replace(TRAINING, optimizer="adamw", learning_rate=1e-3, precision="32-true", compile=False)
FULL = Config(partial(make_network, (4096, 4096), TRAINING), partial(make_ridge, 4_000))
REDUCED = replace(
    FULL,
    network=partial(make_network, (1024,), replace(ON_CPU, epochs=30, batch_size=512)),
    ridge=partial(make_ridge, 1_500),
    size=1_500,
    dim=512,
    seeds=(0,),
    sizes=(1_000, 3_000, 10_000),
    stacked=3_000,
)
QUICK = replace(
    REDUCED,
    load=lambda folder: generate_fingerprints(400),
    network=partial(
        make_network,
        (256,),
        replace(ON_CPU, epochs=60, batch_size=32, warmup_steps=5, progress=False),
    ),
    size=300,
    dim=100,
    sizes=(200,),
    stacked=200,
)


def run(config: Config, session: Session) -> None:
    """Compute what is missing."""
    pairs = config.load(session.data)
    for name, task in TASKS.items():
        key = {"experiment": "fingerprint2graph", "method": "ceiling", "task": name, "molecules": len(pairs.graphs)}
        session.results("ceiling").record(key, partial(find_ceiling, pairs, task))
    for run in config.list_runs():
        run_one(config, run, pairs, session)


def find_ceiling(pairs: FingerprintPairs, task: Task) -> Row:
    own, best = measure_ceiling(pairs, task.orders)
    return {"metrics": {"own": own, "exact": best}}


def run_one(config: Config, run: Run, pairs: FingerprintPairs, session: Session) -> None:
    split = split_pairs(pairs, run.seed, run.n_train)
    n = len(split.train.graphs)
    sketch, dim = SubSample(min(config.size, n)), config.dim if n > config.dim else None
    regressor = config.make(run.regressor, n)
    key: Row = {"experiment": "fingerprint2graph", "method": "dsokr", "task": run.task, "model": run.regressor}
    key |= {"seed": run.seed, "n_train": n, "n_test": len(split.test.graphs), "sketch": str(sketch), "dim": dim}
    key |= {"kernel": TASKS[run.task].kernel, "regressor": shorten(regressor), "decoder": "GraphSearch"}

    def measure() -> Row:
        options: Row = {"dim": dim, "random_state": run.seed, "device": str(session.device)}
        model = DSOKR(KERNELS[TASKS[run.task].kernel], sketch, regressor, decoder=Candidates("kernel"), **options)
        return measure_model(model, TASKS[run.task], split)

    session.results("models").record(key, measure)


def measure_model(model: DSOKR, task: Task, split: Split) -> Row:
    """Fit, choose the rule on some of the validation molecules, and search for the test molecules."""
    (X, graphs), val, (X_test, true) = (densify(task.simplify(part)) for part in split)
    some = slice(N_CHOOSE)
    clock = Stopwatch()
    with clock("fitting"):
        model.fit(X, graphs, validation=val)
    searches = [GraphSearch(task.domain, rule, beam=8, budget=4_000) for rule in RULES]
    with clock("choosing"):
        on_val = [measure_distances(decode(model, search, val[0][some]), val[1][some], task) for search in searches]
    best = min(range(len(RULES)), key=lambda i: sum(on_val[i][name] for name in on_val[i] if "ged" in name))
    with clock("decoding"):
        predicted = decode(model, searches[best], X_test)
    metrics = measure_distances(predicted, true, task) | {"valid": measure_valid(GraphBatch.of(predicted))}
    metrics |= {f"val_{name}": value for name, value in on_val[best].items()}
    return {"chosen": {"rule": RULES[best]}, "metrics": metrics, "seconds": dict(clock.seconds)}


def densify(pairs: FingerprintPairs) -> tuple[np.ndarray, GraphBatch]:
    return pairs.bits.toarray(), pairs.graphs


def measure_distances(predicted: Any, true: GraphBatch, task: Task) -> dict[str, float]:
    """Mean edit distances and shares of exactly right graphs: without bond orders and, if there are any, with them."""
    found: dict[str, float] = {}
    for suffix, labels in (("", False), ("_edge_labels", True))[: 1 + task.orders]:
        distances = edit_distance(predicted, true, edge_labels=labels)
        found |= {f"ged{suffix}": distances.mean().item(), f"exact{suffix}": (distances == 0).double().mean().item()}
    return found


def measure_valid(graphs: GraphBatch) -> float:
    """The share of graphs that are molecules: the bonds of an atom fit its valence, which is 4 for charged nitrogen."""
    totals = np.add.reduceat(np.append(graphs.edge_labels, 0), graphs.indptr[:-1]) * (graphs.degrees() > 0)
    most = np.zeros(max(ELEMENTS) + 1, int)
    most[list(ELEMENTS)] = VALENCES
    most[7] = 4
    return float((np.add.reduceat(totals > most[graphs.labels], graphs.offsets[:-1]) == 0).mean())


REPORTED: tuple[Row, ...] = (  # Any2Graph's table, for bonds without orders
    {"name": "Relationformer (reported)", "ged": (9.15, 0.0), "exact": (0.0005, 0.0), "splits": 1},
    {"name": "FGW barycentres (reported)", "ged": (5.55, 0.0), "exact": (0.01, 0.0), "splits": 1},
    {"name": "Any2Graph (reported)", "ged": (2.13, 0.0), "exact": (0.299, 0.0), "splits": 1},
)
METRICS = ("ged", "exact", "ged_edge_labels", "exact_edge_labels", "valid")


def tabulate(folder: Path) -> list[Row]:
    """What was reported, then ours: mean and standard deviation over the seeds, most molecules first."""
    table = list(REPORTED)
    rows = sorted(read_rows(folder / "models.jsonl"), key=lambda row: -row["n_train"])
    for (task, model, n), own in group_rows(rows, lambda row: (row["task"], row["model"], row["n_train"])).items():
        spread = {m: mean_and_sd(row["metrics"][m] for row in own) for m in METRICS if m in own[0]["metrics"]}
        table.append({"name": f"{model}, {task}", "splits": len(own), "n_train": n} | spread)
    ceilings = {row["task"]: row["metrics"]["exact"] for row in read_rows(folder / "ceiling.jsonl")}
    if len(ceilings) == len(TASKS):
        without, labelled = ceilings["no bond orders"], ceilings["bond orders"]
        exact = {"exact": (without, 0.0), "exact_edge_labels": (labelled, 0.0)}
        table.append({"name": "ceiling: most frequent graph of a fingerprint", "splits": 1} | exact)
    return table


COLUMNS = {
    "model": "{name}",
    "training molecules": "{n_train:,}",
    "seeds": "{splits}",
    "GED without orders": format_spread("ged", ".3f"),
    "exact": format_spread("exact", ".1%"),
    "GED with orders": format_spread("ged_edge_labels", ".3f"),
    "exact with orders": format_spread("exact_edge_labels", ".1%"),
    "molecules": "{valid[0]:.1%}",
}


def draw(folder: Path, image: Path) -> Path:
    """The share of graphs that are exactly right, against the number of training molecules."""
    rows = [row for row in tabulate(folder) if row["name"] == "network, bond orders"]
    figure, axes = pyplot().subplots(figsize=(5, 3.4), layout="constrained")
    for metric, label in (("exact", "without bond orders"), ("exact_edge_labels", "with bond orders")):
        points = sorted((row["n_train"], 100 * row[metric][0]) for row in rows)
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    axes.set(xlabel="training molecules", ylabel="exactly right, %", xscale="log")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return save_figure(figure, image)


SIZES = {"full": (FULL,), "reduced": (REDUCED,), "quick": (QUICK,)}
STUDY = Study("fingerprint2graph", SIZES, run, tabulate, COLUMNS, draw)
