"""Tables in every format, and what is said of those that cannot be read."""

import bz2
import gzip
import lzma
import sys

import pytest

from dsokr.commands import formats, tables
from dsokr.commands.tables import Problems, Table
from dsokr.errors import InputError, MissingExtraError

pyarrow = pytest.importorskip("pyarrow")

HEADER = ["text", "smiles", "weight"]
ROWS = [["an alcohol, say", "CCO", "46.07"], ['with "quotes"', "C", "16"], ["größer\nals 界", "c1ccccc1", "78.1"]]


def read(path, columns=None, problems=None):
    return Table(path).read(problems or Problems(), columns)


def reasons(problems):
    return [(problem.row, problem.reason) for problem in problems.by_row()]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".ndjson"])
@pytest.mark.parametrize("compression", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_what_is_written_is_read(tmp_path, ending, compression):
    path = tmp_path / f"table{ending}{compression}"
    tables.write_table(path, HEADER, ROWS)
    rows = read(path)
    assert list(zip(*rows.cells.values(), strict=True)) == list(map(tuple, ROWS))
    assert rows.numbers == ([1, 2, 3] if "json" in ending else [2, 3, 4])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_parquet(tmp_path):
    path = tmp_path / "table.parquet"
    tables.write_table(path, ["name", "number", "missing"], [["a", 1.5, None], ["b", 2.0, "x"]])
    rows = read(path)
    assert rows.cells == {"name": ["a", "b"], "number": ["1.5", "2.0"], "missing": ["", "x"]}
    assert rows.numbers == [1, 2]
    assert read(path, ["number"]).cells == {"number": ["1.5", "2.0"]}
    tables.write_table(path, ["name"], [])
    with pytest.raises(InputError, match="table.parquet has no rows"):
        read(path)


def write_workbook(path, sheets):
    book = pytest.importorskip("openpyxl").Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)


def test_a_workbook(tmp_path):
    path = tmp_path / "t.xlsx"
    write_workbook(path, {"one": [[], [" name ", "number", None], ["a", 1.5], [], ["größe", 2], [None, True, "note"]]})
    rows = read(path)
    assert rows.cells == {"name": ["a", "größe", ""], "number": ["1.5", "2", "True"]} and rows.numbers == [3, 5, 6]
    assert read(path, ["number"]).cells == {"number": ["1.5", "2", "True"]}
    write_workbook(path, {"first": [["a"], [1]], "second": [["b"], [2]]})
    with pytest.warns(UserWarning, match="t.xlsx: 'first', the first of 2 sheets, is read. Save another one to a file"):
        assert read(path).cells == {"a": ["1"]}
    write_workbook(path, {"empty": []})
    with pytest.raises(InputError, match="t.xlsx is empty. Its first row must name the columns"):
        read(path)


def test_without_openpyxl_the_extra_is_named(tmp_path, monkeypatch):
    write_workbook(tmp_path / "t.xlsx", {"one": [["a"], [1]]})
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match=r'needs openpyxl, .* pip install "dsokr\[tables\]"'):
        read(tmp_path / "t.xlsx")


def test_spectra_are_rows_with_their_fields(tmp_path):
    text = "BEGIN IONS\nPEPMASS=181.07 55\nSMILES=CCO\n50.1 10 1+\n60.2 20\nEND IONS\nBEGIN IONS\nCHARGE=1+\nEND IONS\n"
    with gzip.open(tmp_path / "t.mgf.gz", "wt") as file:
        file.write(text)
    rows = read(tmp_path / "t.mgf.gz")
    assert rows.numbers == [6, 9] and list(rows.cells) == [
        "pepmass",
        "smiles",
        "charge",
        "precursor_mz",
        "adduct",
        "peaks",
    ]
    assert rows.cells["precursor_mz"] == ["181.07", ""] and rows.cells["peaks"] == ["50.1:10 60.2:20", ""]
    assert read(tmp_path / "t.mgf.gz", ["smiles"]).cells == {"smiles": ["CCO", ""]}
    (tmp_path / "t.msp").write_text(
        "Name: a\nPrecursor_mz: 99.5\nPrecursor_type: [M+H]+\nNum peaks: 2\n50 1; 60 2\n\nName: b\nNum peaks: 0\n"
    )
    assert read(tmp_path / "t.msp").cells == {
        "name": ["a", "b"],
        "precursor_mz": ["99.5", ""],
        "precursor_type": ["[M+H]+", ""],
        "num peaks": ["2", "0"],
        "adduct": ["[M+H]+", ""],
        "peaks": ["50:1 60:2", ""],
    }
    (tmp_path / "t.msp").write_text("\n")
    with pytest.raises(InputError, match="t.msp has no spectra"):
        read(tmp_path / "t.msp")


