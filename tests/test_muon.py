"""Muon: against singular value decompositions, AdamW, and an interruption."""

import pytest
import torch
from torch import nn

from dsokr.compute import seeded
from dsokr.errors import Interrupted
from dsokr.regressors.muon import COEFFICIENTS, STEPS, Muon, divide_groups, orthogonalize
from test_training import At, fit, network


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 30), (2, 30, 5), (1, 1, 4)])
def test_orthogonalize_keeps_singular_vectors_and_maps_singular_values(shape):
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / s.norm(dim=1, keepdim=True)
    for _ in range(STEPS):
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(orthogonalize(matrices), (u * s[:, None]) @ vh)


def test_singular_values_are_near_one():
    s = torch.linalg.svdvals(orthogonalize(torch.randn(4, 64, 128, generator=torch.Generator().manual_seed(1))))
    assert s.min() > 0.65 and s.max() < 1.25


def test_zero_gradients_move_nothing():
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_hidden_matrices_are_orthogonal_and_all_others_are_not():
    with seeded(0):
        net = nn.Sequential(nn.Embedding(9, 4), nn.Conv1d(2, 3, 2), nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2))
    parts = list(divide_groups([{"params": list(net.parameters()), "lr": 0.1}], net))
    assert [part["orthogonal"] for part in parts] == [True, False]
    assert [id(w) for w in parts[0]["params"]] == [id(net[1].weight), id(net[2].weight)]
    assert len(parts[1]["params"]) == 7 and {part["lr"] for part in parts} == {0.1}


def test_one_step_by_hand():
    """The first step of a hidden matrix by its formula, and that of every other weight by AdamW."""
    with seeded(0):
        nets = [nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    before = nets[0][0].weight.detach().clone()
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for net in nets:
        net(inputs).square().sum().backward()
    gradient = nets[0][0].weight.grad.clone()
    groups = divide_groups([{"params": list(nets[0].parameters())}], nets[0])
    Muon(list(groups), lr=0.1, weight_decay=0.5).step()
    torch.optim.AdamW(nets[1].parameters(), lr=0.1, weight_decay=0.5).step()
    step = orthogonalize((0.05 * 0.95 + 0.05) * gradient[None])[0]
    torch.testing.assert_close(nets[0][0].weight, 0.95 * before - 0.2 * 0.1 * 6**0.5 * step)
    for own, adamw in zip(nets[0][2].parameters(), nets[1][2].parameters(), strict=True):
        assert torch.equal(own, adamw)
    assert torch.equal(nets[0][0].bias, nets[1][0].bias)


OPTIONS = {"optimizer": "muon", "epochs": 6, "batch_size": 32, "learning_rate": 0.02, "schedule": "linear"}


def test_learns():
    history = fit(network((64,)), **OPTIONS | {"epochs": 20, "learning_rate": 0.05})
    assert history["val_loss"][-1] < 0.05 < history["val_loss"][0] / 10


class StopIn(At):
    """Ctrl-C in the middle of an epoch."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (2, 1):
            raise KeyboardInterrupt


def test_resumes_where_it_stopped(tmp_path):
    whole, resumed = network((8,)), network((8,))
    fit(whole, seed=3, **OPTIONS)
    with pytest.raises(Interrupted):
        fit(network((8,)), seed=3, folder=tmp_path, trainer={"callbacks": [StopIn()]}, **OPTIONS)
    fit(resumed, seed=3, folder=tmp_path, **OPTIONS)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
