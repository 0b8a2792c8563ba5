"""What operators rely on: keys, rate limits, metrics, readiness, request ids, logs, TLS, and memory that stays flat."""

import asyncio
import gc
import json
import logging
import socket
import ssl
import subprocess
import threading
import tracemalloc
from base64 import b64encode
from contextlib import ExitStack
from itertools import count, islice

import pytest
from typer.testing import CliRunner

from dsokr.commands.app import app as command_line
from dsokr.errors import InputError
from serving import MOLECULES, Client, HandMade, refused, running

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
parser = pytest.importorskip("prometheus_client.parser")

from dsokr.index import CandidateIndex  # noqa: E402 # after what may be missing
from dsokr.serve import Limits, add_key, connections, create_app, operations, read_keys  # noqa: E402

ASK = {"inputs": ["ethanol"]}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def basic(key, user="anyone"):
    return {"Authorization": f"Basic {b64encode(f'{user}:{key}'.encode()).decode()}"}


def read_metrics(client, **options):
    found = client("GET", "/metrics", **options)
    assert found.status_code == 200
    families = parser.text_string_to_metric_families(found.text)
    return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


class TestKeys:
    @pytest.fixture
    @staticmethod
    def file(tmp_path):
        return tmp_path / "keys.txt"

    def test_the_command_adds_a_key_and_the_file_has_only_its_hash(self, file):
        runner = CliRunner()
        made = [runner.invoke(command_line, ["key", str(file), *rest]) for rest in (["ann"], ["bob", "--rate", "2.5"])]
        secrets = [done.stdout.strip() for done in made]
        assert all(len(secret) >= 43 for secret in secrets) and len(set(secrets)) == 2
        assert not any(secret in file.read_text() for secret in secrets) and file.stat().st_mode & 0o077 == 0
        assert [(key.name, key.rate) for key in read_keys(file)] == [("ann", 0), ("bob", 2.5)]
        with pytest.raises(InputError, match="line 3 has a name that is there already"):
            add_key(file, "bob", 0)
        for bad in ("", "a:b", "a b", "ä", "x" * 65):
            with pytest.raises(InputError, match="line 3 is not name:hash or name:hash:rate"):
                add_key(file, bad, 0)
        for rate in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InputError, match="is not name:hash"):
                add_key(file, "eve", rate)
        assert len(read_keys(file)) == 2

    @pytest.mark.parametrize("text", ["", "# nobody\n\n", "ann\n", "ann:123\n", f"ann:{'0' * 64}:fast\n", "\0\xff"])
    def test_files_that_are_wrong(self, file, text):
        file.write_text(text)
        with pytest.raises(InputError, match=r"keys.txt(: line 1 is not name:hash| does not exist or has no keys)"):
            read_keys(file)

    def test_only_clients_with_a_key_are_answered(self, file):
        key = add_key(file, "ann", 0)
        client = Client(HandMade(), keys=read_keys(file))
        for headers in (bearer(key), basic(key), {"Authorization": f"bearer  {key} "}):
            assert client("POST", "/predict", json=ASK, headers=headers).status_code == 200
            assert client("GET", "/health", headers=headers).json()["candidates"] == len(MOLECULES)
        wrong = [{}, bearer(""), bearer(key[:-1]), bearer(key + "x"), basic(""), basic("x", key), bearer("é".encode())]
        wrong += [{"Authorization": text} for text in ("Basic", "Basic \xff".encode("latin-1"), f"Digest {key}x", key)]
        for headers in wrong:
            for method, path in (("POST", "/predict"), ("GET", "/"), ("GET", "/metrics"), ("GET", "/nowhere")):
                answer = client(method, path, headers=headers)
                refused(answer, 401, "Authorization: Bearer KEY")
                assert answer.headers["www-authenticate"].startswith("Basic") and "nosniff" in str(answer.headers)
            assert client("GET", "/health", headers=headers).json() == {"status": "ok"}  # and nothing else
            assert client("GET", "/ready", headers=headers).json() == {"status": "ready"}

    def test_every_key_is_compared_in_constant_time(self, file, monkeypatch):
        keys = [add_key(file, name, 0) for name in ("ann", "bob", "eve")]
        known, compared = read_keys(file), []
        compare = operations.hmac.compare_digest
        monkeypatch.setattr(operations.hmac, "compare_digest", lambda *two: compared.append(two) or compare(*two))
        for given, name in ((keys[0], "ann"), (keys[2], "eve"), ("none", None)):
            found = operations.find_key(known, operations.Headers(bearer(given)))
            assert (found and found.name) == name
        assert len(compared) == 9


