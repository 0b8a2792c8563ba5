"""Candidates on disk: the same answers as in memory, whatever happened while they were written."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import implementations
from dsokr import DSOKR, kernels, sketch_basis, sketches
from dsokr.commands import library
from dsokr.commands.app import app
from dsokr.commands.columns import String, Vector
from dsokr.commands.predictor import Predictor
from dsokr.decoders import EmbeddedOutputs, scan
from dsokr.errors import InputError, MissingExtraError, ModelFolderError
from dsokr.files import lock_folder
from dsokr.graphs import GraphBatch
from dsokr.index import Block, BuildOptions, CandidateIndex, Head, build, candidates, fingerprint, stored
from dsokr.index.build import sample_queries
from dsokr.outputs import ViewBatch, count, take
from dsokr.regressors import KernelRidge
from dsokr.rules import RULES, as_points, as_queries

N, P = 2000, 12
builds = sys.modules["dsokr.index.build"]  # the package has a function of this name
needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="needs the extra search")


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


@pytest.fixture(scope="module")
def builder(basis, outputs):
    """Builds indexes of the first outputs, called y0, y1, …; Ctrl-C comes after ``fail_after`` blocks of 500."""
    psi, diag, model = basis.embed(outputs), basis.diag(outputs), fingerprint(basis)

    def build_index(folder, n=N, *, fail_after=None, asked=None, source="outputs", **given):
        def blocks(start):
            if asked is not None:
                asked.append(start)
            for number, at in enumerate(range(start, n, 500)):
                if number == fail_after:
                    raise KeyboardInterrupt
                some = slice(at, min(at + 500, n))
                texts = [f"y{i}" for i in range(n)[some]]
                yield Block(texts, psi[some], diag[some], names=[f"name of {text}" for text in texts])

        own = {name: given.pop(name) for name in ("say", "restart", "model") if name in given}
        options = BuildOptions(**given)
        return build(folder, blocks, **{"model": model, **own}, dim=P, source=source, options=options)

    return build_index


@pytest.fixture(scope="module")
def index(builder, tmp_path_factory):
    return builder(tmp_path_factory.mktemp("index") / "library.idx")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def one_block(folder, psi, diag, texts=None, **options):
    block = Block([str(i) for i in range(len(psi))] if texts is None else texts, psi, diag)
    options = BuildOptions(**options)
    return build(folder, lambda start: iter([block][start:]), model="m", dim=psi.shape[1], options=options)


class TestSearch:
    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("k", [1, 10, N, 2 * N])
    def test_exact_search_is_that_of_candidates_in_memory(self, index, basis, outputs, queries, rule, k):
        expected = EmbeddedOutputs(basis, outputs).top(queries, k, rule)
        found = index.search(queries, k, rule)
        assert found.scores.shape == expected.scores.shape
        torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-6)
        assert all(len(set(row)) == len(row) for row in found.indices.tolist())
        if k <= 10:  # coordinates are stored in single precision: near ties may stand the other way
            assert torch.equal(found.indices, expected.indices)

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize(("block", "rows", "pairs"), [(37, 3, 5), (100, 64, 16), (N - 1, 1, 65536)])
    def test_the_size_of_blocks_changes_nothing(self, index, queries, rule, monkeypatch, block, rows, pairs):
        expected = index.search(queries, 25, rule)
        monkeypatch.setattr(candidates, "NUMBERS", block * P)
        monkeypatch.setattr(scan, "QUERIES", rows)
        monkeypatch.setattr(scan, "PAIRS", pairs)
        found = index.search(queries, 25, rule)
        assert torch.equal(found.indices, expected.indices)
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("rule", RULES)
    def test_of_tied_candidates_the_first(self, rule, monkeypatch):
        monkeypatch.setattr(candidates, "NUMBERS", 16 * 5)
        generator = torch.Generator().manual_seed(0)
        psi = torch.randn(4, 5, generator=generator).repeat(25, 1)  # 25 copies of four candidates
        index = CandidateIndex.in_memory([str(i) for i in range(100)], psi, psi.square().sum(1) + 0.5)
        z = torch.randn(6, 5, generator=generator, dtype=torch.float64)
        for row in index.search(z, 60, rule).indices.tolist():
            runs = [row[:25], row[25:50], row[50:]]
            assert all(run == list(range(run[0], run[0] + 4 * len(run), 4)) and run[0] < 4 for run in runs)
        assert index.search(torch.zeros(2, 5), 5, "cosine").indices.tolist() == [[0, 1, 2, 3, 4]] * 2

    def test_large_and_small_coordinates_are_ranked_alike(self, index, queries):
        usual = index.search(queries, 10, "cosine").indices
        for scale in (1e-9, 1e9):
            assert torch.equal(index.search(scale * queries, 10, "cosine").indices, usual)

    def test_no_queries(self, index):
        assert index.search(torch.empty(0, P), 3, "kernel").indices.shape == (0, 3)

    def test_cosines(self, index, basis, outputs, queries, monkeypatch):
        monkeypatch.setattr(scan, "PAIRS", 12)  # several parts
        found = index.search(queries, 4, "kernel")
        expected = torch.cosine_similarity(queries[:, None], basis.embed(outputs)[found.indices], dim=2)
        torch.testing.assert_close(index.cosines(queries, found.indices), expected, rtol=0, atol=1e-6)
        assert not index.cosines(0 * queries, found.indices).any()

    @pytest.mark.parametrize("rule", RULES)
    def test_half_precision_is_half_the_size_and_nearly_as_good(self, tmp_path, index, builder, queries, rule):
        half = builder(tmp_path / "half", dtype="float16")
        assert (tmp_path / "half" / "psi.bin").stat().st_size == N * P * 2
        found, expected = half.search(queries, 10, rule), index.search(queries, 10, rule)
        torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=3e-3)
        shared = [len(set(a) & set(b)) for a, b in zip(found.indices.tolist(), expected.indices.tolist(), strict=True)]
        assert np.mean(shared) > 9.5

    @pytest.mark.parametrize(
        ("z", "k", "rule", "message"),
        [
            (torch.ones(2, 3), 1, "kernel", r"shape \(n, 12\), as the index. Got \(2, 3\)"),
            (torch.tensor([[1.0] * P, [float("nan")] * P]), 1, "kernel", "Row 1 is not"),
            (torch.full((1, P), 1e13), 1, "kernel", r"at most 1e\+12 in size. Row 0 is not"),
            (torch.ones(1, P), 0, "kernel", "k must be an integer of at least 1"),
            (torch.ones(1, P), 1, "best", "decoding rule must be one of"),
        ],
    )
    def test_refused(self, index, z, k, rule, message):
        with pytest.raises(InputError, match=message):
            index.search(z, k, rule)


class TestTexts:
    def test_texts_and_names(self, index):
        assert len(index) == len(index.texts) == N
        assert (index.texts[0], index.texts[-1], index.names[7]) == ("y0", f"y{N - 1}", "name of y7")
        assert index.texts[2:4] == ["y2", "y3"]
        with pytest.raises(IndexError):
            index.texts[N]

    def test_of_any_alphabet(self, tmp_path):
        texts = ["", "ψ̃(y)", "分子", 'a\n"b\\', "C1=CC=CC=C1"]
        index = one_block(tmp_path / "i", torch.eye(5), torch.ones(5), texts)
        assert list(index.texts) == texts and list(index.names) == [""] * 5


class TestBuild:
    @pytest.mark.parametrize("crash", [False, True])
    def test_an_interrupted_build_resumes(self, tmp_path, index, builder, queries, monkeypatch, crash):
        """After Ctrl-C, or a crash in the middle of a block. The files are those of a build in one go."""
        monkeypatch.setattr(builds, "COMMIT_SECONDS", 0.0 if crash else 1e9)
        folder, asked, said = tmp_path / "library.idx", [], []
        with pytest.raises(KeyboardInterrupt):
            builder(folder, fail_after=3, asked=asked)
        with pytest.raises(ModelFolderError, match="is unfinished. Run the command that builds it again"):
            CandidateIndex.open(folder)
        if crash:
            for name in ("psi.bin", "texts.jsonl"):
                with (folder / name).open("ab") as file:
                    file.write(b"half a row")
        again = builder(folder, asked=asked, say=said.append)
        assert asked == [0, 1500] and "Resuming after 1,500 candidates" in said[0]
        builder(tmp_path / "whole")
        assert contents(folder) == contents(tmp_path / "whole")
        assert torch.equal(again.search(queries, 5, "cosine").indices, index.search(queries, 5, "cosine").indices)

    def test_an_error_inside_a_block_keeps_the_blocks_before_it(self, tmp_path, builder, monkeypatch):
        """A full disk, say: what was written of the block is cut off."""
        dumps, failing = json.dumps, [True]

        def full(value, **options):
            if value == ("y700", "name of y700") and failing and failing.pop():
                raise OSError(28, "No space left on device")
            return dumps(value, **options)

        monkeypatch.setattr(builds.json, "dumps", full)
        with pytest.raises(OSError, match="No space left"):
            builder(tmp_path / "i", 1000)
        asked = []
        builder(tmp_path / "i", 1000, asked=asked)
        builder(tmp_path / "whole", 1000)
        assert asked == [500] and contents(tmp_path / "i") == contents(tmp_path / "whole")

    def test_rows_left_out_are_counted_and_not_read_again(self, tmp_path):
        asked = []

        def blocks(start, fail):
            asked.append(start)
            if start < 5:
                bad = ["row 3 is bad", "row 4 is bad", "row 5 is bad"]
                yield Block(["a", "b"], torch.eye(2), torch.ones(2), read=5, skipped=bad)
            if fail:
                raise KeyboardInterrupt
            yield Block(["c"], torch.ones(1, 2), torch.ones(1), read=2, skipped=["row 7 is bad"])
            yield Block([], torch.ones(0, 2), torch.ones(0), read=1, skipped=["row 8 is bad"])

        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "i", lambda start: blocks(start, True), model="m", dim=2)
        reports = []
        index = build(tmp_path / "i", lambda start: blocks(start, False), model="m", dim=2, progress=reports.append)
        assert asked == [0, 5] and index.head.skipped == 5 and list(index.texts) == ["a", "b", "c"]
        assert (tmp_path / "i" / "skipped.txt").read_text() == "".join(f"row {i} is bad\n" for i in (3, 4, 5, 7, 8))
        assert [report[:3] for report in reports] == [(3, 7, 4), (3, 8, 5)] and reports[0].rate > 0

    def test_a_finished_index_is_not_built_again(self, tmp_path, builder):
        asked = []
        builder(tmp_path / "i", 50)
        assert len(builder(tmp_path / "i", 50, asked=asked)) == 50 and not asked

    @pytest.mark.parametrize(
        ("before", "options"),
        [
            ("nothing", {}),
            ("unfinished", {"restart": True}),
            ("finished", {"restart": True}),
            pytest.param("finished", {"kind": "hnsw"}, marks=needs_faiss),
            pytest.param("hnsw", {"kind": "hnsw", "rule": "kernel"}, marks=needs_faiss),
            pytest.param("hnsw", {"kind": "exact"}, marks=needs_faiss),
            pytest.param("hnsw", {"restart": True}, marks=needs_faiss),
        ],
        ids=str,
    )
    def test_interrupted_after_any_change_of_a_file(self, tmp_path, builder, monkeypatch, before, options):
        """The folder holds the old index, an unfinished one or the new one, and the same call finishes the new one."""
        monkeypatch.setitem(builds.EFFORTS, "hnsw", [32])
        old, folder = tmp_path / "old", tmp_path / "i"
        old.mkdir()
        if before == "unfinished":
            with pytest.raises(KeyboardInterrupt):
                builder(old, 600, fail_after=1)
        elif before != "nothing":
            builder(old, 600, kind={"hnsw": "hnsw"}.get(before))
        new = {name: value for name, value in options.items() if name != "restart"}
        builder(tmp_path / "new", 600, **new)
        expected, states = contents(tmp_path / "new"), []
        for step in range(1, 100):
            shutil.copytree(old, folder)
            with pytest.MonkeyPatch.context() as patch:
                interrupt_after(patch, step)
                try:
                    builder(folder, 600, **options)
                    break
                except KeyboardInterrupt:
                    pass
            try:
                states.append(CandidateIndex.open(folder).head.finished)
            except ModelFolderError as error:
                assert "is unfinished" in str(error) or "is not an index" in str(error)
                states.append(False)
            builder(folder, 600, **options)
            assert contents(folder) == expected
            shutil.rmtree(folder)
        assert contents(folder) == expected and step > 2
        if "kind" in options:
            assert all(states)

    def test_a_reader_of_an_index_that_is_discarded(self, tmp_path, builder, queries):
        """It has mapped the files: they must not shrink."""
        reader = builder(tmp_path / "i")
        before = reader.search(queries, 5, "kernel")
        builder(tmp_path / "i", 100, restart=True)
        assert torch.equal(reader.search(queries, 5, "kernel").scores, before.scores)

    def test_other_files_are_left_alone(self, tmp_path, builder):
        (tmp_path / "notes.txt").write_text("mine")
        for restart in (False, True):
            with pytest.raises(InputError, match="exists and is not an index"):
                builder(tmp_path, 50, restart=restart)
        assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
        with pytest.raises(InputError, match="notes.txt is not a folder"):
            builder(tmp_path / "notes.txt", 50)

    def test_what_a_crash_left_is_no_stranger(self, tmp_path, builder):
        for name in (".part-index.json", ".part-hnsw.cosine.faiss", ".lock"):
            (tmp_path / name).write_text("{")
        assert len(builder(tmp_path, 50)) == 50
        assert {file.name for file in tmp_path.iterdir()} == {"index.json", *stored.FILES}

    def test_an_empty_library_leaves_nothing_behind(self, tmp_path):
        with pytest.raises(InputError, match="There are no candidates to index"):
            build(tmp_path / "i", lambda start: iter([]), model="m", dim=2)
        assert not (tmp_path / "i").exists()

    @pytest.mark.parametrize(
        "change", [{"model": "another model"}, {"source": "another library"}, {"dtype": "float16"}], ids=str
    )
    @pytest.mark.parametrize("finished", [True, False])
    def test_an_index_of_something_else(self, tmp_path, builder, change, finished):
        if finished:
            builder(tmp_path, 600)
        else:
            with pytest.raises(KeyboardInterrupt):
                builder(tmp_path, 600, fail_after=1)
        other = "another dtype" if "dtype" in change else next(iter(change.values()))
        with pytest.raises(InputError, match=f"holds an index of {other}. Choose another folder, or discard it with"):
            builder(tmp_path, 600, **change)
        assert len(builder(tmp_path, 10, restart=True, **change)) == 10

    @pytest.mark.parametrize(
        "options",
        [{"kind": "flat"}, {"dtype": "int8"}, {"rule": "best"}, {"recall": 0.0}],
        ids=lambda o: next(iter(o)),
    )
    def test_options_are_checked(self, options):
        with pytest.raises(InputError, match="must be"):
            BuildOptions(**options)

    @pytest.mark.parametrize(
        ("block", "message"),
        [
            (Block(["a"], torch.ones(1, 3), torch.ones(1)), r"needs coordinates \(1, 2\).* Got \(1, 3\)"),
            (Block(["a"], torch.ones(1, 2), torch.ones(2)), r"a diagonal \(1,\).* \(2,\)"),
            (Block(["a"], torch.full((1, 2), torch.inf), torch.ones(1)), "'a' has coordinates that are not finite"),
            (Block(["a"], torch.full((1, 2), 1e5), torch.ones(1)), "not finite in float16"),
            (Block(["a"], torch.ones(1, 2), torch.tensor([torch.nan])), "not finite"),
            (Block(["a"], torch.ones(1, 2), torch.ones(1), names=[]), "1 names or none"),
        ],
    )
    def test_bad_blocks(self, tmp_path, block, message):
        with pytest.raises(InputError, match=message):
            build(tmp_path / "i", lambda start: iter([block]), model="m", dim=2, options=BuildOptions(dtype="float16"))


def interrupt_after(patch, step):
    """Ctrl-C after the ``step``-th time that a file is renamed or removed."""
    done = []

    def interrupted(act):
        def acted(*given, **named):
            act(*given, **named)
            done.append(given)
            if len(done) == step:
                raise KeyboardInterrupt

        return acted

    patch.setattr(os, "replace", interrupted(os.replace))
    patch.setattr(Path, "unlink", interrupted(Path.unlink))


class TestOpen:
    @pytest.mark.parametrize("name", ["psi.bin", "ends.bin", "texts.jsonl"])
    def test_damage_is_seen(self, tmp_path, builder, name):
        builder(tmp_path, 50)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
        with pytest.raises(ModelFolderError, match=f"damaged: .*{name} has .* bytes. Build it again, with --restart"):
            CandidateIndex.open(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(ModelFolderError, match=f"{name} has 0 of"):
            CandidateIndex.open(tmp_path)

    @pytest.mark.parametrize(
        "text", ["{", "[]", "{}", '{"format": 5}', '{"format": 5, "model": "m", "dim": 1, "x": 0}']
    )
    def test_a_damaged_head(self, tmp_path, text):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(ModelFolderError, match=r"index.json is damaged .* Embed the candidates again."):
            CandidateIndex.open(tmp_path)

    @pytest.mark.parametrize("version", [1, 99])
    def test_a_head_of_another_version(self, tmp_path, builder, version):
        builder(tmp_path, 50)
        head = json.loads((tmp_path / "index.json").read_text())
        (tmp_path / "index.json").write_text(json.dumps(head | {"format": version}))
        for use in (CandidateIndex.open, lambda folder: builder(folder, 50)):
            with pytest.raises(
                ModelFolderError, match="built by another version of dsokr. Embed the candidates again."
            ):
                use(tmp_path)
        assert len(builder(tmp_path, 50, restart=True)) == 50

    def test_what_is_not_an_index_of_this_model(self, tmp_path, builder, outputs):
        builder(tmp_path / "i", 50)
        other = sketch_basis(kernels.Gaussian(0.2), outputs[:40], sketches.Full())
        with pytest.raises(InputError, match="was built for another model"):
            CandidateIndex.open(tmp_path / "i", fingerprint(other))
        with pytest.raises(ModelFolderError, match="is not an index: index.json is missing"):
            CandidateIndex.open(tmp_path / "nowhere")


WL, VIEWS = kernels.WeisfeilerLehman(2), kernels.Views(kernels.WeisfeilerLehman(2), kernels.Tanimoto())
FORMS = {
    "vectors": (kernels.Gaussian(0.3), implementations.vectors),
    "counts": (kernels.Tanimoto(), implementations.counts),
    "lists of numbers": (kernels.Linear(), lambda n: [list(row) for row in implementations.counts(n)]),
    "sparse": (kernels.Tanimoto(), implementations.sparse_counts),
    "rankings": (kernels.Kemeny(), lambda n: [tuple(row) for row in implementations.rankings(n)]),
    "strings": (kernels.NGram((1, 2), (0.5, np.float32(1.5))), implementations.strings),
    "graphs": (2.0 * WL.normalized() + kernels.ShortestPath(), implementations.graphs),
    "graph batch": (WL, lambda n: GraphBatch.of(implementations.graphs(n))),
    "views": (VIEWS, implementations.views),
    "view batch": (VIEWS, lambda n: ViewBatch(GraphBatch.of(implementations.graphs(n)), implementations.bits(n))),
}


class TestFingerprint:
    @pytest.mark.parametrize("form", FORMS)
    def test_the_anchors_count(self, form):
        """And the kernel, and the projection."""
        kernel, made = FORMS[form]
        basis = sketch_basis(kernel, made(12), sketches.Full())
        same = sketch_basis(kernel, made(12), sketches.Full())
        backwards = take(basis.anchors, np.arange(count(basis.anchors))[::-1].copy())
        others = [replace(basis, anchors=backwards), replace(basis, kernel=2.0 * kernel), basis.rotated(basis.anchors)]
        assert fingerprint(basis) == fingerprint(same) == fingerprint(basis.to("cpu"))
        assert len({fingerprint(other) for other in (basis, *others, basis.leading(basis.dim - 1))}) == 5

    def test_of_a_model_loaded_in_another_process(self, tmp_path):
        expected = {}
        for form, (kernel, made) in FORMS.items():
            model = DSOKR(kernel, sketches.SubSample(5), KernelRidge(kernels.Gaussian(0.1)), random_state=0)
            model.fit(implementations.vectors(12), made(12)).save(tmp_path / form)
            expected[str(tmp_path / form)] = fingerprint(model.basis_)
        code = (
            "import sys; from dsokr import DSOKR; from dsokr.index import fingerprint\n"
            "for folder in sys.argv[1:]: print(fingerprint(DSOKR.load(folder, device='cpu').basis_))"
        )
        loaded = subprocess.run([sys.executable, "-c", code, *expected], check=True, capture_output=True, text=True)
        assert loaded.stdout.split() == list(expected.values())


@needs_faiss
class TestFaiss:
    """Approximate search, for one rule; what it finds has exact scores."""

    @pytest.mark.parametrize("rule", RULES)
    def test_nearest_neighbours_are_the_best_candidates(self, index, queries, rule):
        points = as_points(index.arrays.psi.double(), index.arrays.diag, rule)
        nearest = torch.cdist(as_queries(queries, rule), points).topk(10, largest=False).indices
        assert torch.equal(nearest, index.search(queries, 10, rule).indices)

    @pytest.fixture(scope="class")
    @classmethod
    def many(cls, basis, tmp_path_factory):
        """An index of as many candidates as ivfpq needs."""
        ys = torch.randn(10_000, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        return one_block(tmp_path_factory.mktemp("many") / "i", basis.embed(ys), basis.diag(ys))

    @pytest.mark.parametrize(
        ("kind", "rule", "dtype"),
        [*(("hnsw", rule, "float32") for rule in RULES), ("hnsw", "kernel", "float16"), ("ivfpq", "cosine", "float32")],
    )
    def test_found_and_scored_again(self, tmp_path, many, queries, kind, rule, dtype):
        psi, diag = (
            many.arrays.psi[: None if kind == "ivfpq" else N],
            many.arrays.diag[: None if kind == "ivfpq" else N],
        )
        said = []
        block = Block([""] * len(psi), psi, diag)
        options = BuildOptions(kind=kind, rule=rule, recall=0.9, dtype=dtype)
        index = build(tmp_path, lambda at: iter([block]), model="m", dim=P, options=options, say=said.append)
        assert index.head.recall >= 0.9 and f"recall@10 of {index.head.recall:.3f} against exact" in said[-1]
        found, expected = index.search(queries, 10, rule), index.search_exactly(queries, 10, rule)
        every = index.search_exactly(queries, len(index), rule)
        exact_scores = torch.empty_like(every.scores).scatter_(1, every.indices, every.scores)
        torch.testing.assert_close(found.scores, exact_scores.gather(1, found.indices), rtol=1e-12, atol=1e-12)
        assert (found.scores.diff(dim=1) <= 0).all()
        assert (found.scores.float() >= expected.scores[:, -1:].float()).double().mean() >= 0.8
        other = next(r for r in RULES if r != rule)
        assert torch.equal(index.search(queries, 10, other).indices, index.search_exactly(queries, 10, other).indices)
        if kind == "ivfpq":  # rows for which one cell holds too few candidates are searched exactly
            index.head = replace(index.head, effort=1)
            few = (candidates.find_neighbors(index.faiss_index, index.head, queries, 1000) >= 0).sum(dim=1) < 1000
            expected = index.search_exactly(queries, 1000, rule)
            assert few.any()
            assert torch.equal(index.search(queries, 1000, rule).indices[few], expected.indices[few])

    def test_of_tied_candidates_the_first(self, tmp_path):
        psi = torch.randn(400, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
        index = one_block(tmp_path / "i", psi, psi.square().sum(1), kind="hnsw", rule="projected")
        assert index.search(psi[5:6], 2, "projected").indices.tolist() == [[5, 405]]

    def test_candidates_orthogonal_to_the_span(self, tmp_path):
        psi = torch.zeros(200, 3)
        psi[150:, 0] = -1.0
        index = one_block(tmp_path / "i", psi, torch.ones(200), kind="hnsw", rule="cosine")
        found = index.search(torch.tensor([[2.0, 0, 0]]), 3, "cosine")
        assert found.scores.tolist() == [[0, 0, 0]]  # better than −2, and tied

    def test_another_kind_of_the_same_candidates(self, tmp_path, builder):
        """Without a kind what is there stays."""

        def change(**options):
            said.clear()
            head = builder(tmp_path, 500, say=said.append, **options).head
            assert [file.name for file in tmp_path.glob("*.faiss")] == (
                [] if head.kind == "exact" else [f"{head.kind}.{head.rule}.faiss"]
            )
            return head.kind, head.rule

        said = []
        assert change() == ("exact", None)
        assert change(kind="hnsw") == ("hnsw", "cosine") and not any("replaced" in line for line in said)
        assert change() == ("hnsw", "cosine") and not said
        assert change(rule="kernel") == ("hnsw", "kernel")
        assert said[-1] == "The hnsw index for the rule cosine is replaced by hnsw search for the rule kernel."
        assert change(kind="exact") == ("exact", None)
        assert said == ["The hnsw index for the rule kernel is replaced by exact search."]

    def test_a_kind_that_cannot_be_built_changes_nothing(self, tmp_path, builder):
        builder(tmp_path, 500, kind="hnsw")
        before = contents(tmp_path)
        with pytest.raises(InputError, match="An ivfpq index needs at least 9,984 candidates. Got 500."):
            builder(tmp_path, 500, kind="ivfpq")
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("step", ["build_faiss", "_choose_effort"])
    def test_the_old_one_answers_while_the_new_one_is_built(self, tmp_path, builder, queries, monkeypatch, step):
        def interrupted(*_):
            raise KeyboardInterrupt

        expected = builder(tmp_path, kind="hnsw", rule="kernel").search(queries, 5, "kernel")
        with monkeypatch.context() as patch:
            patch.setattr(builds, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                builder(tmp_path, kind="hnsw", rule="cosine")
        old = CandidateIndex.open(tmp_path)
        assert (old.head.kind, old.head.rule) == ("hnsw", "kernel")
        assert torch.equal(old.search(queries, 5, "kernel").indices, expected.indices)
        assert builder(tmp_path, kind="hnsw", rule="cosine").head.rule == "cosine"

    def test_a_damaged_or_missing_one(self, tmp_path, builder):
        builder(tmp_path, 500, kind="hnsw")
        (tmp_path / "hnsw.cosine.faiss").write_bytes(b"nothing")
        with pytest.raises(ModelFolderError, match="checksum of .*hnsw.cosine.faiss is wrong. Build it again, with"):
            CandidateIndex.open(tmp_path)
        (tmp_path / "hnsw.cosine.faiss").unlink()
        with pytest.raises(ModelFolderError, match="checksum of .*hnsw.cosine.faiss is wrong"):
            CandidateIndex.open(tmp_path)
        assert builder(tmp_path, 500).faiss_index.ntotal == 500  # a missing one is built again

    def test_a_recall_that_is_not_reached(self, tmp_path, builder, monkeypatch):
        monkeypatch.setitem(builds.EFFORTS, "hnsw", [32, 48])
        monkeypatch.setattr(candidates, "find_neighbors", lambda faiss, head, z, k: torch.arange(15).repeat(len(z), 1))
        said = []
        head = builder(tmp_path, kind="hnsw", say=said.append).head
        assert head.recall < 0.1 and head.effort == 48 and said[-1].endswith("below the 0.95 asked for")


def test_faiss_missing(tmp_path, builder, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r'This needs faiss, .* pip install "dsokr\[search\]"'):
        builder(tmp_path / "i", kind="hnsw")
    assert not (tmp_path / "i").exists()  # said before any work is done


def test_queries_for_recall_are_between_candidates(index):
    z = sample_queries(index, 5)
    assert z.shape == (5, P) and torch.equal(z, sample_queries(index, 5))
    assert index.search(z, 1, "cosine").scores.min() > 0


def test_a_head_survives_the_disk(tmp_path):
    head = Head("m", 3, sizes={"texts.jsonl": 5}, kind="hnsw", rule="cosine", recall=0.5)
    head.write(tmp_path)
    assert Head.read_from(tmp_path) == head


def read_ranking(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return rows, [float(row.pop("score")) for row in rows]


class TestCommands:
    """dsokr embed, rank and serve, with a real model of words."""

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("words")
        words = [a + b + c for a in "bcdfg" for b in "aeiou" for c in "lmnrst"]
        cells = [f"{ord(word[0])};{ord(word[1])}" for word in words]
        rows = [f"{cell.replace(';', ',')},{word}" for cell, word in zip(cells, words, strict=True)]
        (folder / "pairs.csv").write_text("x1,x2,word\n" + "\n".join(rows) + "\n")
        model = DSOKR(kernels.NGram(2), sketches.SubSample(40), KernelRidge(kernels.Gaussian(0.1)), random_state=0)
        predictor = Predictor.fit(model, Vector(("x1", "x2")), String(("word",)), cells, words)
        replace(predictor, facts={"examples": [{"input": "98 97"}]}).save(folder / "model")
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
    def embed(self, model, tmp_path, run):
        """Embeds a library of 50 words, of which one stands twice, and two rows that are bad."""
        words = [a + b + "t" for a in "abcdefghij" for b in "aeiou"]
        lines = ["word,name", *(f"{word},the word {word}" for word in words), "bat,again", ",nothing", "only"]
        (tmp_path / "library.csv").write_text("\n".join(lines) + "\n")
        return lambda out, *options: run(
            "embed", model / "model", tmp_path / "library.csv", "--out", tmp_path / out, *options
        )

    def test_embed_and_rank(self, model, tmp_path, run, embed):
        code, said, skipped = embed("i")
        assert code == 0 and "50 candidates (1 listed again, counted once) in the index" in said
        assert "2 rows were skipped" in skipped and "library.csv, row 54" in skipped
        assert (tmp_path / "i" / "skipped.txt").read_text().count("\n") == 2
        for name, flag, place in (("a", "--candidates", "library.csv"), ("b", "--index", "i")):
            options = ("--out", tmp_path / f"{name}.csv", "--top", 3, "--rule", "kernel")
            assert run("rank", model / "model", model / "pairs.csv", flag, tmp_path / place, *options)[0] == 0
        (a, scores), (b, others) = (read_ranking(tmp_path / name) for name in ("a.csv", "b.csv"))
        assert a == b and scores == pytest.approx(others, abs=1e-5) and len(a) == 3 * 150
        assert all(row["name"] == f"the word {row['prediction']}" for row in a)

    def test_embed_fails_when_asked_to(self, embed):
        code, _, error = embed("i", "--on-error", "fail")
        assert code == 1 and "library.csv, row 5" in error and error.startswith("dsokr: ")

    def test_embed_resumes_after_ctrl_c(self, tmp_path, embed, monkeypatch):
        assert embed("whole")[0] == 0
        monkeypatch.setattr(library, "BLOCK", 7)
        read, seen = String.read, []

        def interrupted(kind, cells, kernel):
            seen.append(cells)
            if len(seen) == 4:
                raise KeyboardInterrupt
            return read(kind, cells, kernel)

        monkeypatch.setattr(String, "read", interrupted)
        code, _, error = embed("i")
        assert code == 130 and "Run the same command to resume" in error
        assert Head.read_from(tmp_path / "i").count == 21  # three blocks were kept
        assert embed("i")[0] == 0
        assert contents(tmp_path / "i") == contents(tmp_path / "whole")

    @pytest.mark.parametrize("options", [(), ("--restart",)])
    def test_two_embeds_into_one_folder(self, tmp_path, embed, options):
        """The second is refused and changes nothing."""
        assert embed("i")[0] == 0
        with lock_folder(tmp_path / "i", "dsokr embed"):
            before = contents(tmp_path / "i")
            code, _, error = embed("i", *options)
            assert code == 1 and f"{tmp_path / 'i'} is being written by another `dsokr embed`" in error
            assert contents(tmp_path / "i") == before

    @needs_faiss
    def test_embed_again_without_a_kind(self, tmp_path, embed):
        assert embed("i", "--kind", "hnsw", "--rule", "projected")[0] == 0
        code, _, said = embed("i")
        assert code == 0 and "replaced" not in said
        head = CandidateIndex.open(tmp_path / "i").head
        assert (head.kind, head.rule) == ("hnsw", "projected")
        code, _, said = embed("i", "--kind", "exact")
        assert code == 0 and "The hnsw index for the rule projected is replaced by exact search." in said

    def test_embed_as_json(self, embed):
        code, said, _ = embed("i", "--dtype", "float16", "--json")
        facts = json.loads(said)
        assert code == 0 and facts["candidates"] == 50 and facts["skipped"] == 2 and facts["kind"] == "exact"

    @pytest.mark.parametrize("with_index", [True, False])
    def test_serve(self, model, tmp_path, run, embed, monkeypatch, with_index):
        pytest.importorskip("fastapi", reason="needs the extra serve")
        from dsokr import serve

        served = []
        monkeypatch.setattr(serve, "run", lambda *given, say, **others: served.append((*given, others)))
        options = ["--port", 0, "--max-k", 7, "--host", "here.org", "--allow-host", "a.org", "--allow-host", "b.org"]
        if with_index:
            embed("i")
            options += ["--index", tmp_path / "i"]
        code, *said = run("serve", model / "model", *options)
        assert code == 0, said
        page, host, port, others = served[0]
        assert (host, port) == ("here.org", 0) and set(others.values()) == {None}
        question = page.openapi()["components"]["schemas"]["Question"]["properties"]
        assert question["k"]["maximum"] == 7 and question["inputs"]["items"]["maxItems"] == 2
        allowed = next(layer.kwargs["hosts"] for layer in page.user_middleware if "hosts" in layer.kwargs)
        assert {"here.org", "a.org", "b.org"} == set(allowed)

    def test_serve_needs_its_extra(self, model, run, monkeypatch):
        for name in [name for name in sys.modules if name.startswith("dsokr.serve")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "fastapi", None)
        code, _, error = run("serve", model / "model")
        assert code == 1 and 'This needs fastapi, which is not installed: pip install "dsokr[serve]"' in error

    def test_an_index_of_another_model(self, model, tmp_path, run, embed):
        embed("i")
        replace(Head.read_from(tmp_path / "i"), model="other").write(tmp_path / "i")
        code, _, error = run("serve", model / "model", "--index", tmp_path / "i")
        assert code == 1 and "was built for another model" in error
