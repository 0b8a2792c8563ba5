"""Vectors: what searching all of them is worth on the synthetic task, with a Gaussian and with the linear kernel.

    dsokr reproduce vectors

Outputs lie near a subspace, with noise: no training output is the right answer for a new input. The same network is
decoded over the training outputs (``Candidates``) and by climbing the score (``Gradient``), and is compared with one
that predicts the outputs themselves. The width of the Gaussian kernel is chosen on the validation pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Generator, Tensor

from studies.baselines import Regression
from studies.data.synthetic import LeastSquares, LeastSquaresData
from dsokr.decoders import Candidates, Decoder, Gradient
from dsokr.estimator import DSOKR
from studies.results import Results, Row, markdown_table, read_rows
from dsokr.kernels import Gaussian, Kernel, Linear
from dsokr.regressors.networks import MLP
from dsokr.plotting import pyplot, saved
from dsokr.sketches import SubSample
from dsokr.regressors.training import Training

Say = Callable[[str], None]

DECODERS: dict[str, Decoder] = {"Candidates": Candidates("kernel"), "Gradient": Gradient()}
HEADER = ["model", "test MSE", "chosen width", "decoding, ms an input", "replicates"]


@dataclass(frozen=True)
class Study:
    """What is run; network and training are the same for all. Widths are in units of the median squared distance."""

    task: LeastSquares
    network: MLP
    training: Training
    size: int  # of the sketch
    widths: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    replicates: int = 3


FULL = Study(
    task=LeastSquares(n_train=5_000, n_val=500, n_test=1_000, input_dim=100, output_dim=100, rank=10),
    network=MLP((256,)),
    training=Training(epochs=30, batch_size=64, learning_rate=2e-3, schedule="linear", patience=None, progress=False),
    size=500,
)
REDUCED = replace(FULL, replicates=1)
QUICK = Study(
    task=LeastSquares(n_train=500, n_val=100, n_test=100, input_dim=20, output_dim=30, rank=4),
    network=MLP((64,)),
    training=replace(FULL.training, epochs=20),
    size=100,
    widths=(0.3,),
    replicates=2,
)


def run(study: Study, folder: Path, say: Say = print) -> None:
    """Compute what ``models.jsonl`` in ``folder`` does not hold yet."""
    results = Results(folder / "models.jsonl")
    for seed in range(study.replicates):
        data = study.task.draw(Generator().manual_seed(seed))
        for row in _measured(study, data, seed, results):
            say(f"replicate {seed}: {name(row)}: test MSE {row['metrics']['mse']:.4f}")


def _measured(study: Study, data: LeastSquaresData, seed: int, results: Results) -> Iterator[Row]:
    options = {key: getattr(study.training, key) for key in ("epochs", "batch_size", "learning_rate", "schedule")}
    asked = {
        "experiment": "vectors",
        "task": asdict(study.task),
        "encoder": str(study.network),
        "training": options,
        "seed": seed,
    }
    yield results.record(asked | {"method": "nn"}, partial(_network, study, data, seed))
    for kernel, grid in (("Linear", [None]), ("Gaussian", list(study.widths))):
        own = {"method": "dsokr", "kernel": kernel, "widths": grid, "sketch": "SubSample", "m": study.size}
        rows = [asked | own | {"decoder": decoder, "selected": len(grid) > 1} for decoder in DECODERS]
        if not all(results.find(row) for row in rows):
            model, width, seconds = chosen(study, data, kernel, seed)
            for row, decoder in zip(rows, DECODERS.values(), strict=True):
                results.record(row, partial(_tested, model, decoder, data.test, width, seconds))
        for row in rows:
            yield results.find(row) or {}


def _network(study: Study, data: LeastSquaresData, seed: int) -> Row:
    start = time.perf_counter()
    model = Regression(study.network, training=study.training, random_state=seed, device="cpu")
    model.fit(*data.train, validation=data.val)
    seconds = {"fitting": time.perf_counter() - start}
    return {"metrics": {"mse": mse(torch.as_tensor(model.predict(data.test[0])), data.test[1])}, "seconds": seconds}


def chosen(study: Study, data: LeastSquaresData, kernel: str, seed: int) -> tuple[DSOKR, float | None, float]:
    """The model whose searched answers are best on the validation pairs, its width, and the seconds for all of them."""
    start = time.perf_counter()
    median = torch.cdist(data.train[1][:500], data.train[1][:500]).square().median().item()
    kernels: dict[float | None, Kernel] = {None: Linear()}
    if kernel == "Gaussian":
        kernels = {width: Gaussian(width / median) for width in study.widths}
    models = {
        width: DSOKR(
            of_width,
            SubSample(study.size),
            study.network,
            decoder=Gradient(),
            training=study.training,
            random_state=seed,
            device="cpu",
        ).fit(*data.train, validation=data.val)
        for width, of_width in kernels.items()
    }
    errors = {width: mse(decoded(model, Gradient(), data.val[0]), data.val[1]) for width, model in models.items()}
    best = min(errors, key=errors.__getitem__)
    return models[best], best, time.perf_counter() - start


def decoded(model: DSOKR, decoder: Decoder, X: Tensor) -> Tensor:
    return torch.as_tensor(decoder.decode(model.basis_, model.coefficients(X), model.known_).outputs)


def mse(predicted: Tensor, true: Tensor) -> float:
    return (predicted.to(true) - true).square().mean().item()


def _tested(model: DSOKR, decoder: Decoder, test: tuple[Tensor, Tensor], width: float | None, fitting: float) -> Row:
    start = time.perf_counter()
    metrics = {"mse": mse(decoded(model, decoder, test[0]), test[1])}
    seconds = {"fitting": fitting, "decoding": time.perf_counter() - start}
    return {"metrics": metrics, "chosen": {"width": width}, "seconds": seconds}


def name(row: Row) -> str:
    """What a row is about, in a few words."""
    return "NN" if row["method"] == "nn" else f"DSOKR, {row['kernel']}, {row['decoder']}"


def table(folder: Path) -> list[Row]:
    """One row per model: mean and standard deviation of the test MSE."""
    groups: dict[str, list[Row]] = {}
    for row in read_rows(folder / "models.jsonl"):
        groups.setdefault(name(row), []).append(row)
    return [{"model": model} | _summary(rows) for model, rows in groups.items()]


def _summary(rows: list[Row]) -> Row:
    errors = [row["metrics"]["mse"] for row in rows]
    widths = sorted({row["chosen"]["width"] for row in rows if row.get("chosen", {}).get("width")})
    spread = {"mse": mean(errors), "sd": stdev(errors) if len(errors) > 1 else 0.0, "replicates": len(rows)}
    decoding = mean(row["seconds"].get("decoding", 0.0) for row in rows) / rows[0]["task"]["n_test"]
    return spread | {"widths": widths, "decoding": decoding}


def cells(row: Row) -> list[str]:
    """A row of the table in words."""
    widths = ", ".join(f"{width:g}" for width in row["widths"])
    decoding = f"{1000 * row['decoding']:.2f}" if row["decoding"] else ""
    return [row["model"], f"{row['mse']:.4f} ± {row['sd']:.4f}", widths, decoding, str(row["replicates"])]


def markdown(rows: list[Row]) -> str:
    """The table for a page."""
    return markdown_table(HEADER, map(cells, rows))


def figure(folder: Path, image: Path) -> Path:
    """The test MSE of every model, beside the variance of the noise."""
    plt = pyplot()
    rows = table(folder)
    fig, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
    axes.barh([row["model"] for row in reversed(rows)], [row["mse"] for row in reversed(rows)], color="tab:blue")
    axes.axvline(read_rows(folder / "models.jsonl")[0]["task"]["noise"], color="grey", linestyle=":")
    axes.set(xscale="log", xlabel="test MSE (dotted: the noise alone)")
    return saved(fig, image)
