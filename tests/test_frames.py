"""Data frames of pandas and polars, in and out."""

import datetime
import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dsokr import DSOKR, Ensemble, Training, kernels, metrics, networks, sketches
from dsokr.decoders import Candidates
from dsokr.errors import InputError
from dsokr.outputs import Form, Frame, canonical, take
from dsokr.regressors import Forest, KernelRidge, Neural

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

LIBRARIES = {"pandas": pd, "polars": pl}
BITS = np.array([[1, 0], [0, 1], [1, 1]])
MIXED = {"whole": [3, 1, 2], "real": [0.5, 1.5, 0.0], "flag": [True, False, True]}


def assert_same(a, b) -> None:
    """Frames or series have the same values, names and types; those of pandas also the same index."""
    library = next(library for library in LIBRARIES.values() if isinstance(b, (library.DataFrame, library.Series)))
    kind = "frame" if isinstance(b, library.DataFrame) else "series"
    __import__(f"{library.__name__}.testing")
    getattr(library.testing, f"assert_{kind}_equal")(a, b)


def frame(library: str, columns: dict):
    return LIBRARIES[library].DataFrame(columns)


def people(library: str, n: int = 90):
    """A frame of numbers with gaps, texts, truth values and categories, and label sets that depend on them."""
    rng = np.random.default_rng(0)
    numbers, flags, towns = rng.normal(size=n), rng.random(n) > 0.5, rng.choice(["Ulm", "Jena"], n).tolist()
    Y = {"up": (numbers > 0).astype(int), "flag": flags.astype(int), "Ulm": [int(town == "Ulm") for town in towns]}
    towns[3], ages = None, [None if i == 5 else int(age) for i, age in enumerate(rng.integers(20, 60, n))]
    X = frame(library, {"number": numbers, "flag": flags, "town": towns, "age": ages})
    if library == "pandas":
        X = X.astype({"age": "Int64", "town": "category"}).set_axis(rng.permutation(n) + 100)
    return X, frame(library, Y)


def head(table, n: int):
    return table.iloc[:n] if isinstance(table, (pd.DataFrame, pd.Series)) else table[:n]


def default_model(**changes) -> DSOKR:
    return DSOKR(kernels.Tanimoto(), random_state=0, device="cpu", **changes)


@pytest.mark.parametrize(
    "given",
    [
        *(
            pd.DataFrame(BITS, columns=["u", "v"]).astype(dtype)
            for dtype in ("int64", "uint8", "bool", "float32", "Int64", "boolean", "Float64", "Sparse[int64, 0]")
        ),
        pd.DataFrame(BITS),
        pd.DataFrame(BITS, columns=np.array([7, 3])),
        pd.DataFrame(MIXED),
        pd.DataFrame(BITS, columns=["u", "u"]),
        pd.DataFrame({"name": ["b", "a", "b"]}),
        pd.Series(["b", "a", "b"], name="name"),
        pd.Series([1.5, 2.5, 1.5]),
        *(pl.DataFrame(BITS, schema=["u", "v"]).cast(dtype) for dtype in (pl.Int64, pl.UInt8, pl.Boolean, pl.Float32)),
        pl.DataFrame(MIXED),
        pl.DataFrame({"name": ["b", "a", "b"]}),
        pl.Series("name", ["b", "a", "b"]),
        pl.Series([3, 1, 3]),
    ],
    ids=lambda given: f"{type(given).__module__[:6]}-{getattr(given, 'dtypes', '')}".replace("\n", " ")[:40],
)
def test_frames_come_back_as_they_were_given(given):
    outputs, form = canonical(given)
    saved = Form.from_json(json.loads(json.dumps(asdict(form))))
    assert saved == form
    assert_same(saved.restore(outputs), given)
    assert len(saved.restore(take(outputs, slice(0)))) == 0


def test_whole_numbers_found_as_real_ones_are_rounded():
    outputs, form = canonical(pd.DataFrame(MIXED))
    outputs[0, 0] = 2.9
    assert form.restore(outputs)["whole"].tolist() == [3, 1, 2]


