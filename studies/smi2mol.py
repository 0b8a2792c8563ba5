"""Table 1 and Figure 2 of the paper: from SMILES to molecular graphs on QM9, and beyond them.

    python -m studies smi2mol --data-dir FOLDER

Two models per split. The paper's: the Weisfeiler-Lehman subtree kernel, 3,200 anchors, the best training molecule by
the paper's rule, the epoch chosen by the edit distance on the validation molecules. And ours: a sum of kernels that
agrees better with the edit distance, the best 2,048 directions of a larger sketch, the rule chosen on validation; its
coefficients are also decoded by a search over all molecules instead of a list.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator

from dsokr import sketches
from dsokr.basis import SketchedBasis, SketchedSpan, sketch_span
from dsokr.decoders import Candidates, EmbeddedOutputs, GraphSearch
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import Kernel
from dsokr.metrics import edit_distance
from dsokr.rules import RULES, Rule
from studies import smi2mol_models as models
from studies.data.smi2mol import SMI2Mol, load_smi2mol
from studies.plots import pyplot, save_figure
from studies.results import Row, format_spread, mean_and_sd, read_rows
from studies.smi2mol_models import FULL, QUICK, REDUCED
from studies.study import Session, Study, decode


def run(config: models.Smi2MolConfig, session: Session) -> None:
    """Compute what is missing: Perfect h, the comparison of kernels, our models and the baselines."""
    for number in config.splits:
        split = load_smi2mol(session.data, number).cut(config.n_train)
        if number == config.splits[0]:
            compare_sizes(config, split, session)
            compare_kernels(config, split, session)
        if number == config.splits[-1]:
            keep_truth(config, split, session)
        measure_floor(config, split, number, session)
        for model in config.models:
            run_model(config, model, split.cut(model.n_train), number, session)
        for baseline in config.baselines:
            run_baseline(config, baseline, split, number, session)


def make_key(split: SMI2Mol, number: int) -> Row:
    return {"experiment": "smi2mol", "split": number, "n_train": len(split.train.smiles)}


def keep_truth(config: models.Smi2MolConfig, split: SMI2Mol, session: Session) -> None:
    """Keep the true graphs of the predictions that are drawn."""
    key = {"experiment": "smi2mol", "split": config.splits[-1], "method": "truth"}
    smiles = [split.test.smiles[i] for i in _spread(len(split.test.smiles), config.drawn)]
    metrics = keep_graphs(split.test.graphs, config.drawn)["metrics"] | {"smiles": smiles}
    session.results("predictions").record(key, lambda: {"metrics": metrics})


def compare_sizes(config: models.Smi2MolConfig, split: SMI2Mol, session: Session) -> None:
    """Figure 2: the edit distance of Perfect h against the sketch size, by the paper's rule and by the others."""
    for name, kernel in models.PAPERS_KERNELS.items():
        key = make_key(split, config.splits[0]) | {"method": "perfect_h", "kernel": name, "sketch": "SubSample"}
        keys = [key | {"m": m, "rule": rule, "seed": 0} for m in config.sizes for rule in RULES]

        def measure(kernel: Kernel = kernel) -> Iterator[Row]:
            span = draw_span(kernel, split, max(config.sizes), session)
            for m in config.sizes:
                yield from measure_perfect_h(span.basis(m), split, RULES)

        session.results("perfect_h").record_all(keys, measure)


def draw_span(kernel: Kernel, split: SMI2Mol, size: int, session: Session) -> SketchedSpan:
    sketch, generator = sketches.SubSample(min(size, len(split.train.smiles))), Generator().manual_seed(0)
    return sketch_span(kernel, split.train.graphs, sketch, generator=generator, device=session.device)


def measure_perfect_h(basis: SketchedBasis, split: SMI2Mol, rules: Sequence[Rule]) -> Iterator[Row]:
    """Decode the validation molecules from their true coordinates, by every rule."""
    known, z = EmbeddedOutputs(basis, split.train.graphs), basis.embed(split.val.graphs)
    for rule in rules:
        predicted = Candidates(rule).decode(basis, z, known).outputs
        yield {"metrics": models.measure_distances(predicted, split.val.graphs)}


