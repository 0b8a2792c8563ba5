"""MassBank: find the molecule of a tandem mass spectrum among candidates of the same mass or formula.

    python -m studies massbank

One example is one molecule: its spectra are averaged, each relative to its largest peak. Three splits: the file's own
by molecule, by scaffold, and by mass: there, all molecules of about one mass are in the same of five folds, so that no
candidate was seen in training. Every method ranks the candidates of every test molecule; hits are over molecules whose
pools have at least two candidates, with bootstrap intervals over molecules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Generator, Tensor

from dsokr.basis import sketch_basis
from dsokr.decoders import Candidates
from dsokr.estimator import DSOKR
from dsokr.kernels import Cosine, Gaussian, Linear, Tanimoto
from dsokr.losses import Ranked, Squared
from dsokr.metrics import ranks
from dsokr.regressors import Forest, KernelRidge, Neural, Stack, Training
from dsokr.regressors.networks import MLP, SparseTransformer
from dsokr.rules import Rule
from dsokr.sketches import Full, SketchSpec, SubSample
from studies.baselines.regression import LabelNetwork
from studies.data.massbank import Molecules, generate_molecules, load_molecules
from studies.plots import draw_panels
from studies.results import TRAINING_FIELDS, Columns, Row, group_rows, pick_fields, read_rows
from studies.study import ADAMW, Session, Stopwatch, Study

PPM, FOLDS, TEST = 1e-5, 5, 0.2  # tolerance of masses, folds by mass, share of the scaffolds' test molecules
LARGE = 0.05  # share of the molecules from which on a scaffold is always trained on
SHARED = 3  # training spectra that must have a bin which is a token
POOLS = ("MassBank, mass", "MassBank, formula", "MassBank + ChEBI-20, mass", "MassBank + ChEBI-20, formula")
MASS_SPLITS = tuple(f"mass {fold}" for fold in range(FOLDS))


@dataclass(frozen=True)
class MassBankConfig:
    """Sizes are those of the sketches of inputs and outputs."""

    load: Callable[[Path | None], Molecules]
    splits: tuple[str, ...]
    size: int
    width: int  # of the networks' hidden layer
    training: Training
    models: tuple[str, ...]
    bits: int = 2048  # of the fingerprint network


@dataclass(eq=False)
class Fold:
    """Training molecules, queries with the pools of their candidates, and the coordinates of models by name."""

    data: Molecules
    config: MassBankConfig
    train: np.ndarray
    test: np.ndarray
    coordinates: dict[str, tuple[DSOKR, Tensor]] = field(default_factory=dict)

    @cached_property
    def pools(self) -> dict[str, list[np.ndarray]]:
        """The candidates of every query, by kind of pool."""
        return {kind: [find_candidates(self.data, i, kind) for i in self.test] for kind in POOLS}

    @cached_property
    def candidates(self) -> np.ndarray:
        """All candidates of any query."""
        return np.unique(np.concatenate([self.test, *(pool for pools in self.pools.values() for pool in pools)]))

    @cached_property
    def similarities(self) -> Tensor:  # (candidates, train)
        return Tanimoto()(self.data.morgan[self.candidates], self.data.morgan[self.train])

    @cached_property
    def embedded(self) -> Tensor:  # (n, p)
        return self.embed(self.data.X)

    @cached_property
    def detailed(self) -> Tensor:  # (n, p)
        return self.embed(self.data.detailed)

    def embed(self, X: sp.csr_array) -> Tensor:  # (n, p)
        """Coordinates of all spectra in a basis of the training spectra, with mean square one: what networks read."""
        sketch, generator = SubSample(self.config.size), Generator().manual_seed(0)
        basis = sketch_basis(Gaussian(0.5), X[self.train], sketch, generator=generator)
        return (basis.dim**0.5 * basis.embed(X)).float()

    @cached_property
    def tokens(self) -> sp.csr_array:  # (n, bins)
        """The bins in which several training spectra have a peak or a loss."""
        counts = (self.data.X[self.train] > 0).sum(axis=0)
        return self.data.X[:, np.flatnonzero(counts >= SHARED)]

    def is_asked(self, kind: str) -> np.ndarray:
        """Which queries have their molecule and another one in the pool."""
        asked = zip(self.test, self.pools[kind], strict=True)
        return np.array([len(pool) > 1 and i in pool for i, pool in asked])


def find_candidates(data: Molecules, i: int, kind: str) -> np.ndarray:
    """Candidates for the molecule: within 10 ppm of the mass measured, or with its formula."""
    library, _, how = kind.partition(", ")
    n = len(data) if library == "MassBank" else len(data.masses)
    if how == "formula":
        return np.flatnonzero(data.formulas[:n] == data.formulas[i])
    return np.flatnonzero(np.abs(data.masses[:n] - data.measured[i]) <= PPM * data.measured[i])


def split(data: Molecules, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Training and test molecules."""
    if name == "molecule":
        is_test = data.parts == "test"
    elif name == "scaffold":
        is_test = draw_scaffolds(data.scaffolds)
    else:
        is_test = fold_by_mass(data.masses[: len(data)]) == int(name.removeprefix("mass "))
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def draw_scaffolds(scaffolds: np.ndarray) -> np.ndarray:  # (n,) of bool
    """Draw scaffolds until they hold a share of the molecules; frequent ones are not drawn."""
    _, owner, counts = np.unique(scaffolds, return_inverse=True, return_counts=True)
    order = np.random.default_rng(0).permutation(np.flatnonzero(counts <= max(1, LARGE * len(scaffolds))))
    drawn = order[np.cumsum(counts[order]) <= TEST * len(scaffolds)]
    return np.isin(owner, drawn)


