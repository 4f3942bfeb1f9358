"""Repositories against a real database: paging, probes, leases, updates, what a completion leaves."""

import asyncio
import os
import subprocess
import sys
import time
import uuid

import pytest

from online_sao.errors import ConfigurationError, InvalidRequestError, LeaseLostError, LifecycleError
from online_sao.publishing import lifecycle
from online_sao.storage.repositories import interactions, learner, leases, policies, probes, trajectories, updates
from online_sao.storage.tables import PolicyVersionRow, ProbeRow, RollbackRow, UpdateRow
from online_sao.types import Completion, Interaction, InteractionStatus, SamplingParams, TrajectoryState, VersionSpan, VersionState


async def test_a_completed_interaction_comes_back_exactly(database, chats) -> None:
    (row,) = await chats.start(user="ada")
    completion = Completion(
        token_ids=(5, 6, 7),
        behavior_logprobs=(-0.1, -1e-8, -12.345678901234567),
        version_spans=(VersionSpan(0, 1, 3), VersionSpan(1, 3, 4)),
        text="grüße 🙂",
        finish_reason="length",
    )
    async with database.write() as session:
        done = await chats.complete(session, row, completion, now=9.0)
        trajectory = await trajectories.create(session, done, now=9.0, deadline_at=10.0)
    assert (trajectory.state, trajectory.oldest_policy_version) == (TrajectoryState.PENDING, 3)
    async with database.read() as session:
        kept = await interactions.get(session, row.completion_id, 0)
    assert (kept.policy_version, kept.completion_tokens, kept.first_token_at, kept.completed_at) == (4, 3, 8.0, 9.0)
    assert interactions.to_record(kept) == Interaction(
        completion_id=row.completion_id,
        choice=0,
        prompt_ids=(1, 2, 3),
        completion=completion,
        sampling=SamplingParams(max_tokens=8),
        messages=({"role": "user", "content": "hello"},),
        user="ada",
    )
    with pytest.raises(LifecycleError, match="is completed, not generating"):
        async with database.write() as session:
            await chats.complete(session, row, completion, now=9.0, status=InteractionStatus.FAILED)


async def test_a_sampled_nul_loses_no_answer(database, chats) -> None:
    """Vocabularies have tokens for it, and PostgreSQL refuses it in text."""
    (row,) = await chats.start()
    completion = Completion((190, 7), (-9.0, -0.5), (VersionSpan(0, 2, 0),), "\0hi", "stop")
    async with database.write() as session:
        await chats.complete(session, row, completion, now=9.0)
    async with database.read() as session:
        kept = await interactions.get(session, row.completion_id, 0)
    assert (kept.status, kept.token_ids, kept.text) == ("completed", [190, 7], "\ufffdhi")


async def test_store_false_keeps_counts_only(database, chats) -> None:
    (row,) = await chats.start(stored=False, user="ada")
    trajectory = await chats.finish(row)
    assert (trajectory.state, trajectory.reason) == (TrajectoryState.NOT_TRAINABLE, "store_false")
    async with database.read() as session:
        kept = await interactions.get(session, row.completion_id, 0)
    assert (kept.messages, kept.prompt_ids, kept.token_ids, kept.text, kept.user, kept.request_metadata) == (None, None, None, None, None, {})
    assert (kept.prompt_tokens, kept.completion_tokens) == (3, 2)
    with pytest.raises(LifecycleError, match="keeps no tokens"):
        interactions.to_record(kept)


async def test_leftovers_of_a_dead_process_are_interrupted(database, chats) -> None:
    done = await chats.completed()
    left = await chats.start(choices=2)
    async with database.write() as session:
        assert await interactions.mark_leftovers_interrupted(session, 50.0) == 2
    async with database.write() as session:
        assert await interactions.mark_leftovers_interrupted(session, 60.0) == 0
        rows = await interactions.by_completion(session, left[0].completion_id)
        states = await trajectories.by_interactions(session, [row.id for row in [*rows, done]])
    assert [(row.choice, row.status, row.completed_at) for row in rows] == [(0, "interrupted", 50.0), (1, "interrupted", 50.0)]
    assert {(states[row.id].state, states[row.id].reason) for row in rows} == {("not_trainable", "interrupted")}
    assert states[done.id].state == "pending"


async def test_pages_are_stable_while_rows_arrive(database, chats) -> None:
    first = [(await chats.completed()).id for _ in range(5)]
    async with database.read() as session:
        page = await interactions.page(session, limit=2)
    await chats.completed()
    seen = [row.id for row in page.rows]
    while page.next_cursor is not None:
        async with database.read() as session:
            page = await interactions.page(session, limit=2, after=page.next_cursor)
        seen += [row.id for row in page.rows]
    assert seen == first[::-1]


