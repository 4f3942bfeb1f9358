"""The serving benchmark's arithmetic, by hand-computed bursts, and its load, on a server of tokens at known times."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI

from online_sao.benchmarks.load import Burst, Timing, burst, numbered
from online_sao.benchmarks.serving import summarise, vllm_serve
from online_sao.config import EngineSettings
from tests.fakes.tiny_model import tiny_model


def test_ratios_are_of_pairs_and_not_of_sums():
    slow = [Burst((Timing(0.2, 1.0, 9), Timing(0.4, 2.4, 11)), 2.0), Burst((Timing(0.2, 1.2, 21),), 2.0), Burst((Timing(0.3, 0.3, 1),), 1.0)]
    fast = [Burst((Timing(0.1, 0.5, 9), Timing(0.2, 1.2, 11)), 1.0), Burst((Timing(0.1, 0.6, 21),), 1.0), Burst((Timing(0.1, 0.3, 3),), 1.0)]
    slow[2] = Burst((Timing(0.3, 0.9, 3),), 1.0)
    (result,) = summarise([{"slow": slow, "fast": fast}], [2])
    assert result["users"] == 2
    assert result["ratios"]["throughput"] == {"median": 0.5, "low": 0.5, "high": 1.0}
    assert result["ratios"]["ttft_p50"]["median"] == 2.0
    assert result["ratios"]["per_token_p50"] == {"median": 2.0, "low": 2.0, "high": 3.0}
    figures = result["contestants"]["slow"]
    assert (figures["answers"], figures["throughput"], figures["ttft_p50"]) == (4, 10.0, 0.25)
    # (1.0 - 0.2) / 8, (2.4 - 0.4) / 10, (1.2 - 0.2) / 20 and (0.9 - 0.3) / 2
    assert figures["per_token_p50"] == pytest.approx(0.15)


def test_an_answer_of_one_token_has_no_time_per_token():
    assert Timing(0.3, 0.3, 1).per_token is None


def test_prompts_never_repeat():
    prompts = numbered(["a", "b"], 5, 1000)
    assert prompts == ["a (1000)", "b (1001)", "a (1002)", "b (1003)", "a (1004)"]
    assert not set(prompts) & set(numbered(["a", "b"], 5, 2000))
    assert numbered(["a", "b"], 2, 7, first=True) == ["(7) a", "(8) b"]


async def test_so_many_users_at_once_and_the_times_they_feel():
    app = FastAPI()
    inside: list[int] = [0, 0]

    @app.post("/v1/chat/completions")
    async def answer() -> StreamingResponse:
        async def stream():
            inside[0] += 1
            inside[1] = max(inside)
            for text in ("", "a", "b", "c"):
                await asyncio.sleep(0.1)
                yield _chunk([{"index": 0, "delta": {"content": text}, "finish_reason": None}], None)
            inside[0] -= 1
            yield _chunk([], {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4})
            yield "data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    told: list[str] = []

    async def answered(completion_id: str) -> None:
        told.append(completion_id)

    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        found = await burst(client, "m", ["p"] * 7, users=3, max_tokens=3, answered=answered)
    server.should_exit = True
    await serving
    assert inside == [0, 3]
    assert told == ["chatcmpl-1"] * 7
    assert [timing.tokens for timing in found.timings] == [3] * 7
    for timing in found.timings:
        assert 0.2 <= timing.first < timing.total
        assert timing.per_token == pytest.approx((timing.total - timing.first) / 2)
    assert found.seconds >= 1.2
    assert found.throughput == pytest.approx(21 / found.seconds)


def _chunk(choices: list[object], usage: object) -> str:
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, "usage": usage}
    return f"data: {json.dumps(body)}\n\n"


def test_the_plain_server_gets_the_engines_own_arguments(tmp_path: Path):
    program = vllm_serve(EngineSettings(max_concurrent=5, max_batch_tokens=64, max_context_tokens=128), tiny_model(), tmp_path)
    command = " ".join(program._command)
    for flag in ("--max-num-seqs 7", "--max-num-batched-tokens 64", "--max-model-len 129", "--dtype float32", "--enforce-eager", "--block-size 32"):
        assert flag in command
