import csv
import math
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, fields, replace
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from dsokr import callbacks
from dsokr.errors import InputError, Interrupted, TrainingError
from dsokr.losses import Custom, Huber, Objective, Ranked, Squared
from dsokr.files import name_of
from dsokr.regressors.networks import CNN, MLP
from dsokr.regressors.training import Pairs, SlicedBatches, Training, train

CPU = torch.device("cpu")


def linear_task(n: int = 400, noise: float = 0.0) -> tuple[Pairs, Pairs]:
    g = torch.Generator().manual_seed(0)
    X, W = torch.randn(n, 6, generator=g), torch.randn(6, 3, generator=g)
    Y = X @ W + noise * torch.randn(n, 3, generator=g)
    pairs = Pairs(X, Y, torch.zeros(n))
    return Pairs(*pairs.rows(slice(100, n))), Pairs(*pairs.rows(slice(100)))


def network(hidden: tuple[int, ...] = ()) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        made = MLP(hidden)(3)
        made(torch.zeros(1, 6))
    return made


QUICK = Training(epochs=60, batch_size=32, learning_rate=0.02, patience=None)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("loss", [Squared(), Huber(0.5)])
def test_learns(optimizer, loss):
    pairs, val = linear_task()
    history = train(
        network(), pairs, val, loss, Training(**{**vars(QUICK), "optimizer": optimizer}), seed=0, device=CPU
    )
    assert history["val_loss"][-1] < 1e-3 < history["val_loss"][0]


def test_same_seed_same_weights():
    pairs, val = linear_task()
    runs = []
    for seed in (1, 1, 2):
        net = network((8,))
        train(net, pairs, val, Squared(), Training(epochs=3, batch_size=32), seed=seed, device=CPU)
        runs.append(net[-1].weight.detach().clone())
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_keeps_the_best_epoch_not_the_last():
    """Few noisy pairs and a wide network overfit: the weights kept are those of the best validation loss."""
    pairs, val = linear_task(130, noise=2.0)
    net = network((256,))
    history = train(
        net, pairs, val, Squared(), Training(epochs=60, learning_rate=0.01, patience=None), seed=0, device=CPU
    )
    assert history.best_epoch == 1 + min(range(60), key=history["val_loss"].__getitem__) < 60
    kept = Squared().mean(net(val.inputs), val.targets, val.residuals).item()
    assert kept == pytest.approx(min(history["val_loss"]), rel=1e-5)


def test_stops_early():
    pairs, val = linear_task(130, noise=2.0)
    history = train(
        network((256,)), pairs, val, Squared(), Training(epochs=500, learning_rate=0.01, patience=3), seed=0, device=CPU
    )
    assert len(history.rows) == history.best_epoch + 3


def test_task_metric_decides():
    """With a score to watch, the epoch with the largest score is kept, whatever the loss says."""
    pairs, val = linear_task()
    scores = iter([0.1, 0.9, 0.3, 0.2])
    history = train(
        network(),
        pairs,
        val,
        Squared(),
        Training(epochs=4, patience=None),
        seed=0,
        device=CPU,
        evaluate=lambda z: next(scores),
    )
    assert history.best_epoch == 2
    assert history["val_score"] == pytest.approx([0.1, 0.9, 0.3, 0.2])


def test_without_validation_the_last_epoch_counts():
    pairs, _ = linear_task()
    assert train(network(), pairs, None, Squared(), Training(epochs=4), seed=0, device=CPU).best_epoch == 4


def test_validation_every_few_epochs():
    pairs, val = linear_task()
    history = train(
        network(), pairs, val, Squared(), Training(epochs=7, check_every=3, patience=None), seed=0, device=CPU
    )
    assert [row["epoch"] for row in history.rows if "val_loss" in row] == [3, 6]
    assert history.best_epoch == 6


