"""The numbers the alarm conditions look at, read from the database and the disk. Owns how scores and lengths are gathered; judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from online_sao.config import AlarmSettings
from online_sao.service.alarm_conditions import Ability, LatestUpdate, Lengths, Measured, ScoreGroup
from online_sao.service.evaluations import evaluation_status
from online_sao.storage.repositories import alarms, evaluations, learner, overview, policies, updates
from online_sao.storage.session import Session
from online_sao.storage.tables import LearnerRow

SCORES = 1000
"""Newest scores looked at."""
ANSWERS = 50
"""Newest answers whose lengths are averaged, and as many of the base version's."""
MIN_ANSWERS = 20
"""Fewer say nothing about length."""


async def measure(session: Session, settings: AlarmSettings, data_dir: Path) -> tuple[Measured, LearnerRow]:
    """Everything but the learner's silence, which takes a clock and a memory; and the learner's row for it."""
    row = await learner.get(session)
    active = (await policies.active(session)).version
    lineage = sorted((await policies.lags(session, active, SCORES)).items(), key=lambda item: item[1])
    scores = await overview.recent_scores(session, SCORES)
    last = await updates.latest(session)
    measured = Measured(
        scores=group_scores([version for version, _ in lineage], ((p.policy_version, p.value) for p in scores), settings.score_drop_min_scores),
        ability=await _ability(session, active),
        lengths=await _lengths(session),
        update=None if last is None else LatestUpdate(last.update_number, last.accepted, last.reason, last.metrics.get("policy/kl_base")),
        self_check_problem=(row.pause_reason or "the self-check failed") if row.paused and row.phase == "alarm" else None,
        disk_free_bytes=float(psutil.disk_usage(str(data_dir)).free),
    )
    return measured, row


def group_scores(lineage: Sequence[int], points: Iterable[tuple[int, float]], min_scores: int) -> tuple[ScoreGroup, ScoreGroup] | None:
    """(before, recent): the scores of the newest versions of ``lineage`` (newest first), as many whole versions as it takes to have
    ``min_scores``, and the same of those before them. With many scores a version that is the active one against the previous one.

    ``points``: (version, score). None where there are too few on a side. Versions off the lineage (rolled back) do not count.
    """
    by_version: dict[int, list[float]] = {}
    for version, value in points:
        by_version.setdefault(version, []).append(value)
    remaining = iter(lineage)
    recent = _take(remaining, by_version, min_scores)
    before = _take(remaining, by_version, min_scores)
    return (before, recent) if before is not None and recent is not None else None


def _take(lineage: Iterable[int], by_version: Mapping[int, Sequence[float]], min_scores: int) -> ScoreGroup | None:
    newest: int | None = None
    scores: list[float] = []
    for version in lineage:
        found = by_version.get(version, ())
        if found and newest is None:
            newest = version
        scores += found
        if newest is not None and len(scores) >= min_scores:
            return ScoreGroup(newest, tuple(scores))
    return None


async def _ability(session: Session, active: int) -> Ability | None:
    """Of the version that serves, against the base; None where either has not been evaluated, or they are the same."""
    row, oldest = await evaluations.get(session, active), await evaluations.oldest(session)
    if row is None or oldest is None or row.policy_version == oldest.policy_version:
        return None
    now, reference = evaluation_status(row), evaluation_status(oldest)

    return Ability(
        policy_version=now.policy_version,
        reference_version=reference.policy_version,
        perplexity=_pair(now.perplexity, reference.perplexity),
        distinct_2=_pair(now.distinct_2, reference.distinct_2),
        response_tokens=_pair(now.response_tokens, reference.response_tokens),
    )


def _pair(now: float | None, reference: float | None) -> tuple[float, float] | None:
    return None if now is None or reference is None else (now, reference)


async def _lengths(session: Session) -> Lengths | None:
    recent = await alarms.answer_lengths(session, ANSWERS, base=False)
    base = await alarms.answer_lengths(session, ANSWERS, base=True)
    if min(len(recent), len(base)) < MIN_ANSWERS:
        return None
    return Lengths(recent=sum(recent) / len(recent), base=sum(base) / len(base))
