import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr import kernels, sketches
from dsokr.basis import SketchedBasis, sketch_basis
from dsokr.decoders import EmbeddedOutputs, LabelSet
from dsokr.errors import InputError
from dsokr.outputs import as_outputs, canonical

KERNELS = [
    kernels.Tanimoto(),
    kernels.Linear(),
    kernels.Gaussian(0.3),
    kernels.Laplacian(0.2),
    kernels.Cosine(),
    kernels.Polynomial(2),
    0.5 * kernels.Tanimoto() + 0.1 * kernels.Linear(),
    kernels.Polynomial(2, 1.0) * kernels.Gaussian(0.1),
    (kernels.Linear() + kernels.Tanimoto()).normalized(),
]
SKETCHES = [sketches.SubSample(40), sketches.Gaussian(40)]


def label_sets(n: int, d: int, seed: int = 0) -> np.ndarray:  # (n, d)
    """Sets of eight kinds: a few labels that go together, and now and then another one."""
    rng = np.random.default_rng(seed)
    kinds = rng.random((8, d)) < 0.35
    sets = kinds[rng.integers(8, size=n)] ^ (rng.random((n, d)) < 0.1)
    sets[:, 0] |= ~sets.any(axis=1)  # not every kernel takes the empty set
    return sets.astype(np.int64)


def predict(basis: SketchedBasis, seen: np.ndarray, n: int = 100) -> torch.Tensor:  # (n, p)
    """What a network that is not sure predicts: averages of a few embedded outputs, and noise."""
    rng = np.random.default_rng(1)
    embedded = basis.embed(seen).numpy()
    shares = rng.dirichlet(np.ones(4), size=n)[:, None]
    z = (shares @ embedded[rng.integers(len(seen), size=(n, 4))])[:, 0]
    return torch.from_numpy(z + 0.1 * embedded.std() * rng.normal(size=z.shape))


def every_set(d: int, smallest: int = 0) -> np.ndarray:
    return np.arange(smallest, 2**d)[:, None] >> np.arange(d) & 1


