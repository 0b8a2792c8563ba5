"""What the ChEBI-20 study compares: the task that all methods share, the methods, and how they are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from dsokr import sketches
from dsokr.basis import SketchedBasis, sketch_basis
from dsokr.compute import seeded
from dsokr.decoders import Candidates
from dsokr.estimator import DSOKR
from dsokr.files import replace_file
from dsokr.kernels import NSPD, Cosine, Gaussian, Kernel, Laplacian, Tanimoto, View, Views, WeisfeilerLehman
from dsokr.losses import Loss, Ranked, Squared
from dsokr.metrics import retrieval_of
from dsokr.metrics.scores import SHARES, count_ahead
from dsokr.outputs import Outputs, ViewBatch, take
from dsokr.regressors import KernelRidge, Neural, Regressor, Targets, Training
from dsokr.regressors.base import Score
from dsokr.regressors.networks import NetworkFactory, TextEncoder, WordBag
from dsokr.regressors.neural import FittedNetwork
from dsokr.rules import RULES, Rule, affine, score
from studies.backwards import Backwards
from studies.baselines.contrastive import CMAM, MoleculeGCN, MoleculeMLP
from studies.baselines.regression import fit_regression
from studies.copying import Copying
from studies.data.chebi20 import ChEBI20, Descriptions, Molecules
from studies.data.files import data_folder
from studies.data.mentions import Mentions
from studies.results import Row

WORDS = "bag of words"  # in place of an encoder: nothing is pretrained
PARTS = "bag of words and their parts"
BACKWARDS = "words from molecules"  # in place of an encoder: the other direction
AND_WORDS = f" + {WORDS}"  # after an encoder's name: the outputs of both are added up
QUERIES = 512  # texts whose scores for all molecules are held at once
TIES = {"middle": "", "optimistic": "optimistic_", "pessimistic": "pessimistic_"}  # prefixes of metrics
TEST_POOL = "test_pool_"
OPSIN, INFERRED = "OPSIN", "inferred"  # names that OPSIN reads, and also those that training texts explain
MOL2VEC, MORGAN, FLAT, GRAPH, COMPOSITION = range(5)  # the views of a molecule

SQUARED = Squared()
COSINE, TANIMOTO = View(MOL2VEC, Cosine()), View(MORGAN, Tanimoto())
WL = WeisfeilerLehman(3, edge_labels=True)
COUNTS = View(COMPOSITION, (1 / 14) * Views(*(Laplacian(0.5) for _ in range(14))))
DEEP_WL, PAIRS = WeisfeilerLehman(10, edge_labels=True), NSPD(1, 20)  # which see whole chains
PAPERS_KERNELS: dict[str, Kernel] = {
    "cosine": COSINE,
    **{f"gaussian {gamma:g}": View(MOL2VEC, Gaussian(gamma)) for gamma in (1e-9, 1e-6, 1e-3, 1.0)},
}
KERNELS: dict[str, Kernel] = {
    **PAPERS_KERNELS,
    "tanimoto": TANIMOTO,
    "cosine + tanimoto": COSINE + TANIMOTO,
    "tanimoto + tanimoto without chirality": TANIMOTO + View(FLAT, Tanimoto()),
    "tanimoto + tanimoto without chirality + counts": TANIMOTO + View(FLAT, Tanimoto()) + COUNTS,
    "WL on graphs": View(GRAPH, WL.normalized()),
    "tanimoto + WL on graphs": TANIMOTO + View(GRAPH, WL.normalized()),
    "tanimoto + WL on graphs + counts": TANIMOTO + View(GRAPH, WL.normalized()) + COUNTS,
    "two tanimotos + pairs + counts": TANIMOTO + View(FLAT, Tanimoto()) + View(GRAPH, PAIRS.normalized()) + COUNTS,
    "tanimoto + deep WL + counts": TANIMOTO + View(GRAPH, DEEP_WL.normalized()) + COUNTS,
}
PAPERS_SKETCHES = {kind.__name__: kind for kind in (sketches.SubSample, sketches.Gaussian, sketches.Sparsified)}


def make_views(molecules: Molecules) -> ViewBatch:
    """Molecules as Mol2vec vectors, as fingerprints with and without chirality, as graphs, and as counts."""
    vectors, counts = torch.from_numpy(molecules.mol2vec), torch.from_numpy(molecules.composition)
    return ViewBatch(vectors, molecules.morgan, molecules.morgan_flat, molecules.graphs, counts)


def find_encoder(name: str, folder: Path | None) -> str:
    """The folder of a pretrained encoder among the data, or its name on the hub."""
    local = data_folder(folder) / "encoders" / name
    return str(local) if local.is_dir() else f"sentence-transformers/{name}"


@dataclass(frozen=True, eq=False)
class TextTask:
    """The data, the molecules as outputs, and the encoder that all methods share."""

    data: ChEBI20
    outputs: ViewBatch
    encoder: str  # its name
    path: str  # its folder, or its name on the hub
    device: torch.device
    mentions: dict[str, Mentions] = field(default_factory=dict)  # by how texts are read, for methods that copy
    dropout: float = 0.1  # of the encoder

    @staticmethod
    def of(
        encoder: str,
        data: ChEBI20,
        folder: Path | None,
        device: torch.device,
        mentions: dict[str, Mentions],
        dropout: float = 0.1,
    ) -> TextTask:
        path = find_encoder(encoder.removesuffix(AND_WORDS), folder)
        return TextTask(data, make_views(data.molecules), encoder, path, device, mentions, dropout)

    def network(self, rate: float) -> TextEncoder | WordBag:
        """The encoder, which learns at ``rate`` times the learning rate."""
        words = WordBag(width=256, buckets=1 << 16, rate=rate, parts=None)
        if self.encoder == PARTS:
            return replace(words, parts=(3, 5))
        if self.encoder == WORDS:
            return words
        added = replace(words, rate=3.0) if self.encoder.endswith(AND_WORDS) else None
        return TextEncoder(self.path, dropout=self.dropout, rate=rate, words=added)

    def cut(self, share: float) -> TextTask:
        """The same with a random share of the training texts, and all candidates."""
        texts, rows = self.data.train
        some = np.random.default_rng(0).permutation(len(texts))[: round(share * len(texts))]
        return replace(self, data=replace(self.data, train=Descriptions([texts[i] for i in some], rows[some])))

    def pairs(self, part: Descriptions) -> tuple[list[str], ViewBatch]:
        return part.texts, self.outputs[part.rows]

    def estimator(self, kernel: Kernel, sketch: sketches.SketchSpec, regressor: Regressor, seed: int) -> DSOKR:
        """A model whose candidates are all molecules."""
        decoder = Candidates(outputs=self.outputs)
        return DSOKR(kernel, sketch, regressor, decoder=decoder, random_state=seed, device=str(self.device))

    def span(self, kernel: Kernel, sketch: sketches.SketchSpec, seed: int) -> SketchedBasis:
        """A basis of the training molecules' span."""
        train, generator = self.outputs[self.data.train.rows], Generator().manual_seed(seed)
        return sketch_basis(kernel, train, sketch, generator=generator, device=self.device)

    def truth(self, part: str) -> Tensor:
        """The rows of the true molecules, of "val" or "test"."""
        return torch.from_numpy(getattr(self.data, part).rows)


