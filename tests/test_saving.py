import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from lightning.pytorch.callbacks import Callback
from safetensors.torch import load_file
from torch import nn

from dsokr import DSOKR, Graph, Training, decoders, kernels, losses, networks, regressors, sketches
from dsokr.errors import InputError, ModelFolderError
from dsokr.files import write_json
from dsokr.graphs import GraphBatch
from dsokr.outputs import ViewBatch, canonical, keys
from dsokr.regressors import KernelRidge, Neural
from dsokr.saving import pack, parse_expression, unpack, write_expression
from implementations import DECODERS, KERNELS, LOSSES, SKETCHES

X = np.random.default_rng(0).normal(size=(60, 5))
Y = (X[:, :3] > 0).astype(np.int64)


def fitted(**changes) -> DSOKR:
    neural = {"network": networks.MLP((16,)), "loss": losses.Squared(), "training": Training(epochs=2)}
    neural |= {name: changes.pop(name) for name in tuple(changes) if name in neural}
    outputs = changes.pop("outputs", Y)
    parts = {
        "kernel": kernels.Tanimoto(),
        "sketch": sketches.Gaussian(7),
        "regressor": Neural(**neural),
        "random_state": 0,
        "device": "cpu",
    }
    return DSOKR(**(parts | changes)).fit(X, outputs)


REGRESSORS = [
    Neural(networks.MLP((3, 4), "gelu", 0.1), losses.Ranked(losses.Huber(0.3)), Training(epochs=3, folder="runs")),
    Neural(networks.CNN((8,), 5), training=Training(trainer={"max_steps": 3})),
    Neural(networks.TextEncoder("folder", words=networks.WordBag(width=8))),
    KernelRidge(kernels.Gaussian(0.5), sketches.Gaussian(9), regularization=(1e-3, 1e-6)),
]


@pytest.mark.parametrize(
    "part", [*(case.made for case in (*KERNELS, *SKETCHES, *DECODERS, *LOSSES[:-1])), *REGRESSORS], ids=str
)
def test_parts_are_written_and_read(part):
    modules = (kernels, sketches, decoders, losses, regressors, networks)
    home = [module for module in modules if getattr(module, type(part).__name__, None) is type(part)]
    text = write_expression(part, *home, *modules)
    assert parse_expression(text, *home, *modules) == part


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WeisfeilerLehman(3)", kernels.WeisfeilerLehman(3)),
        ("kernels.WeisfeilerLehman(iterations=3).normalized()", kernels.WeisfeilerLehman(3).normalized()),
        ("0.5 * Linear() + Gaussian(gamma=1e-3) * 2", 0.5 * kernels.Linear() + kernels.Gaussian(1e-3) * 2),
        ("(Linear() + Gaussian(1)).normalized()", (kernels.Linear() + kernels.Gaussian(1)).normalized()),
        ("NGram((1, 2), weights=[0.5, 2.0])", kernels.NGram((1, 2), (0.5, 2.0))),
        (
            repr(kernels.Core(kernels.ShortestPath()) + kernels.EdgeHistogram()),
            kernels.Core(kernels.ShortestPath()) + kernels.EdgeHistogram(),
        ),
    ],
)
def test_expressions_as_people_write_them(text, expected):
    assert parse_expression(text, kernels) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Gausian(1)", "there is no Gausian. Choose from Core, Cosine"),
        ("os.system('true')", "there is no os.system"),
        ("Linear().__class__", "is not allowed"),
        ("Linear().diag()", "is not allowed"),
        ("__import__('os')", "there is no __import__"),
        ("[x for x in 'abc']", "is not allowed"),
        ("'a' * 1000000000", "only kernels can be added or multiplied"),
        ("10 ** 10", "is not allowed"),
        ("Gaussian(", "was never closed"),
        ("Gaussian(-1)", "gamma must be positive"),
        ("Gaussian(1, 2, 3)", "positional argument"),
        ("Gaussian(width=1)", "unexpected keyword"),
        ("-" * 50_000 + "1", "cannot be read"),
        ("Linear()" + " + Linear()" * 500_000, "too long"),
        ("Kernel()", "there is no Kernel"),
        ("Polynomial(2).normalized(x=5)", "is not allowed"),
        ("Gaussian(**{'gamma': 1})", "is not allowed"),
        ("Gaussian(gamma=1, gamma=2)", "is not allowed"),
        ("{**{1: 2}}", "is not allowed"),
        ("-Linear()", "is not allowed"),
    ],
)
def test_expressions_that_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_expression(text, kernels)


def test_names_to_choose_from_are_those_that_people_write():
    with pytest.raises(InputError) as refused:
        parse_expression("Gausian(1)", kernels)
    assert "NGram, NSPD, OnMolecules, Polynomial, ShortestPath, Tanimoto" in str(refused.value)


@pytest.mark.parametrize("value", [{-1: 2.5, "a": -3}, (-float("inf"), -0.5), {(1, -2): None}], ids=str)
def test_plain_values_are_written_and_read(value):
    assert parse_expression(write_expression(value)) == value


