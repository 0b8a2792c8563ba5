"""Stacks: exact weights, never worse out of fold than the best member; and what DSOKR(kernel) alone chooses."""

import time

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.optimize import lsq_linear
from sklearn.ensemble import ExtraTreesRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from dsokr import DSOKR, kernels, sketches
from dsokr.decoders import Candidates, Gradient, Kemeny, LabelSet, NGram
from dsokr.errors import InputError
from dsokr.losses import Ranked, Squared
from dsokr.metrics import f1, kendall_tau
from dsokr.regressors import Auto, Fitted, Forest, KernelRidge, Neighbors, Neural, Scikit, Stack, Targets
from dsokr.regressors.auto import prepare_reading
from dsokr.regressors.base import complement, hold_out, make_folds
from dsokr.regressors.forest import Trees
from dsokr.regressors.networks import CharTransformer, WordBag
from dsokr.regressors.stack import solve_weights
from dsokr.selection import Judge
from implementations import bits, graphs, rankings, strings, vectors

CPU = torch.device("cpu")


def wavy(n: int = 200) -> tuple[np.ndarray, Targets]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    z = np.sin(X @ rng.normal(size=(4, 6))) + 0.1 * rng.normal(size=(n, 6))
    return X, Targets(torch.from_numpy(z), torch.zeros(n, dtype=torch.float64))


def test_weights_are_those_of_non_negative_least_squares():
    rng = np.random.default_rng(1)
    truth = torch.from_numpy(rng.normal(size=(50, 4)))
    noise = [torch.from_numpy(rng.normal(size=(50, 4))) for _ in range(2)]
    made = [truth + noise[0], noise[1] - truth, 0.1 * truth + noise[0], truth * 0]
    s = torch.from_numpy(rng.random(50))
    weights = solve_weights(made, Targets(truth, torch.zeros(50), s))
    A = np.stack([(s.sqrt()[:, None] * z).numpy().ravel() for z in made], axis=1)
    reference = lsq_linear(A, (s.sqrt()[:, None] * truth).numpy().ravel(), bounds=(0, np.inf), tol=1e-14).x
    np.testing.assert_allclose(A @ weights.numpy(), A @ reference, atol=1e-6)
    assert (weights >= 0).all()


@pytest.mark.parametrize(
    "members", [(Forest(20), KernelRidge()), (Neighbors(), Forest(10), KernelRidge(intercept=True))]
)
def test_a_stack_is_never_worse_out_of_fold_than_its_best_member(members):
    X, targets = wavy()
    rows = Stack(members).fit(X, targets, seed=0, device=CPU).report()
    assert rows[-1]["regressor"] == "the stack" and len(rows) == len(members) + 1
    assert rows[-1]["explained"] >= max(row["explained"] for row in rows[:-1]) - 1e-12


@pytest.mark.parametrize("folds", [4, 0.2, 99])
def test_groups_are_not_split_by_folds(folds):
    groups = torch.from_numpy(np.random.default_rng(0).integers(0, 20, 300))
    parts = make_folds(300, folds, 0, groups)
    assert len(parts) == {4: 4, 0.2: 1, 99: 20}[folds]
    for part in parts:
        assert not set(groups[part].tolist()) & set(groups[complement(part, 300)].tolist())
    if folds > 1:
        assert torch.cat(parts).sort().values.tolist() == list(range(300))
        assert max(map(len, parts)) - min(map(len, parts)) <= groups.bincount().max()
    else:
        assert 30 < len(parts[0]) <= 60
    with pytest.raises(InputError, match="groups must have at least two different values"):
        make_folds(9, folds, 0, torch.zeros(9, dtype=torch.long))


