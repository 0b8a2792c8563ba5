"""One writer at a time, whatever happens to the one before."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dsokr.errors import InputError
from dsokr.files import LOCK, sole_writer

WRITER = """
import sys, time
from pathlib import Path
from dsokr.files import sole_writer
with sole_writer(Path(sys.argv[1]), "dsokr embed"):
    print("in", flush=True)
    time.sleep(60)
"""


def test_a_second_process_waits_for_the_end_of_the_first_even_a_violent_one(tmp_path):
    folder = tmp_path / "new" / "folder"
    first = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "in\n"
        said = rf"folder is being written by another `dsokr embed` \(process {first.pid}\). Wait for its end"
        with pytest.raises(InputError, match=said), sole_writer(folder, "dsokr embed"):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert (folder / LOCK).exists()  # nobody could remove it, and it holds nobody up
    with sole_writer(folder, "dsokr embed"):
        assert (folder / LOCK).read_text() == str(os.getpid())
    assert not folder.exists()


def test_never_two_at_once(tmp_path):
    """Also when the lock is removed and made anew by one while another waits for it."""
    inside, most, entered = [], [], []

    def write(name):
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            try:
                with sole_writer(tmp_path / "folder", "dsokr embed"):
                    inside.append(name)
                    most.append(len(inside))
                    time.sleep(0)
                    inside.remove(name)
                    entered.append(name)
            except InputError:
                pass

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(entered)) > 1 and set(most) == {1}


def test_an_error_inside_lets_go(tmp_path):
    with pytest.raises(RuntimeError, match="inside"), sole_writer(tmp_path, "dsokr fit"):
        (tmp_path / "kept").touch()
        raise RuntimeError("inside")
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    with sole_writer(tmp_path, "dsokr fit"):
        pass


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def cannot(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", cannot)
    with (
        pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\): start no other writer"),
        sole_writer(tmp_path, "dsokr fit"),
    ):
        pass
