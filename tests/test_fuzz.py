"""Whatever is read, and whatever is decoded: an answer, or one sentence, never another exception.

Every case of the table is tried with few examples here, and with many in the slow tests (``FUZZ_EXAMPLES`` of each).
What was found is kept as an example that is always tried.
"""

import gzip
import json
import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, example, given, settings  # noqa: E402 # after what may be missing
from hypothesis import strategies as st  # noqa: E402

from dsokr import DSOKR, chem, kernels, networks, regressors, sketches, spectra  # noqa: E402
from dsokr import decoders as decoding  # noqa: E402
from dsokr.commands import columns  # noqa: E402
from dsokr.commands.formats import OPENERS, READERS  # noqa: E402
from dsokr.commands.tables import Problems, Table  # noqa: E402
from dsokr.errors import DSOKRError  # noqa: E402
from dsokr.files import sum_file, write_json  # noqa: E402
from dsokr.index import CandidateIndex, Condition  # noqa: E402
from dsokr.index.shard_search import search_shards  # noqa: E402
from dsokr.index.shards import HEAD, Folder, Shard, Shards  # noqa: E402
from dsokr.regressors import KernelRidge  # noqa: E402
from dsokr.saving import parse_expression  # noqa: E402
from dsokr.serve import Limits, operations  # noqa: E402
from implementations import DECODERS  # noqa: E402
from serving import DIM, Client, HandMade  # noqa: E402
from test_damage import Z, build_index  # noqa: E402

MANY = int(os.environ.get("FUZZ_EXAMPLES", "2000"))
CASES = {}


def fuzz(strategy, *examples, few=12):
    """Add a function of one value to the cases."""

    def add(check):
        CASES[check.__name__] = check, strategy, examples, few
        return check

    return add


def run(name, many):
    check, strategy, examples, few = CASES[name]
    count = 0

    def counted(value):
        nonlocal count
        count += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                check(value)
            except DSOKRError as error:
                said = str(error)
                assert said and "\n" not in said and "Traceback" not in said, said

    wrapped = given(strategy)(counted)
    for value in examples:
        wrapped = example(value)(wrapped)
    quiet = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    settings(max_examples=MANY if many else few, derandomize=not many, **quiet)(wrapped)()
    return count


@cache
def folder():
    """A folder that lives as long as the tests."""
    made = tempfile.TemporaryDirectory()
    return Path(made.name), made


def write(name, content):
    path = folder()[0] / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    return path


NUMBERS = ["0", "-1", "1e999", "nan", "inf", "1.5", "1,5", "1e-320", "9" * 400, "0x10", "١", "1_0", ""]
PIECES = [
    "\n",
    "\r\n",
    "\r",
    ",",
    ";",
    "\t",
    '"',
    '""',
    " ",
    "sep=",
    "\0",
    "\ufeff",
    "é",
    "\ud800",
    "\u2028",
    "\x1c",
    "x",
    "#",
]
JSONS = ["{", "}", "[", "]", ":", '"a"', '"b"', "null", "true", "NaN", "\\u0000", '"\\ud800"', "{" * 2000, "[" * 2000]
PEAKS = [
    "BEGIN IONS\n",
    "END IONS\n",
    "PEPMASS=",
    "SMILES=CCO\n",
    "Name: x\n",
    "Num Peaks: ",
    "PrecursorMZ: ",
    "100 1\n",
]
PEAKS += ["=", ": ", "BEGIN IONS\nPEPMASS=10 5\n10 1\n20 2\nEND IONS\n"]
ATOMS = [
    *"CNOFSPIBcnos[]()=#-+.:/\\%@123456789H*$>{}",
    "Cl",
    "Br",
    "%10",
    "[13C@@H2+]",
    "[Fe+2]",
    "->",
    "[" * 50,
    "C" * 300,
]


def texts(pieces):
    return st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=25).map("".join)


ANY = st.binary(max_size=60)
PLAIN = ["a.csv", "a.tsv", "a.tab", "a.jsonl", "a.ndjson", "a.smi", "a.smiles", "a.txt", "a.mgf", "a.msp"]
PACKED = ["a.csv.gz", "a.csv.zst", "a.csv.bz2", "a.csv.xz", "a.parquet", "a.xlsx", "a.msp.gz"]


