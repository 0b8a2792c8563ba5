"""The server: every address, every refusal, and what a stranger may send."""

import asyncio
import json
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from dsokr import DSOKR, decoders, kernels, sketches
from dsokr.commands.app import app as command_line
from dsokr.commands.columns import Labels, Vector
from dsokr.commands.library import open_index
from dsokr.commands.predictor import Predictor
from dsokr.commands.reasons import explain_answer
from dsokr.conformal import Calibration
from dsokr.errors import InputError, UndefinedAt
from dsokr.explain import explain, explain_input
from dsokr.index import CandidateIndex
from dsokr.regressors import KernelRidge
from serving import (
    DIM,
    JSON,
    MOLECULES,
    Client,
    HandMade,
    Kind,
    describe_molecules,
    reason_by_letters,
    refused,
    running,
)

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs httpx, to ask the server")
schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, to try its schema")

from hypothesis import HealthCheck, settings  # noqa: E402 # after what may be missing

from dsokr.serve import Limits, answers, create_app  # noqa: E402
from dsokr.serve import app as app_module  # noqa: E402
from dsokr.serve.batches import Batches, Busy  # noqa: E402


@pytest.fixture
def model():
    return HandMade()


@pytest.fixture(scope="module")
def client():
    return Client(HandMade())


def test_predict_is_the_search(client, model):
    index = model.index()
    answer = client.predict({"inputs": ["ethanol", "water"], "k": 3, "rule": "kernel"}).json()
    expected = index.search(model.coefficients(["ethanol", "water"]), 3, "kernel")
    assert answer["rule"] == "kernel" and answer["candidates"] == len(MOLECULES)
    for result, indices, scores in zip(answer["results"], *(part.tolist() for part in expected), strict=True):
        assert [hit["index"] for hit in result["hits"]] == indices
        assert [hit["score"] for hit in result["hits"]] == pytest.approx(scores)
        assert [hit["output"] for hit in result["hits"]] == [MOLECULES[i] for i in indices]
        assert [hit["name"] for hit in result["hits"]] == [index.names[i] for i in indices]
        assert [hit["rank"] for hit in result["hits"]] == [1, 2, 3]
        assert all(-1 <= hit["cosine"] <= 1 for hit in result["hits"])


class TestPossibleCandidates:
    """Only candidates that meet conditions on their columns."""

    cells = {"mass": [f"{10 * i}.5" for i in range(len(MOLECULES))], "formula": ["A", "B", "C"] * 4}  # noqa: RUF012

    @pytest.fixture
    @staticmethod
    def client(model):
        texts, psi, diag = MOLECULES, *(part for part in model.index().arrays[:2])
        index = CandidateIndex.in_memory(texts, psi, diag, cells=TestPossibleCandidates.cells)
        return Client(model, index=index)

    def test_windows_and_equal_cells(self, client):
        assert client.get("/health").json()["candidate_columns"] == {"mass": "number", "formula": "text"}
        asked = {"inputs": ["ethanol", "water"], "k": 12}
        window, same = {"within": {"mass": [20, 50.5]}}, {"match": {"formula": "B"}}
        everything, *found = client.predict(asked, asked | window, asked | same, asked | window | same)
        possible = {2, 3, 4, 5}, {1, 4, 7, 10}, {4}
        for answer, places in zip(found, possible, strict=True):
            for all_of, result in zip(everything.json()["results"], answer.json()["results"], strict=True):
                expected = [hit["index"] for hit in all_of["hits"] if hit["index"] in places]
                assert [hit["index"] for hit in result["hits"]] == expected
                assert [hit["rank"] for hit in result["hits"]] == list(range(1, len(expected) + 1))
                assert all(hit["cells"]["formula"] == "ABC"[hit["index"] % 3] for hit in result["hits"])

    def test_no_candidate_is_possible(self, client):
        answer = client.predict({"inputs": ["ethanol"], "within": {"mass": [1000, 2000]}}).json()
        assert answer["results"][0]["hits"] == [] and answer["results"][0]["confidence"] is None

    @pytest.mark.parametrize(
        ("condition", "words"),
        [
            ({"within": {"weight": [1, 2]}}, "within.weight.[key]: Input should be 'mass'."),
            ({"within": {"formula": [1, 2]}}, "within.formula.[key]: Input should be 'mass'."),
            ({"match": {"weight": "1"}}, "match.weight.[key]: Input should be 'mass' or 'formula'."),
            ({"within": {"mass": [1]}}, "within.mass.1: Field required."),
            ({"within": {"mass": ["a", 1]}}, "within.mass.0"),
            ({"match": {"formula": 3}}, "match.formula"),
        ],
    )
    def test_conditions_that_make_no_sense(self, client, condition, words):
        refused(client.predict({"inputs": ["ethanol"]} | condition), 422, words)


