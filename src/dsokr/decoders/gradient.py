"""Decoding vectors by climbing the score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

from dsokr.basis import Rule, SketchedBasis, check_rule
from dsokr.decoders.base import Decoded, Decoder
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.errors import InputError, KernelError, require_integer
from dsokr.kernels import Cosine, Gaussian, Kernel, Laplacian, Linear, Normalized, Polynomial, Product, Scaled, Sum
from dsokr.kernels.vectors import as_rows
from dsokr.outputs import Outputs, take

POINTS = 1024  # vectors that are moved at once
CONVERGED = 1e-12  # steps shorter than this share of the outputs' spread end the climb
NEAR = 1e-6  # how far from a constraint an output may be that satisfies it

Scores = Callable[[Tensor], Tensor]  # (n, d) -> (n,), row by row
Source = tuple[EmbeddedOutputs, Tensor]  # known outputs to start from, and the same as rows (n, d)


@dataclass(frozen=True)
class Box:
    """low ≤ y ≤ high, by one number for all coordinates or a tuple with one for each.

    >>> Box(0.0, 1.0).nearest(torch.tensor([[-0.5, 0.5, 2.0]]))
    tensor([[0.0000, 0.5000, 1.0000]])
    """

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            ordered = np.all(np.asarray(self.low, np.float64) <= np.asarray(self.high, np.float64))
        except (TypeError, ValueError) as error:
            raise InputError(f"Box takes numbers, as many below as above. Got {self.low} and {self.high}.") from error
        if not ordered:
            raise InputError(f"Box.low must be at most Box.high. Got {self.low} and {self.high}.")

    def nearest(self, y: Tensor) -> Tensor:  # (n, d)
        low, high = (torch.as_tensor(bound, dtype=y.dtype, device=y.device) for bound in (self.low, self.high))
        for bound in (low, high):
            if bound.ndim and len(bound) != y.shape[1]:
                raise InputError(f"Box must have one bound, or one per coordinate: {y.shape[1]}. Got {len(bound)}.")
        return y.clamp(low, high)


@dataclass(frozen=True)
class Simplex:
    """y ≥ 0 with Σ_t y_t = 1: shares, or probabilities.

    >>> Simplex().nearest(torch.tensor([[0.5, 0.75, -1.0]]))
    tensor([[0.3750, 0.6250, 0.0000]])
    """

    def nearest(self, y: Tensor) -> Tensor:  # (n, d)
        """max(y − θ, 0), with the θ that makes it sum to one: found among the sums of the largest coordinates."""
        excess = y.sort(dim=1, descending=True).values.cumsum(dim=1) - 1
        thresholds = excess / torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device)
        return (y - thresholds.max(dim=1, keepdim=True).values).clamp(min=0)


@dataclass(frozen=True)
class Gradient(Decoder):
    """max_y 2 h(y) − k(y, y) over vectors y, h = Σ_j z_j ẽ_j, for kernels that are differentiable; rule as given.

    Projected gradient ascent from the best known outputs: y ← P(y + t ∇score(y)), where P goes to the nearest point of
    the ``constraint``. A step that does not raise the score is not taken but tried again at half its length; after one
    that does, t is Barzilai and Borwein's, ‖Δy‖² / |⟨Δy, Δ∇⟩|. So an answer never scores less than the known outputs
    that satisfy the constraint, the best of which are starts as well; it is a local maximum. For the linear kernel and
    the paper's rule the solution is P(Σ_j c_j a_j) with c = (Ω R)ᵀ z, and is returned as such.

    Outputs must be real vectors: integers, which an average between two of them leaves, are refused. The Laplacian
    kernel has kinks at the anchors, where the climb may get stuck. By the angle alone, rule ``"cosine"``, an output far
    from all anchors may look best to a kernel that vanishes at a distance: take another rule, or a ``Box``.

    Parameters
    ----------
    steps : evaluations of the score and its gradient, each r kernel values per start and row, for r anchors.
    starts : how many known outputs to start from, and how many of those that satisfy the constraint if some do not.
    constraint : None, ``Box(low, high)`` or ``Simplex()``.
    rule : what is maximised, see :func:`dsokr.basis.embedded_scores`.

    >>> from dsokr import kernels, sketches
    >>> from dsokr.basis import sketch_basis
    >>> ys = torch.linspace(0, 3, 7, dtype=torch.float64)[:, None]
    >>> basis = sketch_basis(kernels.Gaussian(0.2), ys, sketches.SubSample(7), generator=torch.Generator())
    >>> z = basis.embed(torch.tensor([[1.8]]))
    >>> Gradient().decode(basis, z, EmbeddedOutputs(basis, ys)).outputs
    tensor([[1.8000]], dtype=torch.float64)
    """

    steps: int = 100
    starts: int = 3
    constraint: Box | Simplex | None = None
    rule: Rule = "kernel"

    def __post_init__(self) -> None:
        for name in ("steps", "starts"):
            require_integer(self, name, getattr(self, name), least=1)
        if not isinstance(self.constraint, Box | Simplex | None):
            raise InputError(f"Gradient.constraint must be None, Box(low, high) or Simplex(). Got {self.constraint!r}.")
        check_rule(self.rule)

    def check(self, kernel: Kernel) -> None:
        if not _differentiable(kernel):
            raise InputError(
                "Gradient decodes bases of the Linear, Cosine, Gaussian, Laplacian and Polynomial kernels, their sums, "
                f"products and normalised forms. Got {kernel}. Use Candidates()."
            )

    def scoring_rule(self) -> Rule:
        return self.rule

    def known(self, training_outputs: Outputs) -> Outputs:
        _check_real(training_outputs)
        return super().known(training_outputs)

    @torch.inference_mode(False)
    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        z = self.checked(basis, z, known)
        _check_real(known.outputs)
        rows, width = as_rows(known.outputs).to(z), _anchors(basis).shape[1]
        if rows.shape[1] != width:
            got = f"Got {rows.shape[1]}."
            raise InputError(f"Candidates must have {width} coordinates, as the outputs of the basis. {got}")
        if not len(z):  # kernels take at least one vector
            return Decoded(take(known.outputs, slice(0)), z.new_empty(0))
        if isinstance(basis.kernel, Linear) and self.rule == "kernel":
            y = self._nearest(_combination(basis, z) @ _anchors(basis))
            return Decoded(_in_form_of(known.outputs, y), scorer(basis, z, self.rule)(y))
        sources = [(known, rows), *self._allowed(known, rows)]
        reach = float(rows.std(dim=0, correction=0).norm()) or 1.0
        parts = [self._climbed(basis, block, sources, reach) for block in z.split(max(1, POINTS // self.starts))]
        y, scores = (torch.cat(part) for part in zip(*parts, strict=True))
        return Decoded(_in_form_of(known.outputs, y), scores)

    def _allowed(self, known: EmbeddedOutputs, rows: Tensor) -> list[Source]:
        """The known outputs that satisfy the constraint, if some do and some do not."""
        inside = torch.isclose(self._nearest(rows), rows, rtol=NEAR, atol=NEAR).all(dim=1)
        if inside.all() or not inside.any():
            return []
        at = inside.nonzero()[:, 0]
        return [(known.part(at), rows[at])]

    def _climbed(
        self, basis: SketchedBasis, z: Tensor, sources: list[Source], reach: float
    ) -> tuple[Tensor, Tensor]:  # (n, d), (n,)
        """The best that the starts of each row lead to, and its score."""
        starts = torch.cat([rows[known.top(z, self.starts, self.rule).indices] for known, rows in sources], dim=1)
        places = starts.shape[1]
        score = _only_where_defined(basis.kernel, scorer(basis, z.repeat_interleave(places, dim=0), self.rule))
        y, scores = ascend(score, self._nearest(starts.flatten(0, 1)), self._nearest, self.steps, reach)
        scores = scores.reshape(len(z), places)
        winner = scores.argmax(dim=1) + places * torch.arange(len(z), device=z.device)
        return y[winner], scores.flatten()[winner]

    def _nearest(self, y: Tensor) -> Tensor:
        return y if self.constraint is None else self.constraint.nearest(y)


def _differentiable(kernel: Kernel) -> bool:
    if isinstance(kernel, Sum | Product):
        return all(map(_differentiable, kernel.kernels))
    if isinstance(kernel, Scaled | Normalized):
        return _differentiable(kernel.kernel)
    return isinstance(kernel, Linear | Cosine | Gaussian | Laplacian | Polynomial)


def ascend(
    score: Scores, y: Tensor, nearest: Callable[[Tensor], Tensor], steps: int, reach: float
) -> tuple[Tensor, Tensor]:  # (n, d), (n,)
    """Projected gradient ascent of every row by itself, see :class:`Gradient`. The first step tried is ``reach``."""
    values, slopes = with_gradient(score, y)
    tiny = torch.finfo(y.dtype).tiny
    lengths = reach / slopes.norm(dim=1).clamp(min=tiny * max(reach, 1.0))  # finite also where the slope is zero
    for _ in range(steps):
        moved = nearest(y + lengths[:, None] * slopes)
        new_values, new_slopes = with_gradient(score, moved)
        better = new_values > values
        change = moved - y
        curvature = torch.linalg.vecdot(change, slopes - new_slopes).abs()
        longer = (change.square().sum(dim=1) / curvature.clamp(min=tiny)).minimum(10 * lengths)
        lengths = torch.where(better, longer, lengths / 2)
        y, slopes = (torch.where(better[:, None], new, old) for new, old in ((moved, y), (new_slopes, slopes)))
        values = torch.where(better, new_values, values)
        if (lengths * slopes.norm(dim=1) < CONVERGED * reach).all():
            break
    return y, values


def with_gradient(score: Scores, y: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n, d)
    """The scores at y and their gradients. Kernels work in place, which torch must be told to allow for."""
    with torch.enable_grad(), allow_mutation_on_saved_tensors():
        y = y.detach().clone().requires_grad_()
        values = score(y)
        (slopes,) = torch.autograd.grad(values.sum(), y)
    return values.detach(), slopes


def scorer(basis: SketchedBasis, z: Tensor, rule: Rule) -> Scores:
    """y -> the score of y_i for the coefficients z_i, as :func:`dsokr.basis.embedded_scores`, to be differentiated."""
    kernel, anchors = basis.kernel, _anchors(basis)
    if rule == "kernel":  # 2 Σ_j c_j k(y, a_j) − k(y, y) takes no coordinates
        c, evaluate = _combination(basis, z), kernel.against(anchors)
        return lambda y: 2 * torch.linalg.vecdot(evaluate(y), c) - kernel.diag(y)
    evaluate = kernel.against(anchors, basis.weights)

    def score(y: Tensor) -> Tensor:
        coordinates = evaluate(y) @ basis.projection.T
        if rule == "projected":
            return -(z - coordinates).square().sum(dim=1)
        squared = coordinates.square().sum(dim=1)
        squared = torch.where(squared <= torch.finfo(z.dtype).tiny, 1.0, squared)
        return torch.linalg.vecdot(z, coordinates) / squared.sqrt()

    return score


def _combination(basis: SketchedBasis, z: Tensor) -> Tensor:  # (n, r)
    """c = (Ω R)ᵀ z, so that h = Σ_j c_j k(·, a_j)."""
    return z @ basis.projection if basis.weights is None else z @ basis.projection @ basis.weights


def _anchors(basis: SketchedBasis) -> Tensor:  # (r, d)
    return as_rows(basis.anchors).to(basis.device)


def _only_where_defined(kernel: Kernel, score: Scores) -> Scores:
    """Scores that are −∞ at the zero vector if the kernel is undefined there, as those of directions are."""
    try:
        kernel.diag(torch.zeros(1, 1))
    except KernelError:
        return lambda y: score(y.masked_fill((y == 0).all(dim=1, keepdim=True), 1.0)).masked_fill(
            (y == 0).all(dim=1), -torch.inf
        )
    return score


def _check_real(ys: Outputs) -> None:
    if sp.issparse(ys):
        raise InputError("Gradient moves dense vectors. Got a sparse matrix. Pass Y.toarray(), or use Candidates().")
    if isinstance(ys, Tensor | np.ndarray):
        real = ys.is_floating_point() if isinstance(ys, Tensor) else ys.dtype.kind == "f"
    else:
        real = any(np.asarray(y).dtype.kind == "f" for y in ys)
    if not real:
        got = ys.dtype if hasattr(ys, "dtype") else type(ys[0]).__name__
        raise InputError(
            f"Gradient finds real vectors. Got outputs of type {got}. Pass them as floats if answers between them make "
            "sense, or use Candidates()."
        )


def _in_form_of(known: Outputs, y: Tensor) -> Outputs:
    """The rows of y in the form, the shape and the precision of the known outputs."""
    if isinstance(known, Tensor):
        return y.to(known).reshape(-1, *known.shape[1:])
    if isinstance(known, np.ndarray):
        return y.cpu().numpy().astype(known.dtype).reshape(-1, *known.shape[1:])
    return [_like(known[0], row) for row in y.cpu()]


def _like(item: Any, row: Tensor) -> Any:
    if isinstance(item, Tensor):
        return row.to(item).reshape(item.shape)
    if isinstance(item, np.ndarray):
        return row.numpy().astype(item.dtype).reshape(item.shape)
    return type(item)(row.tolist()) if isinstance(item, list | tuple) else row.item()
