"""Folders made to harm: loading executes, downloads and unpickles nothing, and bad contents give one sentence."""

import gzip
import json
import pickle
import random
import shutil
import socket
import zipfile
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.ensemble import RandomForestRegressor
from sklearn.neighbors import KNeighborsRegressor

from dsokr import DSOKR, Graph, Training, kernels, networks, sketches
from dsokr.commands import formats
from dsokr.commands.tables import Problems, Table
from dsokr.compute import seeded
from dsokr.errors import DSOKRError, InputError, ModelFolderError
from dsokr.files import checksum, write_json
from dsokr.graphs import GraphBatch
from dsokr.index import Block, CandidateIndex, update
from dsokr.regressors import Boosted, Forest, KernelRidge, Neighbors, Neural, Scikit, Stack
from dsokr.saving import _list_files
from test_damage import PSI, build_index

X = np.random.default_rng(0).normal(size=(40, 3))
BITS = (X > 0).astype(np.int64)
TEXTS = ["an ester", "an ether", "an acid", "an alcohol"] * 10
STRINGS = ["a" * (i % 4 + 1) + "b" for i in range(40)]
GRAPHS = [Graph((6, 7, 8)[: i % 3 + 1], ((0, 1, 1),) if i % 3 else ()) for i in range(40)]
ONE = Training(epochs=1, progress=False)
MODELS = {
    "mlp": (X, BITS, kernels.Tanimoto(), Neural(networks.MLP((4,)), training=ONE)),
    "char": (STRINGS, STRINGS, kernels.NGram(2), Neural(networks.CharTransformer(1, 8, 2), training=ONE)),
    "bag": (TEXTS, BITS, kernels.Gaussian(1.0), Neural(networks.WordBag(4, (4,), buckets=16), training=ONE)),
    "ridge": (X, GRAPHS, kernels.WeisfeilerLehman(2), KernelRidge()),
    "forest": (X, BITS, kernels.Tanimoto(), Forest(5)),
    "neighbors": (X, STRINGS, kernels.NGram(1), Neighbors()),
    "boosted": (X, BITS, kernels.Tanimoto(), Boosted(5)),
    "stack": (X, BITS, kernels.Tanimoto(), Stack((Forest(3), KernelRidge()))),
}
CASES = 50  # of each model; some 800 to 1,400 are possible
BAD = (True, None, -1, 10**12, 10**400, 1e308, float("nan"), "x", "", [], {}, [1, "a"])


def saved(folder, xs, ys, kernel, regressor) -> DSOKR:
    model = DSOKR(kernel, sketches.Full(), regressor, random_state=0, device="cpu").fit(xs, ys)
    model.save(folder)
    return model


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


def write_config(folder, config):
    """As somebody would who wants the folder to be loaded: with the right checksums."""
    if isinstance(config, dict):
        if isinstance(config.get("sha256"), dict):
            config = config | {"sha256": {name: checksum(folder / name) for name in _list_files(folder)}}
        write_json(folder / "config.json", {k: v for k, v in config.items() if k != "sealed"}, sealed=True)
    else:
        (folder / "config.json").write_text(json.dumps(config))


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def with_other(value, at, other):
    if not at:
        return other
    copy = value.copy()
    copy[at[0]] = with_other(value[at[0]], at[1:], other)
    return copy


@pytest.mark.parametrize("name", MODELS)
def test_wrong_values_in_a_config_give_a_sentence_or_change_nothing(tmp_path, name):
    if name == "boosted":
        pytest.importorskip("skops")
    xs, ys, *parts = MODELS[name]
    said = str(saved(tmp_path / "model", xs, ys, *parts).predict(xs[:5]))
    config, refused = read_config(tmp_path / "model"), 0
    cases = list(product(places(config), BAD))
    for at, bad in random.Random(0).sample(cases, CASES):
        write_config(tmp_path / "model", with_other(config, at, bad))
        try:
            loaded = DSOKR.load(tmp_path / "model", device="cpu")
            if at != ("inputs", "n_features_in_"):  # scikit-learn compares the numbers of columns, in a sentence
                answers, is_number = str(loaded.predict(xs[:5])), type(bad) in (int, float)  # another weight, say
                assert answers == said or is_number or at[:2] == ("form", "shape"), (at, bad)
                loaded.report()
        except DSOKRError:
            refused += 1
    assert refused > CASES / 2


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("char", f"CharTransformer(layers={10**12}, width=8, heads=2)"),
        ("char", f"CharTransformer(layers=1, width={10**12}, heads=2)"),
        ("char", "CharTransformer(layers=1, width=1048576, heads=2)"),
        ("char", f"CharTransformer(layers=1, width=8, heads=2, longest={10**15})"),
        ("char", "CharTransformer(layers=1, width=8, heads=True)"),
        ("char", "CharTransformer(layers=1, width=8, heads='2')"),
        ("char", "CharTransformer(layers=1, width=8, heads=nan)"),
        ("char", f"CharTransformer(layers=1, width=8, heads={10**400})"),
        ("bag", f"WordBag(width=4, hidden=(4,), buckets={10**13})"),
        ("bag", f"WordBag(width=4, hidden=({10**13},), buckets=16)"),
        ("mlp", "CNN((8,) )"),
    ],
)
def test_sizes_are_checked_before_anything_is_built(tmp_path, name, network, monkeypatch):
    folder = tmp_path / "model"
    saved(folder, *MODELS[name])
    config = read_config(folder)
    config["parts"]["regressor"]["expression"] = f"Neural(network={network})"
    write_config(folder, config)
    with pytest.raises(ModelFolderError) as refused:
        DSOKR.load(folder)
    assert "\n" not in str(refused.value)