def test_lists_in_json_and_parquet_become_cells(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"v": [1, 2.5], "tags": ["a", "b"], "on": true, "none": null}\n')
    cells = {name: cells[0] for name, cells in read(tmp_path / "t.jsonl").cells.items()}
    assert cells == {"v": "1 2.5", "tags": "a;b", "on": "True", "none": ""}
    tables.write_table(tmp_path / "t.parquet", ["v"], [[[1.0, 2.0]]])
    assert read(tmp_path / "t.parquet").cells == {"v": ["1.0 2.0"]}


@pytest.mark.parametrize(("open_with", "ending"), [(gzip.open, ".gz"), (bz2.open, ".bz2"), (lzma.open, ".xz")])
def test_smiles_lists(tmp_path, open_with, ending):
    path = tmp_path / f"library.smi{ending}"
    with open_with(path, "wt", encoding="utf-8") as file:
        file.write("# a comment\nSMILES name\nCCO\tethyl alcohol\nC\n\nc1ccccc1 benzene\n")
    rows = read(path)
    assert rows.cells == {"smiles": ["CCO", "C", "c1ccccc1"], "name": ["ethyl alcohol", "", "benzene"]}
    assert rows.numbers == [3, 4, 6]


def test_lines(tmp_path):
    (tmp_path / "words.txt").write_text("two words\n\nthree\n")
    assert read(tmp_path / "words.txt").cells == {"line": ["two words", "three"]}


@pytest.mark.parametrize(
    ("content", "cells", "numbers"),
    [
        (
            "\ufefftext;smiles\r\nan alcohol;CCO\r\n\r\nwater;O\r\n".encode(),
            [["an alcohol", "water"], ["CCO", "O"]],
            [2, 4],
        ),
        ("text,smiles\r\n界,O\r\n".encode("utf-16"), [["界"], ["O"]], [2]),
        (b'text,smiles\n"two\nlines",1\n3,4\n', [["two\nlines", "3"], ["1", "4"]], [2, 3]),
        (b"\n\r\n,,\ntext,smiles\n1,2\n", [["1"], ["2"]], [5]),
        (b"sep=;\r\ntext;smiles\r\n1,2;3\r\n", [["1,2"], ["3"]], [3]),
        (b'"sep=|"\n\ntext|smiles\n1;2,5|3,4;5\n', [["1;2,5"], ["3,4;5"]], [4]),
    ],
    ids=["semicolons", "utf-16", "line break in a cell", "blank lines above", "sep=;", "sep=| in quotes"],
)
def test_rows_are_numbered_as_a_spreadsheet_does(tmp_path, content, cells, numbers):
    (tmp_path / "t.csv").write_bytes(content)
    rows = read(tmp_path / "t.csv")
    assert rows.cells == dict(zip(["text", "smiles"], cells, strict=True)) and rows.numbers == numbers


def test_bad_rows_are_skipped_or_raised(tmp_path):
    path, problems = tmp_path / "t.csv", Problems()
    path.write_text('\na,b\n"two\nlines",1\n2\n3,4\n')
    assert read(path, problems=problems).numbers == [3, 5]
    sentence = problems.by_row()[0].sentence()
    assert "t.csv, row 4 (the header is row 2): It has 1 cell, the header has 2. Are double quotes" in sentence
    table = Table(path)
    problems.check(table, 3)
    problems.share = 0
    with pytest.raises(InputError, match="^[^:]*row 4 .*Correct it, or skip such rows with --on-error skip"):
        problems.check(table, 3)


