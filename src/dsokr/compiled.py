"""Compiling loops with numba, which is an extra: a module may use these and still be imported without it."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

import torch

from dsokr.errors import MissingExtraError

try:
    import numba
except ImportError:  # pragma: no cover - exercised in a subprocess
    numba = None

Function = TypeVar("Function", bound=Callable[..., Any])

SMALLEST_SHARE = 1 << 18  # elementary steps below which a second thread costs more than it brings


def compiled(function: Function) -> Function:
    """Compile on first use and keep the result on disk. The GIL is released, so that threads run side by side.

    Where numba is missing the function says so when it is called.
    """
    if numba is not None:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)

    @wraps(function)
    def missing(*_: Any, **__: Any) -> Any:
        raise MissingExtraError("numba", "graphs")

    return missing  # type: ignore[return-value]  # it never returns


def in_shares(work: Callable[[int, int], object], count: int, steps: int) -> None:
    """``work(start, stop)`` over shares of range(count), one per thread that torch may use.

    ``steps`` is the rough amount of work in all. Plain threads around compiled functions, rather than numba's own
    parallel loops, stay usable after a fork and from several threads at once.
    """
    threads = max(1, min(torch.get_num_threads(), os.cpu_count() or 1, count, steps // SMALLEST_SHARE))
    if threads == 1:
        work(0, count)
        return
    bounds = [count * i // (4 * threads) for i in range(4 * threads + 1)]  # several shares each, as they are uneven
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, bounds[:-1], bounds[1:]):
            pass
