"""Table 1 and Figure 2 of the paper: from SMILES to molecular graphs on QM9, and past them.

    dsokr reproduce smi2mol --data-dir FOLDER

Two models a split. The paper's: the Weisfeiler-Lehman subtree kernel, 3,200 anchors, the best training molecule by the
paper's rule, the epoch chosen by the edit distance on the validation molecules. And ours: a sum of kernels that goes
along with the edit distance better, the best 2,048 directions of a larger sketch, the rule chosen on validation; its
coefficients are also decoded by a search of all molecules, not of a list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Generator, Tensor

from dsokr import sketches
from dsokr.basis import RULES, SketchedBasis, sketch_span
from studies.data.smi2mol import SMI2Mol, smi2mol
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, GraphSearch
from dsokr.estimator import DSOKR
from studies.results import MEASURED, Results, Row
from studies.smi2mol_baselines import Run, ile_fgw, nnbary_fgw, sisokr
from dsokr.graphs import GraphBatch
from dsokr.kernels import NSPD, Core, Kernel, ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.regressors.networks import CharTransformer
from dsokr.regressors.training import Training
from dsokr.graphs import Graph

Say = Callable[[str], None]
Baseline = Callable[..., Run | None]  # (split, its seed, known=)

BASELINES: tuple[Baseline, ...] = (sisokr, ile_fgw, nnbary_fgw)

WL = WeisfeilerLehman(3).normalized()
WL_EDGES = WeisfeilerLehman(3, edge_labels=True).normalized()
WL_SHORT = WeisfeilerLehman(2, edge_labels=True).normalized()
PATHS, LENGTHS = ShortestPath().normalized(), ShortestPath(labels=False).normalized()

PAPERS_KERNELS = {"WL-VH": WL, "CORE-WL": Core(WeisfeilerLehman(3)).normalized(), "NSPD": NSPD(3, 4).normalized()}
MORE_KERNELS = {
    "WL with edge labels": WL_EDGES,
    "shortest paths": PATHS,
    "WL + WL with edge labels": WL + WL_SHORT,
    "WL + WL with edge labels + paths": WL + WL_SHORT + PATHS,
    "WL + WL with edge labels + paths + 10 lengths": WL + WL_SHORT + PATHS + 10.0 * LENGTHS,
    "WL + WL with edge labels + 10 lengths": WL + WL_EDGES + 10.0 * LENGTHS,
}
KERNELS: dict[str, Kernel] = PAPERS_KERNELS | MORE_KERNELS


def negative_edit_distance(predicted: GraphBatch, true: GraphBatch) -> float:
    """What early stopping watches, better when larger."""
    return -edit_distance(predicted, true).mean().item()


@dataclass(frozen=True)
class Model:
    """What is trained, and the decoders tried on it. Of several decoders the best on validation is ``selected``."""

    name: str
    kernel: str
    sketch: sketches.SketchSpec
    dim: int | None
    training: Training
    decoders: dict[str, tuple[Decoder, ...]]
    network: CharTransformer
    n_train: int | None = None  # of the training molecules, the first; None: all


TRAINING = Training(
    epochs=40,
    batch_size=512,
    learning_rate=1e-3,
    optimizer="adamw",
    weight_decay=0.01,
    schedule="linear",
    warmup_steps=500,
    gradient_clip=1.0,
    precision="bf16-mixed",
    compile="reduce-overhead",
    patience=None,
)
LARGE = CharTransformer(layers=6, width=512, dropout=0.0, longest=64)
EVERY_RULE = tuple(Candidates(rule) for rule in RULES)
PAPERS = Model(
    "paper's protocol",
    "WL-VH",
    sketches.SubSample(3200),
    None,
    replace(TRAINING, monitor=negative_edit_distance, check_every=2),
    {"paper's rule": (Candidates("kernel"),), "Candidates": EVERY_RULE},
    LARGE,
)
OURS = Model(
    "ours",
    "WL + WL with edge labels + paths + 10 lengths",
    sketches.SubSample(4000),
    2048,
    TRAINING,
    {"Candidates": EVERY_RULE, "GraphSearch": tuple(GraphSearch(rule=rule) for rule in RULES)},
    LARGE,
)
FEW = replace(  # as many molecules as NNBary-FGW can afford
    OURS,
    name="ours, few molecules",
    sketch=sketches.SubSample(1500),
    dim=512,
    training=replace(
        TRAINING, epochs=100, batch_size=32, warmup_steps=200, precision="32-true", compile=False, learning_rate=5e-4
    ),
    network=CharTransformer(layers=2, width=128, heads=4, dropout=0.1, longest=64),
    n_train=1500,
)


@dataclass(frozen=True)
class Study:
    """What is run."""

    models: tuple[Model, ...] = (PAPERS, OURS, FEW)
    splits: tuple[int, ...] = (0, 1, 2, 3, 4)
    sizes: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400)
    kernel_size: int = 3200  # of the sketch with which kernels are compared
    baselines: tuple[Baseline, ...] = BASELINES
    n_train: int | None = None  # None: all
    nearest: int = 200  # training molecules among which the best one is looked for
    drawn: int = 12  # test molecules of the last split, spread over all sizes, whose predictions are kept for the page


FULL = Study()
_ON_A_CPU = {"epochs": 30, "batch_size": 64, "precision": "32-true", "compile": False}
REDUCED = Study(  # an hour or two on two cores
    models=tuple(
        replace(
            model,
            sketch=sketches.SubSample(1500),
            dim=None if model.dim is None else 512,
            training=replace(model.training, **_ON_A_CPU),  # type: ignore[arg-type] # names of fields
            network=CharTransformer(layers=3, width=128, dropout=0.0, longest=64),
        )
        for model in (PAPERS, OURS)
    ),
    splits=(0,),
    sizes=(100, 400, 1600),
    kernel_size=1600,
    n_train=20_000,
)
_FEW_STEPS = {"epochs": 2, "batch_size": 64, "precision": "32-true", "compile": False, "warmup_steps": 4}
QUICK = Study(
    models=tuple(
        replace(
            model,
            sketch=sketches.SubSample(100),
            dim=None if model.dim is None else 60,
            training=replace(model.training, **_FEW_STEPS),  # type: ignore[arg-type] # names of fields
            network=CharTransformer(layers=2, width=64, dropout=0.0, longest=64),
            n_train=None,
        )
        for model in (PAPERS, OURS)
    ),
    baselines=(
        partial(sisokr, input_size=100, size=100),
        partial(ile_fgw, input_size=100, grid={"neighbors": (5,)}, n_choose=20, n_test=20),
        partial(nnbary_fgw, n_train=20, epochs=1, n_choose=20, n_test=20, grid={"trade_off": (0.5,)}),
    ),
    splits=(0,),
    sizes=(50, 100),
    kernel_size=100,
    n_train=1000,
    nearest=5,
)


def run(study: Study, folder: Path, data: str | Path | None, device: torch.device, say: Say = print) -> None:
    """Compute what ``folder`` does not hold yet: Perfect h, the kernels compared, our models and the baselines."""
    for number in study.splits:
        split = cut(smi2mol(data, number), study.n_train)
        if number == study.splits[0]:
            compare_sizes(study, split, folder, device, say)
            compare_kernels(study, split, folder, device, say)
        if number == study.splits[-1]:
            keep_truth(study, split, folder)
        find_floor(study, split, number, folder, device, say)
        for model in study.models:
            train_and_test(study, model, cut(split, model.n_train), number, folder, device, say)
        for baseline in study.baselines:
            compare_with(study, baseline, split, number, folder, say)


def cut(split: SMI2Mol, n_train: int | None) -> SMI2Mol:
    """With the first training molecules only; None keeps all."""
    return split if n_train is None else replace(split, train=split.train.rows(np.arange(n_train)))


def _asked(split: SMI2Mol, number: int) -> Row:
    return {"experiment": "smi2mol", "split": number, "n_train": len(split.train.smiles)}


def keep_truth(study: Study, split: SMI2Mol, folder: Path) -> None:
    """What the predictions that are drawn are compared with."""
    row = {"experiment": "smi2mol", "split": study.splits[-1], "method": "truth"}
    rows = _spread(len(split.test.smiles), study.drawn)
    kept = _drawn(split.test.graphs, study.drawn)["metrics"] | {"smiles": [split.test.smiles[i] for i in rows]}
    Results(folder / "predictions.jsonl").add(row, {"metrics": kept})


def compare_sizes(study: Study, split: SMI2Mol, folder: Path, device: torch.device, say: Say) -> None:
    """Figure 2: the edit distance of Perfect h against the sketch size, by the paper's rule and by the others."""
    results = Results(folder / "perfect_h.jsonl")
    for name, kernel in PAPERS_KERNELS.items():
        rows = [
            _asked(split, study.splits[0])
            | {"method": "perfect_h", "kernel": name, "sketch": "SubSample", "m": m, "rule": rule, "seed": 0}
            for m in study.sizes
            for rule in RULES
        ]
        if all(results.find(row) for row in rows):
            continue
        largest = sketches.SubSample(max(study.sizes))
        span = sketch_span(kernel, split.train.graphs, largest, generator=Generator().manual_seed(0), device=device)
        for m in study.sizes:
            perfect = Perfect.of(span.basis(m), split)
            for row in rows:
                if row["m"] == m:
                    results.record(row, partial(perfect.measured, row["rule"]))
            say(f"Perfect h, {name}, m = {m}: {perfect.measured('kernel')['metrics']['ged_edge_labels']:.3f}")


