"""Alarms through a real database: raised once, cleared when gone, with what was done about them."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
from versions import add_version

from online_sao.config import AlarmSettings, Settings, StorageSettings
from online_sao.errors import ConflictError, OnlineSAOError, StorageError
from online_sao.service import alarm_measurements
from online_sao.service.alarms import AlarmService
from online_sao.service.feedback import FeedbackService
from online_sao.service.learner_watch import LearnerProcess, LearnerWatch
from online_sao.service.status import StatusService
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import evaluations, learner, updates
from online_sao.storage.tables import EvaluationRow, InteractionRow, UpdateRow


class Stand:
    """An AlarmService whose clocks, disk and rollback are the test's."""

    def __init__(self, database, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.wall, self.ticks, self.free = database, 1000.0, 0.0, 1e12
        self.rollbacks: list[tuple[int, bool, str | None]] = []
        self.refusal: OnlineSAOError | None = None
        monkeypatch.setattr(alarm_measurements.psutil, "disk_usage", lambda path: SimpleNamespace(free=self.free))
        self.process = LearnerProcess(0.0, running=True, gave_up=False)
        watch = LearnerWatch(lambda: self.process, settings.alarms.learner_silent_seconds, lambda: self.wall, lambda: self.ticks)
        self.service = AlarmService(database, settings, self.rollback, clock=lambda: self.wall, watch=watch)

    async def rollback(self, version: int, *, resume: bool = False, reason: str | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.rollbacks.append((version, resume, reason))

    async def open(self) -> list[str]:
        return [alarm.kind for alarm in await self.service.list(open_only=True)]


@pytest.fixture
def make_stand(database, tmp_path, monkeypatch):
    def make(**alarms):
        settings = Settings(storage=StorageSettings(data_dir=tmp_path), alarms=AlarmSettings(**alarms), learning={"enabled": True})
        return Stand(database, settings, monkeypatch)

    return make


async def test_a_healthy_service_has_none(make_stand):
    stand = make_stand()
    await stand.service.check()
    assert await stand.service.list() == ()
    assert not any(stand.service.raised(()).values())


async def test_it_is_raised_once_and_cleared_when_gone(make_stand, caplog):
    stand = make_stand()
    stand.free = 1e8
    with caplog.at_level(logging.WARNING):
        await stand.service.check()
        stand.wall = 1005.0
        await stand.service.check()
    (alarm,) = await stand.service.list()
    assert (alarm.kind, alarm.severity, alarm.raised_at, alarm.cleared_at) == ("disk_nearly_full", "critical", 1000.0, None)
    assert "100 MB" in alarm.message
    assert stand.service.raised(())["disk_nearly_full"], "also where it could not be written down"
    stand.service.forget()
    assert not stand.service.raised(())["disk_nearly_full"], "another process leads now"
    assert stand.service.raised((alarm,))["disk_nearly_full"], "its row is open"
    assert caplog.text.count("alarm disk_nearly_full") == 1
    assert (await StatusService(stand.database).snapshot()).alarms == (alarm,)

    stand.free = 1e12
    with caplog.at_level(logging.WARNING):
        await stand.service.check()
    (alarm,) = await stand.service.list()
    assert alarm.cleared_at == 1005.0
    assert "disk_nearly_full cleared" in caplog.text
    assert (await StatusService(stand.database).snapshot()).alarms == ()

    stand.free = 1e8
    await stand.service.check()
    newer, older = await stand.service.list()
    assert (newer.cleared_at, older.id) == (None, alarm.id)
    assert await stand.service.list(before=newer.id) == (older,)
    assert await stand.service.list(open_only=True) == (newer,)


async def test_a_silent_learner_is_noticed_and_a_jump_of_the_clock_is_not(make_stand, database):
    stand = make_stand()

    async def beat(at: float) -> None:
        async with database.write() as session:
            await learner.heartbeat(session, phase="waiting", detail=None, pid=1, now=at)

    await beat(1000.0)
    await stand.service.check()
    stand.wall += 3600  # the wall clock jumps; the learner beats on
    stand.ticks += 50
    await beat(4600.0)
    await stand.service.check()
    stand.wall -= 7200
    stand.ticks += 50
    await beat(-2600.0)
    await stand.service.check()
    assert await stand.open() == []
    stand.ticks += 61
    await stand.service.check()
    assert await stand.open() == ["learner_silent"]
    await beat(-2500.0)
    await stand.service.check()
    assert await stand.open() == []


async def test_a_learner_that_is_being_started_is_not_silent(make_stand, database):
    stand = make_stand()
    async with database.write() as session:
        await learner.heartbeat(session, phase="waiting", detail=None, pid=1, now=-4789.0)  # of another day's server
    stand.process = LearnerProcess(None, running=False, gave_up=False)
    stand.ticks = 300.0  # the engine takes its time to load, and the learner waits for it
    await stand.service.check()
    assert await stand.open() == []
    stand.process = LearnerProcess(300.0, running=True, gave_up=False)
    stand.ticks = 355.0
    await stand.service.check()
    assert await stand.open() == []
    # It dies and is started again without a word: that puts off nothing more.
    stand.process = LearnerProcess(358.0, running=True, gave_up=False)
    stand.ticks = 361.0
    await stand.service.check()
    assert await stand.open() == ["learner_silent"]


async def test_a_refused_update_and_one_far_from_the_base(make_stand, database):
    stand = make_stand()

    async def update(number: int, accepted: bool, kl: float | None) -> None:
        async with database.write() as session:
            row = UpdateRow(
                update_number=number,
                lineage_epoch=0,
                claim_id=f"c{number}",
                policy_version=None,
                parent_version=0,
                accepted=accepted,
                reason=None if accepted else "policy/entropy is 0.01",
                metrics={"policy/kl_base": kl},
                ratio_histogram={},
                started_at=1.0,
                finished_at=2.0,
            )
            await updates.insert(session, row)

    await update(1, False, None)
    await stand.service.check()
    assert await stand.open() == ["gate_failed"]
    await update(2, True, 0.9)
    await stand.service.check()
    assert await stand.open() == ["kl_base"]


async def test_a_failed_self_check(make_stand, database):
    stand = make_stand()
    async with database.write() as session:
        await learner.pause(session, "self-check failed for version 2: …")
        await learner.heartbeat(session, phase="alarm", detail=None, pid=1, now=1.0)
    await stand.service.check()
    assert await stand.open() == ["self_check_failed"]
    async with database.write() as session:
        await learner.resume(session)
    await stand.service.check()
    assert await stand.open() == []


async def test_a_version_that_forgot_how_to_talk(make_stand, database):
    stand = make_stand()
    await add_version(database, 1)

    async def evaluate(version: int, perplexity: float, text: str) -> None:
        samples = [{"prompt": "p", "text": text, "tokens": len(text.split()), "distinct_2": None}]
        row = EvaluationRow(policy_version=version, perplexity=perplexity, perplexity_tokens=100, samples=samples, created_at=1.0)
        async with database.write() as session:
            await evaluations.put(session, row)

    await evaluate(0, 20.0, "a walk in the park is good for you and me today")
    await stand.service.check()
    assert await stand.open() == []
    await evaluate(1, 60.0, "yes yes yes")
    await stand.service.check()
    assert sorted(await stand.open()) == ["distinct_2", "perplexity", "response_length"]
    await add_version(database, 2)
    await stand.service.check()
    assert len(await stand.open()) == 3, "version 2 has not been evaluated: nothing is known to be better"
    await evaluate(2, 22.0, "an hour at the sea is good for both of us now")
    await stand.service.check()
    assert await stand.open() == []


async def test_answers_of_users_that_shrink(make_stand, database, chats):
    stand = make_stand()
    await add_version(database, 1)
    for version, tokens in ((0, 40), (1, 5)):
        for row in await chats.bulk(20):
            async with database.write() as session:
                found = await session.get_one(InteractionRow, row.id)
                found.policy_version, found.completion_tokens = version, tokens
    await stand.service.check()
    (alarm,) = await stand.service.list()
    assert alarm.kind == "response_length"
    assert "5 tokens" in alarm.message
    assert "40" in alarm.message


async def scored(database, chats, settings, version: int, values) -> None:
    feedback = FeedbackService(database, settings)
    for value in values:
        row = await chats.completed(policy_version=version)
        await feedback.submit(FeedbackSubmission(row.completion_id, value))


@pytest.mark.parametrize("refused", [False, True])
async def test_a_fall_of_scores_rolls_back_by_itself_if_it_may(make_stand, database, chats, settings, refused):
    stand = make_stand(auto_rollback=True, score_drop_min_scores=8)
    stand.refusal = ConflictError("its files were removed") if refused else None
    await add_version(database, 1)
    await add_version(database, 2)
    await scored(database, chats, settings, 1, [1.0, 0.8] * 4)
    await stand.service.check()
    assert await stand.open() == []
    await scored(database, chats, settings, 2, [0.0, 0.2] * 4)
    await asyncio.gather(stand.service.check())
    (alarm,) = await stand.service.list()
    assert (alarm.kind, alarm.policy_version) == ("score_drop", 2)
    if refused:
        assert alarm.action == "automatic rollback to version 1 failed: its files were removed"
    else:
        assert alarm.action == "rolled back to version 1"
        ((version, resume, reason),) = stand.rollbacks
        assert (version, resume) == (1, False)
        assert "score_drop" in (reason or "")
    await stand.service.check()
    assert len(stand.rollbacks) == (0 if refused else 1), "once for one alarm"


async def test_a_rollback_that_the_database_kept_from_being_made_is_made_later(make_stand, database, chats, settings):
    stand = make_stand(auto_rollback=True, score_drop_min_scores=8)
    await add_version(database, 1)
    await scored(database, chats, settings, 0, [1.0, 0.8] * 4)
    await scored(database, chats, settings, 1, [0.0, 0.2] * 4)
    stand.refusal = StorageError("The database does not answer.")
    with pytest.raises(StorageError):
        await stand.service.check()
    (alarm,) = await stand.service.list()
    assert (alarm.kind, alarm.action, stand.rollbacks) == ("score_drop", None, [])
    stand.refusal = None
    for _ in range(2):
        await stand.service.check()
    (alarm,) = await stand.service.list()
    assert (alarm.action, [version for version, _, _ in stand.rollbacks]) == ("rolled back to version 0", [0])


async def test_without_leave_it_only_says_so(make_stand, database, chats, settings):
    stand = make_stand(score_drop_min_scores=8)
    await add_version(database, 1)
    await scored(database, chats, settings, 0, [1.0, 0.8] * 4)
    await scored(database, chats, settings, 1, [0.0, 0.2] * 4)
    await stand.service.check()
    (alarm,) = await stand.service.list()
    assert (alarm.kind, alarm.action, stand.rollbacks) == ("score_drop", None, [])
