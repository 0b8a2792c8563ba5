import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr import DSOKR, kernels, networks, sketches
from dsokr.basis import SketchedBasis, sketch_basis
from dsokr.decoders import Box, EmbeddedOutputs, Gradient, Simplex
from dsokr.decoders.vectors import differentiate, prepare_score
from dsokr.errors import InputError
from dsokr.rules import RULES
from implementations import vectors

KERNELS = [
    kernels.Linear(),
    kernels.Cosine(),
    kernels.Gaussian(0.3),
    kernels.Laplacian(0.3),
    kernels.Polynomial(3, 0.5),
    kernels.Polynomial(2).normalized(),
    0.5 * kernels.Gaussian(0.1) + kernels.Linear() * kernels.Laplacian(0.2),
]
SKETCHES = [sketches.SubSample(12), sketches.Gaussian(12)]
CONSTRAINTS = [None, Box(-0.5, 0.4), Box((-1.0, 0.0, -0.1, 0.2), (-0.3, 0.0, 0.1, 3.0)), Simplex()]


def make_basis(kernel, ys=None, sketch=SKETCHES[0], device="cpu") -> SketchedBasis:
    ys = vectors(40) if ys is None else ys
    return sketch_basis(kernel, ys, sketch, generator=torch.Generator().manual_seed(0), device=device)


def predict(basis: SketchedBasis, n: int = 15, noise: float = 0.3) -> torch.Tensor:
    """Coordinates of vectors that are not known, with errors."""
    z = basis.embed(vectors(n))
    errors = torch.randn(z.shape, generator=torch.Generator().manual_seed(n), dtype=z.dtype).to(z)
    return z + noise * z.norm(dim=1, keepdim=True) * errors / basis.dim**0.5


