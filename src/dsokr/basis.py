"""From a kernel and a sketch of the training outputs to a small orthonormal basis of the feature space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from dsokr.errors import InputError, KernelError, UndefinedAt
from dsokr.kernels import FeatureKernel, Kernel
from dsokr.kernels.base import Evaluate
from dsokr.outputs import Outputs, as_outputs, blocks, count, owned, take, to_device
from dsokr.sketches import Full, Sketch, SketchSpec

Rule = Literal["kernel", "projected", "cosine"]
RULES: tuple[Rule, ...] = get_args(Rule)

BLOCK = 2048  # outputs embedded at once
NEGATIVE = -1e-6  # eigenvalues below this share of the largest are no rounding error, even in single precision


@dataclass(frozen=True, eq=False)
class SketchedBasis:
    """The orthonormal functions ẽ_1, …, ẽ_p of the paper's Proposition 1.

    With anchors a_j, weights R and projection Ω, ẽ_i = Σ_j (Ω R)_ij k(·, a_j). An output y has the coordinates
    ψ̃(y) = (ẽ_1(y), …, ẽ_p(y)), and what the basis misses of it is its residual k(y, y) − ‖ψ̃(y)‖².
    """

    kernel: Kernel
    anchors: Outputs  # r outputs
    weights: Tensor | None  # R, (m, r); None is the identity
    projection: Tensor  # Ω, (p, m)

    @cached_property
    def _coordinates(self) -> Evaluate:  # ys -> (n, p)
        """ψ̃, with all that depends on the anchors alone computed in advance.

        With explicit features and no weights, ẽ_i = Σ_j Ω_ij k(·, a_j) is itself a vector of features, and the m values
        k(y, a_j) need not be computed.
        """
        if self.weights is None and isinstance(self.kernel, FeatureKernel):
            return self.kernel.against(self.anchors, self.projection)
        evaluate = self.kernel.against(self.anchors, self.weights)
        return lambda ys: evaluate(ys).to(self.projection) @ self.projection.T

    def __reduce__(self) -> tuple[Any, ...]:  # the prepared evaluation is made anew by a copy, not copied
        return SketchedBasis, (self.kernel, self.anchors, self.weights, self.projection)

    @property
    def dim(self) -> int:
        return len(self.projection)

    @property
    def size(self) -> int:
        """m, the number of sketched functions that the basis combines."""
        return self.projection.shape[1]

    @property
    def device(self) -> torch.device:
        return self.projection.device

    def to(self, device: torch.device | str) -> SketchedBasis:
        device = torch.device(device)
        weights = None if self.weights is None else self.weights.to(device)
        return SketchedBasis(self.kernel, to_device(self.anchors, device), weights, self.projection.to(device))

    def checked(self, z: Any) -> Tensor:  # (n, p)
        """Coefficients as float64 on the device of the basis, or a sentence on what is wrong with them."""
        if not isinstance(z, Tensor):
            try:
                z = torch.from_numpy(np.asarray(z, np.float64))
            except (TypeError, ValueError) as error:
                raise InputError(f"Coefficients must be numbers of shape (n, {self.dim}). Got {z!r:.60}.") from error
        z = z.detach()
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise InputError(f"Coefficients must have shape (n, {self.dim}), as the basis. Got {tuple(z.shape)}.")
        z = z.to(device=self.device, dtype=torch.float64)
        finite = torch.isfinite(torch.linalg.vecdot(z, z))
        if not finite.all():
            at = int((~finite).nonzero()[0])
            raise InputError(f"Coefficients must be finite, and so must their squares. Got NaN or inf in row {at}.")
        return z

    def embed(self, ys: Outputs) -> Tensor:  # (n, p)
        """ψ̃(y) = Ω R k^y for every output, in blocks: r kernel values and m · p multiplications an output.

        With explicit features and no weights, p additions for every feature of the output instead.
        """
        ys = as_outputs(ys, "outputs")
        z = torch.empty(count(ys), self.dim, dtype=torch.float64, device=self.device)
        for where, values in _in_blocks(self._coordinates, ys):
            z[where] = values
        return z

    def residual(self, ys: Outputs) -> Tensor:  # (n,)
        """k(y, y) − ‖ψ̃(y)‖², the squared distance of ψ(y) from the span."""
        return self._residual(ys, self.embed(ys))

    def embed_with_residual(self, ys: Outputs) -> tuple[Tensor, Tensor]:  # (n, p), (n,)
        """Both at the price of one."""
        z = self.embed(ys)
        return z, self._residual(ys, z)

    def _residual(self, ys: Outputs, z: Tensor) -> Tensor:
        return (self.diag(ys) - torch.linalg.vecdot(z, z)).clamp_(min=0)

    def diag(self, ys: Outputs) -> Tensor:  # (n,)
        return torch.cat([values.to(self.device) for _, values in _in_blocks(self.kernel.diag, ys)])

    def squared_distance(self, z: Tensor, ys: Outputs) -> Tensor:  # (n,)
        """‖Σ_j z_ij ẽ_j − ψ(y_i)‖², pair by pair: the distance in the whole feature space."""
        target, residual = self.embed_with_residual(ys)
        return (z.to(target) - target).square_().sum(dim=1).add_(residual)

    def score(self, z: Tensor, ys: Outputs, rule: Rule = "kernel") -> Tensor:  # (n, c)
        """How well each output fits each row of coefficients; larger is better. See :func:`embedded_scores`."""
        return embedded_scores(z, self.embed(ys), self.diag(ys), rule)

    def rotated(self, ys: Outputs, dim: int | None = None) -> SketchedBasis:
        """Sketched kernel PCA: the ``dim`` orthonormal directions of the span that keep most of the outputs' variance.

        Solves max ⟨f, Ĉ f⟩ over unit f in the span, one f after the other, with Ĉ the uncentred empirical covariance of
        ``ys``. The coordinates come out uncorrelated over ``ys``, in descending order of variance.
        """
        covariance = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.device)
        for _, block in blocks(ys, BLOCK):
            z = self.embed(block)
            covariance.addmm_(z.T, z)
        directions = torch.linalg.eigh(covariance).eigenvectors.flip(1)
        rotated = SketchedBasis(self.kernel, self.anchors, self.weights, directions.T @ self.projection)
        return rotated if dim is None else rotated.leading(dim)

    def leading(self, dim: int) -> SketchedBasis:
        """The first ``dim`` functions of the basis."""
        if not 1 <= dim <= self.dim:
            raise InputError(f"A basis of dimension {self.dim} has 1 to {self.dim} leading directions. Got {dim}.")
        return SketchedBasis(self.kernel, self.anchors, self.weights, self.projection[:dim])


def embedded_scores(z: Tensor, embedding: Tensor, diag: Tensor, rule: Rule) -> Tensor:  # (n, c)
    """Scores of outputs given by their coordinates ψ̃(y) and k(y, y), for every row z of coefficients.

    - ``"kernel"``: 2⟨z, ψ̃(y)⟩ − k(y, y), the paper's: minus the distance ‖h(x) − ψ(y)‖² up to a constant;
    - ``"projected"``: −‖z − ψ̃(y)‖², the distance within the span;
    - ``"cosine"``: ⟨z, ψ̃(y)⟩ / ‖ψ̃(y)‖, the angle within the span (0 for an output orthogonal to it, or so nearly that
      the square of its length is lost).
    """
    check_rule(rule)
    z = z.to(embedding)
    products = z @ embedding.T
    if rule == "kernel":
        return products.mul_(2).sub_(diag)
    squared = torch.linalg.vecdot(embedding, embedding)
    if rule == "projected":
        return products.mul_(2).sub_(squared).sub_(torch.linalg.vecdot(z, z)[:, None])
    return products.div_(squared.sqrt().masked_fill_(squared <= torch.finfo(squared.dtype).tiny, 1.0))


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise InputError(f"The decoding rule must be one of {', '.join(map(repr, RULES))}. Got {rule!r}.")


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
            raise InputError(
                f"A sketch of size {len(self.gram)} contains those of size 1 to {len(self.gram)}. Got {m}."
            )
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

    The second pass matters: an eigenvector of a small eigenvalue σ is only accurate to ε σ_1 / σ.
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
    # in plain row order, so that products with it are the same bits before and after a model is saved
    return torch.linalg.solve_triangular(factor, projection, upper=False).contiguous()


def sketch_span(
    kernel: Kernel,
    ys: Outputs,
    sketch: Sketch | SketchSpec,
    *,
    generator: Generator | None = None,
    device: torch.device | str = "cpu",
) -> SketchedSpan:
    """Draw the sketch (unless it is drawn already) and compute R K Rᵀ; see :func:`sketch_basis` for the cost."""
    device = torch.device(device)
    ys = as_outputs(ys)
    for _ in _in_blocks(kernel.diag, ys):
        pass  # a kernel that is undefined for some output says so here, by its index among all
    drawn = sketch if isinstance(sketch, Sketch) else _draw(kernel, ys, sketch, generator)
    everything = len(drawn.indices) == count(ys) and torch.equal(drawn.indices, torch.arange(count(ys)))
    anchors = to_device(owned(ys) if everything else take(ys, drawn.indices), device)
    weights = None if drawn.weights is None else drawn.weights.to(device)
    return SketchedSpan(kernel, anchors, weights, _sketched_gram(kernel, anchors, weights, device))


def _in_blocks(evaluate: Evaluate, ys: Outputs) -> Iterator[tuple[slice, Tensor]]:
    """Values block by block. An output that a kernel is undefined for is named by its index among all of them."""
    for where, block in blocks(ys, BLOCK):
        try:
            values = evaluate(block)
        except UndefinedAt as error:
            raise UndefinedAt(where.start + error.index, error.what, error.why) from None
        yield where, values


def _draw(kernel: Kernel, ys: Outputs, sketch: SketchSpec, generator: Generator | None) -> Sketch:
    if generator is None and not isinstance(sketch, Full):
        raise InputError(f"{type(sketch).__name__} is random: pass the generator to draw it with.")
    drawn_with = Generator() if generator is None else require_generator(generator)
    return sketch.draw(count(ys), drawn_with, lambda a, b: kernel(take(ys, a), take(ys, b)))


def require_generator(generator: object) -> Generator:
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
