"""Moves on fragments: a piece of a graph is exchanged for a piece of a known graph, added or removed."""

from __future__ import annotations

import numpy as np

from dsokr.compute import compiled
from dsokr.decoders.moves import Moves, Neighbors
from dsokr.decoders.objective import Objective, Term
from dsokr.decoders.pieces import NOTHING, Pieces, concatenate_pieces, cut, root_at_all_nodes
from dsokr.graphs import GraphBatch

JOINED = 256  # pairs of pieces, those of the best estimates, that are joined for each graph
FREQUENT = 32  # features counted one by one to estimate ‖φ‖; the others are taken to differ from node to node


class Crossover:
    """Joins pieces of graphs with pieces of known ones, ``library``, of the inputs ``rows``.

    The score of a pair is estimated by adding up the features of its nodes, each as it has them in the graph that it
    comes from. The pairs with the best estimates are joined.
    """

    def __init__(self, objective: Objective, library: GraphBatch, rows: np.ndarray, moves: Moves):
        self.objective = objective
        self.stars = getattr(moves, "star_names", np.empty(0, np.uint64))  # empty if the domain does not restrict them
        self.edge_labels = np.array(getattr(moves, "edge_labels", ()), np.int64)
        pieces = cut(library).distinct(rows)
        pieces = pieces.take(np.argsort(rows[pieces.owners], kind="stable"))
        if len(self.stars):
            pieces = pieces.open(self.edge_labels, self.stars)
        self.frequent = [_find_frequent(term, library) for term in objective.terms]
        self.library, self.rows = pieces, rows[pieces.owners]
        self.vectors = self._describe(pieces, rows)

    def neighbors(self, graphs: GraphBatch, owners: np.ndarray) -> Neighbors:
        """Graphs that differ from the given ones, each for an input, in one piece."""
        pieces = cut(graphs)
        if len(self.stars):
            pieces = concatenate_pieces(pieces, root_at_all_nodes(graphs)).open(self.edge_labels, self.stars)
        vectors, made = self._describe(pieces, owners), []
        for at in range(len(graphs)):
            own = np.flatnonzero(pieces.owners == at)
            others = np.arange(*np.searchsorted(self.rows, [owners[at], owners[at] + 1]))
            if not len(own) or not len(others):
                continue
            equal = pieces.labels[own][:, None] == self.library.labels[others]
            estimates = self._estimate(owners[at], vectors[own], self.vectors[others], equal)
            best = np.argpartition(-estimates, min(JOINED, estimates.size - 1), axis=None)[:JOINED]
            best = best[estimates.ravel()[best] > -np.inf]
            made.append(np.stack([own[best // len(others)], others[best % len(others)]]))
        a, b = np.concatenate([np.empty((2, 0), np.int64), *made], axis=1)
        return Neighbors(pieces.join(self.library, a, b), pieces.owners[a])

    def remove(self, graphs: GraphBatch) -> Neighbors:
        """Graphs without one of their pieces; none if the domain does not say which stars there may be."""
        pieces = cut(graphs)
        pieces = pieces._replace(labels=np.full(len(pieces.labels), NOTHING)).open(np.array([NOTHING]), self.stars)
        at = np.arange(len(pieces.labels))
        nothing = pieces._replace(starts=np.zeros(len(at) + 1, np.int64), nodes=pieces.nodes[:0])
        return Neighbors(pieces.join(nothing, at, at), pieces.owners)

    def _describe(self, pieces: Pieces, owners: np.ndarray) -> np.ndarray:  # (pieces, terms, q + FREQUENT + 1)
        """For every term: the sums in the directions, how often there are frequent features, and the rest."""
        graphs, parts = pieces.graphs, []
        inputs = np.repeat(owners, np.diff(graphs.offsets))  # of every node
        for term, table, ids in zip(self.objective.terms, self.objective.tables, self.frequent, strict=True):
            rows = term.kernel.split(graphs).parts
            if len(rows) != len(inputs):  # the kernel does not say at which nodes its features are
                parts.append(np.zeros((len(inputs), table.shape[2] + FREQUENT + 1), np.float32))
                continue
            sums = term.sum_rows(table, self.objective.rows_of(inputs), rows)[0]
            at = np.searchsorted(ids, rows.ids).clip(max=len(ids) - 1)
            columns = np.where(ids[at] == rows.ids, at, FREQUENT)
            node = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
            cells = np.bincount(node * (FREQUENT + 1) + columns, rows.values, len(rows) * (FREQUENT + 1))
            parts.append(np.concatenate([sums, cells.reshape(-1, FREQUENT + 1)], axis=1).astype(np.float32))
        sums = pieces.sum(np.concatenate(parts, axis=1))
        return sums.reshape(len(sums), len(parts), sums.shape[1] // len(parts))

    def _estimate(self, owner: int, a: np.ndarray, b: np.ndarray, fit: np.ndarray) -> np.ndarray:  # (len(a), len(b))
        """The scores of all pairs of pieces that fit; −∞ of the others."""
        terms, rule = self.objective.terms, self.objective.rule
        factors, normalised = np.array([t.factor for t in terms]), np.array([t.normalised for t in terms])
        code = ("kernel", "projected", "cosine").index(rule)
        return _estimate(a, b, fit, self.objective.targets[owner], factors, normalised, code)


def _find_frequent(term: Term, graphs: GraphBatch) -> np.ndarray:  # (up to FREQUENT,)
    """The features with the largest share of ‖φ‖², sorted."""
    features = term.kernel.features(graphs)
    ids, at = np.unique(features.ids, return_inverse=True)
    share = np.bincount(at, features.values**2, minlength=len(ids))
    return np.sort(ids[np.argsort(-share, kind="stable")[:FREQUENT]]) if len(ids) else np.zeros(1, np.uint64)


@compiled
def _estimate(a, b, fit, target, factors, normalised, rule):  # type: ignore[no-untyped-def] # compiled
    """The scores of pairs of pieces; ``rule`` is 0 for "kernel", 1 for "projected", 2 for "cosine"."""
    out, q = np.full((len(a), len(b)), -np.inf, np.float32), a.shape[2] - FREQUENT - 1
    psi = np.empty(q, np.float32)
    for i in range(len(a)):
        for j in np.flatnonzero(fit[i]):
            psi[:] = 0
            diag, dot, square, distance = 0.0, 0.0, 0.0, 0.0
            for t in range(len(factors)):
                one, two = a[i, t], b[j, t]
                length = one[-1] + two[-1]
                for k in range(q, q + FREQUENT):
                    length += (one[k] + two[k]) ** 2
                scale = np.float32(1 / np.sqrt(length)) if normalised[t] and length > 0 else np.float32(1)
                diag += factors[t] if normalised[t] else factors[t] * length
                for k in range(q):
                    psi[k] += scale * (one[k] + two[k])
            if rule == 0:
                out[i, j] = 2 * psi[0] - diag
                continue
            for k in range(q):
                dot += target[k] * psi[k]
                square += psi[k] * psi[k]
                distance += (target[k] - psi[k]) ** 2
            out[i, j] = -distance if rule == 1 else dot / np.sqrt(max(square, 1e-30))
    return out
