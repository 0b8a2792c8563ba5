"""Kinds of columns: round trips, bad cells, guesses, and the parts of a model that suit them."""

import re
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import scipy.sparse as sp
from torch import Generator

from dsokr import chem, decoders, kernels, sketch_basis, sketches, spectra
from dsokr.commands import columns, kinds, predictor
from dsokr.commands.cells import guess_input, guess_output
from dsokr.commands.columns import Image, Labels, Letters, Molecule, Peaks, Ranking, SmilesLetters, String, Text, Vector
from dsokr.decoders import EmbeddedOutputs
from dsokr.errors import InputError, MissingExtraError
from dsokr.outputs import as_outputs
from dsokr.saving import parse_expression, write_expression

ADAPTED = [
    (Vector(("a", "b")), ["1;10", "3;30", "2;5"]),
    (Labels(), ["a;b", "b", "{}", "c;a"]),
    (Labels(), ["a|b", "b", "c|a"]),
    (Ranking(), ["a>b>c", "b>a=c", "c>a"]),
    (String(), ["größe", "界"]),
    (Molecule(as_graph=True), ["CCO", "C", "C#N"]),
]


@pytest.mark.parametrize(("kind", "cells"), ADAPTED, ids=lambda value: str(value)[:20])
def test_what_is_read_is_written_and_read_again(kind, cells):
    kind = kind.adapt(cells)
    values = kind.parse_all(cells, "Output")
    again = [kind.format(value) for value in values]
    for before, after in zip(values, kind.parse_all(again, "Output"), strict=True):
        if isinstance(kind, Molecule):
            assert chem.smiles(before) == chem.smiles(after)
        else:
            assert np.allclose(before, after) if not isinstance(before, str) else before == after
    assert [kind.key(cell) for cell in cells] == [kind.key(cell) for cell in again]


@pytest.mark.parametrize(
    "kind",
    [
        *(kind.adapt(cells) for kind, cells in ADAPTED),
        Text(("t",)),
        Letters().adapt(["abc"]),
        SmilesLetters().adapt(["CCO"]),
        Image((), 32, "L"),
        Molecule(("m",), radius=1, chirality=False, counts=False),
    ],
    ids=lambda kind: kind.name,
)
def test_a_kind_is_written_as_an_expression(kind):
    assert parse_expression(write_expression(kind, columns), columns) == kind


@pytest.mark.parametrize(
    ("kind", "cell", "reason"),
    [
        (Vector(), "a", "'a' is not a number."),
        (Vector(), "1 nan", "'nan' is not a finite number."),
        (Vector(), "", "The cell is empty."),
        (Vector(), "0,15", "'0,15' is not a number. Write decimals with a point"),
        (Vector(), "1.234.567,8", "'1.234.567,8' is not a number. Write decimals with a point, and nothing between"),
        (Vector(), "1,3,5", "'1,3,5' is not a number."),
        (Vector(("a", "b")), "1;", "The cell in 'b' is empty."),
        (Vector(("a", "b")), ["x", 2], "'x' in 'a' is not a number."),
        (Vector((), (0.0, 0.0), (1.0, 1.0)), "1", "There must be 2 numbers. Got 1."),
        (Text(), "  ", "The cell is empty."),
        (Letters(), "größe", "The network reads ASCII characters only. Got 'ö' in 'größe'."),
        (Letters((), 3), "abcd", "The network reads at most 3 characters. Got 4."),
        (Labels((), ("red", "round")), "", "The cell is empty. Write {} if it has none of the labels."),
        (Labels((), ("red", "round")), "red;rond", "There is no label 'rond' in training. Did you mean 'round'?"),
        (Ranking((), ("a", "b")), "", "The cell is empty."),
        (Ranking((), ("a", "b")), "a", "A ranking has two items or more. Got 'a' alone."),
        (Ranking((), ("a", "b")), "a>a", "'a' is ranked twice."),
        (Ranking((), ("apple", "b")), "appel>b", "not one of the 2 items of training. Did you mean 'apple'?"),
        (Ranking((), ("a", "b", "c"), True), "a>c", "'b' is not ranked, and this kernel takes full rankings only."),
        (Ranking((), ("a", "b"), True), "a=b", "Items are tied, and this kernel takes full rankings only."),
        (String(), "", "The cell is empty."),
        (Molecule(), "C1CC", "Could not parse 'C1CC' as a molecule."),
        (Molecule(as_graph=True), "C1CC", "Could not parse 'C1CC' as a molecule."),
        (Molecule(as_graph=True), "[H][H]", "A molecule needs an atom other than hydrogen."),
        (Molecule(), "", "The cell is empty."),
        (SmilesLetters(), "C1CC", "Could not parse 'C1CC' as a molecule."),
        (Image(), "none.png", "There is no picture none.png."),
    ],
)
def test_bad_cells_have_a_reason(kind, cell, reason):
    assert reason in kind.read([cell]).bad[0]
    with pytest.raises(InputError, match="Input 0: "):
        kind.parse_all([cell], "Input")


