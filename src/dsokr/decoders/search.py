"""Decoding over all graphs of a domain, by local search."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.rules import RULES, Rule, check_rule, score as embedded_scores
from dsokr.decoders._objective import Objective, Parts, terms_of
from dsokr.decoders.base import Decoded, Decoder
from dsokr.decoders.embedded import EmbeddedOutputs
from dsokr.decoders.moves import Molecules, Moves
from dsokr.errors import InputError
from dsokr.graphs import GraphBatch
from dsokr.kernels import FeatureKernel, Kernel
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

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        rule = self.scoring_rule()
        starts = known.top(z, self.starts, rule).indices
        found = self._found(basis, z, starts, known.outputs)
        # the search goes by the paper's rule and may have dropped what another rule prefers: the best candidate
        first = GraphBatch.of(take(known.outputs, starts[:, 0]))
        graphs = GraphBatch.joined([first, found.graphs])
        owners = torch.from_numpy(np.concatenate([np.arange(len(z)), found.owners])).to(z.device)
        scores = _own_scores(z, owners, basis, graphs, rule)
        best, chosen = _largest_of_each(scores, owners, len(z))
        outputs = graphs[chosen.cpu().numpy()]
        return outputs if isinstance(known.outputs, GraphBatch) else list(outputs), best

    def _found(self, basis: SketchedBasis, z: Tensor, starts: Tensor, outputs: Outputs) -> Pool:
        """The best graphs for all rows of z, by the paper's rule."""
        assert isinstance(basis.kernel, FeatureKernel)
        terms = tuple(terms_of(basis.kernel, GraphBatch.of(basis.anchors)))

        def search(rows: Tensor) -> Pool:
            first = GraphBatch.of(take(outputs, starts[rows].flatten()))
            pool = self._searched(Objective.of(terms, basis, z[rows]), len(rows), first)
            return replace(pool, owners=pool.owners + int(rows[0]))

        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            return Pool.joined(list(threads.map(search, torch.arange(len(z)).split(TOGETHER))))

    def _searched(self, objective: Objective, inputs: int, starts: GraphBatch) -> Pool:
        each = len(starts) // inputs
        owners = np.repeat(np.arange(inputs), each)
        pool = Pool.of(objective, starts, owners, objective.parts(owners, starts)).best(self.beam)
        spent = np.full(inputs, each)
        while len(front := pool.frontier(spent < self.budget)):
            pool.expanded[front] = True
            parents = pool.rows(front)
            near = self.moves.neighbors(parents.graphs)
            owners = parents.owners[near.origins]
            parts = objective.parts_near(owners, parents.graphs, parents.parts, near)
            spent += np.bincount(owners, minlength=inputs)
            pool = Pool.joined([pool, Pool.of(objective, near.graphs, owners, parts)]).best(self.beam)
        return pool


@dataclass(frozen=True, eq=False)
class Pool:
    """Graphs found for several inputs: whose each is, its score and what that is made of, and if it was expanded."""

    graphs: GraphBatch
    owners: np.ndarray
    scores: np.ndarray
    expanded: np.ndarray
    parts: tuple[Parts, ...]

    @staticmethod
    def of(objective: Objective, graphs: GraphBatch, owners: np.ndarray, parts: tuple[Parts, ...]) -> Pool:
        return Pool(graphs, owners, objective.scores(parts), np.zeros(len(graphs), bool), parts)

    @staticmethod
    def joined(pools: list[Pool]) -> Pool:
        def together(name: str) -> np.ndarray:
            return np.concatenate([getattr(pool, name) for pool in pools])

        graphs = GraphBatch.joined([pool.graphs for pool in pools])
        terms = zip(*(pool.parts for pool in pools), strict=True)
        parts = tuple(Parts(*map(np.concatenate, zip(*term, strict=True))) for term in terms)
        return Pool(graphs, together("owners"), together("scores"), together("expanded"), parts)

    def rows(self, index: np.ndarray) -> Pool:
        parts = tuple(part.rows(index) for part in self.parts)
        return Pool(self.graphs[index], self.owners[index], self.scores[index], self.expanded[index], parts)

    def best(self, count: int) -> Pool:
        """The ``count`` best graphs of every input, best first, and of those with equal features only one."""
        names = [part.names for part in self.parts]
        scores = self.scores.astype(np.float32)  # equal features have equal scores, up to how they were summed up
        order = np.lexsort((~self.expanded, *names, -scores, self.owners))
        new = np.zeros(len(order), bool)
        for column in (self.owners, *names):
            new |= np.diff(column[order], prepend=column[order[:1]] - 1) != 0
        order = order[new & (scores[order] > -np.inf)]  # for some graphs the kernel is undefined
        owners = self.owners[order]
        return self.rows(order[np.arange(len(order)) - np.searchsorted(owners, owners) < count])

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
