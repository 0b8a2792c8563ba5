"""Contributions add up to the score, or say that they do not."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr import DSOKR, Graph, Training, decoders, kernels, losses, networks, sketches
from dsokr.errors import InputError
from dsokr.explain import Answer, Case, explain, explain_input, paint_molecule, paint_text, write_page
from dsokr.kernels import FeatureKernel
from dsokr.outputs import ViewBatch, as_outputs
from dsokr.regressors import Forest, KernelRidge, Neural
from dsokr.rules import RULES
from implementations import KERNELS, bits, graphs, names, rankings, sparse_counts, strings, vectors
from implementations import Case as KernelCase
from real_data import real_data
from studies.data.chebi20 import load_chebi20

MORE = [
    KernelCase("several lengths", kernels.NGram((1, 3), (2.0, 0.5)).normalized(), strings),
    KernelCase("gappy, decaying", 0.7 * kernels.GappyNGram(3, gaps=2, decay=0.5), strings),
    KernelCase("normalised kemeny", kernels.Kemeny().normalized(), rankings),
    KernelCase("sum of kernels on rankings", kernels.Kemeny() + 2.0 * kernels.Hamming(), rankings),
    KernelCase("paths under wl", kernels.WeisfeilerLehman(1, base=kernels.ShortestPath()), graphs),
    KernelCase(
        "two views", kernels.Views(kernels.NSPD(1, 1), 3.0 * kernels.Linear()), lambda n: ViewBatch(graphs(n), bits(n))
    ),
    KernelCase("linear on sparse counts", kernels.Linear(), sparse_counts),
]
EXACT = [case for case in [*KERNELS, *MORE] if case.made.split(as_outputs(case.outputs(3))) is not None]
OTHERS = [case for case in KERNELS if case not in EXACT and case.name != "views"]
PLACES = {  # how many places the outputs have
    "linear": lambda y: 4,
    "kemeny": len,
    "n-gram": len,
    "gappy n-gram": len,
    "mismatch": len,
    **dict.fromkeys(
        ("vertex histogram", "shortest path", "nspd", "core", "sum of graph kernels"), lambda y: len(y.labels)
    ),
    "two views": lambda y: 1,
}


def fitted(case, rule, n=40):
    X = np.random.default_rng(0).normal(size=(n, 3))
    decoder = decoders.Candidates(rule)
    return X, DSOKR(case.made, sketches.SubSample(12), KernelRidge(), decoder=decoder, random_state=0).fit(
        X, case.outputs(n)
    )


def test_which_kernels_have_features():
    assert {"linear", "cosine", "kemeny", "hamming", "lehmer", "n-gram", "nspd", "core"} < {case.name for case in EXACT}
    assert {"gaussian", "tanimoto on bits", "product"} < {case.name for case in OTHERS}


@pytest.mark.parametrize("case", EXACT, ids=names)
def test_parts_add_up_to_the_features(case):
    ys = as_outputs(case.outputs(7))
    split = case.made.split(ys)
    whole = split.whole().parts
    dense = {}
    for i in range(7):
        for at in range(whole.indptr[i], whole.indptr[i + 1]):
            dense.setdefault(whole.ids[at], np.zeros(7))[i] = whole.values[at]
    phi = np.stack(list(dense.values()), axis=1)
    np.testing.assert_allclose(phi @ phi.T, case.made(ys, ys).numpy(), atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", EXACT, ids=names)
def test_contributions_add_up_to_the_score(case, rule):
    X, model = fitted(case, rule)
    Y = case.outputs(9)
    scores = model.scores(X[:9], Y).diagonal().numpy()
    for by in ("place", "feature"):
        found = explain(model, X[:9], Y, by=by, exact=True)
        assert all(one.exact for one in found)
        np.testing.assert_allclose([one.score for one in found], scores, rtol=1e-9)
        sums = np.array([one.contributions.sum() + one.constant for one in found])
        np.testing.assert_allclose(sums, scores, rtol=1e-9, atol=1e-12)
    if case.name in PLACES:
        places = explain(model, X[:9], Y)
        assert [len(one.places) for one in places] == [PLACES[case.name](y) for y in Y]


def test_a_feature_is_divided_equally_among_its_places():
    split = kernels.NGram(2).split(["abab"])
    rows = [split.parts.values[a:b].sum() for a, b in zip(split.parts.indptr, split.parts.indptr[1:], strict=False)]
    assert rows == [0.5, 1.0, 1.0, 0.5]
    graph = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1)))
    paths = kernels.ShortestPath().split([graph]).parts  # three pairs, in both directions
    assert np.add.reduceat(paths.values, paths.indptr[:-1]).tolist() == [2.0, 2.0, 2.0]


def test_an_atom_moves_with_its_contribution():
    """Contributions do not depend on the numbering of the atoms."""
    X, model = fitted(KernelCase("", kernels.WeisfeilerLehman(2).normalized(), graphs), "kernel")
    graph = Graph((6, 6, 8, 7), ((0, 1, 1), (1, 2, 2), (1, 3, 1)))
    turned = Graph((7, 8, 6, 6), ((2, 3, 1), (1, 2, 2), (0, 2, 1)))
    a, b = explain(model, X[:1].repeat(2, axis=0), [graph, turned])
    np.testing.assert_allclose(a.contributions, b.contributions[[3, 2, 1, 0]], rtol=1e-9)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", OTHERS, ids=names)
def test_without_features_places_are_left_out(case, rule):
    X, model = fitted(case, rule)
    Y = as_outputs(case.outputs(3))
    found = explain(model, X[:3], Y)
    for i, one in enumerate(found):
        assert not one.exact and one.constant is None
        row = Y[i : i + 1].toarray()[0] if sp.issparse(Y) else Y[i].numpy()
        assert one.places.tolist() == np.flatnonzero(row).tolist()
        for place, contribution in zip(one.places, one.contributions, strict=True):
            without = np.where(np.arange(len(row)) == place, 0, row)[None]
            without = sp.csr_array(without) if sp.issparse(Y) else without
            assert contribution == pytest.approx(one.score - model.scores(X[i : i + 1], without).item(), abs=1e-9)
    with pytest.raises(InputError, match="no explicit features"):
        explain(model, X[:3], Y, exact=True)


def test_atoms_and_letters_are_left_out_under_a_product():
    X, model = fitted(KernelCase("", kernels.VertexHistogram() * kernels.EdgeHistogram(), graphs), "kernel")
    graph = Graph((6, 6, 8), ((0, 1, 1), (1, 2, 2)))
    (one,) = explain(model, X[:1], [graph])
    smaller = [Graph((6, 8), ((0, 1, 2),)), Graph((6, 8)), Graph((6, 6), ((0, 1, 1),))]
    lost = one.score - model.scores(X[:1], smaller).numpy()[0]
    np.testing.assert_allclose(one.contributions, lost, atol=1e-9)
    X, model = fitted(KernelCase("", kernels.NGram(1) * kernels.NGram(2), strings), "kernel")
    (one,) = explain(model, X[:1], ["abc"])
    lost = one.score - model.scores(X[:1], ["bc", "ac", "ab"]).numpy()[0]
    np.testing.assert_allclose(one.contributions, lost, atol=1e-9)
    (one,) = explain(model, X[:1], ["a"])
    assert one.contributions.tolist() == [one.score]


class Labels(FeatureKernel):
    """A kernel of one's own, which does not say where its features are."""

    def features(self, ys):
        return kernels.VertexHistogram().features(ys)


