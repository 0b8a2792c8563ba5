"""Networks: factories from p, the number of coordinates to predict, to a torch module."""

from dsokr.networks.base import NetworkFactory, Prepares, Standardized, built, outputs_of, prepared
from dsokr.networks.cnn import CNN
from dsokr.networks.mlp import MLP

__all__ = ["CNN", "MLP", "NetworkFactory", "Prepares", "Standardized", "built", "outputs_of", "prepared"]
