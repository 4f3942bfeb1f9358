"""The rows that tell what became of scores, in one query however many are asked for. Owns that query; what they mean is service/receipts.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased, load_only

from online_sao.storage.repositories import learner, policies
from online_sao.storage.repositories.interactions import WITHOUT_CONTENT
from online_sao.storage.tables import FeedbackRow, InteractionRow, PolicyVersionRow, TrajectoryRow, UpdateRow


@dataclass(frozen=True, slots=True)
class ReceiptRows:
    """Everything a receipt is derived from. ``interaction`` carries no content columns. ``replacement`` is the score that took this one's place;
    ``version`` the one ``update`` published; ``abandoned``: that version is not on the learner's lineage any more."""

    feedback: FeedbackRow
    interaction: InteractionRow
    trajectory: TrajectoryRow | None = None
    update: UpdateRow | None = None
    version: PolicyVersionRow | None = None
    replacement: FeedbackRow | None = None
    abandoned: bool = False


async def load(session: AsyncSession, feedback_ids: Sequence[str]) -> list[ReceiptRows]:
    """One for each of the ids that exists, in no particular order."""
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
    return [
        ReceiptRows(feedback, interaction, trajectory, update, version, newer, version is not None and version.version in abandoned)
        for feedback, interaction, trajectory, update, version, newer in found
    ]


async def _abandoned(session: AsyncSession, epochs: dict[int, int]) -> set[int]:
    """Which of the versions a rollback left behind: of an older epoch, and not an ancestor of what the learner stands on now."""
    if not epochs:
        return set()
    row = await learner.get(session)
    older = {version for version, epoch in epochs.items() if epoch < row.lineage_epoch}
    return older - set(await policies.lags(session, row.head_version)) if older else set()
