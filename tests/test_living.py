"""Indexes that change, in a folder and in Milvus: one interface, exact answers, the old version or the new one."""

import json
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from dsokr.errors import InputError, MissingExtraError, ModelFolderError
from dsokr.index import Block, BuildOptions, CandidateIndex, Condition, Listed, build, open_index, update
from dsokr.index.columns import as_hashes
from dsokr.rules import RULES

N, P = 120, 5
PSI = torch.randn(2 * N, P, generator=torch.Generator().manual_seed(0))
DIAG = PSI.square().sum(1).double() + 0.1
MASSES = np.random.default_rng(0).permutation(2 * N)
Z = torch.randn(6, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
PLACES = [
    "folder",
    "sorted",
    pytest.param("hnsw", marks=pytest.mark.skipif(find_spec("faiss") is None, reason="needs the extra search")),
    pytest.param("milvus", marks=pytest.mark.skipif(find_spec("milvus_lite") is None, reason="needs the extra milvus")),
]
OPTIONS = {"sorted": {"sort_by": "mass"}, "hnsw": {"kind": "hnsw", "recall": 1.0}}


def block(numbers, named="first"):
    """Candidates y0, y1, … with their masses; every eleventh has none."""
    at = torch.tensor(numbers, dtype=torch.long)
    masses = [str(MASSES[i]) if i % 11 else "?" for i in numbers]
    cells = {"mass": masses, "kind": [f"k{i % 3}" for i in numbers]}
    return Block([f"y{i}" for i in numbers], PSI[at], DIAG[at], [f"{named} {i}" for i in numbers], cells=cells)


def listed(numbers):
    texts = [f"y{i}" for i in numbers]
    return Listed(texts, as_hashes(texts))


def make(place, numbers=range(N), **options):
    def blocks(start):
        for at in range(start, len(numbers), 50):
            yield block(list(numbers)[at : at + 50])

    model, columns = options.pop("model", "m"), ["mass", "kind"]
    return build(place, blocks, model=model, dim=P, columns=columns, options=BuildOptions(**options))


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    folder = tmp_path / ("index.db" if request.param == "milvus" else "index")
    make(folder, **OPTIONS.get(request.param, {}))
    return folder


def fresh(numbers):
    """The same candidates, in memory."""
    texts, psi, diag, names, _, _, cells, _ = block(list(numbers))
    return CandidateIndex.in_memory(texts, psi, diag, names, cells=cells)


def compare(index, numbers):
    """Check that an index answers like a new one of these candidates."""
    expected = fresh(numbers)
    assert len(index) == len(expected)
    low = np.array([0.0, 20, 50, 100, 150, 230])
    window, equal = Condition.within("mass", low, low + 40), Condition.equal("kind", ["k0", "k1", " k2 "] * 2)
    nothing = Condition.within("mass", [1e6] * 6, [np.inf] * 6)
    for rule in RULES:
        for conditions in ((), [window], [equal], [window, equal], [nothing]):
            found, wanted = (each.search(Z, 7, rule, conditions) for each in (index, expected))
            torch.testing.assert_close(found.scores, wanted.scores, rtol=0, atol=1e-12)
            for each, other in zip(found.indices.tolist(), wanted.indices.tolist(), strict=True):
                assert [show(index, at) for at in each] == [show(expected, at) for at in other]
        torch.testing.assert_close(
            index.cosines(Z, index.search(Z, 3, rule).indices), expected.cosines(Z, expected.search(Z, 3, rule).indices)
        )
    assert index.kinds() == {"mass": "number", "kind": "text"}


def show(index, at):
    return None if at < 0 else (index.texts[at], index.find_cells("mass")[at], index.cells["kind"][at])


def test_the_same_answers_everywhere(place):
    compare(open_index(place, "m"), range(N))


def test_added_replaced_and_deleted(place):
    changes = update(place, [block(range(100, 140), "second")], [listed([3, 5, 110, 999])], model="m")
    assert changes == (20, 20, 2, 1)  # y110 is deleted and added: replaced
    index, there = open_index(place, "m"), sorted({*range(140)} - {3, 5})
    compare(index, there)
    assert index.head.version > 0
    best = index.search(PSI[[110, 90]].double(), 1, "projected").indices[:, 0].tolist()
    assert [index.names[at] for at in best] == ["second 110", "first 90"]
    assert update(place, [], [listed([130, 3])], model="m") == (0, 0, 1, 1)
    assert update(place, [block([3])], model="m") == (1, 0, 0, 0)
    compare(open_index(place, "m"), sorted({*range(140)} - {5, 130}))
    before = open_index(place, "m").head
    assert update(place, [], [listed([999])], model="m") == (0, 0, 0, 1)
    assert open_index(place, "m").head == before  # nothing has changed


def test_many_changes(place):
    """So many that a local index is written anew, and sorted again."""
    for start in range(0, N, 30):
        update(place, [block(range(N + start, N + start + 30))], [listed(range(start, start + 20))], model="m")
    index = open_index(place, "m")
    compare(index, sorted(set(range(2 * N)) - {i for i in range(N) if i % 30 < 20}))
    if isinstance(index, CandidateIndex):
        assert index.head.deleted < 0.25 * index.head.count
        assert (index.faiss_index is None) == (index.head.kind == "exact")
        masses = index.arrays.columns.numbers("mass")[: index.head.main]
        if index.head.sorted_by:
            assert index.head.main > N and (np.diff(masses[~np.isnan(masses)]) >= 0).all()


def test_readers_go_on_with_the_version_they_opened(tmp_path):
    make(tmp_path / "i", sort_by="mass")
    old, seen, done, failed = open_index(tmp_path / "i", "m"), set(), threading.Event(), []
    expected = old.search(Z, 9, "cosine").scores

    def read():
        while not done.is_set():
            try:
                found = open_index(tmp_path / "i", "m")
                seen.add(len(found))
                found.search(Z, 9, "cosine")
            except Exception as error:
                failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(0, 100, 5):
        update(tmp_path / "i", [block(range(N + start, N + start + 5))], [listed([start])], model="m")
    done.set()
    reader.join()
    assert not failed and seen <= set(range(N, N + 81, 4)) and len(seen) > 2
    assert torch.equal(old.search(Z, 9, "cosine").scores, expected)
    assert len(old.refreshed()) == N + 80 and old.refreshed().refreshed() is not old
    new = old.refreshed()
    assert new.refreshed() is new


def test_candidates_are_the_same_if_their_keys_are(tmp_path):
    make(tmp_path / "i")
    texts, codes = ["Y7", "y8"], as_hashes(["y7", "y9"])
    one = block([7])._replace(texts=texts[:1], codes=codes[:1])
    assert update(tmp_path / "i", [one], [Listed(texts[1:], codes[1:])], model="m", key=str.lower) == (0, 1, 0, 1)


def test_refused_changes_leave_the_index_as_it_was(place):
    index = open_index(place, "m")
    wrong = block([130])._replace(psi=torch.full((1, P), torch.nan))
    with pytest.raises(InputError, match="delete all candidates. An index has at least one"):
        update(place, [], [listed(range(N))], model="m")
    with pytest.raises(InputError, match="'y130' has coordinates that are not finite"):
        update(place, [block([131]), wrong], [listed([1])], model="m")
    with pytest.raises(InputError, match="was built for another model. Embed the candidates again"):
        update(place, [], [listed([1])], model="other")
    with pytest.raises(InputError, match="no column 'weight'. Their columns: mass, kind"):
        index.search(Z, 2, "cosine", [Condition.within("weight", [1] * 6, [2] * 6)])
    with pytest.raises(InputError, match="column 'kind' of the candidates holds no numbers"):
        index.search(Z, 2, "cosine", [Condition.within("kind", [1] * 6, [2] * 6)])
    assert open_index(place, "m").head == index.head
    compare(open_index(place, "m"), range(N))


def test_an_index_that_is_not_there(tmp_path):
    for address in (tmp_path / "nothing", tmp_path / "nothing.db"):
        if address.suffix:
            pytest.importorskip("milvus_lite")
        with pytest.raises(ModelFolderError, match="is not an index|does not exist. Build it with dsokr embed"):
            update(address, [block([1])], model="m")
    assert not (tmp_path / "nothing").exists()


class TestMilvus:
    pytestmark = pytest.mark.skipif(find_spec("milvus_lite") is None, reason="needs the extra milvus")

    def test_a_build_resumes(self, tmp_path):
        asked = []

        def blocks(start, fail):
            asked.append(start)
            for at in range(start, N, 40):
                if fail and at == 80:
                    raise KeyboardInterrupt
                yield block(range(at, at + 40))

        parts = {"model": "m", "dim": P, "columns": ["mass", "kind"]}
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "i.db", lambda start: blocks(start, True), **parts)
        with pytest.raises(ModelFolderError, match="is unfinished. Run the command that builds it again"):
            open_index(tmp_path / "i.db")
        compare(build(tmp_path / "i.db", lambda start: blocks(start, False), **parts), range(N))
        build(tmp_path / "i.db", lambda start: blocks(start, False), **parts)
        assert asked == [0, 80]  # a finished one is not built again

    def test_one_rule(self, tmp_path):
        index = make(tmp_path / "i.db", kind="hnsw", rule="cosine")
        assert index.search(Z, 3, "projected").indices.shape == index.search(Z, 3, "cosine").indices.shape == (6, 3)
        with pytest.raises(InputError, match="answers the rules projected, cosine, with at most 16,384"):
            index.search(Z, 3, "kernel")
        with pytest.raises(InputError, match="holds an index of another kind. Discard it with --restart"):
            make(tmp_path / "i.db", kind="exact")
        with pytest.raises(InputError, match="holds an index of another model. Discard it with --restart"):
            make(tmp_path / "i.db", model="other")
        assert len(make(tmp_path / "i.db", range(9))) == N

    @pytest.mark.parametrize("options", [{"kind": "ivfpq"}, {"dtype": "float16"}, {"sort_by": "mass"}], ids=str)
    def test_what_a_collection_cannot_have(self, tmp_path, options):
        with pytest.raises(InputError, match="In Milvus an index is exact or hnsw, has the dtype float32, and is not"):
            make(tmp_path / "i.db", **options)
        assert not (tmp_path / "i.db").exists()

    def test_an_update_that_was_interrupted(self, tmp_path, monkeypatch):
        """After any request to Milvus: readers see the old version or the new one, and the next update repairs."""
        from dsokr.index.milvus import Collection

        make(tmp_path / "i.db")
        call, numbers = Collection.call, set(range(N))
        for step in range(1, 40):
            left = [step + 5]

            def fail(collection, name, *given, left=left, **options):
                found = call(collection, name, *given, **options)
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt
                return found

            change = {"added": [block([N + step])], "deleted": [listed([step])]}
            with monkeypatch.context() as patch:
                patch.setattr(Collection, "call", fail)
                with suppress(KeyboardInterrupt):
                    update(tmp_path / "i.db", change["added"], change["deleted"], model="m")
            index, after = open_index(tmp_path / "i.db", "m"), numbers - {step} | {N + step}
            ids = index.search(Z, 2 * N, "cosine").indices[0].tolist()
            assert {int(index.texts[at][1:]) for at in ids if at >= 0} in (numbers, after)
            update(tmp_path / "i.db", change["added"], change["deleted"], model="m")
            numbers = after
            if left[0] > 0:  # it came through
                break
        assert 5 < step < 39
        compare(open_index(tmp_path / "i.db", "m"), sorted(numbers))

    def test_an_idle_client_does_not_ping(self, tmp_path, monkeypatch):
        """The server hangs up on one that does, and gRPC prints that in the middle of our output."""
        import grpc

        options, connect = {}, grpc.insecure_channel
        monkeypatch.setattr(
            grpc,
            "insecure_channel",
            lambda *place, **given: options.update(given["options"]) or connect(*place, **given),
        )
        make(tmp_path / "i.db")
        assert not options["grpc.keepalive_permit_without_calls"] and options["grpc.keepalive_time_ms"] >= 300_000

    def test_bad_addresses(self, tmp_path):
        (tmp_path / "file.db").write_text("something else")
        for address, message in {
            "milvus://127.0.0.1:9/molecules": "Milvus at milvus://127.0.0.1:9/molecules: Fail connecting to server",
            "milvus://127.0.0.1:9": "Addresses of Milvus are milvus://HOST:PORT/COLLECTION, or x.db for a file.",
            str(tmp_path / "file.db"): "the place cannot be written, or another process has opened it.",
            str(tmp_path / "no.db"): "no.db does not exist. Build it with dsokr embed.",
        }.items():
            with pytest.raises(InputError if "HOST" in message else ModelFolderError, match=message):
                open_index(address)

    def test_a_collection_of_something_else(self, tmp_path):
        from pymilvus import MilvusClient

        client = MilvusClient(str(tmp_path / "i.db"))
        client.create_collection("candidates", dimension=3)
        client.close()
        for restart in (False, True):
            with pytest.raises(ModelFolderError, match="i.db is not an index of this version of dsokr"):
                build(tmp_path / "i.db", lambda start: iter(()), model="m", dim=P, restart=restart)

    @pytest.mark.parametrize(
        "line", ["", "3", "[]", '["a"]', '["y", 1, "2", "k"]', "[" * 9000], ids=lambda line: line[:20]
    )
    def test_a_row_that_others_have_changed(self, tmp_path, line):
        index = make(tmp_path / "i.db", range(9))
        [row] = index.collection.call("get", ids=[3], output_fields=["*"])
        index.collection.call("upsert", [row | {"line": line}])
        with pytest.raises(ModelFolderError, match=r"i\.db: candidate 3 is damaged. Embed the candidates again."):
            index.search(Z, 9, "cosine")

    @pytest.mark.parametrize(
        "change", [{"dim": 0}, {"count": -1}, {"deleted": 10**6}, {"columns": "mass"}, {"x": 1}], ids=str
    )
    def test_a_head_that_others_have_changed(self, tmp_path, change):
        collection = make(tmp_path / "i.db", range(9)).collection
        head = json.loads(collection.call("describe_collection")["properties"]["dsokr.head"])
        for kept in ({"dsokr.head": json.dumps(head | change)}, {"dsokr.dropped": '["1) or (id > 0"]'}):
            collection.call("alter_collection_properties", properties={"dsokr.head": json.dumps(head)} | kept)
            with pytest.raises(ModelFolderError, match="is not an index of this version of dsokr"):
                open_index(tmp_path / "i.db")

    def test_texts_that_are_too_long_and_libraries_that_are_empty(self, tmp_path):
        long = Block(["y" * 70000], PSI[:1], DIAG[:1])
        with pytest.raises(InputError, match="Candidate y{40}… is too long for Milvus"):
            build(tmp_path / "i.db", lambda start: iter([long]), model="m", dim=P)
        with pytest.raises(InputError, match="There are no candidates to index"):
            build(tmp_path / "i.db", lambda start: iter(()), model="m", dim=P)
        with pytest.raises(ModelFolderError, match="does not exist"):
            open_index(tmp_path / "i.db")

    def test_the_extra_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pymilvus", None)
        with pytest.raises(MissingExtraError, match=r'This needs pymilvus, .* pip install "dsokr\[milvus\]"'):
            open_index("milvus://localhost:19530/molecules")
