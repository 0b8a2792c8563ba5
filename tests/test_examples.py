"""The examples run, on few pairs, and print what they say."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example as a program with ``n_train`` pairs; returns its names and what it printed."""

    def run(name: str, n_train: int) -> tuple[dict[str, object], str]:
        monkeypatch.setattr(sys, "argv", [name, str(n_train)])
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return names, capsys.readouterr().out

    return run


@pytest.mark.filterwarnings("ignore:No training string has")  # few molecules, and some letters are rare
def test_smiles_to_graph(run):
    names, text = run("smiles_to_graph.py", 120)
    assert len(names["test_smiles"]) == 100 and len(set(names["smiles"])) == 220
    printed = re.findall(r"^(\S+) +-> (\S+) +(\d+) edits away$", text, flags=re.MULTILINE)
    assert [given for given, _, _ in printed] == names["test_smiles"][:10]
    for given, predicted, edits in printed:
        assert given == predicted or int(edits) > 0
    assert f"{(names['distances'] == 0).double().mean():.0%} of 100" in text


def test_pictures_to_labels(run):
    names, text = run("pictures_to_labels.py", 300)
    assert names["predicted"].shape == (200, 10)
    assert text.count("| true: ") == 5 and "exactly right" in text


def test_curves(run):
    names, text = run("curves.py", 300)
    recorded, listed, searched = (float(x) for x in re.findall(r"(0\.\d{5})$", text, flags=re.MULTILINE))
    assert searched < listed < recorded
    assert names["predicted"].shape == (200, 50) and (names["predicted"] >= 0).all()


def test_text_to_molecule(run):
    names, text = run("text_to_molecule.py", 250)
    one, two = (float(x) for x in re.findall(r"models?: first for \d+% of the texts, .* ten for (\d+)%", text))
    assert one > 10 and two > 10, "by chance it would be one in a hundred"
    assert names["question"] in text and len(re.findall(r"^  -?\d\.\d{3}  \S", text, flags=re.MULTILINE)) == 5


def test_every_example_is_tested():
    tests = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.name}"' in tests
