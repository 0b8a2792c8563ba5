"""Training in two processes, started by torchrun: as in one process with batches twice as large."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dsokr import DSOKR, Training, kernels, losses, networks, selection
from dsokr.regressors import Neural
from dsokr.sketches import SubSample


def fit(loss, batch_size: int, optimizer: str = "adam", folder: Path | None = None, **trainer) -> DSOKR:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(220, 4))
    Y = (X[:, :3] + 0.1 * rng.normal(size=(220, 3)) > 0).astype(int)
    training = Training(
        epochs=4, batch_size=batch_size, optimizer=optimizer, progress=False, folder=folder, trainer=trainer
    )
    regressor = Neural(networks.MLP((16,)), loss, training)
    model = DSOKR(kernels.Tanimoto(), SubSample(100), regressor, random_state=0, device="cpu")
    return model.fit(X[:200], Y[:200], validation=(X[200:], Y[200:]))


CASES = {
    "squared": {"loss": losses.Squared()},
    "ranked": {"loss": losses.Ranked(), "optimizer": "muon"},
}


def describe(model: DSOKR) -> dict:
    weights = [weight.double().sum().item() for weight in model.regressor_.network.parameters()]
    return {"history": model.history_.rows, "weights": weights, "projection": model.basis_.projection.sum().item()}


def main(folder: Path) -> None:
    """One of two processes: fit every case, and count how often this process makes a basis."""
    rank, made = torch.distributed.get_node_local_rank(), []
    make = selection.sketch_basis
    selection.sketch_basis = lambda *given, **named: made.append(1) or make(*given, **named)
    two = {"devices": 2, "strategy": "ddp"}
    found = {name: describe(fit(batch_size=20, folder=folder / name, **case, **two)) for name, case in CASES.items()}
    (folder / f"{rank}.json").write_text(json.dumps({"bases": len(made), **found}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("two")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    done = subprocess.run([*launch, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_the_basis_is_made_once_and_shared(runs):
    assert [run["bases"] for run in runs] == [len(CASES), 0]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one_with_twice_the_batch(runs, name):
    expected = describe(fit(batch_size=40, **CASES[name]))
    assert runs[0][name] == runs[1][name]
    for row, other in zip(runs[0][name]["history"], expected["history"], strict=True):
        assert row == pytest.approx(other, rel=1e-4)
    assert runs[0][name]["weights"] == pytest.approx(expected["weights"], rel=1e-3, abs=1e-3)
    assert runs[0][name]["projection"] == expected["projection"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