@dataclass
class Sure:
    """A calibration whose right candidates came first or second."""

    n: int = 60
    groups: list[str] | None = None

    @property
    def pairs_(self):
        z = torch.randn(self.n, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        return {"z": z, "groups": self.groups}

    def calibrate_for(self, scores):
        second = torch.arange(self.n) % 3 == 0
        own = torch.where(second, scores[:, 1], scores[:, 0])
        return Calibration.of(self.pairs_["z"], scores, own, ~second)


def test_probabilities_sets_and_confidence():
    model = HandMade()
    model.sure = Sure()
    client, body = Client(model), {"inputs": ["ethanol", "water"], "k": 5}
    assert client.get("/health").json()["coverage"] == 0.9
    calibration = model.sure.calibrate_for(model.index().search(model.sure.pairs_["z"], 100, "cosine").scores)
    z = model.coefficients(body["inputs"])
    scores = model.index().search(z, 100, "cosine").scores
    expected = calibration.find_probabilities(z, scores)[:, :5].tolist()
    sizes = {}
    for coverage in (0.5, 0.9):
        results = client.predict(body | {"coverage": coverage}).json()["results"]
        for result, probabilities in zip(results, expected, strict=True):
            assert [hit["probability"] for hit in result["hits"]] == pytest.approx(probabilities)
            assert 0 < result["confidence"] < 1 and result["hits"][0]["in_set"]
        sizes[coverage] = sum(hit["in_set"] for result in results for hit in result["hits"])
    assert sizes[0.5] <= sizes[0.9] < 10
    other = client.predict(body | {"rule": "kernel"}).json()["results"][0]  # calibrated by another rule
    assert other["confidence"] is None and other["hits"][0]["probability"] is None
    refused(client.predict(body | {"coverage": 0.999}), 422, "needs at least 999 pairs")
    refused(client.predict(body | {"coverage": 1.5}), 422, "less than 1")
    model.sure = Sure(n=8)
    few = Client(model)
    assert few.get("/health").json()["coverage"] is None
    assert few.predict(body).json()["results"][0]["hits"][0]["in_set"] is None


def test_a_model_that_is_not_calibrated_has_no_probabilities(client):
    result = client.predict({"inputs": ["ethanol"]}).json()["results"][0]
    assert result["confidence"] is None and result["hits"][0]["probability"] is result["hits"][0]["in_set"] is None


def test_defaults_and_coefficients(client, model):
    z = torch.tensor([[1.0, -2, 3, 0.5]])
    answer = client.predict({"coefficients": z.tolist()}).json()
    expected = model.index().search(z, 10, "cosine")
    assert answer["rule"] == "cosine"
    assert [hit["index"] for hit in answer["results"][0]["hits"]] == expected.indices[0].tolist()
    everything = client.predict({"coefficients": z.tolist(), "k": 100}).json()
    assert len(everything["results"][0]["hits"]) == len(MOLECULES)


def test_vectors_as_inputs():
    inputs, outputs = Kind("vector", (0.0, 0.0), ("heat", "wind")), Kind("vector", (0.0,), ("melt",))
    client = Client(HandMade(input=inputs, output=outputs))
    assert len(client.predict({"inputs": [[1, 2.5]], "k": 2}).json()["results"][0]["hits"]) == 2
    assert client.predict({"inputs": [[1.2e15, 0.5]]}).status_code == 422  # coefficients above 1e12
    facts = client.get("/health").json()
    assert facts["columns"] == ["heat", "wind"] and facts["output_columns"] == ["melt"] and facts["width"] == 2
    assert '"columns":["heat","wind"]' in client.get("/openapi.json").text
    for row, where, words in (
        ([1, 2, 3], "inputs.0", "at most 2 items"),
        ("1 2", "inputs.0", "valid list"),
        ([1, 1e39], "inputs.0.1", "less than or equal to 3.4e+38"),
    ):
        assert refused(client.predict({"inputs": [row]}), 422, words)["where"] == where


@pytest.mark.parametrize(
    ("answer", "output", "rank"),
    [("a;b", "b;a", 1), ("C", "c", 1), ("b", None, None), ("", None, None)],
    ids=["the same set", "the same text", "not a candidate", "the empty string"],
)
def test_the_models_own_answer(answer, output, rank):
    model, body = HandMade(output=Kind("labels"), answer=answer, searches=True), {"inputs": ["one", "other"], "k": 3}
    client = Client(model, texts=["c", "b;a", "c;a"])
    assert [result["prediction"] for result in client.predict(body).json()["results"]] == [None, None]
    scores = model.coefficients(body["inputs"]).sum(dim=1).tolist()
    for result, score in zip(client.predict(body | {"predict": True}).json()["results"], scores, strict=True):
        own = result["prediction"]
        assert own["output"] == answer and own["score"] == pytest.approx(score)
        assert own["rank"] is None if rank is None else result["hits"][own["rank"] - 1]["output"] == output
    assert client.get("/health").json()["searches"] is True


@pytest.mark.parametrize("searches", [True, False])
def test_the_answer_is_that_of_the_predictor(searches):
    numbers = [f"{a} {b}" for a in range(-3, 4) for b in range(-3, 4)]
    labels = ["up" if int(text.split()[1]) > 0 else "left;down" for text in numbers]
    decoder = decoders.LabelSet() if searches else decoders.Candidates()
    regressor = KernelRidge(kernels.Gaussian(1.0))
    model = DSOKR(kernels.Tanimoto(), sketches.SubSample(9), regressor, decoder=decoder, random_state=0)
    predictor = Predictor.fit(model, Vector(("a", "b")), Labels(), numbers, labels)
    client, asked = Client(predictor, index=open_index(predictor, None)), [[-2, 3], [1, -1]]
    expected = predictor.predict([" ".join(map(str, row)) for row in asked])  # compiles the search as well
    found = client.predict({"inputs": asked, "predict": True}).json()["results"]
    assert [result["hits"][0]["output"] for result in found] == ["up", "left;down"]
    assert client.get("/health").json()["columns"] == ["a", "b"]
    if searches:
        assert [result["prediction"]["output"] for result in found] == expected == ["up", "down;left"]
        assert [result["prediction"]["rank"] for result in found] == [1, 1]
    else:
        assert [result["prediction"] for result in found] == [None, None]


def test_models_of_a_list_have_no_answer_beside_it(client):
    assert client.get("/health").json()["searches"] is False
    assert client.predict({"inputs": ["a"], "predict": True}).json()["results"][0]["prediction"] is None


def test_a_slow_search_for_an_answer_is_given_up_and_keeps_nobody_waiting(model, monkeypatch):
    model.searches, decoded, release = True, [], threading.Event()

    def slow(z):
        decoded.append(len(z))
        release.wait(5)
        return ["CCO"] * len(z), z.sum(dim=1)

    monkeypatch.setattr(model, "decode", slow)
    client = Client(model, Limits(seconds=0.3))
    late, *others = client.predict({"inputs": ["a"] * 10, "predict": True}, *[{"inputs": ["a"]}] * 5)
    refused(late, 504, "took too long")
    assert all(answer.status_code == 200 and answer.json()["milliseconds"] < 300 for answer in others)
    release.set()
    assert decoded == [1]  # the other nine are not begun


class TestExplain:
    def test_atoms_and_words(self):
        pytest.importorskip("rdkit", reason="needs the extra chem")
        predictor = describe_molecules()
        client = Client(predictor, index=open_index(predictor, None), reason=partial(explain_answer, predictor))
        assert client.get("/health").json()["explains"] is True
        y, found = predictor.output.parse(["CCCO"]), client.explain("a long alcohol", "CCCO", rule="cosine").json()
        [why] = explain(predictor.model, ["a long alcohol"], y, rule="cosine")
        words = explain_input(predictor.model, "a long alcohol", y[0], rule="cosine")
        atoms, given = ([part["contribution"] for part in found[name]["parts"]] for name in ("output", "input"))
        assert found["exact"] and sum(atoms) + found["constant"] == pytest.approx(found["score"])
        assert found["score"] == pytest.approx(why.score) and atoms == pytest.approx(why.contributions)
        assert given == pytest.approx(words.contributions)
        assert [part["text"] for part in found["input"]["parts"]] == ["a", "long", "alcohol"]
        assert found["output"]["drawing"].startswith("<svg") and "rgb(89, 153, 255)" in str(found["input"])
        assert client.explain("a long alcohol", "CCCO").json()["score"] != found["score"]  # by the model's own rule
        assert refused(client.explain("an acid", "C1C"), 422, "Could not parse 'C1C'")["where"] == "output"
        refused(client.explain("an acid", "C" * 101), 422, "Molecules of more than 100 atoms are not drawn. Got 101.")

    def test_the_command_serves_it(self, tmp_path, monkeypatch):
        pytest.importorskip("rdkit", reason="needs the extra chem")
        served = []
        monkeypatch.setattr("dsokr.serve.run", lambda app, *_, **options: served.append((app, options)))
        describe_molecules().save(tmp_path / "model")
        command_line(["key", str(tmp_path / "keys.txt"), "ann"], standalone_mode=False)
        others = ["--rate", "3", "--certificate", "a.pem", "--private-key", "b.pem", "--log", "-"]
        command = ["serve", str(tmp_path / "model"), "--keys", str(tmp_path / "keys.txt"), *others]
        command_line(command, standalone_mode=False)
        [(app, options)] = served
        assert "/explain" in {route.path for route in app.routes}
        assert [key.name for key in app.state.keys] == ["ann"] and app.state.limits.rate == 3
        assert [str(value) for name, value in options.items() if name != "say"] == ["a.pem", "b.pem", "-"]

    def test_columns_and_labels_without_features(self):
        numbers, labels = ["0 1", "1 0", "1 1", "2 1"], ["up", "down;left", "up;left", "left"]
        model = DSOKR(kernels.Tanimoto(), regressor=KernelRidge(), decoder=decoders.Candidates("kernel"))
        predictor = Predictor.fit(model, Vector(("a", "b")), Labels(), numbers, labels)
        client = Client(predictor, index=open_index(predictor, None), reason=partial(explain_answer, predictor))
        found = client.explain([1, 0], "left;down").json()
        assert not found["exact"] and found["constant"] is None and found["output"]["drawing"] == ""
        assert [part["text"] for part in found["input"]["parts"]] == ["a 1", "b 0"]
        assert {part["text"] for part in found["output"]["parts"]} == {"down", "left"}
        assert refused(client.explain([1, 0], "right"), 422, "no label 'right'")["where"] == "output"
        assert refused(client.explain([1], "up"), 422, "at least 2 items")["where"] == "input"

    def test_refusals(self, model, client):
        def cannot(*_):
            raise InputError("Nothing can be left out of outputs of type tuple.")

        assert client.get("/health").json()["explains"] is False
        refused(client.explain("a", "C"), 404)
        refused(Client(model, reason=cannot).explain("a", "C"), 422, "Nothing can be left out")

        def undefined(*_):
            raise UndefinedAt(0, "Graph", "it has no edge")

        refused(
            Client(model, reason=undefined).explain("a", "C"), 422, "cannot be explained: Graph at index 0: it has no"
        )
        able = Client(model, reason=reason_by_letters)
        assert able.explain("a" * 500, "C").status_code == able.explain("a b " * 250, "C").status_code == 200
        refused(able.explain("a" * 501, "C"), 422, "more than 500 words or letters are not explained. Got 501.")
        assert refused(able.explain("bad", "C"), 422, "'bad' cannot be read.")["where"] == "input"
        assert refused(able.explain("a", "C", rule="best"), 422)["where"] == "rule"
        pictures = Client(HandMade(input=Kind("image")), reason=reason_by_letters)
        refused(pictures.explain("/etc/passwd", "C"), 404)

    def test_a_slow_one_keeps_nobody_waiting(self, model):
        release = threading.Event()

        def slow(*pair):
            release.wait(5)
            return reason_by_letters(*pair)

        client = Client(model, Limits(seconds=0.3), reason=slow)
        pair, asked = {"input": "a", "output": "C"}, {"inputs": ["a"]}
        requests = [("POST", "/explain", {"json": pair})] * 2 + [("POST", "/predict", {"json": asked})] * 3
        *late, first, second, third = client.together(requests)
        release.set()
        for answer in late:
            refused(answer, 504, "took too long")
        assert first.status_code == second.status_code == third.status_code == 200


def test_pictures_are_paths_on_the_server_and_not_taken():
    client = Client(HandMade(input=Kind("image")))
    assert refused(client.predict({"inputs": ["/etc/passwd"]}), 422)["where"] == "inputs"
    assert client.predict({"coefficients": [[1.0] * DIM]}).status_code == 200
    assert client.get("/health").json()["input"] == ""


@pytest.mark.parametrize(
    ("body", "status", "where", "words"),
    [
        ("{", 400, "", "not JSON"),
        (b"\xff\xfe{}", 400, "", "not JSON"),
        ("[" * 50_000, 400, "", ""),
        ('{"inputs": [' + "9" * 6000 + "]}", 400, "", "parsing the body"),
        ("", 422, "", "required"),
        ("null", 422, "", ""),
        ([], 422, "", "valid dictionary"),
        ({}, 422, "", "Give inputs or coefficients"),
        ({"inputs": []}, 422, "inputs", "at least 1 item"),
        ({"inputs": None}, 422, "inputs", "valid list"),
        ({"inputs": "text"}, 422, "inputs", "valid list"),
        ({"inputs": [1]}, 422, "inputs.0", "valid string"),
        ({"inputs": ["  "]}, 422, "inputs.0", "match pattern"),
        ({"inputs": [""]}, 422, "inputs.0", "at least 1 character"),
        ({"inputs": ["a", "bad"]}, 422, "inputs.1", "inputs.1: 'bad' cannot be read."),
        ('{"inputs": ["\\ud800"]}', 422, "inputs.0", "unicode"),
        ({"inputs": ["a" * 5001]}, 422, "inputs.0", "inputs.0: String should have at most 5000 characters."),
        ({"inputs": ["a"] * 65}, 422, "inputs", "at most 64 items"),
        ({"inputs": ["a"], "k": 0}, 422, "k", "greater than or equal to 1"),
        ({"inputs": ["a"], "k": 101}, 422, "k", "less than or equal to 100"),
        ({"inputs": ["a"], "k": 2.5}, 422, "k", "multiple of 1"),
        ({"inputs": ["a"], "k": True}, 422, "k", "valid number"),
        ({"inputs": ["a"], "k": "3"}, 422, "k", "valid number"),
        ({"inputs": ["a"], "rule": "best"}, 422, "rule", "'kernel', 'projected' or 'cosine'"),
        ({"inputs": ["a"], "colour": "red"}, 422, "colour", "not permitted"),
        ({"inputs": ["a"], "coefficients": [[1] * DIM]}, 422, "", "not both"),
        ({"coefficients": [[1]]}, 422, "coefficients.0", f"at least {DIM} items after validation, not 1."),
        ('{"coefficients": [[NaN, 1, 1, 1]]}', 422, "coefficients.0.0", "finite"),
        ('{"coefficients": [[1e999, 1, 1, 1]]}', 422, "coefficients.0.0", "finite"),
        ({"coefficients": [[1e13, 1, 1, 1]]}, 422, "coefficients.0.0", "less than or equal to 1e+12."),
        ({"coefficients": [[1, "2", 1, 1]]}, 422, "coefficients.0.1", "valid number"),
        ({"inputs": ["a"], "predict": 1}, 422, "predict", "valid boolean"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, int) else "",
)
def test_a_wrong_body_is_refused_in_a_sentence(client, body, status, where, words):
    assert refused(client.predict(body), status, words)["where"] == where


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}])
def test_another_content_type(client, headers):
    answer = client("POST", "/predict", content=b'{"inputs": ["a"]}', headers=headers)
    refused(answer, 422, "Content-Type: application/json")


