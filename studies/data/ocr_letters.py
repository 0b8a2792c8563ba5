"""Handwritten words, letter by letter: inputs are sequences of small black-and-white images, outputs are words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.data.files import Source
from dsokr.errors import InputError

HEIGHT, WIDTH = 16, 8  # of a letter's image, in pixels
FIRST = ord("a")  # letters are numbered from here
ORIGIN = (
    "the OCR data of Kassel and Taskar (https://ai.stanford.edu/~btaskar/ocr/): letter.data as arrays "
    "X (letters, 128), y (0 for a), lengths (letters of every word) and folds (of every word, 0 to 9)"
)
SOURCE = Source("ocr_letters/letters.npz", "aca4912c5cc9df2f0d52f472a66c9798c59ef3429421fe5741d645999a6c4530", ORIGIN)


@dataclass(frozen=True, eq=False)
class WrittenWords:
    """n words and the images of their letters, one after the other and filled up with blank images to one length."""

    X: np.ndarray  # (n, longest, 16, 8) float32, 0 or 1
    words: np.ndarray  # (n,) of str
    folds: np.ndarray  # (n,) int64

    def rows(self, index: np.ndarray) -> WrittenWords:
        """Some of them, by their numbers or by a mask."""
        return WrittenWords(self.X[index], self.words[index], self.folds[index])

    def letter_images(self) -> np.ndarray:  # (letters, 16, 8)
        """The images of all letters, without the blank ones."""
        return self.X[np.arange(self.X.shape[1]) < self.lengths()[:, None]]

    def lengths(self) -> np.ndarray:  # (n,)
        return np.array([len(word) for word in self.words])

    def __len__(self) -> int:
        return len(self.words)


def ocr_letters(folder: str | Path | None = None) -> WrittenWords:
    """6,877 words that 150 people wrote, from ``ocr_letters/letters.npz`` in the folder; ten folds come with them.

    The first letter of every word was a capital and is missing: "ommanding". There are no more than 55 different words,
    and each is in every fold.
    """
    return read(SOURCE.find(folder))


def read(path: Path) -> WrittenWords:
    """A file in the form that the origin's description names."""
    try:
        with np.load(path, allow_pickle=False) as file:
            images, letters, lengths, folds = (file[name] for name in ("X", "y", "lengths", "folds"))
        return of_letters(images.reshape(-1, HEIGHT, WIDTH), letters, lengths, folds)
    except (KeyError, ValueError, IndexError, OSError, EOFError) as error:
        raise InputError(f"{path} does not hold written words: {error}. Get it again from {ORIGIN}.") from error


def of_letters(images: np.ndarray, letters: np.ndarray, lengths: np.ndarray, folds: np.ndarray) -> WrittenWords:
    """Words from all their letters, one after the other."""
    if not len(images) == len(letters) == lengths.sum() or len(folds) != len(lengths):
        raise ValueError(
            f"there are {len(images)} images, {len(letters)} letters, {lengths.sum()} of them in {len(lengths)} words, "
            f"and {len(folds)} folds"
        )
    there = np.arange(lengths.max()) < lengths[:, None]
    X = np.zeros((*there.shape, *images.shape[1:]), np.float32)
    X[there] = images
    text = "".join(chr(FIRST + letter) for letter in letters)
    stops = lengths.cumsum()
    words = np.array([text[stop - length : stop] for stop, length in zip(stops, lengths, strict=True)])
    return WrittenWords(X, words, np.asarray(folds, np.int64))


def rearranged(data: WrittenWords, count: int, rng: np.random.Generator) -> WrittenWords:
    """At least ``count`` strings made of the letters of the words, each letter as often as the others.

    All letters are put in a random order and cut into strings as long as the words were, again and again.
    """
    images, letters = data.letter_images(), np.array([ord(x) - FIRST for word in data.words for x in word])
    parts = []
    for _ in range(-(-count // len(data))):
        order = rng.permutation(len(letters))
        parts.append(of_letters(images[order], letters[order], data.lengths(), data.folds))
    X, words, folds = (np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "words", "folds"))
    return WrittenWords(X, words, folds)


def generate(
    copies: int = 20, *, letters: str = "abcdef", words: int = 30, noise: float = 0.08, seed: int = 0
) -> WrittenWords:
    """Random words of three to five letters, so many copies of each in two folds; letters are noisy random patterns.

    >>> data = generate(copies=4, letters="abc", words=5)
    >>> data.X.shape, len(set(data.words.tolist()))
    ((20, 5, 16, 8), 5)
    """
    rng = np.random.default_rng(seed)
    patterns = rng.random((len(letters), HEIGHT, WIDTH)) < 0.4
    different: set[str] = {"".join(rng.choice(list(letters), size=5))}  # one of the longest
    while len(different) < words:
        different.add("".join(rng.choice(list(letters), size=rng.integers(3, 6))))
    text = sorted(different) * copies
    which = np.array([letters.index(x) for word in text for x in word])
    images = patterns[which] ^ (rng.random((len(which), HEIGHT, WIDTH)) < noise)
    numbers = np.array([ord(letters[i]) - FIRST for i in which])
    folds = np.arange(len(text)) // words % 2
    return of_letters(images.astype(np.float32), numbers, np.array([len(word) for word in text]), folds)
