import pytest
import torch

from dsokr import kernels, sketches
from dsokr.errors import InputError
from implementations import SKETCHED, SKETCHES, Case, names


def draw(case: Case, seed: int = 0) -> sketches.Sketch:
    ys = case.outputs(SKETCHED)
    gram = lambda a, b: kernels.Gaussian(0.5)(ys[a], ys[b])  # noqa: E731
    return case.made.draw(SKETCHED, torch.Generator().manual_seed(seed), gram)


@pytest.mark.parametrize("case", SKETCHES, ids=names)
def test_shape_and_seed(case: Case):
    sketch, again, other = draw(case), draw(case), draw(case, seed=1)
    assert sketch.size == (case.made.size or SKETCHED)
    assert sketch.dense(SKETCHED).shape == (sketch.size, SKETCHED)
    assert torch.equal(sketch.dense(SKETCHED), again.dense(SKETCHED))
    assert case.made == sketches.Full() or not torch.equal(sketch.dense(SKETCHED), other.dense(SKETCHED))


@pytest.mark.parametrize("case", SKETCHES, ids=names)
def test_keeps_only_used_columns_once(case: Case):
    sketch = draw(case)
    assert len(sketch.indices.unique()) == len(sketch.indices)
    assert sketch.weights is None or (sketch.weights != 0).any(dim=0).all()


@pytest.mark.parametrize(
    "spec",
    [
        sketches.Gaussian(40),
        sketches.Sparsified(40, 0.3),
        sketches.Sparsified(40, 0.3, "gaussian"),
        sketches.Hadamard(40),
    ],
)
def test_is_an_isometry_on_average(spec, generator):
    """E[RᵀR] = I: the scale of the entries is the right one, 1/√(m · density) for the sparsified sketch."""
    total = sum(R.T @ R for R in (spec.draw(50, generator).dense(50) for _ in range(300)))
    mean = total / 300
    assert (mean - torch.eye(50)).abs().max() < 0.08  # a dozen standard errors off the diagonal
    assert abs(mean.diagonal().mean() - 1) < 0.02


def test_hadamard_rows_are_orthogonal_when_n_is_a_power_of_two(generator):
    R = sketches.Hadamard(16).draw(16, generator).dense(16)
    torch.testing.assert_close(R @ R.T, torch.eye(16, dtype=torch.float64))


def test_weighted_sampling_follows_the_weights(generator):
    spec = sketches.SubSample(1, probabilities=(1.0, 2.0, 5.0))
    drawn = torch.cat([spec.draw(3, generator).indices for _ in range(4000)])
    share = torch.bincount(drawn, minlength=3) / 4000
    assert (share - torch.tensor([1, 2, 5]) / 8).abs().max() < 0.03


def test_sparsified_density_and_default(generator):
    sketch = sketches.Sparsified(200, density=0.1).draw(300, generator)
    assert abs((sketch.dense(300) != 0).double().mean() - 0.1) < 0.01
    default = sketches.Sparsified(50).draw(1000, generator)
    assert abs((default.dense(1000) != 0).sum(dim=1).double().mean() - 20) < 3


def test_exact_leverage_when_the_pilot_is_everything(generator):
    ys = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    K = kernels.Gaussian(0.5)(ys, ys)
    approximate = sketches.approximate_leverage(lambda a, b: K[a][:, b], 30, 1e-2, generator, pilot=30)
    exact = (K @ torch.linalg.inv(K + 30 * 1e-2 * torch.eye(30))).diagonal()
    torch.testing.assert_close(approximate, exact, rtol=1e-8, atol=1e-8)


def test_leverage_sampling_prefers_outputs_that_matter(generator):
    ys = torch.zeros(200, 2, dtype=torch.float64)
    ys[:, 0], ys[7] = 1.0, torch.tensor([0.0, 1.0])  # one output is unlike all others
    gram = lambda a, b: kernels.Linear()(ys[a], ys[b])  # noqa: E731
    drawn = [sketches.LeverageSample(10, pilot=200).draw(200, generator, gram).indices for _ in range(20)]
    assert all(7 in indices for indices in drawn)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g: sketches.Gaussian(0).draw(400, g), "Gaussian.size must be positive and finite. Got 0"),
        (lambda g: sketches.Hadamard(2.5).draw(4, g), "Hadamard.size must be an integer"),
        (lambda g: sketches.Sparsified(5, density=0.0), "density must be in"),
        (lambda g: sketches.Sparsified(5, entries="cauchy"), "entries must be"),
        (lambda g: sketches.LeverageSample(5).draw(9, g), "depends on the outputs"),
        (lambda g: sketches.SubSample(2, probabilities=(0.5, 0.5)).draw(3, g), "one entry per output"),
        (lambda g: sketches.SubSample(2, probabilities=(1.0, 0.0, 0.0)).draw(3, g), "Got 1 positive ones"),
        (lambda g: sketches.approximate_leverage(None, 5, 0.0, g), "must be positive"),
        (lambda g: sketches.approximate_leverage(None, 5, 1.0, g, probabilities=-torch.ones(5)), "not negative"),
        (lambda g: sketches.approximate_leverage(None, 5, 1.0, g, probabilities=torch.ones(4)), "one entry per output"),
        (lambda g: sketches.Sparsified(2, density=1e-9).draw(50, g), "drew only zeros"),
        (lambda g: sketches.approximate_leverage(None, 5, 1.0, g, pilot=6), "between 1 and n=5"),
    ],
)
def test_refuses(make, message, generator):
    with pytest.raises(InputError, match=message):
        make(generator)


@pytest.mark.parametrize("kind", [sketches.SubSample, sketches.Gaussian, sketches.Sparsified, sketches.Hadamard])
def test_sizes_beyond_n_mean_all_and_shares_are_of_n(kind):
    def size(given) -> int:
        return kind(given).draw(20, torch.Generator().manual_seed(0)).size

    assert size(500) == size(20) == 20 and size(0.25) == 5 and size(0.001) == 1


def test_default_leverage_scores_are_near_the_exact_ones():
    ys = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = kernels.Gaussian(0.1)(ys, ys)
    exact = (K @ torch.linalg.inv(K + 1000 * 1e-4 * torch.eye(1000, dtype=torch.float64))).diagonal()

    def correlation(pilot: int | None) -> float:
        generator = torch.Generator().manual_seed(0)
        found = sketches.approximate_leverage(lambda a, b: K[a][:, b], 1000, 1e-4, generator, pilot=pilot)
        return torch.corrcoef(torch.stack([exact, found]))[0, 1].item()

    assert correlation(None) > 0.95 > 0.85 > correlation(32)