@pytest.mark.parametrize("size", [1e13, float("inf"), float("nan")])
def test_coefficients_that_are_too_large_refuse_only_their_own_request(model, size):
    model.coefficients = lambda inputs: torch.tensor([[size if cell == "far" else 1.0] * DIM for cell in inputs])
    found = Client(model).predict(*({"inputs": ["a", text]} for text in ("b", "far", "c")))
    assert [answer.status_code for answer in found] == [200, 422, 200]
    assert refused(found[1], 422, "too far from the training inputs")["where"] == "inputs.1"


@pytest.mark.parametrize(
    ("headers", "chunks", "read"),
    [({"content-length": "5000000"}, [b"x" * 5_000_000], 0), ({}, [b"x" * 400] * 1000, 3)],
    ids=["announced", "not announced"],
)
def test_a_large_body_is_refused_before_it_is_read(model, headers, chunks, read):
    app, sent, received = create_app(model, model.index(), Limits(body_bytes=1000)), [], []

    async def receive():
        received.append(chunks[len(received)])
        return {"type": "http.request", "body": received[-1], "more_body": len(received) < len(chunks)}

    async def send(message):
        sent.append(message)

    headers = {"host": "localhost", "content-type": "application/json"} | headers
    scope = {"type": "http", "method": "POST", "path": "/predict", "raw_path": b"/predict", "query_string": b""}
    scope |= {"scheme": "http", "server": ("dsokr", 80), "client": ("c", 1), "root_path": "", "http_version": "1.1"}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 413 and len(received) == read
    assert "the limit is 1,000 bytes" in json.loads(sent[1]["body"])["error"]


