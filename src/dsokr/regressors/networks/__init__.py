"""Networks: factories from p, the number of coordinates to predict, to a torch module."""

from dsokr.regressors.networks.base import NetworkFactory
from dsokr.regressors.networks.feedforward import CNN, MLP
from dsokr.regressors.networks.sequence import CharTransformer
from dsokr.regressors.networks.sparse import SparseTransformer
from dsokr.regressors.networks.text import TextEncoder, WordBag