@dataclass(frozen=True, eq=False)
class ModelVectors:
    """A trained model by its vectors of the validation and test texts and of all molecules, and k(y, y)."""

    val: Tensor
    test: Tensor
    molecules: Tensor
    diag: Tensor
    best_epoch: int = 0
    chosen: Row = field(default_factory=dict)  # settings, beside the rule

    @staticmethod
    def of(
        embed: Callable[[list[str]], Tensor], task: TextTask, molecules: Tensor, diag: Tensor, best_epoch: int = 0
    ) -> ModelVectors:
        val, test = (embed(part.texts).to(task.device) for part in (task.data.val, task.data.test))
        return ModelVectors(val, test, molecules, diag, best_epoch)

    def save(self, path: Path) -> None:
        tensors = {name: getattr(self, name).float().cpu() for name in ("val", "test", "molecules", "diag")}
        with replace_file(path) as draft:
            save_file(tensors | {"best_epoch": torch.tensor(self.best_epoch)}, str(draft))

    @staticmethod
    def load(path: Path, device: torch.device) -> ModelVectors:
        tensors: dict[str, Any] = load_file(str(path))
        epoch = int(tensors.pop("best_epoch"))
        return ModelVectors(**{name: tensor.to(device) for name, tensor in tensors.items()}, best_epoch=epoch)

    def score(self, rule: Rule, part: str, rows: Tensor) -> Tensor:  # (rows, molecules)
        """In double precision: similar molecules differ in late digits, and a GPU may round to 10 bits."""
        z = getattr(self, part)
        return score(z[rows.to(z.device)].double(), self.molecules.double(), self.diag.double(), rule)


