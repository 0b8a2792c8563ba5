"""Shards of a cluster: the same candidates, answers and order as on one machine, whatever happens meanwhile."""

import json
import sys
from functools import partial
from itertools import starmap
from pathlib import Path

import numpy as np
import pytest
import torch

from dsokr import DSOKR, chem, kernels, sketches
from dsokr.commands import embed, library
from dsokr.commands.app import app
from dsokr.commands.columns import Molecule, Vector
from dsokr.commands.embed import Worker
from dsokr.commands.library import Library
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems
from dsokr.decoders.scan import Scan
from dsokr.errors import InputError, ModelFolderError
from dsokr.index import CandidateIndex, Condition, candidates, fingerprint, shard_search
from dsokr.index.shard_search import look_up, search_shards
from dsokr.index.shards import Folder, Shards
from dsokr.regressors import KernelRidge
from dsokr.rules import RULES
from studies.data import molecules

pytest.importorskip("pyarrow")
N = 300


@pytest.fixture(scope="module")
def smiles() -> list[str]:
    return list(dict.fromkeys(chem.many_smiles(molecules.generate(N, seed=0, max_atoms=6))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, smiles):
    """A model from numbers to molecules; a library with bad rows and repeated molecules; inputs."""
    folder, rng = tmp_path_factory.mktemp("cluster"), np.random.default_rng(0)
    numbers = [" ".join(map(str, row)) for row in rng.normal(size=(60, 4)).round(3)]
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(30), KernelRidge(), random_state=0, device="cpu")
    kinds = Vector(columns=("x",)), Molecule(columns=("smiles",), radius=1)
    Predictor.fit(model, *kinds, numbers, smiles[:60]).save(folder / "model")
    rows = [
        [s, f"m{i}", i % 7, "" if i < 100 else i] for i, s in enumerate([*smiles, *smiles[10:20], "C1CC", "OC", "CO"])
    ]
    rows.insert(50, ["C1CC", "bad", 0, ""])
    lines = [",".join(map(str, row)) for row in [["smiles", "id", "shelf", "price"], *rows]]
    lines.insert(120, "too,few")
    (folder / "library.csv").write_text("\n".join(lines))
    (folder / "inputs.csv").write_text(
        "\n".join(["x,shelf", *(f"{row},{i % 7}" for i, row in enumerate(numbers[:20]))])
    )
    return folder


