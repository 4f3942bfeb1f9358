"""OpenAI's shapes for a chat completion, whole and in chunks. Owns those dictionaries and the SSE framing; knows nothing of requests or rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from online_sao.service.chat_records import AdmittedRequest, ChoiceDone, TextDelta, TokenLogprob, ToolCallDelta

DONE = b"data: [DONE]\n\n"


def sse(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def fingerprint(policy_name: str, policy_version: int) -> str:
    return f"{policy_name}@v{policy_version}"


def usage(request: AdmittedRequest, done: list[ChoiceDone]) -> dict[str, int]:
    """The prompt counts once, however many choices were sampled from it."""
    prompt, completion = len(request.prompt_ids), sum(d.completion_tokens for d in done)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def learning_note(request: AdmittedRequest, done: list[ChoiceDone]) -> dict[str, Any]:
    """The ``online_sao`` field: which version answered, whether a score can train it and why not, and the sampling parameters really used."""
    reasons = [d.not_trainable_reason for d in done if d.not_trainable_reason is not None]
    return {
        "policy_version": max(d.policy_version for d in done),
        "trainable": not reasons,
        "not_trainable_reason": reasons[0] if reasons else None,
        "sampling": request.sampling_note,
    }


@dataclass(slots=True)
class Answer:
    """What one choice has said so far."""

    text: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    tokens: list[TokenLogprob] = field(default_factory=list)

    def add(self, event: TextDelta | ToolCallDelta) -> None:
        if isinstance(event, ToolCallDelta):
            self.calls.append(event)
        else:
            self.text += event.text
            self.tokens += event.tokens

    def message(self) -> dict[str, Any]:
        """``content`` is null where tool calls are all there is; ``tool_calls`` is absent where there are none."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.calls:
            message["content"] = self.text or None
            message["tool_calls"] = [_tool_call(call) for call in self.calls]
        return message


def _tool_call(call: ToolCallDelta) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(done: ChoiceDone) -> str:
    return "tool_calls" if done.tool_calls and done.finish_reason == "stop" else done.finish_reason


def _logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    def entry(token: TokenLogprob) -> dict[str, Any]:
        return {"token": token.token, "logprob": token.logprob, "bytes": None if token.bytes is None else list(token.bytes)}

    return {"content": [{**entry(token), "top_logprobs": [entry(top) for top in token.top]} for token in tokens], "refusal": None}


def completion(request: AdmittedRequest, answers: list[Answer], done: list[ChoiceDone], policy_name: str) -> dict[str, Any]:
    note = learning_note(request, done)
    return {
        "id": request.completion_id,
        "object": "chat.completion",
        "created": int(request.created_at),
        "model": request.command.model,
        "system_fingerprint": fingerprint(policy_name, note["policy_version"]),
        "choices": [
            {
                "index": d.choice,
                "message": answers[d.choice].message(),
                "logprobs": _logprobs(answers[d.choice].tokens) if request.command.logprobs else None,
                "finish_reason": _finish_reason(d),
            }
            for d in sorted(done, key=lambda d: d.choice)
        ],
        "usage": usage(request, done),
        "online_sao": note,
    }


class Chunks:
    """The events of one stream as SSE bytes. ``include_usage``: a last chunk carries the usage, and all others carry it as null."""

    def __init__(self, request: AdmittedRequest, policy_name: str, *, include_usage: bool) -> None:
        self._request = request
        self._policy_name = policy_name
        self._include_usage = include_usage
        self._greeted: set[int] = set()

    def role(self, choice: int, policy_version: int) -> bytes:
        """The first chunk of a choice; empty bytes if it has been sent."""
        if choice in self._greeted:
            return b""
        self._greeted.add(choice)
        return self._chunk(policy_version, choice, {"role": "assistant", "content": "", "refusal": None})

    def text(self, event: TextDelta) -> bytes:
        logprobs = _logprobs(event.tokens) if event.tokens else None
        return self._chunk(event.policy_version, event.choice, {"content": event.text} if event.text else {}, logprobs=logprobs)

    def tool_call(self, event: ToolCallDelta) -> bytes:
        """A call comes whole: it is known to be one only when it ends."""
        return self._chunk(event.policy_version, event.choice, {"tool_calls": [{"index": event.index, **_tool_call(event)}]})

    def finish(self, done: ChoiceDone) -> bytes:
        note = {"online_sao": learning_note(self._request, [done])}
        return self._chunk(done.policy_version, done.choice, {}, _finish_reason(done), note)

    def usage(self, done: list[ChoiceDone]) -> bytes:
        if not self._include_usage:
            return b""
        return sse({**self._head(max(d.policy_version for d in done)), "choices": [], "usage": usage(self._request, done)})

    def _chunk(
        self,
        policy_version: int,
        choice: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        extra: dict[str, Any] | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        choices = [{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}]
        no_usage = {"usage": None} if self._include_usage else {}
        return sse({**self._head(policy_version), "choices": choices, **no_usage, **(extra or {})})

    def _head(self, policy_version: int) -> dict[str, Any]:
        return {
            "id": self._request.completion_id,
            "object": "chat.completion.chunk",
            "created": int(self._request.created_at),
            "model": self._request.command.model,
            "system_fingerprint": fingerprint(self._policy_name, policy_version),
        }
