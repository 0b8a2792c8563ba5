"""The data sets of the studies: read as they were written, checked, cached, split without overlap."""

import gzip
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Generator

from dsokr.errors import InputError
from dsokr.files import checksum
from dsokr.graphs import Graph, GraphBatch
from real_data import real_data
from studies.chebi20_models import WL
from studies.data import (
    chebi20,
    files,
    fingerprints,
    forms,
    label_ranking,
    massbank,
    mentions,
    molecules,
    multilabel,
    ocr_letters,
    smi2mol,
)
from studies.data.chebi20 import describe_molecules
from studies.data.coloring import COLORS, draw_maps
from studies.data.synthetic import LeastSquares

chem = pytest.importorskip("dsokr.chem")

SMILES = ["CCO", "OCC", "C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O"]
LOADERS = {
    "smi2mol": smi2mol.load_smi2mol,
    "chebi20": chebi20.load_chebi20,
    "multilabel": lambda folder: multilabel.load_multilabel("yeast", folder),
    "label_ranking": lambda folder: label_ranking.load_label_ranking("iris", folder),
    "ocr_letters": ocr_letters.load_ocr_letters,
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DSOKR_DATA", raising=False)


@pytest.fixture
def trust(monkeypatch, tmp_path):
    """Accept the files that a test has written in place of the real ones."""

    def trust(module, *names):
        if names:
            own = {n: replace(s, sha256=checksum(tmp_path / s.path)) for n, s in module.SOURCES.items() if n in names}
            monkeypatch.setattr(module, "SOURCES", module.SOURCES | own)
        else:
            name = "QM9" if module is smi2mol else "SOURCE"
            source = getattr(module, name)
            monkeypatch.setattr(module, name, replace(source, sha256=checksum(tmp_path / source.path)))

    return trust


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smi2mol", "qm9_smiles_133882.txt.gz is missing. Get it from .*figshare"),
        ("chebi20", "candidates_all.tsv.gz is missing. Get it from the ChEBI-20 files of MolT5"),
        ("multilabel", "yeast.npz is missing. Get it from MULAN"),
        ("label_ranking", "iris.txt is missing. Get it from .*Hüllermeier"),
        ("ocr_letters", "letters.npz is missing. Get it from the OCR data of Kassel"),
    ],
)
def test_a_missing_file_says_where_to_get_it(name, message, tmp_path):
    with pytest.raises(InputError, match=f"{message}.*--data-dir or the environment variable DSOKR_DATA"):
        LOADERS[name](tmp_path / "elsewhere")


def test_another_file_is_refused(tmp_path, monkeypatch):
    source = files.Source("iris.txt", "0" * 64, "somewhere")
    (tmp_path / "iris.txt").write_text("other")
    with pytest.raises(InputError, match="is not the expected file: its SHA-256 is"):
        source.find(tmp_path)
    monkeypatch.setenv("DSOKR_DATA", str(tmp_path))
    assert replace(source, sha256=checksum(tmp_path / "iris.txt")).find(None) == tmp_path / "iris.txt"


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (multilabel.load_multilabel, "no multi-label data set 'enron'. Choose one of bibtex, corel5k"),
        (label_ranking.load_label_ranking, "no label ranking data set 'enron'. Choose one of authorship"),
    ],
)
def test_an_unknown_data_set_is_refused(load, message):
    with pytest.raises(InputError, match=message):
        load("enron")


