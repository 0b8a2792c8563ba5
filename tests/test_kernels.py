import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.metrics import pairwise

from dsokr import kernels
from dsokr.errors import InputError, KernelError
from dsokr.graphs import Graph
from dsokr.outputs import ViewBatch, take
from dsokr.testing import check_kernel
from implementations import KERNELS, Case, bits, counts, names, vectors

PEERS = [
    (kernels.Linear(), pairwise.linear_kernel),
    (kernels.Cosine(), pairwise.cosine_similarity),
    (kernels.Gaussian(0.3), lambda a, b: pairwise.rbf_kernel(a, b, gamma=0.3)),
    (kernels.Laplacian(0.3), lambda a, b: pairwise.laplacian_kernel(a, b, gamma=0.3)),
    (kernels.Polynomial(3, 0.5), lambda a, b: pairwise.polynomial_kernel(a, b, degree=3, gamma=1.0, coef0=0.5)),
]


@pytest.mark.parametrize("case", KERNELS, ids=names)
def test_conforms(case: Case):
    check_kernel(case.made, case.outputs(30))


@pytest.mark.parametrize(("kernel", "peer"), PEERS, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize(
    "form", [np.asarray, torch.as_tensor, np.ndarray.tolist, sp.csr_array], ids=["numpy", "torch", "list", "sparse"]
)
def test_agrees_with_scikit_learn(kernel, peer, form):
    a, b = vectors(25).numpy(), vectors(13).numpy()
    np.testing.assert_allclose(kernel(form(a), form(b)).numpy(), peer(a, b), rtol=1e-10, atol=1e-10)


def test_tanimoto_of_bits_agrees_with_scikit_learn():
    a, b = bits(25), bits(13)
    expected = 1 - pairwise.pairwise_distances(a.astype(bool), b.astype(bool), metric="jaccard")
    np.testing.assert_allclose(kernels.Tanimoto()(a, b).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "unit"),
    [(np.asarray, 1), (np.asarray, 0.3), (sp.csr_array, 1), (sp.csc_matrix, 1)],
    ids=["dense", "real", "csr", "csc"],
)
def test_tanimoto_of_counts_is_minimum_over_maximum(form, unit):
    a, b = unit * counts(25), unit * counts(13)
    lower, upper = (f(a[:, None], b[None]).sum(-1) for f in (np.minimum, np.maximum))
    np.testing.assert_allclose(kernels.Tanimoto()(form(a), form(b)).numpy(), lower / upper, atol=1e-12)


def test_tanimoto_of_empty_sets():
    k = kernels.Tanimoto()([[0, 0], [1, 0]], [[0, 0], [1, 1]])
    assert k.tolist() == [[1.0, 0.0], [0.0, 0.5]]


@pytest.mark.parametrize("case", KERNELS, ids=names)
def test_combinations_of_anchors(case: Case, generator):
    """Kernel.against(anchors, weights) is the weighted sum of kernel values, however a kernel computes it."""
    ys, anchors = case.outputs(20), case.outputs(9)
    weights = torch.randn(3, 9, generator=generator, dtype=torch.float64)
    expected = case.made(ys, anchors) @ weights.T
    torch.testing.assert_close(case.made.against(anchors, weights)(ys), expected, rtol=1e-10, atol=1e-10)


def test_combinations_of_many_anchors_go_block_by_block(monkeypatch, generator):
    monkeypatch.setattr("dsokr.kernels.base.ANCHOR_BLOCK", 4)
    ys, anchors, weights = vectors(5), vectors(11), torch.randn(2, 11, generator=generator, dtype=torch.float64)
    kernel = kernels.Gaussian(0.2)
    torch.testing.assert_close(kernel.against(anchors, weights)(ys), kernel(ys, anchors) @ weights.T)


@pytest.mark.parametrize("case", KERNELS, ids=names)
def test_paired_is_the_diagonal_of_the_gram_matrix(case: Case):
    a = case.outputs(70)
    b = take(a, torch.arange(69, -1, -1))
    torch.testing.assert_close(case.made.paired(a, b), case.made(a, b).diagonal())


def test_algebra():
    k1, k2, y = kernels.Linear(), kernels.Gaussian(0.5), vectors(6)
    torch.testing.assert_close((k1 + k2)(y, y), k1(y, y) + k2(y, y))
    torch.testing.assert_close((k1 * k2)(y, y), k1(y, y) * k2(y, y))
    torch.testing.assert_close((0.3 * k1)(y, y), 0.3 * k1(y, y))
    assert k1 + k2 + k1 == kernels.Sum((k1, k2, k1))
    assert hash(k1 * 2.0) == hash(2.0 * k1)
    torch.testing.assert_close(k1.normalized()(y, y), kernels.Cosine()(y, y))


