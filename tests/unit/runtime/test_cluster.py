"""What is placed in a Ray cluster, over sessions and actors that do as they are told: clusters that go away, calls that never return, starts that
nobody waits for any more."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from online_sao.config import ClusterSettings, Settings
from online_sao.errors import ReplicaLostError
from online_sao.inference.engine import EngineRequest
from online_sao.runtime import backoff
from online_sao.runtime.cluster import adapter_store, placement, replicas, session
from online_sao.runtime.cluster.adapter_store import AdapterStore
from online_sao.runtime.cluster.host import Adapter, Fetched, Started
from online_sao.runtime.cluster.placement import RayLearner
from online_sao.runtime.cluster.replicas import RayReplica
from online_sao.runtime.cluster.session import Session

# Ray's own: it warns of what it will change.
pytestmark = pytest.mark.filterwarnings("default")


class Cluster(Session):
    """Joined and left without Ray, each as soon as ``gate`` is set. ``events``: what happened, in order."""

    def __init__(self, monkeypatch):
        super().__init__(ClusterSettings())
        self.events, self.gate, self.broken = [], threading.Event(), None
        self.gate.set()
        monkeypatch.setattr(session, "_shutdown", self._end)

    @property
    def problem(self):
        return super().problem or self.broken

    def _init(self):
        assert self.gate.wait(10)
        self.events.append("joined")
        self.broken = None
        return []

    def _end(self):
        assert self.gate.wait(10)
        self.events.append("left")


@pytest.fixture
async def cluster(monkeypatch):
    return Cluster(monkeypatch)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_session_that_is_given_up_while_it_begins_is_left_before_the_next_begins(cluster):
    cluster.gate.clear()
    opening = asyncio.create_task(cluster.open("a"))
    await asyncio.sleep(0.02)
    assert cluster.problem is not None, "it is not there yet"
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    again = asyncio.create_task(cluster.open("b"))
    await asyncio.sleep(0.02)
    cluster.gate.set()
    await asyncio.wait_for(again, 5)
    assert cluster.events == ["joined", "left", "joined"]
    assert (cluster.problem, cluster.generation) == (None, 2)


async def test_a_session_whose_end_is_given_up_is_left_whole_before_the_next_begins(cluster):
    await cluster.open("a")
    cluster.gate.clear()
    closing = asyncio.create_task(cluster.close("a"))
    await asyncio.sleep(0.02)
    closing.cancel()
    opening = asyncio.create_task(cluster.open("a"))
    await asyncio.sleep(0.05)
    assert cluster.events == ["joined"]
    cluster.gate.set()
    await asyncio.wait_for(opening, 5)
    assert cluster.events == ["joined", "left", "joined"]


class Method:
    def __init__(self, does):
        self.remote = does


class Actor:
    """Answers ``start`` and, unless it is ``silent``, ``fetch``; other calls never return. ``broken``: what every call raises before it is on its
    way."""

    def __init__(self):
        self.broken, self.silent = None, False

    def __getattr__(self, name):
        return Method(lambda *arguments: self._call(name))

    def _call(self, name):
        if self.broken is not None:
            raise self.broken
        return self._answer(name)

    async def _answer(self, name):
        if name == "start":
            return Started("somewhere", 20, 1e-3, True)
        if name == "fetch" and not self.silent:
            await asyncio.sleep(0.01)
            return Fetched((), None)
        return await asyncio.Event().wait()


@pytest.fixture
async def actor():
    return Actor()


@pytest.fixture
async def replica(cluster, actor):
    await cluster.open("test")
    replica = RayReplica(actor, 0, cluster, cluster.generation, AdapterStore(cluster), ClusterSettings())
    yield replica
    await replica.stop()


@pytest.mark.parametrize("loss", ["broken", "joined anew"])
async def test_calls_that_never_return_end_with_the_cluster(cluster, replica, actor, loss):
    await replica.start(0, None)
    actor.silent = loss == "joined anew"
    calls = [asyncio.create_task(call) for call in (replica.served_digest(), replica.score_text((1, 2)), replica.swap(1, None))]
    await asyncio.sleep(0.02)
    cluster.broken = "a process of the local Ray cluster has ended"
    if loss == "joined anew":
        await cluster.open("another user")
        assert cluster.problem is None
        with pytest.raises(ReplicaLostError, match="was left"):
            await replica.score_text((1, 2))
    async with asyncio.timeout(5):
        assert await replica.ended()
        for call in calls:
            with pytest.raises(ReplicaLostError):
                await call


async def test_a_start_that_never_returns_ends_with_the_cluster(cluster, replica, actor, monkeypatch):
    monkeypatch.setattr(replicas, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(actor, "_answer", lambda name: asyncio.Event().wait())
    starting = asyncio.create_task(replica.start(0, None))
    await asyncio.sleep(0.05)
    assert not starting.done()
    cluster.broken = "a process of the local Ray cluster has ended"
    with pytest.raises(ReplicaLostError, match="local Ray cluster"):
        await asyncio.wait_for(starting, 5)


@pytest.mark.parametrize("call", ["digest", "generate"])
async def test_one_that_ray_takes_no_calls_for_is_lost(replica, actor, call):
    await replica.start(0, None)
    actor.broken = RuntimeError("Ray has not been started")
    deltas = replica.generate(EngineRequest("r", (1,), 3, 1.0, 1.0, ()))
    with pytest.raises(ReplicaLostError, match="cannot be reached"):
        await (replica.served_digest() if call == "digest" else anext(deltas))
    assert await asyncio.wait_for(replica.ended(), 5)


async def test_files_that_could_not_be_stored_are_stored_the_next_time_and_anew_in_another_cluster(cluster, monkeypatch, tmp_path):
    stored, errors = [], [OSError("no room")]

    def put(adapter):
        if errors:
            raise errors.pop()
        stored.append(adapter.folder)
        return len(stored)

    monkeypatch.setattr(adapter_store, "_put", put)
    await cluster.open("test")
    store, adapter = AdapterStore(cluster), Adapter(Path("v1"), {})
    with pytest.raises(OSError, match="no room"):
        await store.put(adapter)
    assert [await store.put(adapter), await store.put(adapter)] == [1, 1]
    cluster.broken = "gone"
    await cluster.open("test")
    assert await store.put(adapter) == 2


class Learner(RayLearner):
    """Its actors answer what ``answers`` says, one after the other, or never."""

    def __init__(self, cluster):
        super().__init__(Settings(), cluster)
        self.answers, self.placed, self.asked = [], 0, 0

    def _place(self):
        self.placed += 1
        self._running = True
        self._actor = SimpleNamespace(report=Method(self._answer), stop=Method(lambda: None))

    async def _answer(self):
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def learner(cluster, monkeypatch):
    monkeypatch.setattr(backoff, "FIRST_DELAY_SECONDS", 0.2)
    monkeypatch.setattr(placement, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(placement, "TERMINATE_SECONDS", 0.05)
    learner = Learner(cluster)
    yield learner
    await learner.stop()


async def test_an_actor_that_dies_again_and_again_is_placed_later_and_later_and_its_causes_are_told(learner, caplog):
    from ray.exceptions import ActorDiedError, RuntimeEnvSetupError

    learner.answers = [ActorDiedError(), RuntimeEnvSetupError("the second line\nsays why")]
    loop, starts = asyncio.get_running_loop(), []
    while len(starts) < 3:
        before, at = learner.placed, loop.time()
        await learner.poll()
        if learner.placed > before:
            starts.append((at, loop.time()))
        await asyncio.sleep(0.005)
    # From before one to after the next: how long a placement takes on a busy machine is no part of it.
    assert starts[1][1] - starts[0][0] >= 0.2
    assert starts[2][1] - starts[1][0] >= 0.4
    assert "says why" in caplog.text


async def test_an_actor_that_cannot_be_reached_is_told_of_once_and_kept(learner, caplog):
    from ray.exceptions import ActorUnavailableError

    learner.answers = [ActorUnavailableError("its node is busy", None) for _ in range(3)]
    for _ in range(3):
        await learner.poll()
    assert caplog.text.count("its node is busy") == 1
    assert (learner.placed, learner.process().running) == (1, False)


async def test_an_actor_that_does_not_answer_is_asked_once_and_forgotten_with_its_cluster(learner, cluster):
    for _ in range(3):
        await learner.poll()
    assert (learner.placed, learner.asked) == (1, 1)
    cluster.broken = "gone"
    await cluster.open("another user")
    await learner.poll()
    assert (learner.placed, learner.asked) == (2, 2), "the cluster is another"


async def test_one_that_cannot_work_is_ended_and_placed_again_when_something_has_changed(learner):
    learner.answers = [{"pid": 1, "gave_up": "no model", "ended": False}]
    for _ in range(2):
        await learner.poll()
    assert (learner.gave_up, learner.placed, learner.process().running) == (True, 1, False)
    learner.retry()
    await learner.poll()
    assert (learner.gave_up, learner.placed) == (False, 2)
