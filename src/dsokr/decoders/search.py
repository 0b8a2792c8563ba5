"""Decoding over all graphs of a domain, by local search."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import RULES, Rule, SketchedBasis, check_rule, embedded_scores
from dsokr.compiled import compiled
from dsokr.decoders.base import Decoded, Decoder
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.decoders.moves import Molecules, Moves
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import FeatureKernel, Kernel
from dsokr.kernels.hashing import mix
from dsokr.kernels.postings import Postings
from dsokr.outputs import Outputs, take

SMALL_MOLECULES = Molecules()
TOGETHER = 64  # rows of coefficients that a thread searches side by side


@dataclass(frozen=True)
class GraphSearch(Decoder):
    """max over *all* graphs y of a domain of 2⟨z, ψ̃(y)⟩ − k(y, y), by best-first search from the best known outputs.

    ``moves`` is the domain: it lists the graphs one edit away from a graph. The search starts from the ``starts`` best
    candidates; in each round, for each input, it expands the best graph not yet expanded among the ``beam`` best found,
    and ends when there is none or ``budget`` graphs were scored for that input. The best found, with the best
    candidate, are then ranked by ``rule``: the answer never scores below the best candidate. Deterministic.

    The kernel must have features, k(y, y') = ⟨φ(y), φ(y')⟩. Then h(y) = Σ_c w_c φ_c(y), with one weight for every
    coordinate that an anchor has: the size of the basis plays no part in the cost of scoring a graph.

    >>> GraphSearch(beam=4, budget=500)
    GraphSearch(moves=Molecules(valences=((6, 4), (7, 3), (8, 2), (9, 1)), max_atoms=9), rule='auto', starts=8, beam=4,
                budget=500)
    """

    moves: Moves = SMALL_MOLECULES
    rule: Rule | Literal["auto"] = "auto"
    starts: int = 8
    beam: int = 8
    budget: int = 4_000

    def __post_init__(self) -> None:
        if self.rule != "auto":
            check_rule(self.rule)
        for name in ("starts", "beam", "budget"):
            if getattr(self, name) < 1:
                raise InputError(f"GraphSearch.{name} must be at least 1. Got {getattr(self, name)}.")
        if not isinstance(self.moves, Moves):
            raise InputError(f"GraphSearch.moves must have a method neighbors(graphs). Got {self.moves!r}.")

    def check(self, kernel: Kernel) -> None:
        if not isinstance(kernel, FeatureKernel):
            raise InputError(
                "GraphSearch decodes bases of kernels on graphs that have features, such as WeisfeilerLehman, and sums "
                f"of them. Got {kernel!r}. Use Candidates()."
            )

    def alternatives(self) -> tuple[Decoder, ...]:
        return tuple(replace(self, rule=rule) for rule in RULES) if self.rule == "auto" else (self,)

    def scoring_rule(self) -> Rule:
        if self.rule == "auto":
            raise InputError("GraphSearch(rule='auto') is settled by fit. Name a rule to decode without fitting.")
        return self.rule

    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        self.check(basis.kernel)
        z, rule = basis.checked(z), self.scoring_rule()
        starts = known.top(z, self.starts, rule).indices
        found = self._found(Objective.of(basis), z, starts, known.outputs)
        # the search goes by the paper's rule and may have dropped what another rule prefers: the best candidate
        first = GraphBatch.of(take(known.outputs, starts[:, 0]))
        graphs = GraphBatch.joined([first, found.graphs])
        owners = torch.from_numpy(np.concatenate([np.arange(len(z)), found.owners])).to(z.device)
        scores = _own_scores(z, owners, basis, graphs, rule)
        best, chosen = _largest_of_each(scores, owners, len(z))
        outputs = graphs[chosen.cpu().numpy()]
        return Decoded(outputs if isinstance(known.outputs, GraphBatch) else list(outputs), best)

    def _found(self, objective: Objective, z: Tensor, starts: Tensor, outputs: Outputs) -> Pool:
        """The best graphs for all rows of z, by the paper's rule."""

        def search(rows: Tensor) -> Pool:
            pool = self._searched(objective, z[rows], GraphBatch.of(take(outputs, starts[rows].flatten())))
            return replace(pool, owners=pool.owners + int(rows[0]))

        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            return Pool.joined(list(threads.map(search, torch.arange(len(z)).split(TOGETHER))))

    def _searched(self, objective: Objective, z: Tensor, starts: GraphBatch) -> Pool:
        weights, each = objective.weights(z), len(starts) // len(z)
        pool = objective.scored(weights, starts, np.repeat(np.arange(len(z)), each)).best(self.beam)
        spent = np.full(len(z), each)
        while len(front := pool.frontier(spent < self.budget)):
            pool.expanded[front] = True
            near, origins = self.moves.neighbors(pool.graphs[front])
            new = objective.scored(weights, near, pool.owners[front][origins])
            spent += np.bincount(new.owners, minlength=len(z))
            pool = Pool.joined([pool, new]).best(self.beam)
        return pool