@pytest.mark.parametrize("full", [False, True])
def test_items_are_those_of_rankings_that_can_be_read(full):
    """A cell that is no ranking takes the blame itself, and leaves none to the others."""
    cells = ["b>a>c", "n/a", "c>b>a", "", "d>d>a", "a>c>b"]
    kind = Ranking(full=full).adapt(cells)
    assert kind.items == ("a", "b", "c") and kind.read(cells).good == [0, 2, 5]


def test_a_misspelt_item_is_not_one_that_all_others_miss():
    cells = ["water>ethanol>hexane", "hexane>water>ethanol"] * 4 + ["water>etanol>hexane", "water>hexane", "a>b>c"]
    read = Ranking(full=True).adapt(cells).read(cells)
    assert read.good == list(range(8))
    among = "is not one of the 3 items of training."
    assert read.bad[8] == f"'etanol' {among} Did you mean 'ethanol'?"
    assert read.bad[9].startswith("'ethanol' is not ranked")
    assert read.bad[10] == f"'a' {among} Kemeny() takes rankings of any items."
    assert "etanol" in Ranking().adapt(cells).items  # where items may be missing


def test_rankings_of_a_few_out_of_many_are_not_full():
    cells = ["a>b", "b>c", "c>d", "d>a", "a>b"]  # no set of items is that of most
    read = Ranking(full=True).adapt(cells).read(cells)
    assert not read.good and "'c' is not ranked, and this kernel takes full rankings only" in read.bad[0]


