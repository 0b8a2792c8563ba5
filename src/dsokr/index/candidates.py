"""An index of candidates on disk, or in memory, and how it is searched. :mod:`dsokr.index.stored` lists its files.

Search is exact, or for millions of candidates approximate by FAISS: under every decoding rule the best candidates are
nearest neighbours, see :func:`dsokr.rules.as_points`. A FAISS index serves one rule. Its hits are scored again,
exactly, from the stored coordinates. With conditions on columns, all candidates that meet them are scored. In an index
that is sorted by a column, the candidates within a window of it are contiguous.

Later candidates are appended, and deleted ones stay in the files; see :mod:`dsokr.index.living`. The head is written
last, so that readers of an older head keep using the older version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsokr import files
from dsokr.decoders.pools import Coordinates, Pool, positions_of, size_of, top_of_pools
from dsokr.decoders.scan import QUERIES, Ranking, Scan, multiply_pairs
from dsokr.errors import InputError, ModelFolderError, check_k, import_extra
from dsokr.index.columns import Columns, Condition, as_hashes, check_column
from dsokr.index.stored import CODES, COLUMNS, Arrays, Head, map_arrays, map_deleted
from dsokr.rules import Rule, affine, as_queries, constant, largest

CHECKED = 2**26  # bytes of an index up to which all its checksums are verified when it is opened
LARGEST = 1e12  # coordinates above this are refused: no model predicts them
SCORES = 2**20  # computed at once in an exact search,
NUMBERS = 2**24  # from at most this many coordinates of candidates
PARAMETERS = {"hnsw": "efSearch", "ivfpq": "nprobe"}  # the effort of a FAISS search
HITS = {"hnsw": 2, "ivfpq": 20}  # times k: how many candidates FAISS finds, to be scored again


class CandidateIndex:
    """Candidates by their coordinates ψ̃(y), with k(y, y), texts and names, mapped from a folder or in memory.

    >>> basis_dim, generator = 3, torch.Generator().manual_seed(0)
    >>> psi = torch.randn(5, basis_dim, generator=generator)
    >>> index = CandidateIndex.in_memory(["C", "CC", "CCC", "CCO", "CO"], psi, psi.square().sum(1))
    >>> best = index.search(psi[3:4], k=2, rule="projected")
    >>> index.texts[best.indices[0, 0]]
    'CCO'
    """

    def __init__(self, head: Head, arrays: Arrays, faiss_index: Any = None, folder: Path | None = None):
        self.head, self.arrays, self.faiss_index, self.folder = head, arrays, faiss_index, folder
        self.texts, self.names, self.cells = arrays[3:6]  # as in the library; names may be empty strings
        self.deleted = torch.empty(0, dtype=torch.long) if folder is None else map_deleted(folder, head)

    @classmethod
    def open(cls, folder: str | Path, model: str | None = None) -> CandidateIndex:
        """Map a folder written by :func:`build`. ``model`` is the fingerprint of the basis that will search it.

        All checksums are verified now if the index has at most 64 MiB; otherwise each block's, before it is first read.
        """
        folder = Path(folder)
        while True:
            head = Head.read_from(folder)
            try:
                check_usable(f"The index {folder}", head.finished, head.model, model)
                arrays = map_arrays(folder, head)
                if sum(path.stat().st_size for path in head.list_files(folder) if path.exists()) <= CHECKED:
                    head.verify(folder)
                return cls(head, arrays, read_faiss(folder, head), folder)
            except (ModelFolderError, OSError):
                if Head.read_from(folder) == head:  # otherwise an update replaced the files: open them again
                    raise

    def refreshed(self) -> CandidateIndex:
        """Return the newest version of this index; the same object if nothing changed."""
        if self.folder is None or Head.read_from(self.folder) == self.head:
            return self
        return CandidateIndex.open(self.folder, self.head.model)

    @classmethod
    def in_memory(
        cls,
        texts: Sequence[str],
        psi: Tensor,
        diag: Tensor,
        names: Sequence[str] | None = None,
        model: str = "",
        cells: Mapping[str, Sequence[str]] | None = None,
    ) -> CandidateIndex:
        """Return an index of candidates with the given ψ̃(y) (n, p) and k(y, y) (n,). Nothing is written.

        ``cells`` are those of further columns, by name.
        """
        rows, diag = psi.detach().cpu().float(), diag.detach().cpu().double()
        parts = rows.split(max(1, NUMBERS // 8 // rows.shape[1]))  # a double-precision copy of all would be large
        squared = torch.cat([part.double().square_().sum(dim=1) for part in parts])
        named = [""] * len(texts) if names is None else list(names)
        columns, codes = Columns.of(cells or {}), as_hashes(texts)
        arrays = Arrays(rows, diag, squared, list(texts), named, cells or {}, columns, codes)
        return cls(Head(model, rows.shape[1], count=len(rows), finished=True, columns=list(cells or {})), arrays)

    def __len__(self) -> int:
        return self.head.count - self.head.deleted

    def search(self, z: Tensor, k: int, rule: Rule, conditions: Sequence[Condition] = ()) -> Ranking:
        """Find the k best candidates for every row of z (n, p), of tied ones the first.

        The search is exact unless a FAISS index was built for this rule. It is also exact where FAISS finds fewer
        than k candidates or k is a large part of all, and with conditions. Where fewer than k candidates meet these,
        positions are −1 and scores −∞.
        """
        z, k = check_coordinates(z, self.head.dim), min(check_k(k), len(self))
        if conditions:
            self.arrays.check(parts=COLUMNS)
            pools = [self._without_deleted(pool) for pool in self.arrays.columns.find(conditions)]
            for pool in pools:
                self.arrays.check(pool)
            return Ranking(*top_of_pools(z, Coordinates(*self.arrays[:3]), pools, k, rule))
        if self.faiss_index is None or rule != self.head.rule or 4 * k >= len(self):
            return self.search_exactly(z, k, rule)
        found = find_neighbors(self.faiss_index, self.head, z, k)
        found = found.masked_fill_(torch.isin(found, self.deleted), -1).sort(dim=1).values  # of tied ones, the first
        scores = self._score(z, found.clamp(min=0), rule).masked_fill_(found < 0, -torch.inf)
        scores, columns = largest(scores, k)
        indices, few = found.gather(1, columns), scores[:, -1].isneginf()
        if few.any():
            indices[few], scores[few] = self.search_exactly(z[few], k, rule)
        return Ranking(indices, scores)

    def search_exactly(self, z: Tensor, k: int, rule: Rule) -> Ranking:
        """Score every candidate and return the k best for every row of z."""
        z = check_coordinates(z, self.head.dim)
        scan, block = Scan(z, k, rule), scan_size(*z.shape)
        for start in range(0, self.head.count, block):
            rows = self._without_deleted(slice(start, min(start + block, self.head.count)))
            if size_of(rows):
                self.arrays.check(rows)
                psi, diag, squared = (part[rows] for part in self.arrays[:3])
                scan.add(psi, diag, squared)
        found = scan.ranking()
        before = self.deleted - torch.arange(len(self.deleted))  # remaining candidates before each deleted one
        return found._replace(indices=found.indices + torch.searchsorted(before, found.indices, right=True))

    def _without_deleted(self, pool: Pool) -> Pool:
        """The candidates of a pool, in ascending order, that are not deleted."""
        if isinstance(pool, slice):
            ends = torch.searchsorted(self.deleted, torch.tensor([pool.start, pool.stop])).tolist()
            if ends[0] == ends[1]:
                return pool
        at = positions_of(pool)
        return at[~torch.isin(at, self.deleted)] if len(self.deleted) else at

    def find_codes(self, codes: np.ndarray) -> list[tuple[int, int]]:  # (m,)
        """Positions and codes of the candidates with one of these codes."""
        wanted, found = np.unique(codes), [np.empty(0, np.int64)]
        self.arrays.check(parts=CODES)
        for start in range(0, self.head.count if len(wanted) else 0, SCORES):
            some = self.arrays.codes[start : start + SCORES]
            at = np.searchsorted(wanted, some).clip(max=len(wanted) - 1)
            found.append(start + np.flatnonzero(wanted[at] == some))
        there = np.setdiff1d(np.concatenate(found), self.deleted.numpy(), assume_unique=True)
        return list(zip(there.tolist(), self.arrays.codes[there].tolist(), strict=True))

    def kinds(self) -> dict[str, str]:
        """Whether most cells of a column are numbers or other texts, by name."""
        self.arrays.check(parts=COLUMNS)
        return self.arrays.columns.kinds()

    def find_cells(self, column: str) -> Sequence[str]:
        """The cells of a column, in the order of the candidates."""
        check_column(column, self.head.columns)
        return self.cells[column]

    def cosines(self, z: Tensor, indices: Tensor) -> Tensor:  # (n, k)
        """Cosines of z and the given candidates' coordinates: from −1 to 1, and 0 where either is zero."""
        return self._score(F.normalize(check_coordinates(z, self.head.dim), dim=1), indices, "cosine")

    def _score(self, z: Tensor, indices: Tensor, rule: Rule) -> Tensor:  # (n, p), (n, h) -> (n, h)
        """Score the candidates at ``indices`` in double precision."""
        self.arrays.check(indices)
        rows = torch.arange(len(z)).repeat_interleave(indices.shape[1])
        products = multiply_pairs(z, self.arrays.psi, rows, indices.flatten()).reshape(indices.shape)
        factor, offset = affine(rule, self.arrays.diag[indices], self.arrays.squared[indices])
        return products * factor + offset + constant(rule, z)[:, None]


