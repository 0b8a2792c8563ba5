"""What the regressor needs from a network.

A network is given as a factory from p, the number of coordinates to predict, to a ``torch.nn.Module``: p is known only
once the basis is. Any callable will do; the factories of this package are frozen dataclasses, so that they can be
printed, compared and saved. Beside ``forward``, a module may define any of these methods:

- ``prepare(xs) -> Tensor``: turn raw inputs into a tensor of n rows, once per data set (by a tokenizer, say);
- ``adapt(xs)``: see the raw training inputs before training (to learn their alphabet, say);
- ``lengths(inputs) -> Tensor``: return the lengths of prepared inputs, to batch inputs of similar length together;
- ``learning_rates() -> [(parameters, factor), ...]``: parts that learn at a multiple of ``Training.learning_rate``;
- ``write_files(folder)``: write what a saved model needs beside its weights (a vocabulary, say). The factory's
  ``from_files(folder)`` must then return a factory that reads these files and needs nothing else.
"""

from collections.abc import Callable
from itertools import count
from threading import get_ident
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from dsokr.compute import seeded
from dsokr.errors import DSOKRError, InputError
from dsokr.outputs import take

NetworkFactory = Callable[[int], nn.Module]

PREDICT_BLOCK = 4096  # inputs passed through a network at once
LONG_BLOCK = 64  # the same for inputs of different lengths, which are padded to the longest of a block


class Standardized(nn.Module):
    """mean + spread ⊙ g(x): a network that works in the units of its targets.

    Coordinates in a basis are far from standardised: most are small, and their mean is not zero. Without this, a
    network first spends epochs on finding their scale. The function class and the loss are the same with it.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, network: nn.Module, p: int):
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.zeros(p))
        self.register_buffer("spread", torch.ones(p))

    def scale_to(self, targets: Tensor) -> None:  # (n, p)
        """Use the mean and the standard deviation of every coordinate over the training targets."""
        self.mean, self.spread = targets.mean(dim=0), targets.std(dim=0, correction=0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mean + self.spread * self.network(inputs)


def call_optional(network: nn.Module, method: str, *arguments: Any) -> Any:
    """Call one of the optional methods of a network; None if it does not define it."""
    inner = network.network if isinstance(network, Standardized) else network
    function = getattr(inner, method, None)
    return None if function is None else function(*arguments)


def prepare_inputs(network: nn.Module, xs: Any) -> Tensor:
    """Return inputs as one tensor of n rows: by the network's own ``prepare``, or in the type of its weights."""
    prepared = call_optional(network, "prepare", xs)
    if prepared is not None:
        return prepared
    if sp.issparse(xs):
        raise InputError("Sparse X is not supported: networks take dense inputs. Pass X.toarray().")
    if not isinstance(xs, Tensor | np.ndarray):
        item = type(xs[0]).__name__ if len(xs) else "nothing"
        name = type(network).__name__
        raise InputError(f"{name} takes arrays or tensors and has no prepare(xs). Got a list of {item}.")
    dtype = next((weight.dtype for weight in network.parameters() if weight.is_floating_point()), torch.float32)
    if isinstance(xs, Tensor):
        return xs.detach().to(dtype) if xs.is_floating_point() else xs  # integers may be token ids
    try:
        rows = np.array(xs, np.float64 if dtype == torch.float64 else np.float32, order="C")
    except ValueError as error:  # a text among the cells
        raise InputError(f"The network reads numbers ({error}): use Neural(network, reads='numbers').") from error
    return torch.from_numpy(rows).to(dtype)


def build_network(factory: NetworkFactory, p: int, X: Any, seed: int) -> nn.Module:
    """Make a network with weights drawn from the seed, infer its input width, and adapt it to the training inputs."""
    with seeded(seed), torch.no_grad():
        network = factory(p)
        call_optional(network, "adapt", X)
        first = prepare_inputs(network, take(X, slice(2))).clone()  # a network may work in place
        try:
            z = network.eval()(first)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, DSOKRError):
                raise
            kind, why = str(first.dtype).removeprefix("torch."), str(error).strip().split("\n")[0]
            raise InputError(f"The network cannot read {kind} inputs of shape {tuple(first.shape)}: {why}") from error
    if not isinstance(z, Tensor) or z.shape != (len(first), p):
        got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"The network must map {len(first)} inputs to shape ({len(first)}, p={p}). Got {got}.")
    return network.train()


def check_weights(factory: NetworkFactory, p: int, weights: dict[str, Tensor]) -> None:
    """Check that a network has the shapes of saved weights, before memory is taken for it."""
    made, thread = count(), get_ident()

    def register(*_: Any) -> None:
        if get_ident() == thread and next(made) > 2 * len(weights):  # twice: a network may drop parts of itself
            raise ValueError("the network has more parameters than weights were saved")

    hook = register_module_parameter_registration_hook(register)
    try:
        with torch.device("meta"):
            state = Standardized(factory(p), p).state_dict()
    finally:
        hook.remove()
    for name, weight in state.items():
        if name not in weights or not (is_lazy(weight) or weight.shape == weights[name].shape):
            raise ValueError(f"the network does not fit the saved weights, at {name}")


def apply_network(network: nn.Module, inputs: Tensor) -> Tensor:  # (n, p) float32
    """Apply a trained network block by block on its own device; inputs of similar length go together."""
    device = next(network.parameters()).device
    lengths = call_optional(network, "lengths", inputs)
    with torch.no_grad():
        if lengths is None:
            return torch.cat([network(block.to(device, copy=True)).float() for block in inputs.split(PREDICT_BLOCK)])
        order = lengths.argsort(stable=True)
        z = torch.cat([network(inputs[rows].to(device)).float() for rows in order.split(LONG_BLOCK)])
        return z[order.argsort().to(device)]
