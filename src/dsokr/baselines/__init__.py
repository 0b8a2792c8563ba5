"""What DSOKR is compared with."""

from dsokr.baselines.contrastive import CMAM, MoleculeGCN, MoleculeMLP
from dsokr.baselines.fgw import ILEFGW, NNBaryFGW
from dsokr.baselines.regression import Regression
from dsokr.baselines.sisokr import SISOKR

__all__ = ["CMAM", "ILEFGW", "SISOKR", "MoleculeGCN", "MoleculeMLP", "NNBaryFGW", "Regression"]
