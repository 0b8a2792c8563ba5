import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from dsokr import DSOKR, Training, kernels, losses, metrics, networks, sketches
from dsokr.decoders import Candidates
from dsokr.errors import InputError, TrainingError
from dsokr.kernels import Kernel
from dsokr.regressors import Neural
from implementations import vectors

QUICK = Training(epochs=40, batch_size=32, learning_rate=0.02)


def model(**changes) -> DSOKR:
    neural = {"network": networks.MLP((32,)), "loss": losses.Squared(), "training": QUICK}
    neural |= {name: changes.pop(name) for name in tuple(changes) if name in neural}
    parts = {
        "kernel": kernels.Tanimoto(),
        "sketch": sketches.SubSample(30),
        "regressor": Neural(**neural),
        "random_state": 0,
        "device": "cpu",
    }
    return DSOKR(**(parts | changes))


def label_sets(n: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).normal(size=(n, 5))
    return X, (X[:, :3] > 0).astype(np.int64)


EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": "batches of a network are random in the rows",
    "check_sample_weight_equivalence_on_sparse_data": "likewise",
}


@parametrize_with_checks(
    [model(kernel=kernels.Gaussian(0.1), sketch=sketches.SubSample(5), training=Training(epochs=3))],
    expected_failed_checks=lambda _: EXPECTED_TO_FAIL,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_learns_and_scores(device):
    X, Y = label_sets(1000)
    fitted = model(device=device).fit(X[:800], Y[:800])
    assert metrics.f1(fitted.predict(X[800:]), Y[800:]) > 0.9
    assert fitted.score(X[800:], Y[800:]) > 0.8


def test_score_is_r2_for_the_linear_kernel():
    X, Y = label_sets()
    fitted = model(kernel=kernels.Linear(), sketch=sketches.SubSample(20)).fit(X[:200], Y[:200])
    expected = r2_score(Y[200:], fitted.predict(X[200:]), multioutput="variance_weighted")
    assert fitted.score(X[200:], Y[200:]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor, np.ndarray.tolist, sp.csr_matrix, sp.csr_array])
def test_gives_outputs_back_in_the_form_it_got_them(form):
    X, Y = label_sets(60)
    fitted = model(training=Training(epochs=2)).fit(X, form(Y))
    predicted = fitted.predict(X[:4])
    assert type(predicted) is type(form(Y))
    assert getattr(predicted, "dtype", None) == getattr(form(Y), "dtype", None)
    expected = model(training=Training(epochs=2)).fit(X, Y).predict(X[:4])
    dense = predicted.toarray() if sp.issparse(predicted) else np.asarray(predicted)
    np.testing.assert_array_equal(dense, expected)


@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_takes_inputs_in_any_form(form):
    X, Y = label_sets(60)
    expected = model(training=Training(epochs=2)).fit(X, Y).coefficients(X)
    fitted = model(training=Training(epochs=2)).fit(form(X), Y)
    torch.testing.assert_close(fitted.coefficients(form(X)), expected)


class Characters(nn.Module):
    """A network that prepares raw strings itself."""

    def __init__(self, p: int):
        super().__init__()
        self.embed, self.out = nn.EmbeddingBag(128, 16), nn.Linear(16, p)

    def prepare(self, xs: list[str]) -> torch.Tensor:
        return torch.tensor([[ord(c) for c in x[:8].ljust(8)] for x in xs])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(tokens))


class SharedLetters(Kernel):
    """A kernel of a user's own, on strings, with nothing but the two required methods."""

    def __call__(self, a, b):
        return torch.tensor([[float(len(set(x) & set(y))) for y in b] for x in a], dtype=torch.float64)

    def diag(self, a):
        return torch.tensor([float(len(set(x))) for x in a], dtype=torch.float64)


def test_raw_inputs_any_network_any_kernel():
    words = ["abc", "abd", "bcd", "xyz", "xyw", "yzw"] * 10
    fitted = model(kernel=SharedLetters(), sketch=sketches.SubSample(20), network=Characters).fit(words, words)
    assert fitted.predict(["abc", "xyw"]) == ["abc", "xyw"]


