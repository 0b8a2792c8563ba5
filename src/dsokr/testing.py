"""Checks for your own kernels."""

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import KernelError
from dsokr.graphs import Graph, permuted
from dsokr.kernels import Kernel
from dsokr.outputs import Outputs, as_outputs, count, take


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

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(scale, 1e-300))

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


def _require(condition: bool, kernel: Kernel, message: str) -> None:
    if not condition:
        raise KernelError(f"{kernel} {message}.")


def _is_float64(values: object, shape: tuple[int, ...]) -> bool:
    return isinstance(values, Tensor) and values.dtype == torch.float64 and tuple(values.shape) == shape
