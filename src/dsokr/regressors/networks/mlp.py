"""Fully connected networks."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from dsokr.errors import check_choice, check_integers, check_number

Activation = Literal["relu", "gelu", "tanh"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


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
        check_integers(self, hidden=1)
        check_choice(self, "activation", ACTIVATIONS)
        check_number(self, "dropout", "in [0, 1)", 0 <= self.dropout < 1)

    def __call__(self, p: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in self.hidden:
            layers += [nn.LazyLinear(width), ACTIVATIONS[self.activation]()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
        return nn.Sequential(*layers, nn.LazyLinear(p))
