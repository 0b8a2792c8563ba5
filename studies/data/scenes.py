"""Pictures of coloured shapes, labelled with the shapes in them: a label-set task that needs no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHAPES = ("disc", "square", "triangle", "cross", "ring")
COLOURS = {
    "red": (0.89, 0.26, 0.20),
    "green": (0.17, 0.63, 0.29),
    "blue": (0.19, 0.42, 0.85),
    "yellow": (0.95, 0.77, 0.06),
}
LABELS = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
SIDE = 24


@dataclass(frozen=True, eq=False)
class Scenes:
    """``images`` (n, 3, 24, 24) in [0, 1] and ``labels`` (n, 20), a one for each of :data:`LABELS` in the picture."""

    images: np.ndarray
    labels: np.ndarray


def generate(n: int, seed: int, noise: float = 0.15) -> Scenes:
    """Draw n pictures of one to four different coloured shapes, which may overlap, with pixel noise.

    Some labels occur together more often than others: sets are drawn from a Markov chain over labels, so that there is
    structure in the outputs to learn.

    >>> scenes = generate(3, seed=0)
    >>> scenes.images.shape, scenes.labels.shape
    ((3, 3, 24, 24), (3, 20))
    """
    rng = np.random.default_rng(seed)
    fixed = np.random.default_rng(0)  # the same chain in every call
    transitions = fixed.dirichlet(np.full(len(LABELS), 0.25), size=len(LABELS))
    labels = np.zeros((n, len(LABELS)), dtype=np.int64)
    images = np.full((n, 3, SIDE, SIDE), 0.96, dtype=np.float32)
    for image, bits in zip(images, labels, strict=True):
        for label in _draw_labels(transitions, rng):
            bits[label] = 1
            _paint(image, label, rng)
    images += rng.normal(scale=noise, size=images.shape).astype(np.float32)
    return Scenes(images.clip(0, 1), labels)


def _draw_labels(transitions: np.ndarray, rng: np.random.Generator) -> list[int]:
    """One to four different labels, each drawn given the one before."""
    chosen = [int(rng.integers(len(LABELS)))]
    for _ in range(int(rng.integers(0, 4))):
        weights = transitions[chosen[-1]] + 0.002
        weights[chosen] = 0
        chosen.append(int(rng.choice(len(LABELS), p=weights / weights.sum())))
    return chosen


def _paint(image: np.ndarray, label: int, rng: np.random.Generator) -> None:
    colour, shape = LABELS[label].split()
    radius = rng.uniform(3.0, 5.0)
    cx, cy = rng.uniform(radius, SIDE - 1 - radius, size=2)
    y, x = np.mgrid[:SIDE, :SIDE]
    mask = _inside(shape, (x - cx) / radius, (y - cy) / radius)
    image[:, mask] = np.array(COLOURS[colour])[:, None]


def _inside(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which pixels belong to a shape of radius one at the origin."""
    r2 = x**2 + y**2
    match shape:
        case "disc":
            return r2 <= 1
        case "ring":
            return (r2 <= 1.1) & (r2 >= 0.4)
        case "square":
            return np.maximum(abs(x), abs(y)) <= 0.85
        case "triangle":
            return (y <= 0.8) & (y >= 2 * abs(x) - 1)
        case _:
            return (np.minimum(abs(x), abs(y)) <= 0.3) & (np.maximum(abs(x), abs(y)) <= 1)
