"""What the learner tells of itself in its row."""

from __future__ import annotations

import asyncio

from online_sao.runtime.learner_status import LearnerStatus
from online_sao.storage.repositories import learner
from online_sao.storage.session import Database


async def test_an_update_that_a_rollback_has_overtaken_says_that_it_will_be_discarded(database: Database) -> None:
    status = LearnerStatus(database, "test")
    beating = asyncio.create_task(status.beat())

    async def detail(expected: str | None) -> None:
        async with asyncio.timeout(60):
            while True:
                async with database.read() as session:
                    row = await learner.get(session)
                if row.heartbeat_at is not None and row.detail == expected:
                    return
                await asyncio.sleep(0.05)

    try:
        status.set("updating", "8 trajectories on version 50", 0)
        await detail("8 trajectories on version 50")
        async with database.write() as session:
            # Its own publish moves the head too, and discards nothing.
            await learner.set_head(session, head_version=51, head_update=51)
        status.set("publishing", "8 trajectories on version 50", 0)
        await detail("8 trajectories on version 50")
        async with database.write() as session:
            await learner.begin_epoch(session, 1, head_version=35, head_update=35)
        await detail("the update under way will be discarded: rolled back to version 35")
        status.set("waiting")
        await detail(None)
    finally:
        beating.cancel()
