"""Predicting graphs as fused Gromov-Wasserstein barycentres: with weights from kernels, or from a network.

A graph is a matrix of node features F (one-hot labels) and a structure matrix C (its adjacency); all its nodes have the
same mass. For two graphs and a trade-off a between features and structure

    FGW²((F, C), (G, D)) = min over plans T of Σ_ijkl ((1 − a) ‖F_i − G_k‖² + a (C_ij − D_kl)²) T_ik T_jl,

and both methods predict argmin over graphs of Σ_j α_j(x) FGW²(·, z_j), made discrete. Plans come from POT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn

from dsokr.regressors.ridge import paired, regularizations, sketched_ridge
from dsokr.basis import BLOCK, sketch_basis
from dsokr.compute import resolve_device, seeded
from dsokr.errors import InputError, MissingExtraError
from dsokr.graphs import GraphBatch, from_adjacency, to_adjacency
from dsokr.kernels import Kernel
from dsokr.regressors.networks import NetworkFactory, built, outputs_of, prepared
from dsokr.outputs import Outputs, as_outputs, blocks
from dsokr.sketches import SketchSpec
from dsokr.graphs import Graph

HOPS = 3  # how far around a node the first guess of a plan looks
SETTLED = 1e-4  # a barycentre that moves less than this in a round of plans is done
PRESENT = 0.5  # an edge is there if the barycentre's structure says so by more than half


class Attributed(NamedTuple):
    """A graph as matrices; the n nodes have mass 1/n each."""

    features: np.ndarray  # F, (n, d)
    structure: np.ndarray  # C, (n, n)


def attributed(graph: Graph, labels: np.ndarray) -> Attributed:
    """One-hot features over the given labels, and the adjacency matrix: edge labels play no part."""
    nodes, matrix = to_adjacency(graph)
    return Attributed((nodes[:, None] == labels).astype(np.float64), (matrix != 0).astype(np.float64))


def discretized(soft: Attributed, labels: np.ndarray) -> Graph:
    """The likeliest label of every node, and an edge, labelled 1, wherever the structure is above one half."""
    there = np.triu(soft.structure > PRESENT, k=1)
    return from_adjacency(labels[soft.features.argmax(axis=1)], (there | there.T).astype(np.int64))


def transport_plan(a: Attributed, b: Attributed, trade_off: float, start: np.ndarray) -> np.ndarray:  # (n, m)
    """A plan T for FGW²(a, b): the local minimum to which POT's conditional gradient descends from ``start``."""
    cost = _squared_distances(a.features, b.features)
    options = {"loss_fun": "square_loss", "symmetric": True, "alpha": trade_off, "tol_rel": 1e-5}
    solve = _pot().gromov.fused_gromov_wasserstein
    return np.asarray(solve(cost, a.structure, b.structure, start.sum(1), start.sum(0), G0=start, **options))


def first_plan(a: Attributed, b: Attributed) -> np.ndarray:  # (n, m)
    """Where to start from: the plan between what is around the nodes, [F, CF/2, C²F/4, …].

    From here the descent ends lower than from the product of the masses, and far more often finds the zero between
    renumbered copies of a molecule.
    """
    p, q = (np.full(len(graph.features), 1 / len(graph.features)) for graph in (a, b))
    return np.asarray(_pot().emd(p, q, _squared_distances(_surroundings(a), _surroundings(b))))


def _pot() -> Any:
    try:
        import ot
    except ImportError as error:
        raise MissingExtraError("POT", "ot") from error
    return ot


def _surroundings(graph: Attributed) -> np.ndarray:  # (n, (HOPS + 1) · d)
    parts = [graph.features]
    for _ in range(HOPS):
        parts.append(graph.structure @ parts[-1] / 2)
    return np.hstack(parts)


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # (n, m)
    return ((a[:, None] - b[None]) ** 2).sum(axis=2)


def staircase(n: int, m: int) -> np.ndarray:  # (n, m)
    """The plan that keeps the order of the nodes: the identity, divided by n, for as many on both sides."""
    a, b = np.arange(n + 1) / n, np.arange(m + 1) / m
    return np.clip(np.minimum(a[1:, None], b[1:]) - np.maximum(a[:-1, None], b[:-1]), 0, None)


