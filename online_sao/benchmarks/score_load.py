"""Scores sent over HTTP to a running server, as fast as it answers or at a rate of their own. Owns the clock; knows nothing of databases."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np


@dataclass(frozen=True, slots=True)
class ScoreBurst:
    """``latencies``: seconds of each score that was answered 201; ``failures``: what became of the others."""

    latencies: tuple[float, ...]
    failures: tuple[str, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Scores a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, q: float) -> float:
        """Seconds; of nothing, NaN."""
        return float(np.percentile(self.latencies, q)) if self.latencies else float("nan")


async def closed_loop(url: str, completion_ids: Sequence[str], *, connections: int) -> ScoreBurst:
    """Every completion scored once; so many clients, each sending its next score when it has the receipt of the one before."""
    waiting = iter(completion_ids)

    async def client(sender: _Sender) -> None:
        for completion_id in waiting:
            await sender.send(completion_id, time.perf_counter())

    async with _session(connections) as session:
        sender = _Sender(session, url)
        started = time.perf_counter()
        await asyncio.gather(*(client(sender) for _ in range(connections)))
        return sender.burst(time.perf_counter() - started)


async def open_loop(url: str, completion_ids: Sequence[str], *, rate: float, connections: int) -> ScoreBurst:
    """Every completion scored once, ``rate`` of them a second at random moments (a Poisson process), however long the answers take. A score's time
    counts from the moment it was due, so that what waits for a connection is not left out."""
    gaps = random.Random(0)
    async with _session(connections) as session, asyncio.TaskGroup() as tasks:
        sender = _Sender(session, url)
        started = due = time.perf_counter()
        sent = []
        for completion_id in completion_ids:
            due += gaps.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent.append(tasks.create_task(sender.send(completion_id, due)))
        await asyncio.wait(sent)
        return sender.burst(time.perf_counter() - started)


def _session(connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections), timeout=aiohttp.ClientTimeout(60))


class _Sender:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/v1/feedback"
        self._values = random.Random(0)
        self._latencies: list[float] = []
        self._failures: list[str] = []

    async def send(self, completion_id: str, due: float) -> None:
        try:
            async with self._session.post(self._url, json={"completion_id": completion_id, "value": self._values.random()}) as answer:
                text = await answer.text()
                if answer.status == 201:
                    self._latencies.append(time.perf_counter() - due)
                else:
                    self._failures.append(f"{answer.status}: {text[:200]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self._failures.append(f"{type(error).__name__}: {error}")

    def burst(self, seconds: float) -> ScoreBurst:
        return ScoreBurst(tuple(self._latencies), tuple(self._failures), seconds)
