"""What the estimator asks of a network.

A network is given as a factory from p, the number of coordinates to predict, to a ``torch.nn.Module``: p is known only
once the basis is. Any callable will do; the factories of this package are frozen dataclasses, so that they can be
printed, compared and saved.
"""

from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from dsokr.compute import seeded
from dsokr.errors import DSOKRError, InputError
from dsokr.outputs import forward, take

NetworkFactory = Callable[[int], nn.Module]

PREDICT_BLOCK = 4096  # inputs passed through a network at once
LONG_BLOCK = 64  # the same for inputs of different lengths, which are padded to the longest of a block


@runtime_checkable
class Prepares(Protocol):
    """A network that turns raw inputs into a tensor itself, once per data set (a tokeniser, say)."""

    def prepare(self, xs: Any) -> Tensor: ...


@runtime_checkable
class Adapts(Protocol):
    """A network that looks at the raw training inputs once, before it is trained (to know their alphabet, say)."""

    def adapt(self, xs: Any) -> None: ...


@runtime_checkable
class Measures(Protocol):
    """A network that says how long its prepared inputs are: those of similar length are then batched together."""

    def lengths(self, inputs: Tensor) -> Tensor: ...


@runtime_checkable
class Paced(Protocol):
    """A network whose parts learn at different rates, each a share of ``Training.learning_rate``."""

    def paces(self) -> list[tuple[list[nn.Parameter], float]]: ...


@runtime_checkable
class Keeps(Protocol):
    """A network that needs more than its weights to be made again (a vocabulary, say), and can write that down."""

    def keep(self, folder: Path) -> None: ...


@runtime_checkable
class Restores(Protocol):
    """A factory of such networks: ``kept`` makes them from what ``keep`` wrote, and needs nothing else."""

    def kept(self, folder: Path) -> NetworkFactory: ...


def require_sizes(owner: object, *names: str) -> None:
    """The named fields of a factory are whole numbers of at least 1, or several such."""
    for name in names:
        value = getattr(owner, name)
        for size in value if isinstance(value, tuple | list) else (value,):
            if not isinstance(size, Integral) or size < 1:
                raise InputError(f"{type(owner).__name__}.{name} must be at least 1, a whole number. Got {value!r}.")


def require_shares(owner: object, *names: str) -> None:
    """The named fields of a factory are shares that leave something."""
    for name in names:
        if not 0 <= getattr(owner, name) < 1:
            raise InputError(f"{type(owner).__name__}.{name} must be in [0, 1). Got {getattr(owner, name)!r}.")


class Standardized(nn.Module):
    """mean + spread ⊙ g(x): a network that works in the units of its targets.

    Coordinates in a basis are far from standardised: most are small, and their mean is not zero. Without this, a
    network first spends epochs on finding their scale. The function class and the loss are the same with it.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, network: nn.Module, mean: Tensor, spread: Tensor):
        super().__init__()
        self.network = network
        self.register_buffer("mean", mean)
        self.register_buffer("spread", spread)

    @classmethod
    def of(cls, network: nn.Module, targets: Tensor) -> Self:  # (n, p)
        """With the mean and the standard deviation of every coordinate over the training targets."""
        return cls(network, targets.mean(dim=0), targets.std(dim=0, correction=0))

    @classmethod
    def plain(cls, network: nn.Module, p: int) -> Self:
        """With mean 0 and spread 1: the network as it is."""
        return cls(network, torch.zeros(p), torch.ones(p))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mean + self.spread * self.network(inputs)


def prepared(network: nn.Module, xs: Any) -> Tensor:
    """Inputs as one tensor whose rows can be sliced into batches: by the network's own ``prepare``, or in its type."""
    if isinstance(network, Standardized):
        return prepared(network.network, xs)
    if isinstance(network, Prepares):
        return network.prepare(xs)
    if not isinstance(xs, Tensor | np.ndarray):
        kind = type(xs[0]).__name__ if len(xs) else "nothing"
        name = type(network).__name__
        raise InputError(f"{name} takes arrays or tensors and has no prepare(xs). Got a list of {kind}.")
    dtype = next((weight.dtype for weight in network.parameters() if weight.is_floating_point()), torch.float32)
    if isinstance(xs, Tensor):
        return xs.detach().to(dtype) if xs.is_floating_point() else xs  # whole numbers may be token ids
    wide = np.float64 if dtype == torch.float64 else np.float32
    numbers = np.require(xs, wide, "W")  # read-only memory is copied: no tensor may hold it
    return torch.from_numpy(forward(numbers)).to(dtype)


def lengths(network: nn.Module, inputs: Tensor) -> Tensor | None:  # (n,)
    """How long prepared inputs are, if the network says so."""
    if isinstance(network, Standardized):
        return lengths(network.network, inputs)
    return network.lengths(inputs) if isinstance(network, Measures) else None


def paces(network: nn.Module) -> list[tuple[list[nn.Parameter], float]]:
    """The network's weights with the shares of the learning rate at which they learn: one, unless it says otherwise."""
    if isinstance(network, Standardized):
        return paces(network.network)
    return network.paces() if isinstance(network, Paced) else [(list(network.parameters()), 1.0)]


def keep(network: nn.Module, folder: Path) -> None:
    """Write what the network needs beside its weights, if it does, to a folder that is made for it."""
    inner = network.network if isinstance(network, Standardized) else network
    if isinstance(inner, Keeps):
        folder.mkdir()
        inner.keep(folder)


def built(factory: NetworkFactory, p: int, X: Any, seed: int) -> nn.Module:
    """A network with its weights drawn from the seed, its input width known, and adapted to the training inputs."""
    with seeded(seed):
        network = factory(p)
        if isinstance(network, Adapts):
            network.adapt(X)
        first = prepared(network, take(X, slice(2))).clone()  # a network may work in place
        z = _tried(network.eval(), first)
    if not isinstance(z, Tensor) or z.shape != (len(first), p):
        got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"The network must map {len(first)} inputs to shape ({len(first)}, p={p}). Got {got}.")
    return network.train()


def _tried(network: nn.Module, inputs: Tensor) -> Any:
    """What the network makes of its first inputs; what it cannot read is said in one sentence."""
    try:
        with torch.no_grad():
            return network(inputs)
    except DSOKRError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        kind = str(inputs.dtype).removeprefix("torch.")
        why = str(error).strip().split("\n")[0]
        raise InputError(f"The network cannot read {kind} inputs of shape {tuple(inputs.shape)}: {why}") from error


def outputs_of(network: nn.Module, inputs: Tensor) -> Tensor:  # (n, p) float32
    """What a trained network says, block by block, on the device it is on; inputs of similar length go together."""
    device = next(network.parameters()).device
    long = lengths(network, inputs)
    with torch.no_grad():
        if long is None:
            return torch.cat([network(block.to(device, copy=True)).float() for block in inputs.split(PREDICT_BLOCK)])
        order = long.argsort(stable=True)
        z = torch.cat([network(inputs[rows].to(device)).float() for rows in order.split(LONG_BLOCK)])
        return z[order.argsort().to(device)]
