"""Graphs predicted as FGW barycentres: against POT, closed forms and finite differences."""

import sys

import numpy as np
import pytest
import torch

from dsokr import kernels, sketches
from studies.baselines import ILEFGW, NNBaryFGW, fgw
from studies.data.molecules import generate
from studies.data.smi2mol import Pairs, SMI2Mol
from dsokr.errors import InputError, MissingExtraError
from studies import smi2mol_baselines
from dsokr.graphs import GraphBatch, permuted
from dsokr.metrics import edit_distance
from dsokr.regressors.networks import MLP, CharTransformer
from dsokr.graphs import Graph

ot = pytest.importorskip("ot", reason="POT is not installed")

LABELS = np.array([6, 7, 8, 9])
MOLECULES = generate(60, seed=0)
SOFT = [fgw.attributed(graph, LABELS) for graph in MOLECULES]
RNG = np.random.default_rng


def plan(a, b, trade_off=0.5):
    return fgw.transport_plan(a, b, trade_off, fgw.first_plan(a, b))


def loss(a, b, T, trade_off=0.5) -> float:
    """The definition, term by term."""
    (F, C), (G, D) = a, b
    features = ((F[:, None] - G[None]) ** 2).sum(2)
    structure = (C[:, None, :, None] - D[None, :, None, :]) ** 2  # i, k, j, l
    return (1 - trade_off) * (features * T).sum() + trade_off * np.einsum("ikjl,ik,jl->", structure, T, T)


def inputs(n: int, width: int = 3) -> np.ndarray:
    return RNG(0).normal(size=(n, width))


def barycenter(graphs, weights, iterations=5) -> Graph:
    return fgw.barycenter([fgw.attributed(g, LABELS) for g in graphs], np.array(weights), LABELS, 0.5, iterations)


def same(predicted, graphs) -> list[bool]:
    return (edit_distance(predicted, graphs, edge_labels=False) == 0).tolist()


def test_matrices_and_back():
    again = [fgw.discretized(soft, LABELS) for soft in SOFT]
    assert [g.labels for g in again] == [g.labels for g in MOLECULES]
    assert [[e[:2] for e in g.edges] for g in again] == [[e[:2] for e in g.edges] for g in MOLECULES]
    assert {e[2] for g in again for e in g.edges} == {1}


def test_plans_have_the_masses_and_do_no_worse_than_pots_own_start():
    ours, pots = [], []
    for a, b in zip(SOFT[:30], SOFT[30:], strict=True):
        T = plan(a, b)
        np.testing.assert_allclose(T.sum(1), 1 / len(a.features))
        np.testing.assert_allclose(T.sum(0), 1 / len(b.features))
        ours.append(loss(a, b, T))
        cost = ot.dist(a.features, b.features)
        pots.append(ot.gromov.fused_gromov_wasserstein2(cost, a.structure, b.structure, alpha=0.5))
    assert np.mean(ours) <= np.mean(pots)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (9, 2)])
def test_staircase_is_a_plan_in_order(n, m):
    T = fgw.staircase(n, m)
    np.testing.assert_allclose(T.sum(1), 1 / n)
    np.testing.assert_allclose(T.sum(0), 1 / m)
    assert np.count_nonzero(T) <= n + m - 1
    if n == m:
        np.testing.assert_allclose(T, np.eye(n) / n, atol=1e-15)


def objective(center, graphs, plans, weights) -> float:
    return sum(w * loss(center, g, T) for w, g, T in zip(weights, graphs, plans, strict=True))


def test_barycenter_does_no_worse_than_pots():
    """From the same start, the heaviest of four molecules of nine atoms, over five sets of them."""
    nine, weights = [soft for soft in SOFT if len(soft.features) == 9], np.array([0.4, 0.3, 0.2, 0.1])
    ours, pots = [], []
    for graphs in (nine[i : i + 4] for i in range(0, 20, 4)):
        ours.append(objective(*_with_plans(graphs, weights), weights))
        features, structures = ([graph[part] for graph in graphs] for part in (0, 1))
        start = {"init_X": features[0], "init_C": structures[0], "max_iter": 8}
        F, C, log = ot.gromov.fgw_barycenters(9, features, structures, lambdas=weights, alpha=0.5, log=True, **start)
        pots.append(objective((F, C), graphs, log["T"], weights))
    assert np.mean(ours) <= np.mean(pots)


def _with_plans(graphs, weights):
    center, plans = fgw.barycenter_plans(graphs, weights, 9, 0.5, iterations=8)
    return center, graphs, plans


def test_given_plans_the_barycenter_is_the_minimum():
    graphs, weights = SOFT[:4], np.array([0.4, 0.3, 0.2, 0.1])
    center, plans = fgw.barycenter_plans(graphs, weights, 8, 0.5, iterations=2)
    least = objective(center, graphs, plans, weights)
    for seed in range(5):
        moved = [part + 1e-3 * RNG(seed).normal(size=part.shape) for part in center]
        assert objective(moved, graphs, plans, weights) > least


