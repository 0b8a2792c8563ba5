"""The studies: each runs on a small task, learns, draws its table and figure, and computes nothing twice."""

import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joblib import parallel_config

from docs import render
from dsokr import DSOKR
from dsokr.compute import seeded
from dsokr.conformal import Calibration
from dsokr.errors import InputError, MissingExtraError
from dsokr.files import lock_folder
from dsokr.graphs import Graph, GraphBatch
from dsokr.metrics import edit_distance
from dsokr.regressors import Neural, Training
from dsokr.regressors.networks import CNN, MLP, CharTransformer, WordBag
from real_data import real_data
from studies import (
    __main__,
    chebi20,
    chebi20_models,
    coloring,
    fingerprint2graph,
    guarantees,
    label_ranking,
    massbank,
    multilabel,
    smi2mol,
    strings,
    synthetic,
    vectors,
)
from studies.chebi20_generation import PERFECT
from studies.data import molecules, ocr_letters
from studies.data.coloring import draw_maps
from studies.data.fingerprints import generate_fingerprints
from studies.data.massbank import generate_molecules
from studies.data.smi2mol import MoleculePairs, SMI2Mol
from studies.data.synthetic import LeastSquares
from studies.guarantees_tasks import Held, Scored, Task, hold_words
from studies.plots import pyplot, save_figure
from studies.results import Results, name_hardware, read_rows, write_table
from studies.study import Session, Study

chem = pytest.importorskip("dsokr.chem")
ROOT = Path(__file__).parents[1]
MASS = massbank.POOLS[0]


def silence(line: str) -> None: ...


@cache
def generate_split() -> SMI2Mol:
    """Molecules in place of QM9's."""
    graphs = molecules.generate(160, seed=1, max_atoms=5)
    pairs = MoleculePairs(chem.many_smiles(graphs), GraphBatch.of(graphs))
    return SMI2Mol(*(pairs.rows(np.arange(*part)) for part in ((0, 120), (120, 140), (140, 160))))


SMALL_TRANSFORMER = CharTransformer(layers=1, width=32, heads=4, dropout=0.0, longest=64)
TINY: dict[str, Any] = {
    "synthetic": replace(
        synthetic.QUICK,
        task=LeastSquares(n_train=400, n_val=100, n_test=100, input_dim=20, output_dim=30, rank=4),
        sizes=(2, 4, 12),
        replicates=1,
        rotated_from=30,
        training=replace(synthetic.QUICK.training, epochs=60, batch_size=32, progress=False),
    ),
    "vectors": replace(vectors.QUICK, replicates=1),
    "smi2mol": replace(
        smi2mol.QUICK,
        models=tuple(
            smi2mol.models.shrink(model, 40, 30, SMALL_TRANSFORMER, epochs=4, progress=False)
            for model in smi2mol.QUICK.models
        ),
        baselines=(smi2mol.models.SketchedRidgeBaseline(input_size=40, size=40, regularizations=(1e-4, 1e-2)),),
        sizes=(10, 40),
        kernel_size=40,
        n_train=120,
    ),
    "chebi20": replace(
        chebi20.QUICK,
        methods=tuple(chebi20.QUICK.methods[i] for i in (0, 3, 4)),
        ensembles=chebi20_models.select_ensembles(chebi20_models.WORDS, "ours, ensemble, cosine + tanimoto"),
        training=replace(chebi20.QUICK.training, progress=False),
        sizes=(5,),
        rich_sizes=(10,),
        n_train=100,
    ),
    "multilabel": replace(
        multilabel.QUICK, kernels=multilabel.QUICK.kernels[:1], training=replace(multilabel.QUICK.training, epochs=9)
    ),
    "label_ranking": replace(
        label_ranking.QUICK,
        methods=(
            *label_ranking.QUICK.methods[:4],
            replace(label_ranking.QUICK.methods[4], kernels=("Kemeny", "Lehmer")),
        ),
        repetitions=1,
    ),
    "strings": replace(strings.QUICK, splits=1, letters=CNN((8,), hidden=32), steps=100, choosing_steps=20),
    "guarantees": replace(guarantees.QUICK, divisions=3),
    "fingerprint2graph": replace(
        fingerprint2graph.QUICK,
        load=lambda folder: generate_fingerprints(300, max_atoms=5),
        network=lambda n: Neural(MLP((128,)), training=Training(epochs=30, batch_size=32, progress=False)),
        sizes=(150,),
        stacked=150,
    ),
    "coloring": (coloring.QUICK, coloring.QUICK_MEDIUM),
    "massbank": replace(
        massbank.QUICK,
        load=lambda folder: generate_molecules(180, 60),
        splits=("molecule", "mass 0"),
        size=60,
        training=replace(massbank.QUICK.training, epochs=5),
    ),
}
STUDIES: dict[str, Study] = {name: import_module(f"studies.{name}").STUDY for name in __main__.NAMES}