def test_qm9_is_prepared_once_and_split(tmp_path, monkeypatch, trust):
    generated = chem.many_smiles(molecules.generate(30, seed=0))
    write(tmp_path / smi2mol.QM9.path, "F/C=C/F", "OCC", "c1ccoc1", "C#N", "[NH3+]CC([O-])=O", *generated)
    trust(smi2mol)
    monkeypatch.setattr(smi2mol, "N_TEST", 6)
    monkeypatch.setattr(smi2mol, "N_VAL", 4)
    pairs = smi2mol.load_pairs(tmp_path)
    assert pairs.smiles[:4] == ["FC=CF", "CCO", "c1ccoc1", "C#N"]  # canonical, without stereochemistry
    assert list(pairs.graphs) == chem.graphs(pairs.smiles)
    assert {order for _, _, order in pairs.graphs[2].edges} == {1, 2}  # Kekulé form
    monkeypatch.setitem(sys.modules, "dsokr.chem", None)  # from here on RDKit could be missing
    first, same, other = (smi2mol.load_smi2mol(tmp_path, seed) for seed in (0, 0, 1))
    parts = (first.train, first.val, first.test)
    assert [len(part.smiles) for part in parts] == [len(part.graphs) for part in parts] == [25, 4, 6]
    assert first.test.smiles == same.test.smiles != other.test.smiles
    assert sorted(text for part in parts for text in part.smiles) == sorted(pairs.smiles)
    assert first.cut(3).train.smiles == first.train.smiles[:3] and first.cut(None) is first


def test_fingerprints_are_rdkits_and_split_90_5_5(tmp_path, trust, monkeypatch):
    from rdkit import Chem
    from rdkit.Chem import rdFingerprintGenerator

    write(tmp_path / smi2mol.QM9.path, *chem.many_smiles(molecules.generate(60, seed=0)))
    trust(smi2mol)
    monkeypatch.setattr(fingerprints, "QM9", smi2mol.QM9)
    pairs = fingerprints.load_fingerprints(tmp_path)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    for row, smiles in enumerate(smi2mol.load_pairs(tmp_path).smiles):
        on = generator.GetFingerprint(Chem.MolFromSmiles(smiles)).GetOnBits()
        assert sorted(on) == sorted(pairs.bits[[row]].indices.tolist())
    assert set(pairs.bits.data) == {1}
    monkeypatch.setitem(sys.modules, "dsokr.chem", None)  # from here on RDKit could be missing
    train, val, test = fingerprints.split_pairs(fingerprints.load_fingerprints(tmp_path), seed=0)
    assert [len(part.graphs) for part in (train, val, test)] == [part.bits.shape[0] for part in (train, val, test)]
    assert len(set(train.graphs) | set(val.graphs) | set(test.graphs)) == 60
    few, _, same = fingerprints.split_pairs(pairs, seed=0, n_train=9)
    assert set(few.graphs) < set(train.graphs) and len(few.graphs) == 9 and list(same.graphs) == list(test.graphs)


def test_the_ceiling_by_hand():
    graphs = [Graph((6, 6), ((0, 1, order),)) for order in (1, 1, 2)] + [Graph((6,)), Graph((8,)), Graph((7,))]
    columns = np.array([0, 0, 0, 1, 1, 2])
    pairs = fingerprints.FingerprintPairs(fingerprints.bits_from(np.arange(6), columns, 6), GraphBatch.of(graphs))
    assert fingerprints.measure_ceiling(pairs, edge_labels=True) == pytest.approx((1 / 6, 4 / 6))
    assert fingerprints.measure_ceiling(pairs, edge_labels=False) == pytest.approx((4 / 6, 5 / 6))


def test_maps_show_their_graphs():
    maps = draw_maps(40, (5, 10), seed=1)
    assert (maps.images == draw_maps(40, (5, 10), seed=1).images).all()
    assert (maps.images[:5] != draw_maps(5, (5, 10), seed=2).images).any()
    for image, graph in zip(maps.images, maps.graphs, strict=True):
        pixels = np.moveaxis(image, 0, -1).reshape(-1, 1, 3) / 255
        nearest = np.linalg.norm(pixels - COLORS, axis=2)
        shown = nearest.argmin(axis=1)[nearest.min(axis=1) < 0.1]  # away from borders
        assert set(graph.labels) <= set(shown.tolist())
        assert 2 <= len(graph.labels) <= 10
        assert all(graph.labels[i] != graph.labels[j] and label == 1 for i, j, label in graph.edges)