def test_images():
    images = np.random.default_rng(0).normal(size=(50, 8, 8)).astype(np.float32)
    Y = (images[:, :4].mean(axis=(1, 2)) > 0).astype(int)[:, None] * np.ones((1, 3), int)
    fitted = model(network=networks.CNN((4,), hidden=8), sketch=sketches.SubSample(2), training=Training(epochs=2))
    assert fitted.fit(images, Y).predict(images).shape == (50, 3)


def test_validation_chooses_the_rule_and_the_paper_is_a_word_away():
    X, Y = label_sets()
    chosen = model(decoder=Candidates()).fit(X[:200], Y[:200], validation=(X[200:], Y[200:]))
    scores = {}
    for rule in ("kernel", "projected", "cosine"):
        fixed = model(decoder=Candidates(rule)).fit(X[:200], Y[:200], validation=(X[200:], Y[200:]))
        assert fixed.decoder_.rule == rule
        distance = 2 - 2 * kernels.Tanimoto().paired(fixed.predict(X[200:]), Y[200:])
        scores[rule] = -distance.mean().item()
    assert scores[chosen.decoder_.rule] == max(scores.values())
    training = Training(epochs=1, validation_fraction=0.0)
    unvalidated = model(training=training, decoder=Candidates()).fit(X, Y)
    assert unvalidated.decoder_.rule == "kernel"


def test_early_stopping_on_a_task_metric_after_decoding():
    X, Y = label_sets()
    options = Training(epochs=12, batch_size=32, learning_rate=0.02, monitor=metrics.f1)
    fitted = model(training=options).fit(X[:200], Y[:200], validation=(X[200:], Y[200:]))
    assert max(fitted.history_["val_score"]) == pytest.approx(metrics.f1(fitted.predict(X[200:]), Y[200:]))


def test_scores_and_rank_agree(device):
    X, Y = label_sets()
    fitted = model(device=device).fit(X, Y)
    candidates = np.unique(Y, axis=0)
    scores, ranking = fitted.scores(X[:9], candidates), fitted.rank(X[:9], candidates, k=3)
    torch.testing.assert_close(ranking.scores, scores.topk(3).values)
    torch.testing.assert_close(scores.gather(1, ranking.indices), ranking.scores)
    best = candidates[ranking.indices[:, 0].cpu()]
    np.testing.assert_array_equal(best, fitted.predict(X[:9]))
    assert fitted.rank(X[:2], k=np.int64(50)).indices.shape == (2, len(candidates))


def test_candidates_of_ones_own():
    X, Y = label_sets()
    allowed = np.array([[1, 0, 0], [0, 1, 1]])
    fitted = model(decoder=Candidates(outputs=allowed)).fit(X, Y)
    assert {tuple(row) for row in fitted.predict(X)} == {(1, 0, 0), (0, 1, 1)}


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_candidates_come_back_as_they_were_given(form):
    """Also where their numbers are of another type than the training outputs."""
    X, Y = label_sets(60)
    own = np.array([[0.5, 0.5, 0.5], [0.9, 0.1, 0.2]])
    fitted = model(kernel=kernels.Linear(), decoder=Candidates("kernel", outputs=form(own))).fit(X, Y)
    found = fitted.predict(X)
    dense = found.toarray() if sp.issparse(found) else found
    assert {tuple(row) for row in dense.tolist()} <= {tuple(row) for row in own.tolist()}
    own[:] = 7
    assert 7 not in (fitted.predict(X).toarray() if form is sp.csr_array else fitted.predict(X))


def test_rotated_to_few_dimensions():
    X, Y = label_sets()
    fitted = model(dim=6).fit(X, Y)
    assert fitted.basis_.dim == fitted.coefficients(X).shape[1] == 6
    assert fitted.score(X, Y) > 0.8


@pytest.mark.parametrize("loss", [losses.Huber(0.5), losses.EpsilonInsensitive(0.1), torch.log1p])
def test_losses(loss):
    X, Y = label_sets()
    assert model(loss=loss).fit(X, Y).score(X, Y) > 0.6


