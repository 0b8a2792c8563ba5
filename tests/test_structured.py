"""From inputs to molecules, strings and rankings and back: the whole estimator on structured outputs."""

from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import kendalltau

from dsokr import DSOKR, Ensemble, Graph, Training, kernels, networks, selection, sketches
from studies.data import molecules
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.metrics import edit_distance, exact_match, f1, kendall_tau
from dsokr.outputs import ViewBatch, as_outputs, distinct, keys, owned, positions, take

MOLECULES = molecules.generate(300, seed=0, max_atoms=6)


def described(graphs: list[Graph]) -> np.ndarray:
    """Inputs that tell a molecule well: counts of atoms, bonds, and of bonds by their ends."""
    rows = np.zeros((len(graphs), 4 + 4 + 64))
    for row, graph in zip(rows, graphs, strict=True):
        for label in graph.labels:
            row[label - 6] += 1
        for i, j, order in graph.edges:
            row[4 + order] += 1
            a, b = sorted((graph.labels[i] - 6, graph.labels[j] - 6))
            row[8 + 16 * (order - 1) + 4 * a + b] += 1
    return rows


def closeness(predicted: list[Graph], true: list[Graph]) -> float:
    return -edit_distance(predicted, true).mean().item()


@pytest.mark.parametrize(
    "kernel",
    [kernels.WeisfeilerLehman(3, edge_labels=True).normalized(), kernels.NSPD(1, 2).normalized()],
    ids=["WL", "NSPD"],
)
def test_molecules(kernel, tmp_path):
    """The epoch is chosen by the edit distance after decoding; molecules never seen come closer than by chance."""
    X, train, test = described(MOLECULES), MOLECULES[:260], MOLECULES[260:]
    training = Training(epochs=60, batch_size=16, learning_rate=3e-3, monitor=closeness, patience=None)
    model = DSOKR(
        kernel, sketches.SubSample(120), networks.MLP((128,)), training=training, random_state=0, device="cpu"
    )
    model.fit(X[:260], train)
    predicted = model.predict(X[260:])
    assert all(isinstance(graph, Graph) for graph in predicted)
    rng = np.random.default_rng(0)
    by_chance = edit_distance([train[i] for i in rng.integers(260, size=len(test))], test).mean()
    assert edit_distance(predicted, test).mean() < 0.75 * by_chance
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert loaded.predict(X[260:]) == predicted and loaded.kernel == kernel


def test_a_batch_of_graphs_is_as_good_as_a_list():
    X = described(MOLECULES)
    parts = (kernels.WeisfeilerLehman(2).normalized(), sketches.SubSample(40), networks.MLP((16,)))
    options = {"training": Training(epochs=2), "random_state": 0, "device": "cpu"}
    batch = DSOKR(*parts, **options).fit(X, GraphBatch.of(MOLECULES)).predict(X[:5])
    assert isinstance(batch, GraphBatch)
    assert list(batch) == DSOKR(*parts, **options).fit(X, MOLECULES).predict(X[:5])


def test_perfect_h_with_the_edit_distance(generator):
    curve = selection.perfect_h(
        kernels.WeisfeilerLehman(3, edge_labels=True).normalized(),
        MOLECULES,
        MOLECULES[:60],
        sketches.SubSample(1),
        (2, 20, 250),
        metric=closeness,
        rule="projected",
        generator=generator,
    )
    assert curve.values[0, 0] < curve.values[0, 1] <= curve.values[0, 2] == 0  # every molecule finds itself


def test_strings():
    words = ["kernel", "sketch", "basis", "anchor", "output", "input", "graph", "string"]
    rng = np.random.default_rng(0)
    which = rng.integers(len(words), size=200)
    X = np.eye(len(words))[which] + 0.1 * rng.normal(size=(200, len(words)))
    kernel = kernels.NGram(2).normalized()
    training = Training(epochs=30, batch_size=16)
    model = DSOKR(kernel, sketches.SubSample(60), networks.MLP((32,)), training=training, random_state=0)
    predicted = model.fit(X, [words[i] for i in which]).predict(X)
    assert np.mean([a == words[i] for a, i in zip(predicted, which, strict=True)]) > 0.95


@pytest.mark.parametrize(
    "kernel", [kernels.Kemeny(), kernels.Hamming(), kernels.Lehmer()], ids=lambda k: type(k).__name__
)
def test_rankings(kernel):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    Y = X.argsort(axis=1).argsort(axis=1)
    training = Training(epochs=30, batch_size=32, learning_rate=5e-3)
    model = DSOKR(kernel, sketches.SubSample(100), networks.MLP((64,)), training=training, random_state=0, device="cpu")
    predicted = model.fit(X[:500], Y[:500]).predict(X[500:])
    assert np.mean([kendalltau(a, b).statistic for a, b in zip(predicted, Y[500:], strict=True)]) > 0.8