def satisfies(constraint, y: torch.Tensor) -> bool:
    if constraint is None:
        return True
    if isinstance(constraint, Simplex):
        return bool((y >= 0).all()) and torch.allclose(y.sum(dim=1), torch.ones_like(y[:, 0]), rtol=0, atol=1e-12)
    low, high = (torch.tensor(bound, dtype=y.dtype, device=y.device) for bound in (constraint.low, constraint.high))
    return bool(((low <= y) & (y <= high)).all())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sketch", SKETCHES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_scores_are_those_of_the_basis_and_gradients_their_derivatives(kernel, sketch, rule):
    basis = make_basis(kernel, sketch=sketch)
    z, y = predict(basis), vectors(16)[:15]
    scores, slopes = differentiate(prepare_score(basis, z, rule), y)
    torch.testing.assert_close(scores, basis.score(z, y, rule).diagonal())
    for t in range(y.shape[1]):
        step = 1e-5 * torch.eye(y.shape[1], dtype=y.dtype)[t]
        up, down = (basis.score(z, moved, rule).diagonal() for moved in (y + step, y - step))
        torch.testing.assert_close(slopes[:, t], (up - down) / 2e-5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sketch", [*SKETCHES, sketches.Full()], ids=str)
def test_the_linear_kernel_is_solved_in_closed_form(sketch):
    """Coordinates in a basis of all d directions are those of one vector, the solution of ẽ(y) = z."""
    basis = make_basis(kernels.Linear(), sketch=sketch)
    z = torch.randn(9, basis.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    unit_coordinates = basis.embed(torch.eye(4, dtype=torch.float64))
    expected = torch.linalg.lstsq(unit_coordinates.T, z.T).solution.T
    decoded = Gradient().decode(basis, z, EmbeddedOutputs(basis, vectors(40)))
    torch.testing.assert_close(decoded.outputs, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(decoded.scores, basis.score(z, expected).diagonal())


@pytest.mark.parametrize("constraint", CONSTRAINTS[1:], ids=str)
def test_the_constrained_linear_kernel_against_many_points(constraint):
    basis, points = make_basis(kernels.Linear()), constraint.nearest(3 * vectors(20_000))
    z = predict(basis)
    decoded = Gradient(constraint=constraint).decode(basis, z, EmbeddedOutputs(basis, vectors(40)))
    best = basis.score(z, points).max(dim=1).values
    assert (decoded.scores >= best - 1e-12).all()
    assert satisfies(constraint, decoded.outputs)


def test_a_gaussian_pre_image_in_the_span_is_found():
    known = torch.rand(80, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    unseen = torch.rand(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1.6 + 0.2
    basis = make_basis(kernels.Gaussian(0.3), known, sketches.Full())
    assert basis.residual(unseen).max() < 1e-6
    decoded = Gradient().decode(basis, basis.embed(unseen), EmbeddedOutputs(basis, known))
    assert torch.cdist(unseen, known).min(dim=1).values.max() > 0.05
    torch.testing.assert_close(decoded.outputs, unseen, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kernel", [kernels.Polynomial(3), kernels.Gaussian(0.05) + kernels.Linear()], ids=str)
def test_other_pre_images_in_the_span_are_found(kernel):
    basis = make_basis(kernel, vectors(60), sketches.Full())
    unseen = 0.7 * vectors(20)
    decoded = Gradient(steps=300).decode(basis, basis.embed(unseen), EmbeddedOutputs(basis, vectors(60)))
    torch.testing.assert_close(decoded.outputs, unseen, rtol=0, atol=1e-2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_never_worse_than_the_best_known_and_within_the_constraint(kernel, constraint, rule, device):
    known = vectors(40) if constraint is None else constraint.nearest(vectors(40))
    basis = make_basis(kernel, vectors(40), device=device)
    embedded, z = EmbeddedOutputs(basis, known), predict(basis)
    decoded = Gradient(steps=20, constraint=constraint, rule=rule).decode(basis, z, embedded)
    assert (decoded.scores >= embedded.top(z, 1, rule).scores[:, 0] - 1e-9).all()
    torch.testing.assert_close(decoded.scores, basis.score(z, decoded.outputs, rule).diagonal())
    assert satisfies(constraint, decoded.outputs)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kernel", [kernels.Gaussian(2.0), kernels.Laplacian(1.0), kernels.Polynomial(3)], ids=str)
def test_never_worse_than_known_outputs_within_a_constraint_that_others_break(kernel, rule):
    known, box = vectors(40), Box(-0.8, 0.8)
    inside = known[(known.abs() <= 0.8).all(dim=1)]
    assert 3 < len(inside) < 30
    basis = make_basis(kernel, known, sketches.Full())
    z = torch.randn(200, basis.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)  # mere noise
    decoded = Gradient(steps=5, starts=1, constraint=box, rule=rule).decode(basis, z, EmbeddedOutputs(basis, known))
    best = basis.score(z, inside, rule).max(dim=1).values
    assert (decoded.scores >= best - 1e-9 * (1 + best.abs())).all()
    assert satisfies(box, decoded.outputs)


@pytest.mark.parametrize("constraint", [None, Box(-20.0, 20.0)], ids=str)
def test_a_score_without_slope_leaves_the_known_outputs(constraint):
    known = torch.tensor([[5.0], [-7.0], [9.0]], dtype=torch.float64)
    basis = make_basis(kernels.Cosine(), known, sketches.Full())
    decoded = Gradient(constraint=constraint).decode(basis, basis.embed(known), EmbeddedOutputs(basis, known))
    assert torch.equal(decoded.outputs.sign(), known.sign()) and decoded.scores.allclose(torch.ones(()).double())
    known = 10 * vectors(12)
    basis = make_basis(kernels.Cosine(), known, sketches.Full())
    z = torch.cat([basis.embed(known[:3]), torch.zeros(1, basis.dim)])
    assert Gradient(constraint=constraint).decode(basis, z, EmbeddedOutputs(basis, known)).scores[3] == -1


@pytest.mark.parametrize("gamma", [0.05, 0.5, 3.0])
def test_far_away_where_a_kernel_vanishes_scores_are_still_those_of_the_basis(gamma):
    """Angles do not see that the coordinates of distant outputs are all but zero."""
    known = 10 * vectors(12)[:, :2]
    basis = make_basis(kernels.Gaussian(gamma), known, sketches.Full())
    z = torch.randn(100, basis.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = Gradient(rule="cosine").decode(basis, z, EmbeddedOutputs(basis, known))
    torch.testing.assert_close(found.scores, basis.score(z, found.outputs, "cosine").diagonal())
    assert (found.scores >= basis.score(z, known, "cosine").max(dim=1).values - 1e-9).all()


@pytest.mark.parametrize("kernel", [kernels.Gaussian(0.3), kernels.Cosine(), kernels.Polynomial(2)], ids=str)
def test_the_answer_is_a_maximum(kernel):
    """The gradient vanishes there, and known outputs alone do not get as far."""
    basis = make_basis(kernel)
    embedded, z = EmbeddedOutputs(basis, vectors(40)), predict(basis)
    decoded = Gradient(steps=500).decode(basis, z, embedded)
    _, slopes = differentiate(prepare_score(basis, z, "kernel"), decoded.outputs)
    assert slopes.norm(dim=1).max() < 1e-5
    assert (decoded.scores > embedded.top(z, 1, "kernel").scores[:, 0]).all()


def test_blocks_do_not_matter(monkeypatch):
    basis = make_basis(kernels.Gaussian(0.3))
    embedded, z = EmbeddedOutputs(basis, vectors(40)), predict(basis)
    together = Gradient(steps=30).decode(basis, z, embedded)
    monkeypatch.setattr("dsokr.decoders.vectors.POINTS", 6)
    apart = Gradient(steps=30).decode(basis, z, embedded)
    torch.testing.assert_close(apart.scores, together.scores, rtol=0, atol=1e-6)


def test_directions_have_no_answer_at_zero():
    """In this box the point nearest to a step is often the origin, where the cosine is undefined."""
    ys = -vectors(40).abs()
    basis = make_basis(kernels.Cosine(), ys)
    decoded = Gradient(constraint=Box(-2.0, 0.0)).decode(basis, -basis.embed(ys), EmbeddedOutputs(basis, ys))
    assert torch.isfinite(decoded.scores).all() and (decoded.outputs != 0).any(dim=1).all()


@pytest.mark.parametrize("y", [vectors(30), 10 * vectors(30), torch.zeros(2, 4), torch.tensor([[5.0, 5.0, -5.0, 5.0]])])
def test_the_nearest_point_of_the_simplex(y):
    """It satisfies the conditions of optimality: y − p is one number θ where p > 0, and at most θ elsewhere."""
    p = Simplex().nearest(y.double())
    assert satisfies(Simplex(), p)
    theta = (y - p).masked_fill(p <= 0, -torch.inf).max(dim=1, keepdim=True).values
    torch.testing.assert_close(torch.where(p > 0, y - p, theta), theta.expand_as(p), rtol=0, atol=1e-12)
    assert (y - p <= theta + 1e-12).all()


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y.reshape(-1, 2, 2).float(),
        lambda y: y[:, 0].numpy(),
        lambda y: y[:, 0].tolist(),
        lambda y: list(y.float().numpy()),
    ],
)
def test_answers_have_the_form_of_the_known_outputs(form):
    """And they are not cast to what lies between: an answer is as near to its score as the form's precision allows."""
    ys = form(vectors(40))
    basis = make_basis(kernels.Gaussian(0.3), ys)
    z = basis.embed(ys)[:5] * 0.9
    y, scores = Gradient(steps=3).decode(basis, z, EmbeddedOutputs(basis, ys))
    assert type(y) is type(ys) and type(y[0]) is type(ys[0])
    assert np.asarray(y).dtype == np.asarray(ys).dtype and np.shape(y) == (5, *np.shape(ys)[1:])
    torch.testing.assert_close(basis.score(z, y).diagonal(), scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_works_inside_inference_mode(rule):
    basis = make_basis(kernels.Laplacian(0.3))
    z = predict(basis)
    decoder, embedded = Gradient(steps=5, rule=rule), EmbeddedOutputs(basis, vectors(40))
    expected = decoder.decode(basis, z, embedded)
    with torch.inference_mode():
        assert torch.equal(decoder.decode(basis, z.clone(), embedded).outputs, expected.outputs)


@pytest.mark.parametrize("kernel", [kernels.NGram(2), kernels.Tanimoto(), kernels.Linear() + kernels.Tanimoto()])
def test_refuses_kernels(kernel):
    with pytest.raises(InputError, match=r"Gradient decodes bases of the Linear, .* Got .*\. Use Candidates"):
        Gradient().check(kernel)


@pytest.mark.parametrize(
    ("ys", "message"),
    [
        (sp.csr_array(np.eye(4)), "Got outputs as 'sparse', of type float64. Pass dense floats"),
        (np.arange(12).reshape(6, 2), "real vectors. Got outputs as 'array', of type int64"),
        (torch.eye(3, dtype=torch.int32), "Got outputs as 'tensor', of type int32"),
        ([[1, 2], [3, 4]], "Got outputs as 'rows', of type int64"),
        (["a", "b"], "Got outputs as 'list', of type object"),
    ],
)
def test_refuses_outputs_before_training(ys, message):
    model = DSOKR(kernels.Gaussian(1.0), sketches.Full(), networks.MLP(), decoder=Gradient(), device="cpu")
    with pytest.raises(InputError, match=message):
        model.fit(np.zeros((len(ys) if isinstance(ys, list) else ys.shape[0], 2)), ys)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Gradient(steps=0), "Gradient.steps must be an integer of at least 1. Got 0"),
        (lambda: Gradient(starts=0), "Gradient.starts must be an integer of at least 1"),
        (lambda: Gradient(constraint="box"), "must be a Box, or a Simplex, or None. Got 'box'"),
        (lambda: Gradient(rule="best"), "Gradient.rule must be one of 'kernel', 'projected', 'cosine'. Got 'best'"),
        (lambda: Box(1.0, 0.0), "low must be at most Box.high. Got 1.0 and 0.0"),
        (lambda: Box((0.0, 2.0), 1.0), "low must be at most Box.high"),
        (lambda: Box((0.0, 0.0), 1.0).nearest(torch.zeros(1, 3)), "one per coordinate: 3. Got 2"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_refuses_candidates_of_another_width():
    basis = make_basis(kernels.Linear())
    with pytest.raises(InputError, match="Candidates must have 4 coordinates, as the outputs of the basis. Got 1"):
        Gradient().decode(basis, predict(basis), EmbeddedOutputs(basis, vectors(5)[:, :1]))
