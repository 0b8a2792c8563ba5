"""What all studies have in common: three sizes, a place to run in, a table and a figure."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dsokr.estimator import DSOKR
from dsokr.files import lock_folder
from dsokr.regressors import Training
from studies.results import Columns, Results, Row

CPU = torch.device("cpu")
ADAMW = Training(optimizer="adamw", weight_decay=0.01, schedule="linear", gradient_clip=1.0, patience=None)


@dataclass(frozen=True)
class Session:
    """Where a study runs: the folders of its results and of data sets, the device, and where progress goes."""

    folder: Path
    data: Path | None = None
    device: torch.device = CPU
    say: Callable[[str], None] = print

    def results(self, name: str) -> Results:
        """The file ``name``.jsonl of results."""
        return Results(self.folder / f"{name}.jsonl", self.say)


@dataclass(frozen=True)
class Study:
    """A study by name: its configurations by size, how one is run, and how the results in a folder are shown."""

    name: str
    sizes: Mapping[str, tuple[Any, ...]]  # full, reduced, quick: configurations, run one after the other
    run: Callable[[Any, Session], None]
    tabulate: Callable[[Path], list[Row]]
    columns: Columns
    draw: Callable[[Path, Path], Path]  # (folder of the results, image) -> image

    def folder(self, size: str) -> str:
        """Results of different sizes do not mix."""
        return self.name if size == "full" else f"{self.name}-{size}"

    def execute(self, size: str, session: Session) -> None:
        """Compute what the folder does not hold yet. One process at a time writes to it."""
        with lock_folder(session.folder, "python -m studies"):
            for configuration in self.sizes[size]:
                self.run(configuration, session)


@contextmanager
def faster_training(device: torch.device) -> Iterator[None]:
    """On a CPU, multiply by oneDNN, which is twice as fast as MKL on AMD's cores, and compute attention plainly.

    oneDNN may round factors to 16 bits on processors with AMX. Fused attention has a slow backward pass on a CPU.
    """
    precision, fused = torch.get_float32_matmul_precision(), torch.backends.cuda.flash_sdp_enabled()  # of CPUs, too
    if device.type == "cpu":
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cuda.enable_flash_sdp(fused)


def decode(model: DSOKR, decoder: Any, X: Any) -> Any:
    """Predict with another decoder than the model's own."""
    return decoder.decode(model.basis_, model.coefficients(X), model.known_).outputs


@dataclass
class Stopwatch:
    """Seconds by activity.

    >>> clock = Stopwatch()
    >>> with clock("fit"):
    ...     pass
    >>> list(clock.seconds)
    ['fit']
    """

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, activity: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[activity] = time.perf_counter() - start
