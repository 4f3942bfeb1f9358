"""What became of a score, derived from the rows it touched. Owns the derivation; a receipt is never stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from online_sao.publishing.rollback import described
from online_sao.service.reasons import advice_for
from online_sao.storage.repositories import receipts
from online_sao.storage.repositories.receipts import ReceiptRows
from online_sao.storage.session import Session
from online_sao.storage.tables import TrajectoryRow
from online_sao.types import InteractionStatus, ReceiptStatus, TrajectoryState, VersionState

_WELL = (ReceiptStatus.TRAINED, ReceiptStatus.LIVE, ReceiptStatus.SUPERSEDED)
"""Statuses whose reason, if any, asks for nothing of who scored."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to a score, field by field as HTTP shows it. ``created`` and ``updated`` are Unix seconds.

    ``reward`` (in units of the reward, not of the score), ``update`` and ``masked_fraction`` are set once an update has used the score;
    ``policy_version`` is the version that update published. ``advice``: what to do about ``reason``, where anything is known. ``comment``: the
    scorer's own words, until they are erased.
    """

    id: str
    object: str
    completion_id: str
    choice: int
    metric: str
    value: float
    status: ReceiptStatus
    reason: str | None
    reward: float | None
    update: int | None
    policy_version: int | None
    masked_fraction: float | None
    created: float
    updated: float
    advice: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: ReceiptStatus
    reason: str | None
    at: float
    used: bool = False


def derive(rows: ReceiptRows) -> Receipt:
    """The receipt as it stands. Pure."""
    feedback, interaction, trajectory = rows.feedback, rows.interaction, rows.trajectory
    outcome = _outcome(rows)
    used = trajectory if outcome.used else None
    return Receipt(
        id=feedback.id,
        object="feedback",
        completion_id=interaction.completion_id,
        choice=interaction.choice,
        metric=feedback.metric,
        value=feedback.value,
        status=outcome.status,
        reason=outcome.reason,
        reward=used.reward if used else None,
        update=used.update_number if used else None,
        policy_version=rows.version.version if used and rows.version else None,
        masked_fraction=used.masked_fraction if used else None,
        created=feedback.created_at,
        updated=max(feedback.created_at, outcome.at),
        advice=advice_for(outcome.reason) if outcome.status not in _WELL else None,
        comment=feedback.comment,
    )


async def receipts_of(session: Session, feedback_ids: Sequence[str]) -> dict[str, Receipt]:
    """feedback id → receipt as it stands, for those that exist."""
    return {rows.feedback.id: derive(rows) for rows in await receipts.load(session, feedback_ids)}


def _outcome(rows: ReceiptRows) -> _Outcome:
    feedback, interaction, trajectory = rows.feedback, rows.interaction, rows.trajectory
    if feedback.refused_reason is not None:
        return _Outcome(ReceiptStatus.NOT_TRAINABLE, feedback.refused_reason, feedback.created_at)
    if feedback.superseded_by is not None:
        at = rows.replacement.created_at if rows.replacement else feedback.created_at
        return _Outcome(ReceiptStatus.SUPERSEDED, f"replaced by {feedback.superseded_by}", at)
    if trajectory is None:
        if interaction.erased_at is not None:
            return _Outcome(ReceiptStatus.NOT_TRAINABLE, "erased", max(feedback.created_at, interaction.erased_at))
        if not interaction.stored:
            return _Outcome(ReceiptStatus.NOT_TRAINABLE, "store_false", feedback.created_at)
        if interaction.status == InteractionStatus.GENERATING:
            return _Outcome(ReceiptStatus.RECEIVED, None, feedback.created_at)
        return _Outcome(ReceiptStatus.NOT_TRAINABLE, interaction.status, feedback.created_at)
    return _of_trajectory(TrajectoryState(trajectory.state), trajectory, rows)


def _of_trajectory(state: TrajectoryState, trajectory: TrajectoryRow, rows: ReceiptRows) -> _Outcome:
    at = trajectory.updated_at
    if state is TrajectoryState.PENDING:
        return _Outcome(ReceiptStatus.RECEIVED, None, at)
    if state in (TrajectoryState.READY, TrajectoryState.CLAIMED):
        return _Outcome(ReceiptStatus.QUEUED, None, at)
    if state is TrajectoryState.EXPIRED:
        return _Outcome(ReceiptStatus.EXPIRED, trajectory.reason, at)
    if state is TrajectoryState.NOT_TRAINABLE:
        return _Outcome(ReceiptStatus.NOT_TRAINABLE, trajectory.reason, at)
    if state is TrajectoryState.REJECTED:
        return _Outcome(ReceiptStatus.REJECTED, trajectory.reason, at, used=True)
    version = rows.version
    if rows.abandoned and version is not None:
        return _rolled_back(version.version, at, rows)
    if version is not None and version.activated_at is not None:
        return _Outcome(ReceiptStatus.LIVE, None, max(at, version.activated_at), used=True)
    failed = version is not None and version.state == VersionState.FAILED
    return _Outcome(ReceiptStatus.TRAINED, f"policy version failed: {version.reason}" if failed and version else None, at, used=True)


def _rolled_back(version: int, at: float, rows: ReceiptRows) -> _Outcome:
    done = rows.rollback
    if done is None:
        return _Outcome(ReceiptStatus.ROLLED_BACK, f"policy version {version} was rolled back", at, used=True)
    return _Outcome(ReceiptStatus.ROLLED_BACK, described(version, done.to_version, done.reason), max(at, done.created_at), used=True)
