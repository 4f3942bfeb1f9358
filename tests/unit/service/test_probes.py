"""What is sampled when, with an engine whose versions change under it; and the measures of an evaluation by hand."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time

import pytest

from online_sao.config import EvaluationSettings
from online_sao.errors import EngineError
from online_sao.inference.engine import EngineLoad, EngineRequest, TokenDelta
from online_sao.service import probes
from online_sao.service.evaluation_material import CHECK_PROMPTS, PROMPTS, TEXT
from online_sao.service.evaluations import EvaluationService, distinct_2, perplexity
from online_sao.service.probes import Prober
from online_sao.storage.repositories import probes as probe_rows


class Renderer:
    """One token a character."""

    eos_token_ids = (0,)

    def render(self, messages):
        return tuple(map(ord, messages[0]["content"]))

    def encode_text(self, text):
        return tuple(map(ord, text))

    def decode(self, token_ids):
        return " ".join(f"word{token}" for token in token_ids)


class Engine:
    """Serves ``policy_version``; answers with three tokens, the middle one of which waits for ``gate``."""

    logprob_tolerance = 1e-3

    def __init__(self) -> None:
        self.policy_version = 0
        self.waiting = 0
        self.requests: list[EngineRequest] = []
        self.scored = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = False

    def load(self) -> EngineLoad:
        return EngineLoad(running=0, waiting=self.waiting)

    async def generate(self, request):
        if self.failing:
            raise EngineError("The engine is broken.")
        self.requests.append(request)
        for token in (11, 12, 13):
            await self.gate.wait()
            yield TokenDelta((token,), (-0.5,), self.policy_version, "length" if token == 13 else None)

    async def score_text(self, token_ids):
        self.scored += 1
        return [-2.0] * (len(token_ids) - 1)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
async def run(database, engine, monkeypatch):
    """Starts a prober; ended at the end of the test."""
    monkeypatch.setattr(probes, "ROOM_POLL_SECONDS", 0.01)
    monkeypatch.setattr(probes, "RETRY_SECONDS", 0.05)
    tasks = []

    def start(**settings) -> Prober:
        prober = Prober(database, engine, Renderer(), EvaluationSettings(**settings))
        tasks.append(asyncio.create_task(prober.run()))
        return prober

    yield start
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def probed(database, version):
    async with database.read() as session:
        return await probe_rows.by_version(session, version)


async def evaluated(database):
    return await EvaluationService(database).list()


async def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return found


async def test_the_version_that_serves_is_probed_and_evaluated(database, engine, run):
    run()
    (evaluation,) = await until(lambda: evaluated(database))
    assert evaluation.policy_version == 0
    assert evaluation.perplexity == pytest.approx(math.exp(2.0))
    assert evaluation.perplexity_tokens == len(TEXT) - 1
    assert [sample.prompt for sample in evaluation.samples] == list(PROMPTS)
    assert evaluation.response_tokens == 3
    assert evaluation.distinct_2 == pytest.approx(2 / 16), "eight equal answers of two word pairs"
    rows = await probed(database, 0)
    assert [row.prompt for row in rows] == list(CHECK_PROMPTS)
    assert rows[0].token_ids == [11, 12, 13]
    assert rows[0].behavior_logprobs == [-0.5] * 3
    assert len(engine.requests) == len(PROMPTS), "the self-check's answers are part of the evaluation, not sampled twice"
    assert {(request.temperature, request.seed) for request in engine.requests} == {(1.0, probes.SEED)}


async def test_a_sampled_nul_keeps_neither_probe_nor_evaluation_from_being_written(database, engine, run, monkeypatch):
    monkeypatch.setattr(Renderer, "decode", lambda self, token_ids: "left\0right")
    run()
    (evaluation,) = await until(lambda: evaluated(database))
    assert evaluation.samples[0].text == "left\ufffdright"
    assert (await probed(database, 0))[0].text == "left\ufffdright"


async def test_the_newest_is_evaluated_and_those_between_are_skipped(database, engine, run):
    prober = run(min_interval_seconds=0.3)
    await until(lambda: evaluated(database))
    for version in (1, 2, 3):
        engine.policy_version = version
        prober.version_changed()
        await until(lambda version=version: probed(database, version))
    assert [evaluation.policy_version for evaluation in await until(lambda: two(database))] == [3, 0]


async def two(database):
    found = await evaluated(database)
    return found if len(found) == 2 else None


async def test_it_waits_for_users_except_for_the_base(database, engine, run):
    engine.waiting = 3
    prober = run(min_interval_seconds=0)
    await until(lambda: evaluated(database))
    engine.policy_version = 1
    prober.version_changed()
    await until(lambda: probed(database, 1))
    await asyncio.sleep(0.1)
    assert len(await evaluated(database)) == 1
    engine.waiting = 0
    await until(lambda: two(database))


async def test_a_swap_while_sampling_gives_up_at_once(database, engine, run):
    engine.gate.clear()
    prober = run()
    await until(lambda: asyncio.sleep(0, len(engine.requests) == 2))
    engine.policy_version = 1
    prober.version_changed()
    engine.gate.set()
    await until(lambda: probed(database, 1))
    assert not await probed(database, 0)
    (evaluation,) = await until(lambda: evaluated(database))
    assert evaluation.policy_version == 1


async def test_a_version_served_again_is_probed_again_but_not_evaluated_again(database, engine, run):
    prober = run(min_interval_seconds=0)
    await until(lambda: evaluated(database))
    prober.version_changed()
    await until(lambda: asyncio.sleep(0, len(engine.requests) == len(PROMPTS) + 2))
    await asyncio.sleep(0.05)
    assert engine.scored == 1


async def test_a_broken_engine_is_tried_again(database, engine, run):
    engine.failing = True
    run()
    await asyncio.sleep(0.1)
    engine.failing = False
    await until(lambda: evaluated(database))


async def test_evaluations_can_be_switched_off(database, engine, run):
    run(enabled=False)
    await until(lambda: probed(database, 0))
    await asyncio.sleep(0.05)
    assert (engine.scored, await evaluated(database)) == (0, ())


def test_measures():
    assert distinct_2(["the cat sat", "The cat, sat!"]) == 0.5
    assert distinct_2(["one two three"]) == 1.0
    assert distinct_2(["yes yes yes yes"]) == pytest.approx(1 / 3)
    assert distinct_2(["yes", ""]) is None, "pairs do not reach from one text into the next"
    assert perplexity([math.log(0.25)] * 3) == pytest.approx(4.0)
    assert perplexity([]) is None
    assert perplexity([-1.0, math.nan]) is None
    assert perplexity([-1e6]) is None
