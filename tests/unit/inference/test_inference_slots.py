"""Places and pages: first come first served, nothing lost when a waiting request is cancelled."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from online_sao.inference.slots import Slots


async def turn():
    for _ in range(3):
        await asyncio.sleep(0)


async def test_counts_and_order():
    slots, order = Slots(2, 100), []
    release = asyncio.Event()

    async def work(name):
        async with slots.hold(10):
            order.append(name)
            await release.wait()

    tasks = [asyncio.create_task(work(name)) for name in "abcd"]
    await turn()
    assert (order, slots.running, slots.waiting) == (["a", "b"], 2, 2)
    release.set()
    await asyncio.gather(*tasks)
    assert (order, slots.running, slots.waiting) == (["a", "b", "c", "d"], 0, 0)


async def test_pages_bound_those_inside_and_nobody_overtakes():
    slots = Slots(10, 100)
    async with AsyncExitStack() as inside:
        await inside.enter_async_context(slots.hold(60))
        large = asyncio.create_task(slots._take(50))
        small = asyncio.create_task(slots._take(10))
        await turn()
        assert (slots.running, slots.waiting) == (1, 2)
    await turn()
    assert (slots.running, slots.waiting) == (2, 0)
    assert large.done()
    assert small.done()


@pytest.mark.parametrize("granted_first", [False, True])
async def test_a_cancelled_wait_gives_back_what_it_was_granted(granted_first):
    slots = Slots(1, 10)
    await slots._take(10)
    waiting = asyncio.create_task(slots._take(10))
    await turn()
    if granted_first:
        slots._give_back(10)  # grants to the waiting one, whose task has not run yet
        waiting.cancel()
    else:
        waiting.cancel()
        await turn()
        slots._give_back(10)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (slots.running, slots.waiting) == (0, 0)
    await asyncio.wait_for(slots._take(10), 1)
