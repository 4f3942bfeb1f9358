"""Alarms: raised when a condition holds, cleared when it is gone, one open of a kind. Owns their rows, their log lines and the automatic rollback.

What counts as wrong is in alarm_conditions, where the numbers come from in alarm_measurements. Knows nothing of who looks at alarms.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from online_sao.config import Settings
from online_sao.errors import OnlineSAOError, StorageError
from online_sao.service.alarm_conditions import KINDS, Finding, Kind, judge
from online_sao.service.alarm_measurements import measure
from online_sao.service.learner_watch import LearnerWatch
from online_sao.storage.repositories import alarms
from online_sao.storage.session import Database
from online_sao.storage.tables import AlarmRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlarmStatus:
    """One alarm. ``kind``: one of alarm_conditions.KINDS; ``severity``: warning or critical; ``value`` and ``threshold`` in the condition's unit;
    ``action``: what the service did by itself; ``cleared_at`` None: it is open."""

    id: int
    kind: str
    severity: str
    message: str
    advice: str
    policy_version: int | None
    value: float | None
    threshold: float | None
    action: str | None
    raised_at: float
    cleared_at: float | None


class Rollback(Protocol):
    def __call__(self, version: int, *, resume: bool = False, reason: str | None = None) -> Awaitable[object]: ...


class AlarmService:
    """``check`` every few seconds in the serving process. ``clock`` returns Unix seconds.

    ``rollback``: what alarms.auto_rollback does. ``watch``: what this server has seen of the learner.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        rollback: Rollback,
        clock: Callable[[], float] = time.time,
        watch: LearnerWatch | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._rollback = rollback
        self._clock = clock
        self._watch = watch or LearnerWatch(clock=clock)
        self._findings: Mapping[Kind, Finding | None] = {}

    def raised(self, open_now: Iterable[AlarmStatus]) -> dict[str, bool]:
        """Every kind → whether its alarm is among those ``open_now``, or its condition held when this process last judged it: true even where the
        disk was too full to write the alarm down."""
        kinds = {alarm.kind for alarm in open_now}
        return {kind: kind in kinds or self._findings.get(kind) is not None for kind in KINDS}

    def forget(self) -> None:
        """Somebody else checks from now on: what was found here says nothing any more."""
        self._findings = {}

    async def list(self, *, limit: int = 50, before: int | None = None, open_only: bool = False) -> tuple[AlarmStatus, ...]:
        """Newest first; ``before``: only alarms with a smaller id."""
        async with self._database.read() as session:
            return tuple(alarm_status(row) for row in await alarms.newest(session, limit, before=before, open_only=open_only))

    async def check(self) -> None:
        """Judge every condition; raise what is new, clear what is gone. Writes only where something has changed."""
        async with self._database.read() as session:
            measured, learner = await measure(session, self._settings.alarms, self._settings.storage.data_dir)
            open_now = {row.kind: row for row in await alarms.open_alarms(session)}
        measured = replace(measured, learner_silence=self._watch.overdue_silence(learner) if self._settings.learning.enabled else None)
        verdicts = judge(measured, self._settings.alarms)
        self._findings = {**self._findings, **verdicts}
        for kind, finding in verdicts.items():
            row = open_now.get(kind)
            if finding is None:
                if row is not None:
                    await self._clear(kind)
                continue
            if row is None:
                row = await self._raise(kind, finding)
            # Without an action yet: just raised, or the process ended or the database went away before it was done.
            if row is not None and row.action is None and finding.rollback_to is not None and self._settings.alarms.auto_rollback:
                await self._roll_back(row.id, finding.rollback_to, f"alarm {kind}: {finding.message}")

    async def _raise(self, kind: Kind, finding: Finding) -> AlarmRow | None:
        """None: another process has just raised it."""
        log = logger.critical if finding.severity == "critical" else logger.warning
        log("alarm %s: %s %s", kind, finding.message, finding.advice)
        row = AlarmRow(
            kind=kind,
            severity=finding.severity,
            message=finding.message,
            advice=finding.advice,
            policy_version=finding.policy_version,
            value=finding.value,
            threshold=finding.threshold,
            raised_at=self._clock(),
        )
        async with self._database.write() as session:
            return row if await alarms.raise_alarm(session, row) else None

    async def _roll_back(self, alarm_id: int, version: int, reason: str) -> None:
        """What was done is written beside the alarm; a rollback that cannot be made too, and it does not end the check. Raises StorageError: it is to
        be tried again."""
        try:
            await self._rollback(version, resume=self._settings.alarms.auto_rollback_resume, reason=reason)
            action = f"rolled back to version {version}"
            logger.critical("rolled back to version %d by itself (alarms.auto_rollback)", version)
        except StorageError:
            raise
        except OnlineSAOError as error:
            action = f"automatic rollback to version {version} failed: {error.message}"
            logger.error("the automatic rollback to version %d failed: %s", version, error.message)
        async with self._database.write() as session:
            await alarms.set_action(session, alarm_id, action)

    async def _clear(self, kind: Kind) -> None:
        async with self._database.write() as session:
            row = await alarms.clear(session, kind, self._clock())
        if row is not None:
            logger.warning("alarm %s cleared (it said: %s)", kind, row.message)


def alarm_status(row: AlarmRow) -> AlarmStatus:
    return AlarmStatus(
        id=row.id,
        kind=row.kind,
        severity=row.severity,
        message=row.message,
        advice=row.advice,
        policy_version=row.policy_version,
        value=row.value,
        threshold=row.threshold,
        action=row.action,
        raised_at=row.raised_at,
        cleared_at=row.cleared_at,
    )
