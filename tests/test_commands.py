"""From one's own files to a ranked table, from the command line."""

import csv
import html
import json
import resource
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dsokr import chem, metrics
from dsokr.basis import embedded_scores
from dsokr.commands.app import app
from studies.data import molecules
from dsokr.decoders import Candidates
from dsokr.errors import InputError, ModelFolderError
from dsokr.commands import Predictor, embedding, evaluation, fitting, options, prediction, report, splitting, tables
from dsokr.commands.problems import Problems
from dsokr.commands.reading import Cells

QUICK = ("--epochs", "3", "--device", "cpu")
SMALL = ("--network", "transformer:layers=1,width=16,heads=2")


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
            app()
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


def described(smiles: str) -> str:
    """A text that says what a molecule is made of."""
    names = {6: "carbon", 7: "nitrogen", 8: "oxygen", 9: "fluorine"}
    return " ".join(sorted(names[label] for label in chem.graph(smiles).labels))


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
    write(folder / "smiles.csv", ["text", "smiles"], [[described(s), s] for s in smiles[:60]])
    write(folder / "graph.csv", ["smiles", "molecule"], [[s, s] for s in smiles[:60]])
    pictures = pytest.importorskip("PIL.Image")
    for i, x in enumerate(X):
        pictures.fromarray(np.full((9, 9), 255 * (x[0] > 0), np.uint8)).save(folder / f"{i}.png")
    shades = np.where(X[:, 0] > 0, "light", "dark")
    write(folder / "image.csv", ["picture", "shade"], [[f"{i}.png", shade] for i, shade in enumerate(shades)])
    (folder / "library.smi").write_text("".join(f"{s} m{i}\n" for i, s in enumerate(smiles)))
    return folder


FITS = {
    "vector": ("--input", "a,b,c", "--output", "y*", "--epochs", "40"),
    "labels": ("--input", "x", "--output", "tags"),
    "ranking": ("--input-columns", "a,b,c", "--output", "order", "--kernel", "hamming"),
    "string": ("--input", "verb", "--output", "past", *SMALL),
    "smiles": ("--input", "text", "--output", "smiles", "--kernel", "morgan:radius=1", "--network", "words:width=16"),
    "graph": ("--input", "smiles", "--output", "molecule", "--kernel", "wl", *SMALL),
    "image": ("--input", "picture", "--output", "shade", "--network", "cnn:channels=4x8,hidden=8"),
}
METRICS = {
    "vector": {"r2", "mae", "rmse", "mae y1", "mae y2"},
    "labels": {"f1", "exact"},
    "ranking": {"kendall_tau", "exact"},
    "string": {"exact", "edits"},
    "smiles": {"similarity", "hits@1", "hits@10", "mrr", "mean_rank", "candidates", "known"},
    "graph": {"similarity", "exact", "ged", "hits@1", "hits@10", "mrr", "mean_rank", "candidates", "known"},
    "image": {"f1", "exact"},
}


@pytest.mark.parametrize("kind", FITS)
def test_from_a_table_to_predictions_metrics_and_a_report(dsokr, folder, tmp_path, kind):
    table, model = folder / f"{kind}.csv", tmp_path / "model"
    done = dsokr("fit", "--train", table, *QUICK, *FITS[kind], "--out", model)
    assert all(word in done.stderr for word in ("kernel", "network", "decoder", "chosen by Perfect h", "Validation: "))
    assert {path.name for path in model.iterdir()} == {
        *("config.json", "model.safetensors", "README.md", "task.json", "candidates.csv", "report.html"),
    }
    assert not (tmp_path / ".model.unfinished").exists()

    dsokr("predict", model, table, "--out", tmp_path / "out.csv")
    rows, given = read(tmp_path / "out.csv"), read(table)
    assert [int(row["row"]) for row in rows] == list(range(2, len(given) + 2))
    assert set(row["rank"] for row in rows) == {"1"}
    predictor = Predictor.load(model, "cpu")
    columns = [name for name in rows[0] if name.startswith("prediction")]
    predictor.output.all_of([" ".join(row[name] for name in columns) for row in rows], "Prediction")
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
    assert page.count("<svg") >= 5 * 8 if kind in ("smiles", "graph") else "<svg" not in page
    assert 'src="http' not in page and "href" not in page


@pytest.fixture(scope="module")
def fitted(folder, tmp_path_factory):
    """A model from texts to molecules."""
    out = tmp_path_factory.mktemp("fitted") / "model"
    asked = options.Options(
        train=folder / "smiles.csv",
        input="text",
        output="smiles",
        out=out,
        kernel="morgan:radius=1",
        network="words:width=16",
        epochs=20,
        device="cpu",
    )
    fitting.fit(asked, say=lambda line: None)
    return out


def test_ranking_a_library(dsokr, fitted, folder, tmp_path, smiles):
    inputs = write(tmp_path / "inputs.csv", ["id", "text"], [["u1", "carbon oxygen"], ["u2", "carbon carbon nitrogen"]])
    arguments = ("rank", fitted, inputs, "--candidates", folder / "library.smi", "--top", "4", "--keep", "id")
    done = dsokr(*arguments, "--out", tmp_path / "ranked.csv")
    assert "80 candidates were ranked for 2 inputs." in done.stdout
    rows = read(tmp_path / "ranked.csv")
    assert list(rows[0]) == ["row", "id", "input", "rank", "prediction", "name", "score"]
    assert [(row["row"], row["id"], row["rank"]) for row in rows] == [
        (str(2 + i), f"u{i + 1}", str(1 + j)) for i in range(2) for j in range(4)
    ]
    predictor = Predictor.load(fitted, "cpu")
    expected = predictor.rank(["carbon oxygen", "carbon carbon nitrogen"], smiles, 4)
    assert [row["prediction"] for row in rows] == [smiles[i] for i in expected.indices.flatten().tolist()]
    assert [row["name"] for row in rows] == [f"m{i}" for i in expected.indices.flatten().tolist()]
    assert np.allclose([float(row["score"]) for row in rows], expected.scores.flatten())
    for rule in ("kernel", "projected", "cosine"):
        dsokr(*arguments, "--rule", rule, "--out", tmp_path / "by_rule.jsonl")
        best = predictor.rank(["carbon oxygen"], smiles, 1, rule).indices.item()
        assert tables.table(tmp_path / "by_rule.jsonl").read(Problems()).cells["prediction"][0] == smiles[best]


def test_a_library_is_ranked_the_same_in_blocks(dsokr, fitted, folder, tmp_path, monkeypatch):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"], ["nitrogen"]])
    arguments = ("predict", fitted, inputs, "--candidates", folder / "library.smi", "--out")
    dsokr(*arguments, tmp_path / "whole.csv")
    monkeypatch.setattr("dsokr.commands.prediction.BLOCK", 7)
    dsokr(*arguments, tmp_path / "blocks.csv")
    assert (tmp_path / "whole.csv").read_text() == (tmp_path / "blocks.csv").read_text()


