"""The neighbourhood subgraph pairwise distance kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsokr.compute import compiled
from dsokr.errors import check_integers
from dsokr.graphs import GraphBatch
from dsokr.kernels.features import FeatureKernel, Features
from dsokr.kernels.hashing import pair
from dsokr.kernels.paths import close_pairs
from dsokr.kernels.rooted import ball_names
from dsokr.outputs import Outputs


@dataclass(frozen=True)
class NSPD(FeatureKernel):
    """Σ_{r = 0}^{radius} Σ_{d = 0}^{distance} k_{r,d}(G, G') / √(k_{r,d}(G, G) k_{r,d}(G', G')), where

    k_{r,d}(G, G') = Σ_{D(u, v) = d} Σ_{D(u', v') = d} [N_r^u ≅ N_r^{u'}] [N_r^v ≅ N_r^{v'}].

    N_r^v is the subgraph induced by the nodes up to r edges away from v, rooted at v, and isomorphisms keep the root
    and all labels of nodes and edges. Pairs of nodes are ordered. A term in which a graph has no pair at distance d is
    zero, so that k(G, G) is the number of terms in which it has some. Neighbourhoods are compared exactly, up to
    collisions of 64-bit names.

    >>> from dsokr.graphs import Graph
    >>> carbonyl, alcohol = Graph((6, 8), ((0, 1, 2),)), Graph((6, 8), ((0, 1, 1),))
    >>> NSPD(radius=1, distance=1)([carbonyl], [carbonyl, alcohol])
    tensor([[4.0000, 2.0000]], dtype=torch.float64)
    """

    radius: int
    distance: int

    def __post_init__(self) -> None:
        check_integers(self, radius=0, distance=0)

    def features(self, ys: Outputs) -> Features:
        batch = GraphBatch.of(ys)
        names = ball_names(batch, self.radius)
        pairs = close_pairs(batch, self.distance)
        blocks = []
        for d in range(self.distance + 1):
            there = pairs.select(pairs.apart == d)
            blocks += [_unit(Features.of(there.starts, *_pair_names(name, there.u, there.v))) for name in names]
        return Features.joined([block.tagged(b) for b, block in enumerate(blocks)])


def _unit(features: Features) -> Features:
    """Rows of length one; those without features stay zero."""
    squared = features.squared_norms()
    return features.scaled(np.divide(1, np.sqrt(squared), out=np.zeros_like(squared), where=squared > 0))


@compiled
def _pair_names(names: np.ndarray, us: np.ndarray, vs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Names of unordered pairs and what they count, so that products are those of the counts of ordered pairs.

    With a pair (x, y), x ≠ y, comes (y, x): both are one coordinate of weight √2. A pair (x, x) comes twice.
    """
    out, values = np.empty(len(us), np.uint64), np.empty(len(us))
    for k in range(len(us)):
        x, y = names[us[k]], names[vs[k]]
        out[k] = pair(min(x, y), max(x, y))
        values[k] = 1.0 if us[k] == vs[k] else 2.0 if x == y else np.sqrt(2.0)
    return out, values