def test_options_are_never_too_large_for_python():
    with pytest.raises(InputError, match=r"CharTransformer.width must be a multiple"):
        networks.CharTransformer(width=10**400 + 1)


def test_attributes_of_a_model_are_not_replaced(tmp_path):
    said = saved(tmp_path / "model", *MODELS["mlp"]).predict(X)
    config = read_config(tmp_path / "model")
    config["inputs"] |= {"predict": 3, "regressor_": 4}
    write_config(tmp_path / "model", config)
    assert (DSOKR.load(tmp_path / "model").predict(X) == said).all()


def damage_tensors(folder, name, change):
    tensors = load_file(folder / "model.safetensors")
    key = next(key for key in sorted(tensors) if key.endswith(name))
    tensors[key] = change(tensors[key]).contiguous()
    save_file(tensors, folder / "model.safetensors")
    write_config(folder, read_config(folder))


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        ("forest", "trees.left", torch.zeros_like),  # a path that never ends
        ("forest", "trees.right", lambda t: t + 10**9),
        ("forest", "trees.root", lambda t: t - 1),
        ("forest", "trees.size", lambda t: t[1:]),
        ("forest", "answers.indices", lambda t: t + 10**9),
        ("forest", "answers.indptr", lambda t: t.flip(0)),
        ("ridge", "known.batch.neighbors", lambda t: t + 10**9),
        ("ridge", "known.batch.offsets", lambda t: -t),
        ("ridge", "known.batch.edge_labels", lambda t: t[1:]),
        ("mlp", "projection", lambda t: t[:, 1:]),
        ("char", "characters", lambda t: t[:1]),
    ],
)
def test_indices_are_checked_before_they_are_used(tmp_path, name, tensor, change):
    saved(tmp_path / "model", *MODELS[name])
    damage_tensors(tmp_path / "model", tensor, change)
    with pytest.raises(ModelFolderError):
        DSOKR.load(tmp_path / "model")


def test_a_batch_of_graphs_with_an_edge_between_two():
    batch = GraphBatch.of([Graph((6, 7), ((0, 1, 1),)), Graph((8, 8), ((0, 1, 1),))])
    assert batch.checked() is batch
    with pytest.raises(ValueError, match="do not fit together"):
        GraphBatch(batch.offsets, batch.labels, batch.indptr, batch.neighbors[::-1], batch.edge_labels).checked()


