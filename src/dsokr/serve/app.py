"""The web application: its addresses, and what each answers."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Union

from dsokr import __version__
from dsokr.basis import RULES
from dsokr.errors import InputError, MissingExtraError
from dsokr.index import CandidateIndex
from dsokr.serve.answers import Found, Hits, Model, Question, ToDecode, answer, decode
from dsokr.serve.batches import Batches, Busy
from dsokr.serve.drawings import LONGEST, SIZE, Kept, check_size
from dsokr.serve.limits import Limits

try:
    from fastapi import Body, FastAPI, HTTPException, Query
    from fastapi.responses import Response

    from dsokr.serve.headers import PICTURE_POLICY, WithHeaders
    from dsokr.serve.hosts import KnownHosts, checked_name
    from dsokr.serve.refusals import REFUSED, LimitedBody, answer_errors
    from dsokr.serve.schema import Answer, Health, Hit, Prediction, Problem, Result, question_models
except ImportError as error:
    raise MissingExtraError("FastAPI", "serve") from error

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}, "description": "The picture."},
    400: REFUSED[400],
    404: {"model": Problem, "description": "There is no RDKit here to draw with."},
    422: {"model": Problem, "description": "It is no molecule, or one that is too large to be drawn here."},
    503: REFUSED[503],
    504: REFUSED[504],
}


def create_app(
    predictor: Model,
    index: CandidateIndex,
    limits: Limits = Limits(),  # noqa: B008 # frozen, so sharing it is harmless
    examples: tuple[str, ...] = (),
    hosts: Sequence[str] = (),
) -> FastAPI:
    """The page at /, and beside it /predict, /drawing, /health and /openapi.json. No other host is ever asked.

    It answers to localhost, to addresses in numbers, and to the names in ``hosts``.
    """
    batches: Batches[Question, Hits] = Batches(
        lambda questions: answer(predictor, index, questions), limits.rows, limits.waiting
    )
    decoding: Batches[ToDecode, Found] = Batches(  # beside it, and one by one: a search may take its time
        lambda asked: decode(predictor, asked), 1, limits.waiting
    )
    draw = _draw()
    drawing: Batches[str, bytes] = Batches(
        lambda asked: [draw(smiles) for smiles in asked] if draw else [], 1, limits.waiting
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with batches, decoding, drawing:
            yield

    app = FastAPI(
        title="dsokr",
        version=__version__,
        description="Rank candidates for inputs by a trained model.",
        lifespan=lifespan,
        docs_url=None,  # these pages would load scripts from another host
        redoc_url=None,
    )
    app.add_middleware(LimitedBody, limits=limits)
    app.add_middleware(KnownHosts, names=[checked_name(host) for host in hosts])
    app.add_middleware(WithHeaders)  # around the others
    answer_errors(app)
    facts = _facts(predictor, index, limits, examples)
    _add_predict(app, batches, decoding, index, facts, limits)
    _add_health(app, facts)
    _add_drawing(app, drawing if draw else None, limits)
    for path in PAGE:
        app.add_api_route(path, _file(path), methods=["GET", "HEAD"], include_in_schema=False)
    return app


def _facts(predictor: Model, index: CandidateIndex, limits: Limits, examples: tuple[str, ...]) -> Health:
    return Health(
        status="ok",
        version=__version__,
        input="" if predictor.input.name == "image" else predictor.input.name,  # paths are for the server's owner
        width=len(getattr(predictor.input, "mean", ())) or 1,
        columns=list(getattr(predictor.input, "columns", ())),
        output=predictor.output.name,
        output_columns=list(getattr(predictor.output, "columns", ())),
        searches=predictor.searches,
        candidates=len(index),
        coefficients=index.head.dim,
        rule=predictor.rule,
        rules=list(RULES),
        drawing=_draw() is not None,
        kind=index.head.kind,
        limits=asdict(limits),
        examples=list(examples),
    )


def _add_predict(
    app: FastAPI,
    batches: Batches[Question, Hits],
    decoding: Batches[ToDecode, Found],
    index: CandidateIndex,
    facts: Health,
    limits: Limits,
) -> None:
    models = question_models(facts, limits)
    asked: Any = models[0] if len(models) == 1 else Union[tuple(models)]  # noqa: UP007 # made at run time

    @app.post("/predict", responses=REFUSED, response_model=Answer)
    async def predict(question: asked = Body()) -> Response:  # noqa: B008 # how FastAPI is told
        """The k best candidates for every input and, if that is asked for, the model's own answer."""
        start = time.perf_counter()
        inputs, coefficients = (getattr(question, name, None) for name in ("inputs", "coefficients"))
        wanted = Question(inputs, coefficients, question.k, question.rule)
        hits = await _in_time(batches.ask(wanted, wanted.size, limits.seconds))
        results = _results(index, hits)
        if question.predict and facts.searches:
            for z, result in zip(hits.coefficients, results, strict=True):
                left = start + limits.seconds - time.perf_counter()
                found = await _in_time(decoding.ask(ToDecode(z, [hit.output for hit in result.hits]), 1, left))
                result.prediction = Prediction(**found._asdict())
        spent = round(1000 * (time.perf_counter() - start), 3)
        made = Answer(
            rule=question.rule, candidates=len(index), milliseconds=spent, results=results, notes=list(hits.notes)
        )
        return Response(made.model_dump_json(), media_type="application/json")