def carried(plan: np.ndarray, graph: Attributed) -> Attributed:
    """The graph on the nodes of the plan's other side: T F / p and T C Tᵀ / p pᵀ."""
    share = plan * len(plan)
    return Attributed(share @ graph.features, share @ graph.structure @ share.T)


def barycenter_plans(
    graphs: Sequence[Attributed], weights: np.ndarray, size: int, trade_off: float, iterations: int
) -> tuple[Attributed, list[np.ndarray]]:
    """min over (F, C) with ``size`` nodes of Σ_j w_j FGW²((F, C), z_j), and its plans, by block coordinate descent.

    Given plans the minimum is the weighted mean of the carried graphs; given (F, C) each plan goes on from where it
    was. It starts from the heaviest graph, its nodes in their order.
    """
    heaviest = int(np.argmax(weights))
    in_order = staircase(size, len(graphs[heaviest].features))
    center = carried(in_order, graphs[heaviest])
    plans = [in_order if j == heaviest else first_plan(center, graph) for j, graph in enumerate(graphs)]
    for _ in range(iterations):
        plans = [transport_plan(center, graph, trade_off, plan) for graph, plan in zip(graphs, plans, strict=True)]
        before, center = center, _mean([carried(plan, g) for plan, g in zip(plans, graphs, strict=True)], weights)
        if max(np.abs(x - y).max() for x, y in zip(before, center, strict=True)) < SETTLED:
            break
    return center, plans


def _mean(graphs: Sequence[Attributed], weights: np.ndarray) -> Attributed:
    return Attributed(*(np.einsum("j,j...->...", weights, np.stack(parts)) for parts in zip(*graphs, strict=True)))


def barycenter(
    graphs: Sequence[Attributed], weights: np.ndarray, labels: np.ndarray, trade_off: float, iterations: int
) -> Graph:
    """The discrete barycentre, with the number of nodes for which most of the weight votes."""
    size = int(np.bincount([len(graph.features) for graph in graphs], weights).argmax())
    return discretized(barycenter_plans(graphs, weights, size, trade_off, iterations)[0], labels)


class Neighbors(NamedTuple):
    """The training pairs with the largest weights for every input, largest first."""

    indices: Tensor  # (n, k)
    weights: Tensor  # (n, k)