def test_a_body_that_never_comes(model):
    async def body():
        yield b"{"
        await asyncio.sleep(5)

    start = time.monotonic()
    answer = Client(model, Limits(seconds=0.05))("POST", "/predict", content=body(), headers=JSON)
    refused(answer, 408, "took too long to arrive")
    assert time.monotonic() - start < 3


@pytest.fixture
def stuck(model, monkeypatch):
    """A model that answers after the event is set."""
    event = threading.Event()

    def wait(inputs):
        event.wait(5)
        return torch.ones(len(inputs), DIM)

    monkeypatch.setattr(model, "coefficients", wait)
    yield event
    event.set()


def test_an_answer_that_takes_too_long(model, stuck):
    refused(Client(model, Limits(seconds=0.1)).predict({"inputs": ["a"]}), 504, "took too long")


def test_too_many_requests_wait(model, stuck):
    threading.Timer(0.2, stuck.set).start()
    found = Client(model, Limits(waiting=2, rows=1)).predict(*[{"inputs": ["a"]}] * 8)
    states = [answer.status_code for answer in found]
    assert set(states) == {200, 503} and states.count(200) >= 2
    busy = found[states.index(503)]
    refused(busy, 503, "Too many requests")
    assert busy.headers["retry-after"] == "1"


def test_requests_at_the_same_time_are_answered_together(model):
    client = Client(model)
    asked = [{"inputs": [f"text {i}"], "k": 1 + i % 3, "rule": ("cosine", "kernel")[i % 2]} for i in range(12)]
    asked[3] = {"coefficients": [[1, 2, 3, 4], [4, 3, 2, 1]], "k": 2}
    alone = [client.predict(body).json()["results"] for body in asked]
    model.asked.clear()
    assert [answer.json()["results"] for answer in client.predict(*asked)] == alone
    assert max(model.asked) > 2
    asked[5]["inputs"] = ["fine", "bad"]
    found = client.predict(*asked)
    refused(found.pop(5), 422, "inputs.1: 'bad'")
    alone.pop(5)
    assert [answer.json()["results"] for answer in found] == alone


