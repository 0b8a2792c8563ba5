"""Choosing the sketch size by leverage scores and *Perfect h*, and all other open choices by held-out pairs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from dsokr.basis import SketchedBasis, SketchedSpan, check_generator, sketch_basis, sketch_span
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs
from dsokr.errors import InputError
from dsokr.kernels import Kernel
from dsokr.outputs import Form, Outputs, as_outputs, canonical, count, distinct, positions, take
from dsokr.regressors import Fitted
from dsokr.regressors.base import Metric, Monitor
from dsokr.rules import Rule
from dsokr.sketches import Full, SketchSpec, SubSample, approximate_leverage

FEW = 500  # outputs up to which all are used
HELD_OUT = 500  # outputs on which sizes are compared, at most
STEPS = 10  # steps to a better function, at most


def leverage_scores(
    kernel: Kernel,
    ys: Outputs,
    *,
    generator: Generator,
    regularization: float = 1e-4,
    pilot: int | None = None,
    probabilities: Tensor | None = None,
) -> Tensor:  # (n,)
    """Approximate ridge leverage scores of the outputs; see :func:`dsokr.sketches.approximate_leverage`.

    Where the sorted scores level off is an upper bound for a sensible sketch size. It cannot exceed what the pilot
    sample shows: with independent noise on the outputs, they level off right after the ``pilot`` outputs themselves.

    >>> from dsokr import kernels
    >>> ys = torch.eye(3, dtype=torch.float64)
    >>> leverage_scores(kernels.Linear(), ys, regularization=1 / 3, pilot=3, generator=Generator())
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    ys, generator = as_outputs(ys), check_generator(generator)

    def gram(a: Tensor, b: Tensor) -> Tensor:
        return kernel(take(ys, a), take(ys, b))

    return approximate_leverage(gram, count(ys), regularization, generator, pilot=pilot, probabilities=probabilities)


@dataclass(frozen=True, eq=False)
class SizeCurve:
    """How well a perfect regressor would do at every sketch size."""

    sizes: tuple[int, ...]
    values: Tensor  # (replicates, sizes)
    larger_is_better: bool

    def mean(self) -> Tensor:  # (sizes,)
        return self.values.mean(dim=0)


def perfect_h(
    kernel: Kernel,
    ys: Outputs,
    validation: Outputs,
    sketch: SketchSpec,
    sizes: Iterable[int],
    *,
    generator: Generator,
    metric: Metric | None = None,
    candidates: Outputs | None = None,
    rule: Rule = "kernel",
    replicates: int = 1,
    device: torch.device | str = "cpu",
) -> SizeCurve:
    """*Perfect h*: use the true coordinates ψ̃(y) in place of predicted ones, and measure how well each size does.

    Without a metric the value is the mean of ‖h(x) − ψ(y)‖², the residual of the validation outputs. With a metric,
    coordinates are decoded among ``candidates`` (default: the distinct training outputs) and the value is
    ``metric(predicted, true)``. The sizes share one draw of the largest sketch, of which smaller ones take the first
    rows, so that all kernel values are computed once. ``sketch.size`` is ignored.
    """
    sizes = tuple(sorted(set(sizes)))
    (ys, ys_form), valid = canonical(ys), canonical(validation, "validation")
    if not sizes or replicates < 1:
        raise InputError("perfect_h needs at least one sketch size and one replicate.")
    if isinstance(sketch, Full):
        raise InputError("Full has no size to choose. Use SubSample, Gaussian, Sparsified, Hadamard or LeverageSample.")
    largest = replace(sketch, size=sizes[-1])  # type: ignore[type-var] # every specification but Full is a dataclass with a size
    pool = (take(ys, distinct(ys)), ys_form) if candidates is None else canonical(candidates, "candidates")
    values = []
    for _ in range(replicates):
        span = sketch_span(kernel, ys, largest, generator=generator, device=device)
        values.append(_compute_curve(span, valid, sizes, metric, pool, rule))
    return SizeCurve(sizes, torch.tensor(values, dtype=torch.float64), larger_is_better=metric is not None)


def _compute_curve(
    span: SketchedSpan,
    valid: tuple[Outputs, Form],
    sizes: tuple[int, ...],
    metric: Metric | None,
    pool: tuple[Outputs, Form],
    rule: Rule,
) -> list[float]:
    bases, (validation, form), (candidates, candidates_form) = [span.basis(m) for m in sizes], valid, pool
    functions = span.evaluate(validation)
    coordinates = [functions[:, : basis.size] @ basis.projection.T for basis in bases]
    if metric is None:
        diag = bases[0].diag(validation)
        return [(diag - torch.linalg.vecdot(z, z)).clamp(min=0).mean().item() for z in coordinates]
    pool_functions, pool_diag = span.evaluate(candidates), bases[0].diag(candidates)
    values = []
    for basis, z in zip(bases, coordinates, strict=True):
        embedding = pool_functions[:, : basis.size] @ basis.projection.T
        known = EmbeddedOutputs(basis, candidates, coordinates=(embedding, pool_diag), form=candidates_form)
        predicted = Candidates(rule=rule).decode(basis, z, known).outputs
        values.append(float(metric(predicted, form.restore(validation))))
    return values


