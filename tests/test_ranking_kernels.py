import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import kendalltau

from dsokr.errors import InputError, KernelError
from dsokr.graphs import Graph
from dsokr.kernels.base import View, Views
from dsokr.kernels.graphs import WeisfeilerLehman
from dsokr.kernels.rankings import Hamming, Kemeny, Lehmer
from dsokr.kernels.sets import Tanimoto
from dsokr.kernels.strings import NGram
from dsokr.kernels.vectors import Linear
from dsokr.testing import check_kernel

KERNELS = [Kemeny(), Hamming(), Lehmer(), Kemeny().normalized()]


def random_rankings(count: int, items: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permuted(np.tile(np.arange(items), (count, 1)), axis=1)


def squared_distances(kernel, a, b) -> np.ndarray:
    return (kernel.diag(a)[:, None] + kernel.diag(b) - 2 * kernel(a, b)).numpy()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_conforms(kernel):
    check_kernel(kernel, random_rankings(25))


def test_kemeny_is_four_times_the_kendall_distance():
    a, b = random_rankings(12), random_rankings(9, seed=1)
    pairs = a.shape[1] * (a.shape[1] - 1) / 2
    tau = np.array([[kendalltau(r, s).statistic for s in b] for r in a])
    np.testing.assert_allclose(squared_distances(Kemeny(), a, b), 4 * (1 - tau) / 2 * pairs, atol=1e-10)


def test_kemeny_with_ties_and_unranked_items_equals_its_definition():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-1, 4, size=(12, 5)), rng.integers(-1, 4, size=(9, 5))

    def signs(row: np.ndarray) -> list[float]:
        pairs = [(row[i], row[j]) for i in range(5) for j in range(i + 1, 5)]
        return [0.0 if min(pair) < 0 else float(np.sign(pair[1] - pair[0])) for pair in pairs]

    expected = np.array([signs(r) for r in a]) @ np.array([signs(r) for r in b]).T
    np.testing.assert_array_equal(Kemeny()(a, b).numpy(), expected)


def test_hamming_is_twice_the_hamming_loss():
    a, b = random_rankings(12), random_rankings(9, seed=1)
    differing = (a[:, None] != b[None]).sum(axis=-1)
    np.testing.assert_array_equal(squared_distances(Hamming(), a, b), 2 * differing)


def test_lehmer_is_the_product_of_codes():
    a, b = random_rankings(12), random_rankings(9, seed=1)

    def code(row: np.ndarray) -> list[int]:
        return [sum(row[j] > row[i] for j in range(i)) for i in range(len(row))]

    expected = np.array([code(r) for r in a]) @ np.array([code(r) for r in b]).T
    np.testing.assert_array_equal(Lehmer()(a, b).numpy(), expected)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_positions_may_start_at_one_and_come_in_any_form(kernel):
    a, b = random_rankings(5), random_rankings(4, seed=1)
    expected = kernel(a, b)
    assert torch.equal(kernel(a + 1, b), expected)
    assert torch.equal(kernel(torch.from_numpy(a), torch.from_numpy(b).double()), expected)
    assert torch.equal(kernel([tuple(row) for row in a.tolist()], b.tolist()), expected)


@pytest.mark.parametrize("kernel", [Hamming(), Lehmer()], ids=str)
@pytest.mark.parametrize("wrong", [(0, 0, 2), (0, 1, 3), (0, -1, 1), (2, 3, 4), (0, 0.5, 2)], ids=str)
def test_ties_and_partial_rankings_are_refused_with_their_index(kernel, wrong):
    with pytest.raises(InputError, match="at index 1") as caught:
        kernel.diag([(0, 1, 2), wrong])
    assert str(list(wrong)) in str(caught.value)


def test_rankings_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="same number of items"):
        Kemeny().diag([(0, 1), (0, 1, 2)])
    with pytest.raises(InputError, match="one length"):
        Kemeny()([(0, 1)], [(0, 1, 2)])
    with pytest.raises(InputError, match="dense"):
        Hamming().diag(sp.csr_array(np.eye(3)))


def test_lehmer_cannot_be_normalised_at_the_identity():
    with pytest.raises(KernelError, match="index 1"):
        Lehmer().normalized().diag([(1, 0), (0, 1)])


def test_combinations_of_rankings():
    a, b = random_rankings(7), random_rankings(9, seed=1)
    weights = torch.randn(3, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for kernel in KERNELS:
        torch.testing.assert_close(kernel.against(b, weights)(a), kernel(a, b) @ weights.T)


MOLECULES = [
    (Graph((6, 8), ((0, 1, 1),)), (1, 1, 0), "CO"),
    (Graph((6, 8), ((0, 1, 2),)), (1, 0, 1), "C=O"),
    (Graph((6, 7), ((0, 1, 3),)), (0, 1, 1), "C#N"),
]


def test_views_add_up_kernels_on_each():
    graphs, bits, texts = zip(*MOLECULES, strict=True)
    wl, tanimoto, grams = WeisfeilerLehman(2), Tanimoto(), NGram(1)
    kernel = Views(0.5 * wl.normalized(), 0.5 * tanimoto, grams)
    expected = 0.5 * wl.normalized()(graphs, graphs) + 0.5 * tanimoto(bits, bits) + grams(texts, texts)
    torch.testing.assert_close(kernel(MOLECULES, MOLECULES), expected)
    check_kernel(kernel, MOLECULES)
    check_kernel(View(0, wl) * View(1, Linear()), MOLECULES)


def test_views_that_are_missing_are_refused_with_their_index():
    kernel = Views(WeisfeilerLehman(1), Tanimoto())
    with pytest.raises(InputError, match="at least 2 views. Got 1 views at index 1"):
        kernel.diag([MOLECULES[0], (Graph((1,)),)])
    with pytest.raises(InputError, match="Got str at index 0"):
        kernel.diag(["CCO"])
    with pytest.raises(InputError, match="Got none"):
        Views()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("none", [[], np.zeros((0, 6)), torch.zeros(0, 6)], ids=["list", "numpy", "torch"])
def test_no_rankings_have_no_values(kernel, none):
    some = random_rankings(3)
    some[:, [0, 1]] = some[:, [1, 0]]
    weights = torch.ones(2, 3, dtype=torch.float64)
    assert kernel(none, some).shape == (0, 3) and kernel(some, none).shape == (3, 0)
    assert kernel.diag(none).shape == (0,) and kernel.against(some, weights)(none).shape == (0, 2)
