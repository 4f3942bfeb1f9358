"""Scores: from what a client sends to a receipt. Owns the rules of which score counts; knows nothing of HTTP or of how a reward trains.

A score is on disk before its receipt is returned. Scores that arrive while a transaction runs share the next one, in which nothing else happens;
scores of one answer, or under one idempotency key, never do: each sees what the ones before it left.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from online_sao.config import RewardSettings, Settings
from online_sao.errors import (
    CompletionNotFoundError,
    FeedbackNotFoundError,
    IdempotencyConflictError,
    InvalidRequestError,
    LifecycleError,
    OnlineSAOError,
    StorageError,
)
from online_sao.experience.rewards import combine
from online_sao.publishing import lifecycle
from online_sao.service.receipts import Receipt, derive, receipts_of
from online_sao.service.submissions import FeedbackSubmission, Score, checked
from online_sao.storable import unstorable
from online_sao.storage.group_commit import GroupCommit, MustWaitError
from online_sao.storage.repositories import feedback, instances, interactions, leases
from online_sao.storage.repositories.receipts import ReceiptRows
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import FeedbackRow, TrajectoryRow
from online_sao.types import Feedback, TrajectoryState

ALREADY_USED = "already_used"
ANSWER_SECONDS = 30.0
"""What a score waits for a database that says nothing. A burst of scores waits for a free connection, too, and should not be refused for that."""
NOT_WEIGHTED = "metric_not_weighted"
_USED = frozenset({TrajectoryState.CLAIMED, TrajectoryState.TRAINED, TrajectoryState.REJECTED})


@dataclass(frozen=True, slots=True)
class _New:
    """A score that is recorded as ``row``."""

    target: feedback.Target
    row: FeedbackRow


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A score that another stands for, by its id. ``row`` keeps the key it came under, where that is a new one."""

    standing: str
    row: FeedbackRow | None = None


class FeedbackService:
    """``clock`` returns Unix seconds. ``waits``: whether a completion is logged, but not yet where scores can find it."""

    def __init__(
        self, database: Database, settings: Settings, clock: Callable[[], float] = time.time, waits: Callable[[str], bool] = lambda _id: False
    ) -> None:
        self._database = database
        self._settings = settings.reward
        self._clock = clock
        self._waits = waits
        self._commits = GroupCommit(database, self._record, _touches, ANSWER_SECONDS)

    async def submit(self, submission: FeedbackSubmission) -> tuple[Receipt, bool]:
        """Record a score. Returns its receipt and whether a new score was recorded (False: an equal one stands already).

        Raises CompletionNotFoundError, InvalidRequestError (choice, metric, comment, key), InvalidScoreError, IdempotencyConflictError,
        UnsupportedFeatureError for an episode, and StorageError where the score was not kept.
        """
        score = checked(submission, self._settings)
        try:
            return await self._commits.submit(score)
        except (IdempotencyConflictError, LifecycleError, MustWaitError):
            # The key was used, or the answer claimed or logged, by a transaction that ran beside ours: on a second look that is seen.
            return await self._commits.submit(score)

    async def get(self, feedback_id: str) -> Receipt:
        """The receipt as it stands now. Raises FeedbackNotFoundError."""
        if unstorable(feedback_id) is None:
            async with self._database.read() as session:
                row = await feedback.by_id(session, feedback_id)
                if row is not None:
                    return (await receipts_of(session, [row.id]))[row.id]
        raise FeedbackNotFoundError(f"There is no feedback {feedback_id[:80]!r}.", param="id")

    async def _record(self, session: Session, scores: Sequence[Score], wait: bool) -> list[tuple[Receipt, bool] | Exception]:
        """The receipt of each score, or why there is none. No two of them are of one answer or under one key."""
        now = self._clock()
        known = await feedback.by_idempotency_keys(session, [score.idempotency_key for score in scores if score.idempotency_key is not None])
        targets = await feedback.targets(session, [(score.completion_id, score.choice) for score in scores], wait=wait)
        decided: list[_New | _Repeat | Exception] = []
        for score in scores:
            earlier, target = known.get(score.idempotency_key or ""), targets.get((score.completion_id, score.choice))
            try:
                decided.append(_replayed(earlier, score) if earlier is not None else await self._decide(session, score, target, now))
            except (OnlineSAOError, MustWaitError) as error:
                decided.append(error)
        await feedback.insert(session, [one.row for one in decided if not isinstance(one, Exception) and one.row is not None])
        await self._count(session, [one for one in decided if isinstance(one, _New) and one.row.refused_reason is None], now)
        receipts = await receipts_of(session, [one.standing for one in decided if isinstance(one, _Repeat)])
        return [one if isinstance(one, Exception) else _answer(one, receipts) for one in decided]

    async def _decide(self, session: Session, score: Score, target: feedback.Target | None, now: float) -> _New | _Repeat:
        if target is None and self._waits(score.completion_id):
            raise StorageError("The completion is still on its way into the database, which was away. Send the score again.", retry_after=1)
        if target is None:
            raise await _no_target(session, score)
        if not target.held:
            raise MustWaitError
        row = self._row(target, score, now)
        for standing in target.standing(row.metric):
            if standing.value == row.value and row.comment in (None, standing.comment):
                if row.idempotency_key is None:
                    return _Repeat(standing.id)
                row.refused_reason, row.superseded_by = feedback.DUPLICATE, standing.id
                return _Repeat(standing.id, row)
        return _New(target, row)

    async def _count(self, session: Session, new: Sequence[_New], now: float) -> None:
        """Each takes the place of the score of its metric before it, and its answer gets the reward of the scores it has now."""
        replaced = {}
        scored = []
        for one in new:
            current = one.target.current
            if one.row.metric in current:
                replaced[current[one.row.metric].id] = one.row.id
            if one.target.trajectory is not None:
                scored.append((one.target.trajectory, [*({**current, one.row.metric: one.row}).values()]))
        await feedback.supersede(session, replaced)
        await _reward(session, scored, self._settings, now)

    def _row(self, target: feedback.Target, score: Score, now: float) -> FeedbackRow:
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
            refused_reason=self._refusal(score, target.trajectory),
            created_at=now,
        )

    def _refusal(self, score: Score, trajectory: TrajectoryRow | None) -> str | None:
        if not self._settings.metric_weights.get(score.metric):
            return NOT_WEIGHTED
        return ALREADY_USED if trajectory is not None and trajectory.state in _USED else None


