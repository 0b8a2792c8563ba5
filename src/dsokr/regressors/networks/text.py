"""Networks for texts: pretrained encoders, and a bag of words that needs nothing pretrained."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, get_args
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsokr.errors import InputError, MissingExtraError
from dsokr.regressors.networks.base import require_shares, require_sizes

Pooling = Literal["mean", "first", "max"]

PADDING = 0  # of a bag of words; encoders bring their own
SPREAD = 0.03  # of the vectors of words at the start: what is learned of a word soon outweighs chance
MULTIPLE = 8  # lengths of batches are rounded up to it: odd ones are slow on a GPU
COUNTED_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")  # encoders whose first place is after it
WORDS = re.compile(r"\w+|[^\w\s]")
HALVES = re.compile("[\ud800-\udfff]")  # of characters: surrogates, which no encoding can write


@dataclass(frozen=True)
class TextEncoder:
    """A pretrained encoder (BERT and its like) with a layer of p outputs, trained as a whole.

    ``encoder`` is a folder that holds a Hugging Face model and its tokeniser, which is then read without any network
    access, or the name of one on the hub. Texts are cut after ``max_length`` tokens, or as many as it can read. The
    hidden states of a text's tokens are averaged ("mean"), or the "first" or the "max" is taken; ``hidden`` puts layers
    before the last one. New weights learn at ``Training.learning_rate``, the pretrained ones at ``rate`` times that (0:
    not at all). A share ``masked`` of the tokens is hidden in training, others every time, so that no single word is
    relied on. With ``words`` what a bag of the text's own words says is added: names that are no words to the encoder
    are to the bag. With ``checkpointing`` activations are computed twice rather than kept: less memory, a third more
    time.
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
        if self.pooling not in get_args(Pooling):
            raise InputError(f"TextEncoder.pooling must be one of {get_args(Pooling)}. Got {self.pooling!r}.")
        if not self.rate >= 0:
            raise InputError(f"TextEncoder.rate must not be negative. Got {self.rate}.")
        require_sizes(self, "max_length", "hidden")
        require_shares(self, "dropout", "masked")

    def __call__(self, p: int) -> EncodedText:
        return EncodedText(self, p)

    def kept(self, folder: Path) -> Callable[[int], EncodedText]:
        """With the tokeniser and the layers that :meth:`EncodedText.keep` wrote, and weights that are still to come."""
        return partial(EncodedText, self, kept=folder)


class EncodedText(nn.Module):
    """The module that :class:`TextEncoder` describes."""

    def __init__(self, shape: TextEncoder, p: int, kept: Path | None = None):
        super().__init__()
        self.shape = shape
        self.encoder = _pretrained(shape) if kept is None else _with_layers_of(kept)
        self.tokenizer = tokenizer = _tokenizer(*_stamped(shape.encoder if kept is None else str(kept)))
        self.padding, self.mask, self.marks = tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.all_special_ids
        self.max_length = min(shape.max_length, _most_tokens(self.encoder.config, self.padding))
        if shape.masked and self.mask is None:
            raise InputError(f"TextEncoder.masked must be 0: {shape.encoder} has no token for a hidden word.")
        widths = (self.encoder.config.hidden_size, *shape.hidden)
        self.head = nn.Sequential(*_layers(widths, shape.dropout), nn.Linear(widths[-1], p))
        self.words = None if shape.words is None else shape.words(p)

    def prepare(self, xs: Sequence[str]) -> Tensor:  # (n, longest of them) int32
        """Token ids, and after ``max_length`` of them those of the bag of words, if there is one.

        Computed once per data set; those of the last few data sets are kept.
        """
        tokens, notes = _tokenized(self.tokenizer, self.max_length, _checked("TextEncoder", xs))
        for note in notes:  # every time, though the tokens are computed once
            warnings.warn(note, stacklevel=2)
        if self.words is None:
            return tokens[:, : self._longest(tokens)].clone()
        whole = F.pad(tokens, (0, self.max_length - tokens.shape[1]), value=self.padding)
        return torch.cat([whole, self.words.prepare(xs)], dim=1)

    def keep(self, folder: Path) -> None:
        """Write what a saved model needs beside its weights: the tokeniser, and which layers there are."""
        self.tokenizer.save_pretrained(folder)
        self.encoder.config.save_pretrained(folder)

    def lengths(self, tokens: Tensor) -> Tensor:  # (n,)
        """How many tokens every text has: batches of similar texts are faster."""
        there = tokens[:, : self.max_length] != self.padding
        return torch.arange(1, there.shape[1] + 1, device=tokens.device).mul(there).amax(dim=1)

    def paces(self) -> list[tuple[list[nn.Parameter], float]]:
        """The weights with the share of the learning rate at which they learn."""
        parts = [(list(self.encoder.parameters()), self.shape.rate), (list(self.head.parameters()), 1.0)]
        return parts if self.words is None else [*parts, *self.words.paces()]

    def embed(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, width)
        """What the encoder makes of the texts, before the new layers."""
        tokens = tokens[:, : self._longest(tokens)].long()
        there = tokens != self.padding
        if self.training and self.shape.masked:
            hidden = torch.rand(tokens.shape, device=tokens.device) < self.shape.masked
            words = ~torch.isin(tokens, torch.tensor(self.marks, device=tokens.device))
            tokens = tokens.masked_fill(hidden & words, self.mask)
        states = self.encoder(input_ids=tokens, attention_mask=there).last_hidden_state
        if self.shape.pooling == "first":
            return states[:, 0]
        if self.shape.pooling == "max":
            return states.masked_fill(~there[:, :, None], -torch.inf).amax(dim=1)
        weights = there[:, :, None].to(states.dtype)
        return (states * weights).sum(dim=1) / weights.sum(dim=1)

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, p)
        z = self.head(self.embed(tokens))
        return z if self.words is None else z + self.words(tokens[:, self.max_length :])

    def _longest(self, tokens: Tensor) -> int:
        longest = int(self.lengths(tokens).max()) if len(tokens) else 1
        return min(tokens.shape[1], self.max_length, -(-longest // MULTIPLE) * MULTIPLE)


def _most_tokens(config: Any, padding: int) -> int:
    """How many places the encoder has for tokens; some count them from after the padding."""
    places = getattr(config, "max_position_embeddings", None) or sys.maxsize
    return places - padding - 1 if config.model_type in COUNTED_FROM_PADDING else places


def _layers(widths: Sequence[int], dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Dropout(dropout)]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU(), nn.LayerNorm(after), nn.Dropout(dropout)]
    return layers


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "text") from error
    return transformers


