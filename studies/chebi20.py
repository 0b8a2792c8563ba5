"""Tables 2 and 3 and Figures 3 and 5 of the paper: from a description to its molecule, among 33,010 of them.

    python -m studies chebi20 --data-dir FOLDER

Every method reads the same texts with the same pretrained encoder, is tuned on validation with as many trials, is
trained for as many epochs with three seeds, and keeps the epoch with the best mean reciprocal rank on validation. A tie
counts as half a rank; values under the two other conventions stand beside. The pretrained encoder is looked for under
``encoders`` in the data folder, then by its name on the hub.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dsokr import kernels, sketches
from dsokr.basis import sketch_span
from dsokr.decoders import GraphSearch
from dsokr.ensemble import COMBINATIONS, combine_scores
from dsokr.metrics import retrieval_of
from dsokr.outputs import keys
from dsokr.regressors import Training
from dsokr.rules import RULES
from studies import chebi20_models as models
from studies.baselines.contrastive import MoleculeMLP
from studies.chebi20_generation import Generation, run_generation
from studies.chebi20_tables import COLUMNS, draw, tabulate
from studies.checking import Check, Evidence, Shortlists, put_first
from studies.choosing import CHOSEN, choose
from studies.data.assembly import Pools, load_pools
from studies.data.chebi20 import Descriptions, describe_molecules, load_chebi20
from studies.data.definitions import load_definitions
from studies.data.mentions import Mentions, load_mentions
from studies.results import Row
from studies.study import ADAMW, Session, Stopwatch, Study, faster_training

ROUNDS = 10  # of choosing weights
CHOICES = ((models.PARTS,), (models.PARTS, models.SMALL))
TRAINING = replace(ADAMW, epochs=16, batch_size=256, warmup_steps=200, precision="bf16-mixed", check_every=2)


@dataclass(frozen=True)
class Chebi20Config:
    """What is run with one encoder."""

    encoder: str = models.SMALL
    methods: tuple[models.TextMethod, ...] = models.BASELINES + models.PAPERS + models.OURS + models.CLOSED_FORM
    ensembles: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict, hash=False)  # methods by encoder
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[float, ...] = (0.3, 0.6)  # of the encoder, relative to new layers: chosen on validation
    trial_epochs: int = 6
    training: Training = TRAINING
    dropout: float = 0.1  # of the encoder
    sizes: tuple[int, ...] = (10, 25, 50, 100, 200, 400, 800)
    rich_sizes: tuple[int, ...] = (100, 250, 500, 1000, 2000)  # of sketches under our own kernels
    shares: tuple[float, ...] = (1 / 8, 1 / 4, 1 / 2)  # of the training texts, for the learning curve
    learner: str = "ours, two tanimotos"  # the method of the learning curve
    patient: tuple[str, ...] = ("CMAM, MLP", "DSOKR, SubSample", "ours, two tanimotos")  # also trained for longer, once
    long_epochs: int | None = 50  # as many as in the paper
    generations: tuple[Generation, ...] = ()  # molecules that are not from a list
    check: Check | None = None  # of what ensembles answer
    choices: tuple[tuple[str, ...], ...] = ()  # encoders that together choose among what a text names or describes
    n_train: int | None = None  # None: all
    generated: bool = False  # generated descriptions and molecules instead of ChEBI-20


FULL = Chebi20Config(ensembles=models.select_ensembles(models.SMALL) | models.JOINT_ENSEMBLES)
NAMED = tuple(  # networks that copy what a text names
    Chebi20Config(
        encoder=encoder,
        methods=methods,
        ensembles=models.select_ensembles(encoder, *ensembles) | models.NAMED_ENSEMBLES | models.BOTH_DIRECTIONS,
        seeds=(0,),
        rates=(rate,),
        shares=(),
        learner=methods[0].name,
        long_epochs=None,
        generations=tuple(Generation(reading=reading) for reading in readings),
        choices=CHOICES,
    )
    for encoder, rate, methods, ensembles, readings in (
        (models.WORDS, 10.0, models.COPYING + models.INFERRING, (models.NAMES, models.INFERRED_NAMES), ()),
        (models.PARTS, 10.0, models.INFERRING + models.FURTHER, (models.MORE_INFERRED,), (models.INFERRED,)),
        (
            models.SMALL,
            0.6,  # as without names
            models.COPYING,
            (models.NAMES,),
            (models.OPSIN,),
        ),
    )
)
SHORT = replace(  # for two cores: fewer epochs, and no dropout, which would take a quarter of the time there
    NAMED[-1],
    methods=models.INFERRING[:1],
    ensembles=models.BOTH_DIRECTIONS,
    training=replace(TRAINING, epochs=5, batch_size=64, trainer={"accumulate_grad_batches": 4}),  # fits into 13 GB
    dropout=0.0,
    learner=models.INFERRING[0].name,
    generations=(),
)
BACKWARD = Chebi20Config(  # from molecules to words
    encoder=models.BACKWARDS,
    methods=(models.BACKWARD, models.BACKWARD_OFTEN),
    ensembles=models.BOTH_DIRECTIONS,
    seeds=(0,),
    rates=(2.0,),
    shares=(),
    learner=models.BACKWARD.name,
    long_epochs=None,
    check=Check(),
)
WORDED = Chebi20Config(  # which is behind the encoder alone
    encoder=models.LARGER + models.AND_WORDS,
    methods=(models.OURS[1],),
    ensembles=models.select_ensembles(models.LARGER + models.AND_WORDS, models.OUR_ENSEMBLE),
    rates=(0.2,),
    shares=(),
    long_epochs=None,
)
SMALL_WORDED = replace(WORDED, encoder=models.SMALL + models.AND_WORDS, rates=(0.6,), seeds=(0,), ensembles={})
LARGE = Chebi20Config(
    encoder=models.LARGER,
    methods=(models.BASELINES[1], models.PAPERS[0], models.OURS[1], *models.CLOSED_FORM),
    ensembles=models.select_ensembles(
        models.LARGER, "CMAM ensemble, MLP", "DSOKR ensemble, SubSample", models.OUR_ENSEMBLE
    )
    | models.JOINT_ENSEMBLES,
    rates=(0.2, 0.4),
    shares=(),
    patient=("ours, two tanimotos",),
    generations=(Generation(),),
)
REDUCED = Chebi20Config(  # for two cores, without an encoder
    encoder=models.WORDS,
    methods=(
        *models.BASELINES[:2],
        models.PAPERS[0],
        *(
            models.dsokr(f"ours, {name}", kernel, sketches.SubSample(500), models.RANKED)
            for name, kernel in (
                ("two tanimotos", "tanimoto + tanimoto without chirality"),
                ("tanimoto + WL", "tanimoto + WL on graphs"),
                ("two tanimotos + counts", "tanimoto + tanimoto without chirality + counts"),
            )
        ),
        *(
            replace(
                models.copying(
                    method.name, method.key["kernel"], sketches.SubSample(500), models.RANKED, method.reading
                ),
                tuned_as=models.WITH_COUNTS,
            )
            for method in (*models.COPYING, *models.INFERRING)
        ),
    ),
    ensembles={
        models.ALL_KERNELS: {models.WORDS: ("ours, two tanimotos", "ours, tanimoto + WL")},
        **models.select_ensembles(models.WORDS, models.NAMES, models.INFERRED_NAMES),
    },
    seeds=(0,),
    rates=(3.0, 10.0),
    long_epochs=None,
    trial_epochs=2,
    training=replace(TRAINING, epochs=10, precision="32-true"),
    sizes=(10, 100),
    rich_sizes=(100, 500),
    generations=(
        Generation(sketch=sketches.SubSample(500)),
        Generation(sketch=sketches.SubSample(500), loss=models.SQUARED, rule="projected"),
        *(Generation(sketch=sketches.SubSample(500), reading=reading) for reading in (models.OPSIN, models.INFERRED)),
    ),
)
QUICK = Chebi20Config(
    encoder=models.WORDS,
    methods=(
        models.regression(),
        models.cmam("CMAM, MLP", MoleculeMLP(hidden=32)),
        models.dsokr("DSOKR, SubSample", "cosine", sketches.SubSample(20)),
        models.dsokr("ours, cosine + tanimoto", "cosine + tanimoto", sketches.SubSample(40), models.RANKED),
        models.sisokr(input_size=100),
    ),
    ensembles=models.select_ensembles(models.WORDS, "CMAM ensemble, MLP", "ours, ensemble, cosine + tanimoto"),
    seeds=(0, 1),
    rates=(0.1, 0.3),
    trial_epochs=1,
    training=replace(TRAINING, epochs=1, batch_size=32, precision="32-true", warmup_steps=2),
    sizes=(5, 10),
    rich_sizes=(10, 20),
    n_train=300,
    shares=(1 / 2,),
    learner="ours, cosine + tanimoto",
    long_epochs=2,
    generations=(
        Generation(sketch=sketches.SubSample(40), n_test=10, search=GraphSearch(beam=8, budget=2_000, pieces=8)),
    ),
    generated=True,
)


def run(config: Chebi20Config, session: Session) -> None:
    """Compute what is missing for one encoder."""
    with faster_training(session.device):
        run_all(config, load_task(config, session), session)


def run_all(config: Chebi20Config, task: models.TextTask, session: Session) -> None:
    count_shared_representations(task, session)
    count_named_answers(task, session)
    compare_sizes(config, task, session)
    alone, rates = replace(config, ensembles={}), dict[str, float]()
    for method in config.methods:
        rate = rates[method.tuned_as] if method.tuned_as in rates else tune(config, method, task, session)
        rates[method.name] = rate
        for seed in config.seeds:
            run_method(config, method, task, rate, seed, session)
        if method.name == config.learner:
            for share in config.shares:
                run_method(alone, method, task.cut(share), rate, config.seeds[0], session)
        if method.name in config.patient and config.long_epochs is not None:
            longer = replace(alone, training=replace(config.training, epochs=config.long_epochs))
            run_method(longer, method, task, rate, config.seeds[0], session)
    for name, members in config.ensembles.items():
        if config.encoder == [*members][-1]:  # else other encoders are still to come
            run_ensemble(config, name, task, session)
    for encoders in config.choices:
        if encoders[-1] == config.encoder:
            run_choice(config, encoders, task, session)
    for generation in config.generations:
        run_generation(generation, task, config.training, rates[config.learner], config.seeds[0], session)


def load_task(config: Chebi20Config, session: Session) -> models.TextTask:
    data = describe_molecules(config.n_train or 1000, 50, 50) if config.generated else load_chebi20(session.data)
    texts, rows = data.train
    data = replace(data, train=Descriptions(texts[: config.n_train], rows[: config.n_train]))
    readings = dict.fromkeys([*(method.reading for method in config.methods), *(g.reading for g in config.generations)])
    if config.check is not None or config.choices:
        readings[models.INFERRED] = None
    mentions = {
        reading: load_mentions(data, session.data, infers=reading == models.INFERRED) for reading in readings if reading
    }
    return models.TextTask.of(config.encoder, data, session.data, session.device, mentions, config.dropout)


def make_key(task: models.TextTask) -> Row:
    data = {"training_texts": task.data.training_texts, "n_train": len(task.data.train.texts)}
    return {"experiment": "chebi20", "encoder": task.encoder} | data


def count_shared_representations(task: models.TextTask, session: Session) -> None:
    """How many candidates share a representation, and the best Hits@1 that any method could have with it."""
    *vectors, graphs, _ = task.outputs.views
    representations: dict[str, Callable[[], Iterator[Any]]] = {
        "Mol2vec": partial(keys, vectors[models.MOL2VEC]),
        "Morgan with chirality": partial(keys, vectors[models.MORGAN]),
        "Morgan without chirality": partial(keys, vectors[models.FLAT]),
        "WL features of graphs with chirality": lambda: models.WL.features(graphs).rows(),
        "the same after ten iterations": lambda: models.DEEP_WL.features(graphs).rows(),
        "pairs of neighbourhoods up to 20 bonds apart": lambda: models.PAIRS.features(graphs).rows(),
    }
    for name, represent in representations.items():
        key = {"experiment": "chebi20", "representation": name, "candidates": len(task.outputs)}
        session.results("ceilings").record(key, partial(_measure_ceiling, represent, task))


def _measure_ceiling(represent: Callable[[], Iterator[Any]], task: models.TextTask) -> Row:
    _, group, sizes = np.unique([hash(key) for key in represent()], return_inverse=True, return_counts=True)
    own = sizes[group[task.data.test.rows]]
    at_random, untied = float((1 / own).mean()), float((own == 1).mean())
    return {"metrics": {"shared": int((sizes[group] > 1).sum()), "hits@1": at_random, "untied_hits@1": untied}}


def count_named_answers(task: models.TextTask, session: Session) -> None:
    """For how many texts the answer is among the molecules that the text names or spells out, by how it is read."""
    for reading, mentions in task.mentions.items():
        method = "what texts name" + f", {reading}" * (reading != models.OPSIN)
        key = {"experiment": "chebi20", "n_train": len(task.data.train.texts), "method": method}
        session.results("named").record(key, partial(_measure_named, task, mentions))


def _measure_named(task: models.TextTask, mentions: Mentions) -> Row:
    from studies.data.forms import read_and_write  # RDKit is needed here only

    metrics = dict[str, float]()
    for part in ("val", "test"):
        texts, rows = getattr(task.data, part)
        named = ({mentions.molecules.smiles[i] for i in mentions.list_rows([text])} for text in texts)
        truth = (read_and_write(task.data.molecules.smiles[row]) for row in rows)
        metrics[part] = sum(true in own for true, own in zip(truth, named, strict=True)) / len(texts)
    return {"metrics": metrics}


def compare_sizes(config: Chebi20Config, task: models.TextTask, session: Session) -> None:
    """Figures 3 and 5: Perfect h against the sketch size, for kernels and sketches."""
    for (name, kernel), (drawn, sketch) in product(models.KERNELS.items(), models.PAPERS_SKETCHES.items()):
        is_ours = name not in models.PAPERS_KERNELS
        if is_ours and drawn != "SubSample":
            continue
        sizes = config.rich_sizes if is_ours else config.sizes
        key = {"experiment": "chebi20", "n_train": len(task.data.train.texts), "method": "perfect_h", "seed": 0}
        key |= {"kernel": name, "sketch": drawn}
        session.results("perfect_h").record_all(
            [key | {"m": m, "rule": rule} for m, rule in product(sizes, RULES)],
            partial(measure_perfect_h, kernel, sketch(max(sizes)), sizes, task),
        )


def measure_perfect_h(
    kernel: kernels.Kernel, sketch: sketches.SketchSpec, sizes: tuple[int, ...], task: models.TextTask
) -> Iterator[Row]:
    """Retrieval by the true coordinates of the validation molecules, at every size and by every rule."""
    train = task.outputs[task.data.train.rows]
    span = sketch_span(kernel, train, sketch, generator=Generator().manual_seed(0), device=task.device)
    values, diag = span.evaluate(task.outputs), kernel.diag(task.outputs).to(task.device)
    for m in sizes:
        molecules = values[:, :m] @ span.basis(m).projection.T
        z = molecules[task.truth("val").to(task.device)]
        vectors = models.ModelVectors(z, z, molecules, diag)
        for rule in RULES:
            yield {"metrics": retrieval_of(models.rank_truth(partial(vectors.score, rule), task, "val"))}


def tune(config: Chebi20Config, method: models.TextMethod, task: models.TextTask, session: Session) -> float:
    """The encoder's rate that is best on validation after a short training; if there is only one, that."""
    if len(config.rates) == 1 or not method.has_rate:
        return config.rates[0]
    training = replace(config.training, epochs=config.trial_epochs)
    trials = {}
    for rate in config.rates:
        key = make_key(task) | {"method": method.name} | method.key
        key |= {"rate": rate, "epochs": config.trial_epochs, "seed": 0}

        def measure(rate: float = rate) -> Row:
            scorer = models.choose_rule(method.train(task, training, rate, 0), task)[1]
            return {"metrics": {"val_mrr": models.mean_reciprocal_rank(scorer, task)}}

        trials[rate] = session.results("validation").record(key, measure)["metrics"]["val_mrr"]
    return max(trials, key=lambda rate: trials[rate])


