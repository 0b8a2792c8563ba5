"""Figure 1 of the paper: DSOKR on synthetic least squares, and how its sketch size can be chosen.

    python -m studies synthetic

Outputs of 1,000 dimensions lie near a subspace of 50. Leverage scores and *Perfect h* should find this out from the
outputs alone, and DSOKR should reach the network with 1,000 outputs as soon as the sketch is as large as the subspace.

Beside the paper's two sketches there is a third curve: sketched kernel PCA keeps the best p directions of a sub-sample
of 1,000 outputs. A sketch of m noisy outputs misses about rank · noise / (m − rank) of the signal, whatever is learned;
the rotated one does not.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from statistics import mean
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Generator, Tensor

from dsokr import sketches
from dsokr.basis import SketchedBasis, sketch_basis, sketch_span
from dsokr.kernels import Linear
from dsokr.regressors import Training
from dsokr.regressors.networks import MLP
from dsokr.selection import leverage_scores
from studies.baselines.regression import fit_regression
from studies.data.synthetic import LeastSquares, LeastSquaresData
from studies.plots import pyplot, save_figure
from studies.results import TRAINING_FIELDS, Row, group_rows, pick_fields, read_rows
from studies.study import Session, Stopwatch, Study

ROTATED = "SubSample, rotated"
SKETCHES = ("SubSample", "Gaussian", ROTATED)


@dataclass(frozen=True)
class SyntheticConfig:
    """The training is the same for DSOKR and the NN."""

    task: LeastSquares
    sizes: tuple[int, ...]
    replicates: int
    training: Training
    rotated_from: int = 1000  # outputs in the sketch that is rotated
    regularization: float = 1e-4  # λ of the leverage scores; their pilot sample has √n outputs


FULL = SyntheticConfig(  # the paper's setting
    task=LeastSquares(),
    sizes=(2, 5, 10, 20, 30, 40, 45, 50, 55, 60, 75, 100, 125, 150, 200, 250, 300, 350, 400),
    replicates=5,
    training=Training(epochs=20, batch_size=256, learning_rate=1e-2, schedule="linear", patience=None),
)
REDUCED = replace(FULL, sizes=(10, 25, 50, 60, 75, 100, 200, 400), replicates=2)
QUICK = SyntheticConfig(
    task=LeastSquares(n_train=2_000, n_val=400, n_test=400, input_dim=100, output_dim=120, rank=10),
    sizes=(2, 5, 10, 15, 20, 40),
    replicates=2,
    rotated_from=120,
    training=replace(FULL.training, learning_rate=0.05, batch_size=64),
)


def run(config: SyntheticConfig, session: Session) -> None:
    """Compute what ``leverage.jsonl``, ``perfect_h.jsonl`` and ``models.jsonl`` do not hold yet."""
    session.say(f"drawing {config.task.n_train:,} training pairs")
    data = config.task.draw(Generator().manual_seed(0), session.device)
    task = {"experiment": "synthetic", "task": asdict(config.task)}
    key = task | {"method": "leverage_scores", "regularization": config.regularization, "seed": 0}
    session.results("leverage").record(key, partial(measure_leverage, config, data.train[1]))
    for seed in range(config.replicates):
        run_replicate(config, data, seed, task, session)


def measure_leverage(config: SyntheticConfig, Y: Tensor) -> Row:
    clock = Stopwatch()
    with clock("total"):
        generator = Generator().manual_seed(0)
        scores = leverage_scores(Linear(), Y, regularization=config.regularization, generator=generator)
    top = scores.sort(descending=True).values[: max(config.sizes)]
    return {"metrics": {"scores": top.tolist()}, "seconds": clock.seconds}


def run_replicate(config: SyntheticConfig, data: LeastSquaresData, seed: int, task: Row, session: Session) -> None:
    """Perfect h and DSOKR at every size, for one draw of each sketch; and the NN."""
    perfect = session.results("perfect_h")
    models: list[Row] = [{"method": "nn", "seed": seed}]
    for name, p in product(SKETCHES, config.sizes):
        m = config.rotated_from if name == ROTATED else p
        models.append({"method": "dsokr", "kernel": "Linear()", "sketch": name, "m": m, "p": p, "seed": seed})

    def measure() -> Iterator[Row]:
        make_basis = {name: draw_bases(config, data.train[1], name, seed) for name in SKETCHES}
        bases = [None if model["method"] == "nn" else make_basis[model["sketch"]](model["p"]) for model in models]
        for model, basis in zip(models, bases, strict=True):
            if basis is not None:
                perfect.record(task | model | {"method": "perfect_h"}, partial(measure_perfect_h, basis, data.val[1]))
        yield from train_side_by_side(config, data, bases, seed)

    training = {"training": pick_fields(config.training, *TRAINING_FIELDS)}
    session.results("models").record_all([task | training | model for model in models], measure)


def draw_bases(config: SyntheticConfig, Y: Tensor, name: str, seed: int) -> Callable[[int], SketchedBasis]:
    """The basis of every dimension for this replicate's draw: smaller sketches are the first rows of the largest."""
    generator = Generator().manual_seed(1000 + seed)
    if name == ROTATED:
        sketch = sketches.SubSample(config.rotated_from)
        return sketch_basis(Linear(), Y, sketch, generator=generator, device=Y.device).rotated(Y).leading
    kind = {"SubSample": sketches.SubSample, "Gaussian": sketches.Gaussian}[name]
    return sketch_span(Linear(), Y, kind(max(config.sizes)), generator=generator, device=Y.device).basis


