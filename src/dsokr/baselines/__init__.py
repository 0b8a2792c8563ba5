"""What DSOKR is compared with."""

from dsokr.baselines.fgw import ILEFGW, NNBaryFGW
from dsokr.baselines.regression import Regression
from dsokr.baselines.sisokr import SISOKR

__all__ = ["ILEFGW", "SISOKR", "NNBaryFGW", "Regression"]
