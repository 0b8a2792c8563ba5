"""Predicting graphs as fused Gromov-Wasserstein barycentres: with weights from kernels, or from a network.

A graph is a matrix of node features F (one-hot labels) and a structure matrix C (its adjacency); all its nodes have the
same mass. For two graphs and a trade-off a between features and structure

    FGW²((F, C), (G, D)) = min over plans T of Σ_ijkl ((1 − a) ‖F_i − G_k‖² + a (C_ij − D_kl)²) T_ik T_jl,

and both methods predict argmin over graphs of Σ_j α_j(x) FGW²(·, z_j), made discrete. Plans come from POT. Edge labels
are not predicted: every edge is labelled 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Generator, Tensor, nn

from dsokr.basis import BLOCK, sketch_basis
from dsokr.compute import resolve_device, seeded
from dsokr.errors import import_extra
from dsokr.graphs import Graph, GraphBatch, from_adjacency, to_adjacency
from dsokr.kernels import Kernel
from dsokr.outputs import as_outputs, blocks
from dsokr.regressors.networks.base import NetworkFactory, apply_network, build_network, prepare_inputs
from dsokr.regressors.ridge import SketchedRidge
from dsokr.sketches import SketchSpec

HOPS = 3  # how far around a node the first guess of a plan looks
CONVERGED = 1e-4  # a barycentre that moves less than this in a round of plans is done
PRESENT = 0.5  # an edge exists if the barycentre's structure is above this


class MatrixGraph(NamedTuple):
    """A graph as matrices; the n nodes have mass 1/n each."""

    features: np.ndarray  # F, (n, d)
    structure: np.ndarray  # C, (n, n)

    @staticmethod
    def of(graph: Graph, labels: np.ndarray) -> MatrixGraph:
        """One-hot features over the given labels, and the adjacency matrix; edge labels are dropped."""
        nodes, matrix = to_adjacency(graph)
        return MatrixGraph((nodes[:, None] == labels).astype(np.float64), (matrix != 0).astype(np.float64))

    def discretize(self, labels: np.ndarray) -> Graph:
        """The likeliest label of every node, and an edge, labelled 1, wherever the structure is above one half."""
        present = np.triu(self.structure > PRESENT, k=1)
        return from_adjacency(labels[self.features.argmax(axis=1)], (present | present.T).astype(np.int64))

    def transport(self, plan: np.ndarray) -> MatrixGraph:
        """The graph on the nodes of the plan's other side: T F / p and T C Tᵀ / p pᵀ."""
        share = plan * len(plan)
        return MatrixGraph(share @ self.features, share @ self.structure @ share.T)


def compute_plan(a: MatrixGraph, b: MatrixGraph, trade_off: float, start: np.ndarray) -> np.ndarray:  # (n, m)
    """A plan T for FGW²(a, b): the local minimum to which POT's conditional gradient descends from ``start``."""
    cost = cdist(a.features, b.features, "sqeuclidean")
    options = {"loss_fun": "square_loss", "symmetric": True, "alpha": trade_off, "tol_rel": 1e-5}
    solve = import_extra("ot", "studies").gromov.fused_gromov_wasserstein
    return np.asarray(solve(cost, a.structure, b.structure, start.sum(1), start.sum(0), G0=start, **options))


def initial_plan(a: MatrixGraph, b: MatrixGraph) -> np.ndarray:  # (n, m)
    """The optimal plan between the surroundings of the nodes, [F, CF/2, C²F/4, …].

    From here the descent ends lower than from the product of the masses, and far more often finds the zero between
    renumbered copies of a molecule.
    """
    p, q = (np.full(len(graph.features), 1 / len(graph.features)) for graph in (a, b))
    return np.asarray(import_extra("ot", "studies").emd(p, q, cdist(_surroundings(a), _surroundings(b), "sqeuclidean")))


def _surroundings(graph: MatrixGraph) -> np.ndarray:  # (n, (HOPS + 1) · d)
    parts = [graph.features]
    for _ in range(HOPS):
        parts.append(graph.structure @ parts[-1] / 2)
    return np.hstack(parts)


def monotone_plan(n: int, m: int) -> np.ndarray:  # (n, m)
    """The plan that keeps the order of the nodes: the identity, divided by n, for as many on both sides."""
    a, b = np.arange(n + 1) / n, np.arange(m + 1) / m
    return np.clip(np.minimum(a[1:, None], b[1:]) - np.maximum(a[:-1, None], b[:-1]), 0, None)