def make_ensemble_key(config: Chebi20Config, name: str, task: models.TextTask) -> Row:
    encoders = config.ensembles[name]
    several = len(encoders) > 1
    members = [f"{of}: {method}" if several else method for of, methods in encoders.items() for method in methods]
    own = {"method": name, "members": members, "seeds": list(config.seeds), "epochs": config.training.epochs}
    return make_key(task) | {"encoder": " & ".join(encoders)} | own


def _identify(config: Chebi20Config, name: str, task: models.TextTask) -> Row:
    """What the row of an ensemble has in common with those of its members, which may have other numbers of epochs."""
    key = make_ensemble_key(config, name, task)
    return {field: key[field] for field in ("method", "members", "seeds", "n_train")}


def vectors_file(task: models.TextTask, method: str, seed: int, session: Session, encoder: str | None = None) -> Path:
    """Where the vectors of a model are kept for ensembles; not part of the results."""
    trained = f"{len(task.data.train.texts)} texts"
    return session.folder / "kept" / f"{encoder or task.encoder}, {trained}, {method}-{seed}.safetensors"


def run_method(
    config: Chebi20Config, method: models.TextMethod, task: models.TextTask, rate: float, seed: int, session: Session
) -> None:
    """Train and test one model, and keep its vectors for the ensembles that are still to be measured."""
    results, ensembles = session.results("models"), session.results("ensembles")
    key = make_key(task) | {"method": method.name} | method.key
    if method.has_rate:
        key |= {"rate": rate, "epochs": config.training.epochs, "batch_size": config.training.batch_size}
    if config.dropout != Chebi20Config.dropout:  # which rows do not name
        key |= {"dropout": config.dropout}
    key |= {"seed": seed}
    file = vectors_file(task, method.name, seed, session)
    needed = any(
        method.name in members.get(task.encoder, ()) and not ensembles.knows(_identify(config, name, task))
        for name, members in config.ensembles.items()
    )
    needed |= method is models.CHOOSING and any(
        task.encoder in encoders and not session.results("generation").has(make_choice_key(task, encoders, seed))
        for encoders in config.choices
    )
    if results.has(key) and (file.exists() or not needed):
        return
    clock = Stopwatch()
    with clock("training"):
        vectors = method.train(task, config.training, rate, seed)
    if needed:
        vectors.save(file)
    rule, scorer = models.choose_rule(vectors, task)
    metrics = models.measure_retrieval(scorer, task) | {"best_epoch": vectors.best_epoch}
    chosen = vectors.chosen | {"rule": rule}
    results.record(key, lambda: {"chosen": chosen, "metrics": metrics, "seconds": clock.seconds})


