"""Logged completions as they are shown: each with its scores' receipts and its trajectory. Owns that composition; erasing is erasure.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from online_sao.errors import CompletionNotFoundError
from online_sao.service.reasons import Reason, ReasonCode, kind_of, of_code
from online_sao.service.receipts import Receipt, receipts_of
from online_sao.storage.repositories import feedback, interactions, outcomes, trajectories
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import InteractionRow, TrajectoryRow
from online_sao.types import InteractionStatus, ReceiptStatus, TrajectoryState


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


@dataclass(frozen=True, slots=True)
class Unused:
    """``count`` answers, or scores of answers, that ended in ``state`` for a reason of ``kind`` (None: words of their own, such as a gate's);
    ``state`` None: scores that could not count when they came."""

    state: TrajectoryState | None
    kind: Reason | None
    count: int


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
        receipt: ReceiptStatus | None = None,
        trajectory: TrajectoryState | None = None,
        reason: ReasonCode | None = None,
        learned_into: int | None = None,
        without_effect: bool = False,
    ) -> LoggedPage:
        """Choices that match every filter given, in one consistent read. A page of a ``text`` search may hold fewer than ``limit`` and still have one
        to follow. ``receipt``: with a score whose receipt says so; ``trajectory``: the state of the answer's training side; ``reason``: not used, or
        with a score that was not, for a reason of that kind; ``learned_into``: trained on by the update that made this version; ``without_effect``:
        with a score that has not moved the policy and never will. Raises InvalidRequestError for a cursor that is not ours."""
        outcome = []
        if receipt is not None:
            outcome.append(outcomes.scored_with(receipt))
        if trajectory is not None:
            outcome.append(outcomes.ended_as(trajectory))
        if reason is not None:
            outcome.append(outcomes.for_reason(of_code(reason).beginning))
        if learned_into is not None:
            outcome.append(outcomes.learned_into(learned_into))
        if without_effect:
            outcome.append(outcomes.without_effect())
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
                outcome=outcome,
            )
            return LoggedPage(await _logged(session, page.rows), page.next_cursor)

    async def unused(self) -> tuple[Unused, ...]:
        """Why answers were not used, scored or not, most frequent first."""
        async with self._database.read() as session:
            return _counted(await outcomes.unused_answers(session))

    async def scores_without_effect(self, since: float) -> tuple[Unused, ...]:
        """Why scores given since then (Unix) have not moved the policy and never will, most frequent first."""
        async with self._database.read() as session:
            return _counted(await outcomes.scores_without_effect(session, since))

    async def get(self, completion_id: str) -> tuple[LoggedChoice, ...]:
        """All choices of a completion, in order. Raises CompletionNotFoundError."""
        async with self._database.read() as session:
            found = await _logged(session, await interactions.by_completion(session, completion_id))
        if not found:
            raise CompletionNotFoundError(f"There is no completion {completion_id[:80]!r}.", param="completion_id")
        return found


def _counted(found: Iterable[tuple[TrajectoryState | None, str | None, int]]) -> tuple[Unused, ...]:
    counts: Counter[tuple[TrajectoryState | None, Reason | None]] = Counter()
    for state, why, count in found:
        counts[state, kind_of(why)] += count
    return tuple(Unused(state, kind, count) for (state, kind), count in counts.most_common())


async def _logged(session: Session, rows: Sequence[InteractionRow]) -> tuple[LoggedChoice, ...]:
    ids = [row.id for row in rows]
    states = await trajectories.by_interactions(session, ids)
    scores = await feedback.list_for_interactions(session, ids)
    receipts = await receipts_of(session, [score.id for given in scores.values() for score in given])
    return tuple(LoggedChoice(row, states.get(row.id), tuple(receipts[score.id] for score in scores.get(row.id, ()))) for row in rows)