@fuzz(
    st.tuples(
        st.sampled_from(PLAIN),
        texts([*PIECES, *NUMBERS, "a,b\n1,2\n"]) | texts([*JSONS, *PIECES, *NUMBERS]) | texts([*PEAKS, *NUMBERS]) | ANY,
    ),
    ("a.jsonl", '{"a": ' + "[" * 2000),  # deeper than Python recurses
    ("a.jsonl", '{"a": ' + "[" * 700 + "]" * 700 + "}"),
    ("a.csv", ",\x1c\n"),  # blank for str.strip alone
    few=60,
)
def tables(case):
    name, content = case
    problems = Problems(1.0)
    table = Table(write(name, content))
    rows = table.read(problems)
    assert rows.numbers and all(len(column) == len(rows.numbers) for column in rows.cells.values())
    problems.lines()


@fuzz(st.tuples(st.sampled_from(PACKED), ANY))
def packed_tables(case):
    Table(write(*case)).read(Problems(1.0))


@fuzz(st.tuples(st.sampled_from(["a.mgf", "a.msp"]), texts([*PEAKS, *NUMBERS, "\n", " "]) | ANY), few=30)
def files_of_spectra(case):
    read = spectra.read(write(*case))
    if read:
        spectra.pool(read, [0] * len(read))
        spectra.bins(read)


@fuzz(st.tuples(st.integers(0, 400), st.binary(max_size=8)), (10, b"\0\0"), few=15)
def packed_spectra(case):
    at, other = case
    whole = gzip.compress(b"BEGIN IONS\nPEPMASS=10\n10 1\nEND IONS\n" * 20, mtime=0)
    spectra.read(write("a.mgf.gz", whole[: at % len(whole)] + other + whole[at % len(whole) + len(other) :]))


@fuzz(texts([*NUMBERS, ":", " ", ";", ",", "\n"]))
def peaks_in_a_cell(text):
    spectra.parse(text)


@fuzz(texts(ATOMS), few=30)
def smiles(text):
    found = chem.graph(text)
    chem.smiles(found)


NAMED = ("a",)
KINDS = [
    columns.Vector(NAMED),
    columns.Labels(NAMED),
    columns.Ranking(NAMED),
    columns.String(NAMED),
    columns.Text(NAMED),
]
KINDS += [columns.Molecule(NAMED), columns.Molecule(NAMED, as_graph=True), columns.SmilesLetters(NAMED)]
KINDS += [columns.Peaks(NAMED)]


@fuzz(
    st.tuples(
        st.sampled_from(KINDS),
        st.lists(
            texts([*NUMBERS, ";", ">", " ", "a", "b", ":", "1;2", "a>b>c", "10:1 20:2"]) | texts(ATOMS), max_size=4
        ),
    ),
    few=60,
)
def cells(case):
    kind, given = case
    adapted = kind.adapt(given)
    read = adapted.read(given)
    assert len(read.good) + len(read.bad) == len(given)
    assert all(reason and "\n" not in reason for reason in read.bad.values())
    if hasattr(adapted, "format") and read.good:
        for value in read.values[:2]:
            adapted.format(value)


WORDS = [
    "Gaussian",
    "(",
    ")",
    "gamma=",
    "1.0",
    "+",
    "*",
    ",",
    "NGram",
    "Views",
    ".normalized",
    "()",
    "-",
    "9" * 5000,
    "(" * 300,
]
WORDS += ["**", "'x'", "[", "]", "None", "True", "__import__", "lambda: 0", "1e999", "\n", ".", "Neural", "MLP"]


@fuzz(texts(WORDS), few=30)
def expressions(text):
    parse_expression(text, kernels, networks, regressors)


@fuzz(texts(["ann", ":", "0" * 64, "a" * 64, "\n", "#", "1.5", "1e9", " "]))
def files_of_keys(text):
    assert operations.read_keys(write("keys.txt", text))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def put(value, other, path):
    """Put another value at a place that the numbers of a path lead to."""
    inner = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    if not path or not inner:
        return other
    key = inner[path[0] % len(inner)]
    changed = value.copy()
    changed[key] = put(value[key], other, path[1:])
    return changed


PLACES = st.tuples(VALUES, st.lists(st.integers(0, 30), min_size=1, max_size=5))


