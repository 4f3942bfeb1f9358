"""Recurring jobs: never two of one, none lost to lateness or failure, and none cut off at the end if it can help it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from online_sao.runtime.scheduler import Job, Scheduler


async def test_a_slow_job_never_runs_twice_at_once_and_late_runs_are_one() -> None:
    running, most, runs = 0, 0, 0

    async def slow() -> None:
        nonlocal running, most, runs
        running, runs = running + 1, runs + 1
        most = max(most, running)
        await asyncio.sleep(0.15)
        running -= 1

    scheduler = Scheduler()
    scheduler.add(Job("slow", 0.02, slow))
    scheduler.start()
    await asyncio.sleep(0.6)
    await scheduler.stop(grace_seconds=1)
    assert most == 1
    assert 2 <= runs <= 5
    assert running == 0, "the last run was cut off"


async def test_a_failing_job_goes_on_and_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0

    async def fails() -> None:
        nonlocal runs
        runs += 1
        raise ValueError("no luck")

    scheduler = Scheduler()
    scheduler.add(Job("unlucky", 0.02, fails))
    with caplog.at_level(logging.ERROR):
        scheduler.start()
        await asyncio.sleep(0.3)
        await scheduler.stop(grace_seconds=1)
    assert runs >= 3
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_a_job_that_does_not_end_is_cancelled() -> None:
    cancelled = False

    async def endless() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled = True
            raise

    scheduler = Scheduler()
    scheduler.add(Job("endless", 0.02, endless))
    scheduler.start()
    await asyncio.sleep(0.1)
    await scheduler.stop(grace_seconds=0.05)
    await asyncio.sleep(0.05)
    assert cancelled