def compute_barycenter(
    graphs: Sequence[MatrixGraph], weights: np.ndarray, size: int, trade_off: float, iterations: int
) -> tuple[MatrixGraph, list[np.ndarray]]:
    """min over (F, C) with ``size`` nodes of Σ_j w_j FGW²((F, C), z_j), and its plans, by block coordinate descent.

    Given plans the minimum is the weighted mean of the transported graphs; given (F, C) each plan is improved. It
    starts from the heaviest graph, its nodes in their order.
    """
    heaviest = int(np.argmax(weights))
    in_order = monotone_plan(size, len(graphs[heaviest].features))
    center = graphs[heaviest].transport(in_order)
    plans = [in_order if j == heaviest else initial_plan(center, graph) for j, graph in enumerate(graphs)]
    for _ in range(iterations):
        plans = [compute_plan(center, graph, trade_off, plan) for graph, plan in zip(graphs, plans, strict=True)]
        before, moved = center, [graph.transport(plan) for graph, plan in zip(graphs, plans, strict=True)]
        center = MatrixGraph(*(np.tensordot(weights, np.stack(parts), 1) for parts in zip(*moved, strict=True)))
        if max(np.abs(x - y).max() for x, y in zip(before, center, strict=True)) < CONVERGED:
            break
    return center, plans


def predict_barycenter(
    graphs: Sequence[MatrixGraph], weights: np.ndarray, labels: np.ndarray, trade_off: float, iterations: int
) -> Graph:
    """The discrete barycentre, with the number of nodes for which most of the weight votes."""
    size = int(np.bincount([len(graph.features) for graph in graphs], weights).argmax())
    return compute_barycenter(graphs, weights, size, trade_off, iterations)[0].discretize(labels)


class Neighbors(NamedTuple):
    """The training pairs with the largest weights for every input, largest first."""

    indices: Tensor  # (n, k)
    weights: Tensor  # (n, k)


@dataclass
class ILEFGW:
    """Implicit loss embedding with FGW: ŷ(x) = argmin over graphs y of Σ_i α_i(x) FGW²(y, y_i).

    α(x) = (K + n λ I)^{-1} k_x are the weights of kernel ridge regression on the inputs; with a sketch of the input
    kernel, of coordinates Z, they are α(x) = Z (Zᵀ Z + n λ I)^{-1} ψ̃(x). Of them the ``neighbors`` largest are kept,
    negative ones as 0, and scaled to add up to one. λ, the neighbours, the trade-off and the iterations are used by
    ``predict`` alone, so they may be set after ``fit``.

    >>> from dsokr import kernels, sketches
    >>> graphs = {"CCO": Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1))), "CN": Graph((6, 7), ((0, 1, 1),))}
    >>> model = ILEFGW(kernels.NGram((1, 2)), sketches.Full(), neighbors=1)
    >>> model.fit(list(graphs), list(graphs.values())).predict(["CN"])
    [Graph(labels=(6, 7), edges=((0, 1, 1),))]
    """

    input_kernel: Kernel
    input_sketch: SketchSpec
    regularization: float = 1e-6
    neighbors: int = 5
    trade_off: float = 0.5
    iterations: int = 5
    seed: int = 0
    device: str = "auto"

    def fit(self, X: Any, Y: GraphBatch | Sequence[Graph]) -> ILEFGW:
        self.inputs, self.graphs = as_outputs(X, "X"), GraphBatch.of(Y)
        self.labels = np.unique(self.graphs.labels)
        generator, device = Generator().manual_seed(self.seed), resolve_device(self.device)
        self.basis = sketch_basis(self.input_kernel, self.inputs, self.input_sketch, generator=generator, device=device)
        self.ridge = SketchedRidge.of(self.basis, self.inputs)
        return self

    def weigh_neighbors(self, X: Any) -> Neighbors:
        """The largest weights α_i(x), as they are, and their indices.

        α_i(x) = f_x(x_i), where f_x = Σ_j β_j(x) k(·, a_j) combines the anchors of the sketch. It is evaluated at
        blocks of training inputs, so that the n_test × n_train weights are never held.
        """
        basis = self.basis
        beta = self.ridge.solve(basis.embed(as_outputs(X, "X")).T, self.regularization).T @ basis.projection
        evaluate = basis.kernel.against(basis.anchors, beta if basis.weights is None else beta @ basis.weights)
        best = Neighbors(torch.empty(len(beta), 0, dtype=torch.long), torch.empty(len(beta), 0, dtype=torch.float64))
        for where, block in blocks(self.inputs, BLOCK):
            weights = torch.cat([best.weights, evaluate(block).T.to(best.weights)], dim=1)
            positions = torch.arange(where.start, where.stop).expand(len(beta), -1)
            top = weights.topk(min(self.neighbors, weights.shape[1]), dim=1)
            best = Neighbors(torch.cat([best.indices, positions], dim=1).gather(1, top.indices), top.values)
        return best

    def predict(self, X: Any) -> list[Graph]:
        """The discrete barycentre of every input's neighbours: k · iterations transport plans, about 1 ms each."""
        indices, weights = self.weigh_neighbors(X)
        shares = normalize_weights(weights).numpy()
        return [self._predict_one(i, w) for i, w in zip(indices.numpy(), shares, strict=True)]

    def _predict_one(self, indices: np.ndarray, weights: np.ndarray) -> Graph:
        positive = weights > 0
        graphs = [MatrixGraph.of(self.graphs[i], self.labels) for i in indices[positive]]
        return predict_barycenter(graphs, weights[positive], self.labels, self.trade_off, self.iterations)