def compare_kernels(study: Study, split: SMI2Mol, folder: Path, device: torch.device, say: Say) -> None:
    """Which kernel goes along with the edit distance? Perfect h at one size, for all of them."""
    results = Results(folder / "kernels.jsonl")
    for name, kernel in KERNELS.items():
        row = _asked(split, study.splits[0]) | {
            "method": "perfect_h",
            "kernel": name,
            "formula": str(kernel),
            "sketch": "SubSample",
            "m": study.kernel_size,
            "rule": "projected",
            "seed": 0,
        }
        if results.find(row) is None:
            generator = Generator().manual_seed(0)
            sketch = sketches.SubSample(study.kernel_size)
            span = sketch_span(kernel, split.train.graphs, sketch, generator=generator, device=device)
            measured = Perfect.of(span.basis(), split).measured("projected")
            results.add(row, measured)
            metrics = measured["metrics"]
            say(f"kernel {name}: {metrics['ged']:.3f} / {metrics['ged_edge_labels']:.3f} with true coordinates")


def find_floor(study: Study, split: SMI2Mol, number: int, folder: Path, device: torch.device, say: Say) -> None:
    """How near the best training molecule is: the floor of any list of candidates, or very little above it.

    The edit distance to all of them would take hours a split; it is computed to those that are nearest by the kernel.
    """
    row = _asked(split, number) | {"method": "floor", "kernel": OURS.kernel, "nearest": study.nearest}

    def measure() -> Row:
        generator, sketch = Generator().manual_seed(0), sketches.SubSample(min(1000, len(split.train.smiles)))
        span = sketch_span(KERNELS[OURS.kernel], split.train.graphs, sketch, generator=generator, device=device)
        basis = span.basis()
        z = basis.embed(split.test.graphs)
        places = EmbeddedOutputs(basis, split.train.graphs).top(z, study.nearest, "projected").indices.cpu().numpy()
        found = {}
        for name, labels in (("ged", False), ("ged_edge_labels", True)):
            columns = (edit_distance(split.train.graphs[at], split.test.graphs, edge_labels=labels) for at in places.T)
            found[name] = torch.stack(list(columns)).amin(dim=0).mean().item()
        return {"metrics": found}

    found = Results(folder / "floor.jsonl").record(row, measure)["metrics"]
    said = f"{found['ged']:.3f} without and {found['ged_edge_labels']:.3f} with edge labels"
    say(f"split {number}, best training molecule: GED {said}")