Scorer = Callable[[str, Tensor], Tensor]  # ("val" or "test", rows of its texts) -> scores of all molecules
Train = Callable[[TextTask, Training, float, int], ModelVectors]  # (task, training, the encoder's rate, seed)


@dataclass(frozen=True)
class TextMethod:
    """A method of the table: how it is trained, and the fields that identify it in rows."""

    name: str
    train: Train
    key: Row = field(default_factory=dict, hash=False)
    has_rate: bool = True  # whether the encoder is trained, at a rate to choose
    tuned_as: str | None = None  # the method whose rate it takes, not to choose one of its own
    reading: str = ""  # OPSIN or INFERRED: of the names that it copies


def dsokr(name: str, kernel: str, sketch: sketches.SketchSpec, loss: Loss = SQUARED) -> TextMethod:
    """An output kernel regressor with the given kernel, sketch and loss."""

    def train(task: TextTask, training: Training, rate: float, seed: int) -> ModelVectors:
        regressor = Neural(task.network(rate), loss, replace(training, monitor="mrr"))
        model = task.estimator(KERNELS[kernel], sketch, regressor, seed)
        model.fit(*task.pairs(task.data.train), validation=task.pairs(task.data.val))
        molecules, diag = model.known_.coordinates()
        return ModelVectors.of(model.coefficients, task, molecules.float(), diag.float(), model.history_.best_epoch)

    return TextMethod(name, train, describe_parts(kernel, sketch, loss))


def copying(name: str, kernel: str, sketch: sketches.SketchSpec, loss: Loss, reading: str = OPSIN) -> TextMethod:
    """The same with a network that copies the molecules that a text names, in the basis of the outputs."""

    def train(task: TextTask, training: Training, rate: float, seed: int) -> ModelVectors:
        basis = task.span(KERNELS[kernel], sketch, seed)
        molecules, diag = basis.embed(task.outputs).float(), basis.kernel.diag(task.outputs).to(task.device)
        score = partial(rate_best, molecules, diag, task)
        training, mentions = replace(training, monitor="mrr"), task.mentions[reading]
        named = make_views(mentions.molecules), mentions
        model = fit_copying(basis, task.outputs, *named, task, task.network(rate), loss, training, seed, score)
        return ModelVectors.of(model.predict, task, molecules, diag.float(), model.history.best_epoch)

    own = {} if reading == OPSIN else {"reading": reading}
    return TextMethod(name, train, describe_parts(kernel, sketch, loss) | own, reading=reading)


def fit_copying(
    basis: SketchedBasis,
    molecules: Outputs,
    named: Outputs,
    mentions: Mentions,
    task: TextTask,
    network: NetworkFactory,
    loss: Loss,
    training: Training,
    seed: int,
    score: Score = None,
) -> FittedNetwork:
    """Train a network that copies on the training texts; all molecules and the named ones are outputs of the basis."""
    pairs, held_out = (
        (part.texts, Targets(*basis.embed_with_residual(take(molecules, part.rows))))
        for part in (task.data.train, task.data.val)
    )
    mentioned = torch.cat([basis.embed(named).float(), basis.embed(molecules).float()])
    copying = Copying(network, mentions.by_text, mentioned, pairs[1].coordinates)
    regressor = Neural(copying, loss, replace(training, standardize=False))  # the network does it
    return regressor.fit(*pairs, held_out, seed=seed, device=task.device, score=score)


def predict_words(name: str, model: Backwards, times: int = 1) -> TextMethod:
    """The other direction: molecules predict the words of their texts, and are ranked by the likelihood of a text.

    Of several models with divisions and weights of their own, the likelihoods are multiplied.
    """

    def train(task: TextTask, training: Training, rate: float, seed: int) -> ModelVectors:
        training = replace(training, learning_rate=rate * training.learning_rate)
        seeds = (seed + model.folds * number for number in range(times))
        found = [model.fit(*task.data.train, task.data.molecules, training, own, task.device) for own in seeds]
        molecules = torch.cat([one.molecules for one in found], dim=1).to(task.device)
        diag = torch.stack([one.diag for one in found]).sum(dim=0).to(task.device)

        def embed(texts: list[str]) -> Tensor:
            return torch.cat([one.embed(texts) for one in found], dim=1)

        return ModelVectors.of(embed, task, molecules, diag, training.epochs)

    return TextMethod(name, train, {"model": str(model)} | ({} if times == 1 else {"times": times}))


