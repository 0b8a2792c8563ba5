"""The one place that imports matplotlib, which is an extra."""

from typing import Any

from dsokr.errors import MissingExtraError


def pyplot() -> Any:
    """``matplotlib.pyplot``, or a sentence that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return plt
