"""The server on real sockets: slow, many and broken connections, and signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from dsokr.serve import Limits, connections, create_app  # noqa: E402 # an extra
from serving import HandMade, running  # noqa: E402

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


SMUGGLED = [  # a proxy may read another length than the server
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Content-Length: +5",
    b"Content-Length: 0x5",
    b"Content-Length: 5, 6",
    b"Content-Length: " + b"9" * 5000,
    b"Transfer-Encoding:\x0bchunked",
]


@pytest.fixture(scope="module")
def address():
    model = HandMade()
    with running(create_app(model, model.index(), Limits())) as (address, _):
        yield address


def connect(address, own="127.0.0.1"):
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=5, source_address=(own, 0))


def talk(address, *pieces):
    """Send bytes and read until the server closes."""
    with connect(address) as made:
        for piece in pieces:
            made.sendall(piece)
        answer = b""
        while data := made.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), json.loads(body)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
        *(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n0\r\n\r\nGET /ready HTTP/1.1\r\n\r\n"
            for line in SMUGGLED
        ),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
        bytes(range(256)) + b"\r\n\r\n",
    ],
)
def test_broken_requests_are_answered_in_json(address, request_bytes):
    status, head, body = talk(address, request_bytes)
    assert status == 400 and body == {"error": "The request is not valid HTTP.", "where": ""}
    assert "content-type: application/json" in head and "connection: close" in head and "nosniff" in head


def test_two_lengths_of_one_body(address):
    """Which of the two counts is what request smuggling lives on."""
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _, body = talk(address, head + b"0\r\n\r\n")
    assert status == 400 and body["error"] == "Send Content-Length or Transfer-Encoding, not both."


def test_slow_headers(address, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    start = time.monotonic()
    status, _, body = talk(address, GET[:20])
    assert status == 408 and "took too long" in body["error"] and time.monotonic() - start < 3
    with connect(address) as made:
        made.sendall(GET)
        assert made.recv(65536).startswith(b"HTTP/1.1 200")
        made.sendall(GET[:9])  # of a second request
        said = b""
        while data := made.recv(65536):
            said += data
        assert b"HTTP/1.1 408" in said


def test_dripping_headers_are_no_way_around(address, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with connect(address) as made:
        start, said = time.monotonic(), b""
        made.settimeout(0.05)
        while not said and time.monotonic() - start < 4:
            made.sendall(b"G")
            try:
                said = made.recv(65536)
            except TimeoutError:
                continue
    assert b"408" in said or b"400" in said


def test_the_rest_of_a_body_that_is_answered_does_not_hold_a_connection(address, monkeypatch):
    """Else a client could drip it for ever, and take up one of the connections."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    with connect(address) as made:
        made.sendall(head)
        assert made.recv(65536).startswith(b"HTTP/1.1 404")
        start = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - start < 5:
                made.sendall(b"x")
                time.sleep(0.05)


def test_answers_that_are_not_read_do_not_hold_a_connection(address, monkeypatch):
    monkeypatch.setattr(connections, "READ_SECONDS", 0.5)
    asked, size = 3000, len(httpx.get(f"{address}/openapi.json").content)
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(5)
        made.connect((urlsplit(address).hostname, urlsplit(address).port))
        made.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * asked)
        time.sleep(2)
        read = 0
        with suppress(ConnectionError):
            while data := made.recv(2**20):
                read += len(data)
    assert read < asked * size / 2
    assert httpx.get(f"{address}/health").status_code == 200


def test_half_open_connections_keep_nobody_else_waiting(address):
    """One address opens 2,000, of which 200 are kept; another asks meanwhile, and waits about as long as before."""

    def time_requests():
        times = []
        for _ in range(20):
            start = time.perf_counter()
            assert httpx.get(f"{address}/health").status_code == 200
            times.append(time.perf_counter() - start)
        return sorted(times)[10]

    before = time_requests()
    with ExitStack() as stack:
        for _ in range(2000):
            stack.enter_context(connect(address, "127.0.0.2")).sendall(GET[:10])
        assert time_requests() < max(0.1, 5 * before)
        with connect(address, "127.0.0.2") as refused:
            assert b"503" in refused.recv(65536)


SERVER = """
import sys
import time
sys.path.insert(0, {tests!r})
import typer
from dsokr.commands.app import app
from dsokr.serve import create_app, run
from serving import HandMade

@app.command("hand")
def hand():
    model = HandMade()
    good = model.coefficients
    model.coefficients = lambda inputs: time.sleep(1) or good(inputs)
    run(create_app(model, model.index()), "127.0.0.1", 0, say=lambda line: print(line, flush=True))

sys.argv = ["dsokr", "hand"]
app()
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_stops_it_with_0_and_requests_under_way_are_answered(sent):
    script = SERVER.format(tests=os.path.dirname(__file__))
    served = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    address = served.stdout.readline().split()[2]
    assert httpx.get(f"{address}/health").status_code == 200
    with connect(address) as asking:
        body = b'{"inputs": ["a"]}'
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        asking.sendall(b"POST /predict HTTP/1.1\r\n" + head + body)
        while "dsokr_active_requests 2.0" not in httpx.get(f"{address}/metrics").text:
            time.sleep(0.01)
        served.send_signal(sent)
        assert asking.recv(65536).startswith(b"HTTP/1.1 200")
    assert "Stopped." in served.communicate(timeout=20)[0] and served.returncode == 0


def test_sigterm_stops_a_fit_with_a_sentence(tmp_path):
    rows = "".join(f"{i},{i % 7},{'ab' if i % 2 else 'ba'}\n" for i in range(200))
    (tmp_path / "pairs.csv").write_text(f"a,b,y\n{rows}")
    network = ["--network", "MLP((8,))", "--epochs", "100000", "--patience", "100000", "--batch-size", "4"]
    named = ["--input", "a,b", "--output", "y", "--output-kind", "string", "--out", str(tmp_path / "model")]
    command = [
        sys.executable,
        "-m",
        "dsokr.commands.app",
        "fit",
        "--train",
        str(tmp_path / "pairs.csv"),
        *named,
        *network,
    ]
    fitting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not list(tmp_path.rglob("metrics.csv")):  # of the first epoch
        assert fitting.poll() is None, fitting.communicate()[0]
        time.sleep(0.01)
    fitting.send_signal(signal.SIGTERM)
    said = fitting.communicate(timeout=60)[0]
    assert fitting.returncode == 143 and said.strip().endswith("Run the same command to resume.")
    assert "Traceback" not in said and not (tmp_path / "model").exists()
