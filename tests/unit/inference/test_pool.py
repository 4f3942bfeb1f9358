"""The pool over replicas that do as they are told: who answers, what becomes of the requests of one that ends, swaps that go wrong half-way."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from online_sao.errors import EngineError, PolicyStoreError, ReplicaLostError
from online_sao.inference.engine import EngineLoad, EngineRequest, SwapReport, TokenDelta
from online_sao.inference.pool import EnginePool
from online_sao.models.fingerprint import ServedDigest

REQUEST = EngineRequest("r", (1, 2, 3), 3, 1.0, 1.0, ())
GOOD = Path("good")


class Replica:
    """Serves weights that are its version's number. ``hold``: tokens wait until it is set. ``swap_error``: what the next swap raises."""

    max_top_logprobs = 20
    logprob_tolerance = 1e-3
    serves_pinned = True

    def __init__(self, number, source):
        self.place, self.number, self.source = f"place {number}", number, source
        self.version, self.served, self.paused = -1, 0, False
        self.hold = asyncio.Event()
        self.hold.set()
        self.swap_error, self.weights_off, self.starts_with = None, 0.0, None
        self.why = asyncio.get_running_loop().create_future()

    def end(self, why="its process has ended"):
        if not self.why.done():
            self.why.set_result(why)
            self.hold.set()

    def require(self):
        if self.why.done():
            raise ReplicaLostError(self.why.result())

    async def start(self, policy_version, adapter_dir):
        await self.source.gate.wait()
        if self.source.start_error is not None:
            raise self.source.start_error
        self.version = policy_version

    async def generate(self, request):
        self.served += 1
        for place in range(request.max_tokens):
            await self.hold.wait()
            self.require()
            yield TokenDelta((self.number,), (-1.0,), self.version, "length" if place == request.max_tokens - 1 else None)

    async def swap(self, policy_version, adapter_dir):
        self.require()
        self.paused = True
        self.source.paused_together = max(self.source.paused_together, sum(replica.paused for replica in self.source.made))
        await asyncio.sleep(0.01)
        self.paused = False
        self.require()
        if self.swap_error is not None:
            error, self.swap_error = self.swap_error, None
            raise error
        self.version = policy_version
        return SwapReport(policy_version, 0.01, 0.01, 1, 5, await self.served_digest())

    async def score_text(self, token_ids):
        await self.hold.wait()
        self.require()
        return [-1.0] * (len(token_ids) - 1)

    async def served_digest(self):
        self.require()
        return ServedDigest((float(self.version) + self.weights_off,))

    async def ended(self):
        return await asyncio.shield(self.why)

    async def stop(self):
        self.end("it was stopped")


class Source:
    def __init__(self):
        self.made, self.problem, self.opened, self.closed = [], None, 0, 0
        self.start_error, self.paused_together = None, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self):
        self.opened += 1

    async def close(self):
        self.closed += 1

    async def create(self, number):
        self.made.append(Replica(number, self))
        return self.made[-1]


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def source():
    return Source()


@pytest.fixture
async def pool(source):
    """Two replicas, of two places each, on version 1."""
    pool = EnginePool(source, 2, 2)
    await pool.start(1, GOOD)
    await until(lambda: all(replica.serving for replica in pool.replicas))
    yield pool
    await pool.stop()


async def sample(pool, request=REQUEST):
    async with aclosing(pool.generate(request)) as deltas:
        return [delta.token_ids[0] async for delta in deltas]


async def test_requests_go_where_fewest_are(source, pool):
    for replica in source.made:
        replica.hold.clear()
    tasks = [asyncio.create_task(sample(pool)) for _ in range(6)]
    await until(lambda: sum(replica.served for replica in source.made) == 4)
    assert [replica.served for replica in source.made] == [2, 2]
    assert pool.load() == EngineLoad(running=4, waiting=2)
    assert [replica.running for replica in pool.replicas] == [2, 2]
    for replica in source.made:
        replica.hold.set()
    await asyncio.gather(*tasks)
    assert pool.load() == EngineLoad(0, 0)


async def test_what_is_asked_in_the_background_waits_for_no_users_place(source, pool):
    for replica in source.made:
        replica.hold.clear()
    tasks = [asyncio.create_task(sample(pool)) for _ in range(5)]
    await until(lambda: pool.load() == EngineLoad(4, 1))
    background = asyncio.create_task(sample(pool, replace(REQUEST, background=True)))
    await until(lambda: sum(replica.served for replica in source.made) == 5)
    assert pool.load() == EngineLoad(running=4, waiting=1)
    for replica in source.made:
        replica.hold.set()
    await asyncio.gather(*tasks, background)
    assert pool.load() == EngineLoad(0, 0)


