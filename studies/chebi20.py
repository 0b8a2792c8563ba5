"""Tables 2 and 3 and Figures 3 and 5 of the paper: from a description to its molecule, among 33,010 of them.

    dsokr reproduce chebi20 --data-dir FOLDER

Every method reads the same texts with the same pretrained encoder, is tuned on validation with as many trials, is
trained for as many epochs with three seeds, and keeps the epoch with the best mean reciprocal rank on validation. Ties
count as half; values under the two other conventions stand beside. The pretrained encoder is looked for under
``encoders`` in the data folder, or by its name on the hub.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dsokr import sketches
from studies.baselines import MoleculeGCN, MoleculeMLP
from dsokr.basis import RULES, sketch_span
from studies.data.chebi20 import Described, chebi20
from studies.data.descriptions import described_molecules
from dsokr.ensemble import COMBINATIONS, combined
from studies.chebi20_methods import (
    AND_WORDS,
    FLAT,
    KERNELS,
    MOL2VEC,
    MORGAN,
    PAPERS_KERNELS,
    PAPERS_SKETCHES,
    WL,
    WORDS,
    Answers,
    Method,
    Task,
    cmam,
    dsokr,
    measured,
    places,
    regression,
    scored,
    settled,
    sisokr,
)
from studies.results import Results, Row
from dsokr.losses import Ranked, Squared
from dsokr.metrics import retrieval_of
from dsokr.outputs import keys
from dsokr.regressors.training import Training

Say = Callable[[str], None]

RANKED = Ranked(Squared(), weight=1.0, temperature=0.02)
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
SMALL, LARGER = "all-MiniLM-L6-v2", "all-mpnet-base-v2"
JOINT_ENSEMBLES = {  # over encoders, too: the methods of each
    "ours, ensemble, both encoders": {SMALL: ENSEMBLES[OUR_ENSEMBLE], LARGER: ENSEMBLES[OUR_ENSEMBLE]},
    "ours, ensemble, all kernels, both encoders": {SMALL: ENSEMBLES[ALL_KERNELS], LARGER: ENSEMBLES[OUR_ENSEMBLE]},
}


TRAINING = Training(
    epochs=16,
    batch_size=256,
    learning_rate=1e-3,
    optimizer="adamw",
    weight_decay=0.01,
    schedule="linear",
    warmup_steps=200,
    gradient_clip=1.0,
    precision="bf16-mixed",
    patience=None,
    check_every=2,
)


@dataclass(frozen=True)
class Study:
    """What is run."""

    encoder: str = SMALL
    methods: tuple[Method, ...] = BASELINES + PAPERS + OURS
    ensembles: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(ENSEMBLES), hash=False)
    joint: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict, hash=False)  # ensembles over encoders
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[float, ...] = (0.3, 0.6)  # of the encoder, beside 1 for new layers: chosen on validation
    trial_epochs: int = 6
    training: Training = TRAINING
    sizes: tuple[int, ...] = (10, 25, 50, 100, 200, 400, 800)
    input_size: int = 4000  # of the sketch of the inputs that SISOKR takes
    rich_sizes: tuple[int, ...] = (100, 250, 500, 1000, 2000)  # of sketches under the kernels that are ours
    shares: tuple[float, ...] = (1 / 8, 1 / 4, 1 / 2)  # of the training texts, for the learning curve
    learner: str = "ours, two tanimotos"  # the method whose learning curve it is
    patient: tuple[str, ...] = ("CMAM, MLP", "DSOKR, SubSample", "ours, two tanimotos")  # also trained for longer, once
    long_epochs: int | None = 50  # as many as in the paper
    closed_form: bool = True  # SISOKR on the vectors of the frozen encoder, too
    n_train: int | None = None  # None: all
    generated: bool = False  # descriptions and molecules that the project makes itself, not ChEBI-20
    then: Study | None = None  # another one, into the same files


WORDED = Study(  # which is behind the encoder alone
    encoder=LARGER + AND_WORDS,
    methods=(OURS[1],),
    ensembles={OUR_ENSEMBLE: ENSEMBLES[OUR_ENSEMBLE]},
    rates=(0.2,),
    shares=(),
    long_epochs=None,
    closed_form=False,
)
LARGE = Study(
    encoder=LARGER,
    methods=(BASELINES[1], PAPERS[0], OURS[1]),
    ensembles={name: ENSEMBLES[name] for name in ("CMAM ensemble, MLP", "DSOKR ensemble, SubSample", OUR_ENSEMBLE)},
    joint=JOINT_ENSEMBLES,
    rates=(0.2, 0.4),
    shares=(),
    patient=("ours, two tanimotos",),
    then=WORDED,
)
SMALL_WORDED = replace(WORDED, encoder=SMALL + AND_WORDS, rates=(0.6,), seeds=(0,), ensembles={}, then=LARGE)
FULL = Study(joint=JOINT_ENSEMBLES, then=SMALL_WORDED)
REDUCED = Study(  # for two cores, without an encoder
    encoder=WORDS,
    methods=(
        regression(),
        cmam("CMAM, MLP", MoleculeMLP()),
        PAPERS[0],
        dsokr("ours, two tanimotos", "tanimoto + tanimoto without chirality", sketches.SubSample(500), RANKED),
        dsokr("ours, tanimoto + WL", "tanimoto + WL on graphs", sketches.SubSample(500), RANKED),
    ),
    ensembles={ALL_KERNELS: ("ours, two tanimotos", "ours, tanimoto + WL")},
    seeds=(0,),
    rates=(3.0, 10.0),
    long_epochs=None,
    closed_form=False,  # nothing is pretrained
    trial_epochs=2,
    training=replace(TRAINING, epochs=10, precision="32-true"),
    sizes=(10, 100),
    rich_sizes=(100, 500),
)
QUICK = Study(
    methods=(
        regression(),
        cmam("CMAM, MLP", MoleculeMLP(hidden=32)),
        dsokr("DSOKR, SubSample", "cosine", sketches.SubSample(20)),
        dsokr("ours, cosine + tanimoto", "cosine + tanimoto", sketches.SubSample(40), RANKED),
    ),
    ensembles={"CMAM ensemble, MLP": ("CMAM, MLP",), "ours, ensemble, cosine + tanimoto": ("ours, cosine + tanimoto",)},
    seeds=(0, 1),
    rates=(0.1, 0.3),
    trial_epochs=1,
    training=replace(FULL.training, epochs=1, batch_size=32, precision="32-true", warmup_steps=2),
    sizes=(5, 10),
    rich_sizes=(10, 20),
    input_size=100,
    n_train=300,
    shares=(1 / 2,),
    learner="ours, cosine + tanimoto",
    long_epochs=2,
    generated=True,
    encoder=WORDS,
)


def run(study: Study, folder: Path, data: Path | None, device: torch.device, say: Say = print) -> None:
    """Compute what ``folder`` does not hold yet."""
    task = prepared_task(study, data, device)
    describe(task, folder, say)
    compare_sizes(study, task, folder, say)
    for method in study.methods:
        rate = tune(study, method, task, folder, say)
        for seed in study.seeds:
            train_and_test(study, method, task, rate, seed, folder, say)
        alone = replace(study, ensembles={}, joint={})
        if method.name == study.learner:
            for share in study.shares:
                train_and_test(alone, method, task.cut(share), rate, study.seeds[0], folder, say)
        if method.name in study.patient and study.long_epochs is not None:
            longer = replace(alone, training=replace(study.training, epochs=study.long_epochs))
            train_and_test(longer, method, task, rate, study.seeds[0], folder, say)
    for seed in study.seeds if study.closed_form else ():
        measure_sisokr(study, task, seed, folder, say)
    for ensemble in ensembles(study):
        if study.encoder == [*ensemble.members][-1]:  # else the other encoders are still to come
            measure_ensemble(study, ensemble, task, folder, say)
    if study.then is not None:
        run(study.then, folder, data, device, say)


def prepared_task(study: Study, data: Path | None, device: torch.device) -> Task:
    """The data of the study, cut to size."""
    whole = described_molecules(study.n_train or 1000, 50, 50) if study.generated else chebi20(data)
    texts, rows = whole.train
    return Task.of(
        study.encoder, replace(whole, train=Described(texts[: study.n_train], rows[: study.n_train])), data, device
    )


def _asked(task: Task) -> Row:
    return {
        "experiment": "chebi20",
        "encoder": task.encoder,
        "training_texts": task.data.training_texts,
        "n_train": len(task.data.train.texts),
    }


def describe(task: Task, folder: Path, say: Say) -> None:
    """How many candidates share a representation, and the best Hits@1 that anyone could have with it."""
    results = Results(folder / "ceilings.jsonl")
    *vectors, graphs = task.outputs.views
    representations: dict[str, Callable[[], Iterator[Any]]] = {
        "Mol2vec": partial(keys, vectors[MOL2VEC]),
        "Morgan with chirality": partial(keys, vectors[MORGAN]),
        "Morgan without chirality": partial(keys, vectors[FLAT]),
        "WL features of graphs with chirality": lambda: WL.features(graphs).rows(),
    }
    for name, distinguished in representations.items():
        row = {"experiment": "chebi20", "representation": name, "candidates": len(task.outputs)}
        found = results.record(row, partial(_ceiling, distinguished, task.data.test.rows))["metrics"]
        say(f"{name}: {found['shared']} candidates share theirs, Hits@1 at most {found['hits@1']:.1%}")


def _ceiling(distinguished: Callable[[], Iterator[Any]], rows: np.ndarray) -> Row:
    _, group, sizes = np.unique([hash(key) for key in distinguished()], return_inverse=True, return_counts=True)
    own = sizes[group]
    return {
        "metrics": {
            "shared": int((own > 1).sum()),
            "hits@1": float((1 / own[rows]).mean()),  # one of the equal ones is named
            "untied_hits@1": float((own[rows] == 1).mean()),  # a tie is no hit
        }
    }


def compare_sizes(study: Study, task: Task, folder: Path, say: Say) -> None:
    """Figures 3 and 5: Perfect h against the sketch size, for kernels and sketches."""
    results = Results(folder / "perfect_h.jsonl")
    for (name, kernel), (drawn, sketch) in product(KERNELS.items(), PAPERS_SKETCHES.items()):
        ours = name not in PAPERS_KERNELS
        if ours and drawn != "SubSample":
            continue
        sizes = study.rich_sizes if ours else study.sizes
        asked = {key: value for key, value in _asked(task).items() if key not in ("encoder", "training_texts")}
        rows = [
            asked | {"method": "perfect_h", "kernel": name, "sketch": drawn, "m": m, "rule": rule, "seed": 0}
            for m, rule in product(sizes, RULES)
        ]
        if all(results.find(row) for row in rows):
            continue
        spec, train = sketch(max(sizes)), task.outputs[task.data.train.rows]
        span = sketch_span(kernel, train, spec, generator=Generator().manual_seed(0), device=task.device)
        values, diag = span.evaluate(task.outputs), kernel.diag(task.outputs).to(task.device)
        truth = torch.from_numpy(task.data.val.rows)
        for m in sizes:
            basis = span.basis(m)
            embedding = values[:, :m] @ basis.projection.T
            z = embedding[truth.to(task.device)]
            for row in (row for row in rows if row["m"] == m):
                found = retrieval_of(places(partial(scored, z, embedding, diag, row["rule"]), truth))
                results.add(row, {"metrics": found})
            say(f"Perfect h, {name}, {drawn}, m = {m}: MRR {_best_mrr(results, rows, m):.3f}")


def _best_mrr(results: Results, rows: Sequence[Row], m: int) -> float:
    found = (results.find(row) for row in rows if row["m"] == m)
    return max(row["metrics"]["mrr"] for row in found if row is not None)


def tune(study: Study, method: Method, task: Task, folder: Path, say: Say) -> float:
    """The encoder's rate that does best on validation after a short training; if there is one only, that."""
    if len(study.rates) == 1:
        return study.rates[0]
    results = Results(folder / "validation.jsonl")
    found = {}
    for rate in study.rates:
        row = (
            _asked(task)
            | {"method": method.name}
            | method.told
            | {"rate": rate, "epochs": study.trial_epochs, "seed": 0}
        )

        def measure(rate: float = rate) -> Row:
            answers = method.train(task, replace(study.training, epochs=study.trial_epochs), rate, 0)
            _, scorer = settled(answers, task)
            truth = torch.from_numpy(task.data.val.rows)
            return {"metrics": {"val_mrr": places(partial(scorer, "val"), truth).reciprocal().mean().item()}}

        found[rate] = results.record(row, measure)["metrics"]["val_mrr"]
        say(f"{method.name}, rate {rate:g}: validation MRR {found[rate]:.3f} after {study.trial_epochs} epochs")
    return max(found, key=lambda rate: found[rate])


