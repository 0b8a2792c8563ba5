"""Metrics against their definitions and against peers. The graph edit distance has a file of its own."""

from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import kendalltau
from sklearn.metrics import f1_score

from dsokr import metrics
from dsokr.errors import InputError
from dsokr.metrics import char_error, exact_match, f1, kendall_tau, levenshtein, ranks, retrieval, word_accuracy

CLOSE = {"rel": 1e-12}


def rank_by_every_order(scores: torch.Tensor, truth: int) -> list[int]:
    """The ranks of the true candidate over all ways to break ties, each as likely as any other."""
    orders = permutations(range(len(scores)))
    sorted_orders = [order for order in orders if (scores[list(order)].diff() <= 0).all()]
    return [order.index(truth) + 1 for order in sorted_orders]


@pytest.mark.parametrize("seed", range(5))
def test_ties_by_brute_force(seed):
    """Scores of six candidates with many ties: middle, expected, best and worst rank over all tie orders."""
    scores = torch.randint(-3, 1, (7, 6), generator=torch.Generator().manual_seed(seed)).double()
    truth = torch.randint(0, 6, (7,), generator=torch.Generator().manual_seed(seed))
    every = [rank_by_every_order(row, int(i)) for row, i in zip(scores, truth, strict=True)]
    assert any(len(set(orders)) > 2 for orders in every)
    assert ranks(scores, truth).tolist() == [np.mean(orders) for orders in every]
    assert ranks(scores, truth, "optimistic").tolist() == [min(orders) for orders in every]
    assert ranks(scores, truth, "pessimistic").tolist() == [max(orders) for orders in every]
    expected = retrieval(scores, truth, ties="expected")
    by_hand = {
        "hits@1": np.mean([np.mean(np.array(orders) <= 1) for orders in every]),
        "hits@10": 1.0,
        "mrr": np.mean([np.mean(1 / np.array(orders)) for orders in every]),
        "mean_rank": np.mean([np.mean(orders) for orders in every]),
    }
    assert expected == pytest.approx(by_hand, **CLOSE)


@pytest.mark.parametrize(("better", "tied"), [(0, 0), (3, 0), (0, 30), (8, 4), (9, 1), (10, 3), (2, 500)])
def test_expected_metrics_are_means_over_the_ranks_of_a_tie(better, tied):
    scores = torch.cat([torch.full((better,), 2.0), torch.full((tied + 1,), 1.0), torch.zeros(5)])[None]
    places = np.arange(better + 1, better + tied + 2)
    means = {"hits@1": np.mean(places <= 1), "hits@10": np.mean(places <= 10), "mrr": np.mean(1 / places)}
    found = retrieval(scores, torch.tensor([better]), ties="expected")
    assert found == pytest.approx(means | {"mean_rank": places.mean()}, **CLOSE)


def test_a_tie_for_the_first_place_is_a_miss_by_default():
    scores, truth = torch.tensor([[1.0, 1.0, 1.0], [0.0, 3.0, 1.0]]), torch.tensor([2, 1])
    by_ties = {ties: retrieval(scores, truth, ties)["hits@1"] for ties in ("middle", "optimistic", "pessimistic")}
    assert by_ties == {"middle": 0.5, "optimistic": 1.0, "pessimistic": 0.5}
    assert retrieval(scores, truth) == metrics.retrieval_of(ranks(scores, truth)) == retrieval(scores, truth, "middle")
    assert retrieval(scores, truth, "expected")["hits@1"] == pytest.approx((1 / 3 + 1) / 2)


def test_metrics_agree_without_ties():
    scores = torch.randn(20, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = torch.arange(20)
    every = [retrieval(scores, truth, ties) for ties in ("middle", "expected", "optimistic", "pessimistic")]
    assert all(found == pytest.approx(every[0]) for found in every)
    own = scores[torch.arange(20), truth]
    assert ranks(scores, truth).tolist() == (1 + (scores > own[:, None]).sum(dim=1)).tolist()


@pytest.mark.parametrize("sparse", [False, True])
def test_label_sets_are_compared_like_in_scikit_learn(sparse):
    a, b = np.random.default_rng(0).integers(0, 2, size=(2, 40, 6))
    form = sp.csr_array if sparse else np.asarray
    assert f1(form(a), form(b)) == pytest.approx(f1_score(b, a, average="samples"))
    assert exact_match(form(a[:, :2]), form(b[:, :2])) == (a[:, :2] == b[:, :2]).all(axis=1).mean() > 0


@pytest.mark.parametrize("top", [5, 100], ids=["with ties", "hardly any ties"])
def test_kendall_tau_is_scipys(top):
    a, b = np.random.default_rng(0).integers(0, top, size=(2, 40, 6))
    expected = [kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(kendall_tau(a, torch.from_numpy(b)).numpy(), expected, atol=1e-12)


def test_kendall_tau_is_undefined_if_all_items_are_tied():
    assert kendall_tau([[0, 0, 0]], [[0, 1, 2]]).isnan().all()


def recursive(a: str, b: str) -> int:
    """Levenshtein's distance by its definition."""
    if not a or not b:
        return len(a) + len(b)
    substituted = recursive(a[1:], b[1:]) + (a[0] != b[0])
    return min(substituted, recursive(a[1:], b) + 1, recursive(a, b[1:]) + 1)


def test_metrics_of_strings():
    rng = np.random.default_rng(0)
    pairs = [["".join(rng.choice(list("abc"), size=rng.integers(6))) for _ in range(2)] for _ in range(60)]
    for a, b in pairs:
        assert levenshtein(a, b) == recursive(a, b)
    predicted, true = zip(*pairs, strict=True)
    assert char_error(predicted, true) == sum(recursive(a, b) for a, b in pairs) / len("".join(true))
    assert word_accuracy(predicted, true) == np.mean(np.array(predicted) == np.array(true)) > 0


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda: ranks(torch.zeros(3), torch.zeros(3)), "take scores"),
        (lambda: ranks(torch.tensor([[0.0], [torch.nan]]), torch.zeros(2)), "NaN in row 1"),
        (lambda: ranks(torch.zeros(2, 3), torch.tensor([0, 3])), "one of the 3, counted from 0. Got 3 in row 1"),
        (lambda: ranks(torch.zeros(2, 3), torch.tensor([-1, 0])), "Got -1 in row 0"),
        (lambda: ranks(torch.zeros(1, 2), torch.zeros(1), "expected"), "ties must be one of middle"),
        (lambda: retrieval(torch.zeros(1, 2), torch.zeros(1), "lucky"), "Got 'lucky'"),
        (lambda: f1([[1, 0]], [[1]]), r"two \(n, d\) matrices of zeros and ones. Got .* \(1, 2\) and \(1, 1\)"),
        (lambda: exact_match([[2, 0]], [[1, 0]]), "zeros and ones"),
        (lambda: f1(["a"], ["b"]), "matrices of numbers"),
        (lambda: kendall_tau([[0, 1, 2]], [[0, 1]]), r"Got \(1, 3\) and \(1, 2\)"),
        (lambda: char_error(["a"], ["a", "b"]), "Got 1 and 2"),
        (lambda: char_error(["a"], [""]), "letters. Got none"),
        (lambda: word_accuracy([], []), "at least one. Got 0 and 0"),
    ],
)
def test_refuses(measure, message):
    with pytest.raises(InputError, match=message):
        measure()
