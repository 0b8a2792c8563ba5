"""The package's exceptions, and checks of options.

Each exception is also the built-in one that a caller would expect to catch.
"""

from collections.abc import Iterable
from importlib import import_module
from numbers import Integral, Real
from typing import Any


class DSOKRError(Exception):
    """Base of every exception that this package raises on purpose."""


class InputError(DSOKRError, ValueError):
    """The data or a parameter cannot be used as given."""


class KernelError(DSOKRError, ValueError):
    """A kernel is not positive semi-definite, or is undefined for some output."""


class UndefinedAt(KernelError):
    """A kernel is undefined for the output at ``index``."""

    def __init__(self, index: int, what: str, why: str):
        super().__init__(f"{what} at index {index}: {why}.")
        self.index, self.what, self.why = index, what, why

    def __reduce__(self) -> tuple[type, tuple[int, str, str]]:
        return UndefinedAt, (self.index, self.what, self.why)


class ModelFolderError(DSOKRError, ValueError):
    """A saved model or index is missing, damaged, or from a version that cannot be read."""


class MissingExtraError(DSOKRError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str):
        super().__init__(f'This needs {package}, which is not installed: pip install "dsokr[{extra}]"')


class TrainingError(DSOKRError, RuntimeError):
    """Training diverged, or its checkpoint cannot be resumed."""


class Interrupted(KeyboardInterrupt):
    """The user stopped the work; the message says how to resume. Not a :class:`DSOKRError`: nothing is wrong."""


def import_extra(module: str, extra: str) -> Any:
    """Import an optional dependency, or raise the sentence that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.partition(".")[0], extra) from error


def check_integers(owner: object, **least: int) -> None:
    """Check that the named fields are integers, or tuples of integers, of at least the given size."""
    for name, smallest in least.items():
        value = getattr(owner, name)
        for item in value if isinstance(value, tuple | list) else (value,):
            if not isinstance(item, Integral) or isinstance(item, bool) or item < smallest:
                raise _refuse(owner, name, f"an integer of at least {smallest}")


def check_number(owner: object, name: str, interval: str, is_inside: bool) -> None:
    """Check that a field is a real number for which ``is_inside`` holds, such as ``"in (0, 1]"``."""
    if not isinstance(getattr(owner, name), Real) or not is_inside:
        raise _refuse(owner, name, interval)


def check_choice(owner: object, name: str, allowed: Iterable[Any]) -> None:
    """Check that a field has one of the allowed values."""
    allowed = tuple(allowed)
    if getattr(owner, name) not in allowed:
        raise _refuse(owner, name, f"one of {', '.join(map(repr, allowed))}")


def _refuse(owner: object, name: str, expected: str) -> InputError:
    return InputError(f"{type(owner).__name__}.{name} must be {expected}. Got {getattr(owner, name)!r}.")


def check_k(k: object) -> int:
    """Check the number of answers asked for: an integer of at least 1."""
    if not isinstance(k, Integral) or k < 1:
        raise InputError(f"k must be an integer of at least 1. Got {k!r}.")
    return int(k)
