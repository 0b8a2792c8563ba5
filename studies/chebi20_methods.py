"""What the ChEBI-20 study compares: the task that all methods share, the methods, and how answers are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dsokr import sketches
from studies.baselines import CMAM, SISOKR, MoleculeMLP, Regression
from dsokr.basis import RULES, Rule, embedded_scores
from studies.data.chebi20 import ChEBI20, Described, Molecules
from studies.data.files import data_folder
from dsokr.decoders import Candidates
from dsokr.compute import seeded
from dsokr.estimator import DSOKR
from studies.results import Row
from dsokr.kernels import Cosine, Gaussian, Kernel, Tanimoto, View, WeisfeilerLehman
from dsokr.losses import Loss, Squared
from dsokr.metrics import ranks, retrieval_of
from dsokr.regressors.networks import TextEncoder, WordBag
from dsokr.outputs import ViewBatch
from dsokr.regressors.training import Training
from dsokr.files import drafted

WORDS = "bag of words"  # in place of an encoder: nothing is pretrained
AND_WORDS = f" + {WORDS}"  # after an encoder's name: both, added up
QUERIES = 512  # texts whose scores for all molecules are held at once
MOL2VEC, MORGAN, FLAT, GRAPH = range(4)  # the views of a molecule

COSINE, TANIMOTO = View(MOL2VEC, Cosine()), View(MORGAN, Tanimoto())
WL = WeisfeilerLehman(3, edge_labels=True)
PAPERS_KERNELS: dict[str, Kernel] = {
    "cosine": COSINE,
    **{f"gaussian {gamma:g}": View(MOL2VEC, Gaussian(gamma)) for gamma in (1e-9, 1e-6, 1e-3, 1.0)},
}
KERNELS: dict[str, Kernel] = {
    **PAPERS_KERNELS,
    "tanimoto": TANIMOTO,
    "cosine + tanimoto": COSINE + TANIMOTO,
    "tanimoto + tanimoto without chirality": TANIMOTO + View(FLAT, Tanimoto()),
    "WL on graphs": View(GRAPH, WL.normalized()),
    "tanimoto + WL on graphs": TANIMOTO + View(GRAPH, WL.normalized()),
}
PAPERS_SKETCHES: dict[str, Callable[[int], sketches.SketchSpec]] = {
    "SubSample": sketches.SubSample,
    "Gaussian": sketches.Gaussian,
    "Sparsified": sketches.Sparsified,
}


def views(molecules: Molecules) -> ViewBatch:
    """Molecules as Mol2vec vectors, as fingerprints, with and without chirality, and as graphs."""
    return ViewBatch(torch.from_numpy(molecules.mol2vec), molecules.morgan, molecules.morgan_flat, molecules.graphs)


@dataclass(frozen=True, eq=False)
class Task:
    """The data, the molecules as outputs, and the encoder that all methods share."""

    data: ChEBI20
    outputs: ViewBatch
    encoder: str  # its name
    path: str  # its folder, or its name on the hub
    device: torch.device

    @staticmethod
    def of(encoder: str, data: ChEBI20, folder: Path | None, device: torch.device) -> Task:
        name = encoder.removesuffix(AND_WORDS)
        here = data_folder(folder) / "encoders" / name
        path = str(here) if here.is_dir() else f"sentence-transformers/{name}"
        return Task(data, views(data.molecules), encoder, path, device)

    def network(self, rate: float) -> TextEncoder | WordBag:
        if self.encoder == WORDS:
            return WordBag(width=256, buckets=1 << 16, rate=rate)
        words = WordBag(width=256, buckets=1 << 16, rate=3.0) if self.encoder.endswith(AND_WORDS) else None
        return TextEncoder(self.path, rate=rate, words=words)

    def cut(self, share: float) -> Task:
        """With a random share of the training texts; the molecules to choose from stay."""
        texts, rows = self.data.train
        some = np.random.default_rng(0).permutation(len(texts))[: round(share * len(texts))]
        return replace(self, data=replace(self.data, train=Described([texts[i] for i in some], rows[some])))

    def pairs(self, part: Described) -> tuple[list[str], ViewBatch]:
        return part.texts, self.outputs[part.rows]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a trained model says: vectors of the texts to choose and to test on, of the molecules, and k(y, y)."""

    val: Tensor
    test: Tensor
    molecules: Tensor
    diag: Tensor
    best_epoch: int = 0

    def save(self, path: Path) -> None:
        tensors = {name: getattr(self, name).float().cpu() for name in ("val", "test", "molecules", "diag")}
        with drafted(path) as draft:
            save_file(tensors | {"best_epoch": torch.tensor(self.best_epoch)}, str(draft))

    @staticmethod
    def load(path: Path, device: torch.device) -> Answers:
        tensors = load_file(str(path))
        epoch = int(tensors.pop("best_epoch"))
        return Answers(**{name: tensor.to(device) for name, tensor in tensors.items()}, best_epoch=epoch)


