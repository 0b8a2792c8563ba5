"""Processes that are killed while they write: nothing is lost, and the same call again ends as if nothing had happened.

A fork server runs each victim, which kills itself with SIGKILL before or after one of the steps that change files.
"""

import multiprocessing
import os
import shutil
import signal
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dsokr.commands.app import app
from dsokr.commands.predictor import Predictor
from dsokr.index import Block, CandidateIndex, Listed, update
from dsokr.index.columns import as_hashes
from test_damage import PSI, N, Z
from test_faults import CELLS, STEPS, Disk, embed, fitted

builds = import_module("dsokr.index.build")
if "forkserver" not in multiprocessing.get_all_start_methods():
    pytest.skip("needs a fork server, to kill many processes in a short time", allow_module_level=True)
pytestmark = pytest.mark.slow  # half a minute; test_faults.py stops at the same steps, within one process
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(  # what test_faults imports; the fork server does not find the tests themselves
    ["dsokr.commands.guarantee", "dsokr.conformal", "dsokr.index", "dsokr.regressors.callbacks", "faiss", "pytest"]
)
KILLED = [*STEPS, (builds, "_points")]  # also in the middle of a graph


class Killed:
    """What a victim raises in place of a fault."""

    def __call__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def _be_victim(work, arguments, at, after, count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builds, "COMMIT_SECONDS", 0.0)
        patch.setattr(builds, "CHUNK", 64)
        disk = Disk(patch, at, Killed(), after, KILLED)
        work(*arguments)
    count.value = disk.count


def run_victim(work, *arguments, at=None, after=False):
    """Run a function in a process that dies at a step, if there are as many; return their number, 0 if it died."""
    count = CONTEXT.Value("i", 0)
    victim = CONTEXT.Process(target=_be_victim, args=(work, arguments, at, after, count))
    victim.start()
    victim.join(120)
    assert victim.exitcode in ([0] if at is None else [0, -signal.SIGKILL]), victim.exitcode
    return count.value


def kills(steps, most):
    """At most so many of the steps, evenly, each before or after it."""
    chosen = np.unique(np.linspace(1, steps, min(steps, most)).astype(int)).tolist()
    return [(at, bool(number % 2)) for number, at in enumerate(chosen)]


def read_files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("options", [{}, {"kind": "hnsw"}, {"kind": "hnsw", "sort_by": "mass"}], ids=str)
def test_a_build_that_was_killed_ends_with_the_same_bytes(tmp_path, options, monkeypatch, tally, thorough):
    """Among them those of the HNSW graph, which is built again from the coordinates on disk."""
    if "kind" in options:
        pytest.importorskip("faiss")
    steps = run_victim(_embed, tmp_path / "whole", options)
    whole = read_files(tmp_path / "whole")
    assert steps > 40 and len([name for name in whole if name.endswith(".faiss")]) == len(options) - (
        "sort_by" in options
    )
    monkeypatch.setattr(builds, "CHUNK", 64)
    for at, after in kills(steps, steps if thorough else 5):
        folder = tmp_path / f"{at}"
        tally("processes killed", not run_victim(_embed, folder, options, at=at, after=after))
        index = embed(folder, **options)
        assert read_files(folder) == whole and index.head.verify(folder), (at, after)
        shutil.rmtree(folder)


def _embed(folder, options):
    embed(folder, **options)


GONE, ADDED = [f"text {i}" for i in range(20)], [f"new {i}" for i in range(20)]


def _update(folder):
    rows = -PSI[:20]
    block = Block(ADDED, rows, rows.square().sum(1), cells={"mass": ["5"] * 20})
    update(folder, [block], [Listed(GONE, as_hashes(GONE))], model="m")


def read_texts(folder):
    index = CandidateIndex.open(folder, "m")
    assert index.head.verify(folder)
    return {index.texts[at] for at in index.search(Z[:1], 2 * N, "cosine").indices[0].tolist()}


def test_an_update_that_was_killed(tmp_path, tally, thorough):
    pytest.importorskip("faiss")
    embed(tmp_path / "old", kind="hnsw")
    before = read_texts(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "counted")
    steps = run_victim(_update, tmp_path / "counted")
    states = before, before - set(GONE) | set(ADDED)
    assert read_texts(tmp_path / "counted") == states[1]
    for at, after in kills(steps, steps if thorough else 5):
        folder = shutil.copytree(tmp_path / "old", tmp_path / f"{at}")
        tally("processes killed", not run_victim(_update, folder, at=at, after=after))
        assert read_texts(folder) in states, (at, after)
        (folder / ".part-00000000-deleted.1.bin").touch()  # at some step a draft is left
        _update(folder)
        assert read_texts(folder) == states[1] and not list(folder.glob(".*"))


def _save(folder):
    fitted(["ba", "bab"]).save(folder)


def test_a_save_that_was_killed(tmp_path, tally, thorough):
    old, folder = fitted(["aab", "abb", "bbb"]), tmp_path / "model"
    old.save(folder)
    old.save(tmp_path / "other")
    steps = run_victim(_save, tmp_path / "other")
    answers = [old.predict(CELLS), Predictor.load(tmp_path / "other").predict(CELLS)]
    assert answers[0] != answers[1]
    for at, after in kills(steps, steps if thorough else 5):
        old.save(folder)
        tally("processes killed", not run_victim(_save, folder, at=at, after=after))
        assert Predictor.load(folder).predict(CELLS) in answers, (at, after)


def _fit(folder, out):
    made = CliRunner().invoke(app, list_arguments(folder, out))
    assert made.exit_code == 0, made.output


def list_arguments(folder, out):
    rows = [f"{i},{i % 7},{'ab' if i % 2 else 'ba'}\n" for i in range(60)]
    (folder / "pairs.csv").write_text("a,b,y\n" + "".join(rows))
    named = ["--input", "a,b", "--output", "y", "--output-kind", "string", "--out", str(out), "--device", "cpu"]
    network = ["--network", "MLP((4,))", "--epochs", "3", "--patience", "9", "--kernel", "NGram(2)"]
    return ["fit", "--train", str(folder / "pairs.csv"), *named, *network]


def test_a_fit_that_was_killed(tmp_path, tally, thorough):
    steps, whole = run_victim(_fit, tmp_path, tmp_path / "whole"), Predictor.load(tmp_path / "whole", "cpu")
    for at, after in kills(steps, steps if thorough else 2):
        out = tmp_path / f"model{at}"
        tally("processes killed", not run_victim(_fit, tmp_path, out, at=at, after=after))
        if out.exists():
            Predictor.load(out, "cpu")
        run_victim(_fit, tmp_path, out)
        resumed = Predictor.load(out, "cpu")
        assert resumed.coefficients(["1 2"]).equal(whole.coefficients(["1 2"])), (at, after)
        assert len(resumed.model.history_.rows) == len(whole.model.history_.rows) == 3
