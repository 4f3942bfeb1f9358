"""A migrated database on disk, for the tests of every room, and small ways to fill it."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from databases import Databases, PostgreSQL, SqliteFiles

from online_sao.storage.repositories import interactions, trajectories
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import InteractionRow, TrajectoryRow
from online_sao.types import Completion, InteractionStatus, TrajectoryState, VersionSpan


class Chats:
    """Makes logged completions the way the chat service does: a generating row, then its completion with a trajectory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers = itertools.count(1)

    async def start(self, *, choices: int = 1, stored: bool = True, user: str | None = None, policy_version: int = 0) -> list[InteractionRow]:
        completion_id = f"chatcmpl-{next(self._numbers)}"
        fields = {"stored": stored, "user": user, "policy_version": policy_version}
        rows = [self._row(completion_id, created_at=time.time(), choice=choice, **fields) for choice in range(choices)]
        async with self._database.write() as session:
            await interactions.insert_generating(session, rows)
        return rows

    async def finish(self, row: InteractionRow, *, reason: str | None = None, deadline_seconds: float = 3600.0) -> TrajectoryRow:
        now = time.time()
        completion = Completion((7, 8), (-0.5, -1.5), (VersionSpan(0, 2, row.policy_version),), "hi", "stop")
        async with self._database.write() as session:
            done = await self.complete(session, row, completion, now=now)
            return await trajectories.create(session, done, now=now, deadline_at=now + deadline_seconds, not_trainable_reason=reason)

    async def complete(
        self, session: Session, row: InteractionRow, completion: Completion, *, now: float, status: InteractionStatus = InteractionStatus.COMPLETED
    ) -> InteractionRow:
        """``row``, which another transaction began, completed in this one; the first token came a second before."""
        found = await interactions.get(session, row.completion_id, row.choice)
        assert found is not None
        return await interactions.complete(session, found, completion, status=status, now=now, first_token_at=now - 1)

    async def completed(
        self, *, stored: bool = True, user: str | None = None, reason: str | None = None, policy_version: int = 0, deadline_seconds: float = 3600.0
    ) -> InteractionRow:
        (row,) = await self.start(stored=stored, user=user, policy_version=policy_version)
        await self.finish(row, reason=reason, deadline_seconds=deadline_seconds)
        return row

    async def bulk(self, count: int) -> list[InteractionRow]:
        """Completed interactions with PENDING trajectories, written straight into the tables: one transaction, few statements."""
        now = time.time()
        rows = [self._row(f"chatcmpl-{next(self._numbers)}", created_at=now) for _ in range(count)]
        for row in rows:
            row.status, row.finish_reason = InteractionStatus.COMPLETED, "stop"
            row.token_ids, row.behavior_logprobs, row.version_spans, row.text = [7, 8], [-0.5, -1.5], [[0, 2, 0]], "hi"
        async with self._database.write() as session:
            session.add_all(rows)
            await session.flush()
            session.add_all(
                TrajectoryRow(
                    interaction_id=row.id,
                    state=TrajectoryState.PENDING,
                    oldest_policy_version=0,
                    created_at=now,
                    deadline_at=now + 3600,
                    updated_at=now,
                )
                for row in rows
            )
        return rows

    def _row(self, completion_id: str, *, created_at: float, **fields: Any) -> InteractionRow:
        defaults: dict[str, Any] = {"choice": 0, "user": None, "stored": True, "policy_version": 0}
        return InteractionRow(
            completion_id=completion_id,
            request_id="req-1",
            model="smollm2-135m",
            request_metadata={"app": "test"},
            messages=[{"role": "user", "content": "hello"}],
            sampling={"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "stop": []},
            prompt_ids=[1, 2, 3],
            prompt_tokens=3,
            created_at=created_at,
            **(defaults | fields),
        )


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    if request.config.getoption("--database") == "sqlite":
        yield SqliteFiles(tmp_path_factory.mktemp("databases"))
    else:
        server = PostgreSQL()
        yield server
        server.stop()


@pytest.fixture
async def database(databases: Databases) -> AsyncIterator[Database]:
    database = Database(await asyncio.to_thread(databases.migrated))
    yield database
    await database.dispose()


@pytest.fixture(autouse=True)
def _only_on(request: pytest.FixtureRequest) -> None:
    """``@pytest.mark.only_on("sqlite")``: of what one kind of database alone does."""
    marker = request.node.get_closest_marker("only_on")
    if marker is not None and request.config.getoption("--database") not in marker.args:
        pytest.skip(f"about {' and '.join(marker.args)}")


@pytest.fixture
def chats(database: Database) -> Chats:
    return Chats(database)
