import itertools

import numpy as np
import pytest
import torch

from dsokr import decoders, kernels, sketches
from dsokr.basis import sketch_basis
from dsokr.decoders import EmbeddedOutputs
from dsokr.decoders.rankings import rank_by_code
from dsokr.errors import InputError

CASES = [
    (decoders.Kemeny(), kernels.Kemeny()),
    (decoders.Kemeny(), kernels.Kemeny().normalized()),
    (decoders.Kemeny(), 2.0 * (3.0 * kernels.Kemeny()).normalized()),
    (decoders.HammingRanking(), kernels.Hamming()),
    (decoders.HammingRanking(), (0.5 * kernels.Hamming()).normalized()),
    (decoders.Lehmer(), kernels.Lehmer()),
    (decoders.Lehmer(), 0.3 * kernels.Lehmer()),
]
EACH = [CASES[0], CASES[3], CASES[5]]


def every_ranking(d: int) -> np.ndarray:  # (d!, d)
    return np.array(list(itertools.permutations(range(d))))


def rankings(n: int, d: int, seed: int = 0) -> np.ndarray:  # (n, d)
    return np.random.default_rng(seed).permuted(np.tile(np.arange(d), (n, 1)), axis=1)


def make_problem(kernel: kernels.Kernel, ys, candidates: int = 5, rows: int = 60, sketch=None):
    """A basis, random coordinates as long as an output is, and the first few outputs as candidates."""
    generator = torch.Generator().manual_seed(0)
    basis = sketch_basis(kernel, ys, sketch or sketches.Gaussian(12), generator=generator)
    z = torch.randn(rows, basis.dim, generator=generator, dtype=torch.float64)
    z *= (basis.diag(ys).mean() / basis.dim).sqrt()
    return basis, z, EmbeddedOutputs(basis, ys[:candidates])


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(("decoder", "kernel"), CASES, ids=str)
def test_is_the_best_of_all_rankings(decoder, kernel, d):
    if d == 1 and not isinstance(decoder, decoders.HammingRanking):
        pytest.skip("one item embeds as zero")
    basis, z, known = make_problem(kernel, rankings(80, d))
    decoded = decoder.decode(basis, z, known)
    best = basis.score(z, every_ranking(d)).max(dim=1).values
    torch.testing.assert_close(decoded.scores, best)
    torch.testing.assert_close(decoded.scores, basis.score(z, decoded.outputs).diagonal())
    np.testing.assert_array_equal(np.sort(decoded.outputs, axis=1), np.tile(np.arange(d), (len(z), 1)))
    if d >= 4:
        assert (known.top(z, 1, "kernel").scores[:, 0] < best - 1e-6).any()  # or else there was nothing to find


def test_kemeny_is_exact_on_a_basis_of_rankings_with_ties():
    """Normalised, anchors with ties weigh more than their pairs do."""
    seen = np.random.default_rng(0).integers(0, 4, size=(80, 5))
    seen[:, 0] = 4  # not all are tied
    basis, z, known = make_problem(kernels.Kemeny().normalized(), np.concatenate([rankings(5, 5), seen]))
    expected = basis.score(z, every_ranking(5)).max(dim=1).values
    torch.testing.assert_close(decoders.Kemeny().decode(basis, z, known).scores, expected)
    assert (decoders.Kemeny().bound(basis, z) >= expected - 1e-9).all()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("form", [torch.as_tensor, lambda ys: [*map(tuple, ys.tolist())]])
@pytest.mark.parametrize(("decoder", "kernel"), EACH, ids=str)
def test_rankings_keep_their_form_and_their_first_position(decoder, kernel, form, first):
    seen = rankings(100, 4) + first
    basis, _, known = make_problem(kernel, form(seen), candidates=3, sketch=sketches.Full())
    decoded = decoder.decode(basis, basis.embed(seen), known).outputs
    assert type(decoded) is type(form(seen)) and type(decoded[0]) is type(form(seen)[0])
    np.testing.assert_array_equal(np.asarray(decoded), seen)


@pytest.mark.parametrize(("decoder", "kernel"), EACH, ids=str)
def test_all_devices_agree(decoder, kernel, device):
    basis, z, known = make_problem(kernel, rankings(80, 7))
    there = basis.to(device)
    decoded = decoder.decode(there, z.to(device), EmbeddedOutputs(there, known.outputs)).outputs
    np.testing.assert_array_equal(decoded.cpu(), decoder.decode(basis, z, known).outputs)


