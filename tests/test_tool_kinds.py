"""Kinds of cells: round trips, bad cells, guesses, and parts by name."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from dsokr import chem, decoders, kernels
from dsokr.errors import InputError, MissingExtraError, ModelFolderError
from dsokr.commands import choices, guess, kinds
from dsokr.commands.kinds import Image, Labels, Letters, Molecule, Ranking, SmilesLetters, String, Text, Vector

ADAPTED = [
    (Vector(("a", "b")), [("1", "10"), ("3", "30"), ("2", "5")]),
    (Labels(), ["a;b", "b", "{}", "c;a"]),
    (Labels(), ["a|b", "b", "c|a"]),
    (Ranking(), ["a>b>c", "b>a=c", "c>a"]),
    (String(), ["größe", "界"]),
    (Molecule(form="graph"), ["CCO", "C", "C#N"]),
]


@pytest.mark.parametrize(("kind", "cells"), ADAPTED, ids=lambda value: str(value)[:20])
def test_what_is_read_is_written_and_read_again(kind, cells):
    kind = kind.adapted(cells)
    values = kind.all_of(cells, "Output")
    again = [kind.formatted(value) for value in values]
    reread = kind.all_of(again, "Output")
    for before, after in zip(values, reread, strict=True):
        if isinstance(kind, Molecule):
            assert chem.smiles(before) == chem.smiles(after)
        else:
            assert np.allclose(before, after) if not isinstance(before, str) else before == after
    assert [kind.key(cell) for cell in cells] == [kind.key(cell) for cell in again]


@pytest.mark.parametrize(
    "kind",
    [
        *(kind.adapted(cells) for kind, cells in ADAPTED),
        Text(),
        Letters().adapted(["abc"]),
        SmilesLetters().adapted(["CCO"]),
        Image(32, "L"),
        Molecule(form="bits", radius=1, chirality=False),
    ],
    ids=lambda kind: kind.name,
)
def test_a_kind_is_plain_json(kind):
    described = json.loads(json.dumps(kind.described()))
    found = [
        restore(described)
        for restore, table in ((kinds.input_kind, kinds.INPUTS), (kinds.output_kind, kinds.OUTPUTS))
        if table.get(kind.name) is type(kind)
    ]
    assert found and all(again == kind for again in found)
    assert kind.is_adapted


def test_a_damaged_task_file_is_said():
    with pytest.raises(ModelFolderError, match="names the kind 'graphs'"):
        kinds.output_kind({"kind": "graphs"})
    with pytest.raises(ModelFolderError, match="task.json is damaged"):
        kinds.output_kind({"kind": "labels", "colour": 1})


@pytest.mark.parametrize(
    ("kind", "cell", "reason"),
    [
        (Vector(), "", "The cell is empty."),
        (Vector(), "nan", "'nan' is not a finite number."),
        (Vector(), "1;inf", "'inf' is not a finite number."),
        (Vector(), "1,5", "'1,5' is not a number. Write decimals with a point."),
        (Vector(), "-1,5e-3", "'-1,5e-3' is not a number. Write decimals with a point."),
        (Vector(), "1,234", "'1,234' is not a number. Write decimals with a point, and thousands without anything"),
        (Vector(), "1.234.567,8", "'1.234.567,8' is not a number. Write decimals with a point, and thousands without"),
        (Vector(("a", "b")), ("1", ""), "The cell in 'b' is empty."),
        (Vector(("a", "b")), ("x", "2"), "'x' in 'a' is not a number."),
        (Vector(mean=(0.0, 0.0), scale=(1.0, 1.0)), "1", "There must be 2 numbers. Got 1."),
        (Text(), "  ", "The cell is empty."),
        (Text(), ("a", "b"), "This must be one text. Got 2 cells: a, b."),
        (Letters(), "größe", "The network reads ASCII letters only. Got 'ö' in 'größe'."),
        (Letters(longest=3), "abcd", "The network reads at most 3 letters. Got 4."),
        (Labels(("red", "round")), "", "The cell is empty. Write {} if it has none of the labels."),
        (Labels(("red", "round")), "red;rond", "There is no label 'rond' in training. Did you mean 'round'?"),
        (Ranking(("a", "b")), "", "The cell is empty."),
        (Ranking(("a", "b")), "a>a", "'a' is ranked twice."),
        (Ranking(("apple", "b")), "appel>b", "There is no item 'appel' in training. Did you mean 'apple'?"),
        (Ranking(("a", "b", "c"), full=True), "a>c", "'b' is not ranked, and this kernel takes full rankings only."),
        (Ranking(("a", "b")), "a", "A ranking has two items or more. Got 'a' alone."),
        (Vector(), "1 -1e300", "-1e+300 is too large a number: at most 1e+100."),
        (Vector((), (0.0,), (1.0,)), "1e90", "1e+90 is too far from the numbers of training"),
        (Ranking(("a", "b"), full=True), "a=b", "Items are tied, and this kernel takes full rankings only."),
        (String(), "", "The cell is empty."),
        (Molecule(), "C1CC", "Could not parse 'C1CC' as a molecule."),
        (Molecule(form="graph"), "C1CC", "Could not parse 'C1CC' as a molecule."),
        (Molecule(form="graph"), "[H][H]", "A molecule needs an atom other than hydrogen."),
        (Molecule(), "", "The cell is empty."),
        (SmilesLetters(), "C1CC", "Could not parse 'C1CC' as a molecule."),
    ],
)
def test_bad_cells_have_a_reason(kind, cell, reason):
    assert reason in kind.read([cell]).bad[0]
    with pytest.raises(InputError, match="Input 0: "):
        kind.all_of([cell], "Input")


@pytest.mark.parametrize("full", [False, True])
def test_items_are_those_of_rankings_that_can_be_read(full):
    """A cell that is no ranking takes the blame itself, and leaves none to the others."""
    cells = ["b>a>c", "n/a", "c>b>a", "", "d>d>a", "a>c>b"]
    kind = Ranking(full=full).adapted(cells)
    assert kind.items == ("a", "b", "c")
    read = kind.read(cells)
    assert read.good == [0, 2, 5]
    assert read.bad[1] == "A ranking has two items or more. Got 'n/a' alone."
    assert read.bad[4] == "'d' is ranked twice."


def test_a_misspelt_item_is_not_one_that_all_others_miss():
    cells = ["water>ethanol>hexane", "hexane>water>ethanol"] * 4 + ["water>etanol>hexane", "water>hexane", "a>b>c"]
    read = Ranking(full=True).adapted(cells).read(cells)
    assert read.good == list(range(8))
    among = "is not among the 3 items that the rankings of training have."
    assert read.bad[8] == f"'etanol' {among} Did you mean 'ethanol'?"
    assert read.bad[9].startswith("'ethanol' is not ranked")
    assert read.bad[10] == f"'a' {among} The kernel kemeny takes all."
    assert "etanol" in Ranking().adapted(cells).items  # with missing items nobody knows


def test_rankings_of_a_few_out_of_many_are_not_full():
    """No set of items is that of nearly all: the reason stays that items are missing."""
    cells = ["a>b", "b>c", "c>d", "d>a", "a>b"]
    read = Ranking(full=True).adapted(cells).read(cells)
    assert not read.good and "'c' is not ranked, and this kernel takes full rankings only" in read.bad[0]


class Counted(tuple):
    """Names that count how often somebody goes through them."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize(
    ("kind", "field", "cell"), [(Labels(), "names", "a;c"), (Ranking(), "items", "c>a"), (Ranking(), "items", "b>a=c")]
)
def test_the_places_of_labels_are_looked_up_once_for_all_cells(kind, field, cell):
    names = Counted("abc")
    known = replace(kind, **{field: names})
    assert len(known.read([cell] * 50).good) == 50
    assert names.passes == 1
    again = replace(known, **{field: ("c", "b", "a")})  # of other labels, other places
    assert np.array_equal(again.value(cell), known.value(cell)[::-1])
    assert known == replace(kind, **{field: ("a", "b", "c")}) and set(known.described()) == set(kind.described())