Train = Callable[[Task, Training, float, int], Answers]  # (task, training, the encoder's rate, seed)


@dataclass(frozen=True)
class Method:
    """A method of the table: how it is trained, and what is told of it in its rows."""

    name: str
    train: Train
    told: Row = field(default_factory=dict, hash=False)


def dsokr(
    name: str,
    kernel: str,
    sketch: sketches.SketchSpec,
    loss: Loss = Squared(),  # noqa: B008 # frozen, so sharing it is harmless
    dim: int | None = None,
) -> Method:
    """An output kernel regressor with the given kernel, sketch and loss."""

    def train(task: Task, training: Training, rate: float, seed: int) -> Answers:
        model = DSOKR(
            KERNELS[kernel],
            sketch,
            task.network(rate),
            loss=loss,
            decoder=Candidates(outputs=task.outputs),
            training=replace(training, monitor="mrr"),
            dim=dim,
            random_state=seed,
            device=str(task.device),
        )
        model.fit(*task.pairs(task.data.train), validation=task.pairs(task.data.val))
        embedding, diag = model.known_.coordinates()
        return _answers(model.coefficients, task, embedding.float(), diag.float(), model.history_.best_epoch)

    told = {"kernel": kernel, "formula": str(KERNELS[kernel]), "sketch": str(sketch), "dim": dim, "loss": str(loss)}
    return Method(name, train, told)


def regression() -> Method:
    """The encoder learns the Mol2vec vectors themselves; molecules are found by distance or angle."""

    def train(task: Task, training: Training, rate: float, seed: int) -> Answers:
        data, vectors = task.data, torch.from_numpy(task.data.molecules.mol2vec).float().to(task.device)
        diag, truth = vectors.square().sum(dim=1), torch.from_numpy(data.val.rows)

        def mrr(predicted: np.ndarray, _: Any) -> float:
            z = torch.from_numpy(predicted).to(task.device)
            return max(
                places(partial(scored, z, vectors, diag, rule), truth).reciprocal().mean().item() for rule in RULES
            )

        model = Regression(
            task.network(rate), replace(training, monitor=mrr), random_state=seed, device=str(task.device)
        )
        train, val = ((part.texts, data.molecules.mol2vec[part.rows]) for part in (data.train, data.val))
        model.fit(*train, validation=val)
        return _answers(
            lambda texts: torch.from_numpy(model.predict(texts)).to(task.device),
            task,
            vectors,
            diag,
            model.history_.best_epoch,
        )

    return Method("regression", train, {"loss": str(Squared())})


def _answers(
    read: Callable[[list[str]], Tensor], task: Task, molecules: Tensor, diag: Tensor, best_epoch: int
) -> Answers:
    return Answers(read(task.data.val.texts), read(task.data.test.texts), molecules, diag, best_epoch)


def scored(z: Tensor, vectors: Tensor, diag: Tensor, rule: Rule, rows: Tensor) -> Tensor:
    """In double precision: similar molecules differ in late digits, and a GPU may round to 10 bits."""
    return embedded_scores(z[rows.to(z.device)].double(), vectors.double(), diag.double(), rule)


