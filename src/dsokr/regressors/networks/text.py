"""Networks for texts: pretrained encoders, and a bag of words that needs nothing pretrained."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from dsokr.errors import InputError, ModelFolderError, check_fields, import_extra

Pooling = Literal["mean", "first", "max"]
LearningRates = list[tuple[list[nn.Parameter], float]]

PADDING = 0  # of a bag of words; encoders bring their own
INITIAL_SCALE = 0.03  # of the word vectors: what is learned of a word soon outweighs its random start
MULTIPLE = 8  # lengths of batches are rounded up to it: odd ones are slow on a GPU
POSITIONS_AFTER_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")  # they number positions from padding + 1
WORDS = re.compile(r"\w+|[^\w\s]")
PARTS_PER_WORD = 8  # bounds the parts of a text, to this times ``longest``
SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class TextEncoder:
    """A pretrained encoder (BERT and its like) with a layer of p outputs, trained as a whole.

    ``encoder`` is a folder with a Hugging Face model and its tokenizer, which is read without network access, or the
    name of a model on the hub. Texts are truncated to ``max_length`` tokens, or as many as the encoder can read. The
    hidden states of a text's tokens are averaged ("mean"), or the "first" or the "max" is taken; ``hidden`` adds layers
    before the last one. New weights learn at ``Training.learning_rate``, the pretrained ones at ``rate`` times that (0:
    frozen). In training a random share ``masked`` of the tokens is hidden, so that no single word is relied on.
    ``words`` adds the output of a bag of words, which also reads names that the encoder's vocabulary splits.
    ``checkpointing`` recomputes activations instead of storing them: less memory, a third more time.
    """

    encoder: str
    max_length: int = 256  # tokens
    pooling: Pooling = "mean"
    hidden: tuple[int, ...] = ()
    dropout: float = 0.1  # of the encoder, and before each new layer
    rate: float = 1.0
    masked: float = 0.0
    words: WordBag | None = None
    checkpointing: bool = False

    def __post_init__(self) -> None:
        check_fields(self, dropout="[0, 1)", masked="[0, 1)")

    def __call__(self, p: int) -> EncodedText:
        return EncodedText(self, p)

    def from_files(self, folder: Path) -> Callable[[int], EncodedText]:
        """The same network with the tokenizer and configuration in ``folder`` and random weights, to be loaded."""
        return partial(EncodedText, self, files=folder)


class EncodedText(nn.Module):
    """The module that :class:`TextEncoder` specifies."""

    def __init__(self, shape: TextEncoder, p: int, files: Path | None = None):
        super().__init__()
        self.shape = shape
        self.encoder = _load_encoder(shape) if files is None else _make_encoder(files)
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # a layer for another task
        self.tokenizer = tokenizer = _from_pretrained("AutoTokenizer", files or shape.encoder)
        tokenizer.padding_side = "right"
        self.padding, self.mask = tokenizer.pad_token_id, tokenizer.mask_token_id
        self.special = tokenizer.all_special_ids
        self.max_length = min(shape.max_length, _count_positions(self.encoder.config, self.padding))
        if shape.masked and self.mask is None:
            raise InputError(f"TextEncoder.masked must be 0: {shape.encoder} has no mask token.")
        widths = (self.encoder.config.hidden_size, *shape.hidden)
        self.head = nn.Sequential(*_make_layers(widths, shape.dropout), nn.Linear(widths[-1], p))
        self.words = None if shape.words is None else shape.words(p)

    def prepare(self, xs: Sequence[str]) -> Tensor:  # (n, longest of them) int32
        """Return token ids, followed after ``max_length`` of them by those of the bag of words, if there is one."""
        tokens = _tokenize(self.tokenizer, self.max_length, _check_texts("TextEncoder", xs))
        if self.words is None:
            return tokens[:, : self._padded_length(tokens)]
        whole = F.pad(tokens, (0, self.max_length - tokens.shape[1]), value=self.padding)
        return torch.cat([whole, self.words.prepare(xs)], dim=1)

    def write_files(self, folder: Path) -> None:
        """Write the tokenizer and the encoder's configuration."""
        self.tokenizer.save_pretrained(folder)
        self.encoder.config.save_pretrained(folder)

    def lengths(self, tokens: Tensor) -> Tensor:  # (n,)
        mask = tokens[:, : self.max_length] != self.padding
        return torch.arange(1, mask.shape[1] + 1, device=tokens.device).mul(mask).amax(dim=1)

    def learning_rates(self) -> LearningRates:
        parts = [(list(self.encoder.parameters()), self.shape.rate), (list(self.head.parameters()), 1.0)]
        return parts if self.words is None else [*parts, *self.words.learning_rates()]

    def embed(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, width)
        """The pooled hidden states of the encoder."""
        tokens = tokens[:, : self._padded_length(tokens)].long()
        mask = tokens != self.padding
        if self.training and self.shape.masked:
            hidden = torch.rand(tokens.shape, device=tokens.device) < self.shape.masked
            words = ~torch.isin(tokens, torch.tensor(self.special, device=tokens.device))
            tokens = tokens.masked_fill(hidden & words, self.mask)
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        if self.shape.pooling == "first":
            return states[:, 0]
        if self.shape.pooling == "max":
            return states.masked_fill(~mask[:, :, None], -torch.inf).amax(dim=1)
        weights = mask[:, :, None].to(states.dtype)
        return (states * weights).sum(dim=1) / weights.sum(dim=1)

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, p)
        z = self.head(self.embed(tokens))
        return z if self.words is None else z + self.words(tokens[:, self.max_length :])

    def _padded_length(self, tokens: Tensor) -> int:
        longest = int(self.lengths(tokens).max()) if len(tokens) else 1
        return min(tokens.shape[1], self.max_length, -(-longest // MULTIPLE) * MULTIPLE)


def _count_positions(config: Any, padding: int) -> int:
    positions = getattr(config, "max_position_embeddings", None) or sys.maxsize
    return positions - padding - 1 if config.model_type in POSITIONS_AFTER_PADDING else positions


def _make_layers(widths: Sequence[int], dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Dropout(dropout)]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU(), nn.LayerNorm(after), nn.Dropout(dropout)]
    return layers


def _from_pretrained(kind: str, name: str | Path, **options: Any) -> Any:
    """Read a part of a Hugging Face model: a folder offline, another name from the hub. Code beside it never runs."""
    transformers = import_extra("transformers", "text")
    log = transformers.utils.logging
    shows_bars = log.is_progress_bar_enabled()
    log.disable_progress_bar()  # reading a folder takes no time
    try:
        is_local = isinstance(name, Path) or Path(name).is_dir()
        read = getattr(transformers, kind).from_pretrained
        return read(str(name), local_files_only=is_local, trust_remote_code=False, **options)
    except Exception as error:  # a damaged folder raises errors of many types
        why = str(error).strip().split("\n")[0]
        raise InputError(f"{name} is neither an encoder folder nor an available model name: {why}") from error
    finally:
        if shows_bars:
            log.enable_progress_bar()


def _load_encoder(shape: TextEncoder) -> Any:
    dropout = {"hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.dropout}
    encoder = _from_pretrained("AutoModel", shape.encoder, dtype=torch.float32, use_safetensors=True, **dropout)
    if shape.rate == 0:
        encoder.requires_grad_(False)
    elif shape.checkpointing:
        encoder.config.use_cache = False  # for generating text; it conflicts with checkpointing
        encoder.gradient_checkpointing_enable()
    return encoder


def _make_encoder(folder: Path) -> Any:
    """An encoder with random weights, from a saved configuration."""
    config = _from_pretrained("AutoConfig", folder)
    if any("backbone" in name and value for name, value in config.to_dict().items()):
        raise ModelFolderError(f"{folder / 'config.json'} names a further model, which is not loaded.")
    return import_extra("transformers", "text").AutoModel.from_config(config, dtype=torch.float32)


def _tokenize(tokenizer: Any, max_length: int, texts: list[str]) -> Tensor:  # (n, longest of them) int32
    """Return tokens, and warn about texts that are mostly unknown or too long."""
    encoded = tokenizer(texts, truncation=True, max_length=max_length + 1, padding=True, return_tensors="np")
    ids, mask = encoded["input_ids"], encoded["attention_mask"] > 0
    unknown = (mask & (ids == tokenizer.unk_token_id)).sum(axis=1) > (mask.sum(axis=1) - 2) / 2
    if unknown.any():
        at, more = int(np.flatnonzero(unknown)[0]), int(unknown.sum()) - 1
        others = f", and of {more} more text{'s' * (more > 1)}" if more else ""
        warnings.warn(
            f"The encoder knows less than half of the words of {shorten(texts[at], 60)!r} at index {at}{others}: the "
            "prediction is a guess.",
            stacklevel=3,
        )
    if ids.shape[1] > max_length:
        cut = mask.sum(axis=1) > max_length
        warnings.warn(
            f"{int(cut.sum())} of {len(texts)} texts, the first at index {int(np.flatnonzero(cut)[0])}, have more than "
            f"{max_length} tokens: the rest of them is not read.",
            stacklevel=3,
        )
        last = ids[cut, max_length]  # the end token stays
        ids = ids[:, :max_length].copy()
        ids[cut, -1] = last
    return torch.from_numpy(ids.astype(np.int32))


def _check_texts(owner: str, xs: Sequence[str]) -> list[str]:
    if isinstance(xs, str | bytes) or not isinstance(xs, Iterable):
        raise InputError(f"{owner} reads a list of texts. Got {xs!r}.")
    xs = list(xs)
    for index, x in enumerate(xs):
        if not isinstance(x, str) or not x.strip():
            raise InputError(f"{owner} reads non-empty texts. Got {x!r} at index {index}.")
        if not x.isascii() and SURROGATES.search(x):
            raise InputError(
                f"{owner} reads Unicode. Got an unpaired surrogate in {shorten(x, 60)!r} at index {index}."
            )
    return xs


@dataclass(frozen=True)
class WordBag:
    """Mean vectors of a text's words and word pairs, and of parts of its words, then layers of the ``hidden`` widths.

    Needs nothing pretrained. Texts are lower-cased. Words and pairs are hashed into ``buckets`` learned vectors, and
    parts into as many, so there is no vocabulary. A part is a run of characters within a word, including marks for its
    start and end; ``parts`` gives the fewest and the most characters. Parts represent words that training texts lack:
    names, other forms, misspellings. Words after the first ``longest`` are not read. The vectors learn at ``rate``
    times ``Training.learning_rate``.

    >>> network = WordBag(width=16, hidden=(8,))(3)
    >>> network(network.prepare(["a primary alcohol", "an ester"])).shape
    torch.Size([2, 3])
    """

    width: int = 128
    hidden: tuple[int, ...] = (512,)
    dropout: float = 0.1
    buckets: int = 1 << 14  # more for tens of thousands of texts, so that fewer words share a vector
    longest: int = 512  # words
    rate: float = 1.0
    parts: tuple[int, int] | None = (3, 5)  # characters; None: whole words and their pairs only

    def __post_init__(self) -> None:
        check_fields(self, buckets=2, dropout="[0, 1)")  # the first bucket is padding
        if self.parts is not None and not self.parts[0] <= self.parts[1]:
            raise InputError(f"WordBag.parts must be the fewest and the most characters. Got {self.parts}.")

    def __call__(self, p: int) -> BagOfWords:
        return BagOfWords(self, p)


class BagOfWords(nn.Module):
    """The module that :class:`WordBag` specifies."""

    def __init__(self, shape: WordBag, p: int):
        super().__init__()
        self.shape = shape
        kinds = 1 if shape.parts is None else 2  # words and pairs; parts
        self.vectors = nn.ModuleList(nn.Embedding(shape.buckets, shape.width, PADDING) for _ in range(kinds))
        with torch.no_grad():
            for weight in self.vectors.parameters():
                weight.mul_(INITIAL_SCALE)
        widths = (kinds * shape.width, *shape.hidden)
        layers = [nn.LayerNorm(widths[0]), *_make_layers(widths, shape.dropout)]
        self.head = nn.Sequential(*layers, nn.Linear(widths[-1], p))

    def prepare(self, xs: Sequence[str]) -> Tensor:  # (n, longest of them) int32
        rows = [self._hash_text(text) for text in _check_texts("WordBag", xs)]
        return pad_sequence(rows, batch_first=True, padding_value=PADDING)

    def _hash_text(self, text: str) -> Tensor:
        """Buckets of words and pairs from 1 on, and of parts behind those."""
        words, buckets = WORDS.findall(text.lower())[: self.shape.longest], self.shape.buckets
        ids = [_hash(item, buckets) for item in chain(words, (f"{a} {b}" for a, b in pairwise(words)))]
        parts = islice(self._list_parts(words), PARTS_PER_WORD * self.shape.longest)
        return torch.tensor([*ids, *(buckets + _hash(part, buckets) for part in parts)], dtype=torch.int32)

    def _list_parts(self, words: Sequence[str]) -> Iterator[str]:
        """The parts of distinct words."""
        if self.shape.parts is not None:
            for word in dict.fromkeys(words):
                whole = f"<{word}>"
                for size in range(self.shape.parts[0], min(self.shape.parts[1], len(whole)) + 1):
                    yield from (whole[i : i + size] for i in range(len(whole) - size + 1))

    def lengths(self, tokens: Tensor) -> Tensor:  # (n,)
        return (tokens != PADDING).sum(dim=1)

    def learning_rates(self) -> LearningRates:
        return [(list(self.vectors.parameters()), self.shape.rate), (list(self.head.parameters()), 1.0)]

    def embed(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, width), or twice as wide with parts
        """The mean vectors of a text's words and pairs, and of parts."""
        buckets = self.shape.buckets
        # without parts there is one table, and the second kind is not read
        kinds = (tokens.masked_fill(tokens >= buckets, PADDING), (tokens - buckets).clamp(min=PADDING))
        bags = [
            F.embedding_bag(own, weight, mode="mean", padding_idx=PADDING)
            for own, weight in zip(kinds, self.vectors.parameters(), strict=False)
        ]
        return torch.cat(bags, dim=1)

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, p)
        return self.head(self.embed(tokens))


def _hash(item: str, buckets: int) -> int:
    return 1 + crc32(item.encode()) % (buckets - 1)
