"""The engine contract, on a tiny model: any engine must pass all of it."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from online_sao.errors import ContextLengthError, EngineError, InvalidRequestError, PolicyStoreError
from online_sao.inference.engine import EngineLoad, EngineRequest
from tests.integration.engine.engine_client import PROMPT, Sampled, difference, logprobs, until

EXACT = 1e-4
"""fp32 logprobs of two implementations; the requirement is 1e-3 on average."""
CHANGED = 1e-2
"""Two versions' logprobs of the same tokens differ by more than this somewhere."""


def prompt(number):
    return (*PROMPT, 100 + number)


async def test_sixteen_at_once_each_with_its_own_distribution(start, reference):
    client = await start()
    kinds = [(0.0, 1.0), (0.7, 1.0), (1.0, 1.0), (1.3, 1.0), (1.0, 0.9), (0.7, 0.5), (2.0, 0.95), (1, 1)]
    cases = [(*kinds[i % len(kinds)], i) for i in range(16)]
    results = await asyncio.gather(*(client.sample(prompt=prompt(i), temperature=t, top_p=p) for t, p, i in cases))
    for (temperature, top_p, i), sampled in zip(cases, results, strict=True):
        assert len(sampled.token_ids) == 12
        assert sampled.versions == [0] * 12
        expected = logprobs(reference.logits(prompt(i), sampled.token_ids), sampled.token_ids, temperature, top_p)
        assert difference(sampled, expected) < EXACT, f"temperature {temperature}, top_p {top_p}"


async def test_greedy_is_the_argmax_and_repeats(start, reference):
    client = await start()
    first, second, _ = await asyncio.gather(client.sample(temperature=0.0), client.sample(temperature=0.0), client.sample(temperature=1.5))
    assert first.token_ids == second.token_ids == reference.logits(PROMPT, first.token_ids).argmax(-1).tolist()


async def test_sampling_is_random(start):
    client = await start()
    first, second = await asyncio.gather(client.sample(), client.sample())
    assert first.token_ids != second.token_ids


async def test_more_than_fit_wait_their_turn(start):
    client = await start(max_concurrent=4)
    tasks = [client.begin(prompt=prompt(i), max_tokens=60) for i in range(10 * client.engines)]
    await until(lambda: any(sampled.token_ids for _, sampled in tasks))
    assert client.engine.load() == EngineLoad(running=4 * client.engines, waiting=6 * client.engines)
    await asyncio.gather(*(task for task, _ in tasks))
    assert all(len(sampled.token_ids) == 60 for _, sampled in tasks)
    assert client.engine.load() == EngineLoad(running=0, waiting=0)


async def test_a_full_cache_makes_requests_wait_and_fails_none(start):
    """Three times more keys and values asked for than there is room for."""
    client = await start(max_context_tokens=112, kv_cache_tokens=128)
    results = await asyncio.gather(*(client.sample(prompt=prompt(i), max_tokens=30) for i in range(9)))
    assert all(len(sampled.token_ids) == 30 for sampled in results)


async def test_a_long_prompt_is_processed_in_parts(start, reference):
    client = await start(max_batch_tokens=32)
    long = tuple(range(200, 300))
    short, sampled = await asyncio.gather(client.sample(max_tokens=20), client.sample(prompt=long))
    assert len(short.token_ids) == 20
    assert difference(sampled, logprobs(reference.logits(long, sampled.token_ids), sampled.token_ids)) < EXACT


async def test_the_token_limit_ends_it_with_length(start):
    client = await start()
    sampled = await client.sample(max_tokens=1)
    assert (len(sampled.token_ids), sampled.finish_reason) == (1, "length")


async def test_the_context_ends_it_with_length(start):
    client = await start(max_context_tokens=len(PROMPT) + 5)
    sampled = await client.sample(max_tokens=50)
    assert (len(sampled.token_ids), sampled.finish_reason) == (5, "length")


async def test_the_end_of_turn_token_is_the_last_token(start):
    client = await start()
    free = await client.sample(temperature=0.0)
    position = next(i for i in range(3, 12) if free.token_ids[i] not in free.token_ids[:i])
    ended = await client.sample(temperature=0.0, eos=(49151, free.token_ids[position]))
    assert ended.token_ids == free.token_ids[: position + 1]
    assert ended.finish_reason == "stop"
    assert len(ended.logprobs) == position + 1