def test_losing_many_rows_is_refused_with_the_commonest_reason(tmp_path):
    path, problems = tmp_path / "t.csv", Problems(share=0.1)
    path.write_text("a,b\n" + "1,2\n" * 17 + "1\n")
    read(path, problems=problems)
    table = Table(path)
    problems.check(table, 18)  # one of 18
    problems.add(table, 4, "b", "It is odd.")
    with pytest.raises(InputError, match=r"2 of the 18 rows of .*t.csv cannot be used, 1 of them for this reason: It"):
        problems.check(table, 18)
    problems.found.popitem()
    problems.add(table, 3, "", "It has 1 cell, the header has 2. Are double quotes missing around a cell?")
    said = r"2 of the 18 rows of .*t.csv cannot be used\. The first: .*t.csv, row 3 .* Correct them, or skip such rows"
    with pytest.raises(InputError, match=said):
        problems.check(table, 18)
    problems.check(table, 20)  # a tenth
    problems.check(Table(path.rename(tmp_path / "other.csv")), 2)  # rows of another file


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", 'a,b\n1,2\n"3,4\n', r"row 3 of .* is never closed\.$"),
        ("t.csv", 'a,b\n1,2\n3,"4', r"row 3 of .* is never closed\.$"),
        ("t.tsv", 'a\tb\n1\t2\n"3\t4\n5\t6\n7\t8\n', "row 3 of .* swallows the rest of the file, 2 lines"),
        ("t.csv.gz", 'a;b\n1;2\n"3;4\n5;6\n', "row 3 of .* swallows the rest of the file, 1 line"),
        ("t.csv", '"a,b\n1,2\n', "row 1 of .* swallows the rest of the file, 1 line"),
        ("t.csv", 'a,b\n"two\nlines",1\n"3,4\n5,6\n', "row 3 of .* swallows the rest of the file, 1 line"),
        ("t.csv", '\n\na,b\n"1,2\n3,4', "row 4 of .* swallows the rest of the file, 1 line"),
        ("t.csv", f"a,b\n1,2\n{'x' * (formats.LONGEST_CELL + 1)},3\n", "row 3 of .* is longer than 10,000,000 char"),
    ],
    ids=lambda value: value[:20],
)
def test_a_quote_that_is_never_closed_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


def test_a_quote_that_is_closed_by_another_one(tmp_path):
    path, problems = tmp_path / "t.csv", Problems()
    path.write_text('a,b\n"1,2\n3,4\n"5",6\n"7","8\n9"\n10,"11\n12"\n13,"14,15\n16,"17",18\n')
    assert read(path, problems=problems).cells == {"a": ["7", "10"], "b": ["8\n9", "11\n12"]}
    assert reasons(problems) == [
        (2, "A cell spans 3 lines and goes on after its closing double quote. Is a double quote missing?"),
        (5, "A cell spans 2 lines and goes on after its closing double quote. Is a double quote missing?"),
    ]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("text\tsmiles\nan ester, say\tCO\n", ["text", "smiles"]),
        ("text, in words\tsmiles\nan ester\tCO\n", ["text, in words", "smiles"]),
        ("Temp, °C;press;y\n1.5;2;3\n4;5;6\n", ["Temp, °C", "press", "y"]),
        ("Temp, °C;press, bar\n1,5;2,5\n", ["Temp, °C", "press, bar"]),
        ('text;labels (a, b, c)\n"one; two";a\n', ["text", "labels (a, b, c)"]),
        ("text,labels (a;b;c)\nan ester,a\na,b,c\nan acid,b;c\n", ["text", "labels (a;b;c)"]),
        ('"Temp\n(°C)";y\n1;2\n', ["Temp\n(°C)", "y"]),
        ('"a;b",c\n1,2\n', ["a;b", "c"]),
        ("tags\na;b\nc;d\n", ["tags"]),
        ("a,b;c,d\n", ["a", "b;c", "d"]),
        ("a;b,c;d\n1\n", ["a", "b,c", "d"]),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_separates_the_cells_of_a_csv_file(tmp_path, text, columns, encoding):
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    assert Table(tmp_path / "t.csv").columns == columns