def fold_by_mass(masses: np.ndarray) -> np.ndarray:  # (n,)
    """Random folds; neighbours by mass that a pool might join are in the same."""
    order = masses.argsort(kind="stable")
    starts = np.diff(masses[order], prepend=0) > 4 * PPM * masses[order]
    groups = np.empty(len(masses), int)
    groups[order] = starts.cumsum() - 1
    return (np.random.default_rng(0).permutation(groups.max() + 1) % FOLDS)[groups]


def run(config: MassBankConfig, session: Session) -> None:
    """Compute what ``pools.jsonl`` and ``ranks.jsonl`` do not hold yet."""
    data = config.load(session.data)
    pools, results = session.results("pools"), session.results("ranks")
    for name in config.splits:
        fold = Fold(data, config, *split(data, name))
        key = {"experiment": "massbank", "split": name, "n_train": len(fold.train)}
        pools.record(key, partial(describe_pools, fold))
        key |= {"m": config.size}
        for rule, blind in BLIND.items():
            results.record(key | {"method": f"blind: {rule}"}, partial(measure, fold, blind))
        results.record(key | {"method": "nearest spectrum"}, partial(measure, fold, score_nearest))
        trained = {"width": config.width, "training": pick_fields(config.training, *TRAINING_FIELDS)}
        for model in config.models:
            is_trained = model in (BITWISE, *TOGETHER) or MODELS[model].trains
            own = key | (trained if is_trained else {}) | {"method": model}
            if model == BITWISE:
                results.record(own, partial(measure, fold, score_bits))
            else:
                results.record_all([own | {"rule": rule} for rule in RULES], partial(measure_model, fold, model))


def describe_pools(fold: Fold) -> Row:
    """The sizes of the pools that count, how many hold one molecule, and how many lack the right one."""
    found: Row = {}
    for kind, pools in fold.pools.items():
        lacking = sum(i not in pool for i, pool in zip(fold.test, pools, strict=True))
        asked = fold.is_asked(kind)
        sizes = [len(pool) for pool, counts in zip(pools, asked, strict=True) if counts]
        found[kind] = {"sizes": sizes, "lacking": lacking, "single": int((~asked).sum()) - lacking}
    return {"metrics": found}


def measure(fold: Fold, score: Callable[[Fold], Tensor]) -> Row:
    """Rank the candidates of every query by scores (queries, candidates)."""
    clock = Stopwatch()
    with clock("all"):
        scores = score(fold)
    return {"metrics": summarize_ranks(rank_pools(fold, scores)), "seconds": clock.seconds}


def summarize_ranks(ranks: dict[str, list[float]]) -> Row:
    """The ranks, and for the progress lines the hits of the first kind of pools."""
    first = np.array(ranks[POOLS[0]])
    return {"hits@1": float((first <= 1).mean()) if len(first) else 0.0, "ranks": ranks}