def choose_size(curve: SizeCurve, tolerance: float = 0.01) -> int:
    """The smallest size whose mean value is within ``tolerance`` of the best, as a share of the best-to-worst range.

    >>> choose_size(SizeCurve((10, 20, 40), torch.tensor([[5.0, 1.02, 1.0]]), larger_is_better=False))
    20
    """
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance must be in [0, 1). Got {tolerance}.")
    means = curve.mean()
    for size, value in zip(curve.sizes, means.tolist(), strict=True):
        if not math.isfinite(value):
            raise InputError(f"Sizes are compared by finite values. Got {value:g} at size {size}.")
    loss = -means if curve.larger_is_better else means
    good = loss - loss.min() <= tolerance * (loss.max() - loss.min())
    return curve.sizes[int(good.nonzero()[0])]


def choose_sketch(kernel: Kernel, ys: Outputs, *, seed: int, device: torch.device) -> SketchSpec:
    """Take all outputs if they are few, else the fewest whose span almost holds held-out ones, by *Perfect h*."""
    n = count(ys)
    if n <= FEW:
        return Full()
    order = torch.randperm(n, generator=Generator().manual_seed(seed))
    held_out, rest = order[: min(n // 10, HELD_OUT)], order[min(n // 10, HELD_OUT) :]
    sizes = [2**i for i in range(5, 12) if 2**i < len(rest)]
    curve = perfect_h(
        kernel,
        take(ys, rest),
        take(ys, held_out),
        SubSample(1),
        sizes,
        generator=Generator().manual_seed(seed),
        device=device,
    )
    return SubSample(choose_size(curve, tolerance=0.02))


def make_basis(
    kernel: Kernel, ys: Outputs, sketch: Any, dim: int | None, generator: Generator, device: torch.device
) -> tuple[SketchSpec, SketchedBasis, Tensor]:
    """Return the sketch, chosen if it is "auto", the basis, and the state of the generator after both."""
    if sketch == "auto":
        sketch = choose_sketch(kernel, ys, seed=generator.initial_seed(), device=device)
    basis = sketch_basis(kernel, ys, sketch, generator=generator, device=device)
    return sketch, basis if dim is None else basis.rotated(ys, dim), generator.get_state()


@dataclass(frozen=True, eq=False)
class Judge:
    """Rates predicted coordinates by the monitor of a regressor, and chooses between decoders and functions."""

    known: EmbeddedOutputs
    form: Form  # of the true outputs
    monitor: Monitor

    def rate(self, Y: Outputs, z: Tensor, decoder: Decoder) -> Tensor:  # (n,), or (1,)
        """Rate the coordinates of inputs whose true outputs are Y, with one decoder; larger is better."""
        if self.monitor == "mrr":
            return self.known.ranks(z, positions(Y, self.known.outputs), decoder.scoring_rule()).reciprocal()
        predicted = decoder.decode(self.known.basis, z, self.known).outputs
        if callable(self.monitor):
            return torch.tensor([float(self.monitor(predicted, self.form.restore(Y)))], dtype=torch.float64)
        return -self.known.basis.kernel.squared_distances(as_outputs(predicted), Y)

    def rate_best(self, choices: Sequence[Decoder], Y: Outputs, z: Tensor) -> float:
        """Return the mean rating with the best of several decoders."""
        return max(self.rate(Y, z, choice).mean().item() for choice in choices)

    def decide(self, fitted: Fitted, choices: Sequence[Decoder], held_out: Any, Y: Outputs) -> tuple[Fitted, Decoder]:
        """Choose the decoder and then, step by step, a better function, by held-out pairs, if there are any."""
        if held_out is None and fitted.out_of_fold() is None:
            return fitted, choices[0]

        def rate(function: Fitted, choice: Decoder) -> Tensor:
            if held_out is not None:
                z = function.on_validation()
                return self.rate(held_out[1], function.predict(held_out[0]) if z is None else z, choice)
            rows, z = function.out_of_fold()  # type: ignore[misc] # there are some
            step = max(1, len(rows) // choice.rated)
            return self.rate(take(Y, rows[::step]), z[::step], choice)

        decoder = max(choices, key=lambda choice: rate(fitted, choice).mean()) if len(choices) > 1 else choices[0]
        now = rate(fitted, decoder) if len(fitted.alternatives()) > 1 else torch.empty(0)
        for _ in range(STEPS):
            rated = [(other, rate(other, decoder)) for other in fitted.alternatives()[1:]]
            better = [(other, new) for other, new in rated if _is_better(new, now)]
            if not better:
                break
            fitted, now = max(better, key=lambda pair: pair[1].mean().item())
        return fitted, decoder


def _is_better(new: Tensor, old: Tensor) -> bool:
    """Whether ratings of the same pairs are better on average, by more than the standard error."""
    gain = new - old
    return bool(gain.mean() > gain.std(correction=0) / len(gain) ** 0.5)
