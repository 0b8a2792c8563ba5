"""What the studies compare: networks trained side by side, folds and splits, choices on validation, and baselines."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
import torch
from torch import Generator, nn
from torch.nn.functional import binary_cross_entropy

from dsokr import Training, networks, sketches
from dsokr.basis import sketch_basis
from dsokr.compute import seeded
from dsokr.metrics import f1, ranks
from dsokr.regressors import Neural
from dsokr.regressors.networks import MLP
from dsokr.regressors.networks.base import build_network
from dsokr.rules import RULES
from studies import chebi20, chebi20_generation, chebi20_models, label_ranking, multilabel, strings, synthetic
from studies import label_ranking_methods as rankings
from studies.baselines.contrastive import CMAM, MoleculeGCN, MoleculeMLP
from studies.baselines.regression import THRESHOLDS, BinaryCrossEntropy, LabelNetwork, as_targets, fit_regression
from studies.chebi20_generation import Generation
from studies.copying import Copying
from studies.data.chebi20 import describe_molecules
from studies.data.label_ranking import generate as generate_rankings
from studies.data.mentions import Mentions
from studies.data.multilabel import MultiLabel
from studies.data.ocr_letters import generate as generate_words
from studies.multilabel_methods import LabelTask
from studies.results import read_rows
from studies.study import CPU, Session

QUIET = Training(epochs=5, batch_size=16, learning_rate=0.01, schedule="linear", patience=None, progress=False)


def test_a_network_with_parts_side_by_side_is_as_many_networks():
    """Models trained as one perceptron get the weights that each gets alone, from the same start and batches."""
    g = Generator().manual_seed(0)
    X, A, B = (torch.randn(300, width, generator=g) for width in (6, 2, 3))
    both = torch.cat([A, B], dim=1)
    with seeded(0):
        start = nn.Linear(6, 5)

    def layer(rows: slice) -> nn.Module:
        part = nn.Linear(6, rows.stop - rows.start)
        part.load_state_dict({name: weight[rows] for name, weight in start.state_dict().items()})
        return nn.Sequential(part)

    training = replace(QUIET, epochs=4, batch_size=32, standardize=False)
    best = synthetic.BestOfEach([slice(0, 2), slice(2, 5)], X, both)
    together = replace(training, trainer={"callbacks": [best]})
    fit_regression(lambda p: layer(slice(0, 5)), together, (X, both), (X, both), seed=0)
    for rows, Y in ((slice(0, 2), A), (slice(2, 5), B)):
        alone = fit_regression(lambda p, rows=rows: layer(rows), training, (X, Y), (X, Y), seed=0)
        (own,) = (module for module in alone.network.modules() if isinstance(module, nn.Linear))
        torch.testing.assert_close(own.weight, best.weight[rows], rtol=1e-4, atol=1e-6)


@pytest.fixture
def named():
    """Texts that name one of many outputs each, as it is or with a change."""
    g = Generator().manual_seed(0)
    outputs, change = torch.randn(400, 6, generator=g), torch.randn(6, generator=g)
    texts = [f"{'new' if i % 2 else 'old'} item{i}" for i in range(400)]
    truth = outputs + change * (torch.arange(400) % 2)[:, None]
    return texts, outputs, truth, {text: [(i, i % 2)] for i, text in enumerate(texts)}


def test_a_network_that_copies_starts_from_what_is_named(named):
    """If all attention is on what is named, that is the answer; without a name, the mean."""
    texts, outputs, truth, mentions = named
    with seeded(0):
        network = Copying(networks.WordBag(width=4), mentions | {"nothing": []}, outputs, truth)(6).eval()
    nn.init.constant_(network.nothing, -1e4)
    for layer in (network.leave, network.network.head[-1]):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    torch.testing.assert_close(network(network.prepare(texts)), outputs)
    torch.testing.assert_close(network(network.prepare(["nothing"]))[0], truth.mean(dim=0))
    with pytest.raises(KeyError):
        network.prepare(["a text whose names were not read"])


def test_copying_answers_texts_that_name_unseen_outputs(named):
    """A bag of words knows nothing of a word that it has not met."""
    texts, outputs, truth, mentions = named
    bag, training = networks.WordBag(width=16, hidden=(16,)), replace(QUIET, epochs=30, standardize=False)
    errors = {}
    for name, network in (("bag", bag), ("copying", Copying(bag, mentions, outputs, truth[:300], hidden=16))):
        pairs, held_out = (texts[:300], truth[:300]), (texts[300:], truth[300:])
        model = fit_regression(network, training, pairs, held_out, seed=0)
        errors[name] = (model.predict(texts[300:]) - truth[300:]).square().mean().item()
    assert errors["copying"] < 0.1 < 0.5 < errors["bag"]


def test_what_a_text_names_is_the_answer_if_it_scores_higher_than_known_molecules():
    data = describe_molecules(60, 5, 5)
    graphs, generation = data.molecules.graphs, Generation(sketch=sketches.SubSample(30), k=2)
    basis = sketch_basis(generation.kernel, graphs[:60], generation.sketch, generator=Generator().manual_seed(0))
    z = basis.embed(graphs[[60, 60, 61]])  # the right answer is named, a wrong one is, none is
    scores = basis.score(z, graphs, "cosine")
    best, at = scores[:, :60].max(dim=1)
    worst = int(scores[1].argmin())
    listed = {"graphs": [[[g.labels, g.edges]] for g in graphs[at.numpy()]], "proved": 0.0}
    listed |= chebi20_generation.count_missed(best[:, None].tolist(), scores[[0, 1, 2], [60, 60, 61]].tolist())
    found = {chebi20_generation.TRAINING_MOLECULE: listed, chebi20_generation.FAMILIAR: listed}
    texts = {"right": [(60, 0), (worst, 0)], "wrong": [(worst, 0)], "none": []}
    mentions = Mentions(data.molecules, ["as it is"], texts)
    both = chebi20_generation.prefer_named(found, basis, z, mentions, list(texts), generation)
    assert both["graphs"][0][0] == [graphs[60].labels, graphs[60].edges] and len(both["graphs"][0]) == 2
    assert both["graphs"][1:] == listed["graphs"][1:]
    known = Mentions(data.molecules, ["as it is"], texts | {"wrong": [(int(at[1]), 0)]})
    searched = found | {chebi20_generation.FAMILIAR: listed | {"graphs": [[]] * 3}}
    both_known = chebi20_generation.prefer_named(searched, basis, z, known, list(texts), generation)
    assert both_known["graphs"][1] == listed["graphs"][1]  # named, and the best of the known ones
    assert listed["missed"] == 1.0 and both["missed"] == pytest.approx(2 / 3)


def test_members_weigh_what_does_best_on_validation():
    """Members 1 and 2 know the truth up to noise that cancels in their mean; member 0 knows nothing."""
    g = Generator().manual_seed(0)
    truth, guess, noise = torch.arange(40), torch.randn(40, 40, generator=g), torch.randn(40, 40, generator=g) / 2
    members = torch.stack([guess, torch.eye(40) + noise, torch.eye(40) - noise])

    def combine(weights, part, rows):
        shares = torch.tensor(weights) / sum(weights)
        return (shares[:, None, None] * members[:, rows]).sum(dim=0)

    def rate(weights):
        return ranks(combine(weights, "val", truth), truth).reciprocal().mean()

    task = SimpleNamespace(truth=lambda part: truth)
    weights = chebi20.choose_weights(combine, 3, task)
    assert weights[0] == 1.0 < min(weights[1:])
    assert rate(weights) > rate([1.0, 1.0, 1.0])
    members = torch.eye(40).expand(3, 40, 40)
    assert chebi20.choose_weights(combine, 3, task) == [1.0, 1.0, 1.0]  # no reason to prefer any member


def test_names_are_left_out_in_training_only(named):
    texts, outputs, truth, mentions = named
    with seeded(0):
        bag = networks.WordBag(width=4, dropout=0.0)
        one, all_of_them = (
            Copying(bag, mentions, outputs, truth, dropped=dropped, alone=alone)(6)
            for dropped, alone in ((0.5, 0.0), (0.0, 0.5))
        )
    for network in (one, all_of_them):
        inputs = network.prepare(texts)
        with seeded(0):
            first, second = network(inputs), network(inputs)
        changed = (first != second).any(dim=1).float().mean()
        assert 0.4 < changed < 0.6  # there in one of two, with probability one half
        network.eval()
        assert torch.equal(network(inputs), network(inputs))


def test_plain_regression_learns():
    X = np.random.default_rng(0).normal(size=(300, 3))
    Y = X @ np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]])
    training = Training(epochs=60, learning_rate=0.05, batch_size=64, progress=False)
    val = X[200:], Y[200:]
    model = fit_regression(MLP(()), training, (X[:200], Y[:200]), val, seed=0)
    assert (model.predict(val[0]) - torch.from_numpy(val[1])).square().mean() < 0.01 * Y.var()
    watched = fit_regression(
        MLP(()),
        replace(training, epochs=3),
        val,
        val,
        seed=0,
        score=lambda z: -(z - torch.from_numpy(val[1])).abs().mean().item(),
    )
    error = (watched.predict(val[0]) - torch.from_numpy(val[1])).abs().mean().item()
    assert max(watched.history["val_score"]) == pytest.approx(-error, abs=1e-5), "the best epoch is kept"


@pytest.fixture(scope="module")
def linear_labels():
    """Labels of which each depends on the inputs by itself; some sets are empty."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    return X, (X @ rng.normal(size=(5, 6)) > 1).astype(np.uint8)