@pytest.fixture
def warning(model, monkeypatch):
    """A model that warns of every input but those that are fine."""
    good = model.coefficients

    def warns(inputs):
        for at, text in enumerate(inputs):
            if text != "fine":
                warnings.warn(f"{text!r} at index {at} is a guess.", stacklevel=1)
        return good(inputs)

    monkeypatch.setattr(model, "coefficients", warns)
    return model


def test_warnings_are_notes_in_the_answer(warning, recwarn):
    client = Client(warning)
    assert client.predict({"inputs": ["fine"]}).json()["notes"] == []
    registry = dict(globals().get("__warningregistry__", {}))
    for _ in range(2):  # and not only the first time
        notes = client.predict({"inputs": ["odd", "fine", "rare"]}).json()["notes"]
        assert notes == ["'odd' at index 0 is a guess.", "'rare' at index 2 is a guess."]
    assert not recwarn.list  # the server's owner does not see them
    kept = {key for key in globals().get("__warningregistry__", {}) if isinstance(key, tuple)}
    assert kept <= set(registry)  # Python would keep one entry for every text


def test_notes_are_for_their_own_asker(warning):
    texts = [["odd"], ["fine"], ["fine", "rare"], ["bad"], ["fine"]]
    found = Client(warning).predict(*({"inputs": asked} for asked in texts), {"coefficients": [[1.0] * DIM]})
    assert max(warning.asked) > 2  # they came together
    notes = [["'odd' at index 0 is a guess."], [], ["'rare' at index 1 is a guess."], None, [], []]
    assert [answer.json().get("notes") for answer in found] == notes


