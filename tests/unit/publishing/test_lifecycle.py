"""The transition tables, exhaustively, against a real database; then the flows built on them."""

import time
from itertools import product

import pytest
from sqlalchemy import select, update

from online_sao.errors import LeaseLostError, LifecycleError
from online_sao.publishing import lifecycle
from online_sao.storage.repositories import learner, leases, policies, trajectories, updates
from online_sao.storage.session import Database
from online_sao.storage.tables import PolicyVersionRow, TrajectoryRow, UpdateRow
from online_sao.types import TrajectoryState, VersionState

T, V = TrajectoryState, VersionState

# Written out, not read from the code: DESIGN's state machines.
TRAJECTORY_MOVES = {
    (T.PENDING, T.READY),
    (T.PENDING, T.EXPIRED),
    (T.PENDING, T.NOT_TRAINABLE),
    (T.READY, T.CLAIMED),
    (T.READY, T.EXPIRED),
    (T.CLAIMED, T.TRAINED),
    (T.CLAIMED, T.REJECTED),
    (T.CLAIMED, T.READY),
}
VERSION_MOVES = {
    (V.STAGED, V.VERIFIED),
    (V.VERIFIED, V.ACTIVE),
    (V.ACTIVE, V.RETIRED),
    (V.RETIRED, V.ACTIVE),
    (V.STAGED, V.FAILED),
    (V.VERIFIED, V.FAILED),
    (V.ACTIVE, V.FAILED),
}


async def force(database: Database, trajectory_id: int, state: TrajectoryState, **values: object) -> None:
    async with database.write() as session:
        await session.execute(update(TrajectoryRow).where(TrajectoryRow.id == trajectory_id).values(state=state, **values))


async def trajectory(database: Database, chats, **options) -> TrajectoryRow:
    interaction = await chats.completed(**options)
    async with database.read() as session:
        row = await trajectories.by_interaction(session, interaction.id)
    assert row is not None
    return row


async def reload(database: Database, trajectory_id: int) -> TrajectoryRow:
    async with database.read() as session:
        return await trajectories.get(session, trajectory_id)


async def add_version(database: Database, version: int, *, parent: int | None = None, state: VersionState = V.STAGED, epoch: int = 0) -> None:
    row = PolicyVersionRow(
        version=version,
        parent=version - 1 if parent is None else parent,
        lineage_epoch=epoch,
        update_number=version,
        path=f"v{version:06d}",
        served_digest=[1.0],
        created_at=float(version),
        reason=None,
    )
    async with database.write() as session:
        await policies.insert(session, row)
        await session.execute(update(PolicyVersionRow).where(PolicyVersionRow.version == version).values(state=state))


async def add_update(database: Database, number: int, claim_id: str) -> None:
    row = UpdateRow(
        update_number=number,
        lineage_epoch=0,
        claim_id=claim_id,
        policy_version=number,
        parent_version=number - 1,
        accepted=True,
        reason=None,
        metrics={},
        ratio_histogram={},
        started_at=0.0,
        finished_at=1.0,
    )
    async with database.write() as session:
        await updates.insert(session, row)


@pytest.mark.parametrize(("source", "target"), list(product(T, T)))
async def test_every_trajectory_transition(database, chats, source, target) -> None:
    row = await trajectory(database, chats)
    await force(database, row.id, source)
    now = row.updated_at + 10
    if (source, target) in TRAJECTORY_MOVES:
        async with database.write() as session:
            await lifecycle.move_trajectories(session, [row.id], target, now=now)
        after = await reload(database, row.id)
        assert (after.state, after.updated_at) == (target, now)
    else:
        with pytest.raises(LifecycleError, match=f"{row.id} is {source.value} and cannot become {target.value}"):
            async with database.write() as session:
                await lifecycle.move_trajectories(session, [row.id], target, now=now, changes={"reason": "never written"})
        after = await reload(database, row.id)
        assert (after.state, after.reason, after.updated_at) == (source, None, row.updated_at)


@pytest.mark.parametrize(("source", "target"), list(product(V, V)))
async def test_every_version_transition(database, source, target) -> None:
    await add_version(database, 1, state=source)
    if (source, target) in VERSION_MOVES:
        async with database.write() as session:
            await lifecycle.move_version(session, 1, target, now=50.0, reason="why")
    else:
        with pytest.raises(LifecycleError, match=f"version 1 is {source.value} and cannot become {target.value}"):
            async with database.write() as session:
                await lifecycle.move_version(session, 1, target, now=50.0, reason="why")
    async with database.read() as session:
        row = await policies.get(session, 1)
    allowed = (source, target) in VERSION_MOVES
    assert row.state == (target if allowed else source)
    assert row.activated_at == (50.0 if allowed and target is V.ACTIVE else None)
    assert row.retired_at == (50.0 if allowed and target is V.RETIRED else None)