@pytest.mark.parametrize("kind", [Molecule(), Molecule(form="bits"), Molecule(form="graph"), SmilesLetters()])
def test_a_bad_molecule_does_not_lose_the_good_ones(kind, monkeypatch):
    monkeypatch.setattr(kinds, "BLOCK", 2)
    cells = ["CCO", "C1CC", "C", "", "c1ccccc1"]
    read = kind.read(cells)
    assert read.good == [0, 2, 4] and set(read.bad) == {1, 3}
    alone = kind.read(["CCO", "C", "c1ccccc1"]).values
    if sp.issparse(alone):
        assert (alone != read.values).nnz == 0 and alone.shape == read.values.shape
    elif kind.name == "smiles" and isinstance(kind, Molecule):
        assert read.values == alone
    assert kind.read(["C1CC"]).good == []


def test_fingerprints_are_counts_or_bits():
    counts, bits = (Molecule(form=form, radius=0).all_of(["CCCO"], "Output") for form in ("counts", "bits"))
    assert counts.max() > 1 and bits.max() == 1 and counts.nnz == bits.nnz
    with pytest.raises(InputError, match="cannot be made from its fingerprint"):
        Molecule().formatted(counts)


def test_smiles_are_the_same_molecule_however_they_are_written():
    assert SmilesLetters().read(["OCC", "CCO"]).values == ["CCO", "CCO"]
    assert Molecule().key("OCC") == Molecule().key("CCO")
    assert Molecule(chirality=True).key("F/C=C/F") != Molecule(chirality=True).key("F/C=C\\F")
    assert Molecule(chirality=False).key("F/C=C/F") == Molecule(chirality=False).key("F/C=C\\F")


