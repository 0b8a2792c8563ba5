"""Files that appear whole or not at all, one writer at a time, checksums and fingerprints."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dsokr import files
from dsokr.errors import InputError
from dsokr.files import (
    LOCK,
    check_place,
    checksum,
    fingerprint,
    lock_folder,
    replace_file,
    replace_folder,
    write_json,
)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


class TestReplace:
    @pytest.mark.parametrize("old", [None, "old"])
    def test_a_file(self, tmp_path, old):
        path = tmp_path / "new folder" / "file"
        if old is not None:
            path.parent.mkdir()
            path.write_text(old)
        with replace_file(path) as draft:
            draft.write_text("new")
            assert path.exists() == (old is not None) and draft.parent == path.parent
        assert path.read_text() == "new" and names(path.parent) == ["file"]

    @pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
    def test_an_error_keeps_the_old_file(self, tmp_path, error):
        (tmp_path / "file").write_text("old")
        with pytest.raises(error), replace_file(tmp_path / "file") as draft:
            draft.write_text("half")
            raise error
        assert (tmp_path / "file").read_text() == "old" and names(tmp_path) == ["file"]

    def test_a_full_disk(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with (
            pytest.raises(InputError, match="file cannot be written: No space left on device."),
            replace_file(tmp_path / "file") as draft,
        ):
            draft.write_text("new")
        assert not names(tmp_path)

    @pytest.mark.parametrize("old", [False, True])
    def test_a_folder(self, tmp_path, old):
        folder = tmp_path / "a" / "model"
        if old:
            folder.mkdir(parents=True)
            (folder / "old").touch()
        with replace_folder(folder) as draft:
            (draft / "inner").mkdir()
            (draft / "inner" / "new").touch(0o600)
            assert not old or names(folder) == ["old"]
        assert names(folder) == ["inner"] and names(folder.parent) == ["model"]
        assert (folder / "inner" / "new").stat().st_mode & 0o777 == 0o644 and folder.stat().st_mode & 0o777 == 0o755

    def test_an_error_keeps_the_old_folder(self, tmp_path):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "old").touch()
        with pytest.raises(KeyboardInterrupt), replace_folder(tmp_path / "model") as draft:
            (draft / "half").touch()
            raise KeyboardInterrupt
        assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["old"]

    def test_links_stay_links(self, tmp_path):
        for name in ("file", "folder"):
            (tmp_path / f"link to {name}").symlink_to(tmp_path / name)
        for old in (False, True):
            with replace_file(tmp_path / "link to file") as draft:
                draft.write_text(f"new {old}")
            with replace_folder(tmp_path / "link to folder") as draft:
                (draft / f"new {old}").touch()
        assert (tmp_path / "file").read_text() == "new True" and names(tmp_path / "folder") == ["new True"]
        assert names(tmp_path) == ["file", "folder", "link to file", "link to folder"]
        assert (tmp_path / "link to file").is_symlink() and (tmp_path / "link to folder").is_symlink()

    def test_everything_is_synced_before_it_takes_its_place(self, tmp_path, monkeypatch):
        (tmp_path / "model").mkdir()
        done, sync, exchange = [], files.sync, files._exchange
        monkeypatch.setattr(files, "sync", lambda path: (done.append(path.name), sync(path)))
        monkeypatch.setattr(files, "_exchange", lambda *paths: (done.append("exchange"), exchange(*paths)))
        with replace_folder(tmp_path / "model") as draft:
            (draft / "inner").mkdir()
            (draft / "inner" / "new").touch()
        assert done == ["inner", "new", draft.name, "exchange", tmp_path.name]

    def test_the_place_of_a_folder_is_never_empty(self, tmp_path, monkeypatch):
        (tmp_path / "model").mkdir()
        monkeypatch.setattr(os, "replace", None)  # not used where the system can exchange
        if sys.platform == "linux":
            with replace_folder(tmp_path / "model") as draft:
                (draft / "new").touch()
            assert names(tmp_path / "model") == ["new"]

    @pytest.mark.parametrize("fails", [False, True])
    def test_systems_that_cannot_exchange(self, tmp_path, monkeypatch, fails):
        monkeypatch.setattr(sys, "platform", "other")
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "old").touch()
        move, moved = os.replace, []

        def replace(*paths):
            moved.append(paths)
            if fails and len(moved) == 2:
                raise OSError("no")
            move(*paths)

        monkeypatch.setattr(os, "replace", replace)
        with suppress(InputError), replace_folder(tmp_path / "model") as draft:
            (draft / "new").touch()
        assert names(tmp_path / "model") == (["old"] if fails else ["new"]) and names(tmp_path) == ["model"]

    def test_what_a_crash_between_two_renames_left_is_put_back(self, tmp_path):
        (tmp_path / ".old-12345678-model").mkdir()
        (tmp_path / ".old-12345678-model" / "old").touch()
        with pytest.raises(KeyboardInterrupt), replace_folder(tmp_path / "model"):
            raise KeyboardInterrupt
        assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["old"]

    def test_drafts_of_crashes_are_removed_and_those_of_others_are_not(self, tmp_path):
        for name in (".part-1-file", ".part-2-file", ".part-3-file [x]"):
            (tmp_path / name).touch()
        (tmp_path / ".part-4-file").mkdir()
        for name in (".part-1-file", ".part-3-file [x]", ".part-4-file"):
            os.utime(tmp_path / name, (0, 0))
        with replace_file(tmp_path / "file") as first, replace_file(tmp_path / "file") as second:
            assert first != second
            first.write_text("first")
            second.write_text("second")
        assert names(tmp_path) == [".part-2-file", ".part-3-file [x]", "file"]
        assert (tmp_path / "file").read_text() == "first"  # the block that ended last

    def test_json(self, tmp_path):
        write_json(tmp_path / "facts.json", {"ψ": [1, None]})
        assert json.loads((tmp_path / "facts.json").read_text("utf-8")) == {"ψ": [1, None]}
        assert "ψ" in (tmp_path / "facts.json").read_text("utf-8")
        with pytest.raises(TypeError):
            write_json(tmp_path / "facts.json", {"a": object()})
        assert json.loads((tmp_path / "facts.json").read_text("utf-8")) == {"ψ": [1, None]}


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    check_place(tmp_path / "new" / "folder" / "file")
    with pytest.raises(InputError, match="new cannot be written: .*file is not a folder"):
        check_place(tmp_path / "file" / "new")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="cannot be written: the folder .* is read-only"):
        check_place(tmp_path / "new")


WRITER = """
import sys, time
from pathlib import Path
from dsokr.files import lock_folder
with lock_folder(Path(sys.argv[1]), "dsokr embed"):
    print("in", flush=True)
    time.sleep(60)
