"""OpenAI's shapes for a chat completion, whole and in chunks. Owns those dictionaries and the SSE framing; knows nothing of requests or rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from online_sao.service.chat_records import AdmittedRequest, ChoiceDone

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
    sampling: dict[str, Any] = {**asdict(request.sampling), "stop": list(request.sampling.stop)}
    if request.requested is not None:
        sampling["requested"] = request.requested
    return {
        "policy_version": max(d.policy_version for d in done),
        "trainable": not reasons,
        "not_trainable_reason": reasons[0] if reasons else None,
        "sampling": sampling,
    }


def completion(request: AdmittedRequest, texts: list[str], done: list[ChoiceDone], policy_name: str) -> dict[str, Any]:
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
                "message": {"role": "assistant", "content": texts[d.choice], "refusal": None},
                "logprobs": None,
                "finish_reason": d.finish_reason,
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

    def text(self, choice: int, text: str, policy_version: int) -> bytes:
        return self._chunk(policy_version, choice, {"content": text})

    def finish(self, done: ChoiceDone) -> bytes:
        note = {"online_sao": learning_note(self._request, [done])}
        return self._chunk(done.policy_version, done.choice, {}, done.finish_reason, note)

    def usage(self, done: list[ChoiceDone]) -> bytes:
        if not self._include_usage:
            return b""
        return sse({**self._head(max(d.policy_version for d in done)), "choices": [], "usage": usage(self._request, done)})

    def _chunk(
        self, policy_version: int, choice: int, delta: dict[str, Any], finish_reason: str | None = None, extra: dict[str, Any] | None = None
    ) -> bytes:
        choices = [{"index": choice, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]
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
