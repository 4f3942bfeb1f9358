"""A start of vLLM that nobody waits for any more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from online_sao.config import EngineSettings
from online_sao.inference.vllm import launch
from online_sao.inference.vllm.engine import VLLMEngine
from tests.fakes.tiny_model import tiny_model


async def test_a_start_that_was_given_up_holds_nothing_back_and_its_core_is_ended(monkeypatch):
    up, begun, stopped = threading.Event(), threading.Event(), threading.Event()
    started = launch.Started(None, ())

    def start(*_):
        begun.set()
        assert threading.current_thread().daemon, "who ends this process does not wait for it"
        up.wait(10)
        return started

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(launch, "stop", lambda ended, _seconds: stopped.set() if ended is started else None)
    engine = VLLMEngine(EngineSettings(kind="vllm", publish="weights"), tiny_model(), lora_rank=4)
    starting = asyncio.create_task(engine.start(0, None))
    await asyncio.to_thread(begun.wait, 5)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.wait_for(engine.stop(), 1)
    assert not stopped.is_set()
    up.set()
    assert await asyncio.to_thread(stopped.wait, 5)
