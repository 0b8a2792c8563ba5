"""Decoding over all graphs of a domain, by local search."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import SketchedBasis
from dsokr.compute import run_in_threads
from dsokr.decoders.base import Decoder, Found, choose_best
from dsokr.decoders.crossover import Crossover
from dsokr.decoders.familiar import Familiar
from dsokr.decoders.moves import Edits, Molecules, Moves, Neighbors
from dsokr.decoders.objective import Objective
from dsokr.decoders.restricted import Restricted
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.errors import InputError, check_fields
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import FeatureKernel, Kernel
from dsokr.outputs import Form, Outputs, take
from dsokr.rules import Rule

SMALL_MOLECULES = Molecules()
TOGETHER = 64  # rows of coordinates that a thread searches side by side


@dataclass(frozen=True)
class GraphSearch(Decoder):
    """The graph of a domain that scores best by a ``rule``, by best-first search from the best known outputs.

    ``moves`` is the domain: it lists the graphs one edit away from a graph. The search starts from the ``starts`` best
    candidates. In each round it expands, for each input, the best graph not yet expanded among the ``beam`` best found;
    it ends when there is none, when one answer is asked for and its score reaches the upper bound (``Decoder.prove``),
    or when ``budget`` graphs were scored for that input. The answer never scores below the best candidate. For the k
    best, the beam is at least k; of graphs with equal features only one is returned.

    Single edits are followed by the paper's rule, whose scores are exact and cheap; ``rule`` ranks what was found. For
    large graphs, single edits are not enough. With ``pieces``, an expanded graph also exchanges its pieces (parts
    that hang on one edge) for those of as many of the nearest known outputs, and the search follows ``rule`` itself.

    Where inputs say little, the best of all graphs is like nothing that exists. With ``familiar``, a radius, answers
    are graphs whose nodes all have neighbourhoods, of so many edges around, that occur in known outputs.

    The search is deterministic unless ``seconds`` limits its time, per input and thread.

    If a ``formula`` is given, a ``mass`` (lowest and highest, of the neutral molecule with its most common isotopes) or
    molecules that it ``contains``, every answer meets them. Then the search starts from the best candidates that do,
    and from the best of all after edits until they do.

    The kernel must have features, k(y, y') = ⟨φ(y), φ(y')⟩. Then h(y) = Σ_c w_c φ_c(y), with one weight for every
    coordinate that an anchor has. By the paper's rule the cost of scoring a graph does not depend on the size of the
    basis; by the others only the best graphs of a round are embedded, see :class:`Objective`.

    >>> GraphSearch(beam=4, budget=500)
    GraphSearch(moves=Molecules(valences=((6, 4), (7, 3), (8, 2), (9, 1)), max_atoms=9), rule='auto', starts=8, beam=4,
                budget=500, pieces=0, familiar=None, seconds=None, formula=None, mass=None, contains=())
    """

    moves: Moves = SMALL_MOLECULES
    rule: Rule | Literal["auto"] = "auto"
    starts: int = 8
    beam: int = 32
    budget: int = 8_000
    pieces: int = 0
    familiar: int | None = None
    seconds: float | None = None
    formula: str | None = None  # such as C6H6O
    mass: tuple[float, ...] | None = None
    contains: str | Graph | tuple[str | Graph, ...] = ()  # SMILES or graphs

    rated = 200

    def __post_init__(self) -> None:
        check_fields(self, pieces=0, familiar=0, seconds="(0, inf)")
        if self._is_restricted() and self.familiar is not None:
            raise InputError("GraphSearch.familiar does not go together with a formula, a mass or substructures.")
        if self._is_restricted() and not isinstance(self.moves, Molecules):
            raise InputError(f"Formulas, masses and substructures need the domain Molecules. Got {self.moves!r}.")

    def _is_restricted(self) -> bool:
        return not (self.formula is None and self.mass is None and self.contains in ((), []))

    @cached_property
    def restriction(self) -> Restricted | None:
        """The part of the domain that answers come from; None if it is the whole domain."""
        if not self._is_restricted():
            return None
        parts = (self.contains,) if isinstance(self.contains, str | Graph) else tuple(self.contains)
        return Restricted(cast(Molecules, self.moves), self.formula, self.mass, parts)

    def check_outputs(self, outputs: Outputs, form: Form) -> None:
        self.restriction  # noqa: B018 # what cannot be met is refused when it is made

    def check(self, kernel: Kernel) -> None:
        if not isinstance(kernel, FeatureKernel):
            raise InputError(
                "GraphSearch decodes bases of kernels on graphs that have features, such as WeisfeilerLehman, and sums "
                f"of them. Got {kernel!r}. Use Candidates()."
            )

    def solve(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs) -> tuple[Outputs, Tensor]:
        return self.search(basis, z, known, 1)[:2]

    def search(self, basis: SketchedBasis, z: Tensor, known: EmbeddedOutputs, k: int) -> Found:
        rule, limits = self.scoring_rule(), self.restriction
        allowed, starts = known, GraphBatch.of(take(known.outputs, slice(0)))
        if limits is not None:
            meets = limits.measure(GraphBatch.of(known.outputs)) == 0
            allowed = known.select(torch.from_numpy(np.flatnonzero(meets)).to(z.device))
            starts = GraphBatch.of(take(known.outputs, known.top(z, self.starts, rule).indices.flatten()))
        nearest = allowed.top(z, max(k, self.starts, self.pieces), rule)
        best = GraphBatch.of(take(allowed.outputs, nearest.indices.flatten()))
        guide: Rule = rule if self.pieces else "kernel"
        search = self._restrict_moves(known)
        found = search._search(Objective.of(basis, guide, z), best, starts, k)
        if limits is not None and len(missing := np.setdiff1d(np.arange(len(z)), found.owners)):
            raise InputError(
                f"The search found no molecule with {limits.describe()} for row {missing[0]}. "
                "Raise GraphSearch.budget, or add such a molecule to those that are known."
            )
        return choose_best(z, allowed, nearest, found.graphs, found.owners, rule, k)

    def _restrict_moves(self, known: EmbeddedOutputs) -> GraphSearch:
        """The same search; with ``familiar``, among the graphs that look like known ones."""
        if self.familiar is None:
            return self
        domain = Familiar.of(GraphBatch.of(known.outputs), self.moves, self.familiar)
        return replace(self, moves=domain, familiar=None)

    def _search(self, objective: Objective, nearest: GraphBatch, starts: GraphBatch, k: int) -> Pool:
        """The best graphs for all inputs, each of which has as many of ``nearest`` and of ``starts``."""
        count, pools = len(objective.z), dict[int, Pool]()

        def work(start: int, stop: int) -> None:
            own = objective.select(start, stop, self.restriction)
            best, others = (part[start * (n := len(part) // count) : stop * n] for part in (nearest, starts))
            pool = self._search_block(own, best, others, k)
            pools[start] = pool._replace(owners=pool.owners + start)

        run_in_threads(work, count, min(TOGETHER, -(-count // torch.get_num_threads())))
        return Pool.joined([pools[start] for start in sorted(pools)])

    def _search_block(self, objective: Objective, nearest: GraphBatch, starts: GraphBatch, k: int) -> Pool:
        inputs, limits = len(objective.z), objective.limits
        each = len(nearest) // inputs
        rows, deadline = np.repeat(np.arange(inputs), each), time.monotonic() + inputs * (self.seconds or np.inf)
        known = Pool.of(objective, nearest, rows, exact=True)
        pool = known.take(np.flatnonzero(np.arange(len(nearest)) % max(each, 1) < self.starts))
        crossover = Crossover(objective, nearest, rows, self.moves) if self.pieces else None
        climb = partial(self._climb, objective, k, deadline)
        if limits is not None:
            n = len(starts) // inputs
            others = [starts[at::n] for at in range(n)]
            others += [GraphBatch.of([graph] * inputs) for graph in limits.suggest()]
            pools = (
                climb(Pool.of(objective, graphs, np.arange(inputs), exact=True), repairs=True) for graphs in others
            )
            pool = Pool.joined([pool, *(found.take(np.flatnonzero(found.distances == 0)) for found in pools)])
            pool.expanded[:] = False
        pool = climb(pool, crossover=crossover)
        # of graphs with equal features the known one is kept
        return Pool.joined([known._replace(expanded=~known.expanded), pool]).best(max(k, self.beam))

    def _climb(
        self,
        objective: Objective,
        k: int,
        deadline: float,
        pool: Pool,
        crossover: Crossover | None = None,
        repairs: bool = False,
    ) -> Pool:
        """Expand the best graphs of every input until none is left or, to repair, until one meets the restriction."""
        moves, bounds, beam = objective.limits or self.moves, objective.bound(), max(k, self.beam)
        spent, pool, seen = np.bincount(pool.owners, minlength=len(bounds)), pool.best(beam), pool.identify()
        reach = np.zeros(len(bounds))
        while time.monotonic() < deadline:
            active, done = spent < self.budget, pool.distances == 0
            if not repairs:
                done &= (k == 1) & (pool.scores >= bounds[pool.owners])
            active[pool.owners[done]] = False
            if not len(front := pool.frontier(active)):
                break
            pool.expanded[front] = True
            graphs, owners = pool.graphs[front], pool.owners[front]
            reach[owners] = pool.distances[front]
            parts = [_edit(objective, moves, graphs, owners)]
            if crossover is not None:
                near = _select(self.moves, [crossover.neighbors(graphs, owners), crossover.remove(graphs)])
                parts += [Pool.of(objective, part.graphs, owners[part.origins]) for part in near]
            for at, part in enumerate(parts):
                spent += np.bincount(part.owners, minlength=len(bounds))
                keep = part.distances <= reach[part.owners]
                if objective.rule != "kernel":
                    keep &= ~np.isin(part.identify(), seen)
                parts[at] = part.take(np.flatnonzero(keep)).best(beam).apply_edits()
            found = Pool.joined(parts)
            if objective.rule != "kernel":  # the scores are estimates
                found = found.best(beam)
                found = found._replace(scores=objective.score_exactly(found.owners, found.graphs))
                seen = np.append(seen, found.identify())
            pool = Pool.joined([pool, found]).best(beam)
        return pool


def _edit(objective: Objective, moves: Moves, graphs: GraphBatch, owners: np.ndarray) -> Pool:
    """What is one edit away from graphs, each for an input: edits, where the domain lists them, else graphs."""
    if not hasattr(moves, "list_edits"):
        near = moves.neighbors(graphs)
        return Pool.of(objective, near.graphs, owners[near.origins])
    edits = moves.list_edits(graphs)
    scores, names = objective.score_edits(owners, edits)
    return Pool(edits, owners[edits.origins], np.zeros(len(scores)), scores, names, np.zeros(len(scores), bool))


def _select(moves: Moves, near: list[Neighbors]) -> list[Neighbors]:
    """Leave out graphs outside the domain: joined pieces may be too large, for example."""
    if not hasattr(moves, "contains"):
        return near
    return [part.take(np.flatnonzero(moves.contains(part.graphs))) for part in near]


class Pool(NamedTuple):
    """Graphs found for several inputs."""

    graphs: Any  # GraphBatch, or Edits that lead to the graphs
    owners: np.ndarray  # the input that each graph is for
    distances: np.ndarray  # from the restriction of the domain
    scores: np.ndarray
    names: np.ndarray  # (graphs, terms)
    expanded: np.ndarray

    @staticmethod
    def of(objective: Objective, graphs: GraphBatch, owners: np.ndarray, exact: bool = False) -> Pool:
        distances = np.zeros(len(graphs)) if objective.limits is None else objective.limits.measure(graphs)
        scores, names = objective.score(owners, graphs)
        if exact and objective.rule != "kernel":
            at = np.flatnonzero(scores > -np.inf)
            scores[at] = objective.score_exactly(owners[at], graphs[at])
        return Pool(graphs, owners, distances, scores, names, np.zeros(len(graphs), bool))

    @staticmethod
    def joined(pools: list[Pool]) -> Pool:
        columns = zip(*(pool[1:] for pool in pools), strict=True)
        return Pool(GraphBatch.joined([pool.graphs for pool in pools]), *map(np.concatenate, columns))

    def best(self, count: int) -> Pool:
        """The ``count`` best graphs of every input, best first, and of those with equal features only one."""
        names = self.names.T
        with np.errstate(over="ignore"):
            scores = self.scores.astype(np.float32)  # equal features have equal scores, up to the order of their sums
        order = np.lexsort((~self.expanded, *names, -scores, self.distances, self.owners))
        new = np.zeros(len(order), bool)
        for column in (self.owners, self.distances, *names):
            new |= np.diff(column[order], prepend=column[order[:1]] - 1) != 0
        order = order[new & (self.scores[order] > -np.inf)]  # for some graphs the kernel is undefined
        owners = self.owners[order]
        return self.take(order[np.arange(len(order)) - np.searchsorted(owners, owners) < count])

    def identify(self) -> np.ndarray:  # (graphs,) uint64
        """Hash the input and the names of every graph."""
        odd = 2 * np.arange(1, self.names.shape[1] + 1).astype(np.uint64) + np.uint64(1)
        return (self.names * odd).sum(axis=1) + self.owners.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def take(self, at: np.ndarray) -> Pool:
        return Pool(self.graphs[at], *(column[at] for column in self[1:]))

    def apply_edits(self) -> Pool:
        return self._replace(graphs=self.graphs.results) if isinstance(self.graphs, Edits) else self

    def frontier(self, active: np.ndarray) -> np.ndarray:
        """The positions to expand next: for every active input, the best graph that is not expanded."""
        waiting = np.flatnonzero(~self.expanded & active[self.owners])
        return waiting[np.unique(self.owners[waiting], return_index=True)[1]]
