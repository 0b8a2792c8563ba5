"""The identities of the paper, on every kernel and every sketch."""

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.decomposition import KernelPCA
from torch import Tensor

from dsokr import kernels, sketches
from dsokr.basis import SketchedBasis, sketch_basis, sketch_span
from dsokr.errors import InputError, KernelError
from dsokr.kernels import Kernel
from dsokr.outputs import take
from dsokr.rules import RULES
from implementations import KERNELS, SKETCHED, SKETCHES, Case, vectors

PAIRS = [pytest.param(k, s, id=f"{k.name} / {s.name}") for k, s in product(KERNELS, SKETCHES)]


def draw(kernel: Kernel, ys, case: Case) -> sketches.Sketch:
    gram = lambda a, b: kernel(take(ys, a), take(ys, b))  # noqa: E731
    return case.made.draw(SKETCHED, torch.Generator().manual_seed(3), gram)


@pytest.mark.parametrize(("k", "s"), PAIRS)
def test_identities(k: Case, s: Case, generator):
    ys = k.outputs(SKETCHED)
    sketch = draw(k.made, ys, s)
    basis, K = sketch_basis(k.made, ys, sketch), k.made(ys, ys)
    check_projection(k.made, ys, K, sketch, basis)
    check_distance(ys, K, sketch, basis, generator)


def check_projection(kernel: Kernel, ys, K: Tensor, sketch: sketches.Sketch, basis: SketchedBasis) -> None:
    """⟨ẽ_i, ẽ_j⟩ = δ_ij, and ⟨ψ̃(y), ψ̃(y')⟩ is the kernel of the projections onto the span of R's rows."""
    R = sketch.dense(SKETCHED)
    functions = basis.projection @ R[:, sketch.indices] if basis.weights is None else basis.projection @ basis.weights
    G = functions @ kernel(basis.anchors, basis.anchors) @ functions.T
    assert (G - torch.eye(basis.dim)).abs().max() < 1e-8
    z = basis.embed(ys)
    projected = K @ R.T @ torch.linalg.pinv(R @ K @ R.T, rtol=1e-10, hermitian=True) @ R @ K
    torch.testing.assert_close(z @ z.T, projected, rtol=1e-7, atol=1e-8 * K.abs().max().item())
    torch.testing.assert_close(basis.residual(ys), (K - projected).diagonal().clamp(min=0), rtol=1e-7, atol=1e-7)


