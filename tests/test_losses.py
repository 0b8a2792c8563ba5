import pytest
import torch

from dsokr import losses, sketches
from dsokr.basis import sketch_basis
from dsokr.errors import InputError
from implementations import KERNELS, LOSSES, SKETCHED, Case, names

GRID = torch.linspace(0, 9, 400, dtype=torch.float64)


@pytest.mark.parametrize("case", LOSSES, ids=names)
def test_does_not_decrease_and_is_continuous(case: Case):
    values = case.made(GRID)
    steps = values.diff()
    assert (steps >= 0).all()
    assert steps.max() < 0.2


@pytest.mark.parametrize("case", LOSSES, ids=names)
def test_gradient_is_finite_at_zero_distance(case: Case):
    z = torch.zeros(2, 3, requires_grad=True)
    case.made.mean(z, torch.zeros(2, 3), torch.zeros(2)).backward()
    assert torch.isfinite(z.grad).all()


def test_definitions():
    d = GRID.sqrt()
    torch.testing.assert_close(losses.Huber(0.7)(GRID), torch.where(d <= 0.7, d**2 / 2, 0.7 * (d - 0.35)))
    torch.testing.assert_close(losses.EpsilonInsensitive(0.4)(GRID), (d - 0.4).clamp(min=0))


@pytest.mark.parametrize("loss", LOSSES, ids=names)
@pytest.mark.parametrize("kernel", KERNELS, ids=names)
def test_acts_on_the_whole_distance(loss: Case, kernel: Case, generator):
    """The mean of c(‖h(x) − ψ(y)‖²), with the distance from kernel values: the residual is part of it."""
    ys = kernel.outputs(SKETCHED)
    sketch = sketches.SubSample(4).draw(SKETCHED, generator)
    basis = sketch_basis(kernel.made, ys, sketch)
    z = torch.randn(SKETCHED, basis.dim, generator=generator, dtype=torch.float64)
    K = kernel.made(ys, ys)
    alpha = z @ basis.projection @ sketch.dense(SKETCHED)
    d2 = ((alpha @ K) * alpha).sum(1) - 2 * (alpha @ K).diagonal() + K.diagonal()
    target, residual = basis.embed_with_residual(ys)
    torch.testing.assert_close(
        loss.made.mean(z, target, residual), loss.made(d2.clamp(min=0)).mean(), rtol=1e-6, atol=1e-6
    )


def test_residual_moves_the_minimiser_of_all_but_the_square_loss():
    """Two targets, one of which lies far outside the span: its pull weakens under Huber, not under the square."""
    targets, residual = torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 25.0])
    grid = torch.linspace(0, 1, 201)[:, None]

    def minimiser(loss: losses.Loss, residual: torch.Tensor) -> float:
        values = [loss.mean(z.expand(2, 1), targets, residual) for z in grid]
        return grid[int(torch.stack(values).argmin())].item()

    assert minimiser(losses.Squared(), residual) == pytest.approx(0.5)
    assert minimiser(losses.Huber(0.5), residual) < 0.2
    assert minimiser(losses.Huber(0.5), torch.zeros(2)) == pytest.approx(0.5)


def test_any_function_of_the_squared_distance():
    loss = losses.as_loss(torch.log1p)
    assert loss.mean(torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1)).item() == pytest.approx(
        torch.log(torch.tensor(2.0)).item()
    )


def test_objectives_need_a_mean_and_nothing_else():
    class Largest(losses.Objective):
        def mean(self, z, target, residual):
            return (z - target).abs().max()

    made = Largest()
    assert made.among(torch.zeros(2, 3)) is made
    with pytest.raises(TypeError, match="abstract method '?mean"):
        type("Empty", (losses.Objective,), {})()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.Huber(0.0), "delta must be positive"),
        (lambda: losses.EpsilonInsensitive(0.0), "epsilon must be positive"),
        (lambda: losses.as_loss("mse"), "loss must be a losses.Loss"),
        (lambda: losses.as_loss(torch.neg), "must not decrease"),
        (lambda: losses.as_loss(torch.sum), "element by element"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_ranked_takes_any_function_of_the_squared_distance():
    z, target, residual = torch.ones(2, 3), torch.eye(2, 3), torch.zeros(2)
    by_function, by_loss = (
        losses.Ranked(base).among(target).mean(z, target, residual)
        for base in (torch.log1p, losses.Custom(torch.log1p))
    )
    assert torch.equal(by_function, by_loss)
    with pytest.raises(InputError, match="loss must be a losses.Loss"):
        losses.Ranked(base="mse")


def test_only_outputs_with_close_numbers_are_rivals():
    """As if the others were not there."""
    targets = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    z, mass = targets.roll(1, 0), torch.tensor([100.0, 100.1, 250.0, 250.05, 100.05, 400.0])
    ranked = losses.Ranked(within=0.2, numbers=mass).among(targets)
    for rivals in ([0, 1, 4], [2, 3]):
        alone = losses.Ranked().among(targets[rivals]).ranking(z[rivals], targets[rivals])
        assert ranked.ranking(z[rivals], targets[rivals]) == pytest.approx(alone.item())
    assert ranked.ranking(z[[5]], targets[[5]]).item() == 0  # nothing to be compared with
    assert losses.Ranked(within=1e3, numbers=mass).among(targets).ranking(z, targets).item() == pytest.approx(
        losses.Ranked().among(targets).ranking(z, targets).item()
    )


@pytest.mark.parametrize("numbers", [None, [1.0, 2.0]])
def test_rivals_by_number_need_a_number_for_every_output(numbers):
    with pytest.raises(InputError, match="needs a number for each of the 3 outputs trained on. Got [02]."):
        losses.Ranked(within=1.0, numbers=numbers).among(torch.eye(3))
