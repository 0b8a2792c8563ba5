"""The least-squares task of the paper's section "Analysis of DSOKR on Synthetic Least Squares Regression"."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class LeastSquares:
    """y = U H x + ε: outputs of many dimensions, d of which carry signal.

    x ~ N(0, C) where C has eigenvalues j^{-1/2} and random eigenvectors, H has standard normal entries, U has d random
    orthonormal columns and ε ~ N(0, noise · I). The defaults are the paper's.

    >>> task = LeastSquares(n_train=8, n_val=2, n_test=3, input_dim=6, output_dim=5, rank=2)
    >>> X, Y = task.draw(Generator().manual_seed(0)).train
    >>> X.shape, Y.shape
    (torch.Size([8, 6]), torch.Size([8, 5]))
    """

    n_train: int = 50_000
    n_val: int = 5_000
    n_test: int = 10_000
    input_dim: int = 2_000
    output_dim: int = 1_000
    rank: int = 50
    noise: float = 0.01

    def draw(self, generator: Generator, device: torch.device | str = "cpu") -> LeastSquaresData:
        """Draw the task and its three sets; the numbers depend on the generator alone, not on the device."""
        eigenvectors = _orthonormal(self.input_dim, self.input_dim, generator, device)
        eigenvalues = torch.arange(1, self.input_dim + 1, device=device, dtype=torch.float64).pow(-0.5)
        root = eigenvectors * eigenvalues.sqrt()  # C = root rootᵀ
        H = _normal((self.rank, self.input_dim), generator, device)
        U = _orthonormal(self.output_dim, self.rank, generator, device)
        to_output = U @ H

        def sample(n: int) -> tuple[Tensor, Tensor]:
            X = _normal((n, self.input_dim), generator, device) @ root.T
            noise = _normal((n, self.output_dim), generator, device).mul_(self.noise**0.5)
            return X.float(), (X @ to_output.T).add_(noise)

        return LeastSquaresData(sample(self.n_train), sample(self.n_val), sample(self.n_test))


@dataclass(frozen=True, eq=False)
class LeastSquaresData:
    """Pairs (X, Y) to train, validate and test on: inputs float32, outputs float64."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def _normal(shape: tuple[int, ...], generator: Generator, device: torch.device | str) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)


def _orthonormal(rows: int, columns: int, generator: Generator, device: torch.device | str) -> Tensor:
    return torch.linalg.qr(_normal((rows, columns), generator, device))[0]
