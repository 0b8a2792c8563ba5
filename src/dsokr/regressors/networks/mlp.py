"""Fully connected networks."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from dsokr.errors import InputError
from dsokr.regressors.networks.base import require_shares, require_sizes

Activation = Literal["relu", "gelu", "tanh"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def activation_module(name: str) -> nn.Module:
    if name not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}. Got {name!r}.")
    return ACTIVATIONS[name]()


@dataclass(frozen=True)
class MLP:
    """Layers of the given widths, then a linear one with p outputs. ``MLP(hidden=())`` is the single-layer perceptron.

    Inputs of more than one dimension are flattened; their width is inferred from the first batch.

    >>> import torch
    >>> network = MLP(hidden=(16,))(3)
    >>> network(torch.zeros(2, 5)).shape
    torch.Size([2, 3])
    """

    hidden: tuple[int, ...] = (512,)
    activation: Activation = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_sizes(self, "hidden")
        require_shares(self, "dropout")

    def __call__(self, p: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in self.hidden:
            layers += [nn.LazyLinear(width), activation_module(self.activation)]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
        return nn.Sequential(*layers, nn.LazyLinear(p))
