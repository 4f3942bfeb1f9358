"""The conditional UPDATE behind every state change. Owns the SQL; which change is allowed is for online_sao.publishing.lifecycle, its only caller."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.sql.dml import ReturningUpdate

from online_sao.storage.tables import PolicyVersionRow, TrajectoryRow

_CHUNK = 500
_TABLE = TrajectoryRow.metadata.tables[TrajectoryRow.__tablename__]
_SET_REWARD = update(_TABLE).where(_TABLE.c.id == bindparam("chosen")).values(reward=bindparam("to"))


@cache
def _move(columns: tuple[str, ...], claimed: bool) -> ReturningUpdate[Any]:
    """Built once for each set of columns: putting it together costs as much as running it."""
    query = update(_TABLE).where(_TABLE.c.id.in_(bindparam("chosen", expanding=True)), _TABLE.c.state.in_(bindparam("sources", expanding=True)))
    if claimed:
        query = query.where(_TABLE.c.claim_id == bindparam("claim"))
    return query.values({column: bindparam(column) for column in columns}).returning(_TABLE.c.id)


def _show(session: AsyncSession, written: Mapping[int, Mapping[str, Any]]) -> None:
    """What was written (trajectory id → column → value), in the rows that this transaction has read before."""
    for row in session.identity_map.values():
        if isinstance(row, TrajectoryRow):
            for column, value in written.get(row.id, {}).items():
                set_committed_value(row, column, value)


async def set_trajectories(
    session: AsyncSession, ids: Sequence[int], *, sources: Collection[str], claim_id: str | None, values: Mapping[str, Any]
) -> set[int]:
    """Write ``values``, the new state among them, to those of ``ids`` that are in one of ``sources`` and (if given) under ``claim_id``.

    Returns the ids written to.
    """
    moved: set[int] = set()
    query = _move(tuple(values), claim_id is not None)
    for start in range(0, len(ids), _CHUNK):
        chosen = {"chosen": ids[start : start + _CHUNK], "sources": sources, "claim": claim_id}
        moved.update(await session.scalars(query, {**values, **chosen}))
    _show(session, dict.fromkeys(moved, values))
    return moved


async def set_rewards(session: AsyncSession, rewards: Mapping[int, float]) -> None:
    """trajectory id → reward. Whoever calls has just seen that they may have one."""
    if rewards:
        await session.execute(_SET_REWARD, [{"chosen": id_, "to": reward} for id_, reward in rewards.items()])
        _show(session, {id_: {"reward": reward} for id_, reward in rewards.items()})


async def trajectory_states(session: AsyncSession, ids: Sequence[int]) -> dict[int, tuple[str, str | None]]:
    """id → (state, claim id), for those that exist."""
    query = select(TrajectoryRow.id, TrajectoryRow.state, TrajectoryRow.claim_id).where(TrajectoryRow.id.in_(ids[:_CHUNK]))
    return {id_: (state, claim_id) for id_, state, claim_id in await session.execute(query)}


async def set_version(session: AsyncSession, version: int, *, sources: Collection[str], values: Mapping[str, Any]) -> bool:
    """Write ``values`` to a policy version that is in one of ``sources``. False: it is not, and nothing was written."""
    query = update(PolicyVersionRow).where(PolicyVersionRow.version == version, PolicyVersionRow.state.in_(sources)).values(dict(values))
    return bool((await session.scalars(query.returning(PolicyVersionRow.version))).all())
