import pytest
import torch

from dsokr import kernels, metrics, sketches
from dsokr.basis import sketch_basis
from dsokr.decoders import Candidates, EmbeddedOutputs, scan
from dsokr.errors import InputError
from dsokr.outputs import as_outputs, count, keys
from dsokr.rules import RULES, sort_keys
from implementations import DECODERS, names, vectors


@pytest.fixture
def basis(generator):
    return sketch_basis(kernels.Polynomial(2), vectors(200), sketches.SubSample(12), generator=generator)


@pytest.fixture(params=DECODERS, ids=names)
def decoding(request, generator):
    """A decoder, a basis, coordinates of outputs it has not seen and of noise, and what it knows."""
    case = request.param
    basis = sketch_basis(case.kernel, case.outputs(60), sketches.SubSample(25), generator=generator)
    near = basis.embed(case.outputs(7))
    z = torch.cat([near, near + 0.1 * near.std() * torch.randn(near.shape, generator=generator, dtype=torch.float64)])
    return case.made, basis, z, EmbeddedOutputs(basis, case.outputs(60))


def test_no_known_output_scores_better(decoding):
    decoder, basis, z, known = decoding
    decoded = decoder.decode(basis, z, known)
    best = known.top(z, 1, decoder.scoring_rule()).scores[:, 0]
    assert (decoded.scores >= best - 1e-9 * (1 + best.abs())).all()
    if isinstance(decoder, Candidates):
        torch.testing.assert_close(decoded.scores, best)


def test_reports_the_score_of_what_it_returns(decoding):
    decoder, basis, z, known = decoding
    decoded = decoder.decode(basis, z, known)
    expected = basis.score(z, decoded.outputs, decoder.scoring_rule()).diagonal()
    torch.testing.assert_close(decoded.scores, expected, rtol=1e-6, atol=1e-8)


def test_decodes_every_row_by_itself_and_always_the_same(decoding):
    decoder, basis, z, known = decoding
    decoded = decoder.decode(basis, z, known)
    again = decoder.decode(basis, z[3:4], known)
    torch.testing.assert_close(again.scores, decoded.scores[3:4])
    one, all_rows = as_outputs(again.outputs), as_outputs(decoded.outputs)
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, all_rows[3:4], rtol=1e-5, atol=1e-5)
    else:
        assert list(keys(one)) == list(keys(all_rows))[3:4]
    assert type(decoded.outputs) is type(known.form.restore(known.outputs))


def test_no_rows_give_no_outputs(decoding):
    decoder, basis, z, known = decoding
    nothing = decoder.decode(basis, z[:0], known)
    assert count(nothing.outputs) == len(nothing.scores) == 0


def test_outputs_are_found_by_their_own_coordinates():
    """With the whole of the outputs as anchors, coordinates tell each of them, by the rule within the span."""
    ys = vectors(50)
    basis = sketch_basis(kernels.Gaussian(0.5), ys, sketches.Full())
    decoded = Candidates("projected").decode(basis, basis.embed(ys), EmbeddedOutputs(basis, ys))
    assert torch.equal(decoded.outputs, ys)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
def test_top_k_is_exact_whatever_the_blocks(rule, keep, basis, generator, monkeypatch):
    ys = vectors(333)
    z = torch.randn(45, basis.dim, generator=generator, dtype=torch.float64)
    expected = basis.score(z, ys, rule).topk(10)
    monkeypatch.setattr("dsokr.decoders.scan.BLOCK", 17)
    monkeypatch.setattr("dsokr.decoders.scan.QUERIES", 4)
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


def test_open_rule_must_be_chosen(basis):
    with pytest.raises(InputError, match="chosen by fit"):
        Candidates().decode(basis, torch.zeros(1, basis.dim), EmbeddedOutputs(basis, vectors(3)))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_of_equal_candidates_the_first_wins(k, basis, monkeypatch):
    monkeypatch.setattr("dsokr.decoders.scan.BLOCK", 4)
    ys = vectors(3).repeat_interleave(5, dim=0)  # five copies of each
    ranking = EmbeddedOutputs(basis, ys).top(basis.embed(vectors(3)), k, "projected")
    assert ranking.indices.tolist() == [[5 * i + j for j in range(k)] for i in range(3)]


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.zeros(3, 2), r"shape \(n, 12\), as the basis. Got \(3, 2\)"),
        (torch.zeros(12), r"Got \(12,\)"),
        (torch.tensor([[0.0] * 12, [0.0] * 11 + [torch.nan]]), "NaN or inf in row 1"),
        ([["a"] * 12], "Coordinates must be numbers of shape"),
    ],
)
def test_refuses_coordinates(z, message, basis):
    with pytest.raises(InputError, match=message):
        Candidates("kernel").decode(basis, z, EmbeddedOutputs(basis, vectors(5)))


