import numpy as np
import pytest
import torch

from dsokr import kernels, metrics, sketches
from dsokr.basis import RULES, sketch_basis
from dsokr.decoders import Candidates, EmbeddedOutputs
from dsokr.errors import InputError
from dsokr.outputs import distinct, take
from implementations import DECODERS, Case, names, vectors


@pytest.fixture
def basis(generator):
    return sketch_basis(kernels.Polynomial(2), vectors(200), sketches.SubSample(12), generator=generator)


@pytest.mark.parametrize("case", DECODERS, ids=names)
def test_returns_the_best_candidate_and_its_score(case: Case, basis, generator):
    ys = case.outputs(50)
    z = torch.randn(7, basis.dim, generator=generator)
    decoded = case.made.decode(basis, z, EmbeddedOutputs(basis, ys))
    scores = basis.score(z, ys, case.made.rule)
    torch.testing.assert_close(decoded.scores, scores.max(dim=1).values)
    assert torch.equal(decoded.outputs, ys[scores.argmax(dim=1)])


@pytest.mark.parametrize("case", DECODERS, ids=names)
def test_finds_the_output_whose_coordinates_it_gets(case: Case, basis):
    """Coordinates of an output are decoded to that output by the rules that compare within the span."""
    ys = vectors(200)
    decoded = case.made.decode(basis, basis.embed(ys), EmbeddedOutputs(basis, ys))
    if case.made.rule == "projected":
        assert torch.equal(decoded.outputs, ys)
    else:
        assert (decoded.scores >= basis.score(basis.embed(ys), ys, case.made.rule).diagonal() - 1e-9).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
def test_top_k_is_exact_whatever_the_blocks(rule, keep, basis, generator, monkeypatch):
    ys = vectors(333)
    z = torch.randn(45, basis.dim, generator=generator, dtype=torch.float64)
    expected = basis.score(z, ys, rule).topk(10)
    monkeypatch.setattr("dsokr.decoders.embedded.BLOCK", 17)
    monkeypatch.setattr("dsokr.decoders.embedded.QUERY_BLOCK", 4)
    ranking = EmbeddedOutputs(basis, ys, keep=keep).top(z, 10, rule)
    torch.testing.assert_close(ranking.scores, expected.values)
    assert torch.equal(ranking.indices, expected.indices)


def test_more_than_there_are(basis):
    ys = vectors(3)
    assert EmbeddedOutputs(basis, ys).top(basis.embed(ys), 10, "kernel").indices.shape == (3, 3)


@pytest.mark.slow
def test_memory_does_not_grow_with_queries_times_candidates(basis, generator):
    """4,000 queries against 100,000 candidates would be 3.2 GB of scores; a block of them is 33 MB."""
    import resource

    ys = torch.randn(100_000, 4, generator=generator, dtype=torch.float64)
    z = torch.randn(4_000, basis.dim, generator=generator)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    EmbeddedOutputs(basis, ys, keep=False).top(z, 10, "kernel")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400_000  # KiB


def test_open_rule_must_be_settled(basis):
    with pytest.raises(InputError, match="settled by fit"):
        Candidates().decode(basis, torch.zeros(1, basis.dim), EmbeddedOutputs(basis, vectors(3)))


@pytest.mark.parametrize(
    ("ys", "expected"),
    [
        (torch.tensor([[1.0, 2.0], [0.0, -0.0], [1.0, 2.0], [0.0, 0.0]]), [0, 1]),
        ([[1, 2], [1, 2], [3, 4]], [0, 2]),
        (["b", "a", "b"], [0, 1]),
        ([(1, 2), (1, 2)], [0]),
    ],
)
def test_distinct(ys, expected):
    assert distinct(ys).tolist() == expected


def test_ranks_count_ties_half():
    scores = torch.tensor([[-1.0, -2.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0], [4.0, 3.0, 2.0, 1.0]])
    assert metrics.ranks(scores, torch.tensor([0, 1, 3])).tolist() == [2.0, 2.5, 4.0]
    summary = metrics.retrieval(scores, torch.tensor([0, 1, 3]))
    assert summary["mrr"] == pytest.approx((1 / 2 + 1 / 2.5 + 1 / 4) / 3)
    assert summary["hits@1"] == 0.0 and summary["hits@10"] == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ranks(torch.zeros(3), torch.zeros(3)), "take scores"),
        (lambda: metrics.ranks(torch.tensor([[0.0], [torch.nan]]), torch.zeros(2)), "NaN in row 1"),
        (lambda: metrics.f1([[1, 0]], [[1]]), "two \\(n, d\\) matrices"),
    ],
)
def test_metrics_refuse(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("k", [1, 3, 5])
def test_of_equal_candidates_the_first_wins(k, basis, monkeypatch):
    monkeypatch.setattr("dsokr.decoders.embedded.BLOCK", 4)
    ys = vectors(3).repeat_interleave(5, dim=0)  # five copies of each
    ranking = EmbeddedOutputs(basis, ys).top(basis.embed(vectors(3)), k, "projected")
    assert ranking.indices.tolist() == [[5 * i + j for j in range(k)] for i in range(3)]


@pytest.mark.parametrize(
    ("ys", "expected"),
    [
        ([torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([2.0])], [0, 2]),
        ([([1.0, 2.0], "a"), ([1.0, 2.0], "a"), ([1.0, 2.0], "b")], [0, 2]),
        ([[1, [2]], [1, [2]]], [0]),
    ],
)
def test_distinct_looks_inside(ys, expected):
    assert distinct(ys).tolist() == expected


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.zeros(3, 2), r"shape \(n, 12\), as the basis. Got \(3, 2\)"),
        (torch.zeros(12), r"Got \(12,\)"),
        (torch.tensor([[0.0] * 12, [0.0] * 11 + [torch.nan]]), "NaN or inf in row 1"),
        (torch.full((1, 12), 1e200, dtype=torch.float64), "and so must their squares. Got NaN or inf in row 0"),
        ([["a"] * 12], "Coefficients must be numbers of shape"),
    ],
)
def test_refuses_coefficients(z, message, basis):
    with pytest.raises(InputError, match=message):
        Candidates("kernel").decode(basis, z, EmbeddedOutputs(basis, vectors(5)))


