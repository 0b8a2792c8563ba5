"""The package's exceptions, and checks of options.

Each exception is also the built-in one that a caller would expect to catch.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

CHECKED = ("dsokr", "numpy", "scipy", "torch")  # packages whose classes are checked in annotations


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
    """A saved model or index is missing, damaged, out of reach, or from a version that cannot be read."""


class MissingExtraError(DSOKRError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str):
        super().__init__(f'This needs {package}, which is not installed: pip install "dsokr[{extra}]"')


class TrainingError(DSOKRError, RuntimeError):
    """Training diverged, or its checkpoint cannot be resumed."""


class Interrupted(KeyboardInterrupt):
    """The user stopped the work; the message says how to resume. Not a :class:`DSOKRError`: nothing is wrong."""


def import_extra(module: str, extra: str) -> Any:
    """Import an optional dependency, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.partition(".")[0], extra) from error


def check_fields(owner: Any, **intervals: str | int) -> None:
    """Check that the fields of a dataclass have the types of their annotations, and numbers lie in their intervals.

    An interval is a string such as ``"(0, 1]"`` or the least number allowed, and holds for each number of a tuple. By
    default, integers are at least 1 and other numbers at least 0. Numbers, truth values, texts, literals, classes of
    this package, and tuples and unions of these are checked.
    """
    hints = _read_hints(type(owner))  # type: ignore[arg-type] # every class is hashable
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name)
        least = intervals.get(field.name, int("int" in str(hints[field.name])))
        interval = least if isinstance(least, str) else f"[{least}, inf)"
        if not any(_fits(value, hint, interval) for hint in hints[field.name]):
            expected = ", or ".join(dict.fromkeys(_describe(hint, interval) for hint in hints[field.name]))
            raise InputError(f"{type(owner).__name__}.{field.name} must be {expected}. Got {value!r:.80}.")


def check_types(owner: Any) -> None:
    """Check the fields of an object read from a file, and of its parts, against the annotations of their classes."""
    for name, hints in _read_hints(type(owner)).items():  # type: ignore[arg-type] # every class is hashable
        value = getattr(owner, name)
        if not any(_fits(value, hint, interval="") for hint in hints):
            raise ValueError(f"{type(owner).__name__}.{name} cannot be {value!r:.80}")
        for part in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(part) or hasattr(part, "_fields"):
                check_types(part)


@cache
def _read_hints(kind: type) -> dict[str, tuple[Any, ...]]:
    """Return the types that each field may have, with all its literals as one."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        hints = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        hints = tuple(Literal[True, False] if hint is bool else hint for hint in hints)
        literals = tuple(value for hint in hints if get_origin(hint) is Literal for value in get_args(hint))
        others = tuple(hint for hint in hints if get_origin(hint) is not Literal)
        found[name] = (Literal[literals], *others) if literals else others
    return found


def _fits(value: Any, hint: Any, interval: str) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts and type(value) in map(type, parts)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        kinds = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(value) == len(kinds) and all(_fits(*pair, interval) for pair in zip(value, kinds, strict=True))
    if origin in (list, dict):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and all(_fits(item, parts[-1], interval) for item in items)
    if hint in (int, float):
        is_number = isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
        return is_number and (not interval or _is_inside(value, interval))
    if origin is Callable:
        return callable(value)
    return isinstance(value, hint) if _is_plain(hint) else True


def _is_plain(hint: Any) -> bool:
    is_ours = isinstance(hint, type) and hint.__module__.partition(".")[0] in CHECKED
    is_open = getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False)
    return hint in (str, NoneType) or (is_ours and not is_open)


def _is_inside(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    is_excluded = (value == low and interval[0] == "(") or (value == high and interval[-1] == ")")
    return low <= value <= high and not is_excluded


def _describe(hint: Any, interval: str) -> str:
    if get_origin(hint) is tuple:
        first, *others = get_args(hint)
        several = "" if others == [...] else f"{1 + len(others)} values, each "
        return several + _describe(first, interval)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if hint is int:
        return f"an integer of at least {interval[1:-6]}" if "inf" in interval else f"an integer in {interval}"
    words = {"(0, inf)": "positive and finite", "[0, inf)": "at least 0 and finite"}
    names = {float: words.get(interval, f"in {interval}"), str: "a text", NoneType: "None"}
    return names.get(hint) or ("a function" if get_origin(hint) else f"a {hint.__name__}")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'this'?", or nothing if no known name is similar."""
    lowered = {other.lower(): other for other in known}
    similar = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.7)
    return f" Did you mean {lowered[similar[0]]!r}?" if similar else ""


def check_k(k: object) -> int:
    """Check the number of answers asked for: an integer of at least 1."""
    if not isinstance(k, Integral) or k < 1:
        raise InputError(f"k must be an integer of at least 1. Got {k!r}.")
    return int(k)
