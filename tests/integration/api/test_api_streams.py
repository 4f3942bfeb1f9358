"""Streams: the order of chunks, usage only when asked, whole characters, errors inside, and clients that leave."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
from openai import OpenAI
from server_process import Server, until, user


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in lines]


def test_the_order_of_a_stream(http: httpx.Client, server: Server) -> None:
    body = {"model": "tiny", "messages": user(), "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        first, *middle, finish, usage, end = events(response)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] in ("length", "stop")
    assert finish["online_sao"]["trainable"] is True
    assert {chunk["usage"] for chunk in (first, *middle, finish)} == {None}
    assert (usage["choices"], end) == ([], "[DONE]")
    row = server.interaction(first["id"])
    assert usage["usage"]["completion_tokens"] == len(row["token_ids"])
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == row["text"]
    assert {chunk["system_fingerprint"] for chunk in (first, *middle, finish, usage)} == {"tiny@v0"}


def test_no_usage_unless_asked(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=user(), max_tokens=3, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)


def test_choices_interleave_by_index(client: OpenAI, server: Server) -> None:
    texts, roles, finished = {0: "", 1: "", 2: ""}, [], []
    identity = ""
    for chunk in client.chat.completions.create(model="tiny", messages=user(), max_tokens=8, n=3, stream=True):
        (choice,) = chunk.choices
        identity = chunk.id
        if choice.delta.role:
            roles.append(choice.index)
        assert choice.index in roles, "text before the role"
        assert choice.index not in finished, "text after the end"
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            finished.append(choice.index)
    assert sorted(roles) == sorted(finished) == [0, 1, 2]
    assert texts == {i: server.interaction(identity, i)["text"] for i in range(3)}


def test_the_row_is_complete_before_the_last_bytes(http: httpx.Client, server: Server) -> None:
    with http.stream("POST", "/v1/chat/completions", json={"model": "tiny", "messages": user(), "max_tokens": 3, "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                status = server.interaction(chunk["id"])["status"]
                assert status in ("generating", "completed")
                if chunk["choices"][0]["finish_reason"]:
                    assert status == "completed"


def test_characters_are_never_split(client: OpenAI, server: Server) -> None:
    """A random model over a byte-level vocabulary samples many broken characters: what is shown, piece by piece, is what the row holds, and each
    replacement character stands for bytes that never became one."""
    for _ in range(6):
        text, identity = "", ""
        for chunk in client.chat.completions.create(model="tiny", messages=user("日本語 🙂"), max_tokens=60, temperature=2.0, stream=True):
            identity = chunk.id
            text += chunk.choices[0].delta.content or ""
        assert text == server.interaction(identity)["text"]


def leave(server: Server, body: dict[str, Any], *, after_bytes: int) -> None:
    """Send a request, read some of the answer, and be gone."""
    content = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        received = 0
        while received < after_bytes:
            received += len(connection.recv(4096))
        if not after_bytes:
            until(lambda: server.rows("SELECT 1 FROM interactions WHERE user = ?", body["user"]))
            time.sleep(0.1)


def left_rows(server: Server, user_name: str) -> list[dict[str, Any]]:
    query = (
        "SELECT i.completion_id, i.status, i.text, t.state, t.reason FROM interactions i LEFT JOIN trajectories t ON t.interaction_id = i.id "
        "WHERE i.user = ?"
    )
    rows = server.rows(query, user_name)
    return rows if rows and all(row["status"] != "generating" for row in rows) else []


def gone(server: Server, body: dict[str, Any], *, after_bytes: int) -> list[dict[str, Any]]:
    """The rows of a client that left, all ended within a second. A busy machine has three tries: what is asked is that the server can, at once."""
    for attempt in range(3):
        name = f"{body['user']}-{attempt}"
        leave(server, {**body, "user": name}, after_bytes=after_bytes)
        started = time.monotonic()
        rows: list[dict[str, Any]] = until(lambda name=name: left_rows(server, name), what="the end of the abandoned choices")
        if time.monotonic() - started < 1.0:
            return rows
    raise AssertionError("it took more than a second, three times")


def test_a_client_that_leaves_a_stream_frees_its_place_within_a_second(server: Server, http: httpx.Client) -> None:
    rows = gone(server, {"model": "tiny", "messages": user(), "max_tokens": 1900, "stream": True, "n": 2, "user": "stream"}, after_bytes=2000)
    assert [(row["status"], row["state"], row["reason"]) for row in rows] == [("abandoned", "not_trainable", "abandoned")] * 2
    for choice, row in enumerate(rows):
        full = server.interaction(row["completion_id"], choice)
        assert 0 < len(full["token_ids"]) < 1900
        assert len(full["behavior_logprobs"]) == len(full["token_ids"])
        assert full["finish_reason"] == "abandoned"
    status = http.get("/admin/status").json()
    assert status["engine"]["running"] == 0


def test_a_client_that_leaves_before_the_answer(server: Server) -> None:
    (row,) = gone(server, {"model": "tiny", "messages": user(), "max_tokens": 1900, "user": "whole"}, after_bytes=0)
    assert (row["status"], row["state"], row["reason"]) == ("abandoned", "not_trainable", "abandoned")
