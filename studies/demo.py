"""The demo: from SMILES to molecular graphs, on generated molecules.

    python -m studies demo

A small Transformer reads the string, a sum of kernels compares graphs, and one trained model is decoded in two ways:
over the training molecules, and over all molecules.
"""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from torch import Generator

from dsokr import chem, networks, selection, sketches
from dsokr.decoders import Candidates, GraphSearch, Molecules
from dsokr.estimator import DSOKR
from dsokr.files import replace_file
from dsokr.graphs import Graph, GraphBatch
from dsokr.metrics import edit_distance
from dsokr.regressors import KernelRidge, Neural
from studies import smi2mol_models as models
from studies.data import molecules
from studies.data.smi2mol import MoleculePairs, SMI2Mol
from studies.plots import plot_sizes, pyplot
from studies.results import Row, format_cell
from studies.study import ADAMW, Stopwatch, decode

KERNEL = models.KERNELS[models.OURS.kernel]
MAX_ATOMS = 7
LONGEST = 14  # characters; every training step pays for the longest SMILES, and about nine in ten are no longer
EXAMPLES = 10  # test molecules on the page
FROM_LIST, FROM_ALL = "DSOKR, a training molecule", "DSOKR, any molecule"


@dataclass(frozen=True)
class DemoConfig:
    n_train: int = 20_000
    n_val: int = 500
    n_test: int = 500
    epochs: int = 14
    sizes: tuple[int, ...] = (50, 100, 200, 400, 800)
    dim: int = 64  # of the sketch's directions, as many as the network's last hidden layer can fill
    input_size: int = 1_000  # of the baseline's sketch of the inputs


FULL = DemoConfig()
QUICK = DemoConfig(n_train=300, n_val=40, n_test=40, epochs=2, sizes=(20, 40), dim=20, input_size=40)
COLUMNS = {
    "method": "{method}",
    "edits": "{ged:.2f}",
    "with bond orders": "{ged_edge_labels:.2f}",
    "exact": "{exact:.1%}",
    "fitting": "{seconds:.0f} s",
}


def run(folder: Path, config: DemoConfig = FULL, seed: int = 0, say: Callable[[str], None] = print) -> Row:
    """Train on molecules, predict others, and write ``report.html`` and the model to ``folder``."""
    pyplot()  # the report needs it: fail now rather than after the training
    split, clock = generate_split(config, seed), Stopwatch()
    say(f"{config.n_train:,} molecules of 2 to {MAX_ATOMS} atoms to train on, and {config.n_test:,} others to predict")

    curve = choose_sketch_size(config, split, seed)
    size = selection.choose_size(curve)
    say(f"Perfect h picks a sketch of {size} molecules")

    with clock("dsokr"):
        model = fit_dsokr(config, size, split, seed)
    say(f"DSOKR is trained, in {clock.seconds['dsokr']:.0f} s")
    with clock("sisokr"):
        baseline = fit_sisokr(config, size, split, seed)

    test = split.test
    predictions = {
        "nearest training SMILES": predict_nearest_smiles(split.train, test.smiles),
        "SISOKR, a training molecule": baseline.predict(models.mark_ends(test.smiles)),
        FROM_LIST: decode(model, models.choose_decoder(model, Candidates().alternatives(), split)[0], test.smiles),
        FROM_ALL: model.predict(test.smiles),
        "best training molecule there is": find_nearest(test.graphs, split.train.graphs),
    }
    rows = [{"method": name} | models.measure_distances(graphs, test.graphs) for name, graphs in predictions.items()]
    for row, fitted in ((rows[1], "sisokr"), (rows[2], "dsokr"), (rows[3], "dsokr")):
        row["seconds"] = clock.seconds[fitted]
    shown = {name: predictions[name] for name in (FROM_LIST, FROM_ALL)}
    examples, curves = list_examples(test, shown), draw_curves(model, curve, size)
    report = write_report(folder / "report.html", rows, examples, curves, size)
    model.save(folder / "model")
    return {"rows": rows, "size": size, "report": str(report)}


