"""Multi-label classification: the data, the network with logistic outputs, and the study on generated texts."""

import hashlib
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Generator
from torch.nn.functional import binary_cross_entropy

from dsokr import Training
from studies.baselines.bce import THRESHOLDS, BinaryCrossEntropy, LabelNetwork
from studies.data.files import Source
from studies.data.multilabel import MultiLabel, generate, multilabel, read
from dsokr.errors import InputError
from studies import multilabel as study
from studies.results import read_rows
from dsokr.metrics import f1
from dsokr.regressors.networks import MLP
from real_data import real_data

module = sys.modules["studies.data.multilabel"]


def write(path, X, Y, split):
    """A file as the loader wants it."""
    inputs = {"X": X}
    if sp.issparse(X):
        inputs = {f"X_{name}": getattr(X, name) for name in ("data", "indices", "indptr", "shape")}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, Y=np.packbits(Y, axis=1), n_labels=Y.shape[1], split=np.array(split, np.uint8), **inputs)


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    return rng.normal(size=(5, 3)).astype(np.float32), (rng.random((5, 11)) < 0.4).astype(np.uint8)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_a_file_is_read_as_it_was_written(pairs, form, tmp_path, monkeypatch):
    X, Y = pairs
    path = tmp_path / "multilabel" / "emotions.npz"
    write(path, form(X), Y, [0, 1, 0, 0, 1])
    own = Source("multilabel/emotions.npz", hashlib.sha256(path.read_bytes()).hexdigest(), module.ORIGIN)
    monkeypatch.setitem(module.SOURCES, "emotions", own)
    data = multilabel("emotions", tmp_path)
    for (inputs, sets), rows in ((data.train, [0, 2, 3]), (data.test, [1, 4])):
        assert sp.issparse(inputs) == (form is sp.csr_array)
        np.testing.assert_array_equal(inputs.toarray() if sp.issparse(inputs) else inputs, X[rows])
        np.testing.assert_array_equal(sets, Y[rows])
    monkeypatch.setenv("DSOKR_DATA", str(tmp_path))
    np.testing.assert_array_equal(multilabel("emotions").test[1], Y[[1, 4]])


def test_what_is_missing_or_wrong_is_said(pairs, tmp_path):
    with pytest.raises(InputError, match="no multi-label data set 'enron'. The ones known are bibtex, corel5k"):
        multilabel("enron", tmp_path)
    with pytest.raises(InputError, match=r"yeast.npz is missing. Get it from MULAN .*--data-dir"):
        multilabel("yeast", tmp_path)
    write(tmp_path / "multilabel" / "yeast.npz", *pairs, [0, 1, 0, 0, 1])
    with pytest.raises(InputError, match="is not the file meant"):
        multilabel("yeast", tmp_path)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(InputError, match="other.npz is not a multi-label data set: .*Get it again from MULAN"):
        read(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("name", "n_train", "n_test", "width", "labels", "cardinality"),
    [  # as MULAN's page describes them
        ("bibtex", 4880, 2515, 1836, 159, 2.402),
        ("corel5k", 4500, 500, 499, 374, 3.522),
        ("emotions", 391, 202, 72, 6, 1.869),
        ("scene", 1211, 1196, 294, 6, 1.074),
        ("yeast", 1500, 917, 103, 14, 4.237),
    ],
)
def test_the_real_data_are_those_of_mulan(name, n_train, n_test, width, labels, cardinality):
    (X, Y), (X_test, Y_test) = multilabel(name, real_data(f"multilabel/{name}.npz"))
    assert X.shape == (n_train, width) and X_test.shape == (n_test, width)
    assert Y.shape == (n_train, labels) and Y_test.shape == (n_test, labels)
    assert (Y.sum() + Y_test.sum()) / (n_train + n_test) == pytest.approx(cardinality, abs=1e-3)


def test_generated_texts_are_seeded():
    a, b, c = generate(40, 10, seed=0), generate(40, 10, seed=0), generate(40, 10, seed=1)
    assert (a.train[0] != b.train[0]).nnz == 0 and (a.train[0] != c.train[0]).nnz > 0
    assert set(a.train[1].sum(axis=1)) == {1, 2, 3}


def test_binary_cross_entropy_is_the_negative_log_likelihood():
    g = Generator().manual_seed(0)
    z, y = torch.randn(6, 4, generator=g), (torch.rand(6, 4, generator=g) < 0.5).float()
    expected = 4 * binary_cross_entropy(torch.sigmoid(z), y)
    torch.testing.assert_close(BinaryCrossEntropy().mean(z, y, torch.zeros(6)), expected)