@pytest.mark.parametrize("number", [0, 1])
async def test_who_waits_gets_the_first_place_that_is_free_on_any_replica(source, pool, number):
    for replica in source.made:
        replica.hold.clear()
    tasks = [asyncio.create_task(sample(pool)) for _ in range(6)]
    await until(lambda: pool.load() == EngineLoad(4, 2))
    tasks[5].cancel()
    source.made[number].hold.set()
    assert await tasks[4] == [number] * 3
    source.made[1 - number].hold.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert pool.load() == EngineLoad(0, 0)


async def test_who_waits_when_the_last_replica_ends_is_told_at_once(source, pool):
    for replica in source.made:
        replica.hold.clear()
    tasks = [asyncio.create_task(sample(pool)) for _ in range(6)]
    await until(lambda: pool.load() == EngineLoad(4, 2))
    source.gate.clear()
    for replica in list(source.made):
        replica.end()
    async with asyncio.timeout(2):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EngineError) for result in results)
    assert pool.load() == EngineLoad(0, 0)
    source.gate.set()


async def test_who_has_no_token_yet_is_answered_by_another_replica(source, pool):
    first, second = source.made
    first.hold.clear()
    task = asyncio.create_task(sample(pool))
    await until(lambda: first.served == 1)
    first.end()
    assert await task == [1, 1, 1]
    assert second.served == 1


async def kill_whoever_answers(source, tasks):
    """Until every task is done: each replica ends as soon as it is given something."""
    async with asyncio.timeout(10):
        while not all(task.done() for task in tasks):
            for replica in source.made:
                if replica.served:
                    replica.end()
            await asyncio.sleep(0.001)


async def test_what_ends_replicas_is_given_to_two_of_them_at_most(source, pool):
    pool = EnginePool(source, 4, 2)
    await pool.start(1, GOOD)
    await until(lambda: all(replica.serving for replica in pool.replicas))
    for replica in source.made:
        replica.hold.clear()
    task = asyncio.create_task(sample(pool))
    await kill_whoever_answers(source, [task])
    with pytest.raises(ReplicaLostError, match="Two engine replicas"):
        await task
    assert sum(replica.served for replica in source.made) == 2
    scored = []

    async def score(self, token_ids):
        scored.append(self)
        self.end()
        self.require()

    for replica in source.made:
        replica.score_text = partial(score, replica)
    with pytest.raises(ReplicaLostError, match="Two engine replicas"):
        await pool.score_text((1, 2, 3))
    assert len(scored) == 2
    await pool.stop()


async def test_what_replicas_can_do_is_known_while_none_serves(source, pool):
    source.gate.clear()
    for replica in list(source.made):
        replica.end()
    await until(lambda: not pool.healthy)
    assert (pool.max_top_logprobs, pool.logprob_tolerance, pool.serves_pinned) == (20, 1e-3, True)
    source.gate.set()


async def test_a_swap_that_hangs_holds_up_nobody_after_a_new_start(source, pool):
    """Nor does it, or one that waited behind it, change anything when it goes on."""
    hangs = asyncio.Event()
    first = source.made[0]

    async def hang(_version, _folder):
        first.paused = True
        await hangs.wait()
        first.version = 2
        return SwapReport(2, 0.0, 0.0, 0, 0, ServedDigest((2.0,)))

    first.swap = hang
    swaps = [asyncio.create_task(pool.swap(number, GOOD)) for number in (2, 3)]
    await until(lambda: first.paused)
    await pool.stop()
    async with asyncio.timeout(5):
        await pool.start(1, GOOD)
        await until(lambda: all(replica.serving for replica in pool.replicas))
        hangs.set()
        for swap in swaps:
            with pytest.raises(EngineError, match="stopped"):
                await swap
        assert pool.policy_version == 1
        assert await pool.served_digest() == ServedDigest((1.0,))
        await pool.swap(4, GOOD)


async def test_who_has_tokens_gets_a_clear_error_and_no_other_answer(source, pool):
    first, second = source.made
    deltas = pool.generate(REQUEST)
    assert (await anext(deltas)).token_ids == (0,)
    first.end()
    with pytest.raises(ReplicaLostError, match="Ask again"):
        await anext(deltas)
    assert second.served == 0


async def test_one_that_ended_is_replaced_on_the_version_that_serves_now(source, pool):
    source.gate.clear()
    source.made[0].end()
    await until(lambda: len(source.made) == 3)
    assert pool.healthy
    assert [replica.serving for replica in pool.replicas] == [False, True]
    assert pool.replicas[0].problem == "its process has ended"
    await pool.swap(2, GOOD)  # while the new one still starts on version 1
    source.gate.set()
    await until(lambda: all(replica.serving for replica in pool.replicas))
    assert [replica.policy_version for replica in pool.replicas] == [2, 2]
    assert source.made[2].version == 2