def test_candidates_twice_and_bad_ones(dsokr, fitted, tmp_path):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    library = tmp_path / "library.smi"
    library.write_text("CO first\nC1CC bad\nCO again\nCC\nCO third\n")
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "ranked.csv")
    assert "2 candidates (2 listed again, counted once) were ranked for 1 input." in done.stdout
    assert "1 row was skipped:" in done.stderr and "line 2, column 'smiles': Could not parse 'C1CC'" in done.stderr
    rows = read(tmp_path / "ranked.csv")
    assert {row["prediction"]: row["name"] for row in rows} == {"CO": "first", "CC": ""}
    assert read(tmp_path / "ranked.skipped.csv")[0]["row"] == "2"
    done = dsokr(
        "rank", fitted, inputs, "--candidates", library, "--on-error", "fail", "--out", tmp_path / "r.csv", expect=1
    )
    assert "line 2" in done.stderr and "--on-error skip" in done.stderr and not (tmp_path / "r.csv").exists()
    library.write_text("C1CC\n")
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "r.csv", expect=1)
    why = "has no candidate that can be used. The first: "
    assert why in done.stderr
    test = write(tmp_path / "test.csv", ["text", "smiles"], [["carbon oxygen", "CO"]])
    assert why in dsokr("evaluate", fitted, test, "--candidates", library, expect=1).stderr


REPEATED = ["CO", "", "CC", "C1CC", "CO", "", "CCC", "C1CC", "", "CC", "", "CO", "C1CC"]  # three, then three again
BAD = [row for row, cell in enumerate(REPEATED, start=2) if cell in ("", "C1CC")]


@pytest.mark.parametrize("size", [2, 5, 100])
def test_bad_candidates_that_repeat_are_skipped_and_good_ones_count_once(dsokr, fitted, tmp_path, monkeypatch, size):
    monkeypatch.setattr(prediction, "BLOCK", size)
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    library = write(tmp_path / "library.csv", ["id", "smiles"], enumerate(REPEATED))
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "r.csv")
    assert "3 candidates (3 listed again, counted once) were ranked" in done.stdout
    assert f"{len(BAD)} rows were skipped:" in done.stderr
    assert [int(row["row"]) for row in read(tmp_path / "r.skipped.csv")] == BAD
    done = dsokr("embed", fitted, library, "--out", tmp_path / "i")
    assert "3 candidates (3 listed again, counted once) are in the index." in done.stdout
    assert f"{len(BAD)} rows were skipped:" in done.stderr
    listed = (tmp_path / "i" / "skipped.txt").read_text().splitlines()
    assert [line.split(" (")[0].split("row ")[1] for line in listed] == list(map(str, BAD))


@pytest.mark.parametrize("blocks", range(1, 6))
def test_candidates_that_repeat_after_an_interruption(dsokr, fitted, tmp_path, monkeypatch, blocks):
    library = write(tmp_path / "library.csv", ["id", "smiles"], enumerate(REPEATED))
    arguments = ("embed", fitted, library, "--json", "--out")
    whole = json.loads(dsokr(*arguments, tmp_path / "whole").stdout)
    monkeypatch.setattr(prediction, "BLOCK", 2)
    asked = []

    def interrupted(*given):
        asked.append(given)
        if len(asked) == blocks + 1:
            raise KeyboardInterrupt
        return prediction.usable(*given)

    monkeypatch.setattr(embedding, "usable", interrupted)
    dsokr(*arguments, tmp_path / "i", expect=130)
    facts = json.loads(dsokr(*arguments, tmp_path / "i").stdout)
    same = ("candidates", "skipped", "duplicates")
    assert {name: facts[name] for name in same} == {name: whole[name] for name in same}
    assert (facts["candidates"], facts["skipped"], facts["duplicates"]) == (3, len(BAD), 3)
    assert (tmp_path / "i" / "skipped.txt").read_text() == (tmp_path / "whole" / "skipped.txt").read_text()


def test_a_list_without_a_header_is_no_table(dsokr, fitted, tmp_path):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    test = write(tmp_path / "test.csv", ["text", "smiles"], [["carbon oxygen", "CO"]])
    library = tmp_path / "library.csv"
    library.write_text("CO\nCC\nCCC\n")
    said = f"The first row of {library} looks like a candidate: CO. A table needs a header row: add one, or call the"
    rank = ("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "r.csv")
    embed = ("embed", fitted, library, "--out", tmp_path / "i")
    for command in (rank, embed, ("evaluate", fitted, test, "--candidates", library)):
        assert f"{said} file .smi or .txt." in dsokr(*command, expect=1).stderr
    assert not (tmp_path / "i").exists()  # once mended, it is another library
    assert "2 candidates were ranked" in dsokr(*rank, "--candidates-column", "CO").stdout
    library.write_text("structure\nCO\nCC\nCCC\n")
    done = dsokr(*rank)
    assert "3 candidates were ranked" in done.stdout and "note" not in done.stderr
    assert "3 candidates are in the index" in dsokr(*embed).stdout


@pytest.mark.filterwarnings("default:.*has no column 'past'")
def test_a_header_that_may_be_a_candidate_is_noted(dsokr, folder, tmp_path):
    model, library = tmp_path / "model", tmp_path / "library.csv"
    dsokr("fit", "--train", folder / "string.csv", *QUICK, *FITS["string"], "--out", model)
    library.write_text("bwalked\nctalked\ndjumped\n")
    arguments = ("rank", model, folder / "string.csv", "--candidates", library, "--out", tmp_path / "r.csv")
    done = dsokr(*arguments)
    assert "2 candidates were ranked" in done.stdout
    note = f"note: {library} has no column 'past': its first row, 'bwalked', is taken for the name of its only column"
    assert done.stderr.count(note) == 1
    library.write_text("past\nbwalked\nctalked\ndjumped\n")
    done = dsokr(*arguments)
    assert "3 candidates were ranked" in done.stdout and "note" not in done.stderr


def test_numbers_of_candidates_are_written_in_any_way(dsokr, folder, tmp_path):
    model, library = tmp_path / "model", tmp_path / "library.txt"
    dsokr("fit", "--train", folder / "vector.csv", *QUICK, *FITS["vector"][:4], "--out", model)
    library.write_text("100;1\n120|2\n[130, 0.5]\n-10 5e-1\n")
    dsokr("embed", model, library, "--out", tmp_path / "i")
    for candidates in (library, tmp_path / "i"):
        dsokr("rank", model, folder / "vector.csv", "--candidates", candidates, "--out", tmp_path / "r.csv")
        rows = read(tmp_path / "r.csv")[:4]
        found = {(float(row["prediction_y1"]), float(row["prediction_y2"])) for row in rows}
        assert found == {(100, 1), (120, 2), (130, 0.5), (-10, 0.5)}


def test_a_quote_that_is_never_closed_trains_nothing(dsokr, folder, tmp_path):
    lines = (folder / "smiles.csv").read_text().splitlines()
    lines[11] = f'"{lines[11]}'
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    done = dsokr("fit", "--train", tmp_path / "t.csv", *QUICK, *FITS["smiles"], "--out", tmp_path / "m", expect=1)
    said = f"A double quote in row 12 of {tmp_path / 't.csv'} is never closed: the rest of the file, 49 lines, is"
    assert said in done.stderr.splitlines()[-1] and not (tmp_path / "m").exists()


def test_candidates_in_a_table(dsokr, fitted, tmp_path):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    library = write(tmp_path / "library.csv", ["ID", "structure"], [["a1", "CO"], ["a2", "CC"]])
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "r.csv", expect=1)
    assert "Say which column holds the candidates with --candidates-column" in done.stderr
    arguments = ("--candidates", library, "--candidates-column", "structure")
    dsokr("rank", fitted, inputs, *arguments, "--out", tmp_path / "r.parquet")
    assert set(tables.table(tmp_path / "r.parquet").read(Problems()).cells["name"]) == {"a1", "a2"}


