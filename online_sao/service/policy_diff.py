"""Two policy versions side by side: what their answers were scored, what lies between them, what each says, how far their weights are apart.

Owns that composition, as records; knows nothing of how they are shown. Everything but the weights is one consistent read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from online_sao.config import EvaluationSettings
from online_sao.errors import NotFoundError, PolicyStoreError
from online_sao.publishing.comparison import WeightDistance, weight_distance
from online_sao.publishing.policy_store import version_dir
from online_sao.service.evaluations import EvaluationStatus, evaluation_status
from online_sao.service.status import UpdateStatus, VersionStatus, update_status, version_statuses
from online_sao.storage.repositories import evaluations, policies, updates
from online_sao.storage.session import Database, Session

MAX_UPDATES = 100
"""Updates shown on either side, the newest; their number is told whole."""

Relation = Literal["same", "ancestor", "descendant", "diverged"]


@dataclass(frozen=True, slots=True)
class LineageDiff:
    """``relation``: what the first is to the second. ``common_ancestor``: the newest version both come from. ``updates_from`` and ``updates_to``: how
    many updates lie between it and either."""

    relation: Relation
    common_ancestor: int
    updates_from: int
    updates_to: int


@dataclass(frozen=True, slots=True)
class PolicyDiff:
    """``updates_to``: the updates that lead from the common ancestor to the second version, oldest first (at most MAX_UPDATES); ``updates_from``:
    those that lead to the first. ``evaluations``: version → what it said to the fixed prompts, for those that have been evaluated. ``weights``: None,
    with ``weights_problem``, where files are gone."""

    first: VersionStatus
    second: VersionStatus
    lineage: LineageDiff
    updates_from: tuple[UpdateStatus, ...]
    updates_to: tuple[UpdateStatus, ...]
    evaluations: Mapping[int, EvaluationStatus]
    weights: WeightDistance | None
    weights_problem: str | None


async def compare(database: Database, store: Path, first: int, second: int) -> PolicyDiff:
    """``store``: the policy store's folder. Raises NotFoundError for an unknown version."""
    async with database.read() as session:
        statuses = [await _status(session, version) for version in (first, second)]
        ancestors = [await policies.lags(session, version) for version in (first, second)]
        lineage = _lineage(first, second, *ancestors)
        made = [await _updates(session, side, lineage.common_ancestor) for side in ancestors]
        rows = [await evaluations.get(session, version) for version in dict.fromkeys((first, second))]
    weights, problem = await _weights(store, statuses)
    return PolicyDiff(
        first=statuses[0],
        second=statuses[1],
        lineage=lineage,
        updates_from=made[0],
        updates_to=made[1],
        evaluations={row.policy_version: evaluation_status(row) for row in rows if row is not None},
        weights=weights,
        weights_problem=problem,
    )


def evaluation_problem(version: VersionStatus, settings: EvaluationSettings) -> str:
    """Why a version has no evaluation, for whoever looks for it. What kept it is not logged: where it may be one of two things, both are said."""
    if not settings.enabled:
        return "evaluation.enabled is off"
    if version.activated_at is None:
        return "it has not served"
    if version.retired_at is None:
        return "it serves now, and is evaluated when the engine has room"
    served = max(0.0, version.retired_at - version.activated_at)
    interval = settings.min_interval_seconds
    if served < interval:
        why = f"it served {served:.0f} s before a newer one came, and evaluations are at least {interval:g} s apart (evaluation.min_interval_seconds)"
    else:
        why = f"it served {served:.0f} s without the engine having room for it, or evaluation.enabled was off then"
    return f"{why}. One that serves is evaluated within a minute or two: roll back to it for that"


async def _weights(store: Path, versions: Sequence[VersionStatus]) -> tuple[WeightDistance | None, str | None]:
    removed = [status.version for status in versions if status.files_removed_at is not None]
    if removed:
        return None, f"the files of version {removed[0]} were removed by retention"
    folders = [version_dir(store, status.version) if status.version else None for status in versions]
    try:
        return await asyncio.to_thread(weight_distance, *folders), None
    except PolicyStoreError as error:
        return None, error.message


async def _status(session: Session, version: int) -> VersionStatus:
    row = await policies.get(session, version)
    if row is None:
        raise NotFoundError(f"There is no policy version {version}. `GET /admin/policies` lists them.", param="version")
    return (await version_statuses(session, [row]))[0]


def _lineage(first: int, second: int, of_first: Mapping[int, int], of_second: Mapping[int, int]) -> LineageDiff:
    """``of_…``: ancestor → updates between it and that version, the version itself included. Version 0 is an ancestor of all."""
    common = max(of_first.keys() & of_second.keys())
    relation: Relation = "same" if first == second else "ancestor" if common == first else "descendant" if common == second else "diverged"
    return LineageDiff(relation, common, of_first[common], of_second[common])


async def _updates(session: Session, lineage: Mapping[int, int], since: int) -> tuple[UpdateStatus, ...]:
    versions = sorted(version for version, lag in lineage.items() if lag < lineage[since])
    return tuple(update_status(row) for row in await updates.by_versions(session, versions[-MAX_UPDATES:]))
