"""Request bodies: bytes to a checked pydantic model, or a clean 4xx. Owns the size limit and strict JSON; knows nothing of any one route.

Strict means: UTF-8 without NUL or lone surrogates, no NaN or infinities, no repeated keys, bounded depth, no conversion between JSON types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any, Never, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.dependencies import BackendDependency
from api.errors import describe
from online_sao.errors import InvalidRequestError, PayloadTooLargeError
from online_sao.storable import unstorable

MAX_DEPTH = 32
"""Deepest nesting of arrays and objects. The deepest legal body, a chat message's content part, needs five."""

DRAIN_FACTOR = 4
"""An oversized body is read on and thrown away up to this many times the limit, so that the client reads its 413 and not a connection reset."""

Model = TypeVar("Model", bound=BaseModel)


async def read_limited(request: Request, limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes. Raises PayloadTooLargeError."""
    chunks: list[bytes] = []
    size = 0
    declared = request.headers.get("content-length", "")
    hopeless = declared.isdecimal() and int(declared) > DRAIN_FACTOR * limit
    if not hopeless:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                chunks.append(chunk)
            elif size > DRAIN_FACTOR * limit:
                break
    if hopeless or size > limit:
        raise PayloadTooLargeError(f"The request body is larger than {limit} bytes, the most this server accepts.")
    return b"".join(chunks)


def parse_json_object(raw: bytes, what: str = "The request body") -> dict[str, Any]:
    """Strict JSON whose top is an object. Raises InvalidRequestError saying what was wrong with ``what``."""
    if not raw:
        raise InvalidRequestError(f"{what} is empty; a JSON object was expected.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{what} is not valid UTF-8 (byte {error.start}).") from error
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys, parse_float=_finite_float)
    except RecursionError as error:
        raise InvalidRequestError(f"{what} is nested deeper than {MAX_DEPTH} levels.") from error
    except ValueError as error:
        raise InvalidRequestError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{what} is a JSON {_json_type(value)}; an object was expected.")
    _check_values(value, what)
    return value


def validate(model: type[Model], data: dict[str, Any]) -> Model:
    """Raises InvalidRequestError with the first fault's place as ``param``."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise describe(list(error.errors(include_url=False))) from error


def json_body(
    model: type[Model], precheck: Callable[[dict[str, Any]], None] | None = None, *, allow_empty: bool = False
) -> Callable[..., Awaitable[Model]]:
    """A dependency that reads, parses and validates the body as ``model``. ``precheck`` sees the raw object first. ``allow_empty``: no body is {}."""

    async def read(request: Request, backend: BackendDependency) -> Model:
        content_type = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if content_type != "application/json" and not content_type.endswith("+json"):
            raise InvalidRequestError(f"The Content-Type is {content_type!r}; send application/json.")
        raw = await read_limited(request, backend.settings.server.max_body_bytes)
        data = {} if allow_empty and not raw else parse_json_object(raw)
        if precheck is not None:
            precheck(data)
        return validate(model, data)

    return read


_BODIES: dict[str, type[BaseModel]] = {}
"""Every model that openapi_body was called with, by its name."""


def openapi_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body through json_body, so that /openapi.json shows it."""
    _BODIES[model.__name__] = model
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def body_schemas(reference: str) -> dict[str, Any]:
    """JSON schemas of all bodies by name, those they are made of among them. ``reference``: what stands before a name in a $ref."""
    schemas: dict[str, Any] = {}
    for name, model in _BODIES.items():
        schema = model.model_json_schema(ref_template=reference + "{model}")
        schemas |= {**schema.pop("$defs", {}), name: schema}
    return schemas


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated[:80]!r} appears twice in one object")
    return found


def _check_values(top: dict[str, Any], what: str) -> None:
    """Depth, and text that no database or tokenizer can hold. Iterative: the depth is the client's to choose."""
    stack: list[tuple[Any, int]] = [(top, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, str):
            check_text(value)
        elif isinstance(value, (dict, list)):
            if depth > MAX_DEPTH:
                raise InvalidRequestError(f"{what} is nested deeper than {MAX_DEPTH} levels.")
            children = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            stack.extend((child, depth + 1) for child in children)


def check_text(text: str) -> None:
    """Raises InvalidRequestError for text that cannot be stored."""
    found = unstorable(text)
    if found == "\0":
        raise InvalidRequestError("There is a NUL character (\\u0000) in the request; it cannot be stored.")
    if found is not None:
        raise InvalidRequestError("There is half of a surrogate pair (\\ud800 to \\udfff) in the request; it is no character.")


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (list, str)):
        return "array" if isinstance(value, list) else "string"
    return "number"