def test_what_a_group_has_in_common_is_not_explained_out_of_fold():
    """Inputs and outputs that are noise, but the same within a group: only who has seen the group can know."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    X, Y = rng.normal(size=(40, 3))[groups], rng.normal(size=(40, 4))[groups]
    members = (Forest(20), KernelRidge(intercept=True), Neighbors(), Scikit(Ridge()))
    known, unseen = (
        DSOKR(kernels.Linear(), regressor=Stack(members), random_state=0).fit(X, Y, groups=some).regressor_.report()
        for some in (None, groups)
    )
    assert [row["explained"] > 0.9 for row in known] == [True, True, True, False, True]
    assert all(row["explained"] < 0.1 for row in unseen)


def test_groups_choose_the_penalty_and_the_pairs_that_are_held_out():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    X, Y = rng.normal(size=(40, 3))[groups], rng.normal(size=(40, 4))[groups]
    ridge = KernelRidge(kernels.Gaussian(1.0))
    exact, careful = (
        DSOKR(kernels.Linear(), regressor=ridge, random_state=0).fit(X, Y, groups=some).regressor_.regularization
        for some in (None, [f"molecule {g}" for g in groups])
    )
    assert exact < 0.01 < careful
    train, valid = hold_out(200, 0.2, torch.Generator().manual_seed(0), torch.from_numpy(groups))
    assert len(valid) == 40 and not set(groups[train]) & set(groups[valid])
    train, valid = hold_out(200, 0.01, torch.Generator().manual_seed(0), torch.from_numpy(groups))
    assert len(valid) == 5  # a group at least
    with pytest.raises(InputError, match=r"groups must have one value for each of the 200 pairs. Got shape \(3,\)"):
        DSOKR(kernels.Linear()).fit(X, Y, groups=[1, 2, 3])
    model = DSOKR(kernels.Linear(), regressor=Auto(budget="1 s"), random_state=0).fit(X, Y, groups=groups)
    assert model.regressor_.report()[-1]["explained"] < 0.1


def test_equal_weights_are_the_mean():
    X, targets = wavy()
    members = Forest(10, min_split=2), Neighbors(3)
    z = Stack(members, weights="equal").fit(X, targets, seed=3, device=CPU).predict(X)
    apart = [member.fit(X, targets, seed=3 + i, device=CPU).predict(X) for i, member in enumerate(members)]
    torch.testing.assert_close(z, (apart[0] + apart[1]) / 2)


def test_members_without_weight_are_dropped():
    X, targets = wavy()
    noise = Scikit(RandomForestRegressor(2, max_depth=1, random_state=0))
    fitted = Stack((KernelRidge(intercept=True), noise)).fit(X, targets, seed=0, device=CPU)
    kept = [member.number for member in fitted.settled().members]
    assert kept == [number for number, row in enumerate(fitted.report()[:-1]) if row["weight"] > 0]


def test_a_contrast_stretches_around_the_mean():
    X, targets = wavy()
    plain, stretched = (Stack((Forest(10),), contrast=c).fit(X, targets, seed=0, device=CPU) for c in (1.0, 2.0))
    torch.testing.assert_close(stretched.predict(X), 2 * plain.predict(X) - targets.mean())


def test_leaf_weights_are_the_predictions_of_scikit_learn():
    X, targets = wavy()
    X[::7, 1] = np.nan
    z = (targets.coordinates * 2**20).round() / 2**20  # so that the forest, which rounds, grows on the same numbers
    centred = Targets(z - z.mean(dim=0), targets.residuals)
    forest = Forest(15, min_split=2)
    fitted = forest.fit(X, centred, seed=5, device=CPU)
    reference = ExtraTreesRegressor(15, max_features="sqrt", random_state=5).fit(X, forest._goals(centred))
    queries = np.random.default_rng(2).normal(size=(30, 4))
    weights = fitted.weights(queries)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (Trees.of(reference).find_leaves(queries) == fitted.trees.root + reference.apply(queries)).all()
    np.testing.assert_allclose(weights @ forest._goals(centred), reference.predict(queries), atol=1e-10)
    np.testing.assert_allclose(fitted.predict(queries), weights @ centred.coordinates.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "outputs", "decoder"),
    [
        (kernels.Tanimoto(), bits, LabelSet),
        (kernels.Kemeny(), rankings, Kemeny),
        (kernels.NGram((1, 2)), strings, NGram),
        (kernels.Gaussian(0.3), vectors, Gradient),
        (kernels.WeisfeilerLehman(2).normalized(), graphs, Candidates),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_kernel_alone_is_a_model(kernel, outputs, decoder, tmp_path):
    X, ys = vectors(60).numpy(), outputs(60)
    model = DSOKR(kernel, random_state=0, device="cpu").fit(X, ys)
    assert isinstance(model.decoder_, decoder) and isinstance(model.parts_["regressor"], Stack)
    z = model.coefficients(X)
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    torch.testing.assert_close(loaded.coefficients(X), z, rtol=0, atol=1e-12)
    assert str(loaded.predict(X[:5])) == str(model.predict(X[:5]))


def test_fingerprints_are_picked_from_a_list():
    wide = sp.csr_array((np.ones(120), (np.repeat(np.arange(40), 3), np.arange(120) * 10**6)), shape=(40, 2**32))
    model = DSOKR(kernels.Tanimoto(), random_state=0).fit(vectors(40).numpy(), wide)
    assert isinstance(model.decoder_, Candidates)


def test_trees_of_scikit_learn_read_molecules():
    smiles = ["C" * carbons + "O" * oxygens for carbons in range(1, 11) for oxygens in (0, 1)]
    model = DSOKR(kernels.NGram(1), regressor=RandomForestRegressor(20, random_state=0), random_state=0)
    assert model.fit(smiles, ["alkane", "alcohol"] * 10).predict(["CCCCCC", "CCCCCCO"]) == ["alkane", "alcohol"]


def test_defaults_learn_label_sets_and_rankings():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    sets = (X @ rng.normal(size=(5, 6)) > 0).astype(int)
    orders = np.argsort(np.argsort(X @ rng.normal(size=(5, 4)), axis=1), axis=1)
    train, test = slice(200), slice(200, None)
    assert f1(DSOKR(kernels.Tanimoto(), random_state=0).fit(X[train], sets[train]).predict(X[test]), sets[test]) > 0.85
    ranked = DSOKR(kernels.Kemeny(), random_state=0).fit(X[train], orders[train]).predict(X[test])
    assert kendall_tau(ranked, orders[test]).mean() > 0.8


@pytest.mark.parametrize("form", ["array with gaps", "sparse", "frame", "texts", "pictures"])
def test_inputs_of_every_kind(form, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    y = (X[:, :3] > 0).astype(int)
    words = ["red", "green", "blue"]
    if form == "array with gaps":
        X[::5, 3] = np.nan
    elif form == "sparse":
        X = sp.csr_matrix(np.maximum(X, 0))
    elif form == "frame":
        X = np.array([[*row[:2].tolist(), words[int(row[2] > 0)]] for row in X], dtype=object)
        X[3, 2], X[7, 0] = None, float("nan")
    elif form == "texts":
        X = [" ".join([f"a{i} is up" if up else f"a{i} is down" for i, up in enumerate(row > 0)]) for row in X]
    else:
        X = np.kron((X > 0).reshape(80, 2, 2), np.ones((4, 4)))
    model = DSOKR(kernels.Tanimoto(), random_state=0, device="cpu").fit(X, y)
    assert f1(model.predict(X), y) > 0.6
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert (loaded.predict(X) == model.predict(X)).all()


def test_any_regressor_of_scikit_learn():
    X, y = vectors(60).numpy(), bits(60)
    for estimator in (RandomForestRegressor(5), Ridge()):
        model = DSOKR(kernels.Tanimoto(), sketches.SubSample(20), estimator, random_state=0).fit(X, y)
        assert model.predict(X).shape == y.shape and model.regressor is estimator


def test_objects_without_a_regressor():
    with pytest.raises(InputError, match="No regressor is known for inputs of type object"):
        DSOKR(kernels.Tanimoto()).fit([object() for _ in range(20)], bits(20))


def test_sample_weights_of_zero_leave_a_pair_out():
    X, y = vectors(60).numpy(), bits(60)
    model = DSOKR(
        kernels.Tanimoto(), sketches.Full(), KernelRidge(kernels.Gaussian(0.3), regularization=1e-3), random_state=0
    )
    weights = np.r_[np.ones(40), np.zeros(20)]
    some = model.fit(X, y, sample_weight=weights).coefficients(X) @ model.basis_.embed(y).T
    other = model.fit(X[:40], y[:40]).coefficients(X) @ model.basis_.embed(y).T
    torch.testing.assert_close(some[:, :40], other[:, :40], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [None, 1])
def test_pairs_of_weight_zero_are_no_neighbours(size):
    X, z = vectors(60), vectors(60)[:, :3] ** 2
    weights = torch.ones(60).index_fill_(0, torch.arange(0, 60, 3), 0)
    kept = weights.nonzero()[:, 0]
    targets = Targets(z, torch.zeros(60, dtype=z.dtype), weights)
    fitted, unseen = Neighbors(size).fit_out_of_fold(X, targets, (), seed=0, device=CPU)
    reference, own = Neighbors(size).fit_out_of_fold(
        X[kept], targets.take(kept)._replace(weights=None), (), seed=0, device=CPU
    )
    assert fitted.size == reference.size
    torch.testing.assert_close(fitted.predict(X), reference.predict(X))
    torch.testing.assert_close(unseen[kept], own)
    torch.testing.assert_close(unseen[weights == 0], reference.predict(X[weights == 0]))


def test_the_report_says_what_was_tried_and_chosen(tmp_path):
    X, y = vectors(60).numpy(), bits(60)
    model = DSOKR(kernels.Tanimoto(), random_state=0).fit(X, y)
    lines = model.report().splitlines()
    assert lines[0] == "learned    from 60 pairs" and lines[1].startswith("basis      ") and "LabelSet" in lines[2]
    assert lines[3].startswith("weight  explained")
    assert [line.split("  ")[-1].strip().partition("(")[0] for line in lines[4:7]] == [
        "Forest",
        "KernelRidge",
        "the stack",
    ]
    model.save(tmp_path / "model")
    assert DSOKR.load(tmp_path / "model").report() == model.report()


def test_hints_name_the_remedy():
    X, ys = vectors(40).numpy(), graphs(40)
    sketch, regressor = sketches.SubSample(1), KernelRidge(kernels.Gaussian(0.1))
    report = DSOKR(kernels.WeisfeilerLehman(3).normalized(), sketch, regressor, random_state=0).fit(X, ys).report()
    assert "use Candidates(outputs=...)" in report and "use a larger sketch" in report


def test_parameters_of_parts_can_be_searched():
    model = DSOKR(kernels.Gaussian(0.1), regressor=Forest(10), random_state=0)
    assert model.get_params()["kernel__gamma"] == 0.1 and model.get_params()["regressor__trees"] == 10
    grid = {"kernel__gamma": [0.01, 1.0], "regressor__min_split": [2, 20]}
    X = vectors(60).numpy()
    found = GridSearchCV(model, grid, cv=2).fit(X, X[:, :2])
    assert found.best_params_["kernel__gamma"] in (0.01, 1.0) and found.predict(X).shape == (60, 2)
    with pytest.raises(InputError, match="has no parameter 'colour'"):
        model.set_params(kernel__colour=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"regressor": "forest"},
            "regressor must be a Regressor, one of scikit-learn, a network or 'auto'. Got 'forest'",
        ),
        ({"regressor": kernels.Tanimoto()}, r"regressor must be a Regressor, .*Got Tanimoto\(\)"),
        ({"regressor": RandomForestClassifier()}, "regressor must be a Regressor, .*Got RandomForestClassifier"),
        ({"decoder": "labels"}, "decoder must be a Decoder"),
        ({"sample_weight": -np.ones(60)}, "sample_weight must not be negative"),
    ],
)
def test_refuses(change, message):
    weights = {"sample_weight": change.pop("sample_weight")} if "sample_weight" in change else {}
    with pytest.raises(InputError, match=message):
        DSOKR(kernels.Tanimoto(), **change).fit(vectors(60).numpy(), bits(60), **weights)


@pytest.mark.parametrize("folds", [0, 1, 1.5, -2])
def test_folds_are_several_or_a_share(folds):
    with pytest.raises(InputError, match="Stack.folds must be"):
        Stack((Forest(),), folds=folds)


def test_a_single_output_is_learned_without_a_warning():
    X = vectors(40).numpy()
    for regressor in ("auto", RandomForestRegressor(5)):
        model = DSOKR(kernels.Tanimoto(), regressor=regressor, random_state=0).fit(X, np.ones((40, 3), dtype=int))
        assert (model.predict(X) == 1).all()


def test_strings_molecules_and_texts_have_their_networks():
    words = [f"w{i}x" for i in range(60)]
    kinds = {"smiles": ["CCO", "CCC"] * 30, "string": words, "text": words}
    for kind, inputs in kinds.items():
        few, many = Auto(texts=kind), Auto(texts=kind, training={"epochs": 3})
        networks = [
            [m.network for m in prepare_reading(auto, inputs)[0].members if isinstance(m, Neural)]
            for auto in (few, many)
        ]
        assert [len(found) for found in networks] == ([1, 1] if kind == "text" else [0, 1])
        assert isinstance(networks[1][0], WordBag if kind == "text" else CharTransformer)
    assert not any(isinstance(m, Neural) for m in prepare_reading(Auto(networks=False), ["a b"] * 9)[0].members)


def test_answers_from_a_long_list_are_learned_by_rank():
    """Where outputs hardly repeat and are picked from a list, a network learns to rank them."""
    texts, ys = [f"word{i} and word{i % 7}" for i in range(40)], graphs(40)
    auto = Auto(training={"epochs": 2, "progress": False})
    model = DSOKR(kernels.WeisfeilerLehman(2).normalized(), regressor=auto, random_state=0).fit(texts, ys)
    (member,) = model.parts_["regressor"].members
    assert member.loss == Ranked()
    repeated = model.fit(texts, ys[:4] * 10)
    assert [type(member.loss) for member in repeated.parts_["regressor"].members if isinstance(member, Neural)] == [
        Squared
    ]


@pytest.mark.parametrize("seconds", [2, 8])
def test_a_budget_is_kept(seconds):
    """With fewer pairs, if need be, and networks that are stopped."""
    X, y = vectors(4000).numpy(), bits(4000)
    DSOKR(kernels.Tanimoto(), random_state=0).fit(X[:50], y[:50])  # compiled functions are made once
    started = time.perf_counter()
    model = DSOKR(kernels.Tanimoto(), regressor=Auto(budget=f"{seconds} s"), random_state=0).fit(X, y)
    assert time.perf_counter() - started < 1.25 * seconds
    assert 250 <= model.n_pairs_ <= 4000 and f"from {model.n_pairs_} pairs" in model.report()


@pytest.mark.parametrize("budget", ["soon", "10", "0 s", "-3 s", 5])
def test_a_budget_is_a_time(budget):
    with pytest.raises(InputError, match="Auto.budget must be"):
        Auto(budget=budget)


class Rung(Fitted):
    """A function known by a number; near it are the next numbers."""

    def __init__(self, at: int):
        self.at = at

    def predict(self, X):
        return torch.full((len(X), 1), float(self.at))

    def state(self):
        return {}

    def alternatives(self):
        return self, Rung(self.at - 1), Rung(self.at + 1)


def test_choices_move_to_better_decoded_outputs_step_by_step(monkeypatch):
    """And stay where a step is not better by more than its standard error."""
    noise = torch.linspace(-1, 1, 100, dtype=torch.float64)

    def rate(self, Y, z, decoder):
        return -(z[:, 0] - 3).square() + (z[:, 0] == 4) * (0.5 + 20 * noise)

    monkeypatch.setattr(Judge, "rate", rate)
    judge, held_out = Judge(None, None, "loss"), (np.zeros((100, 1)), None)
    for start in (-2, 3, 4, 9):
        fitted, decoder = judge.decide(Rung(start), [LabelSet()], held_out, None)
        assert fitted.at == (4 if start >= 4 else 3) and decoder == LabelSet()


def test_a_stack_leans_towards_the_member_that_decodes_best():
    """Least squares prefers one member, decoded outputs another."""
    X, y = vectors(300).numpy(), bits(300)
    stack = Stack((Forest(30), KernelRidge(intercept=True)), contrast=(1.0, 2.0, 4.0))
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(60), stack, random_state=0).fit(X, y)
    first = stack.fit(X, Targets(*model.basis_.embed_with_residual(torch.from_numpy(y).double())), seed=0, device=CPU)
    near = first.alternatives()
    assert [other.contrast for other in near] == [1.0, 2.0, 1.0, 1.0]
    total = sum(member.weight for member in first.members)
    for place, leaning in enumerate(near[2:]):
        weights = [member.weight for member in leaning.members]
        assert sum(weights) == pytest.approx(total) and weights[place] >= first.members[place].weight
        _, z = leaning.out_of_fold()
        expected = sum(w * part for w, part in zip(weights, leaning.unseen.predictions, strict=True))
        torch.testing.assert_close(z, expected)
    assert model.regressor_.unseen is None and model.out_of_fold_[0].shape == (300, model.basis_.dim)