def test_regions_touch_where_their_pixels_do(monkeypatch):
    """A map of two regions in two colours: the border that is counted is the one in the image."""
    monkeypatch.setattr("studies.data.coloring.NOISE", 0.0)
    monkeypatch.setattr("studies.data.coloring.BLUR", 1e-3)
    for image, graph in zip(*draw_maps(30, (2, 2), seed=0), strict=True):
        first = image.reshape(3, -1).T @ np.array([1, 256, 65536]) == image[:, 0, 0] @ np.array([1, 256, 65536])
        grid = first.reshape(32, 32)
        border = (grid[1:] != grid[:-1]).sum() + (grid[:, 1:] != grid[:, :-1]).sum()
        sizes = sorted([grid.sum(), (~grid).sum()])
        assert len(graph.labels) == 1 + (sizes[0] >= 3) and len(graph.edges) == (border >= 3 and sizes[0] >= 3)


@pytest.fixture
def chebi(tmp_path, trust):
    """Files in the form of ChEBI-20, of six molecules."""
    identifiers = np.unique(np.concatenate(chem.environments(SMILES)))
    tokens = np.array(["UNK", *map(str, identifiers[identifiers >= 0])])
    candidates = (f"{i}\t{s}\tx" for i, s in enumerate(SMILES))
    write(tmp_path / "chebi20" / "candidates_all.tsv.gz", "CID\tSMILES\tsplit", *candidates)
    np.savez(tmp_path / "chebi20" / "mol2vec_tokens.npz", token=tokens, vector=np.ones((len(tokens), 4)))
    for name, rows in (("train", range(4)), ("val", [4]), ("test", [5])):
        lines = (f'{i}\t{SMILES[i]}\tA text "of" {i}.' for i in rows)
        write(tmp_path / "chebi20" / f"{name}.tsv.gz", "CID\tSMILES\tdescription", *lines)
    trust(chebi20, *chebi20.SOURCES)
    return tmp_path


def test_chebi20_is_read_and_cached(chebi, monkeypatch):
    data = chebi20.load_chebi20(chebi)
    assert data.training_texts == "rebuilt from ChEBI"
    assert data.train.texts[2] == 'A text "of" 2.' and data.train.rows.tolist() == [0, 1, 2, 3]
    assert data.test.rows.tolist() == [5] and data.molecules.smiles == SMILES
    monkeypatch.setitem(sys.modules, "dsokr.chem", None)
    again = chebi20.load_chebi20(chebi)
    assert (again.molecules.morgan != data.molecules.morgan).nnz == 0
    assert list(again.molecules.graphs) == list(data.molecules.graphs)


def test_original_training_texts_are_preferred(chebi):
    path = chebi / "chebi20" / "train.txt"
    path.write_text("CID\tSMILES\tdescription\n3\tC\tThe original.\n", encoding="utf-8-sig")
    data = chebi20.load_chebi20(chebi)
    assert (data.training_texts, data.train.texts, data.train.rows.tolist()) == ("original", ["The original."], [3])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("3\tThe original.\n", "line 1: expected a CID, a molecule and a description, with tabs"),
        ("3\t0.1 0.2\tThe original.\n17\tC\tNobody.\n", "train.txt, line 2: CID 17 is not among the candidates"),
    ],
)
def test_bad_training_texts_are_refused(written, message, tmp_path):
    (tmp_path / "train.txt").write_text(written)
    with pytest.raises(InputError, match=message):
        chebi20.read_descriptions(tmp_path / "train.txt", {3: 0})


GLYCINE, GLYCINATE = "NCC(=O)O", "NCC(=O)[O-]"