def run(name: str, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smi2mol, "load_smi2mol", lambda data, number: generate_split())
        few = {"width": 32, "buckets": 1 << 10}
        patch.setattr(chebi20_models, "WordBag", lambda **given: WordBag(**given | few))
        with parallel_config("sequential"):  # processes would take seconds to start
            for config in TINY[name] if isinstance(TINY[name], tuple) else (TINY[name],):
                STUDIES[name].run(config, Session(folder, say=silence))


@dataclass(frozen=True)
class Ran:
    study: Study
    folder: Path

    def rows(self, *columns: str) -> dict[Any, dict[str, Any]]:
        """The table by some of its columns."""
        table = self.study.tabulate(self.folder)
        return {tuple(row.get(c) for c in columns) if len(columns) > 1 else row[columns[0]]: row for row in table}

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.glob("*.jsonl")}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs a study once, on its tiny task."""

    @cache
    def ran(name: str) -> Ran:
        folder = tmp_path_factory.mktemp(name)
        run(name, folder)
        return Ran(STUDIES[name], folder)

    return ran


pytestmark = pytest.mark.filterwarnings("ignore:No training string", "ignore:The longest training string")


@pytest.mark.parametrize("name", STUDIES)
def test_a_second_run_computes_nothing(name, ran, monkeypatch):
    before = ran(name).files()
    monkeypatch.setattr(Results, "_append", lambda *a: pytest.fail("computed again"))
    run(name, ran(name).folder)
    assert ran(name).files() == before


@pytest.mark.parametrize("name", STUDIES)
def test_tables_and_figures_are_made_of_the_rows(name, ran, tmp_path):
    study, folder = ran(name).study, ran(name).folder
    rows = study.tabulate(folder)
    assert write_table(study.columns, rows).count("\n") == 1 + len(rows)
    image = study.draw(folder, tmp_path / "new" / "figure.png")
    assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 5_000
    assert not pyplot().get_fignums()


@pytest.mark.parametrize("name", ["fingerprint2graph", "coloring"])
def test_pages_are_filled_from_the_rows(name, ran):
    fields = getattr(render, f"describe_{name}")(ran(name).folder)
    page = (render.TEMPLATES / f"{name}.md").read_text(encoding="utf-8").format_map(fields)
    assert write_table(ran(name).study.columns, ran(name).study.tabulate(ran(name).folder)) in page
    assert "{" not in page and "nan" not in page and name_hardware() in page


def test_an_interrupted_run_is_resumed(ran, tmp_path):
    whole = read_rows(ran("multilabel").folder / "models.jsonl")
    for name, text in ran("multilabel").files().items():
        (tmp_path / name).write_text(text)
    lines = (tmp_path / "models.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "models.jsonl").write_text("".join(lines[:-3]) + lines[-3][:20])
    run("multilabel", tmp_path)
    again = read_rows(tmp_path / "models.jsonl")
    assert [row["metrics"]["f1"] for row in again] == pytest.approx([row["metrics"]["f1"] for row in whole])


def test_synthetic_shows_what_the_paper_shows(ran):
    rows, sizes = ran("synthetic").rows("model", "p"), TINY["synthetic"].sizes
    nn = rows["NN", None]
    assert nn["parameters"] == 20 * 30 + 30
    for name in synthetic.SKETCHES:
        curve = [rows[f"DSOKR, {name}", p] for p in sizes]
        assert curve[0]["mse"] > 10 * nn["mse"]  # fewer dimensions than the signal has
        assert [row["parameters"] for row in curve] == [p * 21 for p in sizes]
        assert curve[0]["mse"] > curve[1]["mse"]
        assert all(row["perfect_h"] <= 1.2 * row["mse"] for row in curve)
    assert abs(rows[f"DSOKR, {synthetic.ROTATED}", 4]["excess"]) < 0.1  # as many dimensions as the signal has


def test_any_vector_is_nearer_than_the_best_training_output(ran):
    rows = ran("vectors").rows("model")
    for kernel in ("Linear", "Gaussian"):
        assert rows[f"DSOKR, {kernel}, Gradient"]["mse"] < rows[f"DSOKR, {kernel}, Candidates"]["mse"]
    config = replace(vectors.QUICK, widths=(0.3, 1000.0))  # so narrow that no output is like another
    data = config.task.draw(torch.Generator().manual_seed(0))
    assert vectors.choose_width(config, data, "Gaussian", 0)[1] == 0.3


def test_misses_are_explained(ran):
    rows = read_rows(ran("smi2mol").folder / "models.jsonl")
    for m in (row["metrics"] for row in rows if row["decoder"] == "GraphSearch"):
        causes = (m[f"missed_by_{name}"] for name in ("network", "kernel", "search"))
        assert sum(causes) == pytest.approx(1 - m["exact"])


def test_molecules_are_found_by_the_search(ran):
    rows = ran("smi2mol").rows("name")
    listed, searched = (rows[f"DSOKR, sum of kernels, {name}"] for name in ("best rule", "GraphSearch"))
    assert listed["splits"] == 1 and listed["n_train"] == 120
    assert searched["exact"][0] >= listed["exact"][0]
    assert rows["SISOKR"]["ged"][0] > 0
    assert 0 < rows["best training molecule"]["ged"][0] <= listed["ged"][0]
    assert "| DSOKR (paper) | – | – | 1.951 ± 0.074 | 2.960 ± 0.079 | – |" in write_table(
        smi2mol.COLUMNS, rows.values()
    )
    written = ("baselines", "floor", "kernels", "models", "perfect_h", "predictions")
    assert set(ran("smi2mol").files()) == {f"{name}.jsonl" for name in written}


def test_graphs_are_found_from_fingerprints(ran):
    rows = ran("fingerprint2graph").rows("name", "n_train")
    graphs = TINY["fingerprint2graph"].load(None).graphs
    unrelated = edit_distance(graphs, graphs[::-1], edge_labels=False).mean().item()
    ours = [row for row in rows.values() if "bond orders" in row["name"]]
    assert len(ours) == 6 and all(row["valid"][0] == 1 and row["splits"] == 1 for row in ours)
    for row in ours:
        if "no bond orders" not in row["name"]:
            assert row["ged"][0] < 0.8 * unrelated and row["ged"][0] <= row["ged_edge_labels"][0]
            assert row["exact_edge_labels"][0] <= row["exact"][0]
    assert rows["network, no bond orders", 270]["exact"][0] > 0
    assert rows["ceiling: most frequent graph of a fingerprint", None]["exact"][0] > 0.9
    assert "| Any2Graph (reported) | – | 1 | 2.130 | 29.9% | – | – | – |" in write_table(
        fingerprint2graph.COLUMNS, rows.values()
    )


def test_stacks_and_single_regressors_differ_only_in_the_regressor(ran):
    rows = [row for row in read_rows(ran("fingerprint2graph").folder / "models.jsonl") if row["n_train"] == 150]
    same = [
        {k: v for k, v in row.items() if k in ("task", "kernel", "sketch", "dim", "seed", "n_test")} for row in rows
    ]
    assert len(rows) == 4 and all(row == same[0] for row in same)
    assert len({row["regressor"] for row in rows}) == 4


def test_molecules_are_told_from_other_graphs():
    bonds = {"carbon dioxide": (8, 6, 8), "too many": (8, 8, 8)}
    graphs = [Graph(labels, ((0, 1, 2), (1, 2, 2))) for labels in bonds.values()]
    ammonium = Graph((7, 6, 6, 6, 6), tuple((0, i, 1) for i in range(1, 5)))
    assert fingerprint2graph.measure_valid(GraphBatch.of([*graphs, ammonium, Graph((6,))])) == 0.75


def test_maps_are_read_from_images(ran):
    rows = ran("coloring").rows("data", "name")
    chance = 0.25**2  # two colours of a map of two regions
    for config in (coloring.QUICK, coloring.QUICK_MEDIUM):
        for kernel in config.kernels:
            for decoder in config.decoders:
                row = rows[config.data, f"{kernel}, {decoder}"]
                assert row["right_size"][0] > 1 / 3 or row["exact"][0] > chance
    assert max(row["exact"][0] for (_, name), row in rows.items() if "reported" not in name) > 2 * chance
    assert rows["small", "Any2Graph (reported)"]["exact"] == (0.85, 0.0)


@pytest.mark.parametrize("make", [coloring.QUICK.network, coloring.QUICK_MEDIUM.network])
def test_a_turned_map_has_the_same_coordinates(make):
    images = torch.from_numpy(draw_maps(6, (2, 4), seed=0).images).float()
    with seeded(0):
        network = make(5)
        network(images)  # running statistics
    network.eval()
    first = network(images)
    for position in range(8):
        torch.testing.assert_close(network(coloring.turn(images, position)), first, rtol=1e-4, atol=1e-5)
    assert len({tuple(coloring.turn(images[:1], k).flatten().tolist()) for k in range(8)}) == 8


def test_texts_are_ranked_under_every_convention_for_ties(ran):
    rows = read_rows(ran("chebi20").folder / "models.jsonl")
    assert {row["method"] for row in rows} == {"regression", "ours, cosine + tanimoto", "SISOKR"}
    for row in rows:
        m = row["metrics"]
        assert m["optimistic_mrr"] >= m["mrr"] >= m["pessimistic_mrr"] > 0
        assert 0 < m["share_of_worst_ten"] < 1 <= m["median_rank"]
        assert row["encoder"] == "bag of words" and row["training_texts"] == "generated"
        assert m["test_pool_mrr"] >= m["mrr"] and m["test_pool_optimistic_mrr"] >= m["test_pool_pessimistic_mrr"] > 0
    table = ran("chebi20").rows("name")
    assert table["ours, ensemble, cosine + tanimoto"]["models"] == 2 and table["regression"]["seeds"] == 2
    assert {row["n_train"] for row in rows} == {50, 100}  # the learning curve
    kept = [file.suffix for file in (ran("chebi20").folder / "kept").iterdir()]
    assert sorted(kept) == [*[".json"] * 2, *[".safetensors"] * 2]  # graphs, the members of the ensemble, and no others


def test_molecules_are_generated_from_descriptions(ran):
    rows = {row["method"]: row["metrics"] for row in read_rows(ran("chebi20").folder / "generation.jsonl")}
    listed, searched, perfect = (rows[name] for name in ("best training molecule", "search", PERFECT))
    assert listed["validity"] == searched["validity"] == 1
    assert searched["missed"] <= listed["missed"]
    assert perfect["morgan"] > max(listed["morgan"], searched["morgan"])


def test_every_multilabel_method_learns_and_the_best_on_validation_is_selected(ran):
    (_, Y), (_, Y_test) = TINY["multilabel"].data["generated"](None)
    sets, counts = np.unique(Y, axis=0, return_counts=True)
    frequent = multilabel.f1(np.tile(sets[counts.argmax()], (len(Y_test), 1)), Y_test)
    table = ran("multilabel").rows("model")
    assert all(row["f1"] > frequent + 0.2 and row["runs"] == 2 for row in table.values())
    rows = read_rows(ran("multilabel").folder / "models.jsonl")
    for method, configurations in (("dsokr", 4), ("sisokr", 2), ("bce", 2)):
        own = [row for row in rows if row["method"] == method]
        selected = [row for row in own if row["selected"]]
        assert len(own) == 2 * configurations and len(selected) == 2
        assert selected[0]["metrics"]["val_f1"] == max(row["metrics"]["val_f1"] for row in own)
    tried = [r for r in read_rows(ran("multilabel").folder / "validation.jsonl") if r["method"] == "bce"]
    best = max(tried, key=lambda row: row["metrics"]["f1"])
    assert {row["encoder"] for row in rows if row["method"] == "bce"} == {best["encoder"]}


def test_learned_rankings_beat_the_consensus(ran):
    rows = {model: row["generated"][0] for model, row in ran("label_ranking").rows("model").items()}
    consensus = rows["consensus ranking, Kemeny"]
    assert consensus < 0.3  # no label is preferred on the whole
    for model in ("linear ridge, Kemeny", "kernel ridge (IOKR), Kemeny", "random forest, Kemeny", "DSOKR, Kemeny"):
        assert rows[model] > consensus + 0.3
    assert min(rows["DSOKR, Lehmer"], rows["DSOKR, Kemeny, training rankings only"]) > 0.7


def test_only_the_search_finds_new_words(ran):
    rows = ran("strings").rows("protocol", "model")
    spelled, likeliest, listed, searched = strings.METHODS.values()
    assert len(rows) == 8
    for model in (likeliest, listed):
        assert rows["known words", model]["word_accuracy"][0] > 0.9
        assert rows["new words", model]["word_accuracy"][0] == 0
    for protocol in ("known words", "new words"):
        assert rows[protocol, spelled]["word_accuracy"][0] > 0.9  # these letters are easy
        assert rows[protocol, searched]["word_accuracy"][0] > 0.3
    assert rows["known words", spelled]["test_words_in_training"][0] == 1
    assert rows["new words", spelled]["test_words_in_training"][0] == 0
    assert strings.describe_setting({"n": [1, 2], "words": True, "rearranged": 2}) == (
        "NGram((1, 2)), words and rearranged letters"
    )


def draw_pairs(n: int, outputs: int, seed: int) -> Held:
    """Pairs whose scores are, up to a temperature of 0.5, the logarithms of probabilities: nothing can do better."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.ones(n, 1, dtype=torch.float64)
    logits = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    logits *= 4 * torch.rand(n, 1, generator=generator)  # some inputs are easier than others
    at = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)
    own, listed = 0.5 * logits.gather(1, at)[:, 0], 0.5 * logits.sort(descending=True).values
    pairs = Scored(z, listed, own, own == listed[:, 0])
    return Held(pairs, outputs, True, 0, (torch.arange(n // 2), pairs.rows(torch.arange(n // 2, n))))


def test_spectra_find_molecules_and_blind_rules_do_not(ran):
    """Among candidates that were never trained on; in other pools a rule that sees no spectrum does far better."""
    rows = ran("massbank").rows("split", "pool", "method")
    hits = {method: row["hits@1"] for (split, pool, method), row in rows.items() if (split, pool) == ("mass", MASS)}
    blind = {method: values for method, values in hits.items() if method.startswith("blind")}
    assert len(blind) == 4 and max(values[2] for values in blind.values()) < hits["DSOKR, together, cosine"][1]
    leaked = rows["molecule", MASS, "blind: new, similar on average"]["hits@1"][0]
    assert leaked > max(values[0] for values in blind.values())
    both = {rule: hits[f"SISOKR, {rule}"] for rule in ("kernel", "cosine")}
    difference = massbank.compare(ran("massbank").folder, MASS, "mass", "SISOKR, cosine", "SISOKR, kernel")
    assert difference[0] == pytest.approx(both["cosine"][0] - both["kernel"][0])


def test_no_candidate_of_the_same_mass_was_trained_on():
    data = generate_molecules(200, 50)
    train, test = massbank.split(data, "mass 0")
    fold = massbank.Fold(data, massbank.QUICK, train, test)
    assert len(train) + len(test) == 200 and not set(train) & set(test)
    assert fold.is_asked(MASS).any() and not set(np.concatenate(fold.pools[MASS])) & set(train)
    larger = fold.pools["MassBank + ChEBI-20, mass"]
    assert all(set(few) <= set(many) for few, many in zip(fold.pools[MASS], larger, strict=True))
    assert sum(map(len, larger)) > sum(map(len, fold.pools[MASS]))


def test_scaffolds_are_not_shared_by_training_and_test_molecules():
    data = generate_molecules(200, 0)
    train, test = massbank.split(data, "scaffold")
    assert 0 < len(test) <= 40 and not set(data.scaffolds[train]) & set(data.scaffolds[test])


def test_bootstrap_intervals_are_those_of_the_binomial():
    values = np.arange(1000) < 300
    mean, low, high = massbank.bootstrap(values)
    assert mean == 0.3 and (low, high) == pytest.approx((0.3 - 0.0284, 0.3 + 0.0284), abs=0.004)


def test_guarantees_hold_for_true_probabilities(tmp_path):
    config = replace(guarantees.FULL, tasks=(Task("drawn", "numbers", lambda _: draw_pairs(2000, 30, 0), "none"),))
    guarantees.run(config, Session(tmp_path, say=silence))
    for row in guarantees.tabulate(tmp_path):
        (found, sd), (theory, theory_sd) = row["found_or_empty"], row["theory"]
        assert abs(found - theory) < 4 * theory_sd / 20**0.5 and 0.5 < sd / theory_sd < 1.6
        assert row["Conformal"] < min(row["top k"], row["APS"]) and row["Conformal"] < 20
    answers, shifts = (read_rows(tmp_path / f"{name}.jsonl") for name in ("answers", "shifts"))
    assert all(row["metrics"]["ece"] < 0.06 and row["metrics"]["ece_by_chance"] < 0.04 for row in answers)
    assert all(row["metrics"]["error"] < row["max_error"] and row["metrics"]["exceeds"] <= 0.3 for row in answers)
    assert answers[-1]["metrics"]["answered"] > 0.05
    assert min(row["metrics"]["holds"] for row in shifts) == 1  # there is none


def test_sets_of_every_kind_by_hand():
    listed = torch.tensor([[3.0, 2.0, 2.0, 1.0]] * 5, dtype=torch.float64)
    own = torch.tensor([3.0, 2.0, 1.0, 0.5, 3.5], dtype=torch.float64)  # the fourth is not listed
    pairs = Scored(torch.ones(5, 1), listed, own, own == 3)
    assert pairs.places().tolist() == [1, 3, 4, math.inf, 1]
    assert guarantees.find_quantile(torch.tensor([4.0, 1.0, 3.0, 2.0]), 0.6) == 3
    calibration = Calibration(1.0, False, torch.eye(2), {"": torch.arange(5.0)}, torch.ones(1), torch.ones(1) > 0)
    division = guarantees.Division(calibration, pairs, pairs, 4)
    contained, sizes = division.contains_top(0.5)
    assert contained.tolist() == [True, True, False, False, True] and set(sizes.tolist()) == {3}
    contained, sizes = division.contains_adaptive(0.5)
    assert contained.tolist() == [True, True, False, False, True] and set(sizes.tolist()) == {3}
    assert division.contains_adaptive(0.3)[1].tolist() == [1] * 5


def test_pairs_held_out_are_kept(tmp_path):
    held = draw_pairs(40, 5, 1)
    held.save(tmp_path / "new" / "pairs.safetensors")
    again = Held.load(tmp_path / "new" / "pairs.safetensors")
    assert (again.best, again.complete, again.n_train) == (5, True, 0)
    assert again.pairs.listed.equal(held.pairs.listed) and again.shift[1].own.equal(held.shift[1].own)
    replace(held, shift=None).save(tmp_path / "pairs.safetensors")
    assert Held.load(tmp_path / "pairs.safetensors").shift is None


def test_words_are_searched_or_listed():
    words, config = ocr_letters.generate(copies=6), replace(strings.QUICK, steps=60, letter_steps=60)
    for is_list in (True, False):
        held = hold_words(words, config, is_list, most=30)
        assert held.complete == is_list and held.n_train == 90 and len(held.pairs.z) == 90
        assert held.pairs.right.double().mean() > 0.3
        assert (held.pairs.listed[:, 0] >= held.pairs.own - 1e-9).double().mean() > 0.95
        assert held.shift[1].right.double().mean() <= held.pairs.right.double().mean()


NOT_RUN = {
    "chebi20": 14,  # generation by parts of words, seeds of baselines, one long training, an ensemble checked anew
}
DATA = {
    "smi2mol": "qm9",
    "chebi20": "chebi20",
    "multilabel": "multilabel",
    "strings": "ocr_letters",
    "guarantees": "massbank",
    "fingerprint2graph": "qm9",
}


SLOW = ("smi2mol", "chebi20", "fingerprint2graph")  # read all of their data


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in STUDIES],
)
def test_the_published_results_are_not_computed_again(name, monkeypatch):
    """Whatever changes in a study must not change the keys of rows that took hours to compute."""
    missing, find = {}, Results.find

    def log(results: Results, key: dict[str, Any]) -> dict[str, Any]:
        row = find(results, key)
        if row is None:
            missing[results.path.name, json.dumps(key)] = key
        return row or key | {"metrics": defaultdict(float), "chosen": {}}

    monkeypatch.setattr(Results, "find", log)
    monkeypatch.setattr(Results, "_append", lambda *a: pytest.fail("computed again"))
    monkeypatch.setattr(LeastSquares, "draw", lambda *a: type("Drawn", (), {"train": (None, None)}))
    data = None if name in ("synthetic", "vectors", "coloring") else real_data(DATA.get(name, name))
    for size in ("full", "reduced"):
        folder = ROOT / "results" / STUDIES[name].folder(size)
        if folder.exists():
            for config in STUDIES[name].sizes[size]:
                STUDIES[name].run(config, Session(folder, data, say=silence))
    assert len(missing) == NOT_RUN.get(name, 0), list(missing)[:3]


def test_results_survive_a_line_cut_short(tmp_path):
    path = tmp_path / "r.jsonl"
    said: list[str] = []
    Results(path, said.append).record({"seed": 0}, lambda: {"metrics": {"mse": 1.0}})
    assert said == ["r: seed 0: mse 1"]
    path.write_text(path.read_text() + '{"seed": 1, "metr')
    assert [row["seed"] for row in read_rows(path)] == [0] == [row["seed"] for row in Results(path).rows]
    assert path.read_text().endswith('"metr')  # reading writes nothing
    Results(path).record({"seed": 1}, lambda: {"metrics": {"mse": 2.0}})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["metrics"]["mse"] for row in rows] == [1.0, 2.0]
    assert {"hardware", "commit", "date"} <= set(rows[0])
    path.write_text('{"seed": 0}\n{"seed": 1}')  # its end was not written
    results = Results(path)
    for value in (2.0, 3.0):
        assert results.record({"seed": 1}, lambda value=value: {"metrics": {"mse": value}})["metrics"] == {"mse": 2.0}
    path.write_text("{}\nnot json\n")
    with pytest.raises(InputError, match="is damaged"):
        read_rows(path)


