"""Requests that are not answered: each gets one JSON object with one sentence."""

import asyncio
import time
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as RoutingError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsokr.errors import DSOKRError, InputError
from dsokr.serve.headers import HEADERS
from dsokr.serve.limits import Limits
from dsokr.serve.schema import Problem

REFUSED: dict[int | str, dict[str, Any]] = {
    400: {
        "model": Problem,
        "description": "The body is not JSON, or the server does not answer to the name it was asked by.",
    },
    408: {"model": Problem, "description": "The request took too long to arrive."},
    413: {"model": Problem, "description": "The body is too large."},
    422: {"model": Problem, "description": "The request is understood and wrong, or an input cannot be read."},
    503: {"model": Problem, "description": "Too many requests wait; try again in a second."},
    504: {"model": Problem, "description": "The answer took too long."},
}


def answer_errors(app: FastAPI) -> None:
    """Every error is one JSON object with one sentence."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        if any(found["type"] == "json_invalid" for found in error.errors()):
            return problem(400, "The body is not JSON.")
        if request.method == "POST" and "json" not in request.headers.get("content-type", ""):
            return problem(422, "Send JSON, and say so with the header Content-Type: application/json.")
        return problem(422, *_sentence(error))

    @app.exception_handler(DSOKRError)
    async def refused(request: Request, error: DSOKRError) -> JSONResponse:
        return problem(422 if isinstance(error, InputError) else 500, str(error), getattr(error, "where", ""))

    @app.exception_handler(RoutingError)
    async def lost(request: Request, error: RoutingError) -> JSONResponse:
        sentences = {
            400: "The body is not JSON.",
            404: "There is nothing here. See /openapi.json for what there is.",
            405: "This address does not take that method. See /openapi.json for those it takes.",
        }
        detail = str(error.detail)
        plain = detail in ("Not Found", "Method Not Allowed", "There was an error parsing the body")
        sentence = sentences[error.status_code] if plain else detail
        return problem(error.status_code, sentence, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        sentence = "Something is wrong with the server; its own log says what."
        return problem(500, sentence, headers=HEADERS)  # made outside of what adds them


def problem(status: int, error: str, where: str = "", headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(Problem(error=error, where=where).model_dump(), status, headers=headers)


def _sentence(error: RequestValidationError) -> tuple[str, str]:
    """What is wrong with a request, and where."""
    body = error.body if isinstance(error.body, dict) else {}
    if {"inputs", "coefficients"} <= set(body):
        return "Give inputs or coefficients, not both.", ""
    meant = "Coefficients" if "coefficients" in body else "Inputs"
    problems = [found for found in error.errors() if meant in found["loc"]] or list(error.errors())
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "Inputs", "Coefficients"))
    return _worded(first, where or "The request"), where


def _worded(found: dict[str, Any], where: str) -> str:
    limits = found.get("ctx", {})
    match found["type"]:
        case "missing":
            return f"{where} is missing."
        case "extra_forbidden":
            return f"{where} is not known here."
        case "string_too_short" | "string_pattern_mismatch":
            return f"{where} is empty."
        case "string_too_long":
            return f"{where} must have at most {limits['max_length']} characters."
        case "too_short":
            return f"{where} must have at least {limits['min_length']} items. Got {limits['actual_length']}."
        case "too_long":
            return f"{where} must have at most {limits['max_length']} items."
        case "float_type" | "finite_number":
            return f"{where} is not a number."
        case "less_than_equal":
            return f"{where} must be at most {limits['le']:g}."
        case "greater_than_equal":
            return f"{where} must be at least {limits['ge']:g}."
        case "model_attributes_type" | "model_type":
            return f"{where} must be a JSON object."
        case _:
            return f"{where}: {found['msg'][0].lower()}{found['msg'][1:]}."


class LimitedBody:
    """Refuses bodies that are too large, before or while they arrive, and those that never do."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self.limits.body_bytes:
            await self._refusal()(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        seen, deadline, whole = 0, time.monotonic() + self.limits.seconds, False

        async def counted() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()  # nothing but the end of the connection can come
            try:
                message = await asyncio.wait_for(receive(), max(deadline - time.monotonic(), 0.001))
            except TimeoutError:
                raise HTTPException(408, "The request took too long to arrive.", {"Connection": "close"}) from None
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > self.limits.body_bytes:
                raise HTTPException(413, self._too_large(), {"Connection": "close"})
            return message

        return counted

    def _refusal(self) -> JSONResponse:
        return problem(413, self._too_large(), headers={"Connection": "close"})

    def _too_large(self) -> str:
        return f"The body is too large: at most {self.limits.body_bytes:,} bytes are taken."