async def test_requests_that_cannot_be_sampled_hurt_nobody_else(start):
    client = await start()
    task, sampled = client.begin(max_tokens=400)
    await until(lambda: bool(sampled.token_ids))
    with pytest.raises(ContextLengthError):
        await client.sample(prompt=(5,) * 2048)
    for prompt_ids in ((), (5, 49152), (5, -1)):
        with pytest.raises(InvalidRequestError, match="prompt_ids"):
            await client.sample(prompt=prompt_ids)
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        await client.sample(max_tokens=0)
    for temperature in (1e-9, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidRequestError, match="temperature"):
            await client.sample(temperature=temperature)
    for top_p in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidRequestError, match="top_p"):
            await client.sample(top_p=top_p)
    assert not task.done()
    assert len((await task).token_ids) == 400


@pytest.mark.parametrize("how", ["cancel", "aclose"])
async def test_leaving_frees_the_slot_within_a_second(start, how):
    client = await start(max_concurrent=2)
    others = [client.begin(max_tokens=1500) for _ in range(2 * (client.engines - 1))]
    stays, staying = client.begin(max_tokens=400)
    if how == "cancel":
        leaves, leaving = client.begin(max_tokens=1500)
        await until(lambda: bool(leaving.token_ids))
    else:
        deltas = client.engine.generate(EngineRequest("leaves", PROMPT, 1500, 1.0, 1.0, ()))
        await anext(deltas)
    waits, waiting = client.begin(max_tokens=3)
    await until(lambda: client.engine.load().waiting == 1 and bool(staying.token_ids))

    left_at = time.monotonic()
    if how == "cancel":
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
    else:
        await deltas.aclose()
    await until(lambda: bool(waiting.token_ids))
    assert time.monotonic() - left_at < 1.0
    assert len((await waits).token_ids) == 3
    assert len((await stays).token_ids) == 400
    for other, _ in others:
        other.cancel()
    await asyncio.gather(*(other for other, _ in others), return_exceptions=True)
    assert client.engine.load() == EngineLoad(0, 0)


async def test_what_the_service_asks_of_itself_takes_no_users_place(start):
    client = await start(max_concurrent=1)
    inside = [client.begin(max_tokens=400) for _ in range(client.engines)]
    await until(lambda: all(sampled.token_ids for _, sampled in inside))
    waits, waiting = client.begin(max_tokens=3)
    await until(lambda: client.engine.load().waiting == 1)
    own = [await client.sample(max_tokens=3, background=True), await client.sample(max_tokens=3, background=True)]
    assert [len(sampled.token_ids) for sampled in own] == [3, 3]
    assert client.engine.load() == EngineLoad(running=client.engines, waiting=1)
    assert not waiting.token_ids
    for task, _ in inside:
        assert not task.done()
        task.cancel()
    assert len((await waits).token_ids) == 3


async def test_leaving_while_waiting_costs_nothing(start):
    client = await start(max_concurrent=1)
    inside = [client.begin(max_tokens=200) for _ in range(client.engines)]
    await until(lambda: all(sampled.token_ids for _, sampled in inside))
    waits, _ = client.begin()
    await until(lambda: client.engine.load().waiting == 1)
    waits.cancel()
    await asyncio.wait({waits})
    assert client.engine.load() == EngineLoad(running=client.engines, waiting=0)
    assert [len((await task).token_ids) for task, _ in inside] == [200] * client.engines


async def test_an_id_may_be_used_again_at_once(start):
    client = await start()
    task, sampled = client.begin(request_id="same", max_tokens=500)
    await until(lambda: bool(sampled.token_ids))
    task.cancel()
    again = await client.sample(request_id="same")
    assert len(again.token_ids) == 12


async def test_it_starts_on_a_published_version(start, reference, adapters):
    client = await start(3, adapters[3])
    assert client.engine.policy_version == 3
    sampled = await client.sample()
    assert sampled.versions == [3] * 12
    assert difference(sampled, logprobs(reference.logits(PROMPT, sampled.token_ids, adapters[3]), sampled.token_ids)) < EXACT


IN_FLIGHT_TOKENS = 240
"""Enough that a request still runs when a swap has gone through several engines one after the other, though a pool tells of its tokens ten times a
second only."""


async def swap_in_flight(client, adapter_dir, count=6, before=3):
    """``count`` requests, a swap to version 1 once each has sampled ``before`` tokens; (report, their samples)."""
    tasks = [client.begin(prompt=prompt(i), max_tokens=IN_FLIGHT_TOKENS) for i in range(count)]
    await until(lambda: all(len(sampled.token_ids) >= before for _, sampled in tasks))
    report = await client.engine.swap(1, adapter_dir)
    return report, await asyncio.gather(*(task for task, _ in tasks))


