"""Every decoder inside a model: answers come in the form that fit got, and are the same after loading."""

import numpy as np
import pytest

from dsokr import DSOKR, kernels, sketches
from dsokr.outputs import as_outputs, canonical, keys
from dsokr.regressors import KernelRidge
from implementations import DECODERS, names


@pytest.mark.parametrize("case", DECODERS, ids=names)
def test_models_predict_the_same_after_loading(case, tmp_path):
    X, Y = np.random.default_rng(0).normal(size=(40, 3)), case.outputs(40)
    regressor = KernelRidge(kernels.Gaussian(0.5), regularization=1e-3)
    model = DSOKR(case.kernel, sketches.SubSample(20), regressor, decoder=case.made, random_state=0, device="cpu")
    predicted = model.fit(X, Y).predict(X[:10])
    assert type(predicted) is type(Y) and canonical(predicted)[1] == canonical(Y)[1]
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert loaded.decoder_ == case.made
    assert list(keys(as_outputs(loaded.predict(X[:10])))) == list(keys(as_outputs(predicted)))