def test_an_index_is_ranked_as_the_library(dsokr, fitted, folder, tmp_path):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"], ["nitrogen"]])
    dsokr("embed", fitted, folder / "library.smi", "--out", tmp_path / "library.idx")
    for candidates, out in ((folder / "library.smi", "a.csv"), (tmp_path / "library.idx", "b.csv")):
        dsokr("rank", fitted, inputs, "--candidates", candidates, "--top", "3", "--out", tmp_path / out)
    a, b = read(tmp_path / "a.csv"), read(tmp_path / "b.csv")
    assert [row["name"] for row in a] == [row["name"] for row in b]
    assert np.allclose([float(row["score"]) for row in a], [float(row["score"]) for row in b], atol=1e-5)
    done = dsokr("rank", fitted, inputs, "--candidates", tmp_path, "--out", tmp_path / "c.csv", expect=1)
    assert "is not an index of candidates" in done.stderr
    index = tmp_path / "library.idx"
    done = dsokr(
        "rank", fitted, inputs, "--index", index, "--candidates-column", "x", "--out", tmp_path / "c.csv", expect=1
    )
    assert f"names a column of a file of candidates: {index} is an index." in done.stderr
    done = dsokr("evaluate", fitted, folder / "smiles.csv", "--candidates", index, expect=1)
    assert "An evaluation takes a file of candidates, not an index." in done.stderr


def test_a_bad_molecule_in_row_17(dsokr, folder, tmp_path):
    rows = [list(row.values()) for row in read(folder / "smiles.csv")]
    rows[15][1] = "C1CC"
    table = write(tmp_path / "pairs.csv", ["text", "smiles"], rows)
    arguments = ("fit", "--train", table, *QUICK, *FITS["smiles"], "--size", "20", "--out", tmp_path / "model")
    said = "pairs.csv, row 17 (the header is row 1), column 'smiles': Could not parse 'C1CC' as a molecule."
    done = dsokr(*arguments, "--on-error", "fail", expect=1)
    assert said in done.stderr.splitlines()[-1] and not (tmp_path / "model").exists()
    done = dsokr(*arguments, "--json")
    facts = json.loads(done.stdout)
    assert facts["rows"] == {"train": 53, "validation": 6, "skipped": 1} and facts["size"] == {"chosen": 20}
    skipped = read(tmp_path / "model" / "skipped.csv")
    assert [(row["row"], row["column"]) for row in skipped] == [("17", "smiles")]
    rows[15][1] = "CC"
    write(table, ["text", "smiles"], rows)
    assert "skipped" not in dsokr(*arguments).stderr
    assert not (tmp_path / "model" / "skipped.csv").exists()


def test_bad_inputs_of_a_prediction_do_not_lose_the_good_ones(dsokr, fitted, tmp_path):
    inputs = tmp_path / "inputs.csv"
    inputs.write_bytes("\ufeffid,text\r\n1,carbon\r\n2,\r\n3,größe und 界\r\n".encode())
    done = dsokr("predict", fitted, inputs, "--out", tmp_path / "new" / "out.csv")
    assert "2 inputs have a prediction." in done.stdout
    assert "row 3 (the header is row 1), column 'text': The cell is empty." in done.stderr
    rows = read(tmp_path / "new" / "out.csv")
    assert [(row["row"], row["input"]) for row in rows] == [("2", "carbon"), ("4", "größe und 界")]
    assert [row["row"] for row in read(tmp_path / "new" / "out.skipped.csv")] == ["3"]


def test_evaluation_ranks_as_the_metrics_do(fitted, folder, smiles):
    """Candidates block by block, each once, ties in the middle."""
    predictor = Predictor.load(fitted, "cpu")
    true = [*smiles[60:80], smiles[60]]
    texts = [described(s) for s in true]
    z = predictor.coefficients(texts)
    candidates = [*smiles[:70], smiles[3]]
    found = evaluation.retrieval(predictor, z, true, evaluation.different(predictor, [*candidates, *true]))
    everything = list(dict.fromkeys([*candidates, *true]))
    psi, diag = predictor.embed(everything)
    scores = embedded_scores(z, psi, diag, predictor.rule)
    truth = torch.tensor([everything.index(s) for s in true])
    expected = metrics.retrieval(scores, truth)
    assert found == pytest.approx(expected | {"candidates": 80})


def test_tiny_scores_are_told_apart(fitted, folder, smiles, monkeypatch):
    """Scores are compared by their 24 leading bits, however small they are: in evaluations, and between blocks."""
    predictor = Predictor.load(fitted, "cpu")
    predictor.model.decoder_ = Candidates("cosine")
    z = predictor.coefficients([described(s) for s in smiles[60:]]).double()
    pool = evaluation.different(predictor, smiles)
    expected = evaluation.retrieval(predictor, z, smiles[60:], pool)
    assert evaluation.retrieval(predictor, 1e-60 * z, smiles[60:], pool) == pytest.approx(expected)
    best = predictor.among(smiles).top(z, 10, "cosine").indices
    monkeypatch.setattr("dsokr.commands.prediction.BLOCK", 7)
    found = prediction.in_library(predictor, 1e-60 * z, folder / "library.smi", None, 10, "cosine", Problems())
    assert [[hit.cell for hit in hits] for hits in found.hits] == [[smiles[i] for i in row] for row in best]


def test_more_answers_than_there_are_candidates(dsokr, fitted, folder, tmp_path, monkeypatch):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    monkeypatch.setattr("dsokr.commands.prediction.BLOCK", 7)
    arguments = ("rank", fitted, inputs, "--candidates", folder / "library.smi", "--top", 10**12)
    dsokr(*arguments, "--out", tmp_path / "out.csv")
    assert {row["prediction"] for row in read(tmp_path / "out.csv")} == {
        row.split()[0] for row in (folder / "library.smi").read_text().splitlines()
    }


def test_an_evaluation_says_what_the_right_answers_were_ranked_among(dsokr, fitted, tmp_path, smiles):
    """Without candidates: the known outputs, and the right answers, which are not known here."""
    test = write(tmp_path / "test.csv", ["text", "smiles"], [[described(s), s] for s in [*smiles[60:], smiles[0]]])
    found = json.loads(dsokr("evaluate", fitted, test, "--json").stdout)["metrics"]
    known = Predictor.load(fitted, "cpu").known
    assert found["candidates"] == len(known) + 20 and found["known"] == pytest.approx(1 / 21)
    said = "(the known outputs and the 21 right answers, 5% of which are known outputs)"
    assert f"Among {len(known) + 20} candidates {said} the right answer came first for" in dsokr(
        "evaluate", fitted, test
    ).stdout.replace("\n", " ")
    dsokr("report", fitted, "--test", test, "--out", tmp_path / "r.html")
    assert said in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_list_of_candidates_is_taken_as_it_is(dsokr, fitted, tmp_path, smiles):
    """A right answer that is not in it is not found, and first answers come from it."""
    test = write(tmp_path / "test.csv", ["text", "smiles"], [[described(s), s] for s in smiles[:10]])
    for listed, share in ((smiles[:5], 0.5), (smiles[5:20], 0.5), (smiles[20:30], 0.0)):
        (tmp_path / "library.smi").write_text("\n".join(listed))
        arguments = ("evaluate", fitted, test, "--candidates", tmp_path / "library.smi")
        found = json.loads(dsokr(*arguments, "--json").stdout)["metrics"]
        assert found["listed"] == share and found["candidates"] == len(listed)
        predictor = Predictor.load(fitted, "cpu")
        z = predictor.coefficients([described(s) for s in smiles[:10]])
        scores = embedded_scores(z, *predictor.embed(listed), predictor.rule)
        there = [i for i in range(10) if smiles[i] in listed]
        ranks = metrics.ranks(scores[there], torch.tensor([listed.index(smiles[i]) for i in there]))
        assert found["mrr"] == pytest.approx(ranks.reciprocal().sum().item() / 10)
        assert found["hits@1"] == (ranks <= 1).sum().item() / 10
        assert found.get("mean_rank") == (pytest.approx(ranks.mean().item()) if there else None)
        best = [listed[i] for i in predictor.rank([described(s) for s in smiles[:10]], listed, 1).indices[:, 0]]
        a, b = predictor.output.all_of(best, "Output"), predictor.output.all_of(smiles[:10], "Output")
        assert found["similarity"] == pytest.approx(predictor.basis.kernel.paired(a, b).mean().item())
        assert f"(those of the list, which holds {share:.0%} of the right answers)" in dsokr(*arguments).stdout


