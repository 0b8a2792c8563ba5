"""Weisfeiler-Lehman colours of the nodes of graphs, counted without forming φ; after an edit, only those it changes."""

import numpy as np

from dsokr.compute import compiled, inlined
from dsokr.decoders.edits import WIDTH
from dsokr.decoders.moves import read_matrix
from dsokr.kernels.graphs import link, surround
from dsokr.kernels.hashing import find, mix, pair


@compiled
def name_coordinate(identity, value):  # type: ignore[no-untyped-def]  # compiled for uint64 and float64
    """What a coordinate adds to the name of a vector."""
    return mix(identity) * np.uint64(np.int64(np.floor(value * 1048576.0 + 0.5)))


@compiled
def count_colours(offsets, colours, ids, slots, owners, table):  # type: ignore[no-untyped-def] # compiled
    """Σ_c table_c φ_c, Σ_c φ_c² and the name of φ where φ counts ``colours``, (iterations + 1, nodes).

    Σ_c φ_c² is the number of pairs of nodes of one colour.
    """
    sums, squares = np.zeros((len(owners), table.shape[2])), np.zeros(len(owners))
    names = np.zeros(len(owners), np.uint64)
    for i in range(len(owners)):
        for t in range(len(colours)):
            own, pairs = colours[t, offsets[i] : offsets[i + 1]], 0
            for v in range(len(own)):
                identity = pair(t, own[v])
                at = find(slots, ids, identity)
                if at >= 0:
                    for d in range(table.shape[2]):
                        sums[i, d] += table[owners[i], at, d]
                names[i] += name_coordinate(identity, 1.0)
                for u in range(v):
                    pairs += own[u] == own[v]
            squares[i] += len(own) + 2 * pairs
    return sums, squares, names


@compiled
def recount_colours(  # type: ignore[no-untyped-def] # compiled
    graphs, edge_labels, colours, use_edges, rows, origins, domain, ids, slots, owners, table, sums, squares, names
):
    """Turn sums, squares and names of graphs, once for each of their edits, into those after the edits.

    An edit changes colours of refinement t at most t edges away from what it touches: no others are computed. Labels of
    ``graphs`` are those of the domain; ``edge_labels`` are what they stand for.
    """
    offsets, _, indptr, neighbors, _ = graphs
    labels, orders, was = domain.labels, domain.edge_labels, np.zeros(WIDTH, np.int64)
    for e in range(len(rows)):
        g, edit = origins[e], rows[e]
        first, n = offsets[g], offsets[g + 1] - offsets[g]
        if e == 0 or g != origins[e - 1]:
            trial, weights = read_matrix(graphs, g), table[owners[g]]
            new, columns = _look_up(colours[:, first : first + n], ids, slots)
            near, is_near, there = np.empty(n + 1, np.int64), np.zeros(n + 1, np.bool_), np.empty(n + 1, np.bool_)
        for k in range(1, 1 + 3 * edit[0], 3):
            i, j = edit[k], edit[k + 1]
            was[k + 2], trial[i, j], trial[j, i] = trial[i, j], edit[k + 2], edit[k + 2]
        start, count = 0, 0
        for t in range(len(colours)):
            start, count = count, _spread(edit, t, first, n, indptr, neighbors, near, is_near, start, count)
            there[:n], there[n] = True, False
            now, last = new[t], new[max(t, 1) - 1]
            for at in range(count):
                v = near[at]
                stays, colour = trial[v, v] != 0, _decode(labels, trial[v, v])
                if t:
                    around = _relink(v, edit, was, last, orders, use_edges)
                    if v < n:
                        around += surround(first + v, first, last, indptr, neighbors, edge_labels, use_edges)
                    colour = np.int64(pair(last[v], around))
                if v < n and stays and colour == now[v]:
                    continue
                if v < n:
                    squares[e] -= 2 * _count_equal(now, there, now[v]) - 1
                    names[e] += name_coordinate(pair(t, now[v]), -1.0)
                    _add(sums, e, -1.0, weights, columns[t, v])
                now[v], there[v] = colour, stays
                if stays:
                    squares[e] += 2 * _count_equal(now, there, colour) - 1
                    names[e] += name_coordinate(pair(t, colour), 1.0)
                    _add(sums, e, 1.0, weights, find(slots, ids, pair(t, colour)))
        for v in near[:count]:
            is_near[v] = False
            for t in range(len(colours) if v < n else 0):
                new[t, v] = colours[t, first + v]
        for k in range(3 * edit[0] - 2, 0, -3):
            trial[edit[k], edit[k + 1]] = trial[edit[k + 1], edit[k]] = was[k + 2]


@compiled
def _look_up(colours, ids, slots):  # type: ignore[no-untyped-def] # compiled
    """The colours of a graph, with room for one more node, and their columns in the table: −1 for none."""
    new, columns = np.zeros((len(colours), colours.shape[1] + 1), np.int64), np.empty(colours.shape, np.int64)
    for t, v in np.ndindex(colours.shape):
        new[t, v], columns[t, v] = colours[t, v], find(slots, ids, pair(t, colours[t, v]))
    return new, columns


@inlined
def _spread(edit, t, first, n, indptr, neighbors, near, is_near, start, count):  # type: ignore[no-untyped-def] # compiled
    """Append the nodes whose colours change from refinement t on; those of refinement t − 1 are at ``start``."""
    for at in range(start, count):
        if near[at] < n:
            for k in range(indptr[first + near[at]], indptr[first + near[at] + 1]):
                count = _append(near, is_near, count, neighbors[k] - first)
    for k in range(1, 1 + 3 * edit[0], 3):
        if t == 1 or edit[k] == edit[k + 1]:
            count = _append(near, is_near, count, edit[k])
            count = _append(near, is_near, count, edit[k + 1])
    return count


@inlined
def _append(near, is_near, count, v):  # type: ignore[no-untyped-def] # compiled
    if is_near[v]:
        return count
    near[count], is_near[v] = v, True
    return count + 1


@inlined
def _relink(v, edit, was, labels, orders, use_edges):  # type: ignore[no-untyped-def] # compiled
    """What the edges that an edit makes, changes and breaks add to the sum of the neighbours of v."""
    around = np.uint64(0)
    for k in range(1, 1 + 3 * edit[0], 3):
        i, j = edit[k], edit[k + 1]
        if i != j and v in (i, j):
            other = labels[i + j - v]
            if edit[k + 2]:
                around += link(_decode(orders, edit[k + 2]), other, use_edges)
            if was[k + 2]:
                around -= link(_decode(orders, was[k + 2]), other, use_edges)
    return around


@inlined
def _decode(labels, code):  # type: ignore[no-untyped-def] # compiled
    return labels[code - 1] if len(labels) else code


@inlined
def _count_equal(colours, there, colour):  # type: ignore[no-untyped-def] # compiled
    equal = 0
    for u in range(len(colours)):
        equal += there[u] & (colours[u] == colour)
    return equal


@inlined
def _add(sums, e, sign, weights, column):  # type: ignore[no-untyped-def] # compiled
    if column >= 0:
        for d in range(weights.shape[1]):
            sums[e, d] += sign * weights[column, d]
