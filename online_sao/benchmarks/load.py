"""Closed-loop load on any server of OpenAI's contract, as its clients feel it: so many users at once, each asking again as soon as it has its answer.
Owns the clock; knows nothing of which server answers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from openai import AsyncOpenAI

Answered = Callable[[str], Awaitable[None]]
"""Told the id of each answer, before its user asks again."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One streamed answer. ``first``: seconds to its first text; ``total``: to its last; ``tokens``: as the server counts them."""

    first: float
    total: float
    tokens: int

    @property
    def per_token(self) -> float | None:
        """Seconds from one token to the next, on average; None where there was no next one."""
        return (self.total - self.first) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Burst:
    """``seconds``: from the first question to the last answer."""

    timings: tuple[Timing, ...]
    seconds: float

    @property
    def throughput(self) -> float:
        """Completion tokens a second, of all users together."""
        return sum(timing.tokens for timing in self.timings) / self.seconds


async def burst(client: AsyncOpenAI, model: str, prompts: Sequence[str], *, users: int, max_tokens: int, answered: Answered | None = None) -> Burst:
    """Every prompt asked once, by ``users`` at a time. Raises OpenAIError for any that is not answered."""
    waiting = iter(prompts)
    timings: list[Timing] = []

    async def user() -> None:
        for prompt in waiting:
            completion_id, timing = await _ask(client, model, prompt, max_tokens)
            timings.append(timing)
            if answered is not None:
                await answered(completion_id)

    started = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    return Burst(tuple(timings), time.perf_counter() - started)


async def _ask(client: AsyncOpenAI, model: str, prompt: str, max_tokens: int) -> tuple[str, Timing]:
    started = time.perf_counter()
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        temperature=1.0,
        stream=True,
        stream_options={"include_usage": True},
    )
    completion_id, first, last, tokens = "", None, started, 0
    async for chunk in stream:
        completion_id = chunk.id
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        if chunk.choices and chunk.choices[0].delta.content:
            last = time.perf_counter()
            first = first if first is not None else last
    return completion_id, Timing((first or last) - started, last - started, tokens)


def numbered(prompts: Sequence[str], count: int, start: int, *, first: bool = False) -> list[str]:
    """``count`` of them, one after the other; ``start`` makes each its own, so that no server finds an answer's whole prompt in its cache. ``first``:
    the number stands first, so that it finds hardly a beginning there either."""
    numbers = zip(range(start, start + count), itertools.cycle(prompts), strict=False)
    return [f"({number}) {prompt}" if first else f"{prompt} ({number})" for number, prompt in numbers]
