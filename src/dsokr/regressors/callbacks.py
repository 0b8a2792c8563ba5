"""Lightning callbacks: keep the best weights, the metrics and the state, and show how far the training is."""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column
from safetensors.torch import save_model
from torch import Tensor, nn

from dsokr.errors import TrainingError

LINE_EVERY = 10.0  # seconds between lines in a log
STATE_EVERY = 45.0  # seconds between checkpoints, at most
STATE_PAUSE = 15.0  # and at least, also when epochs are short


class Bookkeeper(Callback):
    """Remembers every epoch's metrics and the weights of the best one, also across an interruption.

    ``monitor`` is a score, better when larger, if its name says so; a loss otherwise. Without validation the last epoch
    counts as the best.
    """

    def __init__(self, monitor: str, folder: str | None, fingerprint: str):
        self.monitor, self.folder, self.fingerprint = monitor, None if folder is None else Path(folder), fingerprint
        self.rows: list[dict[str, float]] = []
        self.best_epoch = 0
        self.best_value = -math.inf
        self.best_weights: dict[str, Tensor] = {}

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        row = {"epoch": trainer.current_epoch + 1, "train_loss": module.epoch_loss()}  # type: ignore[operator] # our module
        if row["epoch"] % (trainer.check_val_every_n_epoch or 1) == 0:
            row |= {name: float(v) for name, v in trainer.callback_metrics.items() if name.startswith("val_")}
        self.rows.append(row)
        if self.folder is not None:
            self._write()
        if self._is_best(row):
            self.best_epoch = row["epoch"]
            self.best_weights = {name: w.detach().clone() for name, w in module.network.state_dict().items()}  # type: ignore[union-attr]

    def _is_best(self, row: dict[str, float]) -> bool:
        if self.monitor not in row:  # no validation at all: the last epoch; none in this epoch: nothing is known of it
            return not any(self.monitor in other for other in self.rows)
        value = row[self.monitor] if "score" in self.monitor else -row[self.monitor]
        better = value > self.best_value or not math.isfinite(self.best_value)
        self.best_value = value if better else self.best_value
        return better

    def _write(self) -> None:
        assert self.folder is not None
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        with (self.folder / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.rows)

    def open(self) -> None:
        """Begin, or go on with what the folder holds if it is this very training."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        name = self.folder / "training.txt"
        if (self.folder / "last.ckpt").exists():
            found = name.read_text(encoding="utf-8") if name.exists() else "nothing is known of it"
            if found != self.fingerprint:
                raise TrainingError(
                    f"{self.folder} holds an interrupted training of something else ({found}; now {self.fingerprint}). "
                    "Fit with the same data, parts and random_state, choose another Training.folder, or delete "
                    "last.ckpt there."
                )
        else:
            name.write_text(self.fingerprint, encoding="utf-8")

    def finish(self, network: nn.Module, keep_state: bool) -> None:
        """The training is over: leave its best weights, and nothing that a new training would resume from."""
        if self.folder is not None:
            save_model(network, str(self.folder / "best.safetensors"))
            for name in () if keep_state else ("last.ckpt", "last.ckpt.part", "training.txt"):
                (self.folder / name).unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rows", "best_epoch", "best_value", "best_weights")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class StateKeeper(Checkpoint):
    """Writes ``last.ckpt`` after epochs, before their validation, in the middle of long ones, and at Ctrl-C.

    Ctrl-C waits for the batch to end, and for the epoch if it is its last; a second one, or one during validation, does
    not.
    """

    def __init__(self, folder: str):
        self.file = Path(folder) / "last.ckpt"
        self.written = time.monotonic()
        self.is_training: Callable[[], bool] = lambda: False
        self.asked_to_stop = False

    def on_interrupt(self, *_: Any) -> None:
        """A handler of SIGINT: between two steps the state is whole, within one it is not."""
        if self.asked_to_stop or not self.is_training():
            raise KeyboardInterrupt
        self.asked_to_stop = True

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        trainer.strategy.checkpoint_io = WholeFiles()
        self.is_training = lambda: trainer.training

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.written = time.monotonic()
        for other in trainer.callbacks:  # type: ignore[attr-defined] # of the Trainer
            if isinstance(other, EarlyStopping) and other.wait_count >= other.patience:
                trainer.should_stop = True  # it was already over

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        done = batch_idx + 1
        left, accumulated = trainer.num_training_batches - done, trainer.accumulate_grad_batches
        if left == 0 or done % accumulated or trainer.global_step == trainer.max_steps:
            return  # Lightning would not validate when it goes on after the last batch; other gradients are not kept
        wait = STATE_EVERY if left > accumulated else STATE_PAUSE  # validation comes soon, and may take long
        self._write(trainer, wait, now=trainer.received_sigterm)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        over = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        self._write(trainer, STATE_PAUSE, now=over)

    def _write(self, trainer: pl.Trainer, wait: float, now: bool) -> None:
        stop = self.asked_to_stop
        due = now or stop or time.monotonic() - self.written >= wait
        due, stop = trainer.strategy.broadcast((due, stop))  # to other devices, from the first
        if due:
            trainer.save_checkpoint(self.file)
            self.written = time.monotonic()
        if stop:
            raise KeyboardInterrupt


class WholeFiles(TorchCheckpointIO):
    """Checkpoints that replace the one before when they are whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with open(f"{path}.part", "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)


class Progress(Callback):
    """A bar with the time left in a terminal; in a log, a line now and then, and none for a training of seconds."""

    def __init__(self, book: Bookkeeper, always: bool = False):
        self.book, self.always = book, always
        self.console = Console(stderr=True)
        self.bar: Bar | None = None
        self.task: Any = None
        self.told = self.started = time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and self.console.is_terminal:
            count, label, bar, left = (Column(no_wrap=True, min_width=width) for width in (7, 6, 12, 7))
            self.bar = Bar(
                MofNCompleteColumn(table_column=count),
                TextColumn("epochs", table_column=label),
                BarColumn(bar_width=12, table_column=bar),
                TimeRemainingColumn(table_column=left),
                TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
                console=self.console,
            )
            self.task = self.bar.add_task("", total=trainer.max_epochs, completed=trainer.current_epoch, state="")
            self.bar.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        done, of = batch_idx + 1, trainer.num_training_batches
        if self.bar is not None:
            self.bar.update(self.task, completed=trainer.current_epoch + done / of)
        elif done < of and self._may_tell(trainer):
            self._tell(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  batch {done:,}/{of:,}")

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        row = self.book.rows[-1]
        state = "  ".join(f"{name} {value:.5g}" for name, value in row.items() if name != "epoch")
        state += f"  best epoch {self.book.best_epoch}"
        if self.bar is not None:
            self.bar.update(self.task, completed=row["epoch"], state=state)
        elif self._may_tell(trainer) or (self.always and trainer.is_global_zero):
            self._tell(f"epoch {row['epoch']}/{trainer.max_epochs}  {state}")

    def _may_tell(self, trainer: pl.Trainer) -> bool:
        return trainer.is_global_zero and time.monotonic() - self.told > LINE_EVERY

    def _tell(self, line: str) -> None:
        self.told = time.monotonic()
        self.console.print(line, highlight=False)

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
