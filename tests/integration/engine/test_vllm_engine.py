"""What only the vLLM engine has: a core in other processes, that can die, and a cache of prefixes. Run with --engine vllm."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import psutil
import pytest

from online_sao.errors import EngineError, PolicyStoreError
from online_sao.inference.vllm import core as core_module
from online_sao.inference.vllm.core import Core
from tests.integration.engine.engine_client import PROMPT, difference, logprobs, until

EXACT = 1e-4
CHANGED = 1e-2
LONG = tuple(range(300, 500))


@pytest.fixture(autouse=True)
def only_on_vllm(pytestconfig):
    if pytestconfig.getoption("--engine") != "vllm":
        pytest.skip("of the vLLM engine alone: --engine vllm")


def cores() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name().startswith("VLLM")]


def alive(process: psutil.Process) -> bool:
    """A zombie is not: it only waits for whoever inherited it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def long_prompt(number):
    return (*LONG, 1000 + number)


@pytest.mark.parametrize("kv_policy", ["keep", "recompute"])
async def test_right_after_a_swap_a_shared_long_prompt_is_computed_with_the_new_weights(start, reference, adapters, kv_policy):
    """The prefix is in vLLM's cache, computed by the version before; with nothing but new weights the answer would begin from its keys."""
    client = await start(kv_policy=kv_policy)
    for number in range(2):
        await client.sample(prompt=long_prompt(number))
    await client.engine.swap(1, adapters[1])
    for number in range(2, 4):
        sampled = await client.sample(prompt=long_prompt(number))
        after = logprobs(reference.logits(long_prompt(number), sampled.token_ids, adapters[1]), sampled.token_ids)
        assert difference(sampled, after) < EXACT
        assert difference(sampled, logprobs(reference.logits(long_prompt(number), sampled.token_ids), sampled.token_ids)) > CHANGED


async def test_back_on_a_version_its_old_prefixes_are_not_found_again(start, reference, adapters):
    """While a request ran over a swap, blocks of both versions were cached under the first one's salt."""
    client = await start(kv_policy="keep")
    task, sampled = client.begin(prompt=long_prompt(0), max_tokens=120)
    await until(lambda: len(sampled.token_ids) >= 40)
    await client.engine.swap(1, adapters[1])
    first = await task
    await client.engine.swap(0, None)
    again = (*long_prompt(0), *first.token_ids[:100])
    sampled = await client.sample(prompt=again)
    assert difference(sampled, logprobs(reference.logits(again, sampled.token_ids), sampled.token_ids)) < EXACT


async def test_a_killed_core_tells_everyone_within_two_seconds_and_it_starts_again(start, adapters):
    client = await start(max_concurrent=2)
    engine = client.engine
    tasks = [client.begin(max_tokens=1500) for _ in range(3)]
    await until(lambda: engine.load().waiting == 1 and all(sampled.token_ids for _, sampled in tasks[:2]))
    of_the_core = engine._core._started.processes
    core = next(process for process in of_the_core if process.name() == "VLLM::EngineCore")
    killed_at = time.monotonic()
    core.kill()
    results = await asyncio.wait_for(asyncio.gather(*(task for task, _ in tasks), return_exceptions=True), 10)
    assert time.monotonic() - killed_at < 2.0
    assert [type(result) for result in results] == [EngineError] * 3
    assert not engine.healthy
    with pytest.raises(EngineError):
        await engine.swap(1, None)
    await engine.stop()
    assert not [process for process in of_the_core if alive(process)]
    await engine.start(1, adapters[1])
    assert engine.healthy
    assert (await client.sample()).versions == [1] * 12


async def test_a_core_that_dies_amid_a_swap_does_not_hold_the_swap(start, adapters, monkeypatch):
    client = await start(max_concurrent=2)
    engine = client.engine
    put_in_place = Core.put_in_place

    async def dies(core, label, adapter_dir):
        for process in cores():
            if process.name() == "VLLM::EngineCore":
                process.kill()
        await put_in_place(core, label, adapter_dir)

    monkeypatch.setattr(Core, "put_in_place", dies)
    with pytest.raises(EngineError, match="ended"):
        await asyncio.wait_for(engine.swap(1, adapters[1]), 10)
    assert not engine.healthy
    assert engine.policy_version == 0
    await engine.stop()