def test_normalisation_names_the_output_it_fails_on():
    with pytest.raises(KernelError, match=r"Linear\(\) cannot be normalised at index 2.*Got 0"):
        kernels.Linear().normalized()([[1.0], [2.0], [0.0]], [[1.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kernels.Gaussian(0.0), "gamma must be positive"),
        (lambda: kernels.Laplacian(-1.0), "gamma must be positive"),
        (lambda: kernels.Polynomial(0), "degree must be an integer of at least 1"),
        (lambda: kernels.Polynomial(2, -1.0), "offset must be at least 0"),
        (lambda: -1.0 * kernels.Linear(), "factor must be positive"),
        (lambda: kernels.Linear()([[1.0, 2.0]], [[1.0]]), "vectors of one length"),
        (lambda: kernels.Linear()(["a"], ["b"]), "outputs of type str"),
        (lambda: kernels.Tanimoto()([[-1.0]], [[1.0]]), "must not be negative"),
        (lambda: kernels.Tanimoto()(sp.csr_array([[0.5]]), sp.csr_array([[1.5]])), "integer counts"),
        (lambda: kernels.Linear()([], [[1.0]]), "empty"),
        (lambda: kernels.Linear().paired([[1.0]], [[1.0], [2.0]]), "same number of outputs. Got 1 and 2"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(InputError, match=message):
        make()


class Stored(kernels.Kernel):
    """A kernel of a user's own that hands out its own memory."""

    gram = torch.eye(4, dtype=torch.float64) * 4

    def __call__(self, a, b):
        return self.gram

    def diag(self, a):
        return self.gram.diagonal()


def test_combining_kernels_never_writes_into_what_a_kernel_returned():
    kernel, ys = Stored(), [0, 1, 2, 3]
    (kernel + kernel)(ys, ys)
    kernel.normalized()(ys, ys)
    (kernel * kernel)(ys, ys)
    assert torch.equal(Stored.gram, torch.eye(4, dtype=torch.float64) * 4)


def test_gaussian_far_from_the_origin():
    """Distances do not drown in rounding when all outputs are far away."""
    ys = vectors(20)
    expected = kernels.Gaussian(0.5)(ys, ys)
    torch.testing.assert_close(kernels.Gaussian(0.5)(ys + 1e6, ys + 1e6), expected, rtol=1e-8, atol=1e-8)


def test_kernels_leave_their_arguments_alone():
    for case in KERNELS[:12]:
        ys = case.outputs(9)
        before = ys.toarray().copy() if sp.issparse(ys) else np.asarray(ys).copy()
        case.made(ys, ys), case.made.diag(ys), case.made.against(ys)(ys)
        np.testing.assert_array_equal(ys.toarray() if sp.issparse(ys) else np.asarray(ys), before)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_gaussian_with_outliers(form):
    """A few outputs far from all others, two of them close to each other, cost the rest no precision."""
    ys = 10 * vectors(300).numpy()
    ys[[0, 50, 60]] = 1e3
    ys[60, 0] += 0.5
    exact = np.exp(-0.3 * ((ys[:, None] - ys) ** 2).sum(-1))
    np.testing.assert_allclose(kernels.Gaussian(0.3)(form(ys), form(ys)).numpy(), exact, atol=1e-9)


@pytest.mark.parametrize("width", [1, 7, 300, 5000])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_gaussian_of_equal_outputs_is_one_and_values_are_symmetric(form, width):
    ys = form(np.random.default_rng(0).normal(size=(50, width)))
    K = kernels.Gaussian(1 / width)(ys, ys)
    assert (K.diagonal() == 1).all()
    torch.testing.assert_close(K, K.T, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "kernel", [kernels.Tanimoto(), kernels.Linear(), kernels.Gaussian(0.3), kernels.Laplacian(0.3)], ids=str
)
def test_entries_of_sparse_rows_add_up(kernel):
    """A column named twice in a row counts twice, and the caller's matrix keeps its entries."""
    a = sp.csr_matrix((np.ones(5), [0, 0, 2, 3, 1], [0, 3, 5]), shape=(2, 4))
    q = sp.csr_matrix([[1.0, 0, 0, 1]])
    torch.testing.assert_close(kernel(a, q), kernel(a.toarray(), q.toarray()))
    torch.testing.assert_close(kernel(q, a), kernel(q.toarray(), a.toarray()))
    torch.testing.assert_close(kernel.diag(a), kernel.diag(a.toarray()))
    assert a.nnz == 5


@pytest.mark.parametrize("kernel", [kernel for kernel, _ in PEERS] + [kernels.Tanimoto()], ids=str)
def test_arrays_may_lie_backwards_in_memory(kernel):
    ys = np.abs(vectors(9).numpy())
    for turned in (ys[::-1], ys[:, ::-1], ys[:1][::-1], ys.astype(">f8"), np.asfortranarray(ys)):
        torch.testing.assert_close(kernel(turned, turned), kernel(turned.tolist(), turned.tolist()))


@pytest.mark.parametrize("kernel", [kernel for kernel, _ in PEERS] + [kernels.Tanimoto()], ids=str)
@pytest.mark.parametrize("none", [vectors(0), sp.csr_array((0, 4))], ids=["dense", "sparse"])
def test_no_outputs_have_no_values(kernel, none):
    ys = vectors(3).abs().ceil()
    weights = torch.ones(2, 3, dtype=torch.float64)
    assert kernel(none, ys).shape == (0, 3) and kernel(ys, none).shape == (3, 0) and kernel(none, none).shape == (0, 0)
    assert kernel.diag(none).shape == (0,) and kernel.against(ys, weights)(none).shape == (0, 2)


@pytest.mark.parametrize("kernel", [kernel for kernel, _ in PEERS] + [kernels.Tanimoto()], ids=str)
def test_dense_and_sparse_outputs_may_meet(kernel, generator):
    a, b = counts(8), counts(5)
    weights = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    expected = kernel(a, b)
    for left, right in ((sp.csr_array(a), b), (a, sp.csr_array(b)), (sp.csr_array(a), sp.csr_array(b))):
        torch.testing.assert_close(kernel(left, right), expected)
        torch.testing.assert_close(kernel.against(right, weights)(left), expected @ weights.T)


def test_tanimoto_of_sparse_bits_with_sparse_counts():
    a, b = counts(8), bits(5)
    torch.testing.assert_close(kernels.Tanimoto()(sp.csr_array(a), sp.csr_array(b)), kernels.Tanimoto()(a, b))
    torch.testing.assert_close(kernels.Tanimoto()(sp.csr_array(b), sp.csr_array(a)), kernels.Tanimoto()(b, a))


MOLECULES = [
    (Graph((6, 8), ((0, 1, 1),)), (1, 1, 0), "CO"),
    (Graph((6, 8), ((0, 1, 2),)), (1, 0, 1), "C=O"),
    (Graph((6, 7), ((0, 1, 3),)), (0, 1, 1), "C#N"),
]


def test_views_add_up_kernels_on_each():
    graphs, fingerprints, texts = zip(*MOLECULES, strict=True)
    wl, tanimoto, grams = kernels.WeisfeilerLehman(2), kernels.Tanimoto(), kernels.NGram(1)
    kernel = kernels.Views(0.5 * wl.normalized(), 0.5 * tanimoto, grams)
    expected = 0.5 * wl.normalized()(graphs, graphs) + 0.5 * tanimoto(fingerprints, fingerprints) + grams(texts, texts)
    batch = ViewBatch(graphs, fingerprints, texts)
    torch.testing.assert_close(kernel(MOLECULES, MOLECULES), expected)
    torch.testing.assert_close(kernel(batch, MOLECULES), expected)
    torch.testing.assert_close(kernel.against(batch)(batch), expected)
    check_kernel(kernels.View(0, wl) * kernels.View(1, kernels.Linear()), MOLECULES)


def test_views_of_a_matrix_are_its_columns():
    ys = vectors(7)
    kernel = kernels.View(1, kernels.Gaussian(0.3)) * kernels.View(3, kernels.Polynomial(2))
    expected = kernels.Gaussian(0.3)(ys[:, 1:2], ys[:, 1:2]) * kernels.Polynomial(2)(ys[:, 3:], ys[:, 3:])
    torch.testing.assert_close(kernel(ys, ys), expected)
    torch.testing.assert_close(kernel([tuple(row) for row in ys.tolist()], ys), expected)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([MOLECULES[0], (Graph((1,)),)], "at least 2 views. Got 1 views at index 1"),
        (["CCO"], "Got str at index 0"),
        (ViewBatch([Graph((1,))]), "at least 2 views. Got 1 views at index 0"),
    ],
)
def test_missing_views_are_refused_with_their_index(outputs, message):
    with pytest.raises(InputError, match=message):
        kernels.Views(kernels.WeisfeilerLehman(1), kernels.Tanimoto()).diag(outputs)
    with pytest.raises(InputError, match="Got none"):
        kernels.Views()