def test_coordinates_of_any_kind(basis):
    known = EmbeddedOutputs(basis, vectors(5))
    z = basis.embed(vectors(3))
    expected = Candidates("kernel").decode(basis, z, known).scores
    for same in (z.numpy(), z.tolist(), z.clone().requires_grad_()):
        assert torch.equal(Candidates("kernel").decode(basis, same, known).scores, expected)


@pytest.mark.parametrize("fast", [torch.float32, torch.float64])
def test_scores_beyond_all_numbers(fast, monkeypatch):
    monkeypatch.setattr(scan, "FAST", fast)
    ys = 1e100 * vectors(20)
    basis = sketch_basis(kernels.Linear(), vectors(20), sketches.Full(), generator=torch.Generator())
    known = EmbeddedOutputs(basis, 1e60 * ys)
    with pytest.raises(InputError, match="scores of candidates are not finite in row 0. Rescale the outputs"):
        known.top(1e150 * basis.embed(vectors(2)), 1, "kernel")


@pytest.mark.parametrize("rule", RULES)
def test_scanning_in_single_and_in_double_precision_finds_the_same(rule, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    ys = torch.randn(500, 3, generator=generator).round(decimals=1)  # coarse, so that some are equal
    basis = sketch_basis(kernels.Gaussian(0.3), ys, sketches.SubSample(40), generator=generator)
    known = EmbeddedOutputs(basis, torch.cat([ys, ys[:100]]))
    z = torch.cat([basis.embed(ys[:30]), torch.randn(30, basis.dim, generator=generator, dtype=torch.float64)])
    for k in (1, 10, 600):
        scanned = known.top(z, k, rule)
        with monkeypatch.context() as patch:
            patch.setattr(scan, "FAST", torch.float64)
            double = known.top(z, k, rule)
        order = sort_keys(basis.score(z, known.outputs, rule)).sort(dim=1, descending=True, stable=True).indices
        assert (scanned.indices == order[:, :k]).double().mean() > 0.999
        assert torch.equal(scanned.indices, double.indices)
        assert torch.allclose(scanned.scores, double.scores)


@pytest.mark.parametrize("fast", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_a_scan_goes_on_where_it_stopped(rule, fast, basis, generator, monkeypatch):
    """Several lists one after the other are one list, and asking for more than there are gives all."""
    monkeypatch.setattr(scan, "FAST", fast)
    ys = torch.cat([vectors(50), vectors(20)])  # some twice
    z = torch.randn(9, basis.dim, generator=generator, dtype=torch.float64)
    for k in (1, 10, 65, 10**12):  # the last could not be held
        going = scan.Scan(z, k, rule)
        for start in range(0, 70, 11):
            EmbeddedOutputs(basis, ys[start : start + 11], keep=False).add_to(going)
            found = going.ranking()
            expected = EmbeddedOutputs(basis, ys[: start + 11]).top(z, k, rule)
            assert found.indices.shape == (9, min(k, start + 11, 70))
            assert torch.equal(found.indices, expected.indices) and torch.allclose(found.scores, expected.scores)


def test_a_scan_for_nobody_and_by_no_rule(basis):
    assert EmbeddedOutputs(basis, vectors(5)).top(torch.empty(0, basis.dim), 10, "kernel").indices.shape == (0, 5)
    with pytest.raises(InputError, match="decoding rule must be one of"):
        EmbeddedOutputs(basis, vectors(5)).top(torch.zeros(1, basis.dim), 1, "best")
    with pytest.raises(InputError, match="k must be an integer of at least 1. Got 0"):
        EmbeddedOutputs(basis, vectors(5)).top(torch.zeros(1, basis.dim), 0, "kernel")


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("dsokr.decoders.scan.BLOCK", 17)
    monkeypatch.setattr("dsokr.decoders.scan.QUERIES", 7)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_ranks_block_by_block_are_those_of_whole_rows(unit, rule, small_blocks, device):
    """Copies are tied, in whatever block they stand and however large or small the scores are."""
    generator = torch.Generator().manual_seed(0)
    ys = unit * torch.randn(60, 3, generator=generator, dtype=torch.float64)
    ys = torch.cat([ys, ys[:25]])
    basis = sketch_basis(kernels.Linear(), ys, sketches.Full(), generator=generator, device=device)
    z = basis.embed(ys[:30] + 0.3 * unit * torch.randn(30, 3, generator=generator, dtype=torch.float64))
    truth = torch.randint(85, (30,), generator=generator)
    expected = metrics.ranks(basis.score(z, ys, rule), truth)
    assert (expected % 1 == 0.5).any() and len(expected.unique()) > 10
    for keep in (True, False):
        assert torch.equal(EmbeddedOutputs(basis, ys, keep=keep).ranks(z, truth, rule), expected)


def test_ranks_of_outputs_that_are_not_kept_hold_no_coordinates(basis, small_blocks, monkeypatch):
    largest = 0
    embed = type(basis).embed

    def watched(self, ys):
        nonlocal largest
        largest = max(largest, len(ys))
        return embed(self, ys)

    known, z = EmbeddedOutputs(basis, vectors(200), keep=False), basis.embed(vectors(200))
    monkeypatch.setattr(type(basis), "embed", watched)
    assert known.ranks(z, torch.arange(200), "projected").tolist() == [1.0] * 200
    assert largest == 17 and known._coordinates is None


@pytest.mark.parametrize("keep", [True, False])
def test_ranks_refuse(keep, basis, small_blocks):
    known, z = EmbeddedOutputs(basis, vectors(20), keep=keep), basis.embed(vectors(10))
    assert known.ranks(z[:0], torch.empty(0), "kernel").shape == (0,)
    for wrong in (-1, 20):
        with pytest.raises(InputError, match=f"one of the 20, counted from 0. Got {wrong} in row 9"):
            known.ranks(z, torch.tensor([*range(9), wrong]), "kernel")
    with pytest.raises(InputError, match="each of the 10 rows. Got \\(9,\\)"):
        known.ranks(z, torch.arange(9), "kernel")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("keep", [True, False])
def test_outputs_far_from_zero_are_told_apart(rule, keep, device, monkeypatch):
    """Their scores have a large part in common, beside which single precision would see no difference."""
    generator = torch.Generator().manual_seed(0)
    ys = 300 + torch.randn(1000, 3, generator=generator, dtype=torch.float64)
    ys = torch.cat([ys, ys[:100]])  # copies, which tie
    basis = sketch_basis(kernels.Linear(), ys, sketches.SubSample(50), generator=generator, device=device)
    known, z, truth = EmbeddedOutputs(basis, ys, keep=keep), basis.embed(ys), torch.arange(len(ys))
    first = torch.where(truth < 1000, truth, truth - 1000)
    for fast in (torch.float32, torch.float64):
        monkeypatch.setattr(scan, "FAST", fast)
        assert (known.top(z, 1, rule).indices[:, 0].cpu() == first).double().mean() > 0.995
    tied = (truth < 100) | (truth >= 1000)
    expected = torch.where(tied, 1.5, 1.0)
    assert (known.ranks(z, truth, rule).cpu() == expected).double().mean() > 0.99


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("unit", [1e-60, 1e-30, 1e-12, 1e9, 1e30, 1e60])
def test_small_and_large_scores_are_compared_like_others(unit, rule):
    """Single precision ends at 1e-38 and 1e38, which scores reach earlier than the numbers they are computed from."""
    generator = torch.Generator().manual_seed(0)
    ys = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    ys = unit * torch.cat([ys, ys[:50]])
    basis = sketch_basis(kernels.Linear(), ys / unit, sketches.Full(), generator=generator)
    known, z, truth = EmbeddedOutputs(basis, ys), basis.embed(ys), torch.arange(250)
    assert torch.equal(known.top(z, 2, rule).indices[:, 0], truth % 200)
    tied = (truth < 50) | (truth >= 200)
    assert torch.equal(known.ranks(z, truth, rule), torch.where(tied, 1.5, 1.0).double())


def test_small_rows_among_others():
    ys = vectors(200)
    basis = sketch_basis(kernels.Linear(), ys, sketches.Full(), generator=torch.Generator())
    known, scales = EmbeddedOutputs(basis, ys), 10.0 ** -torch.arange(0, 100, dtype=torch.float64)
    z = basis.embed(ys[:1]) * scales[:, None]
    best = known.top(z, 5, "cosine")
    assert (best.indices == best.indices[:1]).all()
    torch.testing.assert_close(best.scores / scales[:, None], best.scores[:1].expand(100, 5), rtol=1e-12, atol=0)