def test_other_kinds_are_judged_by_the_best_of_the_list_too(dsokr, folder, tmp_path):
    model, table = tmp_path / "model", folder / "labels.csv"
    dsokr("fit", "--train", table, "--input", "x", "--output", "tags", *QUICK, "--out", model)
    (tmp_path / "list.txt").write_text("apple\n")
    arguments = ("evaluate", model, table, "--candidates", tmp_path / "list.txt", "--json")
    found = json.loads(dsokr(*arguments).stdout)["metrics"]
    right = sum(row["tags"] == "apple" for row in read(table)) / 60
    assert found["exact"] == found["hits@1"] == found["listed"] == pytest.approx(right)


def test_what_is_read_is_not_overwritten(dsokr, fitted, folder, tmp_path):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    library = write(tmp_path / "library.csv", ["smiles"], [["CO"], ["CC"]])
    before = inputs.read_text(), library.read_text()
    (tmp_path / "link.csv").symlink_to(inputs)
    for out in (inputs, library, tmp_path / "link.csv"):
        done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", out, expect=1)
        assert f"--out {out} would replace a file that is read." in done.stderr
    assert (inputs.read_text(), library.read_text()) == before


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_columns_carried_along_under_the_name_of_one_that_is_made(dsokr, fitted, tmp_path, ending):
    inputs = write(tmp_path / "inputs.csv", ["text", "score", "name", "id"], [["carbon", "low", "Ann", "7"]])
    out = tmp_path / f"out{ending}"
    dsokr("predict", fitted, inputs, "--keep", "score,name,id", "--out", out)
    found = tables.table(out).read(Problems()).cells
    assert list(found) == ["row", "kept_score", "kept_name", "id", "input", "rank", "prediction", "score"]
    assert found["kept_score"] == ["low"] and found["kept_name"] == ["Ann"] and float(found["score"][0]) < 2


def test_a_model_of_another_task_is_not_replaced(dsokr, folder, tmp_path):
    labels = ("fit", "--train", folder / "labels.csv", "--input", "x", "--output", "tags", *QUICK)
    ranking = ("fit", "--train", folder / "ranking.csv", "--input", "a,b,c", "--output", "order", *QUICK)
    assert "replaces" not in dsokr(*labels, "--out", tmp_path / "model").stderr
    done = dsokr(*ranking, "--out", tmp_path / "model", expect=1)
    said = "holds a model of another task (x as vector to tags as labels)."
    assert said in done.stderr and "--restart" in done.stderr
    assert Predictor.load(tmp_path / "model", "cpu").output.name == "labels"
    assert f"the model that is in {tmp_path / 'model'} now" in dsokr(*labels, "--out", tmp_path / "model").stderr
    dsokr(*ranking, "--out", tmp_path / "model", "--restart")
    assert Predictor.load(tmp_path / "model", "cpu").output.name == "ranking"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_problems_are_told_in_the_order_of_rows(dsokr, folder, tmp_path):
    """A row of the wrong length is seen when the table is read, a bad cell later, an undefined kernel last."""
    good = [[x, y, 1.0 + x % 3, 2.0] for x, y in enumerate(range(30))]
    rows = [["a", "b", "y1", "y2"], *([str(cell) for cell in row] for row in good)]
    rows[2][3], rows[3][0], rows[4] = "x", "x", ["1", "2"]
    (tmp_path / "t.csv").write_text("".join(f"{','.join(row)}\n" for row in rows))
    arguments = (
        "fit",
        "--train",
        tmp_path / "t.csv",
        "--input",
        "a,b",
        "--output",
        "y*",
        *QUICK,
        "--out",
        tmp_path / "m",
    )
    done = dsokr(*arguments, "--on-error", "fail", expect=1)
    assert "row 3 (the header is row 1), column 'y1, y2': 'x' in 'y2' is not a number." in done.stderr
    done = dsokr(*arguments)
    assert "t.csv: 30 rows" in done.stderr and "3 rows were skipped" in done.stderr
    assert [row["row"] for row in read(tmp_path / "m" / "skipped.csv")] == ["3", "4", "5"]