@cache
def saved_model():
    xs = np.random.default_rng(0).normal(size=(20, 2))
    made = folder()[0] / "model"
    model = DSOKR(kernels.Tanimoto(), sketches.Full(), KernelRidge(), random_state=0, device="cpu")
    model.fit(xs, (xs > 0).astype(np.int64)).save(made)
    return made, json.loads((made / "config.json").read_text()), xs


DEEP = b"[" * 100_000


@fuzz(
    PLACES | st.tuples(ANY, st.none()),
    *(([], [at, 0]) for at in range(20)),
    (DEEP, None),
    (b'{"sha256": ' + DEEP, None),
    few=30,
)
def configs(case):
    """As written by somebody who wants it to be loaded: sealed."""
    other, path = case
    made, config, xs = saved_model()
    if path is None:
        (made / "config.json").write_bytes(other)
    else:
        changed = put(config, other, path)
        write_json(made / "config.json", {k: v for k, v in changed.items() if k != "sealed"}, sealed=True)
    try:
        DSOKR.load(made, device="cpu").predict(xs)
    except ValueError as error:  # of scikit-learn, which compares the columns, in a sentence
        if isinstance(error, DSOKRError) or "feature" not in str(error):
            raise


@cache
def built_index():
    whole = folder()[0] / "index"
    build_index(whole, sort_by="mass")
    return whole, json.loads((whole / "index.json").read_text())


def refresh(made):
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(built_index()[0], made)


def ask_index(made):
    index = CandidateIndex.open(made)
    best = index.search(Z, 3, "cosine", [Condition.within("mass", [700.0] * 5, [800.0] * 5)]).indices
    assert [[index.texts[at] for at in row if at >= 0] for row in best] and index.cells


VERSION, SIZES, SUMS = 9, 12, 13  # places in the head of an index


@fuzz(
    PLACES | st.tuples(ANY, st.none()),
    *((DEEP, None), (b"[]", None), (b"3", None), (10**400, [VERSION]), (-8, [SIZES, 3]), (":", [SUMS, 0])),
    few=30,
)
def heads_of_indices(case):
    made, (_, head) = folder()[0] / "changed", built_index()
    refresh(made)
    if case[1] is None:
        (made / "index.json").write_bytes(case[0])
    else:
        changed = put(head, *case)
        write_json(made / "index.json", {k: v for k, v in changed.items() if k != "sealed"}, sealed=True)
    ask_index(made)


@fuzz(
    st.tuples(st.integers(0, 20), st.integers(0, 10**4), st.binary(min_size=1, max_size=8)),
    *((number, at, b"\x80\x80") for number in range(12) for at in (0, 2)),
    *((number, at, b"\xff" * 8) for number in range(12) for at in (840, 1600)),  # NaN
    few=25,
)
def files_of_indices(case):
    """Other bytes, with the right checksums."""
    number, at, other = case
    made = folder()[0] / "changed"
    refresh(made)
    head = json.loads((made / "index.json").read_text())
    names = sorted(path.name for path in made.iterdir() if path.name != "index.json")
    path = made / names[number % len(names)]
    data = bytearray(path.read_bytes())
    at %= max(len(data) - len(other), 1)
    data[at : at + len(other)] = other[: len(data) - at]
    path.write_bytes(data)
    key = next((key for key in head["sums"] if path.name.endswith(key)), None)
    if key:
        head["sums"][key] = sum_file(path, head["sizes"].get(key))
    write_json(made / "index.json", {k: v for k, v in head.items() if k != "sealed"}, sealed=True)
    ask_index(made)


@cache
def written_shards():
    made = folder()[0] / "shards"
    shards = Shards(Folder(str(made)), "m", 4, "float32", "library", ["mass"])
    shards.start(restart=False)
    texts, rows = [f"text {i}" for i in range(6)], torch.arange(24.0).reshape(6, 4)
    shard = Shard(range(6), texts, [""] * 6, [b"%08d" % i for i in range(6)], {"mass": ["1"] * 6})
    shards.write_shard(0, shard, rows, rows.square().sum(1))
    shards.finish([6], 6)
    return made, json.loads((made / HEAD).read_text())


COLUMNS, COUNTS = 6, 7  # places in the head of shards