def _add_health(app: FastAPI, facts: Health) -> None:
    @app.get("/health", responses={400: REFUSED[400]})
    async def health() -> Health:
        """What is served, and how."""
        return facts

    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)


def _add_drawing(app: FastAPI, drawing: Batches[str, bytes] | None, limits: Limits) -> None:
    kept = Kept()

    @app.get("/drawing", responses=PICTURE, response_class=Response)
    async def picture(
        smiles: str = Query(min_length=1, max_length=LONGEST, description="A molecule."),
    ) -> Response:
        """A molecule as SVG."""
        if drawing is None:
            raise HTTPException(404, 'There is no RDKit here to draw with. Install it: pip install "dsokr[chem]".')
        svg = kept.get(smiles)
        if svg is None:
            check_size(smiles)
            try:
                svg = await _in_time(drawing.ask(smiles, 1, limits.seconds))
            except InputError:
                raise HTTPException(422, f"Could not parse {smiles!r} as a molecule.") from None
            kept.keep(smiles, svg)
        headers = {"Cache-Control": "public, max-age=86400", "Content-Security-Policy": PICTURE_POLICY}
        return Response(svg, media_type="image/svg+xml", headers=headers)


def _results(index: CandidateIndex, hits: Hits) -> list[Result]:
    rows = zip(hits.indices.tolist(), hits.scores.tolist(), hits.cosines.tolist(), strict=True)
    return [
        Result(
            hits=[
                Hit(rank=rank, index=at, output=index.texts[at], name=index.names[at], score=score, cosine=cosine)
                for rank, (at, score, cosine) in enumerate(zip(*row, strict=True), start=1)
            ],
            prediction=None,
        )
        for row in rows
    ]


async def _in_time(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except Busy:
        raise HTTPException(
            503, "Too many requests are waiting. Try again in a second.", {"Retry-After": "1"}
        ) from None
    except TimeoutError:
        raise HTTPException(504, "The answer took too long. Ask for less at once, or try again later.") from None


def _draw() -> Callable[[str], bytes] | None:
    """Draws a molecule; None where there is no RDKit."""
    try:
        from dsokr import chem
    except MissingExtraError:
        return None
    return lambda smiles: chem.draw([smiles], size=SIZE).encode()


def _file(path: str) -> Callable[[], Awaitable[Response]]:
    name, kind = PAGE[path]
    content = (files("dsokr.serve") / "page" / name).read_bytes()

    async def served() -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return served
