import numpy as np
import pytest
import torch

from dsokr import DSOKR, Training, kernels, sketches
from dsokr.compute import seeded
from dsokr.errors import InputError
from dsokr.regressors import Neural
from dsokr.regressors.networks import CharTransformer

SMALL = CharTransformer(layers=1, width=32, heads=4, dropout=0.0)
WORDS = ["CCO", "CC=O", "C#N", "OCCO", "NCC", "CCC=O", "OC", "CN"]


@pytest.fixture
def network():
    with seeded(0):
        return SMALL(5).eval()


def test_padding_plays_no_part(network):
    """A string gets the same coordinates alone and beside longer ones."""
    together = network(network.prepare(WORDS))
    alone = torch.cat([network(network.prepare([word])) for word in WORDS])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_order_and_length_matter(network):
    a, b, c = network(network.prepare(["CCO", "COC", "CCOC"]))
    assert not torch.allclose(a, b, atol=1e-3) and not torch.allclose(a, c, atol=1e-3)


def test_strings_in_strings_out(tmp_path):
    """Raw strings as inputs and as outputs, through fit, predict, save and load."""
    words = ["CCO", "C#N", "NCCN", "O=C=O", "FC(F)F"]
    xs = [words[i] for i in np.random.default_rng(0).integers(len(words), size=160)]
    network = Neural(SMALL, training=Training(epochs=25, batch_size=16, learning_rate=3e-3, schedule="linear"))
    kernel = kernels.NGram(2).normalized()
    model = DSOKR(kernel, sketches.SubSample(40), network, random_state=0, device="cpu").fit(xs, xs)
    assert model.predict(words) == words
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert loaded.regressor == network and loaded.predict(words) == words
    assert torch.equal(loaded.coefficients(words), model.coefficients(words))
    with pytest.warns(UserWarning, match="No training string has the character 'P'"):
        loaded.predict(["CP"])  # the alphabet was saved, too


@pytest.mark.parametrize(
    ("xs", "message"),
    [
        (["CC", ""], "reads non-empty strings. Got '' at index 1"),
        ([3], "Got 3 at index 0"),
        (["C" * 300], "longest is 256 characters. Got 300 at index 0: raise it"),
        (["CC", "é"], "reads ASCII. Got 'é' at index 1"),
    ],
)
def test_refuses(network, xs, message):
    with pytest.raises(InputError, match=message):
        network.prepare(xs)


def test_characters_that_no_training_string_has_read_as_blank(network):
    network.adapt(WORDS)
    with pytest.warns(UserWarning, match="No training string has the character 'B' of 'CB' at index 1.* 1 more"):
        tokens = network.prepare(["CC", "CB", "XC"])
    boron, other = network(tokens[1:2]), network(tokens[2:3])
    with pytest.warns(UserWarning, match="'Q'"):
        torch.testing.assert_close(network(network.prepare(["CQ"])), boron)
    assert not torch.allclose(boron, other, atol=1e-3)  # the places still count
    assert torch.isfinite(boron).all()


def test_strings_longer_than_all_in_training_are_a_guess(network):
    network.adapt(WORDS)
    with pytest.warns(UserWarning, match="longest training string has 5 characters, 'CCCCCCC' at index 1 has 7"):
        z = network(network.prepare(["CC", "CCCCCCC"]))
    assert torch.isfinite(z).all()


def test_dropout_is_off_when_predicting():
    with seeded(0):
        network = CharTransformer(layers=1, width=32, heads=4, dropout=0.5)(5)
        tokens = network.prepare(WORDS)
        assert not torch.equal(network(tokens), network(tokens))
        network.eval()
        assert torch.equal(network(tokens), network(tokens))


def test_refuses_heads_that_do_not_fit():
    with pytest.raises(InputError, match="width=30 and heads=8"):
        CharTransformer(width=30, heads=8)
