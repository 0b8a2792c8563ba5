"""Sketched Input, Sketched Output Kernel Regression: ridge regression between two sketched bases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from numbers import Real
from typing import Any, NamedTuple

import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from dsokr.basis import BLOCK, SketchedBasis, sketch_basis
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs, Ranking
from dsokr.compute import resolve_device
from dsokr.errors import InputError, require_k
from dsokr.kernels import Kernel
from dsokr.kernels.base import Evaluate
from dsokr.outputs import Outputs, as_outputs, blocks, count, take
from dsokr.sketches import SketchSpec
from dsokr.regressors.training import Metric


@dataclass(frozen=True, eq=False)
class SketchedRidge:
    """Ridge regression on the coordinates of n inputs in a basis: one eigendecomposition serves every λ.

    With Z (n, p) the coordinates, Zᵀ Z = U D Uᵀ and (Zᵀ Z + n λ I)^{-1} = U (D + n λ)^{-1} Uᵀ.
    """

    n: int
    covariance: Tensor  # Zᵀ Z, (p, p)
    cross: Tensor  # Zᵀ T, (p, c), for targets T

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:  # D (p,), U (p, p)
        values, vectors = torch.linalg.eigh(self.covariance)
        return values.clamp(min=0), vectors

    def solve(self, right: Tensor, regularization: float) -> Tensor:  # (p, q) -> (p, q)
        """(Zᵀ Z + n λ I)^{-1} times the right side."""
        values, vectors = self.spectrum
        return vectors @ ((vectors.T @ right) / (values + self.n * regularization)[:, None])


def sketched_ridge(
    basis: SketchedBasis, X: Outputs, targets: Evaluate | None = None, Y: Outputs = None, columns: int = 0
) -> SketchedRidge:
    """Zᵀ Z and Zᵀ T for the c = ``columns`` targets T = targets(Y), over blocks of pairs: neither Z nor T is held.

    Time is O(n p (m + p + c)), memory O(p (p + c)) and a block.
    """
    covariance, cross = (
        torch.zeros(basis.dim, c, dtype=torch.float64, device=basis.device) for c in (basis.dim, columns)
    )
    for where, block in blocks(X, BLOCK):
        z = basis.embed(block)
        covariance.addmm_(z.T, z)
        if targets is not None:
            cross.addmm_(z.T, targets(take(Y, where)).to(z))
    return SketchedRidge(count(X), covariance, cross)


class Trial(NamedTuple):
    """What was tried on the validation pairs, and how well it did (better when larger)."""

    regularization: float
    decoder: Decoder
    score: float


class SISOKR(BaseEstimator):
    """min over W of (1/n) Σ_i ‖Wᵀ ψ̃_x(x_i) − ψ̃_y(y_i)‖² + λ ‖W‖², then decoding as :class:`dsokr.DSOKR` does.

    The coordinates ψ̃_x are in a sketched basis of the input kernel, ψ̃_y in one of the output kernel, and with Z_x, Z_y
    their rows over the training pairs W = (Z_xᵀ Z_x + n λ I)^{-1} Z_xᵀ Z_y. With ``sketches.Full()`` on both sides it
    is input output kernel regression (IOKR), without a sketch on the outputs alone it is Nyström's approximation of it.

    Parameters
    ----------
    input_kernel, kernel : the similarities of inputs and of outputs.
    input_sketch, sketch : how their bases are drawn from the training pairs.
    regularization : λ > 0, or several, of which ``fit`` keeps the best on its validation pairs.
    decoder : how coefficients become an output; by default the best of the distinct training outputs.
    monitor : what is best on the validation pairs, f(predicted, true), better when larger; None: minus the mean of the
        kernel loss ‖ψ(ŷ) − ψ(y)‖².
    random_state : seed of the two sketches.
    device : "auto", "cpu", "cuda" or "cuda:1".

    After ``fit``: ``input_basis_``, ``basis_``, ``weights_`` (W), ``regularization_`` and ``decoder_`` (settled),
    ``known_`` (the embedded candidates) and ``trials_`` (what validation was asked to decide between).

    >>> from dsokr import kernels, sketches
    >>> words = ["CCO", "CCN", "CCCO", "CCCN", "OCCO", "NCCN"] * 5
    >>> ngrams = kernels.NGram((1, 2))
    >>> model = SISOKR(ngrams, ngrams.normalized(), sketches.Full(), sketches.Full(), random_state=0)
    >>> model.fit(words, words).predict(["NCCN", "CCCO"])
    ['NCCN', 'CCCO']
    """

    def __init__(
        self,
        input_kernel: Kernel,
        kernel: Kernel,
        input_sketch: SketchSpec,
        sketch: SketchSpec,
        *,
        regularization: float | Sequence[float] = 1e-6,
        decoder: Decoder = Candidates(),  # noqa: B008 # frozen, so sharing it is harmless
        monitor: Metric | None = None,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.input_kernel = input_kernel
        self.kernel = kernel
        self.input_sketch = input_sketch
        self.sketch = sketch
        self.regularization = regularization
        self.decoder = decoder
        self.monitor = monitor
        self.random_state = random_state
        self.device = device

    def fit(self, X: Outputs, Y: Outputs, validation: tuple[Outputs, Outputs] | None = None) -> SISOKR:
        """Solve the ridge regression; what is left open (several λ, the decoding rule) is settled on ``validation``.

        With n pairs, sketches of size m and bases of dimension p the cost is O(n m p) time and O(m² + m · block)
        memory; decoding over the training outputs holds their n × p coordinates besides.
        """
        self._check_parts()
        values = regularizations("SISOKR", self.regularization)
        X, Y = paired("SISOKR", X, Y)
        if len(values) > 1 and validation is None:
            raise InputError(
                "SISOKR.regularization is several values: pass validation=(X, Y) to choose on, or give one."
            )
        held_out = None if validation is None else paired("SISOKR, validation", *validation)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator, device = Generator().manual_seed(seed), resolve_device(self.device)

        input_basis = sketch_basis(self.input_kernel, X, self.input_sketch, generator=generator, device=device)
        basis = sketch_basis(self.kernel, Y, self.sketch, generator=generator, device=device)
        evaluate = self.kernel.against(basis.anchors, basis.weights)
        ridge = sketched_ridge(input_basis, X, evaluate, Y, basis.size)
        cross = ridge.cross @ basis.projection.T  # Z_xᵀ Z_y: projecting the sum is cheaper than projecting all outputs

        self.input_basis_, self.basis_ = input_basis, basis
        self.known_ = EmbeddedOutputs(basis, self.decoder.known(Y))
        weights = (ridge.solve(cross, value) for value in values)
        self.trials_ = [] if held_out is None else self._trials(values, weights, *held_out)
        best = max(self.trials_, key=lambda trial: trial.score, default=None)
        self.regularization_ = values[0] if best is None else best.regularization
        self.decoder_ = self.decoder.alternatives()[0] if best is None else best.decoder
        self.weights_ = ridge.solve(cross, self.regularization_)  # (p_x, p_y)
        return self

    def coefficients(self, X: Outputs) -> Tensor:  # (n, p)
        """g(x) = Wᵀ ψ̃_x(x), the predicted coordinates in the basis of the outputs."""
        check_is_fitted(self, "weights_")
        return self.input_basis_.embed(as_outputs(X, "X")) @ self.weights_

    def rank(self, X: Outputs, candidates: Outputs | None = None, k: int = 10) -> Ranking:
        """The k best candidates for every input, best first: positions in ``candidates`` and scores."""
        k, z = require_k(k), self.coefficients(X)
        known = self.known_ if candidates is None else EmbeddedOutputs(self.basis_, candidates, keep=False)
        return known.top(z, k, self.decoder_.scoring_rule())

    def predict(self, X: Outputs) -> Outputs:
        """One output per input, in the form in which ``fit`` got them."""
        z = self.coefficients(X)
        return self.decoder_.decode(self.basis_, z, self.known_).outputs

    def _trials(self, values: Sequence[float], weights: Iterable[Tensor], X: Outputs, Y: Outputs) -> list[Trial]:
        choices = self.decoder.alternatives()
        if len(values) * len(choices) == 1:
            return []
        inputs = self.input_basis_.embed(X)
        zs = [inputs @ w for w in weights]
        return [
            Trial(value, decoder, self._score(decoder.decode(self.basis_, z, self.known_).outputs, Y))
            for (value, z), decoder in product(zip(values, zs, strict=True), choices)
        ]

    def _score(self, predicted: Outputs, Y: Outputs) -> float:
        if self.monitor is not None:
            return float(self.monitor(predicted, Y))
        k = self.kernel
        return -(k.diag(predicted) - 2 * k.paired(predicted, Y) + k.diag(Y)).mean().item()

    def _check_parts(self) -> None:
        parts = (("input_kernel", Kernel), ("kernel", Kernel), ("input_sketch", SketchSpec), ("sketch", SketchSpec))
        for name, kind in (*parts, ("decoder", Decoder)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"SISOKR.{name} must be a {kind.__name__}. Got {getattr(self, name)!r}.")
        if self.monitor is not None and not callable(self.monitor):
            raise InputError(f"SISOKR.monitor must be a function of outputs, or None. Got {self.monitor!r}.")
        self.decoder.check(self.kernel)


def regularizations(owner: str, given: float | Sequence[float]) -> tuple[float, ...]:
    """One λ or several, checked."""
    values: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (given,)
    if not values or not all(isinstance(value, Real) and 0 < float(value) < float("inf") for value in values):
        raise InputError(f"{owner}.regularization must be a positive number, or several. Got {given!r}.")
    return tuple(map(float, values))


def paired(owner: str, X: Outputs, Y: Outputs) -> tuple[Outputs, Outputs]:
    """Inputs and outputs, checked to be as many."""
    X, Y = as_outputs(X, "X"), as_outputs(Y, "Y")
    if count(X) != count(Y):
        raise InputError(f"{owner}: X and Y must have as many rows. Got {count(X)} inputs and {count(Y)} outputs.")
    return X, Y
