"""Two engines as actors of a real Ray cluster on this machine: killed under load, swapped under load, and on machines that share no folder."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from online_sao.config import ClusterSettings, EngineSettings, PolicySettings
from online_sao.errors import EngineError, ReplicaLostError
from online_sao.inference.engine import SwapReport
from online_sao.inference.pool import EnginePool
from online_sao.runtime.cluster.host import HostSpec
from online_sao.runtime.cluster.replicas import RayReplica, RaySource
from online_sao.runtime.cluster.session import Session
from tests.fakes.tiny_model import tiny_model, write_random_adapter
from tests.integration.engine.engine_client import Client, Sampled

# Ray's own: it warns of what it will change.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("default")]

START_SECONDS = 300.0


async def until(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (what is waited for belongs to other processes)
            await asyncio.sleep(0.005)


def all_serve(pool: EnginePool) -> bool:
    return all(replica.serving for replica in pool.replicas)


def pid_of(pool: EnginePool, number: int) -> int:
    return int(pool.replicas[number].place.split()[1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[EnginePool]:
    cluster = ClusterSettings(replicas=2)
    spec = HostSpec(EngineSettings(threads=1, max_concurrent=8), PolicySettings(model=str(tiny_model()), lora_rank=4))
    pool = EnginePool(RaySource(Session(cluster), cluster, spec), 2, 8)
    await pool.start(0, None)
    yield pool
    await pool.stop()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {v: write_random_adapter(tiny_model(), tmp_path_factory.mktemp("adapters") / f"v{v}", seed=v) for v in (1, 2, 3)}


async def test_a_killed_replica_costs_only_the_answers_it_had_begun(pool: EnginePool, adapters: dict[int, Path]) -> None:
    """16 answers run and 8 wait; of those on the killed one, begun answers get an error within 2 s, waiting ones come from the other."""
    await until(lambda: all_serve(pool))
    await pool.swap(1, adapters[1])
    digest = await pool.served_digest()
    client = Client(pool)
    tasks = [client.begin(prompt=(1, 4093, 100 + i), max_tokens=400) for i in range(24)]
    await until(lambda: sum(bool(sampled.token_ids) for _, sampled in tasks) >= 16)
    killed_at = time.monotonic()
    begun = [bool(sampled.token_ids) for _, sampled in tasks]
    os.kill(pid_of(pool, 0), signal.SIGKILL)
    await until(lambda: not pool.replicas[0].serving, seconds=2.0)
    await asyncio.sleep(0)
    lost = [task for task, _ in tasks if task.done() and task.exception() is not None]
    assert time.monotonic() - killed_at < 2.0
    assert pool.healthy
    assert await Client(pool).sample(max_tokens=3), "the other goes on serving"

    results = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
    failed = [place for place, result in enumerate(results) if not isinstance(result, Sampled)]
    assert len(failed) == len(lost) == 8
    assert all(isinstance(results[place], ReplicaLostError) and "Ask again" in str(results[place]) for place in failed)
    assert all(begun[place] for place in failed), "one that had no token was not answered elsewhere"
    assert all(len(result.token_ids) == 400 for result in results if isinstance(result, Sampled))

    await until(lambda: all_serve(pool))
    assert [replica.policy_version for replica in pool.replicas] == [1, 1], "on the version that serves"
    assert await pool.served_digest() == digest, "of every replica"


async def test_swaps_under_eight_clients_fail_nobody(pool: EnginePool, adapters: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    await until(lambda: all_serve(pool))
    client, stop = Client(pool), False
    finished = 0
    swap, spans = RayReplica.swap, []

    async def timed(replica: RayReplica, *version: Any) -> SwapReport:
        began = time.monotonic()
        report = await swap(replica, *version)
        spans.append((began, time.monotonic()))
        return report

    monkeypatch.setattr(RayReplica, "swap", timed)

    async def chat(number: int) -> None:
        nonlocal finished
        while not stop:
            sampled = await client.sample(prompt=(1, 4093, 100 + number), max_tokens=12)
            assert sampled.versions == sorted(sampled.versions)
            finished += 1

    clients = [asyncio.create_task(chat(number)) for number in range(8)]
    for turn in range(12):
        version = 1 + turn % 3
        report = await pool.swap(10 + turn, adapters[version])
        assert report.served_digest == await pool.served_digest()
        assert {replica.policy_version for replica in pool.replicas} == {10 + turn}
    stop = True
    await asyncio.gather(*clients)
    assert finished >= 8
    assert len(spans) == 24
    assert all(began >= ended for (_, ended), (began, _) in pairwise(spans)), "two replicas were being swapped at once"


async def test_files_that_are_not_on_the_replicas_machine_are_sent(
    pool: EnginePool, adapters: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that means another folder in every process stands for machines that share none."""
    await until(lambda: all_serve(pool))
    expected = (await pool.swap(30, adapters[3])).served_digest
    await pool.swap(31, None)
    store = pool._source._store  # type: ignore[attr-defined]
    assert store._put is None, "so far every file was read where it is"
    monkeypatch.chdir(adapters[3].parent)
    report = await pool.swap(32, Path("/proc/self/cwd") / adapters[3].name)
    assert report.served_digest == expected == await pool.served_digest()
    assert store._put is not None


async def test_without_its_cluster_it_is_started_again_whole(pool: EnginePool) -> None:
    """Ray would end this process a minute after its head has gone."""
    await until(lambda: all_serve(pool))
    next(process for process in psutil.Process().children(recursive=True) if process.name() == "gcs_server").kill()
    await until(lambda: not pool.healthy and not pool.recovering, seconds=30)
    with pytest.raises(EngineError):
        await Client(pool).sample()
    await pool.stop()
    await pool.start(40, None)
    assert (await Client(pool).sample()).versions == [40] * 12
