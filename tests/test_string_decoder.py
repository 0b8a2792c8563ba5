from itertools import pairwise, product

import numpy as np
import pytest
import torch

from dsokr import kernels, sketches
from dsokr.basis import SketchedBasis, sketch_basis
from dsokr.decoders import EmbeddedOutputs, NGram
from dsokr.errors import InputError
from dsokr.rules import RULES
from implementations import strings

KERNELS = [
    kernels.NGram(1),
    kernels.NGram(2),
    kernels.NGram(2).normalized(),
    kernels.NGram(3),
    kernels.NGram(3).normalized(),
    kernels.NGram((1, 2)),
    kernels.NGram((3, 2), weights=(2.0, 0.5)).normalized(),
    kernels.NGram((2, 9)),  # no string below is that long
]
SHORT = [y for y in strings(90) if len(y) <= 6]
ALL = ["".join(letters) for n in range(3, 7) for letters in product("abc", repeat=n)]
TEXT = """kernel sketch output regression learning deep structure basis feature space network prediction molecule string
label ranking graph vector sample random matrix operator rank anchor leverage decoding candidate training loss squared
distance gradient descent neural layer function method approach proposed model data set learn"""
WORDS = TEXT.split()


def make_basis(kernel, ys, sketch=None, device="cpu") -> SketchedBasis:
    sketch = sketch or sketches.Full()
    return sketch_basis(kernel, ys, sketch, generator=torch.Generator().manual_seed(0), device=device)


def predict(basis: SketchedBasis, ys, noise: float = 0.5, seed: int = 0) -> torch.Tensor:
    """Coordinates of the strings, with errors."""
    z = basis.embed(ys)
    errors = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed), dtype=z.dtype).to(z)
    return z + noise * z.norm(dim=1, keepdim=True) * errors / basis.dim**0.5


def some(ys, n: int) -> list[str]:
    return [ys[i] for i in np.random.default_rng(n).integers(0, len(ys), n)]