def generate_split(config: DemoConfig, seed: int) -> SMI2Mol:
    """Different molecules to train, validate and test on, with the graphs that their SMILES denote."""
    n = config.n_train + config.n_val + config.n_test
    smiles = chem.many_smiles(molecules.generate(5 * n // 4, seed, MAX_ATOMS))
    smiles = [text for text in smiles if len(text) <= LONGEST][:n]
    smiles = [smiles[i] for i in np.random.default_rng(seed).permutation(n)]  # rare molecules are generated late
    pairs, ends = MoleculePairs(smiles, GraphBatch.of(chem.graphs(smiles))), np.cumsum([config.n_train, config.n_val])
    return SMI2Mol(*(pairs.rows(np.arange(*part)) for part in pairwise((0, *ends, n))))


def choose_sketch_size(config: DemoConfig, split: SMI2Mol, seed: int) -> selection.SizeCurve:
    """Perfect h at every size: how near is the best training molecule, given the true coordinates?"""
    train, val, sketch = split.train.graphs, split.val.graphs, sketches.SubSample(1)
    options: Row = {"metric": models.negative_edit_distance, "generator": Generator().manual_seed(seed)}
    return selection.perfect_h(KERNEL, train, val, sketch, config.sizes, **options)


def fit_dsokr(config: DemoConfig, size: int, split: SMI2Mol, seed: int) -> DSOKR:
    """A Transformer, and the search over all molecules."""
    network = networks.CharTransformer(layers=3, width=64, heads=4, dropout=0.0, longest=LONGEST)
    training = replace(ADAMW, epochs=config.epochs, batch_size=32, learning_rate=2e-3, warmup_steps=200)
    search = GraphSearch(Molecules(max_atoms=MAX_ATOMS))
    sketch, regressor = sketches.SubSample(size), Neural(network, training=training)
    model = DSOKR(KERNEL, sketch, regressor, dim=config.dim, decoder=search, random_state=seed)
    return model.fit(*split.train, validation=split.val)


def fit_sisokr(config: DemoConfig, size: int, split: SMI2Mol, seed: int) -> DSOKR:
    """The baseline without a network: ridge regression from 3-grams of the SMILES."""
    inputs, penalties = sketches.SubSample(config.input_size), (1e-6, 1e-5, 1e-4)
    ridge = KernelRidge(models.THREE_GRAMS, inputs, penalties, monitor=models.negative_edit_distance)
    split = split.map_smiles(models.mark_ends)
    return DSOKR(KERNEL, sketches.SubSample(size), ridge, random_state=seed).fit(*split.train, validation=split.val)


def predict_nearest_smiles(train: MoleculePairs, smiles: list[str]) -> GraphBatch:
    """For every SMILES the graph of the training SMILES that shares most 3-grams with it."""
    similarity = models.THREE_GRAMS(models.mark_ends(smiles), models.mark_ends(train.smiles))
    return train.graphs[similarity.argmax(dim=1).numpy()]


def find_nearest(true: GraphBatch, known: GraphBatch, among: int = 30) -> GraphBatch:
    """For every true graph the known one at the least edit distance, of the ``among`` most similar by the kernel."""
    similar = KERNEL(true, known).topk(min(among, len(known))).indices.numpy()
    nearest = [row[edit_distance(graph, known[row]).argmin()] for graph, row in zip(true, similar, strict=True)]
    return known[np.array(nearest)]


def list_examples(test: MoleculePairs, predictions: dict[str, GraphBatch]) -> list[Row]:
    """The first test molecules, drawn: SMILES, the predictions with their distances, the truth."""
    examples = []
    for i, (smiles, true) in enumerate(zip(test.smiles[:EXAMPLES], test.graphs, strict=False)):
        edits = {name: int(edit_distance(graphs[i], [true])) for name, graphs in predictions.items()}
        tiles = [{"svg": _draw(predictions[name][i]), "name": name, "edits": n} for name, n in edits.items()]
        examples.append({"smiles": smiles, "tiles": tiles, "truth": _draw(true)})
    return examples


def _draw(graph: Graph) -> str:
    svg = chem.draw([graph], size=(220, 150))
    return svg[svg.find("<svg") :]


def draw_curves(model: DSOKR, curve: selection.SizeCurve, size: int) -> Any:
    """Perfect h against the sketch size, and the losses over the epochs."""
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    plot_sizes(replace(curve, values=-curve.values), size, "edits", left)
    for name in ("train_loss", "val_loss"):
        right.plot(range(1, len(model.history_.rows) + 1), model.history_[name], label=name.replace("_", " "))
    right.set(xlabel="epoch", ylabel="loss")
    right.legend(frameon=False)
    return figure


def write_report(path: Path, rows: list[Row], examples: list[Row], curves: Any, size: int) -> Path:
    """Write one HTML page with its pictures inside."""
    picture = io.BytesIO()
    curves.savefig(picture, format="png", dpi=130)
    pyplot().close(curves)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("demo.html.j2").render(
        header=list(COLUMNS),
        table=[[format_cell(row, column) for column in COLUMNS.values()] for row in rows],
        ours=FROM_ALL,
        examples=examples,
        curves=base64.b64encode(picture.getvalue()).decode(),
        size=size,
    )
    with replace_file(path) as draft:
        draft.write_text(page, encoding="utf-8")
    return path