def run_ensemble(config: Chebi20Config, name: str, task: models.TextTask, session: Session) -> None:
    """Combine kept models in the way that does best on validation; several encoders with the best weights there."""
    results, key = session.results("ensembles"), make_ensemble_key(config, name, task)
    groups = [
        [vectors_file(task, method, seed, session, encoder) for method, seed in product(methods, config.seeds)]
        for encoder, methods in config.ensembles[name].items()
    ]
    files = [file for group in groups for file in group]
    checked = key | {"method": f"{name}{models.CHECKED}", "check": f"{config.check}, assembled molecules"}
    if results.has(key) and (config.check is None or results.has(checked)):
        return
    if not all(file.exists() for file in files):
        session.say(f"{name}: left out, because the vectors of some members were not kept")
        return
    scorers = [models.choose_rule(models.ModelVectors.load(file, task.device), task)[1] for file in files]
    on_val = score_all(scorers, task, "val")  # needed many times

    def combine(way: Any, standardize: bool, weights: list[float] | None, part: str, rows: Tensor) -> Tensor:
        members = [own[rows.to(own.device)] for own in on_val] if part == "val" else [s(part, rows) for s in scorers]
        return combine_scores(members, way, weights, standardize)

    ways = [way for way in product(COMBINATIONS, (False, True)) if way != ("mean rank", True)]  # ranks have no scale
    equally = {way: partial(combine, way[0], way[1], None) for way in ways}
    way, standardize = max(ways, key=lambda way: models.mean_reciprocal_rank(equally[way], task))
    weights = None
    if len(groups) > 1 and way != "max score":
        weights = choose_weights(partial(combine, way, standardize), len(files), task)
    together = partial(combine, way, standardize, weights)
    chosen: Row = {"combine": way, "standardize": standardize} | ({} if weights is None else {"weights": weights})
    results.record(key, lambda: {"chosen": chosen, "metrics": models.measure_retrieval(together, task)})
    if config.check is not None:
        pools = pool_texts(task, session)
        lists = {
            "val": shortlist(config.check, together, on_val, task, "val", pools),
            "test": shortlist(config.check, together, score_all(scorers, task, "test"), task, "test", pools),
        }
        results.record(checked, partial(measure_check, config.check, together, lists, task))


