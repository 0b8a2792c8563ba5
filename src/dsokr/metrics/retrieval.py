"""How high the truth stands in a ranked list."""

from typing import Literal

import torch
from torch import Tensor

from dsokr.errors import InputError
from dsokr.rules import compare

Ties = Literal["expected", "optimistic", "pessimistic"]
SHARES: dict[Ties, float] = {"expected": 0.5, "optimistic": 0.0, "pessimistic": 1.0}


def ranks(scores: Tensor, truth: Tensor, ties: Ties = "expected") -> Tensor:  # (n, c), (n,) -> (n,)
    """The rank of candidate ``truth[i]`` in row i: 1 + the number scored better + half the number of equal others.

    With ``ties="optimistic"`` none of the equal others counts, with ``"pessimistic"`` all of them.

    Scores may be negative; larger is better. Which of them are equal: :mod:`dsokr.rules`.

    >>> ranks(torch.tensor([[-3.0, -1.0, -2.0], [5.0, 5.0, 1.0]]), torch.tensor([2, 0]))
    tensor([2.0000, 1.5000], dtype=torch.float64)
    """
    if ties not in SHARES:
        raise InputError(f"ties must be one of {', '.join(SHARES)}. Got {ties!r}.")
    scores, truth = torch.as_tensor(scores), torch.as_tensor(truth, dtype=torch.long)
    if scores.ndim != 2 or truth.shape != scores.shape[:1]:
        raise InputError(
            "Retrieval metrics take scores (n, candidates) and the true candidate of every row (n,). "
            f"Got {tuple(scores.shape)} and {tuple(truth.shape)}."
        )
    if len(truth) and not (int(truth.min()) >= 0 and int(truth.max()) < scores.shape[1]):
        wrong = int(((truth < 0) | (truth >= scores.shape[1])).nonzero()[0])
        got = f"Got {int(truth[wrong])} in row {wrong}."
        raise InputError(f"The true candidate must be one of the {scores.shape[1]}, counted from 0. {got}")
    if torch.isnan(scores).any():
        raise InputError(f"Scores must not be NaN. Got NaN in row {int(scores.isnan().any(dim=1).nonzero()[0])}.")
    scores = compare(scores)
    own = scores.gather(1, truth[:, None].to(scores.device))
    better = (scores > own).sum(dim=1)
    equal = (scores == own).sum(dim=1) - 1
    return 1 + better + SHARES[ties] * equal.double()


def retrieval(scores: Tensor, truth: Tensor, ties: Ties = "expected") -> dict[str, float]:
    """Hits@1, Hits@10, the mean reciprocal rank and the mean rank, with ties ranked in the middle (see :func:`ranks`).

    >>> retrieval(torch.tensor([[-3.0, -1.0, -2.0]]), torch.tensor([2]))
    {'hits@1': 0.0, 'hits@10': 1.0, 'mrr': 0.5, 'mean_rank': 2.0}
    """
    return retrieval_of(ranks(scores, truth, ties))


def retrieval_of(r: Tensor) -> dict[str, float]:  # (n,)
    """The same of ranks that are known."""
    return {
        "hits@1": (r <= 1).double().mean().item(),
        "hits@10": (r <= 10).double().mean().item(),
        "mrr": r.reciprocal().mean().item(),
        "mean_rank": r.mean().item(),
    }
