"""From the image of a coloured map to the graph of its regions: which colour each has, and which touch.

    python -m studies coloring

The task Coloring of Any2Graph (Krzakala et al., 2024), drawn anew with its sizes: 100,000 maps of 5 to 10 regions, and
200,000 of 10 to 15. A convolutional network, one for each size, predicts coordinates, and `GraphSearch` goes over all
connected planar graphs in which neighbours differ. A turned or mirrored map has the same graph: the network is trained
on maps in random positions and averages over all eight. Two kernels are compared on the validation maps of small maps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, cpu_count, delayed
from numpy.typing import NDArray
from torch import Tensor, nn

from dsokr.basis import SketchedBasis
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, GraphSearch, LabelledGraphs
from dsokr.estimator import DSOKR
from dsokr.graphs import GraphBatch
from dsokr.kernels import NSPD, Kernel, ShortestPath, WeisfeilerLehman
from dsokr.metrics.edit_distance import edit_distance_bounds
from dsokr.regressors import Neural, Training
from dsokr.sketches import SubSample
from studies.data.coloring import COLORS, Maps, draw_maps
from studies.plots import draw_panels
from studies.results import TRAINING_FIELDS, Row, format_spread, group_rows, mean_and_sd, pick_fields, read_rows
from studies.study import ADAMW, Session, Stopwatch, Study, faster_training

WL, PATHS = WeisfeilerLehman(1).normalized(), ShortestPath().normalized()
KERNELS: dict[str, Kernel] = {"WL + paths": WL + PATHS, "WL + NSPD + paths": WL + NSPD(1, 1).normalized() + PATHS}
STARTS = 8  # candidates from which a search starts
PATIENCE = 2.0  # seconds for an edit distance; then its upper bound counts


@dataclass(frozen=True)
class MapNetwork:
    """Residual blocks of two convolutions, each followed by max-pooling, a hidden layer, and p outputs."""

    channels: tuple[int, ...] = (64, 128, 256)
    hidden: int = 2_048

    def __call__(self, p: int) -> nn.Module:
        layers: list[nn.Module] = [nn.BatchNorm2d(3)]
        for a, b in pairwise((3, *self.channels)):
            layers += [Residual(a, b), nn.MaxPool2d(2)]
        return Symmetric(nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(self.hidden), nn.ReLU(), nn.LazyLinear(p)))


@dataclass(frozen=True)
class CountingNetwork:
    """Residual blocks on a grid of 8 × 8 places, the mean of their features over the grid, a hidden layer, p outputs.

    Kernels on graphs count patterns; a mean over all places of a map counts, too, wherever a pattern is.
    """

    width: int = 128
    blocks: int = 3
    features: int = 1_024

    def __call__(self, p: int) -> nn.Module:
        half, sizes = self.width // 2, (self.width // 2, *[self.width] * self.blocks)
        layers: list[nn.Module] = [nn.BatchNorm2d(3), *convolve(3, half, 6, 2), nn.ReLU(), *convolve(half, half)]
        layers += [nn.ReLU(), nn.MaxPool2d(2), *(Residual(a, b) for a, b in pairwise(sizes))]
        layers += [nn.Conv2d(self.width, self.features, 1), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten()]
        layers += [nn.Linear(self.features, self.features), nn.ReLU(), nn.Linear(self.features, p)]
        return Symmetric(nn.Sequential(*layers))


def convolve(a: int, b: int, size: int = 3, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(a, b, size, stride, padding=(size - stride) // 2, bias=False), nn.BatchNorm2d(b)


class Residual(nn.Module):
    """Two convolutions, whose result is added to the input."""

    def __init__(self, a: int, b: int):
        super().__init__()
        self.layers = nn.Sequential(*convolve(a, b), nn.ReLU(), *convolve(b, b))
        self.skip = nn.Conv2d(a, b, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.skip(images) + self.layers(images))


class Symmetric(nn.Module):
    """A network on images in a random position of eight; when not in training, the mean over all of them."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)  # in which convolutions are faster
        if self.training:
            return self.network(turn(images, int(torch.randint(8, ()))))
        return torch.stack([self.network(turn(images, k)) for k in range(8)]).mean(dim=0)


