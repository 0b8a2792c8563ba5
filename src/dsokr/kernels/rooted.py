"""Names of rooted neighbourhoods that are equal if and only if the neighbourhoods are isomorphic.

A neighbourhood that is a tree is named from its leaves up. In any other, nodes are coloured by invariants: label,
distance from the root, and the colours around, refined until stable. If the nodes that share their colour induce a
forest, the colours determine the neighbourhood: colour refinement identifies forests, and how the other nodes connect
is part of the colours. Otherwise each node of a canonical class is individualised in turn and the colours refined
again; the smallest of the names is a complete invariant. Nodes that lead to the same leaf of this search as the first
are its images under an automorphism and are not followed further, so that symmetric neighbourhoods stay cheap. Exact
up to collisions of 64-bit names; exponential time only for graphs constructed to defeat colour refinement.
"""

import numpy as np

from dsokr.compute import compiled, run_in_threads
from dsokr.graphs import GraphBatch
from dsokr.kernels.hashing import mix, pair, pair_all

FEW = 48  # colours up to which all pairs are compared; more are sorted
SHARE = 512  # graphs that a thread processes at once
_NONE = np.uint64(2**64 - 1)
_OWN = np.uint64(0xD6E8FEB86659FD93)  # odd: sets a node's own colour apart from its neighbours'

# Records rather than an array per field: a compiled call counts references to every array that it passes.
NODE = np.dtype(
    [
        ("level", np.int64),  # edges from the root
        ("kind", np.uint64),  # label and level
        ("colour", np.uint64),
        ("fresh", np.uint64),  # the colour after this round
        ("shared", np.bool_),  # whether other nodes have the colour
        ("start", np.int64),  # its edges are the slots from start to stop;
        ("down", np.int64),  # from here on they lead away from the root
        ("stop", np.int64),
        ("full_stop", np.int64),  # where its edges in the whole graph end
    ],
    align=True,
)
SLOT = np.dtype([("end", np.int64), ("bond", np.uint64)])


def name_balls(batch: GraphBatch, radius: int) -> np.ndarray:  # (radius + 1, nodes) uint64
    """Name, for r = 0, …, radius and every node v, the subgraph up to r edges away from v, rooted at v."""
    names = np.empty((radius + 1, len(batch.labels)), np.uint64)

    def fill(start: int, stop: int) -> None:
        part = batch[start:stop]
        nodes = np.empty(np.diff(part.offsets).max(), NODE)
        slots = np.empty(np.diff(part.indptr[part.offsets]).max(), SLOT)
        out = names[:, batch.offsets[start] : batch.offsets[stop]]
        labels, bonds = pair_all(_OWN, part.labels), pair_all(_OWN, part.edge_labels) | np.uint64(1)
        _fill_names(labels, part.indptr, part.neighbors, bonds, nodes, slots, out)

    run_in_threads(fill, len(batch), SHARE)
    return names


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
def _fill_names(
    labels: np.ndarray,
    indptr: np.ndarray,
    neighbors: np.ndarray,
    edge_labels: np.ndarray,
    nodes: np.ndarray,
    slots: np.ndarray,
    names: np.ndarray,
) -> None:
    """Fill in the names. Nodes of a neighbourhood are numbered by breadth-first search: smaller radii come first."""
    radius = len(names) - 1
    depth, place = np.full(len(labels), -1), np.empty(len(labels), np.int64)
    queue = np.empty(len(nodes), np.int64)
    for root in range(len(labels)):
        reached = breadth_first(root, radius, indptr, neighbors, queue, depth)
        for i in range(reached):
            u = queue[i]
            place[u], nodes[i].level, nodes[i].kind = i, depth[u], mix(labels[u] + np.uint64(depth[u]))
        free = 0
        for i in range(reached):
            u = queue[i]
            nodes[i].start = free
            free += indptr[u + 1] - indptr[u]
            up, away = nodes[i].start, free
            for k in range(indptr[u], indptr[u + 1]):
                v = neighbors[k]
                if 0 <= depth[v] <= depth[u]:
                    slots[up].end, slots[up].bond = place[v], edge_labels[k]
                    up += 1
                else:
                    away -= 1
                    slots[away].end, slots[away].bond = place[v], edge_labels[k]
            nodes[i].down, nodes[i].full_stop = up, free
        size = 0
        for r in range(radius + 1):
            before = size
            while size < reached and nodes[size].level <= r:
                size += 1
            for i in range(size):  # at the radius itself, edges away from the root lead out
                nodes[i].stop = nodes[i].full_stop if nodes[i].level < r else nodes[i].down
            names[r, root] = names[r - 1, root] if size == before else _name_rooted(size, nodes, slots)
        for i in range(reached):
            depth[queue[i]] = -1