def make_choice_key(task: models.TextTask, encoders: tuple[str, ...], seed: int) -> Row:
    member = {"method": CHOSEN, "member": models.CHOOSING.name, **models.CHOOSING.key, "copies": True}
    member |= {"seed": seed, "n_test": len(task.data.test.texts)}
    return make_key(task) | {"encoder": " & ".join(encoders)} | member


def run_choice(config: Chebi20Config, encoders: tuple[str, ...], task: models.TextTask, session: Session) -> None:
    """Let kept models, which share a basis, choose a molecule for every text, without a list."""
    seed, method = config.seeds[0], models.CHOOSING
    files = [vectors_file(task, method.name, seed, session, encoder) for encoder in encoders]
    key, results = make_choice_key(task, encoders, seed), session.results("generation")
    if results.has(key) or not all(file.exists() for file in files):
        return
    clock = Stopwatch()
    with clock("decoding"):
        basis = task.span(models.KERNELS[method.key["kernel"]], models.ANCHORS, seed)
        members = [models.ModelVectors.load(file, task.device) for file in files]
        metrics = choose(task, basis, members, pool_texts(task, session))
    results.record(key, lambda: {"metrics": metrics, "seconds": clock.seconds})


def pool_texts(task: models.TextTask, session: Session) -> Pools:
    """What the validation and test texts name or describe."""
    texts = [*task.data.val.texts, *task.data.test.texts]
    return load_pools(texts, task.mentions[models.INFERRED], session.data)