def rank_pools(fold: Fold, scores: Tensor) -> dict[str, list[float]]:
    """The ranks of the right molecules, by kind of pool, of the queries that count."""
    found = {}
    for kind, pools in fold.pools.items():
        found[kind] = [
            rank_one(scores[row, np.searchsorted(fold.candidates, pools[row])], pools[row] == fold.test[row])
            for row in np.flatnonzero(fold.is_asked(kind))
        ]
    return found


def rank_one(scores: Tensor, is_right: np.ndarray) -> float:
    return ranks(scores[None], torch.tensor([int(is_right.argmax())])).item()


def repeat(fold: Fold, scores: Tensor) -> Tensor:  # (queries, candidates)
    """The same scores for every query."""
    return scores.expand(len(fold.test), -1)


def is_new(fold: Fold) -> Tensor:  # (candidates,)
    return torch.from_numpy(~np.isin(fold.candidates, fold.train)).double()


BLIND: dict[str, Callable[[Fold], Tensor]] = {
    "most similar on average": lambda fold: repeat(fold, fold.similarities.mean(dim=1)),
    "most similar": lambda fold: repeat(fold, fold.similarities.amax(dim=1)),
    "least similar": lambda fold: repeat(fold, -fold.similarities.amax(dim=1)),
    "new, similar on average": lambda fold: repeat(fold, is_new(fold) + fold.similarities.mean(dim=1)),
}


def score_nearest(fold: Fold) -> Tensor:
    """How similar candidates are to the molecule of the most similar training spectrum."""
    best = Cosine()(fold.data.X[fold.test], fold.data.X[fold.train]).argmax(dim=1)
    return fold.similarities[:, best].T


def score_bits(fold: Fold) -> Tensor:
    """The log-likelihood of candidates' fingerprints by a network that predicts every bit by itself."""
    config, inputs = fold.config, fold.embedded
    network = LabelNetwork(MLP((config.width,), dropout=0.5), config.training, seed=0)
    network.fit(inputs[fold.train].numpy(), fold_bits(fold.data.morgan[fold.train], config.bits))
    logits = network.fitted.predict(inputs[fold.test])
    bits = torch.from_numpy(fold_bits(fold.data.morgan[fold.candidates], config.bits)).to(logits)
    return logits @ bits.T + torch.nn.functional.logsigmoid(-logits).sum(dim=1, keepdim=True)


def fold_bits(morgan: sp.csr_array, bits: int) -> np.ndarray:  # (n, bits) of 0 and 1
    found = np.zeros((morgan.shape[0], bits), np.float32)
    found[np.repeat(np.arange(len(found)), np.diff(morgan.indptr)), morgan.indices % bits] = 1
    return found


def make_network(fold: Fold, loss: Any) -> Neural:
    return Neural(MLP((fold.config.width,), dropout=0.5), loss, fold.config.training)


def make_close(fold: Fold) -> Neural:
    return make_network(fold, Ranked(within=10.0, numbers=fold.data.masses[fold.train]))


def make_ridge(fold: Fold) -> KernelRidge:
    return KernelRidge(Gaussian(0.5), Full(), regularization=1e-5)


def make_sisokr(fold: Fold) -> KernelRidge:
    return KernelRidge(Cosine(), SubSample(fold.config.size), regularization=1e-4)


def make_stack(fold: Fold) -> Stack:
    """Ridge and a network on the same coordinates, weighted on a fifth of the training molecules."""
    return Stack((KernelRidge(Linear()), make_network(fold, Ranked())), folds=0.2)


def make_tokens(fold: Fold) -> Neural:
    network = SparseTransformer(layers=1, width=128, heads=4, longest=64, hidden=fold.config.width)
    return Neural(network, Ranked(), replace(fold.config.training, learning_rate=1e-3))


@dataclass(frozen=True)
class Model:
    """What a method reads, by the name of a field of the fold or of its data, and how it regresses."""

    inputs: str
    regressor: Callable[[Fold], Any]
    trains: bool = False  # a network
    sketch: SketchSpec | None = None  # None: as many outputs as the configuration says


