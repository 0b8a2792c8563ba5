"""Vectors: decoding over the training outputs, or over all vectors, on the synthetic task.

    python -m studies vectors

Outputs lie near a subspace, with noise, so no training output is the right answer for a new input. One network per
kernel is decoded over the training outputs (``Candidates``) and by gradient ascent on the score (``Gradient``), and is
compared with a network that predicts the outputs themselves. The width of the Gaussian kernel is chosen on validation.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from torch import Generator, Tensor

from dsokr.decoders import Candidates, Decoder, Gradient
from dsokr.estimator import DSOKR
from dsokr.kernels import Gaussian, Kernel, Linear
from dsokr.regressors import Neural, Training
from dsokr.regressors.networks import MLP
from dsokr.sketches import SubSample
from studies.baselines.regression import fit_regression
from studies.data.synthetic import LeastSquares, LeastSquaresData
from studies.plots import pyplot, save_figure
from studies.results import TRAINING_FIELDS, Row, group_rows, mean_and_sd, pick_fields, read_rows
from studies.study import Session, Stopwatch, Study, decode

DECODERS: dict[str, Decoder] = {"Candidates": Candidates("kernel"), "Gradient": Gradient()}


@dataclass(frozen=True)
class VectorsConfig:
    """Network and training are the same for all models. Widths are in units of the median squared distance."""

    task: LeastSquares
    network: MLP
    training: Training
    size: int  # of the sketch
    widths: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    replicates: int = 3


FULL = VectorsConfig(
    task=LeastSquares(n_train=5_000, n_val=500, n_test=1_000, input_dim=100, output_dim=100, rank=10),
    network=MLP((256,)),
    training=Training(epochs=30, batch_size=64, learning_rate=2e-3, schedule="linear", patience=None, progress=False),
    size=500,
)
REDUCED = replace(FULL, replicates=1)
QUICK = VectorsConfig(
    task=LeastSquares(n_train=500, n_val=100, n_test=100, input_dim=20, output_dim=30, rank=4),
    network=MLP((64,)),
    training=replace(FULL.training, epochs=20),
    size=100,
    widths=(0.3,),
    replicates=2,
)


def run(config: VectorsConfig, session: Session) -> None:
    """Compute what ``models.jsonl`` does not hold yet."""
    results = session.results("models")
    for seed in range(config.replicates):
        data = config.task.draw(Generator().manual_seed(seed))
        task = {"experiment": "vectors", "task": asdict(config.task), "encoder": str(config.network)}
        key = task | {"training": pick_fields(config.training, *TRAINING_FIELDS), "seed": seed}
        results.record(key | {"method": "nn"}, partial(measure_network, config, data, seed))
        for kernel, widths in (("Linear", (None,)), ("Gaussian", config.widths)):
            own = {"kernel": kernel, "widths": list(widths), "selected": len(widths) > 1}
            model = key | {"method": "dsokr", "sketch": "SubSample", "m": config.size} | own
            keys = [model | {"decoder": decoder} for decoder in DECODERS]
            results.record_all(keys, partial(measure_dsokr, config, data, kernel, seed))


def measure_network(config: VectorsConfig, data: LeastSquaresData, seed: int) -> Row:
    """Train a network to predict the outputs themselves."""
    clock = Stopwatch()
    with clock("fitting"):
        model = fit_regression(config.network, config.training, data.train, data.val, seed=seed)
    return {"metrics": {"mse": mse(model.predict(data.test[0]), data.test[1])}, "seconds": clock.seconds}


def measure_dsokr(config: VectorsConfig, data: LeastSquaresData, kernel: str, seed: int) -> Iterator[Row]:
    """Train a model and yield a row for every decoder."""
    clock = Stopwatch()
    with clock("fitting"):
        model, width = choose_width(config, data, kernel, seed)
    for decoder in DECODERS.values():
        with clock("decoding"):
            metrics = {"mse": mse(decode(model, decoder, data.test[0]), data.test[1])}
        yield {"metrics": metrics, "chosen": {"width": width}, "seconds": dict(clock.seconds)}


def choose_width(config: VectorsConfig, data: LeastSquaresData, kernel: str, seed: int) -> tuple[DSOKR, float | None]:
    """Fit a model for every width and return the one whose searched answers are best on validation."""
    median = torch.cdist(data.train[1][:500], data.train[1][:500]).square().median().item()
    kernels: dict[float | None, Kernel] = {None: Linear()}
    if kernel == "Gaussian":
        kernels = {width: Gaussian(width / median) for width in config.widths}
    sketch, regressor = SubSample(config.size), Neural(config.network, training=config.training)
    options: Row = {"decoder": Gradient(), "random_state": seed, "device": "cpu"}
    models = {width: DSOKR(kernel, sketch, regressor, **options) for width, kernel in kernels.items()}
    for model in models.values():
        model.fit(*data.train, validation=data.val)
    best = min(models, key=lambda width: mse(decode(models[width], Gradient(), data.val[0]), data.val[1]))
    return models[best], best


def mse(predicted: Tensor, true: Tensor) -> float:
    return (predicted.to(true) - true).square().mean().item()


def name_model(row: Row) -> str:
    return "NN" if row["method"] == "nn" else f"DSOKR, {row['kernel']}, {row['decoder']}"


def tabulate(folder: Path) -> list[Row]:
    """One row per model: mean and standard deviation of the test MSE."""
    groups = group_rows(read_rows(folder / "models.jsonl"), name_model)
    return [{"model": model} | _summarize(rows) for model, rows in groups.items()]


def _summarize(rows: list[Row]) -> Row:
    error, sd = mean_and_sd(row["metrics"]["mse"] for row in rows)
    made: Row = {"mse": error, "sd": sd, "replicates": len(rows)}
    widths = sorted({row["chosen"]["width"] for row in rows if row.get("chosen", {}).get("width")})
    if widths:
        made["widths"] = ", ".join(f"{width:g}" for width in widths)
    if "decoding" in rows[0]["seconds"]:
        made["ms"] = 1000 * mean(row["seconds"]["decoding"] for row in rows) / rows[0]["task"]["n_test"]
    return made


COLUMNS = {
    "model": "{model}",
    "test MSE": "{mse:.4f} ± {sd:.4f}",
    "chosen width": "{widths}",
    "decoding, ms per input": "{ms:.2f}",
    "replicates": "{replicates}",
}


def draw(folder: Path, image: Path) -> Path:
    """The test MSE of every model, beside the variance of the noise."""
    rows = tabulate(folder)[::-1]
    figure, axes = pyplot().subplots(figsize=(6, 2.4), layout="constrained")
    axes.barh([row["model"] for row in rows], [row["mse"] for row in rows], color="tab:blue")
    axes.axvline(read_rows(folder / "models.jsonl")[0]["task"]["noise"], color="grey", linestyle=":")
    axes.set(xscale="log", xlabel="test MSE (dotted: the noise alone)")
    return save_figure(figure, image)


STUDY = Study("vectors", {"full": (FULL,), "reduced": (REDUCED,), "quick": (QUICK,)}, run, tabulate, COLUMNS, draw)