async def test_unknown_rows_are_named(database) -> None:
    with pytest.raises(LifecycleError, match="Trajectory 77 is unknown"):
        async with database.write() as session:
            await lifecycle.move_trajectories(session, [77], T.EXPIRED, now=1.0)
    with pytest.raises(LifecycleError, match="version 77 is unknown"):
        async with database.write() as session:
            await lifecycle.move_version(session, 77, V.FAILED, now=1.0)


async def test_a_batch_moves_whole_or_not_at_all(database, chats) -> None:
    rows = [await trajectory(database, chats) for _ in range(3)]
    await force(database, rows[1].id, T.TRAINED)
    with pytest.raises(LifecycleError, match=f"Trajectory {rows[1].id} is trained"):
        async with database.write() as session:
            await lifecycle.make_ready(session, dict.fromkeys([row.id for row in rows], 1.0), 5.0)
    assert [(await reload(database, row.id)).state for row in rows] == [T.PENDING, T.TRAINED, T.PENDING]


async def test_rewards_change_while_ready_and_the_queue_stays(database, chats) -> None:
    rows = [await trajectory(database, chats) for _ in range(3)]
    async with database.write() as session:
        await lifecycle.make_ready(session, {rows[0].id: 0.5, rows[1].id: -0.25}, 5.0)
    async with database.write() as session:
        await lifecycle.replace_rewards(session, {rows[0].id: -1.0, rows[1].id: 1.0}, 6.0)
    found = [await reload(database, row.id) for row in rows]
    assert [(row.state, row.reward, row.ready_at, row.updated_at) for row in found[:2]] == [(T.READY, -1.0, 5.0, 6.0), (T.READY, 1.0, 5.0, 6.0)]
    assert (found[2].state, found[2].reward) == (T.PENDING, None)
    with pytest.raises(LifecycleError, match=f"trajectory {rows[2].id} cannot change: it is no longer ready"):
        async with database.write() as session:
            await lifecycle.replace_rewards(session, {rows[0].id: 0.5, rows[2].id: 0.5}, 7.0)
    assert (await reload(database, rows[0].id)).reward == -1.0


async def test_a_row_that_was_read_before_shows_what_was_written(database, chats) -> None:
    row = await trajectory(database, chats)
    async with database.write() as session:
        read = await trajectories.get(session, row.id)
        await lifecycle.make_ready(session, {row.id: 0.5}, 5.0)
        assert (read.state, read.reward, read.ready_at, read.updated_at) == (T.READY, 0.5, 5.0, 5.0)
    found = await reload(database, row.id)
    assert (found.state, found.reward, found.ready_at, found.updated_at) == (T.READY, 0.5, 5.0, 5.0)


async def test_more_rows_than_one_statement_takes(database, chats) -> None:
    await chats.bulk(1203)
    async with database.write() as session:
        ids = list(await session.scalars(select(TrajectoryRow.id)))
        await lifecycle.make_ready(session, dict.fromkeys(ids, 0.5), 5.0)
    async with database.read() as session:
        assert (await trajectories.counts_by_state(session))[T.READY] == 1203


async def test_claims_take_the_longest_waiting_first(database, chats) -> None:
    rows = [await trajectory(database, chats) for _ in range(4)]
    async with database.write() as session:
        for row, ready_at in zip(rows, (30.0, 10.0, 40.0, 20.0), strict=True):
            await lifecycle.make_ready(session, {row.id: 0.5}, ready_at)
        assert await trajectories.queue(session) == trajectories.Queue(4, 10.0)
    async with database.write() as session:
        first = await lifecycle.claim(session, limit=2, claim_id="a", expires_at=100.0, now=50.0)
    async with database.write() as session:
        second = await lifecycle.claim(session, limit=5, claim_id="b", expires_at=100.0, now=50.0)
        assert list(await trajectories.open_claims(session)) == ["a", "b"]
    assert first == [rows[1].id, rows[3].id]
    assert second == [rows[0].id, rows[2].id]
    async with database.read() as session:
        claimed, broken = await trajectories.load_claimed(session, "a")
    assert broken == {}
    assert [item.trajectory_id for item in claimed] == first
    assert claimed[0].reward == 0.5
    assert claimed[0].interaction.completion.behavior_logprobs == (-0.5, -1.5)
    assert claimed[0].interaction.sampling.temperature == 1.0