PLAIN = {
    "SISOKR": Model("data.X", make_sisokr),
    "IOKR": Model("data.X", lambda fold: KernelRidge(Cosine(), Full(), regularization=1e-4), sketch=Full()),
    "DSOKR, ridge": Model("data.X", make_ridge),
    "DSOKR, network": Model("embedded", lambda fold: make_network(fold, Squared()), trains=True),
    "DSOKR, network, ranked": Model("embedded", lambda fold: make_network(fold, Ranked()), trains=True),
    "DSOKR, network, ranked within 10 Da": Model("embedded", make_close, trains=True),
}
DETAILED = {
    "SISOKR, differences": Model("data.detailed", make_sisokr),
    "DSOKR, ridge, differences": Model("data.detailed", make_ridge),
    "DSOKR, network, differences": Model("detailed", lambda fold: make_network(fold, Ranked()), trains=True),
    "DSOKR, network within 10 Da, differences": Model("detailed", make_close, trains=True),
}
FOREST = {"DSOKR, forest": Model("data.X", lambda fold: Forest(trees=30, min_split=2))}
SLOW = {
    "DSOKR, stack, differences": Model("detailed", make_stack, trains=True),
    "DSOKR, auto": Model("data.X", lambda fold: "auto"),
    "DSOKR, tokens": Model("tokens", make_tokens, trains=True),
}
MODELS = PLAIN | DETAILED | FOREST | SLOW
TOGETHER = {  # means of coordinates
    "DSOKR, together": ("DSOKR, ridge", "DSOKR, network, ranked", "DSOKR, network, ranked within 10 Da"),
    "DSOKR, together, differences": (
        "DSOKR, ridge, differences",
        "DSOKR, network, differences",
        "DSOKR, network within 10 Da, differences",
    ),
}
BITWISE = "fingerprint network"
RULES: tuple[Rule, ...] = ("kernel", "cosine")


FULL = MassBankConfig(
    load_molecules,
    ("molecule", *MASS_SPLITS, "scaffold"),
    size=1500,
    width=1024,
    training=replace(
        ADAMW, epochs=15, batch_size=128, warmup_steps=20, weight_decay=0.0, validation_fraction=0.0, progress=False
    ),
    models=(BITWISE, *PLAIN, "DSOKR, together"),
)
FURTHER = (
    replace(FULL, models=(*FOREST,)),
    replace(FULL, models=(*DETAILED, "DSOKR, together, differences")),
    replace(FULL, splits=("molecule", *MASS_SPLITS), models=(*SLOW,)),
)
REDUCED = replace(FULL, splits=("molecule",), models=("SISOKR", "DSOKR, ridge"))
QUICK = replace(
    FULL,
    load=lambda folder: generate_molecules(300, 100),
    splits=("molecule", "scaffold", *MASS_SPLITS[:2]),
    size=150,
    width=64,
    training=replace(FULL.training, epochs=60, batch_size=32, warmup_steps=5),
    models=(BITWISE, *MODELS, *TOGETHER),
    bits=128,
)


def measure_model(fold: Fold, name: str) -> Iterator[Row]:
    """Fit a model and rank by every rule."""
    clock = Stopwatch()
    with clock("fitting"):
        model, z = combine(fold, TOGETHER[name]) if name in TOGETHER else fit_model(fold, name)
    outputs = fold.data.morgan[fold.candidates]
    for rule in RULES:
        yield {
            "metrics": summarize_ranks(rank_pools(fold, model.basis_.score(z, outputs, rule))),
            "seconds": dict(clock.seconds),
        }


def fit_model(fold: Fold, name: str) -> tuple[DSOKR, Tensor]:  # (queries, p)
    """A model and the coordinates of the queries, computed once."""
    if name not in fold.coordinates:
        spec, data = MODELS[name], fold.data
        X = attrgetter(spec.inputs)(fold)
        sketch, regressor = spec.sketch or SubSample(fold.config.size), spec.regressor(fold)
        options: Row = {"decoder": Candidates("cosine"), "random_state": 0, "device": "cpu"}
        groups = fold_by_mass(data.masses[fold.train]) if isinstance(regressor, Stack) else None
        model = DSOKR(Tanimoto(), sketch, regressor, **options)
        model.fit(X[fold.train], data.morgan[fold.train], groups=groups)
        fold.coordinates[name] = model, model.coefficients(X[fold.test])
    return fold.coordinates[name]


def combine(fold: Fold, members: tuple[str, ...]) -> tuple[DSOKR, Tensor]:  # (queries, p)
    """The mean of the members' coordinates: they share a basis."""
    fits = [fit_model(fold, name) for name in members]
    return fits[0][0], torch.stack([z for _, z in fits]).mean(dim=0)


