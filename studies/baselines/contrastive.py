"""The cross-modal model of Text2Mol (Edwards, Zhai and Ji, 2021): a tower for texts, a tower for molecules.

Both towers are trained so that a text and its molecule get similar vectors. Unlike the coordinates of an output kernel,
the vectors of the molecules change during training, so that a step can only compare within a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsokr.compute import seeded
from dsokr.errors import import_extra
from dsokr.losses import Objective
from dsokr.metrics import ranks
from dsokr.regressors import Neural, Targets, Training
from dsokr.regressors.networks.base import NetworkFactory, build_network, call_optional, prepare_inputs
from studies.baselines.regression import as_targets
from studies.study import CPU

TEMPERATURE = 0.07  # Text2Mol's: its exponential multiplies the vectors of texts
MOLECULE_BLOCK = 2048  # molecules passed through a tower at once
QUERY_BLOCK = 512

Tower = Callable[[Any, int], nn.Module]  # (all molecules, dimension) -> a module from rows of them to vectors


@dataclass(frozen=True)
class MoleculeMLP:
    """Molecules given as vectors (n, d), such as Mol2vec: two hidden layers."""

    hidden: int = 600

    def __call__(self, molecules: Any, dim: int) -> nn.Module:
        vectors = nn.Embedding.from_pretrained(torch.as_tensor(molecules, dtype=torch.float32))
        first, second = nn.Linear(vectors.embedding_dim, self.hidden), nn.Linear(self.hidden, self.hidden)
        return nn.Sequential(vectors, first, nn.ReLU(), second, nn.ReLU(), nn.Linear(self.hidden, dim))


@dataclass(frozen=True)
class MoleculeGCN:
    """Molecules given as graphs of atoms with vectors (:class:`studies.data.chebi20.Molecules`): three convolutions."""

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
        geometric = import_extra("torch_geometric.nn", "studies")
        self.pool = geometric.global_mean_pool
        arrays = {name: getattr(molecules, name) for name in ("atoms", "bond_starts", "bonds")}
        for name, array in (arrays | {"vectors": molecules.atom_vectors.astype(np.float32)}).items():
            self.register_buffer(name, torch.as_tensor(array), persistent=False)
        widths = [self.vectors.shape[1], *[shape.hidden] * shape.layers]
        self.convolutions = nn.ModuleList(geometric.GCNConv(*pair) for pair in itertools.pairwise(widths))
        self.layers = nn.Sequential(nn.Linear(shape.hidden, shape.hidden), nn.ReLU(), nn.Linear(shape.hidden, dim))

    def forward(self, rows: Tensor) -> Tensor:
        atoms, owner = _gather(self.atoms, rows)
        bonds, bonded = _gather(self.bond_starts, rows)
        shift = torch.searchsorted(owner, torch.arange(len(rows), device=rows.device)) - self.atoms[rows]
        ends = (self.bonds[bonds] + shift[bonded][:, None]).T
        hidden = self.vectors[atoms]
        for convolution in self.convolutions:
            hidden = F.relu(convolution(hidden, torch.cat([ends, ends.flip(0)], dim=1)))
        return self.layers(self.pool(hidden, owner, len(rows)))


def _gather(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of all items of the rows, and the row of each."""
    sizes = starts[rows + 1] - starts[rows]
    owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), sizes)
    within = torch.arange(len(owner), device=rows.device) - (sizes.cumsum(0) - sizes)[owner]
    return starts[rows][owner] + within, owner


