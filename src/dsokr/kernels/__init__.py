"""Kernels on outputs. Every kernel is a frozen dataclass; see :class:`Kernel` to write one's own."""

from dsokr.kernels.base import Kernel, Normalized, Product, Scaled, Sum
from dsokr.kernels.sets import Tanimoto
from dsokr.kernels.vectors import Cosine, Gaussian, Laplacian, Linear, Polynomial

__all__ = [
    "Cosine",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Linear",
    "Normalized",
    "Polynomial",
    "Product",
    "Scaled",
    "Sum",
    "Tanimoto",
]
