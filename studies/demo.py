"""The demo: from SMILES to molecular graphs, on molecules that are generated here.

    dsokr demo

A small Transformer reads the string, a sum of kernels compares graphs, and one trained model is decoded in two ways:
over the list of training molecules, and over all molecules. Read it top to bottom: it is also an example of how the
library is used.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dsokr.commands.html import Report
from torch import Generator

from dsokr import chem, kernels, networks, selection, sketches
from dsokr.decoders import Candidates, Decoder, GraphSearch, Molecules
from dsokr.estimator import DSOKR
from dsokr.graphs import Graph
from dsokr.metrics import edit_distance
from dsokr.plotting import pyplot
from dsokr.regressors.training import Training
from studies.baselines import SISOKR
from studies.data import molecules
from studies.smi2mol_baselines import THREE_GRAMS, marked

Graphs = Sequence[Graph]

MAX_ATOMS = 7
LONGEST = 14  # characters; every training step pays for the longest SMILES, and about nine in ten are no longer

KERNEL = (
    kernels.WeisfeilerLehman(3).normalized()
    + kernels.WeisfeilerLehman(2, edge_labels=True).normalized()
    + kernels.ShortestPath().normalized()
    + 10.0 * kernels.ShortestPath(labels=False).normalized()
)
NETWORK = networks.CharTransformer(layers=3, width=64, heads=4, dropout=0.0, longest=LONGEST)
TRAINING = Training(
    batch_size=32,
    learning_rate=2e-3,
    optimizer="adamw",
    weight_decay=0.01,
    schedule="linear",
    warmup_steps=200,
    gradient_clip=1.0,
    patience=None,
)
SEARCH = GraphSearch(Molecules(max_atoms=MAX_ATOMS))

FROM_LIST, FROM_ALL = "DSOKR, a training molecule", "DSOKR, any molecule"
COLUMNS = ["method", "edits", "with bond orders", "exact", "fitting"]
RIGHT, WRONG = "#1a7f37", "#b42318"


@dataclass(frozen=True)
class Size:
    n_train: int = 20_000
    n_val: int = 500
    n_test: int = 500
    epochs: int = 14
    sizes: tuple[int, ...] = (50, 100, 200, 400, 800)
    dim: int = 64  # of the sketch's directions, as many as the network's last hidden layer can fill
    input_size: int = 1_000  # of the baseline's sketch of the inputs


QUICK = Size(n_train=300, n_val=40, n_test=40, epochs=2, sizes=(20, 40), dim=20, input_size=40)


class Pairs(NamedTuple):
    smiles: list[str]
    graphs: list[Graph]


class Row(NamedTuple):
    """A line of the table: mean edit distances, the share of molecules exactly right, and the seconds of fitting."""

    method: str
    ged: float
    ged_edge_labels: float
    exact: float
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The table, the report's path, and the chosen sketch size."""

    rows: list[Row]
    report: Path
    size: int


def run(folder: Path, size: Size = Size(), seed: int = 0, say: Callable[[str], None] = print) -> Outcome:  # noqa: B008
    """Train on molecules, predict others, and write ``report.html`` and the model into ``folder``."""
    pyplot()  # the report needs it: better missed now than after the training
    folder.mkdir(parents=True, exist_ok=True)
    train, val, test = generated(size, seed)
    say(f"{size.n_train:,} molecules of 2 to {MAX_ATOMS} atoms to train on, and {size.n_test:,} others to predict")

    curve = selection.perfect_h(
        KERNEL,
        train.graphs,
        val.graphs,
        sketches.SubSample(1),
        size.sizes,
        metric=closeness,
        generator=Generator().manual_seed(seed),
    )
    chosen = selection.choose_size(curve)
    say(f"Perfect h picks a sketch of {chosen} molecules")

    start = time.perf_counter()
    model = dsokr(chosen, size, seed, train, val)
    seconds = time.perf_counter() - start
    say(f"DSOKR is trained, in {seconds:.0f} s")

    start = time.perf_counter()
    baseline = sisokr(chosen, size, seed, train, val)
    baseline_seconds = time.perf_counter() - start

    predictions: dict[str, tuple[Graphs, float]] = {
        "nearest training SMILES": (with_nearest_smiles(train, test), 0.0),
        "SISOKR, a training molecule": (baseline.predict(marked(test.smiles)), baseline_seconds),
        FROM_LIST: (decoded(model, test, best_of(model, Candidates(), val)), seconds),
        FROM_ALL: (model.predict(test.smiles), seconds),
        "best training molecule there is": (nearest_to(test.graphs, train.graphs), 0.0),
    }
    rows = [measured(name, graphs, test.graphs, took) for name, (graphs, took) in predictions.items()]
    shown = {name: predictions[name][0] for name in (FROM_LIST, FROM_ALL)}
    report = write_report(folder / "report.html", rows, gallery(test, shown), curves(model, curve, chosen), chosen)
    model.save(folder / "model")
    return Outcome(rows, report, chosen)