class TestRates:
    @pytest.fixture
    @staticmethod
    def clock(monkeypatch):
        now = [1000.0]
        monkeypatch.setattr(operations.time, "monotonic", lambda: now[0])
        return now

    def test_a_burst_and_then_evenly(self, clock):
        rates = operations.Rates()
        assert [rates.wait("a", 2.0) for _ in range(20)] == [0] * 20
        assert rates.wait("a", 2.0) == pytest.approx(0.5) and rates.wait("b", 2.0) == 0
        clock[0] += 0.5
        assert rates.wait("a", 2.0) == 0 and rates.wait("a", 2.0) > 0
        clock[0] += 100
        assert [rates.wait("a", 2.0) for _ in range(20)] == [0] * 20
        assert rates.wait("a", 2.0) > 0
        assert rates.wait("slow", 0.01) == 0 and rates.wait("slow", 0.01) == pytest.approx(100)

    def test_clients_are_forgotten(self, clock):
        rates = operations.Rates()
        for number in range(operations.MOST_CLIENTS + 50):
            rates.wait(str(number), 1.0)
        assert len(rates.due) == operations.MOST_CLIENTS and "49" not in rates.due and "50" in rates.due

    def test_of_an_address_and_of_a_key(self, tmp_path):
        file = tmp_path / "keys.txt"
        slow, usual = add_key(file, "slow", 0.1), add_key(file, "usual", 0)
        client = Client(HandMade(), Limits(rate=0.3), keys=read_keys(file))

        def ask(n, key):
            headers = bearer(key)
            found = client.together([("POST", "/predict", {"json": ASK, "headers": headers})] * n)
            return [answer.status_code for answer in found], found[-1]

        assert ask(2, slow)[0] == [200, 429]
        states, last = ask(4, usual)
        assert states == [200] * 3 + [429] and 1 <= int(last.headers["retry-after"]) <= 4
        refused(last, 429, "One client may ask 0.3 times a second.")
        assert ask(4, "wrong")[0] == [401] * 3 + [429]  # guessing is limited by address
        assert [client("GET", path).status_code for path in ["/ready", "/health"] * 5] == [200] * 10