class ILEFGW(BaseEstimator):
    """Implicit loss embedding with FGW: ŷ(x) = argmin over graphs y of Σ_i α_i(x) FGW²(y, y_i).

    α(x) = (K + n λ I)^{-1} k_x are the weights of kernel ridge regression on the inputs; with a sketch of the input
    kernel, of coordinates Z, they are α(x) = Z (Zᵀ Z + n λ I)^{-1} ψ̃(x). Of them the ``neighbors`` largest are kept,
    negative ones as 0, and scaled to add up to one. Edge labels are not predicted: every edge is labelled 1.

    Parameters
    ----------
    input_kernel, input_sketch : the similarity of inputs, and how its basis is drawn from the training inputs.
    regularization : λ > 0.
    neighbors : how many training graphs a barycentre is made of.
    trade_off : a in [0, 1], the share of structure in FGW².
    iterations : rounds of transport plans, at most.
    random_state : seed of the sketch.
    device : where the weights are computed; plans are computed by POT on the CPU.

    After ``fit``: ``basis_``, ``ridge_`` (Zᵀ Z), ``labels_`` of nodes and the training pairs. The regularisation, the
    neighbours, the trade-off and the iterations are first used by ``predict``, so they can be set after ``fit``.

    >>> from dsokr import kernels, sketches
    >>> graphs = {"CCO": Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1))), "CN": Graph((6, 7), ((0, 1, 1),))}
    >>> model = ILEFGW(kernels.NGram((1, 2)), sketches.Full(), neighbors=1, random_state=0)
    >>> model.fit(list(graphs), list(graphs.values())).predict(["CN"])
    [Graph(labels=(6, 7), edges=((0, 1, 1),))]
    """

    def __init__(
        self,
        input_kernel: Kernel,
        input_sketch: SketchSpec,
        *,
        regularization: float = 1e-6,
        neighbors: int = 5,
        trade_off: float = 0.5,
        iterations: int = 5,
        random_state: Any = None,
        device: str = "auto",
    ):
        self.input_kernel = input_kernel
        self.input_sketch = input_sketch
        self.regularization = regularization
        self.neighbors = neighbors
        self.trade_off = trade_off
        self.iterations = iterations
        self.random_state = random_state
        self.device = device

    def fit(self, X: Outputs, Y: GraphBatch | Sequence[Graph]) -> ILEFGW:
        """Accumulate Zᵀ Z in blocks: O(n m p) time, O(m² + m · block) memory. No plan is computed yet."""
        _pot()
        for name, kind in (("input_kernel", Kernel), ("input_sketch", SketchSpec)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"ILEFGW.{name} must be a {kind.__name__}. Got {getattr(self, name)!r}.")
        X, Y = paired("ILEFGW", X, Y)
        self.graphs_ = GraphBatch.of(Y)
        self.labels_ = np.unique(self.graphs_.labels)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator, device = Generator().manual_seed(seed), resolve_device(self.device)
        self.basis_ = sketch_basis(self.input_kernel, X, self.input_sketch, generator=generator, device=device)
        self.inputs_, self.ridge_ = X, sketched_ridge(self.basis_, X)
        return self

    def weighted_neighbors(self, X: Outputs) -> Neighbors:
        """The largest weights α_i(x), as they are, and whose they are.

        α_i(x) = f_x(x_i), where f_x = Σ_j β_j(x) k(·, a_j) combines the anchors of the sketch. It is evaluated at
        blocks of training inputs, so that the n_test × n_train weights are never held.
        """
        check_is_fitted(self, "ridge_")
        _at_least_one("ILEFGW", neighbors=self.neighbors)
        (regularization,) = regularizations("ILEFGW", [self.regularization])
        basis = self.basis_
        solved = self.ridge_.solve(basis.embed(as_outputs(X, "X")).T, regularization)
        beta = solved.T @ basis.projection
        evaluate = basis.kernel.against(basis.anchors, beta if basis.weights is None else beta @ basis.weights)
        best = Neighbors(torch.empty(len(beta), 0, dtype=torch.long), torch.empty(len(beta), 0, dtype=torch.float64))
        for where, block in blocks(self.inputs_, BLOCK):
            best = _merged(best, evaluate(block).T.to(best.weights), where.start, self.neighbors)
        return best

    def predict(self, X: Outputs) -> list[Graph]:
        """The discrete barycentre of every input's neighbours: k · iterations transport plans, about 1 ms each."""
        _check_descent("ILEFGW", self.trade_off, self.iterations)
        indices, weights = self.weighted_neighbors(X)
        return [self._barycenter(i, w) for i, w in zip(indices.numpy(), _normalized(weights).numpy(), strict=True)]

    def _barycenter(self, indices: np.ndarray, weights: np.ndarray) -> Graph:
        kept = weights > 0
        graphs = [attributed(self.graphs_[i], self.labels_) for i in indices[kept]]
        return barycenter(graphs, weights[kept], self.labels_, self.trade_off, self.iterations)


def _merged(best: Neighbors, block: Tensor, offset: int, k: int) -> Neighbors:
    """The k best of what is known and a block of weights (n, b) whose first column is number ``offset``."""
    places = torch.arange(offset, offset + block.shape[1]).expand_as(block)
    weights, indices = torch.cat([best.weights, block], dim=1), torch.cat([best.indices, places], dim=1)
    top = weights.topk(min(k, weights.shape[1]), dim=1)
    return Neighbors(indices.gather(1, top.indices), top.values)


def _normalized(weights: Tensor) -> Tensor:  # (n, k)
    """Negative weights as 0 and rows that add up to one; where none is positive, all on the first."""
    positive = weights.clamp(min=0)
    first = torch.zeros_like(weights)
    first[:, 0] = 1
    positive = torch.where(positive[:, :1] > 0, positive, first)
    return positive / positive.sum(dim=1, keepdim=True)


