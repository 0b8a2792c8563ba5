"""The server: every address, every refusal, and what a stranger may send."""

import asyncio
import json
import sys
import threading
import time
import warnings
from contextlib import contextmanager

import pytest
import torch

from dsokr import Training, decoders, kernels, networks, sketches
from dsokr.errors import InputError
from dsokr.commands import Predictor, embedding
from dsokr.commands.kinds import Labels, SmilesLetters, String, Vector
from serving import DIM, MOLECULES, HandMade, Kind

pytest.importorskip("fastapi", reason="needs the extra serve")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs httpx, to ask the server")
schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, to try its schema")

from hypothesis import settings  # noqa: E402 # after what may be missing

from dsokr.serve import Limits, create_app, server  # noqa: E402
from dsokr.serve import app as app_module  # noqa: E402
from dsokr.serve.batches import Batches, Busy  # noqa: E402
from dsokr.serve.drawings import Kept  # noqa: E402

JSON = {"Content-Type": "application/json"}


class Client:
    """Asks an application in this process; its lifespan is entered as a server would."""

    def __init__(self, app):
        self.app = app

    def __call__(self, method, url, **options):
        return self.together([(method, url, options)])[0]

    def together(self, requests):
        async def ask():
            async with self.app.router.lifespan_context(self.app):
                transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
                    return await asyncio.gather(*(client.request(m, u, **options) for m, u, options in requests))

        return asyncio.run(ask())

    def predict(self, body, **options):
        return self(
            "POST",
            "/predict",
            content=body if isinstance(body, str | bytes) else json.dumps(body),
            headers=JSON,
            **options,
        )


@pytest.fixture
def model():
    return HandMade()


@pytest.fixture
def client(model):
    return Client(create_app(model, model.index()))


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "where"} and body["error"].endswith(".") and body["error"].strip()
    assert all(word in body["error"] for word in words), body
    return body


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


def test_defaults_and_coefficients(client, model):
    z = torch.tensor([[1.0, -2, 3, 0.5]])
    answer = client.predict({"coefficients": z.tolist()}).json()
    expected = model.index().search(z, 10, "cosine")
    assert answer["rule"] == "cosine"
    assert [hit["index"] for hit in answer["results"][0]["hits"]] == expected.indices[0].tolist()
    everything = client.predict({"coefficients": z.tolist(), "k": 100}).json()
    assert len(everything["results"][0]["hits"]) == len(MOLECULES)


def test_vectors_as_inputs():
    model = HandMade(input=Kind("vector", mean=(0.0, 0.0)))
    client = Client(create_app(model, model.index()))
    assert len(client.predict({"inputs": [[1, 2.5]], "k": 2}).json()["results"][0]["hits"]) == 2
    refused(client.predict({"inputs": [[1, 2, 3]]}), 422, "inputs.0 must have at most 2 items")
    refused(client.predict({"inputs": ["1 2"]}), 422, "inputs.0")


def test_the_columns_of_vectors_are_named():
    numbers = Vector(columns=("heat", "wind"), mean=(0.0, 0.0), scale=(1.0, 1.0))
    model = HandMade(input=numbers, output=Vector(columns=("melt",), mean=(0.0,), scale=(1.0,)))
    client = Client(create_app(model, model.index()))
    facts = client("GET", "/health").json()
    assert facts["columns"] == ["heat", "wind"] and facts["output_columns"] == ["melt"]
    assert "In this order: heat, wind." in client("GET", "/openapi.json").text


