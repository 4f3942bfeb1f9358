"""Evaluations: one row a policy version, what it said to fixed prompts and how well it predicts a fixed text."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import EvaluationRow


async def put(session: AsyncSession, row: EvaluationRow) -> None:
    """Insert, or take the place of the version's earlier evaluation."""
    await session.merge(row)
    await session.flush()


async def get(session: AsyncSession, policy_version: int) -> EvaluationRow | None:
    return await session.get(EvaluationRow, policy_version)


async def oldest(session: AsyncSession) -> EvaluationRow | None:
    """The base's evaluation where there is one, else that of the oldest version: what later ones are compared with."""
    return (await session.scalars(select(EvaluationRow).order_by(EvaluationRow.policy_version).limit(1))).one_or_none()


async def newest(session: AsyncSession, limit: int = 50, *, before: int | None = None) -> Sequence[EvaluationRow]:
    """Of the newest ``limit`` versions that have one, newest version first; ``before``: only versions older than that."""
    query = select(EvaluationRow).order_by(EvaluationRow.policy_version.desc()).limit(limit)
    return (await session.scalars(query if before is None else query.where(EvaluationRow.policy_version < before))).all()
