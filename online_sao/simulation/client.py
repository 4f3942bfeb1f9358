"""The service as a simulated user sees it: HTTP only. Owns the counting of every answer that is not 2xx; knows nothing of preferences or runs."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx2  # the HTTP package the openai client is built on: one client, one tree of errors
from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient, OpenAIError
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from online_sao.errors import OnlineSAOError

REQUEST_TIMEOUT_SECONDS = 300.0
"""A small model on a busy laptop answers slowly; an answer that takes this long has failed."""
_FINGERPRINT = re.compile(r"@v(\d+)$")


class CallFailedError(OnlineSAOError):
    """A call was not answered 2xx, or not at all. It has been counted already."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion as the client saw it. Times in seconds from sending the request; ``first_token_seconds`` only where it was streamed.
    ``policy_version`` is the one the service named for the last token."""

    completion_id: str
    text: str
    policy_version: int
    streamed: bool
    first_token_seconds: float | None
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """One call that did not end 2xx. ``status`` 0: no answer at all."""

    method: str
    path: str
    status: int
    body: str


@dataclass(slots=True)
class CallLog:
    """Every HTTP answer of a run, counted."""

    calls: int = 0
    failures: list[Failure] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {"calls": self.calls, "non_2xx": len(self.failures), "failures": [asdict(failure) for failure in self.failures]}


def policy_version_of(system_fingerprint: str | None) -> int:
    """The N of ``<name>@v<N>``. Raises CallFailedError where a service names no version: it is not this one."""
    match = _FINGERPRINT.search(system_fingerprint or "")
    if match is None:
        raise CallFailedError(f"The answer names no policy version (system_fingerprint {system_fingerprint!r}). Is this an Online SAO server?")
    return int(match.group(1))


class Service:
    """A client of one server. Every method raises CallFailedError after counting what went wrong; nothing is retried."""

    def __init__(self, base_url: str, *, api_key: str | None = None, max_tokens: int = 24) -> None:
        self.log = CallLog()
        self.max_tokens = max_tokens
        self._url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = DefaultAsyncHttpxClient(timeout=REQUEST_TIMEOUT_SECONDS, event_hooks={"response": [self._count]})
        self._openai = AsyncOpenAI(base_url=f"{self._url}/v1", api_key=api_key or "none", max_retries=0, http_client=self._http)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._openai.close()

    async def _count(self, response: httpx2.Response) -> None:
        self.log.calls += 1
        if not 200 <= response.status_code < 300:
            await response.aread()
            self.log.failures.append(Failure(response.request.method, response.request.url.path, response.status_code, response.text[:2000]))

    def _failed(self, method: str, path: str, error: Exception) -> CallFailedError:
        if getattr(error, "response", None) is None:  # never answered, or broken off: the response hook has not counted it
            self.log.failures.append(Failure(method, path, 0, f"{type(error).__name__}: {error}"))
        return CallFailedError(f"{method} {path} failed: {error}")

    async def model(self) -> str:
        """The first policy name the service lists."""
        try:
            return (await self._openai.models.list()).data[0].id
        except (OpenAIError, httpx2.HTTPError, IndexError) as error:
            raise self._failed("GET", "/v1/models", error) from error

    async def chat(self, model: str, prompt: str, *, user: str, stream: bool, store: bool = True) -> Answer:
        """Ask for one completion at temperature 1. ``store`` False: the service keeps nothing that can be scored."""
        started = time.perf_counter()
        try:
            reply: ChatCompletion | AsyncStream[ChatCompletionChunk] = await self._openai.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                temperature=1.0,
                max_tokens=self.max_tokens,
                user=user,
                store=store,
                stream=stream,
            )
            if isinstance(reply, ChatCompletion):
                text = reply.choices[0].message.content or ""
                return Answer(reply.id, text, policy_version_of(reply.system_fingerprint), False, None, time.perf_counter() - started)
            return await self._read_stream(reply, started)
        except (OpenAIError, httpx2.HTTPError) as error:
            raise self._failed("POST", "/v1/chat/completions", error) from error

    async def _read_stream(self, stream: AsyncStream[ChatCompletionChunk], started: float) -> Answer:
        completion_id, fingerprint, text = "", None, ""
        first_token_seconds: float | None = None
        async for chunk in stream:
            completion_id, fingerprint = chunk.id, chunk.system_fingerprint or fingerprint
            piece = (chunk.choices[0].delta.content if chunk.choices else None) or ""
            if piece and first_token_seconds is None:
                first_token_seconds = time.perf_counter() - started
            text += piece
        return Answer(completion_id, text, policy_version_of(fingerprint), True, first_token_seconds, time.perf_counter() - started)

    async def score(self, completion_id: str, value: float) -> dict[str, Any]:
        """Send a score; returns the receipt."""
        return await self._json("POST", "/v1/feedback", json={"completion_id": completion_id, "value": value})

    async def receipt(self, feedback_id: str) -> dict[str, Any]:
        return await self._json("GET", f"/v1/feedback/{feedback_id}")

    async def status(self) -> dict[str, Any]:
        """The service's account of itself."""
        return await self._json("GET", "/admin/status")

    async def updates_of_versions(self) -> dict[int, int]:
        """Version → number of the update that made it, of all versions there are."""
        updates: dict[int, int] = {}
        page = "/admin/policies?limit=200"
        while versions := (await self._json("GET", page))["data"]:
            updates.update({version["version"]: version["update"] for version in versions})
            page = f"/admin/policies?limit=200&before={min(updates)}"
        return updates

    async def updates(self, after: int = 0) -> list[dict[str, Any]]:
        """Updates with a number above ``after``, oldest first, with their metrics."""
        updates: list[dict[str, Any]] = []
        page = "/admin/updates?limit=200"
        while data := (await self._json("GET", page))["data"]:
            updates += [update for update in data if update["number"] > after]
            if data[-1]["number"] <= after:
                break
            page = f"/admin/updates?limit=200&before={data[-1]['number']}"
        return updates[::-1]

    async def _json(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, self._url + path, headers=self._headers, **arguments)
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
        except httpx2.HTTPError as error:
            raise self._failed(method, path, error) from error
        return answer