def test_binary_cross_entropy_is_the_negative_log_likelihood():
    g = Generator().manual_seed(0)
    z, y = torch.randn(6, 4, generator=g), (torch.rand(6, 4, generator=g) < 0.5).float()
    expected = 4 * binary_cross_entropy(torch.sigmoid(z), y)
    torch.testing.assert_close(BinaryCrossEntropy().mean(z, y, torch.zeros(6)), expected)


def test_label_network_learns_and_chooses_its_epoch_and_threshold(linear_labels):
    X, Y = linear_labels
    training = Training(epochs=40, batch_size=32, learning_rate=0.02, progress=False)
    val = X[250:300], Y[250:300]
    model = LabelNetwork(MLP(()), training, seed=0).fit(X[:250], Y[:250], val)
    score, threshold = model.best_threshold(model.probabilities(val[0]), val[1])
    predicted = model.decide(model.probabilities(X[300:]), threshold)
    assert f1(predicted, Y[300:]) > 0.9 and (predicted.sum(axis=1) == 0).any()
    assert max(model.fitted.history["val_score"]) == pytest.approx(score)
    by_hand = {t: f1(model.probabilities(val[0]) > t, val[1]) for t in THRESHOLDS}
    assert by_hand[threshold] == max(by_hand.values()) == score


