"""Training: what is learned, what is kept, how an interrupted training is resumed, and what is refused."""

import csv
import math
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from dsokr import compute
from dsokr.errors import InputError, Interrupted, TrainingError
from dsokr.losses import Custom, Huber, Objective, Squared
from dsokr.regressors import History, Training, callbacks
from dsokr.regressors.loop import Batches, slice_batches, sort_within_batches, train
from dsokr.regressors.networks import MLP

CPU = torch.device("cpu")


def linear_task(n: int = 400, noise: float = 0.0) -> tuple[TensorDataset, TensorDataset]:
    g = torch.Generator().manual_seed(0)
    X, W = torch.randn(n, 6, generator=g), torch.randn(6, 3, generator=g)
    pairs = TensorDataset(X, X @ W + noise * torch.randn(n, 3, generator=g), torch.zeros(n))
    return TensorDataset(*pairs[100:]), TensorDataset(*pairs[:100])


def network(hidden: tuple[int, ...] = ()) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        made = MLP(hidden)(3)
        made(torch.zeros(1, 6))
    return made


NOISY = linear_task(130, noise=2.0)  # few noisy pairs, which a wide network overfits


def fit(net=None, task=None, loss=Squared(), seed=0, score=None, **options) -> History:  # noqa: B008 # frozen
    pairs, val = task or linear_task()
    options = Training(**{"patience": None, "progress": False, **options})
    return train(net or network(), pairs, val, loss, options, seed=seed, device=CPU, score=score)


@dataclass(frozen=True)
class Absolute(Objective):
    """Not a function of the distance."""

    def mean(self, z, target, residual):
        return (z - target).abs().mean()


@dataclass(frozen=True)
class AmongAll(Absolute):
    """Looks at all the targets, and remembers them."""

    looked_at: list

    def among(self, targets):
        self.looked_at.append(targets)
        return self


def test_a_loss_may_look_at_all_training_targets():
    fit(loss=(loss := AmongAll([])), epochs=1, batch_size=32)
    assert torch.equal(torch.cat(loss.looked_at), linear_task()[0].tensors[1])


QUICK = {"epochs": 30, "batch_size": 32, "learning_rate": 0.05}


@pytest.mark.parametrize(
    ("loss", "options", "at_most"),
    [
        (Squared(), {}, 1e-3),
        (Squared(), {"optimizer": "adamw", "keep_data_on_device": False}, 1e-3),
        (Huber(0.5), {}, 1e-3),
        (Absolute(), {}, 0.05),
        (Squared(), {"precision": "bf16-mixed"}, 0.05),
    ],
)
def test_learns(loss, options, at_most):
    history = fit(loss=loss, **QUICK, **options)
    assert history["val_loss"][-1] < at_most < history["val_loss"][0]


def test_the_seed_decides():
    nets = [network((8,)) for _ in range(3)]
    for net, seed in zip(nets, (1, 1, 2), strict=True):
        fit(net, seed=seed, epochs=3, batch_size=32)
    first, same, other = (net[-1].weight for net in nets)
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_keeps_the_best_epoch_and_stops_early():
    net = network((256,))
    history = fit(net, NOISY, epochs=500, learning_rate=0.01, patience=3)
    assert history.best_epoch == 1 + min(range(len(history.rows)), key=history["val_loss"].__getitem__)
    assert len(history.rows) == history.best_epoch + 3 < 500
    inputs, targets, residuals = NOISY[1].tensors
    assert Squared().mean(net(inputs), targets, residuals).item() == pytest.approx(min(history["val_loss"]), rel=1e-5)
    assert not net.training


def test_a_task_metric_decides():
    """With a score to watch, the epoch with the largest score is kept, whatever the loss says."""
    scores = [0.1, 0.9, 0.3, 0.2]
    left = iter(scores)
    history = fit(epochs=4, score=lambda z: next(left))
    assert history.best_epoch == 2 and history["val_score"] == pytest.approx(scores)


def test_which_epochs_are_validated():
    pairs, _ = linear_task()
    assert fit(task=(pairs, None), epochs=4).best_epoch == 4  # no validation: the last one counts
    history = fit(epochs=7, check_every=3)
    assert [row["epoch"] for row in history.rows if "val_loss" in row] == [3, 6] and history.best_epoch == 6


