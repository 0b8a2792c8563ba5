"""Kernels on outputs. Every kernel is a frozen dataclass; see :class:`Kernel` to write one's own.

Those on graphs and strings need numba (``pip install "dsokr[graphs]"``) when they are used, not to be imported.
"""

from dsokr.kernels.base import Kernel, Normalized, Product, Scaled, Sum, View, Views
from dsokr.kernels.features import FeatureKernel, Features, FeatureSum, NormalizedFeatures, ScaledFeatures
from dsokr.kernels.graphs import NSPD, Core, EdgeHistogram, ShortestPath, VertexHistogram, WeisfeilerLehman
from dsokr.kernels.molecules import OnMolecules
from dsokr.kernels.rankings import Hamming, Kemeny, Lehmer
from dsokr.kernels.strings import GappyNGram, Mismatch, NGram
from dsokr.kernels.vectors import Cosine, Dice, Gaussian, Laplacian, Linear, Polynomial, Tanimoto
