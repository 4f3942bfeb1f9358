"""The transaction of a rollback: what it moves, what it expires, what it refuses, and what receipts say afterwards."""

import time

import pytest

from online_sao.errors import ConflictError, NotFoundError
from online_sao.publishing import lifecycle, rollback
from online_sao.service.receipts import receipts_of
from online_sao.storage.repositories import learner, policies, trajectories, updates
from online_sao.storage.tables import FeedbackRow, PolicyVersionRow, UpdateRow
from online_sao.types import Completion, ReceiptStatus, TrajectoryState, VersionSpan, VersionState


async def add_version(database, version: int, *, parent: int | None = None, served: bool = True) -> None:
    """As a learner and a server leave it: an update, its version, the head on it; and served, or still STAGED."""
    async with database.write() as session:
        head = await learner.get(session)
        parent = head.head_version if parent is None else parent
        shared = {"update_number": version, "lineage_epoch": head.lineage_epoch}
        await updates.insert(
            session,
            UpdateRow(
                **shared,
                claim_id=f"c{version}",
                policy_version=version,
                parent_version=parent,
                accepted=True,
                metrics={},
                ratio_histogram={},
                started_at=0.0,
                finished_at=1.0,
            ),
        )
        row = PolicyVersionRow(**shared, version=version, parent=parent, path=f"v{version:06d}", served_digest=[1.0], created_at=1.0)
        await policies.insert(session, row)
        await learner.set_head(session, head_version=version, head_update=version)
        if served:
            await lifecycle.move_version(session, version, VersionState.VERIFIED, now=1.0)
            await lifecycle.activate(session, version, now=1.0)


async def logged(database, chats, *versions: int, ready: bool = True):
    """A completion with one token from each of ``versions``, in that order. Returns its trajectory."""
    (row,) = await chats.start(policy_version=versions[0])
    spans = tuple(VersionSpan(at, at + 1, version) for at, version in enumerate(versions))
    completion = Completion((7,) * len(versions), (-0.5,) * len(versions), spans, "hi", "stop")
    async with database.write() as session:
        done = await chats.complete(session, row, completion, now=2.0)
        trajectory = await trajectories.create(session, done, now=2.0, deadline_at=9e9)
        if ready:
            await lifecycle.make_ready(session, {trajectory.id: 1.0}, 2.0)
    return trajectory


async def back_to(database, version: int, *, resume: bool = False, reason: str | None = "too short"):
    async with database.write() as session:
        return await rollback.roll_back(session, version, resume=resume, reason=reason, now=50.0)


async def states(database, *rows) -> list[tuple[str, str | None]]:
    async with database.read() as session:
        found = [await trajectories.get(session, row.id) for row in rows]
    return [(row.state, row.reason) for row in found]


async def test_it_moves_the_learner_and_leaves_active_what_the_engine_has(database) -> None:
    for version in (1, 2, 3):
        await add_version(database, version)
    await add_version(database, 4, served=False)
    done = await back_to(database, 1)
    async with database.read() as session:
        row = await learner.get(session)
        active = await policies.active(session)
        staged = await policies.get(session, 4)
        target = await policies.get(session, 1)
    assert (row.lineage_epoch, row.head_version, row.head_update) == (1, 1, 1)
    assert (row.paused, row.pause_reason) == (True, "rolled back to version 1: too short")
    assert (active.version, target.state) == (3, VersionState.RETIRED)
    assert (staged.state, staged.reason) == (VersionState.FAILED, "policy version 4 was rolled back to version 1: too short")
    assert (done.from_version, done.to_version, done.served_at, done.problem) == (4, 1, None, None)
    assert rollback.is_open(done)


async def test_it_may_leave_the_learner_running(database) -> None:
    await add_version(database, 1)
    async with database.write() as session:
        await learner.pause(session, "looking")
    await back_to(database, 0, resume=True)
    async with database.read() as session:
        row = await learner.get(session)
    assert (row.paused, row.pause_reason, row.head_version, row.head_update) == (False, None, 0, 0)


async def test_what_waits_with_tokens_of_the_lineage_left_expires_wherever_they_are(database, chats) -> None:
    await add_version(database, 1)
    claimed_kept, claimed = await logged(database, chats, 1), None
    await add_version(database, 2)
    claimed = await logged(database, chats, 2)
    async with database.write() as session:
        await lifecycle.claim(session, limit=9, claim_id="c", expires_at=9e9, now=3.0)
    old = await logged(database, chats, 0)
    kept = await logged(database, chats, 0, 1)
    abandoned = await logged(database, chats, 2)
    ends_there = await logged(database, chats, 1, 2)
    waiting = await logged(database, chats, 1, 2, ready=False)
    await add_version(database, 3)
    between = await logged(database, chats, 1, 2, 1)  # neither the oldest nor, once it is back, the newest

    done = await back_to(database, 1)
    assert await states(database, old, kept) == [(TrajectoryState.READY, None)] * 2
    assert await states(database, claimed_kept) == [(TrajectoryState.CLAIMED, None)]
    gone = (TrajectoryState.EXPIRED, "policy version 2 was rolled back to version 1: too short")
    assert await states(database, claimed, abandoned, ends_there, waiting, between) == [gone] * 5
    assert done.expired_trajectories == 5


