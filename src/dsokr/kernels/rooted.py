"""Names of rooted neighbourhoods that are equal exactly when the neighbourhoods are isomorphic.

A neighbourhood that is a tree is named from its leaves up. In any other, nodes are coloured by invariants (label,
distance from the root, colours around, until stable). If the nodes that share their colour induce a forest, the
colours determine the neighbourhood: colour refinement identifies forests, and how the other nodes connect is part of
the colours. Otherwise some node of a canonical class is singled out and the colours refined again, for each node of the
class, and the smallest name stands for all: a complete invariant. Members of the class that lead to the same leaf as
the first are its images under an automorphism and are not followed further, so symmetric neighbourhoods stay cheap.
Exact but for collisions of 64-bit names; exponential time only for graphs made to defeat colour refinement.
"""

from __future__ import annotations

import numpy as np

from dsokr.compute import compiled, run_in_threads
from dsokr.graphs import GraphBatch
from dsokr.kernels.hashing import keys, mix, pair
from dsokr.kernels.paths import breadth_first

SHARE = 512  # graphs done at once by a thread
FEW = 48  # colours up to which all pairs are compared; beyond, they are sorted
_LARGEST = np.uint64(2**64 - 1)
_OWN = np.uint64(0xD6E8FEB86659FD93)  # a node's own colour counts differently from its neighbours', by an odd factor

# Records rather than an array per field: compiled functions count references to every array they are handed.
NODE = np.dtype(
    [
        ("level", np.int64),  # edges from the root
        ("kind", np.uint64),  # label and level
        ("colour", np.uint64),
        ("fresh", np.uint64),  # the colour after this round
        ("shared", np.bool_),  # whether other nodes have the colour
        ("start", np.int64),  # its edges are the slots from start to stop,
        ("down", np.int64),  # from here on those that lead away from the root
        ("stop", np.int64),
        ("full_stop", np.int64),  # where its edges in the whole graph end
    ],
    align=True,
)
SLOT = np.dtype([("end", np.int64), ("bond", np.uint64)])


def name_balls(batch: GraphBatch, radius: int) -> np.ndarray:  # (radius + 1, nodes) uint64
    """For r = 0, …, radius and every node v, the name of the subgraph up to r edges away from v, rooted at v."""
    names = np.empty((radius + 1, len(batch.labels)), np.uint64)

    def fill(start: int, stop: int) -> None:
        part = batch[start:stop]
        nodes = np.empty(np.diff(part.offsets).max(), NODE)
        slots = np.empty(np.diff(part.indptr[part.offsets]).max(), SLOT)
        out = names[:, batch.offsets[start] : batch.offsets[stop]]
        bonds = keys(part.edge_labels) | np.uint64(1)
        _fill_names(keys(part.labels), part.indptr, part.neighbors, bonds, nodes, slots, out)

    run_in_threads(fill, len(batch), SHARE)
    return names


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
    """Nodes of a neighbourhood are numbered by their place in the queue, so those of smaller radii come first."""
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
            names[r, root] = names[r - 1, root] if size == before else _rooted_name(size, nodes, slots)
        for i in range(reached):
            depth[queue[i]] = -1


