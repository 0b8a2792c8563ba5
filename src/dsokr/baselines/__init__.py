"""What DSOKR is compared with."""

from dsokr.baselines.regression import Regression

__all__ = ["Regression"]