def make_problem(kernel: kernels.Kernel, d: int, sketch=SKETCHES[0], form=np.asarray, known: int = 30):
    """A basis, coordinates and the first few outputs as candidates."""
    seen = label_sets(200, d)
    basis = sketch_basis(kernel, form(seen), sketch, generator=torch.Generator().manual_seed(0))
    return basis, predict(basis, seen), EmbeddedOutputs(basis, form(seen[:known]))


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "local search"])
@pytest.mark.parametrize("sketch", SKETCHES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_finds_the_best_of_all_sets_where_candidates_do_not(kernel, sketch, exact, monkeypatch):
    monkeypatch.setattr("dsokr.decoders.labels.EXACT", 10 if exact else 0)
    found, listed, rows = 0, 0, 0
    for d in (1, 3, 6, 10):
        basis, z, known = make_problem(kernel, d, sketch)
        decoded = LabelSet().decode(basis, z, known)
        scores = basis.score(z, every_set(d, smallest=int(kernel == kernels.Cosine())))
        best, candidates = scores.max(dim=1).values, known.top(z, 1, "kernel").scores[:, 0]
        assert (decoded.scores <= best + 1e-9).all()
        assert (decoded.scores >= candidates).all()
        torch.testing.assert_close(decoded.scores, basis.score(z, decoded.outputs).diagonal())
        found += int((decoded.scores > best - 1e-6).sum())
        listed += int((candidates > best - 1e-6).sum())
        rows += len(z)
    assert listed < 0.9 * rows  # or else there was nothing to search for
    assert found == rows if exact else found >= 0.99 * rows


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("kernel", [kernels.Linear(), 3.0 * kernels.Linear()], ids=str)
def test_linear_is_exact_for_any_coordinates(kernel, scale, generator, monkeypatch):
    monkeypatch.setattr("dsokr.decoders.labels.EXACT", 0)
    basis, _, known = make_problem(kernel, 10)
    z = scale * torch.randn(200, basis.dim, generator=generator, dtype=torch.float64)
    expected = basis.score(z, every_set(10)).max(dim=1).values
    torch.testing.assert_close(LabelSet(starts=1).decode(basis, z, known).scores, expected)


def test_linear_is_rounding():
    basis, _, known = make_problem(kernels.Linear(), 10)
    wanted = np.random.default_rng(0).random((50, 10))  # the basis spans all ten dimensions
    decoded = LabelSet().decode(basis, basis.embed(wanted), known)
    np.testing.assert_array_equal(decoded.outputs, wanted > 0.5)


def test_the_empty_set_is_found_where_the_kernel_is_defined_for_it():
    basis, z, known = make_problem(kernels.Linear(), 6)
    assert not LabelSet().decode(basis, torch.zeros_like(z), known).outputs.any()
    basis, z, known = make_problem(kernels.Cosine(), 6)
    assert LabelSet().decode(basis, -z, known).outputs.any(axis=1).all()


def test_flips_improve_on_the_candidates_among_many_labels():
    """More labels than can be enumerated: no set at the end is improved by a flip, as the basis itself scores them."""
    basis, z, known = make_problem(kernels.Tanimoto(), 60, sketches.SubSample(150))
    decoded = LabelSet().decode(basis, z[:20], known)
    flipped = decoded.outputs[:, None] ^ np.eye(60, dtype=np.int64)
    for row in range(20):
        assert basis.score(z[row : row + 1], flipped[row]).max() <= decoded.scores[row] + 1e-6
    assert (decoded.scores > known.top(z[:20], 1, "kernel").scores[:, 0] + 1e-3).float().mean() > 0.5


def test_a_label_is_exchanged_where_no_flip_helps(monkeypatch):
    """From {0} both flips lead down, to the empty set and to {0, 1}, and {1} lies behind them."""
    monkeypatch.setattr("dsokr.decoders.labels.EXACT", 0)
    monkeypatch.setattr("dsokr.decoders.labels._simple_starts", lambda _, c: np.empty((len(c), 0, 2), np.uint8))
    sets = np.eye(2, dtype=np.int64)
    basis = sketch_basis(kernels.Gaussian(2.0), sets, sketches.Full(), generator=torch.Generator())
    z = torch.tensor([[0.9, 1.0]], dtype=torch.float64) @ basis.embed(sets)
    scores = basis.score(z, every_set(2))[0]  # of {}, {0}, {1} and {0, 1}
    assert scores[2] > scores[1] > max(scores[0], scores[3])
    assert LabelSet().decode(basis, z, EmbeddedOutputs(basis, sets[:1])).outputs.tolist() == [[0, 1]]


def test_more_starts_are_never_worse():
    basis, z, known = make_problem(kernels.Gaussian(0.3), 30)
    one, five = (LabelSet(starts).decode(basis, z, known) for starts in (1, 5))
    assert (five.scores >= one.scores - 1e-6).all()


def test_blocks_and_threads_do_not_matter(monkeypatch):
    basis, z, known = make_problem(kernels.Tanimoto(), 20)
    expected = LabelSet().decode(basis, z, known)
    monkeypatch.setattr("dsokr.decoders.labels.SHARE", 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    np.testing.assert_array_equal(LabelSet().decode(basis, z, known).outputs, expected.outputs)


@pytest.mark.parametrize("form", [lambda ys: torch.from_numpy(ys).float(), sp.csr_matrix, np.ndarray.tolist])
def test_sets_keep_their_form(form):
    """Sets that are not among the candidates come in the same form as those that are."""
    expected = LabelSet().decode(*make_problem(kernels.Tanimoto(), 8, known=5)).outputs
    decoded, wanted = (
        LabelSet().decode(*make_problem(kernels.Tanimoto(), 8, form=form, known=5)).outputs,
        form(expected),
    )
    assert type(decoded) is type(wanted) and canonical(decoded)[1] == canonical(wanted)[1]
    rows = as_outputs(decoded)
    np.testing.assert_array_equal(rows.toarray() if sp.issparse(rows) else rows, expected)


def test_single_labels_are_numbers(generator):
    seen = np.array([0, 1, 1, 0])
    basis = sketch_basis(kernels.Linear(), seen, sketches.Full(), generator=generator)
    z = basis.embed(np.array([0.2, 0.9]))
    assert LabelSet().decode(basis, z, EmbeddedOutputs(basis, seen)).outputs.tolist() == [0, 1]


def test_on_every_device(device):
    basis, z, known = make_problem(kernels.Tanimoto(), 10)
    there = basis.to(device)
    decoded = LabelSet().decode(there, z.to(device), EmbeddedOutputs(there, known.outputs)).outputs
    np.testing.assert_array_equal(decoded.cpu(), LabelSet().decode(basis, z, known).outputs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LabelSet().check(kernels.NGram(3)), r"Tanimoto, Dice, Linear, .*Got NGram\(n=3.*Use Candidates\(\)"),
        (lambda: LabelSet().check(kernels.Linear() + kernels.Kemeny()), "Got Sum.*Kemeny"),
        (lambda: LabelSet().check(kernels.Kemeny().normalized()), "Got Normalized.*Kemeny"),
        (lambda: LabelSet(starts=0), "LabelSet.starts must be an integer of at least 1. Got 0"),
        (lambda: LabelSet(starts=1.5), "Got 1.5"),
        (lambda: LabelSet().check_outputs(*canonical([[0, 1], [0, 2]])), "outputs must be 0 or 1. Got 2 at index 1"),
        (
            lambda: LabelSet().check_outputs(*canonical(sp.csr_array([[0, 1], [0, 1], [3, 1]]))),
            "outputs must be 0 or 1. Got 3 at index 2",
        ),
        (lambda: LabelSet().check_outputs(*canonical([["red", "green"], ["red"]])), "rows of zeros and ones. Got list"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_refuses_what_does_not_fit_the_basis():
    basis, z, known = make_problem(kernels.Tanimoto(), 5)
    counts = sketch_basis(kernels.Tanimoto(), 2 * known.outputs, sketches.Full(), generator=torch.Generator())
    with pytest.raises(InputError, match="anchors must be 0 or 1. Got 2 at index 0"):
        LabelSet().decode(counts, torch.zeros(1, counts.dim), EmbeddedOutputs(counts, known.outputs))
    with pytest.raises(InputError, match="vectors of one length. Got 4 and 5"):
        LabelSet().decode(basis, z, EmbeddedOutputs(basis, known.outputs[:, :4]))
