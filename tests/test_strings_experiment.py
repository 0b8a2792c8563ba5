"""Handwritten words: the data, the metrics of strings, and the study on generated letters."""

import hashlib
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from dsokr.errors import InputError
from real_data import real_data
from studies import strings as study
from studies import strings_report as report
from studies.data.files import Source
from studies.data.ocr_letters import WrittenWords, generate, ocr_letters, read, rearranged
from studies.results import read_rows

module = sys.modules["studies.data.ocr_letters"]


@pytest.fixture
def arrays():
    """Two words, "cab" and "be", of five letters."""
    images = np.zeros((5, 128), np.uint8)
    images[np.arange(5), np.arange(5)] = 1
    letters, lengths, folds = np.array([2, 0, 1, 1, 4], np.uint8), np.array([3, 2]), np.array([7, 0])
    return {"X": images, "y": letters, "lengths": lengths, "folds": folds}


def test_a_file_is_read(arrays, tmp_path, monkeypatch):
    path = tmp_path / "ocr_letters" / "letters.npz"
    path.parent.mkdir()
    np.savez(path, **arrays)
    own = Source("ocr_letters/letters.npz", hashlib.sha256(path.read_bytes()).hexdigest(), module.ORIGIN)
    monkeypatch.setattr(module, "SOURCE", own)
    data = ocr_letters(tmp_path)
    assert data.words.tolist() == ["cab", "be"] and data.folds.tolist() == [7, 0]
    assert data.X.shape == (2, 3, 16, 8) and data.X.dtype == np.float32
    np.testing.assert_array_equal(data.letter_images().reshape(5, 128), arrays["X"])
    assert not data.X[1, 2].any()  # filled up
    assert data.rows(np.array([1])).words.tolist() == ["be"]


def test_what_is_missing_or_wrong_is_said(arrays, tmp_path):
    with pytest.raises(InputError, match=r"letters.npz is missing. Get it from the OCR data of Kassel"):
        ocr_letters(tmp_path)
    path = tmp_path / "short.npz"
    np.savez(path, **arrays | {"lengths": np.array([3, 1])})
    with pytest.raises(InputError, match="5 images, 5 letters, 4 of them in 2 words, and 2 folds"):
        read(path)
    np.savez(path, **{name: array for name, array in arrays.items() if name != "folds"})
    with pytest.raises(InputError, match="does not hold written words: .*folds"):
        read(path)


def test_the_real_data():
    """As many words, letters and folds as Taskar et al. say; the same words in all folds; no image without ink."""
    data = ocr_letters(real_data("ocr_letters/letters.npz"))
    assert len(data) == 6877 and len(data.letter_images()) == 52152
    different = set(data.words.tolist())
    assert len(different) == 55 and "ommanding" in different
    for fold in range(10):
        assert set(data.words[data.folds == fold].tolist()) == different
    assert data.letter_images().any(axis=(1, 2)).all()


def test_rearranged_words_are_the_same_letters():
    data = generate(copies=2, words=8)
    made = rearranged(data, 20, np.random.default_rng(0))
    assert len(made) == 32 and sorted(map(len, made.words)) == sorted(2 * [len(word) for word in data.words])
    assert sorted("".join(made.words)) == sorted("".join(data.words) * 2)
    assert set(made.words.tolist()) - set(data.words.tolist())
    known = {image.tobytes(): letter for image, letter in zip(data.letter_images(), "".join(data.words), strict=True)}
    for image, letter in zip(made.letter_images(), "".join(made.words), strict=True):
        assert known[image.tobytes()] == letter


def test_splits_are_those_of_their_protocol():
    data = generate(copies=4, words=10)
    known = list(study.known_words(data))
    assert len(known) == 2
    for split in known:
        assert set(split.test.words.tolist()) == set(split.train.words.tolist())
        assert set(split.train.folds.tolist()) == {split.number} and split.number not in split.test.folds
        inner = split.inner()
        assert len(inner.test) == 4 and len(inner.train) + len(inner.test) == len(split.train)
    new = list(study.new_words(data))
    assert len(new) == 5
    assert sorted(word for split in new for word in split.test.words) == sorted(data.words)
    for split in new:
        assert not set(split.test.words.tolist()) & set(split.train.words.tolist())
        inner = split.inner()
        assert not set(inner.test.words.tolist()) & set(inner.train.words.tolist())
        assert set(inner.test.words.tolist()) | set(inner.train.words.tolist()) == set(split.train.words.tolist())


