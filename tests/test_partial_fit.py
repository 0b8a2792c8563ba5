"""Learning from further pairs: the basis stays, the regressor and the list of candidates grow."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import MultiOutputMixin, clone
from sklearn.linear_model import Ridge, SGDRegressor
from sklearn.neural_network import MLPRegressor

from dsokr import DSOKR, Training, kernels, networks, sketches
from dsokr.decoders import Candidates, Gradient
from dsokr.errors import InputError, TrainingError
from dsokr.regressors import Boosted, Forest, KernelRidge, Neighbors, Neural, Stack
from implementations import graphs, vectors

QUICK = Training(epochs=3, batch_size=16, learning_rate=0.01, validation_fraction=0.0)
FIRST, REST = slice(60), slice(60, None)


def pairs(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    return X, (X @ rng.normal(size=(5, 4)) > 0).astype(int)


def neural(network=None, **changes) -> Neural:
    return Neural(network or networks.MLP((16,)), training=Training(**vars(QUICK) | changes))


def model(regressor, kernel=None, **changes) -> DSOKR:
    return DSOKR(
        kernel or kernels.Tanimoto(), sketches.SubSample(12), regressor, random_state=0, device="cpu", **changes
    )


class ManyOutputs(MultiOutputMixin, MLPRegressor):
    """A regressor of several numbers at once that has ``partial_fit``."""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [SGDRegressor, MLPRegressor, ManyOutputs])
def test_regressors_of_scikit_learn_do_what_they_do_alone(kind, weighted):
    X, Y = pairs()
    s = np.random.default_rng(1).uniform(0.5, 2, len(X)) if weighted else None
    first, rest = (None, None) if s is None else (s[FIRST], s[REST])
    estimator = kind(max_iter=5, random_state=3)
    fitted = model(estimator).partial_fit(X[FIRST], Y[FIRST], first).partial_fit(X[REST], Y[REST], rest)
    z = fitted.basis_.embed(Y).numpy()
    mean = np.average(z[FIRST], axis=0, weights=first)
    if kind is ManyOutputs:
        alone = clone(estimator).fit(X[FIRST], z[FIRST] - mean, sample_weight=first)
        expected = mean + alone.partial_fit(X[REST], z[REST] - mean, sample_weight=rest).predict(X)
    else:
        V = fitted.regressor_.directions.numpy()
        goals = (z - mean) @ V
        several = [clone(estimator).fit(X[FIRST], goal, sample_weight=first) for goal in goals[FIRST].T]
        for one, goal in zip(several, goals[REST].T, strict=True):
            one.partial_fit(X[REST], goal, sample_weight=rest)
        expected = mean + np.stack([one.predict(X) for one in several], axis=1) @ V.T
    np.testing.assert_allclose(fitted.coefficients(X), expected, rtol=0, atol=1e-10)
    assert len(fitted.known_) == len(np.unique(Y, axis=0)) and fitted.n_pairs_ == len(X)


def test_a_network_does_one_step_of_its_optimizer_for_every_batch():
    """In one batch of all pairs, an epoch of Adam is one step: the gradient's sign times the learning rate."""
    X, Y = pairs()
    linear = neural(lambda p: torch.nn.Linear(5, p), learning_rate=0.01, batch_size=200)
    fitted = model(linear).fit(X[FIRST], Y[FIRST])
    network = fitted.regressor_.network
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    inputs, goals = torch.from_numpy(X[REST]).float(), fitted.basis_.embed(Y[REST]).float()
    (network(inputs) - goals).square().sum(dim=1).mean().backward()
    steps = {name: -0.01 * weight.grad.sign() for name, weight in network.named_parameters()}
    fitted.partial_fit(X[REST], Y[REST])
    for name, weight in fitted.regressor_.network.named_parameters():
        torch.testing.assert_close(weight - before[name], steps[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("reads", ["raw", "numbers"])
def test_a_network_gets_better_on_the_new_pairs(reads):
    X, Y = pairs(400)
    regressor = Neural(networks.MLP((32,)), training=QUICK, reads=reads)
    fitted = model(regressor).fit(X[FIRST], Y[FIRST])
    before, basis = fitted.score(X[300:], Y[300:]), fitted.basis_
    for _ in range(15):
        fitted.partial_fit(X[60:300], Y[60:300])
    assert fitted.score(X[300:], Y[300:]) > before + 0.2
    assert fitted.basis_ is basis and not fitted.regressor_.network.training


def test_the_schedule_and_the_folder_are_those_of_fit_alone(tmp_path):
    X, Y = pairs()
    training = {"schedule": "linear", "warmup_steps": 1000, "folder": tmp_path / "run"}
    fitted = model(neural(**training)).fit(X[FIRST], Y[FIRST])
    files = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    before = fitted.coefficients(X)
    fitted.partial_fit(X[REST], Y[REST])
    assert (fitted.coefficients(X) - before).abs().max() > 1e-2  # far more than the first steps of a warm-up
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == files


@pytest.mark.parametrize("regressor", [neural(), SGDRegressor(random_state=0)], ids=["network", "scikit"])
def test_a_loaded_model_goes_on(regressor, tmp_path):
    if not isinstance(regressor, Neural):
        pytest.importorskip("skops")
    X, Y = pairs()
    fitted = model(regressor).fit(X[FIRST], Y[FIRST])
    fitted.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    for one in (fitted, loaded):
        one.partial_fit(X[REST], Y[REST])
    torch.testing.assert_close(loaded.coefficients(X), fitted.coefficients(X))
    assert (loaded.predict(X) == fitted.predict(X)).all() and loaded.report() == fitted.report()


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, torch.as_tensor, sp.csr_array])
def test_new_outputs_become_candidates(form):
    X, Y = pairs()
    few = np.flatnonzero(Y[:, 0] == 0)
    fitted = model(neural(), decoder=Candidates("projected")).fit(X[few], form(Y[few]))
    fitted.rank(X)  # the coordinates of the first candidates are kept
    fitted.partial_fit(X, form(Y))
    known = fitted.known_
    assert len(known) == len(np.unique(Y, axis=0))
    torch.testing.assert_close(known.coordinates()[0], fitted.basis_.embed(known.outputs))
    torch.testing.assert_close(known.coordinates()[1], fitted.basis_.diag(known.outputs))
    assert type(fitted.predict(X)) is type(form(Y))