@pytest.fixture(scope="module")
def linear_labels():
    """Labels of which each depends on the inputs by itself; some sets are empty."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    return X, (X @ rng.normal(size=(5, 6)) > 1).astype(np.int64)


TRAINING = Training(epochs=40, batch_size=32, learning_rate=0.02, progress=False)


def test_label_network_learns(linear_labels):
    X, Y = linear_labels
    model = LabelNetwork(MLP(()), TRAINING, random_state=0, device="cpu")
    model.fit(X[:250], Y[:250], validation=(X[250:300], Y[250:300]))
    predicted = model.predict(X[300:])
    assert f1(predicted, Y[300:]) > 0.9 and predicted.dtype == Y.dtype
    assert not model.never_empty_ and (predicted.sum(axis=1) == 0).any()
    sparse = model.predict(sp.csr_array(X[300:]))
    np.testing.assert_array_equal(sparse, predicted)


def test_the_threshold_is_the_best_on_validation(linear_labels):
    """After one epoch probabilities are all near the labels' frequencies: the threshold must be well below ½."""
    X, Y = linear_labels
    training = replace(TRAINING, epochs=1, learning_rate=1e-3)
    model = LabelNetwork(MLP(()), training, random_state=0, device="cpu")
    model.fit(X[:300], Y[:300], validation=(X[300:], Y[300:]))
    by_hand = {t: f1((model.probabilities(X[300:]) > t).astype(int), Y[300:]) for t in THRESHOLDS}
    assert by_hand[model.threshold_] == max(by_hand.values()) > by_hand[0.5]
    given = LabelNetwork(MLP(()), training, threshold=0.5, random_state=0, device="cpu").fit(X[:300], Y[:300])
    assert given.threshold_ == 0.5
    np.testing.assert_array_equal(given.predict(X), given.probabilities(X) > 0.5)


def test_the_monitor_chooses_epoch_and_threshold(linear_labels):
    """A metric that wants large sets gets the least threshold; f1 would not."""
    X, Y = linear_labels
    training = replace(TRAINING, epochs=3, monitor=lambda predicted, true: predicted.mean())
    model = LabelNetwork(MLP(()), training, random_state=0, device="cpu")
    model.fit(X[:300], Y[:300], validation=(X[300:], Y[300:]))
    assert model.threshold_ == THRESHOLDS[0]
    assert max(model.history_["val_score"]) == pytest.approx(model.predict(X[300:]).mean())


def test_where_no_set_is_empty_none_is_predicted(linear_labels):
    X, Y = linear_labels
    some = Y.any(axis=1)
    model = LabelNetwork(MLP(()), TRAINING, threshold=0.95, random_state=0, device="cpu").fit(X[some], Y[some])
    predicted, likeliest = model.predict(X[~some]), model.probabilities(X[~some]).argmax(axis=1)
    assert (model.probabilities(X[~some]) < 0.95).all(axis=1).any()
    assert predicted[np.arange(len(predicted)), likeliest].all()


def test_label_network_refuses_what_it_cannot_do(linear_labels):
    X, Y = linear_labels
    with pytest.raises(InputError, match="threshold is open: pass validation"):
        LabelNetwork(MLP(())).fit(X, Y)
    with pytest.raises(InputError, match=r"threshold must be in \(0, 1\), or None. Got 50"):
        LabelNetwork(MLP(()), threshold=50).fit(X, Y)
    with pytest.raises(InputError, match="monitor needs validation pairs"):
        LabelNetwork(MLP(()), Training(monitor=f1), threshold=0.5).fit(X, Y)
    with pytest.raises(InputError, match="zeros and ones, .* Got 2 in row 0"):
        LabelNetwork(MLP(()), threshold=0.5).fit(X, Y + 2)
    with pytest.raises(InputError, match="validation: X and Y must have as many rows. Got 3 inputs and 2 outputs"):
        LabelNetwork(MLP(())).fit(X, Y, validation=(X[:3], Y[:2]))


