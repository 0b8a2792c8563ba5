"""From one's own files to a ranked table, from the command line."""

import csv
import json
import signal
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dsokr import chem, metrics
from dsokr.basis import embedded_scores
from dsokr.cli import app
from dsokr.data import molecules
from dsokr.errors import InputError, ModelFolderError
from dsokr.tool import Predictor, evaluation, fitting, options, report, tables
from dsokr.tool.problems import Problems
from dsokr.tool.reading import Cells

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
    "smiles": {"similarity", "hits@1", "hits@10", "mrr", "mean_rank", "candidates"},
    "graph": {"similarity", "exact", "ged", "hits@1", "hits@10", "mrr", "mean_rank", "candidates"},
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
    monkeypatch.setattr("dsokr.tool.prediction.BLOCK", 7)
    dsokr(*arguments, tmp_path / "blocks.csv")
    assert (tmp_path / "whole.csv").read_text() == (tmp_path / "blocks.csv").read_text()


def test_candidates_twice_and_bad_ones(dsokr, fitted, tmp_path):
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon oxygen"]])
    library = tmp_path / "library.smi"
    library.write_text("CO first\nC1CC bad\nCO again\nCC\nCO third\n")
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "ranked.csv")
    assert "2 candidates (2 that were listed again count once) were ranked for 1 inputs." in done.stdout
    assert "1 row was skipped:" in done.stderr and "line 2, column 'smiles': Could not parse 'C1CC'" in done.stderr
    rows = read(tmp_path / "ranked.csv")
    assert {row["prediction"]: row["name"] for row in rows} == {"CO": "first", "CC": ""}
    assert read(tmp_path / "skipped.csv")[0]["row"] == "2"
    done = dsokr(
        "rank", fitted, inputs, "--candidates", library, "--on-error", "fail", "--out", tmp_path / "r.csv", expect=1
    )
    assert "line 2" in done.stderr and "--on-error skip" in done.stderr and not (tmp_path / "r.csv").exists()
    library.write_text("C1CC\n")
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "r.csv", expect=1)
    assert "has no candidate that can be used. The last: " in done.stderr


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
    assert [row["row"] for row in read(tmp_path / "new" / "skipped.csv")] == ["3"]


def test_evaluation_ranks_as_the_metrics_do(fitted, folder, smiles):
    """Candidates block by block, the right answers among them once, ties in the middle."""
    predictor = Predictor.load(fitted, "cpu")
    true = [*smiles[60:80], smiles[60]]
    texts = [described(s) for s in true]
    z = predictor.coefficients(texts)
    candidates = [*smiles[:70], smiles[3]]
    found = evaluation.retrieval(predictor, z, true, candidates)
    everything = list(dict.fromkeys([*candidates, *true]))
    psi, diag = predictor.embed(everything)
    scores = embedded_scores(z, psi, diag, predictor.rule)
    truth = torch.tensor([everything.index(s) for s in true])
    expected = metrics.retrieval(scores, truth)
    assert found == pytest.approx(expected | {"candidates": 80})


def test_evaluate_with_candidates(dsokr, fitted, folder):
    answer = json.loads(
        dsokr("evaluate", fitted, folder / "smiles.csv", "--candidates", folder / "library.smi", "--json").stdout
    )
    assert answer["metrics"]["candidates"] == 80 and 0 < answer["metrics"]["hits@10"] <= 1


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
        ("candidates.csv", "output\nCC\n", "it lists 1 outputs"),
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
        (f"{VECTOR} --learning-rate 0", "--learning-rate must be positive. Got 0.0."),
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
        ("predict {} {}/vector.csv --out o.txt", "cannot write .txt"),
        ("predict {} {}/vector.csv --out o.csv --top 0", "--top must be at least 1"),
        ("predict {} {}/vector.csv --out o.csv --rule cosine", "Name them with --candidates"),
        ("report {} --out report.pdf", "Name it .html"),
    ],
)
def test_errors_are_one_sentence(dsokr, folder, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    write(folder / "few.csv", ["a", "b"], [[1, 2], [3, 4], [5, 6]])
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
import dsokr.callbacks as callbacks

class Stopping(callbacks.Progress):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 3:
            os.kill(os.getpid(), signal.SIGINT)

import dsokr.training
dsokr.training.Progress = Stopping
from dsokr.cli import app
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
import dsokr.callbacks as callbacks

callbacks.STATE_PAUSE = 0.0

class Stuck(callbacks.Progress):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 3:
            print("stuck", flush=True)
            time.sleep(100)

import dsokr.training
dsokr.training.Progress = Stuck
from dsokr.cli import app
app()
"""


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
    monkeypatch.setattr("dsokr.training._Regression.training_step", stop)  # there is nothing left to learn
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

    monkeypatch.setattr("dsokr.tool.prediction.usable", stop)
    inputs = write(tmp_path / "inputs.csv", ["text"], [["carbon"]])
    library = folder / "library.smi"
    done = dsokr("rank", fitted, inputs, "--candidates", library, "--out", tmp_path / "out.csv", expect=130)
    assert done.stderr == "dsokr: interrupted\n" and [path.name for path in tmp_path.iterdir()] == ["inputs.csv"]