@pytest.mark.parametrize(
    "kernel",
    [
        Labels(),
        kernels.Core(Labels()),
        kernels.WeisfeilerLehman(1, base=Labels()),
        Labels() + kernels.VertexHistogram(),
    ],
)
def test_a_kernel_of_ones_own_has_one_place(kernel):
    X, model = fitted(KernelCase("", kernel, graphs), "kernel")
    for one in explain(model, X[:5], graphs(5), exact=True):
        assert one.places.tolist() == [0]
        assert one.contributions.sum() + one.constant == pytest.approx(one.score, rel=1e-9)


def test_another_rule():
    X, model = fitted(KERNELS[0], "kernel")
    (one,) = explain(model, X[:1], vectors(1), rule="cosine")
    expected = model.basis_.score(model.coefficients(X[:1]), vectors(1), "cosine").item()
    assert one.score == pytest.approx(expected) and one.constant == 0


def test_bad_input_is_refused():
    X, model = fitted(KernelCase("", kernels.WeisfeilerLehman(2), graphs), "kernel")
    with pytest.raises(InputError, match="2 inputs and 3 outputs"):
        explain(model, X[:2], graphs(3))
    for wrong in (["CCO"], [[1.0, 2.0]]):
        with pytest.raises(InputError, match="Graph"):
            explain(model, X[:1], wrong)
        with pytest.raises(InputError, match="Graph"):
            explain_input(model, X[0], wrong[0])
    with pytest.raises(InputError, match="by must be 'place' or 'feature'. Got 'atom'."):
        explain(model, X[:1], graphs(1), by="atom")
    with pytest.raises(InputError, match="rule must be one of"):
        explain(model, X[:1], graphs(1), rule="best")
    with pytest.raises(InputError, match="takes one input"):
        explain_input(model, X[:2], graphs(1)[0])
    with pytest.raises(InputError, match="reference must be a row of 3"):
        explain_input(model, X[0], graphs(1)[0], reference=[0.0])