@pytest.mark.parametrize("sketch", [sketches.Full(), sketches.SubSample(15), sketches.Gaussian(10)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_finds_the_best_of_all_strings(kernel, sketch):
    basis = make_basis(kernel, SHORT, sketch)
    z = predict(basis, some(ALL, 150))
    decoded = NGram(longest=6).decode(basis, z, EmbeddedOutputs(basis, SHORT))
    torch.testing.assert_close(decoded.scores, basis.score(z, decoded.outputs).diagonal())
    best, best_known = (basis.score(z, ys).max(dim=1).values for ys in (ALL, SHORT))
    assert ((best - decoded.scores).abs() < 1e-6).double().mean() >= 0.99
    assert (decoded.scores >= best_known - 1e-6).all()
    assert (best > best_known + 0.01).double().mean() > 0.3  # looking beyond the known strings was needed


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_several_are_mostly_the_best_of_all_strings(kernel):
    """Strings with the same n-grams are found once, so that scores are compared."""
    basis = make_basis(kernel, SHORT, sketches.SubSample(15))
    z = predict(basis, some(ALL, 40))
    everything, hits = basis.score(z, ALL), []
    for row, (_, scores) in enumerate(NGram(longest=6).best(basis, z, EmbeddedOutputs(basis, SHORT), 10)):
        best = everything[row].round(decimals=8).unique()[-5:]
        hits += [bool(((scores - score).abs() < 1e-6).any()) for score in best]
    assert np.mean(hits) > 0.95


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kernel", KERNELS[1:4], ids=str)
def test_is_never_worse_than_the_best_known_string_by_any_rule(kernel, rule, device):
    basis = make_basis(kernel, WORDS, sketches.SubSample(20), device)
    asked = [a[:5] + b[-5:] for a, b in pairwise(WORDS)]
    known, z = EmbeddedOutputs(basis, WORDS), predict(basis, asked)
    decoder = NGram(beam=4, starts=1, rule=rule)
    decoded = decoder.decode(basis, z, known)
    torch.testing.assert_close(decoded.scores, basis.score(z, decoded.outputs, rule).diagonal())
    best = known.top(z, 1, rule).scores[:, 0]
    assert (decoded.scores >= best - 1e-6).all() and (decoded.scores > best + 1e-6).any()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_perfect_coordinates_of_an_unseen_string(kernel):
    """It comes back up to the order of its n-grams, all of which other strings have."""
    unseen, known = ALL[-40:], [y for y in ALL if y not in ALL[-40:]]
    basis = make_basis(kernel, known[::2])
    assert basis.residual(unseen).max() < 1e-9
    decoded = NGram().decode(basis, basis.embed(unseen), EmbeddedOutputs(basis, known[::2]))
    torch.testing.assert_close(basis.squared_distance(basis.embed(unseen), decoded.outputs), torch.zeros(40).double())


def test_strings_with_the_same_ngrams_are_one():
    """abaca and acaba have the 2-grams ab, ba, ac, ca: the known one is preferred, whichever it is."""
    for known in ("abaca", "acaba"):
        ys = ["abba", "cacb", known]
        basis = make_basis(kernels.NGram(2), ys)
        for asked in ("abaca", "acaba"):
            z = basis.embed([asked])
            z = torch.cat([z, z / 2])  # at half the length all parts of the string score 0 as well
            assert NGram().decode(basis, z, EmbeddedOutputs(basis, ys)).outputs == [known, known]


def test_words_joined_from_known_ones():
    """Words that overlap by n − 1 letters have, joined, the n-grams of the one and those of the other."""
    basis = make_basis(kernels.NGram(3), WORDS)
    joined = ["samplearning", "moleculearn", "sampleverage", "structuregression"]
    decoded = NGram(longest=17).decode(basis, basis.embed(joined), EmbeddedOutputs(basis, WORDS))
    assert decoded.outputs == joined


def test_lengths_stay_within_the_limits():
    basis = make_basis(kernels.NGram(2), SHORT)
    known = EmbeddedOutputs(basis, SHORT)
    z = torch.cat([2 * predict(basis, SHORT), 0.1 * predict(basis, SHORT)])  # asks for long, and for short ones
    lengths = {len(y) for y in NGram().decode(basis, z, known).outputs}
    assert min(lengths) == min(map(len, SHORT)) and max(lengths) == max(map(len, SHORT)) + 2
    lengths = {len(y) for y in NGram(shortest=4, longest=5).decode(basis, z, known).outputs}
    assert lengths == {4, 5}
    longer = {len(y) for y in NGram(shortest=9, longest=9).decode(basis, z, known).outputs}
    assert longer == {9}


def test_the_length_prior_draws_to_usual_lengths():
    ys = ["abcde", "bcdea", "cdeab", "deabc", "eabcd", "ab"]
    basis = make_basis(kernels.NGram(2), ys)
    known, z = EmbeddedOutputs(basis, ys), 0.4 * basis.embed(["abcde"])  # too faint to be worth a letter
    plain, drawn = (NGram(length_prior=weight).decode(basis, z, known) for weight in (0.0, 5.0))
    assert len(plain.outputs[0]) == 2 and len(drawn.outputs[0]) == 5
    torch.testing.assert_close(drawn.scores, basis.score(z, drawn.outputs)[0])  # scores are without the prior


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "options", [{"length_prior": 1.0}, {"length_prior": 30.0}, {"shortest": 4, "longest": 5}], ids=str
)
def test_never_worse_than_a_known_string_with_prior_and_limits(options, rule):
    lengths = np.array([len(y) for y in SHORT])
    basis = make_basis(kernels.NGram(3), SHORT)
    z = torch.randn(150, basis.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)  # mere noise
    decoder = NGram(beam=1, starts=1, rule=rule, **options)
    decoded = decoder.decode(basis, z, EmbeddedOutputs(basis, SHORT))
    low, high = options.get("shortest", lengths.min()), options.get("longest", lengths.max() + 2)
    counts = 1 + np.bincount(lengths, minlength=high + 1)[low : high + 1]
    prior = torch.full((high + 1,), -torch.inf).double()
    prior[low:] = decoder.length_prior * torch.from_numpy(np.log(counts / counts.sum()))
    known = basis.score(z, SHORT, rule) + torch.tensor([prior[n] if n <= high else -torch.inf for n in lengths])
    own = decoded.scores + prior[[len(y) for y in decoded.outputs]]
    assert (own >= known.max(dim=1).values - 1e-9).all()


def test_blocks_do_not_matter(monkeypatch):
    basis = make_basis(kernels.NGram(3).normalized(), WORDS)
    known, z = EmbeddedOutputs(basis, WORDS), predict(basis, WORDS)
    together = NGram().decode(basis, z, known)
    monkeypatch.setattr("dsokr.decoders.strings.ROWS", 7)
    monkeypatch.setattr("dsokr.decoders.strings.SHARE", 2)
    monkeypatch.setattr("dsokr.decoders.scan.BLOCK", 5)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert NGram().decode(basis, z, known).outputs == together.outputs


@pytest.mark.parametrize("form", [tuple, np.array, lambda ys: np.array(ys, dtype=object)])
def test_outputs_come_in_the_form_of_the_known_ones(form):
    """Strings longer than any known one are not cut off in arrays."""
    ys = form(["abc", "bcd", "cde"])
    basis = make_basis(kernels.NGram(2), ys)
    y = NGram().decode(basis, basis.embed(["abcde", "abc"]), EmbeddedOutputs(basis, ys)).outputs
    assert list(y) == ["abcde", "abc"]
    assert isinstance(y, np.ndarray) == isinstance(ys, np.ndarray)
    if isinstance(ys, np.ndarray):
        assert y.dtype.kind == ys.dtype.kind


def test_letters_of_any_script():
    ys = ["αβγ", "βγδ", "γδ🙂", "δ🙂ε"]
    basis = make_basis(kernels.NGram(2), ys)
    assert NGram().decode(basis, basis.embed(["βγδ🙂ε"]), EmbeddedOutputs(basis, ys)).outputs == ["βγδ🙂ε"]


@pytest.mark.parametrize(
    "kernel", [kernels.Gaussian(1.0), kernels.GappyNGram(2, 1), kernels.NGram(2) + kernels.NGram(3)], ids=str
)
def test_refuses_kernels(kernel):
    message = r"NGram decodes bases of the NGram kernel, normalised or not. Got .*\. Use Candidates\(\), or NGram"
    with pytest.raises(InputError, match=message):
        NGram().check(kernel)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "NGram.beam must be an integer of at least 1. Got 0"),
        ({"beam": 2.5}, "NGram.beam must be an integer of at least 1. Got 2.5"),
        ({"starts": 0}, "NGram.starts must be an integer of at least 1. Got 0"),
        ({"longest": "x"}, "NGram.longest must be an integer of at least 0, or None. Got 'x'"),
        ({"length_prior": -1.0}, "length_prior must be at least 0 and finite. Got -1.0"),
        ({"rule": "best"}, "NGram.rule must be one of"),
        ({"longest": 1}, "NGram.longest must be at least 2: .* Got 1"),
        ({"shortest": 5, "longest": 4}, "NGram.longest must be at least 5: .* Got 4"),
        ({"shortest": -1}, "NGram.shortest must be an integer of at least 0, or None. Got -1"),
    ],
)
def test_refuses_options(options, message):
    ys = ["ab", "bc", "cd"]
    basis = make_basis(kernels.NGram(2), ys)
    with pytest.raises(InputError, match=message):
        NGram(**options).decode(basis, basis.embed(ys), EmbeddedOutputs(basis, ys))


def test_refuses_candidates_that_are_not_strings():
    ys = ["ab", "bc", "cd"]
    basis = make_basis(kernels.NGram(2), ys)
    with pytest.raises(InputError, match="known must be EmbeddedOutputs.basis, outputs.. Got list"):
        NGram().decode(basis, basis.embed(ys), ys)
    with pytest.raises(InputError, match="take strings"):
        NGram().decode(basis, basis.embed(ys), EmbeddedOutputs(basis, [1, 2]))


def test_refuses_too_many_ngrams():
    ys = ["abcdefghijklmnop", "ponmlkjihgfedcba"]
    basis = make_basis(kernels.NGram(16), ys)
    with pytest.raises(InputError, match="up to 2⁶¹ different n-grams. Got 16 letters"):
        NGram().decode(basis, basis.embed(ys), EmbeddedOutputs(basis, ys))
