"""Sets hold the right output as often as asked; answers are given only where they are safe; and bad input."""

import itertools
import math

import numpy as np
import pytest
import torch

from dsokr import DSOKR, Conformal, kernels, sketches
from dsokr.conformal import Calibration, PredictionSet
from dsokr.decoders import Candidates
from dsokr.errors import InputError, ModelFolderError
from dsokr.outputs import as_outputs, keys
from dsokr.regressors import Forest, KernelRidge
from dsokr.rules import score

RIDGE = KernelRidge(kernels.Gaussian(0.1), regularization=1e-3)


def label_sets(n: int, seed: int = 0, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, (X @ np.eye(4, 5) + noise * rng.normal(size=(n, 5)) > 0).astype(int)


def orders(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, (X + 0.5 * rng.normal(size=(n, 4))).argsort(axis=1).argsort(axis=1)


def words(n: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    X, Y = label_sets(n, seed)
    return X, ["".join("ab"[bit] for bit in row) for row in Y]


def curves(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X[:, :2] + 0.3 * rng.normal(size=(n, 2))


CASES = {
    "label sets": (label_sets, kernels.Tanimoto(), "auto"),
    "a list": (label_sets, kernels.Tanimoto(), Candidates()),
    "rankings": (orders, kernels.Kemeny(), "auto"),
    "strings": (words, kernels.NGram((1, 2)).normalized(), "auto"),
    "vectors": (curves, kernels.Gaussian(0.2), "auto"),
}


def fit(make, kernel, decoder, n: int = 150) -> DSOKR:
    return DSOKR(kernel, sketches.SubSample(60), RIDGE, decoder=decoder, random_state=0, device="cpu").fit(*make(n))


@pytest.fixture(params=CASES)
def case(request):
    make, kernel, decoder = CASES[request.param]
    return make, fit(make, kernel, decoder)


def some(Y, rows):
    return [Y[i] for i in rows] if isinstance(Y, list) else Y[rows]


def test_coverage_is_as_asked(case):
    """Over random divisions into calibration and test pairs, within what chance allows."""
    make, model = case
    X, Y = make(600, seed=1)
    rng, n, held = np.random.default_rng(0), 240, []
    for _ in range(3):
        order = rng.permutation(600)
        a, b = order[:n], order[n:]
        sure = Conformal(model).calibrate(X[a], some(Y, a))
        held.append([sure.contains(X[b], some(Y, b), c).double().mean().item() for c in (0.8, 0.9)])
    for found, asked in zip(np.mean(held, axis=0), (0.8, 0.9), strict=True):
        assert asked - 0.03 < found < asked + 0.12  # discrete outputs have ties: sets may hold more


def test_sets_list_what_they_contain(case):
    make, model = case
    X, Y = make(300, seed=2)
    sure = Conformal(model).calibrate(X[:200], some(Y, range(200)))
    sets = sure.predict_set(X[200:], coverage=0.8)
    held = sure.contains(X[200:], some(Y, range(200, 300)), coverage=0.8)
    best = sure.predict(X[200:]).outputs
    for i, found in enumerate(sets):
        assert isinstance(found, PredictionSet) and len(found.outputs) == len(found.probabilities) >= 1
        own = list(keys(as_outputs(found.outputs)))
        assert len(set(own)) == len(own)
        assert (found.probabilities.diff() <= 1e-9).all() and 0 <= found.probabilities.min() <= 1
        assert own[0] == next(keys(as_outputs(some(best, [i]))))
        if found.size is not None and found.size <= len(own):
            truth = next(keys(as_outputs(some(Y, [200 + i]))))
            assert found.size == len(own) and (truth in own) == bool(held[i])


def test_the_region_is_counted_and_listed_as_by_brute_force():
    model = fit(*CASES["label sets"])
    X, Y = label_sets(300, seed=2)
    sure = Conformal(model).calibrate(X[:200], Y[:200])
    everything = np.array(list(itertools.product([0, 1], repeat=5)))
    z, basis = model.coefficients(X[200:220]), model.basis_
    scores = score(z, basis.embed(everything), basis.diag(everything), "kernel")
    for found, row in zip(sure.predict_set(X[200:220], coverage=0.9), scores, strict=True):
        best = row.sort(descending=True)
        assert {tuple(y) for y in found.outputs} == {tuple(everything[i]) for i in best.indices[: found.size]}
        held = sure.contains(np.repeat(X[200:201], 32, axis=0), everything, coverage=0.9)
        assert held.sum() == sure.predict_set(X[200:201], coverage=0.9)[0].size


def test_the_threshold_is_the_order_statistic():
    """By hand: the set of a new pair holds y if −log p is at most the ⌈(n + 1) c⌉-th smallest of the calibration's."""
    model = fit(*CASES["a list"])
    X, Y = label_sets(400, seed=3)
    sure = Conformal(model).calibrate(X[:200], Y[:200])
    values = sure.calibration.strangeness[""]
    assert len(values) == 150 and (values.diff() >= 0).all()
    z = model.coefficients(X[200:])
    all_scores = model.scores(X[200:])
    unit = sure.calibration.temperature * (z.norm(dim=1) if sure.calibration.by_length else 1)
    log_p = (all_scores / (unit[:, None] if sure.calibration.by_length else unit)).log_softmax(dim=1)
    q = values[math.ceil(151 * 0.9) - 1]
    members = (-log_p <= q + 1e-9) | (all_scores >= all_scores.amax(dim=1, keepdim=True))
    for found, row in zip(sure.predict_set(X[200:], coverage=0.9), members, strict=True):
        assert found.size == int(row.sum()) and set(found.indices.tolist()) == set(row.nonzero()[:, 0].tolist())
    empty = sure.predict_set(X[200:], coverage=0.3, allow_empty=True)
    assert any(found.size == 0 for found in empty) and any(found.size for found in empty)


def test_coverage_within_groups():
    """One group is twice as hard: without groups it is covered too rarely."""
    X, Y = label_sets(1500, seed=4, noise=0.2)
    hard = X[:, 3] > 0
    Y[hard] ^= np.random.default_rng(0).random((hard.sum(), 5)) < 0.2
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(60), RIDGE, random_state=0).fit(X[:300], Y[:300])
    plain = Conformal(model).calibrate(X[300:900], Y[300:900])
    fair = Conformal(model).calibrate(X[300:900], Y[300:900], groups=hard[300:900])
    test, groups = (X[900:], Y[900:]), hard[900:]
    assert plain.contains(*test, coverage=0.8)[groups].double().mean() < 0.75
    held = fair.contains(*test, coverage=0.8, groups=groups)
    assert all(0.75 < held[groups == group].double().mean() < 0.9 for group in (False, True))
    with pytest.raises(InputError, match="No calibration pair is in the group 'other'"):
        fair.predict_set(X[:1], groups=["other"])
    with pytest.raises(InputError, match="if and only if the calibration had groups"):
        fair.predict_set(X[:1])


def test_confidence_is_calibrated_and_answers_are_safe():
    X, Y = label_sets(3000, seed=5, noise=0.3)
    Y = Y[:, :4]  # the fifth label is noise
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(16), Forest(50), random_state=0).fit(X[:500], Y[:500])
    sure = Conformal(model).calibrate(X[500:1500], Y[500:1500])
    answers = sure.predict(X[1500:], max_error=0.3)
    right = torch.from_numpy((answers.outputs == Y[1500:]).all(axis=1))
    bins = (answers.confidence * 10).long()
    error = sum(
        abs((answers.confidence[bins == b] - right[bins == b].double()).sum().item()) for b in bins.unique()
    ) / len(right)
    assert error < 0.05
    assert 0.05 < answers.given.double().mean() < 0.95  # some are left out
    assert (~right[answers.given]).double().mean() < 0.3 < (~right).double().mean()
    assert sure.predict(X[1500:]).given.all()


def test_out_of_fold_predictions_calibrate_without_further_pairs():
    X, Y = label_sets(1200, seed=6)
    model = DSOKR(kernels.Tanimoto(), random_state=0).fit(X[:300], Y[:300])
    sure = Conformal(model).calibrate()
    assert 0.85 < sure.contains(X[300:], Y[300:], coverage=0.9).double().mean() < 0.97
    single = DSOKR(kernels.Tanimoto(), regressor=RIDGE).fit(X[:50], Y[:50])
    with pytest.raises(InputError, match="no predictions out of fold: pass pairs"):
        Conformal(single).calibrate()


def test_a_broken_promise_is_noticed():
    X, Y = label_sets(1500, seed=7)
    model = fit(*CASES["label sets"])
    sure = Conformal(model).calibrate(X[:500], Y[:500])
    same = sure.check(X[500:1000], Y[500:1000])
    assert same.holds and str(same).endswith("90% were asked for.")
    shifted = sure.check(X[1000:] + 1.5, Y[1000:])
    assert not shifted.holds and shifted.found < 0.8 and "coverage did not hold (p = " in str(shifted)


def test_it_is_saved_with_the_model(tmp_path):
    X, Y = label_sets(400, seed=8)
    model = fit(*CASES["label sets"])
    sure = Conformal(model).calibrate(X[:200], Y[:200], groups=X[:200, 0] > 0)
    sure.save(tmp_path / "model")
    loaded = Conformal.load(tmp_path / "model", device="cpu")
    groups = X[200:, 0] > 0
    for a, b in zip(sure.predict_set(X[200:], 0.8, groups), loaded.predict_set(X[200:], 0.8, groups), strict=True):
        assert np.array_equal(a.outputs, b.outputs) and torch.equal(a.probabilities, b.probabilities)
    assert torch.equal(sure.predict(X[200:], 0.3).given, loaded.predict(X[200:], 0.3).given)
    with pytest.raises(InputError, match="trained on most of these inputs"):
        loaded.calibrate(*label_sets(150))
    model.save(tmp_path / "alone")
    with pytest.raises(ModelFolderError, match="the model was not calibrated"):
        Conformal.load(tmp_path / "alone")


def test_candidates_of_ones_own():
    X, Y = label_sets(400, seed=9)
    everything = np.array(list(itertools.product([0, 1], repeat=5)))
    model = fit(*CASES["a list"])
    sure = Conformal(model, candidates=everything).calibrate(X[:200], Y[:200])
    assert sure.contains(X[200:], Y[200:]).double().mean() > 0.85
    few = Conformal(model, candidates=everything[:16]).calibrate(X[:200], Y[:200])
    with pytest.raises(InputError, match=r"cannot be reached: the right answer is not among the candidates for \d+%"):
        few.predict_set(X[200:], coverage=0.9)
    twice = Conformal(model, candidates=np.concatenate([everything, everything])).calibrate(X[:200], Y[:200])
    assert all(len(found.indices) % 2 == 0 for found in twice.predict_set(X[200:]))  # copies are in together


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1, 2, math.nan])
def test_coverage_is_a_share(coverage):
    X, Y = label_sets(100, seed=1)
    sure = Conformal(fit(*CASES["label sets"])).calibrate(X, Y)
    with pytest.raises(InputError, match=r"coverage must be in \(0, 1\)"):
        sure.predict_set(X, coverage=coverage)


