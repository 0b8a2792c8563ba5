"""Tables in every form, and what is said of those that cannot be read."""

import bz2
import csv
import gzip
import lzma
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsokr.errors import InputError, MissingExtraError
from dsokr.commands import tables
from dsokr.commands.problems import Problems

pyarrow = pytest.importorskip("pyarrow")

HEADER = ["text", "smiles", "weight"]
ROWS = [["an alcohol, say", "CCO", "46.07"], ['with "quotes"', "C", "16"], ["größer\nals 界", "c1ccccc1", "78.1"]]


def read(path, columns=None, problems=None):
    return tables.table(path).read(problems or Problems(), columns)


@pytest.mark.parametrize("form", [".csv", ".tsv", ".jsonl", ".ndjson"])
@pytest.mark.parametrize("compression", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_what_is_written_is_read(tmp_path, form, compression):
    path = tmp_path / f"table{form}{compression}"
    tables.write(path, HEADER, ROWS)
    found = read(path)
    assert list(zip(*found.cells.values(), strict=True)) == list(map(tuple, ROWS))
    assert found.numbers == ([1, 2, 3] if "json" in form or "ndjson" in form else [2, 3, 4])
    assert not list(tmp_path.glob(".part*"))


def test_parquet(tmp_path):
    path = tmp_path / "table.parquet"
    tables.write(path, ["name", "number", "missing"], [["a", 1.5, None], ["b", 2.0, "x"]])
    found = read(path)
    assert found.cells == {"name": ["a", "b"], "number": ["1.5", "2.0"], "missing": ["", "x"]}
    assert found.numbers == [1, 2]
    tables.write(path, ["name"], [])
    with pytest.raises(InputError, match="table.parquet has no rows"):
        read(path)


def test_lists_in_json_and_parquet_become_cells(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"v": [1, 2.5], "tags": ["a", "b"], "on": true, "none": null}\n')
    assert {name: cells[0] for name, cells in read(tmp_path / "t.jsonl").cells.items()} == {
        "v": "1 2.5",
        "tags": "a;b",
        "on": "True",
        "none": "",
    }
    tables.write(tmp_path / "t.parquet", ["v"], [[[1.0, 2.0]]])
    assert read(tmp_path / "t.parquet").cells == {"v": ["1.0 2.0"]}


@pytest.mark.parametrize(("open_with", "ending"), [(gzip.open, ".gz"), (bz2.open, ".bz2"), (lzma.open, ".xz")])
def test_smiles_lists(tmp_path, open_with, ending):
    path = tmp_path / f"library.smi{ending}"
    with open_with(path, "wt", encoding="utf-8") as file:
        file.write("# a comment\nSMILES name\nCCO\tethyl alcohol\nC\n\nc1ccccc1 benzene\n")
    found = read(path)
    assert found.cells == {"smiles": ["CCO", "C", "c1ccccc1"], "name": ["ethyl alcohol", "", "benzene"]}
    assert found.numbers == [3, 4, 6]


def test_lines(tmp_path):
    (tmp_path / "words.txt").write_text("two words\n\nthree\n")
    assert read(tmp_path / "words.txt").cells == {"line": ["two words", "three"]}


def test_as_spreadsheets_write_them(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufefftext;smiles\r\nan alcohol;CCO\r\n\r\nwater;O\r\n".encode())
    found = read(path)
    assert found.cells == {"text": ["an alcohol", "water"], "smiles": ["CCO", "O"]}
    assert found.numbers == [2, 4]  # the empty row counts, as it does on the screen
    path.write_bytes("text,smiles\r\n界,O\r\n".encode("utf-16"))
    assert read(path).cells == {"text": ["界"], "smiles": ["O"]}


def test_rows_are_counted_as_a_spreadsheet_does(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,b\n"two\nlines",1\n2\n3,4\n')
    problems = Problems()
    assert read(path, problems=problems).numbers == [2, 4]
    assert problems.found[0].row == 3
    assert "t.csv, row 3 (the header is row 1): It has 1 cell, the header has 2" in problems.found[0].sentence()
    problems.settle()
    problems.on_error = "fail"
    with pytest.raises(InputError, match="row 3 .*--on-error skip"):
        problems.settle()


OPEN = [("an alcohol", "CO"), ('"an acid', "CCO"), *((f"a molecule, {i}", "C") for i in range(5))]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_a_quote_that_is_never_closed_is_refused(tmp_path, name, on_error):
    separator = "\t" if name == "t.tsv" else ";"
    text = "".join(f"{separator.join(row)}\n" for row in [("text", "smiles"), *OPEN])
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    said = f"A double quote in row 3 of .*{name} is never closed: the rest of the file, 5 lines, is inside of it."
    with pytest.raises(InputError, match=said):
        read(tmp_path / name, problems=Problems.of(on_error))
    blocks = tables.table(tmp_path / name).blocks(Problems(), rows=1)
    assert next(blocks).cells["smiles"] == ["CO"]
    with pytest.raises(InputError, match=said):
        next(blocks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a,b\n1,2\n"3,4\n', r"row 3 of .* is never closed\.$"),
        ('a,b\n1,2\n3,"4', r"row 3 of .* is never closed\.$"),
        ('"a,b\n1,2\n', "row 1 of .* the rest of the file, 1 line, is"),
        ('a,b\n"two\nlines",1\n"3,4\n5,6\n', "row 3 of .* the rest of the file, 1 line, is"),
        ('\n\na,b\n"1,2\n3,4', "row 4 of .* the rest of the file, 1 line, is"),
    ],
)
def test_where_a_quote_is_never_closed(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "t.csv")


def test_a_quote_that_is_not_closed_in_a_long_file(tmp_path):
    line = "x" * 99_999 + "\n"
    (tmp_path / "t.csv").write_text(f'a,b\n1,2\n"3,4\n{(tables.LONGEST_CELL // 100_000 + 5) * line}')
    with pytest.raises(InputError, match="row 3 of .* is not closed within 10,000,000 letters: 10. lines after it are"):
        read(tmp_path / "t.csv")


def test_a_quote_that_is_closed_by_another_one(tmp_path):
    path, problems = tmp_path / "t.csv", Problems()
    path.write_text('a,b\n"1,2\n3,4\n"5",6\n"7","8\n9"\n10,"11\n12"\n13,"14,15\n16,"17",18\n')
    assert read(path, problems=problems).cells == {"a": ["7", "10"], "b": ["8\n9", "11\n12"]}
    assert [(problem.row, problem.reason) for problem in problems.found] == [
        (2, "A cell goes on over 3 lines, and after its closing quote: is a double quote missing?"),
        (5, "It has 3 cells, the header has 2. A cell goes on over 2 lines: is a double quote missing?"),
    ]


@pytest.mark.parametrize("blank", ["\n", "\r\n\r\n", " \n,,\n;;\n"])
def test_blank_lines_above_the_header(tmp_path, blank):
    path, problems = tmp_path / "t.csv", Problems()
    path.write_bytes(f"{blank}a,b\n1,2\n3\n".encode())
    above = blank.count("\n")
    found = read(path, problems=problems)
    assert found.cells == {"a": ["1"], "b": ["2"]} and found.numbers == [above + 2]
    said = f"t.csv, row {above + 3} (the header is row {above + 1}): It has 1 cell, the header has 2."
    assert said in problems.found[0].sentence()


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
    assert tables.table(tmp_path / "t.csv").columns() == columns


def test_a_library_is_read_in_blocks(tmp_path):
    path = tmp_path / "t.csv"
    tables.write(path, ["n"], ([i] for i in range(10)))
    blocks = list(tables.table(path).blocks(Problems(), rows=4))
    assert [len(block) for block in blocks] == [4, 4, 2]
    assert [cell for block in blocks for cell in block.cells["n"]] == [str(i) for i in range(10)]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.smi", "t.txt"])
def test_a_row_that_is_not_text_does_not_lose_the_others(tmp_path, name):
    path = tmp_path / name
    lines = {
        "t.csv": b"smiles,b\nCC,1\nC\xe9,2\nCCC,3\n",
        "t.jsonl": b'{"smiles": "CC"}\n{"smiles": "C\xe9"}\n{"smiles": "CCC"}\n',
    }
    path.write_bytes(lines.get(name, b"CC\nC\xe9\nCCC\n"))
    problems = Problems()
    column = "line" if name == "t.txt" else "smiles"
    assert read(path, [column], problems).cells[column] == ["CC", "CCC"]
    assert problems.found[0].row == (3 if name == "t.csv" else 2)
    assert "not UTF-8" in problems.found[0].reason


def test_bad_lines_of_json(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n{"a": \n[1]\n{"b": 2}\n{"a": 5}\n')
    problems = Problems()
    found = read(path, ["a"], problems)
    assert found.cells == {"a": ["1", "5"]} and found.numbers == [1, 5]
    reasons = [problem.reason for problem in problems.found]
    assert "not JSON" in reasons[0] and "Got list" in reasons[1] and "does not have it" in reasons[2]


def test_long_cells_are_read_and_a_quote_that_is_never_closed_is_missed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "x" * 200_000 + "\nlast\n")
    assert [len(cell) for cell in read(path).cells["a"]] == [200_000, 4]
    path.write_text("a\n" + "x" * (tables.LONGEST_CELL + 1) + "\nlast\n")
    problems = Problems()
    assert read(path, problems=problems).cells == {"a": ["last"]}
    assert "Is a double quote missing" in problems.found[0].reason and problems.found[0].row == 2


@pytest.fixture
def limit():
    """A limit of somebody else's, for cells of all CSV files that this process reads."""
    before = csv.field_size_limit(1000)
    yield 1000
    csv.field_size_limit(before)


def test_the_limit_for_cells_of_others_stays(tmp_path, limit):
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "x" * 2000 + "\n" + "y" * (tables.LONGEST_CELL + 1) + "\n" + "z" * 2000 + "\n")
    problems = Problems()
    blocks = tables.table(path).blocks(problems, rows=1)
    assert next(blocks).cells == {"a": ["x" * 2000]} and csv.field_size_limit() == limit
    assert next(blocks).cells == {"a": ["z" * 2000]} and csv.field_size_limit() == limit
    assert len(problems.found) == 1
    assert next(blocks, None) is None and csv.field_size_limit() == limit
    early = tables.table(path).blocks(problems, rows=1)
    next(early)
    early.close()
    assert csv.field_size_limit() == limit
    with pytest.raises(csv.Error, match="larger than field limit"):
        list(csv.reader(["x" * 2000]))


def test_long_cells_are_read_by_many_threads(tmp_path, limit):
    path = tmp_path / "t.csv"
    path.write_text("a\n" + 200 * f"{'x' * 2000}\n")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: len(read(path)), range(16)))
    finally:
        sys.setswitchinterval(before)
    assert found == [200] * 16 and csv.field_size_limit() == limit