GRAPHS = [Graph((6, 7), ((0, 1, 1),)), Graph((), ()), Graph((8,))]


@pytest.mark.parametrize(
    "ys",
    [
        torch.arange(6.0).reshape(3, 2),
        sp.csr_array([[0, 2], [1, 0]]),
        ["a", "é"],
        GRAPHS,
        GraphBatch.of(GRAPHS),
        [(g, i) for i, g in enumerate(GRAPHS)],
        ViewBatch(np.eye(3), GRAPHS),
    ],
    ids=lambda ys: type(ys).__name__,
)
def test_outputs_come_back_the_same(ys):
    tensors: dict[str, torch.Tensor] = {}
    outputs = canonical(ys)[0]
    packed = json.loads(json.dumps(pack(outputs, "y", tensors)))
    back = unpack(packed, "y", tensors)
    assert type(back) is type(outputs) and list(keys(back)) == list(keys(outputs))


def test_outputs_that_cannot_be_written_are_refused():
    with pytest.raises(InputError, match="Outputs of type object cannot be saved"):
        pack([object()], "y", {})


@pytest.mark.parametrize("sketch", [sketches.SubSample(7), sketches.Gaussian(7), sketches.Full()], ids=str)
@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor, sp.csr_array, np.ndarray.tolist])
def test_predictions_are_identical_after_loading(tmp_path, sketch, form, device):
    model = fitted(sketch=sketch, outputs=form(Y), device=device)
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device=device)
    assert torch.equal(loaded.coefficients(X), model.coefficients(X))
    assert torch.equal(loaded.scores(X), model.scores(X))
    a, b = model.predict(X), loaded.predict(X)
    assert type(a) is type(b)
    np.testing.assert_array_equal(*(y.toarray() if sp.issparse(y) else np.asarray(y) for y in (a, b)))
    assert loaded.get_params()["kernel"] == model.kernel and loaded.decoder_ == model.decoder_


def test_a_new_process_predicts_the_same_bytes(tmp_path):
    model = fitted()
    model.save(tmp_path / "model")
    np.save(tmp_path / "X.npy", X)
    script = (
        "import sys, numpy as np; from dsokr import DSOKR\n"
        "model = DSOKR.load(sys.argv[1] + '/model', device='cpu'); X = np.load(sys.argv[1] + '/X.npy')\n"
        "sys.stdout.buffer.write(model.predict(X).tobytes() + model.coefficients(X).numpy().tobytes())"
    )
    there = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=True, timeout=120)
    assert there.stdout == model.predict(X).tobytes() + model.coefficients(X).numpy().tobytes()


def test_folder_holds_no_pickle_and_explains_itself(tmp_path):
    model = fitted()
    model.save(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir()}) == 1  # whoever reads one reads all
    card = (tmp_path / "model" / "README.md").read_text()
    assert "Tanimoto()" in card and f"| {model.basis_.dim} |" in card and "DSOKR.load" in card
    assert load_file(tmp_path / "model" / "model.safetensors")["projection"].dtype == torch.float64


def test_saving_again_replaces_and_never_touches_other_folders(tmp_path):
    fitted(random_state=1).save(tmp_path / "model")
    model = fitted()
    model.save(tmp_path / "model")
    assert torch.equal(DSOKR.load(tmp_path / "model", device="cpu").coefficients(X), model.coefficients(X))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"cat")
    with pytest.raises(ModelFolderError, match="is not a saved model"):
        model.save(tmp_path / "photos")
    assert (tmp_path / "photos" / "cat.png").read_bytes() == b"cat"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "photos"]


def test_networks_of_ones_own_are_passed_to_load(tmp_path):
    factory = lambda p: nn.Sequential(nn.LazyLinear(p))  # noqa: E731 # draws no weights before fit does
    model = fitted(network=factory, loss=torch.log1p)
    model.save(tmp_path / "model")
    with pytest.raises(
        ModelFolderError, match=r"a regressor of its author's own .*pass it as DSOKR.load\(folder, regressor=...\)"
    ):
        DSOKR.load(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", regressor=factory, device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    with pytest.raises(InputError, match="takes kernel, sketch, regressor, decoder. Got 'network'"):
        DSOKR.load(tmp_path / "model", network=factory)


def test_candidates_of_ones_own_survive(tmp_path):
    own = np.array([[1, 0, 0], [0, 1, 1]])
    model = fitted(decoder=decoders.Candidates(outputs=own))
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.decoder.outputs, own)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize("saved", [None, np.array([[1, 0, 0], [0, 1, 1]])], ids=["of training", "of one's own"])
def test_candidates_given_to_load_are_used(tmp_path, saved):
    model, new = fitted(decoder=decoders.Candidates("kernel", outputs=saved)), [(0, 0, 1), (1, 1, 0)]
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu", decoder=decoders.Candidates("kernel", outputs=new))
    best = model.scores(X, new).argmax(dim=1)
    assert loaded.predict(X) == [new[at] for at in best]
    assert loaded.fit(X, Y).predict(X) == loaded.predict(X) and loaded.decoder.outputs is new


