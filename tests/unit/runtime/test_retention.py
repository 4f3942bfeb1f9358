"""Which files go, in which order, and what old interactions lose."""

import json

import pytest
from versions import publish

from online_sao.config import RetentionSettings, Settings
from online_sao.errors import ConflictError
from online_sao.publishing import policy_store, rollback
from online_sao.publishing.policy_store import version_dir
from online_sao.runtime.retention import BATCH, Retention, removable
from online_sao.service.erasure import ErasureService
from online_sao.service.feedback import FeedbackService
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import interactions, policies, trajectories
from online_sao.storage.tables import InteractionRow
from online_sao.types import ReceiptStatus, TrajectoryState, VersionState

DAY = 24 * 3600.0


def settings(**given) -> RetentionSettings:
    return RetentionSettings(**{"keep_versions": 3, "keep_every": 5, **given})


def test_the_last_n_and_every_mth_stay() -> None:
    assert removable(range(13), active=12, head=12, settings=settings()) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert removable(range(13), active=12, head=12, settings=settings(keep_every=0)) == list(range(1, 10))
    assert removable([0, 5, 10, 11, 12], active=12, head=12, settings=settings()) == []
    assert removable(range(30), active=29, head=29, settings=RetentionSettings()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_what_serves_what_is_stood_on_and_whatever_is_newer_stay() -> None:
    assert removable(range(13), active=4, head=12, settings=settings()) == [1, 2, 3]
    assert removable(range(13), active=12, head=3, settings=settings()) == [1, 2]
    assert removable(range(13), active=0, head=0, settings=settings()) == []


async def promised(database) -> set[int]:
    async with database.read() as session:
        return {row.version for row in await policies.with_files(session)}


def kept(store) -> set[int]:
    return {int(path.name[1:]) for path in store.iterdir()}


async def test_files_go_and_rows_say_so(database, tmp_path) -> None:
    store = tmp_path / "store"
    await publish(database, store, 8)
    retention = Retention(database, store, settings(), ErasureService(database), clock=lambda: 77.0)
    assert await retention.sweep_versions() == ["v000001", "v000002", "v000003", "v000004"]
    assert kept(store) == await promised(database) == {5, 6, 7, 8}
    assert await retention.sweep_versions() == []
    async with database.write() as session:
        row = await policies.get(session, 2)
        assert (row.files_removed_at, row.path, row.state) == (77.0, "v000002", VersionState.RETIRED)
        with pytest.raises(ConflictError, match="removed by retention"):
            await rollback.roll_back(session, 2, resume=False, reason=None, now=1.0)


async def test_what_is_left_by_a_death_between_row_and_files_goes_with_the_next_sweep(database, tmp_path, monkeypatch) -> None:
    store = tmp_path / "store"
    await publish(database, store, 8)
    retention = Retention(database, store, settings(), ErasureService(database))

    def die(*_arguments) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(policy_store, "remove_versions", die)
    with pytest.raises(KeyboardInterrupt):
        await retention.sweep_versions()
    assert await promised(database) == {5, 6, 7, 8}
    assert kept(store) == set(range(1, 9)), "files nobody counts on, and no row that promises what is gone"
    monkeypatch.undo()
    await retention.sweep_versions()
    assert kept(store) == {5, 6, 7, 8}


async def test_after_a_rollback_the_versions_left_are_kept_until_it_is_built_upon(database, tmp_path) -> None:
    store = tmp_path / "store"
    await publish(database, store, 8)
    async with database.write() as session:
        await rollback.roll_back(session, 2, resume=False, reason=None, now=1.0)
    await Retention(database, store, settings(), ErasureService(database)).sweep_versions()
    assert kept(store) == set(range(2, 9))
    assert json.loads((version_dir(store, 2) / "manifest.json").read_text())["version"] == 2


async def test_old_interactions_lose_their_content_and_keep_their_scores(database, chats) -> None:
    service = FeedbackService(database, Settings())
    rows = await chats.bulk(BATCH + 3)
    scored, _ = await service.submit(FeedbackSubmission(rows[0].completion_id, 1.0, comment="private"))
    fresh = await chats.completed()
    (writing,) = await chats.start()
    async with database.write() as session:
        for row in [*rows, writing]:
            (await session.get_one(InteractionRow, row.id)).created_at = 1000.0
    erasure = ErasureService(database, clock=lambda: 1000.0 + 31 * DAY)
    assert await Retention(database, None, RetentionSettings(), erasure).sweep_interactions() == 0
    async with database.write() as session:
        (await session.get_one(InteractionRow, fresh.id)).created_at = 1000.0 + 2 * DAY
    retention = Retention(database, None, RetentionSettings(interactions_days=30), erasure)
    assert await retention.sweep_interactions() == BATCH + 3
    assert await retention.sweep_interactions() == 0
    async with database.read() as session:
        old = await interactions.get(session, rows[0].completion_id, 0)
        kept_row = await interactions.get(session, fresh.completion_id, 0)
        trajectory = await trajectories.by_interaction(session, rows[0].id)
    assert (old.text, old.token_ids, old.messages, old.completion_tokens is None) == (None, None, None, True)
    assert (kept_row.text, kept_row.erased_at) == ("hi", None)
    assert (trajectory.state, trajectory.reason) == (TrajectoryState.EXPIRED, "erased: older than retention.interactions_days")
    receipt = await service.get(scored.id)
    assert (receipt.status, receipt.value) == (ReceiptStatus.EXPIRED, 1.0)
