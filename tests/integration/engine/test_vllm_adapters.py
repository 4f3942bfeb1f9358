"""What only versions served beside each other have: requests that stay on theirs, slots that run out, versions asked for by number. Run with
--engine vllm-adapter."""

from __future__ import annotations

import asyncio
import shutil

import psutil
import pytest

from online_sao.benchmarks.random_adapter import write_random_adapter
from online_sao.errors import EngineError, OverloadedError, PolicyStoreError
from online_sao.inference.engine import EngineRequest, PinnedVersion
from online_sao.inference.vllm.publishing import AdapterPublishing
from online_sao.models.adapter import MergedView, read_adapter
from online_sao.models.fingerprint import fingerprint
from tests.integration.engine.engine_client import PROMPT, difference, logprobs, until
from tests.integration.engine.test_vllm_engine import CHANGED, EXACT, long_prompt


@pytest.fixture(autouse=True)
def only_with_adapters(pytestconfig):
    if pytestconfig.getoption("--engine") != "vllm-adapter":
        pytest.skip("of vLLM with adapters alone: --engine vllm-adapter")


def pin(version, adapters, digest=()):
    return PinnedVersion(version, adapters.get(version), digest)


async def test_requests_end_on_the_version_they_began_with_and_new_ones_begin_on_the_new(start, reference, adapters):
    """Four versions in one batch, the base among them, all behind one long prompt: no logprob and no cached key is of another version. Parked at each
    swap, so that none ends before the last has begun."""
    client = await start()
    core = client.engine._core
    running = []
    for version in range(4):
        if version:
            await core.pause(clear_cache=False)
            report = await client.engine.swap(version, adapters[version])
            await core.resume()
            assert (report.requests_in_flight, report.recomputed_tokens) == (2 * version, 0)
        begun = [client.begin(prompt=long_prompt(10 * version + i), max_tokens=200) for i in range(2)]
        await until(lambda begun=begun: all(sampled.token_ids for _, sampled in begun))
        running += [(version, 10 * version + i, task) for i, (task, _) in enumerate(begun)]
    for version, number, task in running:
        sampled = await task
        assert sampled.versions == [version] * 200
        expected = logprobs(reference.logits(long_prompt(number), sampled.token_ids, adapters.get(version)), sampled.token_ids)
        assert difference(sampled, expected) < EXACT
        other = logprobs(reference.logits(long_prompt(number), sampled.token_ids, adapters[4]), sampled.token_ids)
        assert difference(sampled, other) > CHANGED


async def test_with_every_slot_in_use_the_base_beside_them_is_still_exact(start, reference, adapters):
    client = await start(adapter_slots=2)
    running = []
    for version in (1, 2):
        await client.engine.swap(version, adapters[version])
        task, sampled = client.begin(max_tokens=100)
        await until(lambda sampled=sampled: bool(sampled.token_ids))
        running.append(task)
    base = await client.sample(pinned=pin(0, adapters), max_tokens=40)
    assert base.versions == [0] * 40
    assert difference(base, logprobs(reference.logits(PROMPT, base.token_ids), base.token_ids)) < EXACT
    assert not any(task.done() for task in running)
    await asyncio.gather(*running)


async def test_the_served_digest_is_that_of_the_merged_weights(start, reference, adapters):
    client = await start()
    for version in (1, 2, 1, 3, 4):
        report = await client.engine.swap(version, adapters[version])
        expected = fingerprint(MergedView(reference.weights.pristine, read_adapter(adapters[version])))
        assert report.served_digest.matches(expected)
        assert not report.served_digest.matches(fingerprint(reference.weights.pristine))


async def test_a_new_version_waits_for_a_slot_and_a_stop_ends_the_wait(start, adapters):
    client = await start(adapter_slots=2)
    engine = client.engine
    first_tasks = []
    for version, tokens in ((1, 60), (2, 1500)):
        await engine.swap(version, adapters[version])
        task, sampled = client.begin(max_tokens=tokens)
        await until(lambda sampled=sampled: bool(sampled.token_ids))
        first_tasks.append(task)
    swapping = asyncio.create_task(engine.swap(3, adapters[3]))
    await asyncio.sleep(0.05)
    assert not swapping.done()
    assert engine.policy_version == 2
    await first_tasks[0]
    assert (await asyncio.wait_for(swapping, 20)).policy_version == 3
    third, sampled = client.begin(max_tokens=1500)
    await until(lambda: bool(sampled.token_ids))
    with pytest.raises(OverloadedError, match="places for versions"):
        await client.sample(pinned=pin(1, adapters))
    swapping = asyncio.create_task(engine.swap(4, adapters[4]))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(engine.stop(), 10)
    for task in (swapping, third, first_tasks[1]):
        with pytest.raises(EngineError):
            await task


