"""Graphs predicted as FGW barycentres: against POT, closed forms and finite differences."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from dsokr import kernels, sketches
from dsokr.errors import MissingExtraError
from dsokr.graphs import Graph, GraphBatch, permuted
from dsokr.metrics import edit_distance
from dsokr.regressors.networks import MLP, CharTransformer
from studies import smi2mol_models
from studies.baselines import fgw
from studies.baselines.fgw import ILEFGW, MatrixGraph, NNBaryFGW
from studies.data.molecules import generate
from studies.data.smi2mol import MoleculePairs, SMI2Mol

ot = pytest.importorskip("ot", reason="POT is not installed")

LABELS = np.array([6, 7, 8, 9])
MOLECULES = generate(60, seed=0)
SOFT = [MatrixGraph.of(graph, LABELS) for graph in MOLECULES]
RNG = np.random.default_rng


def plan(a, b, trade_off=0.5):
    return fgw.compute_plan(a, b, trade_off, fgw.initial_plan(a, b))


def loss(a, b, T, trade_off=0.5) -> float:
    """The definition, term by term."""
    (F, C), (G, D) = a, b
    features = ((F[:, None] - G[None]) ** 2).sum(2)
    structure = (C[:, None, :, None] - D[None, :, None, :]) ** 2  # i, k, j, l
    return (1 - trade_off) * (features * T).sum() + trade_off * np.einsum("ikjl,ik,jl->", structure, T, T)


def inputs(n: int, width: int = 3) -> np.ndarray:
    return RNG(0).normal(size=(n, width))


def barycenter(graphs, weights, iterations=5) -> Graph:
    return fgw.predict_barycenter(
        [MatrixGraph.of(g, LABELS) for g in graphs], np.array(weights), LABELS, 0.5, iterations
    )


def same(predicted, graphs) -> list[bool]:
    return (edit_distance(predicted, graphs, edge_labels=False) == 0).tolist()


def test_matrices_and_back():
    again = [soft.discretize(LABELS) for soft in SOFT]
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
def test_the_monotone_plan_keeps_the_order(n, m):
    T = fgw.monotone_plan(n, m)
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
    center, plans = fgw.compute_barycenter(graphs, weights, 9, 0.5, iterations=8)
    return center, graphs, plans


def test_given_plans_the_barycenter_is_the_minimum():
    graphs, weights = SOFT[:4], np.array([0.4, 0.3, 0.2, 0.1])
    center, plans = fgw.compute_barycenter(graphs, weights, 8, 0.5, iterations=2)
    least = objective(center, graphs, plans, weights)
    for seed in range(5):
        moved = [part + 1e-3 * RNG(seed).normal(size=part.shape) for part in center]
        assert objective(moved, graphs, plans, weights) > least


def test_barycenter_goes_down():
    graphs, weights = SOFT[:5], np.full(5, 0.2)
    ends = []
    for iterations in (1, 2, 4, 8):
        center, plans = fgw.compute_barycenter(graphs, weights, 9, 0.5, iterations)
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
    model = ILEFGW(kernel, sketch, regularization=regularization, neighbors=60).fit(X, MOLECULES)
    alpha = torch.linalg.solve(kernel(X, X) + 60 * regularization * torch.eye(60), kernel(X, queries)).T
    found = model.weigh_neighbors(queries)
    torch.testing.assert_close(found.weights, alpha.gather(1, found.indices), rtol=0, atol=1e-8)
    torch.testing.assert_close(found.weights, alpha.sort(dim=1, descending=True).values, rtol=0, atol=1e-8)
    model.neighbors = 4
    few = model.weigh_neighbors(queries)
    assert torch.equal(few.indices, found.indices[:, :4])


def test_nearest_neighbor_is_the_training_graph():
    X = inputs(60)
    model = ILEFGW(kernels.Gaussian(5.0), sketches.Full(), neighbors=1).fit(X, GraphBatch.of(MOLECULES))
    assert all(same(model.predict(X), MOLECULES))
    model.neighbors, model.regularization = 3, 1e-9
    assert all(same(model.predict(X), MOLECULES))  # all the weight on one


def test_without_positive_weights_the_first_counts():
    weights = torch.tensor([[3.0, 1.0, -1.0], [-1.0, -2.0, -3.0]])
    assert fgw.normalize_weights(weights).tolist() == [[0.75, 0.25, 0.0], [1.0, 0.0, 0.0]]


def test_gradient_agrees_with_finite_differences():
    """In the weights, the features and the structures of the templates, for fixed plans."""
    target, graphs = SOFT[7], SOFT[:4]
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64, requires_grad=True)
    center, plans = fgw.compute_barycenter(graphs, weights.detach().numpy(), len(target.features), 0.3, 3)
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
    model = NNBaryFGW(MLP(()), templates=6, epochs=5, batch_size=6, learning_rate=0.1, iterations=1, seed=4)
    model = replace(model, template_learning_rate=0).fit(X, graphs)
    assert len({z.discretize(model.labels) for z in model.learned_templates}) == 3  # so a perfect answer exists
    assert model.losses[-1] < 0.2 * model.losses[0]
    assert np.mean(same(model.predict(X), graphs)) > 0.9
    torch.testing.assert_close(model.weights(X).sum(dim=1), torch.ones(24, dtype=torch.float64))
    again = replace(model, epochs=1).fit(X, graphs)
    assert again.losses == model.losses[:1]


@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_one_template_is_what_is_predicted(rate):
    model = NNBaryFGW(MLP(()), templates=1, epochs=1, template_learning_rate=rate)
    model.fit(inputs(8), MOLECULES[:8])
    template = model.learned_templates[0].discretize(model.labels)
    assert all(same(model.predict(inputs(3)), [template] * 3))
    drawn = [MatrixGraph.of(graph, model.labels) for graph in MOLECULES[:8]]
    assert (rate == 0) == any(np.array_equal(model.learned_templates[0].structure, graph.structure) for graph in drawn)


def test_learnt_template_is_nearer_than_a_drawn_one():
    """Half of the outputs are one molecule and half another: something between them is better than either."""
    nine = [graph for graph in MOLECULES if len(graph.labels) == 9]
    model = NNBaryFGW(MLP(()), templates=1, epochs=8, batch_size=4)
    drawn, learnt = (
        replace(model, template_learning_rate=rate).fit(inputs(12), [*nine[:2]] * 6) for rate in (0.0, 0.05)
    )
    assert learnt.losses[-1] < 0.8 * drawn.losses[-1]
    structure = learnt.learned_templates[0].structure
    np.testing.assert_allclose(structure, structure.T)


def test_says_what_brings_pot(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtraError, match=r"dsokr\[studies\]"):
        plan(*SOFT[:2])


@pytest.fixture
def split() -> SMI2Mol:
    """Molecules with a string of their elements for a SMILES, some of two letters."""
    texts = ["".join("CNOF"[label - 6] for label in graph.labels) for graph in MOLECULES]
    pairs = MoleculePairs(texts, GraphBatch.of(MOLECULES))
    return SMI2Mol(*(pairs.rows(np.arange(*part)) for part in ((0, 40), (40, 50), (50, 60))))


def test_the_baseline_with_kernels_keeps_the_best_of_its_grid(split):
    grid = {"regularization": (1e-3, 1.0), "neighbors": (1, 3)}
    baseline = smi2mol_models.KernelBarycenterBaseline(input_size=30, grid=grid, n_choose=8)
    row, predicted = baseline.measure(split, 0)
    assert row["metrics"]["ged"] == smi2mol_models.mean_ged(predicted, split.test.graphs)
    assert baseline.key(split, 0)["n_train"] == 40 and set(row["seconds"]) == {"fit", "choose", "predict"}
    alone = [
        replace(baseline, grid={"regularization": (a,), "neighbors": (b,)}).measure(split, 0)[0]
        for a, b in ((1e-3, 1), (1e-3, 3), (1.0, 1), (1.0, 3))
    ]
    assert row["metrics"]["val_ged"] == min(own["metrics"]["val_ged"] for own in alone)
    assert row["chosen"] in [own["chosen"] for own in alone]


def test_the_baseline_with_a_network_chooses_too(split):
    network = CharTransformer(layers=1, width=16, heads=2)
    baseline = smi2mol_models.NetworkBarycenterBaseline(
        network=network, grid={"templates": (1, 3)}, n_train=12, epochs=1, n_choose=4, n_test=5
    )
    row, predicted = baseline.measure(split, 0)
    key = baseline.key(split, 0)
    assert (key["n_train"], key["n_test"], len(predicted)) == (12, 5, 5) and "templates" not in key
    assert row["chosen"]["templates"] in (1, 3)
