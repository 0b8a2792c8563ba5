"""Shards and Ray clusters: the same candidates, answers and order as on one machine, whatever happens meanwhile."""

import json
import os
import resource
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path

import numpy as np
import pytest
import torch

from dsokr import DSOKR, chem, kernels, sketches
from dsokr.commands import cluster, embed, library
from dsokr.commands.app import app
from dsokr.commands.cluster import connect
from dsokr.commands.columns import Molecule, Vector
from dsokr.commands.embed import Worker
from dsokr.commands.library import Library
from dsokr.commands.predictor import Predictor
from dsokr.commands.tables import Problems
from dsokr.decoders.scan import Scan
from dsokr.errors import InputError, ModelFolderError
from dsokr.index import CandidateIndex, Condition, candidates, fingerprint, shard_search, stored
from dsokr.index.shard_search import look_up, search_shards
from dsokr.index.shards import Folder, Shards
from dsokr.regressors import KernelRidge
from dsokr.rules import RULES
from studies.data import molecules

pytest.importorskip("pyarrow")
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra cluster")
pytestmark = [  # Ray leaves files and sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
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
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in stored.FILES)


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
            ties = shard_search._find_ties(shard_search.Query(shards, z, "cosine", ()), starmap)
        assert torch.allclose(ties.unit, scans[0].ties.unit, rtol=1e-12, atol=0)
        assert torch.allclose(ties.offset, scans[0].ties.offset, rtol=1e-9, atol=1e-15)


def record_scan(scans, *arguments):
    scans.append(Scan(*arguments))
    return scans[-1]


def test_shards_of_others_are_refused(dsokr, folder, tmp_path):
    """Of another model, another library or another kind of numbers; unfinished ones; those of a damaged file."""
    shards, rank = write_shards(folder, tmp_path / "s"), ("rank", folder / "model", folder / "inputs.csv")
    rank = (*rank, "--candidates", tmp_path / "s", "--out", tmp_path / "out.csv")
    for part, other in (("model", "model"), ("source", "library"), ("dtype", "dtype")):
        with pytest.raises(InputError, match=f"holds shards of another {other}. Choose another folder, or discard"):
            replace(shards, **{part: "other"}).start(restart=False)
    assert Shards.open(tmp_path / "s") == shards
    assert "candidates have no column 'colour'. Their columns: shelf" in dsokr(*rank, "--show", "colour", expect=1)
    assert "column 'formula' of the candidates holds no numbers" in dsokr(
        *rank, "--within", "formula=shelf:1", expect=1
    )
    with (tmp_path / "s" / "shard-00003.parquet").open("r+b") as file:
        file.seek(2000)
        file.write(b"damage")
    assert f"{tmp_path / 's'}/shard-00003.parquet cannot be used: " in dsokr(*rank, expect=1)
    replace(shards, model="other").finish([0], 0)
    assert "was built for another model. Embed the candidates again" in dsokr(*rank, expect=1)
    assert replace(shards, finished=False).start(restart=True) == set()
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["shards.json"]
    assert "is unfinished. Run the command" in dsokr(*rank, expect=1) and not (tmp_path / "out.csv").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(InputError, match="exists and has no shards. Choose another folder."):
        replace(shards, folder=Folder(str(tmp_path / "mine"))).start(restart=True)
    file = ("--candidates", folder / "library.csv", "--ray", "local")
    assert "--ray searches shards. Make them with `dsokr embed --ray`" in dsokr(*rank, *file, expect=1)