def test_inputs_are_scaled_by_the_training_inputs_alone():
    rng = np.random.default_rng(0)
    X, Y = 5 + 3 * rng.normal(size=(200, 4)), np.ones((200, 2), np.uint8)
    X[:, 3] = 7.0  # a constant input must not become NaN
    task = study.Task.of("dense", MultiLabel((X[:100], Y[:100]), (1000 * X[100:], Y[100:])))
    np.testing.assert_allclose(task.train[0][:, :3].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(task.train[0].std(axis=0), [1, 1, 1, 0], atol=1e-12)
    assert task.test[0][:, :3].mean() > 100
    words = sp.csr_array((rng.random((200, 30)) < np.linspace(0.05, 0.9, 200)[:, None]).astype(np.float32))
    task = study.Task.of("sparse", MultiLabel((words[:100], Y[:100]), (words[100:], Y[100:])))
    norms = np.square(task.train[0]).sum(axis=1)
    np.testing.assert_allclose(norms[norms > 0], words[:100].sum() / 100)


def test_no_test_pair_and_no_validation_pair_is_trained_on():
    X, Y = np.arange(120.0).reshape(60, 2), np.eye(60, dtype=np.uint8)
    task = study.Task.of("numbered", MultiLabel((X[:50], Y[:50]), (X[50:], Y[50:])))
    fitting, val, test = ({int(row.argmax()) for row in part[1]} for part in (task.fitting, task.validation, task.test))
    assert len(val) == 10 and fitting | val == set(range(50)) and not fitting & val
    assert test == set(range(50, 60))


def test_members_of_an_ensemble_share_their_basis():
    data = generate(120, 20)
    task = study.Task.of("generated", data)
    deep = study.Deep(study.Tanimoto(), study.QUICK.settings[0], replace(study.QUICK.training, epochs=1), 60, members=2)
    first, second = deep._fitted(task.fitting, deep.training, 0, task.validation)
    assert torch.equal(first.basis_.projection, second.basis_.projection)
    assert not torch.equal(first.coefficients(task.test[0]), second.coefficients(task.test[0]))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    study.run(study.QUICK, folder, say=lambda line: None)
    return folder


def test_every_method_beats_the_most_frequent_set(quick):
    (_, Y), (_, Y_test) = study.QUICK.data["generated"](None)
    sets, counts = np.unique(Y, axis=0, return_counts=True)
    frequent = f1(np.tile(sets[counts.argmax()], (len(Y_test), 1)), Y_test)
    rows = study.table(quick)
    assert {row["model"] for row in rows} >= {"DSOKR, Tanimoto, LabelSet", "SISOKR, Linear, Candidates"}
    assert all(row["f1"] > frequent + 0.2 and row["runs"] == 2 for row in rows)


def test_what_is_selected_is_best_on_validation(quick):
    """One configuration of each method, with all its seeds; an ensemble and every kernel have been validated."""
    rows = read_rows(quick / "models.jsonl")
    for method, configurations in (("dsokr", 6), ("sisokr", 4), ("bce", 2)):
        mine = [row for row in rows if row["method"] == method]
        selected = [row for row in mine if row["selected"]]
        assert len(mine) == 2 * configurations and len(selected) == 2
        assert selected[0]["metrics"]["val_f1"] == max(row["metrics"]["val_f1"] for row in mine)
    tried = read_rows(quick / "validation.jsonl")
    bce = [row for row in tried if row["method"] == "bce"]
    best = max(bce, key=lambda row: row["metrics"]["f1"])
    assert len(bce) == 3 and {row["encoder"] for row in rows if row["method"] == "bce"} == {best["encoder"]}


def test_a_second_run_computes_nothing(quick, monkeypatch):
    before = {path.name: path.read_text() for path in quick.glob("*.jsonl")}
    for method in (study.Deep, study.Closed, study.Logistic):
        for step in ("choose", "predict"):
            monkeypatch.setattr(method, step, lambda *a: pytest.fail("computed again"))
    study.run(study.QUICK, quick, say=lambda line: None)
    assert {path.name: path.read_text() for path in quick.glob("*.jsonl")} == before


def test_an_interrupted_run_goes_on(quick, tmp_path):
    lines = (quick / "models.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "validation.jsonl").write_text((quick / "validation.jsonl").read_text())
    (tmp_path / "models.jsonl").write_text("".join(lines[:-3]))
    study.run(study.QUICK, tmp_path, say=lambda line: None)
    again = read_rows(tmp_path / "models.jsonl")
    whole = read_rows(quick / "models.jsonl")
    assert [row["metrics"]["f1"] for row in again] == pytest.approx([row["metrics"]["f1"] for row in whole])


def test_published_numbers_are_marked(quick, tmp_path):
    text = (quick / "models.jsonl").read_text().replace('"data": "generated"', '"data": "bibtex"')
    (tmp_path / "models.jsonl").write_text(text)
    rows = study.table(tmp_path)
    published = [row for row in rows if row["source"] == "literature"]
    assert {row["model"]: row["f1"] for row in published} == study.LITERATURE["bibtex"]
    assert all("sd" in row for row in rows if row["source"] == "measured")