async def test_filters(database, chats) -> None:
    await chats.start()
    ada = await chats.completed(user="ada", policy_version=2)
    await chats.completed(user="bob", policy_version=2)
    newest = await chats.completed(user="ada")

    async def found(**filters) -> list[int]:
        async with database.read() as session:
            return [row.id for row in (await interactions.page(session, limit=50, **filters)).rows]

    assert await found(user="ada") == [newest.id, ada.id]
    assert await found(user="ada", policy_version=2) == [ada.id]
    assert len(await found(policy_version=2)) == 2
    assert len(await found(status=InteractionStatus.GENERATING)) == 1
    assert await found(model="another") == []
    assert await found(since=newest.created_at) == [newest.id]
    assert await found(since=time.time() + 60) == []


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "٣", "9" * 19])
async def test_a_cursor_that_is_not_ours(database, cursor) -> None:
    with pytest.raises(InvalidRequestError, match="not a cursor"):
        async with database.read() as session:
            await interactions.page(session, limit=2, after=cursor)


def probe(version: int) -> ProbeRow:
    return ProbeRow(
        policy_version=version, prompt="p", prompt_ids=[1], token_ids=[2], behavior_logprobs=[-0.5], text="t", tolerance=1e-3, created_at=1.0
    )


async def test_only_the_newest_probed_version_is_checked(database) -> None:
    async with database.write() as session:
        assert list(await probes.unchecked_of_newest_version(session)) == []
        await probes.insert(session, [probe(1), probe(2), probe(2)])
    async with database.write() as session:
        found = await probes.unchecked_of_newest_version(session)
        assert [row.policy_version for row in found] == [2, 2]
        await probes.set_checked(session, found[0].id, mean_abs_difference=1e-5, now=3.0)
        await probes.set_checked(session, found[1].id, mean_abs_difference=2e-5, now=3.0)
    async with database.read() as session:
        assert list(await probes.unchecked_of_newest_version(session)) == [], "version 1 has been overtaken"
        assert [row.mean_abs_difference for row in await probes.by_version(session, 2)] == [1e-5, 2e-5]
        assert [row.policy_version for row in await probes.newest(session, 2)] == [2, 2]


async def test_a_lease_has_one_living_owner(database) -> None:
    first, second = leases.new_owner(), leases.new_owner()
    async with database.write() as session:
        await leases.acquire(session, "serving", first, 100.0)
        await leases.acquire(session, "learner", second, 100.0)
        await leases.renew(session, "serving", first, 110.0)
        assert await leases.is_held(session, "serving", 124.0)
        assert not await leases.is_held(session, "serving", 126.0)
    with pytest.raises(ConfigurationError, match=f"Process {os.getpid()} on .* is already the serving process"):
        async with database.write() as session:
            await leases.acquire(session, "serving", second, 124.0)
    async with database.write() as session:
        await leases.acquire(session, "serving", second, 126.0)
    with pytest.raises(LeaseLostError):
        async with database.write() as session:
            await leases.renew(session, "serving", first, 127.0)
    async with database.write() as session:
        await leases.release(session, "serving", first)
        assert await leases.is_held(session, "serving", 127.0), "only the owner can give a lease up"
        await leases.release(session, "serving", second)
        assert not await leases.is_held(session, "serving", 127.0)


async def test_the_lease_of_a_dead_process_can_be_taken_at_once(database) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    owner = f"{leases.this_host()}:{process.pid}:{uuid.uuid4().hex}"
    async with database.write() as session:
        await leases.acquire(session, "learner", owner, 100.0)
    with pytest.raises(ConfigurationError):
        async with database.write() as session:
            await leases.acquire(session, "learner", leases.new_owner(), 101.0)
    process.kill()
    await process.wait()
    async with database.write() as session:
        assert not await leases.is_held(session, "learner", 101.0)
        await leases.acquire(session, "learner", leases.new_owner(), 101.0)


def test_a_zombie_counts_as_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert leases.is_dead(f"{leases.this_host()}:{process.pid}:{uuid.uuid4().hex}")
    process.wait()


def test_a_process_of_another_container_is_not_known_to_be_dead() -> None:
    """Containers on the host's network share its name, and each numbers its processes for itself."""
    name, _, namespace = leases.this_host().partition("/")
    owner = f"{name}/{int(namespace) + 1}:{2**22 + 1}:{uuid.uuid4().hex}"
    assert not leases.is_dead(owner)
    assert leases.is_dead(owner.replace(f"/{int(namespace) + 1}:", f"/{namespace}:"))


