"""The edit distance of labelled graphs: exact, or lower and upper bounds when time runs out."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import DSOKRError, InputError
from dsokr.graphs import Graph, GraphBatch
from dsokr.metrics._edit_search import Graphs, Integers, advance, begin, read_bounds, search_briefly

BLOCK = 256  # pairs that a thread processes at once, at most


class EditDistanceTimeout(DSOKRError, TimeoutError):
    """Some distance could not be computed exactly within the timeout."""


class Bounds(NamedTuple):
    """lower ≤ distance ≤ upper for every pair, equal where the distance is known exactly."""

    lower: Tensor  # (n,)
    upper: Tensor  # (n,)


def edit_distance(
    a: Graph | Iterable[Graph], b: Graph | Iterable[Graph], edge_labels: bool = True, timeout: float | None = None
) -> Tensor:  # (n,)
    """Return the least number of edits that turn a_i into b_i, for every pair of graphs (a_i, b_i).

    An edit inserts, deletes or relabels one node or one edge. Over injective mappings π of the nodes of the smaller
    graph (V, E) to those of the larger one (V', E') the distance is

        min_π  |V'| − |V| + #{i : label(i) ≠ label(π(i))} + #{pairs of V' whose edge differs from its preimage's}.

    Without ``edge_labels`` only the presence of edges is compared. A single graph is compared with every graph of the
    other side. Pairs run on as many threads as ``torch.get_num_threads`` allows. The time of a pair grows exponentially
    with its size; ``bench/edit_distance.py`` measures it on molecules of 9 atoms. A pair that takes longer than
    ``timeout`` seconds raises ``EditDistanceTimeout``; ``edit_distance_bounds`` returns bounds instead.

    >>> ethanol = Graph(labels=(6, 6, 8), edges=((0, 1, 1), (1, 2, 1)))
    >>> formaldehyde = Graph(labels=(6, 8), edges=((0, 1, 2),))
    >>> edit_distance([ethanol, ethanol], [ethanol, formaldehyde])
    tensor([0., 3.], dtype=torch.float64)
    >>> edit_distance(ethanol, [formaldehyde], edge_labels=False)
    tensor([2.], dtype=torch.float64)
    """
    lower, upper = edit_distance_bounds(a, b, edge_labels, timeout)
    unfinished = (lower < upper).nonzero()[:, 0].tolist()
    if unfinished:
        first = unfinished[0]
        raise EditDistanceTimeout(
            f"{len(unfinished)} of {len(lower)} pairs took longer than timeout={timeout:g} seconds. The first is at "
            f"index {first}: its distance is between {lower[first]:g} and {upper[first]:g}. Use a larger timeout or "
            "edit_distance_bounds."
        )
    return lower


def edit_distance_bounds(
    a: Graph | Iterable[Graph], b: Graph | Iterable[Graph], edge_labels: bool = True, timeout: float | None = None
) -> Bounds:
    """Return bounds on ``edit_distance(a, b, edge_labels)`` that are equal for pairs solved within ``timeout`` seconds.

    With ``timeout=0`` every pair still gets one slice of search, which is enough for most small molecules.

    >>> methane, star = Graph((6,)), Graph((6, 1, 1, 1, 1), tuple((0, i, 1) for i in range(1, 5)))
    >>> edit_distance_bounds(methane, star, timeout=0)
    Bounds(lower=tensor([8.], dtype=torch.float64), upper=tensor([8.], dtype=torch.float64))
    """
    if timeout is not None and not timeout >= 0:
        raise InputError(f"timeout must be a number of seconds of at least 0, or None for no limit. Got {timeout}.")
    left, right = _as_batch(a, "a"), _as_batch(b, "b")
    if not isinstance(a, Graph) and not isinstance(b, Graph) and len(left) != len(right):
        raise InputError(
            "a and b must be equally long: their graphs are compared pair by pair. "
            f"Got {len(left)} graphs in a and {len(right)} in b."
        )
    found = np.empty((len(right) if isinstance(a, Graph) else len(left), 2), np.int64)
    _search_all(*_encode(left, right, edge_labels), found, np.inf if timeout is None else timeout)
    return Bounds(*torch.from_numpy(np.ascontiguousarray(found.T, dtype=np.float64)))


def _as_batch(graphs: Graph | Iterable[Graph], name: str) -> GraphBatch:
    if isinstance(graphs, GraphBatch):
        return graphs
    items = [graphs] if isinstance(graphs, Graph) else list(graphs)
    for index, item in enumerate(items):
        if not isinstance(item, Graph):
            raise InputError(f"{name}[{index}] must be a Graph. Got {type(item).__name__}.")
    return GraphBatch.of(items)


def _encode(left: GraphBatch, right: GraphBatch, edge_labels: bool) -> tuple[Graphs, Graphs]:
    """Return both sides with edge labels 1, 2, …, or all 1."""
    labels = np.concatenate([left.edge_labels, right.edge_labels])
    values, codes = np.unique(labels if edge_labels else np.zeros_like(labels), return_inverse=True)
    sides = zip((left, right), np.split(codes + 1, [len(left.edge_labels)]), strict=True)
    one, other = (Graphs(g.offsets, g.labels, g.indptr, g.neighbors, code, len(values)) for g, code in sides)
    return one, other


def _search_all(left: Graphs, right: Graphs, found: Integers, timeout: float) -> None:  # found: (pairs, 2)
    """Fill in the bounds of all pairs. On Ctrl-C every thread stops after its current slice of search."""
    stop = Event()
    threads = torch.get_num_threads()
    size = max(1, min(BLOCK, len(found) // (4 * threads)))

    def work(start: int) -> None:
        block = found[start : start + size]
        search_briefly(left, right, start, block)
        for at in np.flatnonzero(block[:, 0] < block[:, 1]).tolist():
            deadline, search = perf_counter() + timeout, begin(left, right, start + at)
            while not stop.is_set() and not advance(search) and perf_counter() < deadline:
                pass
            block[at] = read_bounds(search)

    with ThreadPoolExecutor(threads) as pool:
        try:
            list(pool.map(work, range(0, len(found), size)))
        except BaseException:
            stop.set()
            raise
