"""Rolling back: the one transaction that abandons a lineage and moves the learner to a version that served before (docs/design.md §7.6).

Owns which versions can be gone back to and all that the transaction changes. It loads nothing: the ACTIVE version stays the one the engine really
has until the activator has put the other in its place. What the engine has still to do is the newest row of ``rollbacks`` that is not ended, so a
process killed anywhere around it takes it up again. Rolling forward, to a version of an abandoned lineage, is the same thing.
"""

from __future__ import annotations

from online_sao.errors import ConflictError, NotFoundError
from online_sao.publishing import lifecycle
from online_sao.storage.repositories import learner, policies, trajectories
from online_sao.storage.session import Session
from online_sao.storage.tables import PolicyVersionRow, RollbackRow
from online_sao.types import TrajectoryState, VersionState

_WAITING = (TrajectoryState.PENDING, TrajectoryState.READY, TrajectoryState.CLAIMED)


def described(version: int, to_version: int, reason: str | None) -> str:
    """What receipts and trajectories say of a version that was left."""
    return f"policy version {version} was rolled back to version {to_version}" + (f": {reason}" if reason else "")


def is_open(row: RollbackRow | None) -> bool:
    """Whether the engine has still to load that rollback's version (``row``: the newest one, or None)."""
    return row is not None and row.served_at is None and row.problem is None


async def require_target(session: Session, version: int) -> PolicyVersionRow:
    """The row of a version that can be gone back to. Raises NotFoundError for an unknown one, ConflictError saying why it cannot."""
    row = await policies.get(session, version)
    if row is None:
        raise NotFoundError(f"There is no policy version {version}. `GET /admin/policies` lists them.", param="version")
    if row.state == VersionState.FAILED:
        raise ConflictError(f"Policy version {version} has failed and cannot be activated: {row.reason}.", param="version")
    if row.state in (VersionState.STAGED, VersionState.VERIFIED):
        raise ConflictError(f"Policy version {version} is {row.state}: it has never served yet, and will by itself.", param="version")
    if row.files_removed_at is not None:
        raise ConflictError(
            f"The files of policy version {version} were removed by retention, so it cannot be activated. Choose a version whose files are kept "
            "(settings retention.keep_versions and retention.keep_every say which are).",
            param="version",
        )
    head = await learner.get(session)
    if row.state == VersionState.ACTIVE and head.head_version == version:
        raise ConflictError(f"Policy version {version} is active already, and the learner stands on it: there is nothing to undo.", param="version")
    last = await policies.last_rollback(session)
    if last is not None and is_open(last) and last.to_version == version and head.head_version == version:
        raise ConflictError(f"Policy version {version} is being activated already.", param="version")
    return row


async def roll_back(session: Session, version: int, *, resume: bool, reason: str | None, now: float) -> RollbackRow:
    """The transaction. ``reason``: the operator's words. Raises as ``require_target``; roll back the transaction then.

    A new lineage epoch begins, on ``version``: the learner stands there, paused unless ``resume``. Versions of the lineage that is left which have
    never served are FAILED; trajectories waiting with tokens of that lineage are EXPIRED. An update under way finds the epoch changed: discarded.
    """
    before = await learner.get(session, lock=True)
    target = await require_target(session, version)
    epoch, from_version = before.lineage_epoch + 1, before.head_version
    await _move_learner(session, epoch, target, resume=resume, reason=reason)
    lineage = await policies.lags(session, version)
    for waiting in await policies.waiting(session):
        if waiting not in lineage:
            await lifecycle.move_version(session, waiting, VersionState.FAILED, now=now, reason=described(waiting, version, reason))
    stranded = await trajectories.stranded(session, lineage, _WAITING)
    await lifecycle.expire_stranded(session, stranded, lambda left: described(left, version, reason), now)
    row = RollbackRow(
        lineage_epoch=epoch,
        from_version=from_version,
        to_version=version,
        resume=resume,
        reason=reason,
        expired_trajectories=len(stranded),
        created_at=now,
        # The engine has it loaded: only the learner had gone on from there.
        served_at=now if target.state == VersionState.ACTIVE else None,
        problem=None,
    )
    await policies.insert_rollback(session, row)
    return row


async def _move_learner(session: Session, epoch: int, target: PolicyVersionRow, *, resume: bool, reason: str | None) -> None:
    await learner.begin_epoch(session, epoch, head_version=target.version, head_update=target.update_number)
    if resume:
        await learner.resume(session)
    else:
        await learner.pause(session, f"rolled back to version {target.version}" + (f": {reason}" if reason else ""))
