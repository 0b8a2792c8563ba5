"""From a kernel and a sketch of the training outputs to a small orthonormal basis of the feature space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dsokr.errors import InputError, KernelError, UndefinedAt
from dsokr.kernels import FeatureKernel, Kernel
from dsokr.kernels.base import Evaluate
from dsokr.outputs import Outputs, as_outputs, blocks, count, take, to_device
from dsokr.rules import Rule, score
from dsokr.sketches import Full, Sketch, SketchSpec

BLOCK = 2048  # outputs embedded at once
NEGATIVE = -1e-6  # eigenvalues below this share of the largest are not rounding errors


@dataclass(frozen=True, eq=False)
class SketchedBasis:
    """The orthonormal functions ẽ_1, …, ẽ_p of the paper's Proposition 1.

    With anchors a_j, weights R and projection Ω, ẽ_i = Σ_j (Ω R)_ij k(·, a_j). An output y has the coordinates
    ψ̃(y) = (ẽ_1(y), …, ẽ_p(y)) and the residual k(y, y) − ‖ψ̃(y)‖², which the basis misses.
    """

    kernel: Kernel
    anchors: Outputs  # r outputs
    weights: Tensor | None  # R, (m, r); None is the identity
    projection: Tensor  # Ω, (p, m)

    @cached_property
    def _evaluate(self) -> Evaluate:  # ys -> (n, p)
        """ψ̃ as a function, prepared with everything that depends on the anchors alone.

        With explicit features and no weights, ẽ_i = Σ_j Ω_ij k(·, a_j) is itself a vector of features, and the m values
        k(y, a_j) need not be computed.
        """
        if self.weights is None and isinstance(self.kernel, FeatureKernel):
            return self.kernel.against(self.anchors, self.projection)
        evaluate = self.kernel.against(self.anchors, self.weights)
        return lambda ys: evaluate(ys).to(self.projection) @ self.projection.T

    def __reduce__(self) -> tuple[Any, ...]:  # without the prepared evaluation
        return SketchedBasis, (self.kernel, self.anchors, self.weights, self.projection)

    @property
    def dim(self) -> int:
        return len(self.projection)

    @property
    def size(self) -> int:
        """m, the size of the sketch."""
        return self.projection.shape[1]

    @property
    def device(self) -> torch.device:
        return self.projection.device

    def to(self, device: torch.device | str) -> SketchedBasis:
        weights = None if self.weights is None else self.weights.to(device)
        return SketchedBasis(self.kernel, to_device(self.anchors, device), weights, self.projection.to(device))

    def check_coordinates(self, z: Any) -> Tensor:  # (n, p)
        """Return coordinates as float64 on the device of the basis, if they are finite and of its dimension."""
        try:
            z = z.detach() if isinstance(z, Tensor) else torch.from_numpy(np.array(z, np.float64))
        except (TypeError, ValueError) as error:
            raise InputError(f"Coordinates must be numbers of shape (n, {self.dim}). Got {z!r:.60}.") from error
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise InputError(f"Coordinates must have shape (n, {self.dim}), as the basis. Got {tuple(z.shape)}.")
        z = z.to(device=self.device, dtype=torch.float64)
        finite = torch.isfinite(z).all(dim=1)
        if not finite.all():
            raise InputError(f"Coordinates must be finite. Got NaN or inf in row {int((~finite).nonzero()[0])}.")
        return z

    def embed(self, ys: Outputs) -> Tensor:  # (n, p)
        """ψ̃(y) = Ω R k^y for every output, in blocks: r kernel values and m · p multiplications an output.

        With explicit features and no weights, p additions for every feature of the output instead.
        """
        ys = as_outputs(ys, "outputs")
        z = torch.empty(count(ys), self.dim, dtype=torch.float64, device=self.device)
        for where, values in _in_blocks(self._evaluate, ys):
            z[where] = values
        return z

    def residual(self, ys: Outputs) -> Tensor:  # (n,)
        """k(y, y) − ‖ψ̃(y)‖², the squared distance of ψ(y) from the span."""
        return self.embed_with_residual(ys)[1]

    def embed_with_residual(self, ys: Outputs) -> tuple[Tensor, Tensor]:  # (n, p), (n,)
        """Coordinates and residuals, at the cost of the coordinates alone."""
        z = self.embed(ys)
        return z, (self.diag(ys) - torch.linalg.vecdot(z, z)).clamp_(min=0)

    def diag(self, ys: Outputs) -> Tensor:  # (n,)
        """k(y, y) for every output."""
        ys = as_outputs(ys, "outputs")
        return torch.cat([values.to(self.device) for _, values in _in_blocks(self.kernel.diag, ys)])

    def squared_distance(self, z: Tensor, ys: Outputs) -> Tensor:  # (n,)
        """‖Σ_j z_ij ẽ_j − ψ(y_i)‖², pair by pair: the distance in the whole feature space."""
        target, residual = self.embed_with_residual(ys)
        return (z.to(target) - target).square_().sum(dim=1).add_(residual)

    def score(self, z: Tensor, ys: Outputs, rule: Rule = "kernel") -> Tensor:  # (n, c)
        """How well each output fits each row of coordinates; larger is better. See :mod:`dsokr.rules`."""
        return score(z, self.embed(ys), self.diag(ys), rule)

    def rotated(self, ys: Outputs, dim: int | None = None) -> SketchedBasis:
        """Sketched kernel PCA: the ``dim`` orthonormal directions of the span that keep most of the outputs' variance.

        Solves max ⟨f, Ĉ f⟩ over unit f in the span, one f after the other, with Ĉ the uncentred empirical covariance of
        ``ys``. The coordinates come out uncorrelated over ``ys``, in descending order of variance.
        """
        covariance = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.device)
        for _, z in _in_blocks(self._evaluate, as_outputs(ys)):
            covariance.addmm_(z.T, z)
        directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)
        rotated = replace(self, projection=directions.T @ self.projection)
        return rotated if dim is None else rotated.leading(dim)

    def leading(self, dim: int) -> SketchedBasis:
        """The first ``dim`` functions of the basis."""
        if not 1 <= dim <= self.dim:
            raise InputError(f"A basis of dimension {self.dim} has 1 to {self.dim} leading directions. Got {dim}.")
        return replace(self, projection=self.projection[:dim])


@dataclass(frozen=True, eq=False)
class SketchedSpan:
    """The functions s_i = Σ_j R_ij k(·, a_j) that a sketch makes of the outputs, and their Gram matrix R K Rᵀ."""

    kernel: Kernel
    anchors: Outputs  # r outputs
    weights: Tensor | None  # R, (m, r); None is the identity
    gram: Tensor  # R K Rᵀ, (m, m)

    def basis(self, size: int | None = None, rtol: float = 1e-10) -> SketchedBasis:
        """The orthonormal basis of the span, or of its first ``size`` functions: a sketch of that size."""
        m = len(self.gram) if size is None else size
        if not 1 <= m <= len(self.gram):
            raise InputError(f"The sketch has sizes 1 to {len(self.gram)}. Got {m}.")
        projection = orthonormal_projection(self.gram[:m, :m], rtol)
        if self.weights is None:
            return SketchedBasis(self.kernel, take(self.anchors, slice(m)), None, projection)
        return SketchedBasis(self.kernel, self.anchors, self.weights[:m], projection)

    def evaluate(self, ys: Outputs) -> Tensor:  # (n, m)
        """s_i(y) = (R k^y)_i for every output: one row serves the bases of all sizes."""
        evaluate = self.kernel.against(self.anchors, self.weights)
        return torch.cat([values.to(self.gram) for _, values in _in_blocks(evaluate, ys)])


def orthonormal_projection(gram: Tensor, rtol: float) -> Tensor:  # (p, m)
    """Ω with Ω G Ωᵀ = I whose rows span the numerical range of G = V D Vᵀ: D^{-1/2} Vᵀ, orthonormalised once more.

    The second pass matters: the eigenvector of a small eigenvalue σ is only accurate to ε σ_1 / σ.
    """
    if not torch.isfinite(gram).all():
        raise KernelError("The sketched Gram matrix is not finite: some kernel values are NaN or too large.")
    values, vectors = torch.linalg.eigh(gram)
    largest, smallest = values[-1], values[0]
    if largest <= 0:
        raise KernelError(f"The sketched Gram matrix has no positive eigenvalue. Its largest is {largest.item():g}.")
    if smallest < NEGATIVE * largest:
        raise KernelError(
            "The kernel is not positive semi-definite: the smallest eigenvalue of the sketched Gram matrix is "
            f"{smallest.item():.4g}, the largest {largest.item():.4g}."
        )
    keep = values > rtol * largest
    projection = (vectors[:, keep] / values[keep].sqrt()).T.flip(0)
    factor = torch.linalg.cholesky(projection @ gram @ projection.T)
    # contiguous, so that products with it are bit-identical before and after saving
    return torch.linalg.solve_triangular(factor, projection, upper=False).contiguous()


def sketch_span(
    kernel: Kernel,
    ys: Outputs,
    sketch: Sketch | SketchSpec,
    *,
    generator: Generator | None = None,
    device: torch.device | str = "cpu",
) -> SketchedSpan:
    """Draw the sketch, unless it is drawn already, and compute R K Rᵀ; see :func:`sketch_basis` for the cost."""
    ys, device = as_outputs(ys), torch.device(device)
    for _ in _in_blocks(kernel.diag, ys):
        pass  # raises an error that names the first output for which the kernel is undefined
    drawn = sketch if isinstance(sketch, Sketch) else _draw_sketch(kernel, ys, sketch, generator)
    anchors = to_device(take(ys, drawn.indices), device)
    weights = None if drawn.weights is None else drawn.weights.to(device)
    return SketchedSpan(kernel, anchors, weights, _sketched_gram(kernel, anchors, weights, device))


def _in_blocks(evaluate: Evaluate, ys: Outputs) -> Iterator[tuple[slice, Tensor]]:
    """Values block by block. Where the kernel is undefined, the error names the output by its index among all."""
    for where, block in blocks(ys, BLOCK):
        try:
            values = evaluate(block)
        except UndefinedAt as error:
            raise UndefinedAt(where.start + error.index, error.what, error.why) from None
        yield where, values


def _draw_sketch(kernel: Kernel, ys: Outputs, sketch: SketchSpec, generator: Generator | None) -> Sketch:
    if generator is None and not isinstance(sketch, Full):
        raise InputError(f"{type(sketch).__name__} is random: pass the generator to draw it with.")
    generator = Generator() if generator is None else check_generator(generator)
    return sketch.draw(count(ys), generator, lambda a, b: kernel(take(ys, a), take(ys, b)))


def check_generator(generator: object) -> Generator:
    if not isinstance(generator, Generator):
        raise InputError(f"generator must be a torch.Generator, such as Generator().manual_seed(0). Got {generator!r}.")
    return generator


def _sketched_gram(kernel: Kernel, anchors: Outputs, weights: Tensor | None, device: torch.device) -> Tensor:  # (m, m)
    evaluate = kernel.against(anchors, weights)
    m = count(anchors) if weights is None else len(weights)
    gram = torch.zeros(m, m, dtype=torch.float64, device=device)
    for where, values in _in_blocks(evaluate, anchors):
        if weights is None:
            gram[where] = values.to(gram)
        else:
            gram.addmm_(weights[:, where], values.to(gram))
    return (gram + gram.T) / 2


def sketch_basis(
    kernel: Kernel,
    ys: Outputs,
    sketch: Sketch | SketchSpec,
    *,
    generator: Generator | None = None,
    rtol: float = 1e-10,
    device: torch.device | str = "cpu",
) -> SketchedBasis:
    """The basis of the span of R's rows in feature space: Ω = D^{-1/2} Vᵀ from R K Rᵀ = V D Vᵀ.

    Eigenvalues up to ``rtol`` times the largest are cut off, so p ≤ m is the numerical rank. A specification
    (``SubSample(100)``) is drawn here with ``generator``; a drawn ``Sketch`` is taken as it is. The n × n Gram matrix
    is never formed: beside the outputs and the sketch, memory is O(m² + m · block). With r anchors, time is r² kernel
    values (m · r with an explicit feature map) and O(m² r + m³) for the rest.

    >>> from dsokr import kernels, sketches
    >>> ys = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> basis = sketch_basis(kernels.Linear(), ys, sketches.SubSample(10), generator=torch.Generator().manual_seed(0))
    >>> basis.dim  # the outputs span three dimensions
    3
    """
    return sketch_span(kernel, ys, sketch, generator=generator, device=device).basis(rtol=rtol)
