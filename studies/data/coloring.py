"""Images of randomly coloured maps, and the graphs of their regions: which colour each has, and which touch.

After the data set Coloring of Any2Graph (Krzakala et al., 2024), with its sizes, colours, blur and noise: a region of a
map is the pixels nearest to one of several random points by the city-block distance, and regions that touch have
different colours of four. Borders of fewer than three pixels do not count, nor do regions of fewer than three.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from dsokr.compute import compiled
from dsokr.graphs import GraphBatch

SIDE = 32
COLORS = np.array([[0.25, 0.25, 0.75], [0.25, 0.75, 0.25], [0.75, 0.25, 0.25], [1.0, 0.8, 0.4]])
BLUR, NOISE, LEAST = 0.4, 0.02, 3
Integers = NDArray[np.int64]


class Maps(NamedTuple):
    images: NDArray[np.uint8]  # (n, 3, side, side)
    graphs: GraphBatch  # labels: colours 0 to 3; all edges are labelled 1


def draw_maps(n: int, regions: tuple[int, int], seed: int) -> Maps:
    """Draw n maps of so many regions, at least and at most. 10,000 take about 3 s.

    >>> draw_maps(2, (5, 10), seed=0).images.shape
    (2, 3, 32, 32)
    """
    generator = np.random.default_rng(seed)
    most = regions[1]
    owners, colors = np.empty((n, SIDE, SIDE), np.int64), np.zeros((n, most), np.int64)
    borders = np.zeros((n, most, most), np.int64)
    _draw_regions(generator, regions[0], owners, colors, borders)
    sizes = np.stack([(owners == k).sum(axis=(1, 2)) for k in range(most)], axis=1)
    return Maps(_paint(generator, owners, colors), _as_graphs(sizes >= LEAST, colors, borders >= LEAST))


def _paint(generator: np.random.Generator, owners: Integers, colors: Integers) -> NDArray[np.uint8]:
    images = np.empty((len(owners), 3, SIDE, SIDE), np.uint8)
    for start in range(0, len(owners), 1_000):
        rows = slice(start, start + 1_000)
        regions = np.take_along_axis(colors[rows], owners[rows].reshape(-1, SIDE * SIDE), axis=1)
        plain = np.moveaxis(COLORS[regions].reshape(-1, SIDE, SIDE, 3), 3, 1)
        blurred = gaussian_filter(plain, BLUR, mode="nearest", axes=(2, 3))
        images[rows] = 255 * (blurred + generator.normal(0, NOISE, blurred.shape)).clip(0, 1)
    return images


def _as_graphs(exist: NDArray[np.bool_], colors: Integers, touch: NDArray[np.bool_]) -> GraphBatch:
    number = exist.cumsum(axis=1) - 1
    owner, i, j = np.triu(touch & exist[:, :, None] & exist[:, None, :]).nonzero()
    ends = np.stack([number[owner, i], number[owner, j], np.ones_like(i)], axis=1)
    return GraphBatch.from_edges(exist.sum(axis=1), colors[exist], np.bincount(owner, minlength=len(exist)), ends)


@compiled
def _draw_regions(
    generator: np.random.Generator, least: int, owners: Integers, colors: Integers, borders: Integers
) -> None:
    """Fill in the region of every pixel, the colours of regions, and how many pixels of them touch."""
    most, at = colors.shape[1], 0
    while at < len(owners):
        count = generator.integers(least, most + 1)
        borders[at] = 0
        _find_owners(generator.random((count, 2)), owners[at])
        if len(np.unique(owners[at])) == count:
            _count_borders(owners[at], borders[at])
            while not _color(generator, count, borders[at], colors[at]):
                pass
            at += 1


@compiled
def _find_owners(points: NDArray[np.float64], owners: Integers) -> None:
    for i in range(SIDE):
        for j in range(SIDE):
            nearest = np.inf
            for k in range(len(points)):
                distance = abs(i / (SIDE - 1) - points[k, 0]) + abs(j / (SIDE - 1) - points[k, 1])
                if distance < nearest:
                    owners[i, j], nearest = k, distance


@compiled
def _count_borders(owners: Integers, borders: Integers) -> None:
    for i in range(SIDE):
        for j in range(SIDE):
            for k, m in ((i + 1, j), (i, j + 1)):
                if k < SIDE and m < SIDE and owners[i, j] != owners[k, m]:
                    borders[owners[i, j], owners[k, m]] += 1
                    borders[owners[k, m], owners[i, j]] += 1


@compiled
def _color(generator: np.random.Generator, count: int, borders: Integers, colors: Integers) -> bool:
    """Colour regions one by one at random; return whether there was a colour for each."""
    for i in range(count):
        free = np.ones(len(COLORS), np.bool_)
        for j in range(i):
            if borders[i, j]:
                free[colors[j]] = False
        choices = np.flatnonzero(free)
        if len(choices) == 0:
            return False
        colors[i] = choices[generator.integers(0, len(choices))]
    return True