def turn(images: Tensor, position: int) -> Tensor:
    return torch.rot90(images if position < 4 else images.flip(3), position % 4, (2, 3))


@dataclass(frozen=True)
class ColoringConfig:
    data: str
    regions: tuple[int, int]
    n_train: int
    training: Training
    network: MapNetwork | CountingNetwork = MapNetwork()
    n_val: int = 1_000
    n_test: int = 2_000
    size: int = 4_000  # of the sketch
    dims: tuple[int | None, ...] = (None, 2_048)  # by kernel
    beam: int = 32
    budget: int = 30_000
    seeds: tuple[int, ...] = (0, 1)
    kernels: tuple[str, ...] = tuple(KERNELS)

    def dim(self, kernel: str) -> int | None:
        return self.dims[list(KERNELS).index(kernel)]

    @property
    def search(self) -> GraphSearch:
        domain = LabelledGraphs(tuple(range(len(COLORS))), max_nodes=self.regions[1], planar=True, proper=True)
        return GraphSearch(domain, "projected", starts=STARTS, beam=self.beam, budget=self.budget)

    @property
    def decoders(self) -> dict[str, Decoder]:
        return {"Candidates": Candidates("projected"), "GraphSearch": self.search}


TRAINING = replace(ADAMW, epochs=60, batch_size=256, warmup_steps=500, precision="bf16-mixed", check_every=5)
FULL = ColoringConfig("small", (5, 10), 100_000, TRAINING)
MEDIUM = replace(
    FULL,
    data="medium",
    regions=(10, 15),
    n_train=200_000,
    training=replace(TRAINING, epochs=20, batch_size=512, optimizer="muon", learning_rate=0.01, warmup_steps=200),
    network=CountingNetwork(),
    dims=(None, 1_024),
    n_val=100,
    n_test=500,
    beam=64,
    budget=150_000,
    seeds=(0,),
    kernels=("WL + NSPD + paths",),  # the better one for small maps
)
REDUCED = replace(
    FULL,
    n_train=10_000,
    training=replace(TRAINING, epochs=15, batch_size=64, warmup_steps=100, precision="32-true"),
    network=MapNetwork((32, 64, 64), 512),
    n_test=500,
    size=1_500,
    dims=(None, 512),
    seeds=(0,),
)
QUICK = replace(
    REDUCED,
    regions=(2, 4),
    n_train=400,
    training=replace(REDUCED.training, epochs=6, batch_size=32, warmup_steps=10, check_every=1, progress=False),
    network=MapNetwork((16, 16), 128),
    n_val=50,
    n_test=50,
    size=100,
    dims=(None, None),
    budget=1_000,
)
QUICK_MEDIUM = replace(
    QUICK,
    data="medium",
    training=replace(QUICK.training, epochs=12, optimizer="muon", learning_rate=0.01),
    network=CountingNetwork(width=32, features=256),
    kernels=MEDIUM.kernels,
)


def run(config: ColoringConfig, session: Session) -> None:
    """Compute what is missing, for every seed and kernel."""
    for seed in config.seeds:
        for kernel in config.kernels:
            run_model(config, seed, kernel, session)


def run_model(config: ColoringConfig, seed: int, kernel: str, session: Session) -> None:
    key = {"experiment": "coloring", "data": config.data, "method": "dsokr", "kernel": kernel, "seed": seed}
    key |= {"sketch": str(SubSample(config.size)), "dim": config.dim(kernel), "network": str(config.network)}
    key |= pick_fields(config, "n_train", "n_test") | pick_fields(config.training, *TRAINING_FIELDS)
    if config.training.optimizer == "muon":
        key["optimizer"] = "muon"
    keys = [key | {"decoder": name} for name in config.decoders]
    session.results("models").record_all(keys, partial(measure_model, config, seed, kernel, session))


def draw_split(config: ColoringConfig, seed: int) -> tuple[Maps, Maps, Maps]:
    """Maps to train on, to validate and to test, all from seeds of their own."""
    counts = (config.n_train, config.n_val, config.n_test)
    return tuple(draw_maps(n, config.regions, 3 * seed + part) for part, n in enumerate(counts))  # type: ignore[return-value] # three


