"""Kernels on outputs. Every kernel is a frozen dataclass; see :class:`Kernel` to write your own.

Importing this package does not need numba; using a kernel on graphs or strings does (``pip install "dsokr[graphs]"``).
"""

from dsokr.kernels.base import Kernel, Normalized, Product, Scaled, Sum, View, Views
from dsokr.kernels.features import FeatureKernel, Features, FeatureSum, NormalizedFeatures, ScaledFeatures
from dsokr.kernels.graphs import NSPD, Core, EdgeHistogram, ShortestPath, VertexHistogram, WeisfeilerLehman
from dsokr.kernels.molecules import OnMolecules
from dsokr.kernels.rankings import Hamming, Kemeny, Lehmer
from dsokr.kernels.strings import GappyNGram, Mismatch, NGram
from dsokr.kernels.vectors import Cosine, Dice, Gaussian, Laplacian, Linear, Polynomial, Tanimoto