def test_rows_are_measured_together_if_any_is_missing(tmp_path):
    results, measured = Results(tmp_path / "r.jsonl"), []

    def measure():
        for value in (1.0, 2.0):
            measured.append(value)
            yield {"metrics": {"mse": value}}

    keys = [{"seed": 0}, {"seed": 1}]
    for _ in range(2):
        assert [row["metrics"]["mse"] for row in results.record_all(keys, measure)] == [1.0, 2.0]
    assert measured == [1.0, 2.0]


def test_columns_without_values_are_left_out():
    columns = {"a": "{a}", "b": "{b:.1%}", "c": lambda row: row["c"]}
    assert write_table(columns, [{"a": 1, "b": 0.5}, {"a": 2}]) == "| a | b |\n|---|---|\n| 1 | 50.0% |\n| 2 | – |"


def test_multilabel_data_sets_are_shown_when_every_method_was_tested(tmp_path):
    def row(data: str, method: str, score: float, selected: bool = True) -> str:
        metrics = {"f1": score, "exact": 0.25, "val_f1": score}
        which = {"data": data, "method": method, "decoder": "LabelSet", "kernel": "Tanimoto()", "selected": selected}
        return json.dumps(which | {"metrics": metrics}) + "\n"

    rows = [row("bibtex", method, 0.5 - i / 10) for i, method in enumerate(("dsokr", "sisokr", "bce"))]
    rows += [row("corel5k", "dsokr", 0.3), row("corel5k", "sisokr", 0.3, selected=False)]
    (tmp_path / "models.jsonl").write_text("".join(rows))
    lines = write_table(multilabel.COLUMNS, multilabel.tabulate(tmp_path)).splitlines()
    assert lines[2] == "| bibtex | DSOKR, Tanimoto, LabelSet * | 0.500 ± 0.000 | 25.0% | 0.500 | 1 |"
    assert "| bibtex | IOKR (published) | 0.449 | – | – | – |" in lines
    assert not any("corel5k" in line for line in lines)


