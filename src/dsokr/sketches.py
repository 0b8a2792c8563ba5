"""Random sketches of a training set: R, an m × n matrix whose rows combine outputs.

A sketch is drawn from a specification, ``SubSample(100).draw(n, generator)``, and holds only the non-zero columns of R.
The scale of R does not matter: the basis depends only on the span of the rows.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from dsokr.errors import InputError, check_fields

Gram = Callable[[Tensor, Tensor], Tensor]  # positions (a,), (b,) -> the Gram matrix between them (a, b)

CHUNK = 2**22  # entries of a random mask or of a Gram block that are held at once
PILOT = 60  # the least number of outputs from which leverage scores are approximated by default


@dataclass(frozen=True, eq=False)
class Sketch:
    """The non-zero columns of R: ``R[:, indices] = weights``. Without weights, R picks the outputs at ``indices``."""

    indices: Tensor  # (r,)
    weights: Tensor | None = None  # (m, r) float64

    @property
    def size(self) -> int:
        return len(self.indices if self.weights is None else self.weights)

    def dense(self, n: int) -> Tensor:  # (m, n)
        """Return R as a matrix, for small n."""
        weights = torch.eye(len(self.indices), dtype=torch.float64) if self.weights is None else self.weights
        return torch.zeros(len(weights), n, dtype=torch.float64).index_add_(1, self.indices, weights)


class SketchSpec(ABC):
    """How to draw a sketch."""

    size: float | None  # rows, or a share of n

    @abstractmethod
    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        """Draw R for n outputs. ``gram`` gives kernel values between them, for sketches that depend on the outputs."""

    def count_rows(self, n: int) -> int:
        """m, the number of rows for n outputs: ``size``, at most n, or that share of n if it is below 1."""
        check_fields(self, size="(0, inf)")
        assert self.size is not None  # as for Full
        if self.size >= 1 and not isinstance(self.size, Integral):
            raise InputError(f"{type(self).__name__}.size must be an integer, or a share below 1. Got {self.size}.")
        return min(int(self.size), n) if self.size >= 1 else max(1, round(self.size * n))


@dataclass(frozen=True)
class Full(SketchSpec):
    """R = I: every output is an anchor. Exact; the cost is cubic in n.

    >>> Full().draw(3, torch.Generator()).indices.tolist()
    [0, 1, 2]
    """

    size = None

    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        return Sketch(torch.arange(n))


@dataclass(frozen=True)
class SubSample(SketchSpec):
    """Rows of the identity, drawn without replacement: the Nyström approximation.

    ``probabilities`` has one number per output, at any positive scale; None is uniform.

    >>> SubSample(2).draw(5, torch.Generator().manual_seed(0)).size
    2
    """

    size: float
    probabilities: Any = None  # (n,)

    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        size = self.count_rows(n)
        if self.probabilities is None:
            return Sketch(torch.randperm(n, generator=generator)[:size])
        return Sketch(_sample(_check_probabilities(self.probabilities, n, size), size, generator))


@dataclass(frozen=True)
class Gaussian(SketchSpec):
    """Independent standard normal entries. Dense: every output is an anchor.

    >>> Gaussian(2).draw(5, torch.Generator().manual_seed(0)).weights.shape
    torch.Size([2, 5])
    """

    size: float

    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        size = self.count_rows(n)
        weights = torch.randn(size, n, generator=generator, dtype=torch.float64)
        return Sketch(torch.arange(n), weights.div_(math.sqrt(size)))


@dataclass(frozen=True)
class Sparsified(SketchSpec):
    """p-sparsified sketch: R_ij = B_ij S_ij / √(m · density) with B_ij ~ Bernoulli(density).

    S_ij is a random sign (Rademacher) or standard normal. By default a row combines about twenty outputs, whatever n
    is. Only the outputs that some row uses become anchors.

    >>> sketch = Sparsified(2, density=0.5).draw(6, torch.Generator().manual_seed(0))
    >>> bool((sketch.weights.abs() > 0).any(dim=0).all())
    True
    """

    size: float
    density: float | None = None  # None: 20 / n
    entries: Literal["rademacher", "gaussian"] = "rademacher"

    def __post_init__(self) -> None:
        check_fields(self, density="(0, 1]")

    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        size = self.count_rows(n)
        density = min(1.0, 20 / n) if self.density is None else self.density
        places = _draw_places(size, n, density, generator)
        if not len(places):
            raise InputError(f"Sparsified drew only zeros with density={density:g} and n={n}: use a larger density.")
        indices, column = torch.unique(places[:, 1], return_inverse=True)
        weights = torch.zeros(size, len(indices), dtype=torch.float64)
        weights[places[:, 0], column] = self._draw_values(len(places), generator) / math.sqrt(size * density)
        return Sketch(indices, weights)

    def _draw_values(self, count: int, generator: Generator) -> Tensor:
        if self.entries == "gaussian":
            return torch.randn(count, generator=generator, dtype=torch.float64)
        return _draw_signs(count, generator)


@dataclass(frozen=True)
class Hadamard(SketchSpec):
    """Randomised orthogonal system: rows of the Walsh–Hadamard matrix with random column signs.

    The matrix has the next power of two N ≥ n rows and columns, of which the first n columns are used. Its entry (i, j)
    is (−1)^popcount(i & j), so that no padded vector has to be transformed. Rows are drawn without replacement.

    >>> Hadamard(2).draw(3, torch.Generator().manual_seed(0)).weights.abs()
    tensor([[0.7071, 0.7071, 0.7071],
            [0.7071, 0.7071, 0.7071]], dtype=torch.float64)
    """

    size: float

    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        size = self.count_rows(n)
        rows = torch.randperm(1 << (n - 1).bit_length(), generator=generator)[:size]
        signs = _draw_signs(n, generator)
        weights = torch.empty(size, n, dtype=torch.float64)
        columns = torch.arange(n)
        for row, line in zip(rows, weights, strict=True):
            line.copy_(1 - 2 * _parity(row & columns)).mul_(signs)
        return Sketch(torch.arange(n), weights.div_(math.sqrt(size)))


@dataclass(frozen=True)
class LeverageSample(SketchSpec):
    """Outputs drawn without replacement with probability proportional to their approximate ridge leverage scores.

    ``regularization`` is λ, and ``pilot`` the number n_S of outputs that approximate the scores (None: 4 √n); see
    :func:`approximate_leverage`.
    """

    size: float
    regularization: float = 1e-4
    pilot: int | None = None

    def draw(self, n: int, generator: Generator, gram: Gram | None = None) -> Sketch:
        size = self.count_rows(n)
        if gram is None:
            raise InputError("LeverageSample depends on the outputs: pass `gram`, or use sketch_basis.")
        scores = approximate_leverage(gram, n, self.regularization, generator, pilot=self.pilot)
        # with scores of zero there might be fewer than `size` outputs to draw
        return Sketch(_sample(scores + 1e-12 * scores.max() + 1e-300, size, generator))


def approximate_leverage(
    gram: Gram,
    n: int,
    regularization: float,
    generator: Generator,
    *,
    pilot: int | None = None,
    probabilities: Tensor | None = None,
) -> Tensor:  # (n,)
    """Approximate the ridge leverage scores of n outputs from a few of them (El Alaoui & Mahoney, 2015).

    The exact score of output i is [K (K + nλ I)⁻¹]_ii. Here K is replaced by B Bᵀ = C W⁺ Cᵀ, where C holds the columns
    of K at n_S = ``pilot`` outputs drawn according to ``probabilities`` (None: uniformly) and W the rows of C at the
    same outputs; then the score is b_iᵀ (BᵀB + nλ I)⁻¹ b_i. By default n_S = 4 √n, as √n outputs hardly show which
    ones stand out. Rows of B are computed twice instead of being held: cost O(n · n_S²), memory O(n_S²) and a block.
    """
    if not regularization > 0:
        raise InputError(f"The regularisation of leverage scores must be positive. Got {regularization}.")
    pilot = min(n, max(PILOT, round(4 * math.sqrt(n)))) if pilot is None else pilot
    if not isinstance(pilot, Integral) or not 1 <= pilot <= n:
        raise InputError(f"The pilot sample must be an integer between 1 and n={n}. Got {pilot!r}.")
    p = torch.ones(n) if probabilities is None else probabilities
    S = _sample(_check_probabilities(p, n, int(pilot)), int(pilot), generator)
    values, vectors = torch.linalg.eigh(gram(S, S))
    keep = values > values[-1] * 1e-12
    root = vectors[:, keep] / values[keep].sqrt()  # W⁺ = root rootᵀ
    blocks = torch.arange(n).split(max(1, CHUNK // int(pilot)))
    covariance = n * regularization * torch.eye(root.shape[1], dtype=root.dtype, device=root.device)
    for rows in blocks:
        covariance.addmm_((B := gram(rows, S) @ root).T, B)
    root = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), root.T, upper=False)
    return torch.cat([(gram(rows, S) @ root.T).square_().sum(dim=1).cpu() for rows in blocks])


def _check_probabilities(probabilities: Any, n: int, size: int) -> Tensor:  # (n,)
    p = torch.as_tensor(probabilities, dtype=torch.float64)
    if p.shape != (n,):
        raise InputError(f"probabilities must have one entry per output. Got {p.numel()} and n={n}.")
    if not torch.isfinite(p).all() or (p < 0).any() or int((p > 0).sum()) < size:
        raise InputError(
            "probabilities must be finite, not negative, and positive for at least as many outputs as are drawn: "
            f"{size}. Got {int((p > 0).sum())} positive ones."
        )
    return p


def _sample(p: Tensor, size: int, generator: Generator) -> Tensor:
    """Draw ``size`` positions without replacement, with probabilities proportional to p (Efraimidis & Spirakis)."""
    keys = torch.empty(len(p), dtype=torch.float64).exponential_(generator=generator) / p
    return keys.argsort()[:size]


def _draw_signs(count: int, generator: Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=generator).double().mul_(2).sub_(1)


def _draw_places(m: int, n: int, density: float, generator: Generator) -> Tensor:  # (count, 2)
    """Draw a Bernoulli variable for every entry of an m × n matrix; return the rows and columns of the ones."""
    rows = max(1, CHUNK // n)
    found = []
    for start in range(0, m, rows):
        flips = torch.rand(min(rows, m - start), n, generator=generator) < density
        found.append(flips.nonzero() + torch.tensor([start, 0]))
    return torch.cat(found)


def _parity(x: Tensor) -> Tensor:
    """The parity of the number of one bits in x."""
    for shift in (32, 16, 8, 4, 2, 1):
        x = x ^ (x >> shift)
    return x & 1