def score_all(scorers: Sequence[models.Scorer], task: models.TextTask, part: str) -> list[Tensor]:
    """The scores of all molecules for all texts of a part, by every member."""
    blocks = torch.arange(len(task.truth(part))).split(models.QUERIES)
    return [torch.cat([scorer(part, rows) for rows in blocks]) for scorer in scorers]


def shortlist(
    check: Check, together: models.Scorer, members: Sequence[Tensor], task: models.TextTask, part: str, pools: Pools
) -> Shortlists:
    texts, mentions = getattr(task.data, part).texts, task.mentions[models.INFERRED]
    evidence = Evidence(task.data.molecules, mentions, load_definitions(texts), pools)
    alike = (combine_scores([own], "mean score", standardize=True) for own in members)
    return Shortlists.of(texts, [*score_all([together], task, part), *alike], task.truth(part), evidence, check.size)


def measure_check(check: Check, together: models.Scorer, lists: dict[str, Shortlists], task: models.TextTask) -> Row:
    """An ensemble whose first candidates are compared with what the definitions say."""
    own = dict(zip(("val", "test"), check.rate(lists["val"], lists["test"]), strict=True))

    def scorer(part: str, rows: Tensor) -> Tensor:
        scores = together(part, rows)
        return put_first(scores, lists[part].rows[rows].to(scores.device), own[part][rows].to(scores.device))

    return {"metrics": models.measure_retrieval(scorer, task)}


