"""Networks that copy: an input mentions outputs, and what it mentions is a first answer, which is then changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsokr.regressors.networks import NetworkFactory
from dsokr.regressors.networks.base import call_optional


@dataclass(frozen=True, eq=False)
class Copying:
    """a_0 g(x) + Σ_j a_j (w_r ⊙ ψ̃(y_j) + B h_j) with h_j = gelu(A ψ̃(y_j) + c_r), over all outputs y_j that x mentions.

    An answer is often a mentioned output with a small change, "the conjugate base of glycine" say, and a change is
    easier to learn than the whole. The attention a is a softmax of t_r + v · h_j, and of a constant for g(x): it
    depends on the relation r of a mention and on its output. ``coordinates`` ψ̃(y) of all mentioned outputs are in the
    basis of the ``targets``, and all is in units of the mean and spread of the latter; what A reads is also normalised
    over its coordinates. In training a mention is left out with probability ``dropped``, and all mentions of an input
    with probability ``alone``, so that g also learns from inputs that name their answer.
    """

    network: NetworkFactory  # g
    mentions: Mapping[str, Sequence[tuple[int, int]]]  # by input: outputs, as rows of ``coordinates``, and relations
    coordinates: Tensor  # (outputs, p)
    targets: Tensor  # (n, p)
    hidden: int = 512
    dropped: float = 0.2
    alone: float = 0.3

    def __call__(self, p: int) -> CopyingNetwork:
        return CopyingNetwork(self, p)


class CopyingNetwork(nn.Module):
    """The module that :class:`Copying` specifies."""

    mean: Tensor
    spread: Tensor
    known: Tensor

    def __init__(self, shape: Copying, p: int):
        super().__init__()
        self.shape, self.network = shape, shape.network(p)
        self.longest = max(map(len, shape.mentions.values()))
        relations = 1 + max(relation for found in shape.mentions.values() for _, relation in found)
        targets, outputs = shape.targets.cpu(), shape.coordinates.cpu()
        mean, spread = targets.mean(dim=0), targets.std(dim=0, correction=0)
        known = torch.cat([torch.zeros(1, p), (outputs - mean) / spread])
        for name, tensor in {"mean": mean, "spread": spread, "known": known}.items():
            self.register_buffer(name, tensor.float(), persistent=False)
        self.weights = nn.Parameter(torch.ones(relations, p))
        self.normalize, self.enter, self.leave = nn.LayerNorm(p), nn.Linear(p, shape.hidden), nn.Linear(shape.hidden, p)
        self.relations, self.trust = nn.Embedding(relations, shape.hidden), nn.Parameter(torch.zeros(relations))
        self.judge, self.nothing = nn.Linear(shape.hidden, 1), nn.Parameter(torch.ones(1))

    def prepare(self, xs: Sequence[str]) -> Tensor:  # (n, 2 · longest + those of g) int32
        """Rows of the mentioned outputs from 1 on, 0 for none; their relations; then the inputs of g."""
        mentioned = torch.zeros(len(xs), 2, self.longest, dtype=torch.int32)
        for i, x in enumerate(xs):
            if found := self.shape.mentions[x]:
                mentioned[i, :, : len(found)] = torch.tensor([(row + 1, relation) for row, relation in found]).T
        return torch.cat([mentioned.flatten(1), call_optional(self.network, "prepare", xs)], dim=1)

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, relations, rest = inputs.tensor_split([self.longest, 2 * self.longest], dim=1)
        return rows.long(), relations.long(), rest

    def lengths(self, inputs: Tensor) -> Tensor:  # (n,)
        return call_optional(self.network, "lengths", self._split(inputs)[2])

    def learning_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        own = [weight for name, weight in self.named_parameters() if not name.startswith("network.")]
        return [(own, 1.0), *call_optional(self.network, "learning_rates")]

    def forward(self, inputs: Tensor) -> Tensor:  # (n, length) -> (n, p)
        rows, relations, rest = self._split(inputs)
        there = rows > 0
        if self.training:
            there = there & (torch.rand(rows.shape, device=rows.device) >= self.shape.dropped)
            there = there & (torch.rand(len(rows), 1, device=rows.device) >= self.shape.alone)
        owners, places = there.nonzero(as_tuple=True)  # (m,), (m,)
        outputs, relations = self.known[rows[owners, places]], relations[owners, places]  # (m, p), (m,)
        changes = F.gelu(self.enter(self.normalize(outputs)) + self.relations(relations))  # (m, hidden)
        trust = self.trust[relations] + self.judge(changes)[:, 0].float()
        scores = torch.full_like(rows, -torch.inf, dtype=torch.float32).index_put((owners, places), trust)
        shares = torch.cat([self.nothing.expand(len(rows), 1), scores], dim=1).softmax(dim=1)  # (n, 1 + longest)
        share = shares[owners, places + 1][:, None]
        changed = changes.new_zeros(len(rows), changes.shape[1]).index_add(0, owners, share.to(changes.dtype) * changes)
        z = shares[:, :1] * self.network(rest).float() + self.leave(changed).float()
        with torch.autocast(inputs.device.type, enabled=False):  # 16 bits would make similar outputs equal
            copied = share * F.embedding(relations, self.weights) * outputs
            return self.mean + self.spread * z.index_add(0, owners, copied)
