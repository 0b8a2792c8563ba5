"""Training a network to predict coordinates, on Lightning's Trainer. Nothing here knows of kernels."""

from __future__ import annotations

import logging
import math
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Generator, Tensor, nn
from torch.utils.data import TensorDataset

from dsokr.compute import seeded
from dsokr.errors import Interrupted, TrainingError
from dsokr.files import fingerprint
from dsokr.losses import Objective
from dsokr.outputs import take
from dsokr.regressors.base import History, Score
from dsokr.regressors.callbacks import MONITOR, Progress, Recorder, StateCheckpoint
from dsokr.regressors.muon import Muon, divide_groups
from dsokr.regressors.networks.base import call_optional
from dsokr.regressors.streaming import TargetStream
from dsokr.regressors.training import Training

Batch = tuple[Tensor, ...]  # inputs, targets, residuals, and weights if there are any

SORTED_TOGETHER = 20  # batches whose inputs are sorted by length among themselves


def train(
    network: nn.Module,
    pairs: TensorDataset,
    validation: TensorDataset | None,
    loss: Objective,
    training: Training,
    *,
    seed: int,
    device: torch.device,
    score: Score = None,
    stream: TargetStream | None = None,
) -> History:
    """Fit ``network`` in place and leave it in evaluation mode, on ``device``, with the best epoch's weights.

    With a ``stream``, ``pairs`` are a sample of it. ``score`` rates the coordinates of the validation inputs when the
    monitor is a task metric. The global random state is the same before and after.
    """
    folder = None if training.folder is None else Path(training.folder)
    data = [pairs] if validation is None else [pairs, validation]
    identity = "" if folder is None else _identify(network, data, loss, training, seed, stream)
    recorder = Recorder(folder, identity, training.keep_state)
    checkpoint = recorder.read_checkpoint()
    if not recorder.is_finished:
        module = _Regression(network, data, loss, training, seed, score, stream)
        callbacks = _make_callbacks(recorder, training, validation is not None)
        with seeded(seed), _silence_lightning():
            _run(pl.Trainer(**_trainer_arguments(training, callbacks, device)), module, checkpoint)
    if not recorder.best_weights:
        raise TrainingError("Training ended before its first epoch did: the arguments in Training.trainer stop it.")
    network.load_state_dict(recorder.best_weights)
    network.to(device).eval()
    return History(recorder.rows, recorder.best_epoch)


def _make_callbacks(recorder: Recorder, training: Training, has_validation: bool) -> list[Callback]:
    callbacks: list[Callback] = [recorder]
    if has_validation and training.patience is not None:
        callbacks.append(EarlyStopping(MONITOR, mode="max", patience=training.patience, check_finite=False))
    if training.progress is not False:
        callbacks.append(Progress(recorder, always=training.progress is True))
    if recorder.folder is not None:
        callbacks.append(StateCheckpoint(recorder.folder))
    own = training.trainer.get("callbacks") or []
    return callbacks + ([own] if isinstance(own, Callback) else list(own))


def _trainer_arguments(training: Training, callbacks: list[Callback], device: torch.device) -> dict[str, Any]:
    return {
        "accelerator": "gpu" if device.type == "cuda" else device.type,
        "devices": [device.index or 0] if device.type == "cuda" else 1,
        "max_epochs": training.epochs,
        "precision": training.precision,
        "gradient_clip_val": training.gradient_clip,
        "check_val_every_n_epoch": training.check_every,
        "logger": training.logger or False,
        "enable_checkpointing": training.folder is not None,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **training.trainer,
        "callbacks": callbacks,
    }


def _run(trainer: pl.Trainer, module: _Regression, checkpoint: Path | None) -> None:
    """Train until the end. Lightning answers Ctrl-C by exiting, and leaves the signal ignored."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, ckpt_path=checkpoint, weights_only=True)
    except Exception as error:
        if checkpoint is None or module.has_started:
            raise
        raise TrainingError(f"{checkpoint} is damaged or incomplete. Delete it to start again.") from error
    except (SystemExit, KeyboardInterrupt) as stop:
        remedy = "Set Training.folder to be able to resume."
        if module.options.folder is not None:
            remedy = "Call fit again with the same data and random_state to resume."
        raise Interrupted(f"Training was interrupted in epoch {trainer.current_epoch + 1}. {remedy}") from stop
    finally:
        with suppress(ValueError, TypeError):  # not in the main thread, or not set by Python
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _silence_lightning() -> Iterator[None]:
    """Hide Lightning's announcements, and its warnings about data loaders, which do not concern sliced tensors."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning.*")
        try:
            yield
        finally:
            log.setLevel(level)