TEXTS = [
    f"{a} {b} {c}" for a in ("red", "green", "blue") for b in ("round", "long") for c in ("small", "large", "huge")
]


def texts_to_labels(regressor):
    Y = np.array([[word in text for word in ("red", "green", "round", "small")] for text in TEXTS], int)
    return DSOKR(kernels.Tanimoto(), sketches.Full(), regressor, random_state=0).fit(TEXTS, Y), Y


def test_words_of_a_text_are_left_out():
    training = Training(epochs=150, batch_size=6, learning_rate=0.01)
    model, Y = texts_to_labels(Neural(networks.WordBag(width=32, hidden=()), training=training))
    one = explain_input(model, "red long huge", Y[TEXTS.index("red long huge")])
    without = model.scores(["long huge", "red huge", "red long"], [Y[TEXTS.index("red long huge")]])[:, 0]
    np.testing.assert_allclose(one.contributions, one.score - without.numpy(), atol=1e-6)
    assert one.parts == ("red", "long", "huge") and not one.exact
    assert one.contributions.argmax() == 0  # {red} is the output
    alone = explain_input(model, "a", Y[0])
    assert alone.parts == ("a",) and alone.contributions.tolist() == [alone.score]


def test_letters_of_a_string_are_left_out():
    X = strings(30)
    model = DSOKR(kernels.NGram(1), sketches.Full(), KernelRidge(kernels.NGram((1, 2))), random_state=0).fit(X, X)
    one = explain_input(model, "abca", "abca")
    without = model.scores(["bca", "aca", "aba", "abc"], ["abca"])[:, 0]
    np.testing.assert_allclose(one.contributions, one.score - without.numpy(), atol=1e-9)


@pytest.mark.parametrize("as_rows", [np.asarray, torch.as_tensor, sp.csr_array])
def test_columns_of_a_row_are_left_out(as_rows):
    rows = np.random.default_rng(0).poisson(1.0, size=(60, 4)).astype(float)
    rows[0] = [1, 2, 0, 1]
    Y, network = (rows[:, :2] > 0).astype(int), Neural(networks.MLP((16,)), training=Training(epochs=2))
    regressor = network if as_rows is torch.as_tensor else KernelRidge(regularization=1e-3)
    model = DSOKR(kernels.Linear(), sketches.Full(), regressor, random_state=0).fit(as_rows(rows), Y)
    X = as_rows(rows)
    one = explain_input(model, X[:1] if sp.issparse(X) else X[0], Y[0])
    places = [0, 1, 3] if sp.issparse(X) else [0, 1, 2, 3]
    assert one.places.tolist() == places
    for place, contribution in zip(places, one.contributions, strict=True):
        changed = rows[:1].copy()
        changed[0, place] = np.nan if as_rows is np.asarray else 0
        assert contribution == pytest.approx(one.score - model.scores(as_rows(changed), Y[:1]).item(), abs=1e-6)


def test_a_single_column_can_be_left_out():
    X = np.linspace(-1, 1, 40)[:, None]
    Y = np.stack([X[:, 0] > 0, X[:, 0] <= 0], axis=1).astype(int)
    model = DSOKR(kernels.Linear(), sketches.Full(), KernelRidge(), random_state=0).fit(X, Y)
    one = explain_input(model, X[-1], Y[-1], reference=[-1.0])
    lost = one.score - model.scores([[-1.0]], Y[-1:]).item()
    assert one.contributions.tolist() == pytest.approx([lost])


def test_views_are_not_taken_apart():
    case = next(case for case in KERNELS if case.name == "views")
    X, model = fitted(case, "kernel")
    with pytest.raises(InputError, match="Nothing can be left out of outputs of type tuple"):
        explain(model, X[:1], case.outputs(1))


def test_a_reference_takes_the_place_of_a_column():
    X = np.random.default_rng(0).normal(size=(80, 3))
    Y = np.stack([X[:, 0] > 0, X[:, 0] <= 0], axis=1).astype(int)
    model = DSOKR(kernels.Linear(), sketches.Full(), Forest(50), random_state=0).fit(X, Y)
    x = np.array([2.0, 0.1, 0.1])
    one = explain_input(model, x, [1, 0], reference=[-2.0, 0.0, 0.0])
    assert one.contributions.argmax() == 0 and one.contributions[0] > 5 * abs(one.contributions[1:]).max()


def test_a_data_frame_of_one_row():
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"colour": ["red", "blue"] * 30, "size": np.arange(60) % 7})
    Y = np.stack([X["colour"] == "red", X["colour"] == "blue"], axis=1).astype(int)
    model = DSOKR(kernels.Linear(), sketches.Full(), Forest(30), random_state=0).fit(X, Y)
    one = explain_input(model, X.iloc[[0]], [1, 0])
    assert one.contributions.argmax() == 0 and len(one.places) == 2


