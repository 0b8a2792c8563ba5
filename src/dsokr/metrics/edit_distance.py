"""The edit distance of labelled graphs: exact, or bounded from both sides when time runs out."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import DSOKRError, InputError
from dsokr.graphs import GraphBatch
from dsokr.metrics._edit_search import Graphs, Integers, advance, begin, first_slices, known
from dsokr.graphs import Graph

BLOCK = 256  # pairs that a thread takes at a time, at most


class EditDistanceTimeout(DSOKRError, TimeoutError):
    """Some distance is not known exactly after the time given for it."""


class Bounds(NamedTuple):
    """lower ≤ distance ≤ upper for every pair, equal where the distance is known exactly."""

    lower: Tensor  # (n,)
    upper: Tensor  # (n,)


def edit_distance(
    a: Graph | Iterable[Graph],
    b: Graph | Iterable[Graph],
    edge_labels: bool = True,
    timeout: float | None = None,
) -> Tensor:  # (n,)
    """The least number of edits that turn a_i into b_i, for every pair of graphs (a_i, b_i).

    An edit inserts, deletes or relabels one node or one edge. Over injective mappings π of the nodes of the smaller
    graph (V, E) to those of the larger one (V', E') the distance is

        min_π  |V'| − |V| + #{i : label(i) ≠ label(π(i))} + #{pairs of V' whose edge differs from its preimage's}.

    Without ``edge_labels`` edges are there or not and only that is compared. A graph given alone is compared with
    every graph of the other side. Pairs share the threads that ``torch.get_num_threads`` allows. The time a pair takes
    grows exponentially with its size; ``bench/edit_distance.py`` measures it on molecules of 9 atoms. A pair not
    done after ``timeout`` seconds raises ``EditDistanceTimeout``; see ``edit_distance_bounds`` to go on with bounds.

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
            f"index {first}: its distance lies between {lower[first]:g} and {upper[first]:g}. Give more time, or use "
            "edit_distance_bounds."
        )
    return lower


def edit_distance_bounds(
    a: Graph | Iterable[Graph],
    b: Graph | Iterable[Graph],
    edge_labels: bool = True,
    timeout: float | None = None,
) -> Bounds:
    """Lower and upper bounds on ``edit_distance(a, b, edge_labels)``, equal for pairs done within ``timeout`` seconds.

    With ``timeout=0`` every pair still gets one slice of search, which is all that most small molecules need.

    >>> methane, star = Graph((6,)), Graph((6, 1, 1, 1, 1), tuple((0, i, 1) for i in range(1, 5)))
    >>> edit_distance_bounds(methane, star, timeout=0)
    Bounds(lower=tensor([8.], dtype=torch.float64), upper=tensor([8.], dtype=torch.float64))
    """
    if timeout is not None and not timeout >= 0:
        raise InputError(f"timeout must be a number of seconds, 0 or more, or None for no limit. Got {timeout}.")
    left, right = _graphs(a, "a"), _graphs(b, "b")
    if not isinstance(a, Graph) and not isinstance(b, Graph) and len(left) != len(right):
        raise InputError(
            "a and b must be equally long, as their graphs are compared pair by pair. "
            f"Got {len(left)} graphs in a and {len(right)} in b."
        )
    count = len(right) if isinstance(a, Graph) else len(left)
    bounds = torch.from_numpy(_search(*_coded(left, right, edge_labels), count, timeout)).T.to(torch.float64)
    return Bounds(bounds[0].contiguous(), bounds[1].contiguous())


def _graphs(graphs: Graph | Iterable[Graph], name: str) -> GraphBatch:
    if isinstance(graphs, GraphBatch):
        return graphs
    if not isinstance(graphs, Graph | Iterable):
        raise InputError(f"{name} must be a Graph or a sequence of them. Got {type(graphs).__name__}.")
    items = [graphs] if isinstance(graphs, Graph) else list(graphs)
    for index, item in enumerate(items):
        if not isinstance(item, Graph):
            raise InputError(f"{name}[{index}] must be a Graph. Got {type(item).__name__}.")
    return GraphBatch.of(items)


def _coded(left: GraphBatch, right: GraphBatch, edge_labels: bool) -> tuple[Graphs, Graphs]:
    """Both sides with edge labels 1, 2, …, or all 1."""
    labels = np.concatenate([left.edge_labels, right.edge_labels])
    values, codes = np.unique(labels if edge_labels else np.zeros_like(labels), return_inverse=True)
    left_codes, right_codes = np.split(codes + 1, [len(left.edge_labels)])
    return (
        Graphs(left.offsets, left.labels, left.indptr, left.neighbors, left_codes, len(values)),
        Graphs(right.offsets, right.labels, right.indptr, right.neighbors, right_codes, len(values)),
    )


def _search(left: Graphs, right: Graphs, count: int, timeout: float | None) -> Integers:  # (count, 2)
    found = np.empty((count, 2), np.int64)
    stop = Event()

    def work(start: int, stop_at: int) -> None:
        _search_block(left, right, start, found[start:stop_at], timeout, stop)

    threads = torch.get_num_threads()
    size = max(1, min(BLOCK, count // (4 * threads)))
    starts = range(0, count, size)
    with ThreadPoolExecutor(threads) as pool:
        try:
            list(pool.map(work, starts, (start + size for start in starts)))
        except BaseException:  # Ctrl-C above all: each thread stops after the slice of search it is in
            stop.set()
            raise
    return found


def _search_block(left: Graphs, right: Graphs, start: int, found: Integers, timeout: float | None, stop: Event) -> None:
    """Fill in the bounds of the pairs from ``start`` on. One slice of search is enough for most."""
    first_slices(left, right, start, found)
    for at in np.flatnonzero(found[:, 0] < found[:, 1]).tolist():
        if stop.is_set():
            return
        deadline = perf_counter() + (np.inf if timeout is None else timeout)
        search = begin(left, right, start + at)
        while not advance(search) and not stop.is_set() and perf_counter() < deadline:
            pass
        found[at] = known(search)
