"""How a network is trained. The training itself is in `loop`, which imports Lightning, and that takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dsokr.errors import check_fields
from dsokr.regressors.base import Monitor


@dataclass(frozen=True)
class Training:
    """How a network is trained. Everything is passed by value; nothing is read from the environment.

    The weights of the epoch that does best on the validation pairs are kept: by the validation loss, or by a task
    metric of the decoded outputs, ``monitor=f`` with ``f(predicted, true)`` better when larger; ``monitor="mrr"`` is
    the mean reciprocal rank of the true output among the decoder's candidates.

    With a ``folder``, metrics go to ``metrics.csv`` there, the best weights to ``best.safetensors``, and every minute
    and at Ctrl-C a checkpoint to ``last.ckpt``. Call fit again with the same data and ``random_state`` to resume.

    >>> Training(epochs=5, schedule="linear", warmup_steps=100).learning_rate
    0.001
    """

    epochs: int = 100
    batch_size: int = 256
    learning_rate: float = 1e-3
    optimizer: Literal["adam", "adamw", "muon"] = "adam"  # muon: far fewer epochs; steps are cheap on a GPU or in bf16
    weight_decay: float = 0.0
    schedule: Literal["constant", "linear"] = "constant"  # linear: warm up from 0, then go down to 0 at the last step
    warmup_steps: int = 0
    gradient_clip: float | None = None
    standardize: bool = True  # the network works in units of its targets' mean and spread; the loss does not change
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: bool | str = False  # True, or a mode of torch.compile; half a minute at the start, for long trainings
    validation_fraction: float = 0.1  # share of the pairs held out when fit is given no validation pairs
    monitor: Monitor = "loss"
    patience: int | None = 10  # validations without improvement before stopping; None: never stop early
    check_every: int = 1  # epochs between validations
    keep_data_on_device: bool = True  # False: inputs and targets stay in main memory, batches are moved one by one
    folder: str | Path | None = field(default=None, compare=False)  # not saved with a model
    # keep last.ckpt of a finished training, so that the same fit returns at once
    keep_state: bool = field(default=False, compare=False)
    progress: bool | Literal["auto"] = "auto"  # auto: a bar in a terminal, a line now and then in a log
    logger: Any = None  # any Lightning logger
    trainer: Mapping[str, Any] = field(default_factory=dict, hash=False)  # further arguments of Lightning's Trainer

    def __post_init__(self) -> None:
        intervals = {"learning_rate": "(0, inf)", "gradient_clip": "(0, inf)", "validation_fraction": "[0, 1)"}
        check_fields(self, warmup_steps=0, **intervals)

    def inside(self, name: str) -> Training:
        """The same training, with a folder of its own for one of several."""
        return self if self.folder is None else replace(self, folder=str(Path(self.folder) / name))