async def test_a_version_only_in_the_middle_is_found(database, chats) -> None:
    """After a rollback and a roll forward a newer number is on the lineage while one between two of its tokens is not."""
    await add_version(database, 1)
    await add_version(database, 2)
    await back_to(database, 1, resume=True)
    async with database.write() as session:
        await lifecycle.activate(session, 1, now=51.0)
    await add_version(database, 3, parent=1)
    (row,) = await chats.start(policy_version=1)
    async with database.write() as session:
        spans = (VersionSpan(0, 1, 1), VersionSpan(1, 2, 2), VersionSpan(2, 3, 3))
        completion = Completion((7, 7, 7), (-0.5,) * 3, spans, "hi", "stop")
        done = await chats.complete(session, row, completion, now=2.0)
        trajectory = await trajectories.create(session, done, now=2.0, deadline_at=9e9)
    assert await states(database, trajectory) == [(TrajectoryState.NOT_TRAINABLE, "policy version 2 was rolled back")]
    async with database.write() as session:  # it locks what it finds
        lineage = await policies.lags(session, 3)
        found = await trajectories.stranded(session, lineage, (TrajectoryState.NOT_TRAINABLE,))
    assert [(item.trajectory_id, item.version) for item in found] == [(trajectory.id, 2)]


async def test_what_completes_after_it_on_the_version_left_cannot_train(database, chats) -> None:
    await add_version(database, 1)
    await back_to(database, 0)
    late = await logged(database, chats, 0, 1, ready=False)
    assert await states(database, late) == [(TrajectoryState.NOT_TRAINABLE, "policy version 1 was rolled back")]
    fresh = await logged(database, chats, 0, ready=False)
    assert await states(database, fresh) == [(TrajectoryState.PENDING, None)]


async def test_a_ready_one_that_slipped_through_expires_when_it_would_be_claimed(database, chats) -> None:
    await add_version(database, 1)
    slipped = await logged(database, chats, 0, 1)
    async with database.write() as session:
        await learner.begin_epoch(session, 1, head_version=0, head_update=0)
        assert await lifecycle.expire_lagging(session, head_version=0, max_policy_lag=5, now=4.0) == 1
    assert await states(database, slipped) == [(TrajectoryState.EXPIRED, "policy version 1 was abandoned")]


async def test_versions_that_cannot_be_gone_back_to(database) -> None:
    for version in (1, 2):
        await add_version(database, version)
    await add_version(database, 3, served=False)
    for version, why in ((9, "There is no policy version 9"), (3, "never served"), (7, "There is no")):
        with pytest.raises((NotFoundError, ConflictError), match=why):
            await back_to(database, version)
    async with database.write() as session:
        await lifecycle.move_version(session, 3, VersionState.FAILED, now=1.0, reason="a wrong digest")
        await policies.mark_files_removed(session, [1], 1.0)
    with pytest.raises(ConflictError, match="has failed and cannot be activated: a wrong digest"):
        await back_to(database, 3)
    with pytest.raises(ConflictError, match="removed by retention"):
        await back_to(database, 1)
    # Active, but the learner had gone on: going back to it moves the learner, and the engine has nothing to do.
    done = await back_to(database, 2)
    assert (done.served_at, done.problem) == (50.0, None)
    with pytest.raises(ConflictError, match="active already"):
        await back_to(database, 2)
    await back_to(database, 0)
    with pytest.raises(ConflictError, match="being activated already"):
        await back_to(database, 0)
    async with database.read() as session:
        assert (await learner.get(session)).lineage_epoch == 2, "what is refused changes nothing"


async def trained(database, chats, version: int) -> str:
    """A scored trajectory that was used in the update that made ``version``. Returns the score's id."""
    (row,) = await chats.start(policy_version=0)
    await chats.finish(row)
    async with database.write() as session:
        score = FeedbackRow(id=f"fb-{version}", interaction_id=row.id, metric="score", value=1.0, body_digest="d", created_at=1.0)
        session.add(score)
        trajectory = await trajectories.by_interaction(session, row.id)
        await lifecycle.make_ready(session, {trajectory.id: 1.0}, 1.0)
        await lifecycle.claim(session, limit=1, claim_id=f"c{version}", expires_at=9e9, now=1.0)
        used = [lifecycle.TrainedTrajectory(trajectory.id, 1.0, 0, 0.0)]
        await lifecycle.finish_trained(session, used, claim_id=f"c{version}", update_number=version, now=1.0)
    return score.id


async def test_receipts_say_which_rollback_undid_them_and_come_back_with_their_version(database, chats) -> None:
    ids = {}
    for version in (1, 2):
        await add_version(database, version)
        ids[version] = await trained(database, chats, version)

    async def told() -> dict[int, tuple[str, str | None]]:
        async with database.read() as session:
            found = await receipts_of(session, list(ids.values()))
        return {version: (found[id_].status, found[id_].reason) for version, id_ in ids.items()}

    live = (ReceiptStatus.LIVE, None)
    assert await told() == {1: live, 2: live}
    await back_to(database, 1, reason="a bad afternoon")
    undone = (ReceiptStatus.ROLLED_BACK, "policy version 2 was rolled back to version 1: a bad afternoon")
    assert await told() == {1: live, 2: undone}
    await back_to(database, 0, reason=None)
    assert await told() == {1: (ReceiptStatus.ROLLED_BACK, "policy version 1 was rolled back to version 0"), 2: undone}
    async with database.write() as session:
        await lifecycle.activate(session, 0, time.time())
    await back_to(database, 2, reason="it was not that bad")
    assert await told() == {1: live, 2: live}
    async with database.write() as session:
        await lifecycle.activate(session, 2, time.time())
    await back_to(database, 1, reason="it was")
    assert (await told())[2] == (ReceiptStatus.ROLLED_BACK, "policy version 2 was rolled back to version 1: it was")
