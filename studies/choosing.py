"""Generation without a search: the answer is a molecule that the text names or describes, or else a training molecule.

Most definitions of ChEBI name what they define, or what it is made of (:mod:`studies.data.mentions`,
:mod:`studies.data.assembly`). A network's coordinates say which of these molecules fits the text as a whole. Boosted
trees weigh that against the definition, as in :mod:`studies.checking`. They learn from the validation texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsokr.basis import SketchedBasis
from studies import chebi20_models as models
from studies.chebi20_generation import SIMILARITIES, compare
from studies.checking import Evidence, compare_within, rate_candidates
from studies.data.assembly import Pools
from studies.data.chebi20 import Descriptions
from studies.data.definitions import load_definitions
from studies.data.forms import read_and_write
from studies.results import Row

CHOSEN = "what the text names or describes, else a training molecule"
LEAST = 0.05  # probability of the best candidate; below it a training molecule is the answer
BLOCK = 4096

_canonical = cache(read_and_write)


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidates of some texts as rows of numbers, and the best training molecule for each text."""

    numbers: np.ndarray  # (candidates, numbers)
    smiles: list[str]
    owners: np.ndarray  # (candidates,) the text of each
    is_true: np.ndarray  # (candidates,)
    known: list[str]  # by text: SMILES of the best training molecule
    truth: list[str]  # by text

    def answer(self, odds: np.ndarray) -> list[str]:
        """For every text the candidate with the best odds, if they are good enough, else the training molecule."""
        answers, best = list(self.known), np.full(len(self.known), np.log(LEAST / (1 - LEAST)))
        for i, (owner, own) in enumerate(zip(self.owners, odds, strict=True)):
            if own > best[owner]:
                answers[owner], best[owner] = self.smiles[i], own
        return answers

    def measure(self, odds: np.ndarray) -> Row:
        """Exact matches and similarities of the answers, all of which are molecules, and how often the pool has one."""
        rows = [compare(*pair) for pair in zip(self.answer(odds), self.truth, strict=True)]
        means: Row = {name: sum(row[name] for row in rows) / len(rows) for name in ("exact", *SIMILARITIES)}
        found = {"in_pool": len(set(self.owners[self.is_true])) / len(rows), "candidates": len(self.owners) / len(rows)}
        return means | {"validity": 1.0} | found


def choose(task: models.TextTask, basis: SketchedBasis, members: Sequence[models.ModelVectors], pools: Pools) -> Row:
    """The measures of the answers to all test texts, and to the validation texts by trees that have not seen them.

    The members share a ``basis``, and the mean of the directions that they predict counts.
    """
    views = models.make_views(pools.molecules)
    psi = torch.cat([basis.embed(views[np.arange(*ends)]).float().cpu() for ends in _blocks(len(pools.molecules))])
    directions = [
        torch.stack([F.normalize(getattr(one, part).cpu(), dim=1) for one in members]).mean(dim=0)
        for part in ("val", "test")
    ]
    val, test = (
        describe(part, z, F.normalize(psi, dim=1), members[0].molecules.cpu(), pools, task)
        for part, z in zip((task.data.val, task.data.test), directions, strict=True)
    )
    on_val, on_test = rate_candidates(val.numbers, val.is_true, val.owners, test.numbers)
    return test.measure(on_test) | {f"val_{name}": value for name, value in val.measure(on_val).items()}


def _blocks(n: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]


def describe(
    part: Descriptions, z: Tensor, psi: Tensor, molecules: Tensor, pools: Pools, task: models.TextTask
) -> Choice:
    """Compare every text with its candidates.

    ``z`` are the texts' coordinates, ``psi`` the directions of all molecules of the pools, and ``molecules`` the
    coordinates of the list that training molecules are from.
    """
    train = np.unique(task.data.train.rows)
    best, known = _find_best(z := F.normalize(z, dim=1), F.normalize(molecules[train], dim=1))
    is_known = {_canonical(task.data.molecules.smiles[row]) for row in train}
    evidence = Evidence(pools.molecules, task.mentions[models.INFERRED], load_definitions(part.texts), pools)
    numbers, rows, owners = [], list[int](), list[int]()
    for number, text in enumerate(part.texts):
        if found := pools.by_text[text]:
            own = [row for row, _ in found]
            scores = (psi[own] @ z[number]).numpy()
            described = np.column_stack(
                [
                    *(scores, scores - best[number].item(), scores - scores.max(), (-scores).argsort().argsort()),
                    *(np.arange(len(own)), [pools.molecules.smiles[row] in is_known for row in own]),
                    *(np.full(len(own), len(own)), [way for _, way in found], evidence.compare(text, own)),
                ]
            )
            numbers.append(compare_within(described[None].astype(float))[0])
            rows, owners = rows + own, owners + [number] * len(own)
    smiles, truth = [pools.molecules.smiles[row] for row in rows], [task.data.molecules.smiles[r] for r in part.rows]
    return Choice(
        np.concatenate(numbers),
        smiles,
        np.array(owners),
        np.array([one == _canonical(truth[owner]) for one, owner in zip(smiles, owners, strict=True)]),
        [task.data.molecules.smiles[row] for row in train[known]],
        truth,
    )


def _find_best(z: Tensor, molecules: Tensor) -> tuple[Tensor, np.ndarray]:  # (n, p), (c, p) -> (n,), (n,)
    """The largest inner product of every row, and where it is."""
    found = [(rows @ molecules.T).max(dim=1) for rows in z.split(models.QUERIES)]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found]).numpy()
