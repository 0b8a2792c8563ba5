"""Where to compute, and random numbers that leave the global state alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

from dsokr.errors import InputError

_RANDOM = RLock()  # torch's global generators are one for all threads: whoever seeds them has them alone


def resolve_device(device: str | torch.device) -> torch.device:
    """A torch device that is really there; ``"auto"`` is the GPU if there is one.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"Unknown device {device!r}. Use 'auto', 'cpu', 'cuda' or 'cuda:1'.") from error
    if found.type == "cuda":
        if not torch.cuda.is_available() or (found.index or 0) >= torch.cuda.device_count():
            raise InputError(
                f"Device {device!r} is not available: torch sees {torch.cuda.device_count()} CUDA devices."
            )
        return torch.device("cuda", found.index or 0)
    if found.type != "cpu":
        raise InputError(f"Device {device!r} is not supported: the basis needs float64. Use 'auto', 'cpu' or 'cuda'.")
    return found


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A block in which torch's global generators start from the seed; before and after, their state is the same.

    Other threads wait with blocks of their own, so that each is as if it were alone.

    >>> with seeded(0):
    ...     a = torch.rand(1)
    >>> with seeded(0):
    ...     bool(a == torch.rand(1))
    True
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with _RANDOM, torch.random.fork_rng(list(devices)):
        torch.manual_seed(seed)
        yield
