"""From a description to a molecule that need not be in a list: part of the ChEBI-20 study.

A network learns coordinates in a basis of a graph kernel, from the training texts alone. The answer is searched among
all graphs whose atoms look like atoms of training molecules, from the best training molecules on. Its k best graphs are
kept in a file; RDKit turns them into SMILES in a second step, and the first that is a molecule is the answer.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import Generator, Tensor

from dsokr import sketches
from dsokr.basis import SketchedBasis, sketch_basis
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, GraphSearch, LabelledGraphs
from dsokr.errors import import_extra
from dsokr.estimator import DSOKR
from dsokr.files import replace_file
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import FeatureKernel
from dsokr.losses import Loss
from dsokr.regressors import Neural, Training
from dsokr.rules import Rule
from studies import chebi20_models as models
from studies.data.mentions import Mentions
from studies.results import MISSING, Columns, Row, name_hardware, pick_fields, read_commit, today
from studies.study import Session, Stopwatch

PUBLISHED: tuple[Row, ...] = tuple(  # as their papers report
    {"name": f"{name} (its paper)", "exact": exact, "morgan": morgan, "validity": validity}
    for name, exact, morgan, validity in (
        ("MolT5 base", 0.081, 0.53, 0.77),
        ("MolT5 large", 0.311, 0.68, 0.91),
        ("BioT5", 0.413, 0.73, 1.0),
    )
)
COLUMNS: Columns = {
    "answer": "{name}",
    "encoder": "{encoder}",
    "names": lambda row: row.get("reading", "yes" if row.get("copies") else "no") if "encoder" in row else MISSING,
    "loss": lambda row: row["loss"].partition("(")[0],
    "texts": "{n_test:,}",
    "valid": "{validity:.1%}",
    "exact": "{exact:.1%}",
    "MACCS": "{maccs:.3f}",
    "RDK": "{rdk:.3f}",
    "Morgan": "{morgan:.3f}",
    "truth scores higher": "{missed:.1%}",
    "s a text": "{each:.2f}",
}
KERNEL, SKETCH = models.WL.normalized(), sketches.SubSample(2000)
DEEP = GraphSearch(beam=32, budget=40_000, pieces=32)
TRAINING_MOLECULE, SEARCH, FAMILIAR = "best training molecule", "search", "search, familiar neighbourhoods"
WITH_NAMED = "what the text names, else search"
PERFECT = "search from true coordinates"
SEARCHES = (TRAINING_MOLECULE, SEARCH, FAMILIAR)
TASKS = 8  # into which the texts are divided, for all processors
Fitted = tuple[EmbeddedOutputs, Callable[[list[str]], Tensor]]  # the starts of a search, and texts -> coordinates


@dataclass(frozen=True)
class Generation:
    """The model and the search."""

    kernel: FeatureKernel = KERNEL
    sketch: sketches.SketchSpec = SKETCH
    loss: Loss = models.RANKED
    rule: Rule = "cosine"  # which the loss is about
    search: GraphSearch = DEEP
    familiar: int = 3  # radius
    patience: float = 2.0  # seconds a text, for the search of familiar neighbourhoods
    reading: str = ""  # OPSIN or INFERRED: of the names that it copies; those of training texts start the search, too
    n_test: int = 300  # a random part of the test texts
    k: int = 5  # graphs that are kept for each text

    def list_searches(self, task: models.TextTask, rule: Rule) -> dict[str, GraphSearch]:
        """Over all graphs whose atoms have bonds as in training molecules, and over those with known neighbourhoods."""
        domain = LabelledGraphs.like(task.data.molecules.graphs[np.unique(task.data.train.rows)])
        search = replace(self.search, moves=domain, rule=rule)
        return {SEARCH: search, FAMILIAR: replace(search, familiar=self.familiar, seconds=self.patience)}


def run_generation(
    generation: Generation, task: models.TextTask, training: Training, rate: float, seed: int, session: Session
) -> None:
    """Train, search, keep the graphs, and measure them; also search from true coordinates, without a network."""
    chosen, texts = choose_texts(task, generation.n_test), f"{len(task.data.train.texts)} texts"
    key: Row = {"experiment": "chebi20", "training_texts": task.data.training_texts}
    key |= {"n_train": len(task.data.train.texts), "kernel": str(generation.kernel), "sketch": str(generation.sketch)}
    key |= {"seed": seed, "n_test": len(chosen)} | pick_fields(generation.search, "starts", "beam", "budget", "pieces")
    loss, kind = models.describe(generation.loss), type(generation.loss).__name__
    kind += {"": "", models.OPSIN: ", names", models.INFERRED: ", inferred names"}[generation.reading]
    own = key | {"encoder": task.encoder, "loss": loss, "rule": generation.rule, "rate": rate}
    own |= {"epochs": training.epochs} | pick_fields(generation, "familiar", "patience")
    own |= {"copies": True} if generation.reading else {}
    own |= {"reading": generation.reading} if generation.reading == models.INFERRED else {}
    measure_kept(
        [own | {"method": method} for method in (*SEARCHES, *(WITH_NAMED,) * bool(generation.reading))],
        lambda: generate(generation, task, training, rate, seed, chosen),
        chosen,
        f"generated, {task.encoder}, {texts}, {training.epochs} epochs, {kind}",
        task,
        session,
    )
    measure_kept(
        [key | {"method": PERFECT, "rule": "projected"}],
        lambda: generate_perfectly(generation, task, seed, chosen),
        chosen,
        f"generated from true coordinates, {texts}",
        task,
        session,
    )


def measure_kept(
    keys: list[Row], make: Callable[[], Row], chosen: np.ndarray, name: str, task: models.TextTask, session: Session
) -> None:
    """Record the measures of graphs, which are made once and kept in a file: measuring them needs RDKit."""
    file = session.folder / "kept" / f"{name}.json"

    def measure() -> Iterator[Row]:
        if not file.exists():
            found = make()
            with replace_file(file) as draft:
                Path(draft).write_text(json.dumps(found), encoding="utf-8")
        kept = json.loads(file.read_text(encoding="utf-8"))
        truth = [task.data.molecules.smiles[row] for row in task.data.test.rows[chosen]]
        for own in keys:
            part = kept[own["method"]]
            graphs = part["graphs"]
            if own["method"] not in (TRAINING_MOLECULE, PERFECT):  # if none is a molecule, a training molecule is taken
                graphs = [a + b for a, b in zip(graphs, kept[TRAINING_MOLECULE]["graphs"], strict=True)]
            metrics = measure_molecules(graphs, truth) | {"missed": part["missed"], "proved": part["proved"]}
            yield {"metrics": metrics, "seconds": part["seconds"]} | kept["made"]

    session.results("generation").record_all(keys, measure)


def choose_texts(task: models.TextTask, count: int) -> np.ndarray:
    return np.sort(np.random.default_rng(0).permutation(len(task.data.test.texts))[:count])


def generate(
    generation: Generation, task: models.TextTask, training: Training, rate: float, seed: int, chosen: np.ndarray
) -> Row:
    """The k best graphs for every chosen test text, by every method, as plain lists."""
    texts, clock = [task.data.test.texts[i] for i in chosen], Stopwatch()
    with clock("training"):
        known, predict = (fit_on_names if generation.reading else fit)(generation, task, training, rate, seed)
    return search_by_all(generation, task, known, predict(texts), chosen, clock)


def fit(generation: Generation, task: models.TextTask, training: Training, rate: float, seed: int) -> Fitted:
    """The training molecules, and a network that reads texts."""
    graphs, data = task.data.molecules.graphs, task.data
    regressor = Neural(task.network(rate), generation.loss, training)
    options: Row = {"decoder": Candidates("cosine"), "random_state": seed, "device": str(task.device)}
    model = DSOKR(generation.kernel, generation.sketch, regressor, **options)
    model.fit(data.train.texts, graphs[data.train.rows], validation=(data.val.texts, graphs[data.val.rows]))
    return model.known_, model.coefficients


def fit_on_names(generation: Generation, task: models.TextTask, training: Training, rate: float, seed: int) -> Fitted:
    """The training molecules with those that training texts name, and a network that copies what its text names."""
    mentions, graphs = task.mentions[generation.reading], task.data.molecules.graphs
    named, of_training = mentions.molecules.graphs, mentions.list_rows(task.data.train.texts)
    train, generator = graphs[np.unique(task.data.train.rows)], Generator().manual_seed(seed)
    basis = sketch_basis(generation.kernel, train, generation.sketch, generator=generator, device=task.device)
    network, loss = task.network(rate), generation.loss
    model = models.fit_copying(basis, graphs, named, mentions, task, network, loss, training, seed)
    starts = named[of_training]
    starts = starts[LabelledGraphs.like(train).contains(starts)]
    return EmbeddedOutputs(basis, GraphBatch.joined([train, starts])), model.predict


def search_by_all(
    generation: Generation,
    task: models.TextTask,
    known: EmbeddedOutputs,
    z: Tensor,
    chosen: np.ndarray,
    clock: Stopwatch,
) -> Row:
    """The best training molecules and what the searches find, for the coordinates of the chosen texts."""
    decoders: dict[str, Decoder] = {TRAINING_MOLECULE: Candidates(generation.rule)}
    decoders |= generation.list_searches(task, generation.rule)
    truth, found = task.data.molecules.graphs[task.data.test.rows[chosen]], start_record()
    for name, decoder in decoders.items():
        found[name] = search_all(decoder, known, z, truth, generation.k, clock)
    if generation.reading:
        texts = [task.data.test.texts[i] for i in chosen]
        found[WITH_NAMED] = prefer_named(found, known.basis, z, task.mentions[generation.reading], texts, generation)
    return found


def prefer_named(
    found: Row, basis: SketchedBasis, z: Tensor, mentions: Mentions, texts: list[str], generation: Generation
) -> Row:
    """The molecules that a text names if no known one scores higher than all of them, else what the search found."""
    basis, graphs, scores = basis.to("cpu"), list(found[FAMILIAR]["graphs"]), list(found[FAMILIAR]["scores"])
    for i, (text, row) in enumerate(zip(texts, z.cpu(), strict=True)):
        named = mentions.molecules.graphs[mentions.list_rows([text])]
        if len(named):
            own = basis.score(row[None], named, generation.rule)[0]
            if own.max() > found[TRAINING_MOLECULE]["scores"][i][0] - 1e-9:  # it may be known, too
                best = own.topk(min(generation.k, len(own)))
                scores[i] = best.values.tolist()
                graphs[i] = [[g.labels, g.edges] for g in named[best.indices.numpy()]]
    return found[FAMILIAR] | count_missed(scores, found[FAMILIAR]["truth"]) | {"graphs": graphs}


def count_missed(scores: list[list[float]], truth: list[float]) -> Row:
    """The scores of answers and of the truth, and how often the truth scores higher."""
    missed = sum(true > best[0] + 1e-9 for best, true in zip(scores, truth, strict=True))
    return {"scores": scores, "truth": truth, "missed": missed / len(truth)}


def generate_perfectly(generation: Generation, task: models.TextTask, seed: int, chosen: np.ndarray) -> Row:
    """The same by the search from the true coordinates: what the kernel and the search alone miss."""
    train, test = (task.data.molecules.graphs[rows] for rows in (task.data.train.rows, task.data.test.rows[chosen]))
    basis = sketch_basis(generation.kernel, train, generation.sketch, generator=Generator().manual_seed(seed))
    search = generation.list_searches(task, "projected")[SEARCH]
    found = search_all(search, EmbeddedOutputs(basis, train), basis.embed(test), test, generation.k, Stopwatch())
    return start_record() | {PERFECT: found}


def start_record() -> Row:
    return {"made": {"hardware": name_hardware(), "commit": read_commit(), "date": today()}}


def search_all(decoder: Decoder, known: EmbeddedOutputs, z: Tensor, truth: GraphBatch, k: int, clock: Stopwatch) -> Row:
    """The k best graphs for every row of z, in processes: much of a search is not compiled code."""
    psi, diag = (part.cpu().numpy() for part in known.coordinates())  # arrays that the processes share
    basis, z = known.basis.to("cpu"), z.cpu()
    fixed = basis.kernel, basis.anchors, basis.projection.numpy(), known.outputs, psi, diag, known.form
    with clock("decoding"):
        found = Parallel(n_jobs=-1)(
            delayed(search_some)(decoder, fixed, z[rows].numpy(), truth[rows.numpy()], k)
            for rows in torch.arange(len(z)).split(-(-len(z) // TASKS))
        )
    columns: Row = {name: [item for part in found for item in part[name]] for name in found[0]}
    scores = count_missed(columns["scores"], columns["truth"])
    return {
        "graphs": columns["graphs"],
        "seconds": dict(clock.seconds),
        "proved": sum(columns["proved"]) / len(z),
    } | scores


def search_some(
    decoder: Decoder, fixed: tuple[Any, ...], rows: np.ndarray, truth: GraphBatch, k: int
) -> dict[str, list[Any]]:
    """The graphs for some rows as plain lists, their scores and that of the truth, and whether none can be better."""
    torch.set_num_threads(1)
    kernel, anchors, projection, outputs, psi, diag, form = fixed
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to it
        projection, psi, diag, z = map(torch.from_numpy, (projection, psi, diag, rows))
    basis = SketchedBasis(kernel, anchors, None, projection)
    best = decoder.best(basis, z, EmbeddedOutputs(basis, outputs, True, (psi, diag), form), k)
    return {
        "graphs": [[[g.labels, g.edges] for g in GraphBatch.of(one.outputs)] for one in best],
        "scores": [one.scores.tolist() for one in best],
        "truth": basis.score(z, truth, decoder.scoring_rule()).diagonal().tolist(),
        "proved": decoder.prove(basis, z, torch.stack([one.scores[0] for one in best])).tolist(),
    }


def measure_molecules(answers: list[list[Any]], truth: list[str]) -> Row:
    """Validity, exact matches (of InChI) and similarities of the first molecule among each text's graphs.

    An answer that is no molecule counts as 0 everywhere, although published similarities leave those out.
    """
    from dsokr import chem  # RDKit is needed here only

    rows = []
    for graphs, true in zip(answers, truth, strict=True):
        texts = (chem.stereo_smiles(Graph(tuple(labels), tuple(map(tuple, edges)))) for labels, edges in graphs)
        first = next((text for text in texts if text is not None), None)
        rows.append({"validity": 0.0} if first is None else {"validity": 1.0} | compare(first, true))
    return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in ("validity", "exact", *SIMILARITIES)}


SIMILARITIES = ("maccs", "rdk", "morgan")


def compare(found: str, true: str) -> dict[str, float]:
    """Whether two SMILES are of one molecule, and the Tanimoto similarities of MolT5's evaluation."""
    chem = import_extra("rdkit.Chem", "chem")
    keys, data = import_extra("rdkit.Chem.MACCSkeys", "chem"), import_extra("rdkit.DataStructs", "chem")
    morgan = import_extra("rdkit.Chem.rdFingerprintGenerator", "chem").GetMorganGenerator(radius=2)
    with import_extra("rdkit.rdBase", "chem").BlockLogs():
        a, b = chem.MolFromSmiles(found), chem.MolFromSmiles(true)
        make = (keys.GenMACCSKeys, chem.RDKFingerprint, morgan.GetSparseCountFingerprint)
        similar = (data.TanimotoSimilarity(one(a), one(b)) for one in make)
        exact = chem.MolToInchi(a) == chem.MolToInchi(b)
    return {"exact": float(exact)} | dict(zip(SIMILARITIES, similar, strict=True))


def tabulate_generation(rows: list[Row]) -> list[Row]:
    """The published numbers, then ours."""
    own = [
        {"name": row["method"], "each": row["seconds"]["decoding"] / row["n_test"]} | row | row["metrics"]
        for row in rows
    ]
    return [*PUBLISHED, *own]