def test_certain_letters_make_the_counts_of_letters_and_pairs():
    data = generate(copies=1, words=6)
    numbers = torch.tensor([study.ALPHABET.index(letter) for letter in "".join(data.words)])

    class Oracle(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 1000.0 * torch.nn.functional.one_hot(numbers, 26)

    with torch.random.fork_rng([]):
        network = study.ExpectedNGrams(Oracle(), 26 + 26**2)
    torch.nn.init.eye_(network.out.weight)
    torch.nn.init.zeros_(network.out.bias)
    counts = network(torch.from_numpy(data.X)).detach()
    for word, found in zip(data.words, counts, strict=True):
        expected = torch.zeros(26 + 26**2)
        for letter in word:
            expected[study.ALPHABET.index(letter)] += 1
        for a, b in pairwise(word):
            expected[26 + 26 * study.ALPHABET.index(a) + study.ALPHABET.index(b)] += 1
        torch.testing.assert_close(found, expected)


def test_the_likeliest_word_has_as_many_letters():
    log_p = np.full((2, 26), -9.0)
    log_p[0, 0], log_p[1, 1], log_p[1, 2] = -0.1, -0.2, -0.3  # "ab", or "ac"
    data = WrittenWords(np.zeros((1, 2, 16, 8), np.float32), np.array(["ab"]), np.zeros(1, np.int64))
    said = study.Read(data, [log_p])
    assert said.spelled() == ["ab"]
    assert said.likeliest(["ac", "bb", "abc"]) == ["ac"]
    assert said.likeliest(["abc"]) == ["ab"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    study.run(replace(study.QUICK, splits=1), folder, say=lambda line: None)
    return folder


def test_only_the_search_finds_new_words(quick):
    rows = {(row["protocol"], row["model"]): row for row in report.table(quick)}
    spelled, likeliest, listed, searched = report.NAMES.values()
    assert len(rows) == 8
    for model in (likeliest, listed):
        assert rows["known words", model]["word_accuracy"][0] > 0.9
        assert rows["new words", model]["word_accuracy"][0] == 0
    for protocol in ("known words", "new words"):
        assert rows[protocol, spelled]["word_accuracy"][0] > 0.9  # these letters are easy
        assert rows[protocol, searched]["word_accuracy"][0] > 0.3
    assert rows["known words", spelled]["test_words_in_training"][0] == 1
    assert rows["new words", spelled]["test_words_in_training"][0] == 0


def test_a_second_run_computes_nothing(quick, monkeypatch):
    before = (quick / "models.jsonl").read_text()
    monkeypatch.setattr(study, "compared", lambda *a: pytest.fail("computed again"))
    study.run(replace(study.QUICK, splits=1), quick, say=lambda line: None)
    assert (quick / "models.jsonl").read_text() == before


def test_the_report_says_what_is_in_the_rows(quick, tmp_path):
    rows = report.table(quick)
    text = report.markdown(rows)
    assert text.count("\n") == 1 + len(rows)
    measured = [
        r for r in read_rows(quick / "models.jsonl") if r["decoder"] == "NGram" and r["protocol"] == "new words"
    ]
    (searched,) = (row for row in rows if row["model"].endswith("search") and row["protocol"] == "new words")
    assert searched["word_accuracy"][0] == measured[0]["metrics"]["word_accuracy"]
    assert list(searched["chosen"]) == [report.describe(measured[0]["chosen"])]
    assert f"| {searched['word_accuracy'][0]:.1%} | {searched['char_error'][0]:.1%} | 1 |" in text
    assert "| 50.0% ± 2.0% |" in report.markdown([searched | {"splits": 2, "word_accuracy": (0.5, 0.02)}])
    assert (
        report.describe({"n": [1, 2], "words": True, "rearranged": 2}) == "NGram((1, 2)), words and rearranged letters"
    )
    assert report.figure(quick, tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
