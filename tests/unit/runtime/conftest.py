"""A learning cycle on a tiny learner, in this process, with the database beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_learner import Bench, make_bench

from online_sao.background import Background
from online_sao.config import LearningSettings, Settings, StorageSettings
from online_sao.publishing import lifecycle
from online_sao.runtime.learner_status import LearnerStatus
from online_sao.runtime.learning_cycle import LearningCycle
from online_sao.storage.repositories import interactions, learner, trajectories
from online_sao.storage.session import Database
from online_sao.storage.tables import LearnerRow, TrajectoryRow, UpdateRow
from online_sao.types import TrajectoryState

PROMPT, TOKENS = [1, 2, 3], [7, 8]
"""What the ``chats`` fixture logs."""


class Stand:
    """``run`` in the background by ``start``; everything else is looked at through the database, as other processes do."""

    def __init__(self, database: Database, chats: Any, data_dir: Path, bench: Bench) -> None:
        self.database, self.chats, self.data_dir, self.bench = database, chats, data_dir, bench
        self.settings = Settings(
            storage=StorageSettings(data_dir=data_dir), learning=LearningSettings(poll_seconds=0.01, min_batch_size=2), gates={"min_entropy": 0.0}
        )
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        self.status = LearnerStatus(self.database, "test")
        self._stopping = asyncio.Event()
        cycle = LearningCycle(self.settings, self.database, self.bench.learner, Background(), self.status, self._stopping)
        self._task = asyncio.create_task(cycle.run())

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task
        self._task = None

    async def until(self, condition: Callable[[], Any]) -> None:
        """``condition`` is awaited over and over until it says yes. A cycle that has died is not waited for."""
        deadline = time.monotonic() + 30
        while not await condition():
            assert time.monotonic() < deadline, "not within 30 s"
            if self._task is not None and self._task.done():
                self._task.result()
            await asyncio.sleep(0.01)

    async def score(self, count: int = 2, *, policy_version: int = 0) -> list[int]:
        """Scored completions with the logprobs the policy, as it stands, really gives them. Ids of their trajectories."""
        logprobs = self.bench.learner.score(PROMPT, TOKENS, 1.0)
        ids = []
        for number in range(count):
            row = await self.chats.completed(policy_version=policy_version)
            async with self.database.write() as session:
                (await session.get_one(interactions.InteractionRow, row.id)).behavior_logprobs = logprobs
                trajectory = await trajectories.by_interaction(session, row.id)
                await lifecycle.make_ready(session, {trajectory.id: 1.0 if number % 2 else -1.0}, time.time())
            ids.append(trajectory.id)
        return ids

    async def head(self) -> LearnerRow:
        async with self.database.read() as session:
            return await learner.get(session)

    async def on_update(self, number: int) -> bool:
        return (await self.head()).head_update == number

    async def update(self, number: int) -> UpdateRow | None:
        async with self.database.read() as session:
            return await session.get(UpdateRow, number)

    async def states(self) -> dict[TrajectoryState, int]:
        async with self.database.read() as session:
            return {state: count for state, count in (await trajectories.counts_by_state(session)).items() if count}

    async def trajectory(self, trajectory_id: int) -> TrajectoryRow:
        async with self.database.read() as session:
            return await session.get_one(TrajectoryRow, trajectory_id)

    def names(self, folder: str) -> list[str]:
        path = self.data_dir / folder
        return sorted(item.name for item in path.iterdir()) if path.is_dir() else []


@pytest.fixture
async def stand(database: Database, chats: Any, tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(database, chats, tmp_path, make_bench(batch_size=2))
    yield stand
    await stand.stop()