def test_seeds():
    X, Y = label_sets(60)
    a, b, c = (model(training=Training(epochs=2), random_state=s).fit(X, Y).coefficients(X) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert a.shape != c.shape or not torch.allclose(a, c)


def test_pipeline_grid_search_and_clone():
    X, Y = label_sets(90)
    pipeline = make_pipeline(StandardScaler(), model(training=Training(epochs=5)))
    assert pipeline.fit(X, Y).predict(X).shape == Y.shape
    assert np.isfinite(cross_val_score(pipeline, X, Y, cv=3)).all()
    grid = {"kernel": [kernels.Tanimoto(), kernels.Linear()], "sketch": [sketches.SubSample(4), sketches.Gaussian(4)]}
    search = GridSearchCV(model(training=Training(epochs=3)), grid, cv=2).fit(X, Y)
    assert search.best_params_["kernel"] in grid["kernel"]
    assert search.predict(X).shape == Y.shape
    assert clone(search.best_estimator_).get_params()["kernel"] == search.best_params_["kernel"]


def test_copies_predict_the_same():
    X, Y = label_sets(60)
    fitted = model(training=Training(epochs=2)).fit(X, Y)
    for other in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict(X), fitted.predict(X))


def test_held_out_pairs_still_count_as_candidates():
    X, Y = label_sets(40)
    fitted = model(training=Training(epochs=1, validation_fraction=0.5), sketch=sketches.SubSample(3)).fit(X, Y)
    assert len(fitted.known_) == len(np.unique(Y, axis=0))


X, Y = label_sets(40)
NAN = X.copy()
NAN[3, 1] = np.nan


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"sketch": sketches.SubSample(0)}, (X, Y), "size must be positive and finite. Got 0"),
        ({}, (X, Y[:0]), "Y is empty"),
        ({}, (NAN, Y), "X contains NaN"),
        ({}, (torch.as_tensor(NAN), Y), "X must be finite"),
        ({"kernel": kernels.Linear()}, (X, np.where(Y > 0, np.inf, 0.0)), "Y must be finite. Got NaN or inf in row"),
        ({}, (X[:39], Y), "inconsistent numbers of samples: .39, 40."),
        ({}, (X[:1], Y[:1]), "At least two pairs"),
        ({}, (sp.csr_array(X), Y), "Sparse X is not supported"),
        ({}, (["text"] * 40, Y), "has no prepare"),
        ({"device": "quantum"}, (X, Y), "Unknown device 'quantum'"),
        ({"device": "cuda:99"}, (X, Y), "not available"),
        ({"device": "meta"}, (X, Y), "not supported"),
        ({"network": lambda p: nn.Flatten()}, (X, Y), r"must map 2 inputs to shape \(2, p=8\). Got \(2, 5\)"),
        ({"loss": torch.neg}, (X, Y), "must not decrease"),
        ({"training": Training(monitor=metrics.f1, validation_fraction=0.0)}, (X, Y), "monitor needs validation pairs"),
        ({"decoder": Candidates(outputs=[])}, (X, Y), "candidates is empty"),
        ({"dim": 9}, (X, Y), "leading directions. Got 9"),
        ({"kernel": kernels.Linear}, (X, Y), "kernel must be a Kernel, such as"),
        ({"kernel": "linear"}, (X, Y), "kernel must be a Kernel, such as kernels.Gaussian"),
        ({"sketch": 50}, (X, Y), "sketch must be a SketchSpec, such as"),
        ({"sketch": sketches.SubSample(5.0)}, (X, Y), "size must be an integer, or a share below 1. Got 5.0"),
        ({"network": nn.Flatten()}, (X, Y), "network must be a function from p"),
        ({"training": Training(validation_fraction=0.999)}, (X, Y), "leaves none of the 40 pairs"),
        ({"kernel": kernels.Linear()}, (X, [(np.nan, 1.0)] * 40), "NaN or inf in row 0"),
        ({"kernel": kernels.Cosine()}, (X, np.eye(40)[:, :39]), "at index 39"),
    ],
)
def test_refuses(changes, data, message):
    with pytest.raises(ValueError, match=message):
        model(**changes).fit(*data)


def test_refuses_mismatched_validation():
    with pytest.raises(ValueError, match="inconsistent numbers of samples: .5, 6."):
        model().fit(X, Y, validation=(X[:5], Y[:6]))


