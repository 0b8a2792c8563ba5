"""The web application: its addresses, what each of them answers, and how errors are reported."""

import asyncio
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteError

from dsokr import __version__
from dsokr.errors import InputError, import_extra
from dsokr.explain import Reasons
from dsokr.index import Index
from dsokr.rules import RULES, Rule
from dsokr.serve.answers import Current, answer, decode, explain, load_drawing
from dsokr.serve.batches import Batches, Busy
from dsokr.serve.bodies import Answer, Limits, Problem, Why, build_pair_model, build_question_model
from dsokr.serve.operations import HEADERS, Desk, Key, Metrics, check_hosts, configure_log, name_headers, problem

PAGE = Path(__file__).parent / "page"
LONGEST_SMILES = 400
WATCH_SECONDS = 1.0  # between looks for a newer version of the index
AT_ONCE = 256  # connections that are accepted before requests get their turn; more wait
SWITCH_SECONDS = 2e-4  # between the threads for searching and for HTTP; Python's default of 5 ms is long here
PICTURE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'",
    "Cache-Control": "public, max-age=86400",
}


def create_app(
    predictor: Any,
    index: Index,
    limits: Limits = Limits(),  # noqa: B008 # frozen, so sharing it is harmless
    examples: tuple[str, ...] = (),
    hosts: Sequence[str] = (),
    reason: Callable[[str, str, Rule], Reasons] | None = None,
    keys: Sequence[Key] = (),
) -> FastAPI:
    """Return an application: the page at /, /predict, /explain, /drawing, /health, /ready, /metrics, /openapi.json.

    It contacts no other host. It answers requests to localhost, to IPv4 addresses and to the names in ``hosts``.
    ``predictor`` is a :class:`dsokr.commands.Predictor`, or anything else with its ``input``, ``output``, ``rule``,
    ``searches``, ``coefficients`` and ``decode``. ``reason`` explains the score of an output for an input; without it
    there is no /explain. With ``keys`` all requests need one, but for /ready and a /health that says only "ok".
    """
    draw = load_drawing()
    current = Current(predictor, index, limits)
    rankings = Batches(lambda questions: answer(predictor, questions, *current.found), limits.rows, limits.waiting)
    predictions = Batches(lambda asked: [decode(predictor, *one) for one in asked], 1, limits.waiting)  # may be slow
    pictures = Batches(lambda asked: [draw(smiles) for smiles in asked if draw], 1, limits.waiting)
    reasons = Batches(lambda asked: [explain(predictor, reason, one) for one in asked if reason], 1, limits.waiting)
    queues = {"rankings": rankings, "predictions": predictions, "pictures": pictures, "reasons": reasons}
    metrics = Metrics(current)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with rankings, predictions, pictures, reasons:
            watching = asyncio.create_task(_watch(current, facts))
            yield
            watching.cancel()

    handled = (RequestValidationError, StarletteError, Busy, TimeoutError, InputError, Exception)
    app = FastAPI(
        title="dsokr",
        version=__version__,
        description="Rank candidates for inputs by a trained model.",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from another host
        redoc_url=None,
        exception_handlers=dict.fromkeys(handled, _answer_error),
        responses={"4XX": {"model": Problem}, "5XX": {"model": Problem}},
    )
    app.state.limits, app.state.keys = limits, keys
    facts = {**_describe(predictor, index, limits), "drawing": draw is not None, "examples": list(examples)}
    facts |= current.describe()
    facts["explains"] = reason is not None and bool(facts["input"])
    _add_predict(app, rankings, predictions, metrics, facts)
    if facts["explains"]:
        _add_explain(app, reasons, facts)
    _add_health(app, facts)
    _add_operations(app, metrics, queues)
    _add_drawing(app, pictures, facts)
    for file in PAGE.iterdir():
        app.add_route("/" if file.name == "index.html" else f"/{file.name}", partial(_serve_file, file=file))
    known = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Desk, metrics=metrics, paths=known, keys=keys, limits=limits, hosts=check_hosts(hosts))
    return app