def boundary_of(sampled: Sampled) -> int:
    """The first token of version 1; checks that there is one boundary and both sides are there."""
    boundary = sampled.versions.index(1)
    assert 3 <= boundary < IN_FLIGHT_TOKENS
    assert sampled.versions == [0] * boundary + [1] * (IN_FLIGHT_TOKENS - boundary)
    return boundary


@pytest.mark.usefixtures("only_merged")
async def test_a_swap_that_keeps_caches_goes_on_with_the_old_keys(start, reference, adapters):
    client = await start(kv_policy="keep")
    report, results = await swap_in_flight(client, adapters[1])
    assert (report.policy_version, report.requests_in_flight, report.recomputed_tokens) == (1, 6, 0)
    for i, sampled in enumerate(results):
        boundary = boundary_of(sampled)
        old = logprobs(reference.logits(prompt(i), sampled.token_ids), sampled.token_ids)
        over = logprobs(reference.logits_over_swap(prompt(i), sampled.token_ids, boundary, adapters[1]), sampled.token_ids)
        assert difference(sampled, old, 0, boundary) < EXACT
        assert difference(sampled, old, boundary) > CHANGED
        assert difference(sampled, over) < EXACT, "the logprobs are not those of old keys and new weights"


@pytest.mark.usefixtures("only_merged")
async def test_a_swap_that_recomputes_caches_equals_single_version_passes(start, reference, adapters):
    client = await start(kv_policy="recompute")
    report, results = await swap_in_flight(client, adapters[1])
    boundaries = []
    for i, sampled in enumerate(results):
        boundary = boundary_of(sampled)
        boundaries.append(boundary)
        old = logprobs(reference.logits(prompt(i), sampled.token_ids), sampled.token_ids)
        new = logprobs(reference.logits(prompt(i), sampled.token_ids, adapters[1]), sampled.token_ids)
        assert difference(sampled, old, 0, boundary) < EXACT
        assert difference(sampled, old, boundary) > CHANGED
        assert difference(sampled, new, boundary) < EXACT
    assert report.requests_in_flight == 6
    assert report.recomputed_tokens == sum(len(prompt(0)) + boundary - 1 for boundary in boundaries)


@pytest.mark.usefixtures("only_merged")
async def test_a_request_recomputed_twice_keeps_all_its_tokens(start, reference, adapters):
    client = await start(kv_policy="recompute")
    task, sampled = client.begin(max_tokens=IN_FLIGHT_TOKENS)
    for version in (1, 2):
        seen = len(sampled.token_ids)
        await until(lambda seen=seen: len(sampled.token_ids) >= seen + 3)
        await client.engine.swap(version, adapters[version])
    result = await task
    assert len(result.token_ids) == IN_FLIGHT_TOKENS
    assert sorted(set(result.versions)) == [0, 1, 2]
    assert result.versions == sorted(result.versions)
    start_of_last = result.versions.index(2)
    assert difference(result, logprobs(reference.logits(PROMPT, result.token_ids, adapters[2]), result.token_ids), start_of_last) < EXACT


@pytest.mark.parametrize("kv_policy", ["keep", "recompute"])
async def test_fifty_swaps_under_eight_clients_fail_nobody(start, adapters, kv_policy):
    client = await start(kv_policy=kv_policy)
    expected = {0: await client.engine.served_digest()}
    done, stop, finished = [], False, 0

    async def chat(i):
        nonlocal finished
        while not stop:
            sampled = Sampled()
            done.append(sampled)
            await client.sample(prompt=prompt(i), max_tokens=10, into=sampled)
            finished += 1

    clients = [asyncio.create_task(chat(i)) for i in range(8)]
    in_flight = 0
    for swap in range(1, 51):
        version = swap % 5
        report = await client.engine.swap(swap, adapters.get(version))
        assert report.served_digest == await client.engine.served_digest() == expected.setdefault(version, report.served_digest)
        in_flight += report.requests_in_flight
    stop = True
    await asyncio.gather(*clients)

    assert len(set(expected.values())) == 5
    assert in_flight > 50 * 4
    assert finished == len(done) >= 8
    for sampled in done:
        assert len(sampled.token_ids) == 10
        assert sampled.versions == sorted(sampled.versions)
    assert client.engine.policy_version == 50


async def test_back_on_the_base_every_logprob_is_the_bases(start, reference, adapters):
    client = await start()
    digest = await client.engine.served_digest()
    await client.engine.swap(1, adapters[1])
    report = await client.engine.swap(2, None)
    assert report.served_digest == digest
    sampled = await client.sample()
    assert sampled.versions == [2] * 12
    assert difference(sampled, logprobs(reference.logits(PROMPT, sampled.token_ids), sampled.token_ids)) < EXACT


