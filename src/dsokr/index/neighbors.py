"""Approximate search by FAISS, for millions of candidates. The only module that imports it.

Under every decoding rule the best candidates are nearest neighbours, see :func:`dsokr.rules.as_points`. A FAISS index
is built for one rule. What it finds is scored again, exactly, from the stored coordinates.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsokr.errors import InputError, ModelFolderError, import_extra
from dsokr.index.storage import Arrays, Head
from dsokr.rules import Rule, as_points, as_queries

STEPS = [step for power in range(2, 11) for step in (2**power, 3 * 2 ** (power - 1))]  # 4, 6, 8, 12, 16, ...
EFFORTS = {"hnsw": STEPS[6:-1], "ivfpq": STEPS[:13]}  # 32 to 1024 and 4 to 256: the least that is enough is taken
PARAMETERS = {"hnsw": "efSearch", "ivfpq": "nprobe"}
HITS = {"hnsw": 2, "ivfpq": 20}  # times k: how many are fetched to be scored again
LINKS, EF_CONSTRUCTION = 32, 100  # of HNSW
PER_CELL, FEWEST_PER_CELL = 64, 39  # points that FAISS learns a cell of ivfpq from
FEWEST = FEWEST_PER_CELL * 256  # points to learn the 256 codes of two coordinates from
CHUNK = 2**16  # points added at once

Say = Callable[[str], None]


def import_faiss() -> Any:
    return import_extra("faiss", "search")


def faiss_file(folder: Path, kind: str, rule: Rule | None) -> Path:
    return folder / f"{kind}.{rule}.faiss"


def read_faiss(folder: Path, head: Head) -> Any:
    """Return the FAISS index that the head names, or None."""
    if head.kind == "exact":
        return None
    file, faiss = faiss_file(folder, head.kind, head.rule), import_faiss()
    try:
        return faiss.read_index(str(file))
    except RuntimeError as error:
        raise ModelFolderError(f"The index is damaged: cannot read {file}. Build it again, with --restart.") from error


def find_neighbors(faiss_index: Any, head: Head, z: Tensor, k: int) -> Tensor:  # (n, p) -> (n, h)
    """Return the indices of h candidates, a multiple of k, among which the k best should be; −1 for none."""
    import_faiss().ParameterSpace().set_index_parameter(faiss_index, PARAMETERS[head.kind], head.effort)
    hits = min(k * HITS[head.kind] + 16, head.count)
    return torch.from_numpy(faiss_index.search(_as_array(as_queries(z, head.rule or "cosine")), hits)[1])


def build_faiss(arrays: Arrays, kind: str, rule: Rule, say: Say) -> Any:
    """Return a FAISS index of all candidates."""
    made, n = _train(arrays, kind, rule, say), len(arrays.psi)
    while made.ntotal < n:
        made.add(_points(arrays, slice(made.ntotal, made.ntotal + CHUNK), rule))
        say(f"{kind}: {made.ntotal:,} of {n:,} candidates added")
    return made


def _train(arrays: Arrays, kind: str, rule: Rule, say: Say) -> Any:
    """Return an empty FAISS index that has learned what it needs from a sample of the candidates."""
    faiss, (n, p) = import_faiss(), arrays.psi.shape
    if kind == "hnsw":
        made = faiss.index_factory(p + 1, f"HNSW{LINKS},{'SQfp16' if arrays.psi.dtype == torch.float16 else 'Flat'}")
        faiss.ParameterSpace().set_index_parameter(made, "efConstruction", EF_CONSTRUCTION)
        made.train(_points(arrays, slice(0, 1), rule))
        return made
    if n < FEWEST:
        raise InputError(f"An ivfpq index needs at least {FEWEST:,} candidates. Got {n:,}. Choose exact or hnsw.")
    cells = min(int(4 * n**0.5), n // FEWEST_PER_CELL)
    sample = np.sort(np.random.default_rng(0).permutation(n)[: max(PER_CELL * cells, FEWEST)])
    say(f"ivfpq: learning {cells:,} cells from {len(sample):,} candidates")
    width = p + 1 + (p + 1) % 2  # even, for codes of two coordinates each
    made = faiss.index_factory(p + 1, f"Pad{width},IVF{cells},PQ{width // 2}np")
    made.train(_points(arrays, torch.from_numpy(sample), rule))
    return made


def _points(arrays: Arrays, where: slice | Tensor, rule: Rule) -> np.ndarray:  # (n, p + 1)
    return _as_array(as_points(arrays.psi[where].double(), arrays.diag[where], rule))


def _as_array(rows: Tensor) -> np.ndarray:
    return rows.float().contiguous().numpy()
