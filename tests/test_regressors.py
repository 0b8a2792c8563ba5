"""Properties that every regressor has."""

import pytest
import torch

from dsokr import DSOKR, kernels, sketches
from dsokr.outputs import take
from dsokr.regressors import Targets
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
    assert loaded.regressor == case.made
    assert torch.equal(loaded.coefficients(case.outputs(N)), model.coefficients(case.outputs(N)))
    assert torch.equal(loaded.predict(case.outputs(N)), model.predict(case.outputs(N)))