def test_a_library_is_read_in_blocks(tmp_path):
    path = tmp_path / "t.csv"
    tables.write_table(path, ["n"], ([i] for i in range(10)))
    blocks = list(Table(path).blocks(Problems(), rows=4))
    assert [len(block.numbers) for block in blocks] == [4, 4, 2]
    assert [cell for block in blocks for cell in block.cells["n"]] == [str(i) for i in range(10)]


@pytest.mark.parametrize(
    ("name", "content", "column", "row"),
    [
        ("t.csv", b"smiles,b\nCC,1\nC\xe9,2\nCCC,3\n", "smiles", 3),
        ("t.jsonl", b'{"smiles": "CC"}\n{"smiles": "C\xe9"}\n{"smiles": "CCC"}\n', "smiles", 2),
        ("t.smi", b"CC\nC\xe9\nCCC\n", "smiles", 2),
        ("t.txt", b"CC\nC\xe9\nCCC\n", "line", 2),
    ],
)
def test_a_row_that_is_not_text_does_not_lose_the_others(tmp_path, name, content, column, row):
    (tmp_path / name).write_bytes(content)
    problems = Problems()
    assert read(tmp_path / name, [column], problems).cells[column] == ["CC", "CCC"]
    assert reasons(problems) == [(row, formats.NOT_TEXT)]


def test_bad_lines_of_json(tmp_path):
    path, problems = tmp_path / "t.jsonl", Problems()
    path.write_text('{"a": 1}\n{"a": \n[1]\n{"b": 2}\n{"a": 5}\n')
    rows = read(path, ["a"], problems)
    assert rows.cells == {"a": ["1", "", "5"]} and rows.numbers == [1, 4, 5]
    assert [row for row, _ in reasons(problems)] == [2, 3]
    assert reasons(problems)[0][1].startswith("It is not JSON: ")
    assert reasons(problems)[1][1] == "It is not a JSON object in braces."