class NNBaryFGW(BaseEstimator):
    """A network that mixes template graphs: ŷ(x) = argmin over graphs y of Σ_j α_j(x; W) FGW²(y, z_j).

    α(x; W) is the softmax of a network's M outputs. The z_j start as M graphs drawn from the training set, and their
    features and structures are learnt along with W. Training minimises the mean of FGW²(ŷ(x_i), y_i), ŷ with as many
    nodes as y_i and not yet discrete, by Adam; gradients are those of fixed transport plans (:func:`plan_loss`). Edge
    labels are not predicted: every edge is labelled 1. An epoch computes n (M · iterations + 1) transport plans at
    most, about 1 ms each and on the CPU, so that n has to be small: take a few thousand pairs.

    Parameters
    ----------
    network : a factory from M to a torch module, e.g. ``networks.CharTransformer()``.
    templates : M.
    trade_off : a in [0, 1], the share of structure in FGW².
    iterations : rounds of transport plans in a barycentre, at most.
    epochs, batch_size, learning_rate : of Adam.
    template_learning_rate : its learning rate for the templates; 0 leaves them as they were drawn.
    random_state : seed of the templates, the weights and the batches.

    After ``fit``: ``network_``, ``templates_`` (as matrices), ``labels_`` of nodes and ``history_``, the mean loss of
    every epoch.

    >>> from dsokr import networks
    >>> graphs = [Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1))), Graph((6, 7), ((0, 1, 1),))]
    >>> model = NNBaryFGW(networks.CharTransformer(1, 16, 2), templates=2, epochs=1, random_state=0)
    >>> len(model.fit(["CCO", "CN"], graphs).predict(["CN"]))
    1
    """

    def __init__(
        self,
        network: NetworkFactory,
        *,
        templates: int = 10,
        trade_off: float = 0.5,
        iterations: int = 3,
        epochs: int = 10,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        template_learning_rate: float = 1e-2,
        random_state: Any = None,
    ):
        self.network = network
        self.templates = templates
        self.trade_off = trade_off
        self.iterations = iterations
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.template_learning_rate = template_learning_rate
        self.random_state = random_state

    def fit(self, X: Outputs, Y: GraphBatch | Sequence[Graph]) -> NNBaryFGW:
        _pot()
        X, Y = paired("NNBaryFGW", X, Y)
        batch = GraphBatch.of(Y)
        self._check(len(batch))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = Generator().manual_seed(seed)
        self.labels_ = np.unique(batch.labels)
        targets = [attributed(graph, self.labels_) for graph in batch]
        drawn = torch.randperm(len(batch), generator=generator)[: self.templates]
        templates = Templates([targets[i] for i in drawn.tolist()])
        network = built(self.network, self.templates, X, seed)
        with seeded(seed):  # dropout
            self.history_ = list(self._epochs(network, templates, prepared(network, X), targets, generator))
        self.network_, self.templates_ = network.eval(), templates.graphs()
        return self

    def weights(self, X: Outputs) -> Tensor:  # (n, M)
        """α(x; W), the share of every template."""
        check_is_fitted(self, "network_")
        return outputs_of(self.network_, prepared(self.network_, as_outputs(X, "X"))).double().softmax(dim=1)

    def predict(self, X: Outputs) -> list[Graph]:
        """The discrete barycentre for every input."""
        return [
            barycenter(self.templates_, w, self.labels_, self.trade_off, self.iterations)
            for w in self.weights(X).numpy()
        ]

    def _epochs(
        self, network: nn.Module, templates: Templates, inputs: Tensor, targets: Sequence[Attributed], order: Generator
    ) -> Iterator[float]:
        """Train the network and the templates; the mean loss of one epoch after the other."""
        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate)
        optimizer.add_param_group({"params": list(templates.parameters()), "lr": self.template_learning_rate})
        for _ in range(self.epochs):
            total = 0.0
            for batch in torch.randperm(len(targets), generator=order).split(self.batch_size):
                weights = network(inputs[batch]).double().softmax(dim=1)
                losses = [self._loss(w, templates, targets[i]) for w, i in zip(weights, batch.tolist(), strict=True)]
                optimizer.zero_grad()
                torch.stack(losses).mean().backward()
                optimizer.step()
                total += sum(loss.item() for loss in losses)
            yield total / len(targets)

    def _loss(self, weights: Tensor, templates: Templates, target: Attributed) -> Tensor:
        graphs, size = templates.graphs(), len(target.features)
        center, plans = barycenter_plans(graphs, weights.detach().numpy(), size, self.trade_off, self.iterations)
        plan = transport_plan(center, target, self.trade_off, first_plan(center, target))
        return plan_loss(weights, templates.matrices(), plans, target, plan, self.trade_off)

    def _check(self, n: int) -> None:
        _check_descent("NNBaryFGW", self.trade_off, self.iterations)
        _at_least_one("NNBaryFGW", templates=self.templates, epochs=self.epochs, batch_size=self.batch_size)
        if self.templates > n:
            raise InputError(
                f"NNBaryFGW.templates must be at most the number of graphs. Got templates={self.templates} and n={n}."
            )
        if not self.learning_rate > 0:
            raise InputError(f"NNBaryFGW.learning_rate must be positive. Got {self.learning_rate}.")
        if not self.template_learning_rate >= 0:
            raise InputError(f"NNBaryFGW.template_learning_rate must be 0 or more. Got {self.template_learning_rate}.")