async def _watch(current: Current, facts: dict[str, Any]) -> None:
    """Look for newer versions of the index while serving. Answers under way come from the older one."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if await asyncio.to_thread(current.refresh):
            facts |= current.describe()


def _describe(predictor: Any, index: Index, limits: Limits) -> dict[str, Any]:
    """Return what /health answers."""
    given, found = predictor.input, predictor.output
    return {
        "status": "ok",
        "version": __version__,
        "input": "" if given.name == "image" else given.name,  # clients must not name files of the server
        "width": len(given.mean) if given.name == "vector" else 1,
        "columns": list(given.columns) if given.name == "vector" else [],
        "output": found.name,
        "output_columns": list(found.columns) if found.name == "vector" else [],
        "searches": predictor.searches,  # whether it has an answer of its own
        "candidate_columns": index.kinds(),  # "number" or "text", by name
        "coefficients": index.head.dim,
        "rule": predictor.rule,
        "rules": list(RULES),
        "kind": index.head.kind,
        "limits": asdict(limits),
    }


def _add_predict(
    app: FastAPI, rankings: Batches, predictions: Batches, metrics: Metrics, facts: dict[str, Any]
) -> None:
    accepted: Any = build_question_model(facts)
    seconds = facts["limits"]["seconds"]

    @app.post("/predict", response_model=Answer)
    async def predict(body: accepted) -> JSONResponse:
        """Find the k best candidates for every input and, on request, the model's own answer."""
        start = time.perf_counter()
        best, coefficients, notes = await rankings.ask(body, len(body.inputs or body.coefficients), seconds)
        results: list[dict[str, Any]] = [{**found, "prediction": None} for found in best]
        for z, result in zip(coefficients, results, strict=True):
            if body.predict and facts["searches"]:
                texts, left = [hit["output"] for hit in result["hits"]], start + seconds - time.perf_counter()
                result["prediction"] = await predictions.ask((z, texts), 1, left)
        made = {"rule": body.rule, "candidates": facts["candidates"], "results": results, "notes": notes}
        metrics.count(made)
        return JSONResponse({**made, "milliseconds": round(1000 * (time.perf_counter() - start), 3)})


def _add_explain(app: FastAPI, reasons: Batches, facts: dict[str, Any]) -> None:
    accepted: Any = build_pair_model(facts)

    @app.post("/explain", response_model=Why)
    async def answer_why(body: accepted) -> JSONResponse:
        """Say what every part of an output, and of the input, contributes to the output's score."""
        return JSONResponse(await reasons.ask(body, 1, facts["limits"]["seconds"]))


def _add_health(app: FastAPI, facts: dict[str, Any]) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses={200: {"content": {"application/json": {"example": facts}}}})
    async def health(request: Request) -> dict[str, Any]:
        """What is served, and how."""
        return facts if request.state.known else {"status": facts["status"]}


def _add_operations(app: FastAPI, metrics: Metrics, queues: dict[str, Batches]) -> None:
    for name, queue in queues.items():
        metrics.waiting.labels(name).set_function(queue.count_waiting)

    @app.get("/ready", responses={200: {"content": {"application/json": {"example": {"status": "ready"}}}}})
    async def ready() -> dict[str, str]:
        """Whether another question would be accepted; 503 if not."""
        if not queues["rankings"].has_room():
            raise Busy
        return {"status": "ready"}

    @app.get("/metrics", include_in_schema=False)
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_drawing(app: FastAPI, pictures: Batches, facts: dict[str, Any]) -> None:
    svg = {"image/svg+xml": {"schema": {"type": "string"}}}
    accepted = Query(min_length=1, max_length=LONGEST_SMILES, description="A molecule.")

    @app.get("/drawing", responses={200: {"content": svg}}, response_class=Response)
    async def drawing(smiles: str = accepted) -> Response:
        """A molecule as SVG."""
        if not facts["drawing"]:
            raise HTTPException(404, 'Drawing needs RDKit on the server: pip install "dsokr[chem]".')
        picture = await pictures.ask(smiles, 1, facts["limits"]["seconds"])
        return Response(picture, media_type="image/svg+xml", headers=PICTURE_HEADERS)


