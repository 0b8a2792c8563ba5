import json
import sys
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Generator

from dsokr import chem
from studies.baselines import Regression
from studies.data import scenes
from studies.data.synthetic import LeastSquares
from dsokr.errors import InputError, MissingExtraError
from dsokr.estimator import DSOKR
from studies import demo, own_outputs, synthetic
from studies.__main__ import EXPERIMENTS, Asked
from studies.results import Results, read_rows
from dsokr.commands.html import Report
from dsokr.files import sole_writer
from dsokr.losses import Squared
from dsokr.metrics import edit_distance
from dsokr.regressors.networks import MLP
from dsokr.plotting import pyplot, saved
from dsokr.regressors.training import Pairs, Training, train

CPU = torch.device("cpu")
TINY = replace(
    synthetic.QUICK,
    task=LeastSquares(n_train=400, n_val=100, n_test=100, input_dim=20, output_dim=30, rank=4),
    sizes=(2, 4, 12),
    replicates=1,
    rotated_from=30,
    training=replace(synthetic.QUICK.training, epochs=60, batch_size=32),
)


def test_task_is_the_papers():
    """Signal in d dimensions, noise of the given variance in all, inputs with the given covariance."""
    task = LeastSquares(n_train=20_000, n_val=10, n_test=10, input_dim=30, output_dim=40, rank=5, noise=0.01)
    X, Y = task.draw(Generator().manual_seed(0)).train
    spectrum = torch.linalg.eigvalsh(X.double().T @ X.double() / len(X)).flip(0)
    torch.testing.assert_close(spectrum, torch.arange(1, 31).double().pow(-0.5), rtol=0.06, atol=0.01)
    outputs = torch.linalg.eigvalsh(Y.T @ Y / len(Y)).flip(0)
    assert outputs[4] > 1
    torch.testing.assert_close(outputs[5:], torch.full((35,), 0.01).double(), rtol=0.15, atol=0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    synthetic.run(TINY, folder, CPU, say=lambda line: None)
    return folder


def test_synthetic_shows_what_the_paper_shows(tiny):
    rows = {(row["model"], row.get("p")): row for row in synthetic.table(tiny)}
    nn = rows["NN", None]
    assert nn["parameters"] == 20 * 30 + 30
    for name in synthetic.SKETCHES:
        curve = [rows[f"DSOKR, {name}", p] for p in TINY.sizes]
        assert curve[0]["mse"] > 10 * nn["mse"]  # fewer dimensions than the signal has
        assert [row["parameters"] for row in curve] == [p * 21 for p in TINY.sizes]
        assert curve[0]["mse"] > curve[1]["mse"]
        assert all(row["perfect_h"] <= 1.2 * row["mse"] for row in curve)
    assert abs(rows[f"DSOKR, {synthetic.ROTATED}", 4]["excess"]) < 0.1  # as many dimensions as the signal has


def test_a_second_run_computes_nothing(tiny, monkeypatch):
    before = {path.name: path.read_text() for path in tiny.glob("*.jsonl")}
    monkeypatch.setattr(synthetic, "train", lambda *a, **k: pytest.fail("trained again"))
    synthetic.run(TINY, tiny, CPU, say=lambda line: None)
    assert {path.name: path.read_text() for path in tiny.glob("*.jsonl")} == before


def test_figure_is_drawn(tiny, tmp_path):
    image = synthetic.figure(tiny, tmp_path / "figure.png")
    assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 10_000


def test_side_by_side_is_the_same_as_alone():
    """Models trained as one perceptron get the weights that each gets alone, from the same start and batches."""
    g = Generator().manual_seed(0)
    X, A, B = torch.randn(300, 6, generator=g), torch.randn(300, 2, generator=g), torch.randn(300, 3, generator=g)
    zeros = torch.zeros(300)
    options = Training(epochs=4, batch_size=32, learning_rate=0.01, schedule="linear", patience=None)
    both = Pairs(X, torch.cat([A, B], dim=1), zeros)
    together = synthetic.perceptron(both, seed=0)
    start = {name: w.clone() for name, w in together.state_dict().items()}
    best = synthetic.BestOfEach([slice(0, 2), slice(2, 5)], both)
    train(together, both, both, Squared(), replace(options, trainer={"callbacks": [best]}), seed=0, device=CPU)
    for part, targets in ((slice(0, 2), A), (slice(2, 5), B)):
        alone = synthetic.perceptron(Pairs(X, targets, zeros), seed=1)
        alone.load_state_dict({name: w[part] for name, w in start.items()})
        train(alone, Pairs(X, targets, zeros), Pairs(X, targets, zeros), Squared(), options, seed=0, device=CPU)
        torch.testing.assert_close(alone[-1].weight, best.weight[part], rtol=1e-4, atol=1e-6)


def test_results_survive_a_line_cut_short(tmp_path):
    path = tmp_path / "r.jsonl"
    results = Results(path)
    results.record({"seed": 0}, lambda: {"metrics": {"mse": 1.0}})
    path.write_text(path.read_text() + '{"seed": 1, "metr')
    assert [row["seed"] for row in read_rows(path)] == [0]
    Results(path).record({"seed": 1}, lambda: {"metrics": {"mse": 2.0}})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["metrics"]["mse"] for row in rows] == [1.0, 2.0]
    assert {"hardware", "commit", "date"} <= set(rows[0])
    path.write_text("{}\nnot json\n")
    with pytest.raises(InputError, match="line 2, is not JSON"):
        read_rows(path)