def test_bad_input_is_one_sentence():
    X, Y = label_sets(150)
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(60), RIDGE, random_state=0).fit(X, Y)
    sure = Conformal(model)
    for call in (sure.predict_set, lambda X: sure.contains(X, Y), lambda X: sure.predict(X, 0.1)):
        with pytest.raises(InputError, match="Call calibrate first"):
            call(X)
    with pytest.raises(InputError, match="trained on most of these inputs"):
        sure.calibrate(X, Y)
    with pytest.raises(InputError, match="inputs and outputs, or neither"):
        sure.calibrate(X)
    with pytest.raises(InputError, match="at least 6 pairs that can be answered. Got 4"):
        sure.calibrate(X[:4] + 1, Y[:4])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        sure.calibrate(X + 1, Y[:4])
    sure.calibrate(*label_sets(40, seed=1))
    with pytest.raises(InputError, match=r"coverage=0.99 needs at least 99 pairs beside those tuned on. Got 30"):
        sure.predict_set(X, coverage=0.99)
    with pytest.raises(InputError, match=r"max_error=0.01 needs at least 230 pairs beside those tuned on. Got 30"):
        sure.predict(X, max_error=0.01)
    with pytest.raises(InputError, match=r"max_error must be in \(0, 1\)"):
        sure.predict(X, max_error=1.5)


def test_a_test_of_no_pairs_is_a_sentence():
    scores = (
        torch.rand(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort(descending=True).values
    )
    z = torch.ones(40, 2, dtype=torch.float64)
    calibration = Calibration.of(z, scores, scores[:, 0], torch.ones(40, dtype=torch.bool))
    assert calibration.test(torch.ones(4, dtype=torch.bool), 0.8).n == 4
    with pytest.raises(InputError, match="needs at least one pair"):
        calibration.test(torch.zeros(0, dtype=torch.bool), 0.8)
