"""Figures with matplotlib, which is an extra."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsokr.errors import import_extra
from dsokr.selection import SizeCurve

Point = tuple[str, float, float]  # label, value, standard deviation


def pyplot() -> Any:
    return import_extra("matplotlib.pyplot", "plots")


def save_figure(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Write a figure to a file, create the folder if it is missing, and close the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    pyplot().close(figure)
    return path


def draw_panels(panels: Mapping[str, Sequence[Point]], xlabel: str, image: Path, across: int = 3) -> Path:
    """Values with their standard deviations, a panel for every title."""
    columns, lines = min(across, len(panels)), -(-len(panels) // across)
    most = max(map(len, panels.values()), default=0)
    size = (4.5 if most < 8 else 7.0) * columns, max(2.6, 0.24 * most + 0.9) * lines
    figure, grid = pyplot().subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, (title, points) in zip(grid.flat, panels.items(), strict=False):
        labels, values, deviations = zip(*reversed(points), strict=True)
        axes.errorbar(values, labels, xerr=deviations, fmt="o", capsize=3)
        axes.set(title=title, xlabel=xlabel)
        axes.grid(axis="x", alpha=0.3)
        axes.margins(y=0.2 if most < 8 else 0.05)
    return save_figure(figure, image)


def plot_sizes(curve: SizeCurve, chosen: int, label: str = "value", axes: Any = None) -> Any:
    """Plot the curve, its spread over replicates and the chosen size; returns the matplotlib axes."""
    axes = pyplot().subplots(figsize=(5, 3.4), layout="constrained")[1] if axes is None else axes
    axes.plot(curve.sizes, curve.mean(), marker="o", markersize=3)
    axes.fill_between(curve.sizes, curve.values.amin(dim=0), curve.values.amax(dim=0), alpha=0.2)
    axes.axvline(chosen, color="grey", linestyle="--", linewidth=1)
    axes.set(xlabel="sketch size m", ylabel=f"Perfect h: {label}")
    return axes