def test_vectors_are_scaled_and_given_back_in_their_units():
    cells = ["1 5", "3 5", "5 5"]  # the second column never changes
    kind = Vector().adapted([*cells, "bad", "1 2 3"])
    values = kind.read(cells).values
    assert np.allclose(values.mean(axis=0), 0) and np.allclose(values[:, 0].std(), 1)
    assert np.allclose(kind.restored(values), [[1, 5], [3, 5], [5, 5]])
    assert np.array_equal(Vector().read(["[1, 2.5]"]).values, [[1, 2.5]])


def test_images(tmp_path):
    pictures = pytest.importorskip("PIL.Image")
    pictures.fromarray(np.full((10, 20), 255, np.uint8)).save(tmp_path / "grey.png")
    pictures.fromarray(np.zeros((10, 20, 3), np.uint8)).save(tmp_path / "colour.png")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    cells = Image().located(["grey.png", "colour.png", "broken.png", "none.png", ""], tmp_path)
    grey, colours = Image(8).adapted(cells[:1]), Image(8).adapted(cells[:2])
    assert (grey.mode, colours.mode) == ("L", "RGB")
    assert grey.read(cells[:1]).values.shape == (1, 1, 8, 8) and grey.read(cells[:1]).values.max() == 1
    read = colours.read(cells)
    assert read.values.shape == (2, 3, 8, 8)
    assert "cannot be read" in read.bad[2] and "There is no picture" in read.bad[3] and "empty" in read.bad[4]


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r'pip install "dsokr\[images\]"'):
        Image().read(["a.png"])


@pytest.mark.parametrize(
    ("columns", "cells", "expected"),
    [
        (["a", "b"], [("1", "2")], "vector"),
        (["x"], ["1.5", "2e3", "-1"], "vector"),
        (["x"], ["1 2 3", "[4, 5, 6]"], "vector"),
        (["SMILES"], ["CCO", "bad"], "smiles"),
        (["molecule"], ["CCO", "c1ccccc1", "CC(=O)O"], "smiles"),
        (["picture"], ["a.PNG", "b.jpg"], "image"),
        (["t"], ["a primary alcohol", "an ester"], "text"),
        (["t"], ["größe", "maß"], "text"),
        (["word"], ["running", "walked"], "string"),
        (["version"], ["1.2.3", "1.10.0", "2.0.1"], "string"),
        (["cas"], ["64-17-5", "67-56-1", "7732-18-5"], "string"),
        (["code"], ["A17", "B9", "12"], "string"),
        (["note"], ["seen on 3 of 7 days", "12", "none"], "text"),
    ],
)
def test_guessed_inputs(columns, cells, expected):
    assert guess.guessed_input(columns, cells) == expected
    assert guess.input_named("auto", columns, cells).name == expected


