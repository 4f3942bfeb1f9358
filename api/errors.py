"""Errors as HTTP: every one becomes ``{"error": {message, type, param, code}}``. Owns that shape, x-request-id, and the last net under all routes.

Knows nothing of what the errors mean; their classes say their own status, code and type.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from online_sao import logs
from online_sao.errors import InvalidRequestError, NotFoundError, NotReadyError, OnlineSAOError

logger = logging.getLogger(__name__)

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large", 415: "unsupported_media_type"}


def error_object(error: OnlineSAOError) -> dict[str, Any]:
    """The body of an error answer, also sent as an event where a stream has begun."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: OnlineSAOError) -> JSONResponse:
    return JSONResponse(error_object(error), status_code=error.status, headers=error.headers)


def describe(faults: Sequence[Any]) -> InvalidRequestError:
    """One error that names the first fault's place and what was expected there."""
    fault = faults[0]
    place = [part for part in fault["loc"] if part not in ("body", "query", "path")]
    param = ".".join(str(part) for part in place)
    message = fault["msg"].removeprefix("Value error, ")
    given = fault.get("input")
    shown = f" (got {given!r:.80})" if isinstance(given, (str, int, float, bool)) and fault["type"] != "missing" else ""
    return InvalidRequestError(f"Invalid value for '{param}': {message}{shown}." if param else f"Invalid request: {message}.", param=param or None)


def request_id(request: Request) -> str:
    return str(request.scope["online_sao.request_id"])


def install(app: FastAPI) -> None:
    """Give every exception its handler. RequestContext must be the outermost middleware besides."""

    @app.exception_handler(OnlineSAOError)
    async def ours(request: Request, error: OnlineSAOError) -> JSONResponse:
        if error.status >= 500:
            logger.warning("%s %s: %s (%s)", request.method, request.url.path, error.message, error.code)
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def validation(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(describe(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            return error_response(NotFoundError(f"There is no {request.method} {request.url.path} here."))
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{request.url.path} does not accept {request.method}." + (f" It accepts: {allowed}." if allowed else "")
        else:
            message = str(error.detail)
        body = error_object(InvalidRequestError(message))
        body["error"]["code"] = _HTTP_CODES.get(error.status_code, "invalid_request_error" if error.status_code < 500 else "internal_error")
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)


class RequestContext:
    """Outermost middleware: gives each request its id (the client's own if sane), sends it back, and answers what nobody caught with a 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if _SANE_REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        scope["online_sao.request_id"] = identity
        logs.request_id.set(identity)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # The server's end has come for this request: its grace is over.
            logger.info("%s %s was cut short by the end of the server", scope["method"], scope["path"])
            if not started:
                await error_response(NotReadyError("The server is shutting down."))(scope, receive, send_with_id)
        except ClientDisconnect:
            logger.debug("%s %s: the client left", scope["method"], scope["path"])
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not started:
                error = OnlineSAOError(f"The server failed to answer; its log names this request {identity}.")
                await error_response(error)(scope, receive, send_with_id)