def test_linear_schedule_sees_every_step():
    """Warm-up from 0 to the full rate, then down to 0 at the very last step: the scheduler is told all the steps."""
    pairs, _ = linear_task()
    rates = []

    class Spy(torch.optim.Adam):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "Adam", Spy)
        options = Training(epochs=5, batch_size=64, schedule="linear", warmup_steps=4, learning_rate=0.1)
        train(network(), pairs, None, Squared(), options, seed=0, device=CPU)
    expected = [0.1 * i / 4 for i in range(4)] + [0.1 * (25 - i) / 21 for i in range(4, 25)]
    assert rates == pytest.approx(expected)


def test_batches_cover_everything_once():
    pairs, _ = linear_task()
    order = torch.randperm(300, generator=torch.Generator().manual_seed(5))
    batches = SlicedBatches(pairs, 64, lambda n: order)
    assert len(batches) == len(list(batches)) == 5
    torch.testing.assert_close(torch.cat([x for x, _, _ in batches]), pairs.inputs[order])


def test_metrics_go_to_csv_and_to_any_logger(tmp_path):
    pairs, val = linear_task()
    options = Training(epochs=3, folder=str(tmp_path / "run"), logger=CSVLogger(tmp_path / "log"))
    history = train(network(), pairs, val, Squared(), options, seed=0, device=CPU)
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_loss"]) for row in rows] == history["val_loss"]
    assert (tmp_path / "run" / "best.safetensors").exists()
    assert not (tmp_path / "run" / "last.ckpt").exists()
    logged = next((tmp_path / "log").rglob("metrics.csv")).read_text()
    assert "train_loss" in logged and "val_loss" in logged


def test_trainer_arguments_pass_through():
    pairs, val = linear_task()
    history = train(network(), pairs, val, Squared(), Training(epochs=9, trainer={"max_steps": 4}), seed=0, device=CPU)
    assert len(history.rows) == 2


def test_one_callback_and_checks_at_the_trainers_own_pace():
    class Counts(Callback):
        epochs = 0

        def on_train_epoch_end(self, trainer, module):
            self.epochs += 1

    pairs, val = linear_task()
    further = {"callbacks": (counts := Counts()), "check_val_every_n_epoch": None, "val_check_interval": 2}
    history = train(network(), pairs, val, Squared(), Training(epochs=2, trainer=further), seed=0, device=CPU)
    assert counts.epochs == 2 and len(history["val_loss"]) == 2


def test_a_trainer_that_stops_at_once():
    pairs, val = linear_task()
    options = Training(epochs=2, patience=None, trainer={"max_time": {"seconds": 0}})
    with pytest.raises(TrainingError, match="Training ended before its first epoch did"):
        train(network(), pairs, val, Squared(), options, seed=0, device=CPU)


def test_mixed_precision():
    pairs, val = linear_task()
    options = replace(QUICK, precision="bf16-mixed")
    assert train(network(), pairs, val, Squared(), options, seed=0, device=CPU)["val_loss"][-1] < 0.05


def test_divergence_is_said():
    pairs, _ = linear_task()
    wild = Pairs(pairs.inputs * 1e30, pairs.targets, pairs.residuals)
    with pytest.raises(TrainingError, match=r"became (nan|inf) in epoch 1. Lower Training.learning_rate"):
        train(network(), wild, None, Squared(), QUICK, seed=0, device=CPU)


INTERRUPTED = """
    import os, signal, sys, torch
    sys.path.insert(0, {tests!r})
    from test_training import linear_task, network, CPU
    from dsokr.losses import Custom, Squared
    from dsokr.regressors.training import Training, train
    from lightning.pytorch.callbacks import Callback

    class Interrupt(Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == {at}:
                os.kill(os.getpid(), signal.SIGINT)

    pairs, val = linear_task()
    options = Training(epochs=8, folder={folder!r}, patience=None, trainer={{"callbacks": [Interrupt()]}})
    train(network(), pairs, val, {loss}, options, seed=3, device=CPU)
"""


