"""What to regress with when nothing is said: a stack of what suits the inputs and their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, is_regressor

from dsokr.errors import InputError
from dsokr.graphs import Graph, GraphBatch
from dsokr.kernels import Tanimoto, WeisfeilerLehman
from dsokr.outputs import count
from dsokr.regressors.base import Regressor
from dsokr.regressors.forest import Forest
from dsokr.regressors.inputs import Encoder, Reader
from dsokr.regressors.networks import CNN, MLP, WordBag
from dsokr.regressors.neural import Neural
from dsokr.regressors.ridge import KernelRidge
from dsokr.regressors.scikit import Scikit
from dsokr.regressors.stack import Stack
from dsokr.regressors.training import Training

CONTRASTS = (1.0, 1.5, 2.0, 3.0)
HELD_OUT = 0.1  # share of the pairs that networks are stopped and weighed on
FEW = 2000  # pairs up to which a network has nothing to add to trees and ridge on the same numbers


@dataclass(frozen=True)
class Auto:
    """Chooses regressors by the kind of the inputs.

    Tables of numbers: trees and kernel ridge, and beyond some thousands of rows a network. Sparse tables: trees and
    ridge by cosine and, if they hold counts, by Tanimoto. Molecules as SMILES: the same on fingerprints. Texts: ridge
    on words, and a network. Pictures: a convolutional network, and ridge on pixels. Graphs: ridge with the
    Weisfeiler-Lehman kernel.
    """

    def choose(self, raw: Any, encoder: Encoder | None, numbers: Any) -> Stack:
        """Return the stack for n inputs, as given and as a table of numbers, if they can be one."""
        members = tuple(self._list_members(raw, encoder, numbers))
        has_networks = any(isinstance(member, Neural) for member in members)
        return Stack(members, folds=HELD_OUT if has_networks else 5, contrast=CONTRASTS)

    def _list_members(self, raw: Any, encoder: Encoder | None, numbers: Any) -> list[Regressor]:
        n = count(raw)
        if encoder is None:
            return [_ridge_on_graphs(raw)]
        kinds = {column.kind for column in encoder.columns}
        if not encoder.columns and getattr(raw, "ndim", 2) > 2:
            if np.isnan(numbers).any():
                raise InputError("Pictures must not have missing values. Got NaN.")
            return [Neural(CNN(channels=(16, 32, 64), hidden=256), training=_train(n)), _ridge()]
        if kinds == {"text"} and isinstance(raw, list):
            return [_ridge(), Neural(WordBag(width=256), training=_train(n, learning_rate=3e-3))]
        members = [Forest(), _ridge()]
        if sp.issparse(numbers) and "text" not in kinds and are_counts(numbers):
            members.append(_ridge(Tanimoto()))
        if not sp.issparse(numbers) and n > FEW:
            members.append(Neural(MLP((256, 256)), training=_train(n), reads="numbers"))
        return members


def _ridge(kernel: Any = None) -> KernelRidge:
    return KernelRidge(kernel, intercept=True, reads="numbers")


def _ridge_on_graphs(raw: Any) -> KernelRidge:
    if not isinstance(raw, GraphBatch) and not isinstance(raw[0], Graph):
        kind = type(raw[0]).__name__
        raise InputError(f"No regressor is known for inputs of type {kind}: give one, such as KernelRidge(kernel).")
    return KernelRidge(WeisfeilerLehman(3).normalized(), intercept=True)


def _train(n: int, **options: Any) -> Training:
    """Settings for a network on n pairs: some twenty batches an epoch, and patience while it improves."""
    batch_size = int(np.clip(2 ** round(np.log2(n / 20)), 8, 256))
    return Training(batch_size=batch_size, progress=False, **options)


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
    if isinstance(given, str | BaseEstimator):
        raise InputError(f"regressor must be a Regressor, one of scikit-learn, a network or 'auto'. Got {given!r:.60}.")
    return Neural(given)


def prepare_reading(regressor: Regressor | Auto, X: Any) -> tuple[Regressor, Reader]:
    """Return the regressor, chosen by the inputs if that is left open, and what makes these as it reads them."""
    if isinstance(regressor, Regressor):
        return regressor, Reader(regressor.reads, None if regressor.reads == "raw" else Encoder.of(X))
    try:
        encoder = Encoder.of(X)
    except InputError:  # graphs, say
        return regressor.choose(X, None, None), Reader()
    stack = regressor.choose(X, encoder, encoder.encode(X))
    return stack, Reader(stack.reads, None if stack.reads == "raw" else encoder)