def describe_parts(kernel: str, sketch: sketches.SketchSpec, loss: Loss) -> Row:
    """The parts of an output kernel regressor, as in rows."""
    formula = str(KERNELS[kernel])
    return {"kernel": kernel, "formula": formula, "sketch": str(sketch), "dim": None, "loss": describe(loss)}


def rate_best(molecules: Tensor, diag: Tensor, task: TextTask, z: Tensor) -> float:
    """The mean reciprocal rank of coordinates of the validation texts, by the best rule."""
    return max(rate_rules(ModelVectors(z, z, molecules, diag), task).values())


def rate_rules(vectors: ModelVectors, task: TextTask) -> dict[Rule, float]:
    """The mean reciprocal rank on validation by every rule; all rules share the inner products."""
    molecules, diag, truth = vectors.molecules.double(), vectors.diag.double(), task.truth("val")
    ways = {rule: affine(rule, diag, torch.linalg.vecdot(molecules, molecules)) for rule in RULES}
    found: dict[Rule, list[Tensor]] = {rule: [] for rule in RULES}
    for rows in torch.arange(len(truth)).split(QUERIES):
        products = vectors.val[rows.to(molecules.device)].double() @ molecules.T
        for rule, (factor, offset) in ways.items():  # what all scores of a row have in common changes no rank
            better, tied = count_ahead(products * factor + offset, truth[rows])
            found[rule].append((1 + better + SHARES["middle"] * tied).reciprocal())
    return {rule: torch.cat(parts).mean().item() for rule, parts in found.items()}


def describe(loss: Loss) -> str:
    """A loss as in rows: options that did not exist when the first rows were made are left out."""
    return str(loss).replace(", within=None", "")


def regression() -> TextMethod:
    """The encoder predicts the Mol2vec vectors themselves; molecules are ranked by distance or angle."""

    def train(task: TextTask, training: Training, rate: float, seed: int) -> ModelVectors:
        data, vectors = task.data, torch.from_numpy(task.data.molecules.mol2vec).float()
        molecules = vectors.to(task.device)
        diag = molecules.square().sum(dim=1)
        pairs, val = ((part.texts, vectors[part.rows]) for part in (data.train, data.val))
        score = partial(rate_best, molecules, diag, task)
        model = fit_regression(task.network(rate), training, pairs, val, seed=seed, device=task.device, score=score)
        return ModelVectors.of(model.predict, task, molecules, diag, model.history.best_epoch)

    return TextMethod("regression", train, {"loss": str(SQUARED)})


def cmam(name: str, tower: Any) -> TextMethod:
    """Text2Mol's contrastive towers."""

    def train(task: TextTask, training: Training, rate: float, seed: int) -> ModelVectors:
        data = task.data
        molecules: Any = data.molecules.mol2vec if isinstance(tower, MoleculeMLP) else data.molecules
        model = CMAM(task.network(rate), tower, training, seed=seed, device=task.device)
        model.fit(*data.train, molecules, validation=data.val)
        vectors = model.molecules()
        diag = vectors.square().sum(dim=1)
        return ModelVectors.of(model.coefficients, task, vectors, diag, model.fitted.history.best_epoch)

    return TextMethod(name, train, {"tower": str(tower)})


