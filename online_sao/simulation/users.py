"""Simulated users: each asks, judges the answer by rule, and sends a score — truly or by mistake, at once or late, or never — and keeps the receipt.

Own the pace at which people answer; know nothing of windows or reports.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from online_sao.errors import ConfigurationError
from online_sao.simulation.client import Answer, CallFailedError, Service
from online_sao.simulation.plan import Phase, Plan

IDLE_PHASES = ("stopped", "alarm", "paused")
STALL_SECONDS = 300.0
STALL_SECONDS_IDLE = 30.0
"""How long scores may go unused before a run gives up: while the learner says it works, and while it says it does not."""


NEUTRAL_SCORE = 0.5
"""The middle of the default score range: reward 0."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How faithfully users score. ``noise``: probability that a score is sent the wrong way round (1 − score); ``missing``: probability that none is
    sent; ``late``: "12" sends each once 12 more answers have been given, "30s" half a minute later. Seeded: the same index, the same mishap."""

    seed: int = 0
    noise: float = 0.0
    missing: float = 0.0
    late: str = "0"

    def __post_init__(self) -> None:
        if not (0 <= self.noise <= 1 and 0 <= self.missing <= 1):
            raise ConfigurationError("--noise and --missing are probabilities: give numbers from 0 to 1.")
        if re.fullmatch(r"\d+|\d+(\.\d+)?s", self.late) is None:
            raise ConfigurationError(f"--late {self.late!r}: give a number of interactions (12) or of seconds (30s).")

    @property
    def late_interactions(self) -> int:
        return 0 if self.late.endswith("s") else int(self.late)

    @property
    def late_seconds(self) -> float:
        return float(self.late[:-1]) if self.late.endswith("s") else 0.0

    def sent(self, index: int, score: float) -> float | None:
        """What is sent in place of ``score``; None: nothing."""
        chance = random.Random(f"{self.seed}/habits/{index}")
        forgotten, mistaken = chance.random() < self.missing, chance.random() < self.noise
        if forgotten:
            return None
        return 1.0 - score if mistaken else score


@dataclass(slots=True)
class JudgedAnswer:
    """One interaction of a run. ``score`` is what the user thinks of it, ``sent`` what was sent (None: nothing was, or it failed), ``receipt`` the
    service's answer to that, as it last stood."""

    index: int
    phase: int
    user: str
    context: str
    prompt: str
    answer: Answer
    score: float
    sent: float | None = None
    receipt: dict[str, Any] | None = field(default=None, repr=False)


class BackPressure:
    """Holds users back, as people who answer at human pace would, so that the learner keeps up.

    At most ``max_backlog`` answers are being given, or scored and not yet learned from, at any time: the lag of what is trained on stays bounded,
    and a run measures learning instead of the length of a queue.
    """

    def __init__(self, service: Service, max_backlog: int, *, poll_seconds: float = 0.5) -> None:
        self._service = service
        self._max_backlog = max_backlog
        self._poll_seconds = poll_seconds
        self._in_flight = 0
        self._left = 0
        """Interactions that ended since the last look: their scores may wait now, and count until the next look says whether they do."""
        self._backlog: int | None = None
        self._looked_at = -math.inf
        self._changed_at = 0.0
        self._turn = asyncio.Lock()
        self.waited_seconds = 0.0

    async def enter(self) -> None:
        """Return when one more interaction may begin. Raises ConfigurationError when the learner takes nothing for too long."""
        async with self._turn:
            started = self._changed_at = time.monotonic()
            while not self._has_room():
                await asyncio.sleep(max(0.0, self._looked_at + self._poll_seconds - time.monotonic()))
                await self._look()
            self.waited_seconds += time.monotonic() - started
            self._in_flight += 1

    def leave(self) -> None:
        """The interaction's score has been answered, or the interaction failed."""
        self._in_flight -= 1
        self._left += 1

    def _has_room(self) -> bool:
        return self._backlog is not None and self._backlog + self._left + self._in_flight < self._max_backlog

    async def _look(self) -> None:
        """One question for all users at once: a service that is asked for its status by each of them has no time left to answer chats."""
        left_before = self._left
        status = await self._service.status()
        self._left -= left_before  # what ended before the question is in the answer; what ended since may not be
        backlog = status["pipeline"].get("ready", 0) + status["pipeline"].get("claimed", 0)
        self._looked_at = time.monotonic()
        if backlog != self._backlog:
            self._backlog, self._changed_at = backlog, self._looked_at
        if not self._has_room():
            self._check_learner(status["learner"], self._looked_at - self._changed_at)

    @staticmethod
    def _check_learner(learner: dict[str, Any], still_seconds: float) -> None:
        idle = learner["paused"] or learner["phase"] in IDLE_PHASES
        if still_seconds > (STALL_SECONDS_IDLE if idle else STALL_SECONDS):
            why = f": {learner['pause_reason']}" if learner.get("pause_reason") else ""
            raise ConfigurationError(
                f"The learner has used no score for {still_seconds:.0f} s (phase {learner['phase']}{why}). "
                "Start or resume it, or raise --max-backlog to send scores regardless."
            )


