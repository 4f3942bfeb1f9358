"""The chat use case: a request becomes sampled choices, each a row before its first byte and a completed row before its last.

Owns admission, the running requests, and what becomes of each choice (completed, abandoned, failed). Knows nothing of HTTP: it takes a ChatCommand
and yields typed events. Sampling runs in tasks of its own, so that neither a client that leaves nor a cancelled handler can lose what was sampled.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from online_sao.config import Settings
from online_sao.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    ModelNotFoundError,
    NotReadyError,
    OnlineSAOError,
    OverloadedError,
    StorageError,
    UnsupportedFeatureError,
    VersionNotLoadedError,
)
from online_sao.inference.decoding import StreamDecoder
from online_sao.inference.engine import InferenceEngine, PinnedVersion
from online_sao.inference.renderer import Renderer
from online_sao.inference.tool_calls import ToolCallParser
from online_sao.service.chat_log import ChatLog
from online_sao.service.chat_records import AdmittedRequest, ChatCommand, ChatEvent, ChoiceDone, Outcome
from online_sao.service.pinned import PinnedVersions
from online_sao.service.sampling import ChoiceSampler
from online_sao.service.telling import ChoiceTeller
from online_sao.types import SamplingParams

logger = logging.getLogger(__name__)


class ChatRun:
    """One admitted request. Read ``events`` once; call ``abandon`` if nobody wants the rest."""

    def __init__(self, request: AdmittedRequest) -> None:
        self.request = request
        self.events_queue: asyncio.Queue[ChatEvent | OnlineSAOError] = asyncio.Queue()
        self.samplers: list[ChoiceSampler] = []
        self.unfinished = request.command.n
        self.logged: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether its rows have been begun: until then nothing is told of it, and without them nothing is kept."""

    async def events(self) -> AsyncIterator[ChatEvent]:
        """The events of all choices as they happen, until each is done. Raises EngineError where the engine failed one."""
        waiting = self.request.command.n
        while waiting:
            event = await self.events_queue.get()
            if isinstance(event, OnlineSAOError):
                self.abandon()
                raise event
            waiting -= isinstance(event, ChoiceDone)
            yield event

    def abandon(self) -> None:
        """The client has left: every choice still running is aborted in the engine at once and its row completed with what was sampled."""
        for sampler in self.samplers:
            sampler.abandon()


