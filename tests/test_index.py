"""Candidates on disk: the same answers as in memory, whatever happened while they were written."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import implementations
from dsokr import DSOKR, Training, kernels, networks, sketch_basis, sketches
from dsokr.basis import RULES
from dsokr.commands.app import app
from dsokr.decoders import Candidates, EmbeddedOutputs, scan
from dsokr.errors import InputError, MissingExtraError
from dsokr.graphs import GraphBatch
from dsokr.index import Block, BuildOptions, CandidateIndex, build, exact, files, fingerprint, neighbors
from dsokr.index.build import sample_queries
from dsokr.outputs import ViewBatch, count, take
from dsokr.commands import Predictor, embedding, prediction
from dsokr.commands.kinds import String, Vector

N, P = 3000, 12


@pytest.fixture(scope="module")
def basis():
    generator = torch.Generator().manual_seed(1)
    ys = torch.randn(200, 6, generator=generator)
    return sketch_basis(kernels.Gaussian(0.1), ys, sketches.SubSample(P), generator=generator)


@pytest.fixture(scope="module")
def outputs():
    return torch.randn(N, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture(scope="module")
def queries(basis, outputs):
    noise = torch.randn(20, basis.dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return basis.embed(outputs[:20]) + 0.05 * noise


def blocks_of(basis, outputs, size=500, fail_after=None, asked=None):
    """Blocks of a library whose candidates are called y0, y1, …; Ctrl-C comes after ``fail_after`` blocks."""

    def blocks(start):
        if asked is not None:
            asked.append(start)
        for number, at in enumerate(range(start, len(outputs), size)):
            if number == fail_after:
                raise KeyboardInterrupt
            ys = outputs[at : at + size]
            texts = [f"y{i}" for i in range(at, at + len(ys))]
            yield Block(texts, basis.embed(ys), basis.diag(ys), names=[f"name of {text}" for text in texts])

    return blocks


def built(folder, basis, outputs, *, say=lambda line: None, restart=False, **options):
    return build(
        folder,
        blocks_of(basis, outputs),
        model=fingerprint(basis),
        dim=basis.dim,
        source="outputs",
        options=BuildOptions(**options),
        say=say,
        restart=restart,
    )


def interrupt_at(patch, step, *, after):
    """Ctrl-C at the ``step``-th time that a file is renamed or removed, before or after it is done."""
    done = []

    def interrupted(act):
        def acted(*given, **named):
            done.append(given)
            if len(done) == step and not after:
                raise KeyboardInterrupt
            act(*given, **named)
            if len(done) == step:
                raise KeyboardInterrupt

        return acted

    patch.setattr(os, "replace", interrupted(os.replace))
    patch.setattr(Path, "unlink", interrupted(Path.unlink))


def same_bytes(a: Path, b: Path) -> bool:
    names = {file.name for file in a.iterdir()} - {"index.json"}
    assert names == {file.name for file in b.iterdir()} - {"index.json"}
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in names)


@pytest.fixture(scope="module")
def index(basis, outputs, tmp_path_factory):
    return built(tmp_path_factory.mktemp("index") / "library.idx", basis, outputs)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 10, N, 2 * N])
def test_exact_search_is_that_of_candidates_in_memory(index, basis, outputs, queries, rule, k):
    expected = EmbeddedOutputs(basis, outputs).top(queries, k, rule)
    found = index.search(queries, k, rule)
    assert found.scores.shape == expected.scores.shape
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-6)
    for row in range(len(queries)):  # coordinates are stored in single precision: near ties may stand the other way
        assert len(set(found.indices[row].tolist())) == found.indices.shape[1]
    if k <= 10:
        assert torch.equal(found.indices, expected.indices)


@pytest.mark.parametrize("rule", RULES)
def test_the_size_of_blocks_changes_nothing(index, queries, rule, monkeypatch):
    expected = index.search(queries, 25, rule)
    for block, rows, pairs in ((7, 3, 5), (100, 64, 16), (2999, 1, 65536)):
        monkeypatch.setattr(exact, "NUMBERS", block * P)
        monkeypatch.setattr(scan, "QUERIES", rows)
        monkeypatch.setattr(scan, "PAIRS", pairs)
        found = index.search(queries, 25, rule)
        assert torch.equal(found.indices, expected.indices)
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-12, atol=1e-12)


def test_texts_and_names(index):
    assert len(index) == len(index.texts) == N
    assert (index.texts[0], index.texts[N - 1], index.names[7]) == ("y0", f"y{N - 1}", "name of y7")
    assert index.texts[2:4] == ["y2", "y3"]
    with pytest.raises(IndexError):
        index.texts[N]


def test_texts_of_any_alphabet(tmp_path):
    texts = ["", "ψ̃(y)", "分子", "a\nb", "C1=CC=CC=C1"]
    block = Block(texts, torch.eye(5, dtype=torch.float64), torch.ones(5))
    index = build(tmp_path / "i", lambda start: iter([block][start:]), model="m", dim=5)
    assert list(index.texts) == texts and list(index.names) == [""] * 5


@pytest.mark.parametrize("rule", RULES)
def test_half_precision_is_half_the_size_and_nearly_as_good(tmp_path, index, basis, outputs, queries, rule):
    half = built(tmp_path / "half", basis, outputs, dtype="float16")
    size = (tmp_path / "half" / "psi.bin").stat().st_size
    assert size == N * basis.dim * 2
    found, expected = half.search(queries, 10, rule), index.search(queries, 10, rule)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=3e-3)
    shared = [len(set(a) & set(b)) for a, b in zip(found.indices.tolist(), expected.indices.tolist(), strict=True)]
    assert np.mean(shared) > 9.5


@pytest.mark.parametrize("rule", RULES)
def test_of_equal_candidates_the_first(rule, monkeypatch):
    monkeypatch.setattr(exact, "NUMBERS", 16 * 5)
    generator = torch.Generator().manual_seed(0)
    psi = torch.randn(4, 5, generator=generator).repeat(25, 1)  # 25 copies of four candidates
    index = CandidateIndex.in_memory([str(i) for i in range(100)], psi, psi.square().sum(1) + 0.5)
    z = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    for row in index.search(z, 60, rule).indices.tolist():
        runs = [row[:25], row[25:50], row[50:]]
        assert all(run == list(range(run[0], run[0] + 4 * len(run), 4)) and run[0] < 4 for run in runs)


def test_all_equal(monkeypatch):
    monkeypatch.setattr(exact, "NUMBERS", 16 * 3)
    index = CandidateIndex.in_memory(["x"] * 100, torch.ones(100, 3), torch.ones(100))
    assert index.search(torch.zeros(2, 3), 5, "kernel").indices.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_large_and_small_coefficients_are_ranked_alike(index, queries):
    usual = index.search(queries, 10, "cosine").indices
    for scale in (1e-9, 1e9):
        assert torch.equal(index.search(scale * queries, 10, "cosine").indices, usual)


def test_no_queries(index):
    assert index.search(torch.empty(0, index.head.dim), 3, "kernel").indices.shape == (0, 3)


def test_cosines(index, basis, outputs, queries):
    found = index.search(queries, 4, "kernel")
    psi = basis.embed(outputs)[found.indices]
    expected = torch.cosine_similarity(queries[:, None], psi, dim=2)
    torch.testing.assert_close(index.cosines(queries, found.indices), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("crash", [False, True])
def test_an_interrupted_build_goes_on(tmp_path, index, basis, outputs, monkeypatch, crash):
    """After Ctrl-C, or a crash in the middle of a block. The files are those of a build in one go."""
    monkeypatch.setattr(files, "COMMIT_SECONDS", 0.0 if crash else 1e9)
    folder, asked = tmp_path / "library.idx", []
    arguments = {"model": fingerprint(basis), "dim": basis.dim, "source": "outputs"}
    with pytest.raises(KeyboardInterrupt):
        build(folder, blocks_of(basis, outputs, fail_after=3, asked=asked), **arguments)
    with pytest.raises(InputError, match="is unfinished. Run the command that builds it again"):
        CandidateIndex.open(folder)
    if crash:
        with (folder / "psi.bin").open("ab") as file:
            file.write(b"half a row")
        with (folder / "blocks.jsonl").open("ab") as file:
            file.write(b'{"rows": 99')
    said = []
    again = build(folder, blocks_of(basis, outputs, asked=asked), **arguments, say=said.append)
    assert asked == [0, 1500]
    assert any("Going on after 1,500" in line for line in said)
    whole = built(tmp_path / "whole", basis, outputs)
    assert len(again) == N and same_bytes(folder, tmp_path / "whole")
    assert torch.equal(
        again.search(torch.ones(1, P), 5, "cosine").indices, whole.search(torch.ones(1, P), 5, "cosine").indices
    )


def test_rows_left_out_are_counted_and_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "COMMIT_SECONDS", 0.0)
    asked = []

    def blocks(start, fail):
        asked.append(start)
        if start < 5:
            yield Block(["a", "b"], torch.eye(2), torch.ones(2), read=5, skipped=["row 3 is bad", "row 4 is bad", "5"])
        if fail:
            raise KeyboardInterrupt
        yield Block(["c"], torch.ones(1, 2), torch.ones(1), read=2, skipped=["row 7 is bad"])

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "i", lambda start: blocks(start, True), model="m", dim=2)
    index = build(tmp_path / "i", lambda start: blocks(start, False), model="m", dim=2)
    assert asked == [0, 5] and index.head.skipped == 4 and list(index.texts) == ["a", "b", "c"]
    assert (tmp_path / "i" / "skipped.txt").read_text().splitlines()[-1] == "row 7 is bad"


def test_a_finished_index_is_not_built_again(tmp_path, basis, outputs):
    built(tmp_path / "i", basis, outputs)

    def never(start):
        raise AssertionError("asked for blocks")

    again = build(tmp_path / "i", never, model=fingerprint(basis), dim=basis.dim, source="outputs")
    assert len(again) == N


def test_giving_up_an_index(tmp_path, basis, outputs):
    built(tmp_path / "i", basis, outputs)
    (tmp_path / "i" / "notes.txt").write_text("mine")
    arguments = {"model": "another", "dim": basis.dim, "restart": True}
    with pytest.raises(InputError, match="exists and is not an index"):  # what is not ours is never removed
        build(tmp_path / "i", blocks_of(basis, outputs[:10]), **arguments)
    (tmp_path / "i" / "notes.txt").unlink()
    assert len(build(tmp_path / "i", blocks_of(basis, outputs[:10]), **arguments)) == 10


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["draft.json.part", "index.json.part", "neighbors.hnsw.cosine.part.new"])
def test_what_a_crash_left_is_no_stranger(tmp_path, basis, outputs, name, restart):
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / name).write_text("{")
    assert len(built(tmp_path / "i", basis, outputs[:50], restart=restart)) == 50
    built(tmp_path / "whole", basis, outputs[:50])
    assert same_bytes(tmp_path / "i", tmp_path / "whole")
    (tmp_path / "i" / name).write_text("{")
    built(tmp_path / "i", basis, outputs[:50], restart=True)
    assert same_bytes(tmp_path / "i", tmp_path / "whole")


def test_a_disk_that_was_full(tmp_path, basis, outputs, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            built(tmp_path / "i", basis, outputs[:50])
    assert [file.name for file in (tmp_path / "i").iterdir()] == ["draft.json.part"]
    assert len(built(tmp_path / "i", basis, outputs[:50])) == 50


def test_drafts_among_other_files_are_left_alone(tmp_path, basis, outputs):
    for name in ("draft.json.part", "letter.json.part"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="exists and is not an index"):
        built(tmp_path, basis, outputs, restart=True)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("finished", [True, False])
def test_giving_up_an_index_can_be_interrupted(tmp_path, basis, outputs, finished):
    """Nothing goes on with arrays that are gone, and to give it up again helps."""
    whole, old, folder = tmp_path / "whole", tmp_path / "old", tmp_path / "i"
    built(whole, basis, outputs[:700])
    arguments = {"model": fingerprint(basis), "dim": basis.dim, "source": "outputs"}
    if finished:
        built(old, basis, outputs[:700])
    else:
        with pytest.raises(KeyboardInterrupt):
            build(old, blocks_of(basis, outputs[:700], fail_after=1), **arguments)
    for step in range(1, 100):
        shutil.copytree(old, folder)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, step, after=True)
            try:
                built(folder, basis, outputs[:700], restart=True)
                break
            except KeyboardInterrupt:
                pass
        folder.mkdir(exist_ok=True)  # it is removed with the last file
        shutil.copytree(folder, tmp_path / "again")
        assert len(built(tmp_path / "again", basis, outputs[:700], restart=True)) == 700
        assert same_bytes(tmp_path / "again", whole)
        try:
            built(folder, basis, outputs[:700])
            assert same_bytes(folder, whole)
        except InputError as error:
            assert "The index is damaged" in str(error)
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "again")
    assert step > 10


def test_refused(tmp_path, index, basis, outputs, queries):
    folder = tmp_path / "i"
    built(folder, basis, outputs[:50])
    other = sketch_basis(kernels.Gaussian(0.2), outputs[:40], sketches.Full(), generator=torch.Generator())
    with pytest.raises(InputError, match="was built for another model"):
        CandidateIndex.open(folder, fingerprint(other))
    for change, what in (({"model": "x"}, "another model"), ({"source": "x"}, "another library")):
        arguments = {"model": fingerprint(basis), "dim": basis.dim, "source": "outputs"} | change
        with pytest.raises(InputError, match=f"holds an index of {what}. Choose another place, or give it up"):
            build(folder, blocks_of(basis, outputs), **arguments)
    with pytest.raises(InputError, match="another dtype"):
        built(folder, basis, outputs, dtype="float16")
    with pytest.raises(InputError, match="not an index of candidates: index.json is missing"):
        CandidateIndex.open(tmp_path / "nowhere")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(InputError, match="exists and is not an index"):
        built(tmp_path / "notes", basis, outputs)
    with pytest.raises(InputError, match="is a file"):
        built(tmp_path / "notes" / "diary.txt", basis, outputs)
    with pytest.raises(InputError, match=r"shape \(n, 12\), as the index. Got \(2, 3\)"):
        index.search(torch.ones(2, 3), 1, "kernel")
    with pytest.raises(InputError, match="row 1 are not"):
        index.search(torch.tensor([[1.0] * P, [float("nan")] * P]), 1, "kernel")
    with pytest.raises(InputError, match="k must be at least 1"):
        index.search(queries, 0, "kernel")
    with pytest.raises(InputError, match="decoding rule must be one of"):
        index.search(queries, 1, "best")


@pytest.mark.parametrize(
    "options", [{"kind": "kd-tree"}, {"dtype": "int8"}, {"rule": "best"}, {"recall": 0.0}], ids=lambda o: next(iter(o))
)
def test_options_are_checked(options):
    with pytest.raises(InputError, match="must be"):
        BuildOptions(**options)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Block(["a"], torch.ones(1, 3), torch.ones(1)), r"coordinates \(1, 2\)"),
        (Block(["a"], torch.full((1, 2), torch.inf), torch.ones(1)), "'a' has coordinates that are NaN or inf"),
        (Block(["a"], torch.full((1, 2), 1e5), torch.ones(1)), "too large for float16: build with dtype float32"),
        (Block(["a"], torch.ones(1, 2), torch.ones(1), names=[]), "as many names"),
    ],
)
def test_bad_blocks(tmp_path, block, message):
    with pytest.raises(InputError, match=message):
        build(tmp_path / "i", lambda start: iter([block]), model="m", dim=2, options=BuildOptions(dtype="float16"))


def test_an_empty_library_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="There are no candidates to index"):
        build(tmp_path / "i", lambda start: iter([]), model="m", dim=2)
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize("name", ["psi.bin", "texts.ends", "names.bin"])
def test_damage_is_seen(tmp_path, basis, outputs, name):
    folder = tmp_path / "i"
    built(folder, basis, outputs[:50])
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    with pytest.raises(InputError, match=f"damaged: .*{name} has"):
        CandidateIndex.open(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match="is missing"):
        CandidateIndex.open(folder)


def test_a_head_of_the_future_or_of_nothing(tmp_path, basis, outputs):
    folder = tmp_path / "i"
    built(folder, basis, outputs[:50])
    head = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(head | {"format": 99}))
    with pytest.raises(InputError, match="newer than this one"):
        CandidateIndex.open(folder)
    for text in ("{", "[]", "{}", '{"format": 1}'):
        (folder / "index.json").write_text(text)
        with pytest.raises(InputError, match=r"index.json is damaged"):
            CandidateIndex.open(folder)


def test_the_fingerprint_is_of_the_basis(basis, outputs):
    assert fingerprint(basis) == fingerprint(basis.to("cpu"))
    assert fingerprint(basis) != fingerprint(basis.leading(basis.dim - 1))
    assert fingerprint(basis) != fingerprint(basis.rotated(outputs[:100]))


def test_the_anchors_count():
    """The same model of capital and of small letters has the same projection."""
    words = implementations.strings(30)
    small, capital = (
        sketch_basis(kernels.NGram(2), ys, sketches.SubSample(9), generator=torch.Generator().manual_seed(0))
        for ys in (words, [word.upper() for word in words])
    )
    assert torch.equal(small.projection, capital.projection)
    assert fingerprint(small) != fingerprint(capital)


def wide(n):
    """Few columns of very many, with wide positions that a smaller type could hold, not in order."""
    counts = implementations.sparse_counts(n)
    rows = sp.csr_array((counts.data[::-1].copy(), counts.indices[::-1].copy(), counts.indptr), shape=counts.shape)
    rows.indices, rows.indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    return rows


def batched_views(n):
    return ViewBatch(GraphBatch.of(implementations.graphs(n)), implementations.bits(n))


WL, VIEWS = kernels.WeisfeilerLehman(2), kernels.Views(kernels.WeisfeilerLehman(2), kernels.Tanimoto())
FORMS = {
    "vectors": (kernels.Gaussian(0.3), implementations.vectors),
    "single precision": (kernels.Gaussian(np.float64(0.3)), lambda n: implementations.vectors(n).float()),
    "counts": (kernels.Tanimoto(), implementations.counts),
    "bits": (kernels.Tanimoto(), lambda n: implementations.bits(n).astype(bool)),
    "lists of numbers": (kernels.Linear(), lambda n: [list(row) for row in implementations.counts(n)]),
    "list of arrays": (kernels.Linear(), lambda n: list(implementations.counts(n).astype(np.float32))),
    "sparse": (kernels.Tanimoto(), implementations.sparse_counts),
    "sparse with wide positions": (kernels.Tanimoto(), wide),
    "rankings": (kernels.Kemeny(), implementations.rankings),
    "tuples": (kernels.Kemeny(), lambda n: [tuple(row) for row in implementations.rankings(n)]),
    "strings": (kernels.NGram((1, 2), (0.5, np.float32(1.5))), implementations.strings),
    "array of strings": (kernels.NGram(2), lambda n: np.array(implementations.strings(n))),
    "graphs": (2.0 * WL.normalized() + kernels.ShortestPath(), implementations.graphs),
    "graph batch": (WL, lambda n: GraphBatch.of(implementations.graphs(n))),
    "views": (VIEWS, implementations.views),
    "view batch": (VIEWS, batched_views),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_anchors_of_every_form_count(form):
    kernel, outputs = FORMS[form]
    ys = outputs(12)
    drawn = sketch_basis(kernel, ys, sketches.Full(), generator=torch.Generator())
    other = replace(drawn, anchors=take(drawn.anchors, np.arange(count(ys))[::-1].copy()))
    assert fingerprint(drawn) == fingerprint(drawn.to("cpu")) == fingerprint(replace(drawn, anchors=ys))
    assert fingerprint(drawn) != fingerprint(other)


PRINT_FINGERPRINTS = """
import sys
from dsokr import DSOKR
from dsokr.index import fingerprint