def compare_kernels(config: models.Smi2MolConfig, split: SMI2Mol, session: Session) -> None:
    """Which kernel agrees best with the edit distance? Perfect h at one size, for all of them."""
    for name, kernel in models.KERNELS.items():
        key = make_key(split, config.splits[0]) | {"method": "perfect_h", "kernel": name, "formula": str(kernel)}
        key |= {"sketch": "SubSample", "m": config.kernel_size, "rule": "projected", "seed": 0}

        def measure(kernel: Kernel = kernel) -> Row:
            basis = draw_span(kernel, split, config.kernel_size, session).basis()
            return next(measure_perfect_h(basis, split, ["projected"]))

        session.results("kernels").record(key, measure)


def measure_floor(config: models.Smi2MolConfig, split: SMI2Mol, number: int, session: Session) -> None:
    """How near the best training molecule is: the floor of any list of candidates, or very little above it.

    The edit distance to all of them would take hours per split; it is computed to the nearest ones by the kernel.
    """
    key = make_key(split, number) | {"method": "floor", "kernel": models.OURS.kernel, "nearest": config.nearest}

    def measure() -> Row:
        train, test = split.train.graphs, split.test.graphs
        basis = draw_span(models.KERNELS[models.OURS.kernel], split, 1000, session).basis()
        nearest = EmbeddedOutputs(basis, train).top(basis.embed(test), config.nearest, "projected").indices.cpu()
        floor = {}
        for name, labels in (("ged", False), ("ged_edge_labels", True)):
            columns = [edit_distance(train[at], test, edge_labels=labels) for at in nearest.T.numpy()]
            floor[name] = torch.stack(columns).amin(dim=0).mean().item()
        return {"metrics": floor}

    session.results("floor").record(key, measure)


def run_model(
    config: models.Smi2MolConfig, model: models.MoleculeModel, split: SMI2Mol, number: int, session: Session
) -> None:
    """Train one model on one split, and record a row for every decoder."""
    key = make_key(split, number) | {"method": "dsokr", "model": model.name, "kernel": model.kernel, "seed": number}
    key |= {"sketch": str(model.sketch), "dim": model.dim}
    key |= {"network": str(model.network), "epochs": model.training.epochs}
    keys = [key | {"decoder": name, "selected": len(tried) > 1} for name, tried in model.decoders.items()]
    session.results("models").record_all(keys, partial(measure_model, config, model, split, keys, session))


def measure_model(
    config: models.Smi2MolConfig, model: models.MoleculeModel, split: SMI2Mol, keys: list[Row], session: Session
) -> Iterator[Row]:
    estimator, clock = models.fit_model(model, split, keys[0]["seed"], session.device)
    session.say(f"trained {model.name} in {clock.seconds['training']:.0f} s")
    for key in keys:
        decoder, metrics = models.choose_decoder(estimator, model.decoders[key["decoder"]], split)
        with clock("decoding"):
            predicted = decode(estimator, decoder, split.test.smiles)
        metrics = models.measure_distances(predicted, split.test.graphs) | metrics
        if isinstance(decoder, GraphSearch):
            metrics |= models.explain_misses(estimator, decoder, split.test, predicted)
        if key["split"] == config.splits[-1]:
            session.results("predictions").record(key, partial(keep_graphs, predicted, config.drawn))
        metrics |= {"best_epoch": estimator.history_.best_epoch}
        yield {"chosen": {"rule": decoder.scoring_rule()}, "metrics": metrics, "seconds": dict(clock.seconds)}


def _spread(n: int, count: int) -> list[int]:
    """Positions over the whole range: QM9 is ordered by size, and so are the molecules of a split."""
    return np.linspace(0, n - 1, count).astype(int).tolist()


def keep_graphs(predicted: GraphBatch | Sequence[Graph], count: int) -> Row:
    """A few of the predictions as plain lists, to be drawn."""
    graphs = [predicted[i] for i in _spread(len(predicted), count)]
    return {"metrics": {"graphs": [[list(g.labels), [list(e) for e in g.edges]] for g in graphs]}}


def run_baseline(
    config: models.Smi2MolConfig, baseline: models.Baseline, split: SMI2Mol, number: int, session: Session
) -> None:
    """Fit and test one baseline on one split."""
    key = {"experiment": "smi2mol", "split": number} | baseline.key(split, number)

    def measure() -> Row:
        row, predicted = baseline.measure(split, number)
        if number == config.splits[-1]:
            session.results("predictions").record(key, partial(keep_graphs, predicted, config.drawn))
        return row

    session.results("baselines").record(key, measure)


