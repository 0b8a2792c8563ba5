"""Damaged files are noticed: single bits in models and indices, and what is checked when."""

import os
import random
import shutil
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dsokr import DSOKR, Conformal, Training, kernels, networks, sketches
from dsokr.commands.app import app
from dsokr.commands.columns import String, Vector
from dsokr.commands.predictor import Predictor
from dsokr.conformal import FILE
from dsokr.errors import DSOKRError, ModelFolderError
from dsokr.files import BlockSums, sum_file
from dsokr.index import Block, BuildOptions, CandidateIndex, Condition, build, candidates
from dsokr.index.columns import as_hashes
from dsokr.regressors import Neural
from dsokr.rules import RULES
from dsokr.saving import FOR_PEOPLE

N, P = 300, 4
PSI = torch.randn(N, P, generator=torch.Generator().manual_seed(0))
Z = torch.randn(5, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def build_index(folder, **options):
    def blocks(start):
        for at in range(start, N, 100):
            rows = PSI[at : at + 100]
            cells = {"mass": [str(900 - i) for i in range(at, at + 100)]}
            texts = [f"text {i}" for i in range(at, at + 100)]
            yield Block(texts, rows, rows.square().sum(1), skipped=["a row was skipped"], cells=cells)

    return build(folder, blocks, model="m", dim=P, columns=["mass"], options=BuildOptions(**options))


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_everywhere(folder, times):
    """Flip a random bit in one file after another, and give the file back its contents afterwards."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    rng = random.Random(0)
    for number in range(times):
        path = files[number % len(files)]
        before = path.read_bytes()
        flip(path, rng.randrange(8 * len(before)))
        yield path
        path.write_bytes(before)


def verify(folder):
    return CliRunner().invoke(app, ["verify", str(folder)])


@pytest.mark.parametrize("options", [{}, {"sort_by": "mass"}, {"kind": "hnsw"}], ids=str)
def test_every_flipped_bit_of_an_index_is_noticed_when_it_is_opened(tmp_path, options, tally, thorough):
    if options.get("kind"):
        pytest.importorskip("faiss")
    build_index(tmp_path, **options)
    for path in flip_everywhere(tmp_path, 280 if thorough else 70):
        tally("bits flipped")
        with pytest.raises(ModelFolderError, match="damaged|another version"):
            CandidateIndex.open(tmp_path)
        said = verify(tmp_path)
        assert said.exit_code == 1 and path.name in said.output + str(tmp_path / "index.json")
    assert len(CandidateIndex.open(tmp_path)) == N and verify(tmp_path).exit_code == 0


def use(index):
    """Read everything that searches read, and return the answers."""
    window = Condition.within("mass", [700.0] * 5, [800.0] * 5)
    found = [index.search(Z, 3, rule).indices.tolist() for rule in RULES]
    found += [index.search(Z, 3, "cosine", [window]).indices.tolist(), index.find_codes(as_hashes(["text 7", "none"]))]
    return (
        found,
        list(index.texts),
        list(index.cells["mass"]),
        index.kinds(),
        index.cosines(Z[:1], torch.arange(N)[None]),
    )


def same(one, other):
    return one[:-1] == other[:-1] and torch.equal(one[-1], other[-1])


@pytest.fixture
def small_blocks(monkeypatch):
    """Indices count as large from the first byte, and have many blocks."""
    monkeypatch.setattr(candidates, "CHECKED", 0)
    monkeypatch.setattr("dsokr.files.SUMMED", 500)


@pytest.mark.parametrize("options", [{}, {"sort_by": "mass"}, {"kind": "hnsw"}], ids=str)
def test_every_flipped_bit_of_a_large_index_is_noticed_when_it_is_read(
    tmp_path, options, small_blocks, tally, thorough
):
    if options.get("kind"):
        pytest.importorskip("faiss")
    right, silent = use(build_index(tmp_path, **options)), set()
    for path in flip_everywhere(tmp_path, 280 if thorough else 70):
        tally("bits flipped")
        try:
            assert same(use(CandidateIndex.open(tmp_path)), right)
            silent.add(path.name.rpartition(".")[0].rpartition(".")[2])
        except ModelFolderError as error:
            assert "damaged" in str(error) or "another version" in str(error)
        said = verify(tmp_path)
        assert said.exit_code == 1 and path.name in said.output + str(tmp_path / "index.json")
    assert silent <= {"skipped"}  # which no search reads
    assert same(use(CandidateIndex.open(tmp_path)), right)


def test_every_block_is_checked_once_and_when_it_is_read(tmp_path, small_blocks, monkeypatch):
    build_index(tmp_path)
    size, checked, crc = P * 4 * N, [], zlib.crc32
    monkeypatch.setattr("dsokr.files.zlib.crc32", lambda data, *start: checked.append(len(data)) or crc(data, *start))
    index = CandidateIndex.open(tmp_path)
    assert not checked
    index.cosines(Z[:1], torch.tensor([[0, 31]]))  # the second begins in the first block, and ends in the next
    assert sum(checked) == 2 * 500 + 2 * 500 and not index.arrays.checks[0].unread[:2].any()
    index.search(Z, 3, "cosine")
    assert sum(checked) == size + 2 * 8 * N
    index.search(Z, 3, "kernel")
    assert sum(checked) == size + 2 * 8 * N
    flip(tmp_path / "psi.bin", 8 * 1600)
    index = CandidateIndex.open(tmp_path)
    index.cosines(Z[:1], torch.tensor([[0, 31]]))  # the damage is elsewhere
    for _ in range(2):
        with pytest.raises(ModelFolderError, match=r"the checksum of .*psi.bin is wrong. Build it again"):
            index.search(Z, 3, "cosine")


@pytest.mark.parametrize("options", [{"sort_by": "mass"}, {"kind": "hnsw"}], ids=str)
def test_damage_is_not_copied_into_new_files_with_new_checksums(tmp_path, options, small_blocks):
    if options.get("kind"):
        pytest.importorskip("faiss")
    build_index(tmp_path)
    flip(tmp_path / "psi.bin", 8 * 1600)
    with pytest.raises(ModelFolderError, match=r"the checksum of .*psi.bin is wrong"):
        build_index(tmp_path, **options)
    assert verify(tmp_path).exit_code == 1


def test_truncated_files_of_an_index(tmp_path, tally):
    build_index(tmp_path / "index")
    for path in sorted((tmp_path / "index").iterdir()):
        whole = path.stat().st_size
        for size in {0, 1, whole // 2, whole - 1, None} - {whole}:
            copy = shutil.copytree(tmp_path / "index", tmp_path / "copy", dirs_exist_ok=True) / path.name
            copy.unlink() if size is None else os.truncate(copy, size)
            tally("files cut short or missing")
            with pytest.raises(ModelFolderError):
                CandidateIndex.open(tmp_path / "copy")


def test_an_index_that_was_interrupted_has_the_same_checksums(tmp_path, monkeypatch):
    whole, monkeypatched = build_index(tmp_path / "whole"), []

    def blocks(start):
        monkeypatched.append(start)
        for at in range(start, N, 100):
            if len(monkeypatched) < 3 and at == 100 * len(monkeypatched):
                raise KeyboardInterrupt
            rows, cells = PSI[at : at + 100], {"mass": [str(900 - i) for i in range(at, at + 100)]}
            texts = [f"text {i}" for i in range(at, at + 100)]
            yield Block(texts, rows, rows.square().sum(1), skipped=["a row was skipped"], cells=cells)

    monkeypatch.setattr("dsokr.files.SUMMED", 1000)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "parts", blocks, model="m", dim=P, columns=["mass"])
        assert verify(tmp_path / "parts").exit_code == 0  # of what is committed
    parts = build(tmp_path / "parts", blocks, model="m", dim=P, columns=["mass"])
    assert monkeypatched == [0, 100, 200]
    again = {name: sum_file(tmp_path / "whole" / name) for name in whole.head.sums}
    assert parts.head.sums == again and len(again["psi.bin"].split()) == -(-N * P * 4 // 1000)


def test_checksums_do_not_depend_on_the_pieces(monkeypatch):
    monkeypatch.setattr("dsokr.files.SUMMED", 10)
    data, sums = os.urandom(95), BlockSums()
    for at in range(0, 95, 7):
        sums = BlockSums(str(sums), at)
        sums.add(data[at : at + 7])
    whole = BlockSums()
    whole.add(data)
    assert str(sums) == str(whole) and len(whole.sums) == 10


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    X = np.random.default_rng(0).normal(size=(80, 2))
    outputs = ["aab", "abb", "bbb", "a"] * 20
    regressor = Neural(networks.MLP((4,)), training=Training(epochs=1, progress=False))
    model = DSOKR(kernels.NGram(2), sketches.Full(), regressor, random_state=0, device="cpu")
    cells = [f"{a} {b}" for a, b in X]
    predictor = Predictor.fit(model, Vector(("x",)), String(("y",)), cells, outputs)
    sure = Conformal(predictor.model).calibrate(X + 0.5, outputs)
    replace(predictor, sure=sure).save(folder, lambda draft: (draft / "report.html").write_text("<p>"))
    return folder, cells


def test_every_flipped_bit_of_a_model_is_noticed(saved, tally):
    """When it is loaded, or, in files for people alone, by ``dsokr verify``."""
    folder, cells = saved
    answers = Predictor.load(folder).predict(cells)
    for path in flip_everywhere(folder, 140):
        tally("bits flipped")
        said = verify(folder)
        assert said.exit_code == 1 and path.name in said.output + str(folder / "config.json"), path
        if path.name in FOR_PEOPLE:
            assert Predictor.load(folder).predict(cells) == answers
        else:
            with pytest.raises(DSOKRError):
                Predictor.load(folder)
    assert verify(folder).exit_code == 0


def test_truncated_and_missing_files(saved, tmp_path, tally):
    folder, _ = saved
    for path in sorted(folder.iterdir()):
        whole = path.stat().st_size
        for size in (
            0,
            1,
            whole // 2,
            whole - 1,
            *([] if path.name == FILE else [None]),
        ):  # a calibration may be missing
            copy = shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True) / path.name
            copy.unlink() if size is None else os.truncate(copy, size)
            tally("files cut short or missing")
            said = verify(tmp_path / "copy")
            assert said.exit_code == 1 and said.output.count("\n") == 1 and path.name in said.output


def test_what_is_neither_a_model_nor_an_index(tmp_path):
    said = verify(tmp_path)
    assert said.exit_code == 1 and "is not a saved model: config.json is missing" in said.output