@pytest.mark.parametrize(
    ("columns", "cells", "expected"),
    [
        (["a", "b"], [("1", "2")], "vector"),
        (["y"], ["1", "2"], "vector"),
        (["y"], ["CCO", "c1ccccc1", "CC(=O)O"], "smiles"),
        (["y"], ["a>b>c", "b>a>c"], "ranking"),
        (["y"], ["a;b", "c"], "labels"),
        (["y"], ["yes", "no"] * 10, "labels"),
        (["y"], ["running", "walked", "größer"], "string"),
        (["y"], ["1;3;5", "2;4;6"], "vector"),
        (["y"], ["1;3;5", "2;4", "{}"], "labels"),
        (["y"], ["1;3;5", "2;4", "7", "1;x"], "labels"),
        (["y"], ["1>3>5", "3>1=5"], "ranking"),
        (["y"], ["1,3,5", "2,4,6", "2,4,7,9"], "string"),
        (["y"], ["36", "38", "S", "M", "L"] * 10, "labels"),
        (["y"], ["1", "2", "3", "4", "5", "6", "7", "8", "9", "< 1"], "vector"),
    ],
)
def test_guessed_outputs(columns, cells, expected):
    assert guess.guessed_output(columns, cells) == expected
    assert guess.output_named("auto", columns, cells).name == expected


@pytest.mark.parametrize("guessed", [guess.guessed_input, guess.guessed_output])
@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["", "0,15", "1,5e-3", "-2,25"], "position 1, column 'c': '0,15' is not a number. Write decimals with a p"),
        (["2", "3", "4,5"], "position 2, column 'c': '4,5' is not a number. Write decimals with a point."),
        (["1,234,567", "999", "12,000"], "'1,234,567' is not a number. Write decimals with a point, and thousands"),
        (["n/a", *["0,1 0,2", "0,3 0,4"] * 10], "position 1, column 'c': '0,1' is not a number."),
        (["1.5", "", "< 0.1", "2.5"], "position 2, column 'c': '< 0.1' is not a number, but 2 of 3 cells of the"),
        (["1.5", "nan", "2.5"] * 200, "position 1, column 'c': 'nan' is not a number, but 400 of 600 cells"),
    ],
)
def test_numbers_are_not_taken_for_strings(guessed, cells, message):
    with pytest.raises(InputError, match=f"^.*{re.escape(message)}.*-kind (string|text|labels)") as caught:
        guessed(["c"], cells)
    option = "--input-kind" if guessed is guess.guessed_input else "--output-kind"
    assert f"say {option} " in str(caught.value).lower()


def test_what_cannot_be_guessed_or_does_not_exist():
    with pytest.raises(InputError, match="All cells are empty"):
        guess.guessed_input(["a"], ["", " "])
    with pytest.raises(InputError, match="no kind of input 'txt'. Did you mean 'text'. Choose from vector, text"):
        guess.input_named("txt", ["a"], ["b"])
    with pytest.raises(InputError, match="no kind of output 'image'. Choose from vector, labels"):
        guess.output_named("image", ["a"], ["b"])