@pytest.fixture
def dsokr(capfd, monkeypatch):
    def run(*arguments: object, expect: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["dsokr", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            app()
        out, err = capfd.readouterr()
        assert (stop.value.code or 0) == expect, err
        return err if expect else out

    return run


class Here:
    """Calls functions in this process, as a cluster does on its workers; ``fail_after`` calls it stops."""

    def __init__(self, fail_after: int = 10**9):
        self.left = fail_after

    def starmap(self, function, arguments, returns=1):
        for some in arguments:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            yield function(*some)


def write_shards(folder, out, cluster=None, problems=None) -> Shards:
    predictor = Predictor.load(folder / "model", "cpu")
    source = Library(predictor, folder / "library.csv", None, problems or Problems(), None)
    basis = predictor.basis
    shards = Shards(Folder(str(out)), fingerprint(basis), basis.dim, "float32", "library", source.wanted)
    worker = Worker(shards, shards.start(restart=False), "cpu", basis)
    return shards.finish(embed._run(cluster or Here(), source, worker, lambda *_, **__: None), source.rows)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(library, "BLOCK", 40)


def same_index(a: Path, b: Path) -> bool:
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in candidates.FILES)


def test_shards_are_an_index_byte_for_byte(dsokr, folder, tmp_path):
    """Of the same candidates, coordinates, columns, and rows left out."""
    shards = write_shards(folder, tmp_path / "shards")
    model, csv = folder / "model", folder / "library.csv"
    one = json.loads(dsokr("embed", model, csv, "--out", tmp_path / "one", "--json"))
    two = json.loads(dsokr("embed", model, tmp_path / "shards", "--out", tmp_path / "two", "--json"))
    assert same_index(tmp_path / "one", tmp_path / "two")
    assert one["candidates"] == sum(shards.counts) > 200
    assert {**one, "index": 0, "seconds": 0} == {**two, "index": 0, "seconds": 0}
    assert one["skipped"] == 3 and one["duplicates"] >= 10
    lines = csv.read_text().splitlines()
    for number, count in enumerate(shards.counts):
        shard = shards.read_shard(number)
        assert len(shard.texts) == count <= 40
        assert [lines[row - 1].split(",")[0] for row in shard.rows] == list(shard.texts)


def test_interrupted_anywhere_nothing_is_lost_or_twice(folder, tmp_path):
    whole, written = write_shards(folder, tmp_path / "whole"), {}
    names = sorted(Folder(str(tmp_path / "whole")).names())
    for calls in range(1, 16, 3):
        out = tmp_path / str(calls)
        with pytest.raises(KeyboardInterrupt):
            write_shards(folder, out, Here(calls))
        with pytest.raises(ModelFolderError, match="unfinished. Run the command"):
            Shards.open(out)
        written = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
        (out / ".part-1-shard").write_text("left over from a crash")
        problems = Problems()
        assert write_shards(folder, out, problems=problems).counts == whole.counts
        assert len(problems.found) == 3
        assert {name: (out / name).stat().st_mtime_ns for name in written} == written
        assert sorted(path.name for path in out.iterdir()) == names
        assert all((out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    assert written


@pytest.mark.parametrize("rule", RULES)
def test_search_is_that_of_an_index_in_order(dsokr, folder, tmp_path, rule, monkeypatch):
    """With and without conditions, and where scores are tied: shelves are windows of equal cells."""
    shards = write_shards(folder, tmp_path / "shards")
    dsokr("embed", folder / "model", folder / "library.csv", "--out", tmp_path / "index")
    index = CandidateIndex.open(tmp_path / "index")
    z = torch.randn(25, shards.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[0] = 0  # all candidates are tied
    z[1:3] = index.arrays.psi[7:9].double()
    numbers = np.arange(25) * 10.0
    shelf = Condition.equal("shelf", map(str, np.arange(25) % 8))  # nothing is on shelf 7
    price = Condition.within("price", numbers, numbers + 150)
    for conditions in ((), (shelf,), (price,), (shelf, price)):
        for k in (1, 5, 1000):
            one, two = index.search(z, k, rule, conditions), search_shards(shards, z, k, rule, conditions)
            width = one.indices.shape[1]
            assert torch.equal(one.indices, two.indices[:, :width]) and (two.indices[:, width:] < 0).all()
            torch.testing.assert_close(one.scores, two.scores[:, :width], rtol=1e-12, atol=1e-12)
    found = look_up(shards, one.indices, ["shelf"])
    assert found == {at: (index.texts[at], (index.names[at], index.cells["shelf"][at])) for at in found} and found


def test_ties_are_found_where_an_index_finds_them(dsokr, folder, tmp_path, monkeypatch):
    """In the first block of an exact search, which may be a part of a shard or several of them."""
    shards = write_shards(folder, tmp_path / "shards")
    dsokr("embed", folder / "model", folder / "library.csv", "--out", tmp_path / "index")
    index = CandidateIndex.open(tmp_path / "index")
    z = 1e-3 * torch.randn(4, shards.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for scores in (4 * 7, 4 * 90, 4 * 1000):
        scans: list[Scan] = []
        with monkeypatch.context() as patch:
            patch.setattr(candidates, "SCORES", scores)
            patch.setattr(candidates, "Scan", partial(record_scan, scans))
            index.search(z, 5, "cosine")
            ties = shard_search._find_ties(shards, z, "cosine", starmap)
        assert torch.allclose(ties.unit, scans[0].ties.unit, rtol=1e-12, atol=0)
        assert torch.allclose(ties.offset, scans[0].ties.offset, rtol=1e-9, atol=1e-15)


def record_scan(scans, *arguments):
    scans.append(Scan(*arguments))
    return scans[-1]


def test_rank_by_the_command(dsokr, folder, tmp_path):
    write_shards(folder, tmp_path / "shards")
    dsokr("embed", folder / "model", folder / "library.csv", "--out", tmp_path / "index")
    for further in ((), ("--match", "shelf", "--show", "price")):
        for where in ("shards", "index"):
            options = ("--candidates", tmp_path / where, "--out", tmp_path / f"{where}.csv", *further)
            assert "ranked for 20 inputs" in dsokr("rank", folder / "model", folder / "inputs.csv", *options)
        assert (tmp_path / "shards.csv").read_bytes() == (tmp_path / "index.csv").read_bytes()


def test_addresses_of_other_file_systems(folder, tmp_path):
    """All go through fsspec; file:// is one that is here."""
    here = write_shards(folder, tmp_path / "here")
    write_shards(folder, f"file://{tmp_path}/there")
    assert Folder.at(Path(f"file://{tmp_path}/there")).place == f"file://{tmp_path}/there"
    for name in here.folder.names() - {"shards.json"}:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert Shards.open(Path(f"file://{tmp_path}/there")).counts == here.counts
    with embed._fetch(Path(f"file://{folder}/library.csv")) as copy:
        assert copy.read_bytes() == (folder / "library.csv").read_bytes() and copy.name == "library.csv"
    assert not copy.exists()
    for place, what in ((f"file://{tmp_path}/none.csv", "cannot be read"), ("odd://a/b.csv", "cannot be reached")):
        with pytest.raises(InputError, match=what), embed._fetch(Path(place)):
            pass