def test_other_warnings_are_no_notes(model, monkeypatch):
    good, elsewhere = model.coefficients, []

    def warns(inputs):
        thread = threading.Thread(target=lambda: warnings.warn("of another thread", stacklevel=1))
        thread.start()
        thread.join()
        warnings.warn("old", DeprecationWarning, stacklevel=1)  # not about the answer
        return good(inputs)

    monkeypatch.setattr(model, "coefficients", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *where: elsewhere.append(str(message))
        assert Client(model).predict({"inputs": ["a"]}).json()["notes"] == []
    assert elsewhere == ["of another thread", "old"]


def test_a_bug_is_not_hidden_and_the_next_request_is_answered(model, monkeypatch):
    good = model.coefficients
    monkeypatch.setattr(model, "coefficients", lambda inputs: 1 / 0 if inputs == ["boom"] else good(inputs))
    client = Client(model)
    refused(client.predict({"inputs": ["boom"]}), 500, "its log says why")
    assert client.predict({"inputs": ["fine"]}).status_code == 200


def test_a_full_queue_is_busy_and_jobs_that_timed_out_are_skipped():
    started, release, answered = threading.Event(), threading.Event(), []

    def answer(asked):
        started.set()
        release.wait(5)
        answered.extend(asked)
        return asked

    async def fill():
        async with Batches(answer, size=1, waiting=2) as batches:
            first = asyncio.create_task(batches.ask("first", 1, 5))
            await asyncio.to_thread(started.wait)
            second, third = (asyncio.create_task(batches.ask(*job)) for job in (("second", 1, 0.01), ("third", 1, 5)))
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await batches.ask("fourth", 1, 5)
            with pytest.raises(TimeoutError):
                await second
            release.set()
            assert [await first, await third] == ["first", "third"]

    asyncio.run(fill())
    assert answered == ["first", "third"]


def test_health(client):
    facts = client.get("/health").json()
    assert facts["status"] == "ok" and facts["candidates"] == len(MOLECULES) and facts["coefficients"] == DIM
    assert facts["rules"] == ["kernel", "projected", "cosine"] and facts["kind"] == "exact"
    integers = dict.fromkeys(["body_bytes", "inputs", "text", "k", "waiting", "rows"], int)
    assert {name: type(value) for name, value in facts["limits"].items()} == integers | {
        "seconds": float,
        "rate": float,
    }


class TestDrawing:
    def test_molecules(self, client):
        pytest.importorskip("rdkit", reason="needs the extra chem")
        picture = client.get("/drawing", smiles="C" * 100)
        assert picture.status_code == 200 and picture.headers["content-type"] == "image/svg+xml"
        assert "<svg" in picture.text and "max-age" in picture.headers["cache-control"]

    @pytest.mark.parametrize(
        ("params", "words"),
        [
            ({"smiles": "C1CC"}, "Could not parse 'C1CC' as a molecule."),
            ({"smiles": ""}, "smiles: String should have at least 1 character."),
            ({}, "smiles: Field required."),
            ({"smiles": "C" * 101}, "Molecules of more than 100 atoms are not drawn. Got 101."),
            ({"smiles": "c1ccccc1" * 16 + "[13CH2]ClBr*C"}, "Got 101."),
            ({"smiles": "[C@@H](O)" * 50}, "smiles: String should have at most 400 characters."),
        ],
    )
    def test_refused(self, client, params, words):
        pytest.importorskip("rdkit", reason="needs the extra chem")
        refused(client.get("/drawing", **params), 422, words)

    def test_huge_molecules_never_reach_rdkit(self, client, monkeypatch):
        """It would block all threads, the clock of a time limit included."""
        chem = pytest.importorskip("dsokr.chem", reason="needs the extra chem")
        monkeypatch.setattr(chem, "draw", lambda *given, **named: pytest.fail("RDKit was asked"))
        assert client.get("/drawing", smiles="C" * 399).status_code == 422

    def test_one_at_a_time(self, model, monkeypatch):
        at_work, most, drawn = 0, 0, []

        def slow(smiles):
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            time.sleep(0.05)
            drawn.append(smiles)
            at_work -= 1
            return b"<svg/>"

        monkeypatch.setattr(app_module, "load_drawing", lambda: slow)
        client = Client(model, Limits(waiting=3))
        found = client.together([("GET", "/drawing", {"params": {"smiles": "C" * n}}) for n in range(1, 7)])
        states = [answer.status_code for answer in found]
        assert most == 1 and set(states) == {200, 503} and states.count(200) == len(drawn)
        refused(found[states.index(503)], 503, "Too many requests")
        refused(Client(model, Limits(seconds=0.02)).get("/drawing", smiles="C"), 504, "took too long")

    def test_pictures_are_cached(self, model, monkeypatch):
        chem, drawn = pytest.importorskip("dsokr.chem", reason="needs the extra chem"), []
        monkeypatch.setattr(chem, "draw", lambda molecules, size: drawn.extend(molecules) or "<svg/>")
        monkeypatch.setattr(answers, "MOST_PICTURES", 2)
        client = Client(model)
        for smiles in ("C", "CC", "C", "CCC", "C", "CC"):  # CCC takes the place of CC
            assert client.get("/drawing", smiles=smiles).content == b"<svg/>"
        assert drawn == ["C", "CC", "CCC", "CC"]

    def test_without_rdkit(self, model, monkeypatch):
        monkeypatch.delitem(sys.modules, "dsokr.chem", raising=False)
        monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
        monkeypatch.delattr("dsokr.chem", raising=False)
        client = Client(model)
        refused(client.get("/drawing", smiles="CCO"), 404, 'pip install "dsokr[chem]"')
        assert client.get("/health").json()["drawing"] is False


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("GET", "/drawing?smiles=CCO", 200),
        ("GET", "/drawing?smiles=C1CC", 422),
        ("GET", "/openapi.json", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/docs", 404),
        ("GET", "/redoc", 404),
        ("GET", "/predict", 405),
        ("POST", "/predict", 422),
        ("GET", "/", 200),
        ("HEAD", "/page.js", 200),
    ],
)
def test_every_answer_has_the_security_headers(client, method, path, status):
    pytest.importorskip("rdkit", reason="needs the extra chem")
    answer = client(method, path)
    check_security(answer)
    assert answer.status_code == status
    if status >= 400:
        refused(answer, status)
    if status == 405:
        assert answer.headers["allow"] == "POST"
    if answer.headers["content-type"] == "image/svg+xml":  # a document of its own, if it is opened
        assert "sandbox" in answer.headers["content-security-policy"]
        assert "script-src" not in answer.headers["content-security-policy"]


