"""Networks for texts: pretrained encoders, made small here, and bags of words."""

import json
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch

from dsokr import DSOKR, Training, kernels, sketches
from dsokr.compute import seeded
from dsokr.errors import InputError, ModelFolderError
from dsokr.regressors import Neural
from dsokr.regressors.networks import TextEncoder, WordBag
from dsokr.regressors.networks.base import build_network
from test_hostile import read_config, write_config

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


def small_model(network, **training) -> DSOKR:
    regressor = Neural(network, training=Training(**{"epochs": 1, "progress": False, **training}))
    return DSOKR(kernels.Linear(), sketches.Full(), regressor, random_state=0)


def inner(model: DSOKR) -> torch.nn.Module:
    """The network itself, in the units of which it works."""
    return model.regressor_.network.network


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
    assert sum(len(part) for part, _ in both.learning_rates()) == len(list(both.parameters()))


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
    model = small_model(network, epochs=30, batch_size=20, learning_rate=5e-3).fit(X, Y, validation=(X, Y))
    assert min(model.history_["val_loss"]) < 0.5 * model.history_["val_loss"][0]
    assert (model.predict(X) == Y).mean() > 0.8


def test_a_saved_model_brings_its_encoder_along(encoder, tmp_path):
    """The folder of the pretrained one may go, and the model may move; another one in its place is read anew."""
    own = shutil.copytree(encoder, tmp_path / "encoder")
    X, Y = texts(20), np.eye(20)[:, :4]
    network = TextEncoder(str(own), max_length=16, pooling="first")
    model = small_model(network).fit(X, Y)
    model.save(tmp_path / "model")
    said = model.coefficients(X)
    assert torch.equal(DSOKR.load(tmp_path / "model").coefficients(X), said)
    shutil.rmtree(own)
    (tmp_path / "model").rename(tmp_path / "moved")
    again = DSOKR.load(tmp_path / "moved")
    assert again.regressor.network == network and torch.equal(again.coefficients(X), said)
    again.save(tmp_path / "moved")  # replaces itself
    assert torch.equal(DSOKR.load(tmp_path / "moved").coefficients(X), said)
    with pytest.raises(InputError, match="encoder is neither an encoder folder nor an available model name"):
        again.fit(X, Y)

    vocabulary = json.loads((tmp_path / "moved" / "network" / "tokenizer.json").read_text())
    words = vocabulary["model"]["vocab"]
    words["ester"], words["ether"] = words["ether"], words["ester"]
    (tmp_path / "moved" / "network" / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(ModelFolderError, match=r"tokenizer.json is damaged or incomplete: its checksum is wrong"):
        DSOKR.load(tmp_path / "moved")
    write_config(tmp_path / "moved", read_config(tmp_path / "moved"))
    other, tokens = inner(DSOKR.load(tmp_path / "moved")), inner(again).prepare(["an ester"])
    assert torch.equal(other.prepare(["an ether"]), tokens) and not torch.equal(other.prepare(["an ester"]), tokens)


def test_parts_learn_at_their_own_rates(encoder):
    network = made(TextEncoder(encoder, rate=0.1), 2)
    (pretrained, slow), (new, full) = network.learning_rates()
    assert (slow, full) == (0.1, 1.0)
    assert len(pretrained) + len(new) == len(list(network.parameters()))
    frozen = made(TextEncoder(encoder, rate=0.0), 2)
    before = [weight.clone() for weight in frozen.encoder.parameters()]
    X, Y = texts(10), np.eye(10)
    model = small_model(TextEncoder(encoder, rate=0.0), epochs=2, learning_rate=0.1).fit(X, Y)
    after = inner(model).encoder.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_bad_texts_are_named(encoder):
    network = made(TextEncoder(encoder, max_length=16), 2)
    with pytest.raises(InputError, match="non-empty texts. Got '  ' at index 1"):
        network.prepare(["an ester", "  "])
    with pytest.raises(InputError, match="at index 0"):
        network.prepare([None])
    with pytest.warns(UserWarning, match="1 of 2 texts, the first at index 1, have more than 16 tokens"):
        tokens = network.prepare(["an acid", "ester " * 10_000])
    assert tokens.shape == (2, 16)
    end = network.prepare(["an ether"])[0]
    assert tokens[1, -1] == end[end != network.padding][-1], "a text that is cut still ends with the end mark"
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at it where it resumes a function
def test_an_encoder_is_compiled_once_for_texts_of_all_lengths(encoder):
    torch._dynamo.utils.counters.clear()
    X = [" ".join(["acid"] * length) for length in range(1, 60) for _ in range(4)]
    Y = np.random.default_rng(0).normal(size=(len(X), 2))
    network = TextEncoder(encoder, dropout=0.0)
    plain, compiled = (small_model(network, batch_size=4, compile=way).fit(X, Y).history_ for way in (False, True))
    assert compiled["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] < 8  # there are batches of eight padded lengths


def test_a_missing_encoder_is_one_sentence(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match=f"{folder} is neither an encoder folder nor an available model name"):
            made(TextEncoder(str(folder)), 2)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'pip install "dsokr\[text\]"'):
        made(TextEncoder("x"), 1)


def test_word_bag_reads_words_and_pairs():
    network = build_network(WordBag(width=8, hidden=(4,)), 2, ["An ester of carbon."], 0).eval()
    assert torch.equal(network(network.prepare(["AN Ester"])), network(network.prepare(["an ester"])))
    assert not torch.equal(network(network.prepare(["an ester"])), network(network.prepare(["ester an"])))
    a, b = network.prepare(["an ester"]), network.prepare(["an ester", "one two three four five"])
    assert torch.allclose(network(a)[0], network(b)[0], atol=1e-6)
    with pytest.raises(InputError, match="WordBag reads a list of texts. Got 'an ester'"):
        network.prepare("an ester")
    with pytest.raises(InputError, match="unpaired surrogate in .* at index 1"):
        network.prepare(["an ester, 酯", "an \ud800ester"])
    with pytest.raises(InputError, match="WordBag reads non-empty texts. Got '' at index 0"):
        network.prepare([""])
    plain = build_network(WordBag(width=8, parts=None), 2, ["An ester of carbon."], 0)
    assert plain.prepare(["word " * 10_000]).shape[1] == 2 * 512 - 1


def test_word_bag_reads_parts_of_words():
    """Words that were never seen end like others that were."""
    rng = np.random.default_rng(0)
    stems = ["".join(rng.choice(list("bcdfghklmnprstuv"), 6)) for _ in range(150)]
    X, Y = [f"a {stem}{end}" for stem in stems for end in ("ane", "oate")], np.tile([[-1.0], [1.0]], (150, 1))
    right = {}
    for parts in (None, (3, 5)):
        network = WordBag(width=16, parts=parts)
        model = small_model(network, epochs=30, batch_size=32, learning_rate=3e-3).fit(X[:200], Y[:200])
        right[parts] = (np.sign(model.predict(X[200:])) == Y[200:]).mean()
    assert right[3, 5] > 0.95 and right[None] < 0.7


@pytest.mark.parametrize("parts", [(3, 5), (3, 10**13)])
def test_word_bag_bounds_the_parts_of_a_text(parts):
    network = build_network(WordBag(width=4, longest=10, buckets=64, parts=parts), 2, ["a"], 0)
    ids = network.prepare(["a", "".join(map(str, range(10_000)))])
    assert ids.shape == (2, 1 + 80) and ids.max() < 128
    assert torch.isfinite(network.eval()(ids)).all()  # "a" has one part


@pytest.mark.parametrize("parts", [3, (3,), (3, 4, 5), "ab", (0, 3), (3, 4.5)])
def test_word_bag_refuses_what_is_no_range(parts):
    with pytest.raises(
        InputError, match=r"WordBag.parts must be 2 values, each an integer of at least 1, or None. Got"
    ):
        WordBag(parts=parts)


def test_word_bag_refuses_a_reversed_range():
    with pytest.raises(InputError, match=r"WordBag.parts must be the fewest and the most characters. Got \(5, 3\)"):
        WordBag(parts=(5, 3))


def test_word_bag_can_be_saved(tmp_path):
    X, Y = texts(12), np.eye(12)
    model = small_model(WordBag(width=8)).fit(X, Y)
    model.save(tmp_path / "m")
    assert torch.equal(DSOKR.load(tmp_path / "m").coefficients(X), model.coefficients(X))