def test_the_models_own_answer_is_given_when_asked_for():
    kinds = {"output": Labels(names=("a", "b", "c")), "rule": "kernel"}
    model, texts = HandMade(answer="a;b", **kinds), ["c", "b;a", "c;a"]
    client = Client(create_app(model, model.index(texts)))
    body = {"inputs": ["one", "other"], "k": 3}
    assert [result["prediction"] for result in client.predict(body).json()["results"]] == [None, None]
    answer = client.predict(body | {"predict": True}).json()
    scores = model.coefficients(body["inputs"]).sum(dim=1).tolist()
    for result, score in zip(answer["results"], scores, strict=True):
        own = result["prediction"]
        assert own["output"] == "a;b" and own["score"] == pytest.approx(score)
        assert result["hits"][own["rank"] - 1]["output"] == "b;a"  # the same set
    unknown = HandMade(answer="b", **kinds)
    found = Client(create_app(unknown, unknown.index(texts))).predict(body | {"predict": True}).json()
    assert [result["prediction"]["rank"] for result in found["results"]] == [None, None]
    assert client("GET", "/health").json()["searches"] is True


@pytest.mark.parametrize(("decoder", "searches"), [(decoders.LabelSet(), True), (decoders.Candidates(), False)])
def test_the_answer_is_that_of_the_predictor(decoder, searches):
    numbers = [f"{a} {b}" for a in range(-3, 4) for b in range(-3, 4)]
    labels = ["up" if int(text.split()[1]) > 0 else "left;down" for text in numbers]
    parts = {"kernel": kernels.Tanimoto(), "sketch": sketches.SubSample(9), "network": networks.MLP((8,))}
    training = Training(epochs=2, progress=False)
    predictor = Predictor.fit(
        numbers, labels, input=Vector(("a", "b")), output=Labels(), decoder=decoder, training=training, **parts
    )
    client = Client(create_app(predictor, embedding.opened(predictor, None)))
    asked = [[-2, 3], [1, -1]]
    found = client.predict({"inputs": asked, "predict": True}).json()["results"]
    expected = predictor.predict([" ".join(map(str, row)) for row in asked])
    if searches:
        assert [result["prediction"]["output"] for result in found] == expected
    else:
        assert [result["prediction"] for result in found] == [None, None]
        assert [result["hits"][0]["output"] for result in found] == expected
    assert client("GET", "/health").json()["columns"] == ["a", "b"]


def test_the_empty_string_is_an_answer_too():
    model = HandMade(output=String(), answer="word")
    model.decoded = lambda z: ([""] * len(z), z.sum(dim=1))
    answer = Client(create_app(model, model.index(["a", "b"]))).predict({"inputs": ["a"], "predict": True}).json()
    assert answer["results"][0]["prediction"]["output"] == "" and answer["results"][0]["prediction"]["rank"] is None


def test_models_of_a_list_have_no_answer_beside_it(client):
    assert client("GET", "/health").json()["searches"] is False
    answer = client.predict({"inputs": ["a"], "predict": True}).json()
    assert answer["results"][0]["prediction"] is None


def test_a_slow_search_for_an_answer_is_given_up_and_keeps_nobody_waiting(monkeypatch):
    model, decoded = HandMade(answer="CCO"), []

    def slow(z):
        decoded.append(len(z))
        time.sleep(0.4)
        return ["CCO"] * len(z), z.sum(dim=1)

    monkeypatch.setattr(model, "decoded", slow)
    client = Client(create_app(model, model.index(), Limits(seconds=0.6)))
    bodies = [{"inputs": ["a"] * 10, "predict": True}] + [{"inputs": ["a"]}] * 5
    answers = client.together([("POST", "/predict", {"content": json.dumps(body), "headers": JSON}) for body in bodies])
    refused(answers[0], 504, "took too long")
    assert all(answer.status_code == 200 and answer.json()["milliseconds"] < 300 for answer in answers[1:])
    assert decoded == [1, 1]  # what nobody waits for any more is not begun


