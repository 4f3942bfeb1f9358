"""An engine that does not start, or starts and is wrong: tried again, never left half started, and told meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from online_sao.errors import EngineError, PolicyStoreError, StorageError
from online_sao.inference.engine import SingleEngine
from online_sao.publishing.activator import StartVersion
from online_sao.runtime import backoff, engine_start
from online_sao.runtime.engine_start import EngineStart

VERSION = StartVersion(3, Path("v3"), (1.0,))


class Engine(SingleEngine):
    """Raises ``errors``, one for each start."""

    def __init__(self, *errors):
        self.errors, self.healthy, self.starts = list(errors), False, 0

    async def start(self, policy_version, adapter_dir):
        assert not self.healthy, "it is started already"
        assert (policy_version, adapter_dir) == (3, Path("v3"))
        self.starts += 1
        if self.errors:
            raise self.errors.pop(0)
        self.healthy = True

    async def stop(self):
        self.healthy = False


class Rows:
    """What reading the version to start on and confirming it raise, each time."""

    def __init__(self, reading=(), confirming=()):
        self.reading, self.confirming = list(reading), list(confirming)

    async def start_version(self):
        if self.reading:
            raise self.reading.pop(0)
        return VERSION

    async def confirm(self, start):
        assert start is VERSION
        if self.confirming:
            raise self.confirming.pop(0)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_DELAY_SECONDS", 0.05)
    monkeypatch.setattr(engine_start, "STORAGE_SECONDS", 0.05)


async def says(start, words):
    async with asyncio.timeout(2):
        while start.problem is None or words not in start.problem:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [PolicyStoreError("the mount is late"), OSError("the mount is late")])
async def test_a_start_that_fails_is_tried_again_and_no_leader_meanwhile(error):
    engine, rows = Engine(error), Rows()
    start = EngineStart(engine, rows.start_version, rows.confirm)
    running = asyncio.create_task(start.run())
    await says(start, "the mount is late")
    assert not start.able
    await asyncio.wait_for(running, 2)
    assert (engine.healthy, engine.starts, start.problem, start.able) == (True, 2, None, True)


async def test_a_database_that_is_away_takes_nobodys_lead():
    engine, rows = Engine(), Rows(reading=[StorageError("the database is away")])
    start = EngineStart(engine, rows.start_version, rows.confirm)
    running = asyncio.create_task(start.run())
    await says(start, "the database is away")
    assert start.able
    await asyncio.wait_for(running, 2)
    assert (engine.starts, start.problem) == (1, None)


async def test_one_that_serves_other_weights_is_stopped_and_started_again():
    engine, rows = Engine(), Rows(confirming=[PolicyStoreError("other weights")])
    start = EngineStart(engine, rows.start_version, rows.confirm)
    running = asyncio.create_task(start.run())
    await says(start, "other weights")
    assert not engine.healthy
    await asyncio.wait_for(running, 2)
    assert (engine.healthy, engine.starts, start.problem, start.able) == (True, 2, None, True)


async def test_one_that_has_failed_is_revived_however_often_that_fails_first():
    engine, rows = Engine(), Rows()
    start = EngineStart(engine, rows.start_version, rows.confirm)
    await start.run()
    assert not await start.revive()
    engine.healthy = False
    engine.errors, rows.confirming = [EngineError("no GPU")], [PolicyStoreError("other weights")]
    reviving = asyncio.create_task(start.revive())
    await says(start, "no GPU")
    assert not start.able
    await says(start, "other weights")
    assert await asyncio.wait_for(reviving, 2)
    assert (engine.healthy, engine.starts, start.problem, start.able) == (True, 4, None, True)
