"""One interface to indexes in folders and in Milvus collections, chosen by the address."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsokr.errors import InputError
from dsokr.index.build import Block, Blocks, BuildOptions, Report, Say, build_folder, codes_of
from dsokr.index.candidates import CandidateIndex
from dsokr.index.collection import build_collection, change_collection
from dsokr.index.living import change_folder
from dsokr.index.milvus import MilvusIndex, is_milvus
from dsokr.index.stored import Head

Index = CandidateIndex | MilvusIndex
Address = str | Path


class Listed(NamedTuple):
    """Texts of candidates, and their codes; candidates with the same meaning have equal codes."""

    texts: Sequence[str]
    codes: np.ndarray  # (n,)


class Changes(NamedTuple):
    """How many candidates an update has changed."""

    added: int  # new ones
    replaced: int
    deleted: int
    missing: int  # to be deleted, but not in the index


def is_index(address: Address) -> bool:
    """Whether this is the address of an index rather than that of a file."""
    return is_milvus(address) or Path(address).is_dir()


def open_index(address: Address, model: str | None = None) -> Index:
    """Open an index: of a folder, of ``milvus://HOST:PORT/COLLECTION``, or of a file ``.db`` of Milvus Lite."""
    return MilvusIndex.open(address, model) if is_milvus(address) else CandidateIndex.open(address, model)


def build(
    address: Address,
    blocks: Blocks,
    *,
    model: str,
    dim: int,
    source: str = "",
    columns: Sequence[str] = (),
    options: BuildOptions = BuildOptions(),  # noqa: B008 # frozen, so sharing it is harmless
    say: Say = lambda line: None,
    progress: Report = lambda now: None,
    restart: bool = False,
) -> Any:
    """Write an index of the candidates that ``blocks(start)`` yields, beginning at row ``start`` of the library.

    ``model`` is the fingerprint of the basis and ``source`` identifies the library: an interrupted build resumes only
    with the same two. A finished index keeps its candidates and, in a folder, gets another FAISS index if the options
    ask for one. ``columns`` are those that all blocks have. ``restart`` discards an index at the address, finished or
    not.
    """
    new = Head(model, dim, options.dtype, source, columns=list(columns))
    write = build_collection if is_milvus(address) else build_folder
    return write(address, new, blocks, options, say, progress, restart)


def update(
    address: Address,
    added: Iterable[Block],
    deleted: Iterable[Listed] = (),
    *,
    model: str,
    key: Callable[[str], str] = str,
    say: Say = lambda line: None,
) -> Changes:
    """Delete candidates from a finished index, and add others; one that is already there is replaced.

    The update is atomic: readers see the old or the new version, and after an error the index is unchanged. Candidates
    are the same if their texts have equal keys.
    """
    change = change_collection(address, model) if is_milvus(address) else change_folder(Path(address), model, say)
    with change as writer:
        gone, replaced = set[int](), set[int]()
        listed = count = 0
        for some in deleted:
            listed += len(some.texts)
            gone |= find_same(writer.index, some, key)
        for block in added:
            count += len(block.texts)
            replaced |= find_same(writer.index, Listed(block.texts, codes_of(block)), key)
            writer.add(block)
        removed = gone | replaced
        if len(writer.index) + count == len(removed):
            raise InputError("This would delete all candidates. An index has at least one.")
        if count or removed:
            writer.finish(sorted(removed))
    return Changes(count - len(replaced), len(replaced), len(gone - replaced), listed - len(gone))


def find_same(index: Index, listed: Listed, key: Callable[[str], str]) -> set[int]:
    """Return the positions of candidates that mean the same as a listed one."""
    texts = defaultdict(list)
    for text, code in zip(listed.texts, listed.codes.tolist(), strict=True):
        texts[code].append(text)
    return {at for at, code in index.find_codes(listed.codes) if key(index.texts[at]) in map(key, texts[code])}
