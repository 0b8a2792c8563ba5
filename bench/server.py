"""The server under load, on this machine, against the goals.

    python bench/server.py                     # or: --count 100000 --rate 200 --seconds 20

A server with an exact index of 100,000 × 100 runs in its own process. Single queries by coefficients arrive at random
times, 200 per second on average, whether or not earlier ones are answered; latency is counted from when a query was
due. Then 32 connections ask as fast as they can; then come 10,000 malformed requests and bodies that are too large.
With ``--clients 64 --seconds 300`` that many connections ask without a pause instead, for five minutes. With
``PYTHONPATH=. ... --out results/trust`` a row is appended for the page on trust.
Goals, on two cores: 200 requests/s with p99 under 100 ms; no 5xx; every oversized body refused; under the load of many
clients no errors, and resident memory that grows by less than 5 % after the first tenth of the time.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import socket
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

RATE_GOAL, P99_GOAL, MALFORMED = 200.0, 100.0, 10_000
LIMIT = 1_000_000  # bytes of a body


@dataclass(frozen=True)
class Kind:
    name: str


@dataclass(frozen=True)
class Plain:
    """A model without a network: all questions are coefficients."""

    input: Kind = Kind("text")
    output: Kind = Kind("string")
    rule: Any = "cosine"
    searches: bool = False

    def coefficients(self, inputs: list[str]) -> torch.Tensor:
        return torch.ones(len(inputs), 100)

    def decode(self, z: torch.Tensor) -> tuple[list[str], torch.Tensor]:
        return [""] * len(z), z.sum(dim=1)


def serve(port: int, count: int, dim: int) -> None:
    from dsokr.index import CandidateIndex
    from dsokr.serve import create_app, run

    psi = torch.randn(count, dim, generator=torch.Generator().manual_seed(0))
    index = CandidateIndex.in_memory([f"y{i}" for i in range(count)], psi, psi.square().sum(1))
    run(create_app(Plain(), index), "127.0.0.1", port, say=lambda line: None)


class Connection:
    """One keep-alive connection that costs this side as little as possible."""

    def __init__(self, port: int):
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            self.writer.write(raw)
            await self.writer.drain()
            head = await self.reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            body = await self.reader.readexactly(int(fields.get(b"content-length", b"0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return 0, b""  # closed without a response
        if fields.get(b"connection") == b"close":
            await self.close()
        return int(head.split()[1]), body

    async def close(self) -> None:
        if self.reader is not None:
            self.writer.close()
            self.reader = None


def post(body: bytes, path: str = "/predict", method: str = "POST", headers: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n"
    return f"{head}{headers}\r\n".encode() + body


def queries(dim: int, n: int = 500) -> list[bytes]:
    rows = np.random.default_rng(0).normal(size=(n, dim)).round(5).tolist()
    return [post(json.dumps({"coefficients": [row], "k": 10}).encode()) for row in rows]


async def ask_at_rate(port: int, dim: int, rate: float, seconds: float) -> list[float]:
    """Milliseconds from when each query was due to its answer."""
    asked, pool, latencies = queries(dim), asyncio.Queue(), []
    for _ in range(64):
        pool.put_nowait(Connection(port))

    async def one(raw: bytes, due: float) -> None:
        connection = await pool.get()
        status, _ = await connection.ask(raw)
        pool.put_nowait(connection)
        assert status == 200, status
        latencies.append(1000 * (time.perf_counter() - due))

    rng, start = random.Random(0), time.perf_counter()
    due, tasks = start, []
    while due < start + seconds:
        due += rng.expovariate(rate)
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        tasks.append(asyncio.create_task(one(asked[len(tasks) % len(asked)], due)))
    await asyncio.gather(*tasks)
    return latencies


async def read_memory(port: int) -> float:
    """Resident memory of the server, in MiB, as /metrics says."""
    _, body = await Connection(port).ask(post(b"", "/metrics", "GET"))
    return float(re.search(rb"^process_resident_memory_bytes (\S+)", body, re.MULTILINE)[1]) / 2**20


async def load(port: int, options: argparse.Namespace) -> None:
    """Connections that are never idle: errors, latencies, and the memory of the server."""
    asked, start, latencies, states = queries(options.dim), time.perf_counter(), [], Counter()

    async def one(number: int) -> None:
        connection = Connection(port)
        while (sent := time.perf_counter()) < start + options.seconds:
            status, _ = await connection.ask(asked[(len(latencies) + number) % len(asked)])
            states[status] += 1
            latencies.append(1000 * (time.perf_counter() - sent))
        await connection.close()

    clients = [asyncio.create_task(one(number)) for number in range(options.clients)]
    await asyncio.sleep(options.seconds / 10)
    first = await read_memory(port)
    await asyncio.gather(*clients)
    last, (p50, p99), errors = await read_memory(port), np.percentile(latencies, [50, 99]), states.total() - states[200]
    rate = len(latencies) / options.seconds
    print(f"{options.clients} clients for {options.seconds:g} s: {states.total():,} requests ({rate:.0f}/s), "
          f"{errors} errors {dict(states)}, p50 {p50:.1f} ms, p99 {p99:.1f} ms")  # fmt: skip
    print(f"resident memory: {first:.1f} MiB after a tenth of the time, {last:.1f} MiB at the end "
          f"(goal: +5 %, no errors: {verdict(last < 1.05 * first and not errors)})")  # fmt: skip
    found = {"requests": states.total(), "errors": errors, "p50": p50, "p99": p99, "first": first, "last": last}
    record(options, {"method": "load", "clients": options.clients, "asked_seconds": options.seconds}, found)


def record(options: argparse.Namespace, key: dict[str, Any], metrics: dict[str, float]) -> None:
    if options.results is not None:
        named = {"experiment": "trust", **key, "candidates": options.count, "dim": options.dim}
        options.results.record(named, lambda: {"metrics": metrics})


async def ask_constantly(port: int, dim: int, connections: int, seconds: float) -> float:
    """Answers per second on connections that are never idle."""
    asked, end, answered = queries(dim), time.perf_counter() + seconds, 0

    async def one(number: int) -> None:
        nonlocal answered
        connection = Connection(port)
        while time.perf_counter() < end:
            status, _ = await connection.ask(asked[(answered + number) % len(asked)])
            assert status == 200, status
            answered += 1
        await connection.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return answered / seconds


def make_malformed(rng: random.Random, dim: int) -> bytes:
    """A wrong request; in a few the changed character does not matter."""
    good = json.dumps({"coefficients": [[0.5] * dim], "k": 10})
    cut = rng.randrange(len(good))
    bodies = [
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: good[:cut].encode(),
        lambda: (good[:cut] + rng.choice('{}[],:"x\\\x00é') + good[cut + 1 :]).encode(),
        lambda: b"[" * rng.randrange(1, 20_000),
        lambda: json.dumps({"coefficients": [[0.5] * rng.randrange(dim)]}).encode(),
        lambda: json.dumps({"coefficients": [[rng.choice([None, "x", 1e300, [], {}, True])] * dim]}).encode(),
        lambda: b'{"coefficients": [[' + b"NaN," * (dim - 1) + b"Infinity]]}",
        lambda: json.dumps({"inputs": [rng.choice(["", " ", 7, None, "\ud800", "a" * 6000])]}).encode(),
        lambda: json.dumps({"inputs": ["a"], "k": rng.choice([0, -1, 1e9, "ten", None, 10**400])}).encode(),
        lambda: json.dumps({"inputs": ["a"], "rule": rng.choice(["", "best", 3, None, []])}).encode(),
        lambda: json.dumps({"inputs": ["a"], rng.choice(["", "x", "__proto__"]): 1}).encode(),
        lambda: json.dumps(rng.choice([None, 0, "x", [], {}, [{}], True])).encode(),
    ]
    body = rng.choice(bodies)()
    if rng.random() < 0.1:
        return post(body, path="/" + "".join(rng.choices("predict/%?#..", k=rng.randrange(20))), method="POST")
    if rng.random() < 0.1:
        return post(body, method=rng.choice(["GET", "PUT", "DELETE", "PATCH", "BREW"]))
    if rng.random() < 0.05:
        return rng.randbytes(60).replace(b"\n", b"") + b"\r\n\r\n"  # no HTTP at all
    return post(body)


async def fuzz(port: int, dim: int, n: int) -> Counter[int]:
    rng, seen = random.Random(0), Counter()
    requests = [make_malformed(rng, dim) for _ in range(n)]

    async def some(part: list[bytes]) -> None:
        connection = Connection(port)
        for raw in part:
            status, _ = await asyncio.wait_for(connection.ask(raw), 30)
            seen[status] += 1
        await connection.close()

    await asyncio.gather(*(some(requests[i::8]) for i in range(8)))
    return seen


async def send_oversized(port: int) -> Counter[int]:
    seen: Counter[int] = Counter()
    for size in (LIMIT + 1, 10 * LIMIT, 10**12):  # announced; only a little is sent
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
        connection = Connection(port)
        seen[(await connection.ask(head + b"x" * 1000))[0]] += 1
        await connection.close()
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"  # not announced: refused once too much has arrived
    connection = Connection(port)
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    seen[(await connection.ask(head + chunk * (LIMIT // 65536 + 2)))[0]] += 1
    await connection.close()
    return seen


def verdict(good: bool) -> str:
    return "reached" if good else "MISSED"


async def measure(port: int, options: argparse.Namespace) -> None:
    await ask_at_rate(port, options.dim, 50, 2)  # warm
    latencies = await ask_at_rate(port, options.dim, options.rate, options.seconds)
    p50, p99 = np.percentile(latencies, [50, 99])
    rate = len(latencies) / options.seconds
    print(f"{rate:.0f} requests/s asked: p50 {p50:.1f} ms, p99 {p99:.1f} ms (goal: p99 < {P99_GOAL:g} ms at "
          f"{RATE_GOAL:g}/s: {verdict(p99 < P99_GOAL and rate >= 0.95 * RATE_GOAL)})")  # fmt: skip
    print(
        f"at most {await ask_constantly(port, options.dim, 32, options.seconds / 2):.0f} requests/s with 32 connections"
    )
    seen = await fuzz(port, options.dim, MALFORMED)
    worst = max(seen)
    print(f"{MALFORMED:,} malformed: {dict(sorted(seen.items()))} (goal: no 5xx: {verdict(worst < 500)})")
    failed = sum(count for status, count in seen.items() if status >= 500)
    record(options, {"method": "malformed"}, {"requests": seen.total(), "errors": failed})
    refused = await send_oversized(port)
    print(f"oversized bodies: {dict(refused)} (goal: all 413: {verdict(set(refused) == {413})})")
    status, body = await Connection(port).ask(post(b"", "/health", "GET"))
    print(f"after all this: {status} {json.loads(body)['status']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--rate", type=float, default=RATE_GOAL)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=0, help="only this load")
    parser.add_argument("--out", type=Path, help="a folder for rows")
    options = parser.parse_args()
    options.results = None
    if options.out:
        from studies.results import Results

        options.results = Results(options.out / "load.jsonl", say=print)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, options.count, options.dim))
    process.start()
    try:
        for _ in range(600):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        asyncio.run((load if options.clients else measure)(port, options))
    finally:
        process.terminate()
        process.join(15)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