def test_linear_schedule_sees_every_step(monkeypatch):
    """Warm-up from 0 to the full rate, then down to 0 at the very last step."""
    rates = []

    class Spy(torch.optim.Adam):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    monkeypatch.setattr(torch.optim, "Adam", Spy)
    fit(epochs=5, batch_size=64, schedule="linear", warmup_steps=4, learning_rate=0.1)
    assert rates == pytest.approx([0.1 * i / 4 for i in range(4)] + [0.1 * (25 - i) / 21 for i in range(4, 25)])


def test_batches_cover_everything_once():
    pairs, _ = linear_task()
    order = torch.randperm(300, generator=torch.Generator().manual_seed(5))
    batches = Batches(300, 64, lambda: slice_batches(pairs, order, 64))
    assert len(batches) == len(list(batches)) == 5
    torch.testing.assert_close(torch.cat([x for x, _, _ in batches]), pairs.tensors[0][order])


def test_batches_hold_inputs_of_similar_length():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 100, (1003,), generator=generator)
    order = sort_within_batches(torch.randperm(1003, generator=generator), lengths, 50, generator)
    assert sorted(order.tolist()) == list(range(1003))
    batches = lengths[order[:1000]].view(20, 50).float()
    spread = (batches.amax(dim=1) - batches.amin(dim=1)).mean()
    assert spread < 10, "a batch of random inputs would spread over almost all of 99"
    means = batches.mean(dim=1)
    assert not torch.equal(means, means.sort().values)
    few = torch.arange(7)
    assert torch.equal(sort_within_batches(few, lengths[:7], 50, generator), few)


def test_what_a_folder_and_a_logger_get(tmp_path):
    net = network()
    history = fit(net, epochs=3, folder=str(tmp_path / "run"), logger=CSVLogger(tmp_path / "log"))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["best.safetensors", "metrics.csv"]
    with (tmp_path / "run" / "metrics.csv").open() as file:
        assert [float(row["val_loss"]) for row in csv.DictReader(file)] == history["val_loss"]
    weights = load_file(tmp_path / "run" / "best.safetensors")
    assert all(torch.equal(weight, weights[name]) for name, weight in net.state_dict().items())
    logged = next((tmp_path / "log").rglob("metrics.csv")).read_text()
    assert "train_loss" in logged and "val_loss" in logged