def _from_pretrained(kind: str, name: str, **options: Any) -> Any:
    """A folder is read offline; anything else is a name on the hub."""
    transformers = _transformers()
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise InputError(f"There is no folder {name} with a text encoder.")
    log = transformers.utils.logging
    bars = log.is_progress_bar_enabled()
    log.disable_progress_bar()  # weights of a folder are there at once
    try:
        return getattr(transformers, kind).from_pretrained(name, local_files_only=Path(name).is_dir(), **options)
    except (OSError, ValueError) as error:
        why = str(error).strip().split("\n")[0]
        raise InputError(f"{name} is no folder of a text encoder, nor a name of one that can be had: {why}") from error
    finally:
        if bars:
            log.enable_progress_bar()


def _pretrained(shape: TextEncoder) -> Any:
    dropout = {"hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.dropout}
    encoder = _without_pooler(_from_pretrained("AutoModel", shape.encoder, dtype=torch.float32, **dropout))
    if shape.rate == 0:
        encoder.requires_grad_(False)
    elif shape.checkpointing:
        encoder.config.use_cache = False  # for writing text, and at odds with this
        encoder.gradient_checkpointing_enable()
    return encoder


def _with_layers_of(folder: Path) -> Any:
    """An encoder with random weights, for those of a saved model."""
    config = _from_pretrained("AutoConfig", str(folder))
    return _without_pooler(_transformers().AutoModel.from_config(config, dtype=torch.float32))


def _without_pooler(encoder: Any) -> Any:
    """Without an extra layer that some have for another task."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder


def _stamped(name: str) -> tuple[str, tuple[Any, ...]]:
    """With what changes when a folder's files do."""
    files = sorted(Path(name).iterdir()) if Path(name).is_dir() else []
    return name, tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


@lru_cache(maxsize=4)
def _tokenizer(name: str, stamp: tuple[Any, ...]) -> Any:
    tokenizer = _from_pretrained("AutoTokenizer", name)
    tokenizer.padding_side = "right"  # whatever it was: texts begin at the first place here
    return tokenizer


@lru_cache(maxsize=8)
def _tokenized(tokenizer: Any, max_length: int, texts: tuple[str, ...]) -> tuple[Tensor, list[str]]:
    """Tokens, (n, longest of them), and what there is to say of them."""
    notes = []
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length + 1, padding=True, return_tensors="np")
    ids, there = encoded["input_ids"], encoded["attention_mask"] > 0
    unknown = (there & (ids == tokenizer.unk_token_id)).sum(axis=1) > (there.sum(axis=1) - 2) / 2
    if unknown.any():
        at, more = int(np.flatnonzero(unknown)[0]), int(unknown.sum()) - 1
        others = f", and of {more} more text{'s' * (more > 1)}" if more else ""
        notes.append(
            f"The encoder knows less than half of the words of {_short(texts[at])} at index {at}{others}: what is said "
            "of them is a guess."
        )
    if ids.shape[1] > max_length:
        cut = there.sum(axis=1) > max_length
        notes.append(
            f"{int(cut.sum())} of {len(texts)} texts, the first at index {int(np.flatnonzero(cut)[0])}, have more than "
            f"{max_length} tokens: the rest of them is not read."
        )
        last = ids[cut, max_length]  # the end mark stays
        ids = ids[:, :max_length].copy()
        ids[cut, -1] = last
    return torch.from_numpy(ids.astype(np.int32)), notes