def test_coefficients_of_any_kind(basis):
    known = EmbeddedOutputs(basis, vectors(5))
    z = basis.embed(vectors(3))
    expected = Candidates("kernel").decode(basis, z, known).scores
    for same in (z.numpy(), z.tolist(), z.clone().requires_grad_()):
        assert torch.equal(Candidates("kernel").decode(basis, same, known).scores, expected)


def test_masks_choose_from_lists_as_from_arrays():
    mask = np.array([True, False, False, True])
    for ys in (["a", "b", "c", "d"], np.array(list("abcd"))):
        assert list(take(ys, mask)) == list(take(ys, torch.from_numpy(mask))) == ["a", "d"]
    with pytest.raises(InputError, match="one value for each of the 4 outputs. Got 2"):
        take(["a", "b", "c", "d"], mask[:2])


def test_the_true_candidate_must_be_one():
    for wrong in (-1, 3):
        with pytest.raises(InputError, match=f"one of the 3, counted from 0. Got {wrong} in row 1"):
            metrics.ranks(torch.zeros(2, 3), torch.tensor([0, wrong]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("unit", [1e-60, 1e-30, 1e-20, 1e20, 1e30, 1e39, 1e60])
def test_outputs_in_any_unit(unit, rule):
    """Single precision ends at 3e38: scores beyond it are no reason for wrong answers."""
    ys = vectors(300)
    plain, scaled = (
        sketch_basis(kernels.Linear(), scale * ys, sketches.Full(), generator=torch.Generator())
        for scale in (1.0, unit)
    )
    known, other = EmbeddedOutputs(plain, ys), EmbeddedOutputs(scaled, unit * ys)
    for mistaken in (0.0, 0.3):
        asked = ys + mistaken * vectors(301)[1:]
        expected, found = known.top(plain.embed(asked), 3, rule), other.top(scaled.embed(unit * asked), 3, rule)
        assert torch.equal(found.indices, expected.indices)
        assert torch.equal(other._top_by_sorting(scaled.embed(unit * asked), 3, rule).indices, expected.indices)


def test_coefficients_and_candidates_of_opposite_sizes():
    ys = vectors(100)
    basis = sketch_basis(kernels.Linear(), ys, sketches.Full(), generator=torch.Generator())
    z = basis.embed(vectors(50))
    expected = EmbeddedOutputs(basis, ys).top(z, 1, "cosine").indices
    for small in (1e-60, 1e-42, 1e42, 1e60):
        known = EmbeddedOutputs(basis, ys / small)
        assert torch.equal(known.top(z * small, 1, "cosine").indices, expected)


def test_scores_beyond_all_numbers():
    ys = 1e100 * vectors(20)
    basis = sketch_basis(kernels.Linear(), vectors(20), sketches.Full(), generator=torch.Generator())
    known = EmbeddedOutputs(basis, 1e60 * ys)
    with pytest.raises(InputError, match="scores of candidates are not finite in row 0. Bring outputs to a smaller"):
        known.top(1e150 * basis.embed(vectors(2)), 1, "kernel")


@pytest.mark.parametrize("rule", RULES)
def test_scanning_and_sorting_find_the_same(rule):
    generator = torch.Generator().manual_seed(0)
    ys = torch.randn(500, 3, generator=generator).round(decimals=1)  # coarse, so that some are equal
    basis = sketch_basis(kernels.Gaussian(0.3), ys, sketches.SubSample(40), generator=generator)
    known = EmbeddedOutputs(basis, torch.cat([ys, ys[:100]]))
    z = torch.cat([basis.embed(ys[:30]), torch.randn(30, basis.dim, generator=generator, dtype=torch.float64)])
    for k in (1, 10, 600):
        scanned, sorted_ = known.top(z, k, rule), known._top_by_sorting(z, k, rule)
        assert torch.equal(scanned.indices, sorted_.indices)
        assert torch.allclose(scanned.scores, sorted_.scores)
