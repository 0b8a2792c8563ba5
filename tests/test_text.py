"""Networks for texts: pretrained encoders, made small here, and bags of words."""

import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from dsokr import DSOKR, Training, kernels, networks, sketches
from dsokr.compute import seeded
from dsokr.errors import InputError
from dsokr.regressors.networks import TextEncoder, WordBag, built, paces
from dsokr.regressors.training import batched_by_length

# fmt: off
WORDS = [
    "the", "molecule", "is", "an", "ester", "ether", "acid", "of",
    "carbon", "with", "two", "three", "rings", "and", "one", "alcohol",
]
# fmt: on


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    """A folder with a BERT of two small layers, its weights random, and a tokeniser that knows a few words."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(vocabulary)}).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    with seeded(0):
        transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


def made(factory, p: int) -> torch.nn.Module:
    with seeded(0):
        return factory(p)


def texts(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 12))) for _ in range(n)]


def test_words_are_hidden_in_training_alone(encoder):
    network = made(TextEncoder(encoder, dropout=0.0, masked=0.5), 3)
    tokens = network.prepare(texts(6))
    with seeded(0):
        some, others = network.train()(tokens), network(tokens)
    assert not torch.allclose(some, others)
    plain = made(TextEncoder(encoder, dropout=0.0), 3).eval()
    assert torch.equal(network.eval()(tokens), plain(tokens))


def test_marks_at_the_ends_are_not_hidden(encoder):
    network = made(TextEncoder(encoder, masked=0.99), 2).train()
    tokens = network.prepare(texts(30))
    seen = []
    network.encoder.register_forward_pre_hook(lambda *call: seen.append(call[2]["input_ids"]), with_kwargs=True)
    with seeded(0):
        network(tokens)
    assert torch.equal(seen[0][:, 0], tokens[:, 0].long()) and (seen[0] == network.mask).any()


def test_texts_are_cut_where_the_encoder_ends(encoder):
    network = made(TextEncoder(encoder, max_length=1000), 2)
    most = network.encoder.config.max_position_embeddings
    with pytest.warns(UserWarning, match=f"have more than {most} tokens"):
        tokens = network.prepare([" ".join(["alcohol"] * 2 * most)])
    assert tokens.shape[1] == most and network.eval()(tokens).isfinite().all()


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_padding_on_the_left_and_padding_in_a_text(encoder, tmp_path, pooling):
    turned = tmp_path / "turned"
    shutil.copytree(encoder, turned)
    settings = turned / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"padding_side": "left"}))
    long = " ".join(texts(12))
    for folder, text in ((turned, texts(1)[0]), (encoder, "[PAD] " * 8 + texts(1)[0])):
        network = made(TextEncoder(str(folder), pooling=pooling), 2).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the long text is cut
            alone, beside = network(network.prepare([text])), network(network.prepare([text, long]))[:1]
        assert torch.allclose(alone, beside, atol=1e-5)


def test_a_bag_of_words_is_added_to_what_the_encoder_says(encoder):
    bag = WordBag(width=8, hidden=(8,), buckets=64)
    both = made(TextEncoder(encoder, max_length=32, words=bag), 3).eval()
    alone = made(TextEncoder(encoder, max_length=32), 3).eval()
    alone.load_state_dict({name: w for name, w in both.state_dict().items() if not name.startswith("words.")})
    said = texts(7)
    tokens = both.prepare(said)
    assert torch.equal(both.lengths(tokens), alone.lengths(alone.prepare(said)))
    together = alone(alone.prepare(said)) + both.words(both.words.prepare(said))
    assert torch.allclose(both(tokens), together, atol=1e-6)
    (short,) = both(both.prepare(said[:1]))
    assert torch.allclose(short, together[0], atol=1e-6)
    assert sum(len(part) for part, _ in paces(both)) == len(list(both.parameters()))


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
def test_padding_changes_nothing(encoder, pooling):
    network = made(TextEncoder(encoder, pooling=pooling, max_length=32), 3).eval()
    short, long = "the molecule is an ester", " ".join(WORDS)
    alone = network(network.prepare([short]))
    together = network(network.prepare([short, long]))
    assert torch.allclose(alone[0], together[0], atol=1e-5)


def test_learns_from_texts(encoder):
    X = texts(60)
    Y = np.array([[("ester" in x), ("acid" in x), ("rings" in x)] for x in X], dtype=int)
    network = TextEncoder(encoder, max_length=32, rate=0.5, hidden=(8,), dropout=0.0)
    training = Training(epochs=30, batch_size=20, learning_rate=5e-3, progress=False)
    model = DSOKR(kernels.Linear(), sketches.SubSample(8), network, training=training, random_state=0)
    model.fit(X, Y, validation=(X, Y))
    assert min(model.history_["val_loss"]) < 0.5 * model.history_["val_loss"][0]
    assert (model.predict(X) == Y).mean() > 0.8


def test_a_saved_model_says_the_same(encoder, tmp_path):
    X, Y = texts(20), np.eye(20)[:, :4]
    model = DSOKR(
        kernels.Linear(),
        sketches.SubSample(10),
        TextEncoder(encoder, max_length=16),
        training=Training(epochs=1, progress=False),
        random_state=0,
    ).fit(X, Y)
    model.save(tmp_path / "model")
    again = DSOKR.load(tmp_path / "model")
    assert torch.equal(model.coefficients(X), again.coefficients(X))


def test_a_saved_model_brings_its_encoder_along(encoder, tmp_path):
    """The folder of the pretrained one may go, and the model may move; another one in its place is read anew."""
    own = shutil.copytree(encoder, tmp_path / "encoder")
    X, Y = texts(20), np.eye(20)[:, :4]
    parts = {"training": Training(epochs=1, progress=False), "random_state": 0}
    network = TextEncoder(str(own), max_length=16, pooling="first")
    model = DSOKR(kernels.Linear(), sketches.SubSample(10), network, **parts).fit(X, Y)
    model.save(tmp_path / "model")
    said = model.coefficients(X)
    shutil.rmtree(own)
    (tmp_path / "model").rename(tmp_path / "moved")
    again = DSOKR.load(tmp_path / "moved")
    assert again.network == network and torch.equal(again.coefficients(X), said)
    again.save(tmp_path / "moved")  # replaces itself
    assert torch.equal(DSOKR.load(tmp_path / "moved").coefficients(X), said)
    with pytest.raises(InputError, match="There is no folder .*encoder with a text encoder"):
        again.fit(X, Y)

    vocabulary = json.loads((tmp_path / "moved" / "network" / "tokenizer.json").read_text())
    words = vocabulary["model"]["vocab"]
    words["ester"], words["ether"] = words["ether"], words["ester"]
    (tmp_path / "moved" / "network" / "tokenizer.json").write_text(json.dumps(vocabulary))
    other, tokens = DSOKR.load(tmp_path / "moved").network_.network, again.network_.network.prepare(["an ester"])
    assert torch.equal(other.prepare(["an ether"]), tokens) and not torch.equal(other.prepare(["an ester"]), tokens)


def test_parts_learn_at_their_own_rates(encoder):
    network = made(TextEncoder(encoder, rate=0.1), 2)
    (pretrained, slow), (new, full) = paces(network)
    assert (slow, full) == (0.1, 1.0)
    assert len(pretrained) + len(new) == len(list(network.parameters()))
    frozen = made(TextEncoder(encoder, rate=0.0), 2)
    before = [weight.clone() for weight in frozen.encoder.parameters()]
    X, Y = texts(10), np.eye(10)
    training = Training(epochs=2, progress=False, learning_rate=0.1)
    model = DSOKR(
        kernels.Linear(), sketches.Full(), TextEncoder(encoder, rate=0.0), training=training, random_state=0
    ).fit(X, Y)
    after = model.network_.network.encoder.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_bad_texts_are_named(encoder):
    network = made(TextEncoder(encoder, max_length=16), 2)
    with pytest.raises(InputError, match="not empty. Got '  ' at index 1"):
        network.prepare(["an ester", "  "])
    with pytest.raises(InputError, match="at index 0"):
        network.prepare([None])
    with pytest.warns(UserWarning, match="1 of 2 texts, the first at index 1, have more than 16 tokens"):
        tokens = network.prepare(["an acid", "ester " * 10_000])
    assert tokens.shape == (2, 16)
    end = network.prepare(["an ether"])[0]
    assert tokens[1, -1] == end[end != network.padding][-1], "a text that is cut still ends with the end mark"
    for _ in range(2):  # the tokens are computed once, the note is for everyone who asks
        with pytest.warns(UserWarning, match="knows less than half of the words of 'молекула эфира' at index 0"):
            network.prepare(["молекула эфира"])


def test_checkpointing_changes_memory_alone(encoder):
    gradients, kept = [], []
    for checkpointing in (False, True):
        network = made(TextEncoder(encoder, checkpointing=checkpointing), 3).train()
        tokens, saved = network.prepare(texts(20)), []
        with (
            seeded(1),
            torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x) or x, lambda x: x),
        ):
            loss = network(tokens).square().sum()
        loss.backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
        kept.append(sum(x.numel() for x in saved))
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)
    assert kept[1] < kept[0] / 2


def test_a_missing_encoder_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="There is no folder .*nowhere with a text encoder"):
        made(TextEncoder(str(tmp_path / "nowhere")), 2)
    with pytest.raises(InputError, match="is no folder of a text encoder"):
        made(TextEncoder(str(tmp_path)), 2)
    with pytest.raises(InputError, match="pooling must be one of"):
        TextEncoder("x", pooling="sum")
    with pytest.raises(InputError, match="rate must not be negative"):
        TextEncoder("x", rate=-1.0)


def test_a_missing_extra_is_named():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from dsokr.regressors.networks import TextEncoder\n"
        "try: TextEncoder('x')(1)\n"
        "except Exception as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'pip install "dsokr[text]"' in said


def test_word_bag_reads_words_and_pairs():
    network = built(WordBag(width=8, hidden=(4,)), 2, ["An ester of carbon."], 0).eval()
    assert torch.equal(network(network.prepare(["AN Ester"])), network(network.prepare(["an ester"])))
    assert not torch.equal(network(network.prepare(["an ester"])), network(network.prepare(["ester an"])))
    a, b = network.prepare(["an ester"]), network.prepare(["an ester", "one two three four five"])
    assert torch.allclose(network(a)[0], network(b)[0], atol=1e-6)
    with pytest.raises(InputError, match="WordBag reads a list of texts. Got 'an ester'"):
        network.prepare("an ester")
    with pytest.raises(InputError, match="half a character stands in .* at index 1"):
        network.prepare(["an ester, 酯", "an \ud800ester"])
    with pytest.raises(InputError, match="WordBag reads texts that are not empty. Got '' at index 0"):
        network.prepare([""])
    assert network.prepare(["word " * 10_000]).shape[1] == 2 * 512 - 1


def test_word_bag_can_be_saved(tmp_path):
    X, Y = texts(12), np.eye(12)
    model = DSOKR(
        kernels.Linear(), sketches.Full(), networks.WordBag(width=8), training=Training(epochs=1), random_state=0
    ).fit(X, Y)
    model.save(tmp_path / "m")
    assert torch.equal(DSOKR.load(tmp_path / "m").coefficients(X), model.coefficients(X))
    assert "WordBag" in json.dumps(json.loads((tmp_path / "m" / "config.json").read_text())["parameters"])


def test_batches_hold_inputs_of_similar_length():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 100, (1003,), generator=generator)
    order = batched_by_length(torch.randperm(1003, generator=generator), lengths, 50, generator)
    assert sorted(order.tolist()) == list(range(1003))
    batches = lengths[order[:1000]].view(20, 50).float()
    spread = (batches.amax(dim=1) - batches.amin(dim=1)).mean()
    assert spread < 10, "a batch of random inputs would spread over almost all of 99"
    means = batches.mean(dim=1)
    assert not torch.equal(means, means.sort().values)
    few = torch.arange(7)
    assert torch.equal(batched_by_length(few, lengths[:7], 50, generator), few)
