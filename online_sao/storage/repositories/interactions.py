"""Logged completions. Owns how one is stored, found, paged and stripped of its content. Knows nothing of what scores mean or of training states.

Functions take the session of an open transaction and never commit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, null, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.errors import InvalidRequestError, LifecycleError
from online_sao.storable import storable
from online_sao.storage.tables import FeedbackRow, InteractionRow, TrajectoryRow
from online_sao.types import Completion, Interaction, InteractionStatus, SamplingParams, TrajectoryState, VersionSpan

WITHOUT_CONTENT = (
    InteractionRow.id,
    InteractionRow.completion_id,
    InteractionRow.choice,
    InteractionRow.status,
    InteractionRow.stored,
    InteractionRow.erased_at,
    InteractionRow.policy_version,
)
"""For load_only(): what a receipt needs, without the columns that hold hundreds of tokens."""


SEARCHED = 20_000
"""Interactions that one page of a text search looks at."""


async def insert_generating(session: AsyncSession, rows: Sequence[InteractionRow]) -> None:
    """Insert the choices of one request as ``generating`` and give each its ``id``. Rows with ``stored`` False lose all content first."""
    for row in rows:
        row.status = InteractionStatus.GENERATING
        if not row.stored:
            _strip(row)
    session.add_all(rows)
    await session.flush()


async def complete(
    session: AsyncSession, row: InteractionRow, completion: Completion, *, status: InteractionStatus, now: float, first_token_at: float | None
) -> InteractionRow:
    """Write what was sampled into a row that this transaction has locked, and end its ``generating``. Raises LifecycleError if it has ended already,
    except as ``interrupted``: that was said of a process which then turned out to live, or to have kept the end elsewhere.

    The row's ``stored`` may be False although the request asked to store: the interaction was erased meanwhile. Then, and for ``store: false``,
    only counts and timing are written. Token ids are kept as they are, and text as far as it is storable.
    """
    assert row in session, "a row of another transaction: nothing of this would be kept"
    if row.status not in (InteractionStatus.GENERATING, InteractionStatus.INTERRUPTED):
        raise LifecycleError(f"Interaction {row.id} is {row.status}, not generating: it cannot become {status.value}.")
    row.status = status
    row.finish_reason = completion.finish_reason
    row.completion_tokens = len(completion.token_ids)
    row.first_token_at = first_token_at
    row.completed_at = now
    if completion.version_spans:
        row.policy_version = max(span.policy_version for span in completion.version_spans)
    if row.stored:
        row.token_ids = list(completion.token_ids)
        row.behavior_logprobs = list(completion.behavior_logprobs)
        row.version_spans = [[span.start, span.end, span.policy_version] for span in completion.version_spans]
        row.text = storable(completion.text)
    await session.flush()
    return row


async def mark_leftovers_interrupted(session: AsyncSession, now: float, living: Collection[str] = ()) -> int:
    """Rows still ``generating`` that none of the ``living`` processes serves belong to one that died. Ends them, not trainable; returns how many."""
    query = select(InteractionRow).where(
        InteractionRow.status == InteractionStatus.GENERATING,
        or_(InteractionRow.served_by.is_(None), InteractionRow.served_by.not_in(living)),
    )
    rows = (await session.scalars(query.with_for_update())).all()
    for row in rows:
        row.status = InteractionStatus.INTERRUPTED
        row.completed_at = now
        session.add(
            TrajectoryRow(
                interaction_id=row.id,
                state=TrajectoryState.NOT_TRAINABLE,
                reason="interrupted",
                oldest_policy_version=row.policy_version,
                created_at=now,
                deadline_at=now,
                updated_at=now,
            )
        )
    await session.flush()
    return len(rows)


async def get(session: AsyncSession, completion_id: str, choice: int, *, lock: bool = False) -> InteractionRow | None:
    """``lock`` holds the row until the transaction ends: whoever scores, completes or erases an interaction takes it first."""
    query = select(InteractionRow).where(InteractionRow.completion_id == completion_id, InteractionRow.choice == choice)
    return (await session.scalars(query.with_for_update() if lock else query)).one_or_none()


async def by_completion(session: AsyncSession, completion_id: str, *, lock: bool = False) -> Sequence[InteractionRow]:
    """All choices of a completion, in order; empty if there is no such completion."""
    query = select(InteractionRow).where(InteractionRow.completion_id == completion_id).order_by(InteractionRow.choice)
    return (await session.scalars(query.with_for_update() if lock else query)).all()


async def by_user(session: AsyncSession, user: str, *, lock: bool = False) -> Sequence[InteractionRow]:
    query = select(InteractionRow).where(InteractionRow.user == user).order_by(InteractionRow.id)
    return (await session.scalars(query.with_for_update() if lock else query)).all()


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. ``next_cursor`` is what to send as ``after`` for the following page; None: this is the last."""

    rows: tuple[InteractionRow, ...]
    next_cursor: str | None


