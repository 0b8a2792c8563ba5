"""Decoding over all graphs of a domain, by local search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.compute import run_in_threads
from dsokr.decoders.base import Decoder, choose_best
from dsokr.decoders.moves import Molecules, Moves
from dsokr.decoders.objective import Objective, split_terms
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.errors import InputError, check_choice, check_integers
from dsokr.graphs import GraphBatch
from dsokr.kernels import FeatureKernel, Kernel
from dsokr.outputs import Outputs, take
from dsokr.rules import RULES, Rule

SMALL_MOLECULES = Molecules()
TOGETHER = 64  # rows of coordinates that a thread searches side by side


@dataclass(frozen=True)
class GraphSearch(Decoder):
    """max over *all* graphs y of a domain of 2⟨z, ψ̃(y)⟩ − k(y, y), by best-first search from the best known outputs.

    ``moves`` is the domain: it lists the graphs one edit away from a graph. The search starts from the ``starts`` best
    candidates. In each round it expands, for each input, the best graph not yet expanded among the ``beam`` best found;
    it ends when there is none, or when ``budget`` graphs were scored for that input. The best found, with the best
    candidate, are then ranked by ``rule``: the answer never scores below the best candidate. Deterministic.

    The kernel must have features, k(y, y') = ⟨φ(y), φ(y')⟩. Then h(y) = Σ_c w_c φ_c(y), with one weight for every
    coordinate that an anchor has: the cost of scoring a graph does not depend on the size of the basis.

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
        check_choice(self, "rule", ("auto", *RULES))
        check_integers(self, starts=1, beam=1, budget=1)
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
            raise InputError("GraphSearch(rule='auto') is chosen by fit. Name a rule to decode without fitting.")
        return self.rule

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        rule = self.scoring_rule()
        starts = known.top(z, self.starts, rule).indices
        found = self._search(basis, z, starts, known.outputs)
        # the search follows the paper's rule and may drop what another rule prefers: the best candidate
        first = GraphBatch.of(take(known.outputs, starts[:, 0]))
        graphs = GraphBatch.joined([first, found.graphs])
        owners = np.concatenate([np.arange(len(z)), found.owners])
        chosen, scores = choose_best(basis, z, graphs, owners, rule)
        outputs = graphs[chosen.cpu().numpy()]
        return outputs if isinstance(known.outputs, GraphBatch) else list(outputs), scores

    def _search(self, basis: SketchedBasis, z: Tensor, starts: Tensor, outputs: Outputs) -> Pool:
        """The best graphs for all rows of z, by the paper's rule."""
        assert isinstance(basis.kernel, FeatureKernel)
        terms = tuple(split_terms(basis.kernel, GraphBatch.of(basis.anchors)))
        pools: dict[int, Pool] = {}

        def work(start: int, stop: int) -> None:
            first = GraphBatch.of(take(outputs, starts[start:stop].flatten()))
            pool = self._search_block(Objective.of(terms, basis, z[start:stop]), stop - start, first)
            pools[start] = pool._replace(owners=pool.owners + start)

        run_in_threads(work, len(z), TOGETHER)
        return Pool.joined([pools[start] for start in sorted(pools)])

    def _search_block(self, objective: Objective, inputs: int, starts: GraphBatch) -> Pool:
        each = len(starts) // inputs
        pool = Pool.of(objective, starts, np.repeat(np.arange(inputs), each)).best(self.beam)
        spent = np.full(inputs, each)
        while len(front := pool.frontier(spent < self.budget)):
            pool.expanded[front] = True
            near = self.moves.neighbors(pool.graphs[front])
            found = Pool.of(objective, near.graphs, pool.owners[front][near.origins])
            spent += np.bincount(found.owners, minlength=inputs)
            pool = Pool.joined([pool, found]).best(self.beam)
        return pool


class Pool(NamedTuple):
    """Graphs found for several inputs."""

    graphs: GraphBatch
    owners: np.ndarray  # the input that each graph is for
    scores: np.ndarray
    names: np.ndarray  # (graphs, terms)
    expanded: np.ndarray

    @staticmethod
    def of(objective: Objective, graphs: GraphBatch, owners: np.ndarray) -> Pool:
        return Pool(graphs, owners, *objective.score(owners, graphs), np.zeros(len(graphs), bool))

    @staticmethod
    def joined(pools: list[Pool]) -> Pool:
        columns = zip(*(pool[1:] for pool in pools), strict=True)
        return Pool(GraphBatch.joined([pool.graphs for pool in pools]), *map(np.concatenate, columns))

    def rows(self, index: np.ndarray) -> Pool:
        return Pool(self.graphs[index], *(column[index] for column in self[1:]))

    def best(self, count: int) -> Pool:
        """The ``count`` best graphs of every input, best first, and of those with equal features only one."""
        names = self.names.T
        scores = self.scores.astype(np.float32)  # equal features have equal scores, up to the order of their sums
        order = np.lexsort((~self.expanded, *names, -scores, self.owners))
        new = np.zeros(len(order), bool)
        for column in (self.owners, *names):
            new |= np.diff(column[order], prepend=column[order[:1]] - 1) != 0
        order = order[new & (scores[order] > -np.inf)]  # for some graphs the kernel is undefined
        owners = self.owners[order]
        return self.rows(order[np.arange(len(order)) - np.searchsorted(owners, owners) < count])

    def frontier(self, active: np.ndarray) -> np.ndarray:
        """The positions to expand next: for every active input, the best graph that is not expanded."""
        waiting = np.flatnonzero(~self.expanded & active[self.owners])
        return waiting[np.unique(self.owners[waiting], return_index=True)[1]]
