"""The reports on label sets, rankings and vectors, and the experiments by their names on the command line."""

import json
import sys
from typing import get_args

import pytest

from dsokr.commands.app import Experiment, app
from studies import label_ranking, label_ranking_report, multilabel, multilabel_report, vectors
from studies.__main__ import EXPERIMENTS, Asked, Size
from studies.results import read_rows


def silent(_: str) -> None: ...


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent


def ranking_row(dataset, method, taus, decoder="Kemeny"):
    metrics = {"kendall_tau": sum(taus) / len(taus), "by_fold": taus}
    which = {"dataset": dataset, "method": method, "kernel": "Kemeny", "decoder": decoder}
    return which | {"metrics": metrics, "seconds": {"fitting": 1.0}}


def test_the_table_of_rankings_has_a_column_for_every_data_set(tmp_path):
    rows = [
        ranking_row("wine", "dsokr", [0.9, 1.0]),
        ranking_row("wine", "consensus", [0.2, 0.4]),
        ranking_row("glass", "dsokr", [0.8, 0.8]),
        ranking_row("mine", "dsokr", [0.5, 0.7], "Candidates"),
    ]
    folder = write(tmp_path / "models.jsonl", rows)
    wide = label_ranking_report.wide(folder)
    assert label_ranking_report.header(wide) == ["method, kernel", "glass", "wine", "mine"]
    lines = label_ranking_report.markdown(wide).splitlines()
    assert lines[2] == "| goal | 0.90 | 0.95 | – |"
    assert lines[3] == "| consensus ranking, Kemeny | – | 0.300 ± 0.141 | – |"
    assert lines[4] == "| DSOKR, Kemeny | **0.800 ± 0.000** | **0.950 ± 0.071** | – |"
    assert lines[5] == "| DSOKR, Kemeny, training rankings only | – | – | **0.600 ± 0.141** |"
    assert label_ranking_report.figure(folder, tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_says_how_often_a_recipe_was_taken(tmp_path):
    first, second, *others = map(str, label_ranking.RECIPES)
    rows = [
        ranking_row("wine", "dsokr", [0.9, 1.0]) | {"chosen": {first: 2, second: 1}},
        ranking_row("wine", "dsokr", [0.9, 1.0]) | {"chosen": {first: 1}},
        ranking_row("wine", "dsokr", [0.9, 1.0], "Candidates") | {"chosen": {second: 2}},  # the same networks again
        ranking_row("wine", "consensus", [0.2, 0.4]) | {"chosen": {"None": 2}},
    ]
    lines = label_ranking_report.chosen(write(tmp_path / "models.jsonl", rows), ["glass", "wine"]).splitlines()
    assert lines[0] == "| network | glass | wine |"
    assert lines[2:4] == ["| linear; rate 0.01, decay 0 | – | 75% |", "| linear; rate 0.003, decay 3 | – | 25% |"]
    assert [line.split(" | ")[-1] for line in lines[4:]] == ["0% |"] * len(others)


def label_row(data, method, score, selected=True, **more):
    metrics = {"f1": score, "exact": 0.25, "val_f1": score}
    row = {"data": data, "method": method, "decoder": "LabelSet", "seed": 0, "selected": selected, "metrics": metrics}
    return row | {"kernel": "Tanimoto()", "chosen": {}, "seconds": {"train_and_predict": 1.0}} | more


def test_data_sets_are_shown_when_every_method_was_tested(tmp_path):
    methods = ("dsokr", "sisokr", "bce")
    rows = [label_row("bibtex", method, 0.5 - i / 10) for i, method in enumerate(methods)]
    rows += [label_row("corel5k", "dsokr", 0.3), label_row("corel5k", "sisokr", 0.3, selected=False)]
    folder = write(tmp_path / "models.jsonl", rows)
    made = multilabel.table(folder)
    assert {row["data"] for row in made} == {"bibtex"}
    cells = [multilabel_report.cells(row) for row in made]
    assert cells[0] == ["bibtex", "DSOKR, Tanimoto, LabelSet *", "0.500 ± 0.000", "25.0%", "0.500", "1"]
    assert ["bibtex", "IOKR (published)", "0.449", "", "", ""] in cells
    assert multilabel_report.markdown(made).count("\n") == 1 + len(made)
    assert multilabel_report.figure(folder, tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def climbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    vectors.run(vectors.QUICK, folder, say=silent)
    return folder


def test_any_vector_is_nearer_than_the_best_seen(climbed, tmp_path, monkeypatch):
    rows = {row["model"]: row for row in vectors.table(climbed)}
    for kernel in ("Linear", "Gaussian"):
        listed, searched = (rows[f"DSOKR, {kernel}, {decoder}"] for decoder in ("Candidates", "Gradient"))
        assert searched["mse"] < listed["mse"] and searched["replicates"] == 2
    assert "NN" in rows and vectors.markdown(list(rows.values())).count("\n") == 6
    assert vectors.figure(climbed, tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    before = (climbed / "models.jsonl").read_text()
    monkeypatch.setattr(vectors, "chosen", lambda *a: pytest.fail("computed again"))
    vectors.run(vectors.QUICK, climbed, say=silent)
    assert (climbed / "models.jsonl").read_text() == before


def test_the_width_of_the_kernel_is_the_best_on_validation(monkeypatch):
    study = vectors.replace(vectors.QUICK, widths=(0.3, 1000.0))  # so narrow that no output is like another
    data = study.task.draw(vectors.Generator().manual_seed(0))
    assert vectors.chosen(study, data, "Gaussian", 0)[1] == 0.3


def test_every_experiment_can_be_asked_for():
    assert {experiment.value for experiment in Experiment} == set(EXPERIMENTS)


MODULES = {"multilabel": multilabel, "label_ranking": label_ranking, "vectors": vectors}


@pytest.mark.parametrize("name", ["multilabel", "label_ranking", "vectors"])
@pytest.mark.parametrize("size", get_args(Size))
def test_every_size_runs_its_own_study(name, size, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(MODULES[name], "run", lambda study, *_: ran.append(study))
    with pytest.raises(FileNotFoundError):  # nothing was computed, so there is nothing to show
        EXPERIMENTS[name](Asked(size, tmp_path, None, None, None, silent))
    assert ran[0] == getattr(MODULES[name], size.upper())


def test_reproduce_vectors_from_the_command_line(climbed, tmp_path, monkeypatch, capfd):
    (tmp_path / "vectors-quick").mkdir()
    (tmp_path / "vectors-quick" / "models.jsonl").write_text((climbed / "models.jsonl").read_text())
    arguments = ["reproduce", "vectors", "--quick", "--results", str(tmp_path), "--device", "cpu", "--json"]
    monkeypatch.setattr(sys, "argv", ["dsokr", *arguments])
    with pytest.raises(SystemExit) as stop:
        app()
    assert not stop.value.code
    answer = json.loads(capfd.readouterr().out)
    assert [row["model"] for row in answer["rows"]] == [row["model"] for row in vectors.table(climbed)]
    assert (tmp_path / "vectors-quick" / "figure.png").exists()
    assert len(read_rows(tmp_path / "vectors-quick" / "models.jsonl")) == 10
