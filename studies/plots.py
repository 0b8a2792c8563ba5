"""Figures with matplotlib, which is an extra."""

from pathlib import Path
from typing import Any

from dsokr.errors import import_extra


def pyplot() -> Any:
    return import_extra("matplotlib.pyplot", "plots")


def save_figure(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Write a figure to a file, create the folder if it is missing, and close the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    pyplot().close(figure)
    return path
