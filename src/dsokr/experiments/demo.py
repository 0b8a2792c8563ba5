"""The demo: which coloured shapes are in a picture? Label sets, compared by the Tanimoto kernel.

    dsokr demo

Everything is generated here. Read it top to bottom: it is also an example of how the library is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Generator

from dsokr import kernels, metrics, networks, selection, sketches
from dsokr.baselines import Regression
from dsokr.data import scenes
from dsokr.estimator import DSOKR
from dsokr.experiments.report import Report
from dsokr.plotting import pyplot
from dsokr.training import Training

KERNEL = kernels.Tanimoto()
NETWORK = networks.CNN(channels=(32, 64), hidden=128, where="anywhere")


@dataclass(frozen=True)
class Size:
    n_train: int = 6_000
    n_val: int = 1_000
    n_test: int = 1_000
    epochs: int = 10
    sizes: tuple[int, ...] = (25, 50, 100, 200, 400, 800)


QUICK = Size(n_train=300, n_val=60, n_test=60, epochs=2, sizes=(10, 20, 40))


@dataclass(frozen=True)
class Outcome:
    """Rows (method, example F1, exactly right, seconds), the report's path, and the chosen sketch size."""

    rows: list[tuple[str, float, float, float]]
    report: Path
    size: int


def run(folder: Path, size: Size = Size(), seed: int = 0, say: Callable[[str], None] = print) -> Outcome:  # noqa: B008
    """Train DSOKR and a plain regression network on the same pictures, and write ``report.html`` into ``folder``."""
    pyplot()  # the report needs it: better missed now than after the training
    folder.mkdir(parents=True, exist_ok=True)
    sets = [scenes.generate(n, seed=seed + i) for i, n in enumerate((size.n_train, size.n_val, size.n_test))]
    train, val, test = ((s.images, s.labels) for s in sets)
    known = np.unique(train[1], axis=0)
    say(f"{size.n_train:,} pictures to train on, with {len(known):,} different sets of {len(scenes.LABELS)} labels")

    generator = Generator().manual_seed(seed)
    curve = selection.perfect_h(
        KERNEL,
        train[1],
        val[1],
        sketches.SubSample(1),
        size.sizes,
        metric=metrics.f1,
        generator=generator,
        candidates=known,
    )
    chosen = selection.choose_size(curve)
    say(f"Perfect h picks a sketch of {chosen} outputs")

    training = Training(epochs=size.epochs, batch_size=64, learning_rate=4e-3, schedule="linear", patience=None)
    start = time.perf_counter()
    model = DSOKR(KERNEL, sketches.SubSample(chosen), NETWORK, training=training, random_state=seed)
    model.fit(*train, validation=val)
    dsokr_seconds = time.perf_counter() - start

    start = time.perf_counter()
    plain = Regression(NETWORK, training, random_state=seed).fit(*train, validation=val)
    plain_seconds = time.perf_counter() - start

    ours, numbers = model.predict(test[0]), plain.predict(test[0])
    nearest = known[kernels.Gaussian(1.0)(numbers, known).argmax(dim=1).numpy()]
    floor = known[KERNEL(test[1], known).argmax(dim=1).numpy()]
    predictions = [
        ("DSOKR", ours, dsokr_seconds),
        ("regression, threshold ½", (numbers > 0.5).astype(np.int64), plain_seconds),
        ("regression, nearest candidate", nearest, plain_seconds),
        ("best candidate (ceiling of any list)", floor, 0.0),
    ]
    rows = [(name, metrics.f1(p, test[1]), metrics.exact_match(p, test[1]), s) for name, p, s in predictions]
    report = _report(folder / "report.html", model, curve, chosen, rows, test, ours)
    model.save(folder / "model")
    return Outcome(rows, report, chosen)


def _report(
    path: Path, model: DSOKR, curve: Any, chosen: int, rows: list[Any], test: tuple[Any, Any], ours: np.ndarray
) -> Path:
    report = Report(
        "What is in the picture?",
        "Deep sketched output kernel regression on label sets: a small CNN predicts coordinates in a basis drawn from "
        "the training sets, and the best-scoring known set is the answer.",
    )
    report.heading("How well it works")
    cells = [
        [name, f"{f1:.3f}", f"{exact:.1%}", f"{seconds:.0f} s" if seconds else ""] for name, f1, exact, seconds in rows
    ]
    report.table(["method", "example F1", "exactly right", "training"], cells, ours="DSOKR")
    report.heading("Pictures it had never seen")
    report.figure(_gallery(test[0], test[1], ours), "twelve pictures with their true and predicted label sets")
    report.heading("What it considered")
    report.text("The five best-scoring sets for three pictures, best first.")
    report.figure(_rankings(model, test), "bar charts of the scores of the five best candidate sets")
    report.heading("Choosing the sketch size, and training")
    report.text(
        "Left: with the true coordinates in the network's place, how well does each sketch size do? The dashed line is "
        f"the smallest size within 1 % of the best, m = {chosen}. Right: the loss over the epochs."
    )
    report.figure(_curves(model, curve, chosen), "Perfect h against the sketch size, and the losses over the epochs")
    return report.write(path)


def words(bits: np.ndarray) -> str:
    """A label set in words, one label a line."""
    return "\n".join(scenes.LABELS[i] for i in np.flatnonzero(bits)) or "nothing"


def _gallery(images: np.ndarray, labels: np.ndarray, predicted: np.ndarray) -> Any:
    fig, grid = pyplot().subplots(2, 6, figsize=(12, 6.4), layout="constrained")
    for axes, image, truth, guess in zip(grid.flat, images, labels, predicted, strict=False):
        axes.imshow(image.transpose(1, 2, 0))
        axes.set(xticks=[], yticks=[])
        right = bool((truth == guess).all())
        axes.set_title(words(truth), fontsize=9)
        axes.set_xlabel(words(guess), fontsize=9, color="#1a7f37" if right else "#b42318")
    fig.suptitle("above: the truth; below: the prediction, green when exactly right", fontsize=10, color="#51607a")
    return fig


def _rankings(model: DSOKR, test: tuple[Any, Any]) -> Any:
    ranking = model.rank(test[0][:3], k=5)
    fig, grid = pyplot().subplots(3, 2, figsize=(9, 6), layout="constrained", width_ratios=(1, 3))
    for (left, right), image, indices, scores in zip(grid, test[0], ranking.indices, ranking.scores, strict=False):
        left.imshow(image.transpose(1, 2, 0))
        left.set(xticks=[], yticks=[])
        names = [words(model.known_.outputs[int(i)]).replace("\n", ", ") for i in indices]
        right.barh(
            range(len(names)),
            (scores - scores.min() + 0.02).tolist(),
            color=["#2f6bd8"] + ["#b9c9e8"] * (len(names) - 1),
        )
        right.set_yticks(range(len(names)), names, fontsize=8)
        right.invert_yaxis()
        right.set_xticks([])
        right.spines[["top", "right", "bottom"]].set_visible(False)
    return fig


def _curves(model: DSOKR, curve: Any, chosen: int) -> Any:
    fig, (left, right) = pyplot().subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    selection.plot_sizes(curve, chosen, label="F1", axes=left)
    for name in ("train_loss", "val_loss"):
        right.plot(range(1, len(model.history_.rows) + 1), model.history_[name], label=name.replace("_", " "))
    right.set(xlabel="epoch", ylabel="loss")
    right.legend(frameon=False)
    return fig
