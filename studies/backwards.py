"""The other direction: from a molecule to the words of its text. A text's answer is what makes its words likeliest.

Regression from the outputs back to the inputs is known from kernel methods as IOKR reverse (Brouard et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.feature_extraction.text import CountVectorizer
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from dsokr.compute import seeded
from dsokr.losses import Objective
from dsokr.regressors import Neural, Training
from dsokr.regressors.networks.text import WORDS
from studies.baselines.regression import BinaryCrossEntropy, as_targets
from studies.data.chebi20 import Molecules

BLOCK = 1024  # molecules passed through a network at once


@dataclass(frozen=True)
class Backwards:
    """log p(x | y) = Σ_w log p(x_w | y) over the words and word pairs w that a text x has or has not, by networks.

    A molecule that was trained on is known by the words of its text, so that another text would hardly suit it. So each
    of several networks leaves out one of the ``folds`` of the molecules, and predicts the words for these.
    """

    words: int = 8_000  # the most frequent words and pairs
    least: int = 10  # training texts that have a word
    common: int = 20  # molecules that have a feature
    width: int = 512
    folds: int = 5
    contrast: float = 10.0  # weight of finding a text's molecule among those of a batch, beside the likelihood

    def fit(
        self,
        texts: Sequence[str],
        rows: np.ndarray,
        molecules: Molecules,
        training: Training,
        seed: int,
        device: torch.device,
    ) -> Likelihoods:
        """Train on texts and the rows of the molecules that they describe."""
        vectorizer = CountVectorizer(
            token_pattern=WORDS.pattern, ngram_range=(1, 2), min_df=self.least, max_features=self.words, binary=True
        )
        present = torch.from_numpy(vectorizer.fit_transform(texts).toarray()).float()
        own, features = torch.from_numpy(rows), Features.of(molecules, self.common)
        fold = torch.randint(self.folds, (len(molecules),), generator=Generator().manual_seed(seed))
        parts = []
        for number in range(self.folds):
            seen = fold[own] != number
            network = self._train(features, own[seen], present[seen], training, seed + number, device)
            parts.append((network, (fold == number).nonzero()))
        return Likelihoods.of(vectorizer, parts)

    def _train(
        self, features: Features, rows: Tensor, present: Tensor, training: Training, seed: int, device: torch.device
    ) -> MoleculeWords:
        with seeded(seed):
            network = MoleculeWords(features, self.width, present.mean(dim=0))
        regressor = Neural(lambda p: network, Likelihood(network, self.contrast), replace(training, standardize=False))
        regressor.fit(rows[:, None], as_targets(present), seed=seed, device=device)
        return network


@dataclass(frozen=True, eq=False)
class Features:
    """What networks read of molecules: counts of neighbourhoods, with and without chirality, and their composition."""

    starts: Tensor  # (n + 1,)
    places: Tensor  # of the neighbourhoods of one molecule after the other
    amounts: Tensor
    composition: Tensor  # (n, 14) standardised

    @staticmethod
    def of(molecules: Molecules, common: int) -> Features:
        """Only neighbourhoods that many molecules have count."""
        counts = sp.hstack(
            [select_common(table, common) for table in (molecules.morgan, molecules.morgan_flat)]
        ).tocsr()
        numbers = torch.from_numpy(molecules.composition).float()
        numbers = numbers.sign() * numbers.abs().log1p()
        return Features(
            torch.from_numpy(counts.indptr).long(),
            torch.from_numpy(counts.indices).long(),
            torch.from_numpy(counts.data).float().log1p(),
            (numbers - numbers.mean(dim=0)) / numbers.std(dim=0).clamp(min=1e-6),
        )


def select_common(table: sp.csr_array, least: int) -> sp.csr_array:
    """The columns of a very wide table that at least so many rows have.

    >>> select_common(sp.csr_array([[5, 0, 1], [6, 1, 0]]), 2).toarray()
    array([[5],
           [6]])
    """
    _, column, rows = np.unique(table.indices, return_inverse=True, return_counts=True)
    is_common = rows >= least
    kept, number = is_common[column], is_common.cumsum() - 1
    owners = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))[kept]
    shape = (table.shape[0], int(is_common.sum()))
    return sp.csr_array((table.data[kept], (owners, number[column[kept]])), shape=shape)


class MoleculeWords(nn.Module):
    """Log-odds of every word, ⟨h(y), v_w⟩ + b_w, for rows of molecules."""

    def __init__(self, features: Features, width: int, frequency: Tensor):
        super().__init__()
        self.features = features
        self.neighborhoods = nn.EmbeddingBag(int(features.places.max()) + 1, width, mode="sum")
        self.composition = nn.Linear(features.composition.shape[1], width)
        self.layers = nn.Sequential(
            *(nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2))
        )
        self.vectors = nn.Parameter(torch.randn(len(frequency), width) * 0.1 / width**0.5)
        self.odds = nn.Parameter(frequency.clamp(1e-5, 1 - 1e-5).logit())
        self.sharpness = nn.Parameter(torch.tensor(-2.0))
        with torch.no_grad():
            self.neighborhoods.weight *= 0.05

    def prepare(self, rows: Tensor) -> Tensor:  # (n, 1)
        return rows

    def embed(self, rows: Tensor) -> Tensor:  # (n,) -> (n, width)
        own = self.features
        first, sizes = own.starts[rows], own.starts[rows + 1] - own.starts[rows]
        offsets = sizes.cumsum(dim=0) - sizes
        at = torch.repeat_interleave(first - offsets, sizes) + torch.arange(int(sizes.sum()))
        device = self.odds.device
        places, offsets, amounts, counts = (
            part.to(device) for part in (own.places[at], offsets, own.amounts[at], own.composition[rows])
        )
        return self.layers(self.neighborhoods(places, offsets, amounts) + self.composition(counts))

    def forward(self, rows: Tensor) -> Tensor:  # (n, 1) -> (n, words)
        return F.linear(self.embed(rows[:, 0].cpu()), self.vectors, self.odds)


@dataclass(frozen=True)
class Likelihood(Objective):
    """−log p(x | y), and −log of the probability that a text picks its molecule among the batch's by likelihood."""

    network: MoleculeWords = field(repr=False)
    contrast: float

    def mean(self, z: Tensor, target: Tensor, residual: Tensor) -> Tensor:
        likelihoods = target @ z.T - F.softplus(z).sum(dim=1)  # (texts, molecules)
        picked = F.cross_entropy(likelihoods * self.network.sharpness.exp(), torch.arange(len(z), device=z.device))
        return BinaryCrossEntropy().mean(z, target, residual) + self.contrast * picked


