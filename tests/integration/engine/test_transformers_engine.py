"""What only the embedded engine has: faults inside the generation loop and inside the merge, and settings that cannot work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError, EngineError
from online_sao.inference.transformers_engine import TransformersEngine
from online_sao.models import adapter as adapter_module
from tests.integration.engine.engine_client import PROMPT, Client, difference, logprobs, until


@pytest.fixture
async def engine(model_path):
    engine = TransformersEngine(EngineSettings(threads=1, max_concurrent=2), model_path)
    await engine.start(0, None)
    yield engine
    await engine.stop()


async def test_a_dead_loop_tells_everyone_and_can_be_started_again(engine):
    client = Client(engine)
    tasks = [client.begin(max_tokens=1500) for _ in range(3)]
    await until(lambda: engine.load().waiting == 1 and all(sampled.token_ids for _, sampled in tasks[:2]))
    assert engine.healthy
    engine._serving.manager.model.forward = None
    results = await asyncio.wait_for(asyncio.gather(*(task for task, _ in tasks), return_exceptions=True), 10)
    assert [type(result) for result in results] == [EngineError] * 3
    assert not engine.healthy
    with pytest.raises(EngineError, match="ended"):
        await client.sample()
    with pytest.raises(EngineError):
        await engine.swap(1, None)
    await engine.stop()
    await engine.start(1, None)
    assert engine.healthy
    assert (await client.sample()).versions == [1] * 12


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("cannot allocate")])
async def test_a_merge_that_fails_midway_puts_the_old_weights_back(engine, reference, adapters, monkeypatch, error):
    client = Client(engine)
    await engine.swap(1, adapters[1])
    digest = await engine.served_digest()
    merged, calls = adapter_module.merged, 0

    def fails_at_the_fifth(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise error
        return merged(*arguments, **options)

    monkeypatch.setattr(adapter_module, "merged", fails_at_the_fifth)
    task, sampled = client.begin(max_tokens=20)
    await until(lambda: bool(sampled.token_ids))
    with pytest.raises((MemoryError, EngineError)):
        await engine.swap(2, adapters[2])
    assert calls > 5
    assert await engine.served_digest() == digest
    assert engine.policy_version == 1
    result = await task
    assert difference(result, logprobs(reference.logits(PROMPT, result.token_ids, adapters[1]), result.token_ids)) < 1e-4


async def test_a_swap_whose_caller_is_cancelled_ends_before_the_next_begins(engine, adapters, monkeypatch):
    swap_in_thread, running, most = engine._swap, 0, 0

    def watched(*arguments):
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.1)
        try:
            return swap_in_thread(*arguments)
        finally:
            running -= 1

    monkeypatch.setattr(engine, "_swap", watched)
    task, sampled = Client(engine).begin(max_tokens=40)
    await until(lambda: bool(sampled.token_ids))
    swap = asyncio.create_task(engine.swap(1, adapters[1]))
    await until(lambda: running == 1)
    swap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await swap
    report = await engine.swap(2, adapters[2])
    assert most == 1
    assert await engine.served_digest() == report.served_digest
    result = await task
    assert result.versions == sorted(result.versions)
    assert engine.policy_version == 2


async def test_nothing_of_a_finished_or_aborted_request_is_left(engine):
    client = Client(engine)
    await client.sample()
    task, sampled = client.begin(max_tokens=500)
    await until(lambda: bool(sampled.token_ids))
    task.cancel()
    await asyncio.wait({task})
    await client.sample()
    manager = engine._serving.manager
    assert engine._live == {}
    assert manager.output_router.result_handlers == {}
    assert manager.output_router.output_queue.empty()
    scheduler = manager.batch_processor.scheduler
    await until(lambda: not scheduler.active_requests and not scheduler.waiting_requests, 2.0)
    cache = manager.batch_processor.cache
    assert cache.compute_free_capacity() == 1.0


def test_a_cache_smaller_than_the_context_is_refused(model_path):
    with pytest.raises(ConfigurationError, match=r"engine\.kv_cache_tokens"):
        TransformersEngine(EngineSettings(max_context_tokens=2048, kv_cache_tokens=2048), model_path)


async def test_a_context_longer_than_the_models_is_refused(model_path):
    engine = TransformersEngine(EngineSettings(threads=1, max_context_tokens=8192), model_path)
    with pytest.raises(ConfigurationError, match="4096"):
        await engine.start(0, None)


PROGRAM = """
import asyncio, sys
from pathlib import Path
from online_sao.config import EngineSettings
from online_sao.inference.engine import EngineRequest
from online_sao.inference.transformers_engine import TransformersEngine
async def main():
    engine = TransformersEngine(EngineSettings(threads=1), Path(sys.argv[1]))
    await engine.start(0, None)
    await anext(engine.generate(EngineRequest("r", (1, 2, 3), 1000, 1.0, 1.0, ())))
asyncio.run(main())
print("ended")
"""


def test_a_process_that_forgets_to_stop_it_still_ends(model_path):
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(model_path)], capture_output=True, text=True, timeout=240, check=False)
    assert "ended" in result.stdout, result.stderr
