"""Whether a graph can be drawn without crossings, by the left-right criterion of de Fraysseix and Rosenstiehl.

A depth-first search splits the edges into a tree and back edges, which lead towards the root. Where two edges leave a
node v, back edges from the parts behind them pass v on one side or the other: those of one part that end strictly
farther from the root than the nearest end of the other's are all on one side, and vice versa on the other. A graph is
planar if and only if sides can be chosen so (Brandes, 2009). Graphs here are small: all pairs of edges are compared.
"""

import numpy as np

from dsokr.compute import compiled


@compiled
def is_planar(matrix: np.ndarray) -> bool:  # (n, n): 0 where there is no edge; the diagonal does not count
    nodes, edges = 0, 0
    for i in range(len(matrix)):
        degree = 0
        for j in range(len(matrix)):
            degree += i != j and matrix[i, j] != 0
        nodes, edges = nodes + (degree > 0), edges + degree
    edges //= 2
    if nodes < 5 or edges < 9:
        return True
    return edges <= 3 * nodes - 6 and _has_sides(matrix, edges)


@compiled
def _has_sides(matrix: np.ndarray, edges: int) -> bool:
    """Whether sides can be chosen for all back edges."""
    n = len(matrix)
    height, parent = _search_depths(matrix)
    tails, heads, back = np.empty(edges, np.int64), np.empty(edges, np.int64), 0
    for x in range(n):
        for y in range(n):
            if x != y and matrix[x, y] and height[y] < height[x] and parent[x] != y:
                tails[back], heads[back] = x, y
                back += 1
    ends = height[heads[:back]]
    chosen = np.arange(2 * back)  # a forest of 2 · back edge + side: what is in one tree must be chosen together
    branches, nearest = np.empty(back, np.int64), np.empty(n + back, np.int64)
    for v in range(n):
        for b in range(back):
            branches[b] = _find_branch(height, parent, v, tails[b], ends[b], n + b)
        _choose_sides(chosen, branches, ends, nearest)
    found = True
    for b in range(back):
        found &= _find_root(chosen, 2 * b) != _find_root(chosen, 2 * b + 1)
    return found


@compiled
def _search_depths(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The height of every node over the root of its tree, and its parent, by depth-first search."""
    n = len(matrix)
    height, parent, looked = np.full(n, -1), np.full(n, -1), np.zeros(n, np.int64)
    for root in range(n):
        if height[root] >= 0:
            continue
        height[root], v = 0, root
        while v >= 0:
            w = looked[v]
            looked[v] += 1
            if w == n:
                v = parent[v]
            elif w != v and matrix[v, w] and height[w] < 0:
                height[w], parent[w] = height[v] + 1, v
                v = w
    return height, parent


@compiled
def _find_branch(height: np.ndarray, parent: np.ndarray, v: int, tail: int, end: int, own: int) -> int:
    """Which edge out of v leads to a back edge that ends below v: the child's number, or its own; −1 if none does."""
    if end >= height[v]:
        return -1
    if tail == v:
        return own
    while height[tail] > height[v] + 1:
        tail = parent[tail]
    return tail if parent[tail] == v else -1


@compiled
def _choose_sides(chosen: np.ndarray, branches: np.ndarray, ends: np.ndarray, nearest: np.ndarray) -> None:
    """Of any two branches, put the back edges that end beyond the other's nearest end on opposite sides."""
    nearest[:] = len(nearest)
    for b in range(len(ends)):
        if branches[b] >= 0:
            nearest[branches[b]] = min(nearest[branches[b]], ends[b])
    own = np.flatnonzero(nearest < len(nearest))
    for k, one in enumerate(own):
        for other in own[:k]:
            first = -1
            for b in range(len(ends)):
                side = branches[b] == other
                passes = (side and ends[b] > nearest[one]) or (branches[b] == one and ends[b] > nearest[other])
                if not passes:
                    continue
                first = 2 * b + side if first < 0 else first
                chosen[_find_root(chosen, 2 * b + side)] = _find_root(chosen, first)
                chosen[_find_root(chosen, 2 * b + 1 - side)] = _find_root(chosen, first ^ 1)


@compiled
def _find_root(chosen: np.ndarray, at: int) -> int:
    while chosen[at] != at:
        at = chosen[at]
    return at
