"""Columns of candidates in an index: windows, equal cells, and an index sorted by a column."""

import numpy as np
import pytest
import torch

from dsokr.errors import InputError
from dsokr.index import Block, BuildOptions, CandidateIndex, Condition, Head, build
from dsokr.rules import RULES

N, P = 300, 6


@pytest.fixture(scope="module")
def library():
    rng = np.random.default_rng(0)
    mass = rng.uniform(100, 200, N)
    cells = {"mass": [f"{m:.4f}" if i % 29 else "unknown" for i, m in enumerate(mass)]}
    cells["formula"] = [f" C{i}H{2 * i} " for i in rng.integers(1, 9, N)]
    psi = torch.randn(N, P, generator=torch.Generator().manual_seed(0))
    return [f"y{i}" for i in range(N)], psi, psi.square().sum(1).double() + 0.1, cells


def build_index(folder, library, fail_after=None, restart=False, columns=("mass", "formula"), **options):
    texts, psi, diag, cells = library

    def blocks(start):
        for number, at in enumerate(range(start, N, 100)):
            if number == fail_after:
                raise KeyboardInterrupt
            some = slice(at, at + 100)
            yield Block(texts[some], psi[some], diag[some], cells={name: cells[name][some] for name in columns})

    asked = BuildOptions(**options)
    return build(folder, blocks, model="m", dim=P, columns=columns, options=asked, restart=restart)


@pytest.fixture(params=["memory", "disk", "sorted"])
def index(request, library, tmp_path):
    if request.param == "memory":
        texts, psi, diag, cells = library
        return CandidateIndex.in_memory(texts, psi, diag, cells=cells)
    return build_index(tmp_path / "i", library, sort_by="mass" if request.param == "sorted" else None)


@pytest.fixture
def z():
    return torch.randn(7, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("rule", RULES)
def test_the_best_that_meet_all_conditions(index, library, z, rule):
    texts, _, _, cells = library
    low = np.linspace(95, 190, 7)
    conditions = [
        Condition.within("mass", low, low + 20),
        Condition.equal("formula", ["C2H4", "C5H10 "] * 3 + ["C1H2"]),
    ]
    everything = index.search(z, N, rule)
    for asked in (conditions, conditions[:1], conditions[1:], conditions[::-1]):
        found = index.search(z, 5, rule, asked)
        for row in range(7):
            possible = [
                at
                for at in everything.indices[row].tolist()
                if all(_meets(condition.take([row]), index, at) for condition in asked)
            ]
            there = [at for at in found.indices[row].tolist() if at >= 0]
            assert there == possible[:5] and len(set(there)) == len(there)
    assert {index.texts[at] for at in range(N)} == set(texts)
    assert [index.cells["mass"][at] for at in range(N)] == [cells["mass"][int(text[1:])] for text in index.texts]


def _meets(condition, index, at):
    cell = index.cells[condition.column][at].strip()
    if condition.column == "formula":
        return Condition.equal("formula", [cell]).low[0] == condition.low[0]
    return cell != "unknown" and condition.low[0] <= float(cell) <= condition.high[0]


def test_a_sorted_index_reads_windows_from_one_place(library, tmp_path):
    index = build_index(tmp_path / "i", library, sort_by="mass")
    masses = [float(cell) for cell in index.cells["mass"][:] if cell != "unknown"]
    assert masses == sorted(masses) and index.cells["mass"][N - 1] == "unknown"
    pools = index.arrays.columns.find([Condition.within("mass", [120.0], [140.0])])
    assert isinstance(pools[0], slice)
    assert {path.name.partition(".")[0] for path in (tmp_path / "i").glob("*.bin")} == {"by0"}


def test_sorting_later_another_way_or_anew(library, tmp_path, z):
    plain = build_index(tmp_path / "i", library)
    best = [plain.texts[at] for at in plain.search(z, 3, "cosine").indices.flatten().tolist()]
    for again in ({"sort_by": "mass"}, {"sort_by": "formula"}, {}, {"restart": True}):
        index = build_index(tmp_path / "i", library, **again)
        assert [index.texts[at] for at in index.search(z, 3, "cosine").indices.flatten().tolist()] == best
        names = {path.name.partition(".")[0] for path in (tmp_path / "i").glob("*.bin")}
        assert len(names) == (7 if index.head.sorted_by == "" else 1)


def test_a_sort_that_was_interrupted_is_done_again(library, tmp_path, monkeypatch, z):
    monkeypatch.setattr(Head, "write", _fail_when_sorted(Head.write))
    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path / "i", library, sort_by="mass")
    monkeypatch.undo()
    assert CandidateIndex.open(tmp_path / "i").head.sorted_by == ""
    assert build_index(tmp_path / "i", library, sort_by="mass").head.sorted_by == "mass"


def _fail_when_sorted(write):
    def write_or_fail(head, folder):
        if head.sorted_by:
            raise KeyboardInterrupt
        write(head, folder)

    return write_or_fail


def test_faiss_is_built_again_for_sorted_candidates(library, tmp_path, z):
    pytest.importorskip("faiss")
    build_index(tmp_path / "i", library, kind="hnsw", recall=1.0)
    index = build_index(tmp_path / "i", library, sort_by="mass", recall=1.0)
    assert index.head.kind == "hnsw"
    assert index.search(z, 3, "cosine").indices.tolist() == index.search_exactly(z, 3, "cosine").indices.tolist()


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Condition.within("weight", [1], [2]), "The candidates have no column 'weight'. Their columns: mass, formula."),
        (Condition.within("formula", [1], [2]), "The column 'formula' of the candidates holds no numbers."),
    ],
)
def test_columns_that_cannot_be_asked_for(index, condition, message):
    with pytest.raises(InputError, match=message):
        index.search(torch.zeros(1, P), 3, "cosine", [condition])


def test_an_index_without_columns(library, tmp_path):
    index = build_index(tmp_path / "i", library, columns=())
    with pytest.raises(InputError, match="The candidates have no column 'mass'. They have no columns."):
        index.search(torch.zeros(1, P), 3, "cosine", [Condition.within("mass", [1], [2])])
    with pytest.raises(InputError, match="no column 'mass' to sort by. Their columns: none."):
        build_index(tmp_path / "i", library, columns=(), sort_by="mass")