async def test_one_that_serves_other_weights_is_never_admitted(source, pool):
    create = source.create

    async def wrong(number):
        replica = await create(number)
        replica.weights_off = 0.5
        return replica

    source.create = wrong
    source.made[0].end()
    await until(lambda: pool.replicas[0].problem is not None and "weights" in pool.replicas[0].problem)
    assert not pool.replicas[0].serving
    assert source.made[2].why.done(), "it was ended"
    assert await sample(pool) == [1, 1, 1]


async def test_a_swap_goes_one_by_one_and_adds_up(source, pool):
    report = await pool.swap(2, GOOD)
    assert source.paused_together == 1
    assert [replica.version for replica in source.made] == [2, 2]
    assert (report.policy_version, report.requests_in_flight, report.recomputed_tokens, report.served_digest) == (2, 2, 10, ServedDigest((2.0,)))
    assert report.pause_seconds == 0.01
    assert pool.policy_version == 2


@pytest.mark.parametrize("fault", ["refused", "other weights"])
async def test_a_swap_that_fails_on_the_second_leaves_both_on_the_old_version(source, pool, fault):
    first, second = source.made
    if fault == "refused":
        second.swap_error = PolicyStoreError("not on this machine")
    else:
        original = second.swap

        async def once(version, folder):
            second.weights_off = 0.5 if version == 2 else 0.0
            return await original(version, folder)

        second.swap = once
    with pytest.raises(PolicyStoreError if fault == "refused" else EngineError):
        await pool.swap(2, GOOD)
    assert [first.version, second.version, pool.policy_version] == [1, 1, 1]
    assert [replica.policy_version for replica in pool.replicas] == [1, 1]
    assert await pool.served_digest() == ServedDigest((1.0,))


async def test_one_that_cannot_go_back_is_replaced(source, pool):
    first, second = source.made
    second.swap_error = PolicyStoreError("no")
    original = first.swap

    async def only_forward(version, folder):
        if version == 1:
            raise EngineError("stuck")
        return await original(version, folder)

    first.swap = only_forward
    with pytest.raises(PolicyStoreError):
        await pool.swap(2, GOOD)
    await until(lambda: len(source.made) == 3 and pool.replicas[0].serving)
    assert await pool.served_digest() == ServedDigest((1.0,))


async def test_one_that_dies_in_a_swap_does_not_fail_it(source, pool):
    first, second = source.made
    swap = asyncio.create_task(pool.swap(2, GOOD))
    await until(lambda: first.paused)
    first.end()
    assert (await swap).policy_version == 2
    assert second.version == 2
    await until(lambda: all(replica.policy_version == 2 for replica in pool.replicas))


async def test_a_text_is_not_scored_by_a_version_that_is_not_the_pools(source, pool):
    source.made[0].hold.clear()
    scoring = asyncio.create_task(pool.score_text((1, 2, 3)))
    await asyncio.sleep(0.01)
    await pool.swap(2, GOOD)
    source.made[0].hold.set()
    with pytest.raises(EngineError, match="replaced"):
        await scoring
    assert len(await pool.score_text((1, 2, 3))) == 2


async def test_replicas_that_differ_are_told(source, pool):
    source.made[1].weights_off = 0.5
    with pytest.raises(EngineError, match="other weights"):
        await pool.served_digest()


async def test_with_none_left_it_says_so_at_once_and_recovers_by_itself(source, pool):
    source.gate.clear()
    for replica in list(source.made):
        replica.end()
    await until(lambda: not pool.healthy)
    assert pool.recovering
    with pytest.raises(EngineError, match="No engine replica"):
        await sample(pool)
    source.gate.set()
    await until(lambda: pool.healthy)


async def test_when_none_can_come_back_it_is_not_recovering(source, pool):
    source.start_error = PolicyStoreError("the version's files are damaged")
    for replica in list(source.made):
        replica.end()
    await until(lambda: not pool.healthy and not pool.recovering)
    await pool.stop()
    source.start_error = None
    await pool.start(0, None)
    assert pool.healthy
    assert (source.opened, source.closed) == (2, 1)


async def test_a_broken_source_is_not_recovering(source, pool):
    source.problem = "the cluster is gone"
    assert not pool.recovering


async def test_a_start_that_fails_everywhere_raises_why_and_leaves_nothing(source):
    source.start_error = PolicyStoreError("no such version")
    pool = EnginePool(source, 2, 2)
    with pytest.raises(PolicyStoreError, match="no such version"):
        await pool.start(1, GOOD)
    assert not pool.healthy
    assert source.closed == 1
    assert all(replica.why.done() for replica in source.made)


async def test_stop_ends_requests_in_flight_and_every_replica(source, pool):
    source.made[0].hold.clear()
    task = asyncio.create_task(sample(pool))
    await until(lambda: source.made[0].served == 1)
    await pool.stop()
    with pytest.raises(EngineError, match="stopped"):
        await task
    with pytest.raises(EngineError):
        await sample(pool)
    assert all(replica.why.done() for replica in source.made)
    with suppress(EngineError):
        await pool.swap(2, GOOD)
    assert source.closed == 1
