"""Deep Sketched Output Kernel Regression: any neural network in front, any kernel on the outputs behind.

Names are imported when first used, so that ``import dsokr`` is instant and needs no optional dependency.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsokr.basis import SketchedBasis, sketch_basis
    from dsokr.ensemble import Ensemble
    from dsokr.estimator import DSOKR
    from dsokr.training import Training
    from dsokr.types import Graph

__version__ = "0.1.0"

_HOMES = {
    "DSOKR": "estimator",
    "Ensemble": "ensemble",
    "Graph": "types",
    "SketchedBasis": "basis",
    "Training": "training",
    "sketch_basis": "basis",
}
__all__ = ["DSOKR", "Ensemble", "Graph", "SketchedBasis", "Training", "__version__", "sketch_basis"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"dsokr.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dsokr' has no attribute {name!r}")