def sisokr(input_size: int) -> TextMethod:
    """Closed form on the encoder's own vectors of the texts, with the cosine kernel on both sides, as in the paper."""

    def train(task: TextTask, training: Training, rate: float, seed: int) -> ModelVectors:
        with seeded(seed):
            network = task.network(0.0)(1).to(task.device).eval()

        def embed(texts: list[str]) -> Tensor:
            tokens = network.prepare(texts).to(task.device)
            with torch.inference_mode():
                return torch.cat([network.embed(block).double() for block in tokens.split(QUERIES)])

        ridge = KernelRidge(Cosine(), sketches.SubSample(input_size), (1e-8, 1e-6, 1e-4), monitor="mrr")
        model = task.estimator(COSINE, sketches.SubSample(100), ridge, seed)
        train, val = ((embed(part.texts), task.outputs[part.rows]) for part in (task.data.train, task.data.val))
        model.fit(*train, validation=val)
        found = ModelVectors.of(lambda texts: model.coefficients(embed(texts)), task, *model.known_.coordinates())
        return replace(found, chosen={"regularization": model.regressor_.regularization})

    return TextMethod("SISOKR", train, {"kernel": "cosine"}, has_rate=False)


def count_rivals(
    scorer: Scorer, task: TextTask, part: str, pools: Sequence[Tensor | None] = (None,)
) -> list[Tensor]:  # each (2, n)
    """How many molecules score higher than the true ones and how many others the same: among all, or in some pools."""
    truth = task.truth(part)
    places = [truth if pool is None else torch.searchsorted(pool, truth) for pool in pools]
    found: list[list[Tensor]] = [[] for _ in pools]
    for rows in torch.arange(len(truth)).split(QUERIES):  # a few texts at a time
        scores = scorer(part, rows)
        for own, pool, place in zip(found, pools, places, strict=True):
            within = scores if pool is None else scores[:, pool.to(scores.device)]
            own.append(torch.stack(count_ahead(within, place[rows])).cpu())
    return [torch.cat(own, dim=1) for own in found]


def rank_truth(scorer: Scorer, task: TextTask, part: str) -> Tensor:  # (n,)
    """Ranks of the true molecules among all."""
    ((better, tied),) = count_rivals(scorer, task, part)
    return 1 + better + SHARES["middle"] * tied


def mean_reciprocal_rank(scorer: Scorer, task: TextTask) -> float:
    """On validation."""
    return rank_truth(scorer, task, "val").reciprocal().mean().item()


def choose_rule(vectors: ModelVectors, task: TextTask) -> tuple[Rule, Scorer]:
    """The rule with the best mean reciprocal rank on validation, and the scores by it."""
    found = rate_rules(vectors, task)
    rule = max(found, key=lambda rule: found[rule])
    return rule, partial(vectors.score, rule)


def measure_retrieval(scorer: Scorer, task: TextTask) -> dict[str, float]:
    """Retrieval on the test texts, by every convention for ties, and on the validation texts.

    Among all molecules, and among those of the test texts alone: that pool is that of the later literature.
    """
    pools = {"": None, TEST_POOL: task.truth("test").unique()}
    counts = dict(zip(pools, count_rivals(scorer, task, "test", [*pools.values()]), strict=True))
    metrics = dict[str, float]()
    for (pool, (better, tied)), (ties, name) in product(counts.items(), TIES.items()):
        own = retrieval_of(1 + better + SHARES[ties] * tied)
        metrics |= {f"{pool}{name}{metric}": value for metric, value in own.items()}
    better, tied = counts[""]
    found = 1 + better + SHARES["middle"] * tied
    metrics |= {
        "median_rank": found.median().item(),
        "share_of_worst_ten": (found.topk(min(10, len(found))).values.sum() / found.sum()).item(),
    }
    on_val = retrieval_of(rank_truth(scorer, task, "val"))
    return metrics | {f"val_{name}": value for name, value in on_val.items()}