def test_bad_rows_of_a_library_are_counted_once_and_the_first_one_stops(dsokr, fitted, tmp_path):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    library = tmp_path / "library.csv"
    library.write_text("id,smiles\n1,CO\n2,C1CC\n3\n4,CC\n5\n")
    arguments = ("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "ranked.csv")
    done = dsokr(*arguments)
    assert "2 candidates were ranked for 1 input." in done.stdout and "3 rows were skipped" in done.stderr
    done = dsokr(*arguments, "--on-error", "fail", expect=1)
    assert "row 3 (the header is row 1), column 'smiles'" in done.stderr
    library.write_text("id,smiles\n1,CO\n2\n")
    assert "row 3" in dsokr(*arguments, "--on-error", "fail", expect=1).stderr


def test_metrics_that_are_undefined_are_left_out(dsokr, folder, tmp_path):
    dsokr(
        "fit",
        "--train",
        folder / "ranking.csv",
        "--input",
        "a,b,c",
        "--output",
        "order",
        *QUICK,
        "--out",
        tmp_path / "m",
    )
    test = write(tmp_path / "t.csv", ["a", "b", "c", "order"], [[1, 2, 3, "apple=banana=cherry"]])
    assert json.loads(dsokr("evaluate", tmp_path / "m", test, "--json").stdout)["metrics"] == {"exact": 0.0}
    assert "Kendall's tau is undefined, as no two items are in order" in dsokr("evaluate", tmp_path / "m", test).stdout


def test_a_full_disk_is_a_sentence(dsokr, fitted, folder, tmp_path):
    """A limit on the size of files stands for it."""
    page = tmp_path / "r.html"
    page.write_text("the one before")
    model = ("fit", "--train", folder / "labels.csv", "--input", "x", "--output", "tags", *QUICK)
    state = f"dsokr: The state of the training cannot be written to {tmp_path / '.m.unfinished'}"
    for size, arguments, said in (
        (8_192, ("report", fitted, "--out", page), f"dsokr: {page} cannot be written: File too large."),
        (8_192, ("embed", fitted, folder / "library.smi", "--out", tmp_path / "i"), f"dsokr: {tmp_path / 'i'} cannot"),
        (8_192, (*model, "--out", tmp_path / "m"), f"{state} (File too large). Is the disk full?"),
        (100_000, (*model, "--out", tmp_path / "m"), f"{state}. Is the disk full?"),  # seen by torch alone
    ):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            done = dsokr(*arguments, expect=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert said in done.stderr.splitlines()[-1]
    assert page.read_text() == "the one before"
    dsokr(*model, "--out", tmp_path / "m")


def test_a_system_error_is_a_sentence(dsokr, fitted, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(fitted / "task.json"))

    monkeypatch.setattr(Predictor, "load", refuse)
    done = dsokr("report", fitted, "--out", tmp_path / "r.html", expect=1)
    assert done.stderr == f"dsokr: {fitted / 'task.json'} cannot be read or written: Permission denied.\n"


def test_an_encoder_that_is_not_there_is_missed_first(monkeypatch, tmp_path):
    """Nobody is asked over the network, and the table is not even looked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("nosuchfolder", "models/bert", "./a/b", "a/b/c"):
        asked = options.Options(tmp_path / "none.csv", "a", "b", tmp_path / "m", encoder=name)
        with pytest.raises(InputError, match=f"{name} is no folder of a text encoder, nor a name on the hub"):
            fitting.fit(asked, say=lambda line: None)
    with pytest.raises(InputError, match="models is no folder of a text encoder: config.json is missing"):
        fitting.fit(
            options.Options(tmp_path / "none.csv", "a", "b", tmp_path / "m", encoder="models"), lambda line: None
        )
    with pytest.raises(InputError, match="There is no file"):  # a name that may be one of the hub
        fitting.fit(
            options.Options(tmp_path / "none.csv", "a", "b", tmp_path / "m", encoder="an/encoder"), lambda line: None
        )


def test_a_predictor_in_python(fitted, smiles, tmp_path):
    predictor = Predictor.load(fitted)
    assert predictor.basis.dim == predictor.coefficients(["carbon"]).shape[1]
    psi, diag = predictor.embed(["CO", "OC", "CC"])
    assert torch.allclose(psi[0], psi[1]) and torch.allclose(diag, torch.ones(3, dtype=diag.dtype))
    assert predictor.predict(["carbon oxygen"])[0] in predictor.known
    known = predictor.rank(["carbon oxygen"], k=3)
    assert predictor.known[known.indices[0, 0]] == predictor.predict(["carbon oxygen"])[0]
    with pytest.raises(InputError, match="Output 1: Could not parse 'C1CC' as a molecule"):
        predictor.embed(["CO", "C1CC"])
    with pytest.raises(InputError, match="Input 0: The cell is empty"):
        predictor.coefficients([""])
    with pytest.raises(InputError, match="Candidates must be a list"):
        predictor.rank(["carbon"], [])
    with pytest.raises(InputError, match="k must be at least 1"):
        predictor.rank(["carbon"], ["C"], 0)
    with pytest.raises(InputError, match="decoding rule must be"):
        predictor.rank(["carbon"], ["C"], 1, rule="best")
    predictor.save(tmp_path / "copy")
    again = Predictor.load(tmp_path / "copy", "cpu")
    assert torch.equal(again.coefficients(["carbon"]), predictor.coefficients(["carbon"]))
    assert again.known == predictor.known and again.output == predictor.output


def test_folders_that_are_no_models(fitted, tmp_path):
    predictor = Predictor.load(fitted, "cpu")
    with pytest.raises(ModelFolderError, match="There is no folder .*nowhere"):
        Predictor.load(tmp_path / "nowhere")
    with pytest.raises(ModelFolderError, match="task.json is missing.$"):
        Predictor.load(tmp_path)
    predictor.model.save(tmp_path / "plain")
    with pytest.raises(ModelFolderError, match="task.json is missing. DSOKR.load reads it"):
        Predictor.load(tmp_path / "plain")
    for name, content, message in [
        ("task.json", "{", "task.json is damaged"),
        ("task.json", '{"format": 99}', "made by a newer dsokr"),
        ("task.json", '{"format": 1}', "task.json is damaged"),
        ("candidates.csv", "output\nCC\n", "it lists 1 output,"),
        ("candidates.csv", None, "candidates.csv cannot be read"),
    ]:
        predictor.save(tmp_path / "damaged")
        if content is None:
            (tmp_path / "damaged" / name).unlink()
        else:
            (tmp_path / "damaged" / name).write_text(content)
        with pytest.raises(ModelFolderError, match=message):
            Predictor.load(tmp_path / "damaged", "cpu")


def test_options_in_a_file(dsokr, folder, tmp_path):
    config = tmp_path / "task.toml"
    config.write_text(
        f'train = "{folder / "vector.csv"}"\ninput = ["a", "b", "c"]\noutput = "y1"\nvalidation-fraction = 0.2\n'
        'epochs = 2\nkernel = "gaussian"\nsize = 10\nout = "model"\ndevice = "cpu"\n'
    )
    facts = json.loads(dsokr("fit", "--config", config, "--epochs", "3", "--json").stdout)
    assert facts["rows"]["validation"] == 12 and facts["chosen"]["kernel"] == "gaussian:gamma=auto"
    assert "up to 3 epochs" in facts["chosen"]["training"]
    assert (tmp_path / "model" / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernl = 'wl'", "there is no option 'kernl'. Did you mean 'kernel'"),
        ("epochs = 'many'", "epochs must be a whole number. Got 'many'"),
        ("epochs = true", "epochs must be a whole number. Got True"),
        ("learning-rate = 'x'", "learning_rate must be a number"),
        ("kernel = 1", "kernel must be a text. Got 1"),
        ("input = [1]", "input must be a text"),
        ("restart = true", "there is no option 'restart'"),
        ("= 1", "is not TOML"),
    ],
)
def test_mistakes_in_the_file(tmp_path, text, message):
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        options.from_toml(tmp_path / "task.toml")


SMILES = "fit --train {}/smiles.csv --input text --output smiles --out m"
VECTOR = "fit --train {}/vector.csv --input a --output y1 --out m"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit", "Name the table of pairs with --train."),
        ("fit --train t.csv", "Name the column (or columns) of the inputs with --input."),
        ("fit --config none.toml", "There is no file none.toml."),
        ("fit --train {}/vectr.csv --input a --output y1 --out m", "Did you mean 'vector.csv'?"),
        ("fit --train {}/string.csv --input verbs --output past --out m", "Did you mean 'verb'?"),
        ("fit --train {}/vector.csv --input q* --output y1 --out m", "has no column like 'q*'"),
        ("fit --train {}/vector.csv --input a --output y1 --out {}", "is not a saved model. Choose another folder"),
        ("fit --train {}/few.csv --input a --output b --out m", "has 3 rows that can be used. At least 10 are needed."),
        (f"{VECTOR} --kernel ngram", "There is no kernel 'ngram' for vector outputs. Choose from linear, gaussian"),
        (f"{VECTOR} --network cnn", "There is no network 'cnn' for vector inputs. Choose from mlp, linear."),
        (f"{VECTOR} --size 99", "--size must be auto, or from 1 to the number of training rows, 54. Got 99."),
        (f"{VECTOR} --epochs 0", "--epochs must be at least 1. Got 0."),
        (f"{VECTOR} --learning-rate 0", "--learning-rate must be positive and finite. Got 0.0."),
        (f"{VECTOR} --learning-rate inf", "--learning-rate must be positive and finite. Got inf."),
        (f"{VECTOR} --learning-rate nan", "--learning-rate must be positive and finite. Got nan."),
        (f"{VECTOR} --kernel gaussian:gamma=-1", "--kernel gaussian:gamma=-1.0: Gaussian.gamma must be positive."),
        (
            f"{SMILES} --kernel morgan:radius=-1",
            "--kernel morgan:radius=-1,chirality=true: the radius must be at least 0.",
        ),
        ("fit --train {}/string.csv --input verb --output past --out m --kernel ngram:n=0", "at least 1. Got 0."),
        (
            "fit --train {}/vector.csv --input a,b --output b,c --out m",
            "The column 'b' is among both --input and --output",
        ),
        ("fit --train {}/vector.csv --input a --output y1 --out {}/few.csv/m", "few.csv is not a folder."),
        (
            "fit --train {}/same.csv --input a --output b,c --out m",
            "All outputs in the columns b, c are the same: there",
        ),
        (
            "fit --train {}/huge.csv --input a --output b --out m",
            "row 2 (the header is row 1), column 'b': 1e+300 is too",
        ),
        ("fit --config {}", "is a folder. Name a TOML file."),
        ("fit --config {}/seed.toml", "--seed must be from 0 to 2,147,483,647. Got 99999999999."),
        ("predict {} {}/vector.csv --out {}/few.csv/o.csv", "few.csv is not a folder."),
        ("predict {} {}/vector.csv --out o.csv --candidates-column c", "name the file with --candidates."),
        ("evaluate {} {}/vector.csv --candidates-column c", "name the file with --candidates."),
        ("report {} --out {}/few.csv/r.html", "few.csv is not a folder."),
        ("serve {} --timeout 0", "--timeout must be positive and finite. Got 0.0."),
        (f"{VECTOR} --output-kind smiles", "None of the 60 rows of"),
        (f"{VECTOR} --device tpu", "Unknown device 'tpu'"),
        (f"{VECTOR} --on-error no", "--on-error must be skip or fail. Got 'no'."),
        (f"{VECTOR} --validation-fraction 1", "--validation-fraction must be at least 0 and below 1."),
        (f"{VECTOR} --encoder e --network mlp", "--encoder is a network itself."),
        (
            "fit --train {}/smiles.csv --input text --output smiles --out m --network encoder",
            "--encoder FOLDER_OR_NAME",
        ),
        ("predict nowhere {}/vector.csv --out o.csv", "There is no folder nowhere. Train a model with: dsokr fit"),
        (
            "predict {}/vector.csv {} --out o.csv",
            "vector.csv is a file. The folder of the model comes first, then the table.",
        ),
        ("predict {} {}/vector.csv --out o.txt", "cannot write .txt"),
        ("predict {} {}/vector.csv --out o.csv --top 0", "--top must be at least 1"),
        ("predict {} {}/vector.csv --out o.csv --top 5", "Name them with --candidates"),
        ("fit --train {}/one.csv --input a --output b --out m", "has 1 row that can be used. At least 10 are needed."),
        (
            "fit --train {}/commas.csv --input a --output b --out m",
            "commas.csv, row 2 (the header is row 1), column 'b': '0,5' is not a number. Write decimals with a point.",
        ),
        (
            "fit --train {}/commas.csv --input c --output a --out m",
            "commas.csv, row 4 (the header is row 1), column 'c': '< 0.1' is not a number, but 15 of 20 cells of the",
        ),
        (
            "fit --train {}/far.csv --input a --output b --out m",
            "row 9 (the header is row 1), column 'b': beside 1e+90 the other numbers all look the same.",
        ),
        (
            "fit --train {}/far.csv --input a,b --output c --out m",
            "row 9 (the header is row 1), column 'b': beside 1e+90 the other numbers all look the same.",
        ),
        ("predict {} {}/vector.csv --out o.csv --rule cosine", "Name them with --candidates"),
        ("report {} --out report.pdf", "Name it .html"),
    ],
)
def test_errors_are_one_sentence(dsokr, folder, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    write(folder / "few.csv", ["a", "b"], [[1, 2], [3, 4], [5, 6]])
    (folder / "seed.toml").write_text("train = 't.csv'\ninput = 'a'\noutput = 'b'\nout = 'm'\nseed = 99999999999\n")
    write(folder / "same.csv", ["a", "b", "c"], [[x, 1, 2] for x in range(20)])
    write(folder / "huge.csv", ["a", "b"], [[x, f"{x + 1}e300"] for x in range(20)])
    write(folder / "one.csv", ["a", "b"], [[1, 2]])
    commas = [[x, f"{x},5", x / 8 if x % 4 != 2 else "< 0.1"] for x in range(20)]
    write(folder / "commas.csv", ["a", "b", "c"], commas)
    write(folder / "far.csv", ["a", "b", "c"], [[x, 1e90 if x == 7 else x / 8, -x] for x in range(20)])
    done = dsokr(*line.replace("{}", str(folder)).split(), expect=1)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dsokr: ") and message in last and done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_no_batch_holds_a_single_picture(dsokr, folder, tmp_path):
    """57 pictures in batches of 8 would leave one over, whose batch cannot be normalised."""
    rows = [list(row.values()) for row in read(folder / "image.csv")]
    table = write(folder / "pictures.csv", ["picture", "shade"], rows[:57])
    arguments = ("fit", "--train", table, *FITS["image"], *QUICK, "--validation-fraction", "0", "--out", tmp_path / "m")
    done = dsokr(*arguments, "--batch-size", "8", expect=1)
    assert "With --batch-size 8 a batch would hold a single picture. Take 9." in done.stderr
    assert "in batches of 9" in dsokr(*arguments).stderr


def test_what_fails_leaves_nothing_behind(dsokr, folder, tmp_path):
    arguments = ("--encoder", tmp_path / "nothing", "--input", "text", "--output", "smiles", "--size", "10")
    done = dsokr("fit", "--train", folder / "smiles.csv", *arguments, *QUICK, "--out", tmp_path / "m", expect=1)
    assert "nothing is no folder of a text encoder" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_columns_that_a_test_does_not_have(dsokr, fitted, folder):
    done = dsokr("evaluate", fitted, folder / "graph.csv", expect=1)
    assert "graph.csv has no column 'text', which holds the inputs." in done.stderr


def test_validation_pairs_of_their_own_and_none(dsokr, folder, tmp_path, smiles):
    valid = write(tmp_path / "valid.csv", ["smiles", "text"], [[s, described(s)] for s in smiles[60:]] + [["C1", "x"]])
    arguments = (
        "fit",
        "--train",
        folder / "smiles.csv",
        *QUICK,
        *FITS["smiles"],
        "--json",
        "--out",
        tmp_path / "model",
    )
    facts = json.loads(dsokr(*arguments, "--valid", valid).stdout)
    assert facts["rows"] == {"train": 60, "validation": 20, "skipped": 1}
    facts = json.loads(dsokr(*arguments, "--validation-fraction", "0").stdout)
    assert facts["rows"]["validation"] == 0 and "validation" not in facts
    assert "held out for validation</h2>" not in (tmp_path / "model" / "report.html").read_text()


def test_outputs_that_a_kernel_is_undefined_for_are_skipped(dsokr, folder, tmp_path):
    rows = [[*list(row.values())[:3], 1, 1] for row in read(folder / "vector.csv")]
    for row in rows[::2]:
        row[3] = -1
    rows[4][3:] = [0, 1]  # with the mean of the others taken away, the zero vector
    rows[5][3:] = [0, 1]
    table = write(tmp_path / "t.csv", ["a", "b", "c", "y1", "y2"], rows)
    done = dsokr(
        "fit",
        "--train",
        table,
        *QUICK,
        "--input",
        "a,b,c",
        "--output",
        "y*",
        "--kernel",
        "cosine",
        "--out",
        tmp_path / "m",
    )
    assert "2 rows were skipped" in done.stderr and "The kernel is undefined here" in done.stderr


INTERRUPTED = """
import os, signal, sys
import dsokr.regressors.callbacks as callbacks

class Stopping(callbacks.Progress):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 3:
            os.kill(os.getpid(), signal.SIGINT)

import dsokr.regressors.training
dsokr.regressors.training.Progress = Stopping
from dsokr.commands.app import app
app()
"""


@pytest.fixture
def one_thread(monkeypatch):
    """Sums of several threads differ in their last bits from run to run."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of other processes
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_ctrl_c_and_the_same_command_again(dsokr, folder, tmp_path, one_thread):
    """What was interrupted goes on, and ends as if it had not been; another command is refused, or starts anew."""
    train = (
        "fit",
        "--train",
        folder / "labels.csv",
        "--input",
        "x",
        "--output",
        "tags",
        "--epochs",
        "6",
        "--device",
        "cpu",
    )
    arguments = (*train, "--out", tmp_path / "model")
    stopped = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "dsokr: Training was interrupted in epoch 4. Run the same command again to go on" in stopped.stderr
    assert (tmp_path / ".model.unfinished" / "last.ckpt").exists() and not (tmp_path / "model").exists()

    done = dsokr(*arguments, "--seed", "1", expect=1)
    assert "holds an interrupted training with other data or options" in done.stderr and "--restart" in done.stderr
    done = dsokr(*arguments)
    assert "going on with the training that was interrupted" in done.stderr
    assert not (tmp_path / ".model.unfinished").exists()
    dsokr(*train, "--out", tmp_path / "alone")
    resumed, alone = (Predictor.load(tmp_path / name, "cpu") for name in ("model", "alone"))
    assert len(resumed.model.history_.rows) == 6
    assert torch.equal(resumed.coefficients(["1 2 3"]), alone.coefficients(["1 2 3"]))


STUCK = """
import time
import dsokr.regressors.callbacks as callbacks

callbacks.STATE_PAUSE = 0.0

class Stuck(callbacks.Progress):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 3:
            print("stuck", flush=True)
            time.sleep(100)

import dsokr.regressors.training
dsokr.regressors.training.Progress = Stuck
from dsokr.commands.app import app
app()
"""


STOPPED_WHILE_SAVING = """
from dsokr.commands import tables

def stop(*_):
    raise KeyboardInterrupt

tables.write = stop
from dsokr.commands.app import app
app()
"""


def test_saving_may_be_interrupted(dsokr, folder, tmp_path):
    """Nothing is lost of the model that was there, nor of the training: the same command goes on."""
    train = ("fit", "--train", folder / "labels.csv", "--input", "x", "--output", "tags", "--epochs", "2")
    arguments = (*train, "--device", "cpu", "--out", tmp_path / "model")
    dsokr(*arguments)
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED_WHILE_SAVING, *map(str, arguments), "--seed", "5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Run the same command again to go on" in stopped.stderr
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    done = dsokr(*arguments, "--seed", "5")
    assert "going on with the training that was interrupted" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_two_fits_into_one_folder(dsokr, folder, tmp_path):
    """The second is refused; after the first was killed the same command goes on."""
    train = ("fit", "--train", folder / "labels.csv", "--input", "x", "--output", "tags", "--epochs", "6")
    arguments = (*train, "--device", "cpu", "--out", tmp_path / "model")
    command = [sys.executable, "-c", STUCK, *map(str, arguments)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert first.stdout.readline() == "stuck\n"
        for restart in ((), ("--restart",)):
            done = dsokr(*arguments, *restart, expect=1)
            said = f"{tmp_path / 'model'} is being written by another `dsokr fit` (process {first.pid})"
            assert said in done.stderr and done.stderr.count("\n") == 1
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    done = dsokr(*arguments)
    assert "going on with the training that was interrupted" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_ctrl_c_after_the_training_does_not_lose_it(dsokr, folder, tmp_path, monkeypatch):
    arguments = ("fit", "--train", folder / "labels.csv", "--input", "x", "--output", "tags", *QUICK)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "evaluate", stop)
        done = dsokr(*arguments, "--out", tmp_path / "model", expect=130)
    assert "dsokr: Stopped. Run the same command again to go on." in done.stderr
    monkeypatch.setattr("dsokr.regressors.training._Regression.training_step", stop)  # there is nothing left to learn
    dsokr(*arguments, "--out", tmp_path / "model")
    assert len(Predictor.load(tmp_path / "model", "cpu").model.history_.rows) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_training_can_be_given_up(dsokr, folder, tmp_path):
    draft = tmp_path / ".model.unfinished"
    draft.mkdir()
    (draft / "plan.json").write_text('{"fingerprint": "another"}')
    (draft / "last.ckpt").write_text("")
    arguments = ("fit", "--train", folder / "labels.csv", "--input", "x", "--output", "tags", *QUICK)
    dsokr(*arguments, "--out", tmp_path / "model", expect=1)
    dsokr(*arguments, "--out", tmp_path / "model", "--restart")
    assert not draft.exists() and (tmp_path / "model" / "task.json").exists()


def test_the_report_does_not_need_matplotlib_and_escapes_what_is_written(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    predictor = Predictor.load(fitted, "cpu")
    cells = Cells(tables.Lines(tmp_path / "x"), [1], ["<script>alert(1)</script>"], ["CO"])
    test = evaluation.Test("t.csv", cells, evaluation.evaluate(predictor, cells.inputs, cells.outputs))
    page = report.write(predictor, tmp_path / "r.html", test).read_text(encoding="utf-8")
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "The curves are not drawn." in page and "dsokr[plots]" in page


def test_ctrl_c_while_a_library_is_read_leaves_no_table(dsokr, fitted, folder, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsokr.commands.prediction.usable", stop)
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon"]])
    library = folder / "library.smi"
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "out.csv", expect=130)
    assert done.stderr == "dsokr: interrupted\n" and [path.name for path in tmp_path.iterdir()] == ["inputs.csv"]


def test_rows_with_the_same_input_stay_on_one_side(dsokr, tmp_path):
    """On noise, each row five times, nothing can be right but what was learned by heart."""
    rng = np.random.default_rng(0)
    rows = [[f"{x:.3f}", y] for x, y in zip(rng.normal(size=40), rng.normal(size=40), strict=True)]
    rows = [[f"{x}0" if again % 2 else x, y] for again in range(5) for x, y in rows]  # 0.50 is 0.5
    table = write(tmp_path / "noise.csv", ["x", "y"], rows)
    asked = options.Options(table, "x", "y", tmp_path / "m", validation_fraction=0.12, seed=3)
    said: list[str] = []
    plan = fitting.planned(asked, Problems(), said.append)
    train, valid = ({float(cell) for cell in pairs.cells.inputs} for pairs in (plan.train, plan.valid))
    assert not train & valid and (len(plan.train), len(plan.valid)) == (175, 25)  # as near to 24 as fives come
    assert any(line.startswith("  repeats") and "200 rows have the input of another row" in line for line in said)
    again = fitting.planned(asked, Problems(), said.append)
    assert plan.valid.cells.rows == again.valid.cells.rows


def test_too_few_inputs_to_hold_one_out(tmp_path):
    """Half of the rows would have to be held out, and all with one output trained on."""
    table = write(tmp_path / "t.csv", ["x", "y"], [[x % 2, -(x % 2)] for x in range(60)])
    plan = fitting.planned(options.Options(table, "x", "y", tmp_path / "m"), Problems(), lambda line: None)
    assert len(plan.valid) == 6
    said = "60 rows have the input of another row; with 2 different inputs none can be spared, so those held out are"
    assert fitting.chosen(plan)["repeats"] == f"{said} known"


def test_a_split_without_repeats_is_drawn_by_the_seed_alone(tmp_path):
    table = write(tmp_path / "t.csv", ["x", "y"], [[x, x * x] for x in range(50)])
    said: list[str] = []
    plan = fitting.planned(options.Options(table, "x", "y", tmp_path / "m", seed=7), Problems(), said.append)
    drawn = np.random.default_rng(7).permutation(50)[:5]
    assert plan.valid.cells.rows == sorted(int(at) + 2 for at in drawn)
    assert not any(line.startswith("  repeats") for line in said)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([1, 1, 1, 1, 1, 1], 2, [0, 1]),
        ([4, 1, 4, 1, 4], 2, [1, 3]),  # the first that fit
        ([5, 5, 5, 5], 6, [0]),
        ([5, 5, 5, 5], 9, [0, 1]),  # 10 is nearer than 5
        ([7, 3], 1, [1]),  # at least one
        ([7, 13], 15, [0]),  # not all of them
    ],
)
def test_how_many_rows_are_held_out(sizes, count, expected):
    starts = np.cumsum([0, *sizes])
    groups = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=False)]
    found = splitting.nearest_groups(groups, count, sum(sizes) - 5)
    assert found == {row for place in expected for row in groups[place]}


