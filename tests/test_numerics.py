"""Numerics under stress, against exact arithmetic: Python's fractions of the very numbers that were given."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from dsokr import DSOKR, kernels, sketch_basis, sketches
from dsokr.decoders import Candidates
from dsokr.errors import DSOKRError
from dsokr.index import Block, BuildOptions, build
from dsokr.regressors import KernelRidge
from dsokr.rules import RULES

RNG = np.random.default_rng(0)
BASE = RNG.integers(-8, 9, size=(12, 3)) / 4.0
STRESSED = {
    "plain": BASE,
    "offset 1e6": BASE + 1e6,
    "offset 1e9": BASE + 1e9,
    "one huge column": np.c_[BASE[:, :2], np.full(12, 1e12)],
    "duplicates": BASE[[0, 0, 0, 1, 1, 2] * 2],
    "all equal": BASE[[3] * 12],
    "rank one": np.outer(np.arange(1, 13), [1.0, 2.0, -1.0]),
    "two": BASE[:2],
    "two equal": BASE[[1, 1]],
    "constant columns": np.c_[BASE[:, :1], np.full((12, 2), 7.0)],
    "tiny": BASE * 2.0**-300,
    "large": BASE * 2.0**200,
    "columns of all sizes": BASE * [1e-9, 1.0, 1e9],
}


def dot(a, b):
    return sum((Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)), Fraction(0))


def root(value):
    """The square root of a fraction, to more digits than a float has."""
    scale = 2 ** max(0, 240 + 2 * (value.denominator.bit_length() - value.numerator.bit_length() + 2))
    return Fraction(math.isqrt(value.numerator * scale // value.denominator)) / math.isqrt(scale)


def cosine(a, b):
    return dot(a, b) / (root(dot(a, a)) * root(dot(b, b)))


EXACT = {
    kernels.Linear(): dot,
    kernels.Polynomial(2, 1.0): lambda a, b: (dot(a, b) + 1) ** 2,
    kernels.Gaussian(0.5): lambda a, b: Fraction(math.exp(-float(dot(a - b, a - b)) / 2)),  # differences are exact here
    kernels.Laplacian(0.5): lambda a, b: Fraction(math.exp(-float(sum(map(Fraction, np.abs(a - b).tolist()))) / 2)),
    kernels.Cosine(): cosine,
}


@pytest.mark.parametrize("data", STRESSED)
@pytest.mark.parametrize("kernel", EXACT, ids=str)
def test_kernels_and_bases(kernel, data):
    """K is right to the last digits of its largest entry, and the full basis reproduces it; or a sentence."""
    Y = STRESSED[data]
    exact = [[EXACT[kernel](a, b) for b in Y] for a in Y]
    top = max(abs(entry) for row in exact for entry in row)
    try:
        K = kernel(torch.from_numpy(Y), torch.from_numpy(Y))
        psi = sketch_basis(kernel, Y, sketches.Full()).embed(Y)
    except DSOKRError as error:
        assert "\n" not in str(error) and not 0 < top < 1e300, error
        return
    for computed, allowed in ((K, 1e-13), (psi @ psi.T, 1e-8)):
        worst = max(abs(Fraction(x) - e) for row, line in zip(computed.tolist(), exact, strict=True)
                    for x, e in zip(row, line, strict=True))  # fmt: skip
        assert worst <= Fraction(allowed) * top, float(worst / top)


@pytest.mark.parametrize("data", STRESSED)
@pytest.mark.parametrize("kernel", EXACT, ids=str)
def test_models_give_an_answer_or_a_sentence(kernel, data):
    """Inputs that tell outputs apart: ridge regression with next to no penalty gives every input its own output."""
    Y = STRESSED[data]
    X = np.unique(Y, axis=0, return_inverse=True)[1].reshape(-1, 1).astype(float)
    regressor = KernelRidge(kernels.Gaussian(5.0), regularization=1e-9)
    try:
        chosen = {"decoder": Candidates("projected"), "random_state": 0, "device": "cpu"}
        predicted = DSOKR(kernel, sketches.Full(), regressor, **chosen).fit(X, Y).predict(X)
    except DSOKRError as error:
        assert "\n" not in str(error)
        return
    K = [[EXACT[kernel](a, b) for b in Y] for a in Y]
    top = max(abs(entry) for row in K for entry in row)
    places = [int(np.flatnonzero((row == Y).all(axis=1))[0]) for row in predicted]
    gaps = [K[at][at] - 2 * K[at][own] + K[own][own] for own, at in enumerate(places)]  # squared, in feature space
    assert max(gaps) <= Fraction(1e-6) * top, float(max(gaps) / top)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_indices_rank_as_exact_arithmetic_does(tmp_path, rule, dtype):
    """Of the coordinates as they are stored; duplicates tie, and of ties the first comes first."""
    psi = torch.from_numpy(RNG.integers(-2048, 2049, size=(60, 5)) / 1024.0)
    psi[30:] = psi[:30]
    diag = psi.square().sum(1) + 0.5

    def blocks(start):
        yield Block([f"y{i}" for i in range(start, 60)], psi[start:], diag[start:])

    index = build(tmp_path / "index", blocks, model="m", dim=5, options=BuildOptions(dtype=dtype))
    z = torch.from_numpy(RNG.normal(size=(8, 5)))
    found = index.search(z, 60, rule)
    stored = psi.to(getattr(torch, dtype)).double().numpy()
    for row, indices, scores in zip(z.numpy(), found.indices.tolist(), found.scores.tolist(), strict=True):
        exact = [_score(row, one, k, rule) for one, k in zip(stored, diag.tolist(), strict=True)]
        assert sorted(indices) == list(range(60))
        assert max(abs(Fraction(s) - exact[at]) for at, s in zip(indices, scores, strict=True)) < 1e-12
        assert all(exact[a] >= exact[b] - Fraction(1e-12) for a, b in pairwise(indices))
        assert all(indices.index(at) < indices.index(at + 30) for at in range(30))


def _score(z, psi, k, rule):
    if rule == "kernel":
        return 2 * dot(z, psi) - Fraction(k)
    if rule == "projected":
        return -(dot(z, z) - 2 * dot(z, psi) + dot(psi, psi))
    return dot(z, psi) / root(dot(psi, psi))