@dataclass(frozen=True, eq=False)
class Perfect:
    """The validation molecules decoded from their true coordinates."""

    basis: SketchedBasis
    known: EmbeddedOutputs
    z: Tensor
    true: GraphBatch

    @staticmethod
    def of(basis: SketchedBasis, split: SMI2Mol) -> Perfect:
        known = EmbeddedOutputs(basis, split.train.graphs)
        return Perfect(basis, known, basis.embed(split.val.graphs), split.val.graphs)

    def measured(self, rule: Any) -> Row:
        return {"metrics": distances(Candidates(rule).decode(self.basis, self.z, self.known).outputs, self.true)}


def distances(predicted: GraphBatch, true: GraphBatch) -> dict[str, float]:
    """The mean edit distances, and the share of molecules that are exactly right."""
    without, labelled = (edit_distance(predicted, true, edge_labels=labels) for labels in (False, True))
    return {
        "ged": without.mean().item(),
        "ged_edge_labels": labelled.mean().item(),
        "exact": (labelled == 0).double().mean().item(),
    }


class Clock(Callback):
    """When training began and ended, within a fit."""

    began = ended = 0.0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.began = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.ended = time.perf_counter()


def train_and_test(
    study: Study, model: Model, split: SMI2Mol, number: int, folder: Path, device: torch.device, say: Say
) -> None:
    """One model of one split, and a row for every decoder."""
    results, pictures = Results(folder / "models.jsonl"), Results(folder / "predictions.jsonl")
    asked = _asked(split, number) | {
        "method": "dsokr",
        "model": model.name,
        "kernel": model.kernel,
        "sketch": str(model.sketch),
        "dim": model.dim,
        "network": str(model.network),
        "epochs": model.training.epochs,
        "seed": number,
    }
    rows = {name: asked | {"decoder": name, "selected": len(tried) > 1} for name, tried in model.decoders.items()}
    if all(results.find(row) for row in rows.values()):
        return
    start = time.perf_counter()
    clock, estimator = Clock(), _estimator(model, number, device)
    estimator.training = replace(model.training, trainer={"callbacks": [clock]})
    estimator.fit(split.train.smiles, split.train.graphs, validation=(split.val.smiles, split.val.graphs))
    seconds = {
        "basis": clock.began - start,
        "training": clock.ended - clock.began,
        "settling": time.perf_counter() - clock.ended,
    }
    say(
        f"split {number}, {model.name}: trained in {clock.ended - clock.began:.0f} s, best epoch "
        f"{estimator.history_.best_epoch}, validation loss {min(estimator.history_['val_loss']):.4f}"
    )
    for name, row in rows.items():
        outcome = Outcome.of(estimator, model.decoders[name], split)
        measured = {
            "chosen": {"rule": outcome.decoder.scoring_rule()},
            "metrics": outcome.metrics | {"best_epoch": estimator.history_.best_epoch},
            "seconds": seconds | {"decoding": outcome.seconds},
        }
        results.add(row, measured)
        if number == study.splits[-1]:
            pictures.record(row, partial(_drawn, outcome.predicted, study.drawn))
        m = outcome.metrics
        say(
            f"split {number}, {model.name}, {name} by {outcome.decoder.scoring_rule()}: GED {m['ged']:.3f} without and "
            f"{m['ged_edge_labels']:.3f} with edge labels, {m['exact']:.1%} exact, {outcome.seconds:.1f} s"
        )