def test_where_no_set_is_empty_none_is_predicted(linear_labels):
    X, Y = linear_labels
    some = Y.any(axis=1)
    model = LabelNetwork(MLP(()), replace(QUIET, epochs=2), seed=0).fit(X[some], Y[some])
    probabilities = model.probabilities(X[~some])
    assert (probabilities < 0.95).all(axis=1).any()
    assert model.decide(probabilities, 0.95)[np.arange(len(probabilities)), probabilities.argmax(axis=1)].all()


def test_inputs_are_scaled_by_the_training_inputs_alone():
    rng = np.random.default_rng(0)
    X, Y = 5 + 3 * rng.normal(size=(200, 4)), np.ones((200, 2), np.uint8)
    X[:, 3] = 7.0  # a constant input must not become NaN
    task = LabelTask.of("dense", MultiLabel((X[:100], Y[:100]), (1000 * X[100:], Y[100:])))
    np.testing.assert_allclose(task.train[0][:, :3].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(task.train[0].std(axis=0), [1, 1, 1, 0], atol=1e-12)
    assert task.test[0][:, :3].mean() > 100
    words = sp.csr_array((rng.random((200, 30)) < np.linspace(0.05, 0.9, 200)[:, None]).astype(np.float32))
    task = LabelTask.of("sparse", MultiLabel((words[:100], Y[:100]), (words[100:], Y[100:])))
    norms = np.square(task.train[0]).sum(axis=1)
    np.testing.assert_allclose(norms[norms > 0], words[:100].sum() / 100)


def test_no_test_pair_and_no_validation_pair_is_trained_on():
    X, Y = np.arange(120.0).reshape(60, 2), np.eye(60, dtype=np.uint8)
    task = LabelTask.of("numbered", MultiLabel((X[:50], Y[:50]), (X[50:], Y[50:])))
    fitting, val, test = ({int(row.argmax()) for row in part[1]} for part in (task.fitting, task.validation, task.test))
    assert len(val) == 10 and fitting | val == set(range(50)) and not fitting & val
    assert test == set(range(50, 60))


def test_members_of_an_ensemble_differ():
    task = LabelTask.of("generated", multilabel.generate(60, 10))
    setting, training = multilabel.QUICK.settings[0], replace(multilabel.QUICK.training, epochs=1)
    deep = multilabel.Deep(multilabel.Tanimoto(), setting, training, 30, members=2)
    chosen = {"Candidates": {"epochs": 1, "rule": "kernel"}}
    assert deep.predict(task, chosen, 0)["Candidates"].shape == task.test[1].shape
    models = multilabel.Logistic(setting, training, members=2)._fit(task.fitting, 0, training)
    assert not np.allclose(*(model.probabilities(task.test[0]) for model in models))


def test_words_are_split_by_their_protocol():
    data = generate_words(copies=4, words=10)
    known = list(strings.split_by_fold(data))
    assert len(known) == 2
    for split in known:
        assert set(split.test.words.tolist()) == set(split.train.words.tolist())
        assert set(split.train.folds.tolist()) == {split.number} and split.number not in split.test.folds
        inner = split.split_training_words()
        assert len(inner.test) == 4 and len(inner.train) + len(inner.test) == len(split.train)
    new = list(strings.split_by_word(data))
    assert len(new) == 5
    assert sorted(word for split in new for word in split.test.words) == sorted(data.words)
    for split in new:
        assert not set(split.test.words.tolist()) & set(split.train.words.tolist())
        inner = split.split_training_words()
        assert not set(inner.test.words.tolist()) & set(inner.train.words.tolist())
        assert set(inner.test.words.tolist()) | set(inner.train.words.tolist()) == set(split.train.words.tolist())


def test_certain_letters_make_the_counts_of_letters_and_pairs():
    data = generate_words(copies=1, words=6)
    numbers = torch.tensor(strings.number_letters("".join(data.words)))

    class Oracle(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 1000.0 * nn.functional.one_hot(numbers, 26)

    with torch.random.fork_rng([]):
        network = strings.ExpectedNGrams(Oracle(), 26 + 26**2)
    nn.init.eye_(network.out.weight)
    nn.init.zeros_(network.out.bias)
    counts = network(torch.from_numpy(data.X)).detach()
    for word, found in zip(data.words, counts, strict=True):
        expected = torch.zeros(26 + 26**2)
        letters = strings.number_letters(word)
        for letter in letters:
            expected[letter] += 1
        for a, b in pairwise(letters):
            expected[26 + 26 * a + b] += 1
        torch.testing.assert_close(found, expected)


def test_the_likeliest_word_has_as_many_letters():
    log_p = np.full((2, 26), -9.0)
    log_p[0, 0], log_p[1, 1], log_p[1, 2] = -0.1, -0.2, -0.3  # "ab", or "ac"
    assert strings.spell([log_p]) == ["ab"]
    assert strings.find_likeliest(log_p, "ab", ["ac", "bb", "abc"]) == "ac"
    assert strings.find_likeliest(log_p, "ab", ["abc"]) == "ab"


def test_every_pair_is_tested_once_and_never_trained_on_in_its_fold():
    data = replace(generate_rankings(23), X=np.arange(46.0).reshape(23, 2))
    folds = rankings.make_folds(data, 4, seed=0)
    tested = np.concatenate([fold.test.Y for fold in folds])
    assert sorted(map(tuple, tested)) == sorted(map(tuple, data.rankings))
    for fold in folds:
        rows = np.concatenate([fold.train.X, fold.test.X])
        assert len(np.unique(rows.round(9), axis=0)) == 23
        np.testing.assert_allclose([fold.train.X.mean(), fold.train.X.std()], [0, 1], atol=1e-12)


def test_parts_of_the_training_pairs_are_held_out_in_turn():
    data = replace(generate_rankings(32), X=np.arange(64.0).reshape(32, 2))
    for fold in rankings.make_folds(data, 4, seed=0):
        parts = fold.split_training_pairs(0.25, 4, seed=0)
        assert [len(part.test.Y) for part in parts] == [6] * 4
        held_out = np.concatenate([part.test.Y for part in parts])
        assert sorted(map(tuple, held_out)) == sorted(map(tuple, fold.train.Y))
        for part in parts:
            rows = np.concatenate([part.train.X, part.test.X])
            assert len(np.unique(rows.round(9), axis=0)) == len(fold.train.X)  # none twice, none of the tested
        (first,) = fold.split_training_pairs(0.25, 1, seed=0)
        np.testing.assert_array_equal(first.test.Y, parts[0].test.Y)


def test_normal_scores_depend_on_ranks_alone():
    """Quantiles of the normal distribution, standardised; the same after any increasing function of the inputs."""
    rng = np.random.default_rng(0)
    train, test, Y = rng.normal(size=(30, 2)), rng.normal(size=(9, 2)), np.zeros((30, 3), int)

    def score(train, test):
        return rankings.Fold(rankings.RankedInputs(train, Y), rankings.RankedInputs(test, Y[:9])).normal_scores()

    scores, of_exponentials, far = score(train, test), score(np.exp(train), np.exp(test)), score(train, test + 100)
    quantiles = scipy.stats.norm.ppf((scipy.stats.rankdata(train, axis=0) - 0.5) / 30)
    np.testing.assert_allclose(scores.train.X, (quantiles - quantiles.mean(axis=0)) / quantiles.std(axis=0))
    np.testing.assert_allclose(scores.test.X, of_exponentials.test.X)
    np.testing.assert_allclose(far.test.X, np.tile(scores.train.X.max(axis=0), (9, 1)))  # beyond all: as the largest


@pytest.mark.parametrize(("n", "sizes"), [(64, [64]), (193, [49, 49, 49, 46]), (135, [45, 45, 45])])
def test_batches_are_of_one_size(n, sizes):
    """Not 64, 64, 64 and then a single pair, as 193 pairs would be otherwise."""
    training = rankings.Recipe(MLP((8,)), rankings.TRAINING, steps=500).training_on(n)
    assert [len(batch) for batch in torch.arange(n).split(training.batch_size)] == sizes
    assert 500 <= training.epochs * len(sizes) < 500 + len(sizes)


def fit_alone(recipe, fold, basis, i):
    """The i-th network of a recipe, trained on one fold by itself, applied to the test inputs."""
    network = build_network(recipe.network, basis.dim, fold.train.X, i)
    regressor = Neural(lambda p: network, training=recipe.training_on(len(fold.train.Y)))
    return regressor.fit(fold.train.X, as_targets(basis.embed(fold.train.Y)), seed=0, device=CPU).predict(fold.test.X)


def test_a_recipe_is_the_mean_of_its_networks_on_both_scales():
    training = replace(rankings.TRAINING, weight_decay=3.0)
    recipe = rankings.Recipe(MLP((8,), "tanh"), training, steps=20, members=2)
    folds, kernel = rankings.make_folds(generate_rankings(40), 2, seed=0), rankings.KERNELS["Kemeny"][0]
    ((one, other),) = rankings.fit_networks([recipe], kernel, folds, 0)
    scaled = [folds[1], folds[1], folds[1].normal_scores(), folds[1].normal_scores()]
    alone = [fit_alone(recipe, fold, other.basis, i) for fold, i in zip(scaled, (2, 3, 6, 7), strict=True)]
    torch.testing.assert_close(other.z, torch.stack(alone).mean(dim=0), rtol=1e-3, atol=1e-4)
    assert one.fold is folds[0] and other.fold is folds[1]
    assert not torch.allclose(alone[0], alone[2], atol=1e-2)  # the scale does matter


@rankings.each_fold
def oracle(settings, basis, fold, seed):
    """A method whose setting says how much of the right answer there is in what it predicts."""
    return [setting * basis.embed(fold.test.Y) for setting in settings]


@pytest.mark.parametrize(("best", "chosen"), [(1, [1]), (2, [1, 0])])
def test_the_best_settings_of_every_fold_are_averaged(best, chosen):
    folds = rankings.make_folds(generate_rankings(40), 4, seed=0)
    method = rankings.RankingMethod("oracle", oracle, (-1, 0, 1), parts=5, best=best)
    predictions, taken = label_ranking.choose_and_fit(rankings.QUICK, method, "Kemeny", folds, 0)
    assert taken == chosen * 4
    for prediction, fold in zip(predictions, folds, strict=True):
        assert prediction.fold is fold
        torch.testing.assert_close(prediction.z, prediction.basis.embed(fold.test.Y) / best)


@pytest.mark.parametrize(("parts", "chosen"), [(1, "right at first"), (5, "right later")])
def test_settings_are_compared_on_all_parts_that_are_held_out(parts, chosen):
    def moody(settings, kernel, folds, seed):
        right, wrong = oracle((1, -1), kernel, folds, seed)
        said = {"right at first": right[:1] + wrong[1:], "right later": wrong[:1] + right[1:]}
        return [said[setting] for setting in settings]

    folds = rankings.make_folds(generate_rankings(60), 4, seed=0)[:1]
    method = rankings.RankingMethod("moody", moody, ("right at first", "right later"), parts=parts)
    assert label_ranking.choose_and_fit(rankings.QUICK, method, "Kemeny", folds, 0)[1] == [chosen]


@pytest.fixture(scope="module")
def texts():
    pytest.importorskip("rdkit")
    from studies.data.chebi20 import describe_molecules

    return describe_molecules(120, 20, 20)


@pytest.mark.parametrize("tower", [MoleculeMLP(hidden=16), MoleculeGCN(hidden=16, layers=2)], ids=["MLP", "GCN"])
def test_contrastive_towers_learn(texts, tower):
    if isinstance(tower, MoleculeGCN):
        pytest.importorskip("torch_geometric")
    molecules = texts.molecules.mol2vec if isinstance(tower, MoleculeMLP) else texts.molecules
    network = networks.WordBag(width=32, hidden=(32,), dropout=0.0)
    training = replace(QUIET, epochs=15, batch_size=40, learning_rate=3e-3, schedule="constant")
    model = CMAM(network, tower, training, dim=16).fit(*texts.train, molecules, validation=texts.val)
    history = model.fitted.history
    assert history["train_loss"][-1] < 0.75 * history["train_loss"][0]
    found = ranks(model.scores(texts.val.texts), torch.from_numpy(texts.val.rows)).reciprocal().mean().item()
    assert found == pytest.approx(max(history["val_score"]), abs=1e-5), "the best epoch is kept"
    scores = model.scores(texts.test.texts)
    assert scores.shape == (20, 160) and scores.abs().max() <= 1 + 1e-5


def test_a_graph_tower_does_not_mix_molecules(texts):
    pytest.importorskip("torch_geometric")
    with seeded(0):
        tower = MoleculeGCN(hidden=8)(texts.molecules, 4).eval()
    rows = torch.tensor([5, 0, 77, 5])
    assert torch.allclose(tower(rows), torch.cat([tower(row[None]) for row in rows]), atol=1e-5)


def test_an_encoder_may_be_joined_by_a_bag_of_words(texts, tmp_path):
    (tmp_path / "encoders" / "small").mkdir(parents=True)
    plain, joined = (
        chebi20_models.TextTask.of(name, texts, tmp_path, CPU, {}).network(0.2)
        for name in ("small", "small + bag of words")
    )
    assert plain.encoder == joined.encoder == str(tmp_path / "encoders" / "small")
    assert plain.words is None and joined.words == networks.WordBag(width=256, buckets=1 << 16, rate=3.0, parts=None)


def test_models_of_several_encoders_answer_together(texts, tmp_path):
    """Each of two encoders knows half of the texts; together they know all of them."""
    task = chebi20_models.TextTask(texts, chebi20_models.make_views(texts.molecules), "second", "second", CPU)
    members = {"first": ("a",), "second": ("b",)}
    name, said = "ours, ensemble, both encoders", []
    config, session = replace(chebi20.QUICK, seeds=(0,), ensembles={name: members}), Session(tmp_path, say=said.append)
    chebi20.run_ensemble(config, name, task, session)
    assert "were not kept" in said.pop()

    molecules = torch.eye(len(task.outputs))
    for half, (encoder, (method,)) in enumerate(members.items()):
        known = {part: molecules[getattr(texts, part).rows] for part in ("val", "test")}
        for vectors in known.values():
            vectors[half::2] = 0.001 * torch.randn(vectors[half::2].shape, generator=Generator().manual_seed(half))
        model = chebi20_models.ModelVectors(**known, molecules=molecules, diag=torch.ones(len(molecules)))
        model.save(chebi20.vectors_file(task, method, 0, session, encoder))
        assert chebi20_models.measure_retrieval(chebi20_models.choose_rule(model, task)[1], task)["hits@1"] < 0.6
        by_rule = {rule: chebi20_models.mean_reciprocal_rank(partial(model.score, rule), task) for rule in RULES}
        assert chebi20_models.rate_rules(model, task) == pytest.approx(by_rule)
    chebi20.run_ensemble(config, name, task, session)
    (row,) = read_rows(tmp_path / "ensembles.jsonl")
    assert row["encoder"] == "first & second" and row["members"] == ["first: a", "second: b"]
    assert row["metrics"]["hits@1"] > 0.95
    assert chebi20.tabulate(tmp_path)[-1]["models"] == 2


def test_vectors_that_could_not_be_kept_are_not_there(tmp_path, monkeypatch):
    """A file that exists counts as finished."""

    def cut(tensors, path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    vectors, file = chebi20_models.ModelVectors(*torch.eye(4).double()), tmp_path / "kept" / "a.safetensors"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(chebi20_models, "save_file", cut)
        vectors.save(file)
    assert list(file.parent.iterdir()) == []
    vectors.save(file)
    again = chebi20_models.ModelVectors.load(file, CPU)
    assert torch.equal(torch.stack([again.val, again.test, again.molecules, again.diag]), torch.eye(4))
