"""Handwritten words, letter by letter: inputs are sequences of small black-and-white images, outputs are words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from studies.data.files import Source, read_arrays

HEIGHT, WIDTH = 16, 8  # of a letter's image, in pixels
FIRST = ord("a")  # letters are numbered from here
SOURCE = Source(
    "ocr_letters/letters.npz",
    "aca4912c5cc9df2f0d52f472a66c9798c59ef3429421fe5741d645999a6c4530",
    "the OCR data of Kassel and Taskar (https://ai.stanford.edu/~btaskar/ocr/): letter.data as arrays "
    "X (letters, 128), y (0 for a), lengths (letters of every word) and folds (of every word, 0 to 9)",
)


@dataclass(frozen=True, eq=False)
class WrittenWords:
    """n words and the images of their letters, padded with blank images to the longest word."""

    X: np.ndarray  # (n, longest, 16, 8) float32, 0 or 1
    words: np.ndarray  # (n,) of str
    folds: np.ndarray  # (n,) int64

    @staticmethod
    def from_letters(
        images: np.ndarray, letters: np.ndarray, lengths: np.ndarray, folds: np.ndarray
    ) -> WrittenWords:  # (letters, 16, 8), (letters,), (n,), (n,)
        """Join consecutive letters into words."""
        has_letter = np.arange(lengths.max()) < lengths[:, None]
        X = np.zeros((*has_letter.shape, *images.shape[1:]), np.float32)
        X[has_letter] = images
        text = "".join(chr(FIRST + letter) for letter in letters)
        stops = lengths.cumsum()
        words = np.array([text[stop - length : stop] for stop, length in zip(stops, lengths, strict=True)])
        return WrittenWords(X, words, np.asarray(folds, np.int64))

    def rows(self, index: np.ndarray) -> WrittenWords:
        """Some of the words, by positions or a mask."""
        return WrittenWords(self.X[index], self.words[index], self.folds[index])

    def letter_images(self) -> np.ndarray:  # (letters, 16, 8)
        """The images of all letters, without the blank ones."""
        return self.X[np.arange(self.X.shape[1]) < self.lengths()[:, None]]

    def lengths(self) -> np.ndarray:  # (n,)
        return np.array([len(word) for word in self.words])

    def __len__(self) -> int:
        return len(self.words)


def load_ocr_letters(folder: str | Path | None = None) -> WrittenWords:
    """Load 6,877 words that 150 people wrote from ``ocr_letters/letters.npz`` in the folder; ten folds come with them.

    The first letter of every word was a capital and is missing: "ommanding". There are no more than 55 different words,
    and each is in every fold.
    """
    arrays = read_arrays(SOURCE.find(folder))
    images = arrays["X"].reshape(-1, HEIGHT, WIDTH)
    return WrittenWords.from_letters(images, arrays["y"], arrays["lengths"], arrays["folds"])


def rearrange_letters(data: WrittenWords, count: int, rng: np.random.Generator) -> WrittenWords:
    """Make at least ``count`` strings of the words' letters, each letter as often as the others.

    All letters are shuffled and cut into strings of the words' lengths, again and again.
    """
    images, letters = data.letter_images(), np.array([ord(x) - FIRST for word in data.words for x in word])
    parts = []
    for _ in range(-(-count // len(data))):
        order = rng.permutation(len(letters))
        parts.append(WrittenWords.from_letters(images[order], letters[order], data.lengths(), data.folds))
    return WrittenWords(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("X", "words", "folds")))


def generate(
    copies: int = 20, *, letters: str = "abcdef", words: int = 30, noise: float = 0.08, seed: int = 0
) -> WrittenWords:
    """Draw random words of three to five letters, each copied ``copies`` times in two folds, as noisy random patterns.

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
    lengths = np.array([len(word) for word in text])
    return WrittenWords.from_letters(images.astype(np.float32), numbers, lengths, folds)