@fuzz(
    PLACES | st.tuples(ANY, st.none()),
    *(
        (DEEP, None),
        ([6, 6], [COUNTS]),
        ([], [COUNTS]),
        ([""], [COLUMNS]),
        (5, [COUNTS, 0]),
        (10**12, [COUNTS, 0]),
        (0, [3]),
    ),
    few=30,
)
def heads_of_shards(case):
    """As written by somebody who wants them to be searched: sealed."""
    pytest.importorskip("pyarrow")
    made, head = written_shards()
    changed = None if case[1] is None else {k: v for k, v in put(head, *case).items() if k != "sealed"}
    (made / HEAD).write_bytes(case[0] if changed is None else b"")
    if changed is not None:
        write_json(made / HEAD, changed, sealed=True)
    shards = Shards.open(made)
    search_shards(shards, Z, 3, "cosine", [Condition.within(name, [0.0] * 5, [9.0] * 5) for name in shards.columns])
    list(shards.blocks(0))


@cache
def client():
    return Client(HandMade(), Limits(text=50, inputs=4))


ROWS = st.lists(st.lists(st.floats() | st.integers(), min_size=DIM, max_size=DIM), max_size=2)
PARTS = {
    "inputs": st.lists(st.text(max_size=6) | VALUES, max_size=3) | VALUES,
    "coefficients": ROWS | VALUES,
    "k": st.integers(-1, 200) | VALUES,
    "rule": st.sampled_from(["kernel", "cosine"]) | VALUES,
    "coverage": st.floats() | VALUES,
    **dict.fromkeys(("within", "match", "predict"), VALUES),
}
BODY = st.fixed_dictionaries({}, optional=PARTS)


@fuzz((BODY | VALUES).map(json.dumps) | ANY | texts(JSONS), few=30)
def bodies(content):
    answer = client().predict(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    assert answer.status_code in (200, 400, 422), answer.text
    assert ("results" if answer.status_code == 200 else "error") in answer.json()


@cache
def fitted(number):
    case = DECODERS[number]
    X = np.random.default_rng(0).normal(size=(30, 3))
    sketch = sketches.SubSample(12)
    return DSOKR(case.kernel, sketch, KernelRidge(), decoder=case.made, random_state=0, device="cpu").fit(
        X, case.outputs(30)
    )


EXTREME = st.sampled_from(
    [0.0, -0.0, 1e-320, 1e30, -1e30, 1e155, 1e308, -1e308, float("nan"), float("inf"), -float("inf")]
)


QUICK = [at for at, case in enumerate(DECODERS) if case.name.startswith(("candidates", "gradient", "label", "ham"))]
COMPILED = sorted(set(range(len(DECODERS))) - set(QUICK))  # by Numba, which takes long
NUMBERS_OF_Z = st.lists(EXTREME | st.floats(-2, 2), min_size=1, max_size=5)


@fuzz(st.tuples(st.sampled_from(QUICK), NUMBERS_OF_Z), *((at, [1e308]) for at in QUICK), few=30)
def decoders(case):
    number, numbers = case
    model = fitted(number)
    z = torch.tensor((numbers * model.basis_.dim)[: model.basis_.dim], dtype=torch.float64)[None]
    found = model.decoder_.decode(model.basis_, z, model.known_)
    assert found.scores.shape == (1,) and not found.scores.isnan().any()


@fuzz(st.tuples(st.sampled_from(COMPILED), NUMBERS_OF_Z), few=0)
def compiled_decoders(case):
    decoders(case)


@pytest.mark.parametrize("name", [name for name, (*_, few) in CASES.items() if few])
def test_an_answer_or_a_sentence(name):
    assert run(name, many=False) > 0


def test_every_reader_and_decoder_is_fuzzed():
    """A format or a decoder that is added has to be among the cases."""
    assert {*READERS, *OPENERS} <= {Path(name).suffix for name in (*PLAIN, *PACKED)}
    tried = {type(case.made) for case in DECODERS}
    known = (kind for kind in vars(decoding).values() if isinstance(kind, type) and issubclass(kind, decoding.Decoder))
    assert {kind for kind in known if kind is not decoding.Decoder} <= tried


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many(name, tally):
    count = run(name, many=True)
    tally("cases fuzzed", count)
    print(f"{name}: {count:,} cases")
    assert count >= min(MANY, 500)