class TestMetrics:
    def test_counts(self):
        psi = HandMade().index().arrays[0]
        columns = {"mass": [str(n) for n in range(len(MOLECULES))]}
        index = CandidateIndex.in_memory(MOLECULES, psi, psi.square().sum(1), cells=columns)
        client = Client(HandMade(), index=index)
        client.predict({"inputs": ["a", "b"]}, {"inputs": ["c"], "within": {"mass": [100, 200]}}, {"inputs": ["bad"]})
        for number in range(30):
            client.get(f"/{number}")
        found = read_metrics(client)
        assert found["dsokr_requests_total", "/predict", "200"] == 2
        assert found["dsokr_requests_total", "/predict", "422"] == 1
        assert found["dsokr_requests_total", "404", "other"] == 30  # and no label for each
        assert (
            found["dsokr_request_seconds_count", "/predict"]
            == found["dsokr_request_seconds_bucket", "+Inf", "/predict"]
            == 3
        )
        assert found["dsokr_inputs_total",] == 3 and found["dsokr_abstentions_total",] == 1
        assert found["dsokr_guesses_total",] == 0 and found["dsokr_active_requests",] == 1
        assert found["dsokr_index_candidates", "0.1.0", "exact"] == len(MOLECULES)
        assert found["dsokr_index_version",] == 0
        assert found["process_resident_memory_bytes",] > 1e6
        assert {key[1] for key in found if key[0] == "dsokr_waiting_requests"} == {
            "rankings", "predictions", "pictures", "reasons",
        }  # fmt: skip
        assert read_metrics(client)["dsokr_requests_total", "/metrics", "200"] == 1

    def test_a_queue_that_is_full_is_not_ready(self, monkeypatch):
        model, asked, release = HandMade(), threading.Event(), threading.Event()
        good = model.coefficients

        def slow(inputs):
            asked.set()
            assert release.wait(5)
            return good(inputs)

        monkeypatch.setattr(model, "coefficients", slow)
        limits, body = Limits(waiting=2, rows=1), {"json": ASK}

        async def ask(client):
            answers = [asyncio.create_task(client.post("/predict", **body))]
            await asyncio.to_thread(asked.wait, 5)
            answers += [asyncio.create_task(client.post("/predict", **body)) for _ in range(2)]
            while 'waiting_requests{queue="rankings"} 2.0' not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)
                assert not any(answer.done() for answer in answers)
            full, alive = await client.get("/ready"), await client.get("/health")
            release.set()
            done = await asyncio.gather(*answers)
            return full, alive, [answer.status_code for answer in done], await client.get("/ready")

        app = create_app(model, model.index(), limits)

        async def serve():
            reached = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
            async with app.router.lifespan_context(app), reached as client:
                return await ask(client)

        full, alive, states, after = asyncio.run(serve())
        refused(full, 503, "Too many requests are waiting")
        assert alive.status_code == 200
        assert states == [200] * 3 and after.json() == {"status": "ready"}


class TestLogs:
    @pytest.fixture
    @staticmethod
    def lines(tmp_path):
        """Lines of the log of a server, after requests to it."""
        model, file = HandMade(), tmp_path / "log.jsonl"
        good = model.coefficients
        model.coefficients = lambda inputs: 1 / 0 if inputs == ["boom"] else good(inputs)

        def ask(*requests):
            with running(create_app(model, model.index()), log=file) as (address, _), httpx.Client() as client:
                found = [client.request(method, address + path, **options) for method, path, options in requests]
            for name in ("dsokr.serve", "uvicorn.error"):
                for handler in logging.getLogger(name).handlers[:]:
                    handler.close()
                    logging.getLogger(name).removeHandler(handler)
                logging.getLogger(name).setLevel(logging.NOTSET)
            return found, [json.loads(line) for line in file.read_text().splitlines()]

        return ask

    def test_a_line_per_request_with_its_id_and_without_its_text(self, lines):
        ids = {"X-Request-ID": "from-the-proxy.1"}, {"X-Request-ID": "no\tgood {}"}, {}
        found, said = lines(
            *(("POST", "/predict?q=secret", {"json": {"inputs": ["secret"]}, "headers": h}) for h in ids)
        )
        assert [answer.headers["x-request-id"] for answer in found] == [line["request"] for line in said]
        assert said[0]["request"] == "from-the-proxy.1" and len({line["request"] for line in said}) == 3
        assert all(len(line["request"]) == 16 for line in said[1:])
        for line in said:
            assert line["status"] == 200 and line["method"] == "POST" and line["path"] == "/predict"
            assert line["client"] == "127.0.0.1" and line["milliseconds"] > 0 and line["time"].endswith("+00:00")
        assert "secret" not in str(said)

    def test_an_error_has_the_id_of_its_request(self, lines):
        [answer], said = lines(("POST", "/predict", {"json": {"inputs": ["boom"]}}))
        refused(answer, 500, "its log says why")
        assert answer.headers["x-request-id"] == said[0]["request"] == said[1]["request"]
        request, error = sorted(said, key=lambda line: line["level"], reverse=True)
        assert request["status"] == 500 and "ZeroDivisionError" in error["exception"]

    def test_a_file_that_cannot_be_written(self, tmp_path):
        for bad in (tmp_path, tmp_path / "none" / "log"):
            with pytest.raises(InputError, match=r"The log .* cannot be written: .*\.$"):
                operations.configure_log(bad)

    def test_a_path_cannot_forge_a_line(self, lines):
        _, said = lines(("GET", "/a%0A%7B%22level%22:%22error%22%7D" + "x" * 500, {}))
        assert len(said) == 1 and said[0]["level"] == "info" and len(said[0]["path"]) == 200


