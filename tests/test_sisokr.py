"""SISOKR against closed forms, and what it refuses."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dsokr import kernels, sketches
from studies.baselines import SISOKR, sisokr
from studies.data.molecules import generate
from studies.data.smi2mol import Pairs, SMI2Mol
from dsokr.decoders import Candidates
from dsokr.errors import InputError
from studies import smi2mol_baselines
from dsokr.graphs import GraphBatch
from dsokr.metrics import edit_distance

GAUSSIAN, TANIMOTO = kernels.Gaussian(0.2), kernels.Tanimoto()


@pytest.fixture
def pairs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 4))
    return X, (X @ rng.normal(size=(4, 6)) + 0.3 * rng.normal(size=(160, 6)) > 0).astype(float)


def small(**options) -> SISOKR:
    sketch = sketches.SubSample(40)
    return SISOKR(GAUSSIAN, TANIMOTO, sketch, sketches.SubSample(30), random_state=0, device="cpu", **options)


def accuracy(predicted, true) -> float:
    return float((predicted == true).all(axis=1).mean())


@pytest.mark.parametrize("regularization", [1e-1, 1e-5])
def test_without_sketching_it_is_iokr(pairs, regularization):
    """score(x, y) = 2 Σ_i α_i(x) k(y_i, y) − k(y, y) with α(x) = (K_x + nλ)^{-1} k_x, the closed form."""
    X, Y = pairs
    n, k = 120, kernels.Laplacian(0.5)
    model = SISOKR(k, TANIMOTO, sketches.Full(), sketches.Full(), regularization=regularization, random_state=0)
    model.fit(X[:n], Y[:n])
    alpha = torch.linalg.solve(k(X[:n], X[:n]) + n * regularization * torch.eye(n), k(X[:n], X[n:])).T
    scores = 2 * alpha @ TANIMOTO(Y[:n], Y[n:]) - TANIMOTO.diag(Y[n:])
    torch.testing.assert_close(model.basis_.score(model.coefficients(X[n:]), Y[n:]), scores, rtol=0, atol=1e-8)
    assert (Y[n:][model.rank(X[n:], Y[n:], k=1).indices[:, 0]] == Y[n:][scores.argmax(dim=1)]).all()


def test_any_sketch_is_ridge_regression_of_coordinates(pairs):
    X, Y = pairs
    model = SISOKR(
        GAUSSIAN, TANIMOTO, sketches.Gaussian(25), sketches.Sparsified(20), regularization=1e-3, random_state=3
    ).fit(X, Y)
    Zx, Zy = model.input_basis_.embed(X), model.basis_.embed(Y)
    W = torch.linalg.solve(Zx.T @ Zx + len(X) * 1e-3 * torch.eye(model.input_basis_.dim), Zx.T @ Zy)
    torch.testing.assert_close(model.weights_, W, rtol=0, atol=1e-8)
    torch.testing.assert_close(model.coefficients(X[:7]), Zx[:7] @ W, rtol=0, atol=1e-8)


def test_blocks_change_nothing(pairs, monkeypatch):
    whole = small().fit(*pairs)
    monkeypatch.setattr(sisokr, "BLOCK", 7)
    torch.testing.assert_close(small().fit(*pairs).weights_, whole.weights_, rtol=1e-8, atol=1e-8)


def test_path_of_regularizations_equals_separate_fits(pairs):
    X, Y = pairs
    train, validation = (X[:120], Y[:120]), (X[120:], Y[120:])
    values = (1e-7, 1e-3, 1e-1, 10.0)
    path = small(regularization=values).fit(*train, validation)
    apart = [small(regularization=value).fit(*train, validation) for value in values]
    assert path.trials_ == [trial for model in apart for trial in model.trials_]
    best = max(path.trials_, key=lambda trial: trial.score)
    assert best.score > min(trial.score for trial in path.trials_)
    assert (path.regularization_, path.decoder_) == (best.regularization, best.decoder)
    chosen = apart[values.index(best.regularization)]
    torch.testing.assert_close(path.weights_, chosen.weights_)
    assert (path.predict(X[120:]) == chosen.predict(X[120:])).all()


def test_trial_scores_are_the_kernel_loss_of_predictions(pairs):
    X, Y = pairs
    model = small(regularization=(1e-6, 1e-2)).fit(X[:120], Y[:120], (X[120:], Y[120:]))
    predicted = torch.from_numpy(model.predict(X[120:]))
    loss = sum(
        2 - 2 * TANIMOTO(a[None], b[None]).item() for a, b in zip(predicted, torch.from_numpy(Y[120:]), strict=True)
    )
    assert max(trial.score for trial in model.trials_) == pytest.approx(-loss / 40)


def test_monitor_decides(pairs):
    """With a metric that is better when predictions are worse, the worst of the same trials is kept."""
    X, Y = pairs
    validation = X[120:], Y[120:]
    values = (1e-4, 1e3)
    best = small(regularization=values, monitor=accuracy).fit(X[:120], Y[:120], validation)
    worst = small(regularization=values, monitor=lambda a, b: -accuracy(a, b)).fit(X[:120], Y[:120], validation)
    assert accuracy(best.predict(validation[0]), validation[1]) > accuracy(worst.predict(validation[0]), validation[1])
    assert [t.score for t in best.trials_] == [-t.score for t in worst.trials_]


def test_without_validation_the_rule_is_the_papers(pairs):
    model = small().fit(*pairs)
    assert model.decoder_ == Candidates(rule="kernel") and model.trials_ == []


def test_seeds_and_clones(pairs):
    model = small().fit(*pairs)
    assert torch.equal(clone(model).fit(*pairs).weights_, model.weights_)
    other = clone(model).set_params(random_state=1).fit(*pairs)
    assert other.weights_.shape != model.weights_.shape or not torch.equal(other.weights_, model.weights_)


def test_own_candidates_and_their_ranking(pairs):
    X, Y = pairs
    own = np.unique(Y, axis=0)[:5]
    model = small(decoder=Candidates(rule="projected", outputs=own)).fit(X, Y)
    ranking = model.rank(X[:9], k=3)
    scores = model.basis_.score(model.coefficients(X[:9]), own, "projected")
    torch.testing.assert_close(ranking.scores, scores.sort(dim=1, descending=True).values[:, :3])
    assert (model.predict(X[:9]) == own[ranking.indices[:, 0]]).all()


@pytest.mark.parametrize("value", [0, -1e-3, float("nan"), float("inf"), (), (1e-3, 0.0), "small"])
def test_refuses_a_regularization_that_is_not_positive(pairs, value):
    with pytest.raises(InputError, match="regularization must be a positive number"):
        small(regularization=value).fit(*pairs)


def test_refuses_what_it_cannot_use(pairs):
    X, Y = pairs
    with pytest.raises(InputError, match="as many rows. Got 160 inputs and 159"):
        small().fit(X, Y[1:])
    with pytest.raises(InputError, match="validation: X and Y must have as many rows"):
        small().fit(X, Y, (X[:5], Y[:4]))
    with pytest.raises(InputError, match="pass validation"):
        small(regularization=(1e-3, 1e-4)).fit(X, Y)
    with pytest.raises(InputError, match="SISOKR.input_sketch must be a SketchSpec. Got 40"):
        SISOKR(GAUSSIAN, TANIMOTO, 40, sketches.Full()).fit(X, Y)
    with pytest.raises(InputError, match="monitor must be a function"):
        small(monitor="ged").fit(X, Y)
    with pytest.raises(InputError, match="k must be at least 1"):
        small().fit(X, Y).rank(X, k=0)
    with pytest.raises(NotFittedError):
        small().predict(X)


def test_experiment_finds_molecules_that_it_knows():
    """Validation and test molecules are among the training molecules, and strings of their edges tell them apart."""
    graphs = generate(60, seed=0)
    pairs = Pairs(["".join(map(str, (*g.labels, *sum(g.edges, ())))) for g in graphs], GraphBatch.of(graphs))
    split = SMI2Mol(pairs, pairs.rows(np.arange(10)), pairs.rows(np.arange(10, 30)))
    row, predicted = smi2mol_baselines.sisokr(
        split, 0, input_size=60, size=60, regularizations=(1e-9, 1e3), device="cpu"
    )
    assert row["chosen"]["regularization"] == 1e-9
    distances = edit_distance(predicted, split.test.graphs)
    assert row["metrics"]["ged_edge_labels"] == distances.mean().item() < 0.5
    assert (row["n_train"], row["n_test"]) == (60, 20)
