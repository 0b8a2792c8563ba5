"""The compiled search behind ``edit_distance``: depth-first branch and bound over the mappings of one pair.

With unit costs some cheapest edit path maps every node of the smaller graph to a node of the larger one (to map a
node never costs more than to delete it and to insert another), so the search space is the injections. Nodes of the
smaller graph are called rows, those of the larger one columns.

At a partial mapping, what is still to pay is relaxed to an assignment problem. A row i on a column j costs: its
label; its edges to mapped nodes, exactly; and half of what the labels of its other edges cannot agree on, half
because such an edge is seen from both of its ends. The optimum is a lower bound, the assignment itself is a mapping
and so an upper bound, and the reduced costs bound every child before it is visited. All costs are counted in halves.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsokr.compute import compiled

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

DEPTH, PAID, BEST = 0, 1, 2  # positions in Partial.tally
FAR = 1 << 60
SLICE = 1 << 22  # entries of matrices that a slice of search goes through


class Graphs(NamedTuple):
    """Graphs as flat arrays, as in a ``GraphBatch``, with edge labels 1, 2, … up to ``kinds``."""

    offsets: Integers
    labels: Integers
    indptr: Integers
    neighbors: Integers
    edge_labels: Integers
    kinds: int


class Pair(NamedTuple):
    """Two graphs, the smaller one in the rows."""

    row_labels: Integers
    row_edges: Integers  # adjacency matrix: 0, or the label of the edge
    column_labels: Integers
    column_edges: Integers
    twin: Integers  # columns that can be exchanged for each other share this number


class Partial(NamedTuple):
    """A partial mapping and what follows from it."""

    column: Integers  # of each row, or -1
    taken: Flags
    anchored: Integers  # cost of a row on a column: label, and edges to mapped nodes
    insertion: Integers  # cost of a column that no row takes: node, edges to mapped nodes, and half of the others
    row_open: Integers  # edges to nodes that are not mapped, by label; in column 0 all of them
    column_open: Integers
    tally: Integers  # number of mapped rows, what was paid for them, best distance known


class Assignment(NamedTuple):
    """An assignment problem over the unmapped rows and columns, its solution, and room to work."""

    row: Integers
    column: Integers
    cost: Integers
    row_price: Integers  # dual variables: cost[r, c] ≥ row_price[r] + column_price[c], equal where r is on c
    column_price: Integers
    column_of: Integers
    row_of: Integers
    distance: Integers
    before: Integers
    scanned: Flags


class Choices(NamedTuple):
    """By depth: the row that is mapped there and the columns it has still to try, best last."""

    row: Integers
    column: Integers
    bound: Integers  # below this choice, in halves
    left: Integers


class Search(NamedTuple):
    """A search under way. It can be stopped and continued."""

    pair: Pair
    partial: Partial
    relaxed: Assignment
    choices: Choices


@compiled
def first_slices(left: Graphs, right: Graphs, start: int, found: Integers) -> None:  # found: (pairs, 2)
    """Lower and upper bounds for the pairs from ``start`` on after one slice of search each.

    They are equal for nearly all small graphs.
    """
    for at in range(len(found)):
        search = begin(left, right, start + at)
        advance(search)
        found[at, 0], found[at, 1] = known(search)


@compiled
def begin(left: Graphs, right: Graphs, at: int) -> Search:
    """The search for the distance of the graphs at that position. A side with one graph repeats it."""
    g, h = at % (left.offsets.size - 1), at % (right.offsets.size - 1)
    one, other = _dense(left, g), _dense(right, h)
    small, large = (one, other) if one[0].size <= other[0].size else (other, one)
    pair = Pair(small[0], small[1], large[0], large[1], _twins(large[0], large[1]))
    n, m = small[0].size, large[0].size
    partial = _empty_mapping(pair, left.kinds)
    relaxed = Assignment(
        np.empty(n, np.int64),
        np.empty(m, np.int64),
        np.empty((n, m), np.int64),
        np.empty(n, np.int64),
        np.empty(m, np.int64),
        np.empty(n, np.int64),
        np.empty(m, np.int64),
        np.empty(m, np.int64),
        np.empty(m, np.int64),
        np.empty(m, np.bool_),
    )
    levels = n + 1
    choices = Choices(
        np.empty(levels, np.int64),
        np.empty((levels, m), np.int64),
        np.empty((levels, m), np.int64),
        np.zeros(levels, np.int64),
    )
    _expand(pair, partial, relaxed, choices)
    return Search(pair, partial, relaxed, choices)


@compiled
def advance(search: Search) -> bool:
    """Search one slice further. True when nothing is left to search."""
    pair, partial, relaxed, choices = search
    n, m = partial.anchored.shape
    for _ in range(1 + SLICE // (n * n * m + 1)):
        if not _descend(pair, partial, choices):
            return True
        _expand(pair, partial, relaxed, choices)
    return False


@compiled
def known(search: Search) -> tuple[int, int]:
    """The bounds on the distance established so far."""
    choices, tally = search.choices, search.partial.tally
    lower = tally[BEST]
    for depth in range(tally[DEPTH] + 1):
        left = choices.left[depth]
        if left:
            lower = min(lower, _whole(choices.bound[depth, left - 1]))
    return lower, tally[BEST]


@compiled
def _dense(graphs: Graphs, g: int) -> tuple[Integers, Integers]:
    first, last = graphs.offsets[g], graphs.offsets[g + 1]
    edges = np.zeros((last - first, last - first), np.int64)
    for i in range(first, last):
        for slot in range(graphs.indptr[i], graphs.indptr[i + 1]):
            edges[i - first, graphs.neighbors[slot] - first] = graphs.edge_labels[slot]
    return graphs.labels[first:last], edges


@compiled
def _twins(labels: Integers, edges: Integers) -> Integers:
    """For every node the first one with the same label and the same neighbours; often the node itself."""
    twin = np.arange(labels.size)
    for j in range(labels.size):
        for k in range(j):
            if twin[k] == k and labels[k] == labels[j] and _same_neighbours(edges, j, k):
                twin[j] = k
                break
    return twin


@compiled
def _same_neighbours(edges: Integers, j: int, k: int) -> bool:
    for other in range(len(edges)):  # noqa: SIM110 - compiled code has no any() over generators
        if other != j and other != k and edges[j, other] != edges[k, other]:
            return False
    return True


@compiled
def _empty_mapping(pair: Pair, kinds: int) -> Partial:
    n, m = pair.row_labels.size, pair.column_labels.size
    anchored = np.empty((n, m), np.int64)
    for i in range(n):
        for j in range(m):
            anchored[i, j] = 0 if pair.row_labels[i] == pair.column_labels[j] else 2
    row_open, column_open = _edges_by_label(pair.row_edges, kinds), _edges_by_label(pair.column_edges, kinds)
    unmapped, taken = np.full(n, -1, np.int64), np.zeros(m, np.bool_)
    return Partial(unmapped, taken, anchored, 2 + column_open[:, 0], row_open, column_open, np.array([0, 0, FAR]))


@compiled
def _edges_by_label(edges: Integers, kinds: int) -> Integers:  # (nodes, 1 + kinds)
    count = np.zeros((len(edges), 1 + kinds), np.int64)
    for i in range(len(edges)):
        for k in range(len(edges)):
            if edges[i, k]:
                count[i, edges[i, k]] += 1
                count[i, 0] += 1
    return count


@compiled
def _descend(pair: Pair, partial: Partial, choices: Choices) -> bool:
    """Map the next row that can still lead to something better, going back as far as needed. False when none can."""
    tally = partial.tally
    while True:
        depth = tally[DEPTH]
        last = choices.left[depth] - 1
        if last >= 0 and _whole(choices.bound[depth, last]) < tally[BEST]:
            choices.left[depth] = last
            _map(pair, partial, choices.row[depth], choices.column[depth, last], 1)
            return True
        choices.left[depth] = 0
        if depth == 0:
            return False
        row = choices.row[depth - 1]
        _map(pair, partial, row, partial.column[row], -1)


@compiled
def _map(pair: Pair, partial: Partial, row: int, column: int, sign: int) -> None:
    """Put the row on the column (sign = 1) or take it back (sign = -1)."""
    partial.column[row] = column if sign > 0 else -1
    partial.taken[column] = sign > 0
    partial.tally[DEPTH] += sign
    partial.tally[PAID] += sign * partial.anchored[row, column]
    n, m = partial.anchored.shape
    for i in range(n):
        mine = pair.row_edges[row, i]
        if mine:
            partial.row_open[i, mine] -= sign
            partial.row_open[i, 0] -= sign
        for j in range(m):
            if mine != pair.column_edges[column, j]:
                partial.anchored[i, j] += 2 * sign
    for j in range(m):
        theirs = pair.column_edges[column, j]
        if theirs:
            partial.column_open[j, theirs] -= sign
            partial.column_open[j, 0] -= sign
            partial.insertion[j] += sign  # half of the edge was counted already


@compiled
def _expand(pair: Pair, partial: Partial, relaxed: Assignment, choices: Choices) -> None:
    """Bound the distance below the current mapping from both sides, and list the choices worth a try."""
    tally = partial.tally
    choices.left[tally[DEPTH]] = 0
    halves = _relax(partial, relaxed)
    if _whole(halves) >= tally[BEST]:
        return
    tally[BEST] = min(tally[BEST], _completed(pair, partial, relaxed))
    if _whole(halves) < tally[BEST]:
        _branch(pair.twin, partial, relaxed, choices, halves)


@compiled
def _whole(halves: int) -> int:
    return (halves + 1) // 2  # a distance is an integer, so a bound is rounded up


@compiled
def _relax(partial: Partial, relaxed: Assignment) -> int:
    """The lower bound below the current mapping, in halves."""
    n, m = partial.anchored.shape
    rows, columns, halves = 0, 0, partial.tally[PAID]
    for i in range(n):
        if partial.column[i] < 0:
            relaxed.row[rows] = i
            rows += 1
    for j in range(m):
        if not partial.taken[j]:
            relaxed.column[columns] = j
            columns += 1
            halves += partial.insertion[j]  # every column is inserted, and the assignment takes that back
    kinds = partial.row_open.shape[1]
    for r in range(rows):
        i = relaxed.row[r]
        for c in range(columns):
            j = relaxed.column[c]
            cost = partial.anchored[i, j] - partial.insertion[j]
            cost += max(partial.row_open[i, 0], partial.column_open[j, 0])
            for kind in range(1, kinds):
                cost -= min(partial.row_open[i, kind], partial.column_open[j, kind])
            relaxed.cost[r, c] = cost
    return halves + _solve(relaxed, rows, columns)


@compiled
def _solve(problem: Assignment, rows: int, columns: int) -> int:
    """The least cost of giving each row a column of its own, by shortest augmenting paths. Needs rows ≤ columns.

    Columns left over have price 0 and the others at most 0, which keeps reduced costs valid as bounds.
    """
    cost, row_of = problem.cost, problem.row_of
    problem.column_price[:columns] = 0
    problem.column_of[:rows] = -1
    row_of[:columns] = -1
    for r in range(rows):
        best = 0
        for c in range(1, columns):
            if cost[r, c] < cost[r, best] or (cost[r, c] == cost[r, best] and row_of[best] >= 0):
                best = c
        problem.row_price[r] = cost[r, best]
        if row_of[best] < 0:
            row_of[best] = r
            problem.column_of[r] = best
    total = 0
    for r in range(rows):
        if problem.column_of[r] < 0:
            _augment(problem, r, columns)
    for r in range(rows):
        total += cost[r, problem.column_of[r]]
    return total


@compiled
def _augment(problem: Assignment, free: int, columns: int) -> None:
    """Give a free row a column along the cheapest path on which other rows move over."""
    last = _cheapest_path(problem, free, columns)
    reach = problem.distance[last]
    problem.row_price[free] += reach
    for c in range(columns):
        if problem.scanned[c] and c != last:
            problem.column_price[c] += problem.distance[c] - reach
            problem.row_price[problem.row_of[c]] += reach - problem.distance[c]
    while last >= 0:
        before = problem.before[last]
        row = free if before < 0 else problem.row_of[before]
        problem.row_of[last] = row
        problem.column_of[row] = last
        last = before


@compiled
def _cheapest_path(problem: Assignment, free: int, columns: int) -> int:
    """Dijkstra's search over reduced costs from a free row; the free column at which it ends."""
    distance, scanned = problem.distance, problem.scanned
    distance[:columns] = FAR
    scanned[:columns] = False
    row, reach, last = free, 0, -1
    while row >= 0:
        nearest = -1
        for c in range(columns):
            if scanned[c]:
                continue
            through = reach + _reduced(problem, row, c)
            if through < distance[c]:
                distance[c] = through
                problem.before[c] = last
            if nearest < 0 or distance[c] < distance[nearest]:
                nearest = c
        last = nearest
        reach = distance[last]
        scanned[last] = True
        row = problem.row_of[last]
    return last