def test_unknown_rule():
    with pytest.raises(
        InputError, match="Candidates.rule must be one of 'kernel', 'projected', 'cosine', 'auto'. Got 'best'"
    ):
        Candidates("best")


@pytest.mark.parametrize("method", ["predict", "coefficients", "scores", "rank"])
def test_unfitted(method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(model(), method)(X)


def test_wrong_width_and_empty_candidates_at_prediction():
    fitted = model(training=Training(epochs=1)).fit(X, Y)
    with pytest.raises(ValueError, match="X has 4 features, but DSOKR is expecting 5"):
        fitted.predict(X[:, :4])
    with pytest.raises(InputError, match="candidates is empty"):
        fitted.rank(X, candidates=Y[:0])
    with pytest.raises(InputError, match="k must be an integer of at least 1"):
        fitted.rank(X, k=0)
    with pytest.raises(InputError, match="vectors of one length. Got 2 and 3"):
        fitted.rank(X, candidates=Y[:, :2])
    with pytest.raises(ValueError, match="X has 4 features"):
        fitted.score(X[:, :4], Y)


def test_a_failed_fit_leaves_no_half_fitted_model():
    broken = model(training=Training(epochs=1, learning_rate=1e30, batch_size=4))
    with pytest.raises(TrainingError):
        broken.fit(X * 1e20, Y)
    with pytest.raises(NotFittedError):
        broken.predict(X)
    good = model(training=Training(epochs=1)).fit(X, Y)
    before = good.predict(X)
    good.set_params(regressor=broken.regressor)
    with pytest.raises(TrainingError):
        good.fit(X * 1e20, Y)
    np.testing.assert_array_equal(good.predict(X), before)


def test_the_users_data_stay_as_they_are():
    inputs, outputs = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), vectors(40)
    x, y = inputs.clone(), outputs.clone()
    inplace = lambda p: nn.Sequential(nn.ReLU(inplace=True), nn.LazyLinear(p))  # noqa: E731
    options = Training(epochs=2, validation_fraction=0.2)
    fitted = model(kernel=kernels.Linear(), sketch=sketches.Full(), network=inplace, training=options)
    fitted.fit(inputs, outputs)
    scores = fitted.scores(inputs)
    assert torch.equal(inputs, x) and torch.equal(outputs, y)
    outputs *= 2
    torch.testing.assert_close(fitted.scores(x), scores)


def test_views_given_as_lists():
    outputs = [([float(a), float(b)], "ab"[a] * (1 + b)) for a, b in Y[:, :2]]
    kernel = kernels.Views(kernels.Linear() + kernels.Gaussian(1.0), kernels.NGram(1))
    fitted = model(kernel=kernel, training=Training(epochs=2)).fit(X, outputs)
    assert len(fitted.known_) == len({(tuple(v), s) for v, s in outputs})


def test_whole_numbers_reach_the_network_as_they_are():
    tokens = torch.randint(0, 9, (60, 4), generator=torch.Generator().manual_seed(0))
    bag = lambda p: nn.Sequential(nn.EmbeddingBag(9, 8), nn.LazyLinear(p))  # noqa: E731
    labels = (tokens[:, :3] > 4).long()
    assert model(network=bag, training=Training(epochs=2)).fit(tokens, labels).predict(tokens).shape == (60, 3)


def test_wrong_width_of_a_tensor():
    fitted = model(training=Training(epochs=1)).fit(torch.as_tensor(X), Y)
    with pytest.raises(ValueError, match="X has 4 features, but DSOKR is expecting 5"):
        fitted.predict(torch.as_tensor(X[:, :4]))


class Summed(nn.Module):
    """A network that prepares sequences of any length itself."""

    def __init__(self, p: int):
        super().__init__()
        self.last = nn.Linear(2, p)

    def prepare(self, xs):
        return torch.tensor([[float(len(x)), float(sum(x))] for x in xs])

    def forward(self, inputs):
        return self.last(inputs)


