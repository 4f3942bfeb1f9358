"""What became of answers and scores, as conditions to find them by and as counts. Owns the SQL twin of service/receipts.py.

A receipt is derived and never stored, so its status is spelled a second time here, in SQL; a test holds the two together over all states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, and_, case, exists, func, literal, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, aliased

from online_sao.storage.repositories.feedback import DUPLICATE
from online_sao.storage.tables import FeedbackRow, InteractionRow, LearnerRow, PolicyVersionRow, TrajectoryRow, UpdateRow
from online_sao.types import UNUSED_STATES, InteractionStatus, ReceiptStatus, TrajectoryState


def scored_with(status: ReceiptStatus) -> ColumnElement[bool]:
    """Interactions with a score whose receipt has this status now."""
    return InteractionRow.id.in_(_scores(FeedbackRow.interaction_id).where(_receipt_is(status)))


async def scores_by_receipt(session: AsyncSession, since: float) -> dict[ReceiptStatus, int]:
    """How many of the scores given since then have which receipt now. Every status is a key; what only repeated a score is none of them."""
    status = case(*((_receipt_is(status), status.value) for status in ReceiptStatus))
    found = _scores(status.label("status")).where(FeedbackRow.created_at >= since).subquery()
    counted = await session.execute(select(found.c.status, func.count()).where(found.c.status.is_not(None)).group_by(found.c.status))
    return dict.fromkeys(ReceiptStatus, 0) | {ReceiptStatus(value): count for value, count in counted}


def _scores(column: ColumnElement[Any] | InstrumentedAttribute[Any]) -> Select[Any]:
    """One column of every score, with what its receipt depends on joined to it; not the answer, whose row is large and seldom asked."""
    return (
        select(column)
        .select_from(FeedbackRow)
        .outerjoin(TrajectoryRow, TrajectoryRow.interaction_id == FeedbackRow.interaction_id)
        .outerjoin(UpdateRow, UpdateRow.update_number == TrajectoryRow.update_number)
        .outerjoin(PolicyVersionRow, PolicyVersionRow.version == UpdateRow.policy_version)
    )


def _receipt_is(status: ReceiptStatus) -> ColumnElement[bool]:
    counts = FeedbackRow.refused_reason.is_(None)
    standing = and_(counts, FeedbackRow.superseded_by.is_(None))
    unwritten = _unwritten()
    no_trajectory = TrajectoryRow.id.is_(None)
    if status is ReceiptStatus.SUPERSEDED:
        return and_(counts, FeedbackRow.superseded_by.is_not(None))
    if status is ReceiptStatus.NOT_TRAINABLE:
        never = or_(_in(TrajectoryState.NOT_TRAINABLE), and_(no_trajectory, not_(unwritten)))
        return or_(_REFUSED, and_(standing, never))
    if status is ReceiptStatus.RECEIVED:
        return and_(standing, or_(_in(TrajectoryState.PENDING), and_(no_trajectory, unwritten)))
    return and_(standing, _of_trajectory(status))


def _of_trajectory(status: ReceiptStatus) -> ColumnElement[bool]:
    if status is ReceiptStatus.QUEUED:
        return _in(TrajectoryState.READY, TrajectoryState.CLAIMED)
    if status is ReceiptStatus.EXPIRED:
        return _in(TrajectoryState.EXPIRED)
    if status is ReceiptStatus.REJECTED:
        return _in(TrajectoryState.REJECTED)
    version = PolicyVersionRow.version
    left = and_(version.is_not(None), version.not_in(_kept_versions()))
    activated = and_(version.is_not(None), PolicyVersionRow.activated_at.is_not(None))
    if status is ReceiptStatus.ROLLED_BACK:
        return and_(_in(TrajectoryState.TRAINED), left)
    return and_(_in(TrajectoryState.TRAINED), not_(left), activated if status is ReceiptStatus.LIVE else not_(activated))


def _in(*states: TrajectoryState) -> ColumnElement[bool]:
    return TrajectoryRow.state.in_(states)


def _kept_versions() -> Select[int]:
    """The learner's head and all it came by, and whatever is of its own lineage epoch: policies.off_lineage turned round."""
    start = select(PolicyVersionRow.version, PolicyVersionRow.parent, literal(0, Integer).label("steps")).where(
        or_(
            PolicyVersionRow.version == select(LearnerRow.head_version).scalar_subquery(),
            PolicyVersionRow.lineage_epoch == select(LearnerRow.lineage_epoch).scalar_subquery(),
        )
    )
    chain = start.cte(recursive=True)
    parent = aliased(PolicyVersionRow)
    chain = chain.union(select(parent.version, parent.parent, literal(0, Integer)).join(chain, parent.version == chain.c.parent))
    return select(chain.c.version)


