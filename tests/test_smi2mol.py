"""SMI2Mol: the data, and the study on molecules that the project generates."""

import gzip
import hashlib
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from dsokr import sketches
from studies.data import files, molecules, smi2mol
from dsokr.errors import InputError
from studies import smi2mol as study
from studies import smi2mol_baselines
from studies import smi2mol_report as report
from studies.results import read_rows
from dsokr.graphs import GraphBatch
from dsokr.regressors.networks import CharTransformer
from real_data import real_data

module = sys.modules["studies.data.smi2mol"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache of its own for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DSOKR_DATA", raising=False)
    return tmp_path / "cache" / "dsokr"


@pytest.fixture
def source(tmp_path, monkeypatch, cache):
    """A data folder with a source file of a few molecules, stereochemistry and aromatic rings among them."""
    chem = pytest.importorskip("dsokr.chem")
    smiles = ["F/C=C/F", "OCC", "c1ccoc1", "C#N", "[NH3+]CC([O-])=O", *chem.many_smiles(molecules.generate(30, seed=0))]
    path = tmp_path / "data" / module.QM9.path
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(smiles).encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(module, "QM9", replace(module.QM9, sha256=digest))
    monkeypatch.setattr(module, "N_TEST", 6)
    monkeypatch.setattr(module, "N_VAL", 4)
    return tmp_path / "data"


def test_molecules_are_prepared_once(source, cache, monkeypatch):
    from dsokr import chem

    pairs = module.prepared(source)
    assert pairs.smiles[:4] == ["FC=CF", "CCO", "c1ccoc1", "C#N"]  # canonical, without stereochemistry
    assert pairs.graphs[2].edges == chem.graph("c1ccoc1").edges and set(pairs.graphs[2].labels) == {6, 8}
    assert {order for _, _, order in pairs.graphs[2].edges} == {1, 2}  # Kekulé form
    monkeypatch.setitem(sys.modules, "dsokr.chem", None)  # from here on RDKit could be missing
    again = module.prepared(source)
    assert again.smiles == pairs.smiles and list(again.graphs) == list(pairs.graphs)
    (source / "smi2mol.npz").write_bytes((cache / "smi2mol.npz").read_bytes())
    (cache / "smi2mol.npz").unlink()
    (source / module.QM9.path).unlink()
    assert module.prepared(source).smiles == pairs.smiles  # a prepared file takes the source's place


def test_splits_are_seeded_and_do_not_overlap(source):
    first, same, other = smi2mol(source, 0), smi2mol(source, 0), smi2mol(source, 1)
    assert [len(part.smiles) for part in (first.train, first.val, first.test)] == [25, 4, 6]
    assert first.test.smiles == same.test.smiles and first.test.smiles != other.test.smiles
    everything = first.train.smiles + first.val.smiles + first.test.smiles
    assert sorted(everything) == sorted(module.prepared(source).smiles)
    for part in (first.train, first.test):
        assert len(part.smiles) == len(part.graphs)


def test_what_is_missing_or_wrong_is_said(source, cache, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"qm9_smiles_133882.txt.gz is missing. Get it from .*figshare.*--data-dir"):
        smi2mol(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is missing"):
        smi2mol()  # the default is the user's cache
    monkeypatch.setenv("DSOKR_DATA", str(source))
    assert smi2mol().train.smiles
    (cache / "smi2mol.npz").write_bytes(b"PK not a zip")
    with pytest.raises(InputError, match=r"smi2mol.npz is damaged .* Delete it"):
        smi2mol()
    (cache / "smi2mol.npz").unlink()
    path = source / module.QM9.path
    path.write_bytes(gzip.compress(b"CC\nCO\n"))
    with pytest.raises(InputError, match="is not the file meant: its SHA-256 is"):
        smi2mol()


def test_what_another_version_prepared_is_prepared_again(source, cache, monkeypatch):
    smi2mol(source)
    with np.load(cache / "smi2mol.npz") as file:
        arrays = dict(file)
    files.save_arrays(cache / "smi2mol.npz", **arrays | {"version": np.array([0])})
    assert smi2mol(source).train.smiles
    with np.load(cache / "smi2mol.npz") as file:
        assert file["version"][0] == module.VERSION


def test_an_interrupted_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="object"):
        files.save_arrays(tmp_path / "a.npz", bad=Unwritable())
    assert list(tmp_path.iterdir()) == []


class Unwritable:
    def __array__(self, dtype=None, copy=None):
        raise ValueError("object cannot be written")


def test_qm9_is_the_papers():
    folder = real_data(module.QM9.path)
    pytest.importorskip("rdkit")
    from dsokr import chem

    split = smi2mol(folder, 0)
    assert [len(part.smiles) for part in (split.train, split.val, split.test)] == [131_382, 500, 2_000]
    assert np.diff(split.train.graphs.offsets).max() == 9 and set(split.train.graphs.labels) == {6, 7, 8, 9}
    assert chem.graphs(split.test.smiles[:50]) == list(split.test.graphs[:50])


@pytest.fixture(scope="module")
def generated():
    chem = pytest.importorskip("dsokr.chem")
    graphs = molecules.generate(260, seed=1, max_atoms=6)
    pairs = made_pairs(chem.many_smiles(graphs), graphs)
    parts = (np.arange(200), np.arange(200, 230), np.arange(230, 260))
    return module.SMI2Mol(*(pairs.rows(part) for part in parts))


def made_pairs(smiles, graphs):
    return module.Pairs(smiles, GraphBatch.of(graphs))


TINY = replace(
    study.QUICK,
    models=tuple(
        replace(
            model,
            sketch=sketches.SubSample(40),
            dim=None if model.dim is None else 30,
            training=replace(model.training, epochs=4, progress=False),
            network=CharTransformer(layers=1, width=32, heads=4, dropout=0.0, longest=64),
        )
        for model in study.QUICK.models
    ),
    baselines=(partial(study.sisokr, input_size=40, size=40, regularizations=(1e-4, 1e-2)),),
    sizes=(10, 40),
    kernel_size=40,
    n_train=200,
)


@pytest.fixture(scope="module")
def results(generated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("smi2mol")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "smi2mol", lambda data, number: generated)
        study.run(TINY, folder, None, torch.device("cpu"), say=lambda line: None)
    return folder


@pytest.mark.filterwarnings("ignore:No training string", "ignore:The longest training string")
def test_the_study_learns_and_the_search_is_best(results):
    rows = {row["name"]: row for row in report.table(results)}
    listed, searched = (rows[f"DSOKR, sum of kernels, {name}"] for name in ("best rule", "GraphSearch"))
    assert listed["splits"] == 1 and listed["n_train"] == 200
    assert searched["exact"][0] >= listed["exact"][0]
    assert rows["SISOKR"]["ged"][0] > 0
    assert 0 < rows["best training molecule"]["ged"][0] <= listed["ged"][0]
    assert rows["DSOKR (paper)"]["ged"] == (1.951, 0.074)


def test_a_second_run_computes_nothing(results, generated, monkeypatch):
    before = {path.name: path.read_text() for path in results.glob("*.jsonl")}
    written = ("baselines", "floor", "kernels", "models", "perfect_h", "predictions")
    assert set(before) == {f"{name}.jsonl" for name in written}
    monkeypatch.setattr(study, "smi2mol", lambda data, number: generated)
    monkeypatch.setattr(study, "_estimator", lambda *a: pytest.fail("trained again"))
    monkeypatch.setattr(study.Perfect, "of", lambda *a: pytest.fail("embedded again"))
    monkeypatch.setattr(smi2mol_baselines, "SISOKR", lambda *a, **k: pytest.fail("fitted again"))
    study.run(TINY, results, None, torch.device("cpu"), say=lambda line: None)
    assert {path.name: path.read_text() for path in results.glob("*.jsonl")} == before


def test_a_baseline_with_other_parameters_is_another_one(generated, tmp_path):
    for size in (20, 30, 20):
        baseline = partial(study.sisokr, input_size=40, size=size, regularizations=(1e-4,))
        study.compare_with(TINY, baseline, generated, 0, tmp_path, say=lambda line: None)
    assert [row["m"] for row in read_rows(tmp_path / "baselines.jsonl")] == [20, 30]


def test_the_published_study_is_done(tmp_path, monkeypatch):
    """Whatever changes here must not ask for the baselines of results/smi2mol again: they took hours."""
    published = Path(__file__).parents[1] / "results" / "smi2mol" / "baselines.jsonl"
    (tmp_path / "baselines.jsonl").write_bytes(published.read_bytes())
    for name in ("SISOKR", "ILEFGW", "NNBaryFGW"):
        monkeypatch.setattr(smi2mol_baselines, name, lambda *a, **k: pytest.fail("computed again"))
    pair = made_pairs(["C"], molecules.generate(1, seed=0))
    sizes = (131_382, 500, 2_000)  # of QM9's parts, with one molecule in place of all
    split = module.SMI2Mol(*(pair.rows(np.zeros(size, dtype=int)) for size in sizes))
    for number, baseline in product(study.FULL.splits, study.FULL.baselines):
        study.compare_with(study.FULL, baseline, split, number, tmp_path, say=pytest.fail)
    assert [file.name for file in tmp_path.iterdir()] == ["baselines.jsonl"]
    assert (tmp_path / "baselines.jsonl").read_bytes() == published.read_bytes()


def test_pages_are_drawn(results, tmp_path):
    for image in (
        report.figure(results, tmp_path / "figure.png"),
        report.gallery(results, tmp_path / "gallery.png", count=3),
    ):
        assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 10_000
    text = report.markdown(report.table(results))
    assert "| DSOKR (paper) |  |  | 1.951 ± 0.074 | 2.960 ± 0.079 |  |" in text
