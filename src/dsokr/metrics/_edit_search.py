"""The compiled search behind ``edit_distance``: depth-first branch and bound over the mappings of one pair of graphs.

With unit costs some cheapest edit path maps every node of the smaller graph to a node of the larger one (mapping a node
never costs more than deleting it and inserting another), so the search space is the injections. Nodes of the smaller
graph are called rows, those of the larger one columns.

At a partial mapping, the remaining cost is relaxed to an assignment problem. A row i on a column j costs its label; its
edges to mapped nodes, exactly; and half of what the labels of its other edges cannot agree on, half because such an
edge is seen from both ends. The optimum is a lower bound; the assignment itself is a mapping, hence an upper bound; the
reduced costs bound every child before it is visited. All costs are counted in halves.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsokr.compute import compiled, inlined

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

DEPTH, PAID, BEST = 0, 1, 2  # positions in Partial.tally
FAR = 1 << 60
SLICE = 1 << 22  # matrix entries that a slice of search visits


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
    row_open: Integers  # number of edges to unmapped nodes by label; in column 0 all of them
    column_open: Integers
    tally: Integers  # number of mapped rows, cost paid for them, best distance known


class Assignment(NamedTuple):
    """An assignment problem over the unmapped rows and columns, its solution, and work space."""

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


class Search(NamedTuple):
    """The state of a search."""

    pair: Pair
    partial: Partial
    relaxed: Assignment
    row: Integers  # by depth: the row that is mapped there
    bound: Integers  # by depth and column, in halves: bound below that choice, FAR if not worth a try


@compiled
def search_briefly(left: Graphs, right: Graphs, start: int, found: Integers) -> None:  # found: (pairs, 2)
    """Bound the distances of the pairs from ``start`` on by one slice of search each, exact for most small graphs."""
    for at in range(len(found)):
        search = begin(left, right, start + at)
        advance(search)
        found[at, 0], found[at, 1] = read_bounds(search)


@compiled
def begin(left: Graphs, right: Graphs, at: int) -> Search:
    """Begin the search for the distance of the graphs at that position. A side with one graph repeats it."""
    one, other = _dense(left, at % (left.offsets.size - 1)), _dense(right, at % (right.offsets.size - 1))
    small, large = (one, other) if one[0].size <= other[0].size else (other, one)
    pair = Pair(small[0], small[1], large[0], large[1], _find_twins(large[0], large[1]))
    n, m = small[0].size, large[0].size
    rows, columns, scanned = np.empty((3, n), np.int64), np.empty((5, m), np.int64), np.empty(m, np.bool_)
    cost, bound = np.empty((n, m), np.int64), np.empty((n + 1, m), np.int64)
    relaxed = Assignment(
        rows[0], columns[0], cost, rows[1], columns[1], rows[2], columns[2], columns[3], columns[4], scanned
    )
    search = Search(pair, _empty_mapping(pair, left.kinds), relaxed, np.empty(n + 1, np.int64), bound)
    _expand(search)
    return search


@compiled
def advance(search: Search) -> bool:
    """Search one slice further. True when nothing is left to search."""
    n, m = search.partial.anchored.shape
    for _ in range(1 + SLICE // (n * n * m + 1)):
        if not _descend(search):
            return True
        _expand(search)
    return False


@compiled
def read_bounds(search: Search) -> tuple[int, int]:
    """The lower and upper bound on the distance established so far."""
    best, bounds = search.partial.tally[BEST], search.bound[: search.partial.tally[DEPTH] + 1]
    lower = bounds.min() if bounds.size else FAR
    return min(best, _round_up(lower)), best


@compiled
def _dense(graphs: Graphs, g: int) -> tuple[Integers, Integers]:
    first, last = graphs.offsets[g], graphs.offsets[g + 1]
    edges = np.zeros((last - first, last - first), np.int64)
    for i in range(first, last):
        for slot in range(graphs.indptr[i], graphs.indptr[i + 1]):
            edges[i - first, graphs.neighbors[slot] - first] = graphs.edge_labels[slot]
    return graphs.labels[first:last], edges


@compiled
def _find_twins(labels: Integers, edges: Integers) -> Integers:
    """Find for every node the first one with the same label and the same neighbours; often the node itself."""
    twin = np.arange(labels.size)
    for j in range(labels.size):
        for k in range(j):
            if twin[k] == k and labels[k] == labels[j]:
                differences = (edges[j] != edges[k]).sum()
                if differences == 2 * (edges[j, k] != 0):  # an edge between the two does not count
                    twin[j] = k
                    break
    return twin


@compiled
def _empty_mapping(pair: Pair, kinds: int) -> Partial:
    n, m = pair.row_labels.size, pair.column_labels.size
    anchored = 2 * (pair.row_labels[:, np.newaxis] != pair.column_labels).astype(np.int64)
    row_open, column_open = _count_edges(pair.row_edges, kinds), _count_edges(pair.column_edges, kinds)
    unmapped, taken = np.full(n, -1, np.int64), np.zeros(m, np.bool_)
    return Partial(unmapped, taken, anchored, 2 + column_open[:, 0], row_open, column_open, np.array([0, 0, FAR]))


@compiled
def _count_edges(edges: Integers, kinds: int) -> Integers:  # (nodes, 1 + kinds)
    """Count the edges of every node by label; in column 0 all of them."""
    count = np.zeros((len(edges), 1 + kinds), np.int64)
    for i in range(len(edges)):
        for label in edges[i]:
            if label:
                count[i, label] += 1
                count[i, 0] += 1
    return count


@inlined
def _descend(search: Search) -> bool:
    """Map the next row that can still lead to something better, backtracking as needed. False when none can."""
    tally = search.partial.tally
    while True:
        depth = tally[DEPTH]
        bounds = search.bound[depth]
        best = bounds.argmin() if bounds.size else 0
        if bounds.size and _round_up(bounds[best]) < tally[BEST]:
            bounds[best] = FAR
            _map(search.pair, search.partial, search.row[depth], best, 1)
            return True
        bounds[:] = FAR
        if depth == 0:
            return False
        row = search.row[depth - 1]
        _map(search.pair, search.partial, row, search.partial.column[row], -1)


@compiled
def _map(pair: Pair, partial: Partial, row: int, column: int, sign: int) -> None:
    """Put the row on the column (sign = 1) or remove it (sign = -1)."""
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


@inlined
def _expand(search: Search) -> None:
    """Bound the distance below the current mapping from both sides, and the choices worth a try."""
    pair, partial, relaxed = search.pair, search.partial, search.relaxed
    tally = partial.tally
    search.bound[tally[DEPTH]] = FAR
    halves = _relax(partial, relaxed)
    if _round_up(halves) < tally[BEST]:
        tally[BEST] = min(tally[BEST], _complete(pair, partial, relaxed))
    if _round_up(halves) < tally[BEST]:
        search.row[tally[DEPTH]] = _branch(pair.twin, partial, relaxed, search.bound[tally[DEPTH]], halves)


@inlined
def _round_up(halves: int) -> int:
    return (halves + 1) // 2  # a distance is an integer


@inlined
def _relax(partial: Partial, relaxed: Assignment) -> int:
    """The lower bound below the current mapping, in halves."""
    rows, columns, halves = 0, 0, partial.tally[PAID]
    for i in range(partial.column.size):
        if partial.column[i] < 0:
            relaxed.row[rows] = i
            rows += 1
    for j in range(partial.taken.size):
        if not partial.taken[j]:
            relaxed.column[columns] = j
            columns += 1
            halves += partial.insertion[j]  # every column is inserted; the assignment subtracts those it takes
    for r in range(rows):
        i = relaxed.row[r]
        for c in range(columns):
            j = relaxed.column[c]
            cost = partial.anchored[i, j] - partial.insertion[j]
            cost += max(partial.row_open[i, 0], partial.column_open[j, 0])
            for kind in range(1, partial.row_open.shape[1]):
                cost -= min(partial.row_open[i, kind], partial.column_open[j, kind])
            relaxed.cost[r, c] = cost
    return halves + _solve(relaxed, rows, columns)


@compiled
def _solve(problem: Assignment, rows: int, columns: int) -> int:
    """The least cost of giving each row a column of its own, by shortest augmenting paths. Needs rows ≤ columns.

    Columns left over have price 0 and the others at most 0, so that reduced costs are valid bounds.
    """
    cost, row_of, column_of = problem.cost, problem.row_of, problem.column_of
    problem.column_price[:columns] = 0
    column_of[:rows] = -1
    row_of[:columns] = -1
    for r in range(rows):
        best = 0
        for c in range(1, columns):
            if cost[r, c] < cost[r, best] or (cost[r, c] == cost[r, best] and row_of[best] >= 0):
                best = c
        problem.row_price[r] = cost[r, best]
        if row_of[best] < 0:
            row_of[best], column_of[r] = r, best
    for r in range(rows):
        if column_of[r] < 0:
            _augment(problem, r, columns)
    total = 0
    for r in range(rows):
        total += cost[r, column_of[r]]
    return total


@inlined
def _augment(problem: Assignment, free: int, columns: int) -> None:
    """Give a free row a column along the cheapest alternating path."""
    last = _find_path(problem, free, columns)
    reach = problem.distance[last]
    problem.row_price[free] += reach
    for c in range(columns):
        if problem.scanned[c] and c != last:
            problem.column_price[c] += problem.distance[c] - reach
            problem.row_price[problem.row_of[c]] += reach - problem.distance[c]
    while last >= 0:
        before = problem.before[last]
        row = free if before < 0 else problem.row_of[before]
        problem.row_of[last], problem.column_of[row] = row, last
        last = before


@inlined
def _find_path(problem: Assignment, free: int, columns: int) -> int:
    """Search from a free row by Dijkstra's algorithm over reduced costs; return the free column where it ends."""
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
                distance[c], problem.before[c] = through, last
            if nearest < 0 or distance[c] < distance[nearest]:
                nearest = c
        last, reach = nearest, distance[nearest]
        scanned[last] = True
        row = problem.row_of[last]
    return last