def choose_weights(combine: Callable[..., Tensor], count: int, task: models.TextTask) -> list[float]:
    """The weights of the members, by greedy selection on validation (Caruana et al., 2004).

    All start with weight 1; each round adds 1 to the member for which the mean reciprocal rank is best. The best round
    counts.
    """
    blocks = torch.arange(len(task.truth("val"))).split(models.QUERIES)
    alone = [
        torch.cat([combine([float(i == member) for i in range(count)], "val", rows) for rows in blocks])
        for member in range(count)
    ]

    def rate(scores: Tensor) -> float:
        return models.mean_reciprocal_rank(lambda part, rows: scores[rows.to(scores.device)], task)

    weights, total = [1.0] * count, torch.stack(alone).sum(dim=0)
    tried = [(rate(total), weights)]
    for _ in range(ROUNDS):
        best = max(range(count), key=lambda member: rate(total + alone[member]))
        weights, total = [w + (i == best) for i, w in enumerate(weights)], total + alone[best]
        tried.append((rate(total), weights))
    return max(tried, key=lambda pair: pair[0])[1]


SIZES = {
    "full": (FULL, SMALL_WORDED, LARGE, WORDED, *NAMED, SHORT, BACKWARD),
    "reduced": (REDUCED,),
    "quick": (QUICK,),
}
STUDY = Study("chebi20", SIZES, run, tabulate, COLUMNS, draw)