"""


class TestLock:
    def test_a_second_process_is_refused_until_the_first_ends_even_violently(self, tmp_path):
        folder = tmp_path / "new" / "folder"
        first = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
        try:
            assert first.stdout.readline() == "in\n"
            said = "folder is being written by another `dsokr embed`. Wait until it ends"
            with pytest.raises(InputError, match=said), lock_folder(folder, "dsokr embed"):
                pass
            assert (folder / LOCK).exists()
        finally:
            first.send_signal(signal.SIGKILL)
            first.communicate()
        with lock_folder(folder, "dsokr embed"):  # what is left of the lock does not matter
            (folder / "file").touch()
        assert names(folder) == ["file"]

    def test_never_two_at_once(self, tmp_path):
        """Also when one removes the lock and creates it again while another waits for it."""
        inside, most, entered = [], [], []

        def write(name):
            while len(entered) < 200 or name not in entered:
                try:
                    with lock_folder(tmp_path / "folder", "dsokr embed"):
                        inside.append(name)
                        most.append(len(inside))
                        inside.remove(name)
                        entered.append(name)
                except InputError:
                    pass

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(entered) == set(range(4)) and set(most) == {1}

    def test_an_error_inside_lets_go(self, tmp_path):
        with pytest.raises(RuntimeError, match="inside"), lock_folder(tmp_path, "dsokr fit"):
            (tmp_path / "kept").touch()
            raise RuntimeError("inside")
        assert names(tmp_path) == ["kept"]
        with lock_folder(tmp_path, "dsokr fit"):
            pass

    def test_a_file_in_the_place_of_the_folder(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(FileExistsError), lock_folder(tmp_path / "file", "dsokr fit"):
            pass

    def test_an_empty_folder_does_not_stay(self, tmp_path):
        with lock_folder(tmp_path / "folder", "dsokr fit"):
            assert (tmp_path / "folder").is_dir()
        assert not (tmp_path / "folder").exists()


def test_checksum(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert checksum(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()


@dataclass
class Part:
    size: int
    cache: list = field(default_factory=list, compare=False)


@dataclass
class OtherPart:
    size: int


def function():
    pass


VALUES = [
    [np.array([[1, 2]])],
    [np.array([1, 2])],
    [torch.tensor([1.0, 2.5])],
    [torch.zeros(0)],
    [sp.csr_array([[1.0, 0, 2]])],
    [sp.csr_array([[1.0, 2, 0]])],
    [Part(1)],
    [Part(2)],
    [OtherPart(1)],
    [{"a": 1, "b": 2}],
    [{"a": 2, "b": 1}],
    [{"a": 1}],
    ["ab"],
    ["a", "b"],
    [["a", "b"]],
    [("a", ("b",))],
    [b"ab"],
    ["\ud800"],
    [1],
    ["1"],
    [None],
    [function],
    [Part],
]


class TestFingerprint:
    def test_different_values_differ(self):
        assert len({fingerprint(*parts) for parts in VALUES}) == len(VALUES)

    @pytest.mark.parametrize(
        ("a", "b"),
        [
            (torch.tensor([1.0, 2.0]), np.array([1, 2], dtype=">i4")),
            (np.array([0.0]), np.array([-0.0], dtype=np.float32)),
            (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
            (Part(1, cache=[1]), Part(1, cache=[2])),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
            (np.float64(0.5), 0.5),
            (("a", "b"), ["a", "b"]),
            (sp.csr_array([[0, 2.0]]), sp.csc_matrix([[0, 2]])),
            (object(), object()),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_equal_values_agree(self, a, b):
        assert fingerprint(a) == fingerprint(b)

    def test_large_arrays_are_hashed_in_blocks(self, monkeypatch):
        rows = np.random.default_rng(0).normal(size=(50, 7))
        whole = fingerprint(rows)
        monkeypatch.setattr("dsokr.files.BLOCK", 16)
        assert fingerprint(rows) == whole


def test_a_folder_that_changes_under_its_inode_is_read_again(tmp_path):
    """A folder that is replaced twice while it is read may get its old inode back; its time tells."""
    seen = []
    time.sleep(0.02)  # file systems count time in ticks

    def read() -> int:
        seen.append(len(list(tmp_path.iterdir())))
        if len(seen) == 1:
            (tmp_path / "new").touch()
        return seen[-1]

    assert files.read_whole(tmp_path, read) == 1 and seen == [0, 1]
