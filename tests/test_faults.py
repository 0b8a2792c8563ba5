"""Any step of writing files may fail, or be interrupted: the old state stays, or the new one is whole."""

import errno
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import dsokr.conformal.sets
import dsokr.files
import dsokr.regressors.callbacks
import dsokr.saving
from dsokr import DSOKR, Conformal, kernels, sketches
from dsokr.commands.columns import String, Vector
from dsokr.commands.guarantee import calibrate
from dsokr.commands.options import CalibrateOptions
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems, write_table
from dsokr.errors import DSOKRError
from dsokr.index import Block, BuildOptions, CandidateIndex, Listed, build, update
from dsokr.index.columns import as_hashes
from dsokr.regressors import KernelRidge
from test_damage import PSI, N, P, Z

STEPS = [
    *((os, name) for name in ("fsync", "replace")),
    *((Path, name) for name in ("write_text", "write_bytes", "mkdir", "chmod", "unlink", "touch")),
    (torch, "save"),
    (dsokr.saving, "save_file"),
    (dsokr.regressors.callbacks, "save_file"),
    (dsokr.conformal.sets, "save_file"),
    (dsokr.files, "_exchange"),
    (dsokr.files.BlockSums, "add"),  # called after every write to a file of an index
]
FAULTS = [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]


class Disk:
    """Counts the steps that change files, and lets one of them fail: before it is done, or after."""

    def __init__(self, monkeypatch, at=None, fault=None, after=False, steps=STEPS):
        self.count = 0

        def wrap(step):
            def counted(*args, **options):
                self.count += 1
                if self.count != at:
                    return step(*args, **options)
                if after:
                    step(*args, **options)
                raise fault if isinstance(fault, BaseException) else fault()

            return counted

        for owner, name in steps:
            monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


@contextmanager
def failing(*given, **options):
    with pytest.MonkeyPatch.context() as patch:
        yield Disk(patch, *given, **options)


def faults(write, least, some=None):
    """Every fault at every step of a function, more than ``least`` cases; or about ``some`` of them, evenly."""
    with failing() as disk:
        write()
    cases = list(product(range(1, disk.count + 1), FAULTS, (False, True)))
    assert len(cases) > least
    return cases if some is None else cases[:: len(cases) // some | 1]  # odd, so that all kinds of faults occur


def inject(write, at, fault, after):
    with failing(at, fault, after):
        try:
            write()
        except (DSOKRError, OSError, KeyboardInterrupt):
            return
    # a fault in cleaning up may pass unnoticed: what was written must be there then


X = np.random.default_rng(0).normal(size=(40, 2))
CELLS = [f"{a} {b}" for a, b in X]


def fitted(words) -> Predictor:
    model = DSOKR(kernels.NGram(2), sketches.Full(), KernelRidge(), random_state=0, device="cpu")
    return Predictor.fit(model, Vector(("x",)), String(("y",)), CELLS, (words * 40)[:40])


@pytest.fixture(scope="module")
def predictors():
    return fitted(["aab", "abb", "bbb"]), fitted(["ba", "bab"])


@pytest.mark.parametrize("has_old", [False, True])
def test_saving_a_model(tmp_path, predictors, has_old, tally, thorough):
    """As ``dsokr fit`` does, with a report."""
    old, new = predictors
    answers, folder = [each.predict(CELLS) for each in predictors], tmp_path / "models" / "model"

    def write():
        new.save(folder, lambda draft: (draft / "report.html").write_text("<p>"))

    for case in faults(write, 80, None if thorough else 40):
        if has_old:
            old.save(folder)
        elif folder.exists():
            dsokr.files.shutil.rmtree(folder)
        inject(write, *case)
        tally("faults injected")
        if folder.exists() or has_old:
            assert Predictor.load(folder).predict(CELLS) in (answers if has_old else answers[1:])
        assert not [path for path in folder.parent.iterdir() if path != folder], case


def test_calibrating_a_model(tmp_path, predictors, tally, thorough):
    folder = tmp_path / "model"
    other = np.random.default_rng(1).normal(size=(40, 2))
    write_table(tmp_path / "pairs.csv", ["x", "y"], [[f"{a} {b}", "aab"] for a, b in other])
    sure = Conformal(predictors[0].model).calibrate(other[:30], ["aab", "bbb"] * 15)
    old = replace(predictors[0], sure=sure)
    options = CalibrateOptions(model=folder, pairs=tmp_path / "pairs.csv")

    def write():
        calibrate(options, Problems(0), print)

    old.save(folder)
    write()
    states = [len(sure.pairs_["z"]), len(Predictor.load(folder).sure.pairs_["z"])]
    assert states == [30, 40]
    for case in faults(write, 20, None if thorough else 20):
        old.save(folder)
        inject(write, *case)
        tally("faults injected")
        loaded = Predictor.load(folder)
        assert len(loaded.sure.pairs_["z"]) in states and loaded.predict(CELLS) == old.predict(CELLS)
        old.save(folder)  # a draft that is left over does not stop it


def embed(folder, **options):
    def blocks(start):
        for at in range(start, N, 100):
            rows, cells = PSI[at : at + 100], {"mass": [str(900 - i) for i in range(at, at + 100)]}
            yield Block([f"text {i}" for i in range(at, at + 100)], rows, rows.square().sum(1), cells=cells)

    return build(folder, blocks, model="m", dim=P, columns=["mass"], options=BuildOptions(**options))


def ask(index):
    return [[index.texts[i] for i in row] for row in index.search(Z, 3, "cosine").indices]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (None, {}),
        (None, {"sort_by": "mass"}),
        ({}, {"sort_by": "mass"}),
        ({}, {"kind": "hnsw"}),
        ({"kind": "hnsw"}, {"sort_by": "mass"}),
        ({"kind": "hnsw"}, {"kind": "exact"}),
    ],
    ids=str,
)
def test_building_an_index(tmp_path, first, then, tally, thorough):
    if "kind" in {**(first or {}), **then}:
        pytest.importorskip("faiss")
    folder, expected = tmp_path / "index", ask(embed(tmp_path / "other"))
    for case in faults(lambda: embed(tmp_path / "counted", **then), 200, None if thorough else 12):  # all take minutes
        dsokr.files.shutil.rmtree(folder, ignore_errors=True)
        if first is not None:
            embed(folder, **first)
        inject(lambda: embed(folder, **then), *case)
        tally("faults injected")
        if first is not None:
            assert ask(CandidateIndex.open(folder)) == expected, case
        index = embed(folder, **then)  # the same call again
        assert ask(index) == ask(CandidateIndex.open(folder)) == expected
        assert index.head.sorted_by == then.get("sort_by", "") and not list(folder.glob(".*"))