for folder in sys.argv[1:]:
    print(fingerprint(DSOKR.load(folder, device="cpu").basis_))
"""


def test_the_fingerprint_of_a_saved_model(tmp_path):
    """Whatever the form of the outputs, in another process."""
    expected = []
    for number, (kernel, outputs) in enumerate(FORMS.values()):
        sketch = sketches.Gaussian(5) if number % 2 else sketches.SubSample(5)
        training = Training(epochs=1, progress=False)
        model = DSOKR(kernel, sketch, networks.MLP((4,)), training=training, random_state=0, device="cpu")
        model.fit(implementations.vectors(12).float(), outputs(12)).save(tmp_path / str(number))
        expected.append(fingerprint(model.basis_))
    folders = [str(tmp_path / str(number)) for number in range(len(FORMS))]
    command = [sys.executable, "-c", PRINT_FINGERPRINTS, *folders]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert dict(zip(FORMS, loaded, strict=True)) == dict(zip(FORMS, expected, strict=True))
    assert len(set(expected)) == len(FORMS)


def test_no_fingerprint_of_what_is_no_plain_data(basis):
    with pytest.raises(InputError, match="A basis with a set in its kernel or among its outputs has no fingerprint"):
        fingerprint(replace(basis, anchors=[{"a"}]))


@pytest.fixture(scope="module")
def many():
    return torch.randn(12000, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.fixture(scope="module")
def plain(basis, many, tmp_path_factory):
    return built(tmp_path_factory.mktemp("plain") / "i", basis, many)


needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="needs the extra search")


@needs_faiss
class TestFaiss:
    """Approximate search, for one rule; what it finds has exact scores."""

    @pytest.mark.parametrize("rule", RULES)
    def test_distances_of_points_are_scores(self, plain, queries, rule):
        """‖(z, 0) − (v, c)‖² orders the candidates as the rule does."""
        points = torch.from_numpy(neighbors.points(plain.arrays, slice(None), rule)).double()
        asked = torch.from_numpy(neighbors._queries(queries, rule)).double()
        nearest = torch.cdist(asked, points).topk(10, largest=False).indices
        assert torch.equal(nearest, plain.search(queries, 10, rule).indices)

    @pytest.mark.parametrize(
        ("kind", "rule"), [*((kind, rule) for kind in ("flat", "hnsw") for rule in RULES), ("ivfpq", "cosine")]
    )
    def test_found_and_scored_again(self, tmp_path, basis, many, plain, queries, kind, rule):
        said = []
        index = build(
            tmp_path / "i",
            blocks_of(basis, many),
            model=fingerprint(basis),
            dim=basis.dim,
            options=BuildOptions(kind=kind, rule=rule, recall=0.9),
            say=said.append,
        )
        assert index.head.recall >= 0.9 and f"recall@10 of {index.head.recall:.3f} against exact" in said[-1]
        found, expected = index.search(queries, 10, rule), plain.search(queries, 10, rule)
        every = plain.search(queries, len(plain), rule)
        exact_scores = torch.empty_like(every.scores).scatter_(1, every.indices, every.scores)
        torch.testing.assert_close(found.scores, exact_scores.gather(1, found.indices), rtol=1e-12, atol=1e-12)
        assert (found.scores.diff(dim=1) <= 0).all()
        recall = (found.scores.float() >= expected.scores[:, -1:].float()).double().mean()
        assert recall == 1 if kind == "flat" else recall >= 0.8
        other = next(r for r in RULES if r != rule)
        assert torch.equal(index.search(queries, 10, other).indices, plain.search(queries, 10, other).indices)
        if kind == "ivfpq":  # a row for which the cells it looks into hold too few is searched exactly
            index.neighbors.effort = 1
            few = index.neighbors.search(index.arrays, queries, 1000)[1]
            expected = plain.search(queries, 1000, rule)
            assert few.any()
            assert torch.equal(index.search(queries, 1000, rule).indices[few], expected.indices[few])

    def test_of_equal_candidates_the_first(self, tmp_path):
        psi = torch.randn(400, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
        block = Block([str(i) for i in range(800)], psi, psi.square().sum(1))
        options = BuildOptions(kind="flat", rule="projected")
        index = build(tmp_path / "i", lambda start: iter([block]), model="m", dim=4, options=options)
        assert index.search(psi[5:6], 2, "projected").indices.tolist() == [[5, 405]]

    def test_candidates_orthogonal_to_the_span(self, tmp_path):
        psi = torch.zeros(200, 3)
        psi[150:, 0] = -1.0
        block = Block(["x"] * 200, psi, torch.ones(200))
        options = BuildOptions(kind="flat", rule="cosine")
        index = build(tmp_path / "i", lambda start: iter([block]), model="m", dim=3, options=options)
        found = index.search(torch.tensor([[2.0, 0, 0]]), 3, "cosine")
        assert found.scores.tolist() == [[0, 0, 0]]  # better than −2, and equal to each other

    def test_another_kind_of_the_same_candidates(self, tmp_path, basis, outputs):
        built(tmp_path / "i", basis, outputs)
        hnsw = built(tmp_path / "i", basis, outputs, kind="hnsw")
        assert hnsw.head.kind == "hnsw" and hnsw.neighbors.rule == "cosine"
        said = []
        flat = built(tmp_path / "i", basis, outputs, kind="flat", rule="kernel", say=said.append)
        assert flat.neighbors.rule == "kernel" and flat.neighbors.kind == "flat"
        assert said[-1] == "The hnsw index for the rule cosine is replaced by a flat index for the rule kernel."
        assert [file.name for file in (tmp_path / "i").glob("neighbors*")] == ["neighbors.flat.kernel.faiss"]
        said.clear()
        assert built(tmp_path / "i", basis, outputs, kind="exact", say=said.append).neighbors is None
        assert said == ["The flat index for the rule kernel is dropped: every search is exact now."]
        assert not list((tmp_path / "i").glob("neighbors*"))

    def test_without_a_kind_what_is_there_stays(self, tmp_path, basis, outputs):
        said = []
        built(tmp_path / "i", basis, outputs, kind="flat", rule="kernel")
        kept = built(tmp_path / "i", basis, outputs, say=said.append)
        assert (kept.neighbors.kind, kept.neighbors.rule) == ("flat", "kernel") and not said
        other = built(tmp_path / "i", basis, outputs, rule="projected", say=said.append)
        assert (other.neighbors.kind, other.neighbors.rule) == ("flat", "projected")
        assert "for the rule kernel is replaced by a flat index for the rule projected" in said[-1]

    def test_a_kind_that_cannot_be_built_changes_nothing(self, tmp_path, basis, outputs):
        built(tmp_path / "i", basis, outputs[:500], kind="hnsw")
        before = {file.name: file.read_bytes() for file in (tmp_path / "i").iterdir()}
        with pytest.raises(InputError, match="needs 9,984 candidates to learn from. Got 500"):
            built(tmp_path / "i", basis, outputs[:500], kind="ivfpq")
        assert before == {file.name: file.read_bytes() for file in (tmp_path / "i").iterdir()}
        assert CandidateIndex.open(tmp_path / "i").neighbors.kind == "hnsw"

    def test_the_old_one_is_good_while_the_new_one_is_built(self, tmp_path, basis, outputs, queries, monkeypatch):
        expected = built(tmp_path / "i", basis, outputs, kind="flat", rule="kernel").search(queries, 5, "kernel")

        def interrupted(*_):
            raise KeyboardInterrupt

        for what, name in ((neighbors, "points"), (neighbors.Neighbors, "search")):
            with monkeypatch.context() as patch:
                patch.setattr(what, name, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    built(tmp_path / "i", basis, outputs, kind="hnsw", rule="cosine")
            old = CandidateIndex.open(tmp_path / "i")
            assert (old.neighbors.kind, old.neighbors.rule) == ("flat", "kernel")
            assert torch.equal(old.neighbors.search(old.arrays, queries, 5)[0].indices, expected.indices)
        assert built(tmp_path / "i", basis, outputs, kind="hnsw", rule="cosine").neighbors.kind == "hnsw"

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("kind", ["hnsw", "exact"])
    def test_old_or_new_whenever_it_is_interrupted(self, tmp_path, basis, outputs, kind, after):
        built(tmp_path / "old", basis, outputs[:500], kind="flat", rule="kernel")
        left = []
        for step in range(1, 100):
            folder = tmp_path / str(step)
            shutil.copytree(tmp_path / "old", folder)
            with pytest.MonkeyPatch.context() as patch:
                interrupt_at(patch, step, after=after)
                try:
                    built(folder, basis, outputs[:500], kind=kind, rule="cosine")
                    break
                except KeyboardInterrupt:
                    pass
            left.append(CandidateIndex.open(folder).head.kind)
            assert built(folder, basis, outputs[:500], kind=kind, rule="cosine").head.kind == kind
            names = [file.name for file in folder.glob("neighbors*")]
            assert names == ([] if kind == "exact" else ["neighbors.hnsw.cosine.faiss"])
        assert left == sorted(left, key=["flat", kind].index) and left[-1] == kind
        assert left[0] == "flat"

    def test_a_finished_one_that_the_head_does_not_name_is_not_built_again(self, tmp_path, basis, outputs, monkeypatch):
        built(tmp_path / "i", basis, outputs)

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["dsokr.index.build"], "write_head", interrupted)
            with pytest.raises(KeyboardInterrupt):
                built(tmp_path / "i", basis, outputs, kind="hnsw")
        assert CandidateIndex.open(tmp_path / "i").neighbors is None
        monkeypatch.delattr(neighbors, "points")
        assert built(tmp_path / "i", basis, outputs, kind="hnsw").neighbors.faiss_index.ntotal == N

    def test_a_missing_one_is_built_again(self, tmp_path, basis, outputs):
        built(tmp_path / "i", basis, outputs, kind="flat")
        (tmp_path / "i" / "neighbors.flat.cosine.faiss").unlink()
        with pytest.raises(InputError, match="neighbors.flat.cosine.faiss cannot be read. Build it again"):
            CandidateIndex.open(tmp_path / "i")
        assert built(tmp_path / "i", basis, outputs).neighbors.faiss_index.ntotal == N

    def test_an_interrupted_faiss_build_goes_on(self, tmp_path, basis, many, monkeypatch):
        monkeypatch.setattr(neighbors, "CHECKPOINT_SECONDS", 0.0)
        monkeypatch.setattr(neighbors, "CHUNK", 1000)
        points, seen = neighbors.points, []

        def interrupted(arrays, where, rule):
            if isinstance(where, slice) and where.start == 5000:
                raise KeyboardInterrupt
            return points(arrays, where, rule)

        monkeypatch.setattr(neighbors, "points", interrupted)
        with pytest.raises(KeyboardInterrupt):
            built(tmp_path / "i", basis, many, kind="hnsw")
        assert CandidateIndex.open(tmp_path / "i").neighbors is None  # until then it is a good exact index

        def watched(arrays, where, rule):
            seen.append(where.start)
            return points(arrays, where, rule)

        monkeypatch.setattr(neighbors, "points", watched)
        index = built(tmp_path / "i", basis, many, kind="hnsw")
        assert seen == list(range(5000, 12000, 1000))
        assert index.neighbors.faiss_index.ntotal == len(many) and not list((tmp_path / "i").glob("*.part"))

    def test_the_choice_of_the_effort_can_be_interrupted(self, tmp_path, basis, many, monkeypatch):
        """What was built before is not built again."""

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(neighbors.Neighbors, "search", interrupted)
            with pytest.raises(KeyboardInterrupt):
                built(tmp_path / "i", basis, many, kind="hnsw")
        assert CandidateIndex.open(tmp_path / "i").neighbors is None
        monkeypatch.setattr(neighbors, "points", interrupted)
        index = built(tmp_path / "i", basis, many, kind="hnsw")
        assert index.neighbors.faiss_index.ntotal == len(many) and not list((tmp_path / "i").glob("*.part"))

    def test_in_half_precision(self, tmp_path, basis, many, queries):
        index = built(tmp_path / "i", basis, many, kind="hnsw", dtype="float16")
        assert index.head.recall >= 0.95

    def test_damage_is_seen(self, tmp_path, basis, outputs):
        built(tmp_path / "i", basis, outputs, kind="flat")
        (tmp_path / "i" / "neighbors.flat.cosine.faiss").write_bytes(b"nothing")
        with pytest.raises(InputError, match="neighbors.flat.cosine.faiss cannot be read"):
            CandidateIndex.open(tmp_path / "i")

    def test_too_few_to_learn_from(self, tmp_path, basis, outputs):
        with pytest.raises(InputError, match="needs 9,984 candidates to learn from. Got 3,000"):
            built(tmp_path / "i", basis, outputs, kind="ivfpq")


def test_faiss_missing(tmp_path, basis, outputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r'This needs FAISS, .* pip install "dsokr\[search\]"'):
        built(tmp_path / "i", basis, outputs, kind="hnsw")
    assert not (tmp_path / "i").exists()  # said before any work is done


def test_queries_for_recall_are_between_candidates(index):
    z = sample_queries(index, 5)
    assert z.shape == (5, P) and torch.equal(z, sample_queries(index, 5))


STUCK = """
import time
from dsokr.index import files
from dsokr.commands import embedding, prediction

