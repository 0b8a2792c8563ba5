"""Figure 1 of the paper: DSOKR on synthetic least squares, and how its sketch size can be chosen.

    dsokr reproduce synthetic

Outputs of 1,000 dimensions lie near a subspace of 50. Leverage scores and *Perfect h* should find that out from the
outputs alone, and DSOKR should reach the network with 1,000 outputs as soon as the sketch is as large as the subspace.

Beside the paper's two sketches there is a third curve: a sub-sample of 1,000 outputs, of whose span sketched kernel PCA
keeps the best p directions. A sketch of m noisy outputs misses about rank · noise / (m − rank) of the signal, whatever
is learnt; the rotated one does not.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Generator, Tensor, nn

from dsokr import sketches
from dsokr.basis import SketchedBasis, sketch_basis, sketch_span
from studies.data.synthetic import LeastSquares, LeastSquaresData
from dsokr.compute import seeded
from studies.results import Results, Row, read_rows
from dsokr.kernels import Linear
from dsokr.losses import Squared
from dsokr.regressors.networks import MLP
from dsokr.plotting import pyplot, saved
from dsokr.selection import leverage_scores
from dsokr.regressors.training import Pairs, Training, train

ROTATED = "SubSample, rotated"
SKETCHES = ("SubSample", "Gaussian", ROTATED)


@dataclass(frozen=True)
class Study:
    """What is run; the training is the same for DSOKR and the NN."""

    task: LeastSquares
    sizes: tuple[int, ...]
    replicates: int
    training: Training
    rotated_from: int = 1000  # outputs in the sketch that is rotated
    regularization: float = 1e-4  # λ of the leverage scores; their pilot sample has √n outputs


FULL = Study(  # the paper's setting
    task=LeastSquares(),
    sizes=(2, 5, 10, 20, 30, 40, 45, 50, 55, 60, 75, 100, 125, 150, 200, 250, 300, 350, 400),
    replicates=5,
    training=Training(epochs=20, batch_size=256, learning_rate=1e-2, schedule="linear", patience=None),
)
REDUCED = replace(FULL, sizes=(10, 25, 50, 60, 75, 100, 200, 400), replicates=2)
QUICK = Study(
    task=LeastSquares(n_train=2_000, n_val=400, n_test=400, input_dim=100, output_dim=120, rank=10),
    sizes=(2, 5, 10, 15, 20, 40),
    replicates=2,
    rotated_from=120,
    training=replace(FULL.training, learning_rate=0.05, batch_size=64),
)


def run(study: Study, folder: Path, device: torch.device, say: Callable[[str], None] = print) -> None:
    """Compute what ``folder`` does not hold yet: ``leverage.jsonl``, ``perfect_h.jsonl`` and ``models.jsonl``."""
    say(f"drawing {study.task.n_train:,} training pairs")
    data = study.task.draw(Generator().manual_seed(0), device)
    asked = {"experiment": "synthetic", "task": asdict(study.task)}
    scores = asked | {"method": "leverage_scores", "regularization": study.regularization, "seed": 0}
    Results(folder / "leverage.jsonl").record(scores, partial(_leverage, study, data.train[1]))
    say("leverage scores are done")
    for seed in range(study.replicates):
        _replicate(study, data, seed, folder, asked, say)


def _replicate(
    study: Study, data: LeastSquaresData, seed: int, folder: Path, asked: Row, say: Callable[[str], None]
) -> None:
    """Perfect h and DSOKR at every size, for one draw of each sketch; and the NN.

    All models of a replicate are trained as one perceptron whose outputs are theirs side by side. With a single layer,
    the square loss and Adam, no model's gradients or steps depend on another's, so that each comes out as if trained
    alone on the same batches; and the best epoch is chosen for each by itself.
    """
    perfect, models = Results(folder / "perfect_h.jsonl"), Results(folder / "models.jsonl")
    training = {name: getattr(study.training, name) for name in ("epochs", "batch_size", "learning_rate", "schedule")}
    wanted: list[Row] = [{"method": "nn", "seed": seed}]
    for name, p in product(SKETCHES, study.sizes):
        m = study.rotated_from if name == ROTATED else p
        wanted.append({"method": "dsokr", "kernel": "Linear()", "sketch": name, "m": m, "p": p, "seed": seed})
    rows = [asked | {"training": training} | which for which in wanted]
    if any(models.find(row) is None for row in rows):
        of_sketch = {name: _bases(study, data, name, seed) for name in SKETCHES}
        bases = [None if which["method"] == "nn" else of_sketch[which["sketch"]](which["p"]) for which in wanted]
        for which, basis in zip(wanted, bases, strict=True):
            if basis is not None:
                perfect.record(asked | which | {"method": "perfect_h"}, partial(_perfect, basis, data))
        for row, measured in zip(rows, _trained(study, data, bases, seed, folder), strict=True):
            models.add(row, measured)
    for row in rows:
        metrics = (models.find(row) or {})["metrics"]
        what = f"{row['sketch']}, p = {row['p']}" if "p" in row else "NN"
        say(f"replicate {seed}: {what}, {metrics['parameters']:,} parameters, test MSE {metrics['mse']:.5f}")


def _leverage(study: Study, Y: Tensor) -> Row:
    start = time.perf_counter()
    scores = leverage_scores(Linear(), Y, regularization=study.regularization, generator=Generator().manual_seed(0))
    top = scores.sort(descending=True).values[: max(study.sizes)]
    return {"metrics": {"scores": top.tolist()}, "seconds": {"total": time.perf_counter() - start}}


def _bases(study: Study, data: LeastSquaresData, name: str, seed: int) -> Callable[[int], SketchedBasis]:
    """The basis of every dimension for this replicate's draw: smaller sketches are the first rows of the largest."""
    Y, generator = data.train[1], Generator().manual_seed(1000 + seed)
    if name == ROTATED:
        sketch = sketches.SubSample(study.rotated_from)
        return sketch_basis(Linear(), Y, sketch, generator=generator, device=Y.device).rotated(Y).leading
    kind = {"SubSample": sketches.SubSample, "Gaussian": sketches.Gaussian}[name]
    return sketch_span(Linear(), Y, kind(max(study.sizes)), generator=generator, device=Y.device).basis


