"""The objective of the search for graphs, computed from features: fast for many graphs, exact for a few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard, cast

import numpy as np
import torch
from torch import Generator, Tensor

from dsokr import kernels
from dsokr.basis import SketchedBasis
from dsokr.compute import compiled
from dsokr.decoders.base import bound_rounding, bound_scores, combine_anchors
from dsokr.decoders.colours import count_colours, name_coordinate, recount_colours
from dsokr.decoders.moves import Edits
from dsokr.decoders.restricted import Restricted
from dsokr.graphs import GraphBatch
from dsokr.kernels import FeatureKernel
from dsokr.kernels.features import Postings
from dsokr.kernels.graphs import refinements
from dsokr.kernels.sparse import Features
from dsokr.rules import Rule, score_pairs

DIRECTIONS = 32  # random directions to estimate distances in, to about a quarter


@dataclass(frozen=True, eq=False)
class Term:
    """factor · ⟨φ(y), φ(y')⟩, or with φ / ‖φ‖ in place of φ: one term of a sum of kernels."""

    kernel: FeatureKernel
    factor: float
    normalised: bool
    postings: Postings  # of the anchors
    scales: np.ndarray  # (anchors,): multiples of the anchors' φ

    def tabulate(self, combined: np.ndarray) -> np.ndarray:  # (q, anchors) -> (q, coordinates)
        """What this term adds to the functions Σ_j combined[i, j] k(a_j, ·), as weights of the coordinates of φ."""
        return self.postings.summed(combined * self.scales)

    def sum_graphs(
        self, table: np.ndarray, owners: np.ndarray, graphs: GraphBatch
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # (graphs, q), (graphs,), (graphs,) uint64
        """table · φ of every graph, ‖φ‖² and a name for φ; ``table`` (inputs, coordinates, q)."""
        kernel, postings = self.kernel, self.postings
        if not _counts_colours(kernel):
            return self.sum_rows(table, owners, kernel.features(graphs))
        colours = np.stack(list(refinements(graphs, kernel.iterations, kernel.edge_labels)))
        return count_colours(graphs.offsets, colours, postings.ids, postings.slots, owners, table)

    def sum_edits(
        self, table: np.ndarray, owners: np.ndarray, edits: Edits
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # (edits, q), (edits,), (edits,) uint64
        """The same for the graphs that edits lead to, if φ counts colours; ``owners`` are of the edited graphs."""
        kernel, postings = self.kernel, self.postings
        assert _counts_colours(kernel)
        graphs = edits.decode(edits.graphs)
        colours = np.stack(list(refinements(graphs, kernel.iterations, kernel.edge_labels)))
        counted = count_colours(graphs.offsets, colours, postings.ids, postings.slots, owners, table)
        out = [part[edits.origins] for part in counted]
        own = edits.graphs.as_arrays(), graphs.edge_labels, colours, kernel.edge_labels
        index = postings.ids, postings.slots, owners, table
        recount_colours(*own, edits.rows, edits.origins, edits.domain, *index, *out)
        return out[0], out[1], out[2]

    def sum_rows(
        self, table: np.ndarray, owners: np.ndarray, rows: Features
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same for rows of features."""
        return _add_features(rows.indptr, rows.ids, rows.values, self.postings.columns(rows), owners, table)


def _counts_colours(kernel: FeatureKernel) -> TypeGuard[kernels.WeisfeilerLehman]:
    """Whether φ counts the WL colours of nodes."""
    return isinstance(kernel, kernels.WeisfeilerLehman) and isinstance(kernel.base, kernels.VertexHistogram)


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
    """The scores of graphs by a rule, for one row z of coordinates per input.

    By the paper's rule they are 2 Σ_c w_c φ_c(y) − k(y, y), with weights w for every input. The other rules need ψ̃(y):
    its coordinates in a few random directions give an estimate, and ``score_exactly`` computes all of them.
    """

    basis: SketchedBasis
    terms: tuple[Term, ...]
    rule: Rule
    z: Tensor  # (inputs, p)
    tables: tuple[np.ndarray, ...]  # of every term, (inputs or 1, coordinates, q)
    targets: np.ndarray  # (inputs, q): the coordinates z in the q directions
    limits: Restricted | None = None  # graphs nearer to this restriction come first

    @staticmethod
    def of(basis: SketchedBasis, rule: Rule, z: Tensor) -> Objective:
        terms = tuple(split_terms(cast(FeatureKernel, basis.kernel), GraphBatch.of(basis.anchors)))
        if rule == "kernel":
            return Objective(basis, terms, rule, z, (), np.empty((len(z), 0), np.float32))
        p = basis.dim
        draws = torch.randn(DIRECTIONS, p, generator=Generator().manual_seed(0), dtype=z.dtype) / DIRECTIONS**0.5
        directions = (draws if p > DIRECTIONS else torch.eye(p, dtype=z.dtype)).to(z.device)
        combined = combine_anchors(basis, directions).cpu().numpy()
        tables = tuple(np.ascontiguousarray(term.tabulate(combined).T)[None] for term in terms)
        return Objective(basis, terms, rule, z, tables, (z @ directions.T).cpu().numpy().astype(np.float32))

    def select(self, start: int, stop: int, limits: Restricted | None = None) -> Objective:
        """The objective of some of the inputs."""
        z, tables = self.z[start:stop], self.tables
        if self.rule == "kernel":
            combined = combine_anchors(self.basis, z).cpu().numpy()
            tables = tuple(term.tabulate(combined)[:, :, None] for term in self.terms)
        return Objective(self.basis, self.terms, self.rule, z, tables, self.targets[start:stop], limits)

    def rows_of(self, owners: np.ndarray) -> np.ndarray:
        """The rows of the tables for inputs."""
        return owners if self.rule == "kernel" else np.zeros_like(owners)

    def score(self, owners: np.ndarray, graphs: GraphBatch) -> tuple[np.ndarray, np.ndarray]:  # (graphs,), (graphs, t)
        """Score graph i for input ``owners[i]``; also return names, equal term by term for graphs of equal features.

        Estimated, except by the paper's rule; −∞ where φ has no direction.
        """
        pairs = zip(self.terms, self.tables, strict=True)
        return self._combine(owners, [term.sum_graphs(table, self.rows_of(owners), graphs) for term, table in pairs])

    def score_edits(self, owners: np.ndarray, edits: Edits) -> tuple[np.ndarray, np.ndarray]:  # (edits,), (edits, t)
        """Score and name the graphs that edits of graph i lead to, for input ``owners[i]``."""
        if not all(_counts_colours(term.kernel) for term in self.terms):
            return self.score(owners[edits.origins], edits.results)
        pairs, rows = zip(self.terms, self.tables, strict=True), self.rows_of(owners)
        return self._combine(owners[edits.origins], [term.sum_edits(table, rows, edits) for term, table in pairs])

    def _combine(
        self, owners: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add up the terms: scores and names of the graphs."""
        psi, diag, names = np.zeros((len(owners), 1)), np.zeros(len(owners)), []
        for term, (sums, squares, name) in zip(self.terms, parts, strict=True):
            lengths = np.sqrt(squares) if term.normalised else np.ones(len(owners))
            with np.errstate(divide="ignore", invalid="ignore"):
                psi, diag = psi + sums / lengths[:, None], diag + term.factor * squares / lengths**2
            names.append(name)
        scores = _rate(self.rule, self.targets[owners], psi, diag)
        return np.where(np.isnan(scores), -np.inf, scores), np.stack(names, axis=1)

    def bound(self) -> np.ndarray:  # (inputs,)
        """The score that proves, for every input, that no graph is better."""
        return (bound_scores(self.z, self.rule) - bound_rounding(self.z)).cpu().numpy()

    def score_exactly(self, owners: np.ndarray, graphs: GraphBatch) -> np.ndarray:  # (graphs,)
        if not len(graphs):
            return np.zeros(0)
        psi = self.basis.embed(graphs)
        return score_pairs(self.z[torch.from_numpy(owners)], psi, psi.new_zeros(len(psi)), self.rule).cpu().numpy()


def _rate(rule: Rule, targets: np.ndarray, psi: np.ndarray, diag: np.ndarray) -> np.ndarray:
    if rule == "kernel":
        return 2 * psi[:, 0] - diag
    if rule == "projected":
        return -((targets - psi) ** 2).sum(axis=1)
    lengths = np.sqrt((psi**2).sum(axis=1))
    return (targets * psi).sum(axis=1) / np.where(lengths > 0, lengths, 1)


@compiled
def _add_features(indptr, ids, values, columns, owners, table):  # type: ignore[no-untyped-def] # compiled
    """Σ_c table_c φ_c, Σ_c φ_c² and the name of every row of features."""
    sums, squares = np.zeros((len(owners), table.shape[2])), np.zeros(len(owners))
    names = np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for k in range(indptr[i], indptr[i + 1]):
            if columns[k] >= 0:
                for d in range(table.shape[2]):
                    sums[i, d] += values[k] * table[owners[i], columns[k], d]
            squares[i] += values[k] * values[k]
            names[i] += name_coordinate(ids[k], values[k])
    return sums, squares, names
