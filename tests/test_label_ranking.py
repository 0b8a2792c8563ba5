from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from dsokr.data.label_ranking import LabelRanking, label_ranking, read
from dsokr.errors import InputError
from dsokr.experiments import label_ranking as experiment
from dsokr.losses import Squared
from dsokr.metrics import kendall_tau
from dsokr.networks import MLP, built
from dsokr.training import Pairs, Training, train
from real_data import real_data

CPU = torch.device("cpu")

TINY = """height,town,ranking
1.5,1:Lyon,b>a>c
-2,0:Paris,a>b>c
0,1:Lyon,c>b>a
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tiny.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read(tmp_path):
    data = read(written(tmp_path, TINY))
    assert data.names == ("a", "b", "c")
    np.testing.assert_array_equal(data.rankings, [[1, 0, 2], [0, 1, 2], [2, 1, 0]])  # the position of every label
    np.testing.assert_array_equal(data.X, [[1.5, 0, 1], [-2, 1, 0], [0, 0, 1]])  # a town is a column


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("c>b>a", "c>b>b"), "line 4: expected an order of a, b, c. Got 'c>b>b'"),
        (("-2,", ""), "line 3: expected 3 columns. Got 2"),
        (("-2,", "low,"), "could not convert string to float: 'low'"),
        ((TINY.partition("\n")[2], ""), "holds no rankings"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        read(written(tmp_path, TINY.replace(*change)))


def test_a_data_set_is_found_by_name_and_checked(tmp_path):
    with pytest.raises(InputError, match="no label ranking data set 'irises'. Choose one of authorship"):
        label_ranking("irises", tmp_path)
    with pytest.raises(InputError, match="iris.txt is missing. Get it from .*Hüllermeier"):
        label_ranking("iris", tmp_path)
    (tmp_path / "label_ranking").mkdir()
    (tmp_path / "label_ranking" / "iris.txt").write_text(TINY)
    with pytest.raises(InputError, match="is not the file meant"):
        label_ranking("iris", tmp_path)


@pytest.mark.parametrize(
    ("name", "n", "d", "k"),
    [
        ("authorship", 841, 70, 4),
        ("glass", 214, 9, 6),
        ("iris", 150, 4, 3),
        ("vehicle", 846, 18, 4),
        ("vowel", 528, 10, 11),
        ("wine", 178, 13, 3),
        ("sushi", 5000, None, 10),
    ],
)
def test_the_real_data(name, n, d, k):
    """As many instances, inputs and labels as the literature says (Cheng & Hüllermeier, 2009; Kamishima, 2003)."""
    data = label_ranking(name, real_data(f"label_ranking/{name}.txt"))
    assert len(data.names) == k
    assert data.X.shape[0] == n and (d is None or data.X.shape[1] == d)
    np.testing.assert_array_equal(np.sort(data.rankings, axis=1), np.tile(np.arange(k), (n, 1)))
    assert np.isfinite(data.X).all()


@pytest.mark.parametrize("top", [5, 100], ids=["with ties", "hardly any ties"])
def test_kendall_tau_is_scipys(top):
    a, b = np.random.default_rng(0).integers(0, top, size=(2, 40, 6))
    expected = [scipy.stats.kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(kendall_tau(a, torch.from_numpy(b)).numpy(), expected, atol=1e-12)


def test_kendall_tau_without_order_is_undefined_and_of_other_shapes_refused():
    assert kendall_tau([[0, 0, 0]], [[0, 1, 2]]).isnan().all()
    with pytest.raises(InputError, match=r"Got \(1, 3\) and \(1, 2\)"):
        kendall_tau([[0, 1, 2]], [[0, 1]])


def generated(n: int = 120) -> LabelRanking:
    """Five labels on a circle, ranked by how near they are to the input."""
    angles = np.arange(5) * 2 * np.pi / 5
    X = np.random.default_rng(0).normal(size=(n, 2))
    distance = np.linalg.norm(X[:, None] - np.stack([np.cos(angles), np.sin(angles)], axis=1), axis=2)
    return LabelRanking(X, distance.argsort(axis=1).argsort(axis=1), tuple("abcde"))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    experiment.compare(experiment.QUICK, "generated", generated(), folder, say=lambda line: None)
    return folder


def test_what_is_learnt_beats_the_consensus(quick):
    rows = {(row["method"], row["kernel"], row["decoder"]): row for row in experiment.table(quick)}
    consensus = rows["consensus", "Kemeny", "Kemeny"]["kendall_tau"]
    assert consensus < 0.3  # no label is preferred on the whole
    for method in ("linear ridge", "kernel ridge", "random forest", "dsokr"):
        assert rows[method, "Kemeny", "Kemeny"]["kendall_tau"] > consensus + 0.3
    for kernel, decoder in (("Kemeny", "Kemeny"), ("Hamming", "HammingRanking"), ("Lehmer", "Lehmer")):
        assert rows["dsokr", kernel, decoder]["kendall_tau"] > 0.7
        assert rows["dsokr", kernel, "Candidates"]["kendall_tau"] > 0.7
    assert {row["repetitions"] for row in rows.values()} == {experiment.QUICK.repetitions}


def test_a_second_run_computes_only_what_is_missing(quick, monkeypatch):
    path = quick / "models.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    monkeypatch.setattr(experiment, "chosen_and_fitted", lambda *a: pytest.fail("fitted again"))
    experiment.compare(experiment.QUICK, "generated", generated(), quick, say=lambda line: None)
    assert path.read_text() == "".join(lines)
    monkeypatch.undo()
    path.write_text("".join(lines[1:]))  # the consensus ranking of the first repetition
    experiment.compare(experiment.QUICK, "generated", generated(), quick, say=lambda line: None)
    again = path.read_text().splitlines(keepends=True)
    assert again[:-1] == lines[1:]
    assert again[-1].partition('"seconds"')[0] == lines[0].partition('"seconds"')[0]


def test_every_pair_is_tested_once_and_never_learnt_from_in_its_fold():
    data = replace(generated(23), X=np.arange(46.0).reshape(23, 2))
    folds = experiment.folds_of(data, 4, seed=0)
    tested = np.concatenate([fold.test.Y for fold in folds])
    assert sorted(map(tuple, tested)) == sorted(map(tuple, data.rankings))
    for fold in folds:
        rows = np.concatenate([fold.train.X, fold.test.X])
        assert len(np.unique(rows.round(9), axis=0)) == 23
        np.testing.assert_allclose([fold.train.X.mean(), fold.train.X.std()], [0, 1], atol=1e-12)
        inner = fold.inner(0.25, seed=0)
        assert len(inner.test.Y) == round(0.25 * len(fold.train.Y))
        assert len(inner.train.Y) + len(inner.test.Y) == len(fold.train.Y)


def test_normal_scores_depend_on_ranks_alone():
    """Quantiles of the normal distribution, standardised; the same after any increasing function of the inputs."""
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(30, 2)), rng.normal(size=(9, 2))
    Y = np.zeros((30, 3), int)
    scores, of_exponentials = (
        experiment.Fold(experiment.Part(f(train), Y), experiment.Part(f(test), Y[:9])).normal_scores()
        for f in (lambda x: x, np.exp)
    )
    quantiles = scipy.stats.norm.ppf((scipy.stats.rankdata(train, axis=0) - 0.5) / 30)
    np.testing.assert_allclose(scores.train.X, (quantiles - quantiles.mean(axis=0)) / quantiles.std(axis=0))
    np.testing.assert_allclose(scores.test.X, of_exponentials.test.X)
    far = experiment.Fold(experiment.Part(train, Y), experiment.Part(test + 100, Y[:9])).normal_scores()
    np.testing.assert_allclose(far.test.X, np.tile(scores.train.X.max(axis=0), (9, 1)))  # beyond all: as the largest


def test_a_mixture_is_the_mean_of_its_networks():
    recipes = tuple(replace(recipe, steps=20, members=1) for recipe in experiment.RECIPES)
    folds, kernel = experiment.folds_of(generated(40), 2, seed=0), experiment.KERNELS["Kemeny"][0]
    (mixed,) = experiment.mixtures([experiment.Mixture(recipes)], kernel, folds, 0)
    parts = experiment.networks(recipes, kernel, folds, 0)
    parts += experiment.networks(recipes, kernel, [fold.normal_scores() for fold in folds], 0)
    for i, outcome in enumerate(mixed):
        torch.testing.assert_close(outcome.z, torch.stack([part[i].z for part in parts]).mean(dim=0))
        assert outcome.fold is folds[i]


def test_the_best_setting_of_every_fold_is_taken():
    """A method whose setting is the share of right answers: held-out pairs prefer 1 to 0, and only the best is kept."""

    def oracle(settings, kernel, folds, seed):
        def outcome(setting, fold):
            basis = experiment._basis(kernel, fold, seed)
            return experiment.Outcome(basis, (2 * setting - 1) * basis.embed(fold.test.Y), fold)

        return [[outcome(setting, fold) for fold in folds] for setting in settings]

    folds = experiment.folds_of(generated(40), 4, seed=0)
    method = experiment.Method("oracle", oracle, (0, 1))
    outcomes, chosen = experiment.chosen_and_fitted(experiment.QUICK, method, "Kemeny", folds, 0)
    assert chosen == [1] * 4
    assert all(outcome.fold is fold for outcome, fold in zip(outcomes, folds, strict=True))
    assert np.mean([outcome.tau(experiment.KERNELS["Kemeny"][1]) for outcome in outcomes]) > 0.95


def test_networks_side_by_side_are_trained_as_if_alone():
    g = torch.Generator().manual_seed(0)
    X, Y = torch.randn(70, 2, 3, generator=g), torch.randn(70, 2, 4, generator=g)
    options = Training(epochs=5, batch_size=16, learning_rate=0.01, schedule="linear", progress=False)
    alone = [built(MLP((8, 8), "tanh"), 4, X[:, 0].numpy(), seed) for seed in (0, 1)]
    together = experiment.SideBySide([built(MLP((8, 8), "tanh"), 4, X[:, 0].numpy(), seed) for seed in (0, 1)])
    none = torch.zeros(70)
    train(together, Pairs(X, Y.flatten(1), none), None, Squared(), options, seed=0, device=CPU)
    z = together(X).reshape(70, 2, 4)
    for i, network in enumerate(alone):
        before = nn.functional.mse_loss(network(X[:, i]), Y[:, i])
        train(network, Pairs(X[:, i], Y[:, i], none), None, Squared(), options, seed=0, device=CPU)
        torch.testing.assert_close(network(X[:, i]), z[:, i], rtol=1e-4, atol=1e-5)
        assert nn.functional.mse_loss(z[:, i], Y[:, i]) < before  # something was learnt