METHODS = {  # names of rows in the table, in its order
    ("floor", None, None): "best training molecule",
    ("nnbary_fgw", None, None): "NNBary-FGW",
    ("sisokr", None, None): "SISOKR",
    ("ile_fgw", None, None): "Sketched ILE-FGW",
    ("dsokr", "paper's protocol", "paper's rule"): "DSOKR, paper's kernel and rule",
    ("dsokr", "paper's protocol", "Candidates"): "DSOKR, paper's kernel, best rule",
    ("dsokr", "ours", "Candidates"): "DSOKR, sum of kernels, best rule",
    ("dsokr", "ours", "GraphSearch"): "DSOKR, sum of kernels, GraphSearch",
    ("dsokr", "ours, Muon", "GraphSearch"): "DSOKR, sum of kernels, wide last layer, Muon, GraphSearch, beam of 8",
    ("dsokr", "ours, Muon", models.WIDE): "DSOKR, sum of kernels, wide last layer, Muon, GraphSearch, beam of 32",
    ("dsokr", "ours, few molecules", "Candidates"): "DSOKR, sum of kernels, best rule, few molecules",
    ("dsokr", "ours, few molecules", "GraphSearch"): "DSOKR, sum of kernels, GraphSearch, few molecules",
}
PAPER: tuple[Row, ...] = (  # Table 1 as printed there
    {"name": "NNBary-FGW (paper)", "ged": (5.115, 0.129)},
    {"name": "SISOKR (paper)", "ged": (3.330, 0.080), "ged_edge_labels": (4.192, 0.109)},
    {"name": "Sketched ILE-FGW (paper)", "ged": (2.998, 0.253)},
    {"name": "DSOKR (paper)", "ged": (1.951, 0.074), "ged_edge_labels": (2.960, 0.079)},
)
NO_EDGE_LABELS = ("nnbary_fgw", "ile_fgw")  # predict none, so that only the other distance is meaningful


def identify_method(row: Row) -> tuple[str, str | None, str | None]:
    return row["method"], row.get("model"), row.get("decoder")


def tabulate(folder: Path) -> list[Row]:
    """The paper's rows, then ours: mean and standard deviation over the splits."""
    rows = [row for name in ("floor", "baselines", "models") for row in read_rows(folder / f"{name}.jsonl")]
    table = list(PAPER)
    for method, name in METHODS.items():
        own = [row for row in rows if identify_method(row) == method]
        metrics = ("ged",) if method[0] in NO_EDGE_LABELS else ("ged", "ged_edge_labels", "exact")
        if own:
            known = [m for m in (*metrics, *MISSES) if all(m in row["metrics"] for row in own)]
            spread = {m: mean_and_sd(row["metrics"][m] for row in own) for m in known}
            table.append({"name": name, "splits": len(own), "n_train": own[0]["n_train"]} | spread)
    return table


COLUMNS = {
    "method": "{name}",
    "training molecules": "{n_train:,}",
    "splits": "{splits}",
    "GED without edge labels": format_spread("ged", ".3f"),
    "GED with edge labels": format_spread("ged_edge_labels", ".3f"),
    "exact": "{exact[0]:.1%}",
    "misses of network / kernel / search": "{missed_by_network[0]:.2%} / {missed_by_kernel[0]:.2%} / "
    "{missed_by_search[0]:.2%}",
}
MISSES = ("missed_by_network", "missed_by_kernel", "missed_by_search")


def draw(folder: Path, image: Path) -> Path:
    """Figure 2: the edit distance of Perfect h against the sketch size, by the three decoding rules."""
    rows = read_rows(folder / "perfect_h.jsonl")
    figure, grid = pyplot().subplots(1, 3, figsize=(11, 3.3), layout="constrained", sharey=True)
    for axes, kernel in zip(grid, models.PAPERS_KERNELS, strict=True):
        for rule, label in (("kernel", "the paper's rule"), ("projected", "projected"), ("cosine", "cosine")):
            own = [row for row in rows if (row["kernel"], row["rule"]) == (kernel, rule)]
            points = sorted((row["m"], row["metrics"]["ged_edge_labels"]) for row in own)
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
        axes.set(title=kernel, xlabel="sketch size m", xscale="log")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("GED with edge labels")
    grid[0].legend(frameon=False)
    return save_figure(figure, image)


STUDY = Study("smi2mol", {"full": (FULL,), "reduced": (REDUCED,), "quick": (QUICK,)}, run, tabulate, COLUMNS, draw)
