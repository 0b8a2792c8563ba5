"""Figure 1 of the paper: DSOKR on synthetic least squares, and how its sketch size can be chosen.

    dsokr reproduce synthetic

Outputs of 1,000 dimensions lie near a subspace of 50. Leverage scores and *Perfect h* should find that out from the
outputs alone, and DSOKR should reach the network with 1,000 outputs as soon as the sketch is as large as the subspace.

Beside the paper's two sketches there is a third curve: a sub-sample of 1,000 outputs, of whose span sketched kernel PCA
keeps the best p directions. A sketch of m noisy outputs misses about rank · noise / (m − rank) of the signal, whatever
is learnt; the rotated one does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dsokr import sketches
from dsokr.basis import SketchedBasis, sketch_basis, sketch_span
from dsokr.data.synthetic import LeastSquares, LeastSquaresData
from dsokr.experiments.results import Results, Row, read_rows
from dsokr.kernels import Linear
from dsokr.losses import Squared
from dsokr.networks import MLP
from dsokr.selection import leverage_scores
from dsokr.training import Pairs, Training, train

Bases = Callable[[int], SketchedBasis]  # dimension -> basis

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
    """Perfect h and DSOKR at every size, for one draw of each sketch; and the NN with the same seed."""
    perfect, models = Results(folder / "perfect_h.jsonl"), Results(folder / "models.jsonl")
    training = {name: getattr(study.training, name) for name in ("epochs", "batch_size", "learning_rate", "schedule")}
    trained = asked | {"training": training}
    row = models.record(trained | {"method": "nn", "seed": seed}, partial(_nn, study, data, seed))
    say(f"replicate {seed}: NN, {_summary(row)}")
    for name in SKETCHES:
        bases = cache(partial(_bases, study, data, name, seed))  # a finished replicate never draws its sketch again
        for p in study.sizes:
            m = study.rotated_from if name == ROTATED else p
            which = {"kernel": "Linear()", "sketch": name, "m": m, "p": p, "seed": seed}
            perfect.record(asked | {"method": "perfect_h"} | which, partial(_perfect, bases, p, data))
            row = models.record(trained | {"method": "dsokr"} | which, partial(_dsokr, study, bases, p, data, seed))
            say(f"replicate {seed}: {name}, p = {p}, {_summary(row)}")


def _summary(row: Row) -> str:
    return f"{row['metrics']['parameters']:,} parameters, test MSE {row['metrics']['mse']:.5f}"


def _leverage(study: Study, Y: Tensor) -> Row:
    start = time.perf_counter()
    scores = leverage_scores(Linear(), Y, regularization=study.regularization, generator=Generator().manual_seed(0))
    top = scores.sort(descending=True).values[: max(study.sizes)]
    return {"metrics": {"scores": top.tolist()}, "seconds": {"total": time.perf_counter() - start}}


def _bases(study: Study, data: LeastSquaresData, name: str, seed: int) -> Bases:
    """The basis of every dimension for this replicate's draw: smaller sketches are the first rows of the largest."""
    Y, generator = data.train[1], Generator().manual_seed(1000 + seed)
    if name == ROTATED:
        sketch = sketches.SubSample(study.rotated_from)
        return sketch_basis(Linear(), Y, sketch, generator=generator, device=Y.device).rotated(Y).leading
    kind = {"SubSample": sketches.SubSample, "Gaussian": sketches.Gaussian}[name]
    return sketch_span(Linear(), Y, kind(max(study.sizes)), generator=generator, device=Y.device).basis


def _perfect(bases: Callable[[], Bases], p: int, data: LeastSquaresData) -> Row:
    """The MSE of h with the true coordinates: what the basis misses of the validation outputs."""
    Y = data.val[1]
    return {"metrics": {"mse": bases()(p).residual(Y).mean().item() / Y.shape[1]}}


def _dsokr(study: Study, bases: Callable[[], Bases], p: int, data: LeastSquaresData, seed: int) -> Row:
    start = time.perf_counter()
    basis = bases()(p)
    pairs, val = (_pairs(X, *basis.embed_with_residual(Y)) for X, Y in (data.train, data.val))
    network, epoch = _perceptron(pairs, val, study, seed)
    X, Y = data.test
    mse = basis.squared_distance(_outputs(network, X), Y).mean().item() / Y.shape[1]
    return _trained(network, mse, epoch, start)


def _nn(study: Study, data: LeastSquaresData, seed: int) -> Row:
    """The network that predicts all coordinates of the output themselves."""
    start = time.perf_counter()
    pairs, val = (_pairs(X, Y, torch.zeros_like(Y[:, 0])) for X, Y in (data.train, data.val))
    network, epoch = _perceptron(pairs, val, study, seed)
    X, Y = data.test
    mse = (_outputs(network, X).to(Y) - Y).square().mean().item()
    return _trained(network, mse, epoch, start)


def _pairs(X: Tensor, targets: Tensor, residuals: Tensor) -> Pairs:
    return Pairs(X, targets.float(), residuals.float())


def _perceptron(pairs: Pairs, val: Pairs, study: Study, seed: int) -> tuple[nn.Module, int]:
    """A single layer, trained; and the epoch chosen on the validation pairs."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = MLP(hidden=())(pairs.targets.shape[1])
        network(pairs.inputs[:1].cpu())
    history = train(network, pairs, val, Squared(), study.training, seed=seed, device=pairs.inputs.device)
    return network, history.best_epoch


def _outputs(network: nn.Module, X: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([network(block) for block in X.split(4096)])


def _trained(network: nn.Module, mse: float, epoch: int, start: float) -> Row:
    parameters = sum(weight.numel() for weight in network.parameters())
    seconds = {"total": time.perf_counter() - start}
    return {"metrics": {"mse": mse, "parameters": parameters, "best_epoch": epoch}, "seconds": seconds}


def figure(folder: Path, image: Path) -> Path:
    """Figure 1 from the files in ``folder``: leverage scores, Perfect h, and DSOKR minus NN, against m."""
    import matplotlib.pyplot as plt

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
    image.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(image, dpi=150)
    plt.close(fig)
    return image


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