def test_the_table_of_rankings_has_a_column_for_every_data_set(tmp_path):
    def row(dataset: str, method: str, taus: list[float], decoder: str = "Kemeny") -> str:
        which = {"dataset": dataset, "method": method, "kernel": "Kemeny", "decoder": decoder}
        return json.dumps(which | {"metrics": {"by_fold": taus}}) + "\n"

    rows = [row("wine", "dsokr", [0.9, 1.0]), row("wine", "consensus", [0.2, 0.4]), row("glass", "dsokr", [0.8, 0.8])]
    (tmp_path / "models.jsonl").write_text("".join([*rows, row("sushi", "dsokr", [0.5, 0.7], "Candidates")]))
    lines = write_table(label_ranking.COLUMNS, label_ranking.tabulate(tmp_path)).splitlines()
    assert lines[0] == "| method, kernel | glass | wine | sushi |"
    assert lines[2:] == [
        "| consensus ranking, Kemeny | – | 0.300 ± 0.141 | – |",
        "| DSOKR, Kemeny | 0.800 ± 0.000 | 0.950 ± 0.071 | – |",
        "| DSOKR, Kemeny, training rankings only | – | – | 0.600 ± 0.141 |",
    ]


def test_a_study_from_the_command_line(ran, tmp_path, capfd):
    folder = tmp_path / "vectors-quick"
    folder.mkdir()
    rows = ran("vectors").files()["models.jsonl"]
    (folder / "models.jsonl").write_text(rows + rows.replace('"seed": 0', '"seed": 1'))
    options = ["vectors", "--quick", "--results", str(tmp_path), "--device", "cpu"]
    __main__.main([*options, "--json"])
    answer = json.loads(capfd.readouterr().out)
    assert [row["model"] for row in answer["rows"]] == list(ran("vectors").rows("model"))
    assert Path(answer["figure"]) == folder / "figure.png" and (folder / "figure.png").exists()
    __main__.main([*options, "--figure", str(tmp_path / "f.png")])
    assert "| DSOKR, Gaussian, Gradient |" in capfd.readouterr().out and (tmp_path / "f.png").exists()
    with lock_folder(folder, "python -m studies"), pytest.raises(SystemExit, match="is being written by another"):
        __main__.main(options)
    with pytest.raises(SystemExit, match="Error: .*is missing. Get it from"):
        __main__.main(["strings", "--data-dir", str(tmp_path), "--results", str(tmp_path)])


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("size", ["full", "reduced", "quick"])
def test_every_size_runs_its_own_configurations(name, size, tmp_path, monkeypatch):
    configurations = []
    study = replace(STUDIES[name], run=lambda configuration, session: configurations.append(configuration))
    study.execute(size, Session(tmp_path / "results"))
    module = import_module(f"studies.{name}")
    assert configurations[0] == getattr(module, size.upper()) and len(configurations) == len(study.sizes[size])