def _identify(
    network: nn.Module,
    data: list[TensorDataset],
    loss: Objective,
    training: Training,
    seed: int,
    stream: TargetStream | None,
) -> str:
    """Return a fingerprint of everything that must be the same for a checkpoint to be resumed."""
    given = {name: value for name, value in training.trainer.items() if name not in ("callbacks", "logger")}
    options = replace(
        training, folder=None, keep_state=False, keep_data_on_device=True, progress=False, logger=None, trainer=given
    )
    parts = [(inputs, f"{_project_targets(*targets):.5e}") for inputs, *targets in (pairs.tensors for pairs in data)]
    further = [] if stream is None else [stream.count, stream.stream.window]
    shapes = [weight.shape for weight in network.parameters()]
    return fingerprint(parts, repr(network), shapes, loss, options, seed, *further)


def _project_targets(targets: Tensor, *others: Tensor) -> float:
    """Σ_ij u_i t_ij v_j with fixed random u and v, where t are the targets and residuals.

    The last digits of targets depend on the number of threads, and a hash of them would too.
    """
    generator = Generator().manual_seed(0)
    u, v = (torch.randn(size, generator=generator, dtype=torch.float64) for size in targets.shape)
    rows = torch.cat([t.cpu().double() @ v for t in targets.split(4096)])
    return (u @ sum((other.cpu().double() for other in others), rows)).item()


