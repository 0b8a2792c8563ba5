"""How well predicted label sets, rankings and strings match the true ones, and how high the true candidate ranks."""

from collections.abc import Sequence
from typing import Any, Literal

import scipy.sparse as sp
import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.outputs import as_outputs
from dsokr.rules import sort_keys

Ties = Literal["middle", "expected", "optimistic", "pessimistic"]
SHARES = {"middle": 0.5, "optimistic": 0.0, "pessimistic": 1.0}  # of the tied others that count as better


def f1(predicted: Any, true: Any) -> float:
    """Example-based F1: the mean over examples of 2 |A ∩ B| / (|A| + |B|), with 1 where both sets are empty.

    >>> f1([[1, 1, 1, 0], [0, 0, 0, 0]], [[0, 1, 0, 0], [0, 0, 0, 0]])
    0.75
    """
    a, b = _as_sets(predicted, true)
    sizes = (a + b).sum(dim=1)
    return torch.where(sizes > 0, 2 * (a * b).sum(dim=1) / sizes.clamp(min=1), 1.0).mean().item()


def exact_match(predicted: Any, true: Any) -> float:
    """The share of examples whose label set is predicted exactly.

    >>> exact_match([[1, 0], [0, 1]], [[1, 0], [1, 1]])
    0.5
    """
    a, b = _as_sets(predicted, true)
    return (a == b).all(dim=1).double().mean().item()


