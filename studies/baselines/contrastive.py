"""The cross-modal model of Text2Mol (Edwards, Zhai and Ji, 2021): a tower for texts, a tower for molecules.

Both towers are trained so that a text and its molecule get similar vectors. Unlike the coordinates of an output kernel,
the molecules' vectors change while the texts' are learned, so that a step can only compare within a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn import functional as F

from dsokr.compute import resolve_device, seeded
from dsokr.errors import InputError, MissingExtraError
from dsokr.losses import Objective
from dsokr.metrics import ranks
from dsokr.regressors.networks import NetworkFactory, built, lengths, outputs_of, paces, prepared
from dsokr.regressors.training import Pairs, Training, train

TEMPERATURE = 0.07  # Text2Mol's: its exponential multiplies the vectors of texts
MOLECULE_BLOCK = 2048  # molecules passed through a tower at once
QUERY_BLOCK = 512

Tower = Callable[[Any, int], nn.Module]  # (all molecules, dimension) -> a module from rows of them to vectors


@dataclass(frozen=True)
class MoleculeMLP:
    """Molecules given as vectors (n, d), such as Mol2vec: two hidden layers."""

    hidden: int = 600

    def __call__(self, molecules: Any, dim: int) -> nn.Module:
        return _VectorTower(self, torch.as_tensor(np.asarray(molecules), dtype=torch.float32), dim)


class _VectorTower(nn.Module):
    vectors: Tensor

    def __init__(self, shape: MoleculeMLP, vectors: Tensor, dim: int):
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)
        self.layers = nn.Sequential(
            nn.Linear(vectors.shape[1], shape.hidden),
            nn.ReLU(),
            nn.Linear(shape.hidden, shape.hidden),
            nn.ReLU(),
            nn.Linear(shape.hidden, dim),
        )

    def __len__(self) -> int:
        return len(self.vectors)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(self.vectors[rows])


@dataclass(frozen=True)
class MoleculeGCN:
    """Molecules given as graphs of atoms with vectors (see :class:`studies.data.chebi20.Molecules`): three convolutions.

    Needs torch-geometric.
    """

    hidden: int = 600
    layers: int = 3

    def __call__(self, molecules: Any, dim: int) -> nn.Module:
        return _GraphTower(self, molecules, dim)


class _GraphTower(nn.Module):
    vectors: Tensor
    atoms: Tensor
    bond_starts: Tensor
    bonds: Tensor

    def __init__(self, shape: MoleculeGCN, molecules: Any, dim: int):
        super().__init__()
        try:
            from torch_geometric.nn import GCNConv, global_mean_pool
        except ImportError as error:
            raise MissingExtraError("torch-geometric", "gnn") from error
        self.pool = global_mean_pool
        arrays = {
            "vectors": molecules.atom_vectors.astype(np.float32),
            "atoms": molecules.atoms,
            "bond_starts": molecules.bond_starts,
            "bonds": molecules.bonds,
        }
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array), persistent=False)
        widths = [self.vectors.shape[1], *[shape.hidden] * shape.layers]
        self.convolutions = nn.ModuleList(GCNConv(*pair) for pair in itertools.pairwise(widths))
        self.layers = nn.Sequential(nn.Linear(shape.hidden, shape.hidden), nn.ReLU(), nn.Linear(shape.hidden, dim))

    def __len__(self) -> int:
        return len(self.atoms) - 1

    def forward(self, rows: Tensor) -> Tensor:
        atoms, owner = _ragged(self.atoms, rows)
        bonds, bonded = _ragged(self.bond_starts, rows)
        shift = torch.searchsorted(owner, torch.arange(len(rows), device=rows.device)) - self.atoms[rows]
        ends = (self.bonds[bonds] + shift[bonded][:, None]).T
        hidden = self.vectors[atoms]
        for convolution in self.convolutions:
            hidden = F.relu(convolution(hidden, torch.cat([ends, ends.flip(0)], dim=1)))
        return self.layers(self.pool(hidden, owner, len(rows)))


def _ragged(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of everything that belongs to the rows, and to which of them."""
    sizes = starts[rows + 1] - starts[rows]
    owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), sizes)
    within = torch.arange(len(owner), device=rows.device) - (sizes.cumsum(0) - sizes)[owner]
    return starts[rows][owner] + within, owner