@pytest.mark.filterwarnings("default")
def test_labels_with_commas_are_noted(dsokr, tmp_path):
    names = ["acid", "base", "toxic"]
    tags = [",".join(name for bit, name in enumerate(names) if x >> bit & 1) for x in range(1, 8)]
    note = "dsokr: note: The labels hold commas: write several labels of a row with ; or | between."
    for separator, noted in ((",", True), (";", False), ("|", False)):
        rows = [[x, tags[x % 7].replace(",", separator)] for x in range(70)]
        table = write(tmp_path / "t.csv", ["x", "tags"], rows)
        done = dsokr("fit", "--train", table, "--input", "x", "--output", "tags", *QUICK, "--out", tmp_path / "m")
        assert (note in done.stderr.splitlines()) == noted and "tags as labels" in done.stderr
    table = write(tmp_path / "t.csv", ["x", "who"], [[x, ["Doe, John", "Jane", "Mary"][x % 3]] for x in range(60)])
    done = dsokr("fit", "--train", table, "--input", "x", "--output", "who", *QUICK, "--out", tmp_path / "n")
    assert "note: " not in done.stderr


@pytest.mark.filterwarnings("default")
def test_sets_that_are_taken_for_strings_are_noted_too(dsokr, tmp_path):
    names = "abcdefghij"
    rows = [[x, ",".join(name for bit, name in enumerate(names) if x >> bit & 1)] for x in range(3, 123)]
    table = write(tmp_path / "t.csv", ["x", "tags"], rows)
    arguments = ("fit", "--train", table, "--input", "x", "--output", "tags", *QUICK, "--size", "10")
    done = dsokr(*arguments, "--out", tmp_path / "m")
    assert "tags as string" in done.stderr and "note: The outputs hold commas: write several labels" in done.stderr
    assert "note: " not in dsokr(*arguments, "--output-kind", "string", "--out", tmp_path / "m").stderr