def measure_model(config: ColoringConfig, seed: int, kernel: str, session: Session) -> Iterator[Row]:
    clock = Stopwatch()
    with clock("drawing"):
        train, val, test = draw_split(config, seed)
    regressor = Neural(config.network, training=config.training)
    options: Row = {"dim": config.dim(kernel), "random_state": seed, "device": str(session.device)}
    model = DSOKR(KERNELS[kernel], SubSample(config.size), regressor, decoder=Candidates("projected"), **options)
    with clock("fitting"), faster_training(session.device):
        model.fit(*train, validation=val)
    for decoder in config.decoders.values():
        on_val = measure_distances(decode_all(model, decoder, val.images), val.graphs)
        with clock("decoding"):
            predicted = decode_all(model, decoder, test.images)
        metrics = measure_distances(predicted, test.graphs) | {f"val_{name}": v for name, v in on_val.items()}
        yield {"metrics": metrics, "seconds": dict(clock.seconds)}


def decode_all(model: DSOKR, decoder: Decoder, images: NDArray[np.uint8]) -> GraphBatch:
    """In processes, because much of a search is not compiled code; each has the candidates that searches start from."""
    known, basis, z = model.known_, model.basis_.to("cpu"), model.coefficients(images)
    tasks = []
    for rows in z.split(-(-len(z) // cpu_count())):
        near = known.select(known.top(rows, STARTS, "projected").indices.unique())
        psi, diag = (part.cpu() for part in near.coordinates())
        starts = EmbeddedOutputs(basis, near.outputs, True, (psi, diag), near.form)
        tasks.append(delayed(decode_some)(decoder, basis, rows.cpu(), starts))
    return GraphBatch.joined(Parallel(n_jobs=-1)(tasks))


def decode_some(decoder: Decoder, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> GraphBatch:
    torch.set_num_threads(1)
    return GraphBatch.of(decoder.decode(basis, z, known).outputs)


def measure_distances(predicted: Any, true: GraphBatch) -> dict[str, float]:
    """The mean edit distance, the shares of graphs exactly right and of the right size, and of unsettled distances."""
    lower, upper = edit_distance_bounds(predicted, true, timeout=PATIENCE)
    sizes = np.diff(GraphBatch.of(predicted).offsets) == np.diff(true.offsets)
    return {
        "ged": upper.mean().item(),
        "exact": (upper == 0).double().mean().item(),
        "right_size": float(sizes.mean()),
        "unsettled": (lower < upper).double().mean().item(),
    }


ANY2GRAPH = {"data": "small", "name": "Any2Graph (reported)", "ged": (0.20, 0.0), "exact": (0.85, 0.0), "splits": 1}


def tabulate(folder: Path) -> list[Row]:
    """What was reported, then ours: mean and standard deviation over the seeds."""
    table: list[Row] = [ANY2GRAPH]
    rows = read_rows(folder / "models.jsonl")
    for (data, kernel, decoder), own in group_rows(rows, lambda r: (r["data"], r["kernel"], r["decoder"])).items():
        metrics = ("ged", "exact", "right_size", "val_exact")
        spread = {name: mean_and_sd(row["metrics"][name] for row in own) for name in metrics}
        what = {"data": data, "name": f"{kernel}, {decoder}", "splits": len(own), "n_train": own[0]["n_train"]}
        table.append(what | spread)
    return table


COLUMNS = {
    "maps": "{data}",
    "model": "{name}",
    "training maps": "{n_train:,}",
    "seeds": "{splits}",
    "GED": format_spread("ged", ".3f"),
    "exact": format_spread("exact", ".1%"),
    "right number of regions": "{right_size[0]:.1%}",
    "exact on validation": "{val_exact[0]:.1%}",
}


def draw(folder: Path, image: Path) -> Path:
    """The share of graphs that are exactly right, by model."""
    panels = {
        data: [(row["name"], *row["exact"]) for row in rows]
        for data, rows in group_rows(tabulate(folder), lambda row: row["data"]).items()
    }
    return draw_panels(panels, "exactly right", image)


SIZES = {"full": (FULL, MEDIUM), "reduced": (REDUCED,), "quick": (QUICK, QUICK_MEDIUM)}
STUDY = Study("coloring", SIZES, run, tabulate, COLUMNS, draw)