@dataclass(frozen=True, eq=False)
class Likelihoods:
    """Vectors of molecules and texts: log p(x | y) = ⟨t(x), m(y)⟩ − diag(y)/2, the score by the rule "kernel" over two.

    m(y) has the hidden layer of the network that has not seen y, and a one, in the place of this network, else zeros;
    t(x) has the sums of the vectors v_w and of b_w over the words of x, by every network.
    """

    vectorizer: CountVectorizer
    words: Tensor  # (networks, words, width + 1)
    molecules: Tensor  # (n, networks * (width + 1))
    diag: Tensor  # (n,)

    @staticmethod
    def of(vectorizer: CountVectorizer, parts: Sequence[tuple[MoleculeWords, Tensor]]) -> Likelihoods:
        with torch.inference_mode():
            words = torch.stack([torch.column_stack([net.vectors, net.odds]).cpu() for net, _ in parts])
            count = sum(len(rows) for _, rows in parts)
            molecules, diag = torch.zeros(count, *words.shape[::2]), torch.zeros(count)
            for number, (network, rows) in enumerate(parts):
                for (own,) in (block.T for block in rows.split(BLOCK)):
                    hidden = network.embed(own).cpu()
                    molecules[own, number] = F.pad(hidden, (0, 1), value=1.0)
                    diag[own] = 2 * F.softplus(molecules[own, number] @ words[number].T).sum(dim=1)
        return Likelihoods(vectorizer, words, molecules.flatten(1), diag)

    def embed(self, texts: Sequence[str]) -> Tensor:  # (n, networks * (width + 1))
        present = torch.from_numpy(self.vectorizer.transform(texts).toarray()).float()
        return torch.cat([present @ words for words in self.words], dim=1)
