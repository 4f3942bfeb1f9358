"""Scores over real HTTP to a small server of known speed: every one sent once, and waiting is not left out of what is measured."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from online_sao.benchmarks.score_load import closed_loop, open_loop

IDS = [f"chatcmpl-{number}" for number in range(20)]


class Receiver:
    """Answers one score at a time, each after ``seconds``; those in ``refused`` with 404."""

    def __init__(self, seconds=0.0, refused=()):
        self.seconds = seconds
        self.refused = refused
        self.taken = []
        self.at_once = self.most_at_once = 0
        self._turn = asyncio.Lock()

    async def feedback(self, request):
        body = await request.json()
        assert 0 <= body["value"] <= 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async with self._turn:
            await asyncio.sleep(self.seconds)
        self.at_once -= 1
        self.taken.append(body["completion_id"])
        return web.json_response({}, status=404 if body["completion_id"] in self.refused else 201)

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/v1/feedback", self.feedback)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def test_clients_score_every_completion_once_and_no_more_at_once_than_they_are():
    receiver = Receiver(0.005)
    async with receiver.running() as url:
        found = await closed_loop(url, IDS, connections=4)
    assert sorted(receiver.taken) == sorted(IDS)
    assert receiver.most_at_once == 4
    assert len(found.latencies) == 20
    assert found.failures == ()
    assert found.seconds >= 20 * 0.005
    assert found.rate == pytest.approx(20 / found.seconds)
    assert found.percentile(100) == max(found.latencies)


async def test_what_is_not_taken_is_counted_apart():
    receiver = Receiver(refused={IDS[3]})
    async with receiver.running() as url:
        found = await closed_loop(url, IDS, connections=2)
    assert len(found.latencies) == 19
    assert [failure[:4] for failure in found.failures] == ["404:"]
    dead = await closed_loop(url, IDS[:2], connections=1)
    assert len(dead.failures) == 2
    assert dead.latencies == ()


async def test_a_rate_is_held_and_a_slow_server_shows_as_waiting():
    quick = Receiver()
    async with quick.running() as url:
        started = time.perf_counter()
        await open_loop(url, IDS, rate=100, connections=8)
        elapsed = time.perf_counter() - started
    assert elapsed > 0.1, "20 scores at 100 a second"
    slow = Receiver(0.02)
    async with slow.running() as url:
        # Due at once, as good as: the last waits for the 19 before it, though its own answer takes 0.02 s.
        found = await open_loop(url, IDS, rate=1e6, connections=2)
    assert max(found.latencies) >= 20 * 0.02
    assert min(found.latencies) < 0.2
    assert slow.most_at_once <= 2
