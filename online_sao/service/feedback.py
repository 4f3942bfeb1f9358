"""Scores: from what a client sends to a receipt. Owns the rules of which score counts; knows nothing of HTTP or of how a reward trains.

A score is on disk before its receipt is returned. One transaction per score; nothing else happens inside it.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from online_sao.config import RewardSettings, Settings
from online_sao.errors import (
    CompletionNotFoundError,
    FeedbackNotFoundError,
    IdempotencyConflictError,
    InvalidRequestError,
    InvalidScoreError,
    LifecycleError,
    StorageError,
    UnsupportedFeatureError,
)
from online_sao.experience.rewards import combine
from online_sao.publishing import lifecycle
from online_sao.service.receipts import Receipt, derive, receipts_of
from online_sao.storable import unstorable
from online_sao.storage.repositories import feedback, instances, interactions, leases, trajectories
from online_sao.storage.repositories.receipts import ReceiptRows
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import FeedbackRow, TrajectoryRow
from online_sao.types import Feedback, TrajectoryState

ALREADY_USED = "already_used"
ANSWER_SECONDS = 30.0
"""What a score waits for a database that says nothing. A burst of scores waits for a free connection, too, and should not be refused for that."""
NOT_WEIGHTED = "metric_not_weighted"
_USED = frozenset({TrajectoryState.CLAIMED, TrajectoryState.TRAINED, TrajectoryState.REJECTED})
_MAX_COMMENT = 10_000


@dataclass(frozen=True, slots=True)
class FeedbackSubmission:
    """A score as it was sent. ``value`` is the JSON value, unconverted: a string "0.7" is refused, not read."""

    completion_id: str | None
    value: object
    choice: int = 0
    metric: str = "score"
    comment: str | None = None
    idempotency_key: str | None = None
    episode_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Score:
    """A submission whose every field has been checked."""

    completion_id: str
    choice: int
    metric: str
    value: float
    comment: str | None
    idempotency_key: str | None

    @property
    def digest(self) -> str:
        body = [self.completion_id, self.choice, self.metric, self.value, self.comment]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()


class FeedbackService:
    """``clock`` returns Unix seconds. ``waits``: whether a completion is logged, but not yet where scores can find it."""

    def __init__(
        self, database: Database, settings: Settings, clock: Callable[[], float] = time.time, waits: Callable[[str], bool] = lambda _id: False
    ) -> None:
        self._database = database
        self._settings = settings.reward
        self._clock = clock
        self._waits = waits

    async def submit(self, submission: FeedbackSubmission) -> tuple[Receipt, bool]:
        """Record a score. Returns its receipt and whether a new score was recorded (False: an equal one stands already).

        Raises CompletionNotFoundError, InvalidRequestError (choice, metric, comment, key), InvalidScoreError, IdempotencyConflictError,
        UnsupportedFeatureError for an episode, and StorageError where the score was not kept.
        """
        score = _checked(submission, self._settings)
        try:
            return await self._record(score)
        except (IdempotencyConflictError, LifecycleError):
            # The key was used, or the trajectory claimed, by a transaction that ran beside ours: on a second look that is seen.
            return await self._record(score)

    async def get(self, feedback_id: str) -> Receipt:
        """The receipt as it stands now. Raises FeedbackNotFoundError."""
        if unstorable(feedback_id) is None:
            async with self._database.read() as session:
                row = await feedback.by_id(session, feedback_id)
                if row is not None:
                    return (await receipts_of(session, [row.id]))[row.id]
        raise FeedbackNotFoundError(f"There is no feedback {feedback_id[:80]!r}.", param="id")

    async def _record(self, score: _Score) -> tuple[Receipt, bool]:
        async with self._database.promptly(ANSWER_SECONDS), self._database.write() as session:
            standing = await self._replayed(session, score)
            if standing is None:
                target = await feedback.target(session, score.completion_id, score.choice)
                if target is None and self._waits(score.completion_id):
                    raise StorageError("The completion is still on its way into the database, which was away. Send the score again.", retry_after=1)
                if target is None:
                    raise await _no_target(session, score)
                row = self._row(target, score)
                standing = await _equal(session, target, row)
                if standing is None:
                    return await self._store(session, target, row), True
            return (await receipts_of(session, [standing]))[standing], False

    async def _replayed(self, session: Session, score: _Score) -> str | None:
        """The score that was answered under this idempotency key before, if any."""
        if score.idempotency_key is None:
            return None
        row = await feedback.by_idempotency_key(session, score.idempotency_key)
        if row is None:
            return None
        if row.body_digest != score.digest:
            raise IdempotencyConflictError(
                f"The idempotency key {score.idempotency_key!r} was used for another body. Use a new key for a new score.", param="idempotency_key"
            )
        return row.superseded_by if row.refused_reason == feedback.DUPLICATE else row.id

    def _row(self, target: feedback.Target, score: _Score) -> FeedbackRow:
        trajectory = target.trajectory
        return FeedbackRow(
            id=f"fb-{uuid.uuid4().hex}",
            interaction_id=target.interaction.id,
            metric=score.metric,
            value=score.value,
            # What is not to be stored, or was erased, keeps no text.
            comment=score.comment if target.interaction.stored else None,
            idempotency_key=score.idempotency_key,
            body_digest=score.digest,
            superseded_by=None,
            refused_reason=self._refusal(score, trajectory),
            created_at=self._clock(),
        )

    def _refusal(self, score: _Score, trajectory: TrajectoryRow | None) -> str | None:
        if not self._settings.metric_weights.get(score.metric):
            return NOT_WEIGHTED
        return ALREADY_USED if trajectory is not None and trajectory.state in _USED else None

    async def _store(self, session: Session, target: feedback.Target, row: FeedbackRow) -> Receipt:
        await feedback.insert(session, row)
        if row.refused_reason is None:
            current = target.current
            if row.metric in current:
                await feedback.supersede(session, current[row.metric].id, by=row.id)
            if target.trajectory is not None:
                await _reward(session, target.trajectory, [*({**current, row.metric: row}).values()], self._settings, row.created_at)
        return derive(ReceiptRows(row, target.interaction, target.trajectory))


async def _equal(session: Session, target: feedback.Target, row: FeedbackRow) -> str | None:
    """The score that ``row`` only repeats, if there is one. The key it came under is kept."""
    for standing in target.standing(row.metric):
        if standing.value == row.value and row.comment in (None, standing.comment):
            if row.idempotency_key is not None:
                row.refused_reason, row.superseded_by = feedback.DUPLICATE, standing.id
                await feedback.insert(session, row)
            return standing.id
    return None


async def apply_scores(session: Session, trajectory: TrajectoryRow, settings: RewardSettings, now: float) -> None:
    """Give a trajectory the reward of the scores its interaction has so far: PENDING → READY.

    Part of the transaction that completes an interaction: a score may have come before its trajectory existed. Nothing happens where the
    trajectory cannot train, or where no score carries weight.
    """
    await _reward(session, trajectory, [*(await feedback.current(session, trajectory.interaction_id)).values()], settings, now)


async def _reward(session: Session, trajectory: TrajectoryRow, scores: list[FeedbackRow], settings: RewardSettings, now: float) -> None:
    """PENDING → READY, or another reward while READY; nothing in any other state."""
    if trajectory.state not in (TrajectoryState.PENDING, TrajectoryState.READY):
        return
    # A score given while the configured range was wider counts as the nearest end of today's.
    low, high = settings.score_min, settings.score_max
    reward = combine([Feedback(row.metric, min(max(row.value, low), high)) for row in scores], settings.metric_weights, low, high)
    if reward is None:
        return
    if trajectory.state == TrajectoryState.PENDING:
        await lifecycle.make_ready(session, [trajectory.id], reward, now)
    elif reward != trajectory.reward:
        await trajectories.replace_reward(session, trajectory.id, reward, now)


async def _no_target(session: Session, score: _Score) -> InvalidRequestError | CompletionNotFoundError | StorageError:
    choices = len(await interactions.by_completion(session, score.completion_id))
    if not choices and await instances.others_may_hold_more(session, await leases.database_clock(session)):
        return StorageError("The completion may still be in another server's spool: the database was away. Send the score again.", retry_after=2)
    if not choices:
        return CompletionNotFoundError(f"There is no completion {score.completion_id[:80]!r}.", param="completion_id")
    numbers = "choice 0" if choices == 1 else f"choices 0 to {choices - 1}"
    return InvalidRequestError(f"Completion {score.completion_id} has {choices} ({numbers}); there is no choice {score.choice}.", param="choice")


def _checked(submission: FeedbackSubmission, settings: RewardSettings) -> _Score:
    if submission.episode_id is not None:
        raise UnsupportedFeatureError("Episodes cannot be scored yet: score each completion by its completion_id.", param="episode_id")
    if not submission.completion_id:
        raise InvalidRequestError("Name the completion that is scored: completion_id is missing.", param="completion_id")
    if unstorable(submission.completion_id) is not None:
        raise CompletionNotFoundError("There is no such completion.", param="completion_id")
    return _Score(
        completion_id=submission.completion_id,
        choice=submission.choice,
        metric=_text(submission.metric, "metric", 64) or "",
        value=_score_value(submission.value, settings),
        comment=_text(submission.comment, "comment", _MAX_COMMENT),
        idempotency_key=_text(submission.idempotency_key, "idempotency_key", 256),
    )


def _score_value(value: object, settings: RewardSettings) -> float:
    low, high = settings.score_min, settings.score_max
    if isinstance(value, bool):
        return high if value else low
    # NaN fails every comparison, infinities and integers too large for a float fail this one.
    if isinstance(value, (int, float)) and low <= value <= high:
        return float(value)
    raise InvalidScoreError(f"value must be a number from {low:g} to {high:g}, or true or false, not {_shown(value)}.", param="value")


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, (int, float)):
        # repr of a very long integer raises.
        return repr(value) if abs(value) < 1e100 or isinstance(value, float) else "an integer of more than 100 digits"
    return "an array" if isinstance(value, list) else "an object"


def _text(text: str | None, param: str, limit: int) -> str | None:
    if text is None:
        return None
    if not (text or param == "comment") or len(text) > limit or unstorable(text) is not None:
        raise InvalidRequestError(f"{param} must be 1 to {limit} characters of text, without NUL or lone surrogates.", param=param)
    return text or None