def test_long_cells_and_empty_ones(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f'a\n{"x" * 200_000}\n\n""\nlast\n')  # "" is a cell, a blank line is none
    assert [len(cell) for cell in read(path).cells["a"]] == [200_000, 0, 4]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "t.csv is empty. Its first row must name the columns"),
        ("t.csv", b"\n,,\n", "t.csv is empty. Its first row must name the columns"),
        ("t.csv", b'"a\n\xe9",b\n1,2\n', "t.csv, row 1: It has bytes that are not UTF-8"),
        ("t.csv", b'"a\nb,c\n"d",e\n', "t.csv, row 1: .* Is a double quote missing"),
        ("t.csv", b"text,smiles\n", "t.csv has no rows"),
        ("t.csv", b"a,b\n1\n2\n", "t.csv has 2 rows, none of which can be used. The first: .*row 2"),
        ("t.jsonl", b"\n", "has no line with a JSON object"),
        ("t.jsonl", b"[1]\n", "has no line with a JSON object"),
        ("t.smi", b"# nothing\n", "t.smi has no rows"),
        ("t.txt", b"\n", "t.txt has no rows"),
        ("t.xlsx", b"PK", "t.xlsx cannot be read as a workbook: "),
        ("t.xlsx.gz", b"", "cannot read .xlsx.gz. .* all but .parquet and .xlsx may have .gz"),
        ("t.ods", b"PK", "cannot read .ods. Choose one of .csv, .tsv"),
        ("t.csv", b"sep=;\n", "t.csv is empty. Its first row must name the columns"),
        ("table", b"a", "cannot read a file without an ending"),
        ("t.csv.gz", b"not gzip", "t.csv.gz cannot be read"),
        ("t.csv.gz", gzip.compress(b"a\n" + b"line\n" * 10_000, mtime=0)[:40], "t.csv.gz cannot be read"),
        ("t.csv.xz", b"not xz", "t.csv.xz cannot be read"),
        ("t.csv.bz2", b"not bz2", "t.csv.bz2 cannot be read"),
        ("t.csv.zst", b"not zst", "t.csv.zst cannot be read"),
        ("t.parquet", b"not parquet", "cannot be read as Parquet"),
        ("t.parquet.gz", b"", "cannot read .parquet.gz"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


def test_a_missing_file_and_a_missing_column_name_what_is_similar(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("text,smiles,smiles2,smiles2\na,b,c,d\n")
    with pytest.raises(InputError, match="There is no file .*pair.csv. Did you mean 'pairs.csv'"):
        read(tmp_path / "pair.csv")
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(InputError, match=r"no column 'Smile'\. Did you mean 'smiles'\? Its columns: text, smiles"):
        read(path, ["Smile"])
    with pytest.raises(InputError, match="has 2 columns named 'smiles2'. Rename all but one"):
        read(path, ["smiles2"])


def test_columns_by_name_list_and_pattern(tmp_path):
    (tmp_path / "t.csv").write_text('"a, b",y1,y2,x[1]\n1,2,3,4\n')
    table = Table(tmp_path / "t.csv")
    assert table.find_columns(["a, b"]) == ["a, b"]
    assert table.find_columns(["y2, y1", "x[1]"]) == ["y2", "y1", "x[1]"]
    assert table.find_columns(["y*", "y1"]) == ["y1", "y2"]
    for wanted in ("q*", ""):
        with pytest.raises(InputError, match=f"has no column {wanted!r}".replace("*", r"\*")):
            table.find_columns([wanted])


def test_where_a_table_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "input.csv").write_text("")
    (tmp_path / "link.csv").symlink_to(tmp_path / "input.csv")
    for name, message in [
        ("out.xlsx", "cannot write .xlsx"),
        ("out.smi", "cannot write .smi"),
        ("out.parquet.gz", "cannot write .parquet.gz"),
        ("folder.csv", "is a folder"),
        ("file/out.csv", "out.csv cannot be written: .*file is not a folder"),
        ("link.csv", "--out .*link.csv would overwrite an input"),
    ]:
        with pytest.raises(InputError, match=message):
            tables.check_writable(tmp_path / name, None, tmp_path / "input.csv")
    tables.check_writable(tmp_path / "new" / "folder" / "out.csv")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="out.csv cannot be written: the folder .* is read-only"):
        tables.check_writable(tmp_path / "new" / "out.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl.gz", "t.parquet"])
def test_an_error_while_writing_leaves_what_was_there(tmp_path, name):
    tables.write_table(tmp_path / name, ["a"], [["old"]])

    def rows():
        yield ["new"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tables.write_table(tmp_path / name, ["a"], rows())
    assert read(tmp_path / name).cells == {"a": ["old"]}
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    tables.write_table(tmp_path / "t.parquet", ["a"], [["b"]])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for wanted in (lambda: read(tmp_path / "t.parquet"), lambda: tables.check_writable(tmp_path / "out.csv.zst")):
        with pytest.raises(MissingExtraError, match=r'needs pyarrow, .* pip install "dsokr\[tables\]"'):
            wanted()


def test_skipped_rows_are_listed(tmp_path):
    (tmp_path / "p.csv").write_text("a,b\n" + "1\n" * 12 + "1,2\n")
    problems, out = Problems(), tmp_path / "ranked.skipped.csv"
    read(tmp_path / "p.csv", problems=problems)
    tables.write_skipped(problems, out)
    rows = read(out)
    assert rows.cells["row"] == [str(row) for row in range(2, 14)] and "It has 1 cell" in rows.cells["reason"][0]
    assert problems.lines()[0] == "12 rows were skipped:" and problems.lines()[-1] == "  ... and 2 more"
    tables.write_skipped(problems, out)  # replaces an older list
    tables.write_skipped(Problems(), out)
    assert not out.exists() and Problems().lines() == []
    out.write_text("somebody's own\n")
    tables.write_skipped(Problems(), out)
    with pytest.warns(UserWarning, match="ranked.skipped.csv exists and is not a list of skipped rows"):
        tables.write_skipped(problems, out)
    assert out.read_text() == "somebody's own\n"
