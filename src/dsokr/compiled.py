"""Compiling loops with numba, which is an extra: a module may use these and still be imported without it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from dsokr.errors import MissingExtraError

try:
    from numba import njit
except ImportError:
    njit = None  # type: ignore[assignment]  # typed as the function it is elsewhere

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on first use and keep the result on disk. The GIL is released, so that threads run side by side.

    Where numba is missing the function says so when it is called. Where nothing can be written, neither beside the
    package nor in a home, every process compiles anew; the environment's NUMBA_CACHE_DIR can name a place.
    """
    if njit is not None:
        try:
            return cast(Function, njit(cache=True, nogil=True, error_model="numpy")(function))
        except RuntimeError:  # no place for a cache
            return cast(Function, njit(nogil=True, error_model="numpy")(function))

    @wraps(function)
    def missing(*_: Any, **__: Any) -> Any:
        raise MissingExtraError("numba", "graphs")

    return cast(Function, missing)


def in_shares(work: Callable[[int, int], object], count: int, share: int) -> None:
    """``work(start, stop)`` over range(count), ``share`` at a time, on as many threads as torch may use.

    Plain threads around compiled functions, rather than numba's own parallel loops, stay usable after a fork and from
    several threads at once.
    """
    starts = range(0, count, share)
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            work(start, min(start + share, count))
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda start: work(start, min(start + share, count)), starts):
            pass  # going through the results raises what a thread raised
