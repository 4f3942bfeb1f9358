"""Where everything stands, as records. Owns the snapshot that the dashboard and the status route show; knows nothing of how they show it.

Each answer is one consistent read of the database and says with ``as_of`` when it was taken. All times are Unix seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from online_sao.service.alarms import AlarmStatus, alarm_status
from online_sao.service.evaluations import EvaluationStatus, evaluation_status
from online_sao.service.learner_watch import LearnerWatch, Presence
from online_sao.service.score_statistics import Delay, delay_of, mean_interval
from online_sao.storage.repositories import (
    alarms,
    evaluations,
    instances,
    learner,
    leases,
    outcomes,
    overview,
    policies,
    score_rollups,
    trajectories,
    updates,
)
from online_sao.storage.repositories.overview import ScorePoint
from online_sao.storage.repositories.score_rollups import HOUR, Key, Sums
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import LearnerRow, PolicyVersionRow, ServingInstanceRow, SwapRow, UpdateRow
from online_sao.types import ReceiptStatus, TrajectoryState, VersionState

COVERAGE_HOURS = 24


@dataclass(frozen=True, slots=True)
class LearnerStatus:
    """``phase`` and ``detail``: its last word, which may be old. ``heartbeat_age``: seconds since then; None: it has never run. ``presence``:
    whether it is there now, and ``silence`` the seconds without a sign of life, counted from this server's start or its process's at the earliest."""

    phase: str
    detail: str | None
    paused: bool
    pause_reason: str | None
    heartbeat_age: float | None
    pid: int | None
    lineage_epoch: int
    head_version: int
    head_update: int
    presence: Presence = "alive"
    silence: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateStatus:
    """One update. ``metrics``: name (docs/design.md §4) → number, null where it was not finite."""

    number: int
    accepted: bool
    reason: str | None
    lineage_epoch: int
    policy_version: int | None
    parent_version: int
    metrics: Mapping[str, float | None]
    ratio_histogram: Mapping[str, Any]
    started_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One policy version, with the mean of the ``scores`` its answers got (None without any) and the 95 % interval of that mean (None for fewer than
    two)."""

    version: int
    parent: int | None
    lineage_epoch: int
    state: VersionState
    reason: str | None
    update: int
    created_at: float
    activated_at: float | None
    retired_at: float | None
    mean_score: float | None
    scores: int
    score_interval: tuple[float, float] | None = None
    files_removed_at: float | None = None
    """When retention removed its files: it can be read about, and no longer served."""


@dataclass(frozen=True, slots=True)
class SwapStatus:
    policy_version: int
    pause_seconds: float
    total_seconds: float
    requests_in_flight: int
    recomputed_tokens: int
    at: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of the completed answers that were asked for in the last ``seconds`` (24 full hours and the one under way), how many have a score."""

    seconds: float
    completed: int
    scored: int

    @property
    def fraction(self) -> float | None:
        return self.scored / self.completed if self.completed else None


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One serving process, by its own word ``heartbeat_age`` seconds ago. ``policy_version``: what its engine samples from; None: it is loading.
    ``problem``: why it does not serve the active version, or nothing. ``spool_records``: what it has still to write to the database."""

    host: str
    pid: int
    leading: bool
    policy_version: int | None
    problem: str | None
    spool_records: int
    started_at: float
    heartbeat_age: float


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """Everything at one moment. ``versions`` and ``swaps`` are newest first, ``scores`` oldest first; ``total_scores`` counts those not shown too."""

    as_of: float
    generating: int
    pipeline: Mapping[TrajectoryState, int]
    oldest_ready_at: float | None
    active_version: int
    learner: LearnerStatus
    last_update: UpdateStatus | None
    versions: tuple[VersionStatus, ...]
    swaps: tuple[SwapStatus, ...]
    scores: tuple[ScorePoint, ...]
    total_scores: int
    coverage: Coverage
    alarms: tuple[AlarmStatus, ...]
    """Those open now, newest first."""
    delay: Delay | None = None
    processes: tuple[ProcessStatus, ...] = ()
    """The serving processes of this database, the longest serving first."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Updates since there are any; receipts of the scores given in the last COVERAGE_HOURS, every status a key."""

    accepted_updates: int
    refused_updates: int
    receipts: Mapping[ReceiptStatus, int]


