"""Calls functions on the workers of a Ray cluster and returns their results in order."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import current_thread, main_thread
from typing import Any

from dsokr import __version__
from dsokr.errors import DSOKRError, InputError, import_extra

ADDRESS = re.compile(r"(?P<host>[^:/\s]+):(?P<port>\d+)")
SECONDS = 5.0  # to wait for an answer from an address
RETRIES = 5  # of a call whose worker dies


@contextmanager
def connect(address: str, device: str = "cpu") -> Iterator[Cluster]:
    """Connect to a cluster for the length of a block; ``local`` starts one on this machine."""
    ray, ours = import_extra("ray", "cluster"), signal.getsignal(signal.SIGTERM)
    is_new = not ray.is_initialized()
    if is_new:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # contact no other host
        os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))  # otherwise Ray retries forever
        _start(ray, address)
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, ours)  # Ray's handler exits without a message
    try:
        yield Cluster(ray, address, device)
    finally:
        if is_new:
            ray.shutdown()


def _start(ray: Any, address: str) -> None:
    found = ADDRESS.fullmatch(address)
    if not found and address not in ("local", "auto"):
        raise InputError(f"--ray takes local, auto or the HOST:PORT of a cluster. Got {address!r}.")
    try:
        if found:
            socket.create_connection((found["host"], int(found["port"])), SECONDS).close()
        further = {"include_dashboard": False} if address == "local" else {}
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **further)
    except Exception as error:  # Ray raises plain ones, as when its processes start too slowly
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"Cannot reach a Ray cluster at {address}: {reason}.") from error


class Cluster:
    """The connected Ray cluster. Calls lost with a worker are repeated on another one."""

    def __init__(self, ray: Any, address: str, device: str):
        self.ray = ray
        self.resource = "GPU" if device.startswith("cuda") else "CPU"
        if not self.size():
            raise InputError(f"The Ray cluster at {address} has no {self.resource} to work on.")
        self._check_workers()

    def size(self) -> int:
        """The number of calls that can run at once now."""
        return int(self.ray.cluster_resources().get(self.resource, 0))

    def _check_workers(self) -> None:
        """Check that every machine has this version of the package."""

        def find_version() -> str:  # pickled by value, so that it runs without the package
            try:
                return str(__import__("dsokr").__version__)
            except ImportError as error:
                return f"missing ({error})"

        near = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        alive = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get(self.resource)]
        probe = self.ray.remote(find_version)
        places = (near(node["NodeID"], soft=True) for node in alive)
        probes = [probe.options(num_cpus=0, scheduling_strategy=place).remote() for place in places]
        for node, found in zip(alive, map(self._get, probes), strict=True):
            if found != __version__:
                place = f"The machine {node['NodeManagerAddress']} of the cluster"
                needs = f'pip install "dsokr[all]=={__version__}"'
                raise InputError(f"{place} needs dsokr {__version__}, which is {found} there: {needs}")

    def starmap(
        self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], returns: int = 1
    ) -> Iterator[Any]:
        """Call a function with each of the arguments, and yield the results in order.

        Every worker loads the function once. With two results, the second stays on the cluster, and its reference is
        yielded.
        """
        held, waiting = self.ray.put(function), deque[Any]()
        needs = {f"num_{self.resource.lower()}s": 1, "max_retries": RETRIES, "num_returns": returns}
        call = self.ray.remote(_call).options(**needs)
        for some in arguments:
            waiting.append(call.remote([held], *some))
            while len(waiting) > 2 * max(self.size(), 1):
                yield self._get(waiting.popleft())
        yield from map(self._get, waiting)

    def _get(self, found: Any) -> Any:
        if isinstance(found, list):
            return self._get(found[0]), found[1]
        errors = self.ray.exceptions
        try:
            while not self.ray.wait([found], timeout=SECONDS)[0]:
                if not self.size():
                    raise InputError("The Ray cluster has lost all its machines. Run the same command to resume.")
            return self.ray.get(found)
        except errors.RayTaskError as error:
            if isinstance(error.cause, DSOKRError):
                raise error.cause from None
            if isinstance(error.cause, MemoryError):
                raise _lack_memory() from error
            raise
        except (errors.OutOfMemoryError, errors.WorkerCrashedError) as error:
            raise _lack_memory() from error
        except errors.RayError as error:
            raise InputError(f"The Ray cluster failed: {str(error).strip().partition(chr(10))[0]}") from error


def _lack_memory() -> InputError:
    advice = "Let fewer of them run on a machine (ray start --num-cpus), and run the same command to resume."
    return InputError(f"A worker of the cluster died {RETRIES + 1} times, most likely for lack of memory. {advice}")


def _call(held: list[Any], *arguments: Any) -> Any:
    return _load(held[0])(*arguments)


@lru_cache(maxsize=4)
def _load(reference: Any) -> Callable[..., Any]:
    """Load a function, and the model it holds, once per worker."""
    loaded: Callable[..., Any] = import_extra("ray", "cluster").get(reference)
    return loaded