async def test_a_pinned_version_is_loaded_checked_and_let_go(start, reference, adapters):
    client = await start()
    await client.engine.swap(4, adapters[4])
    for version in (1, 2, 3, 0, 1, 4):
        digest = fingerprint(MergedView(reference.weights.pristine, read_adapter(adapters[version]))) if version else ()
        sampled = await client.sample(pinned=pin(version, adapters, digest))
        assert sampled.versions == [version] * 12
        assert difference(sampled, logprobs(reference.logits(PROMPT, sampled.token_ids, adapters.get(version)), sampled.token_ids)) < EXACT
    assert client.engine.policy_version == 4
    assert (await client.sample()).versions == [4] * 12


async def test_a_pinned_version_of_other_weights_is_not_served(start, reference, adapters, tmp_path):
    client = await start(4, adapters[4])
    digest = fingerprint(MergedView(reference.weights.pristine, read_adapter(adapters[1])))
    swapped = PinnedVersion(1, shutil.copytree(adapters[2], tmp_path / "v1"), digest)
    for _ in range(2):
        with pytest.raises(PolicyStoreError, match="other weights"):
            await client.sample(pinned=swapped)
    missing = PinnedVersion(7, tmp_path / "missing", ())
    with pytest.raises(PolicyStoreError, match="cannot load"):
        await client.sample(pinned=missing)
    assert (await client.sample()).versions == [4] * 12


async def test_a_version_in_use_is_never_unloaded(start, adapters, reference):
    """While swaps come and go over three slots, one request goes on with what it began with. Parked meanwhile, so that it cannot end before them."""
    client = await start(adapter_slots=3)
    await client.engine.swap(1, adapters[1])
    task, sampled = client.begin(max_tokens=300)
    await until(lambda: bool(sampled.token_ids))
    await client.engine._core.pause(clear_cache=False)
    for version in (2, 3, 4):
        await asyncio.wait_for(client.engine.swap(version, adapters[version]), 60)
    assert sorted(version for version, _ in client.engine._publishing._loaded) == [1, 3, 4], "2, which nobody used, had to go"
    await client.engine._core.resume()
    assert (await client.sample(max_tokens=2)).versions == [4, 4]
    result = await task
    assert result.versions == [1] * 300
    assert difference(result, logprobs(reference.logits(PROMPT, result.token_ids, adapters[1]), result.token_ids)) < EXACT


async def test_an_adapter_of_a_higher_rank_is_refused(start, model_path, adapters, tmp_path):
    client = await start(4, adapters[4])
    with pytest.raises(PolicyStoreError, match="rank 8"):
        await client.engine.swap(5, write_random_adapter(model_path, tmp_path / "r8", seed=1, rank=8))
    assert client.engine.policy_version == 4


async def test_memory_stays_flat_over_a_hundred_versions(start, model_path, adapters, tmp_path):
    client = await start()

    def resident() -> int:
        core = [child for child in psutil.Process().children(recursive=True) if child.name().startswith("VLLM")]
        return sum(process.memory_info().rss for process in [psutil.Process(), *core])

    async def swap(version):
        await client.engine.swap(version, adapters[version % 4 + 1])
        await client.sample(max_tokens=1)

    for version in range(1, 31):
        await swap(version)
    before = resident()
    for version in range(31, 131):
        await swap(version)
    assert resident() - before < 50e6


async def test_leaving_lets_the_version_go(start, adapters):
    client = await start(adapter_slots=2)
    await client.engine.swap(1, adapters[1])
    deltas = client.engine.generate(EngineRequest("leaves", PROMPT, 1500, 1.0, 1.0, ()))
    await anext(deltas)
    await client.engine.swap(2, adapters[2])
    await deltas.aclose()
    await asyncio.wait_for(client.engine.swap(3, adapters[3]), 10)
    publishing = client.engine._publishing
    assert isinstance(publishing, AdapterPublishing)
    assert sorted(version for version, _ in publishing._loaded) == [2, 3]