def cmam(name: str, tower: Any) -> Method:
    """Text2Mol's contrastive towers."""

    def train(task: Task, training: Training, rate: float, seed: int) -> Answers:
        data = task.data
        molecules: Any = data.molecules.mol2vec if isinstance(tower, MoleculeMLP) else data.molecules
        model = CMAM(task.network(rate), tower, training=training, random_state=seed, device=str(task.device))
        model.fit(data.train.texts, data.train.rows, molecules, validation=(data.val.texts, data.val.rows))
        vectors = model.molecules()
        diag = vectors.square().sum(dim=1)
        return _answers(model.coefficients, task, vectors, diag, model.history_.best_epoch)

    return Method(name, train, {"tower": str(tower)})


def sisokr(task: Task, input_size: int, seed: int) -> tuple[Answers, Row]:
    """Closed form on the encoder's own vectors of the texts, with the cosine kernel on both sides, as in the paper."""
    with seeded(seed):
        network = task.network(0.0)(1).to(task.device).eval()
    texts = {}
    for part in ("train", "val", "test"):
        tokens = network.prepare(getattr(task.data, part).texts).to(task.device)
        with torch.inference_mode():
            texts[part] = torch.cat([network.embed(block).double() for block in tokens.split(QUERIES)])
    truth, best = torch.from_numpy(task.data.val.rows), None
    for value in (1e-8, 1e-6, 1e-4):
        model = SISOKR(
            Cosine(),
            COSINE,
            sketches.SubSample(input_size),
            sketches.SubSample(100),
            regularization=value,
            decoder=Candidates("kernel", outputs=task.outputs),
            random_state=seed,
            device=str(task.device),
        )
        model.fit(texts["train"], task.outputs[task.data.train.rows])
        answers = Answers(
            model.coefficients(texts["val"]), model.coefficients(texts["test"]), *model.known_.coordinates()
        )
        mrr = max(_reciprocal(answers, answers.val, rule, truth) for rule in RULES)
        if best is None or mrr > best[0]:
            best = mrr, answers, {"regularization": value}
    assert best is not None
    return best[1], best[2]


def places(scores: Callable[[Tensor], Tensor], truth: Tensor, ties: Any = "expected") -> Tensor:  # (n,)
    """Ranks of the truth, a few texts at a time."""
    parts = torch.arange(len(truth)).split(QUERIES)
    return torch.cat([ranks(scores(rows), truth[rows], ties).cpu() for rows in parts])


def _reciprocal(answers: Answers, z: Tensor, rule: Rule, truth: Tensor) -> float:
    scores = partial(scored, z, answers.molecules, answers.diag, rule)
    return places(scores, truth).reciprocal().mean().item()


# A member of an ensemble: rows of the validation texts ("val") or the test texts -> scores of all molecules
Scorer = Callable[[str, Tensor], Tensor]


def settled(answers: Answers, task: Task) -> tuple[Rule, Scorer]:
    """The rule that does best on validation, and the scores by it."""
    truth = torch.from_numpy(task.data.val.rows)
    rule = max(RULES, key=lambda rule: _reciprocal(answers, answers.val, rule, truth))

    def scorer(part: str, rows: Tensor) -> Tensor:
        return scored(getattr(answers, part), answers.molecules, answers.diag, rule, rows)

    return rule, scorer


def measured(scorer: Scorer, task: Task) -> dict[str, float]:
    """Retrieval on the test texts, by every convention for ties, and on the validation texts."""
    truth = {part: torch.from_numpy(getattr(task.data, part).rows) for part in ("val", "test")}
    expected = places(partial(scorer, "test"), truth["test"])
    found = retrieval_of(expected) | {
        "median_rank": expected.median().item(),
        "share_of_worst_ten": (expected.topk(min(10, len(expected))).values.sum() / expected.sum()).item(),
    }
    for ties in ("optimistic", "pessimistic"):
        metrics = retrieval_of(places(partial(scorer, "test"), truth["test"], ties))
        found |= {f"{ties}_{name}": value for name, value in metrics.items()}
    on_val = retrieval_of(places(partial(scorer, "val"), truth["val"]))
    return found | {f"val_{name}": value for name, value in on_val.items()}
