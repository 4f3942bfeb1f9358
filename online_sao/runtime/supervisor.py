"""Keeps the learner process alive beside the server. Owns its start, restarts with back-off and end; knows nothing of what it learns.

A child that ends because it cannot work as it was asked to (exit code 2: settings or data that no restart changes) is not started again until
somebody has changed something and says so with ``retry``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from online_sao.runtime.backoff import Backoff
from online_sao.service.learner_watch import LearnerProcess

logger = logging.getLogger(__name__)

HEALTHY_SECONDS = 60.0
"""A child that lived this long is restarted with the first delay again."""
TERMINATE_SECONDS = 2.5
"""What a child is given between SIGTERM and SIGKILL. It may be inside an update; any instant is safe to be killed at."""

FATAL_EXIT = 2
"""The command line's exit code for what cannot run as asked."""


class LearnerKeeper(Protocol):
    """Whoever keeps the learner alive, here or elsewhere, as the serving process knows it."""

    gave_up: bool
    """The learner cannot work, and is left alone until ``retry``."""

    def process(self) -> LearnerProcess: ...
    async def poll(self) -> None: ...
    def retry(self) -> None: ...
    def terminate(self) -> None: ...
    async def stop(self) -> None: ...


LEARNER_COMMAND = (sys.executable, "-m", "online_sao.cli", "learn")


class Supervisor:
    """``poll`` about once a second; ``stop`` once."""

    def __init__(self, environment: Mapping[str, str], command: Sequence[str] = LEARNER_COMMAND) -> None:
        self._environment = dict(environment)
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at: float | None = None
        self._backoff = Backoff()
        self._next_start = 0.0
        self._stopping = False
        self.restarts = 0
        self.gave_up = False
        """The child cannot work, and is left alone until ``retry``."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def process(self) -> LearnerProcess:
        """Whether there is one, and since when."""
        return LearnerProcess(self._started_at, self.pid is not None, self.gave_up)

    async def poll(self) -> None:
        """Start the child where there is none and its delay is over; notice one that has ended."""
        if self._stopping or self.gave_up:
            return
        now = time.monotonic()
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            self._process = None
            if code == FATAL_EXIT:
                self.gave_up = True
                logger.critical(
                    "the learner cannot work as it is set up, and is not started again: its last lines above say why. Change what they name, "
                    "then resume the learner, roll back, or restart the server. Serving goes on."
                )
                return
            self.restarts += 1
            if self._started_at is not None and now - self._started_at >= HEALTHY_SECONDS:
                self._backoff.reset()
            delay = self._backoff.next()
            logger.warning("the learner ended (%s); starting it again in %.1f s", _how(code), delay)
            self._next_start = now + delay
        if now >= self._next_start:
            self._started_at = now
            # A group of its own: Ctrl-C in the terminal reaches the server, which then ends the learner in its own time.
            # Its own end must not depend on ours being orderly: the learner watches the process that is named here.
            environment = {**os.environ, **self._environment, "ONLINE_SAO_SUPERVISOR_PID": str(os.getpid())}
            self._process = subprocess.Popen(self._command, env=environment, process_group=0, stdin=subprocess.DEVNULL)  # noqa: ASYNC220
            logger.info("learner started (pid %d)", self._process.pid)

    def retry(self) -> None:
        """Something has changed: a child that was given up is started again at the next poll."""
        if self.gave_up:
            self.gave_up, self._next_start = False, 0.0
            self._backoff.reset()

    def terminate(self) -> None:
        """Ask the child to end, and start it no more. Returns at once."""
        self._stopping = True
        self._signal(signal.SIGTERM)

    async def stop(self) -> None:
        """End the child: SIGTERM, then SIGKILL to its whole group. Returns when it is gone."""
        self.terminate()
        if self._process is None:
            return
        deadline = time.monotonic() + TERMINATE_SECONDS
        while self._process.poll() is None:
            if time.monotonic() >= deadline:
                logger.warning("the learner did not end in %.1f s; killing it", TERMINATE_SECONDS)
                self._signal(signal.SIGKILL)
                deadline = float("inf")
            await asyncio.sleep(0.05)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
