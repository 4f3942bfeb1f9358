"""State changes of trajectories and policy versions. Owns the two transition tables and is the only code that writes either ``state`` column.

Every change is one conditional UPDATE: a row that is not in an allowed state is not touched, and LifecycleError names what it was and what was
wanted. Functions take the session of an open transaction and never commit. ``now`` is Unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from online_sao.errors import LifecycleError
from online_sao.storage.repositories import leases, policies, states, trajectories
from online_sao.storage.repositories.trajectories import Stranded
from online_sao.storage.session import Session
from online_sao.storage.tables import TrajectoryRow
from online_sao.types import TrajectoryState, VersionState

TRAJECTORY_TRANSITIONS: Mapping[TrajectoryState, frozenset[TrajectoryState]] = {
    TrajectoryState.PENDING: frozenset({TrajectoryState.READY, TrajectoryState.EXPIRED, TrajectoryState.NOT_TRAINABLE}),
    TrajectoryState.READY: frozenset({TrajectoryState.CLAIMED, TrajectoryState.EXPIRED}),
    TrajectoryState.CLAIMED: frozenset({TrajectoryState.TRAINED, TrajectoryState.REJECTED, TrajectoryState.READY}),
    TrajectoryState.TRAINED: frozenset(),
    TrajectoryState.REJECTED: frozenset(),
    TrajectoryState.EXPIRED: frozenset(),
    TrajectoryState.NOT_TRAINABLE: frozenset(),
}
"""state → the states it may become. CLAIMED → READY is a claim that lapsed or was given up."""

VERSION_TRANSITIONS: Mapping[VersionState, frozenset[VersionState]] = {
    VersionState.STAGED: frozenset({VersionState.VERIFIED, VersionState.FAILED}),
    VersionState.VERIFIED: frozenset({VersionState.ACTIVE, VersionState.FAILED}),
    VersionState.ACTIVE: frozenset({VersionState.RETIRED, VersionState.FAILED}),
    VersionState.RETIRED: frozenset({VersionState.ACTIVE}),
    VersionState.FAILED: frozenset(),
}
"""state → the states it may become. RETIRED → ACTIVE is a rollback."""

_FREED = {"claim_id": None, "claim_expires_at": None}


@dataclass(frozen=True, slots=True)
class TrainedTrajectory:
    """How one trajectory was used. ``policy_lag`` in updates; ``masked_fraction`` of its action tokens."""

    trajectory_id: int
    reward: float
    policy_lag: int
    masked_fraction: float


async def move_trajectories(
    session: Session,
    ids: Sequence[int],
    target: TrajectoryState,
    *,
    now: float,
    source: TrajectoryState | None = None,
    claim_id: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> None:
    """Move all of ``ids`` to ``target``, writing ``changes`` with it; raises LifecycleError if any may not go there (roll back then).

    ``source`` and ``claim_id`` narrow where they may come from and whose they must be.
    """
    sources = [state for state, targets in TRAJECTORY_TRANSITIONS.items() if target in targets and source in (None, state)]
    values = {"state": target, "updated_at": now, **(changes or {})}
    moved = await states.set_trajectories(session, ids, sources=sources, claim_id=claim_id, values=values)
    if moved != set(ids):
        raise LifecycleError(await _explain(session, sorted(set(ids) - moved), target, claim_id))


async def make_ready(session: Session, rewards: Mapping[int, float], now: float) -> None:
    """PENDING → READY: scored. ``rewards``: trajectory id → reward."""
    await move_trajectories(session, list(rewards), TrajectoryState.READY, now=now, source=TrajectoryState.PENDING, changes={"ready_at": now})
    await states.set_rewards(session, rewards)


async def replace_rewards(session: Session, rewards: Mapping[int, float], now: float) -> None:
    """Other scores before use: the rewards (trajectory id → reward) change, the places in the queue do not. Raises LifecycleError unless all are
    READY."""
    ready = await states.set_trajectories(session, list(rewards), sources=[TrajectoryState.READY], claim_id=None, values={"updated_at": now})
    if ready != set(rewards):
        raise LifecycleError(f"The reward of trajectory {min(set(rewards) - ready)} cannot change: it is no longer ready.")
    await states.set_rewards(session, rewards)


async def claim(session: Session, *, limit: int, claim_id: str, expires_at: float, now: float) -> list[int]:
    """READY → CLAIMED for up to ``limit`` trajectories, longest ready first. Returns their ids, in that order."""
    ids = list(await trajectories.claimable(session, limit))
    await move_trajectories(session, ids, TrajectoryState.CLAIMED, now=now, changes={"claim_id": claim_id, "claim_expires_at": expires_at})
    return ids


async def release(session: Session, claim_id: str, now: float) -> int:
    """CLAIMED → READY for whatever the claim still holds: its batch was given up. Returns how many."""
    return await _release(session, await trajectories.claimed_ids(session, claim_id), now)


async def release_lapsed(session: Session, now: float) -> int:
    """CLAIMED → READY where the claim has run out and no live learner holds the learner lease. Returns how many."""
    if await leases.is_held(session, "learner", now):
        return 0
    return await _release(session, await trajectories.lapsed_claims(session, now), now)


async def finish_trained(
    session: Session, trained: Sequence[TrainedTrajectory], *, claim_id: str, update_number: int, now: float, recovered: bool = False
) -> list[int]:
    """CLAIMED → TRAINED for a committed update, whose row must exist. Returns the ids that could not be marked: always empty unless ``recovered``.

    ``recovered``: the update's commit point was passed but the process died before this transaction, so the claim may have lapsed since. A
    trajectory that went back to READY is taken from there (it was used, and must not be used again); one that has expired stays expired.
    """
    left: list[int] = []
    for item in trained:
        if recovered:
            row = await trajectories.get(session, item.trajectory_id, lock=True)
            if row.state == TrajectoryState.READY:
                await move_trajectories(session, [row.id], TrajectoryState.CLAIMED, now=now, changes={"claim_id": claim_id})
            elif row.state != TrajectoryState.CLAIMED or row.claim_id != claim_id:
                left.append(row.id)
                continue
        changes = {
            "update_number": update_number,
            "reward": item.reward,
            "policy_lag": item.policy_lag,
            "masked_fraction": item.masked_fraction,
            "claim_expires_at": None,
        }
        await move_trajectories(session, [item.trajectory_id], TrajectoryState.TRAINED, now=now, claim_id=claim_id, changes=changes)
    return left


async def reject(session: Session, ids: Sequence[int], *, claim_id: str, update_number: int, reason: str, now: float) -> None:
    """CLAIMED → REJECTED: a gate refused the update they were in."""
    changes = {"update_number": update_number, "reason": reason, "claim_expires_at": None}
    await move_trajectories(session, ids, TrajectoryState.REJECTED, now=now, claim_id=claim_id, changes=changes)


async def expire_overdue(session: Session, now: float, default_reward: float | None, limit: int = 1000) -> int:
    """PENDING past its deadline → READY with ``default_reward``, or EXPIRED where there is none. At most ``limit``; returns how many."""
    ids = await trajectories.overdue(session, now, limit)
    if default_reward is None:
        await move_trajectories(session, ids, TrajectoryState.EXPIRED, now=now, changes={"reason": "no score before the deadline"})
    else:
        await make_ready(session, dict.fromkeys(ids, default_reward), now)
    return len(ids)


async def expire_lagging(session: Session, *, head_version: int, max_policy_lag: int, now: float) -> int:
    """READY → EXPIRED where the oldest token is more than ``max_policy_lag`` updates behind ``head_version``, or any token is not of its lineage.
    Returns how many."""
    lag = await policies.lags(session, head_version)
    stranded = await trajectories.stranded(session, lag, (TrajectoryState.READY,))
    await expire_stranded(session, stranded, lambda version: f"policy version {version} was abandoned", now)
    stale = await trajectories.ready_older_than(session, [version for version, updates in lag.items() if updates <= max_policy_lag])
    for version in sorted({version for _, version in stale}):
        ids = [id_ for id_, v in stale if v == version]
        changes = {"reason": f"policy_lag {lag[version]} > {max_policy_lag}"}
        await move_trajectories(session, ids, TrajectoryState.EXPIRED, now=now, source=TrajectoryState.READY, changes=changes)
    return len(stale) + len(stranded)


async def expire_stranded(session: Session, stranded: Sequence[Stranded], reason: Callable[[int], str], now: float) -> None:
    """PENDING, READY and CLAIMED → EXPIRED for trajectories with tokens of a lineage that was left; ``reason`` is told the version.

    A CLAIMED one is taken back from its claim first, so that the learner finds its claim broken and discards the batch.
    """
    await _release(session, [item.trajectory_id for item in stranded if item.state is TrajectoryState.CLAIMED], now)
    for version in sorted({item.version for item in stranded}):
        ids = [item.trajectory_id for item in stranded if item.version == version]
        await move_trajectories(session, ids, TrajectoryState.EXPIRED, now=now, changes={"reason": reason(version)})


async def expire(session: Session, rows: Sequence[TrajectoryRow], reason: str, now: float) -> int:
    """EXPIRED for every row that has not been used yet; the others stay as they are. Returns how many.

    A CLAIMED one is taken back from its claim first, so that the learner finds its claim broken before the commit point and discards the batch.
    """
    await _release(session, [row.id for row in rows if row.state == TrajectoryState.CLAIMED], now)
    ids = [row.id for row in rows if row.state in (TrajectoryState.PENDING, TrajectoryState.READY)]
    await move_trajectories(session, ids, TrajectoryState.EXPIRED, now=now, changes={"reason": reason})
    return len(ids)


async def move_version(session: Session, version: int, target: VersionState, *, now: float, reason: str | None = None) -> None:
    """Move one policy version to ``target``; raises LifecycleError if it may not go there. ACTIVE and RETIRED note when."""
    sources = [state for state, targets in VERSION_TRANSITIONS.items() if target in targets]
    values: dict[str, Any] = {"state": target, "reason": reason}
    if target is VersionState.ACTIVE:
        values |= {"activated_at": now, "retired_at": None}
    elif target is VersionState.RETIRED:
        values["retired_at"] = now
    if not await states.set_version(session, version, sources=sources, values=values):
        row = await policies.get(session, version)
        raise LifecycleError(f"Policy version {version} is {row.state if row else 'unknown'} and cannot become {target.value}.")


async def activate(session: Session, version: int, now: float) -> None:
    """The version that serves → RETIRED, ``version`` → ACTIVE, in that order: never two active ones."""
    await move_version(session, (await policies.active(session)).version, VersionState.RETIRED, now=now)
    await move_version(session, version, VersionState.ACTIVE, now=now)


async def _release(session: Session, ids: Sequence[int], now: float) -> int:
    await move_trajectories(session, ids, TrajectoryState.READY, now=now, source=TrajectoryState.CLAIMED, changes=_FREED)
    return len(ids)


async def _explain(session: Session, ids: Sequence[int], target: TrajectoryState, claim_id: str | None) -> str:
    found = await states.trajectory_states(session, ids)
    first = ids[0]
    state, held_by = found.get(first, ("unknown", None))
    owner = f" under claim {held_by}, not {claim_id}," if claim_id is not None and held_by != claim_id else ""
    others = f" (and {len(ids) - 1} more)" if len(ids) > 1 else ""
    return f"Trajectory {first} is {state}{owner} and cannot become {target.value}{others}."
