"""Feed-forward networks: fully connected for vectors, convolutional for images."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from dsokr.errors import InputError, check_fields

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
        check_fields(self, dropout="[0, 1)")

    def __call__(self, p: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in self.hidden:
            layers += [nn.LazyLinear(width), ACTIVATIONS[self.activation]()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
        return nn.Sequential(*layers, nn.LazyLinear(p))


@dataclass(frozen=True)
class CNN:
    """Blocks of (3 × 3 convolution, batch norm, activation, 2 × 2 max-pooling), then a hidden layer and p outputs.

    Images come as (n, channels, height, width), or (n, height, width) for one channel; every block halves their sides.
    ``where="anywhere"`` max-pools each feature over the whole image: right when the answer is what is in the image, not
    where. ``where="kept"`` passes all positions on.

    >>> import torch
    >>> CNN(channels=(8, 16), hidden=32)(3)(torch.zeros(2, 16, 16)).shape
    torch.Size([2, 3])
    """

    channels: tuple[int, ...] = (32, 64)
    hidden: int = 128
    activation: Activation = "relu"
    dropout: float = 0.0
    where: Literal["kept", "anywhere"] = "kept"

    def __post_init__(self) -> None:
        if not self.channels:
            raise InputError("CNN.channels must name at least one block.")
        check_fields(self, dropout="[0, 1)")

    def __call__(self, p: int) -> nn.Module:
        activation = ACTIVATIONS[self.activation]
        first = nn.LazyConv2d(self.channels[0], kernel_size=3, padding=1, bias=False)
        rest = [nn.Conv2d(a, b, kernel_size=3, padding=1, bias=False) for a, b in pairwise(self.channels)]
        layers: list[nn.Module] = [ChannelsFirst()]
        for convolution, width in zip([first, *rest], self.channels, strict=True):
            layers += [convolution, nn.BatchNorm2d(width), activation(), nn.MaxPool2d(2)]
        if self.where == "anywhere":
            layers.append(nn.AdaptiveMaxPool2d(1))
        layers += [nn.Flatten(), nn.LazyLinear(self.hidden), LenientBatchNorm(self.hidden), activation()]
        return nn.Sequential(*layers, nn.Dropout(self.dropout), nn.Linear(self.hidden, p))


class LenientBatchNorm(nn.BatchNorm1d):
    """Batch norm that uses running statistics when the last batch holds one image, which has no variance."""

    def forward(self, features: Tensor) -> Tensor:
        if self.training and len(features) == 1:
            return F.batch_norm(features, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(features)


class ChannelsFirst(nn.Module):
    """Gives grey images their channel dimension."""

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim not in (3, 4):
            raise InputError(
                "CNN takes images as (n, height, width) or (n, channels, height, width). "
                f"Got an array of {images.ndim} dimensions."
            )
        return images if images.ndim == 4 else images.unsqueeze(1)
