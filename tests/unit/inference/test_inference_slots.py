"""Places and pages: first come first served, nothing lost when a waiting request is cancelled."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from online_sao.inference.slots import BACKGROUND_PLACES, Slots


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
        large, small = enter(slots, 50), enter(slots, 10)
        await turn()
        assert (slots.running, slots.waiting) == (1, 2)
    await turn()
    assert (slots.running, slots.waiting) == (2, 0)
    assert large.done()
    assert small.done()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("granted_first", [False, True])
async def test_a_cancelled_wait_gives_back_what_it_was_granted(granted_first, background):
    slots = Slots(1, 10)
    async with AsyncExitStack() as inside:
        await inside.enter_async_context(slots.hold(10))
        waiting = enter(slots, 10, background=background)
        await turn()
        if granted_first:
            await inside.aclose()  # grants to the waiting one, whose task has not run yet
        waiting.cancel()
        await turn()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (slots.running, slots.waiting, slots.pages_taken) == (0, 0, 0)
    for kind in (False, True):
        async with asyncio.timeout(1), slots.hold(10, background=kind):
            pass


async def test_the_background_has_places_of_its_own_and_not_one_of_the_users():
    slots = Slots(1, 100)
    async with slots.hold(10):
        inside = [enter(slots, 10, background=True) for _ in range(BACKGROUND_PLACES)]
        third, user = enter(slots, 10, background=True), enter(slots, 10)
        await turn()
        assert all(task.done() for task in inside)
        assert not third.done()
        assert not user.done()
        assert (slots.running, slots.waiting) == (1, 1)
    await turn()
    assert user.done()
    assert not third.done()


async def test_users_are_let_in_first_where_pages_are_short():
    slots = Slots(4, 20)
    async with slots.hold(20):
        background, user = enter(slots, 15, background=True), enter(slots, 15)
        await turn()
    await turn()
    assert user.done()
    assert not background.done()


def enter(slots, pages, **kind):
    async def work():
        stack = AsyncExitStack()  # the task's result: what is held is not given back as garbage
        await stack.enter_async_context(slots.hold(pages, **kind))
        return stack

    return asyncio.create_task(work())
