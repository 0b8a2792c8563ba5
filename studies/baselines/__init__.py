"""What DSOKR is compared with."""

from studies.baselines.contrastive import CMAM, MoleculeGCN, MoleculeMLP
from studies.baselines.fgw import ILEFGW, NNBaryFGW
from studies.baselines.regression import Regression
from dsokr.regressors.ridge import SISOKR

__all__ = ["CMAM", "ILEFGW", "SISOKR", "MoleculeGCN", "MoleculeMLP", "NNBaryFGW", "Regression"]
