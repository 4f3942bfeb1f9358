"""Whatever is sent, the answer is a clean 4xx in OpenAI's shape, with the parameter at fault named."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from server_process import user

BASE = {"model": "tiny", "messages": user(), "max_tokens": 2}


def checked(response: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert response.headers["x-request-id"]
    if code is not None:
        assert body["error"]["code"] == code
    if param is not None:
        assert body["error"]["param"] == param
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"3",
        b"\xff\xfe",
        b'{"model": "tiny", "model": "tiny"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"model": "\\ud800"}',
        b'{"model": "a\\u0000b"}',
        b'{"\\udc00": 1}',
        b"[" * 100_000,
        b'{"a": ' * 20_000,
        b'{"messages": ' + b"[" * 40 + b"]" * 40 + b"}",
        b"{} {}",
        b"{'model': 'tiny'}",
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_bodies_that_are_not_strict_json(http: httpx.Client, raw: bytes) -> None:
    checked(http.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"}), 400, "invalid_request_error")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 2.0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": False}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"episode_id": "x" * 300}}, "metadata"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, None),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}]}, "messages.0"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}]}]},
            "messages.0.tool_calls.0.function.arguments",
        ),
        ({"user": 3}, "user"),
        ({"user": "x" * 257}, "user"),
        ({"store": "yes"}, "store"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, None),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_parameters_out_of_range_or_of_another_type(http: httpx.Client, changes: dict[str, Any], param: str | None) -> None:
    checked(http.post("/v1/chat/completions", json={**BASE, **changes}), 400, "invalid_request_error", param)


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"parallel_tool_calls": False},
        {"functions": [{"name": "f"}]},
        {"logit_bias": {"5": 1}},
        {"response_format": {"type": "json_object"}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -1},
        {"top_k": 5},
        {"min_p": 0.1},
        {"modalities": ["text", "audio"]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_what_cannot_be_honoured_is_refused_by_name(http: httpx.Client, changes: dict[str, Any]) -> None:
    error = checked(http.post("/v1/chat/completions", json={**BASE, **changes}), 400, "unsupported_feature")
    assert error["param"] == next(iter(changes))


def test_neutral_values_and_harmless_unknowns_are_accepted(http: httpx.Client) -> None:
    nulls = dict.fromkeys(("temperature", "top_p", "n", "stop", "metadata", "user", "store", "stream", "stream_options", "tools", "logit_bias"))
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "response_format": {"type": "text"}, "seed": 3, "what": {"is": 1}}
    assert http.post("/v1/chat/completions", json={**BASE, **nulls, **neutral}).status_code == 200


def test_an_oversized_body_is_413(http: httpx.Client) -> None:
    checked(http.post("/v1/chat/completions", json={**BASE, "user": "x" * 300_000}), 413, "payload_too_large")

    def pieces() -> Any:
        for _ in range(30):
            yield b" " * 10_000

    checked(http.post("/v1/feedback", content=pieces(), headers={"content-type": "application/json"}), 413, "payload_too_large")


def test_another_content_type(http: httpx.Client) -> None:
    checked(http.post("/v1/chat/completions", content=json.dumps(BASE), headers={"content-type": "text/plain"}), 400)
    accepted = http.post("/v1/chat/completions", content=json.dumps(BASE), headers={"content-type": "application/json; charset=utf-8"})
    assert accepted.status_code == 200


def test_routes_that_are_not_there(http: httpx.Client) -> None:
    checked(http.get("/v1/nothing"), 404, "not_found")
    checked(http.get("/v1/chat/completions"), 405, "method_not_allowed")
    checked(http.delete("/v1/models"), 405, "method_not_allowed")
    checked(http.get("/v1/models/none"), 404, "model_not_found")


def test_huge_and_many_leave_the_service_alive(http: httpx.Client) -> None:
    """200 kB is this server's limit: what is above it is drained or cut off, what is below it is read and refused by length."""
    checked(http.post("/v1/chat/completions", content=b'{"model": "' + b"x" * 10_000_000 + b'"}', headers={"content-type": "application/json"}), 413)
    many = [{"role": "user", "content": ""}] * 6_000
    checked(http.post("/v1/chat/completions", json={**BASE, "messages": many}), 400, "context_length_exceeded")
    assert http.post("/v1/chat/completions", json=BASE).status_code == 200