def _perfect(basis: SketchedBasis, data: LeastSquaresData) -> Row:
    """The MSE of h with the true coordinates: what the basis misses of the validation outputs."""
    Y = data.val[1]
    return {"metrics": {"mse": basis.residual(Y).mean().item() / Y.shape[1]}}


def _trained(
    study: Study, data: LeastSquaresData, bases: list[SketchedBasis | None], seed: int, folder: Path
) -> Iterator[Row]:
    """Train the perceptrons of all bases side by side, and test each."""
    start = time.perf_counter()
    parts = _slices([data.train[1].shape[1] if basis is None else basis.dim for basis in bases])
    pairs, val = _side_by_side(*data.train, bases), _side_by_side(*data.val, bases)
    network = perceptron(pairs, seed)
    best = BestOfEach(parts, val)
    running = str(folder / f"replicate-{seed}")  # an interrupted replicate goes on from here
    options = replace(study.training, folder=running, trainer={"callbacks": [best]})
    train(network, pairs, val, Squared(), options, seed=seed, device=pairs.inputs.device)
    shutil.rmtree(running)
    seconds = {"replicate": time.perf_counter() - start}
    X, Y = data.test
    for basis, part, epoch in zip(bases, parts, best.epochs, strict=True):
        z = X @ best.weight[part].T + best.bias[part]
        d2 = (z.to(Y) - Y).square().sum(dim=1) if basis is None else basis.squared_distance(z, Y)
        parameters = best.weight[part].numel() + best.bias[part].numel()
        mse = d2.mean().item() / Y.shape[1]
        yield {"metrics": {"mse": mse, "parameters": parameters, "best_epoch": epoch}, "seconds": seconds}


def _side_by_side(X: Tensor, Y: Tensor, bases: list[SketchedBasis | None]) -> Pairs:
    """The targets of all models in one matrix: coordinates in each basis, and the outputs themselves for the NN."""
    targets = torch.cat([(Y if basis is None else basis.embed(Y)).float() for basis in bases], dim=1)
    return Pairs(X, targets, torch.zeros_like(X[:, 0]))


def _slices(widths: list[int]) -> list[slice]:
    stops = list(accumulate(widths))
    return [slice(stop - width, stop) for stop, width in zip(stops, widths, strict=True)]


def perceptron(pairs: Pairs, seed: int) -> nn.Module:
    """A single layer, its weights drawn from the seed."""
    with seeded(seed):
        network = MLP(hidden=())(pairs.targets.shape[1])
        network(pairs.inputs[:1].cpu())
    return network