def test_figures_are_closed(tmp_path):
    assert save_figure(pyplot().figure(), tmp_path / "new" / "f.png").read_bytes().startswith(b"\x89PNG")
    assert not pyplot().get_fignums()


def test_the_demo_writes_a_report_and_a_model(tmp_path, capfd):
    from studies import demo

    __main__.main(["demo", "--quick", "--out", str(tmp_path), "--json"])
    out, progress = capfd.readouterr()
    made = json.loads(out)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1 and page.count("<svg") == 30 and "http://localhost" not in page
    rows = {row["method"]: row for row in made["rows"]}
    assert all(name in page and 0 < row["ged"] <= row["ged_edge_labels"] for name, row in rows.items())
    best = rows.pop("best training molecule there is")["ged_edge_labels"]
    assert all(row["ged_edge_labels"] >= best for name, row in rows.items() if name != demo.FROM_ALL)
    assert DSOKR.load(tmp_path / "model").predict(["CCO", "CC"])[0].labels
    assert "300 molecules" in progress and f"sketch of {made['size']} " in progress


@pytest.mark.slow
def test_the_demo_beats_any_list(tmp_path):
    from studies import demo

    rows = {row["method"]: row for row in demo.run(tmp_path)["rows"]}
    ours = rows.pop(demo.FROM_ALL)
    assert ours["exact"] > 0.5
    assert all(ours["ged_edge_labels"] < row["ged_edge_labels"] and row["exact"] == 0 for row in rows.values())