def check_security(answer):
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"] == "no-referrer"


def test_refusals_by_the_outer_layers_have_them_too(model, monkeypatch):
    monkeypatch.setattr(model, "coefficients", lambda inputs: 1 / 0)
    client = Client(model, Limits(body_bytes=100))
    found = [client.predict({"inputs": ["a"]}), client.predict("x" * 101)]
    found.append(client("GET", "/health", headers={"Host": "evil.example"}))
    assert [answer.status_code for answer in found] == [500, 413, 400]
    for answer in found:
        check_security(answer)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript"), ("/icon.svg", "image/svg+xml")],
)
def test_the_page_asks_no_other_host(client, path, kind):
    served = client.get(path)
    assert served.status_code == 200 and served.headers["content-type"].startswith(kind)
    text = served.text.replace("http://www.w3.org/2000/svg", "")  # the name of a language, not an address
    assert "://" not in text and 'src="//' not in text


@pytest.fixture(scope="module")
def named():
    return Client(HandMade(), hosts=["Models.org", "me", "*.lab.org", "::1", "0.0.0.0", "fe80::1"])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7:80", "models.org:443", "me", "a.lab.org"],
)
def test_hosts_that_are_answered(named, host):
    assert named("GET", "/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "evil.example@localhost", "", "[", "a/localhost"],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", "/predict"), ("GET", "/")])
