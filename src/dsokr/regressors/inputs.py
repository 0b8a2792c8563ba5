"""Inputs as tables of numbers, which is what trees, nearest neighbours and kernels on vectors read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

Numbers = Any  # a float64 array (n, d), with NaN where a value is missing, or a CSR matrix


@dataclass(frozen=True, eq=False)
class Scaler:
    """Standardises the columns of a table, with missing values at the mean; sparse tables stay as they are."""

    mean: Tensor  # (d,), empty for a sparse table
    spread: Tensor

    @staticmethod
    def of(X: Numbers) -> Scaler:
        if sp.issparse(X):
            return Scaler(torch.empty(0), torch.empty(0))
        with np.errstate(invalid="ignore"):
            filled = np.where(np.isnan(X).all(axis=0), 0.0, X)  # a column without any value
            mean, spread = np.nanmean(filled, axis=0), np.nanstd(filled, axis=0)
        return Scaler(torch.from_numpy(mean), torch.from_numpy(np.where(spread > 0, spread, 1.0)))

    def scale(self, X: Numbers) -> Any:
        """Return the scaled table as canonical rows: a float64 tensor, or a CSR matrix."""
        if sp.issparse(X):
            return sp.csr_array(X, dtype=np.float64)
        scaled = (torch.as_tensor(X, dtype=torch.float64) - self.mean) / self.spread
        return torch.nan_to_num(scaled, nan=0.0)

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "spread": self.spread}