def test_pictures_are_paths_on_the_server_and_not_taken():
    model = HandMade(input=Kind("image"))
    client = Client(create_app(model, model.index()))
    refused(client.predict({"inputs": ["/etc/passwd"]}), 422)
    assert client.predict({"coefficients": [[1.0] * DIM]}).status_code == 200
    assert client("GET", "/health").json()["input"] == ""


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("{", 400, "not JSON"),
        (b"\xff\xfe{}", 400, "not JSON"),
        ("[" * 50_000, 400, "not JSON"),
        ('{"inputs": [' + "9" * 6000 + "]}", 400, "not JSON"),
        ("", 422, "missing"),
        ("null", 422, ""),
        ([], 422, "JSON object"),
        ({}, 422, "inputs is missing"),
        ({"inputs": []}, 422, "inputs must have at least 1 items"),
        ({"inputs": "text"}, 422, "inputs"),
        ({"inputs": [1]}, 422, "inputs.0"),
        ({"inputs": ["  "]}, 422, "inputs.0 is empty"),
        ({"inputs": [""]}, 422, "inputs.0 is empty"),
        ({"inputs": ["a", "bad"]}, 422, "inputs.1: 'bad' cannot be read."),
        ('{"inputs": ["\\ud800"]}', 422, "unicode"),
        ({"inputs": ["a" * 5001]}, 422, "inputs.0 must have at most 5000 characters"),
        ({"inputs": ["a"] * 65}, 422, "inputs must have at most 64 items"),
        ({"inputs": ["a"], "k": 0}, 422, "k"),
        ({"inputs": ["a"], "k": 101}, 422, "k"),
        ({"inputs": ["a"], "k": 2.5}, 422, "k"),
        ({"inputs": ["a"], "k": True}, 422, "k"),
        ({"inputs": ["a"], "k": "3"}, 422, "k"),
        ({"inputs": ["a"], "rule": "best"}, 422, "rule"),
        ({"inputs": ["a"], "colour": "red"}, 422, "colour is not known here"),
        ({"inputs": ["a"], "coefficients": [[1] * DIM]}, 422, "not both"),
        ({"coefficients": [[1]]}, 422, f"coefficients.0 must have at least {DIM} items. Got 1."),
        ('{"coefficients": [[NaN, 1, 1, 1]]}', 422, "coefficients.0.0"),
        ('{"coefficients": [[1e999, 1, 1, 1]]}', 422, "coefficients.0.0"),
        ({"coefficients": [[1e13, 1, 1, 1]]}, 422, "coefficients.0.0 must be at most 1e+12."),
        ({"coefficients": [[1, "2", 1, 1]]}, 422, "coefficients.0.1 is not a number."),
        ({"inputs": ["a"], "predict": 1}, 422, "predict"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, int) else "",
)
def test_what_is_wrong_is_said_in_a_sentence(client, body, status, words):
    refused(client.predict(body), status, words)


def test_what_cannot_be_read_is_named_by_its_place():
    pytest.importorskip("rdkit", reason="needs the extra chem")
    model = HandMade(input=SmilesLetters(longest=32))
    body = refused(Client(create_app(model, model.index())).predict({"inputs": ["CCO", "XX"]}), 422)
    assert body == {"error": "inputs.1: Could not parse 'XX' as a molecule.", "where": "inputs.1"}


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}])
def test_another_content_type(client, headers):
    refused(
        client("POST", "/predict", content=b'{"inputs": ["a"]}', headers=headers), 422, "Content-Type: application/json"
    )