async def test_the_lease_of_a_dead_process_elsewhere_must_run_out(database) -> None:
    async with database.write() as session:
        await leases.acquire(session, "learner", f"another-host:999999:{uuid.uuid4().hex}", 100.0)
    with pytest.raises(ConfigurationError, match="Process 999999 on another-host"):
        async with database.write() as session:
            await leases.acquire(session, "learner", leases.new_owner(), 101.0)


def update(number: int, *, accepted: bool = True) -> UpdateRow:
    return UpdateRow(
        update_number=number,
        lineage_epoch=0,
        claim_id=f"c{number}",
        policy_version=number if accepted else None,
        parent_version=0,
        accepted=accepted,
        metrics={"policy/kl_base": 0.1},
        ratio_histogram={},
        started_at=1.0,
        finished_at=2.0,
    )


async def test_updates_in_order(database) -> None:
    async with database.write() as session:
        assert await updates.max_update_number(session) == 0
        assert await updates.latest(session) is None
        for number in (1, 2, 3):
            await updates.insert(session, update(number, accepted=number < 3))
    async with database.read() as session:
        assert await updates.max_update_number(session) == 3
        assert (await updates.latest(session)).update_number == 3
        assert (await updates.latest(session, accepted_only=True)).update_number == 2
        assert (await updates.by_claim(session, "c2")).update_number == 2
        assert await updates.by_claim(session, "c9") is None
        assert (await updates.get(session, 1)).accepted
        assert [row.update_number for row in await updates.since(session, 1)] == [2, 3]
        assert [row.update_number for row in await updates.newest(session, 2)] == [2, 3]


async def test_versions_begin_staged_and_are_activated_in_order(database) -> None:
    async with database.write() as session:
        for number, epoch in ((1, 0), (2, 0), (3, 1)):
            row = PolicyVersionRow(
                version=number, parent=number - 1, lineage_epoch=epoch, update_number=number, path="p", served_digest=[0.5], created_at=1.0
            )
            await policies.insert(session, row)
    async with database.read() as session:
        assert await policies.max_version(session) == 3
        assert [row.version for row in await policies.newest(session, 2)] == [3, 2]
        record = policies.to_record(await policies.get(session, 2))
        assert (record.version, record.parent, record.state, record.served_digest) == (2, 1, VersionState.STAGED, (0.5,))
        assert (await policies.next_to_activate(session, 0, 0)).version == 1
        assert (await policies.next_to_activate(session, 0, 1)).version == 2
        assert (await policies.next_to_activate(session, 1, 0)).version == 3
        assert await policies.next_to_activate(session, 0, 2) is None


@pytest.mark.parametrize(
    ("rollbacks", "settled"),
    [([], True), ([(2, None, None)], False), ([(2, 5.0, None)], True), ([(2, None, "files gone")], True), ([(2, None, None), (3, 5.0, None)], True)],
)
async def test_an_engine_is_settled_unless_a_version_waits_or_the_newest_rollback_is_open(database, rollbacks, settled) -> None:
    def rollback(epoch: int, served_at: float | None, problem: str | None) -> RollbackRow:
        row = RollbackRow(lineage_epoch=epoch, from_version=1, to_version=0, resume=False, expired_trajectories=0, created_at=1.0)
        row.served_at, row.problem = served_at, problem
        return row

    async with database.write() as session:
        for row in rollbacks:
            await policies.insert_rollback(session, rollback(*row))
    async with database.write() as session:
        assert await policies.is_settled(session, 0) is settled
        assert not await policies.is_settled(session, 1)
        row = PolicyVersionRow(version=1, parent=0, lineage_epoch=0, update_number=1, path="p", served_digest=[0.5], created_at=1.0)
        await policies.insert(session, row)
        assert not await policies.is_settled(session, 0)
        await lifecycle.move_version(session, 1, VersionState.FAILED, now=2.0, reason="damaged")
        assert await policies.is_settled(session, 0) is settled


async def test_the_learner_row(database) -> None:
    async with database.write() as session:
        await learner.heartbeat(session, phase="updating", detail="step 3", pid=42, now=5.0)
        await learner.set_head(session, head_version=2, head_update=3)
        await learner.pause(session, "self-check failed")
        row = await learner.get(session, lock=True)
        assert (row.phase, row.detail, row.pid, row.heartbeat_at) == ("updating", "step 3", 42, 5.0)
        assert (row.head_version, row.head_update, row.paused, row.pause_reason) == (2, 3, True, "self-check failed")
        await learner.resume(session)
        row = await learner.get(session)
        assert (row.paused, row.pause_reason) == (False, None)