def test_barycenter_goes_down():
    graphs, weights = SOFT[:5], np.full(5, 0.2)
    ends = []
    for iterations in (1, 2, 4, 8):
        center, plans = fgw.barycenter_plans(graphs, weights, 9, 0.5, iterations)
        ends.append(objective(center, graphs, plans, weights))
    assert ends == sorted(ends, reverse=True) and ends[-1] < ends[0]


def test_barycenter_of_copies_is_the_graph():
    assert all(same([barycenter([g], [1.0]) for g in MOLECULES], MOLECULES))
    renumbered = [permuted(g, RNG(i).permutation(len(g.labels))) for i, g in enumerate(MOLECULES)]
    found = [barycenter([g, other, g], [0.4, 0.3, 0.3]) for g, other in zip(MOLECULES, renumbered, strict=True)]
    assert np.mean(same(found, MOLECULES)) > 0.9  # plans between renumbered copies are local minima


def test_size_is_voted_for():
    chains = [Graph((6,) * n, tuple((i, i + 1, 1) for i in range(n - 1))) for n in (3, 4, 5)]
    assert len(barycenter(chains, [0.3, 0.3, 0.4]).labels) == 5
    assert len(barycenter([*chains, chains[0]], [0.3, 0.2, 0.35, 0.15]).labels) == 3


@pytest.mark.parametrize("sketch", [sketches.Full(), sketches.Gaussian(60)], ids=["full", "gaussian"])
def test_weights_are_those_of_kernel_ridge_regression(sketch, monkeypatch):
    """As many random combinations as inputs span all of them, too."""
    monkeypatch.setattr(fgw, "BLOCK", 7)
    X, queries, kernel, regularization = inputs(60), inputs(70)[60:], kernels.Laplacian(0.5), 1e-3
    model = ILEFGW(kernel, sketch, regularization=regularization, neighbors=60, random_state=0).fit(X, MOLECULES)
    alpha = torch.linalg.solve(kernel(X, X) + 60 * regularization * torch.eye(60), kernel(X, queries)).T
    found = model.weighted_neighbors(queries)
    torch.testing.assert_close(found.weights, alpha.gather(1, found.indices), rtol=0, atol=1e-8)
    torch.testing.assert_close(found.weights, alpha.sort(dim=1, descending=True).values, rtol=0, atol=1e-8)
    few = model.set_params(neighbors=4).weighted_neighbors(queries)
    assert torch.equal(few.indices, found.indices[:, :4])


def test_nearest_neighbor_is_the_training_graph():
    X = inputs(60)
    model = ILEFGW(kernels.Gaussian(5.0), sketches.Full(), neighbors=1, random_state=0).fit(X, GraphBatch.of(MOLECULES))
    assert all(same(model.predict(X), MOLECULES))
    assert all(same(model.set_params(neighbors=3, regularization=1e-9).predict(X), MOLECULES))  # all the weight on one


def test_without_positive_weights_the_first_counts():
    weights = torch.tensor([[3.0, 1.0, -1.0], [-1.0, -2.0, -3.0]])
    assert fgw._normalized(weights).tolist() == [[0.75, 0.25, 0.0], [1.0, 0.0, 0.0]]


def test_gradient_agrees_with_finite_differences():
    """In the weights, the features and the structures of the templates, for fixed plans."""
    target, graphs = SOFT[7], SOFT[:4]
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64, requires_grad=True)
    center, plans = fgw.barycenter_plans(graphs, weights.detach().numpy(), len(target.features), 0.3, 3)
    T = plan(center, target, 0.3)
    matrices = [torch.from_numpy(part).clone().requires_grad_() for graph in graphs for part in graph]

    def at(w, *parts):
        return fgw.plan_loss(w, list(zip(parts[::2], parts[1::2], strict=True)), plans, target, T, 0.3)

    assert at(weights, *matrices).item() == pytest.approx(loss(center, target, T, 0.3))
    assert torch.autograd.gradcheck(at, (weights, *matrices))


def test_network_learns_which_template():
    """Every input is near one of three points, each with its molecule; the templates are those molecules."""
    which = RNG(1).integers(3, size=24)
    X = 3 * np.eye(3)[which] + 0.1 * inputs(24)
    chosen = [g for g in MOLECULES if len(g.labels) == 9][:3]
    graphs = [chosen[i] for i in which]
    model = NNBaryFGW(MLP(()), templates=6, epochs=5, batch_size=6, learning_rate=0.1, iterations=1, random_state=0)
    model.set_params(template_learning_rate=0).fit(X, graphs)
    assert len({fgw.discretized(z, model.labels_) for z in model.templates_}) == 3  # so a perfect answer exists
    assert model.history_[-1] < 0.2 * model.history_[0]
    assert np.mean(same(model.predict(X), graphs)) > 0.9
    torch.testing.assert_close(model.weights(X).sum(dim=1), torch.ones(24, dtype=torch.float64))
    again = NNBaryFGW(**model.get_params() | {"epochs": 1}).fit(X, graphs)
    assert again.history_ == model.history_[:1]