def test_the_demo_compares_with_the_training_molecules():
    from studies import demo

    split = demo.generate_split(demo.QUICK, seed=1)
    parts = (split.train, split.val, split.test)
    smiles = [text for part in parts for text in part.smiles]
    assert [len(part.smiles) for part in parts] == [300, 40, 40]
    assert len(set(smiles)) == len(smiles) == len(set(chem.canonical(smiles)))
    assert [graph for part in parts for graph in part.graphs] == chem.graphs(smiles)
    known, some = split.train.graphs[:60], split.test.graphs[:3]
    found = edit_distance(demo.find_nearest(some, known, among=60), some)
    assert found.tolist() == [edit_distance(graph, known).min() for graph in some]
    few = split.train.rows(np.arange(7))
    doubled = MoleculePairs([text + text for text in few.smiles] + few.smiles, split.train.graphs[np.r_[7:14, 0:7]])
    assert list(demo.predict_nearest_smiles(doubled, few.smiles)) == list(few.graphs)


@pytest.mark.parametrize(("missing", "extra"), [("matplotlib.pyplot", "plots"), ("rdkit", "chem")])
def test_the_demo_misses_an_extra_before_it_trains(missing, extra, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    if missing == "rdkit":
        monkeypatch.delattr("dsokr.chem")
        monkeypatch.delitem(sys.modules, "dsokr.chem")
    monkeypatch.delitem(sys.modules, "studies.demo", raising=False)
    monkeypatch.setattr(molecules, "generate", lambda *a, **k: pytest.fail("went on"))
    with pytest.raises(MissingExtraError, match=rf"dsokr\[{extra}\]"):
        import_module("studies.demo").run(tmp_path)


def test_baselines_with_other_parameters_are_others(tmp_path):
    for size in (20, 30, 20):
        baseline = smi2mol.models.SketchedRidgeBaseline(input_size=40, size=size, regularizations=(1e-4,))
        smi2mol.run_baseline(TINY["smi2mol"], baseline, generate_split(), 1, Session(tmp_path, say=silence))
    assert [row["m"] for row in read_rows(tmp_path / "baselines.jsonl")] == [20, 30]


def test_sketches_are_never_larger_than_the_data():
    span = smi2mol.draw_span(smi2mol.models.KERNELS["WL-VH"], generate_split(), 10_000, Session(Path()))
    assert len(span.gram) == 120
