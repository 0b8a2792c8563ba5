"""Decoding vectors by gradient ascent."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

from dsokr.basis import SketchedBasis
from dsokr.decoders.base import Decoder, Found, choose_best, combine_anchors
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.errors import InputError, KernelError, check_fields
from dsokr.kernels import Cosine, Gaussian, Kernel, Laplacian, Linear, Polynomial
from dsokr.outputs import Form, Outputs
from dsokr.rules import Rule, score_pairs

POINTS = 1024  # vectors moved at once
CONVERGED = 1e-12  # ascent stops when all steps are shorter than this share of the outputs' spread
NEAR = 1e-6  # tolerance within which an output satisfies a constraint

Scores = Callable[[Tensor], Tensor]  # (n, d) -> (n,), row by row


@dataclass(frozen=True)
class Box:
    """low ≤ y ≤ high, by one number for all coordinates or a tuple with one for each.

    >>> Box(0.0, 1.0).nearest(torch.tensor([[-0.5, 0.5, 2.0]]))
    tensor([[0.0000, 0.5000, 1.0000]])
    """

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def __post_init__(self) -> None:
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
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
        """max(y − θ, 0), with the θ for which it sums to one: the largest of (sum of the t largest − 1) / t."""
        excess = y.sort(dim=1, descending=True).values.cumsum(dim=1) - 1
        thresholds = excess / torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device)
        return (y - thresholds.max(dim=1, keepdim=True).values).clamp(min=0)


@dataclass(frozen=True)
class Gradient(Decoder):
    """max_y 2 h(y) − k(y, y) over vectors y, h = Σ_j z_j ẽ_j, for differentiable kernels; or by another ``rule``.

    Projected gradient ascent from the best known outputs: y ← P(y + t ∇score(y)), where P projects on the
    ``constraint``. A step that does not raise the score is rejected and t is halved; after a step that does, t is the
    Barzilai–Borwein length ‖Δy‖² / |⟨Δy, Δ∇⟩|. The answer is a local maximum, and never scores less than the known
    outputs that satisfy the constraint, because the best of them are starts as well. For the linear kernel and the
    paper's rule the solution is P(Σ_j c_j a_j) with c = (Ω R)ᵀ z, in closed form.

    Outputs must be real vectors; integers are refused, because answers lie between them. The Laplacian kernel has kinks
    at the anchors, where ascent may stop early. By rule ``"cosine"`` an output far from all anchors may score best if
    the kernel vanishes at a distance: use another rule, or a ``Box``.

    Parameters
    ----------
    steps : evaluations of the score and its gradient, each r kernel values per start and row, for r anchors.
    starts : number of known outputs to start from, and of those that satisfy the constraint if some do not.
    constraint : None, ``Box(low, high)`` or ``Simplex()``.
    rule : what is maximised, see :mod:`dsokr.rules`.

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
    kernels = (Linear, Cosine, Gaussian, Laplacian, Polynomial)

    rated = 200

    def __post_init__(self) -> None:
        check_fields(self)

    def check_outputs(self, outputs: Outputs, form: Form) -> None:
        if not isinstance(outputs, Tensor) or "float" not in form.dtype:
            raise InputError(
                f"Gradient finds real vectors. Got outputs as {form.kind!r}, of type {form.dtype or 'object'}. "
                "Pass dense floats if answers between the outputs make sense, or use Candidates()."
            )

    @torch.inference_mode(False)
    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        rows, width = known.outputs.to(z), basis.anchors.shape[1]
        if (got := rows.shape[1]) != width:
            raise InputError(f"Candidates must have {width} coordinates, as the outputs of the basis. Got {got}.")
        if isinstance(basis.kernel, Linear) and self.rule == "kernel":
            y = self._project(combine_anchors(basis, z) @ basis.anchors)
            return y, prepare_score(basis, z, self.rule)(y)
        sources, inside = [known], self._inside(known)
        if 0 < len(inside) < len(known):
            sources.append(inside)
        reach = float(rows.std(dim=0, correction=0).norm()) or 1.0
        parts = [self._climb(basis, block, sources, reach) for block in z.split(max(1, POINTS // self.starts))]
        y, scores = map(torch.cat, zip(*parts, strict=True))
        return y, scores

    def search(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int) -> Found:
        found, inside = self.solve(basis, z, known)[0], self._inside(known)
        return choose_best(z, inside, inside.top(z, k, self.rule), found, torch.arange(len(z)), self.rule, k)

    def _inside(self, known: EmbeddedOutputs) -> EmbeddedOutputs:
        """The known outputs that satisfy the constraint."""
        inside = torch.isclose(self._project(known.outputs), known.outputs, rtol=NEAR, atol=NEAR).all(dim=1)
        return known if inside.all() else known.select(inside.nonzero()[:, 0])

    def _climb(
        self, basis: SketchedBasis, z: Tensor, sources: list[EmbeddedOutputs], reach: float
    ) -> tuple[Tensor, Tensor]:  # (n, d), (n,)
        """Climb from all starts of each row; return the best end and its score."""
        best = [(source.outputs, source.top(z, self.starts, self.rule).indices) for source in sources]
        starts = torch.cat([outputs.to(z)[indices] for outputs, indices in best], dim=1)
        count = starts.shape[1]
        score = prepare_score(basis, z.repeat_interleave(count, dim=0), self.rule)
        y, scores = ascend(score, self._project(starts.flatten(0, 1)), self._project, self.steps, reach)
        winner = scores.reshape(len(z), count).argmax(dim=1) + count * torch.arange(len(z), device=z.device)
        return y[winner], scores[winner]

    def _project(self, y: Tensor) -> Tensor:
        return y if self.constraint is None else self.constraint.nearest(y)


def ascend(
    score: Scores, y: Tensor, project: Callable[[Tensor], Tensor], steps: int, reach: float
) -> tuple[Tensor, Tensor]:  # (n, d), (n,)
    """Projected gradient ascent of every row by itself, see :class:`Gradient`. The first step has length ``reach``."""
    values, slopes = differentiate(score, y)
    tiny = torch.finfo(y.dtype).tiny
    lengths = reach / slopes.norm(dim=1).clamp(min=tiny * max(reach, 1.0))  # finite also where the slope is zero
    for _ in range(steps):
        moved = project(y + lengths[:, None] * slopes)
        new_values, new_slopes = differentiate(score, moved)
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


def differentiate(score: Scores, y: Tensor) -> tuple[Tensor, Tensor]:  # (n,), (n, d)
    """Return the scores at y and their gradients. Kernels work in place, which torch does not allow by default."""
    with torch.enable_grad(), allow_mutation_on_saved_tensors():
        y = y.detach().clone().requires_grad_()
        values = score(y)
        (slopes,) = torch.autograd.grad(values.sum(), y)
    return values.detach(), slopes


def prepare_score(basis: SketchedBasis, z: Tensor, rule: Rule) -> Scores:
    """Return the differentiable function from y to the score of y_i for z_i; −∞ where the kernel is undefined."""
    kernel, anchors = basis.kernel, basis.anchors
    evaluate = kernel.against(anchors, None if rule == "kernel" else basis.weights)
    c = combine_anchors(basis, z)

    def score(y: Tensor) -> Tensor:
        if rule == "kernel":  # 2 Σ_j c_j k(y, a_j) − k(y, y) needs no coordinates
            return 2 * torch.linalg.vecdot(evaluate(y), c) - kernel.diag(y)
        return score_pairs(z, evaluate(y) @ basis.projection.T, kernel.diag(y), rule)

    def score_directions(y: Tensor) -> Tensor:
        is_zero = (y == 0).all(dim=1)
        return score(y.masked_fill(is_zero[:, None], 1.0)).masked_fill(is_zero, -torch.inf)

    return score if is_defined_at_zero(kernel) else score_directions


def is_defined_at_zero(kernel: Kernel) -> bool:
    """Whether a kernel on vectors takes the zero vector, which has no direction."""
    try:
        kernel.diag(torch.zeros(1, 1, dtype=torch.float64))
    except KernelError:
        return False
    return True
