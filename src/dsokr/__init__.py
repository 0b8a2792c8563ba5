"""Deep Sketched Output Kernel Regression: any regressor in front, any kernel on the outputs behind.

Names are imported on first use, so that ``import dsokr`` is instant and needs no optional dependency.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsokr.basis import SketchedBasis, sketch_basis
    from dsokr.conformal import Conformal
    from dsokr.ensemble import Ensemble
    from dsokr.estimator import DSOKR
    from dsokr.graphs import Graph
    from dsokr.regressors import Training, networks

__version__ = "0.1.0"

_HOMES = {
    "DSOKR": "estimator",
    "Conformal": "conformal",
    "Ensemble": "ensemble",
    "Graph": "graphs",
    "SketchedBasis": "basis",
    "Training": "regressors",
    "networks": "regressors",
    "sketch_basis": "basis",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"dsokr.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dsokr' has no attribute {name!r}")