class Batches:
    """Batches of n rows, which are read anew for every epoch."""

    def __init__(self, n: int, batch_size: int, read: Callable[[], Iterator[Batch]]):
        self.n, self.batch_size, self.read = n, batch_size, read

    def __len__(self) -> int:
        return math.ceil(self.n / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.read()


def slice_batches(pairs: TensorDataset, order: Tensor, batch_size: int) -> Iterator[Batch]:
    """Slice batches from tensors, with the rows in this order."""
    for index in order.to(pairs.tensors[0].device).split(batch_size):
        yield pairs[index]


class _Regression(pl.LightningModule):
    """min over W of the mean of c(‖g_W(x) − ψ̃(y)‖² + residual(y))."""

    def __init__(
        self,
        network: nn.Module,
        data: list[TensorDataset],
        loss: Objective,
        options: Training,
        seed: int,
        score: Score,
        stream: TargetStream | None,
    ):
        super().__init__()
        self.network, self.loss, self.options, self.seed, self.score = network, loss, options, seed, score
        self.data, self.stream = data, stream  # to train on, or a sample of the stream; perhaps, to validate on
        self.lengths = self._find_lengths(data[0].tensors[0])
        self.has_started = False
        self._losses: list[tuple[Tensor, int]] = []  # of a batch, and its number of rows
        self._validated: list[tuple[Tensor, Tensor]] = []  # the loss of a batch, and its coordinates

    def setup(self, stage: str) -> None:
        device, mode = self.trainer.strategy.root_device, self.options.compile
        if self.options.keep_data_on_device:
            self.data = [TensorDataset(*(tensor.to(device) for tensor in pairs.tensors)) for pairs in self.data]
        network, loss = self.network, self.loss.among(self.data[0].tensors[1].to(device))

        def batch_loss(inputs: Tensor, *targets: Tensor) -> Tensor:
            return loss.mean(network(inputs).float(), *targets)

        self.loss, self._batch_loss, self._whole_batch_loss = loss, batch_loss, batch_loss
        if mode:
            dynamic = False if self.lengths is None else None  # batches of many lengths: compiled once for all
            self._whole_batch_loss = torch.compile(batch_loss, mode=None if mode is True else mode, dynamic=dynamic)

    def on_train_start(self) -> None:
        self.has_started = True  # a checkpoint has been read

    def _find_lengths(self, inputs: Tensor) -> Tensor | None:  # (n,)
        lengths: Tensor | None = call_optional(self.network, "lengths", inputs)
        return None if lengths is None else lengths.cpu()

    def train_dataloader(self) -> Batches:
        n, read = len(self.data[0]), self._read_pairs
        if self.stream is not None:
            n, read = self.stream.count, self._read_stream
        return Batches(n // self.trainer.world_size, self.options.batch_size, read)

    def val_dataloader(self) -> list[Batches]:
        size = self.options.batch_size
        return [
            Batches(len(pairs), size, partial(slice_batches, pairs, torch.arange(len(pairs)), size))
            for pairs in self.data[1:]
        ]

    def _count_seen(self) -> int:
        """The number of batches of this epoch that were used before an interruption."""
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def _read_pairs(self) -> Iterator[Batch]:
        size, order = self.options.batch_size, self._draw_order(len(self.data[0]), self.lengths)
        yield from slice_batches(self.data[0], order[self._count_seen() * size :], size)

    def _draw_order(self, n: int, lengths: Tensor | None, window: int = 0) -> Tensor:
        """A permutation of n rows for this epoch; with several devices, an equal share of it."""
        world = self.trainer.world_size
        generator = Generator().manual_seed(self.seed + 1 + self.current_epoch + (window << 32))
        order = torch.randperm(n, generator=generator)
        if lengths is not None:
            order = sort_within_batches(order, lengths, world * self.options.batch_size, generator)
        return order[: n - n % world][self.trainer.global_rank :: world]

    def _read_stream(self) -> Iterator[Batch]:
        """Shuffle one window of the stream after the other; each device computes the targets of its own rows."""
        assert self.stream is not None  # else data are sliced
        world, size, seen = self.trainer.world_size, self.options.batch_size, self._count_seen()
        rows = max(1, self.stream.stream.window // (world * size)) * world * size
        for number, (inputs, outputs) in enumerate(self.stream.read(self.current_epoch + 1, rows)):
            batches = math.ceil(len(inputs) // world / size)
            if seen < batches:
                order = self._draw_order(len(inputs), self._find_lengths(inputs), number)[seen * size :]
                parts = (part.float() for part in self.stream.embed(take(outputs, order))[:2])
                yield from zip(*(part.split(size) for part in (inputs[order], *parts)), strict=True)
            seen = max(0, seen - batches)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        is_whole = len(batch[0]) == self.options.batch_size  # a smaller last batch is not worth compiling for
        loss = (self._whole_batch_loss if is_whole else self._batch_loss)(*batch)
        self._losses.append((loss.detach().clone(), len(batch[0])))  # a compiled step may reuse the memory
        return loss

    def mean_loss(self) -> float:
        """Return the mean training loss of the epoch that ends, and start the next."""
        total = torch.stack([loss * rows for loss, rows in self._losses]).sum()
        mean = total / sum(rows for _, rows in self._losses)
        self._losses.clear()
        mean = self.trainer.strategy.reduce(mean, reduce_op="mean")  # all devices have as many rows
        self.log("train_loss", mean)
        if not torch.isfinite(mean):
            raise TrainingError(
                f"The training loss became {mean.item()} in epoch {self.current_epoch + 1}. "
                f"Lower Training.learning_rate (now {self.options.learning_rate:g}), or scale the inputs."
            )
        return mean.item()

    def validation_step(self, batch: Batch, _: int) -> None:
        z = self.network(batch[0]).float()
        self._validated.append((self.loss.mean(z, *batch[1:]), z))

    def on_validation_epoch_end(self) -> None:
        total = torch.stack([loss * len(z) for loss, z in self._validated]).sum()
        z = torch.cat([z for _, z in self._validated])
        self._validated.clear()
        metrics: dict[str, Any] = {"val_loss": total / len(z), MONITOR: -total / len(z)}
        if self.score is not None:
            metrics["val_score"] = metrics[MONITOR] = float(self.score(z.double()))
        self.log_dict(metrics)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip as in single precision. In mixed precision Lightning refuses fused optimizers, scaled or not."""
        if gradient_clip_val:
            algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision().clip_gradients(optimizer, gradient_clip_val, algorithm)

    def configure_optimizers(self) -> Any:
        options = self.options
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}[options.optimizer]
        parts = call_optional(self.network, "learning_rates") or [(list(self.network.parameters()), 1.0)]
        groups = [{"params": weights, "lr": factor * options.learning_rate} for weights, factor in parts if factor]
        if options.optimizer == "muon":
            in_bf16 = options.precision == "bf16-mixed" or self.trainer.strategy.root_device.type == "cuda"
            groups = list(divide_groups(groups, self.network, in_bf16))
        fused = options.precision != "16-mixed"  # whose gradients are scaled when they are clipped
        optimizer = kind(groups, weight_decay=options.weight_decay, fused=fused)
        if options.schedule == "constant" and not options.warmup_steps:
            return optimizer
        total = int(self.trainer.estimated_stepping_batches)  # counts devices and accumulated batches too
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, total, options))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def sort_within_batches(order: Tensor, lengths: Tensor, batch_size: int, generator: Generator) -> Tensor:
    """Reorder inputs so that those of a batch have similar lengths, and batches come in no order of length.

    Inputs are sorted within ``SORTED_TOGETHER`` batches, so that an input meets others in every epoch.
    """
    whole = len(order) - len(order) % batch_size
    parts = [part[lengths[part].argsort(stable=True)] for part in order[:whole].split(SORTED_TOGETHER * batch_size)]
    if not parts:
        return order
    batches = torch.cat(parts).view(-1, batch_size)
    return torch.cat([batches[torch.randperm(len(batches), generator=generator)].flatten(), order[whole:]])


def _rate_factor(step: int, total: int, training: Training) -> float:
    """The learning rate at a step, as a share of the full one."""
    if step < training.warmup_steps:
        return step / training.warmup_steps
    if training.schedule == "constant":
        return 1.0
    return max(0.0, (total - step) / max(1, total - training.warmup_steps))
