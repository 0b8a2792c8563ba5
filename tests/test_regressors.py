"""Properties that every regressor has."""

from dataclasses import replace

import pytest
import scipy.sparse as sp
import torch

from dsokr import DSOKR, kernels, sketches
from dsokr.outputs import take
from dsokr.regressors import Forest, KernelRidge, Scikit, Targets
from implementations import REGRESSORS, names, vectors

N = 40


@pytest.fixture(params=REGRESSORS, ids=names)
def case(request):
    return request.param


@pytest.fixture
def targets():
    z = vectors(N)
    return Targets(z, torch.zeros(N, dtype=torch.float64))


def fit(case, targets, seed: int = 0):
    return case.made.fit(case.outputs(N), targets, seed=seed, device=torch.device("cpu"))


def test_shape_type_and_determinism(case, targets):
    fitted = fit(case, targets)
    z = fitted.predict(case.outputs(N))
    assert z.shape == (N, 4) and z.dtype == torch.float64 and torch.isfinite(z).all() and not z.requires_grad
    assert torch.equal(fit(case, targets).predict(case.outputs(N)), z)
    torch.testing.assert_close(fitted.predict(take(case.outputs(N), [3, 1])), z[[3, 1]], rtol=1e-4, atol=1e-5)


def test_state_restores_it(case, targets, tmp_path):
    fitted = fit(case, targets)
    fitted.write_files(tmp_path)
    restored = case.made.restore(fitted.state(), tmp_path, 4, torch.device("cpu"))
    assert torch.equal(restored.predict(case.outputs(N)), fitted.predict(case.outputs(N)))


def test_learns_and_is_saved_with_a_model(case, tmp_path):
    ys = vectors(N)
    model = DSOKR(kernels.Gaussian(0.1), sketches.SubSample(10), case.made, random_state=0, device="cpu")
    model.fit(case.outputs(N), ys)
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert loaded.regressor == case.made or isinstance(case.made, Scikit)  # whose estimator is not written down
    assert torch.equal(loaded.coefficients(case.outputs(N)), model.coefficients(case.outputs(N)))
    assert torch.equal(loaded.predict(case.outputs(N)), model.predict(case.outputs(N)))


def test_predictions_out_of_fold_did_not_see_their_pairs(case, targets):
    """However a target is changed, the predictions of its own input without it stay near the others' fit."""
    folds = list(torch.arange(N).tensor_split(4))
    fitted, z = case.made.fit_out_of_fold(case.outputs(N), targets, folds, seed=0, device=torch.device("cpu"))
    assert z.shape == (N, 4) and torch.isfinite(z).all()
    seen = (fitted.predict(case.outputs(N)) - targets.coordinates).square().sum()
    assert (z - targets.coordinates).square().sum() > 0.9 * seen  # targets are noise: none can be foreseen


def test_sample_weights_are_repeated_rows(case, targets):
    """For everything that is solved, not trained or drawn at random."""
    X = case.outputs(N)
    is_ridge = isinstance(case.made, KernelRidge) and case.made.sketch is None
    if not (is_ridge and (case.made.kernel or sp.issparse(X))) and case.made != Forest(10, min_split=4):
        pytest.skip("random in the rows")
    if isinstance(case.made, KernelRidge):
        case = replace(case, made=replace(case.made, regularization=1e-3))
    weights = torch.arange(N) % 3
    rows = torch.arange(N).repeat_interleave(weights)
    options = {"seed": 0, "device": torch.device("cpu")}
    weighted = case.made.fit(X, targets._replace(weights=weights.double()), **options)
    repeated = case.made.fit(take(X, rows), targets.take(rows), **options)
    torch.testing.assert_close(weighted.predict(X), repeated.predict(X), rtol=0, atol=1e-7)