def test_smiles_as_inputs_are_refused():
    pytest.importorskip("rdkit")
    smiles = ["CCO", "CCN", "CCC", "c1ccccc1", "CC(=O)O", "CCCl"] * 3
    Y = np.array([["O" in text, "N" in text] for text in smiles], int)
    model = DSOKR(kernels.Tanimoto(), sketches.Full(), Forest(10), random_state=0).fit(smiles, Y)
    with pytest.raises(InputError, match="SMILES cannot be explained"):
        explain_input(model, "CCO", Y[0])


def test_a_page(tmp_path):
    pytest.importorskip("rdkit")
    X, model = fitted(KernelCase("", kernels.WeisfeilerLehman(2).normalized(), graphs), "kernel")
    found = explain(model, X[:3], graphs(3))
    answers = [
        Answer(paint_molecule(g, one.contributions), "<i>", one) for g, one in zip(graphs(3), found, strict=True)
    ]
    write_page(tmp_path / "page.html", [Case(paint_text(["<b>", "c"], np.array([1.0, -1.0])), answers)])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 and "&lt;b&gt;" in page and "&lt;i&gt;" in page and "<b>" not in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://www.rdkit.org", "")
    with pytest.raises(InputError, match="Every atom needs a color"):
        paint_molecule(Graph((6, 6)), np.ones(3))
    with pytest.raises(InputError, match="Every part needs a contribution"):
        paint_text(["a"], np.ones(2))


def test_atoms_of_a_drawing_are_those_of_the_graph():
    """Node i of chem.graph(smiles) is atom i of the SMILES, which is how drawings number atoms."""
    chem = pytest.importorskip("dsokr.chem")
    for smiles in ("c1cc(O)ccc1[N+](=O)[O-]", "C[C@H](N)C(=O)O", "OC(=O)c1ccccc1OC(C)=O"):
        mol = chem.Chem.MolFromSmiles(smiles)
        assert chem.graph(smiles).labels == tuple(atom.GetAtomicNum() for atom in mol.GetAtoms())


def test_fingerprint_columns_are_shared_among_atoms():
    chem = pytest.importorskip("dsokr.chem")
    row = chem.fingerprints(["CC(=O)O"])
    shares = chem.share_among_atoms("CC(=O)O", row.indices, np.ones(row.nnz))
    assert len(shares) == 4 and shares.sum() == pytest.approx(row.nnz)
    found = (chem.environments(["CC(=O)O"], radius=3)[0] >= 0).sum(axis=1)  # environments around each atom
    np.testing.assert_allclose(chem.share_among_atoms("CC(=O)O", row.indices, row.data), found)


def delete_words(text, gone):
    return " ".join(word for at, word in enumerate(text.split()) if at not in set(gone))


@pytest.mark.slow  # half a minute
def test_words_with_large_attributions_matter():
    """Without the three words of largest attribution the true molecule ranks far worse than without three others.

    5,000 texts of ChEBI-20, 200 of its test texts, all 33,010 candidates. Random words are drawn ten times a text.
    """
    data = load_chebi20(real_data("chebi20/candidates_all.tsv.gz"))
    molecules, texts, rows = data.molecules.morgan, data.train.texts[:5000], data.train.rows[:5000]
    regressor = Neural(networks.WordBag(rate=3.0), losses.Ranked(), Training(epochs=30))
    decoder = decoders.Candidates("cosine", outputs=molecules)
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(500), regressor, decoder=decoder, random_state=0)
    model.fit(texts, molecules[rows])

    rng = np.random.default_rng(0)
    some = rng.permutation(len(data.test.texts))[:200]
    texts, truth = [data.test.texts[i] for i in some], torch.from_numpy(data.test.rows[some])

    def worsening(words):  # of the rank of the true molecules
        shorter = [delete_words(text, gone) for text, gone in zip(texts, words, strict=True)]
        return rank_truth(shorter) - rank_truth(texts)

    def rank_truth(texts):
        return model.known_.ranks(model.coefficients(texts), truth, "cosine").numpy()

    found = [explain_input(model, text, molecules[[row]]) for text, row in zip(texts, truth.tolist(), strict=True)]
    largest = worsening([one.contributions.argsort()[-3:] for one in found])
    drawn = [[rng.choice(len(text.split()), 3, replace=False) for text in texts] for _ in range(10)]
    random = np.mean([worsening(words) for words in drawn], axis=0)
    print(f"median rank {np.median(rank_truth(texts)):.0f}")
    print(f"worse by (medians) {np.median(largest):.1f}, at random {np.median(random):.1f}")
    print(f"worse by (means) {largest.mean():.1f}, at random {random.mean():.1f}")
    assert np.median(largest) >= 5 * max(np.median(random), 1)