def check_usable(place: str, is_finished: bool, built_for: str, model: str | None) -> None:
    """Check that an index or a folder of shards is finished and, unless ``model`` is None, was built for it."""
    if not is_finished:
        raise ModelFolderError(f"{place} is unfinished. Run the command that builds it again to resume.")
    if model not in (None, built_for):
        raise InputError(f"{place} was built for another model. Embed the candidates again with this one.")


def check_same(found: Any, wanted: Any, parts: Sequence[str], what: str, remedy: str) -> None:
    """Check that an index or a folder of shards, finished or not, is for the same model, library and so on."""
    for part in parts:
        if getattr(found, part) != getattr(wanted, part):
            raise InputError(f"{what} of another {part.replace('source', 'library')}. {remedy}")


def scan_size(n: int, dim: int) -> int:
    """How many candidates an exact search scores at once for n rows of coordinates."""
    return max(1, min(SCORES // max(1, min(n, QUERIES)), NUMBERS // dim))


def check_coordinates(z: Tensor, dim: int) -> Tensor:  # (n, dim)
    """Return coordinates in double precision, if they have the right shape and size."""
    if z.ndim != 2 or z.shape[1] != dim:
        raise InputError(f"Coordinates must have shape (n, {dim}), as the index. Got {tuple(z.shape)}.")
    z = z.detach().cpu().double()
    usable = (z.abs() <= LARGEST).all(dim=1)
    if not usable.all():
        row = int((~usable).nonzero()[0])
        raise InputError(f"Coordinates must be finite and at most {LARGEST:g} in size. Row {row} is not.")
    return z


def import_faiss() -> Any:
    return import_extra("faiss", "search")


def read_faiss(folder: Path, head: Head) -> Any:
    """Return the FAISS index that the head names; None if there is none yet, as after an interrupted sort."""
    file = folder / head.faiss_file
    if file.name not in head.sums:
        return None
    faiss = import_faiss()
    with ThreadPoolExecutor(1) as beside:
        sums = beside.submit(files.sum_file, file)
        try:
            read = faiss.read_index(str(file))
        except (RuntimeError, MemoryError) as error:
            raise files.damaged(file) from error
        if sums.result() != head.sums[file.name] or (read.ntotal, read.d) != (head.count, head.dim + 1):
            raise files.damaged(file)
    return read


def find_neighbors(faiss_index: Any, head: Head, z: Tensor, k: int) -> Tensor:  # (n, p) -> (n, h)
    """Return the indices of h candidates, a multiple of k, among which the k best should be; −1 for none."""
    import_faiss().ParameterSpace().set_index_parameter(faiss_index, PARAMETERS[head.kind], head.effort)
    hits = min(k * HITS[head.kind] + 16, head.count)
    return torch.from_numpy(faiss_index.search(as_queries(z, head.rule or "cosine").float().numpy(), hits)[1])