@pytest.mark.parametrize(("decoder", "kernel"), EACH, ids=str)
def test_of_tied_rankings_the_known_one_is_taken(decoder, kernel):
    """At coordinates 0 all rankings of the same length score the same, and those in order best with Lehmer's."""
    seen = np.array([[0, 1, 2, 3], [3, 1, 0, 2]])
    basis = sketch_basis(kernel, seen, sketches.Full(), generator=torch.Generator())
    decoded = decoder.decode(basis, torch.zeros(1, basis.dim), EmbeddedOutputs(basis, seen[::-1].copy()))
    assert decoded.outputs.tolist() == seen[0 if kernel == kernels.Lehmer() else 1 :][:1].tolist()


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6])
def test_code_and_ranking_are_inverse(d):
    codes = kernels.Lehmer().embedding(torch.from_numpy(every_ranking(d)).double()).numpy().astype(np.int64)
    np.testing.assert_array_equal(rank_by_code(codes), every_ranking(d))


def test_kemeny_is_exact_for_any_number_of_items_without_cycles():
    """The coordinates of a ranking bring it back although it is not among the candidates."""
    seen = rankings(40, 30)
    basis, _, known = make_problem(kernels.Kemeny(), seen, candidates=2, sketch=sketches.Full())
    z = basis.embed(seen)
    decoded = decoders.Kemeny(exact_up_to=1).decode(basis, z, known)
    np.testing.assert_array_equal(decoded.outputs, seen)
    torch.testing.assert_close(decoded.scores, decoders.Kemeny().bound(basis, z))


@pytest.mark.parametrize("kernel", [kernels.Kemeny(), 0.2 * kernels.Kemeny().normalized()], ids=str)
def test_kemeny_by_moves_lies_between_candidates_and_bound(kernel):
    basis, z, known = make_problem(kernel, rankings(200, 11), candidates=200, rows=100, sketch=sketches.SubSample(50))
    exact, moved = (decoders.Kemeny(limit).decode(basis, z, known) for limit in (11, 1))
    bound = decoders.Kemeny().bound(basis, z)
    margin = 1e-9 * basis.diag(rankings(1, 11)).item()
    assert (known.top(z, 1, "kernel").scores[:, 0] <= moved.scores).all()
    assert (moved.scores <= exact.scores + margin).all() and (exact.scores < bound).all()
    assert (moved.scores > exact.scores - 1e-6).float().mean() > 0.5
    assert (moved.scores < exact.scores - 1e-6).any()  # or else both are the same
    np.testing.assert_array_equal(np.sort(moved.outputs, axis=1), np.tile(np.arange(11), (100, 1)))


def test_kemeny_does_not_depend_on_blocks_and_threads(monkeypatch):
    basis, z, known = make_problem(kernels.Kemeny(), rankings(80, 7))
    expected = decoders.Kemeny().decode(basis, z, known)
    monkeypatch.setattr("dsokr.decoders.rankings.SHARE", 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    np.testing.assert_array_equal(decoders.Kemeny().decode(basis, z, known).outputs, expected.outputs)


def test_kemeny_takes_known_rankings_with_ties_and_missing_items():
    seen = np.array([[0, 0, 1, 1], [0, 1, 2, 3], [0, 1, -1, -1], [3, 2, 1, 0], [1, 3, 0, 2]])
    basis = sketch_basis(kernels.Kemeny(), seen, sketches.Full(), generator=torch.Generator())
    decoded = decoders.Kemeny().decode(basis, basis.embed(seen), EmbeddedOutputs(basis, seen))
    np.testing.assert_array_equal(decoded.outputs, seen)
    untied = decoders.Kemeny().decode(basis, basis.embed(seen[:1]), EmbeddedOutputs(basis, seen[3:]))
    assert set(untied.outputs[0, :2]) == {0, 1}  # the two that were first stay in front


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: decoders.Kemeny().check(kernels.Hamming()),
            r"decoders.Kemeny decodes bases of kernels.Kemeny\(\).*Got Hamming\(\). Use Candidates\(\)",
        ),
        (lambda: decoders.HammingRanking().check(kernels.Linear()), r"kernels.Hamming\(\).*Got Linear"),
        (lambda: decoders.Lehmer().check(kernels.Lehmer().normalized()), r"kernels.Lehmer\(\).*Got Normalized"),
        (lambda: decoders.Kemeny().check(kernels.Kemeny() + kernels.Kemeny()), "Got Sum"),
        (lambda: decoders.Kemeny(exact_up_to=40), "exact_up_to must be an integer in .1, 24.. Got 40"),
        (lambda: decoders.Kemeny(exact_up_to=2.5), "exact_up_to must be an integer in .1, 24.. Got 2.5"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(("decoder", "kernel"), EACH, ids=str)
def test_refuses_candidates_of_other_items(decoder, kernel):
    basis, z, _ = make_problem(kernel, rankings(50, 5))
    with pytest.raises(InputError, match="vectors of one length"):
        decoder.decode(basis, z, EmbeddedOutputs(basis, rankings(3, 4)))