def test_names_are_read_as_molecules():
    """Names that ChEBI writes in its own way: with a charge, and without the places of double bonds."""
    names = ["glycine", "glycinate", "methyl", "linoleic acid", "(9Z,12Z)-octadecadienoic acid", "acetyl-CoA"]
    found = mentions.read_names([*names, "acetyl-CoA(4-)", "a steroid", "naïve acid", ""])
    assert found["glycine"] == GLYCINE and found["glycinate"] == GLYCINATE and found["methyl"] == "[CH3]"
    assert found["(9Z,12Z)-octadecadienoic acid"] == found["linoleic acid"]
    assert found["acetyl-CoA(4-)"] == found["acetyl-CoA"]
    assert not {"a steroid", "naïve acid", ""} & set(found)


def test_mentions_have_relations():
    smiles = {"glycine": GLYCINE, "acetic acid": "CC(=O)O", "acetic": "C", "ethyl acetate": "CCOC(C)=O"}
    text = (
        "The molecule is the ester of acetic acid, ethyl acetate. It contains glycine. It derives from an acetic acid."
    )
    text += " It is a conjugate base of a glycine, and glycine occurs in it. It is a tautomer of a glycine."
    assert list(mentions.find_mentions(text, smiles)) == [
        ("CC(=O)O", mentions.DEFINITION),
        ("CCOC(C)=O", mentions.DEFINITION),
        (GLYCINE, mentions.OTHER),
        ("CC(=O)O", "derives from"),
        (GLYCINE, "conjugate base of"),
        (GLYCINE, "conjugate base of"),
        (GLYCINE, "tautomer of"),
    ]


SPELLED_OUT = {
    "octane substituted by a hydroxy group at position 3": ("CCCCCC(O)CC", mentions.SPELLED),
    "aniline in which the hydrogens at the 3- and 4-positions are replaced by methyl groups": (
        "Cc1ccc(N)cc1C",
        mentions.SPELLED,
    ),
    "quinoline-8-carboxylic acid carrying methyl and chloro substituents at positions 3 and 7 respectively": (
        "Cc1cnc2c(C(=O)O)c(Cl)ccc2c1",
        mentions.SPELLED,
    ),
    "urea in which one of the amino hydrogens is replaced by an acetyl group": ("CC(=O)NC(N)=O", mentions.SPELLED),
    "a 1-acyl-sn-glycerol that has octanoyl as the 1-acyl group": ("CCCCCCCC(=O)OC[C@@H](O)CO", mentions.SPELLED),
    "an ester obtained by formal condensation of the carboxy group of acetic acid with the hydroxy group of ethanol": (
        "CCOC(C)=O",
        mentions.CONDENSED,
    ),
    "a dipeptide composed of L-alanine and glycine joined by a peptide linkage": (
        "C[C@H](N)C(=O)NCC(=O)O",
        mentions.PEPTIDE,
    ),
    "an ion. It is a conjugate base of an acetic acid": ("CC(=O)[O-]", "anion conjugate base of"),
    "an acid. It is an enantiomer of a L-alanine": ("C[C@@H](N)C(=O)O", "mirrored enantiomer of"),
}


def test_what_a_text_spells_out_is_built():
    texts = [f"The molecule is {words}." for words in SPELLED_OUT]
    found = mentions.name_molecules(texts)
    for text, (smiles, relation) in zip(texts, SPELLED_OUT.values(), strict=True):
        assert (smiles, relation) in found[text], text


def test_a_molecule_whose_acid_has_deuterium_has_fewer_forms():
    assert forms.list_forms("[2H]OC(=O)CN") == {"cation": "[2H]OC(=O)C[NH3+]"}  # the deuteron is not taken away