class ChatService:
    """``pinned``: where versions that a request names are found; None: only the one being served can be named. ``observe`` is told of every choice
    that ended, after its row is written."""

    def __init__(
        self,
        settings: Settings,
        engine: InferenceEngine,
        renderer: Renderer,
        log: ChatLog,
        pinned: PinnedVersions | None = None,
        observe: Callable[[AdmittedRequest, Outcome], None] = lambda _request, _outcome: None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._renderer = renderer
        self._log = log
        self._pinned = pinned
        self._observe = observe
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs: set[ChatRun] = set()
        self._active = 0
        """Choices admitted and not yet on disk, running or waiting."""
        self._closing = False
        self._seconds_per_choice = 1.0

    async def start(self, command: ChatCommand) -> ChatRun:
        """Check, admit and log a request, and begin to sample it.

        Raises ModelNotFoundError, VersionNotLoadedError, UnsupportedFeatureError, ContextLengthError, OverloadedError, NotReadyError (shutting down).
        """
        if self._closing:
            raise NotReadyError("The server is shutting down.")
        pinned = await self._pin(command.model)
        if command.top_logprobs > self._engine.max_top_logprobs:
            raise UnsupportedFeatureError(
                f"'top_logprobs' is {command.top_logprobs}; this server's engine reports {self._engine.max_top_logprobs} alternatives at most.",
                param="top_logprobs",
            )
        self._check_length(command, self._renderer.fewest_tokens(command.messages, command.tools), "at least ")
        prompt_ids = self._renderer.render(command.messages, command.tools)
        sampling, requested = self._sampling(command, len(prompt_ids))
        self._admit(command.n)
        try:
            request = AdmittedRequest(
                completion_id=f"chatcmpl-{uuid.uuid4().hex}",
                command=command,
                created_at=time.time(),
                prompt_ids=prompt_ids,
                sampling=sampling,
                requested=requested,
                policy_version=self._engine.policy_version if pinned is None else pinned.policy_version,
                pinned=pinned,
                not_trainable_reason=sampling.not_trainable_reason() if command.store else "store_false",
            )
        except BaseException:
            self._active -= command.n
            raise
        # The engine begins while the rows are being written: whoever waits for a first token does not wait for the database first.
        run = self._begin(request)
        try:
            await self._log.open(request)
        except BaseException:
            run.abandon()
            run.logged.set_result(False)
            raise
        run.logged.set_result(True)
        return run

    async def close(self, grace_seconds: float) -> None:
        """Admit nobody any more; give running requests ``grace_seconds`` to end, then abandon them and wait until their rows are written."""
        self._closing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for run in list(self._runs):
            run.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _pin(self, model: str) -> PinnedVersion | None:
        """The version that a model name asks for by number, if this server keeps several. Raises ModelNotFoundError or VersionNotLoadedError."""
        name, at, number = model.partition("@v")
        if name != self._settings.policy.name or (at and not re.fullmatch(r"0|[1-9][0-9]{0,8}", number)):
            raise ModelNotFoundError(
                f"There is no model {model[:80]!r}; this server has {self._settings.policy.name!r} (version N as '…@vN').",
                param="model",
            )
        if not at:
            return None
        version = int(number)
        if self._pinned is not None:
            return await self._pinned.find(version)
        if version != self._engine.policy_version:
            raise VersionNotLoadedError(
                f"Version {version} of {name} is not loaded; version {self._engine.policy_version} is being served.", param="model"
            )
        return None

    def _check_length(self, command: ChatCommand, prompt_tokens: int, qualifier: str = "") -> None:
        limit = self._settings.engine.max_context_tokens
        wanted = command.max_tokens if command.max_tokens is not None else 1
        if prompt_tokens + wanted > limit:
            asked = f"{command.max_tokens} for the completion" if command.max_tokens is not None else "at least 1 for the completion"
            raise ContextLengthError(
                f"This model's context is {limit} tokens. You asked for {qualifier}{prompt_tokens + wanted}: {qualifier}{prompt_tokens} in the "
                f"messages, {asked}. Shorten the messages or the completion.",
                param="messages",
            )

    def _sampling(self, command: ChatCommand, prompt_tokens: int) -> tuple[SamplingParams, dict[str, Any] | None]:
        """What will really be sampled with, and what was asked for where exploration settings replaced it."""
        limit = self._settings.engine.max_context_tokens
        self._check_length(command, prompt_tokens)
        max_tokens = command.max_tokens or min(self._settings.engine.default_max_tokens, limit - prompt_tokens)
        exploration = self._settings.exploration
        temperature, top_p = command.temperature, command.top_p
        requested = None
        if exploration.neutralise_sampling and (temperature == 0.0 or top_p < 1.0):
            requested = {"temperature": temperature, "top_p": top_p}
            temperature, top_p = (temperature or exploration.temperature), 1.0
        return SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=command.stop), requested

    def _admit(self, n: int) -> None:
        """Reserve n places, or raise. No await between the check and the reservation."""
        together = self._settings.engine.max_concurrent * max(1, self._settings.cluster.replicas)
        capacity = together + self._settings.engine.max_queue
        if n > capacity:
            raise InvalidRequestError(f"'n' is {n}, but this server holds {capacity} completions at most.", param="n")
        if self._active + n > capacity:
            rounds = math.ceil((self._active + n - capacity) / together)
            wait = min(60, max(1, math.ceil(rounds * self._seconds_per_choice)))
            raise OverloadedError(f"All {capacity} places for completions are taken; try again in {wait} s.", retry_after=wait)
        self._active += n

    def _begin(self, request: AdmittedRequest) -> ChatRun:
        run = ChatRun(request)
        self._runs.add(run)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._active -= 1
            run.unfinished -= 1
            if not run.unfinished:
                self._runs.discard(run)

        for choice in range(request.command.n):
            decoder = StreamDecoder(self._renderer, request.sampling.stop)
            sampler = ChoiceSampler(self._engine, decoder, request, choice, self._renderer.eos_token_ids)
            run.samplers.append(sampler)
            task = asyncio.create_task(self._serve_choice(run, choice, sampler), name=f"serve {request.completion_id}-{choice}")
            self._tasks.add(task)
            task.add_done_callback(done)
        return run

    async def _serve_choice(self, run: ChatRun, choice: int, sampler: ChoiceSampler) -> None:
        """Sample one choice and complete its row, whatever happens; then tell whoever still listens. Nothing more where the row was never begun."""
        tell = run.events_queue.put_nowait
        teller = self._teller(run.request.command, choice, tell)
        try:
            outcome = await sampler.run(teller.piece)
            if not await run.logged:
                return
            reason = await self._log.complete(run.request, choice, outcome)
        except StorageError as error:
            logger.error("%s choice %d could not be written yet: %s", run.request.completion_id, choice, error.message)
            tell(error)
            return
        except Exception:
            logger.exception("%s choice %d could not be completed", run.request.completion_id, choice)
            tell(EngineError("The completion could not be logged; nothing more of it will be sent."))
            return
        self._note_duration(outcome)
        self._observe(run.request, outcome)
        if outcome.error is not None:
            tell(outcome.error)
            return
        completion = outcome.completion
        if completion.finish_reason == "abandoned":
            # Only the server's own end is still listened to here: a client that left hears nothing.
            tell(NotReadyError("The server is shutting down; the completion was cut short."))
            return
        teller.finish(outcome.newest_version, complete=completion.finish_reason == "stop")
        tell(ChoiceDone(choice, completion.finish_reason, len(completion.token_ids), outcome.newest_version, reason, teller.tool_calls))

    def _teller(self, command: ChatCommand, choice: int, tell: Callable[[ChatEvent], None]) -> ChoiceTeller:
        parser = ToolCallParser() if command.tools and self._renderer.tool_support.parses_calls else None
        return ChoiceTeller(choice, tell, parser, self._renderer.describe_token if command.logprobs else None)

    def _note_duration(self, outcome: Outcome) -> None:
        """Moving average of a choice's seconds in the engine: what Retry-After is reckoned from."""
        self._seconds_per_choice += 0.1 * (outcome.seconds - self._seconds_per_choice)