class Templates(nn.Module):
    """Graphs whose features and structures are parameters. Structures stay symmetric: so are their gradients."""

    def __init__(self, graphs: Sequence[Attributed]):
        super().__init__()
        self.features = nn.ParameterList(torch.from_numpy(graph.features.copy()) for graph in graphs)
        self.structures = nn.ParameterList(torch.from_numpy(graph.structure.copy()) for graph in graphs)

    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.features, self.structures, strict=True))

    def graphs(self) -> list[Attributed]:
        """As they are now; not to be trained through."""
        return [Attributed(*(part.detach().numpy().copy() for part in graph)) for graph in self.matrices()]


def plan_loss(
    weights: Tensor,  # α, (M,)
    templates: Sequence[tuple[Tensor, Tensor]],
    plans: Sequence[np.ndarray],  # T_j, (n, m_j)
    target: Attributed,
    plan: np.ndarray,  # T, (n, m)
    trade_off: float,
) -> Tensor:
    """FGW² of a barycentre and the target at fixed plans, differentiable in the weights and the templates.

    At fixed plans T_j the barycentre is F = Σ_j α_j T_j F_j / p and C = Σ_j α_j T_j C_j T_jᵀ / p pᵀ; by the envelope
    theorem the plan T to the target may be held fixed too. For masses p and q the loss is

        (1 − a) Σ_ik ‖F_i − G_k‖² T_ik + a (pᵀ C² p + qᵀ D² q − 2 ⟨T D Tᵀ, C⟩), with C², D² entry by entry.
    """
    G, D, T = (torch.from_numpy(matrix) for matrix in (*target, plan))
    shares = [len(T) * torch.from_numpy(plan_j) for plan_j in plans]
    mixed = list(zip(weights, shares, templates, strict=True))
    F = torch.stack([w * (S @ F_j) for w, S, (F_j, _) in mixed]).sum(dim=0)
    C = torch.stack([w * (S @ C_j @ S.T) for w, S, (_, C_j) in mixed]).sum(dim=0)
    features = ((F[:, None] - G[None]).square().sum(dim=2) * T).sum()
    structure = C.square().mean() + D.square().mean() - 2 * ((T @ D @ T.T) * C).sum()
    return (1 - trade_off) * features + trade_off * structure


def _check_descent(owner: str, trade_off: float, iterations: int) -> None:
    _at_least_one(owner, iterations=iterations)
    if not (isinstance(trade_off, Real) and 0 <= float(trade_off) <= 1):
        raise InputError(f"{owner}.trade_off must be between 0, features alone, and 1, structure. Got {trade_off!r}.")


def _at_least_one(owner: str, **counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, Integral) or value < 1:
            raise InputError(f"{owner}.{name} must be a whole number, at least 1. Got {value!r}.")