def test_several_views_of_a_molecule():
    """The graph and a fingerprint of it, each with its own kernel, through a product type."""
    bits = (described(MOLECULES) > 0).astype(int)
    pairs = list(zip(MOLECULES, bits, strict=True))
    kernel = kernels.Views(0.5 * kernels.WeisfeilerLehman(2).normalized(), 0.5 * kernels.Tanimoto())
    model = DSOKR(kernel, sketches.Gaussian(60), networks.MLP((32,)), training=Training(epochs=2), random_state=0)
    predicted = model.fit(described(MOLECULES), [(g, tuple(b)) for g, b in pairs]).predict(described(MOLECULES[:3]))
    assert isinstance(predicted[0][0], Graph) and len(predicted[0][1]) == bits.shape[1]
    assert torch.isfinite(model.scores(described(MOLECULES[:3]))).all()


X = np.random.default_rng(0).normal(size=(60, 4))
SETS = (X > 0).astype(int)
FORMS = {
    "ints": np.asarray,
    "bytes": lambda y: y.astype(np.uint8),
    "bools": lambda y: y.astype(bool),
    "floats": lambda y: -(0.0 - y),  # the zeros among them are -0.0
    "single precision": lambda y: y.astype(np.float32),
    "big-endian": lambda y: y.astype(">f8"),
    "objects": lambda y: y.astype(object),
    "lists": np.ndarray.tolist,
    "lists of floats": lambda y: y.astype(float).tolist(),
    "tuples": lambda y: list(map(tuple, y.tolist())),
    "list of arrays": list,
    "list of tensors": lambda y: list(torch.tensor(y)),
    "tensor": torch.tensor,
    "bfloat16": lambda y: torch.tensor(y, dtype=torch.bfloat16),
    "sparse": sp.csr_array,
    "backwards": lambda y: np.ascontiguousarray(y[::-1])[::-1],
    "needs gradients": lambda y: torch.tensor(y, dtype=torch.float64, requires_grad=True),
}


def small(kernel: kernels.Kernel = kernels.Linear(), **training) -> DSOKR:  # noqa: B008 # kernels are frozen
    training = Training(epochs=2, **training)
    return DSOKR(kernel, sketches.SubSample(9), networks.MLP((8,)), training=training, random_state=0, device="cpu")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("among", FORMS.values(), ids=FORMS)
def test_outputs_are_equal_whatever_the_type_of_their_numbers(form, among):
    rng, bools = np.random.default_rng(1), FORMS["bools"] in (form, among)
    rows = np.unique(rng.integers(0, 2 if bools else 200, size=(40, 6)), axis=0)
    order = rng.permutation(len(rows))
    assert positions(form(rows[order]), among(rows)).tolist() == order.tolist()
    with pytest.raises(InputError, match="The output at index 1 is not among the candidates"):
        positions(form(rows[order[:3]]), among(np.delete(rows, order[1], axis=0)))


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, list, sp.csr_array, lambda a: a[:, None, :]])
def test_numbers_that_differ_are_not_equal(form):
    rows = np.array([[0.0, 1], [1, 0], [0.5, 1], [0, 127], [0, 128], [0, -128], [0, -129], [0, 2.0**60], [0, 1e300]])
    assert distinct(form(np.concatenate([rows, rows]))).tolist() == list(range(9))
    near = np.array([[2**53, 1], [2**53 + 1, 1], [2**60, 1], [2**60 + 1, 1]])
    assert distinct(form(near)).tolist() == [0, 1, 2, 3]
    assert positions(form(near[::2]), form(near.astype(float))).tolist() == [0, 2]
    single = np.array([[0.1, 0.5]], np.float32)
    assert set(keys(form(single))) == set(keys(form(single.astype(float)))) != set(keys(form(np.array([[0.1, 0.5]]))))


