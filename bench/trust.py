"""What checks cost, and what strangers can do to a server, on this machine.

    PYTHONPATH=. python bench/trust.py checks --folder indices       # opening and searching 1 M candidates
    PYTHONPATH=. python bench/trust.py connections                   # 2,000 connections that send half a request
    PYTHONPATH=. python bench/trust.py requests                      # a million requests, and the memory of the server

``checks`` builds an exact and an HNSW index of 1,000,000 × 100 in the folder, unless they are there. It opens and
searches each as it is and with all checksums left out, in turn. ``connections`` starts a server, opens connections from
one address and asks for /health from another. ``requests`` calls the application in this process, without sockets: good
questions, wrong ones, unknown addresses and clients without a key, all with texts, ids and keys that never come again;
resident memory is read after every tenth. Rows are appended to results/trust; docs/render.py makes the page of them.
Goals: opening at most 10 % slower, searching not at all; /health within 100 ms; memory that stays flat.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any
from unittest.mock import patch

import httpx
import torch
from starlette.types import ASGIApp

from bench.index import RULE, clustered
from bench.server import Plain, serve
from dsokr import files
from dsokr.index import BuildOptions, CandidateIndex, build
from dsokr.index.build import sample_queries
from dsokr.serve import Key, Limits, create_app
from studies.results import Results, Row

OPENED, FRESH, SEARCHED, K, BATCH = 16, 4, 40, 10, 64
ASKED = 200  # requests to /health
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def unchecked(index: Path) -> Iterator[None]:
    """Leave out all checksums, whether they are computed when an index is opened or when it is read."""
    sums = {path.name: sums for path, sums in zip(*_list_sums(index), strict=True)}
    with (
        patch.object(files.CheckedFile, "check", lambda *_: None),
        patch.object(files, "sum_file", lambda path, size=None: sums[path.name]),
    ):
        yield


def _list_sums(index: Path) -> tuple[list[Path], list[str]]:
    head = CandidateIndex.open(index).head
    return list(head.list_files(index)), list(head.sums.values())


def measure_checks(index: Path) -> Row:
    """Milliseconds to open an index and to search it, with checks and without, in turn; files are in memory."""
    times: dict[str, list[float]] = {}

    ways = [("checked", ExitStack), ("unchecked", lambda: unchecked(index))]

    def measure(what: str, work: Callable[[], object], repeats: int) -> None:
        for number in range(repeats):
            for name, around in ways if number % 2 else ways[::-1]:  # neither is always the first
                with around():
                    start = time.perf_counter()
                    work()
                    times.setdefault(f"{what}_{name}", []).append(1000 * (time.perf_counter() - start))

    measure("open", lambda: CandidateIndex.open(index), OPENED)
    opened = CandidateIndex.open(index)
    z, one = sample_queries(opened, BATCH), sample_queries(opened, 1, seed=1)
    fresh = iter([CandidateIndex.open(index) for _ in range(2 * FRESH)])
    measure("first_search", lambda: next(fresh).search(z, K, RULE), FRESH)
    opened.search(z, K, RULE)
    measure("search", lambda: opened.search(z, K, RULE), SEARCHED)
    measure("search_one", lambda: opened.search(one, K, RULE), SEARCHED)
    return {"metrics": {name: median(found) for name, found in times.items()}}


def run_checks(options: argparse.Namespace) -> None:
    results = Results(options.out / "checks.jsonl", say=print)
    source = clustered(options.count, options.dim)
    for kind in ("exact", "hnsw"):
        folder = options.folder / kind
        build(folder, source.blocks, model=source.model, dim=source.dim, options=BuildOptions(kind, RULE), say=print)
        size = sum(path.stat().st_size for path in folder.iterdir())
        key = {"experiment": "trust", "method": kind, "candidates": options.count, "dim": options.dim, "bytes": size}
        if not options.build:
            row = results.record(key | {"batch": BATCH}, lambda at=folder: measure_checks(at))
            print({name: round(value, 3) for name, value in row["metrics"].items()})


def run_connections(options: argparse.Namespace) -> None:
    results = Results(options.out / "connections.jsonl", say=print)
    key = {"experiment": "trust", "method": "half-open", "connections": options.connections, "requests": ASKED}
    print(results.record(key, lambda: measure_connections(options.connections))["metrics"])


def measure_connections(count: int) -> Row:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, 10_000, 100))
    process.start()
    try:
        address = f"http://127.0.0.1:{port}/health"
        _await_answer(address)
        before = _time_requests(address)
        with ExitStack() as stack:
            for _ in range(count):
                made = socket.create_connection(("127.0.0.1", port), 5, source_address=("127.0.0.2", 0))
                stack.enter_context(made).sendall(GET[:10])
            during = _time_requests(address)
    finally:
        process.terminate()
        process.join(15)
    return {"metrics": {"before": before, "during": during}}


def run_requests(options: argparse.Namespace) -> None:
    results = Results(options.out / "requests.jsonl", say=print)
    key = {"experiment": "trust", "method": "memory", "requests": options.requests}
    print(results.record(key, lambda: asyncio.run(measure_requests(options.requests)))["metrics"])


async def measure_requests(count: int) -> Row:
    psi = torch.randn(1000, 100, generator=torch.Generator().manual_seed(0))
    index = CandidateIndex.in_memory([f"y{i}" for i in range(1000)], psi, psi.square().sum(1))
    secret = "a key"
    app = create_app(Plain(), index, Limits(rate=1e9), keys=[Key("ann", sha256(secret.encode()).hexdigest(), 0.0)])
    numbers, states, memory = iter(range(count)), Counter[int](), []

    async def ask() -> None:
        for number in numbers:
            states[await call(app, *make_request(number, secret))] += 1
            if number % (count // 10) == count // 10 - 1:
                memory.append(read_memory())

    async with app.router.lifespan_context(app):
        await asyncio.gather(*(ask() for _ in range(32)))
    failed = sum(many for status, many in states.items() if status >= 500)
    return {"metrics": {"states": dict(sorted(states.items())), "errors": failed, "mebibytes": memory}}


def make_request(number: int, secret: str) -> tuple[str, str, bytes, bytes]:
    """Method, path, key and body of a request."""
    asked = json.dumps({"inputs": [f"text {number}"], "k": 3}).encode()
    kinds = [
        ("POST", "/predict", secret.encode(), asked),
        ("POST", "/predict", secret.encode(), asked[:-1]),
        ("POST", "/predict", b"wrong %d" % number, asked),
        ("GET", f"/{number}", secret.encode(), b""),
        ("GET", "/health", b"", b""),
    ]
    return kinds[number % len(kinds)]


async def call(app: ASGIApp, method: str, path: str, key: bytes, body: bytes) -> int:
    """The status of the answer."""
    status = 0
    headers = {b"host": b"localhost", b"content-type": b"application/json", b"authorization": b"Bearer " + key}
    headers[b"x-request-id"] = token_hex(8).encode()
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
             "query_string": b"", "root_path": "", "scheme": "http", "headers": list(headers.items()),
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status


def read_memory() -> float:
    """Resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _await_answer(address: str) -> None:
    for _ in range(600):
        try:
            httpx.get(address)
            return
        except httpx.TransportError:
            time.sleep(0.1)


def _time_requests(address: str) -> Row:
    """Milliseconds of requests on connections of their own."""
    times = []
    for _ in range(ASKED):
        start = time.perf_counter()
        with socket.create_connection(("127.0.0.1", httpx.URL(address).port), 5) as asking:
            asking.sendall(GET)
            assert asking.recv(65536).startswith(b"HTTP/1.1 200")
        times.append(1000 * (time.perf_counter() - start))
    return {"p50": median(times), "p99": sorted(times)[-len(times) // 100], "max": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["checks", "connections", "requests"])
    parser.add_argument("--folder", type=Path, default=Path("indices"))
    parser.add_argument("--build", action="store_true", help="only build the indices")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path("results/trust"))
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    {"checks": run_checks, "connections": run_connections, "requests": run_requests}[options.part](options)


if __name__ == "__main__":
    main()