def interrupted(tmp_path, at: int, loss: str = "Squared()") -> subprocess.CompletedProcess:
    script = textwrap.dedent(INTERRUPTED).format(
        tests=os.path.dirname(__file__), folder=str(tmp_path), at=at, loss=loss
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


def test_resumes_after_ctrl_c_as_if_nothing_had_happened(tmp_path):
    """A run interrupted in epoch 5 and resumed ends with the weights and metrics of one that was left alone."""
    stopped = interrupted(tmp_path, at=4)
    assert stopped.returncode != 0
    assert "Training was interrupted in epoch 5. Call fit again" in stopped.stderr
    assert (tmp_path / "last.ckpt").exists()
    pairs, val = linear_task()
    resumed, alone = network(), network()
    options = Training(epochs=8, folder=str(tmp_path), patience=None)
    history = train(resumed, pairs, val, Squared(), options, seed=3, device=CPU)
    expected = train(alone, pairs, val, Squared(), Training(epochs=8, patience=None), seed=3, device=CPU)
    assert history.rows == expected.rows
    assert torch.equal(resumed[-1].weight, alone[-1].weight)


class SortedByLength(nn.Sequential):
    """A network whose batches are made by the lengths of the inputs, and that draws random numbers."""

    def lengths(self, inputs):
        return inputs[:, 0].abs().mul(10).long()


class At(Callback):
    """Does something once, at a hook of the third epoch or later, and notes the batches."""

    def __init__(self, hook="", batch=0, act=lambda: None):
        self.hook, self.batch, self.act, self.batches = hook, batch, act, []

    def _reached(self, hook, trainer, batch):
        if (hook, batch) == (self.hook, self.batch) and trainer.current_epoch >= 2:
            self.hook = ""
            self.act()

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches.append((trainer.current_epoch, batch_idx))
        self._reached("batch", trainer, batch_idx)

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self._reached("validation", trainer, batch_idx)

    def on_train_epoch_end(self, trainer, module):
        self._reached("end", trainer, 0)


@pytest.fixture
def ctrl_c():
    """What Ctrl-C does; a shell may have started us with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("hook", "batch", "lost"),
    [("batch", 0, 0), ("batch", 4, 0), ("batch", 8, 0), ("batch", 9, 0), ("validation", 1, 1), ("end", 0, 0)],
)
@pytest.mark.parametrize(
    "options",
    [
        {"patience": None},
        {"patience": 1, "learning_rate": 0.3, "check_every": 2},
        {"schedule": "linear", "warmup_steps": 7, "trainer": {"accumulate_grad_batches": 2}},
    ],
    ids=["plain", "patient", "accumulated"],
)
def test_goes_on_in_the_middle_of_an_epoch(tmp_path, ctrl_c, hook, batch, lost, options, monkeypatch):
    """With the batches not seen yet, in their order: the end is that of a training that was left alone.

    Nothing is lost where Ctrl-C waits for the end of the batch, and the last step of an epoch that is not validated.
    """
    monkeypatch.setattr(callbacks, "STATE_PAUSE", 0.0)
    pairs, val = linear_task()
    own = dict(options.get("trainer", {}))
    lost *= own.get("accumulate_grad_batches", 1)
    options = Training(**{"epochs": 6, "batch_size": 32, "progress": False, **options})
    seen, ends = [], []
    for stop in (False, True):
        at = At(hook, batch, ctrl_c) if stop else At()
        run = replace(options, folder=str(tmp_path) if stop else None, trainer={**own, "callbacks": [at]})
        if stop:
            with pytest.raises(Interrupted, match=r"interrupted in epoch \d. Call fit again"):
                train(wavering(), pairs, val, Squared(), run, seed=3, device=CPU)
        made = wavering()
        history = train(made, pairs, val, Squared(), run, seed=3, device=CPU)
        seen.append(at.batches)
        ends.append((history.rows, history.best_epoch, made[-1].weight.detach().clone()))
    assert len(seen[1]) - len(seen[0]) == lost and sorted(set(seen[1])) == seen[0]
    assert ends[0][:2] == ends[1][:2] and torch.equal(ends[0][2], ends[1][2])


def wavering() -> nn.Module:
    made = network((8,))
    return SortedByLength(*list(made)[:-1], nn.Dropout(0.3), made[-1])


KILLED = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from test_training import *
    torch.set_num_threads(1)
    callbacks.STATE_EVERY = callbacks.STATE_PAUSE = 0.0
    pairs, val = linear_task()
    at = At({hook!r}, {batch}, lambda: os.kill(os.getpid(), signal.SIGKILL))
    options = Training(epochs=4, batch_size=32, folder={folder!r}, patience=None, trainer={{"callbacks": [at]}})
    train(wavering(), pairs, val, Squared(), options, seed=3, device=CPU)
"""


@pytest.mark.parametrize(("hook", "batch", "first"), [("batch", 4, (2, 4)), ("validation", 1, (2, 9))])
def test_a_kill_loses_what_came_after_the_last_checkpoint(tmp_path, hook, batch, first):
    """In validation that is at least the last batch: a checkpoint after it could not be validated any more."""
    script = textwrap.dedent(KILLED).format(
        tests=os.path.dirname(__file__), folder=str(tmp_path), hook=hook, batch=batch
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    pairs, val = linear_task()
    at, resumed, alone = At(), wavering(), wavering()
    options = Training(epochs=4, batch_size=32, patience=None)
    going_on = replace(options, folder=str(tmp_path), trainer={"callbacks": [at]})
    history = train(resumed, pairs, val, Squared(), going_on, seed=3, device=CPU)
    expected = train(alone, pairs, val, Squared(), options, seed=3, device=CPU)
    assert at.batches[0] == first
    assert [row["epoch"] for row in history.rows] == [1, 2, 3, 4]
    assert history["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
    torch.testing.assert_close(resumed[-1].weight, alone[-1].weight)


def test_a_crash_while_the_state_is_written_leaves_the_state_before(tmp_path, monkeypatch):
    pairs, val = linear_task()
    options = Training(epochs=4, batch_size=32, folder=str(tmp_path), patience=None, progress=False)
    monkeypatch.setattr(callbacks, "STATE_EVERY", 0.0)
    save, written = torch.save, []

    def half(checkpoint, file):
        written.append(checkpoint["global_step"])
        save(checkpoint, file)
        if len(written) == 15:
            file.truncate(500)
            raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(OSError, match="No space left"):
            train(wavering(), pairs, val, Squared(), options, seed=3, device=CPU)
    at, resumed, alone = At(), wavering(), wavering()
    train(resumed, pairs, val, Squared(), replace(options, trainer={"callbacks": [at]}), seed=3, device=CPU)
    train(alone, pairs, val, Squared(), replace(options, folder=None), seed=3, device=CPU)
    assert at.batches[0] == (1, written[-2] - 10)
    assert torch.equal(resumed[-1].weight, alone[-1].weight)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors", "metrics.csv"]


def test_short_epochs_write_the_state_once_at_the_end_and_nothing_without_a_folder(tmp_path, monkeypatch):
    pairs, val = linear_task()
    save, written = torch.save, []
    monkeypatch.setattr(torch, "save", lambda *given: (written.append(1), save(*given)))
    monkeypatch.chdir(tmp_path)
    train(network(), pairs, val, Squared(), Training(epochs=3, batch_size=32), seed=0, device=CPU)
    assert not written and not list(tmp_path.iterdir())
    train(network(), pairs, val, Squared(), Training(epochs=3, batch_size=32, folder="run"), seed=0, device=CPU)
    assert len(written) == 1


@pytest.mark.parametrize("options", [{"epochs": 3}, {"epochs": 500, "patience": 3, "learning_rate": 0.01}])
def test_a_finished_training_whose_state_was_kept_is_over(tmp_path, options):
    pairs, val = linear_task(130, noise=2.0)
    at = At()
    options = Training(**options, folder=str(tmp_path), keep_state=True, trainer={"callbacks": [at]})
    histories, nets = [], []
    for _ in range(2):
        nets.append(network((256,)))
        histories.append(train(nets[-1], pairs, val, Squared(), options, seed=0, device=CPU))
    assert histories[0] == histories[1] and torch.equal(nets[0][-1].weight, nets[1][-1].weight)
    assert len(at.batches) == len(histories[0].rows)


def test_a_second_ctrl_c_does_not_wait(tmp_path, ctrl_c):
    def twice():
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
        raise RuntimeError("stopped at once")

    pairs, val = linear_task()
    options = Training(epochs=4, folder=str(tmp_path), trainer={"callbacks": [At("batch", 0, twice)]})
    with pytest.raises(RuntimeError, match="stopped at once"):
        train(network(), pairs, val, Squared(), options, seed=0, device=CPU)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_long_epochs_tell_their_batches(capsys, monkeypatch):
    monkeypatch.setattr(callbacks, "LINE_EVERY", 0.0)
    pairs, val = linear_task()
    train(network(), pairs, val, Squared(), Training(epochs=2, batch_size=150), seed=0, device=CPU)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("_loss")[0] for line in lines] == [
        "epoch 1/2  batch 1/2",
        "epoch 1/2  train",
        "epoch 2/2  batch 1/2",
        "epoch 2/2  train",
    ]


def test_refuses_to_resume_another_training(tmp_path):
    interrupted(tmp_path, at=2)
    pairs, val = linear_task()
    with pytest.raises(TrainingError, match="holds an interrupted training of something else.*seed 3"):
        train(network(), pairs, val, Squared(), Training(epochs=8, folder=str(tmp_path)), seed=4, device=CPU)


def test_ctrl_c_works_again_after_an_interruption(tmp_path):
    """Lightning leaves the signal ignored; the handler must be put back."""
    script = textwrap.dedent(INTERRUPTED).format(
        tests=os.path.dirname(__file__), folder=str(tmp_path), at=1, loss="Squared()"
    )
    lines = script.rstrip().splitlines()
    body = "\n".join(
        [*lines[:-1], "try:", "    " + lines[-1], "except KeyboardInterrupt as stop:", "    print(type(stop).__name__)"]
    )
    check = "\nassert signal.getsignal(signal.SIGINT) is signal.default_int_handler\nprint('restored')"
    done = subprocess.run([sys.executable, "-c", body + check], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["Interrupted", "restored"], done.stderr


def test_a_terminal_gets_a_bar_and_a_log_gets_lines(capsys):
    pairs, val = linear_task()
    train(network(), pairs, val, Squared(), Training(epochs=2, progress=True), seed=0, device=CPU)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[1].startswith("epoch 2/2  train_loss")
    train(network(), pairs, val, Squared(), Training(epochs=2, progress=False), seed=0, device=CPU)
    assert capsys.readouterr().err == ""


def test_networks():
    assert sum(w.numel() for w in network().parameters()) == 6 * 3 + 3  # the paper's single-layer perceptron
    with torch.random.fork_rng([]):
        assert CNN((4, 8), hidden=5)(2)(torch.zeros(4, 3, 16, 16)).shape == (4, 2)
        with pytest.raises(InputError, match="Got an array of 2 dimensions"):
            CNN((4,))(2)(torch.zeros(4, 16))
    with pytest.raises(InputError, match="activation must be one of"):
        MLP((4,), activation="step")(2)
    with pytest.raises(InputError, match="at least one block"):
        CNN(())(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1. Got 0"),
        ({"epochs": 2.5}, "epochs must be an integer of at least 1. Got 2.5"),
        ({"epochs": math.nan}, "epochs must be an integer of at least 1. Got nan"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite. Got nan"),
        ({"learning_rate": math.inf}, "learning_rate must be positive and finite. Got inf"),
        ({"optimizer": "sgd"}, "optimizer must be one of"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0 and finite. Got -0.1"),
        ({"weight_decay": math.nan}, "weight_decay must be at least 0 and finite. Got nan"),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0 and finite. Got inf"),
        ({"schedule": "cosine"}, "schedule must be one of"),
        ({"warmup_steps": -1}, "warmup_steps must be an integer of at least 0. Got -1"),
        ({"warmup_steps": 0.1}, "warmup_steps must be an integer of at least 0. Got 0.1"),
        ({"gradient_clip": 0.0}, "gradient_clip must be positive and finite, or None. Got 0.0"),
        ({"gradient_clip": math.nan}, "gradient_clip must be positive and finite, or None. Got nan"),
        ({"gradient_clip": "1"}, "gradient_clip must be positive and finite, or None. Got '1'"),
        ({"standardize": "no"}, "standardize must be True or False. Got 'no'"),
        ({"precision": "64-true"}, "precision must be one of"),
        ({"compile": None}, "compile must be True, False or a mode of torch.compile. Got None"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be in \[0, 1\)"),
        ({"validation_fraction": math.nan}, r"validation_fraction must be in \[0, 1\)"),
        ({"validation_fraction": "0.1"}, r"validation_fraction must be in \[0, 1\). Got '0.1'"),
        ({"monitor": "accuracy"}, "monitor must be 'loss', 'mrr' or a function"),
        ({"patience": 0}, "patience must be an integer of at least 1. Got 0"),
        ({"patience": 2.5}, "patience must be an integer of at least 1. Got 2.5"),
        ({"check_every": 1.5}, "check_every must be an integer of at least 1. Got 1.5"),
        ({"keep_data_on_device": "cpu"}, "keep_data_on_device must be True or False. Got 'cpu'"),
        ({"folder": 3}, "folder must be a path, or None. Got 3"),
        ({"keep_state": None}, "keep_state must be True or False. Got None"),
        ({"progress": "bar"}, "progress must be True, False or 'auto'. Got 'bar'"),
        ({"logger": "csv"}, "logger must be a Lightning logger, a list of them, or None. Got 'csv'"),
        ({"trainer": [("max_steps", 4)]}, "trainer must be a mapping from names of arguments to their values"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(InputError, match=rf"Training\.{message}"):
        Training(**options)


@pytest.mark.parametrize("name", [option.name for option in fields(Training)])
def test_every_option_is_checked(name):
    with pytest.raises(InputError, match=rf"Training\.{name} must be "):
        Training(**{name: b"something else"})


def test_takes_what_works(tmp_path):
    assert Training(epochs=1, warmup_steps=10_000).warmup_steps == 10_000  # longer than the training
    logger = CSVLogger(tmp_path)
    Training(folder=tmp_path, logger=[logger, logger], compile="default", validation_fraction=0, weight_decay=0)


@dataclass(frozen=True)
class Absolute(Objective):
    """Not a function of the distance."""

    scale: float = 1.0

    def mean(self, z, target, residual):
        return self.scale * (z - target).abs().mean()


def test_any_objective():
    pairs, val = linear_task()
    history = train(network(), pairs, val, Absolute(), QUICK, seed=0, device=CPU)
    assert history["val_loss"][-1] < 0.05 < history["val_loss"][0]


def test_signal_module_is_untouched_by_a_normal_run():
    pairs, val = linear_task()
    before = signal.getsignal(signal.SIGINT)
    train(network(), pairs, val, Squared(), Training(epochs=1), seed=0, device=CPU)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with an interrupted training with Huber(1.0), to be refused only."""
    folder = tmp_path_factory.mktemp("stopped")
    interrupted_here(folder, Huber(1.0))
    return folder


def dropping(rate: float) -> nn.Module:
    return nn.Sequential(nn.Dropout(rate), network())


def swapped(rows: torch.Tensor) -> torch.Tensor:
    """The same rows, the first two in the other order."""
    return torch.cat([rows[1:2], rows[:1], rows[2:]])


def nearly(numbers: torch.Tensor) -> torch.Tensor:
    """As computed with other threads: some last digits differ."""
    return torch.where(torch.arange(len(numbers))[:, None] % 50 == 0, numbers.nextafter(torch.tensor(9e9)), numbers)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pairs": lambda p: Pairs(p.inputs + 1, p.targets, p.residuals)}, "inputs"),
        ({"pairs": lambda p: Pairs(swapped(p.inputs), p.targets, p.residuals)}, "inputs"),
        ({"pairs": lambda p: Pairs(p.inputs, 2 * p.targets, p.residuals)}, "targets"),
        ({"pairs": lambda p: Pairs(p.inputs, swapped(p.targets), p.residuals)}, "targets"),
        ({"pairs": lambda p: Pairs(p.inputs, p.targets, p.residuals + 1)}, "targets"),
        ({"val": lambda p: Pairs(p.inputs, swapped(p.targets), p.residuals)}, "validation 100 pairs"),
        ({"val": lambda p: None}, "validation 100 pairs"),
        ({"loss": Squared()}, "loss Squared()"),
        ({"loss": Huber(5.0)}, "loss Huber(delta=5.0)"),
        ({"network": lambda: network((4,))}, "weights"),
        ({"network": lambda: dropping(0.1)}, "layers"),
        ({"learning_rate": 0.5}, "adam at 0.5"),
        ({"learning_rate": 1e-3 + 1e-12}, "adam at 0.001000000001"),
        ({"epochs": 2}, "2 epochs"),
        ({"batch_size": 100}, "batches of 100"),
        ({"optimizer": "adamw"}, "adamw at"),
        ({"weight_decay": 0.1}, "weight_decay 0.1"),
        ({"schedule": "linear"}, "linear schedule"),
        ({"warmup_steps": 3}, "warmup_steps 3"),
        ({"gradient_clip": 1.0}, "gradient_clip 1.0"),
        ({"standardize": False}, "standardize False"),
        ({"precision": "bf16-mixed"}, "precision bf16-mixed"),
        ({"compile": True}, "compile True"),
        ({"validation_fraction": 0.2}, "validation_fraction 0.2"),
        ({"monitor": nearly}, f"monitor {__name__}.nearly"),
        ({"patience": 3}, "patience 3"),
        ({"check_every": 2}, "check_every 2"),
        ({"trainer": {"accumulate_grad_batches": 2}}, "trainer.accumulate_grad_batches 2"),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else None,
)
def test_resuming_something_else_is_refused(stopped, change, told):
    pairs, val = linear_task()
    pairs, val = change.get("pairs", lambda p: p)(pairs), change.get("val", lambda p: p)(val)
    own = {name: value for name, value in change.items() if name not in ("pairs", "val", "loss", "network")}
    options = Training(**{"epochs": 8, "folder": str(stopped), "patience": None, **own})
    made = change.get("network", network)()
    with pytest.raises(TrainingError, match="training of something else") as refusal:
        train(made, pairs, val, change.get("loss", Huber(1.0)), options, seed=3, device=CPU)
    assert told in str(refusal.value)


def test_options_that_change_nothing_may_change(tmp_path):
    """And so may the last digits of targets, which are computed anew: by other threads, perhaps."""
    interrupted_here(tmp_path / "run", Huber(1.0))
    at = At()
    options = Training(
        epochs=8,
        patience=None,
        folder=str(tmp_path / "run"),
        keep_state=True,
        keep_data_on_device=False,
        progress=False,
        logger=CSVLogger(tmp_path / "log"),
        trainer={"callbacks": [at], "log_every_n_steps": 1},
    )
    pairs, val = linear_task()
    close = Pairs(pairs.inputs, nearly(pairs.targets), pairs.residuals)
    assert not torch.equal(close.targets, pairs.targets)
    train(network(), close, val, Huber(1.0), options, seed=3, device=CPU)
    assert at.batches[0] == (2, 0)


def test_a_function_is_the_same_in_another_process(tmp_path):
    interrupted(tmp_path, at=4, loss="Custom(torch.nn.functional.relu)")
    at = At()
    options = Training(epochs=8, folder=str(tmp_path), patience=None, trainer={"callbacks": [at]})
    pairs, val = linear_task()
    with pytest.raises(TrainingError, match=r"Custom\(c=torch.nn.functional.relu\).*now.*functional.silu\)"):
        train(network(), pairs, val, Custom(nn.functional.silu), options, seed=3, device=CPU)
    train(network(), pairs, val, Custom(nn.functional.relu), options, seed=3, device=CPU)
    assert at.batches[0] == (4, 1)


class Plain:
    def method(self):
        pass


def test_names_hold_no_addresses():
    loss = Ranked(Custom(nearly))
    assert name_of(loss) == f"Ranked(base=Custom(c={__name__}.nearly), weight=1.0, temperature=0.05)"
    assert name_of(Plain()) == f"<{__name__}.Plain object>"
    for value in (torch.log1p, partial(nearly, 1), Plain().method, lambda d2: d2, [Plain()]):
        assert "0x" not in name_of(value)
    numbers = torch.arange(5000.0)
    assert name_of(numbers) == name_of(numbers.clone()) != name_of(numbers.flip(0))
    assert name_of(numbers[1]) != name_of(numbers[2])


def interrupted_here(folder, loss=Squared()) -> None:  # noqa: B008 # frozen
    """Leave the checkpoint of a training that stopped in its third epoch."""

    class Stop(Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 2:
                raise RuntimeError("power cut")

    pairs, val = linear_task()
    options = Training(epochs=8, folder=str(folder), patience=None, trainer={"callbacks": [Stop()]})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(callbacks, "STATE_PAUSE", 0.0)
        train(network(), pairs, val, loss, options, seed=3, device=CPU)


def test_damaged_checkpoints_are_said(tmp_path):
    interrupted_here(tmp_path)
    os.truncate(tmp_path / "last.ckpt", 500)
    pairs, val = linear_task()
    options = Training(epochs=8, folder=str(tmp_path), patience=None)
    with pytest.raises(TrainingError, match="damaged or incomplete. Delete it"):
        train(network(), pairs, val, Squared(), options, seed=3, device=CPU)


def test_mean_loss_counts_the_rows_that_were_seen():
    pairs, val = linear_task()
    still = Training(epochs=1, learning_rate=1e-12, batch_size=100)
    whole = train(network(), pairs, val, Squared(), still, seed=0, device=CPU)["train_loss"][0]
    part = replace(still, trainer={"limit_train_batches": 2})
    assert train(network(), pairs, val, Squared(), part, seed=0, device=CPU)["train_loss"][0] == pytest.approx(
        whole, rel=0.3
    )


TWO_DEVICES = """
    import os, sys, torch
    torch.set_num_threads(1)
    sys.path.insert(0, {tests!r})
    from test_training import linear_task, network, CPU
    from dsokr.losses import Squared
    from dsokr.regressors.training import Training, train

    pairs, val = linear_task()
    net = network()
    options = Training(epochs=30, batch_size=16, learning_rate=0.02, trainer={{"devices": 2, "strategy": "ddp"}})
    history = train(net, pairs, val, Squared(), options, seed=0, device=CPU)
    with open(os.path.join({folder!r}, os.environ.get("LOCAL_RANK", "0")), "w") as file:
        print(history["val_loss"][-1], net[-1].weight.sum().item(), file=file)
"""


@pytest.mark.slow
def test_two_devices_share_the_work_and_agree(tmp_path):
    """Trainer arguments pass through: two processes, each with half of every epoch, end with the same good weights."""
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(TWO_DEVICES).format(tests=os.path.dirname(__file__), folder=str(tmp_path)))
    subprocess.run([sys.executable, str(script)], check=True, timeout=300, capture_output=True)
    first, second = ((tmp_path / rank).read_text() for rank in "01")
    assert first == second
    assert float(first.split()[0]) < 1e-3


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_are_clipped_whatever_the_precision(precision):
    pairs, _ = linear_task()
    steps = Steps()
    options = Training(
        epochs=1,
        batch_size=32,
        precision=precision,
        gradient_clip=1e-3,
        standardize=False,
        trainer={"callbacks": [steps]},
    )
    train(network(), pairs, None, Squared(), options, seed=0, device=CPU)
    assert len(steps.norms) == 9  # the last ones are not set to zero
    assert steps.norms == pytest.approx([1e-3] * 9, rel=1e-3)


class Steps(Callback):
    """The norm of the gradients at every step."""

    def __init__(self):
        self.norms = []

    def on_before_zero_grad(self, trainer, module, optimizer):
        grads = [w.grad.norm() for w in module.parameters() if w.grad is not None]
        if grads:
            self.norms.append(torch.stack(grads).norm().item())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
def test_compiled_training_is_the_same_training():
    pairs, val = linear_task()
    histories = [
        train(network((8,)), pairs, val, Squared(), replace(QUICK, epochs=3, compile=mode), seed=0, device=CPU)
        for mode in (False, True, "default")
    ]
    for history in histories[1:]:
        assert history["val_loss"] == pytest.approx(histories[0]["val_loss"], rel=1e-4)
