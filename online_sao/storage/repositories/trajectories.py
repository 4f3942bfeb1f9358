"""The training side of interactions. Owns how trajectories are made, found, counted and loaded for training.

It reads states but never changes one: online_sao.publishing.lifecycle does, and is where claiming, releasing and expiring live.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.errors import LeaseLostError, LifecycleError
from online_sao.storage.repositories import learner, policies
from online_sao.storage.repositories.interactions import to_record
from online_sao.storage.tables import InteractionRow, TrajectoryRow
from online_sao.types import Interaction, InteractionStatus, TrajectoryState


@dataclass(frozen=True, slots=True)
class ClaimedTrajectory:
    """What the learner needs of one claimed trajectory."""

    trajectory_id: int
    reward: float
    oldest_policy_version: int
    interaction: Interaction


async def create(
    session: AsyncSession, interaction: InteractionRow, *, now: float, deadline_at: float, not_trainable_reason: str | None = None
) -> TrajectoryRow:
    """The trajectory of a completed interaction: PENDING until ``deadline_at``, or NOT_TRAINABLE with the reason.

    An interaction that keeps no tokens (``store: false``, or erased meanwhile) is never trainable, whatever the caller says; nor is one that was
    sampled, in part, from a version rolled back meanwhile.
    """
    versions = [version for _start, _end, version in interaction.version_spans or ()]
    reason = "erased" if interaction.erased_at is not None else not_trainable_reason
    if reason is None and (not interaction.stored or interaction.token_ids is None):
        reason = "store_false"
    if reason is None:
        reason = await _rolled_back_meanwhile(session, versions)
    row = TrajectoryRow(
        interaction_id=interaction.id,
        state=TrajectoryState.PENDING if reason is None else TrajectoryState.NOT_TRAINABLE,
        reason=reason,
        oldest_policy_version=min(versions, default=interaction.policy_version),
        # Named although empty: a later UPDATE in this transaction only refreshes attributes the row already has.
        reward=None,
        ready_at=None,
        claim_id=None,
        claim_expires_at=None,
        created_at=now,
        deadline_at=deadline_at,
        updated_at=now,
    )
    session.add(row)
    await session.flush()
    return row


async def _rolled_back_meanwhile(session: AsyncSession, versions: Collection[int]) -> str | None:
    head = await learner.get(session)
    if head.lineage_epoch == 0:  # nothing has ever been rolled back
        return None
    left = await policies.off_lineage(session, versions, head=head.head_version, lineage_epoch=head.lineage_epoch)
    return f"policy version {min(left)} was rolled back" if left else None


async def get(session: AsyncSession, trajectory_id: int, *, lock: bool = False) -> TrajectoryRow:
    """As it is now, also where this transaction has read it before. Raises NoResultFound for an unknown id."""
    return await session.get_one(TrajectoryRow, trajectory_id, populate_existing=True, with_for_update=lock or None)


async def by_interaction(session: AsyncSession, interaction_id: int, *, lock: bool = False) -> TrajectoryRow | None:
    query = select(TrajectoryRow).where(TrajectoryRow.interaction_id == interaction_id)
    return (await session.scalars(query.with_for_update() if lock else query)).one_or_none()


async def by_interactions(session: AsyncSession, interaction_ids: Sequence[int], *, lock: bool = False) -> dict[int, TrajectoryRow]:
    """interaction id → trajectory, for those that have one."""
    found: dict[int, TrajectoryRow] = {}
    for start in range(0, len(interaction_ids), 500):
        query = select(TrajectoryRow).where(TrajectoryRow.interaction_id.in_(interaction_ids[start : start + 500]))
        found |= {row.interaction_id: row for row in await session.scalars(query.with_for_update() if lock else query)}
    return found


async def claimable(session: AsyncSession, limit: int) -> Sequence[int]:
    """Ids of READY trajectories, longest waiting first, locked for this transaction; rows another one holds are passed over."""
    query = (
        select(TrajectoryRow.id)
        .where(TrajectoryRow.state == TrajectoryState.READY)
        .order_by(TrajectoryRow.ready_at, TrajectoryRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return (await session.scalars(query)).all()


async def renew_claim(session: AsyncSession, claim_id: str, *, expected: int, expires_at: float) -> None:
    """Extend a claim on all of its ``expected`` trajectories. Raises LeaseLostError if any is no longer CLAIMED by it: discard the batch then."""
    query = update(TrajectoryRow).where(TrajectoryRow.claim_id == claim_id, TrajectoryRow.state == TrajectoryState.CLAIMED)
    held = len((await session.scalars(query.values(claim_expires_at=expires_at).returning(TrajectoryRow.id))).all())
    if held != expected:
        raise LeaseLostError(f"Claim {claim_id} holds {held} of its {expected} trajectories: the others were released or erased meanwhile.")


async def load_claimed(session: AsyncSession, claim_id: str) -> tuple[list[ClaimedTrajectory], dict[int, str]]:
    """The trajectories a claim holds, in the order they became ready, with everything training needs; and those that cannot be read: id → why.

    One damaged row must not keep the others from being trained, so it is named rather than raised.
    """
    query = (
        select(TrajectoryRow, InteractionRow)
        .join(InteractionRow, InteractionRow.id == TrajectoryRow.interaction_id)
        .where(TrajectoryRow.claim_id == claim_id, TrajectoryRow.state == TrajectoryState.CLAIMED)
        .order_by(TrajectoryRow.ready_at, TrajectoryRow.id)
    )
    claimed: list[ClaimedTrajectory] = []
    broken: dict[int, str] = {}
    for trajectory, interaction in await session.execute(query):
        if trajectory.reward is None:
            broken[trajectory.id] = "it has no reward"
            continue
        try:
            record = to_record(interaction)
        except (LifecycleError, LookupError, TypeError, ValueError) as error:
            broken[trajectory.id] = f"its interaction cannot be read: {error}"
        else:
            claimed.append(ClaimedTrajectory(trajectory.id, trajectory.reward, trajectory.oldest_policy_version, record))
    return claimed, broken


async def count_scored(session: AsyncSession, *, limit: int) -> int:
    """How many trajectories have a reward, counted up to ``limit``."""
    some = select(TrajectoryRow.id).where(TrajectoryRow.reward.is_not(None)).limit(limit).subquery()
    return await session.scalar(select(func.count()).select_from(some)) or 0


async def load_scored(session: AsyncSession, limit: int) -> list[ClaimedTrajectory]:
    """The newest ``limit`` trajectories that have a reward and still have their content, whatever became of them, oldest first."""
    query = (
        select(TrajectoryRow, InteractionRow)
        .join(InteractionRow, InteractionRow.id == TrajectoryRow.interaction_id)
        .where(TrajectoryRow.reward.is_not(None), InteractionRow.stored, InteractionRow.status == InteractionStatus.COMPLETED)
        .order_by(TrajectoryRow.id.desc())
        .limit(limit)
    )
    found: list[ClaimedTrajectory] = []
    for trajectory, interaction in await session.execute(query):
        try:
            record = to_record(interaction)
        except (LifecycleError, LookupError, TypeError, ValueError):
            continue  # the claim that meets it says why
        if trajectory.reward is not None:
            found.append(ClaimedTrajectory(trajectory.id, trajectory.reward, trajectory.oldest_policy_version, record))
    return found[::-1]


async def claimed_ids(session: AsyncSession, claim_id: str) -> Sequence[int]:
    """Ids of the trajectories a claim holds, locked."""
    query = select(TrajectoryRow.id).where(TrajectoryRow.claim_id == claim_id, TrajectoryRow.state == TrajectoryState.CLAIMED)
    return (await session.scalars(query.order_by(TrajectoryRow.id).with_for_update())).all()


async def open_claims(session: AsyncSession) -> Sequence[str]:
    """Ids of the claims that hold any trajectory now."""
    query = select(TrajectoryRow.claim_id).where(TrajectoryRow.state == TrajectoryState.CLAIMED, TrajectoryRow.claim_id.is_not(None)).distinct()
    return [claim for claim in await session.scalars(query) if claim is not None]


async def counts_by_state(session: AsyncSession) -> dict[TrajectoryState, int]:
    """Every state is a key, also those no trajectory is in."""
    found = await session.execute(select(TrajectoryRow.state, func.count()).group_by(TrajectoryRow.state))
    return dict.fromkeys(TrajectoryState, 0) | {TrajectoryState(state): count for state, count in found}


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits to be trained. ``oldest_ready_at`` is when the first of them became ready; None when none waits."""

    ready: int
    oldest_ready_at: float | None


