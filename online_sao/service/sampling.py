"""One choice in the engine: tokens in, text out, stopped at a stop string, aborted when nobody wants it. Owns the Outcome, so that whatever happened,
what was sampled is known. Knows nothing of rows or clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from online_sao.errors import EngineError, OnlineSAOError
from online_sao.inference.decoding import StreamDecoder
from online_sao.inference.engine import EngineRequest, InferenceEngine, TokenDelta
from online_sao.service.chat_records import AdmittedRequest, Outcome, SampledToken
from online_sao.types import Completion, FinishReason, VersionSpan

OnPiece = Callable[[str, int, tuple[SampledToken, ...]], None]
"""Called with new text (perhaps none), the policy version that produced its last token, and the tokens that came with it: each token once."""

_CHOICE_STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of a request's choices: far apart, so that no choice repeats what a neighbouring seed gives."""


class ChoiceSampler:
    """Samples one choice. ``run`` once; ``abandon`` at any time, from the same event loop."""

    def __init__(
        self, engine: InferenceEngine, decoder: StreamDecoder, request: AdmittedRequest, choice: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._engine = engine
        self._decoder = decoder
        self._request = EngineRequest(
            request_id=f"{request.completion_id}-{choice}",
            prompt_ids=request.prompt_ids,
            max_tokens=request.sampling.max_tokens,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            eos_token_ids=eos_token_ids,
            seed=None if request.command.seed is None else request.command.seed + choice * _CHOICE_STRIDE,
            top_logprobs=request.command.top_logprobs,
            pinned=request.pinned,
        )
        self._admitted_version = request.policy_version
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._finish: FinishReason | None = None
        self._first_token_at: float | None = None
        self._pump: asyncio.Task[None] | None = None
        self._abandoned = False

    def abandon(self) -> None:
        """Abort the engine request at once. What was sampled so far stays; a choice that is already finished is left as it is."""
        self._abandoned = True
        if self._pump is not None:
            self._pump.cancel()

    async def run(self, on_piece: OnPiece) -> Outcome:
        """Sample until the end, an abandon, or the engine's failure. Never raises for any of them."""
        started = time.monotonic()
        error: BaseException | None = None
        if not self._abandoned:
            # A task of its own: abandoning cancels the sampling and nothing else, least of all the caller that writes the row.
            self._pump = asyncio.create_task(self._sample(on_piece), name=self._request.request_id)
            try:
                await asyncio.wait({self._pump})
            finally:
                self._pump.cancel()
            error = None if self._pump.cancelled() else self._pump.exception()
        if self._finish is None:
            self._finish = "error" if error is not None else "abandoned"
        tail = self._decoder.finish()
        if self._finish in ("stop", "length"):
            if self._decoder.stopped:
                self._finish = "stop"
            if tail:
                on_piece(tail, self._newest(), ())
        return Outcome(
            completion=Completion(tuple(self._token_ids), tuple(self._logprobs), _spans(self._versions), self._decoder.text, self._finish),
            oldest_version=min(self._versions, default=self._admitted_version),
            newest_version=self._newest(),
            first_token_at=self._first_token_at,
            completed_at=time.time(),
            seconds=time.monotonic() - started,
            error=_as_ours(error),
        )

    async def _sample(self, on_piece: OnPiece) -> None:
        async with aclosing(cast(AsyncGenerator[TokenDelta, None], self._engine.generate(self._request))) as deltas:
            async for delta in deltas:
                text, tokens = self._take(delta)
                if tokens:
                    on_piece(text, delta.policy_version, tokens)
                if self._finish is not None:
                    return
        raise EngineError("The engine ended the completion without a finish reason.")

    def _take(self, delta: TokenDelta) -> tuple[str, tuple[SampledToken, ...]]:
        """Record a delta's tokens up to the one that completes a stop string; the text that may be shown now, and those tokens."""
        if self._first_token_at is None and delta.token_ids:
            self._first_token_at = time.time()
        text = ""
        tokens: list[SampledToken] = []
        tops = delta.top_logprobs or ((),) * len(delta.token_ids)
        for token_id, logprob, top in zip(delta.token_ids, delta.behavior_logprobs, tops, strict=True):
            tokens.append(SampledToken(token_id, logprob, top))
            self._token_ids.append(token_id)
            self._logprobs.append(logprob)
            self._versions.append(delta.policy_version)
            text += self._decoder.push(token_id)
            if self._decoder.stopped:
                self._finish = "stop"
                return text, tuple(tokens)
        self._finish = delta.finish_reason
        return text, tuple(tokens)

    def _newest(self) -> int:
        return max(self._versions, default=self._admitted_version)


def _as_ours(error: BaseException | None) -> OnlineSAOError | None:
    if error is None or isinstance(error, OnlineSAOError):
        return error
    return EngineError(f"The engine failed this request: {error or type(error).__name__}")


def _spans(versions: list[int]) -> tuple[VersionSpan, ...]:
    """Runs of equal versions over [0, len)."""
    spans: list[VersionSpan] = []
    start = 0
    for end in range(1, len(versions) + 1):
        if end == len(versions) or versions[end] != versions[start]:
            spans.append(VersionSpan(start, end, versions[start]))
            start = end
    return tuple(spans)