@dataclass(frozen=True, eq=False)
class Objective:
    """2 h(y) − k(y, y), where h(y) = Σ_c w_c φ_c(y) and w = Σ_j (zᵀ Ω R)_j φ(a_j) adds up the anchors."""

    kernel: FeatureKernel
    postings: Postings
    coefficients: Tensor  # Ω R, (p, anchors)

    @staticmethod
    def of(basis: SketchedBasis) -> Objective:
        assert isinstance(basis.kernel, FeatureKernel)
        combined = basis.projection if basis.weights is None else basis.projection @ basis.weights
        return Objective(basis.kernel, Postings.of(basis.kernel.features(basis.anchors)), combined)

    def weights(self, z: Tensor) -> np.ndarray:  # (n, coordinates)
        """w for every row of z."""
        return self.postings.summed((z @ self.coefficients).cpu().numpy())

    def scored(self, weights: np.ndarray, graphs: GraphBatch, owners: np.ndarray) -> Pool:
        """Graph i with its score for row ``owners[i]``."""
        features = self.kernel.features(graphs)
        columns = self.postings.columns(features)
        scores, names = _scores(features.indptr, features.ids, features.values, columns, owners, weights)
        return Pool(graphs, owners, scores, names, np.zeros(len(graphs), bool))


@dataclass(frozen=True, eq=False)
class Pool:
    """Graphs found for several inputs: whose each is, its score, a name for its features, and if it was expanded."""

    graphs: GraphBatch
    owners: np.ndarray
    scores: np.ndarray
    names: np.ndarray  # uint64
    expanded: np.ndarray

    @staticmethod
    def joined(pools: list[Pool]) -> Pool:
        parts = zip(*((pool.owners, pool.scores, pool.names, pool.expanded) for pool in pools), strict=True)
        return Pool(GraphBatch.joined([pool.graphs for pool in pools]), *map(np.concatenate, parts))

    def best(self, count: int) -> Pool:
        """The ``count`` best graphs of every input, best first, and of those with equal features only one."""
        order = np.lexsort((~self.expanded, self.names, -self.scores, self.owners))
        owners, names = self.owners[order], self.names[order]
        new = np.ones(len(order), bool)
        new[1:] = (owners[1:] != owners[:-1]) | (names[1:] != names[:-1])
        order, owners = order[new], owners[new]
        keep = order[np.arange(len(order)) - np.searchsorted(owners, owners) < count]
        return Pool(self.graphs[keep], self.owners[keep], self.scores[keep], self.names[keep], self.expanded[keep])

    def frontier(self, may_go_on: np.ndarray) -> np.ndarray:
        """The positions to expand next: of every input that may go on, the best graph that is not expanded."""
        waiting = np.flatnonzero(~self.expanded & may_go_on[self.owners])
        return waiting[np.unique(self.owners[waiting], return_index=True)[1]]


def _own_scores(z: Tensor, owners: Tensor, basis: SketchedBasis, graphs: GraphBatch, rule: Rule) -> Tensor:  # (graphs,)
    """Every graph's score for the row that owns it."""
    embedding, diag = basis.embed(graphs), basis.diag(graphs)
    scores = torch.empty_like(diag)
    for rows in torch.argsort(owners, stable=True).split(1024):
        block = z[owners[rows].unique()]
        all_scores = embedded_scores(block, embedding[rows], diag[rows], rule)
        scores[rows] = all_scores.gather(0, (owners[rows] - owners[rows[0]])[None])[0]
    return scores


def _largest_of_each(scores: Tensor, owners: Tensor, count: int) -> tuple[Tensor, Tensor]:  # (count,), (count,)
    """The largest score of every owner and its position, the first if there are several."""
    best = torch.full((count,), -torch.inf, dtype=scores.dtype, device=scores.device)
    best.scatter_reduce_(0, owners, scores, "amax")
    at = torch.where(scores == best[owners], torch.arange(len(scores), device=scores.device), len(scores))
    first = torch.full((count,), len(scores), device=scores.device)
    return best, first.scatter_reduce_(0, owners, at, "amin")


@compiled
def _scores(  # type: ignore[no-untyped-def] # compiled
    indptr, ids, values, columns, owners, weights
):
    """2 Σ_c w_c φ_c − Σ_c φ_c² for every row of features, and a name that equal rows share."""
    scores, names = np.zeros(len(owners)), np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for k in range(indptr[i], indptr[i + 1]):
            if columns[k] >= 0:
                scores[i] += 2 * values[k] * weights[owners[i], columns[k]]
            scores[i] -= values[k] * values[k]
            names[i] += mix(ids[k] ^ mix(np.uint64(values[k] * 1048576.0)))  # rounded: norms differ in the last bit
    return scores, names
