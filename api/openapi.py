"""/openapi.json as it really is: request bodies that routes read themselves, and the errors every route can answer with.

Owns that document; knows of routes only what FastAPI has collected of them. A status stands at a route only if it can come from there.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from api.bodies import body_schemas
from api.security import BEARER_PREFIXES, OPEN_PATHS


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = Field(...)
    code: str


class ErrorBody(BaseModel):
    """Every error, whatever the route."""

    error: ErrorDetail


_MEANINGS = {
    "400": "What was sent is not what was expected; `error.param` names it.",
    "401": "The server has a token and the request does not carry it.",
    "403": "Host or Origin is not this server's own.",
    "404": "There is no such thing here.",
    "409": "It contradicts what stands already.",
    "413": "The body is larger than server.max_body_bytes.",
    "429": "All places are taken; Retry-After says when to come back.",
    "500": "A fault of the server.",
    "503": "Not ready, or something it needs has failed; try again.",
}
_CHAT, _FEEDBACK = ("post", "/v1/chat/completions"), ("post", "/v1/feedback")
_ALSO = {_CHAT: ("404", "429"), _FEEDBACK: ("404", "409"), ("get", "/admin/policies/diff"): ("404",)}
_COMPLETION_ID = {"parameters": {"completion_id": "$response.body#/id"}}
_LINKS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    _CHAT: {
        "score": {"operationId": "create_feedback", "requestBody": {"completion_id": "$response.body#/id", "value": 1}},
        "logged": {"operationId": "get_interaction", **_COMPLETION_ID},
        "erase": {"operationId": "delete_interaction", **_COMPLETION_ID},
    },
    _FEEDBACK: {"receipt": {"operationId": "get_feedback", "parameters": {"feedback_id": "$response.body#/id"}}},
}
"""What of one answer is good for asking another route."""
_REF = "#/components/schemas/"


def install(app: FastAPI, policy_name: str) -> None:
    """Make ``app.openapi`` give the document. Call once, after all routes are there. ``policy_name``: the model that the example asks for."""
    example = {"model": policy_name, "messages": [{"role": "user", "content": "Tell me about your morning."}], "max_tokens": 16}

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = _complete(get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes))
            schema["paths"][_CHAT[1]][_CHAT[0]]["requestBody"]["content"]["application/json"]["example"] = example
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _complete(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    components.update(body_schemas(_REF))
    error = ErrorBody.model_json_schema(ref_template=_REF + "{model}")
    components.update(error.pop("$defs"))
    components["ErrorBody"] = error
    schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "description": "Where server.api_token is set."}}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _complete_operation(method, path, operation)
    return schema


def _complete_operation(method: str, path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    for status in _errors(method, path, operation):
        body = {"application/json": {"schema": {"$ref": _REF + "ErrorBody"}}}
        responses.setdefault(status, {"description": _MEANINGS[status], "content": body})
    for status, response in responses.items():
        if status.startswith("2") and (method, path) in _LINKS:
            response["links"] = _LINKS[method, path]
        response["headers"] = {"x-request-id": {"required": True, "schema": {"type": "string"}}}
    if path.startswith(BEARER_PREFIXES):
        operation["security"] = [{}, {"token": []}]


def _errors(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    statuses = {"403", "500"}
    if path not in OPEN_PATHS:
        statuses |= {"401", "503"}
    if operation.get("parameters") or "requestBody" in operation or (path.startswith("/admin") and method == "get"):
        statuses.add("400")  # the last for a query parameter that the route does not know
    if "requestBody" in operation:
        statuses.add("413")
    if "{" in path or (path.startswith("/admin") and method == "post"):
        statuses.add("404")
    if path.startswith("/admin") and method == "post":
        statuses.add("409")
    return sorted(statuses.union(_ALSO.get((method, path), ())))
