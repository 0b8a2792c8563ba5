"""The candidates that each input may have: against all candidates with the others masked."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr import DSOKR, kernels, metrics, sketches
from dsokr.basis import sketch_basis
from dsokr.decoders import EmbeddedOutputs, pools
from dsokr.decoders.pools import Column, as_pools
from dsokr.errors import InputError
from dsokr.regressors import KernelRidge
from dsokr.rules import RULES, largest, score
from implementations import vectors


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def known(generator):
    basis = sketch_basis(kernels.Polynomial(2), vectors(80), sketches.SubSample(12), generator=generator)
    outputs = torch.cat([vectors(60), vectors(60)[:20]])  # some twice
    return EmbeddedOutputs(basis, outputs)


@pytest.fixture
def mask(generator):
    mask = torch.rand(9, 80, generator=generator) < torch.linspace(0, 1, 9)[:, None]
    assert not mask[0].any() and 1 < mask.sum(dim=1)[1] < 20
    return mask


@pytest.fixture
def z(known, generator):
    return torch.randn(9, known.basis.dim, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("table", [pools.TABLE, 100])
def test_the_best_of_a_pool_are_the_best_of_all_that_are_in_it(known, mask, z, rule, keep, table, monkeypatch):
    monkeypatch.setattr(pools, "TABLE", table)
    known = EmbeddedOutputs(known.basis, known.outputs, keep=keep, form=known.form)
    found = known.top_of(z, as_pools(mask, 9, 80), 10, rule)
    scores = score(z, *known.coordinates(), rule)
    for row in range(9):
        there = mask[row].nonzero()[:, 0]
        n = min(10, len(there))
        assert (found.indices[row, n:] == -1).all() and found.scores[row, n:].isneginf().all()
        if n:
            best, columns = largest(scores[row : row + 1, there], n)
            torch.testing.assert_close(found.scores[row, :n], best[0])
            assert found.indices[row, :n].tolist() == there[columns[0]].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_ranks_in_a_pool_count_ties_by_halves(known, mask, z, rule):
    truth = torch.arange(9) + 55  # some of them twice in the list
    ranks = known.ranks(z, truth, rule, as_pools(mask, 9, 80))
    scores = score(z, *known.coordinates(), rule)
    for row in range(9):
        there = mask[row].nonzero()[:, 0].tolist()
        if int(truth[row]) not in there:
            assert ranks[row].isinf()
        else:
            expected = metrics.ranks(scores[row : row + 1, there], torch.tensor([there.index(int(truth[row]))]))
            assert ranks[row] == expected[0]
    assert (ranks[ranks.isfinite()] % 1 == 0.5).any()  # a copy of the true one is in the pool, too


def test_an_output_that_is_not_listed_is_in_no_pool(known, mask, z):
    """Pools of several rows are filled up to the widest; what fills them is not the right answer."""
    assert known.ranks(z, torch.full((9,), -1), "kernel", as_pools(mask, 9, 80)).isinf().all()


def test_large_offsets_do_not_hide_the_order(generator):
    basis = sketch_basis(kernels.Polynomial(2), vectors(50), sketches.SubSample(8), generator=generator)
    known, z = EmbeddedOutputs(basis, 1e4 * vectors(50)), basis.embed(1e4 * vectors(50)[:5])
    mask = torch.rand(5, 50, generator=generator) < 0.3
    mask[torch.arange(5), torch.arange(5)] = True
    assert known.top_of(z, as_pools(mask, 5, 50), 1, "projected").indices[:, 0].tolist() == list(range(5))


def test_windows_of_a_column(rng):
    values = rng.normal(size=200)
    values[::17] = np.nan
    low = rng.normal(size=30)
    high = low + rng.exponential(size=30) - 0.2  # some windows are empty
    for column in (values, np.sort(values)):
        for pool, a, b in zip(Column(column).find(low, high), low, high, strict=True):
            expected = np.flatnonzero((column >= a) & (column <= b)).tolist()
            assert pools.positions_of(pool).tolist() == expected and pools.size_of(pool) == len(expected)
    assert all(isinstance(pool, slice) for pool in Column(np.sort(values)).find(low, high))
    is_first = Column(values).keep(slice(0, 100), 0.0, 1.0).tolist()
    assert is_first == np.flatnonzero((values[:100] >= 0) & (values[:100] <= 1)).tolist()


class TestModels:
    @pytest.fixture(scope="class")
    @staticmethod
    def model():
        X = np.random.default_rng(0).normal(size=(60, 3))
        return DSOKR(kernels.Linear(), regressor=KernelRidge(), random_state=0).fit(X, np.round(X @ np.ones((3, 4)), 1))

    def test_all_ways_to_say_what_is_allowed(self, model, rng):
        X, mask = rng.normal(size=(5, 3)), rng.random((5, 40)) < 0.4
        candidates = rng.normal(size=(40, 4))
        where = [np.flatnonzero(row) for row in mask]
        ways = mask, sp.csr_array(mask), where, [row.tolist() for row in where], lambda i: where[i], torch.tensor(mask)
        found = [model.rank(X, candidates, k=3, allowed=way) for way in ways]
        assert all(each.indices.tolist() == found[0].indices.tolist() for each in found)
        assert all(mask[row, at] for row, some in enumerate(found[0].indices.tolist()) for at in some)
        everything = model.rank(X, candidates, k=3, allowed=np.ones((5, 40)))
        assert everything.indices.tolist() == model.rank(X, candidates, k=3).indices.tolist()

    def test_also_known_outputs(self, model, rng):
        found = model.rank(rng.normal(size=(2, 3)), k=2, allowed=[[5], []])
        assert found.indices.tolist() == [[5], [-1]]

    @pytest.mark.parametrize(
        ("allowed", "message"),
        [
            ([[0]], "allowed must name the candidates of every input. Got 1 lists for 2 inputs."),
            ([[0], [40]], "There are 40 candidates. allowed names number 40 for input 1."),
            ([[-1], [4]], "There are 40 candidates. allowed names number -1 for input 0."),
            ([[0], [0.5]], "allowed must name candidates by their positions. Got torch.float32 for input 1."),
            (np.ones((2, 3)), r"A mask of allowed candidates must be \(2, 40\). Got \(2, 3\)."),
        ],
    )
    def test_refuses_others_in_one_sentence(self, model, rng, allowed, message):
        with pytest.raises(InputError, match=message):
            model.rank(rng.normal(size=(2, 3)), rng.normal(size=(40, 4)), allowed=allowed)
