"""The door: whatever users give becomes canonical, and comes back as it was given."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr import DSOKR, Graph, chem, kernels
from dsokr.decoders import Candidates
from dsokr.errors import InputError
from dsokr.explain import explain
from dsokr.graphs import GraphBatch
from dsokr.outputs import ViewBatch, canonical, concatenate, count, distinct, keys, positions, take
from dsokr.regressors import KernelRidge
from implementations import smiles as make_smiles

BITS = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1]])
GRAPHS = [Graph((6, 8), ((0, 1, 2),)), Graph((7,)), Graph((6, 8), ((0, 1, 2),))]
ROWS = {
    "integers": BITS,
    "booleans": BITS.astype(bool),
    "single precision": BITS.astype(np.float32),
    "big-endian": BITS.astype(">f8"),
    "backwards": BITS[::-1, ::-1],
    "columns first": np.asfortranarray(BITS),
    "read-only": np.broadcast_to(BITS[:1], (3, 3)),
    "numbers as objects": BITS.astype(object),
    "numbers": np.array([1.5, 2.5, 1.5]),
    "images": np.arange(12.0).reshape(3, 2, 2),
    "tensor": torch.from_numpy(BITS),
    "half-precision tensor": torch.from_numpy(BITS).half(),
    "lists": BITS.tolist(),
    "tuples": [tuple(row) for row in BITS.tolist()],
    "list of arrays": list(BITS),
    "list of tensors": list(torch.from_numpy(BITS)),
    "list of numbers": [3, 1, 3],
    "csr matrix": sp.csr_matrix(BITS),
    "csc array": sp.csc_array(BITS),
    "coo with repeated entries": sp.coo_array((np.ones(3), ([0, 0, 1], [1, 1, 2])), shape=(3, 3)),
}
OBJECTS = {
    "strings": ["b", "a", "b"],
    "array of strings": np.array(["b", "aa", "b"]),
    "words that read like numbers": np.array(["1", "nan", "1"], dtype=object),
    "array of objects": np.array(["b", "aa", "b"], dtype=object),
    "graphs": GRAPHS,
    "views": [(graph, row) for graph, row in zip(GRAPHS, BITS.tolist(), strict=True)],
    "ragged": [[1, 2], [1], [1, 2]],
}


def dense(ys) -> np.ndarray:
    if sp.issparse(ys):
        return ys.toarray()
    return np.stack([np.asarray(y) for y in ys]) if isinstance(ys, list) else np.asarray(ys)


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_numbers(name):
    given = ROWS[name]
    outputs, form = canonical(given)
    assert outputs.dtype in (torch.float64, np.float64) and outputs.shape[0] == 3 and len(outputs.shape) == 2
    np.testing.assert_array_equal(dense(outputs).reshape(dense(given).shape), dense(given))
    restored = form.restore(take(outputs, torch.tensor([2, 0])))
    np.testing.assert_array_equal(dense(restored), dense(given)[[2, 0]])
    if isinstance(given, list):
        assert type(restored[0]) is type(given[0])
    elif not sp.issparse(given):
        assert type(restored) is type(given)
        assert restored.dtype == given.dtype or name in ("big-endian", "numbers as objects")
    else:
        assert isinstance(restored, sp.spmatrix) == isinstance(given, sp.spmatrix) and restored.dtype == given.dtype


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name):
    given = OBJECTS[name]
    outputs, form = canonical(given)
    assert isinstance(outputs, list) and outputs == list(given)
    restored = form.restore(take(outputs, [2, 1]))
    assert type(restored) is type(given) and list(restored) == [given[2], given[1]]
    assert distinct(outputs).tolist() == [0, 1]


def test_batches_stay_batches():
    batch = GraphBatch.of(GRAPHS)
    outputs, form = canonical(batch)
    assert isinstance(form.restore(take(outputs, [0])), GraphBatch) and distinct(outputs).tolist() == [0, 1]
    views = ViewBatch(BITS, GRAPHS, ["x", "y", "x"])
    assert distinct(views).tolist() == [0, 1] and len(take(views, torch.tensor([0, 2]))) == 2
    with pytest.raises(InputError, match="same number of outputs. Got 3, 2"):
        ViewBatch(BITS, ["x", "y"])
    assert len(views[:0]) == 0 and list(views[:0]) == [] and len(views[:0][:1]) == 0
    with pytest.raises(InputError, match="Got no views"):
        ViewBatch()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "Y is empty"),
        (np.empty((0, 3)), "Y is empty"),
        (5.0, "must be a collection of outputs. Got 5.0"),
        (np.array(5.0), r"must be a collection of outputs. Got array\(5"),
        (torch.tensor(5.0), r"must be a collection of outputs. Got tensor\(5"),
        (np.array([1.0, np.nan]), "NaN or inf in row 1"),
        ([[1.0, 2.0], [None, 1.0]], "NaN or inf in row 1"),
        ([1.0, None], "NaN or inf in row 1"),
        (np.array([[1.0], [None]], dtype=object), "NaN or inf in row 1"),
        (torch.tensor([[0.0], [torch.inf]]), "NaN or inf in row 1"),
        (sp.csr_array(np.array([[0.0], [0.0], [np.nan]])), "NaN or inf in row 2"),
        ("CCO", "must be a collection of outputs. Got 'CCO'"),
        ([2**53 + 1, 2**53], "exact in double precision"),
        (np.array([1j]), "Complex data not supported"),
        ([1j, 2.0], "Complex data not supported"),
        (torch.ones(3, 2, dtype=torch.complex64), "Complex data not supported"),
        (sp.csr_array(np.eye(2) * 1j), "Complex data not supported"),
        ([torch.ones(2, dtype=torch.bfloat16)] * 3, "rows of type torch.bfloat16: stack them"),
    ],
)
def test_refuses(given, message):
    with pytest.raises(InputError, match=message):
        canonical(given)


def test_equal_numbers_have_equal_keys_in_every_form():
    expected = list(keys(canonical(BITS)[0]))
    for given in (BITS.astype(np.float32), BITS.tolist(), sp.csr_array(BITS), torch.from_numpy(BITS)):
        assert list(keys(canonical(given)[0])) == expected
    assert len(set(keys(torch.tensor([[0.0], [-0.0], [1e-300]], dtype=torch.float64)))) == 2
    assert positions(canonical(sp.csr_array(BITS[1:]))[0], canonical(BITS)[0]).tolist() == [1, 0]
    with pytest.raises(InputError, match="index 1 is not among the candidates"):
        positions(["a", "c"], ["a", "b"])


@pytest.mark.parametrize("given", [BITS, sp.csr_array(BITS), GRAPHS, GraphBatch.of(GRAPHS), ViewBatch(BITS, GRAPHS)])
def test_concatenates(given):
    outputs, _ = canonical(given)
    both = concatenate(outputs, take(outputs, slice(1)))
    assert count(both) == 4 and list(keys(both)) == [*keys(outputs), *keys(take(outputs, slice(1)))]


def test_masks_choose_from_lists_as_from_arrays():
    mask = np.array([True, False, False, True])
    for ys in (["a", "b", "c", "d"], np.array(list("abcd"))):
        assert list(take(ys, mask)) == list(take(ys, torch.from_numpy(mask))) == ["a", "d"]
    with pytest.raises(InputError, match="one value for each of the 4 outputs. Got 2"):
        take(["a", "b", "c", "d"], mask[:2])


@pytest.mark.parametrize(
    ("kernel", "form"),
    [(kernels.Tanimoto(), "fingerprints"), (kernels.WeisfeilerLehman(2).normalized(), "graphs")],
)
def test_smiles_are_molecules_for_kernels_on_molecules(tmp_path, kernel, form):
    smiles, convert = make_smiles(40), getattr(chem, form)
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = DSOKR(kernel, regressor=KernelRidge(kernels.Gaussian(1.0)), random_state=0).fit(X, smiles)
    assert model.kernel == kernel and model.basis_.kernel == kernels.OnMolecules(kernel, form)
    plain = DSOKR(kernel, regressor=KernelRidge(kernels.Gaussian(1.0)), decoder=Candidates(), random_state=0)
    plain.fit(X, convert(smiles))
    assert set(model.predict(X)) <= set(smiles)
    others = ["CCO", "OCC", "c1ccccc1", "CN"]
    torch.testing.assert_close(model.scores(X, others), plain.scores(X, convert(others)))
    ranked = model.rank(X, others, k=4)
    ethanol = ranked.scores[(ranked.indices == 0) | (ranked.indices == 1)].reshape(-1, 2)
    torch.testing.assert_close(ethanol[:, 0], ethanol[:, 1])  # CCO is OCC
    given, converted = (explain(one, X[:2], ys) for one, ys in ((model, others[:2]), (plain, convert(others[:2]))))
    assert [one.score for one in given] == pytest.approx([one.score for one in converted])
    np.testing.assert_allclose(given[0].contributions, converted[0].contributions, atol=1e-12)
    model.save(tmp_path / "m")
    assert DSOKR.load(tmp_path / "m").predict(X) == model.predict(X)
    with pytest.raises(InputError, match="Could not parse 'C1CC' at index 1 as a molecule"):
        model.rank(X, ["CC", "C1CC"])


def test_texts_stay_texts_where_the_kernel_takes_them_or_they_are_no_molecules():
    X = np.arange(6.0)[:, None]
    model = DSOKR(kernels.NGram(2), regressor=KernelRidge(kernels.Gaussian(1.0))).fit(X, ["CCO", "CCN"] * 3)
    assert model.basis_.kernel == kernels.NGram(2)
    with pytest.raises(InputError, match="A kernel on vectors was given outputs of type str"):
        DSOKR(kernels.Tanimoto()).fit(X, ["hello", "world"] * 3)
    with pytest.raises(InputError, match="A kernel on vectors was given outputs of type str"):
        DSOKR(kernels.Gaussian(1.0)).fit(X, ["CCO", "CCN"] * 3)
    with pytest.raises(InputError, match="Could not parse 'hello' at index 1 as a molecule"):
        DSOKR(kernels.Tanimoto()).fit(X, ["CCO", "hello"] * 3)
