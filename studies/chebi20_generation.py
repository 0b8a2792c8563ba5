"""From a description to a molecule that need not be in a list: part of the ChEBI-20 study.

A network learns coordinates in a basis of a graph kernel, from the training texts alone. The answer is searched among
all graphs whose atoms look like atoms of training molecules, from the best training molecules on. Its k best graphs are
kept in a file; RDKit turns them into SMILES in a second step, and the first that is a molecule is the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr import sketches
from dsokr.decoders import Candidates, Decoder, GraphSearch, LabelledGraphs
from dsokr.errors import import_extra
from dsokr.estimator import DSOKR
from dsokr.files import replace_file
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import FeatureKernel
from dsokr.losses import Loss
from dsokr.regressors import Neural, Training
from dsokr.rules import RULES, Rule
from studies import chebi20_models as models
from studies.results import Row, name_hardware, read_commit, today
from studies.study import Session, Stopwatch

PUBLISHED: tuple[Row, ...] = tuple(  # as their papers report
    {"name": f"{name} (its paper)", "exact": exact, "morgan": morgan, "validity": validity}
    for name, exact, morgan, validity in (
        ("MolT5 base", 0.081, 0.53, 0.77),
        ("MolT5 large", 0.311, 0.68, 0.91),
        ("BioT5", 0.413, 0.73, 1.0),
    )
)
COLUMNS = {
    "answer": "{name}",
    "encoder": "{encoder}",
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
TRAINING_MOLECULE, SEARCH, PERFECT = "best training molecule", "search", "search from true coordinates"


@dataclass(frozen=True)
class Generation:
    """The model and the search."""

    kernel: FeatureKernel = KERNEL
    sketch: sketches.SketchSpec = SKETCH
    loss: Loss = models.RANKED
    search: GraphSearch = DEEP
    n_test: int | None = None  # a random part of the test texts; None: all
    k: int = 5  # graphs that are kept for each text


def run_generation(
    generation: Generation, task: models.TextTask, training: Training, rate: float, seed: int, session: Session
) -> None:
    """Train, search, keep the graphs, and measure them."""
    key: Row = {"experiment": "chebi20", "encoder": task.encoder, "training_texts": task.data.training_texts}
    key |= {"n_train": len(task.data.train.texts), "kernel": str(generation.kernel), "sketch": str(generation.sketch)}
    key |= {"loss": models.describe(generation.loss), "rate": rate, "epochs": training.epochs, "seed": seed}
    chosen = choose_texts(generation, task)
    key |= {"n_test": len(chosen)}
    search = generation.search
    options = {"starts": search.starts, "beam": search.beam, "budget": search.budget, "pieces": search.pieces}
    keys = [key | {"method": TRAINING_MOLECULE}] + [key | {"method": m} | options for m in (SEARCH, PERFECT)]
    file = session.folder / "kept" / f"generated, {task.encoder}, {key['n_train']} texts, {training.epochs} epochs.json"

    def measure() -> Any:
        if not file.exists():
            found = generate(generation, task, training, rate, seed, chosen)
            with replace_file(file) as draft:
                Path(draft).write_text(json.dumps(found), encoding="utf-8")
        kept = json.loads(file.read_text(encoding="utf-8"))
        truth = [task.data.molecules.smiles[row] for row in task.data.test.rows[chosen]]
        for own in keys:
            part = kept[own["method"]]
            graphs = part["graphs"]
            if own["method"] == SEARCH:  # if none is a molecule, the answer is a training molecule
                graphs = [a + b for a, b in zip(graphs, kept[TRAINING_MOLECULE]["graphs"], strict=True)]
            metrics = measure_molecules(graphs, truth) | {"missed": part["missed"], "proved": part["proved"]}
            yield {"chosen": {"rule": kept["rule"]}, "metrics": metrics, "seconds": part["seconds"]} | kept["made"]

    session.results("generation").record_all(keys, measure)


def choose_texts(generation: Generation, task: models.TextTask) -> np.ndarray:
    count = len(task.data.test.texts)
    return np.sort(np.random.default_rng(0).permutation(count)[: generation.n_test])


def generate(
    generation: Generation, task: models.TextTask, training: Training, rate: float, seed: int, chosen: np.ndarray
) -> Row:
    """The k best graphs for every chosen test text, by every method, as plain lists."""
    graphs, data, clock = task.data.molecules.graphs, task.data, Stopwatch()
    regressor = Neural(task.network(rate), generation.loss, training)
    options: Row = {"decoder": Candidates("cosine"), "random_state": seed, "device": str(task.device)}
    model = DSOKR(generation.kernel, generation.sketch, regressor, **options)
    with clock("training"):
        model.fit(data.train.texts, graphs[data.train.rows], validation=(data.val.texts, graphs[data.val.rows]))
    rule = choose_rule(model, data.val.texts, graphs[data.val.rows])
    truth = graphs[data.test.rows[chosen]]
    z = model.coefficients([data.test.texts[i] for i in chosen])
    domain = LabelledGraphs.like(graphs[np.unique(data.train.rows)])
    search = replace(generation.search, moves=domain, rule=rule)
    methods: dict[str, tuple[Decoder, Tensor]] = {
        TRAINING_MOLECULE: (Candidates(rule), z),
        SEARCH: (search, z),
        PERFECT: (search, model.basis_.embed(truth)),
    }
    found: Row = {"rule": rule, "made": {"hardware": name_hardware(), "commit": read_commit(), "date": today()}}
    for name, (decoder, rows) in methods.items():
        with clock("decoding"):
            best = decoder.best(model.basis_, rows, model.known_, generation.k)
        scores = torch.stack([one.scores[0] for one in best])
        true = torch.cat([model.basis_.score(rows[i : i + 1], truth[i : i + 1], rule)[0] for i in range(len(best))])
        found[name] = {
            "graphs": [[[g.labels, g.edges] for g in as_list(one.outputs)] for one in best],
            "missed": (true > scores + 1e-9).double().mean().item(),
            "proved": decoder.prove(model.basis_, rows, scores).double().mean().item(),
            "seconds": dict(clock.seconds),
        }
    return found


def as_list(graphs: Any) -> list[Graph]:
    return list(GraphBatch.of(graphs))


def choose_rule(model: DSOKR, texts: list[str], truth: GraphBatch) -> Rule:
    """The rule whose best training molecules are most similar to the true ones, by the kernel, on validation."""
    z = model.coefficients(texts)

    def rate(rule: Rule) -> float:
        found = GraphBatch.of(Candidates(rule).decode(model.basis_, z, model.known_).outputs)
        pairs = (model.kernel(found[i : i + 1], truth[i : i + 1]) for i in range(len(truth)))
        return torch.cat(list(pairs)).mean().item()

    return max(RULES, key=rate)


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