def test_tensors_that_are_none(tmp_path):
    saved(tmp_path / "model", *MODELS["mlp"])
    (tmp_path / "model" / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    write_config(tmp_path / "model", read_config(tmp_path / "model"))
    with pytest.raises(ModelFolderError, match=r"model.safetensors is damaged"):
        DSOKR.load(tmp_path / "model")
    assert not Trap.sprung


class Trap:
    """Remembers that it was unpickled."""

    sprung: list[bool] = []  # noqa: RUF012 # shared on purpose

    def __reduce__(self):
        return Trap.sprung.append, (True,)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "secret"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_links_to_what_is_no_model(tmp_path, target, name):
    saved(tmp_path / "model", *MODELS["mlp"])
    (tmp_path / "model" / "secret").write_text("secret")
    (tmp_path / "model" / name).unlink()
    (tmp_path / "model" / name).symlink_to(target)
    with pytest.raises(ModelFolderError, match=f"{name} is (missing|damaged)"):
        DSOKR.load(tmp_path / "model")


class TestScikit:
    @pytest.fixture(autouse=True)
    def needs_skops(self):
        self.io = pytest.importorskip("skops.io")

    def load_with(self, folder, estimator):
        self.io.dump(estimator, folder / "network" / "regressor.skops")
        write_config(folder, read_config(folder))
        return DSOKR.load(folder)

    @pytest.mark.parametrize("field", ["left_child", "right_child", "feature"])
    def test_trees(self, tmp_path, field):
        model = saved(tmp_path / "model", X, BITS, kernels.Tanimoto(), Scikit(RandomForestRegressor(2)))
        estimator = model.regressor_.estimator
        assert (self.load_with(tmp_path / "model", estimator).predict(X) == model.predict(X)).all()
        tree = estimator.estimators_[1].tree_
        state = tree.__getstate__()
        state["nodes"][field][0] = 10**9
        tree.__setstate__(state)
        with pytest.raises(ModelFolderError, match="the nodes of a tree do not fit together"):
            self.load_with(tmp_path / "model", estimator)

    @pytest.mark.parametrize(("field", "value"), [("left", 10**9), ("right", 0), ("feature_idx", 3)])
    def test_boosted_trees(self, tmp_path, field, value):
        estimator = saved(tmp_path / "model", *MODELS["boosted"]).regressor_.estimator
        nodes = estimator.estimators_[0]._predictors[0][0].nodes
        nodes[field][0] = value
        with pytest.raises(ModelFolderError, match="the nodes of a tree do not fit together"):
            self.load_with(tmp_path / "model", estimator)

    @pytest.mark.parametrize("kind", ["kd_tree", "ball_tree"])
    def test_trees_of_neighbors(self, tmp_path, kind):
        regressor = Scikit(KNeighborsRegressor(2, algorithm=kind, leaf_size=3))
        model = saved(tmp_path / "model", X, BITS, kernels.Tanimoto(), regressor)
        estimator = model.regressor_.estimator
        assert (self.load_with(tmp_path / "model", estimator).predict(X) == model.predict(X)).all()
        data, order, *rest = estimator._tree.__getstate__()
        estimator._tree.__setstate__((data, order + 10**9, *rest))
        with pytest.raises(ModelFolderError, match="the nodes of a tree do not fit together"):
            self.load_with(tmp_path / "model", estimator)

    def test_no_archive(self, tmp_path):
        saved(tmp_path / "model", *MODELS["boosted"])
        file = tmp_path / "model" / "network" / "regressor.skops"
        file.write_bytes(pickle.dumps(Trap()))
        write_config(tmp_path / "model", read_config(tmp_path / "model"))
        with pytest.raises(ModelFolderError, match=r"regressor.skops is damaged"):
            DSOKR.load(tmp_path / "model")
        assert not Trap.sprung


CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import BertConfig as Config, BertModel as Model, BertTokenizerFast as Tokenizer
"""


class TestEncoder:
    @pytest.fixture
    def encoder(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        folder, words = tmp_path / "encoder", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "an", "ester", "ether"]
        transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        config = transformers.BertConfig(vocab_size=len(words), **sizes, max_position_embeddings=16)
        with seeded(0):
            transformers.BertModel(config).save_pretrained(folder)
        return folder

    @pytest.fixture
    def folder(self, encoder, tmp_path):
        network = networks.TextEncoder(str(encoder), max_length=8)
        saved(tmp_path / "model", TEXTS, BITS, kernels.Linear(), Neural(network, training=ONE))
        return tmp_path / "model"

    @pytest.fixture(autouse=True)
    def no_connections(self, monkeypatch):
        def refuse(*_):
            raise AssertionError("a connection was tried")

        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        monkeypatch.setattr("builtins.input", refuse)

    def add_code(self, folder, mark):
        """Custom code for a model type that transformers does not know, and for one that it does."""
        (folder / "custom.py").write_text(CODE.format(mark=str(mark)))
        for file in ("config.json", "tokenizer_config.json"):
            facts = json.loads((folder / file).read_text())
            classes = {"AutoConfig": "custom.Config", "AutoModel": "custom.Model"}
            facts["auto_map"] = classes | {"AutoTokenizer": ["custom.Tokenizer", "custom.Tokenizer"]}
            facts |= {"model_type": "unheard_of"} if file == "config.json" else {"tokenizer_class": "Unheard"}
            (folder / file).write_text(json.dumps(facts))

    def test_code_in_a_saved_model_never_runs(self, folder, tmp_path):
        self.add_code(folder / "network", tmp_path / "mark")
        write_config(folder, read_config(folder))
        with pytest.raises(DSOKRError):
            DSOKR.load(folder)
        assert not (tmp_path / "mark").exists()

    def test_code_in_an_encoder_never_runs(self, encoder, tmp_path):
        self.add_code(encoder, tmp_path / "mark")
        with pytest.raises(InputError):
            networks.TextEncoder(str(encoder))(3)
        assert not (tmp_path / "mark").exists()

    def test_pickled_weights_of_an_encoder_are_not_read(self, encoder):
        (encoder / "model.safetensors").unlink()
        (encoder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
        with pytest.raises(InputError, match="neither an encoder folder nor"):
            networks.TextEncoder(str(encoder))(3)
        assert not Trap.sprung

    def test_nothing_is_downloaded_for_a_saved_model(self, folder):
        shutil.rmtree(folder / "network")
        write_config(folder, read_config(folder))
        with pytest.raises(DSOKRError):
            DSOKR.load(folder)

    @pytest.mark.parametrize("name", ["backbone", "text_backbone_config"])
    def test_no_further_model_is_fetched(self, folder, name):
        self.change(folder, **{name: "somebody/model"})
        with pytest.raises(ModelFolderError, match="names a further model, which is not loaded"):
            DSOKR.load(folder)

    def change(self, folder, **changes):
        file = folder / "network" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        write_config(folder, read_config(folder))

    @pytest.mark.parametrize(
        "change",
        [
            *({"num_hidden_layers": bad} for bad in (10**12, True, "1", -1, float("nan"), None)),
            *({"hidden_size": bad} for bad in (10**12, "8", 0, 2**20)),
            *({"num_attention_heads": bad} for bad in (True, 0, "2", 3, 10**400)),
            {"vocab_size": 10**12},
            {"max_position_embeddings": 10**15},
            {"intermediate_size": -5},
            {"hidden_act": "__import__"},
            {"model_type": "resnet"},
        ],
        ids=str,
    )
    def test_sizes_of_an_encoder(self, folder, change):
        self.change(folder, **change)
        with pytest.raises(DSOKRError):
            DSOKR.load(folder)


class TestBombs:
    """Small files that unpack to large ones."""

    def read(self, path):
        with pytest.raises(InputError) as refused:
            Table(path).read(Problems(1.0))
        assert "\n" not in str(refused.value)
        return str(refused.value)

    @pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.smi.gz", "a.mgf.gz"])
    def test_a_line_without_an_end(self, tmp_path, name, monkeypatch):
        monkeypatch.setattr(formats, "LONGEST_LINE", 10**6)
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(b"BEGIN IONS\n" * name.startswith("a.mgf") + b"x" * 3 * 10**6)
        assert "has a line of more than 1,000,000 characters" in self.read(tmp_path / name)

    def write_book(self, path, sheet):
        openpyxl = pytest.importorskip("openpyxl")
        openpyxl.Workbook().save(path)
        with zipfile.ZipFile(path) as old:
            parts = {name: old.read(name) for name in old.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for name, data in parts.items():
                new.writestr(name, sheet if name.endswith("sheet1.xml") else data)

    def test_a_workbook(self, tmp_path, monkeypatch):
        monkeypatch.setattr(formats, "LARGEST_BOOK", 10**6)
        self.write_book(tmp_path / "a.xlsx", b" " * 2 * 10**6)
        assert (tmp_path / "a.xlsx").stat().st_size < 10**5
        assert "which is too much: save it as CSV." in self.read(tmp_path / "a.xlsx")

    def test_a_workbook_that_breaks_off(self, tmp_path):
        main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        cell = '<row r="1"><c r="A1" t="inlineStr"><is><t>x</t></is></c></row>'
        self.write_book(tmp_path / "a.xlsx", f'<worksheet xmlns="{main}"><sheetData>{cell}<row r="2"><c'.encode())
        assert "cannot be read as a workbook" in self.read(tmp_path / "a.xlsx")


def test_an_index_with_links_writes_to_no_other_file(tmp_path):
    """A folder from somebody else, whose coordinates are a link to a file of the user."""
    build_index(tmp_path / "index")
    own = shutil.copy(tmp_path / "index" / "psi.bin", tmp_path / "own")
    (tmp_path / "index" / "psi.bin").unlink()
    (tmp_path / "index" / "psi.bin").symlink_to(own)
    before = own.read_bytes()
    rows = PSI[:1]
    added = Block(["new"], rows, rows.square().sum(1), cells={"mass": ["5"]})
    for work in (
        lambda: CandidateIndex.open(tmp_path / "index"),
        lambda: update(tmp_path / "index", [added], model="m"),
        lambda: build_index(tmp_path / "index", sort_by="mass"),
    ):
        with pytest.raises(ModelFolderError, match=r"psi.bin is a symbolic link: an index must hold its files itself."):
            work()
    assert own.read_bytes() == before


def test_a_damaged_index_is_not_changed_by_an_update_that_fails(tmp_path):
    build_index(tmp_path / "index")
    path = tmp_path / "index" / "psi.bin"
    path.write_bytes(path.read_bytes()[:-7])
    before = path.read_bytes()
    with pytest.raises(ModelFolderError, match="damaged"):
        update(tmp_path / "index", [], model="m")
    assert path.read_bytes() == before