async def queue(session: AsyncSession) -> Queue:
    query = select(func.count(), func.min(TrajectoryRow.ready_at)).where(TrajectoryRow.state == TrajectoryState.READY)
    ready, oldest = (await session.execute(query)).one()
    return Queue(ready, oldest)


async def overdue(session: AsyncSession, now: float, limit: int) -> Sequence[int]:
    """Ids of PENDING trajectories whose deadline has passed, locked, oldest deadline first."""
    query = (
        select(TrajectoryRow.id)
        .where(TrajectoryRow.state == TrajectoryState.PENDING, TrajectoryRow.deadline_at <= now)
        .order_by(TrajectoryRow.deadline_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return (await session.scalars(query)).all()


async def lapsed_claims(session: AsyncSession, now: float) -> Sequence[int]:
    """Ids of CLAIMED trajectories whose claim has run out, locked."""
    query = select(TrajectoryRow.id).where(TrajectoryRow.state == TrajectoryState.CLAIMED, TrajectoryRow.claim_expires_at < now)
    return (await session.scalars(query.with_for_update(skip_locked=True))).all()


async def ready_older_than(session: AsyncSession, fresh_versions: Sequence[int]) -> list[tuple[int, int]]:
    """(id, oldest version) of READY trajectories whose oldest token comes from none of ``fresh_versions``, locked."""
    query = select(TrajectoryRow.id, TrajectoryRow.oldest_policy_version).where(
        TrajectoryRow.state == TrajectoryState.READY, TrajectoryRow.oldest_policy_version.not_in(fresh_versions)
    )
    return [(id_, version) for id_, version in await session.execute(query.with_for_update(skip_locked=True))]


@dataclass(frozen=True, slots=True)
class Stranded:
    """A trajectory that holds tokens of a version which is not on the learner's lineage; the oldest such is ``version``."""

    trajectory_id: int
    state: TrajectoryState
    version: int


async def stranded(session: AsyncSession, lineage: Collection[int], states: Collection[TrajectoryState]) -> list[Stranded]:
    """Those in one of ``states`` with a token of a version outside ``lineage``, locked.

    The oldest and the newest version of a completion are columns; only those that were sampled across two swaps or more have a version in between,
    and only these, and those already found out by a column, have their spans read.
    """
    newest, oldest = InteractionRow.policy_version, TrajectoryRow.oldest_policy_version
    query = (
        select(TrajectoryRow.id, TrajectoryRow.state, oldest, newest, InteractionRow.version_spans)
        .join(InteractionRow, InteractionRow.id == TrajectoryRow.interaction_id)
        .where(TrajectoryRow.state.in_(states))
        .where(or_(oldest.not_in(lineage), newest.not_in(lineage), func.json_array_length(InteractionRow.version_spans) > 2))
        .order_by(TrajectoryRow.id)
        .with_for_update(of=TrajectoryRow)
    )
    found = []
    own = frozenset(lineage)
    for id_, state, first, last, spans in await session.execute(query):
        foreign = {first, last, *(version for _start, _end, version in spans or ())} - own
        if foreign:
            found.append(Stranded(id_, TrajectoryState(state), min(foreign)))
    return found