class StatusService:
    """``clock`` returns Unix seconds. ``watch``: what this server has seen of the learner."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time, watch: LearnerWatch | None = None) -> None:
        self._database = database
        self._clock = clock
        self._watch = watch or LearnerWatch(clock=clock)

    async def snapshot(self, *, scores: int = 200, versions: int = 50, swaps: int = 20) -> StatusSnapshot:
        """The newest ``scores``, ``versions`` and ``swaps``, and everything there is one of. A fixed number of queries, whatever is asked for."""
        async with self._database.read() as session:
            return await self._snapshot(session, scores=scores, versions=versions, swaps=swaps)

    async def measured(self, seconds: float) -> tuple[StatusSnapshot, Totals, EvaluationStatus | None]:
        """For metrics, of one moment: the snapshot with next to nothing in its lists, the totals, and the newest evaluation. Raises StorageError,
        with PostgreSQL within ``seconds`` and a few."""
        async with self._database.promptly(seconds), self._database.read() as session:
            snapshot = await self._snapshot(session, scores=0, versions=1, swaps=0)
            accepted, refused = await updates.counts(session)
            receipts = await outcomes.scores_by_receipt(session, snapshot.as_of - COVERAGE_HOURS * HOUR)
            newest = await evaluations.newest(session, 1)
        return snapshot, Totals(accepted, refused, receipts), evaluation_status(newest[0]) if newest else None

    async def _snapshot(self, session: Session, *, scores: int, versions: int, swaps: int) -> StatusSnapshot:
        as_of = self._clock()
        heartbeat_clock = await leases.database_clock(session)  # what processes stamp their signs of life with
        last = await updates.latest(session)
        tail = await score_tail(session)
        points = tuple(await overview.recent_scores(session, scores))
        return StatusSnapshot(
            as_of=as_of,
            generating=await overview.generating(session),
            pipeline=await trajectories.counts_by_state(session),
            oldest_ready_at=(await trajectories.queue(session)).oldest_ready_at,
            active_version=(await policies.active(session)).version,
            learner=learner_status(await learner.get(session), as_of, self._watch),
            last_update=update_status(last) if last else None,
            versions=await version_statuses(session, await policies.newest(session, versions), tail),
            alarms=tuple(alarm_status(row) for row in await alarms.open_alarms(session)),
            swaps=tuple(_swap_status(row) for row in await policies.swaps(session, swaps)),
            scores=points,
            total_scores=(await score_rollups.overall(session, tail)).scores,
            coverage=await _coverage(session, as_of, tail),
            delay=delay_of([point.delay for point in points]),
            processes=tuple(_process_status(row, heartbeat_clock) for row in await instances.all_rows(session)),
        )


async def score_tail(session: Session) -> dict[Key, Sums]:
    """What the scores since the newest roll-up add to it."""
    mark = await score_rollups.mark(session)
    return await score_rollups.change(session, None if mark is None else mark.settled_at, None)


async def version_statuses(session: Session, rows: Sequence[PolicyVersionRow], tail: dict[Key, Sums] | None = None) -> tuple[VersionStatus, ...]:
    """One for each row, in the same order. ``tail``: what ``score_tail`` gave in this session, where it has been asked already."""
    tail = await score_tail(session) if tail is None else tail
    sums = await score_rollups.by_version(session, [row.version for row in rows], tail)
    return tuple(_version_status(row, sums.get(row.version, Sums())) for row in rows)


async def _coverage(session: Session, as_of: float, tail: dict[Key, Sums]) -> Coverage:
    hour = int(as_of // HOUR) - COVERAGE_HOURS
    scored = (await score_rollups.overall(session, tail, since_hour=hour)).completed
    return Coverage(as_of - hour * HOUR, await overview.completed_since(session, hour * HOUR), scored)


def _version_status(row: PolicyVersionRow, sums: Sums) -> VersionStatus:
    mean, variance = sums.mean, sums.variance
    return VersionStatus(
        version=row.version,
        parent=row.parent,
        lineage_epoch=row.lineage_epoch,
        state=VersionState(row.state),
        reason=row.reason,
        update=row.update_number,
        created_at=row.created_at,
        activated_at=row.activated_at,
        retired_at=row.retired_at,
        files_removed_at=row.files_removed_at,
        mean_score=mean,
        scores=sums.scores,
        score_interval=None if mean is None or variance is None else mean_interval(mean, variance, sums.scores),
    )


def _process_status(row: ServingInstanceRow, now: float) -> ProcessStatus:
    host, pid, _ = row.owner.rsplit(":", 2)
    return ProcessStatus(
        host=host,
        pid=int(pid),
        leading=row.leading,
        policy_version=row.policy_version,
        problem=row.problem,
        spool_records=row.spool_records,
        started_at=row.started_at,
        heartbeat_age=max(0.0, now - row.heartbeat_at),
    )


def learner_status(row: LearnerRow, as_of: float, watch: LearnerWatch) -> LearnerStatus:
    seen = watch.look(row)
    return LearnerStatus(
        phase=row.phase,
        detail=row.detail,
        paused=row.paused,
        pause_reason=row.pause_reason,
        heartbeat_age=None if row.heartbeat_at is None else as_of - row.heartbeat_at,
        pid=row.pid,
        lineage_epoch=row.lineage_epoch,
        head_version=row.head_version,
        head_update=row.head_update,
        presence=seen.presence,
        silence=seen.silence,
    )


def update_status(row: UpdateRow) -> UpdateStatus:
    return UpdateStatus(
        number=row.update_number,
        accepted=row.accepted,
        reason=row.reason,
        lineage_epoch=row.lineage_epoch,
        policy_version=row.policy_version,
        parent_version=row.parent_version,
        metrics=row.metrics,
        ratio_histogram=row.ratio_histogram,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _swap_status(row: SwapRow) -> SwapStatus:
    return SwapStatus(
        policy_version=row.policy_version,
        pause_seconds=row.pause_seconds,
        total_seconds=row.total_seconds,
        requests_in_flight=row.requests_in_flight,
        recomputed_tokens=row.recomputed_tokens,
        at=row.created_at,
    )
