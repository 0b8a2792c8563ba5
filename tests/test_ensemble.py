"""Ensembles, ranks with ties, and the loss on ranks."""

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone

from dsokr import DSOKR, Ensemble, Training, kernels, networks, sketches
from dsokr.decoders import Candidates
from dsokr.ensemble import all_ranks, combine_scores
from dsokr.errors import InputError
from dsokr.losses import Ranked, Squared
from dsokr.metrics import ranks
from dsokr.regressors import KernelRidge, Neural
from dsokr.rules import RULES, score


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    return X, np.round(X @ rng.normal(size=(4, 3)), 1)


@pytest.fixture(scope="module")
def members(data):
    kinds = (kernels.Gaussian(0.1), kernels.Laplacian(0.2), kernels.Linear())
    return [
        DSOKR(
            kernel,
            sketches.SubSample(20),
            Neural(networks.MLP((16,)), training=Training(epochs=3, progress=False)),
            random_state=seed,
        ).fit(*data)
        for seed, kernel in enumerate(kinds)
    ]


def test_combinations_are_what_they_say(members, data):
    X = data[0][:30]
    scores = [member.scores(X).double() for member in members]
    assert torch.allclose(Ensemble(members, "mean score").scores(X), torch.stack(scores).mean(dim=0))
    assert torch.allclose(Ensemble(members, "max score").scores(X), torch.stack(scores).amax(dim=0))
    by_rank = torch.stack([torch.stack([ranks(s, torch.full((30,), c)) for c in range(s.shape[1])], 1) for s in scores])
    assert torch.allclose(Ensemble(members, "mean rank").scores(X), -by_rank.mean(dim=0))
    weighted = Ensemble(members, "mean score", weights=[2, 1, 1]).scores(X)
    assert torch.allclose(weighted, (2 * scores[0] + scores[1] + scores[2]) / 4)


def test_rank_is_the_order_of_scores(members, data):
    X = data[0][:20]
    for combine in ("mean rank", "mean score", "max score"):
        ensemble = Ensemble(members, combine, standardize=True)
        ranking = ensemble.rank(X, k=5)
        expected = ensemble.scores(X).float().sort(dim=1, descending=True, stable=True)
        assert torch.equal(ranking.indices, expected.indices[:, :5])
        assert (ensemble.predict(X) == members[0].known_.outputs[ranking.indices[:, 0]].numpy()).all()


def test_candidates_of_ones_own(members, data):
    X, Y = data[0][:5], data[1][40:50]
    ensemble = Ensemble(members[:2])
    ranking = ensemble.rank(X, Y, k=50)
    assert ranking.indices.shape == (5, 10)
    assert sorted(ranking.indices[0].tolist()) == list(range(10))


def test_one_member_alone(members, data):
    X = data[0][:10]
    one = Ensemble(members[:1], "mean score")
    assert torch.equal(one.rank(X, k=3).indices, members[0].rank(X, k=3).indices)


def test_bad_ensembles(members, data):
    with pytest.raises(InputError, match="at least one member"):
        Ensemble([])
    with pytest.raises(InputError, match="combine must be one of 'mean rank'"):
        Ensemble(members, "median")
    with pytest.raises(InputError, match="one number for each of the 3 members"):
        Ensemble(members, weights=[1.0])
    other = DSOKR(
        kernels.Linear(), sketches.SubSample(3), Neural(networks.MLP(()), training=Training(epochs=1)), random_state=0
    ).fit(data[0][:10], data[1][:10])
    with pytest.raises(InputError, match="Members 0 and 1 were trained on different outputs: pass candidates"):
        Ensemble([members[0], other]).predict(data[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: Ensemble(["x"]), "fitted DSOKR models. Got 'x' at 0"),
        (lambda m: Ensemble([*m, clone(m[0])]), r"fitted DSOKR models. Got DSOKR\([\s\S]* at 3"),
        (lambda m: Ensemble(m, weights=[1.0, float("nan"), 1.0]), "one number for each of the 3 members"),
        (lambda m: Ensemble(m, weights=[1.0, float("inf"), 1.0]), "one number for each of the 3 members"),
        (lambda m: Ensemble(m, "max score", weights=[1.0, 1.0, 1.0]), "weights are for means"),
        (lambda m: Ensemble(m).rank([[0.0, 0.0]], k=0), "k must be an integer of at least 1. Got 0"),
        (lambda m: Ensemble(m).rank([[0.0, 0.0]], k=2.5), "k must be an integer of at least 1. Got 2.5"),
        (lambda m: combine_scores([torch.zeros(1, 2)], "median"), "combine must be one of"),
    ],
)
def test_refuses(make, message, members):
    with pytest.raises(InputError, match=message):
        make(members)