@pytest.mark.parametrize(
    ("network", "X"),
    [
        (networks.WordBag(width=4, hidden=()), np.array(["an acid", "an ester"] * 20)),
        (networks.WordBag(width=4, hidden=()), np.array(["an acid", "an ester"] * 20, dtype=object)),
        (Summed, [[1, 2], [3], [4, 5, 6], [7]] * 10),
        (Summed, [np.arange(i % 4 + 1) for i in range(40)]),
        (lambda p: nn.Linear(5, p).double(), np.random.default_rng(0).normal(size=(40, 5))),
        (networks.MLP((4,)), np.random.default_rng(0).normal(size=(40, 5))[::-1, ::-1]),
        (networks.MLP((4,)), torch.ones(40, 5, requires_grad=True)),
    ],
    ids=["texts", "objects", "lists", "arrays", "double", "backwards", "with gradients"],
)
def test_inputs_that_networks_read(network, X):
    fitted = model(network=network, training=Training(epochs=1)).fit(X, label_sets(40)[1])
    assert fitted.predict(X[:3]).shape == (3, 3)
    assert fitted.predict(X[:1]).shape == (1, 3)


@pytest.mark.parametrize(
    ("network", "X", "message"),
    [
        (networks.MLP(), torch.ones(40, 5, dtype=torch.long), r"cannot read int64 inputs of shape \(2, 5\): mat1"),
        (networks.MLP(), torch.ones(40), r"cannot read float32 inputs of shape \(2,\): Dimension"),
        (lambda p: nn.LSTM(5, p), np.ones((40, 5)), r"must map 2 inputs to shape \(2, p=\d+\). Got tuple"),
        (networks.WordBag(), [], "X is empty: at least one input is needed"),
    ],
)
def test_inputs_that_networks_do_not_read(network, X, message):
    with pytest.raises(InputError, match=message):
        model(network=network).fit(X, label_sets(40)[1])


def test_texts_are_no_tensor():
    texts = model(network=networks.WordBag(width=4), training=Training(epochs=1)).fit(
        ["a", "b"] * 20, label_sets(40)[1]
    )
    with pytest.raises(InputError, match="WordBag reads non-empty texts. Got tensor"):
        texts.predict(torch.ones(3, 2))


def test_coefficients_can_be_built_upon():
    X, Y = label_sets(40)
    z = model(training=Training(epochs=1)).fit(X, Y).coefficients(X)
    weights = torch.ones(z.shape[1], dtype=z.dtype, requires_grad=True)
    (z @ weights).sum().backward()
    torch.testing.assert_close(weights.grad, z.sum(dim=0))


def test_parameters_set_after_fit_are_for_the_next_fit(tmp_path):
    X, Y = label_sets(60)[0], vectors(60)
    fitted = model(kernel=kernels.Gaussian(0.1), training=Training(epochs=2)).fit(X, Y)
    said, score = fitted.predict(X), fitted.score(X, Y)
    fitted.set_params(kernel=kernels.Gaussian(50.0))
    assert fitted.score(X, Y) == score
    fitted.save(tmp_path / "model")
    again = DSOKR.load(tmp_path / "model")
    assert (again.predict(X) == said).all() and again.kernel == kernels.Gaussian(0.1)


def test_a_loaded_model_knows_its_columns_and_its_sketch(tmp_path):
    X, Y = label_sets(40)
    fitted = model(sketch=sketches.SubSample(5, probabilities=np.arange(1.0, 41)), training=Training(epochs=1)).fit(
        X, Y
    )
    fitted.feature_names_in_ = np.array(list("abcde"), dtype=object)  # as scikit-learn has them of a table
    fitted.save(tmp_path / "model")
    again = DSOKR.load(tmp_path / "model")
    assert again.feature_names_in_.tolist() == list("abcde")
    assert again.sketch.probabilities == tuple(np.arange(1.0, 41).tolist())
    again.set_params(regressor=Summed).fit([[1], [2, 3]] * 20, Y)
    assert not hasattr(again, "feature_names_in_") and not hasattr(again, "n_features_in_")


def test_fits_in_threads_are_as_if_alone():
    X, Y = label_sets(80)
    state = torch.get_rng_state()

    def said(seed: int) -> torch.Tensor:
        network = networks.MLP((16,), dropout=0.2)
        return model(network=network, training=Training(epochs=4), random_state=seed).fit(X, Y).coefficients(X)

    alone = [said(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(said, range(4)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
