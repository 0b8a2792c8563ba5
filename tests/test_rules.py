"""The decoding rules in all their forms, and which scores are ties."""

import pytest
import torch

from dsokr.rules import RULES, affine, as_points, as_queries, constant, largest, score, score_pairs, sort_keys

GENERATOR = torch.Generator().manual_seed(0)
Z = torch.randn(6, 4, generator=GENERATOR, dtype=torch.float64)
PSI = torch.randn(30, 4, generator=GENERATOR, dtype=torch.float64)
DIAG = PSI.square().sum(dim=1) + torch.rand(30, generator=GENERATOR, dtype=torch.float64)
FORMULAS = {
    "kernel": lambda z, psi, k: 2 * z @ psi - k,
    "projected": lambda z, psi, k: -(z - psi) @ (z - psi),
    "cosine": lambda z, psi, k: z @ psi / psi.norm(),
}


@pytest.mark.parametrize("rule", RULES)
def test_all_forms_are_the_formula(rule):
    expected = torch.tensor([[FORMULAS[rule](z, psi, k) for psi, k in zip(PSI, DIAG, strict=True)] for z in Z])
    torch.testing.assert_close(score(Z, PSI, DIAG, rule), expected)
    torch.testing.assert_close(score_pairs(Z, PSI[:6], DIAG[:6], rule), expected[:, :6].diagonal())
    factor, offset = affine(rule, DIAG, PSI.square().sum(dim=1))
    torch.testing.assert_close(Z @ PSI.T * factor + offset + constant(rule, Z)[:, None], expected)
    distances = torch.cdist(as_queries(Z, rule), as_points(PSI, DIAG, rule))
    assert torch.equal(distances.argsort(dim=1), expected.argsort(dim=1, descending=True))


def test_an_output_outside_the_span_has_the_cosine_zero():
    nothing = torch.zeros(1, 4, dtype=torch.float64)
    assert not score(Z, nothing, DIAG[:1], "cosine").any()
    assert as_points(nothing, DIAG[:1], "cosine").tolist() == [[0, 0, 0, 0, 1]]


@pytest.mark.parametrize("rule", RULES)
def test_pairs_are_differentiable(rule):
    psi = PSI[:6].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: score_pairs(Z, p, DIAG[:6], rule), psi)


@pytest.mark.parametrize("outlier", [0.0, -1e16, 1e12])
@pytest.mark.parametrize("shift", [0.0, 1.0, 1e6, -1e8])
def test_ties_do_not_depend_on_the_offset_of_a_row(shift, outlier):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, 500, generator=generator, dtype=torch.float64)
    order = scores.argsort(dim=1)
    noise = 1e-15 * (1 + abs(shift)) * torch.randn(20, 100, generator=generator, dtype=torch.float64)
    shifted = torch.cat([scores + shift, scores[:, :100] + shift + noise, torch.full((20, 1), outlier)], dim=1)
    keys = sort_keys(shifted)
    steps = keys[:, :500].gather(1, order).diff(dim=1)
    assert (steps >= 0).all() and (steps > 0).double().mean() > 0.99
    assert (keys[:, :100] == keys[:, 500:600]).double().mean() > 0.99


def test_ties_among_scores_that_are_mostly_equal():
    scores = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 1.0 + 1e-15, 2.0]], dtype=torch.float64)
    keys = sort_keys(scores)
    assert keys[0, 4] == keys[0, 5] and keys[0, 6] > keys[0, 5] > keys[0, 0]


@pytest.mark.parametrize("unit", [1e-150, 1e-45, 1e-20, 1e20, 1e45, 1e150])
def test_ties_do_not_depend_on_the_unit_of_scores(unit):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, 500, generator=generator, dtype=torch.float64)
    noise = 1 + 1e-15 * torch.randn(20, 100, generator=generator, dtype=torch.float64)
    scores = torch.cat([scores, scores[:, :100] * noise], dim=1)
    found, expected = (sort_keys(some).argsort(dim=1, stable=True) for some in (unit * scores, scores))
    assert (found == expected).double().mean() > 0.99
    assert torch.equal(largest(unit * scores, 1)[1], largest(scores, 1)[1])


def test_rounding_errors_beside_zeros_are_ties():
    scores = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1e-17, -1e-17, 1.0, -torch.inf]], dtype=torch.float64)
    assert len(sort_keys(scores)[0, :6].unique()) == 1
    assert largest(scores, 2)[1].tolist() == [[6, 0]]
    assert not sort_keys(torch.zeros(1, 5)).any()


@pytest.mark.parametrize("k", [1, 3, 7, 40])
def test_largest_takes_the_first_of_ties(k):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (50, 40), generator=generator).double()
    values, columns = largest(scores, k)
    expected = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :k]) and torch.equal(columns, expected.indices[:, :k])