def ended_as(state: TrajectoryState) -> ColumnElement[bool]:
    """Interactions whose training side is in this state."""
    return InteractionRow.id.in_(select(TrajectoryRow.interaction_id).where(TrajectoryRow.state == state))


def for_reason(beginning: str) -> ColumnElement[bool]:
    """Interactions that were not used, or had a score that was not, for a reason that begins so."""
    answers = select(TrajectoryRow.interaction_id).where(_in(*UNUSED_STATES), TrajectoryRow.reason.startswith(beginning, autoescape=True))
    scores = select(FeedbackRow.interaction_id).where(FeedbackRow.refused_reason.startswith(beginning, autoescape=True))
    return or_(InteractionRow.id.in_(answers), InteractionRow.id.in_(scores))


async def unused_answers(session: AsyncSession) -> Sequence[tuple[TrajectoryState, str | None, int]]:
    """(state, reason, how many) of the answers that have not moved the policy and never will."""
    query = (
        select(TrajectoryRow.state, TrajectoryRow.reason, func.count()).where(_in(*UNUSED_STATES)).group_by(TrajectoryRow.state, TrajectoryRow.reason)
    )
    return [(TrajectoryState(state), reason, count) for state, reason, count in (await session.execute(query)).all()]


def learned_into(policy_version: int) -> ColumnElement[bool]:
    """Interactions that the update which made this version was trained on."""
    update = select(UpdateRow.update_number).where(UpdateRow.policy_version == policy_version)
    return InteractionRow.id.in_(select(TrajectoryRow.interaction_id).where(_in(TrajectoryState.TRAINED), TrajectoryRow.update_number.in_(update)))


def without_effect() -> ColumnElement[bool]:
    """Interactions with a score that has not moved the policy and never will: it could not count when it came, or its answer was not used."""
    return or_(*(scored_with(status) for status in (ReceiptStatus.NOT_TRAINABLE, ReceiptStatus.EXPIRED, ReceiptStatus.REJECTED)))


async def scores_without_effect(session: AsyncSession, since: float) -> Sequence[tuple[TrajectoryState | None, str | None, int]]:
    """(state of the answer, reason, how many) of the scores given since then that have not moved the policy and never will; state None: they could
    not count when they came, whatever became of their answers."""
    refused = FeedbackRow.refused_reason.is_not(None)
    state = case((not_(refused), TrajectoryRow.state))
    reason = case((refused, FeedbackRow.refused_reason), else_=TrajectoryRow.reason)
    never = or_(_in(*UNUSED_STATES), and_(TrajectoryRow.id.is_(None), not_(_unwritten())))
    # One look at each score: there may be hundreds of thousands.
    query = (
        select(refused, state, reason, func.count())
        .select_from(FeedbackRow)
        .outerjoin(TrajectoryRow, TrajectoryRow.interaction_id == FeedbackRow.interaction_id)
        .where(FeedbackRow.created_at >= since)
        .where(or_(_REFUSED, and_(not_(refused), FeedbackRow.superseded_by.is_(None), never)))
        .group_by(refused, state, reason)
    )
    return [
        (None if at_once else TrajectoryState(ended or TrajectoryState.NOT_TRAINABLE), why, count)
        for at_once, ended, why, count in (await session.execute(query)).all()
    ]


def _unwritten() -> ColumnElement[bool]:
    """The scored answer is still being generated, so its training side is not there yet."""
    answer = aliased(InteractionRow)
    return exists().where(
        answer.id == FeedbackRow.interaction_id, answer.stored, answer.erased_at.is_(None), answer.status == InteractionStatus.GENERATING
    )


_REFUSED = and_(FeedbackRow.refused_reason.is_not(None), FeedbackRow.refused_reason != DUPLICATE)