@compiled
def _rooted_name(size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """The name of the first ``size`` nodes, which are those up to some level."""
    count = 0
    for i in range(size - 1, -1, -1):  # from the farthest nodes to the root: every colour holds the colours below
        below = np.uint64(0)
        for k in range(nodes[i].down, nodes[i].stop):
            below += slots[k].bond * nodes[slots[k].end].colour
        nodes[i].colour = mix(nodes[i].kind + below)
        count += nodes[i].stop - nodes[i].start
    if count == 2 * (size - 1):
        return nodes[0].colour
    for i in range(1, size):  # and back: every colour holds those above
        above = np.uint64(0)
        for k in range(nodes[i].start, nodes[i].down):
            if nodes[slots[k].end].level < nodes[i].level:
                above += slots[k].bond * nodes[slots[k].end].colour
        nodes[i].colour = mix(_OWN * nodes[i].colour + above)
    return _name(size, nodes, slots)


@compiled
def _name(size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """The name of a coloured graph, the same for isomorphic ones only."""
    name = _stabilise(size, nodes, slots)
    if not _has_cycle(size, nodes, slots):
        return name
    chosen = _chosen(size, nodes)
    smallest, first_leaf, seen = _LARGEST, np.uint64(0), False
    for i in range(size):
        if nodes[i].shared and nodes[i].colour == chosen:
            below = nodes[:size].copy()
            leaf = _leaf(i, size, below, slots)
            if seen and leaf == first_leaf:
                continue
            if not seen:
                seen, first_leaf = True, leaf
            below[:] = nodes[:size]
            below[i].colour = mix(below[i].colour)
            smallest = min(smallest, _name(size, below, slots))
    return pair(name, smallest)


@compiled
def _leaf(node: int, size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """Single out the node, then always the first of the class to choose from, until the colours tell everything."""
    while True:
        nodes[node].colour = mix(nodes[node].colour)
        name = _stabilise(size, nodes, slots)
        if not _has_cycle(size, nodes, slots):
            return name
        chosen = _chosen(size, nodes)
        node = 0
        while not (nodes[node].shared and nodes[node].colour == chosen):
            node += 1


@compiled
def _stabilise(size: int, nodes: np.ndarray, slots: np.ndarray) -> np.uint64:
    """Refine the colours until they tell no more nodes apart; ``shared`` then marks those of a common colour.

    Returns a name for the colours and for what is around nodes of each colour.
    """
    before, classes = 0, _classes(size, nodes)
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
        before, classes = classes, _classes(size, nodes)


@compiled
def _classes(size: int, nodes: np.ndarray) -> int:
    """How many different colours there are; ``shared`` is set where a node's colour is not its own."""
    classes = size
    for i in range(size):
        nodes[i].shared = False
    if size <= FEW:
        for i in range(size):
            for j in range(i):
                if nodes[i].colour == nodes[j].colour:
                    nodes[i].shared = nodes[j].shared = True
                    classes -= 1
                    break
        return classes
    colours = np.empty(size, np.uint64)
    for i in range(size):
        colours[i] = nodes[i].colour
    order = np.argsort(colours)
    for k in range(1, size):
        if colours[order[k]] == colours[order[k - 1]]:
            nodes[order[k]].shared = nodes[order[k - 1]].shared = True
            classes -= 1
    return classes


@compiled
def _has_cycle(size: int, nodes: np.ndarray, slots: np.ndarray) -> bool:
    """Whether the nodes of shared colour induce a cycle. Leaves are taken out of ``shared`` until there are none."""
    ends = 0
    for i in range(size):
        if nodes[i].shared:
            for k in range(nodes[i].start, nodes[i].stop):
                ends += nodes[slots[k].end].shared
    if ends < 6:  # fewer edges than a triangle has, which is the most frequent case
        return False
    degree, left = np.zeros(size, np.int64), 0
    leaves, count = np.empty(size, np.int64), 0
    for i in range(size):
        if nodes[i].shared:
            left += 1
            for k in range(nodes[i].start, nodes[i].stop):
                degree[i] += nodes[slots[k].end].shared
            if degree[i] <= 1:
                leaves[count] = i
                count += 1
    while count > 0:
        count -= 1
        i = leaves[count]
        nodes[i].shared = False
        left -= 1
        for k in range(nodes[i].start, nodes[i].stop):
            j = slots[k].end
            if nodes[j].shared:
                degree[j] -= 1
                if degree[j] == 1:
                    leaves[count] = j
                    count += 1
    return left > 0


@compiled
def _chosen(size: int, nodes: np.ndarray) -> np.uint64:
    """The smallest of the shared colours."""
    smallest = _LARGEST
    for i in range(size):
        if nodes[i].shared:
            smallest = min(smallest, nodes[i].colour)
    return smallest