def kendall_tau(predicted: Any, true: Any) -> Tensor:  # (n, k), (n, k) -> (n,)
    """Kendall's τ_b row by row: (C − D) / √(P_a P_b) for C pairs of items in the same order and D in opposite order.

    P_a and P_b are the numbers of pairs that each ranking orders: all k (k − 1) / 2 without ties, for which τ_b is the
    τ of label ranking, 1 − 4 D / (k (k − 1)). Pairs tied in either ranking count neither for nor against. For a ranking
    that ties all items, τ is NaN.

    >>> kendall_tau([(0, 1, 2), (2, 1, 0)], [(0, 2, 1), (2, 1, 0)])
    tensor([0.3333, 1.0000], dtype=torch.float64)
    """
    a, b = _as_matrices(predicted, true)
    if a.shape != b.shape or a.shape[1] < 2:
        raise InputError(
            "Kendall's tau compares rankings as two (n, k) matrices of positions, k at least 2. "
            f"Got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    first, second = torch.triu_indices(a.shape[1], a.shape[1], 1)
    signs_a, signs_b = ((rows[:, second] - rows[:, first]).sign() for rows in (a, b))
    ordered = signs_a.abs().sum(dim=1) * signs_b.abs().sum(dim=1)
    return (signs_a * signs_b).sum(dim=1) / ordered.sqrt()


def levenshtein(a: str, b: str) -> int:
    """The least number of letters to insert, delete or substitute that turns one string into the other.

    >>> levenshtein("kernel", "learn")
    4
    """
    row = list(range(len(b) + 1))  # distances between the letters read from a and all prefixes of b
    for i, letter in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(diagonal + (letter != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def char_error(predicted: Sequence[str], true: Sequence[str]) -> float:
    """The character error rate: Levenshtein distances, summed, over the number of true letters.

    >>> char_error(["cat", "horse"], ["cart", "horse"])
    0.1111111111111111
    """
    _check_strings(predicted, true)
    letters = sum(map(len, true))
    if not letters:
        raise InputError("The character error rate is relative to the number of true letters. Got none.")
    return sum(levenshtein(a, b) for a, b in zip(predicted, true, strict=True) if a != b) / letters


def word_accuracy(predicted: Sequence[str], true: Sequence[str]) -> float:
    """The share of strings that are predicted without an error.

    >>> word_accuracy(["cat", "horse"], ["cart", "horse"])
    0.5
    """
    _check_strings(predicted, true)
    return sum(a == b for a, b in zip(predicted, true, strict=True)) / len(true)


def _as_matrices(predicted: Any, true: Any) -> list[Tensor]:
    outputs = as_outputs(predicted, "predicted"), as_outputs(true, "true")
    if not all(isinstance(rows, Tensor) or sp.issparse(rows) for rows in outputs):
        raise InputError("Predicted and true outputs must be matrices of numbers.")
    return [torch.from_numpy(rows.toarray()) if sp.issparse(rows) else rows.cpu() for rows in outputs]


def _as_sets(predicted: Any, true: Any) -> list[Tensor]:
    a, b = _as_matrices(predicted, true)
    if a.shape != b.shape or not all(((rows == 0) | (rows == 1)).all() for rows in (a, b)):
        raise InputError(
            "Label sets are two (n, d) matrices of zeros and ones. "
            f"Got matrices of shapes {tuple(a.shape)} and {tuple(b.shape)}."
        )
    return [a, b]


def _check_strings(predicted: Sequence[str], true: Sequence[str]) -> None:
    if len(predicted) != len(true) or not len(true):
        raise InputError(
            f"There must be as many predicted as true strings, at least one. Got {len(predicted)} and {len(true)}."
        )


def ranks(scores: Tensor, truth: Tensor, ties: Ties = "middle") -> Tensor:  # (n, c), (n,) -> (n,)
    """Return the rank of candidate ``truth[i]`` in row i: 1 + the number of better + half the number of tied others.

    With ``ties="optimistic"`` none of the tied others counts, with ``"pessimistic"`` all of them. Scores may be
    negative; larger is better. :mod:`dsokr.rules` says which scores are tied.

    >>> ranks(torch.tensor([[-3.0, -1.0, -2.0], [5.0, 5.0, 1.0]]), torch.tensor([2, 0]))
    tensor([2.0000, 1.5000], dtype=torch.float64)
    """
    if ties not in SHARES:
        raise InputError(f"ties must be one of {', '.join(SHARES)}, or for retrieval also expected. Got {ties!r}.")
    better, tied = count_ahead(scores, truth)
    return 1 + better + SHARES[ties] * tied


def retrieval(scores: Tensor, truth: Tensor, ties: Ties = "middle") -> dict[str, float]:  # (n, c), (n,)
    """Return Hits@1, Hits@10, the mean reciprocal rank and the mean rank, see :func:`ranks`.

    By default a tie is ranked in the middle, so that Hits@1 counts every tie as a miss. ``ties="expected"`` gives the
    expectation when ties are broken at random: with b better and e tied others, the rank is uniform on
    b + 1, …, b + e + 1.

    >>> scores, truth = torch.tensor([[5.0, 5.0, 1.0]]), torch.tensor([0])
    >>> retrieval(scores, truth)
    {'hits@1': 0.0, 'hits@10': 1.0, 'mrr': 0.6666666666666666, 'mean_rank': 1.5}
    >>> retrieval(scores, truth, ties="expected")["hits@1"]
    0.5
    """
    if ties != "expected":
        return retrieval_of(ranks(scores, truth, ties))
    better, tied = count_ahead(scores, truth)
    hits = [((k - better) / (tied + 1)).clamp(0, 1) for k in (1, 10)]
    reciprocal = (torch.digamma(better + tied + 2) - torch.digamma(better + 1)) / (tied + 1)  # Σ 1 / r over those ranks
    return _summarise(hits, reciprocal, 1 + better + tied / 2)


def retrieval_of(ranks: Tensor) -> dict[str, float]:  # (n,)
    """Return the metrics of :func:`retrieval` for known ranks."""
    return _summarise([ranks <= k for k in (1, 10)], ranks.reciprocal(), ranks)


def count_ahead(scores: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:  # (n, c), (n,) -> (n,), (n,) float64
    """Count the candidates with better scores than the true one, and the others with tied scores."""
    scores = torch.as_tensor(scores)
    if scores.ndim != 2:
        raise InputError(f"Retrieval metrics take scores of shape (n, candidates). Got {tuple(scores.shape)}.")
    truth = check_truth(truth, *scores.shape).to(scores.device)
    if torch.isnan(scores).any():
        raise InputError(f"Scores must not be NaN. Got NaN in row {int(scores.isnan().any(dim=1).nonzero()[0])}.")
    keys = sort_keys(scores)
    own = keys.gather(1, truth[:, None])
    return (keys > own).sum(dim=1).double(), (keys == own).sum(dim=1).double() - 1


def check_truth(truth: Tensor, rows: int, candidates: int) -> Tensor:  # (rows,)
    """Return the position of the true candidate of every row, if it is one of the candidates."""
    truth = torch.as_tensor(truth, dtype=torch.long)
    if truth.shape != (rows,):
        raise InputError(f"There must be a true candidate for each of the {rows} rows. Got {tuple(truth.shape)}.")
    wrong = ((truth < 0) | (truth >= candidates)).nonzero()
    if len(wrong):
        got = f"Got {int(truth[wrong[0]])} in row {int(wrong[0])}."
        raise InputError(f"The true candidate must be one of the {candidates}, counted from 0. {got}")
    return truth


def _summarise(hits: list[Tensor], reciprocal: Tensor, ranks: Tensor) -> dict[str, float]:
    values = {"hits@1": hits[0], "hits@10": hits[1], "mrr": reciprocal, "mean_rank": ranks}
    return {name: value.double().mean().item() for name, value in values.items()}
