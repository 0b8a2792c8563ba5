"""The one place that imports matplotlib, which is an extra."""

from pathlib import Path
from typing import Any

from dsokr.errors import MissingExtraError


def pyplot() -> Any:
    """``matplotlib.pyplot``, or a sentence that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return plt


def saved(fig: Any, path: Path, dpi: int = 150) -> Path:
    """Write a figure to a file, whose folder is made if it is missing, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=dpi)
    pyplot().close(fig)
    return path