class BestOfEach(Callback):
    """For every part of a single layer's outputs, keeps the weights of the epoch that validates best on that part."""

    def __init__(self, parts: list[slice], val: Pairs):
        self.parts, self.val = parts, val
        self.losses = [math.inf] * len(parts)
        self.epochs = [0] * len(parts)
        self.weight, self.bias = torch.empty(0), torch.empty(0)

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        layer: Any = module.network[-1]  # type: ignore[index] # our perceptron
        if not self.epochs[0]:
            self.weight, self.bias = layer.weight.clone(), layer.bias.clone()
        errors = (layer(self.val.inputs) - self.val.targets).square_().mean(dim=0)
        for i, part in enumerate(self.parts):
            loss = errors[part].sum().item()
            if loss < self.losses[i]:
                self.losses[i], self.epochs[i] = loss, trainer.current_epoch + 1
                self.weight[part], self.bias[part] = layer.weight[part], layer.bias[part]

    def state_dict(self) -> Row:
        return {name: getattr(self, name) for name in ("losses", "epochs", "weight", "bias")}

    def load_state_dict(self, state: Row) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def figure(folder: Path, image: Path) -> Path:
    """Figure 1 from the files in ``folder``: leverage scores, Perfect h, and DSOKR minus NN, against m."""
    plt = pyplot()
    leverage, perfect, models = (read_rows(folder / f"{n}.jsonl") for n in ("leverage", "perfect_h", "models"))
    nn_mse = _mean([row for row in models if row["method"] == "nn"])
    fig, (left, centre, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    left.plot(range(1, len(leverage[0]["metrics"]["scores"]) + 1), leverage[0]["metrics"]["scores"])
    left.set(title="leverage scores", xlabel="rank", ylabel="approximate leverage score", yscale="log")
    for name, marker in zip(SKETCHES, "o^s", strict=True):
        _curve(centre, [row for row in perfect if row["sketch"] == name], name, marker)
        _curve(right, [row for row in models if row.get("sketch") == name], name, marker, minus=nn_mse)
    centre.set(title="Perfect h", xlabel="dimension p (= m unless rotated)", ylabel="validation MSE", yscale="log")
    right.set(title="DSOKR − NN", xlabel="dimension p (= m unless rotated)", ylabel="difference of test MSE")
    right.set_yscale("symlog", linthresh=nn_mse / 100)
    right.axhline(0, color="grey", linewidth=0.8)
    for axes in (centre, right):
        axes.axvline(leverage[0]["task"]["rank"], color="grey", linestyle=":", linewidth=1)
        axes.legend(frameon=False)
    return saved(fig, image)


def _mean(rows: list[Row]) -> float:
    return sum(row["metrics"]["mse"] for row in rows) / len(rows)


def _curve(axes: Any, rows: list[Row], name: str, marker: str, minus: float = 0.0) -> None:
    dims = sorted({row["p"] for row in rows})
    values = [torch.tensor([row["metrics"]["mse"] - minus for row in rows if row["p"] == p]) for p in dims]
    axes.plot(dims, [v.mean() for v in values], marker=marker, markersize=3, label=name)
    axes.fill_between(dims, [v.min() for v in values], [v.max() for v in values], alpha=0.2)


def table(folder: Path) -> list[Row]:
    """One row per sketch and dimension: mean test MSE of DSOKR, its excess over the NN, the number of parameters."""
    models, perfect = read_rows(folder / "models.jsonl"), read_rows(folder / "perfect_h.jsonl")
    nn_rows = [row for row in models if row["method"] == "nn"]
    rows: list[Row] = [{"model": "NN", "parameters": nn_rows[0]["metrics"]["parameters"], "mse": _mean(nn_rows)}]
    for name in SKETCHES:
        mine = [row for row in models if row.get("sketch") == name]
        for p in sorted({row["p"] for row in mine}):
            at = [row for row in mine if row["p"] == p]
            perfect_at = [row for row in perfect if row["sketch"] == name and row["p"] == p]
            row = {"model": f"DSOKR, {name}", "p": p, "parameters": at[0]["metrics"]["parameters"], "mse": _mean(at)}
            rows.append(row | {"excess": row["mse"] / rows[0]["mse"] - 1, "perfect_h": _mean(perfect_at)})
    return rows
