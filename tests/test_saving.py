import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from safetensors.torch import load_file
from torch import nn

from dsokr import DSOKR, Graph, Training, decoders, kernels, losses, networks, sketches
from dsokr.errors import InputError, ModelFolderError
from dsokr.graphs import GraphBatch
from dsokr.saving import construct, describe, pack_outputs, unpack_outputs
from implementations import DECODERS, KERNELS, LOSSES, SKETCHES, names

X = np.random.default_rng(0).normal(size=(60, 5))
Y = (X[:, :3] > 0).astype(np.int64)


def fitted(**changes) -> DSOKR:
    parts = {
        "kernel": kernels.Tanimoto(),
        "sketch": sketches.Gaussian(7),
        "network": networks.MLP((16,)),
        "training": Training(epochs=2),
        "random_state": 0,
        "device": "cpu",
    }
    parts |= changes
    outputs = parts.pop("outputs", Y)
    return DSOKR(**parts).fit(X, outputs)


@pytest.mark.parametrize("case", [*KERNELS, *SKETCHES, *DECODERS, *LOSSES[:-1]], ids=names)
def test_parts_are_written_and_read(case):
    written = json.loads(json.dumps(describe(case.made)))
    assert construct(written) == case.made


@pytest.mark.parametrize("part", [networks.MLP((3, 4), "gelu", 0.1), networks.CNN((8,), 5), Training(epochs=3)])
def test_networks_and_training_are_written_and_read(part):
    assert construct(json.loads(json.dumps(describe(part)))) == part


GRAPHS = [Graph((6, 7), ((0, 1, 1),)), Graph((), ()), Graph((8,))]


@pytest.mark.parametrize(
    "ys",
    [
        torch.arange(6.0).reshape(3, 2),
        np.arange(6, dtype=np.int32).reshape(3, 2),
        np.array([[True, False], [False, True]]),
        np.array(["a", "bc"]),
        sp.csr_matrix([[0, 2], [1, 0]]),
        sp.csr_array([[0, 2], [1, 0]]),
        ["a", "é"],
        [[1, 2], [3, 4]],
        [np.array([1.0, 2.0]), np.array([3.0, 4.0])],
        GRAPHS,
        GraphBatch.of(GRAPHS),
        [(g, i) for i, g in enumerate(GRAPHS)],
    ],
    ids=lambda ys: f"{type(ys).__name__} of {type(ys[0]).__name__}",
)
def test_outputs_of_any_form_come_back_the_same(ys):
    tensors: dict[str, torch.Tensor] = {}
    form = json.loads(json.dumps(pack_outputs(ys, "y", tensors)))
    back = unpack_outputs(form, "y", tensors)
    assert type(back) is type(ys)
    if sp.issparse(ys):
        assert (back != ys).nnz == 0
    elif isinstance(ys, np.ndarray | torch.Tensor):
        assert back.dtype == ys.dtype and (back == ys).all()
    else:
        assert all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in zip(back, ys, strict=True))


def test_outputs_that_cannot_be_written_are_refused():
    with pytest.raises(InputError, match="Outputs of type object cannot be saved"):
        pack_outputs([object()], "y", {})


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
    assert load_file(tmp_path / "model" / "model.safetensors")["basis.projection"].dtype == torch.float64


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
        ModelFolderError, match=r"a network of its author's own .*pass it as DSOKR.load\(folder, network=...\)"
    ):
        DSOKR.load(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", network=factory, device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.loss == losses.Squared()
    with pytest.raises(InputError, match="no parameter 'nettwork'"):
        DSOKR.load(tmp_path / "model", nettwork=factory)


def test_candidates_of_ones_own_survive(tmp_path):
    own = np.array([[1, 0, 0], [0, 1, 1]])
    model = fitted(decoder=decoders.Candidates(outputs=own))
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.decoder.outputs, own)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


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
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "config.json").write_text('{"format": 1, '), "config.json is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json is damaged"),
        (lambda f: os.truncate(f / "model.safetensors", 2000), "damaged or incomplete"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "damaged or incomplete"),
        (lambda f: damage_config(f, format=99, dsokr="9.0"), r"saved by dsokr 9.0, which is newer than this one"),
        (lambda f: damage_config(f, decoder={"decoders.Quantum": {}}), "uses decoders.Quantum, which"),
        (lambda f: damage_config(f, decoder={"os.system": {}}), "uses os.system, which"),
        (lambda f: damage_config(f, parameters={}), "incomplete: it does not name the kernel"),
        (lambda f: damage_config(f, decoder={"a": {}, "b": {}}), "config.json is damaged: .* is no part of a model"),
        (lambda f: damage_config(f, decoder={"decoders.Candidates": 3}), "damaged: .* is no part of a model"),
        (lambda f: damage_config(f, anchors=3), "is damaged"),
    ],
)
def test_damaged_folders_are_refused(folder, harm, message):
    harm(folder)
    with pytest.raises(ModelFolderError, match=message):
        DSOKR.load(folder)


def test_folders_of_earlier_versions_are_read(folder):
    """Without what was added to the format since."""
    config = json.loads((folder / "config.json").read_text())
    del config["feature_names_in"]
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(DSOKR.load(folder).coefficients(X), fitted().coefficients(X))


def test_too_little_memory_is_not_a_damaged_folder(folder, monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(nn.Module, "to", fail)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        DSOKR.load(folder)


def test_all_files_appear_at_once(folder):
    before = (folder / "config.json").read_text()

    def further(draft):
        assert {path.name for path in draft.iterdir()} == {"config.json", "model.safetensors", "README.md"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(kernel=kernels.Linear()).save(folder, further)
    assert (folder / "config.json").read_text() == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_no_such_folder(tmp_path):
    with pytest.raises(ModelFolderError, match="is not a saved model: config.json is missing"):
        DSOKR.load(tmp_path / "nowhere")


@pytest.mark.parametrize("key", ["parameters", "anchors", "known", "history", "own_candidates", "decoder"])
def test_incomplete_configs_are_refused(folder, key):
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
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


def test_parts_of_ones_own_inside_other_parts(tmp_path):
    """What cannot be written down is asked for by name, and is not needed where it does not matter."""
    kernel = 2.0 * Own() + kernels.Gaussian(0.1)
    training = Training(epochs=2, monitor=lambda a, b: 0.0, trainer={"callbacks": []})
    model = fitted(kernel=kernel, training=training, loss=losses.Custom(torch.log1p))
    model.save(tmp_path / "model")
    with pytest.raises(ModelFolderError, match=r"DSOKR.load\(folder, kernel=...\)"):
        DSOKR.load(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", kernel=kernel, device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.loss == losses.Squared() and loaded.training.monitor == "loss"


def test_loading_leaves_the_global_random_state_alone(tmp_path):
    images = np.random.default_rng(0).normal(size=(60, 8, 8)).astype(np.float32)
    options = {"training": Training(epochs=1), "random_state": 0, "device": "cpu"}
    DSOKR(kernels.Tanimoto(), sketches.SubSample(5), networks.CNN((4,), 8), **options).fit(images, Y).save(
        tmp_path / "m"
    )
    before = torch.get_rng_state()
    DSOKR.load(tmp_path / "m", device="cpu")
    assert torch.equal(before, torch.get_rng_state())