prediction.BLOCK, files.COMMIT_SECONDS = 7, 0.0
usable, seen = prediction.usable, []

def stuck(*given):
    seen.append(1)
    if len(seen) == 4:
        print("stuck", flush=True)
        time.sleep(100)
    return usable(*given)

embedding.usable = stuck
from dsokr.commands.app import app
app()
"""


class TestCommands:
    """dsokr embed, rank and serve, with a real model of words."""

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("words")
        words = [a + b + c for a in "bcdfg" for b in "aeiou" for c in "lmnrst"]
        rows = [f"{ord(w[0])},{ord(w[1])},{w}" for w in words]
        (folder / "pairs.csv").write_text("x1,x2,word\n" + "\n".join(rows) + "\n")
        predictor = Predictor.fit(
            [row.split(",")[:2] for row in rows],
            words,
            input=Vector(columns=("x1", "x2")),
            output=String(),
            kernel=kernels.NGram(2),
            sketch=sketches.SubSample(40),
            network=networks.MLP((16,)),
            decoder=Candidates(),
            training=Training(epochs=3, progress=False),
            device="cpu",
        )
        facts = {"columns": {"input": ["x1", "x2"], "output": ["word"]}, "examples": [{"input": "98 97"}]}
        replace(predictor, facts=facts).save(folder / "model")
        return folder

    @pytest.fixture
    def run(self, monkeypatch, capfd):
        def run(*arguments):
            monkeypatch.setattr(sys, "argv", ["dsokr", *map(str, arguments)])
            capfd.readouterr()
            with pytest.raises(SystemExit) as stop:
                app()
            return int(stop.value.code or 0), *capfd.readouterr()

        return run

    @pytest.fixture
    def library(self, tmp_path):
        words = [a + b + "t" for a in "abcdefghij" for b in "aeiou"]
        lines = ["word,name", *(f"{word},the word {word}" for word in words), "bat,again", ",nothing", "only"]
        (tmp_path / "library.csv").write_text("\n".join(lines) + "\n")
        return tmp_path / "library.csv"

    def test_embed_and_rank(self, model, library, tmp_path, run):
        out = tmp_path / "library.idx"
        code, said, skipped = run("embed", model / "model", library, "--out", out)
        assert code == 0 and "50 candidates (1 listed again, counted once) are in the index." in said
        assert "2 rows were skipped" in skipped and f"{library}, row 54" in skipped
        assert (out / "skipped.txt").read_text().count("\n") == 2
        table, by_index = tmp_path / "a.csv", tmp_path / "b.csv"
        for place, flag, candidates in ((table, "--candidates", library), (by_index, "--index", out)):
            options = ("--out", place, "--top", 3, "--rule", "kernel")
            assert run("rank", model / "model", model / "pairs.csv", flag, candidates, *options)[0] == 0
        assert table.read_text() == by_index.read_text() and "the word" in table.read_text()

    def test_embed_fails_when_asked_to(self, model, library, tmp_path, run):
        code, _, error = run("embed", model / "model", library, "--out", tmp_path / "i", "--on-error", "fail")
        assert code == 1 and f"{library}, row 5" in error and error.startswith("dsokr: ")

    def test_embed_goes_on_after_ctrl_c(self, model, library, tmp_path, run, monkeypatch):
        out, whole = tmp_path / "i", tmp_path / "whole"
        assert run("embed", model / "model", library, "--out", whole)[0] == 0
        monkeypatch.setattr(prediction, "BLOCK", 7)
        usable, seen = prediction.usable, []

        def interrupted(predictor, block, new, problems):
            seen.append(block.rows[0])
            if len(seen) == 4:
                raise KeyboardInterrupt
            return usable(predictor, block, new, problems)

        monkeypatch.setattr(embedding, "usable", interrupted)
        code, _, error = run("embed", model / "model", library, "--out", out)
        assert code == 130 and "The same command goes on" in error
        seen.clear()
        seen += [0] * 10
        assert run("embed", model / "model", library, "--out", out)[0] == 0
        assert seen[10] == 2 + 3 * 7  # three blocks were kept
        assert same_bytes(out, whole)
        assert CandidateIndex.open(out).head.skipped == CandidateIndex.open(whole).head.skipped == 2

    def test_two_embeds_into_one_folder(self, model, library, tmp_path, run):
        """The second is refused and changes nothing; after the first was killed it goes on with what is there."""
        out, whole = tmp_path / "i", tmp_path / "whole"
        assert run("embed", model / "model", library, "--out", whole)[0] == 0
        arguments = ["embed", model / "model", library, "--out", out]
        command = [sys.executable, "-c", STUCK, *map(str, arguments)]
        first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert first.stdout.readline() == "stuck\n"
            written = {file.name: file.read_bytes() for file in out.iterdir()}
            for restart in ([], ["--restart"]):
                code, _, error = run(*arguments, *restart)
                assert code == 1 and error.count("\n") == 1
                assert f"{out} is being written by another `dsokr embed` (process {first.pid})" in error
            assert written == {file.name: file.read_bytes() for file in out.iterdir()}
        finally:
            first.send_signal(signal.SIGKILL)
            first.communicate()
        assert run(*arguments)[0] == 0
        assert same_bytes(out, whole)

    @needs_faiss
    def test_embed_again_without_a_kind(self, model, library, tmp_path, run):
        arguments = ["embed", model / "model", library, "--out", tmp_path / "i"]
        assert run(*arguments, "--kind", "hnsw", "--rule", "projected")[0] == 0
        code, _, said = run(*arguments)
        assert code == 0 and "dropped" not in said and "replaced" not in said
        head = CandidateIndex.open(tmp_path / "i").head
        assert (head.kind, head.rule) == ("hnsw", "projected")
        code, _, said = run(*arguments, "--kind", "exact")
        assert code == 0 and "The hnsw index for the rule projected is dropped: every search is exact now." in said

    def test_embed_as_json(self, model, library, tmp_path, run):
        code, said, _ = run("embed", model / "model", library, "--out", tmp_path / "i", "--dtype", "float16", "--json")
        facts = json.loads(said)
        assert code == 0 and facts["candidates"] == 50 and facts["skipped"] == 2 and facts["kind"] == "exact"

    @pytest.mark.parametrize("with_index", [True, False])
    def test_serve(self, model, library, tmp_path, run, monkeypatch, with_index):
        pytest.importorskip("fastapi", reason="needs the extra serve")
        from dsokr.serve import server

        served = []
        monkeypatch.setattr(server, "run", lambda *given, say: served.append(given))
        arguments = ["serve", model / "model", "--port", 0, "--max-k", 7]
        if with_index:
            run("embed", model / "model", library, "--out", tmp_path / "i")
            arguments += ["--index", tmp_path / "i"]
        code, *said = run(*arguments)
        assert code == 0, said
        app, host, port = served[0]
        assert (host, port) == ("127.0.0.1", 0) and "/predict" in app.openapi()["paths"]
        inputs = app.openapi()["components"]["schemas"]["Inputs"]["properties"]
        assert inputs["k"]["maximum"] == 7 and inputs["inputs"]["items"]["maxItems"] == 2

    def test_serve_needs_its_extra(self, model, run, monkeypatch):
        for name in [name for name in sys.modules if name.startswith("dsokr.serve")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "fastapi", None)
        code, _, error = run("serve", model / "model")
        assert code == 1 and 'This needs FastAPI, which is not installed: pip install "dsokr[serve]"' in error

    def test_an_index_of_another_model(self, model, library, tmp_path, run):
        predictor = Predictor.load(model / "model", "cpu")
        other = replace(predictor.model.basis_, projection=2 * predictor.model.basis_.projection)
        run("embed", model / "model", library, "--out", tmp_path / "i")
        with pytest.raises(InputError, match="was built for another model"):
            CandidateIndex.open(tmp_path / "i", fingerprint(other))
        head = json.loads((tmp_path / "i" / "index.json").read_text())
        (tmp_path / "i" / "index.json").write_text(json.dumps(head | {"model": "other"}))
        code, _, error = run("serve", model / "model", "--index", tmp_path / "i")
        assert code == 1 and "was built for another model" in error
