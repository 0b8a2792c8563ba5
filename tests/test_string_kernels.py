from itertools import combinations, product

import numpy as np
import pytest
import torch

from dsokr.errors import InputError, KernelError
from dsokr.kernels.strings import GappyNGram, Mismatch, NGram

LETTERS = "ABC"


def random_strings(count: int, longest: int = 12, shortest: int = 0, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(LETTERS), size=rng.integers(shortest, longest + 1))) for _ in range(count)]


def naive_gram(features, a: list[str], b: list[str]) -> np.ndarray:
    """Inner products of dictionaries."""
    return np.array([[sum(v * features(t).get(u, 0) for u, v in features(s).items()) for t in b] for s in a])


def count_grams(n: int):
    def features(text: str) -> dict[str, float]:
        grams = [text[i : i + n] for i in range(len(text) - n + 1)]
        return {gram: grams.count(gram) for gram in grams}

    return features


def count_gappy(n: int, gaps: int, decay: float):
    def features(text: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for places in combinations(range(len(text)), n):
            left_out = places[-1] - places[0] + 1 - n
            if left_out <= gaps:
                word = "".join(text[i] for i in places)
                found[word] = found.get(word, 0) + decay**left_out
        return found

    return features


def count_close(n: int, mismatches: int):
    def features(text: str) -> dict[str, float]:
        grams = [text[i : i + n] for i in range(len(text) - n + 1)]
        words = ["".join(word) for word in product(LETTERS, repeat=n)]
        differ = {(w, g): sum(a != b for a, b in zip(w, g, strict=True)) for w in words for g in grams}
        return {word: sum(differ[word, gram] <= mismatches for gram in grams) for word in words}

    return features


NAIVE = [
    (NGram(1), [(1.0, count_grams(1))]),
    (NGram(3), [(1.0, count_grams(3))]),
    (NGram((1, 2, 4), weights=(0.5, 1.0, 3.0)), [(0.5, count_grams(1)), (1.0, count_grams(2)), (3.0, count_grams(4))]),
    (GappyNGram(2, gaps=0), [(1.0, count_grams(2))]),
    (GappyNGram(3, gaps=2, decay=0.6), [(1.0, count_gappy(3, 2, 0.6))]),
    (GappyNGram(1, gaps=2, decay=0.5), [(1.0, count_grams(1))]),
    (Mismatch(2, 1, LETTERS), [(1.0, count_close(2, 1))]),
    (Mismatch(3, 2, LETTERS), [(1.0, count_close(3, 2))]),
    (Mismatch(3, 0, LETTERS), [(1.0, count_grams(3))]),
]


@pytest.mark.parametrize(("kernel", "terms"), NAIVE, ids=lambda case: str(case) if not isinstance(case, list) else "")
def test_equals_the_definition(kernel, terms):
    a, b = random_strings(9), random_strings(7, seed=1)
    expected = sum(weight * naive_gram(features, a, b) for weight, features in terms)
    np.testing.assert_allclose(kernel(a, b).numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", [NGram(3), GappyNGram(3, gaps=2), Mismatch(3, 1, LETTERS)], ids=str)
def test_a_string_shorter_than_n_has_no_features(kernel):
    assert kernel(["AB", "", "ABC"], ["AB", "ABC"])[:2].tolist() == [[0, 0], [0, 0]]
    with pytest.raises(KernelError, match="cannot be normalised at index 1"):
        kernel.normalized()(["ABC", "AB"], ["ABC"])


def test_strings_do_not_run_into_each_other():
    assert NGram(2)(["AB", "CA"], ["BC"]).tolist() == [[0], [0]]


def test_any_letters_will_do_for_n_grams():
    assert NGram(2)(["naïve 🙂🙂", "∑∑∑"], ["🙂🙂", "∑∑"]).tolist() == [[1, 0], [0, 2]]


def test_what_is_no_string_is_refused_with_its_index():
    with pytest.raises(InputError, match="Got int at index 1"):
        NGram(1).diag(["A", 5])


def test_a_letter_outside_the_alphabet_is_refused_with_its_string():
    for text in ("ABD", "A!"):
        with pytest.raises(InputError, match=rf"'{text[-1]}' in '{text}' at index 2"):
            Mismatch(2, 1, LETTERS).diag(["AB", "", text])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NGram(0), "n must be an integer of at least 1"),
        (lambda: NGram(()), "different lengths"),
        (lambda: NGram((2, 2)), "different lengths"),
        (lambda: NGram((1, 2), weights=(1.0,)), "one positive number per length"),
        (lambda: NGram(2, weights=(0.0,)), "one positive number per length"),
        (lambda: GappyNGram(2, gaps=-1), "gaps must be an integer"),
        (lambda: GappyNGram(2, gaps=1, decay=0.0), "decay must be in"),
        (lambda: Mismatch(2, 3, "AB"), "mismatches must be at most n=2"),
        (lambda: Mismatch(2, 1, "ABA"), "different letters"),
    ],
)
def test_parameters_are_checked(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_no_strings_at_all():
    assert NGram(2)([], ["AB"]).shape == (0, 1)
    assert torch.equal(NGram(2)(["AB"], [""]), torch.zeros(1, 1, dtype=torch.float64))
