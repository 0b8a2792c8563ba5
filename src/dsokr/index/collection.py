"""Write an index into a collection of Milvus, and change it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dsokr.errors import InputError
from dsokr.index.build import (
    COMMIT_SECONDS,
    NOTHING,
    Block,
    Blocks,
    BuildOptions,
    Report,
    Say,
    advance,
    check_block,
    codes_of,
    write_blocks,
)
from dsokr.index.candidates import check_same
from dsokr.index.columns import as_hashes, as_numbers
from dsokr.index.milvus import LONGEST, ROWS, Collection, MilvusIndex, rules_of
from dsokr.index.stored import Head
from dsokr.rules import as_points

DROPS = 100_000  # candidates deleted at once: the property that lists them has to stay small


class CollectionWriter:
    """Appends blocks to a collection; :meth:`finish` publishes them. Unpublished rows are removed first."""

    def __init__(self, index: MilvusIndex):
        self.index, self.collection, self.head = index, index.collection, index.head
        self.last_commit = time.monotonic()
        self.collection.call("delete", filter=f"id >= {self.head.count}")
        if index.dropped:
            self.collection.call("delete", ids=index.dropped)

    def add(self, block: Block) -> None:
        rows = list(self._list_rows(block))
        for start in range(0, len(rows), ROWS):
            self.collection.call("upsert", rows[start : start + ROWS])
        self.head = advance(self.head, block)
        if not self.head.finished and time.monotonic() - self.last_commit > COMMIT_SECONDS:
            self.commit()

    def _list_rows(self, block: Block) -> Iterator[dict[str, Any]]:
        psi, diag = check_block(block, self.head.dim, self.head.dtype)
        cells = [block.cells[name] for name in self.head.columns]
        points = {rule: as_points(psi.double(), diag, rule).float().numpy() for rule in rules_of(self.head)}
        names, codes = block.names or [""] * len(psi), codes_of(block)
        numbers, hashes = map(as_numbers, cells), map(as_hashes, cells)
        columns = {f"n{at}": column for at, column in enumerate(numbers)}
        columns |= {f"h{at}": column for at, column in enumerate(hashes)}
        for i, line in enumerate(zip(block.texts, names, *cells, strict=True)):
            text = json.dumps(line, ensure_ascii=False)
            if len(text.encode()) > LONGEST:
                raise InputError(f"Candidate {line[0]:.40}… is too long for Milvus, with its name and columns.")
            values = {name: None if np.isnan(column[i]) else column[i].item() for name, column in columns.items()}
            vectors = {rule: rows[i] for rule, rows in points.items()}
            fixed = {"id": self.head.count + i, "code": int(codes[i]), "line": text, "diag": diag[i].item()}
            yield fixed | values | vectors

    def commit(self) -> None:
        self.collection.write_head(self.head)
        self.last_commit = time.monotonic()

    def finish(self, gone: Sequence[int] = ()) -> None:
        """Publish the added candidates, and delete those at these positions."""
        if len(gone) > DROPS:
            raise InputError(f"In Milvus at most {DROPS:,} candidates are replaced or deleted at once. Split the list.")
        if self.head.finished and self.collection.read_head() != (self.index.head, self.index.dropped):
            raise InputError(f"{self.collection.address} was changed by another process at the same time. Try again.")
        version, deleted = self.head.version + self.head.finished, self.head.deleted + len(gone)
        self.head = replace(self.head, finished=True, version=version, deleted=deleted)
        self.collection.call("flush")
        self.collection.write_head(self.head, gone)
        if gone:
            self.collection.call("delete", ids=list(gone))
            self.collection.write_head(self.head)


def build_collection(
    address: str | Path, new: Head, blocks: Blocks, options: BuildOptions, say: Say, progress: Report, restart: bool
) -> MilvusIndex:
    """Write an index into Milvus, see :func:`dsokr.index.build`. ``new`` is its head, without candidates."""
    if options.kind == "ivfpq" or options.dtype != "float32" or options.sort_by is not None:
        raise InputError("In Milvus an index is exact or hnsw, has the dtype float32, and is not sorted.")
    collection = Collection(address)
    there = collection.read_head()
    if there and (restart or not there[0].count):
        collection.call("drop_collection")
        there = None
    if there is None:
        there = replace(new, kind=options.kind or "exact", rule=options.rule), []
        collection.create(there[0])
    head, dropped = there
    wanted = replace(new, kind=options.kind or head.kind, rule=options.rule or head.rule)
    place = f"{collection.address} holds an index"
    check_same(head, wanted, ("model", "source", "kind", "rule"), place, "Discard it with --restart.")
    if not head.finished:
        collection.call("load_collection")
        writer = CollectionWriter(MilvusIndex(collection, head, dropped))
        try:
            write_blocks(writer, collection.address, blocks, say, progress)
        finally:
            writer.commit()
        if not writer.head.count:
            collection.call("drop_collection")
            raise InputError(NOTHING)
        writer.finish()
    return MilvusIndex.open(collection, new.model)


def change_collection(address: str | Path, model: str) -> AbstractContextManager[CollectionWriter]:
    """Return a writer of changes. After an error nothing has to be undone: readers do not see unpublished rows."""
    return nullcontext(CollectionWriter(MilvusIndex.open(address, model)))