async def page(
    session: AsyncSession,
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
    outcome: Sequence[ColumnElement[bool]] = (),
) -> Page:
    """Interactions that match every filter given. ``since`` is the earliest ``created_at``; ``completion_id`` the beginning of one;
    ``outcome``: conditions of outcomes.py. Raises InvalidRequestError for a cursor that is not ours.

    ``text`` is looked for, whatever its case, in questions and answers. There is no index for that, so one page looks at SEARCHED interactions and
    then ends, full or not, with the cursor of the place it has come to.

    Rows that arrive while a client pages through are never shown twice nor push others out: the cursor is a position, not a count.
    """
    query = select(InteractionRow).where(*outcome).order_by(InteractionRow.id.desc()).limit(limit + 1)
    start = None if after is None else _position(after)
    if start is not None:
        query = query.where(InteractionRow.id < start)
    floor = 0
    if text is not None:
        newest = start if start is not None else ((await session.scalar(select(func.max(InteractionRow.id)))) or 0) + 1
        floor = max(0, newest - SEARCHED)
        query = query.where(InteractionRow.id >= floor, or_(*_contain(text)))
    if completion_id is not None:
        query = query.where(InteractionRow.completion_id.startswith(completion_id, autoescape=True))
    for column, wanted in ((InteractionRow.user, user), (InteractionRow.model, model), (InteractionRow.status, status)):
        if wanted is not None:
            query = query.where(column == wanted)
    if policy_version is not None:
        query = query.where(InteractionRow.policy_version == policy_version)
    if since is not None:
        query = query.where(InteractionRow.created_at >= since)
    rows = (await session.scalars(query)).all()
    cursor = rows[limit - 1].id if len(rows) > limit else floor
    return Page(tuple(rows[:limit]), str(cursor) if cursor > 1 else None)


def _contain(text: str) -> tuple[ColumnElement[bool], ...]:
    # The messages are JSON, in which quotes, line ends and letters beyond ASCII are spelled otherwise.
    return (
        InteractionRow.text.icontains(text, autoescape=True),
        cast(InteractionRow.messages, Text).icontains(json.dumps(text)[1:-1], autoescape=True),
    )


async def stored_before(session: AsyncSession, created_before: float, limit: int) -> Sequence[InteractionRow]:
    """At most ``limit`` interactions older than that which still have content and are not being generated, oldest first, locked."""
    query = (
        select(InteractionRow)
        .where(InteractionRow.created_at < created_before, InteractionRow.stored, InteractionRow.status != InteractionStatus.GENERATING)
        .order_by(InteractionRow.created_at)
        .limit(limit)
    )
    return (await session.scalars(query.with_for_update(skip_locked=True))).all()


async def erase_content(session: AsyncSession, rows: Sequence[InteractionRow], now: float) -> None:
    """Remove texts, tokens, logprobs, the user and the scores' comments for good; ids, version, counts, timing and score values stay."""
    for row in rows:
        if row.stored:
            row.stored, row.erased_at = False, now
        _strip(row)
    await session.flush()
    ids = [row.id for row in rows]
    for start in range(0, len(ids), 500):
        await session.execute(update(FeedbackRow).where(FeedbackRow.interaction_id.in_(ids[start : start + 500])).values(comment=None))


def to_record(row: InteractionRow) -> Interaction:
    """The row as the record that travels. Raises LifecycleError for a row that keeps no tokens."""
    if row.prompt_ids is None or row.token_ids is None or row.behavior_logprobs is None:
        raise LifecycleError(f"Interaction {row.id} ({row.status}, stored={row.stored}) keeps no tokens.")
    finish_reason: Any = row.finish_reason
    completion = Completion(
        token_ids=tuple(row.token_ids),
        behavior_logprobs=tuple(row.behavior_logprobs),
        version_spans=tuple(VersionSpan(*span) for span in row.version_spans or ()),
        text=row.text or "",
        finish_reason=finish_reason,
    )
    return Interaction(
        completion_id=row.completion_id,
        choice=row.choice,
        prompt_ids=tuple(row.prompt_ids),
        completion=completion,
        sampling=sampling_record(row.sampling),
        messages=tuple(row.messages or ()),
        user=row.user,
        episode_id=row.episode_id,
    )


def sampling_record(stored: dict[str, Any]) -> SamplingParams:
    """The ``sampling`` column as a record; what was merely ``requested`` is left out."""
    return SamplingParams(
        max_tokens=stored["max_tokens"], temperature=stored["temperature"], top_p=stored["top_p"], stop=tuple(stored.get("stop") or ())
    )


def _strip(row: InteractionRow) -> None:
    # null() is SQL NULL; a plain None in a JSON column would be stored as the JSON word null.
    row.messages = row.prompt_ids = row.token_ids = row.behavior_logprobs = row.version_spans = null()
    row.text = row.user = row.episode_id = None
    row.request_metadata = {}
    row.sampling = {}


def _position(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidRequestError(f"{cursor[:40]!r} is not a cursor. Send the `next_cursor` of the page before.", param="after")
    return int(cursor)
