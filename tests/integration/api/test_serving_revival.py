"""A generation loop that dies is started again on the active version, and meanwhile the server says what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from server_process import user
from tiny_model import tiny_model

from online_sao.config import Settings
from online_sao.errors import NotReadyError
from online_sao.inference import continuous_batching
from online_sao.runtime.serving import Serving
from online_sao.service.chat_records import ChatCommand, ChoiceDone
from online_sao.storage.migrations import upgrade


async def ready(serving: Serving) -> None:
    for _ in range(3000):
        if not (await serving.readiness()).missing:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not ready: {(await serving.readiness()).missing}")


async def chat(serving: Serving) -> bool:
    run = await serving.chat.start(ChatCommand("r", "tiny", tuple(user()), max_tokens=3))
    return any([isinstance(event, ChoiceDone) async for event in run.events()])


async def test_a_dead_engine_is_started_again(tmp_path: Path) -> None:
    settings = Settings(
        storage={"data_dir": tmp_path},  # type: ignore[arg-type]
        policy={"model": str(tiny_model()), "name": "tiny"},  # type: ignore[arg-type]
        engine={"threads": 1},  # type: ignore[arg-type]
        learning={"enabled": False},  # type: ignore[arg-type]
    )
    await upgrade(settings.database_url)
    serving = Serving(settings)
    await serving.start()
    try:
        await ready(serving)
        assert await chat(serving)
        engine = serving.engine
        assert engine is not None
        await asyncio.to_thread(continuous_batching.stop_thread, engine._serving.manager)  # type: ignore[attr-defined]
        assert not engine.healthy
        refused = False
        while not refused and not engine.healthy:
            try:
                await chat(serving)
            except NotReadyError:
                refused = True
        assert refused
        await ready(serving)
        assert await chat(serving)
    finally:
        await serving.stop()
