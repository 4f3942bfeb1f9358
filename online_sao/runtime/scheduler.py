"""The serving process's recurring jobs. Owns how they run: coalesced, never two of one, none skipped for being late."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from online_sao.errors import StorageError

logger = logging.getLogger(__name__)


CLOCK_POLL_SECONDS = 1.0
CLOCK_JUMP_SECONDS = 1.0
"""A wall clock that falls behind the monotonic one by more than this between two looks has been set back."""


@dataclass(frozen=True, slots=True)
class Job:
    """``run`` every ``seconds``. What it raises is logged and does not end it."""

    name: str
    seconds: float
    run: Callable[[], Awaitable[object]]


class Scheduler:
    def __init__(self) -> None:
        # A misfire limit (1 s by default) would silently skip late runs on a busy machine.
        self._scheduler = AsyncIOScheduler(job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1}, timezone="UTC")
        # Its own log says every run at INFO, and every run that waits for the one before it at WARNING: both are the normal case here.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._failing: set[str] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    def add(self, job: Job) -> None:
        self._scheduler.add_job(self._guarded, "interval", args=[job], seconds=job.seconds, id=job.name, name=job.name)

    def start(self) -> None:
        self._scheduler.start()
        self._watch = asyncio.create_task(self._watch_clock())

    async def stop(self, grace_seconds: float) -> None:
        """No further runs. Those in progress have ``grace_seconds`` to end; then they are cancelled."""
        if not self._scheduler.running:
            return
        if self._watch is not None:
            self._watch.cancel()
        self._scheduler.pause()
        if self._running:
            await asyncio.wait(self._running, timeout=grace_seconds)
        self._scheduler.shutdown(wait=False)

    async def _watch_clock(self) -> None:
        """Jobs are due by the wall clock: set back by an hour, it would let none of them run for an hour, the renewal of leases included."""
        offset = time.time() - time.monotonic()
        while True:
            await asyncio.sleep(CLOCK_POLL_SECONDS)
            before, offset = offset, time.time() - time.monotonic()
            if before - offset > CLOCK_JUMP_SECONDS:
                logger.warning("the clock was set back by %.0f s; jobs go on at once", before - offset)
                for job in self._scheduler.get_jobs():
                    job.modify(next_run_time=datetime.now(UTC))

    async def _guarded(self, job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await job.run()
        except StorageError as error:
            if job.name not in self._failing:
                logger.error("job %s: %s", job.name, error.message)
            self._failing.add(job.name)
        except Exception as error:
            # The first of a row of failures with its traceback, the rest in a line: a job that fails twice a second must not fill the disk.
            if job.name in self._failing:
                logger.error("job %s still fails: %s", job.name, error)
            else:
                logger.exception("job %s failed", job.name)
            self._failing.add(job.name)
        else:
            self._failing.discard(job.name)