def test_columns_of_several_levels_come_back_as_an_array():
    outputs, form = canonical(pd.DataFrame(BITS, columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])))
    np.testing.assert_array_equal(form.restore(outputs), BITS)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, 2], "b": ["x", "y"]}, "columns of numbers, or a single column. Got .* in 'b'"),
        ({"a": [1.0, None]}, "NaN or inf in row 1"),
        ({"a": ["x", None]}, "must not have missing values. Got one in row 1"),
        ({}, "Y has no columns"),
    ],
)
def test_outputs_that_are_refused(library, columns, message):
    with pytest.raises(InputError, match=message):
        canonical(frame(library, columns))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_in_a_frame_out(library, tmp_path):
    X, Y = people(library)
    model = default_model().fit(X, Y)
    assert model.feature_names_in_.tolist() == list(X.columns)
    predicted = model.predict(head(X, 40))
    if library == "pandas":
        assert predicted.index.equals(X.index[:40])
    assert list(predicted.columns) == list(Y.columns) and list(predicted.dtypes) == list(Y.dtypes)
    assert metrics.f1(model.predict(X), Y) > 0.9
    model.save(tmp_path / "model")
    loaded = DSOKR.load(tmp_path / "model", device="cpu")
    assert_same(loaded.predict(head(X, 40)), predicted)
    assert loaded.score(X, Y) == pytest.approx(model.score(X, Y))


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_are_the_same_as_arrays(library):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    Y = (X[:, :3] > 0).astype(int)
    tables = [frame(library, dict(zip("abcd", part.T, strict=False))) for part in (X, Y)]
    regressor = KernelRidge(kernels.Gaussian(0.1))
    plain = default_model(regressor=regressor).fit(X[:40], Y[:40], validation=(X[40:], Y[40:]))
    parts = [(part[:40], part[40:]) for part in tables]
    framed = default_model(regressor=regressor).fit(parts[0][0], parts[1][0], validation=(parts[0][1], parts[1][1]))
    np.testing.assert_array_equal(framed.predict(tables[0]).to_numpy(), plain.predict(X))
    assert framed.score(*tables) == plain.score(X, Y)
    assert (framed.rank(tables[0], tables[1]).indices == plain.rank(X, Y).indices).all()
    assert (framed.scores(tables[0], tables[1]) == plain.scores(X, Y)).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_other_columns_are_refused(library):
    X, Y = people(library)
    model = default_model(regressor=Forest(5)).fit(X, Y)
    turned = X[list(X.columns)[::-1]]
    for method in (model.predict, model.coefficients):
        with pytest.raises(ValueError, match="Feature names must be in the same order"):
            method(turned)
    renamed = X.rename(columns={"town": "city"}) if library == "pandas" else X.rename({"town": "city"})
    with pytest.raises(ValueError, match=r"Feature names unseen at fit time:\n- city"):
        model.predict(renamed)
    swapped = Y[["flag", "up", "Ulm"]]
    for call in (
        lambda: model.score(X, swapped),
        lambda: model.rank(X, swapped),
        lambda: default_model(regressor=Forest(5), decoder=Candidates(outputs=swapped)).fit(X, Y),
        lambda: default_model(regressor=Forest(5)).fit(X, Y, validation=(X, swapped)),
    ):
        with pytest.raises(InputError, match="columns that fit got, in their order: up, flag, Ulm. Got flag, up, Ulm"):
            call()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    "cells",
    [
        [datetime.datetime(2020, 1, 1)] * 4,
        [datetime.date(2020, 1, 1)] * 3 + [None],
        [datetime.timedelta(1)] * 4,
        [datetime.time(12)] * 4,
    ],
    ids=["datetime", "date", "timedelta", "time"],
)
@pytest.mark.parametrize("others", [{}, {"b": [1.0, 2.0, 3.0, 4.0]}, {"b": ["x", "y", "x", "y"]}])
def test_times_are_refused(library, cells, others):
    with pytest.raises(InputError, match="Column 'when' of X holds dates or times"):
        default_model().fit(frame(library, {"when": cells, **others}), np.eye(4, dtype=int))


def test_numbers_that_are_categories_are_no_numbers():
    rng = np.random.default_rng(0)
    code = rng.permutation(np.repeat(np.arange(6), 20))
    Y = np.stack([np.isin(code, [0, 3, 4]), np.isin(code, [1, 4])], axis=1).astype(int)  # no line through the codes
    model = default_model(regressor=Ridge(1e-3))
    X = pd.DataFrame({"code": pd.Categorical(code)})
    assert (model.fit(X, Y).predict(X) == Y).all()
    assert model.fit(X.astype(int), Y).score(X.astype(int), Y) < 0.9


def test_networks_read_numbers_of_any_column_and_refuse_texts_and_gaps():
    X, Y = people("pandas")
    neural = Neural(networks.MLP((8,)), training=Training(epochs=2))
    model = default_model(sketch=sketches.SubSample(8), regressor=neural)
    assert model.fit(X[["number", "flag"]], Y).predict(X[["number", "flag"]]).shape == Y.shape
    with pytest.raises(ValueError, match="X contains NaN"):
        model.fit(X[["flag", "age"]], Y)
    with pytest.raises(InputError, match="The network reads numbers .*: use Neural.network, reads='numbers'."):
        model.fit(X[["number", "town"]].fillna({"town": "Ulm"}), Y)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_series_of_strings_on_both_sides(library):
    words = ["abc", "abd", "bcd", "xyz", "xyw", "yzw"] * 6
    given = LIBRARIES[library].Series("word", words) if library == "polars" else pd.Series(words, name="word")
    model = DSOKR(kernels.NGram(1), decoder=Candidates(), regressor=KernelRidge(kernels.NGram(1)), random_state=0)
    model.fit(given, given)
    assert_same(model.predict(head(given, 6)), head(given, 6))
    if library == "pandas":
        assert model.predict(given.iloc[6:9]).index.tolist() == [6, 7, 8]
        assert model.predict(words[6:9]).index.tolist() == [0, 1, 2]


def test_candidates_of_ones_own_and_ensembles():
    X, Y = people("pandas")
    own = pd.DataFrame({"up": [1, 0], "flag": [0, 1], "Ulm": [0, 1]})
    model = default_model(regressor=Forest(5), decoder=Candidates(outputs=own)).fit(X, Y)
    assert {*map(tuple, model.predict(X).to_numpy())} == {(1, 0, 0), (0, 1, 1)}
    together = Ensemble([default_model(regressor=Forest(5)).fit(X, Y) for _ in range(2)]).predict(X)
    assert together.index.equals(X.index) and list(together.columns) == list(Y.columns)


def test_neither_library_is_imported_for_arrays():
    script = """
import sys
import numpy as np
from dsokr import DSOKR, kernels
from dsokr.regressors import Forest

class Absent:
    def find_spec(name, path=None, target=None):
        if name in ("pandas", "polars"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent)
X = np.random.default_rng(0).normal(size=(20, 3))
DSOKR(kernels.Tanimoto(), regressor=Forest(3), random_state=0).fit(X, (X > 0).astype(int)).predict(X)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_saved_form_imports_no_other_library():
    with pytest.raises(InputError, match="Frame.library must be one of 'pandas', 'polars'. Got 'antigravity'"):
        Frame.from_json({"library": "antigravity", "names": ["a"], "dtypes": ["int64"]})
