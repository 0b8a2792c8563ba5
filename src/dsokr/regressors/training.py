"""Training a network to predict coordinates, on Lightning's Trainer. Nothing here knows of kernels."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Literal
from zipfile import is_zipfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.loggers import Logger
from torch import Generator, Tensor, nn

from dsokr.regressors.callbacks import Bookkeeper, Progress, StateKeeper
from dsokr.compute import seeded
from dsokr.errors import InputError, Interrupted, TrainingError, require_integer
from dsokr.losses import Objective
from dsokr.files import hash_of, mixed_sum, name_of
from dsokr.regressors.networks import Standardized, lengths, paces

Batch = tuple[Tensor, Tensor, Tensor]
Metric = Callable[[Any, Any], Any]  # (predicted outputs, true outputs) -> a number, better when larger
Evaluate = Callable[[Tensor], float]  # coefficients of the validation inputs (n, p) -> a score, better when larger

MIXED = 20  # batches whose inputs are sorted by length among themselves


@dataclass(frozen=True)
class Training:
    """How a network is trained. Everything is passed by value; nothing is read from the environment.

    The weights of the epoch that does best on the validation pairs are kept: by the validation loss, or by a task
    metric of the decoded outputs, ``monitor=f`` with ``f(predicted, true)`` better when larger; ``monitor="mrr"`` is
    the mean reciprocal rank of the true output among the decoder's candidates.

    With a ``folder``, metrics go to ``metrics.csv`` there and the state to ``last.ckpt``: every 15 to 45 seconds, also
    in the middle of an epoch, and at Ctrl-C. An interrupted fit goes on from it when called again with the same data
    and ``random_state``, exactly as if it had not been interrupted.

    >>> Training(epochs=5, schedule="linear", warmup_steps=100).learning_rate
    0.001
    """

    epochs: int = 100
    batch_size: int = 256
    learning_rate: float = 1e-3
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_decay: float = 0.0
    schedule: Literal["constant", "linear"] = "constant"  # linear: warm up from 0, then go down to 0 at the last step
    warmup_steps: int = 0
    gradient_clip: float | None = None
    standardize: bool = True  # the network works in units of its targets' mean and spread; the loss does not change
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: bool | str = False  # True, or a mode of torch.compile; half a minute at the start, for long trainings
    validation_fraction: float = 0.1  # share of the pairs held out when fit is given no validation pairs
    monitor: Literal["loss", "mrr"] | Metric = "loss"
    patience: int | None = 10  # validations without improvement before stopping; None: never stop early
    check_every: int = 1  # epochs between validations
    keep_data_on_device: bool = True  # False: inputs and targets stay in main memory, batches are moved one by one
    folder: str | None = None
    keep_state: bool = False  # also of a finished training: the same fit again has nothing left to do
    progress: bool | Literal["auto"] = "auto"  # auto: a bar in a terminal, a line now and then in a log
    logger: Any = None  # any Lightning logger
    trainer: Mapping[str, Any] = field(default_factory=dict, hash=False)  # further arguments of Lightning's Trainer

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("warmup_steps", 0), ("check_every", 1)):
            require_integer(self, name, getattr(self, name), least)
        if self.patience is not None:
            require_integer(self, "patience", self.patience, least=1)
        for name, allowed in (
            ("optimizer", ("adam", "adamw")),
            ("schedule", ("constant", "linear")),
            ("precision", ("32-true", "bf16-mixed", "16-mixed")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"Training.{name} must be one of {allowed}. Got {getattr(self, name)!r}.")
        for name, (wanted, is_right) in CHECKS.items():
            if not is_right(getattr(self, name)):
                raise InputError(f"Training.{name} must be {wanted}. Got {getattr(self, name)!r}.")


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_logger(value: Any) -> bool:
    return all(isinstance(one, Logger) for one in (value if isinstance(value, list | tuple) else [value]))


CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # what options other than whole numbers and names must be
    "learning_rate": ("positive and finite", lambda value: _is_finite(value) and value > 0),
    "weight_decay": ("at least 0 and finite", lambda value: _is_finite(value) and value >= 0),
    "gradient_clip": ("positive and finite, or None", lambda value: value is None or (_is_finite(value) and value > 0)),
    "validation_fraction": ("in [0, 1)", lambda value: _is_finite(value) and 0 <= value < 1),
    "standardize": ("True or False", _is_bool),
    "keep_data_on_device": ("True or False", _is_bool),
    "keep_state": ("True or False", _is_bool),
    "compile": ("True, False or a mode of torch.compile", lambda value: isinstance(value, bool | str) and value != ""),
    "progress": ("True, False or 'auto'", lambda value: _is_bool(value) or value == "auto"),
    "monitor": ("'loss', 'mrr' or a function of outputs", lambda value: callable(value) or value in ("loss", "mrr")),
    "folder": ("a path, or None", lambda value: value is None or isinstance(value, str | os.PathLike)),
    "logger": ("a Lightning logger, a list of them, or None", lambda v: v is None or _is_bool(v) or _is_logger(v)),
    "trainer": ("a mapping from names of arguments to their values", lambda value: isinstance(value, Mapping)),
}


@dataclass(frozen=True, eq=False)
class Pairs:
    """Inputs with the coordinates and residuals of their outputs, as tensors of n rows."""

    inputs: Tensor
    targets: Tensor  # (n, p) float32
    residuals: Tensor  # (n,) float32

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Pairs:
        return Pairs(self.inputs.to(device), self.targets.to(device), self.residuals.to(device))

    def rows(self, index: Tensor | slice) -> Batch:
        return self.inputs[index], self.targets[index], self.residuals[index]


def standardized(network: nn.Module, pairs: Pairs, training: Training) -> Standardized:
    """The network in units of the targets it will be trained on, if that is wanted."""
    if training.standardize:
        return Standardized.of(network, pairs.targets)
    return Standardized.plain(network, pairs.targets.shape[1])


@dataclass(frozen=True)
class History:
    """What happened: one row of metrics per epoch, and the epoch whose weights were kept (counted from 1)."""

    rows: list[dict[str, float]]
    best_epoch: int

    def __getitem__(self, name: str) -> list[float]:
        """One metric over the epochs: ``history["train_loss"]``."""
        return [row[name] for row in self.rows if name in row]


def train(
    network: nn.Module,
    pairs: Pairs,
    validation: Pairs | None,
    loss: Objective,
    training: Training,
    *,
    seed: int,
    device: torch.device,
    evaluate: Evaluate | None = None,
) -> History:
    """Fit ``network`` in place and leave it in evaluation mode, on ``device``, with the best epoch's weights.

    ``evaluate`` scores the coefficients of the validation inputs when the monitor is a task metric. The global random
    state is the same before and after.
    """
    fingerprint = "" if training.folder is None else _fingerprint(network, pairs, validation, loss, training, seed)
    book = Bookkeeper("val_score" if evaluate else "val_loss", training.folder, fingerprint)
    book.open()
    module = _Regression(network, pairs, validation, loss, training, seed, evaluate)
    callbacks: list[Callback] = [book]
    if validation is not None and training.patience is not None:
        mode = "max" if evaluate else "min"
        callbacks.append(EarlyStopping(book.monitor, mode=mode, patience=training.patience, check_finite=False))
    if training.progress is not False:
        callbacks.append(Progress(book, always=training.progress is True))
    keeper = None if training.folder is None else StateKeeper(training.folder)
    if keeper is not None:
        callbacks.append(keeper)
    with seeded(seed), _quiet():
        _run(pl.Trainer(**_trainer_arguments(training, module, callbacks, device)), module, keeper)
    if not book.best_weights:
        raise TrainingError("Training ended before its first epoch did: the arguments in Training.trainer stop it.")
    network.load_state_dict(book.best_weights)
    book.finish(network, training.keep_state)
    network.to(device).eval()
    return History(book.rows, book.best_epoch)


def _trainer_arguments(training: Training, module: _Regression, callbacks: list[Callback], device: torch.device) -> Any:
    further = dict(training.trainer)
    own = further.pop("callbacks", None) or []
    return {
        "accelerator": "gpu" if device.type == "cuda" else device.type,
        "devices": [device.index or 0] if device.type == "cuda" else 1,
        "max_epochs": training.epochs,
        "precision": training.precision,
        "gradient_clip_val": training.gradient_clip,
        "check_val_every_n_epoch": training.check_every,
        "logger": training.logger or False,
        "log_every_n_steps": min(50, module.steps_per_epoch),
        "callbacks": callbacks + ([own] if isinstance(own, Callback) else list(own)),
        "enable_checkpointing": training.folder is not None,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **further,
    }


def _run(trainer: pl.Trainer, module: _Regression, keeper: StateKeeper | None) -> None:
    resume = str(keeper.file) if keeper is not None and keeper.file.exists() else None
    if resume is not None and not is_zipfile(resume):  # as torch writes them, with the directory at the very end
        raise TrainingError(f"{resume} is damaged or incomplete. Delete it to start anew.")
    try:
        with _ctrl_c(keeper):
            trainer.fit(module, ckpt_path=resume)
    except (SystemExit, KeyboardInterrupt) as stop:  # the first is Lightning's answer to Ctrl-C
        remedy = (
            "Call fit again with the same data and random_state to go on."
            if keeper is not None
            else "Set Training.folder to be able to resume."
        )
        raise Interrupted(f"Training was interrupted in epoch {trainer.current_epoch + 1}. {remedy}") from stop


@contextmanager
def _ctrl_c(keeper: StateKeeper | None) -> Iterator[None]:
    """Ctrl-C lets the batch end and the state be written, where it is kept. Lightning leaves the signal ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:  # not Python's to change
        yield
        return
    if keeper is not None and handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, keeper.on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if keeper is not None and keeper.asked_to_stop:
        raise KeyboardInterrupt


