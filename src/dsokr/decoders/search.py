"""Decoding over all graphs of a domain, by local search."""

from __future__ import annotations

from collections.abc import Iterator
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

TOGETHER = 256  # rows of coefficients that are searched side by side


@dataclass(frozen=True)
class GraphSearch(Decoder):
    """max over *all* graphs y of a domain of 2⟨z, ψ̃(y)⟩ − k(y, y), by best-first search from the best known outputs.

    ``moves`` is the domain: it lists the graphs one edit away from a graph. The search starts from the ``starts`` best
    candidates; in each round, for each input, it expands the best graphs not expanded yet among the ``beam`` best seen,
    and ends when there are none or ``budget`` graphs were scored for that input. The graphs that are left, the start
    among them, are ranked by ``rule``; so the answer never scores below the best candidate by the paper's rule, and by
    another rule not below the best of the starts. Deterministic.

    The kernel must have features, k(y, y') = ⟨φ(y), φ(y')⟩: then h(y) = Σ_c w_c φ_c(y) with one weight for every
    coordinate that an anchor has, looked up per graph, so that the size of the basis plays no part in a step's cost.

    >>> GraphSearch(beam=3).moves.max_atoms
    9
    """

    moves: Moves = Molecules()
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
                "GraphSearch decodes bases of kernels on graphs with features, such as WeisfeilerLehman, and sums of "
                f"them. Got {kernel!r}. Use Candidates()."
            )

    def alternatives(self) -> tuple[Decoder, ...]:
        return tuple(replace(self, rule=rule) for rule in RULES) if self.rule == "auto" else (self,)

    def scoring_rule(self) -> Rule:
        if self.rule == "auto":
            raise InputError("GraphSearch(rule='auto') is settled by fit. Name a rule to decode without fitting.")
        return self.rule

    def known(self, training_outputs: Outputs) -> Outputs:
        return GraphBatch.of(super().known(training_outputs))

    def decode(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> Decoded:
        self.check(basis.kernel)
        rule = self.scoring_rule()
        objective = Objective.of(basis)
        z = basis.checked(z)
        found, scores = [], []
        for rows in torch.arange(len(z), device=z.device).split(TOGETHER):
            pool = self._searched(objective, z[rows], known)
            chosen, score = _best(basis, z[rows], pool, rule)
            found.append(pool.graphs[chosen])
            scores.append(score)
        graphs = GraphBatch.joined(found)
        same_form = graphs if isinstance(known.outputs, GraphBatch) else list(graphs)
        return Decoded(same_form, torch.cat(scores))

    def _searched(self, objective: Objective, z: Tensor, known: EmbeddedOutputs) -> Pool:
        """The best graphs found for every row of z."""
        weights = objective.weights(z)
        starts = known.top(z, self.starts, self.scoring_rule()).indices.cpu().numpy()
        owners = np.repeat(np.arange(len(z)), starts.shape[1])
        graphs = GraphBatch.of(take(known.outputs, starts.ravel()))
        pool = objective.scored(weights, graphs, owners).best(self.beam)
        spent = np.full(len(z), starts.shape[1])
        while len(front := pool.frontier(spent < self.budget)):
            pool.expanded[front] = True
            near, origins = self.moves.neighbors(pool.graphs[front])
            new = objective.scored(weights, near, pool.owners[front][origins])
            spent += np.bincount(new.owners, minlength=len(z))
            pool = pool.joined(new).best(self.beam)
        return pool


@dataclass(frozen=True, eq=False)
class Objective:
    """2 h(y) − k(y, y), where h(y) = Σ_c w_c φ_c(y) and w = Σ_j c_j φ(a_j) adds up the anchors."""

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

    def joined(self, other: Pool) -> Pool:
        own, others = (
            (pool.owners, pool.scores, pool.names, pool.expanded) for pool in (self, other)
        )
        parts = (np.concatenate(pair) for pair in zip(own, others, strict=True))
        return Pool(GraphBatch.joined([self.graphs, other.graphs]), *parts)

    def best(self, count: int) -> Pool:
        """The ``count`` best graphs of every input, of those with equal features only one: the first, or expanded."""
        order = np.lexsort((~self.expanded, self.names, -self.scores, self.owners))
        owners, names = self.owners[order], self.names[order]
        new = np.ones(len(order), bool)
        new[1:] = (owners[1:] != owners[:-1]) | (names[1:] != names[:-1])
        order = order[new]
        place = np.arange(len(order)) - np.searchsorted(self.owners[order], self.owners[order])
        keep = order[place < count]
        return Pool(self.graphs[keep], self.owners[keep], self.scores[keep], self.names[keep], self.expanded[keep])

    def frontier(self, may_go_on: np.ndarray) -> np.ndarray:
        """The positions to expand next: of every input that may go on, the best graph that is not expanded."""
        open_ = np.flatnonzero(~self.expanded & may_go_on[self.owners])
        first = np.unique(self.owners[open_], return_index=True)[1]
        return open_[first]


def _best(basis: SketchedBasis, z: Tensor, pool: Pool, rule: Rule) -> tuple[np.ndarray, Tensor]:
    """For every row of z the position of its best graph by the rule, and the score."""
    owners = torch.from_numpy(pool.owners).to(z.device)
    embedding, diag = basis.embed(pool.graphs), basis.diag(pool.graphs)
    scores = torch.cat(
        [embedded_scores(z[o : o + 1], embedding[at], diag[at], rule)[0] for o, at in _ranges(pool.owners)]
    )
    best = torch.full((len(z),), -torch.inf, dtype=scores.dtype, device=z.device)
    best.scatter_reduce_(0, owners, scores, "amax")
    first = np.unique(pool.owners, return_index=True)[1]
    chosen = [int(scores[at].argmax()) + at.start for _, at in _ranges(pool.owners)]
    assert len(first) == len(z)
    return np.array(chosen), best


def _ranges(owners: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Every owner and the positions of what it has; owners are in order."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    for start, stop in zip(starts, np.append(starts[1:], len(owners)), strict=True):
        yield int(owners[start]), slice(int(start), int(stop))


@compiled
def _scores(  # type: ignore[no-untyped-def] # compiled
    indptr, ids, values, columns, owners, weights
):
    """2 Σ_c w_c φ_c − Σ_c φ_c² for every row of features, and a name that equal rows share."""
    scores, names = np.zeros(len(owners)), np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        name = np.uint64(0)
        for k in range(indptr[i], indptr[i + 1]):
            if columns[k] >= 0:
                scores[i] += 2 * values[k] * weights[owners[i], columns[k]]
            scores[i] -= values[k] * values[k]
            name += mix(ids[k] + np.uint64(values[k] * 1048576.0))
        names[i] = name
    return scores, names