def generated(size: Size, seed: int) -> tuple[Pairs, Pairs, Pairs]:
    """Different molecules to train on, to validate on and to test on. The graphs are those that their SMILES mean."""
    n = size.n_train + size.n_val + size.n_test
    smiles = chem.many_smiles(molecules.generate(5 * n // 4, seed, MAX_ATOMS))
    smiles = [text for text in smiles if len(text) <= LONGEST][:n]
    smiles = [smiles[i] for i in np.random.default_rng(seed).permutation(n)]  # rare molecules are generated late
    graphs, ends = chem.graphs(smiles), (0, size.n_train, size.n_train + size.n_val, n)
    train, val, test = (Pairs(smiles[i:j], graphs[i:j]) for i, j in pairwise(ends))
    return train, val, test


def closeness(predicted: Graphs, true: Graphs) -> float:
    """Minus the mean edit distance, better when larger."""
    return -edit_distance(predicted, true).mean().item()


def dsokr(sketch_size: int, size: Size, seed: int, train: Pairs, val: Pairs) -> DSOKR:
    """A Transformer, and the search of all molecules."""
    model = DSOKR(
        KERNEL,
        sketches.SubSample(sketch_size),
        NETWORK,
        dim=size.dim,
        decoder=SEARCH,
        training=replace(TRAINING, epochs=size.epochs),
        random_state=seed,
    )
    return model.fit(*train, validation=val)


def sisokr(sketch_size: int, size: Size, seed: int, train: Pairs, val: Pairs) -> SISOKR:
    """The baseline without a network: ridge regression from 3-grams of the SMILES."""
    model = SISOKR(
        THREE_GRAMS,
        KERNEL,
        sketches.SubSample(size.input_size),
        sketches.SubSample(sketch_size),
        regularization=(1e-6, 1e-5, 1e-4),
        monitor=closeness,
        random_state=seed,
    )
    return model.fit(marked(train.smiles), train.graphs, (marked(val.smiles), val.graphs))


def with_nearest_smiles(train: Pairs, test: Pairs) -> list[Graph]:
    """For every test SMILES the graph of the training SMILES that shares most 3-grams with it."""
    nearest = THREE_GRAMS(marked(test.smiles), marked(train.smiles)).argmax(dim=1)
    return [train.graphs[i] for i in nearest]


def nearest_to(true: Graphs, known: Graphs, among: int = 30) -> list[Graph]:
    """For every true graph the known one at the least edit distance, of the ``among`` most similar by the kernel."""
    similar = KERNEL(true, known).topk(min(among, len(known))).indices
    distances = [edit_distance(graph, [known[i] for i in row]) for graph, row in zip(true, similar, strict=True)]
    return [known[row[distance.argmin()]] for row, distance in zip(similar, distances, strict=True)]


def decoded(model: DSOKR, pairs: Pairs, decoder: Decoder) -> Graphs:
    """What another decoder makes of the trained model's coefficients."""
    return decoder.decode(model.basis_, model.coefficients(pairs.smiles), model.known_).outputs


def best_of(model: DSOKR, decoder: Decoder, val: Pairs) -> Decoder:
    """The decoder with the rule that does best on validation."""
    return max(decoder.alternatives(), key=lambda choice: closeness(decoded(model, val, choice), val.graphs))


def measured(method: str, predicted: Graphs, true: Graphs, seconds: float) -> Row:
    without, labelled = (edit_distance(predicted, true, edge_labels=labels) for labels in (False, True))
    exact = (labelled == 0).double().mean().item()
    return Row(method, without.mean().item(), labelled.mean().item(), exact, seconds)


def write_report(path: Path, rows: list[Row], molecules: Any, curves: Any, chosen: int) -> Path:
    report = Report(
        "From SMILES to molecules",
        "Deep sketched output kernel regression: a small Transformer reads the string and predicts coordinates in a "
        "basis drawn from the training molecules, and a decoder finds the molecule with these coordinates.",
    )
    report.heading("How well it works")
    report.table(COLUMNS, [cells(row) for row in rows], ours=FROM_ALL)
    report.text(
        "Edits are atoms and bonds to insert, delete or relabel until the prediction is the truth; means over test "
        "molecules. None of these was trained on, so that no list of training molecules holds a right answer: the last "
        "line is about the best that one can do. The search of all molecules has no such limit."
    )
    report.heading("Molecules it had never seen")
    report.text("The first of the test molecules, not chosen. A green frame: exactly right.")
    report.figure(molecules, "SMILES, two predictions and the true molecule, for each of ten test molecules")
    report.heading("Choosing the sketch size, and training")
    report.text(
        "Left: with the true coordinates in the network's place, how far is the best training molecule from the truth? "
        f"The dashed line is the smallest size within 1 % of the best, m = {chosen}. Right: the loss over the epochs. "
        "What the basis misses of the molecules is part of it, so that it does not go to zero."
    )
    report.figure(curves, "Perfect h against the sketch size, and the losses over the epochs")
    report.heading("Go on from here")
    report.text('The folder "model" beside this page holds it: DSOKR.load("model").predict(["CC(=O)OC"])')
    return report.write(path)


def cells(row: Row) -> list[str]:
    """The row in words, for a table."""
    time = f"{row.seconds:.0f} s" if row.seconds else ""
    return [row.method, f"{row.ged:.2f}", f"{row.ged_edge_labels:.2f}", f"{row.exact:.1%}", time]


def gallery(test: Pairs, predictions: dict[str, Graphs], count: int = 10) -> Any:
    """A line for each of the first test molecules: its SMILES, the predictions, the truth."""
    names = ["given", *predictions, "truth"]
    fig, grid = pyplot().subplots(count, len(names), figsize=(9, 1.5 * count), layout="constrained")
    for axes, name in zip(grid[0], names, strict=True):
        axes.set_title(name, fontsize=10, pad=12)
    for line, text, true, *guesses in zip(grid, test.smiles, test.graphs, *predictions.values(), strict=False):
        line[0].axis("off")
        line[0].text(0.5, 0.5, text, ha="center", va="center", family="monospace", fontsize=11)
        for axes, guess, distance in zip(line[1:], guesses, edit_distance(true, guesses), strict=False):
            _picture(axes, guess, RIGHT if distance == 0 else WRONG, f"{distance:.0f} edits")
        _picture(line[-1], true, "#c5ccd8", "")
    return fig


def _picture(axes: Any, graph: Graph, frame: str, caption: str) -> None:
    axes.imshow(pyplot().imread(io.BytesIO(chem.draw_png([graph], size=(480, 260)))))
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(caption, fontsize=8, color=frame)
    axes.spines[:].set(color=frame, linewidth=1.5)


def curves(model: DSOKR, curve: selection.SizeCurve, chosen: int) -> Any:
    """Perfect h against the sketch size, and the losses over the epochs."""
    fig, (left, right) = pyplot().subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    distances = replace(curve, values=-curve.values, larger_is_better=False)
    selection.plot_sizes(distances, chosen, label="edits", axes=left)
    left.margins(x=0.25)  # for the name of the dashed line
    for name in ("train_loss", "val_loss"):
        right.plot(range(1, len(model.history_.rows) + 1), model.history_[name], label=name.replace("_", " "))
    right.set(xlabel="epoch", ylabel="loss")
    right.legend(frameon=False)
    return fig
