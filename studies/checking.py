"""A second look at the first candidates: does the text's definition fit them?

Coordinates in a basis cannot add and subtract. But a definition often says what its molecule is made of, which can be
counted (:mod:`studies.data.definitions`): its atoms, and the groups it must have. Boosted trees weigh this against the
scores. They are trained on the validation texts, whose molecules no member was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import GroupKFold
from torch import Tensor

from dsokr.errors import import_extra
from studies.data.assembly import WAYS, Pools
from studies.data.chebi20 import Molecules
from studies.data.definitions import Part, count_atoms, count_matches, read, sum_up
from studies.data.forms import read_and_write
from studies.data.mentions import CHANGING, CONDENSED, DEFINITION, OTHER, PEPTIDE, SPELLED, Mentions

MADE = (*CHANGING, "derives from", SPELLED, CONDENSED, PEPTIDE)  # relations of molecules with which counts are compared
RELATIONS = (*MADE, DEFINITION, OTHER)
SUMS = (
    *("the first", "the last", "with all groups", "with every group once", "together", "condensed"),
    *("with the last group", "with the last group, each", "the last group for the first"),
    *("the last two condensed", "the first two condensed"),
)
CHARGE = re.compile(r"\((\d*)([+-])\)")
SIGNS = (r"\d[RS]\b|[RS],", "alpha|beta", r"\d[EZ]|cis|trans")  # of stereochemistry: how often texts have them
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Evidence:
    """Compares texts with candidates, by numbers that are missing where a text says nothing."""

    molecules: Molecules
    mentions: Mentions
    definitions: dict[str, list[Part]]
    pools: Pools

    def compare(self, text: str, candidates: Sequence[int]) -> np.ndarray:  # (candidates, numbers)
        parts, smiles = self.definitions[text], [self.molecules.smiles[i] for i in candidates]
        named = [(self.mentions.molecules.smiles[row], self.mentions.relations[r]) for row, r in self._list(text)]
        sums = sum_up(parts) | {relation: count_atoms(name) for name, relation in named if relation in MADE}
        own = np.stack([count_atoms(one) for one in smiles])
        apart = [own - sums[kind] if kind in sums else np.full(own.shape, np.nan) for kind in (*SUMS, *MADE)]
        heavy = np.stack([np.abs(difference[:, :-1]).sum(axis=1) for difference in apart], axis=1)
        hydrogens = np.stack([difference[:, -1] for difference in apart], axis=1)
        nearest = np.nan_to_num(heavy + np.abs(hydrogens), nan=99.0).min(axis=1, keepdims=True)
        is_named = [_canonical(one) in dict(named) for one in smiles]
        ways = {self.pools.molecules.smiles[row]: self.pools.ways[way] for row, way in self.pools.by_text[text]}
        is_assembled = [[ways.get(_canonical(one)) == way for way in WAYS] for one in smiles]
        charge = [self.molecules.composition[i] for i in candidates]
        return np.column_stack(
            [
                *(heavy, hydrogens, nearest, is_named, is_assembled, charge, [one.count(".") for one in smiles]),
                *(self._compare_named(named, smiles), count_missing(parts, smiles)),
                np.tile([len(parts), *describe_text(text)], (len(smiles), 1)),
            ]
        )

    def _list(self, text: str) -> list[tuple[int, int]]:
        return [(row, relation) for row, relation in self.mentions.by_text[text] if row < len(self.mentions.molecules)]

    def _compare_named(self, named: list[tuple[str, str]], smiles: list[str]) -> np.ndarray:
        """The largest Tanimoto similarity to what a text names, by relation."""
        similar = import_extra("rdkit.DataStructs", "chem").BulkTanimotoSimilarity
        columns = []
        for relation in RELATIONS:
            others = [_fingerprint(name) for name, own in named if own == relation]
            found = [max(similar(_fingerprint(one), others)) if others else np.nan for one in smiles]
            columns.append(found)
        return np.array(columns).T


@cache
def _fingerprint(smiles: str) -> Any:
    generators = import_extra("rdkit.Chem.rdFingerprintGenerator", "chem")
    return generators.GetMorganGenerator(radius=2, fpSize=2048).GetFingerprint(read(smiles))


_canonical = cache(read_and_write)


def count_missing(parts: Sequence[Part], smiles: Sequence[str]) -> np.ndarray:  # (candidates, 5)
    """How much of what a definition names a molecule lacks: groups, by their number and copies, and whole molecules."""
    groups, whole = ([part for part in parts if part.is_group == is_group] for is_group in (True, False))
    rows = []
    for one in smiles:
        found = [count_matches(one, part.smiles) for part in groups]
        missing, held = sum(n == 0 for n in found), [count_matches(one, part.smiles) > 0 for part in whole]
        copies = sum(max(0, part.times - n) for part, n in zip(groups, found, strict=True))
        of_groups = [missing / len(groups), missing, copies] if groups else [np.nan] * 3
        rows.append(of_groups + ([1 - sum(held) / len(held), len(held) - sum(held)] if held else [np.nan] * 2))
    return np.array(rows)


def describe_text(text: str) -> list[float]:
    """Its length, that of its definition, the charge that stands there, and how often it tells of stereochemistry."""
    definition = text.split(". ")[0]
    charge = CHARGE.search(definition)
    told = np.nan if charge is None else float(f"{charge[2]}{charge[1] or 1}")
    return [len(text), len(definition), told, *(len(re.findall(sign, definition)) for sign in SIGNS)]


@dataclass(frozen=True, eq=False)
class Shortlists:
    """The best candidates for every text, what is known of them, and which is the true one."""

    rows: Tensor  # (n, k) of candidates, the best first
    numbers: np.ndarray  # (n, k, numbers)
    is_true: np.ndarray  # (n, k)

    @staticmethod
    def of(texts: Sequence[str], scores: Sequence[Tensor], truth: Tensor, evidence: Evidence, size: int) -> Shortlists:
        """``scores`` are those by all members together, and by each alone: (n, candidates) each."""
        rows = scores[0].topk(size, dim=1).indices
        best = np.stack([(own.gather(1, rows) - own.amax(dim=1, keepdim=True)).cpu() for own in scores], axis=2)
        place = np.broadcast_to(np.arange(size)[:, None], (len(rows), size, 1))
        told = np.stack([evidence.compare(*pair) for pair in zip(texts, rows.tolist(), strict=True)])
        return Shortlists(
            rows.cpu(), np.concatenate([best, place, told], axis=2), (rows.cpu() == truth[:, None]).numpy()
        )

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """All candidates of all texts as rows, and whether each is the true one."""
        numbers = compare_within(self.numbers)
        return numbers.reshape(-1, numbers.shape[2]), self.is_true.ravel()


def compare_within(numbers: np.ndarray) -> np.ndarray:  # (n, k, numbers) -> (n, k, 3 * numbers)
    """The numbers, and how far each is from the one nearest to zero and from the largest in its list.

    >>> compare_within(np.array([[[2.0], [np.nan], [-1.0]]]))[0].T
    array([[ 2., nan, -1.],
           [ 1., nan,  0.],
           [ 0., nan, -3.]])
    """
    sizes = np.abs(numbers)
    least = np.fmin.reduce(sizes, axis=1, keepdims=True)  # NaN only where all are
    return np.concatenate([numbers, sizes - least, numbers - np.fmax.reduce(numbers, axis=1, keepdims=True)], axis=2)


@dataclass(frozen=True)
class Check:
    """Orders shortlists of ``size`` candidates anew."""

    size: int = 100

    def rate(self, known: Shortlists, others: Shortlists) -> tuple[Tensor, Tensor]:  # (n, k) each
        """Scores of the known shortlists, by trees that were not trained on the same texts, and of others."""
        owners = np.repeat(np.arange(len(known.rows)), known.rows.shape[1])
        found = rate_candidates(*known.table(), owners, others.table()[0])
        own, new = (
            torch.from_numpy(odds).view(one.rows.shape) for odds, one in zip(found, (known, others), strict=True)
        )
        return own, new


def rate_candidates(
    numbers: np.ndarray, is_true: np.ndarray, owners: np.ndarray, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds that candidates are true: of known ones, by trees that have not seen their texts, and of others.

    ``owners`` are the texts of the known candidates.
    """
    out_of_fold = np.empty(len(numbers))
    for train, held in GroupKFold(FOLDS).split(numbers, groups=owners):
        out_of_fold[held] = _fit_trees(numbers[train], is_true[train]).decision_function(numbers[held])
    return out_of_fold, _fit_trees(numbers, is_true).decision_function(others)


def _fit_trees(numbers: np.ndarray, is_true: np.ndarray) -> HistGradientBoostingClassifier:
    trees = HistGradientBoostingClassifier(
        learning_rate=0.05, max_iter=300, max_leaf_nodes=15, min_samples_leaf=40, l2_regularization=1.0, random_state=0
    )
    told = ~np.isnan(numbers).all(axis=0)
    return trees.fit(np.where(told, numbers, 0.0), is_true)  # scikit-learn 1.9 refuses columns without a number


def put_first(scores: Tensor, rows: Tensor, own: Tensor) -> Tensor:  # (n, c), (n, k), (n, k) -> (n, c)
    """The shortlists before all others, in the order of their own scores.

    >>> put_first(torch.tensor([[0.0, 9.0, 7.0]]), torch.tensor([[1, 2]]), torch.tensor([[0.2, 0.3]])).argsort(dim=1)
    tensor([[0, 1, 2]])
    """
    above = scores.amax(dim=1, keepdim=True) + 1 + own - own.amin(dim=1, keepdim=True)
    return scores.scatter(1, rows, above.to(scores.dtype))
