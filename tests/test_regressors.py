"""Properties that every regressor has."""

import pytest
import torch

from dsokr import DSOKR, kernels, sketches
from dsokr.regressors import Scikit
from dsokr.testing import check_regressor
from implementations import REGRESSORS, names, vectors

N = 40
SOLVED = ("kernel ridge", "kernel ridge of a sparse table", "forest on a sparse table")  # neither trained nor random


@pytest.fixture(params=REGRESSORS, ids=names)
def case(request):
    return request.param


def test_properties(case):
    check_regressor(case.made, case.outputs(N), weights=case.name in SOLVED)


def test_learns_and_is_saved_with_a_model(case, tmp_path):
    ys = vectors(N)
    model = DSOKR(kernels.Gaussian(0.1), sketches.SubSample(10), case.made, random_state=0, device="cpu")
    model.fit(case.outputs(N), ys)
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert loaded.regressor == case.made or isinstance(case.made, Scikit)  # whose estimator is not written down
    assert torch.equal(loaded.coefficients(case.outputs(N)), model.coefficients(case.outputs(N)))
    assert torch.equal(loaded.predict(case.outputs(N)), model.predict(case.outputs(N)))