@pytest.mark.parametrize(
    ("text", "table", "message"),
    [
        ("gausian", choices.KERNELS[Vector], "There is no kernel 'gausian'. Did you mean 'gaussian'. Choose from lin"),
        ("wl:iteration=2", choices.KERNELS[Molecule], "no parameter 'iteration'. Did you mean 'iterations'"),
        ("linear:a=1", choices.KERNELS[Vector], "The kernel linear has no parameter 'a'. It has none."),
        ("wl:iterations", choices.KERNELS[Molecule], "A parameter is written iterations=value. Got 'iterations'"),
        ("wl:iterations=x", choices.KERNELS[Molecule], "wl:iterations must be a whole number. Got 'x'"),
        ("wl:bonds=maybe", choices.KERNELS[Molecule], "wl:bonds must be true or false. Got 'maybe'"),
        ("gaussian:gamma=x", choices.KERNELS[Vector], "gaussian:gamma must be a finite number. Got 'x'"),
        ("gaussian:gamma=nan", choices.KERNELS[Vector], "gaussian:gamma must be a finite number. Got 'nan'"),
    ],
)
def test_typos_in_names_and_parameters(text, table, message):
    with pytest.raises(InputError, match=message):
        choices.named(text, table, "kernel")


EXAMPLES = {
    Vector: ["1 2", "3 4", "5 7"],
    Labels: ["a;b", "b", "c"],
    Ranking: ["a>b>c", "c>b>a", "b>a>c"],
    String: ["learn", "earn", "nest"],
    Molecule: ["CCO", "C", "c1ccccc1"],
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, table in choices.KERNELS.items() for name in table], ids=str
)
def test_every_kernel_works_on_its_kind(kind, name):
    """Its values are finite and positive semi-definite, a decoder answers, and its name can be read again."""
    from torch import Generator

    from dsokr import sketch_basis, sketches
    from dsokr.decoders import EmbeddedOutputs

    found, parameters = choices.named(name, choices.KERNELS[kind], "kernel")
    assert choices.named(choices.written(found, parameters), choices.KERNELS[kind], "kernel") == (found, parameters)
    cells = EXAMPLES[kind]
    output = choices.for_kernel(kind(), name, parameters).adapted(cells)
    ys = output.all_of(cells, "Output")
    kernel = choices.kernel(output, name, parameters, ys)
    basis = sketch_basis(kernel, ys, sketches.Full(), generator=Generator())
    decoder = choices.decoder("auto", output, kernel, ys)
    decoder = decoder.alternatives()[0]
    assert len(decoder.decode(basis, basis.embed(ys), EmbeddedOutputs(basis, ys)).scores) == 3


def test_decoders_by_name():
    ys = Molecule(form="graph").all_of(["CCO", "CS(C)(=O)=O", "[Na+].[Cl-]"], "Output")
    wl = kernels.WeisfeilerLehman(2)
    search = choices.decoder("auto", Molecule(form="graph"), wl, ys)
    assert isinstance(search, decoders.GraphSearch) and search.moves.max_atoms == 5
    assert dict(search.moves.valences) == {6: 4, 8: 2, 11: 1, 16: 6, 17: 1}
    large = Molecule(form="graph").all_of(["C" * 30], "Output")
    assert isinstance(choices.decoder("auto", Molecule(form="graph"), wl, large), decoders.Candidates)
    assert isinstance(choices.decoder("search", Molecule(form="graph"), wl, large), decoders.GraphSearch)
    assert isinstance(choices.decoder("candidates", String(), kernels.NGram(2), ["a"]), decoders.Candidates)
    with pytest.raises(InputError, match="there is no search of all outputs"):
        choices.decoder("search", Molecule(), kernels.Tanimoto(), ys)
    with pytest.raises(InputError, match="no decoder 'serach'. Did you mean 'search'"):
        choices.decoder("serach", Molecule(), kernels.Tanimoto(), ys)


def test_gamma_is_one_over_the_median_distance():
    ys = np.array([[0.0], [2.0], [0.0], [2.0]] * 50)
    assert choices.gamma_of(ys, 0.3, 2) == 0.3
    assert choices.gamma_of(ys, "auto", 2) in (0.25, 1.0)  # neighbours in a random order differ by 2 or by nothing
    assert choices.gamma_of(np.array([[0.0], [2.0]]), "auto", 2) == 0.25
    assert choices.gamma_of(np.array([[0.0], [2.0]]), "auto", 1) == 0.5
