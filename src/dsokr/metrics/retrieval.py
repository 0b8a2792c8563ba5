"""How high the true candidate ranks: Hits@k, mean reciprocal rank and mean rank, with a choice of how ties count."""

from typing import Literal

import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.rules import sort_keys

Ties = Literal["middle", "expected", "optimistic", "pessimistic"]
SHARES = {"middle": 0.5, "optimistic": 0.0, "pessimistic": 1.0}  # of the tied others that count as better


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