class Crowd:
    """The users of one phase. ``neutral``: whatever they think, they send the neutral score, so that nothing but the anchor moves the policy."""

    def __init__(self, service: Service, model: str, plan: Plan, phase: Phase, habits: Habits, pressure: BackPressure, *, neutral: bool) -> None:
        self._service = service
        self._model = model
        self._plan = plan
        self._phase = phase
        self._habits = habits
        self._pressure = pressure
        self._neutral = neutral
        self._indices = iter(phase.indices())
        self._held: list[tuple[int, JudgedAnswer]] = []
        self._answered = 0

    async def run(self, users: int, done: Callable[[JudgedAnswer | None], None]) -> None:
        """Let ``users`` at once ask until the phase is over and every score that will come has been sent. ``done`` is told every answer as it is
        given, None for a failed one. Raises ConfigurationError when the learner takes nothing for too long."""
        try:
            async with asyncio.TaskGroup() as group:
                sessions = [group.create_task(self._session(number, done, group)) for number in range(users)]
                await asyncio.gather(*sessions)
                for _, judged in self._held:  # the phase is over: nobody answers any more, and what is late comes now
                    group.create_task(self._send(judged))
        except* ConfigurationError as errors:
            raise errors.exceptions[0] from None

    async def _session(self, number: int, done: Callable[[JudgedAnswer | None], None], group: asyncio.TaskGroup) -> None:
        while (index := next(self._indices, None)) is not None:
            entered = False
            try:
                await self._pressure.enter()
                entered = True
                judged = await self._interact(index, number)
                done(judged)
                await self._deliver(judged, group)
            except CallFailedError:
                done(None)
            finally:
                if entered:
                    self._pressure.leave()

    async def _interact(self, index: int, number: int) -> JudgedAnswer:
        """Every second interaction is streamed. Raises CallFailedError."""
        ask = self._plan.ask(index)
        user = f"{ask.context}-{number}"
        answer = await self._service.chat(self._model, ask.prompt, user=user, stream=index % 2 == 1)
        score = ask.score(self._phase, answer.text)
        sent = self._habits.sent(index, NEUTRAL_SCORE if self._neutral else score)
        return JudgedAnswer(index, self._phase.number, user, ask.context, ask.prompt, answer, score, sent)

    async def _deliver(self, judged: JudgedAnswer, group: asyncio.TaskGroup) -> None:
        """Send the score now, or see to it that it is sent when its time has come; and send those whose time has come by this answer."""
        self._answered += 1
        if self._habits.late_seconds:
            group.create_task(self._send(judged, self._habits.late_seconds))
            return
        self._held.append((self._answered + self._habits.late_interactions, judged))
        due = [held for when, held in self._held if when <= self._answered]
        self._held = [held for held in self._held if held[0] > self._answered]
        for held in due:
            await self._send(held)

    async def _send(self, judged: JudgedAnswer, delay: float = 0.0) -> None:
        """A failed call is counted by the service, and the answer stays unscored."""
        if judged.sent is None:
            return
        await asyncio.sleep(delay)
        try:
            judged.receipt = await self._service.score(judged.answer.completion_id, judged.sent)
        except CallFailedError:
            judged.sent = None