def test_reading_results_writes_nothing(tmp_path):
    """A report beside a running experiment sees a line before it is whole."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"seed": 0}\n{"seed": 1, "metr')
    assert read_rows(path) == Results(path).rows == [{"seed": 0}]
    assert path.read_text() == '{"seed": 0}\n{"seed": 1, "metr'


def test_a_line_cut_short_is_all_that_is_replaced(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"seed": 0}\n{"seed": 1}')  # not even its end was written
    results = Results(path)
    assert results.add({"seed": 1}, {"metrics": {"mse": 2.0}})["metrics"] == {"mse": 2.0}
    assert results.add({"seed": 1}, {"metrics": {"mse": 3.0}})["metrics"] == {"mse": 2.0}  # known already
    assert [row.get("metrics") for row in read_rows(path)] == [None, {"mse": 2.0}]


def test_an_experiment_has_one_writer(tmp_path):
    asked = Asked("quick", tmp_path, None, None, CPU, lambda line: None)
    said = "vectors-quick is being written by another `dsokr reproduce`"
    with sole_writer(asked.folder("vectors"), "dsokr reproduce"), pytest.raises(InputError, match=said):
        EXPERIMENTS["vectors"](asked)


def test_figures_are_closed(tmp_path):
    plt = pyplot()
    before = plt.get_fignums()
    own_outputs.check_picture(tmp_path / "f.png")
    with pytest.raises(InputError, match="must be one of"):
        own_outputs.check_picture(tmp_path / "f.docx")
    assert saved(plt.figure(), tmp_path / "new" / "f.png").read_bytes().startswith(b"\x89PNG")
    assert plt.get_fignums() == before


def test_scenes_are_seeded_and_plain():
    a, b, c = scenes.generate(20, seed=0), scenes.generate(20, seed=0), scenes.generate(20, seed=1)
    np.testing.assert_array_equal(a.images, b.images)
    assert not np.array_equal(a.labels, c.labels)
    assert a.images.min() >= 0 and a.images.max() <= 1
    assert set(a.labels.sum(axis=1)) <= {1, 2, 3, 4}


def test_demo(tmp_path):
    told = []
    outcome = demo.run(tmp_path, demo.QUICK, say=told.append)
    page = outcome.report.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2 and "http" not in page
    assert all(row.method in page and 0 < row.ged <= row.ged_edge_labels for row in outcome.rows)
    *others, best = outcome.rows
    assert all(row.ged_edge_labels >= best.ged_edge_labels for row in others if row.method != demo.FROM_ALL)
    assert DSOKR.load(tmp_path / "model").predict(["CCO", "CC"])[0].labels
    assert "300 molecules" in told[0] and f"sketch of {outcome.size} " in told[1]


@pytest.mark.slow
def test_the_demo_beats_any_list(tmp_path):
    rows = {row.method: row for row in demo.run(tmp_path).rows}
    ours = rows.pop(demo.FROM_ALL)
    assert ours.exact > 0.5
    assert all(ours.ged_edge_labels < row.ged_edge_labels and row.exact == 0 for row in rows.values())


def test_demo_molecules_are_different_and_what_their_smiles_mean():
    parts = demo.generated(demo.QUICK, seed=1)
    smiles = [text for part in parts for text in part.smiles]
    assert [len(part.smiles) for part in parts] == [300, 40, 40]
    assert len(set(smiles)) == len(smiles) == len(set(chem.canonical(smiles)))
    assert [graph for part in parts for graph in part.graphs] == chem.graphs(smiles)


def test_demo_measures_edits():
    alcohol, aldehyde = chem.graph("CO"), chem.graph("C=O")
    row = demo.measured("", [alcohol, aldehyde], [aldehyde, aldehyde], 0.0)
    assert (row.ged, row.ged_edge_labels, row.exact) == (0, 0.5, 0.5)


def test_demo_looks_among_the_training_molecules():
    train, _, test = demo.generated(demo.QUICK, seed=0)
    known, some = train.graphs, test.graphs[:5]
    found = edit_distance(demo.nearest_to(some, known, among=len(known)), some)
    assert found.tolist() == [edit_distance(graph, known).min() for graph in some]
    again = demo.Pairs([text + text for text in train.smiles[:7]] + train.smiles[:7], known[7:14] + known[:7])
    assert demo.with_nearest_smiles(again, demo.Pairs(train.smiles[:7], [])) == known[:7]


def test_report_escapes(tmp_path):
    report = Report("a < b", "lead")
    report.table(["x"], [["<script>"]], ours="")
    assert "<script>" not in report.write(tmp_path / "r.html").read_text()


def test_plain_regression_learns():
    X = np.random.default_rng(0).normal(size=(300, 3))
    Y = X @ np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]])
    model = Regression(MLP(()), Training(epochs=60, learning_rate=0.05, batch_size=64), random_state=0, device="cpu")
    assert model.fit(X[:200], Y[:200], validation=(X[200:], Y[200:])).score(X[200:], Y[200:]) > 0.99
    with pytest.raises(InputError, match="Got 3 inputs and 2 outputs"):
        model.fit(X[:3], Y[:2])
    assert model.fit(X.tolist(), Y[:, 0].tolist()).predict(X).shape == (300,)
    near = Training(epochs=3, monitor=lambda predicted, true: -np.abs(predicted - true).mean(), progress=False)
    watched = Regression(MLP(()), near, random_state=0, device="cpu").fit(X, Y, validation=(X[:50], Y[:50]))
    assert max(watched.history_["val_score"]) == pytest.approx(
        -np.abs(watched.predict(X[:50]) - Y[:50]).mean(), abs=1e-5
    )
    with pytest.raises(InputError, match="needs validation pairs"):
        Regression(MLP(()), near).fit(X, Y)
    with pytest.raises(InputError, match="knows of no candidates"):
        Regression(MLP(()), Training(monitor="mrr")).fit(X, Y)


def test_the_demo_misses_matplotlib_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setattr(demo, "generated", lambda *a, **k: pytest.fail("went on"))
    with pytest.raises(MissingExtraError, match=r"dsokr\[plots\]"):
        demo.run(tmp_path, demo.QUICK)


def test_the_demo_misses_rdkit_before_it_trains(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.delattr("dsokr.chem")
    for name in ("dsokr.chem", "studies.demo"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"dsokr\[chem\]"):
        import_module("studies.demo")