SAID = {"epochs", "batch_size", "learning_rate", "optimizer", "schedule", "monitor"}  # in every fingerprint
WITHOUT_EFFECT = {"folder", "keep_state", "keep_data_on_device", "progress", "logger"}  # on what is learnt
TRAINER_WITHOUT_EFFECT = {
    *("callbacks", "logger", "profiler", "default_root_dir", "log_every_n_steps"),
    *("enable_progress_bar", "enable_model_summary"),
}


def _fingerprint(
    network: nn.Module, pairs: Pairs, validation: Pairs | None, loss: Objective, training: Training, seed: int
) -> str:
    """What must be the same for a checkpoint to be continued, in words.

    Functions enter by their names, callbacks not at all. Inputs enter by a hash, and targets, which are computed, by a
    sum that depends on the place of every number.
    """
    weights = sum(w.numel() for w in network.parameters())
    layers = hashlib.sha256(name_of(network).encode()).hexdigest()[:16]
    held_out = "" if validation is None else f", validation {_marks(validation)}"
    return (
        f"seed {seed}, {_marks(pairs)}{held_out}, p = {pairs.targets.shape[1]}, "
        f"{weights} weights (layers {layers}), loss {name_of(loss)}, "
        f"{training.epochs} epochs in batches of {training.batch_size}, {training.optimizer} at "
        f"{training.learning_rate}, {training.schedule} schedule, monitor {name_of(training.monitor)}"
        + "".join(f", {name} {name_of(value)}" for name, value in _further_options(training).items())
    )