def test_large_numbers():
    """Those of training may be as large: only what single precision cannot hold is refused."""
    model = HandMade(input=Vector(columns=("mass", "charge"), mean=(1e15, 0.0), scale=(1e14, 1.0)))
    client = Client(create_app(model, model.index()))
    model.coefficients = lambda inputs: torch.from_numpy(model.input.all_of(inputs, "Input")).repeat(1, DIM // 2)
    assert client.predict({"inputs": [[1.2e15, 0.5]]}).status_code == 200
    assert refused(client.predict({"inputs": [[1, 1e39]]}), 422, "at most 3.4e+38")["where"] == "inputs.0.1"


@pytest.mark.parametrize("size", [1e13, float("inf"), float("nan")])
def test_coefficients_that_are_too_large_refuse_only_their_own_request(model, size):
    model.coefficients = lambda inputs: torch.tensor([[size if cell == "far" else 1.0] * DIM for cell in inputs])
    bodies = [{"content": json.dumps({"inputs": ["a", text]}), "headers": JSON} for text in ("b", "far", "c")]
    answers = Client(create_app(model, model.index())).together([("POST", "/predict", body) for body in bodies])
    assert [answer.status_code for answer in answers] == [200, 422, 200]
    assert refused(answers[1], 422, "far from the inputs of training")["where"] == "inputs.1"


def test_the_body_is_refused_before_it_is_read(model):
    app = create_app(model, model.index(), Limits(body_bytes=1000))
    read = []

    async def ask(headers, chunks):
        sent = []

        async def receive():
            read.append(len(chunks))
            return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/predict",
            "raw_path": b"/predict",
            "query_string": b"",
            "headers": headers,
            "scheme": "http",
            "server": ("dsokr", 80),
            "client": ("c", 1),
            "root_path": "",
            "http_version": "1.1",
        }
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))

    host = (b"host", b"localhost")
    status, body = asyncio.run(ask([host, (b"content-length", b"5000000")], [b"x" * 5000000]))
    assert status == 413 and not read and "at most 1,000 bytes" in body["error"]
    status, body = asyncio.run(ask([host, (b"content-type", b"application/json")], [b"x" * 400] * 1000))
    assert status == 413 and len(read) == 3 and "at most 1,000 bytes" in body["error"]


def test_a_body_that_never_comes(model):
    app = create_app(model, model.index(), Limits(seconds=0.05))

    async def body():
        yield b"{"
        await asyncio.sleep(5)
        yield b"}"

    start = time.monotonic()
    refused(Client(app)("POST", "/predict", content=body(), headers=JSON), 408, "took too long to arrive")
    assert time.monotonic() - start < 3


def test_an_answer_that_takes_too_long(model, monkeypatch):
    def slow(inputs):
        time.sleep(0.4)
        return torch.ones(len(inputs), DIM)

    monkeypatch.setattr(model, "coefficients", slow)
    client = Client(create_app(model, model.index(), Limits(seconds=0.1)))
    refused(client.predict({"inputs": ["a"]}), 504, "took too long")


def test_too_many_requests_wait(model, monkeypatch):
    def slow(inputs):
        time.sleep(0.3)
        return torch.ones(len(inputs), DIM)

    monkeypatch.setattr(model, "coefficients", slow)
    client = Client(create_app(model, model.index(), Limits(waiting=2, rows=1)))
    body = {"content": json.dumps({"inputs": ["a"]}), "headers": JSON}
    answers = client.together([("POST", "/predict", body)] * 8)
    states = [answer.status_code for answer in answers]
    assert set(states) == {200, 503} and states.count(200) >= 2
    busy = next(answer for answer in answers if answer.status_code == 503)
    refused(busy, 503, "Too many requests")
    assert busy.headers["retry-after"] == "1"


def test_requests_at_the_same_time_are_answered_together(model):
    client = Client(create_app(model, model.index()))
    asked = [{"inputs": [f"text {i}"], "k": 1 + i % 3, "rule": ("cosine", "kernel")[i % 2]} for i in range(12)]
    asked[5]["inputs"] = ["fine", "bad"]
    alone = [client.predict(body) for body in asked]
    model.asked.clear()
    together = client.together([("POST", "/predict", {"content": json.dumps(body), "headers": JSON}) for body in asked])
    for one, other in zip(alone, together, strict=True):
        assert one.status_code == other.status_code
        if one.status_code == 200:
            assert one.json()["results"] == other.json()["results"]
    refused(together[5], 422, "inputs.1: 'bad'")
    assert max(model.asked) > 2