async def _serve_file(request: Request, file: Path) -> FileResponse:
    return FileResponse(file, headers={"Cache-Control": "no-cache"})


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Report any error as one JSON object with one sentence."""
    match error:
        case RequestValidationError():
            return _answer_invalid(request, error)
        case StarletteError():
            return problem(error.status_code, f"{error.detail.rstrip('.')}.", headers=error.headers)
        case Busy():
            return problem(503, "Too many requests are waiting. Try again in a second.", headers={"Retry-After": "1"})
        case TimeoutError():
            return problem(504, "The answer took too long. Ask for less at once, or try again later.")
        case InputError():
            return problem(422, str(error), getattr(error, "where", ""))
    return problem(500, "The server failed; its log says why.", headers=name_headers())  # sent from outside of the desk


def _answer_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(400, "The body is not JSON.")
    if request.method == "POST" and "json" not in request.headers.get("content-type", ""):
        return problem(422, "Send JSON with the header Content-Type: application/json.")
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
    sentence = re.sub(r"\d{9,}", lambda number: f"{float(number[0]):g}", f"{where or 'body'}: {first['msg']}.")
    return problem(422, sentence, where)


def run(app: FastAPI, host: str, port: int, say: Callable[[str], None], **options: Path | None) -> None:
    """Serve until Ctrl-C or SIGTERM; requests under way are answered first. Options are those of :func:`configure`."""
    uvicorn = import_extra("uvicorn", "serve")
    listening, config = bind(host, port), configure(app, **options)
    sys.setswitchinterval(SWITCH_SECONDS)
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))  # one core is for HTTP
    (shown, number), scheme = listening.getsockname()[:2], "https" if config.ssl else "http"
    say(f"Serving at {scheme}://{f'[{shown}]' if ':' in shown else shown}:{number} (Ctrl-C to stop)")
    if not shown.startswith("127.") and shown != "::1":
        if not app.state.keys:
            say("Anyone who can reach this address can use the server: it has no keys (--keys).")
        elif not config.ssl:
            say("Keys can be read on the way: the server does not encrypt (--certificate).")
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that stopped it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        uvicorn.Server(config).run(sockets=[listening])
    say("Stopped.")


def configure(
    app: FastAPI, certificate: Path | None = None, private_key: Path | None = None, log: Path | None = None
) -> Any:
    """Return the configuration of uvicorn, with limits on connections, TLS by PEM files and logs as JSON lines."""
    uvicorn = import_extra("uvicorn", "serve")
    if private_key and not certificate:
        raise InputError("A private key needs its certificate (--certificate).")
    from dsokr.serve.connections import HEADER_SECONDS, Connection

    Connection.extra = HEADERS
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HEADER_SECONDS  # type: ignore[attr-defined] # uvicorn has no option for it
    options = {"log_level": "error", "access_log": False, "server_header": False, "ws": "none", "loop": "asyncio"}
    options["backlog"] = AT_ONCE
    if log is not None:
        options |= {"log_config": configure_log(log), "log_level": None}
    grace = math.ceil(app.state.limits.seconds) + 1  # no answer takes longer
    config = uvicorn.Config(app, http=Connection, timeout_graceful_shutdown=grace, ssl_certfile=certificate,
                            ssl_keyfile=private_key, **options)  # fmt: skip
    try:
        config.load()
    except OSError as error:  # of ssl
        raise InputError(f"{certificate} and its key cannot be used for TLS: {error.strerror or error}.") from error
    return config


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address; port 0 is any free port."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        message = f"Cannot listen at {host}, port {port}: {error}. Choose others with --host and --port."
        raise InputError(message) from error
