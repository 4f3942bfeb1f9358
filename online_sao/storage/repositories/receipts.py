"""The rows that tell what became of scores, in one query however many are asked for. Owns that query; what they mean is service/receipts.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased, load_only

from online_sao.storage.repositories import learner, policies
from online_sao.storage.repositories.interactions import WITHOUT_CONTENT
from online_sao.storage.tables import FeedbackRow, InteractionRow, PolicyVersionRow, RollbackRow, TrajectoryRow, UpdateRow


@dataclass(frozen=True, slots=True)
class ReceiptRows:
    """Everything a receipt is derived from. ``interaction`` carries no content columns. ``replacement`` is the score that took this one's place;
    ``version`` the one ``update`` published; ``abandoned``: that version is not on the learner's lineage any more, since ``rollback``."""

    feedback: FeedbackRow
    interaction: InteractionRow
    trajectory: TrajectoryRow | None = None
    update: UpdateRow | None = None
    version: PolicyVersionRow | None = None
    replacement: FeedbackRow | None = None
    abandoned: bool = False
    rollback: RollbackRow | None = None


async def load(session: AsyncSession, feedback_ids: Sequence[str]) -> list[ReceiptRows]:
    """One for each of the ids that exists, in no particular order."""
    if not feedback_ids:
        return []
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
    left = await _abandoned(session, {version.version: version.lineage_epoch for *_, version, _ in found if version is not None})
    return [
        ReceiptRows(
            feedback,
            interaction,
            trajectory,
            update,
            version,
            newer,
            abandoned=version is not None and version.version in left,
            rollback=left.get(version.version) if version is not None else None,
        )
        for feedback, interaction, trajectory, update, version, newer in found
    ]


async def _abandoned(session: AsyncSession, epochs: dict[int, int]) -> dict[int, RollbackRow | None]:
    """Which of the versions (→ their epochs) a rollback left behind, and which rollback that was."""
    if not epochs:
        return {}
    row = await learner.get(session)
    left = await policies.off_lineage(session, epochs, head=row.head_version, lineage_epoch=row.lineage_epoch)
    if not left:
        return {}
    done = await policies.rollbacks(session)
    lineages: dict[int, dict[int, int]] = {}
    for to_version in {rollback.to_version for rollback in done if rollback.lineage_epoch > min(epochs[version] for version in left)}:
        lineages[to_version] = await policies.lags(session, to_version)
    return {version: _left_by(version, epochs[version], done, lineages) for version in left}


def _left_by(version: int, epoch: int, done: Sequence[RollbackRow], lineages: dict[int, dict[int, int]]) -> RollbackRow | None:
    """Since which rollback (``done``: newest first) the version has been off the lineage without a break: going forward to it again is one."""
    since = None
    for rollback in done:
        if rollback.lineage_epoch <= epoch or version in lineages[rollback.to_version]:
            break
        since = rollback
    return since
