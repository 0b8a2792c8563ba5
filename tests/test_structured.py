"""From inputs to molecules, strings and rankings and back: the whole estimator on structured outputs."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import kendalltau

from dsokr import DSOKR, Ensemble, Graph, Training, kernels, networks, selection, sketches
from dsokr.graphs import GraphBatch
from dsokr.metrics import edit_distance
from dsokr.outputs import as_outputs, positions
from dsokr.regressors import Neural
from studies.data import molecules

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
        kernel, sketches.SubSample(120), Neural(networks.MLP((128,)), training=training), random_state=0, device="cpu"
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
    network = Neural(networks.MLP((16,)), training=Training(epochs=2))
    parts = (kernels.WeisfeilerLehman(2).normalized(), sketches.SubSample(40), network)
    options = {"random_state": 0, "device": "cpu"}
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
    model = DSOKR(kernel, sketches.SubSample(60), Neural(networks.MLP((32,)), training=training), random_state=0)
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
    model = DSOKR(
        kernel, sketches.SubSample(100), Neural(networks.MLP((64,)), training=training), random_state=0, device="cpu"
    )
    predicted = model.fit(X[:500], Y[:500]).predict(X[500:])
    assert np.mean([kendalltau(a, b).statistic for a, b in zip(predicted, Y[500:], strict=True)]) > 0.8


def test_several_views_of_a_molecule():
    """The graph and a fingerprint of it, each with its own kernel, through a product type."""
    bits = (described(MOLECULES) > 0).astype(int)
    pairs = list(zip(MOLECULES, bits, strict=True))
    kernel = kernels.Views(0.5 * kernels.WeisfeilerLehman(2).normalized(), 0.5 * kernels.Tanimoto())
    model = DSOKR(
        kernel, sketches.Gaussian(60), Neural(networks.MLP((32,)), training=Training(epochs=2)), random_state=0
    )
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
    return DSOKR(
        kernel, sketches.SubSample(9), Neural(networks.MLP((8,)), training=training), random_state=0, device="cpu"
    )


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_outputs_trains_and_validates(form):
    """The same model whatever the form, with validation outputs and fellow members of another one."""
    expected = small(monitor="mrr").fit(X, SETS, validation=(X[:20], SETS[:20]))
    other = small(monitor="mrr").fit(X, SETS, validation=(X[:20], form(SETS)[:20]))
    model = small(monitor="mrr").fit(X, form(SETS), validation=(X[:20], SETS[:20]))
    torch.testing.assert_close(other.scores(X), expected.scores(X))
    torch.testing.assert_close(model.scores(X), expected.scores(X))
    found, wanted = (positions(as_outputs(fitted.predict(X)), as_outputs(SETS)) for fitted in (model, expected))
    assert torch.equal(found, wanted)
    torch.testing.assert_close(Ensemble([expected, model]).scores(X), expected.scores(X))


def test_rankings_may_need_gradients():
    places = X.argsort(axis=1).argsort(axis=1)
    model = small(kernels.Kemeny()).fit(X, torch.tensor(places, dtype=torch.float64, requires_grad=True))
    assert not model.predict(X).requires_grad


def test_predictions_may_be_changed():
    Y = X.tolist()
    model = small(kernels.Gaussian(1.0)).fit(X, Y)
    predicted = model.predict(X[:1])
    before = [*predicted[0]]
    predicted[0][0] = 99.0
    for row in Y:
        row[0] = 99.0
    assert model.predict(X[:1]) == [before]