def test_a_full_disk_leaves_whole_shards(folder, tmp_path):
    """A limit on the size of files stands for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(InputError, match="shard-00000.parquet cannot be written: File too large."):
            write_shards(folder, tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["shards.json"]


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
    for place, what in (
        (f"file://{tmp_path}/none.csv", "cannot be used: .*No such file"),
        ("odd://a/b.csv", "cannot be used: .*odd"),
    ):
        with pytest.raises(ModelFolderError, match=what), embed._fetch(Path(place)):
            pass


def same_shards(a: Path, b: Path) -> bool:
    names = sorted(path.name for path in a.glob("*.parquet"))
    return names == sorted(path.name for path in b.glob("*.parquet")) and all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in names
    )


@needs_ray
@pytest.mark.slow
def test_embed_stop_resume_and_rank(dsokr, folder, tmp_path, monkeypatch):
    """As on one machine, byte for byte."""
    write_shards(folder, tmp_path / "here")
    model, out = folder / "model", tmp_path / "shards"
    dsokr("embed", model, folder / "library.csv", "--out", tmp_path / "index")
    run = ("embed", model, folder / "library.csv", "--ray", "local", "--out", out)
    rank = ("rank", model, folder / "inputs.csv", "--match", "shelf", "--show", "price", "--out")
    with connect("local"):
        with monkeypatch.context() as patch:
            patch.setattr(embed, "_describe_progress", stop)
            said = dsokr(*run, expect=130)
            assert said == f"dsokr: Stopped. Run the same command to resume; {out} keeps what is done.\n"
        assert list(out.glob("*.parquet")) and "in 8 shards in" in dsokr(*run)
        dsokr(*rank, tmp_path / "cluster.csv", "--candidates", out, "--ray", "local")
        monkeypatch.setattr(cluster, "__version__", "9.9")
        assert "needs dsokr 9.9, which is 0.1.0 there: pip install" in dsokr(*run, expect=1)
    assert same_shards(tmp_path / "here", out)
    dsokr(*rank, tmp_path / "one.csv", "--candidates", tmp_path / "index")
    assert (tmp_path / "cluster.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def stop(*_):
    raise KeyboardInterrupt


@needs_ray
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--ray", "127.0.0.1:1"),
            "Cannot reach a Ray cluster at 127.0.0.1:1: [Errno 111] Connection refused.",
        ),
        (("--ray", "127.0.0.1:99999"), "Cannot reach a Ray cluster at 127.0.0.1:99999: "),
        (("--ray", "somewhere"), "--ray takes local, auto or the HOST:PORT of a cluster. Got 'somewhere'."),
        (("--ray", "local", "--kind", "hnsw"), "--kind, --rule and --sort-by are for an index"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(dsokr, folder, tmp_path, options, said):
    error = dsokr("embed", folder / "model", folder / "library.csv", *options, "--out", tmp_path / "s", expect=1)
    assert error.startswith(f"dsokr: {said}") and error.count("\n") == 1
    assert not (tmp_path / "s").exists()


@needs_ray
def test_the_cluster_definition_is_one_of_ray():
    from ray.autoscaler._private.util import prepare_config, validate_config

    text = (Path(__file__).parents[1] / "deploy" / "ray-cluster.yaml").read_text(encoding="utf-8")
    definition = pytest.importorskip("yaml").safe_load(text)
    validate_config(prepare_config(definition))
    assert definition["min_workers"] == len(definition["provider"]["worker_ips"])


@pytest.fixture
def two_machines():
    """A head without work, and two nodes with two workers each."""
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    workers = [nodes.add_node(num_cpus=2) for _ in range(2)]
    yield nodes, workers
    ray.shutdown()
    nodes.shutdown()


@needs_ray
@pytest.mark.slow
def test_a_machine_is_lost_in_the_middle(dsokr, folder, tmp_path, monkeypatch, two_machines):
    """Nothing is lost, and nothing twice."""
    (nodes, workers), lost = two_machines, []

    def lose(*arguments):
        if not lost:
            nodes.remove_node(workers[0], allow_graceful=False)
            lost.append(len(list((tmp_path / "shards").glob("*.parquet"))))
        return describe(*arguments)

    describe = embed._describe_progress
    monkeypatch.setattr(embed, "_describe_progress", lose)
    monkeypatch.setattr(library, "BLOCK", 10)
    whole = write_shards(folder, tmp_path / "here")
    dsokr("embed", folder / "model", folder / "library.csv", "--ray", nodes.address, "--out", tmp_path / "shards")
    assert lost[0] < len(whole.counts) > 30 and same_shards(tmp_path / "here", tmp_path / "shards")


@needs_ray
@pytest.mark.slow
def test_what_goes_wrong_on_workers_is_a_sentence(folder, tmp_path):
    def fill_disk(place: str) -> None:  # a limit on the size of files stands for a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        Folder(place).write("shard-00000.parquet", bytes(100_000))

    def use_all_memory() -> None:
        raise MemoryError

    def die() -> None:
        os._exit(1)

    with connect("local") as local:
        for function, arguments, said in (
            (fill_disk, (str(tmp_path),), "shard-00000.parquet cannot be written: File too large."),
            (use_all_memory, (), "most likely for lack of memory. Let fewer of them run on a machine"),
            (die, (), "A worker of the cluster died 6 times, most likely for lack of memory."),
        ):
            with pytest.raises(InputError, match=said):
                list(local.starmap(function, [arguments]))
    assert not list(tmp_path.iterdir())


@needs_ray
@pytest.mark.slow
def test_a_cluster_without_the_package(dsokr, folder, tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    (tmp_path / "dsokr").mkdir()
    (tmp_path / "dsokr" / "__init__.py").write_text("raise ImportError('No module named dsokr')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        out = ("--ray", nodes.address, "--out", tmp_path / "s")
        error = dsokr("embed", folder / "model", folder / "library.csv", *out, expect=1)
        assert "which is missing (No module named dsokr) there: pip install" in error and error.count("\n") == 1
        assert not (tmp_path / "s").exists()
    finally:
        nodes.shutdown()
