"""Networks for strings, read character by character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dsokr.errors import InputError

CHARACTERS = 128  # ASCII; 0 pads


@dataclass(frozen=True)
class CharTransformer:
    """A Transformer encoder over the characters of a string, averaged over them, then a linear layer with p outputs.

    The defaults are among the paper's choices for SMILES; its feed-forward layers are four times as wide as the model.

    >>> network = CharTransformer(layers=1, width=16, heads=2)(3)
    >>> network(network.prepare(["CCO", "c1ccccc1"])).shape
    torch.Size([2, 3])
    """

    layers: int = 6
    width: int = 256
    heads: int = 8
    dropout: float = 0.2
    longest: int = 256  # characters

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InputError(
                f"CharTransformer.width must be a multiple of its heads. Got width={self.width} and heads={self.heads}."
            )

    def __call__(self, p: int) -> CharEncoder:
        return CharEncoder(self, p)


class CharEncoder(nn.Module):
    """The module that :class:`CharTransformer` describes."""

    def __init__(self, shape: CharTransformer, p: int):
        super().__init__()
        self.longest = shape.longest
        self.characters = nn.Embedding(CHARACTERS, shape.width, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(shape.longest, shape.width))
        layer = nn.TransformerEncoderLayer(
            shape.width,
            shape.heads,
            4 * shape.width,
            shape.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, nn.LayerNorm(shape.width), enable_nested_tensor=False)
        self.out = nn.Linear(shape.width, p)

    def prepare(self, xs: Sequence[str]) -> Tensor:  # (n, longest of them) uint8
        """Character codes, padded with 0. Computed once per data set."""
        rows = [self._codes(index, x) for index, x in enumerate(xs)]
        tokens = torch.zeros(len(rows), max(map(len, rows), default=1), dtype=torch.uint8)
        for line, codes in zip(tokens, rows, strict=True):
            line[: len(codes)] = torch.frombuffer(codes, dtype=torch.uint8)
        return tokens

    def _codes(self, index: int, x: str) -> bytearray:
        if not isinstance(x, str) or not x:
            raise InputError(f"CharTransformer reads strings that are not empty. Got {x!r} at index {index}.")
        if len(x) > self.longest:
            raise InputError(
                f"CharTransformer.longest is {self.longest} characters. Got {len(x)} at index {index}: raise it."
            )
        if not x.isascii() or "\0" in x:
            raise InputError(f"CharTransformer reads ASCII. Got {x!r} at index {index}.")
        return bytearray(x, "ascii")

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, p)
        padding = tokens == 0
        hidden = self.characters(tokens.long()) + self.places[: tokens.shape[1]]
        hidden = self.encoder(hidden, src_key_padding_mask=padding)
        there = (~padding).unsqueeze(2).to(hidden.dtype)
        return self.out((hidden * there).sum(dim=1) / there.sum(dim=1))
