"""The models of the SMI2Mol study: the paper's and ours, how they are trained, decoded and measured."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.callbacks import Timer

from dsokr import sketches
from dsokr.decoders import Candidates, Decoder, GraphSearch
from dsokr.estimator import DSOKR
from dsokr.graphs import GraphBatch
from dsokr.kernels import NSPD, Core, Kernel, ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.regressors import Neural, Training
from dsokr.regressors.networks import CharTransformer
from dsokr.rules import RULES
from studies.data.smi2mol import SMI2Mol
from studies.results import Row
from studies.study import ADAMW

WL = WeisfeilerLehman(3).normalized()
WL_EDGES = WeisfeilerLehman(3, edge_labels=True).normalized()
WL_SHORT = WeisfeilerLehman(2, edge_labels=True).normalized()
PATHS, LENGTHS = ShortestPath().normalized(), ShortestPath(labels=False).normalized()

PAPERS_KERNELS = {"WL-VH": WL, "CORE-WL": Core(WeisfeilerLehman(3)).normalized(), "NSPD": NSPD(3, 4).normalized()}
KERNELS: dict[str, Kernel] = PAPERS_KERNELS | {
    "WL with edge labels": WL_EDGES,
    "shortest paths": PATHS,
    "WL + WL with edge labels": WL + WL_SHORT,
    "WL + WL with edge labels + paths": WL + WL_SHORT + PATHS,
    "WL + WL with edge labels + paths + 10 lengths": WL + WL_SHORT + PATHS + 10.0 * LENGTHS,
    "WL + WL with edge labels + 10 lengths": WL + WL_EDGES + 10.0 * LENGTHS,
}


def negative_edit_distance(predicted: GraphBatch, true: GraphBatch) -> float:
    """The monitor of early stopping; larger is better."""
    return -edit_distance(predicted, true).mean().item()


@dataclass(frozen=True)
class MoleculeModel:
    """A model to train, and the decoders to try on it. Of several decoders the best on validation is ``selected``."""

    name: str
    kernel: str
    sketch: sketches.SketchSpec
    dim: int | None
    training: Training
    decoders: dict[str, tuple[Decoder, ...]]
    network: CharTransformer
    n_train: int | None = None  # the first of the training molecules; None: all


TRAINING = replace(
    ADAMW, epochs=40, batch_size=512, warmup_steps=500, precision="bf16-mixed", compile="reduce-overhead"
)
LARGE = CharTransformer(layers=6, width=512, dropout=0.0, longest=64)
EVERY_RULE = tuple(Candidates(rule) for rule in RULES)
PAPERS = MoleculeModel(
    "paper's protocol",
    "WL-VH",
    sketches.SubSample(3200),
    None,
    replace(TRAINING, monitor=negative_edit_distance, check_every=2),
    {"paper's rule": (Candidates("kernel"),), "Candidates": EVERY_RULE},
    LARGE,
)
OURS = MoleculeModel(
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


def shrink(model: MoleculeModel, sketch: int, dim: int, network: CharTransformer, **training: Any) -> MoleculeModel:
    """A smaller version of a model, for the CPU."""
    return replace(
        model,
        sketch=sketches.SubSample(sketch),
        dim=None if model.dim is None else dim,
        network=network,
        training=replace(model.training, batch_size=64, precision="32-true", compile=False, **training),
    )


def fit_model(model: MoleculeModel, split: SMI2Mol, seed: int, device: torch.device) -> tuple[DSOKR, dict[str, float]]:
    """Fit a model, and return it with the seconds of its parts."""
    timer, start = Timer(), time.perf_counter()
    regressor = Neural(model.network, training=replace(model.training, trainer={"callbacks": [timer]}))
    options: Row = {"dim": model.dim, "random_state": seed, "device": str(device)}
    decoder = Candidates("kernel")  # for early stopping; the others are tried on the trained model
    estimator = DSOKR(KERNELS[model.kernel], model.sketch, regressor, decoder=decoder, **options)
    estimator.fit(*split.train, validation=split.val)
    trained = timer.time_elapsed("train")
    return estimator, {"basis": time.perf_counter() - start - trained, "training": trained}


def choose_decoder(model: DSOKR, decoders: tuple[Decoder, ...], split: SMI2Mol) -> tuple[Decoder, Row]:
    """The decoder with the smallest edit distances on validation, and its metrics there."""
    on_val = [measure_distances(decode(model, decoder, split.val.smiles), split.val.graphs) for decoder in decoders]
    best = min(range(len(decoders)), key=lambda i: on_val[i]["ged"] + on_val[i]["ged_edge_labels"])
    return decoders[best], {f"val_{name}": value for name, value in on_val[best].items()}


def decode(model: DSOKR, decoder: Decoder, smiles: list[str]) -> GraphBatch:
    return decoder.decode(model.basis_, model.coefficients(smiles), model.known_).outputs


def measure_distances(predicted: Any, true: GraphBatch) -> dict[str, float]:
    """The mean edit distances, and the share of molecules that are exactly right."""
    without, labelled = (edit_distance(predicted, true, edge_labels=labels) for labels in (False, True))
    return {
        "ged": without.mean().item(),
        "ged_edge_labels": labelled.mean().item(),
        "exact": (labelled == 0).double().mean().item(),
    }
