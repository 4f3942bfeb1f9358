"""Clients people really use, against a real server: the openai SDK, LangChain and curl; logprobs, seed, tools, streamed and not, scored by id."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from server_process import Server, user
from tiny_model import TOOL_CALL, tool_calling_model

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Now.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
SAID = "".join(TOOL_CALL)


@pytest.fixture(scope="module")
def tools_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tools") / "data", {"ONLINE_SAO_POLICY__MODEL": str(tool_calling_model())}).start()
    yield server
    server.stop()


def test_logprobs_are_the_logged_ones_streamed_or_not(client: OpenAI, server: Server) -> None:
    request: dict[str, Any] = {"model": "tiny", "messages": user("Logprobs"), "max_tokens": 8, "logprobs": True, "top_logprobs": 3, "seed": 11}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True))
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    streamed = [token for chunk in chunks if chunk.choices and chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content or ()]
    for content, identity in ((whole.choices[0].logprobs.content, whole.id), (streamed, chunks[0].id)):
        row = server.interaction(identity)
        assert [token.logprob for token in content] == row["behavior_logprobs"]
        assert all(len(token.top_logprobs) == 3 for token in content)
        text = b"".join(bytes(token.bytes) for token in content if token.bytes is not None).decode(errors="ignore")
        assert text.replace("\ufffd", "") == row["text"].replace("\ufffd", "")
    assert row["text"] == whole.choices[0].message.content, "the same seed"
    assert row["sampling"]["seed"] == 11


def test_a_tool_call_with_the_sdk(tools_server: Server) -> None:
    with OpenAI(base_url=f"{tools_server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model="tiny", messages=user("Weather?"), tools=[TOOL], seed=1)  # type: ignore[list-item]
        (choice,) = answer.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I will look.")
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris 🙂"})
        row = tools_server.interaction(answer.id)
        assert row["text"] == SAID
        assert len(row["token_ids"]) == len(TOOL_CALL) + 1 == len(row["behavior_logprobs"])
        assert row["sampling"]["tools"] == [TOOL]
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        again = client.chat.completions.create(model="tiny", messages=[*user("Weather?"), choice.message, result], tools=[TOOL], seed=1)  # type: ignore[list-item]
        assert tools_server.interaction(again.id)["messages"][2] == result
        parts = list(client.chat.completions.create(model="tiny", messages=user("Weather?"), tools=[TOOL], seed=1, stream=True))  # type: ignore[call-overload]
        deltas = [part.choices[0].delta for part in parts]
        assert "".join(delta.content or "" for delta in deltas) == "I will look."
        (streamed,) = [call for delta in deltas for call in delta.tool_calls or ()]
        assert (streamed.index, streamed.function.arguments) == (0, call.function.arguments)
        assert parts[-1].choices[0].finish_reason == "tool_calls"
        silent = client.chat.completions.create(model="tiny", messages=user("Weather?"), tools=[TOOL], tool_choice="none", seed=1)  # type: ignore[list-item]
        assert silent.choices[0].message.content == SAID


def test_tools_where_the_template_has_no_place(http: httpx.Client) -> None:
    body = {"model": "tiny", "messages": user(), "max_tokens": 2, "tools": [TOOL]}
    answer = http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (400, "unsupported_feature", "tools")
    assert http.post("/v1/chat/completions", json={**body, "tool_choice": "none"}).status_code == 200


def test_langchain(tools_server: Server) -> None:
    model = ChatOpenAI(model="tiny", base_url=f"{tools_server.url}/v1", api_key="none", max_retries=0, seed=1)  # type: ignore[arg-type]
    bound = model.bind_tools([TOOL])
    answer = bound.invoke("Weather?")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", {"city": "Paris 🙂"})]
    bound.invoke([("user", "Weather?"), answer, ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])])
    # LangChain drops the id of a streamed completion, and keeps the headers if told to.
    with_headers = ChatOpenAI(model="tiny", base_url=f"{tools_server.url}/v1", api_key="none", include_response_headers=True, seed=1)  # type: ignore[arg-type]
    chunks = list(with_headers.stream("Say it."))
    assert "".join(str(chunk.content) for chunk in chunks) == SAID
    for identity in (answer.response_metadata["id"], chunks[0].response_metadata["headers"]["x-completion-id"]):
        score = httpx.post(f"{tools_server.url}/v1/feedback", json={"completion_id": identity, "value": True}, trust_env=False)
        assert score.status_code == 201, score.text


def test_curl(server: Server) -> None:
    def curl(path: str, body: dict[str, Any], *more: str) -> str:
        command = ["curl", "-sS", "--fail-with-body", f"{server.url}{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body), *more]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    request = {"model": "tiny", "messages": user(), "max_tokens": 4}
    identity = json.loads(curl("/v1/chat/completions", request))["id"]
    assert json.loads(curl("/v1/feedback", {"completion_id": identity, "value": 0.5}))["status"] == "queued"
    events = curl("/v1/chat/completions", {**request, "stream": True}, "-N").strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    streamed = json.loads(events[0].removeprefix("data: "))["id"]
    assert json.loads(curl("/v1/feedback", {"completion_id": streamed, "value": 1}))["completion_id"] == streamed


def test_a_page_of_a_configured_origin(own_server: Callable[..., Server]) -> None:
    server = own_server({"ONLINE_SAO_SERVER__CORS_ORIGINS": '["https://app.example.com"]'}).start()
    page = {"origin": "https://app.example.com"}
    with httpx.Client(base_url=server.url, trust_env=False, headers=page, timeout=60) as http:
        answer = http.post("/v1/chat/completions", json={"model": "tiny", "messages": user(), "max_tokens": 1})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page["origin"])
        assert http.post("/admin/learner/pause").status_code == 403
