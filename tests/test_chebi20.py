"""Text to molecule: the data, outputs with several views, fingerprints, contrastive towers, and the experiment."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr import DSOKR, Training, kernels, networks, sketches
from studies.baselines import CMAM, MoleculeGCN, MoleculeMLP
from dsokr.decoders import Candidates
from dsokr.errors import InputError
from dsokr.kernels import Cosine, Tanimoto, Views
from dsokr.metrics import ranks
from dsokr.outputs import ViewBatch, chosen, distinct, positions
from real_data import real_data

chem = pytest.importorskip("dsokr.chem")
from studies.data import chebi20 as loader  # noqa: E402
from studies.data.chebi20 import arrays_of, molecules_of  # noqa: E402
from studies.data.descriptions import described_molecules  # noqa: E402
from studies import chebi20 as experiment  # noqa: E402
from studies import chebi20_methods as methods  # noqa: E402
from studies import chebi20_report  # noqa: E402

SMILES = ["CCO", "OCC", "C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O"]


@pytest.fixture(scope="module")
def data():
    return described_molecules(120, 20, 20)


def test_fingerprints_are_rdkits():
    from rdkit import Chem, DataStructs
    from rdkit.Chem import rdFingerprintGenerator

    ours = chem.fingerprints(SMILES, radius=2)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, includeChirality=True)
    theirs = [generator.GetSparseCountFingerprint(Chem.MolFromSmiles(text)) for text in SMILES]
    expected = [DataStructs.BulkTanimotoSimilarity(one, theirs) for one in theirs]
    assert np.allclose(Tanimoto()(ours, ours), expected, atol=1e-12)
    flat = chem.fingerprints(SMILES, radius=2, chirality=False)
    assert (flat[[2]] != flat[[3]]).nnz == 0, "mirror images are alike without chirality"
    assert (ours[[2]] != ours[[3]]).nnz > 0
    with pytest.raises(InputError, match="'C1CC' at index 1"):
        chem.fingerprints(["CC", "C1CC"])


def test_wide_sparse_rows_equal_narrow_ones():
    rng = np.random.default_rng(0)
    narrow = rng.poisson(0.7, size=(12, 9))
    wide = sp.csr_array(narrow.astype(float))
    columns = np.sort(rng.choice(2**32, size=9, replace=False))
    wide = sp.csr_array((wide.data, columns[wide.indices], wide.indptr), shape=(12, 2**32))
    assert torch.allclose(Tanimoto()(wide, wide), Tanimoto()(narrow, narrow))
    bits = sp.csr_array((np.ones(wide.nnz), wide.indices, wide.indptr), shape=wide.shape)
    assert torch.allclose(Tanimoto()(bits, bits), Tanimoto()(narrow > 0, narrow > 0))
    assert torch.allclose(Tanimoto()(bits[:4], wide), Tanimoto()((narrow > 0)[:4], narrow))


def test_environments_add_up_to_the_fingerprint():
    counts = chem.fingerprints(SMILES, radius=1, chirality=False)
    for row, around in enumerate(chem.environments(SMILES, radius=1)):
        ids, times = np.unique(around[around >= 0], return_counts=True)
        own = counts[[row]]
        assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == dict(
            zip(own.indices.tolist(), own.data.astype(int).tolist(), strict=True)
        )


def test_views_as_a_batch_equal_tuples():
    rng = np.random.default_rng(0)
    vectors, words = rng.normal(size=(10, 3)), [f"{'ab' * (i % 4)}c" for i in range(10)]
    kernel = Views(Cosine(), kernels.NGram(1))
    batch, tuples = ViewBatch(vectors, words), list(zip(vectors, words, strict=True))
    assert torch.allclose(kernel(batch[:4], batch), kernel(tuples[:4], tuples))
    assert torch.allclose(kernel.diag(batch), kernel.diag(tuples))
    assert len(batch[np.array([3, 1])]) == 2 and batch[np.array([3, 1])][0][1] == words[3]
    assert [word for _, word in batch] == words
    both = ViewBatch(np.vstack([vectors, vectors[:2]]), words + words[:2])
    assert distinct(both).tolist() == list(range(10))
    assert positions(both, batch).tolist() == [*range(10), 0, 1]
    first = torch.tensor([True, False])
    assert [y[1] for y in chosen(first, batch[:2], batch[2:4])] == [words[0], words[3]]
    with pytest.raises(InputError, match="as many outputs each. Got 2, 3"):
        ViewBatch([1, 2], [1, 2, 3])
    with pytest.raises(InputError, match="at least 3 views"):
        kernels.View(2, Cosine())(batch, batch)


def test_models_of_views_are_saved(tmp_path, data):
    outputs = methods.views(data.molecules)
    texts, rows = data.train
    model = DSOKR(
        methods.KERNELS["cosine + tanimoto"],
        sketches.SubSample(20),
        networks.WordBag(width=16, hidden=()),
        decoder=Candidates("cosine", outputs=outputs),
        training=Training(epochs=1, progress=False),
        random_state=0,
    ).fit(texts, outputs[rows])
    model.save(tmp_path / "model")
    again = DSOKR.load(tmp_path / "model")
    assert torch.equal(model.rank(texts[:5], k=3).indices, again.rank(texts[:5], k=3).indices)


def test_descriptions_say_what_is_there(data):
    assert len(set(data.molecules.smiles)) == 160
    for text, row in zip(*data.test, strict=True):
        smiles = data.molecules.smiles[row]
        assert ("fluor" in text) == ("F" in smiles)
        assert ("oxygen" in text) == ("O" in smiles)
        assert ("alkyne" in text) == (chem.matches([smiles], "C#C")[0] > 0)
    again = described_molecules(120, 20, 20)
    assert again.train.texts == data.train.texts
    with pytest.raises(InputError, match="as SMARTS"):
        chem.matches(["CC"], "[[")


def test_mol2vec_is_the_sum_over_atoms():
    tokens = np.array(["UNK", *map(str, np.unique(np.concatenate(chem.environments(SMILES[:4]))))])
    tokens = tokens[tokens != "-1"]
    vectors = np.random.default_rng(0).normal(size=(len(tokens), 5))
    molecules = molecules_of(arrays_of(SMILES, np.arange(6), tokens, vectors))
    table = dict(zip(tokens, vectors, strict=True))
    for row, around in enumerate(chem.environments(SMILES)):
        expected = sum(table.get(str(identifier), table["UNK"]) for identifier in around[around >= 0])
        assert np.allclose(molecules.mol2vec[row], expected, atol=1e-5)
        atoms = molecules.atom_vectors[molecules.atoms[row] : molecules.atoms[row + 1]]
        assert np.allclose(atoms.sum(axis=0), expected, atol=1e-5)


def test_graphs_know_charges_and_stereochemistry():
    alike = ["C[C@H](N)O", "C[C@@H](N)O", "F/C=C/F", "F/C=C\\F", "CC(=O)O", "CC(=O)[O-]", "CC(=O)O.[Na]"]
    tokens = np.array(["UNK", "7"])
    molecules = molecules_of(arrays_of(alike, np.arange(len(alike)), tokens, np.ones((2, 2))))
    assert list(molecules.graphs) == chem.stereo_graphs(alike)
    names = list(kernels.WeisfeilerLehman(2, edge_labels=True).features(molecules.graphs).rows())
    assert len(set(names)) == len(alike)
    (turned,) = kernels.WeisfeilerLehman(2, edge_labels=True).features(chem.stereo_graphs(["O[C@H](C)N"])).rows()
    assert turned in names[:2]  # the order of the atoms does not matter


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files in the form of ChEBI-20, of six molecules."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "chebi20"
    place.mkdir()
    identifiers = np.unique(np.concatenate(chem.environments(SMILES)))
    tokens = np.array(["UNK", *map(str, identifiers[identifiers >= 0])])
    np.savez(place / "mol2vec_tokens.npz", token=tokens, vector=np.ones((len(tokens), 4)))
    _write(place / "candidates_all.tsv.gz", "CID\tSMILES\tsplit", *(f"{i}\t{s}\tx" for i, s in enumerate(SMILES)))
    for name, rows in (("train", range(4)), ("val", [4]), ("test", [5])):
        lines = (f'{i}\t{SMILES[i]}\tA text "of" {i}.' for i in rows)
        _write(place / f"{name}.tsv.gz", "CID\tSMILES\tdescription", *lines)
    module = __import__("sys").modules["studies.data.chebi20"]
    sources = {name: replace(source, sha256=_sha256(tmp_path / source.path)) for name, source in module.SOURCES.items()}
    monkeypatch.setattr(module, "SOURCES", sources)
    return tmp_path


def _write(path, *lines):
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def _sha256(path):
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_files_are_read(folder):
    data = loader(folder)
    assert data.training_texts == "rebuilt from ChEBI"
    assert data.train.texts[2] == 'A text "of" 2.' and data.train.rows.tolist() == [0, 1, 2, 3]
    assert data.test.rows.tolist() == [5]
    assert data.molecules.smiles == SMILES
    again = loader(folder)  # from the cache
    assert (again.molecules.morgan != data.molecules.morgan).nnz == 0


def test_original_training_texts_are_preferred(folder):
    (folder / "chebi20" / "train.txt").write_text("CID\tSMILES\tdescription\n3\tC\tThe original.\n")
    data = loader(folder)
    assert (data.training_texts, data.train.texts, data.train.rows.tolist()) == ("original", ["The original."], [3])
    (folder / "chebi20" / "train.txt").write_text("3\t0.1 0.2\tThe original.\n17\tC\tNobody.\n")
    with pytest.raises(InputError, match="train.txt, line 2: CID 17 is not among the candidates"):
        loader(folder)
    (folder / "chebi20" / "train.txt").write_text("CID\tSMILES\tdescription\n3\tC\tMarked.\n", encoding="utf-8-sig")
    assert loader(folder).train.texts == ["Marked."]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"3\tThe original.\n", "line 1: expected a CID, a molecule and a description, with tabs"),
        ("²\tC\tA text.\n".encode(), "line 1: expected a CID"),
        (b"3\tC\t \n", "line 1: the description is empty"),
        (b"CID\tSMILES\tdescription\n", "train.txt has no descriptions"),
        (b"3\tC\t\xff\n", "must be a text in UTF-8. Got invalid start byte"),
    ],
)
def test_bad_training_texts_are_one_sentence(folder, written, message):
    (folder / "chebi20" / "train.txt").write_bytes(written)
    with pytest.raises(InputError, match=message):
        loader(folder)


def test_a_missing_file_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="candidates_all.tsv.gz is missing. Get it from the ChEBI-20 files of MolT5"):
        loader(tmp_path)


@pytest.mark.parametrize("tower", [MoleculeMLP(hidden=16), MoleculeGCN(hidden=16, layers=2)])
def test_cmam_learns(data, tower):
    if isinstance(tower, MoleculeGCN):
        pytest.importorskip("torch_geometric")
    molecules = data.molecules.mol2vec if isinstance(tower, MoleculeMLP) else data.molecules
    model = CMAM(
        networks.WordBag(width=32, hidden=(32,), dropout=0.0),
        tower,
        dim=16,
        training=Training(epochs=15, batch_size=40, learning_rate=3e-3, progress=False, patience=None),
        random_state=0,
        device="cpu",
    )
    model.fit(*data.train, molecules, validation=(data.val.texts, data.val.rows))
    assert model.history_["train_loss"][-1] < 0.75 * model.history_["train_loss"][0]
    found = ranks(model.scores(data.val.texts), torch.from_numpy(data.val.rows)).reciprocal().mean().item()
    assert found == pytest.approx(max(model.history_["val_score"]), abs=1e-5), "the best epoch was kept"
    scores = model.scores(data.test.texts)
    assert scores.shape == (20, 160) and scores.abs().max() <= 1 + 1e-5


def test_a_graph_tower_does_not_mix_molecules(data):
    pytest.importorskip("torch_geometric")
    from dsokr.compute import seeded

    with seeded(0):
        tower = MoleculeGCN(hidden=8)(data.molecules, 4).eval()
    rows = torch.tensor([5, 0, 77, 5])
    together = tower(rows)
    alone = torch.cat([tower(row[None]) for row in rows])
    assert torch.allclose(together, alone, atol=1e-5)


def test_an_encoder_may_be_joined_by_a_bag_of_words(data, tmp_path):
    (tmp_path / "encoders" / "small").mkdir(parents=True)
    plain, joined = (
        methods.Task.of(name, data, tmp_path, torch.device("cpu")).network(0.2)
        for name in ("small", "small + bag of words")
    )
    assert plain.encoder == joined.encoder == str(tmp_path / "encoders" / "small")
    assert plain.words is None and joined.words == networks.WordBag(width=256, buckets=1 << 16, rate=3.0)


def test_the_experiment_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    study = replace(
        experiment.QUICK,
        methods=(experiment.QUICK.methods[0], experiment.QUICK.methods[3]),
        ensembles={"ours, ensemble, cosine + tanimoto": ("ours, cosine + tanimoto",)},
        n_train=120,
    )
    said: list[str] = []
    experiment.run(study, tmp_path, None, torch.device("cpu"), said.append)
    rows = [json.loads(line) for line in (tmp_path / "models.jsonl").read_text().splitlines()]
    assert {row["method"] for row in rows} == {"regression", "ours, cosine + tanimoto", "SISOKR"}
    for row in rows:
        m = row["metrics"]
        assert m["optimistic_mrr"] >= m["mrr"] >= m["pessimistic_mrr"] > 0
        assert row["encoder"] == "bag of words" and row["training_texts"] == "generated"
    (ensemble,) = (json.loads(line) for line in (tmp_path / "ensembles.jsonl").read_text().splitlines())
    assert ensemble["chosen"]["combine"] in ("mean rank", "mean score", "max score")
    table = {row["name"]: row for row in chebi20_report.table(tmp_path)}
    assert table["ours, ensemble, cosine + tanimoto"]["models"] == 2 and table["regression"]["seeds"] == 2
    assert {n: set(sizes) for n, sizes in chebi20_report.learning_curve(tmp_path).items()} == {
        "bag of words": {60, 120}
    }
    assert 0 < table["regression"]["share_of_worst_ten"] < 1 <= table["regression"]["median_rank"]
    before = {path.name: path.read_text() for path in tmp_path.glob("*.jsonl")}
    assert len(list((tmp_path / "kept").iterdir())) == 2  # the members of the ensemble, and no others
    shutil.rmtree(tmp_path / "kept")  # which has been measured
    monkeypatch.setattr(methods.Task, "network", None)  # nothing is trained
    experiment.run(study, tmp_path, None, torch.device("cpu"), said.append)
    assert before == {path.name: path.read_text() for path in tmp_path.glob("*.jsonl")}


def test_models_of_several_encoders_answer_together(tmp_path, data):
    """Each of two encoders knows half of the texts; together they know all of them."""
    task = methods.Task(data, methods.views(data.molecules), "second", "second", torch.device("cpu"))
    joint = {"ours, ensemble, both encoders": {"first": ("a",), "second": ("b",)}}
    study = replace(experiment.QUICK, encoder="second", seeds=(0,), ensembles={}, joint=joint)
    (together,) = experiment.ensembles(study)
    said: list[str] = []
    experiment.measure_ensemble(study, together, task, tmp_path, said.append)
    assert "not kept" in said.pop()

    molecules = torch.eye(len(task.outputs))
    for half, (encoder, (method,)) in enumerate(together.members.items()):
        known = {part: molecules[getattr(data, part).rows] for part in ("val", "test")}
        for vectors in known.values():
            vectors[half::2] = 0.001 * torch.randn(
                vectors[half::2].shape, generator=torch.Generator().manual_seed(half)
            )
        answers = methods.Answers(**known, molecules=molecules, diag=torch.ones(len(molecules)))
        answers.save(experiment.kept(tmp_path, study, task, method, 0, encoder))
        assert methods.measured(methods.settled(answers, task)[1], task)["hits@1"] < 0.6
    experiment.measure_ensemble(study, together, task, tmp_path, said.append)
    (row,) = (json.loads(line) for line in (tmp_path / "ensembles.jsonl").read_text().splitlines())
    assert row["encoder"] == "first & second" and row["members"] == ["first: a", "second: b"]
    assert row["metrics"]["hits@1"] > 0.95
    assert chebi20_report.table(tmp_path)[-1]["models"] == 2


def test_answers_that_could_not_be_kept_are_not_there(tmp_path, data, monkeypatch):
    """A file that is there counts as finished."""
    task = methods.Task(data, methods.views(data.molecules), "first", "first", torch.device("cpu"))
    monkeypatch.setenv("DSOKR_KEPT", str(tmp_path / "elsewhere"))  # which once had a say
    file = experiment.kept(tmp_path, experiment.QUICK, task, "a", 0)
    assert file.parent == tmp_path / "kept"

    def cut(tensors, path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    answers = methods.Answers(*torch.eye(4).double())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(methods, "save_file", cut)
        answers.save(file)
    assert list(file.parent.iterdir()) == []
    answers.save(file)
    again = methods.Answers.load(file, torch.device("cpu"))
    assert torch.equal(torch.stack([again.val, again.test, again.molecules, again.diag]), torch.eye(4))


@pytest.mark.slow  # a minute of RDKit where nothing is cached
def test_ceilings_of_the_real_candidates():
    data = loader(real_data("chebi20/candidates_all.tsv.gz"))
    assert [len(part.texts) for part in (data.train, data.val, data.test)] == [26408, 3301, 3300]
    assert len(data.molecules) == 33010
    _, group, sizes = np.unique(data.molecules.mol2vec, axis=0, return_inverse=True, return_counts=True)
    assert (1 / sizes[group[data.test.rows]]).mean() == pytest.approx(0.856, abs=1e-3)