def test_members_that_met_their_outputs_in_another_order():
    X = np.random.default_rng(0).normal(size=(60, 2))
    Y = (X > 0).astype(int)
    training = Training(epochs=40, learning_rate=0.02, validation_fraction=0.0)
    network = Neural(networks.MLP((32,)), training=training)
    members = [
        DSOKR(kernels.Linear(), sketches.SubSample(4), network, random_state=seed).fit(X[at], Y[at])
        for seed, at in enumerate((np.arange(40), np.arange(20, 60), np.arange(59, 19, -1)))
    ]
    first, last = (members[i].known_.outputs.tolist() for i in (0, 2))
    assert first != last and sorted(first) == sorted(last)
    for combine in ("mean rank", "mean score", "max score"):
        together = Ensemble(members, combine)
        assert (together.predict(X) == Y).all(axis=1).mean() > 0.9
        assert torch.equal(together.scores(X), together.scores(X, members[0].known_.outputs))


def test_many_equal_ranks_are_exact():
    scores = torch.zeros(1, 33_010)
    scores[0, 5] = 1
    assert all_ranks(scores)[0, :6].tolist() == [(2 + 33_010) / 2] * 5 + [1]


@pytest.mark.parametrize("unit", [1e-15, 1e15])
def test_standardized_scores_of_any_size(unit):
    a = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = combine_scores([a, a.flip(1)], "mean score", standardize=True)
    assert torch.allclose(combine_scores([unit * a, a.flip(1)], "mean score", standardize=True), expected)
    assert not combine_scores([a[:, :1]], "mean score", standardize=True).any()


def test_all_ranks_share_ties():
    scores = torch.tensor([[3.0, 1.0, 3.0, 2.0, 3.0]])
    assert all_ranks(scores).tolist() == [[2.0, 5.0, 2.0, 4.0, 2.0]]
    drawn = torch.randint(0, 4, (20, 15), generator=torch.Generator().manual_seed(0)).float()
    one_by_one = torch.stack([ranks(drawn, torch.full((20,), c)) for c in range(15)], dim=1)
    assert torch.equal(all_ranks(drawn).double(), one_by_one)


def test_standardized_scores_do_not_depend_on_scale():
    a, b = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0))
    once = combine_scores([a, b], "mean score", standardize=True)
    assert torch.allclose(once, combine_scores([100 * a + 7, b], "mean score", standardize=True), atol=1e-5)


def test_embedded_outputs_rank_the_truth(members, data):
    X = data[0][:20]
    for member in members:
        z, truth = member.coefficients(X), torch.arange(20)
        for rule in RULES:
            scores = score(z, *member.known_.coordinates(), rule)
            assert torch.equal(member.known_.ranks(z, truth, rule), ranks(scores, truth))


