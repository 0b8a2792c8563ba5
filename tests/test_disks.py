"""Full disks, two writers, and clocks that jump: the old state or the new one, and one sentence."""

import os
import shutil
import subprocess
import threading
import time

import pytest
from typer.testing import CliRunner

import dsokr.files
from dsokr.commands.app import app
from dsokr.commands.predictor import Predictor
from dsokr.errors import DSOKRError, InputError
from dsokr.files import replace_file, replace_folder
from dsokr.index import CandidateIndex
from test_faults import CELLS, ask, embed, faults, fitted, inject
from test_kills import ADDED, GONE, _update, list_arguments, read_texts

SIZE = 2**22  # bytes of the disk


@pytest.fixture
def disk(tmp_path):
    """A small disk in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk, left):
    """Fill the disk up, but for some bytes."""
    facts = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(max(facts.f_bavail * facts.f_frsize - left, 0)))


def try_until_it_fits(disk, work, check, tally, step=2**14, start=0):
    """Call a function with ever more room; after every failure, and at the end, call the check."""
    failed = 0
    for left in range(start, SIZE, step):
        fill(disk, left)
        tally("full disks")
        try:
            work()
            break
        except (DSOKRError, OSError) as error:
            assert "No space left" in str(error) or "cannot be written" in str(error), error
            failed += 1
            check()
        finally:
            (disk / "filler").unlink()
    assert failed >= 2
    check()


def test_saving(disk, tally):
    old, new = fitted(["aab", "abb", "bbb"]), fitted(["ba", "bab"])
    old.save(disk / "model")
    answers = [each.predict(CELLS) for each in (old, new)]

    def check():
        assert Predictor.load(disk / "model").predict(CELLS) in answers
        assert {path.name for path in disk.iterdir()} <= {"model", "filler"}

    try_until_it_fits(disk, lambda: new.save(disk / "model"), check, tally, step=2**12)
    assert Predictor.load(disk / "model").predict(CELLS) == answers[1]


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_embedding(disk, tmp_path, tally, kind):
    """What fits is kept; the same call again goes on from there."""
    if kind == "hnsw":
        pytest.importorskip("faiss")
    expected, folder = ask(embed(tmp_path / "whole")), disk / "index"
    try_until_it_fits(disk, lambda: embed(folder, kind=kind), lambda: None, tally)
    assert ask(CandidateIndex.open(folder)) == expected and CandidateIndex.open(folder).head.verify(folder)
    assert not list(folder.glob(".*"))


def test_updating(disk, tally):
    embed(disk / "index")
    before = read_texts(disk / "index")
    states = before, before - set(GONE) | set(ADDED)

    def check():
        assert read_texts(disk / "index") in states

    try_until_it_fits(disk, lambda: _update(disk / "index"), check, tally, step=2**12)
    assert read_texts(disk / "index") == states[1]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fitting(disk, tmp_path, tally):
    out = disk / "model"
    for left in (0, 2**13, 2**15):
        fill(disk, left)
        tally("full disks")
        done = CliRunner().invoke(app, list_arguments(tmp_path, out))
        (disk / "filler").unlink()
        assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.output
        assert done.stderr.count("dsokr: ") == 1 and "No space left" in done.stderr and not out.exists()
    assert CliRunner().invoke(app, list_arguments(tmp_path, out)).exit_code == 0
    Predictor.load(out, "cpu")
    assert os.listdir(disk) == ["model"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_faults_of_a_fit(tmp_path, tally, thorough):
    """The old model or the new one; one sentence, no traceback; and the same command then succeeds."""
    out, said = tmp_path / "model", []
    arguments = [*list_arguments(tmp_path, out), "--seed", "1"]

    def write():
        said.append(CliRunner().invoke(app, arguments))

    cases = faults(write, 80, None if thorough else 5)
    new = Predictor.load(out, "cpu").coefficients(["1 2"])
    assert CliRunner().invoke(app, list_arguments(tmp_path, tmp_path / "old")).exit_code == 0
    old = Predictor.load(tmp_path / "old", "cpu").coefficients(["1 2"])
    assert not old.equal(new)
    for case in cases:
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "old", out)
        inject(write, *case)
        tally("faults injected")
        assert said[-1].exit_code in (0, 1, 130) and "Traceback" not in said[-1].output, (case, said[-1].output)
        assert isinstance(said[-1].exception, SystemExit | None), case
        found = Predictor.load(out, "cpu").coefficients(["1 2"])
        assert found.equal(new) or (said[-1].exit_code and found.equal(old)), case
        write()
        assert said[-1].exit_code == 0 and Predictor.load(out, "cpu").coefficients(["1 2"]).equal(new), case
        assert not list(tmp_path.glob(".*")), case


@pytest.mark.parametrize("work", [lambda folder: embed(folder, sort_by="mass"), _update], ids=["embed", "update"])
def test_two_writers_of_an_index(tmp_path, monkeypatch, work):
    """The second is told to wait, and changes nothing."""
    embed(tmp_path / "index")
    inside, go_on, add = threading.Event(), threading.Event(), dsokr.files.BlockSums.add

    def slow(sums, data):
        inside.set()
        assert go_on.wait(30)
        add(sums, data)

    monkeypatch.setattr(dsokr.files.BlockSums, "add", slow)
    first = threading.Thread(target=work, args=(tmp_path / "index",))
    first.start()
    try:
        assert inside.wait(30)
        for second in (lambda: embed(tmp_path / "index", kind="exact"), lambda: _update(tmp_path / "index")):
            with pytest.raises(InputError, match="is being written by another `dsokr"):
                second()
    finally:
        go_on.set()
        first.join(30)
    assert read_texts(tmp_path / "index") and CandidateIndex.open(tmp_path / "index").head.verify(tmp_path / "index")


@pytest.mark.parametrize("jump", [10 * dsokr.files.STALE, -10 * dsokr.files.STALE])
def test_a_clock_that_jumps_takes_no_draft_away(tmp_path, monkeypatch, jump):
    now = time.time
    folder, file = tmp_path / "folder", tmp_path / "file"
    with replace_folder(folder) as draft, replace_file(file) as other:
        (draft / "a").write_text("first")
        other.write_text("first")
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        with replace_folder(folder) as further, replace_file(file) as another:
            (further / "a").write_text("second")
            another.write_text("second")
        assert (folder / "a").read_text() == file.read_text() == "second"
    assert (folder / "a").read_text() == file.read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_drafts_left_over_from_a_crash_are_removed(tmp_path):
    for name in (".part-0123-folder", ".part-0123-file"):
        (tmp_path / name).mkdir() if name.endswith("folder") else (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    with replace_folder(tmp_path / "folder"), replace_file(tmp_path / "file"):
        pass
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