def test_other_hosts_are_not(named, host, method, path):
    """A page of another site could have its own name lead here."""
    answer = named(method, path, content=b'{"inputs": ["a"]}', headers=JSON | {"Host": host})
    refused(answer, 400, "does not answer for this host name")


@pytest.mark.parametrize("host", ["https://models.org", "*", "", "a b", "x:80", "a.*.org"])
def test_hosts_are_checked(model, host):
    with pytest.raises(InputError, match="Hosts are names such as models.example.org"):
        Client(model, hosts=[host])


def test_limits_are_checked():
    with pytest.raises(InputError, match="Limits.k must be an integer of at least 1"):
        Limits(k=0)


def any_text_is_good() -> HandMade:
    model = HandMade()
    model.coefficients = lambda inputs: torch.ones(len(inputs), DIM)
    return model


schema = schemathesis.openapi.from_asgi(
    "/openapi.json",
    create_app(
        any_text_is_good(),
        HandMade().index(),
        Limits(text=40, inputs=3),
        hosts=["testserver"],
        reason=reason_by_letters,
    ),
)


@schema.exclude(path="/drawing").parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_the_schema_is_kept(case, tally):
    """What fits the schema is answered, what does not is refused, and all answers are as the schema says."""
    tally("requests by schemathesis")
    case.call_and_validate()


@schema.include(path="/drawing").parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_any_text_as_a_drawing(case):
    """Most texts are no molecules: they are refused, as the schema says."""
    case.call_and_validate(excluded_checks=[schemathesis.checks.positive_data_acceptance])


def test_over_a_socket(model):
    with running(create_app(model, model.index(), Limits(body_bytes=2000))) as (address, _):
        for path in ("/", "/page.js", "/health", "/openapi.json"):
            head, whole = httpx.head(f"{address}{path}"), httpx.get(f"{address}{path}")
            assert head.status_code == 200 and not head.content
            assert head.headers["content-length"] == whole.headers["content-length"]
        refused(httpx.post(f"{address}/predict", content=b"x" * 3000, headers=JSON), 413)
        refused(httpx.post(f"{address}/predict", content=iter([b"x" * 1000] * 10), headers=JSON), 413)
        assert httpx.post(f"{address}/predict", json={"inputs": ["a"]}).status_code == 200


def test_requests_under_way_are_answered_before_it_stops(model, monkeypatch):
    asked, release, found = threading.Event(), threading.Event(), []

    def slow(inputs):
        asked.set()
        release.wait(5)
        return torch.ones(len(inputs), DIM)

    monkeypatch.setattr(model, "coefficients", slow)
    with running(create_app(model, model.index())) as (address, real):
        asking = threading.Thread(target=lambda: found.append(httpx.post(f"{address}/predict", json={"inputs": ["a"]})))
        asking.start()
        assert asked.wait(5)
        real.should_exit = True
        threading.Timer(0.2, release.set).start()
        asking.join(10)
    assert found[0].status_code == 200


def test_a_port_in_use():
    with app_module.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"Cannot listen at 127.0.0.1, port {port}: .* Choose others with --host"):
            app_module.run(None, "127.0.0.1", port, print)
