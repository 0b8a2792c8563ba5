from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from dsokr.errors import InputError
from dsokr.losses import Squared
from dsokr.regressors.networks import MLP, built, outputs_of
from dsokr.regressors.training import Pairs, Training, standardized, train
from real_data import real_data
from studies import label_ranking as experiment
from studies.data.label_ranking import LabelRanking, label_ranking, read

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


def test_parts_of_the_training_pairs_are_held_out_one_after_the_other():
    data = replace(generated(32), X=np.arange(64.0).reshape(32, 2))
    for fold in experiment.folds_of(data, 4, seed=0):
        parts = fold.inner(0.25, 4, seed=0)
        assert [len(part.test.Y) for part in parts] == [6] * 4
        held_out = np.concatenate([part.test.Y for part in parts])
        assert sorted(map(tuple, held_out)) == sorted(map(tuple, fold.train.Y))
        for part in parts:
            rows = np.concatenate([part.train.X, part.test.X])
            assert len(np.unique(rows.round(9), axis=0)) == len(fold.train.X)  # none twice, none of the tested
            np.testing.assert_allclose([part.train.X.mean(), part.train.X.std()], [0, 1], atol=1e-12)
        (first,) = fold.inner(0.25, 1, seed=0)
        np.testing.assert_array_equal(first.test.Y, parts[0].test.Y)


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


@pytest.mark.parametrize(("n", "sizes"), [(64, [64]), (193, [49, 49, 49, 46]), (135, [45, 45, 45])])
def test_batches_are_of_one_size(n, sizes):
    """Not 64, 64, 64 and then a single pair, as 193 pairs would be otherwise."""
    training = experiment.Recipe(MLP((8,)), experiment.TRAINING, steps=500).training_on(n)
    assert [len(batch) for batch in torch.arange(n).split(training.batch_size)] == sizes
    assert 500 <= training.epochs * len(sizes) < 500 + len(sizes)


def trained_alone(recipe, fold, basis, i):
    """The i-th network of a recipe, trained on one fold by itself: what it says of the test inputs."""
    Y = basis.embed(fold.train.Y).float()
    pairs = Pairs(torch.from_numpy(fold.train.X).float(), Y, torch.zeros(len(Y)))
    training = recipe.training_on(len(pairs))
    network = standardized(built(recipe.network, basis.dim, fold.train.X, i), pairs, training)
    train(network, pairs, None, Squared(), training, seed=0, device=CPU)
    return outputs_of(network, torch.from_numpy(fold.test.X).float())


def test_a_recipe_is_the_mean_of_its_networks_on_both_scales():
    training = replace(experiment.TRAINING, weight_decay=3.0)
    recipe = experiment.Recipe(MLP((8,), "tanh"), training, steps=20, members=2)
    folds, kernel = experiment.folds_of(generated(40), 2, seed=0), experiment.KERNELS["Kemeny"][0]
    ((one, other),) = experiment.networks([recipe], kernel, folds, 0)
    scaled = [folds[1], folds[1], folds[1].normal_scores(), folds[1].normal_scores()]
    alone = [trained_alone(recipe, fold, other.basis, i) for fold, i in zip(scaled, (2, 3, 6, 7), strict=True)]
    torch.testing.assert_close(other.z, torch.stack(alone).mean(dim=0), rtol=1e-3, atol=1e-4)
    assert one.fold is folds[0] and other.fold is folds[1]
    assert not torch.allclose(alone[0], alone[2], atol=1e-2)  # the scale does matter


def oracle(settings, kernel, folds, seed):
    """A method whose setting says how much of the right answer there is in what it says."""

    def outcome(setting, fold):
        basis = experiment._basis(kernel, fold, seed)
        return experiment.Outcome(basis, setting * basis.embed(fold.test.Y), fold)

    return [[outcome(setting, fold) for fold in folds] for setting in settings]


@pytest.mark.parametrize(("best", "chosen"), [(1, [1]), (2, [1, 0])])
def test_the_best_settings_of_every_fold_are_taken(best, chosen):
    folds = experiment.folds_of(generated(40), 4, seed=0)
    method = experiment.Method("oracle", oracle, (-1, 0, 1), parts=5, best=best)
    outcomes, taken = experiment.chosen_and_fitted(experiment.QUICK, method, "Kemeny", folds, 0)
    assert taken == chosen * 4
    for outcome, fold in zip(outcomes, folds, strict=True):
        assert outcome.fold is fold
        torch.testing.assert_close(outcome.z, outcome.basis.embed(fold.test.Y) / best)  # the mean of the settings


@pytest.mark.parametrize(("parts", "chosen"), [(1, "right at first"), (5, "right later")])
def test_settings_are_compared_on_all_parts_that_are_held_out(parts, chosen):
    def moody(settings, kernel, folds, seed):
        right, wrong = oracle((1, -1), kernel, folds, seed)
        said = {"right at first": right[:1] + wrong[1:], "right later": wrong[:1] + right[1:]}
        return [said[setting] for setting in settings]

    folds = experiment.folds_of(generated(60), 4, seed=0)[:1]
    method = experiment.Method("moody", moody, ("right at first", "right later"), parts=parts)
    assert experiment.chosen_and_fitted(experiment.QUICK, method, "Kemeny", folds, 0)[1] == [chosen]


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
