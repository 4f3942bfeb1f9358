"""A filled database: as many rows as asked for, an interrupted filling gone on with, scores awaited where they are to be sent."""

import time

import pytest
from sqlalchemy import func, select

from online_sao.benchmarks import stored_rows
from online_sao.config import Settings
from online_sao.errors import ConfigurationError
from online_sao.service.feedback import FeedbackService
from online_sao.service.status import StatusService
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import policies
from online_sao.storage.tables import FeedbackRow, InteractionRow, TrajectoryRow


async def counts(database):
    async with database.read() as session:
        return [await session.scalar(select(func.count()).select_from(table)) for table in (InteractionRow, FeedbackRow, TrajectoryRow)]


async def test_filling_goes_on_where_it_was_interrupted(database, monkeypatch):
    monkeypatch.setattr(stored_rows, "CHUNK", 20)
    seen = []
    await stored_rows.fill(database, 40, now=time.time(), versions=4, newest_serves=False, progress=seen.append)
    await stored_rows.fill(database, 70, now=time.time(), versions=4, newest_serves=False, progress=seen.append)
    assert seen == [0, 20, 20, 40, 20, 10]
    assert await counts(database) == [70, 70 + 4, 70]
    await stored_rows.finish(database)
    async with database.read() as session:
        assert (await policies.active(session)).version == 0
    snapshot = await StatusService(database).snapshot(scores=10)
    assert len(snapshot.versions) == 5


async def test_the_newest_version_serves_where_it_shall(database):
    await stored_rows.fill(database, 10, now=time.time(), versions=3)
    async with database.read() as session:
        assert (await policies.active(session)).version == 3


async def test_scores_are_awaited_by_as_many_as_asked_for_and_by_no_more(database, monkeypatch):
    monkeypatch.setattr(stored_rows, "CHUNK", 4)
    await stored_rows.fill(database, 5, now=time.time(), versions=2, newest_serves=False)
    waiting = await stored_rows.unscored(database, 10, now=time.time())
    assert len(set(waiting)) == 10
    assert waiting == await stored_rows.unscored(database, 10, now=time.time())
    assert await stored_rows.stored(database) == 15
    receipt, created = await FeedbackService(database, Settings()).submit(FeedbackSubmission(completion_id=waiting[0], value=1.0))
    assert created
    assert receipt.status == "queued"
    again = await stored_rows.unscored(database, 10, now=time.time())
    assert again[:9] == waiting[1:]
    assert await stored_rows.stored(database) == 16


async def test_a_database_in_use_is_left_alone(database, chats):
    await chats.completed()
    with pytest.raises(ConfigurationError, match="of its own"):
        await stored_rows.fill(database, 10, now=time.time())
    assert await counts(database) == [1, 0, 1]
