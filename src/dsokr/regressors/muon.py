"""Muon (Jordan et al., 2024): hidden layers move by orthogonal matrices, so that no direction falls behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
STEPS = 5  # of the iteration below
COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of its polynomial, which grows small singular values fastest


class Muon(torch.optim.AdamW):
    """AdamW, except for groups with ``orthogonal``: their weights W move by −0.2 η √max(W.shape) UVᵀ.

    USVᵀ is the gradient's momentum. The factor makes a step as large as one of AdamW usually is, so that one learning
    rate η serves all weights.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if group["orthogonal"]:
                self._move(group)
        super().step()
        return loss

    @torch.no_grad()
    def _move(self, group: dict[str, Any]) -> None:
        by_shape = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                by_shape[weight.shape].append(weight)
        for weights in by_shape.values():
            momenta = [self._update_momentum(weight) for weight in weights]
            matrices = torch.stack(momenta).flatten(2)
            updates = orthogonalize(matrices, group["in_bf16"]).view(-1, *weights[0].shape)
            rate = 0.2 * group["lr"] * max(weights[0].flatten(1).shape) ** 0.5
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_sub_(weights, updates.unbind(), alpha=rate)

    def _update_momentum(self, weight: Tensor) -> Tensor:
        """Nesterov's momentum. The gradient is used up, so that AdamW passes the weight over."""
        gradient, weight.grad = cast(Tensor, weight.grad), None
        state = self.state[weight]
        if not state:
            state |= {"step": torch.tensor(0.0), "momentum": torch.zeros_like(weight)}  # step: AdamW expects it
        state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(state["momentum"], MOMENTUM)


def orthogonalize(matrices: Tensor, in_bf16: bool = False) -> Tensor:  # (k, a, b)
    """USVᵀ -> about UVᵀ: after five steps of a polynomial iteration singular values lie between 0.7 and 1.2.

    bfloat16 is exact enough, and faster where the hardware has instructions for it.
    """
    x = matrices.bfloat16() if in_bf16 else matrices
    x = x.mT if x.shape[1] > x.shape[2] else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-20)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if matrices.shape[1] > matrices.shape[2] else x).to(matrices.dtype)


def divide_groups(
    groups: Sequence[dict[str, Any]], network: nn.Module, in_bf16: bool = False
) -> Iterable[dict[str, Any]]:
    """Divide groups of weights into matrices of hidden linear and convolutional layers, and all others.

    The last layer is not hidden, and embeddings are no linear layers.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd)]
    hidden = {id(layer.weight) for layer in layers[:-1]}
    for group in groups:
        for is_orthogonal in (True, False):
            weights = [weight for weight in group["params"] if (id(weight) in hidden) == is_orthogonal]
            if weights:
                yield group | {"params": weights, "orthogonal": is_orthogonal, "in_bf16": in_bf16}
