"""One reading serves all pages."""

import asyncio

import pytest

from api.shared import Shared


async def test_pages_that_ask_together_share_one_reading() -> None:
    readings = 0

    async def read() -> int:
        nonlocal readings
        readings += 1
        await asyncio.sleep(0.01)
        return readings

    now = 0.0
    shared = Shared(read, 0.9, monotonic=lambda: now)
    assert await asyncio.gather(*(shared.get() for _ in range(10))) == [1] * 10
    now = 0.8
    assert await shared.get() == 1
    now = 1.0
    assert await shared.get() == 2


async def test_a_reading_that_failed_is_tried_again() -> None:
    results = iter([RuntimeError("no database"), 7])

    async def read() -> int:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    shared = Shared(read, 0.9)
    with pytest.raises(RuntimeError):
        await shared.get()
    assert await shared.get() == 7
