import pytest
import torch

from dsokr.rules import comparable, single

SCORES = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("unit", [1e-200, 1e-60, 1e-30, 1.0, 1e30, 1e60, 1e200, 2.0**1022])
def test_order_and_ties_do_not_depend_on_the_unit(unit):
    scores = SCORES.clone()
    scores[:, 1] = scores[:, 0] * (1 + 1e-9)  # equal to 24 bits
    scores[:, 2] = -torch.inf
    made = single(scores / 4 * unit)
    assert torch.equal(made.argsort(dim=1, stable=True), single(scores).argsort(dim=1, stable=True))
    assert torch.equal(made[:, 0], made[:, 1]) and made[:, 2].isneginf().all()
    assert made.dtype == torch.float32 and made[:, 3:].isfinite().all()


def test_every_row_has_a_unit_of_its_own():
    scores = SCORES * torch.tensor([[1e-60], [1e-20], [1.0], [1e20], [1e60]], dtype=torch.float64)
    assert torch.equal(single(scores)[2], SCORES[2].float())
    assert torch.equal(single(scores).argsort(dim=1), SCORES.float().argsort(dim=1))


def test_nothing_and_zeros():
    assert single(torch.empty(3, 0, dtype=torch.float64)).shape == (3, 0)
    assert not single(torch.zeros(2, 3, dtype=torch.float64)).any()
    assert single(torch.tensor([[0.0, 1e-320]], dtype=torch.float64)).argmax() == 1
    assert single(torch.tensor([[1e60, -torch.inf], [-torch.inf, -torch.inf]]).double()).isneginf().sum() == 3


@pytest.mark.parametrize("unit", [1e-300, 1e290, 2.0**1020])
def test_the_order_stays_at_the_ends_of_all_numbers(unit):
    assert torch.equal(comparable(SCORES * unit).argsort(dim=1), SCORES.argsort(dim=1))


@pytest.mark.parametrize("outlier", [0.0, -1e16, 1e12])
@pytest.mark.parametrize("shift", [0.0, 1.0, 1e6, -1e8])
@pytest.mark.parametrize("unit", [1.0, 1e-60, 1e60])
def test_what_scores_have_in_common_does_not_count(shift, outlier, unit):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, 500, generator=generator, dtype=torch.float64)
    order = scores.argsort(dim=1)
    noise = 1e-15 * (1 + abs(shift)) * torch.randn(20, 100, generator=generator, dtype=torch.float64)
    shifted = torch.cat([scores + shift, scores[:, :100] + shift + noise, torch.full((20, 1), outlier)], dim=1) * unit
    keys = comparable(shifted)
    known, copies = keys[:, :500], keys[:, 500:600]
    told_apart = (known.gather(1, order).diff(dim=1) > 0).double().mean()
    assert told_apart > 0.99 and (known.gather(1, order).diff(dim=1) >= 0).all()
    assert (known[:, :100] == copies).double().mean() > 0.99
