"""Lightning callbacks: record metrics and the best weights, write checkpoints, show progress."""

import csv
import math
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from safetensors.torch import save_file
from torch import Tensor

from dsokr.compute import show_progress
from dsokr.errors import TrainingError
from dsokr.files import replace_file

MONITOR = "monitor"  # the metric by which epochs are compared, larger is better
CHECKPOINT_EVERY = timedelta(minutes=1)


class Recorder(Callback):
    """Records the metrics of every epoch and the weights of the best, also across interruptions.

    Without validation the last epoch counts as the best.
    """

    def __init__(self, folder: Path | None, fingerprint: str, keep_state: bool):
        self.folder, self.fingerprint, self.keep_state, self.is_finished = folder, fingerprint, keep_state, False
        self.rows: list[dict[str, float]] = []
        self.best_epoch, self.best_value = 0, -math.inf
        self.best_weights: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        names = ("fingerprint", "is_finished", "rows", "best_epoch", "best_value", "best_weights")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def read_checkpoint(self) -> Path | None:
        """Take over the records in a checkpoint, if there is one, unless it belongs to another training."""
        if self.folder is None or not (file := self.folder / "last.ckpt").exists():
            return None
        try:
            saved = torch.load(file, map_location="cpu", weights_only=True)
            state = saved["callbacks"][self.state_key]
            is_other = state["fingerprint"] != self.fingerprint
            if not state["is_finished"]:
                _ = saved["loops"]["fit_loop"]  # without which Lightning would begin with the first epoch
        except Exception as error:  # a damaged archive raises errors of many types
            raise TrainingError(f"{file} is damaged or incomplete. Delete it to start again.") from error
        if is_other:
            raise TrainingError(
                f"{file} is a checkpoint of another training: fit with the same data, parts and random_state, choose "
                "another Training.folder, or delete it."
            )
        self.load_state_dict(state)
        return file

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        row = {"epoch": trainer.current_epoch + 1, "train_loss": module.mean_loss()}  # type: ignore[operator] # ours
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        is_validated = MONITOR in metrics and row["epoch"] % (trainer.check_val_every_n_epoch or 1) == 0
        if is_validated:
            row |= {name: value for name, value in metrics.items() if name.startswith("val_")}
        self.rows.append(row)
        value = metrics[MONITOR] if is_validated else -math.inf
        if value > self.best_value or not math.isfinite(self.best_value):
            weights = module.network.state_dict()  # type: ignore[union-attr] # ours
            self.best_epoch, self.best_value = row["epoch"], value
            self.best_weights = {name: w.detach().clone().contiguous() for name, w in weights.items()}
        if self.folder is not None and trainer.is_global_zero:
            self._write_metrics(self.folder / "metrics.csv")

    def _write_metrics(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, list(dict.fromkeys(name for row in self.rows for name in row)))
            writer.writeheader()
            writer.writerows(self.rows)

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Write the best weights, and replace the checkpoint by these records or by nothing."""
        self.is_finished = True
        if self.folder is None or not self.best_weights or not trainer.is_global_zero:
            return
        with replace_file(self.folder / "best.safetensors") as draft:
            save_file(self.best_weights, draft)
        (self.folder / "last.ckpt").unlink(missing_ok=True)
        if self.keep_state:
            with replace_file(self.folder / "last.ckpt") as draft:
                torch.save({"callbacks": {self.state_key: self.state_dict()}}, draft)


class StateCheckpoint(ModelCheckpoint):
    """Writes ``last.ckpt`` every minute, after a batch or an epoch, and when the user stops the training.

    Nothing is written from the last batch of an epoch until its end: Lightning would not validate when it resumes
    there, and would resume a validation in the middle.
    """

    def __init__(self, folder: Path):
        super().__init__(
            folder, "last", train_time_interval=CHECKPOINT_EVERY, save_on_exception=True, enable_version_counter=False
        )

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        if not trainer.is_last_batch:
            super().on_train_batch_end(trainer, *rest)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        super().on_train_batch_end(trainer, module, None, None, 0)  # the same check of the time

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        """At Ctrl-C and SIGTERM; after an error the weights may be spoilt."""
        if not isinstance(exception, Exception) and trainer.training and not trainer.is_last_batch:
            super().on_exception(trainer, module, exception)


class Progress(Callback):
    """Says how far the training is and how much time is left. Lightning's own bars count the batches of one epoch."""

    def __init__(self, recorder: Recorder, always: bool):
        self.recorder, self.always, self.shown = recorder, always, ExitStack()

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.first_epoch, self.started = trainer.current_epoch, time.monotonic()
        self.say = self.shown.enter_context(show_progress(quiet=not trainer.is_global_zero))

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *rest: Any) -> None:
        done, total = rest[-1] + 1, trainer.num_training_batches
        if done < total:
            self._say(trainer, done / total, f"batch {done:,}/{total:,}", passing=True)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        metrics = [f"{name} {value:.5g}" for name, value in self.recorder.rows[-1].items() if name != "epoch"]
        self._say(trainer, 1.0, "  ".join([*metrics, f"best epoch {self.recorder.best_epoch}"]), not self.always)

    def _say(self, trainer: pl.Trainer, share: float, text: str, passing: bool) -> None:
        done, total = trainer.current_epoch + share, trainer.max_epochs or 0
        left = (time.monotonic() - self.started) * (total - done) / (done - self.first_epoch)
        self.say(f"epoch {math.ceil(done)}/{total}  {text}  {timedelta(seconds=round(left))} left", passing)

    def on_fit_end(self, *_: Any) -> None:
        self.shown.close()

    def on_exception(self, *_: Any) -> None:
        self.shown.close()