def test_graphs_and_candidates_of_ones_own():
    X, ys = vectors(40).numpy(), graphs(40)
    kernel = kernels.WeisfeilerLehman(2).normalized()
    fitted = model(neural(), kernel).fit(X[:20], ys[:20]).partial_fit(X[20:], ys[20:])
    assert set(fitted.known_.outputs) == set(ys)
    own = model(neural(), kernel, decoder=Candidates(outputs=ys[:7])).fit(X[:20], ys[:20])
    assert own.partial_fit(X[20:], ys[20:]).known_.outputs == ys[:7]


def test_the_report_counts_all_pairs():
    X, Y = pairs()
    fitted = DSOKR(kernels.Tanimoto(), sketches.SubSample(2), neural(), random_state=0).fit(X[FIRST], Y[FIRST])
    fitted.partial_fit(X[REST], Y[REST])
    assert fitted.missed_ == pytest.approx((fitted.basis_.residual(Y).sum() / fitted.basis_.diag(Y).sum()).item())


def test_a_stack_is_updated_if_its_members_are():
    X, Y = pairs()
    members = neural(), neural(networks.MLP((8,)))
    fitted = model(Stack(members, weights="equal")).fit(X[FIRST], Y[FIRST])
    before = [member.fitted for member in fitted.regressor_.members]
    fitted.partial_fit(X[REST], Y[REST])
    after = [member.fitted for member in fitted.regressor_.members]
    assert all((a.predict(X) != b.predict(X)).any() for a, b in zip(before, after, strict=True))
    torch.testing.assert_close(fitted.coefficients(X), (after[0].predict(X) + after[1].predict(X)) / 2)


@pytest.mark.parametrize(
    ("regressor", "message"),
    [
        (Forest(5), "Forest cannot learn from further pairs: fit it anew"),
        (KernelRidge(kernels.Gaussian(0.1)), "KernelRidge cannot learn"),
        (Neighbors(), "Neighbors cannot learn"),
        (Boosted(5), "Boosted cannot learn"),
        ("auto", "(Forest|KernelRidge) cannot learn"),
        (Ridge(), "Ridge has no partial_fit, so that it cannot learn from further pairs"),
    ],
)
def test_regressors_that_cannot(regressor, message):
    X, Y = pairs()
    fitted = model(regressor).partial_fit(X[FIRST], Y[FIRST])
    with pytest.raises(InputError, match=message):
        fitted.partial_fit(X[REST], Y[REST])
    assert len(fitted.known_) == len(np.unique(Y[FIRST], axis=0)) and fitted.n_pairs_ == 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, Y: (X[:, :4], Y), "X has 4 features, but DSOKR is expecting 5"),
        (lambda X, Y: (X[1:], Y), "inconsistent numbers of samples"),
        (lambda X, Y: (X, Y[:, :3]), "vectors of one length. Got"),
        (lambda X, Y: (X, Y + 0.5), "Further outputs must come as the first ones did, as array of int64. Got array of"),
        (lambda X, Y: (X, sp.csr_array(Y)), "as array of int64. Got sparse of int64"),
        (lambda X, Y: (X, Y, -np.ones(len(X))), "sample_weight must not be negative"),
    ],
)
def test_pairs_that_do_not_fit(change, message):
    X, Y = pairs()
    fitted = model(neural(), decoder=Candidates()).fit(X[FIRST], Y[FIRST])
    before = fitted.coefficients(X)
    with pytest.raises(ValueError, match=message):
        fitted.partial_fit(*change(X[REST], Y[REST]))
    assert torch.equal(fitted.coefficients(X), before)


def test_a_failed_update_leaves_the_model_as_it_was():
    X, Y = pairs()
    fitted = model(neural(batch_size=4)).fit(X[FIRST], Y[FIRST])
    before = fitted.coefficients(X)
    with pytest.raises(TrainingError):
        fitted.partial_fit(X[REST] * 1e30, Y[REST])
    assert torch.equal(fitted.coefficients(X), before)


def test_a_batch_of_one_pair_and_real_vectors():
    X, Y = pairs()[0], vectors(120).numpy()
    fitted = model(neural(), kernels.Gaussian(0.1), decoder=Gradient()).fit(X[FIRST], Y[FIRST])
    assert fitted.partial_fit(X[60:61], Y[60:61]).predict(X).shape == Y.shape