async def test_a_core_that_does_not_answer_is_given_up(start, adapters, monkeypatch):
    client = await start(max_concurrent=2)
    engine = client.engine
    monkeypatch.setattr(core_module, "STEP_SECONDS", 1.0)
    task, sampled = client.begin(max_tokens=1500)
    await until(lambda: bool(sampled.token_ids))
    stopped = cores()
    for process in stopped:
        process.suspend()
    try:
        with pytest.raises(EngineError, match="did not answer"):
            await asyncio.wait_for(engine.swap(1, adapters[1]), 10)
        with pytest.raises(EngineError):
            await task
        assert not engine.healthy
    finally:
        for process in stopped:
            process.resume()
    await engine.stop()


@pytest.mark.parametrize("before", [0, 1])
async def test_weights_that_fail_amid_the_update_leave_the_old_ones(start, reference, adapters, tmp_path, monkeypatch, before):
    """The files go between the check and the worker's reading of them, when its layers are taken apart already."""
    client = await start(before, adapters.get(before))
    engine = client.engine
    digest = await engine.served_digest()
    task, sampled = client.begin(max_tokens=60)
    await until(lambda: bool(sampled.token_ids))

    async def looked_right(adapter_dir):
        pass

    monkeypatch.setattr(engine, "_check_adapter", looked_right)
    with pytest.raises(PolicyStoreError, match="could not be put in place"):
        await engine.swap(2, tmp_path / "gone")
    assert (engine.policy_version, await engine.served_digest()) == (before, digest)
    result = await task
    assert result.versions == [before] * 60
    assert difference(result, logprobs(reference.logits(PROMPT, result.token_ids, adapters.get(before)), result.token_ids)) < EXACT
    assert (await engine.swap(2, adapters[2])).policy_version == 2


async def test_memory_stays_flat_over_a_hundred_swaps(start, adapters):
    client = await start()

    def resident() -> int:
        return sum(process.memory_info().rss for process in [psutil.Process(), *cores()])

    for version in range(1, 21):
        await client.engine.swap(version, adapters[version % 4 + 1])
    before = resident()
    for version in range(21, 121):
        await client.engine.swap(version, adapters[version % 4 + 1])
    assert resident() - before < 50e6


PROGRAM = """
import asyncio, sys
from pathlib import Path
from online_sao.config import EngineSettings
from online_sao.inference.engine import EngineRequest
from online_sao.inference.vllm.engine import VLLMEngine
async def main():
    engine = VLLMEngine(EngineSettings(kind="vllm", threads=1), Path(sys.argv[1]), lora_rank=4)
    await engine.start(0, None)
    await anext(engine.generate(EngineRequest("r", (1, 2, 3), 1000, 1.0, 1.0, ())))
    print("serving", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
if __name__ == "__main__":
    asyncio.run(main())
    print("ended", flush=True)
"""


def said(output, word: str) -> None:
    """Waits for the line, past what vLLM has to say."""
    assert any(line.strip() == word for line in iter(output.readline, "")), f"it ended without a {word!r}"


@pytest.mark.parametrize("how", ["killed", "forgotten"])
def test_no_process_is_left_of_one_that_was(model_path, tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(model_path), "600" if how == "killed" else "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}) as process:
        assert process.stdout is not None
        said(process.stdout, "serving")
        children = psutil.Process(process.pid).children(recursive=True)
        assert any(child.name().startswith("VLLM") for child in children)
        if how == "killed":
            process.kill()
        else:
            said(process.stdout, "ended")
        process.wait(60)
    deadline = time.monotonic() + 20
    while (left := [child for child in children if alive(child)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    for child in left:
        child.kill()
    assert not left