def measure_perfect_h(basis: SketchedBasis, Y: Tensor) -> Row:
    """The MSE of h with the true coordinates: what the basis misses of the validation outputs."""
    return {"metrics": {"mse": basis.residual(Y).mean().item() / Y.shape[1]}}


def train_side_by_side(
    config: SyntheticConfig, data: LeastSquaresData, bases: list[SketchedBasis | None], seed: int
) -> Iterator[Row]:
    """Train the perceptrons of all bases as one whose outputs are theirs side by side, and test each.

    With a single layer, the square loss and Adam, no model's gradients or steps depend on another's: each comes out as
    if trained alone on the same batches, and the best epoch is chosen for each by itself.
    """
    clock = Stopwatch()
    with clock("replicate"):
        train, val = ((X, _join_targets(Y, bases)) for X, Y in (data.train, data.val))
        stops = list(accumulate(data.train[1].shape[1] if basis is None else basis.dim for basis in bases))
        parts = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
        best = BestOfEach(parts, *val)
        options = replace(config.training, standardize=False, trainer={"callbacks": [best]})
        fit_regression(MLP(hidden=()), options, train, val, seed=seed, device=train[0].device)
    X, Y = data.test
    for basis, part, epoch in zip(bases, parts, best.epochs, strict=True):
        z = X @ best.weight[part].T + best.bias[part]
        d2 = (z.to(Y) - Y).square().sum(dim=1) if basis is None else basis.squared_distance(z, Y)
        parameters = best.weight[part].numel() + best.bias[part].numel()
        mse = d2.mean().item() / Y.shape[1]
        yield {"metrics": {"mse": mse, "parameters": parameters, "best_epoch": epoch}, "seconds": clock.seconds}


def _join_targets(Y: Tensor, bases: list[SketchedBasis | None]) -> Tensor:
    """Coordinates in each basis, and the outputs themselves for the NN."""
    return torch.cat([(Y if basis is None else basis.embed(Y)).float() for basis in bases], dim=1)


class BestOfEach(Callback):
    """For every part of a single layer's outputs, keeps the weights of the epoch that validates best on that part."""

    def __init__(self, parts: list[slice], inputs: Tensor, targets: Tensor):
        self.parts, self.inputs, self.targets = parts, inputs, targets
        self.losses, self.epochs = [math.inf] * len(parts), [0] * len(parts)
        self.weight, self.bias = torch.empty(0), torch.empty(0)

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        layer: Any = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)][-1]
        if not self.epochs[0]:
            self.weight, self.bias = layer.weight.clone(), layer.bias.clone()
        errors = (layer(self.inputs) - self.targets).square_().mean(dim=0)
        for i, part in enumerate(self.parts):
            loss = errors[part].sum().item()
            if loss < self.losses[i]:
                self.losses[i], self.epochs[i] = loss, trainer.current_epoch + 1
                self.weight[part], self.bias[part] = layer.weight[part], layer.bias[part]


