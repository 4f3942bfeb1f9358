"""The conditional UPDATE behind every state change. Owns the SQL; which change is allowed is for online_sao.publishing.lifecycle, its only caller."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import PolicyVersionRow, TrajectoryRow

_CHUNK = 500


async def set_trajectories(
    session: AsyncSession, ids: Sequence[int], *, sources: Collection[str], claim_id: str | None, values: Mapping[str, Any]
) -> set[int]:
    """Write ``values``, the new state among them, to those of ``ids`` that are in one of ``sources`` and (if given) under ``claim_id``.

    Returns the ids written to.
    """
    moved: set[int] = set()
    for start in range(0, len(ids), _CHUNK):
        query = update(TrajectoryRow).where(TrajectoryRow.id.in_(ids[start : start + _CHUNK]), TrajectoryRow.state.in_(sources))
        if claim_id is not None:
            query = query.where(TrajectoryRow.claim_id == claim_id)
        moved.update(await session.scalars(query.values(dict(values)).returning(TrajectoryRow.id)))
    return moved


async def trajectory_states(session: AsyncSession, ids: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """id → (state, claim id), for those that exist."""
    query = select(TrajectoryRow.id, TrajectoryRow.state, TrajectoryRow.claim_id).where(TrajectoryRow.id.in_(ids[:_CHUNK]))
    return {id_: (state, claim_id) for id_, state, claim_id in await session.execute(query)}


async def set_version(session: AsyncSession, version: int, *, sources: Collection[str], values: Mapping[str, Any]) -> bool:
    """Write ``values`` to a policy version that is in one of ``sources``. False: it is not, and nothing was written."""
    query = update(PolicyVersionRow).where(PolicyVersionRow.version == version, PolicyVersionRow.state.in_(sources)).values(dict(values))
    return bool((await session.scalars(query.returning(PolicyVersionRow.version))).all())