def _answer(decided: _New | _Repeat, standing: Mapping[str, Receipt]) -> tuple[Receipt, bool]:
    if isinstance(decided, _Repeat):
        return standing[decided.standing], False
    return derive(ReceiptRows(decided.row, decided.target.interaction, decided.target.trajectory)), True


def _touches(score: Score) -> list[Hashable]:
    """What scores that share a transaction may not have in common."""
    answer: Hashable = (score.completion_id, score.choice)
    return [answer] if score.idempotency_key is None else [answer, score.idempotency_key]


def _replayed(earlier: FeedbackRow, score: Score) -> _Repeat:
    """What was answered under the score's idempotency key before."""
    if earlier.body_digest != score.digest:
        raise IdempotencyConflictError(
            f"The idempotency key {score.idempotency_key!r} was used for another body. Use a new key for a new score.", param="idempotency_key"
        )
    return _Repeat((earlier.superseded_by if earlier.refused_reason == feedback.DUPLICATE else None) or earlier.id)


async def apply_scores(session: Session, trajectory: TrajectoryRow, settings: RewardSettings, now: float) -> None:
    """Give a trajectory the reward of the scores its interaction has so far: PENDING → READY.

    Part of the transaction that completes an interaction: a score may have come before its trajectory existed. Nothing happens where the
    trajectory cannot train, or where no score carries weight.
    """
    await _reward(session, [(trajectory, [*(await feedback.current(session, trajectory.interaction_id)).values()])], settings, now)


async def _reward(session: Session, scored: Sequence[tuple[TrajectoryRow, Sequence[FeedbackRow]]], settings: RewardSettings, now: float) -> None:
    """PENDING → READY, or another reward while READY; nothing in any other state. ``scored``: trajectories with the scores that count."""
    ready: dict[int, float] = {}
    changed: dict[int, float] = {}
    low, high = settings.score_min, settings.score_max
    for trajectory, scores in scored:
        # A score given while the configured range was wider counts as the nearest end of today's.
        reward = combine([Feedback(row.metric, min(max(row.value, low), high)) for row in scores], settings.metric_weights, low, high)
        if reward is None:
            continue
        if trajectory.state == TrajectoryState.PENDING:
            ready[trajectory.id] = reward
        elif trajectory.state == TrajectoryState.READY and reward != trajectory.reward:
            changed[trajectory.id] = reward
    await lifecycle.make_ready(session, ready, now)
    await lifecycle.replace_rewards(session, changed, now)


async def _no_target(session: Session, score: Score) -> InvalidRequestError | CompletionNotFoundError | StorageError:
    choices = len(await interactions.by_completion(session, score.completion_id))
    if not choices and await instances.others_may_hold_more(session, await leases.database_clock(session)):
        return StorageError("The completion may still be in another server's spool: the database was away. Send the score again.", retry_after=2)
    if not choices:
        return CompletionNotFoundError(f"There is no completion {score.completion_id[:80]!r}.", param="completion_id")
    numbers = "choice 0" if choices == 1 else f"choices 0 to {choices - 1}"
    return InvalidRequestError(f"Completion {score.completion_id} has {choices} ({numbers}); there is no choice {score.choice}.", param="choice")
