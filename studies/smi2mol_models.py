"""What the SMI2Mol study compares: the paper's model, ours, and the baselines of the paper's Table 1.

The baselines SISOKR, ILE-FGW and NNBary-FGW choose their settings on the validation molecules, by the edit distance
without edge labels, and are then tested once. Those with kernels on the inputs use 3-grams of SMILES, as in the paper.
FGW predicts no edge labels: its edges are all labelled 1, and the distance with edge labels counts them as such.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.callbacks import Timer
from sklearn.model_selection import ParameterGrid

from dsokr.decoders import Candidates, Decoder, GraphSearch
from dsokr.estimator import DSOKR
from dsokr.graphs import GraphBatch
from dsokr.kernels import NSPD, Core, Kernel, NGram, ShortestPath, WeisfeilerLehman
from dsokr.metrics import edit_distance
from dsokr.regressors import KernelRidge, Neural, Training
from dsokr.regressors.networks import CharTransformer
from dsokr.rules import RULES
from dsokr.sketches import SketchSpec, SubSample
from studies.baselines.fgw import ILEFGW, NNBaryFGW
from studies.data.smi2mol import MoleculePairs, SMI2Mol
from studies.results import Row
from studies.study import ADAMW, Stopwatch, decode

WL = WeisfeilerLehman(3).normalized()
WL_EDGES = WeisfeilerLehman(3, edge_labels=True).normalized()
WL_SHORT = WeisfeilerLehman(2, edge_labels=True).normalized()
THREE_GRAMS = NGram(3).normalized()
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
    sketch: SketchSpec
    dim: int | None
    training: Training
    decoders: dict[str, tuple[Decoder, ...]]
    network: CharTransformer
    n_train: int | None = None  # the first of the training molecules; None: all


TRAINING = replace(
    ADAMW, epochs=40, batch_size=512, warmup_steps=500, precision="bf16-mixed", compile="reduce-overhead"
)
LARGE = CharTransformer(layers=6, width=512, dropout=0.0, longest=64, hidden=0)
WIDE = "GraphSearch, beam of 32"  # the default; older rows have a beam of 8
EVERY_RULE = tuple(Candidates(rule) for rule in RULES)
PAPERS = MoleculeModel(
    "paper's protocol",
    "WL-VH",
    SubSample(3200),
    None,
    replace(TRAINING, monitor=negative_edit_distance, check_every=2),
    {"paper's rule": (Candidates("kernel"),), "Candidates": EVERY_RULE},
    LARGE,
)
OURS = MoleculeModel(
    "ours",
    "WL + WL with edge labels + paths + 10 lengths",
    SubSample(4000),
    2048,
    TRAINING,
    {"Candidates": EVERY_RULE, "GraphSearch": tuple(GraphSearch(rule=rule, beam=8, budget=4_000) for rule in RULES)},
    LARGE,
)
MUON = replace(  # a last hidden layer as wide as the basis, and Muon, which leaves no direction of weights behind
    OURS,
    name="ours, Muon",
    training=replace(TRAINING, optimizer="muon", learning_rate=2e-3),
    decoders=OURS.decoders | {WIDE: tuple(GraphSearch(rule=rule) for rule in RULES)},
    network=replace(LARGE, hidden=None),
)
FEW = replace(  # as many molecules as NNBary-FGW can afford
    OURS,
    name="ours, few molecules",
    sketch=SubSample(1500),
    dim=512,
    training=replace(
        TRAINING, epochs=100, batch_size=32, warmup_steps=200, precision="32-true", compile=False, learning_rate=5e-4
    ),
    network=CharTransformer(layers=2, width=128, heads=4, dropout=0.1, longest=64, hidden=0),
    n_train=1500,
)


def shrink(model: MoleculeModel, sketch: int, dim: int, network: CharTransformer, **training: Any) -> MoleculeModel:
    """A smaller version of a model, for the CPU."""
    return replace(
        model,
        sketch=SubSample(sketch),
        dim=None if model.dim is None else dim,
        network=network,
        training=replace(model.training, batch_size=64, precision="32-true", compile=False, **training),
    )


def fit_model(model: MoleculeModel, split: SMI2Mol, seed: int, device: torch.device) -> tuple[DSOKR, Stopwatch]:
    """Fit a model, and return it with the seconds of its parts."""
    timer, clock = Timer(), Stopwatch()
    regressor = Neural(model.network, training=replace(model.training, trainer={"callbacks": [timer]}))
    options: Row = {"dim": model.dim, "random_state": seed, "device": str(device)}
    decoder = Candidates("kernel")  # for early stopping; the others are tried on the trained model
    estimator = DSOKR(KERNELS[model.kernel], model.sketch, regressor, decoder=decoder, **options)
    with clock("basis"):
        estimator.fit(*split.train, validation=split.val)
    clock.seconds["training"] = timer.time_elapsed("train")
    clock.seconds["basis"] -= clock.seconds["training"]
    return estimator, clock


def choose_decoder(model: DSOKR, decoders: tuple[Decoder, ...], split: SMI2Mol) -> tuple[Decoder, Row]:
    """The decoder with the smallest edit distances on validation, and its metrics there."""
    on_val = [measure_distances(decode(model, decoder, split.val.smiles), split.val.graphs) for decoder in decoders]
    best = min(range(len(decoders)), key=lambda i: on_val[i]["ged"] + on_val[i]["ged_edge_labels"])
    return decoders[best], {f"val_{name}": value for name, value in on_val[best].items()}


def measure_distances(predicted: Any, true: GraphBatch) -> dict[str, float]:
    """The mean edit distances, and the share of molecules that are exactly right."""
    without, labelled = (edit_distance(predicted, true, edge_labels=labels) for labels in (False, True))
    return {
        "ged": without.mean().item(),
        "ged_edge_labels": labelled.mean().item(),
        "exact": (labelled == 0).double().mean().item(),
    }


def explain_misses(model: DSOKR, decoder: Decoder, pairs: MoleculePairs, predicted: Any) -> dict[str, float]:
    """Why answers are wrong, as shares of all molecules.

    The search misses if the truth scores higher than the answer; the kernel (with its basis and rule) if the answer is
    wrong from the true coordinates, too; else it is the network.
    """
    wrong = (edit_distance(predicted, pairs.graphs) > 0).nonzero()[:, 0].numpy()
    shares = dict.fromkeys(("missed_by_search", "missed_by_kernel", "missed_by_network"), 0.0)
    if not len(wrong):
        return shares
    basis, rule, truth = model.basis_, decoder.scoring_rule(), pairs.graphs[wrong]
    z = model.coefficients([pairs.smiles[i] for i in wrong])
    answers = GraphBatch.of([predicted[int(i)] for i in wrong])
    true, own = (basis.score(z, graphs, rule).diagonal() for graphs in (truth, answers))
    perfect = decoder.decode(basis, basis.embed(truth), model.known_).outputs
    by_search = true > own + 1e-9
    by_kernel = ~by_search & (edit_distance(perfect, truth) > 0).to(true.device)
    causes = (by_search, by_kernel, ~by_search & ~by_kernel)
    return {name: part.sum().item() / len(pairs.smiles) for name, part in zip(shares, causes, strict=True)}


ENCODER = CharTransformer(layers=2, width=128, heads=4, dropout=0.1)

KERNEL_GRID = {"regularization": (1e-2, 1e-1, 1.0), "neighbors": (5, 10, 15), "trade_off": (0.8, 0.95)}

Grid = Mapping[str, Sequence[Any]]  # settings to choose from: every combination is tried


def mark_ends(smiles: Sequence[str]) -> list[str]:
    """Mark both ends of strings, so that 3-grams know where a string starts and stops, and "CC" has some."""
    return [f"^^{text}$$" for text in smiles]


def mean_ged(predicted: Any, true: Any) -> float:
    """The mean edit distance without edge labels."""
    return edit_distance(predicted, true, edge_labels=False).mean().item()


class Chosen(NamedTuple):
    """The function from SMILES to graphs that does best on validation, its settings and its edit distance there."""

    predict: Callable[[list[str]], Any]
    settings: Row
    val_ged: float


@dataclass(frozen=True)
class Baseline(ABC):
    """A method of the table. Limits on the number of molecules are for slow ones; None is all."""

    grid: Grid = field(default_factory=dict, hash=False)
    n_train: int | None = None
    n_choose: int | None = None
    n_test: int | None = None

    @abstractmethod
    def describe(self) -> Row:
        """The fields that identify its rows."""

    @abstractmethod
    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> Any:
        """Fit one model, or one for every combination of the grid."""

    @abstractmethod
    def choose(self, fitted: Any, val: MoleculePairs) -> Chosen:
        """Choose settings on the validation molecules."""

    def key(self, split: SMI2Mol, seed: int) -> Row:
        train, test = draw_some(split.train, self.n_train, seed), draw_some(split.test, self.n_test, seed)
        return self.describe() | {"seed": seed, "n_train": len(train.smiles), "n_test": len(test.smiles)}

    def measure(self, split: SMI2Mol, seed: int) -> tuple[Row, Any]:
        """Fit, choose and test; return what was measured, and the graphs predicted for the test molecules."""
        clock = Stopwatch()
        parts = ((split.train, self.n_train), (split.val, self.n_choose), (split.test, self.n_test))
        train, val, test = (draw_some(part, n, seed) for part, n in parts)
        with clock("fit"):
            fitted = self.fit(train, val, seed)
        with clock("choose"):
            predict, settings, val_ged = self.choose(fitted, val)
        with clock("predict"):
            predicted = predict(test.smiles)
        labelled = edit_distance(predicted, test.graphs, edge_labels=True).mean().item()
        metrics = {"ged": mean_ged(predicted, test.graphs), "ged_edge_labels": labelled, "val_ged": val_ged}
        return {"chosen": settings, "metrics": metrics, "seconds": clock.seconds}, predicted


def draw_some(pairs: MoleculePairs, n: int | None, seed: int) -> MoleculePairs:
    """Draw n pairs without replacement, or return all if there are no more."""
    if n is None or n >= len(pairs.smiles):
        return pairs
    return pairs.rows(np.sort(np.random.default_rng(seed).choice(len(pairs.smiles), n, replace=False)))


@dataclass(frozen=True)
class SketchedRidgeBaseline(Baseline):
    """SISOKR over all training molecules as candidates; λ and the decoding rule are chosen."""

    input_size: int = 3_200
    size: int = 3_200
    regularizations: tuple[float, ...] = (1e-6, 1e-5, 1e-4)

    def describe(self) -> Row:
        kernels = {"kernel": str(WL), "input_kernel": str(THREE_GRAMS)}
        return {"method": "sisokr", "sketch": "SubSample", "m": self.size, "input_m": self.input_size} | kernels

    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> DSOKR:
        inputs, monitor = SubSample(self.input_size), lambda predicted, true: -mean_ged(predicted, true)
        ridge = KernelRidge(THREE_GRAMS, inputs, self.regularizations, monitor=monitor)
        model = DSOKR(WL, SubSample(self.size), ridge, random_state=seed)
        held_out = mark_ends(val.smiles), val.graphs
        return model.fit(mark_ends(train.smiles), train.graphs, validation=held_out)

    def choose(self, fitted: DSOKR, val: MoleculePairs) -> Chosen:
        settings = {"regularization": fitted.regressor_.regularization, "rule": fitted.decoder_.scoring_rule()}
        return Chosen(lambda smiles: fitted.predict(mark_ends(smiles)), settings, -max(fitted.history_["val_score"]))


@dataclass(frozen=True)
class KernelBarycenterBaseline(Baseline):
    """Sketched ILE-FGW with weights over all training molecules. A prediction takes some 50 ms on one core."""

    grid: Grid = field(default_factory=lambda: dict(KERNEL_GRID), hash=False)
    n_choose: int | None = 200
    input_size: int = 3_200

    def describe(self) -> Row:
        inputs = {"input_kernel": str(THREE_GRAMS), "sketch": "SubSample", "input_m": self.input_size}
        return {"method": "ile_fgw"} | inputs

    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> ILEFGW:
        return ILEFGW(THREE_GRAMS, SubSample(self.input_size), seed=seed).fit(mark_ends(train.smiles), train.graphs)

    def choose(self, fitted: ILEFGW, val: MoleculePairs) -> Chosen:
        def predict(settings: Row, smiles: list[str]) -> list[Any]:
            vars(fitted).update(settings)  # all of them are used by predict alone
            return fitted.predict(mark_ends(smiles))

        grid = ParameterGrid(self.grid)
        choices = [Chosen(partial(predict, s), s, mean_ged(predict(s, val.smiles), val.graphs)) for s in grid]
        return min(choices, key=lambda choice: choice.val_ged)


@dataclass(frozen=True)
class NetworkBarycenterBaseline(Baseline):
    """NNBary-FGW, trained on molecules drawn from the training set: transport plans are slow.

    Training takes some 15 ms per molecule and epoch on one core with ten templates, a prediction as long.
    """

    grid: Grid = field(default_factory=lambda: {"trade_off": (0.5, 0.8)}, hash=False)
    n_train: int | None = 1_500
    n_choose: int | None = 200
    epochs: int = 6
    network: CharTransformer = ENCODER

    def fixed(self) -> Row:
        options = {"templates": 10, "iterations": 2, "batch_size": 16, "epochs": self.epochs}
        return {name: value for name, value in options.items() if name not in self.grid}

    def describe(self) -> Row:
        return {"method": "nnbary_fgw", "encoder": str(self.network)} | self.fixed()

    def fit(self, train: MoleculePairs, val: MoleculePairs, seed: int) -> list[tuple[NNBaryFGW, Row]]:
        model = NNBaryFGW(self.network, seed=seed, **self.fixed())
        return [(replace(model, **settings).fit(*train), settings) for settings in ParameterGrid(self.grid)]

    def choose(self, fitted: list[tuple[NNBaryFGW, Row]], val: MoleculePairs) -> Chosen:
        choices = [Chosen(model.predict, s, mean_ged(model.predict(val.smiles), val.graphs)) for model, s in fitted]
        return min(choices, key=lambda choice: choice.val_ged)


@dataclass(frozen=True)
class Smi2MolConfig:
    models: tuple[MoleculeModel, ...] = (PAPERS, OURS, MUON, FEW)
    splits: tuple[int, ...] = (0, 1, 2, 3, 4)
    sizes: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400)
    kernel_size: int = 3200  # of the sketch with which kernels are compared
    baselines: tuple[Baseline, ...] = (SketchedRidgeBaseline(), KernelBarycenterBaseline(), NetworkBarycenterBaseline())
    n_train: int | None = None  # None: all
    nearest: int = 200  # training molecules among which the best one is looked for
    drawn: int = 12  # test molecules of the last split, spread over all sizes, whose predictions are kept


FULL = Smi2MolConfig()
SMALL, TINY = (replace(LARGE, layers=layers, width=width) for layers, width in ((3, 128), (2, 64)))
REDUCED = Smi2MolConfig(  # an hour or two on two cores
    models=tuple(shrink(model, 1500, 512, SMALL, epochs=30) for model in (PAPERS, OURS)),
    splits=(0,),
    sizes=(100, 400, 1600),
    kernel_size=1600,
    n_train=20_000,
)
QUICK = Smi2MolConfig(
    models=tuple(shrink(model, 100, 60, TINY, epochs=2, warmup_steps=4) for model in (PAPERS, OURS)),
    baselines=(
        SketchedRidgeBaseline(input_size=100, size=100),
        KernelBarycenterBaseline(input_size=100, grid={"neighbors": (5,)}, n_choose=20, n_test=20),
        NetworkBarycenterBaseline(n_train=20, epochs=1, n_choose=20, n_test=20, grid={"trade_off": (0.5,)}),
    ),
    splits=(0,),
    sizes=(50, 100),
    kernel_size=100,
    n_train=1000,
    nearest=5,
)