def test_nothing_is_written_without_a_folder_and_no_checkpoint_in_the_first_minute(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(torch, "save", lambda *given: written.append(given))
    monkeypatch.chdir(tmp_path)
    fit(epochs=3, batch_size=32)
    assert not list(tmp_path.iterdir())
    fit(epochs=3, batch_size=32, folder="run")
    assert not written


def test_trainer_arguments_pass_through():
    class Counts(Callback):
        epochs = 0

        def on_train_epoch_end(self, trainer, module):
            self.epochs += 1

    further = {"callbacks": (counts := Counts()), "check_val_every_n_epoch": None, "val_check_interval": 2}
    history = fit(epochs=2, trainer=further)
    assert counts.epochs == 2 and len(history["val_loss"]) == 2
    assert len(fit(epochs=9, trainer={"max_steps": 4}).rows) == 2
    with pytest.raises(TrainingError, match="Training ended before its first epoch did"):
        fit(epochs=2, trainer={"max_time": {"seconds": 0}})


def test_divergence_is_said():
    pairs, _ = linear_task()
    wild = TensorDataset(pairs.tensors[0] * 1e30, *pairs.tensors[1:])
    with pytest.raises(TrainingError, match=r"became (nan|inf) in epoch 1. Lower Training.learning_rate"):
        fit(task=(wild, None), **QUICK)


def test_mean_loss_counts_the_rows_that_were_seen():
    still = {"epochs": 1, "learning_rate": 1e-12, "batch_size": 200}
    pairs, _ = linear_task()
    whole = fit(**still)["train_loss"][0]
    assert whole == pytest.approx(Squared().mean(network()(pairs.tensors[0]), *pairs.tensors[1:]).item(), rel=1e-5)
    part = fit(**still, trainer={"limit_train_batches": 1})["train_loss"][0]
    assert part == pytest.approx(whole, rel=0.3) and part != whole


class Steps(Callback):
    """The norm of the gradients at every step."""

    def __init__(self):
        self.norms, self.largest, self.fused = [], [], None

    def on_before_zero_grad(self, trainer, module, optimizer):
        self.fused = optimizer.param_groups[0]["fused"]
        grads = [w.grad.flatten() for w in module.parameters() if w.grad is not None]
        if grads:
            self.norms.append(torch.cat(grads).norm().item())
            self.largest.append(torch.cat(grads).abs().max().item())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_are_clipped_whatever_the_precision(precision):
    steps = Steps()
    fit(epochs=1, batch_size=32, precision=precision, gradient_clip=1e-3, trainer={"callbacks": [steps]})
    assert len(steps.norms) == 9  # the last ones are not set to zero
    assert steps.norms == pytest.approx([1e-3] * 9, rel=1e-3) and steps.fused


def test_gradients_are_clipped_as_the_trainer_is_told():
    steps = Steps()
    trainer = {"callbacks": [steps], "gradient_clip_algorithm": "value"}
    fit(epochs=1, batch_size=32, precision="bf16-mixed", gradient_clip=1e-3, trainer=trainer)
    assert steps.largest == pytest.approx([1e-3] * 9) and min(steps.norms) > 1.1e-3


class At(Callback):
    """Does something once, at a hook of the third epoch or later, and notes the batches."""

    def __init__(self, hook="", batch=0, act=lambda: None):
        self.hook, self.batch, self.act, self.batches = hook, batch, act, []

    def _reach(self, hook, trainer, batch=0):
        if (hook, batch) == (self.hook, self.batch) and trainer.current_epoch >= 2:
            self.hook = ""
            self.act()

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches.append((trainer.current_epoch, batch_idx))
        self._reach("batch", trainer, batch_idx)

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self._reach("validation", trainer, batch_idx)

    def on_train_epoch_start(self, trainer, module):
        self._reach("start", trainer)

    def on_train_epoch_end(self, trainer, module):
        self._reach("end", trainer)


class SortedByLength(nn.Sequential):
    """A network whose batches are made by the lengths of the inputs."""

    def lengths(self, inputs):
        return inputs[:, 0].abs().mul(10).long()


def sorting() -> nn.Module:
    return SortedByLength(*network((8,)))


@pytest.fixture
def ctrl_c():
    """What Ctrl-C does; a shell may have started us with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Lightning leaves the signal ignored"
    signal.signal(signal.SIGINT, before)


RESUMABLE = {
    "plain": {},
    "validated now and then": {"patience": 1, "learning_rate": 0.3, "check_every": 2},
    "accumulated": {"schedule": "linear", "warmup_steps": 7, "trainer": {"accumulate_grad_batches": 2}},
}


STOPS = [("start", 0), ("batch", 0), ("batch", 4), ("batch", 9), ("validation", 1), ("end", 0)]


@pytest.mark.parametrize(
    ("hook", "batch", "options", "every"),
    [(*stop, options, timedelta(0)) for stop in STOPS for options in RESUMABLE]
    + [(*stop, "plain", callbacks.CHECKPOINT_EVERY) for stop in STOPS],
)
def test_ctrl_c_and_the_same_call_again(tmp_path, ctrl_c, hook, batch, options, every, monkeypatch):
    """Every epoch is there in the end, with the weights of a training that was left alone."""
    monkeypatch.setattr(callbacks, "CHECKPOINT_EVERY", every)
    options = {"epochs": 4, "batch_size": 32, "seed": 3, **RESUMABLE[options]}
    own = options.pop("trainer", {})
    alone = fit(net := sorting(), **options, trainer={**own, "callbacks": [whole := At()]})
    options |= {"folder": str(tmp_path), "trainer": {**own, "callbacks": [at := At(hook, batch, ctrl_c)]}}
    with pytest.raises(Interrupted, match=r"interrupted in epoch \d. Call fit again"):
        fit(sorting(), **options)
    resumed = fit(other := sorting(), **options)
    assert [row["epoch"] for row in resumed.rows] == [row["epoch"] for row in alone.rows]
    assert (resumed["val_loss"], resumed.best_epoch) == (alone["val_loss"], alone.best_epoch)
    assert torch.equal(net[-1].weight, other[-1].weight)
    if every == timedelta(0) or (hook == "batch" and batch < 9):
        assert len(at.batches) - len(whole.batches) <= own.get("accumulate_grad_batches", 1)


def test_without_a_folder_the_remedy_is_one(ctrl_c):
    with pytest.raises(Interrupted, match="interrupted in epoch 3. Set Training.folder to be able to resume"):
        fit(epochs=4, trainer={"callbacks": [At("start", 0, ctrl_c)]})


KILLED = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from test_training import *
    torch.set_num_threads(1)
    callbacks.CHECKPOINT_EVERY = timedelta(0)
    at = At("validation", 1, lambda: os.kill(os.getpid(), signal.SIGKILL))
    options = dict(epochs=4, batch_size=32, folder={folder!r}, trainer={{"callbacks": [at]}})
    fit(sorting(), loss=Custom(nn.functional.relu), seed=3, **options)
"""


def test_a_killed_training_is_resumed_in_another_process(tmp_path):
    script = textwrap.dedent(KILLED).format(tests=os.path.dirname(__file__), folder=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    options = {"loss": Custom(nn.functional.relu), "seed": 3, "epochs": 4, "batch_size": 32}
    fit(resumed := sorting(), **options, folder=str(tmp_path), trainer={"callbacks": [at := At()]})
    fit(alone := sorting(), **options)
    assert at.batches[0] == (2, 9)  # the last one, after which Lightning validates
    torch.testing.assert_close(resumed[-1].weight, alone[-1].weight)


@pytest.mark.parametrize("options", [{"epochs": 3}, {"epochs": 500, "patience": 3, "learning_rate": 0.01}])
def test_a_finished_training_whose_state_was_kept_is_over(tmp_path, options):
    at, nets = At(), [network((256,)) for _ in range(2)]
    options = {**options, "folder": str(tmp_path), "keep_state": True, "trainer": {"callbacks": [at]}}
    first, second = (fit(net, NOISY, **options) for net in nets)
    assert first == second and torch.equal(nets[0][-1].weight, nets[1][-1].weight)
    assert len(at.batches) == len(first.rows)


def interrupt_in_third_epoch(folder) -> None:
    """Leave the checkpoint of a training that stopped in its third epoch."""

    def fail():
        raise RuntimeError("power cut")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(callbacks, "CHECKPOINT_EVERY", timedelta(0))
        fit(loss=Huber(1.0), seed=3, epochs=8, folder=str(folder), trainer={"callbacks": [At("start", 0, fail)]})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    interrupt_in_third_epoch(folder)
    return folder


def change(place: int, how):
    """The task with one of the tensors of its training pairs changed."""

    def changed():
        pairs, val = linear_task()
        tensors = list(pairs.tensors)
        tensors[place] = how(tensors[place])
        return TensorDataset(*tensors), val

    return changed


def swap(rows: torch.Tensor) -> torch.Tensor:
    """The same rows, the first two in the other order."""
    return torch.cat([rows[1:2], rows[:1], rows[2:]])


def round_differently(numbers: torch.Tensor) -> torch.Tensor:
    """As computed with other threads: some last digits differ."""
    return torch.where(torch.arange(len(numbers))[:, None] % 50 == 0, numbers.nextafter(torch.tensor(9e9)), numbers)


@pytest.mark.parametrize(
    "other",
    [
        {"task": change(0, lambda inputs: inputs + 1)},
        {"task": change(0, swap)},
        {"task": change(1, lambda targets: 2 * targets)},
        {"task": change(1, swap)},
        {"task": change(2, lambda residuals: residuals + 1)},
        {"task": lambda: (linear_task()[0], linear_task(402)[0])},
        {"task": lambda: (linear_task()[0], None)},
        {"loss": Squared()},
        {"loss": Huber(5.0)},
        {"net": lambda: network((4,))},
        {"net": lambda: nn.Sequential(nn.Dropout(0.1), network())},
        {"seed": 4},
        {"learning_rate": 1e-3 + 1e-12},
        {"epochs": 2},
        {"batch_size": 100},
        {"optimizer": "adamw"},
        {"weight_decay": 0.1},
        {"schedule": "linear"},
        {"warmup_steps": 3},
        {"gradient_clip": 1.0},
        {"standardize": False},
        {"precision": "bf16-mixed"},
        {"compile": True},
        {"validation_fraction": 0.2},
        {"monitor": swap},
        {"patience": 3},
        {"check_every": 2},
        {"trainer": {"accumulate_grad_batches": 2}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_the_checkpoint_of_another_training_is_refused(stopped, other):
    own = {name: made() if name in ("task", "net") else made for name, made in other.items()}
    with pytest.raises(TrainingError, match="last.ckpt is a checkpoint of another training: fit with the same data"):
        fit(**{"loss": Huber(1.0), "seed": 3, "epochs": 8, "folder": str(stopped), **own})


def test_options_without_effect_on_the_result_may_change(tmp_path):
    """And so may the last digits of targets, which are computed again: with other threads, perhaps."""
    interrupt_in_third_epoch(tmp_path / "run")
    task = change(1, round_differently)()
    assert not torch.equal(task[0].tensors[1], linear_task()[0].tensors[1])
    options = {"folder": tmp_path / "run", "keep_state": True, "keep_data_on_device": False, "progress": True}
    options |= {"logger": CSVLogger(tmp_path / "log"), "trainer": {"callbacks": [at := At()]}}
    fit(task=task, loss=Huber(1.0), seed=3, epochs=8, **options)
    assert at.batches[0] == (2, 0)


def lose(key):
    """Take a part out of a checkpoint that is otherwise whole."""

    def damage(file):
        state = torch.load(file, weights_only=True)
        del state[key]
        torch.save(state, file)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(partial(os.truncate, length=length) for length in (0, 1, 500, 5000)),
        lambda file: file.write_text("weights"),
        lambda file: torch.save([1, 2], file),
        *map(lose, ("callbacks", "loops", "state_dict", "optimizer_states", "pytorch-lightning_version")),
    ],
)
def test_damaged_checkpoints_are_said(tmp_path, damage):
    interrupt_in_third_epoch(tmp_path)
    damage(tmp_path / "last.ckpt")
    with pytest.raises(TrainingError, match="last.ckpt is damaged or incomplete. Delete it"):
        fit(loss=Huber(1.0), seed=3, epochs=8, folder=str(tmp_path))


def test_progress(capsys, monkeypatch):
    fit(epochs=2)
    fit(epochs=2, progress="auto")
    assert capsys.readouterr().err == ""  # a quick training says nothing in a log
    fit(epochs=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[1].startswith("epoch 2/2  train_loss") and lines[1].endswith("0:00:00 left")
    monkeypatch.setattr(compute, "LINE_EVERY", 0.0)
    fit(epochs=2, batch_size=150, progress="auto")
    lines = [line.partition("_loss")[0].partition("  0:")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["epoch 1/2  batch 1/2", "epoch 1/2  train", "epoch 2/2  batch 1/2", "epoch 2/2  train"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    fit(epochs=2, batch_size=300, progress="auto")
    shown = capsys.readouterr().err
    assert "best epoch 2  0:00:00 left" in shown and shown.endswith("\x1b[2K") and shown.count("\n") <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1. Got 0"),
        ({"epochs": 2.5}, "epochs must be an integer of at least 1. Got 2.5"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite. Got nan"),
        ({"learning_rate": math.inf}, "learning_rate must be positive and finite. Got inf"),
        ({"optimizer": "sgd"}, "optimizer must be one of"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0 and finite. Got -0.1"),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0 and finite. Got inf"),
        ({"schedule": "cosine"}, "schedule must be one of"),
        ({"warmup_steps": -1}, "warmup_steps must be an integer of at least 0. Got -1"),
        ({"gradient_clip": 0.0}, "gradient_clip must be positive and finite, or None. Got 0.0"),
        ({"gradient_clip": math.nan}, "gradient_clip must be positive and finite, or None. Got nan"),
        ({"standardize": "no"}, "standardize must be one of True, False. Got 'no'"),
        ({"precision": "64-true"}, "precision must be one of"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be in \[0, 1\)"),
        ({"validation_fraction": math.nan}, r"validation_fraction must be in \[0, 1\)"),
        ({"monitor": "accuracy"}, "monitor must be one of 'loss', 'mrr', or a function. Got 'accuracy'"),
        ({"patience": 0}, "patience must be an integer of at least 1, or None. Got 0"),
        ({"check_every": 1.5}, "check_every must be an integer of at least 1. Got 1.5"),
        ({"keep_data_on_device": "cpu"}, "keep_data_on_device must be one of True, False. Got 'cpu'"),
        ({"keep_state": None}, "keep_state must be one of True, False. Got None"),
        ({"progress": "bar"}, "progress must be one of True, False, 'auto'. Got 'bar'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(InputError, match=rf"Training\.{message}"):
        Training(**options)


def test_takes_what_works(tmp_path):
    assert Training(epochs=1, warmup_steps=10_000).warmup_steps == 10_000  # longer than the training
    assert hash(Training(folder=tmp_path, compile="default", validation_fraction=0, weight_decay=0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
def test_compiled_training_is_the_same_training():
    expected, *others = (
        fit(network((8,)), **{**QUICK, "epochs": 3}, compile=mode) for mode in (False, True, "default")
    )
    for history in others:
        assert history["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-4)