@pytest.fixture
def warning(model, monkeypatch):
    """A model that warns of every input but those that are fine, and how often it was asked."""
    good = model.coefficients

    def warns(inputs):
        for at, text in enumerate(inputs):
            if text != "fine":
                warnings.warn(f"{text!r} at index {at} is a guess.", stacklevel=1)
        return good(inputs)

    monkeypatch.setattr(model, "coefficients", warns)
    return model


def test_what_a_model_warns_of_is_noted_in_the_answer(warning, recwarn):
    client = Client(create_app(warning, warning.index()))
    assert client.predict({"inputs": ["fine"]}).json()["notes"] == []
    for _ in range(2):  # and not only the first time
        found = client.predict({"inputs": ["odd", "fine", "rare"]}).json()["notes"]
        assert found == ["'odd' at index 0 is a guess.", "'rare' at index 2 is a guess."]
    assert not recwarn.list  # the server's owner is not told


def test_notes_are_for_their_own_asker(warning):
    client = Client(create_app(warning, warning.index()))
    texts = [["odd"], ["fine"], ["fine", "rare"], ["bad"], ["fine"]]
    bodies = [{"content": json.dumps({"inputs": asked}), "headers": JSON} for asked in texts]
    bodies.append({"content": json.dumps({"coefficients": [[1.0] * DIM]}), "headers": JSON})
    answers = client.together([("POST", "/predict", body) for body in bodies])
    assert max(warning.asked) > 2  # they came together
    assert [answer.json().get("notes") for answer in answers] == [
        ["'odd' at index 0 is a guess."],
        [],
        ["'rare' at index 1 is a guess."],
        None,
        [],
        [],
    ]


def test_warnings_of_other_threads_are_no_notes(model, monkeypatch):
    good, elsewhere = model.coefficients, []

    def warns(inputs):
        thread = threading.Thread(target=lambda: warnings.warn("another's", stacklevel=1))
        thread.start()
        thread.join()
        warnings.warn("old", DeprecationWarning, stacklevel=1)  # not about the answer
        return good(inputs)

    monkeypatch.setattr(model, "coefficients", warns)
    client = Client(create_app(model, model.index()))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *where: elsewhere.append(str(message))
        assert client.predict({"inputs": ["a"]}).json()["notes"] == []
    assert elsewhere == ["another's", "old"]


def test_warnings_leave_nothing_behind():
    """Python would keep one entry for every text that a network has warned of."""
    network = networks.CharTransformer(longest=64, width=8, heads=1, layers=1)
    training = Training(epochs=1, progress=False)
    texts = ["ab", "ba", "aab", "bba"] * 3
    parts = {"kernel": kernels.NGram(2), "sketch": sketches.SubSample(4), "network": network}
    predictor = Predictor.fit(texts, texts, input=String(), output=String(), training=training, **parts)
    client = Client(create_app(predictor, embedding.opened(predictor, None)))
    before = _remembered()
    for at in range(5):
        unknown, long = client.predict({"inputs": [f"abc{'ab' * at}abab"]}).json()["notes"]
        assert "'c'" in unknown and "is a guess" in long
    assert _remembered() == before


