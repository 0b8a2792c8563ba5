import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import kendalltau

from dsokr.errors import InputError, KernelError
from dsokr.kernels.rankings import Hamming, Kemeny, Lehmer

KERNELS = [Kemeny(), Hamming(), Lehmer(), Kemeny().normalized()]


def random_rankings(count: int, items: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permuted(np.tile(np.arange(items), (count, 1)), axis=1)


def squared_distances(kernel, a, b) -> np.ndarray:
    return (kernel.diag(a)[:, None] + kernel.diag(b) - 2 * kernel(a, b)).numpy()


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


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_no_rankings_have_no_values(kernel):
    none, some = torch.zeros(0, 6, dtype=torch.float64), np.array([[1, 0, 2, 3, 4, 5]])
    assert kernel(none, some).shape == (0, 1) and kernel(some, none).shape == (1, 0) and kernel.diag(none).shape == (0,)