def test_a_text_shares_names_with_others_only():
    texts = ["It is a conjugate base of a foo acid.", "It derives from a foo acid.", "It derives from a bar."]
    shared = mentions.share_names(texts, np.array([7, 8, 9]), ["The molecule is a thing that is foo acid in which."])
    assert list(shared.values()) == [
        [(8, "derives from what conjugate base of")],
        [(7, "conjugate base of what derives from")],
        [],
        [(7, "conjugate base of what in the definition"), (8, "derives from what in the definition")],
    ]
    same = mentions.share_names(texts[:2], np.array([7, 7]), [])
    assert list(same.values()) == [[], []]  # two texts on one molecule


def test_names_are_inferred_from_texts_on_other_forms():
    """What a base is the conjugate of is its neutral form, and what it is the enantiomer of, its mirror image."""
    alanine, mirrored = "C[C@H](N)C(=O)O", "C[C@@H](N)C(=O)O"
    texts = {
        "The molecule is an anion. It is a conjugate base of a L-foo.": "C[C@H](N)C(=O)[O-]",
        "The molecule is an acid. It is an enantiomer of a L-foo.": mirrored,
        "The molecule is an ester. It derives from a bar.": "CCOC(C)=O",
    }
    others = ["It is a conjugate acid of a L-foo(1-).", "It derives from a bar."]
    base, acid, ester = texts
    inferred = mentions.infer_names([*texts], np.arange(3), [*texts.values()], others)
    assert inferred[others[0]] == [(alanine, "conjugate acid of")]
    assert inferred[base] == [(alanine, "conjugate base of")]  # by the acid
    assert inferred[acid] == [(alanine, "enantiomer of")]  # by the base
    assert inferred[ester] == inferred[others[1]] == []
    alone = mentions.infer_names([base], np.array([0]), [texts[base]], others[:1])
    assert alone == {base: [], others[0]: [(alanine, "conjugate acid of")]}  # no text explains its own names
    found = mentions.name_molecules([base], {base: inferred[base]})[base]
    assert ("C[C@H](N)C(=O)[O-]", "anion conjugate base of") in found


def test_mentions_are_read_once_for_the_same_texts(chebi, monkeypatch):
    data = chebi20.load_chebi20(chebi)
    texts = ["It derives from glycine.", "A steroid.", "The conjugate base of glycine is glycinate.", "Glycinate."]
    data = replace(data, train=data.train._replace(texts=texts))
    found = mentions.load_mentions(data, chebi)
    at = found.molecules.smiles.index
    assert found.by_text[texts[0]] == [(at(GLYCINE), found.relations.index("derives from"))]
    assert found.by_text[texts[1]] == found.by_text[data.test.texts[0]] == []
    assert {at(GLYCINE), at(GLYCINATE)} <= {row for row, _ in found.by_text[texts[2]]}
    assert found.list_rows(texts[:2]).tolist() == [at(GLYCINE)]
    monkeypatch.setattr(mentions, "call_opsin", None)
    assert mentions.load_mentions(data, chebi).by_text == found.by_text


def test_mol2vec_is_the_sum_over_atoms():
    tokens = np.array(["UNK", *map(str, np.unique(np.concatenate(chem.environments(SMILES[:4]))))])
    tokens = tokens[tokens != "-1"]
    vectors = np.random.default_rng(0).normal(size=(len(tokens), 5))
    made = chebi20.make_molecules(SMILES, np.arange(6), tokens, vectors)
    table = dict(zip(tokens, vectors, strict=True))
    for row, around in enumerate(chem.environments(SMILES)):
        expected = sum(table.get(str(identifier), table["UNK"]) for identifier in around[around >= 0])
        assert np.allclose(made.mol2vec[row], expected, atol=1e-5)
        atoms = made.atom_vectors[made.atoms[row] : made.atoms[row + 1]]
        assert np.allclose(atoms.sum(axis=0), expected, atol=1e-5)