@pytest.mark.parametrize(
    ("many", "options"),
    [(20, {}), (100, {"sort_by": "mass"}), (20, {"kind": "hnsw"}), (100, {"kind": "hnsw"})],
    ids=str,
)
def test_updating_an_index(tmp_path, many, options, tally, thorough):
    """The old candidates, or the new ones; with many changes the index is then written anew."""
    if "kind" in options:
        pytest.importorskip("faiss")
    folder, gone = tmp_path / "index", [f"text {i}" for i in range(many)]
    rows, texts = -PSI[:many], [f"new {i}" for i in range(many)]
    added = Block(texts, rows, rows.square().sum(1), cells={"mass": ["5"] * many})
    before = {f"text {i}" for i in range(N)}
    after = before - set(gone) | set(texts)

    def change(where=folder):
        return update(where, [added], [Listed(gone, as_hashes(gone))], model="m")

    def read():
        index = CandidateIndex.open(folder, "m")
        return {index.texts[at] for at in index.search(Z[:1], 2 * N, "cosine").indices[0].tolist()}

    embed(tmp_path / "old", **options)
    dsokr.files.shutil.copytree(tmp_path / "old", tmp_path / "counted")
    for case in faults(lambda: change(tmp_path / "counted"), 50, None if thorough else 12):  # all take a minute
        dsokr.files.shutil.rmtree(folder, ignore_errors=True)
        dsokr.files.shutil.copytree(tmp_path / "old", folder)
        inject(change, *case)
        tally("faults injected")
        assert read() in (before, after), case
        change()  # the same again
        assert read() == after and not list(folder.glob(".*")) and CandidateIndex.open(folder).head.verify(folder)


def test_readers_beside_a_writer_find_a_whole_model(tmp_path, predictors):
    answers, folder, seen, failed = [each.predict(CELLS) for each in predictors], tmp_path / "model", [], []
    predictors[0].save(folder)
    done = threading.Event()

    def read():
        while not done.is_set():
            try:
                seen.append(answers.index(Predictor.load(folder).predict(CELLS)))
            except Exception as error:
                failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(30):
        predictors[number % 2].save(folder)
    done.set()
    for reader in readers:
        reader.join()
    assert not failed and set(seen) == {0, 1}


def test_writers_of_one_folder(tmp_path, predictors):
    """The last one wins; nothing is mixed, and nothing is left over."""

    def write(predictor):
        for _ in range(15):
            predictor.save(tmp_path / "model")

    writers = [threading.Thread(target=write, args=(each,)) for each in predictors]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert Predictor.load(tmp_path / "model").predict(CELLS) in [each.predict(CELLS) for each in predictors]
    assert os.listdir(tmp_path) == ["model"]
