"""Weights in bfloat16, as accelerators serve them: what of the fingerprint and the logprobs their rounding explains, and what it does not. Run with
--engine vllm or vllm-adapter."""

from __future__ import annotations

import asyncio

import pytest
import torch

from online_sao.inference.engine import FP32_LOGPROB_TOLERANCE
from online_sao.models.adapter import MergedView, read_adapter
from online_sao.models.fingerprint import TOLERANCE, fingerprint
from tests.integration.engine.engine_client import logprobs
from tests.integration.engine.test_engine_contract import prompt


@pytest.fixture(autouse=True)
def only_on_vllm(pytestconfig):
    if not pytestconfig.getoption("--engine").startswith("vllm"):
        pytest.skip("of the vLLM engine alone: --engine vllm or vllm-adapter")


async def test_a_version_is_told_from_another_within_the_rounding(start, reference, adapters):
    client = await start(dtype="bfloat16")
    engine = client.engine
    expected = {v: fingerprint(MergedView(reference.weights.pristine, read_adapter(adapters[v]))) for v in adapters}
    expected[0] = fingerprint(reference.weights.pristine)
    for version in (1, 2, 0, 3, 4):
        digest = (await engine.swap(version, adapters.get(version))).served_digest
        assert digest.tolerance > TOLERANCE or version == 0
        assert [other for other, values in expected.items() if digest.matches(values)] == [version]
        # The bound is of the rounding's own size: not so wide that it would not notice.
        errors = [abs(e - s) for e, s in zip(expected[version], digest.values, strict=True)]
        assert max(errors) > digest.tolerance / 100 or version == 0


async def test_its_logprobs_are_within_the_bound_it_states(start, reference, adapters):
    client = await start(1, adapters[1], dtype="bfloat16")
    assert client.engine.logprob_tolerance > FP32_LOGPROB_TOLERANCE
    results = await asyncio.gather(*(client.sample(prompt=prompt(i), max_tokens=32) for i in range(8)))
    right, wrong = [], []
    for i, sampled in enumerate(results):
        for found, adapter in ((right, adapters[1]), (wrong, adapters[2])):
            plain = logprobs(reference.logits(prompt(i), sampled.token_ids, adapter), sampled.token_ids)
            found.append(float((torch.tensor(sampled.logprobs) - plain).abs().mean()))
    # One sample in a few hundred reaches half of the bound; all eight together are far from that.
    assert max(right) < client.engine.logprob_tolerance
    assert 0 < sum(right) / len(right) < client.engine.logprob_tolerance / 2
    assert min(wrong) > max(right)