def check_distance(ys, K: Tensor, sketch: sketches.Sketch, basis: SketchedBasis, generator: torch.Generator) -> None:
    """Proposition 2: ‖h(x) − ψ(y)‖² = ‖g(x) − ψ̃(y)‖² + residual(y), with h expanded in kernel functions by hand."""
    z = torch.randn(SKETCHED, basis.dim, generator=generator, dtype=torch.float64)
    alpha = z @ basis.projection @ sketch.dense(SKETCHED)  # h(x_i) = Σ_j alpha_ij ψ(y_j)
    by_hand = ((alpha @ K) * alpha).sum(1) - 2 * (alpha @ K).diagonal() + K.diagonal()
    torch.testing.assert_close(basis.squared_distance(z, ys), by_hand, rtol=1e-6, atol=1e-6)
    split = (z - basis.embed(ys)).square().sum(1) + basis.residual(ys)
    torch.testing.assert_close(split, by_hand, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("k", KERNELS, ids=lambda k: k.name)
def test_everything_as_anchors_reproduces_the_kernel(k: Case, generator):
    ys = k.outputs(SKETCHED)
    basis = sketch_basis(k.made, ys, sketches.Full(), generator=generator)
    z, K = basis.embed(ys), k.made(ys, ys)
    torch.testing.assert_close(z @ z.T, K, rtol=1e-8, atol=1e-8 * K.abs().max().item())


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scores_do_not_depend_on_the_scale_of_the_sketch(scale, generator):
    ys, kernel = vectors(SKETCHED), kernels.Gaussian(0.2)
    sketch = sketches.Gaussian(10).draw(SKETCHED, generator)
    scaled = sketches.Sketch(sketch.indices, sketch.weights * scale)
    a, b = (sketch_basis(kernel, ys, s) for s in (sketch, scaled))
    assert a.dim == b.dim
    for rule in RULES:
        torch.testing.assert_close(a.score(a.embed(ys), ys, rule), b.score(b.embed(ys), ys, rule))


def test_subsample_is_nystrom(generator):
    ys, kernel = vectors(SKETCHED), kernels.Gaussian(0.2)
    sketch = sketches.SubSample(10).draw(SKETCHED, generator)
    z = sketch_basis(kernel, ys, sketch).embed(ys)
    landmarks = ys[sketch.indices]
    K_nm, K_mm = kernel(ys, landmarks), kernel(landmarks, landmarks)
    torch.testing.assert_close(z @ z.T, K_nm @ torch.linalg.solve(K_mm, K_nm.T))


def test_rank_is_relative(generator):
    """Outputs on a line have a linear kernel of rank one, however small their numbers are."""
    ys = torch.linspace(1, 2, 30, dtype=torch.float64)[:, None] * torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    for scale in (1e-9, 1.0, 1e9):
        assert sketch_basis(kernels.Linear(), scale * ys, sketches.SubSample(9), generator=generator).dim == 1


def test_repeated_outputs_do_no_harm(generator):
    ys = vectors(10).repeat(4, 1)
    basis = sketch_basis(kernels.Gaussian(0.2), ys, sketches.Full(), generator=generator)
    assert basis.dim == 10
    assert basis.residual(ys).max() < 1e-9


@pytest.mark.parametrize("s", SKETCHES, ids=lambda s: s.name)
def test_smaller_sketches_are_first_rows_of_larger_ones(s: Case):
    ys, kernel = vectors(SKETCHED), kernels.Gaussian(0.2)
    sketch = draw(kernel, ys, s)
    span = sketch_span(kernel, ys, sketch)
    R = sketch.dense(SKETCHED)[:5]
    columns = R.any(dim=0).nonzero()[:, 0]
    direct = sketch_basis(kernel, ys, sketches.Sketch(columns, R[:, columns]))
    z, expected = span.basis(5).embed(ys), direct.embed(ys)
    torch.testing.assert_close(z @ z.T, expected @ expected.T)


def test_blocks_change_nothing(monkeypatch, generator):
    ys, kernel = vectors(SKETCHED), kernels.Gaussian(0.2)
    sketch = sketches.Gaussian(7).draw(SKETCHED, generator)
    expected = sketch_basis(kernel, ys, sketch).embed(ys)
    monkeypatch.setattr("dsokr.basis.BLOCK", 6)
    monkeypatch.setattr("dsokr.kernels.base.ANCHOR_BLOCK", 5)
    torch.testing.assert_close(sketch_basis(kernel, ys, sketch).embed(ys).abs(), expected.abs())


def test_rules(generator):
    """The three scores by their definitions, on a kernel that is not normalised."""
    ys = vectors(SKETCHED)
    kernel = kernels.Polynomial(2, 0.5)
    basis = sketch_basis(kernel, ys, sketches.SubSample(8), generator=generator)
    z = torch.randn(6, basis.dim, generator=generator, dtype=torch.float64)
    psi = basis.embed(ys)
    inner = z @ psi.T
    torch.testing.assert_close(basis.score(z, ys, "kernel"), 2 * inner - kernel.diag(ys))
    torch.testing.assert_close(basis.score(z, ys, "projected"), -torch.cdist(z, psi).square())
    torch.testing.assert_close(basis.score(z, ys, "cosine"), inner / psi.norm(dim=1))
    whole = torch.stack([basis.squared_distance(z, ys[j].expand(6, -1)) for j in range(SKETCHED)], dim=1)
    torch.testing.assert_close(basis.score(z, ys, "kernel"), z.square().sum(1, keepdim=True) - whole)


def test_rotation_is_kernel_pca(generator):
    """With Full, the rotated coordinates are scikit-learn's KernelPCA. It centres: it gets centred features."""
    K = kernels.Gaussian(0.2)(vectors(30), vectors(30))
    centring = torch.eye(30, dtype=torch.float64) - 1 / 30
    values, vectors_ = torch.linalg.eigh(centring @ K @ centring)
    features = vectors_ * values.clamp(min=0).sqrt()
    peer = torch.from_numpy(KernelPCA(5, kernel="precomputed", eigen_solver="dense").fit_transform(K.numpy()))
    basis = sketch_basis(kernels.Linear(), features, sketches.Full(), generator=generator)
    ours = basis.rotated(features, dim=5).embed(features)
    torch.testing.assert_close(ours.abs(), peer.abs(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(ours @ ours.T, peer @ peer.T, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("s", SKETCHES, ids=lambda s: s.name)
def test_rotation_keeps_the_span_and_sorts_its_variance(s: Case):
    ys, kernel = vectors(SKETCHED), kernels.Gaussian(0.2)
    basis = sketch_basis(kernel, ys, draw(kernel, ys, s))
    rotated = basis.rotated(ys)
    z, r = basis.embed(ys), rotated.embed(ys)
    torch.testing.assert_close(z @ z.T, r @ r.T)
    covariance = r.T @ r
    variances = covariance.diagonal()
    torch.testing.assert_close(covariance, torch.diag(variances), atol=1e-9 * variances[0].item(), rtol=1e-7)
    assert (variances.diff() <= 1e-9).all()


def test_rotation_to_few_directions_is_the_best_subspace(generator):
    """No other q directions of the span keep more variance: those of a random rotation do not."""
    ys, kernel = vectors(60), kernels.Gaussian(0.2)
    basis = sketch_basis(kernel, ys, sketches.SubSample(20), generator=generator)
    best = basis.rotated(ys, dim=4).embed(ys).square().sum()
    for _ in range(50):
        Q = torch.linalg.qr(torch.randn(basis.dim, 4, generator=generator, dtype=torch.float64))[0]
        assert (basis.embed(ys) @ Q).square().sum() < best


def test_devices(device, generator):
    ys, kernel = vectors(SKETCHED), kernels.Gaussian(0.2)
    sketch = sketches.Gaussian(9).draw(SKETCHED, generator)
    here, there = sketch_basis(kernel, ys, sketch), sketch_basis(kernel, ys, sketch, device=device)
    assert there.embed(ys).device.type == device
    z, w = here.embed(ys), there.embed(ys).cpu()
    torch.testing.assert_close(z @ z.T, w @ w.T, rtol=1e-9, atol=1e-9)
    moved = here.to(device)
    torch.testing.assert_close(moved.embed(ys.to(device)).cpu(), z, rtol=1e-9, atol=1e-9)


class Indefinite(kernels.Linear):
    def __call__(self, a, b):
        return -torch.cdist(torch.as_tensor(a), torch.as_tensor(b))

    def against(self, anchors, weights=None):
        return Kernel.against(self, anchors, weights)


@pytest.mark.parametrize(
    ("kernel", "ys", "sketch", "error", "message"),
    [
        (
            Indefinite(),
            vectors(20),
            sketches.SubSample(9),
            KernelError,
            r"not positive semi-definite: the smallest eigenvalue.* is -\d",
        ),
        (kernels.Linear(), torch.zeros(5, 2), sketches.SubSample(2), KernelError, "no positive eigenvalue"),
        (kernels.Linear(), torch.zeros(0, 2), sketches.SubSample(2), InputError, "Y is empty"),
        (kernels.Linear(), [], sketches.SubSample(2), InputError, "Y is empty"),
        (kernels.Linear(), torch.tensor([[1.0], [torch.nan]]), sketches.Full(), InputError, "NaN or inf in row 1"),
        (kernels.Linear(), np.array([[1.0], [2.0], [np.inf]]), sketches.Full(), InputError, "NaN or inf in row 2"),
        (kernels.Cosine(), torch.tensor([[1.0], [0.0]]), sketches.Full(), KernelError, "at index 1"),
    ],
)
def test_refuses(kernel, ys, sketch, error, message, generator):
    with pytest.raises(error, match=message):
        sketch_basis(kernel, ys, sketch, generator=generator)


def test_refuses_to_draw_without_a_generator():
    with pytest.raises(InputError, match="SubSample is random: pass the generator"):
        sketch_basis(kernels.Linear(), vectors(9), sketches.SubSample(3))


def test_refuses_unknown_rules_and_dimensions(generator):
    ys = vectors(20)
    basis: SketchedBasis = sketch_basis(kernels.Gaussian(1.0), ys, sketches.SubSample(5), generator=generator)
    with pytest.raises(InputError, match="must be one of 'kernel', 'projected', 'cosine'. Got 'paper'"):
        basis.score(basis.embed(ys), ys, "paper")
    with pytest.raises(InputError, match="1 to 5 leading directions. Got 6"):
        basis.rotated(ys, dim=6)


def test_all_outputs_are_not_drawn():
    assert sketch_basis(kernels.Linear(), vectors(9), sketches.Full()).dim == 4


def test_refuses_a_seed_in_place_of_a_generator():
    with pytest.raises(InputError, match=r"must be a torch.Generator.* Got 3"):
        sketch_basis(kernels.Linear(), vectors(9), sketches.SubSample(3), generator=3)


@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_keeps_nothing_of_the_callers_outputs(form, generator):
    ys = form(vectors(30).numpy())
    basis = sketch_basis(kernels.Gaussian(0.2), ys, sketches.Full(), generator=generator)
    before = basis.embed(vectors(5))
    ys *= 3
    assert torch.equal(basis.embed(vectors(5)), before)


@pytest.mark.parametrize("sketch", [sketches.Full(), sketches.SubSample(30)], ids=["all", "some"])
def test_keeps_none_of_the_callers_lists(sketch, generator):
    ys = vectors(30).tolist()
    basis = sketch_basis(kernels.Gaussian(0.2), ys, sketch, generator=generator)
    for row in ys:
        row[0] = 99.0
    assert max(row[0] for row in basis.anchors) < 99


def test_undefined_outputs_are_named_by_their_place_among_all(monkeypatch, generator):
    monkeypatch.setattr("dsokr.basis.BLOCK", 7)
    ys = vectors(30)
    basis = sketch_basis(kernels.Cosine(), ys, sketches.SubSample(3), generator=generator)
    ys[23] = 0
    with pytest.raises(KernelError, match="at index 23"):
        basis.embed(ys)
    with pytest.raises(KernelError, match="at index 23"):
        sketch_basis(kernels.Cosine(), ys, sketches.SubSample(3), generator=generator)


def test_overflow_is_not_blamed_on_the_eigensolver(generator):
    with pytest.raises(KernelError, match="not finite"):
        sketch_basis(kernels.Polynomial(900), 10 * vectors(9), sketches.Full(), generator=generator)
