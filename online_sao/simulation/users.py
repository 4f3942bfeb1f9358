"""Simulated users: each asks, scores by rule and keeps the receipt. Own the pace at which people answer; know nothing of windows or reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from online_sao.errors import ConfigurationError
from online_sao.simulation.client import Answer, CallFailedError, Service
from online_sao.simulation.preferences import Preference

IDLE_PHASES = ("stopped", "alarm", "paused")
STALL_SECONDS = 300.0
STALL_SECONDS_IDLE = 30.0
"""How long scores may go unused before a run gives up: while the learner says it works, and while it says it does not."""


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One interaction of a run. ``receipt`` is as it stood when the score was sent."""

    index: int
    user: str
    prompt: str
    answer: Answer
    score: float
    receipt: dict[str, Any] = field(repr=False)


class BackPressure:
    """Holds users back, as people who answer at human pace would, so that the learner keeps up.

    At most ``max_backlog`` answers are being given, or scored and not yet learned from, at any time: the lag of what is trained on stays bounded,
    and a run measures learning instead of the length of a queue.
    """

    def __init__(self, service: Service, max_backlog: int, *, poll_seconds: float = 0.25) -> None:
        self._service = service
        self._max_backlog = max_backlog
        self._poll_seconds = poll_seconds
        self._in_flight = 0
        self._turn = asyncio.Lock()
        self.waited_seconds = 0.0

    async def enter(self) -> None:
        """Return when one more interaction may begin. Raises ConfigurationError when the learner takes nothing for too long."""
        async with self._turn:
            started, last_backlog, last_change = time.monotonic(), -1, time.monotonic()
            while True:
                in_flight = self._in_flight  # read first: a score that lands meanwhile is counted twice, never missed
                status = await self._service.status()
                backlog = status["pipeline"].get("ready", 0) + status["pipeline"].get("claimed", 0)
                if backlog + in_flight < self._max_backlog:
                    break
                if backlog != last_backlog:
                    last_backlog, last_change = backlog, time.monotonic()
                self._check_learner(status["learner"], time.monotonic() - last_change)
                await asyncio.sleep(self._poll_seconds)
            self.waited_seconds += time.monotonic() - started
            self._in_flight += 1

    def leave(self) -> None:
        """The interaction's score has been answered, or the interaction failed."""
        self._in_flight -= 1

    @staticmethod
    def _check_learner(learner: dict[str, Any], still_seconds: float) -> None:
        idle = learner["paused"] or learner["phase"] in IDLE_PHASES
        if still_seconds > (STALL_SECONDS_IDLE if idle else STALL_SECONDS):
            why = f": {learner['pause_reason']}" if learner.get("pause_reason") else ""
            raise ConfigurationError(
                f"The learner has used no score for {still_seconds:.0f} s (phase {learner['phase']}{why}). "
                "Start or resume it, or raise --max-backlog to send scores regardless."
            )


async def interact(service: Service, model: str, user: str, index: int, prompt: str, preference: Preference) -> ScoredAnswer:
    """Ask ``prompt``, score the answer by ``preference``, send the score. Every second interaction is streamed. Raises CallFailedError."""
    answer = await service.chat(model, prompt, user=user, stream=index % 2 == 1)
    score = preference.score(answer.text)
    return ScoredAnswer(index, user, prompt, answer, score, await service.score(answer.completion_id, score))


async def user_session(
    service: Service,
    model: str,
    user: str,
    preference: Preference,
    take: Callable[[], tuple[int, str] | None],
    pressure: BackPressure,
    done: Callable[[ScoredAnswer | None], None],
) -> None:
    """One user's part of a run: ``take`` gives the next (index, prompt), None at the end; ``done`` is told every outcome, None for a failed one."""
    while (task := take()) is not None:
        entered = False
        try:
            await pressure.enter()
            entered = True
            done(await interact(service, model, user, *task, preference))
        except CallFailedError:
            done(None)
        finally:
            if entered:
                pressure.leave()