def normalize_weights(weights: Tensor) -> Tensor:  # (n, k)
    """Negative weights as 0 and rows that add up to one; where none is positive, all on the first."""
    positive = weights.clamp(min=0)
    positive[positive[:, 0] == 0, 0] = 1
    return positive / positive.sum(dim=1, keepdim=True)


@dataclass
class NNBaryFGW:
    """A network that mixes template graphs: ŷ(x) = argmin over graphs y of Σ_j α_j(x; W) FGW²(y, z_j).

    α(x; W) is the softmax of a network's M outputs. The M ``templates`` z_j start as graphs drawn from the training
    set, and their features and structures are learned along with W. Training minimises the mean of FGW²(ŷ(x_i), y_i),
    ŷ with as many nodes as y_i and not yet discrete, by Adam; gradients are those of fixed transport plans
    (:func:`plan_loss`). An epoch computes at most n (M · iterations + 1) transport plans, about 1 ms each and on the
    CPU, so that n has to be small: take a few thousand pairs.

    >>> from dsokr import networks
    >>> graphs = [Graph((6, 6, 8), ((0, 1, 1), (1, 2, 1))), Graph((6, 7), ((0, 1, 1),))]
    >>> model = NNBaryFGW(networks.CharTransformer(1, 16, 2), templates=2, epochs=1)
    >>> len(model.fit(["CCO", "CN"], graphs).predict(["CN"]))
    1
    """

    network: NetworkFactory
    templates: int = 10
    trade_off: float = 0.5
    iterations: int = 3
    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 1e-3
    template_learning_rate: float = 1e-2  # 0 leaves the templates as they were drawn
    seed: int = 0

    def fit(self, X: Any, Y: GraphBatch | Sequence[Graph]) -> NNBaryFGW:
        batch = GraphBatch.of(Y)
        generator = Generator().manual_seed(self.seed)
        self.labels = np.unique(batch.labels)
        targets = [MatrixGraph.of(graph, self.labels) for graph in batch]
        drawn = torch.randperm(len(batch), generator=generator)[: self.templates]
        templates = Templates([targets[i] for i in drawn.tolist()])
        self.module = build_network(self.network, self.templates, X, self.seed)
        with seeded(self.seed):  # dropout
            self.losses = list(self._train(templates, prepare_inputs(self.module, X), targets, generator))
        self.module.eval()
        self.learned_templates = templates.graphs()
        return self

    def weights(self, X: Any) -> Tensor:  # (n, M)
        """α(x; W), the share of every template."""
        return apply_network(self.module, prepare_inputs(self.module, X)).double().softmax(dim=1)

    def predict(self, X: Any) -> list[Graph]:
        """The discrete barycentre for every input."""
        return [
            predict_barycenter(self.learned_templates, w, self.labels, self.trade_off, self.iterations)
            for w in self.weights(X).numpy()
        ]

    def _train(
        self, templates: Templates, inputs: Tensor, targets: Sequence[MatrixGraph], generator: Generator
    ) -> Iterator[float]:
        """Train the network and the templates; yield the mean loss of every epoch."""
        optimizer = torch.optim.Adam(self.module.parameters(), self.learning_rate)
        optimizer.add_param_group({"params": list(templates.parameters()), "lr": self.template_learning_rate})
        for _ in range(self.epochs):
            total = 0.0
            for batch in torch.randperm(len(targets), generator=generator).split(self.batch_size):
                weights = self.module(inputs[batch]).double().softmax(dim=1)
                losses = [self._loss(w, templates, targets[i]) for w, i in zip(weights, batch.tolist(), strict=True)]
                optimizer.zero_grad()
                torch.stack(losses).mean().backward()
                optimizer.step()
                total += sum(loss.item() for loss in losses)
            yield total / len(targets)

    def _loss(self, weights: Tensor, templates: Templates, target: MatrixGraph) -> Tensor:
        graphs, size = templates.graphs(), len(target.features)
        center, plans = compute_barycenter(graphs, weights.detach().numpy(), size, self.trade_off, self.iterations)
        plan = compute_plan(center, target, self.trade_off, initial_plan(center, target))
        return plan_loss(weights, templates.matrices(), plans, target, plan, self.trade_off)


class Templates(nn.Module):
    """Graphs whose features and structures are parameters. Structures stay symmetric: so are their gradients."""

    def __init__(self, graphs: Sequence[MatrixGraph]):
        super().__init__()
        self.features = nn.ParameterList(torch.from_numpy(graph.features.copy()) for graph in graphs)
        self.structures = nn.ParameterList(torch.from_numpy(graph.structure.copy()) for graph in graphs)

    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.features, self.structures, strict=True))

    def graphs(self) -> list[MatrixGraph]:
        """Copies without gradients."""
        return [MatrixGraph(*(part.detach().numpy().copy() for part in graph)) for graph in self.matrices()]


def plan_loss(
    weights: Tensor,  # α, (M,)
    templates: Sequence[tuple[Tensor, Tensor]],
    plans: Sequence[np.ndarray],  # T_j, (n, m_j)
    target: MatrixGraph,
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