def _checked(owner: str, xs: Sequence[str]) -> tuple[str, ...]:
    if isinstance(xs, str | bytes) or not isinstance(xs, Iterable):
        raise InputError(f"{owner} reads a list of texts. Got {xs!r}.")
    xs = tuple(xs)
    for index, x in enumerate(xs):
        if not isinstance(x, str) or not x.strip():
            raise InputError(f"{owner} reads texts that are not empty. Got {x!r} at index {index}.")
        if not x.isascii() and HALVES.search(x):
            raise InputError(f"{owner} reads Unicode, but half a character stands in {_short(x)} at index {index}.")
    return xs


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")


@dataclass(frozen=True)
class WordBag:
    """The mean of learned vectors of a text's words and word pairs, then layers of the ``hidden`` widths.

    Needs nothing pretrained. Words are in lower case and hashed into ``buckets`` vectors, so there is no vocabulary and
    a new word is no error; it only means nothing. Words after the first ``longest`` are not read. The vectors learn at
    ``rate`` times ``Training.learning_rate``.

    >>> network = WordBag(width=16, hidden=(8,))(3)
    >>> network(network.prepare(["a primary alcohol", "an ester"])).shape
    torch.Size([2, 3])
    """

    width: int = 128
    hidden: tuple[int, ...] = (512,)
    dropout: float = 0.1
    buckets: int = 1 << 14  # more for tens of thousands of texts: words that share a vector disturb each other
    longest: int = 512  # words
    rate: float = 1.0

    def __post_init__(self) -> None:
        require_sizes(self, "width", "hidden", "buckets", "longest")
        require_shares(self, "dropout")
        if self.buckets < 2:
            raise InputError("WordBag.buckets must be at least 2: the first one is for no word at all. Got 1.")
        if not self.rate >= 0:
            raise InputError(f"WordBag.rate must not be negative. Got {self.rate}.")

    def __call__(self, p: int) -> BagOfWords:
        return BagOfWords(self, p)


class BagOfWords(nn.Module):
    """The module that :class:`WordBag` describes."""

    def __init__(self, shape: WordBag, p: int):
        super().__init__()
        self.shape = shape
        self.vectors = nn.Embedding(shape.buckets, shape.width, padding_idx=PADDING)
        with torch.no_grad():
            self.vectors.weight *= SPREAD
        widths = (shape.width, *shape.hidden)
        self.head = nn.Sequential(nn.LayerNorm(shape.width), *_layers(widths, shape.dropout), nn.Linear(widths[-1], p))

    def prepare(self, xs: Sequence[str]) -> Tensor:  # (n, longest of them) int32
        rows = [self._items(text) for text in _checked("WordBag", xs)]
        tokens = np.zeros((len(rows), max(map(len, rows), default=1)), np.int32)
        for line, row in zip(tokens, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(tokens)

    def _items(self, text: str) -> list[int]:
        words = WORDS.findall(text.lower())[: self.shape.longest]
        pairs = (f"{first} {second}" for first, second in pairwise(words))
        return [1 + crc32(item.encode()) % (self.shape.buckets - 1) for item in chain(words, pairs)]

    def lengths(self, tokens: Tensor) -> Tensor:  # (n,)
        return (tokens != PADDING).sum(dim=1)

    def paces(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.vectors.parameters()), self.shape.rate), (list(self.head.parameters()), 1.0)]

    def embed(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, width)
        """The mean vector of a text's words and pairs."""
        return F.embedding_bag(tokens, self.vectors.weight, mode="mean", padding_idx=PADDING)

    def forward(self, tokens: Tensor) -> Tensor:  # (n, length) -> (n, p)
        return self.head(self.embed(tokens))