@dataclass(frozen=True)
class Together:
    """An ensemble: the methods of every encoder, each with all seeds."""

    name: str
    members: dict[str, tuple[str, ...]]  # by encoder

    def asked(self, study: Study, task: Task) -> Row:
        several = len(self.members) > 1
        members = [f"{of}: {method}" if several else method for of, own in self.members.items() for method in own]
        told = {"method": self.name, "members": members, "seeds": list(study.seeds), "epochs": study.training.epochs}
        return _asked(task) | {"encoder": " & ".join(self.members)} | told


def ensembles(study: Study) -> list[Together]:
    """Those of the study's encoder, and those over several encoders that it is one of."""
    own = [Together(name, {study.encoder: methods}) for name, methods in study.ensembles.items()]
    return own + [Together(name, members) for name, members in study.joint.items()]


def kept(folder: Path, study: Study, task: Task, method: str, seed: int, encoder: str | None = None) -> Path:
    """Where the answers of a model are kept for ensembles; not part of the results."""
    trained = f"{len(task.data.train.texts)} texts, {study.training.epochs} epochs"
    file = f"{encoder or task.encoder}, {trained}, {method}-{seed}.safetensors"
    return folder / "kept" / file


def train_and_test(study: Study, method: Method, task: Task, rate: float, seed: int, folder: Path, say: Say) -> None:
    """One model: its row, and its answers kept for the ensembles that are still to be measured."""
    results = Results(folder / "models.jsonl")
    row = _asked(task) | {"method": method.name} | method.told
    row |= {"rate": rate, "epochs": study.training.epochs, "batch_size": study.training.batch_size, "seed": seed}
    file = kept(folder, study, task, method.name, seed)
    measured_ensembles = Results(folder / "ensembles.jsonl")
    needed = any(
        method.name in ensemble.members[task.encoder] and not measured_ensembles.find(ensemble.asked(study, task))
        for ensemble in ensembles(study)
    )
    if results.find(row) and (file.exists() or not needed):
        return

    start = time.perf_counter()
    answers = method.train(task, study.training, rate, seed)
    seconds = {"training": time.perf_counter() - start}
    if needed:
        answers.save(file)
    rule, scorer = settled(answers, task)
    metrics = measured(scorer, task) | {"best_epoch": answers.best_epoch}
    results.add(row, {"chosen": {"rule": rule}, "metrics": metrics, "seconds": seconds})
    say(_told(f"{method.name}, {len(task.data.train.texts)} texts, seed {seed}", metrics, seconds["training"]))


