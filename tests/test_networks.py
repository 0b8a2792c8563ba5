"""What all networks share: checked shapes, rests of one, and predictions in blocks."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from dsokr.compute import seeded
from dsokr.errors import InputError
from dsokr.regressors.networks import CNN, MLP, CharTransformer, TextEncoder, WordBag, base, outputs_of, prepared


@pytest.mark.parametrize(
    ("factory", "wrong"),
    [
        (MLP, {"hidden": (0,)}),
        (MLP, {"hidden": (16, -5)}),
        (MLP, {"hidden": (2.5,)}),
        (MLP, {"dropout": 1.5}),
        (MLP, {"dropout": float("nan")}),
        (CNN, {"channels": (8, 0)}),
        (CNN, {"hidden": 0}),
        (CNN, {"dropout": -0.1}),
        (CharTransformer, {"layers": 0}),
        (CharTransformer, {"heads": 0}),
        (CharTransformer, {"dropout": 1.0}),
        (WordBag, {"width": 0}),
        (WordBag, {"dropout": 2}),
        (lambda **wrong: TextEncoder("folder", **wrong), {"max_length": 0}),
        (lambda **wrong: TextEncoder("folder", **wrong), {"masked": 1.0}),
    ],
)
def test_impossible_shapes_are_refused_when_they_are_named(factory, wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=rf"\.{name} must be"):
        factory(**wrong)


def test_a_rest_of_one_picture_can_be_learned_from():
    pictures = torch.rand(5, 8, 8, generator=torch.Generator().manual_seed(0))
    with seeded(0):
        network = CNN((4,), hidden=8)(3)
        network(pictures)
    network.train()
    alone = network(pictures[:1])
    assert torch.isfinite(alone).all()
    alone.sum().backward()


def test_predictions_in_blocks_are_those_of_each_text_alone(monkeypatch):
    monkeypatch.setattr(base, "LONG_BLOCK", 3)
    with seeded(0):
        network = WordBag(width=8, hidden=(8,))(2).eval()
    texts = [" ".join(["acid", "ester", "ring"][: 1 + i % 3] * (1 + 7 * i % 5)) for i in range(11)]
    together = outputs_of(network, network.prepare(texts))
    alone = torch.cat([network(network.prepare([text])) for text in texts])
    assert torch.allclose(together, alone.detach(), atol=1e-6)


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


def test_a_single_row_may_lie_backwards_in_memory():
    """Numpy calls such a row contiguous, torch cannot read it."""
    row = np.arange(10, dtype=np.float32).reshape(2, 5)[:1][::-1]
    assert prepared(MLP((4,))(2), row).tolist() == row.tolist()