async def test_a_claim_is_renewed_whole_or_lost(database, chats) -> None:
    rows = [await trajectory(database, chats) for _ in range(2)]
    async with database.write() as session:
        await lifecycle.make_ready(session, dict.fromkeys([row.id for row in rows], 0.5), 1.0)
        await lifecycle.claim(session, limit=2, claim_id="a", expires_at=100.0, now=2.0)
        await trajectories.renew_claim(session, "a", expected=2, expires_at=200.0)
    assert (await reload(database, rows[0].id)).claim_expires_at == 200.0
    async with database.write() as session:
        assert await lifecycle.expire(session, [await trajectories.get(session, rows[0].id)], "erased", 3.0) == 1
    assert ((await reload(database, rows[0].id)).state, (await reload(database, rows[0].id)).reason) == (T.EXPIRED, "erased")
    with pytest.raises(LeaseLostError, match="holds 1 of its 2"):
        async with database.write() as session:
            await trajectories.renew_claim(session, "a", expected=2, expires_at=300.0)
    assert (await reload(database, rows[1].id)).claim_expires_at == 200.0
    async with database.write() as session:
        assert await lifecycle.release(session, "a", 4.0) == 1
    back = await reload(database, rows[1].id)
    assert (back.state, back.claim_id, back.claim_expires_at, back.ready_at) == (T.READY, None, None, 1.0)


async def test_training_marks_only_its_own_claim(database, chats) -> None:
    row = await trajectory(database, chats)
    await add_update(database, 1, "a")
    async with database.write() as session:
        await lifecycle.make_ready(session, {row.id: 0.5}, 1.0)
        await lifecycle.claim(session, limit=1, claim_id="a", expires_at=100.0, now=2.0)
    trained = [lifecycle.TrainedTrajectory(row.id, reward=0.25, policy_lag=3, masked_fraction=0.125)]
    with pytest.raises(LifecycleError, match="under claim a, not b, and cannot become trained"):
        async with database.write() as session:
            await lifecycle.finish_trained(session, trained, claim_id="b", update_number=1, now=3.0)
    async with database.write() as session:
        assert await lifecycle.finish_trained(session, trained, claim_id="a", update_number=1, now=3.0) == []
    after = await reload(database, row.id)
    assert (after.state, after.update_number, after.reward, after.policy_lag, after.masked_fraction) == (T.TRAINED, 1, 0.25, 3, 0.125)


async def test_recovery_takes_what_lapsed_and_leaves_what_expired(database, chats) -> None:
    rows = [await trajectory(database, chats) for _ in range(4)]
    ids = [row.id for row in rows]
    await add_update(database, 1, "a")
    async with database.write() as session:
        await lifecycle.make_ready(session, dict.fromkeys(ids, 0.5), 1.0)
        await lifecycle.claim(session, limit=4, claim_id="a", expires_at=100.0, now=2.0)
    await force(database, ids[1], T.READY, claim_id=None)
    await force(database, ids[2], T.EXPIRED, claim_id=None)
    await force(database, ids[3], T.CLAIMED, claim_id="other")
    trained = [lifecycle.TrainedTrajectory(id_, reward=0.5, policy_lag=0, masked_fraction=0.0) for id_ in ids]
    async with database.write() as session:
        left = await lifecycle.finish_trained(session, trained, claim_id="a", update_number=1, now=3.0, recovered=True)
    assert left == ids[2:]
    assert [(await reload(database, id_)).state for id_ in ids] == [T.TRAINED, T.TRAINED, T.EXPIRED, T.CLAIMED]


async def test_rejection_keeps_the_reason(database, chats) -> None:
    row = await trajectory(database, chats)
    await add_update(database, 1, "a")
    async with database.write() as session:
        await lifecycle.make_ready(session, {row.id: 0.5}, 1.0)
        ids = await lifecycle.claim(session, limit=1, claim_id="a", expires_at=100.0, now=2.0)
        await lifecycle.reject(session, ids, claim_id="a", update_number=1, reason="masked_fraction 0.95 > 0.9", now=3.0)
    after = await reload(database, row.id)
    assert (after.state, after.reason, after.update_number) == (T.REJECTED, "masked_fraction 0.95 > 0.9", 1)


