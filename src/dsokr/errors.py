"""The package's own exceptions, and a check that many options need.

Each exception is also the built-in one that a caller would expect to catch.
"""

from numbers import Integral


class DSOKRError(Exception):
    """Base of every exception raised on purpose by this package."""


class InputError(DSOKRError, ValueError):
    """The data or a parameter cannot be used as given."""


class KernelError(DSOKRError, ValueError):
    """A kernel is not positive semi-definite, or is undefined for some output."""


class UndefinedAt(KernelError):
    """A kernel is undefined for the output at ``index`` of the outputs it was given: what failed, and why."""

    def __init__(self, index: int, what: str, why: str):
        super().__init__(f"{what} at index {index}: {why}.")
        self.index, self.what, self.why = index, what, why

    def __reduce__(self) -> tuple[type, tuple[int, str, str]]:
        return UndefinedAt, (self.index, self.what, self.why)


class ModelFolderError(DSOKRError, ValueError):
    """A saved model is missing, damaged, or from a version this one cannot read."""


class MissingExtraError(DSOKRError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str):
        super().__init__(f'This needs {package}, which is not installed: pip install "dsokr[{extra}]"')


class TrainingError(DSOKRError, RuntimeError):
    """Training diverged, or cannot be resumed from what is in its folder."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by the user; the message says how to go on. Not a :class:`DSOKRError`: nothing is wrong."""


def require_k(k: object) -> int:
    """How many of the best are asked for: a whole number of at least 1."""
    if not isinstance(k, Integral) or k < 1:
        raise InputError(f"k must be at least 1, a whole number. Got {k!r}.")
    return int(k)


def require_integer(owner: object, name: str, value: object, least: int) -> None:
    """Refuse options that are no whole number, or too small a one."""
    if not isinstance(value, Integral) or value < least:
        raise InputError(f"{type(owner).__name__}.{name} must be an integer of at least {least}. Got {value!r}.")
