"""From scores to probabilities, sets and confidence; nothing here knows of models.

A fitted model scores every output y for an input x. Here scores become probabilities,
p(y | x) = exp((s(x, y) − A(x)) / T) with A(x) = T log Σ exp(s(x, y') / T) over the best outputs y' of x, and a
temperature T that is fitted to some pairs. Other pairs calibrate: the strangeness −log p(y | x) of their right outputs
is sorted, and the set {y : −log p(y | x) ≤ q} holds the right output of a new pair with probability at least c if q is
the ⌈(n + 1) c⌉-th smallest. This split conformal prediction assumes nothing but that calibration pairs and new ones
come from the same source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import beta, betabinom
from sklearn.isotonic import IsotonicRegression
from sklearn.utils.validation import check_consistent_length
from torch import Tensor

from dsokr.errors import InputError

TUNED, MOST_TUNED = 0.25, 1000  # share of the pairs, and their number at most, that the temperature is fitted on
RISK = 0.1  # probability that a bound on the error of answers does not hold
STEPS = 20  # numbers of answers that are tried, to find how many are safe


class Coverage(NamedTuple):
    """How often sets held the right output, and the probability of so few or fewer if the guarantee holds."""

    asked: float
    found: float
    n: int
    p_value: float

    @property
    def holds(self) -> bool:
        return self.p_value >= 0.01

    def __str__(self) -> str:
        found = f"{self.found:.1%} of {self.n:,} sets hold the right answer, {self.asked:.0%} were asked for"
        if self.holds:
            return f"{found}."
        return f"{found}: coverage did not hold (p = {self.p_value:.1g}). These pairs differ from the calibration's."


@dataclass(frozen=True, eq=False)
class Calibration:
    """Turns scores into probabilities, sets and confidence, by the scores of calibration pairs.

    Its methods take the coordinates z of inputs (n, p), the scores of their best outputs (n, k), best first and −∞
    where there are fewer, and scores of other outputs.
    """

    temperature: float
    by_length: bool  # whether T is in units of ‖z‖
    curve: Tensor  # (2, k): log odds of the best output, and the confidence in it
    strangeness: dict[str, Tensor]  # of right outputs by group, smallest first
    odds: Tensor  # (m,), log odds of calibration pairs, largest first
    right: Tensor  # (m,) bool, whether their best output is the right one

    @staticmethod
    def of(z: Tensor, scores: Tensor, own: Tensor, right: Tensor, groups: Any = None, seed: int = 0) -> Calibration:
        """Calibrate by the ``own`` scores of right outputs, −∞ where these cannot be answers.

        ``right`` says whose best output is right. A quarter of the pairs, drawn at random, turns scores into
        probabilities; the others calibrate.
        """
        n = len(z)
        labels = [""] * n if groups is None else list(map(str, groups))
        check_consistent_length(labels, own)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        tuned, rest = order.split([t := min(MOST_TUNED, round(TUNED * n)), n - t])
        some = tuned[own[tuned].isfinite()]
        if len(some) < 2:
            why = ", whose right answers are not among the candidates" if t >= 2 else ""
            raise InputError(f"Calibration needs at least 6 pairs that can be answered. Got {n}{why}.")
        by_length, temperature = _fit_temperature(z[some], scores[some], own[some])
        unit = _measure(z, temperature, by_length)
        odds = _log_odds(unit, scores)
        strangeness = _strangeness(unit, scores, own)
        of_group: dict[str, list[int]] = {}
        for at in rest.tolist():
            of_group.setdefault(labels[at], []).append(at)
        sorted_ = {label: strangeness[of_group[label]].sort().values for label in sorted(of_group)}
        first, order = odds[rest].sort(descending=True, stable=True)
        curve = _fit_confidence(odds, right)  # may use all pairs, since it keeps the order of the odds
        return Calibration(temperature, by_length, curve, sorted_, first, right[rest][order])

    def find_odds(self, z: Tensor, scores: Tensor) -> Tensor:  # (n,)
        """log p / (1 − p) of the best output."""
        return _log_odds(self._unit(z), scores)

    def find_confidence(self, z: Tensor, scores: Tensor) -> Tensor:  # (n,)
        """The probability that the best output is right."""
        x, y = self.curve.cpu().numpy()
        return torch.from_numpy(np.interp(self.find_odds(z, scores).cpu().numpy(), x, y)).to(z)

    def log_p(self, z: Tensor, scores: Tensor, others: Tensor) -> Tensor:  # (n, k)
        """log p(y | x) of outputs with these scores (n, k)."""
        unit = self._unit(z)
        return (others - scores[:, :1]) / unit[:, None] - _log_sum(unit, scores)[:, None]

    def find_probabilities(self, z: Tensor, scores: Tensor, others: Tensor | None = None) -> Tensor:  # (n, k)
        """The probabilities that outputs are right: the best ones or, by their scores, ``others``, best first.

        The probability of the best output is its confidence; the others share the rest in proportion to p(y | x).
        """
        first = self.find_confidence(z, scores)[:, None]
        p = self.log_p(z, scores, scores if others is None else others).exp()
        rest = p[:, 1:] * (1 - first) / (1 - p[:, :1]).clamp(min=1e-12)
        return torch.cat([first, torch.minimum(rest, first)], dim=1)

    def find_threshold(
        self, z: Tensor, scores: Tensor, coverage: float, groups: Any = None, allow_empty: bool = False
    ) -> Tensor:  # (n,)
        """The least score of the members of every set."""
        if not 0 < coverage < 1:
            raise InputError(f"coverage must be in (0, 1). Got {coverage}.")
        limits = {label: _find_quantile(values, coverage, label) for label, values in self.strangeness.items()}
        q = torch.tensor([limits[label] for label in self._check_groups(groups, len(z))], dtype=z.dtype).to(z)
        unit, best = self._unit(z), scores[:, 0]
        least = unit * (_log_sum(unit, scores) - q) + best
        slack = 1e-9 * torch.maximum(least.abs(), best.abs())  # two ways to compute a score differ by rounding
        return (least if allow_empty else torch.minimum(least, best)) - slack

    def find_safe(self, max_error: float) -> float:
        """The least log odds at which answers are wrong in at most a share ``max_error``; infinite if none is safe.

        More and more answers are tried, from the largest odds on, until the Clopper-Pearson bound on their errors
        exceeds it.
        """
        if not 0 < max_error < 1:
            raise InputError(f"max_error must be in (0, 1). Got {max_error}.")
        n, wrong, safe = len(self.right), (~self.right).cumsum(0), torch.inf
        least = math.ceil(math.log(RISK) / math.log(1 - max_error))  # fewer cannot be safe, however right they are
        if n < least:
            raise InputError(f"max_error={max_error:g} needs at least {least} pairs beside those tuned on. Got {n}.")
        for m in np.unique(np.linspace(least, n, STEPS).round().astype(int)).tolist():
            last = float(self.odds[m - 1])
            m = int((self.odds >= last).sum())  # ties are answered together
            errors = int(wrong[m - 1])
            if errors == m or beta.ppf(1 - RISK, errors + 1, m - errors) > max_error:
                break
            safe = last
        return safe

    def test(self, held: Tensor, coverage: float) -> Coverage:
        """Test whether sets held the right output as often as asked; ``held`` says which did."""
        n, found, m = len(held), int(held.sum()), sum(map(len, self.strangeness.values()))
        if not n:
            raise InputError("A test of coverage needs at least one pair.")
        rank = min(m, math.ceil((m + 1) * coverage))
        return Coverage(coverage, found / n, n, float(betabinom.cdf(found, n, rank, m + 1 - rank)))

    def state(self) -> dict[str, Any]:
        """Everything, as :func:`dsokr.saving.pack` takes it."""
        groups = {str(i): values for i, values in enumerate(self.strangeness.values())}
        return {**asdict(self), "strangeness": groups, "groups": dict.fromkeys(self.strangeness)}

    @staticmethod
    def restore(state: dict[str, Any]) -> Calibration:
        groups = dict(zip(state.pop("groups"), state.pop("strangeness").values(), strict=True))
        return Calibration(**state, strangeness=groups)

    def _unit(self, z: Tensor) -> Tensor:  # (n,)
        return _measure(z, self.temperature, self.by_length)

    def _check_groups(self, groups: Any, n: int) -> Sequence[str]:
        if (groups is None) != (list(self.strangeness) == [""]):
            raise InputError("Sets need the groups of their inputs if and only if the calibration had groups.")
        labels = [""] * n if groups is None else list(map(str, groups))
        if len(labels) != n:
            raise InputError(f"groups must have a value for every input. Got {len(labels)} for {n}.")
        if unknown := [label for label in labels if label not in self.strangeness]:
            raise InputError(f"No calibration pair is in the group {unknown[0]!r}.")
        return labels


def _measure(z: Tensor, temperature: float, by_length: bool) -> Tensor:  # (n,)
    """T, or T ‖z‖."""
    return temperature * (z.norm(dim=1).clamp(min=1e-300) if by_length else torch.ones_like(z[:, 0]))


def _log_sum(unit: Tensor, scores: Tensor) -> Tensor:  # (n,)
    """A(x) / T, less the best score."""
    return ((scores - scores[:, :1]) / unit[:, None]).logsumexp(dim=1)


def _strangeness(unit: Tensor, scores: Tensor, own: Tensor) -> Tensor:  # (n,)
    """−log p of outputs with these own scores."""
    return _log_sum(unit, scores) + (scores[:, 0] - own) / unit


def _log_odds(unit: Tensor, scores: Tensor) -> Tensor:  # (n,)
    """log p / (1 − p) of the best output."""
    others = (scores[:, 1:] - scores[:, :1]) / unit[:, None]
    return -others.logsumexp(dim=1).clamp(-30, 30)  # −∞ if there are no others


def _fit_temperature(z: Tensor, scores: Tensor, own: Tensor) -> tuple[bool, float]:
    """The T, in units of one or of ‖z‖, by which right outputs are most probable."""
    found = []
    for by_length in (False, True):
        unit = _measure(z, 1.0, by_length)
        spread = ((scores[:, 0] - own) / unit).abs().mean().clamp(min=1e-9)

        def loss(log_t: float, unit: Tensor = spread * unit) -> float:
            return _strangeness(unit * math.exp(log_t), scores, own).mean().item()

        best = minimize_scalar(loss, bounds=(-8, 8), method="bounded")
        found.append((float(best.fun), by_length, spread.item() * math.exp(float(best.x))))
    return min(found)[1:]


def _fit_confidence(odds: Tensor, right: Tensor) -> Tensor:  # (2, k)
    """The share of right answers by their log odds: isotonic regression, kept from 0 and 1 by Laplace's rule."""
    n, model = len(odds), IsotonicRegression(out_of_bounds="clip")
    model.fit(odds.cpu().numpy(), right.cpu().double().numpy())
    curve = np.stack([model.X_thresholds_, model.y_thresholds_.clip(1 / (n + 2), (n + 1) / (n + 2))])
    return torch.from_numpy(curve)


def _find_quantile(values: Tensor, coverage: float, label: str) -> float:
    """The ⌈(n + 1) c⌉-th smallest value."""
    n, rank = len(values), math.ceil((len(values) + 1) * coverage - 1e-9)
    where = f" in the group {label!r}" if label else ""
    if rank > n:
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise InputError(f"coverage={coverage:g} needs at least {needed} pairs beside those tuned on{where}. Got {n}.")
    if torch.isinf(values[rank - 1]):
        share = values.isinf().double().mean().item()
        raise InputError(
            f"coverage={coverage:g} cannot be reached{where}: the right answer is not among the candidates for "
            f"{share:.0%} of the calibration pairs."
        )
    return values[rank - 1].item()