def test_graphs_know_charges_and_stereochemistry():
    alike = ["C[C@H](N)O", "C[C@@H](N)O", "F/C=C/F", "F/C=C\\F", "CC(=O)O", "CC(=O)[O-]", "CC(=O)O.[Na]"]
    made = chebi20.make_molecules(alike, np.arange(len(alike)), np.array(["UNK", "7"]), np.ones((2, 2)))
    assert list(made.graphs) == chem.stereo_graphs(alike)
    names = list(WL.features(made.graphs).rows())
    assert len(set(names)) == len(alike)
    assert next(iter(WL.features(chem.stereo_graphs(["O[C@H](C)N"])).rows())) in names[:2]  # in any order of the atoms


def test_descriptions_say_what_is_there():
    data = describe_molecules(60, 10, 10)
    assert len(set(data.molecules.smiles)) == 80
    for text, row in zip(*data.test, strict=True):
        smiles = data.molecules.smiles[row]
        assert ("fluor" in text) == ("F" in smiles) and ("oxygen" in text) == ("O" in smiles)
        assert ("alkyne" in text) == (chem.matches([smiles], "C#C")[0] > 0)
    assert describe_molecules(60, 10, 10).train.texts == data.train.texts


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_multilabel_data_are_read_as_they_were_written(form, tmp_path, trust):
    rng = np.random.default_rng(0)
    X, Y = form(rng.normal(size=(5, 3)).astype(np.float32)), (rng.random((5, 11)) < 0.4).astype(np.uint8)
    arrays = {"X": X}
    if sp.issparse(X):
        arrays = {f"X_{name}": getattr(X, name) for name in ("data", "indices", "indptr", "shape")}
    (tmp_path / "multilabel").mkdir()
    split = np.array([0, 1, 0, 0, 1], np.uint8)
    np.savez(tmp_path / "multilabel" / "emotions.npz", Y=np.packbits(Y, axis=1), n_labels=11, split=split, **arrays)
    trust(multilabel, "emotions")
    data = multilabel.load_multilabel("emotions", tmp_path)
    for (inputs, sets), rows in ((data.train, [0, 2, 3]), (data.test, [1, 4])):
        assert sp.issparse(inputs) == sp.issparse(X)
        np.testing.assert_array_equal(
            inputs.toarray() if sp.issparse(X) else inputs, (X.toarray() if sp.issparse(X) else X)[rows]
        )
        np.testing.assert_array_equal(sets, Y[rows])


def test_rankings_are_read(tmp_path):
    path = tmp_path / "tiny.txt"
    path.write_text("height,town,ranking\n1.5,1:Lyon,b>a>c\n-2,0:Paris,a>b>c\n0,1:Lyon,c>b>a\n", encoding="utf-8")
    data = label_ranking.read_label_ranking(path)
    assert data.names == ("a", "b", "c")
    np.testing.assert_array_equal(data.rankings, [[1, 0, 2], [0, 1, 2], [2, 1, 0]])  # the position of every label
    np.testing.assert_array_equal(data.X, [[1.5, 0, 1], [-2, 1, 0], [0, 0, 1]])  # a column for every town


def test_written_words_are_read(tmp_path, trust):
    images = np.zeros((5, 128), np.uint8)
    images[np.arange(5), np.arange(5)] = 1
    letters, lengths, folds = np.array([2, 0, 1, 1, 4], np.uint8), np.array([3, 2]), np.array([7, 0])
    (tmp_path / "ocr_letters").mkdir()
    np.savez(tmp_path / "ocr_letters" / "letters.npz", X=images, y=letters, lengths=lengths, folds=folds)
    trust(ocr_letters)
    data = ocr_letters.load_ocr_letters(tmp_path)
    assert data.words.tolist() == ["cab", "be"] and data.folds.tolist() == [7, 0]
    assert data.X.shape == (2, 3, 16, 8) and data.X.dtype == np.float32
    np.testing.assert_array_equal(data.letter_images().reshape(5, 128), images)
    assert not data.X[1, 2].any()  # padded
    assert data.rows(np.array([1])).words.tolist() == ["be"]


