"""Decoding over all graphs of a domain, by local search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from dsokr import kernels
from dsokr.basis import SketchedBasis
from dsokr.compute import compiled, run_in_threads
from dsokr.decoders.base import Decoder, Found, choose_best, combine_anchors
from dsokr.decoders.moves import Molecules, Moves
from dsokr.decoders.restricted import Restricted
from dsokr.decoders.scan import EmbeddedOutputs
from dsokr.errors import InputError, check_fields
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import FeatureKernel, Kernel
from dsokr.kernels.features import Postings
from dsokr.kernels.graphs import refinements
from dsokr.kernels.hashing import find, mix, pair
from dsokr.outputs import Form, Outputs, take
from dsokr.rules import Rule

SMALL_MOLECULES = Molecules()
TOGETHER = 64  # rows of coordinates that a thread searches side by side


@dataclass(frozen=True)
class GraphSearch(Decoder):
    """max over *all* graphs y of a domain of 2⟨z, ψ̃(y)⟩ − k(y, y), by best-first search from the best known outputs.

    ``moves`` is the domain: it lists the graphs one edit away from a graph. The search starts from the ``starts`` best
    candidates. In each round it expands, for each input, the best graph not yet expanded among the ``beam`` best found;
    it ends when there is none, or when ``budget`` graphs were scored for that input. The best found, with the best
    candidate, are then ranked by ``rule``: the answer never scores below the best candidate. Deterministic. For the k
    best, the beam is at least k; of graphs with equal features only one is returned.

    If a ``formula`` is given, a ``mass`` (lowest and highest, of the neutral molecule with its most common isotopes) or
    molecules that it ``contains``, every answer meets them. Then the search starts from the best candidates that do,
    and from the best of all after edits until they do.

    The kernel must have features, k(y, y') = ⟨φ(y), φ(y')⟩. Then h(y) = Σ_c w_c φ_c(y), with one weight for every
    coordinate that an anchor has: the cost of scoring a graph does not depend on the size of the basis.

    >>> GraphSearch(beam=4, budget=500)
    GraphSearch(moves=Molecules(valences=((6, 4), (7, 3), (8, 2), (9, 1)), max_atoms=9), rule='auto', starts=8, beam=4,
                budget=500, formula=None, mass=None, contains=())
    """

    moves: Moves = SMALL_MOLECULES
    rule: Rule | Literal["auto"] = "auto"
    starts: int = 8
    beam: int = 8
    budget: int = 4_000
    formula: str | None = None  # such as C6H6O
    mass: tuple[float, ...] | None = None
    contains: str | Graph | tuple[str | Graph, ...] = ()  # SMILES or graphs

    rated = 200

    def __post_init__(self) -> None:
        check_fields(self)
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
        nearest = allowed.top(z, max(k, self.starts), rule)
        best = GraphBatch.of(take(allowed.outputs, nearest.indices.flatten()))
        found = self._search(basis, z, best, starts, max(k, self.beam), limits)
        if limits is not None and len(missing := np.setdiff1d(np.arange(len(z)), found.owners)):
            raise InputError(
                f"The search found no molecule with {limits.describe()} for row {missing[0]}. "
                "Raise GraphSearch.budget, or add such a molecule to those that are known."
            )
        # the search follows the paper's rule and may drop what another rule prefers: the best candidates
        return choose_best(z, allowed, nearest, found.graphs, found.owners, rule, k)

    def _search(
        self,
        basis: SketchedBasis,
        z: Tensor,
        nearest: GraphBatch,
        starts: GraphBatch,
        beam: int,
        limits: Restricted | None,
    ) -> Pool:
        """The best graphs for all rows of z, by the paper's rule; as many of the nearest and starts for each row."""
        assert isinstance(basis.kernel, FeatureKernel)
        terms = tuple(split_terms(basis.kernel, GraphBatch.of(basis.anchors)))
        pools: dict[int, Pool] = {}

        def work(start: int, stop: int) -> None:
            objective = Objective.of(terms, basis, z[start:stop], limits)
            best, others = (part[start * (n := len(part) // len(z)) : stop * n] for part in (nearest, starts))
            pool = self._search_block(objective, stop - start, best, others, beam)
            pools[start] = pool._replace(owners=pool.owners + start)

        run_in_threads(work, len(z), TOGETHER)
        return Pool.joined([pools[start] for start in sorted(pools)])

    def _search_block(
        self, objective: Objective, inputs: int, nearest: GraphBatch, starts: GraphBatch, beam: int
    ) -> Pool:
        each, limits = len(nearest) // inputs, objective.limits
        known = Pool.of(objective, nearest, np.repeat(np.arange(inputs), each))
        pool = known.take(np.flatnonzero(np.arange(len(nearest)) % max(each, 1) < self.starts))
        if limits is not None:
            n = len(starts) // inputs
            others = [starts[at::n] for at in range(n)]
            others += [GraphBatch.of([graph] * inputs) for graph in limits.suggest()]
            pool = Pool.joined([pool, *(self._repair(objective, inputs, graphs, beam) for graphs in others)])
        pool = self._climb(objective, inputs, pool, beam)
        # of graphs with equal features the known one is kept
        return Pool.joined([known._replace(expanded=~known.expanded), pool]).best(beam)

    def _climb(self, objective: Objective, inputs: int, pool: Pool, beam: int, repairs: bool = False) -> Pool:
        """Expand the best graphs of every input until none is left or, to repair, until one meets the restriction."""
        moves = objective.limits or self.moves
        spent, pool = np.bincount(pool.owners, minlength=inputs), pool.best(beam)
        while len(front := pool.frontier(spent < self.budget, repairs)):
            pool.expanded[front] = True
            near = moves.neighbors(pool.graphs[front])
            found = Pool.of(objective, near.graphs, pool.owners[front][near.origins])
            spent += np.bincount(found.owners, minlength=inputs)
            pool = Pool.joined([pool, found]).best(beam)
        return pool

    def _repair(self, objective: Objective, inputs: int, graphs: GraphBatch, beam: int) -> Pool:
        """Edit one graph for each input until it meets the restriction; those that cannot be edited so are left out."""
        pool = Pool.of(objective, graphs, np.arange(inputs))
        pool = self._climb(objective, inputs, pool, beam, repairs=True)
        pool = pool.take(np.flatnonzero(pool.distances == 0))
        return pool._replace(expanded=np.zeros(len(pool.graphs), bool))


class Pool(NamedTuple):
    """Graphs found for several inputs."""

    graphs: GraphBatch
    owners: np.ndarray  # the input that each graph is for
    distances: np.ndarray  # from the restriction of the domain
    scores: np.ndarray
    names: np.ndarray  # (graphs, terms)
    expanded: np.ndarray

    @staticmethod
    def of(objective: Objective, graphs: GraphBatch, owners: np.ndarray) -> Pool:
        distances = np.zeros(len(graphs)) if objective.limits is None else objective.limits.measure(graphs)
        return Pool(graphs, owners, distances, *objective.score(owners, graphs), np.zeros(len(graphs), bool))

    @staticmethod
    def joined(pools: list[Pool]) -> Pool:
        columns = zip(*(pool[1:] for pool in pools), strict=True)
        return Pool(GraphBatch.joined([pool.graphs for pool in pools]), *map(np.concatenate, columns))

    def best(self, count: int) -> Pool:
        """The ``count`` best graphs of every input, best first, and of those with equal features only one."""
        names = self.names.T
        scores = self.scores.astype(np.float32)  # equal features have equal scores, up to the order of their sums
        order = np.lexsort((~self.expanded, *names, -scores, self.distances, self.owners))
        new = np.zeros(len(order), bool)
        for column in (self.owners, self.distances, *names):
            new |= np.diff(column[order], prepend=column[order[:1]] - 1) != 0
        order = order[new & (scores[order] > -np.inf)]  # for some graphs the kernel is undefined
        owners = self.owners[order]
        return self.take(order[np.arange(len(order)) - np.searchsorted(owners, owners) < count])

    def take(self, at: np.ndarray) -> Pool:
        return Pool(self.graphs[at], *(column[at] for column in self[1:]))

    def frontier(self, active: np.ndarray, repairs: bool = False) -> np.ndarray:
        """The positions to expand next: for every active input, the best graph that is not expanded.

        To repair, inputs are active only until they have a graph that meets the restriction.
        """
        if repairs:
            active[self.owners[self.distances == 0]] = False
        waiting = np.flatnonzero(~self.expanded & active[self.owners])
        return waiting[np.unique(self.owners[waiting], return_index=True)[1]]


@dataclass(frozen=True, eq=False)
class Term:
    """factor · ⟨φ(y), φ(y')⟩, or with φ / ‖φ‖ in place of φ: one of the kernels that a kernel is the sum of."""

    kernel: FeatureKernel
    factor: float
    normalised: bool
    postings: Postings  # of the anchors
    scales: np.ndarray  # (anchors,): multiples of the anchors' φ

    def score(
        self, weights: np.ndarray, owners: np.ndarray, graphs: GraphBatch
    ) -> tuple[np.ndarray, np.ndarray]:  # (graphs,), (graphs,) uint64
        """2 h(y) − k(y, y), as far as this term goes, and a name for y's features; −∞ where φ has no direction."""
        kernel, postings = self.kernel, self.postings
        if isinstance(kernel, kernels.WeisfeilerLehman) and isinstance(kernel.base, kernels.VertexHistogram):
            colours = np.stack(list(refinements(graphs, kernel.iterations, kernel.edge_labels)))
            found = _count_colours(graphs.offsets, colours, postings.ids, postings.slots, owners, weights)
        else:
            features = kernel.features(graphs)
            columns = postings.columns(features)
            found = _add_features(features.indptr, features.ids, features.values, columns, owners, weights)
        products, squares, names = found
        if not self.normalised:
            return 2 * products - self.factor * squares, names
        lengths = np.sqrt(np.where(squares > 0, squares, 1.0))
        return np.where(squares > 0, 2 * products / lengths - self.factor, -np.inf), names


def split_terms(kernel: FeatureKernel, anchors: GraphBatch, factor: float = 1.0) -> Iterator[Term]:
    """The terms of a sum, one by one: each is normalised by itself."""
    if isinstance(kernel, kernels.FeatureSum):
        for part in kernel.kernels:
            yield from split_terms(part, anchors, factor)
    elif isinstance(kernel, kernels.ScaledFeatures):
        yield from split_terms(kernel.kernel, anchors, factor * kernel.factor)
    else:
        normalised = isinstance(kernel, kernels.NormalizedFeatures)
        plain = kernel.kernel if isinstance(kernel, kernels.NormalizedFeatures) else kernel
        features = plain.features(anchors)
        lengths = np.sqrt(features.squared_norms()) if normalised else np.ones(len(features))
        yield Term(plain, factor, normalised, Postings.of(features), factor / lengths)


@dataclass(frozen=True, eq=False)
class Objective:
    """2 h(y) − k(y, y) with h = Σ_j z_j ẽ_j, for one row z of coordinates per input."""

    terms: tuple[Term, ...]
    weights: tuple[np.ndarray, ...]  # of every term, (inputs, coordinates): w = Σ_j c_j φ(a_j), times the factor
    limits: Restricted | None = None  # graphs that are nearer to it come first

    @staticmethod
    def of(terms: tuple[Term, ...], basis: SketchedBasis, z: Tensor, limits: Restricted | None = None) -> Objective:
        c = combine_anchors(basis, z).cpu().numpy()
        return Objective(terms, tuple(term.postings.summed(c * term.scales) for term in terms), limits)

    def score(self, owners: np.ndarray, graphs: GraphBatch) -> tuple[np.ndarray, np.ndarray]:  # (graphs,), (graphs, t)
        """Score graph i for input ``owners[i]``; also return names, equal term by term for graphs of equal features."""
        pairs = zip(self.terms, self.weights, strict=True)
        scores, names = zip(*(term.score(weights, owners, graphs) for term, weights in pairs), strict=True)
        return np.sum(scores, axis=0), np.stack(names, axis=1)


@compiled
def _name(identity, value):  # type: ignore[no-untyped-def]  # compiled for uint64 and float64
    """What a coordinate adds to the name of a vector."""
    return mix(identity) * np.uint64(np.int64(np.floor(value * 1048576.0 + 0.5)))


@compiled
def _add_features(indptr, ids, values, columns, owners, weights):  # type: ignore[no-untyped-def] # compiled
    """Σ_c w_c φ_c, Σ_c φ_c² and the name of every row of features."""
    products, squares, names = np.zeros(len(owners)), np.zeros(len(owners)), np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for k in range(indptr[i], indptr[i + 1]):
            if columns[k] >= 0:
                products[i] += values[k] * weights[owners[i], columns[k]]
            squares[i] += values[k] * values[k]
            names[i] += _name(ids[k], values[k])
    return products, squares, names


@compiled
def _count_colours(offsets, colours, ids, slots, owners, weights):  # type: ignore[no-untyped-def] # compiled
    """The same where φ counts the colours of nodes, (iterations + 1, nodes): node by node, without forming φ.

    Σ_c φ_c² is the number of pairs of nodes of one colour.
    """
    products, squares, names = np.zeros(len(owners)), np.zeros(len(owners)), np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for t in range(len(colours)):
            own, pairs = colours[t, offsets[i] : offsets[i + 1]], 0
            for v in range(len(own)):
                identity = pair(t, own[v])
                at = find(slots, ids, identity)
                if at >= 0:
                    products[i] += weights[owners[i], at]
                names[i] += _name(identity, 1.0)
                for u in range(v):
                    pairs += own[u] == own[v]
            squares[i] += len(own) + 2 * pairs
    return products, squares, names
