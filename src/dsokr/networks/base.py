"""What the estimator asks of a network.

A network is given as a factory from p, the number of coordinates to predict, to a ``torch.nn.Module``: p is known only
once the basis is. Any callable will do; the factories of this package are frozen dataclasses, so that they can be
printed, compared and saved.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from dsokr.errors import InputError

NetworkFactory = Callable[[int], nn.Module]


@runtime_checkable
class Prepares(Protocol):
    """A network that turns raw inputs into a tensor itself, once per data set (a tokeniser, say)."""

    def prepare(self, xs: Any) -> Tensor: ...


def prepared(network: nn.Module, xs: Any) -> Tensor:
    """Inputs as one tensor whose rows can be sliced into batches: by the network's own ``prepare``, or as float32."""
    if isinstance(network, Prepares):
        return network.prepare(xs)
    if not isinstance(xs, Tensor | np.ndarray):
        kind = type(xs[0]).__name__ if len(xs) else "nothing"
        name = type(network).__name__
        raise InputError(f"{name} takes arrays or tensors and has no prepare(xs). Got a list of {kind}.")
    if isinstance(xs, Tensor):
        return xs.to(torch.float32)
    return torch.from_numpy(np.require(xs, np.float32, "W"))  # read-only memory is copied: no tensor may hold it