@compiled
def _name_rooted(size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """The name of the neighbourhood that consists of the first ``size`` nodes."""
    count = 0
    for i in range(size - 1, -1, -1):  # from the farthest nodes to the root: every colour includes the colours below
        below = np.uint64(0)
        for k in range(nodes[i].down, nodes[i].stop):
            below += slots[k].bond * nodes[slots[k].end].colour
        nodes[i].colour = mix(nodes[i].kind + below)
        count += nodes[i].stop - nodes[i].start
    if count == 2 * (size - 1):  # a tree
        return nodes[0].colour
    for i in range(1, size):  # and back: every colour includes those above
        above = np.uint64(0)
        for k in range(nodes[i].start, nodes[i].down):
            if nodes[slots[k].end].level < nodes[i].level:
                above += slots[k].bond * nodes[slots[k].end].colour
        nodes[i].colour = mix(_OWN * nodes[i].colour + above)
    return _name_coloured(size, nodes, slots)


@compiled
def _name_coloured(size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """The name of a coloured graph, the same for isomorphic graphs only."""
    name = _refine(size, nodes, slots)
    chosen = _choose_class(size, nodes, slots)
    if chosen == _NONE:
        return name
    smallest, first_leaf = _NONE, _NONE
    for i in range(size):
        if nodes[i].shared and nodes[i].colour == chosen:
            copy = nodes[:size].copy()
            leaf = _name_leaf(i, size, copy, slots)
            if leaf != first_leaf:
                copy[:] = nodes[:size]
                copy[i].colour = mix(copy[i].colour)
                smallest = min(smallest, _name_coloured(size, copy, slots))
            first_leaf = leaf if first_leaf == _NONE else first_leaf
    return pair(name, smallest)


@compiled
def _name_leaf(node: int, size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """Individualise the node, then always the first node of the chosen class, until the colours determine the graph."""
    while True:
        nodes[node].colour = mix(nodes[node].colour)
        name = _refine(size, nodes, slots)
        chosen = _choose_class(size, nodes, slots)
        if chosen == _NONE:
            return name
        node = 0
        while not (nodes[node].shared and nodes[node].colour == chosen):
            node += 1


@compiled
def _refine(size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """Refine the colours until no class splits; return a name of the colours and of the colours around them."""
    before, classes = 0, _count_classes(size, nodes)
    while True:
        name = np.uint64(0)
        for i in range(size):
            around = np.uint64(0)
            for k in range(nodes[i].start, nodes[i].stop):
                around += slots[k].bond * nodes[slots[k].end].colour
            nodes[i].fresh = mix(_OWN * nodes[i].colour + around)
            name += nodes[i].fresh
        if classes in (size, before):
            return mix(name)
        for i in range(size):
            nodes[i].colour = nodes[i].fresh
        before, classes = classes, _count_classes(size, nodes)


@compiled
def _count_classes(size: int, nodes: np.ndarray) -> int:
    """Count the colours, and mark the nodes whose colour is shared."""
    classes = size
    for i in range(size):
        nodes[i].shared = False
    if size > FEW:
        order = np.argsort(nodes["colour"][:size].copy())
        for k in range(1, size):
            i, j = order[k - 1], order[k]
            if nodes[i].colour == nodes[j].colour:
                nodes[i].shared = nodes[j].shared = True
                classes -= 1
        return classes
    for i in range(size):
        for j in range(i):
            if nodes[i].colour == nodes[j].colour:
                nodes[i].shared = nodes[j].shared = True
                classes -= 1
                break
    return classes


@compiled
def _choose_class(size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """The smallest colour on a cycle of nodes with shared colours, or between such cycles; _NONE if there is no cycle.

    Nodes with fewer than two neighbours among the shared ones are removed from them until none is left.
    """
    changed, smallest = True, _NONE
    while changed:
        changed, smallest = False, _NONE
        for i in range(size):
            if nodes[i].shared:
                degree = 0
                for k in range(nodes[i].start, nodes[i].stop):
                    degree += nodes[slots[k].end].shared
                if degree < 2:
                    nodes[i].shared, changed = False, True
                else:
                    smallest = min(smallest, nodes[i].colour)
    return smallest
