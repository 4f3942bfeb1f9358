"""Adapters beside each other over a core that does as it is told: who leaves while one is loaded, and what is checked before it is served."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from online_sao.errors import OverloadedError, PolicyStoreError
from online_sao.inference.engine import PinnedVersion
from online_sao.inference.vllm import launch
from online_sao.inference.vllm.core import Core
from online_sao.inference.vllm.publishing import AdapterPublishing


class LLM:
    """Weights of a version have its number as their digest. ``loading`` and ``reading``: what loading an adapter, or its digest, waits for.
    ``read_error``: what the next reading raises."""

    errored = False

    def __init__(self):
        self.loaded, self.read, self.wrong = {}, [], set()
        self.loading, self.reading = asyncio.Event(), asyncio.Event()
        self.loading.set()
        self.reading.set()
        self.read_error = None

    async def add_lora(self, lora):
        await self.loading.wait()
        self.loaded[lora.lora_int_id] = lora.version
        return True

    async def remove_lora(self, number):
        return self.loaded.pop(number, None) is not None

    async def collective_rpc(self, name, args):
        await self.reading.wait()
        error, self.read_error = self.read_error, None
        if error is not None:
            raise error
        version = self.loaded[args[0]]
        self.read.append(version)
        return [((float(version + (0.5 if version in self.wrong else 0)),), 1e-6)]


@pytest.fixture
async def llm(monkeypatch):
    monkeypatch.setattr(launch, "lora_request", lambda number, version, folder: SimpleNamespace(lora_int_id=number, version=version))
    return LLM()


@pytest.fixture
async def publishing(llm):
    """Two slots, version 1 current."""
    publishing = AdapterPublishing(Core(launch.Started(llm, ())), 2)
    await publishing.start(1, Path("v1"))
    return publishing


def pin(version):
    return PinnedVersion(version, Path(f"v{version}"), (float(version),))


async def visit(publishing, pinned):
    async with publishing.enter(pinned) as entry:
        return entry.lora.version


async def settled(publishing):
    async with publishing._loading:
        pass
    await asyncio.sleep(0)


@pytest.mark.parametrize("wait_for", ["loading", "reading"])
async def test_who_leaves_while_a_version_is_loaded_leaves_no_adapter_that_is_unknown_or_unchecked(publishing, llm, wait_for):
    gate = getattr(llm, wait_for)
    gate.clear()
    leaving = asyncio.create_task(visit(publishing, pin(2)))
    await asyncio.sleep(0.01)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.set()
    await settled(publishing)
    assert llm.read == [2], "checked for whoever comes next"
    assert await visit(publishing, pin(2)) == 2
    assert await visit(publishing, pin(3)) == 3, "nobody is taken to be inside any more"
    assert sorted(llm.loaded.values()) == [1, 3]


async def test_who_leaves_while_a_version_of_other_weights_is_checked_lets_nobody_have_it(publishing, llm):
    llm.wrong.add(2)
    llm.reading.clear()
    leaving = asyncio.create_task(visit(publishing, pin(2)))
    await asyncio.sleep(0.01)
    leaving.cancel()
    llm.reading.set()
    await settled(publishing)
    with pytest.raises(PolicyStoreError, match="other weights"):
        await visit(publishing, pin(2))
    assert list(llm.loaded.values()) == [1]


async def test_a_version_whose_check_failed_is_loaded_and_checked_anew(publishing, llm):
    llm.read_error = RuntimeError("the worker could not read it")
    with pytest.raises(RuntimeError):
        await visit(publishing, pin(2))
    assert list(llm.loaded.values()) == [1]
    llm.wrong.add(2)
    with pytest.raises(PolicyStoreError, match="other weights"):
        await visit(publishing, pin(2))


async def test_a_version_that_was_served_by_a_swap_is_checked_when_it_is_asked_for(publishing, llm):
    llm.wrong.add(2)
    await publishing.swap(2, Path("v2"), recompute=False)
    await publishing.swap(1, Path("v1"), recompute=False)
    with pytest.raises(PolicyStoreError, match="other weights"):
        await visit(publishing, pin(2))


async def test_an_adapter_that_cannot_be_put_in_a_slot_is_not_left_behind(publishing, llm):
    async def half(lora):
        llm.loaded[lora.lora_int_id] = lora.version
        raise RuntimeError("no memory")

    llm.add_lora = half
    with pytest.raises(PolicyStoreError, match="no memory"):
        await visit(publishing, pin(2))
    assert list(llm.loaded.values()) == [1]


async def test_while_a_swap_waits_for_a_slot_versions_that_are_there_are_served_and_others_refused(publishing, llm):
    async with AsyncExitStack() as inside:
        await inside.enter_async_context(publishing.enter(None))
        await inside.enter_async_context(publishing.enter(pin(2)))
        swapping = asyncio.create_task(publishing.swap(3, Path("v3"), recompute=False))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(2):
            assert await visit(publishing, pin(2)) == 2
            with pytest.raises(OverloadedError, match="places for versions"):
                await visit(publishing, pin(4))
        assert not swapping.done()
    await asyncio.wait_for(swapping, 2)
    assert publishing.version == 3


async def test_a_slot_that_is_free_again_is_the_waiting_swaps(publishing, llm):
    async with publishing.enter(None):
        user = await AsyncExitStack().__aenter__()
        await user.enter_async_context(publishing.enter(pin(2)))
        swapping = asyncio.create_task(publishing.swap(3, Path("v3"), recompute=False))
        await asyncio.sleep(0.01)
        await user.aclose()
        with pytest.raises(OverloadedError):
            await visit(publishing, pin(4))
        await asyncio.wait_for(swapping, 2)
