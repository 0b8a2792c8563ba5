"""Atomic updates of a finished index in a folder: readers see the old version or the new one.

New candidates are appended, deleted ones are listed in a separate file, and a FAISS index with the new candidates is
written beside the old one. The new head, written last, names these files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from dsokr.files import lock_folder, replace_file, sum_file
from dsokr.index.build import BuildOptions, Say, Writer, add_points, rewrite, tidy, write_faiss
from dsokr.index.candidates import CandidateIndex, import_faiss
from dsokr.index.stored import FILES, Head, map_arrays

LATE = 0.25  # an index is rewritten once this share of it is deleted, or unsorted in a sorted index


@contextmanager
def change_folder(folder: Path, model: str, say: Say) -> Iterator[FolderChange]:
    """Yield a writer of changes to the index in a folder. An error undoes what was written."""
    Head.read_from(folder)  # before the folder is created
    with lock_folder(folder, "dsokr update"):
        index = CandidateIndex.open(folder, model)
        try:
            with ExitStack() as stack:
                yield FolderChange(index, folder, stack, say)
        except BaseException:
            head = Head.read_from(folder)
            for name in FILES:
                os.truncate(head.path(folder, name), head.sizes[name])
            tidy(folder, head)
            raise


class FolderChange(Writer):
    """Appends blocks to a finished index; :meth:`finish` makes them part of it."""

    def __init__(self, index: CandidateIndex, folder: Path, stack: ExitStack, say: Say):
        super().__init__(folder, index.head, stack)
        self.index, self.stack, self.say = index, stack, say

    def finish(self, gone: Sequence[int]) -> None:
        """Publish the added candidates, and delete those at these positions."""
        self.stack.close()
        old, head = self.index.head, replace(self.head, version=self.index.head.version + 1)
        sizes = {name: size for name, size in head.sizes.items() if name != old.deleted_file}
        positions = np.union1d(self.index.deleted.numpy(), np.array(gone, np.int64))
        head = replace(head, deleted=len(positions), sizes=sizes | {head.deleted_file: 8 * len(positions)})
        with replace_file(head.path(self.folder, head.deleted_file)) as draft:
            draft.write_bytes(positions.tobytes())
        written = [head.deleted_file]
        if self.index.faiss_index is not None:
            add_points(self.index.faiss_index, map_arrays(self.folder, head), head.rule or "cosine", self.say)
            with replace_file(self.folder / head.faiss_file) as draft:
                import_faiss().write_index(self.index.faiss_index, str(draft))
            written.append(head.faiss_file)
        head = replace(head, sums=head.sums | {name: sum_file(head.path(self.folder, name)) for name in written})
        head.write(self.folder)
        tidy(self.folder, head)
        late = head.deleted + (head.count - head.main if head.sorted_by else 0)
        if late > LATE * head.count:
            self.say("Rewriting the index, as many candidates have changed.")
            head = rewrite(self.folder, head, head.sorted_by)
            write_faiss(self.folder, head, BuildOptions(recall=head.recall or 0.95), self.say)
