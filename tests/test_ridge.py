"""Kernel ridge regression against closed forms (SISOKR, IOKR), how its penalty is chosen, and what it refuses."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone

from dsokr import DSOKR, kernels, sketch_basis, sketches
from dsokr.decoders import Candidates
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.regressors import KernelRidge, Targets, ridge
from implementations import graphs

GAUSSIAN, TANIMOTO = kernels.Gaussian(0.2), kernels.Tanimoto()
CPU = torch.device("cpu")


@pytest.fixture
def pairs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 4))
    return X, (X @ rng.normal(size=(4, 6)) + 0.3 * rng.normal(size=(160, 6)) > 0).astype(float)


def small(decoder=Candidates(), **options) -> DSOKR:  # noqa: B008 # frozen
    regressor = KernelRidge(GAUSSIAN, sketches.SubSample(40), **options)
    return DSOKR(TANIMOTO, sketches.SubSample(30), regressor, decoder=decoder, random_state=0, device="cpu")


def accuracy(predicted, true) -> float:
    return float((predicted == true).all(axis=1).mean())


@pytest.mark.parametrize("regularization", [1e-1, 1e-5])
def test_without_sketching_it_is_iokr(pairs, regularization):
    """score(x, y) = 2 Σ_i α_i(x) k(y_i, y) − k(y, y) with α(x) = (K_x + nλ)^{-1} k_x, in plain numpy."""
    X, Y = pairs
    n = 120
    K = np.exp(-0.5 * np.abs(X[:, None] - X).sum(axis=2))
    both = Y @ Y.T
    either = Y.sum(axis=1)[:, None] + Y.sum(axis=1) - both
    T = np.where(either > 0, both / np.maximum(either, 1), 1)  # two empty sets are equal
    alpha = np.linalg.solve(K[:n, :n] + n * regularization * np.eye(n), K[:n, n:]).T
    scores = torch.from_numpy(2 * alpha @ T[:n, n:] - np.diag(T)[n:])

    regressor = KernelRidge(kernels.Laplacian(0.5), regularization=regularization)
    model = DSOKR(TANIMOTO, sketches.Full(), regressor, random_state=0, device="cpu").fit(X[:n], Y[:n])
    torch.testing.assert_close(model.basis_.score(model.coefficients(X[n:]), Y[n:]), scores, rtol=0, atol=1e-8)
    assert (Y[n:][model.rank(X[n:], Y[n:], k=1).indices[:, 0]] == Y[n:][scores.argmax(dim=1)]).all()


@pytest.mark.parametrize("block", [ridge.BLOCK, 7])
def test_any_sketch_is_ridge_regression_of_coordinates(pairs, block, monkeypatch):
    monkeypatch.setattr(ridge, "BLOCK", block)
    X, Y = pairs
    regressor = KernelRidge(GAUSSIAN, sketches.Gaussian(25), 1e-3)
    model = DSOKR(TANIMOTO, sketches.Sparsified(20), regressor, random_state=3, device="cpu").fit(X, Y)
    basis = model.regressor_.ridge.basis
    Zx, Zy = basis.embed(X), model.basis_.embed(Y)
    W = torch.linalg.solve(Zx.T @ Zx + len(X) * 1e-3 * torch.eye(basis.dim), Zx.T @ Zy)
    torch.testing.assert_close(model.coefficients(X[:7]), Zx[:7] @ W, rtol=0, atol=1e-8)


@pytest.mark.parametrize("monitor", ["loss", "mrr", accuracy, lambda a, b: -accuracy(a, b)])
def test_the_best_of_several_penalties(pairs, monitor):
    """Its weights are those of a fit with that penalty alone; the history has what each was worth."""
    X, Y = pairs
    train, validation, values = (X[:120], Y[:120]), (X[120:], Y[120:]), (1e-7, 1e-3, 1e-1, 1e3)
    own = Candidates(outputs=np.unique(Y, axis=0))
    path = small(own, regularization=values, monitor=monitor).fit(*train, validation)
    apart = [small(own, regularization=value, monitor=monitor).fit(*train, validation) for value in values]
    history = path.history_
    assert history.rows == [row | {"epoch": i + 1} for i, one in enumerate(apart) for row in one.history_.rows]
    worth = [-loss for loss in history["val_loss"]] if monitor == "loss" else history["val_score"]
    assert history["regularization"] == list(values) and min(worth) < max(worth)
    assert history.best_epoch == 1 + worth.index(max(worth))
    chosen = apart[history.best_epoch - 1]
    assert path.regressor_.regularization == values[history.best_epoch - 1]
    assert torch.equal(path.regressor_.dual, chosen.regressor_.dual)
    assert (path.predict(X[120:]) == chosen.predict(X[120:])).all()


def test_the_validation_loss_is_the_distance_in_feature_space(pairs):
    X, Y = pairs
    model = small(regularization=1e-6).fit(X[:120], Y[:120], (X[120:], Y[120:]))
    expected = model.basis_.squared_distance(model.coefficients(X[120:]), Y[120:]).mean().item()
    assert model.history_["val_loss"] == pytest.approx([expected])


def test_without_validation_all_pairs_are_fitted_and_the_rule_is_the_papers(pairs):
    model = small(regularization=1e-6).fit(*pairs)
    assert model.decoder_ == Candidates(rule="kernel") and model.history_.rows == []
    held_out = small(regularization=(1e-6, 1e-2), validation_fraction=0.25).fit(*pairs)
    assert len(held_out.history_.rows) == 2


def test_seeds_and_clones(pairs):
    model = small().fit(*pairs)
    dual = model.regressor_.dual
    assert torch.equal(clone(model).fit(*pairs).regressor_.dual, dual)
    other = clone(model).set_params(random_state=1).fit(*pairs).regressor_.dual
    assert other.shape != dual.shape or not torch.equal(other, dual)


@pytest.mark.parametrize("sketch", [None, sketches.Full(), sketches.Gaussian(30)])
@pytest.mark.parametrize("intercept", [False, True])
def test_leaving_one_out_is_fitting_without_it(pairs, sketch, intercept):
    """For every pair in turn, with the same total λ n, and the same basis and mean of the targets."""
    X, Y = pairs
    X, Y = X[:40], Y[:40]
    z = torch.from_numpy(Y[:, :3].astype(float))
    made = KernelRidge(GAUSSIAN, sketch, regularization=1e-2, intercept=intercept)
    fitted, left_out = made.fit_out_of_fold(X, targets_of(z), (), seed=0, device=CPU)
    mean = z.mean(dim=0) * intercept
    torch.testing.assert_close(fitted.mean, mean)
    K = GAUSSIAN(X, X)
    if sketch is not None and not isinstance(sketch, sketches.Full):
        basis = sketch_basis(GAUSSIAN, X, sketch, generator=torch.Generator().manual_seed(1))
        K = basis.embed(X) @ basis.embed(X).T
    for i in (0, 17, 39):
        rest = [j for j in range(40) if j != i]
        dual = torch.linalg.solve(K[rest][:, rest] + 40 * 1e-2 * torch.eye(39), z[rest] - mean)
        torch.testing.assert_close(left_out[i], mean + K[i, rest] @ dual, rtol=0, atol=1e-7)


def targets_of(z):
    return Targets(z, torch.zeros(len(z), dtype=torch.float64))


def test_without_validation_penalty_and_width_are_chosen_by_leaving_one_out(pairs):
    X, Y = pairs
    chosen = KernelRidge(intercept=True).fit(X, targets_of(torch.from_numpy(Y.astype(float))), seed=0, device=CPU)
    losses = chosen.history["val_loss"]
    assert len(losses) == len(ridge.WIDTHS) * len(ridge.PENALTIES)
    assert losses[chosen.history.best_epoch - 1] == min(losses)


WORDS = ["CCO", "CCN", "CCCO", "CCCN", "OCCO", "NCCN"] * 4


@pytest.mark.parametrize(
    ("kernel", "X"),
    [
        (GAUSSIAN, np.random.default_rng(0).normal(size=(24, 3))),
        (TANIMOTO, torch.randint(0, 2, (24, 9), generator=torch.Generator().manual_seed(0))),
        (kernels.NGram((1, 2)), WORDS),
        (kernels.WeisfeilerLehman(2), graphs(24)),
        (kernels.WeisfeilerLehman(2), GraphBatch.of(graphs(24))),
    ],
    ids=["rows", "bits", "strings", "graphs", "batch"],
)
@pytest.mark.parametrize("sketch", [sketches.Full(), sketches.Gaussian(12)])
def test_any_inputs_saved_and_loaded(tmp_path, kernel, X, sketch):
    regressor = KernelRidge(kernel, sketch, 1e-4)
    targets = Targets(torch.eye(24, dtype=torch.float64)[:, :5], torch.zeros(24, dtype=torch.float64))
    fitted = regressor.fit(X, targets, seed=0, device=CPU)
    z = fitted.predict(X)
    assert z.shape == (24, 5) and z.dtype == torch.float64
    restored = regressor.restore(fitted.state(), tmp_path, 5, CPU)
    assert torch.equal(restored.predict(X), z) and restored.regularization == 1e-4

    model = DSOKR(kernels.NGram(2).normalized(), sketches.Full(), regressor, random_state=0, device="cpu").fit(X, WORDS)
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert loaded.regressor == regressor and loaded.predict(X) == model.predict(X)
    assert torch.equal(loaded.coefficients(X), model.coefficients(X))


@pytest.mark.parametrize("value", [0, -1e-3, float("nan"), float("inf"), (), (1e-3, 0.0)])
def test_refuses_a_regularization_that_is_not_positive(value):
    with pytest.raises(InputError, match="regularization must be positive"):
        small(regularization=value)


def test_refuses_what_it_cannot_use(pairs):
    with pytest.raises(InputError, match="KernelRidge.sketch must be a SketchSpec, or None. Got 40"):
        KernelRidge(GAUSSIAN, 40)
    with pytest.raises(InputError, match="KernelRidge.monitor must be one of 'loss', 'mrr', or a function. Got 'ged'"):
        small(monitor="ged")


@pytest.mark.parametrize("is_sparse", [False, True])
def test_with_more_rows_than_columns_the_columns_span_everything(monkeypatch, is_sparse):
    """The linear kernel on many rows: the solution on all of them, in plain numpy, not that of a sketch."""
    monkeypatch.setattr(ridge, "MOST", 50)
    rng = np.random.default_rng(0)
    X, T = rng.normal(size=(200, 7)), rng.normal(size=(200, 3))
    targets = Targets(torch.from_numpy(T), torch.zeros(200, dtype=torch.float64))
    made = KernelRidge(kernels.Linear(), regularization=1e-2)
    given = sp.csr_array(X) if is_sparse else X
    fitted, left_out = made.fit_out_of_fold(given, targets, [], seed=0, device=CPU)
    W = np.linalg.solve(X.T @ X + 2 * np.eye(7), X.T @ T)
    np.testing.assert_allclose(fitted.predict(given).numpy(), X @ W, atol=1e-9)
    rest = np.arange(200) != 3
    W = np.linalg.solve(X[rest].T @ X[rest] + 2 * np.eye(7), X[rest].T @ T[rest])
    np.testing.assert_allclose(left_out[3].numpy(), X[3] @ W, atol=1e-9)