def test_spectra_are_read_and_binned(tmp_path, trust):
    header = "split\taccession\tinchikey14\tsmiles\tprecursor_mz\tpeaks"
    rows = ["train\t1\tA\tCCO\t47.05\t29.0:1000 29.2:600", "test\t2\tB\tCCN\t46.07\t1e4:9"]
    write(tmp_path / "massbank" / "spectra.tsv.gz", header, *rows)
    trust(massbank)
    data = massbank.load_massbank(tmp_path)
    assert data.smiles.tolist() == ["CCO", "CCN"] and data.molecules.tolist() == ["A", "B"]
    assert data.parts.tolist() == ["train", "test"] and data.X.shape == (2, 4000)
    first = dict(zip(data.X[[0]].indices.tolist(), data.X[[0]].data.tolist(), strict=True))
    assert first == pytest.approx({58: 40.0, 2036: 1000**0.5, 2035: 600**0.5})  # two peaks share a bin of mass
    assert data.X[[1]].indices.tolist() == [1999, 2000]  # beyond the ends


def test_molecules_with_spectra_and_further_candidates(tmp_path):
    header = "split\taccession\tinchikey14\tsmiles\tprecursor_mz\tpeaks"
    key = massbank.find_key("CCO")
    rows = [f"train\t1\t{key}\tCCO\t47.05\t29.0:1000", "test\t2\tB\tC1CCCCC1N\t100.11\t83.1:9"]
    write(tmp_path / "spectra.tsv.gz", header, *rows, f"train\t3\t{key}\tCCO\t47.06\t31.0:7")
    write(tmp_path / "chebi.tsv.gz", "CID\tSMILES", "1\tOCC", "2\tCOC", "3\tC(C)N")  # the first is known already
    data = massbank.prepare_molecules(tmp_path / "spectra.tsv.gz", tmp_path / "chebi.tsv.gz")
    assert len(data) == 2 and data.parts.tolist() == ["train", "test"] and data.X.shape == (2, 200_002)
    assert data.formulas.tolist() == ["C2H6O", "C6H13N", "C2H6O", "C2H7N"] and data.morgan.shape[0] == 4
    assert data.masses[[0, 2]] == pytest.approx(46.041865) and data.measured == pytest.approx([46.04772, 99.10272])
    assert data.scaffolds.tolist() == ["", "C1CCCCC1"]
    np.testing.assert_allclose(data.X.multiply(data.X).sum(axis=1), 1)
    assert data.X[[0]].nnz == 4  # two peaks and two losses: both spectra


def test_rearranged_words_are_the_same_letters():
    data = ocr_letters.generate(copies=2, words=8)
    made = ocr_letters.rearrange_letters(data, 20, np.random.default_rng(0))
    assert len(made) == 32 and sorted(map(len, made.words)) == sorted(2 * [len(word) for word in data.words])
    assert sorted("".join(made.words)) == sorted("".join(data.words) * 2)
    assert set(made.words.tolist()) - set(data.words.tolist())
    known = {image.tobytes(): letter for image, letter in zip(data.letter_images(), "".join(data.words), strict=True)}
    for image, letter in zip(made.letter_images(), "".join(made.words), strict=True):
        assert known[image.tobytes()] == letter


def test_generated_documents_are_seeded():
    a, b, c = (multilabel.generate(40, 10, seed=seed) for seed in (0, 0, 1))
    assert (a.train[0] != b.train[0]).nnz == 0 and (a.train[0] != c.train[0]).nnz > 0
    assert set(a.train[1].sum(axis=1)) == {1, 2, 3}