def measure_sisokr(study: Study, task: Task, seed: int, folder: Path, say: Say) -> None:
    """The closed form on frozen vectors."""
    results = Results(folder / "models.jsonl")
    row = _asked(task) | {"method": "SISOKR", "kernel": "cosine", "seed": seed}
    if results.find(row):
        return
    start = time.perf_counter()
    answers, chosen = sisokr(task, study.input_size, seed)
    seconds = {"training": time.perf_counter() - start}
    rule, scorer = settled(answers, task)
    metrics = measured(scorer, task)
    results.add(row, {"chosen": chosen | {"rule": rule}, "metrics": metrics, "seconds": seconds})
    say(_told(f"SISOKR, seed {seed}", metrics, seconds["training"]))


def measure_ensemble(study: Study, ensemble: Together, task: Task, folder: Path, say: Say) -> None:
    """Kept models together, combined in the way that does best on validation."""
    results = Results(folder / "ensembles.jsonl")
    row = ensemble.asked(study, task)
    if results.find(row):
        return
    files = [
        kept(folder, study, task, method, seed, encoder)
        for encoder, methods in ensemble.members.items()
        for method, seed in product(methods, study.seeds)
    ]
    if not all(file.exists() for file in files):
        say(f"{ensemble.name}: the answers of some members are not kept, so it is left out")
        return
    scorers = [settled(Answers.load(file, task.device), task)[1] for file in files]

    def together(combine: Any, standardize: bool, part: str, rows: Tensor) -> Tensor:
        return combined([scorer(part, rows) for scorer in scorers], combine, standardize=standardize)

    truth = torch.from_numpy(task.data.val.rows)
    ways = list(product(COMBINATIONS, (False, True)))
    ways = [way for way in ways if way != ("mean rank", True)]  # ranks do not depend on scale
    on_val = [places(partial(together, *way, "val"), truth).reciprocal().mean().item() for way in ways]
    best = ways[int(np.argmax(on_val))]
    metrics = measured(partial(together, *best), task)
    chosen = {"combine": best[0], "standardize": best[1]}
    results.add(row, {"chosen": chosen, "metrics": metrics})
    say(_told(f"{ensemble.name} by {best[0]}{' of standardized scores' if best[1] else ''}", metrics))


def _told(what: str, metrics: dict[str, float], seconds: float | None = None) -> str:
    took = "" if seconds is None else f", {seconds:.0f} s"
    return (
        f"{what}: Hits@1 {metrics['hits@1']:.1%}, Hits@10 {metrics['hits@10']:.1%}, MRR {metrics['mrr']:.3f}, "
        f"mean rank {metrics['mean_rank']:.1f}{took}"
    )