class Counted(tuple):
    """Names that count how often they are iterated over."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize(
    ("kind", "field", "cell"), [(Labels(), "names", "a;c"), (Ranking(), "items", "c>a"), (Ranking(), "items", "b>a=c")]
)
def test_labels_are_looked_up_in_a_table_made_once(kind, field, cell):
    names = Counted("abc")
    known = replace(kind, **{field: names})
    assert len(known.read([cell] * 50).good) == 50 and names.passes == 1
    again = replace(known, **{field: ("c", "b", "a")})
    assert np.array_equal(again.parse([cell])[0], known.parse([cell])[0][::-1])
    assert known == replace(kind, **{field: ("a", "b", "c")}) and set(asdict(known)) == set(asdict(kind))


def test_rows_of_zeros_are_sparse_and_as_they_are():
    cells = [" ".join("7" if place in (at, 150) else "0" for place in range(200)) for at in range(5)]
    assert guess_input(["x"], cells, str) == "Vector(sparse=True)"
    assert guess_input(["x"], [cell[:100] for cell in cells], str) == "vector"  # 50 numbers
    assert guess_input(["x"], [cell.replace("0", "1") for cell in cells], str) == "vector"
    names = [f"x{place}" for place in range(200)]
    assert guess_input(names, [cell.replace(" ", ";") for cell in cells], str) == "Vector(sparse=True)"
    kind = Vector(("x",), sparse=True).adapt(cells)
    read = kind.read([*cells, "1 2", "0 " * 199 + "x"])
    assert sp.issparse(read.values) and read.values.format == "csr" and read.values.nnz == 10
    assert (read.values.toarray() == [[7 * (place in (at, 150)) for place in range(200)] for at in range(5)]).all()
    assert read.bad == {5: "There must be 200 numbers. Got 2.", 6: "'x' is not a number."}
    assert parse_expression(write_expression(kind, columns), columns) == kind


def test_spectra_are_binned_peaks_and_losses():
    cells = ["50.2:100 80.1:400", "60:1 61:2 62:3"]
    assert guess_input(["peaks"], cells, str) == "spectrum"
    assert guess_input(["peaks", "mz"], [f"{cell};130.1" for cell in cells], str) == "spectrum"
    assert guess_input(["time"], ["12:30", "9:15"], str) == "string"  # one of each: a time
    assert guess_input(["t"], ["a:1 b:2", "c:3 d:4"], str) == "text"
    peaks = [spectra.parse(cell, 130.1) for cell in cells]
    alone, both = Peaks(("p",), width=0.5), Peaks(("p", "mz"), width=0.5)
    assert (alone.read(cells).values != spectra.bins(peaks, 0.5, losses=False)).nnz == 0
    assert (both.read([f"{cell};130.1" for cell in cells]).values != spectra.bins(peaks, 0.5)).nnz == 0
    assert both.read([f"{cells[0]};", f"{cells[0]};x", ";130", cells[0]]).bad == {
        0: "The cell is empty.",
        1: "'x' is not a number.",
        2: "The cell is empty.",
        3: "The m/z of the precursor follows the peaks, after a semicolon: 50.2:100 80.1:400; 130.1.",
    }
    with pytest.raises(InputError, match="Peaks.width must be positive and finite. Got 0"):
        Peaks(width=0)
    assert parse_expression(write_expression(both, columns), columns) == both


@pytest.mark.parametrize("kind", [Molecule(), Molecule(counts=False), Molecule(as_graph=True), SmilesLetters()])
def test_a_bad_molecule_does_not_lose_the_good_ones(kind, monkeypatch):
    monkeypatch.setattr(kinds, "BLOCK", 2)
    read = kind.read(["CCO", "C1CC", "C", "", "c1ccccc1"])
    assert read.good == [0, 2, 4] and set(read.bad) == {1, 3}
    alone = kind.read(["CCO", "C", "c1ccccc1"]).values
    assert (alone != read.values).nnz == 0 if sp.issparse(alone) else read.values == alone
    assert kind.read(["C1CC"]).good == []


def test_fingerprints_are_counts_or_bits():
    counts, bits = (Molecule(counts=flag, radius=0).parse_all(["CCCO"], "Output") for flag in (True, False))
    assert counts.max() > 1 and bits.max() == 1 and counts.nnz == bits.nnz
    with pytest.raises(InputError, match="cannot be made from its fingerprint"):
        Molecule().format(counts)


def test_smiles_are_the_same_molecule_however_they_are_written():
    assert SmilesLetters().read(["OCC", "CCO"]).values == ["CCO", "CCO"]
    assert Molecule().key("OCC") == Molecule().key("CCO")
    assert Molecule(chirality=True).key("F/C=C/F") != Molecule(chirality=True).key("F/C=C\\F")
    assert Molecule(chirality=False).key("F/C=C/F") == Molecule(chirality=False).key("F/C=C\\F")


def test_vectors_are_scaled_and_given_back_in_their_units():
    cells = ["1 5", "3 5", "5 5"]  # the second column never changes
    kind = Vector().adapt([*cells, "bad", "1 2 3"])
    values = kind.read(cells).values
    assert np.allclose(values.mean(axis=0), 0) and np.allclose(values[:, 0].std(), 1)
    assert np.allclose(kind.unscale(values), [[1, 5], [3, 5], [5, 5]])
    assert np.array_equal(Vector().read(["[1, 2.5]"]).values, [[1, 2.5]])


def test_images(tmp_path):
    pictures = pytest.importorskip("PIL.Image")
    pictures.fromarray(np.full((10, 20), 255, np.uint8)).save(tmp_path / "grey.png")
    noise = np.random.default_rng(0).integers(256, size=(100, 100, 3), dtype=np.uint8)
    pictures.fromarray(noise).save(tmp_path / "colour.png")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    (tmp_path / "cut.png").write_bytes((tmp_path / "colour.png").read_bytes()[:5000])
    cells = Image().locate(["grey.png", "colour.png", "broken.png", "none.png", "", "cut.png"], tmp_path)
    grey, colours = Image(side=8).adapt(cells[:1]), Image(side=8).adapt(cells[:2])
    assert (grey.mode, colours.mode) == ("L", "RGB")
    assert grey.read(cells[:1]).values.shape == (1, 1, 8, 8) and grey.read(cells[:1]).values.max() == 1
    read = colours.read(cells)
    assert read.values.shape == (2, 3, 8, 8) and read.good == [0, 1]
    assert all("cannot be read" in read.bad[at] for at in (2, 5))
    assert "There is no picture" in read.bad[3] and "empty" in read.bad[4]
    with pytest.raises(InputError, match="Image.side must be an integer of at least 1"):
        Image(side=0)


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r'pip install "dsokr\[images\]"'):
        Image().read(["a.png"])


@pytest.mark.parametrize(
    ("guess", "columns", "cells", "expected"),
    [
        (guess_input, ["a", "b"], ["1;2"], "vector"),
        (guess_input, ["x"], ["1.5", "2e3", "-1"], "vector"),
        (guess_input, ["x"], ["1 2 3", "[4, 5, 6]"], "vector"),
        (guess_input, ["SMILES"], ["CCO", "bad"], "smiles"),
        (guess_input, ["molecule"], ["CCO", "c1ccccc1", "CC(=O)O"], "smiles"),
        (guess_input, ["picture"], ["a.PNG", "b.jpg"], "image"),
        (guess_input, ["t"], ["a primary alcohol", "an ester"], "text"),
        (guess_input, ["t"], ["größe", "maß"], "text"),
        (guess_input, ["word"], ["running", "walked"], "string"),
        (guess_input, ["version"], ["1.2.3", "1.10.0", "2.0.1"], "string"),
        (guess_input, ["cas"], ["64-17-5", "67-56-1", "7732-18-5"], "string"),
        (guess_input, ["code"], ["A17", "B9", "12"], "string"),
        (guess_input, ["note"], ["seen on 3 of 7 days", "12", "none"], "text"),
        (guess_output, ["a", "b"], ["1;2"], "vector"),
        (guess_output, ["y"], ["1", "2"], "vector"),
        (guess_output, ["y"], ["CCO", "c1ccccc1", "CC(=O)O"], "smiles"),
        (guess_output, ["y"], ["a>b>c", "b>a>c"], "ranking"),
        (guess_output, ["y"], ["a;b", "c"], "labels"),
        (guess_output, ["y"], ["yes", "no"] * 10, "labels"),
        (guess_output, ["y"], ["running", "walked", "größer"], "string"),
        (guess_output, ["y"], ["1;3;5", "2;4;6"], "vector"),
        (guess_output, ["y"], ["1;3;5", "2;4", "{}"], "labels"),
        (guess_output, ["y"], ["1;3;5", "2;4", "7", "1;x"], "labels"),
        (guess_output, ["y"], ["1>3>5", "3>1=5"], "ranking"),
        (guess_output, ["y"], ["1,3,5", "2,4,6", "2,4,7,9"], "string"),
        (guess_output, ["y"], ["36", "38", "S", "M", "L"] * 10, "labels"),
        (guess_output, ["y"], ["1", "2", "3", "4", "5", "6", "7", "8", "9", "< 1"], "vector"),
    ],
)
def test_guesses(guess, columns, cells, expected):
    assert guess(columns, cells, str) == expected


@pytest.mark.parametrize("guess", [guess_input, guess_output])
@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["", "0,15", "1,5e-3", "-2,25"], "1, column 'c', '0,15': '0,15' is not a number. Write decimals with a point"),
        (["2", "3", "4,5"], "2, column 'c', '4,5': '4,5' is not a number. Write decimals with a point"),
        (["1,234,567", "999", "12,000"], "0, column 'c', '1,234,567': '1,234,567' is not a number. Write decimals"),
        (["n/a", *["0,1 0,2", "0,3 0,4"] * 10], "1, column 'c', '0,1 0,2': '0,1' is not a number."),
        (["1.5", "", "< 0.1", "2.5"], "2, column 'c', '< 0.1': '<' is not a number."),
        (["1.5", "nan", "2.5"] * 200, "1, column 'c', 'nan': 'nan' is not a finite number."),
    ],
)
def test_numbers_are_not_taken_for_strings(guess, cells, message):
    option = "--input-kind" if guess is guess_input else "--output-kind"
    with pytest.raises(InputError, match=f"^{re.escape(message)}.*{option} (string|text|labels)"):
        guess(["c"], cells, str)


def test_nothing_can_be_guessed_from_empty_cells():
    with pytest.raises(InputError, match="All cells are empty"):
        guess_input(["a"], ["", " "], str)


KERNELS = {
    Vector: ["Linear", "Gaussian(auto)", "Gaussian(0.5)", "Laplacian(auto)", "Polynomial(2, 1.0)", "Cosine()"],
    Labels: ["Tanimoto()", "Linear()", "Gaussian(auto)"],
    Ranking: ["Kemeny()", "Hamming()", "Lehmer()", "0.5 * Kemeny()"],
    String: ["NGram((1, 2, 3))", "(NGram(1) + GappyNGram(2, 2, 0.5)).normalized()"],
    Molecule: [
        "Tanimoto()",
        "WeisfeilerLehman(3, edge_labels=True).normalized()",
        "(VertexHistogram() + ShortestPath()).normalized()",
        "NSPD(1, 3).normalized()",
    ],
}
EXAMPLES = {
    Vector: ["1 2", "3 4", "5 7"],
    Labels: ["a;b", "b", "c"],
    Ranking: ["a>b>c", "c>b>a", "b>a>c"],
    String: ["learn", "earn", "nest"],
    Molecule: ["CCO", "C", "c1ccccc1"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in KERNELS.items() for text in texts], ids=str)
def test_a_decoder_answers_for_every_kernel_of_a_kind(kind, text):
    cells = EXAMPLES[kind]
    output = kind().suit(predictor.parse_kernel(text)).adapt(cells)
    values = output.parse_all(cells, "Output")
    kernel = predictor.parse_kernel(text, values)
    ys = as_outputs(values)
    basis = sketch_basis(kernel, ys, sketches.Full(), generator=Generator())
    decoder = predictor.choose_decoder("auto", output, kernel, values).alternatives()[0]
    assert len(decoder.decode(basis, basis.embed(ys), EmbeddedOutputs(basis, values)).scores) == 3
    assert kind.kernel in KERNELS[kind] or f"{KERNELS[kind][0]}()" == kind.kernel


def test_decoders_by_name():
    molecule, wl = Molecule(as_graph=True), kernels.WeisfeilerLehman(2)
    ys = molecule.parse_all(["CCO", "CS(C)(=O)=O", "[Na+].[Cl-]"], "Output")
    search = predictor.choose_decoder("auto", molecule, wl, ys)
    assert isinstance(search, decoders.GraphSearch) and search.moves.max_atoms == 5
    assert dict(search.moves.valences) == {6: 4, 8: 2, 11: 1, 16: 6, 17: 1}
    large = molecule.parse_all(["C" * 30], "Output")
    assert isinstance(predictor.choose_decoder("auto", molecule, wl, large), decoders.Candidates)
    assert isinstance(predictor.choose_decoder("search", molecule, wl, large), decoders.GraphSearch)
    assert isinstance(predictor.choose_decoder("candidates", String(), kernels.NGram(2), ["a"]), decoders.Candidates)
    assert predictor.choose_decoder("GraphSearch(beam=4)", molecule, wl, ys) == decoders.GraphSearch(beam=4)
    with pytest.raises(InputError, match="There is no search of all outputs with the kernel Tanimoto"):
        predictor.choose_decoder("search", Molecule(), kernels.Tanimoto(), ys)
    with pytest.raises(InputError, match="--decoder takes auto, candidates, search or .* Did you mean 'search'"):
        predictor.choose_decoder("serach", Molecule(), kernels.Tanimoto(), ys)


def test_gamma_is_one_over_the_median_distance():
    assert predictor.parse_kernel("Gaussian(0.3)", np.zeros((3, 1))) == kernels.Gaussian(0.3)
    ys = np.array([[0.0], [2.0]])
    assert predictor.parse_kernel("2 * Gaussian(auto)", ys) == 2 * kernels.Gaussian(0.25)
    assert predictor.parse_kernel("Laplacian(auto)", ys) == kernels.Laplacian(0.5)
    assert predictor.parse_kernel("Gaussian(auto)", np.zeros((5, 1))) == kernels.Gaussian(1.0)  # no distance at all
    with pytest.raises(InputError, match="auto is for vectors and labels"):
        predictor.parse_kernel("Gaussian(auto)", ["a", "b"])