def _further_options(training: Training) -> dict[str, Any]:
    """Those that have an effect and are not as by default."""
    own = {f.name: getattr(training, f.name) for f in fields(training) if f.name not in SAID | WITHOUT_EFFECT}
    further = {name: value for name, value in own.items() if name != "trainer" and value != getattr(Training, name)}
    for name, value in sorted(training.trainer.items()):
        if name not in TRAINER_WITHOUT_EFFECT:
            further[f"trainer.{name}"] = value
    return further


def _marks(pairs: Pairs) -> str:
    targets = mixed_sum(pairs.targets, pairs.residuals)
    return f"{len(pairs)} pairs (inputs {hash_of(pairs.inputs)}, targets {targets:.5e})"


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's announcements are not ours; its warnings about data loaders do not concern sliced tensors."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning.*")
        try:
            yield
        finally:
            log.setLevel(level)


class SlicedBatches:
    """Batches sliced from tensors, in an order that depends on the seed and the epoch alone."""

    def __init__(
        self,
        pairs: Pairs,
        batch_size: int,
        order: Callable[[int], Tensor] | None = None,
        world_size: int = 1,
        seen: Callable[[], int] = lambda: 0,  # batches of this epoch that were seen before an interruption
    ):
        self.pairs, self.batch_size, self.order, self.world_size = pairs, batch_size, order, world_size
        self.seen = seen

    def __len__(self) -> int:
        return math.ceil(len(self.pairs) // self.world_size / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.pairs)
        if self.order is None:
            for start in range(0, n, self.batch_size):
                inputs, targets, residuals = self.pairs.rows(slice(start, start + self.batch_size))
                yield inputs.clone(), targets, residuals  # a network may work in place
        else:
            order = self.order(n)[self.seen() * self.batch_size :]
            for index in order.to(self.pairs.inputs.device).split(self.batch_size):
                yield self.pairs.rows(index)


class _Regression(pl.LightningModule):
    """min over W of the mean of c(‖g_W(x) − ψ̃(y)‖² + residual(y))."""

    def __init__(
        self,
        network: nn.Module,
        pairs: Pairs,
        validation: Pairs | None,
        loss: Objective,
        training: Training,
        seed: int,
        evaluate: Evaluate | None,
    ):
        super().__init__()
        self.network, self.loss, self.training_options, self.seed = network, loss, training, seed
        self.evaluate = evaluate
        self.pairs, self.validation = pairs, validation
        self.lengths = lengths(network, pairs.inputs)
        self.lengths = None if self.lengths is None else self.lengths.cpu()
        self.steps_per_epoch = math.ceil(len(pairs) / training.batch_size)
        self._losses: list[tuple[Tensor, int]] = []
        self._checked: list[tuple[Tensor, Tensor, int]] = []

    def setup(self, stage: str) -> None:
        if self.training_options.keep_data_on_device:
            device = self.trainer.strategy.root_device
            self.pairs = self.pairs.to(device)
            self.validation = None if self.validation is None else self.validation.to(device)
        self.loss = self.loss.among(self.pairs.targets.to(self.trainer.strategy.root_device))
        self._batch_loss = self._compiled_loss() if self.training_options.compile else self._plain_loss

    def train_dataloader(self) -> SlicedBatches:
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        batch_size, world = self.training_options.batch_size, self.trainer.world_size
        return SlicedBatches(self.pairs, batch_size, self._order, world, seen=lambda: progress.ready)

    def val_dataloader(self) -> SlicedBatches | list[Any]:
        return [] if self.validation is None else SlicedBatches(self.validation, self.training_options.batch_size)

    def _order(self, n: int) -> Tensor:
        """This epoch's permutation; with several devices, this one's equal share of it."""
        generator = Generator().manual_seed(self.seed + 1 + self.current_epoch)
        order, world = torch.randperm(n, generator=generator), self.trainer.world_size
        if self.lengths is not None:
            order = batched_by_length(order, self.lengths, world * self.training_options.batch_size, generator)
        return order[: n - n % world][self.trainer.global_rank :: world]

    def training_step(self, batch: Batch, _: int) -> Tensor:
        whole = len(batch[0]) == self.training_options.batch_size  # a rest is not worth compiling for
        loss = (self._batch_loss if whole else self._plain_loss)(*batch)
        self._losses.append((loss.detach().clone(), len(batch[0])))  # a compiled step may write to the same place again
        return loss

    def _plain_loss(self, inputs: Tensor, targets: Tensor, residuals: Tensor) -> Tensor:
        return self._loss(self.network(inputs), (inputs, targets, residuals))

    def _compiled_loss(self) -> Callable[..., Tensor]:
        network, loss, mode = self.network, self.loss, self.training_options.compile

        def whole(inputs: Tensor, targets: Tensor, residuals: Tensor) -> Tensor:
            return loss.mean(network(inputs).float(), targets, residuals)

        return torch.compile(whole, mode=mode if isinstance(mode, str) else None, dynamic=False)

    def _loss(self, z: Tensor, batch: Batch) -> Tensor:
        return self.loss.mean(z.float(), batch[1], batch[2])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        losses = [loss for loss, _ in self._losses]
        checkpoint["losses"] = torch.stack(losses) if losses else torch.empty(0)
        checkpoint["loss_rows"] = [rows for _, rows in self._losses]
        checkpoint["random"] = {"cpu": torch.get_rng_state()}  # dropout goes on as well
        if self.device.type == "cuda":
            checkpoint["random"]["cuda"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        device = self.trainer.strategy.root_device
        self._losses = list(zip(checkpoint["losses"].to(device), checkpoint["loss_rows"], strict=True))
        torch.set_rng_state(checkpoint["random"]["cpu"])
        if device.type == "cuda" and "cuda" in checkpoint["random"]:
            torch.cuda.set_rng_state(checkpoint["random"]["cuda"], device)

    def epoch_loss(self) -> float:
        """The mean training loss of the epoch that just ended, which also starts a new count."""
        total = torch.stack([loss * rows for loss, rows in self._losses]).sum()
        mean = total / sum(rows for _, rows in self._losses)
        self._losses.clear()
        self.log("train_loss", mean, sync_dist=self.trainer.world_size > 1)
        if not torch.isfinite(mean):
            rate = self.training_options.learning_rate
            raise TrainingError(
                f"The training loss became {mean.item()} in epoch {self.current_epoch + 1}. "
                f"Lower Training.learning_rate (now {rate:g}), or scale the inputs."
            )
        return mean.item()

    def validation_step(self, batch: Batch, _: int) -> None:
        z = self.network(batch[0])
        self._checked.append((self._loss(z, batch), z.float(), len(z)))

    def on_validation_epoch_end(self) -> None:
        total = torch.stack([loss * rows for loss, _, rows in self._checked]).sum()
        z = torch.cat([z for _, z, _ in self._checked])
        self._checked.clear()
        self.log("val_loss", total / len(z))
        if self.evaluate is not None:
            self.log("val_score", float(self.evaluate(z)))

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """As Lightning does, but also beside a fused optimizer in bfloat16: nothing is scaled there."""
        if gradient_clip_val is not None and self.training_options.precision == "bf16-mixed":
            nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)
        else:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self) -> Any:
        options = self.training_options
        kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
        fused = options.precision != "16-mixed"  # a fused step cannot unscale and clip gradients
        groups = [{"params": part, "lr": pace * options.learning_rate} for part, pace in paces(self.network) if pace]
        optimizer = kind(groups, weight_decay=options.weight_decay, fused=fused)
        if options.schedule == "constant" and not options.warmup_steps:
            return optimizer
        total = int(self.trainer.estimated_stepping_batches)  # counts devices and accumulated batches too
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, total, options))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def batched_by_length(order: Tensor, lengths: Tensor, batch_size: int, generator: Generator) -> Tensor:
    """The same inputs in an order whose batches hold inputs of similar length, and come in no order of length.

    Stretches of ``MIXED`` batches are sorted, so that an input meets others in every epoch.
    """
    whole = len(order) - len(order) % batch_size
    stretches = [part[lengths[part].argsort(stable=True)] for part in order[:whole].split(MIXED * batch_size)]
    if not stretches:
        return order
    batches = torch.cat(stretches).view(-1, batch_size)
    return torch.cat([batches[torch.randperm(len(batches), generator=generator)].flatten(), order[whole:]])


def _rate(step: int, total: int, training: Training) -> float:
    """The learning rate at a step, as a share of the full one."""
    if step < training.warmup_steps:
        return step / training.warmup_steps
    if training.schedule == "constant":
        return 1.0
    return max(0.0, (total - step) / max(1, total - training.warmup_steps))
