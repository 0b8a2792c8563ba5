"""Handwritten words: from the images of its letters to a word, with an n-gram kernel.

    dsokr reproduce strings --data-dir FOLDER

Two protocols. "known words" is Taskar's: train on one of ten folds, test on the other nine. Everybody wrote the same 55
words, so every test word is a training word. "new words" divides the different words into five groups and tests on
the words of one, whoever wrote them: no test word is a candidate, and only a search of all strings can find it.

The network is a CNN for letters, whose probabilities are turned into expected numbers of letters and of pairs of
neighbours, and then into coordinates by a linear layer; all of it is trained, from the weights of a letter classifier.
Pairs of letters that no training word has can only be learnt from strings that have them: "rearranged" training words
are the same images in a random order, cut into words of the same lengths.

The baseline is that letter classifier: what it reads, letter by letter, and the likeliest training word. As many
letters as there are images is what all methods know of the length. Settings are chosen on a fifth of a split's
training words, which in "new words" is a fifth of the different ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dsokr import decoders
from studies.data.ocr_letters import WrittenWords, generate, ocr_letters, rearranged
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs
from dsokr.estimator import DSOKR
from studies.results import Results, Row
from dsokr.kernels import NGram
from dsokr.losses import Objective
from dsokr.metrics import char_error, word_accuracy
from dsokr.regressors.networks import CNN, built, outputs_of
from dsokr.sketches import SubSample
from dsokr.regressors.training import Pairs, Training, train

Say = Callable[[str], None]
Load = Callable[[str | Path | None], WrittenWords]

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
CPU = torch.device("cpu")
LEAST = 2000
DECODERS: dict[str, Callable[[int], Decoder]] = {  # from the number of letters
    "Candidates": lambda length: Candidates("kernel"),
    "NGram": lambda length: decoders.NGram(shortest=length, longest=length),
}


@dataclass(frozen=True, eq=False)
class Split:
    """Words to train on, and words to test on."""

    protocol: str
    number: int
    train: WrittenWords
    test: WrittenWords

    def inner(self, share: float = 0.2) -> Split:
        """The training words alone, with a share of them to test on: of all, or of the different ones."""
        rng = np.random.default_rng(self.number)
        if self.protocol == "known words":
            tested = rng.permutation(len(self.train)) < share * len(self.train)
        else:
            kinds = rng.permutation(np.unique(self.train.words))
            tested = np.isin(self.train.words, kinds[: max(1, round(share * len(kinds)))])
        return Split(self.protocol, self.number, self.train.rows(~tested), self.train.rows(tested))


def known_words(data: WrittenWords) -> Iterator[Split]:
    """Train on one fold, test on the others."""
    for number in np.unique(data.folds).tolist():
        yield Split("known words", number, data.rows(data.folds == number), data.rows(data.folds != number))


def new_words(data: WrittenWords, groups: int = 5) -> Iterator[Split]:
    """The different words in random groups; test on those of one group, train on all others."""
    kinds = np.random.default_rng(0).permutation(np.unique(data.words))
    for number, group in enumerate(np.array_split(kinds, groups)):
        tested = np.isin(data.words, group)
        yield Split("new words", number, data.rows(~tested), data.rows(tested))


PROTOCOLS: dict[str, Callable[[WrittenWords], Iterator[Split]]] = {"known words": known_words, "new words": new_words}


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """−Σ_l y_l log softmax(z)_l, as a mean over letters."""

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z, target)


class ExpectedNGrams(nn.Module):
    """Images of letters (n, longest, 16, 8) -> probabilities s_t of each -> W (Σ_t s_t, Σ_t s_t ⊗ s_{t+1}) + b, (n, p).

    With s_t certain, the sums are the numbers of letters and of pairs, of which coordinates for NGram kernels up to
    n = 2 are linear functions. Images without any ink are none.
    """

    def __init__(self, letters: nn.Module, p: int):
        super().__init__()
        self.letters, self.out = letters, nn.Linear(len(ALPHABET) + len(ALPHABET) ** 2, p)

    def forward(self, images: Tensor) -> Tensor:
        there = images.flatten(2).any(dim=2)
        s = images.new_zeros(*there.shape, len(ALPHABET))
        s[there] = self.letters(images[there]).softmax(dim=1)
        pairs = torch.einsum("nti,ntj->nij", s[:, :-1], s[:, 1:])
        return self.out(torch.cat([s.sum(dim=1), pairs.flatten(1)], dim=1))


@dataclass(frozen=True)
class Setting:
    """What is tried for DSOKR: the n of the kernel, and what is trained on."""

    n: int | tuple[int, ...] = 2
    words: bool = True  # the training words themselves
    rearranged: int = 2  # strings of their letters for every word, but LEAST of them in all


TRAINING = Training(
    batch_size=64, learning_rate=5e-3, schedule="linear", validation_fraction=0.0, patience=None, progress=False
)
LETTER_TRAINING = replace(TRAINING, batch_size=128, learning_rate=2e-3)
LETTERS = CNN((16, 32), hidden=128, dropout=0.3)


@dataclass(frozen=True)
class Study:
    """What is run. Steps are those of the optimiser, in whole epochs."""

    load: Load
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    splits: int | None = None  # of every protocol; None: all
    letters: CNN = LETTERS
    letter_training: Training = LETTER_TRAINING
    letter_steps: int = 2000
    settings: tuple[Setting, ...] = (Setting(words=False), Setting(), Setting(n=(1, 2)))
    training: Training = TRAINING
    choosing_steps: int = 200  # when settings are compared
    steps: int = 1000
    size: int = 1500  # of the sketch


FULL = Study(ocr_letters)
REDUCED = replace(FULL, splits=2)
QUICK = Study(
    lambda _: generate(copies=6),
    splits=2,
    letters=CNN((8,), hidden=32),
    letter_steps=60,
    settings=(Setting(words=False), Setting(n=(1, 2))),
    choosing_steps=30,
    steps=120,
    size=300,
)


def for_steps(training: Training, steps: int, n: int) -> Training:
    """As many epochs of n pairs as make up the steps."""
    return replace(training, epochs=math.ceil(steps / math.ceil(n / training.batch_size)))


class Read(NamedTuple):
    """What a letter classifier says of words: log-probabilities of their letters."""

    words: WrittenWords
    log_p: list[np.ndarray]  # for every word (its letters, 26)

    def spelled(self) -> list[str]:
        return ["".join(ALPHABET[i] for i in word.argmax(axis=1)) for word in self.log_p]

    def likeliest(self, known: list[str]) -> list[str]:
        """Of the known words with as many letters; what is spelled, where there are none."""
        return [self._likeliest(word, spelled, known) for word, spelled in zip(self.log_p, self.spelled(), strict=True)]

    def _likeliest(self, log_p: np.ndarray, spelled: str, known: list[str]) -> str:
        same = [word for word in known if len(word) == len(spelled)]
        return max(same, key=lambda w: log_p[range(len(w)), _numbers(w)].sum(), default=spelled)


def _numbers(word: str) -> list[int]:
    return [ALPHABET.index(letter) for letter in word]


def letter_classifier(study: Study, words: WrittenWords, seed: int) -> nn.Module:
    """Trained on all letters one by one."""
    images = torch.from_numpy(words.letter_images())
    targets = nn.functional.one_hot(torch.tensor(_numbers("".join(words.words))), len(ALPHABET)).float()
    network = built(study.letters, len(ALPHABET), images, seed)
    training = for_steps(study.letter_training, study.letter_steps, len(images))
    pairs = Pairs(images, targets, torch.zeros(len(images)))
    train(network, pairs, None, CrossEntropy(), training, seed=seed, device=CPU)
    return network


def read_letters(classifier: nn.Module, words: WrittenWords) -> Read:
    log_p = outputs_of(classifier, torch.from_numpy(words.letter_images())).log_softmax(dim=1).numpy()
    stops = np.cumsum([len(word) for word in words.words])
    return Read(words, np.split(log_p, stops[:-1]))


def fitted(study: Study, setting: Setting, words: WrittenWords, classifier: nn.Module, steps: int, seed: int) -> DSOKR:
    """DSOKR on the training words, on their letters rearranged, or on both."""
    parts = [words] if setting.words else []
    if setting.rearranged:
        parts.append(rearranged(words, max(LEAST, setting.rearranged * len(words)), np.random.default_rng(seed)))
    X = torch.from_numpy(np.concatenate([part.X for part in parts]))
    Y = [str(word) for part in parts for word in part.words]
    model = DSOKR(
        NGram(setting.n),
        SubSample(min(study.size, len(Y))),
        lambda p: ExpectedNGrams(deepcopy(classifier), p),
        decoder=Candidates("kernel"),
        training=for_steps(study.training, steps, len(Y)),
        random_state=seed,
        device="cpu",
    )
    return model.fit(X, Y)


def decoded(model: DSOKR, words: WrittenWords, known: list[str], decoder: str) -> list[str]:
    """What the model says of words, by their numbers of letters. Candidates are the known words of that length."""
    z = model.coefficients(torch.from_numpy(words.X))
    lengths = np.array([len(word) for word in words.words])
    found = np.empty(len(words), dtype=object)
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        start = EmbeddedOutputs(model.basis_, [word for word in known if len(word) == length] or known)
        found[at] = DECODERS[decoder](length).decode(model.basis_, z[at], start).outputs
    return found.tolist()


def run(study: Study, folder: Path, data: str | Path | None = None, say: Say = print) -> None:
    """Compute what ``models.jsonl`` in ``folder`` does not hold yet. ``data`` is the data folder."""
    words = study.load(data)
    results = Results(folder / "models.jsonl")
    for protocol in study.protocols:
        for split in list(PROTOCOLS[protocol](words))[: study.splits]:
            for row in _measured(study, split, results):
                metrics = row["metrics"]
                numbers = f"{metrics['word_accuracy']:.3f} of words, {metrics['char_error']:.3f} of letters wrong"
                say(f"{protocol}, split {split.number}: {row['method']}, {row['decoder']}: {numbers}")


METHODS = (("letters", "spelled"), ("letters", "likeliest"), ("dsokr", "Candidates"), ("dsokr", "NGram"))


def _measured(study: Study, split: Split, results: Results) -> Iterator[Row]:
    task = {"experiment": "strings", "protocol": split.protocol, "split": split.number}
    sizes = {"n_train": len(split.train), "n_test": len(split.test)}
    letters = {"encoder": str(study.letters), "letter_steps": study.letter_steps}
    dsokr = {"settings": [str(setting) for setting in study.settings], "sketch": "SubSample", "m": study.size}
    steps = {"choosing_steps": study.choosing_steps, "steps": study.steps, "selected": True}
    own = {"letters": letters, "dsokr": letters | dsokr | steps}
    rows = [task | sizes | {"method": method, "decoder": decoder} | own[method] for method, decoder in METHODS]
    if not all(results.find(row) for row in rows):
        for row, found in zip(rows, compared(study, split), strict=True):
            results.record(row, partial(_tested, split, found))
    for row in rows:
        yield results.find(row) or {}


class Found(NamedTuple):
    """What a method says of the test words, what was chosen for it, and what it took."""

    words: list[str]
    chosen: Row
    seconds: Row


def compared(study: Study, split: Split) -> list[Found]:
    """What every method says of the test words, in the order of ``METHODS``."""
    seed, known = split.number, different(split.train)
    start = time.perf_counter()
    classifier = letter_classifier(study, split.train, seed)
    read = read_letters(classifier, split.test)
    seconds = {"letters": time.perf_counter() - start}
    answers = [Found(answer, {}, seconds) for answer in (read.spelled(), read.likeliest(known))]

    start = time.perf_counter()
    settings = chosen_settings(study, split.inner(), seed)
    choosing = time.perf_counter() - start
    models: dict[Setting, DSOKR] = {}
    for decoder, setting in settings.items():
        start = time.perf_counter()
        if setting not in models:
            models[setting] = fitted(study, setting, split.train, classifier, study.steps, seed)
        fitting, start = time.perf_counter() - start, time.perf_counter()
        answer = decoded(models[setting], split.test, known, decoder)
        took = {"choosing": choosing, "fitting": fitting, "decoding": time.perf_counter() - start}
        answers.append(Found(answer, asdict(setting), took))
    return answers


def chosen_settings(study: Study, inner: Split, seed: int) -> dict[str, Setting]:
    """For every decoder the setting with the least character error on the words held out."""
    classifier, known, truth = (
        letter_classifier(study, inner.train, seed),
        different(inner.train),
        list(inner.test.words),
    )
    errors: dict[str, list[float]] = {name: [] for name in DECODERS}
    for setting in study.settings:
        model = fitted(study, setting, inner.train, classifier, study.choosing_steps, seed)
        for name, of_name in errors.items():
            of_name.append(char_error(decoded(model, inner.test, known, name), truth))
    return {name: study.settings[int(np.argmin(of_name))] for name, of_name in errors.items()}


def different(words: WrittenWords) -> list[str]:
    """The words, each once."""
    return sorted(set(words.words.tolist()))


def _tested(split: Split, found: Found) -> Row:
    truth = split.test.words.tolist()
    metrics = {
        "word_accuracy": word_accuracy(found.words, truth),
        "char_error": char_error(found.words, truth),
        "test_words_in_training": float(np.isin(split.test.words, split.train.words).mean()),
    }
    return {"metrics": metrics, "chosen": found.chosen, "seconds": found.seconds}
