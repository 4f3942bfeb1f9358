"""POST /v1/chat/completions. Owns the way from an OpenAI request to service.chat and back, and what a client that leaves sets off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from api.bodies import json_body, openapi_body
from api.dependencies import BackendDependency
from api.errors import error_object, request_id
from api.v1.chat_format import DONE, Answer, Chunks, completion, sse
from api.v1.responses import EVENT_STREAM, ChatCompletion
from api.v1.schemas import ChatCompletionRequest, refuse_unsupported
from online_sao.errors import OnlineSAOError
from online_sao.service.chat import ChatRun
from online_sao.service.chat_records import ChatCommand, ChatEvent, ChoiceDone, TextDelta, ToolCallDelta

logger = logging.getLogger(__name__)
router = APIRouter()

STREAMED = "The completion; with `stream`, its chat.completion.chunk objects as the data of server-sent events, and `[DONE]` at the end."


@router.post(
    "/chat/completions",
    openapi_extra=openapi_body(ChatCompletionRequest),
    responses={200: {"model": ChatCompletion, "content": EVENT_STREAM, "description": STREAMED}},
)
async def create_chat_completion(
    request: Request,
    backend: BackendDependency,
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest, refuse_unsupported))],
) -> Response:
    run = await backend.chat.start(_command(body, request_id(request)))
    policy_name = backend.settings.policy.name
    if body.stream:
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        events = run.events()
        # The first event decides the status: an engine that fails at once is a 503, not a stream that begins with an error.
        first = await _unless_client_leaves(request, run, anext(events))
        return _EventStream(run, _chunks(first, events, Chunks(run.request, policy_name, include_usage=include_usage)))
    answers, done = await _unless_client_leaves(request, run, _collect(run))
    return JSONResponse(completion(run.request, answers, done, policy_name), headers=_id_header(run))


def _id_header(run: ChatRun) -> dict[str, str]:
    """Some clients (LangChain, streaming) keep a response's headers and drop its id, which a score needs."""
    return {"x-completion-id": run.request.completion_id}


def _command(body: ChatCompletionRequest, identity: str) -> ChatCommand:
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return ChatCommand(
        request_id=identity,
        model=body.model,
        messages=tuple(message.as_dict() for message in body.messages),
        max_tokens=limit,
        temperature=body.temperature if body.temperature is not None else 1.0,
        top_p=body.top_p if body.top_p is not None else 1.0,
        n=body.n or 1,
        stop=body.stop,
        seed=body.seed,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        tools=body.offered_tools,
        user=body.user,
        store=body.store is not False,
        metadata=body.metadata or {},
    )


async def _collect(run: ChatRun) -> tuple[list[Answer], list[ChoiceDone]]:
    answers = [Answer() for _ in range(run.request.command.n)]
    done: list[ChoiceDone] = []
    async for event in run.events():
        if isinstance(event, ChoiceDone):
            done.append(event)
        else:
            answers[event.choice].add(event)
    return answers, done


async def _unless_client_leaves(request: Request, run: ChatRun, awaitable: Any) -> Any:
    """The awaitable's result. Raises ClientDisconnect if the client leaves first. Whatever goes wrong, the run is abandoned."""
    work = asyncio.ensure_future(awaitable)
    leaving = asyncio.ensure_future(_client_left(request.receive))
    try:
        await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    except BaseException:
        run.abandon()
        raise
    finally:
        work.cancel()
        leaving.cancel()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(first: ChatEvent, events: AsyncIterator[ChatEvent], chunks: Chunks) -> AsyncIterator[bytes]:
    done: list[ChoiceDone] = []
    try:
        event: ChatEvent | None = first
        while event is not None:
            yield chunks.role(event.choice, event.policy_version) + _chunk(event, chunks)
            if isinstance(event, ChoiceDone):
                done.append(event)
            event = await anext(events, None)
        yield chunks.usage(done) + DONE
    except OnlineSAOError as error:
        logger.warning("a stream ended in an error: %s", error.message)
        yield sse(error_object(error))


def _chunk(event: ChatEvent, chunks: Chunks) -> bytes:
    if isinstance(event, TextDelta):
        return chunks.text(event)
    return chunks.tool_call(event) if isinstance(event, ToolCallDelta) else chunks.finish(event)


class _EventStream(Response):
    """Sends chunks while it listens for the client's leaving, which no send need ever notice: a model may be silent for long."""

    media_type = "text/event-stream"

    def __init__(self, run: ChatRun, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **_id_header(run)})
        del self.headers["content-length"]
        self._run = run
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_client_left(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        except OSError as error:
            raise ClientDisconnect from error
        finally:
            self._run.abandon()
            work.cancel()
            leaving.cancel()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