def tabulate(folder: Path) -> list[Row]:
    """A row for every split, kind of pool and method, with all folds together."""
    sizes = {row["split"]: row["metrics"] for row in read_rows(folder / "pools.jsonl")}
    table = []
    for (name, method), rows in group_rows(read_rows(folder / "ranks.jsonl"), name_row).items():
        for kind in POOLS:
            found = np.concatenate([row["metrics"]["ranks"][kind] for row in rows])
            held = np.concatenate([sizes[row["split"]][kind]["sizes"] for row in rows])
            table.append({"split": name, "pool": kind, "method": method} | summarize(found, held))
    order = {name: place for place, name in enumerate(dict.fromkeys(row["split"] for row in table))}
    return sorted(table, key=lambda row: (order[row["split"]], POOLS.index(row["pool"])))


def name_row(row: Row) -> tuple[str, str]:
    return row["split"].partition(" ")[0], row["method"] + f", {row.get('rule')}" * ("rule" in row)


def summarize(found: np.ndarray, sizes: np.ndarray) -> Row:
    """Hits in pools of at least two and of at least ten, with intervals, from the ranks and the sizes of the pools."""
    made: Row = {"n": len(found), "size": sizes.mean() if len(found) else 0.0, "n10": int((sizes >= 10).sum())}
    for k in (1, 5, 20):
        for least, suffix in ((2, ""), (10, " of 10")):
            if (sizes >= least).any():
                made[f"hits@{k}{suffix}"] = bootstrap(found[sizes >= least] <= k)
    return made


def bootstrap(values: np.ndarray, draws: int = 2000) -> tuple[float, float, float]:
    """The mean, and the interval that holds 95 % of the means of resampled values."""
    different, counts = np.unique(values.astype(float), return_counts=True)
    n = len(values)
    drawn = np.random.default_rng(0).multinomial(n, counts / n, draws)  # how often each is drawn
    low, high = np.quantile(drawn @ different / n, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def compare(folder: Path, kind: str, split: str, first: str, second: str) -> tuple[float, float, float]:
    """The difference of Hit@1 of two methods, molecule by molecule, and its interval."""
    rows = [row for row in read_rows(folder / "ranks.jsonl") if row["split"].startswith(split)]
    found = {(name_row(row)[1], row["split"]): np.array(row["metrics"]["ranks"][kind]) <= 1 for row in rows}
    folds = [name for method, name in found if method == first and (second, name) in found]
    return bootstrap(np.concatenate([found[first, name].astype(float) - found[second, name] for name in folds]))


def format_hits(name: str) -> Callable[[Row], str]:
    def format_row(row: Row) -> str:
        value, low, high = row[name]
        return f"{value:.1%} ({100 * low:.1f}–{100 * high:.1f})"

    return format_row


COLUMNS: Columns = {
    "split": "{split}",
    "candidates": "{pool}",
    "method": "{method}",
    "Hit@1": format_hits("hits@1"),
    "Hit@5": format_hits("hits@5"),
    "Hit@20": format_hits("hits@20"),
    "molecules": "{n}",
    "mean pool": "{size:.1f}",
    "Hit@1, pools of 10": format_hits("hits@1 of 10"),
    "Hit@5, pools of 10": format_hits("hits@5 of 10"),
    "their molecules": "{n10}",
}


def draw(folder: Path, image: Path) -> Path:
    """Hit@1 on the candidates of the same mass, a panel for every split and library; by the rule "cosine"."""
    panels: dict[str, list[tuple[str, float, float]]] = {}
    for row in tabulate(folder):
        if row["pool"].endswith("mass") and row["n"] and not row["method"].endswith(", kernel"):
            (value, low, high), label = row["hits@1"], row["method"].removesuffix(", cosine")
            panels.setdefault(f"{row['split']}: {row['pool']}", []).append((label, value, (high - low) / 2))
    return draw_panels(panels, "Hit@1, pools of at least two", image, across=2)


STUDY = Study(
    "massbank",
    {"full": (FULL, *FURTHER), "reduced": (REDUCED,), "quick": (QUICK,)},
    run,
    tabulate,
    COLUMNS,
    draw,
)
