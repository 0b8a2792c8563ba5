"""The default regressor: a stack of members that suit the inputs and their number."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, is_regressor

from dsokr.errors import InputError, TrainingError, check_fields
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import Kernel, Tanimoto, WeisfeilerLehman
from dsokr.losses import Objective, Ranked, Squared
from dsokr.outputs import count, take
from dsokr.regressors.base import Reads, Regressor
from dsokr.regressors.forest import Forest
from dsokr.regressors.inputs import Encoder, Reader
from dsokr.regressors.networks import CNN, MLP, CharTransformer, SparseTransformer, TextEncoder, WordBag
from dsokr.regressors.neural import Neural
from dsokr.regressors.ridge import KernelRidge
from dsokr.regressors.scikit import Scikit
from dsokr.regressors.stack import Stack
from dsokr.regressors.training import Training

CONTRASTS = (1.0, 1.5, 2.0, 3.0, 4.5)
HELD_OUT = 0.1  # share of the pairs that networks are stopped and weighed on
FEW = 2000  # pairs up to which a network has nothing to add to trees and ridge on the same numbers
FEW_MOLECULES = 10_000  # the same for a network that reads SMILES, beside trees and ridge on fingerprints
PILOT = 250  # pairs in the first fit within a budget
UNITS = {"s": 1, "min": 60, "h": 3600}

T = TypeVar("T")


@dataclass(frozen=True)
class Auto:
    """Chooses regressors by the kind of the inputs.

    Tables of numbers: trees and kernel ridge, and beyond some thousands of rows a network. Sparse tables: trees and
    ridge by cosine and, if they hold counts, by Tanimoto. Molecules as SMILES: the same on fingerprints, and where
    there are many a network on their characters. Texts: ridge on words, and a network. Strings: ridge on their parts,
    and beyond some thousands a network on their characters. Pictures: a convolutional network, and ridge on pixels.
    Graphs: ridge with the Weisfeiler-Lehman kernel.

    Parameters
    ----------
    budget : time for everything that ``DSOKR.fit`` does, such as ``"10 s"`` or ``"5 min"``. If it is too short to
        learn from all pairs, fewer are used, and networks are stopped early.
    texts : what texts are: "text" in words, "string" of characters, or "smiles"; "auto" looks at them.
    training : settings of :class:`Training` to use in place of those chosen for networks, such as ``{"epochs": 20}``.
        With any, or a loss or several seeds, networks are used however few the pairs are.

    >>> Auto(budget="2 min").seconds
    120.0
    """

    budget: str | None = None
    texts: Literal["auto", "text", "string", "smiles"] = "auto"
    training: Mapping[str, Any] = field(default_factory=dict, hash=False)
    networks: bool = True  # whether there may be any
    loss: Objective | None = None  # of networks; None: the squared distance or, for long lists, Ranked()
    seeds: int = 1  # of networks, each of which is a member
    folder: str | None = field(default=None, compare=False)  # where networks keep checkpoints, to resume a training

    def __post_init__(self) -> None:
        check_fields(self)
        if self.budget is not None and self.seconds <= 0:
            raise InputError(f"Auto.budget must be longer than nothing. Got {self.budget!r}.")

    @property
    def seconds(self) -> float:
        """The budget in seconds."""
        found = re.fullmatch(r"\s*(\d+\.?\d*)\s*(s|min|h)\s*", self.budget or "inf")
        if self.budget is not None and found is None:
            raise InputError(f"Auto.budget must be a time, such as '10 s', '5 min' or '2 h'. Got {self.budget!r}.")
        return float("inf") if found is None else float(found[1]) * UNITS[found[2]]

    def choose(self, raw: Any, encoder: Encoder | None, numbers: Any, ranks: bool = False) -> Stack:
        """Return the stack for inputs as given (``raw``) and as a table of numbers, if there is an encoder.

        ``ranks`` says that answers are picked from a long list, so that the rank of the right one counts.
        """
        if encoder is None:
            return Stack((_ridge_on_graphs(raw),), contrast=CONTRASTS)
        kind = _find_kind(raw, encoder)
        if kind == "picture" and np.isnan(numbers).any():
            raise InputError("Pictures must not have missing values. Got NaN.")
        members: list[Regressor] = [] if kind in ("picture", "text", "string") else [Forest()]
        members.append(_ridge())
        if sp.issparse(numbers) and kind in ("smiles", "table") and are_counts(numbers):
            members.append(_ridge(Tanimoto()))
        network = self._choose_network(kind, raw, numbers)
        if network is not None:
            reads: Reads = "numbers" if kind in ("table", "category") and not sp.issparse(raw) else "raw"
            training = suit_training(network, count(raw), self.training)
            training = replace(training, folder=self.folder, keep_state=self.folder is not None)
            loss = self.loss or (Ranked() if ranks else Squared())
            names = map(str, range(self.seeds)) if self.seeds > 1 else [""]
            neural = [Neural(network, loss, training.inside(name), reads) for name in names]
            members = [*neural] if ranks else [*members, *neural]  # others know nothing of ranks
        return Stack(tuple(members), folds=5 if network is None else HELD_OUT, contrast=CONTRASTS)

    def wants_network(self, raw: Any, encoder: Encoder | None) -> bool:
        """Whether the stack for these inputs has a network."""
        if encoder is None:
            return False
        return self._choose_network(_find_kind(raw, encoder), raw, encoder.encode(take(raw, [0]))) is not None

    def _choose_network(self, kind: str, raw: Any, numbers: Any) -> Any:
        n = math.inf if self.training or self.loss or self.seeds > 1 else count(raw)
        if not self.networks:
            return None
        if kind == "picture":
            return CNN(channels=(16, 32, 64), hidden=256)
        if kind == "text":
            return WordBag(width=256)
        if kind in ("string", "smiles"):
            longest = max(32, math.ceil(1.25 * max(map(len, raw))))
            is_worth_it = n > (FEW if kind == "string" else FEW_MOLECULES)
            return CharTransformer(layers=3, width=128, heads=4, dropout=0.1, longest=longest) if is_worth_it else None
        if sp.issparse(raw):
            return SparseTransformer() if n == math.inf else None
        return MLP((256, 256)) if n > FEW and not sp.issparse(numbers) else None


def _find_kind(raw: Any, encoder: Encoder) -> str:
    """Return "picture", "table", or the kind of a list of texts."""
    if encoder.columns:
        return encoder.columns[0].kind if isinstance(raw, list) else "table"
    return "picture" if getattr(raw, "ndim", 2) > 2 else "table"


def _ridge(kernel: Any = None) -> KernelRidge:
    return KernelRidge(kernel, intercept=True, reads="numbers")


def _ridge_on_graphs(raw: Any) -> KernelRidge:
    if not isinstance(raw, GraphBatch) and not isinstance(raw[0], Graph):
        kind = type(raw[0]).__name__
        raise InputError(f"No regressor is known for inputs of type {kind}: give one, such as KernelRidge(kernel).")
    return KernelRidge(WeisfeilerLehman(3).normalized(), intercept=True)


def suit_training(network: Any, n: int, given: Mapping[str, Any]) -> Training:
    """Return the given settings, and others that suit the network and n pairs: about twenty batches an epoch."""
    batch_size = int(np.clip(2 ** round(np.log2(n / 20)), 8, 256))
    chosen: dict[str, Any] = {"batch_size": batch_size}
    if isinstance(network, WordBag):
        chosen["learning_rate"] = 3e-3
    elif isinstance(network, CharTransformer | SparseTransformer | TextEncoder):
        is_pretrained, epoch = isinstance(network, TextEncoder), -(-n // batch_size)
        chosen |= {"optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear", "gradient_clip": 1.0}
        chosen |= {"warmup_steps": min(200, epoch if is_pretrained else 5 * epoch)}
        chosen |= {"epochs": 20} if is_pretrained else {}
    return Training(**chosen | dict(given))


def are_counts(numbers: sp.csr_array) -> bool:
    """Whether a sparse table holds counts: whole numbers that are not negative."""
    return bool((numbers.data >= 0).all() and (numbers.data == np.round(numbers.data)).all())


def as_regressor(given: Any) -> Regressor | Auto:
    """Return what was given as a regressor: one of scikit-learn, a network factory, or "auto"."""
    if given == "auto":
        return Auto()
    if isinstance(given, Regressor | Auto):
        return given
    if isinstance(given, BaseEstimator) and is_regressor(given):
        return Scikit(given)
    if isinstance(given, str | BaseEstimator | Kernel):
        raise InputError(f"regressor must be a Regressor, one of scikit-learn, a network or 'auto'. Got {given!r:.60}.")
    return Neural(given)


def prepare_reading(regressor: Regressor | Auto, X: Any, ranks: bool = False) -> tuple[Regressor, Reader]:
    """Return the regressor, which ``Auto`` chooses by the inputs, and a reader that prepares inputs for it."""
    if isinstance(regressor, Regressor):
        return regressor, Reader(regressor.reads, None if regressor.reads == "raw" else Encoder.of(X))
    try:
        encoder = Encoder.of(X, regressor.texts)
    except InputError:  # graphs, say
        return regressor.choose(X, None, None), Reader()
    stack = regressor.choose(X, encoder, encoder.encode(X), ranks)
    return stack, Reader(stack.reads, None if stack.reads == "raw" else encoder)


def fit_within(auto: Auto, n: int, fit: Callable[[np.ndarray, Auto], T], wants_network: Callable[[T], bool]) -> T:
    """Fit to ever more of n pairs, twice as many each time, while the budget allows; return what was fitted last.

    ``fit`` takes the positions of the pairs to use. The time that it takes bounds the time of the next fit. Networks
    come last and get the remaining time; one that cannot see all pairs once in this time is not used.
    """
    end, order = time.perf_counter() + auto.seconds, np.random.default_rng(0).permutation(n)
    plain, size, growth, before = replace(auto, budget=None, networks=False), min(n, PILOT), 4.0, 0.0
    while True:
        started = time.perf_counter()
        fitted = fit(np.sort(order[:size]), plain)
        took, left = time.perf_counter() - started, end - time.perf_counter()
        growth = growth if before == 0 else float(np.clip(1.5 * took / before, 2, 8))
        if size == n or growth * took > left:
            break
        size, before = min(n, 2 * size), took
    share = (left - 1.5 * took) / 2.5  # a network is trained twice: to be weighed, and on everything
    if share > 0 and auto.networks and wants_network(fitted):
        limits = {**auto.training, "trainer": {"max_time": timedelta(seconds=share)}}
        with suppress(TrainingError):
            return fit(np.sort(order[:size]), replace(plain, networks=True, training=limits))
    return fitted