def tabulate(folder: Path) -> list[Row]:
    """One row per sketch and dimension: mean test MSE of DSOKR, its excess over the NN, the number of parameters."""
    models, perfect = (
        group_rows(read_rows(folder / f"{name}.jsonl"), lambda row: (row.get("sketch"), row.get("p")))
        for name in ("models", "perfect_h")
    )
    nn_rows = models[None, None]
    rows: list[Row] = [{"model": "NN", "parameters": nn_rows[0]["metrics"]["parameters"], "mse": _mean_mse(nn_rows)}]
    for sketch in SKETCHES:
        for p in sorted(p for name, p in models if name == sketch and p is not None):
            own = models[sketch, p]
            row = {"model": f"DSOKR, {sketch}", "p": p, "parameters": own[0]["metrics"]["parameters"]}
            row |= {"mse": _mean_mse(own), "perfect_h": _mean_mse(perfect[sketch, p])}
            rows.append(row | {"excess": row["mse"] / rows[0]["mse"] - 1})
    return rows


def _mean_mse(rows: list[Row]) -> float:
    return sum(row["metrics"]["mse"] for row in rows) / len(rows)


COLUMNS = {
    "model": "{model}",
    "p": "{p}",
    "parameters": "{parameters:,}",
    "test MSE": "{mse:.5f}",
    "against NN": "{excess:+.1%}",
    "Perfect h MSE": "{perfect_h:.5f}",
}


def draw(folder: Path, image: Path) -> Path:
    """Figure 1: leverage scores, Perfect h, and DSOKR minus NN, against m."""
    leverage, perfect, models = (read_rows(folder / f"{name}.jsonl") for name in ("leverage", "perfect_h", "models"))
    nn_mse = _mean_mse([row for row in models if row["method"] == "nn"])
    figure, (left, centre, right) = pyplot().subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    left.plot(range(1, len(leverage[0]["metrics"]["scores"]) + 1), leverage[0]["metrics"]["scores"])
    left.set(title="leverage scores", xlabel="rank", ylabel="approximate leverage score", yscale="log")
    for name, marker in zip(SKETCHES, "o^s", strict=True):
        _draw_curve(centre, [row for row in perfect if row["sketch"] == name], name, marker)
        _draw_curve(right, [row for row in models if row.get("sketch") == name], name, marker, minus=nn_mse)
    centre.set(title="Perfect h", xlabel="dimension p (= m unless rotated)", ylabel="validation MSE", yscale="log")
    right.set(title="DSOKR − NN", xlabel="dimension p (= m unless rotated)", ylabel="difference of test MSE")
    right.set_yscale("symlog", linthresh=nn_mse / 100)
    right.axhline(0, color="grey", linewidth=0.8)
    for axes in (centre, right):
        axes.axvline(leverage[0]["task"]["rank"], color="grey", linestyle=":", linewidth=1)
        axes.legend(frameon=False)
    return save_figure(figure, image)


def _draw_curve(axes: Any, rows: list[Row], name: str, marker: str, minus: float = 0.0) -> None:
    groups = sorted(group_rows(rows, lambda row: row["p"]).items())
    values = [[row["metrics"]["mse"] - minus for row in own] for _, own in groups]
    dims = [p for p, _ in groups]
    axes.plot(dims, list(map(mean, values)), marker=marker, markersize=3, label=name)
    axes.fill_between(dims, list(map(min, values)), list(map(max, values)), alpha=0.2)


STUDY = Study("synthetic", {"full": (FULL,), "reduced": (REDUCED,), "quick": (QUICK,)}, run, tabulate, COLUMNS, draw)
