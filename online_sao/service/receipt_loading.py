"""The rows of receipts, in one query however many are asked for. Owns that query; what the rows mean is receipts.py."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased, load_only

from online_sao.service.receipts import Receipt, ReceiptRows, derive
from online_sao.storage.repositories import learner, policies
from online_sao.storage.repositories.interactions import WITHOUT_CONTENT
from online_sao.storage.tables import FeedbackRow, InteractionRow, PolicyVersionRow, TrajectoryRow, UpdateRow


async def receipts_of(session: AsyncSession, feedback_ids: Sequence[str]) -> dict[str, Receipt]:
    """feedback id → receipt, for those that exist."""
    replacement = aliased(FeedbackRow)
    query = (
        select(FeedbackRow, InteractionRow, TrajectoryRow, UpdateRow, PolicyVersionRow, replacement)
        .options(load_only(*WITHOUT_CONTENT))
        .join(InteractionRow, InteractionRow.id == FeedbackRow.interaction_id)
        .outerjoin(TrajectoryRow, TrajectoryRow.interaction_id == InteractionRow.id)
        .outerjoin(UpdateRow, UpdateRow.update_number == TrajectoryRow.update_number)
        .outerjoin(PolicyVersionRow, PolicyVersionRow.version == UpdateRow.policy_version)
        .outerjoin(replacement, replacement.id == FeedbackRow.superseded_by)
        .where(FeedbackRow.id.in_(feedback_ids))
    )
    found = (await session.execute(query)).all()
    abandoned = await _abandoned(session, {version.version: version.lineage_epoch for *_, version, _ in found if version is not None})
    return {
        feedback.id: derive(
            ReceiptRows(feedback, interaction, trajectory, update, version, newer, version is not None and version.version in abandoned)
        )
        for feedback, interaction, trajectory, update, version, newer in found
    }


async def _abandoned(session: AsyncSession, epochs: dict[int, int]) -> set[int]:
    """Which of the versions a rollback left behind: of an older epoch, and not an ancestor of what the learner stands on now."""
    if not epochs:
        return set()
    row = await learner.get(session)
    older = {version for version, epoch in epochs.items() if epoch < row.lineage_epoch}
    return older - set(await policies.lags(session, row.head_version)) if older else set()