@inlined
def _reduced(problem: Assignment, r: int, c: int) -> int:
    return problem.cost[r, c] - problem.row_price[r] - problem.column_price[c]


@inlined
def _complete(pair: Pair, partial: Partial, relaxed: Assignment) -> int:
    """The distance along the current mapping, completed by the assignment."""
    n, m = partial.anchored.shape
    column = partial.column.copy()
    for r in range(n - partial.tally[DEPTH]):
        column[relaxed.row[r]] = relaxed.column[relaxed.column_of[r]]
    distance = m - n
    for j in range(m):  # every edge of the larger graph is inserted, except for the pairs below
        for k in range(j):
            distance += pair.column_edges[j, k] != 0
    for i in range(n):
        distance += pair.row_labels[i] != pair.column_labels[column[i]]
        for k in range(i):
            edge = pair.column_edges[column[i], column[k]]
            distance += (pair.row_edges[i, k] != edge) - (edge != 0)
    return distance


@inlined
def _branch(twin: Integers, partial: Partial, relaxed: Assignment, bounds: Integers, halves: int) -> int:
    """Choose the row with the fewest columns worth a try, and write the bounds of these."""
    best = partial.tally[BEST]
    rows, columns = partial.column.size - partial.tally[DEPTH], partial.taken.size - partial.tally[DEPTH]
    chosen, fewest, most = 0, FAR, 0
    for r in range(rows):
        count, excess = 0, 0
        for c in range(columns):
            more = _reduced(relaxed, r, c)
            excess += more
            count += _round_up(halves + more) < best
        if count < fewest or (count == fewest and excess > most):
            chosen, fewest, most = r, count, excess
    seen = relaxed.scanned
    seen[:] = False
    for c in range(columns):
        bound, j = halves + _reduced(relaxed, chosen, c), relaxed.column[c]
        if _round_up(bound) < best and not seen[twin[j]]:  # one of the exchangeable columns is enough
            bounds[j] = bound
        seen[twin[j]] = True
    return relaxed.row[chosen]