@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_one_template_is_what_is_predicted(rate):
    model = NNBaryFGW(MLP(()), templates=1, epochs=1, template_learning_rate=rate, random_state=0)
    model.fit(inputs(8), MOLECULES[:8])
    template = fgw.discretized(model.templates_[0], model.labels_)
    assert all(same(model.predict(inputs(3)), [template] * 3))
    drawn = [fgw.attributed(graph, model.labels_) for graph in MOLECULES[:8]]
    assert (rate == 0) == any(np.array_equal(model.templates_[0].structure, graph.structure) for graph in drawn)


def test_learnt_template_is_nearer_than_a_drawn_one():
    """Half of the outputs are one molecule and half another: something between them is better than either."""
    nine = [graph for graph in MOLECULES if len(graph.labels) == 9]
    model = NNBaryFGW(MLP(()), templates=1, epochs=8, batch_size=4, random_state=0)
    drawn, learnt = (
        NNBaryFGW(**model.get_params() | {"template_learning_rate": rate}).fit(inputs(12), [*nine[:2]] * 6)
        for rate in (0.0, 0.05)
    )
    assert learnt.history_[-1] < 0.8 * drawn.history_[-1]
    structure = learnt.templates_[0].structure
    np.testing.assert_allclose(structure, structure.T)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"templates": 9}, "templates must be at most the number of graphs. Got templates=9 and n=8"),
        ({"templates": 0}, "templates must be a whole number, at least 1"),
        ({"epochs": 0.5}, "epochs must be a whole number"),
        ({"trade_off": 1.5}, "trade_off must be between 0"),
        ({"learning_rate": 0}, "learning_rate must be positive"),
        ({"template_learning_rate": -1}, "template_learning_rate must be 0 or more"),
    ],
)
def test_network_refuses(options, message):
    with pytest.raises(InputError, match=message):
        NNBaryFGW(MLP(()), **({"templates": 2} | options)).fit(inputs(8), MOLECULES[:8])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regularization": 0.0}, "regularization must be a positive number"),
        ({"neighbors": 0}, "neighbors must be a whole number, at least 1"),
        ({"iterations": 0}, "iterations must be a whole number"),
        ({"trade_off": -0.1}, "trade_off must be between 0"),
    ],
)
def test_kernel_method_refuses(options, message):
    model = ILEFGW(kernels.Gaussian(1.0), sketches.Full(), **options).fit(inputs(8), MOLECULES[:8])
    with pytest.raises(InputError, match=message):
        model.predict(inputs(2))


def test_unusable_parts():
    with pytest.raises(InputError, match="ILEFGW.input_kernel must be a Kernel"):
        ILEFGW("gaussian", sketches.Full()).fit(inputs(8), MOLECULES[:8])
    with pytest.raises(InputError, match="as many rows. Got 8 inputs and 7 outputs"):
        ILEFGW(kernels.Linear(), sketches.Full()).fit(inputs(8), MOLECULES[:7])


def test_says_what_brings_pot(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtraError, match=r"dsokr\[ot\]"):
        ILEFGW(kernels.Linear(), sketches.Full()).fit(inputs(8), MOLECULES[:8])


@pytest.fixture
def split() -> SMI2Mol:
    """Molecules with a string of their elements for a SMILES, some of two letters."""
    texts = ["".join("CNOF"[label - 6] for label in graph.labels) for graph in MOLECULES]
    pairs = Pairs(texts, GraphBatch.of(MOLECULES))
    return SMI2Mol(*(pairs.rows(np.arange(*part)) for part in ((0, 40), (40, 50), (50, 60))))


def mean_ged(predicted, graphs) -> float:
    return edit_distance(predicted, graphs, edge_labels=False).mean().item()


def test_experiment_with_kernels_keeps_the_best_of_its_grid(split):
    grid = {"regularization": (1e-3, 1.0), "neighbors": (1, 3)}
    row, predicted = smi2mol_baselines.ile_fgw(split, 0, input_size=30, grid=grid, n_choose=8, device="cpu")
    assert row["metrics"]["ged"] == mean_ged(predicted, split.test.graphs)
    assert (row["n_train"], row["n_test"]) == (40, 10) and set(row["seconds"]) == {"fit", "choose", "predict"}
    alone = [
        smi2mol_baselines.ile_fgw(
            split, 0, input_size=30, grid={k: (v,) for k, v in zip(grid, values, strict=True)}, n_choose=8
        )
        for values in ((1e-3, 1), (1e-3, 3), (1.0, 1), (1.0, 3))
    ]
    assert row["metrics"]["val_ged"] == min(run.row["metrics"]["val_ged"] for run in alone)
    assert row["chosen"] in [run.row["chosen"] for run in alone]


def test_experiment_with_a_network(split):
    network = CharTransformer(layers=1, width=16, heads=2)
    row, predicted = smi2mol_baselines.nnbary_fgw(
        split, 0, network=network, grid={"templates": (1, 3)}, n_train=12, epochs=1, n_choose=4, n_test=5
    )
    assert (row["n_train"], row["n_test"], len(predicted)) == (12, 5, 5)
    assert row["chosen"]["templates"] in (1, 3)