def _remembered():
    """How many warnings Python remembers of our modules."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("dsokr")]
    return sum(isinstance(key, tuple) for m in modules for key in getattr(m, "__warningregistry__", {}))


def test_a_bug_is_not_hidden_and_the_next_request_is_answered(model, monkeypatch):
    good = model.coefficients

    def broken(inputs):
        if inputs == ["boom"]:
            raise RuntimeError("boom")
        return good(inputs)

    monkeypatch.setattr(model, "coefficients", broken)
    client = Client(create_app(model, model.index()))
    bodies = [{"content": json.dumps({"inputs": [text]}), "headers": JSON} for text in ("boom", "fine")]
    refused(client("POST", "/predict", **bodies[0]), 500, "its own log says what")
    assert client("POST", "/predict", **bodies[1]).status_code == 200


def test_what_waits_when_it_is_closed_is_given_up():
    async def closing():
        started = threading.Event()

        def answer(asked):
            started.set()
            time.sleep(0.2)
            return asked

        async with Batches(answer, size=1, waiting=2) as batches:
            tasks = [asyncio.create_task(batches.ask("first", 1, 5))]
            await asyncio.to_thread(started.wait)
            tasks += [asyncio.create_task(batches.ask(text, 1, 5)) for text in ("second", "third")]
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await batches.ask("fourth", 1, 5)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(result, asyncio.CancelledError) for result in asyncio.run(closing())[1:])


def test_health(client):
    facts = client("GET", "/health").json()
    assert facts["status"] == "ok" and facts["candidates"] == len(MOLECULES) and facts["coefficients"] == DIM
    assert facts["rules"] == ["kernel", "projected", "cosine"] and facts["limits"]["k"] == 100
    assert {name: type(value) for name, value in facts["limits"].items() if name != "seconds"} == dict.fromkeys(
        ["body_bytes", "inputs", "text", "k", "waiting", "rows"], int
    )


def test_drawing(client):
    pytest.importorskip("rdkit", reason="needs the extra chem")
    picture = client("GET", "/drawing", params={"smiles": "CCO"})
    assert picture.status_code == 200 and picture.headers["content-type"] == "image/svg+xml"
    assert "<svg" in picture.text and "max-age" in picture.headers["cache-control"]
    refused(client("GET", "/drawing", params={"smiles": "C1CC"}), 422, "Could not parse 'C1CC' as a molecule")
    refused(client("GET", "/drawing", params={"smiles": ""}), 422)
    refused(client("GET", "/drawing"), 422, "smiles is missing")


def test_only_molecules_that_are_drawn_quickly(model):
    """RDKit lets nothing else run while it draws, the clock of a time limit included."""
    pytest.importorskip("rdkit", reason="needs the extra chem")
    large = ["C" * 100, "C" * 101, "c1ccccc1" * 16 + "[13CH2]ClBr*C", "[C@@H](O)" * 50]
    with running(create_app(model, model.index())) as (address, _):
        answers = [httpx.get(f"{address}/drawing", params={"smiles": smiles}) for smiles in large]
        assert answers[0].status_code == 200
        refused(answers[1], 422, "Molecules of more than 100 atoms are not drawn here. Got 101.")
        refused(answers[2], 422, "Got 101.")
        refused(answers[3], 422, "smiles must have at most 400 characters")
        huge = [{"smiles": "C" * (990 - at)} for at in range(4)]
        threads = [threading.Thread(target=httpx.get, args=(f"{address}/drawing",), kwargs={"params": h}) for h in huge]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        assert httpx.get(f"{address}/health").status_code == 200
        for thread in threads:
            thread.join()
        assert time.monotonic() - start < 5  # drawn, they take more than ten


def test_one_molecule_is_drawn_at_a_time(model, monkeypatch):
    at_work, most, drawn = 0, 0, []

    def slow(smiles):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        time.sleep(0.1)
        drawn.append(smiles)
        at_work -= 1
        return b"<svg/>"

    monkeypatch.setattr(app_module, "_draw", lambda: slow)
    client = Client(create_app(model, model.index(), Limits(waiting=3)))
    answers = client.together([("GET", "/drawing", {"params": {"smiles": "C" * n}}) for n in range(1, 7)])
    states = [answer.status_code for answer in answers]
    assert most == 1 and set(states) == {200, 503} and states.count(200) == len(drawn)
    refused(answers[states.index(503)], 503, "Too many requests")
    impatient = Client(create_app(model, model.index(), Limits(seconds=0.02)))
    refused(impatient("GET", "/drawing", params={"smiles": "C"}), 504, "took too long")


def test_pictures_are_kept_up_to_so_many_bytes(model, monkeypatch):
    drawn = []

    def draw(smiles):
        drawn.append(smiles)
        return b"." * 40

    monkeypatch.setattr(app_module, "_draw", lambda: draw)
    monkeypatch.setattr(app_module, "Kept", lambda: kept)
    kept = Kept(most=100)
    client = Client(create_app(model, model.index()))
    for smiles in ("C", "CC", "C", "CCC", "C", "CC"):  # CC is the one that goes for CCC
        assert client("GET", "/drawing", params={"smiles": smiles}).content == b"." * 40
    assert drawn == ["C", "CC", "CCC", "CC"] and kept.size == 80
    kept.keep("C", b"." * 101)
    assert kept.get("C") is None and kept.size <= 100
    kept.keep("CO", b"." * 30)
    kept.keep("CO", b"." * 20)
    assert kept.size == 20


def test_drawing_without_rdkit(model, monkeypatch):
    monkeypatch.setattr(app_module, "_draw", lambda: None)
    client = Client(create_app(model, model.index()))
    refused(client("GET", "/drawing", params={"smiles": "CCO"}), 404, 'pip install "dsokr[chem]"')
    assert client("GET", "/health").json()["drawing"] is False


def test_other_addresses_and_methods(client):
    refused(client("GET", "/nowhere"), 404, "nothing here")
    wrong = client("GET", "/predict")
    refused(wrong, 405, "does not take that method")
    assert wrong.headers["allow"] == "POST"
    for gone in ("/docs", "/redoc"):
        refused(client("GET", gone), 404)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript"), ("/icon.svg", "image/svg+xml")],
)
def test_the_page_asks_no_other_host(client, path, kind):
    served = client("GET", path)
    assert served.status_code == 200 and served.headers["content-type"].startswith(kind)
    assert "default-src 'none'" in served.headers["content-security-policy"]
    text = served.text.replace("http://www.w3.org/2000/svg", "")  # the name of a language, not an address
    assert "://" not in text and 'src="//' not in text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("HEAD", "/health", 200),
        ("GET", "/drawing?smiles=CCO", 200),
        ("GET", "/drawing?smiles=C1CC", 422),
        ("GET", "/openapi.json", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/predict", 405),
        ("POST", "/predict", 422),
        ("GET", "/page.js", 200),
    ],
)
def test_every_answer_has_the_headers(client, method, path, status):
    pytest.importorskip("rdkit", reason="needs the extra chem")
    answer = client(method, path)
    assert answer.status_code == status
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"] == "no-referrer"
    if answer.headers["content-type"] == "image/svg+xml":  # a document of its own, if it is opened
        assert "sandbox" in answer.headers["content-security-policy"]
        assert "script-src" not in answer.headers["content-security-policy"]


def test_refusals_by_the_layers_outside_have_the_headers_too(model, monkeypatch):
    monkeypatch.setattr(model, "coefficients", lambda inputs: 1 / 0)
    client = Client(create_app(model, model.index(), Limits(body_bytes=100)))
    answers = [
        client.predict({"inputs": ["a"]}),
        client.predict("x" * 101),
        client("GET", "/health", headers={"Host": "evil.example"}),
    ]
    assert [answer.status_code for answer in answers] == [500, 413, 400]
    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "127.0.0.1:8000",
        "[::1]:8000",
        "192.168.1.7:80",
        "models.org:443",
        "me",
    ],
)
def test_hosts_that_are_answered(model, host):
    client = Client(create_app(model, model.index(), hosts=["Models.org", "me:8000", "::1", "0.0.0.0"]))
    assert client("GET", "/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "evil.example@localhost", "", "[", "a/localhost"],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", "/predict"), ("GET", "/")])
def test_hosts_that_are_not(client, model, host, method, path):
    """A page of another site whose name was made to lead here."""
    answer = client(method, path, content=b'{"inputs": ["a"]}', headers=JSON | {"Host": host})
    refused(answer, 400, f"does not answer to {host!r}", "--allow-host")
    assert not model.asked


@pytest.mark.parametrize("host", ["https://models.org", "*", "", "a b", "x:y"])
def test_hosts_are_checked(model, host):
    with pytest.raises(InputError, match="Hosts are names such as models.example.org. Got "):
        create_app(model, model.index(), hosts=[host])


def test_the_command_takes_names_to_answer_to(monkeypatch):
    from dsokr import cli
    from dsokr.commands import Predictor

    model, apps = HandMade(), []
    monkeypatch.setattr(Predictor, "load", lambda *given: model)
    monkeypatch.setattr(embedding, "opened", lambda *given: model.index())
    monkeypatch.setattr(embedding, "example_inputs", lambda predictor: ())
    monkeypatch.setattr(server, "run", lambda app, *given, say: apps.append(app))
    arguments = ["serve", "model", "--host", "here.org", "--allow-host", "a.org", "--allow-host", "b.org"]
    cli.app(arguments, standalone_mode=False)
    for host, status in {"here.org": 200, "a.org": 200, "b.org:80": 200, "localhost": 200, "c.org": 400}.items():
        assert Client(apps[0])("GET", "/health", headers={"Host": host}).status_code == status


def test_limits_are_checked():
    with pytest.raises(InputError, match="Limits.k must be above 0"):
        Limits(k=0)


def any_text_is_good() -> HandMade:
    model = HandMade()
    model.coefficients = lambda inputs: torch.ones(len(inputs), DIM)
    return model


schema = schemathesis.openapi.from_asgi(
    "/openapi.json", create_app(any_text_is_good(), HandMade().index(), Limits(text=40, inputs=3), hosts=["testserver"])
)


@schema.exclude(path="/drawing").parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_the_schema_is_kept(case):
    """What fits the schema is answered, what does not is refused, and all answers are as the schema says."""
    case.call_and_validate()


@schema.include(path="/drawing").parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_any_text_as_a_drawing(case):
    """Most texts are no molecules: they are refused, as the schema says."""
    case.call_and_validate(excluded_checks=[schemathesis.checks.positive_data_acceptance])


@contextmanager
def running(app):
    """A real server on a port of this machine."""
    listening = server._bound("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="critical", access_log=False)
    real = uvicorn.Server(config)
    thread = threading.Thread(target=real.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        for _ in range(200):
            if real.started:
                break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", real
    finally:
        real.should_exit = True
        thread.join(10)
        listening.close()


def test_over_a_socket(model):
    with running(create_app(model, model.index(), Limits(body_bytes=2000))) as (address, _):
        assert httpx.get(f"{address}/health").json()["status"] == "ok"
        for path in ("/", "/page.js", "/health", "/openapi.json"):
            head = httpx.head(f"{address}{path}")
            assert head.status_code == 200 and not head.content
            assert head.headers["content-length"] == httpx.get(f"{address}{path}").headers["content-length"]
        refused(httpx.post(f"{address}/predict", content=b"x" * 3000, headers=JSON), 413)

        def chunks():
            for _ in range(10):
                yield b"x" * 1000

        refused(httpx.post(f"{address}/predict", content=chunks(), headers=JSON), 413)
        assert httpx.post(f"{address}/predict", json={"inputs": ["a"]}).status_code == 200


def test_requests_under_way_are_answered_before_it_stops(model, monkeypatch):
    def slow(inputs):
        time.sleep(0.5)
        return torch.ones(len(inputs), DIM)

    monkeypatch.setattr(model, "coefficients", slow)
    answers = []
    with running(create_app(model, model.index())) as (address, real):
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{address}/predict", json={"inputs": ["a"]}))
        )
        asking.start()
        time.sleep(0.2)
        real.should_exit = True
        asking.join(10)
    assert answers[0].status_code == 200


def test_a_port_in_use_is_said():
    taken = server._bound("127.0.0.1", 0)
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(InputError, match=f"Cannot listen at 127.0.0.1, port {port}: .* Choose others with --host"):
        server.run(None, "127.0.0.1", port, print)
    taken.close()
