"""dsokr update, and dsokr embed, rank and serve with an index in Milvus or one that changes."""

import asyncio
import csv
import json
import time
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from dsokr.commands.app import app
from dsokr.commands.library import open_index
from dsokr.commands.predictor import Predictor
from dsokr.index.build import Writer
from serving import describe_molecules

pytest.importorskip("rdkit", reason="needs the extra chem")
needs_milvus = pytest.mark.skipif(find_spec("milvus_lite") is None, reason="needs the extra milvus")
PLACES = ["index", pytest.param("index.db", marks=needs_milvus)]
LIBRARY = ["CCO", "CCN", "CCC", "CC(=O)O", "CCCO", "CCCN", "c1ccccc1", "CO"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    describe_molecules().save(folder / "model")
    (folder / "inputs.txt").write_text("a short alcohol\na long amine\n")
    return folder


@pytest.fixture
def run(model, tmp_path):
    """Run a command; names of files are those in the folder of the test."""

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    write(tmp_path / "library.csv", LIBRARY, "old")
    return run


def write(path, molecules, named):
    path.write_text("smiles,name\n" + "".join(f"{smiles},{named} {smiles}\n" for smiles in molecules))
    return path


def rank(run, model, place, out):
    options = ("--index", place, "--out", out, "--top", 20, "--show", "formula", "--rule", "cosine")
    done = run("rank", model / "model", model / "inputs.txt", *options)
    assert done.exit_code == 0, done.output
    with out.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("place", PLACES)
def test_embed_update_and_rank(run, model, tmp_path, place):
    place = tmp_path / place
    done = run("embed", model / "model", tmp_path / "library.csv", "--out", place, "--candidates-column", "smiles")
    assert done.exit_code == 0 and "8 candidates in the index" in done.output, done.output
    before = rank(run, model, place, tmp_path / "before.csv")
    assert len(before) == 16 and {row["candidate_formula"] for row in before} >= {"C2H6O", "C6H6"}
    added = write(tmp_path / "new.csv", ["OCC", "CCCCO", "CCCCN"], "new")
    gone = write(tmp_path / "gone.csv", ["NCC", "C#C"], "")
    change = ("--model", model / "model", "--add", added, "--delete", gone, "--candidates-column", "smiles")
    done = run("update", place, *change, "--json")
    expected = {"candidates": 9, "added": 2, "replaced": 1, "deleted": 1, "missing": 1}
    assert done.exit_code == 0 and json.loads(done.output) == {"index": str(place), **expected}
    after = rank(run, model, place, tmp_path / "after.csv")
    assert {row["prediction"] for row in after} == {*LIBRARY, "OCC", "CCCCO", "CCCCN"} - {"CCO", "CCN"}
    assert {row["name"] for row in after} >= {"new OCC", "old CO"} and len(after) == 18
    write(tmp_path / "library.csv", [row["prediction"] for row in after[:9]], "")
    anew = ("--out", tmp_path / "anew", "--candidates-column", "smiles")
    assert run("embed", model / "model", tmp_path / "library.csv", *anew).exit_code == 0
    whole = rank(run, model, tmp_path / "anew", tmp_path / "anew.csv")
    scores = [[(row["prediction"], float(row["score"])) for row in rows] for rows in (after, whole)]
    assert dict(scores[0][:9]) == pytest.approx(dict(scores[1][:9]), abs=1e-6)
    done = run("update", place, *change[:2], "--delete", gone, "--candidates-column", "smiles")
    assert "0 added, 0 replaced, 0 deleted: 9 candidates" in done.output
    assert "2 candidates to be deleted were not in it." in done.output


def test_one_sentence_for_what_cannot_be_done(run, model, tmp_path, monkeypatch):
    place, given = tmp_path / "index", ("--model", model / "model")
    run("embed", model / "model", tmp_path / "library.csv", "--out", place, "--candidates-column", "smiles")
    new = write(tmp_path / "new.csv", ["CCCCO"], "new")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    add = ("--add", new, "--candidates-column", "smiles")
    refused = {
        (place, *given): "Name a file of candidates with --add, with --delete, or with both.",
        (tmp_path / "nothing", *given, *add): "is not an index: index.json is missing.",
    }
    if find_spec("pymilvus"):
        refused["milvus://127.0.0.1:9/molecules", *given, *add] = "Milvus at milvus://127.0.0.1:9/molecules: Fail conn"
    for arguments, sentence in refused.items():
        done = run("update", *arguments)
        assert done.exit_code == 1 and sentence in done.output and done.output.count("\n") == 1, done.output
    for error, sentence in ((OSError(28, "No space left on device"), "No space"), (KeyboardInterrupt(), "as it was.")):
        monkeypatch.setattr(Writer, "commit", fail_with(error))
        done = run("update", place, *given, *add)
        assert done.exit_code in (1, 130) and sentence in done.output and done.output.count("\n") == 1, done.output
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def fail_with(error):
    def fail(writer):
        raise error

    return fail


@pytest.mark.parametrize("place", PLACES)
def test_a_server_picks_up_the_new_version(run, model, tmp_path, place, monkeypatch):
    pytest.importorskip("fastapi", reason="needs the extra serve")
    httpx = pytest.importorskip("httpx", reason="needs httpx, to ask the server")
    from dsokr.serve import app as served
    from dsokr.serve import create_app

    monkeypatch.setattr(served, "WATCH_SECONDS", 0.01)
    place, named = tmp_path / place, ("--candidates-column", "smiles")
    run("embed", model / "model", tmp_path / "library.csv", "--out", place, *named)
    predictor = Predictor.load(model / "model", "cpu")
    page = create_app(predictor, open_index(predictor, place))
    new = write(tmp_path / "new.csv", ["CCCCO", "CCCCN"], "new")

    async def ask():
        async with page.router.lifespan_context(page):
            transport = httpx.ASGITransport(page)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                yield client

    async def follow():
        answers = []
        async for client in ask():
            for arguments in ((), ("--add", new), ("--delete", new)):
                done = arguments and run("update", place, "--model", model / "model", *arguments, *named)
                assert not arguments or done.exit_code == 0
                start, facts = time.monotonic(), {}
                while facts.get("index_version") != len(answers) and time.monotonic() - start < 20:
                    await asyncio.sleep(0.02)
                    facts = (await client.get("/health")).json()
                asked = {"inputs": ["a long alcohol"], "k": 20, "predict": False}
                found = (await client.post("/predict", json=asked)).json()
                answers.append((facts["candidates"], found["candidates"], len(found["results"][0]["hits"])))
        return answers

    assert asyncio.run(follow()) == [(8, 8, 8), (10, 10, 10), (8, 8, 8)]


def test_a_server_goes_on_where_the_new_version_cannot_be_opened(run, model, tmp_path, caplog):
    pytest.importorskip("fastapi", reason="needs the extra serve")
    from dsokr.serve import Limits
    from dsokr.serve.answers import Current

    run("embed", model / "model", tmp_path / "library.csv", "--out", tmp_path / "i", "--candidates-column", "smiles")
    predictor = Predictor.load(model / "model", "cpu")
    current = Current(predictor, open_index(predictor, tmp_path / "i"), Limits())
    assert not current.refresh() and not caplog.records
    (tmp_path / "i" / "index.json").rename(tmp_path / "kept")
    assert not current.refresh() and not current.refresh()
    assert [record.getMessage()[:26] for record in caplog.records] == ["The index is not renewed: "]  # said once
    (tmp_path / "kept").rename(tmp_path / "i" / "index.json")
    assert not current.refresh() and len(current.found[0]) == 8
