"""Claiming: when a batch is due, what is too old, and that one damaged row keeps no other from being trained."""

import dataclasses
import math
import time
from typing import Any

import pytest

from online_sao.publishing import lifecycle
from online_sao.runtime.batches import ClaimRules, Head, claim_batch
from online_sao.storage.repositories import interactions, learner, policies, trajectories
from online_sao.storage.repositories.trajectories import Queue
from online_sao.storage.tables import PolicyVersionRow
from online_sao.types import TrajectoryState

HEAD = Head(0, 0)
RULES = ClaimRules(batch_size=3, min_batch_size=2, max_age_seconds=60.0, max_policy_lag=2, lease_seconds=600.0, vocabulary_size=100)


@pytest.mark.parametrize(
    ("ready", "waited", "due"),
    [(0, None, False), (3, 0.0, True), (5, 0.0, True), (2, 59.0, False), (2, 60.0, True), (1, 1000.0, False)],
)
def test_a_batch_is_due_by_size_or_by_age(ready, waited, due):
    assert RULES.due(Queue(ready, None if waited is None else 1000.0 - waited), 1000.0) == due


async def scored(chats, database, count: int, *, reward: float = 1.0, policy_version: int = 0) -> list[int]:
    """Trajectory ids of completions that have been scored, oldest first."""
    ids = []
    for _ in range(count):
        row = await chats.completed(policy_version=policy_version)
        async with database.write() as session:
            trajectory = await trajectories.by_interaction(session, row.id)
            await lifecycle.make_ready(session, {trajectory.id: reward}, time.time())
        ids.append(trajectory.id)
    return ids


async def states(database) -> dict[TrajectoryState, int]:
    async with database.read() as session:
        return {state: count for state, count in (await trajectories.counts_by_state(session)).items() if count}


async def test_the_oldest_are_claimed_whole(database, chats):
    ids = await scored(chats, database, 4)
    batch = await claim_batch(database, RULES, HEAD)

    assert batch.trajectory_ids == tuple(ids[:3])
    assert batch.policy_lags == (0, 0, 0)
    first = batch.trajectories[0]
    assert first.token_ids == (1, 2, 3, 7, 8)
    assert first.behavior_logprobs == (0.0, 0.0, 0.0, -0.5, -1.5)
    assert first.rewards == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert await states(database) == {TrajectoryState.CLAIMED: 3, TrajectoryState.READY: 1}
    assert await claim_batch(database, RULES, HEAD) is None


async def test_nothing_is_claimed_while_paused_or_off_the_head(database, chats):
    await scored(chats, database, 3)
    assert await claim_batch(database, RULES, Head(0, 1)) is None
    assert await claim_batch(database, RULES, Head(1, 0)) is None
    async with database.write() as session:
        await learner.pause(session, "an operator")
    assert await claim_batch(database, RULES, HEAD) is None
    assert await states(database) == {TrajectoryState.READY: 3}


async def test_too_old_trajectories_expire_and_lag_is_counted_in_updates(database, chats):
    async with database.write() as session:
        for version in (1, 2, 3):
            row = PolicyVersionRow(
                version=version, parent=version - 1, lineage_epoch=0, update_number=version, path=f"v{version}", served_digest=[], created_at=0.0
            )
            await policies.insert(session, row)
        await learner.set_head(session, head_version=3, head_update=3)
    await scored(chats, database, 1, policy_version=0)
    kept = [*await scored(chats, database, 2, policy_version=1), *await scored(chats, database, 1, policy_version=3)]

    batch = await claim_batch(database, RULES, Head(0, 3))

    assert batch.trajectory_ids == tuple(kept)
    assert batch.policy_lags == (2, 2, 0)
    assert await states(database) == {TrajectoryState.CLAIMED: 3, TrajectoryState.EXPIRED: 1}


BROKEN: dict[str, dict[str, Any]] = {
    "no reward": {"reward": None},
    "logprobs of another length": {"behavior_logprobs": [-0.5]},
    "a logprob that is no number": {"behavior_logprobs": [-0.5, None]},
    "no tokens": {"token_ids": []},
    "a token id outside the vocabulary": {"token_ids": [7, 100]},
    "a token id that is text": {"token_ids": [7, "8"]},
    "no version spans": {"version_spans": []},
    "sampling that says nothing": {"sampling": {}},
    "greedy sampling": {"sampling": {"max_tokens": 8, "temperature": 0.0, "top_p": 1.0}},
    "a version that never was": {"version_spans": [[0, 2, 0]], "oldest_policy_version": -5},
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_damaged_row_is_rejected_and_the_others_train(database, chats, fault):
    ids = await scored(chats, database, 3)
    async with database.write() as session:
        trajectory = await session.get_one(lifecycle.TrajectoryRow, ids[1])
        row = await session.get_one(interactions.InteractionRow, trajectory.interaction_id)
        for name, value in BROKEN[fault].items():
            setattr(trajectory if name in ("reward", "oldest_policy_version") else row, name, value)

    batch = await claim_batch(database, RULES, HEAD)

    if fault == "a version that never was":
        assert batch is None  # it expired before the claim, and two are too few before they come of age
        assert await states(database) == {TrajectoryState.EXPIRED: 1, TrajectoryState.READY: 2}
        return
    assert batch.trajectory_ids == (ids[0], ids[2])
    assert await states(database) == {TrajectoryState.CLAIMED: 2, TrajectoryState.REJECTED: 1}
    async with database.read() as session:
        rejected = await session.get_one(lifecycle.TrajectoryRow, ids[1])
    assert rejected.reason.startswith("cannot be trained: ")


async def test_a_logprob_that_is_not_finite_is_left_to_the_learner_to_mask(database, chats):
    ids = await scored(chats, database, 3)
    async with database.write() as session:
        trajectory = await session.get_one(lifecycle.TrajectoryRow, ids[1])
        row = await session.get_one(interactions.InteractionRow, trajectory.interaction_id)
        row.behavior_logprobs = [-0.5, math.nan]

    batch = await claim_batch(database, RULES, HEAD)
    assert len(batch.trajectories) == 3
    assert math.isnan(batch.trajectories[1].behavior_logprobs[-1])


async def test_too_few_left_go_back_to_the_queue(database, chats):
    ids = await scored(chats, database, 3)
    async with database.write() as session:
        for trajectory_id in ids[:2]:
            (await session.get_one(lifecycle.TrajectoryRow, trajectory_id)).reward = None

    assert await claim_batch(database, RULES, HEAD) is None
    assert await states(database) == {TrajectoryState.REJECTED: 2, TrajectoryState.READY: 1}


async def test_a_small_batch_size_is_not_held_back_by_the_minimum(database, chats):
    await scored(chats, database, 1)
    rules = dataclasses.replace(RULES, batch_size=1, min_batch_size=4)
    batch = await claim_batch(database, rules, HEAD)
    assert len(batch.trajectories) == 1