@pytest.mark.parametrize(("default_reward", "state"), [(None, T.EXPIRED), (-0.5, T.READY)])
async def test_deadlines(database, chats, default_reward, state) -> None:
    late, early = await trajectory(database, chats, deadline_seconds=-1), await trajectory(database, chats)
    async with database.write() as session:
        assert await lifecycle.expire_overdue(session, time.time(), default_reward) == 1
    after = await reload(database, late.id)
    assert (after.state, after.reward) == (state, default_reward)
    assert after.reason == ("no score before the deadline" if state is T.EXPIRED else None)
    assert (await reload(database, early.id)).state == T.PENDING


async def test_lapsed_claims_return_unless_the_learner_lives(database, chats) -> None:
    lapsed, held = await trajectory(database, chats), await trajectory(database, chats)
    async with database.write() as session:
        await lifecycle.make_ready(session, dict.fromkeys([lapsed.id, held.id], 0.5), 1.0)
        await lifecycle.claim(session, limit=1, claim_id="a", expires_at=10.0, now=2.0)
        await lifecycle.claim(session, limit=1, claim_id="b", expires_at=1000.0, now=2.0)
        owner = leases.new_owner()
        await leases.acquire(session, "learner", owner, 15.0)
    async with database.write() as session:
        assert await lifecycle.release_lapsed(session, 20.0) == 0
        await leases.release(session, "learner", owner)
        assert await lifecycle.release_lapsed(session, 20.0) == 1
    assert [(await reload(database, row.id)).state for row in (lapsed, held)] == [T.READY, T.CLAIMED]


async def test_lag_is_counted_along_the_lineage(database, chats) -> None:
    """0 ← 1 ← 2 ← 3, and 4 ← 1 after a rollback to 1: from head 4, version 1 is one update back and 2, 3 are abandoned."""
    for version, parent in ((1, 0), (2, 1), (3, 2), (4, 1)):
        await add_version(database, version, parent=parent)
    rows = {version: await trajectory(database, chats, policy_version=version) for version in range(5)}
    async with database.write() as session:
        await lifecycle.make_ready(session, dict.fromkeys([row.id for row in rows.values()], 0.5), 1.0)
        assert await policies.lags(session, 4) == {4: 0, 1: 1, 0: 2}
        assert await policies.lags(session, 3, limit=2) == {3: 0, 2: 1, 1: 2}
        assert await lifecycle.expire_lagging(session, head_version=4, max_policy_lag=1, now=5.0) == 3
    after = {version: await reload(database, row.id) for version, row in rows.items()}
    assert {version: row.state for version, row in after.items()} == {0: T.EXPIRED, 1: T.READY, 2: T.EXPIRED, 3: T.EXPIRED, 4: T.READY}
    assert after[0].reason == "policy_lag 2 > 1"
    assert after[3].reason == "policy version 3 was abandoned"


async def test_expiring_leaves_what_was_used(database, chats) -> None:
    rows = {state: await trajectory(database, chats) for state in T}
    for state, row in rows.items():
        await force(database, row.id, state, reward=0.5, claim_id="a" if state is T.CLAIMED else None)
    async with database.write() as session:
        loaded = [await trajectories.get(session, row.id) for row in rows.values()]
        assert await lifecycle.expire(session, loaded, "erased", 9.0) == 3
    after = {state: (await reload(database, row.id)).state for state, row in rows.items()}
    moved = {T.PENDING, T.READY, T.CLAIMED}
    assert after == {state: T.EXPIRED if state in moved else state for state in T}


async def test_activation_retires_the_version_before(database) -> None:
    await add_version(database, 1)
    async with database.write() as session:
        assert (await policies.next_to_activate(session, 0, 0)).version == 1
        assert await policies.next_to_activate(session, 1, 0) is None
        await lifecycle.move_version(session, 1, V.VERIFIED, now=4.0)
        await lifecycle.activate(session, 1, 5.0)
    async with database.write() as session:
        assert (await policies.active(session)).version == 1
        base = await policies.get(session, 0)
        assert (base.state, base.retired_at) == (V.RETIRED, 5.0)
        await lifecycle.activate(session, 0, 6.0)
        again = await policies.get(session, 0)
        assert (again.state, again.activated_at, again.retired_at) == (V.ACTIVE, 6.0, None)
        assert (await learner.get(session)).head_version == 0


async def test_a_version_that_was_not_verified_cannot_be_activated(database) -> None:
    await add_version(database, 1)
    with pytest.raises(LifecycleError, match="version 1 is staged and cannot become active"):
        async with database.write() as session:
            await lifecycle.activate(session, 1, 5.0)
    async with database.read() as session:
        assert (await policies.active(session)).version == 0
