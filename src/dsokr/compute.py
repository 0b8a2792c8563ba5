"""Where and how to compute: devices, random numbers that leave the global state alone, loops, threads, progress."""

import atexit
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from dsokr.errors import InputError, MissingExtraError

try:
    from numba import njit
except ImportError:
    njit = None  # numba is an extra

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")

LINE_EVERY = 10.0  # seconds, at least, between passing lines in a log

_GLOBAL_GENERATORS = RLock()  # torch shares its global generators between threads


def resolve_device(device: str | torch.device) -> torch.device:
    """Return an available torch device; ``"auto"`` is the GPU if there is one.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"Unknown device {device!r}. Use 'auto', 'cpu', 'cuda' or 'cuda:1'.") from error
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise InputError(f"Device {device!r} is not supported: the basis needs float64. Use 'auto', 'cpu' or 'cuda'.")
    if (found.index or 0) >= (available := torch.cuda.device_count()):
        raise InputError(f"Device {device!r} is not available: torch sees {available} CUDA devices.")
    return torch.device("cuda", found.index or 0)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators within a block and restore their state after it. Threads take turns.

    >>> with seeded(0):
    ...     a = torch.rand(1)
    >>> with seeded(0):
    ...     bool(a == torch.rand(1))
    True
    """
    with _GLOBAL_GENERATORS, torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def compute_once(make: Callable[[], T]) -> T:
    """Return ``make()``. Of processes started by torchrun, only the first calls it and sends the others the result."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        return make()
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(dist.destroy_process_group)
    result = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(result, device=torch.device("cpu"))
    return cast(T, result[0])


def compiled(function: Function, **options: Any) -> Function:
    """Compile with numba on first use, cache the result on disk and release the GIL.

    Without numba the function raises ``MissingExtraError`` when called. If no cache can be written, every process
    compiles again; set NUMBA_CACHE_DIR to a writable folder to avoid that.
    """
    if njit is not None:
        try:
            return cast(Function, njit(cache=True, nogil=True, error_model="numpy", **options)(function))
        except RuntimeError:  # no writable cache folder
            return cast(Function, njit(nogil=True, error_model="numpy", **options)(function))

    @wraps(function)
    def missing(*_: Any, **__: Any) -> Any:
        raise MissingExtraError("numba", "graphs")

    return cast(Function, missing)


def inlined(function: Function) -> Function:
    """Compile and inline a small function that compiled loops call with arrays; this avoids reference counting."""
    return compiled(function, forceinline=True)


def run_in_threads(work: Callable[[int, int], object], count: int, share: int) -> None:
    """Call ``work(start, stop)`` over range(count), ``share`` at a time, on as many threads as torch may use.

    Plain threads around compiled functions stay usable after a fork and from several threads; numba's own do not.
    """
    starts = range(0, count, share)
    stops = [min(start + share, count) for start in starts]
    if (threads := min(torch.get_num_threads(), len(starts))) > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, starts, stops))  # re-raises what a thread raised
    else:
        list(map(work, starts, stops))


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a function that prints lines on standard error. The next line replaces one with ``passing=True``.

    In a log, which keeps all lines, few of the passing ones are printed.
    """
    console, printed = Console(stderr=True, quiet=quiet), time.monotonic()
    status = Status("", console=console)

    def say(line: str, passing: bool = False) -> None:
        nonlocal printed
        if passing and console.is_terminal:
            status.start()
            status.update(escape(line))
        elif not passing or time.monotonic() - printed > LINE_EVERY:
            printed = time.monotonic()
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    try:
        yield say
    finally:
        status.stop()