@compiled
def _reduced(problem: Assignment, r: int, c: int) -> int:
    return problem.cost[r, c] - problem.row_price[r] - problem.column_price[c]


@compiled
def _completed(pair: Pair, partial: Partial, relaxed: Assignment) -> int:
    """The distance along the current mapping, completed by the assignment."""
    n, m = partial.anchored.shape
    column = partial.column.copy()
    for r in range(n - partial.tally[DEPTH]):
        column[relaxed.row[r]] = relaxed.column[relaxed.column_of[r]]
    distance = m - n
    for j in range(m):  # every edge of the larger graph is inserted, but for the pairs that come below
        for k in range(j):
            distance += pair.column_edges[j, k] != 0
    for i in range(n):
        distance += pair.row_labels[i] != pair.column_labels[column[i]]
        for k in range(i):
            there = pair.column_edges[column[i], column[k]]
            distance += (pair.row_edges[i, k] != there) - (there != 0)
    return distance


@compiled
def _branch(twin: Integers, partial: Partial, relaxed: Assignment, choices: Choices, halves: int) -> None:
    """Choose the row with the fewest columns worth a try and list these, best last."""
    depth, best = partial.tally[DEPTH], partial.tally[BEST]
    rows, columns = partial.column.size - depth, partial.taken.size - depth
    chosen, fewest, most = 0, FAR, 0
    for r in range(rows):
        count, excess = 0, 0
        for c in range(columns):
            more = _reduced(relaxed, r, c)
            excess += more
            count += _whole(halves + more) < best
        if count < fewest or (count == fewest and excess > most):
            chosen, fewest, most = r, count, excess
    choices.row[depth] = relaxed.row[chosen]
    for c in range(columns):
        bound = halves + _reduced(relaxed, chosen, c)
        if _whole(bound) < best and _first_twin(twin, partial.taken, relaxed.column[c]):
            choices.left[depth] = _insert(
                choices.column[depth], choices.bound[depth], choices.left[depth], relaxed.column[c], bound
            )


@compiled
def _first_twin(twin: Integers, taken: Flags, column: int) -> bool:
    """Whether no twin of the column that comes before it is free: of exchangeable columns one is enough."""
    for other in range(twin[column], column):  # noqa: SIM110 - as above
        if twin[other] == twin[column] and not taken[other]:
            return False
    return True


@compiled
def _insert(columns: Integers, bounds: Integers, count: int, column: int, bound: int) -> int:
    """Keep the list sorted, largest bound first. Its new length."""
    at = count
    while at > 0 and bounds[at - 1] <= bound:
        columns[at], bounds[at] = columns[at - 1], bounds[at - 1]
        at -= 1
    columns[at], bounds[at] = column, bound
    return count + 1