def test_training_can_watch_the_reciprocal_rank(data):
    X, Y = data
    model = DSOKR(
        kernels.Gaussian(0.1),
        sketches.SubSample(20),
        Neural(networks.MLP((16,)), training=Training(epochs=4, monitor="mrr", progress=False)),
        decoder=Candidates(outputs=Y),
        random_state=0,
    ).fit(X[:60], Y[:60], validation=(X[60:], Y[60:]))
    rule = model.decoder_.scoring_rule()
    found = model.known_.ranks(model.coefficients(X[60:]), torch.arange(60, 80), rule).reciprocal().mean().item()
    assert math.isclose(found, max(model.history_["val_score"]), abs_tol=1e-6)
    with pytest.raises(InputError, match="The output at index 0 is not among the candidates"):
        model.fit(X[:60], Y[:60], validation=(X[60:], Y[60:] + 100))


def test_ranked_loss_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    targets = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    loss = Ranked(Squared(), weight=0.5, temperature=0.1).among(targets)
    own, residual = targets[:2], torch.tensor([0.1, 0.2])
    cosines = torch.nn.functional.normalize(z, dim=1) @ torch.nn.functional.normalize(targets, dim=1).T
    expected = torch.nn.functional.cross_entropy(cosines / 0.1, torch.tensor([0, 1]))
    assert torch.isclose(loss.mean(z, own, residual), Squared().mean(z, own, residual) + 0.5 * expected)


def test_equal_outputs_are_no_competitors():
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    once, twice = Ranked().among(targets[1:]), Ranked().among(targets)
    z = torch.tensor([[0.3, 0.4]])
    assert torch.isclose(once.mean(z, targets[:1], torch.zeros(1)), twice.mean(z, targets[:1], torch.zeros(1)))
    alone = Ranked().among(targets[:2])
    assert alone.ranking(z, targets[:1]).item() == pytest.approx(0.0, abs=1e-6), "nothing to rank among"


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1.0, 1e6])
def test_ranking_does_not_depend_on_the_unit_of_the_outputs(unit):
    targets = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    targets[5] = targets[0]
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    expected = Ranked().among(targets).ranking(z, targets)
    exact = Ranked().among(targets.double())
    assert exact.mean(z.double(), targets.double(), torch.zeros(6)).dtype == torch.float64
    assert torch.isclose(Ranked().among(unit * targets).ranking(z, unit * targets), expected, rtol=1e-4)


def test_ranked_loss_is_checked_and_trains(data):
    with pytest.raises(InputError, match="temperature must be positive"):
        Ranked(temperature=0.0)
    X, Y = data
    found = {}
    for loss in (Squared(), Ranked(weight=1.0, temperature=0.1)):
        model = DSOKR(
            kernels.Gaussian(0.5),
            sketches.SubSample(60),
            Neural(
                networks.MLP((64,)),
                loss=loss,
                training=Training(epochs=60, learning_rate=0.005, progress=False, patience=None),
            ),
            decoder=Candidates("cosine", outputs=Y),
            random_state=0,
        ).fit(X, Y, validation=(X, Y))
        z = model.coefficients(X)
        found[type(loss)] = model.known_.ranks(z, torch.arange(80), "cosine").reciprocal().mean().item()
    assert found[Ranked] > found[Squared]


def test_standardized_scores_do_not_amplify_rounding():
    """Scores that are equal but for rounding say nothing, so the other member decides."""
    equal = torch.full((1, 5), 0.1, dtype=torch.float64) * 3
    equal[0, 2] = 0.3  # one unit in the last place less
    other = torch.arange(5.0, dtype=torch.float64)[None]
    assert len(equal.unique()) == 2
    alone = combine_scores([other], "mean score", standardize=True)
    assert torch.allclose(combine_scores([equal, other], "mean score", standardize=True), alone / 2)


def test_an_ensemble_follows_members_that_are_fitted_again(data):
    X, Y = data
    models = [DSOKR(kernels.Linear(), sketches.Full(), KernelRidge(), random_state=0).fit(X, Y) for _ in range(2)]
    ensemble = Ensemble(models)
    before = ensemble.predict(X)
    for model in models:
        model.fit(X, Y + 10)
    assert (before < 10).any() and np.array_equal(ensemble.predict(X), Ensemble(models).predict(X))
