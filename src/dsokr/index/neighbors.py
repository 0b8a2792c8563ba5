"""Approximate search for millions of candidates, by FAISS. The only module that imports it.

Every decoding rule is a search for nearest neighbours among points with one coordinate more than the basis has:
‖(z, 0) − (v, c)‖² = ‖z‖² − 2⟨z, v⟩ + ‖v‖² + c², where

    "kernel"     v = ψ̃(y),         c² = k(y, y) − ‖ψ̃(y)‖²: the distance ‖h(x) − ψ(y)‖² of the paper, residual included
    "projected"  v = ψ̃(y),         c = 0
    "cosine"     v = ψ̃(y) / ‖ψ̃(y)‖, c = 0 (and (0, 1) for ψ̃(y) = 0): all on the sphere, so that only ⟨z, v⟩ matters

An index is built for one rule. What it finds is scored again, exactly, from the stored coordinates.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr.basis import Rule
from dsokr.decoders import Ranking
from dsokr.decoders.scan import affine, constant
from dsokr.errors import InputError, MissingExtraError
from dsokr.index.exact import products
from dsokr.index.files import Arrays
from dsokr.rules import comparable

KINDS = ("flat", "hnsw", "ivfpq")
STEPS = (
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
)  # of effort: the least that is good enough is taken
EFFORTS = {"flat": (0,), "hnsw": STEPS[2:], "ivfpq": (4, 6, 8, 12, *STEPS[:9])}
HITS = {"flat": 2, "hnsw": 2, "ivfpq": 20}  # how many times k are fetched to be scored again
LINKS, EF_CONSTRUCTION = 32, 100  # of HNSW
CHUNK = 16384  # points added at once
CHECKPOINT_SECONDS = 30.0
TRAINING_POINTS_PER_CELL = 64
PQ_BITS = 8
FEWEST = 39 * 2**PQ_BITS  # candidates for ivfpq: FAISS wants 39 for every code

Say = Callable[[str], None]


def import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("FAISS", "search") from error
    return faiss


def points(arrays: Arrays, where: Any, rule: Rule) -> np.ndarray:  # (n, p + 1)
    """The candidates as points whose nearest neighbours are the best under the rule."""
    psi, norm = arrays.psi[where].astype(np.float64), arrays.norm[where]
    if rule == "cosine":
        zero = norm == 0
        psi, last = psi / np.where(zero, 1.0, norm)[:, None], zero.astype(np.float64)
    elif rule == "kernel":
        last = np.sqrt(np.maximum(arrays.diag[where] - np.square(norm), 0))
    else:
        last = np.zeros_like(norm)
    return np.ascontiguousarray(np.column_stack([psi, last]), dtype=np.float32)


def _queries(z: Tensor, rule: Rule) -> np.ndarray:  # (q, p + 1)
    if rule == "cosine":
        z = torch.nn.functional.normalize(z, dim=1)
    return np.ascontiguousarray(torch.nn.functional.pad(z, (0, 1)).numpy(), dtype=np.float32)


def _pad(rows: np.ndarray, width: int) -> np.ndarray:
    return rows if rows.shape[1] == width else np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


class Neighbors:
    """A FAISS index of the candidates, for one rule."""

    def __init__(self, faiss_index: Any, kind: str, rule: Rule, effort: int):
        self.faiss_index, self.kind, self.rule, self.effort = faiss_index, kind, rule, effort

    @classmethod
    def read(cls, file: Path, kind: str, rule: Rule, effort: int, count: int) -> Neighbors:
        faiss = import_faiss()
        try:
            read = faiss.read_index(str(file))
        except RuntimeError as error:
            raise InputError(f"The index is damaged: {file} cannot be read. Build it again, with --restart.") from error
        if read.ntotal != count:
            found = f"{read.ntotal:,} of {count:,} points"
            raise InputError(f"The index is damaged: {file} has {found}. Build it again, with --restart.")
        return cls(read, kind, rule, effort)

    def search(self, arrays: Arrays, z: Tensor, k: int) -> tuple[Ranking, Tensor]:
        """The best k of what FAISS finds, scored exactly, best first; and which rows it found too few for."""
        wanted = min(k * HITS[self.kind] + 16, len(arrays.psi))
        asked = _pad(_queries(z, self.rule), self.faiss_index.d)
        _, found = self.faiss_index.search(asked, wanted, params=self._parameters(wanted))
        found = np.sort(found, axis=1)  # of equal ones the first comes first
        missing = found < 0
        at = np.where(missing, 0, found)
        factor, offset = (torch.from_numpy(part) for part in affine(self.rule, arrays.diag[at], arrays.norm[at]))
        scores = products(arrays.psi, z, at).mul_(factor).add_(offset)
        scores.masked_fill_(torch.from_numpy(missing), -torch.inf)
        order = comparable(scores).sort(dim=1, descending=True, stable=True).indices[:, :k]
        ranking = Ranking(torch.from_numpy(at).gather(1, order), scores.gather(1, order))
        few = ranking.scores[:, -1].isneginf()
        return Ranking(ranking.indices, ranking.scores + constant(self.rule, z)[:, None]), few

    def _parameters(self, wanted: int) -> Any:
        faiss = import_faiss()
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(self.effort, wanted))
        return faiss.SearchParametersIVF(nprobe=self.effort) if self.kind == "ivfpq" else None


def check_enough(kind: str, count: int) -> None:
    if kind == "ivfpq" and count < FEWEST:
        raise InputError(
            f"An ivfpq index needs {FEWEST:,} candidates to learn from. Got {count:,}. Choose exact or hnsw."
        )


def build_faiss(folder: Path, arrays: Arrays, kind: str, rule: Rule, dtype: str, say: Say) -> Any:
    """Add all candidates to a FAISS index, in :func:`part_file`. An interrupted build goes on, 30 s back at most."""
    faiss = import_faiss()
    part, n = part_file(folder, kind, rule), len(arrays.psi)
    if part.exists():
        made = faiss.read_index(str(part))
        say(f"Going on with the {kind} index: {made.ntotal:,} of {n:,} candidates are in it.")
    else:
        made = _empty(faiss, arrays, kind, rule, dtype, say)
        _write(faiss, made, part)  # what was learned is kept
    last = start = time.monotonic()
    before = made.ntotal
    while made.ntotal < n:
        where = slice(made.ntotal, made.ntotal + CHUNK)
        made.add(_pad(points(arrays, where, rule), made.d))
        if time.monotonic() - last > CHECKPOINT_SECONDS:
            _write(faiss, made, part)
            last = time.monotonic()
            rate = (made.ntotal - before) / (last - start)
            say(f"{kind}: {made.ntotal:,} of {n:,} candidates, {rate:,.0f}/s")
    if made.ntotal > before:
        _write(faiss, made, part)
    return made


def part_file(folder: Path, kind: str, rule: Rule) -> Path:
    """The FAISS index on its way: it is kept until its effort has been chosen."""
    return folder / f"neighbors.{kind}.{rule}.part"


def faiss_file(folder: Path, kind: str, rule: Rule) -> Path:
    """The finished FAISS index. It counts once the head names its kind and rule."""
    return folder / f"neighbors.{kind}.{rule}.faiss"


def _empty(faiss: Any, arrays: Arrays, kind: str, rule: Rule, dtype: str, say: Say) -> Any:
    n, d = len(arrays.psi), arrays.psi.shape[1] + 1
    if kind == "flat":
        return faiss.IndexFlatL2(d)
    if kind == "hnsw":
        half = faiss.ScalarQuantizer.QT_fp16
        made = faiss.IndexHNSWSQ(d, half, LINKS) if dtype == "float16" else faiss.IndexHNSWFlat(d, LINKS)
        made.hnsw.efConstruction = EF_CONSTRUCTION
        made.train(points(arrays, slice(0, 1), rule))
        return made
    cells = max(1, min(int(4 * n**0.5), n // 39))  # FAISS wants 39 points a cell at least
    width = d + d % 2
    chosen = np.random.default_rng(0).permutation(n)[: max(TRAINING_POINTS_PER_CELL * cells, FEWEST)]
    say(f"ivfpq: learning {cells:,} cells from {len(chosen):,} candidates")
    made = faiss.IndexIVFPQ(faiss.IndexFlatL2(width), width, cells, width // 2, PQ_BITS)
    made.own_fields = False
    made.train(_pad(points(arrays, np.sort(chosen), rule), width))
    return made


def _write(faiss: Any, made: Any, file: Path) -> None:
    draft = file.with_name(f"{file.name}.new")
    faiss.write_index(made, str(draft))
    os.replace(draft, file)