class TestTLS:
    @pytest.fixture(scope="class")
    @staticmethod
    def files(tmp_path_factory):
        """A certificate for 127.0.0.1 and its key."""
        folder = tmp_path_factory.mktemp("tls")
        paths = folder / "certificate.pem", folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
        try:
            subprocess.run(
                [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1]],
                check=True, capture_output=True,
            )  # fmt: skip
        except FileNotFoundError:
            pytest.skip("needs openssl, to make a certificate")
        return paths

    def test_answers_are_encrypted(self, files):
        certificate, private_key = files
        model = HandMade()
        app = create_app(model, model.index())
        with running(app, certificate=certificate, private_key=private_key) as (address, _):
            safe = address.replace("http:", "https:")
            trusted = ssl.create_default_context(cafile=str(certificate))
            assert httpx.get(f"{safe}/health", verify=trusted).json()["status"] == "ok"
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                httpx.get(f"{safe}/health")
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{address}/health")
            trusted.maximum_version = ssl.TLSVersion.TLSv1_2
            assert httpx.get(f"{safe}/ready", verify=trusted).status_code == 200

    def test_handshakes_that_do_not_come_are_given_up(self, files, monkeypatch):
        monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
        monkeypatch.setattr(asyncio.constants, "SSL_HANDSHAKE_TIMEOUT", 60.0)
        model, (certificate, private_key) = HandMade(), files
        app = create_app(model, model.index())
        with running(app, certificate=certificate, private_key=private_key) as (address, _), ExitStack() as stack:
            host, port = address.removeprefix("http://").split(":")
            silent = [stack.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(200)]
            trusted = ssl.create_default_context(cafile=str(certificate))
            assert httpx.get(address.replace("http:", "https:") + "/ready", verify=trusted).status_code == 200
            assert [made.recv(10) for made in silent] == [b""] * 200  # closed

    def test_files_that_cannot_be_used(self, files, tmp_path):
        from dsokr.serve.app import configure

        certificate, private_key = files
        empty = tmp_path / "empty.pem"
        empty.touch()
        app = create_app(HandMade(), HandMade().index())
        for pair in ((empty, private_key), (certificate, empty), (certificate, tmp_path / "none"), (certificate, None)):
            with pytest.raises(InputError, match=r"\.pem and its key cannot be used for TLS: .*\.$") as said:
                configure(app, *pair)
            assert "\n" not in str(said.value)
        with pytest.raises(InputError, match="--certificate"):
            configure(app, None, private_key)


@pytest.mark.slow
def test_memory_stays_flat_over_many_requests():
    """Ids, paths, addresses and texts that never come again leave nothing behind."""
    client, numbers = Client(HandMade(), Limits(rate=1e6)), count()

    def ask(n):
        requests = []
        for number in islice(numbers, n):
            headers = {"X-Request-ID": f"id-{number}", "Authorization": f"Bearer {number}"}
            asked = {"json": {"inputs": [f"text {number}"], "k": 3}, "headers": headers}
            requests += [("POST", "/predict", asked), ("GET", f"/nowhere/{number}", {})]
        assert {answer.status_code for answer in client.together(requests)} == {200, 404}
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    for _ in range(6):  # fills caches of Python
        ask(50)
    tracemalloc.start()
    try:
        before = [ask(50) for _ in range(3)][-1]
        after = [ask(50) for _ in range(3)][-1]
    finally:
        tracemalloc.stop()
    assert after - before < 300 * 50  # bytes, for 300 requests
