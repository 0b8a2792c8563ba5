"""Around every request: its host, key, rate, size and time are checked; it gets an id, and is counted and logged."""

import asyncio
import hmac
import json
import logging
import math
import re
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Any, NamedTuple

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsokr import __version__
from dsokr.errors import InputError
from dsokr.files import replace_file
from dsokr.serve.answers import Current
from dsokr.serve.bodies import Limits

BURST = 10.0  # seconds of requests that may come at once
MOST_CLIENTS = 10_000  # whose rates are remembered
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # of the histogram
OPEN = {"/ready", "/health"}  # for probes: no key, no limit
LOCAL = re.compile(r"localhost|\[::1]|\d+(\.\d+)*")  # no domain name consists of numbers
HOST = re.compile(r"(\*\.)?[\w.-]+|\[?[0-9a-fA-F:]+]?")  # a name, a pattern of names or an IPv6 address
ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
KEY = re.compile(r"(?P<name>[\w.@-]{1,64}):(?P<hash>[0-9a-f]{64})(:(?P<rate>\d+(\.\d+)?))?", re.ASCII)
CLOSE = {"Connection": "close"}  # of requests whose body is not read
HEADERS = {  # load nothing from elsewhere, guess no content types, do not show the page inside another
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
REQUEST: ContextVar[str] = ContextVar("request", default="")  # the id of the one under way
log = logging.getLogger("dsokr.serve")


class Key(NamedTuple):
    """A client's name, the SHA-256 of its key, and its requests per second (0: the server's limit)."""

    name: str
    hash: str
    rate: float


def read_keys(path: Path, added: str = "") -> list[Key]:
    """Read lines ``name:hash`` or ``name:hash:rate``; empty ones and those that begin with # are skipped."""
    keys: dict[str, Key] = {}
    for number, line in enumerate([*_read_lines(path), added], start=1):
        if line.strip() and not line.startswith("#"):
            found = KEY.fullmatch(line.strip())
            if found is None or found["name"] in keys:
                what = "has a name that is there already" if found else "is not name:hash or name:hash:rate"
                raise InputError(f"{path}: line {number} {what}.")
            keys[found["name"]] = Key(found["name"], found["hash"], float(found["rate"] or 0))
    if not keys:
        raise InputError(f"{path} does not exist or has no keys. Add one with `dsokr key`.")
    return list(keys.values())


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def add_key(path: Path, name: str, rate: float) -> str:
    """Add the hash of a new key to a file that only its owner can read, and return the key."""
    secret = token_urlsafe(32)
    line = f"{name}:{sha256(secret.encode()).hexdigest()}" + (f":{rate:f}" if rate else "")
    read_keys(path, line)
    with replace_file(path) as draft:
        draft.chmod(0o600)
        draft.write_text("\n".join([*_read_lines(path), line, ""]), encoding="utf-8")
    return secret


def find_key(keys: Sequence[Key], headers: Headers) -> Key | None:
    """Return the key in ``Authorization: Bearer KEY``, or in the password that browsers ask for.

    A wrong key takes as long as a right one.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            given = b64decode(given).decode().partition(":")[2]
    digest = sha256(given.strip().encode()).hexdigest()
    found = [key for key in keys if hmac.compare_digest(key.hash, digest)]
    return found[0] if found else None


def check_hosts(hosts: Sequence[str]) -> list[str]:
    """Return the names that the server answers for, as they are in requests."""
    for host in hosts:
        if not HOST.fullmatch(host):
            raise InputError(f"Hosts are names such as models.example.org, without a port. Got {host!r}.")
    return [f"[{host}]".lower() if ":" in host and "[" not in host else host.lower() for host in hosts]


class Rates:
    """Rate limits: a client may send evenly spaced requests, or those of up to ``BURST`` seconds at once."""

    def __init__(self) -> None:
        self.due: dict[str, float] = {}  # when the next evenly spaced request of a client is due; the latest last

    def wait(self, client: str, rate: float) -> float:
        """Return 0 if the client may ask now, otherwise the seconds until it may."""
        now, due = time.monotonic(), self.due.pop(client, 0.0)
        wait = max(due - now - max(BURST - 1 / rate, 0), 0)
        self.due[client] = due if wait else max(due, now) + 1 / rate
        if len(self.due) > MOST_CLIENTS:
            del self.due[next(iter(self.due))]
        return wait


class Metrics:
    """What Prometheus reads at /metrics."""

    def __init__(self, current: Current):
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("dsokr_requests", "Requests, by address and status.", ["path", "status"], **own)
        self.seconds = Histogram("dsokr_request_seconds", "Time to answer.", ["path"], buckets=SECONDS, **own)
        self.active = Gauge("dsokr_active_requests", "Requests under way.", **own)
        self.waiting = Gauge("dsokr_waiting_requests", "Requests in a queue.", ["queue"], **own)
        self.inputs = Counter("dsokr_inputs", "Inputs of /predict that were answered.", **own)
        self.abstentions = Counter("dsokr_abstentions", "Inputs that no candidate was possible for.", **own)
        self.guesses = Counter("dsokr_guesses", "Answers with a note that they may be a guess.", **own)
        about = {"version": __version__, "kind": current.found[0].head.kind}
        candidates = Gauge("dsokr_index_candidates", "Candidates in the index.", list(about), **own).labels(**about)
        candidates.set_function(lambda: len(current.found[0]))
        version = Gauge("dsokr_index_version", "How often the index was updated.", **own)
        version.set_function(lambda: current.found[0].head.version)
        ProcessCollector(registry=self.registry)

    def count(self, answer: dict[str, Any]) -> None:
        """Count the inputs of an answer of /predict."""
        self.inputs.inc(len(answer["results"]))
        self.abstentions.inc(sum(not result["hits"] for result in answer["results"]))
        self.guesses.inc(bool(answer["notes"]))


class Desk:
    """The layer around the application: it gives requests an id, refuses what is not allowed, counts and logs them.

    Every response gets the id and the security headers.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, paths: set[str], keys: Sequence[Key], limits: Limits, hosts: list[str]
    ):
        self.app, self.metrics, self.paths, self.keys, self.limits = app, metrics, paths, keys, limits
        self.hosts, self.rates = hosts, Rates()
        self.too_large = f"The body is too large: the limit is {limits.body_bytes:,} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status, headers = time.perf_counter(), 500, Headers(scope=scope)
        given = headers.get("x-request-id", "")
        REQUEST.set(given if ID.fullmatch(given) else token_hex(8))

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, added = message["status"], MutableHeaders(scope=message)
                for name, value in name_headers().items():
                    added.setdefault(name, value)
            await send(message)

        key = find_key(self.keys, headers)
        client = key.name if key else (scope.get("client") or ("",))[0]
        scope.setdefault("state", {})["known"] = key is not None or not self.keys
        answer = self._refuse(scope, headers, key, client) or self.app
        try:
            with self.metrics.active.track_inprogress():
                await answer(scope, self._limit(receive), send_with_headers)
        finally:
            self._record(scope, client, status, time.perf_counter() - start)

    def _refuse(self, scope: Scope, headers: Headers, key: Key | None, client: str) -> JSONResponse | None:
        """Return the answer to a request that is refused without reading its body."""
        rate, probes = key.rate if key and key.rate else self.limits.rate, scope["path"] in OPEN
        if not self._knows(headers.get("host", "").lower()):
            return problem(400, "The server does not answer for this host name (--allow-host).", headers=CLOSE)
        if {"content-length", "transfer-encoding"} <= set(headers):
            return problem(400, "Send Content-Length or Transfer-Encoding, not both.", headers=CLOSE)
        if not probes and rate and (wait := self.rates.wait(f"{'key' if key else 'address'} {client}", rate)):
            sentence = f"One client may ask {rate:g} times a second. Try again later."
            return problem(429, sentence, headers={"Retry-After": str(math.ceil(wait)), **CLOSE})
        if not probes and not scope["state"]["known"]:
            sentence = "Send a key that the server knows, with the header Authorization: Bearer KEY."
            return problem(401, sentence, headers={"WWW-Authenticate": 'Basic realm="dsokr"', **CLOSE})
        if int(headers.get("content-length", 0)) > self.limits.body_bytes:
            return problem(413, self.too_large, headers=CLOSE)
        return None

    def _knows(self, host: str) -> bool:
        name = re.sub(r":\d*$", "", host)
        ends = tuple(known[1:] for known in self.hosts if known.startswith("*"))
        return bool(LOCAL.fullmatch(name)) or name in self.hosts or (bool(ends) and name.endswith(ends))

    def _limit(self, receive: Receive) -> Receive:
        """Receive a body, unless it is too large or too slow."""
        received, deadline = 0, time.monotonic() + self.limits.seconds

        async def receive_within_limits() -> Message:
            nonlocal received
            try:
                message = await asyncio.wait_for(receive(), deadline - time.monotonic())
            except TimeoutError:
                raise HTTPException(408, "The request took too long to arrive.", CLOSE) from None
            received += len(message.get("body", b""))
            if received > self.limits.body_bytes:
                raise HTTPException(413, self.too_large, CLOSE)
            return message

        return receive_within_limits

    def _record(self, scope: Scope, client: str, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.metrics.requests.labels(path, status).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        said = {"client": client, "method": scope["method"], "path": scope["path"][:200], "status": status}
        log.info("request", extra={"facts": {**said, "milliseconds": round(1000 * seconds, 2)}})


def name_headers() -> dict[str, str]:
    """Headers of every response."""
    return {**HEADERS, "X-Request-ID": REQUEST.get()}


def problem(status: int, error: str, where: str = "", headers: Any = None) -> JSONResponse:
    """Answer with one sentence."""
    return JSONResponse({"error": error, "where": where}, status, headers=headers)


class Lines(logging.Formatter):
    """A JSON object a line, with the id of the request."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= {"request": REQUEST.get(), **record.__dict__.get("facts", {})}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_log(path: Path) -> dict[str, Any]:
    """Return the configuration of logs as JSON lines, in a file that may be rotated; - is standard error."""
    out = {"formatter": "lines", "class": "logging.StreamHandler"}
    if str(path) != "-":
        try:
            path.open("a").close()
        except OSError as error:
            raise InputError(f"The log {path} cannot be written: {error.strerror}.") from error
        out |= {"class": "logging.handlers.WatchedFileHandler", "filename": str(path)}
    levels = {"uvicorn.error": "ERROR", "dsokr.serve": "INFO"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": Lines}},
        "handlers": {"out": out},
        "loggers": {name: {"handlers": ["out"], "level": levels[name], "propagate": False} for name in levels},
    }
