"""Logged completions as they are shown: each with its scores' receipts and its trajectory. Owns that composition; erasing is erasure.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from online_sao.errors import CompletionNotFoundError
from online_sao.service.receipts import Receipt, receipts_of
from online_sao.storage.repositories import feedback, interactions, trajectories
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import InteractionRow, TrajectoryRow
from online_sao.types import InteractionStatus


@dataclass(frozen=True, slots=True)
class LoggedChoice:
    """``trajectory`` is None while the choice is being generated. ``receipts``: every score given to it, oldest first."""

    interaction: InteractionRow
    trajectory: TrajectoryRow | None
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class LoggedPage:
    """Newest first. ``next_cursor``: send it as ``after`` for the following page; None: this is the last."""

    choices: tuple[LoggedChoice, ...]
    next_cursor: str | None


class InteractionService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        *,
        limit: int,
        after: str | None = None,
        user: str | None = None,
        model: str | None = None,
        status: InteractionStatus | None = None,
        policy_version: int | None = None,
        since: float | None = None,
        completion_id: str | None = None,
        text: str | None = None,
    ) -> LoggedPage:
        """Choices that match every filter given, in one consistent read. A page of a ``text`` search may hold fewer than ``limit`` and still have one
        to follow. Raises InvalidRequestError for a cursor that is not ours."""
        async with self._database.read() as session:
            page = await interactions.page(
                session,
                limit=limit,
                after=after,
                user=user,
                model=model,
                status=status,
                policy_version=policy_version,
                since=since,
                completion_id=completion_id,
                text=text,
            )
            return LoggedPage(await _logged(session, page.rows), page.next_cursor)

    async def get(self, completion_id: str) -> tuple[LoggedChoice, ...]:
        """All choices of a completion, in order. Raises CompletionNotFoundError."""
        async with self._database.read() as session:
            found = await _logged(session, await interactions.by_completion(session, completion_id))
        if not found:
            raise CompletionNotFoundError(f"There is no completion {completion_id[:80]!r}.", param="completion_id")
        return found


async def _logged(session: Session, rows: Sequence[InteractionRow]) -> tuple[LoggedChoice, ...]:
    ids = [row.id for row in rows]
    states = await trajectories.by_interactions(session, ids)
    scores = await feedback.list_for_interactions(session, ids)
    receipts = await receipts_of(session, [score.id for given in scores.values() for score in given])
    return tuple(LoggedChoice(row, states.get(row.id), tuple(receipts[score.id] for score in scores.get(row.id, ()))) for row in rows)
