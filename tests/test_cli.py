import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dsokr import __version__
from dsokr.commands.app import EXTRAS, app
from studies import demo, own_outputs


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def dsokr(capfd, monkeypatch):
    """Runs the command line in this process, as the entry point does."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["dsokr", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            app()
        text = capfd.readouterr()
        return Done(int(stop.value.code or 0), text.out, text.err)

    return run


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "dsokr.commands.app", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"dsokr {__version__}\n"


def test_ctrl_c_is_said_and_has_its_exit_code(dsokr, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("studies.demo.run", interrupted)
    done = dsokr("demo", "--quick")
    assert done.returncode == 130 and done.stderr == "dsokr: interrupted\n"


def test_version_and_help(dsokr):
    assert dsokr("--version").stdout == f"dsokr {__version__}\n"
    text = dsokr("--help").stdout
    assert all(command in text for command in ("demo", "reproduce", "select-size", "info"))


def test_info(dsokr):
    facts = json.loads(dsokr("info", "--json").stdout)
    assert facts["dsokr"] == __version__ and "cpu" in facts["devices"] and "plots" in facts["extras"]
    assert "torch" in dsokr("info").stdout


def test_info_and_the_readme_name_every_extra():
    root = Path(__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev", "all"}
    for extra, needs in EXTRAS.items():
        assert all(any(line.startswith(package) for line in extras[extra]) for package in needs)
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert all(f"`{extra}`" in readme for extra in extras)


def test_demo(dsokr, tmp_path):
    done = dsokr("demo", "--quick", "--out", str(tmp_path / "out"), "--json")
    answer = json.loads(done.stdout)
    assert set(answer["rows"][0]) == {"method", "ged", "ged_edge_labels", "exact", "seconds"}
    assert (tmp_path / "out" / "report.html").exists()
    assert done.stderr == ""


def test_demo_prints_its_table(dsokr, tmp_path, monkeypatch):
    row = demo.Row("DSOKR, any molecule", 0.25, 0.5, 0.75, 12.3)
    outcome = demo.Outcome([row], tmp_path / "report.html", size=40)
    monkeypatch.setattr(demo, "run", lambda *_, **__: outcome)
    lines = dsokr("demo", "--out", str(tmp_path)).stdout.splitlines()
    assert [cell.strip() for cell in lines[3].split("│")[1:-1]] == [row.method, "0.25", "0.50", "75.0%", "12 s"]
    assert lines[-1] == f"The report: {outcome.report}"


def test_reproduce_quick(dsokr, tmp_path):
    arguments = ("reproduce", "synthetic", "--quick", "--results", str(tmp_path), "--device", "cpu")
    done = dsokr(*arguments)
    assert done.returncode == 0, done.stderr
    assert "12,120" in done.stdout  # the NN's parameters
    assert (tmp_path / "synthetic-quick" / "figure.png").exists()
    again = json.loads(dsokr(*arguments, "--json").stdout)
    assert again["rows"][0]["model"] == "NN"


@pytest.fixture
def outputs(tmp_path):
    rng = np.random.default_rng(0)
    ys = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 12))
    np.save(tmp_path / "y.npy", ys)
    np.savetxt(tmp_path / "y.csv", ys, delimiter=",", header=",".join("abcdefghijkl"), comments="")
    sp.save_npz(tmp_path / "y.npz", sp.csr_array(ys))
    return tmp_path


@pytest.mark.parametrize("name", ["y.npy", "y.csv", "y.npz"])
def test_select_size(dsokr, outputs, name):
    plot = outputs / "plot.svg"
    done = dsokr("select-size", str(outputs / name), "--json", "--sizes", "2,4,8", "--plot", str(plot))
    assert json.loads(done.stdout)["size"] == 4, done.stderr
    assert plot.exists()


def test_select_size_reads_tables_as_all_commands_do(outputs):
    ys = np.load(outputs / "y.npy")
    lines = [",".join(map(str, row)) for row in ys]
    header = ",".join("abcdefghijkl")
    for name, text, encoding in [
        ("plain.csv", "\n".join([header, *lines]), "utf-8"),
        ("bom.csv", "\n".join(lines), "utf-8-sig"),
        ("semicolons.csv", "\r\n".join([header, *lines]).replace(",", ";"), "utf-8-sig"),
        ("tabs.csv", "\r\n".join([header, *lines]).replace(",", "\t"), "utf-16"),
        ("tabs.TSV", "\n".join(lines).replace(",", "\t"), "utf-8"),
        ("blank.csv", "\n".join(["", header, "", *lines, ""]), "utf-8"),
    ]:
        (outputs / name).write_bytes(text.encode(encoding))
        assert np.array_equal(own_outputs.read(outputs / name), ys), name
    (outputs / "one.csv").write_bytes("1.5\n1.5\n2\n".encode("utf-8-sig"))
    assert own_outputs.read(outputs / "one.csv").tolist() == [[1.5], [1.5], [2.0]]
    (outputs / "same.csv").write_text("1,1\n2,3\n")
    assert own_outputs.read(outputs / "same.csv").tolist() == [[1, 1], [2, 3]]


def test_select_size_prints_a_table(dsokr, outputs):
    done = dsokr(
        "select-size", str(outputs / "y.npy"), "--kernel", "gaussian", "--gamma", "0.01", "--sketch", "hadamard"
    )
    assert done.returncode == 0 and "is the smallest size" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["select-size", "nowhere.npy"], "dsokr: There is no file nowhere.npy."),
        (["select-size", "{}/y.npy", "--kernel", "gaussian"], "dsokr: The gaussian kernel needs --gamma."),
        (["select-size", "{}/y.npy", "--gamma", "1"], "dsokr: The linear kernel has no --gamma."),
        (["select-size", "{}/y.npy", "--sizes", "a,b"], "--sizes takes whole numbers"),
        (["select-size", "{}/y.npy", "--sizes", "5,999"], "--sizes must be from 1 to 180, the outputs not held out."),
        (["select-size", "{}/y.npy", "--sizes", "0,5"], "the outputs not held out. Got 0."),
        (["select-size", "{}/y.npy", "--device", "tpu"], "Unknown device 'tpu'"),
        (["select-size", "{}/bad.csv"], "bad.csv, row 3: 'x' is not a number."),
        (["select-size", "{}/ragged.csv"], "ragged.csv, row 2: It has 1 cell, the first row has 2."),
        (["select-size", "{}/few.csv"], "At least ten outputs"),
        (["select-size", "{}/typo.csv"], "typo.csv, row 1: '2.O' is not a number."),
        (["select-size", "{}/text.csv"], "text.csv, row 2: 'CCO' in 'smiles' is not a number."),
        (["select-size", "{}/nan.csv"], "nan.csv, row 3: 'NaN' in 'b' is not a finite number."),
        (["select-size", "{}/comma.csv"], "row 2: '0,5' in 'a' is not a number. Write decimals with a point."),
        (["select-size", "{}/open.csv"], "A double quote in row 2 of"),
        (["select-size", "{}/empty.csv"], "empty.csv is empty"),
        (["select-size", "{}/y.npy", "--plot", "p.xyz"], "a picture must be one of"),
        (["select-size", "{}/y.npy", "--plot", "nowhere/p.png"], "There is no folder nowhere"),
        (["demo", "--out", "{}/y.npy"], "is a file. Choose a folder"),
        (["select-size", "{}/y.txt"], "cannot read .txt"),
        (["select-size", "{}/broken.npy"], "cannot be read"),
        (["reproduce", "synthetic", "--quick", "--reduced"], "Choose one of --quick and --reduced"),
    ],
)
def test_errors_are_one_sentence_and_exit_code_one(dsokr, outputs, arguments, message):
    (outputs / "bad.csv").write_text("1,2\n3,4\nx,5\n")
    (outputs / "ragged.csv").write_text("1,2\n3\n")
    (outputs / "few.csv").write_text("1,2\n3,4\n\n")
    (outputs / "typo.csv").write_text("1,2.O\n3,4\n")
    (outputs / "text.csv").write_text("smiles,b\nCCO,1\nCO,2\n")
    (outputs / "nan.csv").write_text("a,b\n1,2\n3,NaN\n4\n")
    (outputs / "comma.csv").write_text("a;b\n0,5;1\n")
    (outputs / "open.csv").write_text('a,b\n"1,2\n3,4\n')
    (outputs / "empty.csv").write_text("\n")
    (outputs / "y.txt").write_text("1")
    (outputs / "broken.npy").write_bytes(b"nonsense")
    done = dsokr(*(argument.format(outputs) for argument in arguments))
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.startswith("dsokr: ") and done.stderr.count("\n") == 1


def test_unknown_names_are_refused_with_what_there_is(dsokr):
    done = dsokr("reproduce", "syntetic")
    assert done.returncode == 2 and "synthetic" in done.stderr
