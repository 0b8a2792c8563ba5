"""Networks: factories from p, the number of coordinates to predict, to a torch module."""

from dsokr.networks.base import NetworkFactory, Prepares, Standardized, built, outputs_of, prepared
from dsokr.networks.cnn import CNN
from dsokr.networks.mlp import MLP
from dsokr.networks.sequence import CharTransformer

__all__ = [
    "CNN",
    "MLP",
    "CharTransformer",
    "NetworkFactory",
    "Prepares",
    "Standardized",
    "built",
    "outputs_of",
    "prepared",
]
