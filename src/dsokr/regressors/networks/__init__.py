"""Networks: factories from p, the number of coordinates to predict, to a torch module."""

from dsokr.regressors.networks.base import (
    NetworkFactory,
    Prepares,
    Restores,
    Standardized,
    built,
    keep,
    lengths,
    outputs_of,
    paces,
    prepared,
)
from dsokr.regressors.networks.cnn import CNN
from dsokr.regressors.networks.mlp import MLP
from dsokr.regressors.networks.sequence import CharTransformer
from dsokr.regressors.networks.text import EncodedText, TextEncoder, WordBag

__all__ = [
    "CNN",
    "MLP",
    "CharTransformer",
    "EncodedText",
    "NetworkFactory",
    "Prepares",
    "Restores",
    "Standardized",
    "TextEncoder",
    "WordBag",
    "built",
    "keep",
    "lengths",
    "outputs_of",
    "paces",
    "prepared",
]