class _Towers(nn.Module):
    """The network for texts, in front; the tower for molecules beside it, so that both are trained and kept."""

    def __init__(self, texts: nn.Module, molecules: nn.Module, dim: int):
        super().__init__()
        self.texts, self.molecules = texts, molecules
        self.text_norm, self.molecule_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.temperature = nn.Parameter(torch.tensor(TEMPERATURE))

    def prepare(self, xs: Any) -> Tensor:
        return prepared(self.texts, xs)

    def lengths(self, inputs: Tensor) -> Tensor:
        known = lengths(self.texts, inputs)
        return torch.ones(len(inputs)) if known is None else known

    def paces(self) -> list[tuple[list[nn.Parameter], float]]:
        others = [p for name, p in self.named_parameters() if not name.startswith("texts.")]
        return [*paces(self.texts), (others, 1.0)]

    def forward(self, inputs: Tensor) -> Tensor:  # (n, dim)
        return self.text_norm(self.texts(inputs))

    def molecule(self, rows: Tensor) -> Tensor:  # (n, dim)
        return self.molecule_norm(self.molecules(rows))

    def all_molecules(self) -> Tensor:  # (c, dim)
        rows = torch.arange(len(self.molecules), device=self.temperature.device)  # type: ignore[arg-type] # towers have a length
        with torch.inference_mode():
            return torch.cat([self.molecule(part).float() for part in rows.split(MOLECULE_BLOCK)])


@dataclass(frozen=True)
class _Contrast(Objective):
    """−log of the chance that a text picks its molecule among the batch's, and a molecule its text."""

    towers: _Towers = field(repr=False)

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        molecules = self.towers.molecule(target[:, 0].long()).float()
        similarity = (z * self.towers.temperature.exp()) @ molecules.T
        own = torch.arange(len(z), device=z.device)
        return F.cross_entropy(similarity, own) + F.cross_entropy(similarity.T, own)


class CMAM(BaseEstimator):
    """Contrastive learning of vectors for texts and for molecules; candidates are ranked by the cosine of both.

    Parameters
    ----------
    network : a factory from the dimension to a network for texts, e.g. ``networks.TextEncoder(folder)``.
    tower : what the molecules' vectors are made with, ``MoleculeMLP()`` or ``MoleculeGCN()``.
    dim : of the common space.
    training : as for :class:`dsokr.DSOKR`; the epoch is chosen by the mean reciprocal rank on the validation pairs.

    After ``fit``: ``network_`` and ``history_``.
    """

    def __init__(
        self,
        network: NetworkFactory,
        tower: Tower,
        *,
        dim: int = 300,
        training: Training = Training(),  # noqa: B008 # frozen, so sharing it is harmless
        random_state: Any = None,
        device: str = "auto",
    ):
        self.network = network
        self.tower = tower
        self.dim = dim
        self.training = training
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, rows: Any, molecules: Any, validation: tuple[Any, Any]) -> CMAM:
        """Train on inputs and the rows of ``molecules``, all the candidates, that they describe."""
        if len(X) != len(rows):
            raise InputError(f"X and rows must have the same length. Got {len(X)} inputs and {len(rows)} rows.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        texts = built(self.network, self.dim, X, seed)
        with seeded(seed):
            towers = _Towers(texts, self.tower(molecules, self.dim), self.dim)
        truth = torch.as_tensor(np.asarray(validation[1]))
        self.history_ = train(
            towers,
            _pairs(towers, X, rows),
            _pairs(towers, *validation),
            _Contrast(towers),
            self.training,
            seed=seed,
            device=resolve_device(self.device),
            evaluate=lambda z: _reciprocal_rank(z, towers.all_molecules(), truth),
        )
        self.network_ = towers
        return self

    def coefficients(self, X: Any) -> Tensor:  # (n, dim)
        """The vectors of texts."""
        check_is_fitted(self, "network_")
        return outputs_of(self.network_, prepared(self.network_, X))

    def molecules(self) -> Tensor:  # (c, dim)
        """The vectors of all the candidates."""
        check_is_fitted(self, "network_")
        return self.network_.all_molecules()

    def scores(self, X: Any) -> Tensor:  # (n, c)
        """The cosine similarity of every candidate; larger is better."""
        return F.normalize(self.coefficients(X), dim=1) @ F.normalize(self.molecules(), dim=1).T


def _pairs(towers: _Towers, X: Any, rows: Any) -> Pairs:
    targets = torch.as_tensor(np.asarray(rows), dtype=torch.float32)[:, None]  # whole numbers up to 2²⁴ are exact
    return Pairs(prepared(towers, X), targets, torch.zeros(len(targets)))


def _reciprocal_rank(z: Tensor, molecules: Tensor, truth: Tensor) -> float:
    directions, molecules = F.normalize(z.float(), dim=1), F.normalize(molecules, dim=1)
    parts = torch.arange(len(z)).split(QUERY_BLOCK)
    found = torch.cat([ranks(directions[at.to(z.device)] @ molecules.T, truth[at]) for at in parts])
    return found.reciprocal().mean().item()
