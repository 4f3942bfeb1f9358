"""From the queue of scored trajectories to one claimed batch that can be trained.

Owns when a batch is due, and what becomes of rows that cannot train. Knows nothing of models or of what an update does.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from dataclasses import dataclass

from online_sao.experience.trajectories import build_trajectory
from online_sao.publishing import lifecycle
from online_sao.storage.repositories import learner, policies, trajectories
from online_sao.storage.repositories.trajectories import ClaimedTrajectory, Queue
from online_sao.storage.session import Database
from online_sao.types import Trajectory, TrajectoryState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """What an update starts from. An update finds its head changed when an operator has rolled back meanwhile."""

    lineage_epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """``policy_lags`` and ``trajectories`` in the same order; lag in updates, of each trajectory's oldest token."""

    claim_id: str
    head: Head
    trajectories: tuple[Trajectory, ...]
    policy_lags: tuple[int, ...]

    @property
    def trajectory_ids(self) -> tuple[int, ...]:
        return tuple(trajectory.trajectory_id for trajectory in self.trajectories)


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """A batch is due when ``batch_size`` trajectories wait, or ``min_batch_size`` do and the oldest has for ``max_age_seconds``."""

    batch_size: int
    min_batch_size: int
    max_age_seconds: float
    max_policy_lag: int
    lease_seconds: float
    vocabulary_size: int

    def due(self, queue: Queue, now: float) -> bool:
        if queue.ready >= self.batch_size:
            return True
        aged = queue.oldest_ready_at is not None and now - queue.oldest_ready_at >= self.max_age_seconds
        return aged and queue.ready >= self.min_batch_size


async def claim_batch(database: Database, rules: ClaimRules, head: Head) -> ClaimedBatch | None:
    """Claim what is due for the learner that stands on ``head``; None if nothing is, or the learner is paused or no longer stands there.

    Too old trajectories expire first. A row that cannot be trained is REJECTED with the reason and the others go on without it, or back to
    the queue where too few are left.
    """
    async with database.read() as session:
        if not rules.due(await trajectories.queue(session), time.time()):
            return None
    claim_id, now = uuid.uuid4().hex, time.time()
    async with database.write() as session:
        row = await learner.get(session)
        if row.paused or (row.lineage_epoch, row.head_version) != (head.lineage_epoch, head.version):
            return None
        expired = await lifecycle.expire_lagging(session, head_version=head.version, max_policy_lag=rules.max_policy_lag, now=now)
        if expired:
            logger.info("%d trajectories expired: sampled more than %d updates ago", expired, rules.max_policy_lag)
        if not rules.due(await trajectories.queue(session), now):
            return None
        await lifecycle.claim(session, limit=rules.batch_size, claim_id=claim_id, expires_at=now + rules.lease_seconds, now=now)
        lags = await policies.lags(session, head.version)
        claimed, broken = await trajectories.load_claimed(session, claim_id)
        usable: list[tuple[Trajectory, int]] = []
        for item in claimed:
            try:
                usable.append((_build(item, rules.vocabulary_size), lags[item.oldest_policy_version]))
            except (ValueError, TypeError, LookupError) as error:
                broken[item.trajectory_id] = str(error)
        for trajectory_id, reason in broken.items():
            logger.warning("trajectory %d cannot be trained: %s", trajectory_id, reason)
            changes = {"reason": f"cannot be trained: {reason}", "claim_expires_at": None}
            await lifecycle.move_trajectories(session, [trajectory_id], TrajectoryState.REJECTED, now=now, claim_id=claim_id, changes=changes)
        if len(usable) < min(rules.min_batch_size, rules.batch_size):
            await lifecycle.release(session, claim_id, now)
            return None
    return ClaimedBatch(claim_id, head, tuple(trajectory for trajectory, _ in usable), tuple(lag for _, lag in usable))


def buildable(item: ClaimedTrajectory, vocabulary_size: int) -> Trajectory | None:
    """The trajectory of a logged interaction; None where it cannot train."""
    try:
        return _build(item, vocabulary_size)
    except (ValueError, TypeError):
        return None


def _build(item: ClaimedTrajectory, vocabulary_size: int) -> Trajectory:
    """Raises ValueError or TypeError where a row cannot train. Logprobs that are numbers but not finite pass: the learner masks such tokens."""
    if not math.isfinite(item.reward):
        raise ValueError(f"its reward is {item.reward}")
    trajectory = build_trajectory(item.trajectory_id, [item.interaction], [item.reward])
    if not all(type(token) is int and 0 <= token < vocabulary_size for token in trajectory.token_ids):
        raise ValueError(f"it holds a token id outside 0 … {vocabulary_size - 1}")
    if not all(isinstance(logprob, (int, float)) for logprob in trajectory.behavior_logprobs):
        raise TypeError("a behavior logprob is not a number")
    if not all(math.isfinite(temperature) and temperature > 0 for temperature in trajectory.temperatures):
        raise ValueError("its temperature is not a positive number")
    return trajectory
