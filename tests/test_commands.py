"""From one's own files to a ranked table, from the command line."""

import csv
import html
import json
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch

from dsokr import DSOKR, __version__, chem, metrics
from dsokr.commands import Predictor, app, columns, evaluate, fit, library, predict
from dsokr.commands.options import FitOptions
from dsokr.commands.predictor import Pairs
from dsokr.commands.tables import Problems, Table
from dsokr.decoders import Candidates, EmbeddedOutputs
from dsokr.errors import InputError, ModelFolderError
from dsokr.files import lock_folder
from dsokr.kernels import NGram, Tanimoto
from dsokr.regressors import KernelRidge, callbacks
from dsokr.rules import RULES, score
from dsokr.sketches import SubSample
from studies.data import molecules
from test_hostile import read_config, write_config

QUICK = ("--epochs", "3", "--device", "cpu")
SKIP = ("--on-error", "skip")
SMALL = ("--network", "CharTransformer(layers=1, width=16, heads=2, dropout=0.1)")


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def dsokr(capfd, monkeypatch):
    """Runs the command line in this process, as the entry point does."""

    def run(*arguments: object, expect: int = 0) -> Done:
        monkeypatch.setattr(sys, "argv", ["dsokr", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            app.app()
        text = capfd.readouterr()
        done = Done(int(stop.value.code or 0), text.out, text.err)
        assert done.returncode == expect, done
        return done

    return run


def write(path, header, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def describe(smiles: str) -> str:
    """A text that says what a molecule is made of."""
    names = {6: "carbon", 7: "nitrogen", 8: "oxygen", 9: "fluorine"}
    return " ".join(sorted(names[label] for label in chem.graph(smiles).labels))


def stop(*_, **__):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def smiles() -> list[str]:
    return chem.many_smiles(molecules.generate(80, seed=0, max_atoms=5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, smiles):
    """A small table of every kind."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).round(3)
    items = np.array(["apple", "banana", "cherry"])
    numbers = [" ".join(map(str, row)) for row in X]
    write(folder / "vector.csv", ["a", "b", "c", "y1", "y2"], [[*x, 100 * x[0], x[1] + 5] for x in X])
    write(folder / "labels.csv", ["x", "tags"], zip(numbers, [";".join(items[x > 0]) or "{}" for x in X], strict=True))
    write(folder / "ranking.csv", ["a", "b", "c", "order"], [[*x, ">".join(items[np.argsort(-x)])] for x in X])
    verbs = [("walk", "walked"), ("talk", "talked"), ("jump", "jumped"), ("play", "played"), ("look", "looked")]
    write(folder / "string.csv", ["verb", "past"], [(f"{p}{a}", f"{p}{b}") for p in "abcdefgh" for a, b in verbs])
    write(folder / "smiles.csv", ["text", "smiles"], [[describe(s), s] for s in smiles[:60]])
    write(folder / "graph.csv", ["smiles", "molecule"], [[s, s] for s in smiles[:60]])
    pictures = pytest.importorskip("PIL.Image")
    for i, x in enumerate(X):
        pictures.fromarray(np.full((9, 9), 255 * (x[0] > 0), np.uint8)).save(folder / f"{i}.png")
    shades = np.where(X[:, 0] > 0, "light", "dark")
    write(folder / "image.csv", ["picture", "shade"], [[f"{i}.png", shade] for i, shade in enumerate(shades)])
    (folder / "library.smi").write_text("".join(f"{s} m{i}\n" for i, s in enumerate(smiles)))
    return folder


LABELS = ("--input", "x", "--output", "tags", "--size", "16")
MORGAN = ("--output-kind", "Molecule(radius=1)", "--network", "WordBag(width=16)")
FITS = {
    "vector": ("--input", "a,b,c", "--output", "y*", "--regressor", "Stack((Forest(20), KernelRidge(intercept=True)))"),
    "labels": ("--input", "x", "--output", "tags"),
    "ranking": ("--input-columns", "a", "--input", "b,c", "--output", "order", "--kernel", "Hamming"),
    "string": ("--input", "verb", "--output", "past", *SMALL),
    "smiles": ("--input", "text", "--output", "smiles", *MORGAN),
    "graph": ("--input", "smiles", "--output", "molecule", "--kernel", "WeisfeilerLehman(3).normalized()", *SMALL),
    "image": ("--input", "picture", "--output", "shade", "--network", "CNN(channels=(4, 8), hidden=8)"),
}
RETRIEVAL = {"similarity", "hits@1", "hits@10", "mrr", "mean_rank", "candidates", "known"}
METRICS = {
    "vector": {"r2", "mae", "rmse", "mae y1", "mae y2"},
    "labels": {"f1", "exact"},
    "ranking": {"kendall_tau", "exact"},
    "string": {"exact", "edits"},
    "smiles": RETRIEVAL,
    "graph": RETRIEVAL | {"exact", "ged"},
    "image": {"f1", "exact"},
}


@pytest.mark.parametrize("kind", FITS)
def test_from_a_table_to_predictions_metrics_and_a_report(dsokr, folder, tmp_path, kind):
    table, model = folder / f"{kind}.csv", tmp_path / "model"
    quick = QUICK[2:] if "--regressor" in FITS[kind] else QUICK  # epochs are for networks
    done = dsokr("fit", "--train", table, *quick, *FITS[kind], "--out", model)
    assert all(word in done.stderr for word in ("kernel", "regressor", "decoder", "leave out", "Validation: "))
    files = {"config.json", "model.safetensors", "README.md", "task.json", "candidates.csv", "report.html"}
    assert {path.name for path in model.iterdir()} == files
    assert not (tmp_path / ".model.unfinished").exists()

    done = dsokr("predict", model, table, "--out", tmp_path / "out.csv", "--explain", tmp_path / "why.html")
    assert "why.html" in done.stdout
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert page.count('<div class="card">') == 20 and page.count("<figure>") == 20
    assert page.count("<svg") == 20 * (kind in ("smiles", "graph"))
    assert ("the colours add up to" in page) == (kind in ("vector", "ranking", "string", "graph"))
    painted = page.count("<span", page.index('<div class="card">'))
    assert painted >= 20 * {"image": 1, "labels": 3, "graph": 0}.get(kind, 4)
    rows, given = read(tmp_path / "out.csv"), read(table)
    assert [int(row["row"]) for row in rows] == list(range(2, len(given) + 2))
    assert set(row["rank"] for row in rows) == {"1"}
    predictor = Predictor.load(model, "cpu")
    columns = [name for name in rows[0] if name.startswith("prediction")]
    predictor.output.parse_all([" ".join(row[name] for name in columns) for row in rows], "Prediction")
    if kind == "vector":
        assert columns == ["prediction_y1", "prediction_y2"] and "input" not in rows[0]
        errors = [abs(float(row["prediction_y1"]) - float(true["y1"])) for row, true in zip(rows, given, strict=True)]
        assert np.mean(errors) < 20  # of a spread of 100

    answer = json.loads(dsokr("evaluate", model, table, "--json").stdout)
    assert answer["n"] == len(given) and set(answer["metrics"]) == METRICS[kind]
    assert "what it means" in dsokr("evaluate", model, table).stdout

    dsokr("report", model, "--test", table, "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert f"{len(given)} test pairs" in page and "held out for validation" in page and "What was trained" in page
    assert page.count('<svg class="chart"') == bool(predictor.model.history_["train_loss"])
    assert ("What was tried" in page) == ("--network" not in FITS[kind])
    assert page.count("<svg") >= 5 * 8 if kind in ("smiles", "graph") else page.count("<svg") <= 1
    assert 'src="http' not in page and "href" not in page
    assert page.count(" Da</figcaption>") == page.count("<figcaption>") >= 5 * 8 * (kind in ("smiles", "graph"))


@pytest.fixture(scope="module")
def fitted(folder, tmp_path_factory):
    """A model from texts to molecules."""
    options = FitOptions(
        train=folder / "smiles.csv",
        input=["text"],
        output=["smiles"],
        out=tmp_path_factory.mktemp("fitted") / "model",
        output_kind="Molecule(radius=1)",
        network="WordBag(width=16)",
        epochs=20,
        device="cpu",
    )
    fit.fit(options, Problems(), say=lambda line: None)
    return options.out


@pytest.fixture
def inputs(tmp_path):
    return write(tmp_path / "inputs.csv", ["id", "text"], [["u1", "carbon oxygen"], ["u2", "carbon carbon nitrogen"]])


def test_ranking_a_library(dsokr, fitted, folder, inputs, tmp_path, smiles, monkeypatch):
    arguments = ("rank", fitted, inputs, "--candidates", folder / "library.smi", "--top", "4", "--keep", "id")
    done = dsokr(*arguments, "--out", tmp_path / "ranked.csv")
    assert "80 candidates ranked for 2 inputs." in done.stdout
    rows = read(tmp_path / "ranked.csv")
    assert list(rows[0]) == ["row", "id", "input", "rank", "prediction", "name", "score"]
    expected_rows = [(str(2 + i), f"u{i + 1}", str(1 + j)) for i in range(2) for j in range(4)]
    assert [(row["row"], row["id"], row["rank"]) for row in rows] == expected_rows
    predictor = Predictor.load(fitted, "cpu")
    texts = ["carbon oxygen", "carbon carbon nitrogen"]
    expected = predictor.rank(texts, smiles, 4)
    assert [row["prediction"] for row in rows] == [smiles[i] for i in expected.indices.flatten().tolist()]
    assert [row["name"] for row in rows] == [f"m{i}" for i in expected.indices.flatten().tolist()]
    assert np.allclose([float(row["score"]) for row in rows], expected.scores.flatten())
    dsokr(*arguments, "--out", tmp_path / "explained.csv", "--explain", tmp_path / "why.html", "--rule", "cosine")
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2 * 3 and page.count("carbon</span>") == 3
    scores = predictor.rank(texts, smiles, 3, "cosine").scores.flatten().tolist()
    assert all(f"Score {score:.4g}" in page for score in scores)
    monkeypatch.setattr(library, "BLOCK", 7)
    dsokr(*arguments, "--out", tmp_path / "blocks.csv")
    assert (tmp_path / "ranked.csv").read_text() == (tmp_path / "blocks.csv").read_text()
    for rule in ("kernel", "projected", "cosine"):
        dsokr(*arguments, "--rule", rule, "--out", tmp_path / "by_rule.jsonl")
        best = predictor.rank(texts[:1], smiles, 1, rule).indices.item()
        assert Table(tmp_path / "by_rule.jsonl").read(Problems()).cells["prediction"][0] == smiles[best]
    dsokr(*arguments, "--top", 10**12, "--out", tmp_path / "all.csv")
    assert {row["prediction"] for row in read(tmp_path / "all.csv")} == set(smiles)


def test_candidates_twice_and_bad_ones(dsokr, fitted, inputs, tmp_path):
    candidates = tmp_path / "library.smi"
    candidates.write_text("CO first\nC1CC bad\nCO again\nCC\nCO third\n")
    arguments = ("rank", fitted, inputs, "--candidates", candidates, "--out")
    done = dsokr(*arguments, tmp_path / "ranked.csv.gz", *SKIP)
    assert "2 candidates (2 listed again, counted once) ranked for 2 inputs." in done.stdout
    assert "1 row was skipped:" in done.stderr and "row 2, column 'smiles': Could not parse 'C1CC'" in done.stderr
    rows = Table(tmp_path / "ranked.csv.gz").read(Problems()).cells
    assert dict(zip(rows["prediction"], rows["name"], strict=True)) == {"CO": "first", "CC": ""}
    assert read(tmp_path / "ranked.skipped.csv")[0]["row"] == "2"
    done = dsokr(*arguments, tmp_path / "r.csv", "--on-error", "fail", expect=1)
    assert "row 2" in done.stderr and "--on-error skip" in done.stderr and not (tmp_path / "r.csv").exists()
    candidates.write_text("C1CC\n")
    why = f"{candidates} has 1 row, none of which can be used. The first: "
    assert why in dsokr(*arguments, tmp_path / "r.csv", expect=1).stderr
    test = write(tmp_path / "test.csv", ["text", "smiles"], [["carbon oxygen", "CO"]])
    assert why in dsokr("evaluate", fitted, test, "--candidates", candidates, expect=1).stderr


def test_a_molecule_written_in_two_ways_is_one_candidate(dsokr, fitted, inputs, tmp_path, monkeypatch):
    candidates = tmp_path / "library.smi"
    candidates.write_text("CCO ethanol\nOCC again\nC(O)C again\nCC ethane\nC(C)O again\n")
    for size in (2, 100):
        monkeypatch.setattr(library, "BLOCK", size)
        done = dsokr("rank", fitted, inputs, "--candidates", candidates, "--out", tmp_path / "r.csv")
        assert "2 candidates (3 listed again, counted once) ranked" in done.stdout
        found = {(row["prediction"], row["name"]) for row in read(tmp_path / "r.csv")}
        assert found == {("CCO", "ethanol"), ("CC", "ethane")}
    source = predict.Library(Predictor.load(fitted, "cpu"), candidates, None, Problems())
    assert [cells for cells, *_ in source.blocks(start=1)] == [["CC"]]  # CCO came before


def test_molecules_with_one_fingerprint_are_several_candidates(dsokr, fitted, inputs, tmp_path):
    (a, b) = alike = ["C1CCCCC1", "C1CCCCCC1"]  # their atoms have the same neighbours up to one bond
    counts = chem.fingerprints(alike, radius=1)
    assert set(counts[[0]].indices) == set(counts[[1]].indices) and Predictor.load(fitted, "cpu").output.radius == 1
    rings = ["C1CCCC1C2CCCCCC2", "C1CCCCC1C2CCCCC2", "C2CCCCC2C1CCCCC1"]
    assert (chem.fingerprints(rings, radius=1)[[0]] != chem.fingerprints(rings, radius=1)[[1]]).nnz == 0
    candidates = tmp_path / "library.smi"
    candidates.write_text("\n".join([a, b, *rings]))
    done = dsokr("rank", fitted, inputs, "--candidates", candidates, "--out", tmp_path / "r.csv")
    assert "4 candidates (1 listed again, counted once) ranked" in done.stdout


@pytest.mark.parametrize("every", [17, 5])
def test_rows_that_are_read_ahead_count_when_their_block_comes(dsokr, fitted, inputs, tmp_path, monkeypatch, every):
    """Blocks are read ahead for several processes: their bad rows must not count against the rows read before."""
    monkeypatch.setattr(library, "BLOCK", 50)
    monkeypatch.setattr(library, "LARGE", 0)
    monkeypatch.setattr(library.joblib, "Parallel", partial(library.joblib.Parallel, backend="threading"))
    rows = [["C" * (1 + i), "x"] if i % every != 4 else ["C" * (1 + i)] for i in range(400)]
    candidates = write(tmp_path / "library.csv", ["smiles", "source"], rows)
    arguments = ("rank", fitted, inputs, "--candidates", candidates, "--out", tmp_path / "r.csv")
    if every < 10:
        assert "of the 50 rows of" in dsokr(*arguments, expect=1).stderr
    else:
        assert "24 rows were skipped" in dsokr(*arguments).stderr


def test_workers_that_get_ctrl_c_too_say_nothing(fitted, tmp_path, monkeypatch):
    class Workers:
        def __init__(self, *_, **__): ...

        def __call__(self, work):
            function, given, _ = next(iter(work))
            yield function(*given)
            raise KeyboardInterrupt

    monkeypatch.setattr(library.joblib, "Parallel", Workers)
    candidates = write(tmp_path / "library.csv", ["smiles"], [["CO"], ["CC"]])
    blocks = library.Library(Predictor.load(fitted, "cpu"), candidates, None, Problems()).blocks()
    assert next(blocks).cells == ["CO", "CC"]
    try:
        blocks.close()
    except KeyboardInterrupt:
        pytest.fail("An interruption of workers is none of the command's.")


REPEATED = ["CO", "", "CC", "C1CC", "CO", "", "CCC", "C1CC", "", "CC", "", "CO", "C1CC"]  # three, then three again
BAD = [row for row, cell in enumerate(REPEATED, start=2) if cell in ("", "C1CC")]


@pytest.mark.parametrize("size", [2, 5, 100])
def test_bad_candidates_that_repeat_are_skipped_and_good_ones_count_once(
    dsokr, fitted, inputs, tmp_path, monkeypatch, size
):
    monkeypatch.setattr(library, "BLOCK", size)
    candidates = write(tmp_path / "library.csv", ["id", "smiles"], enumerate(REPEATED))
    done = dsokr("rank", fitted, inputs, "--candidates", candidates, *SKIP, "--out", tmp_path / "r.csv")
    assert "3 candidates (3 listed again, counted once) ranked" in done.stdout
    assert f"{len(BAD)} rows were skipped:" in done.stderr
    assert [int(row["row"]) for row in read(tmp_path / "r.skipped.csv")] == BAD
    done = dsokr("embed", fitted, candidates, *SKIP, "--out", tmp_path / "i")
    assert "3 candidates (3 listed again, counted once) in the index" in done.stdout
    assert f"{len(BAD)} rows were skipped:" in done.stderr
    listed = (tmp_path / "i" / "skipped.txt").read_text().splitlines()
    assert [line.split(" (")[0].split("row ")[1] for line in listed] == list(map(str, BAD))


@pytest.mark.parametrize("blocks", range(1, 6))
def test_candidates_that_repeat_after_an_interruption(dsokr, fitted, tmp_path, monkeypatch, blocks):
    candidates = write(tmp_path / "library.csv", ["id", "smiles"], enumerate(REPEATED))
    arguments = ("embed", fitted, candidates, *SKIP, "--json", "--out")
    whole = json.loads(dsokr(*arguments, tmp_path / "whole").stdout)
    monkeypatch.setattr(library, "BLOCK", 2)
    read, calls = columns.Kind.read, []

    def interrupted(kind, cells, kernel):
        calls.append(cells)
        return stop() if len(calls) == blocks + 1 else read(kind, cells, kernel)

    monkeypatch.setattr(columns.Kind, "read", interrupted)
    assert "Run the same command to resume" in dsokr(*arguments, tmp_path / "i", expect=130).stderr
    facts = json.loads(dsokr(*arguments, tmp_path / "i").stdout)
    assert (facts["candidates"], facts["skipped"], facts["duplicates"]) == (3, len(BAD), 3)
    assert [whole[name] for name in ("candidates", "skipped", "duplicates")] == [3, len(BAD), 3]
    assert (tmp_path / "i" / "skipped.txt").read_text() == (tmp_path / "whole" / "skipped.txt").read_text()


def test_a_list_without_a_header_is_no_table(dsokr, fitted, inputs, tmp_path):
    test = write(tmp_path / "test.csv", ["text", "smiles"], [["carbon oxygen", "CO"]])
    candidates = tmp_path / "library.csv"
    candidates.write_text("CO\nCC\nCCC\n")
    rank = ("rank", fitted, inputs, "--candidates", candidates, "--out", tmp_path / "r.csv")
    embed = ("embed", fitted, candidates, "--out", tmp_path / "i")
    for command in (rank, embed, ("evaluate", fitted, test, "--candidates", candidates)):
        error = dsokr(*command, expect=1).stderr
        assert f"The header of {candidates} looks like a candidate: CO. Add a header, rename the file" in error
    assert not (tmp_path / "i").exists()
    assert "2 candidates ranked" in dsokr(*rank, "--candidates-column", "CO").stdout
    candidates.write_text("structure\nCO\nCC\nCCC\n")
    assert "3 candidates ranked" in dsokr(*rank).stdout and "3 candidates in the index" in dsokr(*embed).stdout


def test_candidates_in_a_table_and_in_an_index(dsokr, fitted, folder, inputs, tmp_path):
    candidates = write(tmp_path / "library.csv", ["ID", "structure"], [["a1", "CO"], ["a2", "CC"]])
    rank = ("rank", fitted, inputs, "--top", "3")
    done = dsokr(*rank, "--candidates", candidates, "--out", tmp_path / "r.csv", expect=1)
    assert f"Name the column of the candidates in {candidates} with --candidates-column" in done.stderr
    column = ("--candidates", candidates, "--candidates-column", "structure")
    dsokr(*rank, *column, "--out", tmp_path / "r.parquet")
    assert set(Table(tmp_path / "r.parquet").read(Problems()).cells["name"]) == {"a1", "a2"}

    index = tmp_path / "library.idx"
    dsokr("embed", fitted, folder / "library.smi", "--out", index)
    dsokr(*rank, "--candidates", folder / "library.smi", "--out", tmp_path / "a.csv")
    dsokr(*rank, "--index", index, "--out", tmp_path / "b.csv")
    a, b = read(tmp_path / "a.csv"), read(tmp_path / "b.csv")
    assert [row["name"] for row in a] == [row["name"] for row in b]
    assert np.allclose([float(row["score"]) for row in a], [float(row["score"]) for row in b], atol=1e-5)
    done = dsokr(*rank, "--candidates", tmp_path, "--out", tmp_path / "c.csv", expect=1)
    assert "is not an index" in done.stderr
    done = dsokr(*rank, "--index", index, "--candidates-column", "x", "--out", tmp_path / "c.csv", expect=1)
    assert f"names a column of a file: {index} is an index." in done.stderr
    done = dsokr("evaluate", fitted, folder / "smiles.csv", "--candidates", index, expect=1)
    assert "library.idx is a folder. Name a file." in done.stderr
    done = dsokr("embed", fitted, folder / "library.smi", "--out", tmp_path / "flat", "--kind", "flat", expect=1)
    assert "kind must be one of" in done.stderr
    assert len(library.open_index(Predictor.load(fitted, "cpu"), index)) == 80


def test_numbers_of_candidates_are_written_in_any_way(dsokr, folder, tmp_path):
    model, candidates = tmp_path / "model", tmp_path / "library.txt"
    dsokr("fit", "--train", folder / "vector.csv", *QUICK, *FITS["vector"][:4], "--out", model)
    candidates.write_text("100;1\n120|2\n[130, 0.5]\n-10 5e-1\n")
    dsokr("embed", model, candidates, "--out", tmp_path / "i")
    for source in (candidates, tmp_path / "i"):
        dsokr("rank", model, folder / "vector.csv", "--candidates", source, "--out", tmp_path / "r.csv")
        rows = read(tmp_path / "r.csv")[:4]
        found = {(float(row["prediction_y1"]), float(row["prediction_y2"])) for row in rows}
        assert found == {(100, 1), (120, 2), (130, 0.5), (-10, 0.5)}


def test_a_bad_molecule_in_row_17(dsokr, folder, tmp_path):
    rows = [list(row.values()) for row in read(folder / "smiles.csv")]
    rows[15][1] = "C1CC"
    table = write(tmp_path / "pairs.csv", ["text", "smiles"], rows)
    arguments = ("fit", "--train", table, *QUICK, *FITS["smiles"], "--size", "20", "--out", tmp_path / "model")
    said = "pairs.csv, row 17 (the header is row 1), column 'smiles': Could not parse 'C1CC' as a molecule."
    done = dsokr(*arguments, "--on-error", "fail", expect=1)
    assert said in done.stderr.splitlines()[-1] and not (tmp_path / "model").exists()
    facts = json.loads(dsokr(*arguments, "--json").stdout)
    assert facts["rows"] == {"train": 53, "validation": 6, "skipped": 1}
    skipped = read(tmp_path / "model" / "skipped.csv")
    assert [(row["row"], row["column"]) for row in skipped] == [("17", "smiles")]
    rows[15][1] = "CC"
    write(table, ["text", "smiles"], rows)
    assert "skipped" not in dsokr(*arguments).stderr
    assert not (tmp_path / "model" / "skipped.csv").exists()


def test_problems_are_listed_in_the_order_of_rows(dsokr, folder, tmp_path):
    """A row of the wrong length is seen when the table is read, a bad cell later, an undefined kernel last."""
    rows = [["a", "b", "y1", "y2"], *([str(x), str(x), str(1 - 2 * (x % 2)), "1"] for x in range(30))]
    rows[2][3], rows[3][0], rows[5] = "x", "x", ["1", "2"]
    rows[7][2:] = rows[8][2:] = ["0", "1"]  # with the mean of the others taken away, the zero vector
    (tmp_path / "t.csv").write_text("".join(f"{','.join(row)}\n" for row in rows))
    columns = ("--input", "a,b", "--output", "y*", "--kernel", "Cosine()")
    arguments = ("fit", "--train", tmp_path / "t.csv", *columns, *QUICK, "--out", tmp_path / "m")
    done = dsokr(*arguments, "--on-error", "fail", expect=1)
    assert "row 3 (the header is row 1), column 'y1, y2': 'x' in 'y2' is not a number." in done.stderr
    lost = "5 of the 30 rows of .*t.csv cannot be used, 2 of them for this reason: The kernel is undefined .* row 3 "
    assert re.search(lost, dsokr(*arguments, expect=1).stderr)
    done = dsokr(*arguments, *SKIP)
    assert "30 in" in done.stderr and "5 rows were skipped" in done.stderr
    assert "The kernel is undefined here" in done.stderr
    assert [row["row"] for row in read(tmp_path / "m" / "skipped.csv")] == ["3", "4", "6", "8", "9"]


def test_a_table_of_zeros_is_learned_from_as_sparse(dsokr, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.random((80, 120)) < [0.5, *[0.02] * 119]
    rows = [[*x.astype(int), "a" if x[0] else "b"] for x in X]
    table = write(tmp_path / "t.csv", [*(f"x{i}" for i in range(120)), "y"], rows)
    arguments = ("fit", "--train", table, "--input", "x*", "--output", "y", "--device", "cpu", "--out", tmp_path / "m")
    done = dsokr(*arguments)
    assert "x0, x1, …, x119 (120 columns) as sparse vector" in done.stderr
    assert "Tanimoto()" in done.stderr  # as of counts
    predictor = Predictor.load(tmp_path / "m", "cpu")
    assert predictor.input.sparse
    dsokr("predict", tmp_path / "m", table, "--out", tmp_path / "p.csv", "--explain", tmp_path / "why.html")
    right = sum(row["prediction"] == true[-1] for row, true in zip(read(tmp_path / "p.csv"), rows, strict=True))
    assert right > 60
    again = ("--restart", *arguments[1:])
    assert "x0, x1, …, x119 (120 columns) as sparse vector" in dsokr("fit", *again, "--epochs", "2").stderr
    assert "x119 (120 columns) as vector" in dsokr("fit", *again, "--network", "MLP((8,))", "--epochs", "2").stderr
    sparse = ("--input-kind", "Vector(sparse=True)")
    error = dsokr("fit", *again, *sparse, "--network", "MLP()", expect=1).stderr
    assert error.endswith("MLP does not read sparse inputs. Use SparseTransformer.\n")
    wrong = dsokr("fit", *again[:-4], "--output-kind", sparse[1], *again[-4:], expect=1).stderr
    assert "--output-kind Vector(sparse=True): only inputs can be sparse." in wrong


def test_from_spectra_to_molecules(dsokr, tmp_path, smiles):
    """Peaks at twice the masses of the atoms, in an MGF file."""
    rng = np.random.default_rng(0)
    spectra = []
    for number, molecule in enumerate(smiles[:30]):
        for _ in range(2):
            masses = sorted({label * 2.0 + bonds for label in chem.graph(molecule).labels for bonds in (0, 1)})
            peaks = "\n".join(f"{mass:.2f} {rng.integers(50, 100)}" for mass in masses)
            fields = f"PEPMASS={100 + number}\nCHARGE=1\nSMILES={molecule}\nINCHIKEY14=k{number}"
            spectra.append(f"BEGIN IONS\n{fields}\n{peaks}\nEND IONS\n")
    (tmp_path / "t.mgf").write_text("\n".join(spectra))
    arguments = ("fit", "--train", tmp_path / "t.mgf", "--output", "smiles", "--group", "inchikey14", "--input")
    done = dsokr(*arguments, "peaks,precursor_mz", "--device", "cpu", "--out", tmp_path / "m", "--json")
    facts = json.loads(done.stdout)
    assert facts["chosen"]["input"] == "peaks, precursor_mz as sparse spectrum" and facts["validation"]["known"] == 0
    dsokr("predict", tmp_path / "m", tmp_path / "t.mgf", "--keep", "smiles", "--out", tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    assert sum(row["prediction"] == row["smiles"] for row in rows) > 40  # of 60
    tokens = ("--network", "SparseTransformer(1, 16, 2)", "--epochs", "2", "--device", "cpu", "--out", tmp_path / "t")
    dsokr(*arguments, "peaks,precursor_mz", *tokens)
    dsokr("predict", tmp_path / "t", tmp_path / "t.mgf", "--out", tmp_path / "p.csv")
    assert {row["prediction"] for row in read(tmp_path / "p.csv")} <= set(smiles[:30])
    error = dsokr(
        *arguments, "peaks,pepmass,charge", "--input-kind", "spectrum", "--out", tmp_path / "n", expect=1
    ).stderr
    assert "A spectrum has a column of peaks and one of precursors at most. Got peaks, pepmass" in error


def test_lists_of_different_lengths_are_named(dsokr, tmp_path):
    rows = [["1 2 3" if i % 3 else "1 2", i % 2] for i in range(40)]
    table = write(tmp_path / "t.csv", ["x", "y"], rows)
    arguments = ("fit", "--train", table, "--input", "x", "--output", "y", "--out", tmp_path / "m")
    said = f"The column 'x' of {table} holds lists of different lengths: 3 numbers in row 3, 2 numbers in row 2."
    assert said in dsokr(*arguments, expect=1).stderr
    assert "14 rows were skipped" in dsokr(*arguments, *SKIP).stderr
    write(table, ["x", "y"], [[f"{i} 2 3" if i != 7 else "1 2", i % 2] for i in range(40)])
    assert "row 9 (the header is row 1), column 'x': There must be 3 numbers. Got 2." in dsokr(*arguments).stderr


def test_bad_inputs_of_a_prediction_do_not_lose_the_good_ones(dsokr, fitted, tmp_path):
    table = tmp_path / "inputs.csv"
    table.write_bytes("\ufeffid,text\r\n1,carbon\r\n2,\r\n3,größe und 界\r\n".encode())
    predict = ("predict", fitted, table, "--out", tmp_path / "new" / "out.csv")
    assert "1 of the 3 rows of" in dsokr(*predict, expect=1).stderr and not (tmp_path / "new").exists()
    done = dsokr(*predict, *SKIP)
    assert "Predictions for 2 inputs." in done.stdout
    assert "row 3 (the header is row 1), column 'text': The cell is empty." in done.stderr
    rows = read(tmp_path / "new" / "out.csv")
    assert [(row["row"], row["input"]) for row in rows] == [("2", "carbon"), ("4", "größe und 界")]
    assert [row["row"] for row in read(tmp_path / "new" / "out.skipped.csv")] == ["3"]


def test_evaluation_ranks_as_the_metrics_do(fitted, smiles):
    """Candidates block by block, each once, ties in the middle."""
    predictor = Predictor.load(fitted, "cpu")
    true = [*smiles[60:80], smiles[60]]
    z = predictor.coefficients([describe(s) for s in true])
    candidates = [*smiles[:70], smiles[3]]
    found = evaluate.rank_truth(predictor, z, true, evaluate.by_meaning(predictor, [*candidates, *true]))
    everything = list(dict.fromkeys([*candidates, *true]))
    scores = score(z, *predictor.embed(everything), predictor.rule)
    expected = metrics.retrieval(scores, torch.tensor([everything.index(s) for s in true]))
    assert found == pytest.approx(expected | {"candidates": 80})


def test_tiny_scores_are_told_apart(fitted, folder, smiles, monkeypatch):
    """In evaluations, and between the blocks of a library."""
    predictor = Predictor.load(fitted, "cpu")
    predictor.model.decoder_ = Candidates("cosine")
    z = predictor.coefficients([describe(s) for s in smiles[60:]]).double()
    pool = evaluate.by_meaning(predictor, smiles)
    expected = evaluate.rank_truth(predictor, z, smiles[60:], pool)
    assert evaluate.rank_truth(predictor, 1e-20 * z, smiles[60:], pool) == pytest.approx(expected)
    best = predictor.among(smiles).top(z, 10, "cosine").indices
    monkeypatch.setattr(library, "BLOCK", 7)
    source = library.Library(predictor, folder / "library.smi", None, Problems())
    found = predict.rank_library(source, 1e-20 * z, 10, "cosine", say=lambda *_, **__: None)
    assert [[cell for cell, _, _ in hits] for hits in found] == [[smiles[i] for i in row] for row in best]


def test_an_evaluation_says_what_the_right_answers_were_ranked_among(dsokr, fitted, tmp_path, smiles):
    """Without candidates: the known outputs, and the right answers, one of which was trained on."""
    predictor = Predictor.load(fitted, "cpu")
    held_out = next(s for s in smiles[:60] if s not in predictor.trained)
    true = [*smiles[61:], held_out, predictor.trained[0]]
    test = write(tmp_path / "test.csv", ["text", "smiles"], [[describe(s), s] for s in true])
    found = json.loads(dsokr("evaluate", fitted, test, "--json").stdout)["metrics"]
    known = len(predictor.known)
    assert found["candidates"] == known + 19 and found["known"] == pytest.approx(1 / 21)
    said = "(the known outputs and the 21 right answers, 5% of which were trained on)"
    text = dsokr("evaluate", fitted, test).stdout
    assert f"Among {known + 19} candidates {said} the right answer comes first for" in text
    dsokr("report", fitted, "--test", test, "--out", tmp_path / "r.html")
    assert said in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_list_of_candidates_is_taken_as_it_is(dsokr, fitted, tmp_path, smiles):
    """A right answer that is not in it is not found, and first answers come from it."""
    test = write(tmp_path / "test.csv", ["text", "smiles"], [[describe(s), s] for s in smiles[:10]])
    predictor = Predictor.load(fitted, "cpu")
    texts = [describe(s) for s in smiles[:10]]
    z = predictor.coefficients(texts)
    for listed, share in ((smiles[:5], 0.5), (smiles[5:20], 0.5), (smiles[20:30], 0.0)):
        (tmp_path / "library.smi").write_text("\n".join(listed))
        arguments = ("evaluate", fitted, test, "--candidates", tmp_path / "library.smi")
        found = json.loads(dsokr(*arguments, "--json").stdout)["metrics"]
        assert found["listed"] == share and found["candidates"] == len(listed)
        there = [i for i in range(10) if smiles[i] in listed]
        scores = score(z, *predictor.embed(listed), predictor.rule)
        ranks = metrics.ranks(scores[there], torch.tensor([listed.index(smiles[i]) for i in there]))
        assert found["mrr"] == pytest.approx(ranks.reciprocal().sum().item() / 10)
        assert found["hits@1"] == (ranks <= 1).sum().item() / 10
        assert found.get("mean_rank") == (pytest.approx(ranks.mean().item()) if there else None)
        best = [listed[i] for i in predictor.rank(texts, listed, 1).indices[:, 0]]
        a, b = predictor.output.parse_all(best, "Output"), predictor.output.parse_all(smiles[:10], "Output")
        assert found["similarity"] == pytest.approx(predictor.basis.kernel.paired(a, b).mean().item())
        assert f"(the list, which holds {share:.0%} of the right answers)" in dsokr(*arguments).stdout


def test_other_kinds_are_judged_by_the_best_of_the_list_too(dsokr, folder, tmp_path):
    model, table = tmp_path / "model", folder / "labels.csv"
    dsokr("fit", "--train", table, *LABELS, *QUICK, "--out", model)
    (tmp_path / "list.txt").write_text("apple\n")
    arguments = ("evaluate", model, table, "--candidates", tmp_path / "list.txt", "--json")
    found = json.loads(dsokr(*arguments).stdout)["metrics"]
    right = sum(row["tags"] == "apple" for row in read(table)) / 60
    assert found["exact"] == found["hits@1"] == found["listed"] == pytest.approx(right)


def test_metrics_that_are_undefined_are_left_out(dsokr, folder, tmp_path):
    columns = ("--input", "a,b,c", "--output", "order")
    dsokr("fit", "--train", folder / "ranking.csv", *columns, *QUICK, "--out", tmp_path / "m")
    test = write(tmp_path / "t.csv", ["a", "b", "c", "order"], [[1, 2, 3, "apple=banana=cherry"]])
    assert json.loads(dsokr("evaluate", tmp_path / "m", test, "--json").stdout)["metrics"] == {"exact": 0.0}
    assert "0% of 1 prediction is exactly right." in dsokr("evaluate", tmp_path / "m", test).stdout


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_columns_carried_along_under_a_name_that_is_taken(dsokr, fitted, tmp_path, ending):
    table = write(tmp_path / "inputs.csv", ["text", "score", "name", "id"], [["carbon", "low", "Ann", "7"]])
    out = tmp_path / f"out{ending}"
    dsokr("predict", fitted, table, "--keep", "score,name,id", "--out", out)
    found = Table(out).read(Problems()).cells
    assert list(found) == ["row", "kept_score", "kept_name", "id", "input", "rank", "prediction", "score"]
    assert found["kept_score"] == ["low"] and found["kept_name"] == ["Ann"] and float(found["score"][0]) < 2


def test_inputs_may_be_a_list(dsokr, fitted, tmp_path):
    (tmp_path / "questions.txt").write_text("carbon\ncarbon oxygen\n")
    dsokr("predict", fitted, tmp_path / "questions.txt", "--out", tmp_path / "o.csv")
    assert [row["input"] for row in read(tmp_path / "o.csv")] == ["carbon", "carbon oxygen"]


def test_a_model_of_another_task_is_not_replaced(dsokr, folder, tmp_path):
    labels = ("fit", "--train", folder / "labels.csv", *LABELS, *QUICK, "--out", tmp_path / "model")
    ranking = ("fit", "--train", folder / "ranking.csv", "--input", "a,b,c", "--output", "order", *QUICK)
    assert "replaces" not in dsokr(*labels).stderr
    done = dsokr(*ranking, "--out", tmp_path / "model", expect=1)
    said = "holds a model of another task (x as vector to tags as labels)."
    assert said in done.stderr and "--restart" in done.stderr
    assert f"the model that is in {tmp_path / 'model'} now" in dsokr(*labels).stderr
    dsokr(*ranking, "--out", tmp_path / "model", "--restart")
    assert Predictor.load(tmp_path / "model", "cpu").output.name == "ranking"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("command", ["report", "embed", "fit"])
def test_a_full_disk_is_a_sentence(dsokr, fitted, folder, tmp_path, command):
    """A limit on the size of files stands for it."""
    page = tmp_path / "r.html"
    page.write_text("the one before")
    arguments, said = {
        "report": (("--out", page), f"{page} cannot be written: File too large."),
        "embed": ((folder / "library.smi", "--out", tmp_path / "i"), "cannot be"),
        "fit": (("--train", folder / "labels.csv", *LABELS, *QUICK, "--out", tmp_path / "m"), "cannot be"),
    }[command]
    model = () if command == "fit" else (fitted,)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        done = dsokr(command, *model, *arguments, expect=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dsokr: ") and said in last
    assert page.read_text() == "the one before"
    dsokr(command, *model, *arguments)


def test_a_system_error_is_a_sentence(dsokr, fitted, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(fitted / "task.json"))

    monkeypatch.setattr(Predictor, "load", refuse)
    done = dsokr("report", fitted, "--out", tmp_path / "r.html", expect=1)
    assert done.stderr == f"dsokr: {fitted / 'task.json'} cannot be read or written: Permission denied.\n"


def test_a_predictor_in_python(fitted, smiles, tmp_path):
    predictor = Predictor.load(fitted)
    assert predictor.basis.dim == predictor.coefficients(["carbon"]).shape[1]
    psi, diag = predictor.embed(["CO", "OC", "CC"])
    assert torch.allclose(psi[0], psi[1]) and torch.allclose(diag, torch.ones(3, dtype=diag.dtype))
    assert predictor.predict(["carbon oxygen"])[0] in predictor.known
    known = predictor.rank(["carbon oxygen"], k=3)
    assert predictor.known[known.indices[0, 0]] == predictor.predict(["carbon oxygen"])[0]
    for call, message in [
        (lambda: predictor.embed(["CO", "C1CC"]), "Output 1: Could not parse 'C1CC' as a molecule"),
        (lambda: predictor.coefficients([""]), "Input 0: The cell is empty"),
        (lambda: predictor.rank(["carbon"], []), "Candidates must be a list"),
        (lambda: predictor.rank(["carbon"], ["C"], 0), "k must be an integer of at least 1"),
        (lambda: predictor.rank(["carbon"], ["C"], 1, rule="best"), "decoding rule must be"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
    predictor.save(tmp_path / "copy")
    again = Predictor.load(tmp_path / "copy", "cpu")
    assert torch.equal(again.coefficients(["carbon"]), predictor.coefficients(["carbon"]))
    assert again.known == predictor.known and again.output == predictor.output and again.facts == predictor.facts


def test_folders_that_are_no_models(fitted, tmp_path):
    predictor = Predictor.load(fitted, "cpu")
    with pytest.raises(ModelFolderError, match="nowhere does not exist"):
        Predictor.load(tmp_path / "nowhere")
    with pytest.raises(ModelFolderError, match="task.json is missing.$"):
        Predictor.load(tmp_path)
    predictor.model.save(tmp_path / "plain")
    with pytest.raises(ModelFolderError, match="task.json is missing. DSOKR.load reads it"):
        Predictor.load(tmp_path / "plain")
    for name, content in [
        ("task.json", "{"),
        ("task.json", "{}"),
        ("task.json", '{"input": {"kind": "Graphs"}, "output": {"kind": "Labels"}, "facts": {}}'),
        ("task.json", '{"input": {"kind": "Text"}, "output": {"kind": "Labels", "colour": 1}, "facts": {}}'),
        ("candidates.csv", "output\nCC\n"),
        ("candidates.csv", ""),
    ]:
        predictor.save(tmp_path / "damaged")
        (tmp_path / "damaged" / name).write_text(content)
        with pytest.raises(ModelFolderError, match=f"{name} is damaged or incomplete: its checksum is wrong"):
            Predictor.load(tmp_path / "damaged", "cpu")
        write_config(tmp_path / "damaged", read_config(tmp_path / "damaged"))
        with pytest.raises(ModelFolderError, match="damaged is damaged: "):
            Predictor.load(tmp_path / "damaged", "cpu")


def test_options_in_a_file(dsokr, folder, tmp_path):
    config = tmp_path / "task.toml"
    config.write_text(
        f'train = "{folder / "vector.csv"}"\ninput = ["a", "b", "c"]\noutput = "y1"\nvalidation-fraction = 0.2\n'
        'epochs = 2\nkernel = "Gaussian(auto)"\nsize = 10\nout = "model"\ndevice = "cpu"\n'
    )
    facts = json.loads(dsokr("fit", "--config", config, "--epochs", "3", "--json").stdout)
    assert facts["rows"]["validation"] == 12 and facts["chosen"]["kernel"].startswith("Gaussian(gamma=0.")
    assert facts["chosen"]["regressor"] == "Auto(training={'epochs': 3})"
    assert facts["chosen"]["input"] == "a, b, c as vector"
    assert (tmp_path / "model" / "report.html").exists()


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_that_ranks_best_is_saved(tmp_path, smiles, monkeypatch, rule):
    def prefer(self, z, truth, own, pools=None):
        return torch.full((len(z),), 1.0 if own == rule else 2.0)

    monkeypatch.setattr(EmbeddedOutputs, "ranks", prefer)
    model = DSOKR(Tanimoto(), SubSample(20), KernelRidge(NGram(1)), decoder=Candidates(), random_state=0)
    kinds = columns.Letters().adapt(smiles), columns.Molecule(radius=1)
    X, Y = (kind.parse_all(smiles, "Cell") for kind in kinds)
    pairs = Pairs(list(range(len(smiles))), smiles, smiles, X, Y)
    made = Predictor(model, *kinds).train(pairs.take(range(60)), pairs.take(range(60, 80)))
    made.save(tmp_path / "m")
    assert made.rule == Predictor.load(tmp_path / "m").rule == rule


def test_loss_temperature_dimension_and_seeds(dsokr, folder, tmp_path):
    common = ("fit", "--train", folder / "smiles.csv", "--input", "text", "--output", "smiles", *QUICK, "--json")
    first = dsokr(*common, "--temperature", "0.1", "--seeds", "2", "--dim", "7", "--out", tmp_path / "m")
    chosen = json.loads(first.stdout)["chosen"]["regressor"]
    assert "temperature=0.1" in chosen and chosen.startswith("Auto(") and "seeds=2" in chosen
    model = Predictor.load(tmp_path / "m", "cpu").model
    assert model.basis_.dim == model.dim == 7
    members = model.parts_["regressor"].members
    assert [type(member.loss).__name__ for member in members] == ["Ranked"] * 2
    assert [member.loss.temperature for member in members] == [0.1, 0.1]
    z = [member.fitted.predict(["carbon oxygen"]) for member in model.regressor_.members]
    assert len(z) == 1 or not torch.allclose(*z)  # another seed

    dsokr(*common, *MORGAN, "--loss", "Huber(0.5)", "--seeds", "3", "--out", tmp_path / "n")
    model = Predictor.load(tmp_path / "n", "cpu").model
    assert [str(member.loss) for member in model.parts_["regressor"].members] == ["Huber(delta=0.5)"] * 3
    z = torch.stack([member.fitted.predict(["carbon oxygen"]) for member in model.regressor_.members])
    assert len(z) == 3 and not torch.allclose(z[0], z[1])
    torch.testing.assert_close(model.coefficients(["carbon oxygen"]), z.mean(dim=0))


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        ("kernl = 'wl'", "there is no option 'kernl'. Did you mean 'kernel'", 1),
        ("restart = true", "there is no option 'restart'", 1),
        ("= 1", "cannot be read as TOML", 1),
        ("epochs = 'many'", "'--epochs'", 2),
        ("epochs = true", "'--epochs'", 2),
        ("learning-rate = 'x'", "'--learning-rate'", 2),
        ("seed = 99999999999", "'--seed'", 2),
    ],
)
def test_mistakes_in_the_file(dsokr, tmp_path, text, message, code):
    (tmp_path / "task.toml").write_text(f"train = 't.csv'\ninput = 'a'\noutput = 'b'\nout = 'm'\n{text}\n")
    assert message in dsokr("fit", "--config", tmp_path / "task.toml", expect=code).stderr


SMILES = "fit --train {}/smiles.csv --input text --output smiles --out m"
VECTOR = "fit --train {}/vector.csv --input a --output y1 --out m"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit --config none.toml", "none.toml cannot be read as TOML: No such file or directory."),
        ("fit --train {}/vectr.csv --input a --output y1 --out m", "Did you mean 'vector.csv'?"),
        ("fit --train {}/string.csv --input verbs --output past --out m", "Did you mean 'verb'?"),
        ("fit --train {}/vector.csv --input q* --output y1 --out m", "has no column 'q*'"),
        (
            "fit --train {}/vector.csv --input a,b --output b,c --out m",
            "The column 'b' is in both --input and",
        ),
        ("fit --train {}/vector.csv --input a --output y1 --out {}", "is not a saved model. Choose another folder"),
        ("fit --train {}/vector.csv --input a --output y1 --out {}/few.csv/m", "few.csv is not a folder."),
        ("fit --train {}/few.csv --input a --output b --out m", "has 3 rows that can be used. At least 10 are needed."),
        ("fit --train {}/one.csv --input a --output b --out m", "has 1 row that can be used. At least 10 are needed."),
        (
            "fit --train {}/same.csv --input a --output b,c --out m",
            "All outputs in b, c are the same: there is nothing to learn.",
        ),
        ("fit --train {}/open.csv --input text --output smiles --out m", "A double quote in row 12 of"),
        (
            "fit --train {}/commas.csv --input a --output b --out m",
            "commas.csv, row 2 (the header is row 1), column 'b', '0,5': '0,5' is not a number. Write decimals",
        ),
        (
            "fit --train {}/commas.csv --input c --output a --out m",
            "commas.csv, row 4 (the header is row 1), column 'c', '< 0.1': '<' is not a number. Use --input-kind",
        ),
        (f"{VECTOR} --kernel NGram(2)", "The kernel NGram(n=2, weights=None) does not take such outputs"),
        (f"{VECTOR} --kernel Gausian(1)", "there is no Gausian. Choose from "),
        (f"{VECTOR} --kernel Gaussian", "--kernel 'Gaussian()' cannot be read"),
        (f"{VECTOR} --kernel Gaussian(-1)", "Gaussian.gamma must be positive"),
        (f"{VECTOR} --loss Hubber(1)", "--loss 'Hubber(1)' cannot be read: there is no Hubber. Choose from "),
        (f"{VECTOR} --loss SAME", "--loss 'SAME()' cannot be read"),
        (
            f"{VECTOR} --loss Huber(1.0) --temperature 0.1",
            "--temperature is of the loss Ranked. Got --loss Hub",
        ),
        (f"{VECTOR} --temperature 0", "Ranked.temperature must be positive and finite. Got 0.0."),
        (
            f"{VECTOR} --regressor Forest() --seeds 2",
            "and --seeds are for networks: write them into --reg",
        ),
        (f"{VECTOR} --dim 1000", "A basis of dimension 1 has 1 to 1 leading directions. Got 1000."),
        (f"{VECTOR} --network CNN", "CNN does not read vector inputs. Use MLP or SparseTransformer."),
        (f"{VECTOR} --network NN", "there is no NN. Choose from CNN, CharTransformer"),
        (f"{SMILES} --network MLP", "MLP does not read text inputs. Use WordBag or TextEncoder."),
        (
            f"{VECTOR} --decoder serach",
            "--decoder takes auto, candidates, search or an expression. Did you",
        ),
        (
            f"{VECTOR} --input-kind spectra",
            "There is no --input-kind 'spectra'. Did you mean 'spectrum'? Choose from vector, text, string, smiles,",
        ),
        (f"{VECTOR} --output-kind image", "There is no --output-kind 'image'. Choose from vector, labels, ranking,"),
        (f"{VECTOR} --output-kind smiles", "vector.csv has 60 rows, none of which can be used."),
        (f"{SMILES} --output-kind Molecule(radius=-1)", "Molecule.radius must be an integer of at least 0. Got -1."),
        (f"{VECTOR} --size 99", "--size must be auto, or from 1 to the number of training rows, 54. Got 99."),
        (f"{VECTOR} --learning-rate 0", "--learning-rate must be positive and finite. Got 0.0."),
        (f"{VECTOR} --learning-rate nan", "--learning-rate must be positive and finite. Got nan."),
        (f"{VECTOR} --device tpu", "Unknown device 'tpu'"),
        (f"{VECTOR} --regressor Forest --network MLP", "--regressor and --network exclude each other"),
        (f"{VECTOR} --regressor Forest --epochs 3", "--epochs, --batch-size, --learning-rate, --patience, --loss"),
        (f"{VECTOR} --network MLP --budget 9s", "--budget is kept by choosing what to fit. Got --network beside it."),
        (f"{VECTOR} --budget soon", "Auto.budget must be a time, such as '10 s', '5 min' or '2 h'. Got 'soon'."),
        (f"{VECTOR} --regressor Forrest", "there is no Forrest. Choose from Auto, Boosted, Forest"),
        (f"{SMILES} --encoder an/encoder --network WordBag", "--network and --encoder exclude each other"),
        (f"{SMILES} --encoder {{}}", "is neither the folder of a text encoder nor a name on the hub"),
        ("predict nowhere {}/vector.csv --out o.csv", "nowhere does not exist. Name the folder that `dsokr fit` wrote"),
        ("predict {}/vector.csv {} --out o.csv", "vector.csv is a file. Name the folder that `dsokr fit` wrote"),
        ("predict {} {}/vector.csv --out o.txt", "cannot write .txt"),
        ("predict {} {}/vector.csv --out {}/vector.csv", "vector.csv would overwrite an input."),
        ("predict {} {}/vector.csv --out {}/few.csv/o.csv", "few.csv is not a folder."),
        ("predict {} {}/vector.csv --out o.csv --candidates-column c", "Name them with --candidates."),
        ("predict {} {}/vector.csv --out o.csv --top 5", "Name them with --candidates"),
        ("predict {} {}/vector.csv --out o.csv --rule cosine", "Name them with --candidates"),
        (
            "rank {} {}/vector.csv --out o.csv --candidates {}/few.csv --out {}/few.csv",
            "few.csv would overwrite an input.",
        ),
        ("evaluate {} {}/vector.csv --candidates-column c", "Name them with --candidates."),
        ("report {} --out {}/few.csv/r.html", "few.csv is not a folder."),
        ("report {} --out report.pdf", "Name it .html"),
        ("predict {} {}/vector.csv --out o.csv --explain why.pdf", "why.pdf: the explanation is a page. Name it .html"),
        ("rank {} {}/vector.csv --out o.csv --candidates {}/few.csv --rule best", "The decoding rule must be one of"),
        ("serve {} --timeout 0", "seconds must be positive and finite. Got 0.0."),
    ],
)
def test_errors_are_one_sentence(dsokr, folder, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    write(folder / "few.csv", ["a", "b"], [[1, 2], [3, 4], [5, 6]])
    write(folder / "same.csv", ["a", "b", "c"], [[x, 1, 2] for x in range(20)])
    write(folder / "one.csv", ["a", "b"], [[1, 2]])
    lines = (folder / "smiles.csv").read_text().splitlines()
    (folder / "open.csv").write_text("\n".join([*lines[:11], f'"{lines[11]}', *lines[12:]]))
    commas = [[x, f"{x},5", x / 8 if x % 4 != 2 else "< 0.1"] for x in range(20)]
    write(folder / "commas.csv", ["a", "b", "c"], commas)
    done = dsokr(*line.replace("{}", str(folder)).split(), expect=1)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dsokr: ") and message in last and done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("fit --train t.csv", "--input"),
        ("fit --train t.csv --input a --output b --out m --epochs 0", "--epochs"),
        ("fit --train t.csv --input a --output b --out m --on-error no", "--on-error"),
        ("fit --train t.csv --input a --output b --out m --validation-fraction 1", "--validation-fraction"),
        ("predict m t.csv --out o.csv --top 0", "--top"),
        ("rank m t.csv --out o.csv", "--candidates"),
        ("reproduce synthetic", "reproduce"),
    ],
)
def test_options_that_cannot_be_used(dsokr, line, option):
    done = dsokr(*line.split(), expect=2)
    assert option in done.stderr.splitlines()[-1] and done.stderr.startswith("dsokr: ")


@pytest.mark.parametrize("name", ["nosuchfolder", "models/bert", "./a/b", "a/b/c", "models"])
def test_an_encoder_that_is_not_there_is_missed_first(dsokr, monkeypatch, tmp_path, name):
    """The hub is not asked, and the table is not even looked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    arguments = ("fit", "--train", "none.csv", "--input", "a", "--output", "b", "--out", "m", "--encoder")
    said = f"{name} is neither the folder of a text encoder nor a name on the hub"
    assert said in dsokr(*arguments, name, expect=1).stderr
    assert "There is no file none.csv" in dsokr(*arguments, "an/encoder", expect=1).stderr  # may be one of the hub


def test_columns_that_a_test_does_not_have(dsokr, fitted, folder):
    done = dsokr("evaluate", fitted, folder / "graph.csv", expect=1)
    assert "graph.csv has no column 'text'." in done.stderr


def test_validation_pairs_of_their_own_and_none(dsokr, folder, tmp_path, smiles):
    valid = write(tmp_path / "valid.csv", ["smiles", "text"], [[s, describe(s)] for s in smiles[60:]] + [["C1", "x"]])
    table = folder / "smiles.csv"
    arguments = ("fit", "--train", table, *QUICK, *FITS["smiles"], "--json", "--out", tmp_path / "model")
    facts = json.loads(dsokr(*arguments, "--valid", valid).stdout)
    assert facts["rows"] == {"train": 60, "validation": 20, "skipped": 1}
    facts = json.loads(dsokr(*arguments, "--validation-fraction", "0").stdout)
    assert facts["rows"]["validation"] == 0 and "validation" not in facts
    assert "held out for validation</h2>" not in (tmp_path / "model" / "report.html").read_text()


@pytest.fixture
def one_thread(monkeypatch):
    """Sums of several threads differ in their last bits from run to run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("network", [("--network", "MLP"), ()], ids=["network", "stack"])
def test_ctrl_c_and_the_same_command_again(dsokr, folder, tmp_path, one_thread, monkeypatch, network):
    """An interrupted training resumes, and ends as if it had not been; another command is refused, or starts anew."""
    train = ("fit", "--train", folder / "labels.csv", *LABELS, *network, "--epochs", "6", "--device", "cpu")
    arguments = (*train, "--out", tmp_path / "model")

    def stop_in_epoch_4(self, trainer, *_):
        if trainer.current_epoch == 3:
            stop()

    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "CHECKPOINT_EVERY", timedelta(0))
        patch.setattr(callbacks.Progress, "on_train_epoch_start", stop_in_epoch_4)
        done = dsokr(*arguments, expect=130)
    assert "dsokr: Training was interrupted in epoch 4. Run the same command to resume." in done.stderr
    assert (tmp_path / ".model.unfinished" / "training" / "last.ckpt").exists() and not (tmp_path / "model").exists()

    done = dsokr(*arguments, "--seed", "1", expect=1)
    assert "holds an interrupted training with other data or options" in done.stderr and "--restart" in done.stderr
    assert "resuming the interrupted training" in dsokr(*arguments).stderr
    assert not (tmp_path / ".model.unfinished").exists()
    dsokr(*train, "--out", tmp_path / "alone")
    resumed, alone = (Predictor.load(tmp_path / name, "cpu") for name in ("model", "alone"))
    assert len(resumed.model.history_.rows) == len(alone.model.history_.rows) == 6
    assert torch.equal(resumed.coefficients(["1 2 3"]), alone.coefficients(["1 2 3"]))


@pytest.mark.parametrize("where", ["dsokr.commands.fit.evaluate", "dsokr.commands.predictor.write_table"])
def test_ctrl_c_after_the_training_does_not_lose_it(dsokr, folder, tmp_path, monkeypatch, where):
    """In the evaluation, and while the model is saved: the one before stays, and the training is not repeated."""
    network = ("--network", "MLP")
    arguments = ("fit", "--train", folder / "labels.csv", *LABELS, *network, *QUICK, "--out", tmp_path / "model")
    dsokr(*arguments)
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(where, stop)
        done = dsokr(*arguments, "--seed", "5", expect=130)
    assert "dsokr: Stopped. Run the same command to resume." in done.stderr
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    monkeypatch.setattr("dsokr.regressors.loop._Regression.training_step", stop)  # there is nothing left to learn
    dsokr(*arguments, "--seed", "5")
    assert len(Predictor.load(tmp_path / "model", "cpu").model.history_.rows) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_two_fits_into_one_folder(dsokr, folder, tmp_path):
    arguments = ("fit", "--train", folder / "labels.csv", *LABELS, *QUICK, "--out", tmp_path / "model")
    with lock_folder(tmp_path / ".model.unfinished", "dsokr fit"):
        for restart in ((), ("--restart",)):
            done = dsokr(*arguments, *restart, expect=1)
            assert "is being written by another `dsokr fit`" in done.stderr and done.stderr.count("\n") == 1
    dsokr(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_training_can_be_discarded(dsokr, folder, tmp_path):
    draft = tmp_path / ".model.unfinished"
    draft.mkdir()
    (draft / "training").mkdir()
    (draft / "plan.json").write_text('{"fingerprint": "another"}')
    (draft / "training" / "last.ckpt").write_text("")
    arguments = ("fit", "--train", folder / "labels.csv", *LABELS, *QUICK, "--out", tmp_path / "model")
    dsokr(*arguments, expect=1)
    dsokr(*arguments, "--restart")
    assert not draft.exists() and (tmp_path / "model" / "task.json").exists()


def test_ctrl_c_while_a_library_is_read_leaves_no_table(dsokr, fitted, folder, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(columns.OutputKind, "read", stop)
    candidates = ("--candidates", folder / "library.smi")
    done = dsokr("rank", fitted, inputs, *candidates, "--out", tmp_path / "out.csv", expect=130)
    assert done.stderr == "dsokr: interrupted\n" and [path.name for path in tmp_path.iterdir()] == ["inputs.csv"]


def test_the_report_escapes_what_is_written(fitted, tmp_path):
    predictor = Predictor.load(fitted, "cpu")
    cells = ["<script>alert(1)</script>"], ["CO"]
    test = Pairs([2], *cells, predictor.input.parse(cells[0]), predictor.output.parse(cells[1]))
    evaluate.write_report(predictor, tmp_path / "r.html", "m", test, "t.csv")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_the_commands_in_a_report_run_as_they_are_printed(dsokr, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = "my models/it's"
    dsokr("fit", "--train", folder / "labels.csv", *LABELS, *QUICK, "--out", model)
    (tmp_path / "inputs.csv").write_bytes((folder / "labels.csv").read_bytes())
    (tmp_path / "test.csv").write_bytes((folder / "labels.csv").read_bytes())
    write(tmp_path / "library.csv", ["tags"], [["apple"], ["banana;cherry"]])
    dsokr("report", model, "--out", "again.html")
    for page in (tmp_path / model / "report.html", tmp_path / "again.html"):
        lines = html.unescape(page.read_text(encoding="utf-8")).partition("Next steps")[2].splitlines()
        commands = [shlex.split(line.partition("</pre>")[0]) for line in lines if line.startswith("dsokr ")]
        assert [command[1] for command in commands] == ["predict", "rank", "evaluate"]
        for command in commands:
            dsokr(*command[1:])


@pytest.mark.parametrize(
    ("sizes", "share", "held_out", "note"),
    [
        ([1] * 50, 0.1, 5, ""),
        ([5] * 40, 0.12, 20, "; rows with equal inputs are held out together"),
        ([1, 30, 1, 28], 0.1, 2, "; rows with equal inputs are held out together"),
        ([30, 30], 0.1, 6, "; inputs repeat, and with 2 different ones those held out are known"),
    ],
)
def test_rows_with_equal_inputs_are_held_out_together(sizes, share, held_out, note):
    inputs = [f"input {i}" for i, size in enumerate(sizes) for _ in range(size)]
    pairs = Pairs(list(range(len(inputs))), inputs, inputs, inputs, inputs)
    chosen, said = fit.hold_out(pairs, share, seed=7)
    assert (len(chosen), said) == (held_out, note) and fit.hold_out(pairs, share, seed=7)[0] == chosen
    if "together" in note:
        assert not {inputs[at] for at in chosen} & {text for at, text in enumerate(inputs) if at not in chosen}
    if not note:
        assert chosen == set(np.random.default_rng(7).permutation(50)[:5].tolist())


@pytest.fixture
def measured(tmp_path, smiles):
    """Ten measurements of each of 50 molecules."""
    rng = np.random.default_rng(0)
    rows = [[*rng.normal(size=2).round(4), s, f"g{i}"] for i, s in enumerate(smiles[:50]) for _ in range(10)]
    return write(tmp_path / "measured.csv", ["a", "b", "smiles", "group"], rows)


def test_groups_are_on_one_side_of_every_split(measured, tmp_path):
    common = {"train": measured, "input": ["a,b"], "output": ["smiles"], "out": tmp_path / "m"}
    options = FitOptions(**common, group="group", validation_fraction=0.45)
    predictor, *parts = fit.prepare(options, Problems())
    groups = [set(part.groups) for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 50
    assert list(map(len, parts)) == [280, 110, 110]
    assert "; 50 groups, none of them in both, 110 to calibrate on" in predictor.facts["chosen"]["pairs"]
    (tmp_path / "valid.csv").write_text(measured.read_text())
    own = fit.prepare(FitOptions(**common, group="group", valid=tmp_path / "valid.csv"), Problems())[1:]
    assert not set(own[1].groups) & set(own[2].groups)
    with pytest.raises(InputError, match="--group: all 50 groups are larger than the 1% of the rows to hold out"):
        fit.prepare(FitOptions(**common, group="group", validation_fraction=0.01), Problems())
    with pytest.raises(InputError, match="has no column 'grup'. Did you mean 'group'"):
        fit.prepare(FitOptions(**common, group="grup"), Problems())
    lines = measured.read_text().splitlines()
    measured.write_text("\n".join([*lines[:2], lines[2].rpartition(",")[0] + ", ", *lines[3:]]))
    problems = Problems()
    fit.prepare(options, problems)
    assert [problem.sentence().partition("csv, ")[2] for problem in problems.by_row()] == [
        "row 3 (the header is row 1), column 'group': The cell is empty."
    ]


@pytest.mark.filterwarnings("default")
def test_held_out_outputs_that_were_trained_on_are_noticed(dsokr, measured, tmp_path):
    arguments = ("fit", "--train", measured, "--input", "a,b", "--output", "smiles", "--regressor", "Neighbors(3)")
    done = dsokr(*arguments, "--json", "--out", tmp_path / "m")
    assert "50 of 50 held-out outputs were also trained on: name a column with --group to hold out all" in done.stderr
    assert json.loads(done.stdout)["validation"]["known"] == 1
    done = dsokr(*arguments, "--json", "--group", "group", "--out", tmp_path / "grouped")
    assert "also trained on" not in done.stderr
    assert json.loads(done.stdout)["validation"]["known"] == 0
    assert "0% of which were trained on" in (tmp_path / "grouped" / "report.html").read_text(encoding="utf-8")
    assert len(Predictor.load(tmp_path / "grouped", "cpu").trained) == 45


def test_numbers_are_equal_inputs_however_they_are_written(tmp_path):
    rows = [[f"{x / 8}0" if again else x / 8, x] for again in range(2) for x in range(20)]
    table = write(tmp_path / "t.csv", ["x", "y"], rows)
    options = FitOptions(train=table, input=["x"], output=["y"], out=tmp_path / "m", validation_fraction=0.2)
    _, pairs, valid, _ = fit.prepare(options, Problems())
    train, held_out = ({float(cell) for cell in some.inputs} for some in (pairs, valid))
    assert not train & held_out and len(valid) == 8


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("outputs", "kind", "noted"),
    [
        ([",".join(n for b, n in enumerate("abc") if (x % 7 + 1) >> b & 1) for x in range(70)], "labels", True),
        ([";".join(n for b, n in enumerate("abc") if (x % 7 + 1) >> b & 1) for x in range(70)], "labels", False),
        ([["Doe, John", "Jane", "Mary"][x % 3] for x in range(60)], "labels", False),
        ([",".join(n for b, n in enumerate("abcdefghij") if x >> b & 1) for x in range(3, 123)], "string", True),
    ],
    ids=["commas", "semicolons", "names", "many sets"],
)
def test_labels_with_commas_are_noted(dsokr, tmp_path, outputs, kind, noted):
    table = write(tmp_path / "t.csv", ["x", "tags"], enumerate(outputs))
    arguments = ("fit", "--train", table, "--input", "x", "--output", "tags", *QUICK, "--size", "10")
    done = dsokr(*arguments, "--out", tmp_path / "m")
    note = "dsokr: note: The outputs contain commas: write several labels of a row with ; or | between."
    assert (note in done.stderr.splitlines()) == noted and f"tags as {kind}" in done.stderr


@pytest.mark.filterwarnings("default")
def test_a_note_is_said_once_and_names_no_index(dsokr, folder, tmp_path):
    rows = [[f"{p}{a}", p] for p in "abcdefgh" for a in ("walk", "talk", "jump", "play", "look")]
    table = write(tmp_path / "t.csv", ["verb", "first"], rows)
    valid = write(tmp_path / "v.csv", ["verb", "first"], [["awalk", "a"], ["Zwalk", "a"], *rows[:7], ["Qwalk", "b"]])
    train = ("fit", "--train", table, "--valid", valid, "--input", "verb", "--output", "first", *QUICK, *SMALL)
    notes = [line for line in dsokr(*train, "--out", tmp_path / "m").stderr.splitlines() if "note: " in line]
    assert (
        len(notes) == 1 and notes[0].startswith("dsokr: note: ") and "'Zwalk'" in notes[0] and "index" not in notes[0]
    )
    table = write(tmp_path / "i.csv", ["verb"], [["awalk"], ["Zwalk"]])
    done = dsokr("predict", tmp_path / "m", table, "--out", tmp_path / "o.csv")
    assert done.stderr.count("note: ") == 1 and "'Zwalk'" in done.stderr


@pytest.mark.parametrize(
    ("kernel", "skipped"), [("Hamming", ["18", "22"]), ("Lehmer()", ["18", "22"]), ("auto", ["18"])]
)
def test_a_ranking_that_is_none_does_not_lose_the_others(dsokr, folder, tmp_path, kernel, skipped):
    rows = [list(row.values()) for row in read(folder / "ranking.csv")]
    rows[16][3], rows[20][3] = "n/a", rows[20][3].replace("banana", "bananna")
    table = write(tmp_path / "t.csv", ["a", "b", "c", "order"], rows)
    columns = ("--input", "a,b,c", "--output", "order", "--kernel", kernel)
    dsokr("fit", "--train", table, *columns, *QUICK, "--out", tmp_path / "m")
    assert [row["row"] for row in read(tmp_path / "m" / "skipped.csv")] == skipped


def test_as_a_program():
    command = [sys.executable, "-m", "dsokr.commands.app", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"dsokr {__version__}\n"


def test_help_lists_the_commands(dsokr):
    assert dsokr("--version").stdout == f"dsokr {__version__}\n"
    text = dsokr("--help").stdout
    for command in ("fit", "predict", "rank", "evaluate", "report", "embed", "serve", "info"):
        assert command in text and "--help" in dsokr(command, "--help").stdout
    assert '"Gaussian(0.5)"' in dsokr("fit", "--help").stdout


def test_info(dsokr, monkeypatch):
    needs = [
        "torch>=2.6",
        'no-such-package; extra == "plots"',
        'pytest>=8; extra == "tests"',
        'dsokr[tests]; extra == "all"',
    ]
    monkeypatch.setattr(app, "requires", lambda name: needs)
    facts = json.loads(dsokr("info", "--json").stdout)
    assert facts["dsokr"] == __version__ and "cpu" in facts["devices"]
    assert facts["extras"] == {"plots": False, "tests": True, "all": True}
    text = dsokr("info").stdout
    assert "torch" in text and 'missing: pip install "dsokr[plots]"' in text


def test_a_closed_pipe_is_quiet(dsokr, fitted, folder, monkeypatch):
    def close(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(evaluate, "evaluate", close)
    with pytest.raises(BrokenPipeError):
        app.app(["evaluate", str(fitted), str(folder / "smiles.csv")], standalone_mode=False)


@pytest.fixture(scope="module")
def calibrated(folder, tmp_path_factory):
    """A model of label sets, calibrated by fit: its table is long enough."""
    rng, place = np.random.default_rng(3), tmp_path_factory.mktemp("calibrated")
    X = rng.normal(size=(2600, 3)).round(3)
    Y = np.array(["apple", "banana", "cherry"])
    rows = [[*x, ";".join(Y[x + 0.3 * rng.normal(size=3) > 0]) or "{}", "ab"[int(x[0] > 0)]] for x in X]
    for name, some in {"train": rows[:2100], "further": rows[2100:]}.items():
        with (place / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["a", "b", "c", "tags", "half"], *some])
    arguments = ["fit", "--train", place / "train.csv", "--input", "a,b,c", "--output", "tags", "--device", "cpu"]
    network = ["--regressor", "Stack((Forest(20), KernelRidge(intercept=True)))", "--size", "60"]
    app.app(list(map(str, [*arguments, *network, "--out", place / "model"])), standalone_mode=False)
    return place


def test_fit_calibrates_and_sets_hold_what_they_promise(dsokr, calibrated, tmp_path):
    model, further = calibrated / "model", calibrated / "further.csv"
    dsokr("predict", model, further, "--coverage", "0.9", "--keep", "tags", "--out", tmp_path / "sets.csv")
    rows = read(tmp_path / "sets.csv")
    held, sizes = Counter(), Counter(row["row"] for row in rows)
    for row in rows:
        held[row["row"]] += row["prediction"] == row["tags"]
        assert 0 < float(row["probability"]) <= 1 and 0 < float(row["confidence"]) < 1
    assert len(sizes) == 500 and 0.84 < sum(held.values()) / 500 < 0.97 and set(held.values()) <= {0, 1}
    assert len(rows) < 4 * 500  # of eight sets

    options = ("--max-error", "0.1", "--out", tmp_path / "safe.csv", "--json")
    done = json.loads(dsokr("predict", model, further, *options).stdout)
    dsokr("predict", model, further, "--keep", "tags", "--out", tmp_path / "all.csv")
    rows, everything = read(tmp_path / "safe.csv"), read(tmp_path / "all.csv")
    right = {row["row"]: row["prediction"] == row["tags"] for row in everything}
    assert 0 < done["left_out"] < 500 and len(rows) == 500 - done["left_out"]
    assert np.mean([not right[row["row"]] for row in rows]) < 0.13 < np.mean([not held for held in right.values()])

    answer = json.loads(dsokr("evaluate", model, further, "--json").stdout)
    assert [test["asked"] for test in answer["promises"]["coverage"]] == [0.8, 0.9, 0.95]
    assert answer["promises"]["calibration_error"] < 0.1
    dsokr("report", model, "--test", further, "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "How far to trust it" in page and page.count('<svg class="chart"') == 2 and "were asked for" in page


def test_ones_own_candidates_with_a_guarantee(dsokr, calibrated, tmp_path):
    """The list is another than the one calibrated on: the calibration is made for it."""
    model, further = calibrated / "model", calibrated / "further.csv"
    sets = [";".join(labels) for k in (1, 2, 3) for labels in combinations(("apple", "banana", "cherry"), k)]
    (tmp_path / "list.txt").write_text("\n".join([*sets, "{}"]))
    dsokr("embed", model, tmp_path / "list.txt", "--out", tmp_path / "index")
    for candidates in ("list.txt", "index"):
        options = ("--candidates", tmp_path / candidates, "--coverage", "0.9", "--keep", "tags")
        dsokr("rank", model, further, *options, "--out", tmp_path / "sets.csv")
        rows = read(tmp_path / "sets.csv")
        assert 0.84 < sum(row["prediction"] == row["tags"] for row in rows) / 500 < 0.97
        done = dsokr("rank", model, further, *options, "--rule", "cosine", "--out", tmp_path / "sets.csv", expect=1)
        assert "--rule cannot be chosen with --coverage" in done.stderr


def test_calibrate_by_hand_and_by_group(dsokr, calibrated, fitted, folder, inputs, tmp_path):
    shutil.copytree(calibrated / "model", tmp_path / "model")
    done = dsokr("calibrate", tmp_path / "model", calibrated / "further.csv")
    assert "Calibrated on 500 pairs. Members of a set in the median: 1 at 80%" in done.stdout
    done = dsokr("calibrate", tmp_path / "model", calibrated / "train.csv", expect=1)
    assert "The model was trained on most of these inputs" in done.stderr
    dsokr("calibrate", tmp_path / "model", calibrated / "further.csv", "--group", "half")
    sure = Predictor.load(tmp_path / "model", "cpu").sure
    assert list(sure.calibration.strangeness) == ["a", "b"]
    dsokr("predict", tmp_path / "model", calibrated / "train.csv", "--coverage", "0.9", "--out", tmp_path / "out.csv")
    done = dsokr("predict", fitted, inputs, "--coverage", "0.9", "--out", tmp_path / "out.csv", expect=1)
    assert "is not calibrated. Run `dsokr calibrate" in done.stderr
    wrong = ("--coverage", "2", "--out", tmp_path / "out.csv")
    done = dsokr("predict", calibrated / "model", calibrated / "further.csv", *wrong, expect=1)
    assert "coverage must be in (0, 1). Got 2" in done.stderr