def test_a_loaded_model_can_be_fitted_again(tmp_path):
    model = fitted()
    model.save(tmp_path / "model")
    again = DSOKR.load(tmp_path / "model", device="cpu").fit(X, Y)
    assert torch.equal(again.coefficients(X), model.coefficients(X))


@pytest.fixture
def folder(tmp_path):
    fitted().save(tmp_path / "model")
    return tmp_path / "model"


def damage_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {k: v for k, v in (config | changes).items() if k != "sealed"}, sealed=True)


def damage_parts(folder, **changes):
    damage_config(folder, parts=json.loads((folder / "config.json").read_text())["parts"] | changes)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "config.json").write_text('{"format": 1, '), "config.json is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json is damaged"),
        (lambda f: os.truncate(f / "model.safetensors", 2000), "damaged or incomplete"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "damaged or incomplete"),
        (lambda f: damage_config(f, format=99), "was saved by dsokr .* in another format: install that version"),
        (lambda f: damage_config(f, format=1), "in another format: install that version, or train it again"),
        (lambda f: damage_parts(f, decoder={"expression": "Quantum()"}), "there is no Quantum"),
        (lambda f: damage_parts(f, decoder={"expression": "os.system('true')"}), "there is no os.system"),
        (lambda f: damage_parts(f, decoder={"expression": 3}), "is damaged"),
        (lambda f: damage_parts(f, decoder={}), "is damaged"),
        (lambda f: damage_config(f, parts={}), "is damaged"),
        (lambda f: damage_config(f, anchors=3), "is damaged"),
    ],
)
def test_damaged_folders_are_refused(folder, harm, message):
    harm(folder)
    with pytest.raises(ModelFolderError, match=message):
        DSOKR.load(folder)


def test_too_little_memory_is_not_a_damaged_folder(folder, monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(nn.Module, "to", fail)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        DSOKR.load(folder)


def test_all_files_appear_at_once(folder):
    before = (folder / "config.json").read_text()

    def further(draft):
        assert {path.name for path in draft.iterdir()} == {"model.safetensors", "README.md"}  # config.json comes last
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(kernel=kernels.Linear()).save(folder, further)
    assert (folder / "config.json").read_text() == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_no_such_folder(tmp_path):
    with pytest.raises(ModelFolderError, match="is not a saved model: config.json is missing"):
        DSOKR.load(tmp_path / "nowhere")


@pytest.mark.parametrize("key", ["parts", "parameters", "anchors", "known", "form", "history", "reader", "regressor"])
def test_incomplete_configs_are_refused(folder, key):
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    del config["sealed"]
    write_json(folder / "config.json", config, sealed=True)
    with pytest.raises(ModelFolderError, match="damaged|incomplete"):
        DSOKR.load(folder)


def test_folders_with_a_config_of_somebody_elses_are_left_alone(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "config.json").write_text("{}")
    (project / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelFolderError, match="is not a saved model"):
        fitted().save(project)
    assert (project / "thesis.txt").read_text() == "years of work"
    fitted().save(tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(ModelFolderError, match="is not a saved model"):
        fitted().save(tmp_path / "model")
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"


class Own(kernels.Linear):
    pass


class OwnHistogram(kernels.VertexHistogram):
    pass


def test_parts_of_ones_own_inside_other_parts(tmp_path):
    """What cannot be written down is asked for by name, and is not needed where it does not matter."""
    kernel = 2.0 * Own() + kernels.Gaussian(0.1)
    training = Training(epochs=2, monitor=lambda a, b: 0.0, trainer={"callbacks": [Callback()]})
    model = fitted(kernel=kernel, training=training, loss=losses.Custom(torch.log1p))
    model.save(tmp_path / "model")
    with pytest.raises(ModelFolderError, match=r"DSOKR.load\(folder, kernel=...\)"):
        DSOKR.load(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", kernel=kernel, device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.regressor == Neural(networks.MLP((16,)), training=Training(epochs=2, trainer={}))


def test_parts_that_predictions_need_are_asked_for(tmp_path):
    """A base kernel of one's own must not come back as the default one."""
    kernel = kernels.WeisfeilerLehman(1, base=OwnHistogram())
    with pytest.raises(InputError, match="OwnHistogram"):
        write_expression(kernel, kernels)


def test_loading_leaves_the_global_random_state_alone(tmp_path):
    images = np.random.default_rng(0).normal(size=(60, 8, 8)).astype(np.float32)
    network = Neural(networks.CNN((4,), 8), training=Training(epochs=1))
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(5), network, random_state=0, device="cpu").fit(images, Y)
    model.save(tmp_path / "m")
    before = torch.get_rng_state()
    DSOKR.load(tmp_path / "m", device="cpu")
    assert torch.equal(before, torch.get_rng_state())
