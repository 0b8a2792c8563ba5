"""The k best outputs of every decoder, and how many there are above a threshold, against brute force."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.optimize import linear_sum_assignment

from dsokr import decoders, kernels, sketches
from dsokr.basis import sketch_basis
from dsokr.decoders import Candidates, Decoded, Decoder, EmbeddedOutputs, LabelSet, choose_decoder
from dsokr.decoders.choices import choose_columns
from dsokr.errors import InputError
from dsokr.outputs import as_outputs, canonical, count, keys
from dsokr.rules import RULES
from implementations import DECODERS, names, vectors

SETS = [
    kernels.Tanimoto(),
    kernels.Cosine(),  # undefined for the empty set
    kernels.Gaussian(0.01),  # its coordinates are large numbers that cancel
    0.5 * kernels.Tanimoto() + 0.1 * kernels.Linear(),
    (kernels.Linear() + kernels.Tanimoto()).normalized(),
]
RANKINGS = [
    (decoders.Kemeny(), kernels.Kemeny()),
    (decoders.Kemeny(), 2.0 * (3.0 * kernels.Kemeny()).normalized()),
    (decoders.HammingRanking(), kernels.Hamming()),
    (decoders.HammingRanking(), (0.5 * kernels.Hamming()).normalized()),
    (decoders.Lehmer(), kernels.Lehmer()),
    (decoders.Lehmer(), 0.3 * kernels.Lehmer()),
]


def label_sets(n: int, d: int) -> np.ndarray:  # (n, d)
    rng = np.random.default_rng(0)
    sets = rng.random((n, d)) < 0.4
    sets[:, 0] |= ~sets.any(axis=1)
    return sets.astype(np.int64)


def rankings(n: int, d: int) -> np.ndarray:  # (n, d)
    return np.random.default_rng(0).permuted(np.tile(np.arange(d), (n, 1)), axis=1)


def every_set(d: int, kernel: kernels.Kernel) -> np.ndarray:
    return np.arange(int(kernel == kernels.Cosine()), 2**d)[:, None] >> np.arange(d) & 1


def every_ranking(d: int) -> np.ndarray:
    return np.array(list(itertools.permutations(range(d))))


def make_problem(kernel: kernels.Kernel, ys, known: int = 20, rows: int = 12, form=np.asarray):
    """A basis, noise as long as an output is, and the first few outputs; some of these are given twice."""
    generator = torch.Generator().manual_seed(0)
    basis = sketch_basis(kernel, form(ys), sketches.SubSample(30), generator=generator)
    z = torch.randn(rows, basis.dim, generator=generator, dtype=torch.float64)
    z *= (basis.diag(form(ys)).mean() / basis.dim).sqrt()
    return basis, z, EmbeddedOutputs(basis, form(np.concatenate([ys[:known], ys[: known // 2]])))


def check_best(decoder: Decoder, basis, z, known, k: int) -> list[Decoded]:
    """Scores are those of the outputs, best first. No output comes twice; the first is as good as that of decode."""
    found = decoder.best(basis, z, known, k)
    assert len(found) == len(z)
    decoded = decoder.decode(basis, z, known).scores
    for row, (outputs, scores) in enumerate(found):
        assert 1 <= count(outputs) == len(scores) <= k
        expected = basis.score(z[row : row + 1], outputs, decoder.scoring_rule())[0]
        torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-8)
        assert (scores.diff() <= 1e-6 * (1 + scores[1:].abs())).all()
        assert len(set(keys(as_outputs(outputs)))) == len(scores)
        assert scores[0] >= decoded[row] - 1e-6 * (1 + decoded[row].abs())
    return found


def compare_with_all(decoder: Decoder, basis, z, known, k: int, everything) -> None:
    """The scores are the k largest of all outputs there are."""
    expected = basis.score(z, everything).sort(dim=1, descending=True).values[:, :k]
    for row, (_, scores) in enumerate(check_best(decoder, basis, z, known, k)):
        torch.testing.assert_close(scores, expected[row])


@pytest.mark.parametrize("case", DECODERS, ids=names)
def test_every_decoder_gives_several_outputs(case, generator):
    basis = sketch_basis(case.kernel, case.outputs(60), sketches.SubSample(25), generator=generator)
    known, z = EmbeddedOutputs(basis, case.outputs(60)), basis.embed(case.outputs(7))
    z = z + 0.1 * z.std() * torch.randn(z.shape, generator=generator, dtype=torch.float64)
    for k in (1, 5, 20):
        found = check_best(case.made, basis, z, known, k)
        for row, (outputs, scores) in enumerate(found):
            assert type(outputs) is type(known.form.restore(known.outputs))
            best = known.without_copies.top(z[row : row + 1], k, case.made.scoring_rule()).scores[0]
            assert len(scores) == k
            assert (scores[: len(best)] >= best - 1e-6 * (1 + best.abs())).all()
    assert case.made.best(basis, z[:0], known, 3) == []
    with pytest.raises(InputError, match="k must be an integer of at least 1. Got 0"):
        case.made.best(basis, z, known, 0)


@pytest.mark.parametrize("rule", RULES)
def test_candidates_come_from_the_list_each_once(rule):
    ys = vectors(20).numpy()
    basis, z, known = make_problem(kernels.Polynomial(2), ys)
    compare = basis.score(z, ys, rule).sort(dim=1, descending=True).values
    for k in (1, 7, 20, 50):
        for row, (_, scores) in enumerate(check_best(Candidates(rule), basis, z, known, k)):
            torch.testing.assert_close(scores, compare[row, :k])
    counts = Candidates(rule).count(basis, z, known, compare[:, 4])
    assert counts.tolist() == [5] * len(z)


@pytest.mark.parametrize("k", [1, 6, 300])
@pytest.mark.parametrize("d", [1, 3, 8])
@pytest.mark.parametrize("kernel", SETS, ids=str)
def test_label_sets_are_the_best_of_all(kernel, d, k):
    problem = make_problem(kernel, label_sets(80, d))
    compare_with_all(LabelSet(), *problem, k, every_set(d, kernel))


def test_blocks_of_sets_and_of_rows_do_not_matter(monkeypatch):
    problem = make_problem(kernels.Tanimoto(), label_sets(80, 9))
    everything = every_set(9, kernels.Tanimoto())
    monkeypatch.setattr("dsokr.decoders.labels.BLOCK", 13)
    monkeypatch.setattr("dsokr.decoders.base.QUERIES", 5)
    compare_with_all(LabelSet(), *problem, 30, everything)
    scores = problem[0].score(problem[1], everything)
    limits = scores.sort(dim=1).values[:, -40]
    assert LabelSet().count(*problem, limits).tolist() == (scores >= limits[:, None] - 1e-9).sum(dim=1).tolist()


def test_sets_of_more_labels_than_are_listed_are_those_met_on_the_way():
    basis, z, known = make_problem(kernels.Tanimoto(), label_sets(200, 24))
    found = check_best(LabelSet(), basis, z, known, 15)
    assert LabelSet().count(basis, z, known, 0.0) is None
    for row, (outputs, scores) in enumerate(found):
        flips = basis.score(z[row : row + 1], outputs[0] ^ np.eye(24, dtype=np.int64))[0]  # all of them were scored
        assert (scores[1:] >= flips.sort(descending=True).values[:14] - 1e-9).all()


def test_local_search_mostly_meets_the_best_sets(monkeypatch):
    problem = make_problem(kernels.Tanimoto(), label_sets(80, 10), rows=40)
    exact = [set(keys(as_outputs(outputs))) for outputs, _ in LabelSet().best(*problem, 10)]
    monkeypatch.setattr("dsokr.decoders.labels.LISTED", 5)
    found = [set(keys(as_outputs(outputs))) for outputs, _ in LabelSet().best(*problem, 10)]
    shares = [len(a & b) / 10 for a, b in zip(exact, found, strict=True)]
    assert 0.8 < np.mean(shares) < 1.0  # or else sets were listed


@pytest.mark.parametrize("form", [lambda ys: torch.from_numpy(ys).float(), sp.csr_matrix, np.ndarray.tolist])
@pytest.mark.parametrize("d", [6, 22])
def test_sets_keep_their_form(form, d):
    expected = LabelSet().best(*make_problem(kernels.Tanimoto(), label_sets(80, d)), 5)
    given = make_problem(kernels.Tanimoto(), label_sets(80, d), form=form)
    for (outputs, scores), wanted in zip(LabelSet().best(*given, 5), expected, strict=True):
        assert type(outputs) is type(form(wanted.outputs))
        assert list(keys(as_outputs(outputs))) == list(keys(as_outputs(wanted.outputs)))
        torch.testing.assert_close(scores, wanted.scores)


@pytest.mark.parametrize("k", [1, 6, 150])
@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize(("decoder", "kernel"), RANKINGS, ids=str)
def test_rankings_are_the_best_of_all(decoder, kernel, d, k):
    compare_with_all(decoder, *make_problem(kernel, rankings(80, d)), k, every_ranking(d))


@pytest.mark.parametrize("k", [2, 30, 150])
@pytest.mark.parametrize(("decoder", "kernel"), RANKINGS, ids=str)
def test_more_items_than_are_listed(decoder, kernel, k, monkeypatch):
    """What is used for many items, checked on few: exact but for Kemeny, which mostly finds the best."""
    basis, z, known = make_problem(kernel, rankings(80, 5), rows=30)
    monkeypatch.setattr("dsokr.decoders.rankings.LISTED", 1)
    if isinstance(decoder, decoders.Kemeny):
        best = basis.score(z, every_ranking(5)).sort(dim=1, descending=True).values[:, :k]
        found = check_best(decoder, basis, z, known, k)
        assert (
            np.mean([np.isclose(scores, best[row, : len(scores)]).mean() for row, (_, scores) in enumerate(found)])
            > 0.9
        )
        assert all(len(scores) == min(k, 120) for _, scores in found)
    else:
        compare_with_all(decoder, basis, z, known, k, every_ranking(5))


def test_many_items():
    """Scores fall by the gap between digits or pairs, and all rankings are full ones."""
    for decoder, kernel in RANKINGS[::2]:
        basis, z, known = make_problem(kernel, rankings(80, 11), rows=4)
        assert decoder.count(basis, z, known, 0.0) is None
        for outputs, scores in check_best(decoder, basis, z, known, 12):
            assert len(scores) == 12
            np.testing.assert_array_equal(np.sort(outputs, axis=1), np.tile(np.arange(11), (12, 1)))


@pytest.mark.parametrize("d", [4, 9])
@pytest.mark.parametrize("form", [torch.as_tensor, lambda ys: [*map(tuple, ys.tolist())]])
@pytest.mark.parametrize(("decoder", "kernel"), RANKINGS[::2], ids=str)
def test_positions_counted_from_one(decoder, kernel, form, d):
    (basis, z, known), (_, _, from_zero) = (make_problem(kernel, rankings(80, d) + i, form=form) for i in (1, 0))
    pairs = zip(decoder.best(basis, z, known, 8), decoder.best(basis, z, from_zero, 8), strict=True)
    for (outputs, scores), (others, expected) in pairs:
        assert type(outputs) is type(others) and type(outputs[0]) is type(others[0])
        np.testing.assert_array_equal(np.asarray(outputs), np.asarray(others) + 1)
        torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("d", [5, 9])
@pytest.mark.parametrize("kernel", [kernels.Kemeny(), kernels.Kemeny().normalized()], ids=str)
def test_known_rankings_with_ties_and_missing_items_are_among_the_best(kernel, d):
    partial = rankings(30, d)
    partial[:, :2] = partial[:, :1]
    partial[10:20, 3] = -1
    seen = np.concatenate([partial, rankings(30, d)])
    basis = sketch_basis(kernel, seen, sketches.Full(), generator=torch.Generator())
    known, z = EmbeddedOutputs(basis, seen), basis.embed(seen[:20])
    found = check_best(decoders.Kemeny(), basis, z, known, 4)
    torch.testing.assert_close(
        basis.embed([tuple(outputs[0]) for outputs, _ in found]), z
    )  # some are equal but for gaps
    if d == 5:
        everything = np.unique(np.concatenate([every_ranking(d), seen]), axis=0)
        compare_with_all(decoders.Kemeny(), basis, z, known, 4, everything)


@pytest.mark.parametrize("kernel", [*SETS[:3], kernels.Kemeny(), 0.3 * kernels.Lehmer(), kernels.Hamming()], ids=str)
def test_counts_are_exact(kernel, device):
    if kernel in SETS:
        decoder, ys, everything = LabelSet(), label_sets(80, 7), every_set(7, kernel)
    else:
        decoder = choose_decoder(kernel, *canonical(rankings(80, 5)))
        ys, everything = rankings(80, 5), every_ranking(5)
    basis, z, known = make_problem(kernel, ys)
    scores = basis.score(z, everything)
    basis, z, known = basis.to(device), z.to(device), EmbeddedOutputs(basis.to(device), known.outputs)
    for place in (0, 3, len(everything) // 2, -1):
        limits = scores.sort(dim=1, descending=True).values[:, place]  # the score of an output, which counts
        expected = (scores >= limits[:, None] - 1e-9).sum(dim=1)
        assert torch.equal(decoder.count(basis, z, known, limits).cpu(), expected)
        between = torch.nextafter(limits + 1e-5, torch.tensor(torch.inf))
        assert torch.equal(decoder.count(basis, z, known, between).cpu(), (scores >= between[:, None]).sum(dim=1))
    assert decoder.count(basis, z, known, -torch.inf).tolist() == [len(everything)] * len(z)
    assert decoder.count(basis, z, known, torch.inf).tolist() == [0] * len(z)
    assert decoder.count(basis, z[:0], known, limits[:0]).shape == (0,)
    with pytest.raises(InputError, match=r"threshold must be a number, or one for each of 12 rows. Got \(3,\)"):
        decoder.count(basis, z, known, limits[:3])


def test_known_outputs_come_first_among_ties():
    """At coordinates 0 all sets of the normalised kernel score the same."""
    ys = label_sets(80, 6)
    basis, z, known = make_problem(kernels.Tanimoto(), ys)
    outputs, scores = LabelSet().best(basis, torch.zeros_like(z), known, 40)[0]
    first = known.without_copies
    np.testing.assert_array_equal(outputs[: len(first)], first.outputs)
    assert len(scores) == 40 and len(np.unique(outputs, axis=0)) == 40
    assert LabelSet().count(basis, torch.zeros_like(z), known, -1.0)[0] == 2**6


def test_outputs_outside_the_constraint_are_no_answers():
    ys = vectors(40)
    basis = sketch_basis(kernels.Gaussian(0.1), ys, sketches.Full(), generator=torch.Generator())
    known = EmbeddedOutputs(basis, ys)
    for high in (0.5, -5.0):  # some known outputs are inside, or none
        decoder = decoders.Gradient(30, constraint=decoders.Box(-9.0, high))
        for outputs, _ in check_best(decoder, basis, basis.embed(ys[:10]), known, 6):
            assert outputs.max() <= high + 1e-5


def test_graphs_with_equal_features_come_once(generator):
    case = next(case for case in DECODERS if case.name == "graphs, kernel")
    graphs = case.outputs(60)
    basis = sketch_basis(case.kernel, graphs, sketches.SubSample(25), generator=generator)
    known = EmbeddedOutputs(basis, graphs)
    own = basis.kernel.kernel.features(known.without_copies.outputs)
    copies = len(own) - len(
        {(own.ids[a:b].tobytes(), own.values[a:b].tobytes()) for a, b in itertools.pairwise(own.indptr)}
    )
    for outputs, _ in case.made.best(basis, basis.embed(graphs[:5]), known, 12):
        features = basis.kernel.kernel.features(as_outputs(outputs))
        rows = {
            (features.ids[a:b].tobytes(), features.values[a:b].tobytes())
            for a, b in itertools.pairwise(features.indptr)
        }
        assert len(rows) >= len(features) - copies


@pytest.mark.parametrize("different", [True, False])
def test_choices_are_the_best_in_order(different):
    rng = np.random.default_rng(0)
    for _ in range(20):
        profit = rng.integers(0, 5, size=(4, 4)).astype(float)  # with ties
        profit[rng.random((4, 4)) < 0.2] = -np.inf
        np.fill_diagonal(profit, 0.0)
        choose = (lambda p: linear_sum_assignment(p, maximize=True)[1]) if different else (lambda p: p.argmax(axis=1))
        every = np.array(list(itertools.permutations(range(4)) if different else itertools.product(range(4), repeat=4)))
        sums = profit[np.arange(4), every].sum(axis=1)
        sums = np.sort(sums[sums > -np.inf])[::-1]
        found = choose_columns(profit, 1000, choose)
        assert len(np.unique(found, axis=0)) == len(found) == len(sums)
        np.testing.assert_allclose(profit[np.arange(4), found].sum(axis=1), sums)
