"""Deadlines under a clock that is set, and jobs that go on when it is set back."""

from __future__ import annotations

import asyncio
import time

from online_sao.runtime import scheduler as scheduler_module
from online_sao.runtime.clock import CautiousClock
from online_sao.runtime.scheduler import Job, Scheduler


def test_nothing_is_over_early():
    wall, ticks = [1000.0], [50.0]
    clock = CautiousClock(lambda: wall[0], lambda: ticks[0])
    assert clock() == 1000.0
    wall[0], ticks[0] = 1000.0 + 3600 + 10, 60.0
    assert clock() == 1010.0, "a jump forward is not believed"
    wall[0], ticks[0] = 1020.0 - 3600, 70.0
    assert clock() == 1020.0 - 3600, "after one back, deadlines set since then must not pass at once"
    wall[0], ticks[0] = 1030.0, 80.0
    assert clock() == 1030.0


def test_a_deadline_set_while_the_clock_was_wrong_does_not_pass_early_when_it_is_right_again():
    for wrong in (-3600.0, 3600.0):
        offset, ticks = [0.0], [50.0]
        clock = CautiousClock(lambda ticks=ticks, offset=offset: 1000.0 + ticks[0] + offset[0], lambda ticks=ticks: ticks[0])
        offset[0], ticks[0] = wrong, 60.0
        deadline = clock.latest() + 100.0
        offset[0], ticks[0] = 0.0, 159.0
        assert clock() < deadline
        ticks[0] = 161.0 + max(0.0, wrong)
        assert clock() >= deadline


async def test_jobs_go_on_when_the_clock_is_set_back(monkeypatch, caplog):
    monkeypatch.setattr(scheduler_module, "CLOCK_POLL_SECONDS", 0.05)
    runs, offset = 0, 0.0

    async def job() -> None:
        nonlocal runs
        runs += 1

    real = time.time
    scheduler = Scheduler()
    scheduler.add(Job("job", 30.0, job))
    scheduler.start()
    monkeypatch.setattr(scheduler_module.time, "time", lambda: real() + offset)
    await asyncio.sleep(0.2)
    assert runs == 0
    offset = -3600.0
    deadline = time.monotonic() + 10
    while not runs:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await scheduler.stop(grace_seconds=1)
    assert "set back by 3600 s" in caplog.text