class _Towers(nn.Module):
    """The network for texts, applied by ``forward``; the tower for molecules beside it, trained along with it."""

    def __init__(self, texts: nn.Module, molecules: nn.Module, count: int, dim: int):
        super().__init__()
        self.texts, self.molecules, self.count = texts, molecules, count
        self.text_norm, self.molecule_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.temperature = nn.Parameter(torch.tensor(TEMPERATURE))

    def prepare(self, xs: Any) -> Tensor:
        return prepare_inputs(self.texts, xs)

    def lengths(self, inputs: Tensor) -> Tensor | None:
        return call_optional(self.texts, "lengths", inputs)

    def learning_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        own = call_optional(self.texts, "learning_rates") or [(list(self.texts.parameters()), 1.0)]
        others = [weight for name, weight in self.named_parameters() if not name.startswith("texts.")]
        return [*own, (others, 1.0)]

    def forward(self, inputs: Tensor) -> Tensor:  # (n, dim)
        return self.text_norm(self.texts(inputs))

    def embed_molecules(self, rows: Tensor) -> Tensor:  # (n, dim)
        return self.molecule_norm(self.molecules(rows))

    def embed_all_molecules(self) -> Tensor:  # (c, dim)
        rows = torch.arange(self.count, device=self.temperature.device)
        with torch.inference_mode():
            return torch.cat([self.embed_molecules(part).float() for part in rows.split(MOLECULE_BLOCK)])


@dataclass(frozen=True)
class Contrast(Objective):
    """−log of the probability that a text picks its molecule among the batch's, and a molecule its text."""

    towers: _Towers = field(repr=False)

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        molecules = self.towers.embed_molecules(target[:, 0].long()).float()
        similarity = (z * self.towers.temperature.exp()) @ molecules.T
        own = torch.arange(len(z), device=z.device)
        return F.cross_entropy(similarity, own) + F.cross_entropy(similarity.T, own)


@dataclass
class CMAM:
    """Contrastive learning of vectors of dimension ``dim`` for texts and molecules, ranked by the cosine of both.

    ``network`` is a factory from the dimension to a network for texts, ``tower`` makes the vectors of molecules. The
    epoch is chosen by the mean reciprocal rank on the validation pairs.
    """

    network: NetworkFactory
    tower: Tower
    training: Training
    dim: int = 300
    seed: int = 0
    device: torch.device = CPU

    def fit(self, X: Any, rows: Any, molecules: Any, validation: tuple[Any, Any]) -> CMAM:
        """Train on texts and the rows of ``molecules``, all the candidates, that they describe."""
        texts = build_network(self.network, self.dim, X, self.seed)
        with seeded(self.seed):
            towers = _Towers(texts, self.tower(molecules, self.dim), len(molecules), self.dim)
        truth = torch.as_tensor(np.asarray(validation[1]))
        regressor = Neural(lambda dim: towers, Contrast(towers), replace(self.training, standardize=False))
        pairs, held_out = ((texts, self._as_row_targets(rows)) for texts, rows in ((X, rows), validation))

        def score(z: Tensor) -> float:
            return _reciprocal_rank(z, towers.embed_all_molecules(), truth)

        self.fitted = regressor.fit(*pairs, held_out, seed=self.seed, device=self.device, score=score)
        self.towers = towers
        return self

    def _as_row_targets(self, rows: Any) -> Targets:
        """Row numbers in every column of the targets; integers up to 2²⁴ are exact in single precision."""
        return as_targets(torch.as_tensor(np.asarray(rows))[:, None].expand(-1, self.dim))

    def coefficients(self, X: Any) -> Tensor:  # (n, dim)
        """The vectors of texts."""
        return self.fitted.predict(X).float()

    def molecules(self) -> Tensor:  # (c, dim)
        """The vectors of all candidates."""
        return self.towers.embed_all_molecules()

    def scores(self, X: Any) -> Tensor:  # (n, c)
        """The cosine similarity of every candidate; larger is better."""
        return F.normalize(self.coefficients(X), dim=1) @ F.normalize(self.molecules(), dim=1).T


def _reciprocal_rank(z: Tensor, molecules: Tensor, truth: Tensor) -> float:
    directions, molecules = F.normalize(z.float(), dim=1), F.normalize(molecules, dim=1)
    parts = torch.arange(len(z)).split(QUERY_BLOCK)
    found = torch.cat([ranks(directions[at.to(z.device)] @ molecules.T, truth[at]) for at in parts])
    return found.reciprocal().mean().item()
