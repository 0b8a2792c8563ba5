"""A network for sparse rows: peaks of spectra, counts, one-hot columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsokr.errors import InputError, check_fields
from dsokr.regressors.networks.sequence import Block, check_heads

PADDING, ROW, FIRST = 0, 1, 2  # tokens: none, one that every row has, and the first column


@dataclass(frozen=True)
class SparseTransformer:
    """Reads a sparse row as a set of tokens, its largest entries: a Transformer encoder, then layers with p outputs.

    A token is the embedding of its column plus its value times a vector; the encoded tokens are added up, times their
    values. With ``layers=0`` this is a fully connected network whose first layer is sparse.

    >>> network = SparseTransformer(layers=1, width=16, heads=2)(3)
    >>> rows = sp.csr_array([[0.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    >>> network.adapt(rows)
    >>> network(network.prepare(rows)).shape
    torch.Size([2, 3])
    """

    layers: int = 2
    width: int = 256
    heads: int = 8
    dropout: float = 0.1
    longest: int = 128  # entries of a row that are read, the largest ones
    hidden: int = 512

    def __post_init__(self) -> None:
        check_fields(self, layers=0, dropout="[0, 1)")
        check_heads(self)

    def __call__(self, p: int) -> SparseEncoder:
        return SparseEncoder(self, p)


class SparseEncoder(nn.Module):
    """The module that :class:`SparseTransformer` specifies."""

    def __init__(self, shape: SparseTransformer, p: int):
        super().__init__()
        self.longest, width = shape.longest, shape.width
        self.columns = nn.LazyLinear(width, bias=False)
        self.values = nn.Parameter(torch.randn(width) / width**0.5)
        self.blocks = nn.ModuleList(Block(width, shape.heads, shape.dropout) for _ in range(shape.layers))
        self.norm, drop = nn.LayerNorm(width), nn.Dropout(shape.dropout)
        self.out = nn.Sequential(nn.Linear(width, shape.hidden), nn.GELU(), drop, nn.Linear(shape.hidden, p))

    def adapt(self, xs: Any) -> None:
        """Make an embedding for every column."""
        self.columns(torch.zeros(1, FIRST + xs.shape[1]))
        nn.init.normal_(self.columns.weight, std=self.columns.out_features**-0.5)

    def prepare(self, xs: Any) -> Tensor:  # (n, tokens, 2): token and value
        """Return the largest entries of every row, after a token that all rows have."""
        rows = sp.csr_array(xs)
        if (known := self.columns.weight.shape[1] - FIRST) != rows.shape[1]:
            raise InputError(f"The network reads rows of {known} columns. Got {rows.shape[1]}.")
        owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        order = np.lexsort((-np.abs(rows.data), owner))
        place = 1 + np.arange(len(owner)) - rows.indptr[owner]
        order, owner, place = (part[place <= self.longest] for part in (order, owner, place))
        tokens = torch.zeros(rows.shape[0], 1 + place.max(initial=0), 2)
        tokens[:, 0] = torch.tensor([ROW, 1.0])
        tokens[owner, place] = torch.from_numpy(np.stack([rows.indices[order] + FIRST, rows.data[order]], 1)).float()
        return tokens

    def lengths(self, inputs: Tensor) -> Tensor:  # (n,)
        return (inputs[..., 0] != PADDING).sum(dim=1)

    def forward(self, inputs: Tensor) -> Tensor:  # (n, tokens, 2) -> (n, p)
        inputs = inputs[:, : int(self.lengths(inputs).max())]
        tokens, values = inputs[..., 0].long(), inputs[..., 1:]
        hidden = F.embedding(tokens, self.columns.weight.T)
        if self.blocks:
            hidden, mask = hidden + values * self.values, (tokens != PADDING)[:, None, None, :]
            for block in self.blocks:
                hidden = block(hidden, mask)
        weights = F.normalize(values, dim=1)
        return self.out(self.norm((hidden * weights).sum(dim=1)))