@pytest.mark.parametrize("damage", ["missing", "torn", "other model"])
async def test_a_bad_adapter_changes_nothing(start, reference, adapters, tmp_path, damage):
    bad = tmp_path / "bad"
    if damage != "missing":
        bad.mkdir()
        for file in adapters[2].iterdir():
            (bad / file.name).write_bytes(file.read_bytes())
        if damage == "torn":
            (bad / "adapter_model.safetensors").write_bytes((adapters[2] / "adapter_model.safetensors").read_bytes()[:-100])
        else:
            from safetensors.torch import save_file

            matrix = "base_model.model.model.layers.9.mlp.up_proj"
            save_file(
                {f"{matrix}.lora_A.weight": torch.ones(4, 64), f"{matrix}.lora_B.weight": torch.ones(128, 4)}, bad / "adapter_model.safetensors"
            )

    client = await start(1, adapters[1])
    digest = await client.engine.served_digest()
    task, sampled = client.begin(max_tokens=20)
    await until(lambda: bool(sampled.token_ids))
    with pytest.raises(PolicyStoreError):
        await client.engine.swap(2, bad)
    assert client.engine.policy_version == 1
    assert await client.engine.served_digest() == digest
    result = await task
    assert result.versions == [1] * 20
    assert difference(result, logprobs(reference.logits(PROMPT, result.token_ids, adapters[1]), result.token_ids)) < EXACT
    assert (await client.engine.swap(2, adapters[2])).policy_version == 2


async def test_weights_that_give_no_distribution_fail_their_requests_and_not_the_engine(start, model_path, tmp_path, changes_under_way):
    from tests.fakes.tiny_model import write_random_adapter

    poison = write_random_adapter(model_path, tmp_path / "poison", seed=9, size=1e30)
    client = await start()
    task, sampled = client.begin(max_tokens=500)
    await until(lambda: bool(sampled.token_ids))
    await client.engine.swap(1, poison)
    if changes_under_way:
        with pytest.raises(EngineError):
            await task
    with pytest.raises(EngineError):
        await client.sample(temperature=0.0)
    await client.engine.swap(2, None)
    assert (await client.sample()).versions == [2] * 12
    if not changes_under_way:
        assert (await task).versions == [0] * 500


async def test_stop_ends_requests_in_flight_within_seconds_and_it_starts_again(start, adapters):
    client = await start()
    task, sampled = client.begin(max_tokens=1500)
    await until(lambda: bool(sampled.token_ids))
    began = time.monotonic()
    await client.engine.stop()
    assert time.monotonic() - began < 5
    with pytest.raises(EngineError):
        await task
    with pytest.raises(EngineError):
        await client.sample()
    await client.engine.start(1, adapters[1])
    assert (await client.sample()).versions == [1] * 12


TEXT = tuple(300 + 7 * i % 900 for i in range(100))


async def test_a_text_scores_as_in_one_plain_forward(start, reference, adapters):
    client = await start(1, adapters[1])
    found = await client.engine.score_text(TEXT)
    assert len(found) == len(TEXT) - 1
    expected = logprobs(reference.logits(TEXT[:1], TEXT[1:], adapters[1]), TEXT[1:])
    assert float((torch.tensor(found) - expected).abs().max()) < EXACT
    assert await client.engine.score_text(TEXT[:1]) == []
    with pytest.raises(ContextLengthError):
        await client.engine.score_text((5,) * 5000)
    with pytest.raises(InvalidRequestError):
        await client.engine.score_text((5, 49152))


async def test_scoring_a_text_disturbs_nobody(start, reference, adapters):
    client = await start()
    tasks = [client.begin(prompt=prompt(i), max_tokens=60) for i in range(4)]
    await until(lambda: all(sampled.token_ids for _, sampled in tasks))
    found = await client.engine.score_text(TEXT)
    assert float((torch.tensor(found) - logprobs(reference.logits(TEXT[:1], TEXT[1:]), TEXT[1:])).abs().max()) < EXACT
    for i, (task, _) in enumerate(tasks):
        sampled = await task
        assert len(sampled.token_ids) == 60
        assert difference(sampled, logprobs(reference.logits(prompt(i), sampled.token_ids), sampled.token_ids)) < EXACT


@pytest.mark.usefixtures("only_merged")
async def test_a_text_is_never_scored_by_two_versions(start, adapters):
    client = await start()
    long = TEXT * 15
    scoring = asyncio.create_task(client.engine.score_text(long))
    await asyncio.sleep(0.01)
    assert not scoring.done()
    await client.engine.swap(1, adapters[1])
    with pytest.raises(EngineError, match="replaced"):
        await scoring
    assert len(await client.engine.score_text(long)) == len(long) - 1