def test_a_table_of_bad_rows_only(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1\n2\n")
    with pytest.raises(InputError, match="None of the 2 rows of .*t.csv can be used. The first: .*row 2"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "t.csv is empty. Its first row must name the columns"),
        ("t.csv", b"\n,,\n", "t.csv is empty. Its first row must name the columns"),
        ("t.csv", b'"a\n\xe9",b\n1,2\n', "t.csv, row 1: It has bytes that are not UTF-8"),
        ("t.csv", b'"a\nb,c\n"d",e\n', "t.csv, row 1: .* is a double quote missing"),
        ("t.jsonl", b"\n", "t.jsonl is empty"),
        ("t.jsonl", b"[1]\n", "has no line with a JSON object"),
        ("t.smi", b"# nothing\n", "t.smi is empty"),
        ("t.txt", b"\n", "t.txt is empty"),
        ("t.csv", b"text,smiles\n", "t.csv has no rows"),
        ("t.csv", b"smi\xe9,a\n", "row 1: It has bytes that are not UTF-8"),
        ("t.xlsx", b"PK", "cannot read .xlsx. Save it as one of .csv, .tsv"),
        ("table", b"a", "cannot read a file without an ending"),
        ("t.csv.gz", b"not gzip", "t.csv.gz cannot be read"),
        ("t.csv.xz", b"not xz", "t.csv.xz cannot be read"),
        ("t.csv.bz2", b"not bz2", "t.csv.bz2 cannot be read"),
        ("t.csv.zst", b"not zst", "t.csv.zst cannot be read"),
        ("t.parquet", b"not parquet", "cannot be read as Parquet"),
        ("t.parquet.gz", b"", "a Parquet file is compressed inside"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


def test_a_cut_off_file_is_said(tmp_path):
    whole = gzip.compress(b"a\n" + b"line\n" * 10_000)
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="t.csv.gz cannot be read"):
        read(tmp_path / "t.csv.gz")


def test_a_missing_file_and_a_missing_column_name_what_is_near(tmp_path):
    (tmp_path / "pairs.csv").write_text("text,smiles,smiles2,smiles2\na,b,c,d\n")
    with pytest.raises(InputError, match="There is no file .*pair.csv. Did you mean 'pairs.csv'"):
        read(tmp_path / "pair.csv")
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(InputError, match=r"no column 'Smile'\. Did you mean 'smiles'\? Its columns: text, smiles"):
        read(tmp_path / "pairs.csv", ["Smile"])
    with pytest.raises(InputError, match="has 2 columns named 'smiles2'. Rename all but one"):
        read(tmp_path / "pairs.csv", ["smiles2"])


def test_where_a_table_cannot_be_written(tmp_path, monkeypatch):
    for name, message in [
        ("out.xlsx", "cannot write .xlsx"),
        ("out.smi", "cannot write .smi"),
        ("out.parquet.gz", "compressed inside"),
    ]:
        with pytest.raises(InputError, match=message):
            tables.check_writable(tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        tables.check_writable(tmp_path / "folder.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="out.csv cannot be written: .*file is not a folder"):
        tables.check_writable(tmp_path / "file" / "out.csv")
    tables.check_writable(tmp_path / "new" / "folder" / "out.csv")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="out.csv cannot be written: nothing may be written to the folder"):
        tables.check_writable(tmp_path / "new" / "out.csv")


def test_an_error_while_writing_leaves_what_was_there(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a\nold\n")

    def rows():
        yield ["new"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tables.write(path, ["a"], rows())
    assert path.read_text() == "a\nold\n"
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_an_error_while_writing_parquet_closes_the_file(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    made = []

    class Watched(parquet.ParquetWriter):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    def rows(n):
        yield from ([i] for i in range(n))
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet, "ParquetWriter", Watched)
    monkeypatch.setattr(tables, "PARQUET_BLOCK", 3)
    tables.write(tmp_path / "t.parquet", ["a"], [["old"]])
    with pytest.raises(KeyboardInterrupt):
        tables.write(tmp_path / "t.parquet", ["a"], rows(7))
    assert len(made) == 2 and not any(writer.is_open for writer in made)
    assert read(tmp_path / "t.parquet").cells == {"a": ["old"]}
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("rows", [2, 3, 4, 7])
def test_parquet_in_several_blocks(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(tables, "PARQUET_BLOCK", 3)
    tables.write(tmp_path / "t.parquet", ["a"], ([i] for i in range(rows)))
    assert read(tmp_path / "t.parquet").cells == {"a": [str(i) for i in range(rows)]}


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    tables.write(tmp_path / "t.parquet", ["a"], [["b"]])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for wanted in (lambda: read(tmp_path / "t.parquet"), lambda: tables.check_writable(tmp_path / "out.csv.zst")):
        with pytest.raises(MissingExtraError, match=r'needs pyarrow, .* pip install "dsokr\[tables\]"'):
            wanted()


def test_skipped_rows_are_listed_beside_the_output(tmp_path):
    problems = Problems()
    for row in range(12):
        problems.add(tmp_path / "p.csv", row, f"row {row}", "a", "The cell is empty.")
    out = tables.skipped_beside(tmp_path / "ranked.csv.gz")
    assert out == tmp_path / "ranked.skipped.csv"
    tables.write_skipped(problems, out)
    found = read(out)
    assert len(found) == 12 and found.cells["reason"][0] == "The cell is empty."
    assert problems.lines()[0] == "12 rows were skipped:" and problems.lines()[-1] == "  ... and 2 more"
    tables.write_skipped(problems, out)  # an older list gives way
    tables.write_skipped(Problems(), out)
    assert not out.exists()
    out.write_text("somebody's own\n")
    tables.write_skipped(Problems(), out)
    with pytest.warns(UserWarning, match="ranked.skipped.csv is not a list of skipped rows and stays"):
        tables.write_skipped(problems, out)
    assert out.read_text() == "somebody's own\n"


def test_an_empty_cell_in_quotes_is_no_blank_line(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text('text\nan ester\n\n""\nan acid\n')
    rows = list(tables.table(path).records(["text"], Problems.of("skip")))
    assert [cells for _, cells in rows] == [["an ester"], [""], ["an acid"]]