def test_the_least_squares_task_is_the_papers():
    """Signal in d dimensions, noise of the given variance in all, inputs with the given covariance."""
    task = LeastSquares(n_train=20_000, n_val=10, n_test=10, input_dim=30, output_dim=40, rank=5, noise=0.01)
    X, Y = task.draw(Generator().manual_seed(0)).train
    spectrum = torch.linalg.eigvalsh(X.double().T @ X.double() / len(X)).flip(0)
    torch.testing.assert_close(spectrum, torch.arange(1, 31).double().pow(-0.5), rtol=0.06, atol=0.01)
    outputs = torch.linalg.eigvalsh(Y.T @ Y / len(Y)).flip(0)
    assert outputs[4] > 1
    torch.testing.assert_close(outputs[5:], torch.full((35,), 0.01).double(), rtol=0.15, atol=0)


@pytest.mark.parametrize(
    ("name", "n_train", "n_test", "width", "labels", "cardinality"),
    [  # as MULAN's page describes them
        ("bibtex", 4880, 2515, 1836, 159, 2.402),
        ("corel5k", 4500, 500, 499, 374, 3.522),
        ("emotions", 391, 202, 72, 6, 1.869),
        ("scene", 1211, 1196, 294, 6, 1.074),
        ("yeast", 1500, 917, 103, 14, 4.237),
    ],
)
def test_the_multilabel_data_are_mulans(name, n_train, n_test, width, labels, cardinality):
    (X, Y), (X_test, Y_test) = multilabel.load_multilabel(name, real_data(f"multilabel/{name}.npz"))
    assert X.shape == (n_train, width) and X_test.shape == (n_test, width)
    assert Y.shape == (n_train, labels) and Y_test.shape == (n_test, labels)
    assert (Y.sum() + Y_test.sum()) / (n_train + n_test) == pytest.approx(cardinality, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "n", "d", "k"),
    [  # Cheng & Hüllermeier, 2009; Kamishima, 2003
        ("authorship", 841, 70, 4),
        ("glass", 214, 9, 6),
        ("iris", 150, 4, 3),
        ("vehicle", 846, 18, 4),
        ("vowel", 528, 10, 11),
        ("wine", 178, 13, 3),
        ("sushi", 5000, None, 10),
    ],
)
def test_the_rankings_are_those_of_the_literature(name, n, d, k):
    data = label_ranking.load_label_ranking(name, real_data(f"label_ranking/{name}.txt"))
    assert len(data.names) == k and data.X.shape[0] == n and (d is None or data.X.shape[1] == d)
    np.testing.assert_array_equal(np.sort(data.rankings, axis=1), np.tile(np.arange(k), (n, 1)))
    assert np.isfinite(data.X).all()


def test_the_words_are_taskars():
    """As many words, letters and folds as Taskar et al. say; the same words in all folds; no image without ink."""
    data = ocr_letters.load_ocr_letters(real_data("ocr_letters/letters.npz"))
    assert len(data) == 6877 and len(data.letter_images()) == 52152
    different = set(data.words.tolist())
    assert len(different) == 55 and "ommanding" in different
    assert all(set(data.words[data.folds == fold].tolist()) == different for fold in range(10))
    assert data.letter_images().any(axis=(1, 2)).all()


@pytest.mark.slow  # a minute of RDKit each
def test_the_molecules_are_those_of_qm9_and_chebi20():
    split = smi2mol.load_smi2mol(real_data(smi2mol.QM9.path), 0)
    assert [len(part.smiles) for part in (split.train, split.val, split.test)] == [131_382, 500, 2_000]
    assert np.diff(split.train.graphs.offsets).max() == 9 and set(split.train.graphs.labels) == {6, 7, 8, 9}
    data = chebi20.load_chebi20(real_data("chebi20/candidates_all.tsv.gz"))
    assert [len(part.texts) for part in (data.train, data.val, data.test)] == [26408, 3301, 3300]
    _, group, sizes = np.unique(data.molecules.mol2vec, axis=0, return_inverse=True, return_counts=True)
    assert len(group) == 33010 and (1 / sizes[group[data.test.rows]]).mean() == pytest.approx(0.856, abs=1e-3)
