"""Shortest paths in batches of graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsokr.compute import compiled
from dsokr.graphs import GraphBatch, starts_of


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of nodes u ≤ v of the same graph and their distances; those of graph g start at ``starts[g]``."""

    starts: np.ndarray  # (graphs + 1,)
    u: np.ndarray
    v: np.ndarray
    distance: np.ndarray  # edges on a shortest path

    def select(self, keep: np.ndarray) -> Pairs:
        return Pairs(starts_of(keep)[self.starts], self.u[keep], self.v[keep], self.distance[keep])


def find_pairs(batch: GraphBatch, farthest: int | None = None) -> Pairs:
    """Find all pairs at a distance of at most ``farthest`` edges (None: any); a node has distance 0 from itself."""
    limit = len(batch.labels) if farthest is None else farthest
    return Pairs(*_find_pairs(batch.offsets, batch.indptr, batch.neighbors, limit))


@compiled
def breadth_first(
    root: int, farthest: int, indptr: np.ndarray, neighbors: np.ndarray, queue: np.ndarray, depth: np.ndarray
) -> int:
    """Fill ``queue`` with the nodes up to ``farthest`` edges from the root, nearest first; set their ``depth``.

    Returns their number. All depths must be −1 before; the caller resets them.
    """
    queue[0], depth[root] = root, 0
    head, tail = 0, 1
    while head < tail:
        u = queue[head]
        head += 1
        if depth[u] == farthest:
            break
        for k in range(indptr[u], indptr[u + 1]):
            v = neighbors[k]
            if depth[v] < 0:
                depth[v] = depth[u] + 1
                queue[tail] = v
                tail += 1
    return tail


@compiled
def _find_pairs(
    offsets: np.ndarray, indptr: np.ndarray, neighbors: np.ndarray, farthest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    sizes = offsets[1:] - offsets[:-1]
    starts, free = np.zeros(len(offsets), np.int64), 0
    most = (sizes * (sizes + 1) // 2).sum()
    us, vs, distance = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    depth = np.full(offsets[-1], -1)
    queue = np.empty(sizes.max() if len(sizes) else 0, np.int64)
    for g in range(len(sizes)):
        for u in range(offsets[g], offsets[g + 1]):
            reached = breadth_first(u, farthest, indptr, neighbors, queue, depth)
            for v in queue[:reached]:
                if v >= u:
                    us[free], vs[free], distance[free] = u, v, depth[v]
                    free += 1
                depth[v] = -1
        starts[g + 1] = free
    return starts, us[:free].copy(), vs[:free].copy(), distance[:free].copy()
