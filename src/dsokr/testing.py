"""Checks for your own kernels and regressors."""

import json
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dsokr.errors import InputError, KernelError
from dsokr.graphs import Graph, permuted
from dsokr.kernels import Kernel
from dsokr.outputs import Outputs, as_outputs, count, take
from dsokr.regressors import Fitted, Regressor, Targets
from dsokr.regressors.auto import prepare_reading
from dsokr.saving import pack, unpack

P, NOISE = 8, 5_437_219  # coordinates that regressors learn, and a seed that no input is drawn with
LEARNING: dict[str, Any] = {"seed": 0, "device": torch.device("cpu")}


def check_kernel(kernel: Kernel, ys: Outputs, tolerance: float = 1e-8) -> None:
    """Check a kernel on some twenty outputs; raise a :class:`KernelError` that says what is wrong.

    The checks are shapes and types, symmetry, positive semi-definiteness, the diagonal, independence of how outputs are
    batched, ``against`` with and without weights, and that the kernel is hashable (a frozen dataclass); on graphs, also
    that values do not depend on the numbering of nodes.

    >>> from dsokr import kernels
    >>> check_kernel(kernels.Gaussian(0.5), [[0.0], [1.0], [3.0]])
    """
    ys = as_outputs(ys)
    n = count(ys)
    if n < 2:
        raise KernelError(f"To check a kernel, give at least two outputs. Got {n}.")
    K, diag = kernel(ys, ys), kernel.diag(ys)
    _require(_is_float64(K, (n, n)), kernel, f"must return a float64 tensor of shape ({n}, {n})")
    _require(_is_float64(diag, (n,)), kernel, f"diag must return a float64 tensor of shape ({n},)")
    scale = K.abs().max().item()
    same = partial(torch.allclose, rtol=tolerance, atol=tolerance * max(scale, 1e-300))
    _require(bool(torch.isfinite(K).all()), kernel, "must be finite")
    _require(same(K, K.T), kernel, "is not symmetric")
    _require(same(K.diagonal(), diag), kernel, "has a diag that is not k(y, y)")
    smallest = torch.linalg.eigvalsh((K + K.T) / 2)[0].item()
    message = f"is not positive semi-definite: the smallest eigenvalue of a Gram matrix is {smallest:.4g}"
    _require(smallest >= -max(tolerance, 1e-12 * n) * scale, kernel, message)
    few, rest = take(ys, slice(0, n // 2)), take(ys, slice(n // 2, n))
    _require(same(kernel(few, rest), K[: n // 2, n // 2 :]), kernel, "depends on which outputs are evaluated together")
    _require(same(kernel.against(rest)(few), kernel(few, rest)), kernel, "against(anchors) differs from its values")
    weights = torch.linspace(-1, 1, 2 * count(rest), dtype=torch.float64).reshape(2, -1)
    combined = kernel.against(rest, weights)(few)
    _require(same(combined, kernel(few, rest) @ weights.T), kernel, "against(anchors, weights) differs from its values")
    if isinstance(ys[0], Graph):
        rng = np.random.default_rng(0)
        renumbered = [permuted(graph, rng.permutation(len(graph.labels)).tolist()) for graph in ys]
        _require(same(kernel(renumbered, ys), K), kernel, "depends on how the nodes of a graph are numbered")
    try:
        hash(kernel)
    except TypeError as error:
        raise KernelError(f"{kernel} must be hashable: make it a frozen dataclass.") from error


def check_regressor(regressor: Regressor, X: Any, *, weights: bool = True, tolerance: float = 1e-5) -> None:
    """Check a regressor on some forty inputs, as ``fit`` gets them; raise an :class:`InputError` if something is wrong.

    The regressor learns noise. The checks are shapes and types; that a seed gives the same function again; that the
    prediction of an input does not depend on the others; that a row of weight two counts as two rows, and one of weight
    zero as none; that ``restore`` gives the same function back from ``state``, which holds tensors, arrays and JSON
    values; and that predictions out of fold have not seen their pairs. ``weights=False`` leaves out the check of
    weights, for regressors that draw from the rows, or choose something by leaving some out.

    >>> from dsokr import kernels
    >>> from dsokr.regressors import KernelRidge
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> check_regressor(KernelRidge(kernels.Gaussian(0.5), regularization=0.01), X)
    """
    n = count(X)
    if n < 20:
        raise InputError(f"To check a regressor, give at least 20 inputs. Got {n}.")
    X, unused = prepare_reading(regressor, X)[1].read(X), deepcopy(regressor)
    noise = torch.randn(n, P, generator=Generator().manual_seed(NOISE), dtype=torch.float64)
    targets = Targets(noise, torch.zeros(n, dtype=torch.float64))
    fitted = regressor.fit(X, targets, **LEARNING)
    z = fitted.predict(X)
    _require_coordinates(z, regressor, "predict", n)
    same = partial(torch.allclose, rtol=tolerance, atol=tolerance * z.abs().max().item())
    again = regressor.fit(X, targets, **LEARNING).predict(X)
    _require(torch.equal(again, z), regressor, "learns something else from the same pairs and seed")
    few = [n - 1, 3, 1]
    _require(same(fitted.predict(take(X, few)), z[few]), regressor, "depends on which inputs are predicted together")
    _require(torch.equal(_restore(unused, fitted).predict(X), z), regressor, "predicts otherwise once restored")
    _check_out_of_fold(regressor, X, targets)
    if weights:
        repeats = torch.arange(n) % 3
        rows = torch.arange(n).repeat_interleave(repeats)
        weighted = regressor.fit(X, targets._replace(weights=repeats.double()), **LEARNING)
        repeated = regressor.fit(take(X, rows), targets.take(rows), **LEARNING)
        message = "learns from weights otherwise than from repeated rows"
        _require(same(weighted.predict(X), repeated.predict(X)), regressor, message)


def _restore(regressor: Regressor, fitted: Fitted) -> Fitted:
    """Save what was learned as models do, and read it again."""
    tensors: dict[str, Tensor] = {}
    try:
        packed = json.dumps(pack(fitted.state(), "state", tensors))
    except (TypeError, ValueError, LookupError) as error:
        message = "has a state that cannot be saved: it must consist of tensors, arrays and JSON values"
        raise InputError(f"{regressor} {message} ({error}).") from error
    state = unpack(json.loads(packed), "state", {name: tensor.clone() for name, tensor in tensors.items()})
    with TemporaryDirectory() as folder:
        fitted.write_files(Path(folder))
        return regressor.restore(state, Path(folder), P, LEARNING["device"])


def _check_out_of_fold(regressor: Regressor, X: Any, targets: Targets) -> None:
    """Noise that was not seen cannot be explained.

    If predictions correlate with the noise by ρ, they explain at most a share ρ² of it, whatever their scale. Without
    having seen it, ρ has the standard deviation (n p)^{-1/2}; four of them are allowed.
    """
    noise = targets.coordinates
    folds = list(torch.arange(len(noise)).tensor_split(4))
    _, z = regressor.fit_out_of_fold(X, targets, folds, **LEARNING)
    _require_coordinates(z, regressor, "fit_out_of_fold", len(noise))
    explained = 1 - ((z - noise).square().sum() / (noise - targets.mean()).square().sum()).item()
    message = f"has seen the pairs that it predicts out of fold: it explains {explained:.0%} of pure noise"
    _require(explained <= 16 / noise.numel(), regressor, message)


def _require(condition: bool, part: Kernel | Regressor, message: str) -> None:
    if not condition:
        raise (KernelError if isinstance(part, Kernel) else InputError)(f"{part} {message}.")


def _is_float64(values: object, shape: tuple[int, ...]) -> bool:
    return isinstance(values, Tensor) and values.dtype == torch.float64 and tuple(values.shape) == shape


def _require_coordinates(z: Tensor, regressor: Regressor, method: str, n: int) -> None:
    message = f"{method} must return a float64 tensor of shape ({n}, {P}), finite and without gradients"
    is_sound = _is_float64(z, (n, P)) and bool(torch.isfinite(z).all()) and not z.requires_grad
    _require(is_sound, regressor, message)