RANKED = Ranked(SQUARED, weight=1.0, temperature=0.02)
CLOSED_FORM = (sisokr(input_size=4000),)
BASELINES = (regression(), cmam("CMAM, MLP", MoleculeMLP()), cmam("CMAM, GCN", MoleculeGCN()))
PAPERS = (
    dsokr("DSOKR, SubSample", "cosine", sketches.SubSample(100)),
    dsokr("DSOKR, Gaussian", "cosine", sketches.Gaussian(100)),
)
OURS = (
    dsokr("ours, cosine + tanimoto", "cosine + tanimoto", sketches.SubSample(2000), RANKED),
    dsokr("ours, two tanimotos", "tanimoto + tanimoto without chirality", sketches.SubSample(2000), RANKED),
    dsokr("ours, tanimoto + WL", "tanimoto + WL on graphs", sketches.SubSample(2000), RANKED),
)
WITH_COUNTS = "ours, two tanimotos + counts"  # of the reduced study
COPYING = tuple(
    copying(f"ours, {name}, names", kernel, sketches.SubSample(2000), RANKED)
    for name, kernel in (
        ("two tanimotos", "tanimoto + tanimoto without chirality"),
        ("two tanimotos + counts", "tanimoto + tanimoto without chirality + counts"),
        ("tanimoto + WL + counts", "tanimoto + WL on graphs + counts"),
    )
)
ANCHORS = sketches.SubSample(2000)
INFERRING = tuple(  # with kernels that distinguish isomers of long chains
    copying(f"ours, {kernel}, inferred names", kernel, ANCHORS, RANKED, INFERRED)
    for kernel in ("two tanimotos + pairs + counts", "tanimoto + deep WL + counts")
)
FURTHER = tuple(
    copying(
        method.name.replace("names", "inferred names"), method.key["kernel"], sketches.SubSample(2000), RANKED, INFERRED
    )
    for method in COPYING[1:]
)
BACKWARD = predict_words("ours, words from molecules", Backwards())
BACKWARD_OFTEN = predict_words("ours, words from molecules, three times", Backwards(), times=3)
CHOOSING = INFERRING[0]  # whose coordinates choose among what a text names or describes
OUR_ENSEMBLE, ALL_KERNELS = "ours, ensemble, two tanimotos", "ours, ensemble, all kernels"
ENSEMBLES = {
    "CMAM ensemble, MLP": ("CMAM, MLP",),
    "CMAM ensemble, GCN": ("CMAM, GCN",),
    "CMAM ensemble, MLP + GCN": ("CMAM, MLP", "CMAM, GCN"),
    "DSOKR ensemble, SubSample": ("DSOKR, SubSample",),
    "DSOKR ensemble, Gaussian": ("DSOKR, Gaussian",),
    "DSOKR ensemble, SubSample + Gaussian": ("DSOKR, SubSample", "DSOKR, Gaussian"),
    "ours, ensemble, cosine + tanimoto": ("ours, cosine + tanimoto",),
    OUR_ENSEMBLE: ("ours, two tanimotos",),
    "ours, ensemble, tanimoto + WL": ("ours, tanimoto + WL",),
    ALL_KERNELS: tuple(method.name for method in OURS),
}
NAMES, INFERRED_NAMES = "ours, ensemble, names", "ours, ensemble, inferred names"
MORE_INFERRED = f"{INFERRED_NAMES}, four kernels"
ALL_TOGETHER = f"{ALL_KERNELS}, both encoders"
ENSEMBLES_OF_NAMES = {
    name: tuple(method.name for method in methods)
    for name, methods in ((NAMES, COPYING), (INFERRED_NAMES, INFERRING), (MORE_INFERRED, INFERRING + FURTHER))
}
SMALL, LARGER = "all-MiniLM-L6-v2", "all-mpnet-base-v2"
JOINT_ENSEMBLES = {  # over encoders, too
    "ours, ensemble, both encoders": {SMALL: ENSEMBLES[OUR_ENSEMBLE], LARGER: ENSEMBLES[OUR_ENSEMBLE]},
    ALL_TOGETHER: {SMALL: ENSEMBLES[ALL_KERNELS], LARGER: ENSEMBLES[OUR_ENSEMBLE]},
}
NAMES_AND_WORDS = f"{NAMES}, encoder and words"
NAMED_ENSEMBLES = {NAMES_AND_WORDS: {WORDS: ENSEMBLES_OF_NAMES[INFERRED_NAMES], SMALL: ENSEMBLES_OF_NAMES[NAMES]}}
DIRECTIONS, CHECKED = "ours, ensemble, both directions", ", checked"
BOTH_DIRECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    DIRECTIONS: {PARTS: ENSEMBLES_OF_NAMES[MORE_INFERRED], BACKWARDS: (BACKWARD.name,)},
    f"{DIRECTIONS}, encoder and words": {
        PARTS: (CHOOSING.name,),
        SMALL: (CHOOSING.name,),
        BACKWARDS: (BACKWARD_OFTEN.name,),
    },
}


def select_ensembles(encoder: str, *names: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """Some ensembles, by default all without names, with the methods of one encoder."""
    return {name: {encoder: (ENSEMBLES | ENSEMBLES_OF_NAMES)[name]} for name in names or ENSEMBLES}