def test_other_outputs_are_equal_as_before():
    graphs = MOLECULES[:3]
    assert positions(graphs[::-1], GraphBatch.of(graphs)).tolist() == [2, 1, 0]
    assert positions(np.array(["b", "a"]), ["a", "b"]).tolist() == [1, 0]
    assert positions([("b", "b")], np.array([["a", "a"], ["b", "b"]])).tolist() == [1]
    assert positions([(1, 2), (3,), ()], [(), (3,), (1, 2)]).tolist() == [2, 1, 0]
    assert positions(np.array([1.0, 2.0]), [2, 1]).tolist() == [1, 0]
    views = ViewBatch(graphs, np.eye(3), np.eye(3), ["a", "b", "c"])
    assert positions(list(views)[::-1], views).tolist() == [2, 1, 0]
    assert positions(views, [(g, [*row], tuple(row), s) for (g, row, _, s) in views]).tolist() == [0, 1, 2]
    assert [*keys([10**400, [10**400, 1], [np.nan]])][:2] == [10**400, (10**400, 1)]
    assert [*keys(np.zeros((2, 0)))] == [*keys([[], []])] and [*keys([])] == []


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_outputs_trains_and_validates(form):
    """The same model whatever the form, with validation outputs and fellow members of another one."""
    expected = small(monitor="mrr").fit(X, SETS, validation=(X[:20], SETS[:20]))
    other = small(monitor="mrr").fit(X, SETS, validation=(X[:20], form(SETS)[:20]))
    model = small(monitor="mrr").fit(X, form(SETS), validation=(X[:20], SETS[:20]))
    torch.testing.assert_close(other.scores(X), expected.scores(X))
    torch.testing.assert_close(model.scores(X), expected.scores(X))
    assert torch.equal(positions(model.predict(X), SETS), positions(expected.predict(X), SETS))
    if form is not sp.csr_array:
        torch.testing.assert_close(Ensemble([expected, model]).scores(X), expected.scores(X))


def test_rankings_may_need_gradients():
    places = X.argsort(axis=1).argsort(axis=1)
    model = small(kernels.Kemeny()).fit(X, torch.tensor(places, dtype=torch.float64, requires_grad=True))
    assert not model.predict(X).requires_grad


@pytest.mark.parametrize("bad", [np.nan, np.inf, None])
@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, lambda y: y[:, 0], lambda y: y[:, 0].tolist()])
def test_the_first_output_that_is_no_number_is_named(form, bad):
    rows = SETS.astype(object)
    rows[[7, 9], 0] = bad
    with pytest.raises(InputError, match=f"Y must be finite. Got {'None' if bad is None else 'NaN or inf'} in row 7"):
        as_outputs(form(rows))


def test_sparse_outputs_that_are_no_numbers_are_named():
    rows = sp.csr_array((np.array([1.0, np.nan]), [3, 2], [0, 0, 1, 1, 2]), shape=(4, 2**40))
    with pytest.raises(InputError, match="NaN or inf in row 3"):
        as_outputs(rows)


def test_words_that_read_like_numbers_are_words():
    words = np.array(["nan", "1", "inf"], dtype=object)
    assert as_outputs(words) is words
    assert [*keys([["1", "0"]])] != [*keys([[1, 0]])]


class Pair(NamedTuple):
    graph: Graph
    bits: np.ndarray


@pytest.mark.parametrize(
    "form",
    [np.asarray, torch.tensor, np.ndarray.tolist, list, lambda y: [(MOLECULES[0], row) for row in y.tolist()],
     lambda y: [Pair(MOLECULES[0], row) for row in y.copy()], lambda y: ViewBatch(y, y)],
)  # fmt: skip
@pytest.mark.parametrize("copied", [lambda ys: take(ys, torch.arange(60)), owned], ids=["take", "owned"])
def test_what_was_taken_may_be_changed(form, copied):
    ys = form(SETS.copy())
    before, taken = [*keys(ys)], copied(ys)
    assert type(taken) is type(ys) and type(taken[0]) is type(ys[0]) and [*keys(taken)] == before
    row = taken.views[0][0] if isinstance(taken, ViewBatch) else taken[0]
    row = row[1] if isinstance(row, tuple) else row
    row[0] = 99
    assert [*keys(ys)] == before != [*keys(taken)]


def test_predictions_may_be_changed():
    Y = X.tolist()
    model = small(kernels.Gaussian(1.0)).fit(X, Y)
    predicted = model.predict(X[:1])
    before = [*predicted[0]]
    predicted[0][0] = 99.0
    for row in Y:
        row[0] = 99.0
    assert model.predict(X[:1]) == [before]


def test_metrics_of_arrays_that_lie_backwards():
    places = X.argsort(axis=1).argsort(axis=1)
    for turn in (lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a[:1][::-1], lambda a: a.astype(">i4")):
        assert f1(turn(SETS), turn(SETS)) == exact_match(turn(SETS), turn(SETS)) == 1
        assert kendall_tau(turn(places), turn(places)).tolist() == [1.0] * len(turn(places))
