"""What one request may ask of an engine beyond the distribution: a seed, and the likeliest tokens. Any engine must pass all of it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import torch

from online_sao.errors import InvalidRequestError
from online_sao.inference.continuous_batching import uniform
from tests.integration.engine.engine_client import PROMPT, difference, logprobs, until

EXACT = 1e-4


async def test_the_same_seed_gives_the_same_tokens_with_exact_logprobs(start, reference):
    client = await start()
    first = await client.sample(seed=7, max_tokens=24)
    again = await client.sample(seed=7, max_tokens=24)
    other, unseeded = await client.sample(seed=8, max_tokens=24), await client.sample(max_tokens=24)
    assert first.token_ids == again.token_ids
    assert len({tuple(sampled.token_ids) for sampled in (first, other, unseeded)}) == 3
    assert difference(first, logprobs(reference.logits(PROMPT, first.token_ids), first.token_ids)) < EXACT


async def test_a_seed_cuts_where_top_p_and_temperature_say(start, reference):
    client = await start()
    sampled = await client.sample(seed=3, temperature=0.7, top_p=0.5, max_tokens=24)
    assert difference(sampled, logprobs(reference.logits(PROMPT, sampled.token_ids), sampled.token_ids, 0.7, 0.5)) < EXACT
    assert (await client.sample(seed=3, temperature=0.0)).token_ids == (await client.sample(temperature=0.0)).token_ids


async def test_one_seed_draws_other_numbers_for_another_prompt(start):
    """Else a client that sends the same seed with every question would sample all its answers alike."""
    client = await start()
    answers = [await client.sample(prompt=(*PROMPT, 100 + i), seed=1, max_tokens=1, temperature=2.0) for i in range(8)]
    assert len({answer.token_ids[0] for answer in answers}) > 4


async def test_other_requests_stay_random_beside_a_seeded_one(start):
    client = await start()
    seeded, *rest = await asyncio.gather(client.sample(seed=1), *(client.sample() for _ in range(6)))
    assert len({tuple(sampled.token_ids) for sampled in [seeded, *rest]}) == 7


async def test_seeded_draws_come_from_the_distribution(start, reference):
    """The first token over 400 seeds, in three classes of the model's own probabilities: chi-squared far below its 0.1 % bound of 13.8."""
    client = await start()
    results = await asyncio.gather(*(client.sample(seed=seed, max_tokens=1, temperature=0.5) for seed in range(400)))
    probabilities = torch.softmax(reference.logits(PROMPT, [0])[0] / 0.5, -1)
    order = probabilities.argsort(descending=True)
    edges = torch.searchsorted(probabilities[order].cumsum(0), torch.tensor([0.33, 0.66])).tolist()
    rank = {token: place for place, token in enumerate(order.tolist())}
    counts = Counter(sum(rank[sampled.token_ids[0]] > edge for edge in edges) for sampled in results)
    mass = probabilities[order].cumsum(0)[edges].tolist()
    expected = [mass[0] * 400, (mass[1] - mass[0]) * 400, (1 - mass[1]) * 400]
    assert sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected) if e > 1) < 13.8


async def test_a_seed_survives_a_swap_that_computes_the_cache_again(start, adapters):
    """Its draws are counted by place, so nothing of it is lost or repeated: twice the same course of events, twice the same tokens."""
    client = await start(kv_policy="recompute")
    answers = []
    for _ in range(2):
        await client.engine.swap(0, None)
        task, sampled = client.begin(seed=5, max_tokens=60)
        await until(lambda sampled=sampled: len(sampled.token_ids) >= 3)
        await client.engine.swap(0, None)
        answers.append((await task).token_ids)
    assert answers[0] == answers[1]


def test_uniform_numbers_are_uniform():
    numbers = torch.tensor([uniform("key", i) for i in range(10_000)])
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert torch.histc(numbers, 10, 0, 1).sub(1000).abs().max() < 150
    assert uniform("a", 1) != uniform("a", 2) != uniform("b", 2)


async def test_the_likeliest_tokens_and_their_logprobs(start, reference):
    client = await start()
    asked, plain = await asyncio.gather(client.sample(top_logprobs=5, temperature=0.7), client.sample())
    assert plain.top_logprobs == []
    assert len(asked.top_logprobs) == len(asked.token_ids)
    expected = torch.log_softmax(reference.logits(PROMPT, asked.token_ids) / 0.7, -1)
    for place, top in enumerate(asked.top_logprobs):
        assert [token for token, _ in top] == expected[place].topk(5).indices.tolist()
        assert max(abs(logprob - float(expected[place, token])) for token, logprob in top) < EXACT
        chosen = dict(top).get(asked.token_ids[place])
        assert chosen is None or chosen == asked.logprobs[place]


async def test_what_top_p_removes_is_no_alternative(start):
    client = await start()
    sampled = await client.sample(top_logprobs=20, top_p=0.1, temperature=0.5)
    assert all(0 < len(top) < 20 for top in sampled.top_logprobs)


async def test_more_alternatives_than_the_engine_has_are_refused(start):
    client = await start()
    with pytest.raises(InvalidRequestError, match="top_logprobs"):
        await client.sample(top_logprobs=client.engine.max_top_logprobs + 1)
