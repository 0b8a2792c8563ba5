import numpy as np
import pytest
import torch

from dsokr import kernels, metrics, sketches
from dsokr.basis import sketch_basis
from dsokr.errors import InputError
from dsokr.selection import SizeCurve, choose_size, leverage_scores, perfect_h
from implementations import SKETCHES, Case, names, vectors
from studies.data.synthetic import LeastSquares
from studies.plots import plot_sizes


def low_rank(n: int, rank: int, generator) -> torch.Tensor:
    task = LeastSquares(n_train=n, n_val=2, n_test=2, input_dim=30, output_dim=40, rank=rank, noise=1e-6)
    return task.draw(generator).train[1]


@pytest.mark.parametrize("case", SKETCHES[1:2] + SKETCHES[3:], ids=names)
def test_finds_the_dimension_of_the_outputs(case: Case, generator):
    ys = low_rank(300, 8, generator)
    curve = perfect_h(
        kernels.Linear(), ys[:250], ys[250:], case.made, range(2, 20, 2), generator=generator, replicates=2
    )
    assert curve.values.shape == (2, 9)
    assert choose_size(curve) in (8, 10)


def test_value_is_the_mean_residual(generator):
    ys, val, kernel = vectors(60), vectors(25), kernels.Gaussian(0.2)
    curve = perfect_h(kernel, ys, val, sketches.SubSample(1), [3, 9], generator=torch.Generator().manual_seed(4))
    sketch = sketches.SubSample(9).draw(60, torch.Generator().manual_seed(4))
    for m, value in zip(curve.sizes, curve.mean(), strict=True):
        basis = sketch_basis(kernel, ys, sketches.Sketch(sketch.indices[:m]))
        assert value.item() == pytest.approx(basis.residual(val).mean().item())


def test_any_metric_after_decoding(generator):
    """With the validation outputs among the candidates and the whole space spanned, every one is found."""
    ys = torch.bernoulli(torch.full((200, 6), 0.5), generator=generator)
    curve = perfect_h(
        kernels.Tanimoto(), ys, ys[:50], sketches.SubSample(1), [2, 20, 150], metric=metrics.f1, generator=generator
    )
    assert curve.larger_is_better
    assert curve.values[0, -1] == 1.0 > curve.values[0, 0]


def test_own_candidates(generator):
    ys, only = vectors(50), vectors(3)
    curve = perfect_h(
        kernels.Gaussian(0.2), ys, ys[:5], sketches.SubSample(1), [10], generator=generator, candidates=only,
        metric=lambda predicted, true: float(all((row == only).all(1).any() for row in predicted)),
    )  # fmt: skip
    assert curve.values.item() == 1.0


@pytest.mark.parametrize("larger_is_better", [True, False])
def test_smallest_size_within_the_tolerance(larger_is_better):
    values = torch.tensor([[5.0, 2.0, 1.05, 1.0], [5.0, 2.0, 1.03, 1.0]])
    curve = SizeCurve((1, 2, 3, 4), -values if larger_is_better else values, larger_is_better)
    assert choose_size(curve, tolerance=0.02) == 3
    assert choose_size(curve, tolerance=0.0) == 4
    assert choose_size(curve, tolerance=0.3) == 2


def test_flat_curve_takes_the_smallest():
    assert choose_size(SizeCurve((7, 9), torch.ones(1, 2), False)) == 7


def test_leverage_scores_sum_to_the_effective_dimension(generator):
    ys = low_rank(200, 5, generator)
    scores = leverage_scores(kernels.Linear(), ys, regularization=1e-3, pilot=40, generator=generator)
    assert scores.shape == (200,)
    assert scores.sum().item() == pytest.approx(5, abs=0.1)


def test_plot(generator):
    curve = SizeCurve((10, 20, 40), torch.tensor([[3.0, 1.1, 1.0], [3.2, 1.0, 0.9]]), False)
    axes = plot_sizes(curve, chosen=20, label="MSE")
    assert axes.get_ylabel() == "Perfect h: MSE"
    assert axes.lines[0].get_xdata().tolist() == [10, 20, 40]
    assert axes.lines[1].get_xdata() == [20, 20]


@pytest.mark.parametrize(
    ("validation", "sketch", "sizes", "message"),
    [
        (vectors(5), sketches.SubSample(1), [], "at least one sketch size"),
        (vectors(5), sketches.SubSample(1), [9], "sizes 1 to 5. Got 9"),
        (vectors(5), sketches.Full(), [2], "no size to choose"),
        ([], sketches.SubSample(1), [2], "validation is empty"),
    ],
)
def test_refuses(validation, sketch, sizes, message, generator):
    with pytest.raises(InputError, match=message):
        perfect_h(kernels.Linear(), vectors(5), validation, sketch, sizes, generator=generator)


def test_refuses_tolerance():
    with pytest.raises(InputError, match="tolerance must be in"):
        choose_size(SizeCurve((1,), torch.ones(1, 1), False), tolerance=1.0)


def test_sizes_may_be_numpy_integers(generator):
    sizes = np.arange(2, 11, 4)
    curve = perfect_h(kernels.Gaussian(0.2), vectors(30), vectors(9), sketches.SubSample(1), sizes, generator=generator)
    assert choose_size(curve, tolerance=0.0) == 10


def test_refuses_values_that_are_not_finite():
    values = torch.tensor([[0.1, 0.9, torch.nan], [0.1, 0.9, 0.9]])
    with pytest.raises(InputError, match="Got nan at size 40"):
        choose_size(SizeCurve((10, 20, 40), values, larger_is_better=True))


def test_refuses_seeds_in_place_of_generators():
    with pytest.raises(InputError, match=r"must be a torch.Generator.* Got 0"):
        perfect_h(kernels.Linear(), vectors(5), vectors(5), sketches.SubSample(1), [2], generator=0)
    with pytest.raises(InputError, match=r"must be a torch.Generator.* Got 0"):
        leverage_scores(kernels.Linear(), vectors(5), generator=0)


def test_refuses_parts_of_a_pilot(generator):
    with pytest.raises(InputError, match="an integer between 1 and n=5. Got 2.5"):
        leverage_scores(kernels.Linear(), vectors(5), generator=generator, pilot=2.5)
    assert leverage_scores(kernels.Linear(), vectors(5), generator=generator, pilot=np.int64(2)).shape == (5,)