def test_the_commands_in_a_report_run_as_they_are_printed(dsokr, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = "my models/it's"
    fit = ("fit", "--train", folder / "labels.csv", "--input", "x", "--output", "tags", *QUICK)
    dsokr(*fit, "--out", model)
    (tmp_path / "inputs.csv").write_bytes((folder / "labels.csv").read_bytes())
    (tmp_path / "test.csv").write_bytes((folder / "labels.csv").read_bytes())
    write(tmp_path / "library.csv", ["tags"], [["apple"], ["banana;cherry"]])
    dsokr("report", model, "--out", "again.html")
    for page in (tmp_path / model / "report.html", tmp_path / "again.html"):
        lines = html.unescape(page.read_text(encoding="utf-8")).partition("Go on from here")[2].splitlines()
        commands = [shlex.split(line.partition("</pre>")[0]) for line in lines if line.startswith("dsokr ")]
        assert [command[1] for command in commands] == ["predict", "rank", "evaluate"]
        for command in commands:
            dsokr(*command[1:])


@pytest.mark.filterwarnings("default")
def test_a_note_is_said_once_and_names_no_index(dsokr, folder, tmp_path):
    rows = [[f"{p}{a}", p] for p in "abcdefgh" for a in ("walk", "talk", "jump", "play", "look")]
    table = write(tmp_path / "t.csv", ["verb", "first"], rows)
    valid = write(tmp_path / "v.csv", ["verb", "first"], [["awalk", "a"], ["Zwalk", "a"], *rows[:7], ["Qwalk", "b"]])
    fit = ("fit", "--train", table, "--valid", valid, "--input", "verb", "--output", "first", *QUICK, *SMALL)
    notes = [line for line in dsokr(*fit, "--out", tmp_path / "m").stderr.splitlines() if "note: " in line]
    assert notes == [
        "dsokr: note: No training string has the character 'Z' of 'Zwalk': it reads as blank, here and in 1 more "
        "string with unknown characters."
    ]
    inputs = write(tmp_path / "i.csv", ["verb"], [["awalk"], ["Zwalk"]])
    done = dsokr("predict", tmp_path / "m", inputs, "--out", tmp_path / "o.csv")
    said = "dsokr: note: No training string has the character 'Z' of 'Zwalk': it reads as blank."
    assert done.stderr.splitlines() == [said]


def test_a_ranking_that_is_none_does_not_lose_the_others(dsokr, folder, tmp_path):
    rows = [list(row.values()) for row in read(folder / "ranking.csv")]
    rows[16][3], rows[20][3] = "n/a", rows[20][3].replace("banana", "bananna")
    table = write(tmp_path / "t.csv", ["a", "b", "c", "order"], rows)
    for kernel in ("hamming", "lehmer", "kemeny"):
        fit = ("fit", "--train", table, "--input", "a,b,c", "--output", "order", "--kernel", kernel, *QUICK)
        dsokr(*fit, "--out", tmp_path / kernel)
        skipped = [row["row"] for row in read(tmp_path / kernel / "skipped.csv")]
        assert skipped == (["18"] if kernel == "kemeny" else ["18", "22"])
