"""Networks for strings, read character by character."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from dsokr.errors import InputError, check_fields

CHARACTERS = 128  # ASCII
PADDING, UNKNOWN = 0, 1


@dataclass(frozen=True)
class CharTransformer:
    """A Transformer encoder over the characters of a string, averaged over them, then layers with p outputs.

    The defaults are among the paper's choices for SMILES; its feed-forward layers are four times as wide as the model.
    If p is larger than ``width``, a hidden layer of p units comes before the last layer, whose outputs would otherwise
    stay in a subspace; ``hidden`` is another number of units, 0 for no such layer.
    Strings must be ASCII, not empty, and at most ``longest`` characters. Characters that no training string has are
    read as blanks, with a warning. A string longer than all training strings also gives a warning.

    >>> network = CharTransformer(layers=1, width=16, heads=2)(3)
    >>> network(network.prepare(["CCO", "c1ccccc1"])).shape
    torch.Size([2, 3])
    """

    layers: int = 6
    width: int = 256
    heads: int = 8
    dropout: float = 0.2
    longest: int = 256  # characters
    hidden: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, dropout="[0, 1)", hidden=0)
        check_heads(self)

    def __call__(self, p: int) -> CharEncoder:
        return CharEncoder(self, p)


def check_heads(network: Any) -> None:
    width, heads = network.width, network.heads
    if width % heads:
        name = type(network).__name__
        raise InputError(f"{name}.width must be a multiple of its heads. Got width={width} and heads={heads}.")


class CharEncoder(nn.Module):
    """The module that :class:`CharTransformer` specifies."""

    alphabet: Tensor
    seen_length: Tensor

    def __init__(self, shape: CharTransformer, p: int):
        super().__init__()
        self.longest = shape.longest
        characters = torch.randn(CHARACTERS, shape.width)
        characters[[PADDING, UNKNOWN]] = 0
        self.characters = nn.Parameter(characters)
        self.positions = nn.Parameter(0.02 * torch.randn(shape.longest, shape.width))
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads, shape.dropout) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        hidden = (p if p > shape.width else 0) if shape.hidden is None else shape.hidden
        widen = (nn.Linear(shape.width, hidden), nn.GELU()) if hidden else ()
        self.out = nn.Sequential(*widen, nn.Linear(hidden or shape.width, p))
        self.register_buffer("alphabet", torch.ones(CHARACTERS, dtype=torch.bool))
        self.register_buffer("seen_length", torch.tensor(shape.longest))

    def adapt(self, xs: Sequence[str]) -> None:
        """Remember the characters and the longest length in the training strings."""
        tokens = self.prepare(xs)
        self.alphabet = torch.bincount(tokens.flatten(), minlength=CHARACTERS) > 0
        self.seen_length = torch.tensor(tokens.shape[1])

    def prepare(self, xs: Sequence[str]) -> Tensor:  # (n, longest of them) uint8
        """Return character codes, padded with 0."""
        rows = [torch.frombuffer(self._encode(index, x), dtype=torch.uint8) for index, x in enumerate(xs)]
        tokens = pad_sequence(rows, batch_first=True, padding_value=PADDING)
        unknown = ~self.alphabet.cpu()[tokens.int()] & (tokens != PADDING)
        if unknown.any():
            at, place = unknown.nonzero()[0].tolist()
            more = int(unknown.any(dim=1).sum()) - 1
            others = f", here and in {more} more string{'s' * (more > 1)} with unknown characters" if more else ""
            warnings.warn(
                f"No training string has the character {xs[at][place]!r} of {xs[at]!r} at index {at}: it reads as "
                f"blank{others}.",
                stacklevel=2,
            )
            tokens[unknown] = UNKNOWN
        if tokens.shape[1] > self.seen_length:
            at = max(range(len(xs)), key=lambda i: len(xs[i]))
            warnings.warn(
                f"The longest training string has {int(self.seen_length)} characters, {xs[at]!r} at index {at} has "
                f"{len(xs[at])}: what is predicted for longer strings is a guess.",
                stacklevel=2,
            )
        return tokens

    def _encode(self, index: int, x: str) -> bytearray:
        if not isinstance(x, str) or not x:
            raise InputError(f"CharTransformer reads non-empty strings. Got {x!r} at index {index}.")
        if len(x) > self.longest:
            raise InputError(
                f"CharTransformer.longest is {self.longest} characters. Got {len(x)} at index {index}: raise it."
            )
        if not x.isascii() or "\0" in x:
            raise InputError(f"CharTransformer reads ASCII. Got {x!r} at index {index}.")
        return bytearray(x, "ascii")

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, p)
        mask = tokens != PADDING
        # a product with one-hot rows: the gradient of looking up few characters many times is slow on a GPU
        one_hot = F.one_hot(tokens.long(), CHARACTERS).to(self.characters.dtype)
        hidden = one_hot @ self.characters + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, mask[:, None, None, :])
        weights = mask.unsqueeze(2).to(hidden.dtype)
        return self.out((self.norm(hidden) * weights).sum(dim=1) / weights.sum(dim=1))


class Block(nn.Module):
    """y = x + attention(norm(x)), then y + feed-forward(norm(y))."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:  # (n, length, width), (n, 1, 1, length)
        hidden = hidden + self._drop(self._attend(self.first_norm(hidden), mask))
        wide = self._drop(F.gelu(self.widen(self.second_norm(hidden))))
        return hidden + self._drop(self.narrow(wide))

    def _attend(self, hidden: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.qkv(hidden).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return self.mix(mixed.transpose(1, 2).flatten(2))

    def _drop(self, hidden: Tensor) -> Tensor:
        return F.dropout(hidden, self.dropout, self.training)
