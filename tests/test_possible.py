"""Candidates that are possible for each input, on the command line: --match, --within, --candidates-for."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("rdkit")
pytest.importorskip("typer")

from dsokr import chem
from dsokr.commands import Predictor, fit, library, options, predict
from dsokr.commands.possible import read_within
from dsokr.commands.tables import Problems
from dsokr.errors import InputError
from studies.data import molecules
from test_commands import dsokr, read, write  # noqa: F401 # a fixture among them

PROTON = 1.00728


@pytest.fixture(scope="module")
def smiles():
    return chem.many_smiles(molecules.generate(80, seed=0, max_atoms=6))


@pytest.fixture(scope="module")
def facts(smiles):
    return {s: (chem.formula(s), chem.mass(s)) for s in smiles}


@pytest.fixture(scope="module")
def tables(tmp_path_factory, smiles, facts):
    """Pairs with a precursor and a formula; a library with an id, a formula and a mass."""
    folder = tmp_path_factory.mktemp("possible")
    rows = [[_describe(s), s, f"{facts[s][1] + PROTON:.5f}", facts[s][0]] for s in smiles]
    write(folder / "pairs.csv", ["text", "smiles", "precursor_mz", "mf"], rows)
    columns = [["smiles", "id", "formula", "mass", "source"]]
    (folder / "library.smi").write_text("\n".join(smiles))
    write(
        folder / "library.csv",
        *columns,
        [[s, f"m{i}", facts[s][0], f"{facts[s][1]:.5f}", "own"] for i, s in enumerate(smiles)],
    )
    return folder


@pytest.fixture(scope="module")
def model(tables):
    parts = {"output_kind": "Molecule(radius=1)", "network": "WordBag(width=16)", "epochs": 3, "size": "40"}
    pairs = {"train": tables / "pairs.csv", "input": ["text"], "output": ["smiles"], "out": tables / "model"}
    fit.fit(options.FitOptions(**pairs, **parts, device="cpu"), Problems(), lambda *_, **__: None)
    return tables / "model"


def _describe(smiles: str) -> str:
    return " ".join(sorted(f"atom{label}" for label in chem.graph(smiles).labels))


@pytest.fixture(params=["csv", "smi", "index", "sorted", "blocks"])
def candidates(request, tables, model, dsokr, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(predict, "INPUTS", 7)  # searched for at once
    if request.param == "blocks":
        monkeypatch.setattr(library, "BLOCK", 7)
    if request.param in ("csv", "smi"):
        return tables / f"library.{request.param}"
    if request.param == "blocks":
        return tables / "library.csv"
    sort = ("--sort-by", "exact_mass") if request.param == "sorted" else ()
    dsokr("embed", model, tables / "library.csv", "--out", tmp_path / "i", *sort)
    return tmp_path / "i"


def test_every_answer_is_possible_and_the_best_of_those(dsokr, tables, model, candidates, tmp_path, smiles, facts):  # noqa: F811
    wishes = {
        ("--within", "exact_mass=precursor_mz-1.00728:10ppm"): lambda a, b: abs(a[1] - b[1]) <= 1e-5 * b[1] + 1e-5,
        ("--match", "formula=mf"): lambda a, b: a[0] == b[0],
        ("--match", "formula=mf", "--within", "exact_mass = precursor_mz-1.00728 :0.5"): lambda a, b: a[0] == b[0],
    }
    everything = _rank(dsokr, model, tables, tmp_path, "--candidates", candidates, "--top", len(smiles))
    for wish, meets in wishes.items():
        found = _rank(dsokr, model, tables, tmp_path, "--candidates", candidates, "--top", 3, *wish)
        for row, true in enumerate(smiles):
            possible = [(cell, score) for cell, score in everything[row + 2] if meets(facts[cell], facts[true])]
            assert [score for _, score in found[row + 2]] == pytest.approx([s for _, s in possible[:3]], abs=1e-5)
            assert {cell for cell, _ in found[row + 2]} <= {cell for cell, _ in possible}


def _rank(dsokr, model, tables, folder, *options):  # noqa: F811
    dsokr("rank", model, tables / "pairs.csv", "--out", folder / "r.csv", *options)
    found = {}
    for row in read(folder / "r.csv"):
        found.setdefault(int(row["row"]), []).append((row["prediction"], float(row["score"])))
    return found


def test_known_outputs_have_formula_and_mass(dsokr, tables, model, tmp_path, smiles, facts):  # noqa: F811
    arguments = "--within", "exact_mass=precursor_mz-1.00728:10ppm", "--show", "formula"
    done = dsokr("predict", model, tables / "pairs.csv", "--out", tmp_path / "p.csv", *arguments, "--top", "1")
    rows = read(tmp_path / "p.csv")
    assert [row["candidate_formula"] for row in rows] == [facts[s][0] for s in smiles]
    assert "No candidate is possible" not in done.stdout


def test_columns_of_candidates_are_shown(dsokr, tables, model, candidates, tmp_path, facts):  # noqa: F811
    arguments = "--candidates", candidates, "--show", "exact_mass, formula", "--top", "2"
    dsokr("rank", model, tables / "pairs.csv", "--out", tmp_path / "r.csv", *arguments)
    for row in read(tmp_path / "r.csv"):
        assert row["candidate_formula"] == facts[row["prediction"]][0]
        assert float(row["candidate_exact_mass"]) == pytest.approx(facts[row["prediction"]][1], abs=1e-5)


@pytest.mark.filterwarnings("default")
def test_lists_of_candidates_in_a_column(dsokr, tables, model, tmp_path, smiles):  # noqa: F811
    lists = [smiles[:3], ["CCO", "OCC", "C1C"], [], smiles[5:9]]
    table = write(
        tmp_path / "q.csv",
        ["text", "choices"],
        [["atom6 atom8", ";".join(some) if at else json.dumps(some)] for at, some in enumerate(lists)],
    )
    done = dsokr("rank", model, table, "--candidates-for", "choices", "--out", tmp_path / "r.csv", "--top", "3")
    found = {}
    for row in read(tmp_path / "r.csv"):
        found.setdefault(int(row["row"]), []).append(row["prediction"])
    assert set(found) == {2, 3, 5} and set(found[2]) == set(smiles[:3]) and set(found[5]) < set(smiles[5:9])
    assert "No candidate is possible for 1 input." in done.stdout
    assert "1 listed candidate cannot be used, 'C1C' for one: Could not parse 'C1C' as a molecule." in done.stderr


def test_an_evaluation_counts_by_the_number_of_possible_candidates(dsokr, tables, model, candidates, smiles, facts):  # noqa: F811
    arguments = ("--within", "exact_mass=precursor_mz-1.00728:10ppm")
    listed = ("--candidates", candidates) if candidates.is_file() else ()
    done = dsokr("evaluate", model, tables / "pairs.csv", *listed, *arguments, "--json")
    metrics = json.loads(done.stdout)["metrics"]
    formulas = [facts[s][0] for s in smiles]
    sizes = np.array([formulas.count(formula) for formula in formulas])
    assert metrics["inputs 1"] == (sizes == 1).sum() > 0 and metrics["hits@1 1"] == 1
    assert metrics["inputs 2-9"] == ((sizes > 1) & (sizes < 10)).sum() > 0
    assert metrics["possible"] == pytest.approx(sizes[sizes > 1].mean())
    assert metrics["hits@1 2-9"] <= metrics["hits@5 2-9"] <= metrics["hits@20 2-9"] == 1
    text = dsokr("evaluate", model, tables / "pairs.csv", *listed, *arguments).stdout
    assert "Among the candidates that are possible for each input" in text and "with 2-9 possible" in " ".join(
        text.split()
    )


def test_the_report_of_a_test_with_conditions(dsokr, tables, model, tmp_path):  # noqa: F811
    dsokr("report", model, "--test", tables / "pairs.csv", "--match", "formula=mf", "--out", tmp_path / "r.html")
    assert "hits@5 2-9" in (tmp_path / "r.html").read_text()
    done = dsokr("report", model, "--match", "formula=mf", "--out", tmp_path / "none.html", expect=1)
    assert "--match and --within are about a test. Name it with --test." in " ".join(done.stderr.split())
    assert not (tmp_path / "none.html").exists()


@pytest.mark.parametrize(
    ("text", "column", "formula", "tolerance", "share"),
    [
        ("m:10ppm", "m", "m", 10, 1e-5),
        ("exact mass = a mass : 0.5 %", "exact mass", "a mass", 0.5, 0.005),
        ("m=2*mz-1:1e-3", "m", "2*mz-1", 1e-3, None),
    ],
)
def test_how_windows_are_written(text, column, formula, tolerance, share):
    wish = read_within(text)
    assert (wish.column, wish.formula, wish.tolerance) == (column, formula, tolerance)
    assert wish.share == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("text", ["mass", "mass=mz", "mass=mz:", "mass:ten", "mass:-1", "mass:nan", "=mz:1"])
def test_windows_that_cannot_be_read(text):
    with pytest.raises(InputError, match="--within takes COLUMN=EXPRESSION:TOLERANCE, such as exact_mass=precursor_mz"):
        read_within(text)


LISTED = ("--candidates", "library.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*LISTED, "--within", "mass=precursor-1:10ppm"), "has no column 'precursor'. Did you mean 'precursor_mz'?"),
        ((*LISTED, "--within", "weight=precursor_mz:1"), "library.csv has no column 'weight'."),
        ((*LISTED, "--within", "source=precursor_mz:1"), "The column 'source' of the candidates holds no numbers."),
        ((*LISTED, "--within", "mass=open('x'):1"), "is neither a column nor made of columns and numbers by + - * /."),
        ((*LISTED, "--within", "mass=precursor_mz-:1"), "is neither a column nor made of columns and numbers"),
        ((*LISTED, "--within", "mass='1':1"), "is neither a column nor made of columns and numbers"),
        ((*LISTED, "--match", "formula"), "pairs.csv has no column 'formula'"),
        ((*LISTED, "--show", "price"), "library.csv has no column 'price'"),
        (("--candidates-for", "mf", *LISTED), "--candidates and --candidates-for are two lists of candidates."),
        (("--candidates-for", "mf", "--match", "formula=mf"), "lists in a column have none."),
        (("--candidates-for", "mf"), "None of the listed candidates can be used."),
    ],
)
def test_wishes_that_cannot_be_met(dsokr, tables, model, tmp_path, monkeypatch, arguments, message):  # noqa: F811
    monkeypatch.chdir(tables)
    done = dsokr("rank", model, "pairs.csv", "--out", tmp_path / "r.csv", *arguments, expect=1)
    assert message in done.stderr and done.stderr.count("\n") <= 2 and not (tmp_path / "r.csv").exists()


def test_a_row_without_a_number_is_skipped_and_one_without_candidates_counted(dsokr, tables, model, tmp_path, facts):  # noqa: F811
    text, (_, mass) = "atom6 atom6 atom8", next(iter(facts.values()))
    rows = [[text, mass + PROTON], [text, "n/a"], [text, 9999.0], [text, mass + PROTON]] + [[text, mass + PROTON]] * 20
    table = write(tmp_path / "q.csv", ["text", "precursor_mz"], rows)
    wish = ("--candidates", tables / "library.csv", "--within", "exact_mass=precursor_mz-1.00728:10ppm")
    done = dsokr("rank", model, table, *wish, "--out", tmp_path / "r.csv")
    assert "row 3" in done.stderr and "precursor_mz-1.00728 is not a number here: precursor_mz is 'n/a'." in done.stderr
    assert "No candidate is possible for 1 input." in done.stdout
    assert {int(row["row"]) for row in read(tmp_path / "r.csv")} == {2, *range(5, 26)}


def test_the_mass_follows_from_precursor_and_adduct(dsokr, tables, model, tmp_path, facts):  # noqa: F811
    text, masses = "atom6 atom6 atom8", [mass for _, mass in facts.values()]
    shifts = {"[M+H]+": 1.007276, "[M+Na]+": 22.989218, "[M-H]-": -1.007276}
    adducts = [*shifts] * 5
    rows = [[text, mass + shifts[adduct], adduct] for mass, adduct in zip(masses, adducts, strict=False)]
    table = write(tmp_path / "q.csv", ["text", "precursor_mz", "adduct"], [*rows, [text, 99.0, "M+H"]])
    wish = ("--candidates", tables / "library.csv", "--show", "exact_mass", "--within", "exact_mass=neutral_mass:5ppm")
    done = dsokr("rank", model, table, *wish, "--out", tmp_path / "r.csv")
    assert "neutral_mass is not a number here: precursor_mz is '99.0', adduct is 'M+H'." in done.stderr
    found = read(tmp_path / "r.csv")
    assert {int(row["row"]) for row in found} == set(range(2, 2 + len(rows)))
    for row in found:
        mass = masses[int(row["row"]) - 2]
        assert abs(float(row["candidate_exact_mass"]) - mass) <= 1.1e-5 * mass


def test_sets_among_possible_candidates_hold_the_right_one(dsokr, tables, model, tmp_path, smiles):  # noqa: F811
    known, rows = set(smiles), []
    for s in chem.many_smiles(molecules.generate(700, seed=1, max_atoms=6)):
        if s not in known:
            known.add(s)
            rows.append([f"{_describe(s)} new{len(rows)}", s, chem.mass(s) + PROTON])
    header = ["text", "smiles", "precursor_mz"]
    library = tmp_path / "library.smi"
    library.write_text("\n".join(sorted(known)))
    pairs, test = (write(tmp_path / f"{i}.csv", header, rows[i::2]) for i in range(2))
    own = tmp_path / "model"
    shutil.copytree(model, own)
    rank = ("rank", own, test, "--candidates", library, "--out", tmp_path / "r.csv", "--coverage", "0.8")
    wish = ("--within", "exact_mass=precursor_mz-1.00728:10ppm")
    dsokr("calibrate", own, pairs)
    message = "The model was calibrated without conditions. Use the same --match and --within for both."
    assert message in dsokr(*rank, *wish, expect=1).stderr
    dsokr("calibrate", own, pairs, *wish)
    assert "calibrated on exact_mass." in dsokr(*rank, "--match", "formula=smiles", expect=1).stderr
    dsokr(*rank, *wish)
    sets = {}
    for row in read(tmp_path / "r.csv"):
        sets.setdefault(int(row["row"]) - 2, []).append(row)
    right = [any(hit["prediction"] == row[1] for hit in sets[at]) for at, row in enumerate(rows[1::2])]
    sizes = [len(some) for some in sets.values()]
    pools = [sum(abs(chem.mass(s) - (row[2] - PROTON)) < 1e-3 for s in known) for row in rows[1::2]]
    assert 0.7 < np.mean(right) < 0.95 and np.mean(sizes) < 0.9 * np.mean(pools)
    for some in sets.values():
        assert sum(float(hit["probability"]) for hit in some) <= 1 + 1e-6


def test_several_rows_of_one_thing_are_one_input(dsokr, tables, model, tmp_path, smiles, facts):  # noqa: F811
    rows = [[f"{_describe(s)} {word}", s, i, facts[s][0]] for i, s in enumerate(smiles[:30]) for word in ("one", "two")]
    table = write(tmp_path / "q.csv", ["text", "smiles", "spot", "mf"], rows)
    pool = ("--candidates", tables / "library.csv", "--pool", "spot")
    dsokr("rank", model, table, *pool, "--out", tmp_path / "r.csv", "--top", "3", "--keep", "spot")
    found = read(tmp_path / "r.csv")
    assert [int(row["spot"]) for row in found[::3]] == list(range(30)) and len(found) == 90
    predictor = Predictor.load(model, "cpu")
    z = predictor.coefficients([row[0] for row in rows]).double().reshape(30, 2, -1).mean(dim=1)
    expected = predictor.among(smiles).top(z, 3, predictor.rule)
    assert [row["prediction"] for row in found] == [smiles[at] for at in expected.indices.flatten().tolist()]
    done = json.loads(dsokr("evaluate", model, table, *pool, "--match", "formula=mf", "--json").stdout)
    assert done["n"] == 30 and sum(v for k, v in done["metrics"].items() if k.startswith("inputs")) == 30