def _spread(n: int, count: int) -> list[int]:
    """Rows over the whole range: QM9 is ordered by size, and so are the molecules of a split."""
    return np.linspace(0, n - 1, count).astype(int).tolist()


def _drawn(predicted: GraphBatch | Sequence[Graph], count: int) -> Row:
    """A few of the predictions as plain lists, for a page of pictures."""
    graphs = [predicted[i] for i in _spread(len(predicted), count)]
    return {"metrics": {"graphs": [[list(g.labels), [list(e) for e in g.edges]] for g in graphs]}}


def compare_with(study: Study, baseline: Baseline, split: SMI2Mol, number: int, folder: Path, say: Say) -> None:
    """One baseline on one split; it chooses what is open on the validation molecules itself."""
    results, pictures = Results(folder / "baselines.jsonl"), Results(folder / "predictions.jsonl")
    task = {"experiment": "smi2mol", "split": number}
    outcome = baseline(split, number, known=lambda asked: results.find(task | asked) is not None)
    if outcome is None:
        return
    row, predicted = outcome
    asked = task | {k: v for k, v in row.items() if k not in MEASURED}
    results.add(asked, {k: v for k, v in row.items() if k in MEASURED})
    if number == study.splits[-1]:
        pictures.record(asked, partial(_drawn, predicted, study.drawn))
    say(f"split {number}, {row['method']}: GED {row['metrics']['ged']:.3f} without edge labels")


def _estimator(model: Model, number: int, device: torch.device) -> DSOKR:
    return DSOKR(
        KERNELS[model.kernel],
        model.sketch,
        model.network,
        dim=model.dim,
        decoder=Candidates("kernel"),  # for early stopping; the others are tried on the trained model
        random_state=number,
        device=str(device),
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """The decoder that does best on validation, what it predicts for the test molecules, and in what time."""

    decoder: Decoder
    predicted: GraphBatch
    metrics: dict[str, float]
    seconds: float

    @staticmethod
    def of(model: DSOKR, decoders: tuple[Decoder, ...], split: SMI2Mol) -> Outcome:
        z_val, z = model.coefficients(split.val.smiles), model.coefficients(split.test.smiles)
        on_val = [distances(_decoded(model, decoder, z_val), split.val.graphs) for decoder in decoders]
        best = min(range(len(decoders)), key=lambda i: on_val[i]["ged"] + on_val[i]["ged_edge_labels"])
        start = time.perf_counter()
        predicted = _decoded(model, decoders[best], z)
        seconds = time.perf_counter() - start
        metrics = distances(predicted, split.test.graphs)
        metrics |= {f"val_{name}": value for name, value in on_val[best].items()}
        return Outcome(decoders[best], predicted, metrics, seconds)


def _decoded(model: DSOKR, decoder: Decoder, z: Tensor) -> GraphBatch:
    return GraphBatch.of(decoder.decode(model.basis_, z, model.known_).outputs)
