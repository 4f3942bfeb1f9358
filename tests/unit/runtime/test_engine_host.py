"""What a replica's process does with tokens and files, without Ray: what is sent at once, what together, and which files it trusts."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time

import pytest

from online_sao.config import EngineSettings, PolicySettings
from online_sao.errors import EngineError, InvalidRequestError, PolicyStoreError, ReplicaLostError
from online_sao.inference.engine import EngineRequest, SwapReport, TokenDelta
from online_sao.models.fingerprint import ServedDigest
from online_sao.publishing.policy_store import checksums
from online_sao.runtime.cluster import host as hosts
from online_sao.runtime.cluster.host import Adapter, AdapterAbsentError, EngineHost, HostSpec


class Engine:
    healthy = True
    max_top_logprobs = 20
    logprob_tolerance = 1e-3
    serves_pinned = True

    def __init__(self):
        self.tokens, self.swapped, self.closed = asyncio.Queue(), [], 0

    async def start(self, policy_version, adapter_dir):
        self.swapped.append(adapter_dir)

    async def generate(self, request):
        try:
            while True:
                item = await self.tokens.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            self.closed += 1

    async def swap(self, policy_version, adapter_dir):
        self.swapped.append(adapter_dir)
        return SwapReport(policy_version, 0.0, 0.0, 0, 0, ServedDigest(()))


def token(number, finish=None):
    return TokenDelta((number,), (-1.0,), 0, finish)


@pytest.fixture
async def engine():
    return Engine()


@pytest.fixture
async def host(engine, monkeypatch):
    host = EngineHost(HostSpec(EngineSettings(), PolicySettings()))
    monkeypatch.setattr(host, "_build", lambda: engine)
    await host.start(0, None, None)
    return host


async def test_the_first_token_is_sent_at_once_and_the_next_together(host, engine, monkeypatch):
    monkeypatch.setattr(hosts, "BATCH_SECONDS", 0.5)
    await host.begin(1, EngineRequest("r", (1,), 9, 1.0, 1.0, ()))
    started = time.monotonic()
    engine.tokens.put_nowait(token(1))
    assert (await host.fetch()).items == ((1, token(1)),)
    assert time.monotonic() - started < 0.4
    fetching = asyncio.create_task(host.fetch())
    for number in (2, 3, 4):
        engine.tokens.put_nowait(token(number))
        await asyncio.sleep(0.02)
    assert not fetching.done(), "a later token waits for others"
    assert [item.token_ids for _, item in (await fetching).items] == [(2,), (3,), (4,)]
    engine.tokens.put_nowait(token(5))
    engine.tokens.put_nowait(token(6, "length"))
    started = time.monotonic()
    assert [item.token_ids for _, item in (await host.fetch()).items] == [(5,), (6,)]
    assert time.monotonic() - started < 0.4, "an end does not wait"


async def test_nothing_to_send_is_a_sign_of_life(host, monkeypatch):
    monkeypatch.setattr(hosts, "POLL_SECONDS", 0.05)
    fetched = await host.fetch()
    assert (fetched.items, fetched.problem) == ((), None)


async def test_errors_are_sent_as_what_they_mean(host, engine):
    await host.begin(1, EngineRequest("r", (1,), 9, 1.0, 1.0, ()))
    engine.tokens.put_nowait(InvalidRequestError("top_p is 7", param="top_p"))
    ((_, error),) = (await host.fetch()).items
    assert isinstance(error, InvalidRequestError)
    await host.begin(2, EngineRequest("r", (1,), 9, 1.0, 1.0, ()))
    engine.tokens.put_nowait(EngineError("no distribution"))
    ((_, error),) = (await host.fetch()).items
    assert type(error) is EngineError, "the engine lives: another replica would not help"
    await host.begin(3, EngineRequest("r", (1,), 9, 1.0, 1.0, ()))
    engine.healthy = False
    engine.tokens.put_nowait(EngineError("the loop has ended"))
    fetched = await host.fetch()
    assert isinstance(fetched.items[0][1], ReplicaLostError)
    assert fetched.problem == "its engine has failed"


async def test_aborting_closes_the_engines_request(host, engine):
    await host.begin(1, EngineRequest("r", (1,), 9, 1.0, 1.0, ()))
    engine.tokens.put_nowait(token(1))
    await host.fetch()
    await host.abort(1)
    async with asyncio.timeout(5):
        while not engine.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await host.abort(1)


@pytest.fixture
def published(tmp_path):
    folder = tmp_path / "v000001"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "adapter_config.json").write_text("{}")
    return Adapter(folder, checksums(folder))


def content(adapter):
    return {name: (adapter.folder / name).read_bytes() for name in adapter.checksums}


async def test_a_shared_folder_is_read_where_it_is(host, engine, published):
    await host.swap(1, published, None)
    assert engine.swapped[-1] == published.folder


async def test_a_folder_that_is_absent_or_differs_is_asked_for_and_written_from_what_is_sent(host, engine, published, tmp_path):
    files = content(published)
    elsewhere = Adapter(tmp_path / "nowhere", published.checksums)
    with pytest.raises(AdapterAbsentError):
        await host.swap(1, elsewhere, None)
    (published.folder / "adapter_model.safetensors").write_bytes(b"of another version")
    with pytest.raises(AdapterAbsentError):
        await host.swap(1, published, None)
    versions = range(1, hosts.KEPT_VERSIONS + 2)
    for version in versions:
        await host.swap(version, elsewhere, files)
    received = engine.swapped[-len(versions) :]
    assert checksums(received[-1]) == published.checksums
    assert [folder.is_dir() for folder in received] == [False] + [True] * hosts.KEPT_VERSIONS
    await host.swap(versions[-1], elsewhere, None)
    assert engine.swapped[-1] == received[-1], "what was sent once need not be sent again"


async def test_what_was_sent_to_a_process_that_was_killed_is_removed_by_the_next(host, engine, published, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = Adapter(tmp_path / "nowhere", published.checksums)
    await host.swap(1, elsewhere, content(published))
    mine = engine.swapped[-1].parent
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    its = mine.with_name(mine.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
    shutil.copytree(mine, its)
    others = tmp_path / "online-sao-settings"
    others.mkdir()
    await host.start(0, None, None)
    assert (mine.is_dir(), its.exists(), others.is_dir()) == (True, False, True)


async def test_a_version_asked_for_is_placed_once(host, published, tmp_path):
    elsewhere = Adapter(tmp_path / "nowhere", published.checksums)
    with pytest.raises(AdapterAbsentError):
        await host.place(1, elsewhere, None)
    placed = await host.place(1, elsewhere, content(published))
    assert checksums(placed) == published.checksums
    assert await host.place(1, elsewhere, None) == placed
    assert await host.place(0, None, None) is None


async def test_files_that_arrive_damaged_are_refused(host, engine, published):
    before = list(engine.swapped)
    with pytest.raises(PolicyStoreError, match="arrived damaged"):
        await host.swap(1, published, {**content(published), "adapter_model.safetensors": b"torn"})
    assert engine.swapped == before
