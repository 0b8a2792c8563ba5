"""What all networks share: checked shapes, a last batch of one, how inputs are prepared and networks applied."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.preprocessing import normalize
from torch import nn

from dsokr.compute import seeded
from dsokr.errors import InputError
from dsokr.losses import Huber
from dsokr.regressors import Neural, Targets, Training
from dsokr.regressors.networks import CNN, MLP, CharTransformer, SparseTransformer, TextEncoder, WordBag, base
from dsokr.regressors.networks.base import apply_network, build_network, prepare_inputs

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("factory", "wrong"),
    [
        (MLP, {"hidden": (0,)}),
        (MLP, {"hidden": (16, -5)}),
        (MLP, {"hidden": (2.5,)}),
        (MLP, {"activation": "step"}),
        (MLP, {"dropout": 1.5}),
        (MLP, {"dropout": float("nan")}),
        (CNN, {"channels": ()}),
        (CNN, {"channels": (8, 0)}),
        (CNN, {"hidden": 0}),
        (CNN, {"where": "somewhere"}),
        (CNN, {"dropout": -0.1}),
        (CharTransformer, {"layers": 0}),
        (CharTransformer, {"heads": 0}),
        (CharTransformer, {"dropout": 1.0}),
        (SparseTransformer, {"width": 30}),
        (SparseTransformer, {"layers": -1}),
        (WordBag, {"width": 0}),
        (WordBag, {"buckets": 1}),
        (WordBag, {"dropout": 2}),
        (WordBag, {"rate": -1.0}),
        (lambda **wrong: TextEncoder("folder", **wrong), {"max_length": 0}),
        (lambda **wrong: TextEncoder("folder", **wrong), {"pooling": "sum"}),
        (lambda **wrong: TextEncoder("folder", **wrong), {"rate": -1.0}),
        (lambda **wrong: TextEncoder("folder", **wrong), {"masked": 1.0}),
    ],
)
def test_impossible_shapes_are_refused_when_they_are_named(factory, wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=rf"\.{name} must (be|name)"):
        factory(**wrong)


def test_shapes():
    perceptron = build_network(MLP(()), 3, torch.zeros(2, 6), seed=0)
    assert sum(w.numel() for w in perceptron.parameters()) == 6 * 3 + 3
    for where, images in (("kept", torch.zeros(4, 3, 16, 16)), ("anywhere", torch.zeros(4, 16, 16))):
        assert build_network(CNN((4, 8), hidden=5, where=where), 2, images, seed=0)(images).shape == (4, 2)


@pytest.mark.parametrize(
    ("factory", "X", "message"),
    [
        (CNN((4,)), torch.zeros(4, 16), "CNN takes images as .* Got an array of 2 dimensions"),
        (MLP(()), ["a", "b"], r"Sequential takes arrays or tensors and has no prepare\(xs\). Got a list of str"),
        (MLP(()), sp.eye_array(3).tocsr(), "Sparse X is not supported: networks take dense inputs"),
        (lambda p: nn.Linear(5, p), torch.zeros(4, 3), r"cannot read float32 inputs of shape \(2, 3\): mat1 and mat2"),
        (lambda p: nn.Linear(3, 7), torch.zeros(4, 3), r"must map 2 inputs to shape \(2, p=2\). Got \(2, 7\)"),
        (lambda p: nn.LSTM(3, p), torch.zeros(4, 3), r"must map 2 inputs to shape \(2, p=2\). Got tuple"),
    ],
)
def test_what_a_network_cannot_read_is_said(factory, X, message):
    with pytest.raises(InputError, match=message):
        build_network(factory, 2, X, seed=0)


def linear() -> nn.Module:
    with seeded(0):
        return nn.Linear(2, 2)


def test_a_network_is_a_factory():
    with pytest.raises(InputError, match="network must be a function from p to a torch module.* Got Linear"):
        Neural(linear())
    with pytest.raises(InputError, match="training must be a Training"):
        Neural(MLP(), training={"epochs": 3})


@pytest.mark.parametrize(
    "xs",
    [
        np.arange(10, dtype=np.float32).reshape(2, 5)[:1][::-1],  # numpy calls this contiguous, torch cannot read it
        np.arange(10)[::-2],
        np.arange(6, dtype=">f8").reshape(3, 2),
        np.frombuffer(bytes(8), np.float32),  # read-only
    ],
)
def test_arrays_however_they_lie_in_memory(xs):
    prepared = prepare_inputs(linear(), xs)
    assert prepared.dtype == torch.float32 and prepared.tolist() == xs.tolist()
    assert prepare_inputs(linear().double(), xs).dtype == torch.float64


def test_whole_numbers_may_be_token_ids():
    assert prepare_inputs(linear(), torch.tensor([[1, 2]])).dtype == torch.int64
    assert prepare_inputs(linear(), torch.ones(1, 2, dtype=torch.float64)).dtype == torch.float32


def test_a_sparse_row_is_read_by_its_largest_entries():
    with seeded(0):
        network = SparseTransformer(1, 8, 2, longest=2)(3)
    rows = sp.csr_array([[0.0, 2.0, -3.0, 1.0], [0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0]])
    with seeded(0):
        network.adapt(rows)
    tokens = network.prepare(rows)
    assert tokens[..., 0].tolist() == [[1, 4, 3], [1, 0, 0], [1, 2, 0]]
    assert tokens[..., 1].tolist() == [[1, -3, 2], [1, 0, 0], [1, 5, 0]]
    assert network.lengths(tokens).tolist() == [3, 1, 2]
    with pytest.raises(InputError, match="The network reads rows of 4 columns. Got 5."):
        network.prepare(sp.csr_array((1, 5)))


@pytest.mark.parametrize("layers", [0, 1])
def test_the_order_and_number_of_padded_tokens_do_not_matter(layers):
    with seeded(0):
        network = SparseTransformer(layers, 8, 2)(3).eval()
    rows = sp.random_array((6, 20), density=0.3, rng=np.random.default_rng(0), format="csr")
    with seeded(0):
        network.adapt(rows)
    tokens = network.prepare(rows)
    alone = torch.cat([network(network.prepare(rows[[i]])) for i in range(6)])
    torch.testing.assert_close(network(tokens), alone)
    length = int(network.lengths(tokens[:1]))
    tokens[0, 1:length] = tokens[0, 1:length].flip(0)
    torch.testing.assert_close(network(tokens), alone)


@pytest.mark.parametrize("layers", [0, 1])
def test_tokens_are_learned_from(layers):
    """Targets are a linear function of normalised rows."""
    rng = np.random.default_rng(0)
    X = sp.csr_array(normalize(sp.random_array((300, 40), density=0.15, rng=rng, format="csr")))
    Y = torch.from_numpy(X @ rng.normal(size=(40, 3)))
    training = Training(epochs=40, batch_size=32, learning_rate=3e-3)
    regressor = Neural(SparseTransformer(layers, 32, 2, dropout=0.0, hidden=64), training=training)
    fitted = regressor.fit(X[:250], Targets(Y[:250], torch.zeros(250)), seed=0, device=torch.device("cpu"))
    assert (fitted.predict(X[250:]) - Y[250:]).square().mean() < 0.2 * Y.var()


def test_a_last_batch_of_one_image_can_be_learned_from():
    pictures = torch.rand(5, 8, 8, generator=torch.Generator().manual_seed(0))
    network = build_network(CNN((4,), hidden=8), 3, pictures, seed=0)
    alone = network.train()(pictures[:1])
    assert torch.isfinite(alone).all()
    alone.sum().backward()


def test_predictions_in_blocks_are_those_of_each_text_alone(monkeypatch):
    monkeypatch.setattr(base, "LONG_BLOCK", 3)
    with seeded(0):
        network = WordBag(width=8, hidden=(8,))(2).eval()
    texts = [" ".join(["acid", "ester", "ring"][: 1 + i % 3] * (1 + 7 * i % 5)) for i in range(11)]
    together = apply_network(network, network.prepare(texts))
    alone = torch.cat([network(network.prepare([text])) for text in texts])
    assert torch.allclose(together, alone.detach(), atol=1e-6)


class InPlace(nn.Module):
    """Changes its inputs, as some networks do."""

    def __init__(self, p: int):
        super().__init__()
        self.linear = nn.Linear(3, p)

    def forward(self, inputs):
        return self.linear(inputs.mul_(2).sub_(1))


def test_a_fitted_network(tmp_path):
    """It predicts in float64, at any scale of the targets, and a network that works in place changes no inputs."""
    X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    z = (X @ torch.tensor([[1.0, 200.0], [0.0, 100.0], [1.0, 0.0]]) + 1000).double()
    before, targets = X.clone(), Targets(z, torch.zeros(200, dtype=torch.float64))
    regressor = Neural(InPlace, Huber(1e6), Training(epochs=40, batch_size=20, learning_rate=0.05, progress=False))
    fitted = regressor.fit(X, targets, (X[:50], Targets(z[:50], torch.zeros(50))), seed=0, device=CPU)
    predicted = fitted.predict(X)
    assert torch.equal(X, before) and predicted.dtype == torch.float64 and not fitted.network.training
    assert ((predicted - z).square().mean(dim=0) < 0.01 * z.var(dim=0)).all()
    restored = regressor.restore(fitted.state(), tmp_path / "nowhere", 2, CPU)
    assert torch.equal(restored.predict(X), predicted)


@pytest.mark.parametrize(
    ("hidden", "p", "is_told"), [((16,), 600, True), ((400,), 600, False), ((16,), 40, False), ((), 600, False)]
)
def test_a_layer_much_narrower_than_the_basis_is_told(hidden, p, is_told):
    targets = Targets(torch.zeros(4, p, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Neural(MLP(hidden), training=Training(epochs=1, progress=False)).fit(
            torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), targets, seed=0, device=CPU
        )
    assert ["16 units for p = 600" in str(warning.message) for warning in told] == [True] * is_told


def test_without_a_place_for_a_cache_functions_are_compiled_anyway():
    pytest.importorskip("numba")
    script = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from dsokr.compute import compiled\n"
        "import numpy as np\n"
        "def total(values):\n"
        "    found = 0.0\n"
        "    for value in values:\n"
        "        found += value\n"
        "    return found\n"
        "print(compiled(total)(np.arange(4.0)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "6.0", done.stderr
